# SPDX-License-Identifier: Apache-2.0
"""Clients that don't wait for each other: killed servers and daemons change no version, and older versions come back from checkpoints."""
import pytest

import mfl_harness as h

JOBS = {
    'fedbuff': {'aggregation': {'strategy': 'fedbuff', 'buffer': 4, 'staleness_max': 6}, 'selection': {'clients': 14}},
    'fedasync': {'aggregation': {'strategy': 'fedasync'}, 'selection': {'clients': 6}},
}
COMMON = {'model': 'logistic', 'data': {'clients': 20}, 'time': 'virtual', 'trace': {'sigma': 1, 'online': 0.7}, 'checkpoints': {'keep': 0},
          'training': {'lr': 0.1, 'epochs': 1, 'batch': 10}}


@pytest.mark.parametrize('kind', JOBS)
def test_killed_at_random(cluster, kind):
    """finish() compares with a job that nobody disturbs."""
    c = cluster(3)
    c.wait_daemons(3)
    job = {**COMMON, **JOBS[kind]}
    at = c.begin(**job)
    c.harass(kind, times=6, pause=0.5)
    c.wait_info(at, lambda i: i['round'] >= 20, 60, 'twenty versions')  # enough for stale updates
    again = c.finish(at, **job)
    kept = [[(r['virtual_start'], r['virtual_end'], r['staleness_mean'], r['dropped']) for r in c.mfl_json('show', name)['rounds']]
            for name in (at, again)]
    assert kept[0] == kept[1] and any(r[2] > 1 for r in kept[0])


def test_killed_at_each_step_of_storing(cluster):
    c = cluster(1)
    job = {**COMMON, **JOBS['fedbuff']}
    at = c.begin(**job)
    c.wait_info(at, lambda i: i['round'] >= 1, 30, 'a version')
    for point in ('before-write', 'before-rename', 'after-rename', 'before-db-commit', 'after-db-commit'):
        c.server.kill()
        c.start_server({'MFL_FAULT': '%s:2:exit' % point}, ready=False)
        assert c.server.wait(30) == h.FAULT_STATUS, c.server.log()[-1000:]
        c.start_server()
    c.finish(at, **job)


def test_a_rotten_checkpoint_is_passed_over(cluster):
    """The versions of the round before it are there, too."""
    c = cluster(1)
    job = {**COMMON, **JOBS['fedbuff']}
    at = c.begin(**job)
    c.wait_info(at, lambda i: i['round'] >= 12, 30, 'twelve versions')
    c.server.kill()
    c.rot_newest(at)
    c.start_server()
    c.finish(at, **job)


REAL = {k: v for k, v in COMMON.items() if k not in ('time', 'trace')}


@pytest.mark.parametrize('kind', JOBS)
def test_real_time_is_replayed(cluster, kind):
    """Whoever is killed, and when: what the record says gives the same versions."""
    c = cluster(3)
    c.wait_daemons(3)
    at = c.begin(**{**REAL, **JOBS[kind]})
    c.harass(kind + ' in real time', times=6, pause=0.5)
    n = c.wait_info(at, lambda i: True, 10, 'an answer')['round']
    c.wait_info(at, lambda i: i['round'] >= n + 3, 30, 'three more versions')
    c.stop_job(at)
    assert c.mfl_json('replay', at)['same']


def test_real_time_killed_at_each_step(cluster):
    """Of recording what came, of making a version of it, and of storing that; a replay that is killed is the same, too."""
    c = cluster(1)
    at = c.begin(**{**REAL, **JOBS['fedbuff']})
    c.wait_info(at, lambda i: i['round'] >= 1, 30, 'a version')
    for point in ('before-write', 'before-rename', 'after-rename', 'before-db-commit', 'after-db-commit'):
        for n in (1, 2, 3):
            c.server.kill()
            c.start_server({'MFL_FAULT': '%s:%d:exit' % (point, n)}, ready=False)
            assert c.server.wait(30) == h.FAULT_STATUS, c.server.log()[-1000:]
            c.start_server()
    n = c.wait_info(at, lambda i: True, 10, 'an answer')['round']
    c.wait_info(at, lambda i: i['round'] >= n + 5, 30, 'five more versions')
    c.stop_job(at)
    digests = c.digests(at)
    with c.operator() as o:
        again = o.request('clone_job', {'job': at, 'replay': True})['job']
    c.wait_info(again, lambda i: i['round'] >= 2, 30, 'two versions')
    c.server.kill()
    c.start_server()
    c.wait_job(again, 60, state='stopped')
    assert c.digests(again) == digests


def test_real_time_waits_for_room(cluster):
    """A record that finds the disk full is written later; the job goes on. Which commit is a record's depends on what else is stored meanwhile."""
    c = cluster(1)
    at, wanted = c.begin(**{**REAL, **JOBS['fedbuff']}), "the order of arrival can't be written down, retried: "
    c.wait_info(at, lambda i: i['round'] >= 1, 30, 'a version')
    for n in range(2, 30):
        c.server.kill()
        c.start_server({'MFL_FAULT': 'before-db-commit:%d:enospc' % n})
        done = c.info(at)['round']
        c.wait_info(at, lambda i, done=done: i['round'] >= done + 3, 30, 'three more versions')
        if n > 7 and wanted in c.server.log():
            break
    assert wanted in c.server.log()
    c.stop_job(at)
    assert c.mfl_json('replay', at)['same']
