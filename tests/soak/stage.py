# SPDX-License-Identifier: Apache-2.0
"""The stage of the soak: a server with TLS and HTTP on a small file system, its daemons, the log of every action, and what
must hold of the files at any idle point."""
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import ledger as book
import measure
import mfl_certs
import mfl_harness as h

KEEPERS = ('keep1', 'keep2')
PASSING = ('t1', 't2', 't3', 't4')
PEOPLE = {'ann': ['operator'], 'bob': ['operator'], 'root': ['operator', 'admin'], 'vic': ['viewer']}
CERTIFICATES = 4
DISK_MIB = 96
# What no log may hold.
ALARMS = re.compile(r'assert|Sanitizer|runtime error|\bleak|DAMAGED|corrupt|malformed|out of memory|stack smashing|double free',
                    re.I)
NO_ROOM = re.compile('No space left|disk is full')
# Descriptors of the listening sockets and files come and go with the first job; what is counted must be settled.
SETTLED_POLLS = 5
# Faults of one life each, where no file system can be mounted: every second one of them.
INJECTED = ['before-write:%d:enospc', 'before-fsync:%d:enospc', 'before-db-commit:%d:enospc', 'before-rename:%d:eio']


class Log:
    """Lines with the time since the start; one file, and the important ones on standard output, too."""

    def __init__(self, path):
        self.start, self.lock = time.monotonic(), threading.Lock()
        self.file = open(path, 'w', encoding='utf-8')  # pylint: disable=consider-using-with

    def seconds(self):
        return time.monotonic() - self.start

    def __call__(self, who, text, show=False):
        line = '%9.3f %-8s %s' % (self.seconds(), who, text)
        with self.lock:
            self.file.write(line + '\n')
            self.file.flush()
            if show:
                print(line, flush=True)


class Stage(h.Cluster):
    def __init__(self, folder, rng, mounted, sanitized):
        os.makedirs(folder, exist_ok=True)
        self.ca = mfl_certs.Ca(os.path.join(folder, 'ca'), 'Soak CA')
        self.pairs = {n: self.ca.issue(n, roles) for n, roles in PEOPLE.items()}
        self.pairs.update({n: self.ca.issue(n, ['daemon']) for n in KEEPERS + PASSING})
        for i in range(CERTIFICATES):
            self.ca.server(file='server%d' % i)
        tls = {k: os.path.join(folder, f) for k, f in (('tls_cert', 'server.pem'), ('tls_key', 'server.key'))}
        super().__init__(folder, {**tls, 'tls_ca': self.ca.ca, 'http': '127.0.0.1:0', 'reconnect_grace': '1s'})
        self.install(0)
        self.rng, self.mounted, self.sanitized = rng, mounted, sanitized
        self.log, self.ledger = Log(os.path.join(folder, 'actions.log')), book.Ledger()
        self.counts, self.lives, self.read_to = {}, {}, {}
        self.frozen, self.n_certificate, self.n_life = set(), 0, 0
        self.full_until, self.away = -1.0, []  # away: [seconds at which the server went, and at which it was back]
        self.server_lock = threading.Lock()
        os.makedirs(self.state_dir)
        if mounted:
            self.share_dir = os.path.join(folder, 'shm')
            os.makedirs(self.share_dir)
            for target, mib in ((self.state_dir, DISK_MIB), (self.share_dir, 256)):
                subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=%dm' % mib, 'soak', target], check=True)
        else:
            self.share()

    def count(self, what):
        with self.ledger.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def fault(self, text):
        self.log('FAULT', text, show=True)
        self.ledger.fault(text)

    # -- the server --

    def install(self, i):
        """The i-th certificate in the place of the one in use, each file at once."""
        for end in ('key', 'pem'):
            target = os.path.join(self.dir, 'server.' + end)
            shutil.copy(self.ca.path('server%d.%s' % (i, end)), target + '.new')
            os.rename(target + '.new', target)

    def was_away(self, at):
        """Whether who began at that second may have found nobody at the address."""
        return any(begin - 2 <= at <= end for begin, end in self.away)

    def is_full(self, since=2.0):
        """Whether the disk is full, or was that many seconds ago."""
        return self.log.seconds() < self.full_until + since or not self.mounted

    def http_address(self):
        found = re.findall(r'http://([^/]+)/', self.server.log())
        return found[-1] if found else None

    def get(self, path):
        """Status and body; (0, '') while nobody answers."""
        try:
            connection = http.client.HTTPConnection(self.http_address() or 'localhost:1', timeout=10)
            try:
                connection.request('GET', path)
                answer = connection.getresponse()
                return answer.status, answer.read().decode('utf-8', 'replace')
            finally:
                connection.close()
        except (OSError, http.client.HTTPException):
            return 0, ''

    def up(self, meanwhile=lambda: None):
        """Starts the server, again and again while the disk is full, as a service manager would; `meanwhile` may free it."""
        for _ in range(200):
            env = {}
            self.n_life += 1
            if not self.mounted and self.n_life % 2 == 0:
                env['MFL_FAULT'] = self.rng.choice(INJECTED) % self.rng.randrange(1, 20)
            self.start_server(env, ready=False)
            if self.server.address:
                self.log('server', 'up, pid %d %s' % (self.server.pid, env or ''))
                if self.away:
                    self.away[-1][1] = self.log.seconds()
                return
            status = self.server.wait(30)
            if not self.is_full() or status != 1 or not NO_ROOM.search(self.server.log()[-600:]):
                self.fault('the server did not start: status %d, %s' % (status, self.server.log()[-600:]))
                raise SystemExit(1)
            self.log('server', 'did not start: the disk is full')
            meanwhile()
            time.sleep(0.2)
        raise SystemExit('the server does not start')

    def down(self, how):
        """SIGKILL or SIGTERM; then the state is looked at."""
        self.log('server', how)
        self.away.append([self.log.seconds(), float('inf')])
        if how == 'SIGKILL':
            self.server.kill()
        else:
            status = self.server.stop(60)
            if status:
                self.fault('the server ended with status %d after SIGTERM' % status)
        self.check_state()

    def check_state(self):
        done = subprocess.run([h.program('mfl-server'), '--state-dir', self.state_dir, '--check-state'], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=120, check=False)
        self.count('state checked')
        if done.returncode:
            self.fault('--check-state: status %d%s: %s%s' % (done.returncode, ', on a full disk' if self.is_full() else '',
                                                              done.stdout, done.stderr))

    # -- the disk --

    def fill(self):
        """To the last byte; True when it could be."""
        if not self.mounted:
            return False
        self.full_until = float('inf')
        with open(os.path.join(self.state_dir, 'filler'), 'wb', buffering=0) as f:
            for size in (1 << 20, 65536, 4096, 1):
                try:
                    while True:
                        f.write(bytes(size))
                except OSError:
                    pass
        return True

    def free(self):
        try:
            os.remove(os.path.join(self.state_dir, 'filler'))
            self.full_until = self.log.seconds()
        except FileNotFoundError:
            pass

    # -- daemons --

    def start_daemon(self, name='d1', env=None, **options):
        cert, key = self.pairs[name]
        tls = {'MFL_TLS_CA': self.ca.ca, 'MFL_TLS_CERT': cert, 'MFL_TLS_KEY': key, **(env or {})}
        path = self.log_path(name)
        said = os.path.getsize(path) if os.path.exists(path) else 0
        daemon = super().start_daemon(name, env=tls, data=(book.TINY, book.PICTURES), **options)
        daemon.said = said
        return daemon

    def start_keepers(self, backend):
        for name in KEEPERS:
            self.start_daemon(name, backend=backend)
            self.life(name, self.daemons[name].pid)

    def running(self, names=PASSING):
        return [n for n in names if n in self.daemons and self.daemons[n].alive()]

    def freeze(self, name):
        self.frozen.add(name)
        self.daemons[name].signal(signal.SIGSTOP)

    def thaw(self, name):
        if name in self.frozen:
            self.frozen.discard(name)
            if self.daemons[name].alive():
                self.daemons[name].signal(signal.SIGCONT)

    def end_daemon(self, name, timeout=60):
        """SIGTERM: it must end with 0."""
        self.thaw(name)
        daemon = self.daemons.pop(name)
        try:
            status = daemon.stop(timeout)
        except TimeoutError as e:
            daemon.kill()
            self.fault('%s: %s' % (name, e))
            return
        early = status == -signal.SIGTERM and os.path.getsize(daemon.log_path) == daemon.said  # before its first line
        if status and not early:
            self.fault('%s ended with status %d after SIGTERM: %s' % (name, status, daemon.log()[-800:]))

    def kill_daemon(self, name):
        self.frozen.discard(name)
        self.daemons.pop(name).kill()

    # -- people --

    def cli(self, who, *argv, ok=(0,), timeout=150, space=False, stdin=''):
        """Runs mfl; (status, standard output). 3 is allowed: the server is killed and frozen. space: a full disk may be its
        excuse, with 'space' in what it says; the status is None then."""
        cert, key = self.pairs[who]
        try:
            done = h.mfl(*argv, '--tls-ca', self.ca.ca, '--tls-cert', cert, '--tls-key', key, server=self.address, cwd=self.dir,
                         status=None, timeout=timeout, stdin=stdin)
        except subprocess.TimeoutExpired:
            self.fault('mfl %s of %s hung for %d s' % (' '.join(map(str, argv)), who, timeout))
            return 3, ''
        said = (done.stderr or done.stdout).strip().replace('\n', ' | ')[:160]
        self.log(who, 'mfl %s -> %d %s' % (' '.join(map(str, argv)), done.returncode, said))
        self.count('mfl ' + argv[0])
        if done.returncode in (*ok, 3):
            return done.returncode, done.stdout
        if space and self.is_full() and NO_ROOM.search(done.stderr + done.stdout):
            self.count('refused for want of room')
            return None, ''
        self.fault('mfl %s of %s: status %d: %s' % (' '.join(map(str, argv)), who, done.returncode, done.stderr + done.stdout))
        return done.returncode, ''

    def json(self, who, *argv, **options):
        """(status, the object); None without one."""
        status, text = self.cli(who, *argv, '--json', **options)
        return status, (json.loads(text.splitlines()[-1]) if status == 0 and text.strip() else None)

    def expect_audit(self, *entry):
        """What was answered just now is in the book, unless the disk was full."""
        if not self.is_full():
            self.ledger.expect_audit(*entry)

    # -- what must hold --

    def life(self, name, pid):
        return self.lives.setdefault(pid, measure.Life(name, pid))

    def settled(self, pid, timeout=20):
        """A sample whose number of descriptors has not changed for a while, at the level of the first one if it comes to that."""
        end, same, last = time.monotonic() + timeout, 0, None
        usual = min((s['fds'] for _, s in self.life('', pid).samples), default=1 << 20) + measure.DESCRIPTORS_SLACK
        while (same < SETTLED_POLLS or last['fds'] > usual) and time.monotonic() < end:
            sample = measure.status(pid)
            if not sample:
                return None
            same = same + 1 if last and last['fds'] == sample['fds'] else 0
            last = sample
            time.sleep(0.2)
        return last

    def check_logs(self):
        for name in sorted(os.listdir(self.dir)):
            if not name.endswith('.log') or name == 'actions.log':
                continue
            with open(os.path.join(self.dir, name), encoding='utf-8', errors='replace') as f:
                f.seek(self.read_to.get(name, 0))
                for line in f:
                    if ALARMS.search(line):
                        self.fault('%s: %s' % (name, line.strip()[:300]))
                self.read_to[name] = f.tell()

    def stray(self):
        """Files of the state directory that no job in the ledger accounts for."""
        jobs = {j.id for j in self.ledger.there()}
        found = ['jobs/' + n for n in os.listdir(os.path.join(self.state_dir, 'jobs')) if n not in jobs]
        uploads = os.path.join(self.state_dir, 'uploads')
        found += ['uploads/' + n for n in (os.listdir(uploads) if os.path.isdir(uploads) else ())]
        found += [n for n in os.listdir(self.state_dir) if n.startswith('spill-')]
        for folder, _, names in os.walk(os.path.join(self.state_dir, 'jobs')):
            found += [os.path.join(os.path.basename(folder), n) for n in names if n.endswith('.tmp')]
        return found

    def stray_shared(self):
        """Instances in shared memory whose lock file belongs to nobody who lives: more than there are daemons."""
        return sorted({re.match(r'mfl-([0-9a-f]{16})', n).group(1) for n in os.listdir(self.share_dir)})

    def close(self):
        for name in list(self.frozen):
            self.thaw(name)
        super().close()


def enter_namespace():
    """Runs this program again in a mount namespace of its own, where there may be one: what it mounts goes with it."""
    if os.environ.get('MFL_SOAK_INSIDE'):
        return os.environ['MFL_SOAK_INSIDE'] == 'mounted'
    for way in (['unshare', '--mount'], ['unshare', '--user', '--map-root-user', '--mount']):
        probe = subprocess.run([*way, 'mount', '-t', 'tmpfs', '-o', 'size=64k', 'soak', '/mnt'], check=False,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) if shutil.which('unshare') else None
        if probe and probe.returncode == 0:
            os.environ['MFL_SOAK_INSIDE'] = 'mounted'
            os.execvp(way[0], [*way, sys.executable, *sys.argv])
    return False


def sanitized():
    """Whether the build under test has a sanitizer: its memory is the sanitizer's business then."""
    try:
        with open(os.path.join(h.BUILD, 'meson-info', 'intro-buildoptions.json'), encoding='utf-8') as f:
            return next(o['value'] for o in json.load(f) if o['name'] == 'b_sanitize') != 'none'
    except (OSError, StopIteration, ValueError):
        return False
