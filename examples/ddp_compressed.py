"""Handwritten digits, learned by several processes that compress their gradients.

torchrun --standalone --nproc-per-node 2 examples/ddp_compressed.py laplace-0.01
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from testbed.training.ddp.hook import CompressionState, compressed_hook
from testbed.training.tasks.datasets import Digits

STEPS, BATCH = 300, 32


def main(algorithm: str = "laplace-0.01") -> None:
    """Train, and say how well it went and what it sent."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    model = DistributedDataParallel(module)
    state = CompressionState.of(model, algorithm, seed=1)
    model.register_comm_hook(state, compressed_hook)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    x, y = Digits().train_set()
    drawn = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        chosen = torch.randint(len(y), (BATCH,), generator=drawn)
        optimizer.zero_grad()
        cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()

    x, y = Digits().test_set()
    accuracy = float((module(x).argmax(1) == y).float().mean())
    sent = state.totals()
    if dist.get_rank() == 0:
        share = sent.bytes_sent / sent.dense_bytes
        print(
            f"{algorithm}: accuracy {accuracy:.3f} after {STEPS} steps; "
            f"{sent.bytes_sent / 1e6:.2f} MB sent, {share:.1%} of "
            f"{sent.dense_bytes / 1e6:.2f} MB by float32 all-reduce"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
