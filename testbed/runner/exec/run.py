"""``testbed exec``: somebody's command on all nodes, recorded and judged as every run.

``execute`` checks, and makes session, records and trial. The trial (``exec.trial.ExecTrial``) goes
through the run; ``exec.trial.ProcessGroup`` starts the command on the nodes and waits for it.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from testbed.compatibility import resolve
from testbed.errors import InputError
from testbed.fabric import cleanup
from testbed.fabric.base import ExecEnvironment, new_id
from testbed.fabric.docker.fabric import pins_below
from testbed.fabric.file_view import Account, account, account_for, pinned
from testbed.host import images as host_images
from testbed.journal import Journal
from testbed.records.run_directory import LINKS, RunDirectory, read_jsonl
from testbed.runner.exec.launch_spec import (
    DOCKER,
    SWARM,
    LaunchSpec,
    Tenant,
    check_fabric,
    check_nodes,
    drop_if_empty,
    make_home_of_root,
    make_output,
    tenant,
)
from testbed.runner.exec.mark_listener import MarkListener
from testbed.runner.exec.trial import ExecTrial, working
from testbed.runner.experiment import Experiment
from testbed.runner.preflight import check
from testbed.runner.progress import Progress
from testbed.runner.session import Session, swarm_options
from testbed.runner.signals import interruptible, machine
from testbed.runner.trial import TrialPlan
from testbed.scenario.expand import expand, racks
from testbed.scenario.load import Loaded
from testbed.scenario.timeline import Timeline
from testbed.user_files import OpenedPath, Output, PinnedFolder, archive_of


@dataclass(frozen=True)
class Executed:
    """Where the records are, and what they come to."""

    directory: Path
    summary: Mapping[str, Any]


def execute(
    loaded: Loaded,
    spec: LaunchSpec,
    fabric: str,
    out: Path,
    *,
    shown: bool,
    quiet: bool = False,
    keep_failed: bool = False,
    read: tuple[OpenedPath, ...] = (),
    pull: bool = False,
    writable_root: bool = False,
) -> Executed:
    """Run ``spec`` once on the nodes of ``loaded``. ``shown``: whether output goes to standard
    output.

    ``read``: folders and files that nodes have besides, read-only. ``pull``: images that the engine
    lacks may be fetched. ``writable_root``: of images that are not ours.

    Raises InputError and MachineError before anything is started, and ExperimentError when a
    process fails. The records are kept in every case.
    """
    scenario = loaded.wall()
    specs = expand(scenario)
    check_nodes(loaded)
    check_fabric(loaded, fabric)
    if fabric != DOCKER and (pull or writable_root):
        raise InputError(
            f"nodes on the {fabric} fabric have no images of their own",
            where="--pull" if pull else "--writable-root",
            hint="Use --fabric docker, or leave it out",
        )
    owner = tenant(Path.cwd()) if fabric in (DOCKER, SWARM) else None
    files = b"" if fabric != SWARM or owner is None else _files(owner, out)
    images = {node.name: scenario.nodes[node.group].image for node in working(specs)}
    own = {name: image for name, image in images.items() if image is not None}
    if own:
        host_images.require_user_images(own.values(), pull=pull)
    least = check(loaded, fabric, processes=spec.started)
    progress = Progress(quiet)
    experiment = Experiment.untrained(loaded, scenario)
    plan = TrialPlan.create(experiment, resolve("none"), 0, out, progress, spec.to_json())
    directory, names = plan.directory, [node.name for node in working(specs)]
    logs = directory.folder().folder("log")
    output = Output(logs, max(map(len, names)), shown=shown, several=spec.started > 1)
    # Marks of other hosts come to this process first.
    whose = _whose(owner) if fabric != SWARM else Account(os.geteuid(), os.getegid())
    journal = Journal.open(f"{new_id()}-{MARKS}")
    cleanup.register()
    try:
        marks = MarkListener(names, whose, spec.processes, _noted(journal))
    except BaseException:
        cleanup.sweep(journal)
        raise
    try:
        exec_environment = _exec_environment(directory, marks.folder, owner, own, writable_root)
        if fabric == SWARM:
            exec_environment = replace(exec_environment, files=files, output=None)
        with interruptible(), directory, machine(progress.say):
            progress.say(f"starting {len(specs)} nodes on the {fabric} fabric")
            if fabric == DOCKER and owner is not None and not owner.writes(Path.cwd()):
                progress.say(
                    f"{Path.cwd()} is root's, and the job is user {owner}: what it makes belongs "
                    "into $NARROWS_OUTPUT"
                )
            with Session(
                specs,
                fabric,
                directory.path,
                quiet=quiet,
                keep_failed=keep_failed,
                folders=read,
                racks=racks(scenario),
                exec_environment=exec_environment,
                least=least,
                folder=directory.folder(),
                swarm=swarm_options(scenario, loaded.timeline()),
            ) as session:
                return _carry_out(ExecTrial(session, plan, spec, marks, output), output)
    finally:
        marks.close()
        journal.close()
        output.close()
        drop_if_empty(directory.folder())


MARKS = "marks"


def _noted(journal: Journal) -> Path:
    """Return where the sockets for marks are to be, which the journal names from now on."""
    folder = Path(tempfile.gettempdir()) / f"narrows-{MARKS}-{secrets.token_hex(4)}"
    journal.add("folder", path=str(folder))
    return folder


def _files(owner: Tenant, out: Path) -> bytes:
    """Return the files of the working folder that its tenant may read, but those of runs."""
    records = (out / "runs").absolute()
    return archive_of(PinnedFolder(Path.cwd()), owner.may_read, {records})


def _whose(owner: Tenant | None) -> Account:
    """The user that the job's processes have. ``owner``: in containers."""
    if owner is not None:
        return Account(owner.user, owner.group)
    here = pinned(Path(), writable=True)._replace(path=str(Path.cwd()))
    own = account_for([here])
    return own or Account(os.geteuid(), os.getegid())


def _exec_environment(
    directory: RunDirectory,
    rendezvous_dir: Path,
    owner: Tenant | None,
    images: Mapping[str, str],
    writable_root: bool,
) -> ExecEnvironment:
    """Return what nodes offer to the job. ``owner``: whose it is in containers, or None."""
    here, run, whose = Path.cwd(), directory.path, owner
    if whose is None:
        whose, folder = Tenant(os.getuid(), os.getgid()), Path().stat()
        if account() is not None:
            whose = Tenant(folder.st_uid, folder.st_gid)
    output = make_output(run, directory.folder(), whose)
    pins = pins_below(here, run.absolute())
    pins |= {run.absolute(): directory.identity(), output: directory.identity(output.name)}
    if owner is None:
        return ExecEnvironment(here, rendezvous_dir, user=str(whose), output=output, pins=pins)
    return ExecEnvironment(
        here,
        rendezvous_dir,
        user=str(owner),
        images=images,
        output=output,
        home_of_root=make_home_of_root(here, rendezvous_dir),
        writable_root=writable_root,
        pins=pins,
    )


def _carry_out(trial: ExecTrial, output: Output) -> Executed:
    summaries: list[dict[str, Any]] = []
    try:
        trial.carry_out(conclude=summaries.append)
    finally:
        if output.failure is not None:
            trial.progress.insist(output.failure)
        if trial.outcome.error is not None:
            trial.progress.insist(f"records in {trial.directory.path}")
    if not trial.awaits_begin:
        note = early_change(trial.timeline, read_jsonl(trial.directory.path / LINKS))
        if note is not None:
            trial.progress.say(note)
    return Executed(trial.directory.path, summaries[0])


_IDLE_BITS = 8 * 2000
"""A link that carries no more between two looks at it carries nothing of a job."""


def early_change(timeline: Timeline, records: Iterable[Mapping[str, Any]]) -> str | None:
    """Return a note where links change before any of them carries something; ``records``: of the
    links."""
    change = next(timeline.changes(0.0, inf), None)
    if change is None:
        return None
    samples = (record for record in records if record.get("kind") == "sample")
    used = (float(each["from_s"]) for each in samples if each["delivered_bits"] > _IDLE_BITS)
    if (first_s := next(used, None)) is None or change.time_s >= first_s:
        return None
    return (
        f"the links first changed after {change.time_s:.3g} s, and the job sent something after "
        f"{first_s:.3g} s: with --await-begin their history begins when it calls mark.begin()"
    )
