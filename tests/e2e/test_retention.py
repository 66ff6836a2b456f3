# SPDX-License-Identifier: Apache-2.0
"""Jobs that have ended are deleted as server.yaml says, with their files and a line in the audit; others never are."""
import os

import mfl_harness as h


def ids(c):
    with c.operator() as o:
        return sorted(j['job'] for j in o.jobs())


def deletions(c):
    return [(e['who'], e['object'], e['result'], e['text']) for e in c.mfl_json('audit')['entries'] if e['action'] == 'delete']


def test_no_more_than_the_limit(cluster):
    c = cluster(1, config={'keep_ended_max': 2})
    going = c.begin(name='going')
    ended = []
    for _ in range(4):
        ended.append(c.submit())
        c.wait_job(ended[-1])
        last = ended[-2:]
        h.wait_until(lambda last=last: ids(c) == [going, *last], 10, 'only %s' % last)
    assert deletions(c) == [('server', job, 'done', 'more than 2 jobs have ended (keep_ended_max)') for job in ended[:2]]
    assert sorted(os.listdir(os.path.join(c.state_dir, 'jobs'))) == ids(c)
    assert c.info(going)['state'] == 'running' and c.info(going)['round'] > 0
    assert "there is no job '%s'" % ended[0] in c.mfl('show', ended[0], status=None).stderr
    c.server.kill()
    c.start_server()
    assert ids(c) == [going, *ended[2:]]
    c.stop_job(going)  # stopped jobs have ended, too
    h.wait_until(lambda: ids(c) == [going, ended[3]], 10, 'the end of ' + ended[2])


def test_old_jobs_go_after_a_reload(cluster):
    c = cluster(1)
    going, old = c.begin(name='going'), c.run_job(rounds=1)[0]
    with open(c.config_path, 'a', encoding='utf-8') as f:
        f.write('keep_ended: 1s\n')
    assert ids(c) == [going, old]
    c.server.signal(h.signal.SIGHUP)
    h.wait_until(lambda: ids(c) == [going], 20, 'the end of ' + old)
    assert deletions(c) == [('server', old, 'done', 'it ended more than 1 s ago (keep_ended)')]
    assert '%s (tiny): deleted: it ended' % old in c.server.log()
    c.check_alive()


def test_a_wrong_limit_is_refused(cluster):
    c = cluster.empty({'keep_ended_max': 0})
    server = c.start_server(ready=False)
    assert server.wait(10) == 78 and 'keep_ended_max' in server.log()
