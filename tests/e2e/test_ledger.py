# SPDX-License-Identifier: Apache-2.0
"""The server's ledger of data sets: it adds up jobs, clones and deleted jobs, survives restarts, refuses at submit what would pass a data set's
limit, and stops the job whose next release would."""
import json

import pytest

import mfl_harness as h
import mfl_wire as w

POISSON = {'data': {'partition': 'iid', 'clients': 40}, 'selection': {'kind': 'poisson', 'rate': 0.25}, 'limits': {'quorum': 0.1},
           'evaluation': {'every': 0}, 'model': 'logistic'}
PRIVACY = {'kind': 'central', 'clip': 0.05, 'noise': 1.5, 'epsilon_max': 30, 'delta': 1e-5}
OTHER = 'other=synthetic:1,8,8:4:400:80:2'


def spent(noise, rate, rounds, delta='1e-5'):
    join = ','.join
    return json.loads(h.mfl('privacy', '--sigma', join(map(str, noise)), '--q', join(map(str, rate)), '--rounds', join(map(str, rounds)),
                            '--delta', delta, '--json').stdout)['epsilon']


def ledger(c):
    return {s['data']: s for s in c.mfl_json('privacy', 'ledger')['data_sets']}


@pytest.fixture
def limited(tmp_path):
    with h.Cluster(tmp_path, config={'privacy_limits': {'tiny': {'epsilon': 3, 'delta': 1e-5}}}) as c:
        c.start_server()
        c.start_daemon('d1', data=(h.TINY, OTHER))
        c.wait_daemons(1)
        yield c
        c.check_alive()


def refused(c, **changes):
    with pytest.raises(w.Failure) as failure:
        c.submit(**changes)
    return str(failure.value)


def test_jobs_add_up_whatever_becomes_of_them(limited):
    c = limited
    assert ledger(c)['tiny'] == {'data': 'tiny', 'epsilon': 0.0, 'delta': 1e-5, 'epsilon_max': 3.0, 'releases': 0, 'jobs': []}
    first = c.submit('once', **POISSON, privacy=PRIVACY, rounds=5)
    c.wait_job(first)
    assert c.submit('once', **POISSON, privacy=PRIVACY, rounds=5) == first  # its answer was lost, say
    second, _ = c.run_job(**POISSON, privacy={**PRIVACY, 'noise': 2}, rounds=3)
    now = ledger(c)['tiny']
    assert [(j['job'], j['sigma'], j['rate'], j['releases']) for j in now['jobs']] == [(first, 1.5, 0.25, 5), (second, 2.0, 0.25, 3)]
    together = spent((1.5, 2), (0.25, 0.25), (5, 3))
    assert abs(now['epsilon'] - together) < 1e-6 and 2.5 < together < 3
    # A clone, and the same file again: together they would pass 3.
    with pytest.raises(w.Failure) as failure:
        c.operator().__enter__().request('clone_job', {'job': first})
    for text in (str(failure.value), refused(c, **POISSON, privacy=PRIVACY, rounds=5)):
        assert 'other jobs have spent epsilon %.4g' % together in text and "privacy_limits allow, 3" in text, text
    c.mfl('delete', first)
    c.server.kill()
    c.start_server()
    assert abs(ledger(c)['tiny']['epsilon'] - together) < 1e-6
    assert 'privacy_limits allow' in refused(c, **POISSON, privacy=PRIVACY, rounds=5)
    assert 'has no noise: add privacy' in refused(c)
    # Rounds that its own epsilon_max cuts off are not asked for, and other data sets are free.
    small = c.submit(**POISSON, privacy={**PRIVACY, 'noise': 5, 'epsilon_max': 0.35}, rounds=1000)
    c.wait_daemons(1)
    assert c.wait_job(small, state='stopped')['round'] > 1
    other = {**POISSON['data'], 'name': 'other'}
    c.run_job(**{**POISSON, 'data': other}, privacy=PRIVACY, rounds=3)
    assert ledger(c)['other']['releases'] == 3 and ledger(c)['other']['epsilon_max'] is None
    shown = c.mfl('privacy', 'ledger').stdout
    assert 'tiny: epsilon' in shown and 'of 3' in shown and 'no limit' in shown, shown


def test_nobody_waits_for_the_refusal(limited):
    """Whoever asks for what is refused, and is gone before the answer, changes nothing."""
    c = limited
    first = c.submit(**POISSON, privacy=PRIVACY, rounds=5)
    c.wait_job(first)
    for kind, body in (('clone_job', {'job': first}), ('submit', {'text': h.job_text(**POISSON, privacy=PRIVACY, rounds=6), 'file': 'job.yaml'})):
        with c.operator() as o:
            o.send(kind, body, 1)
    assert 'privacy_limits allow' in refused(c, **POISSON, privacy=PRIVACY, rounds=5)  # the disk worker has done the others by now
    c.check_alive()
    assert [j['job'] for j in c.operator().__enter__().jobs()] == [first]


def test_a_job_stops_before_the_release_that_would_pass(limited):
    """Each of two jobs is allowed alone, and they run side by side."""
    c = limited
    jobs = [c.submit(**POISSON, privacy={**PRIVACY, 'noise': 1.3}, rounds=4, seed=seed) for seed in (1, 2)]
    states = sorted(c.wait_info(job, lambda i: i['state'] in h.ENDED, 60, 'its end')['state'] for job in jobs)
    now = ledger(c)['tiny']
    assert 'stopped' in states, states
    stopped = [c.info(job) for job in jobs if c.info(job)['state'] == 'stopped']
    assert all('privacy_limits allow, 3' in i['reason'] for i in stopped), stopped
    assert 2.5 < now['epsilon'] <= 3 and now['releases'] == sum(c.info(job)['round'] for job in jobs)


def test_what_a_limit_may_be(tmp_path):
    for limits, words in (({}, 'expected data sets with limits'), ({'tiny': 8}, 'expected a mapping'), ({'tiny': {}}, "'epsilon' is missing"),
                          ({'tiny': {'epsilon': 99}}, 'epsilon'), ({'tiny': {'epsilon': 1, 'delta': 2}}, 'delta')):
        with h.Cluster(tmp_path, config={'privacy_limits': limits}) as c:
            server = c.start_server(ready=False)
            assert server.wait(10) == 78 and words in server.log(), server.log()
