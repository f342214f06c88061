"""``testbed messages``: a run's messages as a file, and that file as traffic on another
scenario."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.cli import options
from testbed.cli.options import rerun
from testbed.cli.replay import draw

app = typer.Typer(
    no_args_is_help=True,
    help="Record who sent whom how much in a run; replay it elsewhere, without training.",
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="Messages.", show_default=False)]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.", show_default=False)]
Target = Annotated[Path, typer.Option("--out", help="The file to write.", metavar="FILE")]
Traces = Annotated[
    list[Path],
    typer.Argument(metavar="FILES", help="Execution traces (.et).", show_default=False),
]
Stem = Annotated[Path, typer.Option("--out", help="How the files' names begin.", metavar="STEM")]
Label = Annotated[str, typer.Option("--name", help="What records call it.", metavar="LABEL")]
Timed = Annotated[
    bool,
    typer.Option("--timed", help="Send when it was sent then, whatever it waited for."),
]


@app.command("record")
def record(run: Run, out: Target, as_json: options.Json = False) -> None:
    """Write the messages of the finished run in RUN, and what each of them waited for."""
    from testbed.comm_trace.from_records import of_run
    from testbed.comm_trace.trace import write
    from testbed.records.run_directory import readable

    with readable([run]):
        trace = of_run(run)
    write(trace, out)
    _say(out, trace, as_json)


@app.command("show")
def show(file: File, as_json: options.Json = False) -> None:
    """Print what FILE holds: its nodes, their messages, and how long it takes at least."""
    from testbed.comm_trace.trace import read

    _say(file, read(file), as_json)


@app.command("export")
def export(file: File, out: Stem, as_json: options.Json = False) -> None:
    """Write FILE as Chakra execution traces, one for each node: STEM.0.et, STEM.1.et, …"""
    from testbed.comm_trace.chakra import write_chakra
    from testbed.comm_trace.trace import read

    paths = [str(path) for path in write_chakra(read(file), out)]
    print(json.dumps({"files": paths}, indent=2) if as_json else "\n".join(paths))


@app.command("import")
def import_(files: Traces, out: Target, as_json: options.Json = False) -> None:
    """Write the Chakra execution traces FILES, one for each rank in their order, as messages."""
    from testbed.comm_trace.chakra import read_chakra
    from testbed.comm_trace.trace import write

    trace = read_chakra(files)
    write(trace, out)
    _say(out, trace, as_json)


@app.command("replay")
def replay(
    context: typer.Context,
    file: File,
    scenario: options.Scenario,
    fabric: options.FabricName = "netns",
    name: Label = "messages",
    timed: Timed = False,
    out: options.Out = Path(),
    as_json: options.Json = False,
    keep: options.Keep = False,
    quiet: options.Quiet = False,
    no_figures: options.NoFigures = False,
    guest: options.Guest = False,
) -> None:
    """Send FILE's messages over SCENARIO's links: as many bytes, each when what it waited for has
    come."""
    from testbed.comm_trace.trace import read
    from testbed.runner.comm_replay import CommReplay
    from testbed.runner.run import replay_messages
    from testbed.scenario.load import load
    from testbed.topology import VIRTUAL

    if guest:
        rerun(context)
    figures = fabric != VIRTUAL and not no_figures and options.can_draw()
    if fabric != VIRTUAL:
        from testbed.host.user_namespace import become_able

        become_able(fabric, keep=keep)
    play = CommReplay(load(scenario, trains=False), read(file), name, timed)
    entry = replay_messages(play, fabric, out, quiet=quiet, keep_failed=keep)
    if figures:
        draw(Path(entry["dir"]))
    if as_json:
        options.print_json(entry)
    else:
        print(_outcome(entry))
    if entry["verdict"] == "invalid":
        raise typer.Exit(1)


def _outcome(entry: dict[str, Any]) -> str:
    reasons = "".join(f"\n  {reason}" for reason in entry["reasons"])
    return (
        f"{entry['messages']} messages, {entry['bytes_up']} B up, {entry['bytes_down']} B down, "
        f"{entry['time_s']:.3f} s\nverdict: {entry['verdict']}{reasons}\nrecords: {entry['dir']}"
    )


def _say(file: Path, trace: Any, as_json: bool) -> None:
    from testbed.comm_trace.trace import contents

    facts = contents(trace)
    if as_json:
        options.print_json({"file": str(file), **facts})
        return
    print(
        f"{file}: {len(facts['nodes'])} nodes, {facts['messages']} messages, {facts['bytes']} B, "
        f"at least {facts['least_s']:.6g} s"
    )
    for node in facts["nodes"]:
        print(
            f"  {node['name']}: {node['sent']} sent ({node['bytes_sent']} B), {node['received']} "
            f"received ({node['bytes_received']} B), computes {node['compute_s']:.6g} s"
        )
