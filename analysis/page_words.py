"""Sentences of the report's page: what came of each algorithm, how k followed the link, what the
certificate says of each link, and which indicator that is.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal, NamedTuple

from analysis import MARGIN
from analysis.comparison import Compared, ComparedOutcome, compared
from analysis.load import Run, by_algorithm, lowest_seeds
from analysis.page_data import (
    MOST_CHANGES,
    falls_and_rises,
    rate_changes,
    rate_words,
    watched_end,
)
from analysis.statistics import as_fast
from testbed.errors import InputError
from testbed.fidelity.evidence import LossSeen
from testbed.fidelity.link_checks import beside_rates
from testbed.fidelity.verdict import CERTIFICATE, THRESHOLDS, Thresholds
from testbed.records.run_directory import read_json
from testbed.scenario.yaml import parse
from testbed.topology import VIRTUAL
from testbed.user_files import data_of

State = Literal["valid", "degraded", "invalid", "not judged"]
_WORST: tuple[State, ...] = ("not judged", "valid", "degraded", "invalid")
VERDICTS = {
    "valid": "Every measure that could be taken of the emulation is within its limit.",
    "degraded": "Some measure is off by up to three times its limit: trends hold, digits do not.",
    "invalid": "Some measure is further off, or the run did not end: do not use its numbers.",
}
"""Meaning of each verdict."""
_STEPS = 3
"""The number of steps whose median k is given."""
_LEAST_SHOWN = 1e-4
_MOST_SPANS = 5
_MOST_PARSED = 1 << 16
"""With a longer scenario, what was trained is not said."""
_WORSE = {
    "not inferior": "not worse by more than {:g}",
    "inferior": "worse by more than {:g}",
    "not decided": "whether it is worse is not decided",
}
"""An accuracy against the baseline's, by what its interval says."""
_NOT_JUDGED = {
    "drops": "whose packets a full queue dropped",
    "short": "too short",
    "stolen": "while the host lacked a processor",
}
"""Causes for which messages are not judged, in words."""


def outcome(runs: Sequence[Run], baseline: str | None = None, margin: float = MARGIN) -> Compared:
    """``runs`` as a comparison against ``baseline`` if it is among them, else against ``none``, or
    the first algorithm where none is."""
    known = baseline if any(run.algorithm == baseline for run in runs) else None
    summaries = [{**run.summary, "dir": str(run.path), "algorithm": run.algorithm} for run in runs]
    return compared(
        str(runs[0].manifest["scenario"]),
        runs[0].path,
        summaries,
        summaries,
        baseline=known,
        margin=margin,
    )


def set_up(runs: Sequence[Run]) -> str:
    """Return what all runs trained, the size of a gradient, and how many steps they made."""
    train = _train(runs[0])
    batch = f", each worker in batches of {train['batch']}" if "batch" in train else ""
    model = f"{train['model']} on {train['task']}" if {"model", "task"} <= set(train) else "a model"
    counts = [int(run.summary["steps"]) for run in runs]
    steps = (
        f"{min(counts)} to {max(counts)} steps"
        if len(set(counts)) > 1
        else _counted(counts[0], "step")
    )
    first = next(iter(runs[0].events.get("step", [])), None)
    size = int(first["size"]) if first else 0
    amount = f"{4 * size / 1e3:.3g} kB" if size < 250_000 else f"{4 * size / 1e6:,.3g} MB"
    whole = f" A whole gradient: {size:,} elements, {amount} as fp32." if size else ""
    who = nodes(runs[0], ("worker", "server"))
    return f"{who} trained {model}{batch}.{whole} Time is that of {steps}."


def nodes(run: Run, wanted: Sequence[str] = ("worker", "server", "host")) -> str:
    """Count the nodes of each of these roles."""
    roles = Counter(str(node["role"]) for node in run.manifest["nodes"].values())
    counts = (_counted(roles[role], role) for role in wanted if roles[role])
    return " and ".join(counts)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _train(run: Run) -> Mapping[str, Any]:
    """The scenario's section ``train``; empty where the scenario is none."""
    text = scenario_text(run)
    try:
        data = parse(text, "scenario.yaml").data if len(text) <= _MOST_PARSED else {}
    except InputError:
        return {}
    train = data.get("train") if isinstance(data, dict) else None
    return train if isinstance(train, dict) else {}


def headline(comparison: Compared) -> str:
    """The result in one sentence."""
    others = [
        own
        for own in comparison.algorithms
        if own.algorithm != comparison.baseline and own.speedup.mean is not None
    ]
    if not others and len(comparison.algorithms) > 1:
        return f"Nothing to compare with: no run of {comparison.baseline} counts, or no other does."
    if not others:
        whole = f"{_counted(len(comparison.runs), 'run')} of {comparison.scenario}"
        if any(run["verdict"] != "invalid" for run in comparison.runs):
            return f"{whole}."
        reasons = [str(reason) for run in comparison.runs for reason in run["reasons"]][:1]
        return f"{whole}, and none counts: {' '.join(reasons) or 'invalid'}."
    if not (faster := [own for own in others if (own.speedup.mean or 0.0) >= 1]):
        return f"No algorithm was faster than {comparison.baseline}."
    alike = [own for own in faster if not comparison.loses(own)]
    best = max(alike or faster, key=lambda own: own.speedup.mean or 0.0)
    lost = f"All faster algorithms ended less accurate by more than {comparison.margin:g}: "
    said = f"{_faster(best, comparison.baseline)}{_cost(best, comparison)}."
    return said if alike else lost + said


def algorithm_sentences(runs: Sequence[Run], comparison: Compared) -> list[str]:
    """One sentence for each algorithm: its speed, its accuracy, and how its k followed the link."""
    first = {run.algorithm: run for run in lowest_seeds(runs)}
    end = watched_end(runs)
    sentences = []
    for own in comparison.algorithms:
        density = density_sentence(first[own.algorithm], end)
        speed = (
            _baseline(own, alone=len(comparison.algorithms) == 1)
            if own.algorithm == comparison.baseline
            else _faster(own, comparison.baseline, named=False) + _cost(own, comparison)
        )
        sentences.append(f"{own.algorithm}: {speed}; {density}.")
    return sentences


def density_sentence(run: Run, end: tuple[str, str]) -> str:
    """How the run's k followed the asked rate of link direction ``end``."""
    times, densities = run.per_step("end_s"), run.per_step("density")
    low, high = float(densities.min()), float(densities.max())
    if high <= low * (1 + 1e-9):
        return "it sent everything" if low == 1 else f"k stayed at {low:.2g}"
    changes = rate_changes(run, *end)
    turns = falls_and_rises(changes) if len(changes) <= MOST_CHANGES else []
    known: list[_Turn] = []
    for time_s, until_s, rate, fell in turns:
        before = [k for t, k in zip(times, densities, strict=True) if t <= time_s][-_STEPS:]
        after = [k for t, k in zip(times, densities, strict=True) if time_s < t <= until_s][
            -_STEPS:
        ]
        if before and after:
            known.append(_Turn(time_s, float(median(before)), float(median(after)), rate, fell))
    if not known:
        return f"k was between {low:.2g} and {high:.2g}"
    return _turns_sentence(known[:2])


class _Turn(NamedTuple):
    """A large change of the link's rate (bit/s), and k before and after it."""

    time_s: float
    before: float
    after: float
    rate: float
    fell: bool


def _turns_sentence(turns: Sequence[_Turn]) -> str:
    events = [
        f"{'fell' if turn.fell else 'rose'} to {rate_words(turn.rate)} at {turn.time_s:.1f} s"
        for turn in turns
    ]
    steps = [turn.after - turn.before for turn in turns]
    if len({turn.fell for turn in turns}) > 1 and min(steps) * max(steps) > 0:
        return (
            f"k {'fell' if steps[0] < 0 else 'rose'} from {turns[0].before:.2g} to "
            f"{turns[-1].after:.2g} and did not follow the link, which {' and '.join(events)}"
        )
    return "k went " + ", and ".join(
        f"from {turn.before:.2g} to {turn.after:.2g} when the link {event}"
        for turn, event in zip(turns, events, strict=True)
    )


def _baseline(own: ComparedOutcome, *, alone: bool) -> str:
    time_s, accuracy = own.time_s.mean, own.accuracy.mean
    if time_s is None:
        return "no run that counts"
    reached = "" if accuracy is None else f", accuracy {accuracy:.3f}"
    return f"{time_s:.1f} s{reached}" + ("" if alone else "; the others are compared with it")


def _faster(own: ComparedOutcome, baseline: str, *, named: bool = True) -> str:
    return (f"{own.algorithm} was " if named else "") + as_fast(own.speedup, baseline)


def _cost(own: ComparedOutcome, comparison: Compared) -> str:
    base = next(o for o in comparison.algorithms if o.algorithm == comparison.baseline)
    if own.accuracy.mean is None or base.accuracy.mean is None:
        return ""
    doubt = _WORSE[own.inferiority] if own.inferiority and own.accuracy.high is not None else ""
    doubt = doubt and f"; {doubt.format(comparison.margin)}"
    return f", accuracy {own.accuracy.mean:.3f} ({base.algorithm}: {base.accuracy.mean:.3f}{doubt})"


def job_sentences(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    """One sentence for each run of a job: how long its steps took, against the first's; and its
    verdict, where that is not valid."""
    sentences = []
    first = runs[0].summary.get("step_s")
    for run, label in zip(runs, labels, strict=True):
        step_s = run.summary.get("step_s")
        doubt = "" if run.verdict == "valid" else f"; the run is {run.verdict}"
        if step_s is None:
            whole = f"{run.summary['time_s']:.1f} s in all"
            sentences.append(f"{label}: {whole}; its steps are not known{doubt}.")
            continue
        against = ""
        if first and run is not runs[0]:
            against = f", {first / step_s:.3g} times as fast as {labels[0]}"
        sentences.append(f"{label}: {step_s:.3g} s a step{against}{doubt}.")
    return sentences


def repeat_command(runs: Sequence[Run], baseline: str | None = None, margin: float = MARGIN) -> str:
    """The command that runs them again, with the scenario that the page has."""
    run = runs[0]
    fabric = shlex.quote(str(run.manifest["fabric"]))
    if run.is_job:
        row = run.manifest["algorithm"]
        command = shlex.join(str(part) for part in row.get("command") or [])
        given = f"--fabric {fabric} --name {shlex.quote(run.algorithm)}"
        given += f" --nproc {row['nproc']}" if (row.get("nproc") or 1) > 1 else ""
        given += "".join(f" --env {shlex.quote(str(name))}" for name in row.get("variables") or ())
        return f"testbed exec scenario.yaml {given} -- {command}"
    seeds = sorted({own.seed for own in runs})
    names = list(by_algorithm(runs))
    given = "".join(f" --algo {shlex.quote(name)}" for name in names)
    listed = ",".join(map(str, seeds))
    if len(seeds) == 1:
        return f"testbed run scenario.yaml --fabric {fabric}{given} --seed {listed}"
    how = f" --baseline {shlex.quote(str(baseline))}" if baseline in names[1:] else ""
    how += "" if margin == MARGIN else f" --margin {margin}"
    return f"testbed compare scenario.yaml --fabric {fabric}{given} --seed {listed}{how}"


@dataclass(frozen=True, slots=True)
class Indicator:
    """The judgement of one link direction, from the certificate."""

    end: str
    state: State
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trust:
    """The judgement of a run, of its messages and of its links. ``certificate``: whether it has
    one."""

    verdict: str
    meaning: str
    certificate: bool
    messages: str
    indicators: tuple[Indicator, ...]


def trust(run: Run) -> Trust:
    """Read the certificate of ``run``, if it has one."""
    path = run.path / CERTIFICATE
    known = read_json(path) if path.is_file() else None
    indicators = () if known is None else tuple(_indicator(link, known) for link in known["links"])
    meaning = VERDICTS.get(run.verdict, "This verdict is not one of ours.")
    if run.verdict == "valid" and known is None and run.manifest["fabric"] == VIRTUAL:
        meaning = (
            "It came to its end, and its counts agree. Links were modelled: nothing to certify."
        )
    messages = _messages((known or {}).get("completion") or {})
    return Trust(run.verdict, meaning, known is not None, messages, indicators)


def _messages(completion: Mapping[str, Any]) -> str:
    """When messages came, against links of exactly the rates asked for; empty where no group of
    them was judged."""
    if not (judged := completion.get("judged")):
        return ""
    others = ", ".join(
        f"{count} {_NOT_JUDGED.get(why, why)}"
        for why, count in completion["not_judged"].items()
        if count
    )
    used, error = completion["used"], completion["error_ms"]
    sure = ""
    if used.get("p99_at_least") is not None and error.get("p99_at_least") is not None:
        sure = (
            f" It is {error['p99_at_least']:.1f} ms and {used['p99_at_least']:.0%} at least, with "
            "95 % confidence; the verdict goes by that."
        )
    return (
        f"Of {judged} groups of messages (all gradients, or all replies, of a step), 99 % came "
        f"within {error['p99']:.1f} ms, and within "
        f"{used['p99']:.0%} of the tolerance, of when links of exactly the rates "
        f"asked for would have brought them.{sure}" + (f" Not judged: {others}." if others else "")
    )


def _indicator(link: Mapping[str, Any], certificate: Mapping[str, Any]) -> Indicator:
    end = f"{link['link']} {link['direction']}"
    checks = list(_checks(link, certificate))
    factor = float(certificate["thresholds"]["degraded_factor"])
    states = [_state(deviation, limit, factor) for _, deviation, limit in checks]
    wrong = tuple(str(fault) for fault in _wrong(link))
    worst = max(states, key=_WORST.index, default=_WORST[0])
    if worst == "valid" and states[0] == "not judged":
        worst = "not judged"  # a rate that no queue tested was not found to be as asked
    words = (*wrong, *(said for said, _, _ in checks if said))
    return Indicator(end, "invalid" if wrong else worst, words)


def _checks(
    link: Mapping[str, Any], certificate: Mapping[str, Any]
) -> Iterator[tuple[str, float | None, float]]:
    """A sentence, the deviation (None: not judged) and its limit, as the verdict has them."""
    limits, seconds = certificate["thresholds"], float(certificate["seconds"])
    busy = link["busy"]
    share, ratio, slack = (
        busy.get("share") or 0.0,
        busy.get("ratio"),
        busy.get("ratio_slack") or 0.0,
    )
    if ratio is None or share * seconds < limits["busy_floor_s"]:
        yield (
            f"A queue stood at it for {share * seconds:.1f} s: too short to judge its rate by.",
            None,
            0.0,
        )
    else:
        said = (
            f"While a queue stood at it ({share:.0%} of the time) it delivered {ratio:.2%} of the "
            "rate asked for."
        )
        yield said, max(0.0, abs(ratio - 1) - slack), limits["ratio_deviation"]
        if (error := busy.get("mape_1s")) is not None:
            yield (
                f"In single seconds it was off by {error:.2%} on average.",
                error,
                limits["mape_1s"],
            )
    if drops := link["queue"].get("drops"):
        packets = "1 packet" if drops == 1 else f"{drops} packets"
        yield f"Its queue was full and dropped {packets}.", 0.0, 0.0
    late = link["changes"].get("lateness_ms") or {}
    if late.get("max") is not None:
        said = f"Its {link['changes']['applied']} changes came at most {late['max']:.1f} ms late."
        yield said, late["max"], limits["lateness_max_ms"]
        if late.get("p99_at_least") is not None:
            said = f"99 % of them came at most {late['p99']:.1f} ms late."
            said = said if late["p99"] < late["max"] else ""
            yield said, late["p99_at_least"], limits["lateness_p99_ms"]
    if (excess := link["queue"].get("excess_share")) is not None:
        said = "It never delivered more than it was asked for."
        if excess > 0:
            part = f"{excess:.2%}" if excess >= _LEAST_SHOWN else f"Under {_LEAST_SHOWN:.2%}"
            said = f"{part} of its bits came faster than asked for."
        yield said, excess, limits["excess_share"]
    yield from _beside_rates(link, limits)


def _beside_rates(
    link: Mapping[str, Any], limits: Mapping[str, Any]
) -> Iterator[tuple[str, float | None, float]]:
    """The rest of them, with the verdict's own sentence where one is beyond its limit."""
    queue, outages, line = link["queue"], link.get("outages") or {}, link.get("line") or {}
    report = {
        **{name: link.get(name) for name in ("link", "direction", "from_s", "to_s")},
        "unwatched_s": link["watch"].get("unwatched_s") or 0.0,
        "gso_max_segs": queue.get("gso_max_segs"),
        "outages": outages.get("count"),
        "outage_s": outages.get("seconds"),
        "outage_bytes": outages.get("bytes") or 0,
        "resume_ms": outages.get("resume_ms"),
        "line_limit": line.get("refused"),
    }
    if "class_packets" in queue:  # older certificates do not say of how many
        report |= {name: queue[name] for name in ("direct_packets", "class_packets")}
    loss = LossSeen(**line["loss"]) if line.get("loss") else None
    known = {name: limits[name] for name in asdict(THRESHOLDS) if name in limits}
    for result in beside_rates(report, loss, Thresholds(**known)):
        right = _state(result.deviation, result.limit, 1.0) in ("valid", "not judged")
        sentence = "" if right else f"{result.sentence[0].upper()}{result.sentence[1:]}."
        yield sentence, result.deviation, result.limit


def _wrong(link: Mapping[str, Any]) -> Iterator[str]:
    """Sentences for what may not be at all."""
    if failure := link["watch"].get("failure"):
        yield f"It could not be watched: {failure}."
    if mismatches := link["watch"].get("mismatches"):
        yield f"The kernel had something else than was asked for {len(mismatches)} times."
    if missing := link["changes"].get("missing"):
        yield f"{missing} changes of the scenario were not made."
    yield from link["changes"].get("faults") or ()


def _state(deviation: float | None, limit: float, factor: float) -> State:
    if deviation is None:
        return "not judged"
    if deviation <= limit * (1 + 1e-9):
        return "valid"
    return "degraded" if deviation <= factor * limit * (1 + 1e-9) else "invalid"


def disturbances(run: Run) -> str:
    """When the machine was not to be relied upon before the end; empty where it always was."""
    stop_s = float(run.summary["time_s"])
    spans = [span for span in run.disturbed() if span[0] <= stop_s]
    if not spans:
        return ""
    listed = ", ".join(f"{start:.1f} to {stop:.1f} s" for start, stop in spans[:_MOST_SPANS])
    more = f" and {len(spans) - _MOST_SPANS} times more" if len(spans) > _MOST_SPANS else ""
    return f"The machine was not to be relied upon at {listed}{more}."


def steps_note(runs: Sequence[Run]) -> str:
    """Say that times of unlike numbers of steps are compared; empty where they are alike."""
    if len({int(run.summary["steps"]) for run in runs}) == 1:
        return ""
    return "Runs made different numbers of steps; their times are compared all the same."


def seeds_note(runs: Sequence[Run], margin: float = MARGIN) -> str:
    """Return what the results say of the noise between seeds."""
    seeds = sorted({run.seed for run in runs})
    if len(seeds) > 1:
        return (
            f"Means over seeds {', '.join(map(str, seeds))}; ± is the half width of their 95 % "
            "interval. Accuracy is inferior, or not, to the baseline's by more than the margin "
            f"{margin:g}, if the interval of their differences, seed by seed, says so."
        )
    return (
        f"One seed ({seeds[0]}): no intervals. How much results differ between seeds is not known; "
        "small differences may be chance. Several seeds tell: testbed compare."
    )


def target_note(comparison: Compared) -> str:
    """Explain the time to an accuracy; empty where there is none that all reached."""
    if comparison.target is None:
        return ""
    return (
        f"To {comparison.target:g}: until the first evaluation with so much accuracy or more, of "
        "the usual levels the highest that all runs reached."
    )


def reasons(run: Run) -> list[str]:
    """Reasons of the verdict, worst first."""
    return [str(reason) for reason in run.summary["reasons"]]


def scenario_text(run: Run) -> str:
    """The scenario with all defaults, as the run's directory has it; empty where it has none."""
    path = run.path / "scenario.yaml"
    return data_of(path, MOST_BYTES).decode(errors="replace") if path.is_file() else ""


MOST_BYTES = 1 << 20
"""The most bytes of a scenario."""
