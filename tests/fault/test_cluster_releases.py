# SPDX-License-Identifier: Apache-2.0
"""Servers of two releases in one cluster: what an older one does when a newer one has changed the tables. What the newer one leaves behind
is made here from what this release writes."""
import base64
import json
import os
import shutil
import sqlite3
import struct
import subprocess
import urllib.request

import pytest

import mfl_harness as h
from mfl_servers import Servers
from test_cluster import JOB, reference  # noqa: F401

pytestmark = pytest.mark.skipif(not shutil.which('etcd'), reason='etcd is not installed (Debian: etcd-server)')
SCHEMA_AT = 8  # of an entry's head: magic, kind, schema (server/cluster/entry.c)
LATER = 99


def ask(etcd, what, **body):
    body = {k: base64.b64encode(v).decode() if isinstance(v, bytes) else v for k, v in body.items()}
    request = urllib.request.Request(etcd.client + '/v3/kv/' + what, json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request, timeout=5))


def newest_entry(etcd):
    found = ask(etcd, 'range', key=b'mfl/log/', range_end=b'mfl/log0', sort_order='DESCEND', sort_target='KEY', limit=1)['kvs'][0]
    return base64.b64decode(found['key']), base64.b64decode(found['value'])


def write_later(etcd):
    """The next entry, as a later release writes it; its key."""
    key, value = newest_entry(etcd)
    key = b'mfl/log/%016x' % (int(key.rsplit(b'/', 1)[1], 16) + 1)
    ask(etcd, 'put', key=key, value=value[:SCHEMA_AT] + struct.pack('<I', LATER) + value[SCHEMA_AT + 4:])
    return key


def schema_of(path):
    with sqlite3.connect('file:%s?mode=ro' % path, uri=True) as db:
        return db.execute('PRAGMA user_version').fetchone()[0]


def run(s, i, *options):
    return subprocess.run([h.program('mfl-server'), '--config', s.config(i), *options], capture_output=True, text=True, timeout=60, check=False)


def test_an_older_server_follows_no_later_release(tmp_path, reference):  # noqa: F811
    """It says what it lacks, leads no more, and changes nothing. Without the later release's entry, which was never committed here, it goes on."""
    with Servers(tmp_path) as s:
        job = s.submit(**JOB)
        s.wait_round(job, 3)
        leader = s.leader()
        other = 1 - leader
        for server in s.servers:
            server.kill()
        entries = s.etcd.entries()
        key = write_later(s.etcd)
        before = s.log('s%d' % other).count('leads, term')
        said = 'has schema %d; this is mfl-server' % LATER
        for i in (other, leader):
            s.start(i)
            h.wait_until(lambda name='s%d' % i: said in s.log(name), 20, 'why it does not follow')
            assert 'upgrade this server, too' in s.log('s%d' % i).split(said)[1].splitlines()[0]
        # A leader's lease ends, and neither begins to lead: what they would write could be read by none of the later release.
        h.wait_until(lambda: not ask(s.etcd, 'range', key=b'mfl/leader').get('kvs'), 20, 'the end of the old lease')
        tries = [s.log('s%d' % i).count(said) for i in range(2)]
        assert tries == [1, 1], 'it is said once'
        assert s.log('s%d' % other).count('leads, term') == before
        assert s.etcd.entries() == entries + [int(key.rsplit(b'/', 1)[1], 16)]
        assert all(schema_of(os.path.join(s.state_dir(i), 'mfl.db')) < LATER for i in range(2))
        left = run(s, 1 - other, '--leave')
        assert left.returncode, left
        done = h.mfl('list', server=s.addresses[other], status=None)
        assert done.returncode and 'lead' in done.stderr, done.stderr
        ask(s.etcd, 'deleterange', key=key)
        assert s.digests(job) == reference


def test_an_older_server_on_a_newer_directory(tmp_path, reference):  # noqa: F811
    """It exits with 78, names both schemas, and the directory stays as it is; the other server goes on."""
    with Servers(tmp_path) as s:
        job = s.submit(**JOB)
        s.wait_round(job, 2)
        follower = 1 - s.leader()
        s.servers[follower].kill()
        path = os.path.join(s.state_dir(follower), 'mfl.db')
        with sqlite3.connect(path) as db:
            old = db.execute('PRAGMA user_version').fetchone()[0]
            db.execute('PRAGMA user_version = %d' % LATER)
        db.close()
        done = run(s, follower)
        assert done.returncode == 78 and 'has schema %d' % LATER in done.stderr, done
        leader = s.leader()
        s.servers[leader].kill()
        h.wait_until(lambda: not ask(s.etcd, 'range', key=b'mfl/leader').get('kvs'), 20, 'the end of the lease')
        left = run(s, follower, '--leave')
        assert left.returncode and 'has schema %d' % LATER in left.stderr and 'supports schemas up to %d' % old in left.stderr, left
        assert run(s, follower, '--join-cluster').returncode  # there is a log already
        assert schema_of(path) == LATER
        s.start(leader)
        # As docs/upgrade.md says: an empty directory is filled by the cluster.
        shutil.rmtree(s.state_dir(follower))
        s.start(follower)
        assert s.digests(job) == reference
        h.wait_until(s.same_files(job, 0, 1), 20, 'the files of the one that came back')
