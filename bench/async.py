#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Virtual time to an accuracy without waiting: async.py BUILD_DIR OUT [--accuracy A ...] [--seeds N] [--only fedbuff ...]

Fashion-MNIST on 600 clients, log-normal(1, .6) durations. FedBuff with 100 clients at once and versions of 10 updates, FedAsync with 10
at once, beside rounds of 10 and of 100 clients. One job per kind and seed; done jobs in OUT are not run again. Virtual time
is a function of the job, so that the load of the machine does not matter.
"""
import argparse
import os
import statistics

import benchlib

# What differs, how many rounds or versions, and how many clients train in one.
KINDS = {
    'rounds of 10': ({'aggregation': {'weighting': 'uniform'}, 'selection': {'clients': 10}}, 200, 10),
    'rounds of 100': ({'aggregation': {'weighting': 'uniform'}, 'selection': {'clients': 100}}, 150, 100),
    'fedbuff': ({'aggregation': {'strategy': 'fedbuff', 'buffer': 10}, 'selection': {'clients': 100}}, 700, 10),
    'fedasync': ({'aggregation': {'strategy': 'fedasync'}, 'selection': {'clients': 10}}, 3000, 1),
}


def job(kind, seed, scale):
    changes, rounds, n = KINDS[kind]
    return {'name': kind.replace(' ', '-'), 'seed': seed, 'rounds': max(1, round(rounds * scale)), 'model': 'mlp',
            'data': {'name': 'fashion-mnist', 'partition': 'dirichlet', 'clients': 600, 'alpha': 0.5},
            'training': {'lr': 0.1, 'epochs': 1, 'batch': 20}, 'time': 'virtual', 'trace': {'mu': 1, 'sigma': 0.6, 'speed': 200},
            'evaluation': {'batch': 500, 'every': max(1, 50 // n)}, 'checkpoints': {'keep': 0}, **changes}


def run(build, out, kind, seed, scale, daemons):
    at = os.path.join(out, '%s-%d-%g' % (kind.replace(' ', '-'), seed, scale))
    return benchlib.kept_run(build, at, job(kind, seed, scale), daemons)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('build')
    p.add_argument('out')
    p.add_argument('--accuracy', type=float, nargs='+', default=[0.7, 0.75, 0.8])
    p.add_argument('--seeds', type=int, default=1)
    p.add_argument('--scale', type=float, default=1, help='factor of the numbers of rounds and versions')
    p.add_argument('--only', nargs='+', choices=KINDS, default=list(KINDS))
    p.add_argument('--daemons', type=int, default=1)
    args = p.parse_args()
    print('                ' + ''.join(f'seconds to {a:.2f}  clients ' for a in args.accuracy) + '  seconds in all  best accuracy  staleness')
    for kind in args.only:
        runs = [run(os.path.abspath(args.build), args.out, kind, s + 1, args.scale, args.daemons) for s in range(args.seeds)]
        cells = ''
        for a in args.accuracy:
            hits = [next(((float(r['virtual_end']), int(r['round']) * KINDS[kind][2]) for r in rows if r['accuracy'] and float(r['accuracy']) >= a), None)
                    for rows in runs]
            known = [x for x in hits if x]
            cells += (f'{statistics.median(x[0] for x in known):15.1f}  {statistics.median(x[1] for x in known):7.0f}'
                      if len(known) == len(runs) else f'{len(known)} of {len(runs)} seeds'.rjust(24))
        best = statistics.median(max(float(r['accuracy']) for r in rows if r['accuracy']) for rows in runs)
        stale = [float(r['staleness_mean']) for rows in runs for r in rows if r.get('staleness_mean')]
        print(f'{kind:15} {cells}  {statistics.median(float(rows[-1]["virtual_end"]) for rows in runs):14.1f}  {best:13.3f}  '
              + (f'{statistics.mean(stale):9.2f}' if stale else '        -'), flush=True)


if __name__ == '__main__':
    main()
