# SPDX-License-Identifier: Apache-2.0
"""`mfl move`: a job goes to another server in its middle. Whoever is killed at whichever step, it is in one place, and its rounds are those of
a job that never moved."""
import os
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
        assert p.move(job, '--back').returncode == 0
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
        with b.operator() as o:
            assert [(j['job'], j['owner']) for j in o.jobs()] == [(job, 'ann')]
            assert w.ENUM_VALUE['JOB_WAITING'] == o.info(job)['state']
        actions = [(e['who'], e['action'], e['result']) for e in a.mfl_json('audit', name='root')['entries']]
        assert ('bob', 'move', 'refused') in actions and ('root', 'move', 'done') in actions and ('root', 'moved', 'done') in actions
