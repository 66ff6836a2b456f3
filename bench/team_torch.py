#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Median microseconds of a step of PyTorch's DistributedDataParallel over gloo: team_torch.py MODEL BATCH WORKERS STEPS
BUCKET_MB. Each process has one thread and BATCH / WORKERS rows; the work is that of train_torch.py."""
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import train_torch


def rank_main(rank, model, batch, workers, steps, bucket, store, result):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=workers)
    work = train_torch.Work(model, batch)
    net = torch.nn.parallel.DistributedDataParallel(work.net, bucket_cap_mb=bucket, static_graph=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    rows, wall = batch // workers, []
    for t in range(max(3, steps // 10) + steps):
        index = work.rows(t)[rank * rows:(rank + 1) * rows]
        begin = time.perf_counter()
        optimizer.zero_grad()
        work.loss(net(work.inputs(index)), index).backward()
        optimizer.step()
        wall.append((time.perf_counter() - begin) * 1e6)
    if rank == 0:
        with open(result, "w", encoding="utf-8") as f:
            f.write("%.2f" % statistics.median(wall[-steps:]))
    dist.destroy_process_group()


def main():
    model, batch, workers, steps, bucket = sys.argv[1], *(int(v) for v in sys.argv[2:6])
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "result")
        mp.spawn(rank_main, (model, batch, workers, steps, bucket, os.path.join(folder, "store"), result), nprocs=workers)
        with open(result, encoding="utf-8") as f:
            print(f.read())


if __name__ == "__main__":
    main()
