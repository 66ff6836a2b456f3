# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of whole processes: a limit on every test, and what the processes wrote when one fails."""
import glob
import os
import shutil
import signal
import sys
import tempfile

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))
import mfl_harness  # noqa: E402

TEST_SECONDS_MAX = 90 * mfl_harness.PATIENCE


def _on_alarm(_signal, _frame):
    raise TimeoutError('the test took more than %d s' % TEST_SECONDS_MAX)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        item.session.mfl_failed = True
        folders = getattr(item.session, 'mfl_folders', [])
        for path in sorted(p for d in folders for p in glob.glob(d + '/**/*.log', recursive=True)):
            with open(path, encoding='utf-8', errors='replace') as f:
                report.sections.append((path, f.read()[-3000:]))


@pytest.fixture(autouse=True)
def _limit():
    signal.signal(signal.SIGALRM, _on_alarm)
    signal.alarm(TEST_SECONDS_MAX)
    yield
    signal.alarm(0)


def _folder(request):
    path = tempfile.mkdtemp(prefix='mfl-test-')
    request.session.mfl_folders = getattr(request.session, 'mfl_folders', []) + [path]
    return path


def _drop(request, path):
    if getattr(request.session, 'mfl_failed', False):
        print('kept: ' + path)
    else:
        shutil.rmtree(path, ignore_errors=True)
    request.session.mfl_folders.remove(path)


@pytest.fixture
def folder(request):
    """An empty directory, kept when a test has failed."""
    path = _folder(request)
    yield path
    _drop(request, path)


def _clusters(request):
    path, made = _folder(request), []

    def make(daemons=1, **options):
        cluster = mfl_harness.start_cluster(os.path.join(path, 'c%d' % len(made)), daemons, **options)
        made.append(cluster)
        return cluster

    def empty(config=None):
        cluster = mfl_harness.Cluster(os.path.join(path, 'c%d' % len(made)), config)
        made.append(cluster)
        return cluster
    make.empty = empty
    yield make
    for cluster in made:
        cluster.close()
    _drop(request, path)


@pytest.fixture
def cluster(request):
    """cluster(daemons=1, workers=1, config={}, ...) starts one; all of them end with the test. cluster.empty(config) only
    makes its directory."""
    yield from _clusters(request)


@pytest.fixture(scope='module')
def shared_cluster(request):
    """The same for a whole file."""
    yield from _clusters(request)
