# SPDX-License-Identifier: Apache-2.0
"""A site's clip, noise and budget: they hold whatever the job and the server say, the same value never gets two noises, and the
site's own ledger ends it over jobs, servers and restarts. Jobs with noise of kind local, which is made in the same place."""
import os
import stat

import numpy as np
import pytest

import mfl_harness as h
import mfl_tap
import mfl_wire as w
from test_policy import LOCAL, LyingServer, Site, refused

PLAIN = {'model': 'logistic', 'data': LOCAL, 'rounds': 3, 'evaluation': {'every': 0}, 'training': {'lr': 0.5, 'epochs': 1, 'batch': 10}}
BY_SERVER = {'kind': 'central', 'clip': 1, 'noise': 1.5, 'epsilon_max': 30, 'delta': 1e-5, 'clients': 5}
BY_SITE = {'kind': 'local', 'clip': 0.5, 'noise': 8.0, 'epsilon_max': 30, 'delta': 1e-5}


class Updates(mfl_tap.Tap):
    """Keeps the changes of one client that go up, as floats or as a weighted sum of integers."""

    def __init__(self, target):
        self.updates, self.scale = [], 0
        super().__init__(target)

    def _frame(self, source):
        kind, body, data = super()._frame(source)
        if kind == 'task':
            self.scale = body['scale_bits']
        if kind == 'announce' and body['weight'] and body['bytes']:
            assert len(body['data']) == body['bytes'], 'a small update comes inside of its announce'
            floats = body['encoding'] == w.ENUM_VALUE['ENCODING_F32']
            self.updates.append(np.frombuffer(body['data'], '<f4') if floats else
                                np.frombuffer(body['data'], '<i8') / 2.0 ** self.scale / body['weight'])
        return kind, body, data


def failure(server, task):
    """The daemon's refusal of that task."""
    while True:
        kind, body, _, _ = server.connection.recv()
        if kind == 'task_failed' and body['task'] == task:
            return kind, body


def ledger(site):
    with open(os.path.join(site.dir, 'ledger'), encoding='ascii') as f:
        return [line.split() for line in f]


@pytest.fixture
def cluster(tmp_path):
    with h.Cluster(tmp_path) as c:
        c.start_server()
        yield c
        c.check_alive()


def test_evaluations_are_answered_for_no_sample(cluster):
    """With noise the site's figures stay there; nobody calls it a liar for that, and the job goes on. `metrics: plain` lets them leave."""
    site = Site(cluster, clip=0.25, noise=4.0).start()
    cluster.wait_daemons(1)
    for data in (LOCAL, {}):
        job, _ = cluster.run_job(**{**PLAIN, 'rounds': 2, 'evaluation': {'every': 1}, 'data': data})
        assert all(not r['evaluated'] and not r['samples'] and not r['train_loss'] for r in cluster.rounds(job)), cluster.rounds(job)
    site.daemon.kill()
    Site(cluster, clip=0.25, noise=4.0, metrics='plain').start()
    cluster.wait_daemons(1)
    job, _ = cluster.run_job(**{**PLAIN, 'rounds': 1, 'evaluation': {'every': 1}})
    assert cluster.rounds(job)[0]['accuracy'] is not None and cluster.rounds(job)[0]['train_loss']


def test_validations_are_refused_with_the_reason(cluster):
    """Where a policy or the model's job keeps losses at the site, the asker is told so, and not that the samples are too few; so does the audit."""
    kinds = {'kinds': ['validate', 'foreign', 'stats'], 'min_samples': 3}
    noisy = Site(cluster, 'noisy', clip=0.25, noise=4.0, inquiries=kinds).start()
    open_site = Site(cluster, 'open', inquiries=kinds, sets=('tiny=synthetic:1,8,8:4:300:60:3',), node='n2').start()
    cluster.wait_daemons(2)
    job, _ = cluster.run_job(**{**PLAIN, 'rounds': 1, 'limits': {'quorum': 0.5}})
    cluster.mfl('pull', job, '-o', 'brought.safetensors')
    for model in (job, os.path.join(cluster.dir, 'brought.safetensors')):
        said = cluster.mfl_json('validate', model)['models'][0]['sites']
        assert {s['site']: s['status'] for s in said} == {'noisy': 'refused', 'open': 'answered'}, said
        assert 'metrics: withheld' in next(s['reason'] for s in said if s['site'] == 'noisy')
        line = noisy.audit()[-1]
        assert (line['decision'], line['rule']) == ('refuses', 'metrics') and 'with metrics: plain' in line['reason'], line
    cluster.mfl_json('data', 'stats', 'tiny', '--at', 'noisy')
    # the job's own word
    local, _ = cluster.run_job(**{**PLAIN, 'rounds': 1, 'privacy': BY_SITE})
    said = cluster.mfl('validate', local, '--at', 'open', status=1)
    assert 'privacy.metrics: withheld' in said.stderr, said.stderr
    assert (open_site.audit()[-1]['decision'], open_site.audit()[-1]['rule']) == ('refuses', 'metrics')


def test_noise_is_added_whatever_the_job_says(cluster):
    """A job without privacy: what leaves has the site's noise, of the site's clip. The same job again, after a kill and as another number,
    shows the same values and costs nothing. Another clip or another job is another release."""
    tap = Updates(cluster.address)
    site = Site(cluster, server=tap.address, clip=0.25, noise=4.0).start()
    cluster.wait_daemons(1)
    cluster.run_job(**PLAIN)
    first = list(tap.updates)
    assert len(first) == 3 and len(ledger(site)) == 3
    for update in first:
        assert len(update) > 200 and abs(np.std(update) - 1.0) < 5 / np.sqrt(2 * len(update)), np.std(update)
    assert stat.S_IMODE(os.stat(os.path.join(site.dir, 'site.noise.key')).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.join(site.dir, 'ledger')).st_mode) == 0o600
    site.daemon.kill()
    site.start()
    cluster.wait_daemons(1)
    cluster.run_job(**PLAIN)
    assert len(tap.updates) == 6 and len(ledger(site)) == 3
    assert all(np.array_equal(a, b) for a, b in zip(first, tap.updates[3:]))
    cluster.run_job(**PLAIN, seed=99)
    assert len(ledger(site)) == 6
    assert 'tiny: 6 releases, epsilon' in site.tell('budget')
    tap.close()


def test_updates_are_clipped_whatever_the_job_says(cluster):
    tap = Updates(cluster.address)
    Site(cluster, server=tap.address, clip=0.01).start()
    cluster.wait_daemons(1)
    cluster.run_job(**PLAIN)
    norms = [float(np.linalg.norm(u.astype(np.float64))) for u in tap.updates]
    assert len(norms) == 3 and all(0.0099 < n <= 0.01 for n in norms), norms
    tap.close()


def test_a_ledger_ends_a_site_over_servers_and_restarts(tmp_path):
    """The job may go on forever by its own file. Seven releases of sigma 3 (noise 6 over distance 2) cost epsilon 3.79, eight 4.09."""
    policy = {'clip': 0.25, 'noise': 6.0, 'epsilon_max': 4.0}
    with h.Cluster(tmp_path / 'one') as c:
        c.start_server()
        site = Site(c, **policy).start()
        c.wait_daemons(1)
        c.run_job(**PLAIN)
        site.daemon.kill()
        site.start()
        job = c.submit(**{**PLAIN, 'rounds': h.ENDLESS, 'seed': 5})
        info = c.wait_job(job, state='failed')
        assert "this site's policy allows 4" in info['reason'], info['reason']
        assert len(ledger(site)) == 7
        assert site.said()[-1] == (job, 'refuses', 'epsilon_max')
        kept = site.dir
        site.daemon.kill()
    with h.Cluster(tmp_path / 'two') as c:
        c.start_server()
        site = Site(c, **policy)
        os.rename(kept, site.dir)
        site.start()
        c.wait_daemons(1)
        info = c.wait_job(c.submit(**PLAIN, seed=6), state='failed')
        assert "this site's policy allows 4" in info['reason'], info['reason']
        assert len(ledger(site)) == 7


def test_a_server_that_goes_on_beyond_what_it_promised(tmp_path):
    """The server's noise of 1.5 in each round: epsilon 8 has room for 6 of them, whatever rounds and params it names."""
    with h.Cluster(tmp_path) as c:
        server = LyingServer()
        site = Site(c, server=server.address, epsilon_max=8).start()
        server.accept()
        server.spec(data=LOCAL, privacy=BY_SERVER)
        for i in range(7):
            server.order(participants=5, round=1 + i // 2)
        assert refused(failure(server, server.number), "this site's policy allows 8")
        assert [row[3] for row in ledger(site)] == ['1', '1', '2', '2', '3', '3']
        server.spec(job='j-000002', data=LOCAL, privacy=BY_SERVER)
        server.order(participants=5, job='j-000002', round=1)
        assert refused(failure(server, server.number), "this site's policy allows 8")
        server.spec(job='j-000003', data=LOCAL)
        server.order(participants=5, job='j-000003')
        assert refused(failure(server, server.number), 'add privacy to the job')
        assert [d for _, d, _ in site.said()][-3:] == ['refuses'] * 3
        site.daemon.kill()


# ---- kind: local ----

def test_local_noise(cluster):
    """Three sites: the model is the mean of noisy updates, epsilon is the Gaussian mechanism's, and a daemon without a place for a key
    takes no part."""
    taps = [Updates(cluster.address) for _ in range(3)]
    sites = [Site(cluster, 'site-%d' % i, sets=('tiny=synthetic:1,8,8:4:80:40:%d' % i,), server=tap.address, node='n%d' % i).start()
             for i, tap in enumerate(taps)]
    cluster.start_daemon('open', data=('tiny=synthetic:1,8,8:4:80:40:9',), node='n9')
    cluster.wait_daemons(4)
    job = cluster.submit(**PLAIN, privacy=BY_SITE, limits={'retries': 3})
    info = cluster.wait_job(job)
    shown = cluster.mfl('show', job).stdout
    assert 'local, clip 0.5, noise 8' in shown and 'not private' in shown.lower(), shown
    rounds = cluster.mfl_json('show', job)['rounds']
    assert {r['clients'] for r in rounds} == {3} and info['round'] == 3
    # sigma 4, 4 / sqrt(2), 4 / sqrt(3)
    assert np.allclose([r['epsilon'] for r in rounds], [0.92634, 1.35647, 1.69804], atol=2e-5), [r['epsilon'] for r in rounds]
    for tap, site in zip(taps, sites):
        assert len(ledger(site)) == 3
        for update in tap.updates:
            assert abs(np.std(update) / 4 - 1) < 5 / np.sqrt(2 * len(update))
        tap.close()
    assert 'a place for it, policy: {dir: DIR}' in cluster.mfl('logs', job).stdout


def test_local_noise_is_repeated_after_kills(cluster):
    """Server and daemons are killed in the middle: the model, and what each site has written down, are those of a job that was let
    alone."""
    sites = [Site(cluster, 'site-%d' % i, sets=('tiny=synthetic:1,8,8:4:80:40:%d' % i,)).start() for i in range(2)]
    cluster.wait_daemons(2)
    spec = {**PLAIN, 'privacy': BY_SITE, 'rounds': 12, 'selection': {'daemons': {'min': 2}}, 'limits': {'retries': 50}}
    _, expected = cluster.run_job(**spec)
    before = [ledger(site) for site in sites]
    job = cluster.submit(**spec)
    rng = h.seeded('site-noise')
    for i in range(4):
        cluster.wait_info(job, lambda info, i=i: info['round'] >= 2 * i or info['state'] == 'done', 30, 'some rounds')
        if rng.random() < 0.5:
            cluster.server.kill()
            cluster.start_server()
        else:
            sites[i % 2].daemon.kill()
            sites[i % 2].start()
    cluster.wait_job(job, 60)
    assert cluster.digests(job) == expected
    assert [ledger(site) for site in sites] == before
    assert [len(rows) for rows in before] == [12, 12]
