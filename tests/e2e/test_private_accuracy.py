# SPDX-License-Identifier: Apache-2.0
"""DP-FedAvg on Fashion-MNIST, 2,000 clients, beside the same algorithm in numpy with draws and noise of its own: accuracies within a point over three
seeds, and epsilon as dp-accounting 0.6.0 has it. bench/private.py makes docs/privacy.md's table of the same runs."""
import functools
import math
import os
import sys

import numpy as np
import pytest

import mfl_harness as h
import mfl_needs
import mfl_tap

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'bench')
sys.path[:0] = [BENCH]
BUILD = os.path.dirname(os.path.dirname(h.program('mfl')))
NOISE, ROUNDS, SEEDS = 1, 200, (1, 2, 3)
EPSILON = 4.765920  # dp-accounting 0.6.0: sigma 1, q .05, 200 rounds, delta 1e-5


FASHION = '/usr/share/datasets/fashion-mnist'
pytestmark = pytest.mark.skipif(not os.path.isdir(FASHION), reason=mfl_needs.lack('Fashion-MNIST'))


class Bits(mfl_tap.Tap):
    """Of each round: clients, and how many were below the clip, in units of their own."""

    def __init__(self, target):
        self.rounds = []
        super().__init__(target)

    def _frame(self, source):
        kind, body, data = super()._frame(source)
        if kind == 'announce' and body['weight'] and body['bytes']:
            self.rounds.append((body['weight'], body['scalars'][0]))
        return kind, body, data


def test_half_of_the_changes_are_below_an_adaptive_clip(tmp_path):
    """Andrew et al. 2021: the share of changes below the clip goes to gamma = .5. Cohorts of about 100, rounds 31 to 50."""
    import private  # pylint: disable=import-outside-toplevel
    with h.Cluster(tmp_path) as c:
        c.start_server()
        tap = Bits(c.address)
        c.start_daemon('d1', data=['fashion-mnist=idx:' + FASHION], server=tap.address)
        c.wait_daemons(1)
        job = private.job(NOISE, 1, 50, 'adaptive')
        c.wait_job(c.submit(**{**job, 'evaluation': {'every': 0}}), 600)
        assert len(tap.rounds) == 50
        unit = functools.reduce(math.gcd, (bits for _, bits in tap.rounds))
        shares = [bits / unit / clients for clients, bits in tap.rounds]
        assert unit & (unit - 1) == 0 and max(shares) <= 1
        print('shares below the clip:', ' '.join('%.2f' % s for s in shares))
        assert abs(np.mean(shares[30:]) - 0.5) < 0.05, shares
        tap.close()


def test_accuracy_and_epsilon(tmp_path):
    import private  # pylint: disable=import-outside-toplevel
    data, ours, beside = private.Data(), [], []
    for seed in SEEDS:
        rows = private.benchlib.kept_run(BUILD, str(tmp_path / str(seed)), private.job(NOISE, seed, ROUNDS, private.CLIP), 1)
        ours.append(100 * float([r for r in rows if r['accuracy']][-1]['accuracy']))
        assert float(rows[-1]['epsilon']) == pytest.approx(EPSILON, abs=1e-3)
        beside.append(100 * private.by_numpy(data, NOISE, seed, ROUNDS, private.CLIP))
    assert abs(np.mean(ours) - np.mean(beside)) < 1, (ours, beside)
