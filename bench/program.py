#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a training program costs beside the loop in it (docs/programs.md): examples/python/cnn.py, 1.66 million parameters.

    TORCH_PYTHON=.../python bench/program.py [--clients 8] [--samples 320] [--rounds 3]

Processor time, since others may work on the machine: of `loop`, the same function called by nothing but a loop; of the program's
process, in train() and outside of it (messages, copying params into tensors' memory); and of its daemon, which copies, checks,
rounds and adds. `empty` is a program that returns what it is given: what handing over the params takes. The last row is a Python
program that copies as many bytes within its own memory. The last column compares with the function in the same process and at the
same time, and changes less with other load than the comparison with the loop."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import benchlib as bench

ROOT = bench.HERE.parent
PROGRAM = """
import json, sys, time
sys.path[:0] = [{python!r}, {examples!r}]
import mfl.train
if {empty!r}:
    def train(params, client, round, config):
        return params, 1, None
else:
    import torch
    torch.set_num_threads(1)
    from cnn import train as inner
    def train(params, client, round, config, data, samples, seed):
        return inner(params, client, round, config, data, samples, seed)
program = mfl.train._Program(train, None, "bench")
inside, call = 0.0, program._call
def timed(fn, *args, **more):
    global inside
    begin = time.process_time()
    result = call(fn, *args, **more)
    inside += time.process_time() - begin
    with open({report!r}, "a") as f:
        print(json.dumps([inside, time.process_time()]), file=f)
    return result
program._call = timed
program.serve()
"""
LOOP = """
import sys, time
sys.path[:0] = [{python!r}, {examples!r}]
import numpy, torch
torch.set_num_threads(1)
import cnn
class Data:
    x, y = numpy.random.default_rng(1).random(({samples}, 1, 28, 28), numpy.float32), numpy.random.default_rng(2).integers(0, 10, {samples})
    def batch(self, samples):
        return self.x[samples], self.y[samples]
params = {{k: v.numpy().copy() for k, v in cnn.model.state_dict().items()}}
for turn in range({turns} + 1):
    if turn == 1:
        begin = time.process_time()
    cnn.train(params, 0, 1, {{"lr": 0.01}}, Data(), numpy.arange({samples}), turn)
print((time.process_time() - begin) / {turns})
"""
COPY = """
import time, numpy
a, b = numpy.ones(1663370, numpy.float32), numpy.empty(1663370, numpy.float32)
numpy.copyto(b, a)
begin = time.process_time()
for _ in range(200):
    numpy.copyto(b, a)
print((time.process_time() - begin) / 200)
"""


def run_program(options, python, folder, empty):
    """CPU seconds per client: in train(), in the program outside of it, in the daemon. The first round warms up."""
    report = folder / ("empty.jsonl" if empty else "cnn.jsonl")
    script = folder / (report.stem + ".py")
    script.write_text(PROGRAM.format(python=str(ROOT / "python"), examples=str(ROOT / "examples" / "python"), report=str(report),
                                     empty=empty))
    config = folder / "client.yaml"
    config.write_text(f"programs: [{{name: bench, command: [{python}, {script}]}}]\n")
    train_samples = options.samples * options.clients
    with bench.Server() as server, bench.Daemons(server.address, 1, "solo", f"images=synthetic:1,28,28:10:{train_samples}:50:1", "reference",
                                                 more=["--config", str(config)]) as daemons:
        rounds = options.rounds * (10 if empty else 1)
        data = "{partition: iid, clients: %d}" if empty else "{name: images, partition: iid, clients: %d}"
        head = f"model: {{initial: {folder / 'initial.safetensors'}}}\ndata: {data % options.clients}\n"
        tail = "training: {program: bench, config: {lr: 0.01}}\nevaluation: {every: 0}\n"
        job = server.submit(f"name: bench\nrounds: {rounds + 1}\n{head}{tail}")
        lines = lambda: [json.loads(x) for x in report.read_text().splitlines()] if report.exists() else []
        bench.wait_until(lambda: len(lines()) >= options.clients, 600, "the first round")
        before = bench.processor_seconds(daemons.pids[0])
        server.mfl("wait", job)
        daemon = bench.processor_seconds(daemons.pids[0]) - before
        lines = lines()
    clients = options.clients * rounds
    (inside0, total0), (inside1, total1) = lines[options.clients - 1], lines[-1]
    inside = (inside1 - inside0) / clients
    return inside, (total1 - total0) / clients - inside, daemon / clients


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--samples", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    python = os.environ.get("TORCH_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        paths = {"python": str(ROOT / "python"), "examples": str(ROOT / "examples" / "python")}
        env = dict(os.environ, PYTHONPATH=paths["python"], OMP_NUM_THREADS="1")
        subprocess.run([python, ROOT / "examples" / "python" / "cnn.py", folder / "initial.safetensors"], check=True, env=env)
        turns = options.rounds * options.clients
        loop = float(subprocess.run([python, "-c", LOOP.format(samples=options.samples, turns=turns, **paths)], check=True, env=env,
                                    capture_output=True, text=True).stdout)
        copy = float(subprocess.run([python, "-c", COPY], check=True, env=env, capture_output=True, text=True).stdout)
        rows = [["loop", f"{loop * 1e3:.2f}", "", "", f"{loop * 1e3:.2f}", "1.000", ""]]
        for name, empty in (("cnn", False), ("empty", True)):
            inside, outside, daemon = run_program(options, python, folder, empty)
            whole = inside + outside + daemon
            rows.append([name, *(f"{v * 1e3:.2f}" for v in (inside, outside, daemon, whole)), "" if empty else f"{whole / loop:.3f}", "" if empty else f"{whole / inside:.3f}"])
        rows.append(["one copy of the params", "", "", "", f"{copy * 1e3:.2f}", "", ""])
    print(f"CPU milliseconds per client of {options.samples} samples, {options.clients} clients, {options.rounds} rounds")
    bench.table(["", "in train()", "program, rest", "daemon", "together", "of loop", "of train()"], rows)


if __name__ == "__main__":
    main()
