#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a training program costs beside the loop in it (docs/programs.md): examples/python/cnn.py, 1.66 million parameters.

    TORCH_PYTHON=.../python FLOWER_PYTHON=.../python bench/program.py [--clients 8] [--samples 320] [--rounds 3]

Processor time, since others may work on the machine: of `loop`, the same function called by nothing but a loop; of the program's
process, in train() and outside of it (messages, copying params into tensors' memory); and of its daemon, which copies, checks,
rounds and adds; and of the server. `flower` is the same function in the same run under Flower (FLOWER_PYTHON, flower/requirements.txt): its
classic API with all clients in one process, and a SuperLink with one SuperNode, which gets one message a round for all of them, since
Flower starts a process for each message; what its processes take beside the function is in `program, rest`, and the server's is the
SuperLink's with the ServerApp. The first round, which warms up and loads, counts nowhere. `s a round` is wall time, between the ends of
rounds: it says little on a machine that does other work, too. `empty` is a program that returns what it is given: what handing over the
params takes. The last row is a Python
program that copies as many bytes within its own memory. `of train()` compares with the function in the same process and at the
same time, and changes less with other load than the comparison with the loop."""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import benchlib as bench

sys.path.insert(0, str(bench.HERE / "flower"))
import flower_bench  # noqa: E402

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
    """CPU seconds per client: in train(), in the program outside of it, in the daemon, in the server; and seconds a round."""
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
        pids = daemons.pids[0], server.pid
        before = [bench.processor_seconds(pid) for pid in pids]
        server.mfl("wait", job)
        daemon, of_server = (bench.processor_seconds(pid) - b for pid, b in zip(pids, before))
        times = [r["committed_unix_ms"] / 1e3 for r in server.rounds(job)]
        lines = lines()
    clients = options.clients * rounds
    (inside0, total0), (inside1, total1) = lines[options.clients - 1], lines[-1]
    inside = (inside1 - inside0) / clients
    return inside, (total1 - total0) / clients - inside, daemon / clients, of_server / clients, (times[-1] - times[0]) / rounds


def tree_seconds(root):
    """CPU time of a process, of all its descendants, and of those that they have waited for."""
    parents, seconds, tick = {}, {}, os.sysconf("SC_CLK_TCK")
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        parents[pid], seconds[pid] = int(fields[1]), sum(map(int, fields[11:15])) / tick
    total = 0
    for pid in parents:
        up = pid
        while up in parents and up != root:
            up = parents[up]
        total += seconds[pid] if up == root else 0
    return total


def start_flower(flower, options, kind):
    """(the server's process, the clients')"""
    port = flower_bench.free_port()
    if kind == "classic":
        server = flower.start(flower.python, "-m", "own.classic_server", port, options.rounds + 1, options.clients)
        flower_bench.wait_for_port(port)
        return server, flower.start(flower.python, "-m", "own.classic_client", port, options.clients, client=True)
    config = f'[superlink]\ndefault = "bench"\n[superlink.bench]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (flower.folder / "config.toml").write_text(config)
    server = flower.start(flower.flower("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", port,
                          "--disable-runtime-dependency-installation")
    flower_bench.wait_for_port(port)
    node = flower.start(flower.flower("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}", "--port",
                        flower_bench.free_port(), client=True)
    app = flower.folder / "app"
    shutil.copytree(flower_bench.HERE, app, ignore=shutil.ignore_patterns("__pycache__", "flower_bench.py"))
    settings = (app / "pyproject.toml").read_text().replace("fashion.", "own.")
    (app / "pyproject.toml").write_text(settings)
    flower.start(flower.flower("flwr"), "run", app, "bench", "--run-config",
                 f"rounds={options.rounds + 1} clients={options.clients} nodes=1")
    return server, node


def run_flower(options, kind):
    """The same five numbers; the clients' process and what it starts are in place of the program and the daemon."""
    with flower_bench.Processes() as flower:
        calls = flower.folder / "calls"
        flower.environment |= {"BENCH_PATHS": f"{ROOT / 'python'}:{ROOT / 'examples' / 'python'}", "BENCH_SAMPLES": str(options.samples),
                               "BENCH_CALLS": str(calls), "BENCH_REPORT": str(flower.report), "OMP_NUM_THREADS": "1"}
        server, clients = start_flower(flower, options, kind)
        taken = []
        for wanted in (2, options.rounds + 2):  # rounds 0, before the first, and 1; all of them
            def is_over(wanted=wanted):
                if len(flower.lines()) < wanted and None not in (server.poll(), clients.poll()):
                    raise SystemExit(f"Flower ended before its round; logs: {flower.folder}")
                return len(flower.lines()) >= wanted
            bench.wait_until(is_over, options.limit, f"round {wanted - 1} of Flower")
            taken.append((tree_seconds(clients.pid), tree_seconds(server.pid)))
        n = options.clients * options.rounds
        inside = sum(json.loads(line) for line in calls.read_text().splitlines()[options.clients:]) / n
        of_clients, of_server = ((b - a) / n for a, b in zip(*taken))
        times = [line["time"] for line in flower.lines()]
        return inside, of_clients - inside, 0, of_server, (times[-1] - times[1]) / options.rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--samples", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300, help="seconds that a round of Flower may take")
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
        rows = [["loop", f"{loop * 1e3:.2f}", "", "", "", f"{loop * 1e3:.2f}", "1.000", "", ""]]

        def add(name, inside, outside, daemon, server, round_s, compared=True):
            whole = inside + outside + daemon + server
            times = [f"{v * 1e3:.2f}" if v else "" for v in (inside, outside, daemon, server, whole)]
            rows.append([name, *times, *([f"{whole / loop:.3f}", f"{whole / inside:.3f}"] if compared else ["", ""]), f"{round_s:.2f}"])

        add("cnn", *run_program(options, python, folder, False))
        if "FLOWER_PYTHON" in os.environ:
            for kind in ("classic", "deployment"):
                add("flower, " + kind, *run_flower(options, kind))
        else:
            print("FLOWER_PYTHON is not set: without Flower (see flower/requirements.txt)")
        add("empty", *run_program(options, python, folder, True), compared=False)
        rows.append(["one copy of the params", "", "", "", "", f"{copy * 1e3:.2f}", "", "", ""])
    print(f"CPU milliseconds per client of {options.samples} samples, {options.clients} clients, {options.rounds} rounds")
    bench.table(["", "in train()", "program, rest", "daemon", "server", "together", "of loop", "of train()", "s a round"], rows)


if __name__ == "__main__":
    main()
