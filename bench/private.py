#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Accuracy against epsilon: private.py BUILD_DIR OUT [--noise 0.6 1 2 4] [--seeds N] [--rounds T] [--no-numpy]

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


def job(noise, seed, rounds):
    return {'name': 'private', 'seed': seed, 'rounds': rounds, 'model': 'logistic',
            'data': {'name': 'fashion-mnist', 'partition': 'iid', 'clients': CLIENTS},
            'training': {'lr': LR, 'epochs': 1, 'batch': BATCH}, 'selection': {'kind': 'poisson', 'rate': RATE},
            'privacy': {'kind': 'central', 'clip': CLIP, 'noise': noise, 'epsilon_max': 30, 'delta': DELTA},
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


def by_numpy(data, noise, seed, rounds):
    """The test accuracy after the last round."""
    rng = numpy.random.default_rng(seed)
    owned = rng.permutation(len(data.y)).reshape(CLIENTS, SAMPLES)
    w, b = rng.uniform(-1 / 28, 1 / 28, (784, 10)).astype(numpy.float32), numpy.zeros(10, numpy.float32)
    for _ in range(rounds):
        sums = numpy.zeros(7850)
        for k in numpy.flatnonzero(rng.random(CLIENTS) < RATE):
            after = local_training(data, rng.permutation(owned[k]), w, b)
            delta = numpy.concatenate([(after[0] - w).ravel(), after[1] - b]).astype(float)
            sums += delta * min(1, CLIP / numpy.linalg.norm(delta))
        step = ((sums + rng.normal(0, noise * CLIP, sums.shape)) / (RATE * CLIENTS)).astype(numpy.float32)
        w, b = w + step[:-10].reshape(784, 10), b + step[-10:]
    return float(((data.test_x @ w + b).argmax(1) == data.test_y).mean())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('build')
    p.add_argument('out')
    p.add_argument('--noise', type=float, nargs='+', default=[0.6, 1, 2, 4])
    p.add_argument('--seeds', type=int, default=3)
    p.add_argument('--rounds', type=int, default=200)
    p.add_argument('--no-numpy', action='store_true')
    args = p.parse_args()
    data = None if args.no_numpy else Data()
    print(f'{"noise":>6} {"epsilon":>8} {"accuracy":>9} {"numpy":>7}')
    for noise in args.noise:
        found, epsilon = [], 0
        for seed in range(1, args.seeds + 1):
            folder = os.path.join(args.out, f'{noise:g}-{seed}-{args.rounds}')
            rows = benchlib.kept_run(os.path.abspath(args.build), folder, job(noise, seed, args.rounds), 1)
            found.append(100 * float([r for r in rows if r['accuracy']][-1]['accuracy']))
            epsilon = float(rows[-1]['epsilon'])
        beside = [100 * by_numpy(data, noise, s, args.rounds) for s in range(1, args.seeds + 1)] if data else []
        print(f'{noise:6g} {epsilon:8.3f} {numpy.mean(found):9.2f} {numpy.mean(beside) if beside else numpy.nan:7.2f}', flush=True)


if __name__ == '__main__':
    main()
