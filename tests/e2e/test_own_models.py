# SPDX-License-Identifier: Apache-2.0
"""Clients with a model of their own: FedRep, Ditto and pFedMe are their papers, recomputed in numpy and in plain PyTorch; what does not
depend on them stays FedAvg's to the bit; one model and the same models of clients whoever trains; what is refused."""
import os
import shutil

import numpy as np
import pytest

import mfl_harness as h
from federated import SHUFFLE, Stream, loss_of, parts_of, pulled, synthetic, uniform_init
from test_personal import NORMED, SIZES, UNEVEN, states_of

JOB = {'model': 'logistic', 'seed': 21, 'data': UNEVEN, 'training': {'lr': 0.3, 'epochs': 2, 'batch': 10},
       'evaluation': {'on': 'clients', 'split': 0.25}}
FEDREP = {'personal': {'layers': ['*.bias'], 'epochs': 3}}
DITTO = {'aggregation': {'strategy': 'ditto', 'lambda': 0.5}}
PFEDME = {'aggregation': {'strategy': 'pfedme', 'lambda': 4, 'eta': 0.05, 'inner_steps': 3, 'server_lr': 0.8}}
KINDS = {'fedrep': FEDREP, 'ditto': DITTO, 'pfedme': PFEDME}
MLP = {'layers': ['flatten', {'dense': {'units': 9, 'name': 'body'}}, 'relu', {'dense': {'units': 4, 'name': 'head'}}]}


@pytest.fixture(scope='module')
def two_daemons(shared_cluster):
    c = shared_cluster(2)
    c.wait_daemons(2)
    return c


class Logistic:
    """Softmax regression in double: params are [w, b]."""

    def __init__(self):
        self.x, self.y = synthetic((1, 8, 8), 4, 400, 1, 0)
        self.initial = [uniform_init(21, 0, 256, 64).reshape(4, 64), uniform_init(21, 1, 4, 64)]
        self.head = [False, True]

    def gradient(self, v, rows):
        x, y = self.x[rows], self.y[rows]
        z = x @ v[0].T + v[1]
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(rows)), y] -= 1
        return [p.T @ x / len(rows), p.mean(axis=0)]


def batches(k, r, part, first, epochs):
    """Of a client's epochs [first, first + epochs) of a round."""
    orders = [Stream(21, SHUFFLE, k, r * 65536 + e).shuffled(part) for e in range(first, first + epochs)]
    return [o[at:at + 10] for o in orders for at in range(0, len(part), 10)]


def descend(model, v, rows, lr, moves=None, pull=0, to=None):
    g = model.gradient(v, rows)
    return [a - lr * (d + pull * (a - t)) if m else a for a, d, t, m in zip(v, g, to or v, moves or [True] * len(v))]


def fedrep(model, k, r, part, x, own, lr=0.3, epochs=3):
    """Collins et al. 2021, algorithm 1: the head alone, then the body alone."""
    head = model.head
    v = [o if h and own else a for a, o, h in zip(x, own or x, head)]
    for rows in batches(k, r, part, 0, epochs):
        v = descend(model, v, rows, lr, head)
    for rows in batches(k, r, part, epochs, 2):
        v = descend(model, v, rows, lr, [not h for h in head])
    return [0 * a if h else a - b for a, b, h in zip(v, x, head)], v


def ditto(model, k, r, part, x, own, lr=0.3, pull=0.5):
    """Li et al. 2021, algorithm 1."""
    y, v = x, own or x
    for rows in batches(k, r, part, 0, 2):
        y = descend(model, y, rows, lr)
    for rows in batches(k, r, part, 2, 2):
        v = descend(model, v, rows, lr, pull=pull, to=x)
    return [a - b for a, b in zip(y, x)], v


def pfedme(model, k, r, part, x, own, lr=0.3, pull=4, eta=0.05, inner=3, beta=0.8):
    """Dinh et al. 2020, algorithm 1."""
    w, v = x, x
    for rows in batches(k, r, part, 0, 2):
        for _ in range(inner):
            v = descend(model, v, rows, lr, pull=pull, to=w)
        w = [a - eta * pull * (a - b) for a, b in zip(w, v)]
    return [beta * (a - b) for a, b in zip(w, x)], v


ALGORITHMS = {'fedrep': fedrep, 'ditto': ditto, 'pfedme': pfedme}


def recomputed(kind, model, rounds, turns=None):
    """The job's params, and each client's own model."""
    parts, x, own = parts_of(21, 400, SIZES, 0.25), model.initial, [None] * len(SIZES)
    for r in range(1, rounds + 1):
        moved, samples = [0] * len(x), 0
        for k, (part, _) in enumerate(parts):
            if turns and k not in turns(r):
                continue
            d, own[k] = ALGORITHMS[kind](model, k, r, part, x, own[k])
            moved, samples = [m + len(part) * a for m, a in zip(moved, d)], samples + len(part)
        x = [a + m / samples for a, m in zip(x, moved)]
    return x, own


def own_of(c, job, kind, k, x, rows):
    """A client's own model, made of what the server has."""
    if k not in rows:
        return [np.array(v, float) for v in x]
    flat, found, at = rows[k], [], 0
    for v in x:
        found.append((flat[at:at + v.size].reshape(v.shape) + (v if kind == 'fedrep' else 0)).astype(float))
        at += v.size
    return found


def compare(c, job, kind, rounds, seen=range(7), turns=None):
    model = Logistic()
    x, own = recomputed(kind, model, rounds, turns)
    got = list(pulled(c, job).values())
    assert all(np.abs(a - b).max() < 1e-5 for a, b in zip(got, x))
    rows, told = states_of(c, job), {s['client']: s for s in c.mfl_json('show', job)['scores']['clients']}
    assert rows.keys() == set(seen)
    for k, (_, held) in enumerate(parts_of(21, 400, SIZES, 0.25)):
        mine = own_of(c, job, kind, k, got, rows)
        if k in seen:
            expected = [b if h or kind != 'fedrep' else a for a, b, h in zip(x, own[k], model.head)]
            assert all(np.abs(a - b).max() < 1e-5 for a, b in zip(mine, expected)), k
        if held:
            hits = int(np.sum(np.argmax(model.x[held] @ mine[0].T + mine[1], axis=1) == model.y[held]))
            assert (told[k]['samples'], told[k]['correct']) == (len(held), hits)
            assert told[k]['loss_sum'] == pytest.approx(len(held) * loss_of(*mine, model.x[held], model.y[held]), rel=1e-4)
    assert max(np.abs(own_of(c, job, kind, k, got, rows)[1] - got[1]).max() for k in seen) > 0.005, 'models differ'


@pytest.mark.parametrize('rounds', [1, 5])
@pytest.mark.parametrize('kind', KINDS)
def test_the_algorithm(two_daemons, kind, rounds):
    """In the first round, too, whose evaluation already has clients' own models."""
    job, _ = two_daemons.run_job(**{**JOB, **KINDS[kind]}, rounds=rounds)
    compare(two_daemons, job, kind, rounds)


@pytest.mark.parametrize('rounds,seen', [(2, [0, 1, 3, 4, 6]), (7, range(7))])
@pytest.mark.parametrize('kind', KINDS)
def test_clients_that_take_turns(two_daemons, kind, rounds, seen):
    """Who has no turn keeps its model, and who never had one is evaluated with the job's."""
    job, _ = two_daemons.run_job(**{**JOB, **KINDS[kind]}, rounds=rounds, selection={'kind': 'separated', 'separation': 3})
    compare(two_daemons, job, kind, rounds, seen=seen, turns=lambda r: [k for k in range(7) if k % 3 == (r - 1) % 3])


def trained_by_torch(torch, kind, rounds):
    """The same algorithms over a network with a hidden layer, whose gradients PyTorch has. Its own loop, in double."""
    x, y = synthetic((1, 8, 8), 4, 400, 1, 0)

    class Model:
        initial = [uniform_init(21, 0, 9 * 64, 64).reshape(9, 64), uniform_init(21, 1, 9, 64),
                   uniform_init(21, 2, 36, 9).reshape(4, 9), uniform_init(21, 3, 4, 9)]
        head = [False, False, True, True]

        @staticmethod
        def gradient(v, rows):
            v = [torch.tensor(a, requires_grad=True) for a in v]
            hidden = torch.relu(torch.nn.functional.linear(torch.tensor(x[rows]), v[0], v[1]))
            loss = torch.nn.functional.cross_entropy(torch.nn.functional.linear(hidden, v[2], v[3]), torch.tensor(y[rows]))
            return [g.numpy() for g in torch.autograd.grad(loss, v)]
    return recomputed(kind, Model, rounds)


@pytest.mark.parametrize('kind', KINDS)
def test_beside_pytorch(two_daemons, kind):
    torch = pytest.importorskip('torch', reason='needs PyTorch: pip install torch')
    torch.set_num_threads(1)
    changes = dict(KINDS[kind], **({'personal': {'layers': ['head'], 'epochs': 3}} if kind == 'fedrep' else {}))
    job, _ = two_daemons.run_job(**{**JOB, **changes, 'model': MLP}, rounds=5)
    x, own = trained_by_torch(torch, kind, 5)
    got = list(pulled(two_daemons, job).values())
    assert all(np.abs(a - b).max() < 1e-4 for a, b in zip(got, x))
    rows = states_of(two_daemons, job, sum(v.size for v in got))
    for k in range(7):
        mine = own_of(two_daemons, job, kind, k, got, rows)
        kept = range(2, 4) if kind == 'fedrep' else range(4)
        assert all(np.abs(mine[i] - own[k][i]).max() < 1e-4 for i in kept), k


def test_ditto_leaves_fedavg_as_it_is(two_daemons):
    """To the bit, and whatever lambda is; a model with running statistics, momentum and a schedule, too."""
    job = {**JOB, 'model': NORMED, 'training': {'lr': 0.1, 'epochs': 2, 'batch': 10, 'momentum': 0.9,
                                               'schedule': {'kind': 'cosine', 'per': 'step'}}}
    plain = two_daemons.run_job(**job, rounds=3)[1]
    models = []
    for pull in (0, 0.5):
        at, digests = two_daemons.run_job(**job, rounds=3, aggregation={'strategy': 'ditto', 'lambda': pull})
        assert digests == plain
        models.append(states_of(two_daemons, at, sum(v.size for v in pulled(two_daemons, at).values())))
    assert all(not np.array_equal(models[0][k], models[1][k]) for k in range(7))
    on_test = {**job, 'evaluation': {'on': 'test'}}
    again = two_daemons.run_job(**on_test, rounds=2)[1]
    assert two_daemons.run_job(**on_test, rounds=2, aggregation={'strategy': 'ditto'})[1] == again


@pytest.mark.parametrize('own', ['dense', 'bn'])
def test_running_statistics_stay_with_their_layer(two_daemons, own):
    """A round of one client that trains its own layers and then, in one step, the others. Statistics move with their layer alone: once for
    each step of its phase, from the mean 0."""
    c = two_daemons
    settings = {**JOB, 'model': NORMED, 'data': {'partition': 'iid', 'clients': 1}, 'evaluation': {'every': 0}}
    job, _ = c.run_job(**{**settings, 'training': {'lr': 1e-6, 'epochs': None, 'steps': 1, 'batch': 400}}, rounds=1,
                       personal={'layers': [own + '*'], 'epochs': 2})
    got, at, moved = pulled(c, job), 0, {}
    row = states_of(c, job, sum(v.size for v in got.values()))[0]
    for name, v in got.items():
        moved[name] = row[at:at + v.size].reshape(v.shape) if name.startswith(own) else v
        assert row[at:at + v.size].any() == name.startswith(own), name
        at += v.size
    # With a momentum of .1 the deviation from the batch's mean falls to .9 and .81.
    once = moved['bn.running_mean'] / (0.1 if own == 'dense' else 0.19)
    x, _ = synthetic((1, 8, 8), 4, 400, 1, 0)
    windows = np.lib.stride_tricks.sliding_window_view(x.reshape(400, 8, 8), (3, 3), axis=(1, 2))
    weight = got[next(n for n in got if n.startswith('conv') and n.endswith('weight'))].reshape(4, 9)
    mean = windows.reshape(-1, 9).mean(axis=0) @ weight.T
    bias = [v for n, v in got.items() if n.startswith('conv') and n.endswith('bias')]
    assert np.abs(once - mean - (bias[0] if bias else 0)).max() < 1e-4


def test_one_model_whoever_trains(cluster):
    """One, two and four daemons, one client after another or several at once: one digest, the same models of clients and scores."""
    found = {kind: [] for kind in KINDS}
    for nodes, fuse in ((['n1'], 1), (['n1', 'n1'], 4), (['n1', 'n1', 'n2', 'n2'], 2)):
        c = cluster(0)
        for i, node in enumerate(nodes):
            c.start_daemon('d%d' % i, node=node, workers=1 + i % 2)
        c.wait_daemons(len(nodes))
        for kind, changes in KINDS.items():
            personal = {'personal': {'layers': ['bn', 'dense*'], 'epochs': 2}} if kind == 'fedrep' else {}
            training = {'lr': 0.1, 'epochs': 2, 'batch': 10, 'momentum': 0.9 if kind == 'ditto' else 0, 'fuse': fuse}
            job, digests = c.run_job(**{**JOB, **changes, **personal, 'model': NORMED, 'training': training}, rounds=4, selection={'clients': 5})
            n = sum(v.size for v in pulled(c, job).values())
            rows = {k: v.tobytes() for k, v in states_of(c, job, n).items()}
            found[kind].append((digests, rows, c.mfl_json('show', job)['scores']))
        c.close()
    for kind, (one, two, four) in found.items():
        assert one == two == four and len(set(one[0])) == 4, kind


@pytest.mark.parametrize('kind', ['ditto', 'pfedme'])
def test_sites_have_models_of_their_own(cluster, kind):
    """Partition local: the same whatever the order in which the daemons come."""
    found = []
    for order in ((1, 2, 3), (3, 1, 2)):
        c = cluster(0)
        for i in order:
            c.start_daemon('site-%d' % i, data=['tiny=synthetic:1,8,8:4:%d:40:%d' % (30 + 50 * i, i)])
        c.wait_daemons(3)
        job, digests = c.run_job(**{**JOB, **KINDS[kind], 'data': {'partition': 'local', 'clients': None}}, rounds=4,
                                 selection={'daemons': {'min': 3}})
        scores = {s['site']: (s['samples'], s['correct']) for s in c.mfl_json('show', job)['scores']['clients']}
        found.append((digests, scores, {v.tobytes() for v in states_of(c, job).values()}))
        c.close()
    assert found[0] == found[1] and len(found[0][1]) == 3 and len(found[0][2]) == 3


REFUSED = [
    ({'personal': {'layers': ['*.bias'], 'epochs': 0}}, 'personal.epochs'),
    ({'personal': {'epochs': 1}}, 'personal'),
    ({'aggregation': {'strategy': 'ditto', 'eta': 1}}, 'aggregation.eta: is not used by ditto'),
    ({'aggregation': {'strategy': 'ditto', 'lambda': -1}}, 'aggregation.lambda'),
    ({'aggregation': {'strategy': 'fedavg', 'lambda': 1}}, 'aggregation.lambda: is not used by fedavg'),
    ({'aggregation': {'strategy': 'pfedme', 'lambda': 0}}, 'aggregation.lambda: with 0 no client would move'),
    ({'aggregation': {'strategy': 'pfedme', 'inner_steps': 0}}, 'aggregation.inner_steps'),
    ({'aggregation': {'strategy': 'pfedme', 'eta': 0}}, 'aggregation.eta'),
    ({**PFEDME, 'selection': {'kind': 'power-of-choice', 'clients': 2, 'candidates': 4}}, 'selection.kind: these choose clients by their losses'),
    ({**DITTO, **FEDREP}, 'personal: needs a strategy that averages'),
    ({**DITTO, 'parallel': {'grain': 5}}, 'parallel: clients with a model of their own'),
    ({**DITTO, 'client_state': 'daemon'}, 'client_state: daemon needs sites that keep their own client'),
    ({**PFEDME, 'compression': {'up': 'lossless'}}, 'compression.up: is for sums of updates'),
]


@pytest.mark.parametrize('changes,said', REFUSED)
def test_what_does_not_go_together_is_refused(two_daemons, changes, said):
    with pytest.raises(Exception) as caught:
        two_daemons.submit(**{**JOB, 'rounds': 1, **changes})
    assert said in str(caught.value)


def test_a_model_that_diverges_is_named(two_daemons):
    """The client is rejected, with what to change; nothing that is not a number is kept."""
    job = two_daemons.submit(**{**JOB, 'training': {'lr': 1, 'epochs': 2, 'batch': 10}}, rounds=1,
                             aggregation={'strategy': 'ditto', 'lambda': 1000}, limits={'retries': 0})
    two_daemons.wait_job(job, 30, state='failed')
    assert 'its own model is not finite' in two_daemons.mfl('logs', job).stdout


AT_SITES = {**KINDS, 'apfl': {'aggregation': {'strategy': 'apfl'}}, 'apfl-adaptive': {'aggregation': {'strategy': 'apfl', 'alpha': 'adaptive'}},
            'fedper': {'personal': {'layers': ['*.bias']}}}


@pytest.mark.parametrize('kind', AT_SITES)
def test_what_stays_at_sites(tmp_path, cluster, kind):
    """The same models and scores as when the server keeps it; whoever is killed; and a site that has lost it begins anew, which its round says."""
    c = cluster(0)

    def start(name):
        data = h.TINY.replace(':80:1', ':80:%s' % name[1])
        c.start_daemon(name, more=['--state-dir', str(tmp_path / name)], node=name, data=(data,))
    for name in ('d1', 'd2'):
        start(name)
    c.wait_daemons(2)
    job = {**JOB, **AT_SITES[kind], 'data': {'partition': 'local', 'clients': None}, 'selection': {'daemons': {'min': 2}}}
    at_sites, digests = c.run_job(60, rounds=4, client_state='daemon', **job)
    at_server, same = c.run_job(60, rounds=4, client_state='server', **job)
    assert digests == same and len(set(digests)) == 4
    pair = [c.mfl_json('show', j)['rounds'] for j in (at_sites, at_server)]
    assert [r['loss'] for r in pair[0]] == [r['loss'] for r in pair[1]] and [r['states_lost'] for r in pair[0]] == [0] * 4
    if kind in ('ditto', 'pfedme', 'apfl', 'apfl-adaptive'):  # their own models don't travel
        assert c.rounds(at_sites)[3]['bytes_up'] < 0.6 * c.rounds(at_server)[3]['bytes_up']
    assert os.path.getsize(os.path.join(c.state_dir, 'jobs', at_sites, 'clients.f32')) == 0

    killed = c.begin(client_state='daemon', **job)
    for r in (2, 4):
        c.wait_info(killed, lambda i, r=r: i['round'] >= r, 30, 'round %d' % r)
        c.server.kill()
        c.start_server()
        c.daemons['d1'].kill()
        start('d1')
    c.finish(killed, client_state='daemon', **job)

    lost = c.begin(client_state='daemon', **job)
    c.wait_info(lost, lambda i: i['round'] >= 2, 30, 'round 2')
    c.daemons['d1'].kill()
    shutil.rmtree(tmp_path / 'd1' / 'states')
    at = c.info(lost)['round']
    start('d1')
    c.wait_info(lost, lambda i: i['round'] >= at + 2, 30, 'two more rounds')
    c.stop_job(lost)
    assert sum(r['states_lost'] for r in c.mfl_json('show', lost)['rounds']) == 1
