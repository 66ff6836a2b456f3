# SPDX-License-Identifier: Apache-2.0
"""The worked changes of docs/changes, each applied to a copy of the tree, built and run (CONTRIBUTING.md)."""
import glob
import os
import shutil
import signal
import subprocess
import sys

import numpy
import pytest

import mfl_harness as h
from mfl_plugins import TOP

CHANGES = sorted(os.path.basename(path)[:-6] for path in glob.glob(os.path.join(TOP, 'docs', 'changes', '*.patch')))
JOB = {'rounds': 2, 'data': {'clients': 4}, 'selection': {'clients': 4}, 'model': 'logistic'}
BIG = 1200  # seconds, for a compiler on a busy machine


def run(*argv, cwd, **options):
    done = subprocess.run(argv, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=BIG, **options)
    assert done.returncode == 0, '%s\n%s' % (argv, done.stdout[-3000:])
    return done.stdout


class Tree:
    """A copy of the sources; with changes it is built in a folder of its own."""

    def __init__(self, path):
        self.path, self.build = path, os.path.join(path, 'build')
        shutil.copytree(TOP, path, symlinks=True, ignore=lambda folder, names: [
            n for n in names if n in ('.git', '__pycache__') or (folder == TOP and n.startswith('build'))])

    def apply(self, name, *options):
        run('git', 'apply', *options, os.path.join(TOP, 'docs', 'changes', name + '.patch'), cwd=self.path)

    def ninja(self, *targets):
        if not os.path.exists(self.build):
            run('meson', 'setup', 'build', '-Dcuda=disabled', '-Dtests=enabled', '-Dbench=disabled', cwd=self.path)
        signal.alarm(BIG + 60)  # a compiler takes longer than a test may
        run('ninja', '-C', 'build', *targets, cwd=self.path, env={**os.environ, 'CCACHE_NOHASHDIR': '1'})
        signal.alarm(300)

    def plugin(self, name, folder, source):
        os.makedirs(folder, exist_ok=True)
        run('cc', '-shared', '-fPIC', '-O2', '-ffp-contract=off', '-Wall', '-Wextra', '-Wno-unused-parameter', '-Werror', '-I', 'include', '-o',
            os.path.join(folder, name + '.so'), source, '-lm', cwd=self.path)
        return folder


@pytest.fixture(scope='module')
def tree(tmp_path_factory):
    path = str(tmp_path_factory.mktemp('tree'))
    os.rmdir(path)
    yield Tree(path)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def changed(request, tree, monkeypatch):
    """The tree with one change."""
    tree.apply(request.param)
    yield tree
    tree.apply(request.param, '-R')


def programs_of(tree, monkeypatch):
    tree.ninja('server/mfl-server', 'client/mfl-client', 'cli/mfl')
    monkeypatch.setattr(h, 'program', lambda name: os.path.join(
        tree.build, {'mfl-server': 'server', 'mfl-client': 'client', 'mfl': 'cli'}[name], name))


def test_each_change_has_a_test():
    with open(os.path.abspath(__file__), encoding='utf-8') as f:
        source = f.read()
    assert CHANGES and all("['%s'], indirect=True" % name in source for name in CHANGES)
    with open(os.path.join(TOP, 'CONTRIBUTING.md'), encoding='utf-8') as f:
        page = f.read()
    assert all('docs/changes/%s.patch' % name in page for name in CHANGES)


# ---- plug-ins ----

@pytest.mark.parametrize('changed', ['strategy'], indirect=True)
def test_a_strategy(changed, cluster, folder):
    plugins = changed.plugin('capped', os.path.join(folder, 'plugins'), 'examples/plugins/capped.c')
    c = cluster(1, config={'plugins': plugins})
    job, digests = c.run_job(**JOB, aggregation={'strategy': 'plugin', 'plugin': {'name': 'capped', 'settings': {'cap': 1}}})
    assert digests == cluster(1).run_job(**JOB)[1]  # a cap that nothing reaches is the mean
    job, digests = c.run_job(**JOB, checkpoints={'keep': 9},
                             aggregation={'strategy': 'plugin', 'plugin': {'name': 'capped', 'settings': {'cap': 1e-4}}})
    moved = []
    for number in (1, 2):
        path = os.path.join(c.dir, '%d.npz' % number)
        c.mfl('pull', job, '--round', str(number), '--format', 'npz', '-o', path)
        with numpy.load(path) as tensors:
            moved.append(numpy.concatenate([tensors[name].ravel() for name in sorted(tensors)]))
    assert 0 < numpy.abs(moved[1] - moved[0]).max() <= 1.01e-4


def with_daemon(c, **config):
    c.start_daemon('d1', data=config.pop('data', (h.TINY,)), more=['--config', c.write('client.yaml', h.yaml_of(config))])
    c.wait_daemons(1)


@pytest.mark.parametrize('changed', ['filter'], indirect=True)
def test_a_filter(changed, cluster, folder):
    c = cluster(0)
    with_daemon(c, plugins=changed.plugin('keep-biases', os.path.join(folder, 'plugins'), 'examples/plugins/keep_biases.c'),
                filters=[{'name': 'keep-biases'}])
    job = c.run_job(**JOB, checkpoints={'keep': 9})[0]
    tensors = []
    for number in (1, 2):
        path = os.path.join(c.dir, '%d.npz' % number)
        c.mfl('pull', job, '--round', str(number), '--format', 'npz', '-o', path)
        with numpy.load(path) as at:
            tensors.append({name: at[name] for name in at})
    for name, before in tensors[0].items():
        assert numpy.array_equal(before, tensors[1][name]) == name.endswith('.bias'), name


@pytest.mark.parametrize('changed', ['metric-plugin'], indirect=True)
def test_a_metric_of_a_plugin(changed, cluster, folder):
    c = cluster(1, config={'plugins': changed.plugin('kappa', os.path.join(folder, 'plugins'), 'examples/plugins/kappa.c')})
    shown = c.mfl_json('show', c.run_job(**JOB, evaluation={'metrics': ['kappa']})[0])
    matrix = numpy.array(shown['scores']['confusion'], dtype=float)
    observed, chance = numpy.trace(matrix) / matrix.sum(), (matrix.sum(0) * matrix.sum(1)).sum() / matrix.sum() ** 2
    assert shown['rounds'][-1]['metrics']['kappa'] == pytest.approx((observed - chance) / (1 - chance), abs=1e-12)


@pytest.mark.parametrize('changed', ['format'], indirect=True)
def test_a_data_format(changed, cluster, folder):
    points = os.path.join(folder, 'points')
    os.makedirs(points)
    for split, n in (('train', 40), ('test', 10)):
        with open(os.path.join(points, split + '.txt'), 'w', encoding='ascii') as f:
            f.writelines('%d %g %g\n' % (i % 2, i % 2 + i / 1000, -(i % 2)) for i in range(n))
    c = cluster(0)
    with_daemon(c, data=(), plugins=changed.plugin('rows', os.path.join(folder, 'plugins'), 'examples/plugins/rows.c'),
                plugin_data=[{'name': 'points', 'format': 'rows', 'path': points, 'settings': {'features': 2}}])
    job = c.run_job(**dict(JOB, rounds=4, data={'name': 'points', 'clients': 4}, training={'lr': 1.0, 'epochs': 5}))[0]
    assert c.rounds(job)[-1]['accuracy'] == 1


# ---- training programs ----

@pytest.mark.parametrize('changed', ['program-python'], indirect=True)
def test_a_program_in_python(changed, cluster):
    c = cluster(0)
    script = os.path.join(changed.path, 'examples', 'python', 'centroid.py')
    env = {**os.environ, 'PYTHONPATH': os.path.join(changed.path, 'python')}
    run(sys.executable, script, os.path.join(c.dir, 'initial.safetensors'), '64', '4', cwd=c.dir, env=env)
    wrapper = c.write('centroid.py', 'import sys\nsys.path[:0] = [%r]\n' % os.path.join(changed.path, 'python') + open(script, encoding='utf-8').read())
    with_daemon(c, programs=[{'name': 'centroid', 'command': [sys.executable, wrapper]}])
    job = c.write('job.yaml', h.yaml_of({'name': 'centroid', 'rounds': 2, 'model': {'initial': 'initial.safetensors'}, 'data': {
        'name': 'tiny', 'partition': 'iid', 'clients': 4}, 'training': {'program': 'centroid'}}))
    job = c.mfl_json('submit', job)['job']
    c.wait_job(job, 60)
    assert c.rounds(job)[-1]['accuracy'] > 0.5


@pytest.mark.parametrize('changed', ['program-c'], indirect=True)
def test_a_program_in_c(changed, cluster):
    changed.ninja('tests/e2e/mfl-example-program')
    c = cluster(0)
    with_daemon(c, programs=[{'name': 'pets', 'command': [os.path.join(changed.build, 'tests', 'e2e', 'mfl-example-program')]}])
    sys.path.insert(0, os.path.join(changed.path, 'python'))
    from mfl import train  # pylint: disable=import-outside-toplevel
    train.save(os.path.join(c.dir, 'initial.safetensors'), {'w': numpy.zeros(10)})
    job = c.write('job.yaml', h.yaml_of({'name': 'pets', 'rounds': 8, 'model': {'initial': 'initial.safetensors'}, 'data': {
        'partition': 'iid', 'clients': 3}, 'training': {'program': 'pets', 'config': {'rate': 0.5, 'target': 7}}}))
    job = c.mfl_json('submit', job)['job']
    c.wait_job(job, 60)
    path = os.path.join(c.dir, 'w.npz')
    c.mfl('pull', job, '--format', 'npz', '-o', path)
    with numpy.load(path) as tensors:
        assert numpy.allclose(tensors['w'], 7 * (1 - 0.5 ** 8), atol=1e-3)


# ---- the core ----

@pytest.mark.parametrize('changed', ['layer'], indirect=True)
def test_a_layer_kind(changed, cluster, monkeypatch):
    programs_of(changed, monkeypatch)
    c = cluster(1)
    layers = ['flatten', {'dense': {'units': 8}}, 'bent_identity', {'dense': {'units': 4}}]
    job = c.run_job(**dict(JOB, model={'layers': layers}, rounds=3))[0]
    rounds = c.rounds(job)
    assert rounds[-1]['loss'] < rounds[0]['loss']
    assert len(set(c.digests(job))) == 3


@pytest.mark.parametrize('changed', ['metric'], indirect=True)
def test_a_metric(changed, cluster, monkeypatch):
    programs_of(changed, monkeypatch)
    changed.ninja('tests/unit/model/test_tally')
    run(os.path.join(changed.build, 'tests', 'unit', 'model', 'test_tally'), cwd=changed.path)
    c = cluster(1)
    job = c.run_job(**JOB, evaluation={'detailed': True})[0]
    last = c.mfl_json('show', job)['rounds'][-1]
    assert 0 < last['balanced_accuracy'] <= 1
