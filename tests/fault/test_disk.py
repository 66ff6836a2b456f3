# SPDX-License-Identifier: Apache-2.0
"""A disk that is full, or fails, makes a job wait with a reason and go on later; it never stops the server."""
import os
import shutil
import sqlite3
import subprocess
import time

import pytest

import mfl_harness as h

JOB = {'rounds': 4, 'model': 'logistic', 'checkpoints': {'keep': 0}, 'data': {'clients': 4}}
POINTS = [when + '-' + step for step in ('open', 'write', 'fsync', 'rename', 'fsync-dir') for when in ('before', 'after')]
# Each failed step is tried again after 5 s, so the servers wait side by side.
RETRY_SECONDS = 5


def told(c, text):
    """The lines of the server's log that have it."""
    return '\n'.join(line for line in c.server.log().splitlines() if text in line)


def run_with_faults(cluster, faults, text):
    reference = cluster(1)
    expected = reference.run_job(**JOB)[1]
    reference.close()
    clusters = []
    for fault in faults:
        c = cluster.empty()
        c.start_server({'MFL_FAULT': fault})
        c.start_daemon('d1')
        clusters.append((fault, c))
    jobs = [c.submit(**JOB) for _, c in clusters]
    waiting = dict(zip(faults, zip((c for _, c in clusters), jobs)))

    def all_ended():
        for fault, (c, job) in list(waiting.items()):
            info = c.info(job)
            if info and info['state'] in h.ENDED:
                assert info['state'] == 'done', (fault, info['reason'])
                assert c.digests(job) == expected, fault
                del waiting[fault]
        return not waiting
    h.wait_until(all_ended, 60, 'all jobs')
    for fault, c in clusters:
        # The reason that was shown; a file that can't be removed stops nobody.
        assert 'unlink' in fault or '(tiny): ' in told(c, text), (fault, c.server.log()[-1000:])
    for _, c in clusters:
        c.check_alive()


@pytest.mark.parametrize('kind,text', [('enospc', 'No space left'), ('eio', 'Input/output error')])
def test_checkpoint_fails_once(cluster, kind, text):
    """The second passage is the second round's."""
    run_with_faults(cluster, [p + ':2:' + kind for p in POINTS] + ['before-unlink:1:' + kind], text)


def test_database_is_full_once(cluster):
    """Transactions before the first round's commit are those of the start and of the submission: found by counting."""
    reference = cluster(1)
    expected = reference.run_job(**JOB)[1]
    seen = []
    for n in range(1, 14):
        c = cluster.empty()
        c.start_server({'MFL_FAULT': 'before-db-commit:%d:enospc' % n}, ready=False)
        if not c.server.wait_ready():
            assert 'No space left' in c.server.log()
            c.close()
            continue
        c.start_daemon('d1')
        seen.append((n, c))
    assert len(seen) >= 8
    waiting = {}
    for n, c in seen:
        try:
            waiting[n] = (c, c.submit(**JOB))
        except Exception as e:  # the submission itself met the full disk: refused with a reason, and taken the next time
            assert 'No space left' in str(e), (n, e)
            waiting[n] = (c, c.submit(**JOB))

    def all_ended():
        for n, (c, job) in list(waiting.items()):
            info = c.info(job)
            assert info, 'server %d has ended: %s' % (n, c.server.log()[-1000:])
            if info['state'] in h.ENDED:
                assert info['state'] == 'done', (n, info['reason'])
                assert c.digests(job) == expected, n
                del waiting[n]
        return not waiting
    h.wait_until(all_ended, 60, 'all jobs')
    assert any('(tiny): ' in told(c, 'No space left') for _, c in seen)


def can_mount():
    probe = subprocess.run(['unshare', '-Urm', 'mount', '-t', 'tmpfs', '-o', 'size=64k', 'none', '/mnt'], check=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return probe.returncode == 0


def small_disk(cluster):
    """A server whose state is on a real file system of 4 MiB; the second value is that folder, seen from here."""
    if not can_mount():
        pytest.skip('mounting a tmpfs in a user namespace is not permitted here')
    c = cluster.empty()
    os.makedirs(c.state_dir)
    script = 'mount -t tmpfs -o size=4m none "$0" && exec "$@"'
    c.start_server(prefix=['unshare', '-Urm', 'sh', '-c', script, c.state_dir])
    c.start_daemon('d1')
    c.wait_daemons(1)
    return c, '/proc/%d/root%s' % (c.server.pid, c.state_dir)


def fill(folder):
    with open(os.path.join(folder, 'filler'), 'wb', buffering=0) as f:
        for size in (65536, 4096):
            try:
                while True:
                    f.write(bytes(size))
            except OSError:
                pass


LONG = dict(JOB, training={'steps': 200, 'epochs': None})


def test_small_disk(cluster):
    """Filled to the brim while a job runs, and emptied again."""
    c, inside = small_disk(cluster)
    job = c.begin(**LONG)
    c.wait_info(job, lambda i: i['round'] >= 1, 20, 'a round')
    fill(inside)
    info = c.wait_info(job, lambda i: 'space' in i['reason'] or 'full' in i['reason'], 20, 'a reason')
    assert info['state'] in ('running', 'waiting')
    at = info['round']
    time.sleep(1)
    assert c.info(job)['round'] == at
    os.remove(os.path.join(inside, 'filler'))
    c.finish(job, **LONG)


def state_on_disk(folder, job, tmp):
    """Of a copy: SQLite follows the link below /proc to a path that is another one here."""
    for name in ('mfl.db', 'mfl.db-wal'):
        shutil.copy(os.path.join(folder, name), os.path.join(tmp, name))
    db = sqlite3.connect(os.path.join(tmp, 'mfl.db'))
    try:
        return db.execute('SELECT state FROM jobs WHERE id = ?', (job,)).fetchone()[0]
    finally:
        db.close()


def test_stop_on_a_full_disk(cluster, tmp_path):
    """The answer is true (the journal may have had room for one more page), and once the disk has room the state is on it."""
    stopped = 5
    c, inside = small_disk(cluster)
    job = c.begin(**LONG)
    c.wait_info(job, lambda i: i['round'] >= 1, 20, 'a round')
    fill(inside)
    c.wait_info(job, lambda i: 'space' in i['reason'] or 'full' in i['reason'], 20, 'a reason')
    unwritten = 'keeps trying' in c.mfl('stop', job).stdout
    assert c.info(job)['state'] == 'stopped'
    assert (state_on_disk(inside, job, tmp_path) == stopped) == (not unwritten)
    os.remove(os.path.join(inside, 'filler'))
    h.wait_until(lambda: state_on_disk(inside, job, tmp_path) == stopped, 10, 'the state on disk')


def test_single_updates_wait_for_room(cluster):
    """The median keeps single updates on the disk: a job that finds it full at its start waits, and says for what."""
    job = dict(JOB, aggregation={'strategy': 'median'})
    c, inside = small_disk(cluster)
    expected = c.run_job(**job)[1]
    late = c.submit(**dict(job, data={'name': 'elsewhere', 'clients': 4}))
    fill(inside)
    c.start_daemon('d2', data=['elsewhere=' + h.TINY.split('=', 1)[1]])
    info = c.wait_info(late, lambda i: 'space' in i['reason'], 20, 'a reason')
    assert info['state'] == 'waiting' and 'KiB' in info['reason'], info
    os.remove(os.path.join(inside, 'filler'))
    c.wait_job(late, 40)
    assert c.digests(late) == expected
