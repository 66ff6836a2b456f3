# SPDX-License-Identifier: Apache-2.0
"""A server that lies in a secure sum, between real daemons with policies: it swaps a key, replays shares, shows two sets of survivors, shows fewer
signatures than it takes, or sums the same updates again in other company. Every daemon refuses, writes an audit line of its own, and opens
nothing. What it is told of each step goes through a server in the middle, which has the server's certificate."""
import os

import pytest

import mfl_harness as h
from mfl_tap import TlsTap
from mfl_wire import ENUM_VALUE
from test_policy import LOCAL, Site
from test_secure import SUM, Sites, data

STEP = {name: ENUM_VALUE['SECURE_' + name] for name in ('PEERS', 'SHARES', 'MASK', 'MASKED', 'SURVIVORS', 'SIGNED', 'OPEN', 'OPENED')}
JOB = {'data': LOCAL, 'secure_sum': SUM, 'rounds': 2, 'limits': {'quorum': 0.6, 'retries': 0}, 'evaluation': {'every': 0},
       'selection': {'daemons': {'min': 5}}}


class Middle:
    """What the daemons are told, and what they have answered. Lies are per step: lie(name, body) changes a message down."""

    def __init__(self, **lies):
        self.lies, self.heard, self.numbers = {STEP[k]: v for k, v in lies.items()}, [], {}

    def __call__(self, name, up, kind, body):
        if kind != 'secure':
            return None
        self.heard.append((name, up, body['step']))
        if up:
            return None
        lie = self.lies.get(body['step'])
        return lie(self, name, body) if lie else None

    def told(self, step, up=True):
        return {name for name, u, s in self.heard if u == up and s == STEP[step]}


def drop(body, member):
    bits = bytearray(body['set'])
    bits[member // 8] &= ~(1 << member % 8)
    return {**body, 'set': bytes(bits)}


def owner(part):
    """Whose keys these are: the CN of the certificate in them."""
    return next(name for name in ('d1', 'd2', 'd3', 'd4', 'd5') if b'\x0c\x02' + name.encode() in part['data'][64:])


def swap_key(_, name, body):
    """Other keys for channels, of everybody else."""
    return {**body, 'parts': [p if owner(p) == name else {**p, 'data': os.urandom(32) + p['data'][32:]} for p in body['parts']]}


def replay_shares(middle, name, body):
    """In the second round, what the same daemon had sealed for this one in the first."""
    names = {member: other for other, member in middle.numbers['place'].items()}
    if name not in middle.numbers:
        middle.numbers[name] = {names[p['member']]: p['data'] for p in body['parts']}
        return None
    return {**body, 'parts': [{**p, 'data': middle.numbers[name][names[p['member']]]} for p in body['parts']]}


def two_sets(middle, name, body):
    """Half of the daemons are told that one of the others is gone."""
    own = middle.numbers['place'][name]
    gone = next(m for m in (0, 1) if m != own)
    return drop(body, gone) if own % 2 else None


def learn_places(middle, _, body):
    middle.numbers['place'] = {owner(part): part['member'] for part in body['parts']}


def few_signatures(_, name, body):
    return {**body, 'parts': body['parts'][:1]}


def without_it(middle, name, body):
    return drop(body, middle.numbers['place'][name])


LIES = [
    ('a swapped key', {'PEERS': swap_key}, 'has not signed that', 'SHARES', 0),
    ('replayed shares', {'PEERS': learn_places, 'MASK': replay_shares}, 'are not what it has sealed for this daemon', None, 1),
    ('two sets', {'PEERS': learn_places, 'SURVIVORS': two_sets}, 'has not signed the survivors that this daemon was told', 'OPENED', 0),
    ('a set without the daemon', {'PEERS': learn_places, 'SURVIVORS': without_it}, 'a set without this daemon', 'SIGNED', 0),
    ('few signatures', {'OPEN': few_signatures}, 'signatures on the survivors', 'OPENED', 0),
]


def refusals(site, job):
    return [line for line in site.audit() if line['job'] == job and line['decision'] == 'refuses']


@pytest.mark.parametrize('lies,words,never,rounds', [lie[1:] for lie in LIES], ids=[lie[0] for lie in LIES])
def test_every_daemon_refuses_and_writes_it_down(tmp_path, lies, words, never, rounds):
    """never: the answer that no daemon gives, because of the lie. rounds: how many are finished before it is told."""
    middle = Middle(**lies)
    with Sites(tmp_path, 5) as c:
        c.start_server()
        tap = TlsTap(c.address, c.ca, (c.cert, c.key), middle)
        sites = [Site(c, name, sets=data(i), server=tap.address, node='n%d' % i).start() for i, name in enumerate(c.names)]
        c.wait_daemons(5, 20)
        job = c.submit(**JOB)
        h.wait_until(lambda: all(refusals(site, job) for site in sites), 60, 'a refusal of each daemon')
        for site in sites:
            lines = refusals(site, job)
            assert lines[0]['rule'] == 'secure_sum' and words in lines[0]['reason'], lines
            assert 'this daemon refuses a secure sum' in site.daemon.log()
        c.wait_job(job, 60, state='failed')
        assert sum(r['clients'] > 0 for r in c.rounds(job)) == rounds, c.rounds(job)
        assert never is None or not middle.told(never)
        tap.close()
        c.check_alive()


def test_asked_again_with_another_subset(tmp_path):
    """The same job file over four of five sites: with both sums, the server would have the update of the fifth."""
    with Sites(tmp_path, 5) as c:
        c.start_server()
        middle = Middle()
        tap = TlsTap(c.address, c.ca, (c.cert, c.key), middle)
        sites = [Site(c, name, sets=data(i), server=tap.address, node='n%d' % i).start() for i, name in enumerate(c.names)]
        c.wait_daemons(5, 20)
        once = {**JOB, 'rounds': 1, 'selection': {}}
        c.run_job(60, **once)
        c.daemons.pop('d5').kill()
        with c.operator() as o:
            h.wait_until(lambda: [d for d in o.daemons() if d['name'] == 'd5' and d['state'] == 'lost'], 20, 'the loss of d5')
        opened = len([1 for _, up, step in middle.heard if up and step == STEP['OPENED']])
        job = c.submit(**once)
        c.wait_job(job, 60, state='failed')
        for site in sites[:4]:
            lines = refusals(site, job)
            assert lines[0]['rule'] == 'secure_sum' and 'was summed with other participants before' in lines[0]['reason'], lines
        assert opened == 5 == len([1 for _, up, step in middle.heard if up and step == STEP['OPENED']])
        tap.close()
        c.check_alive()
