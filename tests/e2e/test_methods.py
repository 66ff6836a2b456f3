# SPDX-License-Identifier: Apache-2.0
"""Methods that weigh clients by more than their samples, or keep numbers from round to round: each is its paper, recomputed in numpy;
each is FedAvg where the papers say so; each gives one model whatever is killed."""
import numpy as np
import pytest

from federated import Momentum, federated_average, pulled, synthetic, uniform_init

SIZES = [10, 20, 40, 50, 60, 90, 130]  # 1 to 13 steps of 10 in an epoch
UNEVEN = {'partition': 'size', 'clients': 7, 'sizes': SIZES}


@pytest.fixture(scope='module')
def two_daemons(shared_cluster):
    c = shared_cluster(2)
    c.wait_daemons(2)
    return c


def run(c, aggregation, data=UNEVEN, rounds=3, seed=21, **training):
    return c.run_job(model='logistic', seed=seed, rounds=rounds, data=data, aggregation=aggregation,
                     training={'lr': 0.1, 'epochs': 2, 'batch': 10, **training})


def compare(c, job, method, seed=21, rounds=3, clients=SIZES, momentum=None, lr=lambda r: 0.1, bound=1e-5, **local):
    """The model is the method's, and not FedAvg's."""
    settings = {'seed': seed, 'rounds': rounds, 'clients': clients, 'lr': lr, 'batch': 10, 'epochs': 2,
                'optimizer': momentum or (lambda: Momentum(0))}
    w, b, _ = federated_average(method=method, **settings, **local)
    got_w, got_b = pulled(c, job).values()
    assert np.abs(w - uniform_init(seed, 0, 256, 64).reshape(4, 64)).max() > 0.005
    assert np.abs(got_w - w).max() < bound and np.abs(got_b - b).max() < bound
    assert np.abs(federated_average(**settings)[0] - w).max() > 1e-3


class HeavyNesterov(Momentum):
    """PyTorch's."""

    def step(self, gradient, lr):
        self.v = self.beta * self.v + gradient
        return lr * (gradient + self.beta * self.v)


def fednova(a):
    """Wang et al. 2020, equations 8 and 9; a(steps): the sum of the coefficients of a client's gradients."""
    def method(clients, r, local):
        n = sum(c.n for c in clients)
        tau = sum(c.n / n * a(c.steps) for c in clients)
        return [tau * sum(c.n / n * c.d[i] / a(c.steps) for c in clients) for i in (0, 1)]
    return method


def test_fednova_is_the_algorithm(two_daemons):
    job, _ = run(two_daemons, {'strategy': 'fednova'})
    compare(two_daemons, job, fednova(lambda steps: steps))


def test_fednova_with_momentum_is_the_algorithm(two_daemons):
    rho = 0.8
    job, _ = run(two_daemons, {'strategy': 'fednova'}, momentum=rho)
    compare(two_daemons, job, fednova(lambda t: (t - rho * (1 - rho ** t) / (1 - rho)) / (1 - rho)),
            momentum=lambda: Momentum(rho))


def test_fednova_counts_nesterov_and_a_schedule(two_daemons):
    """The coefficients are those with which the gradients stand in what a client moved by: here of unit gradients."""
    rho = 0.5

    def rate(step, steps):
        return 0.1 * (1 - 0.9 * step / steps)  # linear to a tenth

    def a(steps):
        one, moved = HeavyNesterov(rho), 0
        for s in range(steps):
            moved += one.step(1, rate(s, steps) / 0.1)
        return moved
    job, _ = run(two_daemons, {'strategy': 'fednova'}, momentum=rho, nesterov=True,
                 schedule={'kind': 'linear', 'min': 0.1, 'per': 'step'})
    compare(two_daemons, job, fednova(a), momentum=lambda: HeavyNesterov(rho), lr=lambda r: rate)


@pytest.mark.parametrize('q', [0.2, 1, 5])
def test_qfedavg_is_the_algorithm(two_daemons, q):
    """Li et al. 2020, algorithm 2, as it is written there."""
    def method(clients, r, local):
        big, total, h_sum = 1 / 0.1, [0, 0], 0
        for c in clients:
            for i in (0, 1):
                total[i] = total[i] + c.loss ** q * big * -c.d[i]
            norm2 = big ** 2 * sum((d ** 2).sum() for d in c.d)
            h_sum += q * c.loss ** (q - 1) * norm2 + big * c.loss ** q
        return [-t / h_sum for t in total]
    job, _ = run(two_daemons, {'strategy': 'qfedavg', 'q': q})
    compare(two_daemons, job, method)


@pytest.mark.parametrize('patience', [1, 2])
def test_mu_follows_the_loss(two_daemons, patience):
    """Li et al. 2020, FedProx, appendix C.3.3. Long steps make the loss rise in some rounds and fall in others."""
    keeps = {'mu': 0.6, 'loss': None, 'lower': 0, 'seen': []}

    def method(clients, r, local):
        steps = 2 * sum(SIZES)
        loss = sum(2 * c.n * c.trained for c in clients) / steps
        if keeps['loss'] is not None:
            if loss < keeps['loss']:
                keeps['lower'] += 1
                if keeps['lower'] == patience:
                    keeps['mu'], keeps['lower'] = max(0, keeps['mu'] - 0.1), 0
            else:
                keeps['mu'], keeps['lower'] = min(1, keeps['mu'] + 0.1), 0
        keeps['loss'] = loss
        keeps['seen'].append(keeps['mu'])
        local['mu'] = keeps['mu']
        return [sum(c.n * c.d[i] for c in clients) / sum(SIZES) for i in (0, 1)]
    job, _ = run(two_daemons, {'strategy': 'fedprox', 'mu': 'adaptive', 'mu_start': 0.6, 'mu_patience': patience}, rounds=7)
    compare(two_daemons, job, method, rounds=7, mu=0.6)
    assert min(keeps['seen']) < 0.55


def test_they_are_fedavg_where_they_should_be(two_daemons):
    c = two_daemons
    equal = {'clients': 4}  # of 100 samples
    plain = run(c, {'strategy': 'fedavg'})[1]
    assert run(c, {'strategy': 'fedprox', 'mu': 0})[1] == plain
    assert run(c, {'strategy': 'qfedavg', 'q': 0})[1] == run(c, {'strategy': 'fedavg', 'weighting': 'uniform'})[1] != plain
    # A division and a product with the number of steps lie between them: one unit in the last place of a parameter.
    same, nova = (pulled(c, run(c, {'strategy': s}, data=equal, rounds=1)[0]).values() for s in ('fedavg', 'fednova'))
    for x, y in zip(same, nova):
        assert np.all(np.abs(x - y) <= np.spacing(np.abs(x)))


def test_a_batch_norm_counts_with_the_samples(two_daemons):
    """Running statistics are no gradient: their mean is weighed by samples whatever the strategy."""
    c = two_daemons
    model = {'layers': [{'conv2d': {'filters': 4, 'kernel': 3}}, {'batchnorm': {}}, {'relu': {}}, {'flatten': {}}, {'dense': {'units': 4}}]}

    def statistics(strategy):
        job, _ = c.run_job(model=model, seed=22, rounds=1, data=UNEVEN, aggregation={'strategy': strategy},
                           training={'lr': 0.05, 'epochs': 1, 'batch': 10})
        return pulled(c, job)
    plain, nova = statistics('fedavg'), statistics('fednova')
    running = [name for name in plain if 'running' in name]
    assert len(running) == 2
    for name in running:
        assert np.array_equal(plain[name], nova[name]), name
    assert any(not np.array_equal(plain[name], nova[name]) for name in plain)


def test_a_weight_without_bounds_is_refused(two_daemons):
    """Its reason reaches the people who wait."""
    c = two_daemons
    large = {'layers': ['flatten', {'dense': {'units': 64, 'init': 'he'}}, 'relu', {'dense': {'units': 4, 'init': 'he'}}]}
    job = c.submit(model=large, rounds=1, data=UNEVEN, training={'lr': 0.1, 'epochs': 1, 'batch': 10},
                   aggregation={'strategy': 'qfedavg', 'q': 100}, limits={'retries': 0})
    reason = c.wait_job(job, 60, state='failed')['reason']
    assert 'qfedavg gives it a weight of ' in reason and 'a smaller aggregation.q may help' in reason, reason


def test_sites_with_data_of_their_own(cluster):
    """Partition local: the bounds of weights and numbers are others. One model whatever the order in which the daemons come."""
    digests = []
    for order in ((1, 2, 3), (3, 1, 2)):
        c = cluster(0)
        for i in order:
            c.start_daemon('site-%d' % i, data=['tiny=synthetic:1,8,8:4:%d:40:%d' % (30 + 50 * i, i)])
        c.wait_daemons(3)
        digests.append([c.run_job(data={'partition': 'local', 'clients': None}, selection={'daemons': {'min': 3}}, rounds=3,
                                  aggregation=a)[1]
                        for a in ({'weighting': 'uniform'}, {'strategy': 'qfedavg', 'q': 0}, {'strategy': 'qfedavg', 'q': 2},
                                  {}, {'strategy': 'fednova'})])
        c.close()
    uniform, unfair, fair, plain, normalised = digests[0]
    assert digests[1] == digests[0]
    assert uniform == unfair != fair and plain != normalised


def test_separated_clients_take_turns(two_daemons):
    """Client k in the rounds r with (r - 1) mod 3 = k mod 3. With `clients`, those are drawn from the turn's."""
    c, settings = two_daemons, {'seed': 23, 'rounds': 5}
    training = {'lr': 0.1, 'epochs': 1, 'batch': 10}
    job, _ = c.run_job(model='logistic', data={'clients': 7}, training=training,
                       selection={'kind': 'separated', 'separation': 3}, **settings)
    assert [r['clients'] for r in c.rounds(job)] == [3, 2, 2, 3, 2]

    def expected(turns):
        return federated_average(clients=7, lr=lambda r: 0.1, batch=10, optimizer=lambda: Momentum(0), turns=turns, **settings)[0]
    w = expected(lambda r: [k for k in range(7) if k % 3 == (r - 1) % 3])
    assert np.abs(list(pulled(c, job).values())[0] - w).max() < 1e-5
    assert np.abs(expected(None) - w).max() > 1e-3
    job, _ = c.run_job(model='logistic', data={'clients': 7}, training=training,
                       selection={'kind': 'separated', 'separation': 3, 'clients': 1}, **settings)
    assert [r['clients'] for r in c.rounds(job)] == [1] * 5


REFUSED = [
    ({'strategy': 'fednova'}, {'optimizer': 'adam'}, 'training.optimizer: fednova divides by the steps of sgd'),
    ({'strategy': 'fedavg', 'q': 1}, {}, 'aggregation.q: is not used by fedavg'),
    ({'strategy': 'qfedavg', 'weighting': 'samples'}, {}, 'aggregation.weighting: is not used by qfedavg'),
    ({'strategy': 'fedprox', 'mu_start': 0.5}, {}, 'aggregation.mu_start: is only used with mu: adaptive'),
    ({'strategy': 'fedprox', 'mu': 0.5, 'mu_patience': 2}, {}, 'aggregation.mu_patience: is only used with mu: adaptive'),
    ({'strategy': 'fedavg', 'mu': 'adaptive'}, {}, 'aggregation.mu: is not used by fedavg'),
    ({'strategy': 'fedprox', 'mu': 'adaptiv'}, {}, 'aggregation.mu: '),
    ({'strategy': 'qfedavg', 'q': -1}, {}, 'aggregation.q: '),
]


@pytest.mark.parametrize('aggregation,training,said', REFUSED)
def test_what_does_not_go_together_is_refused(two_daemons, aggregation, training, said):
    with pytest.raises(Exception) as caught:
        two_daemons.submit(model='logistic', rounds=1, aggregation=aggregation, training={'lr': 0.1, **training})
    assert said in str(caught.value)


@pytest.mark.parametrize('aggregation', [{'strategy': 'fednova'}, {'strategy': 'qfedavg', 'q': 2},
                                         {'strategy': 'fedprox', 'mu': 'adaptive', 'mu_start': 0.4}], ids=lambda a: a['strategy'])
def test_a_client_over_several_workers(cluster, aggregation):
    """Teams change nothing: what the strategy needs of a client, its leader has."""
    job = {'model': 'logistic', 'rounds': 3, 'data': UNEVEN, 'aggregation': aggregation,
           'training': {'lr': 0.1, 'epochs': 1, 'batch': 10}, 'parallel': {'grain': 5}}
    c = cluster(1, workers=3)
    c.wait_daemons(1)
    digests = c.run_job(**dict(job, parallel={'grain': 5, 'members': 1}))[1]
    assert c.run_job(**dict(job, parallel={'grain': 5, 'members': 3}))[1] == digests
    one = dict(job, selection={'clients': 1})
    alone = c.run_job(**one)[1]
    c.start_daemon('d2')
    c.wait_daemons(2)
    assert c.run_job(**one)[1] == alone  # by a team of both


def optimum(decay):
    """Of the tiny training data's mean loss + decay / 2 |params|^2: by gradient descent in double, the function being smooth."""
    x, y = synthetic((1, 8, 8), 4, 400, 1, 0)
    x = np.hstack([x, np.ones((400, 1))])
    label = np.eye(4)[y]
    theta, rate = np.zeros((4, 65)), 4 / np.linalg.norm(x, 2) ** 2 * 400
    v = theta
    for i in range(6000):  # Nesterov's method
        z = v @ x.T
        p = np.exp(z - z.max(axis=0))
        p /= p.sum(axis=0)
        gradient = (p - label.T) @ x / 400 + decay * v
        after = v - rate / 4 * gradient
        v, theta = after + i / (i + 3) * (after - theta), after
    assert np.abs(gradient).max() < 1e-9
    return theta


def test_fednova_removes_the_bias_of_unequal_steps(two_daemons):
    """Clients of one to nineteen steps and other classes: FedAvg goes to the optimum of a sum in which many steps count twice."""
    c, decay = two_daemons, 0.1
    data = {'partition': 'inner-dirichlet', 'alpha': 0.1, 'clients': 8, 'sizes': [20, 20, 20, 20, 20, 30, 80, 190]}
    best = optimum(decay)
    away = {}
    for lr, rounds in ((0.02, 400), (0.01, 800)):
        for strategy in ('fedavg', 'fednova'):
            job, _ = c.run_job(model='logistic', rounds=rounds, data=data, aggregation={'strategy': strategy}, timeout=120,
                               training={'lr': lr, 'epochs': 1, 'batch': 10, 'weight_decay': decay}, evaluation={'every': 0})
            w, b = pulled(c, job).values()
            away[strategy, lr] = np.linalg.norm(np.hstack([w, b[:, None]]) - best)
    print(away)
    assert away['fednova', 0.01] < away['fedavg', 0.01] / 5, away
    assert away['fednova', 0.01] / away['fedavg', 0.01] < away['fednova', 0.02] / away['fedavg', 0.02], away
