#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`mfl predict` over many rows beside a loop of onnxruntime over the pulled ONNX file: predict.py [--rows 60000] [--models ...].

Both read the same file of bytes, scale it, compute on one thread and write a NumPy file. The table shows processor time (user and
system) of the whole process, of the answers alone (the time of one row is subtracted), and onnxruntime's over mfl's: above 1, mfl is faster.
It needs a Python with onnxruntime: run it with that.
"""
import argparse
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

import numpy as np

import benchlib

LOOP = """
import numpy as np, onnxruntime as ort, sys
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
x, name, parts = np.load(sys.argv[2]), session.get_inputs()[0].name, []
for at in range(0, len(x), 64):
    parts.append(session.run(None, {name: x[at:at + 64]})[0])
np.save(sys.argv[3], np.concatenate(parts))
"""
JOB = """
name: predict
seed: 1
rounds: 1
model: %s
data: {name: d, partition: local}
training: {lr: 0.01, epochs: 1, batch: 32}
"""
SHAPES = {"lenet5": (1, 28, 28), "fedavg-cnn": (1, 28, 28), "resnet20": (3, 32, 32), "mobilenet-v2": (3, 32, 32)}


def spent(command, **env):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, env=dict(os.environ, **env), stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(model, rows, folder):
    rng = np.random.default_rng(1)
    shape = SHAPES[model]
    train = folder / "d.npz"
    np.savez(train, x_train=rng.integers(0, 256, (64, *shape), np.uint8), y_train=np.arange(64) % 10,
             x_test=rng.integers(0, 256, (16, *shape), np.uint8), y_test=np.arange(16) % 10)
    files = {n: folder / f"x{n}.npy" for n in (1, rows)}
    for n, path in files.items():
        np.save(path, rng.integers(0, 256, (n, *shape), np.uint8))
    with benchlib.Server() as server, benchlib.Daemons(server.address, 1, "solo", f"d=npz:{train}"):
        job = server.submit(JOB % model)
        server.mfl("wait", job)
        server.mfl("pull", job, "-o", str(folder / "m.safetensors"))
        server.mfl("pull", job, "--format", "onnx", "--with-input", "-o", str(folder / "m.onnx"))
    mfl = benchlib.program("cli/mfl")
    times = {}
    for n, path in files.items():
        times["mfl", n] = spent([mfl, "predict", folder / "m.safetensors", "--data", path, "--logits", "--backend", "cpu", "-o",
                                 folder / "a.npy"])
        times["ort", n] = spent([sys.executable, "-c", LOOP, folder / "m.onnx", path, folder / "b.npy"], OMP_NUM_THREADS="1",
                                OPENBLAS_NUM_THREADS="1")
    far = np.abs(np.load(folder / "a.npy") - np.load(folder / "b.npy")).max()
    whole = times["mfl", rows], times["ort", rows]
    alone = times["mfl", rows] - times["mfl", 1], times["ort", rows] - times["ort", 1]
    return [model, str(rows), "%.2f" % whole[0], "%.2f" % whole[1], "%.2f" % (whole[1] / whole[0]), "%.2f" % alone[0],
            "%.2f" % alone[1], "%.2f" % (alone[1] / alone[0]), "%.1e" % far]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=60000)
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    args = parser.parse_args()
    rows = []
    for model in args.models:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(model, args.rows, pathlib.Path(folder)))
    benchlib.table(["model", "rows", "mfl s", "ort s", "ort / mfl", "mfl alone", "ort alone", "ort / mfl", "largest difference"], rows)


main()
