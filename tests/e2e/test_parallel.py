# SPDX-License-Identifier: Apache-2.0
"""One client on several workers of a daemon: one model on any number of them, also when a daemon dies meanwhile."""
import re
import signal

import pytest

from mfl_harness import wait_until

# Two clients in a round: a daemon with four workers gives each of them two, one with two workers gives each one.
JOB = {'rounds': 3, 'data': {'partition': 'dirichlet', 'clients': 5, 'alpha': 0.5, 'min_samples': 3}, 'selection': {'clients': 2},
       'training': {'batch': 8, 'accumulate': 2, 'momentum': 0.9, 'clip_norm': 1.0}, 'parallel': {'grain': 4, 'members': 64}}


@pytest.fixture(scope='module')
def expected(shared_cluster):
    return shared_cluster(1).run_job(**JOB)[1]


@pytest.mark.parametrize('daemons,workers', [(1, 2), (1, 3), (1, 4), (1, 8), (2, 2), (2, 3)])
def test_any_number_of_workers(cluster, expected, daemons, workers):
    c = cluster(daemons, workers=workers)
    c.wait_daemons(daemons)
    assert c.run_job(**JOB)[1] == expected


def test_members_and_backend(cluster, expected):
    c = cluster(1, workers=4, backend='cpu')
    first = c.run_job(**JOB)[1]
    assert first != expected  # another backend rounds otherwise
    for members in (1, 3):
        assert c.run_job(**dict(JOB, parallel={'grain': 4, 'members': members}))[1] == first
    for how in ({'overlap': True}, {'overlap': True, 'bucket': '64KiB'}, {'bucket': '1GiB'}):
        assert c.run_job(**dict(JOB, parallel={'grain': 4, 'members': 64, **how}))[1] == first
    assert c.run_job(**dict(JOB, parallel={'grain': 8}))[1] != first  # the grain is part of the result
    alone = c.run_job(**{k: v for k, v in JOB.items() if k != 'parallel'})
    assert alone[1] != first


def test_auto(cluster, expected):
    """However many workers pay, by times that differ from run to run; a step of 16 rows gets grains of four."""
    c = cluster(3, workers=2)
    c.wait_daemons(3)
    assert c.run_job(**dict(JOB, parallel='auto'))[1] == expected
    few = dict(JOB, rounds=20, selection={'clients': 1})
    first = c.run_job(**few)[1]
    assert c.run_job(**dict(few, parallel={'grain': 4, 'members': 'auto'}))[1] == first


def test_batch_norm(cluster):
    """Running statistics take what the grains saw, in their order."""
    job = dict(JOB, model={'preset': 'resnet20'}, rounds=1, selection={'clients': 1}, training={'batch': 8})
    found = [cluster(1, workers=n, backend='cpu').run_job(60, **job)[1] for n in (1, 3)]
    assert found[0] == found[1]


def test_batch_norm_sees_grains_as_batches(cluster):
    """As a job whose batches are the grains: with sums of floats, which that has, the losses are its own in every bit. Exact sums differ in the
    last bits of gradients, which a network with many norms makes larger in each step."""
    c = cluster(1, backend='cpu')
    norms = [{'conv2d': {'filters': 8, 'kernel': 3, 'padding': 1}}, 'batchnorm', 'relu',
             {'conv2d': {'filters': 8, 'kernel': 3, 'padding': 1, 'stride': 2}}, 'batchnorm', 'relu', 'flatten', {'dense': {'units': 4}}]
    job = {'rounds': 20, 'data': {'partition': 'iid', 'clients': 1}, 'selection': {'clients': 1}, 'model': {'layers': norms}}
    step = {'lr': 0.01, 'epochs': None, 'steps': 1}
    plain = c.run_job(60, **job, training={'batch': 4, 'accumulate': 4, **step})[0]
    losses = [r['train_loss'] for r in c.rounds(plain)]
    for exact in (False, True):
        team = c.run_job(60, **job, training={'batch': 16, **step}, parallel={'grain': 4, 'exact': exact})[0]
        found = [r['train_loss'] for r in c.rounds(team)]
        assert found == (pytest.approx(losses, rel=1e-5) if exact else losses)
    assert losses[-1] < 0.9 * losses[0]


def test_a_killed_daemon_costs_no_bit(cluster):
    c = cluster(1, workers=3)
    job = c.begin(**JOB)
    c.wait_info(job, lambda i: i['round'] >= 1, 30, 'round 1')
    c.daemons['d1'].kill()
    c.start_daemon('second', workers=2)
    c.finish(job, **JOB)


# One client in a round: all daemons of the node train it together.
FEW = dict(JOB, selection={'clients': 1})


def logs(c, job):
    return c.mfl('logs', job).stdout


@pytest.fixture(scope='module')
def few(shared_cluster):
    return shared_cluster(1).run_job(**FEW)[1]


@pytest.mark.parametrize('daemons,workers,team', [(2, 1, 'd2'), (3, 1, 'd2 and d3'), (5, 1, 'd2, d3 and d4'), (2, 3, 'd2')])
def test_teams_of_daemons(cluster, few, daemons, workers, team):
    """A step has four grains, so a team has at most four ranks."""
    c = cluster(daemons, workers=workers)
    c.share()
    c.wait_daemons(daemons)
    job, digests = c.run_job(**FEW)
    assert digests == few
    assert logs(c, job).count('daemon d1 leads a team with %s\n' % team) == FEW['rounds']


def test_what_is_shown(cluster):
    c = cluster(3)
    c.wait_daemons(3)
    job = c.begin(**FEW)
    wait_until(lambda: c.mfl_json('show', job)['teams']['at_work'], 30, 'a team at work')
    wait_until(lambda: re.search(r'(?m)^d1 +3 +memory +d2, d3 *$', c.mfl('show', job, '--teams').stdout), 30, 'it in the table')
    wait_until(lambda: 'helping' in [d['state'] for d in c.mfl_json('daemons')['daemons']], 30, 'a daemon that helps')
    parts = ['compute_seconds', 'exchange_seconds', 'apply_seconds']
    wait_until(lambda: all(c.mfl_json('show', job)['teams'][part] for part in parts), 30, 'the times of a team')
    teams = c.mfl_json('show', job)['teams']
    assert teams['formed'] > teams['broken'] == teams['taken'] == 0
    c.stop_job(job)
    ended = c.mfl_json('show', job)['teams']
    assert ended['formed'] >= teams['formed'] and not ended['at_work']


def test_who_joins_no_team(cluster, few):
    """One says so, one is on another node, one computes with another last bit; a job may keep to single daemons, too."""
    c = cluster(1)
    c.start_daemon('d2', more=['--team', 'off'])
    c.start_daemon('d3', node='n2')
    c.start_daemon('d4', backend='cpu')
    c.wait_daemons(4)
    job = c.run_job(**dict(FEW, selection={'clients': 1, 'daemons': {'min': 4}}))[0]
    assert 'leads' not in logs(c, job)
    assert re.search(r'daemons d\d and d\d join no team together, since their last bits differ: mfl-\d+ \w+ \(.*\) .*and mfl-\d+ \w+ \(', logs(c, job))
    c.start_daemon('d5')
    c.wait_daemons(5)
    for within, teams in (('daemon', 0), ('node', FEW['rounds'])):
        job, digests = c.run_job(**dict(FEW, parallel={'grain': 4, 'members': 64, 'within': within}))
        assert logs(c, job).count('daemon d1 leads a team with d5\n') == teams
    assert few  # rounds of this job may be trained by d4, which rounds otherwise
    job = c.submit(**dict(FEW, parallel={'grain': 4, 'members': {'min': 3, 'max': 4}}))
    why = r'have 3 workers together .*; these compute with other last bits: d1 \(reference .*\) and d4 \(cpu '
    wait_until(lambda: re.search(why, c.mfl('show', job).stdout), 30, 'why it waits')
    c.stop_job(job)


@pytest.mark.parametrize('victim', ['d1', 'd2', 'd3'])
def test_a_killed_member_costs_no_bit(cluster, few, victim):
    c = cluster(3)
    c.share()
    c.wait_daemons(3)
    few = dict(FEW, evaluation={'every': 0})
    job = c.begin(**few)
    c.wait_info(job, lambda i: i['round'] >= 1, 30, 'round 1')
    c.daemons[victim].kill()
    c.finish(job, **few)
    assert 'leads a team with d2 and d3' in logs(c, job)
    assert not [name for name in c.shared_files() if name.startswith('mfl-mesh')]


def test_a_stopped_member_costs_no_bit(cluster, few):
    c = cluster(3)
    c.wait_daemons(3)
    job = c.begin(**FEW)
    c.wait_info(job, lambda i: i['round'] >= 1, 30, 'round 1')
    c.daemons['d2'].signal(signal.SIGSTOP)
    at = c.info(job)['round']
    c.wait_info(job, lambda i: i['round'] >= at + 2, 30, 'rounds without d2')
    c.daemons['d2'].signal(signal.SIGCONT)
    wait_until(lambda: logs(c, job).rstrip().split('leads a team with ')[-1].startswith('d2 and d3'), 30, 'd2 to join again')
    c.finish(job, **FEW)


def test_a_killed_server_costs_no_bit(cluster, few):
    c = cluster(3)
    c.wait_daemons(3)
    job = c.begin(**FEW)
    for _ in range(3):
        at = c.wait_info(job, lambda i: True, 10, 'an answer')['round']
        c.wait_info(job, lambda i: i['round'] > at, 30, 'a round')
        c.server.kill()
        c.start_server()
        c.wait_daemons(3)
    c.finish(job, **FEW)


# ---- what a worker holds ----

ADAM = {'batch': 8, 'accumulate': 2, 'clip_norm': 1.0, 'optimizer': 'adamw', 'lr': 0.01}


def staged(zero, **more):
    return dict(FEW, training=ADAM, parallel={'grain': 4, 'members': 64, 'zero': zero, 'bucket': '64KiB', **more})


@pytest.fixture(scope='module')
def adam(shared_cluster):
    return shared_cluster(1).run_job(**staged('auto'))[1]


@pytest.mark.parametrize('zero', [0, 1, 2, 3])
def test_stages_give_one_model(cluster, adam, zero):
    c = cluster(3)
    c.wait_daemons(3)
    for overlap in (False, True):
        assert c.run_job(**staged(zero, overlap=overlap))[1] == adam
    c.daemons['d3'].stop()
    assert c.run_job(**staged(zero))[1] == adam


def test_stages_of_threads(cluster, adam):
    c = cluster(1, workers=3)
    assert all(c.run_job(**staged(zero))[1] == adam for zero in (0, 2, 3))


@pytest.mark.parametrize('daemons,workers', [(2, 1), (4, 1), (2, 2)])
def test_one_memory_of_the_params(cluster, adam, daemons, workers):
    """Stage 3, with buckets of each tensor's size and of all."""
    c = cluster(daemons, workers=workers)
    c.share()
    c.wait_daemons(daemons)
    for bucket in ('64KiB', '1GiB'):
        job, digests = c.run_job(**staged(3, overlap=bucket == '64KiB', bucket=bucket))
        assert digests == adam
        assert 'leads a team with' in logs(c, job)
    assert not [name for name in c.shared_files() if name.startswith('mfl-mesh')]


def test_fedprox_shares_out_the_start(cluster):
    job = dict(staged(2), aggregation={'strategy': 'fedprox', 'mu': 0.1})
    one, three = cluster(1), cluster(3)
    three.wait_daemons(3)
    assert one.run_job(**job)[1] == three.run_job(**job)[1]


@pytest.mark.parametrize('zero', [2, 3])
@pytest.mark.parametrize('victim', ['d1', 'd2'])
def test_a_killed_shard_costs_no_bit(cluster, adam, victim, zero):
    c = cluster(3)
    c.share()
    c.wait_daemons(3)
    job = c.begin(**staged(zero))
    c.wait_info(job, lambda i: i['round'] >= 1, 30, 'round 1')
    c.daemons[victim].kill()
    c.finish(job, **staged(zero))
    assert not [name for name in c.shared_files() if name.startswith('mfl-mesh')]


def test_sums_of_floats(cluster, adam):
    """They depend on the number of workers, and on nothing else."""
    one, two = cluster(1), cluster(2)
    two.wait_daemons(2)
    alone = one.run_job(**staged(1, exact=False))[1]
    assert alone == one.run_job(**staged(0, exact=False))[1] != adam
    together = two.run_job(**staged(1, exact=False))[1]
    assert together == two.run_job(**staged(0, exact=False, overlap=True))[1] != alone


# The second layer's gradient is computed from operands.
DENSE = dict(FEW, rounds=2, model={'layers': ['flatten', {'dense': {'units': 600}}, 'relu', {'dense': {'units': 600}}, 'relu', {'dense': {'units': 4}}]},
             training=dict(ADAM, lr=0.001, clip_norm=1.0, backend='cpu'))


def test_large_dense_layers(cluster):
    one, three, threads = cluster(1, backend='cpu'), cluster(3, backend='cpu'), cluster(1, workers=3, backend='cpu')
    three.share()
    three.wait_daemons(3)
    digests = one.run_job(60, **DENSE)[1]
    assert threads.run_job(60, **DENSE)[1] == digests
    for zero in (0, 1, 2, 3):
        how = dict(DENSE['parallel'], zero=zero, overlap=zero % 2 == 1)
        job, found = three.run_job(60, **dict(DENSE, parallel=how))
        assert found == digests
        assert 'leads a team with' in logs(three, job)
    job = three.begin(**DENSE)
    three.wait_info(job, lambda i: i['round'] >= 1, 60, 'round 1')
    three.daemons['d2'].kill()
    three.finish(job, **DENSE)
    assert three.digests(job)[:2] == digests


def test_large_dense_layers_behind_channels(cluster):
    """20 channels, of which the backend makes 24 or 32."""
    layers = [{'conv2d': {'filters': 20, 'kernel': 3}}, 'relu', 'flatten', {'dense': {'units': 700}}, 'relu', {'dense': {'units': 4}}]
    job = dict(DENSE, model={'layers': layers})
    three = cluster(3, backend='cpu')
    three.share()
    three.wait_daemons(3)
    digests = cluster(1, backend='cpu').run_job(60, **job)[1]
    for zero in (0, 1, 2, 3):
        assert three.run_job(60, **dict(job, parallel=dict(job['parallel'], zero=zero)))[1] == digests


# A model of 6 million params: alone a daemon needs 20 bytes for each, and a member of a team of four 5; the params that a round begins with
# come on top, with 4.
MEMORY = '95MiB'
LARGE = dict(FEW, rounds=2, model={'layers': ['flatten'] + [{'dense': {'units': 512}} for _ in range(24)] + [{'dense': {'units': 4}}]},
             training=dict(ADAM, lr=0.001, backend='cpu'), parallel={'grain': 4, 'members': 64, 'bucket': '64KiB'})


def test_a_team_trains_what_is_too_large_for_one(cluster):
    rich = cluster(1, backend='cpu')
    expected = rich.run_job(60, **LARGE)[1]
    c = cluster(0)
    c.start_daemon('d1', backend='cpu', more=['--memory', MEMORY])
    alone = c.submit(**LARGE)
    c.wait_job(alone, state='failed')
    assert re.search(r"MiB for a worker's gradients and optimizer: only .* of 95.0 MiB are free; in a team of 4 each needs \d+.\d MiB, the leader \d+.\d MiB$",
                     c.info(alone)['reason']), c.info(alone)['reason']
    for name in ('d2', 'd3', 'd4'):
        c.start_daemon(name, backend='cpu', more=['--memory', MEMORY])
    c.wait_daemons(4)
    job, digests = c.run_job(60, **LARGE)
    assert digests == expected
    assert 'daemon d1 leads a team with d2, d3 and d4\n' in logs(c, job)
    whole = c.submit(**dict(LARGE, parallel=dict(LARGE['parallel'], zero=2)))  # with all params at each of them
    c.wait_job(whole, 60, state='failed')
    assert re.search(r'only .* of 95.0 MiB are free; in a team of \d each needs \d+.\d MiB, the leader \d+.\d MiB; zero: 3 less$',
                     c.info(whole)['reason']), c.info(whole)['reason']


def test_a_leader_without_memory_is_named(cluster):
    """A team needs all four, and one can't: the job waits for another daemon, and says which one can't, and why."""
    c = cluster(0)
    for name in ('d1', 'd2', 'd3', 'd4'):
        c.start_daemon(name, backend='cpu', more=['--memory', '75MiB'])
    c.wait_daemons(4)
    job = c.submit(**dict(LARGE, parallel=dict(LARGE['parallel'], members={'min': 4, 'max': 4})))
    info = c.wait_info(job, lambda i: 'parallel.members.min' in i['reason'], 60, 'the reason')
    assert re.search(r"; those that can do it have 3; d\d: j-\d+: memory: .* are free", info['reason']), info['reason']
