# SPDX-License-Identifier: Apache-2.0
"""Every strategy below every tree of relays, one of which is killed in the middle of the job: the digests are those of one flat server.
The ordinary run has a sample; with MFL_CELLS=all, at night, each strategy runs in each tree."""
import os
import zlib

import pytest

import mfl_certs
import mfl_harness as h
from mfl_relay import EIGHT, FLAT, FOUR, THREE, TWO, TlsTree, Tree
from mfl_strategies import STRATEGIES, settings_of

WHOLE = os.environ.get('MFL_CELLS') == 'all'
SAMPLE = 12  # one of so many runs in the ordinary run
SHAPES = {'two': TWO, 'four': FOUR, 'eight': EIGHT, 'three-levels': THREE, 'tls-and-nodes': None}
CELLS = [(shape, strategy) for shape in SHAPES for strategy in STRATEGIES]
LENGTHS = (8, 32, 128)  # rounds; more if a job has ended before its relay was killed


def chosen():
    return [cell for cell in CELLS if WHOLE or zlib.crc32(repr(cell).encode()) % SAMPLE == 0]


def job_of(strategy, rounds):
    return {'data': {'partition': 'dirichlet', 'clients': 11, 'alpha': 0.5, 'min_samples': 3}, 'rounds': rounds, 'name': strategy,
            **settings_of(strategy)}


CONFIG = {'allow_simulation': 'true'}


def plant_secure(directory):
    """With TLS: two daemons of one node at the server, and two of another node below a relay."""
    ca = mfl_certs.Ca(directory / 'ca')
    ca.server()
    ca.pairs = {name: ca.issue(name, ['daemon']) for name in ('d1', 'd2', 'd3', 'd4')}
    ca.pairs['ann'] = ca.issue('ann', ['operator', 'admin'])
    ca.pairs['hub'] = ca.issue('hub', ['relay'], san='DNS:localhost,IP:127.0.0.1')
    c = TlsTree(directory, ca, **CONFIG)
    c.start_server()
    c.share()
    c.start_relay('hub')
    for name, place, node in (('d1', '', 'n1'), ('d2', '', 'n1'), ('d3', 'hub', 'n2'), ('d4', 'hub', 'n2')):
        c.start_below(name, place, node=node)
    c.wait_daemons(4)
    assert {d['name']: d['collective'] for d in c.mfl_json('daemons')['daemons']} == {'d1': 'shm', 'd2': 'shm', 'd3': 'relay', 'd4': 'relay'}
    return c


@pytest.fixture(scope='module')
def trees(tmp_path_factory):
    """One per shape, planted when it is needed."""
    made = {}

    def get(name, shape):
        if name not in made:
            directory = tmp_path_factory.mktemp(name)
            if shape is None:
                made[name] = plant_secure(directory)
            else:
                made[name] = Tree(directory, CONFIG)
                made[name].start_server()
                made[name].plant(shape)
        return made[name]
    yield get
    for c in made.values():
        c.close()


@pytest.fixture(scope='module')
def expected(trees):
    known = {}

    def get(strategy, rounds):
        if (strategy, rounds) not in known:
            known[strategy, rounds] = trees('flat', FLAT).run_job(60, **job_of(strategy, rounds))[1]
        return known[strategy, rounds]
    return get


def run_and_kill(c, strategy, victim):
    """(its digests, of how many rounds). The relay dies when a round is done and another one is not."""
    for rounds in LENGTHS:
        job = c.submit(**job_of(strategy, rounds))
        c.wait_info(job, lambda i: i['round'] >= 1, 30, 'a round of ' + strategy)
        c.relays[victim].kill()
        at = c.info(job)
        c.restart_relay(victim)
        c.wait_job(job, 60)
        c.wait_daemons(len(c.daemons), 20)
        if at['round'] < rounds:
            return c.digests(job), rounds
    raise AssertionError('%s ends before anything can be killed' % strategy)


@pytest.mark.parametrize('shape,strategy', chosen(), ids=['-'.join(cell) for cell in chosen()])
def test_digest_is_the_flat_one(trees, expected, shape, strategy):
    c = trees(shape, SHAPES[shape])
    relays = sorted(c.relays)
    digests, rounds = run_and_kill(c, strategy, relays[zlib.crc32(strategy.encode()) % len(relays)])
    assert digests == expected(strategy, rounds) and len(digests) == rounds
    for process in (*c.relays.values(), *c.daemons.values()):
        assert process.alive(), process.log()[-2000:]
    c.check_alive()
