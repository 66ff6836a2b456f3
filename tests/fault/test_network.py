# SPDX-License-Identifier: Apache-2.0
"""Connections that break, crawl, or bring garbage."""
import socket
import threading
import time

import pytest

import mfl_harness as h
import mfl_wire as w

# 3.15 million parameters: an update of 25.2 MB in several chunks.
BIG = {'model': {'layers': ['flatten', {'dense': {'units': 1500}}, 'relu', {'dense': {'units': 2000}}, 'relu',
                            {'dense': {'units': 4}}]},
       'data': {'clients': 2}, 'training': {'steps': 1, 'epochs': None, 'batch': 2}, 'rounds': 1, 'evaluation': {'every': 0}}
CHUNK_MAX = 4 << 20


def test_cut_uploads_are_resumed(cluster):
    """The connection is reset five times in one upload. What had arrived is not sent again: at most the chunk that was
    under way and what lay in the sockets."""
    c = cluster(1, backend='cpu')
    expected = c.run_job(**BIG)[1]
    size = c.rounds('j-000001')[0]['bytes_up']
    assert size == 8 * c.info('j-000001')['n_params']
    c.daemons['d1'].stop()
    cuts = [size * i // 6 for i in range(1, 6)]
    proxy = h.Proxy(c.address, cuts)
    try:
        c.start_daemon('d2', backend='cpu', server=proxy.address)
        job = c.submit(**BIG)
        c.wait_job(job, 60)
        assert c.digests(job) == expected
        assert proxy.n_cut == len(cuts)
        in_sockets = 6 << 20  # of loopback: what the sender's system took but the proxy had not read is lost with it
        assert proxy.bytes_up < size + len(cuts) * CHUNK_MAX + in_sockets
        # Without resumption every cut would have thrown away all that came before it.
        assert proxy.bytes_up < size + sum(cuts)
        assert c.rounds(job)[0]['attempt'] == 0
    finally:
        proxy.close()


def test_cut_downloads_are_resumed(cluster):
    """Cut at random moments of whole rounds, in both directions."""
    c = cluster(0)
    settings = {'training': {'steps': 40, 'epochs': None}}
    proxy = h.Proxy(c.address)
    try:
        for name in ('p1', 'p2'):
            c.start_daemon(name, server=proxy.address)
        c.wait_daemons(2)
        rng = h.seeded('cuts')
        job = c.begin(**settings)
        for _ in range(6):
            time.sleep(rng.random() * 0.3)
            proxy.cut_all()
        c.finish(job, **settings)
    finally:
        proxy.close()


GREET_SECONDS = 2


@pytest.fixture(scope='module')
def under_attack(shared_cluster):
    c = shared_cluster(2, config={'greet_within': '%ds' % GREET_SECONDS})
    c.wait_daemons(2)
    job = {'rounds': 8, 'training': {'steps': 40, 'epochs': None}}
    return c, job, c.run_job(**job)[1]


def test_slow_loris(under_attack):
    """Three hundred connections send a header byte by byte, or nothing. Work goes on beside them; each is closed when the
    time that a greeting may take is over, and no sooner."""
    c, settings, expected = under_attack
    host, port = c.address.rsplit(':', 1)
    header = w.frame('hello', w.hello())
    opened = time.monotonic()
    peers = [socket.create_connection((host, int(port)), 5) for _ in range(300)]
    waiting, first = dict(enumerate(peers)), None

    def drip(at):
        """Sends the next byte to those who are there still; what they are told last is read to the end."""
        nonlocal first
        for i, p in list(waiting.items()):
            try:
                p.send(header[at:at + 1] if i % 2 and at < len(header) - 1 else b'')
                while p.recv(4096, socket.MSG_DONTWAIT):
                    pass
                del waiting[i]
            except BlockingIOError:
                continue
            except OSError:
                del waiting[i]
            first = first or time.monotonic()
    try:
        job = c.submit(**settings)
        at = 0
        while waiting or c.info(job)['state'] not in h.ENDED:
            drip(at)
            at += 1
            time.sleep(0.05)
            assert time.monotonic() - opened < 60, '%d are there still' % len(waiting)
        assert first - opened > 0.9 * GREET_SECONDS  # the server's clock is that of its loop's last turn
        assert c.digests(c.wait_job(job)['job']) == expected
    finally:
        for p in peers:
            p.close()
    c.check_alive()


def test_garbage_connections(under_attack):
    """Hundreds of peers that send nonsense, half frames, or vanish, while a job runs."""
    c, settings, expected = under_attack
    rng = h.seeded('attack')
    good = w.frame('hello', w.hello())
    host, port = c.address.rsplit(':', 1)
    stop = threading.Event()
    count = [0]

    def attack(choices):
        while not stop.is_set():
            try:
                with socket.create_connection((host, int(port)), 5) as s:
                    s.settimeout(0.05)
                    s.sendall(choices[count[0] % len(choices)])
                    if count[0] % 3:
                        s.recv(100)
            except OSError:
                pass
            count[0] += 1
            time.sleep(0.002)
    nonsense = []
    for i in range(64):
        data = bytearray(good if i % 2 else bytes(rng.randrange(256) for _ in range(rng.randrange(1, 300))))
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        nonsense.append(bytes(data[:rng.randrange(1, len(data) + 1)]))
    attackers = [threading.Thread(target=attack, args=(nonsense[i::4],), daemon=True) for i in range(4)]
    for a in attackers:
        a.start()
    try:
        job = c.submit(**settings)
        c.wait_job(job, 60)
        h.wait_until(lambda: count[0] > 300, 20, 'hundreds of attacks')
    finally:
        stop.set()
        for a in attackers:
            a.join(10)
    assert c.digests(job) == expected
    assert all(d.alive() for d in c.daemons.values())
    c.check_alive()
