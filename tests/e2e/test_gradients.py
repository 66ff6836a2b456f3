# SPDX-License-Identifier: Apache-2.0
"""Methods that take gradients where a client's params are not: MimeLite, Mime, SCAFFOLD's option I and APFL are their papers, recomputed in
numpy and in plain PyTorch; what is FedAvg stays FedAvg to the bit; one model whoever trains; what is refused."""
import numpy as np
import pytest

from federated import parts_of, pulled, synthetic, uniform_init
from test_own_models import MLP, Logistic, batches, descend
from test_personal import NORMED, SIZES, UNEVEN, states_of

JOB = {'model': 'logistic', 'seed': 21, 'data': UNEVEN, 'training': {'lr': 0.3, 'epochs': 2, 'batch': 10},
       'evaluation': {'on': 'clients', 'split': 0.25}}
KINDS = {'mimelite': {'strategy': 'mimelite', 'momentum': 0.6, 'server_lr': 0.8}, 'mime': {'strategy': 'mime', 'momentum': 0.6},
         'scaffold': {'strategy': 'scaffold', 'option': 'I'}, 'apfl': {'strategy': 'apfl', 'alpha': 0.3},
         'apfl-adaptive': {'strategy': 'apfl', 'alpha': 'adaptive'}}
STATES = {'scaffold': 0, 'apfl': 0, 'apfl-adaptive': 1}  # numbers behind the vector


@pytest.fixture(scope='module')
def two_daemons(shared_cluster):
    c = shared_cluster(2)
    c.wait_daemons(2)
    return c


def scaled(factor, v):
    return [factor * a for a in v]


def added(v, w):
    return [a + b for a, b in zip(v, w)]


def weighted(v, n):
    return [sum(m * a for m, a in zip(n, tensor)) / sum(n) for tensor in zip(*v)]


class Mime:
    """Karimireddy et al. 2021, algorithm 1, with momentum."""

    def __init__(self, model, beta, lite, lr=0.3, server_lr=1):
        self.model, self.beta, self.lite, self.lr, self.server_lr = model, beta, lite, lr, server_lr
        self.s = scaled(0, model.initial)

    def turn(self, r, parts, x):
        ends, n = [], [len(part) for part in parts.values()]
        c = weighted([self.model.gradient(x, part) for part in parts.values()], n)
        for k, part in parts.items():
            y = x
            for rows in batches(k, r if self.lite else 2 * r, part, 0, 2):
                g = self.model.gradient(y, rows)
                if not self.lite:
                    g = added(added(g, scaled(-1, self.model.gradient(x, rows))), c)
                y = [a - self.lr * ((1 - self.beta) * b + self.beta * s) for a, b, s in zip(y, g, self.s)]
            ends.append(y)
        self.s = added(scaled(1 - self.beta, c), scaled(self.beta, self.s))
        return added(x, scaled(self.server_lr, added(weighted(ends, n), scaled(-1, x))))


class Scaffold:
    """Karimireddy et al. 2020, algorithm 1, option I."""

    def __init__(self, model, n=7, lr=0.3):
        self.model, self.lr, self.n = model, lr, n
        self.own, self.c = {}, scaled(0, model.initial)

    def turn(self, r, parts, x):
        ends, zero = [], scaled(0, x)
        after = {k: self.model.gradient(x, part) for k, part in parts.items()}
        for k, part in parts.items():
            y = x
            for rows in batches(k, r, part, 0, 2):
                g = added(added(self.model.gradient(y, rows), self.c), scaled(-1, self.own.get(k, zero)))
                y = [a - self.lr * b for a, b in zip(y, g)]
            ends.append(y)
        for k, v in after.items():
            self.c = [a + (b - o) / self.n for a, b, o in zip(self.c, v, self.own.get(k, zero))]
        self.own.update(after)
        return weighted(ends, [1] * len(ends))


class Apfl:
    """Deng et al. 2020, algorithm 1; alpha None: of each client, by equation 10."""

    def __init__(self, model, alpha, lr=0.3):
        self.model, self.lr, self.own = model, lr, {}
        self.alpha, self.adaptive = alpha or 0.5, alpha is None
        self.alphas = {}

    def turn(self, r, parts, x):
        ends = []
        for k, part in parts.items():
            w, v, alpha = x, self.own.get(k, x), self.alphas.get(k, self.alpha)
            for rows in batches(k, r, part, 0, 2):
                g = self.model.gradient(self.mixed(v, w, alpha), rows)
                slope = sum(np.sum((a - b) * c) for a, b, c in zip(v, w, g))
                v = [a - self.lr * alpha * b for a, b in zip(v, g)]
                w = descend(self.model, w, rows, self.lr)
                alpha = min(max(alpha - self.lr * slope, 0), 1) if self.adaptive else alpha
            ends.append(w)
            self.own[k], self.alphas[k] = v, alpha
        return weighted(ends, [len(part) for part in parts.values()])

    @staticmethod
    def mixed(v, w, alpha):
        return added(scaled(alpha, v), scaled(1 - alpha, w))


def made(kind, model):
    return {'mimelite': lambda: Mime(model, 0.6, True, server_lr=0.8), 'mime': lambda: Mime(model, 0.6, False),
            'scaffold': lambda: Scaffold(model), 'apfl': lambda: Apfl(model, 0.3),
            'apfl-adaptive': lambda: Apfl(model, None)}[kind]()


def recomputed(kind, model, turns, seen=lambda t: range(7)):
    parts, x, method = parts_of(21, 400, SIZES, 0.25), model.initial, made(kind, model)
    for t in range(1, turns + 1):
        x = method.turn(t, {k: parts[k][0] for k in seen(t)}, x)
    return x, method


def rounds_of(kind, turns):
    return 2 * turns if kind == 'mime' else turns


@pytest.mark.parametrize('turns', [1, 5])
@pytest.mark.parametrize('kind', KINDS)
def test_the_algorithm(two_daemons, kind, turns):
    c = two_daemons
    job, digests = c.run_job(**JOB, rounds=rounds_of(kind, turns), aggregation=KINDS[kind])
    x, method = recomputed(kind, Logistic(), turns)
    got = list(pulled(c, job).values())
    assert all(np.abs(a - b).max() < 2e-6 for a, b in zip(got, x)), [np.abs(a - b).max() for a, b in zip(got, x)]
    assert turns == 1 or np.abs(x[0] - Logistic().initial[0]).max() > 0.05
    if kind == 'mime':  # whose odd rounds take gradients alone
        assert digests[2::2] == digests[1:-1:2] and len(set(digests)) == turns + 1
    if kind in STATES:
        rows = states_of(c, job, 260 + STATES[kind])
        assert rows.keys() == set(range(7))
        for k, v in rows.items():
            expected = np.concatenate([a.ravel() for a in method.own[k]])
            assert np.abs(v[:260] - expected).max() < 1e-5, k
            assert not STATES[kind] or abs(v[260] - method.alphas[k]) < 1e-5, k
    if kind == 'apfl-adaptive':  # each client has gone its own way
        assert len({round(a, 4) for a in method.alphas.values()}) > 4, method.alphas


@pytest.mark.parametrize('kind', KINDS)
def test_clients_that_take_turns(two_daemons, kind):
    """Of mime, both rounds of a turn have the same clients."""
    c = two_daemons
    job, _ = c.run_job(**JOB, rounds=rounds_of(kind, 5), aggregation=KINDS[kind], selection={'kind': 'separated', 'separation': 3})
    x, _ = recomputed(kind, Logistic(), 5, lambda t: [k for k in range(7) if k % 3 == (t - 1) % 3])
    assert all(np.abs(a - b).max() < 2e-6 for a, b in zip(pulled(c, job).values(), x))
    if kind == 'mime':
        weights = [r['weight'] for r in c.rounds(job)]
        assert weights[::2] == weights[1::2] and len(set(weights)) == 3


@pytest.mark.parametrize('kind', KINDS)
def test_beside_pytorch(two_daemons, kind):
    """A network with a hidden layer, whose gradients PyTorch has. Its own loop, in double."""
    torch = pytest.importorskip('torch', reason='needs PyTorch: pip install torch')
    torch.set_num_threads(1)
    x, y = synthetic((1, 8, 8), 4, 400, 1, 0)

    class Model:
        initial = [uniform_init(21, 0, 9 * 64, 64).reshape(9, 64), uniform_init(21, 1, 9, 64),
                   uniform_init(21, 2, 36, 9).reshape(4, 9), uniform_init(21, 3, 4, 9)]

        @staticmethod
        def gradient(v, rows):
            v = [torch.tensor(a, requires_grad=True) for a in v]
            hidden = torch.relu(torch.nn.functional.linear(torch.tensor(x[rows]), v[0], v[1]))
            loss = torch.nn.functional.cross_entropy(torch.nn.functional.linear(hidden, v[2], v[3]), torch.tensor(y[rows]))
            return [g.numpy() for g in torch.autograd.grad(loss, v)]
    job, _ = two_daemons.run_job(**{**JOB, 'model': MLP}, rounds=rounds_of(kind, 5), aggregation=KINDS[kind])
    expected, _ = recomputed(kind, Model, 5)
    assert all(np.abs(a - b).max() < 1e-4 for a, b in zip(pulled(two_daemons, job).values(), expected))


@pytest.mark.parametrize('kind', ['apfl', 'apfl-adaptive'])
def test_the_personal_mixture_is_evaluated(two_daemons, kind):
    job, _ = two_daemons.run_job(**JOB, rounds=3, aggregation=KINDS[kind])
    model, (_, method) = Logistic(), recomputed(kind, Logistic(), 3)
    got = list(pulled(two_daemons, job).values())
    told = {s['client']: s for s in two_daemons.mfl_json('show', job)['scores']['clients']}
    for k, (_, held) in enumerate(parts_of(21, 400, SIZES, 0.25)):
        w, b = method.mixed(method.own[k], got, method.alphas[k])
        if held:
            hits = int(np.sum(np.argmax(model.x[held] @ w.T + b, axis=1) == model.y[held]))
            assert (told[k]['samples'], told[k]['correct']) == (len(held), hits), k


def test_what_is_fedavg(two_daemons):
    """To the bit: MimeLite without momentum, the params of APFL whatever alpha is, and the first round of SCAFFOLD. A model with running
    statistics, too."""
    c = two_daemons
    job = {**JOB, 'model': NORMED, 'training': {'lr': 0.1, 'epochs': 2, 'batch': 10, 'weight_decay': 0.01}}
    plain = c.run_job(**job, rounds=3)[1]
    assert c.run_job(**job, rounds=3, aggregation={'strategy': 'mimelite', 'momentum': 0})[1] == plain
    for alpha in (0.25, 1, 'adaptive'):
        assert c.run_job(**job, rounds=3, aggregation={'strategy': 'apfl', 'alpha': alpha})[1] == plain
    uniform = c.run_job(**job, rounds=1, aggregation={'weighting': 'uniform'})[1]
    assert c.run_job(**job, rounds=1, aggregation=KINDS['scaffold'])[1] == uniform
    # One step of the whole of a client's samples: Mime takes the pooled gradient, which FedAvg takes the mean of.
    once = {**job, 'model': 'logistic', 'training': {'lr': 0.1, 'batch': 400}}
    expected = pulled(c, c.run_job(**once, rounds=1)[0])
    got = pulled(c, c.run_job(**once, rounds=2, aggregation={'strategy': 'mime', 'momentum': 0})[0])
    assert all(np.abs(got[name] - v).max() < 1e-7 for name, v in expected.items())


def test_they_reach_the_optimum(two_daemons):
    """As test_states.py's: a convex loss, ten clients of few classes, many local steps of whole batches. Where Mime and SCAFFOLD's option I end,
    the gradient of all data together vanishes. MimeLite, as FedAvg, ends elsewhere."""
    c, decay, norms = two_daemons, 0.1, {}
    x, y = synthetic((1, 8, 8), 4, 400, 1, 0)
    for aggregation in ({'strategy': 'mime', 'momentum': 0}, {'strategy': 'scaffold', 'option': 'I'},
                        {'strategy': 'mimelite', 'momentum': 0.5}):
        name = aggregation['strategy']
        job, _ = c.run_job(model='logistic', seed=5, rounds=300 if name == 'mime' else 150, aggregation=aggregation, evaluation={'every': 0},
                           timeout=180, data={'partition': 'inner-dirichlet', 'alpha': 0.1, 'clients': 10, 'sizes': 40},
                           training={'lr': 0.05, 'epochs': 20, 'batch': 400, 'weight_decay': decay})
        w, b = pulled(c, job).values()
        z = x @ w.T + b
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(400), y] -= 1
        whole = np.hstack([p.T @ x / 400 + decay * w, (p.mean(axis=0) + decay * b)[:, None]])
        norms[name] = np.linalg.norm(whole)
    print(norms)
    assert norms['mime'] < 1e-4 and norms['scaffold'] < 1e-4, norms
    assert norms['mimelite'] > 20 * norms['mime'], norms


def test_one_model_whoever_trains(cluster):
    """One, two and four daemons, one client after another or several at once: one digest, and the same states."""
    found = {kind: [] for kind in KINDS}
    for nodes, fuse in ((['n1'], 1), (['n1', 'n1'], 4), (['n1', 'n1', 'n2', 'n2'], 2)):
        c = cluster(0)
        for i, node in enumerate(nodes):
            c.start_daemon('d%d' % i, node=node, workers=1 + i % 2)
        c.wait_daemons(len(nodes))
        for kind, aggregation in KINDS.items():
            training = {'lr': 0.1, 'epochs': 2, 'batch': 10, 'fuse': fuse, 'schedule': {'kind': 'cosine', 'per': 'step'}}
            job, digests = c.run_job(**{**JOB, 'model': NORMED, 'training': training}, rounds=4, aggregation=aggregation, selection={'clients': 5})
            n = sum(v.size for v in pulled(c, job).values())
            rows = {k: v.tobytes() for k, v in states_of(c, job, n + STATES[kind]).items()} if kind in STATES else None
            found[kind].append((digests, rows, c.mfl_json('show', job)['scores']))
        c.close()
    for kind, (one, two, four) in found.items():
        assert one == two == four and len(set(one[0])) == (3 if kind == 'mime' else 4), kind


@pytest.mark.parametrize('kind', ['mimelite', 'mime'])
def test_sites(cluster, kind):
    """Partition local: one model whatever the order in which the daemons come."""
    found = []
    for order in ((1, 2, 3), (3, 1, 2)):
        c = cluster(0)
        for i in order:
            c.start_daemon('site-%d' % i, data=['tiny=synthetic:1,8,8:4:%d:40:%d' % (30 + 50 * i, i)])
        c.wait_daemons(3)
        found.append(c.run_job(**{**JOB, 'data': {'partition': 'local', 'clients': None}}, aggregation=KINDS[kind], rounds=4,
                               selection={'daemons': {'min': 3}})[1])
        c.close()
    assert found[0] == found[1] and len(set(found[0])) == (3 if kind == 'mime' else 4)


MIME, LITE, APFL = ({'aggregation': {'strategy': s}} for s in ('mime', 'mimelite', 'apfl'))
REFUSED = [
    ({**MIME, 'selection': {'kind': 'poisson', 'rate': 0.5}}, 'selection.kind: two rounds have the same clients'),
    ({**MIME, 'time': 'virtual', 'trace': {'sigma': 1}}, 'time: two rounds have the same clients'),
    ({**LITE, 'compression': {'up': 'lossless'}}, 'compression.up: is for sums of updates'),
    ({**LITE, 'parallel': {'grain': 5}}, 'parallel: clients that tell gradients'),
    ({**LITE, 'client_state': 'server'}, 'client_state: is only used where clients keep a state'),
    ({'aggregation': {'strategy': 'mime', 'update_clip': 1}}, 'aggregation.update_clip: would shorten the change'),
    ({'aggregation': {'strategy': 'mime', 'momentum': 1}}, 'aggregation.momentum'),
    ({'aggregation': {'strategy': 'mime', 'alpha': 1}}, 'aggregation.alpha: is not used by mime'),
    ({'aggregation': {'strategy': 'apfl', 'alpha': 1.5}}, 'aggregation.alpha: is the share'),
    ({'aggregation': {'strategy': 'feddyn', 'alpha': 'adaptive'}}, "aggregation.alpha: is for apfl's clients"),
    ({'aggregation': {'strategy': 'apfl', 'alpha': 'adapt'}}, 'aggregation.alpha: expected a number from 1e-06 to 1000, or adaptive'),
    ({'aggregation': {'strategy': 'apfl', 'lambda': 1}}, 'aggregation.lambda: is not used by apfl'),
    ({**APFL, 'client_state': 'daemon'}, 'client_state: daemon needs sites that keep their own client'),
    ({**APFL, 'parallel': {'grain': 5}}, 'parallel: clients with a model of their own'),
    ({**APFL, 'personal': {'layers': ['*.bias']}}, 'personal: needs a strategy that averages'),
]
REFUSED += [({**job, 'training': {'lr': 0.1, **training}}, said) for job in (MIME, LITE, APFL) for training, said in [
    ({'optimizer': 'adam'}, "training.optimizer: is defined for sgd's steps alone"), ({'momentum': 0.5}, 'training.momentum: '),
    ({'clip_norm': 1}, 'training.clip_norm: '), ({'precision': 'fp16'}, 'training.precision: fp16 may skip')]]


@pytest.mark.parametrize('changes,said', REFUSED)
def test_what_does_not_go_together_is_refused(two_daemons, changes, said):
    with pytest.raises(Exception) as caught:
        two_daemons.submit(**{**JOB, 'rounds': 2, **changes})
    assert said in str(caught.value)


def test_a_gradient_that_is_too_large_is_named(two_daemons):
    """Its client is rejected, with what to change. Steps with this decay double the params, each with the other sign."""
    job = two_daemons.submit(**{**JOB, 'model': NORMED, 'training': {'lr': 0.003, 'weight_decay': 1000, 'batch': 400, 'epochs': 2}},
                             rounds=3, aggregation={'strategy': 'mimelite', 'momentum': 0}, limits={'retries': 0})
    two_daemons.wait_job(job, 30, state='failed')
    said = two_daemons.mfl('logs', job).stdout
    assert 'its gradient has 13' in said and 'at most 1024 can be added' in said, said
