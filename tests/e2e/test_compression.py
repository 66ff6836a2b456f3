# SPDX-License-Identifier: Apache-2.0
"""Updates that travel packed, and deltas that are rounded to a grid: the algorithm recomputed in numpy, one model for any number of
daemons and whatever is killed, and the bytes that it saves."""
import os

import numpy as np
import pytest

import mfl_harness as h
from federated import Momentum, Stream, federated_average, pulled, uniform_init

GRID, HALF = 11, 64  # common/base/rng.h
TRAINING = {'lr': 0.1, 'epochs': 1, 'batch': 10}
WIDE = {'layers': ['flatten', {'dense': {'units': 163}}, 'relu', {'dense': {'units': 4}}]}  # too large for the inside of a message


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


def halves(seed):
    """Each client's delta in bfloat16, rounded at random; then the mean."""
    def method(clients, r, local):
        total = [0, 0]
        for k, client in enumerate(clients):
            d = np.concatenate([np.asarray(x, np.float32).ravel() for x in client.d])
            bits = d.view(np.uint32) + (Stream(seed, HALF, k, r).block(d.size) >> np.uint64(16)).astype(np.uint32)
            d = (bits & np.uint32(0xffff0000)).view(np.float32).astype(float)
            n = client.d[0].size
            total = [t + client.n * x for t, x in zip(total, (d[:n].reshape(client.d[0].shape), d[n:]))]
        return [t / sum(c.n for c in clients) for t in total]
    return method


def test_bfloat16_is_the_algorithm(two_daemons):
    """As with the grid, a few elements lie so near a threshold that float32's error decides."""
    seed, settings = 31, {'rounds': 3, 'clients': 4, 'lr': lambda r: 0.1, 'batch': 10, 'optimizer': lambda: Momentum(0)}
    job, _ = two_daemons.run_job(model='logistic', seed=seed, rounds=3, data={'clients': 4}, training=TRAINING, compression={'up': 'bf16'})
    w, b, _ = federated_average(method=halves(seed), seed=seed, **settings)
    got = np.concatenate([x.ravel() for x in pulled(two_daemons, job).values()])
    want = np.concatenate([w.ravel(), b])
    plain = np.concatenate([x.ravel() for x in federated_average(seed=seed, **settings)[:2]])
    assert (np.abs(got - want) < 1e-5).mean() >= 0.98, (np.abs(got - want) < 1e-5).mean()
    assert np.abs(got - want).max() < 1e-3 and (np.abs(plain - want) > 1e-5).mean() > 0.5


def nearest(x):
    """bfloat16 of a double."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000).astype(np.uint32).view(np.float32)


def vectors_of(c, job, r):
    """A round's params, and what their rounding left."""
    tensors = h.read_safetensors(os.path.join(c.state_dir, 'jobs', job, 'round-%06d.safetensors' % r))
    own = {name: np.frombuffer(data, '<f4') for name, (_, _, data) in tensors.items()}
    names = [name for name in own if '/' not in name]
    return [np.concatenate([own[prefix + name] for name in names]) for prefix in ('', 'strategy/rest/')]


def test_params_in_bfloat16_with_error_feedback(two_daemons):
    """What rounding takes away is added before the next one: params and their rest together are where plain params would be, and clients start
    from the rounded ones alone."""
    c, seed = two_daemons, 31
    job, digests = c.run_job(model='logistic', seed=seed, rounds=6, data={'clients': 4}, training=TRAINING, compression={'down': 'bf16'},
                             checkpoints={'keep': 6})
    before = None
    for r in range(1, 7):
        params, rest = vectors_of(c, job, r)
        assert not np.any(params.view(np.uint32) & 0xffff)
        assert np.array_equal(nearest(params.astype(float) + rest), params)
        if before is not None:
            assert 1e-3 < np.abs(params - before).max() < 1
        before = params
    assert np.array_equal(np.concatenate([x.ravel() for x in pulled(c, job).values()]), params) and len(set(digests)) == 6
    start = np.concatenate([uniform_init(seed, 0, 256, 64), uniform_init(seed, 1, 4, 64)])
    one, _ = c.run_job(model='logistic', seed=seed, rounds=1, data={'clients': 4}, training={**TRAINING, 'lr': 1e-12}, compression={'down': 'bf16'})
    params, rest = vectors_of(c, one, 1)
    assert np.array_equal(params, nearest(start)) and np.abs(params.astype(float) + rest - start).max() < 1e-8


@pytest.mark.parametrize('compression', [{'up': 'bf16'}, {'down': 'bf16'}, {'up': {'bits': 8}, 'down': 'bf16'}], ids=str)
def test_bfloat16_is_one_model(cluster, compression):
    """For any number of daemons, and when the server and a daemon are killed."""
    digests = []
    for n in (1, 2, 4):
        c = cluster(n)
        c.wait_daemons(n)
        digests.append(c.run_job(model=WIDE, compression=compression, aggregation={'strategy': 'fedavgm'})[1])
        if n == 2:
            job = {'model': WIDE, 'compression': compression}
            killed = c.begin(**job)
            c.wait_info(killed, lambda i: i['round'] >= 2, 30, 'round 2')
            c.server.kill()
            c.start_server()
            c.daemons['d1'].kill()
            c.start_daemon('d1')
            c.finish(killed, **job)
        c.close()
    assert digests[0] == digests[1] == digests[2]


def test_bfloat16_takes_half_the_bytes(cluster):
    """Of float32, and 2 bytes for 256 elements: a client alone up, and params down. The first round's are sent before and after it."""
    c = cluster(1)
    c.wait_daemons(1)
    settings = {'model': WIDE, 'data': {'partition': 'local', 'clients': None}}
    plain, packed = (c.mfl_json('show', c.run_job(**settings, **more)[0])['rounds']
                     for more in ({}, {'compression': {'up': 'bf16', 'down': 'bf16'}}))
    for way in ('bytes_up', 'bytes_down'):
        ratios = [b[way] / a[way] for a, b in zip(plain, packed)]
        assert all(0.45 < r <= 0.5 + 1 / 512 + 0.005 for r in ratios), (way, ratios)


def cut(share):
    """Of each client's change, and what it has not sent before, the largest elements; then the mean."""
    rest = {}

    def method(clients, r, local):
        total = [0, 0]
        for client in clients:
            u = np.concatenate([np.asarray(x, np.float32).ravel() for x in client.d]) + rest.get(client.k, np.float32(0))
            k = int(np.ceil(share * u.size))
            sent = np.zeros_like(u)
            chosen = np.argsort(-np.abs(u), kind='stable')[:k]
            sent[chosen] = u[chosen]
            rest[client.k] = u - sent
            n = client.d[0].size
            total = [t + client.n * x for t, x in zip(total, (sent[:n].reshape(client.d[0].shape).astype(float), sent[n:].astype(float)))]
        return [t / sum(c.n for c in clients) for t in total]
    return method


def test_top_k_is_the_algorithm(two_daemons):
    """An element that lies within float32's error of the cut may be kept for the next round instead. Without what was kept the result is
    elsewhere."""
    seed, settings = 31, {'rounds': 4, 'clients': 4, 'lr': lambda r: 0.1, 'batch': 10, 'optimizer': lambda: Momentum(0)}
    job, _ = two_daemons.run_job(model='logistic', seed=seed, rounds=4, data={'clients': 4}, training=TRAINING, compression={'up': {'top_k': 0.1}})
    got = np.concatenate([x.ravel() for x in pulled(two_daemons, job).values()])
    want, whole = (np.concatenate([x.ravel() for x in federated_average(method=m, seed=seed, **settings)[:2]]) for m in (cut(0.1), cut(1)))
    assert (np.abs(got - want) < 1e-5).mean() >= 0.98, (np.abs(got - want) < 1e-5).mean()
    assert (np.abs(whole - want) > 1e-4).mean() > 0.5


@pytest.mark.parametrize('compression', [{'up': {'top_k': 0.05}}, {'down': {'bits': 8}}, {'up': {'top_k': 0.05}, 'down': {'bits': 8}}], ids=str)
def test_cut_updates_and_steps_of_params_are_one_model(cluster, compression):
    """For any number of daemons, and when the server and a daemon are killed. What clients did not send is where their next turn looks."""
    digests, job = [], {'model': WIDE, 'compression': compression, 'selection': {'clients': 5}}
    for n in (1, 2, 4):
        c = cluster(n)
        c.wait_daemons(n)
        digests.append(c.run_job(**job)[1])
        if n == 2:
            killed = c.begin(**job)
            for r in (2, 4):
                c.wait_info(killed, lambda i, r=r: i['round'] >= r, 30, 'round %d' % r)
                c.server.kill()
                c.start_server()
            c.daemons['d1'].kill()
            c.start_daemon('d1')
            c.finish(killed, **job)
        c.close()
    assert digests[0] == digests[1] == digests[2]


LOCAL = {'data': {'partition': 'local', 'clients': None}, 'selection': None}


def test_sites_keep_what_they_do_not_send(tmp_path, cluster):
    """The same models as when the server keeps it, for a tenth of the bytes. A site that has lost it begins anew, and the round says so."""
    c = cluster(0)
    state = {name: str(tmp_path / name) for name in ('d1', 'd2')}
    for name, folder in state.items():
        c.start_daemon(name, more=['--state-dir', folder], node=name)
    c.wait_daemons(2)
    job = {'model': WIDE, 'rounds': 5, **LOCAL, 'selection': {'daemons': {'min': 2}}, 'compression': {'up': {'top_k': 0.05}}}
    at_sites, digests = c.run_job(**job)
    at_server, same = c.run_job(client_state='server', **job)
    whole, others = c.run_job(**{**job, 'compression': {'up': 'lossless'}})
    assert digests == same and digests[0] != others[0]
    up = [[r['bytes_up'] for r in c.rounds(j)] for j in (at_sites, at_server, whole)]
    elements = c.info(at_sites)['n_params']
    for cut_bytes, all_bytes in zip(up[0], up[2]):
        assert cut_bytes <= 2 * elements * (0.05 * 4 + 1 / 8 + 2 / 256) * 1.1 + 200 < 0.12 * all_bytes, up
    assert [r['states_lost'] for r in c.mfl_json('show', at_sites)['rounds']] == [0] * 5
    assert os.path.getsize(os.path.join(c.state_dir, 'jobs', at_sites, 'clients.f32')) == 0
    folders = [os.path.join(state['d1'], 'states', name) for name in os.listdir(os.path.join(state['d1'], 'states'))]
    assert len(folders) == 1 and 1 <= len(os.listdir(folders[0])) <= 4

    killed = c.begin(**job)
    for r in (2, 4):
        c.wait_info(killed, lambda i, r=r: i['round'] >= r, 30, 'round %d' % r)
        c.server.kill()
        c.start_server()
        c.daemons['d1'].kill()
        c.start_daemon('d1', more=['--state-dir', state['d1']], node='d1')
    c.finish(killed, **job)

    lost = c.begin(**job)
    c.wait_info(lost, lambda i: i['round'] >= 2, 30, 'round 2')
    c.daemons['d1'].kill()
    for folder in os.listdir(os.path.join(state['d1'], 'states')):
        for name in os.listdir(os.path.join(state['d1'], 'states', folder)):
            with open(os.path.join(state['d1'], 'states', folder, name), 'r+b') as f:
                f.write(b'\1')
    at = c.info(lost)['round']
    c.start_daemon('d1', more=['--state-dir', state['d1']], node='d1')
    c.wait_info(lost, lambda i: i['round'] >= at + 2, 30, 'two more rounds')
    c.stop_job(lost)
    assert sum(r['states_lost'] for r in c.mfl_json('show', lost)['rounds']) == 1


def test_a_site_without_a_place_for_states_is_told(cluster):
    c = cluster(1)
    c.wait_daemons(1)
    job = c.submit(model='logistic', rounds=1, **LOCAL, compression={'up': {'top_k': 0.05}})
    c.wait_info(job, lambda i: 'set state_dir' in str(i), 20, 'the reason')
    path = c.write('job.yaml', h.job_text(model='logistic', compression={'up': {'top_k': 0.05}}, client_state='daemon'))
    assert 'client_state: daemon needs sites that keep their own client' in h.mfl('check', path, status=5).stderr


def test_steps_of_params_take_a_quarter_of_the_bytes(cluster):
    """Of float32, for a daemon that has the params before; one that comes late gets them whole. Params and their rest together are
    where plain params would be."""
    c = cluster(1)
    c.wait_daemons(1)
    settings = {'model': WIDE, 'rounds': 6, 'checkpoints': {'keep': 6}}
    plain, _ = c.run_job(**settings)
    packed, digests = c.run_job(**settings, compression={'down': {'bits': 8}})
    plain_down, packed_down = ([r['bytes_down'] for r in c.rounds(j)] for j in (plain, packed))
    assert plain_down[0] == 2 * plain_down[1]  # the first round's params, and their successors, which it evaluates
    for a, b in zip(plain_down[1:], packed_down[1:]):
        assert 0.2 < b / a <= 0.27, (plain_down, packed_down)
    before = None
    for r in range(1, 7):
        params, rest = vectors_of(c, packed, r)
        assert np.any(rest)
        if before is not None:
            step = params.astype(float) - before
            assert len(np.unique(np.round(step / np.abs(step).max() * 127))) <= 255
        before = params
    late = c.begin(**{**settings, 'compression': {'down': {'bits': 8}}})
    c.wait_info(late, lambda i: i['round'] >= 2, 30, 'round 2')
    c.start_daemon('d9', node='other')
    c.finish(late, **{**settings, 'compression': {'down': {'bits': 8}}})


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
    ({'up': 'zip'}, {}, 'compression.up: expected lossless, bf16, {bits: 8} (16, 32, 48), or {top_k: 0.05}'),
    ({'up': {'top_k': 0}}, {}, 'compression.up.top_k: expected a number above 0'),
    ({'up': {'top_k': 0.05, 'bits': 8}}, {}, 'compression.up: expected one of {bits: 8} and {top_k: 0.05}'),
    ({'up': {'top_k': 0.05}}, {'strategy': 'median'}, "takes each client's by itself; remove compression"),
    ({'up': {'top_k': 0.05}}, {'strategy': 'fednova'}, 'which only a plain mean makes up for'),
    ({'up': {'top_k': 0.05}}, {'strategy': 'fedprox', 'mu': 'adaptive'}, 'aggregation.mu: adaptive is not supported with top_k'),
    ({'up': {'top_k': 0.05}}, {'update_clip': 1}, 'update_clip: would shorten a change'),
    ({'up': 'lossless', 'down': {'bits': 7}}, {}, 'compression.down.bits: expected a whole number from 8 to 16'),
    ({'down': {'bits': 12}}, {}, 'compression.down.bits: expected 8 or 16, got 12'),
    ({'down': {'bits': 8}}, {'strategy': 'fedasync'}, 'compression.down: what rounding leaves'),
    ({'down': 'zip'}, {}, 'compression.down: expected bf16, or {bits: 8}'),
    ({'up': {'bits': 8}}, {'strategy': 'median'}, "takes each client's by itself; remove compression"),
    ({'up': {'bits': 8}}, {'strategy': 'fednova'}, 'weighs deltas otherwise; write lossless'),
    ({'up': 'bf16'}, {'strategy': 'scaffold'}, 'takes those of clients that keep a state one by one'),
    ({}, {}, 'compression: must say what: up: lossless, or down: bf16'),
])
def test_what_makes_no_sense_is_refused(two_daemons, compression, aggregation, expected):
    path = two_daemons.write('job.yaml', h.job_text(model='logistic', compression=compression, aggregation=aggregation))
    assert expected in h.mfl('check', path, status=5).stderr
