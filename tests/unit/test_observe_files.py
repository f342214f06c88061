"""Files for Prometheus and Grafana: contents, queries, rules; with `promtool` also what the rules say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dashboard_queries import queries
from ruamel.yaml import YAML
from unprivileged import USER, as_user

from testbed.errors import InputError, MachineError
from testbed.fabric import cleanup
from testbed.host import prometheus
from testbed.journal import Journal
from testbed.process import environment
from testbed.records import exporter as metrics
from testbed.runner import dashboard, observe
from testbed.runner.dashboard import ObservedRun
from testbed.user_files import PinnedFolder

NODES = {"server": "10.0.0.2:9464", "worker-0": "10.0.0.3:9464"}
OBSERVED = ObservedRun(NODES, "127.0.0.1:9464", "http://127.0.0.1:9090", "r1", "server")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    dashboard.write(PinnedFolder(tmp_path).folder("observe"), tmp_path / "observe", OBSERVED)
    return tmp_path / "observe"


def read(path: Path) -> dict[str, object]:
    content = YAML(typ="safe", pure=True).load(path.read_text())
    assert isinstance(content, dict)
    return content


def test_prometheus_scrapes_all_nodes_and_the_session_within_bounds(files: Path) -> None:
    config = read(files / "prometheus.yml")
    nodes, session = config["scrape_configs"]  # type: ignore[misc]
    assert session["static_configs"] == [{"targets": ["127.0.0.1:9464"]}]
    assert nodes["file_sd_configs"] == [{"files": ["targets.json"]}]
    assert json.loads((files / "targets.json").read_text()) == [
        {"targets": list(NODES.values()), "labels": {}}
    ]
    for job in (nodes, session):
        assert job["sample_limit"] == 5000 and job["body_size_limit"] == "4MB"
    assert config["rule_files"] == ["rules.yml"]


@pytest.mark.parametrize(("nodes", "seconds"), [(0, 1), (5, 1), (16, 1), (17, 2), (200, 13)])
def test_many_nodes_are_scraped_less_often(tmp_path: Path, nodes: int, seconds: int) -> None:
    assert dashboard.interval_s(nodes) == seconds
    many = {f"node-{number}": f"10.0.0.{number}:9464" for number in range(nodes)}
    dashboard.write(PinnedFolder(tmp_path), tmp_path, replace(OBSERVED, nodes=many))
    text = (tmp_path / "rules.yml").read_text()
    windows = {int(seconds) for seconds in re.findall(r"\[(\d+)s\]", text)}
    assert f"scrape_interval: {seconds}s" in (tmp_path / "prometheus.yml").read_text()
    assert min(windows - {10} or {10}) >= min(4 * seconds, 30)


def test_grafana_finds_the_source_by_its_uid_and_the_dashboard_in_the_folder(files: Path) -> None:
    provisioning = files / "grafana/provisioning"
    (source,) = read(provisioning / "datasources/narrows.yaml")["datasources"]  # type: ignore[misc]
    assert (source["uid"], source["url"]) == (dashboard.SOURCE_UID, OBSERVED.prometheus)
    (provider,) = read(provisioning / "dashboards/narrows.yaml")["providers"]  # type: ignore[misc]
    document = json.loads((Path(provider["options"]["path"]) / "narrows.json").read_text())
    uids = set(re.findall(r'"uid": "([^"]+)"', dashboard.to_json(document)))
    assert uids == {dashboard.SOURCE_UID, "narrows-run"}
    values = {entry["name"]: entry["current"]["value"] for entry in document["templating"]["list"]}
    assert values == {"run": "r1", "link": "server"}


def test_the_dashboard_shows_what_is_promised() -> None:
    document = dashboard.dashboard(OBSERVED)
    shown = "\n".join(queries(document))
    for name in (
        metrics.LINK_RATE, metrics.DENSITY, "run_phase:testbed_phase_seconds:mean", metrics.DELAY, metrics.BYTES, metrics.ACCURACY,
        metrics.VERDICT, metrics.CHECK, metrics.WAITING, metrics.EVENT, metrics.BACKLOG,
    ):  # fmt: skip
        assert name in shown, name
    assert "$" not in shown and 'run="r1"' in shown
    assert len(document["annotations"]["list"]) == 2


def test_panels_lie_beside_and_below_each_other() -> None:
    panels = dashboard.dashboard(OBSERVED)["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) == 23
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_states_are_shown_by_the_numbers_that_are_exported() -> None:
    panels = dashboard.dashboard(OBSERVED)["panels"]
    defaults = [panel["fieldConfig"]["defaults"] for panel in panels]
    mappings = [mapping for each in defaults for mapping in each.get("mappings", ())]
    assert len(mappings) == 2
    for mapping in mappings:
        states = {shown["text"]: int(value) for value, shown in mapping["options"].items()}
        assert states == metrics.STATES


def test_queries_and_rules_use_known_names_alone(files: Path) -> None:
    groups: list[dict[str, Any]] = read(files / "rules.yml")["groups"]  # type: ignore[assignment]
    rules = [rule for group in groups for rule in group["rules"]]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    expressions = queries(dashboard.dashboard(OBSERVED))
    expressions += [rule["expr"] for rule in rules]
    known = {row.name for row in metrics.METRICS}
    for expression in expressions:
        for name in re.findall(r"(?<![\w:])(?:run\w*:)?testbed_\w+(?::\w+)?", expression):
            assert re.sub("_(bucket|sum|count)$", "", name) in known or name in recorded, name


@pytest.mark.parametrize(
    ("fabric", "words"), [("sim", "virtual time"), ("elsewhere", "--fabric netns or docker")]
)
def test_other_fabrics_cannot_be_observed(fabric: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        observe.require(fabric)
    assert words in str(error.value)


def test_a_missing_program_is_named_with_what_fetches_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(prometheus, "cache", lambda _: tmp_path)
    with pytest.raises(MachineError, match="Prometheus") as error:
        observe.require("netns")
    assert "testbed setup observe" in str(error.value)
    program = tmp_path / "usr/bin/prometheus"
    program.parent.mkdir(parents=True)
    program.touch()
    assert prometheus.require() == program


def test_prometheus_has_no_rights_and_bounded_storage() -> None:
    command = observe.command("/p", Path("/tmp/narrows-1"), "/run/netns/c", unprivileged=False)
    text = " ".join(command)
    for part in (
        "nsenter --net=/run/netns/c setpriv", f"--reuid={observe.USER} ", "--clear-groups", "--no-new-privs",
        "--bounding-set=-all", "--pdeathsig=KILL", "--web.listen-address=127.0.0.1:9090",
        "--storage.tsdb.retention.size=192MB", "--storage.tsdb.path=/tmp/narrows-1/data",
    ):  # fmt: skip
        assert part in text, part
    alone = " ".join(observe.command("/p", Path("/tmp/n"), None, 9191, unprivileged=True))
    assert "--web.listen-address=127.0.0.1:9191" in alone
    assert "nsenter" not in alone and "reuid" not in alone and "--bounding-set=-all" in alone
    powerless = observe.command("/p", Path("/tmp/n"), None, unprivileged=True, bounding=False)
    assert "--no-new-privs" in powerless and "--bounding-set=-all" not in powerless


RULES_TEST = """
rule_files: [rules.yml]
evaluation_interval: 1s
tests:
  - interval: 1s
    input_series:
      - {series: 'testbed_verdict_so_far{run="r1"}', values: '0x9 1x9 2x30'}
      - {series: 'up{job="nodes",instance="a"}', values: '1x9 0x40'}
      - {series: 'testbed_frame_bytes_total{run="r1",role="worker",direction="up",node="a"}', values: '0+100x60'}
      - {series: 'testbed_frame_bytes_total{run="r1",role="worker",direction="up",node="b"}', values: '0+300x60'}
      - {series: 'testbed_frame_bytes_total{run="r1",role="server",direction="up",node="s"}', values: '0+400x60'}
      - {series: 'testbed_phase_seconds_sum{run="r1",phase="wait"}', values: '0+2x60'}
      - {series: 'testbed_phase_seconds_count{run="r1",phase="wait"}', values: '0+4x60'}
      - {series: 'testbed_communication_delay_seconds_bucket{run="r1",le="0.1"}', values: '0+5x60'}
      - {series: 'testbed_communication_delay_seconds_bucket{run="r1",le="0.2"}', values: '0+10x60'}
      - {series: 'testbed_communication_delay_seconds_bucket{run="r1",le="+Inf"}', values: '0+10x60'}
      - {series: 'testbed_steps_total{run="r1",role="worker"}', values: '7x200'}
      - {series: 'testbed_host_cpu_pressure_ratio{run="r1"}', values: '0.9x60'}
    promql_expr_test:
      - {expr: 'run:testbed_frame_bytes:rate', eval_time: 40s, exp_samples: [
          {labels: 'run:testbed_frame_bytes:rate{run="r1",direction="up"}', value: 400}]}
      - {expr: 'run_phase:testbed_phase_seconds:mean', eval_time: 40s, exp_samples: [
          {labels: 'run_phase:testbed_phase_seconds:mean{run="r1",phase="wait"}', value: 0.5}]}
      - {expr: 'run:testbed_communication_delay_seconds:p50', eval_time: 40s, exp_samples: [
          {labels: 'run:testbed_communication_delay_seconds:p50{run="r1"}', value: 0.1}]}
      - {expr: 'run:testbed_communication_delay_seconds:p95 > 0.18 < 0.2', eval_time: 40s, exp_samples: [
          {labels: 'run:testbed_communication_delay_seconds:p95{run="r1"}', value: 0.19}]}
    alert_rule_test:
      - {eval_time: 5s, alertname: NarrowsRunDegraded, exp_alerts: []}
      - {eval_time: 15s, alertname: NarrowsRunDegraded, exp_alerts: [{exp_labels: {run: r1},
          exp_annotations: {summary: 'The verdict so far of r1 is degraded'}}]}
      - {eval_time: 30s, alertname: NarrowsRunDegraded, exp_alerts: []}
      - {eval_time: 30s, alertname: NarrowsRunInvalid, exp_alerts: [{exp_labels: {run: r1},
          exp_annotations: {summary: 'The verdict so far of r1 is invalid'}}]}
      - {eval_time: 9s, alertname: NarrowsNodeSilent, exp_alerts: []}
      - {eval_time: 20s, alertname: NarrowsNodeSilent, exp_alerts: [{exp_labels: {job: nodes, instance: a},
          exp_annotations: {summary: 'The node at a does not answer scrapes'}}]}
      - {eval_time: 20s, alertname: NarrowsNoSteps, exp_alerts: []}
      - {eval_time: 150s, alertname: NarrowsNoSteps, exp_alerts: [{exp_labels: {run: r1},
          exp_annotations: {summary: 'No worker of r1 finished a step in a minute'}}]}
      - {eval_time: 30s, alertname: NarrowsProcessorsShort, exp_alerts: [{exp_labels: {run: r1},
          exp_annotations: {summary: 'Processes wait for a processor in more than half of the time'}}]}
"""
"""In the format of `promtool test rules`: input of a run, and what recording rules and alerts make of it."""


def promtool() -> str | None:
    """The program beside Prometheus, or on the path."""
    program = prometheus.program()
    beside = None if program is None else program.with_name("promtool")
    return str(beside) if beside is not None and beside.is_file() else shutil.which("promtool")


@pytest.mark.optional
@pytest.mark.skipif(promtool() is None, reason="needs promtool, which `make observe` fetches")
def test_promtool_accepts_configuration_and_rules(files: Path) -> None:
    (files / "rules-test.yml").write_text(RULES_TEST)
    for command in (
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "--lint=all", "--lint-fatal", "rules.yml"),
        ("test", "rules", "rules-test.yml"),
    ):
        done = subprocess.run(
            [str(promtool()), *command], cwd=files, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.optional
@pytest.mark.skipif(promtool() is None, reason="needs promtool, which `make observe` fetches")
def test_promtool_finds_wrong_rules(files: Path) -> None:
    (files / "rules-test.yml").write_text(RULES_TEST.replace("value: 400}", "value: 401}"))
    done = subprocess.run(
        [str(promtool()), "test", "rules", "rules-test.yml"],
        cwd=files,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1


def test_links_that_others_plant_are_not_followed(files: Path, tmp_path: Path) -> None:
    """In the folder for readers, between two trials."""
    precious = tmp_path / "precious"
    precious.write_text("as it was\n")
    for name in ("rules.yml", "targets.json", "grafana/dashboards/narrows.json"):
        (files / name).unlink()
        (files / name).symlink_to(precious)
    folder = PinnedFolder(files)
    dashboard.write(folder, files, OBSERVED)
    assert precious.read_text() == "as it was\n" and not (files / "rules.yml").is_symlink()
    (files / "prometheus.log").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        folder.append(observe.LOG)
    (files / "grafana").rename(tmp_path / "grafana")
    (files / "grafana").symlink_to("../grafana")
    with pytest.raises(OSError, match="Not a directory"):
        dashboard.write(folder, files, OBSERVED)


@pytest.mark.root
def test_prometheus_has_our_settings_whatever_is_in_the_folder(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of its name is started as Prometheus is; nobody's file is copied to where all may read."""
    secret, program = tmp_path / "secret", tmp_path / "bin/prometheus"
    secret.write_text("secret\n")
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("NARROWS_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (files / "rules.yml").unlink()
    (files / "rules.yml").symlink_to(secret)
    cleanup.register()
    journal = Journal.open("r1-observe")
    with PinnedFolder(files).append(observe.LOG) as log:
        process = observe._start(journal, OBSERVED, log, None, 9191)
        observe._end(process)
    home = tmp_path / "narrows-r1-observe"
    texts = dashboard.prometheus_files(OBSERVED)
    assert {name: (home / name).read_text() for name in texts} == texts
    assert cleanup.sweep(journal) and not home.exists()


START = """
import sys
from pathlib import Path
from testbed.journal import Journal
from testbed.runner import observe
from testbed.runner.dashboard import ObservedRun
from testbed.user_files import PinnedFolder

about = ObservedRun({}, "127.0.0.1:9464", "http://127.0.0.1:9090", "r1", "server")
with PinnedFolder(Path(sys.argv[1])).append(observe.LOG) as log:
    print(observe._start(Journal.open("r1-observe"), about, log, None, 9191).wait())
"""


@pytest.mark.root
def test_a_user_without_capabilities_starts_what_can_gain_none() -> None:
    """Start as members of the group ``docker`` start Prometheus: a program of its name, which says what it may do."""
    with tempfile.TemporaryDirectory(prefix="narrows-observed-") as name:
        folder, program = Path(name), Path(name, "bin/prometheus")
        folder.chmod(0o755)
        program.parent.mkdir()
        program.write_text("#!/bin/sh\nexec cat /proc/self/status\n")
        program.chmod(0o755)
        os.chown(folder, USER, USER)
        path = f"{program.parent}:{os.environ['PATH']}"
        own = {"NARROWS_STATE": str(folder / "state"), "TMPDIR": name, "PATH": path}
        done = subprocess.run(
            as_user(folder, sys.executable, "-c", START, name),
            env=environment(**own), cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (folder / observe.LOG).is_file(), done.stderr
        log = (folder / observe.LOG).read_text()
    assert done.stdout == "0\n", log + done.stderr
    status = dict(line.split(":", 1) for line in log.splitlines())
    assert status["Uid"].split() == [str(USER)] * 4
    assert status["NoNewPrivs"].strip() == "1" and int(status["CapEff"], 16) == 0
