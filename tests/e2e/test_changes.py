# SPDX-License-Identifier: Apache-2.0
"""What single clients have sent (debug.deltas, mfl pull --deltas): strategies recomputed in numpy from it, its limit, and who may have it."""
import itertools
import os

import numpy as np
import pytest

import cohorts
import mfl_harness as h
from federated import loss_of, parts_of, synthetic

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
         **{kind: adaptive(kind) for kind in ('fedadagrad', 'fedadam', 'fedyogi')}, 'feddyn': feddyn, 'fedprox, mu: adaptive': plain,
         'fedprox, mu: 0.5': plain}


@pytest.mark.parametrize('strategy', RULES)
@pytest.mark.parametrize('daemons', [1, 3])
def test_five_rounds_follow_from_what_clients_have_sent(shared_cluster, daemons, strategy):
    """And the models are those of a job that keeps nothing."""
    kind, _, setting = strategy.partition(', ')
    aggregation = {'strategy': kind}
    if setting:
        key, value = setting.split(': ')
        aggregation[key] = {'true': True, '0.5': 0.5}.get(value, value)
    follow(shared_cluster, daemons, {'aggregation': aggregation, 'selection': {'clients': 4}}, RULES[strategy])


def follow(shared_cluster, daemons, changes, rule, rounds=6, clients=4):
    """Each round's params are within 1e-6 of numpy. rule(x, mean change, r, state)"""
    c = shared_cluster(daemons)
    c.wait_daemons(daemons)
    job_of = {'model': 'mlp', 'rounds': rounds, 'data': {'clients': 7}, **changes}
    job, digests = c.run_job(60, **job_of, **KEPT)
    assert c.run_job(60, **job_of)[1] == digests and len(set(digests)) > rounds / 2
    names, x = params_of(c, job, 1)
    state = {}
    found, weights = changes_of(c, job, 1, names)  # with which a state begins
    rule(x, sum(weights[k] * found[k] for k in found) / sum(weights.values()), 1, state)
    for r in range(2, rounds + 1):
        found, weights = changes_of(c, job, r, names)
        assert len(found) == clients
        x = rule(x, sum(weights[k] * found[k] for k in found) / sum(weights.values()), r, state)
        want = params_of(c, job, r)[1]
        assert np.abs(x - want).max() <= 1e-6 * np.abs(want).max(), (r, np.abs(x - want).max())


def stays(x, d, r, state):
    """Mime: in an odd round clients tell gradients alone."""
    return x if r % 2 else x + d


VIRTUAL = {'time': 'virtual', 'trace': {'sigma': 1}}
MORE = {
    'mime': ({'aggregation': {'strategy': 'mime'}, 'selection': {'clients': 4}}, stays),
    'oort': ({**VIRTUAL, 'selection': {'kind': 'oort', 'clients': 4}}, plain),
    'power-of-choice': ({'selection': {'kind': 'power-of-choice', 'clients': 4, 'candidates': 6}}, plain),
    'weighted': ({'selection': {'kind': 'weighted', 'clients': 4}}, plain),
    'up: 8 bits': ({'compression': {'up': {'bits': 8}}, 'selection': {'clients': 4}}, plain),
    'up: bf16': ({'compression': {'up': 'bf16'}, 'selection': {'clients': 4}}, plain),
    'over': ({**VIRTUAL, 'selection': {'clients': 4, 'over': 1.3}, 'aggregation': {'strategy': 'fedavgm'}}, fedavgm),
}


@pytest.mark.parametrize('kind', MORE)
def test_so_do_those_of_other_selections_roundings_and_mime(shared_cluster, kind):
    follow(shared_cluster, 2, *MORE[kind])


# ---- clients that don't wait ----

SEED, SPEEDS = 17, {'mu': 0, 'sigma': 1.2, 'speed': 100}


def versions_of(aggregation, concurrency, n):
    durations = [cohorts.model_duration(SEED, k, 20, SPEEDS['mu'], SPEEDS['sigma'], SPEEDS['speed']) for k in range(20)]
    return list(itertools.islice(cohorts.versions(SEED, durations, concurrency, aggregation.get('buffer', 1), 20), n))


@pytest.mark.parametrize('aggregation', [{'strategy': 'fedbuff', 'buffer': 4}, {'strategy': 'fedbuff', 'buffer': 4, 'weighting': 'samples'},
                                         {'strategy': 'fedasync'}], ids=str)
def test_versions_follow_from_what_clients_have_sent(shared_cluster, aggregation):
    """A change is that of the params that its client started from; its factor is (1 + staleness)^-1/2."""
    c, n = shared_cluster(2), 12
    c.wait_daemons(2)
    job_of = {'model': 'logistic', 'seed': SEED, 'rounds': n, 'data': {'clients': 20}, 'training': {'lr': 0.1, 'epochs': 1, 'batch': 10},
              'time': 'virtual', 'trace': SPEEDS, 'aggregation': aggregation, 'selection': {'clients': 12}}
    job, digests = c.run_job(60, **job_of, debug=KEPT['debug'], checkpoints={'keep': n})
    assert c.run_job(60, **job_of)[1] == digests
    turns = versions_of(aggregation, 12, n)
    assert max(r - base for r, t in enumerate(turns) for base in t[2].values()) >= 2
    names, _ = params_of(c, job, 1)
    x = {r: params_of(c, job, r)[1] for r in range(1, n + 1)}
    compared = 0
    for r in range(2, n + 1):
        bases = turns[r - 1][2]
        found, weights = changes_of(c, job, r, names)
        assert found.keys() == bases.keys()
        factor = {k: (r - base) ** -0.5 for k, base in bases.items()}
        if aggregation['strategy'] == 'fedbuff':
            want = x[r - 1] + sum(weights[k] * factor[k] * found[k] for k in found) / sum(weights.values())
        elif 0 in bases.values():  # version 0 has no checkpoint
            continue
        else:
            (k, base), = bases.items()
            share = 0.6 * factor[k]
            want = (1 - share) * x[r - 1] + share * (x[base] + found[k])
        compared += 1
        assert np.abs(x[r] - want).max() <= 1e-6 * np.abs(want).max(), (r, np.abs(x[r] - want).max())
    assert compared >= 5


# ---- weights of the clients' own ----

SIZES = [10, 20, 40, 50, 60, 90, 130]


def fednova(w, b, d):
    """Wang et al. 2020, equation 8, of SGD with 1 to 13 steps in each of two epochs. d: {client: change}"""
    n, steps = {k: SIZES[k] for k in d}, {k: 2 * SIZES[k] // 10 for k in d}
    tau = sum(n[k] / 400 * steps[k] for k in d)
    return tau * sum(n[k] / 400 * d[k] / steps[k] for k in d)


def qfedavg(w, b, d, q=2, big=1 / 0.1):
    """Li et al. 2020, algorithm 2."""
    x, y = synthetic((1, 8, 8), 4, 400, 1, 0)
    f = {k: loss_of(w, b, x[part], y[part]) for k, (part, _) in enumerate(parts_of(21, 400, SIZES))}
    total = sum(f[k] ** q * big * -d[k] for k in d)
    return -total / sum(q * f[k] ** (q - 1) * big ** 2 * (d[k] ** 2).sum() + big * f[k] ** q for k in d)


@pytest.mark.parametrize('aggregation,rule', [({'strategy': 'fednova'}, fednova), ({'strategy': 'qfedavg', 'q': 2}, qfedavg)],
                         ids=['fednova', 'qfedavg'])
def test_steps_follow_from_what_the_same_clients_send_to_fedavg(shared_cluster, aggregation, rule):
    """Their clients send weighed changes. But from one start and seed a client's change is the same whatever the strategy: five jobs of a round, each
    from the params of the one before, and beside each a job of fedavg that keeps changes."""
    c, start = shared_cluster(2), {'preset': 'logistic', 'input': [1, 8, 8], 'classes': 4}
    c.wait_daemons(2)

    def run(lr=0.1, **changes):
        doc = h.job_doc(model=start, seed=21, rounds=1, data={'partition': 'size', 'clients': 7, 'sizes': SIZES},
                        training={'lr': lr, 'epochs': 2, 'batch': 10}, **changes)
        job = c.mfl_json('submit', c.write('round.yaml', h.yaml_of(doc)))['job']
        c.wait_job(job, 60)
        return job
    begun = run(lr=1e-30)  # where nothing moves
    for _ in range(5):
        job, beside = run(aggregation=aggregation), run(**KEPT)
        names, x = params_of(c, begun, 1)
        want = x + rule(x[:256].reshape(4, 64), x[256:], changes_of(c, beside, 1, names)[0])
        got = params_of(c, job, 1)[1]
        assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max(), np.abs(got - want).max()
        assert np.abs(params_of(c, beside, 1)[1] - got).max() > 1e-4
        c.mfl('pull', job, '--output', c.dir + '/start.safetensors')
        begun, start['initial'] = job, 'start.safetensors'


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
    ({'aggregation': {'strategy': 'qfedavg'}}, 'debug.deltas: is not supported where daemons fold'),
    ({'secure_sum': {'bits': 64}, 'data': {'partition': 'local', 'clients': None}}, 'debug.deltas: needs each client'),
    ({'privacy': {'kind': 'central', 'noise': 1, 'clip': 1, 'epsilon_max': 8, 'delta': 1e-5}, 'selection': {'kind': 'poisson', 'rate': 0.5}}, 'debug.deltas: would show people'),
])
def test_what_makes_no_sense_is_refused(tmp_path, more, expected):
    path = tmp_path / 'job.yaml'
    path.write_text(h.job_text(model='logistic', debug={'deltas': '1MiB'}, **more))
    assert expected in h.mfl('check', str(path), status=5).stderr
