# SPDX-License-Identifier: Apache-2.0
"""Every strategy runs, and federated averaging is what the papers say: recomputed here from the seed in numpy, which shares no
code with the programs."""
import numpy as np
import pytest

from federated import Adam, Adaptive, Momentum, Nesterov, federated_average, pulled, uniform_init


@pytest.fixture(scope='module')
def two_daemons(shared_cluster):
    c = shared_cluster(2)
    c.wait_daemons(2)
    return c


@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_fedavg_is_the_algorithm(two_daemons, momentum):
    c = two_daemons
    settings = {'seed': 11, 'rounds': 3}
    # 7 clients of 57 or 58 samples: weights differ, and the last batch of 10 is short.
    job, _ = c.run_job(model='logistic', data={'clients': 7},
                       training={'lr': 0.1, 'epochs': 1, 'batch': 10, 'momentum': momentum}, **settings)
    w, b, accuracy = federated_average(clients=7, lr=lambda r: 0.1, batch=10, optimizer=lambda: Momentum(momentum),
                                       **settings)
    got_w, got_b = pulled(c, job).values()
    assert got_w.shape == (4, 64) and got_b.shape == (4,)
    start = uniform_init(11, 0, 256, 64).reshape(4, 64)
    assert np.abs(w - start).max() > 0.02  # there was something to learn
    # The programs work in float: 18 steps of values about 1 with a relative rounding of 2^-24 each, summed over 64
    # inputs, stay below 1e-5; a wrong order, weight or batch shows at 1e-3.
    assert np.abs(got_w - w).max() < 1e-5
    assert np.abs(got_b - b).max() < 1e-5
    # A sample at the border may fall to either side: at most one of 80.
    assert abs(c.info(job)['last']['accuracy'] - accuracy) < 1.5 / 80


def test_adam_with_a_cosine_is_the_algorithm(two_daemons):
    c = two_daemons
    settings = {'seed': 12, 'rounds': 4}
    job, _ = c.run_job(model='logistic', data={'clients': 7}, training={
        'lr': 0.02, 'epochs': 1, 'batch': 10, 'optimizer': 'adam', 'beta2': 0.99, 'eps': 1e-3,
        'schedule': {'kind': 'cosine', 'warmup': 1, 'min': 0.1}}, **settings)

    def lr(r):
        """One round of warm-up, which is at the whole rate, then half a wave over the other three."""
        return 0.02 if r == 1 else 0.02 * (0.1 + 0.9 * (1 + np.cos(np.pi * (r - 2) / 3)) / 2)
    w, b, _ = federated_average(clients=7, lr=lr, batch=10, optimizer=lambda: Adam(0.9, 0.99, 1e-3), **settings)
    got_w, got_b = pulled(c, job).values()
    start = uniform_init(12, 0, 256, 64).reshape(4, 64)
    assert np.abs(w - start).max() > 0.1
    # As above; the square root of a small v divides, and with eps 1e-3 magnifies what rounding leaves by 1e3 at the most
    # where v is 0. A rate of another round is off by a tenth.
    assert np.abs(got_w - w).max() < 1e-4
    assert np.abs(got_b - b).max() < 1e-4


@pytest.mark.parametrize('variant', ['paper', 'flower'])
@pytest.mark.parametrize('kind', ['fedadagrad', 'fedadam', 'fedyogi'])
def test_adaptive_strategies_are_the_algorithms(two_daemons, kind, variant):
    """beta1 is 0 for FedAdagrad in both."""
    c = two_daemons
    settings = {'seed': 13, 'rounds': 4}
    rule = {'tau': 0.01, 'server_lr': 0.05}
    job, _ = c.run_job(model='logistic', data={'clients': 7}, training={'lr': 0.1, 'epochs': 1, 'batch': 10},
                       aggregation={'strategy': kind, 'variant': variant, **rule}, **settings)

    def server():
        return Adaptive(kind, variant == 'flower', 0.05, 0 if kind == 'fedadagrad' else 0.9, 0.99, 0.01)
    w, b, _ = federated_average(clients=7, lr=lambda r: 0.1, batch=10, optimizer=lambda: Momentum(0), server=server, **settings)
    got_w, got_b = pulled(c, job).values()
    start = uniform_init(13, 0, 256, 64).reshape(4, 64)
    assert np.abs(w - start).max() > 0.02
    # The step is eta m / (sqrt(v) + tau): rounding of d, about 1e-7, is magnified by eta / tau = 5 in each of 4 rounds. The other
    # variant differs by more than 1e-3.
    assert np.abs(got_w - w).max() < 1e-4
    assert np.abs(got_b - b).max() < 1e-4


def test_nesterov_is_the_algorithm(two_daemons):
    """Without momentum it is FedAvg, bit for bit."""
    c, settings = two_daemons, {'seed': 15, 'rounds': 5}
    rule = {'strategy': 'fedavgm', 'nesterov': True}
    training = {'lr': 0.05, 'epochs': 1, 'batch': 10}
    job, _ = c.run_job(model='logistic', data={'clients': 7}, training=training,
                       aggregation={'momentum': 0.7, 'server_lr': 0.8, **rule}, **settings)

    def expected(server):
        return federated_average(clients=7, lr=lambda r: 0.05, batch=10, optimizer=lambda: Momentum(0), server=server, **settings)
    w, b, _ = expected(lambda: Nesterov(0.8, 0.7))
    got_w, got_b = pulled(c, job).values()
    assert np.abs(got_w - w).max() < 1e-5 and np.abs(got_b - b).max() < 1e-5
    assert np.abs(expected(lambda: Nesterov(0.8, 0))[0] - w).max() > 1e-3
    plain = c.run_job(model='logistic', data={'clients': 7}, training=training, **settings)[1]
    assert plain == c.run_job(model='logistic', data={'clients': 7}, training=training,
                              aggregation={'momentum': 0, **rule}, **settings)[1]


def test_fedprox_clips_the_gradient_with_its_term(two_daemons):
    """As PyTorch does, whose loss includes the term. Without it in the norm, steps away from the start would be longer."""
    c = two_daemons
    settings = {'seed': 14, 'rounds': 2}
    job, _ = c.run_job(model='logistic', data={'clients': 7},
                       training={'lr': 0.1, 'epochs': 1, 'batch': 10, 'clip_norm': 0.5},
                       aggregation={'strategy': 'fedprox', 'mu': 5}, **settings)

    def expected(**local):
        return federated_average(clients=7, lr=lambda r: 0.1, batch=10, optimizer=lambda: Momentum(0), mu=5, **local, **settings)[0]
    got = list(pulled(c, job).values())[0]
    assert np.abs(expected(clip=0.5) - expected()).max() > 1e-3  # it does clip
    assert np.abs(got - expected(clip=0.5)).max() < 1e-5


STRATEGIES = [
    {'strategy': 'fedavg'},
    {'strategy': 'fedavg', 'server_lr': 0.5, 'weighting': 'uniform'},
    {'strategy': 'fedavgm', 'momentum': 0.5},
    {'strategy': 'fedavgm', 'momentum': 0.5, 'nesterov': True},
    {'strategy': 'fedadagrad', 'server_lr': 0.01},
    {'strategy': 'fedadam', 'server_lr': 0.01},
    {'strategy': 'fedyogi', 'server_lr': 0.01},
    {'strategy': 'fedprox', 'mu': 0.5},
    {'strategy': 'median'},
    {'strategy': 'fednova'},
    {'strategy': 'qfedavg', 'q': 2},
    {'strategy': 'fedprox', 'mu': 'adaptive', 'mu_start': 0.7},
]


def test_every_strategy(two_daemons):
    """Each learns something, each gives a model of its own, and the same one from one daemon and from two."""
    c, last = two_daemons, []
    jobs = [c.submit(name='s%d' % i, model='logistic', rounds=4, aggregation=s, training={'lr': 0.1},
                     data={'partition': 'linear', 'clients': 8})
            for i, s in enumerate(STRATEGIES)]
    for job in jobs:
        info = c.wait_job(job, 60)
        rounds = c.rounds(job)
        assert rounds[-1]['loss'] < rounds[0]['loss'], info['strategy']
        last.append(c.digests(job)[-1])
    assert len(set(last)) == len(STRATEGIES)
    with c.operator() as o:
        o.request('drain', {'daemon': 'd2', 'wait': True})
    jobs = [c.submit(name='s%d' % i, model='logistic', rounds=4, aggregation=s, training={'lr': 0.1},
                     data={'partition': 'linear', 'clients': 8})
            for i, s in enumerate(STRATEGIES)]
    for i, job in enumerate(jobs):
        c.wait_job(job, 60)
        assert {r['daemons'] for r in c.rounds(job)} == {1}
        assert c.digests(job)[-1] == last[i], STRATEGIES[i]
    with c.operator() as o:
        o.request('drain', {'daemon': 'd2', 'undo': True})


@pytest.mark.parametrize('model', ['mlp', 'lenet5', 'fedavg-cnn', 'pfl-cnn', {
    'layers': [{'conv2d': {'filters': 3, 'kernel': 3, 'padding': 1}}, 'relu', {'avgpool2d': {'kernel': 2}}, 'flatten',
               {'dense': {'units': 4}}]}])
def test_every_preset(shared_cluster, model):
    c = shared_cluster(1, data=['tiny=synthetic:1,16,16:4:40:8:1'], backend='cpu')
    c.wait_daemons(1)
    job, digests = c.run_job(model=model, rounds=1, data={'clients': 2}, training={'steps': 2, 'epochs': None})
    assert len(digests) == 1
    assert c.info(job)['n_params'] > 0
    c.close()
