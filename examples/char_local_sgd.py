"""``char_ddp.py`` without gradients on the network: every node trains alone, and parameters are averaged now and then.

    torchrun --standalone --nproc-per-node 4 examples/char_local_sgd.py --every 10

Local SGD after Stich (2019) and Lin et al. (2020), by PyTorch's own averager and optimizer.
"""

import argparse

import torch
import torch.distributed as dist
from char_ddp import RATE, CharTransformer, train
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer

from testbed import mark

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=10, help="steps from one average to the next")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    dist.init_process_group("gloo")
    model = CharTransformer()
    adamw = torch.optim.AdamW(model.parameters(), RATE)
    optimizer = PostLocalSGDOptimizer(adamw, PeriodicModelAverager(period=given.every))
    adamw.register_step_post_hook(lambda *_: mark.step())
    train(model, optimizer, given.steps, given.seed)
    dist.destroy_process_group()
