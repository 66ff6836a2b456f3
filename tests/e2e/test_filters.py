# SPDX-License-Identifier: Apache-2.0
"""Filters that a site's administrator adds: loaded, in the job's log, applied before the rounding, refused, rejecting, and crashing."""
import hashlib
import os
import shutil

import numpy as np
import pytest

import mfl_harness as h
from mfl_plugins import build

SOURCE = '''
#include <mfl/filter.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
static int apply(const struct mfl_filter_call *call)
{
        %(body)s
        return 0;
}
const struct mfl_filter_plugin *mfl_filter_plugin(void)
{
        static const struct mfl_plugin_number settings[] = {{"a", 0, 0, 1000}, {"b", 1, -2, 2}};
        static const struct mfl_filter_plugin plugin = {.abi = %(abi)s, .name = "%(name)s", .version = "7", .n_settings = 2,
                .settings = settings, .apply = apply};
        return &plugin;
}
'''
BODIES = {
    'nothing': '',
    'scale': 'for (size_t i = 0; i < call->count; i++) call->delta[i] *= (float)call->settings[1];',
    'reject': 'if (call->client == (uint64_t)call->settings[0]) { snprintf(call->reason, MFL_FILTER_REASON_BYTES, "client %d stays here",'
              ' (int)call->client); return 1; }',
    'infinite': 'call->delta[call->tensors[0].first] = INFINITY;',
    'crash': 'if (call->round == 2 && call->client == (uint64_t)call->settings[0]) abort();',
}
JOB = {'rounds': 3, 'data': {'clients': 6}, 'selection': {'clients': 6}, 'model': 'logistic', 'limits': {'quorum': 0.5}}


def source(name, body=None, abi='MFL_FILTER_ABI'):
    return SOURCE % {'name': name, 'body': BODIES.get(name, '') if body is None else body, 'abi': abi}


@pytest.fixture(scope='module')
def plugins(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp('plugins'))
    os.chmod(directory, 0o755)
    for name in BODIES:
        build(directory, name, source(name))
    build(directory, 'layer-clip', 'examples/plugins/layer_clip.c')
    return directory


class Site:
    """A server, and a daemon whose updates go through filters."""

    def __init__(self, cluster, directory, filters):
        self.c = cluster(0)
        self.config = self.c.write('client.yaml', h.yaml_of({'plugins': directory, 'filters': filters}))
        self.start()
        self.c.wait_daemons(1)

    def start(self, name='d1'):
        return self.c.start_daemon(name, workers=2, more=['--config', self.config])


def use(name, **settings):
    return {'name': name, **({'settings': settings} if settings else {})}


def params(c, job, number):
    path = os.path.join(c.dir, '%s-%d.npz' % (job, number))
    c.mfl('pull', job, '--round', str(number), '--format', 'npz', '-o', path)
    with np.load(path) as tensors:
        return {name: tensors[name] for name in tensors}


@pytest.mark.parametrize('more', [{}, {'compression': {'up': {'bits': 8}}}, {'aggregation': {'strategy': 'median'}},
                                  {'aggregation': {'strategy': 'ditto'}}, {'model': 'mlp', 'rounds': 1}])
def test_a_filter_that_changes_nothing_changes_no_bit(cluster, plugins, more):
    site = Site(cluster, plugins, [use('nothing'), use('scale', b=1)])
    _, digests = site.c.run_job(**{**JOB, **more})
    assert digests == cluster(1).run_job(**{**JOB, **more})[1]


def test_filters_run_in_order_and_are_in_the_log(cluster, plugins):
    """Half of it, then minus that: the params move the other way, by half."""
    site = Site(cluster, plugins, [use('scale', b=0.5), use('scale', b=-1)])
    job = site.c.run_job(**dict(JOB, rounds=1, checkpoints={'keep': 9}))[0]
    plain = cluster(1)
    other = plain.run_job(**dict(JOB, rounds=1, checkpoints={'keep': 9}))[0]
    ours, theirs, start = params(site.c, job, 1), params(plain, other, 1), params(plain, other, 0)
    for name in start:
        assert np.allclose(ours[name] - start[name], -0.5 * (theirs[name] - start[name]), atol=1e-6)
    with open(os.path.join(plugins, 'scale.so'), 'rb') as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    line = 'daemon d1 filters its updates: scale 7 (a 0, b 0.5), sha256 %s; scale 7 (a 0, b -1), sha256 %s' % (digest, digest)
    assert line in site.c.mfl('logs', job).stdout
    assert 'every update goes through: scale 7' in site.c.daemons['d1'].log()


def test_the_example_does_what_it_says(cluster, plugins):
    """With one client, no tensor moves farther than the norm."""
    alone = dict(JOB, data={'clients': 1}, selection={'clients': 1}, rounds=1, checkpoints={'keep': 9}, training={'lr': 0.5})
    site, plain = Site(cluster, plugins, [use('layer-clip', norm=0.01)]), cluster(1)
    moved = []
    for c in (site.c, plain):
        job = c.run_job(**alone)[0]
        after, before = params(c, job, 1), params(c, job, 0)
        moved.append({name: np.linalg.norm(after[name] - before[name]) for name in after})
    assert all(length <= 0.01 * (1 + 1e-3) for length in moved[0].values())
    assert any(length > 0.02 for length in moved[1].values())


def test_an_update_that_a_filter_rejects(cluster, plugins):
    site = Site(cluster, plugins, [use('reject', a=3)])
    job = site.c.run_job(**JOB)[0]
    assert [r['clients_rejected'] for r in site.c.rounds(job)] == [1, 1, 1] and [r['clients'] for r in site.c.rounds(job)] == [5, 5, 5]
    assert 'filter reject: client 3 stays here' in site.c.mfl('logs', job).stdout


def test_what_is_not_finite_is_rejected(cluster, plugins):
    site = Site(cluster, plugins, [use('infinite')])
    job = site.c.submit(**dict(JOB, limits={'retries': 0}))
    assert 'inf' in str(site.c.wait_job(job, state='failed')['reason'])


def test_a_killed_daemon_continues_with_the_same_bits(cluster, plugins):
    site = Site(cluster, plugins, [use('scale', b=0.5)])
    expected = site.c.run_job(**dict(JOB, rounds=4))[1]
    job = site.c.begin(**dict(JOB, rounds=4))
    site.c.wait_info(job, lambda i: i['round'] >= 1, 30, 'a round')
    site.c.daemons['d1'].kill()
    site.start()
    site.c.wait_job(job)
    assert site.c.digests(job) == expected


def test_a_crash_costs_one_client(cluster, plugins):
    """The daemon ends twice in that client's update; then the client is rejected, and the round goes on without it."""
    site = Site(cluster, plugins, [use('crash', a=4)])
    job = site.c.submit(**JOB)
    for _ in range(2):
        h.wait_until(lambda: not site.c.daemons['d1'].alive(), 30, 'the crash')
        site.start()
    site.c.wait_job(job)
    assert [r['clients_rejected'] for r in site.c.rounds(job)] == [0, 1, 0]
    assert "filter crash: the daemon ended 2 times in it, in this client's update" in site.c.mfl('logs', job).stdout


@pytest.mark.parametrize('filters,text', [
    ([use('other')], 'there is no filter other in the directory of `plugins`; it has crash, infinite, layer-clip, nothing, reject, scale'),
    ([use('scale', c=1)], 'filters.settings: scale has no setting c; it has a, b'),
    ([use('scale', b=3)], 'filters.settings.b: 3 is not from -2 to 2, which scale takes'),
    ([{'name': '../scale'}], 'client.yaml:2: filters[0].name: must be the name of a plug-in'),
    ([{'settings': {}}], 'name'),
    ([use('scale', b='much')], 'expected a number'),
    ([use('scale')] * 9, 'expected a list of at most 8'),
    ({'name': 'scale'}, 'expected a list'),
])
def test_what_a_configuration_may_not_say(cluster, plugins, filters, text):
    c = cluster(0)
    c.write('client.yaml', h.yaml_of({'plugins': plugins, 'filters': filters}))
    daemon = c.start_daemon('d1', more=['--config', os.path.join(c.dir, 'client.yaml')])
    assert daemon.wait(20) == 78 and text in daemon.log(), daemon.log()


def spoil_abi(directory):
    build(directory, 'old', source('old', abi='99'))
    return 'old.so is of ABI 99, and this daemon takes 1: build it against this release\'s mfl/filter.h'


def spoil_table(directory):
    build(directory, 'Upper', source('Upper'))
    return 'its name is not 1 to 63 lower-case letters'


def spoil_kind(directory):
    build(directory, 'sign', 'examples/plugins/sign_momentum.c')
    return 'sign.so has no mfl_filter_plugin: it is no plug-in of a daemon'


def spoil_owner(directory):
    os.chmod(os.path.join(directory, 'scale.so'), 0o666)
    return "scale.so: others can write it, and it would run with the daemon's rights"


@pytest.mark.parametrize('spoil', [spoil_abi, spoil_table, spoil_kind, spoil_owner])
def test_a_daemon_does_not_start_with_a_bad_one(cluster, plugins, tmp_path, spoil):
    own = str(tmp_path / 'own')
    shutil.copytree(plugins, own)
    text = spoil(own)
    c = cluster(0)
    daemon = c.start_daemon('d1', more=['--plugins', own])
    assert daemon.wait(20) == 78 and text in daemon.log(), daemon.log()
