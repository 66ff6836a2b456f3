# SPDX-License-Identifier: Apache-2.0
"""The server dies at every step of a commit. The job has every round once, and the same model after each of them."""
import os

import pytest

import mfl_harness as h

# common/base/fs.h and server/store/store.h: what a commit passes, in order.
POINTS = [when + '-' + step for step in ('open', 'write', 'fsync', 'rename', 'fsync-dir', 'db-commit', 'unlink')
          for when in ('before', 'after')]
# Momentum's state is in the checkpoint; keep 0 makes every commit unlink; uneven clients make order matter.
JOB = {'model': 'logistic', 'aggregation': {'strategy': 'fedadam'}, 'checkpoints': {'keep': 0},
       'data': {'partition': 'dirichlet', 'clients': 4, 'alpha': 1.0}, 'training': {'lr': 0.05, 'momentum': 0.9}}


def test_death_at_every_step_of_a_commit(cluster):
    c = cluster(1)
    job = c.begin(**JOB)
    c.wait_info(job, lambda i: i['round'] >= 1, 20, 'a round')
    struck = {}
    for n in (1, 2, 3):
        for point in POINTS:
            info = c.info(job)
            c.server.kill()
            c.start_server({'MFL_FAULT': '%s:%d:exit' % (point, n)}, ready=False)
            # It strikes during the start, or in one of the next rounds.
            assert c.server.wait(20) == h.FAULT_STATUS, c.server.log()[-1000:]
            struck[point, n] = info['round']
            c.start_server()
            if n > 1 or point.endswith('unlink'):
                c.wait_info(job, lambda i: i['round'] > info['round'], 20, 'the next round')
    c.finish(job, **JOB)
    assert len(struck) == 3 * len(POINTS)
    digests = c.digests(job)
    # The last model is whole, and nothing half-written is left.
    with c.operator() as o:
        begin = o.request('pull', {'job': job, 'round': -1})
    assert begin['round']['round'] == len(digests) and begin['round']['digest'].hex() == digests[-1]
    files = os.listdir(os.path.join(c.state_dir, 'jobs', job))
    assert not [f for f in files if f.endswith('.tmp')], files
    newest = os.path.join(c.state_dir, 'jobs', job, 'round-%06d.safetensors' % len(digests))
    assert h.params_digest(newest) == digests[-1]


SEVERAL = {
    'regions': {'aggregation': {'strategy': 'fedadam'}, 'edges': {'count': 3, 'rounds': 4}},
    'delayed servers': {'aggregation': {'strategy': 'median', 'f': 1, 'unit': 'server'}, 'edges': {'count': 4},
                        'simulation': {'servers': {'attack': 'delayed', 'share': 0.25}}},
}


@pytest.mark.parametrize('kind', SEVERAL)
def test_death_between_regions(cluster, kind):
    """Checkpoints have the params and states of each region, or what bad servers had found."""
    c = cluster(1, config={'allow_simulation': 'true'})
    settings = {**JOB, **SEVERAL[kind]}
    job = c.begin(**settings)
    for point in ('before-write', 'before-rename', 'after-rename', 'before-db-commit', 'after-db-commit'):
        info = c.wait_info(job, lambda i: i['round'] >= 1, 20, 'a round')
        c.server.kill()
        c.start_server({'MFL_FAULT': '%s:3:exit' % point}, ready=False)
        assert c.server.wait(30) == h.FAULT_STATUS, c.server.log()[-1000:]
        c.start_server()
        c.wait_info(job, lambda i: i['round'] > info['round'], 20, 'the next round')
    c.finish(job, **settings)


def test_damaged_checkpoint_is_passed_over(cluster):
    """A file that rotted on the disk is not trusted: the job goes back to the round before and computes it again."""
    c = cluster(1)
    settings = dict(JOB, checkpoints={'keep': 5}, training={'steps': 300, 'epochs': None})
    job = c.begin(**settings)
    c.wait_info(job, lambda i: i['round'] >= 3, 30, 'three rounds')
    c.server.kill()
    damaged = c.rot_newest(job)
    c.start_server()
    c.wait_info(job, lambda i: i['round'] >= damaged, 30, 'that round')
    c.finish(job, **settings)
