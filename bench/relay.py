#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bytes at the server, with and without relays: what goes up and down through its port, counted on the sockets, for a model of
about a million parameters that is trained for one step. The digest of the last round must be the same in every row.

    relay.py [--build DIR] [--daemons 8] [--relays 0 2 4] [--rounds 4]

A row's last two columns compare the bytes with relays * rounds * n * 8 up (an exact sum has 8 bytes a parameter) and * 4 down: for 0
relays, with daemons instead of relays. No times: the machine's load does not matter."""
import argparse
import os
import socket
import sys
import tempfile
import threading

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')
sys.path.insert(0, os.path.join(ROOT, 'tests', 'lib'))


class Counter:
    """TCP to the server that counts the bytes of both directions."""

    def __init__(self, target):
        self.target, self.up, self.down = target, 0, 0
        self.lock = threading.Lock()
        self.listener = socket.create_server(('127.0.0.1', 0))
        self.address = '127.0.0.1:%d' % self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        host, port = self.target.rsplit(':', 1)
        while True:
            near, _ = self.listener.accept()
            far = socket.create_connection((host, int(port)))
            for source, sink, up in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pump, args=(source, sink, up), daemon=True).start()

    def _pump(self, source, sink, up):
        try:
            while data := source.recv(1 << 16):
                with self.lock:
                    self.up += len(data) * up
                    self.down += len(data) * (not up)
                sink.sendall(data)
        except OSError:
            pass
        for s in (source, sink):
            s.close()


def run(options, n_relays):
    import mfl_relay  # pylint: disable=import-outside-toplevel
    with tempfile.TemporaryDirectory() as directory:
        c = mfl_relay.Tree(directory)
        try:
            c.start_server()
            counter = Counter(c.address)
            servers = [c.start_relay('r%d' % i, counter.address).address for i in range(n_relays)] or [counter.address]
            for i in range(options.daemons):
                c.start_daemon('d%02d' % i, server=servers[i % len(servers)], node='host%02d' % i)
            c.wait_daemons(options.daemons, 60)
            with counter.lock:
                counter.up = counter.down = 0
            layers = [{'flatten': {}}, {'dense': {'units': 1024}}, {'relu': {}}, {'dense': {'units': 900}}, {'relu': {}},
                      {'dense': {'units': 4}}]
            _, digests = c.run_job(120, model={'layers': layers}, rounds=options.rounds, evaluation={'every': 0},
                                   data={'clients': options.daemons}, training={'epochs': None, 'steps': 1},
                                   selection={'assign': 'modulo'})
            return counter.up, counter.down, digests[-1]
        finally:
            c.close()


N = (64 * 1024 + 1024) + (1024 * 900 + 900) + (900 * 4 + 4)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', default=os.path.join(ROOT, 'build'))
    parser.add_argument('--daemons', type=int, default=8)
    parser.add_argument('--relays', type=int, nargs='*', default=[0, 2, 4])
    parser.add_argument('--rounds', type=int, default=4)
    options = parser.parse_args()
    os.environ['MFL_BUILD'] = os.path.abspath(options.build)
    print('%d daemons, %d rounds, %d parameters' % (options.daemons, options.rounds, N))
    print('relays     MB up   MB down   up / (k sums)   down / (k params)   digest')
    seen = set()
    for n_relays in options.relays:
        up, down, digest = run(options, n_relays)
        k = (n_relays or options.daemons) * options.rounds * N
        seen.add(digest)
        print('%6d  %8.1f  %8.1f  %14.4f  %18.4f   %s' % (n_relays, up / 1e6, down / 1e6, up / (8 * k), down / (4 * k), digest[:16]))
    return 0 if len(seen) == 1 else 'the digests differ'


if __name__ == '__main__':
    sys.exit(main())
