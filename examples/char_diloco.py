"""``char_ddp.py`` by DiLoCo: every node trains alone for H steps, then all take one common step.

    torchrun --standalone --nproc-per-node 4 examples/char_diloco.py --every 20

The common step is SGD with Nesterov momentum on the pseudo-gradient: the mean over nodes of where they began minus
where they came to (Douillard et al., 2023, algorithm 1). Their AdamW keeps its state throughout.
"""

import argparse
from typing import Any

import torch
import torch.distributed as dist
from char_ddp import RATE, CharTransformer, train
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from testbed import mark

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9


class DiLoCo:
    """What follows the inner optimizer's steps. ``every``: H."""

    def __init__(self, model: nn.Module, every: int) -> None:
        self.model, self.every, self.step = model, every, 0
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        self.common = nn.Parameter(parameters_to_vector(model.parameters()).detach().clone())
        self.outer = torch.optim.SGD([self.common], OUTER_RATE, OUTER_MOMENTUM, nesterov=True)

    def after_step(self, *_: Any) -> None:
        mark.step()
        self.step += 1
        if self.step % self.every == 0:
            self.exchange()

    @torch.no_grad()
    def exchange(self) -> None:
        self.common.grad = self.common - parameters_to_vector(self.model.parameters())
        dist.all_reduce(self.common.grad)
        self.common.grad /= dist.get_world_size()
        self.outer.step()
        vector_to_parameters(self.common.clone(), self.model.parameters())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=20, help="inner steps to an outer one")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    dist.init_process_group("gloo")
    model = CharTransformer()
    adamw = torch.optim.AdamW(model.parameters(), RATE)
    adamw.register_step_post_hook(DiLoCo(model, given.every).after_step)
    train(model, adamw, given.steps, given.seed)
    dist.destroy_process_group()
