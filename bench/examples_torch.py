#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The accuracy of three examples beside PyTorch: texts, time series, and a table with codes.

    examples_torch.py [reviews] [meters] [claims] [--seeds 3]

mfl trains examples/NAME.yaml as it is (federated averaging over its clients) and with one client that has all the data; PyTorch
trains the same network on all the data with the job's optimizer and as many epochs. Both read the files that examples/NAME.py
makes; PyTorch cuts off a test part of the same size by the same rule (`time`: the end of each series) or at random."""

import argparse
import csv
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import torch
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parent.parent
OPTIONS = {
    "reviews": "text=text,label=label,length=24,test_fraction=0.2",
    "meters": "window=24,stride=4,group=house,time=hour,features=[load,temperature],label=device,label_at=majority,test_fraction=0.2,"
              "normalise=columns",
    "claims": "test_fraction=0.2,normalise=columns",
}


class Reviews(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(64, 32, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(24, 32) * 0.02)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.y, self.z = nn.LayerNorm(32), nn.LayerNorm(32)
        self.wide, self.narrow, self.head = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 2)

    def forward(self, tokens):
        padding = tokens == 0
        x = self.words(tokens) + self.positions
        y = self.y(x + self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0])
        z = self.z(y + self.narrow(nn.functional.gelu(self.wide(y))))
        seen = (~padding).float()[..., None]
        return self.head((z * seen).sum(1) / seen.sum(1))


class Meters(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv1d(2, 24, 5, padding=2), nn.ReLU(), nn.Conv1d(24, 24, 5, padding=4, dilation=2), nn.ReLU(),
                         nn.Conv1d(24, 24, 5, padding=8, dilation=4), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
                         nn.Linear(24, 3))

    def forward(self, x):
        return super().forward(x.transpose(1, 2))


class Claims(nn.Module):
    def __init__(self):
        super().__init__()
        self.region, self.car = nn.Embedding(12, 4), nn.Embedding(20, 6)
        self.net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.net(torch.cat([self.region(x[:, 0].long()), self.car(x[:, 1].long()), x[:, 2:]], 1))


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as f:
        return list(csv.reader(f))[1:]


def numbers(labels):
    names = sorted(set(labels))
    return torch.tensor([names.index(v) for v in labels])


def split(x, y, seed):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    cut = round(len(x) * 0.8)
    return x[order[:cut]], y[order[:cut]], x[order[cut:]], y[order[cut:]]


def reviews(rows, seed):
    texts = [re.findall("[a-z0-9]+", text.lower()) for text, _ in rows]
    words = {w: k + 2 for k, w in enumerate(sorted({w for t in texts for w in t}))}
    x = torch.tensor([[words[w] for w in t[:24]] + [0] * (24 - len(t)) for t in texts])
    return split(x, numbers([label for _, label in rows]), seed)


def meters(rows, _):
    x = torch.tensor([[float(r[2]), float(r[3])] for r in rows])
    y, houses = numbers([r[4] for r in rows]), numbers([r[1] for r in rows])
    parts = [[], [], [], []]
    for house in range(int(houses.max()) + 1):
        own_x, own_y = x[houses == house], y[houses == house]
        cut = len(own_x) - round(len(own_x) * 0.2)
        for k, (a, b) in enumerate([(0, cut), (cut, len(own_x))]):
            for start in range(a, b - 24 + 1, 4):
                parts[2 * k].append(own_x[start:start + 24])
                parts[2 * k + 1].append(own_y[start:start + 24].bincount(minlength=3).argmax())
    train, test = torch.stack(parts[0]), torch.stack(parts[2])
    mean, std = train.mean((0, 1)), train.std((0, 1))
    return (train - mean) / std, torch.stack(parts[1]), (test - mean) / std, torch.stack(parts[3])


def claims(rows, seed):
    x = torch.tensor([[int(r[0][1:]), int(r[1][1:]), float(r[2]), float(r[3])] for r in rows])
    x[:, 2:] = (x[:, 2:] - x[:, 2:].mean(0)) / x[:, 2:].std(0)
    return split(x, numbers([r[4] for r in rows]), seed)


def torch_accuracy(name, path, epochs, lr, batch, seed):
    torch.manual_seed(seed)
    net = {"reviews": Reviews, "meters": Meters, "claims": Claims}[name]()
    x, y, test_x, test_y = {"reviews": reviews, "meters": meters, "claims": claims}[name](rows_of(path), seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    for _ in range(epochs):
        for index in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[index]), y[index]).backward()
            optimizer.step()
    net.eval()
    with torch.no_grad():
        return (net(test_x).argmax(1) == test_y).float().mean().item()


def mfl_accuracy(mfl, text, name, path, folder):
    job = folder / (name + ".yaml")
    job.write_text(text, encoding="utf-8")
    done = subprocess.run([mfl, "run", str(job), "--data", "%s=csv:%s,%s" % (name, path, OPTIONS[name]), "--json", "--out",
                           tempfile.mkdtemp(dir=folder) + "/out"], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    return [r["accuracy"] for r in rounds if r.get("accuracy") is not None][-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--mfl", default=str(ROOT / "build" / "cli" / "mfl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("%-8s  %-13s  %-13s  %s" % ("example", "mfl", "mfl, one site", "PyTorch, mean and range of %d" % options.seeds))
    with tempfile.TemporaryDirectory() as own:
        folder = pathlib.Path(own)
        for name in options.names or OPTIONS:
            path = folder / (name + ".csv")
            made = subprocess.run([sys.executable, str(ROOT / "examples" / (name + ".py"))], capture_output=True, check=True)
            path.write_bytes(made.stdout)
            job = (ROOT / "examples" / (name + ".yaml")).read_text(encoding="utf-8")
            rounds, epochs, lr, batch = (float(re.search(key + r": ([\d.]+)", job)[1]) for key in ("rounds", "epochs", "lr", "batch"))
            one = re.sub(r"partition: .*}", "partition: iid, clients: 1}", job)
            ours = [mfl_accuracy(options.mfl, text, name, path, folder) for text in (job, one)]
            theirs = [torch_accuracy(name, path, int(rounds * epochs), lr, int(batch), seed) for seed in range(options.seeds)]
            print("%-8s  %-13.4f  %-13.4f  %.4f (%.4f to %.4f)" % (name, *ours, statistics.mean(theirs), min(theirs), max(theirs)),
                  flush=True)


if __name__ == "__main__":
    main()
