# SPDX-License-Identifier: Apache-2.0
"""Secure sums of three and five daemons, and in the nightly tests of 16 and 40 (MFL_SECURE_SIZES), when none, 10% or 30% of them are killed at each step: the
model is that of the plain job over the same survivors, bit for bit, or the round is skipped. tests/unit/server/test_secure_sum.c has 3 to 40
members."""
import math
import os

import pytest

from mfl_tap import TlsTap
from mfl_wire import ENUM_VALUE
from test_policy import LOCAL
from test_secure import SUM, Sites, data, lines

STEPS = ('PEERS', 'MASK', 'SURVIVORS', 'OPEN')  # of what a daemon is told: it has sent keys; shares; its masked update; its signature
SIZES = [int(n) for n in os.environ.get('MFL_SECURE_SIZES', '5').split()]
CASES = [(n, share, step) for n in SIZES for share in (0, .1, .3) for step in (STEPS if share else ('OPEN',))]
CASES += [(3, .3, step) for step in STEPS[2:]] if 5 in SIZES else []  # three are never too many: any loss in the opening skips the round
JOB = {'data': LOCAL, 'rounds': 1, 'evaluation': {'every': 0}}


class Killer:
    """Kills each of the named daemons when it is about to be told the step."""

    def __init__(self, c, names, step):
        self.c, self.left, self.step = c, set(names), ENUM_VALUE['SECURE_' + step]

    def __call__(self, name, up, kind, body):
        if kind == 'secure' and not up and name in self.left and body['step'] == self.step:
            self.left.discard(name)
            self.c.daemons[name].kill()


@pytest.mark.parametrize('n,share,step', CASES)
def test_the_model_is_that_of_the_survivors(tmp_path, n, share, step):
    # Above 20 each daemon shares masks with some of the others, as many as the share that may be lost asks for.
    threshold, secure_sum = (2 * n // 3 + 1, SUM) if n <= 20 else (n - math.floor(.3 * n), dict(SUM, lost=.3))
    with Sites(tmp_path, n) as c:
        c.start_server()
        lost = c.names[1:1 + math.ceil(share * n)]
        killer = Killer(c, lost, step)
        tap = TlsTap(c.address, c.ca, (c.cert, c.key), killer)
        for i, name in enumerate(c.names):
            c.start_daemon(name, data=data(i), server=tap.address, node='host-of-' + name)
        c.wait_daemons(n, 60)
        _, whole = c.run_job(60, **JOB)
        job = c.submit(**JOB, secure_sum=secure_sum, limits={'quorum': 0.5}, selection={'daemons': {'min': 3}})
        c.wait_job(job, 120)
        assert not killer.left
        row = c.rounds(job)[0]
        for name in lost:
            c.daemons.pop(name)
        enough = n - len(lost) >= threshold
        if step in ('SURVIVORS', 'OPEN') and not enough:  # those updates are never summed again
            assert row['clients'] == 0 and any('round 1 is skipped' in line for line in lines(c, job)), lines(c, job)
        elif step in ('SURVIVORS', 'OPEN'):
            assert (row['clients'], row['digest'].hex()) == (n, whole[0]), lines(c, job)
        else:  # with too few, the round was tried again before anything was opened
            assert row['clients'] == n - len(lost), lines(c, job)
            _, plain = c.run_job(60, **JOB)
            assert row['digest'].hex() == plain[0]
        tap.close()
        c.check_alive()
