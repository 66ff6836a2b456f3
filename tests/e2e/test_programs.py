# SPDX-License-Identifier: Apache-2.0
"""Own training code: a program of the daemon's administrator trains a job's clients (docs/programs.md)."""
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest

import mfl_harness as h
import mfl_needs

numpy = mfl_needs.module('numpy')
mfl_needs.module('google.protobuf')

PYTHON = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'python'))
sys.path.insert(0, PYTHON)
mfl_train = pytest.importorskip('mfl.train')

# Softmax regression. What it does to whom is in its config: {behaviours: {CLIENT: WORD}, round: N}.
PROGRAM = r'''
import os, socket, sys, time
sys.path.insert(0, %r)
import numpy
from mfl import train as mfl_train

HERE = os.path.dirname(os.path.abspath(__file__))


def softmax(x, params):
    z = x @ params['out.weight'].T + params['out.bias']
    z = numpy.exp(z - z.max(1, keepdims=True))
    return z / z.sum(1, keepdims=True)


def own_data(client):
    rng = numpy.random.default_rng(client)
    y = rng.integers(0, 4, 40 + client %% 100)
    return rng.normal(size=(len(y), 64)).astype(numpy.float32) + y[:, None].astype(numpy.float32) / 4, y


def score(x, y, params):
    p = softmax(x, params)
    return {'loss': float(-numpy.log(p[numpy.arange(len(y)), y] + 1e-9).mean()), 'correct': int((p.argmax(1) == y).sum())}


def misbehave(word, params):
    if word == 'crash':
        print('the answer is 42', file=sys.stderr)
        os.abort()
    if word == 'raise':
        raise ValueError('no such pet')
    if word == 'hang':
        print('going to sleep', file=sys.stderr, flush=True)
        time.sleep(3600)
    if word == 'nan':
        print('dividing by zero', file=sys.stderr, flush=True)
        params['out.bias'][2] = numpy.nan
    if word == 'long':
        print('writing a novel', file=sys.stderr, flush=True)
        program.socket.sendall(b'\xff\xff\xff\x7f')
        time.sleep(3600)
    if word == 'short':
        program.socket.sendall(b'\x08\x00\x00\x00garbage!')
        time.sleep(3600)
    if word == 'wait':
        with open(os.path.join(HERE, 'waits'), 'a') as f:
            f.write('%%d\n' %% os.getpid())
        while not os.path.exists(os.path.join(HERE, 'go')):
            time.sleep(0.01)


def train(params, client, round, config, samples, data, seed):
    x, y = data.batch(samples) if data else own_data(client)
    x = x.reshape(len(y), -1)
    n = len(y)
    scores = score(x, y, params)
    for i in numpy.random.default_rng(seed).permutation(n):
        g = softmax(x[i:i + 1], params)
        g[0, y[i]] -= 1
        params['out.weight'] -= config['lr'] * g.T @ x[i:i + 1]
        params['out.bias'] -= config['lr'] * g[0]
    if config.get('round', round) == round:
        word = config.get('behaviours', {}).get(str(client))
        misbehave(word, params)
        n += word == 'lie'
    return params, n, scores


def evaluate(params, config, samples, data, round):
    x, y = data.batch(samples, 'test') if data else own_data(999)
    if config.get('evaluation') == 'crash':
        print('no test data', file=sys.stderr)
        os.abort()
    return len(y), score(x.reshape(len(y), -1), y, params)


program = mfl_train._Program(train, evaluate, 'softmax')
program.serve()
'''

CLIENT_YAML = '''
programs:
  - name: pets
    command: [%(python)s, %(script)s]
    timeout: %(timeout)s
    memory: 1GiB
'''


class Lab:
    """A server, and daemons with the program `pets`."""

    def __init__(self, directory, source=PROGRAM, timeout='60s', more=''):
        self.cluster = h.Cluster(directory)
        self.script = self.cluster.write('train.py', source % PYTHON if '%r' in source else source)
        self.config = self.cluster.write('client.yaml', CLIENT_YAML % {
            'python': sys.executable, 'script': self.script, 'timeout': timeout} + more)
        mfl_train.save(self.path('initial.safetensors'), {'out.weight': numpy.zeros((4, 64)), 'out.bias': numpy.zeros(4)})
        self.cluster.start_server()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cluster.close()

    def daemon(self, name, node=None, **options):
        return self.cluster.start_daemon(name, more=['--config', self.config], node=node or name, **options)

    def path(self, name):
        return os.path.join(self.cluster.dir, name)

    def job(self, data=None, config=None, **changes):
        doc = {'name': 'pets', 'seed': 7, 'rounds': 2, 'model': {'initial': 'initial.safetensors'},
               'data': data or {'name': 'tiny', 'partition': 'iid', 'clients': 6},
               'training': {'program': 'pets', 'config': dict({'lr': 0.1}, **(config or {}))}}
        doc.update(changes)
        return self.cluster.write('job.yaml', h.yaml_of(doc))

    def submit(self, *args, **changes):
        return self.cluster.mfl_json('submit', self.job(*args, **changes))['job']

    def run(self, *args, state='done', **changes):
        job = self.submit(*args, **changes)
        info = self.cluster.wait_job(job, 60, state)
        return job, self.cluster.digests(job) if state == 'done' else info['reason']

    def logs(self, job):
        return self.cluster.mfl('logs', job).stdout


def test_one_daemon_and_two_give_one_model(tmp_path):
    with Lab(tmp_path) as lab:
        lab.daemon('d1')
        job, one = lab.run()
        rounds = lab.cluster.rounds(job)
        assert len(set(one)) == 2, 'nothing was learned'
        assert rounds[-1]['accuracy'] > 0.5 and rounds[-1]['loss'] > 0
        lab.daemon('d2')
        lab.cluster.wait_daemons(2)
        _, two = lab.run(selection={'daemons': {'min': 2}})
        assert one == two
        lab.cluster.mfl('pull', job, '-o', 'model.safetensors')
        assert h.params_digest(lab.path('model.safetensors')) == one[-1]
        assert list(h.read_safetensors(lab.path('model.safetensors'))) == ['out.weight', 'out.bias']
        refused = lab.cluster.mfl('pull', job, '--format', 'onnx', '-o', 'model.onnx', status=None)
        assert refused.returncode and 'only the program pets knows the layers' in refused.stderr


def test_data_of_its_own(tmp_path):
    """A population that only the program knows, and sites."""
    with Lab(tmp_path) as lab:
        lab.daemon('d1')
        lab.daemon('d2')
        lab.cluster.wait_daemons(2)
        job, two = lab.run({'partition': 'iid', 'clients': 6})
        assert [r['samples'] for r in lab.cluster.rounds(job)] == [6 * 40 + 15] * 2, 'the program says how many it has'
        lab.cluster.daemons['d2'].stop()
        _, one = lab.run({'partition': 'iid', 'clients': 6})
        assert one == two
        _, at_a_site = lab.run({'partition': 'local'})
        assert len(set(at_a_site)) == 2


def test_daemons_of_one_node_add_their_updates(tmp_path):
    with Lab(tmp_path) as lab:
        lab.cluster.share()
        for name in ('d1', 'd2'):
            lab.daemon(name, node='n1', collective='shm')
        lab.cluster.wait_daemons(2)
        job, together = lab.run(selection={'daemons': {'min': 2}, 'assign': 'modulo'}, evaluation={'every': 0})
        for r in lab.cluster.rounds(job):
            assert 0 < r['bytes_up'] < r['bytes_up_alone'], r
        lab.cluster.daemons['d2'].stop()
        _, alone = lab.run(evaluation={'every': 0})
        assert together == alone


def test_a_site_keeps_its_figures(tmp_path):
    """With policy: {metrics: withheld} the program's losses and accuracies stay, too, in training and in evaluations."""
    with Lab(tmp_path, more="policy: {dir: '%s', metrics: withheld}\n" % (tmp_path / 'policy')) as lab:
        lab.daemon('d1')
        job, digests = lab.run()
        assert len(set(digests)) == 2
        assert all(not r['evaluated'] and not r['samples'] and not r['train_loss'] for r in lab.cluster.rounds(job)), lab.cluster.rounds(job)


def wait_marks(lab, n):
    def marks():
        if not os.path.exists(lab.path('waits')):
            return None
        with open(lab.path('waits'), encoding='utf-8') as f:
            pids = f.read().split()
        return pids if len(pids) >= n else None
    return h.wait_until(marks, 30, '%d programs that wait' % n)


@pytest.mark.parametrize('victim', ['program', 'daemon', 'server'])
def test_kill_in_the_middle_of_a_round(tmp_path, victim):
    with Lab(tmp_path) as lab:
        daemon = lab.daemon('d1')
        # A client of round 2 waits until it is killed, or what it works for is.
        config = {'behaviours': {'3': 'wait'}, 'round': 2}
        job = lab.submit(config=config, rounds=3)
        wait_marks(lab, 1)
        if victim == 'program':
            # Its number is one of its own namespace; outside it is the only process that has its socket.
            os.kill(pid_of(lab.script), signal.SIGKILL)
            wait_marks(lab, 2)
        elif victim == 'daemon':
            supervised = descendants(daemon.pid)
            daemon.kill()
            h.wait_until(lambda: not any(map(alive, supervised)), 10, 'the end of what a killed daemon had started')
            lab.daemon('d1')
            wait_marks(lab, 2)
        else:
            lab.cluster.server.kill()
            lab.cluster.start_server()
        with open(lab.path('go'), 'w', encoding='utf-8'):
            pass
        lab.cluster.wait_job(job, 60)
        _, expected = lab.run(config=config, rounds=3)
        assert lab.cluster.digests(job) == expected


def alive(pid):
    try:
        with open('/proc/%d/stat' % pid, encoding='utf-8') as f:
            return f.read().rsplit(')', 1)[1].split()[0] != 'Z'
    except OSError:
        return False


def descendants(pid):
    found = []
    for task in os.listdir('/proc/%d/task' % pid):
        with open('/proc/%d/task/%s/children' % (pid, task), encoding='utf-8') as f:
            for child in map(int, f.read().split()):
                found += [child] + descendants(child)
    return found


def pid_of(script):
    """The process that runs the script, and not its supervisor."""
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open('/proc/%s/cmdline' % pid, 'rb') as f:
                argv = f.read().split(b'\0')
        except OSError:
            continue
        if argv[0] == sys.executable.encode() and script.encode() in argv:
            return int(pid)
    raise AssertionError('nobody runs ' + script)


FAILURES = {
    'crash': ['killed by signal 6', 'the answer is 42'],
    'raise': ['ValueError: no such pet'],
    'nan': ['out.bias changes by nan', 'dividing by zero'],
    'lie': ['samples, and was given'],
    'long': ['2147483647 bytes', 'writing a novel'],
    'short': ['no message of program.proto'],
}


def test_clients_that_fail_are_left_out(tmp_path):
    """Each with a reason of its own, and the others count."""
    with Lab(tmp_path) as lab:
        lab.daemon('d1')
        behaviours = dict(zip(map(str, range(len(FAILURES))), FAILURES))
        job, digests = lab.run({'name': 'tiny', 'partition': 'iid', 'clients': 8}, {'behaviours': behaviours}, rounds=1,
                               limits={'quorum': 0.25}, evaluation={'every': 0})
        log = lab.cluster.daemons['d1'].log()
        for client, word in behaviours.items():
            line, = [x for x in log.splitlines() if 'client %s is left out: program pets: ' % client in x]
            for part in FAILURES[word]:
                assert part in line, line
        counted, = lab.cluster.rounds(job)
        assert counted['clients'] == 2 and counted['clients_rejected'] == 6
        assert 'client 0: program pets: killed by signal 6; last lines: the answer is 42' in lab.logs(job), lab.logs(job)


def test_a_program_that_hangs(tmp_path):
    with Lab(tmp_path, timeout='500ms') as lab:
        lab.daemon('d1')
        reason = lab.run(config={'behaviours': {'0': 'hang'}}, rounds=1, limits={'retries': 0}, state='failed')[1]
        assert 'pets' in reason, reason
        text = lab.logs('last')
        assert 'not answer in time' in text, text


def test_an_evaluation_that_fails(tmp_path):
    with Lab(tmp_path) as lab:
        lab.daemon('d1')
        _, reason = lab.run(config={'evaluation': 'crash'}, state='failed')
        assert 'no test data' in reason and 'killed by signal 6' in reason, reason
        _, digests = lab.run(config={'evaluation': 'crash'}, evaluation={'every': 0})
        assert len(digests) == 2


HOSTILE = r"""
import ctypes, os, socket, struct, sys, time
sys.path.insert(0, %r)
from mfl import train as mfl_train

report = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'report'), 'a')


def attempt(name, fn):
    try:
        print(name, 'done', fn(), file=report, flush=True)
    except Exception as e:
        print(name, 'refused', type(e).__name__, e, file=report, flush=True)


def read(path):
    with open(path, 'rb') as f:
        return len(f.read(100))


def fork():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv('/bin/sleep', ['sleep', '3600.125'])
        time.sleep(3600)


def train(params, client, round, config):
    attempt('socket', lambda: socket.create_connection(('127.0.0.1', config['port']), 2))
    attempt('ptrace', lambda: os.stat('/') if ctypes.CDLL(None, use_errno=True).ptrace(16, os.getppid(), 0, 0) == 0 else 1 / 0)
    attempt('unshare', lambda: 1 / int(ctypes.CDLL(None).unshare(0x10000000) == 0))
    attempt('key', lambda: 1 / read(config['secret']))
    attempt('shrink', lambda: os.ftruncate(program.kept[1], 16))
    attempt('grow', lambda: os.ftruncate(program.kept[1], 1 << 30))
    attempt('write', lambda: os.pwrite(program.kept[0], b'x' * 64, 0))
    attempt('outside', lambda: open(config['outside'], 'w'))
    attempt('away', lambda: os.rename(report.name, config['outside']))
    attempt('read', lambda: read(config['readable']))
    attempt('own', lambda: open(report.name + '-too', 'w'))
    attempt('signal', lambda: os.kill(config['pid'], 0))
    attempt('abstract', lambda: socket.socket(socket.AF_UNIX).connect('\0' + config['abstract']))
    fork()
    attempt('memory', lambda: len(bytearray(4 << 30)))
    for i in range(300 if config['then'] == 'fork' else 0):
        if os.fork() == 0:
            os.execv('/bin/sleep', ['sleep', '3600.125'])
    if config['then'] == 'fork':
        time.sleep(3600)
    if config['then'] == 'swell':
        held = []
        for i in range(8):
            if os.fork() == 0:
                held = bytearray(os.urandom(1 << 20) * 200)
                time.sleep(3600)
        time.sleep(3600)
    return params, config['samples'], {}


class Program(mfl_train._Program):
    def describe(self, told):
        self.kept = [os.dup(fd) for fd in self.fds]
        super().describe(told)


program = Program(train, None, 'hostile')
program.serve()
"""


def outside_of_tmp():
    """A file that no program may make by default; None: everything that the tests have is below /tmp."""
    build = os.environ.get('MFL_BUILD', os.getcwd())
    return None if os.path.realpath(build).startswith(('/tmp/', '/var/tmp/', '/dev/')) else os.path.join(build, 'mfl-hostile-%d' % os.getpid())


def sleepers():
    """Processes that the hostile program has left."""
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open('/proc/%s/cmdline' % pid, 'rb') as f:
                if b'3600.125' in f.read():
                    found.append(int(pid))
        except OSError:
            pass
    return found


def test_a_hostile_program_is_held(tmp_path):
    with Lab(tmp_path, HOSTILE, more='    processes: 100\npolicy:\n  dir: %s\n' % (tmp_path / 'policy')) as lab, \
            socket.socket(socket.AF_UNIX) as listener:
        daemon = lab.daemon('d1')
        secret = lab.path('policy/d1.audit.jsonl')
        port = int(lab.cluster.address.rsplit(':', 1)[1])
        abstract, outside = 'mfl-hostile-%d' % os.getpid(), outside_of_tmp()
        listener.bind('\0' + abstract)
        listener.listen()
        config = {'port': port, 'secret': secret, 'then': '', 'samples': 10, 'outside': outside or '/nowhere/x', 'readable': '/etc/passwd',
                  'pid': daemon.pid, 'abstract': abstract}
        job, _ = lab.run({'partition': 'local'}, config, rounds=1, evaluation={'every': 0})
        with open(lab.path('report'), encoding='utf-8') as f:
            report = dict(line.split(' ', 1) for line in f.read().splitlines())
        assert os.path.exists(secret)
        hidden = [] if 'no namespaces' in lab.cluster.daemons['d1'].log() else ['key']  # the system may not let users make them
        held = ['signal'] if hidden else []
        if 'Landlock' in daemon.log() and 'no Landlock' not in daemon.log():
            held += ['outside', 'away']
        if hidden or re.search('Landlock ([6-9]|[1-9][0-9])', daemon.log()):
            held.append('abstract')
        for name in ['socket', 'ptrace', 'unshare', 'shrink', 'grow', 'write', 'memory'] + hidden + held:
            assert report[name].startswith('refused'), (name, report[name])
        assert report['own'].startswith('done') and report['read'].startswith('done')
        assert not outside or not os.path.exists(outside)
        h.wait_until(lambda: not sleepers(), 10, 'the end of what the program had started')
        # More samples than it may claim, and more memory than it may hold, by children.
        job = lab.run({'partition': 'local'}, dict(config, samples=2000000), rounds=1, evaluation={'every': 0},
                      limits={'retries': 0}, state='failed')[0]
        assert 'counts 2000000 samples, and 1 to 1000000 are allowed' in lab.logs(job), lab.logs(job)
        job = lab.run({'partition': 'local'}, dict(config, then='swell'), rounds=1, evaluation={'every': 0},
                      limits={'retries': 0}, state='failed')[0]
        assert 'its limit is 1.0 GiB' in lab.logs(job), lab.logs(job)
        job = lab.run({'partition': 'local'}, dict(config, then='fork'), rounds=1, evaluation={'every': 0},
                      limits={'retries': 0}, state='failed')[0]
        assert 'too many processes and threads' in lab.logs(job) or 'BlockingIOError' in lab.logs(job), lab.logs(job)
        h.wait_until(lambda: not sleepers(), 10, 'the end of what the program had started')
        lab.cluster.check_alive()
        assert lab.cluster.daemons['d1'].alive()


def test_files_that_a_program_may_open(tmp_path):
    """`read` and `write` name directories; without Landlock the program is not run at all."""
    interpreter = os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))
    reads = [str(tmp_path), PYTHON, interpreter, os.path.dirname(sys.executable), sys.prefix, os.path.dirname(numpy.__path__[0])]
    with Lab(tmp_path, HOSTILE, more='    read: [%s]\n    write: [%s]\n' % (', '.join(dict.fromkeys(reads)), tmp_path)) as lab:
        daemon = lab.daemon('d1')
        outside = outside_of_tmp()
        if not outside:
            pytest.skip('the build folder is below /tmp, which programs may write and read')
        with open(outside, 'w', encoding='utf-8') as f:
            f.write('what is here is not for programs')
        try:
            config = {'port': 1, 'secret': outside, 'then': '', 'samples': 10, 'outside': outside, 'readable': outside, 'pid': 1, 'abstract': 'x'}
            if 'no Landlock' in daemon.log():
                reason = lab.run({'partition': 'local'}, config, rounds=1, evaluation={'every': 0}, limits={'retries': 0}, state='failed')[1]
                assert 'this kernel has no Landlock' in reason
                return
            lab.run({'partition': 'local'}, config, rounds=1, evaluation={'every': 0})
        finally:
            os.remove(outside)
        with open(lab.path('report'), encoding='utf-8') as f:
            report = dict(line.split(' ', 1) for line in f.read().splitlines())
        assert report['read'].startswith('refused PermissionError') and report['outside'].startswith('refused PermissionError')
        assert report['own'].startswith('done')


def test_a_stopped_job_kills_its_program(tmp_path):
    with Lab(tmp_path) as lab:
        daemon = lab.daemon('d1')
        job = lab.submit(config={'behaviours': {'0': 'wait'}})
        wait_marks(lab, 1)
        assert descendants(daemon.pid)
        lab.cluster.mfl('stop', job)
        h.wait_until(lambda: not descendants(daemon.pid), 10, 'the end of the program')


def test_a_site_that_wants_no_programs(tmp_path):
    with Lab(tmp_path, more='policy:\n  programs: false\n  dir: %s\n' % (tmp_path / 'policy')) as lab:
        lab.daemon('d1')
        _, reason = lab.run(state='failed')
        assert "this site's policy refuses jobs that are trained by a program, as pets" in reason, reason


def test_nobody_has_the_program(tmp_path):
    with Lab(tmp_path) as lab:
        lab.cluster.start_daemon('d1')
        job = lab.submit()
        info = lab.cluster.wait_info(job, lambda i: i['reason'], 20, 'the reason why the job waits')
        assert 'no daemon that has the program pets' in info['reason'], info
        assert 'no daemon that has the program pets' in lab.cluster.mfl('show', job).stdout
        lab.daemon('d2')
        lab.cluster.wait_job(job, 60)


def test_server_optimizers_and_privacy(tmp_path):
    """What the server does with updates does not depend on who has made them."""
    with Lab(tmp_path) as lab:
        lab.daemon('d1')
        plain = lab.run()[1]
        for aggregation in ({'strategy': 'fedadam', 'server_lr': 0.05}, {'strategy': 'median'}, {'update_clip': 0.01}):
            digests = lab.run(aggregation=aggregation)[1]
            assert len(set(digests)) == 2 and digests[0] != plain[0], aggregation


@pytest.mark.parametrize('changes, words', [
    ({'aggregation': {'strategy': 'scaffold'}}, "aggregation.strategy: needs local training of mfl's own"),
    ({'aggregation': {'strategy': 'fedprox'}}, "aggregation.strategy: needs local training of mfl's own"),
    ({'training': {'program': 'pets', 'lr': 0.1}}, 'training.lr: the program pets does not read it'),
    ({'training': {'program': '/bin/sh -c true'}}, "a job can't say what is run"),
    ({'training': {'lr': 0.1, 'config': {'a': 1}}, 'model': 'mlp'}, 'training.config: is only used with program'),
    ({'model': 'mlp'}, 'trains a model that only it knows'),
    ({'model': {'initial': 'none.safetensors'}}, 'no file none.safetensors'),
    ({'model': {'initial': 'initial.safetensors', 'freeze': ['out']}}, 'model.freeze: needs layers'),
    ({'model': {'initial': 'initial.safetensors', 'lora': {'rank': 2}}}, 'model.lora: needs layers'),
    ({'parallel': {'grain': 8}}, 'parallel: shares out steps'),
    ({'personal': {'layers': ['out']}, 'evaluation': {'every': 0}}, 'personal: is done by mfl'),
    ({'data': {'partition': 'dirichlet', 'alpha': 1, 'clients': 4}}, 'data.partition: needs samples'),
])
def test_what_a_program_cannot_do_is_refused_by_name(tmp_path, changes, words):
    cluster = h.Cluster(tmp_path)
    mfl_train.save(os.path.join(cluster.dir, 'initial.safetensors'), {'out.weight': numpy.zeros((4, 64))})
    doc = {'name': 'pets', 'rounds': 2, 'model': {'initial': 'initial.safetensors'}, 'data': {'partition': 'local'},
           'training': {'program': 'pets'}}
    doc.update(changes)
    path = cluster.write('job.yaml', h.yaml_of(doc))
    done = h.mfl('check', path, cwd=cluster.dir, status=None)
    assert done.returncode and words in done.stderr, done.stderr


def test_check_shows_the_program(tmp_path):
    with Lab(tmp_path) as lab:
        text = lab.cluster.mfl('check', lab.job({'partition': 'local'})).stdout
        assert 'program   pets' in text and '"lr": 0.1' in text and "the program's own" in text, text
        assert '260 parameters' in text, text


def test_a_program_in_c(tmp_path):
    """examples/c/program.c, which needs nothing but protobuf-c."""
    if 'MFL_EXAMPLE_PROGRAM' not in os.environ:
        pytest.skip('no example in C: meson test builds it, and names it in MFL_EXAMPLE_PROGRAM')
    with Lab(tmp_path) as lab:
        lab.config = lab.cluster.write('client.yaml', 'programs:\n  - {name: pets, command: [%s], memory: 256MiB}\n'
                                       % os.environ['MFL_EXAMPLE_PROGRAM'])
        lab.daemon('d1')
        args = dict(data={'partition': 'iid', 'clients': 3}, config={'rate': 0.5}, rounds=3)
        job, one = lab.run(**args)
        rounds = lab.cluster.rounds(job)
        assert len(set(one)) == 3 and rounds[-1]['loss'] < rounds[0]['loss']
        lab.daemon('d2')
        lab.cluster.wait_daemons(2)
        assert lab.run(**args)[1] == one


# ---- PyTorch and others ----

TORCH = r"""
import sys
sys.path.insert(0, %r)
import json
import torch
import mfl.train
torch.set_num_threads(1)


def make():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
                               torch.nn.Flatten(), torch.nn.Linear(128, 4))


def local_training(model, x, y, seed, lr):
    torch.manual_seed(seed)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for batch in torch.randperm(len(y)).split(10):
        loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def train(params, client, round, config, data, samples):
    x, y = map(torch.from_numpy, data.batch(samples))
    model = local_training(mfl.train.load(make(), params), x, y.long(), 100 * round + client, config['lr'])
    with open(__file__ + '.%%d' %% client, 'w') as f:
        json.dump([x.tolist(), y.tolist()], f)
    return model.state_dict(), len(samples), {}


if __name__ == '__main__':
    mfl.train.run(train)
"""


def test_a_cnn_of_pytorch_beside_a_plain_loop(tmp_path):
    """FedAvg of five rounds gives the params of a loop without mfl within 1e-4. The difference is the rounding of sums: floats here,
    integers of 2^-s there."""
    torch = pytest.importorskip('torch', reason=mfl_needs.lack('torch'))
    with Lab(tmp_path, TORCH) as lab:
        spec = {}
        with open(lab.script, encoding='utf-8') as f:
            exec(compile(f.read(), lab.script, 'exec'), spec)  # the same functions, in this process
        model = spec['make']()
        mfl_train.save(lab.path('initial.safetensors'), model.state_dict())
        lab.daemon('d1', data=['tiny=synthetic:1,8,8:4:400:80:1'])
        job, _ = lab.run({'name': 'tiny', 'partition': 'iid', 'clients': 4}, {'lr': 0.05}, rounds=5, evaluation={'every': 0})
        lab.cluster.mfl('pull', job, '-o', 'model.safetensors')
        got = h.read_safetensors(lab.path('model.safetensors'))
        told = []
        for client in range(4):
            with open('%s.%d' % (lab.script, client), encoding='utf-8') as f:
                told.append([torch.tensor(v) for v in json.load(f)])
        expected = model.state_dict()
        for r in range(1, 6):
            states, weights = [], []
            for client, (x, y) in enumerate(told):
                local = spec['make']()
                local.load_state_dict(expected)
                states.append(spec['local_training'](local, x, y, 100 * r + client, 0.05).state_dict())
                weights.append(len(y))
            expected = {k: sum(w * s[k].double() for w, s in zip(weights, states)) / sum(weights) for k in expected}
            expected = {k: v.to(torch.int64 if k.endswith('tracked') else torch.float32) for k, v in expected.items()}
        moved = 0
        for name, (_, shape, data) in got.items():
            mine, theirs = numpy.frombuffer(data, '<f4').reshape(shape), expected[name].numpy()
            assert numpy.abs(mine - theirs).max() <= 1e-4, name
            moved = max(moved, numpy.abs(mine - model.state_dict()[name].numpy()).max())
        assert moved > 0.05


def test_boosted_trees(tmp_path):
    """examples/python/trees.py: four clients of two daemons grow the trees that one client with all samples grows."""
    with open(os.path.join(os.path.dirname(PYTHON), 'examples', 'python', 'trees.py'), encoding='utf-8') as f:
        source = 'import sys\nsys.path.insert(0, %r)\n' % PYTHON + f.read()
    with Lab(tmp_path, source) as lab:
        subprocess.run([sys.executable, lab.script, lab.path('initial.safetensors'), '64', '4', '3'], check=True)
        lab.daemon('d1')
        lab.daemon('d2')
        lab.cluster.wait_daemons(2)
        grown = []
        for clients in (4, 1):
            job, _ = lab.run({'name': 'tiny', 'partition': 'iid', 'clients': clients}, {'lr': 0.3, 'l2': 0.01}, rounds=9)
            rounds = lab.cluster.rounds(job)
            assert rounds[-1]['loss'] < rounds[2]['loss'] < rounds[0]['loss'] and rounds[-1]['accuracy'] > rounds[0]['accuracy']
            assert rounds[0]['loss'] == rounds[1]['loss']  # a tree counts when it is whole
            lab.cluster.mfl('pull', job, '-o', 'model.safetensors')
            grown.append({name: numpy.frombuffer(data, '<f4') for name, (_, _, data) in h.read_safetensors(lab.path('model.safetensors')).items()})
            assert 'only the training program' in lab.cluster.mfl('predict', 'model.safetensors', '--data', 'x.npy', status=5).stderr
        for name, tensor in grown[0].items():
            assert numpy.abs(tensor - grown[1][name]).max() <= 1e-4, name  # means of floats, added in another order
        assert len(set(grown[0]['split'].round(4))) > 10
        reason = lab.run({'name': 'tiny', 'partition': 'iid', 'clients': 2}, {'lr': 0.3, 'l2': 0.01}, rounds=10, state='failed', limits={'retries': 0})[1]
        assert 'all 3 trees are grown: write rounds: 9' in reason or 'all 3 trees are grown' in lab.logs('last'), reason


def test_examples(tmp_path):
    """examples/python: scikit-learn's linear model, and LoRA of a model made from a configuration."""
    folder = os.path.join(os.path.dirname(PYTHON), 'examples', 'python')
    ran = 0
    for name, module, arguments, data, config in (
            ('linear', 'sklearn', ['64', '4'], {'name': 'tiny', 'partition': 'iid', 'clients': 4}, {'lr': 0.01}),
            ('lora', 'transformers', [], {'partition': 'iid', 'clients': 3}, {'lr': 0.02, 'steps': 2})):
        if importlib.util.find_spec(module) is None:
            continue
        with open(os.path.join(folder, name + '.py'), encoding='utf-8') as f:
            source = 'import sys\nsys.path.insert(0, %r)\n' % PYTHON + f.read()
        with Lab(tmp_path / name, source) as lab:
            subprocess.run([sys.executable, lab.script, lab.path('initial.safetensors'), *arguments], check=True)
            lab.daemon('d1')
            job, digests = lab.run(data, config, rounds=3)
            rounds = lab.cluster.rounds(job)
            assert len(set(digests)) == 3 and rounds[-1]['loss'] < rounds[0]['loss'], name
            ran += 1
    if not ran:
        pytest.skip(mfl_needs.lack('sklearn'))
