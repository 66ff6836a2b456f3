#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Servers that may lie, as one table: servers.py BUILD_DIR OUT [--rounds 100] [--steps N] [--shares 0.1 0.3]

examples/servers.yaml: ten servers, 100 clients of Fashion-MNIST, Dirichlet 1.0, Adam with 1e-3, batch 64. A row is what servers make of
their clients, and what is made of the servers. A column has 20% of the clients bad (sign flip x10), or a share of the servers
(noise of deviation 1), or both. Accuracy in percent after the last round. A cell is one `mfl run`; those done in OUT are not run again."""
import argparse
import os

import benchlib

WAYS = {
    'mean, mean': ('mean', {'strategy': 'trimmed-mean', 'beta': 0}),
    'trimmed mean, mean': ('trimmed-mean', {'strategy': 'trimmed-mean', 'beta': 0}),
    'mean, multi-krum': ('mean', {'strategy': 'multi-krum', 'f': 3}),
    'trimmed mean, multi-krum': ('trimmed-mean', {'strategy': 'multi-krum', 'f': 3}),
}
CLIENTS = {'attack': 'sign-flip', 'scale': 10, 'share': 0.2}


def job(way, clients, share, args):
    within, aggregation = WAYS[way]
    document = {'name': 'servers', 'seed': 1, 'rounds': args.rounds, 'model': 'mlp',
                'data': {'name': 'fashion-mnist', 'partition': 'dirichlet', 'alpha': 1.0, 'clients': 100},
                'training': {'optimizer': 'adam', 'lr': 0.001, 'batch': 64, **({'steps': args.steps} if args.steps else {'epochs': 1})},
                'aggregation': {**aggregation, 'unit': 'server'}, 'edges': {'count': 10, 'within': within},
                'evaluation': {'every': args.rounds, 'batch': 500}}
    servers = {'servers': {'attack': 'noise', 'scale': 1, 'share': share}} if share else {}
    if clients or servers:
        document['simulation'] = {**(CLIENTS if clients else {}), **servers}
    return document


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('build')
    p.add_argument('out')
    p.add_argument('--rounds', type=int, default=100)
    p.add_argument('--steps', type=int, default=0, help='local steps; 0: one epoch')
    p.add_argument('--shares', type=float, nargs='+', default=[0.1, 0.2, 0.3])
    args = p.parse_args()
    columns = [('nobody', False, 0), ('20% of clients', True, 0)]
    columns += [(f'{share:.0%} of servers', False, share) for share in args.shares] + [('both', True, args.shares[-1])]
    print('| servers, among servers | ' + ' | '.join(name for name, _, _ in columns) + ' |\n' + '|---' * (len(columns) + 1) + '|')
    for way in WAYS:
        cells = []
        for name, clients, share in columns:
            folder = os.path.join(args.out, f'{way}_{name}_{args.rounds}_{args.steps}'.replace(' ', '-').replace(',', '').replace('%', ''))
            rows = benchlib.kept_run(os.path.abspath(args.build), folder, job(way, clients, share, args), 1, may_fail=('not finite', 'rejected'))
            found = [r['accuracy'] for r in rows if r['accuracy']]
            cells.append(f'{100 * float(found[-1]):.1f}' if found and len(rows) == args.rounds else '10.0')
        print(f'| {way} | ' + ' | '.join(cells) + ' |', flush=True)


if __name__ == '__main__':
    main()
