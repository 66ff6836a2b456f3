# SPDX-License-Identifier: Apache-2.0
"""Secure sums when a daemon or the server is killed at each step: a retry or a skipped round, never another sum of the same updates, and the
model of the survivors."""
import pytest

import mfl_harness as h
from test_policy import LOCAL
from test_secure import SUM, Sites, data, lines

STEPS = ('the secure sum of', 'shares are exchanged', 'masked updates are added', 'the survivors are signed')


def wait_step(c, job, step):
    h.wait_until(lambda: any(STEPS[step] in line for line in lines(c, job)), 30, STEPS[step])


@pytest.mark.parametrize('step', range(4))
def test_a_daemon_is_killed_at_each_step(tmp_path, step):
    """One daemon is slow, so that each step takes a while; another is killed in it. The first round that lacks it has the model of the
    survivors."""
    with Sites(tmp_path, 5) as c:
        c.start_server()
        proxy = h.Proxy(c.address, delay=0.2)
        c.start(proxy.address)
        job = c.submit(data=LOCAL, secure_sum=SUM, limits={'quorum': 0.5}, rounds=2, evaluation={'every': 0})
        wait_step(c, job, step)
        c.daemons['d2'].kill()
        c.wait_job(job, 60)
        rounds = c.rounds(job)
        assert [r['clients'] for r in rounds] == ([4, 4] if step == 0 else [5, 4]), lines(c, job)
        del c.daemons['d2']
        if step == 0:  # lost with its keys and shares shared: its pairs' masks are opened
            _, plain = c.run_job(60, data=LOCAL, rounds=2, evaluation={'every': 0})
            assert [r['digest'].hex() for r in rounds] == plain
        else:  # its update is in the sum
            c.start_daemon('d2', data=data(1))
            c.wait_daemons(5, 20)
            _, plain = c.run_job(60, data=LOCAL, rounds=1, evaluation={'every': 0})
            assert rounds[0]['digest'].hex() == plain[0]
        proxy.close()


@pytest.mark.parametrize('step', range(4))
def test_the_server_is_killed_at_each_step(tmp_path, step):
    """Before the opening, the round is done again; from there on it is skipped, and its params stay."""
    with Sites(tmp_path, 3) as c:
        c.start_server()
        c.start()
        skipped = step >= 2
        for delay in (0.2, 0.8, 2.4):  # on a busy machine the round may be over before the server is killed
            proxy = h.Proxy(c.address, delay=delay)
            c.daemons['d3'].kill()
            c.start_daemon('d3', data=data(2), server=proxy.address)
            c.wait_daemons(3, 20)
            job = c.submit(data=LOCAL, secure_sum=SUM, rounds=2, evaluation={'every': 0})
            wait_step(c, job, step)
            c.server.kill()
            c.start_server()
            c.wait_job(job, 90)
            rounds = c.rounds(job)
            proxy.close()
            if rounds[0]['clients'] == 0 or not skipped:
                break
        assert [r['clients'] for r in rounds] == ([0, 3] if skipped else [3, 3]), lines(c, job)
        assert any('round 1 is skipped' in line for line in lines(c, job)) == skipped


def test_more_than_twenty(tmp_path):
    """Above 20 daemons each shares masks with some of the others: 24 with 10 of them, of whom 8 must be left."""
    with Sites(tmp_path, 24) as c:
        c.start_server()
        proxy = h.Proxy(c.address, delay=0.2)
        c.start(proxy.address)
        job = c.submit(data=LOCAL, secure_sum=SUM, limits={'quorum': 0.5}, rounds=1, evaluation={'every': 0})
        wait_step(c, job, 0)
        c.daemons.pop('d24').kill()  # the slow one, so that it can't be done before
        c.wait_job(job, 60)
        assert [r['clients'] for r in c.rounds(job)] == [23], lines(c, job)
        _, plain = c.run_job(60, data=LOCAL, rounds=1, evaluation={'every': 0})
        assert [r['digest'].hex() for r in c.rounds(job)] == plain
        proxy.close()


def test_with_three_any_loss_waits_for_the_third(tmp_path):
    with Sites(tmp_path, 3) as c:
        c.start_server()
        c.start()
        c.daemons['d2'].kill()
        job = c.submit(data=LOCAL, secure_sum=SUM, limits={'quorum': 0.5})
        c.wait_info(job, lambda i: '3' in i['reason'] and i['state'] == 'waiting', 30, 'the wait for a third daemon')
        c.start_daemon('d2', data=data(1))
        c.wait_job(job)
        assert {r['clients'] for r in c.rounds(job)} == {3}


# ---- the deadline ----

def test_the_sum_begins_at_the_deadline(tmp_path):
    """Those that have trained are its participants, and have the time for it: the first attempt counts, with the model of the plain job over them.
    tests/sim/test_core_secure.c has what is under way at the end of a stage."""
    once = {'data': LOCAL, 'rounds': 1, 'evaluation': {'every': 0}}
    with Sites(tmp_path, 4) as c:
        c.start_server()
        proxy = h.Proxy(c.address)
        c.start(proxy.address)
        proxy.delay = 8  # d4's
        job = c.submit(secure_sum=SUM, limits={'quorum': 0.5, 'deadline': '4s'}, **once)
        c.wait_job(job, 60)
        assert [(r['clients'], r['attempt']) for r in c.rounds(job)] == [(3, 0)], lines(c, job)
        c.daemons.pop('d4').kill()
        _, plain = c.run_job(60, **once)
        assert [r['digest'].hex() for r in c.rounds(job)] == plain
        proxy.close()
