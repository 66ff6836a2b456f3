#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one file of tests and speaks TAP, a line for each test, on standard output; what pytest says goes to standard error.

A test that lacks something is skipped, and its line says why (mfl_needs.py); a file that found nothing to run for that reason is
skipped as a whole. No test and no reason is a failure. $MFL_SKIPPED_IN names the testlog.json of an earlier run: of a file that
is in it, only what was skipped then is run.
"""
import json
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
try:
    import numpy  # noqa: F401
    import pytest
except ImportError as e:
    print('1..0 # SKIP %s; on Debian: apt-get install python3-pytest python3-numpy' % e)
    sys.exit(0)


def skipped_in(path):
    """Names of tests, and of files, that have been skipped in a run."""
    names = set()
    with open(path, encoding='utf-8') as f:
        for line in f:
            for said in (json.loads(line).get('stdout') or '').splitlines():
                if said.startswith('ok ') and ' # SKIP' in said:
                    names.add(said.split(' - ', 1)[-1].split(' # SKIP')[0])
    return names


class Tap:
    """A plugin that prints the lines."""

    def __init__(self, out, only):
        self.out, self.only, self.n, self.said = out, only, 0, {}

    def line(self, good, name, comment=''):
        self.n += 1
        print('%sok %d - %s%s' % ('' if good else 'not ', self.n, name.replace('#', '\\#').replace('\n', ' '), comment),
              file=self.out, flush=True)

    def report(self, report, done):
        """A test is set up, called and torn down: it has one line, and one more for a failure after that."""
        name = os.path.basename(report.nodeid)
        if report.skipped and not hasattr(report, 'wasxfail'):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.line(True, name, ' # SKIP ' + reason.removeprefix('Skipped: ').strip().split('\n')[0])
        elif report.failed:
            self.line(False, name if done else '%s (%s)' % (name, report.when))
        elif done:
            self.line(True, name)

    def pytest_runtest_logreport(self, report):
        self.report(report, report.when == 'call')

    def pytest_collectreport(self, report):
        if not report.passed:
            self.report(report, True)

    def pytest_collection_modifyitems(self, config, items):
        if self.only is None:
            return
        names = {id(item): os.path.basename(item.nodeid) for item in items}
        again = [item for item in items if {names[id(item)], names[id(item)].split('::')[0]} & self.only]
        config.hook.pytest_deselected(items=[item for item in items if item not in again])
        items[:] = again


def main():
    out = os.fdopen(os.dup(1), 'w', encoding='utf-8')
    os.dup2(2, 1)
    folder = os.path.dirname(os.path.abspath(sys.argv[1]))
    only = os.environ.pop('MFL_SKIPPED_IN', None)
    tap = Tap(out, only and skipped_in(only))
    import mfl_hang  # only now: it needs pytest
    status = pytest.main(['-q', '-x', '-rs', '--durations=5', '-p', 'no:cacheprovider', '--rootdir', os.path.dirname(folder),
                          *sys.argv[1:]], [tap, mfl_hang.Plugin()])
    if not tap.n:
        tap.line(False, 'no test in ' + os.path.basename(sys.argv[1]))
    elif status == pytest.ExitCode.NO_TESTS_COLLECTED:
        status = 0  # the file's own line says why
    print('1..%d' % tap.n, file=out, flush=True)
    return int(status)


if __name__ == '__main__':
    sys.exit(main())
