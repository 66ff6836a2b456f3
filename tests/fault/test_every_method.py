# SPDX-License-Identifier: Apache-2.0
"""Every method of docs/jobs.md that is not a robust rule: one digest on one, two and four daemons of two nodes, and while the server and daemons are
killed in each phase of a round and at each step of storing one. At night, as it takes minutes; the other files have most of it by parts."""
import os

import pytest

import mfl_harness as h

ON_CLIENTS = {'evaluation': {'on': 'clients', 'split': 0.25}}
VIRTUAL = {'time': 'virtual', 'trace': {'sigma': 1, 'online': 0.7}}
LAYERS = {'layers': [{'conv2d': {'filters': 4, 'kernel': 3}}, {'batchnorm': {'name': 'bn'}}, 'relu', 'flatten', {'dense': {'units': 4}}]}
MOMENTUM = {'training': {'momentum': 0.5}}


def strategy(name, more=None, **settings):
    return {**(more or {}), 'aggregation': {'strategy': name, **settings}}


METHODS = {
    'fedavg': {},
    'fednova': strategy('fednova', MOMENTUM),
    'qfedavg': strategy('qfedavg', q=2),
    'fedavgm, nesterov': strategy('fedavgm', nesterov=True),
    'fedprox, mu adaptive': strategy('fedprox', mu='adaptive', mu_start=0.5),
    'mimelite': strategy('mimelite'),
    'mime': strategy('mime'),
    'scaffold': strategy('scaffold'),
    'scaffold, option I': strategy('scaffold', option='I'),
    'feddyn': strategy('feddyn', alpha=0.1),
    'fedbn': {**ON_CLIENTS, 'model': LAYERS, 'personal': {'layers': ['bn*']}},
    'fedper': {**ON_CLIENTS, 'personal': {'layers': ['dense*']}, 'model': LAYERS},
    'fedrep': {**ON_CLIENTS, 'personal': {'layers': ['dense*'], 'epochs': 1}, 'model': LAYERS},
    'ditto': strategy('ditto', ON_CLIENTS),
    'pfedme': strategy('pfedme', ON_CLIENTS, inner_steps=2),
    'apfl': strategy('apfl', ON_CLIENTS, alpha=0.3),
    'apfl, alpha adaptive': strategy('apfl', ON_CLIENTS, alpha='adaptive'),
    'fedbuff': strategy('fedbuff', {**VIRTUAL, 'selection': {'clients': 8}}, buffer=3, staleness_max=6),
    'fedasync': strategy('fedasync', {**VIRTUAL, 'selection': {'clients': 5}}),
    'weighted': {'selection': {'kind': 'weighted', 'clients': 5}},
    'poisson': {'selection': {'kind': 'poisson', 'rate': 0.4}},
    'separated': {'selection': {'kind': 'separated', 'separation': 3}},
    'power-of-choice': {'selection': {'kind': 'power-of-choice', 'clients': 4, 'candidates': 8}},
    'oort': {**VIRTUAL, 'selection': {'kind': 'oort', 'clients': 4, 'over': 1.3}},
    'up: 8 bits': {'compression': {'up': {'bits': 8}}},
    'up: bf16': {'compression': {'up': 'bf16'}},
    'up: top-k': {'compression': {'up': {'top_k': 0.1}}},
    'up: lossless': {'compression': {'up': 'lossless'}},
    'down: 8 bits': {'compression': {'down': {'bits': 8}}},
    'down: bf16': {'compression': {'down': 'bf16'}},
}
DATA = 'tiny=synthetic:1,8,8:4:400:4000:1'  # an evaluation takes its time
POINTS = [when + '-' + step for step in ('write', 'rename', 'db-commit') for when in ('before', 'after')]


def job_of(name):
    method = METHODS[name]
    training = {'lr': 0.05, 'epochs': 2, 'batch': 10, **method.get('training', {})}
    return {'model': 'mlp', 'data': {'partition': 'linear', 'clients': 12}, 'selection': {'clients': 9}, 'checkpoints': {'keep': 0},
            **method, 'training': training}


def cluster_of(cluster, nodes):
    c = cluster(0)
    for i, node in enumerate(nodes):
        c.start_daemon('d%d' % (i + 1), node=node, workers=1 + i % 2, data=(DATA,))
    c.wait_daemons(len(nodes))
    return c


def kill_in_each_phase(c, job):
    """The server and a daemon, each while clients train and while they evaluate (of ten rounds, one is seen in that phase; if none is, it is killed
    anywhere); a killed daemon comes back on the other node."""
    for turn, phase in enumerate(('train', 'eval') * 2):
        at = c.wait_info(job, lambda i: True, 20, 'an answer')['round']
        c.wait_info(job, lambda i, at=at, phase=phase: i['round'] > at and (i['phase'] == phase or i['round'] > at + 10), 60, 'a phase ' + phase)
        if turn < 2:
            c.server.kill()
            c.start_server()
        else:
            name = 'd%d' % turn
            c.daemons[name].kill()
            c.start_daemon(name, node='n2' if turn == 2 else 'n1', data=(DATA,))


def kill_at_each_step(c, job, points):
    for point in points:
        at = c.wait_info(job, lambda i: i['round'] >= 1, 20, 'an answer')['round']
        c.server.kill()
        c.start_server({'MFL_FAULT': '%s:2:exit' % point}, ready=False)
        assert c.server.wait(30) == h.FAULT_STATUS, c.server.log()[-1000:]
        c.start_server()
        c.wait_info(job, lambda i, at=at: i['round'] > at, 30, 'the next round')


@pytest.mark.parametrize('name', METHODS)
def test_one_digest_for_any_daemons_and_any_kill(cluster, name):
    job = job_of(name)
    c = cluster_of(cluster, ['n1', 'n1', 'n2', 'n2'])
    at = c.begin(**job)
    kill_in_each_phase(c, at)
    kill_at_each_step(c, at, POINTS + (['before-states', 'after-states'] if os.path.exists(os.path.join(c.state_dir, 'jobs', at, 'clients.f32')) else []))
    c.stop_job(at)
    digests = c.digests(at)
    assert not any(r['states_lost'] for r in c.rounds(at))
    c.close()
    assert len(digests) >= 8 and len(set(digests)) > len(digests) / 3, 'the model moves'
    for nodes in (['n1'], ['n1', 'n2']):
        c = cluster_of(cluster, nodes)
        assert c.run_job(120, **job, rounds=len(digests))[1] == digests, nodes
        c.close()
