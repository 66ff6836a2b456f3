# SPDX-License-Identifier: Apache-2.0
"""One client on several workers of a daemon: one model on any number of them, also when a daemon dies meanwhile."""
import pytest

# Two clients in a round: a daemon with four workers gives each of them two, one with two workers gives each one.
JOB = {'rounds': 3, 'data': {'partition': 'dirichlet', 'clients': 5, 'alpha': 0.5, 'min_samples': 3}, 'selection': {'clients': 2},
       'training': {'batch': 8, 'accumulate': 2, 'momentum': 0.9, 'clip_norm': 1.0}, 'parallel': {'grain': 4}}


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
        assert c.run_job(**dict(JOB, parallel={'grain': 4, **how}))[1] == first
    assert c.run_job(**dict(JOB, parallel={'grain': 8}))[1] != first  # the grain is part of the result
    alone = c.run_job(**{k: v for k, v in JOB.items() if k != 'parallel'})
    assert alone[1] != first


def test_batch_norm(cluster):
    """Running statistics take what the grains saw, in their order."""
    job = dict(JOB, model={'preset': 'resnet20'}, rounds=1, selection={'clients': 1}, training={'batch': 8})
    found = [cluster(1, workers=n, backend='cpu').run_job(60, **job)[1] for n in (1, 3)]
    assert found[0] == found[1]


def test_a_killed_daemon_costs_no_bit(cluster):
    c = cluster(1, workers=3)
    job = c.begin(**JOB)
    c.wait_info(job, lambda i: i['round'] >= 1, 30, 'round 1')
    c.daemons['d1'].kill()
    c.start_daemon('second', workers=2)
    c.finish(job, **JOB)
