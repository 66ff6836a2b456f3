# SPDX-License-Identifier: Apache-2.0
"""Simulated attacks, and what clips updates: each is its paper, recomputed in numpy from the seed; each gives one model whatever
daemons there are; who was left out is told."""
import json

import numpy as np
import pytest

import robust
from federated import Momentum, Stream, federated_average, pulled, synthetic

CLIENTS = 9
TRAINING = {'lr': 0.1, 'epochs': 1, 'batch': 10}
BAD = sorted(Stream(31, robust.ATTACK, 0, 0).shuffled(range(CLIENTS))[:2])
HONEST = [k for k in range(CLIENTS) if k not in BAD]
MEAN = {'strategy': 'fedavg', 'weighting': 'uniform'}


@pytest.fixture(scope='module')
def two_daemons(shared_cluster):
    c = shared_cluster(2, config={'allow_simulation': 'true'})
    c.wait_daemons(2)
    return c


def begin(c, attack=None, aggregation=MEAN, rounds=3, **more):
    if attack:
        more['simulation'] = {'share': 0.23, **attack}
    return c.submit(model='logistic', seed=31, rounds=rounds, data={'clients': CLIENTS}, training=TRAINING, aggregation=aggregation, **more)


def flat(clients):
    return np.array([np.concatenate([part.ravel() for part in c.d]) for c in clients])


def parts(d, clients):
    cut = clients[0].d[0].size
    return d[:cut].reshape(clients[0].d[0].shape), d[cut:]


def expected(rule, rounds=3, data=None):
    """rule(x, r): the aggregate of a round's rows."""
    return federated_average(seed=31, rounds=rounds, clients=CLIENTS, lr=lambda r: 0.1, batch=10, optimizer=lambda: Momentum(0),
                             method=lambda clients, r, _: parts(rule(flat(clients), r), clients), data=data)


def check(c, job, rule, rounds=3, data=None):
    c.wait_job(job, 60)
    got_w, got_b = pulled(c, job).values()
    w, b, accuracy = expected(rule, rounds, data)
    # As for FedAvg: float training, 1e-5.
    assert np.abs(got_w - w).max() < 1e-5 and np.abs(got_b - b).max() < 1e-5
    return got_w, got_b


def mean(x, r):
    return x.mean(axis=0)


# -- clipping --

def test_updates_are_clipped(two_daemons):
    """At a number on the daemons, with exact sums; at the median of the round on rows; both are the same where they are the same."""
    c = two_daemons
    job = begin(c, aggregation={**MEAN, 'update_clip': 0.05})
    check(c, job, lambda x, r: robust.clip(x, 0.05).mean(axis=0))
    median = begin(c, aggregation={**MEAN, 'update_clip': 'median'})
    check(c, median, lambda x, r: robust.clip(x, 'median').mean(axis=0))
    weighted = begin(c, aggregation={'update_clip': 'median'})
    sizes = np.array([(k + 1) * 400 // CLIENTS - k * 400 // CLIENTS for k in range(CLIENTS)])
    check(c, weighted, lambda x, r: (sizes[:, None] * robust.clip(x, 'median')).sum(axis=0) / 400)
    wide, plain = begin(c, aggregation={**MEAN, 'update_clip': 1000}), begin(c)
    for job in (wide, plain):
        c.wait_job(job, 60)
    assert c.digests(wide) == c.digests(plain)


def test_clipped_updates_have_one_digest(cluster, two_daemons):
    specs = [{'update_clip': 0.05}, {'update_clip': 'median'}, {'strategy': 'fednova', 'update_clip': 0.08},
             {'strategy': 'fedadam', 'update_clip': 0.1}, {'strategy': 'qfedavg', 'update_clip': 0.1}]
    want = []
    for c in (two_daemons, cluster(1, workers=2), cluster(4)):
        c.wait_daemons({two_daemons: 2}.get(c, 1))
        jobs = [begin(c, aggregation=spec) for spec in specs]
        for job in jobs:
            c.wait_job(job, 60)
        want.append([c.digests(job) for job in jobs])
    assert want[0] == want[1] == want[2]
    assert len({json.dumps(d) for d in want[0]}) == len(specs)


def test_clipping_bounds_model_replacement(two_daemons):
    """The server clips what an attack has made of an update, too."""
    c = two_daemons
    attack = {'attack': 'sign-flip', 'scale': 50}

    def flipped(x, clip):
        x = robust.clip(x, clip) if clip else x.copy()  # the daemon's
        x[BAD] *= -50
        return robust.clip(x, clip).mean(axis=0) if clip else x.mean(axis=0)
    check(c, begin(c, attack, {**MEAN, 'update_clip': 0.05}), lambda x, r: flipped(x, 0.05))


# -- attacks on updates --

def test_fang_for_krum(two_daemons):
    c = two_daemons

    def rule(x, r):
        x = x.astype(np.float32).astype(np.float64)
        x[BAD] = robust.fang_krum(x[HONEST], 2)
        return robust.aggregate(x, {'strategy': 'krum', 'f': 2})
    job = begin(c, {'attack': 'fang-krum'}, {'strategy': 'krum', 'f': 2})
    check(c, job, rule)
    assert c.rounds(job)[0]['choice'].startswith('attack fang-krum: 2 bad; krum: 1 of 9 counted')


def test_fang_for_trimmed_mean(two_daemons):
    def rule(x, r):
        honest = x[HONEST].copy()
        for k in BAD:
            x[k] = robust.fang_trimmed(honest, 2, 31, k, r)
        return robust.aggregate(x, {'strategy': 'trimmed-mean', 'f': 2})
    check(two_daemons, begin(two_daemons, {'attack': 'fang-trimmed'}, {'strategy': 'trimmed-mean', 'f': 2}), rule)


def stale(start):
    """A bad client sends what it had the time before; at first nothing."""
    kept = {}

    def rule(x, r):
        for k in BAD if r >= start else []:
            x[k], kept[k] = kept.get(k, 0 * x[k]), x[k].copy()
        return x.mean(axis=0)
    return rule


def test_stale_updates(two_daemons, cluster):
    c = two_daemons
    check(c, begin(c, {'attack': 'stale', 'from': 2}, rounds=4), stale(2), 4)
    job = begin(c, {'attack': 'stale'}, rounds=6)
    check(c, job, stale(1), 6)
    # What was sent before survives the server.
    again = cluster(1, config={'allow_simulation': 'true'})
    again.wait_daemons(1)
    killed = begin(again, {'attack': 'stale'}, rounds=6)
    for r in (1, 2, 3):
        again.wait_info(killed, lambda info: info['round'] >= r or info['state'] == 'done', 30, 'a round')
        again.server.kill()
        again.start_server()
    again.wait_job(killed, 60)
    assert again.digests(killed) == c.digests(job)


# -- attacks on data --

def flip(kind):
    if isinstance(kind, list):
        return lambda y: np.where(y == kind[0], kind[1], y)
    return (lambda y: 3 - y) if kind == 'reverse' else lambda y: (y + 1) % 4


@pytest.mark.parametrize('labels', ['reverse', 'next', [1, 3]])
def test_flipped_labels(two_daemons, labels):
    c = two_daemons
    job = begin(c, {'attack': 'label-flip', 'labels': labels, 'from': 2})
    check(c, job, mean, data=lambda k, r, x, y, part: (x, flip(labels)(y)) if k in BAD and r >= 2 else (x, y))
    robust_job = begin(c, {'attack': 'label-flip', 'labels': labels}, {'strategy': 'multi-krum', 'f': 2})
    check(c, robust_job, lambda x, r: robust.aggregate(x, {'strategy': 'multi-krum', 'f': 2}),
          data=lambda k, r, x, y, part: (x, flip(labels)(y)) if k in BAD else (x, y))
    assert c.rounds(robust_job)[0]['choice'].startswith('attack label-flip: 2 bad; multi-krum: 7 of 9 counted')


def patched(x):
    x = x.reshape(-1, 8, 8).copy()
    x[:, 5:, 5:] = 1
    return x.reshape(-1, 64)


def poisoned(target, share, start=1):
    def data(k, r, x, y, part):
        if k not in BAD or r < start:
            return x, y
        x, y = x.copy(), y.copy()
        some = Stream(31, robust.POISON, k, 0).shuffled(part)[:int(share * len(part) + 0.5)]
        x[some], y[some] = patched(x[some]), target
        return x, y
    return data


def success(w, b, target):
    x, y = synthetic((1, 8, 8), 4, 80, 1, 1)
    others = y != target
    return float(np.mean(np.argmax(patched(x[others]) @ w.T + b, axis=1) == target))


def test_a_backdoor_with_model_replacement(two_daemons):
    c = two_daemons
    attack = {'attack': 'backdoor', 'target': 2, 'poison': 0.4, 'scale': 4, 'from': 2}

    def replaced(x, r):
        x[BAD if r >= 2 else []] *= 4
        return x.mean(axis=0)
    job = begin(c, attack, rounds=4)
    w, b = check(c, job, replaced, 4, poisoned(2, 0.4, 2))
    shown = json.loads(c.mfl('show', job, '--json').stdout)['rounds']
    assert shown[-1]['backdoor'] == pytest.approx(success(w, b, 2), abs=1e-12)
    assert shown[-1]['backdoor'] > shown[0]['backdoor']
    assert 'backdoor success' in c.mfl('show', job).stdout
    # Without a scale nothing but the samples is attacked, and sums stay exact.
    quiet = begin(c, {'attack': 'backdoor', 'target': 2}, {})
    sizes = np.array([(k + 1) * 400 // CLIENTS - k * 400 // CLIENTS for k in range(CLIENTS)])
    check(c, quiet, lambda x, r: (sizes[:, None] * x).sum(axis=0) / 400, data=poisoned(2, 0.5))
    assert c.rounds(quiet)[0]['choice'] == ''


DATA_ATTACKS = [{'attack': 'label-flip'}, {'attack': 'backdoor', 'scale': 3}, {'attack': 'backdoor'}, {'attack': 'fang-krum'},
                {'attack': 'fang-trimmed'}, {'attack': 'stale'}]


def test_attacks_have_one_digest(cluster, two_daemons):
    c = two_daemons
    want = []
    for c in (two_daemons, cluster(1, workers=2, config={'allow_simulation': 'true'})):
        c.wait_daemons(1)
        jobs = [begin(c, attack, {}) for attack in DATA_ATTACKS]
        jobs.append(begin(c, {'attack': 'label-flip'}, {'strategy': 'foolsgold'}))
        jobs.append(begin(c, {'attack': 'backdoor'}, {}, parallel={'grain': 5}))
        for job in jobs:
            c.wait_job(job, 60)
        want.append([c.digests(job) for job in jobs])
    assert want[0] == want[1]


def test_who_was_left_out_is_told(two_daemons):
    c = two_daemons
    attack = {'attack': 'sign-flip', 'scale': 10}
    gold, trust, bucket = (begin(c, attack, spec) for spec in (
        {'strategy': 'foolsgold'}, {'strategy': 'fltrust', 'root': {'client': HONEST[0]}},
        {'strategy': 'multi-krum', 'f': 1, 'unit': 'bucket'}))
    for job in (gold, trust, bucket):
        c.wait_job(job, 60)
    told = c.rounds(trust)[0]['choice']
    assert told.startswith('attack sign-flip: 2 bad; fltrust: ') and ' of 8 counted; least: ' in told
    assert all('client %d ' % k in told for k in BAD) and ' score 1.' in told, told
    assert 'foolsgold: ' in c.rounds(gold)[0]['choice']
    order = Stream(31, robust.UNIT, 1, 0).shuffled(range(CLIENTS))
    groups = [sorted(order[at:at + 2]) for at in range(0, CLIENTS, 2)]
    told = c.rounds(bucket)[0]['choice']
    assert 'multi-krum: 4 of 5 counted; least: ' in told
    out = told.split('least: ')[1].split(' score')[0]
    assert out in [' + '.join('client %d' % k for k in g) for g in groups], told


def test_attacks_on_data_are_checked(two_daemons):
    c = two_daemons
    job = begin(c, {'attack': 'backdoor', 'target': 7})
    assert 'has labels 0 to 3, and not 7' in c.wait_job(job, 30, state='failed')['reason']


def test_the_root_may_be_missing(cluster):
    """A site's update is the trusted one; without it the round does what on_few says."""
    c = cluster(2)
    c.wait_daemons(2)
    local = {'data': {'partition': 'local', 'clients': None}, 'model': 'logistic', 'rounds': 2, 'selection': {'daemons': {'min': 2}}}
    names = sorted(c.daemons)
    job = c.submit(aggregation={'strategy': 'fltrust', 'root': {'daemon': names[0]}}, **local)
    c.wait_job(job, 30)
    assert c.rounds(job)[0]['choice'] == 'fltrust: 1 of 1 counted'
    job = c.submit(aggregation={'strategy': 'fltrust', 'root': {'daemon': 'nobody'}}, **local)
    assert 'the round has no update of the root' in c.wait_job(job, 30, state='failed')['reason']
    job = c.submit(aggregation={'strategy': 'fltrust', 'root': {'daemon': 'nobody'}, 'on_few': 'median'}, **local)
    c.wait_job(job, 30)
    assert c.rounds(job)[0]['choice'] == '2 rows without the root for fltrust: their median'
