# SPDX-License-Identifier: Apache-2.0
"""A disk that lies about the state directory. Whatever it lost or changed, the server says so instead of going on with something
else, and no model is ever removed. (tests/unit/server/test_store_flips.c sweeps over bits; here are the programs.)"""
import os
import shutil
import sqlite3
import subprocess
import urllib.request

import mfl_harness as h
import mfl_state
import pytest

JOB = {'rounds': 4, 'model': 'logistic', 'checkpoints': {'keep': 1}, 'data': {'clients': 4}}
DAMAGE, REFUSED = 3, 78


@pytest.fixture(scope='module')
def past(tmp_path_factory):
    """State of a server that was killed after two jobs; their ids and digests."""
    with h.start_cluster(tmp_path_factory.mktemp('past')) as c:
        first, digests = c.run_job(**JOB)
        second = c.run_job(**dict(JOB, name='second'))[0]
        c.server.kill()
        return c.state_dir, (first, second), digests


@pytest.fixture
def damaged(tmp_path, past):
    """Without a server yet; its state is a copy."""
    with h.Cluster(tmp_path, {'http': '127.0.0.1:0'}) as c:
        shutil.copytree(past[0], c.state_dir)
        yield c


def path_of(c, *names):
    return os.path.join(c.state_dir, *names)


def flip(path, byte, bit=0):
    with open(path, 'r+b') as f:
        f.seek(byte, 2 if byte < 0 else 0)
        at = f.tell()
        value = f.read(1)[0] ^ 1 << bit
        f.seek(at)
        f.write(bytes([value]))


def models(c):
    return sorted(f for _, _, files in os.walk(c.state_dir) for f in files if f.startswith('round-'))


def tool(c, *argv, status=0):
    done = subprocess.run([h.program('mfl-server'), '--state-dir', c.state_dir, *argv], capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == status, (argv, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def refuses(c, *words):
    """Twice, because the first try must leave all as it was."""
    for _ in range(2):
        c.start_server(ready=False)
        assert c.server.wait(20) == REFUSED, c.server.log()
        said = c.server.log()
        for word in (*words, 'Nothing was changed', '--repair'):
            assert word in said, said


def test_a_flipped_bit_in_the_log(damaged, past):
    """The bit that made the server start empty and delete both models."""
    before = models(damaged)
    assert len(before) >= 4
    flip(path_of(damaged, 'mfl.db-wal'), 100)
    said = tool(damaged, '--check-state', status=DAMAGE)
    assert 'mfl.db-wal is broken at frame 1' in said and 'transactions' in said, said
    refuses(damaged, 'mfl.db-wal is broken at frame 1')
    assert models(damaged) == before
    # No back-up: on without what is lost.
    said = tool(damaged, '--repair')
    assert 'moved to' in said and 'mfl.db-wal.damaged' in said and 'a server can start' in said, said
    assert 'sound' in tool(damaged, '--check-state')
    damaged.start_server()
    assert 'orphans' in damaged.server.log()
    assert models(damaged) == before
    listed = damaged.mfl('list')
    assert 'no jobs' in listed.stdout and 'state directory' in listed.stderr and '--check-state' in listed.stderr
    assert damaged.mfl_json('list')['notice']
    address = damaged.server.log().split('dashboard on ')[1].split()[0]
    with urllib.request.urlopen(address + 'metrics', timeout=10) as f:
        assert b'mfl_state_warnings 1' in f.read()
    # What was moved aside is a model like any other, and the server works.
    digests = []
    for folder, _, files in os.walk(path_of(damaged, 'orphans')):
        digests += [h.params_digest(os.path.join(folder, f)) for f in files if f == 'round-000004.safetensors']
    assert digests == [past[2][-1]] * 2
    damaged.start_daemon()
    assert damaged.run_job(**JOB)[1] == past[2]


def test_bits_all_over_the_log(damaged):
    """Also those at which --check-state said that all is sound."""
    path = path_of(damaged, 'mfl.db-wal')
    size = os.path.getsize(path)
    for byte in (3, 20, 30, 40, 60, 4000, size // 3, size // 2, size * 2 // 3, size - 4000, size - 1):
        flip(path, byte)
        assert 'DATABASE' in tool(damaged, '--check-state', status=DAMAGE), byte
        damaged.start_server(ready=False)
        assert damaged.server.wait(20) == REFUSED, damaged.server.log()
        flip(path, byte)  # the disk reads well again: all is there
    damaged.start_server()
    assert len(damaged.mfl_json('list')['jobs']) == 2
    assert 'notice' not in damaged.mfl_json('list')


def test_a_changed_letter_of_a_job(damaged, past):
    """It would train another model."""
    db = sqlite3.connect(path_of(damaged, 'mfl.db'))
    with db:
        n = db.execute("UPDATE jobs SET text = replace(text, 'rounds: 4', 'rounds: 9') WHERE id = ?", (past[1][0],)).rowcount
        assert n == 1
    db.close()
    assert 'a row was changed on the disk: jobs: ' + past[1][0] in tool(damaged, '--check-state', status=DAMAGE)
    refuses(damaged, past[1][0])
    with mfl_state.changed(damaged.state_dir) as db:  # as it was
        db.execute("UPDATE jobs SET text = replace(text, 'rounds: 9', 'rounds: 4')")
    tool(damaged, '--check-state')
    damaged.start_server()
    assert damaged.digests(past[1][0]) == past[2]


def test_a_database_that_is_gone(damaged):
    before = models(damaged)
    tool(damaged, '--check-state')  # takes nothing away
    for name in os.listdir(damaged.state_dir):
        if name.startswith('mfl.db') or name == 'commits':
            os.unlink(path_of(damaged, name))
    refuses(damaged, 'has no jobs')
    assert models(damaged) == before


def test_an_older_database_in_place_of_the_new_one(damaged, tmp_path):
    """As a back-up that was copied over the directory, and not put in its place."""
    saved = str(tmp_path / 'saved')
    tool(damaged, '--backup', saved)
    damaged.start_server()
    damaged.start_daemon()
    damaged.run_job(**JOB)
    damaged.server.kill()
    before = models(damaged)
    shutil.copy(os.path.join(saved, 'mfl.db'), path_of(damaged, 'mfl.db'))
    for more in ('-wal', '-shm'):
        os.unlink(path_of(damaged, 'mfl.db' + more))
    refuses(damaged, 'lacks the last', 'transactions')
    assert models(damaged) == before
    # Put in its place as the page says, it is as it was.
    shutil.rmtree(damaged.state_dir)
    shutil.copytree(saved, damaged.state_dir)
    damaged.start_server()
    assert len(damaged.mfl_json('list')['jobs']) == 2
