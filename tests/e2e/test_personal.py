# SPDX-License-Identifier: Apache-2.0
"""Layers that stay with each client: the algorithm recomputed in numpy, evaluations of each client's own model, one model and the same
states whoever trains, and what is refused."""
import os
import sqlite3

import numpy as np
import pytest

import mfl_harness as h
import mfl_wire
from federated import SHUFFLE, Adaptive, Average, Momentum, Stream, loss_of, parts_of, pulled, synthetic, train_locally, uniform_init

SIZES = [10, 20, 40, 50, 60, 90, 130]
UNEVEN = {'partition': 'size', 'clients': 7, 'sizes': SIZES}
OWN = {'layers': ['*.bias']}
JOB = {'model': 'logistic', 'seed': 21, 'data': UNEVEN, 'training': {'lr': 0.3, 'epochs': 2, 'batch': 10}, 'personal': OWN,
       'evaluation': {'on': 'clients', 'split': 0.25}}
NORMED = {'layers': [{'conv2d': {'filters': 4, 'kernel': 3}}, {'batchnorm': {'name': 'bn'}}, {'relu': {}}, {'flatten': {}},
                     {'dense': {'units': 4}}]}


@pytest.fixture(scope='module')
def two_daemons(shared_cluster):
    c = shared_cluster(2)
    c.wait_daemons(2)
    return c


def states_of(c, job, n=260):
    """{client: float32 vector} by the database and the file, whose checksums are right."""
    with sqlite3.connect('file:%s/mfl.db?mode=ro' % c.state_dir, uri=True) as db:
        rows = db.execute('SELECT client, slot, crc FROM client_states WHERE job = ?', (job,)).fetchall()
    found = {}
    with open(os.path.join(c.state_dir, 'jobs', job, 'clients.f32'), 'rb') as f:
        for client, slot, crc in rows:
            f.seek(slot * ((4 * n + 4095) // 4096 * 4096))
            data = f.read(4 * n)
            assert mfl_wire.crc32c(data) == crc, client
            found[client] = np.frombuffer(data, '<f4')
    return found


def recomputed(rounds, turns=None, mu=0, server=Average, keeps=True):
    """Arivazhagan et al. 2019, algorithm 1, in double: w, and each client's b; all clients count by their samples."""
    x, y = synthetic((1, 8, 8), 4, 400, 1, 0)
    parts = parts_of(21, 400, SIZES, 0.25)
    w, first = uniform_init(21, 0, 256, 64).reshape(4, 64), uniform_init(21, 1, 4, 64)
    own, opt = [first] * len(SIZES), server()
    for r in range(1, rounds + 1):
        moved, samples = 0, 0
        for k, (part, _) in enumerate(parts):
            if turns and k not in turns(r):
                continue
            orders = [Stream(21, SHUFFLE, k, r * 65536 + e).shuffled(part) for e in range(2)]
            batches = [o[at:at + 10] for o in orders for at in range(0, len(part), 10)]
            wk, bk = train_locally(w, own[k], x, y, batches, 0.3, lambda: Momentum(0), mu=mu)
            own[k] = bk if keeps else own[k]
            moved, samples = moved + len(part) * (wk - w), samples + len(part)
        w = w + opt.step(moved / samples, r)
    scores = {k: (len(held), int(np.sum(np.argmax(x[held] @ w.T + own[k], axis=1) == y[held])), loss_of(w, own[k], x[held], y[held]))
              for k, (_, held) in enumerate(parts) if held}
    return w, first, own, scores


def compare(c, job, rounds, seen=range(7), **settings):
    w, first, own, scores = recomputed(rounds, **settings)
    got_w, got_b = pulled(c, job).values()
    assert np.abs(got_w - w).max() < 1e-5
    assert np.array_equal(got_b, first.astype('f4')), 'the initial values'
    if rounds > 3:  # clients have had a second turn
        forgetful = recomputed(rounds, keeps=False, **settings)[0]
        assert np.abs(forgetful - w).max() > 1e-4
    rows = states_of(c, job)
    assert rows.keys() == set(seen)
    for k, row in rows.items():
        assert not row[:256].any() and np.abs(first + row[256:] - own[k]).max() < 1e-5
    assert max(np.abs(own[k] - first).max() for k in seen) > 0.01
    told = c.mfl_json('show', job)['scores']['clients']
    assert {s['client'] for s in told} == scores.keys()
    for s in told:
        samples, correct, loss = scores[s['client']]
        assert (s['samples'], s['correct']) == (samples, correct)
        assert s['loss_sum'] == pytest.approx(samples * loss, rel=1e-4)


def test_fedper_is_the_algorithm(two_daemons):
    job, _ = two_daemons.run_job(**JOB, rounds=5)
    compare(two_daemons, job, 5)


def test_evaluated_in_the_first_round(two_daemons):
    """Clients' own layers are there as soon as a round is applied."""
    job, _ = two_daemons.run_job(**JOB, rounds=1)
    compare(two_daemons, job, 1)


def test_with_a_proximal_term(two_daemons):
    """It holds a client near what it starts from, its own layers too."""
    job, _ = two_daemons.run_job(**JOB, rounds=4, aggregation={'strategy': 'fedprox', 'mu': 0.5})
    compare(two_daemons, job, 4, mu=0.5)


def test_with_a_server_optimizer(two_daemons):
    job, _ = two_daemons.run_job(**JOB, rounds=4, aggregation={'strategy': 'fedadam'})
    compare(two_daemons, job, 4, server=lambda: Adaptive('fedadam', False, 0.01, 0.9, 0.99, 0.001))


@pytest.mark.parametrize('rounds,seen', [(2, [0, 1, 3, 4, 6]), (7, range(7))])
def test_clients_that_take_turns(two_daemons, rounds, seen):
    """Who has no turn keeps its layers, and who never had one is evaluated with the initial ones."""
    job, _ = two_daemons.run_job(**JOB, rounds=rounds, selection={'kind': 'separated', 'separation': 3})
    compare(two_daemons, job, rounds, seen=seen, turns=lambda r: [k for k in range(7) if k % 3 == (r - 1) % 3])


def test_fedbn_keeps_norms_and_their_statistics(two_daemons):
    """Li et al. 2021, algorithm 1. The first round's other layers are FedAvg's."""
    c = two_daemons
    settings = dict(JOB, model=NORMED, personal=None)
    plain = pulled(c, c.run_job(**settings, rounds=1)[0])
    job, _ = c.run_job(**dict(settings, personal={'layers': ['bn*']}), rounds=1)
    first = pulled(c, job)
    norms = [name for name in first if name.startswith('bn.')]
    assert sorted(norms) == ['bn.bias', 'bn.running_mean', 'bn.running_var', 'bn.weight']
    for name, v in first.items():
        assert np.array_equal(v, plain[name]) == (name not in norms), name
    job, _ = c.run_job(**dict(settings, personal={'layers': ['bn*']}), rounds=3)
    last, at = pulled(c, job), 0
    places = {}
    for name, v in last.items():
        places[name] = slice(at, at + v.size)
        at += v.size
        assert np.array_equal(v, first[name]) == (name in norms), name
    rows = states_of(c, job, at)
    for row in rows.values():
        for name, place in places.items():
            assert row[place].any() == (name in norms), name
    assert len({row.tobytes() for row in rows.values()}) == 7


def test_one_model_whoever_trains(cluster):
    """One, two and four daemons, and a client that another daemon trains and evaluates in each round: one digest, the same states and the
    same scores, to the bit."""
    found = []
    for nodes in (['n1'], ['n1', 'n1'], ['n1', 'n1', 'n2', 'n2']):
        c = cluster(0)
        for i, node in enumerate(nodes):
            c.start_daemon('d%d' % i, node=node, workers=1 + i % 2)
        c.wait_daemons(len(nodes))
        job, digests = c.run_job(**dict(JOB, model=NORMED, personal={'layers': ['bn', 'dense*']}), rounds=5, selection={'clients': 5})
        n = sum(v.size for v in pulled(c, job).values())
        rows = {k: v.tobytes() for k, v in states_of(c, job, n).items()}
        found.append((digests, rows, c.mfl_json('show', job)['scores']))
        c.close()
    assert found[0] == found[1] == found[2] and len(set(found[0][0])) == 5


def test_sites_have_layers_of_their_own(cluster):
    """Partition local: one model whatever the order in which the daemons come."""
    found = []
    for order in ((1, 2, 3), (3, 1, 2)):
        c = cluster(0)
        for i in order:
            c.start_daemon('site-%d' % i, data=['tiny=synthetic:1,8,8:4:%d:40:%d' % (30 + 50 * i, i)])
        c.wait_daemons(3)
        job, digests = c.run_job(**dict(JOB, data={'partition': 'local', 'clients': None}), rounds=4, selection={'daemons': {'min': 3}})
        scores = {s['site']: (s['samples'], s['correct']) for s in c.mfl_json('show', job)['scores']['clients']}
        found.append((digests, scores))
        c.close()
    assert found[0] == found[1] and len(set(found[0][0])) == 4 and len(found[0][1]) == 3


REFUSED = [
    ({'personal': {'layers': ['nope']}}, "personal.layers: 'nope' is not a layer"),
    ({'personal': {'layers': ['*']}}, 'personal.layers: all layers that are trained stay'),
    ({'personal': {}}, 'personal'),
    ({'model': {'preset': 'lenet5', 'freeze': ['conv1']}, 'personal': {'layers': ['conv1']}}, 'selects only layers that are not trained'),
    ({'evaluation': {'on': 'test'}}, "personal: the server has no client's personal layers"),
    ({'evaluation': {}}, "personal: the server has no client's personal layers"),
    ({'aggregation': {'strategy': 'fedprox', 'mu': 'adaptive'}}, 'aggregation.mu: adaptive is not supported with personal layers'),
    ({'parallel': {'grain': 5}}, 'parallel: clients with personal layers'),
    ({'client_state': 'daemon'}, 'client_state: daemon needs sites that keep their own client'),
    ({'compression': {'up': 'lossless'}}, 'compression.up: is for sums of updates'),
] + [({'aggregation': {'strategy': s}}, 'personal: needs a strategy that averages')
     for s in ('scaffold', 'feddyn', 'fednova', 'qfedavg', 'median', 'krum')]


@pytest.mark.parametrize('changes,said', REFUSED)
def test_what_does_not_go_together_is_refused(two_daemons, changes, said):
    with pytest.raises(Exception) as caught:
        two_daemons.submit(**dict(JOB, rounds=1, **changes) if not set(changes) & set(JOB) else {**JOB, 'rounds': 1, **changes})
    assert said in str(caught.value)


def test_states_that_do_not_fit(two_daemons):
    with pytest.raises(Exception) as caught:
        two_daemons.submit(**JOB, rounds=1, limits={'state': '20KiB'})
    assert 'the states of 7 clients take 4.0 KiB each, 28.0 KiB together, and limits.state is 20.0 KiB' in str(caught.value)


def test_a_lost_state_begins_anew_and_the_round_says_so(cluster):
    c = cluster(2)
    c.wait_daemons(2)
    job = c.submit(**JOB, rounds=h.ENDLESS)
    c.wait_info(job, lambda i: i['round'] >= 3, 30, 'three rounds')
    c.server.kill()
    with sqlite3.connect('%s/mfl.db' % c.state_dir) as db:
        slot, = db.execute('SELECT slot FROM client_states WHERE job = ? AND client = 3', (job,)).fetchone()
        before, = db.execute('SELECT max(round) FROM rounds WHERE job = ?', (job,)).fetchone()
    with open(os.path.join(c.state_dir, 'jobs', job, 'clients.f32'), 'r+b') as f:
        f.seek(slot * 4096 + 40)
        f.write(b'\x00\x00\x80\x7f')
    c.start_server()
    c.wait_info(job, lambda i: i['round'] >= before + 3, 60, 'more rounds')
    c.stop_job(job)
    lost = {r['round']: r['states_lost'] for r in c.rounds(job)}
    assert lost.pop(before + 1) == 1 and not any(lost.values()), lost
