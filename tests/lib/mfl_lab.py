# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine: tests that run in namespaces of their own.

A test under @in_lab is run by another pytest inside a fresh user, network and mount namespace, where it is root: it may add
links and mount things, and all of it goes with it. Where that is not allowed the test is skipped with the reason. Host is a
network namespace with a link to the laboratory's, where the server is.
"""
import functools
import inspect
import os
import shutil
import signal
import subprocess
import sys

import pytest

import mfl_harness as h
import mfl_needs

SECONDS_MAX = 80 * h.PATIENCE
PROBE = 'mount -t tmpfs -o size=1m lab /mnt && ip link set lo up && ip link add lab0 type veth peer name lab1'
WAYS = (['unshare', '--user', '--map-root-user', '--net', '--mount'], ['unshare', '--net', '--mount'])


@functools.lru_cache(None)
def _way():
    """(command that runs another one in a laboratory, None), or (None, why there is none)."""
    for tool in ('unshare', 'nsenter', 'ip'):
        if not shutil.which(tool):
            return None, mfl_needs.lack(tool)
    for way in WAYS:
        done = subprocess.run([*way, 'sh', '-c', PROBE], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20,
                              check=False)
        if done.returncode == 0:
            return way, None
    return None, 'no namespaces for this user: ' + (done.stderr.strip() or 'status %d' % done.returncode)


def in_lab(test):
    @functools.wraps(test)
    def run(*args, **kwargs):
        if os.environ.get('MFL_LAB') == '1':
            subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True)
            test(*args, **kwargs)
            return
        way, reason = _way()
        if not way:
            pytest.skip(reason)
        name = os.environ['PYTEST_CURRENT_TEST'].split('::', 1)[1].rsplit(' ', 1)[0]
        argv = [*way, '--fork', '--kill-child=KILL', sys.executable, '-m', 'pytest', '-q', '-x', '-rs', '-p',
                'no:cacheprovider', inspect.getfile(test) + '::' + name]
        inner = subprocess.Popen(argv, env=dict(os.environ, MFL_LAB='1'), stdin=subprocess.DEVNULL, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            output = inner.communicate(timeout=SECONDS_MAX)[0]
        finally:
            inner.kill()
        if inner.returncode == 0 and '1 skipped' in output:
            pytest.skip(output.strip().splitlines()[-2])
        assert inner.returncode == 0, output
    return run


def ip(*argv, prefix=()):
    subprocess.run([*prefix, 'ip', *map(str, argv)], check=True, timeout=10)


class Host:
    """Host number i, from 1: it is 10.77.i.2, and reaches the laboratory at 10.77.i.1. `prefix` runs a command on it.
    own_memory: with a /dev/shm of its own, as a container has."""

    def __init__(self, i, own_memory=False):
        self.link, self.gateway = 'host%d' % i, '10.77.%d.1' % i
        script = ('mount -t tmpfs shm /dev/shm && ' if own_memory else '') + 'exec cat'
        self.holder = subprocess.Popen(['unshare', '--net', '--mount', 'sh', '-c', script], stdin=subprocess.PIPE)
        pid = str(self.holder.pid)
        h.wait_until(lambda: self._program() == 'cat', 10, 'a namespace')
        self.prefix = ['nsenter', '-t', pid, '-n', '-m', '--']
        ip('link', 'add', self.link, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', pid)
        ip('addr', 'add', self.gateway + '/24', 'dev', self.link)
        ip('link', 'set', self.link, 'up')
        ip('addr', 'add', '10.77.%d.2/24' % i, 'dev', 'eth0', prefix=self.prefix)
        for device in ('lo', 'eth0'):
            ip('link', 'set', device, 'up', prefix=self.prefix)

    def _program(self):
        try:
            with open('/proc/%d/comm' % self.holder.pid, encoding='utf-8') as f:
                return f.read().strip()
        except OSError:
            return None

    def cut(self):
        """Pulls the cable: nothing arrives any more, and no program is told."""
        ip('link', 'set', self.link, 'down')

    def mend(self):
        ip('link', 'set', self.link, 'up')

    def close(self):
        self.holder.stdin.close()
        self.holder.send_signal(signal.SIGKILL)
        self.holder.wait(10)
