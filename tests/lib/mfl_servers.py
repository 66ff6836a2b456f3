# SPDX-License-Identifier: Apache-2.0
"""Several servers of one installation on etcd, for tests."""
import base64
import json
import os
import re
import socket
import urllib.request

import mfl_harness as h
import mfl_wire


def free_port():
    with socket.create_server(('127.0.0.1', 0)) as listener:
        return listener.getsockname()[1]


class Etcd:
    """One member, which keeps its data over kill and start."""

    def __init__(self, directory):
        self.dir = os.path.join(str(directory), 'etcd')
        self.client, self.peer = ('http://127.0.0.1:%d' % free_port() for _ in range(2))
        self.process = None
        self.start()

    def start(self):
        self.process = h.Process(
            ['etcd', '--data-dir', self.dir, '--listen-client-urls', self.client, '--advertise-client-urls', self.client,
             '--listen-peer-urls', self.peer, '--initial-advertise-peer-urls', self.peer, '--initial-cluster', 'default=' + self.peer,
             '--unsafe-no-fsync', '--log-level', 'error'], self.dir + '.log')
        h.wait_until(self.there, 20, 'etcd')

    def there(self):
        try:
            request = urllib.request.Request(self.client + '/v3/kv/range', json.dumps({'key': 'Zm9v'}).encode())
            return urllib.request.urlopen(request, timeout=2).status == 200
        except OSError:
            return False

    def kill(self):
        self.process.kill()

    def requests(self):
        """How many requests it has answered, by kind (Txn, Range, LeaseKeepAlive, ...)."""
        with urllib.request.urlopen(self.client + '/metrics', timeout=5) as answer:
            text = answer.read().decode()
        found = re.findall(r'grpc_server_handled_total\{grpc_code="OK",grpc_method="(\w+)".*\} (\S+)', text)
        return {kind: int(float(n)) for kind, n in found}

    def entries(self):
        """Numbers of the entries in the log."""
        first, end = (base64.b64encode(key).decode() for key in (b'mfl/log/', b'mfl/log0'))
        request = urllib.request.Request(self.client + '/v3/kv/range', json.dumps({'key': first, 'range_end': end, 'keys_only': True}).encode())
        found = json.load(urllib.request.urlopen(request, timeout=5)).get('kvs', [])
        return [int(base64.b64decode(one['key']).rsplit(b'/', 1)[1], 16) for one in found]


class Servers:
    """Servers s0, s1, ... of one installation, and a daemon that knows all of them."""

    def __init__(self, directory, n=2, daemon=True, shared=True, env=None, first=(), ca=None):
        """first: servers of the list that are not of this program. ca: a mfl_certs.Ca with pairs for s0, s1, ..., d1 and ann."""
        self.ca = ca
        self.first = list(first)
        self.dir, self.etcd = str(directory), Etcd(directory)
        self.blobs, self.shared = os.path.join(self.dir, 'blobs'), shared
        env = env or {}
        self.addresses = ['127.0.0.1:%d' % free_port() for _ in range(n)]
        self.servers = [None] * n
        self.daemon = None
        for i in range(n):
            self.start(i, env.get(i))
            if not i:  # it shall lead; alone, it can't commit anything on most servers' disks
                h.wait_until(lambda: 'leads, term' in self.log('s0'), 20, 's0 to lead')
        if n:
            self.leader()
        if daemon:
            self.start_daemon()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in [self.daemon, *self.servers, self.etcd]:
            if process:
                process.kill()

    def state_dir(self, i):
        return os.path.join(self.dir, 's%d' % i)

    def config(self, i):
        path = os.path.join(self.dir, 's%d.yaml' % i)
        files = 'blobs: ' + self.blobs if self.shared else 'servers: [%s]' % ', '.join(
            self.first + ['s%d=%s' % server for server in enumerate(self.addresses)])
        with open(path, 'w', encoding='utf-8') as f:
            if self.ca:
                f.write('tls_ca: %s\ntls_cert: %s\ntls_key: %s\n' % (self.ca.ca, *self.ca.pairs['s%d' % i]))
            f.write('listen: %s\nstate_dir: %s\nheartbeat: 500ms\ndead_after: 5s\nreconnect_grace: 2s\nmemory_max: 512MiB\n'
                    'cluster: {etcd: [%s], name: s%d, %s, lease: 2s}\n'
                    % (self.addresses[i], self.state_dir(i), self.etcd.client, i, files))
        return path

    def start(self, i, env=None):
        self.servers[i] = h.Process([h.program('mfl-server'), '--config', self.config(i), '--exit-with-stdin'],
                                    os.path.join(self.dir, 's%d.log' % i), env)

    def start_daemon(self, more=()):
        self.daemon = h.Process([h.program('mfl-client'), '--server', ','.join(self.addresses), '--name', 'd1', '--workers', '1', '--backend',
                                 'reference', '--data', h.TINY, '--exit-with-stdin', *more], os.path.join(self.dir, 'd1.log'),
                                self.ca and {'MFL_TLS_CA': self.ca.ca, 'MFL_TLS_CERT': self.ca.pairs['d1'][0], 'MFL_TLS_KEY': self.ca.pairs['d1'][1]})

    def models(self, i, job):
        """The files of a job's checkpoints that a server has."""
        try:
            return {f for f in os.listdir(os.path.join(self.state_dir(i), 'jobs', job)) if f.startswith('round-') and not f.endswith('.tmp')}
        except FileNotFoundError:
            return set()

    def same_files(self, job, a, b):
        """A condition: two servers have the same checkpoints of it."""
        return lambda: self.models(a, job) == self.models(b, job) != set()

    def log(self, name):
        with open(os.path.join(self.dir, name + '.log'), encoding='utf-8') as f:
            return f.read()

    def find_leader(self):
        for i, address in enumerate(self.addresses):
            try:
                with self.connect(address, 5):
                    return i + 1
            except (OSError, mfl_wire.Closed, TimeoutError, AssertionError):
                continue
        return 0

    def leader(self):
        return h.wait_until(self.find_leader, 20, 'a leader') - 1

    def operator(self):
        return self.connect(self.addresses[self.leader()], 10)

    def connect(self, address, timeout):
        return mfl_wire.Operator(address, timeout, self.ca and self.ca.python(self.ca.pairs['ann']))

    def info(self, job):
        try:
            with self.operator() as o:
                return o.info(job)
        except (OSError, mfl_wire.Closed, TimeoutError, AssertionError):
            return None

    def wait_round(self, job, n):
        return h.wait_until(lambda: (lambda i: i and i['round'] >= n and i)(self.info(job)), 60, 'round %d' % n)

    def submit(self, **job):
        with self.operator() as o:
            return o.submit(h.job_text(**job), '')

    def digests(self, job):
        """Of every round, when the job is done; asserts that none is missing or there twice."""
        h.wait_until(lambda: (lambda i: i and h.STATES[i['state']] == 'done')(self.info(job)), 60, 'the end')
        with self.operator() as o:
            rounds = o.rounds(job)
        assert [r['round'] for r in rounds] == list(range(1, len(rounds) + 1))
        return [r['digest'].hex() for r in rounds]
