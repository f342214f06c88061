"""A small transformer learns to write Python, by characters of the standard library's sources."""

import argparse
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

CONTEXT, BATCH, RATE = 16, 1, 0.002


class CharTransformer(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(128, width), nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", 1e-5, True, True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), False)
        self.head = nn.Linear(width, 128)

    def forward(self, text: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        return self.head(self.layers(self.embed(text) + self.place.weight, mask, is_causal=True))


def loss_of(model: nn.Module, pieces: Tensor, batch: int, drawn: torch.Generator) -> Tensor:
    text = pieces[torch.randint(len(pieces), (batch,), generator=drawn)]
    return nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int) -> None:
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = torch.tensor(bytearray(b"".join(map(Path.read_bytes, sources)))).long() % 128
    seen, unseen = text.unfold(0, CONTEXT + 1, 1).tensor_split([len(text) * 9 // 10])
    drawn = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps, cycle_momentum=False)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = loss_of(model, seen, BATCH, drawn)
        loss.backward()
        optimizer.step()
        schedule.step()
        if dist.get_rank() == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    with torch.no_grad():
        final = loss_of(model, unseen, 512, torch.Generator().manual_seed(0)).item()
        print(f"rank {dist.get_rank()}: loss {final:.4f} on unseen text after {steps} steps")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    dist.init_process_group("gloo")
    ddp = nn.parallel.DistributedDataParallel(CharTransformer())
    train(ddp, torch.optim.AdamW(ddp.parameters(), RATE), given.steps, given.seed)
    dist.destroy_process_group()
