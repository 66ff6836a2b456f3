# SPDX-License-Identifier: Apache-2.0
"""Members of a team that are killed, or stopped for a while, again and again: the models are those of one daemon. Once within a
node, once over several, and once with sharded state of which the others keep snapshots."""
import os
import signal
import time

import pytest

import mfl_harness as h

HARMS = int(os.environ.get('MFL_TEAM_HARMS', '12'))  # 100 for a long run
JOB = {'data': {'partition': 'dirichlet', 'clients': 5, 'alpha': 0.5, 'min_samples': 3}, 'selection': {'clients': 1},
       'training': {'batch': 8, 'accumulate': 2, 'momentum': 0.9, 'clip_norm': 1.0}, 'parallel': {'grain': 4, 'members': 64, 'within': 'any'},
       'evaluation': {'every': 0}}


def start(c, name, nodes):
    c.start_daemon(name, node='n' + name[1:], more=['--peer-listen', '127.0.0.1:0']) if nodes > 1 else c.start_daemon(name)


@pytest.mark.parametrize('nodes,more', [(1, {}), (3, {}), (1, {'zero': 3, 'snapshot': 2, 'bucket': '64KiB'})])
def test_members_are_killed_and_stopped(cluster, nodes, more):
    how = dict(JOB, parallel=dict(JOB['parallel'], **more))
    c = cluster(0, config={'reconnect_grace': '500ms', 'dead_after': '2s'})
    c.share()
    for name in ('d1', 'd2', 'd3'):
        start(c, name, nodes)
    c.wait_daemons(3)
    random = h.seeded('teams')
    job = c.begin(**how)
    for k in range(HARMS):
        at = c.wait_info(job, lambda i: True, 10, 'an answer')['round']
        c.wait_info(job, lambda i: i['round'] > at, 60, 'a round after %d harms' % k)
        name = 'd%d' % random.randint(1, 3)
        time.sleep(random.random() * 0.1)
        if random.random() < 0.7:
            c.daemons[name].kill()
            start(c, name, nodes)
        else:  # the others may wait for it, or go on without it
            c.daemons[name].signal(signal.SIGSTOP)
            time.sleep(random.random() * 3)
            c.daemons[name].signal(signal.SIGCONT)
    c.finish(job, **how)
    assert c.mfl_json('show', job)['teams']['formed'] > HARMS
    assert ('over the network' in c.mfl('logs', job).stdout) == (nodes > 1)
    assert not [name for name in c.shared_files() if name.startswith('mfl-mesh')]
