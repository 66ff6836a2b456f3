#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seconds a round, accuracy and server memory of mfl beside Flower (the `flwr` package) in the same run.

    FLOWER_PYTHON=.../bin/python flower_bench.py [--rounds 5] [--systems mfl classic deployment] [--noop N]

Trained is FedAvg's CNN (1,663,370 parameters) on Fashion-MNIST cut into ten equal clients, batch 32, lr 0.05, one epoch a
round, the test split evaluated after every round. Each system has two processes that compute, of one thread:
  mfl         a server and two daemons of one worker; the daemons evaluate
  classic     start_server and two processes with five start_client threads each; the server evaluates on two threads
  deployment  flower-superlink, two flower-supernode and `flwr run`; a SuperNode hosts five clients for one message a
              round; the ServerApp evaluates on two threads
With --noop N nothing is trained: ten clients (of a swarm, for mfl) hand a model of N parameters back.

A round is the time between the ends of two rounds; the table has the median of rounds 2 to n, so that starting, loading
and first touching are in none of them. Server memory is VmHWM, summed over the server's processes. FLOWER_PYTHON is an
interpreter that has requirements.txt; without it only mfl runs. Flower's side follows what its and PyTorch's
documentation call fast (fashion/task.py says what); its clients' malloc keeps freed memory."""

import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import benchlib as bench  # noqa: E402

CLIENTS, PROCESSES = 10, 2
DATA = os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist")
# Number of parameters to the swarm's features and classes: classes * (features + 1).
SHAPES = {8000: (799, 10), 1664000: (831, 2000), 25000000: (2499, 10000)}


class Result:
    def __init__(self, times, accuracy, memory):
        """times: when each round was over, in seconds; the first is round 0's or round 1's."""
        self.seconds = [b - a for a, b in zip(times, times[1:])]
        self.accuracy, self.memory = accuracy, memory


def run_mfl(options):
    text = (HERE / "job.yaml").read_text().replace("rounds: 5", f"rounds: {options.rounds}")
    with bench.Server() as server:
        if options.noop:
            features, classes = SHAPES[options.noop]
            server.swarm(CLIENTS, "--moving", "--features", str(features), "--classes", str(classes))
            text = bench.noop_job("noop", options.rounds, CLIENTS)
        for i in range(0 if options.noop else PROCESSES):
            command = [bench.program("client/mfl-client"), "--server", server.address, "--name", f"bench-{i}"]
            command += ["--workers", "1", "--backend", "cpu", "--log-level", "warn"]
            server.children.append(subprocess.Popen(command + ["--data", f"fashion-mnist=idx:{DATA}"]))
        job = server.submit(text)
        server.mfl("wait", job)
        rounds = sorted(server.rounds(job), key=lambda r: r["round"])
        times = [r["committed_unix_ms"] / 1000 for r in rounds]
        return Result(times, rounds[-1].get("accuracy"), bench.memory(server.pid)[1])


class Processes:
    """Flower's, in an environment of their own: started one after another, ended in the opposite order."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mfl-bench-flower-"))
        self.python = os.environ["FLOWER_PYTHON"]
        self.bin = pathlib.Path(self.python).parent
        self.report = self.folder / "report"
        self.started = []
        self.peaks = {}
        keep = str(1 << 30)
        self.environment = os.environ | {
            "FLWR_HOME": str(self.folder),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PYTHONPATH": str(HERE),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": f"{self.bin}:{os.environ['PATH']}",
        }
        self.client_environment = {"MALLOC_TRIM_THRESHOLD_": keep, "MALLOC_MMAP_THRESHOLD_": keep}

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for process in reversed(self.started):
            # The whole group: Flower's own children would stay.
            try:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        if kind is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            print(f"logs: {self.folder}", file=sys.stderr)

    def start(self, *command, client=False):
        log = open(self.folder / f"log-{len(self.started)}", "w")
        environment = self.environment | (self.client_environment if client else {})
        process = subprocess.Popen(
            [str(c) for c in command],
            stdout=log,
            stderr=log,
            env=environment,
            cwd=self.folder,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def flower(self, name):
        return str(self.bin / name)

    def lines(self):
        return [json.loads(line) for line in self.report.read_text().splitlines()] if self.report.exists() else []

    def watch_memory(self, root):
        """Adds up the highest memory of a process and all its descendants, also of those that have ended."""
        parents = {}
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                pass
        for pid in parents:
            up = pid
            while up in parents and up != root:
                up = parents[up]
            if up == root:
                try:
                    self.peaks[pid] = max(self.peaks.get(pid, 0), bench.memory(pid)[1])
                except (OSError, ValueError):
                    pass

    def result(self, server, rounds, limit):
        """Waits for the report of the last round."""
        end = time.monotonic() + limit
        while True:
            over = time.monotonic() > end
            ended = [process for process in self.started if process.poll() is not None]
            lines = self.lines()  # all that those have written who ended
            if len(lines) > rounds:
                break
            for process in ended:
                if process.returncode:
                    raise SystemExit(f"{process.args[0]} ended with {process.returncode}")
            if server in ended or over:
                raise SystemExit(f"Flower did not get to round {rounds}")
            self.watch_memory(server.pid)
            time.sleep(0.2)
        self.watch_memory(server.pid)
        # From round 1 on, as mfl's; round 0 is the evaluation before the first.
        return Result([line["time"] for line in lines[1:]], lines[-1]["accuracy"], sum(self.peaks.values()))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for_port(port, seconds=60):
    def listens():
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", port)) == 0

    bench.wait_until(listens, seconds, f"port {port}")


def run_classic(options):
    with Processes() as flower:
        port = free_port()
        module = [flower.python, "-m"]
        server = flower.start(
            *module, "fashion.classic_server", port, options.rounds, CLIENTS, options.noop, DATA, flower.report
        )
        wait_for_port(port)
        for i in range(PROCESSES):
            mine = range(i, CLIENTS, PROCESSES)
            flower.start(*module, "fashion.classic_client", port, CLIENTS, options.noop, DATA, *mine, client=True)
        return flower.result(server, options.rounds, options.limit)


def run_deployment(options):
    with Processes() as flower:
        port = free_port()
        # Versions up to 1.3x have an address for each interface; later ones one for all.
        config = f'[superlink]\ndefault = "bench"\n[superlink.bench]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        (flower.folder / "config.toml").write_text(config)
        server = flower.start(
            flower.flower("flower-superlink"),
            *["--insecure", "--host", "127.0.0.1", "--port", port, "--disable-runtime-dependency-installation"],
        )
        wait_for_port(port)
        for _ in range(PROCESSES):
            command = [flower.flower("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}"]
            flower.start(*command, "--port", free_port(), client=True)
        settings = {
            "rounds": options.rounds,
            "clients": CLIENTS,
            "nodes": PROCESSES,
            "parameters": options.noop,
            "data": f'"{DATA}"',
            "report": f'"{flower.report}"',
        }
        text = " ".join(f"{key}={value}" for key, value in settings.items())
        app = flower.folder / "app"
        shutil.copytree(HERE, app, ignore=shutil.ignore_patterns("__pycache__", "flower_bench.py"))
        flower.start(flower.flower("flwr"), "run", app, "bench", "--run-config", text)
        return flower.result(server, options.rounds, options.limit)


SYSTEMS = {"mfl": run_mfl, "classic": run_classic, "deployment": run_deployment}


def row(name, result, first):
    if not result.seconds:
        raise SystemExit("at least two rounds are needed")
    seconds = bench.median(result.seconds)
    accuracy = "-" if result.accuracy is None else f"{result.accuracy:.4f}"
    spread = f"{min(result.seconds):.3f}..{max(result.seconds):.3f}"
    return [name, f"{seconds:.3f}", spread, f"{first / seconds:.3f}", accuracy, f"{result.memory / 1e6:.1f}"]


def on_signal(number, _):
    """So that everything that was started ends with this."""
    raise SystemExit(128 + number)


def main():
    signal.signal(signal.SIGTERM, on_signal)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--noop", type=int, choices=list(SHAPES), default=0, metavar="N", help=f"one of {list(SHAPES)}")
    parser.add_argument("--limit", type=float, default=900, help="seconds that a Flower run may take")
    options = parser.parse_args()
    systems = options.systems
    if "FLOWER_PYTHON" not in os.environ:
        print("FLOWER_PYTHON is not set: mfl alone (see flower/requirements.txt)")
        systems = [name for name in systems if name == "mfl"]
    else:
        versions = "import flwr, torch; print('flwr', flwr.__version__, 'torch', torch.__version__)"
        subprocess.run([os.environ["FLOWER_PYTHON"], "-c", versions], check=True)
    results = {}
    for name in systems:
        print(f"{name} ...", file=sys.stderr, flush=True)
        results[name] = SYSTEMS[name](options)
    if not results:
        return
    first = bench.median(next(iter(results.values())).seconds)
    what = f"{options.noop} parameters, no training" if options.noop else "Fashion-MNIST"
    print(f"{what}, {CLIENTS} clients, {options.rounds} rounds; seconds a round: median of rounds 2 to n")
    head = ["system", "s a round", "least..most", f"{next(iter(results))} / it", "accuracy", "server MB"]
    bench.table(head, [row(name, result, first) for name, result in results.items()])


if __name__ == "__main__":
    main()
