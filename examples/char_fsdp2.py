"""``char_ddp.py`` with its parameters, gradients and optimizer shared out over the nodes: FSDP2 on processors.

    torchrun --standalone --nproc-per-node 4 examples/char_fsdp2.py

Every layer's parameters are gathered for the forward pass and again for the backward pass, and its gradients are
reduced to whom they belong.
"""

import argparse

import torch
import torch.distributed as dist
from char_ddp import RATE, CharTransformer, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from testbed import mark


def sharded(model: CharTransformer) -> CharTransformer:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    dist.init_process_group("gloo")
    model = sharded(CharTransformer())
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    optimizer.register_step_post_hook(lambda *_: mark.step())
    train(model, optimizer, given.steps, given.seed)
    dist.destroy_process_group()
