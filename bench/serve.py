#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mfl-serve under load: requests per second, latency, and seconds of CPU time per request, which depend less on other load.

Closed loop, by wrk (Debian: wrk): a connection asks again when it was answered. Open loop, with --open, by our own generator
(bench/arrivals.c): requests arrive by a Poisson process, and the latency counts from the planned arrival; the table has the highest rate whose
99th percentile is at most --p99 ms, for mfl-serve, and for FastAPI with onnxruntime and PyTriton with onnxruntime where SERVE_PYTHON (or
TORCH_PYTHON) has them (nvidia-pytriton 0.7 fails with Python 3.11.7, whose multiprocessing its own interpreter does not know; Debian's 3.11.2 works). --swaps: 20 new versions at 70% of that rate, and a start from
the cache. --committed: from a round's commit until a request is answered by it. --hostile: the latency of others beside idle, slow and garbled connections. --check compares the generator with wrk and hey (Debian: hey) on an identity network.

`identity` answers its input: what the server itself costs. Of the models there is also what onnxruntime takes for the same rows in a
loop of its own without a server, one thread, in the same run (TORCH_PYTHON: a Python with onnxruntime).

serve.py [--seconds 5] [--connections 1 16 64] [--models lenet5 fedavg-cnn] [--open [--p99 20]] [--check]
    [--swaps] [--committed] [--hostile] [--one-core] [--instances N] [--precision bf16]
"""
import argparse
import http.client
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import benchlib as b

PINNED = []  # cores of the server and of wrk
SHAPES = {"fedavg-cnn": (1, 28, 28), "lenet5": (1, 28, 28), "mlp": (1, 28, 28), "resnet20": (3, 32, 32)}
ORT = """
import sys, time, numpy, onnxruntime
path, shape, seconds = sys.argv[1], [int(v) for v in sys.argv[2].split(",")], float(sys.argv[3])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
name = session.get_inputs()[0].name
for rows in (1, 32):
    x = numpy.random.default_rng(1).normal(size=(rows, *shape)).astype("float32")
    session.run(None, {name: x})
    n, begin = 0, time.process_time()
    while time.process_time() - begin < seconds:
        session.run(None, {name: x})
        n += rows
    print((time.process_time() - begin) / n)
"""


FASTAPI = """
import sys, numpy, onnxruntime, uvicorn, fastapi
path, shape, port = sys.argv[1], [int(v) for v in sys.argv[2].split(",")], int(sys.argv[3])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
name, app = session.get_inputs()[0].name, fastapi.FastAPI()
@app.post("/infer")
async def infer(request: fastapi.Request):
    x = numpy.frombuffer(await request.body(), "float32").reshape(-1, *shape)
    return fastapi.Response(session.run(None, {name: x})[0].tobytes(), media_type="application/octet-stream")
@app.get("/ready")
async def ready():
    return {}
uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)
"""
PYTRITON = """
import sys, numpy, onnxruntime
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
path, shape, port = sys.argv[1], [int(v) for v in sys.argv[2].split(",")], int(sys.argv[3])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
name = session.get_inputs()[0].name
@batch
def infer(input):
    return [session.run(None, {name: input})[0]]
classes = session.get_outputs()[0].shape[-1]
with Triton(config=TritonConfig(http_address="127.0.0.1", http_port=port, grpc_port=port + 1, metrics_port=port + 2)) as triton:
    triton.bind(model_name="m", infer_func=infer, inputs=[Tensor(name="input", dtype=numpy.float32, shape=shape)],
                outputs=[Tensor(name="logits", dtype=numpy.float32, shape=(classes,))], config=ModelConfig(max_batch_size=32, batcher=DynamicBatcher()))
    triton.serve()
"""


class Other:
    """Another server, of a Python program; body is what it takes."""

    def __init__(self, folder, script, onnx, shape, ready):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        python = os.environ.get("SERVE_PYTHON") or os.environ.get("TORCH_PYTHON") or sys.executable
        self.log = open(folder / "other.log", "wb")  # pylint: disable=consider-using-with
        self.process = subprocess.Popen([python, "-c", script, str(onnx), ",".join(map(str, shape)), str(self.port)], stdout=self.log, stderr=self.log, start_new_session=True)
        self.address, self.ready = f"127.0.0.1:{self.port}", ready
        b.wait_until(lambda: self.process.poll() is not None or self.is_ready(), 120, "the other server")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for number in (signal.SIGTERM, signal.SIGKILL):  # PyTriton's server is a process of its own
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
        self.log.close()

    def is_ready(self):
        try:
            return urllib.request.urlopen(f"http://{self.address}{self.ready}").status == 200
        except OSError:
            return False


class Serve:
    """A mfl-serve with one model, and what wrk sends it."""

    def __init__(self, folder, source, shape, *options, follows=False):
        self.folder, self.elements, source = folder, 1, str(source)
        for dim in shape:
            self.elements *= dim
        ready, write = os.pipe()
        command = [b.program("serve/mfl-serve"), "--follow" if follows else "--model", f"m={source}", "--listen", "127.0.0.1:0", "--ready-fd", str(write), "--exit-with-stdin",
                   "--log-level", "warn", *options]
        command = [*(["taskset", "-c", str(PINNED[0])] if PINNED else []), *command]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[write])
        os.close(write)
        with os.fdopen(ready) as pipe:
            self.url = "http://" + pipe.readline().strip()
        b.wait_until(self.is_ready, 30, "the model to be loaded")
        self.idle = b.memory(self.process.pid)[0]
        self.bytes = 4 if source.startswith("identity") else 1  # the synthetic data sets have pixels
        dims, kind = ",".join(map(str, (1, *shape))), "FP32" if self.bytes == 4 else "UINT8"
        values = ",".join(f"{(i % 97) / 97:.4f}" if self.bytes == 4 else str(i % 256) for i in range(self.elements))
        head = f'{{"inputs":[{{"name":"input","shape":[{dims}],"datatype":"{kind}",'
        self.json = head + f'"data":[{values}]}}]}}'
        self.binary = head + f'"parameters":{{"binary_data_size":{self.bytes * self.elements}}}}}],"parameters":{{"binary_data_output":true}}}}'

    @property
    def address(self):
        return self.url[7:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def is_ready(self):
        try:
            return urllib.request.urlopen(self.url + "/v2/health/ready").status == 200
        except OSError:
            return False

    def rows_and_batches(self):
        text = urllib.request.urlopen(self.url + "/metrics").read().decode()
        return [int(re.search(rf'^mfl_serve_{name}_total{{model="m"}} (\d+)$', text, re.M)[1]) for name in ("rows", "batches")]

    def script(self, binary):
        lines = ['wrk.method = "POST"', 'wrk.path = "/v2/models/m/infer"']
        if binary:
            lines += [f'wrk.body = [[{self.binary}]] .. string.rep("{chr(92)}0{chr(92)}0{chr(92)}0{chr(92)}63", {self.elements * self.bytes // 4})',
                      f'wrk.headers["Inference-Header-Content-Length"] = "{len(self.binary)}"']
        else:
            lines += [f"wrk.body = [[{self.json}]]"]
        path = self.folder / "ask.lua"
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    def load(self, connections, seconds, binary):
        """A row of the table."""
        before, cpu = self.rows_and_batches(), b.processor_seconds(self.process.pid)
        pin = ["taskset", "-c", str(PINNED[1])] if PINNED else []
        run = subprocess.run([*pin, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", self.script(binary), self.url], text=True,
                             stdout=subprocess.PIPE, check=True).stdout
        cpu, after = b.processor_seconds(self.process.pid) - cpu, self.rows_and_batches()
        if "Non-2xx" in run or "Socket errors" in run:
            raise SystemExit(run)
        rows, batches = after[0] - before[0], after[1] - before[1]
        latency = {share: re.search(rf"^ +{share}% +(\S+)$", run, re.M)[1] for share in (50, 99)}
        return [connections, f"{float(re.search(r'Requests/sec: +(.*)', run)[1]):,.0f}", latency[50], latency[99], f"{1e6 * cpu / rows:.1f}",
                f"{rows / batches:.1f}"]


def make_model(folder, model):
    """Files of a model that was trained for one step: safetensors and ONNX."""
    shape = SHAPES[model]
    files = [folder / f"{model}.safetensors", folder / f"{model}.onnx"]
    data = "x=synthetic:" + ",".join(map(str, shape)) + ":10:64:32:1"
    with b.Server() as server, b.Daemons(server.address, 1, "solo", data):
        job = server.submit(f"name: bench\nrounds: 1\nmodel: {model}\ndata: {{name: x, partition: iid, clients: 1}}\ntraining: {{lr: 0.01, batch: 32}}\n")
        b.wait_until(lambda: server.rounds(job), 120, "the job's end")
        for file in files:
            server.mfl("pull", job, "-o", str(file), *(["--format", "onnx"] if file.suffix == ".onnx" else []))
    return files


def onnxruntime_seconds(path, shape, seconds):
    """Of a row alone, and of a row of 32; None without onnxruntime."""
    python = os.environ.get("TORCH_PYTHON")
    if not python:
        return None
    run = subprocess.run([python, "-c", ORT, str(path), ",".join(map(str, shape)), str(seconds)], stdout=subprocess.PIPE, text=True, check=False)
    return [float(line) for line in run.stdout.split()] if not run.returncode else None


# ---- open loop ----

# An arrival waits for a free connection, so fewer would cap what a server can have under way: 64 and 6.4 ms are 10,000 a second.
OPEN_CONNECTIONS = 256


def arrivals(address, path, body, rate, seconds, json_bytes=0, connections=64):
    """What the generator says of one run."""
    command = [b.program("bench/mfl-bench-arrivals"), address, path, "--rate", str(rate), "--seconds", str(seconds), "--connections", str(connections)]
    if body:
        command += ["--body", str(body)]
    if json_bytes:
        command += ["--json-bytes", str(json_bytes)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seen = json.loads(run.stdout) if run.stdout else None
    if seen:
        seen["cpu_us"] = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e6 / max(seen["answered"], 1)
    return seen or {"p99_ms": float("inf"), "failed": 1, "lost": 0, "answered": 0, "planned": 1, "why": run.stderr}


def highest_rate(ask, p99_ms, first):
    """(rate, what was measured there): doubled while it holds, then halved six times between; each rate that fails is tried twice."""
    def holds(rate):
        for _ in range(2):
            seen = ask(rate)
            if seen["p99_ms"] <= p99_ms and not seen["failed"] and not seen["lost"] and seen["answered"] == seen["planned"]:
                return seen
        return None

    low, high, best = 0, first, None
    while True:
        seen = holds(high)
        if not seen:
            break
        low, best, high = high, seen, high * 2
    for _ in range(6):
        middle = (low + high) / 2
        seen = holds(middle)
        if seen:
            low, best = middle, seen
        else:
            high = middle
    return low, best


def open_loop(folder, model, arguments):
    """Rows of the table of highest rates."""
    safetensors, onnx = make_model(folder, model)
    shape, rows, rate_of = SHAPES[model], [], {}
    elements = 1
    for dim in shape:
        elements *= dim
    floats = folder / "floats"
    floats.write_bytes(struct.pack(f"<{elements}f", *[(i % 97) / 97 for i in range(elements)]))
    head = json.dumps({"inputs": [{"name": "input", "shape": [1, *shape], "datatype": "FP32", "parameters": {"binary_data_size": 4 * elements}}],
                       "outputs": [{"name": "logits", "parameters": {"binary_data": True}}]}).encode()
    tensor = folder / "tensor"
    tensor.write_bytes(head + floats.read_bytes())

    def measure(name, address, path, body, json_bytes):
        rate, seen = highest_rate(lambda r: arrivals(address, path, body, r, arguments.seconds, json_bytes, OPEN_CONNECTIONS), arguments.p99, 50)
        rate_of[name] = rate
        rows.append([f"{model}, {name}", f"{rate:,.0f}", *(f"{seen[k]:.2f}" if seen else "" for k in ("p50_ms", "p99_ms", "p999_ms")), f"{seen['cpu_us']:.0f}" if seen else "",
                     f"{rate_of['mfl-serve'] / rate:.2f}" if rate else ""])

    with Serve(folder, safetensors, shape, "--threads", str(arguments.instances), "--instances", str(arguments.instances),
               *(["--precision", arguments.precision] if arguments.precision else [])) as serve:
        body = folder / "ours"
        data = bytes(i % 256 for i in range(elements)) if serve.bytes == 1 else floats.read_bytes()
        body.write_bytes(serve.binary.encode() + data)
        measure("mfl-serve", serve.address, "/v2/models/m/infer", body, len(serve.binary))
    with Other(folder, FASTAPI, onnx, shape, "/ready") as other:
        if other.process.poll() is None:
            measure("FastAPI + onnxruntime", other.address, "/infer", floats, 0)
        else:
            rows.append([f"{model}, FastAPI: " + (folder / "other.log").read_text().strip().split("\n")[-1][:60], *[""] * 6])
    with Other(folder, PYTRITON, onnx, shape, "/v2/models/m/ready") as other:
        if other.process.poll() is None:
            measure("PyTriton + onnxruntime", other.address, "/v2/models/m/infer", tensor, len(head))
        else:
            rows.append([f"{model}, PyTriton: " + (folder / "other.log").read_text().strip().split("\n")[-1][:60], *[""] * 6])
    return rows


def check(folder, seconds):
    """The generator at half of wrk's rate beside hey at that rate, and at a rate that wrk reached."""
    rows = []
    with Serve(folder, "identity:4", (4,)) as serve:
        body = folder / "json"
        body.write_text(serve.json + "")
        run = subprocess.run(["wrk", "-t1", "-c64", f"-d{seconds}s", "--latency", "-s", serve.script(False), serve.url], text=True, stdout=subprocess.PIPE,
                             check=True).stdout
        most = float(re.search(r"Requests/sec: +(.*)", run)[1])
        rows.append(["wrk, 64 connections", f"{most:,.0f}", *(re.search(rf"^ +{s}% +(\S+)$", run, re.M)[1] for s in (50, 99))])
        for share in (0.1, 0.5, 0.8):
            seen = arrivals(serve.address, "/v2/models/m/infer", body, most * share, seconds)
            rows.append([f"arrivals, {share:.0%} of it", f"{seen['answers_per_second']:,.0f}", f"{seen['p50_ms']:.2f}ms", f"{seen['p99_ms']:.2f}ms"])
        if shutil.which("hey"):
            rate = most * 0.1
            run = subprocess.run(["hey", "-z", f"{seconds}s", "-c", "16", "-q", str(int(rate / 16)), "-m", "POST", "-D", str(body), serve.url + "/v2/models/m/infer"],
                                 text=True, stdout=subprocess.PIPE, check=True).stdout
            at = {s: float(re.search(rf" {s}%+ in ([0-9.]+) secs", run)[1]) * 1e3 for s in (50, 99)}
            reached = float(re.search(r"Requests/sec:\s+(.*)", run)[1])
            rows.append(["hey, 10% of it, 16 connections", f"{reached:,.0f}", *(f"{at[s]:.2f}ms" for s in (50, 99))])
    b.table(["", "requests/s", "p50", "p99"], rows)


# ---- new versions, and guests that mean no good ----

def rate_of(serve, body, json_bytes, arguments, share):
    """A share of the highest open-loop rate."""
    most, _ = highest_rate(lambda r: arrivals(serve.address, "/v2/models/m/infer", body, r, 2, json_bytes), arguments.p99, 50)
    return most * share


def our_body(folder, serve):
    body = folder / "ours"
    data = bytes(i % 256 for i in range(serve.elements)) if serve.bytes == 1 else struct.pack(f"<{serve.elements}f", *[0.5] * serve.elements)
    body.write_bytes(serve.binary.encode() + data)
    return body, len(serve.binary)


def swaps(folder, model, arguments):
    """A new version every second at 70% of the highest rate, beside the same load without; then a start from the cache after SIGKILL."""
    file, _ = make_model(folder, model)
    versions = [file.read_bytes(), file.read_bytes()[:-4] + struct.pack("<f", 0.25)]
    weights, cache = len(versions[0]) / 1e6, folder / "cache"
    rows = []
    with Serve(folder, file, SHAPES[model], "--cache-dir", str(cache)) as serve:
        body, json_bytes = our_body(folder, serve)
        idle = b.memory(serve.process.pid)[0] / 1e6
        rate = rate_of(serve, body, json_bytes, arguments, 0.7)
        one = b.memory(serve.process.pid)[0] / 1e6
        seen = {}
        for name in ("steady", "with 20 new versions"):
            swapped, most, stop = 0, 0, threading.Event()

            def load(name=name):
                seen[name] = arrivals(serve.address, "/v2/models/m/infer", body, rate, 20, json_bytes)
                stop.set()

            thread = threading.Thread(target=load)
            thread.start()
            while not stop.wait(0.95):
                if name != "steady" and swapped < 20:
                    swapped += 1
                    (folder / "new").write_bytes(versions[swapped % 2])
                    os.rename(folder / "new", file)
                most = max(most, b.memory(serve.process.pid)[0] / 1e6)
            thread.join()
            text = urllib.request.urlopen(serve.url + "/metrics").read().decode()
            taken = int(re.search(r'^mfl_serve_swaps_total\{model="m"\} (\d+)$', text, re.M)[1]) - 1
            one_run = seen[name]
            rows.append([f"{model}, {name}: {taken} served", f"{rate:,.0f}", f"{one_run['p50_ms']:.2f}", f"{one_run['p99_ms']:.2f}",
                         one_run["failed"] + one_run["lost"], f"{most:.0f}"])
        rows.append([f"{model}: p99 with new versions / steady {seen['with 20 new versions']['p99_ms'] / seen['steady']['p99_ms']:.2f}; idle {idle:.0f} MB, "
                     f"one version under load {one:.0f} MB, a file has {weights:.1f} MB", *[""] * 5])
        serve.process.kill()
    begin = time.monotonic()
    os.unlink(file)
    with Serve(folder, file, SHAPES[model], "--cache-dir", str(cache)):
        rows.append([f"{model}: ready {time.monotonic() - begin:.2f} s after it was killed, from the cache alone", *[""] * 5])
    return rows


def committed(folder, model, rounds=20):
    """From the commit of each round of a job that is followed, by the server's clock, until a request that was answered by it, or by a later round,
    has its answer; one connection asks without a pause."""
    shape, of, first = SHAPES[model], {}, {}
    data = "x=synthetic:" + ",".join(map(str, shape)) + ":10:64:32:1"
    with b.Server() as server, b.Daemons(server.address, 1, "solo", data):
        job = server.submit(f"name: bench\nrounds: {rounds}\nmodel: {model}\ndata: {{name: x, partition: iid, clients: 1}}\ntraining: {{lr: 0.01, batch: 32}}\n")
        with Serve(folder, job, shape, "--server", server.address, "--cache-dir", str(folder / f"followed-{model}"), follows=True) as serve:
            asks, looks = (http.client.HTTPConnection(serve.address, timeout=60) for _ in range(2))
            begin = time.time()
            while max(of.values(), default=0) < rounds:
                asks.request("POST", "/v2/models/m/infer", serve.json)
                said = json.loads(asks.getresponse().read())
                now, version = time.time(), said["model_version"]
                first.setdefault(version, now)
                if version not in of:
                    looks.request("GET", "/v2/models/m")
                    about = json.loads(looks.getresponse().read())
                    of[about["versions"][0]] = about["parameters"]["round"]
                if now - begin > 300:
                    raise SystemExit(f"{model}: round {rounds} was not served within 300 s")
        answered = sorted((of[v], seen) for v, seen in first.items() if v in of)
        seconds = []
        for one in server.rounds(job):
            at = one["committed_unix_ms"] / 1e3
            if at >= begin:  # those before were there when the first request came
                seconds.append(next(seen for number, seen in answered if number >= one["round"]) - at)
    return [f"{model}", len(seconds), len(answered), *(f"{b.percentile(seconds, s):.2f}" for s in (0.5, 0.99)), f"{max(seconds):.2f}"]


class Guests:
    """10,000 connections that are idle, 1,000 that send a byte per second, and 100 per second that send garbage."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.place = host, int(port)
        self.n_idle = min(10000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 3000)
        self.stop = threading.Event()
        self.sockets = [socket.create_connection(self.place) for _ in range(self.n_idle + 1000)]
        for sock in self.sockets[self.n_idle:]:
            sock.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nX: ")
        self.thread = threading.Thread(target=self.bother)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        for sock in self.sockets:
            sock.close()

    def bother(self):
        turn = 0
        while not self.stop.wait(0.01):
            turn += 1
            for sock in self.sockets[self.n_idle + turn % 100::100]:
                try:
                    sock.send(b"x")
                except OSError:
                    pass
            with socket.create_connection(self.place) as sock:
                sock.sendall(os.urandom(500))


HOSTILE_TURNS = 9


def hostile(folder, arguments):
    """The load of others alone, while guests bother another server on this machine, which costs processor time, too, and while they bother this one; in turn, as
    a p99 of seconds differs from the next by more than what they do."""
    rows, seen = [], {}
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    (folder / "other").mkdir()
    with Serve(folder, "identity:64", (64,)) as serve, Serve(folder / "other", "identity:64", (64,)) as other:
        body, json_bytes = our_body(folder, serve)
        rate = rate_of(serve, body, json_bytes, arguments, 0.3)

        def measure(name):
            before = b.processor_seconds(serve.process.pid)
            one = arrivals(serve.address, "/v2/models/m/infer", body, rate, arguments.seconds, json_bytes)
            one["us"] = 1e6 * (b.processor_seconds(serve.process.pid) - before) / max(1, one["answered"])
            one["memory"] = b.memory(serve.process.pid)[0] / 1e6
            seen.setdefault(name, []).append(one)

        for _ in range(HOSTILE_TURNS):
            measure("alone")
            with Guests(other.address):
                measure("guests at another server")
            with Guests(serve.address) as guests:
                measure(f"beside {guests.n_idle} idle, 1,000 slow and 100 garbled connections per second")
        for name, turns in seen.items():
            middle = {key: statistics.median(one[key] for one in turns) for key in ("us", "p50_ms", "p99_ms")}
            rows.append([f"{name}, {middle['us']:.1f} us of CPU time per request", f"{rate:,.0f}", f"{middle['p50_ms']:.2f}", f"{middle['p99_ms']:.2f}",
                         sum(one["failed"] + one["lost"] for one in turns), f"{max(one['memory'] for one in turns):.0f}"])
        alone, elsewhere, beside = ([one["p99_ms"] for one in turns] for turns in seen.values())
        rows.append([f"p99 beside them / alone {statistics.median(y / x for x, y in zip(alone, beside)):.2f}, / with guests at another server "
                     f"{statistics.median(y / x for x, y in zip(elsewhere, beside)):.2f} (medians of {HOSTILE_TURNS} turns)", *[""] * 5])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--models", nargs="*", default=["lenet5", "fedavg-cnn"], choices=[*SHAPES])
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--p99", type=float, default=20)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--swaps", action="store_true")
    parser.add_argument("--committed", action="store_true")
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--instances", type=int, default=1, help="of --open: networks of mfl-serve, each on a thread of its own")
    parser.add_argument("--precision", choices=["fp32", "bf16"], help="of --open: mfl-serve's")
    parser.add_argument("--one-core", action="store_true", help="the server on core 0, wrk on core 1")
    arguments = parser.parse_args()
    by_wrk = arguments.check or not (arguments.open or arguments.swaps or arguments.committed or arguments.hostile)
    if by_wrk and not shutil.which("wrk"):
        sys.exit("no wrk here; on Debian: apt-get install wrk")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mfl-bench-"))
    rows = []
    try:
        if arguments.check:
            check(folder, arguments.seconds)
        if arguments.open:
            rows = [row for model in arguments.models for row in open_loop(folder, model, arguments)]
            b.table(["", f"highest rate, p99 <= {arguments.p99:g} ms", "p50 ms", "p99 ms", "p99.9 ms", "generator us", "mfl-serve's / its"], rows)
        if arguments.swaps or arguments.hostile:
            rows = [row for model in arguments.models if arguments.swaps for row in swaps(folder, model, arguments)]
            rows += hostile(folder, arguments) if arguments.hostile else []
            b.table(["", "requests/s", "p50 ms", "p99 ms", "failed", "MB resident, at most"], rows)
        if arguments.committed:
            rows = [committed(folder, model) for model in arguments.models]
            b.table(["from a commit to an answer", "rounds", "versions that answered", "s, median", "s, 99%", "s, most"], rows)
        if arguments.check or arguments.open or arguments.swaps or arguments.committed or arguments.hostile:
            return
        PINNED.extend([0, 1] if arguments.one_core else [])
        for name, source, shape in [("identity", "identity:4", (4,)), *((m, None, SHAPES[m]) for m in arguments.models)]:
            onnx = None
            if not source:
                source, onnx = make_model(folder, name)
            with Serve(folder, source, shape) as serve:
                for binary in (False, True):
                    for connections in arguments.connections:
                        rows.append([f"{name}, {'binary' if binary else 'JSON'}", *serve.load(connections, arguments.seconds, binary)])
                rows.append([f"{name}: idle memory {serve.idle / 1e6:.0f} MB, in the end {b.memory(serve.process.pid)[0] / 1e6:.0f} MB", *[""] * 6])
            seconds = onnx and onnxruntime_seconds(onnx, shape, 2)
            if seconds:
                rows.append([f"{name}, onnxruntime alone, 1 and 32 rows", "", "", "", "", " ".join(f"{1e6 * s:.1f}" for s in seconds), ""])
        b.table(["", "connections", "requests/s", "p50", "p99", "CPU us/request", "rows/batch"], rows)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
