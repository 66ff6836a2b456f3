# SPDX-License-Identifier: Apache-2.0
"""A training program that means harm: what it tries beside test_programs.py's, and the lies it tells (docs/programs.md, What holds it)."""
import os
import re

import mfl_harness as h
import test_programs as programs

ATTACKS = r"""
import ctypes, fcntl, mmap, os, resource, sys, time
sys.path.insert(0, %r)
from mfl import train as mfl_train

report = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'report'), 'a')
libc = ctypes.CDLL(None, use_errno=True)


def attempt(name, fn):
    try:
        print(name, 'done', fn(), file=report, flush=True)
    except Exception as e:
        print(name, 'refused', type(e).__name__, e, file=report, flush=True)


def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def overwrite(path):
    with open(path, 'r+b') as f:
        f.write(b'lies')


def fill(path, n):
    with open(path, 'wb') as f:
        for _ in range(n >> 20):
            f.write(bytes(1 << 20))


def by_32_bits():
    # getpid of i386, whose numbers the filter does not know. How it ends is its status.
    pid = os.fork()
    if not pid:
        code = mmap.mmap(-1, 4096, prot=7)
        code.write(bytes([0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xc3]))
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def flood():
    for _ in range(4):
        if os.fork() == 0:
            while True:
                os.write(2, b'y' * 4000 + b'\n')
    time.sleep(3600)


def open_all():
    # Each process has as many as its limit allows, and all of them more than 65,536 beyond 256 each.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for _ in range(65536 // max(most - 256, 64) + 4):
        if os.fork() == 0:
            try:
                while True:
                    os.open('/dev/null', os.O_RDONLY)
            except OSError:
                time.sleep(3600)
    time.sleep(3600)


def share():
    # A data set in memory, and workers that read it, as PyTorch's DataLoader has them.
    held = bytes(os.urandom(1 << 20)) * 300
    for _ in range(6):
        if os.fork() == 0:
            print('worker sees', sum(held[::1 << 20]) > 0, file=report, flush=True)
            time.sleep(2)
            os._exit(0)
    for _ in range(6):
        os.wait()


def train(params, client, round, config):
    if config['then'] == 'share':
        share()
        return params, 10, {}
    if config['then'] == 'flood':
        flood()
    if config['then'] == 'open':
        open_all()
    print('mfl-sandbox: nothing is limited', file=sys.stderr, flush=True)
    attempt('shared', lambda: overwrite(config['shared']))
    attempt('full', lambda: fill('/dev/shm/big', 2 << 30))
    attempt('sysv', lambda: call(libc.shmget(0, ctypes.c_size_t(1 << 20), 0o1600)))
    attempt('file', lambda: os.memfd_create('big'))
    attempt('secret', lambda: call(libc.syscall(447, 0)))
    attempt('loop', lambda: os.open('/dev/loop-control', os.O_RDWR))
    attempt('terminal', lambda: os.openpty())
    attempt('typing', lambda: fcntl.ioctl(report, 0x5412, b'x'))
    attempt('typing too', lambda: call(libc.ioctl(report.fileno(), ctypes.c_ulong(0xff00005412), b'x')))
    attempt('limit', lambda: resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)))
    attempt('nice', lambda: os.nice(-5))
    attempt('mount', lambda: call(libc.mount(b'x', b'/tmp', b'tmpfs', 0, 0)))
    attempt('i386', by_32_bits)
    return params, 10, {}


program = mfl_train._Program(train, None, 'hostile')
program.serve()
"""


def attack(lab, then='', **more):
    data, config = {'partition': 'local'}, {'then': then, 'shared': more.pop('shared', '')}
    return lab.submit(data, config, rounds=1, evaluation={'every': 0}, limits={'retries': 0}, **more)


def test_more_attacks_are_held(tmp_path):
    shared = '/dev/shm/mfl-attacked-%d' % os.getpid()  # where daemons of one node add their updates
    with open(shared, 'w', encoding='utf-8') as f:
        f.write('truth')
    try:
        with programs.Lab(tmp_path, ATTACKS) as lab:
            daemon = lab.daemon('d1')
            lab.cluster.wait_job(attack(lab, shared=shared), 60)
            log = daemon.log()
            with open(lab.path('report'), encoding='utf-8') as f:
                report = dict(re.match('(typing too|[^ ]+) (.*)', line).groups() for line in f.read().splitlines())
        with open(shared, encoding='utf-8') as f:
            assert f.read() == 'truth' or 'no Landlock' in log
    finally:
        os.remove(shared)
    held = ['limit', 'nice', 'mount']
    filtered = 'not filtered' not in log
    if filtered:
        held += ['sysv', 'secret', 'typing', 'typing too']
        held += [] if os.path.exists('/dev/nvidiactl') else ['file']
    if 'no namespaces' not in log and 'no /dev/shm of its own' not in log:
        held += ['shared', 'full']
    if 'no Landlock' not in log:
        held += ['shared', 'loop', 'terminal']
    for name in held:
        assert report[name].startswith('refused'), (name, report[name])
    if filtered and os.uname().machine == 'x86_64':
        assert report['i386'] == 'done 31', report['i386']  # SIGSYS
    for name in ['typing', 'typing too'] if filtered else []:
        assert 'PermissionError' in report[name], report[name]  # by the filter: a file has no such request
    # What looks like a line of the supervisor's is none.
    assert 'mfl-sandbox: own user' in log or 'mfl-sandbox: no namespaces' in log
    assert 'nothing is limited' not in log and 'the program begins' not in log


def test_a_program_that_writes_without_end(tmp_path):
    """Its output keeps the daemon neither from the time limit nor from a stop, and the job's log gets its last line alone."""
    with programs.Lab(tmp_path, ATTACKS, timeout='2s') as lab:
        daemon = lab.daemon('d1')
        job = attack(lab, 'flood')
        lab.cluster.wait_job(job, 60, 'failed')
        assert 'does not answer in time' in lab.logs(job) and len(lab.logs(job)) < 5000
        assert not programs.descendants(daemon.pid)
    with programs.Lab(tmp_path / 'stopped', ATTACKS) as lab:
        daemon = lab.daemon('d1')
        job = attack(lab, 'flood')
        h.wait_until(lambda: len(programs.descendants(daemon.pid)) > 5, 30, 'the flood')
        lab.cluster.mfl('stop', job)
        h.wait_until(lambda: not programs.descendants(daemon.pid), 10, 'the end of the program')


def test_a_program_that_opens_files_without_end(tmp_path):
    with programs.Lab(tmp_path, ATTACKS) as lab:
        daemon = lab.daemon('d1')
        job = attack(lab, 'open')
        lab.cluster.wait_job(job, 60, 'failed')
        assert 'too many open files' in lab.logs(job), lab.logs(job)
        assert not programs.descendants(daemon.pid)


def test_memory_that_workers_share_counts_once(tmp_path):
    with programs.Lab(tmp_path, ATTACKS) as lab:  # 300 MiB in each of seven processes, and a limit of 1 GiB
        lab.daemon('d1')
        lab.cluster.wait_job(attack(lab, 'share'), 60)
        with open(lab.path('report'), encoding='utf-8') as f:
            assert f.read() == 'worker sees True\n' * 6


LIES = r"""
import sys
sys.path.insert(0, %r)
from mfl import train as mfl_train

TRAINED = [
    {'samples': 1 << 63, 'loss': 1.0}, {'samples': 0, 'loss': 1.0}, {'samples': 10, 'loss': -1.0}, {'samples': 10, 'loss': float('nan')},
    {'samples': 10, 'loss': float('inf')}, {'samples': 10, 'correct': 11}, {'samples': 10, 'loss': 1e308},
    {'samples': 10, 'metrics': {'m' * 100: float('nan'), 'a\nb\x1b[2J': 1e308, **{str(i): 1.0 for i in range(1000)}}},
]


class Program(mfl_train._Program):
    def on_train(self, told):
        if told.client < len(TRAINED):
            self.result[:] = self.params
            self.send('trained', **TRAINED[told.client])
        elif told.client == len(TRAINED):
            many = b'\x2a\x00' * 300000  # metrics without a name, of two bytes each
            n = len(many)
            message = bytes([0x12, n & 127 | 128, n >> 7 & 127 | 128, n >> 14]) + many
            self.socket.sendall(len(message).to_bytes(4, 'little') + message)
        elif told.client == len(TRAINED) + 1:
            self.send('evaluated', samples=10, loss=1.0)
        elif told.client == len(TRAINED) + 2:
            self.send('described', program='again', evaluates=True)
        elif told.client == len(TRAINED) + 3:
            self.send('failed', reason='\x1b]0;owned\x07\n' + 'long ' * 100000)
        else:
            super().on_train(told)


program = Program(lambda params, client, round, config: (params, 10, {'loss': 1.0}), None, 'a\nb\x1b[31m')
program.serve()
"""
SAID = ['counts 9223372036854775808 samples', 'counts 0 samples', 'its loss is -1', 'its loss is', 'its loss is inf', '11 of its 10 samples are correct', None, None,
        'no message of program.proto', 'answers Train with another message', 'answers Train with another message', 'it says: ', None]


def test_lies(tmp_path):
    """What it says about itself is checked, or harmless: the client that it lies about is left out, and nothing it says steers a terminal."""
    with programs.Lab(tmp_path, LIES) as lab:
        daemon = lab.daemon('d1')
        job, digests = lab.run({'partition': 'iid', 'clients': len(SAID)}, rounds=1, limits={'quorum': 0.1}, evaluation={'every': 0})
        log, logs = daemon.log(), lab.logs(job)
        counted, = lab.cluster.rounds(job)
        assert counted['clients'] == SAID.count(None) and counted['clients_rejected'] == len(SAID) - SAID.count(None)
        assert 0 < counted['train_loss'] < float('inf')
        for client, said in enumerate(SAID):
            assert said is None or re.search('client %d is left out: program pets: .*%s' % (client, said), log), (client, said)
        for text in (log, logs):
            assert not re.search('[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]', text)
        assert len(logs) < 20000 and len(log) < 50000
        assert len(set(digests)) == 1
