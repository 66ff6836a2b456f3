#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers of a network in process, one thread, batches of 1, 8 and 32 rows: mfl's `infer`, whose rows depend on no other row, beside onnxruntime and
OpenVINO on the ONNX file that `mfl pull` writes of the same network. SERVE_PYTHON: a Python with onnxruntime and openvino. All three compute in float32: OpenVINO would
take bfloat16 by itself on a processor that has it.

Each of the three runs in turn, for so many rounds, and the median of its processor time per row counts: other load then does not favour one.

infer.py [--rounds 5] [--seconds 0.5] [--models lenet5 ...] [--rows 1 8 32]
"""
import argparse
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import benchlib as b

SHAPES = {"lenet5": "1,28,28", "fedavg-cnn": "1,28,28", "resnet20": "3,32,32", "mobilenet-v2": "3,32,32", "vit-tiny": "3,32,32", "char-lstm": "tokens"}
OTHERS = """
import sys, time, numpy
kind, path, seconds, rows = sys.argv[1], sys.argv[2], float(sys.argv[3]), [int(v) for v in sys.argv[4:]]
def inputs(shape, dtype, n):
    shape = [n] + [d if isinstance(d, int) and d > 0 else 1 for d in list(shape)[1:]]
    count = int(numpy.prod(shape))
    x = numpy.arange(count) % 17
    return (x if "int" in dtype else x / 8).reshape(shape).astype(dtype)
if kind == "onnxruntime":
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    one = session.get_inputs()[0]
    dtype = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(int32)": "int32"}[one.type]
    run = lambda x: session.run(None, {one.name: x})
    shape = one.shape
    make = lambda n: run
else:
    import openvino
    core = openvino.Core()
    def make(n):
        model = core.read_model(path)
        model.reshape([n] + [d.get_length() for d in list(model.input(0).partial_shape)[1:]])
        request = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
        return lambda x: request.infer({0: x}, share_inputs=True, share_outputs=True)
    model = core.read_model(path)
    shape = [0] + [d.get_length() for d in list(model.input(0).partial_shape)[1:]]
    dtype = {"f32": "float32", "i64": "int64", "i32": "int32"}[model.input(0).element_type.get_type_name()]
for n in rows:
    run, x = make(n), inputs(shape, dtype, n)
    run(x)
    done, begin = 0, time.process_time()
    while time.process_time() - begin < seconds:
        run(x)
        done += n
    print((time.process_time() - begin) / done * 1e6)
"""


def write_onnx(folder, model):
    """Of a job of one round."""
    path = folder / f"{model}.onnx"
    if SHAPES[model] == "tokens":
        text = folder / "text.txt"
        text.write_text("".join(chr(32 + i * 7 % 65) for i in range(65 * 200)))
        data, more = f"x=text:{text},length=80,test_fraction=0.1", ""
    else:
        data, more = f"x=synthetic:{SHAPES[model]}:10:64:32:1", ""
    with b.Server() as server, b.Daemons(server.address, 1, "solo", data):
        job = server.submit(f"name: bench\nrounds: 1\nmodel: {model}\ndata: {{name: x, partition: iid, clients: 1}}\ntraining: {{lr: 0.01, batch: 16}}\n{more}")
        b.wait_until(lambda: server.rounds(job), 300, "the job's end")
        server.mfl("pull", job, "-o", str(path), "--format", "onnx")
    return path


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    return [float(line) for line in done.stdout.split()] if not done.returncode else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--models", nargs="+", default=[*SHAPES], choices=[*SHAPES])
    arguments = parser.parse_args()
    python, folder, table, ratios = os.environ.get("SERVE_PYTHON", sys.executable), pathlib.Path(tempfile.mkdtemp(prefix="mfl-bench-")), [], {}
    try:
        for model in arguments.models:
            onnx, rows, seen = write_onnx(folder, model), [str(n) for n in arguments.rows], {"mfl": [], "onnxruntime": [], "OpenVINO": []}
            for _ in range(arguments.rounds):
                seen["mfl"].append(run([b.program("bench/bench_infer"), "cpu", str(arguments.seconds), model, *rows]))
                for kind in ("onnxruntime", "OpenVINO"):
                    seen[kind].append(run([python, "-c", OTHERS, kind, str(onnx), str(arguments.seconds), *rows]))
            for i, n in enumerate(rows):
                us = {kind: statistics.median(one[i] for one in all_) if all(all_) else None for kind, all_ in seen.items()}
                row = [f"{model}, {n}", f"{us['mfl']:.1f}"]
                for kind in ("onnxruntime", "OpenVINO"):
                    if us[kind]:
                        ratios.setdefault(kind, []).append(us[kind] / us["mfl"])
                    row += [f"{us[kind]:.1f}", f"{us[kind] / us['mfl']:.2f}"] if us[kind] else ["", ""]
                table.append(row)
        for kind, all_ in ratios.items():
            table.append([f"geometric mean, {kind}", "", *([""] * 2 if kind == "OpenVINO" else []), "", f"{math.exp(statistics.fmean(map(math.log, all_))):.2f}"])
        b.table(["model, rows", "mfl us/row", "onnxruntime us/row", "its / mfl's", "OpenVINO us/row", "its / mfl's"], [r + [""] * (6 - len(r)) for r in table])
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
