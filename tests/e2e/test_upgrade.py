# SPDX-License-Identifier: Apache-2.0
"""What an administrator relies on over releases: versions that meet or don't, state of earlier releases, back-ups."""
import os
import re
import shutil
import socket
import sqlite3
import subprocess

import mfl_harness as h
import mfl_state
import mfl_wire as w
import pytest

JOB = {'rounds': 40, 'model': 'logistic', 'aggregation': {'strategy': 'fedadam'}, 'checkpoints': {'keep': 2},
       'data': {'clients': 4}, 'training': {'lr': 0.05, 'momentum': 0.9}}
DAMAGE, CONFLICT, WRONG = 3, 6, 78


# ---- versions ----

@pytest.fixture(scope='module')
def one(tmp_path_factory):
    """A server with one daemon."""
    with h.start_cluster(tmp_path_factory.mktemp('one')) as c:
        c.wait_daemons(1)
        yield c


def greet(one, **fields):
    """(Welcome or None, Bye's reason, Bye's retry)."""
    with w.Connection(one.address) as c:
        c.send('hello', w.hello(**fields))
        try:
            return c.expect('welcome'), '', None
        except w.Closed as e:
            return None, e.reason, c.retry


def test_the_server_chooses_the_largest_common_version(one):
    assert greet(one, protocol_min=1, protocol_max=1)[0]['protocol'] == 1
    assert greet(one, protocol_min=1, protocol_max=10)[0]['protocol'] == 8  # a newer peer that still speaks the old one


def test_a_newer_peer_without_overlap(one):
    daemon = {'role': 'ROLE_DAEMON', 'name': 'new', 'backend': 'cpu', 'workers': 1, 'instance': 3}
    for fields, retry in (({}, False), (daemon, True)):
        _, reason, again = greet(one, protocol_min=9, protocol_max=10, software='mfl-x 9.1', **fields)
        assert 'mfl-server 0' in reason and 'speaks protocol 1 to 8, mfl-x 9.1 speaks 9 to 10: upgrade the server' in reason
        assert again is retry, 'a daemon goes on trying, mfl does not'
        h.wait_until(lambda: reason in one.server.log(), 5, 'the same line at the server')


def test_what_a_later_release_adds(one):
    """Unknown fields are ignored; an unknown request is answered; an unknown message is not taken."""
    unknown_field = b'\xfa\x3f\x03abc'  # field 1023
    with w.Operator(one.address) as o:
        o.send_raw(raw_frame(w.encode('Envelope', {'list_jobs': {}, 'request': 1}) + unknown_field))
        assert o.expect('job_list') is not None
        o.send_raw(raw_frame(b'\x08\x05' + unknown_field))  # request 5 of a kind that is not known
        kind, body, request, _ = o.recv()
        assert (kind, request) == ('failure', 5) and 'upgrade the server' in body['text'], body
        assert o.jobs() is not None  # and the connection stays
        o.send_raw(raw_frame(unknown_field))  # no request: nobody waits for an answer
        assert 'version' in o.until_closed()


def raw_frame(envelope):
    return w.HEADER.pack(w.MAGIC, 1, 0, len(envelope), 0, w.crc32c(envelope), 0) + envelope


OLD = ('bye', {'reason': 'no protocol version in common: mfl-server 9.0 speaks protocol 9 to 10, mfl 0 speaks 1 to 8: upgrade the client',
               'retry': False})
OLD_DAEMON = ('bye', dict(OLD[1], retry=True))
STRANGE = ('welcome', {'protocol': 9, 'software': 'mfl-server 9.0', 'heartbeat_ms': 1000, 'dead_ms': 5000})
GOOD = ('welcome', dict(STRANGE[1], protocol=1))


def test_a_daemon_waits_for_the_upgrade_of_the_server(tmp_path):
    """Refused for its version, then given one that it has not offered, then welcomed: it never gives up."""
    server = w.FakeServer(OLD_DAEMON, STRANGE, GOOD)
    c = h.Cluster(tmp_path)
    c.address = server.address
    daemon = c.start_daemon()
    try:
        h.wait_until(lambda: len(server.hellos) >= 3, 20, 'the third try')
        assert [(x['protocol_min'], x['protocol_max']) for x in server.hellos[:3]] == [(1, 8)] * 3
        h.wait_until(lambda: 'connected to' in daemon.log() or 'online' in daemon.log(), 10, 'the welcome')
        log = daemon.log()
        assert 'mfl-server 9.0 speaks protocol 9 to 10' in log and 'upgrade the client' in log
        assert 'mfl-server 9.0 chose protocol 9, mfl-client 0' in log and 'speaks 1 to 8: upgrade the client' in log
        assert any('chose protocol 9' in bye for bye in server.byes), server.byes
        assert daemon.alive()
    finally:
        c.close()
        server.close()


@pytest.mark.parametrize('answer,words', [(OLD, 'speaks protocol 9 to 10'), (STRANGE, 'chose protocol 9, mfl 0')], ids=['bye', 'welcome'])
def test_mfl_says_so_and_ends(answer, words):
    server = w.FakeServer(answer)
    try:
        for command in (['list'], ['watch', 'j-000001'], ['logs', '-f', 'j-000001']):
            done = h.mfl(*command, server=server.address, status=3, timeout=15)
            assert words in done.stderr and 'upgrade the client' in done.stderr, done.stderr
        assert len(server.hellos) == 3, 'no second try'
    finally:
        server.close()


def test_mixed_arithmetic_is_named_in_the_job_s_log(one):
    """The one who trains otherwise is named once; a job of daemons that agree has no such line."""
    def leave(daemon, kind, body, _):
        if kind == 'task':
            daemon.connection.sock.shutdown(socket.SHUT_RDWR)
    assert 'arithmetic:' not in one.mfl('daemons').stdout
    with one.operator() as o:
        plain = one.run_job(rounds=1)[0]
        assert not [x for x in o.logs(plain) if 'MIXED' in x]
        other = w.FakeDaemon(one.address, 'other', one.data_sets(), leave, numerics='mfl-7 abacus')
        shown = one.mfl('daemons').stdout
        assert 'arithmetic: mfl-7 abacus' in shown and 'arithmetic: mfl-%s reference' % arithmetic() in shown, shown
        job = one.run_job(rounds=3)[0]
        other.close()
        lines = [x for x in o.logs(job) if 'MIXED ARITHMETIC' in x]
        assert len(lines) == 1 and 'mfl-7 abacus' in lines[0] and 'mfl-%s reference' % arithmetic() in lines[0], lines


# ---- the state of earlier releases ----

# As released; a step never changes once it is, so these are copies of what server/store/store.c had then.
SCHEMA_1 = '''
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, name TEXT NOT NULL, state INTEGER NOT NULL,
 reason TEXT NOT NULL, token TEXT UNIQUE, created_ms INTEGER NOT NULL, finished_ms INTEGER NOT NULL, has_initial INTEGER NOT NULL,
 text TEXT NOT NULL, data_name TEXT NOT NULL DEFAULT '', data_rank INTEGER NOT NULL DEFAULT 0, data_dims BLOB,
 data_classes INTEGER NOT NULL DEFAULT 0, data_train INTEGER NOT NULL DEFAULT 0, data_test INTEGER NOT NULL DEFAULT 0,
 data_fingerprint INTEGER NOT NULL DEFAULT 0, n_params INTEGER NOT NULL DEFAULT 0);
CREATE TABLE rounds (job TEXT NOT NULL REFERENCES jobs(id) ON DELETE CASCADE, round INTEGER NOT NULL, attempt INTEGER,
 evaluated INTEGER, loss REAL, accuracy REAL, train_loss REAL, train_accuracy REAL, eval_samples INTEGER, samples INTEGER,
 weight INTEGER, clients INTEGER, clients_rejected INTEGER, daemons INTEGER, started_ms INTEGER, ended_ms INTEGER,
 digest BLOB NOT NULL, bytes_up INTEGER, bytes_down INTEGER, committed_ms INTEGER NOT NULL, file TEXT NOT NULL,
 file_sha256 BLOB NOT NULL, file_bytes INTEGER NOT NULL, kept INTEGER NOT NULL, superseded INTEGER NOT NULL DEFAULT 0,
 PRIMARY KEY (job, round)) WITHOUT ROWID;
CREATE TABLE drained (daemon TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE lines (seq INTEGER PRIMARY KEY, job TEXT NOT NULL, time_ms INTEGER NOT NULL, text TEXT NOT NULL);
CREATE INDEX lines_of_job ON lines (job, seq);
'''
SCHEMA_2 = SCHEMA_1 + '''
ALTER TABLE rounds ADD COLUMN bytes_up_alone INTEGER NOT NULL DEFAULT 0;
ALTER TABLE rounds ADD COLUMN bytes_down_alone INTEGER NOT NULL DEFAULT 0;
CREATE TABLE round_nodes (job TEXT NOT NULL REFERENCES jobs(id) ON DELETE CASCADE, round INTEGER NOT NULL, node TEXT NOT NULL,
 daemons INTEGER NOT NULL, up INTEGER NOT NULL, down INTEGER NOT NULL, up_alone INTEGER NOT NULL, down_alone INTEGER NOT NULL,
 PRIMARY KEY (job, round, node)) WITHOUT ROWID;
'''
SCHEMA_3 = SCHEMA_2 + '''
ALTER TABLE jobs ADD COLUMN owner TEXT NOT NULL DEFAULT '';
CREATE TABLE audit (n INTEGER PRIMARY KEY AUTOINCREMENT, time_ms INTEGER NOT NULL, who TEXT NOT NULL, address TEXT NOT NULL,
 action TEXT NOT NULL, object TEXT NOT NULL, result TEXT NOT NULL, text TEXT NOT NULL);
'''
SCHEMA_4 = SCHEMA_3 + '''
CREATE TABLE daemon_rules (pattern TEXT NOT NULL, verdict INTEGER NOT NULL, who TEXT NOT NULL, time_ms INTEGER NOT NULL,
 until_ms INTEGER NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (pattern, verdict)) WITHOUT ROWID;
CREATE TABLE job_partitions (job TEXT NOT NULL REFERENCES jobs(id) ON DELETE CASCADE, daemon TEXT NOT NULL, body BLOB NOT NULL,
 PRIMARY KEY (job, daemon));
'''
SCHEMA_5 = SCHEMA_4 + '''
ALTER TABLE jobs ADD COLUMN data_meaning INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN data_from TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN stop_after INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN n_frozen INTEGER NOT NULL DEFAULT 0;
'''
SCHEMA_6 = SCHEMA_5 + '''
ALTER TABLE rounds ADD COLUMN frozen_file TEXT NOT NULL DEFAULT '';
ALTER TABLE rounds ADD COLUMN frozen_sha256 BLOB;
ALTER TABLE rounds ADD COLUMN frozen_bytes INTEGER NOT NULL DEFAULT 0;
'''
SCHEMAS = {1: SCHEMA_1, 2: SCHEMA_2, 3: SCHEMA_3, 4: SCHEMA_4, 5: SCHEMA_5, 6: SCHEMA_6}


def database(state_dir):
    return os.path.join(state_dir, 'mfl.db')


def schema_of(path):
    db = sqlite3.connect(path)
    try:
        return db.execute('PRAGMA user_version').fetchone()[0]
    finally:
        db.close()


def with_schema(state_dir, schema):
    """Puts a database of the earlier schema in place of today's: the tables of then, with the rows that they can hold."""
    path = database(state_dir)
    now = sqlite3.connect(path)
    now.execute('PRAGMA wal_checkpoint(TRUNCATE)')
    old = sqlite3.connect(path + '.old')
    old.executescript(SCHEMAS[schema])
    for table, in old.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'").fetchall():
        columns = ', '.join(row[1] for row in old.execute('PRAGMA table_info(%s)' % table))
        rows = now.execute('SELECT %s FROM %s' % (columns, table) + (" WHERE key = 'boot'" if table == 'meta' else '')).fetchall()
        if rows:
            old.executemany('INSERT INTO %s (%s) VALUES (%s)' % (table, columns, ','.join('?' * len(rows[0]))), rows)
    old.execute("UPDATE jobs SET token = 'nightly-' || n")  # until schema 7 a token was in its job's row
    old.execute('PRAGMA user_version = %d' % schema)
    old.commit()
    old.close()
    now.close()
    for more in ('-wal', '-shm'):
        if os.path.exists(path + more):
            os.unlink(path + more)
    os.replace(path + '.old', path)


@pytest.fixture(scope='module')
def past(tmp_path_factory):
    """(state directory with a finished job and one in its middle, as a killed server left it; their ids; the digests)."""
    with h.start_cluster(tmp_path_factory.mktemp('past')) as c:
        finished, digests = c.run_job(**JOB)
        c.server.kill()
        c.start_server({'MFL_FAULT': 'before-rename:6:exit'})  # of the sixth round's checkpoint
        going = c.submit(**JOB)
        assert c.server.wait(30) == h.FAULT_STATUS
        return c.state_dir, finished, going, digests


def resume_and_check(c, past):
    """The server that is started goes on with what was under way, and reads the rest."""
    _, finished, going, digests = past
    c.start_server()
    c.start_daemon()
    assert c.digests(finished) == digests
    c.wait_job(going, 30)
    assert c.digests(going) == digests
    c.mfl('pull', finished, '-o', os.path.join(c.dir, 'model.safetensors'))
    assert h.params_digest(os.path.join(c.dir, 'model.safetensors')) == digests[-1]


def test_a_job_keeps_the_arithmetic_that_it_began_with(tmp_path):
    """Before schema 8 running statistics of batch norm were under delta_max. A job of then goes on so, a new one does not."""
    job = {'model': {'layers': [{'batchnorm': {'name': 'bn'}}, {'dense': {'units': 2}}]}, 'rounds': 1,
           'data': {'name': 'raw', 'clients': 2}, 'limits': {'retries': 0}}
    with h.Cluster(tmp_path) as c:
        rows = ''.join('%d,%d,%s\n' % (i * 37 % 100, i * 61 % 100, 'ab'[i % 2]) for i in range(60))
        table = c.write('raw.csv', 'x,y,kind\n' + rows)
        c.start_server()
        old = c.submit(**job)
        c.server.stop()
        with_schema(c.state_dir, 6)
        c.start_server()
        c.start_daemon(data=['raw=csv:%s,test_fraction=0.2' % table])
        c.wait_job(old, state='failed')
        assert 'aggregation.delta_max' in c.info(old)['reason']
        c.run_job(**job)


def test_a_job_that_this_release_refuses_is_shown_failed(tmp_path):
    """Its file has another release's rules. The database keeps it, so that the release that took it goes on with it."""
    with h.Cluster(tmp_path) as c:
        c.start_server()
        c.start_daemon()
        keys, names, done = c.submit(rounds=1000000), c.submit(rounds=1000000), c.run_job(rounds=2)[0]
        for job in (keys, names):
            c.wait_info(job, lambda i: i['round'] >= 2, 20, 'two rounds')
        c.server.stop()
        twins = "model:\n  layers:\n  - dense: {name: n, units: 4}\n  - dense: {name: m, units: 4}\n"
        with mfl_state.changed(c.state_dir) as db:
            text, = db.execute('SELECT text FROM jobs WHERE id = ?', (keys,)).fetchone()
            before_delete = db.execute('SELECT state, reason FROM jobs WHERE id = ?', (done,)).fetchone()
            for job in (keys, done):
                db.execute('UPDATE jobs SET text = ? WHERE id = ?', ('no_such_key: 1\n' + text, job))
            db.execute('UPDATE jobs SET text = ? WHERE id = ?', (text.replace('model: "mlp"\n', twins), names))
        c.start_server()
        info = c.info(keys)
        assert info['state'] == 'failed' and 'this release can\'t read its job file' in info['reason'] and 'no_such_key' in info['reason']
        assert c.info(done)['state'] == 'done' and keys + ' is kept as it is' in c.server.log()
        assert 'no_such_key' in c.mfl('show', keys).stdout and keys in c.mfl('list').stdout
        c.wait_job(names, state='failed')
        assert c.info(names)['reason']
        assert 'no_such_key' in c.mfl('pull', keys, status=5).stderr
        c.mfl('stop', keys, status=None)
        for verb in ('clone', 'replay'):
            for job in (keys, done):
                assert "can't read the job file of " + job in c.mfl(verb, job, status=None).stderr
        assert 'has not ended' in c.mfl('archive', keys, status=None).stderr
        n = len(c.mfl_json('list')['jobs'])
        c.run_job(rounds=2)  # others are trained as ever
        c.server.stop()
        with mfl_state.changed(c.state_dir) as db:
            db.execute('UPDATE jobs SET text = ? WHERE id = ?', (text, keys))
        c.start_server()
        assert len(c.mfl_json('list')['jobs']) == n + 1
        at = c.info(keys)['round']
        c.wait_info(keys, lambda i: i['round'] > at, 20, 'a round')
        c.server.stop()
        with mfl_state.changed(c.state_dir) as db:
            db.execute('UPDATE jobs SET text = ? WHERE id = ?', ('no_such_key: 1\n' + text, keys))
        c.start_server()
        c.mfl('delete', keys)
        assert keys not in c.mfl('list').stdout
        c.mfl('model', 'register', done, '--as', 'm')
        assert 'registered model m@1' in c.mfl('delete', done, status=CONFLICT).stderr
        c.server.stop()
        with mfl_state.changed(c.state_dir) as db:
            row = db.execute('SELECT state, reason FROM jobs WHERE id = ?', (done,)).fetchone()
            assert row == before_delete, 'a delete that is refused changes nothing'


@pytest.mark.parametrize('schema', sorted(SCHEMAS))
def test_state_of_an_earlier_release(tmp_path, past, schema):
    with h.Cluster(tmp_path) as c:
        shutil.copytree(past[0], c.state_dir)
        newest = schema_of(database(c.state_dir))
        with_schema(c.state_dir, schema)
        check(c.state_dir)  # today's program can look at it as it is
        if schema == newest:
            resume_and_check(c, past)
            return
        before = rows_of(database(c.state_dir))
        # Death in the middle of the migration: what is there is the old state or the new one.
        for point in ('before-migration-save', 'after-migration-save', 'before-db-commit'):
            c.start_server({'MFL_FAULT': point + ':1:exit'}, ready=False)
            assert c.server.wait(20) == h.FAULT_STATUS, c.server.log()
            assert rows_of(database(c.state_dir)) == before, point
        resume_and_check(c, past)
        saved = [f for f in os.listdir(c.state_dir) if f.endswith('.bak')]
        assert saved == ['mfl.db.schema-%d.bak' % schema]
        check(c.state_dir)
        again = str(tmp_path / 'again.yaml')  # a token of before still names its job, and no other
        with open(again, 'w', encoding='utf-8') as f:
            f.write(h.job_text(**JOB))
        assert past[1] in c.mfl('submit', again, '--token', 'nightly-1').stdout
        with open(again, 'w', encoding='utf-8') as f:
            f.write(h.job_text(**dict(JOB, rounds=41)))
        assert past[1] in c.mfl('submit', again, '--token', 'nightly-1', status=CONFLICT).stderr
        assert rows_of(os.path.join(c.state_dir, saved[0])) == before  # the release before can go on with it
        assert schema_of(database(c.state_dir)) == newest
        assert 'mfl.db.migration.tmp' not in os.listdir(c.state_dir)


def rows_of(path):
    db = sqlite3.connect(path)
    try:
        return list(db.iterdump()) + db.execute('PRAGMA user_version').fetchall()
    finally:
        db.close()


def refused(c, word, status=WRONG):
    """A server that does not start, and says what to do."""
    before = c.server.log() if c.server else ''
    c.start_server(ready=False)
    assert c.server.wait(20) == status, c.server.log()
    said = c.server.log()[len(before):]
    assert word in said and ('restore' in said), said
    return said


def test_databases_that_are_refused(tmp_path, past):
    with h.Cluster(tmp_path) as c:
        shutil.copytree(past[0], c.state_dir)
        path = database(c.state_dir)
        db = sqlite3.connect(path)
        db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('software', 'mfl-server 9.1')")
        for version, word in ((99, 'schema 99, written by mfl-server 9.1'), (-5, 'schema -5'), (0, 'schema 0')):
            db.execute('PRAGMA user_version = %d' % version)
            db.commit()
            refused(c, word)
            assert db.execute('PRAGMA user_version').fetchone()[0] == version, 'nothing was written'
        db.close()
        with open(path, 'r+b') as f:
            f.write(b'no database at all')
        assert 'back-up' in refused(c, 'damaged')
        assert state_tool(c.state_dir, '--check-state').returncode == DAMAGE


# ---- back-up ----

def state_tool(state_dir, *argv, env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith('MFL_')}
    return subprocess.run([h.program('mfl-server'), '--state-dir', state_dir, *argv], env={**clean, **(env or {})}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30, check=False)


def check(state_dir, status=0):
    done = state_tool(state_dir, '--check-state')
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def flip(path, at):
    with open(path, 'r+b') as f:
        f.seek(at, 2 if at < 0 else 0)
        byte = f.read(1)[0]
        f.seek(-1, 1)
        f.write(bytes([byte ^ 1]))


def test_back_ups_of_a_running_server(tmp_path):
    """While rounds are committed and checkpoints dropped, each back-up is whole; the last one, put in place of a lost state
    directory, ends with the model of an undisturbed run."""
    job = dict(JOB, checkpoints={'keep': 0})
    with h.start_cluster(tmp_path) as c:
        deleted = c.run_job(rounds=1)[0]
        going = c.begin(**job)
        c.wait_info(going, lambda i: i['round'] >= 2, 20, 'two rounds')
        rounds = []
        for i in range(8):
            target = os.path.join(c.dir, 'saved-%d' % i)
            done = state_tool(c.state_dir, '--backup', target)
            assert done.returncode == 0, done.stdout + done.stderr
            assert check(target).endswith('\nsound\n'), 'a back-up is verified like a state directory'
            db = sqlite3.connect(database(target))
            rounds.append(db.execute('SELECT max(round) FROM rounds WHERE job = ?', (going,)).fetchone()[0])
            db.close()
            check(c.state_dir)  # beside the server, too
            if i == 3:
                c.mfl('delete', deleted)
        assert rounds == sorted(rounds) and c.info(going)['state'] == 'running', 'they were made while the job ran'
        assert state_tool(c.state_dir, '--backup', target).returncode == WRONG, 'it is there already'
        c.server.kill()
        c.daemons['d1'].kill()
        shutil.rmtree(c.state_dir)
        shutil.copytree(os.path.join(c.dir, 'saved-1'), c.state_dir)
        c.start_server()
        c.start_daemon('d2')
        c.finish(going, **job)


def test_a_back_up_that_is_broken_off_is_none(tmp_path, past):
    target = str(tmp_path / 'saved')
    for point, status in (('before-backup-rename:1:exit', h.FAULT_STATUS), ('before-write:1:enospc', 1)):
        done = state_tool(past[0], '--backup', target, env={'MFL_FAULT': point})
        assert done.returncode == status, done.stdout + done.stderr
        assert not os.path.exists(target), point
        if status == h.FAULT_STATUS:
            again = state_tool(past[0], '--backup', target)
            assert again.returncode == WRONG and 'interrupted' in again.stderr, again.stderr
            shutil.rmtree(target + '.tmp')
        else:
            assert 'No space left' in done.stderr and not os.path.exists(target + '.tmp')
    assert state_tool(str(tmp_path / 'nowhere'), '--backup', target).returncode == WRONG
    empty = state_tool(past[0], '--backup', '')  # of a script's variable that is not set: no server may start
    assert empty.returncode == 2 and '--backup : expected a directory' in empty.stderr, empty.stderr
    both = state_tool(past[0], '--check-state', '--backup', target)
    assert both.returncode == 2 and 'use only one of' in both.stderr and not os.path.exists(target)
    assert not os.path.exists(tmp_path / 'nowhere')


def test_damage_is_found(tmp_path, past):
    state, _, going, _ = past
    copy = str(tmp_path / 'state')
    shutil.copytree(state, copy)
    checkpoints = sorted(os.listdir(os.path.join(copy, 'jobs', going)))
    newest = os.path.join(copy, 'jobs', going, [f for f in checkpoints if f.endswith('.safetensors')][-1])
    kept = 'SELECT file FROM rounds WHERE job = ? AND kept = 1 ORDER BY round'
    db = sqlite3.connect(database(copy))
    named = [os.path.join(copy, 'jobs', going, f) for f, in db.execute(kept, (going,))]
    db.close()
    assert newest in named or named
    flip(named[-1], -1)
    os.unlink(named[0])
    said = check(copy, DAMAGE)
    assert named[-1] + ': its SHA-256' in said and named[0] + ': ' in said and '2 findings' in said, said
    done = state_tool(copy, '--backup', str(tmp_path / 'saved'))  # all that is left is saved, and the damage is told
    assert done.returncode == DAMAGE and '2 findings' in done.stdout, done.stdout + done.stderr
    assert os.path.exists(named[-1].replace(copy, str(tmp_path / 'saved')))
    # A page of the database.
    db = sqlite3.connect(database(state))
    db.execute('PRAGMA wal_checkpoint(TRUNCATE)')
    db.close()
    copy = str(tmp_path / 'state2')
    shutil.copytree(state, copy)
    size = os.path.getsize(database(copy))
    with open(database(copy), 'r+b') as f:
        f.seek(size // 4096 // 2 * 4096)
        f.write(b'\x5a' * 4096)
    assert 'DATABASE' in (done := state_tool(copy, '--check-state')).stdout + done.stderr or 'malformed' in done.stderr
    assert done.returncode == DAMAGE, done.stdout + done.stderr


# ---- the administrator's pages ----

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
PAGES = ('docs/admin.md', 'docs/upgrade.md')


def read(*path):
    with open(os.path.join(ROOT, *path), encoding='utf-8') as f:
        return f.read()


def arithmetic():
    return re.search(r'#define MFL_ARITHMETIC_VERSION (\d+)', read('common', 'base', 'base.h'))[1]


@pytest.mark.parametrize('page', PAGES)
def test_commands_of_the_pages(one, tmp_path, page):
    """Every block that is marked with `run` does what it says, here on a server of the test's own."""
    one.run_job(rounds=1)
    blocks = re.findall(r'^```sh run\n(.*?)^```', read(page), re.M | re.S)
    assert len(blocks) >= 2
    (tmp_path / 'saved').mkdir()
    places = {'/var/lib/mfl-server': one.state_dir, '/var/backups/mfl': str(tmp_path / 'saved')}
    script = re.sub('|'.join(places), lambda m: places[m[0]], ''.join(blocks))
    folders = [os.path.dirname(h.program(p)) for p in ('mfl', 'mfl-server')]
    env = {'PATH': ':'.join([*folders, os.environ['PATH']]), 'MFL_SERVER': one.address, 'HOME': str(tmp_path),
           'LC_ALL': 'C.UTF-8', 'XDG_CONFIG_HOME': '/nonexistent'}
    done = subprocess.run(['bash', '-euxc', script], env=env, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'var/lib' not in done.stderr, 'a path of the page that this test does not know'


def free_port():
    with socket.create_server(('127.0.0.1', 0)) as s:
        return s.getsockname()[1]


def test_two_sites(tmp_path):
    """The page for newcomers, from certificates to the model, as it stands there but for the port."""
    blocks = re.findall(r'^```sh run\n(.*?)^```', read('docs', 'two-sites.md'), re.M | re.S)
    port = free_port()
    script = 'trap \'kill $(jobs -p); wait\' EXIT\n' + ''.join(blocks).replace('7433', str(port))
    env = {'PATH': ':'.join([*(os.path.dirname(h.program(p)) for p in ('mfl', 'mfl-server', 'mfl-client')), os.environ['PATH']]),
           'MFL_SERVER': '127.0.0.1:%d' % port, 'HOME': str(tmp_path / 'home'), 'LC_ALL': 'C.UTF-8'}
    (tmp_path / 'home').mkdir()
    done = subprocess.run(['bash', '-euxc', script], env=env, text=True, capture_output=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r'two-sites: done after 5 rounds, accuracy (0\.9|1\.0)', done.stdout)  # each awk has other random numbers
    assert (tmp_path / 'model.safetensors').exists() and (tmp_path / 'model.onnx').exists()


@pytest.mark.parametrize('page', sorted(name for name in os.listdir(os.path.join(ROOT, 'docs')) if name.endswith('.md')))
def test_links_of_the_pages(page):
    page = 'docs/' + page
    for link in re.findall(r'\]\(([^)#]+)\)', read(page)):
        assert os.path.exists(os.path.join(ROOT, os.path.dirname(page), link)), link


def test_every_alert_has_its_section():
    rules, page = read('deploy', 'prometheus-alerts.yml'), read('docs', 'admin.md')
    alerts = re.findall(r'- alert: (\w+)', rules)
    assert len(alerts) > 10 and re.findall(r'^### (Mfl\w+)$', page, re.M) == alerts, 'a section each, in the same order'
    assert re.findall(r"runbook: 'docs/admin.md#(\w+)'", rules) == [a.lower() for a in alerts]


def test_the_table_of_releases(one):
    """The last row of the page is this release."""
    version = re.search(r'#define MFL_VERSION "(\d+\.\d+)', read('common', 'base', 'base.h'))[1]
    low, high = (re.search(r'#define MFL_PROTOCOL_%s (\d+)' % m, read('proto', 'version.h'))[1] for m in ('MIN', 'MAX'))
    schema = schema_of(database(one.state_dir))
    row = re.findall(r'^\| \d.*$', read('docs', 'upgrade.md'), re.M)[-1]
    assert [cell.strip() for cell in row.strip('|').split('|')] == [
        version, low if low == high else '%s to %s' % (low, high), 'schema 1 to %d, %d' % (schema, schema), arithmetic()]
    assert 'versions %s to %s (' % (low, high) in read('proto', 'mfl.proto')
