# SPDX-License-Identifier: Apache-2.0
"""`mfl move`: a job goes to another server in its middle. Whoever is killed at whichever step, it is in one place, and its rounds are those of
a job that never moved."""
import hashlib
import os
import struct
import subprocess

import pytest

import mfl_certs
import mfl_harness as h
import mfl_wire as w
from mfl_tls import TlsCluster

JOB = {'model': 'logistic', 'aggregation': {'strategy': 'fedadam'}, 'data': {'partition': 'dirichlet', 'clients': 4, 'alpha': 1.0},
       'training': {'lr': 0.05, 'momentum': 0.9}, 'rounds': 60}
STATES = dict(JOB, aggregation={'strategy': 'scaffold'}, training={'lr': 0.05}, checkpoints={'keep': 1})
# server/move/move.h, cli/job/move.c: who dies, and where.
SOURCE = ['after-move-begin', 'before-move-end', 'after-move-end']
TARGET = ['before-move-place', 'before-move-take', 'after-move-take']
COMMAND = ['move-held', 'move-sent', 'move-taken']


def digests_alone(directory, job):
    with h.Cluster(directory) as c:
        c.start_server()
        c.start_daemon()
        return c.run_job(**job)[1]


@pytest.fixture(scope='module')
def reference(tmp_path_factory):
    return digests_alone(tmp_path_factory.mktemp('alone'), JOB)


class Pair:
    """Servers a and b, and a daemon that knows both."""

    def __init__(self, directory, env=(None, None), config=(None, None)):
        self.a, self.b = h.Cluster(directory / 'a', config[0]), h.Cluster(directory / 'b', config[1])
        self.a.start_server(env[0])
        self.b.start_server(env[1])
        self.a.start_daemon(server=self.a.address + ',' + self.b.address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.a.close()
        self.b.close()

    def begin(self, **job):
        job = self.a.submit(**job)
        self.a.wait_info(job, lambda i: i['round'] >= 2, 60, 'two rounds')
        return job

    def move(self, job, *more, env=None):
        return subprocess.run([h.program('mfl'), 'move', job, '--server', self.a.address, '--to', self.b.address, *more],
                              capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ, **(env or {})))

    def jobs(self, cluster):
        with cluster.operator() as o:
            return [(j['job'], h.STATES[j['state']]) for j in o.jobs()]

    def finish(self, job, expected):
        """Moves it, or finds that it has moved; then it ends there, and there alone."""
        done = self.move(job)
        assert done.returncode == 0 or 'has moved to' in done.stderr, done
        assert self.jobs(self.a) == [(job, 'stopped')]
        there = self.jobs(self.b)
        assert len(there) == 1, there
        self.b.wait_job(there[0][0], 60)
        assert self.b.digests(there[0][0]) == expected
        return there[0][0]


@pytest.mark.parametrize('job', [JOB, STATES], ids=['fedadam', 'scaffold'])
def test_a_moved_job_has_the_digests_of_one_that_stayed(tmp_path, job):
    expected = digests_alone(tmp_path / 'alone', job)
    with Pair(tmp_path) as p:
        moved = p.begin(**job)
        there = p.finish(moved, expected)
        assert there == moved, 'a number that is free stays'
        assert p.a.info(moved)['reason'] == 'moved to %s, as %s' % (p.b.address, there)
        assert 'submitted' in p.a.server.log() and 'has moved to this server' in p.b.server.log()
        assert p.move(moved).returncode == 6  # a second time
        # What moved may go, and its models are at both until then.
        assert p.a.mfl_json('models', moved)['models'] and p.b.mfl_json('models', there)['models']
        p.a.mfl('delete', moved)
        # And back, under another number, because that one was given here.
        again = p.b.submit(**dict(job, rounds=40))
        back = subprocess.run([h.program('mfl'), 'move', again, '--server', p.b.address, '--to', p.a.address],
                              capture_output=True, text=True, timeout=60, check=False)
        assert back.returncode in (0, 6), back
        if not back.returncode:
            number = p.jobs(p.a)[0][0]
            p.a.wait_job(number, 60)
            assert p.a.digests(number) == expected[:40]


@pytest.mark.parametrize('who,point', [('a', x) for x in SOURCE] + [('b', x) for x in TARGET] + [('mfl', x) for x in COMMAND])
def test_killed_at_each_step(tmp_path, reference, who, point):
    fault = {'MFL_FAULT': point + ':1:exit'}
    with Pair(tmp_path, (fault if who == 'a' else None, fault if who == 'b' else None)) as p:
        job = p.begin(**JOB)
        done = p.move(job, env=fault if who == 'mfl' else None)
        assert done.returncode, 'the fault at %s did nothing: %s' % (point, done)
        for name, cluster in (('a', p.a), ('b', p.b)):
            if who == name:
                assert cluster.server.wait(20) == h.FAULT_STATUS, done
            else:
                cluster.server.kill()
            cluster.start_server()
        running = [s for c in (p.a, p.b) for s in p.jobs(c) if s[1] != 'stopped']
        assert len(running) == (1 if point in ('after-move-take', 'move-taken', 'before-move-end', 'after-move-end') else 0), running
        p.finish(job, reference)


def test_given_up(tmp_path, reference):
    """The command died; the job goes on where it was, and the other server never takes it."""
    with Pair(tmp_path) as p:
        job = p.begin(**JOB)
        assert p.move(job, env={'MFL_FAULT': 'move-sent:1:exit'}).returncode == h.FAULT_STATUS
        assert p.jobs(p.a) == [(job, 'stopped')]
        held = p.a.mfl('delete', job, status=6)
        assert 'on its way to' in held.stderr
        assert os.listdir(os.path.join(p.b.state_dir, 'uploads'))
        assert p.move(job, '--back').returncode == 0
        assert not os.listdir(os.path.join(p.b.state_dir, 'uploads'))
        p.a.wait_job(job, 60)
        assert p.a.digests(job) == reference and p.jobs(p.b) == []
        over = p.move(job)
        assert over.returncode == 6 and 'has ended' in over.stderr, over


def test_a_server_that_may_not_run_it_gives_it_back(tmp_path):
    """b allows no simulated attacks: the job stays, and nothing is lost."""
    attacked = dict(JOB, simulation={'attack': 'sign-flip', 'scale': 10, 'share': 0.25})
    with Pair(tmp_path, config=({'allow_simulation': 'true'}, None)) as p:
        job = p.begin(**attacked)
        done = p.move(job)
        assert done.returncode == 5 and 'stays where it was' in done.stderr and 'simulation' in done.stderr, done
        p.a.wait_job(job, 60)
        assert p.jobs(p.b) == []
        # What had come is gone: b starts again, and its next job has none of those files.
        own = p.b.submit(**dict(JOB, data={'name': 'elsewhere'}))
        assert os.listdir(os.path.join(p.b.state_dir, 'jobs')) == [own] and os.listdir(os.path.join(p.b.state_dir, 'jobs', own)) == []
        p.b.server.kill()
        p.b.start_server()


PRIVATE = dict(JOB, data=dict(JOB['data'], clients=8), aggregation={'strategy': 'fedavg'}, evaluation={'every': 0}, rounds=40,
               selection={'kind': 'poisson', 'rate': 0.5}, privacy={'kind': 'central', 'clip': 1e-4, 'noise': 20.0, 'epsilon_max': 30, 'delta': 1e-5})


def test_correlated_noise_stays_with_its_key(tmp_path):
    """Later noise takes back what earlier noise has added, with the key of the server that began: the job stays, and ends."""
    private = dict(JOB, data=dict(JOB['data'], clients=8), aggregation={'strategy': 'fedavg'}, evaluation={'every': 0},
                   selection={'kind': 'separated', 'separation': 4}, rounds=40,
                   privacy={'kind': 'central', 'clip': 1e-4, 'noise': 100.0, 'epsilon_max': 1, 'delta': 1e-5, 'mechanism': 'bisr'})
    with Pair(tmp_path) as p:
        job = p.begin(**private)
        done = p.move(job)
        assert done.returncode == 5 and 'stays where it was' in done.stderr and 'privacy.mechanism bisr' in done.stderr, done
        p.a.wait_job(job, 60)
        assert p.jobs(p.b) == []


def spent(cluster, data='tiny'):
    """{job: releases} of the ledger."""
    found = {s['data']: s for s in cluster.mfl_json('privacy', 'ledger')['data_sets']}
    return {j['job']: j['releases'] for j in found[data]['jobs']} if data in found else {}


def test_what_was_spent_moves_with_the_job(tmp_path):
    """The job's row of the ledger goes along and stays here, too, so the data set's limit counts it at both."""
    with Pair(tmp_path) as p:
        job = p.begin(**PRIVATE)
        p.a.mfl('stop', job)
        p.a.wait_info(job, lambda i: i['state'] == 'stopped', 30, 'the end')
        other = p.begin(**PRIVATE)
        before = spent(p.a)[other]
        done = p.move(other)
        assert done.returncode == 0, done
        there = p.jobs(p.b)[0][0]
        assert spent(p.b)[there] >= before and set(spent(p.b)) == {there}
        p.b.wait_job(there, 60)
        rounds = p.b.info(there)['round']
        assert rounds == PRIVATE['rounds']
        # A round that was under way may have been released by both, each with noise of its own: that costs one more.
        assert rounds <= spent(p.b)[there] <= rounds + 1
        assert before <= spent(p.a)[other] <= rounds  # what it had released when it left
        assert job in spent(p.a)


@pytest.mark.parametrize('limit,job,words', [
    ({'epsilon': 0.01, 'delta': 1e-5}, 'private', "more than the server's privacy_limits allow"),
    ({'epsilon': 8, 'delta': 1e-5}, 'plain', 'has no noise: add privacy')])
def test_the_other_server_s_limits(tmp_path, limit, job, words):
    """What may not be told of the data set there is not told there: the job stays, and ends."""
    with Pair(tmp_path, config=(None, {'privacy_limits': {'tiny': limit}})) as p:
        moved = p.begin(**(PRIVATE if job == 'private' else JOB))
        done = p.move(moved)
        assert done.returncode == 5 and 'stays where it was' in done.stderr and words in done.stderr, done
        p.a.wait_job(moved, 60)
        assert p.jobs(p.b) == [] and spent(p.b) == {}


def test_too_much_for_the_other_server(tmp_path):
    """b has no room for the job's files: they are refused before any of them comes, and the job stays. Nor can pieces pass the limit."""
    with Pair(tmp_path, config=(None, {'moves_max': '20KiB'})) as p:
        job = p.begin(**JOB)
        done = p.move(job)
        assert done.returncode and 'stays where it was' in done.stderr, done
        assert "the job's files have" in done.stderr and '(moves_max)' in done.stderr, done
        assert not os.listdir(os.path.join(p.b.state_dir, 'uploads'))
        with p.b.operator() as o:
            piece = {'step': 'MOVE_WRITE', 'token': TOKEN, 'file': 'a', 'data': b'x' * 10000}
            o.request('move', piece)
            o.request('move', piece)  # again from the beginning
            o.request('move', dict(piece, offset=10000))
            with pytest.raises(w.Failure, match='moves_max'):
                o.request('move', dict(piece, offset=20000))
            with pytest.raises(w.Failure, match='moves_max'):  # of all moves together
                o.request('move', dict(piece, token='cd' * 16))
            o.request('move', {'step': 'MOVE_VOID', 'token': TOKEN})
            o.request('move', dict(piece, token='cd' * 16))
        p.a.wait_job(job, 60)


def test_no_room_on_the_other_disk(tmp_path):
    with h.Cluster(tmp_path, {'moves_max': '1000TB'}) as c:
        c.start_server()
        with c.operator() as o:
            offer = {'step': 'MOVE_OFFER', 'token': TOKEN, 'files': [{'name': 'a', 'bytes': 1 << 45, 'sha256': bytes(32)}]}
            with pytest.raises(w.Failure, match='the disk of this server has'):
                o.request('move', offer)


def test_daemons_after_the_last_job_has_left(tmp_path, reference):
    """One that knows the other server goes there. One that does not stays here, idle, for the jobs that come; so does one that comes later."""
    with Pair(tmp_path) as p:
        p.a.start_daemon('stays')
        p.a.wait_daemons(2)
        job = p.begin(**JOB)
        p.finish(job, reference)
        p.a.wait_daemons(1)
        p.a.start_daemon('later')
        p.a.wait_daemons(2)
        with p.a.operator() as o:
            assert {d['name'] for d in o.daemons() if d['state'] != 'lost'} == {'stays', 'later'}
        with p.b.operator() as o:
            assert [d['name'] for d in o.daemons() if d['state'] != 'lost'] == ['d1']
        own = p.a.submit(**dict(JOB, rounds=3))
        p.a.wait_job(own, 60)


def test_to_the_server_that_has_it(tmp_path):
    """Under another name. The job goes on."""
    with h.Cluster(tmp_path) as c:
        c.start_server()
        job = c.submit(**dict(JOB, data={'name': 'elsewhere'}))
        done = c.mfl('move', job, '--to', c.address.replace('127.0.0.1', 'localhost'), status=5)
        assert 'stays where it was: this is the server that has' in done.stderr, done
        assert c.info(job)['state'] == 'waiting'


def test_files_that_can_not_leave(tmp_path):
    """Too many of them: the job goes on where it is, at once or with --back; --back begins no move."""
    with h.Cluster(tmp_path / 'a') as a, h.Cluster(tmp_path / 'b') as b:
        a.start_server()
        b.start_server()
        job = a.submit(**dict(JOB, data={'name': 'elsewhere'}))
        move = ('move', job, '--to', b.address)
        assert 'does not move' in a.mfl(*move, '--back', status=4).stderr
        a.mfl(*move, status=h.FAULT_STATUS, env={'MFL_FAULT': 'move-held:1:exit'})
        assert a.info(job)['state'] == 'stopped'
        for i in range(4100):
            with open(os.path.join(a.state_dir, 'jobs', job, 'file%d' % i), 'wb'):
                pass
        assert 'more than 4096 files' in a.mfl(*move, status=6).stderr
        assert a.info(job)['state'] == 'waiting'
        assert 'more than 4096 files' in a.mfl(*move, status=6).stderr
        a.server.kill()
        a.start_server()
        assert a.info(job)['state'] == 'waiting'


def test_roles(tmp_path):
    ca = mfl_certs.Ca(str(tmp_path))
    ca.server()
    ca.pairs = {name: ca.issue(name, [role]) for name, role in (('ann', 'operator'), ('bob', 'operator'), ('root', 'admin'), ('vic', 'viewer'))}
    with TlsCluster(tmp_path / 'a', ca) as a, TlsCluster(tmp_path / 'b', ca) as b:
        a.start_server()
        b.start_server()
        job = a.submit(**dict(JOB, data={'name': 'elsewhere'}))
        for name, words in (('vic', 'may only look'), ('bob', "belongs to 'ann'")):
            done = a.mfl('move', job, '--to', b.address, name=name, status=5)
            assert words in done.stderr, done
        a.mfl('move', job, '--to', b.address, name='root')
        states = a.submit(**dict(STATES, data={'name': 'elsewhere', 'partition': 'iid', 'clients': 4}))
        assert 'keeps a state of each client on this server' in a.mfl('move', states, '--to', b.address, status=5).stderr
        assert a.info(states)['state'] == 'waiting'
        with b.operator() as o:
            assert [(j['job'], j['owner']) for j in o.jobs()] == [(job, 'ann')]
            assert w.ENUM_VALUE['JOB_WAITING'] == o.info(job)['state']
        actions = [(e['who'], e['action'], e['result']) for e in a.mfl_json('audit', name='root')['entries']]
        assert ('bob', 'move', 'refused') in actions and ('root', 'move', 'done') in actions and ('root', 'moved', 'done') in actions


# ---- rows that no mfl-server has written ----

TOKEN = 'ab' * 16
TEXT = h.job_text(**dict(JOB, data={'name': 'elsewhere'}, rounds=5))


PRIVATE_TEXT = h.job_text(**dict(PRIVATE, data=dict(PRIVATE['data'], name='elsewhere'), rounds=5))


def row_bytes(tables):
    """move.rows, as server/move/rows.h says."""
    def name(text):
        return struct.pack('<H', len(text)) + text.encode()

    def value(v):
        if v is None:
            return b'\0'
        if isinstance(v, int):
            return b'\1' + struct.pack('<q', v)
        if isinstance(v, float):
            return b'\2' + struct.pack('<d', v)
        data = v.encode() if isinstance(v, str) else v
        return (b'\3' if isinstance(v, str) else b'\4') + struct.pack('<I', len(data)) + data

    out = b'mflrows1' + struct.pack('<I', 10)
    for table, rows in tables.items():
        out += b'T' + name(table) + struct.pack('<H', len(rows[0])) + b''.join(map(name, rows[0]))
        for row in rows:
            out += b'R' + b''.join(map(value, row.values()))
    return out + b'E'


def job_row(**changes):
    row = {'id': 'j-000001', 'name': 'tiny', 'has_initial': 0, 'text': TEXT, 'data_name': '', 'data_rank': 0, 'data_dims': b'', 'data_classes': 0,
           'data_train': 0, 'data_test': 0, 'data_fingerprint': 0, 'n_params': 0, 'owner': 'eve', 'data_meaning': 0, 'data_from': '',
           'stop_after': 0, 'n_frozen': 0, 'initial_sha256': None, 'arithmetic': 5}
    return dict(row, **changes)


def round_row(n, **changes):
    row = {'job': 'j-000001', 'round': n, 'attempt': 1, 'evaluated': 1, 'loss': 1.0, 'accuracy': 0.5, 'train_loss': 1.0, 'train_accuracy': 0.5,
           'eval_samples': 1, 'samples': 1, 'weight': 1, 'clients': 1, 'clients_rejected': 0, 'daemons': 1, 'started_ms': 1, 'ended_ms': 2,
           'digest': b'd' * 32, 'bytes_up': 1, 'bytes_down': 1, 'committed_ms': 1, 'file': 'round-%06d.safetensors' % n, 'file_sha256': b's' * 32,
           'file_bytes': 1, 'kept': 0, 'superseded': 0, 'bytes_up_alone': 0, 'bytes_down_alone': 0, 'frozen_file': '', 'frozen_sha256': None,
           'frozen_bytes': 0, 'clamped': 0, 'states_lost': 0, 'choice': ''}
    return dict(row, **changes)


def take(operator, files, token=TOKEN):
    listed = []
    for name, data in files.items():
        operator.request('move', {'step': 'MOVE_WRITE', 'token': token, 'file': name, 'data': data})
        listed.append({'name': name, 'bytes': len(data), 'sha256': hashlib.sha256(data).digest()})
    return operator.request('move', {'step': 'MOVE_TAKE', 'token': token, 'files': listed, 'there': 'j-000001', 'to': 'a:1'})


BAD_ROWS = {
    'no name': {'jobs': [job_row(name=None)]},
    'another name': {'jobs': [job_row(name='a\x1b[2J')]},
    'a file elsewhere': {'jobs': [job_row()], 'rounds': [round_row(1, file='../../noise.key', kept=1)]},
    'a file of no digest': {'jobs': [job_row()], 'rounds': [round_row(1, file_sha256=b'', kept=1)]},
    'a file that has not come': {'jobs': [job_row()], 'rounds': [round_row(1, kept=1)]},
    'one round twice': {'jobs': [job_row()], 'rounds': [round_row(1), round_row(1)]},
    'a round beyond the last': {'jobs': [job_row()], 'rounds': [round_row(6)]},
    'an infinite loss': {'jobs': [job_row()], 'rounds': [round_row(1, loss=float('inf'))]},
    'an infinite measure': {'jobs': [job_row()], 'rounds': [round_row(1, measures=struct.pack('<12Id', 1, *[0] * 11, float('inf')))]},
    'too many params': {'jobs': [job_row(n_params=1 << 40)]},
    'a text for a number': {'jobs': [job_row()], 'rounds': [round_row(1, weight='much')]},
    'a shape of 2^60': {'jobs': [job_row(data_name='elsewhere', data_rank=2, data_dims=struct.pack('<4q', 1 << 30, 1 << 30, 0, 0))]},
    'scores that are none': {'jobs': [job_row()], 'round_scores': [{'job': 'j-000001', 'round': 1, 'body': b'\xff'}]},
    'a site of no client': {'jobs': [job_row()], 'job_partitions': [{'job': 'j-000001', 'daemon': 'd1', 'body': b''}]},
    'a budget that is spent': {'jobs': [job_row()], 'spent': [{'data': 'elsewhere', 'job': 'j-000001', 'sigma': 0.0, 'rate': 0.5, 'releases': 3}]},
    'releases that nobody counts': {'jobs': [job_row(text=PRIVATE_TEXT)], 'releases': [{'job': 'j-000001', 'round': 1, 'digest': b'd' * 32}]},
    'rounds that nobody counts': {'jobs': [job_row(text=PRIVATE_TEXT)], 'rounds': [round_row(1), round_row(2)],
                                  'spent': [{'data': 'elsewhere', 'job': 'j-000001', 'sigma': 20.0, 'rate': 0.5, 'releases': 1}]},
    'a budget of another data set': {'jobs': [job_row()], 'spent': [{'data': 'other', 'job': 'j-000001', 'sigma': 1.0, 'rate': 0.5, 'releases': 9}]},
}


def test_rows_of_a_stranger(tmp_path):
    """Nobody knows who made the rows that come: none of them ends the server, reads or removes a file that is not the job's, or spends a
    budget. One that is as it should be is taken, without the files that no row names."""
    with h.Cluster(tmp_path) as c:
        c.start_server()
        with c.operator() as o:
            for what, tables in BAD_ROWS.items():
                with pytest.raises(w.Failure) as refused:
                    take(o, {'move.rows': row_bytes(tables), 'round-000003.safetensors': b'x'})
                assert "the job's rows" in refused.value.text, what
            assert o.jobs() == [] and os.listdir(os.path.join(c.state_dir, 'jobs')) == []
            job = take(o, {'move.rows': row_bytes({'jobs': [job_row()]}), 'round-000003.safetensors': b'x'})['job']
            assert o.info(job)['name'] == 'tiny' and os.listdir(os.path.join(c.state_dir, 'jobs', job)) == []
        c.server.kill()
        c.start_server()
        assert c.info(job)['state'] == 'waiting'


def test_pieces_come_in_order(tmp_path):
    """So a file costs what was sent. A token that is void or taken gets no more of them; the one that only asks can't be voided."""
    piece = {'step': 'MOVE_WRITE', 'token': TOKEN, 'file': 'a', 'data': b'x'}
    with h.Cluster(tmp_path) as c:
        c.start_server()
        with c.operator() as o:
            with pytest.raises(w.Failure, match='send the file again'):
                o.request('move', dict(piece, offset=1 << 50))
            o.request('move', piece)
            o.request('move', dict(piece, offset=1))
            o.request('move', {'step': 'MOVE_VOID', 'token': TOKEN})
            assert os.listdir(os.path.join(c.state_dir, 'uploads')) == []
            with pytest.raises(w.Failure, match='was given up'):
                o.request('move', piece)
            take(o, {'move.rows': row_bytes({'jobs': [job_row()]})}, 'cd' * 16)
            with pytest.raises(w.Failure, match='is here already'):
                o.request('move', dict(piece, token='cd' * 16))
            o.request('move', {'step': 'MOVE_VOID', 'token': '0' * 32})
            assert o.request('move', {'step': 'MOVE_OFFER', 'token': '0' * 32})['job'] == ''
