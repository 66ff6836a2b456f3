#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training speed beside PyTorch in the same run: train.py BUILD_DIR [--rounds N] [--quick] [--models MODEL ...]
[--threads N ...] [--cpu].

Each round runs every contender once, one after another, so that what else the machine does falls on all of them alike; the
table shows medians over the rounds. $TORCH_PYTHON names the interpreter whose torch to compare with (default
/usr/bin/python3). "best" is the fastest of default, of what the model may gain by (channels_last for convolutions, PyTorch's
own attention function), and of these with a malloc that keeps its memory. --cpu compares processor time instead of the
clock's, for a machine that has other work.
"""
import argparse
import os
import statistics
import subprocess
import sys

CASES = [("fedavg-cnn", 32), ("fedavg-cnn", 10), ("lenet5", 10), ("lenet5", 32), ("mlp", 10), ("mlp", 32),
         ("logistic", 10), ("resnet20", 32), ("resnet20-gn", 32), ("resnet18", 32), ("mobilenet-v2", 32),
         ("vit-tiny", 32), ("char-lstm", 10), ("char-gpt", 10)]
TUNED = {"MALLOC_TOP_PAD_": "268435456", "MALLOC_TRIM_THRESHOLD_": "1073741824", "MALLOC_MMAP_THRESHOLD_": "1073741824"}
LOOK = "import torch; print(torch.__version__, hasattr(torch.nn.functional, 'scaled_dot_product_attention'))"
HERE = os.path.dirname(os.path.abspath(__file__))


def run(command, **extra):
    env = dict(os.environ, OMP_WAIT_POLICY="passive", **extra)
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return [float(word) for word in done.stdout.split()]


def steps_of(model, quick):
    steps = {"fedavg-cnn": 120, "resnet20": 40, "resnet20-gn": 40, "resnet18": 12, "mobilenet-v2": 24, "vit-tiny": 8, "char-lstm": 40,
             "char-gpt": 40}.get(model, 600)
    return str(steps // 4 if quick else steps)


def variants(args, model):
    """What else PyTorch may gain by than its malloc: name and option of train_torch.py."""
    if model in ("char-gpt", "vit-tiny"):
        return [("sdpa", "sdpa")] if args.sdpa else []
    return [("last", "channels_last")] if model not in ("mlp", "logistic", "char-lstm") else []


def contenders(args, model, batch, threads):
    program = os.path.join(args.build, "bench", "mfl-bench-train")
    modules = {"MFL_MODULE_DIR": os.path.join(args.build, "kernels", "cpu")}
    python = os.environ.get("TORCH_PYTHON", "/usr/bin/python3")
    steps = steps_of(model, args.quick)
    torch = [python, os.path.join(HERE, "train_torch.py"), model, str(batch), str(threads), steps]
    count = {"OMP_NUM_THREADS": str(threads)}
    found = {
        "mfl": lambda: run([program, "cpu", model, str(batch), str(threads), steps], **modules),
        "default": lambda: run(torch, **count),
        "tuned": lambda: run(torch, **count, **TUNED),
    }
    for name, option in variants(args, model):
        found[name] = lambda option=option: run(torch + [option], **count)
        found[name + "+tuned"] = lambda option=option: run(torch + [option], **count, **TUNED)
    return found


def measure(args, model, batch, threads):
    times = {name: [] for name in contenders(args, model, batch, threads)}
    for _ in range(args.rounds):
        for name, call in contenders(args, model, batch, threads).items():
            times[name].append(call()[1 if args.cpu else 0])
    return {name: statistics.median(t) for name, t in times.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--models", nargs="*", default=[], choices=sorted({model for model, _ in CASES}))
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    program = os.path.join(args.build, "bench", "mfl-bench-train")
    python = os.environ.get("TORCH_PYTHON", "/usr/bin/python3")
    version = subprocess.run([python, "-c", LOOK], capture_output=True, text=True)
    if version.returncode:
        sys.exit(f"{python}: no torch: set TORCH_PYTHON")
    version, sdpa = version.stdout.split()
    args.sdpa = sdpa == "True"
    time = "processor time" if args.cpu else "wall time"
    print(f"microseconds of a training step ({time}), median of {args.rounds} rounds; PyTorch {version}")
    print(f"{'model':<12}{'batch':>6}{'threads':>8}{'mfl':>10}{'torch':>10}{'best':>10} {'(which)':<12}"
          f"{'ratio':>7}{'to best':>9}{'GFLOP/s':>9}{'of peak':>9}")
    for threads in args.threads:
        peak = run([program, "peak", str(threads)])[0]
        for model, batch in CASES:
            if args.models and model not in args.models:
                continue
            t = measure(args, model, batch, threads)
            ours = t.pop("mfl")
            which = min(t, key=t.get)
            # Processor time is that of all threads together.
            speed = (threads if args.cpu else 1) * run([program, "flops", model])[0] * batch / ours * 1e-3
            print(f"{model:<12}{batch:>6}{threads:>8}{ours:>10.1f}{t['default']:>10.1f}{t[which]:>10.1f} "
                  f"{'(' + which + ')':<12}{t['default'] / ours:>7.2f}{t[which] / ours:>9.2f}{speed:>9.1f}"
                  f"{speed / peak:>9.1%}", flush=True)
        print(f"peak of {threads} threads: {peak:.1f} GFLOP/s")


if __name__ == "__main__":
    main()
