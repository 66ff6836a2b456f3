# SPDX-License-Identifier: Apache-2.0
"""Noise in shares (privacy: {kind: distributed}) when a daemon or the server is killed at each step of the secure sum: what comes out has at least
the noise that the ledgers count, each site counts what it has masked, and one sum never gets two noises. A server in the middle knows the steps."""
import numpy as np
import pytest

import mfl_harness as h
from federated import pulled
from mfl_tap import TlsTap
from mfl_wire import ENUM_VALUE
from test_policy import Site
from test_secure import Sites, data
from test_secure_private import JOB, SHARED, gaussian
from test_site_noise import ledger

STEPS = ('PEERS', 'MASK', 'SURVIVORS', 'OPEN')  # of what a daemon is told: it has sent keys; shares; its masked update; its signature
NOISE = SHARED['noise'] * SHARED['clip']
LOST = {**JOB, 'rounds': 1, 'privacy': SHARED, 'selection': {'daemons': {'min': 5}}, 'limits': {'quorum': 0.8, 'retries': 3}}


class Steps:
    """Calls hit() once, when the daemon is about to be told that step."""

    def __init__(self, name, step, hit):
        self.name, self.step, self.hit, self.done = name, ENUM_VALUE['SECURE_' + step], hit, False

    def __call__(self, name, up, kind, body):
        if kind == 'secure' and not up and not self.done and name == self.name and body['step'] == self.step:
            self.done = True
            self.hit()


class Lab(Sites):
    def plant(self, step, hit):
        self.start_server()
        self.steps = Steps('d2', step, lambda: hit(self))
        self.tap = TlsTap(self.address, self.ca, (self.cert, self.key), self.steps)
        self.sites = [Site(self, name, sets=data(i), server=self.tap.address, node='n%d' % i).start() for i, name in enumerate(self.names)]
        self.wait_daemons(5, 20)
        return self

    def close(self):
        super().close()
        self.tap.close()


def spread(c, job, clients):
    """The deviation of the noise in the job's sum of that many clients, beside the model of the same daemons without noise."""
    noisy = pulled(c, job)
    plain = pulled(c, c.run_job(60, **{**LOST, 'privacy': None, 'secure_sum': None, 'aggregation': {'weighting': 'uniform'},
                                       'selection': {'daemons': {'min': clients}}})[0])
    return clients * np.std(np.concatenate([(noisy[k] - plain[k]).ravel() for k in noisy]))


@pytest.mark.parametrize('step', STEPS)
def test_a_daemon_is_killed_at_each_step(tmp_path, step):
    """Of five, four must be left, and one may be bad: a share is that of three. Who is lost before its update has come takes its share
    with it; later, its share is in the sum."""
    with Lab(tmp_path, 5) as c:
        c.plant(step, lambda c: c.daemons['d2'].kill())
        job = c.submit(**LOST)
        c.wait_job(job, 60)
        early = step in ('PEERS', 'MASK')
        clients = 4 if early else 5
        row = c.mfl_json('show', job)['rounds'][0]
        assert c.steps.done and row['clients'] == clients
        assert [len(ledger(site)) for site in c.sites] == [1, 0 if early else 1, 1, 1, 1]
        assert all(float(line[1]) == SHARED['noise'] / 2 for site in c.sites for line in ledger(site))
        assert abs(row['epsilon'] - gaussian(SHARED['noise'] / 2, 1)) < 1e-3
        c.daemons.pop('d2')
        if not early:
            c.sites[1].start()
            c.wait_daemons(5, 20)
        found = spread(c, job, clients)
        assert found > NOISE and abs(found / (NOISE * (clients / 3) ** .5) - 1) < 0.05, found


@pytest.mark.parametrize('step', STEPS)
def test_the_server_is_killed_at_each_step(tmp_path, step):
    """Before the survivors are signed the round is done again, with the same sum, the same noise, and no other line in a ledger. From there
    on nobody adds those updates again: the round is skipped, and counts."""
    with Lab(tmp_path, 5) as c:
        c.plant(step, lambda c: c.server.kill())
        job = c.submit(**{**LOST, 'rounds': 2})
        h.wait_until(lambda: c.steps.done and not c.server.alive(), 30, 'the kill')
        c.start_server()
        c.wait_job(job, 60)
        rounds = c.mfl_json('show', job)['rounds']
        skipped = step in ('SURVIVORS', 'OPEN')
        assert [r['clients'] for r in rounds] == ([0, 5] if skipped else [5, 5]), c.mfl('logs', job).stdout
        assert [len(ledger(site)) for site in c.sites] == [2] * 5
        assert np.allclose([r['epsilon'] for r in rounds], [gaussian(1, 1), gaussian(1, 2)], atol=1e-3)
        assert 'by 2 releases' in c.mfl('privacy', 'ledger').stdout
        if not skipped:  # undisturbed, it is the same model
            again, digests = c.run_job(60, **{**LOST, 'rounds': 2})
            assert [r['digest'].hex() for r in c.rounds(job)] == digests and [r['clients'] for r in c.rounds(again)] == [5, 5]
            assert [len(ledger(site)) for site in c.sites] == [2] * 5


def test_a_daemon_that_comes_back_repeats_its_share(tmp_path):
    """With quorum 1 nobody may be missing, so that the round waits for it, and is that of an undisturbed job."""
    whole = {**LOST, 'limits': {'quorum': 1.0, 'retries': 10}}
    with Lab(tmp_path, 5) as c:
        c.plant('SURVIVORS', lambda c: c.daemons['d2'].kill())
        c.steps.done = True
        _, digests = c.run_job(60, **whole)
        assert [len(ledger(site)) for site in c.sites] == [1] * 5
        c.steps.step, c.steps.done = ENUM_VALUE['SECURE_MASK'], False
        job = c.submit(**whole)
        h.wait_until(lambda: c.steps.done, 30, 'the kill')
        c.sites[1].start()
        c.wait_job(job, 90)
        assert [r['digest'].hex() for r in c.rounds(job)] == digests
        assert [len(ledger(site)) for site in c.sites] == [1] * 5
