# SPDX-License-Identifier: Apache-2.0
"""Secure sums between daemons with TLS: the model is that of the same job without masks; an update is never summed again with others; sites
have their say; what can't be done is refused. test_secure_lost.py kills daemons and servers; tests/unit/server/test_secure_sum.c has the
protocol with every loss and lie."""
import json
import os
import subprocess

import pytest

import mfl_certs
import mfl_harness as h
from mfl_relay import Relay
from mfl_tls import TlsCluster
from test_policy import LOCAL, Site

SUM = {'bits': 64}


def data(i):
    return ('tiny=synthetic:1,8,8:4:%d:8:%d' % (30 + 5 * i, i),)


def fingerprint(cert):
    out = subprocess.run(['openssl', 'x509', '-in', cert, '-noout', '-fingerprint', '-sha256'], stdout=subprocess.PIPE, text=True, check=True)
    return out.stdout.strip().rpartition('=')[2].replace(':', '').lower()


class Sites(TlsCluster):
    def __init__(self, directory, n, **config):
        ca = mfl_certs.Ca(directory / 'ca')
        ca.server()
        self.names = ['d%d' % i for i in range(1, n + 1)]
        ca.pairs = {'ann': ca.issue('ann', ['operator']), **{name: ca.issue(name, ['daemon']) for name in self.names}}
        super().__init__(directory / 'c', ca, **config)

    def start(self, server=None):
        for i, name in enumerate(self.names):
            self.start_daemon(name, data=data(i), server=server if name == self.names[-1] else None)
        self.wait_daemons(len(self.names), 20)
        return self


@pytest.fixture
def sites(tmp_path):
    with Sites(tmp_path, 5) as c:
        c.start_server()
        yield c.start()
        c.check_alive()


def lines(c, job):
    return c.mfl('logs', job).stdout.splitlines()


def comparable(c, job):
    """What people see of a round, but for times and traffic."""
    keys = ('round', 'clients', 'weight', 'samples', 'train_loss', 'train_accuracy', 'accuracy', 'loss', 'digest', 'clients_rejected')
    return [{k: r[k] for k in keys} for r in c.rounds(job)]


# ---- the sum ----

@pytest.mark.parametrize('aggregation', [{'strategy': 'fedavg'}, {'strategy': 'fedadam'}, {'strategy': 'fednova'}, {'strategy': 'qfedavg'},
                                         {'strategy': 'fedavg', 'update_clip': 0.05}], ids=lambda a: '+'.join(map(str, a.values())))
def test_the_model_is_that_of_the_plain_job(sites, aggregation):
    plain, _ = sites.run_job(data=LOCAL, aggregation=aggregation)
    masked, _ = sites.run_job(data=LOCAL, aggregation=aggregation, secure_sum=SUM)
    assert comparable(sites, masked) == comparable(sites, plain)
    assert {r['clients'] for r in sites.rounds(masked)} == {5}
    text = '\n'.join(lines(sites, masked))
    assert 'the secure sum of 5 daemons begins' in text and 'shares are opened' in text and 'skipped' not in text


def test_a_population_and_several_clients_of_a_daemon(tmp_path):
    """Three daemons that simulate ten clients; the clients' sums are added before they are masked."""
    with Sites(tmp_path, 3) as c:
        c.start_server()
        for name in c.names:
            c.start_daemon(name)
        c.wait_daemons(3, 20)
        _, plain = c.run_job(data={'clients': 10})
        job, masked = c.run_job(data={'clients': 10}, secure_sum=SUM)
        assert masked == plain and {r['clients'] for r in c.rounds(job)} == {10}
        c.check_alive()


# ---- narrow rings ----

@pytest.mark.parametrize('ring,grid', [(32, 16), (48, 32), (64, 16)])
def test_narrow_rings(sites, ring, grid):
    """On the same grid the model is that of the plain job; what travels from round 2 on is as wide as the ring."""
    job = {'data': LOCAL, 'rounds': 3, 'aggregation': {'weighting': 'uniform'}, 'compression': {'up': {'bits': grid}},
           'model': {'preset': 'mlp'}, 'evaluation': {'every': 0}}
    plain, _ = sites.run_job(60, **job)
    masked, _ = sites.run_job(60, secure_sum={'bits': ring}, **job)
    assert comparable(sites, masked) == comparable(sites, plain)
    n = 5 * next(j['params'] for j in json.loads(sites.mfl('list', '--json').stdout)['jobs'] if j['job'] == masked)
    up = [r['bytes_up'] for r in sites.rounds(masked)]
    assert up[0] == 8 * n  # nobody knows a range yet
    for bytes_up in up[1:]:
        assert ring / 8 * n <= bytes_up < 1.05 * ring / 8 * n, (bytes_up, n)


# ---- below relays ----

class Below(Sites):
    """The last two of the daemons speak to the server, the others to a relay."""

    def start_relay(self, old=None):
        cert, key = self.ca.pairs['hub']
        config = self.write('relay.yaml', 'heartbeat: 500ms\ndead_after: 5s\ntls_cert: %s\ntls_key: %s\ntls_ca: %s\n' % (cert, key, self.ca.ca))
        relay = Relay(self, 'hub', self.address, config=config, **({'listen': old.address} if old else {}))
        self.others.append(relay)
        assert relay.wait_ready(), relay.log()
        return relay

    def plant(self):
        self.ca.pairs['hub'] = self.ca.issue('hub', ['relay'], san='DNS:localhost,IP:127.0.0.1')
        relay = self.start_relay()
        for i, name in enumerate(self.names):
            self.start_daemon(name, data=data(i), node='host-of-' + name, server=relay.address if i < len(self.names) - 2 else None)
        self.wait_daemons(len(self.names), 20)
        return relay


def test_below_a_relay(tmp_path):
    """A relay passes masked updates on, one for each daemon, and forms no groups; daemons check each other's keys, not its word."""
    with Below(tmp_path, 5) as c:
        c.start_server()
        relay = c.plant()
        plain, _ = c.run_job(60, data=LOCAL, rounds=2)
        masked, _ = c.run_job(60, data=LOCAL, rounds=2, secure_sum=SUM)
        assert comparable(c, masked) == comparable(c, plain)
        assert 'below relay hub form a group' in c.mfl('logs', plain).stdout
        assert 'form a group' not in c.mfl('logs', masked).stdout
        slow = c.submit(data=LOCAL, rounds=6, secure_sum=SUM, evaluation={'every': 0}, seed=11, limits={'quorum': 0.5})
        h.wait_until(lambda: any('secure sum of 5' in line for line in lines(c, slow)), 30, 'the first sum')
        relay.kill()
        c.start_relay(relay)
        c.wait_job(slow, 90)
        assert {r['clients'] for r in c.rounds(slow)} <= {0, 3, 4, 5}, lines(c, slow)  # those that are back already
        masked, _ = c.run_job(60, data=LOCAL, rounds=2, secure_sum=SUM, selection={'daemons': {'min': 5}})
        assert comparable(c, masked) == comparable(c, plain)
        c.check_alive()


# ---- the same updates with others ----

def test_an_update_is_not_summed_with_others(sites):
    """The same job file over fewer sites would show the missing one's update: every daemon refuses, and says so."""
    job, _ = sites.run_job(data=LOCAL, secure_sum=SUM, rounds=1)
    again, _ = sites.run_job(data=LOCAL, secure_sum=SUM, rounds=1)
    assert comparable(sites, job) == comparable(sites, again)
    sites.daemons.pop('d5').kill()
    info = sites.wait_job(sites.submit(data=LOCAL, secure_sum=SUM, rounds=1, limits={'retries': 0}), state='failed')
    assert 'was summed with other participants before' in info['reason'], info['reason']
    for name in ('d1', 'd2', 'd3', 'd4'):
        assert 'this daemon refuses a secure sum: this update was summed with other participants' in sites.daemons[name].log()
    sites.run_job(data=LOCAL, secure_sum=SUM, rounds=1, seed=8)  # other updates


def test_a_daemon_remembers_after_a_restart(tmp_path):
    """With a policy it writes down with whom its update was summed, however many sums ago. The others have none, and would go on."""
    with Sites(tmp_path, 4) as c:
        c.start_server()
        site = Site(c, 'd1', sets=data(0), min_participants=3).start()
        for i in (1, 2, 3):
            c.start_daemon('d%d' % (i + 1), data=data(i))
        c.wait_daemons(4, 20)
        once = {'data': LOCAL, 'secure_sum': SUM, 'rounds': 1, 'limits': {'quorum': 0.7, 'retries': 0}}
        c.run_job(**once)
        c.daemons.pop('d4').kill()
        for i, name in enumerate(('d1', 'd2', 'd3')):
            c.daemons[name].kill()
            if name == 'd1':
                with open(os.path.join(site.dir, 'd1.sums'), 'ab') as f:
                    f.write(os.urandom(64 * 5000))
            site.start() if name == 'd1' else c.start_daemon(name, data=data(i))
        c.wait_daemons(3, 20)
        info = c.wait_job(c.submit(**once), state='failed')
        assert 'signed the survivors' in info['reason'], info['reason']
        assert os.path.getsize(os.path.join(site.dir, 'd1.sums')) == 64 * 5001
        assert 'was summed with other participants before' in site.audit()[-1]['reason']
        c.check_alive()


# ---- the site's say ----

def test_sites_require_secure_sums_and_pin_their_peers(tmp_path):
    with Sites(tmp_path, 4) as c:
        c.start_server()
        pins = [fingerprint(c.ca.pairs[name][0]) for name in ('d1', 'd2', 'd3')]
        site = Site(c, 'd1', sets=data(0), secure_sum='required', min_participants=3, peers=pins).start()
        for i in (1, 2):
            c.start_daemon('d%d' % (i + 1), data=data(i))
        c.wait_daemons(3, 20)
        three = {'selection': {'daemons': {'min': 3}}, 'rounds': 1}
        plain = c.submit(data=LOCAL, limits={'quorum': 0.5}, rounds=1)
        c.wait_job(plain)
        assert (plain, 'refuses', 'secure_sum') in site.said()
        assert any("this site's policy wants secure sums" in line for line in lines(c, plain))
        good, _ = c.run_job(data=LOCAL, secure_sum=SUM, **three)
        assert (good, 'takes', '') in site.said()
        c.start_daemon('d4', data=data(3))
        c.wait_daemons(4, 20)
        bad = c.submit(data=LOCAL, secure_sum=SUM, limits={'retries': 0}, seed=9, rounds=1)
        c.wait_job(bad, state='failed')
        notes = [line for line in site.audit() if line['job'] == bad and line['decision'] == 'refuses']
        assert notes and notes[0]['rule'] == 'secure_sum' and "is not among this site's policy.peers" in notes[0]['reason']
        c.check_alive()


def test_submit_counts_participants(tmp_path):
    """A secure sum needs three; of five sites, first two refuse, then three."""
    with Sites(tmp_path, 5) as c:
        c.start_server()
        for i, name in enumerate(c.names):
            Site(c, name, sets=data(i), node='n%d' % i, **({'rounds_max': i} if i in (1, 2, 3) else {})).start()
        c.wait_daemons(5, 20)
        path = c.write('job.yaml', h.job_text(data=LOCAL, secure_sum=SUM, rounds=3))
        said = c.mfl('submit', path).stderr
        assert 'd2 would refuse' in said and 'd3 would refuse' in said and 'd4' not in said
        said = c.mfl('submit', path, '--set', 'rounds=4', status=5).stderr
        assert 'a round needs 3 sites with tiny, and only 2 of the 5 that are connected would take this job' in said
        c.check_alive()


# ---- refusals ----

REFUSED = [
    ({'aggregation': {'strategy': 'median'}}, 'the server sees sums of updates alone'),
    ({'aggregation': {'strategy': 'scaffold'}}, 'the server sees sums of updates alone'),
    ({'aggregation': {'strategy': 'median', 'unit': 'bucket'}}, 'write partition: local'),
    ({'aggregation': {'strategy': 'median', 'unit': 'bucket'}, 'data': LOCAL}, 'write bucket: 3 or more'),
    ({'aggregation': {'strategy': 'median', 'unit': 'bucket', 'bucket': 5}, 'data': LOCAL, 'selection': {'clients': 4}}, 'write a smaller bucket'),
    ({'aggregation': {'strategy': 'median', 'f': 1, 'unit': 'bucket', 'bucket': 3}, 'data': LOCAL, 'selection': {'clients': 8}}, 'or on_few'),
    ({'aggregation': {'strategy': 'median', 'unit': 'bucket', 'bucket': 513}, 'data': LOCAL}, 'write bucket: 512 or less'),
    ({'aggregation': {'strategy': 'median', 'unit': 'bucket', 'bucket': 3}, 'data': LOCAL, 'secure_sum': {'bits': 32}}, 'write bits: 64'),
    ({'aggregation': {'strategy': 'fltrust', 'unit': 'bucket', 'bucket': 3, 'root': {'daemon': 'd1'}}, 'data': LOCAL}, "root's own update"),
    ({'aggregation': {'update_clip': 'median'}}, 'write a number'),
    ({'selection': {'kind': 'poisson', 'rate': 0.5}}, 'write uniform'),
    ({'selection': {'clients': 2}}, 'at least 3 clients'),
    ({'secure_sum': {'bits': 32}}, "for a narrower ring round clients' changes, compression: {up: {bits: 16}}"),
    ({'secure_sum': {'bits': 63}}, 'expected 32, 48 or 64, got 63'),
    ({'secure_sum': {'bits': 32}, 'compression': {'up': {'bits': 32}}},
     "clients' changes have 32 bits, their weights add up to as much as 8, and the sum takes 35 bits with its sign; "
     'write compression: {up: {bits: 16}}, or secure_sum: {bits: 48}'),
    ({'secure_sum': {'bits': 32}, 'compression': {'up': {'bits': 8}}, 'data': LOCAL}, 'write weighting: uniform'),
    ({'compression': {'up': 'lossless'}}, 'masked updates look like noise'),
    ({'parallel': {'grain': 5}}, 'not supported with secure_sum yet'),
]


@pytest.mark.parametrize('job,words', REFUSED, ids=range(len(REFUSED)))
def test_what_does_not_go_together(tmp_path, job, words):
    path = tmp_path / 'job.yaml'
    path.write_text(h.job_text(**{'secure_sum': SUM, **job}))
    done = h.mfl('check', path, status=None)
    assert done.returncode != 0 and words in done.stderr, done.stderr


def test_without_tls(tmp_path):
    with h.Cluster(tmp_path) as c:
        c.start_server()
        path = c.write('job.yaml', h.job_text(secure_sum=SUM))
        done = c.mfl('submit', path, status=None)
        assert done.returncode != 0 and 'secure_sum: needs TLS' in done.stderr, done.stderr
        assert json.loads(c.mfl('list', '--json').stdout)['jobs'] == []
