# SPDX-License-Identifier: Apache-2.0
"""The function that mfl's training program calls (examples/python/cnn.py), between Flower's lists of arrays. A line of the file REPORT is
the CPU time of a call, of this thread."""

import json
import os
import sys
import time

import numpy as np
import torch

sys.path[:0] = os.environ["BENCH_PATHS"].split(":")
torch.set_num_threads(1)
import cnn  # noqa: E402

SAMPLES = int(os.environ["BENCH_SAMPLES"])


class Data:
    x = np.random.default_rng(1).random((SAMPLES, 1, 28, 28), np.float32)
    y = np.random.default_rng(2).integers(0, 10, SAMPLES)

    def batch(self, samples):
        return self.x[samples], self.y[samples]


def initial():
    return [tensor.numpy().copy() for tensor in cnn.model.state_dict().values()]


def train(arrays, client, server_round):
    params = dict(zip(cnn.model.state_dict(), arrays))
    begin = time.thread_time()
    state, n, _ = cnn.train(params, client, server_round, {"lr": 0.01}, Data(), np.arange(SAMPLES), client + 1000 * server_round)
    with open(os.environ["BENCH_CALLS"], "a") as file:
        print(json.dumps(time.thread_time() - begin), file=file)
    return [tensor.numpy().copy() for tensor in state.values()], n


def committed(server_round):
    """In the server: a round is over."""
    with open(os.environ["BENCH_REPORT"], "a") as file:
        print(json.dumps({"round": server_round, "time": time.monotonic()}), file=file)
