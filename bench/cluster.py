#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a commit costs with three servers, beside one alone: the time from the order to write a checkpoint to its end, the same of the commit, and requests to etcd.

    cluster.py BUILD [--rounds 60] [--hidden 0 10000] [--delay 0 20]
    cluster.py BUILD --kills 5 [--rounds 400]

Three hosts: each has an mfl-server and a member of etcd. --delay: milliseconds that every byte from one host to another takes, one way, by delay lines
between the programs (so a question and its answer take twice as much; no root, no namespaces, no tc). --hidden: units of the model's hidden layer; with 0
it has 260 parameters. The digest of the last round must be the same in every row of a model. The servers' daemon is on the leader's host.

--kills: fail-over in place of all that. The same job is run once undisturbed and then so many times with kill -9 of its leader in the middle, each on new hosts with the
default lease: seconds from the kill until the next leader has committed a round, and by how much longer the job takes. The digests must be the same."""
import argparse
import os
import queue
import re
import socket
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')
sys.path.insert(0, os.path.join(ROOT, 'tests', 'lib'))


def free_port():
    with socket.create_server(('127.0.0.1', 0)) as listener:
        return listener.getsockname()[1]


class DelayLine:
    """TCP to a port, every byte later by so many seconds, in both directions and in order."""

    def __init__(self, port, seconds):
        self.target, self.seconds = port, seconds
        self.listener = socket.create_server(('127.0.0.1', 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            near, _ = self.listener.accept()
            try:
                far = socket.create_connection(('127.0.0.1', self.target))
            except OSError:
                near.close()
                continue
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, sink in ((near, far), (far, near)):
                line = queue.SimpleQueue()
                threading.Thread(target=self._read, args=(source, line), daemon=True).start()
                threading.Thread(target=self._write, args=(line, sink, source), daemon=True).start()

    def _read(self, source, line):
        try:
            while data := source.recv(1 << 18):
                line.put((time.monotonic() + self.seconds, data))
        except OSError:
            pass
        line.put((0, b''))

    @staticmethod
    def _write(line, sink, source):
        try:
            while True:
                at, data = line.get()
                if not data:
                    break
                time.sleep(max(0, at - time.monotonic()))
                sink.sendall(data)
        except OSError:
            pass
        for one in (sink, source):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def through(port, delay):
    return DelayLine(port, delay / 1000).port if delay else port


class Hosts:
    """Three hosts; the first leads."""

    def __init__(self, directory, delay):
        import mfl_harness as h  # pylint: disable=import-outside-toplevel
        self.h, self.dir, self.processes = h, directory, []
        self.ports, self.clients, peers = ([free_port() for _ in range(3)] for _ in range(3))
        far = [through(port, delay) for port in peers]
        members = ','.join('e%d=http://127.0.0.1:%d' % one for one in enumerate(far))
        for i in range(3):
            url, client = 'http://127.0.0.1:%d' % peers[i], 'http://127.0.0.1:%d' % self.clients[i]
            self.start('e%d' % i, 'etcd', '--name', 'e%d' % i, '--data-dir', os.path.join(directory, 'e%d' % i), '--listen-peer-urls', url,
                       '--initial-advertise-peer-urls', 'http://127.0.0.1:%d' % far[i], '--listen-client-urls', client, '--advertise-client-urls',
                       client, '--initial-cluster', members, '--log-level', 'error')
        for i in range(3):
            h.wait_until(lambda k=i: self.etcd(k, 'health').startswith('{"health":"true"'), 60, 'etcd')
        servers = ', '.join('s%d=127.0.0.1:%d' % one for one in enumerate(through(port, delay) for port in self.ports))
        self.http = free_port()
        for i in range(3):  # each asks the member of its own host first
            etcd = ', '.join('http://127.0.0.1:%d' % self.clients[(i + k) % 3] for k in range(3))
            config = os.path.join(directory, 's%d.yaml' % i)
            with open(config, 'w', encoding='utf-8') as f:
                f.write('listen: 127.0.0.1:%d\nstate_dir: %s/s%d\nmemory_max: 1GiB\n%scluster: {etcd: [%s], name: s%d, servers: [%s]}\n' % (
                    self.ports[i], directory, i, '' if i else 'http: 127.0.0.1:%d\n' % self.http, etcd, i, servers))
            log = self.start('s%d' % i, h.program('mfl-server'), '--config', config, '--exit-with-stdin')
            if not i:
                h.wait_until(lambda path=log: 'leads, term' in open(path, encoding='utf-8').read(), 60, 'the first server to lead')
        self.address = '127.0.0.1:%d' % self.ports[0]

    def start(self, name, *argv):
        log = os.path.join(self.dir, name + '.log')
        self.processes.append(self.h.Process(list(argv), log))
        return log

    def etcd(self, member, page):
        try:
            with urllib.request.urlopen('http://127.0.0.1:%d/%s' % (self.clients[member], page), timeout=5) as answer:
                return answer.read().decode()
        except OSError:
            return ''

    def transactions(self):
        found = re.findall(r'grpc_server_handled_total\{grpc_code="OK",grpc_method="Txn".*\} (\S+)', ''.join(self.etcd(k, 'metrics') for k in range(3)))
        return sum(int(float(n)) for n in found)

    def close(self):
        for process in reversed(self.processes):
            process.kill()


class Alone:
    def __init__(self, directory):
        import mfl_harness as h  # pylint: disable=import-outside-toplevel
        self.http = free_port()
        self.cluster = h.Cluster(directory, {'http': '127.0.0.1:%d' % self.http})
        self.cluster.start_server()
        self.address = self.cluster.address

    def transactions(self):
        return 0

    def close(self):
        self.cluster.close()


def mean(http, name):
    """Seconds and number of a histogram."""
    with urllib.request.urlopen('http://127.0.0.1:%d/metrics' % http, timeout=10) as answer:
        text = answer.read().decode()
    return tuple(float(re.search(r'^%s_%s (\S+)' % (name, part), text, re.M)[1]) for part in ('sum', 'count'))


def measure(options, hidden, delay):
    """delay None: one server alone."""
    import mfl_harness as h  # pylint: disable=import-outside-toplevel
    import mfl_wire  # pylint: disable=import-outside-toplevel
    with tempfile.TemporaryDirectory() as directory:
        one = Alone(directory) if delay is None else Hosts(directory, delay)
        daemon = None
        try:
            daemon = h.Process([h.program('mfl-client'), '--server', one.address, '--name', 'd1', '--workers', '1', '--backend', 'reference', '--data',
                                h.TINY, '--exit-with-stdin'], os.path.join(directory, 'd1.log'))
            h.wait_until(lambda: os.path.exists(os.path.join(directory, 'd1.log')) and
                         'connected to' in open(os.path.join(directory, 'd1.log'), encoding='utf-8').read(), 60, 'the daemon')
            layers = [{'flatten': {}}, *([{'dense': {'units': hidden}}, {'relu': {}}] if hidden else []), {'dense': {'units': 4}}]
            before = one.transactions()
            with mfl_wire.Operator(one.address, 60) as o:
                job = o.submit(h.job_text(model={'layers': layers}, rounds=options.rounds, evaluation={'every': 0}, data={'clients': 1},
                                          training={'epochs': None, 'steps': 1}))
                h.wait_until(lambda: h.STATES[o.info(job)['state']] == 'done', 600, 'the job')
                rounds = o.rounds(job)
            took = [mean(one.http, name) for name in ('mfl_checkpoint_seconds', 'mfl_commit_seconds')]
            return [1000 * seconds / n for seconds, n in took] + [(one.transactions() - before) / options.rounds, rounds[-1]['digest'].hex()]
        finally:
            if daemon:
                daemon.kill()
            one.close()


def run_killed(options, kills):
    """(seconds from the kill to the next round, seconds of the job, its last digest)."""
    import mfl_harness as h  # pylint: disable=import-outside-toplevel
    import mfl_wire  # pylint: disable=import-outside-toplevel
    with tempfile.TemporaryDirectory() as directory:
        hosts = Hosts(directory, 0)
        addresses = ['127.0.0.1:%d' % port for port in hosts.ports]
        daemon = h.Process([h.program('mfl-client'), '--server', ','.join(addresses), '--name', 'd1', '--workers', '1', '--backend', 'reference', '--data',
                            h.TINY, '--exit-with-stdin'], os.path.join(directory, 'd1.log'))

        def state(job):
            """(rounds, name of its state, digests) from whoever leads; None when nobody answers."""
            for address in addresses:
                try:
                    with mfl_wire.Operator(address, 5) as o:
                        info = o.info(job)
                        done = h.STATES[info['state']] == 'done'
                        return info['round'], done, o.rounds(job)[-1]['digest'].hex() if done else ''
                except (OSError, mfl_wire.Closed, TimeoutError, AssertionError):
                    continue
            return None
        try:
            h.wait_until(lambda: 'connected to' in open(os.path.join(directory, 'd1.log'), encoding='utf-8').read(), 60, 'the daemon')
            with mfl_wire.Operator(hosts.address, 60) as o:
                began = time.monotonic()
                job = o.submit(h.job_text(rounds=options.rounds, evaluation={'every': 0}, data={'clients': 4}))
            took = 0
            if kills:
                h.wait_until(lambda: (lambda s: s and s[0] >= options.rounds // 4)(state(job)), 600, 'rounds')
                leader = next(p for p in hosts.processes if p.log_path.endswith('/s0.log'))
                killed = time.monotonic()
                leader.kill()
                at = h.wait_until(lambda: state(job), 120, 'the next leader')[0]
                h.wait_until(lambda: (lambda s: s and s[0] > at)(state(job)), 120, 'a round of the next leader')
                took = time.monotonic() - killed
            end = h.wait_until(lambda: (lambda s: s and s[1] and s)(state(job)), 600, 'the job')
            return took, time.monotonic() - began, end[2]
        finally:
            daemon.kill()
            hosts.close()


def fail_over(options):
    print('%d rounds; load at the start %.1f' % (options.rounds, os.getloadavg()[0]))
    _, alone, digest = run_killed(options, False)
    print('undisturbed: %.2f s' % alone, flush=True)
    for _ in range(options.kills):
        took, seconds, found = run_killed(options, True)
        print('leader killed: the next round after %.2f s; the job took %.2f s longer' % (took, seconds - alone), flush=True)
        if found != digest:
            return 'the digests differ'
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('build')
    parser.add_argument('--rounds', type=int, default=None)
    parser.add_argument('--kills', type=int, default=0)
    parser.add_argument('--hidden', type=int, nargs='+', default=[0, 10000])
    parser.add_argument('--delay', type=int, nargs='+', default=[0, 20])
    options = parser.parse_args()
    os.environ['MFL_BUILD'] = os.path.abspath(options.build)
    options.rounds = options.rounds or (400 if options.kills else 60)
    if options.kills:
        return fail_over(options)
    print('%d rounds; load at the start %.1f' % (options.rounds, os.getloadavg()[0]))
    print('parameters  servers           checkpoint ms   commit ms   transactions of etcd per round   digest')
    for hidden in options.hidden:
        n = hidden * 65 + (hidden + 1) * 4 if hidden else 65 * 4
        seen = set()
        for delay in [None, *options.delay]:
            checkpoint, commit, txns, digest = measure(options, hidden, delay)
            seen.add(digest)
            what = 'one alone' if delay is None else 'three, %d ms' % delay if delay else 'three, loopback'
            print('%10d  %-16s  %13.2f  %10.2f  %31.2f   %s' % (n, what, checkpoint, commit, txns, digest[:16]), flush=True)
        if len(seen) != 1:
            return 'the digests differ'
    return 0


if __name__ == '__main__':
    sys.exit(main())
