"""Federated averaging by Flower: rank 0 is its server, the others are clients with digits of their own.

    RANK=0 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 python examples/flower_round.py    # and ranks 1 and 2

Flower's messages are gRPC from the clients to the server's address. It is not a dependency: ``pip install narrows[flower]``.
"""

import argparse
import logging
import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import flwr
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from testbed import mark
from testbed.training.tasks.datasets import Digits

BATCH, WIDTH = 32, 512
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
Weights = list[np.ndarray]


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, 10),
    )


def weights_of(model: nn.Module) -> Weights:
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


def put(weights: Weights, model: nn.Module) -> None:
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(value))


class Client(flwr.client.NumPyClient):
    """Learns from every so many-th image; ``epochs`` a round."""

    def __init__(self, epochs: int) -> None:
        self.model, self.epochs = network(), epochs
        x, y = Digits().train_set()
        self.x, self.y = x[RANK - 1 :: SIZE - 1], y[RANK - 1 :: SIZE - 1]

    def fit(self, parameters: Weights, _: dict) -> tuple[Weights, int, dict]:
        put(parameters, self.model)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for _ in range(self.epochs):
            for chosen in torch.randperm(len(self.y)).split(BATCH):
                optimizer.zero_grad()
                cross_entropy(self.model(self.x[chosen]), self.y[chosen]).backward()
                optimizer.step()
        return weights_of(self.model), len(self.y), {}


def evaluate(number: int, parameters: Weights, _: dict) -> tuple[float, dict]:
    """On the server, after every round."""
    model, (x, y) = network(), Digits().test_set()
    put(parameters, model)
    with torch.no_grad():
        logits = model(x)
    accuracy = float((logits.argmax(1) == y).float().mean())
    print(f"round {number}: accuracy {accuracy:.3f}", flush=True)
    if number:
        mark.step(accuracy=accuracy)
    return float(cross_entropy(logits, y)), {"accuracy": accuracy}


def serve(rounds: int, port: int) -> None:
    all_of_them = {"min_fit_clients": SIZE - 1, "min_available_clients": SIZE - 1}
    strategy = flwr.server.strategy.FedAvg(
        fraction_evaluate=0.0,
        evaluate_fn=evaluate,
        initial_parameters=flwr.common.ndarrays_to_parameters(weights_of(network())),
        **all_of_them,
    )
    config = flwr.server.ServerConfig(num_rounds=rounds)
    flwr.server.start_server(server_address=f"0.0.0.0:{port}", config=config, strategy=strategy)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--port", type=int, default=29600)
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if RANK == 0:
        serve(given.rounds, given.port)
    else:
        client = Client(given.epochs).to_client()
        server = f"{os.environ['MASTER_ADDR']}:{given.port}"
        flwr.client.start_client(server_address=server, client=client)
