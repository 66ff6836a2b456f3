# SPDX-License-Identifier: Apache-2.0
"""Clients' states: killed servers and daemons, lost connections and rounds that are tried again leave no trace in the model, and the exact
mean over all clients holds in integers."""
import os
import sqlite3

import numpy as np
import pytest

import mfl_harness as h
import mfl_wire

STATEFUL = [{'strategy': 'scaffold'}, {'strategy': 'feddyn', 'alpha': 0.1}]
N = 260  # floats of the model


def states_of(c, job, n=N):
    if not os.path.exists(os.path.join(c.state_dir, 'jobs', job, 'clients.f32')):
        return {}
    with sqlite3.connect('file:%s/mfl.db?mode=ro' % c.state_dir, uri=True) as db:
        rows = db.execute('SELECT client, slot, crc FROM client_states WHERE job = ?', (job,)).fetchall()
    found = {}
    with open(os.path.join(c.state_dir, 'jobs', job, 'clients.f32'), 'rb') as f:
        for client, slot, crc in rows:
            f.seek(slot * 4096)
            data = f.read(4 * n)
            assert mfl_wire.crc32c(data) == crc, client
            found[client] = np.frombuffer(data, '<f4')
    return found


OWN_LAYERS = {'aggregation': {'strategy': 'fedavg'}, 'personal': {'layers': ['*.bias']}, 'evaluation': {'on': 'clients'}}
ON_CLIENTS = {'evaluation': {'on': 'clients'}}
KINDS = {**{a['strategy']: {'aggregation': a} for a in STATEFUL}, 'personal': OWN_LAYERS,
         'fedrep': {**ON_CLIENTS, 'personal': {'layers': ['*.bias'], 'epochs': 1}},
         'ditto': {**ON_CLIENTS, 'aggregation': {'strategy': 'ditto'}}, 'pfedme': {**ON_CLIENTS, 'aggregation': {'strategy': 'pfedme'}},
         'apfl': {**ON_CLIENTS, 'aggregation': {'strategy': 'apfl'}},
         'apfl-adaptive': {**ON_CLIENTS, 'aggregation': {'strategy': 'apfl', 'alpha': 'adaptive'}}, 'gradients': {'aggregation': {'strategy': 'scaffold', 'option': 'I'}},
         'mimelite': {'aggregation': {'strategy': 'mimelite'}}, 'mime': {'aggregation': {'strategy': 'mime'}}}


@pytest.mark.parametrize('kind', KINDS)
def test_killed_at_random(cluster, kind):
    """finish() compares with a job that nobody disturbs; the states are the same, too."""
    c = cluster(3)
    c.wait_daemons(3)
    job = {'model': 'logistic', 'data': {'partition': 'linear', 'clients': 12}, 'selection': {'clients': 9},
           'training': {'lr': 0.1, 'epochs': 2, 'batch': 10}, **KINDS[kind]}
    at = c.begin(**job)
    c.harass('states')
    again = c.finish(at, **job)
    n = N + (kind == 'apfl-adaptive')
    disturbed, calm = states_of(c, at, n), states_of(c, again, n)
    assert disturbed.keys() == calm.keys()
    for client, v in calm.items():
        assert np.array_equal(disturbed[client], v), client
    assert not any(r['states_lost'] for r in c.rounds(at))


POINTS = [when + '-' + step for step in ('states', 'write', 'rename', 'db-commit') for when in ('before', 'after')]


@pytest.mark.parametrize('kind', ['scaffold', 'personal', 'ditto', 'apfl-adaptive'])
def test_death_at_every_step_of_a_commit(cluster, kind):
    """Rows that no commit names are nobody's: the round begins again from the states before it."""
    job = {'model': 'logistic', 'data': {'partition': 'linear', 'clients': 6}, 'training': {'lr': 0.1, 'epochs': 1, 'batch': 10},
           **KINDS[kind]}
    c = cluster(1)
    at = c.begin(**job)
    c.wait_info(at, lambda i: i['round'] >= 1, 20, 'a round')
    for point in POINTS:
        before = c.info(at)['round']
        c.server.kill()
        c.start_server({'MFL_FAULT': '%s:2:exit' % point}, ready=False)
        assert c.server.wait(20) == h.FAULT_STATUS, c.server.log()[-1000:]
        c.start_server()
        c.wait_info(at, lambda i: i['round'] > before, 20, 'the next round')
    again = c.finish(at, **job)
    n = N + (kind == 'apfl-adaptive')
    disturbed, calm = states_of(c, at, n), states_of(c, again, n)
    assert all(np.array_equal(disturbed[k], v) for k, v in calm.items()) and disturbed.keys() == calm.keys()
    assert not any(r['states_lost'] for r in c.rounds(at))


def test_states_of_a_round_that_is_passed_over(cluster):
    """Its checkpoint rotted, so the round is trained again, but its clients' older states are gone: they begin anew, and are counted."""
    c = cluster(1)
    at = c.begin(model='logistic', data={'clients': 8}, aggregation={'strategy': 'scaffold'}, training={'lr': 0.1, 'steps': 100, 'epochs': None},
                 selection={'clients': 4}, checkpoints={'keep': 5})
    c.wait_info(at, lambda i: i['round'] >= 5, 30, 'five rounds')
    c.server.kill()
    damaged = c.rot_newest(at)
    c.start_server()
    c.wait_info(at, lambda i: i['round'] >= damaged + 1, 30, 'the round after it')
    lost = {r['round']: r['states_lost'] for r in c.rounds(at)}
    assert lost[damaged] == 4 and not lost[damaged + 1], lost
    c.stop_job(at)


def test_connections_that_are_cut(cluster):
    """In the middle of a client's state, too, which takes several frames: the daemon asks for the rest."""
    wide = {'layers': ['flatten', {'dense': {'units': 4500}}, 'relu', {'dense': {'units': 4}}]}  # 1.2 MB, two frames
    job = {'model': wide, 'data': {'clients': 3}, 'aggregation': {'strategy': 'scaffold'}, 'training': {'lr': 0.01, 'steps': 2, 'epochs': None, 'batch': 10},
           'evaluation': {'every': 0}}
    c = cluster(0)
    proxy = h.Proxy(c.address, cuts=[n * 700000 for n in range(3, 20, 3)])
    try:
        c.start_daemon('d1', server=proxy.address)
        c.start_daemon('d2', server=proxy.address)
        c.wait_daemons(2)
        at = c.begin(**job)
        for _ in range(5):
            before = c.info(at)['round']
            proxy.cut_all()
            c.wait_info(at, lambda i: i['round'] > before, 30, 'the next round')
        assert proxy.n_cut >= 5
        proxy.cuts = []
        c.finish(at, **job)
    finally:
        proxy.close()
