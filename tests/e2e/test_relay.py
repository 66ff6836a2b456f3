# SPDX-License-Identifier: Apache-2.0
"""Relays: a tree of them gives the model of one flat server, bit for bit, whatever is killed; one sum and one copy of the params per
relay; who may be a relay, and where."""
import re
import subprocess

import pytest

import mfl_certs
import mfl_harness as h
from mfl_relay import DEEP, FLAT, FOUR, MIXED, TWO, Relay, TlsTree, Tree

POPULATION = {'partition': 'dirichlet', 'clients': 11, 'alpha': 0.5, 'min_samples': 3}
# Sums, sums with scalars, single updates, and single updates whose clients keep a state at the server.
JOBS = {
    'fedavg': {'data': POPULATION},
    'fednova': {'data': POPULATION, 'aggregation': {'strategy': 'fednova'}, 'training': {'momentum': 0.9}},
    'fedadam': {'data': POPULATION, 'aggregation': {'strategy': 'fedadam'}},
    'median': {'data': POPULATION, 'aggregation': {'strategy': 'median'}},
    'scaffold': {'data': POPULATION, 'aggregation': {'strategy': 'scaffold'}},
    'packed': {'data': POPULATION, 'compression': {'up': {'bits': 8}}},
    'halves': {'data': POPULATION, 'compression': {'up': 'bf16', 'down': 'bf16'}},
    'regions': {'data': POPULATION, 'edges': {'count': 3, 'rounds': 2}},
    'losses': {'data': POPULATION, 'selection': {'kind': 'power-of-choice', 'clients': 5, 'candidates': 8}},
}
LOCAL = {'data': {'partition': 'local', 'clients': None}, 'selection': {'daemons': {'min': 4}}}
SITES = ['tiny=synthetic:1,8,8:4:%d:80:%d' % (300 + 50 * i, i + 1) for i in range(4)]


def run_all(c, jobs):
    return {name: c.run_job(60, rounds=2, **changes)[1] for name, changes in jobs.items()}


@pytest.fixture(scope='module')
def tree(tmp_path_factory):
    trees = []

    def plant(shape, **options):
        c = Tree(tmp_path_factory.mktemp('tree'))
        trees.append(c)
        c.start_server()
        return c.plant(shape, **options)
    yield plant
    for c in trees:
        c.close()


@pytest.fixture(scope='module')
def expected(tree):
    c = tree(FLAT)
    digests = run_all(c, JOBS)
    c.close()
    return digests


@pytest.fixture(scope='module')
def expected_local(tree):
    c = tree(FLAT, data=SITES)
    digests = c.run_job(60, **LOCAL)[1]
    c.close()
    return digests


def close(c):
    for p in [*c.relays.values(), *c.daemons.values()]:
        assert p.alive(), p.log()[-2000:]
    c.check_alive()
    c.close()


# ---- one digest ----

@pytest.mark.parametrize('shape', [TWO, FOUR, DEEP, MIXED], ids=['two', 'four', 'deep', 'mixed'])
def test_one_digest(tree, expected, shape):
    c = tree(shape)
    assert run_all(c, JOBS) == expected
    close(c)


@pytest.mark.parametrize('shape', [TWO, {'a': 2, 'a-b': 2}], ids=['two', 'deep'])
def test_one_digest_of_sites(tree, expected_local, shape):
    c = tree(shape, data=SITES)
    job, digests = c.run_job(60, **LOCAL)
    assert digests == expected_local
    shown = c.mfl_json('show', job, '--partition')['partition']['shown']
    assert sorted(s['daemon'] for s in shown) == ['d1', 'd2', 'd3', 'd4']
    close(c)


@pytest.mark.parametrize('clients', [15, 5], ids=['many', 'one-each'])
def test_one_sum_and_one_copy(tmp_path_factory, clients):
    """The server sees the daemons and one sum per relay and round; each version of the params comes to a relay once."""
    c = Tree(tmp_path_factory.mktemp('counted'), {'log_level': 'debug'})
    try:
        c.start_server()
        c.plant({'a': 3, 'a-b': 2})
        job, _ = c.run_job(60, rounds=4, data={'clients': clients}, selection={'assign': 'modulo'})
        lines = c.mfl('logs', job).stdout
        assert len(re.findall('5 daemons below relay a form a group', lines)) == 4
        assert len(re.findall('uploads the sum of its group', lines)) == 4
        assert not re.findall('uploads an update', lines)
        for name in ('a', 'a-b'):
            # Four rounds, and the last model where a daemon evaluates it.
            assert c.relays[name].log().count('floats are here') in (4, 5), c.relays[name].log()
        rows = {d['name']: d for d in c.mfl_json('daemons')['daemons']}
        assert {name: d['relay'] for name, d in rows.items()} == {'d1': 'a', 'd2': 'a', 'd3': 'a', 'd4': 'a/a-b', 'd5': 'a/a-b'}
        assert {d['collective'] for d in rows.values()} == {'relay'}
    finally:
        c.close()


def test_updates_wait_at_their_daemons(tmp_path_factory):
    """Updates that a relay can't add go through it one by one. Over a slow line they wait at the daemons, and the relay's memory
    holds a small part of one: not the four that its daemons may send at once. All daemons stay connected meanwhile."""
    big = {'model': {'layers': [{'dense': {'units': 4096}}, 'relu', {'dense': {'units': 256}}, 'relu', {'dense': {'units': 4}}]}, 'aggregation': {'strategy': 'median'},
           'data': {'clients': 8}, 'rounds': 1, 'evaluation': {'every': 1}}
    with Tree(tmp_path_factory.mktemp('narrow')) as c:
        c.start_server()
        narrow = h.Proxy(c.address, delay=0.01)
        try:
            relay = c.start_relay('a', narrow.address)
            for i in range(4):
                c.start_below('d%d' % i, 'a')
            c.wait_daemons(4)
            before = relay.memory_peak()
            job, digests = c.run_job(120, **big)
            update = 4 * (65 * 4096 + 4097 * 256 + 257 * 4)
            assert narrow.bytes_up > 8 * update * .9
            # Beside what it holds of updates: one copy of the params, which it sends to its daemons.
            assert relay.memory_peak() - before < update + (6 << 20), (relay.memory_peak(), before)
            assert narrow.n_connections == 1
            assert c.run_job(120, **big)[1] == digests
        finally:
            narrow.close()


# ---- what is killed ----

@pytest.fixture(scope='module')
def slow():
    """A job that goes on, so that what is killed is killed in the middle of a round."""
    return {'data': POPULATION, 'training': {'epochs': 2}, 'selection': {'daemons': {'min': 2}}}


@pytest.mark.parametrize('victim', ['a', 'a-b'], ids=['upper', 'lower'])
def test_relay_killed(tree, slow, victim):
    c = tree({'a': 1, 'a-b': 2, 'c': 1})
    job = c.begin(**slow)
    for _ in range(2):
        at = c.wait_info(job, lambda i: i['state'] == 'running', 20, 'work')['round']
        c.wait_info(job, lambda i: i['round'] > at, 30, 'a round')  # pylint: disable=cell-var-from-loop
        c.relays[victim].kill()
        c.restart_relay(victim)
    c.wait_daemons(4, 20)
    c.finish(job, more=1, **slow)
    close(c)


def test_daemon_killed(tree, slow):
    """Its clients go to other daemons, below this relay or another one; it comes back as another process."""
    c = tree(TWO)
    job = c.begin(**slow)
    for name in ('d1', 'd3', 'd2'):
        at = c.info(job)['round']
        c.wait_info(job, lambda i: i['round'] > at, 30, 'a round')  # pylint: disable=cell-var-from-loop
        c.daemons[name].kill()
        c.start_again(name)
    c.wait_daemons(4, 20)
    c.finish(job, more=1, **slow)
    close(c)


def test_server_killed(tree, slow):
    c = tree(TWO)
    job = c.begin(**slow)
    c.wait_info(job, lambda i: i['round'] > 1, 30, 'a round')
    c.server.kill()
    c.start_server()
    c.wait_daemons(4, 20)
    c.finish(job, more=1, **slow)
    close(c)


def test_daemon_stays_lost(tree, slow):
    """Nobody starts it again: others train its clients within the round."""
    c = tree({'a': 2, 'b': 1})
    job = c.begin(**slow)
    c.wait_info(job, lambda i: i['round'] > 1, 30, 'a round')
    c.daemons.pop('d2').kill()
    c.finish(job, more=1, **slow)
    c.close()


# ---- where relays may be ----

def test_upstream_is_away(tree):
    """It says so once, tries again, and works when the server is there; daemons wait meanwhile."""
    c = tree({'': 1})
    relay = c.start_relay('early', '127.0.0.1:1')
    h.wait_until(lambda: 'trying again' in relay.log(), 10, 'a line about the upstream')
    assert re.search(r'upstream 127\.0\.0\.1:1: .*refused.*; trying again', relay.log())
    assert relay.log().count('trying again') == 1
    address = c.address
    c.server.kill()
    late = c.start_relay('late', address)
    c.start_below('d9', 'late')
    h.wait_until(lambda: 'trying again' in late.log(), 10, 'a line about the upstream')
    c.start_server()
    c.wait_daemons(2, 20)
    assert 'relay late is connected to ' + address in late.log()
    assert c.run_job(60, **JOBS['fedavg'])[0]
    c.close()


def test_circles(tree):
    c = tree({'': 1})
    a = c.start_relay('ring-1', '127.0.0.1:1', more=('--log-level', 'debug'))
    a.kill()
    own = Relay(c, 'self', a.address, listen=a.address)
    c.others.append(own)
    assert own.wait(20) == 78
    assert "relay self can't be below itself" in own.log()
    # Two relays, each of which is to be below the other.
    first = Relay(c, 'first', '127.0.0.1:1')
    assert first.wait_ready()
    second = Relay(c, 'second', first.address)
    assert second.wait_ready()
    first.kill()
    again = Relay(c, 'first', second.address, listen=first.address)
    c.others += [first, second, again]
    h.wait_until(lambda: not (again.alive() and second.alive()), 60, 'the end of one of them')
    assert any('their upstreams make a circle' in p.log() for p in (again, second))
    ended = again if not again.alive() else second
    assert ended.wait(10) == 78
    c.close()


def test_two_of_one_name(tree):
    c = tree({'a': 1})
    other = Relay(c, 'a', c.address)
    c.others.append(other)
    assert other.wait_ready()
    h.wait_until(lambda: 'another relay named a is connected' in other.log(), 20, 'a refusal')
    c.close()


def test_operators_are_sent_on(tree):
    c = tree({'a': 1})
    done = h.mfl('list', server=c.relays['a'].address, status=3)
    assert 'this is a relay' in done.stderr
    c.close()


# ---- certificates ----

@pytest.fixture(scope='module')
def ca(tmp_path_factory):
    ca = mfl_certs.Ca(tmp_path_factory.mktemp('ca'))
    ca.server()
    ca.pairs = {name: ca.issue(name, roles) for name, roles in {'ann': ['operator', 'admin'], 'd1': ['daemon'], 'd2': ['daemon']}.items()}
    ca.pairs['n1'] = ca.issue('n1', ['daemon'], site='north')
    san = 'DNS:localhost,IP:127.0.0.1'
    ca.pairs['hub'] = ca.issue('hub', ['relay'], san=san)
    ca.pairs['fake'] = ca.issue('fake', ['daemon'], san=san)
    ca.pairs['north'] = ca.issue('north', ['relay'], san=san, site='north')
    return ca


def test_certificates(tree, ca, tmp_path_factory):
    with TlsTree(tmp_path_factory.mktemp('tls'), ca) as c:
        c.start_server()
        hub, fake, north = c.start_relay('hub'), c.start_relay('fake'), c.start_relay('north')
        assert fake.wait(20) == 78
        assert "is not a relay's" in fake.log() and 'it says daemon, and OU=relay is needed' in fake.log()
        c.start_daemon('d1', server=hub.address)
        stranger = c.start_daemon('d2', server=north.address)
        c.others.append(c.daemons.pop('d2'))
        c.start_daemon('n1', server=north.address, more=('--site', 'north'))
        c.wait_daemons(2)
        stranger.wait(20)
        assert "relay 'north' may only speak for site 'north'" in stranger.log()
        assert {d['name'] for d in c.mfl_json('daemons')['daemons'] if d['state'] != 'refused'} == {'d1', 'n1'}
        # A rule about a certificate finds it below a relay, too.
        c.mfl('daemons', 'disable', 'cn:d1', '--reason', 'a test')
        h.wait_until(lambda: {d['name']: d['state'] for d in c.mfl_json('daemons')['daemons']}.get('d1') == 'refused', 20, 'the rule')
        c.mfl('daemons', 'enable', 'cn:d1')
        c.wait_daemons(2)
        assert c.run_job(60)[1] == tls_free(tree)


def tls_free(tree):
    c = tree(FLAT)
    digests = c.run_job(60)[1]
    c.close()
    return digests


def test_pki_issues_relays(folder):
    h.mfl('pki', 'init', '--dir', folder + '/pki', cwd=folder)
    done = h.mfl('pki', 'issue', 'relay', 'hub', '--host', 'localhost', '--dir', folder + '/pki', cwd=folder)
    assert 'hub' in done.stdout
    text = mfl_certs_text(folder + '/pki/issued/hub/cert.pem')
    assert 'OU = relay' in text or 'OU=relay' in text
    assert 'TLS Web Server Authentication' in text and 'TLS Web Client Authentication' in text and 'DNS:localhost' in text
    refused = h.mfl('pki', 'issue', 'relay', 'hub2', '--dir', folder + '/pki', cwd=folder, status=2)
    assert 'host names and addresses of the relay' in refused.stderr


def mfl_certs_text(path):
    return subprocess.run(['openssl', 'x509', '-in', path, '-noout', '-text'], stdout=subprocess.PIPE, text=True, check=True,
                          timeout=30).stdout
