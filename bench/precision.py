#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step in bf16 beside one in fp32 on the CPU backend: precision.py [BUILD_DIR] [--rounds N] [--models ...].

Each round runs both once, one after the other, so that what else the machine does falls on both; the table shows medians
over the rounds, and fp32's time over bf16's: above 1, bf16 is faster. It needs a processor with avx512_bf16 or amx_bf16;
elsewhere it says why not. --library runs oneDNN's verbose log once for each model instead and shows where the library's
time goes (its primitives, by kind and implementation).
"""
import argparse
import collections
import os
import statistics
import subprocess
import sys

import benchlib

MODELS = ["resnet18", "fedavg-cnn", "resnet20", "char-gpt", "vit-tiny"]
STEPS = {"resnet18": 8, "fedavg-cnn": 80, "resnet20": 25, "char-gpt": 10, "vit-tiny": 10}


def run(args, model, precision, **extra):
    command = [os.path.join(args.build, "bench", "mfl-bench-train"), "cpu", model, str(args.batch), str(args.threads),
               str(STEPS[model]), precision]
    env = dict(os.environ, OMP_WAIT_POLICY="passive", MFL_MODULE_DIR=os.path.join(args.build, "kernels", "cpu"), **extra)
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if "avx512_bf16 or amx_bf16" in done.stderr:
        print(done.stderr.strip())
        sys.exit(0)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def measure(args, model):
    times = {"bf16": [], "fp32": []}
    for _ in range(args.rounds):
        for precision, found in times.items():
            found.append(float(run(args, model, precision).split()[0]))
    return statistics.median(times["fp32"]), statistics.median(times["bf16"])


def show_library(args, model):
    """The verbose log's lines are onednn_verbose,exec,cpu,KIND,IMPLEMENTATION,...,MILLISECONDS."""
    for precision in ("fp32", "bf16"):
        spent = collections.Counter()
        for line in run(args, model, precision, ONEDNN_VERBOSE="1", DNNL_VERBOSE="1").splitlines():
            parts = line.split(",")
            if parts[0].endswith("_verbose") and "exec" in parts:
                at = parts.index("exec")
                spent[parts[at + 2], parts[at + 3]] += float(parts[-1])
        print(f"{model} {precision}: {sum(spent.values()):.1f} ms in the library")
        for (kind, name), ms in spent.most_common(8):
            print(f"  {ms:9.1f}  {kind} {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", default=str(benchlib.BUILD))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--library", action="store_true")
    args = parser.parse_args()
    if args.library:
        for model in args.models:
            show_library(args, model)
        return
    print(f"{'model':<12}{'fp32 us':>12}{'bf16 us':>12}{'ratio':>8}")
    for model in args.models:
        fp32, bf16 = measure(args, model)
        print(f"{model:<12}{fp32:>12.0f}{bf16:>12.0f}{fp32 / bf16:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
