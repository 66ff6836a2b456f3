# SPDX-License-Identifier: Apache-2.0
"""What a job's daemons do, seen everywhere: `mfl watch` on a terminal, on a pipe and as JSON, `mfl daemons`, the metrics and
the dashboard; and daemons and watchers of before, who know nothing of it."""
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
import threading
import urllib.request

import pytest

import mfl_harness as h
import mfl_wire as w

STATES = ('compute', 'data', 'network', 'wait')


class Terminal:
    """`mfl` on a pseudo-terminal of that size; what it wrote so far is in `text`."""

    def __init__(self, c, rows, columns, *argv):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))
        env = dict(os.environ, MFL_SERVER=c.address, TERM='xterm', LC_ALL='C', NO_COLOR='1')
        self.process = subprocess.Popen([h.program('mfl'), *argv], stdin=slave, stdout=slave, stderr=slave, env=env)
        os.close(slave)
        self.text = ''
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        while True:
            try:
                if select.select([self.master], [], [], 60)[0]:
                    self.text += os.read(self.master, 65536).decode('utf-8', 'replace')
            except OSError:  # the other end is closed
                return

    def drawings(self):
        """What was drawn in place, one text each time."""
        return [re.sub(r'\x1b\[[0-9;?]*[a-zA-Z]|\r', '', d) for d in re.split(r'\x1b\[\d+A\r\x1b\[J', self.text)]

    def wait(self):
        status = self.process.wait(20)
        self.thread.join(20)
        os.close(self.master)
        return status


def series(c):
    address = re.search(r'http://([^/]+)/', c.server.log()).group(1)
    with urllib.request.urlopen('http://%s/metrics' % address, timeout=10) as answer:
        text = answer.read().decode()
    spent = re.findall(r'^mfl_daemon_activity_seconds_total\{daemon="(\w+)",state="(\w+)"\} (\S+)$', text, re.M)
    samples = re.findall(r'^mfl_daemon_trained_samples_total\{daemon="(\w+)"\} (\d+)$', text, re.M)
    return {(d, s): float(v) for d, s, v in spent}, {d: int(v) for d, v in samples}, address


def activity_of(c, name):
    return next(d for d in c.mfl_json('daemons')['daemons'] if d['name'] == name)['activity']


def check_shares(a):
    assert all(0 <= a[s] <= 1 for s in STATES) and abs(sum(a[s] for s in STATES) - 1) < 1e-6, a


@pytest.fixture(scope='module')
def busy(shared_cluster):
    """A job that goes on, and everybody who watches it."""
    c = shared_cluster(2, config={'http': '127.0.0.1:0'})
    c.wait_daemons(2)
    job = c.submit(name='busy', rounds=1000000, model='mlp')
    c.terminal = Terminal(c, 24, 80, 'watch', job)
    c.low = Terminal(c, 7, 80, 'watch', job)
    c.pipes = {}
    for name, more in (('lines', []), ('json', ['--json'])):
        with open(c.log_path(name), 'wb') as f:
            c.pipes[name] = subprocess.Popen([h.program('mfl'), 'watch', job, *more], stdout=f, stderr=subprocess.DEVNULL,
                                             env=dict(os.environ, MFL_SERVER=c.address))
    c.job = job
    yield c
    for p in [c.terminal.process, c.low.process, *c.pipes.values()]:
        if p.poll() is None:
            p.kill()
            p.wait()


def read(c, name):
    with open(c.log_path(name), encoding='utf-8') as f:
        return f.read()


def test_everywhere(busy):
    c = busy

    def trains(name):
        a = activity_of(c, name)
        return a and a['compute'] > 0 and a['samples'] > 0 and a
    for name in ('d1', 'd2'):
        a = h.wait_until(lambda n=name: trains(n), 20, 'a daemon at work')
        check_shares(a)
        assert a['workers'] == 1 and a['compute_seconds'] > 0 and a['samples_per_second'] > 0
        assert a['wait_seconds'] > 0  # before the job, at least
    assert sum(activity_of(c, name)['network_seconds'] for name in ('d1', 'd2')) > 0
    assert re.search(r'^NODE .* COMPUTE/DATA/NETWORK/WAIT +DEVICE$', c.mfl('daemons').stdout, re.M)

    spent, samples, address = series(c)
    assert set(spent) == {(d, s) for d in ('d1', 'd2') for s in STATES} and set(samples) == {'d1', 'd2'}
    h.wait_until(lambda: all(series(c)[0][d, 'compute'] > spent[d, 'compute'] and series(c)[1][d] > samples[d]
                             for d in samples), 20, 'counters that rise')
    with urllib.request.urlopen('http://%s/api/daemons' % address, timeout=10) as answer:
        for d in json.load(answer)['daemons']:
            check_shares(d['activity'])
            assert d['gpu'] is None
    with urllib.request.urlopen('http://%s/' % address, timeout=10) as answer:
        page = answer.read().decode()
    assert '<th>Compute, data, network, wait' in page
    assert len(re.findall(r'<td class=num>\d+</td><td>\d+ %, \d+ %, \d+ %, \d+ %</td>', page)) == 2


def test_how_long_a_finished_job_took(cluster):
    c = cluster(1)
    c.wait_daemons(1)
    job, _ = c.run_job(timeout=120, rounds=3, training={'steps': 60, 'epochs': None})
    info = c.info(job)
    terminal = Terminal(c, 24, 80, 'watch', job)
    assert terminal.wait() == 0
    took = int((info['finished_ms'] - info['created_ms']) / 1000 + 0.5)
    assert re.search(r'time (\d+):(\d\d)', terminal.text).groups() == (str(took // 60), '%02d' % (took % 60))


def test_watched(busy):
    c = busy
    row = r'^d%d +\d+(\.\d)? +\d+%% +\d+%% +\d+%% +\d+%%  [#=.-]{16}$'
    h.wait_until(lambda: any(re.search(row % 1, d, re.M) and re.search(row % 2, d, re.M) for d in c.terminal.drawings()), 20,
                 'both daemons on the terminal')
    tail = re.compile(r'^round \d+/1000000 .* s  [\d.]+ samples/s  compute \d+%  data \d+%  network \d+%  wait \d+%$', re.M)
    h.wait_until(lambda: tail.search(read(c, 'lines')), 20, 'a round with its crew')
    h.wait_until(lambda: '"event":"crew"' in read(c, 'json'), 20, 'the crew as JSON')
    c.mfl('stop', c.job)
    assert c.terminal.wait() == c.low.wait() == c.pipes['lines'].wait(20) == c.pipes['json'].wait(20) == 1
    last = c.terminal.drawings()[-1]
    assert 'stopped' in last and 'daemon  samples/s' not in last  # nobody works for it any more
    assert all(d.count('\n') <= 6 for d in c.low.drawings()[:-1]) and len(c.low.drawings()) > 2  # the cursor's line is the 7th
    lines = read(c, 'lines').split('\n')
    assert all(re.match(r'round |j-\d+ |$', line) for line in lines), lines[:20]  # rounds and states, nothing each second
    events = [json.loads(line) for line in read(c, 'json').split('\n') if line]
    crews = [e for e in events if e.get('event') == 'crew']
    assert len(crews) <= 1 + 60 // 10 and crews[0]['job'] == c.job and crews[0]['more'] == 0
    assert [d['name'] for d in crews[0]['daemons']] == ['d1', 'd2']
    for d in crews[0]['daemons']:
        assert d['activity'] is None or check_shares(d['activity']) is None


GOOD = {'workers': 2, 'compute': 0.5, 'data': 0.25, 'wait': 0.25, 'samples_per_second': 3.0, 'samples': 7, 'compute_us': 4000000}


def test_before_and_after(cluster):
    """A daemon of before tells nothing, and then it is not known; one that talks nonsense is sent away. A watcher of before
    asks for no crew and gets none."""
    c = cluster(1)
    sets = c.data_sets()
    old = w.FakeDaemon(c.address, 'old', sets)
    new = w.FakeDaemon(c.address, 'new', sets)
    old.send('telemetry', {'temperature': 40})
    new.send('telemetry', {'activity': GOOD})
    c.wait_daemons(3)
    h.wait_until(lambda: activity_of(c, 'new'), 10, 'figures')
    assert activity_of(c, 'new')['compute_seconds'] == 4 and activity_of(c, 'old') is None
    gpu = {d['name']: d['gpu'] for d in c.mfl_json('daemons')['daemons']}
    assert gpu['new'] is None and gpu['old']['temperature'] == 40
    for i, (field, value, text) in enumerate((('compute', 1.5, 'Activity.compute'), ('data', -0.25, 'Activity.data'),
                               ('network', float('nan'), 'Activity.network: not finite'), ('wait', 0.5, 'Activity.wait'),
                               ('samples_per_second', float('inf'), 'Activity.samples_per_second'),
                               ('workers', 0, 'Activity.workers'))):
        bad = w.FakeDaemon(c.address, 'bad', sets, instance=100 + i)  # the process that was sent away does not come in again
        bad.send('telemetry', {'activity': dict(GOOD, **{field: value})})
        h.wait_until(lambda b=bad: b.closed is not None, 10, 'the end of the connection')
        assert text in bad.closed, bad.closed
        bad.close()
    old.close()
    new.close()
    c.wait_daemons(1)
    job = c.submit(name='seen', rounds=1000000, model='mlp')
    for asked in (False, True):
        with c.operator() as operator:
            operator.send('watch', {'job': job, 'crew': asked}, request=9)
            seen = []
            while len(seen) < 5 or (asked and not any(seen) and len(seen) < 60):
                _, event, _, _ = operator.recv(10)
                seen += [event['crew']] if event['info'] else []
        assert any(seen) == asked, seen
        assert sum(bool(s) for s in seen) <= 1 + len(seen) // 4  # once a second, of five
    c.mfl('stop', job)
    c.check_alive()
