# SPDX-License-Identifier: Apache-2.0
"""What single clients have sent (debug.deltas, mfl pull --deltas): strategies recomputed in numpy from it, its limit, and who may have it."""
import os

import numpy as np
import pytest

import mfl_harness as h

KEPT = {'debug': {'deltas': '64MiB'}, 'checkpoints': {'keep': 9}}


def params_of(c, job, r):
    tensors = h.read_safetensors(os.path.join(c.state_dir, 'jobs', job, 'round-%06d.safetensors' % r))
    names = [name for name in tensors if '/' not in name]
    return names, np.concatenate([np.frombuffer(tensors[name][2], '<f4') for name in names]).astype(float)


def changes_of(c, job, r, names):
    path = os.path.join(c.dir, '%s-%d.npz' % (job, r))
    told = c.mfl_json('pull', job, '--deltas', '--round', str(r), '--output', path)
    with np.load(path) as f:
        found = {int(k): np.concatenate([f['client-%d/%s' % (k, name)].ravel() for name in names]).astype(float) for k in f['clients']}
        weights = dict(zip(found, (int(w) for w in f['weights'])))
    assert told['clients'] == len(found) and told['round'] == r
    return found, weights


def plain(x, d, r, state):
    return x + d


def fedavgm(x, d, r, state):
    """Hsu et al. 2019, with the default momentum."""
    state['v'] = 0.9 * state.get('v', 0) + d
    return x + state['v']


def nesterov(x, d, r, state):
    state['v'] = 0.9 * state.get('v', 0) + d
    return x + d + 0.9 * state['v']


def adaptive(kind):
    """Reddi et al. 2021, algorithm 2, with the defaults of the job."""
    def rule(x, d, r, state):
        beta1, beta2, tau, lr = (0, 0, 1e-3, 0.1) if kind == 'fedadagrad' else (0.9, 0.99, 1e-3, 0.01)
        m = state['m'] = beta1 * state.get('m', 0) + (1 - beta1) * d
        v = state.get('v', tau ** 2)
        v = state['v'] = {'fedadagrad': v + d ** 2, 'fedadam': beta2 * v + (1 - beta2) * d ** 2,
                          'fedyogi': v - (1 - beta2) * d ** 2 * np.sign(v - d ** 2)}[kind]
        return x + lr * m / (np.sqrt(v) + tau)
    return rule


def feddyn(x, d, r, state):
    """Acar et al. 2021, algorithm 1: 4 of 7 clients."""
    state['h'] = state.get('h', 0) - 0.1 * 4 / 7 * d
    return x + d - state['h'] / 0.1


RULES = {'fedavg': plain, 'fedprox': plain, 'scaffold': plain, 'scaffold, option: I': plain, 'mimelite': plain, 'ditto': plain,
         'pfedme': plain, 'apfl': plain, 'apfl, alpha: adaptive': plain, 'fedavgm': fedavgm, 'fedavgm, nesterov: true': nesterov,
         **{kind: adaptive(kind) for kind in ('fedadagrad', 'fedadam', 'fedyogi')}, 'feddyn': feddyn}


@pytest.mark.parametrize('strategy', RULES)
@pytest.mark.parametrize('daemons', [1, 3])
def test_five_rounds_follow_from_what_clients_have_sent(shared_cluster, daemons, strategy):
    """Within 1e-6 of numpy. And the models are those of a job that keeps nothing. test_methods.py and test_async.py recompute the rest,
    whose clients don't send their changes as they are."""
    c, rule = shared_cluster(daemons), RULES[strategy]
    c.wait_daemons(daemons)
    kind, _, setting = strategy.partition(', ')
    aggregation = {'strategy': kind, **dict([setting.split(': ')] if setting else [])}
    if 'nesterov' in aggregation:
        aggregation['nesterov'] = True
    job_of = {'model': 'mlp', 'rounds': 6, 'data': {'clients': 7}, 'selection': {'clients': 4}, 'aggregation': aggregation}
    job, digests = c.run_job(**job_of, **KEPT)
    assert c.run_job(**job_of)[1] == digests
    names, x = params_of(c, job, 1)
    state = {}
    found, weights = changes_of(c, job, 1, names)  # with which a state begins
    rule(x, sum(weights[k] * found[k] for k in found) / sum(weights.values()), 1, state)
    for r in range(2, 7):
        found, weights = changes_of(c, job, r, names)
        assert len(found) == 4
        x = rule(x, sum(weights[k] * found[k] for k in found) / sum(weights.values()), r, state)
        want = params_of(c, job, r)[1]
        assert np.abs(x - want).max() <= 1e-6 * np.abs(want).max(), (r, np.abs(x - want).max())


def test_kills_leave_whole_rounds(cluster):
    """A round that is begun again replaces what it had kept, and the limit ends it early: nothing else changes."""
    c, job_of = cluster(2), {'model': 'logistic', 'data': {'clients': 4}}
    c.wait_daemons(2)
    record, rounds = 32 + 4 * 260, 30
    job = c.begin(**job_of, debug={'deltas': rounds * 4 * record + record}, checkpoints={'keep': 0})
    for r in (3, 8, 15):
        c.wait_info(job, lambda i, r=r: i['round'] >= r, 30, 'round %d' % r)
        c.server.kill()
        c.start_server()
    c.wait_info(job, lambda i: i['round'] > rounds + 2, 60, 'the limit')
    c.stop_job(job)
    path = os.path.join(c.state_dir, 'jobs', job, 'deltas.f32')
    data = open(path, 'rb').read()
    assert len(data) == rounds * 4 * record + record
    heads = np.frombuffer(data, np.dtype([('round', '<u4'), ('zero', '<u4'), ('client', '<u8'), ('weight', '<u8'), ('n', '<u8'), ('v', '<f4', 260)]))
    seen = [(int(x['round']), int(x['client'])) for x in heads]
    assert len(set(seen)) == len(seen) and sorted(seen)[:rounds * 4] == [(r, k) for r in range(1, rounds + 1) for k in range(4)]
    answer = h.mfl('pull', job, '--deltas', '--round', str(rounds + 2), server=c.address, status=4).stderr
    assert 'no changes of clients of round %d are kept, but of rounds 1 to %d' % (rounds + 2, rounds + 1) in answer
    assert os.path.exists(path) and c.mfl_json('pull', job, '--deltas', '--round', '2', '-o', os.path.join(c.dir, 'two.npz'))['clients'] == 4


def test_a_job_that_keeps_none_says_so(cluster):
    c = cluster(1)
    c.wait_daemons(1)
    job, _ = c.run_job(model='logistic', rounds=1)
    assert 'no changes of clients are kept: the job needs debug: {deltas: SIZE}' in h.mfl('pull', job, '--deltas', server=c.address, status=4).stderr
    assert '--deltas writes npz' in h.mfl('pull', job, '--deltas', '--format', 'onnx', server=c.address, status=2).stderr


@pytest.mark.parametrize('more, expected', [
    ({'aggregation': {'strategy': 'fednova'}}, 'debug.deltas: is not supported where daemons fold'),
    ({'aggregation': {'strategy': 'fedprox', 'mu': 'adaptive'}}, 'debug.deltas: is not supported where daemons fold'),
    ({'secure_sum': {'bits': 64}, 'data': {'partition': 'local', 'clients': None}}, 'debug.deltas: needs each client'),
    ({'privacy': {'kind': 'central', 'noise': 1, 'clip': 1, 'epsilon_max': 8, 'delta': 1e-5}, 'selection': {'kind': 'poisson', 'rate': 0.5}}, 'debug.deltas: would show people'),
])
def test_what_makes_no_sense_is_refused(tmp_path, more, expected):
    path = tmp_path / 'job.yaml'
    path.write_text(h.job_text(model='logistic', debug={'deltas': '1MiB'}, **more))
    assert expected in h.mfl('check', str(path), status=5).stderr
