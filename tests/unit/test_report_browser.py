"""The report's page in a browser, without a network."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from browser_rig import MARKS, SCHEMES, WIDTHS, browser, violations, watched
from synthetic_job import Job, make_job
from synthetic_run import Recipe, make_run

from analysis.load import load_groups
from analysis.report import render
from testbed.fidelity.verdict import Verdict

__all__ = ["browser"]
pytestmark = MARKS
PANELS = 4


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("browser")
    late = Verdict("degraded", ["changes came late"])
    runs = [
        make_run(out, Recipe("none", 1.0, 1, 30)),
        make_run(out, Recipe("none", 1.0, 2, 30)),
        make_run(out, Recipe("topk-0.15", 0.15, 1, 30)),
        make_run(out, Recipe("adaptive", None, 1, 30, verdict=late)),
        make_run(out, Recipe("none", 1.0, 1, 30, scenario="other", hash="f" * 16)),
        make_job(out, Job("fp32")),
    ]
    with (runs[3] / "links.jsonl").open("a") as file:
        file.write(
            '{"kind": "disturbed", "from_s": 2, "to_s": 4, "reason": "stolen", "ends": []}\n'
        )
    path = out / "report.html"
    path.write_text(render(load_groups(runs)))
    return path


def opened(browser: Any, path: Path, width: int = 1280, scheme: str = "light") -> Any:
    """The page, drawn; what the console and the network had is in ``page.complaints``."""
    page = watched(browser, "file:", width, scheme)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn=yes]")
    return page


def first(page: Any, selector: str) -> Any:
    return page.locator(f"#c1 {selector}")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_drawn_without_a_complaint(
    browser: Any, page_file: Path, width: int, scheme: str
) -> None:
    page = opened(browser, page_file, width, scheme)
    assert page.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert first(page, ".chart.time svg").count() == PANELS
    assert page.locator(".chart").count() == page.locator(".chart svg").count()
    page.evaluate("for (const node of document.querySelectorAll('details')) node.open = true")
    assert violations(page) == []
    page.context.close()


def paths_drawn(page: Any, panel: int) -> int:
    return int(
        first(page, ".chart.time").nth(panel).locator(".mark-line.role-mark path[d]").count()
    )


def test_algorithms_can_be_left_out(browser: Any, page_file: Path) -> None:
    page = opened(browser, page_file)
    density = 1
    before = paths_drawn(page, density)
    first(page, "input[type=checkbox]").first.uncheck()
    page.wait_for_function(
        "(n) => document.querySelectorAll('#c1 .chart.time')[1]"
        ".querySelectorAll('.mark-line.role-mark path[d]').length === n",
        arg=before - 1,
    )
    for box in page.locator("input[type=checkbox]").all():
        box.uncheck()
    assert page.complaints == []
    page.context.close()


def test_legends_and_labels_are_whole(browser: Any, page_file: Path) -> None:
    """Nothing that a chart writes is cut off on a telephone, and no name of a result lies on another."""
    page = opened(browser, page_file, 390)
    cut = page.evaluate(
        """[...document.querySelectorAll('.chart svg')].flatMap((svg) => {
          const edge = svg.getBoundingClientRect();
          return [...svg.querySelectorAll('text')]
            .filter((text) => text.getBoundingClientRect().right > edge.right + 1)
            .map((text) => text.textContent);
        })"""
    )
    assert cut == []
    front = (
        first(page, "figure").filter(has_text="Pareto front").locator(".role-mark.mark-text text")
    )
    boxes = [text.bounding_box() for text in front.all()]
    assert len(boxes) == 3
    for index, one in enumerate(boxes):
        for other in boxes[:index]:
            assert (
                one["x"] + one["width"] <= other["x"]
                or other["x"] + other["width"] <= one["x"]
                or abs(one["y"] - other["y"]) >= one["height"] * 0.8
            )
    page.context.close()


def test_zooming_one_panel_zooms_all(browser: Any, page_file: Path) -> None:
    page = opened(browser, page_file)
    said = first(page, ".range")
    whole = said.inner_text()
    first(page, "[data-zoom=in]").click()
    assert said.inner_text() != whole
    labels = [
        first(page, ".chart.time").nth(panel).locator(".role-axis-label text").all_text_contents()
        for panel in range(PANELS)
    ]
    first(page, "[data-zoom=all]").click()
    assert said.inner_text() == whole
    chart = first(page, ".chart.time").nth(2)
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=4)
    page.mouse.up()
    assert said.inner_text() != whole and page.locator(".brush").count() == 0
    assert all(labels)
    assert page.complaints == []
    page.context.close()


def test_the_pointer_has_the_values_of_all_runs(browser: Any, page_file: Path) -> None:
    page = opened(browser, page_file)
    chart = first(page, ".chart.time").nth(1)
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 60)
    page.wait_for_selector(".readout:not([hidden])")
    assert page.locator(".readout th").all_inner_texts() == ["none", "topk-0.15", "adaptive"]
    dots = first(page, ".chart.time").nth(3)
    dots.scroll_into_view_if_needed()
    box = dots.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 60)
    page.locator(".readout td").filter(has_text=re.compile(r" at .* s$")).first.wait_for()
    for panel in range(PANELS):
        rule = first(page, ".chart.time").nth(panel).locator(".mark-rule.role-mark line")
        page.wait_for_function("(node) => node !== null", arg=rule.first.element_handle())
    page.mouse.move(2, 2)
    page.wait_for_selector(".readout", state="hidden")
    page.context.close()


def test_the_keyboard_does_the_same(browser: Any, page_file: Path) -> None:
    page = opened(browser, page_file)
    first(page, ".chart.time").nth(1).focus()
    page.keyboard.press("ArrowRight")
    assert "topk-0.15 0.15" in page.locator("[role=status]").inner_text()
    whole = first(page, ".range").inner_text()
    page.keyboard.press("+")
    assert first(page, ".range").inner_text() != whole
    page.context.close()


def test_other_seeds_and_colours_can_be_chosen(browser: Any, page_file: Path) -> None:
    page = opened(browser, page_file)
    first(page, ".seeds select").select_option("2")
    page.wait_for_function(
        "document.querySelectorAll('#c1 .chart.time')[1].querySelectorAll('.mark-line.role-mark path[d]').length === 1"
    )
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    page.locator("#theme").click()
    page.wait_for_selector("html[data-theme=dark][data-drawn=yes]")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    assert page.complaints == []
    page.context.close()


def test_doubtful_times_are_a_strip_under_the_axis(browser: Any, page_file: Path) -> None:
    page = opened(browser, page_file)
    strip = first(page, ".chart.time").nth(1).locator(".mark-rect.role-mark path")
    assert strip.count() == 1
    box, chart = strip.bounding_box(), first(page, ".chart.time").nth(1).bounding_box()
    assert box["height"] < 8 < box["width"]
    assert box["y"] > chart["y"] + 100
    page.context.close()


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two verdicts of each, equal results of two names, accuracies far apart, doubts of two algorithms."""
    out = tmp_path_factory.mktemp("crowded")
    late = Verdict("degraded", ["changes came late"])
    paths = []
    for name, k in (("none", 1.0), ("topk-0.05", 0.05), ("radix-0.05", 0.05), ("topk-0.04", 0.04)):
        for seed, verdict, accuracy in ((1, None, 0.95), (2, late, 0.4)):
            path = make_run(out, Recipe(name, k, seed, 30, verdict=verdict))
            summary = json.loads((path / "summary.json").read_text())
            summary["accuracy"] = accuracy
            (path / "summary.json").write_text(json.dumps(summary))
            paths.append(path)
    for path, from_s in ((paths[0], 2), (paths[2], 1), (paths[3], 3)):
        with (path / "links.jsonl").open("a") as file:
            row = {"kind": "disturbed", "from_s": from_s, "to_s": 4, "reason": "stolen", "ends": []}
            file.write(json.dumps(row) + "\n")
    page = out / "report.html"
    page.write_text(render(load_groups([*paths, make_job(out, Job("fp32"))])))
    return page


def test_verdicts_are_not_cut_off(browser: Any, crowded: Path) -> None:
    page = opened(browser, crowded)
    wide = "[...document.querySelectorAll('.scroll')].map((node) => node.scrollWidth - node.clientWidth)"
    assert set(page.evaluate(wide)) <= {0}
    page.context.close()


def test_strips_are_of_the_runs_that_are_shown_in_their_colours(
    browser: Any, crowded: Path
) -> None:
    page = opened(browser, crowded)
    strips = first(page, ".chart.time").nth(1).locator(".mark-rect.role-mark path")
    fills = [strips.nth(index).get_attribute("fill") for index in range(strips.count())]
    assert fills == ["var(--a0)", "var(--a1)"]
    assert strips.nth(0).bounding_box()["y"] < strips.nth(1).bounding_box()["y"]
    first(page, ".seeds select").select_option("2")
    page.wait_for_function(
        "document.querySelectorAll('#c1 .chart.time')[1]"
        ".querySelectorAll('.mark-rect.role-mark path').length === 1"
    )
    assert strips.nth(0).get_attribute("fill") == "var(--a1)"
    page.context.close()


def test_labels_of_results_do_not_cover_each_other(browser: Any, crowded: Path) -> None:
    page = opened(browser, crowded)
    chart = first(page, ".charts.two .chart").nth(1)
    texts = chart.locator(".mark-text.role-mark text")
    names = texts.all_text_contents()
    assert sorted(names) == ["none", "radix-0.05", "topk-0.04", "topk-0.05"]
    boxes = [texts.nth(index).bounding_box() for index in range(len(names))]
    for one, other in combinations(boxes, 2):
        apart = [one[a] + one[b] <= other[a] + 1 or other[a] + other[b] <= one[a] + 1
                 for a, b in (("x", "width"), ("y", "height"))]  # fmt: skip
        assert any(apart), (one, other)
    ticks = chart.locator(".role-axis-label text").all_text_contents()
    assert {"0.0", "1.0"} <= set(ticks)
    assert not any(tick in {"1.2", "1.5", "2.0"} or "−" in tick for tick in ticks)
    page.context.close()


def test_activities_of_a_step_have_colours_of_their_own(browser: Any, crowded: Path) -> None:
    page = opened(browser, crowded)
    legend = first(page, ".charts.two .chart").nth(-1).locator(".role-legend-symbol path")
    fills = [legend.nth(index).get_attribute("fill") for index in range(legend.count())]
    assert len(fills) > 5 and len(set(fills)) == len(fills)
    page.context.close()


def test_ticks_of_a_jobs_bytes_are_few(browser: Any, crowded: Path) -> None:
    page = opened(browser, crowded)
    chart = page.locator("#c2 .charts.two .chart").last
    ticks = chart.locator(".role-axis-label text").all_text_contents()
    assert 2 < len([tick for tick in ticks if re.fullmatch(r"[\d.,]+", tick)]) < 15
    page.context.close()


def test_it_says_so_without_scripts(browser: Any, page_file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(page_file.as_uri())
    assert "need JavaScript" in page.locator("#c1 noscript").inner_text()
    assert page.locator("#c1 table").first.is_visible()
    assert not page.locator("#c1 .controls").is_visible()
    context.close()


def test_it_can_be_printed(browser: Any, page_file: Path) -> None:
    """Dark on white whatever the screen has, with the lines' names, and without folds."""
    page = opened(browser, page_file, scheme="dark")
    for _ in range(2):
        page.locator("#theme").click()
    page.wait_for_selector("html[data-theme=dark]")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    text = first(page, ".chart .role-axis-label text").first
    assert text.evaluate("(node) => getComputedStyle(node).fill") == "rgb(51, 51, 51)"
    names = first(page, ".toggles label")
    assert [name.inner_text().strip() for name in names.all()] == ["none", "topk-0.15", "adaptive"]
    assert all(name.is_visible() for name in names.all())
    assert not first(page, ".zoom").is_visible()
    folded = "document.querySelectorAll('details:not(.long):not([open])').length"
    assert page.evaluate(folded) > 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(folded) == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(folded) > 0
    assert len(page.pdf(format="A4")) > 20_000
    page.context.close()


def test_keys_have_the_dashes_of_their_lines(browser: Any, page_file: Path) -> None:
    page = opened(browser, page_file)
    looks = page.evaluate(
        "[...document.querySelectorAll('#c1 .toggles .key')].map((node) => node.style.background)"
    )
    assert len(set(looks)) == len(looks) == 3
    assert all("repeating-linear-gradient" in look for look in looks)
    assert "transparent 7px 10px" in looks[1]
    page.context.close()


def test_a_band_has_the_range_of_the_workers(browser: Any, page_file: Path) -> None:
    """Workers finish one after the other, so that their delays differ; their densities do not."""
    page = opened(browser, page_file)
    captions = first(page, "figcaption").all_inner_texts()
    assert [("band" in caption) for caption in captions[:PANELS]] == [False, False, True, False]
    bands = first(page, ".chart.time").nth(2).locator(".mark-area.role-mark path[d]")
    assert bands.count() == 3
    chart = first(page, ".chart.time").nth(2)
    chart.focus()
    page.keyboard.press("ArrowRight")
    assert re.search(r"\(\S+ to \S+\) s", page.locator("[role=status]").inner_text())
    assert any("step 15 at" in caption for caption in captions)
    page.context.close()
