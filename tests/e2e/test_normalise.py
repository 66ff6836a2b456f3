# SPDX-License-Identifier: Apache-2.0
"""data.normalise: federated: the numbers of numpy over all sites, in the job file and the contract; one digest for any number of daemons and across
kill -9; what is refused."""
import os
import re

import numpy as np
import pytest

import mfl_harness as h
from test_sites import MODEL, make_ward

FEDERATED = {'name': 'ward', 'partition': 'local', 'clients': None, 'normalise': 'federated'}


def start(c, site, daemons=1, **options):
    for k in range(daemons):
        c.start_daemon('%s%d' % (site, k), data=['ward=npz:%s/%s.npz' % (c.dir, site)], more=['--site', site, *options.pop('more', ())],
                       **options)


def given(c, job):
    """The mean and deviation of the job file that the server keeps."""
    text = c.mfl_json('show', job)['text']
    found = re.search(r'normalise"?: ?\{mean: \[([^]]*)\], std: \[([^]]*)\]\}', text)
    return [[float(v) for v in g.split(',')] for g in found.groups()]


def run(directory, daemons, kill=False):
    with h.Cluster(directory) as c:
        c.start_server()
        data = {s: make_ward(os.path.join(c.dir, s + '.npz'), i + 1, (60 + 30 * i, 20)) for i, s in enumerate('ab')}
        # The job waits for both sites before it measures.
        job = c.submit(name='ward', model=MODEL, rounds=4, data=FEDERATED, training={'lr': 0.05}, selection={'daemons': {'min': 2}})
        start(c, 'a', daemons)
        c.wait_daemons(daemons)
        assert 'federated' in c.mfl_json('show', job)['text']
        if kill:
            c.server.kill()
            c.start_server()
        start(c, 'b', daemons)
        if kill:
            c.wait_info(job, lambda info: info['round'] >= 1, 30, 'a round')
            c.server.kill()
            c.start_server()
        c.wait_job(job)
        c.mfl('pull', job, '-o', 'm.safetensors')
        shown = c.mfl_json('model', 'show', 'm.safetensors')['contract']
        return data, given(c, job), c.digests(job), shown, c.mfl('logs', job).stdout


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
    return run(tmp_path_factory.mktemp('alone'), 1)


def test_beside_numpy(alone):
    data, (mean, std), _, contract, log = alone
    x = np.concatenate([d['x_train'] for d in data.values()]).astype(np.float64)
    assert mean == pytest.approx(x.mean(0), rel=1e-14) and std == pytest.approx(x.std(0), rel=1e-13)
    assert 'mean and deviation are those of 150 training samples at 2 sites' in log
    assert contract['mean'] == mean and contract['std'] == std and not contract.get('normalised')


@pytest.mark.parametrize('daemons, kill', [(2, False), (1, True)])
def test_digest(alone, tmp_path, daemons, kill):
    """Two daemons of each site, which count once; and a server that is killed when a round is committed."""
    _, numbers, digests, _, _ = run(tmp_path, daemons, kill)
    assert numbers == alone[1] and digests == alone[2]


def test_refusals(tmp_path):
    with h.Cluster(tmp_path) as c:
        c.start_server()
        make_ward(os.path.join(c.dir, 'a.npz'), 1, (30, 10))
        c.start_daemon('a', data=['ward=npz:%s/a.npz,normalise=columns' % c.dir])
        c.wait_daemons(1)
        job = c.submit(name='ward', model=MODEL, rounds=1, data=FEDERATED)
        h.wait_until(lambda: 'wait for site a' in c.mfl('logs', job).stdout, 20, 'the reason')
        assert 'has no raw values here' in c.mfl('logs', job).stdout
        c.mfl('stop', job)
        c.wait_job(job, state='stopped')
        for value, why in [('both', 'expected federated'), ({'mean': [1], 'std': [0]}, 'above 0'), ({'mean': [1, 2], 'std': [1]}, 'a number for each')]:
            path = c.write('bad.yaml', h.job_text(data={**FEDERATED, 'normalise': value}))
            assert why in c.mfl('check', path, status=5).stderr, (value, why)
        three = c.submit(name='three', model=MODEL, rounds=1, data={**FEDERATED, 'normalise': {'mean': [0] * 3, 'std': [1] * 3}})
        c.wait_job(three, state='failed')
        assert 'this site normalises the columns' in c.info(three)['reason']
