#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a worker of a team holds and how long a step takes, by stage of ZeRO: zero.py BUILD_DIR [--depth N] [--width N] [--workers ...]

Each line is a run of its own (bench/zero.c): bytes per param that the process has resident above what it had before, divided by its
workers, beside what the table in kernels/team/team.h says, and whether it is within 5% and 32 MB of that; and the median of a step.
"float" is `exact: false`. Workers are threads of one process with params of their own, as daemons of a team have them; in stage 3 they
have them once, as daemons of a host. Stage 0 is left out above four workers: it takes as much for each.
"""
import argparse
import os
import subprocess
import sys


def expected(zero, workers, exact):
    size = 8 if exact else 4
    if workers == 1:
        return 4 + size + 8
    return {0: 4 + size + 8, 1: 4 + size + 8 / workers, 2: 4 + (size + 8) / workers, 3: (12 + size) / workers}[zero]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('build')
    p.add_argument('--depth', type=int, default=24)
    p.add_argument('--width', type=int, default=1024)
    p.add_argument('--steps', type=int, default=5)
    p.add_argument('--workers', type=int, nargs='+', default=[1, 2, 4, 8])
    args = p.parse_args()
    program = os.path.join(args.build, 'bench', 'mfl-bench-zero')
    if not os.path.exists(program):
        sys.exit('%s is not there: build first (./dev build), and name the build directory' % program)
    print('%-7s %-5s %-5s %9s %9s %9s %6s %9s' % ('workers', 'zero', 'sums', 'params', 'bytes', 'expected', 'within', 'ms/step'))
    for workers in args.workers:
        for zero in (0,) if workers == 1 else (1, 2, 3) if workers > 4 else (0, 1, 2, 3):
            for sums in ('exact', 'float') if zero < 2 else ('exact',):
                done = subprocess.run([program, 'cpu', str(args.depth), str(args.width), str(workers),
                                       str(zero), sums, str(args.steps)], capture_output=True, text=True,
                                      env=dict(os.environ, OMP_NUM_THREADS='1', OMP_WAIT_POLICY='passive',
                                               MFL_MODULE_DIR=os.path.join(args.build, 'kernels', 'cpu')))
                if done.returncode:
                    sys.exit(done.stderr.strip())
                n, size, us = (float(word) for word in done.stdout.split())
                aim = expected(zero, workers, sums == 'exact')
                print('%7d %5d %-5s %8.1fM %9.2f %9.2f %6s %9.1f' % (workers, zero, sums, n / 1e6, size, aim, 'yes' if size <= 1.05 * aim + 32e6 / n else 'no', us / 1000),
                      flush=True)


if __name__ == '__main__':
    main()
