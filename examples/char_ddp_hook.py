"""``char_ddp.py`` with a communication hook: what gradients become on their way.

    torchrun --standalone --nproc-per-node 4 examples/char_ddp_hook.py laplace-0.01

`none` is the script without a hook; `bf16` and `powersgd` are PyTorch's own; all else is of ``testbed algorithms``.
"""

import argparse

import torch
import torch.distributed as dist
from char_ddp import RATE, CharTransformer, train
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from testbed import mark
from testbed.training.ddp.hook import CompressionState, compressed_hook


def bf16(group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    # DistributedDataParallel refuses PyTorch's hook by its name where there is no NCCL; gloo can do it.
    return default_hooks.bf16_compress_hook(group, bucket)


def register(model: DistributedDataParallel, hook: str, seed: int) -> None:
    if hook == "bf16":
        model.register_comm_hook(dist.group.WORLD, bf16)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=10, random_seed=seed)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook != "none":
        model.register_comm_hook(CompressionState.of(model, hook, seed=seed), compressed_hook)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hook")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    dist.init_process_group("gloo")
    one = (
        25 if given.hook == "powersgd" else None
    )  # it waits in callbacks: gloo runs out of threads
    ddp = DistributedDataParallel(CharTransformer(), bucket_cap_mb=one)
    register(ddp, given.hook, given.seed)
    optimizer = torch.optim.AdamW(ddp.parameters(), RATE)
    optimizer.register_step_post_hook(lambda *_: mark.step())
    train(ddp, optimizer, given.steps, given.seed)
    dist.destroy_process_group()
