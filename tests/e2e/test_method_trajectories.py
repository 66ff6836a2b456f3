# SPDX-License-Identifier: Apache-2.0
"""Methods beside PyTorch's gradients, over a network with a hidden layer: five rounds of a plain loop in double, written here. Those of
test_gradients.py and test_own_models.py are there. And a norm layer that stays with its client, with PyTorch's own batch norm."""
import itertools

import numpy as np
import pytest

import cohorts
from federated import Stream, parts_of, pulled, synthetic, uniform_init
from test_compression import GRID, HALF, nearest
from test_own_models import MLP, batches
from test_personal import NORMED, SIZES, UNEVEN, states_of

torch = pytest.importorskip('torch', reason='needs PyTorch: pip install torch')
JOB = {'model': MLP, 'seed': 21, 'rounds': 5, 'data': UNEVEN, 'training': {'lr': 0.2, 'epochs': 2, 'batch': 10}, 'evaluation': {'every': 0}}
LR, N = 0.2, len(SIZES)
X, Y = (torch.tensor(a) for a in synthetic((1, 8, 8), 4, 400, 1, 0))
PARTS = [part for part, _ in parts_of(21, 400, SIZES)]
START = [uniform_init(21, 0, 9 * 64, 64).reshape(9, 64), uniform_init(21, 1, 9, 64), uniform_init(21, 2, 36, 9).reshape(4, 9),
         uniform_init(21, 3, 4, 9)]


@pytest.fixture(scope='module')
def two_daemons(shared_cluster):
    torch.set_num_threads(1)
    c = shared_cluster(2)
    c.wait_daemons(2)
    return c


def loss_of(v, rows):
    hidden = torch.relu(torch.nn.functional.linear(X[rows], v[0], v[1]))
    return torch.nn.functional.cross_entropy(torch.nn.functional.linear(hidden, v[2], v[3]), Y[rows])


class Local:
    """A client's training: torch.optim.SGD, with what is added to the loss's gradients. Its steps, mean loss, and what it moved by."""

    def __init__(self, k, r, x, momentum=0, mu=0, added=None, part=None):
        v = [torch.tensor(a, requires_grad=True) for a in x]
        x = [torch.tensor(a) for a in x]
        sgd = torch.optim.SGD(v, lr=LR, momentum=momentum)
        part = PARTS[k] if part is None else part
        self.k, self.n, self.steps, losses = k, len(part), 0, []
        self.first = float(loss_of(x, part))
        for rows in batches(k, r, part, 0, 2):
            sgd.zero_grad()
            loss = loss_of(v, rows)
            loss.backward()
            losses.append((len(rows), float(loss)))
            for a, b, g in zip(v, x, added or [0] * len(v)):
                a.grad += mu * (a.detach() - b) + g
            sgd.step()
            self.steps += 1
        self.trained = sum(n * a for n, a in losses) / sum(n for n, _ in losses)
        self.d = [(a.detach() - b).numpy() for a, b in zip(v, x)]


def weighted(clients, weights):
    return [sum(w * c.d[i] for c, w in zip(clients, weights)) / sum(weights) for i in range(len(START))]


class FedAvgM:
    """Hsu et al. 2019, with Nesterov's momentum."""

    def __init__(self):
        self.v = [0 * a for a in START]

    def turn(self, r, x):
        d = weighted(*zip(*((c, c.n) for c in (Local(k, r, x) for k in range(N)))))
        self.v = [0.6 * v + a for v, a in zip(self.v, d)]
        return [a + 0.7 * (b + 0.6 * v) for a, b, v in zip(x, d, self.v)]


class FedNova:
    """Wang et al. 2020, with local momentum."""
    rho = 0.5

    def turn(self, r, x):
        clients = [Local(k, r, x, momentum=self.rho) for k in range(N)]
        a = [(c.steps - self.rho * (1 - self.rho ** c.steps) / (1 - self.rho)) / (1 - self.rho) for c in clients]
        n = [c.n / sum(c.n for c in clients) for c in clients]
        tau = sum(p * b for p, b in zip(n, a))
        return [v + tau * sum(p * c.d[i] / b for p, c, b in zip(n, clients, a)) for i, v in enumerate(x)]


class QFedAvg:
    """Li et al. 2020, algorithm 2."""
    q = 2

    def turn(self, r, x):
        big, total, h = 1 / LR, [0 * a for a in x], 0
        for c in (Local(k, r, x) for k in range(N)):
            total = [t - c.first ** self.q * big * d for t, d in zip(total, c.d)]
            h += self.q * c.first ** (self.q - 1) * big ** 2 * sum((d ** 2).sum() for d in c.d) + big * c.first ** self.q
        return [a - t / h for a, t in zip(x, total)]


class AdaptiveProx:
    """Li et al. 2020, FedProx, appendix C.3.3."""

    def __init__(self):
        self.mu, self.loss = 0.5, None

    def turn(self, r, x):
        clients = [Local(k, r, x, mu=self.mu) for k in range(N)]
        loss = sum(c.n * c.trained for c in clients) / sum(c.n for c in clients)
        if self.loss is not None:
            self.mu = max(0, self.mu - 0.1) if loss < self.loss else min(1, self.mu + 0.1)
        self.loss = loss
        return [a + b for a, b in zip(x, weighted(clients, [c.n for c in clients]))]


class Scaffold:
    """Karimireddy et al. 2020, algorithm 1, option II."""

    def __init__(self):
        self.c = [0 * a for a in START]
        self.own = [[0 * a for a in START] for _ in range(N)]

    def turn(self, r, x):
        clients = [Local(k, r, x, added=[torch.tensor(a - b) for a, b in zip(self.c, self.own[k])]) for k in range(N)]
        before = self.c
        for c in clients:
            after = [o - b - d / (c.steps * LR) for o, b, d in zip(self.own[c.k], before, c.d)]
            self.c = [a + (b - o) / N for a, b, o in zip(self.c, after, self.own[c.k])]
            self.own[c.k] = after
        return [a + b for a, b in zip(x, weighted(clients, [1] * N))]


class FedDyn:
    """Acar et al. 2021, algorithm 1."""
    alpha = 0.3

    def __init__(self):
        self.h = [0 * a for a in START]
        self.g = [[0 * a for a in START] for _ in range(N)]

    def turn(self, r, x):
        clients = [Local(k, r, x, mu=self.alpha, added=[torch.tensor(-a) for a in self.g[k]]) for k in range(N)]
        for c in clients:
            self.g[c.k] = [a - self.alpha * d for a, d in zip(self.g[c.k], c.d)]
            self.h = [a - self.alpha / N * d for a, d in zip(self.h, c.d)]
        return [a + b - h / self.alpha for a, b, h in zip(x, weighted(clients, [1] * N), self.h)]


METHODS = [
    ({'strategy': 'fedavgm', 'momentum': 0.6, 'nesterov': True, 'server_lr': 0.7}, {}, FedAvgM),
    ({'strategy': 'fednova'}, {'momentum': 0.5}, FedNova),
    ({'strategy': 'qfedavg', 'q': 2}, {}, QFedAvg),
    ({'strategy': 'fedprox', 'mu': 'adaptive', 'mu_start': 0.5}, {}, AdaptiveProx),
    ({'strategy': 'scaffold'}, {}, Scaffold),
    ({'strategy': 'feddyn', 'alpha': 0.3}, {}, FedDyn),
]


@pytest.mark.parametrize('aggregation,training,method', METHODS, ids=lambda a: a.get('strategy', '') if isinstance(a, dict) else '')
def test_five_rounds_beside_pytorch(two_daemons, aggregation, training, method):
    job, _ = two_daemons.run_job(**{**JOB, 'training': {**JOB['training'], **training}}, aggregation=aggregation)
    x, rule = START, method()
    for r in range(1, 6):
        x = rule.turn(r, x)
    got = list(pulled(two_daemons, job).values())
    assert max(np.abs(a - b).max() for a, b in zip(x, START)) > 0.05
    assert all(np.abs(a - b).max() < 1e-4 for a, b in zip(got, x)), [np.abs(a - b).max() for a, b in zip(got, x)]


class FedPer:
    """Arivazhagan et al. 2019: all layers are trained, and the head stays."""

    def __init__(self):
        self.heads = [START[2:] for _ in range(N)]

    def turn(self, r, x):
        clients = [Local(k, r, x[:2] + self.heads[k]) for k in range(N)]
        self.heads = [[a + b for a, b in zip(head, c.d[2:])] for head, c in zip(self.heads, clients)]
        d = weighted(clients, [c.n for c in clients])
        return [a + b for a, b in zip(x[:2], d)] + x[2:]


def test_fedper_beside_pytorch(two_daemons):
    job, _ = two_daemons.run_job(**JOB, personal={'layers': ['head']})
    x, rule = START, FedPer()
    for r in range(1, 6):
        x = rule.turn(r, x)
    got = list(pulled(two_daemons, job).values())
    assert all(np.abs(a - b).max() < 1e-4 for a, b in zip(got, x))
    rows, head = states_of(two_daemons, job, sum(v.size for v in got)), got[2].size + got[3].size
    for k in range(N):
        own = np.concatenate([a.ravel() for a in rule.heads[k]])
        assert np.abs(rows[k][-head:] + np.concatenate([a.ravel() for a in got[2:]]) - own).max() < 1e-4, k


SPEEDS = {'mu': 0, 'sigma': 1.2, 'speed': 100}


@pytest.mark.parametrize('aggregation', [{'strategy': 'fedbuff', 'buffer': 4}, {'strategy': 'fedasync', 'alpha': 0.6}], ids=lambda a: a['strategy'])
def test_versions_beside_pytorch(two_daemons, aggregation):
    """Nguyen et al. 2022, algorithm 1, and Xie et al. 2019, algorithm 1, whose calendar is tests/lib/cohorts.py's."""
    n, parts = 8, [part for part, _ in parts_of(21, 400, 20)]
    job, _ = two_daemons.run_job(60, **{**JOB, 'rounds': n, 'data': {'clients': 20}}, time='virtual', trace=SPEEDS, aggregation=aggregation,
                                 selection={'clients': 12})
    durations = [cohorts.model_duration(21, k, 40, SPEEDS['mu'], SPEEDS['sigma'], SPEEDS['speed']) for k in range(20)]
    turns = itertools.islice(cohorts.versions(21, durations, 12, aggregation.get('buffer', 1), 20), n)
    x, stale = [START], 0
    for r, (_, _, arrived, _) in enumerate(turns, 1):
        clients = [(Local(k, r, x[base], part=parts[k]), base, (r - base) ** -0.5) for k, base in sorted(arrived.items())]
        stale = max(stale, max(r - 1 - base for base in arrived.values()))
        if aggregation['strategy'] == 'fedbuff':
            x.append([a + sum(s * c.d[i] for c, _, s in clients) / len(clients) for i, a in enumerate(x[-1])])
        else:
            (c, base, s), = clients
            x.append([(1 - 0.6 * s) * a + 0.6 * s * (b + d) for a, b, d in zip(x[-1], x[base], c.d)])
    got = list(pulled(two_daemons, job).values())
    assert stale >= 2
    assert all(np.abs(a - b).max() < 1e-4 for a, b in zip(got, x[-1])), [np.abs(a - b).max() for a, b in zip(got, x[-1])]


@pytest.mark.parametrize('selection,more', [({'kind': 'power-of-choice', 'clients': 3, 'candidates': 5}, {}),
                                            ({'kind': 'oort', 'clients': 3}, {'time': 'virtual', 'trace': SPEEDS})], ids=['power-of-choice', 'oort'])
def test_chosen_clients_beside_pytorch(two_daemons, selection, more):
    """The losses that the choice follows from are PyTorch's, too. (test_selection.py has who is chosen.)"""
    c = two_daemons
    job, _ = c.run_job(60, **JOB, selection=selection, checkpoints={'keep': 9}, **more)
    x, seen = START, set()
    for r in range(1, 6):
        rows, _ = cohorts.memory(c, job, r)
        clients = [Local(k, r, x) for k in range(N) if rows[k].round == r]
        assert len(clients) == 3
        for local in clients:
            row = rows[local.k]
            assert abs(row.loss / 2 ** 32 / row.samples - local.trained) < 1e-4
            seen.add(local.k)
        x = [a + b for a, b in zip(x, weighted(clients, [c.n for c in clients]))]
    got = list(pulled(c, job).values())
    assert len(seen) > 3 and all(np.abs(a - b).max() < 1e-4 for a, b in zip(got, x))


# ---- fewer bytes ----

def flat(v):
    return np.concatenate([np.asarray(a).ravel() for a in v])


PLACES = np.cumsum([0] + [a.size for a in START])


def shaped(v):
    return [v[a:b].reshape(t.shape) for a, b, t in zip(PLACES, PLACES[1:], START)]


def exponents_of(v, bits, room):
    return [int(np.ceil(np.log2(room * np.abs(v[a:b]).max()))) - (bits - 1) for a, b in zip(PLACES, PLACES[1:])]


class Up:
    """What becomes of a client's change: on a grid, in bfloat16, or its largest elements."""

    def __init__(self, bits=0, top_k=0):
        self.bits, self.top_k, self.exponents, self.rest = bits, top_k, None, {}

    def sent(self, k, r, d):
        if self.top_k:
            u = d + self.rest.get(k, 0)
            chosen = np.argsort(-np.abs(u).astype(np.float32), kind='stable')[:int(np.ceil(self.top_k * u.size))]
            v = np.zeros_like(u)
            v[chosen] = u[chosen]
            self.rest[k] = u - v
            return v
        if not self.bits:
            words = d.astype(np.float32).view(np.uint32) + (Stream(21, HALF, k, r).block(d.size) >> np.uint64(16)).astype(np.uint32)
            return (words & np.uint32(0xffff0000)).view(np.float32).astype(float)
        if not self.exponents:
            return d
        u, v = Stream(21, GRID, k, r).block(d.size) * 2.0 ** -32, d.copy()
        for a, b, e in zip(PLACES, PLACES[1:], self.exponents):
            t = d[a:b] / 2.0 ** e
            most = 2 ** (self.bits - 1) - 1
            v[a:b] = np.clip(np.floor(t) + (u[a:b] < t - np.floor(t)), -most, most) * 2.0 ** e
        return v

    def turn(self, r, x):
        clients = [Local(k, r, x) for k in range(N)]
        d = sum(c.n * self.sent(c.k, r, flat(c.d)) for c in clients) / sum(c.n for c in clients)
        if self.bits:
            self.exponents = exponents_of(d, self.bits, 4)
        return shaped(flat(x) + d)


class Down:
    """What becomes of the params, and what is left for the next round."""

    def __init__(self, bits=0):
        self.bits, self.rest = bits, 0

    def begin(self, x):
        return x if self.bits else self.after(None, flat(x))

    def after(self, before, made):
        wanted = made + self.rest
        if self.bits:
            step = wanted - before
            v = before.copy()
            for a, b, e in zip(PLACES, PLACES[1:], exponents_of(step, self.bits, 1)):
                v[a:b] += np.rint(step[a:b] / 2.0 ** e) * 2.0 ** e
        else:
            v = nearest(wanted).astype(float)
        self.rest = wanted - v
        return shaped(v)

    def turn(self, r, x):
        d = weighted(*zip(*((c, c.n) for c in (Local(k, r, x) for k in range(N)))))
        return self.after(flat(x), flat(x) + flat(d))


KINDS = {'up: 16 bits': ({'up': {'bits': 16}}, lambda: Up(bits=16)), 'up: 8 bits': ({'up': {'bits': 8}}, lambda: Up(bits=8)),
         'up: bf16': ({'up': 'bf16'}, Up), 'up: top-k': ({'up': {'top_k': 0.2}}, lambda: Up(top_k=0.2)),
         'down: 8 bits': ({'down': {'bits': 8}}, lambda: Down(bits=8)), 'down: 16 bits': ({'down': {'bits': 16}}, lambda: Down(bits=16)),
         'down: bf16': ({'down': 'bf16'}, Down)}


@pytest.mark.parametrize('kind', KINDS)
def test_rounded_beside_pytorch(two_daemons, kind):
    """Where float32's error decides which way an element is rounded, or whether it is sent, it is a step away: a few are."""
    compression, made = KINDS[kind]
    job, _ = two_daemons.run_job(**JOB, compression=compression)
    rule, plain = made(), START
    x = rule.begin(START) if isinstance(rule, Down) else START
    for r in range(1, 6):
        x = rule.turn(r, x)
        clients = [Local(k, r, plain) for k in range(N)]
        plain = [a + b for a, b in zip(plain, weighted(clients, [c.n for c in clients]))]
    away = np.abs(flat(pulled(two_daemons, job).values()) - flat(x))
    print(kind, away.max(), (away < 1e-4).mean(), (np.abs(flat(plain) - flat(x)) > 1e-4).mean())
    assert (away < 1e-4).mean() >= (1 if '16 bits' in kind else 0.99) and away.max() < 0.01
    if '16 bits' not in kind:  # whose steps are smaller
        assert (np.abs(flat(plain) - flat(x)) > 1e-4).mean() > 0.3


def test_fedbn_beside_pytorch(two_daemons):
    """Li et al. 2021: PyTorch's BatchNorm2d of each client stays with it, running statistics too; all others are averaged by samples."""
    job, _ = two_daemons.run_job(**{**JOB, 'model': NORMED, 'training': {'lr': 0.05, 'epochs': 2, 'batch': 10}},
                                 personal={'layers': ['bn']})
    nets = []
    for _ in range(N):
        net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
                                  torch.nn.Linear(144, 4)).double()
        own = net.state_dict()
        for i, (name, fan_in) in enumerate((('0.weight', 9), ('0.bias', 9))):
            own[name].copy_(torch.tensor(uniform_init(21, i, own[name].numel(), fan_in)).reshape(own[name].shape))
        nets.append(net)
    names = list(pulled(two_daemons, job))
    assert [n.split('.')[1] for n in names][:2] == ['weight', 'bias'] and len(names) == 8
    for i, (name, fan_in) in enumerate((('4.weight', 144), ('4.bias', 144))):
        for net in nets:
            t = net.state_dict()[name]
            t.copy_(torch.tensor(uniform_init(21, names.index([n for n in names if n.startswith('dense')][i]), t.numel(), fan_in)).reshape(t.shape))
    shared = [n for n in nets[0].state_dict() if not n.startswith('1.')]
    for r in range(1, 6):
        mean = {n: 0 for n in shared}
        for k, net in enumerate(nets):
            sgd = torch.optim.SGD(net.parameters(), lr=0.05)
            for rows in batches(k, r, PARTS[k], 0, 2):
                sgd.zero_grad()
                torch.nn.functional.cross_entropy(net(X[rows].reshape(-1, 1, 8, 8)), Y[rows]).backward()
                sgd.step()
            for n in shared:
                mean[n] = mean[n] + len(PARTS[k]) / 400 * net.state_dict()[n].clone()
        for net in nets:
            for n in shared:
                net.state_dict()[n].copy_(mean[n])
    got = dict(zip([n for n in nets[0].state_dict() if 'tracked' not in n], pulled(two_daemons, job).values()))
    for n in shared:
        assert np.abs(got[n] - mean[n].numpy()).max() < 1e-4, n
    rows = states_of(two_daemons, job, sum(v.size for v in got.values()))
    for k, net in enumerate(nets):
        at = 0
        for n, v in got.items():
            if n.startswith('1.'):
                assert np.abs(rows[k][at:at + v.size] + v.ravel() - net.state_dict()[n].numpy()).max() < 1e-4, (k, n)
            at += v.size
