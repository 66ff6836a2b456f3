# SPDX-License-Identifier: Apache-2.0
"""One job gives one model, bit for bit: whoever trains which client, in whatever order the updates come."""
import glob
import os

import pytest

import mfl_harness as h

# 13 clients of unequal shares over up to 4 daemons: no number of daemons divides them evenly.
JOB = {'rounds': 3, 'data': {'partition': 'dirichlet', 'clients': 13, 'alpha': 0.5, 'min_samples': 3}}


def run_mfl(directory, daemons, threads=1, backend='reference', **changes):
    """`mfl run`: its own server and daemons. Returns the digest of the model file that it left."""
    job = os.path.join(directory, 'job-%d.yaml' % daemons)
    out = os.path.join(directory, 'out-%d' % daemons)
    with open(job, 'w', encoding='utf-8') as f:
        f.write(h.job_text(**changes))
    h.mfl('run', job, '--daemons', daemons, '--threads', threads, '--backend', backend, '--data', h.TINY, '--out', out,
          cwd=directory)
    models = glob.glob(out + '/**/*.safetensors', recursive=True)
    assert models, os.listdir(out)
    return {h.params_digest(m) for m in models}


@pytest.fixture(scope='module')
def expected(shared_cluster):
    """Digests of every round, from one daemon with one worker."""
    return shared_cluster(1).run_job(**JOB)[1]


@pytest.mark.parametrize('daemons,workers', [(1, 2), (2, 1), (2, 2), (4, 1), (4, 2)])
def test_daemons_and_workers(cluster, expected, daemons, workers):
    c = cluster(daemons, workers=workers)
    c.wait_daemons(daemons)
    assert c.run_job(**JOB)[1] == expected
    assert len({r['daemons'] for r in c.rounds('j-000001')} - {1}) > 0 or daemons == 1  # they did share the work


@pytest.mark.parametrize('assign', ['speed', 'modulo'])
def test_assignment(cluster, expected, assign):
    """Daemons of unequal numbers of workers, one of them on a slow line; rounds 1 and 2 are stored while the next one is
    trained."""
    c = cluster(0)
    proxy = h.Proxy(c.address, delay=0.05)
    try:
        c.start_daemon('a', workers=2)
        c.start_daemon('b', workers=1, server=proxy.address)
        c.start_daemon('c', workers=1)
        c.wait_daemons(3)
        job, digests = c.run_job(selection={'assign': assign}, evaluation={'every': 0}, **JOB)
        assert digests == expected
        assert assign == 'speed' or {r['daemons'] for r in c.rounds(job)} == {3}
    finally:
        proxy.close()


def test_seed_matters(shared_cluster, expected):
    assert shared_cluster(1).run_job(seed=8, **JOB)[1][-1] != expected[-1]


@pytest.mark.parametrize('daemons', [1, 3])
def test_run_alone(folder, expected, daemons):
    assert expected[-1] in run_mfl(folder, daemons, **JOB)


def test_staggered_daemons(cluster, expected):
    """The second and third daemon come while the job runs; their numbers of workers differ."""
    c = cluster(1, workers=2)
    job = c.begin(**JOB)
    for i, workers in ((2, 1), (3, 2)):
        c.wait_info(job, lambda info: info['round'] > 0, 20, 'a round')
        c.start_daemon('late-%d' % i, workers=workers)
        c.wait_daemons(i)
    c.finish(job, **JOB)
    assert c.digests(job)[:3] == expected[:3]


@pytest.mark.parametrize('delays', [(0, 0.02, 0.05), (0.05, 0, 0.02)])
def test_delayed_updates(cluster, expected, delays):
    """Three daemons on lines of different speed: updates arrive, and overlap, in different orders."""
    c = cluster(0)
    proxies = [h.Proxy(c.address, delay=d) for d in delays]
    try:
        for i, proxy in enumerate(proxies):
            c.start_daemon('d%d' % i, server=proxy.address)
        c.wait_daemons(3)
        assert c.run_job(**JOB)[1] == expected
        assert max(r['daemons'] for r in c.rounds('j-000001')) == 3
    finally:
        for proxy in proxies:
            proxy.close()


@pytest.mark.parametrize('partition', [
    {'partition': 'shards', 'shards': 2, 'clients': 10, 'alpha': None, 'min_samples': None},
    {'partition': 'iid', 'clients': 7, 'alpha': None, 'min_samples': None},
    {'partition': 'dirichlet', 'clients': 6, 'alpha': 0.1, 'min_samples': 1},
])
def test_partitions(cluster, partition):
    digests = []
    for daemons in (1, 3):
        c = cluster(daemons)
        c.wait_daemons(daemons)
        digests.append(c.run_job(data=partition, selection={'clients': 5}, rounds=2)[1])
        c.close()
    assert digests[0] == digests[1]


def test_cpu_backend(cluster):
    digests = []
    for daemons, workers in ((1, 1), (2, 2)):
        c = cluster(daemons, workers=workers, backend='cpu')
        c.wait_daemons(daemons)
        digests.append(c.run_job(rounds=2)[1])
        c.close()
    assert digests[0] == digests[1]


def test_activations_again(cluster):
    """What is kept of a step and what is computed again is nobody's business but the memory's."""
    c = cluster(1, workers=2, backend='cpu')
    c.wait_daemons(1)
    found = [c.run_job(rounds=2, training={'momentum': 0.9, 'fuse': 4, 'accumulate': 2, 'checkpointing': n})[1]
             for n in ('off', 'auto', 3)]
    assert found[0] == found[1] == found[2]
    assert any('in 3 segments that are computed again' in d.log() for d in c.daemons.values())


@pytest.mark.parametrize('backend', ['reference', 'cpu'])
def test_fused(cluster, backend):
    """Any number of clients trained at once, on any number of daemons, whose clients come in any order."""
    training = {'momentum': 0.9, 'fuse': None}
    found = {}
    for daemons, workers, fuse, assign in ((1, 1, 1, 'speed'), (1, 2, 8, 'speed'), (2, 1, 3, 'modulo'), (3, 1, 64, 'speed'),
                                           (2, 2, 2, 'speed')):
        c = cluster(daemons, workers=workers, backend=backend)
        c.wait_daemons(daemons)
        found[(daemons, fuse)] = c.run_job(training=dict(training, fuse=fuse), selection={'assign': assign}, **JOB)[1]
        c.close()
    assert len(set(map(tuple, found.values()))) == 1, found


def test_local_data(cluster):
    """Partition local: the names and data of the daemons are part of the job, the order in which they come is not."""
    digests = []
    for order in ((1, 2, 3), (3, 1, 2)):
        c = cluster(0)
        for i in order:
            c.start_daemon('site-%d' % i, data=['tiny=synthetic:1,8,8:4:%d:40:%d' % (100 + 50 * i, i)])
        c.wait_daemons(3)
        job, got = c.run_job(data={'partition': 'local', 'clients': None}, selection={'daemons': {'min': 3}})
        digests.append(got)
        assert [r['clients'] for r in c.rounds(job)] == [3, 3, 3]
        assert [r['weight'] for r in c.rounds(job)] == [150 + 200 + 250] * 3
        c.close()
    assert digests[0] == digests[1]


NORTH, SOUTH = 'tiny=synthetic:1,8,8:4:150:40:1', 'tiny=synthetic:1,8,8:4:250:40:2'
SITES = {'data': {'partition': 'local', 'clients': None}, 'selection': {'daemons': {'min': 2}}}


def test_a_site_is_one_client(cluster):
    """Site north of one daemon, and of two, of which one is killed: one model. The daemons' names are not part of the job."""
    c = cluster(0)
    c.start_daemon('x', data=[NORTH], more=['--site', 'north'])
    c.start_daemon('y', data=[SOUTH], more=['--site', 'south'])
    c.wait_daemons(2)
    job, digests = c.run_job(**SITES, rounds=4)
    assert [r['clients'] for r in c.rounds(job)] == [2] * 4
    with c.operator() as o:
        assert {d['name']: d['site'] for d in o.daemons()} == {'x': 'north', 'y': 'south'}
    c.close()
    c = cluster(0)
    for name, data, site in (('n1', NORTH, 'north'), ('n2', NORTH, 'north'), ('s', SOUTH, 'south')):
        c.start_daemon(name, data=[data], more=['--site', site])
    c.wait_daemons(3)
    job = c.begin(**SITES)
    c.wait_info(job, lambda i: i['round'] >= 2, 30, 'two rounds')
    c.daemons['n1'].kill()
    again = c.finish(job, **SITES)
    assert c.digests(again)[:4] == digests[:len(c.digests(again))]
    assert {r['clients'] for r in c.rounds(job)} == {2}
    assert 'site: north' in c.mfl('daemons').stdout
    c.close()


def test_a_site_has_one_data_set(cluster):
    c = cluster(0)
    c.start_daemon('n1', data=[NORTH], more=['--site', 'north'])
    c.wait_daemons(1)
    bad = c.start_daemon('n2', data=[SOUTH], more=['--site', 'north'])
    words = 'site north: data set tiny of daemon n2 differs from that of daemon n1'
    h.wait_until(lambda: words in bad.log() and words in c.server.log(), 10, 'the refusal')
    bad.kill()
    c.close()


def test_jobs_at_once_on_shared_daemons(cluster, expected):
    c = cluster(2)
    c.wait_daemons(2)
    alone = c.run_job(seed=21, rounds=2)[1]
    jobs = [c.submit(**JOB), c.submit(seed=21, rounds=2), c.submit(**JOB)]
    for job in jobs:
        c.wait_job(job, 60)
    assert [c.digests(job) for job in jobs] == [expected, alone, expected]


def test_jobs_at_once_on_disjoint_daemons(cluster, expected):
    """Each data set lives on daemons of its own."""
    c = cluster(2)
    c.start_daemon('o1', data=['other=synthetic:1,8,8:4:400:80:2'])
    c.start_daemon('o2', data=['other=synthetic:1,8,8:4:400:80:2'])
    c.wait_daemons(4)
    jobs = [c.submit(**JOB), c.submit(data={'name': 'other'}, rounds=2)]
    for job in jobs:
        c.wait_job(job)
    assert c.digests(jobs[0]) == expected
    assert c.digests(jobs[1]) == c.run_job(data={'name': 'other'}, rounds=2)[1]
