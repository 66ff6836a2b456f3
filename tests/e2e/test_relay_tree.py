# SPDX-License-Identifier: Apache-2.0
"""Trees of relays as people see them, and trees of several releases: what each side says to one of the release before or after."""
import json
import re

import pytest

import mfl_harness as h
import mfl_needs
import mfl_wire as w
from mfl_pages import CHROMIUM, browse, get, section_of
from mfl_relay import DEEP, THREE, Relay, Tree

OLD, NEW = 8, 9  # the protocol of this release, and one of the next; relays came with OLD


@pytest.fixture(params=[DEEP, THREE], ids=['two levels', 'three levels'])
def tree(request, tmp_path):
    with Tree(tmp_path, {'http': '127.0.0.1:0'}) as c:
        c.start_server()
        c.plant(request.param)
        c.shape = request.param
        yield c


def test_the_tree_is_shown(tree, folder):
    """As a table, as JSON, as a page without scripts and as the dashboard's nested list."""
    paths = {}
    for name, (place, _) in tree.places.items():
        parts = place.split('-') if place else []
        paths[name] = '/'.join('-'.join(parts[:n + 1]) for n in range(len(parts)))
    told = {d['name']: d['relay'] or '' for d in tree.mfl_json('daemons')['daemons']}
    assert told == paths
    lines = tree.mfl('daemons').stdout.splitlines()
    for name, path in paths.items():
        at = next(i for i, line in enumerate(lines) if re.search(r'\b%s\b' % name, line) and not line.rstrip().endswith(':'))
        for depth, relay in reversed(list(enumerate(path.split('/')) if path else [])):
            head = '  ' * depth + ('' if depth else 'relay ') + relay + ':'
            at = max(i for i in range(at) if lines[i].rstrip() == head)  # each above the one below it
    page = get(tree, '/')
    assert all('<td>%s: ' % path in page for path in paths.values() if path)
    assert {d['name']: d['relay'] or '' for d in json.loads(get(tree, '/api/daemons'))['daemons']} == paths
    if not CHROMIUM:
        pytest.skip(mfl_needs.lack('chromium'))
    page, console = browse(tree, '/', 1200, folder)
    section = section_of(page, 'daemons')
    shown = section[section.index('<ul class="tree"'):section.index('<div class="wide"')]
    assert console == [] and 'hidden' not in shown
    where, seen = [], {}
    for opened, closed, text in re.findall(r'(<li>)|(</li>)|<span>([^<]*)</span>', shown):
        if opened:
            where.append('')
        elif closed:
            where.pop()
        else:
            where[-1] = text.split(':')[0]
            for name in re.findall(r'\bd\d+\b', text.partition('(')[2]):
                seen[name] = '/'.join(where[1:])
    assert seen == paths and 'server: %d daemons' % len(paths) in shown


def test_one_daemon_s_goodbye_is_its_own(tmp_path):
    """Daemons that stop, and daemons that the server sends away, at any level: the relays stay connected, with all others."""
    with Tree(tmp_path) as c:
        c.start_server()
        c.plant(DEEP)
        c.daemons['d2'].popen.terminate()
        assert c.daemons['d2'].wait(20) == 0
        c.mfl('daemons', 'disable', 'd3', '--reason', 'a test')
        h.wait_until(lambda: {d['name']: d['state'] for d in c.mfl_json('daemons')['daemons']}.get('d3') == 'refused', 20, 'the rule')
        with w.Connection(c.relays['a-b'].address) as far:  # the server refuses it, and says so through two relays
            far.send('hello', w.hello(role='ROLE_DAEMON', name='d1', backend='cpu', workers=1, instance=3, protocol_max=OLD, node='another'))
            assert 'd1' in far.until_closed(20)
        job = c.run_job(60)[0]
        assert c.info(job)['state'] == 'done'
        for name, relay in c.relays.items():
            assert relay.log().count('is connected to') == 1, (name, relay.log()[-2000:])
        assert 'relay a is lost' not in c.server.log() and 'daemon d1 is lost' not in c.server.log()


def test_a_circle_of_three(tmp_path):
    """No server is above them: one of them ends, and says which relays are in the circle."""
    with Tree(tmp_path) as c:
        chain = [Relay(c, 'one', '127.0.0.1:1')]
        for name in ('two', 'three'):
            assert chain[-1].wait_ready()
            chain.append(Relay(c, name, chain[-1].address))
        assert chain[-1].wait_ready()
        chain[0].kill()
        again = Relay(c, 'one', chain[2].address, listen=chain[0].address)
        c.others += [*chain, again]
        rest = [chain[1], chain[2], again]
        h.wait_until(lambda: not all(p.alive() for p in rest), 60, 'the end of one of them')
        ended = next(p for p in rest if not p.alive())
        assert ended.wait(10) == 78 and 'their upstreams make a circle' in ended.log(), ended.log()[-2000:]


# ---- releases ----

def welcome(protocol):
    return 'welcome', {'protocol': protocol, 'software': 'mfl-server 9.0', 'heartbeat_ms': 1000, 'dead_ms': 30000, 'server_instance': 5}


def test_a_relay_of_the_release_before(tmp_path):
    """Below a newer server it waits while there is no common version, and then speaks its own; a newer daemon below it speaks that, too."""
    bye = ('bye', {'reason': 'no protocol version in common: mfl-server 9.0 speaks protocol 9 to 10, mfl-server 0 speaks 8: upgrade the client',
                   'retry': True})
    upper = w.FakeServer(bye, welcome(NEW), welcome(OLD))
    c = h.Cluster(tmp_path)
    relay = Relay(c, 'r', upper.address)
    try:
        assert relay.wait_ready()
        h.wait_until(lambda: 'relay r is connected' in relay.log(), 30, 'the welcome')
        assert [(x['protocol_min'], x['protocol_max']) for x in upper.hellos[:3]] == [(OLD, OLD)] * 3
        log = relay.log()
        assert 'mfl-server 9.0 speaks protocol 9 to 10' in log and 'upgrade the client; trying again' in log
        assert 'mfl-server 9.0 chose protocol 9' in log and 'speaks 8: upgrade the client; trying again' in log

        def daemons():
            return [body for kind, body in upper.heard if kind == 'hello']
        with w.Connection(relay.address) as newer:
            newer.send('hello', w.hello(role='ROLE_DAEMON', name='newer', backend='cpu', workers=1, instance=3, protocol_min=7, protocol_max=NEW))
            h.wait_until(daemons, 10, "the daemon's Hello above")
        hello = daemons()[0]
        assert (hello['protocol_min'], hello['protocol_max'], hello['name'], hello['relay']) == (7, OLD, 'newer', '')
        with w.Connection(relay.address) as far:
            far.send('hello', w.hello(role='ROLE_DAEMON', name='far', backend='cpu', workers=1, instance=4, protocol_min=NEW, protocol_max=NEW,
                                      software='mfl-client 9.0'))
            assert 'mfl-client 9.0 speaks 9: upgrade the server' in far.until_closed()
        assert relay.alive() and len(daemons()) == 1
    finally:
        relay.kill()
        upper.close()


def test_relays_of_other_releases_below_a_server(tmp_path):
    """A newer relay speaks this server's protocol; without a common one, it is told so and tries again."""
    with Tree(tmp_path) as c:
        c.start_server()
        with w.Connection(c.address) as newer:
            newer.send('hello', w.hello(role='ROLE_RELAY', name='newer', instance=7, protocol_min=OLD, protocol_max=NEW))
            assert newer.expect('welcome')['protocol'] == OLD
        with w.Connection(c.address) as far:
            far.send('hello', w.hello(role='ROLE_RELAY', name='far', instance=8, protocol_min=NEW, protocol_max=NEW + 1, software='mfl-server 9.0'))
            assert 'mfl-server 9.0 speaks 9 to 10: upgrade the server' in far.until_closed() and far.retry is True


def test_an_older_daemon_below_a_relay(tmp_path):
    """A job that it can't do waits and names the daemon, and the relay, which may be what is older."""
    with Tree(tmp_path) as c:
        c.start_server()
        relay = c.start_relay('site')
        h.wait_until(lambda: 'relay site is connected' in relay.log(), 10, 'the relay to connect')
        data = [{'name': 'tiny', 'shape': [1, 8, 8], 'classes': 4, 'train_samples': 400, 'test_samples': 80, 'fingerprint': 1}]
        with w.Connection(relay.address) as old, w.Connection(c.address) as present:
            old.send('hello', w.hello(role='ROLE_DAEMON', name='old', backend='cpu', workers=1, instance=3, protocol_max=OLD - 1, data_sets=data))
            assert old.expect('welcome')['protocol'] == OLD - 1
            job = c.submit(evaluation={'on': 'clients'})
            info = c.wait_info(job, lambda i: 'old' in i['reason'], 10, 'the reason')
            assert 'evaluation on clients' in info['reason'] and 'upgraded' in info['reason'], info['reason']
            # With a daemon that can do it, each of the others is told.
            present.send('hello', w.hello(role='ROLE_DAEMON', name='present', backend='cpu', workers=1, instance=4, protocol_max=OLD, data_sets=data))
            present.expect('welcome')
            note = h.wait_until(lambda: {d['name']: d['note'] for d in c.mfl_json('daemons')['daemons']}['old'], 10, 'the note')
            assert 'upgrade this daemon, or relay site if that is older' in note, note
            assert 'upgrade it, or relay site if that is older' in c.mfl('logs', job).stdout
