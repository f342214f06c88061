"""The same scenario as root and as a user without any rights: do both certificates say the same?"""

from __future__ import annotations

from typing import Any

from testbed.bench import unprivileged
from testbed.bench.figures import median
from testbed.bench.order import interleaved
from testbed.bench.result import Check, Suite, at_most
from testbed.bench.setup import Setup
from testbed.bench.training import scenario, written

WHO = ("root", "user")
RATIO_APART, MAPE_APART, LATE_APART_MS = 0.005, 0.005, 2.5
"""A quarter of what the certificate allows."""


def run(setup: Setup) -> Suite:
    """``testbed replay`` by either in turn. Raises MachineError where there is nobody else to be."""
    seconds = setup.seconds(20.0, 3.0)
    path = written(setup, "agreement", _scenario())
    somebody = unprivileged.user()
    found: dict[str, list[dict[str, Any]]] = {who: [] for who in WHO}
    with unprivileged.folder(somebody, path.parent) as folder:
        for repetition, who in interleaved(WHO, setup.repetitions):
            setup.say(f"agreement: {who}, {repetition + 1} of {setup.repetitions}")
            whose = None if who == "root" else somebody
            found[who].append(unprivileged.replay(whose, folder, path.name, seconds))
    rows = [row for who in WHO for row in _rows(who, found[who])]
    return Suite(
        "Root and an unprivileged user: the same certificate",
        rows,
        checks(found),
        {
            "repeat": setup.repetitions,
            "seconds": seconds,
            "judged": [
                {"who": who, **{key: one[key] for key in ("verdict", "reasons", "measures")}}
                for who in WHO
                for one in found[who]
            ],
        },
    )


def _scenario() -> dict[str, Any]:
    """One worker and the server at 20 Mbit/s: light, since it is not the load that is compared."""
    content = scenario()
    end = {**content["links"]["default"]["up"], "rate": "20 Mbit/s"}
    return {
        **content,
        "nodes": {"server": {"role": "server"}, "worker": {"role": "worker", "count": 1}},
        "links": {"default": {"up": end, "down": end}},
        "events": [{**event, "scale": 0.2} for event in content["events"]],
    }


def _rows(who: str, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    verdicts = " ".join(sorted({run["verdict"] for run in runs}))
    return [
        {"who": who, "link": place, **_medians(runs, place), "verdicts": verdicts}
        for place in _places(runs)
    ]


def _medians(runs: list[dict[str, Any]], place: str) -> dict[str, float | None]:
    links = [link for run in runs for link in run["links"] if _place(link) == place]
    return {
        "ratio": median(link["ratio"] for link in links),
        "mape_1s": median(link["mape_1s"] for link in links),
        "late_p99_ms": median((link["lateness_ms"] or {}).get("p99") for link in links),
    }


def checks(found: dict[str, list[dict[str, Any]]]) -> list[Check]:
    """The largest differences over all link directions, and whether the verdicts are the same, and not invalid. Pure."""
    apart = {key: _apart(found, key) for key in ("ratio", "mape_1s", "late_p99_ms")}
    verdicts = [[run["verdict"] for run in found[who]] for who in WHO]
    differ = float(set(verdicts[0]) != set(verdicts[1]))
    invalid = sum(each.count("invalid") for each in verdicts)
    return [
        at_most("delivered/asked, largest difference", apart["ratio"], RATIO_APART),
        at_most("error per 1 s, largest difference", apart["mape_1s"], MAPE_APART),
        at_most("lateness p99, largest difference, ms", apart["late_p99_ms"], LATE_APART_MS),
        at_most("verdicts differ (1: yes)", differ, 0),
        at_most("invalid replays, of either", invalid, 0),
    ]


def _apart(found: dict[str, list[dict[str, Any]]], key: str) -> float | None:
    """The largest difference; None where it is known of nothing, or of a link direction for one of them alone."""
    places = dict.fromkeys(place for who in WHO for place in _places(found[who]))
    pairs = [tuple(_medians(found[who], place)[key] for who in WHO) for place in places]
    if any((one is None) != (other is None) for one, other in pairs):
        return None
    both = [abs(one - other) for one, other in pairs if one is not None and other is not None]
    return max(both, default=None)


def _places(runs: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(_place(link) for run in runs for link in run["links"]))


def _place(link: dict[str, Any]) -> str:
    return f"{link['link']} {link['direction']}"
