# SPDX-License-Identifier: Apache-2.0
"""Strategies that an administrator adds: built as the header says, loaded, asked for by jobs, refused, and crashing."""
import hashlib
import os
import shutil
import subprocess

import numpy as np
import pytest

import mfl_harness as h
from mfl_harness import wait_until

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEAD = '#include <mfl/strategy.h>\n#include <stdlib.h>\n'
TABLE = '''
const struct mfl_strategy_plugin *mfl_strategy_plugin(void)
{
        static const struct mfl_plugin_number settings[] = {{"after", 0, 0, 1000}};
        static const struct mfl_strategy_plugin plugin = {.abi = %s, .name = "%s", .version = "7", .n_settings = 1,
                .settings = settings, .apply = apply};
        return &plugin;
}
'''
MEAN = '''
static void apply(const struct mfl_strategy_call *call)
{
        for (size_t e = 0; e < call->count; e++)
                call->params_out[e] = (float)(call->params_in[e] + call->delta[e]);
        %s
}
'''
JOB = {'rounds': 3, 'data': {'clients': 6}, 'model': 'logistic'}


def build(directory, name, abi='MFL_STRATEGY_ABI', also='', source=None):
    path = os.path.join(directory, name + '.c')
    with open(path, 'w', encoding='utf-8') as f:
        f.write(source or HEAD + MEAN % also + TABLE % (abi, name))
    subprocess.run(['cc', '-shared', '-fPIC', '-O2', '-ffp-contract=off', '-Wall', '-Werror', '-I', os.path.join(TOP, 'include'), '-o',
                    os.path.join(directory, name + '.so'), path], check=True, timeout=60)
    os.remove(path)


@pytest.fixture(scope='module')
def plugins(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp('plugins'))
    os.chmod(directory, 0o755)
    build(directory, 'mean')
    build(directory, 'breaks', also='if (call->round > call->settings[0]) abort();')
    with open(os.path.join(TOP, 'examples', 'plugins', 'sign_momentum.c'), encoding='utf-8') as f:
        build(directory, 'sign-momentum', source=f.read())
    return directory


@pytest.fixture
def served(cluster, plugins):
    return cluster(2, config={'plugins': plugins})


METRIC = '''
#include <mfl/metric.h>
#include <stdlib.h>
static double measure(const struct mfl_metric_call *call)
{
        %s
}
const struct mfl_metric_plugin *mfl_metric_plugin(void)
{
        static const struct mfl_plugin_number settings[] = {{"after", 0, 0, 1000}};
        static const struct mfl_metric_plugin plugin = {.abi = %s, .name = "%s", .version = "7", .n_settings = 1,
                .settings = settings, .answers = %s, .measure = measure};
        return &plugin;
}
'''


@pytest.fixture(scope='module')
def metrics(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp('metrics'))
    os.chmod(directory, 0o755)
    for name, answers, body in (('right', 'LABELS', 'double right = 0; for (size_t c = 0; c < call->classes; c++)'
                                 ' right += (double)call->confusion[c * call->classes + c]; return right / (double)call->scored;'),
                                ('rmse', 'TARGETS', 'return call->target[0].square / (double)call->scored;'),
                                ('nothing', 'LABELS', 'return 0.0 / (call->settings[0] * 0);'),
                                ('fatal', 'LABELS', 'if (call->round > (uint32_t)call->settings[0])\n                abort();\n        return 1;')):
        build(directory, name, source=METRIC % (body, 'MFL_METRIC_ABI', name, 'MFL_METRIC_' + answers))
    with open(os.path.join(TOP, 'examples', 'plugins', 'f_beta.c'), encoding='utf-8') as f:
        build(directory, 'f-beta', source=f.read())
    return directory


def f_beta(matrix, beta):
    both, labels, predictions = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    seen = labels + predictions > 0
    good = (1 + beta ** 2) * both
    return (good / (good + beta ** 2 * (labels - both) + predictions - both))[seen].mean()


def test_metrics_are_made_of_exact_sums(cluster, metrics):
    wanted = {'metrics': ['right', {'name': 'f-beta', 'settings': {'beta': 2}}, 'nothing']}
    seen = []
    for daemons in (1, 3):
        c = cluster(daemons, config={'plugins': metrics})
        c.wait_daemons(daemons)
        job = c.run_job(**JOB, evaluation=wanted)[0]
        shown = c.mfl_json('show', job)
        last = shown['rounds'][-1]
        assert list(last['metrics']) == ['right', 'f-beta', 'nothing'] and last['metrics']['nothing'] is None
        assert last['metrics']['right'] == pytest.approx(last['accuracy'], abs=1e-15)
        assert last['metrics']['f-beta'] == pytest.approx(f_beta(np.array(shown['scores']['confusion'], float), 2), abs=1e-12)
        seen.append([r['metrics'] for r in shown['rounds']])
    assert seen[0] == seen[1]
    assert 'metric right: round 3: ' in c.mfl('show', job).stdout
    with open(os.path.join(metrics, 'f-beta.so'), 'rb') as f:
        assert 'metric f-beta 1.0 (beta 2), sha256 %s' % hashlib.sha256(f.read()).hexdigest() in c.mfl('logs', job).stdout
    c.server.kill()  # they are in the database
    c.start_server()
    assert [r['metrics'] for r in c.mfl_json('show', job)['rounds']] == seen[0]


def test_metrics_that_are_refused(cluster, metrics):
    c = cluster(1, config={'plugins': metrics})

    def refused(evaluation):
        return c.mfl('submit', c.write('job.yaml', h.job_text(**JOB, evaluation=evaluation)), status=None).stderr
    assert 'this server has no metric other; it has f-beta, fatal, nothing, right, rmse' in refused({'metrics': ['other']})
    assert "rmse is made of target values, and the job's loss has class labels" in refused({'metrics': ['rmse']})
    assert 'evaluation.metrics.settings.beta: -1 is not from 0 to 100' in refused({'metrics': [{'name': 'f-beta', 'settings': {'beta': -1}}]})
    for evaluation, text in [({'metrics': []}, 'expected a list of 1 to 4'), ({'metrics': ['a', 'a']}, 'a appears twice'),
                             ({'metrics': ['a'], 'detailed': False}, 'false leaves nothing that metrics could be made of'),
                             ({'metrics': ['a'], 'every': 0}, 'nothing is ever measured')]:
        assert text in refused(evaluation)


def test_a_metric_that_crashes(cluster, metrics):
    """Three times; then the job goes on without its metrics, and its models are those of a job that has none."""
    c = cluster(1, config={'plugins': metrics})
    job = c.submit(**JOB, evaluation={'metrics': ['right', {'name': 'fatal', 'settings': {'after': 1}}]})
    for _ in range(3):
        wait_until(lambda: not c.server.alive(), 30, 'the crash')
        c.start_server()
    c.wait_job(job)
    first, *rest = [r['metrics'] for r in c.mfl_json('show', job)['rounds']]
    assert first['fatal'] == 1 and rest == [None, None]
    assert 'plug-in fatal: the server ended 3 times in it' in c.mfl('logs', job).stdout and 'the job goes on without them' in c.mfl('logs', job).stdout
    assert c.digests(job) == cluster(1).run_job(**JOB)[1]


def use(name, **settings):
    return {'strategy': 'plugin', 'plugin': {'name': name, **({'settings': settings} if settings else {})}}


def test_the_mean_is_fedavg(served, cluster):
    c = served
    c.wait_daemons(2)
    job, digests = c.run_job(**JOB, aggregation=use('mean'))
    assert digests == cluster(1).run_job(**JOB)[1]
    lines = c.mfl('logs', job).stdout
    assert 'plug-in mean 7, sha256 ' in lines


def params(c, job, number):
    path = os.path.join(c.dir, '%s-%d.npz' % (job, number))
    c.mfl('pull', job, '--round', str(number), '--format', 'npz', '-o', path)
    with np.load(path) as tensors:
        return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])


def test_the_example_does_what_it_says(served):
    """Every param moves by lr, or not at all; and the momentum survives a killed server."""
    c = served
    c.wait_daemons(2)
    job = c.begin(**dict(JOB, checkpoints={'keep': 1000}), aggregation=use('sign-momentum', lr=0.25))
    c.wait_info(job, lambda i: i['round'] >= 2, 30, 'two rounds')
    c.server.kill()
    c.start_server()
    c.finish(job, **dict(JOB, checkpoints={'keep': 1000}), aggregation=use('sign-momentum', lr=0.25))
    for number in (2, 3):
        moved = np.abs(params(c, job, number) - params(c, job, number - 1))
        assert np.all((moved == 0) | (np.abs(moved - 0.25) < 1e-6)) and (moved > 0).mean() > 0.5


def test_what_is_refused_at_submit(served):
    def refused(aggregation):
        return c.mfl('submit', c.write('job.yaml', h.job_text(**JOB, aggregation=aggregation)), status=None).stderr
    c = served
    assert 'this server has no plug-in other; it has breaks, mean, sign-momentum' in refused(use('other'))
    assert 'sign-momentum has no setting rate; it has lr, beta1, beta2' in refused(use('sign-momentum', rate=1))
    assert 'aggregation.plugin.settings.beta1: 2 is not from 0 to 1, which sign-momentum takes' in refused(use('sign-momentum', beta1=2))


@pytest.mark.parametrize('aggregation,text', [
    ({'strategy': 'plugin'}, 'strategy: plugin needs plugin: {name: NAME}'),
    ({'plugin': {'name': 'mean'}}, 'goes with strategy: plugin, and the strategy is fedavg'),
    ({**use('mean'), 'server_lr': 0.5}, 'aggregation.server_lr: is not used by plugin'),
    (use('../mean'), 'must be the name of a plug-in'),
    (use('mean', after='soon'), 'expected a number'),
    (use('mean', After=1), "must be 1 to 31 lower-case letters, digits and '_'"),
    (use('mean', **{'s%d' % i: i for i in range(17)}), 'has 17 numbers, and a plug-in takes 16 at most'),
])
def test_what_is_refused_without_a_server(tmp_path, aggregation, text):
    path = tmp_path / 'job.yaml'
    path.write_text(h.job_text(**JOB, aggregation=aggregation))
    assert text in h.mfl('check', str(path), status=5).stderr


def test_a_crash_costs_its_own_job_alone(served):
    c = served
    job = c.submit(**JOB, aggregation=use('breaks', after=1))
    for _ in range(3):
        wait_until(lambda: not c.server.alive(), 30, 'the crash')
        c.start_server()
    info = c.wait_job(job, state='failed')
    assert info['reason'] == 'round 2: plug-in breaks: the server ended 3 times in it; mend the plug-in and clone the job'
    assert info['round'] == 1
    c.run_job(**JOB, aggregation=use('mean'))
    c.check_alive()


def test_a_job_waits_for_its_plugin(cluster, plugins, tmp_path):
    own = str(tmp_path / 'own')
    shutil.copytree(plugins, own)
    c = cluster(1, config={'plugins': own})
    job = c.begin(**JOB, aggregation=use('mean'))
    c.wait_info(job, lambda i: i['round'] >= 1, 30, 'a round')
    c.server.kill()
    os.rename(os.path.join(own, 'mean.so'), os.path.join(own, 'mean.off'))
    c.start_server()
    wait_until(lambda: 'this server has no plug-in mean' in c.info(job)['reason'], 30, 'the reason')
    c.server.kill()
    os.rename(os.path.join(own, 'mean.off'), os.path.join(own, 'mean.so'))
    c.start_server()
    c.finish(job, **JOB, aggregation=use('mean'))


def spoil_abi(directory):
    build(directory, 'old', abi='99')
    return 'old.so is of ABI 99, and this server takes 1'


def spoil_metric(directory):
    build(directory, 'old', source=METRIC % ('return 1;', '99', 'old', 'MFL_METRIC_LABELS'))
    return "old.so is of ABI 99, and this server takes 1: build it against this release's mfl/metric.h"


def spoil_answers(directory):
    build(directory, 'odd', source=METRIC % ('return 1;', 'MFL_METRIC_ABI', 'odd', '0'))
    return 'its `answers` is not MFL_METRIC_LABELS'


def spoil_table(directory):
    build(directory, 'Upper')
    return 'its name is not 1 to 63 lower-case letters'


def spoil_twice(directory):
    shutil.copy(os.path.join(directory, 'mean.so'), os.path.join(directory, 'more.so'))
    return 'another file has a plug-in of the name mean, too'


def spoil_symbols(directory):
    build(directory, 'none', source='int nothing;\n')
    return 'none.so has no mfl_strategy_plugin'


def spoil_object(directory):
    with open(os.path.join(directory, 'text.so'), 'w', encoding='utf-8') as f:
        f.write('not an object\n')
    return 'text.so'


def spoil_owner(directory):
    os.chmod(os.path.join(directory, 'mean.so'), 0o666)
    return 'mean.so: others can write it'


def spoil_directory(directory):
    os.chmod(directory, 0o777)
    return 'others can write it'


@pytest.mark.parametrize('spoil', [spoil_abi, spoil_metric, spoil_answers, spoil_table, spoil_twice, spoil_symbols, spoil_object, spoil_owner, spoil_directory])
def test_a_server_does_not_start_with_a_bad_one(cluster, plugins, tmp_path, spoil):
    own = str(tmp_path / 'own')
    shutil.copytree(plugins, own)
    text = spoil(own)
    c = h.Cluster(str(tmp_path / 'c'), {'plugins': own})
    try:
        server = c.start_server(ready=False)
        server.wait(20)
        assert text in server.log(), server.log()
    finally:
        c.close()
