#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One client over several workers beside one worker, and beside PyTorch: team.py BUILD_DIR [--workers N] [--rounds N] [--models ...]

Each round runs every contender once, one after another; the table has medians over the rounds, in milliseconds a step:
"alone" is a job without `parallel` on one thread; "1" and "N" are teams of one and N threads with batch / N rows a grain, which give
the same params bit for bit, so "1/N" is how they scale; "ddp" is PyTorch's DistributedDataParallel over gloo, N processes of one thread, with the best of three
bucket sizes ($TORCH_PYTHON names the interpreter; without it this column is left out). "to float" is the time of N threads with exact sums
over that of N threads with sums of floats (`exact: false`), run one after the other in alternating order: the median of the rounds' ratios,
and the same of processor time, which depends less on other load.
"""
import argparse
import os
import statistics
import subprocess
import sys

CASES = [("fedavg-cnn", 32), ("resnet20", 32), ("vit-tiny", 32), ("char-gpt", 10)]
BUCKETS = (1, 4, 25)
HERE = os.path.dirname(os.path.abspath(__file__))


def run(command, **extra):
    try:
        done = subprocess.run(command, env=dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", **extra),
                              capture_output=True, text=True)
    except OSError as e:
        sys.exit(f"{command[0]}: {e.strerror}: build first (./dev build) and name the build directory; $TORCH_PYTHON is a Python with PyTorch, or unset")
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return [float(word) for word in done.stdout.split()]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--models", nargs="+", default=[m for m, _ in CASES], choices=[m for m, _ in CASES])
    args = p.parse_args()
    python, n = os.environ.get("TORCH_PYTHON"), args.workers
    print(f"{'model':12} {'batch':>5} {'alone':>8} {'1':>8} {str(n):>8} {'alone/' + str(n):>8} {'1/' + str(n):>8} {'exchange':>8} {'to float':>8} {'cpu':>6}"
          + (f" {'ddp':>8} {'ddp/' + str(n):>8}" if python else ""))
    if not python:
        print("without PyTorch: $TORCH_PYTHON is not set", file=sys.stderr)
    for model, batch in CASES:
        if model not in args.models:
            continue
        steps = {"vit-tiny": 24, "resnet20": 60}.get(model, 120)
        found = {}
        for i in range(args.rounds):
            teams = [("n", n), ("float", n)]
            for name, workers in [("alone", 0), ("1", 1), *(reversed(teams) if i % 2 else teams)]:
                out = run([os.path.join(args.build, "bench", "mfl-bench-team"), "cpu", model, str(batch), str(workers),
                           str(batch // n), str(steps), *(["float"] if name == "float" else [])], MFL_MODULE_DIR=os.path.join(args.build, "kernels", "cpu"))
                found.setdefault(name, []).append(out[0])
                if name == "n":
                    found.setdefault("exchange", []).append(out[2])
                if workers == n:
                    found.setdefault("cpu " + name, []).append(out[5])
            for bucket in BUCKETS if python else ():
                found.setdefault(f"ddp{bucket}", []).append(
                    run([python, os.path.join(HERE, "team_torch.py"), model, str(batch), str(n), str(steps), str(bucket)])[0])
        wall, cpu = (statistics.median(a / b for a, b in zip(found[part + "n"], found[part + "float"])) for part in ("", "cpu "))
        ms = {name: statistics.median(values) / 1000 for name, values in found.items()}
        ddp = min((v for name, v in ms.items() if name.startswith("ddp")), default=None)
        print(f"{model:12} {batch:5} {ms['alone']:8.2f} {ms['1']:8.2f} {ms['n']:8.2f} {ms['alone'] / ms['n']:8.2f} {ms['1'] / ms['n']:8.2f} {ms['exchange']:8.2f} "
              f"{wall:8.3f} {cpu:6.3f}"
              + (f" {ddp:8.2f} {ddp / ms['n']:8.2f}" if ddp else ""), flush=True)


if __name__ == "__main__":
    main()
