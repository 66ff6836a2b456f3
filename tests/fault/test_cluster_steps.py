# SPDX-License-Identifier: Apache-2.0
"""A cluster without a shared directory: kill -9 of its leader and of a follower at each step of a commit, and certificates."""
import shutil
import sqlite3
import time

import pytest

import mfl_certs
import mfl_harness as h
import mfl_wire
from mfl_servers import Servers
from test_cluster import JOB, POINTS, reference  # noqa: F401, pylint: disable=unused-import

pytestmark = pytest.mark.skipif(not shutil.which('etcd'), reason='etcd is not installed (Debian: etcd-server)')
# server/shell/peers.c, server/replica/replica.c: what a follower passes for a round.
FOLLOWER = ['before-peer-write', 'before-fsync', 'after-fsync', 'before-rename', 'after-rename', 'before-db-commit', 'after-db-commit', 'before-unlink']


def test_leader_dies_at_each_step(tmp_path, reference):  # noqa: F811
    """As with a shared directory, now with its files on most disks."""
    with Servers(tmp_path, 3, shared=False) as s:
        job = s.submit(**JOB)
        for k, point in enumerate(POINTS):
            i = s.leader()
            s.servers[i].kill()
            s.start(i, {'MFL_FAULT': '%s:%d:exit' % (point, 2 + k % 3)})
            while s.servers[i].popen.poll() is None:  # whoever else leads makes way, until it is this one's turn
                other = s.find_leader() - 1
                if other in (-1, i):
                    time.sleep(0.05)
                    continue
                s.servers[other].kill()
                s.start(other)
            assert s.servers[i].popen.poll() == h.FAULT_STATUS, point
            s.start(i)
        assert s.digests(job) == reference


def test_follower_dies_at_each_step(tmp_path, reference):  # noqa: F811
    with Servers(tmp_path, 3, shared=False) as s:
        job = s.submit(**dict(JOB, rounds=h.ENDLESS))
        for k, point in enumerate(FOLLOWER):
            s.servers[1].kill()
            s.start(1, {'MFL_FAULT': '%s:%d:exit' % (point, 1 + k % 3)})
            assert s.servers[1].wait(40) == h.FAULT_STATUS, point
            s.start(1)
            at = s.info(job)['round']
            s.wait_round(job, at + 1)
        assert s.leader() == 0
        s.wait_round(job, len(reference))
        with s.operator() as o:
            o.request('stop_job', {'job': job})
            h.wait_until(lambda: h.STATES[o.info(job)['state']] == 'stopped', 20, 'the end')
        rows = sqlite3.connect('file:%s/mfl.db?mode=ro' % s.state_dir(0), uri=True)  # a server lists the newest 1,000 rounds only
        assert [d.hex() for (d,) in rows.execute('SELECT digest FROM rounds ORDER BY round LIMIT ?', (len(reference),))] == reference
        rows.close()
        h.wait_until(s.same_files(job, 0, 1), 30, 's1 to have all')


def test_with_tls(tmp_path, reference):  # noqa: F811
    """Servers with certificates of their own; the leader dies. One whose certificate is another server's may give no files."""
    ca = mfl_certs.Ca(str(tmp_path / 'ca'))
    ca.pairs = {'s%d' % i: ca.issue('s%d' % i, ['relay'], san='DNS:localhost,IP:127.0.0.1') for i in range(3)}
    ca.pairs.update(d1=ca.issue('d1', ['daemon']), ann=ca.issue('ann', ['operator']))
    with Servers(tmp_path, 3, shared=False, ca=ca) as s:
        job = s.submit(**JOB)
        s.wait_round(job, 2)
        with mfl_wire.Connection(s.addresses[0], 10, ca.python(ca.pairs['s1'])) as c:
            c.send('hello', mfl_wire.hello('ROLE_SERVER', name='s2', protocol_min=8, protocol_max=8))
            with pytest.raises(mfl_wire.Closed, match='s1'):
                c.expect('welcome')
        with mfl_wire.Connection(s.addresses[0], 10, ca.python(ca.pairs['d1'])) as c:
            c.send('hello', mfl_wire.hello('ROLE_SERVER', name='s2', protocol_min=8, protocol_max=8))
            with pytest.raises(mfl_wire.Closed):
                c.expect('welcome')
        s.servers[0].kill()
        assert s.digests(job) == reference
        h.wait_until(s.same_files(job, 1, 2), 30, 'that both have the same files')
