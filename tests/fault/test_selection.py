# SPDX-License-Identifier: Apache-2.0
"""Selections that know their clients: killed servers and daemons change nobody's turn, and no virtual second."""
import pytest

import mfl_harness as h

KINDS = [
    {'selection': {'kind': 'weighted', 'clients': 6}, 'data': {'partition': 'dirichlet', 'clients': 20, 'alpha': 0.3}},
    {'selection': {'kind': 'power-of-choice', 'clients': 6, 'candidates': 15}, 'data': {'partition': 'linear', 'clients': 20}},
    {'selection': {'kind': 'oort', 'clients': 6, 'over': 1.3, 'oort': {'pacer_step': 2}}, 'time': 'virtual',
     'trace': {'sigma': 1, 'online': 0.6}, 'data': {'partition': 'dirichlet', 'clients': 20, 'alpha': 0.3}},
]
TRAINING = {'lr': 0.1, 'epochs': 1, 'batch': 10}


@pytest.mark.parametrize('kind', KINDS, ids=lambda k: k['selection']['kind'])
def test_killed_at_random(cluster, kind):
    """finish() compares with a job that nobody disturbs. Losses come back from checkpoints, samples from another census."""
    c = cluster(3)
    c.wait_daemons(3)
    job = {'model': 'logistic', 'training': TRAINING, **kind}
    at = c.begin(**job)
    c.harass('selection', times=6, pause=0.5)
    again = c.finish(at, **job)
    times = [[(r['virtual_start'], r['virtual_end']) for r in c.mfl_json('show', name)['rounds']] for name in (at, again)]
    assert times[0] == times[1] and times[0]


def test_killed_at_each_step_of_storing(cluster):
    """What is remembered of clients is that of a committed round, whichever step of storing one is the last."""
    c = cluster(1)
    job = {'model': 'logistic', 'training': TRAINING, 'checkpoints': {'keep': 0}, **KINDS[1]}
    at = c.begin(**job)
    c.wait_info(at, lambda i: i['round'] >= 2, 30, 'two rounds')
    for point in ('before-write', 'before-rename', 'after-rename', 'before-db-commit', 'after-db-commit'):
        c.server.kill()
        c.start_server({'MFL_FAULT': '%s:2:exit' % point}, ready=False)
        assert c.server.wait(30) == h.FAULT_STATUS, c.server.log()[-1000:]
        c.start_server()
    c.finish(at, **job)
