"""Commands that somebody hostile or careless gives, and the files that they name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

Case = dict[str, Any]
"""A command as ``hostile_commands`` takes it, with the ``codes`` that it may end with and ``words`` that it must say."""

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


def refused(*arguments: str, words: str = "", **more: Any) -> Case:
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
    cases = _file_cases(files) | _argument_cases() | _journal_cases(home)
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
    settings = home / "settings"
    plant_settings(settings, home / "outside/sign")
    cases["planted settings"] = {
        "arguments": ["run", "sim.yaml", "--fabric", "sim", "--no-figures"], "codes": [0], "folder": str(settings),
    }  # fmt: skip
    cases |= _lock_cases(few_processors)  # last: the job has the lock first
    return {name: {"folder": str(folder), **case} for name, case in cases.items()}


def plant_settings(folder: Path, sign: Path) -> None:
    """Plant files that programs and libraries look for in a working folder; they make ``sign`` if they are used."""
    (folder / ".git").mkdir(parents=True)
    texts = {
        "matplotlibrc": "backend: module://planted\ntext.usetex: True\n",
        "planted.py": f"open({str(sign)!r}, 'a').close()\n",
        ".git/config": f"[core]\nrepositoryformatversion = 0\nfsmonitor = touch {sign};\n",
        ".git/HEAD": "ref: refs/heads/x\n",
        ".env": "COMPOSE_FILE=planted.yaml\n",
        "sim.yaml": GOOD.replace(
            "nodes: {worker: {role: worker, count: 2}",
            "nodes: {server: {role: server}, worker: {role: worker, count: 1}",
        )
        + "train: {task: digits, model: mlp, pace: 100 ms, stop: {steps: 2}}\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)


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
        name: refused("validate", *(() if name in trains else ("--exec",)), file)
        for name, file in files.items()
    }
    cases["name of no file"] = refused(*whole, f"{ESCAPES}-none")
    cases["name in a plan"] = {"arguments": ["plan", "--exec", f"{ESCAPES}.yaml"], "codes": [0]}
    for kind, file in {
        "fifo": "fifo",
        "sparse": "sparse",
        "loop": "loop",
        "long": _LONG,
    }.items():
        cases[f"validate {kind}"] = refused(*whole, file)
        if kind in ("fifo", "loop"):  # readers are tried with these by unit tests
            continue
        cases |= {
            f"trace {kind}": refused("trace", "show", file),
            f"messages {kind}": refused("messages", "show", file),
            f"report {kind}": refused("report", file),
            f"variables {kind}": refused("exec", "good.yaml", "--env-file", file, "--", "true"),
            f"resume {kind}": refused("compare", "good.yaml", "--fabric", "sim", "--resume", file),
        }
    for kind, file in {
        "fifo": "fifo",
        "loop": "loop",
        "null": "/dev/null",
        "proc": "/proc",
        "long": _LONG,
    }.items():
        cases[f"out {kind}"] = refused("exec", "good.yaml", "--out", file, "--", "true")
        cases[f"init {kind}"] = refused("init", file)
    cases["read loop"] = refused("exec", "good.yaml", "--read", "loop", "--", "true")
    cases["read long"] = refused("exec", "good.yaml", "--read", _LONG, "--", "true")
    return cases


def _argument_cases() -> dict[str, Case]:
    good, end = ("exec", "good.yaml"), ("--", "true")
    return {
        "label": refused(*good, "--name", "../x", *end),
        "label obeyed": refused(*good, "--name", ESCAPES, *end),
        "variable": refused(*good, "--env", "NAME", *end),
        "nproc": refused(*good, "--nproc", "99999999999999999999", *end),
        "everything": refused(*good, "--read", "/", *end),
        "name of a command": {"arguments": [*good, "--", ESCAPES], "codes": [1], "words": "status 127", "terminal": True},
        "seconds": refused(*good, "--seconds", "nan", *end),
        "command empty": refused(*good, "--", ""),
        "command folder": {"arguments": [*good, "--", "/etc"], "codes": [1], "words": "status 126"},
        "command bytes": {"arguments": [*good, "--", "\udcff"], "codes": [1], "words": "status 127"},
        "validate folder": refused("validate", "--exec", "."),
        "validate memory": refused("validate", "--exec", "/proc/self/mem"),
        "validate input": refused("validate", "--exec", "/dev/stdin"),
        "many points": refused(*_WALK, "--seconds", "1000000000", "--every", "1 us", "--out", "x.csv"),
        "many repeats": refused("trace", "convert", "good.csv", "--to", "csv", "--repeat", "999999999", "--out", "x.csv"),
        "no factor": refused("trace", "convert", "good.csv", "--to", "csv", "--stretch", "nan", "--out", "x.csv"),
        "seed": refused("run", "good.yaml", "--fabric", "sim", "--seed", "9" * 5000),
        "many seeds": refused("run", "good.yaml", "--fabric", "sim", "--seed", "1-999999999999"),
        "fabric": refused("run", "good.yaml", "--fabric", ESCAPES),
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
        "clean of others": refused(
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
        "lock held": refused(*job, words="interrupted by SIGINT", lock=path, interrupt="waiting for process"),
        "lock planted": refused(*job, words="wait for each other", plant=[path, "/root/.bashrc"]),
    }  # fmt: skip
