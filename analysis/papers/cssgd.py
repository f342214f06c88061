"""Page of coded synchronous SGD (Li et al.): a step's time and bytes by scheme and number of nodes,
T(r), and time to an accuracy against ASGD.

A scheme's step time has no variance in virtual time, and steps to an accuracy are shared, so what a
scheme saves against SSGD has one value for each number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import log
from statistics import fmean
from typing import TYPE_CHECKING, Any

from analysis.papers import (
    HOLDS,
    NOT,
    OPEN,
    Claim,
    Results,
    Row,
    Sections,
    judge,
    overview,
    page,
    saves,
    saving,
    table,
    with_figure,
)
from analysis.statistics import interval
from testbed.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE, UNICAST, ASYNC = "ssgd-multicast", "ssgd", "asgd"
STOP = {"dnn": 0.82, "cnn-digits": 0.7}
"""Accuracies that are trained to: the paper's."""
NODES = {"dnn": tuple(range(3, 11)), "cnn": (4, 6, 8, 10)}
TRAINED = (4, 6, 8, 10)
"""Numbers of nodes with which models are trained to their accuracies."""
SAVED = {"dnn": (0.5397, 0.2689), "cnn": (0.3911, 0.2637)}
"""Shares of the time of SSGD and of ASGD that the paper saves, means over numbers of nodes."""
BEST = {"dnn": 3, "cnn": 2}
"""The paper's best redundancies on eight nodes."""
PACE_S = {"dnn": 0.082, "cnn": 0.157}
_EIGHT, _MARGIN = 8, 0.1
_ALIKE = 0.005


def sections(results: Results) -> Sections:
    """The page's marked parts."""
    if "dnn-n3-steps" not in results.groups:
        return overview(results)
    return {
        "claims": page([*judge(list(_claims(results))), *_facts(results)]),
        "dnn": _by_nodes(results, "dnn"),
        "cnn": with_figure(_by_nodes(results, "cnn"), "fig10", FIGURES["fig10"]),
        "redundancy": with_figure(_redundancies(results), "fig12", FIGURES["fig12"]),
        "accuracy": _to_accuracy_section(results, "dnn", "fig4", "fig8"),
        "cnn-accuracy": _to_accuracy_section(results, "cnn-digits", "fig5", "fig15"),
    }


def _to_accuracy_section(results: Results, model: str, *names: str) -> str:
    text = _trained(results, model)
    for name in names:
        text = with_figure(text, name, FIGURES[name])
    return text


_SHARED = "synchronous schemes have the same runs, each with its own time of a step"
_HIDDEN = "the times of both SSGDs coincide"
FIGURES = {
    "fig4": "Figs. 4 and 6: test accuracy of the DNN over time on ten nodes, a line for each seed; "
    f"{_SHARED}",
    "fig5": "Figs. 5 and 7: test accuracy of the CNN over time on ten nodes, a line for each seed; "
    f"{_SHARED}",
    "fig8": "Figs. 8, 9 and 14: time and bytes of all nodes to 82 % (DNN), means over seeds; "
    f"{_HIDDEN}",
    "fig10": f"Figs. 10 and 11: time and bytes of all nodes of a step (CNN); {_HIDDEN}",
    "fig12": "Figs. 12 and 13: T(r) on eight nodes; dashed, the paper's r·T_calc + T_comm/r",
    "fig15": f"Fig. 15: time and bytes of all nodes to 70 % (CNN), means over seeds; {_HIDDEN}",
}
"""The paper's figures of our runs, with their captions."""
_LINES = (BASE, UNICAST, "cssgd-r2", "cssgd-r3", "best published", "best here")


def figures(results: Results) -> dict[str, Figure]:
    """The paper's figures 4 to 15, as far as there are runs."""
    return {
        "fig4": _accuracy_figure(results, "dnn"),
        "fig5": _accuracy_figure(results, "cnn-digits"),
        "fig8": _nodes_figure(results, "dnn", TRAINED),
        "fig10": _nodes_figure(results, "cnn", NODES["cnn"]),
        "fig12": _redundancy_figure(results),
        "fig15": _nodes_figure(results, "cnn-digits", TRAINED),
    }


def _about(model: str) -> str:
    """The model's name, as ``DNN``."""
    return model.partition("-")[0].upper()


def _percent(model: str) -> str:
    """The accuracy that it is trained to."""
    return f"{100 * STOP[model]:g} %"


def _accuracy_figure(results: Results, model: str) -> Figure:
    from analysis.style import PAGE_IN, heading, look, new_figure

    figure, count = new_figure(PAGE_IN, 2.7), TRAINED[-1]
    axes, times = figure.subplots(), step_s(results, model, TRAINED[-1])
    names = [BASE, _published(times), _coded(times), ASYNC]
    handles = []
    for index, name in enumerate(names):
        group = f"{model}-n{count}-{'asgd' if name == ASYNC else 'reach'}"
        for record in results.runs(group).of(ASYNC if name == ASYNC else "none"):
            at = [
                time_s if name == ASYNC else step * times[name]
                for step, time_s, _ in record["evaluations"]
            ]
            accuracies = [accuracy for _, _, accuracy in record["evaluations"]]
            style = {**look(index), "linewidth": 0.8, "markersize": 2}
            line = axes.plot(at, accuracies, **style)[0]
        handles.append(line)
    axes.axhline(STOP[model], color="0.3", linewidth=0.7)
    axes.set(xlabel="Model time (s)", ylabel="Test accuracy")
    heading(figure, f"{_about(model)} on ten nodes, until {_percent(model)}", handles, names)
    return figure


def _nodes_figure(results: Results, model: str, nodes: Sequence[int]) -> Figure:
    """Time and bytes by number of nodes: of a step, or of as many as the accuracy takes."""
    from analysis.style import PAGE_IN, heading, look, new_figure

    trained = model in STOP
    reached = _to_accuracy(results, model) if trained else {}
    steps = {n: of[0] for n, of in reached.items()}
    figure = new_figure(PAGE_IN, 2.8)
    panels = figure.subplots(1, 2)
    handles, labels = list[Any](), list[str]()
    for index, label in enumerate(_LINES):
        times, sent = list[tuple[int, float]](), list[tuple[int, float]]()
        for count in nodes:
            of = step_s(results, model, count)
            name = {"best published": _published, "best here": _coded}.get(label)
            scheme = label if name is None else name(of)
            if scheme in of:
                factor = steps.get(count, 1.0)
                runs = results.runs(f"{model}-n{count}-steps").of(scheme)
                each = fmean(float(run["bytes_up"]) / float(run["steps"]) for run in runs)
                times.append((count, factor * of[scheme]))
                sent.append((count, factor * each / 1e6))
        handles += panels[0].plot(*zip(*times, strict=True), **look(index))
        panels[1].plot(*zip(*sent, strict=True), **look(index))
        labels.append(label)
    if trained:
        asynchronous = [(n, of[1]) for n, of in reached.items()]
        handles += panels[0].plot(*zip(*asynchronous, strict=True), **look(len(_LINES)))
        labels.append(ASYNC)
    for axes, what in zip(panels, ("Model time (s)", "Sent by all nodes (MB)"), strict=True):
        axes.set(xlabel="Nodes", ylabel=what, yscale="log", xticks=list(nodes))
    title = f"{_about(model)}, {f'until {_percent(model)}' if trained else 'a step'}"
    heading(figure, title, handles, labels)
    return figure


def _redundancy_figure(results: Results) -> Figure:
    from analysis.style import PAGE_IN, heading, look, new_figure

    figure, schemes = new_figure(PAGE_IN, 2.8), ("cssgd", "replicated", "grouped", "combined")
    handles: list[Any] = []
    for axes, model in zip(figure.subplots(1, 2), BEST, strict=True):
        times, every = step_s(results, model, _EIGHT), range(1, _EIGHT)
        expected = [modelled(times[BASE], PACE_S[model], r) for r in every]
        handles = axes.plot(every, expected, color="0.2", linestyle="--")
        for index, scheme in enumerate(schemes):
            named = {r: times.get(f"{scheme}-r{r}") for r in every}
            if not index:
                named[1] = times[BASE]
            known = [(r, at) for r, at in named.items() if at is not None]
            style = look(index) if not index else {**look(index), "linestyle": ""}
            handles += axes.plot(*zip(*known, strict=True), **style)
        axes.set(xlabel="r", ylabel="A step (s)", yscale="log", title=model.upper())
    heading(figure, "T(r) on eight nodes", handles, ["the paper's model", *schemes])
    return figure


def step_s(results: Results, model: str, nodes: int) -> Mapping[str, float]:
    """Seconds of a step by scheme."""
    return _measure(results, model, nodes, "step_s")


def _measure(results: Results, model: str, nodes: int, name: str) -> Mapping[str, float]:
    runs = results.runs(f"{model}-n{nodes}-steps")
    return {scheme: fmean(runs.values(scheme, name).values()) for scheme in runs.names()}


def _published(times: Mapping[str, float]) -> str:
    """The published scheme with the redundancy that takes least time."""
    return min((name for name in times if name.startswith("cssgd")), key=times.__getitem__)


def _coded(times: Mapping[str, float]) -> str:
    """The coded or replicated scheme that takes least time."""
    return min((name for name in times if name not in (BASE, UNICAST)), key=times.__getitem__)


def _claims(results: Results) -> Iterator[Claim]:
    for model, nodes in NODES.items():
        times = {count: step_s(results, model, count) for count in nodes}
        about = f"{model.upper()}, {nodes[0]} to {nodes[-1]} nodes"
        for r in (2, 3):
            name = f"cssgd-r{r}"
            values = tuple(log(of[BASE] / of[name]) for of in times.values() if name in of)
            yield Claim(
                f"CSSGD with r = {r} takes less time than SSGD ({about})", "yes", values, saving
            )
        for what, choose in (("published scheme", _published), ("best scheme here", _coded)):
            values = tuple(log(of[BASE] / of[choose(of)]) for of in times.values())
            text = f"less time than SSGD at the best r, {what} ({about})"
            yield saves(text, f"{SAVED[model][0]:.2%}", values, SAVED[model][0])
        sent = [_measure(results, model, count, "bytes_up") for count in nodes]
        yield Claim(
            f"CSSGD with r = 2 sends less than SSGD ({about})",
            "yes",
            tuple(log(of[BASE] / of["cssgd-r2"]) for of in sent),
            saving,
        )
    for model in STOP:
        yield from _asynchronous_claims(results, model)


def _asynchronous_claims(results: Results, model: str) -> Iterator[Claim]:
    share = SAVED[model.partition("-")[0]][1]
    for what, choose in (("published scheme", _published), ("best scheme here", _coded)):
        values = []
        for count, (steps, asynchronous) in _to_accuracy(results, model).items():
            times = step_s(results, model, count)
            values.append(log(asynchronous / (steps * times[choose(times)])))
        text = f"less time than ASGD at the best r, {what} ({_about(model)}, 4 to 10 nodes)"
        yield saves(text, f"{share:.2%}", values, share)


def _facts(results: Results) -> Iterator[Row]:
    """Claims without variance."""
    for model, best in BEST.items():
        times = step_s(results, model, _EIGHT)
        own = int(_published(times).removeprefix("cssgd-r"))
        yield Row(
            f"best r from 2 on of the published scheme on eight nodes ({model.upper()})",
            str(best),
            str(own),
            HOLDS if own == best else NOT,
        )
        away = max(
            abs(modelled(times[BASE], PACE_S[model], r) / times[f"cssgd-r{r}"] - 1)
            for r in range(2, _EIGHT)
        )
        yield Row(
            f"T = r·T_calc + T_comm/r, published scheme, within 10 % for all r ({model.upper()})",
            "yes",
            f"off by up to {away:.0%}",
            HOLDS if away <= _MARGIN else NOT,
        )
    for model, accuracy in STOP.items():
        reached = results.runs(f"{model}-n10-asgd")
        count, of = len(reached.reached(ASYNC, accuracy)), len(reached.of(ASYNC))
        text = f"ASGD reaches {_percent(model)} on ten nodes ({_about(model)})"
        yield Row(text, "yes", f"{count} of {of}", HOLDS if count == of else OPEN)
    away = max(abs(each) for name in (BASE, "cssgd-r3") for each in _apart(results, name))
    yield Row(
        "SSGD and CSSGD have the same accuracies (four nodes, within half a point)",
        "yes",
        f"apart by up to {100 * away:.2f} points",
        HOLDS if away <= _ALIKE else NOT,
    )


def modelled(base_s: float, pace_s: float, redundancy: int) -> float:
    """The paper's T(r), s, of a step of SSGD by multicast of which ``pace_s`` is computation."""
    return redundancy * pace_s + (base_s - pace_s) / redundancy


def _apart(results: Results, name: str) -> Iterator[float]:
    runs = results.runs("dnn-n4-same")
    others = {each["seed"]: each["evaluations"] for each in runs.of("none")}
    for own in (each for each in runs.of(name) if each["seed"] in others):
        for (_, _, a), (_, _, b) in zip(own["evaluations"], others[own["seed"]], strict=True):
            yield a - b


def _to_accuracy(results: Results, model: str) -> Mapping[int, tuple[float, float]]:
    """Steps of synchronous schemes and seconds of ASGD by number of nodes, means over the seeds
    that reach the accuracy."""
    means = {}
    for count in TRAINED:
        steps = results.runs(f"{model}-n{count}-reach").reached("none", STOP[model])
        times = results.runs(f"{model}-n{count}-asgd").reached(ASYNC, STOP[model])
        if not steps or not times:
            raise InputError(f"{count} nodes do not reach {_percent(model)} with any seed")
        means[count] = fmean(at[1] for at in steps.values()), fmean(at[0] for at in times.values())
    return means


def _by_nodes(results: Results, model: str) -> str:
    head = [
        "nodes",
        "`ssgd-multicast` (s)",
        "`ssgd`",
        "`cssgd-r2`",
        "`cssgd-r3`",
        "best published",
        "best here",
    ]
    rows = []
    for count in NODES[model]:
        times, sent = step_s(results, model, count), _measure(results, model, count, "bytes_up")
        cell = partial(_cell, times, sent)
        names = [UNICAST, "cssgd-r2", "cssgd-r3"]
        best = [f"`{name}` {cell(name)}" for name in (_published(times), _coded(times))]
        rows.append([str(count), f"{times[BASE]:.3f}", *map(cell, names), *best])
    return table(head, rows)


def _cell(times: Mapping[str, float], sent: Mapping[str, float], name: str) -> str:
    if name not in times:
        return "–"
    return f"{times[name] / times[BASE]:.2f} ({sent[name] / sent[BASE]:.2f})"


def _redundancies(results: Results) -> str:
    head = [
        "model",
        "r",
        "the paper's model (s)",
        "published (s)",
        "replicated",
        "grouped",
        "combined",
    ]
    rows = []
    for model in BEST:
        times = step_s(results, model, _EIGHT)
        for r in range(1, _EIGHT):
            own = times[BASE] if r == 1 else times[f"cssgd-r{r}"]
            others = [
                times.get(f"{scheme}-r{r}") for scheme in ("replicated", "grouped", "combined")
            ]
            rows.append(
                [
                    model.upper(),
                    str(r),
                    f"{modelled(times[BASE], PACE_S[model], r):.3f}",
                    f"{own:.3f}",
                    *("–" if each is None else f"{each:.3f}" for each in others),
                ]
            )
    return table(head, rows)


def _trained(results: Results, model: str) -> str:
    head = [
        "nodes",
        "steps of SSGD",
        "`ssgd-multicast` (s)",
        "best published (s)",
        "best here (s)",
        "ASGD (s)",
        "seeds",
    ]
    rows = []
    for count in TRAINED:
        times, own = step_s(results, model, count), results.runs(f"{model}-n{count}-reach")
        steps = [at[1] for at in own.reached("none", STOP[model]).values()]
        runs = results.runs(f"{model}-n{count}-asgd")
        asynchronous = [at[0] for at in runs.reached(ASYNC, STOP[model]).values()]
        mean = fmean(steps)
        rows.append(
            [
                str(count),
                _written(steps, 0),
                f"{mean * times[BASE]:.1f}",
                f"`{_published(times)}` {mean * times[_published(times)]:.1f}",
                f"`{_coded(times)}` {mean * times[_coded(times)]:.1f}",
                _written(asynchronous, 1),
                f"{len(steps)}, {len(asynchronous)} of {len(runs.of(ASYNC))}",
            ]
        )
    return table(head, rows)


def _written(values: list[float] | list[int], digits: int) -> str:
    estimate = interval(values)
    ends = (estimate.mean, estimate.low, estimate.high)
    mean, low, high = ("–" if end is None else f"{end:.{digits}f}" for end in ends)
    return f"{mean} [{low}, {high}]"
