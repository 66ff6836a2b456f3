# SPDX-License-Identifier: Apache-2.0
"""Every strategy on several servers: its leader is killed in the middle of the job, or the job moves to another server. The digests are those of one
server. The ordinary run has a sample; with MFL_CELLS=all, at night, each strategy is killed and moved."""
import os
import shutil
import subprocess
import zlib

import pytest

import mfl_harness as h
from mfl_servers import Servers
from mfl_strategies import STRATEGIES, settings_of

WHOLE = os.environ.get('MFL_CELLS') == 'all'
SAMPLE = 12  # one of so many runs in the ordinary run
LENGTHS = (16, 64, 256)  # rounds; more if a job has ended before its leader was killed, or before it has moved


def chosen(what):
    return [s for s in STRATEGIES if WHOLE or zlib.crc32((what + s).encode()) % SAMPLE == 0]


def job_of(strategy, rounds):
    return {'data': {'partition': 'dirichlet', 'clients': 7, 'alpha': 0.5, 'min_samples': 3}, 'rounds': rounds, 'name': strategy, **settings_of(strategy)}


@pytest.fixture(scope='module')
def expected(tmp_path_factory):
    """Of a server alone."""
    known = {}
    with h.Cluster(tmp_path_factory.mktemp('alone')) as c:
        c.start_server()
        c.start_daemon()

        def get(strategy, rounds):
            if (strategy, rounds) not in known:
                known[strategy, rounds] = c.run_job(60, **job_of(strategy, rounds))[1]
            return known[strategy, rounds]
        yield get


@pytest.fixture(scope='module')
def servers(tmp_path_factory):
    with Servers(tmp_path_factory.mktemp('servers'), 3, shared=False) as s:
        yield s


@pytest.mark.skipif(not shutil.which('etcd'), reason='etcd is not installed (Debian: etcd-server)')
@pytest.mark.parametrize('strategy', chosen('killed'))
def test_leader_killed(servers, expected, strategy):
    """Models lie on most disks; whoever leads after it goes on from what has been committed."""
    for rounds in LENGTHS:
        job = servers.submit(**job_of(strategy, rounds))
        at = servers.wait_round(job, 2)['round']
        leader = servers.leader()
        servers.servers[leader].kill()
        digests = servers.digests(job)
        servers.start(leader)
        if at < rounds:
            assert digests == expected(strategy, rounds)
            return
    raise AssertionError('%s ends before anything can be killed' % strategy)


@pytest.fixture(scope='module')
def pair(tmp_path_factory):
    """Two servers that know nothing of each other, and a daemon that knows both."""
    with h.Cluster(tmp_path_factory.mktemp('a')) as a, h.Cluster(tmp_path_factory.mktemp('b')) as b:
        a.start_server()
        b.start_server()
        a.start_daemon(server=a.address + ',' + b.address)
        yield a, b


@pytest.mark.parametrize('strategy', chosen('moved'))
def test_moved(pair, expected, strategy):
    """There, or back: the daemon is where the last job was."""
    a, b = pair
    if b.mfl_json('daemons')['daemons']:
        a, b = b, a
    for rounds in LENGTHS:
        job = a.submit(**job_of(strategy, rounds))
        a.wait_info(job, lambda i: i['round'] >= 2, 60, 'two rounds')
        done = subprocess.run([h.program('mfl'), 'move', job, '--server', a.address, '--to', b.address, '--json'], capture_output=True, text=True,
                              timeout=60, check=False)
        if done.returncode:  # it has ended
            assert h.STATES[a.info(job)['state']] == 'done', done
            continue
        there = a.info(job)['reason'].rsplit(' ', 1)[1]
        b.wait_job(there, 60)
        assert b.digests(there) == expected(strategy, rounds)
        return
    raise AssertionError('%s ends before it can move' % strategy)
