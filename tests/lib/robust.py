# SPDX-License-Identifier: Apache-2.0
"""Robust rules recomputed in numpy from their papers, on the rows themselves; they share no code with the programs. And the
program that runs the real ones on rows of a test."""
import os
import struct
import subprocess

import numpy as np

from federated import Stream

ATTACK, BUCKET, COLUMNS, FLAME, UNIT, POISON = 17, 18, 40, 41, 55, 56  # common/base/rng.h


def ranked(keys):
    """Rows from the smallest key on; ties go to the lower row."""
    return sorted(range(len(keys)), key=lambda i: (keys[i], i))


def distances2(x):
    return np.array([[float(((a - b) ** 2).sum()) for b in x] for a in x])


def norms(x):
    return np.sqrt((x ** 2).sum(axis=1))


# -- before a rule --

def nnm(x, f):
    d = distances2(x)
    keep = len(x) - f
    out = []
    for i in range(len(x)):
        nearest = [i] + [j for j in ranked(d[i]) if j != i][:keep - 1]
        out.append(x[nearest].mean(axis=0))
    return np.array(out)


def clip(x, radius):
    n = norms(x)
    limit = np.median(n) if radius == 'median' else radius
    return x * np.array([limit / v if v > limit else 1 for v in n])[:, None]


def arc(x, f):
    m = len(x)
    clipped = 2 * f * (m - f) // m
    return clip(x, np.sort(norms(x))[m - clipped - 1])


def bucket(x, size, seed, r, step=0):
    order = Stream(seed, BUCKET, r, step).shuffled(range(len(x)))
    return np.array([x[order[at:at + size]].mean(axis=0) for at in range(0, len(x), size)])


def unit_bucket(x, size, seed, r):
    """Rows of several clients, each in the place of the lowest of them."""
    order = Stream(seed, UNIT, r, 0).shuffled(range(len(x)))
    groups = sorted(sorted(order[at:at + size]) for at in range(0, len(x), size))
    return np.array([x[g].mean(axis=0) for g in groups])


# -- rules --

def median(x):
    return np.median(x, axis=0)


def trimmed_mean(x, cut):
    return np.sort(x, axis=0)[cut:len(x) - cut].mean(axis=0)


def near_median(x, keep):
    """Of equally near values those of lower rows."""
    order = np.argsort(abs(x - np.median(x, axis=0)), axis=0, kind='stable')[:keep]
    return np.take_along_axis(x, order, axis=0).mean(axis=0)


def krum_scores(x, neighbours):
    d = distances2(x)
    return [float(np.sort(np.delete(d[i], i))[:neighbours].sum()) for i in range(len(x))]


def multi_krum(x, f, k, neighbours=None):
    best = ranked(krum_scores(x, neighbours or len(x) - f - 2))[:k]
    return x[best].mean(axis=0)


def bulyan(x, f):
    left, taken, theta = list(range(len(x))), [], len(x) - 2 * f
    while len(taken) < theta:
        neighbours = len(left) - f - 2 if len(left) > f + 3 else 1
        scores = krum_scores(x[left], neighbours)
        taken.append(left.pop(ranked(scores)[0]))
    return near_median(x[sorted(taken)], theta - 2 * f)


def rfa(x, nu=1e-5, steps=100, stop=1e-6, z=None):
    z = x.mean(axis=0) if z is None else z
    total = norms(x - z).sum()
    for step in range(steps):
        b = 1 / np.maximum(nu, norms(x - z))
        z = (b[:, None] * x).sum(axis=0) / b.sum()
        before, total = total, norms(x - z).sum()
        if step and abs(before - total) <= stop * total:
            break
    return z


def centered_clip(x, radius, v):
    n = norms(x - v)
    tau = np.median(n) if radius == 'median' else radius
    return v + ((x - v) * np.array([tau / d if d > tau else 1 for d in n])[:, None]).mean(axis=0)


def norm_filter(x, f):
    return x[ranked(norms(x))[:len(x) - f]].mean(axis=0)


def drawn_elements(n, parts, seed, r, sample):
    """One of each of equal parts."""
    u = Stream(seed, COLUMNS, r, sample).block(4 * parts)[::4]
    found = []
    for k in range(parts):
        begin, end = k * n // parts, (k + 1) * n // parts
        if end > begin:
            found.append(begin + (int(u[k]) * (end - begin) >> 32))
    return found


def dnc(x, f, sample, iterations, seed, r):
    m = len(x)
    out = np.zeros(m, int)
    for s in range(iterations):
        y = x[:, drawn_elements(x.shape[1], sample, seed, r, s)]
        y = y - y.mean(axis=0)
        v = np.linalg.svd(y, full_matrices=False)[2][0]
        for i in ranked((y @ v) ** 2)[m - f:]:
            out[i] += 1
    return x[out == out.min()].mean(axis=0)


def mean_shift(x):
    """Labels of sklearn.cluster.MeanShift with its estimate of the bandwidth (quantile 0.5, of all points)."""
    m = len(x)
    far = np.sqrt(((x[:, None] - x[None]) ** 2).sum(axis=2))
    width = np.sort(far, axis=1)[:, max(m // 2, 1) - 1].mean()
    peaks = []
    for point in x:
        for _ in range(300):
            near = np.sqrt(((x - point) ** 2).sum(axis=1)) <= width
            before, point = point, x[near].mean(axis=0) if near.any() else point
            if np.sqrt(((before - point) ** 2).sum()) <= 1e-3 * width:
                break
        peaks.append((int(near.sum()), point))
    kept = []
    for i in ranked([-n for n, _ in peaks]):
        if all(np.sqrt(((peaks[i][1] - k) ** 2).sum()) > width for k in kept):
            kept.append(peaks[i][1])
    return np.array([int(np.argmin([np.sqrt(((p - k) ** 2).sum()) for k in kept])) for p in x])


def signguard(x):
    shares = np.stack([(x < 0).mean(axis=1), (x == 0).mean(axis=1), (x > 0).mean(axis=1)], axis=1)
    labels = mean_shift(shares)
    n = norms(x)
    middle = np.median(n)
    fits = (n >= 0.1 * middle) & (n <= 3 * middle)
    both = fits & (labels == np.argmax(np.bincount(labels)))
    keep = both if both.any() else fits if fits.any() else np.ones(len(x), bool)
    return clip(x, middle)[keep].mean(axis=0)


def flame(x, noise, seed, r):
    m, n = len(x), norms(x)
    pairs = []
    for i in range(m):
        for j in range(i + 1, m):
            lengths = np.sqrt((x[i] @ x[i]) * (x[j] @ x[j]))
            pairs.append((1 - float(x[i] @ x[j]) / lengths if lengths else 1, i, j))
    groups = [{i} for i in range(m)]
    cluster = groups[0]
    for _, i, j in sorted(pairs):
        a, b = (next(g for g in groups if k in g) for k in (i, j))
        if a is not b:
            groups.remove(b)
            a |= b
        if len(a) > m // 2:
            cluster = a
            break
    middle = np.median(n)
    u = (Stream(seed, FLAME, r, 0).block(12 * x.shape[1]) >> np.uint64(8)).astype(np.float64) * 2.0**-24
    return clip(x, middle)[sorted(cluster)].mean(axis=0) + noise * middle * (u.reshape(-1, 12).sum(axis=1) - 6)


def cosines(h):
    n = norms(h)
    return np.array([[a @ b / (na * nb) if na and nb else 0 for b, nb in zip(h, n)] for a, na in zip(h, n)])


def foolsgold_weights(h):
    """Of the histories."""
    m, cs = len(h), cosines(h)
    np.fill_diagonal(cs, -np.inf)
    v = cs.max(axis=1)
    for i in range(m):
        for j in range(m):
            if i != j and 0 < v[i] < v[j]:
                cs[i, j] *= v[i] / v[j]
    a = np.clip(1 - cs.max(axis=1), 0, 1)
    if a.max() > 0:
        a /= a.max()
        a[a == 1] = 0.99
        with np.errstate(divide='ignore'):
            a = np.clip(np.log(a / (1 - a)) + 0.5, 0, 1)
    return a / a.sum() if a.sum() else np.full(m, 1 / m)


def foolsgold(x, h):
    return (foolsgold_weights(h)[:, None] * x).sum(axis=0)


def fltrust(x, root):
    n, n0 = norms(x), np.sqrt(root @ root)
    trust = np.array([max(0, r @ root / (k * n0)) if k and n0 else 0 for r, k in zip(x, n)])
    if not trust.sum():
        return root
    return sum(t * n0 / k * r for t, k, r in zip(trust, n, x) if t) / trust.sum()


# -- attacks --

def fang_krum(honest, n_bad):
    """The row that bad clients send."""
    n, c = len(honest), n_bad
    m = n + c
    s = np.sign(honest.mean(axis=0))
    d, norm = distances2(honest), norms(honest)
    nearest = [np.sort(np.delete(d[i], i))[:max(m - c - 2, 1)].sum() for i in range(n)]
    size = np.count_nonzero(s)
    lam = np.sqrt(min(nearest) / (max(m - 2 * c - 1, 1) * size)) + norm.max() / np.sqrt(size)
    while True:
        x = np.concatenate([honest, np.tile(-lam * s, (c, 1))])
        if ranked(krum_scores(x, m - c - 2 if m > c + 2 else 1))[0] >= n or lam < 1e-5:
            return -lam * s
        lam /= 2


def fang_trimmed(honest, b, seed, client, r):
    u = (Stream(seed, ATTACK, client + 1, r).block(4 * honest.shape[1])[::4] >> np.uint64(8)).astype(np.float64) * 2.0**-24
    mean, low, high = honest.mean(axis=0), honest.min(axis=0), honest.max(axis=0)
    start = np.where(mean > 0, low, high)
    end = np.where((mean > 0) == (start > 0), start / b, start * b)
    return start + u * (end - start)


def aggregate(x, spec, seed=0, r=0, v=None):
    """What a job's `aggregation` makes of rows."""
    x, f = x.astype(np.float64), spec.get('f', 0)
    if spec.get('unit') == 'bucket':
        x = unit_bucket(x, spec.get('bucket', 2), seed, r)
    steps = spec.get('before', [])
    for i, step in enumerate(steps if isinstance(steps, list) else [steps]):
        if step == 'nnm':
            x = nnm(x, f)
        elif step == 'arc':
            x = arc(x, f)
        elif 'bucket' in step:
            x = bucket(x, step['bucket'], seed, r, i)
        else:
            x = clip(x, step['clip'])
    m = len(x)
    cut = f if 'f' in spec else int(spec.get('beta', 0.2) * m)
    rules = {
        'median': lambda: median(x), 'trimmed-mean': lambda: trimmed_mean(x, cut),
        'mean-around-median': lambda: near_median(x, m - f), 'krum': lambda: multi_krum(x, f, 1, spec.get('neighbours')),
        'multi-krum': lambda: multi_krum(x, f, m - f, spec.get('neighbours')), 'bulyan': lambda: bulyan(x, f),
        'dnc': lambda: dnc(x, f, spec.get('sample', 10000), spec.get('iterations', 1), seed, r), 'signguard': lambda: signguard(x),
        'flame': lambda: flame(x, spec.get('noise', 0.001), seed, r), 'rfa': lambda: rfa(x), 'norm-filter': lambda: norm_filter(x, f),
        'foolsgold': lambda: foolsgold(x, x if v is None else v), 'fltrust': lambda: fltrust(x, v.astype(np.float64)),
        'centered-clip': lambda: centered_clip(x, spec['clip_radius'], np.zeros(x.shape[1]) if v is None else v),
    }
    return rules[spec['strategy']]()


class Rows:
    """The real rules (tests/lib/robust_rows.c)."""

    def __init__(self):
        self.process = subprocess.Popen([os.environ['MFL_ROBUST_ROWS']], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(20) == 0
        self.process.stdout.close()

    def read(self, dtype, count):
        data = self.process.stdout.read(np.dtype(dtype).itemsize * count)
        return np.frombuffer(data, dtype, count)

    def aggregate(self, x, text, r=0, v=None):
        """The aggregate, shares and scores; or the text of what is wrong."""
        m, n = x.shape
        data = x.astype('<f4').tobytes() + (b'' if v is None else v.astype('<f4').tobytes())
        self.process.stdin.write(struct.pack('<5I', len(text), m, n, r, v is not None) + text.encode() + data)
        self.process.stdin.flush()
        if self.read('<i4', 1)[0]:
            return self.process.stdout.read(512).split(b'\0')[0].decode()
        return self.read('<f8', n), self.read('<f8', m), self.read('<f8', m)
