# SPDX-License-Identifier: Apache-2.0
"""Robust strategies: each rule is its paper, recomputed in numpy, and byzfl's where that is installed (pip install byzfl, and
PyTorch); each gives one model whatever daemons there are and whatever is killed; attacks are drawn by the seed, allowed only where
somebody said so, and told."""
import json

import numpy as np
import pytest

import robust
from federated import Momentum, Stream, federated_average, pulled, uniform_init

RULES = [
    {'strategy': 'median'}, {'strategy': 'trimmed-mean'}, {'strategy': 'trimmed-mean', 'f': 2},
    {'strategy': 'mean-around-median', 'f': 1}, {'strategy': 'krum', 'f': 1}, {'strategy': 'krum', 'f': 1, 'neighbours': 2},
    {'strategy': 'multi-krum', 'f': 1}, {'strategy': 'bulyan', 'f': 1}, {'strategy': 'rfa'},
    {'strategy': 'centered-clip', 'clip_radius': 0.5}, {'strategy': 'centered-clip', 'clip_radius': 'median'},
    {'strategy': 'norm-filter', 'f': 1}, {'strategy': 'median', 'f': 1, 'before': 'nnm'}, {'strategy': 'dnc', 'f': 1},
    {'strategy': 'dnc', 'f': 1, 'sample': 40, 'iterations': 3}, {'strategy': 'signguard'}, {'strategy': 'flame', 'noise': 0.1},
    {'strategy': 'flame', 'before': {'clip': 'median'}}, {'strategy': 'foolsgold'}, {'strategy': 'fltrust', 'root': {'client': 3}},
    {'strategy': 'fltrust', 'root': {'client': 0}, 'before': {'clip': 'median'}},
    {'strategy': 'trimmed-mean', 'f': 1, 'before': 'arc'}, {'strategy': 'rfa', 'f': 1, 'before': [{'bucket': 2}, 'nnm']},
    {'strategy': 'krum', 'f': 1, 'before': {'clip': 'median'}}, {'strategy': 'centered-clip', 'clip_radius': 1, 'before': {'clip': 1.5}},
]


@pytest.fixture(scope='module')
def rows():
    real = robust.Rows()
    yield real
    real.close()


def matrices(count, rng):
    """Random and adversarial ones: far rows, duplicates, zero rows, many ties. m from 4 to 40, n from 1 to 5,000."""
    for i in range(count):
        m, n = int(rng.integers(4, 41)), int(rng.choice([1, 2, 7, 50, 255, 256, 257, 1000, 5000]))
        x = rng.normal(size=(m, n)).astype(np.float32)
        kind = i % 6
        if kind == 1:  # a group far away
            x[rng.choice(m, m // 4, replace=False)] += 1000
        elif kind == 2:  # duplicates
            x[rng.choice(m, m // 2, replace=False)] = x[0]
        elif kind == 3:
            x[rng.choice(m, m // 3 + 1, replace=False)] = 0
        elif kind == 4:  # small whole numbers: ties of values and of distances
            x = rng.integers(-2, 3, size=(m, n)).astype(np.float32)
        elif kind == 5:  # opposite and long
            x[: m // 5] *= -100
        yield kind, x


def check(got, want, x, what):
    scale = max(np.abs(want).max(), np.abs(x).max() * 1e-3, 1e-30)
    assert np.abs(got - want).max() <= 1e-6 * scale, what


def test_rules_are_their_papers(rows):
    rng = np.random.default_rng(1)
    seen = 0
    for i, (kind, x) in enumerate(matrices(200, rng)):
        m = len(x)
        for spec in (RULES[(i + k) % len(RULES)] for k in range(6)):
            spec = dict(spec)
            if 'f' in spec:  # as many as the rule bears
                left = -(-m // 2) if 'bucket' in str(spec) else m
                bound = {'bulyan': (left - 3) // 4, 'krum': (left - 3) // 2, 'multi-krum': (left - 3) // 2}.get(spec['strategy'], (left - 1) // 2)
                if bound < 0:
                    continue
                spec['f'] = int(rng.integers(0, bound + 1))
            if spec.get('neighbours', 0) >= m:
                continue
            # Ties that last bits break: singular vectors, and cosines of rows that have been shortened.
            if spec['strategy'] == 'dnc' and kind in (2, 3, 4):
                continue
            if spec['strategy'] == 'signguard' and kind == 4:  # points of a lattice, as far from each other as the bandwidth
                continue
            if spec['strategy'] == 'flame' and 'before' in spec and (kind == 4 or x.shape[1] == 1):
                continue
            # Cosines of rows with one element are 1 or -1, and of equal ones 1, up to last bits that a logarithm of 0 makes large.
            if spec['strategy'] == 'foolsgold' and (kind in (2, 3, 4) or x.shape[1] < 3):
                continue
            v = rng.normal(size=x.shape[1]).astype(np.float32) if spec['strategy'] in ('centered-clip', 'fltrust') else None
            got = rows.aggregate(x, json.dumps(spec), r=3, v=v)
            assert not isinstance(got, str), (spec, got)
            check(got[0], robust.aggregate(x, spec, r=3, v=v), x, (i, kind, spec, x.shape))
            none = spec['strategy'] == 'fltrust' and not got[1].any()  # nobody is trusted: the root's update
            assert (none or abs(got[1].sum() - 1) < 1e-9) and (got[1] >= 0).all()
            seen += 1
    assert seen > 1000


def test_rules_are_those_of_byzfl(rows):
    """Krum takes the same row with byzfl's number of neighbours, m - f - 1. Ties are left out where byzfl's choice is arbitrary."""
    byzfl = pytest.importorskip('byzfl', reason='pip install byzfl torch')
    rng = np.random.default_rng(2)
    for i, (kind, x) in enumerate(matrices(200, rng)):
        m = len(x)
        f = int(rng.integers(0, (m - 1) // 2 + 1))
        few = min(f, max((m - 3) // 2, 0))
        double = x.astype(np.float64)
        pairs = [({'strategy': 'median'}, byzfl.Median()), ({'strategy': 'trimmed-mean', 'f': f}, byzfl.TrMean(f)),
                 ('weiszfeld 0.1 3', byzfl.GeometricMedian(0.1, 3))]
        if m >= 2 * few + 3:
            krum = {'f': few, 'neighbours': m - few - 1}
            pairs += [({'strategy': 'krum', **krum}, byzfl.Krum(few))]
            if kind not in (2, 3, 4):
                pairs += [({'strategy': 'multi-krum', **krum}, byzfl.MultiKrum(few))]
        if kind not in (2, 3, 4):
            pairs += [({'strategy': 'mean-around-median', 'f': f}, byzfl.Meamed(f)),
                      ({'strategy': 'trimmed-mean', 'f': f, 'before': 'nnm'}, lambda x, f=f: byzfl.TrMean(f)(byzfl.NNM(f)(x))),
                      ({'strategy': 'trimmed-mean', 'f': f, 'before': 'arc'}, lambda x, f=f: byzfl.TrMean(f)(byzfl.ARC(f)(x))),
                      ({'strategy': 'trimmed-mean', 'f': f, 'before': {'clip': 2.0}},
                       lambda x, f=f: byzfl.TrMean(f)(byzfl.Clipping(2.0)(x)))]
        if not (x == 0).all(axis=1).any():  # byzfl divides by the distance from 0
            pairs += [({'strategy': 'centered-clip', 'clip_radius': 1.5}, byzfl.CenteredClipping(tau=1.5))]
        for spec, rule in pairs:
            text = spec if isinstance(spec, str) else json.dumps(spec)
            v = np.zeros(x.shape[1]) if 'centered' in text else None
            got = rows.aggregate(x, text, v=v)
            assert not isinstance(got, str), (text, got)
            check(got[0], np.asarray(rule(double.copy())), x, (i, kind, text, x.shape))


def test_ties_go_to_the_lower_row(rows):
    x = np.zeros((7, 3), np.float32)
    x[:, 0] = [1, 1, 1, 1, 2, 2, 2]
    assert list(np.nonzero(rows.aggregate(x, '{strategy: krum, f: 2}')[1])[0]) == [0]
    assert list(np.nonzero(rows.aggregate(x, '{strategy: multi-krum, f: 2}')[1])[0]) == [0, 1, 2, 3, 4]
    assert list(np.nonzero(rows.aggregate(x, '{strategy: norm-filter, f: 2}')[1])[0]) == [0, 1, 2, 3, 4]


def test_too_few_rows(rows):
    x = np.arange(12, dtype=np.float32).reshape(4, 3) ** 2
    assert 'needs 5 rows, and a round may have 4' in rows.aggregate(x, '{strategy: krum, f: 1}')
    assert np.array_equal(rows.aggregate(x, '{strategy: krum, f: 1, on_few: mean}')[0], x.mean(axis=0))
    assert np.array_equal(rows.aggregate(x, '{strategy: krum, f: 1, on_few: median, before: nnm}')[0], np.median(x, axis=0))


# -- whole jobs --

CLIENTS = 9
TRAINING = {'lr': 0.1, 'epochs': 1, 'batch': 10}


@pytest.fixture(scope='module')
def two_daemons(shared_cluster):
    c = shared_cluster(2, config={'allow_simulation': 'true'})
    c.wait_daemons(2)
    return c


def begin(c, aggregation, **more):
    return c.submit(model='logistic', seed=31, rounds=3, data={'clients': CLIENTS}, training=TRAINING, aggregation=aggregation, **more)


def by_rule(spec, seed=31, attack=lambda x, r: x):
    """Rounds of federated learning with this rule for federated_average."""
    guess, history = [None], [0]
    root = spec.get('root', {}).get('client')

    def method(clients, r, _):
        x = attack(np.array([np.concatenate([part.ravel() for part in c.d]) for c in clients]), r)
        if root is not None:
            guess[0], x = x[root], np.delete(x, root, axis=0)
        if spec['strategy'] == 'foolsgold':
            history[0] = history[0] + x
            guess[0] = history[0]
        d = robust.aggregate(x, spec, seed, r, guess[0])
        guess[0] = d
        cut = clients[0].d[0].size
        return d[:cut].reshape(clients[0].d[0].shape), d[cut:]
    return method


def expected(spec, **more):
    return federated_average(seed=31, rounds=3, clients=CLIENTS, lr=lambda r: 0.1, batch=10, optimizer=lambda: Momentum(0),
                             method=by_rule(spec, **more))[:2]


def test_jobs_are_the_algorithms(two_daemons):
    """From training to the model, with the guess of centered clipping and buckets drawn anew in each round."""
    c = two_daemons
    more = [{'strategy': 'rfa', 'unit': 'bucket', 'bucket': 3}, {'strategy': 'multi-krum', 'f': 1, 'unit': 'bucket'},
            {'strategy': 'dnc', 'f': 1, 'unit': 'bucket'}, {'strategy': 'fltrust', 'root': {'client': 4}, 'unit': 'bucket'}]
    jobs = [(spec, begin(c, spec)) for spec in RULES + more]
    models = set()
    for spec, job in jobs:
        c.wait_job(job, 60)
        got_w, got_b = pulled(c, job).values()
        w, b = expected(spec)
        # As for FedAvg: float training, 1e-5. A wrong row shows at 1e-3.
        assert np.abs(got_w - w).max() < 1e-5 and np.abs(got_b - b).max() < 1e-5, spec
        models.add(got_w.tobytes())
    assert len(models) >= len(RULES) - 2  # krum may find the same row with other neighbours
    start = uniform_init(31, 0, 256, 64).reshape(4, 64)
    assert np.abs(w - start).max() > 0.01


DIGESTS = [{'strategy': 'multi-krum', 'f': 2}, {'strategy': 'krum', 'f': 2}, {'strategy': 'mean-around-median', 'f': 2},
           {'strategy': 'norm-filter', 'f': 2}, {'strategy': 'median'}, {'strategy': 'rfa', 'f': 2, 'before': ['arc', {'bucket': 2}]},
           {'strategy': 'centered-clip', 'clip_radius': 'median'}, {'strategy': 'bulyan', 'f': 1},
           {'strategy': 'trimmed-mean', 'f': 2, 'before': 'nnm'}, {'strategy': 'dnc', 'f': 2, 'sample': 50, 'iterations': 2},
           {'strategy': 'signguard'}, {'strategy': 'flame', 'noise': 0.01}, {'strategy': 'foolsgold'},
           {'strategy': 'fltrust', 'root': {'client': 4}}, {'strategy': 'median', 'unit': 'bucket', 'bucket': 3}]


def test_one_digest_for_any_daemons_and_kills(cluster, two_daemons):
    jobs = [begin(two_daemons, spec) for spec in DIGESTS]
    for job in jobs:
        two_daemons.wait_job(job, 60)
    want = [two_daemons.digests(job) for job in jobs]
    c = cluster(1, workers=2, config={'allow_simulation': 'true'})
    c.wait_daemons(1)
    jobs = [begin(c, spec) for spec in DIGESTS]
    for job in jobs:
        c.wait_job(job, 60)
    assert [c.digests(job) for job in jobs] == want
    for i in range(3):
        c.start_daemon('more%d' % i)
    c.wait_daemons(4)
    # Four daemons; the server is killed in the middle of one round after another.
    jobs = [begin(c, spec) for spec in DIGESTS]
    for _ in range(3):
        c.wait_info(jobs[0], lambda info: info['round'] >= 1 or info['state'] == 'done', 30, 'a round')
        c.server.kill()
        c.start_server()
    for job in jobs:
        c.wait_job(job, 90)
    assert [c.digests(job) for job in jobs] == want


def bad_clients(seed, clients, n):
    return sorted(Stream(seed, 17, 0, 0).shuffled(range(clients))[:n])


def test_an_attack_is_found_and_told(two_daemons):
    c = two_daemons
    sim = {'attack': 'sign-flip', 'scale': 10, 'share': 0.23}
    bad = bad_clients(31, CLIENTS, 2)

    def flipped(x, _):
        x = x.astype(np.float32).astype(np.float64)
        x[bad] *= -10
        return x
    job = begin(c, {'strategy': 'multi-krum', 'f': 2}, simulation=sim)
    c.wait_job(job, 60)
    w, b = expected({'strategy': 'multi-krum', 'f': 2}, attack=flipped)
    got_w, got_b = pulled(c, job).values()
    assert np.abs(got_w - w).max() < 1e-5 and np.abs(got_b - b).max() < 1e-5
    for r in c.rounds(job):
        assert r['choice'].startswith('attack sign-flip: 2 bad; multi-krum: 7 of 9 counted; least: client ')
        told = {int(part.split()[-1]) for part in r['choice'].replace(',', ' score').split(' score')[:4] if part.split()[-1].isdigit()}
        assert set(bad) <= told, (bad, r['choice'])
    assert 'simulation: sign-flip by 2 of 9 clients: %d, %d' % tuple(bad) in c.mfl('logs', job).stdout
    assert 'round 3: attack sign-flip: 2 bad; multi-krum: 7 of 9' in c.mfl('show', job).stdout
    plain = begin(c, {'strategy': 'multi-krum', 'f': 2})
    c.wait_job(plain, 60)
    assert c.rounds(plain)[0]['choice'].startswith('multi-krum: 7 of 9 counted; least: ')
    mean = begin(c, {}, simulation=sim)
    c.wait_job(mean, 60)
    assert c.rounds(mean)[-1]['loss'] > 2 * c.rounds(job)[-1]['loss']
    assert c.rounds(mean)[0]['choice'] == 'attack sign-flip: 2 bad'


@pytest.mark.parametrize('attack', ['gaussian', 'alie', 'ipm', 'min-max', 'min-sum', 'mimic', 'lazy', 'nan'])
def test_every_attack_runs(two_daemons, attack):
    """Also from a later round on; the model differs from that without an attack, and is the same again."""
    c = two_daemons
    jobs = [begin(c, {'strategy': 'fedavg', 'weighting': 'uniform'}, simulation={'attack': attack, 'share': 0.23, 'from': 2})
            for _ in range(2)]
    plain = begin(c, {'strategy': 'fedavg', 'weighting': 'uniform'})
    for job in [*jobs, plain]:
        c.wait_job(job, 60)
    digests = c.digests(jobs[0])
    assert digests == c.digests(jobs[1]) and digests[-1] != c.digests(plain)[-1]
    choices = [r['choice'] or '' for r in c.rounds(jobs[0])]
    assert choices[0] == '' and choices[1].startswith('attack %s: 2 bad' % attack)
    assert ('2 not finite' in choices[1]) == (attack == 'nan')


def test_attacks_need_leave(cluster):
    c = cluster(1)
    path = c.write('attack.yaml', 'name: a\nrounds: 1\nmodel: logistic\ndata: {name: tiny, partition: iid, clients: 8}\n'
                                  'training: {lr: 0.1, steps: 1, batch: 10}\nsimulation: {attack: lazy, share: 0.25}\n')
    assert 'takes no jobs with simulated attacks; start it with --allow-simulation' in c.mfl('submit', path, status=5).stderr


def test_a_round_that_is_too_small(cluster):
    """One daemon with data of its own is one row: the job does what on_few says."""
    c = cluster(1)
    c.wait_daemons(1)
    local = {'data': {'partition': 'local', 'clients': None}, 'model': 'logistic', 'rounds': 1}
    job = c.submit(aggregation={'strategy': 'krum', 'f': 1}, **local)
    info = c.wait_job(job, 30, state='failed')
    assert 'krum with f: 1 needs 5 rows, and the round has 1' in info['reason']
    job = c.submit(aggregation={'strategy': 'krum', 'f': 1, 'on_few': 'mean', 'unit': 'daemon'}, **local)
    c.wait_job(job, 30)
    assert c.rounds(job)[0]['choice'] == '1 rows are too few for krum: their mean'
    assert c.digests(job) == c.digests(c.run_job(aggregation={'strategy': 'median'}, **local)[0])  # of one row
