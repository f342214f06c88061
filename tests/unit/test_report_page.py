"""The report's page: its data, its sentences, and that words of others stay words in it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_job import Job, make_job
from synthetic_run import Recipe, make_run

from analysis import page_words
from analysis.load import Run, load, load_groups
from analysis.page_data import (
    MOST_POINTS,
    _evaluated,
    rate_changes,
    rate_words,
    section_data,
    short,
    step_words,
    stretches,
    thinned,
    watched_end,
)
from analysis.report import PAGE, SCRIPTS, render, sentences, write_report
from testbed.algorithm import Algorithm
from testbed.errors import InputError
from testbed.fidelity.verdict import Verdict

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"' {{ 7 * 7 }}"
MOST_BYTES = 3_000_000


class Page(HTMLParser):
    """Elements of a page: scripts with their text, ids, targets of its own addresses, and meta."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.scripts: list[tuple[str, str]] = []
        self.policy = ""
        self.words: list[str] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags[tag] += 1
        self.ids += [given["id"]] if given.get("id") else []
        assert not any(name.startswith("on") for name in given), given
        assert "src" not in given
        if tag == "a":
            self.targets.append(given["href"] or "")
        if tag == "script":
            self._open = given.get("type") or "text/javascript"
        if tag == "meta" and given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open:
            self.scripts.append((self._open, data))
        else:
            self.words.append(data)

    @property
    def data(self) -> Any:
        (text,) = (text for kind, text in self.scripts if kind == "application/json")
        return json.loads(text)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = tmp_path_factory.mktemp("page")
    return [
        make_run(out, Recipe("none", 1.0, 1, 30)),
        make_run(out, Recipe("topk-0.15", 0.15, 1, 30)),
        make_run(out, Recipe("adaptive", None, 1, 30, verdict=Verdict("degraded", ["late"]))),
    ]


@pytest.fixture(scope="module")
def groups(paths: list[Path]) -> list[list[Run]]:
    return load_groups(paths)


@pytest.fixture(scope="module")
def page(groups: list[list[Run]]) -> Page:
    return Page(render(groups))


def changed(run: Run, **manifest: Any) -> Run:
    return Run(run.path, {**run.manifest, **manifest}, run.summary, run.events, run.links)


def with_rates(run: Run, rates: list[float], densities: list[float]) -> Run:
    """The same run with a step a second: rates (Mbit/s) of the server's link, and k, second by second."""
    samples = [
        {"kind": "sample", "link": "server", "direction": "down", "from_s": float(at), "to_s": at + 1.0,
         "asked_bits": rate * 1e6, "delivered_bits": rate * 0.9e6, "busy": at % 2 == 0}
        for at, rate in enumerate(rates)
    ]  # fmt: skip
    changes = [rate_change(float(at), rates[at]) for at in range(1, len(rates))]
    steps = [
        {**run.events["step"][0], "step": at, "end_s": at + 0.9, "density": k, "delay_s": 0.1}
        for at, k in enumerate(densities)
    ]
    return Run(
        run.path, run.manifest, run.summary, {**run.events, "step": steps}, [*samples, *changes]
    )


def rate_change(due_s: float, rate: float, end: str = "server down") -> dict[str, Any]:
    """A record: from then on ``end`` has so many Mbit/s."""
    link, direction = end.split()
    return {"kind": "change", "link": link, "direction": direction, "due_s": due_s, "rate_bits": rate * 1e6}  # fmt: skip


def test_everything_is_inside_and_nothing_is_fetched(page: Page) -> None:
    assert page.tags["script"] == len(SCRIPTS) + 2
    assert page.tags["link"] == page.tags["img"] == page.tags["iframe"] == 0
    assert page.policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in page.policy and "http" not in page.policy
    run_by_a_reader = [text for kind, text in page.scripts if kind == "text/javascript"]
    for text in run_by_a_reader:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in page.policy
    assert page.policy.count("sha256-") == len(run_by_a_reader)


def test_scripts_of_others_are_those_that_were_fetched() -> None:
    listed = json.loads((PAGE / "vendor" / "scripts.json").read_text())
    assert [script["name"] for script in listed] == list(SCRIPTS)
    for script in listed:
        content = (PAGE / "vendor" / f"{script['name']}.js").read_bytes()
        assert hashlib.sha256(content).hexdigest() == script["sha256"]
        assert script["integrity"].startswith("sha512-")
        assert b"</script" not in content.lower()
        assert "Copyright" in (PAGE / "vendor" / f"{script['name']}.LICENSE").read_text()


def test_every_number_leads_to_its_run(page: Page) -> None:
    assert len(set(page.ids)) == len(page.ids)
    inside = [target[1:] for target in page.targets if target.startswith("#")]
    assert set(inside) <= set(page.ids)
    assert Counter(inside)["c1-r0"] >= 15


def test_words_of_others_stay_words(groups: list[list[Run]], tmp_path: Path) -> None:
    (runs,) = groups
    hostile = []
    for index, run in enumerate(runs):
        known = {**run.manifest["algorithm"], "name": f"{HOSTILE}{index}"}
        summary = {**run.summary, "reasons": [HOSTILE], "verdict": HOSTILE if index else "valid"}
        manifest = {
            **run.manifest,
            "algorithm": known,
            "scenario": HOSTILE,
            "fabric": HOSTILE,
            "tcp_timers": HOSTILE,
        }
        path = tmp_path / str(index)
        path.mkdir()
        (path / "scenario.yaml").write_text(HOSTILE)
        hostile.append(Run(path, manifest, summary, run.events, run.links))
    page = Page(render([hostile], [[Path("figures") / f"{HOSTILE.replace('/', '')}.png"]]))
    assert page.tags["script"] == len(SCRIPTS) + 2
    assert page.tags["img"] == 0
    assert page.data[0]["algorithms"] == [f"{HOSTILE}{index}" for index in range(3)]
    assert "49" not in page.words
    assert sum(HOSTILE in words for words in page.words) > 10


def test_words_of_a_job_stay_words(tmp_path: Path) -> None:
    run = load(make_job(tmp_path, Job(steps=4)))
    row = {**run.manifest["algorithm"], "name": HOSTILE, "command": [HOSTILE]}
    page = Page(render([[changed(run, algorithm=row)]]))
    assert page.tags["script"] == len(SCRIPTS) + 2
    assert page.data[0]["algorithms"] == [HOSTILE]
    assert page.data[0]["job_steps"] and page.data[0]["job_bytes"]
    assert any("testbed exec scenario.yaml" in words for words in page.words)


def test_a_job_that_is_not_valid_says_so_beside_its_numbers(tmp_path: Path) -> None:
    sound = load(make_job(tmp_path, Job("sound", steps=4)))
    wrong = load(make_job(tmp_path, Job("wrong", steps=4, verdict=Verdict("invalid", ["late"]))))
    first, second = page_words.job_sentences([sound, wrong], ["sound", "wrong"])
    assert first.endswith(" s a step.")
    assert second.endswith("; the run is invalid.")


def test_the_same_runs_give_the_same_page(paths: list[Path], groups: list[list[Run]]) -> None:
    assert render(groups) == render(load_groups(paths))


def test_twenty_runs_fit(tmp_path: Path) -> None:
    names = ("none", "topk-0.15", "topk-0.01", "adaptive")
    recipes = [
        Recipe(name, density, seed, 30)
        for name, density in zip(names, (1.0, 0.15, 0.01, None), strict=True)
        for seed in range(1, 6)
    ]
    text = render(load_groups([make_run(tmp_path, recipe) for recipe in recipes]))
    assert len(text.encode()) < MOST_BYTES
    page = Page(text)
    assert len(page.data[0]["runs"]) == 20
    assert any("±" in words for words in page.words)


def test_lines_keep_their_least_and_largest() -> None:
    times = np.arange(10_000.0)
    values = np.sin(times)
    values[777], values[4321] = 9.0, -9.0
    few_times, few = thinned(times, values)
    assert len(few) <= MOST_POINTS
    assert (few.max(), few.min()) == (9.0, -9.0)
    assert list(few_times) == sorted(few_times)
    assert thinned(times[:5], values[:5])[1] is not few


def test_numbers_are_finite() -> None:
    assert short(float("nan")) is short(float("inf")) is short(None) is None
    assert short(0.123456) == 0.1235


def test_delivered_rates_are_of_busy_times_alone(groups: list[list[Run]]) -> None:
    run = with_rates(groups[0][0], [100.0, 20.0, 100.0], [0.5, 0.4, 0.3])
    (known,) = section_data([run], ())["runs"]
    assert known["delivered"] == [[0.5, 2.5], [90.0, 90.0]]
    assert known["asked"][1] == [100.0, 20.0, 100.0, 100.0]
    assert watched_end([run]) == ("server", "down")


def test_another_link_is_watched_where_only_its_rate_changes(groups: list[list[Run]]) -> None:
    run = with_rates(groups[0][0], [100.0] * 3, [0.5] * 3)
    other = [{**row, "link": "worker-1", "direction": "up"} for row in run.links]
    other[1]["asked_bits"] = 5e6
    both = Run(run.path, run.manifest, run.summary, run.events, [*run.links, *other])
    assert watched_end([both]) == ("worker-1", "up")


def test_a_line_has_the_range_of_the_workers(groups: list[list[Run]]) -> None:
    run = with_rates(groups[0][0], [100.0] * 3, [0.5, 0.4, 0.3])
    other = [{**step, "node": "worker-1", "density": 0.1} for step in run.events["step"]]
    events = {**run.events, "step": [*run.events["step"], *other]}
    both = Run(run.path, run.manifest, run.summary, events, run.links)
    (known,) = section_data([both], ())["runs"]
    assert known["k"][1:] == [[0.3, 0.25, 0.2], [0.1] * 3, [0.5, 0.4, 0.3]]
    assert len(known["delay"]) == len(section_data([run], ())["runs"][0]["k"]) == 2


def test_an_accuracy_comes_with_what_all_workers_had_carried_by_then(
    groups: list[list[Run]],
) -> None:
    """The step that was evaluated is in it, none that follows, and nothing is where none was made."""
    run = with_rates(groups[0][0], [100.0] * 3, [0.5] * 3)
    steps = [
        {**step, "node": node, "bytes_up": 10**6 * 10 ** step["step"], "bytes_down": down}
        for node, down in (("worker-1", 500_000), ("worker-0", 0))
        for step in run.events["step"]
    ]
    evaluations = [{"step": at, "time_s": at + 1.0, "accuracy": 0.1 * at} for at in (2, -1, 0, 1)]
    events = {**run.events, "step": steps, "evaluation": evaluations}
    (known,) = section_data([Run(run.path, run.manifest, run.summary, events, run.links)], ())[
        "runs"
    ]
    assert known["accuracy"][0] == [0.0, 1.0, 2.0, 3.0]
    assert known["accuracy"][2] == [0.0, 2.5, 23.0, 223.5]


def test_bytes_to_resting_and_returning_workers_count_as_well(groups: list[list[Run]]) -> None:
    """What a worker got as it returned counts from the step whose parameters these were."""
    run = with_rates(groups[0][0], [100.0] * 3, [0.5] * 3)
    steps = [{**step, "bytes_up": 10**6, "bytes_down": 0} for step in run.events["step"]]
    rest = {"step": 1, "node": "worker-2", "bytes_up": 0, "bytes_down": 10**7}
    away = {"step": 0, "returned": 2, "node": "worker-1", "bytes_up": 10**5, "bytes_down": 10**8}
    evaluations = [{"step": at, "time_s": at + 1.0, "accuracy": 0.1 * at} for at in (0, 1, 2)]
    more = {"step": steps, "rest": [rest], "away": [away], "evaluation": evaluations}
    events = {**run.events, **more}
    own = Run(run.path, run.manifest, run.summary, events, run.links)
    (known,) = section_data([own], ())["runs"]
    assert known["accuracy"][2] == [1.0, 12.0, 113.1]


def test_where_few_workers_are_recorded_bytes_are_the_servers(groups: list[list[Run]]) -> None:
    run = changed(with_rates(groups[0][0], [100.0] * 3, [0.5] * 3), model={"recorded_every": 2})
    rounds = [
        {"step": at, "messages": [{"bytes": 10**6}, {"bytes": 10**5}], "bytes_down": 10**7}
        for at in (1, 0)
    ]
    evaluations = [{"step": at, "time_s": at + 1.0, "accuracy": 0.1 * at} for at in (0, 1)]
    events = {**run.events, "round": rounds, "evaluation": evaluations}
    sent = _evaluated(Run(run.path, run.manifest, run.summary, events, run.links))[2]
    assert list(sent) == pytest.approx([11.1, 22.2])


def test_the_drawn_step_comes_with_its_time_and_rate(groups: list[list[Run]]) -> None:
    run = with_rates(groups[0][0], [100.0, 20.0, 50.0], [0.5, 0.4, 0.3])
    for step, start_s in zip(run.events["step"], (0.0, 0.9, 1.8), strict=True):
        step["start_s"] = start_s
    end = "server", "down"
    assert step_words(run, end) == "step 1 at 0.9 s, server down at 20 Mbit/s to 100 Mbit/s"
    assert step_words(run, ("server", "up")) == "step 1 at 0.9 s"
    assert rate_words(1_305_682_482) == "1.31 Gbit/s" and rate_words(20e6) == "20 Mbit/s"


def test_times_to_an_accuracy_are_those_of_the_records(groups: list[list[Run]], page: Page) -> None:
    (runs,) = groups
    target = page_words.outcome(runs).target
    assert f"To {target:g}" in page.words
    for run in runs:
        assert f"{run.summary['time_to_accuracy_s'][f'{target:g}']:.1f} s" in page.words


def test_the_baseline_and_margin_of_a_comparison_are_the_pages(tmp_path: Path) -> None:
    names = ("none", "topk-0.15")
    runs = [make_run(tmp_path, Recipe(name, 1.0, seed, 30)) for name in names for seed in (1, 2)]
    made = write_report(runs, tmp_path / "out", "topk-0.15", 0.25)[-1]
    words = " ".join(Page(made.read_text()).words)
    assert "as fast as topk-0.15" in words and "as fast as none" not in words
    assert "the margin 0.25," in words and "the margin 0.005," not in words
    assert "--seed 1,2 --baseline topk-0.15 --margin 0.25" in words
    group = load_groups(runs)
    assert "as fast as none" in " ".join(Page(render(group, (), "unlike", 0.25)).words)


def test_bytes_to_an_accuracy_are_those_of_the_records(groups: list[list[Run]], page: Page) -> None:
    """MB that all workers had sent and received when it was first evaluated."""
    (runs,) = groups
    target = page_words.outcome(runs).target
    assert target is not None
    listed = []
    for run in runs:
        first = next(e for e in run.events["evaluation"] if e["accuracy"] >= target)
        own = [step for step in run.events["step"] if step["step"] <= first["step"]]
        sent = sum(step["bytes_up"] + step["bytes_down"] for step in own) / 1e6
        listed.append(f"{run.algorithm} {float(f'{sent:.3g}'):g} MB")
    assert page.data[0]["bytes_words"] == f"To {target:g}: {', '.join(listed)}"
    assert section_data(runs, ())["bytes_words"] == ""


def test_what_was_trained_is_said(groups: list[list[Run]], tmp_path: Path) -> None:
    (runs,) = groups
    nodes = "4 workers and 1 server trained"
    counts = "A whole gradient: 150,000 elements, 600 kB as fp32. Time is that of"
    assert page_words.set_up(runs) == f"{nodes} a model. {counts} 30 steps."
    other = make_run(tmp_path, Recipe("none", 1.0, 2, 1))
    (other / "scenario.yaml").write_text("train: {task: digits, model: cnn, batch: 32}\n")
    one = load(other)
    trained = "cnn on digits, each worker in batches of 32"
    assert page_words.set_up([one]) == f"{nodes} {trained}. {counts} 1 step."
    assert page_words.set_up([one, runs[0]]).endswith("Time is that of 1 to 30 steps.")
    for text in ("train: [", "train: 3\n", "- 1\n", ""):
        (other / "scenario.yaml").write_text(text)
        assert page_words.set_up([one]).startswith(f"{nodes} a model. ")


def test_steps_are_told_apart_by_the_rate_of_their_time(groups: list[list[Run]]) -> None:
    run = with_rates(groups[0][0], [100] * 4 + [20] * 3 + [100], [0.4] * 4 + [0.1] * 2)
    steps = [{**s, "start_s": s["step"] + 0.1} for s in run.events["step"]]
    run = Run(run.path, run.manifest, run.summary, {"step": steps}, run.links)
    assert stretches([run]) == [
        ["0.0 s", "100 Mbit/s", "none", "4", "0.8 s", "0.1 s", "0.4"],
        ["4.0 s", "20 Mbit/s", "none", "2", "0.8 s", "0.1 s", "0.1"],
    ]
    assert stretches([with_rates(run, [100] * 8, [0.4] * 8)]) == []


def test_rates_are_those_of_the_changes_not_of_samples(groups: list[list[Run]]) -> None:
    """A sample in which the rate changed has a mean that the link was never asked for."""
    means, densities = [100.0, 60.0, 20.0, 36.0, 100.0], [0.4, 0.4, 0.1, 0.2, 0.2]
    run = with_rates(groups[0][0], means, densities)
    samples = [row for row in run.links if row["kind"] == "sample"]
    changes = [rate_change(1.5, 20.0), rate_change(1.5, 5.0, "server up"), rate_change(3.8, 100.0)]
    run = Run(run.path, run.manifest, run.summary, run.events, [*samples, *changes])
    sentence = page_words.density_sentence(run, ("server", "down"))
    assert "fell to 20 Mbit/s at 1.5 s" in sentence and "rose to 100 Mbit/s at 3.8 s" in sentence
    (known,) = section_data([run], ())["runs"]
    assert known["asked"][1] == [100.0, 20.0, 100.0, 100.0]
    rates = [(0.0, 100e6), (1.5, 20e6), (3.8, 100e6)]
    assert rate_changes(run, "server", "down") == rates
    slow = changed(run, dilation=2.0)
    assert rate_changes(slow, "server", "down") == [(at / 2, 2 * rate) for at, rate in rates]


def test_the_rate_before_a_change_in_the_first_sample_is_known(groups: list[list[Run]]) -> None:
    run = with_rates(groups[0][0], [60.0, 20.0], [0.4, 0.4])
    samples = [row for row in run.links if row["kind"] == "sample"]
    early = Run(run.path, run.manifest, run.summary, run.events, [*samples, rate_change(0.5, 20.0)])
    assert rate_changes(early, "server", "down") == [(0.0, pytest.approx(100e6)), (0.5, 20e6)]
    assert rate_changes(early, "server", "up") == []


def test_settings_of_every_algorithm_are_in_a_table(groups: list[list[Run]]) -> None:
    first, *others = groups[0]
    derived = Algorithm("mine", "topk", "feedback", "adalag", {"weight": 3}, overlap=True)
    unknown = changed(others[1], algorithm={"name": "later", "exchange": "ps", "colour": "red"})
    page = Page(render([[changed(first, algorithm=derived.to_json()), others[0], unknown]]))
    assert {"adalag (weight 3)", "overlap True", "feedback"} <= set(page.words)
    assert "Algorithms and their settings: 2" in page.words


def test_whether_an_accuracy_is_worse_is_said_of_several_seeds(tmp_path: Path) -> None:
    recipes = [(name, seed) for name in ("none", "topk-0.15") for seed in (1, 2, 3)]
    (runs,) = load_groups(make_run(tmp_path, Recipe(name, 1.0, seed, 30)) for name, seed in recipes)
    losses = {
        "not decided": ("whether it is worse is not decided", (0.3, -0.3, 0.0)),
        "inferior": ("worse by more than 0.005", (-0.3, -0.31, -0.3)),
        "not inferior": ("not worse by more than 0.005", (0.1, 0.11, 0.1)),
    }
    for judged, (words, differences) in losses.items():
        for run, difference in zip(runs, (0.0, 0.0, 0.0, *differences), strict=True):
            run.summary["accuracy"] = 0.6 + difference
        result = page_words.outcome(runs)
        assert f"(none: 0.600; {words})" in page_words.headline(result) + str(
            page_words.algorithm_sentences(runs, result)
        )
        assert any(cell.endswith(f", {judged}") for cell in Page(render([runs])).words)
    one = page_words.outcome(runs[::3])
    assert "worse" not in "".join(page_words.algorithm_sentences(runs[::3], one))


def test_the_headline_is_of_the_fastest_that_is_as_accurate(groups: list[list[Run]]) -> None:
    """With one seed the mean decides; the margin is 0.005."""
    runs = [
        Run(run.path, run.manifest, {**run.summary, "steps": 9}, run.events, run.links)
        for run in groups[0]
    ]
    assert [run.algorithm for run in runs] == ["none", "topk-0.15", "adaptive"]
    for accuracies, said in [
        ((0.9, 0.7, 0.898), "adaptive was 2 times as fast as none, accuracy 0.898"),
        ((0.9, 0.896, 0.898), "topk-0.15 was 3 times as fast as none, accuracy 0.896"),
        (
            (0.9, 0.7, 0.6),
            "All faster algorithms ended less accurate by more than 0.005: topk-0.15 was 3 times",
        ),
        ((None, None, None), "topk-0.15 was 3 times as fast as none."),
    ]:
        for run, time_s, accuracy in zip(runs, (6.0, 2.0, 3.0), accuracies, strict=True):
            run.summary.update(time_s=time_s, accuracy=accuracy)
        assert page_words.headline(page_words.outcome(runs)).startswith(said)


def test_a_table_has_the_phases(groups: list[list[Run]], page: Page) -> None:
    run = groups[0][0]
    spent = run.summary["phases_s"]
    communicating = sum(spent[phase] for phase in ("send", "wait", "receive"))
    assert f"{communicating / sum(spent.values()):.0%}" in page.words
    assert f"{1e3 * spent['compress']:.3g}" in page.words


def test_sentences_say_how_k_followed_the_link(groups: list[list[Run]]) -> None:
    rates, fall = [100.0] * 4 + [20.0] * 4 + [100.0] * 4, [0.2] * 4 + [0.03] * 4 + [0.1] * 4
    end = "server", "down"
    run = groups[0][0]
    assert page_words.density_sentence(with_rates(run, rates, fall), end) == (
        "k went from 0.2 to 0.03 when the link fell to 20 Mbit/s at 4.0 s, "
        "and from 0.03 to 0.1 when the link rose to 100 Mbit/s at 8.0 s"
    )
    waning = [0.3] * 4 + [0.2] * 4 + [0.1] * 4
    assert page_words.density_sentence(with_rates(run, rates, waning), end) == (
        "k fell from 0.3 to 0.1 and did not follow the link, which fell to 20 Mbit/s at 4.0 s "
        "and rose to 100 Mbit/s at 8.0 s"
    )
    assert (
        page_words.density_sentence(with_rates(run, rates, [0.15] * 12), end) == "k stayed at 0.15"
    )
    assert (
        page_words.density_sentence(with_rates(run, rates, [1.0] * 12), end) == "it sent everything"
    )
    busy = [100.0, 50.0] * 20
    many = page_words.density_sentence(with_rates(run, busy, fall), end)
    assert many == "k was between 0.03 and 0.2"


def test_one_sentence_for_each_algorithm(paths: list[Path], page: Page) -> None:
    none, topk, adaptive = sentences(paths)
    assert none.startswith("none: ") and none.endswith("; it sent everything.")
    assert topk.startswith("topk-0.15: ") and " times as fast as none" in topk
    assert topk.endswith("k stayed at 0.15.")
    assert adaptive.startswith("adaptive: ")
    assert all(sentence in page.words for sentence in (none, topk, adaptive))
    assert "the others are compared with it" in none
    (alone,) = sentences([path for path in paths if load(path).algorithm == "none"])
    assert alone == none.replace("; the others are compared with it", "")


def test_where_nothing_counts_no_number_is_given(groups: list[list[Run]]) -> None:
    runs = [
        Run(run.path, run.manifest, {**run.summary, "verdict": "invalid"}, run.events, run.links)
        for run in groups[0]
    ]
    result = page_words.outcome(runs)
    assert page_words.headline(result).startswith("Nothing to compare with")
    assert "no run that counts" in page_words.algorithm_sentences(runs, result)[0]
    assert Page(render([runs])).data[0]["results"] == []
    lost = {**runs[0].summary, "reasons": ["The run did not end: a node was lost", "late"]}
    one = Run(runs[0].path, runs[0].manifest, lost, runs[0].events, runs[0].links)
    assert page_words.headline(page_words.outcome([one])) == (
        "1 run of demo, and none counts: The run did not end: a node was lost."
    )
    assert page_words.headline(page_words.outcome(groups[0][:1])) == "1 run of demo."


LIMITS = {
    "ratio_deviation": 0.02,
    "mape_1s": 0.02,
    "busy_floor_s": 2.0,
    "excess_share": 0.02,
    "unwatched_share": 0.01,
    "direct_share": 0.001,
    "outage_bundles": 4,
    "outage_recharged_s": 50.0,
    "resume_ms": 20.0,
    "lateness_p99_ms": 10.0,
    "lateness_max_ms": 50.0,
    "degraded_factor": 3.0,
}


def lost(count: int) -> dict[str, Any]:
    """What a line lost of 1000 packets, of which 1 % was to be lost."""
    share = count / 1000
    return {"packets": 1000, "lost": count, "asked": 0.01, "low": share - 0.005, "high": share + 0.005, "why": None}  # fmt: skip


def outages(**parts: Any) -> dict[str, Any]:
    return {"outages": {"count": 2, "bytes": 0, "resume_ms": 1.0, "seconds": 3.0, **parts}}


def link(**parts: Any) -> dict[str, Any]:
    own: dict[str, Any] = {
        "link": "server",
        "direction": "down",
        "busy": {"share": 0.5, "ratio": 1.001, "ratio_slack": 0.0, "mape_1s": 0.001},
        "changes": {"applied": 2, "missing": 0, "faults": [], "lateness_ms": {"p99": 1.0, "p99_at_least": 0.9, "max": 2.0}},
        "from_s": 0.0,
        "to_s": 40.0,
        "queue": {"excess_share": 0.0, "direct_packets": 0, "class_packets": 1000, "gso_max_segs": 1},
        "outages": {"count": 0, "bytes": None, "resume_ms": None, "seconds": 0.0},
        "line": {"packets": 1000, "refused": 0, "loss": lost(10)},
        "watch": {"failure": None, "mismatches": [], "unwatched_s": 0.0},
    }  # fmt: skip
    for name, part in parts.items():
        own[name] = {**own[name], **part}
    return own


@pytest.mark.parametrize(
    ("parts", "state", "words"),
    [
        ({}, "valid", "delivered 100.10% of the rate asked for"),
        ({"busy": {"ratio": 0.95}}, "degraded", "delivered 95.00%"),
        ({"busy": {"ratio": 0.9}}, "invalid", "delivered 90.00%"),
        ({"busy": {"mape_1s": 0.05}}, "degraded", "off by 5.00%"),
        (
            {"changes": {"lateness_ms": {"p99": 4.0, "max": 400.0}}},
            "invalid",
            "at most 400.0 ms late",
        ),
        ({"changes": {"missing": 3}}, "invalid", "3 changes of the scenario were not made"),
        ({"watch": {"mismatches": [{}]}}, "invalid", "something else than was asked"),
        ({"watch": {"failure": "gone"}}, "invalid", "gone"),
        ({"queue": {"excess_share": 0.04}}, "degraded", "4.00% of its bits"),
        ({"queue": {"drops": 47}}, "valid", "was full and dropped 47 packets."),
        ({"queue": {"excess_share": 0.015}}, "valid", "ms late. 1.50% of its bits came faster"),
        ({"queue": {"excess_share": 1e-6}}, "valid", "Under 0.01% of its bits came faster"),
        ({"queue": {"excess_share": 0.0}}, "valid", "It never delivered more than it was asked"),
        ({"watch": {"unwatched_s": 0.4}}, "valid", "asked for."),
        ({"watch": {"unwatched_s": 0.8}}, "degraded", "Nobody looked at server down for 0.80 s"),
        ({"watch": {"unwatched_s": 20.0}}, "invalid", "for 20.00 s (50.0%) of the time; at most"),
        ({"queue": {"direct_packets": 1}}, "valid", "asked for."),
        ({"queue": {"direct_packets": 100}}, "invalid", "100 of 1100 packets (9.09%) passed"),
        (outages(bytes=8 * 1514), "valid", "asked for."),
        (outages(bytes=9 * 1514), "degraded", "13626 B left server down in its 2 outages"),
        (outages(bytes=25 * 1514), "invalid", "at most 12112 B may"),
        (outages(bytes=9 * 1514, seconds=50.0), "valid", "asked for."),
        (outages(resume_ms=30.0), "degraded", "was back 30.0 ms late after an outage"),
        (outages(resume_ms=90.0), "invalid", "was back 90.0 ms late after an outage"),
        ({"line": {"refused": 1}}, "invalid", "had no room for 1 packets"),
        ({"line": {"loss": lost(17)}}, "degraded", "lost 17 of 1000 packets"),
        ({"line": {"loss": lost(30)}}, "invalid", "1.0000% was asked for"),
        ({"line": {"loss": {"packets": 0, "lost": 0, "why": "no packets came"}}}, "valid", ""),
        (
            {"changes": {"lateness_ms": {"p99": 12.0, "p99_at_least": 11.0, "max": 12.0}}},
            "degraded",
            "Its 2 changes came at most 12.0 ms late. It never",
        ),
    ],
)
def test_indicator_of_a_link(
    groups: list[list[Run]], tmp_path: Path, parts: dict[str, Any], state: str, words: str
) -> None:
    certificate = {"links": [link(**parts)], "thresholds": LIMITS, "seconds": 40.0}
    (tmp_path / "certificate.json").write_text(json.dumps(certificate))
    run = groups[0][0]
    known = page_words.trust(Run(tmp_path, run.manifest, run.summary, run.events, run.links))
    (indicator,) = known.indicators
    assert (indicator.end, indicator.state) == ("server down", state)
    assert words in " ".join(indicator.sentences)


def test_an_indicator_of_an_older_certificate(groups: list[list[Run]], tmp_path: Path) -> None:
    """Those do not say how many packets passed the class, nor how long outages were."""
    own = link(queue={"direct_packets": 3}, **outages(bytes=0))
    del own["queue"]["class_packets"], own["outages"]["seconds"]
    certificate = {"links": [{**own, "line": None}], "thresholds": LIMITS, "seconds": 40.0}
    (tmp_path / "certificate.json").write_text(json.dumps(certificate))
    run = groups[0][0]
    known = page_words.trust(Run(tmp_path, run.manifest, run.summary, run.events, run.links))
    assert known.indicators[0].state == "valid"


def test_what_is_known_of_messages_is_said(groups: list[list[Run]], tmp_path: Path) -> None:
    completion = {
        "groups": 140, "judged": 118, "not_judged": {"short": 0, "drops": 21, "racks": 1},
        "used": {"p99": 0.32}, "error_ms": {"p99": 6.4},
    }  # fmt: skip
    certificate = {"links": [], "thresholds": LIMITS, "seconds": 40.0, "completion": completion}
    run = groups[0][0]
    own = Run(tmp_path, run.manifest, run.summary, run.events, run.links)
    (tmp_path / "certificate.json").write_text(json.dumps(certificate))
    said = page_words.trust(own).messages
    assert "at least" not in said
    assert "Of 118 groups" in said and "within 6.4 ms, and within 32% of the tolerance" in said
    assert said.endswith("Not judged: 21 whose packets a full queue dropped, 1 racks.")
    bounds = {
        "used": {"p99": 2.22, "p99_at_least": 1.22},
        "error_ms": {"p99": 26.6, "p99_at_least": 6.4},
    }
    (tmp_path / "certificate.json").write_text(
        json.dumps({**certificate, "completion": {**completion, **bounds}})
    )
    said = page_words.trust(own).messages
    assert "within 26.6 ms, and within 222% of the tolerance" in said
    assert "It is 6.4 ms and 122% at least, with 95 % confidence; the verdict goes by" in said
    for none in ({**completion, "judged": 0}, None):
        (tmp_path / "certificate.json").write_text(json.dumps({**certificate, "completion": none}))
        assert page_words.trust(own).messages == ""


@pytest.mark.parametrize("excess", [None, 0.0])
def test_a_link_that_was_idle_is_not_judged(
    groups: list[list[Run]], tmp_path: Path, excess: float | None
) -> None:
    idle = link(
        busy={"share": 0.01, "ratio": None},
        queue={"excess_share": excess},
        changes={"lateness_ms": None},
    )
    certificate = {"links": [idle], "thresholds": LIMITS, "seconds": 40.0}
    (tmp_path / "certificate.json").write_text(json.dumps(certificate))
    run = groups[0][0]
    own = Run(tmp_path, run.manifest, run.summary, run.events, run.links)
    assert page_words.trust(own).indicators[0].state == "not judged"
    page = Page(render([[own]]))
    assert any(
        "1 rate not tested for lack of a queue; the rest as asked" in words for words in page.words
    )


def test_when_the_machine_was_in_doubt_is_said(groups: list[list[Run]]) -> None:
    run = groups[0][0]
    doubts = [
        {"kind": "disturbed", "from_s": start, "to_s": start + 0.25, "ends": []}
        for start in range(1, 8)
    ]
    doubts.append({"kind": "disturbed", "from_s": 99.0, "to_s": 99.5, "ends": []})
    summary = {**run.summary, "time_s": 10.0}
    own = Run(run.path, run.manifest, summary, run.events, [*run.links, *doubts])
    assert page_words.disturbances(own) == (
        "The machine was not to be relied upon at 1.0 to 1.2 s, 2.0 to 2.2 s, 3.0 to 3.2 s, "
        "4.0 to 4.2 s, 5.0 to 5.2 s and 2 times more."
    )
    assert page_words.disturbances(run) == ""
    spans = [(0.4, 0.5), (0.3, 0.45), (0.5, 0.6), (0.8, 0.9), (0.7, 1.0)]
    doubts = [{"kind": "disturbed", "from_s": a, "to_s": b, "ends": []} for a, b in spans]
    own = Run(run.path, run.manifest, summary, run.events, [*run.links, *doubts])
    assert own.disturbed() == [(0.3, 0.6), (0.7, 1.0)]
    assert page_words.disturbances(own).endswith("at 0.3 to 0.6 s, 0.7 to 1.0 s.")


def test_one_seed_says_nothing_of_noise(groups: list[list[Run]]) -> None:
    one, two = groups[0][:1], groups[0]
    assert page_words.seeds_note(one).startswith("One seed (1): no intervals.")
    assert page_words.seeds_note(two).startswith("Means over seeds 1, 2;") == (
        len({run.seed for run in two}) > 1
    )
    page = Page(render([one]))
    assert any("One seed (1): no intervals." in words for words in page.words)


def test_comparisons_stand_beside_each_other(paths: list[Path], tmp_path: Path) -> None:
    other = make_run(tmp_path, Recipe("none", 1.0, 1, 5, scenario="other", hash="f" * 16))
    again = make_run(tmp_path, Recipe("none", 1.0, 1, 5))
    for name, run in (("first", paths[0]), ("second", again)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "comparison.json").write_text(json.dumps({"runs": [{"dir": str(run)}]}))
    groups = load_groups([tmp_path / "first", tmp_path / "second", other])
    assert [[run.path.name for run in runs] for runs in groups] == [
        [paths[0].name], [again.name], [other.name],
    ]  # fmt: skip
    page = Page(render(groups))
    assert [section["algorithms"] for section in page.data] == [["none"]] * 3
    assert {"#c1", "#c2", "#c3"} <= set(page.targets)
    row = page.words.index("none", page.words.index("Time and test accuracy in each of them:"))
    for runs, cell in zip(groups, [w for w in page.words[row:] if w.strip()][1:4], strict=True):
        summary = runs[0].summary
        accuracy = "–" if summary["accuracy"] is None else f"{summary['accuracy']:.3f}"
        assert cell == f"{summary['time_s']:.1f} s, {accuracy}"
    with pytest.raises(InputError, match="no run"):
        load_groups([])


def test_seeds_of_two_comparisons_are_one_group(paths: list[Path], tmp_path: Path) -> None:
    second = make_run(tmp_path, Recipe("none", 1.0, 2, 5))
    (runs,) = load_groups([paths[0], second])
    assert [run.seed for run in runs] == [1, 2]


def test_files_of_several_groups_have_folders_of_their_own(
    paths: list[Path], tmp_path: Path
) -> None:
    other = make_run(tmp_path, Recipe("none", 1.0, 1, 2, scenario="other", hash="f" * 16))
    written = write_report([paths[0], other], tmp_path / "report")
    assert written[-1] == tmp_path / "report" / "report.html"
    assert all(path.is_file() for path in written)
    tables = [path for path in written if path.name == "table.csv"]
    assert [path.parent.name for path in tables] == ["comparison-1", "comparison-2"]
    page = Page(written[-1].read_text())
    files = [target for target in page.targets if not target.startswith("#")]
    assert files and all((tmp_path / "report" / name).is_file() for name in files)


def test_the_command_of_a_job_has_its_processes_and_variables(tmp_path: Path) -> None:
    run = load(make_job(tmp_path, Job(steps=4)))
    given = "testbed exec scenario.yaml --fabric netns --name fp32"
    command = " -- python train.py --hook fp32"
    assert page_words.repeat_command([run]) == given + command
    row = {**run.manifest["algorithm"], "nproc": 4, "variables": ["A", "B C"]}
    more = " --nproc 4 --env A --env 'B C'"
    assert page_words.repeat_command([changed(run, algorithm=row)]) == given + more + command


def test_times_of_unlike_numbers_of_steps_are_compared_and_named(groups: list[list[Run]]) -> None:
    runs = [*groups[0]]
    said = "Runs made different numbers of steps; their times are compared all the same."
    assert said not in " ".join(Page(render([runs])).words)
    longer = {**runs[1].summary, "steps": 99}
    runs[1] = Run(runs[1].path, runs[1].manifest, longer, runs[1].events, runs[1].links)
    words = " ".join(Page(render([runs])).words)
    assert " times as fast as none" in words and said in words
    lost = {**runs[0].summary, "verdict": "invalid"}
    runs[0] = Run(runs[0].path, runs[0].manifest, lost, runs[0].events, runs[0].links)
    sentence = page_words.algorithm_sentences(runs, page_words.outcome(runs))[1]
    assert "not compared with none: no seed has a run of both that counts" in sentence


def test_the_command_repeats_the_comparison(groups: list[list[Run]]) -> None:
    (runs,) = groups
    assert page_words.repeat_command(runs) == (
        "testbed run scenario.yaml --fabric sim --algo none --algo topk-0.15 --algo adaptive --seed 1"
    )
    odd = changed(runs[0], algorithm={"name": "a b; rm"})
    assert "--algo 'a b; rm'" in page_words.repeat_command([odd])
