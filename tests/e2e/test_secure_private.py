# SPDX-License-Identifier: Apache-2.0
"""Noise and secure sums together: shares of noise that daemons add under their masks (kind: distributed), a server's noise on a sum that it
alone sees (kind: central), a site's on its own update (kind: local). tests/unit/server/test_secure_sum.c has the set that is too small."""
import json

import numpy as np
import pytest

import mfl_harness as h
from federated import pulled
from mfl_tap import TlsTap
from mfl_wire import ENUM_VALUE
from test_policy import LOCAL, Site
from test_secure import SUM, Sites, data
from test_site_noise import ledger

SHARED = {'kind': 'distributed', 'clip': 0.5, 'noise': 2.0, 'epsilon_max': 30, 'delta': 1e-5}
JOB = {'data': LOCAL, 'model': {'preset': 'mlp'}, 'secure_sum': SUM, 'evaluation': {'every': 0}, 'rounds': 2,
       'selection': {'daemons': {'min': 4}}, 'limits': {'quorum': 1.0}, 'training': {'lr': 0.05, 'epochs': 1, 'batch': 10}}


def gaussian(sigma, rounds):
    return json.loads(h.mfl('privacy', '--sigma', sigma, '--q', '1', '--rounds', rounds, '--delta', '1e-5', '--json').stdout)['epsilon']


@pytest.fixture
def lab(tmp_path):
    with Sites(tmp_path, 4) as c:
        c.start_server()
        c.sites = [Site(c, name, sets=data(i), node='n%d' % i).start() for i, name in enumerate(c.names)]
        c.wait_daemons(4, 20)
        yield c
        c.check_alive()


def spread(c, job):
    """The deviation of a job's params from those of the same job without noise."""
    noisy, plain = pulled(c, job), pulled(c, c.run_job(60, **{**JOB, 'rounds': 1, 'aggregation': {'weighting': 'uniform'}})[0])
    return np.std(np.concatenate([(noisy[k] - plain[k]).ravel() for k in noisy]))


def test_shares_of_noise(lab):
    """A mean of four has the noise of four shares, each of which is that of three, since one may be bad; the same updates get the same
    noise, and are counted once; figures of the data stay at the sites."""
    job, digest = lab.run_job(60, **{**JOB, 'rounds': 1}, privacy=SHARED)
    want = SHARED['noise'] * SHARED['clip'] * (4 / 3) ** .5 / 4
    assert abs(spread(lab, job) / want - 1) < 0.05
    again, same = lab.run_job(60, **{**JOB, 'rounds': 1}, privacy=SHARED)
    assert same == digest and [len(ledger(site)) for site in lab.sites] == [1] * 4
    two, _ = lab.run_job(60, **JOB, privacy=SHARED, seed=9)
    rounds = lab.mfl_json('show', two)['rounds']
    assert np.allclose([r['epsilon'] for r in rounds], [gaussian(1, 1), gaussian(1, 2)], atol=1e-3)
    assert [len(ledger(site)) for site in lab.sites] == [3] * 4
    assert all(r['clients'] == 4 and r['samples'] == 0 and not r['train_loss'] for r in rounds), rounds
    shown = lab.mfl('show', two).stdout
    assert 'distributed, clip 0.5, noise 2' in shown and 'losses' not in shown.split('privacy', 1)[1].split('private')[0], shown
    assert 'epsilon' in lab.sites[0].tell('budget')


def test_shares_are_fresh_beside_another_update(lab):
    """The same job, with other data at one site only: the difference of the two sums has the noise of all shares of both, not of that
    site's alone, and every site counts a second release."""
    job, _ = lab.run_job(60, **{**JOB, 'rounds': 1}, privacy=SHARED)
    lab.daemons.pop('d1').kill()
    lab.sites[0] = Site(lab, 'd1', sets=('tiny=synthetic:1,8,8:4:30:8:77',), node='n0').start()
    lab.wait_daemons(4, 20)
    other, _ = lab.run_job(60, **{**JOB, 'rounds': 1}, privacy=SHARED)
    assert [len(ledger(site)) for site in lab.sites] == [2] * 4
    a, b = pulled(lab, job), pulled(lab, other)
    share = SHARED['noise'] * SHARED['clip'] / 3 ** .5
    assert abs(np.std(np.concatenate([(a[k] - b[k]).ravel() for k in a])) / (share * 8 ** .5 / 4) - 1) < 0.05


@pytest.mark.parametrize('step', ['MASK', 'SURVIVORS'])
@pytest.mark.parametrize('victim', ['daemon', 'server'])
def test_shares_are_repeated_after_kills(tmp_path, victim, step):
    """kill -9 in the second round: when its sum is made again, it has the same noise, so the model and the ledgers are those of a job that was let
    alone. A server that may have opened it leaves it out, and the third round's updates, from the first one's params, are others."""
    with Sites(tmp_path, 4) as c:
        c.start_server()
        at, dead = [0], []

        def kill(name, up, kind, body):
            if kind == 'secure' and not up and name == 'd2' and body['step'] == ENUM_VALUE['SECURE_' + step]:
                at[0] += 1
                if at[0] == 2:
                    (c.daemons['d2'] if victim == 'daemon' else c.server).kill()
                    dead.append(victim)

        spec = {**JOB, 'rounds': 3, 'privacy': SHARED, 'limits': {'quorum': 1.0, 'retries': 20}}
        sites = [Site(c, name, sets=data(i), node='n%d' % i).start() for i, name in enumerate(c.names)]
        c.wait_daemons(4, 20)
        _, expected = c.run_job(60, **spec)
        before = [ledger(site) for site in sites]
        for site in sites:
            site.daemon.kill()
        tap = TlsTap(c.address, c.ca, (c.cert, c.key), kill)
        for site in sites:
            site.server = tap.address
            site.start()
        c.wait_daemons(4, 20)
        job = c.submit(**spec)
        h.wait_until(lambda: dead, 60, 'the kill')
        sites[1].start() if victim == 'daemon' else c.start_server()
        c.wait_job(job, 120)
        digests, rows = c.digests(job), [ledger(site) for site in sites]
        assert [len(r) for r in before] == [3] * 4
        if (victim, step) == ('server', 'SURVIVORS'):
            assert digests[:2] == [expected[0]] * 2 and [r['clients'] for r in c.rounds(job)] == [4, 0, 4]
            assert [r[:3] for r in rows] == before and [len(r) for r in rows] == [4] * 4
        else:
            assert digests == expected and rows == before
        tap.close()
        c.check_alive()


def test_a_site_without_a_place_for_its_key(tmp_path):
    with Sites(tmp_path, 3) as c:
        c.start_server()
        c.start()
        info = c.wait_job(c.submit(**{**JOB, 'selection': {}}, privacy=SHARED), state='failed')
        assert "this daemon's share of the noise needs a key" in info['reason'], info['reason']
        c.check_alive()


def test_a_budget_of_a_site(lab):
    """By its own ledger, whatever the job allows."""
    lab.daemons.pop('d1').kill()
    site = Site(lab, 'd1', sets=data(0), node='n0', epsilon_max=6).start()
    lab.wait_daemons(4, 20)
    assert gaussian(1, 1) < 6 < gaussian(1, 2)
    job, _ = lab.run_job(60, **{**JOB, 'rounds': 3, 'selection': {'daemons': {'min': 3}}, 'limits': {'quorum': 1.0, 'retries': 5}}, privacy=SHARED)
    assert [r['clients'] for r in lab.rounds(job)] == [4, 3, 3], lab.rounds(job)  # the others go on, with larger shares
    assert (job, 'refuses', 'epsilon_max') in site.said() and len(ledger(site)) == 1


@pytest.mark.parametrize('kind', ['central', 'local'])
def test_noise_of_the_server_or_of_a_site(lab, kind):
    privacy = {**SHARED, 'kind': kind, **({'clients': 4, 'noise': 8.0} if kind == 'central' else {})}
    job, _ = lab.run_job(60, **{**JOB, 'rounds': 1}, privacy=privacy)
    want = 8 * 0.5 / 4 if kind == 'central' else 2 * 0.5 / 2
    assert abs(spread(lab, job) / want - 1) < 0.05
    row = lab.mfl_json('show', job)['rounds'][0]
    assert abs(row['epsilon'] - gaussian(8 if kind == 'central' else 1, 1)) < 1e-3
    assert bool(row['train_loss']) == (kind == 'central')


@pytest.mark.parametrize('ring', [32, 48])
def test_a_sites_noise_in_a_narrow_ring(lab, ring):
    """A policy's clip and noise come before the grid, so that rounding takes nothing from them: of four sites one adds noise, and it is all there in
    the sum of each width. Jobs with privacy have a grid of their own, and are refused (below)."""
    lab.daemons.pop('d1').kill()
    site = Site(lab, 'd1', sets=data(0), node='n0', clip=0.5, noise=1.0).start()
    lab.wait_daemons(4, 20)
    narrow = {**JOB, 'rounds': 2, 'aggregation': {'weighting': 'uniform'}, 'compression': {'up': {'bits': 16}}, 'secure_sum': {'bits': ring}}
    job, _ = lab.run_job(60, **narrow)
    rounds, n = lab.rounds(job), sum(v.size for v in pulled(lab, job).values())
    assert [r['clients'] for r in rounds] == [4, 4] and len(ledger(site)) == 2
    assert ring / 8 * 4 * n <= rounds[1]['bytes_up'] < 1.05 * ring / 8 * 4 * n
    site.daemon.kill()
    lab.daemons.pop('d1')
    Site(lab, 'd1', sets=data(0), node='n0').start()
    lab.wait_daemons(4, 20)
    plain, _ = lab.run_job(60, **{**narrow, 'secure_sum': None, 'seed': narrow.get('seed', 7)})
    apart = np.std(np.concatenate([(a - b).ravel() for a, b in zip(pulled(lab, job).values(), pulled(lab, plain).values())]))
    want = 0.5 / 4 * 2 ** .5
    assert abs(apart / want - 1) < 0.1, (apart, want)


REFUSED = [
    ({'secure_sum': {'bits': 32}, 'compression': {'up': {'bits': 16}}}, {}, 'write secure_sum: {bits: 64}, without compression.up'),
    ({'secure_sum': {'bits': 48}, 'compression': {'up': {'bits': 32}}}, {'kind': 'local'}, 'write secure_sum: {bits: 64}, without compression.up'),
    ({'secure_sum': {'bits': 32}, 'compression': {'up': {'bits': 16}}}, {'kind': 'central', 'clients': 4},
     'write secure_sum: {bits: 64}, without compression.up'),
    ({'compression': {'up': {'bits': 16}}}, {}, "masked updates can't be packed; remove it"),
    ({'compression': {'up': 'lossless'}}, {'kind': 'local'}, "masked updates can't be packed; remove it"),
    ({'secure_sum': None}, {}, 'write secure_sum: {bits: 64}'),
    ({'secure_sum': {'bits': 32}}, {}, 'write secure_sum: {bits: 64}'),
    ({'limits': {'quorum': 0.1}}, {}, 'write a larger limits.quorum'),
    ({'selection': {'clients': 21}}, {}, 'write selection: {clients: 20}'),
    ({'evaluation': {'every': 1}}, {}, 'write evaluation: {every: 0}'),
    ({'aggregation': {'weighting': 'samples'}}, {}, 'must not count more'),
    ({}, {'clip': 'adaptive'}, 'adaptive is for kind: central'),
    ({}, {'clients': 4}, 'divided by the clients in them'),
    ({}, {'mechanism': 'bisr'}, 'write kind: central'),
    ({}, {'mechanism': 'bisr', 'kind': 'central', 'clients': 4}, 'separation'),
    ({'secure_sum': None, 'evaluation': {'every': 1}}, {'kind': 'local'}, 'metrics: plain'),
    ({}, {'metrics': 'hidden'}, "expected one of 'plain', 'withheld'"),
]


@pytest.mark.parametrize('job,privacy,words', REFUSED, ids=range(len(REFUSED)))
def test_what_does_not_go_together(tmp_path, job, privacy, words):
    path = tmp_path / 'job.yaml'
    doc = {k: v for k, v in {**JOB, 'privacy': {**SHARED, **privacy}, **job}.items() if v is not None}
    path.write_text(h.job_text(**doc))
    done = h.mfl('check', path, status=None)
    assert done.returncode != 0 and words in done.stderr, done.stderr
