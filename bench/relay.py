#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bytes at the server, with and without relays: what goes up and down through its port, counted on the sockets, for a model of
about a million parameters that is trained for one step. The digest of the last round must be the same in every row.

    relay.py [--build DIR] [--daemons 8] [--relays 0 2 4] [--rounds 4]
    relay.py --swarm 10000 [--build DIR] [--relays 0 16] [--rounds 10] [--features 784] [--classes 10]

A row's last two columns compare the bytes with relays * rounds * n * 8 up (an exact sum has 8 bytes a parameter) and * 4 down: for 0
relays, with daemons instead of relays. No times: the machine's load does not matter.

With --swarm, one bench_swarm has all daemons, which train nothing; a model has classes * (features + 1) parameters. What the server takes:
processor time and bytes of a round, the highest resident memory, and what that is above an idle server's. A relay sends one sum for each
64 daemons: `sums` compares the bytes with that. Needs as many open files (ulimit -Hn) as daemons."""
import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

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


class Relay:
    """A relay below a server of benchlib."""

    def __init__(self, name, upstream):
        import benchlib  # pylint: disable=import-outside-toplevel
        ready, write = os.pipe()
        self.process = subprocess.Popen([benchlib.program('server/mfl-server'), '--upstream', upstream, '--name', name, '--listen', '127.0.0.1:0',
                                         '--ready-fd', str(write), '--exit-with-stdin', '--log-level', 'warn'], stdin=subprocess.PIPE, pass_fds=[write])
        self.pid = self.process.pid
        os.close(write)
        with os.fdopen(ready) as pipe:
            self.address = pipe.readline().strip()
        if not self.address:
            sys.exit('relay %s did not start' % name)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def metrics(port, *names):
    """Sums over all labels."""
    with urllib.request.urlopen('http://127.0.0.1:%d/metrics' % port, timeout=60) as answer:
        text = answer.read().decode()
    return [sum(map(float, re.findall(r'^%s(?:\{.*\})? (\S+)' % name, text, re.M))) for name in names]


def counters(port):
    time.sleep(3)  # the page is made anew every second
    return metrics(port, 'mfl_received_bytes_total', 'mfl_sent_bytes_total')


def load(options, n_relays):
    """One row of --swarm."""
    import benchlib as bench  # pylint: disable=import-outside-toplevel
    with socket.create_server(('127.0.0.1', 0)) as listener:
        port = listener.getsockname()[1]
    with bench.Server(config='http: 127.0.0.1:%d\n' % port) as server:
        relays = [Relay('r%02d' % i, server.address) for i in range(n_relays)]
        try:
            idle = bench.memory(server.pid)[0]
            servers = [part for relay in relays for part in ('--server', relay.address)] or ['--server', server.address]
            command = [bench.program('bench/bench_swarm'), *servers, '--daemons', str(options.swarm), '--moving', '--features', str(options.features),
                       '--classes', str(options.classes)]
            swarm = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            server.children.append(swarm)
            if not swarm.stdout.readline().startswith('connected'):
                sys.exit('the swarm did not connect')
            bench.wait_until(lambda: metrics(port, 'mfl_daemons') == [options.swarm], 120, 'all daemons at the server')
            pids = [[server.pid], [relay.pid for relay in relays]]
            bytes_before = counters(port)
            before = [sum(map(bench.processor_seconds, group)) for group in pids]
            job = server.submit(bench.noop_job('load', options.rounds, options.swarm))
            server.mfl('wait', job)
            cpu = [(sum(map(bench.processor_seconds, group)) - b) / options.rounds for group, b in zip(pids, before)]
            bytes_of = [(b - a) / options.rounds for a, b in zip(bytes_before, counters(port))]
            peak = bench.memory(server.pid)[1]
            below = max([bench.memory(relay.pid)[1] for relay in relays], default=0)
            return cpu, peak, idle, below, bytes_of, server.rounds(job)[-1]['digest']
        finally:
            for relay in relays:
                relay.close()


def swarm_table(options):
    import benchlib as bench  # pylint: disable=import-outside-toplevel
    bench.raise_files()
    n, rows, seen = options.classes * (options.features + 1), [], set()
    print('%d daemons, %d rounds, %d parameters; load at the start %.1f' % (options.swarm, options.rounds, n, os.getloadavg()[0]), flush=True)
    for n_relays in options.relays:
        began = time.monotonic()
        cpu, peak, idle, below, bytes_of, digest = load(options, n_relays)
        print('%d relays: %.0f s in all' % (n_relays, time.monotonic() - began), flush=True)
        seen.add(digest)
        each = -(-options.swarm // n_relays) if n_relays else 1
        sums = n_relays * -(-each // 64) * 8 * n if n_relays else options.swarm * 4 * n
        rows.append([n_relays, '%.0f' % (1e3 * cpu[0]), '%.0f' % (1e3 * cpu[1]), '%.1f' % (peak / 1e6), '%.1f' % ((peak - idle) / 1e6),
                     '%.1f' % (below / 1e6), '%.2f' % (bytes_of[0] / 1e6), '%.2f' % (bytes_of[1] / 1e6), '%.3f' % (bytes_of[0] / sums), digest[:16]])
    bench.table(['relays', 'server cpu ms', 'relays cpu ms', 'server MB', 'above idle', 'a relay MB', 'MB up', 'MB down', 'up / sums', 'digest'], rows)
    return 0 if len(seen) == 1 else 'the digests differ'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', default=os.path.join(ROOT, 'build'))
    parser.add_argument('--daemons', type=int, default=8)
    parser.add_argument('--relays', type=int, nargs='*', default=None)
    parser.add_argument('--rounds', type=int, default=None)
    parser.add_argument('--swarm', type=int, default=0)
    parser.add_argument('--features', type=int, default=784)
    parser.add_argument('--classes', type=int, default=10)
    options = parser.parse_args()
    os.environ['MFL_BUILD'] = os.path.abspath(options.build)
    options.relays = options.relays or ([0, 16] if options.swarm else [0, 2, 4])
    options.rounds = options.rounds or (10 if options.swarm else 4)
    if options.swarm:
        return swarm_table(options)
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
