"""Images that users bring: looked for, and pulled only where that is wanted."""

from __future__ import annotations

from collections.abc import Iterable

from testbed.errors import MachineError
from testbed.setup import engine
from testbed.setup.command import CommandFailed, answer, run, step


def require(images: Iterable[str], *, pull: bool = False) -> None:
    """Have the engine hold ``images``; those that it lacks are pulled if ``pull``. Raises MachineError."""
    engine.require()
    for image in dict.fromkeys(images):
        if answer(["docker", "image", "inspect", "--format", "{{.Id}}", "--", image]) is not None:
            continue
        if not pull:
            raise MachineError(
                f"the image {image} is not on this machine, and none is fetched unasked",
                fix=f"Run `docker pull {image}`, or give --pull",
            )
        with step(f"pulling {image}"):
            _pull(image)


def _pull(image: str) -> None:
    try:
        run(["docker", "pull", "--quiet", "--", image])
    except CommandFailed as error:
        raise MachineError(
            f"{image} could not be pulled: {error.output.strip()}",
            fix="Build it, or load it with `docker load`",
        ) from None
