#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Robust strategies against attacks, as one table: robust.py BUILD_DIR OUT [--rules ...] [--attacks ...] [--partitions ...] [--all]

20 clients of Fashion-MNIST, 4 of them bad, mlp, 10 steps of batch 32 with lr 0.1 and momentum 0.9 in each of 60 rounds. A cell is one
`mfl run`; cells that are done in OUT are not run again, so an interrupted tournament goes on. Prints markdown, and writes
OUT/robust.md, OUT/robust.csv and a picture, OUT/robust.svg. The accuracy is the mean of the last five rounds, in percent. A model
that diverged has 10. A backdoor has a second number, its success rate.
"""
import argparse
import csv
import os
import sys

import benchlib

F = 4
LATE = 'half'  # a round: half of all
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
    'foolsgold': {'strategy': 'foolsgold'},
    'fltrust': {'strategy': 'fltrust', 'root': {'client': 0}},
    'clipped mean': {'strategy': 'fedavg', 'weighting': 'uniform', 'update_clip': 'median'},
    'clip+median': {'strategy': 'median', 'before': {'clip': 'median'}},
    'clip+trimmed-mean': {'strategy': 'trimmed-mean', 'f': F, 'before': {'clip': 'median'}},
    'clip+rfa': {'strategy': 'rfa', 'before': {'clip': 'median'}},
    'arc+rfa': {'strategy': 'rfa', 'f': F, 'before': 'arc'},
    'bucket+rfa': {'strategy': 'rfa', 'before': {'bucket': 2}},
    'buckets of 2, rfa': {'strategy': 'rfa', 'unit': 'bucket', 'bucket': 2},
}
ATTACKS = {
    'none': None, 'gaussian': {'attack': 'gaussian', 'scale': 1}, 'sign-flip x10': {'attack': 'sign-flip', 'scale': 10},
    'ipm 100': {'attack': 'ipm', 'scale': 100}, 'ipm 0.1': {'attack': 'ipm', 'scale': 0.1}, 'alie': {'attack': 'alie'},
    'min-max': {'attack': 'min-max'}, 'min-sum': {'attack': 'min-sum'}, 'mimic': {'attack': 'mimic'}, 'lazy': {'attack': 'lazy'},
    'nan': {'attack': 'nan'}, 'fang-krum': {'attack': 'fang-krum'}, 'fang-trimmed': {'attack': 'fang-trimmed'}, 'stale': {'attack': 'stale'},
    'label-flip': {'attack': 'label-flip'}, 'backdoor x5': {'attack': 'backdoor', 'scale': 5},
    # One bad client that replaces the model late.
    'backdoor x20': {'attack': 'backdoor', 'scale': 20, 'share': 0.05, 'from': LATE},
}
REFUSED = {('foolsgold', 'stale')}  # by mfl check
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
        if document['simulation'].get('from') == LATE:
            document['simulation']['from'] = rounds // 2 + 1
    return document


def folder_of(out, cell, rounds):
    return os.path.join(out, '_'.join(cell).replace(' ', '-').replace(',', '') + f'_{rounds}')


def run(build, out, cell, rounds, daemons):
    """The rounds of a cell; fewer than wanted: the model diverged."""
    folder = folder_of(out, cell, rounds)
    return benchlib.kept_run(build, folder, job(*cell, rounds), daemons, may_fail=('not finite', 'rejected'))


def result(rows, rounds):
    """Accuracy and a backdoor's success in percent; None: there is no backdoor."""
    rows = [r for r in rows if r['accuracy']]
    if len(rows) < rounds:
        return 10.0, None
    last = rows[-5:]
    backdoor = [float(r['backdoor']) for r in last if r.get('backdoor')]
    return 100 * sum(float(r['accuracy']) for r in last) / len(last), 100 * sum(backdoor) / len(backdoor) if backdoor else None


def words(cell):
    return '' if cell is None else f'{cell[0]:.1f}' if cell[1] is None else f'{cell[0]:.1f} ({cell[1]:.0f})'


def table(found, partition, rules, attacks):
    lines = [f'| {partition} | ' + ' | '.join(attacks) + ' |', '|---' * (len(attacks) + 1) + '|']
    for rule in rules:
        cells = [found.get((rule, a, partition)) for a in attacks]
        lines.append(f'| `{rule}` | ' + ' | '.join(words(c) for c in cells) + ' |')
    return '\n'.join(lines) + '\n'


def picture(found, partitions, rules, attacks):
    """A square for each cell: blue where the rule keeps its own accuracy without an attack, red where it loses 20 points or more."""
    left, top, wide, high, gap = 150, 90, 62, 22, 60
    width = left + len(partitions) * (wide * len(attacks) + gap)
    height = top + high * len(rules) + 44
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>']
    for p, partition in enumerate(partitions):
        at = left + p * (wide * len(attacks) + gap)
        out.append(f'<text x="{at}" y="14" font-weight="bold">{partition}</text>')
        for i, attack in enumerate(attacks):
            out.append(f'<text transform="translate({at + i * wide + 20} {top - 6}) rotate(-35)">{attack}</text>')
            for k, rule in enumerate(rules):
                cell, clean = found.get((rule, attack, partition)), found.get((rule, 'none', partition))
                if cell is None:
                    continue
                lost = min(max((clean[0] if clean else 100) - cell[0], 0), 20) / 20
                x, y = at + i * wide, top + k * high
                fill = ' '.join(str(round(a + (b - a) * lost)) for a, b in ((41, 200), (120, 50), (190, 40)))
                out.append(f'<rect x="{x}" y="{y}" width="{wide - 2}" height="{high - 2}" fill="rgb({fill})">'
                           f'<title>{rule}, {attack}, {partition}: {words(cell)}</title></rect>'
                           f'<text x="{x + wide / 2 - 1}" y="{y + 14}" text-anchor="middle" fill="#fff">{words(cell)}</text>')
    for k, rule in enumerate(rules):
        out.append(f'<text x="{left - 8}" y="{top + k * high + 14}" text-anchor="end">{rule}</text>')
    out.append(f'<text x="8" y="{height - 24}">accuracy in percent (in brackets: success of the backdoor)</text>'
               f'<text x="8" y="{height - 8}">red: 20 points or more below the same rule without an attack</text></svg>')
    return '\n'.join(out) + '\n'


def write(out, found, args):
    text = '\n'.join(table(found, p, args.rules, args.attacks) for p in args.partitions)
    with open(os.path.join(out, 'robust.md'), 'w') as f:
        f.write(text)
    with open(os.path.join(out, 'robust.csv'), 'w', newline='') as f:
        rows = csv.writer(f)
        rows.writerow(['rule', 'attack', 'partition', 'accuracy', 'backdoor'])
        rows.writerows([*cell, f'{v[0]:.2f}', '' if v[1] is None else f'{v[1]:.2f}'] for cell, v in found.items())
    with open(os.path.join(out, 'robust.svg'), 'w') as f:
        f.write(picture(found, args.partitions, args.rules, args.attacks))
    return text


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('build')
    p.add_argument('out')
    p.add_argument('--rules', nargs='+', choices=RULES, metavar='RULE', default=USUAL_RULES, help=' '.join(RULES))
    p.add_argument('--attacks', nargs='+', choices=ATTACKS, metavar='ATTACK', default=USUAL_ATTACKS, help=', '.join(ATTACKS))
    p.add_argument('--partitions', nargs='+', choices=PARTITIONS, default=list(PARTITIONS))
    p.add_argument('--all', action='store_true', help='every rule and every attack')
    p.add_argument('--done', action='store_true', help='run nothing: tables of the cells that are done')
    p.add_argument('--rounds', type=int, default=60)
    p.add_argument('--daemons', type=int, default=2)
    args = p.parse_args()
    if args.all:
        args.rules, args.attacks = list(RULES), list(ATTACKS)
    os.makedirs(args.out, exist_ok=True)
    found, text = {}, ''
    for partition in args.partitions:
        for attack in args.attacks:
            for rule in args.rules:
                cell = (rule, attack, partition)
                if cell[:2] in REFUSED:
                    continue
                if args.done and not os.path.exists(os.path.join(folder_of(args.out, cell, args.rounds), 'done')):
                    continue
                found[cell] = result(run(os.path.abspath(args.build), args.out, cell, args.rounds, args.daemons), args.rounds)
                print(f'{partition:7} {attack:14} {rule:20} {words(found[cell])}', file=sys.stderr, flush=True)
                text = write(args.out, found, args)
    print(text)


if __name__ == '__main__':
    main()
