# SPDX-License-Identifier: Apache-2.0
"""Updates that travel packed, and deltas that are rounded to a grid: the algorithm recomputed in numpy, one model for any number of
daemons and whatever is killed, and the bytes that it saves."""
import numpy as np
import pytest

import mfl_harness as h
from federated import Momentum, Stream, federated_average, pulled

GRID = 11  # common/base/rng.h
TRAINING = {'lr': 0.1, 'epochs': 1, 'batch': 10}


@pytest.fixture(scope='module')
def two_daemons(shared_cluster):
    c = shared_cluster(2)
    c.wait_daemons(2)
    return c


def grid(bits, seed, weighed=True):
    """Each client's delta on the grid of the mean before it, rounded at random; then the mean."""
    state = {'exponents': None}

    def method(clients, r, local):
        total = [0, 0]
        for k, client in enumerate(clients):
            d = [np.asarray(x, np.float32).astype(np.float64) for x in client.d]
            if state['exponents']:
                u = Stream(seed, GRID, k, r).block(d[0].size + d[1].size) * 2.0**-32
                for i, u_of in enumerate((u[:d[0].size].reshape(d[0].shape), u[d[0].size:])):
                    step = 2.0 ** state['exponents'][i]
                    x = d[i] / step
                    x = np.floor(x) + (u_of < x - np.floor(x))
                    most = 2 ** (bits - 1) - 1
                    d[i] = np.clip(x, -most, most) * step
            for i in (0, 1):
                total[i] = total[i] + client.n * d[i]
        n = sum(c.n for c in clients)
        mean = [t / n for t in total]
        state['exponents'] = [int(np.ceil(np.log2(4 * np.abs(m).max()))) - (bits - 1) for m in mean]
        return mean
    return method


@pytest.mark.parametrize('bits', [8, 16])
def test_the_grid_is_the_algorithm(two_daemons, bits):
    """A delta that lies within float32's error of a threshold may be rounded the other way: one element in thousands. All others
    are the same, and a plain mean is further away."""
    seed, settings = 31, {'rounds': 3, 'clients': 4, 'lr': lambda r: 0.1, 'batch': 10, 'optimizer': lambda: Momentum(0)}
    job, _ = two_daemons.run_job(model='logistic', seed=seed, rounds=3, data={'clients': 4}, training=TRAINING,
                                 compression={'up': {'bits': bits}})
    w, b, _ = federated_average(method=grid(bits, seed), seed=seed, **settings)
    got = np.concatenate([x.ravel() for x in pulled(two_daemons, job).values()])
    want = np.concatenate([w.ravel(), b])
    plain = np.concatenate([x.ravel() for x in federated_average(seed=seed, **settings)[:2]])
    near = np.abs(got - want) < 1e-5
    assert near.mean() >= 0.99, near.mean()
    if bits == 8:
        assert (np.abs(plain - want) > 1e-5).mean() > 0.5


def test_lossless_changes_nothing_but_bytes(two_daemons):
    c = two_daemons
    plain, digests = c.run_job()
    packed, same = c.run_job(compression={'up': 'lossless'})
    assert same == digests
    assert 0.3 < sum(r['bytes_up'] for r in c.rounds(packed)) / sum(r['bytes_up'] for r in c.rounds(plain)) < 0.97


def test_one_model_for_any_number_of_daemons(cluster):
    """Eight bits of 8 clients that count alike: at most 11 bits an element in a daemon's sum, and 2 bytes for 256 of them."""
    digests = []
    for n in (1, 2, 4):
        c = cluster(n)
        c.wait_daemons(n)
        job, found = c.run_job(compression={'up': {'bits': 8}}, aggregation={'weighting': 'uniform'})
        digests.append(found)
        if n == 1:
            elements, rounds = c.info(job)['n_params'], c.rounds(job)
            assert rounds[0]['bytes_up'] > 2 * elements  # the first round is not rounded
            for r in rounds[1:]:
                assert r['bytes_up'] <= elements * (11 + 1 / 16) / 8 + 100, r
        c.close()
    assert digests[0] == digests[1] == digests[2]


def test_a_client_alone_sends_a_quarter_of_float32(cluster):
    c = cluster(1)
    c.wait_daemons(1)
    job, _ = c.run_job(data={'partition': 'local', 'clients': None}, compression={'up': {'bits': 8}})
    for r in c.rounds(job)[1:]:
        assert r['bytes_up'] <= 0.252 * 4 * c.info(job)['n_params'] + 100, r


def test_kills_change_nothing(cluster):
    """The steps of a round's grid outlive the server, and daemons keep nothing of it."""
    c, job = cluster(2), {'compression': {'up': {'bits': 8}}}
    c.wait_daemons(2)
    killed = c.begin(**job)
    for r in (2, 5):
        c.wait_info(killed, lambda i, r=r: i['round'] >= r, 30, 'round %d' % r)
        c.server.kill()
        c.start_server()
    c.daemons['d1'].kill()
    c.start_daemon('d1')
    c.finish(killed, **job)


def test_clamped_elements_are_counted(two_daemons):
    """A client of one step, then one of 39: its change leaves the range that the first one gave."""
    c = two_daemons
    job, _ = c.run_job(model='logistic', rounds=3, data={'partition': 'size', 'clients': 2, 'sizes': [10, 390]}, training=TRAINING,
                       selection={'kind': 'separated', 'separation': 2}, compression={'up': {'bits': 8}})
    clamped = [r['clamped'] for r in c.rounds(job)]
    assert clamped[0] == clamped[2] == 0 < clamped[1], clamped
    assert [r['clamped'] for r in c.mfl_json('show', job)['rounds']] == clamped


@pytest.mark.parametrize('compression, aggregation, expected', [
    ({'up': {'bits': 7}}, {}, 'compression.up.bits: expected a whole number from 8 to 48'),
    ({'up': {'bits': 12}}, {}, 'compression.up.bits: expected 8, 16, 32 or 48, got 12'),
    ({'up': 'zip'}, {}, 'compression.up: expected lossless, or {bits: 8}'),
    ({'up': 'bf16'}, {}, '{bits: 16} sends as much'),
    ({'up': {'top_k': 0.05}}, {}, 'compression.up.top_k: is not supported yet'),
    ({'up': 'lossless', 'down': 'bf16'}, {}, 'compression.down: is not supported yet'),
    ({'up': {'bits': 8}}, {'strategy': 'median'}, "takes each client's by itself; remove compression"),
    ({'up': {'bits': 8}}, {'strategy': 'fednova'}, 'weighs deltas otherwise; write lossless'),
    ({}, {}, "compression: key 'up' is missing"),
])
def test_what_makes_no_sense_is_refused(two_daemons, compression, aggregation, expected):
    path = two_daemons.write('job.yaml', h.job_text(model='logistic', compression=compression, aggregation=aggregation))
    assert expected in h.mfl('check', path, status=5).stderr
