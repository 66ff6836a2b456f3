# SPDX-License-Identifier: Apache-2.0
"""FedAvg of a PyTorch CNN: a training program for mfl-client (docs/programs.md). `python cnn.py initial.safetensors` writes the start."""
import sys

import torch
import mfl.train

model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 32, 5, padding=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(32, 64, 5, padding=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Flatten(), torch.nn.Linear(64 * 7 * 7, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))


def train(params, client, round, config, data, samples, seed):
    mfl.train.load(model, params)
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config.get("momentum", 0))
    total = 0.0
    for batch in torch.from_numpy(samples)[torch.randperm(len(samples))].split(config.get("batch", 32)):
        x, y = map(torch.from_numpy, data.batch(batch.numpy()))
        loss = torch.nn.functional.cross_entropy(model(x), y.long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch)
    return model.state_dict(), len(samples), {"loss": total / len(samples)}


@torch.no_grad()
def evaluate(params, config, data, samples):
    mfl.train.load(model, params)
    x, y = map(torch.from_numpy, data.batch(samples, "test"))
    z = model(x)
    return len(samples), {"loss": torch.nn.functional.cross_entropy(z, y.long()).item(), "correct": int((z.argmax(1) == y).sum())}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        torch.manual_seed(42)
        for module in model:
            getattr(module, "reset_parameters", lambda: None)()
        mfl.train.save(sys.argv[1], model.state_dict())
    else:
        mfl.train.run(train, evaluate)
