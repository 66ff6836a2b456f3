# SPDX-License-Identifier: Apache-2.0
"""Clients that keep something from round to round: SCAFFOLD and FedDyn are their papers, recomputed in numpy; they reach the optimum that
FedAvg misses; what the server keeps is exact, survives, and moves with its client."""
import os
import re
import sqlite3

import numpy as np
import pytest

import mfl_harness as h
import mfl_wire
from federated import Momentum, federated_average, pulled, synthetic, uniform_init

SIZES = [10, 20, 40, 50, 60, 90, 130]  # 1 to 13 steps of 10 in an epoch
UNEVEN = {'partition': 'size', 'clients': 7, 'sizes': SIZES}
STATEFUL = [{'strategy': 'scaffold'}, {'strategy': 'feddyn', 'alpha': 0.3}]
TRAINING = {'lr': 0.1, 'epochs': 2, 'batch': 10}


@pytest.fixture(scope='module')
def two_daemons(shared_cluster):
    c = shared_cluster(2)
    c.wait_daemons(2)
    return c


class Scaffold:
    """Karimireddy et al. 2020, algorithm 1, option II."""

    def __init__(self, n, lr, server_lr=1):
        self.c, self.own, self.n, self.lr, self.server_lr = [0, 0], [[0, 0] for _ in range(n)], n, lr, server_lr

    def added(self, k):
        return [c - own for c, own in zip(self.c, self.own[k])]

    def turn(self, clients):
        before, moved = list(self.c), []
        for i in (0, 1):
            for client in clients:
                own = self.own[client.k]
                after = own[i] - before[i] - client.d[i] / (client.steps * self.lr)
                self.c[i] = self.c[i] + (after - own[i]) / self.n
                own[i] = after
            moved.append(self.server_lr * sum(client.d[i] for client in clients) / len(clients))
        return moved


class FedDyn:
    """Acar et al. 2021, algorithm 1."""

    def __init__(self, n, alpha):
        self.h, self.g, self.n, self.alpha = [0, 0], [[0, 0] for _ in range(n)], n, alpha

    def added(self, k):
        return [-g for g in self.g[k]]

    def turn(self, clients):
        moved = []
        for i in (0, 1):
            for client in clients:
                self.g[client.k][i] = self.g[client.k][i] - self.alpha * client.d[i]
            self.h[i] = self.h[i] - self.alpha / self.n * sum(client.d[i] for client in clients)
            moved.append(sum(client.d[i] for client in clients) / len(clients) - self.h[i] / self.alpha)
        return moved


def compare(c, job, states, rounds, bound=1e-5, turns=None, mu=0, **local):
    settings = {'seed': 21, 'rounds': rounds, 'clients': SIZES, 'lr': lambda r: 0.1, 'batch': 10, 'epochs': 2,
                'optimizer': lambda: Momentum(0), 'turns': turns}
    w, b, _ = federated_average(states=states, mu=mu, **settings, **local)
    got_w, got_b = pulled(c, job).values()
    assert np.abs(w - uniform_init(21, 0, 256, 64).reshape(4, 64)).max() > 0.005
    assert np.abs(got_w - w).max() < bound and np.abs(got_b - b).max() < bound
    assert np.abs(federated_average(**settings)[0] - w).max() > 1e-3


def run(c, aggregation, rounds=5, data=UNEVEN, **changes):
    return c.run_job(model='logistic', seed=21, rounds=rounds, data=data, aggregation=aggregation, **{'training': TRAINING, **changes})


def test_scaffold_is_the_algorithm(two_daemons):
    job, _ = run(two_daemons, {'strategy': 'scaffold', 'server_lr': 0.7})
    compare(two_daemons, job, Scaffold(7, 0.1, 0.7), 5)


def test_feddyn_is_the_algorithm(two_daemons):
    job, _ = run(two_daemons, {'strategy': 'feddyn', 'alpha': 0.3}, training=dict(TRAINING, weight_decay=0.01))
    compare(two_daemons, job, FedDyn(7, 0.3), 5, mu=0.3, decay=0.01)


@pytest.mark.parametrize('aggregation', STATEFUL, ids=lambda a: a['strategy'])
def test_clients_that_take_turns_keep_their_states(two_daemons, aggregation):
    """N is the population, of which each round has a third."""
    job, _ = run(two_daemons, aggregation, selection={'kind': 'separated', 'separation': 3}, rounds=7)
    scaffold = aggregation['strategy'] == 'scaffold'
    states = Scaffold(7, 0.1) if scaffold else FedDyn(7, 0.3)
    compare(two_daemons, job, states, 7, mu=0 if scaffold else 0.3, turns=lambda r: [k for k in range(7) if k % 3 == (r - 1) % 3])


def test_they_are_fedavg_where_they_should_be(two_daemons):
    c = two_daemons
    uniform = run(c, {'weighting': 'uniform'}, rounds=3)[1]
    scaffold = run(c, {'strategy': 'scaffold'}, rounds=3)[1]
    assert scaffold[0] == uniform[0] and scaffold[1] != uniform[1]  # all control variates begin as zeros
    # A client that is the whole population has nothing to correct.
    one = {'clients': 1}
    plain, alone = (pulled(c, run(c, {'strategy': s}, data=one)[0]).values() for s in ('fedavg', 'scaffold'))
    for x, y in zip(plain, alone):
        assert np.abs(x - y).max() < 1e-6


def test_scaffold_knows_the_learning_rates_of_all_steps(two_daemons):
    """The gradients stand in what a client moved by with their steps' rates."""
    def rate(step, steps):
        return 0.1 * (0.1 + 0.9 * (1 + np.cos(np.pi * step / steps)) / 2)

    class Paths(Scaffold):
        """K lr of the paper is the sum of the rates: a client counts as if it had taken so many steps of 0.1."""

        def turn(self, clients):
            for client in clients:
                client.steps = sum(rate(s, client.steps) for s in range(client.steps)) / 0.1
            return super().turn(clients)
    job, _ = run(two_daemons, {'strategy': 'scaffold'}, rounds=4,
                 training=dict(TRAINING, schedule={'kind': 'cosine', 'per': 'step', 'min': 0.1}))
    w, b, _ = federated_average(seed=21, rounds=4, clients=SIZES, lr=lambda r: rate, batch=10, epochs=2, optimizer=lambda: Momentum(0),
                                states=Paths(7, 0.1))
    got_w, got_b = pulled(two_daemons, job).values()
    assert np.abs(got_w - w).max() < 1e-5 and np.abs(got_b - b).max() < 1e-5


def test_they_reach_the_optimum_that_fedavg_misses(two_daemons):
    """A convex loss, ten clients of 40 samples of few classes, many local steps of whole batches, everybody in each round: the gradient of all data
    together vanishes where SCAFFOLD and FedDyn end, and not where FedAvg ends."""
    c, decay, norms = two_daemons, 0.1, {}
    x, y = synthetic((1, 8, 8), 4, 400, 1, 0)
    for aggregation in ({'weighting': 'uniform'}, {'strategy': 'scaffold'}, {'strategy': 'feddyn', 'alpha': 0.5}):
        job, _ = c.run_job(model='logistic', seed=5, rounds=150, aggregation=aggregation, evaluation={'every': 0}, timeout=120,
                           data={'partition': 'inner-dirichlet', 'alpha': 0.1, 'clients': 10, 'sizes': 40},
                           training={'lr': 0.05, 'epochs': 20, 'batch': 400, 'weight_decay': decay})
        w, b = pulled(c, job).values()
        z = x @ w.T + b
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(400), y] -= 1
        whole = np.hstack([p.T @ x / 400 + decay * w, (p.mean(axis=0) + decay * b)[:, None]])
        norms[aggregation.get('strategy', 'fedavg')] = np.linalg.norm(whole)
    print(norms)
    assert norms['scaffold'] < 1e-4 and norms['feddyn'] < 1e-4, norms
    assert norms['fedavg'] > 20 * max(norms['scaffold'], norms['feddyn']), norms


# ---- what the server keeps ----

def states_of(c, job, n=260):
    """{client: (round, float32 vector)} by the database and the file, whose checksums are right."""
    with sqlite3.connect('file:%s/mfl.db?mode=ro' % c.state_dir, uri=True) as db:
        rows = db.execute('SELECT client, round, slot, crc FROM client_states WHERE job = ?', (job,)).fetchall()
    places = [slot for _, _, slot, _ in rows]
    assert len(set(places)) == len(places)
    path = os.path.join(c.state_dir, 'jobs', job, 'clients.f32')
    row = (4 * n + 4095) // 4096 * 4096
    found = {}
    with open(path, 'rb') as f:
        for client, r, slot, crc in rows:
            f.seek(slot * row)
            data = f.read(4 * n)
            assert mfl_wire.crc32c(data) == crc, client
            found[client] = (r, np.frombuffer(data, '<f4'))
    return found


@pytest.mark.parametrize('aggregation', STATEFUL, ids=lambda a: a['strategy'])
def test_one_model_whoever_trains(cluster, aggregation):
    """One, two and four daemons, of one node or of two, and a client that another daemon trains in each round: one digest, and the same
    states, to the bit."""
    digests, states = [], []
    for nodes in (['n1'], ['n1', 'n1'], ['n1', 'n1', 'n2', 'n2']):
        c = cluster(0)
        for i, node in enumerate(nodes):
            c.start_daemon('d%d' % i, node=node, workers=1 + i % 2)
        c.wait_daemons(len(nodes))
        job, got = run(c, aggregation, selection={'clients': 5}, rounds=6)
        digests.append(got)
        states.append(states_of(c, job))
        c.close()
    assert digests[0] == digests[1] == digests[2] and len(set(digests[0])) == 6
    for other in states[1:]:
        assert other.keys() == states[0].keys()
        for client, (r, v) in other.items():
            assert r == states[0][client][0] and np.array_equal(v, states[0][client][1])
    if aggregation['strategy'] == 'scaffold':
        assert any(np.abs(v).max() > 0.01 for _, v in states[0].values())


def test_a_lost_state_begins_anew_and_the_round_says_so(cluster):
    c = cluster(2)
    c.wait_daemons(2)
    job = c.submit(model='logistic', seed=21, rounds=h.ENDLESS, data=UNEVEN, aggregation={'strategy': 'scaffold'}, training=TRAINING)
    c.wait_info(job, lambda i: i['round'] >= 3, 30, 'three rounds')
    c.server.kill()
    path = os.path.join(c.state_dir, 'jobs', job, 'clients.f32')
    with sqlite3.connect('%s/mfl.db' % c.state_dir) as db:
        slot, = db.execute('SELECT slot FROM client_states WHERE job = ? AND client = 3', (job,)).fetchone()
        before, = db.execute('SELECT max(round) FROM rounds WHERE job = ?', (job,)).fetchone()
    with open(path, 'r+b') as f:
        f.seek(slot * 4096 + 40)
        f.write(b'\x00\x00\x80\x7f')
    c.start_server()
    c.wait_info(job, lambda i: i['round'] >= before + 3, 60, 'more rounds')
    c.stop_job(job)
    lost = {r['round']: r['states_lost'] for r in c.rounds(job)}
    assert lost.pop(before + 1) == 1 and not any(lost.values()), lost
    said = re.search(r'the states of 1 clients, of 7 that had one, are missing or damaged: these clients begin anew', c.server.log())
    assert said, c.server.log()[-2000:]
    assert '1 client began anew' in c.mfl('show', job).stdout
    assert states_of(c, job).keys() == set(range(7))


@pytest.mark.parametrize('aggregation', STATEFUL, ids=lambda a: a['strategy'])
def test_sites_keep_states_too(cluster, aggregation):
    """Partition local: the mean is over the sites seen so far. One model whatever the order in which the daemons come."""
    digests = []
    for order in ((1, 2, 3), (3, 1, 2)):
        c = cluster(0)
        for i in order:
            c.start_daemon('site-%d' % i, data=['tiny=synthetic:1,8,8:4:%d:40:%d' % (30 + 50 * i, i)])
        c.wait_daemons(3)
        digests.append(c.run_job(data={'partition': 'local', 'clients': None}, selection={'daemons': {'min': 3}}, rounds=4,
                                 aggregation=aggregation, training=TRAINING)[1])
        c.close()
    assert digests[0] == digests[1] and len(set(digests[0])) == 4


def test_running_statistics_have_no_state(two_daemons):
    """Those of a batch norm are averaged as ever: in the first round as FedAvg does."""
    c = two_daemons
    model = {'layers': [{'conv2d': {'filters': 4, 'kernel': 3}}, {'batchnorm': {}}, {'relu': {}}, {'flatten': {}}, {'dense': {'units': 4}}]}
    plain, same = (c.run_job(model=model, seed=22, rounds=1, data=UNEVEN, aggregation=a, training=TRAINING)[1]
                   for a in ({'weighting': 'uniform'}, {'strategy': 'scaffold'}))
    assert plain == same
    job, _ = c.run_job(model=model, seed=22, rounds=3, data=UNEVEN, aggregation={'strategy': 'scaffold'}, training=TRAINING)
    tensors = h.read_safetensors(os.path.join(c.state_dir, 'jobs', job, 'round-000003.safetensors'))
    at, zero = 0, []
    for name, (_, shape, _) in tensors.items():
        n = int(np.prod(shape))
        zero += range(at, at + n) if 'running' in name else []
        at += n
    assert len(zero) == 8
    for _, v in states_of(c, job, at).values():
        assert not v[zero].any() and v.any()


def test_states_that_do_not_fit(cluster):
    """A job is refused at once if it, or the data set of a connected daemon, says how large the model is; otherwise it fails when a
    daemon comes."""
    c, why = cluster(0), 'the states of 7 clients take %s each, %s together, and limits.state is 20.0 KiB'
    job = {'model': 'logistic', 'rounds': 1, 'data': UNEVEN, 'aggregation': {'strategy': 'scaffold'}, 'limits': {'state': '20KiB'}}
    known = {'input': [1, 8, 8], 'classes': 4, 'layers': ['flatten', {'dense': {'units': 20}}, {'dense': {'units': 4}}]}
    with pytest.raises(Exception, match=re.escape(why % ('8.0 KiB', '56.0 KiB'))):
        c.submit(**{**job, 'model': known})
    waits = c.submit('token', **job)
    c.start_daemon('d1')
    reason = c.wait_job(waits, 20, state='failed')['reason']
    assert why % ('4.0 KiB', '28.0 KiB') in reason, reason
    with pytest.raises(Exception, match=re.escape(why % ('4.0 KiB', '28.0 KiB'))):
        c.submit(**job)
    assert c.submit('token', **job) == waits
    c.submit(**job, selection={'where': "name == 'd2'"})  # whose data set may have another shape
    c.run_job(**{**job, 'limits': {'state': '28KiB'}})
    assert len(c.mfl_json('list', '--all')['jobs']) == 3


def test_states_that_do_not_fit_are_told_before_they_are_submitted(tmp_path):
    """`mfl check`, where the job says the model's size, or a data set does."""
    model = {'input': [784], 'classes': 10, 'layers': [{'dense': {'units': 10}}]}
    data = {**UNEVEN, 'name': 'toy'}
    for name, wants, limit, options, ends in [
            ('known', model, '200KiB', [], 5), ('fits', model, '1MiB', [], 0),
            ('data', 'logistic', '200KiB', ['--data', 'toy=synthetic:1,28,28:10:700:100:1'], 5),
            ('unknown', 'logistic', '200KiB', [], 0)]:
        path = tmp_path / (name + '.yaml')
        path.write_text(h.job_text(model=wants, rounds=1, data=data, aggregation={'strategy': 'scaffold'}, limits={'state': limit}))
        done = h.mfl('check', str(path), *options, status=None)
        assert done.returncode == ends, (name, done.stdout, done.stderr)
        assert ('limits.state is 200.0 KiB: raise it, or lower data.clients' in done.stderr) == (ends == 5), done.stderr
    path.write_text(h.job_text(model=model, rounds=1, data={'name': 'toy', 'partition': 'local', 'clients': None}, aggregation={'strategy': 'scaffold'},
                               limits={'state': '20KiB'}))
    for options in ([], ['--data', 'toy=synthetic:1,28,28:10:100:10:1']):
        assert '%s:8: limits.state: the state of a client takes 32.0 KiB, and limits.state is 20.0 KiB: raise it\n' % path in h.mfl('check', str(path), *options, status=5).stderr


def test_disk_and_places_are_those_of_the_clients_seen(two_daemons):
    """Rows of 44 KiB: 40 clients, 10 in each round."""
    c = two_daemons
    job, _ = c.run_job(model={'layers': ['flatten', {'dense': {'units': 163}}, 'relu', {'dense': {'units': 4}}]}, rounds=8,
                       data={'clients': 40}, aggregation={'strategy': 'scaffold'}, selection={'kind': 'separated', 'separation': 4})
    path = os.path.join(c.state_dir, 'jobs', job, 'clients.f32')
    n = 163 * 65 + 4 * 164
    states = states_of(c, job, n)
    assert len(states) == 40
    assert os.stat(path).st_blocks * 512 <= 1.1 * 40 * 4 * n  # one row more than the clients', while a round is not committed


REFUSED = [
    ({'strategy': 'scaffold'}, {'optimizer': 'adam'}, {}, 'training.optimizer: scaffold finds a client'),
    ({'strategy': 'scaffold'}, {'momentum': 0.9}, {}, 'training.momentum: scaffold finds a client'),
    ({'strategy': 'scaffold'}, {'clip_norm': 1}, {}, 'training.clip_norm: scaffold finds a client'),
    ({'strategy': 'scaffold'}, {'precision': 'fp16'}, {}, 'training.precision: fp16 may skip steps'),
    ({'strategy': 'scaffold', 'option': 'I'}, {'momentum': 0.9}, {}, 'training.momentum: scaffold finds a client'),
    ({'strategy': 'scaffold', 'weighting': 'samples'}, {}, {}, 'aggregation.weighting: is not used by scaffold'),
    ({'strategy': 'scaffold', 'mu': 0.1}, {}, {}, 'aggregation.mu: is not used by scaffold'),
    ({'strategy': 'feddyn'}, {'optimizer': 'adamw'}, {}, "training.optimizer: adamw's weight decay"),
    ({'strategy': 'feddyn', 'server_lr': 0.5}, {}, {}, 'aggregation.server_lr: is not used by feddyn'),
    ({'strategy': 'feddyn', 'alpha': 0}, {}, {}, 'aggregation.alpha: '),
    ({'strategy': 'fedavg', 'alpha': 0.1}, {}, {}, 'aggregation.alpha: is not used by fedavg'),
    ({'strategy': 'feddyn'}, {}, {'parallel': {'grain': 5}}, 'parallel: clients that keep a state'),
    ({'strategy': 'feddyn'}, {}, {'client_state': 'daemon'}, 'client_state: these need the exact mean'),
    ({'strategy': 'fedavg'}, {}, {'client_state': 'server'}, 'client_state: is only used where clients keep a state'),
    ({'strategy': 'fedavg'}, {}, {'limits': {'state': '1GiB'}}, 'limits.state: is only used where clients keep a state'),
]


@pytest.mark.parametrize('aggregation,training,more,said', REFUSED)
def test_what_does_not_go_together_is_refused(two_daemons, aggregation, training, more, said):
    with pytest.raises(Exception) as caught:
        two_daemons.submit(model='logistic', rounds=1, aggregation=aggregation, training={'lr': 0.1, **training}, **more)
    assert said in str(caught.value)
