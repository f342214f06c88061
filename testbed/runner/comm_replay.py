"""``testbed messages replay``: one trace on one scenario, with a run directory like every run's."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from testbed.algorithms import Algorithm
from testbed.comm_trace.trace import write
from testbed.records.run_directory import SUMMARY, read_json
from testbed.runner.comm_replay_trial import CommReplay, SimCommReplay
from testbed.runner.progress import Progress
from testbed.runner.signals import interruptible, machine
from testbed.runner.trial import LinkTrial, TrialPlan
from testbed.topology import VIRTUAL

MESSAGES = "messages.jsonl"
"""The trace that was replayed, in the run directory."""


def replay_messages(
    replay: CommReplay, fabric: str, out: Path, *, quiet: bool = False, keep_failed: bool = False
) -> dict[str, Any]:
    """Play a trace; returns the run's summary. Raises what ended it early; records are kept."""
    experiment, label, least = replay.experiment, replay.label, 1
    if fabric != VIRTUAL:
        from testbed.runner.preflight import check

        least = check(replay.loaded, fabric)
    progress = Progress(quiet, experiment.dilation, experiment.specs[0].name)
    plan = TrialPlan.create(experiment, Algorithm(label), replay.seed, out, progress, replay.row())
    with ExitStack() as stack:
        stack.enter_context(interruptible())
        stack.enter_context(plan.directory)
        write(replay.trace, plan.directory.path / MESSAGES)
        trial: LinkTrial
        if fabric == VIRTUAL:
            trial = SimCommReplay(plan, replay)
        else:
            from testbed.runner.real_links import comm_replay_trial

            stack.enter_context(machine(progress.say))
            progress.say(f"starting {len(experiment.specs)} nodes on the {fabric} fabric")
            session = comm_replay_trial(
                plan, replay, fabric, quiet=quiet, keep_failed=keep_failed, least=least
            )
            trial = stack.enter_context(session)
        stack.callback(progress.end)
        trial.carry_out(begin=lambda: progress.begin(label, None, 1, 1))
    return read_json(plan.directory.path / SUMMARY)
