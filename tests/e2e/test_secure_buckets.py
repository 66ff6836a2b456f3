# SPDX-License-Identifier: Apache-2.0
"""Secure sums of buckets: the rows of a robust rule are sums that the server opens, a bucket each. The model is that of the plain job with the
same buckets; a bucket that can't be opened has no row; daemons refuse smaller buckets, and the same update in another one."""
import pytest

import mfl_harness as h
from mfl_tap import TlsTap
from test_policy import LOCAL, Site
from test_secure import SUM, Below, Sites, data as data_of, lines
from test_secure_lies import Middle, STEP, refusals

BUCKETS = {'unit': 'bucket', 'bucket': 3}
RULES = [{'strategy': 'median'}, {'strategy': 'trimmed-mean', 'f': 1}, {'strategy': 'mean-around-median', 'f': 1}, {'strategy': 'rfa'},
         {'strategy': 'centered-clip', 'clip_radius': 'median'}, {'strategy': 'norm-filter', 'f': 1}, {'strategy': 'multi-krum', 'f': 0},
         {'strategy': 'dnc', 'f': 1}, {'strategy': 'flame'}, {'strategy': 'median', 'before': {'clip': 'median'}}]


def job_of(rule, **more):
    return {'data': LOCAL, 'rounds': 2, 'aggregation': {**rule, **BUCKETS}, 'evaluation': {'every': 0}, **more}


def digests(c, job):
    return [r['digest'].hex() for r in c.rounds(job)]


@pytest.fixture(scope='module')
def nine(tmp_path_factory):
    with Sites(tmp_path_factory.mktemp('nine'), 9) as c:
        c.start_server()
        yield c.start()
        c.check_alive()


@pytest.mark.parametrize('rule', RULES, ids=lambda r: r['strategy'] + '+clip' * ('before' in r))
def test_the_model_is_that_of_the_plain_buckets(nine, rule):
    seed = 100 + RULES.index(rule)  # other updates: the same ones may not be in other buckets
    plain, _ = nine.run_job(60, **job_of(rule, seed=seed))
    masked, _ = nine.run_job(60, secure_sum=SUM, **job_of(rule, seed=seed))
    assert digests(nine, masked) == digests(nine, plain)
    text = '\n'.join(lines(nine, masked))
    assert 'the secure sums of 3 buckets begin, of 9 daemons' in text and 'form a group' not in text  # each may be in another bucket
    for bucket in (1, 2, 3):
        assert text.count('secure sum of bucket %d: shares are opened' % bucket) == 2
    assert [(r['clients'], r['weight']) for r in nine.rounds(masked)] == [(9, 9)] * 2
    assert [r['samples'] for r in nine.rounds(masked)] == [r['samples'] for r in nine.rounds(plain)]


def test_the_rest_is_in_the_last_bucket_and_who_counted_least_is_told(nine):
    """Two buckets, of four and of five."""
    four = {'strategy': 'norm-filter', 'f': 0, 'unit': 'bucket', 'bucket': 4}
    job, _ = nine.run_job(60, secure_sum=SUM, **{**job_of({}, seed=200, rounds=1), 'aggregation': four})
    text = '\n'.join(lines(nine, job))
    assert 'the secure sums of 2 buckets begin, of 9 daemons' in text and [r['clients'] for r in nine.rounds(job)] == [9]
    job, _ = nine.run_job(60, secure_sum=SUM, **job_of({'strategy': 'norm-filter', 'f': 1}, seed=201, rounds=1))
    choice = nine.rounds(job)[0]['choice']
    assert choice.startswith('norm-filter: 2 of 3 counted; least: ') and choice.count(' + ') == 2, choice


def test_the_same_updates_are_in_no_other_bucket(nine):
    """A sum of all of them and the buckets' would be two sums with an update in common: each daemon refuses the second."""
    once = {'seed': 300, 'rounds': 1, 'secure_sum': SUM, 'limits': {'retries': 0}, 'evaluation': {'every': 0}, 'data': LOCAL}
    buckets = {'strategy': 'median', **BUCKETS}
    nine.run_job(60, **{**once, 'aggregation': buckets})
    nine.run_job(60, **{**once, 'aggregation': buckets})  # the same sums again tell nothing new
    info = nine.wait_job(nine.submit(**{**once, 'aggregation': {**buckets, 'bucket': 4}}), state='failed')
    assert 'was summed with other participants before' in info['reason'], info['reason']


def test_a_job_waits_for_a_bucket(tmp_path):
    with Sites(tmp_path, 4) as c:
        c.start_server()
        c.start()
        c.daemons['d2'].kill()
        job = c.submit(secure_sum=SUM, **{**job_of({}), 'aggregation': {'strategy': 'median', 'unit': 'bucket', 'bucket': 4}})
        c.wait_info(job, lambda i: '4' in i['reason'] and i['state'] == 'waiting', 30, 'the wait for a fourth daemon')
        c.start_daemon('d2', data=data_of(1))
        c.wait_job(job, 60)
        assert {r['clients'] for r in c.rounds(job)} == {4}


def test_below_a_relay(tmp_path):
    """It passes masked updates on, one for each daemon."""
    with Below(tmp_path, 6) as c:
        c.start_server()
        c.plant()
        plain, _ = c.run_job(60, **job_of({'strategy': 'median'}))
        masked, _ = c.run_job(60, secure_sum=SUM, **job_of({'strategy': 'median'}))
        assert digests(c, masked) == digests(c, plain) and {r['clients'] for r in c.rounds(masked)} == {6}
        assert 'the secure sums of 2 buckets begin, of 6 daemons' in c.mfl('logs', masked).stdout
        c.check_alive()


# ---- losses ----

STEPS = ('the secure sums of', 'shares are exchanged', 'masked updates are added', 'the survivors are signed')


@pytest.mark.parametrize('step', range(4))
def test_a_daemon_is_killed_at_each_step(tmp_path, step):
    """Of six in two buckets one is killed while another is slow. With three members a bucket's sum can't be opened without one of them: before
    the opening and after it the bucket has no row, and the other one is the model's. The round is never tried again."""
    with Sites(tmp_path, 6) as c:
        c.start_server()
        proxy = h.Proxy(c.address, delay=0.3)
        c.start(proxy.address)
        few = {'strategy': 'median', 'on_few': 'mean', **BUCKETS}
        job = c.submit(data=LOCAL, secure_sum=SUM, limits={'quorum': 0.5}, rounds=1, evaluation={'every': 0}, aggregation=few)
        if step == 3:
            h.wait_until(lambda: any(STEPS[2] in line for line in lines(c, job)), 30, STEPS[2])
            proxy.delay = 2  # on a busy machine its bucket may be opened before it is killed
        h.wait_until(lambda: any(STEPS[step] in line for line in lines(c, job)), 30, STEPS[step])
        c.daemons.pop('d6').kill()  # the slow one: its bucket can't be done before
        c.wait_job(job, 60)
        text = '\n'.join(lines(c, job))
        assert [(r['clients'], r['weight']) for r in c.rounds(job)] == [(3, 3)], text
        assert 'of 3 clients has no row: ' in text and text.count('shares are opened') == 1 and 'round 1 is skipped' not in text
        proxy.close()


def test_a_loss_in_a_larger_bucket(tmp_path):
    """Of four members three are enough. The bucket's row is the mean of its survivors: with one bucket alone, that of the plain job over them."""
    with Sites(tmp_path, 4) as c:
        c.start_server()
        proxy = h.Proxy(c.address, delay=0.3)
        c.start(proxy.address)
        once = {'data': LOCAL, 'rounds': 1, 'evaluation': {'every': 0}, 'aggregation': {'strategy': 'median', 'unit': 'bucket', 'bucket': 4}}
        job = c.submit(secure_sum=SUM, limits={'quorum': 0.5}, **once)
        h.wait_until(lambda: any(STEPS[0] in line for line in lines(c, job)), 30, STEPS[0])
        c.daemons.pop('d4').kill()
        c.wait_job(job, 60)
        assert [(r['clients'], r['weight']) for r in c.rounds(job)] == [(3, 3)], lines(c, job)
        _, plain = c.run_job(60, **once)
        assert digests(c, job) == plain
        proxy.close()


def test_too_few_rows_end_the_job(tmp_path):
    with Sites(tmp_path, 6) as c:
        c.start_server()
        c.start()
        job = c.submit(data=LOCAL, secure_sum=SUM, rounds=1, evaluation={'every': 0}, aggregation={'strategy': 'median', 'f': 1, **BUCKETS})
        info = c.wait_job(job, 60, state='failed')
        assert 'f: 1' in info['reason'] and '2' in info['reason'], info['reason']


def test_the_server_is_killed_while_buckets_are_opened(tmp_path):
    """No bucket of that round is ever summed again, whether it was opened or not."""
    with Sites(tmp_path, 6) as c:
        c.start_server()
        proxy = h.Proxy(c.address, delay=0.5)
        c.start(proxy.address)
        job = c.submit(data=LOCAL, secure_sum=SUM, rounds=2, evaluation={'every': 0}, aggregation={'strategy': 'median', **BUCKETS},
                       selection={'daemons': {'min': 6}})
        h.wait_until(lambda: any('survivors are signed' in line for line in lines(c, job)), 30, 'a bucket that is being opened')
        c.server.kill()
        c.start_server()
        c.wait_job(job, 90)
        assert [r['clients'] for r in c.rounds(job)] == [0, 6], lines(c, job)
        assert any('round 1 is skipped' in line for line in lines(c, job))
        proxy.close()


# ---- lies ----

def smaller(_, name, body):
    return {**body, 'parts': body['parts'][:3]}


def test_a_bucket_smaller_than_the_job_says_is_refused(tmp_path):
    """A server that shows a daemon fewer participants than a bucket has would learn a sum of fewer."""
    middle = Middle(PEERS=smaller)
    with Sites(tmp_path, 4) as c:
        c.start_server()
        tap = TlsTap(c.address, c.ca, (c.cert, c.key), middle)
        sites = [Site(c, name, sets=data_of(i), server=tap.address, node='n%d' % i).start() for i, name in enumerate(c.names)]
        c.wait_daemons(4, 20)
        job = c.submit(data=LOCAL, secure_sum=SUM, rounds=1, limits={'retries': 0}, evaluation={'every': 0},
                       aggregation={'strategy': 'median', 'unit': 'bucket', 'bucket': 4})
        c.wait_job(job, 60, state='failed')
        told = [line['reason'] for site in sites for line in refusals(site, job)]
        assert sum('a bucket of 3 participants, and the job\'s has 4' in reason for reason in told) == 3, told
        assert not middle.told('SHARES')
        tap.close()
        c.check_alive()


def test_a_daemon_is_shown_two_buckets(tmp_path):
    """Once it has the keys of one bucket, those of another are out of turn: it leaves, and opens nothing."""
    class Twice(Middle):
        def __call__(self, name, up, kind, body):
            if kind == 'secure' and not up and body['step'] == STEP['MASK'] and name == 'd1':
                self.heard.append((name, up, body['step']))
                return {**body, 'step': STEP['PEERS'], 'parts': self.other}
            if kind == 'secure' and not up and body['step'] == STEP['PEERS'] and name != 'd1':
                self.other = body['parts']
            return super().__call__(name, up, kind, body)
    middle = Twice()
    with Sites(tmp_path, 6) as c:
        c.start_server()
        tap = TlsTap(c.address, c.ca, (c.cert, c.key), middle)
        sites = [Site(c, name, sets=data_of(i), server=tap.address, node='n%d' % i).start() for i, name in enumerate(c.names)]
        c.wait_daemons(6, 20)
        job = c.submit(data=LOCAL, secure_sum=SUM, rounds=1, limits={'quorum': 0.5}, evaluation={'every': 0},
                       aggregation={'strategy': 'median', 'on_few': 'mean', **BUCKETS})
        c.wait_job(job, 60)
        assert 'comes when it is SHARED' in refusals(sites[0], job)[0]['reason']
        assert 'd1' not in middle.told('SIGNED') and 'd1' not in middle.told('OPENED')
        assert [r['clients'] for r in c.rounds(job)] == [3], lines(c, job)
        tap.close()
        c.check_alive()
