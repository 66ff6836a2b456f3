#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mfl-serve under wrk (Debian: wrk): requests per second, latency, and seconds of CPU time per request, which depend less on other load.

`identity` answers its input: what the server itself costs. Of the models there is also what onnxruntime takes for the same rows in a
loop of its own without a server, one thread, in the same run (TORCH_PYTHON: a Python with onnxruntime).

serve.py [--seconds 5] [--connections 1 16 64] [--models lenet5 fedavg-cnn]
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

import benchlib as b

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


class Serve:
    """A mfl-serve with one model, and what wrk sends it."""

    def __init__(self, folder, source, shape, *options):
        self.folder, self.elements, source = folder, 1, str(source)
        for dim in shape:
            self.elements *= dim
        ready, write = os.pipe()
        command = [b.program("serve/mfl-serve"), "--model", f"m={source}", "--listen", "127.0.0.1:0", "--ready-fd", str(write), "--exit-with-stdin",
                   "--log-level", "warn", *options]
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
        run = subprocess.run(["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", self.script(binary), self.url], text=True,
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--models", nargs="*", default=["lenet5", "fedavg-cnn"], choices=[*SHAPES])
    arguments = parser.parse_args()
    if not shutil.which("wrk"):
        sys.exit("no wrk here; on Debian: apt-get install wrk")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mfl-bench-"))
    rows = []
    try:
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
