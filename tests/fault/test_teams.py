# SPDX-License-Identifier: Apache-2.0
"""Members of a team that are killed, or stopped for a while, again and again: the models are those of one daemon."""
import os
import signal
import time

import mfl_harness as h

HARMS = int(os.environ.get('MFL_TEAM_HARMS', '12'))  # 100 for a long run
JOB = {'data': {'partition': 'dirichlet', 'clients': 5, 'alpha': 0.5, 'min_samples': 3}, 'selection': {'clients': 1},
       'training': {'batch': 8, 'accumulate': 2, 'momentum': 0.9, 'clip_norm': 1.0}, 'parallel': {'grain': 4},
       'evaluation': {'every': 0}}


def test_members_are_killed_and_stopped(cluster):
    c = cluster(3, config={'reconnect_grace': '500ms', 'dead_after': '2s'})
    c.share()
    c.wait_daemons(3)
    random = h.seeded('teams')
    job = c.begin(**JOB)
    for k in range(HARMS):
        at = c.wait_info(job, lambda i: True, 10, 'an answer')['round']
        c.wait_info(job, lambda i: i['round'] > at, 60, 'a round after %d harms' % k)
        name = 'd%d' % random.randint(1, 3)
        time.sleep(random.random() * 0.1)
        if random.random() < 0.7:
            c.daemons[name].kill()
            c.start_daemon(name)
        else:  # the others may wait for it, or go on without it
            c.daemons[name].signal(signal.SIGSTOP)
            time.sleep(random.random() * 3)
            c.daemons[name].signal(signal.SIGCONT)
    c.finish(job, **JOB)
    assert c.mfl_json('show', job)['teams']['formed'] > HARMS
    assert not [name for name in c.shared_files() if name.startswith('mfl-mesh')]
