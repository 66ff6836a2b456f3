# SPDX-License-Identifier: Apache-2.0
"""Strangers by the thousand, each wasting time in its own way, while jobs run; and a change of the CA under load.

The strangers come from many addresses of the loopback (127.0.1.1 and on), as a botnet would, so that no limit of one address
keeps them out: what holds is that each is sent away in time and leaves nothing behind.
"""
import os
import resource
import shutil
import socket
import ssl
import struct
import threading
import time
import urllib.request

import pytest

import mfl_certs
import mfl_harness as h
import mfl_wire as w
from mfl_tls import TlsCluster

PER_ADDRESS = 50  # of 64 that may be unfinished at a time
GREET_SECONDS = 5  # in which a busy machine opens two thousand connections
GREET = '%ds' % GREET_SECONDS


@pytest.fixture(scope='module')
def ca(tmp_path_factory):
    ca = mfl_certs.Ca(tmp_path_factory.mktemp('ca'))
    ca.server()
    ca.pairs = {name: ca.issue(name, [role]) for name, role in (('ann', 'operator'), ('d1', 'daemon'), ('d2', 'daemon'))}
    return ca


@pytest.fixture(scope='module', autouse=True)
def many():
    """How many connections at a time this machine lets one process have; here and in the server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, want), hard))
    return min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 300)


# ---- what strangers say ----

def client_hello(version=ssl.TLSVersion.TLSv1_3):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = version
    out = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname='localhost')
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


def record(kind, data, n=None):
    return struct.pack('>BHH', kind, 0x303, len(data) if n is None else n) + data


def strangers(plain=False):
    """[(bytes, whether they come one by one)]"""
    random = h.seeded('siege')
    hello, greeting = client_hello(), w.frame('hello', w.hello())
    quiet = [(b'', False), (hello, True), (hello[:60], False), (greeting, True) if plain else (hello, False)]
    loud = [
        (hello + hello, False),                                        # begins anew in the middle
        (client_hello(ssl.TLSVersion.TLSv1_2), False),
        (record(23, random.randbytes(64)), False),                     # data before there are keys
        (record(21, b'\x02\x28'), False), (record(21, b'\x01\x00'), False),
        (record(20, b'\x01') * 60, False), (hello + record(20, b'\x01') * 60, False),
        (record(24, b'\x01\x40\x00'), False),                          # Heartbleed's
        (record(22, bytes(900), 0xffff), False),                       # longer than a record may be
        (record(22, b'\x01\xff\xff\xff' + bytes(16000)) * 5, False),   # a message without end
        (record(22, b'') * 60, False), (record(22, b'\x00\x00\x00\x00') * 60, False),  # HelloRequest
        (random.randbytes(700), False), (b'\x16' + random.randbytes(700), False),
        (b'MFL1' + bytes(20), False), (b'MFL1' + b'\xff' * 20, False),
        (b'GET / HTTP/1.1\r\nHost: x\r\n\r\n', False), (b'SSH-2.0-x\r\n', False)]
    return quiet * 8 + loud + ([] if plain else [(greeting, False)])


class Crowd:
    """n connections at a time; those that drip send a byte at a time until they end."""

    def __init__(self, address, n, kinds):
        host, port = address.split(':')
        self.sockets, self.drips = [], []
        for i in range(n):
            s = socket.socket()
            s.bind(('127.0.1.%d' % (1 + i // PER_ADDRESS), 0))
            s.connect((host, int(port)))
            s.setblocking(False)
            data, drop_by_drop = kinds[i % len(kinds)]
            self.sockets.append(s)
            if drop_by_drop:
                self.drips.append((s, data))
            else:
                self._send(s, data)
        self.at, self.ending = 0, threading.Event()
        self.thread = threading.Thread(target=self._drip, daemon=True)
        self.thread.start()

    @staticmethod
    def _send(s, data):
        try:
            s.send(data)
        except OSError:
            pass  # it was sent away

    def _drip(self):
        while not self.ending.wait(0.2):
            for s, data in self.drips:
                self._send(s, data[self.at:self.at + 1])
            self.at += 1

    def leave(self, n):
        """The last n of them go."""
        for s in self.sockets[-n:]:
            s.close()
        del self.sockets[-n:]

    def close(self):
        self.ending.set()
        self.thread.join()
        for s in self.sockets:
            s.close()


class Work(threading.Thread):
    """Jobs one after the other, until finish(): one is always running."""

    def __init__(self, cluster, **job):
        super().__init__(daemon=True)
        self.cluster, self.job, self.ending, self.digests, self.attempts, self.error = cluster, job, False, [], [], None
        self.expected = cluster.run_job(**job)[1]
        self.start()

    def run(self):
        try:
            while not self.ending:
                job, digests = self.cluster.run_job(60, **self.job)
                self.attempts += [r['attempt'] for r in self.cluster.rounds(job)]
                self.digests.append(digests)
        except Exception as e:  # shown by finish
            self.error = e

    def finish(self):
        """Every job gave the model of the calm one, and no round was begun twice."""
        self.ending = True
        self.join(60)
        assert self.error is None, self.error
        assert self.digests and all(d == self.expected for d in self.digests)
        assert set(self.attempts) == {min(self.attempts)} and min(self.attempts) <= 1, set(self.attempts)


def descriptors(process):
    return len(os.listdir('/proc/%d/fd' % process.pid))


def resident(process):
    with open('/proc/%d/status' % process.pid, encoding='ascii') as f:
        return next(int(line.split()[1]) for line in f if line.startswith('VmRSS')) * 1024


def besiege(c, n, plain, during=lambda: None):
    """One wave: all are there at a time, and all are sent away by the server before any of them closes."""
    before = descriptors(c.server)
    crowd = Crowd(c.address, n, strangers(plain))
    h.wait_until(lambda: descriptors(c.server) >= before + n // 2, 10, 'half of %d strangers at a time' % n)
    during()
    h.wait_until(lambda: descriptors(c.server) <= before + 8, 20, 'the strangers to be sent away')
    crowd.close()


def check_siege(c, n, plain=False, waves=1, during=lambda: None):
    c.wait_daemons(2)
    work = Work(c, rounds=20)
    before, memory = descriptors(c.server), resident(c.server)
    for _ in range(waves):
        besiege(c, n, plain, during)
    work.finish()
    h.wait_until(lambda: descriptors(c.server) <= before, 10, 'the last descriptor')
    # A hundred megabytes lie between; the rest is what jobs and the allocator keep: 8 MB on a machine that is busy otherwise.
    h.wait_until(lambda: resident(c.server) <= memory + (24 << 20), 10, 'the memory to come back')
    log = c.server.log()
    assert log.count('is up') == 2
    assert log.count('closed before it had greeted') < 20 * 60


# ---- sieges ----

def test_strangers_at_a_port_with_tls(ca, tmp_path, many):
    with TlsCluster(tmp_path, ca, greet_within=GREET, http='127.0.0.1:0') as c:
        c.start_server()
        c.start_daemon('d1')
        c.start_daemon('d2')
        http = next(line for line in c.server.log().splitlines() if 'http://' in line).split('http://')[1].split('/')[0]
        host, port = http.split(':')

        def during():
            """Requests that never end, at the port of the dashboard; and members who greet drop by drop."""
            lazy = [socket.create_connection((host, int(port)), 5) for _ in range(150)]
            for i, s in enumerate(lazy):
                Crowd._send(s, (b'', b'G', b'GET /metrics HTTP/1.1\r\nX-A: ' + b'a' * i)[i % 3])

            def come_in():
                """A handshake, too, must end in time; on a busy machine it may take another try."""
                begun = time.monotonic()
                try:
                    return c.connect('d1'), begun
                except OSError:
                    return None
            members = [h.wait_until(come_in, 20, 'a handshake') for _ in range(5)]
            for byte in w.frame('hello', w.hello('ROLE_DAEMON', name='d1'))[:5]:
                for m, begun in members:
                    if time.monotonic() < begun + GREET_SECONDS / 2:  # then it is sent away, and who sends still does not hear why
                        m.send_raw(bytes([byte]))
                    time.sleep(0.01)

            def healthy():
                try:
                    with socket.create_connection((host, int(port)), 5) as s:
                        s.sendall(b'GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n')
                        return s.recv(100).startswith(b'HTTP/1.1 200')
                except OSError:
                    return False
            h.wait_until(healthy, 10, 'an answer of /healthz')
            for m, _ in members:
                reason = m.until_closed()  # none where the server, busy, had not come to the end of the handshake
                assert not reason or 'no Hello within %d s' % GREET_SECONDS in reason
            for s in lazy:
                s.close()
        check_siege(c, many, waves=2, during=during)
        # A crowded log leaves lines out; of one stranger at a time it tells why.
        for reason, data in (('TLS: no handshake within %d s' % GREET_SECONDS, b''), ('requires TLS', w.frame('hello', w.hello())),
                             ('looks like HTTP', b'GET / HTTP/1.1\r\nHost: x\r\n\r\n'), ('first byte is', b'SSH-2.0-x\r\n'),
                             ('the peer does not speak TLS 1.3', client_hello(ssl.TLSVersion.TLSv1_2))):
            with socket.create_connection(c.address.rsplit(':', 1), 5) as s:
                s.sendall(data)
                h.wait_until(lambda why=reason: why in c.server.log(), 20, reason)


def test_strangers_at_a_port_without_tls(tmp_path, many):
    with h.start_cluster(tmp_path, 2, config={'greet_within': GREET}) as c:
        check_siege(c, many // 2, plain=True)
        for reason, data in (('looks like TLS', client_hello()), ('no Hello within %d s' % GREET_SECONDS, b'')):
            with socket.create_connection(c.address.rsplit(':', 1), 5) as s:
                s.sendall(data)
                h.wait_until(lambda why=reason: why in c.server.log(), 20, reason)


def test_a_crowd_that_leaves_in_two_parts(ca, tmp_path):
    """What the second part took, too small for a crowd, goes back to the system like what the first one took."""
    with TlsCluster(tmp_path, ca, greet_within='1m') as c:
        c.start_server()
        c.start_daemon('d1')
        c.wait_daemons(1)
        c.run_job(rounds=2)
        before = resident(c.server)
        crowd = Crowd(c.address, 1200, [(client_hello(), False)])
        h.wait_until(lambda: resident(c.server) > before + (30 << 20), 20, 'a crowd')
        c.run_job(rounds=2)  # what it leaves lies behind what the crowd has
        full = resident(c.server)
        crowd.leave(950)
        h.wait_until(lambda: resident(c.server) < full - (20 << 20), 20, 'the first part\'s memory to come back')
        crowd.close()
        h.wait_until(lambda: resident(c.server) < before + (8 << 20), 20, 'the second part\'s memory to come back')


def test_an_address_that_comes_too_often(ca, tmp_path):
    """It is turned away, the others are not; later it may come again."""
    def comes_in(c, source):
        host, port = c.address.split(':')
        with socket.create_connection((host, int(port)), 5, (source, 0)) as s:
            try:
                ca.python(ca.pairs['ann']).wrap_socket(s, server_hostname=host).close()
                return True
            except (ssl.SSLError, ConnectionError):
                return False
    with TlsCluster(tmp_path, ca, connect_rate=1, connect_burst=20) as c:
        c.start_server()
        assert [comes_in(c, '127.0.0.9') for _ in range(40)].count(False) >= 10  # unless 10 s have gone by
        line = 'opened connections faster than connect_rate (1 per second) and connect_burst (20) allow'  # some are left out of a crowded log
        h.wait_until(lambda: not comes_in(c, '127.0.0.9') and line in c.server.log(), 10, 'the log line')
        assert comes_in(c, '127.0.0.1') and comes_in(c, '127.0.0.8')
        h.wait_until(lambda: comes_in(c, '127.0.0.9'), 10, 'a new token')


def test_who_asks_and_does_not_read(tmp_path):
    """Answers that wait for somebody who does not read are bounded over all connections, and who has the most goes."""
    with h.start_cluster(tmp_path, 0, config={'unread_max': '4MiB', 'http': '127.0.0.1:0'}) as c:
        with c.operator() as o:
            job = o.submit(h.job_text() + '#' * 200000)
        host, port = c.address.split(':')
        with w.Operator(c.address) as modest, w.Operator(c.address) as greedy:
            for _ in range(4):
                modest.send('show_job', {'job': job}, 7)
            greedy.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            try:
                for i in range(250):  # 50 MB of answers, of which the kernel takes a few
                    greedy.send('show_job', {'job': job}, 100 + i)
            except OSError:
                pass  # closed already
            h.wait_until(lambda: 'it does not read' in c.server.log(), 20, 'the end of the greedy one')
            for _ in range(4):
                assert len(modest.expect('job_detail')['text']) > 200000
        http = next(line for line in c.server.log().splitlines() if 'http://' in line).split('http://')[1].split('/')[0]
        with urllib.request.urlopen('http://%s/metrics' % http, timeout=10) as answer:
            text = answer.read().decode()
        assert 'mfl_connections_unread_total 1\n' in text
        assert 'mfl_connections_unread_bytes 0\n' in text
        c.check_alive()


# ---- another CA ----

def test_the_ca_is_replaced_under_load(ca, tmp_path):
    """In the order of the manual: everybody trusts both; everybody shows the new one; nobody trusts the old one. Connections
    are cut at each step, so that what was read anew is in use."""
    new = mfl_certs.Ca(tmp_path / 'new', 'New CA')
    new.server()
    new.pairs = {name: new.issue(name, [role]) for name, role in (('ann', 'operator'), ('d1', 'daemon'), ('d2', 'daemon'))}
    bundle = tmp_path / 'bundle.pem'

    def trust(*cas):
        text = ''
        for one in cas:
            with open(one.ca, encoding='ascii') as f:
                text += f.read()
        whole = tmp_path / 'bundle.new'
        whole.write_text(text)
        os.rename(whole, bundle)

    def show(name, pair):
        for source, kind in zip(pair, ('pem', 'key')):
            shutil.copy(source, tmp_path / ('%s.%s' % (name, kind)))

    trust(ca)
    with TlsCluster(tmp_path / 'c', ca, tls_ca=bundle) as c:
        c.start_server()
        proxy = h.Proxy(c.address)
        daemons = []
        for name in ('d1', 'd2'):
            show(name, ca.pairs[name])
            env = {'MFL_TLS_CA': str(bundle), 'MFL_TLS_CERT': str(tmp_path / (name + '.pem')),
                   'MFL_TLS_KEY': str(tmp_path / (name + '.key'))}
            daemons.append(h.Process(c.daemon_argv(name, server=proxy.address), c.log_path(name), env))
        c.others += daemons

        def step(change):
            """In the middle of a job: the change, a reload, and both daemons come again with what they then read."""
            job = c.begin()
            c.wait_info(job, lambda i: i['round'] >= 2, 20, 'two rounds')
            change()
            c.reload()
            n = c.server.log().count(' is back') + c.server.log().count(' is up')
            assert c.info(job)['state'] == 'running'
            proxy.cut_all()
            h.wait_until(lambda: c.server.log().count(' is back') + c.server.log().count(' is up') >= n + 2, 20,
                         'both daemons after the cut')
            c.finish(job)
            assert {r['attempt'] for r in c.rounds(job)} == attempts

        def show_new(file):
            c.ca = new
            c.install(file)

        try:
            c.wait_daemons(2)
            calm, _ = c.run_job(rounds=12)
            attempts = {r['attempt'] for r in c.rounds(calm)}
            step(lambda: trust(ca, new))
            step(lambda: [show(name, new.pairs[name]) for name in ('d1', 'd2')])
            step(lambda: show_new('server'))
            step(lambda: trust(new))
            mixed = new.python(ca.pairs['ann'])  # trusts the server, shows what the old one issued
            with pytest.raises((ssl.SSLError, w.Closed, ConnectionError)):
                w.Operator(c.address, 10, mixed)
            assert all(d.alive() for d in daemons)
        finally:
            proxy.close()
