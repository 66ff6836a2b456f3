#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The privacy accountant beside Google's dp-accounting (pip install dp-accounting): privacy.py BUILD_DIR [--rows N] [--seed N]

Random noise, sampling rates, rounds and deltas, every fifth row with two kinds of rounds: epsilon of both, by privacy loss
distributions in steps of 1e-4. Prints the rows that differ most, and counts those beyond 1e-3 and .1%, those where the own epsilon is
above the one by Renyi's divergence, and those that took more than a second.
"""
import argparse
import json
import math
import os
import random
import subprocess
import time

import dp_accounting
from dp_accounting.pld import pld_privacy_accountant


def theirs(parts, delta):
    accountant = pld_privacy_accountant.PLDAccountant(neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for sigma, q, rounds in parts:
        accountant.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma)), rounds)
    return accountant.get_epsilon(delta)


def ours(build, parts, delta):
    lists = [','.join(repr(p[i]) for p in parts) for i in range(3)]
    start = time.perf_counter()
    done = subprocess.run([os.path.join(build, 'cli', 'mfl'), 'privacy', '--sigma', lists[0], '--q', lists[1], '--rounds', lists[2],
                           '--delta', repr(delta), '--json'], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    return answer['epsilon'], answer['epsilon_rdp'], time.perf_counter() - start


def draw(rng):
    return (round(math.exp(rng.uniform(math.log(0.5), math.log(8))), 4), round(math.exp(rng.uniform(math.log(1e-4), 0)), 6),
            int(math.exp(rng.uniform(0, math.log(3000)))))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('build')
    p.add_argument('--rows', type=int, default=200)
    p.add_argument('--seed', type=int, default=1)
    args = p.parse_args()
    rng, rows = random.Random(args.seed), []
    while len(rows) < args.rows:
        parts = [draw(rng) for _ in range(1 + (len(rows) % 5 == 4))]
        delta = 10 ** -rng.uniform(3, 8)
        epsilon, rdp, seconds = ours(args.build, parts, delta)
        if epsilon is None or epsilon > 50:  # of no use to anybody
            continue
        start = time.perf_counter()
        other = theirs(parts, delta)
        rows.append((abs(epsilon - other), parts, delta, epsilon, other, rdp, seconds, time.perf_counter() - start))
    rows.sort(key=lambda r: -r[0])
    print(f'{"off":>8} {"mfl":>9} {"google":>9} {"rdp":>9} {"s":>5} {"s":>5}  delta, (sigma, q, rounds)')
    for off, parts, delta, epsilon, other, rdp, seconds, other_seconds in rows[:10]:
        print(f'{off:8.1e} {epsilon:9.5f} {other:9.5f} {rdp:9.5f} {seconds:5.2f} {other_seconds:5.2f}  {delta:.1e}, {parts}')
    beyond = sum(r[0] > max(1e-3, 1e-3 * r[4]) for r in rows)
    both = sum(r[0] > 1e-3 or r[0] > 1e-3 * max(r[4], 1e-9) for r in rows)
    seconds = sorted(r[6] for r in rows)
    print(f'{len(rows)} rows: {beyond} differ by more than 1e-3 and .1%, {both} by more than either; '
          f'{sum(r[3] > r[5] + 1e-9 for r in rows)} above RDP; '
          f'{sum(s > 1 for s in seconds)} took more than a second (median {seconds[len(seconds) // 2]:.2f}, most {seconds[-1]:.2f})')


if __name__ == '__main__':
    main()
