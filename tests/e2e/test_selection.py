# SPDX-License-Identifier: Apache-2.0
"""Who takes part in a round: each kind of selection is what tests/lib/cohorts.py says, for any number of daemons; virtual time comes
from the job's trace alone."""
import csv
import io

import numpy as np
import pytest

import cohorts
import mfl_harness as h
from federated import SELECT, Momentum, Stream, federated_average, pulled

SIZES = [10, 20, 40, 50, 60, 90, 130]
UNEVEN = {'partition': 'size', 'clients': 7, 'sizes': SIZES}
TRAINING = {'lr': 0.1, 'epochs': 1, 'batch': 10}
SEED = 31


@pytest.fixture(scope='module')
def two_daemons(shared_cluster):
    c = shared_cluster(2)
    c.wait_daemons(2)
    return c


def compare(c, job, turns, rounds, clients=SIZES):
    """The model is that of these clients in each round, and not of others."""
    settings = {'seed': SEED, 'rounds': rounds, 'clients': clients, 'lr': lambda r: 0.1, 'batch': 10, 'optimizer': lambda: Momentum(0)}
    w, b, _ = federated_average(turns=turns, **settings)
    got_w, got_b = pulled(c, job).values()
    assert np.abs(got_w - w).max() < 1e-5 and np.abs(got_b - b).max() < 1e-5
    assert np.abs(federated_average(**settings)[0] - w).max() > 1e-3


def test_weighted_draws_by_samples(two_daemons):
    c = two_daemons
    job, digests = c.run_job(model='logistic', seed=SEED, rounds=4, data=UNEVEN, training=TRAINING, selection={'kind': 'weighted', 'clients': 3})
    assert [r['clients'] for r in c.rounds(job)] == [3] * 4 and len(set(digests)) == 4
    compare(c, job, lambda r: cohorts.weighted(Stream(SEED, SELECT, r, 0), SIZES, 3), 4)


def test_weighted_knows_skewed_clients_before_the_first_round(cluster):
    """How many samples a client has follows from labels, which daemons alone have. One model for 1, 2 and 4 of them."""
    digests = []
    for n in (1, 2, 4):
        c = cluster(n)
        c.wait_daemons(n)
        digests.append(c.run_job(rounds=3, data={'partition': 'dirichlet', 'clients': 30, 'alpha': 0.2}, selection={'kind': 'weighted', 'clients': 8})[1])
        c.close()
    assert digests[0] == digests[1] == digests[2]


def test_weighted_sites(cluster):
    """Partition local: a site with most of the samples is in most of the rounds."""
    c = cluster(0)
    for i, n in ((1, 40), (2, 2000), (3, 40)):
        c.start_daemon('site-%d' % i, data=['tiny=synthetic:1,8,8:4:%d:40:%d' % (n, i)])
    c.wait_daemons(3)
    job, _ = c.run_job(rounds=12, data={'partition': 'local', 'clients': None},
                       selection={'kind': 'weighted', 'clients': 1, 'daemons': {'min': 3}})
    rounds = c.rounds(job)
    assert {r['clients'] for r in rounds} == {1} and sum(r['samples'] == 2000 for r in rounds) >= 9


TRACE = """client,duration,on
0,30,
1,4,
2,5,0-20
3,6,
4,1.5,50-99
5,40,
6,2,
"""


def trace_job(**changes):
    return h.job_doc(model='logistic', seed=SEED, rounds=3, data=UNEVEN, training=TRAINING, time='virtual',
                     trace={'file': 'phones.csv', 'day': '100s'}, selection={'clients': 3, 'over': 1.7}, **changes)


def expected_turns(rounds):
    """From the trace by hand: six of those who are on are drawn, and the first three of them to be done take part."""
    on = {2: (0, 20), 4: (50, 99)}
    durations = [30, 4, 5, 6, 1.5, 40, 2]
    time, turns = 0.0, []
    for r in range(1, rounds + 1):
        there = [k for k in range(7) if k not in on or on[k][0] <= time % 100 < on[k][1]]
        drawn = [there[i] for i in cohorts.uniform(Stream(SEED, SELECT, r, 0), len(there), 6)]
        in_time = [k for k in drawn if k not in on or time % 100 + durations[k] <= on[k][1]]
        kept = sorted(in_time, key=lambda k: (durations[k], k))[:3]
        turns.append((time, time + max(durations[k] for k in kept), sorted(kept)))
        time = turns[-1][1]
    return turns


def test_virtual_time_follows_a_trace(two_daemons):
    c = two_daemons
    c.write('phones.csv', b'\xef\xbb\xbf' + TRACE.replace('\n', '\r\n').encode())  # as Excel writes it
    path = c.write('traced.yaml', h.yaml_of(trace_job()))
    c.mfl('check', path)
    job = c.mfl_json('submit', path)['job']
    c.wait_job(job, 60)
    turns = expected_turns(3)
    rounds = c.mfl_json('show', job)['rounds']
    assert [(r['virtual_start'], r['virtual_end'], r['clients']) for r in rounds] == [(a, b, len(v)) for a, b, v in turns]
    compare(c, job, lambda r: turns[r - 1][2], 3)
    assert 'VIRTUAL' in c.mfl('show', job).stdout
    table = list(csv.DictReader(io.StringIO(c.mfl('pull', job, '--format', 'csv', '-o', '-').stdout)))
    assert [float(row['virtual_end']) for row in table] == [t[1] for t in turns]
    assert 'client,duration,on' in c.mfl('show', job).stdout  # the table is a part of the job


@pytest.mark.parametrize('change, why', [
    (('6,2,\n', ''), 'line 7: the trace ends without client 6; each of the 7 clients needs a line'),
    (('6,2,', '7,2,'), 'line 8: client 7 is unknown: the population has 7, numbered from 0'),
    (('0-20', '0-20;10-30'), "line 4: on '10-30': spans must ascend, each after the end of the one before"),
    ((TRACE, ''), 'line 1: the trace is empty'),
    (('6,2,', '6,2\0,'), 'line 8: byte 0x00: a table is plain ASCII text, with LF or CR LF at the end of each line'),
    (('\n', '\r'), 'line 1: byte 0x0d: a table is plain'),
])
def test_a_bad_trace_is_refused_with_its_line(folder, change, why):
    with open(folder + '/phones.csv', 'wb') as f:
        f.write(TRACE.replace(*change).encode())
    with open(folder + '/j.yaml', 'w', encoding='ascii') as f:
        f.write(h.yaml_of(trace_job()))
    doc = h.yaml_of(trace_job()).splitlines()
    at = 1 + next(i for i, line in enumerate(doc) if 'phones.csv' in line)
    assert 'j.yaml:%d: trace: phones.csv: ' % at + why in h.mfl('check', 'j.yaml', cwd=folder, status=5).stderr
    with open(folder + '/j.yaml', 'w', encoding='ascii') as f:
        f.write(h.yaml_of(trace_job()).replace('phones', 'none'))
    assert 'none.csv' in h.mfl('check', 'j.yaml', cwd=folder, status=5).stderr


@pytest.mark.parametrize('beside, why', [
    ('sigma: 1', 'trace.sigma: a table of a file has no setting but day'),
    ('online: {a: 1}', 'trace.online: a table of a file has no setting but day'),
    ('csv: client', 'trace.csv: a table of a file has no setting but day'),
    ('day: {a: 1}', 'trace.day: must be a single value'),
    ('day: soon', 'trace.day: expected a duration'),
])
def test_what_is_wrong_beside_a_file_has_the_users_line(folder, beside, why):
    with open(folder + '/phones.csv', 'w', encoding='ascii') as f:
        f.write(TRACE)
    job = trace_job()
    job.pop('trace')
    with open(folder + '/j.yaml', 'w', encoding='ascii') as f:
        f.write('trace:\n  file: phones.csv\n  %s\n' % beside + h.yaml_of(job))
    assert 'j.yaml:3: ' + why in h.mfl('check', 'j.yaml', cwd=folder, status=5).stderr


def test_a_job_file_with_a_trace_may_mark_its_end(folder):
    with open(folder + '/phones.csv', 'w', encoding='ascii') as f:
        f.write(TRACE)
    with open(folder + '/j.yaml', 'w', encoding='ascii') as f:
        f.write('---\n%s...\n# the end\n' % h.yaml_of(trace_job()))
    h.mfl('check', 'j.yaml', cwd=folder)


# Of 40 clients with 10 samples each, in a model with a large spread.
MANY = {'data': {'clients': 40}, 'time': 'virtual', 'trace': {'sigma': 1.2, 'mu': 0, 'speed': 100},
        'training': TRAINING, 'checkpoints': {'keep': 100}, 'seed': SEED, 'rounds': 12}


def remembered(c, job, rounds):
    """(what was known before the round, who counted in it) of each round."""
    before, threshold = [cohorts.Row((0, 0, 0, 0))] * 40, 30
    for r in range(1, rounds + 1):
        rows, after = cohorts.memory(c, job, r)
        yield r, before, threshold, [k for k in range(40) if rows[k].round == r]
        before, threshold = rows, after


def digests_alike(cluster, job, n=(1, 4)):
    digests = []
    for k in n:
        c = cluster(k)
        c.wait_daemons(k)
        digests.append(c.run_job(60, **job)[1])
        c.close()
    return digests


def test_power_of_choice_is_the_algorithm(two_daemons, cluster):
    c = two_daemons
    job = {**MANY, 'selection': {'kind': 'power-of-choice', 'clients': 5, 'candidates': 12}}
    job.pop('time'), job.pop('trace')
    name, digests = c.run_job(60, **job)
    for r, before, _, counted in remembered(c, name, 12):
        assert counted == cohorts.power_of_choice(SEED, r, [10] * 40, before, 12, 5), r
    rows, _ = cohorts.memory(c, name, 12)
    assert sum(row.times for row in rows) == 60 and not any(row.square for row in rows)
    for r in c.rounds(name):  # the losses of a round are those of its clients
        seen = [row for row in cohorts.memory(c, name, r['round'])[0] if row.round == r['round']]
        assert sum(row.samples for row in seen) == r['samples'] == 50
        assert abs(sum(row.loss for row in seen) / 2 ** 32 / 50 - r['train_loss']) < 1e-9
    assert digests_alike(cluster, job) == [digests] * 2


def test_oort_is_the_algorithm(two_daemons, cluster):
    c = two_daemons
    settings = {'pacer_step': 3}  # so that it moves
    job = {**MANY, 'selection': {'kind': 'oort', 'clients': 6, 'over': 1.3, 'oort': settings}}
    name, digests = c.run_job(60, **job)
    durations = [cohorts.model_duration(SEED, k, 10, 0, 1.2, 100) for k in range(40)]
    moved, time = set(), 0
    rounds = c.rounds(name)
    for r, before, threshold, counted in remembered(c, name, 12):
        drawn = cohorts.oort(SEED, r, [10] * 40, before, threshold, durations, 8)
        assert len(set(drawn)) == 8
        kept, took = cohorts.first(durations, drawn, 6)
        assert counted == kept, r
        assert rounds[r - 1]['virtual_start'] == time / 1e6
        time += took
        assert rounds[r - 1]['virtual_end'] == time / 1e6
        moved.add(threshold)
    assert len(moved) > 1
    assert digests_alike(cluster, job) == [digests] * 2


def test_nobody_is_late_with_the_same_clients(two_daemons):
    """Virtual time without late or absent clients is real time."""
    c = two_daemons
    plain = c.run_job(seed=SEED, rounds=2, selection={'clients': 3})[1]
    traced = c.run_job(seed=SEED, rounds=2, selection={'clients': 3}, time='virtual', trace={'sigma': 0.3})[1]
    assert plain == traced


def test_a_job_without_enough_clients_says_so(two_daemons):
    c = two_daemons
    job = c.submit(rounds=2, time='virtual', trace={'csv': 'client,duration,on\n' + ''.join('%d,5,%d-%d\n' % (k, 10 * k, 10 * k + 8) for k in range(8))})
    reason = c.wait_job(job, 60, state='failed')['reason']
    assert 'round 1: in virtual time, ' in reason and ' of the 8 clients that its quorum needs are on at once' in reason, reason


def test_json_of_a_round_in_real_time(two_daemons):
    job, _ = two_daemons.run_job(rounds=1)
    r = two_daemons.mfl_json('show', job)['rounds'][0]
    assert r['virtual_start'] is None and r['virtual_end'] is None
