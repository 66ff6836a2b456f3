#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The privacy accountant beside Google's dp-accounting (pip install dp-accounting): privacy.py BUILD_DIR [--rows N] [--seed N]
    [--jobs N] [--write FILE]

Random noise, sampling rates, rounds and deltas, every fifth row with two or three kinds of rounds: epsilon of both, by privacy loss
distributions in steps of 1e-4. Before them come rows that are often cited, and three calibrations. Prints the rows that differ most, and counts
those beyond 1e-3 and .1%, those where the own epsilon is above the one by Renyi's divergence, and those that took more than a second of
processor time. Exits with 1 if there is one of either of the first two. tests/e2e/test_accountant.py does the same in the nightly tests.
--write: the rows with dp-accounting's epsilon, as tests/e2e/privacy_rows.json has them, which tests/e2e/test_privacy.py reads.
"""
import argparse
import itertools
import json
import math
import multiprocessing
import os
import random
import subprocess
from importlib import metadata

import dp_accounting
from dp_accounting.pld import pld_privacy_accountant


def theirs(parts, delta):
    accountant = pld_privacy_accountant.PLDAccountant(neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for sigma, q, rounds in parts:
        accountant.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma)), rounds)
    return accountant.get_epsilon(delta)


def answer(build, *words):
    """What `mfl privacy` says, and the seconds of processor time that it took."""
    process = subprocess.Popen([os.path.join(build, 'cli', 'mfl'), 'privacy', *words, '--json'], stdout=subprocess.PIPE)
    text = process.stdout.read()
    process.stdout.close()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise ValueError('mfl privacy %s: status %d' % (' '.join(words), process.returncode))
    return json.loads(text), used.ru_utime + used.ru_stime


def ours(build, parts, delta):
    lists = [','.join(repr(p[i]) for p in parts) for i in range(3)]
    got, seconds = answer(build, '--sigma', lists[0], '--q', lists[1], '--rounds', lists[2], '--delta', repr(delta))
    return got['epsilon'], got['epsilon_rdp'], seconds


# (sigma, q, rounds, delta, epsilon of dp-accounting 0.6.0), and (epsilon, q, rounds, delta, sigma).
CITED = [(1, .01, 1000, 1e-5, 1.828244), (.76, .01, 1000, 1e-6, 4.284302), (.4975, 1e-4, 100, 1e-8, 1.999301), (1, 1, 1, 1e-5, 4.377178),
         (4, 1, 100, 1e-5, 13.206712), (.8, .1, 100, 1e-5, 10.976378), (1, .1, 100, 1e-5, 7.046603), (2, .5, 50, 1e-5, 9.473594),
         (.6, .001, 3000, 1e-6, 2.516309), (5, 1, 200, 1e-3, 12.069668)]
CALIBRATED = [(8, .1, 100, 1e-5, .93593), (2, .1, 100, 1e-5, 2.24772), (1, .05, 200, 1e-5, 2.83860)]


def draw(rng):
    return (round(math.exp(rng.uniform(math.log(0.5), math.log(8))), 4), round(math.exp(rng.uniform(math.log(1e-4), 0)), 6),
            int(math.exp(rng.uniform(0, math.log(3000)))))


def candidates(seed):
    rng = random.Random(seed)
    for i in itertools.count():
        parts = [draw(rng) for _ in range(2 + i // 5 % 2 if i % 5 == 4 else 1)]
        yield parts, 10 ** -rng.uniform(3, 8)


def measure(build, parts, delta):
    epsilon, rdp, seconds = ours(build, parts, delta)
    if epsilon is None or epsilon > 50:  # of no use to anybody
        return None
    other = theirs(parts, delta)
    return abs(epsilon - other), parts, delta, epsilon, other, rdp, seconds


def compare(build, seed, n, jobs=1):
    """n random rows: (difference, parts, delta, epsilon, theirs, by Renyi's divergence, seconds of processor time)."""
    drawn, rows = candidates(seed), []
    with multiprocessing.Pool(jobs) as pool:
        while len(rows) < n:
            batch = [(build, *c) for c in itertools.islice(drawn, n - len(rows))]
            rows += [row for row in pool.starmap(measure, batch, chunksize=1) if row]
    return rows


def beyond(row):
    """More than 1e-3, or more than .1%."""
    return row[0] > 1e-3 or row[0] > 1e-3 * max(row[4], 1e-9)


def cited(build):
    """True: all are as published."""
    good = True
    for sigma, q, rounds, delta, epsilon in CITED:
        got, _, seconds = ours(build, [(sigma, q, rounds)], delta)
        good &= abs(got - epsilon) <= 1e-4
        print(f'sigma {sigma}, q {q}, {rounds} rounds, delta {delta:g}: epsilon {got:.6f}, published {epsilon:.6f}, {seconds:.2f} s')
    for epsilon, q, rounds, delta, sigma in CALIBRATED:
        got, seconds = answer(build, '--calibrate', repr(epsilon), '--q', repr(q), '--rounds', repr(rounds), '--delta', repr(delta))
        good &= abs(got['sigma'] - sigma) <= 1e-4
        print(f'epsilon {epsilon}, q {q}, {rounds} rounds, delta {delta:g}: sigma {got["sigma"]:.5f}, published {sigma:.5f}, {seconds:.2f} s')
    return good


def write(path, rows, command):
    lines = ',\n'.join(json.dumps({'parts': parts, 'delta': delta, 'epsilon': other}) for _, parts, delta, _, other, _, _ in rows)
    with open(path, 'w', encoding='utf-8') as f:
        f.write('{"by": "dp-accounting %s, %s", "rows": [\n%s\n]}\n' % (metadata.version('dp-accounting'), command, lines))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('build')
    p.add_argument('--rows', type=int, default=200)
    p.add_argument('--seed', type=int, default=1)
    p.add_argument('--jobs', type=int, default=1)
    p.add_argument('--write')
    args = p.parse_args()
    good = cited(args.build)
    rows = compare(args.build, args.seed, args.rows, args.jobs)
    if args.write:
        write(args.write, rows, f'bench/privacy.py --rows {args.rows} --seed {args.seed} --write')
    rows.sort(key=lambda r: -r[0])
    print(f'{"off":>8} {"mfl":>9} {"google":>9} {"rdp":>9} {"s":>5}  delta, (sigma, q, rounds)')
    for off, parts, delta, epsilon, other, rdp, seconds in rows[:10]:
        print(f'{off:8.1e} {epsilon:9.5f} {other:9.5f} {rdp:9.5f} {seconds:5.2f}  {delta:.1e}, {parts}')
    n_beyond, n_above = sum(map(beyond, rows)), sum(r[3] > r[5] + 1e-9 for r in rows)
    seconds = sorted(r[6] for r in rows)
    print(f'{len(rows)} rows: {n_beyond} differ by more than 1e-3 or .1%; {n_above} above RDP; {sum(s > 1 for s in seconds)} took more than a '
          f'second of processor time (median {seconds[len(seconds) // 2]:.2f}, most {seconds[-1]:.2f})')
    return 0 if good and not n_beyond and not n_above else 1


if __name__ == '__main__':
    raise SystemExit(main())
