# SPDX-License-Identifier: Apache-2.0
"""Boosted trees by histograms, as XGBoost grows them, as a training program for mfl-client (docs/programs.md): numpy alone.
`python trees.py initial.safetensors FEATURES CLASSES TREES` writes the start.

A round grows one level of one tree for each class (Chen and Guestrin 2016, "XGBoost", equations 5 and 7). A site sends histograms of the gradients of
its samples, their mean and nothing of single samples; the mean over the sites is the histogram of all samples. In the next round every site finds the same best
splits in it. So four sites grow the trees that one site with all samples grows. `rounds` is at most TREES * DEPTH; features lie between 0 and 1.
Config: {lr: 0.3, l2: 0.01}."""
import sys

import numpy
import mfl.train

DEPTH, BINS = 3, 16
WIDTH = 2**(DEPTH - 1)     # nodes of the last level that is split


def settle(params, config):
    """Splits, and after the last level leaves, from the histograms of the round before. How many levels there are."""
    done = int(params["done"][0].round())
    if not done:
        return 0
    tree, level = divmod(done - 1, DEPTH)
    for k, node in numpy.ndindex(params["leaf"].shape[1], 2**level):
        g, h = params["hist"][k * WIDTH + node].astype(float).cumsum(-1)     # [feature, bin]: up to and with each bin
        sides = (g[:, :-1], h[:, :-1]), (g[:, -1:] - g[:, :-1], h[:, -1:] - h[:, :-1])
        gain = sum(a * a / (b + config["l2"]) for a, b in sides)
        best = numpy.unravel_index(gain.round(5).argmax(), gain.shape)     # of equal ones the first, whatever the sums' last bits are
        params["split"][tree, k, 2**level - 1 + node] = numpy.array(best) / gain.shape     # of each, the share: changes stay small
        if level == DEPTH - 1:
            params["leaf"][tree, k, 2 * node:2 * node + 2] = [-config["lr"] * a[best] / (b[best] + config["l2"]) for a, b in sides]
    return done


def walk(split, x, levels):
    """In which node of that level each row is. split: of one tree, a feature and a bin for each node."""
    node = numpy.zeros(len(x), int)
    for level in range(levels):
        feature, last = (split[2**level - 1 + node] * (x.shape[1], BINS - 1)).round().astype(int).T
        node = 2 * node + (x[numpy.arange(len(x)), feature] > last)
    return node


def bins(data, samples, split):
    x, y = data.batch(samples, split)
    return (x.reshape(len(y), -1) * BINS).astype(int).clip(0, BINS - 1), y


def odds(params, x, trees):
    """Probabilities of the classes, by the whole trees."""
    z = numpy.zeros((len(x), params["leaf"].shape[1]))
    for tree, k in numpy.ndindex(trees, z.shape[1]):
        z[:, k] += params["leaf"][tree, k][walk(params["split"][tree, k], x, DEPTH)]
    z = numpy.exp(z - z.max(1, keepdims=True))
    return z / z.sum(1, keepdims=True)


def scores(p, y):
    return {"loss": float(-numpy.log(p[numpy.arange(len(y)), y] + 1e-12).mean()), "correct": int((p.argmax(1) == y).sum())}


def train(params, client, round, config, data, samples):
    x, y = bins(data, samples, "train")
    done = settle(params, config)
    tree, level = divmod(done, DEPTH)
    if tree == len(params["leaf"]):
        raise ValueError("all %d trees are grown: write rounds: %d" % (tree, done))
    p = odds(params, x, tree)
    g, h = p - (y[:, None] == numpy.arange(p.shape[1])), p * (1 - p)
    params["hist"][:] = 0
    for k in range(p.shape[1]):
        node = walk(params["split"][tree, k], x, level)
        for feature in range(x.shape[1]):
            for i, v in enumerate((g, h)):
                numpy.add.at(params["hist"][k * WIDTH:(k + 1) * WIDTH, i, feature], (node, x[:, feature]), v[:, k] / len(y))
    params["done"][0] = done + 1
    return params, len(y), scores(p, y)


def evaluate(params, config, data, samples):
    x, y = bins(data, samples, "test")
    params = {name: tensor.copy() for name, tensor in params.items()}     # those of an evaluation are read-only
    return len(y), scores(odds(params, x, settle(params, config) // DEPTH), y)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        features, classes, trees = map(int, sys.argv[2:5])
        mfl.train.save(sys.argv[1], {"done": numpy.zeros(1), "split": numpy.zeros((trees, classes, 2**DEPTH - 1, 2)),
                                     "leaf": numpy.zeros((trees, classes, 2**DEPTH)), "hist": numpy.zeros((classes * WIDTH, 2, features, BINS))})
    else:
        mfl.train.run(train, evaluate)
