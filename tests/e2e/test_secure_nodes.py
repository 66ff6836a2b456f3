# SPDX-License-Identifier: Apache-2.0
"""Secure sums over nodes: the daemons of a node add their updates first, and its leader masks the sum. The model is that of the plain job,
and of each daemon by itself; a member or a leader that is killed takes nothing more with it than its node's clients of one round."""
import pytest

import mfl_harness as h
from test_secure import SUM, Sites, comparable, lines

POPULATION = {'clients': 13, 'partition': 'dirichlet', 'alpha': 0.5, 'min_samples': 2}
JOB = {'data': POPULATION, 'rounds': 3, 'aggregation': {'strategy': 'fednova'}, 'training': {'momentum': 0.9}, 'evaluation': {'every': 0}}


class Nodes(Sites):
    """Daemon i is on node 1 + i % 3, but for the last of seven, which has no neighbour."""

    def start(self, server=None, slow=None):
        self.share()
        for i, name in enumerate(self.names):
            alone = name == self.names[-1] and len(self.names) % 3 == 1
            self.start_daemon(name, node='n4' if alone else 'n%d' % (1 + i % 3), collective='shm', server=server if name == slow else None)
        self.wait_daemons(len(self.names), 20)
        return self


def said(c, job, words):
    return [line for line in lines(c, job) if words in line]


def test_a_node_is_one_participant(tmp_path):
    with Nodes(tmp_path, 7) as c:
        c.start_server()
        c.start()
        plain, _ = c.run_job(60, **JOB)
        masked, _ = c.run_job(60, secure_sum=SUM, **JOB)
        assert comparable(c, masked) == comparable(c, plain)
        assert {r['clients'] for r in c.rounds(masked)} == {13}
        assert len(said(c, masked, 'the secure sum of 4 daemons begins')) == 3
        assert len(said(c, masked, '2 daemons add their updates')) == 9
        narrow = dict(JOB, aggregation={'weighting': 'uniform'}, compression={'up': {'bits': 16}})
        plain, _ = c.run_job(60, **narrow)
        masked, _ = c.run_job(60, secure_sum={'bits': 32}, **narrow)
        assert comparable(c, masked) == comparable(c, plain)
        c.check_alive()


def test_fewer_nodes_than_three(tmp_path):
    """Then each daemon is a participant, as without nodes."""
    with Nodes(tmp_path, 5) as c:
        c.start_server()
        c.share()
        for i, name in enumerate(c.names):
            c.start_daemon(name, node='n%d' % (1 + i % 2), collective='shm')
        c.wait_daemons(5, 20)
        plain, _ = c.run_job(60, **JOB)
        masked, _ = c.run_job(60, secure_sum=SUM, **JOB)
        assert comparable(c, masked) == comparable(c, plain)
        assert len(said(c, masked, 'the secure sum of 5 daemons begins')) == 3
        c.check_alive()


def test_a_late_member_is_a_participant_of_its_own(tmp_path):
    """The node waits two seconds for it, and adds without it."""
    with Nodes(tmp_path, 6) as c:
        c.start_server()
        proxy = h.Proxy(c.address, delay=1.2)
        c.start(server=proxy.address, slow='d4')
        once = dict(JOB, rounds=1)
        plain, _ = c.run_job(60, **once)
        masked, _ = c.run_job(60, secure_sum=SUM, **once)
        assert comparable(c, masked) == comparable(c, plain)
        assert said(c, masked, 'the secure sum of 4 daemons begins'), lines(c, masked)
        proxy.close()


@pytest.mark.parametrize('who,step', [('member', 'combine'), ('member', 'shares are exchanged'), ('leader', 'the secure sum of'),
                                      ('leader', 'masked updates are added')])
def test_a_daemon_of_a_node_is_killed(tmp_path, who, step):
    """d1, d4 and d7 are one node with five clients, and d1 leads. Another daemon is slow, so that each step takes a while."""
    with Nodes(tmp_path, 8) as c:
        c.start_server()
        proxy = h.Proxy(c.address, delay=0.2)
        c.start(server=proxy.address, slow='d8')
        job = c.submit(secure_sum=SUM, limits={'quorum': 0.4, 'retries': 5}, **dict(JOB, rounds=4))
        words = 'daemon d1 leads' if step == 'combine' else step
        h.wait_until(lambda: said(c, job, words), 30, words)
        c.daemons.pop('d4' if who == 'member' else 'd1').kill()
        c.wait_job(job, 90)
        rounds = c.rounds(job)
        assert rounds[-1]['clients'] == 13, lines(c, job)  # others train what the dead one would have
        _, plain = c.run_job(60, **dict(JOB, rounds=4))
        for r, digest in zip(rounds, plain):  # as long as nobody was missing
            if r['clients'] != 13:
                break
            assert r['digest'].hex() == digest
        for r in rounds:
            assert r['clients'] == 0 or r['clients'] >= 13 - 5, lines(c, job)
        c.check_alive()
        proxy.close()
