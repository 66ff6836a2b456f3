# SPDX-License-Identifier: Apache-2.0
"""Regions are the paper's algorithm, recomputed in numpy from the seed, and one model whatever daemons and relays there are and whatever
is killed. Servers that lie, and rules that compare servers. A root data set of its own."""
import hashlib
import re

import numpy as np
import pytest

import robust
from federated import SHUFFLE, Average, Momentum, Nesterov, Stream, federated_average, parts_of, pulled, synthetic, train_locally, uniform_init
from mfl_harness import wait_until
from mfl_relay import Tree

CLIENTS, SEED = 9, 31
TRAINING = {'lr': 0.1, 'epochs': 1, 'batch': 10}
REGION, SERVER = 150, 151  # common/base/rng.h
FIRST_LIAR = Stream(SEED, SERVER, 0, 0).shuffled(range(5))[0]
LIARS = sorted(Stream(SEED, SERVER, 0, 0).shuffled(range(5))[:2])


@pytest.fixture(scope='module')
def two_daemons(shared_cluster):
    c = shared_cluster(2, config={'allow_simulation': 'true'})
    c.wait_daemons(2)
    return c


def begin(c, rounds=5, **more):
    return c.submit(model='logistic', seed=SEED, rounds=rounds, data={'clients': CLIENTS}, training=TRAINING, **more)


def hierarchical(count, every, rounds=5, server=Average, turns=None):
    """Liu et al. 2020, algorithm 1, with a server's step for each region: the model of each round is what the regions would meet at."""
    x, y = synthetic((1, 8, 8), 4, 400, 1, 0)
    parts = [part for part, _ in parts_of(SEED, 400, CLIENTS)]
    start = uniform_init(SEED, 0, 256, 64).reshape(4, 64), uniform_init(SEED, 1, 4, 64)
    models, steps, weights = [start] * count, [(server(), server()) for _ in range(count)], np.zeros(count)
    for r in range(1, rounds + 1):
        for e in range(count):
            moved, n = [0, 0], 0
            for k in range(CLIENTS):
                if k * count // CLIENTS != e or (turns and k not in turns(r)):
                    continue
                order = Stream(SEED, SHUFFLE, k, r * 65536).shuffled(parts[k])
                batches = [order[at:at + 10] for at in range(0, len(order), 10)]
                trained = train_locally(*models[e], x, y, batches, 0.1, lambda: Momentum(0))
                moved = [moved[i] + len(order) * (trained[i] - models[e][i]) for i in (0, 1)]
                n += len(order)
            weights[e] += n
            if n:
                models[e] = tuple(models[e][i] + steps[e][i].step(moved[i] / n, r) for i in (0, 1))
        met = tuple(sum(weights[e] * models[e][i] for e in range(count)) / weights.sum() for i in (0, 1))
        if r % every == 0:
            models, weights = [met] * count, np.zeros(count)
    return met


def compare(c, job, want):
    c.wait_job(job, 60)
    got = pulled(c, job).values()
    # As for FedAvg: float training, 1e-5.
    assert all(np.abs(g - w).max() < 1e-5 for g, w in zip(got, want))


def test_regions_are_the_algorithm(two_daemons):
    """Also where the last round is between meetings, and with an optimizer of each region's own."""
    c = two_daemons
    jobs = [(begin(c, edges={'count': 4, 'rounds': 2}), hierarchical(4, 2)), (begin(c, edges={'count': 3, 'rounds': 5}), hierarchical(3, 5)),
            (begin(c, edges={'count': 3}), hierarchical(3, 1)),
            (begin(c, edges={'count': 2, 'rounds': 3}, aggregation={'strategy': 'fedavgm', 'nesterov': True}),
             hierarchical(2, 3, server=lambda: Nesterov(1, 0.9)))]
    for job, want in jobs:
        compare(c, job, want)
    # The paper's regions give another model than one mean of all.
    assert np.abs(jobs[0][1][0] - hierarchical(1, 1)[0]).max() > 1e-4
    told = [r['choice'] for r in c.rounds(jobs[0][0])]
    assert re.fullmatch(r'edge round 1 of 2(; region [0-3]: [23] clients [0-9a-f]{8}){4}', told[0])
    assert told[1] == 'edge round 2 of 2, the regions meet; region 0: 3 clients; region 1: 2 clients; region 2: 2 clients; region 3: 2 clients'


@pytest.mark.parametrize('aggregation', [{}, {'strategy': 'fedadam'}, {'strategy': 'fedprox', 'weighting': 'uniform'}], ids=['fedavg', 'adam', 'prox'])
def test_one_region_is_no_region(two_daemons, aggregation):
    """Bit for bit, and whatever `rounds` is."""
    c = two_daemons
    jobs = [begin(c, aggregation=aggregation), begin(c, aggregation=aggregation, edges={'count': 1}),
            begin(c, aggregation=aggregation, edges={'count': 1, 'rounds': 3})]
    for job in jobs:
        c.wait_job(job, 60)
    digests = [c.digests(job) for job in jobs]
    assert digests[0] == digests[1] == digests[2]


DIGESTS = [{'edges': {'count': 4, 'rounds': 2}}, {'edges': {'count': 3, 'rounds': 4}, 'aggregation': {'strategy': 'fedadam'}, 'selection': {'clients': 4}},
           {'edges': {'count': 5}, 'aggregation': {'strategy': 'median', 'f': 2, 'unit': 'server'},
            'simulation': {'servers': {'attack': 'delayed', 'share': 0.4}}}]


def test_one_digest_for_any_daemons_and_kills(cluster, two_daemons, tmp_path_factory):
    """Also under relays; the server is killed between meetings."""
    jobs = [begin(two_daemons, **spec) for spec in DIGESTS]
    for job in jobs:
        two_daemons.wait_job(job, 60)
    want = [two_daemons.digests(job) for job in jobs]
    c = cluster(4, config={'allow_simulation': 'true'})
    c.wait_daemons(4)
    jobs = [begin(c, **spec) for spec in DIGESTS]
    for r in (1, 2, 3):
        c.wait_info(jobs[0], lambda info: info['round'] >= r or info['state'] == 'done', 30, 'a round')
        c.server.kill()
        c.start_server()
    for job in jobs:
        c.wait_job(job, 90)
    assert [c.digests(job) for job in jobs] == want
    c = Tree(tmp_path_factory.mktemp('tree'), config={'allow_simulation': 'true'})
    try:
        c.start_server()
        c.plant({'a': 1, 'a-b': 2})
        jobs = [begin(c, **spec) for spec in DIGESTS]
        for job in jobs:
            c.wait_job(job, 60)
        assert [c.digests(job) for job in jobs] == want
    finally:
        c.close()


def site_region(name, count):
    """Of a daemon without a site."""
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], 'little')
    return Stream(SEED, REGION, key, 0).below(count)


def test_sites_are_drawn_into_regions(cluster):
    """By their names: a region that no site falls into stays as it was, and does not count."""
    c, names, count = cluster(0), ['site%d' % i for i in range(2, 6)], 3
    for i, name in enumerate(names):
        c.start_daemon(name, data=['tiny=synthetic:1,8,8:4:100:20:%d' % (i + 1)])
    c.wait_daemons(4)
    job = c.submit(model='logistic', seed=SEED, rounds=2, data={'partition': 'local', 'clients': None}, training=TRAINING,
                   selection={'daemons': {'min': 4}, 'clients': 4}, edges={'count': count, 'rounds': 3})
    c.wait_job(job, 60)
    sites = [site_region(name, count) for name in names]
    assert len(set(sites)) == 2
    for r in c.rounds(job):
        told = re.findall(r'region (\d): (\d) clients? ([0-9a-f]{8})', r['choice'])
        assert [int(n) for _, n, _ in told] == [sites.count(e) for e in range(count)]
        assert len({digest for _, _, digest in told}) == count


# -- servers --

def servers(x, within):
    groups = [[k for k in range(CLIENTS) if k * 5 // CLIENTS == e] for e in range(5)]
    return np.array([within(x[g]) for g in groups]).astype(np.float32).astype(np.float64)


def by_servers(rule, within=lambda x: x.mean(axis=0), attack=lambda x, r: x):
    def method(clients, r, _):
        x = np.array([np.concatenate([part.ravel() for part in c.d]) for c in clients])
        d = robust.aggregate(attack(servers(x, within), r), rule)
        cut = clients[0].d[0].size
        return d[:cut].reshape(clients[0].d[0].shape), d[cut:]
    return federated_average(seed=SEED, rounds=5, clients=CLIENTS, lr=lambda r: 0.1, batch=10, optimizer=lambda: Momentum(0), method=method)[:2]


def flipped(x, r):
    x[LIARS] *= -10
    return x


def delayed():
    kept = {}

    def attack(x, r):
        for e in LIARS if r >= 2 else []:
            x[e], kept[e] = kept.get(e, 0 * x[e]), x[e].copy()
        return x
    return attack


def test_servers_that_lie(two_daemons):
    c, rule = two_daemons, {'strategy': 'trimmed-mean', 'f': 2}
    lie = {'attack': 'sign-flip', 'scale': 10, 'share': 0.4}
    krum = {'strategy': 'multi-krum', 'f': 1}
    jobs = [(begin(c, edges={'count': 5}, aggregation={**rule, 'unit': 'server'}), by_servers(rule)),
            (begin(c, edges={'count': 5, 'within': 'median'}, aggregation={**krum, 'unit': 'server'}), by_servers(krum, robust.median)),
            (begin(c, edges={'count': 5}, aggregation={**rule, 'unit': 'server'}, simulation={'servers': lie}), by_servers(rule, attack=flipped)),
            (begin(c, edges={'count': 5}, aggregation={**rule, 'unit': 'server'}, simulation={'servers': {'attack': 'delayed', 'share': 0.4, 'from': 2}}),
             by_servers(rule, attack=delayed()))]
    for job, want in jobs:
        compare(c, job, want)
    assert c.rounds(jobs[2][0])[0]['choice'].startswith('servers: sign-flip: 2 bad; trimmed-mean: ')
    job = begin(c, edges={'count': 5}, aggregation={'strategy': 'krum', 'f': 1, 'unit': 'server'}, simulation={'servers': {'attack': 'random', 'scale': 9, 'share': 0.2}})
    c.wait_job(job, 60)
    assert 'krum: 1 of 5 counted; least: server %d score' % FIRST_LIAR in c.rounds(job)[0]['choice']
    both = begin(c, edges={'count': 5}, aggregation={**rule, 'unit': 'server'}, simulation={'attack': 'lazy', 'share': 0.2, 'servers': {'attack': 'noise', 'share': 0.2}})
    c.wait_job(both, 60)
    assert c.rounds(both)[0]['choice'].startswith('attack lazy: 2 bad; servers: noise: 1 bad; trimmed-mean')
    log = c.mfl('logs', both).stdout
    assert re.search(r'simulation: lazy by 2 of 9 clients: \d, \d\n', log) and re.search(r'simulation: noise by 1 of 5 servers: %d\n' % FIRST_LIAR, log)


# -- the root's data --

def spilled(c):
    """Bytes of the server's files of single updates."""
    with open('/proc/%d/maps' % c.server.pid) as maps:
        ranges = [line.split()[0].split('-') for line in maps if '/spill-' in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in ranges)


def test_a_root_with_data_of_its_own(cluster):
    """Its daemon trains on them, and needs no others. The disk has room for as many updates as a round may have."""
    c = cluster(0)
    c.start_daemon('judge', data=['trusted=synthetic:1,8,8:4:60:20:9'])
    c.wait_daemons(1)
    local = {'model': 'logistic', 'rounds': 2, 'seed': SEED, 'data': {'partition': 'local', 'clients': None}, 'training': TRAINING,
             'selection': {'daemons': {'min': 4}, 'clients': 4}}
    job = c.submit(aggregation={'strategy': 'fltrust', 'root': {'daemon': 'judge', 'data': 'trusted'}}, **local)
    c.wait_info(job, lambda info: info['reason'] == 'no daemon with data set tiny is connected; offered: trusted', 30, 'what it waits for')
    for i in range(3):
        c.start_daemon('site%d' % i, data=['tiny=synthetic:1,8,8:4:100:20:%d' % (i + 1)])
        if i == 0:
            assert wait_until(lambda: spilled(c), 30, 'the file of updates') == 4 * 4096  # a page for the 260 floats of each
    c.wait_job(job, 60)
    assert all(r['clients'] == 4 for r in c.rounds(job))
    shown = c.mfl_json('show', job, '--partition')['partition']['shown']
    assert {s['daemon']: s['samples'] for s in shown} == {'site0': 100, 'site1': 100, 'site2': 100, 'judge': 60}
