# SPDX-License-Identifier: Apache-2.0
"""The work itself in PyTorch, as fast as its documentation says how on a CPU: one thread a process
(torch.set_num_threads), channels_last, the whole data set resident as tensors, batches cut out of them by an index and
no DataLoader, zero_grad(set_to_none), inference_mode to evaluate.

Work without training ("no-op") returns the parameters as they came, so that only the system around it is measured."""

import gzip
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

BATCH, LR = 32, 0.05


class Net(torch.nn.Module):
    """The CNN of the FedAvg paper: 1,663,370 parameters."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = torch.nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = torch.nn.Linear(64 * 7 * 7, 512)
        self.fc2 = torch.nn.Linear(512, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def new_net():
    torch.manual_seed(0)
    return Net().to(memory_format=torch.channels_last)


def get_weights(net):
    return [p.detach().cpu().contiguous().numpy().copy() for p in net.parameters()]


def set_weights(net, arrays):
    with torch.no_grad():
        for parameter, array in zip(net.parameters(), arrays):
            parameter.copy_(torch.from_numpy(np.asarray(array)))


def initial(parameters):
    """The first round's params: of the network, or so many zeros where nothing is trained."""
    return [np.zeros(parameters, np.float32)] if parameters else get_weights(new_net())


def read_idx(path):
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        raw = file.read()
    dims = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3])]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * len(dims)).reshape(dims)


def find(data, stem):
    for name in (stem, stem + ".gz"):
        if (pathlib.Path(data) / name).exists():
            return pathlib.Path(data) / name
    raise FileNotFoundError(f"{data}: no {stem}")


_loaded = {}


def load(data, split):
    """All images of a split as one tensor in channels_last, and their labels."""
    if (data, split) not in _loaded:
        prefix = {"train": "train", "test": "t10k"}[split]
        x = read_idx(find(data, f"{prefix}-images-idx3-ubyte"))
        y = read_idx(find(data, f"{prefix}-labels-idx1-ubyte"))
        x = torch.from_numpy(x.astype(np.float32) / 255).unsqueeze(1)
        x = x.contiguous(memory_format=torch.channels_last)
        _loaded[data, split] = x, torch.from_numpy(y.astype(np.int64))
    return _loaded[data, split]


def client_samples(clients, client, total=60000):
    """IID: an equal share of one shuffle that everybody agrees on."""
    order = np.random.default_rng(42).permutation(total)
    return np.array_split(order, clients)[client]


def train(net, data, clients, client, server_round):
    x, y = load(data, "train")
    mine = client_samples(clients, client, len(y))
    generator = torch.Generator().manual_seed(1000 * server_round + client)
    order = torch.from_numpy(mine)[torch.randperm(len(mine), generator=generator)]
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    net.train()
    for begin in range(0, len(order), BATCH):
        batch = order[begin : begin + BATCH]
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(net(x[batch]), y[batch]).backward()
        optimizer.step()
    return len(order)


def accuracy(net, data):
    x, y = load(data, "test")
    net.eval()
    with torch.inference_mode():
        right = sum(int((net(x[i : i + 500]).argmax(1) == y[i : i + 500]).sum()) for i in range(0, len(y), 500))
    return right / len(y)
