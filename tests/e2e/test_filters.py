# SPDX-License-Identifier: Apache-2.0
"""Filters that a site's administrator adds: loaded, in the job's log, applied before the rounding, refused, rejecting, and crashing."""
import hashlib
import json
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
WHOLE = {key: value for key, value in JOB.items() if key != 'limits'}  # no round without all of its clients


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
        share = os.path.join(self.c.dir, 'share')  # marks of an earlier run of the same test are marks of the same updates
        os.mkdir(share)
        self.config = self.c.write('client.yaml', h.yaml_of({'plugins': directory, 'filters': filters, 'share_dir': share}))
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
    """Half of it, then minus that: the params move the other way, by half. Nothing at all shows where they began."""
    one = dict(JOB, rounds=1)
    site, still, plain = Site(cluster, plugins, [use('scale', b=0.5), use('scale', b=-1)]), Site(cluster, plugins, [use('scale', b=0)]), cluster(1)
    ours, start, theirs = [params(c, c.run_job(**one)[0], 1) for c in (site.c, still.c, plain)]
    for name in start:
        assert np.allclose(ours[name] - start[name], -0.5 * (theirs[name] - start[name]), atol=1e-6) and np.any(theirs[name] != start[name])
    with open(os.path.join(plugins, 'scale.so'), 'rb') as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    line = 'daemon d1 uses plug-ins: filter scale 7 (a 0, b 0.5), sha256 %s; filter scale 7 (a 0, b -1), sha256 %s' % (digest, digest)
    assert line in site.c.mfl('logs', 'j-000001').stdout
    assert 'plug-ins: filter scale 7' in site.c.daemons['d1'].log()


def test_the_example_does_what_it_says(cluster, plugins):
    """With one client, no tensor moves farther than the norm."""
    alone = dict(JOB, data={'clients': 1}, selection={'clients': 1}, rounds=2, checkpoints={'keep': 9}, training={'lr': 0.5})
    site, plain = Site(cluster, plugins, [use('layer-clip', norm=0.01)]), cluster(1)
    moved = []
    for c in (site.c, plain):
        job = c.run_job(**alone)[0]
        after, before = params(c, job, 2), params(c, job, 1)
        moved.append({name: np.linalg.norm(after[name] - before[name]) for name in after})
    assert all(length <= 0.01 * (1 + 1e-3) for length in moved[0].values())
    assert any(length > 0.02 for length in moved[1].values())


def test_a_filter_that_jobs_ask_for(cluster, plugins):
    """Only the job that names it is changed; a job that names a filter that is always used changes nothing by it."""
    site, plain = Site(cluster, plugins, [{**use('scale', b=0), 'when': 'asked'}, use('nothing')]), cluster(1)
    assert site.c.run_job(**JOB)[1] == plain.run_job(**JOB)[1]
    assert site.c.run_job(**JOB, filters=['nothing'])[1] == plain.digests('j-000001')
    job = site.c.run_job(**JOB, filters=['scale'], checkpoints={'keep': 9})[0]
    first, last = params(site.c, job, 1), params(site.c, job, 3)
    assert all(np.array_equal(first[name], last[name]) for name in first)
    assert 'filter scale' in site.c.mfl('logs', job).stdout and 'filter scale' not in site.c.mfl('logs', 'j-000001').stdout
    daemon = json.loads(site.c.mfl('daemons', '--json').stdout)['daemons'][0]
    assert sorted(daemon['filters']) == ['nothing', 'scale'] and [s['name'] for s in daemon['data_sets']] == ['tiny']
    missing = site.c.submit(**{**JOB, 'data': {'name': 'absent', 'clients': 6}})
    reason = h.wait_until(lambda: site.c.info(missing)['reason'], 10, 'the reason')
    assert 'offered: tiny' in reason and 'filter:' not in reason
    site.c.stop_job(missing)
    assert 'no connected daemon has data set filter:scale' in site.c.mfl('data', 'stats', 'filter:scale', status=None).stderr
    refused = site.c.mfl('submit', site.c.write('job.yaml', h.job_text(**JOB, filters=['other'])), status=None).stderr
    assert 'filters: none of the 1 daemons that are connected has the filter other (filters in client.yaml)' in refused


def test_a_job_waits_for_a_daemon_with_its_filter(cluster, plugins):
    c = cluster(0)
    job = c.submit(**JOB, filters=['scale'])
    c.start_daemon('plain')
    c.wait_daemons(1)
    c.wait_info(job, lambda i: 'no daemon that has the filter scale (filters in client.yaml)' in str(i['reason']), 30, 'the reason')
    config = c.write('client.yaml', h.yaml_of({'plugins': plugins, 'filters': [{**use('scale', b=1), 'when': 'asked'}]}))
    c.start_daemon('d1', workers=2, more=['--config', config])
    c.wait_job(job)
    assert c.digests(job) == cluster(1).run_job(**JOB)[1]


@pytest.mark.parametrize('key,text', [
    ('filters: []', 'expected a list of 1 to 8 names'), ('filters: [a, a]', 'a appears twice'), ('filters: scale', 'expected a list of 1 to 8'),
    ('filters: [%s]' % ('a' * 57), 'has at most 56 letters'), ('filters: [A]', 'must be the name of a plug-in')])
def test_filters_of_a_job_that_are_no_list_of_names(tmp_path, key, text):
    path = tmp_path / 'job.yaml'
    path.write_text(h.job_text(**JOB) + key + '\n')
    assert text in h.mfl('check', str(path), status=5).stderr


@pytest.mark.parametrize('text,more', [
    ('filters: write --config FILE', {'filters': ['a']}), ('evaluation.metrics: write --plugins DIR', {'evaluation': {'metrics': ['a']}}),
    ('aggregation.plugin: write --plugins DIR', {'aggregation': {'strategy': 'plugin', 'plugin': {'name': 'a'}}})])
def test_mfl_run_has_no_plugins_by_itself(tmp_path, text, more):
    path = tmp_path / 'job.yaml'
    path.write_text(h.job_text(**{**JOB, **more}))
    assert text in h.mfl('run', str(path), status=5).stderr


def test_mfl_run_tries_plugins(plugins, tmp_path):
    """A filter by the daemons' configuration, a strategy by --plugins, in one run; and what is wrong with either is said."""
    server = str(tmp_path / 'server')
    os.mkdir(server, 0o755)
    build(server, 'sign-momentum', 'examples/plugins/sign_momentum.c')
    path, config = tmp_path / 'job.yaml', tmp_path / 'client.yaml'
    data = ['--data', 'tiny=synthetic:1,8,8:4:64:32:1', '--daemons', '1', '--backend', 'reference']
    path.write_text(h.job_text(**JOB, filters=['scale'], aggregation={'strategy': 'plugin', 'plugin': {'name': 'sign-momentum'}}))
    config.write_text(h.yaml_of({'plugins': plugins, 'filters': [use('scale', b=0)]}))
    told = h.mfl('run', str(path), *data, '--plugins', 'server', '--config', 'client.yaml', '--out', 'out', '--json', cwd=str(tmp_path)).stdout
    assert json.loads(told.splitlines()[-1])['state'] == 'done'
    logs = ''.join(open(os.path.join(tmp_path, 'out', name), encoding='utf-8').read() for name in os.listdir(tmp_path / 'out') if name.endswith('.log'))
    assert 'plug-ins: filter scale 7 (a 0, b 0)' in logs
    config.write_text(h.yaml_of({'plugins': plugins, 'filters': [use('missing')]}))
    for argv, words in ((['--config', 'client.yaml'], 'missing'), (['--config', 'nothing.yaml'], 'nothing.yaml: No such file'),
                        (['--plugins', 'nowhere'], 'nowhere: No such file')):
        more = [] if '--plugins' in argv else ['--plugins', 'server']
        failed = h.mfl('run', str(path), *data, *argv, *more, '--config' if '--config' not in argv else '--threads', 'client.yaml' if '--config' not in argv else '1',
                       '--out', 'bad', cwd=str(tmp_path), status=None)
        assert failed.returncode and words in failed.stderr, failed.stderr
        shutil.rmtree(tmp_path / 'bad', ignore_errors=True)


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
    job = site.c.begin(**WHOLE)
    site.c.wait_info(job, lambda i: i['round'] >= 1, 30, 'a round')
    site.c.daemons['d1'].kill()
    site.start()
    site.c.finish(job, **WHOLE)


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


# ---- data formats ----

def pictures(directory, classes=3, size=8, n=(30, 9)):
    """Folders of PPMs, and the same numbers as npy files: a class is a colour, with noise."""
    rng = np.random.default_rng(7)
    for split, count in zip(('train', 'test'), n):
        x, y = [], []
        for label in range(classes):
            folder = os.path.join(directory, split, str(label))
            os.makedirs(folder)
            for i in range(count):
                pixels = rng.integers(0, 60, (size, size, 3), dtype=np.uint8)
                pixels[:, :, label] += 150
                with open(os.path.join(folder, '%03d.ppm' % i), 'wb') as f:
                    f.write(b'P6\n%d %d\n255\n' % (size, size) + pixels.tobytes())
                x.append((pixels.transpose(2, 0, 1).astype(np.float64) / 255).astype(np.float32))
                y.append(label)
        np.save(os.path.join(directory, split + '_x.npy'), np.stack(x))
        np.save(os.path.join(directory, split + '_y.npy'), np.array(y, dtype=np.int64))
    return directory


@pytest.fixture(scope='module')
def leaves(tmp_path_factory):
    return pictures(str(tmp_path_factory.mktemp('leaves')))


def leaf_config(plugins, path, name='leaves', classes=3, **more):
    return {'plugins': plugins, 'plugin_data': [{'name': name, 'format': 'ppm', 'path': path, 'settings': {'classes': classes}}], **more}


@pytest.fixture(scope='module')
def formats(plugins):
    build(plugins, 'ppm', 'examples/plugins/ppm.c')
    return plugins


def test_a_set_that_a_plugin_reads_is_the_set_itself(cluster, formats, leaves):
    """The same pictures as npy files give the same fingerprint, so the same bits."""
    c, plain = cluster(0), cluster(0)
    job = dict(JOB, data={'name': 'leaves', 'clients': 3}, selection={'clients': 3})
    config = c.write('client.yaml', h.yaml_of(leaf_config(formats, leaves, filters=[use('nothing')])))
    c.start_daemon('d1', data=(), more=['--config', config])
    other = plain.write('client.yaml', h.yaml_of({'data_sets': [dict({'name': 'leaves', 'format': 'npy', 'dir': leaves}, **{
        key: key + '.npy' for key in ('train_x', 'train_y', 'test_x', 'test_y')})]}))
    plain.start_daemon('d1', data=(), more=['--config', other])
    for each in (c, plain):
        each.wait_daemons(1)
    mine, digests = c.run_job(**job)
    assert digests == plain.run_job(**job)[1]
    sets = [[s for s in json.loads(each.mfl('daemons', '--json').stdout)['daemons'][0]['data_sets']]
            for each in (c, plain)]
    assert sets[0] == sets[1] and len(sets[0]) == 1
    with open(os.path.join(formats, 'ppm.so'), 'rb') as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    assert 'format ppm 1.0 (classes 3), sha256 %s; filter nothing 7' % digest in c.mfl('logs', mine).stdout


def spoil_size(path):
    with open(os.path.join(path, 'train', '1', '004.ppm'), 'wb') as f:
        f.write(b'P6\n8 9\n255\n' + bytes(216))
    return 'format ppm: %s/train/1/004.ppm is no 8-bit PPM of 8 x 8' % path


def spoil_end(path):
    with open(os.path.join(path, 'test', '2', '000.ppm'), 'r+b') as f:
        f.truncate(100)
    return '/test/2/000.ppm is no 8-bit PPM of 8 x 8'


def spoil_all(path):
    shutil.rmtree(os.path.join(path, 'train'))
    return 'data set leaves: %s: format ppm: there is no 8-bit PPM (P6) in its train/0 to train/2' % path


@pytest.mark.parametrize('spoil', [spoil_size, spoil_end, spoil_all])
def test_a_set_that_a_plugin_can_not_read(cluster, formats, tmp_path, spoil):
    c = cluster(0)
    text = spoil(pictures(str(tmp_path / 'own')))
    daemon = c.start_daemon('d1', data=(), more=['--config', c.write('client.yaml', h.yaml_of(leaf_config(formats, str(tmp_path / 'own'))))])
    assert daemon.wait(20) == 78 and text in daemon.log(), daemon.log()


LIAR = """
#include <mfl/format.h>
#include <math.h>
static int set;
static int open_set(const char *path, const double *v, void **ret_set, struct mfl_format_shape *s, char *reason)
{
        s->rank = 1; s->dim[0] = 4; s->classes = 2; s->n_train = 10; s->n_test = 1;
        %s
        *ret_set = &set;
        return 0;
}
static int read_set(void *of, const struct mfl_format_read *read)
{
        for (uint32_t i = 0; i < read->count; i++) {
                for (int k = 0; k < 4; k++) read->samples[4 * i + k] = 1;
                read->labels[i] = 1;
                %s
        }
        return 0;
}
static void close_set(void *of) {}
const struct mfl_format_plugin *mfl_format_plugin(void)
{
        static const struct mfl_format_plugin plugin = {.abi = MFL_FORMAT_ABI, .name = "liar", .version = "1", .open = open_set,
                .read = read_set, .close = close_set};
        return &plugin;
}
"""


@pytest.mark.parametrize('opens,reads,text', [
    ('s->rank = 2;', '', 'a sample has neither 1 nor 3 dimensions'), ('s->dim[0] = 0;', '', 'below 1'),
    ('s->rank = 3; s->dim[0] = 3; s->dim[1] = s->dim[2] = 1 << 30;', '', 'too large'),
    ('s->rank = 3; s->dim[0] = 17; s->dim[1] = s->dim[2] = 1;', '', 'more than 16 channels'),
    ('s->targets = 1;', '', 'either classes or targets'), ('s->n_train = 0;', '', 'no training samples'),
    ('s->n_train = 4000000000u;', '', 'too many samples'), ('', 'read->labels[i] = 2;', 'a label is not from 0 to classes - 1'),
    ('', 'read->labels[i] = -1;', 'a label is not from 0'), ('', 'read->samples[0] = NAN;', 'is not finite')])
def test_what_a_format_may_not_say(cluster, tmp_path, opens, reads, text):
    os.chmod(tmp_path, 0o755)
    build(str(tmp_path), 'liar', LIAR % (opens, reads))
    c = cluster(0)
    config = c.write('client.yaml', h.yaml_of({'plugins': str(tmp_path), 'plugin_data': [{'name': 'x', 'format': 'liar', 'path': '/'}]}))
    daemon = c.start_daemon('d1', data=(), more=['--config', config])
    assert daemon.wait(20) == 78 and text in daemon.log(), daemon.log()


def spoil_abi(directory):
    build(directory, 'old', source('old', abi='99'))
    return 'old.so is of ABI 99, and this daemon takes 1: build it against this release\'s mfl/filter.h'


def spoil_table(directory):
    build(directory, 'Upper', source('Upper'))
    return 'its name is not 1 to 63 lower-case letters'


def spoil_kind(directory):
    build(directory, 'sign', 'examples/plugins/sign_momentum.c')
    return 'sign.so has no mfl_filter_plugin or mfl_format_plugin: it is no plug-in of a daemon'


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
