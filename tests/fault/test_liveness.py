# SPDX-License-Identifier: Apache-2.0
"""Dead is not slow: a daemon that answers is alive however long it trains, one that is silent is dead in time."""
import signal
import time

import mfl_harness as h
import mfl_wire as w

FAST = {'heartbeat': '200ms', 'dead_after': '1s', 'reconnect_grace': '300ms'}


def is_gone(c, name):
    with c.operator() as o:
        return not [d for d in o.daemons() if d['name'] == name and d['state'] != 'lost']


def test_long_training_is_not_death(cluster):
    """One task of minutes, on a single worker that leaves no core idle: several times dead_after later it is at it still."""
    c = cluster(1, config=FAST)
    connected = c.wait_daemons(1)[0]['connected_ms']
    job = c.submit(rounds=1, data={'clients': 2}, training={'steps': 200000, 'epochs': None})
    c.wait_info(job, lambda i: i['phase'] == 'train' and i['daemons'] == 1, 20, 'training')
    time.sleep(2.5)
    info = c.info(job)
    assert (info['phase'], info['daemons'], info['attempt']) == ('train', 1, 0)
    with c.operator() as o:
        daemon, = o.daemons()
        o.request('stop_job', {'job': job})
    assert daemon['connected_ms'] == connected and daemon['state'] == 'training'  # the same connection all the time
    c.run_job(rounds=1)


def test_stopped_daemon_is_replaced_and_comes_back(cluster):
    """SIGSTOP for longer than dead_after: its clients go to the other; after SIGCONT it is welcome again."""
    settings = {'training': {'steps': 150, 'epochs': None}}
    c = cluster(2, config=FAST)
    c.wait_daemons(2)
    job = c.begin(**settings)
    c.wait_info(job, lambda i: i['phase'] == 'train' and i['daemons'] == 2, 10, 'both to train')
    c.daemons['d2'].signal(signal.SIGSTOP)
    try:
        h.wait_until(lambda: is_gone(c, 'd2'), 20, 'the server to miss it')
        at = c.info(job)['in_round']
        c.wait_info(job, lambda i: i['round'] > at, 30, 'rounds without it')
        assert {(r['clients'], r['attempt']) for r in c.rounds(job)} == {(8, 0)} and c.rounds(job)[-1]['daemons'] == 1
    finally:
        c.daemons['d2'].signal(signal.SIGCONT)
    c.wait_info(job, lambda i: i['phase'] == 'train' and i['daemons'] == 2, 15, 'the daemon to come back')
    again = c.finish(job, **settings)
    assert c.rounds(again)[0]['daemons'] == 2


def test_silent_peer_is_noticed_in_time(cluster):
    """A daemon whose machine froze: noticed after dead_after, and no sooner."""
    c = cluster(1, config=FAST)
    sets = c.data_sets()
    start = time.monotonic()
    fake = w.Connection(c.address)
    fake.send('hello', w.hello('ROLE_DAEMON', name='frozen', instance=3, node='x', backend='cpu', device='x', workers=1,
                               data_sets=sets))
    assert fake.expect('welcome')['dead_ms'] == 1000
    h.wait_until(lambda: is_gone(c, 'frozen'), 20, 'the frozen daemon to be dropped')
    assert time.monotonic() - start > 0.9  # the server's clock is that of its loop's last turn
    fake.close()


def test_frozen_server_is_left_and_found_again(cluster):
    """SIGSTOP of the server: daemons notice, and are back after SIGCONT; the model is the same."""
    settings = {'training': {'steps': 60, 'epochs': None}}
    c = cluster(2, config=FAST)
    c.wait_daemons(2)
    job = c.begin(**settings)
    c.wait_info(job, lambda i: i['round'] >= 1, 20, 'a round')
    c.server.signal(signal.SIGSTOP)
    time.sleep(2.5)
    c.server.signal(signal.SIGCONT)
    c.finish(job, **settings)


def test_name_taken_over(cluster):
    """A second process under a daemon's name replaces it at once: how a machine that came back is seen."""
    c = cluster(1)
    c.wait_daemons(1)
    first = c.daemons['d1']
    c.start_daemon('d1')
    h.wait_until(lambda: 'connected' in c.daemons['d1'].log().rsplit('mfl-client: d1:', 1)[-1], 10, 'the second process')
    job, _ = c.run_job(rounds=1)
    assert c.rounds(job)[0]['daemons'] == 1
    assert len(c.wait_daemons(1)) == 1
    first.kill()
    c.run_job(rounds=1)


def test_upload_that_stalls_makes_room(cluster):
    """A daemon that lives has the only slot and sends nothing: the other's update goes first, and then its turn comes again."""
    c = cluster(1, config={'slots': 1, 'upload_stall': '1s'})
    grants = []

    def mute(daemon, kind, body, payload):
        if kind == 'task':
            n = len(body['items'])
            daemon.send('announce', {'task': body['task'], 'update': 0, 'item_first': 0, 'item_count': n, 'weight': 50 * n,
                                     'encoding': 'ENCODING_I64', 'bytes': 8 * body['n_params'], 'samples': 50 * n, 'job': body['job'],
                                     'round': body['round']})
        elif kind == 'grant':
            grants.append(body['ranges'])
            c.daemons['d1'].signal(signal.SIGCONT)
            if c.info(mute.job)['clients_done']:  # the other's are counted
                for r in body['ranges']:
                    for at in range(r['offset'], r['offset'] + r['bytes'], 1 << 20):
                        part = bytes(min(1 << 20, r['offset'] + r['bytes'] - at))
                        daemon.send('chunk', {'task': body['task'], 'update': 0, 'offset': at}, payload=part)
    mute.job = 'j-000001'
    fake = w.FakeDaemon(c.address, 'mute', c.data_sets(), mute)
    c.wait_daemons(2)
    c.daemons['d1'].signal(signal.SIGSTOP)  # until the mute one holds the slot
    job = c.submit(rounds=1, evaluation={'every': 0})
    c.wait_job(job)
    assert fake.error is None and fake.closed is None and len(grants) >= 2
    assert c.rounds(job)[0]['clients'] == 8 and c.rounds(job)[0]['attempt'] == 0
    fake.close()
