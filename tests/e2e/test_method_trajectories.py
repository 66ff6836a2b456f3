# SPDX-License-Identifier: Apache-2.0
"""Methods beside PyTorch's gradients, over a network with a hidden layer: five rounds of a plain loop in double, written here. Those of
test_gradients.py and test_own_models.py are there. And a norm layer that stays with its client, with PyTorch's own batch norm."""
import numpy as np
import pytest

from federated import parts_of, pulled, synthetic, uniform_init
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

    def __init__(self, k, r, x, momentum=0, mu=0, added=None):
        v = [torch.tensor(a, requires_grad=True) for a in x]
        x = [torch.tensor(a) for a in x]
        sgd = torch.optim.SGD(v, lr=LR, momentum=momentum)
        self.k, self.n, self.steps, losses = k, len(PARTS[k]), 0, []
        self.first = float(loss_of(x, PARTS[k]))
        for rows in batches(k, r, PARTS[k], 0, 2):
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
