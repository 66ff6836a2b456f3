# SPDX-License-Identifier: Apache-2.0
"""Teams that lose a member in the middle of a client's training: the others go on with the steps that are whole, as far as each of
them has all of the training's state, and the model is that of one daemon."""
import signal
import time

import pytest

import mfl_harness as h
from mfl_harness import wait_until

# One client of three hundred steps, each of four grains, in a round. Members of stage 0 have all of its state.
JOB = {'rounds': 2, 'data': {'partition': 'iid', 'clients': 1}, 'selection': {'clients': 1}, 'evaluation': {'every': 0},
       'training': {'batch': 8, 'accumulate': 2, 'epochs': 12, 'optimizer': 'adamw', 'lr': 0.01, 'clip_norm': 1.0},
       'parallel': {'grain': 4, 'members': 64, 'zero': 0, 'within': 'any'}}


def staged(zero, **more):
    return dict(JOB, parallel=dict(JOB['parallel'], zero=zero, **more))


@pytest.fixture(scope='module')
def expected(shared_cluster):
    return shared_cluster(1).run_job(120, **JOB)[1]


def start(c, name, nodes):
    c.start_daemon(name, node='n' + name[1:], more=['--peer-listen', '127.0.0.1:0']) if nodes > 1 else c.start_daemon(name)


def start_all(c, nodes, names=('d1', 'd2', 'd3')):
    for name in names:
        start(c, name, nodes)
    c.wait_daemons(len(names))
    return c


def at_work(c, job, timeout=30):
    wait_until(lambda: teams(c, job)['at_work'], timeout, 'a team at work')


def teams(c, job):
    return c.mfl_json('show', job)['teams']


def ends_with(c, job, expected):
    c.wait_job(job, 120)
    assert c.digests(job) == expected
    assert not [name for name in c.shared_files() if name.startswith('mfl-mesh')]
    return teams(c, job)


def harm_until_kept(c, job, nodes, harm):
    """Harms, at drawn moments of a team's work, until some steps of a lost team were kept."""
    draws = h.seeded('elastic')
    for _ in range(20):
        at_work(c, job)
        time.sleep(0.2 + draws.random() * 0.5)
        harm()
        before = teams(c, job)
        wait_until(lambda: teams(c, job)['formed'] > before['formed'] or c.info(job)['state'] != 'running', 30, 'another team')
        wait_until(lambda: 'goes on with step' in ''.join(d.log() for d in c.daemons.values()) or teams(c, job)['at_work'] or
                   c.info(job)['state'] != 'running', 30, 'its work')
        if 'goes on with step' in ''.join(d.log() for d in c.daemons.values()):
            return
    assert False, 'no step was kept'


@pytest.mark.parametrize('nodes', [1, 3])
@pytest.mark.parametrize('victim', ['d1', 'd2', 'd3'])
def test_the_others_go_on(cluster, expected, victim, nodes):
    """Whoever leads or helps is killed; another one comes in its place."""
    c = cluster(0)
    c.share()
    start_all(c, nodes)
    job = c.submit(**JOB)

    def harm():
        c.daemons[victim].kill()
        start(c, victim, nodes)

    harm_until_kept(c, job, nodes, harm)
    found = ends_with(c, job, expected)
    assert found['kept_steps'] > 0 and found['broken'] + found['taken'] > 0


def test_a_stopped_member_is_given_up(cluster, expected):
    """Once for so long that the server gives it up; it wakes with a number that nobody answers to any more."""
    c = cluster(0, config={'reconnect_grace': '500ms', 'dead_after': '2s'})
    c.share()
    start_all(c, 1)
    job = c.submit(**JOB)

    def harm():
        c.daemons['d2'].signal(signal.SIGSTOP)
        formed = teams(c, job)['formed']
        wait_until(lambda: teams(c, job)['formed'] > formed or c.info(job)['state'] != 'running', 30, 'a team without d2')
        c.daemons['d2'].signal(signal.SIGCONT)

    harm_until_kept(c, job, 1, harm)
    assert ends_with(c, job, expected)['kept_steps'] > 0


@pytest.mark.parametrize('more', [{'zero': 0}, {'zero': 1, 'snapshot': 7}])
def test_the_last_one_goes_on_alone(cluster, expected, more):
    c = cluster(0)
    c.share()
    start_all(c, 1, ('d1', 'd2'))
    job = c.submit(**staged(**more))
    at_work(c, job)
    time.sleep(0.5)
    c.daemons['d2'].kill()
    wait_until(lambda: 'goes on with step' in c.daemons['d1'].log(), 30, 'd1 to go on')
    assert ends_with(c, job, expected)['kept_steps'] > 0


def test_too_few_wait_for_others(cluster, expected):
    job = dict(JOB, parallel={'grain': 4, 'members': {'min': 3, 'max': 4}})
    c = cluster(0)
    c.share()
    start_all(c, 1)
    job = c.submit(**job)
    at_work(c, job)
    time.sleep(0.5)
    c.daemons['d3'].kill()
    wait_until(lambda: 'have 3 workers together (parallel.members.min); all have 2' in c.mfl('show', job).stdout, 60, 'why it waits')
    assert not teams(c, job)['at_work']
    start(c, 'd4', 1)
    found = ends_with(c, job, expected)
    assert found['kept_steps'] > 0  # members with a least number begin with stage 0


@pytest.mark.parametrize('nodes,zero,victim', [(1, 3, 'd1'), (3, 2, 'd2')])
def test_shards_go_on_from_a_snapshot(cluster, expected, nodes, zero, victim):
    """Whoever leads or helps is killed; the others have its shard as it was ten steps ago at most, and its successor gets it."""
    c = cluster(0)
    c.share()
    start_all(c, nodes)
    job = c.submit(**staged(zero, snapshot=10))

    def harm():
        c.daemons[victim].kill()
        start(c, victim, nodes)

    harm_until_kept(c, job, nodes, harm)
    found = ends_with(c, job, expected)
    assert found['kept_steps'] > 0 and found['kept_steps'] % 10 == 0


def test_shards_begin_anew(cluster, expected):
    c = cluster(0)
    c.share()
    start_all(c, 1)
    job = c.submit(**staged(2))
    at_work(c, job)
    time.sleep(0.5)
    c.daemons['d1'].kill()
    found = ends_with(c, job, expected)
    assert found['kept_steps'] == 0 and found['broken'] + found['taken'] > 0
