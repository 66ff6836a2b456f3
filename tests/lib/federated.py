# SPDX-License-Identifier: Apache-2.0
"""Federated learning recomputed from the seed in numpy, which shares no code with the programs: generators, data, local training,
rounds. For tests that say what an algorithm is."""
import numpy as np

import mfl_harness as h

U32 = (1 << 32) - 1
INIT, PARTITION, SELECT, SHUFFLE, DATA = 1, 2, 3, 4, 9  # common/base/rng.h: part of reproducibility
SIZES = 4  # the stream of partition `size` (common/partition/partition_draw.h)
HELD = 11  # of what clients keep for evaluations


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


def loss_of(w, b, x, y):
    """The mean softmax cross-entropy."""
    z = x @ w.T + b
    z = z - z.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(y)), y]))


def train_locally(w, b, x, y, batches, lr, optimizer, mu=0, clip=None, losses=None, decay=0, added=(0, 0)):
    """Softmax cross-entropy, mean over the batch. lr: of all steps, or of each. mu: FedProx's term, a part of the loss; clip: of
    the norm of the whole gradient. added: to each gradient."""
    w0, b0, w, b = w, b, w.copy(), b.copy()
    of_w, of_b = optimizer(), optimizer()
    for s, i in enumerate(batches):
        rate = lr(s, len(batches)) if callable(lr) else lr
        if losses is not None:
            losses.append((len(i), loss_of(w, b, x[i], y[i])))
        z = x[i] @ w.T + b
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(i)), y[i]] -= 1
        dw = p.T @ x[i] / len(i) + mu * (w - w0) + decay * w + added[0]
        db = p.sum(axis=0) / len(i) + mu * (b - b0) + decay * b + added[1]
        norm = np.sqrt((dw ** 2).sum() + (db ** 2).sum())
        factor = min(1, clip / (norm + 1e-6)) if clip else 1
        w -= of_w.step(dw * factor, rate)
        b -= of_b.step(db * factor, rate)
    return w, b


class Client:
    """One client's part of a round: samples, steps, its loss with the params that it received, what its params moved by, and the
    mean loss of its training."""

    def __init__(self, n, steps, loss, d, trained, k):
        self.n, self.steps, self.loss, self.d, self.trained, self.k = n, steps, loss, d, trained, k


def parts_of(seed, n, clients, split=0):
    """The samples of each of so many clients, or of clients of these sizes: those that it trains on, and those that it keeps."""
    order = Stream(seed, PARTITION, 0 if isinstance(clients, int) else SIZES, 0).shuffled(range(n))
    sizes = [(k + 1) * n // clients - k * n // clients for k in range(clients)] if isinstance(clients, int) else clients
    parts = []
    for k, (size, end) in enumerate(zip(sizes, np.cumsum(sizes))):
        part, held = order[end - size:end], min(int(size * split + 0.5), size - 1)
        if held:
            part = Stream(seed, PARTITION, HELD, k).shuffled(part)
        parts.append((part[:size - held], part[size - held:]))
    return parts


def federated_average(seed, rounds, clients, lr, batch, optimizer, server=Average, method=None, epochs=1, turns=None,
                      states=None, split=0, data=None, **local):
    """McMahan et al. 2017, algorithm 1, with a rule for the server, all clients in every round, on the tiny data set; in double. lr:
    of each round. clients: how many, or their sizes. method(clients, r): the mean of what they moved by, and more for local. turns(r): the
    clients of a round, if not all. states: what clients keep; added(k): to the gradients of client k; it is a method, too. split: the share
    of its samples that a client keeps for evaluations. data(k, r, x, y, part): what client k trains on in round r, if not x and y."""
    shape, classes, n = (1, 8, 8), 4, 400
    x, y = synthetic(shape, classes, n, 1, 0)
    parts = [trained for trained, _ in parts_of(seed, n, clients, split)]
    d = int(np.prod(shape))
    w = uniform_init(seed, 0, classes * d, d).reshape(classes, d)
    b = uniform_init(seed, 1, classes, d)
    server_w, server_b = server(), server()
    for r in range(1, rounds + 1):
        round_clients = []
        for k, part in enumerate(parts):
            if turns and k not in turns(r):
                continue
            epoch_orders = [Stream(seed, SHUFFLE, k, r * 65536 + e).shuffled(part) for e in range(epochs)]
            batches = [o[at:at + batch] for o in epoch_orders for at in range(0, len(part), batch)]
            losses = []
            added = {'added': states.added(k)} if states else {}
            xk, yk = data(k, r, x, y, part) if data else (x, y)
            wk, bk = train_locally(w, b, xk, yk, batches, lr(r), optimizer, losses=losses, **added, **local)
            trained = sum(m * v for m, v in losses) / sum(m for m, _ in losses)
            round_clients.append(Client(len(part), len(losses), loss_of(w, b, xk[part], yk[part]), (wk - w, bk - b), trained, k))
        if not round_clients:
            dw, db = 0 * w, 0 * b
        elif states:
            dw, db = states.turn(round_clients)
        elif method:
            dw, db = method(round_clients, r, local)
        else:
            dw, db = (sum(c.n * c.d[i] for c in round_clients) / sum(c.n for c in round_clients) for i in (0, 1))
        w, b = w + server_w.step(dw, r), b + server_b.step(db, r)
    test_x, test_y = synthetic(shape, classes, 80, 1, 1)
    return w, b, float(np.mean(np.argmax(test_x @ w.T + b, axis=1) == test_y))


def pulled(c, job):
    """The params of a job of a cluster: arrays by their names."""
    path = c.dir + '/' + job + '.safetensors'
    c.mfl('pull', job, '--output', path)
    return {name: np.frombuffer(data, '<f4').reshape(shape) for name, (_, shape, data) in h.read_safetensors(path).items()}
