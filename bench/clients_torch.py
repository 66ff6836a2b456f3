#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Microseconds of CPU time of a client in plain PyTorch, looping: clients_torch.py MODEL CLIENTS SECONDS [channels_last].

The work of mfl-bench-clients, written as one would: one model; for each client its parameters are set to the round's, an
epoch of SGD over 50 images in batches of 10, and its change is added to a sum. The images are bytes in memory; one thread.
Prints the median over rounds of CLIENTS clients.
"""
import statistics
import sys
import time

import torch
from torch import nn

from train_torch import mfl_torch

SAMPLES, BATCH = 50, 10


def train_client(net, optimizer, loss_of, images, labels, order, channels_last):
    for t in range(0, SAMPLES, BATCH):
        index = order[t:t + BATCH]
        x = images[index].float().div_(255.0)
        if channels_last:
            x = x.to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        loss_of(net(x), labels[index]).backward()
        optimizer.step()


def main():
    name, clients, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    channels_last = "channels_last" in sys.argv[4:]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    net = mfl_torch.preset(name, (3, 32, 32), 10, dropout=True)
    if channels_last:
        net = net.to(memory_format=torch.channels_last)
    images = torch.randint(0, 256, (clients * SAMPLES, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(0, 10, (clients * SAMPLES,))
    order = torch.randperm(clients * SAMPLES).view(clients, SAMPLES)
    start = {key: value.clone() for key, value in net.state_dict().items()}
    total = {key: torch.zeros_like(value) for key, value in start.items()}
    loss_of, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.1)
    times, end = [], None
    while end is None or len(times) < 3 or time.monotonic() < end:
        begin = time.process_time()
        for client in range(clients):
            net.load_state_dict(start)
            train_client(net, optimizer, loss_of, images, labels, order[client][torch.randperm(SAMPLES)], channels_last)
            with torch.no_grad():
                for key, value in net.state_dict().items():
                    total[key] += value - start[key]
        if end is None:  # the first round warms up
            end = time.monotonic() + seconds
        else:
            times.append((time.process_time() - begin) * 1e6 / clients)
    print(f"{statistics.median(times):.2f}")


if __name__ == "__main__":
    main()
