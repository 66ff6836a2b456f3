#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch on the same device: torch_device.py SECONDS MODEL:BATCH:PRECISION ... [--device cuda|cpu] [--ways KIND,...]
       [--no-ceilings]

The same work as mfl-bench-device: random samples resident on the device, a batch gathered and scaled at each step, SGD.
Ways, for each case: eager and torch.compile, both also in channels_last, and a CUDA graph of a whole step of each. fp32
means float products (TF32 off), tf32 allows TF32 for convolutions and products, bf16 and fp16 are autocast (fp16 with
GradScaler). --ways: only those whose name begins with one of eager, graph, compile. One line of JSON for each case and way; a way that fails, or for which no time is left, says so. Two more
lines are the device's ceilings: a large matrix product in each precision, and a copy.
"""
import argparse
import json
import time

import torch

from train_torch import Work

WAYS = [("eager", False, False), ("eager channels_last", True, False), ("graph", False, False),
        ("graph channels_last", True, False), ("compile", False, True), ("compile channels_last", True, True),
        ("compile graph channels_last", True, True)]


def say(**fields):
    print(json.dumps(fields), flush=True)


class Step:
    """One training step of one model, callable."""

    def __init__(self, device, model, batch, precision, channels_last, compiled):
        torch.manual_seed(1)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
        torch.backends.cudnn.benchmark = True
        self.work = Work(model, batch, device)
        self.net = self.work.net
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        self.net = self.net.to(memory_format=self.format)
        self.index = self.work.rows(0).clone()
        self.type = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        self.scaler = torch.amp.GradScaler(device) if precision == "fp16" else None
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.device = device
        self.forward = torch.compile(self.net) if compiled else self.net
        self.graph = None

    def compute(self):
        x = self.work.inputs(self.index, self.format)
        self.optimizer.zero_grad(set_to_none=self.graph is None)
        with torch.autocast(self.device, dtype=self.type or torch.bfloat16, enabled=self.type is not None):
            loss = self.work.loss(self.forward(x), self.index)
        if self.scaler:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()

    def capture(self):
        if self.scaler:
            raise RuntimeError("GradScaler's step looks at the host, so it can't be captured")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                self.compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.compute()
        self.graph = graph

    def __call__(self, t):
        self.index.copy_(self.work.rows(t))
        if self.graph:
            self.graph.replay()
        else:
            self.compute()


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def time_step(step, device, seconds):
    """Median microseconds of a step, over calls of many steps with one wait at the end."""
    for t in range(8):
        step(t)
    wait(device)
    begin = time.perf_counter()
    step(0)
    wait(device)
    n = max(1, min(1000, int(0.02 / (time.perf_counter() - begin))))
    times, begin_all = [], time.perf_counter()
    while len(times) < 5 or time.perf_counter() - begin_all < seconds:
        begin = time.perf_counter()
        for t in range(n):
            step(t)
        wait(device)
        times.append((time.perf_counter() - begin) / n)
    return sorted(times)[len(times) // 2] * 1e6


def measure(case, device, deadline, kinds):
    model, batch, precision = case.split(":")
    for way, channels_last, compiled in WAYS:
        if way.split()[0] not in kinds:
            continue
        fields = {"torch": torch.__version__, "model": model, "batch": int(batch), "precision": precision, "way": way}
        if "graph" in way and device != "cuda":
            continue
        if time.monotonic() > deadline:
            say(**fields, error="no time left")
            continue
        try:
            step = Step(device, model, int(batch), precision, channels_last, compiled)
            if "graph" in way:
                step.capture()
            say(**fields, us=round(time_step(step, device, 0.5), 3))
        except Exception as e:  # a way that PyTorch can't go is a result, not the end
            say(**fields, error=str(e).splitlines()[0][:120] if str(e) else type(e).__name__)


def ceilings(device):
    n = 8192 if device == "cuda" else 1024
    for precision, kind, tf32 in (("fp32", torch.float32, False), ("tf32", torch.float32, True),
                                  ("bf16", torch.bfloat16, True), ("fp16", torch.float16, True)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = torch.randn(n, n, device=device).to(kind), torch.randn(n, n, device=device).to(kind)
        us = time_step(lambda t: a @ b, device, 0.3)
        say(ceiling="product", precision=precision, tflops=round(2 * n**3 / us * 1e-6, 2))
    a = torch.zeros(1 << (28 if device == "cuda" else 22), device=device)
    b = torch.empty_like(a)
    us = time_step(lambda t: b.copy_(a), device, 0.3)
    say(ceiling="copy", gb_per_s=round(8 * a.numel() / us * 1e-3, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", type=float)
    parser.add_argument("cases", nargs="+", metavar="MODEL:BATCH:PRECISION")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--ways", default="eager,graph,compile")
    parser.add_argument("--no-ceilings", action="store_true")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no CUDA device here")
    if not options.no_ceilings:
        ceilings(options.device)
    for case in options.cases:
        measure(case, options.device, deadline, options.ways.split(","))


if __name__ == "__main__":
    main()
