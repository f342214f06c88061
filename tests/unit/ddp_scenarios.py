"""What each rank does in the tests of the hook. All return plain things that cross a pipe."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import count
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from ddp_models import batch, made
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from testbed.algorithm import Algorithm
from testbed.compress.base import Recipe
from testbed.scenario.model import Optimizer
from testbed.training.data import Batches
from testbed.training.ddp.gather import GatherChannel, GatherKind
from testbed.training.ddp.hook import CompressionState, compressed_hook
from testbed.training.models.base import build
from testbed.training.replica import FlatModel, Sgd, configure_torch, parameter_hash
from testbed.training.tasks.datasets import Digits

CPU = torch.device("cpu")


def digits(algorithm: str, steps: int, batch_size: int, seed: int) -> dict[str, Any]:
    """What the testbed's workers do on the task digits, by DistributedDataParallel."""
    configure_torch("cpu", threads=1)
    flat = FlatModel(build("mlp", "digits", 1.0, seed), CPU)
    model, _ = hooked(flat.module, algorithm)
    x, y = Digits().train_set()
    batches = Batches(len(y), batch_size, dist.get_world_size(), seed)
    sgd = Sgd(Optimizer(lr=0.1, momentum=0.9), flat.parameters)
    losses = []
    for step in range(1, steps + 1):
        chosen = batches.indices(step, dist.get_rank())
        flat.gradients.zero_()
        loss = cross_entropy(model(x[chosen]), y[chosen])
        loss.backward()
        losses.append(float(loss.detach()))
        sgd.apply(flat.gradients.clone(), batches.epoch(step))
    return {"parameters": parameter_hash(flat.parameters), "losses": losses}


@dataclass
class Training:
    """A model in training, and what it was given to send."""

    algorithm: str | Algorithm | Recipe
    model: str = "wide"
    device: str = "cpu"
    ddp: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    right: Callable[[int, int], bool] | None = None

    def __post_init__(self) -> None:
        self.module = made(self.model, self.device)
        self.twin = made(self.model, self.device)
        first, *rest = self.module.parameters()
        groups = [{"params": [first], "lr": 0.02}, {"params": rest}]
        self.optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.5)
        self.ours, self.mean = _zeros(self.module), _zeros(self.module)
        self.buckets: list[list[list[str]]] = []
        self.wrap()

    def wrap(self) -> None:
        """In a new DistributedDataParallel."""
        self.wrapped, self.hook = hooked(self.module, self.algorithm, self.ddp, **self.state)

    def reload(self) -> None:
        """Go on from a checkpoint, as another process would."""
        saved = _through_a_file(self.hook.state_dict())
        self.wrap()
        self.hook.load_state_dict(saved)

    def step(self, step: int, micro: int = 1) -> None:
        """One, of ``micro`` mini-batches, all but the last without exchange."""
        rank = dist.get_rank()
        self.twin.load_state_dict(self.module.state_dict())
        self.twin.zero_grad()
        self.optimizer.zero_grad()
        for part in range(micro):
            x, y = batch(10 * step + part, rank, self.device)
            chosen = () if self.right is None else (self.right(step, rank),)
            cross_entropy(self.twin(x, *chosen), y).backward()
            with nullcontext() if part == micro - 1 else self.wrapped.no_sync():
                cross_entropy(self.wrapped(x, *chosen), y).backward()
        _add(self.ours, self.twin)
        _add(self.mean, self.module)
        self.buckets.append(self.hook.buckets)
        self.optimizer.step()

    def outcome(self) -> dict[str, Any]:
        """What it came to."""
        kept = self.hook.state_dict()["memory"]
        return {
            "ours": _plain(self.ours),
            "mean": _plain(self.mean),
            "residual": _plain(kept),
            "buckets": self.buckets,
            "parameters": fingerprint(self.module),
        }


def train(
    algorithm: str | Recipe,
    steps: int,
    reload_at: int | None = None,
    micro: int = 1,
    **options: Any,
) -> dict[str, Any]:
    """Some steps."""
    training = Training(algorithm, **options)
    for step in range(1, steps + 1):
        if step == reload_at:
            training.reload()
        training.step(step, micro)
    return training.outcome()


def densities(algorithm: str, shares: list[float], steps: int) -> dict[str, Any]:
    """Every rank with a density of its own."""
    return train(algorithm, steps, state={"density": shares[dist.get_rank()]})


def adapted(algorithm: str) -> list[float]:
    """Densities of a controller that gets the same on every rank."""
    state = CompressionState(nn.Linear(4, 4).named_parameters(), algorithm, seed=1)
    random, densities = Random(5), []
    for _ in range(80):
        state.observe(accuracy=random.random(), delay_s=random.random())
        densities.append(state.controller.density())
    return densities


def in_a_group(algorithm: str) -> dict[str, Any]:
    """In a process group other than the one that everything has."""
    group = dist.new_group()
    outcome = train(algorithm, 3, ddp={"process_group": group})
    dist.destroy_process_group(group)
    return outcome


def both_then_one_then_none(algorithm: str, **ddp: Any) -> dict[str, Any]:
    """The right branch is used by both ranks, by one of them, by none, and again."""
    used = {
        1: (True, True),
        2: (False, True),
        3: (False, False),
        4: (True, False),
        0: (False, False),
    }
    ddp = {"find_unused_parameters": True, **ddp}
    right = lambda step, rank: used[step % 5][rank]  # noqa: E731
    return train(algorithm, 10, model="branching", ddp=ddp, right=right)


def beside_plain(dtype: torch.dtype, device: str = "cpu") -> list[float]:
    """The greatest differences from what plain DistributedDataParallel does, step by step."""
    plain = DistributedDataParallel(made("wide", device, dtype))
    ours, _ = hooked(made("wide", device, dtype), "none")
    differences = []
    for step in range(4):
        x, y = batch(step, dist.get_rank(), device, dtype)
        for model in (plain, ours):
            model.zero_grad()
            cross_entropy(model(x), y).backward()
        pairs = zip(plain.parameters(), ours.parameters(), strict=True)
        differences.append(max(float((p.grad - q.grad).abs().max()) for p, q in pairs))
    return differences


def half_precision(algorithm: str, name: str, dtype: torch.dtype | None) -> dict[str, Any]:
    """Three steps of a model that is in bfloat16, or has a part that is."""
    module = made(name, dtype=dtype)
    model, state = hooked(module, algorithm)
    for step in range(3):
        x, y = batch(step, dist.get_rank())
        cross_entropy(model(x.to(dtype)), y).backward()
    kept = state.state_dict()["memory"]
    return {
        "gradients": fingerprint_of([p.grad for p in module.parameters() if p.grad is not None]),
        "kinds": sorted({str(held.dtype) for held in kept.values()}),
        "buckets": len(state.buckets),
    }


def channel(lengths: list[list[int]]) -> list[int]:
    """Bodies of those lengths by step and rank; the bytes that the rank's messages took."""
    group = dist.group.WORLD
    assert group is not None
    rank, taken = dist.get_rank(), []
    ours = GatherChannel(group, CPU, mark=7, most=10_000)
    for step, row in enumerate(lengths):
        body = _body(step, rank, row[rank])
        cut = len(body) // 3
        ours.send(GatherKind.PAYLOAD, step, [body[:cut], b"", body[cut:]])
        received = [bytes(body) for _, body in ours.receive()]
        assert received == [_body(step, other, length) for other, length in enumerate(row)]
        taken.append(ours.message_bytes)
    return taken


def counted(algorithm: str, steps: int) -> list[dict[str, Any]]:
    """The reports of some steps and of all."""
    training = Training(algorithm)
    found = []
    for step in range(1, steps + 1):
        training.step(step)
        report = training.hook.report()
        found.append({**asdict(report), "density": report.density})
    return [*found, asdict(training.hook.totals())]


def controlled() -> dict[str, Any]:
    """A controller on each rank that sees delays of its own."""
    row = Algorithm("ada", "topk", "feedback", "adatopk", {"window": 2})
    ticks = count(step=1 + dist.get_rank())
    training = Training(row, state={"clock": lambda: float(next(ticks) ** 1.5)})
    sent = []
    for step in range(1, 13):
        training.step(step)
        sent.append(training.hook.report().density)
        training.hook.observe(accuracy=0.5 + 0.01 * (step % 4))
    return {"densities": sent, "parameters": fingerprint(training.module)}


def uneven(batches: list[int]) -> str:
    """Ranks with different numbers of batches, under ``join``."""
    module = made("wide")
    model, _ = hooked(module, "topk-0.1")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    with model.join():
        for step in range(batches[dist.get_rank()]):
            x, y = batch(step, dist.get_rank())
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    return fingerprint(module)


def hooked(
    module: nn.Module,
    algorithm: str | Algorithm | Recipe,
    ddp: dict[str, Any] | None = None,
    **state: Any,
) -> tuple[DistributedDataParallel, CompressionState]:
    """``module`` in DistributedDataParallel, with the hook."""
    model = DistributedDataParallel(module, **(ddp or {}))
    made_state = CompressionState.of(model, algorithm, seed=3, **state)
    model.register_comm_hook(made_state, compressed_hook)
    return model, made_state


def fingerprint(module: nn.Module) -> str:
    """Equal exactly when all parameters are."""
    return fingerprint_of(list(module.parameters()))


def fingerprint_of(tensors: list[Tensor]) -> str:
    return parameter_hash(torch.cat([t.detach().float().flatten() for t in tensors]))


def _zeros(module: nn.Module) -> dict[str, Tensor]:
    return {name: torch.zeros_like(p) for name, p in module.named_parameters()}


def _add(sums: dict[str, Tensor], module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            sums[name] += parameter.grad


def _plain(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: t.detach().cpu().numpy().copy() for name, t in tensors.items()}


def _through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """As it comes out of ``torch.save`` and a ``torch.load`` that trusts nobody, on the CPU."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
    return loaded


def _body(step: int, rank: int, length: int) -> bytes:
    return Random(f"{step}/{rank}").randbytes(length)
