# SPDX-License-Identifier: Apache-2.0
"""Clients that don't wait for each other: FedBuff and FedAsync, in virtual time (tests/lib/cohorts.py has the calendar, independently), and
in real time, where the server's record has the order of arrival."""
import contextlib
import itertools
import sqlite3
import struct

import numpy as np
import pytest

import cohorts
import mfl_harness as h
import robust
from federated import SHUFFLE, Momentum, Stream, parts_of, pulled, synthetic, train_locally, uniform_init

SEED, CLIENTS = 17, 20
MODEL = {'mu': 0, 'sigma': 1.2, 'speed': 100}
TRAINING = {'lr': 0.1, 'epochs': 1, 'batch': 10}
JOB = {'model': 'logistic', 'seed': SEED, 'data': {'clients': CLIENTS}, 'training': TRAINING, 'time': 'virtual', 'trace': MODEL}
FEDBUFF = {**JOB, 'aggregation': {'strategy': 'fedbuff', 'buffer': 4}, 'selection': {'clients': 12}}
FEDASYNC = {**JOB, 'aggregation': {'strategy': 'fedasync'}, 'selection': {'clients': 6}}
NORM = {'layers': [{'batchnorm': {}}, {'flatten': {}}, {'dense': {'units': 4}}]}  # of the input, so that its statistics are the data's


@pytest.fixture(scope='module')
def two_daemons(shared_cluster):
    c = shared_cluster(2, config={'allow_simulation': 'true'})
    c.wait_daemons(2)
    return c


def durations():
    return [cohorts.model_duration(SEED, k, 400 // CLIENTS, MODEL['mu'], MODEL['sigma'], MODEL['speed']) for k in range(CLIENTS)]


def recomputed(turns, step, shuffled=lambda version, base: version, labels=lambda k, r, y: y):
    """The params after each version. step(newest, [(base, trained, staleness)]): arrays of the weights, then of the biases. shuffled: the round
    whose draws a client's batches are. labels: what client k has in version r."""
    x, y = synthetic((1, 8, 8), 4, 400, 1, 0)
    parts = [trained for trained, _ in parts_of(SEED, 400, CLIENTS)]
    params = [(uniform_init(SEED, 0, 256, 64).reshape(4, 64), uniform_init(SEED, 1, 4, 64))]
    for r, (_, _, arrived, _) in enumerate(turns, 1):
        updates = []
        for k, base in sorted(arrived.items()):
            order = Stream(SEED, SHUFFLE, k, shuffled(r, base) * 65536).shuffled(parts[k])
            batches = [order[at:at + 10] for at in range(0, len(order), 10)]
            updates.append((params[base], train_locally(*params[base], x, labels(k, r, y), batches, 0.1, lambda: Momentum(0)), r - 1 - base))
        params.append(tuple(step(params[-1][i], [(b[i], t[i], s) for b, t, s in updates]) for i in (0, 1)))
    return params


def compare(c, job, expected, turns):
    w, b = pulled(c, job).values()
    assert np.abs(w - expected[-1][0]).max() < 1e-5 and np.abs(b - expected[-1][1]).max() < 1e-5
    rounds = c.mfl_json('show', job)['rounds']
    assert [(r['virtual_start'], r['virtual_end'], r['clients']) for r in rounds] == [(a / 1e6, z / 1e6, len(v)) for a, z, v, _ in turns]
    for r, (_, _, arrived, dropped) in zip(rounds, turns):
        staleness = [r['round'] - 1 - base for base in arrived.values()]
        assert (r['staleness_max'], r['dropped']) == (max(staleness), dropped)
        assert abs(r['staleness_mean'] - sum(staleness) / len(staleness)) < 1e-12


def test_fedbuff_is_the_algorithm(two_daemons):
    c = two_daemons
    job, _ = c.run_job(60, rounds=8, **FEDBUFF)
    turns = list(itertools.islice(cohorts.versions(SEED, durations(), 12, 4, 20), 8))
    assert max(r - base for r, t in enumerate(turns) for base in t[2].values()) >= 2  # or nothing would be stale
    expected = recomputed(turns, lambda x, updates: x + sum((t - b) / np.sqrt(1 + s) for b, t, s in updates) / len(updates))
    compare(c, job, expected, turns)
    plain = recomputed(turns, lambda x, updates: x + sum(t - b for b, t, s in updates) / len(updates))
    assert np.abs(plain[-1][0] - expected[-1][0]).max() > 1e-3  # which the comparison above would find
    assert 'staleness' in c.mfl('watch', job).stdout


def test_stale_updates_are_dropped(two_daemons):
    c = two_daemons
    settings = {'strategy': 'fedbuff', 'buffer': 2, 'staleness_max': 1, 'a': 1, 'server_lr': 0.5, 'weighting': 'samples'}
    job, _ = c.run_job(60, rounds=10, **{**FEDBUFF, 'aggregation': settings})
    turns = list(itertools.islice(cohorts.versions(SEED, durations(), 12, 2, 1), 10))
    assert sum(t[3] for t in turns) >= 2
    compare(c, job, recomputed(turns, lambda x, updates: x + 0.5 * sum((t - b) / (1 + s) for b, t, s in updates) / len(updates)), turns)


def test_fedasync_is_the_algorithm(two_daemons):
    c = two_daemons
    job, _ = c.run_job(60, rounds=12, **FEDASYNC)
    turns = list(itertools.islice(cohorts.versions(SEED, durations(), 6, 1, 20), 12))

    def step(x, updates):
        (_, trained, s), = updates
        return x + 0.6 / np.sqrt(1 + s) * (trained - x)
    compare(c, job, recomputed(turns, step), turns)


@pytest.mark.parametrize('job', [FEDBUFF, FEDASYNC], ids=['fedbuff', 'fedasync'])
def test_flipped_labels(two_daemons, job):
    """A bad client flips its labels in the versions from 3 on, however old the params are that it started from."""
    c = two_daemons
    at, _ = c.run_job(60, rounds=12, **job, simulation={'attack': 'label-flip', 'share': 0.6, 'from': 3})
    bad = Stream(SEED, robust.ATTACK, 0, 0).shuffled(range(CLIENTS))[:12]
    buffer = job['aggregation'].get('buffer', 1)
    turns = list(itertools.islice(cohorts.versions(SEED, durations(), job['selection']['clients'], buffer, 20), 12))

    def step(x, updates):
        if buffer > 1:
            return x + sum((t - b) / np.sqrt(1 + s) for b, t, s in updates) / len(updates)
        (_, trained, s), = updates
        return x + 0.6 / np.sqrt(1 + s) * (trained - x)
    flipped = recomputed(turns, step, labels=lambda k, r, y: 3 - y if k in bad and r >= 3 else y)
    compare(c, at, flipped, turns)
    assert np.abs(flipped[-1][0] - recomputed(turns, step)[-1][0]).max() > 1e-3  # which the comparison above would find


TABLE = {'csv': 'client,duration,on\n' + ''.join('%d,%g,%s\n' % (k, 2 + 7 * k % 11, '0-20' if k % 3 == 0 else '') for k in range(CLIENTS)),
         'day': '1000000s'}


def test_clients_that_go_off_or_take_too_long(two_daemons):
    """They start, and nobody trains them."""
    c = two_daemons
    job, _ = c.run_job(60, rounds=14, **{**FEDBUFF, 'trace': TABLE, 'limits': {'virtual_deadline': '11s'}})
    on = {k: (0, 20000000) for k in range(CLIENTS) if k % 3 == 0}
    turns = list(itertools.islice(cohorts.versions(SEED, [(2 + 7 * k % 11) * 10 ** 6 for k in range(CLIENTS)], 12, 4, 20, on, 11 * 10 ** 6), 14))
    assert sum(t[3] for t in turns) > 2 and turns[-1][1] > 20e6
    compare(c, job, recomputed(turns, lambda x, updates: x + sum((t - b) / np.sqrt(1 + s) for b, t, s in updates) / len(updates)), turns)


def test_equal_durations_are_rounds(two_daemons):
    """Nobody is stale: FedBuff is FedAvg with the same clients, bit for bit, and FedAsync with alpha 1 within one unit in the last place."""
    c = two_daemons
    same = {**JOB, 'trace': {'csv': 'client,duration\n' + ''.join('%d,3\n' % k for k in range(CLIENTS))}, 'rounds': 4}
    for n in (1, 5, CLIENTS):
        at, average = c.run_job(**same, selection={'clients': n}, aggregation={'weighting': 'uniform'})
        job, digests = c.run_job(**same, selection={'clients': n}, aggregation={'strategy': 'fedbuff', 'buffer': n})
        assert digests == average
        assert {(r['staleness_mean'], r['dropped']) for r in c.mfl_json('show', job)['rounds']} == {(0, 0)}
        if n == 1:
            alone, _ = c.run_job(**same, selection={'clients': 1}, aggregation={'strategy': 'fedasync', 'alpha': 1})
            for a, b in zip(pulled(c, at).values(), pulled(c, alone).values()):
                assert np.abs(a.view(np.int32) - b.view(np.int32)).max() <= 1


@pytest.mark.parametrize('job', [FEDBUFF, FEDASYNC, {**FEDBUFF, 'model': NORM, 'compression': {'up': 'lossless'}, 'selection': {'clients': 15, 'assign': 'modulo'},
                                                     'evaluation': {'on': 'clients'}, 'training': {'momentum': 0.9}}], ids=['fedbuff', 'fedasync', 'more'])
def test_one_model_for_any_number_of_daemons(cluster, job):
    digests = []
    for n in (1, 2, 4):
        c = cluster(n)
        c.wait_daemons(n)
        digests.append(c.run_job(60, rounds=6, **job)[1])
        c.close()
    assert digests[0] == digests[1] == digests[2] and len(set(digests[0])) == 6


def test_frozen_layers_and_initial_params(two_daemons):
    """Version 0 is from a file, and older versions have a part that does not move."""
    c = two_daemons
    first, _ = c.run_job(model='mlp', rounds=1)
    c.mfl('pull', first, '--output', c.dir + '/first.safetensors')
    doc = h.job_doc(**{**FEDBUFF, 'model': {'preset': 'mlp', 'initial': 'first.safetensors', 'freeze': ['fc1'], 'input': [1, 8, 8], 'classes': 4}, 'rounds': 5})
    digests = []
    for _ in range(2):
        job = c.mfl_json('submit', c.write('frozen.yaml', h.yaml_of(doc)))['job']
        c.wait_job(job, 60)
        digests.append(c.digests(job))
    assert digests[0] == digests[1] and len(set(digests[0])) == 5


@pytest.mark.parametrize('change, why', [
    ({'time': None, 'trace': None, 'compression': {'up': 'lossless'}}, 'compression.up: is for sums of updates, and in real time'),
    ({'time': None, 'trace': None, 'aggregation': {'buffer': 13}}, 'aggregation.buffer: a buffer of 13 updates, but only 12 clients train at once'),
    ({'time': None, 'trace': None, 'aggregation': {'buffer': None}, 'selection': {'clients': 9}}, 'aggregation.strategy: a buffer of 10 updates, but only 9 clients'),
    ({'time': None}, 'trace: is only used with time: virtual'),
    ({'selection': {'kind': 'weighted'}}, 'selection.kind: is for rounds'),
    ({'selection': {'over': 1.3}}, 'selection.over: is for rounds'),
    ({'aggregation': {'buffer': 21}}, "aggregation.buffer: fedbuff's buffer of 21 updates of as many clients never fills: the population has 20"),
    ({'aggregation': {'buffer': 0}}, 'aggregation.buffer: '),
    ({'aggregation': {'staleness_max': 101}}, 'aggregation.staleness_max: '),
    ({'aggregation': {'a': -1}}, 'aggregation.a: '),
    ({'aggregation': {'alpha': 0.5}}, 'aggregation.alpha: is not used by fedbuff'),
    ({'aggregation': {'strategy': 'fedasync', 'buffer': 3}}, 'aggregation.buffer: is not used by fedasync'),
    ({'aggregation': {'strategy': 'fedasync', 'buffer': None, 'alpha': 1.5}}, 'aggregation.alpha: 1.5: '),
    ({'aggregation': {'strategy': 'fedasync', 'buffer': None, 'server_lr': 2}}, 'aggregation.server_lr: is not used by fedasync'),
    ({'aggregation': {'strategy': 'fedavg'}}, 'aggregation.buffer: is not used by fedavg'),
    ({'selection': {'clients': 21}}, 'selection.clients: 21 clients per round, but the population has 20'),
    ({'data': {'clients': 200000}}, 'data.clients: 200000 clients'),
    ({'parallel': {'grain': 5}}, 'parallel: clients that start from several versions'),
    ({'compression': {'up': {'bits': 8}}}, 'compression.up: bits need the mean'),
    ({'personal': {'layers': ['fc1']}}, 'personal: needs a strategy that averages'),
    ({'simulation': {'attack': 'ipm', 'share': 0.2}}, 'simulation: changes rows of updates'),
    ({'data': {'partition': 'local', 'clients': None}}, 'time: virtual time has a trace'),
])
def test_bad_jobs_are_refused(folder, change, why):
    doc = h.job_doc(**FEDBUFF)
    for section, keys in change.items():
        if keys is None:
            doc.pop(section)
        elif isinstance(keys, dict):
            doc[section] = {k: v for k, v in {**doc.get(section, {}), **keys}.items() if v is not None}
        else:
            doc[section] = keys
    with open(folder + '/j.yaml', 'w', encoding='ascii') as f:
        f.write(h.yaml_of(doc))
    assert why in h.mfl('check', 'j.yaml', cwd=folder, status=5).stderr


@pytest.mark.parametrize('kind', ['fedbuff', 'fedasync'])
def test_running_statistics_are_clients_means(two_daemons, kind):
    """A norm of the input: each client moves a tenth of the way from where it started to its own mean."""
    c = two_daemons
    settings = {'fedbuff': {'strategy': 'fedbuff', 'buffer': 4, 'server_lr': 0.5}, 'fedasync': {'strategy': 'fedasync'}}[kind]
    job, _ = c.run_job(60, rounds=9, **{**JOB, 'model': NORM, 'aggregation': settings, 'selection': {'clients': 12},
                                        'training': {'lr': 0.01, 'batch': 20}})
    turns = list(itertools.islice(cohorts.versions(SEED, durations(), 12, settings.get('buffer', 1), 20), 9))
    x, _ = synthetic((1, 8, 8), 4, 400, 1, 0)
    means = [x[trained].mean() for trained, _ in parts_of(SEED, 400, CLIENTS)]
    versions = [0.0]
    for r, (_, _, arrived, _) in enumerate(turns):
        trained = [0.9 * versions[base] + 0.1 * means[k] for k, base in arrived.items()]
        share = 0.6 / np.sqrt(1 + r - list(arrived.values())[0]) if kind == 'fedasync' else 1
        versions.append((1 - share) * versions[-1] + share * np.mean(trained))
    got = [v for name, v in pulled(c, job).items() if 'mean' in name]
    assert len(got) == 1 and abs(float(got[0][0]) - versions[-1]) < 1e-5 and versions[-1] > 0.1


def test_a_buffer_that_never_fills_is_told(two_daemons):
    c = two_daemons
    table = 'client,duration,on\n' + ''.join('%d,5,%s\n' % (k, '0-4' if k > 2 else '') for k in range(CLIENTS))
    job = c.submit(**{**FEDBUFF, 'trace': {'csv': table, 'day': '10s'}})
    assert 'only 3 of the 4 updates of its buffer ever arrive' in c.wait_job(job, 30, state='failed')['reason']


# ---- real time ----

REAL = {k: v for k, v in JOB.items() if k not in ('time', 'trace')}


def recorded(c, job):
    """Per version: {client: the version that it started from}."""
    with contextlib.closing(sqlite3.connect(c.state_dir + '/mfl.db')) as db:
        rows = db.execute('SELECT body FROM arrivals WHERE job = ? ORDER BY version', (job,)).fetchall()
    return [dict(struct.unpack('<QI', body[i:i + 12]) for i in range(0, len(body), 12)) for body, in rows]


@pytest.mark.parametrize('kind', ['fedbuff', 'fedasync'])
def test_real_time_is_the_algorithm_of_its_record(cluster, kind):
    """One daemon is slower than the others, and old updates come."""
    c = cluster(3)
    c.wait_daemons(3)
    settings = {'fedbuff': FEDBUFF, 'fedasync': FEDASYNC}[kind]
    job, digests = c.run_job(60, rounds=8, **{**REAL, **{k: settings[k] for k in ('aggregation', 'selection')}})
    turns = [(0, 0, arrived, 0) for arrived in recorded(c, job)]
    buffer = settings['aggregation'].get('buffer', 1)
    assert len(turns) == 8 and all(len(t[2]) == buffer for t in turns)
    assert any(r - base for r, t in enumerate(turns) for base in t[2].values())  # 12 start together, and fewer make a version

    def step(x, updates):
        if kind == 'fedbuff':
            return x + sum((t - b) / np.sqrt(1 + s) for b, t, s in updates) / len(updates)
        (_, trained, s), = updates
        return x + 0.6 / np.sqrt(1 + s) * (trained - x)
    expected = recomputed(turns, step, lambda version, base: base + 1)
    w, b = pulled(c, job).values()
    assert np.abs(w - expected[-1][0]).max() < 1e-5 and np.abs(b - expected[-1][1]).max() < 1e-5
    rounds = c.mfl_json('show', job)['rounds']
    assert [r['staleness_max'] for r in rounds] == [max(r - base for base in t[2].values()) for r, t in enumerate(turns)]
    again = c.mfl_json('replay', job)
    assert again['same'] and again['rounds'] == 8 and c.digests(again['job']) == digests and recorded(c, again['job']) == recorded(c, job)


def test_sites_in_real_time(cluster):
    """Each site is a client; one of them is away for a while."""
    c = cluster(0)
    for i in range(3):
        c.start_daemon('d%d' % i, node='n%d' % i, data=(h.TINY.replace('seed=1', 'seed=%d' % (i + 1)),))
    c.wait_daemons(3)
    job, digests = c.run_job(60, model='logistic', data={'partition': 'local', 'clients': None}, rounds=8, evaluation={'every': 4},
                             aggregation={'strategy': 'fedbuff', 'buffer': 2})
    assert all(len(arrived) == 2 for arrived in recorded(c, job))
    c.daemons['d1'].kill()
    c.start_daemon('d1', node='n1', data=(h.TINY.replace('seed=1', 'seed=2'),))
    c.wait_daemons(3)
    assert c.mfl_json('replay', job)['same']


def test_jobs_take_turns_in_real_time(cluster):
    """Of one daemon, which holds results for a job whose turn is over."""
    c = cluster(1)
    c.wait_daemons(1)
    wants = {**REAL, 'rounds': 20, **{k: FEDBUFF[k] for k in ('aggregation', 'selection')}}
    jobs = [c.submit(**wants), c.submit(**wants), c.submit(model='logistic', rounds=20)]
    for job in jobs:
        c.wait_job(job, 60)
    assert all(c.mfl_json('replay', job)['same'] for job in jobs)


def test_a_replay_of_rounds(two_daemons):
    """Of any other job the rounds follow from its file; a job that has stopped is made as far as it came. Another model is told."""
    c = two_daemons
    job, digests = c.run_job(60, model='logistic', rounds=3)
    again = c.mfl_json('replay', job)
    assert again['same'] and again['replays'] == job and c.digests(again['job']) == digests
    at = c.begin(model='logistic', data={'clients': 3})
    c.wait_info(at, lambda i: i['round'] >= 2, 30, 'two rounds')
    assert c.mfl_json('replay', at)['same']  # of those that it has, while it goes on
    c.stop_job(at)
    n = len(c.digests(at))
    again = c.mfl_json('replay', at)
    assert again['same'] and again['rounds'] == n and c.info(again['job'])['state'] == 'stopped'
    assert 'have the same models' in c.mfl('replay', job).stdout
    waits = c.submit(model='logistic', data={'name': 'nowhere'})
    assert 'no committed round' in h.mfl('replay', waits, server=c.address, status=None).stderr
    c.stop_job(waits)
