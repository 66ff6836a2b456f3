# SPDX-License-Identifier: Apache-2.0
"""Several servers on etcd: whatever happens to the one that leads, another one goes on, and the job's rounds are those of one server."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import mfl_harness as h
import mfl_serve
import mfl_wire
from mfl_servers import Servers, free_port

pytestmark = pytest.mark.skipif(not shutil.which('etcd'), reason='etcd is not installed (Debian: etcd-server)')
JOB = {'model': 'logistic', 'aggregation': {'strategy': 'fedadam'}, 'checkpoints': {'keep': 1},
       'data': {'partition': 'dirichlet', 'clients': 4, 'alpha': 1.0}, 'training': {'lr': 0.05, 'momentum': 0.9}, 'rounds': 12}
AWAY_S = 60
# common/base/fs.h, server/store/store.h, server/cluster/cluster_commit.c: what a commit of the leader passes.
POINTS = [when + '-' + step for step in ('fsync', 'cluster-blob', 'cluster-txn', 'db-commit', 'unlink') for when in ('before', 'after')]


@pytest.fixture(scope='module')
def reference(tmp_path_factory):
    """The digests of one server without a cluster."""
    with h.Cluster(tmp_path_factory.mktemp('alone')) as c:
        c.start_server()
        c.start_daemon()
        c.wait_daemons(1)
        job = c.submit(**JOB)
        c.wait_job(job, 60)
        return c.digests(job)


def test_leader_dies_at_each_step_of_a_commit(tmp_path, reference):
    with Servers(tmp_path) as s:
        job = s.submit(**JOB)
        for k, point in enumerate(POINTS):
            i = s.leader()
            s.servers[i].kill()
            # It comes back as a follower, and dies when it leads again and commits.
            s.start(i, {'MFL_FAULT': '%s:%d:exit' % (point, 2 + k % 3)})
            other = 1 - i
            h.wait_until(lambda: s.find_leader() == other + 1 or s.servers[i].popen.poll() is not None, 20, 'the other one')
            s.servers[other].kill()
            h.wait_until(lambda: s.servers[i].popen.poll() is not None, 30, 'the fault at ' + point)
            assert s.servers[i].popen.poll() == h.FAULT_STATUS, point
            s.start(other)
            s.start(i)
        assert s.digests(job) == reference


def test_stopped_leader_wakes_and_commits_nothing(tmp_path, reference):
    with Servers(tmp_path) as s:
        job = s.submit(**JOB)
        s.wait_round(job, 2)
        old = s.leader()
        os.kill(s.servers[old].pid, signal.SIGSTOP)
        began = time.monotonic()
        h.wait_until(lambda: 'leads, term' in s.log('s%d' % (1 - old)), 20, 'the other one')
        took = time.monotonic() - began
        os.kill(s.servers[old].pid, signal.SIGCONT)
        h.wait_until(lambda: 'leads no longer' in s.log('s%d' % old), 20, 'that it notices')
        assert s.digests(job) == reference
        assert s.servers[old].alive() and s.leader() == 1 - old
        print('another server led after %.1f s' % took)


def test_etcd_is_away_for_a_while(tmp_path, reference):
    with Servers(tmp_path) as s:
        job = s.submit(**JOB)
        s.wait_round(job, 2)
        s.etcd.kill()
        h.wait_until(lambda: 'leads no longer' in s.log('s0'), 20, 'that the lease is over')
        end = time.monotonic() + AWAY_S
        while time.monotonic() < end:  # thirty leases
            assert s.find_leader() == 0
            time.sleep(1)
        s.etcd.start()
        assert s.digests(job) == reference


def test_states_of_clients_survive(tmp_path):
    """What clients keep at the server lies in a file that only the leader writes: another server goes on with it."""
    settings = dict(JOB, aggregation={'strategy': 'scaffold'}, training={'lr': 0.05}, rounds=6)
    with h.Cluster(tmp_path / 'alone') as c:
        c.start_server()
        c.start_daemon()
        c.wait_daemons(1)
        expected = c.submit(**settings)
        c.wait_job(expected, 60)
        expected = c.digests(expected)
    with Servers(tmp_path) as s:
        job = s.submit(**settings)
        s.wait_round(job, 2)
        s.servers[0].kill()
        assert s.digests(job) == expected
        assert s.leader() == 1


def test_held_update_is_not_trained_again(tmp_path):
    """The leader dies while the daemon trains: the next one gives the same work as a new task, and counts what was trained for the old."""
    with Servers(tmp_path, daemon=False) as s:
        s.start_daemon(more=('--log-level', 'debug'))
        h.wait_until(lambda: 'connected to ' + s.addresses[0] in s.log('d1'), 20, 'the daemon')
        job = s.submit(**dict(JOB, data={'clients': 1}, training={'steps': 3000, 'epochs': None}, rounds=1))
        begun = 'train round 1 of ' + job
        h.wait_until(lambda: begun in s.log('d1'), 20, 'the training')
        s.servers[0].kill()
        s.digests(job)
        assert s.leader() == 1
        log = s.log('d1')
        assert log.count(begun) == 1 and re.search(r'task \d+ is what task \d+ was', log), log[-3000:]


def test_join_and_leave(tmp_path, reference):
    """A server's own directory becomes a cluster's, and that of one server again, in the middle of a job."""
    alone = {'state_dir': str(tmp_path / 's0')}
    with h.Cluster(tmp_path / 'before', alone) as c:
        c.state_dir = alone['state_dir']
        c.start_server()
        c.start_daemon()
        c.wait_daemons(1)
        job = c.submit(**JOB)
        c.wait_info(job, lambda i: i['round'] >= 2, 30, 'two rounds')
    with Servers(tmp_path, 0, daemon=False) as s:
        s.addresses, s.servers = ['127.0.0.1:%d' % free_port() for _ in range(2)], [None] * 2
        server = h.program('mfl-server')
        early = subprocess.run([server, '--config', s.config(0)], capture_output=True, text=True, timeout=30, check=False)
        assert early.returncode == 78 and '--join-cluster' in early.stderr, early
        subprocess.run([server, '--config', s.config(0), '--join-cluster'], check=True, timeout=60)
        s.start(0)
        s.leader()
        s.start(1)
        s.start_daemon()
        seen = s.wait_round(job, 4)['round']
        h.wait_until(lambda: os.path.exists(os.path.join(s.state_dir(1), 'jobs', job, 'round-%06d.safetensors' % seen)) or
                     s.info(job)['round'] > seen, 20, 'the follower')
        busy = subprocess.run([server, '--config', s.config(1), '--leave'], capture_output=True, text=True, timeout=30, check=False)
        assert busy.returncode == 1 and 'leads the cluster' in busy.stderr, busy
        for process in s.servers + [s.daemon]:
            process.kill()
        h.wait_until(lambda: subprocess.run([server, '--config', s.config(1), '--leave'], timeout=60, check=False).returncode == 0,
                     20, 'the lease of the dead leader')
    with h.Cluster(tmp_path / 'after', {'state_dir': str(tmp_path / 's1')}) as c:
        c.state_dir = str(tmp_path / 's1')
        c.start_server()
        c.start_daemon()
        c.wait_job(job, 60)
        assert c.digests(job) == reference


# ---- without a shared directory: models on most servers' disks ----

def test_models_lie_on_most_disks(tmp_path, reference):
    """One server dies after the other, disk and all, and what it had is on the others."""
    with Servers(tmp_path, 3, shared=False) as s:
        job = s.submit(**dict(JOB))
        s.wait_round(job, 2)
        s.servers[0].kill()
        shutil.rmtree(s.state_dir(0))
        s.wait_round(job, 5)
        s.start(0)  # an empty disk: it brings everything
        h.wait_until(lambda: s.models(0, job), 12, 'the files of s0')
        other = s.leader()
        s.servers[other].kill()
        assert s.digests(job) == reference
        s.start(other)
        h.wait_until(lambda: s.models(0, job) == s.models(1, job) == s.models(2, job) != set(), 30, 'that all have the same files')


def test_full_slow_and_damaged_disks(tmp_path, reference):
    """s1's disk is full for a while, then s2 stands still, then s1's files are garbage: the others go on, it is said, and it is mended."""
    with Servers(tmp_path, 3, shared=False, env={1: {'MFL_FAULT': 'before-peer-write:2:enospc'}}) as s:
        job = s.submit(**dict(JOB, rounds=30))
        s.wait_round(job, 3)
        h.wait_until(lambda: 'was not taken: ' in s.log('s1') and 'No space left' in s.log('s1'), 20, 's1 to say why')
        h.wait_until(lambda: 'server s1 does not have a file yet, and is left to catch up' in s.log('s0'), 20, 's0 to say so')
        os.kill(s.servers[2].pid, signal.SIGSTOP)
        at = s.wait_round(job, 4)['round']
        s.wait_round(job, at + 2)  # two of three are enough
        os.kill(s.servers[2].pid, signal.SIGCONT)
        h.wait_until(lambda: s.models(2, job) == s.models(0, job), 20, 's2 to catch up')
        s.servers[1].kill()
        for where, _, files in os.walk(s.state_dir(1)):
            for name in files:
                if name.startswith('round-') or len(name) == 64:
                    with open(os.path.join(where, name), 'r+b') as f:
                        f.write(b'garbage!')
        s.start(1)
        s.servers[0].kill()
        digests = s.digests(job)
        assert len(digests) == 30 and digests[:len(reference)] == reference
        h.wait_until(lambda: s.models(1, job) == s.models(2, job) != set(), 30, 'that both have the same files')


class Liar(threading.Thread):
    """A server of the list that takes files and never has them, and gives files without an end; drips: of the right size, but a byte at a time."""

    def __init__(self, drips):
        super().__init__(daemon=True)
        self.drips, self.sizes = drips, {}
        self.listener = socket.create_server(('127.0.0.1', 0))
        self.asked = set()
        self.start()

    def run(self):
        while True:
            try:
                sock = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def serve(self, sock):
        c = mfl_wire.Connection.__new__(mfl_wire.Connection)
        c.sock, c.timeout, c.buffer, c.bye = sock, 100, bytearray(), ''
        try:
            while True:
                kind, body, request, _ = c.recv()
                self.asked.add(kind)
                if kind == 'put_file':
                    self.sizes[body['sha256']] = body['bytes']
                if kind == 'hello':
                    c.send('welcome', {'protocol': 8, 'software': 'liar', 'heartbeat_ms': 500, 'dead_ms': 5000})
                elif kind == 'get_file' and self.drips and body['sha256'] in self.sizes:
                    time.sleep(1)
                    c.send('file_piece', {'bytes': self.sizes[body['sha256']], 'data': b'x'}, request)
                else:
                    c.send('file_piece', {} if kind == 'put_file' else {'bytes': 1 << 40, 'data': b'x' * 1000}, request)
        except (OSError, mfl_wire.Closed, TimeoutError):
            pass


@pytest.mark.parametrize('drips,words', [(False, 'its file is not of'), (True, 'it sends pieces of 1 bytes')], ids=['endless', 'drips'])
def test_a_server_that_lies(tmp_path, reference, drips, words):
    """It is left out, and neither endless questions nor endless files keep the others from going on."""
    liar = Liar(drips)
    with Servers(tmp_path, 2, shared=False, first=['liar=127.0.0.1:%d' % liar.listener.getsockname()[1]]) as s:
        job = s.submit(**JOB)
        s.wait_round(job, 2)
        h.wait_until(lambda: 'liar: asks for the same piece again and again' in s.log('s0'), 20, 's0 to say so')
        s.servers[1].kill()
        shutil.rmtree(s.state_dir(1))
        s.start(1)
        assert s.digests(job) == reference
        h.wait_until(lambda: s.models(1, job) == s.models(0, job) != set(), 30, 'the files of s1')
        assert {'put_file', 'get_file'} <= liar.asked
        assert 'server liar is not asked for files for 5 s: liar: ' + words in s.log('s1')
        assert s.servers[0].stop() == 0
    liar.listener.close()


def test_too_few_disks(tmp_path, reference):
    """A leader that is alone with etcd commits nothing, says why, and goes on when another server is back."""
    with Servers(tmp_path, 3, shared=False) as s:
        job = s.submit(**JOB)
        s.wait_round(job, 2)
        for i in (1, 2):
            s.servers[i].kill()
        h.wait_until(lambda: '1 of 3 servers have the file, and 2 are needed' in s.log('s0'), 30, 'the reason')
        at = s.info(job)['round']
        s.start(1)
        s.wait_round(job, at + 1)
        assert s.digests(job) == reference


# ---- others that know the list ----

def test_python_and_a_relay_follow_the_leader(tmp_path, reference):
    """The package and a relay have the list of the servers; the leader dies under both."""
    sys.path.insert(0, os.path.join(h.BUILD, 'python'))
    mfl = pytest.importorskip('mfl')
    with Servers(tmp_path, daemon=False) as s:
        address = '127.0.0.1:%d' % free_port()
        relay = h.Process([h.program('mfl-server'), '--upstream', ','.join(s.addresses), '--name', 'site', '--listen', address, '--exit-with-stdin'],
                          os.path.join(s.dir, 'relay.log'))
        try:
            s.daemon = h.Process([h.program('mfl-client'), '--server', address, '--name', 'd1', '--workers', '1', '--backend', 'reference', '--data',
                                  h.TINY, '--exit-with-stdin'], os.path.join(s.dir, 'd1.log'))
            client = mfl.Client(list(reversed(s.addresses)), plain=True)
            job = client.submit(h.job_text(**JOB))
            s.wait_round(job.job, 2)
            s.servers[s.leader()].kill()
            assert client.wait(job, timeout=120).state == 'done'
            assert s.digests(job.job) == reference
            assert [d.relay for d in client.daemons()] == ['site']
        finally:
            relay.kill()


def test_serve_follows_the_leader(tmp_path):
    """mfl-serve has the list, the one that does not lead first; the leader dies, and rounds of the next one are served."""
    with Servers(tmp_path) as s:
        job = s.submit(**dict(JOB, rounds=h.ENDLESS))
        s.wait_round(job, 2)
        options = ('--server', ','.join(reversed(s.addresses)), '--follow', 'm=' + job)
        with mfl_serve.Serve(tmp_path, config={'cache_dir': str(tmp_path / 'cache')}, options=options) as serve:

            def at():
                return json.loads(serve.get('/v2/models/m')[2])['parameters']['round']
            s.servers[s.leader()].kill()
            beyond = s.wait_round(job, 0)['round'] + 2  # of the new leader
            h.wait_until(lambda: at() >= beyond, 30, 'rounds of the new leader')
            assert b'mfl_serve_following{model="m"} 1\n' in serve.get('/metrics')[2]
            assert serve.stop() == 0
