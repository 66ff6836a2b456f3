# SPDX-License-Identifier: Apache-2.0
"""Real processes on loopback for the tests in tests/e2e and tests/fault.

A Cluster owns a directory, one server and its daemons. All of them hold a pipe to this process as standard input and run with
--exit-with-stdin, so they end when the test does, however it ends. Only processes started here are ever signalled. Every wait
has a limit and says what it waited for.
"""
import contextlib
import hashlib
import json
import os
import random
import re
import select
import signal
import shutil
import socket
import sqlite3
import struct
import subprocess
import tempfile
import threading
import time

import mfl_wire

BUILD = os.environ.get('MFL_BUILD', os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'build'))
TINY = 'tiny=synthetic:1,8,8:4:400:80:1'
FAULT_STATUS = 99
STATES = {v: k[4:].lower() for k, v in mfl_wire.ENUMS['JobState'].items()}
ENDED = ('done', 'failed', 'stopped')
ENDLESS = 100000  # rounds
PATIENCE = 5  # every limit of a wait is for what hangs, on whatever machine, beside whatever work: no test measures time by it


def program(name):
    folder = {'mfl': 'cli', 'mfl-server': 'server', 'mfl-client': 'client', 'mfl-serve': 'serve'}[name]
    return os.path.join(BUILD, folder, name)


def wait_until(condition, timeout, what):
    """Polls, at first every 10 ms, later every 50 ms: whoever waits long shall leave the processor to what is waited for.
    Returns the condition's first true value."""
    start, timeout = time.monotonic(), PATIENCE * timeout
    while True:
        value, waited = condition(), time.monotonic() - start
        if value:
            return value
        if waited > timeout:
            raise TimeoutError('waited %g s for %s' % (timeout, what))
        time.sleep(min(0.05, 0.01 + waited / 40))


def yaml_of(doc):
    """A job document as text: one line for each key at the top, the rest in flow style, which is JSON."""
    return ''.join('%s: %s\n' % (k, json.dumps(v)) for k, v in doc.items())


def job_doc(**changes):
    """A job that takes a second: 8 clients of 50 samples. A change that is a dict is merged into the section; None drops."""
    doc = {
        'name': 'tiny', 'seed': 7, 'rounds': 3, 'model': 'mlp',
        'data': {'name': 'tiny', 'partition': 'iid', 'clients': 8},
        'training': {'lr': 0.05, 'epochs': 1, 'batch': 10},
    }
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(doc.get(key), dict):
            doc[key].update(value)
            doc[key] = {k: v for k, v in doc[key].items() if v is not None}
        elif value is None:
            doc.pop(key, None)
        else:
            doc[key] = value
    return doc


def job_text(**changes):
    return yaml_of(job_doc(**changes))


class Process:
    def __init__(self, argv, log, env=None, pass_fds=()):
        self.log_path = log
        environment = {k: v for k, v in os.environ.items() if not k.startswith('MFL_')}
        environment.update(env or {})
        with open(log, 'ab') as out:
            self.popen = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=out, stderr=out, env=environment,
                                          pass_fds=pass_fds)

    @property
    def pid(self):
        return self.popen.pid

    def alive(self):
        return self.popen.poll() is None

    def memory_peak(self):
        """Bytes: the most that it has had resident."""
        with open('/proc/%d/status' % self.pid) as status:
            return 1024 * int(next(line for line in status if line.startswith('VmHWM')).split()[1])

    def wait(self, timeout):
        """The exit status; negative for a signal."""
        try:
            return self.popen.wait(PATIENCE * timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError('waited %g s for the end of %s' % (timeout, self.popen.args[0])) from None

    def signal(self, number):
        self.popen.send_signal(number)

    def kill(self):
        """As kill -9; fine when it has ended."""
        if self.alive():
            self.popen.kill()
        self.popen.wait(10)
        self.popen.stdin.close()

    def stop(self, timeout=10):
        """SIGTERM; returns the exit status."""
        self.popen.terminate()
        status = self.wait(timeout)
        self.popen.stdin.close()
        return status

    def log(self):
        with open(self.log_path, encoding='utf-8', errors='replace') as f:
            return f.read()


class Server(Process):
    def __init__(self, cluster, env=None, listen='127.0.0.1:0', prefix=()):
        read_fd, write_fd = os.pipe()
        try:
            super().__init__(
                [*prefix, program('mfl-server'), '--config', cluster.config_path, '--listen', listen, '--state-dir',
                 cluster.state_dir, '--ready-fd', str(write_fd), '--exit-with-stdin'],
                cluster.log_path('server'), env, (write_fd,))
        finally:
            os.close(write_fd)
        self.ready_fd, self.address = read_fd, None

    def wait_ready(self, timeout=20):
        """The address; None when the program ended first."""
        if self.ready_fd < 0:
            return self.address
        if not select.select([self.ready_fd], [], [], timeout)[0]:
            raise TimeoutError('the server did not listen within %g s' % timeout)
        line = os.read(self.ready_fd, 300).decode()
        os.close(self.ready_fd)
        self.ready_fd = -1
        self.address = line.strip() or None
        return self.address


class Cluster:
    """config: keys of the server's configuration file, over short times that suit tests."""

    def __init__(self, directory, config=None):
        self.dir = str(directory)
        self.state_dir = os.path.join(self.dir, 'state')
        self.config_path = os.path.join(self.dir, 'server.yaml')
        os.makedirs(self.dir, exist_ok=True)
        settings = {'heartbeat': '500ms', 'dead_after': '5s', 'reconnect_grace': '2s', 'memory_max': '512MiB'}
        settings.update(config or {})
        with open(self.config_path, 'w', encoding='utf-8') as f:
            f.write(''.join('%s: %s\n' % item for item in settings.items()))
        self.server, self.address = None, None
        self.daemons, self.others = {}, []
        self.share_dir = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def log_path(self, name):
        return os.path.join(self.dir, name + '.log')

    # -- processes --

    def start_server(self, env=None, ready=True, prefix=(), listen='127.0.0.1:0'):
        """Starts it, or starts it again at the same address. With ready=False it may end before it listens."""
        self.server = Server(self, env, self.address or listen, prefix)
        address = self.server.wait_ready()
        if ready:
            assert address, 'the server did not start: ' + self.server.log()[-2000:]
        self.address = address or self.address
        return self.server

    def share(self):
        """From here on the daemons share memory in a directory of this cluster's own, so that what lies there is theirs."""
        self.share_dir = self.share_dir or tempfile.mkdtemp(prefix='test-of-mfl-', dir='/dev/shm')
        return self.share_dir

    def shared_files(self):
        return sorted(os.listdir(self.share_dir))

    def daemon_argv(self, name, workers=1, data=(TINY,), backend='reference', server=None, node='n1', collective=None,
                    share_dir=None, prefix=(), more=()):
        """node None: its own idea of it. prefix: a command that runs it."""
        argv = [*prefix, program('mfl-client'), '--server', server or self.address, '--name', name, '--workers', str(workers),
                '--backend', backend, '--exit-with-stdin']
        for key, value in (('--node', node), ('--collective', collective), ('--share-dir', share_dir or self.share_dir)):
            argv += [key, value] if value else []
        for one in data:
            argv += ['--data', one]
        return argv + list(more)

    def start_daemon(self, name='d1', env=None, **options):
        daemon = Process(self.daemon_argv(name, **options), self.log_path(name), env)
        if name in self.daemons:
            self.others.append(self.daemons[name])
        self.daemons[name] = daemon
        return daemon

    def close(self):
        processes = [*self.daemons.values(), *self.others, *([self.server] if self.server else [])]
        for p in processes:
            p.kill()
        if self.share_dir:
            shutil.rmtree(self.share_dir, ignore_errors=True)

    def check_alive(self):
        """The server and every daemon that was not ended on purpose still run."""
        assert self.server.alive(), 'the server has ended: ' + self.server.log()[-2000:]
        with self.operator() as o:
            o.jobs()

    # -- requests --

    def operator(self, timeout=10):
        return mfl_wire.Operator(self.address, timeout)

    def submit(self, token='', **changes):
        with self.operator() as o:
            return o.submit(job_text(**changes), token)

    def info(self, job):
        """The job's JobInfo with its state as a word; None while the server can't be reached."""
        try:
            with self.operator() as o:
                info = o.info(job)
        except (OSError, mfl_wire.Closed, TimeoutError):
            return None
        info['state'] = STATES[info['state']]
        return info

    def wait_job(self, job, timeout=30, state='done'):
        """Waits for its end; asserts how it ended."""
        last = [None]

        def ended():
            last[0] = self.info(job) or last[0]
            return last[0] and last[0]['state'] in ENDED and last[0]
        try:
            info = wait_until(ended, timeout, 'the end of ' + job)
        except TimeoutError as e:
            raise TimeoutError('%s; it is at %s' % (e, last[0])) from None
        assert info['state'] == state, '%s is %s: %s' % (job, info['state'], info['reason'])
        return info

    def wait_info(self, job, condition, timeout, what):
        return wait_until(lambda: (lambda i: i and condition(i) and i)(self.info(job)), timeout, what)

    def rounds(self, job):
        with self.operator() as o:
            return o.rounds(job)

    def nodes(self, job):
        """{round: [what each node's part in it cost]}, by the nodes' names."""
        with self.operator() as o:
            costs = o.request('show_job', {'job': job})['nodes']
        return {r: sorted((n for n in costs if n['round'] == r), key=lambda n: n['node']) for r in {n['round'] for n in costs}}

    def digests(self, job):
        """Digest of every round, in order; asserts that no round is missing or there twice."""
        rounds = self.rounds(job)
        assert [r['round'] for r in rounds] == list(range(1, len(rounds) + 1))
        return [r['digest'].hex() for r in rounds]

    def wait_daemons(self, n, timeout=10):
        def there():
            for name, d in self.daemons.items():
                assert d.popen.poll() in (None, 0, -signal.SIGKILL), '%s has ended: %s' % (name, d.log()[-1000:])
            with self.operator() as o:
                daemons = [d for d in o.daemons() if d['state'] != 'lost']
            return len(daemons) >= n and daemons
        return wait_until(there, timeout, '%d daemons' % n)

    def data_sets(self, timeout=10):
        """The data sets of the first daemon, as a fake one may offer them."""
        return self.wait_daemons(1, timeout)[0]['data_sets']

    def run_job(self, timeout=30, **changes):
        """Submits and waits; returns (job, digests of its rounds)."""
        job = self.submit(**changes)
        self.wait_job(job, timeout)
        return job, self.digests(job)

    def begin(self, **changes):
        """Submits a job that goes on until finish(): whatever a test does to it falls into its middle."""
        return self.submit(**dict(changes, rounds=ENDLESS))

    def stop_job(self, job):
        with self.operator() as o:
            o.request('stop_job', {'job': job})
        return self.wait_job(job, state='stopped')

    def finish(self, job, more=2, **changes):
        """Waits for some more rounds of what begin() began and stops it. Asserts that its rounds gave the models of a job of so
        many rounds that nobody disturbs, which runs here afterwards and whose id it returns."""
        at = self.wait_info(job, lambda i: True, 10, 'an answer')['round']
        self.wait_info(job, lambda i: i['round'] >= at + more, 30, '%d more rounds of %s' % (more, job))
        self.stop_job(job)
        digests = self.digests(job)
        again, expected = self.run_job(60, **dict(changes, rounds=len(digests)))
        assert digests == expected
        return again

    def harass(self, name, times=8, pause=0.4):
        """Kills the server and one of its daemons in turn, at random moments, and starts each again. name: of the draws."""
        rng = seeded(name)
        for i in range(times):
            time.sleep(rng.random() * pause)
            daemon = rng.choice(sorted(self.daemons))
            if i % 2:
                self.server.kill()
                self.start_server()
            else:
                self.daemons[daemon].kill()
                self.start_daemon(daemon)

    def rot_newest(self, job):
        """Changes the last byte of the checkpoint of the job's last committed round. Returns the round. The server must not run.
        A newer file may lie there, of a round whose row was never written."""
        with contextlib.closing(sqlite3.connect(os.path.join(self.state_dir, 'mfl.db'))) as db:
            at, newest = db.execute('SELECT round, file FROM rounds WHERE job = ? AND kept AND superseded = 0 ORDER BY round DESC', (job,)).fetchone()
        with open(os.path.join(self.state_dir, 'jobs', job, newest), 'r+b') as f:
            f.seek(-1, 2)
            last = f.read(1)
            f.seek(-1, 2)
            f.write(bytes([last[0] ^ 1]))
        return at

    # -- the command line --

    def mfl(self, *argv, **options):
        return mfl(*argv, server=self.address, cwd=self.dir, **options)

    def mfl_json(self, *argv, **options):
        return json.loads(self.mfl(*argv, '--json', **options).stdout)

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path, 'w' if isinstance(text, str) else 'wb') as f:
            f.write(text)
        return path


def mfl(*argv, server=None, status=0, timeout=60, cwd=None, stdin='', env=None):
    """Runs `mfl`; asserts its exit status (None: any)."""
    changes = {'LC_ALL': 'C.UTF-8', 'NO_COLOR': '1', 'XDG_CONFIG_HOME': '/nonexistent', **(env or {})}
    env = {k: v for k, v in os.environ.items() if not k.startswith('MFL_')}
    env.update(changes)  # certificates of whoever runs the tests are not theirs
    if server:
        env['MFL_SERVER'] = server
    done = subprocess.run([program('mfl'), *map(str, argv)], env=env, cwd=cwd, timeout=timeout, input=stdin, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    assert status is None or done.returncode == status, 'mfl %s: status %d, expected %s\n%s%s' % (
        ' '.join(map(str, argv)), done.returncode, status, done.stdout, done.stderr)
    return done


def measures():
    """The names of what an evaluation measures, from `mfl help json`."""
    text = mfl('help', 'json').stdout
    block = text[text.index('"client_bins": [numbers],'):]
    return re.findall(r'^ +"(\w+)",?  ', block[:block.index('"metrics"')], re.M)


def start_cluster(directory, daemons=1, workers=1, config=None, **options):
    cluster = Cluster(directory, config)
    try:
        cluster.start_server()
        for i in range(daemons):
            cluster.start_daemon('d%d' % (i + 1), workers=workers, **options)
    except BaseException:
        cluster.close()
        raise
    return cluster


def read_safetensors(path):
    """{name: (dtype, shape, bytes)} in the file's order, by the format's definition."""
    with open(path, 'rb') as f:
        data = f.read()
    n, = struct.unpack_from('<Q', data)
    header = json.loads(data[8:8 + n])
    header.pop('__metadata__', None)
    ordered = sorted(header.items(), key=lambda item: item[1]['data_offsets'])
    return {name: (t['dtype'], t['shape'], data[8 + n + t['data_offsets'][0]:8 + n + t['data_offsets'][1]])
            for name, t in ordered}


def params_digest(path):
    """SHA-256 of the model's floats in a safetensors file: what the server shows as the digest of a round."""
    h = hashlib.sha256()
    for name, (dtype, _, data) in read_safetensors(path).items():
        if '/' not in name:
            assert dtype == 'F32'
            h.update(data)
    return h.hexdigest()


class Proxy:
    """TCP between daemons and the server that counts and cuts. cuts: numbers of bytes sent upwards, over all connections,
    at which the connection in use is cut (reset in both directions), after on_cut was called. delay: seconds that
    each 64 KiB upwards takes. Its threads end with close()."""

    def __init__(self, target, cuts=(), on_cut=None, delay=0):
        self.target, self.cuts, self.on_cut, self.delay = target, sorted(cuts), on_cut, delay
        self.bytes_up = self.n_cut = self.n_connections = 0
        self.lock, self.sockets, self.closing = threading.Lock(), set(), False
        self.listener = socket.create_server(('127.0.0.1', 0))
        self.address = '127.0.0.1:%d' % self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        host, port = self.target.rsplit(':', 1)
        while not self.closing:
            try:
                down, _ = self.listener.accept()
            except OSError:
                return
            try:
                up = socket.create_connection((host, int(port)), 5)
                up.settimeout(None)
            except OSError:
                down.close()
                continue
            for s in (down, up):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.n_connections += 1
                self.sockets |= {up, down}
            for a, b, upwards in ((down, up, True), (up, down, False)):
                threading.Thread(target=self._pump, args=(a, b, upwards), daemon=True).start()

    def _reset(self, *sockets):
        for s in sockets:
            try:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()
            with self.lock:
                self.sockets.discard(s)

    def _due(self, n):
        """Counts n bytes; True when a cut falls into them."""
        with self.lock:
            self.bytes_up += n
            due = bool(self.cuts) and self.bytes_up >= self.cuts[0]
            if due:
                self.n_cut += 1
            while self.cuts and self.bytes_up >= self.cuts[0]:
                self.cuts.pop(0)
            return due

    def _pump(self, source, sink, upwards):
        try:
            while True:
                data = source.recv(1 << 16)
                if not data:
                    break
                if upwards and self._due(len(data)):
                    if self.on_cut:
                        self.on_cut()
                    break
                if upwards and self.delay:
                    time.sleep(self.delay)
                sink.sendall(data)
        except OSError:
            pass
        self._reset(source, sink)

    def cut_all(self):
        with self.lock:
            sockets = list(self.sockets)
            self.n_cut += 1
        self._reset(*sockets)

    def close(self):
        self.closing = True
        self.listener.close()
        with self.lock:
            sockets = list(self.sockets)
        self._reset(*sockets)


def seeded(name):
    """Random numbers of a test: the same in every run."""
    return random.Random('mfl ' + name)


__all__ = ['Cluster', 'FAULT_STATUS', 'Process', 'Proxy', 'TINY', 'job_doc', 'job_text', 'mfl', 'params_digest', 'program',
           'read_safetensors', 'seeded', 'signal', 'start_cluster', 'wait_until', 'yaml_of']
