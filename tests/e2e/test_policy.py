# SPDX-License-Identifier: Apache-2.0
"""A site's policy: each rule refuses what it should, whatever the server says; the administrator's answers survive restarts of both
sides; every decision is in the audit log."""
import json
import os
import signal
import socket
import stat
import subprocess

import pytest

import mfl_certs
import mfl_harness as h
import mfl_wire as w
from mfl_tls import TlsCluster

OTHER = 'other=synthetic:1,8,8:4:400:80:2'
LOCAL = {'partition': 'local', 'clients': None}


class Site:
    """A daemon with a policy in a file."""

    def __init__(self, cluster, name='site', sets=(h.TINY, OTHER), server=None, node='n1', **policy):
        self.c, self.name, self.sets, self.server, self.node = cluster, name, sets, server, node
        self.dir = os.path.join(cluster.dir, name + '.d')
        self.config = cluster.write(name + '.yaml', h.yaml_of({'policy': {**policy, 'dir': self.dir}}))

    def start(self):
        self.daemon = self.c.start_daemon(self.name, data=self.sets, server=self.server, node=self.node,
                                          more=['--config', self.config])
        return self

    def audit(self):
        path = os.path.join(self.dir, self.name + '.audit.jsonl')
        if not os.path.exists(path):
            return []
        with open(path, encoding='utf-8') as f:
            return [json.loads(line) for line in f]

    def said(self):
        return [(line['job'], line['decision'], line['rule']) for line in self.audit()]

    def tell(self, *argv, status=0):
        done = subprocess.run([h.program('mfl-client'), *argv, '--config', self.config], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=20, check=False)
        assert done.returncode == status, (argv, done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr


@pytest.fixture
def cluster(tmp_path):
    with h.Cluster(tmp_path) as c:
        c.start_server()
        yield c
        c.check_alive()


# ---- what a site refuses ----

REFUSALS = [
    ('owners', {'owners': ['alice', 'bob']}, {}, "takes no jobs of 'local'"),
    ('data', {'data': ['other']}, {}, 'does not give data set tiny'),
    ('min_participants', {'min_participants': 9}, {}, 'only 8 of its 8 clients'),
    ('min_participants', {'min_participants': 8}, {'limits': {'quorum': 0.5}}, 'only 4 of its 8 clients'),
    ('min_participants', {'min_participants': 3}, {'selection': {'clients': 2}}, 'only 2 of its 2 clients'),
    ('min_participants', {'min_participants': 2}, {'data': LOCAL}, 'only 1 of its 1 clients'),
    ('strategies', {'strategies': ['fedavgm', 'fedprox']}, {}, 'refuses the strategy fedavg'),
    ('strategies_refused', {'strategies_refused': ['median']}, {'aggregation': {'strategy': 'median'}}, 'the strategy median'),
    ('rounds_max', {'rounds_max': 2}, {}, 'it has 3 rounds'),
    ('clip', {'clip': 1}, {'aggregation': {'strategy': 'scaffold'}}, 'clips every update'),
    ('noise', {'clip': 1, 'noise': 1}, {'aggregation': {'strategy': 'qfedavg'}}, 'adds noise to every update'),
    ('metrics', {'metrics': 'withheld'}, {'aggregation': {'strategy': 'qfedavg'}}, 'keeps losses here'),
    ('metrics', {'metrics': 'withheld'}, {'selection': {'kind': 'power-of-choice', 'clients': 2, 'candidates': 4}}, 'keeps losses here'),
    ('epsilon_max', {'epsilon_max': 8}, {'data': LOCAL}, 'add privacy to the job'),
    ('epsilon_max', {'epsilon_max': 8, 'clip': 1, 'noise': 9}, {}, 'write partition: local'),
    ('epsilon_max', {'epsilon_max': 0.1, 'clip': 1, 'noise': 9}, {'data': LOCAL}, "site's policy allows 0.1"),
    ('epochs_max', {'epochs_max': 1}, {'training': {'epochs': 2}}, 'it trains 2 epochs'),
    ('epochs_max', {'epochs_max': 1}, {'training': {'epochs': None, 'steps': 1}}, 'write training.epochs'),
]


@pytest.mark.parametrize('rule,policy,job,words', REFUSALS, ids=['%s-%d' % (r[0], i) for i, r in enumerate(REFUSALS)])
def test_each_rule_refuses(cluster, rule, policy, job, words):
    """The job that a rule refuses fails with the rule's words, as nobody else is there; the one that it allows is trained."""
    site = Site(cluster, **policy).start()
    cluster.wait_daemons(1)
    refused = cluster.submit(**job)
    info = cluster.wait_job(refused, state='failed')
    assert words in info['reason'] and 'daemon site' in info['reason'], info['reason']
    assert words in cluster.mfl('show', refused).stdout
    assert site.said() == [(refused, 'refuses', rule)]
    line = site.audit()[0]
    assert words in line['reason'] and line['daemon'] == 'site' and line['owner'] == 'local' and len(line['job_file_sha256']) == 64
    assert os.path.getsize(os.path.join(site.dir, 'site.audit.jsonl')) and \
        stat.S_IMODE(os.stat(os.path.join(site.dir, 'site.audit.jsonl')).st_mode) == 0o600


# What follows from the job file alone.
TOLD = [r for r in REFUSALS if 'of its 1 clients' not in r[3]]


@pytest.mark.parametrize('rule,policy,job,words', TOLD, ids=['%s-%d' % (r[0], i) for i, r in enumerate(TOLD)])
def test_submit_says_which_sites_refuse(cluster, rule, policy, job, words):
    """Before the job exists; the site writes nothing down for it, and decides again when there is work."""
    site = Site(cluster, **policy).start()
    cluster.start_daemon('free')
    cluster.wait_daemons(2)
    path = cluster.write('job.yaml', h.job_text(**job))
    done = cluster.mfl('submit', path, '--json')
    answer = json.loads(done.stdout)
    assert [r['site'] for r in answer['refusing']] == ['site'] and words in answer['refusing'][0]['reason']
    assert 'mfl: site would refuse this job: ' in done.stderr and words in done.stderr
    cluster.mfl('stop', answer['job'], status=None)
    assert not [line for line in site.audit() if not line['job']]


def test_submit_says_who_asks_and_who_is_silent(cluster):
    Site(cluster, ask=True).start()
    silent = cluster.start_daemon('silent')
    cluster.wait_daemons(2)
    path = cluster.write('job.yaml', h.job_text())
    os.kill(silent.pid, signal.SIGSTOP)
    try:
        err = cluster.mfl('submit', path).stderr
    finally:
        os.kill(silent.pid, signal.SIGCONT)
    assert "site asks this site's administrator about each job" in err
    assert 'silent has not said within a second' in err


def test_a_job_that_nobody_takes_is_not_submitted(cluster):
    site = Site(cluster, rounds_max=2, epsilon_max=0.1, clip=1, noise=9).start()
    cluster.wait_daemons(1)
    path = cluster.write('job.yaml', h.job_text(data=LOCAL))
    done = cluster.mfl('submit', path, '--json', status=5)
    assert 'site would refuse this job: it has 3 rounds' in done.stderr
    assert 'no connected site with tiny would take this job; use --anyway if others come later' in json.loads(done.stdout)['error']['text']
    assert not cluster.mfl_json('list')['jobs']
    assert not os.path.exists(os.path.join(site.dir, 'ledger')) or not os.path.getsize(os.path.join(site.dir, 'ledger'))
    cluster.start_daemon('free')
    cluster.wait_daemons(2)
    cluster.mfl('submit', path)


REFUSING = {'strategies_refused': ['fedavg']}


def hospital(cluster, i, **policy):
    return Site(cluster, 'h%d' % i, sets=('tiny=synthetic:1,8,8:4:40:8:%d' % i,), node='n%d' % i, **policy).start()


def test_too_few_sites_are_left(cluster):
    """Three would do, and one of them refuses. With --anyway the job waits for the third, and begins when it is there."""
    sites = [hospital(cluster, i, **policy) for i, policy in enumerate(({}, {'ask': True}, REFUSING))]
    cluster.wait_daemons(3)
    path = cluster.write('job.yaml', h.job_text(data=LOCAL, selection={'daemons': {'min': 3}}))
    said = cluster.mfl('submit', path, status=5).stderr
    assert 'a round needs 3 sites with tiny, and only 2 of the 3 that are connected would take this job' in said
    assert 'h2 would refuse this job' in said and "h1 asks this site's administrator" in said
    assert not cluster.mfl_json('list')['jobs']
    cluster.mfl('submit', path, '--set', 'selection.daemons.min=2', '--set', 'rounds=1')
    job = cluster.mfl_json('submit', path, '--anyway')['job']
    cluster.wait_info(job, lambda i: "h1 asks its site's administrator" in i['reason'], 20, 'h1, which has met the job')
    sites[1].tell('approve', job)
    hospital(cluster, 3)
    cluster.wait_daemons(4)
    cluster.wait_info(job, lambda i: i['round'] > 0 or i['state'] != 'waiting', 30, 'the first round')


def test_sites_that_are_not_enough_anyway(cluster):
    """Others have to come whatever these say, so this is no reason."""
    hospital(cluster, 1, **REFUSING)
    hospital(cluster, 2)
    cluster.wait_daemons(2)
    done = cluster.mfl('submit', cluster.write('job.yaml', h.job_text(data=LOCAL, selection={'daemons': {'min': 3}})))
    assert 'h1 would refuse this job' in done.stderr


def test_only_who_may_work_for_the_job_is_asked(cluster):
    """selection.where leaves a site out, which then is no reason and no help."""
    for i, policy in enumerate((REFUSING, {}, {})):
        hospital(cluster, i, **policy)
    cluster.wait_daemons(3)
    path = cluster.write('job.yaml', h.job_text(data=LOCAL, selection={'daemons': {'min': 2}, 'where': "name != 'h0'"}))
    assert 'refuse' not in cluster.mfl('submit', path).stderr
    path = cluster.write('job.yaml', h.job_text(data=LOCAL, selection={'daemons': {'min': 2}, 'where': "name != 'h2'"}))
    assert 'only 1 of the 2 that are connected' in cluster.mfl('submit', path, status=5).stderr


def test_daemons_of_a_site_count_each(cluster):
    """Where clients are simulated, a round needs daemons; where each site is a client, it needs sites."""
    site = cluster.write('ward.yaml', h.yaml_of({'site': 'ward'}))
    for name in ('w1', 'w2', 'w3'):
        cluster.start_daemon(name, more=['--config', site])
    Site(cluster, **REFUSING).start()
    cluster.wait_daemons(4)

    def submit(n, status=0, **job):
        return cluster.mfl('submit', cluster.write('job.yaml', h.job_text(selection={'daemons': {'min': n}}, **job)), status=status).stderr

    assert 'site would refuse this job' in submit(3)
    assert 'a round needs 4 daemons with tiny, and only 3 of the 4 that are connected' in submit(4, 5)
    assert 'site would refuse this job' in submit(1, data=LOCAL)
    assert 'a round needs 2 sites with tiny, and only 1 of the 2 that are connected' in submit(2, 5, data=LOCAL)


def test_a_job_that_exists_is_found_whatever_sites_say(cluster):
    """What its own rounds have cost a site is no reason against the same request, made again with its token."""
    Site(cluster, **REFUSING).start()
    cluster.wait_daemons(1)
    path = cluster.write('job.yaml', h.job_text())
    first = cluster.mfl_json('submit', path, '--token', 't', '--anyway')
    again = cluster.mfl_json('submit', path, '--token', 't')
    assert again == {'job': first['job'], 'existed': True}
    assert 'no connected site' in cluster.mfl('submit', path, '--token', 'u', status=5).stderr


def test_what_the_policy_allows_is_trained(cluster):
    site = Site(cluster, owners=['alice', 'local'], data=['tiny'], min_participants=8, strategies=['fedavg'], rounds_max=3,
                epochs_max=1).start()
    cluster.wait_daemons(1)
    job, digests = cluster.run_job()
    assert site.said() == [(job, 'takes', '')]
    site.daemon.stop()
    cluster.start_daemon('free')
    cluster.wait_daemons(1)
    assert cluster.run_job()[1] == digests


def test_the_job_goes_on_with_other_daemons(cluster):
    """A refusal is no failure: its clients are dealt to others, and the model is the one of a job that nobody refused."""
    cluster.start_daemon('free')
    cluster.wait_daemons(1)
    _, expected = cluster.run_job()
    site = Site(cluster, strategies_refused=['fedavg']).start()
    cluster.wait_daemons(2)
    job, digests = cluster.run_job()
    assert digests == expected and {r['daemons'] for r in cluster.rounds(job)} == {1}
    assert site.said() == [(job, 'refuses', 'strategies_refused')]
    assert any('the site of daemon site refuses the job' in line for line in cluster.mfl('logs', job).stdout.splitlines())
    assert 'refuses the strategy' in next(d['note'] for d in cluster.mfl_json('daemons')['daemons'] if d['name'] == 'site')


def test_owners_are_names_of_certificates(tmp_path):
    ca = mfl_certs.Ca(tmp_path / 'ca')
    ca.server()
    ca.pairs = {name: ca.issue(name, [role]) for name, role in (('ann', 'operator'), ('bob', 'operator'), ('site', 'daemon'))}
    with TlsCluster(tmp_path / 'c', ca) as c:
        c.start_server()
        site = Site(c, owners=['ann']).start()
        c.wait_daemons(1)
        good, _ = c.run_job()
        with c.operator(name='bob') as o:
            bad = o.submit(h.job_text(seed=9))
        assert "takes no jobs of 'bob'" in c.wait_job(bad, state='failed')['reason']
        assert site.said() == [(good, 'takes', ''), (bad, 'refuses', 'owners')]
        assert [line['owner'] for line in site.audit()] == ['ann', 'bob']


# ---- the administrator ----

def waits(cluster, job):
    return cluster.wait_info(job, lambda i: 'administrator' in i['reason'], 10, 'the wait for the administrator')


def test_ask_waits_for_the_answer_and_survives_restarts(cluster):
    site = Site(cluster, ask=True).start()
    cluster.wait_daemons(1)
    first = cluster.submit()
    assert 'site asks its site\'s administrator' in waits(cluster, first)['reason']
    assert site.said() == [(first, 'asks', 'ask')]
    sock = os.path.join(site.dir, 'site.sock')
    assert stat.S_IMODE(os.stat(sock).st_mode) == 0o600 and stat.S_IMODE(os.stat(site.dir).st_mode) == 0o700
    assert first in site.tell('jobs') and 'asks' in site.tell('jobs')
    assert 'has not met that job' in site.tell('approve', 'j-000009', status=1)
    # The daemon is killed: it asks again.
    site.daemon.kill()
    site.start()
    h.wait_until(lambda: len(site.said()) == 2, 20, 'the second question')
    waits(cluster, first)
    # The server is killed: the daemon asks again, and the job waits again.
    cluster.server.kill()
    cluster.start_server()
    waits(cluster, first)
    assert 'approved' in site.tell('approve', first)
    cluster.wait_job(first)
    assert site.said()[-1] == (first, 'approved', 'ask')
    # Another job needs another answer; this one is no.
    second = cluster.submit(seed=8)
    waits(cluster, second)
    site.tell('deny', second)
    info = cluster.wait_job(second, state='failed')
    assert 'administrator has denied it' in info['reason'], info['reason']
    assert (second, 'denied', 'ask') in site.said()


def test_answers_survive_restarts_of_both_sides(cluster):
    site = Site(cluster, ask=True).start()
    cluster.wait_daemons(1)
    job = cluster.begin()
    waits(cluster, job)
    site.tell('approve', job)
    cluster.wait_info(job, lambda i: i['round'] >= 2, 20, 'two rounds')
    site.daemon.kill()
    cluster.server.kill()
    cluster.start_server()
    site.start()
    at = cluster.wait_info(job, lambda i: True, 20, 'an answer')['round']
    cluster.wait_info(job, lambda i: i['round'] >= at + 2, 30, 'two more rounds')
    assert [d for _, d, _ in site.said()] == ['asks', 'approved', 'takes']
    # Taken back in its middle.
    site.tell('deny', job)
    info = cluster.wait_job(job, state='failed')
    assert 'denied' in info['reason']
    site.daemon.kill()
    site.start()
    cluster.wait_daemons(1)
    again = cluster.submit(rounds=1)
    waits(cluster, again)
    assert 'denied' not in site.tell('jobs')


def test_a_network_of_sites_waits_until_enough_take_part(cluster):
    """Three hospitals, each of which asks, and wants two others: the round begins when the last has said yes, although the job
    retries nothing and its deadline is short."""
    sites = [Site(cluster, name, sets=('tiny=synthetic:1,8,8:4:40:8:%d' % i,), ask=True, min_participants=3).start()
             for i, name in enumerate(('a', 'b', 'c'))]
    cluster.wait_daemons(3)
    job = cluster.submit(data=LOCAL, selection={'daemons': {'min': 3}}, limits={'deadline': '1s', 'retries': 0})
    for site in sites:
        h.wait_until(lambda s=site: (job, 'asks', 'ask') in s.said(), 20, 'the question')
    for site in sites:
        assert cluster.info(job)['round'] == 0
        waits(cluster, job)
        site.tell('approve', job)
    cluster.wait_job(job)
    assert {r['clients'] for r in cluster.rounds(job)} == {3}


def test_sites_that_refuse_are_left_out(cluster):
    sites = [Site(cluster, name, sets=('tiny=synthetic:1,8,8:4:40:8:%d' % i,), **policy).start()
             for i, (name, policy) in enumerate((('a', {'ask': True}), ('b', {'strategies': ['median']}), ('c', {}), ('d', {})))]
    cluster.wait_daemons(4)
    job = cluster.submit(data=LOCAL, limits={'retries': 0}, rounds=h.ENDLESS)
    cluster.wait_info(job, lambda i: i['round'] >= 2, 20, 'two rounds')
    sites[0].tell('approve', job)
    at = cluster.info(job)['round']
    cluster.wait_info(job, lambda i: i['round'] >= at + 3, 20, 'more rounds')
    clients = [r['clients'] for r in cluster.rounds(job)]
    assert clients[0] == 2 and clients[-1] == 3, clients
    sites[2].tell('deny', job, status=1)  # it does not ask
    cluster.stop_job(job)


def test_approve_reaches_only_who_asks(cluster):
    site = Site(cluster, strategies=['fedavg']).start()
    cluster.wait_daemons(1)
    job, _ = cluster.run_job()
    assert "does not have 'ask: true'" in site.tell('approve', job, status=1)
    assert 'expected the job' in site.tell('approve', status=2)
    site.daemon.stop()
    assert 'no daemon listens' in site.tell('jobs', status=1)


def test_a_policy_goes_before_the_administrator(cluster):
    site = Site(cluster, ask=True, strategies=['median']).start()
    cluster.wait_daemons(1)
    job = cluster.submit()
    cluster.wait_job(job, state='failed')
    assert 'refuses the strategy' in site.tell('approve', job, status=1)
    assert site.said() == [(job, 'refuses', 'strategies')]


# ---- a server that lies ----

class LyingServer:
    """Says what the test wants to one daemon, and collects its answers."""

    def __init__(self):
        self.listener = socket.create_server(('127.0.0.1', 0))
        self.address = '127.0.0.1:%d' % self.listener.getsockname()[1]
        self.number = 1 << 32

    def accept(self):
        self.listener.settimeout(20)
        sock, _ = self.listener.accept()
        c = w.Connection.__new__(w.Connection)
        c.timeout, c.sock, c.buffer, c.requests, c.bye, c.retry = 10, sock, bytearray(), 0, '', None
        self.hello = c.expect('hello')
        c.send('welcome', {'protocol': self.hello['protocol_max'], 'software': 'liar 1', 'heartbeat_ms': 1000, 'dead_ms': 30000,
                           'server_instance': 1})
        self.connection = c
        return self

    def spec(self, owner=None, job='j-000001', **changes):
        body = {'job': job, 'text': h.job_text(**changes)}
        self.connection.send('job_spec', body if owner is None else {**body, 'owner': owner})

    def order(self, kind='TASK_TRAIN', job='j-000001', **claims):
        """Sends a task and waits for nothing."""
        self.number += 1
        data = next(d for d in self.hello['data_sets'] if d['name'] == 'tiny')
        self.connection.send('task', {
            'task': self.number, 'job': job, 'round': 1, 'kind': w.ENUM_VALUE[kind], 'items': [0],
            'params_digest': bytes([self.number % 256]) * 32, 'n_params': 100, 'scale_bits': 30, 'delta_max': 16.0,
            'weight_max': 1000, 'fingerprint': data['fingerprint'], 'arithmetic': 5, **claims})

    def task(self, kind='TASK_TRAIN', job='j-000001', **claims):
        """What the daemon answers: TaskFailed, or ParamsGet when it goes to work."""
        self.order(kind, job, **claims)
        while True:
            got, body, _, _ = self.connection.recv()
            if got in ('task_failed', 'params_get'):
                return got, body


@pytest.fixture
def liar(tmp_path):
    with h.Cluster(tmp_path) as c:
        server = LyingServer()
        sites = []

        def start(**policy):
            site = Site(c, server=server.address, **policy).start()
            sites.append(site)
            server.accept()
            return site
        yield server, start
        for site in sites:
            site.daemon.kill()


def refused(answer, words):
    kind, body = answer
    assert kind == 'task_failed' and body['site'] == 1 and body['permanent'] and words in body['reason'], answer
    return True


def test_a_server_that_hides_the_owner_or_the_round(liar):
    server, start = liar
    site = start(owners=['alice'], min_participants=2)
    server.spec()
    assert refused(server.task(participants=8), 'does not say whose job')
    server.spec(owner='mallory')
    assert refused(server.task(participants=8), "no jobs of 'mallory'")
    server.spec(owner='alice', selection={'clients': 1})
    assert refused(server.task(participants=8), 'only 1 of its 1 clients')  # the job file says so, whatever the server claims
    server.spec(owner='alice')
    assert refused(server.task(), 'does not say how many')
    assert refused(server.task(participants=1), 'only 1 of its 1 clients')
    assert server.task(participants=8)[0] == 'params_get'
    assert [d for _, d, _ in site.said()] == ['refuses'] * 5 + ['takes']


LIED = [r for r in TOLD if r[0] != 'owners'] + [
    ('secure_sum', {'secure_sum': 'required'}, {'data': LOCAL}, 'wants secure sums'),
    ('secure_bad', {'secure_sum': 'required', 'secure_bad': 0.2}, {'data': LOCAL, 'secure_sum': {'bits': 64, 'bad': 0.1}}, 'bad'),
    ('programs', {'programs': False}, {'model': {'tensors': [['w', 3]], 'initial': 'f'},
                                       'training': {'program': 'pets', 'lr': None, 'epochs': None, 'batch': None}}, 'pets'),
    ('plugins', {'plugins': False}, {'evaluation': {'metrics': ['odd']}}, 'odd'),
]


@pytest.mark.parametrize('rule,policy,job,words', LIED, ids=['%s-%d' % (r[0], i) for i, r in enumerate(LIED)])
def test_each_rule_holds_against_a_server_that_lies(liar, rule, policy, job, words):
    """It sends a job without having looked at it, and says that a thousand others take part. What a rule allows, the daemon begins."""
    server, start = liar
    site = start(**policy)
    server.spec(owner='alice', **job)
    assert refused(server.task(participants=1000), words)
    lines = site.audit()
    assert [(line['decision'], line['owner']) for line in lines] == [('refuses', 'alice')] and words in lines[0]['reason']
    assert lines[0]['rule'] == rule


def test_a_server_that_changes_an_approved_job(liar):
    """The answer is about one job file of one owner: everything else is asked again."""
    server, start = liar
    site = start(ask=True)
    server.spec(owner='alice')
    kind, body = server.task(participants=8)
    assert (kind, body['site'], body['job']) == ('task_failed', 2, 'j-000001') and not body['permanent']
    site.tell('approve', 'j-000001')
    kind, body, _, _ = server.connection.recv()
    assert (kind, body['site'], body['job'], body['task']) == ('task_failed', 3, 'j-000001', 0)
    assert server.task(participants=8)[0] == 'params_get'
    server.spec(owner='alice', training={'epochs': 50})
    assert server.task(participants=8)[1]['site'] == 2
    server.spec(owner='mallory')
    assert server.task(participants=8)[1]['site'] == 2
    server.spec(owner='alice', job='j-000002')
    assert server.task(participants=8, job='j-000002')[1]['site'] == 2
    for kind in ('TASK_EVAL', 'TASK_TRAIN'):  # and no kind of work is left out
        assert server.task(kind, participants=8, job='j-000002')[1]['site'] == 2
    server.spec(owner='alice')
    assert server.task(participants=8)[0] == 'params_get'


def test_a_server_that_names_no_job_file(liar):
    server, start = liar
    start(strategies=['fedavg'])
    assert refused(server.task(participants=8), 'without its job file')
    server.connection.send('job_spec', {'job': 'j-000001', 'text': 'name: ['})
    assert refused(server.task(participants=8), "can't read the job file")


# ---- files ----

BAD = [
    ({'owners': []}, 'policy.owners'), ({'owners': 'alice'}, 'policy.owners'), ({'owner': ['alice']}, "did you mean 'owners'"),
    ({'strategies': ['fedbest']}, "'fedbest' is not a strategy"), ({'min_participants': 0}, 'policy.min_participants'),
    ({'strategies': ['fedavg'], 'strategies_refused': ['median']}, 'write one of the two'), ({'ask': 'perhaps'}, 'policy.ask'),
    ({'secure_sum': 'maybe'}, 'expected required'), ({'secure_sum': 'required', 'peers': ['00']}, 'expected the SHA-256 of a certificate'),
    ({'peers': ['0' * 64]}, 'add secure_sum: required'),
    ({'noise': 1}, 'add clip'), ({'clip': -1}, 'policy.clip'), ({'epsilon_max': 0}, 'policy.epsilon_max'),
    ({'delta': 1e-5}, 'only used with epsilon_max'), ({'dir': 'relative'}, 'absolute path'), ({'dir': None}, "policy: key 'dir' is missing"), ({'data': ['nowhere']}, "names 'nowhere'"),
]


@pytest.mark.parametrize('policy,words', BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_policies_are_errors_at_the_start(tmp_path, policy, words):
    with h.Cluster(tmp_path) as c:
        site = Site(c, server='127.0.0.1:9', **policy)
        doc = {**policy} if 'dir' in policy else {**policy, 'dir': site.dir}
        c.write('site.yaml', h.yaml_of({'policy': {k: v for k, v in doc.items() if v is not None}}))
        assert site.start().daemon.wait(10) == 78
        assert words in site.daemon.log(), site.daemon.log()


def test_a_damaged_answer_is_an_error_at_the_start(cluster):
    site = Site(cluster, ask=True)
    os.makedirs(site.dir)
    with open(os.path.join(site.dir, 'site.answers'), 'w', encoding='ascii') as f:
        f.write('approved 1234\n')
    assert site.start().daemon.wait(10) == 78
    assert 'site.answers:1: not an answer' in site.daemon.log()


def test_without_an_audit_log_there_is_no_work(cluster):
    """What can't be written down is not done."""
    site = Site(cluster, strategies=['fedavg'])
    os.makedirs(site.dir)
    os.symlink('/dev/full', os.path.join(site.dir, 'site.audit.jsonl'))
    assert site.start().daemon.wait(10) == 1  # a link is not followed
    assert 'site.audit.jsonl' in site.daemon.log()


def test_two_daemons_of_one_name_and_dir(cluster):
    one = Site(cluster, ask=True).start()
    cluster.wait_daemons(1)
    two = Site(cluster, ask=True)
    other = cluster.start_daemon('site', more=['--config', two.config])
    assert other.wait(10) == 78
    assert 'another daemon of this name' in other.log()
    job = cluster.submit()
    waits(cluster, job)
    assert job in one.tell('jobs')  # the socket is still the first one's
