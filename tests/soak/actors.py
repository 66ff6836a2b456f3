# SPDX-License-Identifier: Apache-2.0
"""Who acts in the soak: operators with jobs, readers of pages, strangers with garbage, and chaos, which starts, ends and freezes
daemons and the server and fills the disk. Each draws from random numbers of its own, so that a seed gives each the same
intentions; what comes of them depends on the machine, and the log of actions says it."""
import os
import random
import signal
import socket
import subprocess
import threading
import time
import traceback

import ledger as book
import mfl_harness as h
import stage as st

UNFINISHED_MAX = 5
WATCHERS_MAX = 4
ENDED = ('done', 'failed', 'stopped')


class Operator(threading.Thread):
    """A person at the command line, until the cycle's busy part is over."""

    def __init__(self, stage, who, seed, until):
        super().__init__(name=who)
        self.stage, self.who, self.rng, self.until = stage, who, random.Random('%s %s' % (seed, who)), until
        self.token = 'soak-%s-%s' % (seed, who)
        self.n, self.watchers = 0, []

    def run(self):
        try:
            while time.monotonic() < self.until:
                self.act()
                time.sleep(self.rng.uniform(0.05, 0.6))
        except Exception as e:  # pylint: disable=broad-except
            self.stage.fault('operator %s: %s' % (self.who, ''.join(traceback.format_exception(e))))

    def act(self):
        status, listed = self.stage.json(self.who, 'list')
        if status:
            return
        states = {j['job']: j['state'] for j in listed['jobs']}
        open_jobs = [j for j in states if states[j] not in ENDED]
        ended = [j for j in states if states[j] in ENDED]
        choice = self.rng.choices(('submit', 'stop', 'clone', 'delete', 'pull', 'watch', 'look', 'wrong'),
                                  (30, 10, 5, 8, 8, 8, 10, 4))[0]
        if choice in ('submit', 'clone') and len(open_jobs) >= UNFINISHED_MAX:
            choice = 'stop' if self.rng.random() < 0.2 else 'look'
        if choice == 'submit' or not states:
            self.submit()
        elif choice in ('stop', 'watch'):
            self.on_one(getattr(self, choice), open_jobs)
        elif choice == 'pull':
            self.on_one(self.pull, ended)
        elif choice in ('delete', 'clone'):
            mine = [j['job'] for j in listed['jobs'] if self.who in (j['owner'], 'root')]
            self.on_one(getattr(self, choice), [j for j in ended if j in mine])
        else:
            getattr(self, choice)(sorted(states))

    def on_one(self, act, jobs):
        if jobs:
            job = self.stage.ledger.jobs.get(self.rng.choice(sorted(jobs)))
            if job:  # else its submission has not been answered yet
                act(job)

    # -- jobs --

    def next_token(self):
        self.n += 1
        return '%s-%d' % (self.token, self.n)

    def submit(self):
        kind = self.rng.choices(book.KINDS, book.WEIGHTS)[0]
        token = self.next_token()
        path = self.stage.write('%s.yaml' % token, h.yaml_of(kind.doc))
        if not send(self.stage, self.who, kind, token, ('submit', path)):
            with self.stage.ledger.lock:
                self.stage.ledger.pending.append((self.who, kind, token, ('submit', path)))
        else:
            os.remove(path)

    def clone(self, job):
        token = self.next_token()
        with self.stage.ledger.lock:
            if job.deleting:
                return
            job.pinned += 1  # its text is needed until the clone is known to be there
        known = send(self.stage, self.who, job.kind, token, ('clone', job.id))
        with self.stage.ledger.lock:
            if known:
                job.pinned -= 1
            else:
                self.stage.ledger.pending.append((self.who, job.kind, token, ('clone', job.id)))

    def stop(self, job):
        if job.owner != self.who and self.who != 'root' and self.rng.random() < 0.7:
            return
        stop(self.stage, self.who, job)

    def delete(self, job):
        delete(self.stage, self.who, job)

    def pull(self, job):
        path = os.path.join(self.stage.dir, '%s-%s.safetensors' % (job.id, self.who))
        which = self.rng.choice(('last', 'best'))
        status, pulled = self.stage.json(self.who, 'pull', job.id, '--round', which, '-o', path, ok=(0, 4))
        if status == 0:
            wanted = job.kind.digests[pulled['round'] - 1] if job.kind.digests else pulled['digest']
            if not wanted == pulled['digest'] == h.params_digest(path):
                self.stage.fault('mfl pull %s: round %d is %s, not %s' % (job.id, pulled['round'], pulled['digest'], wanted))
            os.remove(path)
        elif status == 4 and not job.deleting and job.end and job.end[2]:
            self.stage.fault('mfl pull %s finds no model of %d rounds' % (job.id, len(job.end[2])))

    def watch(self, job):
        """Stays beside the others; half of them are killed before the end."""
        if sum(w[1].poll() is None for w in self.watchers) >= WATCHERS_MAX:
            return
        cert, key = self.stage.pairs[self.who]
        verb = self.rng.choice((['watch'], ['logs', '--follow'], ['pull', '--format', 'jsonl', '--follow', '-o', '-']))
        argv = [h.program('mfl'), *verb, job.id, '--timeout', '200', '--server', self.stage.address, '--tls-ca',
                self.stage.ca.ca, '--tls-cert', cert, '--tls-key', key]
        with open(os.path.join(self.stage.dir, 'watchers.log'), 'a', encoding='utf-8') as out:
            watcher = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=out)
        self.stage.log(self.who, 'mfl %s %s, pid %d' % (' '.join(verb), job.id, watcher.pid))
        self.stage.count('mfl %s in the background' % verb[0])
        self.watchers.append((job, watcher, verb[0] == 'watch', self.stage.log.seconds()))

    def look(self, states):
        job = self.rng.choice(states) if states else 'last'
        argv = self.rng.choice((('show', job), ('logs', job), ('models', job), ('daemons',), ('audit', '--last', '5'),
                                ('daemons', 'rules'), ('show', job, '--partition')))
        self.stage.cli(self.who, *argv, ok=(0, 4))

    def wrong(self, _states):
        """A viewer that submits, and a job file that is none: refused, and nothing else."""
        bad = self.stage.write('wrong-%s.yaml' % self.who, h.job_text(rounds='many'))
        good = self.stage.write('good-%s.yaml' % self.who, h.job_text())
        self.stage.cli(self.who, 'submit', bad, ok=(5,))
        self.stage.cli('vic', 'submit', good, ok=(5,))


def send(stage, who, kind, token, argv, again=False):
    """Submits or clones; False when it is not known whether the job is there, or the disk refused it."""
    status, answer = stage.json(who, *argv, '--token', token, '--timeout', '20', space=True, ok=(0,))
    if status != 0 or not answer:
        return False
    stage.ledger.submitted(answer['job'], kind, who)
    if not answer['existed']:
        stage.expect_audit(who, argv[0], answer['job'], 'done')
    elif not again:
        stage.log(who, '%s: sent twice, one job' % answer['job'])
    return True


def stop(stage, who, job):
    may = who in (job.owner, 'root')
    with stage.ledger.lock:
        job.stops |= {who} if may else set()
    status, answer = stage.json(who, 'stop', job.id, ok=(0, 4) if may else (4, 5))
    if status == 0 and answer['text'] == 'stopped':
        job.stopped = True
        stage.expect_audit(who, 'stop', job.id, 'done')
    elif status == 4 and not job.deleting:
        stage.fault('mfl stop %s: not found, and nobody has deleted it' % job.id)


def delete(stage, who, job):
    """Its end is judged before it is gone."""
    status, detail = stage.json(who, 'show', job.id, ok=(0, 4))
    if status or detail['job']['state'] not in ENDED:
        return
    stage.ledger.judge(detail)
    with stage.ledger.lock:
        if job.deleting or job.pinned:
            return
        job.deleting = True
    status, _ = stage.json(who, 'delete', job.id, ok=(0, 6), space=True)
    if status == 0:
        with stage.ledger.lock:
            stage.ledger.deleted.add(job.id)
        stage.expect_audit(who, 'delete', job.id, 'done')


# ---- those who only look, and those who only disturb ----

class Reader(threading.Thread):
    """Reads pages again and again, but not while `quiet` is set."""

    def __init__(self, stage, name, paths, seconds):
        super().__init__(name=name, daemon=True)
        self.stage, self.paths, self.seconds = stage, paths, seconds
        self.quiet, self.idle, self.ended, self.n_read = threading.Event(), threading.Event(), threading.Event(), 0

    def run(self):
        while not self.ended.wait(self.seconds):
            if self.quiet.is_set():
                self.idle.set()
                continue
            self.idle.clear()
            for path, word in self.paths:
                status, body = self.stage.get(path)
                if status == 200 and word in body:
                    self.n_read += 1
                elif status not in (0, 503):
                    self.stage.fault('%s: GET %s: status %d without %s' % (self.name, path, status, word))


def readers(stage):
    return [Reader(stage, 'scraper', [('/metrics', 'process_open_fds'), ('/healthz', ''), ('/readyz', '')], 0.5),
            Reader(stage, 'browser', [('/', '<html'), ('/api/jobs', '{'), ('/api/daemons', '{'), ('/api/rounds', '')], 0.7)]


NOISE = [b'', b'\x16', b'\x16\x03\x01\x02\x00\x01\x00', b'GET / HTTP/1.1\r\n\r\n', b'MFL1' + bytes(20)]


def garbage(stage, rng, held):
    """Strangers at both ports. Some stay, silent or half through a handshake, until the idle point."""
    addresses = [stage.address, stage.address, stage.http_address()]
    n = rng.randrange(20, 120)
    for _ in range(n):
        address = rng.choice(addresses)
        data = rng.choice(NOISE + [rng.randbytes(700)])
        try:
            host, port = address.split(':')
            s = socket.create_connection((host, int(port)), 2)
            s.setblocking(False)
            s.send(data)
        except (OSError, AttributeError):
            continue
        held.append(s)
        if rng.random() < 0.7:
            held.pop(rng.randrange(len(held))).close()
    stage.log('stranger', '%d connections, %d held' % (n, len(held)))
    stage.count('garbage')


class Chaos:
    """What happens to processes and the disk. Every action that lasts has its end in `later`, and all ends come before the idle
    point."""

    WEIGHTS = {'start': 26, 'term': 8, 'kill': 9, 'freeze': 8, 'takeover': 3, 'rule': 5, 'drain': 5, 'drain_all': 1,
               'reload': 6, 'fill': 5, 'garbage': 5, 'freeze_server': 2}

    def __init__(self, stage, seed, backend):
        self.stage, self.rng, self.backend = stage, random.Random('%s chaos' % seed), backend
        self.later, self.held, self.how = [], [], 'SIGKILL'

    def run(self, until, kills):
        """kills: times, as `until`, at which the server is killed, and from the second on ended."""
        kills = sorted(kills)
        while time.monotonic() < until:
            self.end_due()
            if kills and kills[0] <= time.monotonic():
                kills.pop(0)
                self.restart()
            else:
                name = self.rng.choices(list(self.WEIGHTS), list(self.WEIGHTS.values()))[0]
                self.stage.count(name.replace('_', ' '))
                getattr(self, name)()
            time.sleep(self.rng.uniform(0.1, 1.2))

    def end_due(self):
        now = time.monotonic()
        for at, end in sorted(self.later, key=lambda x: x[0]):
            if at <= now:
                self.later.remove((at, end))
                end()

    def end_all(self):
        for _, end in sorted(self.later, key=lambda x: x[0]):
            end()
        self.later = []
        for s in self.held:
            s.close()
        self.held = []

    def after(self, low, high, end):
        self.later.append((time.monotonic() + self.rng.uniform(low, high), end))

    def any_daemon(self, names):
        there = self.stage.running(names)
        return self.rng.choice(there) if there else None

    def restart(self):
        how, self.how = self.how, 'SIGTERM'
        self.stage.count('server ' + how)
        self.stage.down(how)
        time.sleep(self.rng.choice((0, 0.3, 2)))
        self.stage.up(self.end_due)

    # -- daemons --

    def start(self):
        absent = [n for n in st.PASSING if n not in self.stage.running()]
        if not absent:
            return
        name = self.rng.choice(absent)
        node, collective = self.rng.choice(('n1', 'n1', 'n2')), self.rng.choice((None, None, 'shm', 'solo'))
        self.stage.start_daemon(name, node=node, collective=collective, backend=self.backend)
        self.stage.log('chaos', 'start %s, pid %d, node %s, %s' % (name, self.stage.daemons[name].pid, node, collective))

    def term(self):
        name = self.any_daemon(st.PASSING)
        if name:
            self.stage.log('chaos', 'SIGTERM ' + name)
            self.stage.end_daemon(name)

    def kill(self):
        name = self.any_daemon(st.PASSING)
        if name:
            self.stage.log('chaos', 'SIGKILL ' + name)
            self.stage.kill_daemon(name)

    def freeze(self):
        name = self.any_daemon(st.PASSING + st.KEEPERS)
        if name and name not in self.stage.frozen:
            self.stage.log('chaos', 'SIGSTOP ' + name)
            self.stage.freeze(name)
            pid = self.stage.daemons[name].pid

            def thaw():
                if name in self.stage.daemons and self.stage.daemons[name].pid == pid:
                    self.stage.log('chaos', 'SIGCONT ' + name)
                    self.stage.thaw(name)
            self.after(0.3, 9, thaw)

    def takeover(self):
        """A second process under a name, as when a machine was cut off and started again; then the first one dies."""
        name = self.any_daemon(st.PASSING)
        if name:
            first = self.stage.daemons[name]
            self.stage.thaw(name)
            self.stage.start_daemon(name, backend=self.backend)
            self.stage.others.remove(first)
            self.stage.log('chaos', 'a second %s, pid %d' % (name, self.stage.daemons[name].pid))
            self.after(0.5, 3, first.kill)

    # -- people's measures --

    def rule(self):
        pattern = self.rng.choice(('t*', 't1', 'keep1', 'keep?', 'cn:t2'))
        if self.stage.json('root', 'daemons', 'disable', pattern, '--reason', 'soak', space=True)[0] == 0:
            self.stage.expect_audit('root', 'disable', pattern, 'done')
        self.after(1, 8, lambda: self.stage.json('root', 'daemons', 'enable', pattern, ok=(0, 4), space=True))

    def drain(self):
        name = self.any_daemon(st.PASSING + st.KEEPERS)
        if name and self.stage.json('ann', 'drain', name, ok=(0, 4), space=True)[0] == 0:
            self.stage.expect_audit('ann', 'drain', name, 'done')
            self.after(1, 6, lambda: self.stage.json('ann', 'drain', name, '--undo', ok=(0, 4), space=True))

    def drain_all(self):
        self.stage.json('ann', 'drain', '--all', space=True)
        self.after(1, 4, lambda: self.stage.json('ann', 'drain', '--all', '--undo', space=True))

    # -- the server --

    def reload(self):
        """Another certificate in force; now and then a broken one, which changes nothing."""
        broken = self.rng.random() < 0.25
        self.stage.n_certificate = (self.stage.n_certificate + 1) % st.CERTIFICATES
        self.stage.install(self.stage.n_certificate)
        self.stage.log('chaos', 'SIGHUP with %s' % ('a broken key' if broken else 'certificate %d' % self.stage.n_certificate))
        if broken:
            os.chmod(self.stage.write('server.key', 'broken'), 0o600)
        seen = self.stage.server.log().count('read again') + self.stage.server.log().count('reload:')
        self.stage.server.signal(signal.SIGHUP)
        try:
            h.wait_until(lambda: self.stage.server.log().count('read again') + self.stage.server.log().count('reload:') > seen, 20,
                         'the reload')
        except TimeoutError as e:
            self.stage.fault(str(e))
        if broken:
            self.stage.install(self.stage.n_certificate)
            self.stage.server.signal(signal.SIGHUP)

    def freeze_server(self):
        self.stage.log('chaos', 'SIGSTOP of the server')
        self.stage.server.signal(signal.SIGSTOP)
        time.sleep(self.rng.uniform(0.3, 2.5))
        self.stage.server.signal(signal.SIGCONT)

    def fill(self):
        if self.stage.is_full(0) or not self.stage.fill():
            return
        self.stage.log('chaos', 'the disk is full')

        def free():
            self.stage.log('chaos', 'the disk has room')
            self.stage.free()
        self.after(1, 8, free)

    def garbage(self):
        garbage(self.stage, self.rng, self.held)
