#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Median microseconds of a PyTorch training step: train_torch.py MODEL BATCH THREADS STEPS [channels_last].

The same work as mfl-bench-train: random byte images resident in memory, a batch gathered and scaled at each step, SGD with
lr 0.05.
"""
import statistics
import sys
import time

import torch
from torch import nn


class Block(nn.Module):
    """The basic block of He et al. 2016."""

    def __init__(self, inputs, channels, stride, norm):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.norm1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = norm(channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), norm(channels))

    def forward(self, x):
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += self.shortcut(x) if self.shortcut else x
        return self.relu(y)


def resnet(stages, blocks, channels, norm):
    parts, inputs = [nn.Conv2d(3, channels, 3, 1, 1, bias=False), norm(channels), nn.ReLU(inplace=True)], channels
    for stage in range(stages):
        for block in range(blocks):
            parts.append(Block(inputs, channels << stage, 2 if stage > 0 and block == 0 else 1, norm))
            inputs = channels << stage
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def make(model):
    if model == "resnet20":
        return resnet(3, 3, 16, nn.BatchNorm2d)
    if model == "resnet20-gn":
        return resnet(3, 3, 16, lambda channels: nn.GroupNorm(min(32, channels // 2), channels))
    if model == "resnet18":
        return resnet(4, 2, 64, nn.BatchNorm2d)
    if model == "logistic":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    if model == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(),
                             nn.Linear(200, 10))
    if model == "lenet5":
        return nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(),
                             nn.AvgPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84),
                             nn.Tanh(), nn.Linear(84, 10))
    if model == "fedavg-cnn":
        return nn.Sequential(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
                             nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                             nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10))
    if model == "pfl-cnn":
        return nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
                             nn.Dropout(0.25), nn.Flatten(), nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5),
                             nn.Linear(128, 10))
    raise SystemExit(f"no model {model}")


def main():
    model, batch, threads, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    channels_last = "channels_last" in sys.argv[5:]
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    net = make(model)
    if channels_last:
        net = net.to(memory_format=torch.channels_last)
    shape = (3, 32, 32) if model == "pfl-cnn" or model.startswith("resnet") else (1, 28, 28)
    images = torch.randint(0, 256, (60 * batch, *shape), dtype=torch.uint8)
    labels = torch.randint(0, 10, (60 * batch,))
    order = torch.randperm(60 * batch)
    loss_of = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    times = []
    for t in range(steps):
        index = order[t % 60 * batch:t % 60 * batch + batch]
        begin = time.perf_counter()
        x = images[index].float().div_(255.0)
        if channels_last:
            x = x.to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        loss = loss_of(net(x), labels[index])
        loss.backward()
        optimizer.step()
        times.append((time.perf_counter() - begin) * 1e6)
    print(f"{statistics.median(times):.2f}")


if __name__ == "__main__":
    main()
