# SPDX-License-Identifier: Apache-2.0
"""Teams of daemons whose GPUs keep the training's vectors, on the emulated device: one model on any number of cards, where they can't
reach each other, and when one is killed meanwhile."""
import os
import signal

import pytest

import mfl_harness as h

EMU = os.path.join(h.BUILD, 'tests', 'emu')
pytestmark = pytest.mark.skipif(not os.path.exists(os.path.join(EMU, 'libmfl_cuda_emulated.so')),
                                reason='the emulated device is not built: no CUDA headers')
JOB = {'rounds': 3, 'data': {'partition': 'dirichlet', 'clients': 5, 'alpha': 0.5, 'min_samples': 3}, 'selection': {'clients': 1},
       'training': {'batch': 8, 'accumulate': 2, 'optimizer': 'adamw', 'lr': 0.01, 'clip_norm': 1.0},
       'parallel': {'grain': 4, 'members': 64}}
HOST = "the team's vectors are in the host's memory: "
OPENED = 'GPUs opened a communicator in '


def start(c, name, card, options=None, **more):
    """A daemon with a card of its own."""
    locks = c.log_path(name) + '.locks'
    os.makedirs(locks, exist_ok=True)
    env = {'MFL_MODULE_DIR': EMU, 'MFL_CACHE_DIR': '/dev/null/none', 'MFL_GPU_LOCK_DIR': locks, 'MFL_EMU_FIRST': str(card), **more}
    return c.start_daemon(name, env=env, backend='cuda', **(options or {}))


@pytest.fixture(scope='module')
def expected(shared_cluster):
    c = shared_cluster(0)
    start(c, 'd1', 0)
    return c.run_job(**JOB)[1]


@pytest.mark.parametrize('zero', [0, 1])
@pytest.mark.parametrize('cards', [2, 3])
def test_any_number_of_cards(cluster, expected, cards, zero):
    c = cluster(0)
    for i in range(cards):
        start(c, 'd%d' % (i + 1), i)
    c.wait_daemons(cards)
    job, digests = c.run_job(**dict(JOB, parallel={**JOB['parallel'], 'zero': zero}))
    assert digests == expected
    assert c.mfl('logs', job).stdout.count('leads a team with') == JOB['rounds']
    assert not any(HOST in d.log() for d in c.daemons.values())
    assert [d.log().count(OPENED) for d in c.daemons.values()] == [1] * cards, 'a round goes on with the communicator of the one before'


@pytest.fixture(scope='module')
def one_card(shared_cluster):
    c = shared_cluster(0)
    start(c, 'd1', 0)
    return c


@pytest.fixture(scope='module')
def two_cards(shared_cluster):
    c = shared_cluster(0)
    start(c, 'd1', 0)
    start(c, 'd2', 1)
    c.wait_daemons(2)
    return c


@pytest.mark.parametrize('how,adds', [
    ({}, 'nccl'),
    ({'parallel': {'grain': 4}}, 'shm'),
    ({'parallel': {'grain': 4, 'exact': False}}, 'shm'),
    ({'compression': {'up': {'bits': 8}}}, 'shm'),
    ({'compression': {'up': 'bf16'}}, 'shm'),
    ({'aggregation': {'update_clip': 0.01}}, 'shm'),
])
def test_a_group_adds_what_its_members_trained(one_card, two_cards, how, adds):
    """As many clients as daemons, so there is no team; sums that are made on the host are added there, and not the cards' empty ones."""
    job = {'rounds': 2, 'data': {'partition': 'iid', 'clients': 4}, 'selection': {'clients': 2}, 'training': {'batch': 8}, **how}
    expected = one_card.run_job(60, **job)[1]
    assert expected[0] != expected[1]
    name, digests = two_cards.run_job(60, **job)
    assert 'form a group by %s' % adds in two_cards.mfl('logs', name).stdout
    assert digests == expected


def test_vectors_leave_room_for_networks(cluster):
    """Both networks of a daemon with two workers fit, but not beside the vectors of the first one's client."""
    c = cluster(0)
    layers = [{'flatten': {}}, {'dense': {'units': 512}}, {'relu': {}}, {'dense': {'units': 512}}, {'relu': {}}, {'dense': {'units': 4}}]
    start(c, 'd1', 0, {'workers': 2, 'more': ('--gpu-memory', '29MiB')})
    job, _ = c.run_job(120, **dict(JOB, rounds=1, model={'layers': layers, 'input': [1, 8, 8], 'classes': 4}, selection={'clients': 2}))
    assert "for a team's vectors and its job's other networks" in c.daemons['d1'].log()


@pytest.mark.parametrize('second,why', [({'card': 0}, 'Duplicate GPU'), ({'card': 1, 'MFL_EMU_NCCL': 'absent'}, 'libnccl'),
                                        ({'card': 1, 'MFL_EMU_NCCL': '22703'}, 'another daemon')])
def test_cards_that_do_not_reach_each_other(cluster, expected, second, why):
    c = cluster(0)
    start(c, 'd1', 0)
    start(c, 'd2', **second)
    made = 'emu-nccl-%d-' % c.daemons['d1'].pid, 'emu-nccl-%d-' % c.daemons['d2'].pid
    c.wait_daemons(2)
    assert c.run_job(**JOB)[1] == expected
    logs = [d.log() for d in c.daemons.values()]
    if why != 'another daemon':
        assert any(HOST in log and why in log for log in logs), logs
    else:
        assert HOST in logs[0], logs
    if second['card']:
        assert not [name for name in os.listdir('/dev/shm') if name.startswith(made)], 'an id that nobody opens is a leak'


def test_cards_that_open_and_then_fail(cluster, expected):
    """Nobody is to blame, and in the end the host's memory does it."""
    c = cluster(0)
    start(c, 'd1', 0)
    start(c, 'd2', 1, MFL_EMU_NCCL='breaks')
    c.wait_daemons(2)
    job, digests = c.run_job(60, **JOB)
    assert digests == expected
    assert HOST + 'GPUs did not reach each other 3 times' in c.daemons['d2'].log()
    assert 'has not come' not in c.mfl('logs', job).stdout


def test_other_members_open_another_communicator(cluster, expected):
    """Between two teams, so that nothing breaks: one goes and comes back, and a second job is another one's."""
    c = cluster(0)
    for i in range(2):
        start(c, 'd%d' % (i + 1), i)
    c.wait_daemons(2)
    logs = c.daemons['d1'].log
    assert c.run_job(**JOB)[1] == expected
    assert c.run_job(**JOB)[1] == expected
    assert logs().count(OPENED) == 2
    job = c.begin(**JOB)
    c.wait_info(job, lambda i: i['round'] >= 2, 60, 'round 2')
    assert logs().count(OPENED) == 3
    c.daemons['d2'].stop()
    at = c.info(job)['round']
    c.wait_info(job, lambda i: i['round'] >= at + 2, 60, 'rounds alone')
    start(c, 'd2', 1)
    h.wait_until(lambda: logs().count(OPENED) == 4, 60, 'another communicator')
    c.finish(job, **JOB)
    assert not any(HOST in d.log() for d in c.daemons.values())


@pytest.mark.parametrize('victim,how', [('d1', signal.SIGKILL), ('d3', signal.SIGKILL), ('d2', signal.SIGSTOP)])
def test_a_lost_card_costs_no_bit(cluster, victim, how):
    c = cluster(0)
    for i in range(3):
        start(c, 'd%d' % (i + 1), i)
    c.wait_daemons(3)
    job = c.begin(**JOB)
    c.wait_info(job, lambda i: i['round'] >= 1, 60, 'round 1')
    c.daemons[victim].signal(how)
    at = c.info(job)['round']
    c.wait_info(job, lambda i: i['round'] >= at + 2, 60, 'rounds without it')
    if how == signal.SIGSTOP:
        c.daemons[victim].signal(signal.SIGCONT)
    c.finish(job, **JOB)
