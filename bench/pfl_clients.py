#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many clients on one daemon beside plain PyTorch in the same run: pfl_clients.py [--rounds N] [--seconds S] [--models M ...].

The work of pfl-research's CIFAR-10 benchmark: clients of 50 images of 3x32x32, one epoch in batches of 10, updates added.
mfl runs whole tasks of its trainer, with one worker and with two; PyTorch loops over the clients with one model and one
thread, in eager and in channels_last format, and the faster one counts. Each round runs every contender once, one after
another, so that what else the machine does falls on all of them alike; the table shows medians over the rounds.
$TORCH_PYTHON names the interpreter whose torch to compare with (default /usr/bin/python3); $MFL_BUILD the build.

"floor": the client's operations (MFLOP, taking `ops` us) at the core's measured peak, or its bytes (MB, `bytes` us) at the
measured rate of copying within the second cache, whichever is longer; "of floor": how many times that mfl takes. Where other
work runs beside it on the machine, peak and copying are measured under it too, and the ratios to PyTorch say more.
"""
import argparse
import os
import statistics
import subprocess
import sys

import benchlib as bench

MODELS = ["logistic", "lenet5", "pfl-cnn"]
STEPS = 5


def run(command, **extra):
    env = dict(os.environ, OMP_WAIT_POLICY="passive", **extra)
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.split()


def mfl(*arguments):
    return run([bench.program("bench/mfl-bench-clients"), *map(str, arguments)],
               MFL_MODULE_DIR=str(bench.BUILD / "kernels" / "cpu"))


def torch(model, seconds, *options):
    python = os.environ.get("TORCH_PYTHON", "/usr/bin/python3")
    command = [python, str(bench.HERE / "clients_torch.py"), model, "10", str(seconds), *options]
    return float(run(command, OMP_NUM_THREADS="1")[-1])


def pairs(words):
    return {key: float(value) for key, value in zip(words[::2], words[1::2])}


def contenders(model, seconds):
    found = {
        "one": lambda: float(mfl("rate", model, 1, 20, seconds)[-1]),
        "two": lambda: float(mfl("rate", model, 2, 20, seconds)[-1]),
        "eager": lambda: torch(model, seconds),
    }
    if model != "logistic":
        found["last"] = lambda: torch(model, seconds, "channels_last")
    return found


def measure(model, rounds, seconds):
    times = {}
    for _ in range(rounds):
        for name, call in contenders(model, seconds).items():
            times.setdefault(name, []).append(call())
    return {name: statistics.median(t) for name, t in times.items()}


def floors_us(count, gflops, gbytes):
    """Of operations, of bytes."""
    return count["client_flops"] / gflops * 1e-3, count["client_bytes"] / gbytes * 1e-3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--models", nargs="*", default=MODELS)
    options = parser.parse_args()
    gflops = max(float(run([bench.program("bench/mfl-bench-train"), "peak", "1"])[-1]) for _ in range(3))
    gbytes = float(mfl("copy", 512)[-1])
    rows, parts = [], []
    for model in options.models:
        count, t = pairs(mfl("count", model)), measure(model, options.rounds, options.seconds)
        best = min(v for k, v in t.items() if k in ("eager", "last"))
        floors = floors_us(count, gflops, gbytes)
        floor = max(floors)
        rows.append([model, f"{count['client_flops'] / 1e6:.1f}", f"{floors[0]:.0f}", f"{count['client_bytes'] / 1e6:.1f}",
                     f"{floors[1]:.0f}", f"{floor:.0f}", f"{t['one']:.0f}", f"{t['one'] / floor:.1f}", f"{t['eager']:.0f}",
                     f"{t.get('last', 0):.0f}", f"{best / t['one']:.1f}", f"{1e6 / t['one']:.0f}", f"{STEPS * 1e6 / t['one']:.0f}",
                     f"{1e6 / best:.0f}", f"{2e6 / t['two']:.0f}"])
        p = pairs(mfl("parts", model))
        rest = t["one"] - p["start"] - p["steps"] - p["end"]
        parts.append([model, *(f"{p[k]:.0f}" for k in ("start", "forward", "steps", "end")), f"{rest:.0f}"])
    print(f"microseconds of CPU time of a client, median of {options.rounds} rounds; peak {gflops:.0f} GFLOP/s, copying {gbytes:.0f} GB/s")
    bench.table(["model", "MFLOP", "ops", "MB", "bytes", "floor", "mfl", "of floor", "eager", "last", "ratio",
                 "clients/s", "steps/s", "torch's clients/s", "mfl x 2 clients/s"], rows)
    print("of these: start, forward (with gathering and loss), all steps, end, and what the daemon adds")
    bench.table(["model", "start", "forward", "steps", "end", "rest"], parts)


if __name__ == "__main__":
    main()
