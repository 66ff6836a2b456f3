# SPDX-License-Identifier: Apache-2.0
"""Every strategy runs, and federated averaging is what the papers say: recomputed here from the seed in numpy, which shares no
code with the programs."""
import numpy as np
import pytest

import mfl_harness as h

U32, U64 = (1 << 32) - 1, (1 << 64) - 1
INIT, PARTITION, SHUFFLE, DATA = 1, 2, 4, 9  # common/base/rng.h: part of reproducibility


def philox(c, k0, k1):
    """Philox4x32-10 (Salmon et al., SC'11). c: four 32-bit numbers or arrays of them, held in uint64."""
    c0, c1, c2, c3 = (np.uint64(x) if isinstance(x, int) else x.astype(np.uint64) for x in c)
    low, shift = np.uint64(U32), np.uint64(32)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = p1 >> shift ^ c1 ^ np.uint64(k0), p1 & low, p0 >> shift ^ c3 ^ np.uint64(k1), p0 & low
        k0, k1 = k0 + 0x9E3779B9 & U32, k1 + 0xBB67AE85 & U32
    return c0, c1, c2, c3


class Stream:
    """Numbers of the stream (seed, domain, a, b)."""

    def __init__(self, seed, domain, a, b):
        v = [int(x) for x in philox((a & U32, a >> 32, b & U32, b >> 32), seed & U32, seed >> 32 ^ domain * 0x9E3779B1 & U32)]
        self.key, self.high, self.at = (v[0], v[1]), (v[2], v[3] ^ domain), 0
        self.buffer = np.zeros(0, np.uint64)

    def block(self, n):
        """The first n numbers."""
        i = np.arange((n + 3) // 4, dtype=np.uint64)
        v = philox((i & np.uint64(U32), i >> np.uint64(32), *self.high), *self.key)
        return np.stack(np.broadcast_arrays(*v), axis=1).reshape(-1)[:n]

    def next(self):
        if self.at == len(self.buffer):
            self.buffer = self.block(max(64, 2 * self.at))
        self.at += 1
        return int(self.buffer[self.at - 1])

    def below(self, n):
        """Lemire 2019."""
        m = self.next() * n
        if m & U32 < n:
            floor = ((1 << 32) - n) % n
            while m & U32 < floor:
                m = self.next() * n
        return m >> 32

    def shuffled(self, v):
        """Fisher-Yates from the end."""
        v = list(v)
        for i in range(len(v), 1, -1):
            j = self.below(i)
            v[i - 1], v[j] = v[j], v[i - 1]
        return v


def synthetic(shape, classes, n, seed, split):
    """The training (0) or test (1) samples, scaled to [0, 1], and their labels."""
    count = int(np.prod(shape))
    means = [96 + (Stream(seed, DATA, 0, c).block(count) >> np.uint64(26)).astype(np.int64) for c in range(classes)]
    labels = Stream(seed, DATA, 1, split).shuffled(i % classes for i in range(n))
    x = np.empty((n, count))
    for i in range(n):
        u = Stream(seed, DATA, 2, split << 32 | i).block(count)
        total = sum((u >> np.uint64(s) & np.uint64(255)).astype(np.int64) for s in (0, 8, 16, 24))
        # C divides towards zero.
        noise = np.sign(total - 510) * (abs(total - 510) // 4)
        x[i] = np.clip(means[labels[i]] + noise, 0, 255) / 255
    return x, np.array(labels)


def uniform_init(seed, tensor, n, fan_in):
    k = (Stream(seed, INIT, tensor, 0).block(n) >> np.uint64(8)).astype(np.float64)
    return (2 * k + 1 - 2**24) * 2.0**-24 / np.sqrt(fan_in)


class Momentum:
    def __init__(self, beta):
        self.beta, self.v = beta, 0

    def step(self, gradient, lr):
        self.v = self.beta * self.v + gradient
        return lr * self.v


class Adam:
    """Kingma and Ba 2015, algorithm 1."""

    def __init__(self, beta1, beta2, eps):
        self.beta1, self.beta2, self.eps, self.m, self.v, self.t = beta1, beta2, eps, 0, 0, 0

    def step(self, gradient, lr):
        self.t += 1
        self.m = self.beta1 * self.m + (1 - self.beta1) * gradient
        self.v = self.beta2 * self.v + (1 - self.beta2) * gradient ** 2
        m, v = self.m / (1 - self.beta1 ** self.t), self.v / (1 - self.beta2 ** self.t)
        return lr * m / (np.sqrt(v) + self.eps)


class Average:
    """McMahan et al. 2017, algorithm 1."""

    def step(self, d, r):
        return d


class Nesterov:
    """Of the server; the rounding of v to float between rounds is below what the test allows."""

    def __init__(self, eta, beta):
        self.eta, self.beta, self.v = eta, beta, 0

    def step(self, d, _):
        self.v = self.beta * self.v + d
        return self.eta * (d + self.beta * self.v)


class Adaptive:
    """Reddi et al. 2021, algorithm 2; or flwr.serverapp.strategy of Flower, whose rounds begin with 1."""

    def __init__(self, kind, flower, eta, beta1, beta2, tau):
        self.kind, self.flower, self.eta, self.beta1, self.beta2, self.tau = kind, flower, eta, beta1, beta2, tau
        self.m, self.v = 0, 0 if flower else tau ** 2

    def step(self, d, r):
        self.m = self.beta1 * self.m + (1 - self.beta1) * d
        if self.kind == 'fedadagrad':
            self.v = self.v + d ** 2
        elif self.kind == 'fedyogi':
            self.v = self.v - (1 - self.beta2) * d ** 2 * np.sign(self.v - d ** 2)
        else:
            self.v = self.beta2 * self.v + (1 - self.beta2) * d ** 2
        eta = self.eta
        if self.flower and self.kind == 'fedadam':
            eta *= np.sqrt(1 - self.beta2 ** (r + 1)) / (1 - self.beta1 ** (r + 1))
        return eta * self.m / (np.sqrt(self.v) + self.tau)


def train_locally(w, b, x, y, order, lr, batch, optimizer, mu=0, clip=None):
    """Softmax cross-entropy, mean over the batch. The last batch may be short. mu: FedProx's term, a part of the loss; clip: of
    the norm of the whole gradient."""
    w0, b0, w, b = w, b, w.copy(), b.copy()
    of_w, of_b = optimizer(), optimizer()
    for at in range(0, len(order), batch):
        i = order[at:at + batch]
        z = x[i] @ w.T + b
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(i)), y[i]] -= 1
        dw, db = p.T @ x[i] / len(i) + mu * (w - w0), p.sum(axis=0) / len(i) + mu * (b - b0)
        norm = np.sqrt((dw ** 2).sum() + (db ** 2).sum())
        factor = min(1, clip / (norm + 1e-6)) if clip else 1
        w -= of_w.step(dw * factor, lr)
        b -= of_b.step(db * factor, lr)
    return w, b


def federated_average(seed, rounds, clients, lr, batch, optimizer, server=Average, **local):
    """McMahan et al. 2017, algorithm 1, with a rule for the server, all clients in every round, on the tiny data set; in double. lr: of each round."""
    shape, classes, n = (1, 8, 8), 4, 400
    x, y = synthetic(shape, classes, n, 1, 0)
    order = Stream(seed, PARTITION, 0, 0).shuffled(range(n))
    parts = [order[k * n // clients:(k + 1) * n // clients] for k in range(clients)]
    d = int(np.prod(shape))
    w = uniform_init(seed, 0, classes * d, d).reshape(classes, d)
    b = uniform_init(seed, 1, classes, d)
    server_w, server_b = server(), server()
    for r in range(1, rounds + 1):
        sum_w, sum_b = np.zeros_like(w), np.zeros_like(b)
        for k, part in enumerate(parts):
            shuffled = Stream(seed, SHUFFLE, k, r * 65536).shuffled(part)
            wk, bk = train_locally(w, b, x, y, shuffled, lr(r), batch, optimizer, **local)
            sum_w += len(part) * (wk - w)
            sum_b += len(part) * (bk - b)
        w, b = w + server_w.step(sum_w / n, r), b + server_b.step(sum_b / n, r)
    test_x, test_y = synthetic(shape, classes, 80, 1, 1)
    return w, b, float(np.mean(np.argmax(test_x @ w.T + b, axis=1) == test_y))


@pytest.fixture(scope='module')
def two_daemons(shared_cluster):
    c = shared_cluster(2)
    c.wait_daemons(2)
    return c


def pulled_params(c, job):
    path = c.dir + '/' + job + '.safetensors'
    c.mfl('pull', job, '--output', path)
    return [np.frombuffer(data, '<f4').reshape(shape) for _, shape, data in h.read_safetensors(path).values()]


@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_fedavg_is_the_algorithm(two_daemons, momentum):
    c = two_daemons
    settings = {'seed': 11, 'rounds': 3}
    # 7 clients of 57 or 58 samples: weights differ, and the last batch of 10 is short.
    job, _ = c.run_job(model='logistic', data={'clients': 7},
                       training={'lr': 0.1, 'epochs': 1, 'batch': 10, 'momentum': momentum}, **settings)
    w, b, accuracy = federated_average(clients=7, lr=lambda r: 0.1, batch=10, optimizer=lambda: Momentum(momentum),
                                       **settings)
    got_w, got_b = pulled_params(c, job)
    assert got_w.shape == (4, 64) and got_b.shape == (4,)
    start = uniform_init(11, 0, 256, 64).reshape(4, 64)
    assert np.abs(w - start).max() > 0.02  # there was something to learn
    # The programs work in float: 18 steps of values about 1 with a relative rounding of 2^-24 each, summed over 64
    # inputs, stay below 1e-5; a wrong order, weight or batch shows at 1e-3.
    assert np.abs(got_w - w).max() < 1e-5
    assert np.abs(got_b - b).max() < 1e-5
    # A sample at the border may fall to either side: at most one of 80.
    assert abs(c.info(job)['last']['accuracy'] - accuracy) < 1.5 / 80


def test_adam_with_a_cosine_is_the_algorithm(two_daemons):
    c = two_daemons
    settings = {'seed': 12, 'rounds': 4}
    job, _ = c.run_job(model='logistic', data={'clients': 7}, training={
        'lr': 0.02, 'epochs': 1, 'batch': 10, 'optimizer': 'adam', 'beta2': 0.99, 'eps': 1e-3,
        'schedule': {'kind': 'cosine', 'warmup': 1, 'min': 0.1}}, **settings)

    def lr(r):
        """One round of warm-up, which is at the whole rate, then half a wave over the other three."""
        return 0.02 if r == 1 else 0.02 * (0.1 + 0.9 * (1 + np.cos(np.pi * (r - 2) / 3)) / 2)
    w, b, _ = federated_average(clients=7, lr=lr, batch=10, optimizer=lambda: Adam(0.9, 0.99, 1e-3), **settings)
    got_w, got_b = pulled_params(c, job)
    start = uniform_init(12, 0, 256, 64).reshape(4, 64)
    assert np.abs(w - start).max() > 0.1
    # As above; the square root of a small v divides, and with eps 1e-3 magnifies what rounding leaves by 1e3 at the most
    # where v is 0. A rate of another round is off by a tenth.
    assert np.abs(got_w - w).max() < 1e-4
    assert np.abs(got_b - b).max() < 1e-4


@pytest.mark.parametrize('variant', ['paper', 'flower'])
@pytest.mark.parametrize('kind', ['fedadagrad', 'fedadam', 'fedyogi'])
def test_adaptive_strategies_are_the_algorithms(two_daemons, kind, variant):
    """beta1 is 0 for FedAdagrad in both."""
    c = two_daemons
    settings = {'seed': 13, 'rounds': 4}
    rule = {'tau': 0.01, 'server_lr': 0.05}
    job, _ = c.run_job(model='logistic', data={'clients': 7}, training={'lr': 0.1, 'epochs': 1, 'batch': 10},
                       aggregation={'strategy': kind, 'variant': variant, **rule}, **settings)

    def server():
        return Adaptive(kind, variant == 'flower', 0.05, 0 if kind == 'fedadagrad' else 0.9, 0.99, 0.01)
    w, b, _ = federated_average(clients=7, lr=lambda r: 0.1, batch=10, optimizer=lambda: Momentum(0), server=server, **settings)
    got_w, got_b = pulled_params(c, job)
    start = uniform_init(13, 0, 256, 64).reshape(4, 64)
    assert np.abs(w - start).max() > 0.02
    # The step is eta m / (sqrt(v) + tau): rounding of d, about 1e-7, is magnified by eta / tau = 5 in each of 4 rounds. The other
    # variant differs by more than 1e-3.
    assert np.abs(got_w - w).max() < 1e-4
    assert np.abs(got_b - b).max() < 1e-4


def test_nesterov_is_the_algorithm(two_daemons):
    """Without momentum it is FedAvg, bit for bit."""
    c, settings = two_daemons, {'seed': 15, 'rounds': 5}
    rule = {'strategy': 'fedavgm', 'nesterov': True}
    training = {'lr': 0.05, 'epochs': 1, 'batch': 10}
    job, _ = c.run_job(model='logistic', data={'clients': 7}, training=training,
                       aggregation={'momentum': 0.7, 'server_lr': 0.8, **rule}, **settings)

    def expected(server):
        return federated_average(clients=7, lr=lambda r: 0.05, batch=10, optimizer=lambda: Momentum(0), server=server, **settings)
    w, b, _ = expected(lambda: Nesterov(0.8, 0.7))
    got_w, got_b = pulled_params(c, job)
    assert np.abs(got_w - w).max() < 1e-5 and np.abs(got_b - b).max() < 1e-5
    assert np.abs(expected(lambda: Nesterov(0.8, 0))[0] - w).max() > 1e-3
    plain = c.run_job(model='logistic', data={'clients': 7}, training=training, **settings)[1]
    assert plain == c.run_job(model='logistic', data={'clients': 7}, training=training,
                              aggregation={'momentum': 0, **rule}, **settings)[1]


def test_fedprox_clips_the_gradient_with_its_term(two_daemons):
    """As PyTorch does, whose loss includes the term. Without it in the norm, steps away from the start would be longer."""
    c = two_daemons
    settings = {'seed': 14, 'rounds': 2}
    job, _ = c.run_job(model='logistic', data={'clients': 7},
                       training={'lr': 0.1, 'epochs': 1, 'batch': 10, 'clip_norm': 0.5},
                       aggregation={'strategy': 'fedprox', 'mu': 5}, **settings)

    def expected(**local):
        return federated_average(clients=7, lr=lambda r: 0.1, batch=10, optimizer=lambda: Momentum(0), mu=5, **local, **settings)[0]
    got = pulled_params(c, job)[0]
    assert np.abs(expected(clip=0.5) - expected()).max() > 1e-3  # it does clip
    assert np.abs(got - expected(clip=0.5)).max() < 1e-5


STRATEGIES = [
    {'strategy': 'fedavg'},
    {'strategy': 'fedavg', 'server_lr': 0.5, 'weighting': 'uniform'},
    {'strategy': 'fedavgm', 'momentum': 0.5},
    {'strategy': 'fedavgm', 'momentum': 0.5, 'nesterov': True},
    {'strategy': 'fedadagrad', 'server_lr': 0.01},
    {'strategy': 'fedadam', 'server_lr': 0.01},
    {'strategy': 'fedyogi', 'server_lr': 0.01},
    {'strategy': 'fedprox', 'mu': 0.5},
    {'strategy': 'median'},
]


def test_every_strategy(two_daemons):
    """Each learns something, each gives a model of its own, and the same one from one daemon and from two."""
    c, last = two_daemons, []
    jobs = [c.submit(name='s%d' % i, model='logistic', rounds=4, aggregation=s, training={'lr': 0.1})
            for i, s in enumerate(STRATEGIES)]
    for job in jobs:
        info = c.wait_job(job, 60)
        rounds = c.rounds(job)
        assert rounds[-1]['loss'] < rounds[0]['loss'], info['strategy']
        last.append(c.digests(job)[-1])
    assert len(set(last)) == len(STRATEGIES)
    with c.operator() as o:
        o.request('drain', {'daemon': 'd2', 'wait': True})
    jobs = [c.submit(name='s%d' % i, model='logistic', rounds=4, aggregation=s, training={'lr': 0.1})
            for i, s in enumerate(STRATEGIES)]
    for i, job in enumerate(jobs):
        c.wait_job(job, 60)
        assert {r['daemons'] for r in c.rounds(job)} == {1}
        assert c.digests(job)[-1] == last[i], STRATEGIES[i]
    with c.operator() as o:
        o.request('drain', {'daemon': 'd2', 'undo': True})


@pytest.mark.parametrize('model', ['mlp', 'lenet5', 'fedavg-cnn', 'pfl-cnn', {
    'layers': [{'conv2d': {'filters': 3, 'kernel': 3, 'padding': 1}}, 'relu', {'avgpool2d': {'kernel': 2}}, 'flatten',
               {'dense': {'units': 4}}]}])
def test_every_preset(shared_cluster, model):
    c = shared_cluster(1, data=['tiny=synthetic:1,16,16:4:40:8:1'], backend='cpu')
    c.wait_daemons(1)
    job, digests = c.run_job(model=model, rounds=1, data={'clients': 2}, training={'steps': 2, 'epochs': None})
    assert len(digests) == 1
    assert c.info(job)['n_params'] > 0
    c.close()
