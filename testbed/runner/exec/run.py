"""``testbed exec``: somebody's command on all nodes, with links, records and certificate as of
every run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.fabric.base import ExecEnvironment
from testbed.fabric.docker.fabric import pins_below
from testbed.fabric.file_view import Account, Shown, account, account_for
from testbed.host import images as host_images
from testbed.records.run_directory import RunDirectory
from testbed.runner.exec.judge import conclude
from testbed.runner.exec.launch_spec import (
    DOCKER,
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
from testbed.runner.manifest_writer import describe
from testbed.runner.preflight import check
from testbed.runner.progress import Progress
from testbed.runner.session import Session
from testbed.runner.signals import interruptible, machine, shielded
from testbed.scenario.expand import expand, racks
from testbed.scenario.load import Loaded
from testbed.user_files import Output


@dataclass(frozen=True)
class Executed:
    """Where the records are, and what they come to."""

    directory: Path
    summary: Mapping[str, Any]


def execute(
    loaded: Loaded,
    order: LaunchSpec,
    fabric: str,
    out: Path,
    *,
    shown: bool,
    quiet: bool = False,
    keep_failed: bool = False,
    read: tuple[Path, ...] = (),
    pull: bool = False,
    writable_root: bool = False,
) -> Executed:
    """Run ``order`` once on the nodes of ``loaded``. ``shown``: whether output goes to standard
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
    owner = tenant(Path.cwd()) if fabric == DOCKER else None
    images = {spec.name: scenario.nodes[spec.group].image for spec in working(specs)}
    own = {name: image for name, image in images.items() if image is not None}
    if own:
        host_images.require_user_images(own.values(), pull=pull)
    least = check(loaded, fabric, processes=order.started)
    progress = Progress(quiet)
    directory = RunDirectory.create(
        out, scenario_name=scenario.name, algorithm=order.name, seed=0, content_hash=loaded.hash
    )
    names = [spec.name for spec in working(specs)]
    output = Output(
        directory.path / "log", max(map(len, names)), shown=shown, several=order.started > 1
    )
    whose = _whose(owner)
    hearing = MarkListener(names, whose, order.processes)
    try:
        exec_environment = _exec_environment(directory, hearing.folder, owner, own, writable_root)
        with interruptible(), directory, machine(progress.say):
            progress.say(f"starting {len(specs)} nodes on the {fabric} fabric")
            if owner is not None and not owner.writes(Path.cwd()):
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
            ) as session:
                return _perform(session, loaded, order, hearing, output, directory, progress)
    finally:
        hearing.close()
        output.close()
        drop_if_empty(directory.path)


def _whose(owner: Tenant | None) -> Account:
    """The user that the job's processes have. ``owner``: in containers."""
    if owner is not None:
        return Account(owner.user, owner.group)
    found = account_for([Shown(str(Path.cwd()), writable=True)])
    return found or Account(os.geteuid(), os.getegid())


def _exec_environment(
    directory: RunDirectory,
    rendezvous_dir: Path,
    owner: Tenant | None,
    images: Mapping[str, str],
    writable_root: bool,
) -> ExecEnvironment:
    """Return what nodes offer to the job. ``owner``: whose it is in containers, where nodes are
    some."""
    here, run = Path.cwd(), directory.path
    if owner is None:
        found = here.stat() if account() is not None else None
        own = (
            Tenant(os.getuid(), os.getgid())
            if found is None
            else Tenant(found.st_uid, found.st_gid)
        )
        return ExecEnvironment(here, rendezvous_dir, user=str(own), output=make_output(run, own))
    output = make_output(run, owner)
    pins = pins_below(here, run.absolute())
    return ExecEnvironment(
        here,
        rendezvous_dir,
        user=str(owner),
        images=images,
        output=output,
        home_of_root=make_home_of_root(here, rendezvous_dir),
        writable_root=writable_root,
        pins={
            **pins,
            run.absolute(): directory.identity(),
            output: directory.identity(output.name),
        },
    )


def _perform(
    session: Session,
    loaded: Loaded,
    order: LaunchSpec,
    hearing: MarkListener,
    output: Output,
    directory: RunDirectory,
    progress: Progress,
) -> Executed:
    performance = ExecTrial(session, loaded, order, hearing, output, directory, progress)
    held = performance.shape()
    describe(
        directory,
        loaded,
        session.specs,
        held["links"],
        fabric=session.fabric_name,
        algorithm=order.to_json(),
        seed=0,
    )
    error: BaseException | None = None
    try:
        performance.run()
    except BaseException as failure:
        error = failure
        raise
    finally:
        with shielded():
            summary = conclude(performance, loaded, directory, held, error)
            session.fabric.save_logs()
        if output.failure is not None:
            progress.insist(output.failure)
        if error is not None:
            progress.insist(f"records in {directory.path}")
    return Executed(directory.path, summary)
