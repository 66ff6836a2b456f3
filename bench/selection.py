#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Virtual time to an accuracy by selection: selection.py BUILD_DIR OUT [--over 1.3] [--rounds N] [--accuracy A ...] [--seeds N] [--only uniform ...]

Fashion-MNIST on 300 clients of two classes each, whose numbers of samples and speeds (log-normal(1, .6), FedScale's) differ; 10 of
them per round. Every selection draws 13, and the first ten to be done take part; with --over 1 it draws ten and waits for all of
them. One job per selection and seed; done jobs in OUT are not run again. Virtual time is a function of the job, so that the load of the machine does not matter.
"""
import argparse
import os
import statistics

import benchlib

KINDS = {
    'uniform': {'kind': 'uniform'},
    'weighted': {'kind': 'weighted'},
    'power-of-choice': {'kind': 'power-of-choice', 'candidates': 30},
    'oort': {'kind': 'oort'},
}


def job(kind, seed, rounds, over):
    return {'name': kind, 'seed': seed, 'rounds': rounds, 'model': 'mlp',
            'data': {'name': 'fashion-mnist', 'partition': 'distribution', 'clients': 300, 'classes_per_client': 2, 'sigma': 1},
            'training': {'lr': 0.05, 'epochs': 1, 'batch': 20}, 'selection': {'clients': 10, 'over': over, **KINDS[kind]},
            'time': 'virtual', 'trace': {'mu': 1, 'sigma': 0.6, 'speed': 200, 'bandwidth': '1MB'},
            'limits': {'quorum': 0.5}, 'evaluation': {'batch': 500, 'every': 2}}


def run(build, out, kind, seed, rounds, over, daemons):
    folder = os.path.join(out, f'{kind}-{seed}-{rounds}-{over:g}')
    rows = benchlib.kept_run(build, folder, job(kind, seed, rounds, over), daemons)
    return [(float(r['virtual_end']), float(r['accuracy'])) for r in rows if r['accuracy']]


def smooth(rows):
    """The mean accuracy of five evaluations: single ones jump on skewed clients."""
    return [(rows[i][0], sum(a for _, a in rows[i - 4:i + 1]) / 5) for i in range(4, len(rows))]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('build')
    p.add_argument('out')
    p.add_argument('--over', type=float, default=1.3)
    p.add_argument('--rounds', type=int, default=400)
    p.add_argument('--accuracy', type=float, nargs='+', default=[0.65, 0.7, 0.75])
    p.add_argument('--seeds', type=int, default=2)
    p.add_argument('--only', nargs='+', choices=KINDS, default=list(KINDS))
    p.add_argument('--daemons', type=int, default=1)
    args = p.parse_args()
    print('selection        ' + ''.join(f'hours to {a:.2f}  faster ' for a in args.accuracy) + '  hours in all  accuracy at the end')
    floor = {}
    for kind in args.only:
        runs = [smooth(run(os.path.abspath(args.build), args.out, kind, s + 1, args.rounds, args.over, args.daemons)) for s in range(args.seeds)]
        cells = ''
        for a in args.accuracy:
            times = [next((t for t, x in rows if x >= a), None) for rows in runs]
            reached = [t / 3600 for t in times if t is not None]
            median = statistics.median(reached) if len(reached) == len(runs) else None
            floor.setdefault(a, median)
            ratio = f'{floor[a] / median:5.2f}x' if median and floor[a] else '    - '
            cells += (f'{median:13.2f}' if median else f'{len(reached)} of {len(runs)} seeds'.rjust(13)) + f'  {ratio} '
        print(f'{kind:16} {cells} {statistics.median(rows[-1][0] for rows in runs) / 3600:13.2f}  '
              f'{statistics.median(rows[-1][1] for rows in runs):.3f}', flush=True)


if __name__ == '__main__':
    main()
