"""The seventy hostile things as data, and the commands and records that some of them are made of.

Thought out from ``docs/`` alone: a user, a job, a scenario, a trace, a file in the working folder, another user of the host,
or a stranger on the network tries them. ``test_hostile_list`` does, as root and as a user.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Case = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Item:
    """What is tried, and what must hold. ``attempts`` of the job, ``cases`` of commands, or tests ``elsewhere``."""

    number: int
    tried: str
    holds: str
    attempts: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()


ITEMS = (
    Item(1, "a job writes to /etc/cron.d, /usr/bin, a home and the package", "refused",
         ("wrote /etc/cron.d/narrows-hostile", "wrote /usr/bin/narrows-hostile")),
    Item(2, "a job sets the kernel up: /proc/sys, /proc/sysrq-trigger, /sys", "refused",
         ("wrote /proc/sys/kernel/core_pattern", "wrote /proc/sysrq-trigger")),
    Item(3, "a job writes, moves or removes its own run's records", "refused",
         ("wrote its records", "removed its log", "moved its run", "moved all runs")),
    Item(4, "a job puts a link in the place of a folder above its records", "records stay where they were begun",
         ("diverted its records", "diverted them as root of its own")),
    Item(5, "a job replaces a link by which --out leads to the records", "records stay where they were begun",
         ("took the link away",)),
    Item(6, "a job takes mounts off, or looks below them, as root of a user namespace of its own", "refused",
         ("unmounted its records", "uncovered its folder", "unmounted /tmp", "unmounted /run", "unmounted /proc",
          "made / writable")),
    Item(7, "a job reads keys of the session that started the testbed", "there are no keys", ("key read",)),
    Item(8, "a job opens the terminal of whoever started it", "it is not there", ("opened the terminal",)),
    Item(9, "a job opens memory, disks and the kernel's log, or makes devices", "refused",
         ("opened /dev/mem", "opened /dev/loop-control", "device made")),
    Item(10, "a job uses files that the testbed has open", "it has its three alone", ("descriptors",)),
    Item(11, "a job signals the testbed, and everything that it can", "only its own node's processes hear it",
         ("signalled the testbed",)),
    Item(12, "a job kills or reads process 1 of its node", "nothing comes of it",
         ("memory of process 1", "killed process 1")),
    Item(13, "two nodes meet by shared memory, an abstract socket, files, a terminal", "they do not",
         ("abstract socket", "System V memory", "other's /dev/shm/hostile", "other's /tmp/hostile",
          "other's /var/tmp/hostile", "other's /run/hostile", "other's terminal")),
    Item(14, "a job makes files that run as somebody else", "no set-user-id bit",
         elsewhere=("netns/test_isolation.py::test_roots_nodes_are_nobody_of_the_hosts",)),
    Item(15, "a job calls the engine's socket, or reads /etc/shadow", "not there, refused",
         elsewhere=("netns/test_isolation.py::test_roots_nodes_are_nobody_of_the_hosts",)),
    Item(16, "a fork bomb", "bounded, and ends with the job",
         elsewhere=("netns/test_isolation.py::test_a_node_has_only_so_many_processes",
                    "netns/test_cgroups.py::test_a_fork_bomb_is_bounded_and_ends")),
    Item(17, "a job takes all memory, or fills /tmp, which is memory", "killed, alone",
         elsewhere=("netns/test_cgroups.py::test_who_takes_too_much_memory_is_killed_and_others_are_not",)),
    Item(18, "a job fills the disk with output or files", "ends with a sentence, records are whole",
         elsewhere=("netns/test_disk_full.py::test_a_run_ends_with_a_sentence_and_whole_lines",)),
    Item(19, "a job ignores SIGTERM, closes its output, forks twice into new sessions", "all of it ends", cases=("job",)),
    Item(20, "a job prints what a terminal obeys", "shown as text but for colours, kept as it was", cases=("job",)),
    Item(21, "a job marks without end", "left out, and the job ends",
         elsewhere=("netns/test_hostile.py::test_a_job_that_marks_without_end_is_still_ended",)),
    Item(22, "a job sends marks that are none, endless or huge", "left out", ("marks",)),
    Item(23, "two hundred strangers on the control network, from inside a node", "turned away, the run goes on",
         ("strangers",)),
    Item(24, "strangers on the data network", "dropped and counted",
         elsewhere=("unit/test_endpoint_strangers.py::test_a_flood_is_bounded_and_peers_get_in",
                    "netns/test_greetings.py::test_nobody_takes_a_peers_place_on_the_data_network")),
    Item(25, "modules planted in the working folder", "nothing of ours imports them",
         elsewhere=("netns/test_hostile.py::test_no_module_is_taken_from_the_working_directory",)),
    Item(26, "the same with empty and relative entries in PYTHONPATH", "nothing of ours imports them",
         cases=("planted modules",)),
    Item(27, "a working folder whose name has a space, $, quotes, a line's end, ..", "a name like any other", cases=("job",)),
    Item(28, "a pipe, a device, 10 GB of nothing, a link to itself, a name too long, wherever a file is named",
         "a sentence, soon", cases=("validate fifo", "trace sparse", "messages sparse", "report long", "read long")),
    Item(29, "such things as --out", "a sentence", cases=("out fifo", "out loop", "out long", "init long")),
    Item(30, "YAML that expands, nests or counts without end, NaN, infinity", "refused with file and line",
         cases=("bomb", "deep", "huge", "nan", "many"),
         elsewhere=("unit/test_scenario_fuzz.py::test_a_hostile_scenario_is_accepted_or_refused_with_its_place",)),
    Item(31, "names in scenarios and of files that a terminal obeys", "shown as text",
         cases=("name of a file", "name of a node", "name of an algorithm", "name of a command", "name in a plan")),
    Item(32, "a trace of anything", "read, or refused with its line",
         elsewhere=("unit/test_traces_fuzz.py::test_mutated_traces", "unit/test_traces_fuzz.py::test_random_bytes")),
    Item(33, "labels, variables, seeds, counts that are none", "refused",
         cases=("label", "variable", "seed", "many seeds", "nproc")),
    Item(34, "records of somebody else that lack, swap or overstate everything", "refused in a sentence",
         cases=("report lacks", "report types", "report pipe", "report line", "comparison of nonsense", "timeline of nonsense",
                "controller of nonsense", "messages of nonsense", "resume of nonsense")),
    Item(35, "records with HTML, markup and escapes in names and verdicts", "text, on the page and in the table",
         cases=("report html", "report verdict")),
    Item(36, "links planted where a report writes", "replaced or refused, never followed",
         cases=("report linked", "report linked folder")),
    Item(37, "journals that name a folder, a namespace, a device, processes of others", "nothing is removed",
         cases=("clean",)),
    Item(38, "a folder of journals that others write to", "refused", cases=("clean of others",)),
    Item(39, "a link in the place of the lock that all users share", "a sentence", cases=("lock planted",)),
    Item(40, "somebody holds the lock for good", "said, and Ctrl-C ends it", cases=("lock held",)),
    Item(41, "a job opens a socket of virtual machines, which belongs to no network namespace", "there is none",
         ("socket of virtual machines",)),
    Item(42, "a job reads what passes on a link, or makes packets of its own", "refused", ("packet socket", "raw socket")),
    Item(43, "a job makes a network without links", "refused", ("new network",)),
    Item(44, "a job opens file systems, or copies of the host's mounts, or takes another root", "refused",
         ("file system opened", "tree of mounts opened", "root changed")),
    Item(45, "a job sets the clock or the host's name", "refused", ("clock set", "host renamed")),
    Item(46, "a job goes before all other processes", "refused", ("urgent",)),
    Item(47, "a job leaves its control group, and with it its limits", "refused", ("left its control group",)),
    Item(48, "a job types a command on the terminal of whoever started it", "it has none", ("typed on the terminal",)),
    Item(49, "a job writes nonsense into what process 1 of its node has open", "the run goes on", ("spoke into process 1",)),
    Item(50, "a job links the host's files into its folder", "refused", ("linked to /etc/passwd",)),
    Item(51, "a folder that --read names, or a link to it, is replaced once it was checked", "the run ends",
         elsewhere=("netns/test_isolation.py::test_a_link_to_read_that_leads_elsewhere_later_is_not_shown",
                    "docker/test_swapped_folders.py::test_another_folder_is_refused_before_a_command_is_in_it")),
    Item(52, "the testbed is stopped, and its nodes wait for it to read", "they end",
         elsewhere=("unit/test_session_control.py::test_a_node_ends_whose_session_does_not_read",)),
    Item(53, "settings of numba in the working folder", "not read",
         elsewhere=("unit/test_kernels_cache.py::test_settings_in_the_working_directory_are_not_numbas",)),
    Item(54, "the working folder is removed before the command starts", "a sentence",
         elsewhere=("unit/test_errors.py::test_a_working_directory_that_was_removed_is_named",)),
    Item(55, "variables that give no seconds, files that may not grow", "a sentence",
         elsewhere=("unit/test_errors.py::test_a_variable_that_gives_no_seconds_is_named",
                    "unit/test_errors.py::test_files_that_may_not_grow_are_named")),
    Item(56, "settings, programs and hooks planted in the working folder: matplotlib's, git's, Compose's", "not used",
         cases=("planted settings",)),
    Item(57, "times and factors that are no numbers, or make more than fits into memory", "refused",
         cases=("seconds", "many points", "many repeats", "no factor")),
    Item(58, "arguments without end, none, of no text", "a sentence", cases=("command empty", "command folder", "command bytes")),
    Item(59, "what is no file of its own: a folder, the kernel's memory, standard input, as a scenario", "refused",
         cases=("validate folder", "validate memory", "validate input")),
    Item(60, "YAML that makes objects, has two documents, half a character, or a key twice", "refused with its line",
         cases=("objects", "two documents", "half a character", "key twice")),
    Item(61, "whoever owns the folder moves comparisons/ while root's run lasts, and plants links in its place",
         "what is written goes into the folder that was made",
         elsewhere=("unit/test_sim_run.py::test_a_comparison_that_is_moved_meanwhile_gets_its_files",)),
    Item(62, "whoever owns the folder moves runs/ meanwhile", "records go into the folder that was made",
         elsewhere=("unit/test_record_directory.py::test_what_is_moved_gets_its_files_all_the_same",
                    "unit/test_sim_run.py::test_another_run_in_the_place_of_one_is_not_drawn")),
    Item(63, "runs/ or comparisons/ is another user's link before root starts", "refused",
         elsewhere=("unit/test_record_directory.py::test_root_follows_no_link_of_somebody_elses_to_its_records",)),
    Item(64, "links are planted among the files for Prometheus", "not followed, and not what Prometheus reads",
         elsewhere=("unit/test_observe_files.py::test_links_that_others_plant_are_not_followed",
                    "unit/test_observe_files.py::test_prometheus_has_our_settings_whatever_is_in_the_folder")),
    Item(65, "a folder in /tmp that a command names is, or becomes, a link", "not shown to root's nodes",
         elsewhere=("unit/test_privileges.py::test_roots_nodes_are_shown_nothing_in_tmp_that_a_link_leads_to",
                    "unit/test_privileges.py::test_of_a_folder_that_is_put_in_the_place_of_another_only_the_first_is_meant")),
    Item(66, "root's PATH or PYTHONPATH has folders of others", "no program is from there, and root's nodes are not shown them",
         elsewhere=("unit/test_privileges.py::test_roots_nodes_are_shown_no_folder_of_a_search_path_that_others_could_change",
                    "unit/test_surroundings.py::test_a_folder_of_programs_is_roots_with_all_above_it_and_what_a_link_led_to")),
    Item(67, "a model says events and bursts that make no sense, in its node's name", "its node is lost, in a sentence",
         elsewhere=("unit/test_control_fuzz.py::test_a_node_is_lost_that_says_what_no_node_of_ours_says",
                    "unit/test_control_fuzz.py::test_a_node_is_lost_that_says_nonsense_of_traffic")),
    Item(68, "a model says what has the right types, and no meaning", "no verdict, and a sentence",
         elsewhere=("unit/test_sim_run.py::test_records_that_no_verdict_can_be_made_of_end_in_a_sentence",)),
    Item(69, "a fork bomb of root's nodes where there are no control groups", "bounded",
         elsewhere=("netns/test_isolation.py::test_roots_nodes_without_control_groups_have_only_so_many_processes_together",)),
    Item(70, "exec is killed, with all or alone, as root and as a user", "`testbed clean` removes what is left",
         elsewhere=("netns/test_killed_anywhere.py::test_nothing_is_left_whenever_whoever_is_killed",)),
)  # fmt: skip

ESCAPES = "\x1b]0;hostile\x07"
IN_YAML = '"\\e]0;hostile\\a"'
GOOD = (
    "name: host\nnodes: {worker: {role: worker, count: 2}}\n"
    "links: {default: {up: {rate: 100 Mbit/s, queue: 50 ms}, down: {rate: 100 Mbit/s, queue: 50 ms}}}\n"
)
_LONG = "x" * 5000
_WALK = (
    *("trace", "make", "random-walk", "--low", "1 Mbit/s", "--high", "2 Mbit/s"),
    *("--deviation", "1 kbit/s", "--seed", "1"),
)
_REFUSED = [1, 2, 3]


def _refused(*arguments: str, words: str = "", **more: Any) -> Case:
    return {"arguments": list(arguments), "codes": _REFUSED, "words": words, **more}


def commands(home: Path, *, few_processors: bool) -> dict[str, Case]:
    """Commands by name, their files being made in ``home``, as somebody would who may write there."""
    folder = home / "files"
    folder.mkdir()
    os.mkfifo(folder / "fifo")
    (folder / "sparse").touch()
    os.truncate(folder / "sparse", 10 << 30)
    (folder / "loop").symlink_to("loop")
    files = _scenarios(folder)
    cases = (
        _file_cases(files) | _argument_cases() | _journal_cases(home) | _lock_cases(few_processors)
    )
    planted = home / "planted"
    planted.mkdir()
    for name in ("sitecustomize.py", "json.py", "torch.py"):
        sign = str(home / "outside/sign")
        (planted / name).write_text(f"open({sign!r}, 'a').close()\nraise SystemExit('planted')\n")
    (planted / "good.yaml").write_text(GOOD)
    cases["planted modules"] = {
        "arguments": ["exec", "good.yaml", "--", "/bin/true"], "codes": [0, 1], "folder": str(planted),
        "variables": {"PYTHONPATH": f":.:{Path(__file__).parents[2]}:"},
    }  # fmt: skip
    cases["planted settings"] = {
        "arguments": ["run", "sim.yaml", "--fabric", "sim"], "codes": [0], "folder": str(_settings(home)),
    }  # fmt: skip
    return {name: {"folder": str(folder), **case} for name, case in cases.items()}


def _settings(home: Path) -> Path:
    """A working folder with files that programs and libraries look for there."""
    folder = home / "settings"
    (folder / ".git").mkdir(parents=True)
    sign = home / "outside/sign"
    texts = {
        "matplotlibrc": "backend: module://planted\ntext.usetex: True\n",
        "planted.py": f"open({str(sign)!r}, 'a').close()\n",
        ".git/config": f"[core]\nrepositoryformatversion = 0\nfsmonitor = touch {sign};\n",
        ".git/HEAD": "ref: refs/heads/x\n",
        ".env": "COMPOSE_FILE=planted.yaml\n",
        "sim.yaml": GOOD.replace("nodes: {", "nodes: {server: {role: server}, ")
        + "train: {task: digits, model: mlp, pace: 100 ms, stop: {steps: 2}}\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


def _scenarios(folder: Path) -> dict[str, str]:
    """Scenarios by what is wrong with them."""
    bomb = "".join(
        f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    texts = {
        "bomb": f"a: &a [x]\n{bomb}",
        "deep": "a: " + "[" * 20_000,
        "huge": f"{GOOD}seeds: [{'9' * 5000}]\n",
        "nan": f"{GOOD}dilation: .nan\n",
        "many": GOOD.replace("count: 2", "count: 999999999999"),
        "name of a node": GOOD.replace("worker: {role", f"{IN_YAML}: {{role"),
        "name of an algorithm": f"{GOOD}algorithms: [{IN_YAML}]\n",
        "objects": f'!!python/object/apply:os.system ["true"]\n{GOOD}',
        "two documents": f"{GOOD}---\n{GOOD}",
        "half a character": f'{GOOD}description: "\\ud800"\n',
        "key twice": GOOD + GOOD,
        "name of a file": f"{GOOD}events: [{{kind: trace, links: [worker-0], file: {IN_YAML}}}]\n",
    }
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    (folder / "good.yaml").write_text(GOOD)
    (folder / "good.csv").write_text("time_s,rate_mbit_s\n0,1\n1,2\n")
    (folder / f"{ESCAPES}.yaml").write_text(f"{GOOD}description: {IN_YAML}\n")
    return {name: f"{name}.yaml" for name in texts}


def _file_cases(files: dict[str, str]) -> dict[str, Case]:
    whole = ("validate", "--exec")
    trains = {"name of an algorithm"}
    cases = {
        name: _refused("validate", *(() if name in trains else ("--exec",)), file)
        for name, file in files.items()
    }
    cases["name of no file"] = _refused(*whole, f"{ESCAPES}-none")
    cases["name in a plan"] = {"arguments": ["plan", "--exec", f"{ESCAPES}.yaml"], "codes": [0]}
    for kind, file in {
        "fifo": "fifo",
        "sparse": "sparse",
        "loop": "loop",
        "long": _LONG,
    }.items():
        cases[f"validate {kind}"] = _refused(*whole, file)
        if kind in ("fifo", "loop"):  # readers are tried with these by unit tests
            continue
        cases |= {
            f"trace {kind}": _refused("trace", "show", file),
            f"messages {kind}": _refused("messages", "show", file),
            f"report {kind}": _refused("report", file),
            f"variables {kind}": _refused("exec", "good.yaml", "--env-file", file, "--", "true"),
            f"resume {kind}": _refused("compare", "good.yaml", "--fabric", "sim", "--resume", file),
        }
    for kind, file in {
        "fifo": "fifo",
        "loop": "loop",
        "null": "/dev/null",
        "proc": "/proc",
        "long": _LONG,
    }.items():
        cases[f"out {kind}"] = _refused("exec", "good.yaml", "--out", file, "--", "true")
        cases[f"init {kind}"] = _refused("init", file)
    cases["read loop"] = _refused("exec", "good.yaml", "--read", "loop", "--", "true")
    cases["read long"] = _refused("exec", "good.yaml", "--read", _LONG, "--", "true")
    return cases


def _argument_cases() -> dict[str, Case]:
    good, end = ("exec", "good.yaml"), ("--", "true")
    return {
        "label": _refused(*good, "--name", "../x", *end),
        "label obeyed": _refused(*good, "--name", ESCAPES, *end),
        "variable": _refused(*good, "--env", "NAME", *end),
        "nproc": _refused(*good, "--nproc", "99999999999999999999", *end),
        "everything": _refused(*good, "--read", "/", *end),
        "name of a command": {"arguments": [*good, "--", ESCAPES], "codes": [1], "words": "status 127", "terminal": True},
        "seconds": _refused(*good, "--seconds", "nan", *end),
        "command empty": _refused(*good, "--", ""),
        "command folder": {"arguments": [*good, "--", "/etc"], "codes": [1], "words": "status 126"},
        "command bytes": {"arguments": [*good, "--", "\udcff"], "codes": [1], "words": "status 127"},
        "validate folder": _refused("validate", "--exec", "."),
        "validate memory": _refused("validate", "--exec", "/proc/self/mem"),
        "validate input": _refused("validate", "--exec", "/dev/stdin"),
        "many points": _refused(*_WALK, "--seconds", "1000000000", "--every", "1 us", "--out", "x.csv"),
        "many repeats": _refused("trace", "convert", "good.csv", "--to", "csv", "--repeat", "999999999", "--out", "x.csv"),
        "no factor": _refused("trace", "convert", "good.csv", "--to", "csv", "--stretch", "nan", "--out", "x.csv"),
        "seed": _refused("run", "good.yaml", "--fabric", "sim", "--seed", "9" * 5000),
        "many seeds": _refused("run", "good.yaml", "--fabric", "sim", "--seed", "1-999999999999"),
        "fabric": _refused("run", "good.yaml", "--fabric", ESCAPES),
    }  # fmt: skip


def _journal_cases(home: Path) -> dict[str, Case]:
    """Journals of a dead process that name what no run has made."""
    precious = home / "precious"
    lines: list[Case] = [
        {"run": "hostile", "pid": 1, "start": "another boot/1", "began": 0},
        {"kind": "folder", "path": str(precious)},
        {"kind": "folder", "path": str(precious / "narrows-x/..")},
        {"kind": "namespace", "name": "others"},
        {"kind": "namespace", "name": f"../..{precious}/file"},
        {"kind": "link", "name": "others0", "alias": None, "netns": None},
        {"kind": "cgroup", "path": str(precious / "narrows-x/..")},
        {"kind": "process", "pid": 1, "start": "1"},
        {"kind": "process", "pid": -1, "start": "1"},
    ]
    for name in ("state", "shared"):
        (home / name).mkdir(mode=0o700)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (home / name / f"{ESCAPES}.journal").write_text(text)
    os.mkfifo(home / "state/pipe.journal")
    (home / "shared").chmod(0o777)
    return {
        "clean": {"arguments": ["clean"], "codes": [0], "variables": {"NARROWS_STATE": str(home / "state")}},
        "clean of others": _refused(
            "clean", "--all", words="others can write", variables={"NARROWS_STATE": str(home / "shared")}
        ),
    }  # fmt: skip


def _lock_cases(few_processors: bool) -> dict[str, Case]:
    """The lock of the machine; with many processors nobody asks for it."""
    path, job = "/run/lock/narrows.lock", ("exec", "good.yaml", "--", "true")
    if not few_processors:
        done = {"arguments": list(job), "codes": [0, 1]}
        return {"lock held": done, "lock planted": done}
    return {
        "lock held": _refused(*job, words="interrupted by SIGINT", lock=path, interrupt="waiting for process"),
        "lock planted": _refused(*job, words="wait for each other", plant=[path, "/root/.bashrc"]),
    }  # fmt: skip


HTML = '[link=http://x]"><script>alert(1)</script>' + ESCAPES


def records(home: Path, run: Path, outside: Path) -> dict[str, Case]:
    """Commands by name over records that ``spoil`` makes, in ``records/<name>/runs/<run>``."""
    folder = home / "records"

    def over(verb: str, name: str, *more: str, whole: bool = False) -> list[str]:
        path = folder / name if whole else folder / name / "runs" / run.name
        return [verb, str(path), *more]

    drawn = ("report", "--out", str(folder / "drawn"))
    cases = {
        name: _refused(*over("report", name, *drawn[1:]))
        for name in (
            "report lacks",
            "report types",
            "report pipe",
            "report line",
            "report deep",
            "report verdict",
        )
    }
    cases |= {
        "report html": {"arguments": over("report", "report html", "--out", str(folder / "page")), "codes": [0]},
        "report linked": {"arguments": over("report", "report linked", "--out", str(folder / "report linked/out")), "codes": [0]},
        "report linked folder": _refused(
            *over("report", "report linked folder", "--out", str(folder / "report linked folder/out")), words="symbolic link"
        ),
        "comparison of nonsense": _refused(*over("report", "comparison of nonsense", *drawn[1:], whole=True)),
        "timeline of nonsense": _refused(*over("timeline", "timeline of nonsense")),
        "controller of nonsense": _refused(*over("replay-controller", "controller of nonsense")),
        "messages of nonsense": _refused("messages", "record", over("", "messages of nonsense")[1], "--out", "x.jsonl"),
        "resume of nonsense": _refused(
            "compare", "good.yaml", "--fabric", "sim", "--resume", str(folder / "resume of nonsense")
        ),
    }  # fmt: skip
    del outside
    return {name: {"folder": str(home / "files"), **case} for name, case in cases.items()}


def spoil(where: Path, run: Path, name: str, outside: Path) -> None:
    """Copy a run's records to ``where``, and do to them what ``name`` says."""
    copy = where / "runs" / run.name
    shutil.copytree(run, copy)
    _SPOILS.get(name, _nonsense)(where, copy, outside)


def _change(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    known = json.loads(file.read_text())
    change(known)
    file.write_text(json.dumps(known))


def _lacks(where: Path, run: Path, outside: Path) -> None:
    del where, outside
    for key in ("machine", "fabric", "congestion"):
        _change(run / "manifest.json", lambda known, key=key: known.pop(key))
    _change(run / "summary.json", lambda known: known.pop("verdict"))


def _types(where: Path, run: Path, outside: Path) -> None:
    del where, outside
    wrong = {"nodes": [[1]], "dilation": "NaN", "algorithm": "x", "seed": {"a": 1}}
    _change(run / "manifest.json", lambda known: known.update(wrong))


def _pipe(where: Path, run: Path, outside: Path) -> None:
    del where, outside
    for name in ("manifest.json", "links.jsonl"):
        (run / name).unlink()
        os.mkfifo(run / name)


def _line(where: Path, run: Path, outside: Path) -> None:
    """A line that has no end."""
    del where, outside
    (run / "links.jsonl").write_bytes(b"")
    os.truncate(run / "links.jsonl", 10 << 30)


def _deep(where: Path, run: Path, outside: Path) -> None:
    del where, outside
    (run / "summary.json").write_text("[" * 100_000)


def _html(where: Path, run: Path, outside: Path) -> None:
    del where, outside
    _change(
        run / "manifest.json", lambda known: known["algorithm"].update(name=HTML, command=[HTML])
    )
    _change(
        run / "manifest.json",
        lambda known: known.update(scenario=HTML, fabric=HTML, tcp_timers=HTML),
    )
    _change(
        run / "summary.json",
        lambda known: known.update(reasons=[HTML], algorithm=HTML),
    )


def _verdict(where: Path, run: Path, outside: Path) -> None:
    del where, outside
    _change(run / "summary.json", lambda known: known.update(verdict=HTML))


def _linked(where: Path, run: Path, outside: Path) -> None:
    del run
    figures = where / "out/figures"
    figures.mkdir(parents=True)
    victim = outside / "manifest.json"
    for name in ("fidelity", "job_bytes", "job_steps", "job_values"):
        for suffix in ("png", "pdf", "csv"):
            (figures / f"{name}.{suffix}").symlink_to(victim)
    for name in ("report.html", "table.csv"):
        (where / "out" / name).symlink_to(victim)


def _linked_folder(where: Path, run: Path, outside: Path) -> None:
    del run
    (where / "out").mkdir()
    (where / "out/figures").symlink_to(outside)


def _nonsense(where: Path, run: Path, outside: Path) -> None:
    """A comparison and events of the wrong kinds, one of them of a step that never ended."""
    entries = [{"dir": ["x"]}, {"dir": "../../../../etc"}, 5, {"dir": str(outside)}]
    said = {"hash": 5, "fabric": [], "algorithms": 7, "seeds": "x", "order": [[1]], "runs": entries}
    (where / "comparison.json").write_text(json.dumps(said))
    events = run / "events"
    events.mkdir(exist_ok=True)
    lines = [
        {"kind": "step", "step": "x", "node": ESCAPES},
        {"kind": "step", "node": ESCAPES},
        {"kind": []},
    ]
    (events / "worker-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _change(
        run / "manifest.json", lambda known: known.update(algorithm={"name": "none", "selector": 5})
    )


_SPOILS: dict[str, Callable[[Path, Path, Path], None]] = {
    "report lacks": _lacks,
    "report types": _types,
    "report pipe": _pipe,
    "report line": _line,
    "report deep": _deep,
    "report html": _html,
    "report verdict": _verdict,
    "report linked": _linked,
    "report linked folder": _linked_folder,
}
