"""``testbed messages replay``: one trace on one scenario, with a run directory like every run's."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from testbed.comm_trace.trace import write
from testbed.records.run_directory import SUMMARY, RunDirectory, read_json
from testbed.runner.comm_replay_trial import CommReplay
from testbed.runner.progress import Progress
from testbed.runner.run import Performance
from testbed.runner.signals import interruptible, machine, shielded
from testbed.topology import VIRTUAL

MESSAGES = "messages.jsonl"
"""The trace that was replayed, in the run directory."""


def replay_messages(
    play: CommReplay, fabric: str, out: Path, *, quiet: bool = False, keep_failed: bool = False
) -> dict[str, Any]:
    """Play a trace; returns the run's summary. Raises what ended it before its time; its records
    are kept."""
    loaded, least = play.loaded, 1
    if fabric != VIRTUAL:
        from testbed.runner.preflight import check

        least = check(loaded, fabric)
    progress = Progress(quiet, play.experiment.dilation, play.experiment.specs[0].name)
    directory = RunDirectory.create(
        out,
        scenario_name=loaded.scenario.name,
        algorithm=play.label,
        seed=play.seed,
        content_hash=loaded.hash,
    )
    with ExitStack() as stack:
        stack.enter_context(interruptible())
        stack.enter_context(directory)
        write(play.trace, directory.path / MESSAGES)
        trial = _trial(
            stack, play, fabric, directory, progress, least, quiet=quiet, keep=keep_failed
        )
        trial.shape()
        progress.begin(play.label, None, 1, 1)
        stack.callback(progress.end)
        try:
            trial.run()
        finally:
            with shielded():
                trial.conclude()
    return read_json(directory.path / SUMMARY)


def _trial(
    stack: ExitStack,
    play: CommReplay,
    fabric: str,
    directory: RunDirectory,
    progress: Progress,
    least: int,
    *,
    quiet: bool,
    keep: bool,
) -> Performance:
    """Return the replay as ``fabric`` performs it. Real nodes are started, and gone again when
    ``stack`` is left."""
    if fabric == VIRTUAL:
        from testbed.runner.comm_replay_trial import VirtualPlay

        return VirtualPlay(play, directory, progress)
    from testbed.runner.real_links import PlayTrial, session_of

    stack.enter_context(machine(progress.say))
    progress.say(f"starting {len(play.experiment.specs)} nodes on the {fabric} fabric")
    session = stack.enter_context(
        session_of(play, fabric, directory.path, least, quiet=quiet, keep=keep)
    )
    stack.callback(session.fabric.save_logs)
    return PlayTrial(session, play, directory, progress)
