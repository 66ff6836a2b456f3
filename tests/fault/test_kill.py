# SPDX-License-Identifier: Apache-2.0
"""kill -9 of daemons and of the server at any moment: the job goes on by itself and ends with the same model."""
import shutil
import time

import pytest

import mfl_harness as h

# Rounds long enough to be hit in their middle.
JOB = {'training': {'steps': 40, 'epochs': None}}


@pytest.fixture(scope='module')
def round_seconds(shared_cluster):
    c = shared_cluster(1)
    c.run_job(**dict(JOB, rounds=1))
    start = time.monotonic()
    c.run_job(**dict(JOB, rounds=3))
    c.close()
    return (time.monotonic() - start) / 3


def wait_mid_round(c, job, number, daemons=1):
    c.wait_info(job, lambda i: i['in_round'] >= number and i['phase'] == 'train' and i['daemons'] >= daemons, 20,
                'round %d' % number)


def test_killed_daemon_is_replaced(cluster):
    """One of two dies in mid-round; its clients go to the other, and a new one under its name takes part again."""
    c = cluster(2)
    c.wait_daemons(2)
    job = c.begin(**JOB)
    wait_mid_round(c, job, 2, 2)
    c.daemons['d2'].kill()
    c.start_daemon('d2')
    at = c.info(job)['in_round']
    wait_mid_round(c, job, at + 1, 2)
    c.finish(job, **JOB)


def test_last_daemon_dies(cluster):
    """Without any daemon the job waits, says so, and goes on when one comes. Three times."""
    c = cluster(1, config={'reconnect_grace': '300ms'})
    job = c.begin(**JOB)
    for number in (1, 3, 5):
        wait_mid_round(c, job, number)
        c.daemons['d1'].kill()
        info = c.wait_info(job, lambda i: i['reason'], 10, 'a reason')
        assert 'daemon' in info['reason']
        c.start_daemon('d1')
    c.finish(job, **JOB)


def test_daemons_killed_at_random(cluster):
    """Ten times one of three dies at a seeded moment; another takes its place at once."""
    c = cluster(3)
    c.wait_daemons(3)
    rng = h.seeded('daemons')
    job = c.begin(**JOB)
    for _ in range(10):
        name = rng.choice(['d1', 'd2', 'd3'])
        time.sleep(rng.random() * 0.3)
        c.daemons[name].kill()
        c.start_daemon(name)
    c.finish(job, **JOB)


def test_server_killed_at_random(cluster, round_seconds):
    """Twelve times the server dies at a seeded moment, so that some fall into uploads and commits. Daemons stay; their
    finished work is not lost."""
    c = cluster(2)
    c.wait_daemons(2)
    rng = h.seeded('server')
    job = c.begin(**JOB)
    for _ in range(12):
        time.sleep(rng.random() * 1.2 * round_seconds)
        c.server.kill()
        c.start_server()
    c.finish(job, **JOB)
    assert all(d.alive() for d in c.daemons.values())


def test_state_directory_lost(cluster):
    """A server that starts with an empty directory at the same port gives its job the id of the one that the daemons are at,
    and the same params to begin with. Nothing of that one gets into it, and nothing hangs."""
    # A step takes longer than the new job waits for daemons, so that they are still at the old one when it begins.
    slow = {'model': {'layers': ['flatten', {'dense': {'units': 3000}}, 'relu', {'dense': {'units': 4}}]},
            'data': {'clients': 2}, 'rounds': 1, 'evaluation': {'every': 0}, 'limits': {'deadline': '600s'}}
    c = cluster(2)
    c.wait_daemons(2)
    job = c.submit(training={'batch': 200, 'epochs': 2}, **slow)
    wait_mid_round(c, job, 1, 2)
    c.server.kill()
    shutil.rmtree(c.state_dir)
    c.start_server()
    again, digests = c.run_job(training={'batch': 200, 'epochs': 1}, **slow)
    assert again == job == 'j-000001'
    assert c.run_job(training={'batch': 200, 'epochs': 1}, **slow)[1] == digests
    assert all(d.alive() for d in c.daemons.values())


def test_everything_killed(cluster):
    """Power goes: all processes at once, twice."""
    c = cluster(2)
    c.wait_daemons(2)
    job = c.begin(**JOB)
    for number in (2, 4):
        wait_mid_round(c, job, number)
        for p in (c.server, *c.daemons.values()):
            p.kill()
        c.start_server()
        for name in ('d1', 'd2'):
            c.start_daemon(name)
    c.finish(job, **JOB)


def test_server_killed_in_mid_upload(cluster):
    """Ten times the server dies when a seeded number of an upload's bytes has passed. The daemon keeps its result: it is
    trained once, and sent until it is counted."""
    c = cluster(1, backend='cpu')
    # 1.03 million parameters: an update of 8.3 MB in several chunks.
    big = {'model': {'layers': ['flatten', {'dense': {'units': 480}}, 'relu', {'dense': {'units': 2068}}, 'relu',
                                {'dense': {'units': 4}}]},
           'training': {'steps': 2, 'epochs': None, 'batch': 2}, 'rounds': 1, 'evaluation': {'every': 0}}
    job, digests = c.run_job(**big)
    size = c.rounds(job)[0]['bytes_up']
    assert size > 8e6
    assert c.daemons['d1'].stop() == 0
    proxy = h.Proxy(c.address, on_cut=lambda: c.server.popen.kill())
    try:
        c.start_daemon('d2', backend='cpu', server=proxy.address)
        c.wait_daemons(1)
        rng = h.seeded('upload')
        proxy.cuts.append(proxy.bytes_up + rng.randrange(2000, size))
        job = c.submit(**big)
        for i in range(10):
            assert c.server.wait(20) == -9
            if i < 9:
                proxy.cuts.append(proxy.bytes_up + rng.randrange(2000, size))
            c.server.kill()
            c.start_server()
        c.wait_job(job)
        assert c.digests(job) == digests
        assert proxy.n_cut == 10
    finally:
        proxy.close()
