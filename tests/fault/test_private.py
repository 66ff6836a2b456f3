# SPDX-License-Identifier: Apache-2.0
"""Jobs with noise, and kill -9: the same sum gets the same noise and costs one release; another sum of the same round gets other noise
and costs a second one; nothing leaves that is not written down."""
import json
import os
import shutil
import sqlite3
import time

import numpy as np
import pytest

import mfl_harness as h

KEY = bytes(range(1, 33))
PRIVACY = {'kind': 'central', 'clip': 0.05, 'noise': 1.0, 'epsilon_max': 30, 'delta': 1e-5}
POISSON = {'rounds': 5, 'data': {'partition': 'iid', 'clients': 40}, 'selection': {'kind': 'poisson', 'rate': 0.3},
           'privacy': PRIVACY, 'limits': {'quorum': 0.1}}


def use_key(c, key=KEY):
    path = os.path.join(c.state_dir, 'noise.key')
    os.makedirs(c.state_dir, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 'wb') as f:
        f.write(key)


def rounds_of(c, job):
    return json.loads(c.mfl('show', job, '--json').stdout)['rounds']


def releases(c):
    db = sqlite3.connect(os.path.join(c.state_dir, 'mfl.db'))
    rows = [r for r, in db.execute('SELECT round FROM releases ORDER BY round')]
    db.close()
    return rows


@pytest.fixture(scope='module')
def expected(shared_cluster):
    c = shared_cluster(1)
    use_key(c)
    job, digests = c.run_job(60, **POISSON)
    return digests, [r['epsilon'] for r in rounds_of(c, job)]


@pytest.mark.parametrize('point,n', [('before-db-commit', k) for k in range(4, 12)] + [('after-db-commit', k) for k in (5, 7, 9)] +
                         [('before-rename', k) for k in (2, 3)])
def test_a_killed_server_repeats_its_noise(cluster, expected, point, n):
    """At each step of what is written down: releases, checkpoints, rounds."""
    c = cluster(0)
    use_key(c)
    c.server.kill()
    c.start_server(env={'MFL_FAULT': '%s:%d:exit' % (point, n)})
    c.start_daemon('d1')
    c.wait_daemons(1)
    job = c.submit(**POISSON)
    h.wait_until(lambda: not c.server.alive(), 30, 'the server to die')
    c.start_server()
    c.wait_job(job, 60)
    assert (c.digests(job), [r['epsilon'] for r in rounds_of(c, job)]) == expected
    assert releases(c) == [1, 2, 3, 4, 5]


ADAPTIVE = {**POISSON, 'privacy': dict(PRIVACY, clip='adaptive')}


@pytest.fixture(scope='module')
def expected_clips(shared_cluster):
    c = shared_cluster(1)
    use_key(c)
    job, digests = c.run_job(60, **ADAPTIVE)
    return digests, [(r['epsilon'], r['clip']) for r in rounds_of(c, job)]


@pytest.mark.parametrize('point,n', [('before-db-commit', k) for k in (5, 7, 9)] + [('before-rename', 2)])
def test_a_killed_server_repeats_its_clips(cluster, expected_clips, point, n):
    """The clip's noise is the round's, too."""
    c = cluster(0)
    use_key(c)
    c.server.kill()
    c.start_server(env={'MFL_FAULT': '%s:%d:exit' % (point, n)})
    c.start_daemon('d1')
    c.wait_daemons(1)
    job = c.submit(**ADAPTIVE)
    h.wait_until(lambda: not c.server.alive(), 30, 'the server to die')
    c.start_server()
    c.wait_job(job, 60)
    assert (c.digests(job), [(r['epsilon'], r['clip']) for r in rounds_of(c, job)]) == expected_clips
    assert len({clip for _, clip in expected_clips[1]}) == 5 and releases(c) == [1, 2, 3, 4, 5]


def test_killed_at_random(cluster, expected):
    c = cluster(0)
    use_key(c)
    for name in ('d1', 'd2'):
        c.start_daemon(name)
    c.wait_daemons(2)
    job = c.submit(**POISSON)
    rng = h.seeded('private')
    for _ in range(5):
        time.sleep(rng.random() * 0.4)
        c.server.kill()
        c.start_server()
    c.wait_job(job, 60)
    assert (c.digests(job), [r['epsilon'] for r in rounds_of(c, job)]) == expected
    assert releases(c) == [1, 2, 3, 4, 5]


def params_of(path):
    return np.concatenate([np.frombuffer(data, '<f4') for name, (_, _, data) in sorted(h.read_safetensors(path).items())]).astype(float)


def test_another_sum_has_other_noise_and_costs_a_release(cluster, tmp_path):
    """Two sites make round 1, whose params leave; the server dies before the commit, and one site is gone when it comes back. The
    two releases differ by far more than a site's update, and both count."""
    c = cluster(0, config={'reconnect_grace': '300ms'})
    use_key(c)
    c.server.kill()
    c.start_server()
    noise = 40.0
    job_of = dict(rounds=2, model='logistic', data={'partition': 'local', 'clients': None},
                  privacy=dict(PRIVACY, noise=noise, clients=2), limits={'quorum': 0.5, 'deadline': '3s'}, selection={'daemons': {'min': 1}})
    for name in ('d1', 'd2'):
        c.start_daemon(name)
    c.wait_daemons(2)
    c.server.kill()
    c.start_server(env={'MFL_FAULT': 'before-rename:1:hang'})  # the checkpoint of round 1 never gets its name
    c.wait_daemons(2)
    job = c.submit(**job_of)
    first = os.path.join(c.state_dir, 'jobs', job)
    h.wait_until(lambda: [f for f in os.listdir(first) if f.endswith('.tmp')], 20, 'a checkpoint')
    assert releases(c) == [1]
    time.sleep(0.5)
    tmp = [f for f in os.listdir(first) if f.startswith('round') and f.endswith('.tmp')][0]
    shutil.copy(os.path.join(first, tmp), tmp_path / 'first.safetensors')
    c.server.kill()
    c.daemons['d2'].kill()
    c.start_server()
    c.wait_job(job, 60)
    rounds = rounds_of(c, job)
    assert releases(c) == [1, 1, 2] and [r['clients'] for r in rounds] == [1, 1]
    want = [json.loads(h.mfl('privacy', '--sigma', noise, '--q', 1, '--rounds', n, '--delta', '1e-5', '--json').stdout)['epsilon'] for n in (2, 3)]
    assert [r['epsilon'] for r in rounds] == pytest.approx(want, abs=1e-6)
    c.mfl('pull', job, '--round', 1, '--output', tmp_path / 'second.safetensors')
    apart = params_of(tmp_path / 'first.safetensors') - params_of(tmp_path / 'second.safetensors')
    sigma = noise * PRIVACY['clip'] / 2
    assert apart.std() == pytest.approx(np.sqrt(2) * sigma, rel=0.25)  # 260 numbers: five deviations are 22%


def test_a_lost_key_is_another_release(cluster, expected):
    """The same sum with the noise of a new key is a second noisy value of it."""
    c = cluster(0)
    use_key(c)
    c.server.kill()
    c.start_server(env={'MFL_FAULT': 'before-rename:1:exit'})
    c.start_daemon('d1')
    c.wait_daemons(1)
    job = c.submit(**dict(POISSON, selection=None, rounds=1))
    h.wait_until(lambda: not c.server.alive(), 30, 'the server to die')
    use_key(c, KEY[::-1])
    c.start_server()
    c.wait_job(job, 60)
    assert releases(c) == [1, 1]
    want = json.loads(h.mfl('privacy', '--sigma', 1, '--q', 1, '--rounds', 2, '--delta', '1e-5', '--json').stdout)['epsilon']
    assert rounds_of(c, job)[0]['epsilon'] == pytest.approx(want, abs=1e-6)
