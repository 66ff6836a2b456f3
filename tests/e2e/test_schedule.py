# SPDX-License-Identifier: Apache-2.0
"""Several jobs and processes on one server: a job that waits for all daemons, daemons that come late to a round, two processes
of one name, and what people are told of it."""
import signal

import pytest

import mfl_harness as h

BIG = 'big=synthetic:1,8,8:4:400:80:2'
ENDLESS = {'steps': 10000000, 'epochs': None}
QUIET = {'every': 0}


def log_of(c, job):
    return c.mfl('logs', job).stdout


def test_free_daemons_work_while_a_local_job_waits(cluster):
    """d3 is busy for as long as the test wants it to be. The local job waits for it and says so; the small one goes on."""
    c = cluster(2)
    c.start_daemon('d3', data=(h.TINY, BIG))
    c.wait_daemons(3)
    big = c.submit(name='big', rounds=1, data={'name': 'big', 'clients': 1}, training=ENDLESS, evaluation=QUIET)
    c.wait_info(big, lambda i: i['phase'] == 'train' and i['daemons'] == 1, 20, 'the big job to train')
    small = c.submit(name='small', rounds=1000000, data={'clients': 2}, evaluation=QUIET)
    c.wait_info(small, lambda i: i['round'] > 3, 20, 'the small job')
    local = c.submit(name='local', rounds=2, data={'partition': 'local', 'clients': None}, evaluation=QUIET)
    c.wait_info(local, lambda i: i['reason'] == 'waits for daemon d3, which works for ' + big, 40, 'the reason')
    at = c.info(small)['round']
    c.wait_info(small, lambda i: i['round'] >= at + 10, 60, 'the small job to go on')
    assert c.info(local)['round'] == 0 and c.info(big)['phase'] == 'train'
    c.mfl('stop', big)
    c.wait_job(local, 60)
    assert [r['daemons'] for r in c.rounds(local)] == [3, 3]
    c.mfl('stop', small)


def test_late_daemons_take_clients_over(cluster):
    """The round begins with all clients on one daemon; two come later. The model is the same."""
    c = cluster(1)
    c.wait_daemons(1)
    job = dict(rounds=1, data={'clients': 16}, training={'steps': 300, 'epochs': None}, evaluation=QUIET)
    late = c.submit(name='late', **job)
    c.wait_info(late, lambda i: i['phase'] == 'train' and i['daemons'] == 1, 20, 'the round to begin')
    for name in ('d2', 'd3'):
        c.start_daemon(name, node=name)
    h.wait_until(lambda: 'daemon d1 returns' in log_of(c, late), 120, 'clients to come back')
    c.wait_job(late, 120)
    round_, = c.rounds(late)
    assert round_['clients'] == 16 and round_['daemons'] >= 2
    assert c.run_job(timeout=240, **job)[1] == c.digests(late)


def states(c):
    with c.operator() as o:
        return {d['name']: d for d in o.daemons()}


def test_a_second_process_never_ends_the_first(cluster):
    c = cluster(1)
    first = c.daemons['d1']
    connected = c.wait_daemons(1)[0]['connected_ms']
    second = h.Process(c.daemon_argv('d1', node='n2'), c.log_path('second'))
    c.others.append(second)
    h.wait_until(lambda: 'another process under the name d1 is connected, on node n1' in second.log(), 20, 'the refusal')
    assert first.alive() and second.alive()
    assert states(c)['d1']['connected_ms'] == connected
    assert states(c)['d1']['note'] == 'a second process under this name, on node n2, is refused: give it another name'
    first.kill()  # now the name is free
    h.wait_until(lambda: states(c)['d1']['node'] == 'n2' and states(c)['d1']['state'] == 'idle', 30, 'the second one')
    c.start_daemon('d1')  # and one that was killed is back under its own name
    third = c.daemons['d1']
    h.wait_until(lambda: 'another process under the name' in third.log(), 20, 'the refusal of the third')
    second.signal(signal.SIGSTOP)  # silent, though its connection is there
    try:
        h.wait_until(lambda: states(c)['d1']['node'] == 'n1' and states(c)['d1']['state'] == 'idle', 30, 'the third one')
    finally:
        second.signal(signal.SIGCONT)
    h.wait_until(lambda: second.log().count('another process under the name') > 0, 20, 'the refusal')
    assert second.alive() and third.alive()


# ---- daemons by their tags ----

EU, US = ['--tags', 'region=eu,gpu=h100'], ['--tags', 'region=us']


def test_a_job_says_which_daemons_it_wants(cluster):
    c = cluster(0)
    for name, more in (('d1', EU), ('d2', US), ('d3', EU)):
        c.start_daemon(name, node=name, more=more)
    c.wait_daemons(3)
    assert {d['name']: d['tags'] for d in c.mfl_json('daemons')['daemons']} == {
        'd1': 'region=eu,gpu=h100', 'd2': 'region=us', 'd3': 'region=eu,gpu=h100'}
    assert 'tags: region=us' in c.mfl('daemons').stdout
    job = dict(rounds=2, data={'clients': 6}, training={'steps': 20, 'epochs': None})
    everybody = c.run_job(**job)
    assert [r['daemons'] for r in c.rounds(everybody[0])] == [3, 3]
    for where, daemons in (("region == 'eu'", 2), ("region == 'us' or name == 'd1'", 2), ("gpu not in ('h100', 'h200')", 1)):
        job_id, digests = c.run_job(selection={'where': where}, **job)
        assert digests == everybody[1]
        assert [r['daemons'] for r in c.rounds(job_id)] == [daemons] * 2, where
    nobody = c.submit(selection={'where': "region == 'asia'"}, **job)
    c.wait_info(nobody, lambda i: 'd1 and 2 more are not what selection.where says' in i['reason'], 20, 'the reason')
    c.start_daemon('d4', more=['--tags', 'region=asia'])
    c.wait_job(nobody)
    assert c.digests(nobody) == everybody[1]


def test_sites_by_their_tags(cluster):
    """Partition local: others' data takes no part."""
    c = cluster(0)
    for i, more in ((1, EU), (2, US), (3, EU)):
        c.start_daemon('site-%d' % i, data=['tiny=synthetic:1,8,8:4:%d:40:%d' % (100 + 50 * i, i)], more=more)
    c.wait_daemons(3)
    job, _ = c.run_job(data={'partition': 'local', 'clients': None}, rounds=2,
                       selection={'where': "region == 'eu'", 'daemons': {'min': 2}})
    assert [r['weight'] for r in c.rounds(job)] == [150 + 250] * 2


def test_wrong_tags(cluster, tmp_path):
    c = cluster(1)
    for where, said in (('region = "eu"', 'selection.where: character 8: expected \'==\', \'!=\', \'in\' or \'not in\''),
                        ('', 'selection.where: character 1: expected a tag, name, site, node or backend, got the end')):
        with pytest.raises(Exception) as caught:
            c.submit(selection={'where': where})
        assert said in str(caught.value)
    for text, said in (('{site: a}', "tags.site: 'site' has a meaning of its own"), ('[eu]', 'tags: expected {TAG: VALUE, ...}'),
                       ('{a: "b c"}', "tags.a: 'b c' can't be a tag's value"), ('{a: [b]}', 'tags.a: expected a text or a number')):
        path = tmp_path / 'client.yaml'
        path.write_text('tags: %s\n' % text)
        bad = c.start_daemon('bad', more=['--config', str(path)])
        assert bad.wait(10) == 78 and said in bad.log(), bad.log()
    bad = c.start_daemon('bad', more=['--tags', 'region'])
    assert bad.wait(10) == 2 and "--tags: 'region': expected TAG=VALUE" in bad.log(), bad.log()
    del c.daemons['bad']
    path.write_text('tags: {region: eu, gpus: 8}\n')
    c.start_daemon('good', more=['--config', str(path)])
    c.wait_daemons(2)
    assert states(c)['good']['tags'] == 'region=eu,gpus=8'
