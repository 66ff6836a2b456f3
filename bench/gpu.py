#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The GPU suite and every GPU benchmark, as one table: what `./dev gpu` runs.

    gpu.py [--build DIR] [--minutes 9] [--out DIR] [--resume [FILE ...]] [--only PART ...] [--budget PART=SECONDS ...]
           [--backend cuda]

Parts, in the order of what they are worth on a card that is there for the first time: smoke (each kernel once, half a minute),
conformance (every operator and precision against the reference), job (pfl-cifar through server and daemon), speed (steps) and
torch (PyTorch on the same card, eager and as a CUDA graph), fusion (clients at once), repeats (one digest), sums (exact sums on
the device, and between devices by NCCL), five, layers (each layer's share of the chip), memcheck (compute-sanitizer), inner
(every variant and plan of the convolutions), compile (torch.compile).

Each result is printed and written to OUT/gpu.jsonl (OUT: DIR/gpu-results) as it is measured. A command ends by itself within
--minutes, with status 75 where something is left to do: --resume goes on there, also with the file of another machine's
command. bench/gpu_run.py says how budgets and cuts are dealt with. What was measured for choosing kernels is kept in OUT, too.

It needs no network. What it found missing is said first; where there is no device it says so and ends with status 77.
--backend cpu or reference runs the same parts without a GPU, to try this script itself; --backend cuda with MFL_MODULE_DIR
naming the tests' emulated module tries the parts of CUDA, slowly.
"""
import argparse
import os
import pathlib
import sys

from gpu_machine import library_folders, report_machine
from gpu_parts import PARTS, Parts
from gpu_run import Clock, Record, Runner
from gpu_table import print_tables

HERE = pathlib.Path(__file__).resolve().parent
TABLE_SECONDS = 15
LEFT = 75  # EX_TEMPFAIL


def parse():
    names = [name for name, _, _ in PARTS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=os.environ.get("MFL_BUILD", str(HERE.parent / "build")))
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--out", default=None)
    parser.add_argument("--resume", nargs="*", default=None, metavar="FILE")
    parser.add_argument("--only", nargs="*", choices=names)
    parser.add_argument("--budget", nargs="*", default=[], metavar="PART=SECONDS")
    parser.add_argument("--backend", default="cuda", choices=["cuda", "cpu", "reference"])
    options = parser.parse_args()
    options.budgets = {}
    for text in options.budget:
        name, _, seconds = text.partition("=")
        if name not in names or not seconds.isdigit():
            parser.error(f"--budget {text}: it is PART=SECONDS, PART being one of {', '.join(names)}")
        options.budgets[name] = int(seconds)
    for path in options.resume or []:
        if not os.path.isfile(path):
            parser.error(f"--resume {path}: there is no such file")
    return options


def environment(options, build, out):
    env = dict(os.environ, MFL_BUILD=str(build), OMP_WAIT_POLICY="passive")
    env.setdefault("MFL_CACHE_DIR", str(out / "cache"))
    if "MFL_MODULE_DIR" not in env and options.backend != "cuda":
        env["MFL_MODULE_DIR"] = str(build / "kernels" / options.backend)
    folders = library_folders() + [f for f in env.get("LD_LIBRARY_PATH", "").split(":") if f]
    env["LD_LIBRARY_PATH"] = ":".join(folders)
    return env


def main():
    options = parse()
    clock = Clock(options.minutes)
    clock.end -= TABLE_SECONDS
    build = pathlib.Path(options.build).resolve()
    out = pathlib.Path(options.out or build / "gpu-results").resolve()
    env = environment(options, build, out)
    # The tests' module: no speed is to be had from it.
    emulated = pathlib.Path(env.get("MFL_MODULE_DIR", "."), "libmfl_cuda_emulated.so").exists()
    machine, ready = report_machine(build, options.backend == "cuda" and not emulated)
    if not ready:
        print("gpu: skipped: no device, or something that it needs is missing (above)")
        return 77
    record = Record(out / "gpu.jsonl", options.resume is not None, [pathlib.Path(f) for f in options.resume or []])
    record.add({"machine": machine})
    runner, parts = Runner(record, clock, env), Parts(options, build, env, emulated)
    chosen = [(name, options.budgets.get(name, budget), list(steps(parts))) for name, steps, budget in PARTS
              if not options.only or name in options.only]
    finished = runner.run_parts(chosen)
    print_tables(record.lines)
    print(f"\n{record.path}: all results")
    if not finished:
        print("gpu: time is over, and not all was done: the same command with --resume goes on")
        return LEFT
    return 1 if any(not line["ok"] for line in record.of("check")) else 0


if __name__ == "__main__":
    sys.exit(main())
