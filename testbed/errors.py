"""Every error that a user can meet, with the exit code it leads to.

NarrowsError
├─ InputError        2   the scenario, a trace or a flag is wrong: where, what was given, what works
├─ MachineError      3   this machine cannot: what is missing and how to get it
├─ Interrupted       1   the user, or the system, asked for the end of a run
└─ ExperimentError   1   the experiment was started and failed
   ├─ NodeLost           a node died or fell silent: which, at which step
   ├─ LinkError          a link is not what was asked for: asked against held
   ├─ WireError          bytes that are not a frame or a payload of ours
   └─ GradientError      a gradient that cannot be sent (NaN, infinity): which parameter
"""

from __future__ import annotations

import errno
import re
import sys
import traceback
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from reprlib import Repr

_COLOURS = r"\x1b\[[0-9;:]*m"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_BUT_COLOURS = re.compile(f"({_COLOURS})|{_CONTROL.pattern}")


def printable(text: str, *, colours: bool = False) -> str:
    """``text`` without characters that a terminal obeys or that reorder a line: each as Python
    escapes it.

    Names and words of others are data. ``colours``: sequences that only choose a colour or a face
    stay.
    """
    if not colours:
        return _CONTROL.sub(_escaped, text)
    return _BUT_COLOURS.sub(lambda match: match[1] or _escaped(match), text)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


_BRIEF = Repr()
_BRIEF.maxstring = _BRIEF.maxlong = _BRIEF.maxother = 60


def brief(given: object) -> str:
    """How a message quotes what was given, whatever its length or depth."""
    try:
        return _BRIEF.repr(given)
    except ValueError:  # Python writes no whole number of more than 4300 digits
        return "a number of thousands of digits"


class NarrowsError(Exception):
    """Base of all errors that are reported as a sentence instead of a traceback."""

    exit_code = 1

    def __str__(self) -> str:
        return printable(super().__str__())


class InputError(NarrowsError):
    """The input is wrong. ``where`` is ``file:line`` or a flag; ``hint`` says what would work."""

    exit_code = 2

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.message, self.where, self.hint = message, where, hint
        super().__init__(_sentence(message, where, hint))


class MachineError(NarrowsError):
    """This machine cannot do what was asked; ``fix`` is what to do about it."""

    exit_code = 3

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        self.message, self.fix = message, fix
        super().__init__(_sentence(message, None, fix))


class ExperimentError(NarrowsError):
    """The experiment was started and failed."""

    exit_code = 1


class NodeLost(ExperimentError):
    """A node died, or was not heard of in time. ``hearsay``: another node says so.

    ``phase``: what whoever noticed it was doing (``sending``, ``gathering``, ``receiving``, …), if
    that is known.
    """

    def __init__(
        self,
        node: str,
        step: int | None,
        reason: str,
        *,
        phase: str | None = None,
        hearsay: bool = False,
    ) -> None:
        self.node, self.step, self.reason = node, step, reason
        self.phase, self.hearsay = phase, hearsay
        at = "before its first step" if step is None else f"at step {step}"
        while_ = f", while {phase}" if phase else ""
        super().__init__(f"node {node!r} was lost {at}{while_}: {reason}")

    def during(self, step: int, phase: str) -> NodeLost:
        """The same, with step and phase where it does not know them."""
        return NodeLost(
            self.node,
            (step or None) if self.step is None else self.step,
            self.reason,
            phase=self.phase or phase,
            hearsay=self.hearsay,
        )


class LinkError(ExperimentError):
    """A link could not be shaped as asked."""

    def __init__(self, link: str, direction: str, *, requested: str, actual: str) -> None:
        self.link, self.direction, self.requested, self.actual = link, direction, requested, actual
        super().__init__(
            f"link {link!r} {direction}: asked for {requested}, the kernel holds {actual}"
        )


class Interrupted(NarrowsError):
    """A command was asked to end before its time; ``records``: those of a run."""

    def __init__(self, signal_name: str, *, records: bool = True) -> None:
        self.signal_name = signal_name
        kept = "; the records of what was finished are kept" if records else ""
        super().__init__(f"interrupted by {signal_name}{kept}")


class WireError(ExperimentError):
    """Bytes that are not a frame or payload of ours."""


class GradientError(ExperimentError):
    """A gradient that must not be sent."""


def shortage(error: BaseException) -> MachineError | None:
    """Return what the system has no more of, if that is what ``error`` says."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    elif isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        number = errno.EAGAIN
    elif number == errno.EAGAIN and not _is_of_a_fork(error):
        return None  # of a socket or a lock that would have to be waited for
    if number not in _LIMITS:
        return None
    what, limit = _LIMITS[number]
    return MachineError(f"the system gives this user no more {what}", fix=f"Raise {limit}")


def _is_of_a_fork(error: BaseException) -> bool:
    """Return whether the function that raised an error starts a process: it calls something of
    that name."""
    names = [frame.f_code.co_names for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(names) and any("fork" in name for name in names[-1])


def _sentence(message: str, where: str | None, hint: str | None) -> str:
    text = f"{where}: {message}" if where else message
    return f"{text}. {hint}" if hint else text


_NO_THREAD = "can't start new thread"
"""All that Python says of a thread that the system refused."""
_LIMITS = {
    errno.EAGAIN: ("processes or threads", "`ulimit -u`, or the processes of its control group"),
    errno.ENOMEM: ("memory", "`ulimit -v`, or the memory of its control group or the machine"),
    errno.EMFILE: ("open files", "`ulimit -n`"),
    errno.ENFILE: ("open files", "`sysctl fs.file-max`"),
}
"""Error numbers of what a system can have too little of: what that is, and where its limit is."""


EXTRAS = {
    "mnist1d": "sim",
    "numba": "sim",
    "sklearn": "sim",
    "torch": "sim",
    "docker": "docker",
    "requests": "docker",
    "adjustText": "report",
    "jinja2": "report",
    "matplotlib": "report",
    "polars": "frame",
    "mlflow": "export",
    "tensorboard": "export",
    "wandb": "export",
}
"""Libraries that not every installation has, by the name that is imported, and the extra of
pyproject.toml with each."""


EXPORTS = {"frame", "export"}
"""The extras that `make setup` and the extra ``all`` leave out: only exports need them."""
IN_CHECKOUT = Path(str(files("testbed"))).resolve().with_name("pyproject.toml").is_file()
"""True where the package is used from a checkout of the project, not installed from a wheel."""


def install_command(extras: Iterable[str], *, checkout: bool = IN_CHECKOUT) -> str:
    """Return the command that brings the libraries of these extras; with none, the package's."""
    names = set(extras)
    listed = f"[{','.join(sorted(names))}]" if names else ""
    if not checkout:
        return f"pip install 'narrows{listed}'" if names else "pip install narrows"
    return f".venv/bin/pip install -e '.{listed}'" if names & EXPORTS else "make setup"


def missing(error: ModuleNotFoundError) -> int:
    """Say which library is not installed; return the exit code. Modules of ours raise again."""
    name = str(error.name).partition(".")[0]
    if name in ("testbed", "analysis"):
        raise error
    command = install_command([EXTRAS[name]] if name in EXTRAS else [])
    sys.stderr.write(f"testbed: the library {error.name!r} is not installed. Run `{command}`\n")
    return 3
