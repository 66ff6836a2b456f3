#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Robust strategies against attacks, as one table: robust.py BUILD_DIR OUT [--rules ...] [--attacks ...] [--partitions ...] [--all]

20 clients of Fashion-MNIST, 4 of them bad, mlp, 10 steps of batch 32 with lr 0.1 and momentum 0.9 in each of 60 rounds. A cell is one
`mfl run`; cells that are done in OUT are not run again, so an interrupted tournament goes on. Prints markdown, and writes
OUT/robust.md and OUT/robust.csv. The accuracy is the mean of the last five rounds, in percent. A model that diverged has 10.
"""
import argparse
import csv
import os
import sys

import benchlib

F = 4
RULES = {
    'mean': {'strategy': 'fedavg', 'weighting': 'uniform'},
    'median': {'strategy': 'median'},
    'trimmed-mean': {'strategy': 'trimmed-mean', 'f': F},
    'mean-around-median': {'strategy': 'mean-around-median', 'f': F},
    'krum': {'strategy': 'krum', 'f': F},
    'multi-krum': {'strategy': 'multi-krum', 'f': F},
    'bulyan': {'strategy': 'bulyan', 'f': F},
    'rfa': {'strategy': 'rfa'},
    'centered-clip': {'strategy': 'centered-clip', 'clip_radius': 'median'},
    'norm-filter': {'strategy': 'norm-filter', 'f': F},
    'dnc': {'strategy': 'dnc', 'f': F},
    'signguard': {'strategy': 'signguard'},
    'flame': {'strategy': 'flame'},
    'nnm+trimmed-mean': {'strategy': 'trimmed-mean', 'f': F, 'before': 'nnm'},
    'nnm+krum': {'strategy': 'krum', 'f': F, 'before': 'nnm'},
    'arc+rfa': {'strategy': 'rfa', 'f': F, 'before': 'arc'},
    'bucket+rfa': {'strategy': 'rfa', 'before': {'bucket': 2}},
}
ATTACKS = {
    'none': None, 'gaussian': {'attack': 'gaussian', 'scale': 1}, 'sign-flip x10': {'attack': 'sign-flip', 'scale': 10},
    'ipm 100': {'attack': 'ipm', 'scale': 100}, 'ipm 0.1': {'attack': 'ipm', 'scale': 0.1}, 'alie': {'attack': 'alie'},
    'min-max': {'attack': 'min-max'}, 'min-sum': {'attack': 'min-sum'}, 'mimic': {'attack': 'mimic'}, 'lazy': {'attack': 'lazy'},
    'nan': {'attack': 'nan'},
}
PARTITIONS = {'iid': {'partition': 'iid'}, 'dir0.5': {'partition': 'dirichlet', 'alpha': 0.5, 'min_samples': 32}}
USUAL_RULES = ['mean', 'median', 'trimmed-mean', 'mean-around-median', 'krum', 'multi-krum', 'rfa', 'centered-clip', 'norm-filter',
               'nnm+trimmed-mean']
USUAL_ATTACKS = ['none', 'gaussian', 'sign-flip x10', 'ipm 100', 'ipm 0.1', 'alie', 'min-max', 'mimic']


def job(rule, attack, partition, rounds):
    document = {'name': 'tournament', 'seed': 1, 'rounds': rounds, 'model': 'mlp',
                'data': {'name': 'fashion-mnist', 'clients': 20, **PARTITIONS[partition]},
                'training': {'lr': 0.1, 'momentum': 0.9, 'steps': 10, 'batch': 32},
                'aggregation': RULES[rule], 'evaluation': {'batch': 500}}
    if ATTACKS[attack]:
        document['simulation'] = {'share': 0.2, **ATTACKS[attack]}
    return document


def run(build, out, cell, rounds, daemons):
    """The accuracies of a cell's rounds, in percent; fewer rounds than wanted: the model diverged."""
    rows = benchlib.kept_run(build, os.path.join(out, '_'.join(cell).replace(' ', '-') + f'_{rounds}'), job(*cell, rounds), daemons,
                             may_fail=('not finite', 'rejected'))
    return [100 * float(r['accuracy']) for r in rows if r['accuracy']]


def result(accuracies, rounds):
    return sum(accuracies[-5:]) / 5 if len(accuracies) == rounds else 10.0


def table(found, partition, rules, attacks):
    lines = [f'| {partition} | ' + ' | '.join(attacks) + ' |', '|---' * (len(attacks) + 1) + '|']
    for rule in rules:
        cells = [found.get((rule, a, partition)) for a in attacks]
        lines.append(f'| `{rule}` | ' + ' | '.join('' if c is None else f'{c:.1f}' for c in cells) + ' |')
    return '\n'.join(lines) + '\n'


def write(out, found, args):
    text = '\n'.join(table(found, p, args.rules, args.attacks) for p in args.partitions)
    with open(os.path.join(out, 'robust.md'), 'w') as f:
        f.write(text)
    with open(os.path.join(out, 'robust.csv'), 'w', newline='') as f:
        rows = csv.writer(f)
        rows.writerow(['rule', 'attack', 'partition', 'accuracy'])
        rows.writerows([*cell, f'{v:.2f}'] for cell, v in found.items())
    return text


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('build')
    p.add_argument('out')
    p.add_argument('--rules', nargs='+', choices=RULES, metavar='RULE', default=USUAL_RULES, help=' '.join(RULES))
    p.add_argument('--attacks', nargs='+', choices=ATTACKS, metavar='ATTACK', default=USUAL_ATTACKS, help=', '.join(ATTACKS))
    p.add_argument('--partitions', nargs='+', choices=PARTITIONS, default=list(PARTITIONS))
    p.add_argument('--all', action='store_true', help='every rule and every attack')
    p.add_argument('--rounds', type=int, default=60)
    p.add_argument('--daemons', type=int, default=2)
    args = p.parse_args()
    if args.all:
        args.rules, args.attacks = list(RULES), list(ATTACKS)
    os.makedirs(args.out, exist_ok=True)
    found = {}
    for partition in args.partitions:
        for attack in args.attacks:
            for rule in args.rules:
                cell = (rule, attack, partition)
                found[cell] = result(run(os.path.abspath(args.build), args.out, cell, args.rounds, args.daemons), args.rounds)
                print(f'{partition:7} {attack:14} {rule:20} {found[cell]:6.2f}', file=sys.stderr, flush=True)
                text = write(args.out, found, args)
    print(text)


if __name__ == '__main__':
    main()
