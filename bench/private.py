#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Accuracy against epsilon: private.py BUILD_DIR OUT [--noise 0.6 1 2 4] [--seeds N] [--rounds T] [--no-numpy]
    [--clip C] [--svg FILE]

DP-FedAvg (McMahan et al. 2018) of a logistic regression on Fashion-MNIST: 2,000 clients of 30 samples, each in a round with probability .05,
clip .5, delta 1e-5. Beside the job stands the same algorithm in numpy, with draws and noise of its own; both are means over the seeds.
Runs that are done in OUT are not run again. numpy reads Debian's dataset-fashion-mnist.
"""
import argparse
import glob
import gzip
import os

import numpy

import benchlib

CLIENTS, SAMPLES, RATE, CLIP, DELTA, LR, BATCH = 2000, 30, 0.05, 0.5, 1e-5, 0.05, 10


def job(noise, seed, rounds, clip):
    return {'name': 'private', 'seed': seed, 'rounds': rounds, 'model': 'logistic',
            'data': {'name': 'fashion-mnist', 'partition': 'iid', 'clients': CLIENTS},
            'training': {'lr': LR, 'epochs': 1, 'batch': BATCH}, 'selection': {'kind': 'poisson', 'rate': RATE},
            'privacy': {'kind': 'central', 'clip': clip, 'noise': noise, 'epsilon_max': 30, 'delta': DELTA},
            'limits': {'quorum': 0.8}, 'evaluation': {'every': 50}}


def array(name, offset):
    with gzip.open(glob.glob(f'/usr/share/**/{name}*.gz', recursive=True)[0]) as f:
        return numpy.frombuffer(f.read(), numpy.uint8, offset=offset)


class Data:
    def __init__(self):
        self.x, self.test_x = (array(f'{part}-images-idx3', 16).reshape(-1, 784).astype(numpy.float32) / 255 for part in ('train', 't10k'))
        self.y, self.test_y = (array(f'{part}-labels-idx1', 8) for part in ('train', 't10k'))


def local_training(data, samples, w, b):
    for i in range(0, SAMPLES, BATCH):
        x, y = data.x[samples[i:i + BATCH]], data.y[samples[i:i + BATCH]]
        z = x @ w + b
        p = numpy.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[numpy.arange(BATCH), y] -= 1
        w, b = w - LR / BATCH * (x.T @ p), b - LR / BATCH * p.sum(0)
    return w, b


def by_numpy(data, noise, seed, rounds, clip):
    """The test accuracy after the last round."""
    rng = numpy.random.default_rng(seed)
    owned = rng.permutation(len(data.y)).reshape(CLIENTS, SAMPLES)
    w, b = rng.uniform(-1 / 28, 1 / 28, (784, 10)).astype(numpy.float32), numpy.zeros(10, numpy.float32)
    for _ in range(rounds):
        sums = numpy.zeros(7850)
        for k in numpy.flatnonzero(rng.random(CLIENTS) < RATE):
            after = local_training(data, rng.permutation(owned[k]), w, b)
            delta = numpy.concatenate([(after[0] - w).ravel(), after[1] - b]).astype(float)
            sums += delta * min(1, clip / numpy.linalg.norm(delta))
        step = ((sums + rng.normal(0, noise * clip, sums.shape)) / (RATE * CLIENTS)).astype(numpy.float32)
        w, b = w + step[:-10].reshape(784, 10), b + step[-10:]
    return float(((data.test_x @ w + b).argmax(1) == data.test_y).mean())


def picture(points):
    """Accuracy over the logarithm of epsilon: ours as a line, numpy's as crosses."""
    width, height, left, top, right, bottom = 560, 320, 60, 20, 20, 50
    low, high = 0.4, 20
    least = 5 * int(min(min(p[1:]) for p in points) // 5)

    def at(epsilon, accuracy):
        x = left + (width - left - right) * numpy.log(epsilon / low) / numpy.log(high / low)
        return f'{x:.1f}', f'{height - bottom - (height - top - bottom) * (accuracy - least) / (85 - least):.1f}'

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>']
    for accuracy in range(least, 86, 5):
        y = at(low, accuracy)[1]
        out.append(f'<path d="M{left} {y}H{width - right}" stroke="#ddd"/><text x="{left - 8}" y="{y}" dy="4" text-anchor="end">{accuracy}%</text>')
    for epsilon in (0.5, 1, 2, 4, 8, 16):
        x = at(epsilon, least)[0]
        out.append(f'<path d="M{x} {top}V{height - bottom}" stroke="#ddd"/><text x="{x}" y="{height - bottom + 16}" text-anchor="middle">{epsilon}</text>')
    line = ' '.join(','.join(at(p[0], p[1])) for p in points)
    out.append(f'<polyline points="{line}" fill="none" stroke="#2978be" stroke-width="2"/>')
    for epsilon, mine, other in points:
        x, y = at(epsilon, mine)
        out.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="#2978be"/>')
        if other == other:
            x, y = map(float, at(epsilon, other))
            out.append(f'<path d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8" stroke="#c83228" stroke-width="1.5"/>')
    out.append(f'<text x="{width / 2}" y="{height - 14}" text-anchor="middle">epsilon at delta {DELTA:g} (mfl: line; numpy: crosses)</text></svg>')
    return '\n'.join(out) + '\n'


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('build')
    p.add_argument('out')
    p.add_argument('--noise', type=float, nargs='+', default=[0.6, 1, 2, 4])
    p.add_argument('--seeds', type=int, default=3)
    p.add_argument('--rounds', type=int, default=200)
    p.add_argument('--no-numpy', action='store_true')
    p.add_argument('--clip', type=float, default=CLIP)
    p.add_argument('--svg', help='a picture of the table')
    args = p.parse_args()
    data = None if args.no_numpy else Data()
    points = []
    print(f'{"noise":>6} {"epsilon":>8} {"accuracy":>9} {"numpy":>7}')
    for noise in args.noise:
        found, epsilon = [], 0
        for seed in range(1, args.seeds + 1):
            folder = os.path.join(args.out, f'{noise:g}-{seed}-{args.rounds}-{args.clip:g}')
            rows = benchlib.kept_run(os.path.abspath(args.build), folder, job(noise, seed, args.rounds, args.clip), 1)
            found.append(100 * float([r for r in rows if r['accuracy']][-1]['accuracy']))
            epsilon = float(rows[-1]['epsilon'])
        beside = [100 * by_numpy(data, noise, s, args.rounds, args.clip) for s in range(1, args.seeds + 1)] if data else []
        points.append((epsilon, numpy.mean(found), numpy.mean(beside) if beside else numpy.nan))
        print(f'{noise:6g} {epsilon:8.3f} {points[-1][1]:9.2f} {points[-1][2]:7.2f}', flush=True)
    if args.svg:
        with open(args.svg, 'w') as f:
            f.write(picture(sorted(points)))


if __name__ == '__main__':
    main()
