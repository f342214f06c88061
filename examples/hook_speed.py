"""How much faster a step is with compressed gradients, and what that costs in loss.

    python examples/hook_speed.py --seeds 5 --out hook-speed

Steps are timed on four nodes at 100 Mbit/s, under three hooks one after the other with every seed. Losses of longer trainings
do not depend on links, which the first part's losses are held to: they are taken at 1 Gbit/s. What has ended is not
done again: start it anew to go on. Runs of other versions of the scripts or the scenario are not counted.
"""

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from char_ddp import CharTransformer
from hook_report import report, trained, trained_in

HERE = Path(__file__).parent
OURS = "laplace-0.01"
TIMED, LEARNT = ("none", "bf16", OURS), ("none", OURS)


def train(links: str, hook: str, seed: int, steps: int, given: argparse.Namespace) -> None:
    """By ``testbed exec``; a verdict is looked at in the report, a failure ends it all."""
    out = folder(links, given)
    if (hook, seed, steps) in known(out):
        return
    script = [sys.executable, str(HERE / "char_ddp_hook.py"), hook]
    testbed = [sys.executable, "-m", "testbed", "exec", str(HERE / f"{links}.yaml"), "--quiet"]
    options = ["--fabric", given.fabric, "--name", hook, "--out", str(out)]
    arguments = ["--steps", str(steps), "--seed", str(seed)]
    done = subprocess.run([*testbed, *options, "--", *script, *arguments], check=False)
    if (hook, seed, steps) not in known(out):
        sys.exit(done.returncode or 1)


def folder(links: str, given: argparse.Namespace) -> Path:
    """Of runs over these links, by what is run."""
    files = [HERE / name for name in (f"{links}.yaml", "char_ddp.py", "char_ddp_hook.py")]
    version = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]
    found: Path = given.out / f"{links}-{version}"
    return found


def known(runs: Path) -> set[tuple[str, int, int]]:
    return {(job.hook, job.seed, job.steps) for job in trained_in(runs)}


def tell(title: str, runs: Path, others: Sequence[str], steps: int) -> None:
    size_bytes = sum(4.0 * parameter.numel() for parameter in CharTransformer().parameters())
    lines = [f"\n{title}", *report(trained_in(runs), OURS, others, size_bytes, steps)]
    print("\n".join(lines), flush=True)


def draw(runs: Path, out: Path) -> None:
    """The figures of all timed runs against each other."""
    found = [str(path) for path in sorted((runs / "runs").glob("*")) if trained(path) is not None]
    command = [sys.executable, "-m", "testbed", "report", *found, "--out", str(out)]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--timed", type=int, default=100, help="steps at 100 Mbit/s")
    parser.add_argument("--learnt", type=int, default=2000, help="steps at 1 Gbit/s")
    parser.add_argument("--fabric", default="netns")
    parser.add_argument("--out", type=Path, default=Path("hook-speed"))
    given = parser.parse_args()
    for seed in range(1, given.seeds + 1):
        for hook in TIMED:
            train("four", hook, seed, given.timed, given)
    for seed in range(1, given.seeds + 1):
        for hook in LEARNT:
            train("four_fast", hook, seed, given.learnt, given)
    train("four_fast", OURS, 1, given.timed, given)
    tell("100 Mbit/s", folder("four", given), TIMED, given.timed)
    tell("1 Gbit/s", folder("four_fast", given), LEARNT, given.learnt)
    draw(folder("four", given), given.out)
