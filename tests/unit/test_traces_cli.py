"""`testbed trace`: what it prints, writes and draws, and that mistakes are sentences."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import command_here
import pytest
from loopback import own_place, refusing

from testbed.cli import trace as trace_make
from testbed.errors import ExperimentError, InputError, MachineError
from testbed.traces.csv_reader import meaning
from testbed.traces.rate_trace import RateTrace
from testbed.traces.readers import READERS, read

needs_iperf3 = pytest.mark.skipif(shutil.which("iperf3") is None, reason="needs iperf3")


call = partial(command_here.call, "trace")


def output(*arguments: object) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, result.exception or result.output
    return result.stdout


def sentence(*arguments: object) -> str:
    """What an InputError says."""
    error = call(*arguments).exception
    assert isinstance(error, InputError), error
    return str(error)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text("time_s,a_mbit_s,b_mbit_s\n0,8,1\n1,0,2\n2,4,3\n4,6,4\n")
    return path


def test_a_trace_is_shown(trace: Path, tmp_path: Path) -> None:
    figure = tmp_path / "t.png"
    said = output("show", trace, "--column", "a_mbit_s", "--out", figure)
    assert said.splitlines() == [
        f"{trace}: csv, 6 s, 4 points, mean 4.667 Mbit/s",
        "rate     0 bit/s to 8 Mbit/s",
        "in time  p5 0 bit/s, p25 4 Mbit/s, p50 4 Mbit/s, p75 6 Mbit/s, p95 8 Mbit/s",
        "steps    the shortest 1 s",
        "outages  16.67% of the time, the longest 1 s",
        f"figure   {figure}",
    ]
    drawn = figure.read_bytes()
    assert drawn.startswith(b"\x89PNG")
    found = json.loads(output("show", trace, "--column", "a_mbit_s", "--out", figure, "--json"))
    assert found["figure"] == str(figure)
    assert (found["format"], found["points"], found["max_bits"]) == ("csv", 4, 8_000_000)
    assert found["percentiles_bits"]["p50"] == 4_000_000
    assert figure.read_bytes() == drawn


@pytest.mark.parametrize("count", [1, 2, 5000])
@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_every_trace_can_be_drawn(tmp_path: Path, count: int, ending: str) -> None:
    rates = tuple(i % 7 * 10**6 for i in range(count))
    made = RateTrace(tuple(i * 13.0 for i in range(count)), rates, count * 13.0)
    from analysis.figures.trace import save_trace

    save_trace(made, tmp_path / f"t.{ending}", "made up")
    assert (tmp_path / f"t.{ending}").stat().st_size > 1000


def test_neighbouring_bins_of_an_outage_are_drawn_as_a_whole() -> None:
    from analysis.figures.trace import draw

    rates = (0, 0, 0, 10**6, 0, 10**6)
    axes = draw(RateTrace(tuple(map(float, range(6))), rates, 6.0), "t").axes[0]
    (outages,) = (c for c in axes.collections if c.get_label() == "outage")
    ends = [(path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in outages.get_paths()]
    assert ends == [(0.0, 3.0), (4.0, 5.0)]


def test_mistakes_are_sentences(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert sentence("show", tmp_path / "none").endswith("cannot be read: No such file or directory")
    assert sentence("show", trace).startswith(f"{trace}:1: several columns hold rates: a_mbit_s, b")
    assert "no kind of figure ends in '.jpg'" in sentence("show", trace, "--out", "x.jpg")
    chosen = ("convert", trace, "--column", "a_mbit_s", "--out")
    assert "this is the trace itself" in sentence(*chosen, trace)
    assert sentence(*chosen, out, "--to", "x").startswith("--to: unknown format 'x'. Known: csv")
    assert sentence(*chosen, out, "--from", "1").startswith("--from: '1' is not a duration")
    assert "nothing lies from 5 s to 4 s of 6 s" in sentence(
        *chosen, out, "--from", "5 s", "--until", "4 s"
    )
    assert sentence(*chosen, out, "--scale", "nan").startswith("--scale: nan is no factor")
    assert sentence(*chosen, out, "--stretch", "0").startswith("--stretch: 0 is no factor")
    assert "repeated once or more" in sentence(*chosen, out, "--repeat", "0")
    assert "cannot be written" in sentence(*chosen, tmp_path / "no" / "folder")
    made = ("make", "sawtooth", "--high", "2 Mbit/s", "--seconds", 9, "--out", out)
    assert "both are more than 0" in sentence(*made, "--low", "1 Mbit/s", "--every", "0 s")
    assert "the lower is 0 or more" in sentence(*made, "--low", "3 Mbit/s", "--every", "1 s")
    assert sentence(*made, "--low", "5", "--every", "1 s").startswith("--low: '5' is not a rate")
    assert not out.exists()


def test_what_could_not_be_read_again_is_not_written(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    chosen = ("convert", trace, "--column", "a_mbit_s", "--out", out)
    assert "1e-06 s is the shortest that is read: times 2.02 times as long would do" in sentence(
        *chosen, "--stretch", "1e-6", "--from", "0.5 s"
    )
    assert "1e-06 s is the shortest" in sentence(
        *chosen, "--stretch", "1e-6", "--from", "0.5 s", "--to", "pairs"
    )
    rates = ("--low", "1 Mbit/s", "--high", "2 Mbit/s")
    said = sentence("make", "square", *rates, "--period", "1 us", "--out", out)
    assert said.startswith("no such trace can be made: two points would be 5e-07 s apart")
    assert "last 6e+09 s: 1e+09 s is the most" in sentence(
        *chosen, "--stretch", "1e6", "--repeat", "1000"
    )
    assert not out.exists()
    output(*chosen, "--stretch", "1e-6", "--from", "0.5 s", "--to", "mahimahi")  # in whole ms
    output("make", "square", *rates, "--period", "4 us", "--out", out)
    assert read(out).duration_s == pytest.approx(4e-6)


def test_a_trace_is_converted(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = output(
        "convert", trace, "--column", "a_mbit_s", "--to", "pairs", "--out", out, "--from", "1 s",
        "--until", "5 s", "--shift", "1 s", "--stretch", 2, "--scale", 0.5, "--repeat", 2,
    )  # fmt: skip
    assert said == f"{out}: 16 s, 6 points, mean 1.75 Mbit/s\n"
    assert out.read_text() == "0 2\n4 3\n6 0\n8 2\n12 3\n14 0\n"
    again = tmp_path / "again.csv"
    found = json.loads(output("convert", out, "--out", again, "--json"))
    assert (found["file"], found["format"], found["duration_s"]) == (str(again), "csv", 16)
    assert read(again).rates_bits == read(out).rates_bits


MADE = [
    ["step", "--before", "9 Mbit/s", "--after", "1 Mbit/s", "--at", "2 s", "--seconds", "5"],
    ["square", "--low", "20 Mbit/s", "--high", "100 Mbit/s", "--period", "200 ms"],
    ["ramp", "--start", "0 Mbit/s", "--end", "10 Mbit/s", "--seconds", "5", "--every", "1 s"],
    ["sawtooth", "--low", "1 Mbit/s", "--high", "2 Mbit/s", "--seconds", "5", "--every", "500 ms"],
    ["random-walk", "--low", "1 Mbit/s", "--high", "9 Mbit/s", "--deviation", "1 Mbit/s",
     "--seconds", "20", "--every", "1 s"],
    ["markov", "--level", "1 Mbit/s", "--level", "9 Mbit/s", "--stay", "0.5", "--seconds", "30", "--every", "1 s"],
    ["token-bucket", "--peak", "10 Gbit/s", "--base", "1.25 Gbit/s", "--budget", "10 s", "--busy", "0.7",
     "--seconds", "60", "--every", "1 s", "--noise", "0.1"],
    ["diurnal", "--low", "20 Mbit/s", "--high", "100 Mbit/s", "--seconds", "86400", "--every", "10 min"],
]  # fmt: skip


@pytest.mark.parametrize("options", MADE, ids=lambda options: options[0])
def test_made_traces_depend_on_nothing_but_options_and_seed(
    tmp_path: Path, options: list[str]
) -> None:
    files = [tmp_path / f"{i}.csv" for i in range(3)]
    seeded = options[0] in {"random-walk", "markov", "token-bucket", "diurnal"}
    for file, seed in zip(files, (5, 5, 6), strict=True):
        output("make", *options, "--out", file, *(["--seed", seed] if seeded else []))
    first, second, third = (file.read_text() for file in files)
    assert first == second
    assert (first != third) is seeded
    made_by = first.splitlines()[0].removeprefix("# made by testbed.traces.generate.")
    assert made_by.startswith(options[0].replace("-", "_") + "(")
    assert read(files[0]).duration_s > 0
    found = json.loads(output("make", *options, "--out", files[0], "--json"))
    assert found["made_by"].partition("(")[0] == made_by.partition("(")[0]


@pytest.fixture
def server() -> Iterator[tuple[str, int]]:
    """Where an iperf3 server on loopback is that serves once."""
    address, port = own_place()
    process = subprocess.Popen(
        ["iperf3", "--server", "--one-off", "--bind", address, "--port", str(port)],
        stdout=subprocess.DEVNULL,
    )
    try:
        give_up = time.monotonic() + 10
        while f":{port:04X} 00000000:0000 0A" not in Path("/proc/net/tcp").read_text():
            assert process.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.02)
        yield address, port
    finally:
        process.kill()
        process.wait()


@needs_iperf3
@pytest.mark.parametrize("reverse", [False, True])
def test_a_path_is_recorded(tmp_path: Path, server: tuple[str, int], reverse: bool) -> None:
    address, port = server
    out = tmp_path / "path.csv"
    options = ["--port", port, "--seconds", 1, "--interval", 0.2, "--out", out]
    found = json.loads(
        output("record", address, *options, *(["--reverse"] if reverse else []), "--json")
    )
    assert found["recorded"] == (
        f"from {address} to here" if reverse else f"from here to {address}"
    )
    recorded = read(out)
    assert 2 <= len(recorded.times_s) <= 6  # iperf3 skips intervals that a busy machine is late for
    assert recorded.mean_bits() == pytest.approx(found["mean_bits"])
    assert recorded.mean_bits() > 1e6
    assert "of payload and 66 of headers" in out.read_text().splitlines()[0]


@needs_iperf3
def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with refusing() as port:
        error = call(
            "record", "127.0.0.1", "--port", port, "--seconds", 1, "--out", tmp_path / "t"
        ).exception
    assert isinstance(error, ExperimentError)
    assert error.exit_code == 1
    assert f"127.0.0.1 port {port}: unable to connect to server: Connection refused" in str(error)
    assert f"Is `iperf3 -s -p {port}` running there" in str(error)
    assert not (tmp_path / "t").exists()


def test_what_is_missing_for_a_record_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = call("record", "127.0.0.1", "--out", tmp_path / "t").exception
    assert isinstance(error, MachineError)
    assert error.exit_code == 3
    assert "apt-get install iperf3" in str(error)
    assert "there is no such folder" in sentence("record", "h", "--out", tmp_path / "no" / "t")
    assert "longer than the record" in sentence(
        "record", "h", "--out", tmp_path / "t", "--seconds", 1, "--interval", 2
    )


def test_an_iperf3_that_says_nothing_useful(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for script, said in [
        ("echo '{\"intervals\": []}'", "measured nothing that makes a trace"),
        ("echo no such thing >&2; exit 1", "no such thing"),
        ("exec sleep 60", "the server fell silent"),
    ]:
        (tmp_path / "iperf3").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "iperf3").chmod(0o755)
        monkeypatch.setattr(trace_make, "GRACE_S", -0.5)
        monkeypatch.setattr(
            trace_make, "shutil", SimpleNamespace(which=lambda _: str(tmp_path / "iperf3"))
        )
        error = call("record", "h", "--seconds", 1, "--out", tmp_path / "t").exception
        assert isinstance(error, ExperimentError)
        assert said in str(error)


def test_the_page_names_every_format_and_kind() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "traces.md").read_text()
    for name in [*READERS, *(options[0] for options in MADE)]:
        assert f"| `{name}` |" in page
    kinds = {command.name for command in trace_make.app.registered_commands}
    assert kinds == {options[0] for options in MADE}


NAMES = [
    ("rate_mbit_s", "rate", 1e6), ("Mbits/sec", "rate", 1e6), ("kbit", "rate", 1e3), ("DL_bitrate", "rate", 1e3),
    ("throughput (Mbps)", "rate", 1e6), ("bandwidth_kbps", "rate", 1e3), ("MB/s", "rate", 8e6),
    ("KBps", "rate", 8e3), ("bits_per_second", "rate", 1.0), ("bytes_per_sec", "rate", 8.0),
    ("rate_Gbit_s", "rate", 1e9), ("time_s_mbps", "rate", 1e6),
    ("bytes", "bytes", 1.0), ("ul_kB", "bytes", 1e3), ("volume (MB)", "bytes", 1e6),
    ("time_s", "time", 1.0), ("Time (ms)", "time", 1e-3), ("Timestamp", "time", None), ("second", "time", 1.0),
    ("elapsed_seconds", "time", 1.0), ("t", "time", None), ("date", "time", None), ("ms", "time", 1e-3),
    ("duration_ms", "length", 1e-3), ("interval", "length", None), ("dt_us", "length", 1e-6),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "factor"), NAMES)
def test_names_of_columns_say_what_they_hold(name: str, kind: str, factor: float | None) -> None:
    found = meaning(name)
    assert found
    assert (found.kind, found.factor) == (kind, factor)


@pytest.mark.parametrize(
    "name",
    ["", "rate", "Throughput", "MBPS", "latency_ms", "jobs", "snr_db", "tput", "speed", "temps",
     "State", "kb", "B", "Latitude", "length of list_x" * 50],
)  # fmt: skip
def test_names_that_say_nothing(name: str) -> None:
    found = meaning(name)
    assert found is None or found.kind == "length"
