#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Methods on uneven data beside published numbers: niid.py BUILD_DIR OUT [--cells iid/fedavg ...] [--rounds N] [--daemons N]

The set-up of Flower's baselines/niid_bench (Fashion-MNIST, two convolutions 5 x 5 of 6 and 16 filters and dense layers of 120 and 84,
10 clients in each of 50 rounds, 10 epochs, batch 64, lr .01, momentum .9, weight decay 1e-5), whose README has the numbers: the best
accuracy over the rounds, in percent. SCAFFOLD's local steps have no momentum here, which it does not go with, and twice the
learning rate instead. A cell takes about ten minutes on two cores. Cells that are done in OUT are not run again;
one whose updates leave aggregation.delta_max says so.
"""
import argparse
import os
import sys

import benchlib

PARTITIONS = {
    'iid': {'partition': 'iid'},
    'dir0.5': {'partition': 'dirichlet', 'alpha': 0.5, 'self_balancing': True, 'min_samples': 10},
    'c1': {'partition': 'pathological', 'classes_per_client': 1, 'class_assignment': 'deterministic'},
    'c2': {'partition': 'pathological', 'classes_per_client': 2},
    'c3': {'partition': 'pathological', 'classes_per_client': 3},
}
STRATEGIES = {'fedavg': {'strategy': 'fedavg'}, 'fedprox': {'strategy': 'fedprox', 'mu': 0.01}, 'fednova': {'strategy': 'fednova'},
              'scaffold': {'strategy': 'scaffold'}}
PUBLISHED = {  # mean and deviation
    ('iid', 'fedavg'): (89.23, .45), ('iid', 'fedprox'): (89.42, .09), ('iid', 'fednova'): (89.36, .09),
    ('dir0.5', 'fedavg'): (88.09, .29), ('dir0.5', 'fedprox'): (88.15, .42), ('dir0.5', 'fednova'): (88.22, .12),
    ('c1', 'fedavg'): (28.39, 17), ('c1', 'fedprox'): (32.65, 6.7), ('c1', 'fednova'): (16.86, 9.3),
    ('c2', 'fedavg'): (78.10, 2.5), ('c2', 'fedprox'): (78.05, 1), ('c2', 'fednova'): (71.67, 2.3),
    ('iid', 'scaffold'): (89.33, .27), ('dir0.5', 'scaffold'): (88.44, .25), ('c1', 'scaffold'): (10, 0),
    ('c2', 'scaffold'): (33.80, 41), ('c3', 'scaffold'): (80.32, 5),
    ('c3', 'fedavg'): (82.43, 1.5), ('c3', 'fedprox'): (82.99, .5), ('c3', 'fednova'): (81.97, 1.3),
}
LAYERS = [{'conv2d': {'filters': 6, 'kernel': 5}}, 'relu', {'maxpool2d': {'kernel': 2}},
          {'conv2d': {'filters': 16, 'kernel': 5}}, 'relu', {'maxpool2d': {'kernel': 2}}, 'flatten',
          {'dense': {'units': 120}}, 'relu', {'dense': {'units': 84}}, 'relu', {'dense': {'units': 10}}]


def job(partition, strategy, rounds):
    steps = {'lr': 0.02} if strategy == 'scaffold' else {'lr': 0.01, 'momentum': 0.9}
    return {'name': f'{partition}-{strategy}', 'seed': 1, 'rounds': rounds, 'model': {'layers': LAYERS},
            'data': {'name': 'fashion-mnist', 'clients': 10, **PARTITIONS[partition]},
            'training': {**steps, 'weight_decay': 1e-5, 'epochs': 10, 'batch': 64},
            'aggregation': STRATEGIES[strategy], 'evaluation': {'batch': 500}}


def run(build, out, cell, rounds, daemons):
    partition, strategy = cell
    rows = benchlib.kept_run(build, os.path.join(out, f'{partition}-{strategy}-{rounds}'), job(partition, strategy, rounds), daemons,
                             ('aggregation.delta_max',))
    best = max((100 * float(r['accuracy']) for r in rows if r['accuracy']), default=0)
    return best, sum(float(r['seconds']) for r in rows), len(rows)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('build')
    p.add_argument('out')
    p.add_argument('--cells', nargs='+', default=['/'.join(c) for c in PUBLISHED], help='PARTITION/STRATEGY')
    p.add_argument('--rounds', type=int, default=50)
    p.add_argument('--daemons', type=int, default=2)
    args = p.parse_args()
    cells = [tuple(c.split('/')) for c in args.cells]
    if unknown := [c for c in cells if c not in PUBLISHED]:
        sys.exit(f'no such cell: {"/".join(unknown[0])}; there are {" ".join("/".join(c) for c in PUBLISHED)}')
    print(f'{"partition":10} {"strategy":9} {"best":>7} {"published":>13} {"off":>6} {"seconds":>8}')
    for cell in cells:
        best, seconds, n = run(os.path.abspath(args.build), args.out, cell, args.rounds, args.daemons)
        mean, deviation = PUBLISHED[cell]
        print(f'{cell[0]:10} {cell[1]:9} {best:7.2f} {mean:7.2f}+-{deviation:<4} {best - mean:+6.2f} {seconds:8.0f}'
              + (f'  diverged in round {n + 1}' if n < args.rounds else ''), flush=True)


if __name__ == '__main__':
    main()
