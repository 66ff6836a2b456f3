# SPDX-License-Identifier: Apache-2.0
"""What a test that ran out of time leaves behind: what its processes were doing at that moment, and the ends of their logs.

A hang that comes once in ten thousand runs can't be sought by running; the one time that it is seen must say where it is.
"""
import os
import pathlib
import shutil
import subprocess

import pytest

LOG_LINES = 40


def text_of(*path):
    try:
        return pathlib.Path(*path).read_bytes().replace(b'\0', b' ').decode(errors='replace').strip()
    except OSError:
        return ''


def descendants(parent):
    """Process ids, parents first."""
    children = {}
    for pid in filter(str.isdigit, os.listdir('/proc')):
        after_name = text_of('/proc', pid, 'stat').rpartition(')')[2].split()
        if after_name:
            children.setdefault(int(after_name[1]), []).append(int(pid))
    found = [parent]
    for pid in found:
        found += sorted(children.get(pid, []))
    return found[1:]


def threads(pid):
    """A line for each: name, state, where in the kernel it sleeps. With a debugger (Debian: gdb) the stacks too."""
    lines = []
    for tid in sorted(os.listdir('/proc/%d/task' % pid), key=int):
        task = '/proc/%d/task/%s' % (pid, tid)
        state = text_of(task, 'stat').rpartition(')')[2].split()[:1]
        lines.append('  %s %s %s in %s, system call %s' % (tid, text_of(task, 'comm'), *state, text_of(task, 'wchan'),
                                                          text_of(task, 'syscall')))
    if shutil.which('gdb'):
        with subprocess.Popen(['gdb', '-batch', '-nx', '-p', str(pid), '-ex', 'thread apply all bt 12'], text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as gdb:
            lines += ['  ' + line.rstrip() for line in gdb.stdout if line.startswith(('#', 'Thread'))]
    return lines


def processes(parent):
    lines = []
    for pid in descendants(parent):
        try:
            lines += ['%d: %s' % (pid, text_of('/proc', str(pid), 'cmdline')), *threads(pid)]
        except OSError:
            lines.append('%d: has ended' % pid)
    return '\n'.join(lines)


def logs(folder):
    """The ends of all logs under a folder."""
    parts = []
    for path in sorted(pathlib.Path(folder).rglob('*.log')):
        lines = text_of(path).splitlines()
        parts.append('\n'.join(['== %s, %d lines' % (path.relative_to(folder), len(lines)), *lines[-LOG_LINES:]]))
    return '\n'.join(parts)


class Plugin:
    """Of pytest: keeps what processes did whenever one that a test waits for is out of time, before it is killed, or a test gave up
    waiting for something else, and prints it with the failure, and the logs in the test's folder with every failure."""

    def __init__(self):
        plugin, plain = self, subprocess.TimeoutExpired
        self.seen = []

        class TimeoutExpired(plain):
            def __init__(self, *args, **more):
                super().__init__(*args, **more)
                plugin.seen.append(processes(os.getpid()))

        subprocess.TimeoutExpired = TimeoutExpired

    def pytest_runtest_setup(self):
        self.seen.clear()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        if call.excinfo and isinstance(call.excinfo.value, TimeoutError) and not self.seen:
            self.seen.append(processes(os.getpid()))  # they end with the test's fixtures, later
        report = (yield).get_result()
        if report.failed:
            folder = item.funcargs.get('tmp_path')
            report.sections += [('processes when the time was over', text) for text in self.seen]
            report.sections += [('logs', logs(folder))] if folder else []
