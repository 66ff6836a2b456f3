#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Median microseconds of a PyTorch training step, by the clock and of processor time: train_torch.py MODEL BATCH THREADS
STEPS [channels_last] [sdpa].

The same work as mfl-bench-train: random samples resident in memory, bytes of images or tokens, a batch gathered (and scaled)
at each step, SGD with lr 0.05, and a tenth of the steps ahead of those that count. The models are those that the tests compare
mfl's presets with; sdpa: with PyTorch's own function for attention.
"""
import pathlib
import statistics
import sys
import time

import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "lib"))
import mfl_torch  # noqa: E402

BATCHES = 60


def kind_of(model):
    """Shape of a sample and number of classes, as in bench/samples.c."""
    if model.startswith("char-"):
        return (80,), 80
    return ((3, 32, 32) if model in ("pfl-cnn", "mobilenet-v2", "vit-tiny") or model.startswith("resnet") else (1, 28, 28)), 10


class Work:
    """A model and its data."""

    def __init__(self, model, batch, device="cpu"):
        shape, classes = kind_of(model)
        self.net = mfl_torch.preset(model, shape, classes, dropout=True).to(device)
        self.text = len(shape) == 1
        n = BATCHES * batch
        if self.text:
            self.samples = torch.randint(0, classes, (n, *shape), device=device)
        else:
            self.samples = torch.randint(0, 256, (n, *shape), dtype=torch.uint8, device=device)
        self.labels = torch.randint(0, classes, (n, *shape) if self.text else (n,), device=device)
        self.order = torch.randperm(n, device=device)
        self.batch = batch
        self.loss_of = nn.CrossEntropyLoss()

    def rows(self, t):
        """The samples of step t."""
        first = t % BATCHES * self.batch
        return self.order[first:first + self.batch]

    def inputs(self, index, memory_format=torch.contiguous_format):
        x = self.samples[index]
        return x if self.text else x.float().div_(255.0).to(memory_format=memory_format)

    def loss(self, logits, index):
        return self.loss_of(logits.flatten(0, -2), self.labels[index].flatten())


def main():
    model, batch, threads, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    mfl_torch.Attention.fused = "sdpa" in sys.argv[5:]
    memory_format = torch.channels_last if "channels_last" in sys.argv[5:] else torch.contiguous_format
    work = Work(model, batch)
    work.net.to(memory_format=memory_format)
    optimizer = torch.optim.SGD(work.net.parameters(), lr=0.05)
    wall, cpu = [], []
    for t in range(max(3, steps // 10) + steps):
        index = work.rows(t)
        begin, begin_cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        work.loss(work.net(work.inputs(index, memory_format)), index).backward()
        optimizer.step()
        cpu.append((time.process_time() - begin_cpu) * 1e6)
        wall.append((time.perf_counter() - begin) * 1e6)
    print(f"{statistics.median(wall[-steps:]):.2f} {statistics.median(cpu[-steps:]):.2f}")


if __name__ == "__main__":
    main()
