# SPDX-License-Identifier: Apache-2.0
"""Training programs in control groups of their own, on the machine's real ones, as systemd delegates them (Delegate=memory pids)."""
import os

import pytest

import mfl_harness as h
import test_programs as programs

# Memory that no process has mapped for long is counted by the kernel alone.
GREEDY = r"""
import mmap, os, sys, time
sys.path.insert(0, %r)
from mfl import train as mfl_train


def swell():
    held = []
    while True:
        piece = mmap.mmap(-1, 64 << 20)
        for at in range(0, 64 << 20, 4096):
            piece[at] = 1
        piece.madvise(mmap.MADV_DONTNEED)
        held.append(piece)


def fork():
    for _ in range(300):
        if os.fork() == 0:
            time.sleep(3600)


def train(params, client, round, config):
    {'': lambda: None, 'swell': swell, 'fork': fork, 'wait': lambda: time.sleep(3600)}[config['then']]()
    return params, 10, {}


program = mfl_train._Program(train, None, 'greedy')
program.serve()
"""


def read(group, file):
    with open(os.path.join(group, file), encoding='utf-8') as f:
        return f.read().strip()


@pytest.fixture
def group():
    """A group of cgroup v2 that was delegated, with memory and pids; skips where this user can't make one."""
    with open('/proc/self/mounts', encoding='utf-8') as f:
        roots = [line.split()[1] for line in f if line.split()[2] == 'cgroup2']
    if not roots:
        pytest.skip('no cgroup v2 is mounted here')
    root = roots[0]
    have = read(root, 'cgroup.controllers').split()
    if not {'memory', 'pids'} <= set(have):
        pytest.skip('cgroup v2 at %s has no memory and pids (%s): they are mounted as version 1, or the kernel lacks them'
                    % (root, ' '.join(have) or 'no controllers'))
    path = os.path.join(root, 'mfl-test-%d' % os.getpid())
    try:
        with open(os.path.join(root, 'cgroup.subtree_control'), 'w', encoding='utf-8') as f:
            f.write('+memory +pids')
        os.mkdir(path)
        os.setxattr(path, 'user.delegate', b'1')
    except OSError as e:
        pytest.skip('no control group can be made below %s: %s' % (root, e.strerror))
    yield path
    for at, _, _ in os.walk(path, topdown=False):
        h.wait_until(lambda at=at: not read(at, 'cgroup.procs'), 10, 'the end of what is in ' + at)
        os.rmdir(at)


def start(lab, group, name='d1'):
    """A daemon that begins in the group, as a unit's process does."""
    argv = lab.cluster.daemon_argv(name, more=['--config', lab.config], node=name)
    daemon = h.Process(['sh', '-c', 'echo $$ >"$0/cgroup.procs" && exec "$@"', group, *argv], lab.cluster.log_path(name))
    lab.cluster.daemons[name] = daemon
    return daemon


def groups_of(group):
    return [os.path.join(group, name) for name in sorted(os.listdir(group)) if name.startswith('program-')]


def test_the_kernel_holds_memory_and_processes(tmp_path, group):
    with programs.Lab(tmp_path, GREEDY, more='    processes: 100\n') as lab:
        daemon = start(lab, group)
        data, more = {'partition': 'local'}, {'rounds': 1, 'evaluation': {'every': 0}, 'limits': {'retries': 0}}
        lab.run(data, {'then': ''}, **more)
        assert 'control groups for memory and processes' in daemon.log() and '; in a control group' in daemon.log()
        assert str(daemon.pid) in read(os.path.join(group, 'daemon'), 'cgroup.procs').split() and not read(group, 'cgroup.procs')
        h.wait_until(lambda: not groups_of(group), 10, 'the end of the first program\'s group')
        job = lab.submit(data, {'then': 'wait'}, **more)
        its, = h.wait_until(lambda: groups_of(group), 20, 'a program\'s group')
        assert (read(its, 'memory.max'), read(its, 'memory.oom.group'), read(its, 'pids.max')) == (str(1 << 30), '1', '101')
        h.wait_until(lambda: len(read(its, 'cgroup.procs').split()) >= 2, 20, 'the program in its group')
        lab.cluster.mfl('stop', job)
        h.wait_until(lambda: not groups_of(group), 10, 'the end of its group')
        job, _ = lab.run(data, {'then': 'swell'}, state='failed', **more)
        assert 'too much memory for its control group: its limit is 1.0 GiB' in lab.logs(job), lab.logs(job)
        job, _ = lab.run(data, {'then': 'fork'}, state='failed', **more)
        assert 'BlockingIOError' in lab.logs(job) or 'too many processes' in lab.logs(job), lab.logs(job)
        h.wait_until(lambda: not groups_of(group), 10, 'the end of all groups')
        assert daemon.alive()


def test_a_killed_daemon_leaves_no_program(tmp_path, group):
    with programs.Lab(tmp_path, GREEDY) as lab:
        daemon = start(lab, group)
        job = lab.submit({'partition': 'local'}, {'then': 'wait'}, rounds=1, evaluation={'every': 0})
        its, = h.wait_until(lambda: groups_of(group), 20, 'a program\'s group')
        h.wait_until(lambda: len(read(its, 'cgroup.procs').split()) >= 2, 20, 'the program in its group')
        daemon.kill()
        h.wait_until(lambda: not groups_of(group), 10, 'the end of its group')
        lab.cluster.mfl('stop', job)


def test_a_group_that_is_not_delegated(tmp_path, group):
    os.removexattr(group, 'user.delegate')
    with programs.Lab(tmp_path, GREEDY) as lab:
        daemon = start(lab, group)
        lab.run({'partition': 'local'}, {'then': ''}, rounds=1, evaluation={'every': 0})
        assert 'is not delegated' in daemon.log() and 'in a control group' not in daemon.log()
        assert str(daemon.pid) in read(group, 'cgroup.procs').split() and not groups_of(group)
