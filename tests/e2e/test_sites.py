# SPDX-License-Identifier: Apache-2.0
"""Work at the sites that is not training, and the registry of models: statistics beside numpy, validation beside the round's own evaluation, small
counts that stay, predictions that stay, versions that retention never drops."""
import functools
import json
import math
import os
import pathlib
import stat
import sys

import numpy as np
import pytest

import mfl_harness as h
import mfl_needs
import mfl_relay
import mfl_tap

MODEL = {'layers': [{'dense': {'units': 3}}]}
LOCAL = {'name': 'ward', 'partition': 'local', 'clients': None}
SIZES = {'a': (60, 40), 'b': (90, 30), 'c': (20, 6), 'd': (25, 7)}
ALL = {'kinds': ['stats', 'validate', 'predict', 'foreign'], 'min_samples': 10, 'extremes': True}


def make_ward(path, seed, n):
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, count in zip(('train', 'test'), n):
        y = rng.integers(0, 3, count)
        x = (rng.normal(size=(count, 4)) * [1, 100, 1e-3, 5] + seed).astype(np.float32)
        x[:, 0] += y
        arrays['x_' + name], arrays['y_' + name] = x, y.astype(np.int64)
    np.savez(path, **arrays)
    return arrays


class Sites:
    def __init__(self, cluster):
        self.c, self.data = cluster, {}
        for i, (name, n) in enumerate(SIZES.items()):
            self.data[name] = make_ward(os.path.join(cluster.dir, name + '.npz'), i + 1, n)
            os.makedirs(self.predictions(name), exist_ok=True)

    def predictions(self, name):
        return os.path.join(self.c.dir, 'out-' + name[0])

    def start(self, name, inquiries=None, keeps=True, **options):
        config = {'policy': {'dir': os.path.join(self.c.dir, name + '.d'), 'inquiries': ALL if inquiries is None else inquiries}}
        if keeps:
            config['predictions_dir'] = self.predictions(name)
        path = self.c.write(name + '.yaml', h.yaml_of(config))
        return self.c.start_daemon(name, data=['ward=npz:%s/%s.npz' % (self.c.dir, name[0])], more=['--config', path], **options)

    def audit(self, name):
        with open(os.path.join(self.c.dir, name + '.d', name + '.audit.jsonl'), encoding='utf-8') as f:
            return [json.loads(line) for line in f]


@pytest.fixture(scope='module')
def sites(tmp_path_factory):
    with h.Cluster(tmp_path_factory.mktemp('sites')) as c:
        c.start_server()
        s = Sites(c)
        for name in SIZES:
            s.start(name)
        c.wait_daemons(4)
        yield s
        c.check_alive()


@pytest.fixture(scope='module')
def job(sites):
    return sites.c.run_job(name='ward', model=MODEL, rounds=3, data=LOCAL, training={'lr': 0.01},
                           checkpoints={'keep': 3}, evaluation={'on': 'clients', 'split': 0})[0]


def test_stats_beside_numpy(sites):
    x = np.concatenate([d['x_train'] for d in sites.data.values()]).astype(np.float64)
    y = np.concatenate([d['y_train'] for d in sites.data.values()])
    got = sites.c.mfl_json('data', 'stats', 'ward', '--bins', '10')
    assert got['samples'] == len(x) and sorted(s['site'] for s in got['sites']) == list('abcd')
    for f, feature in enumerate(got['features']):
        v = x[:, f]
        assert feature['count'] == len(v) and feature['least'] == v.min() and feature['most'] == v.max()
        assert feature['mean'] == pytest.approx(v.mean(), rel=1e-14) and feature['sum'] == pytest.approx(v.sum(), rel=1e-13)
        assert feature['squares'] == pytest.approx((v ** 2).sum(), rel=1e-13) and feature['std'] == pytest.approx(v.std(), rel=1e-13)
        for share, q in feature['quantiles'].items():  # a part of the range, where sites keep small counts
            exact = np.sort(v)[math.ceil(float(share) * len(v)) - 1]
            assert q['value'] is None or abs(q['value'] - exact) <= q['within'] * (1 + 1e-9), (f, share)
    assert any(f['quantiles']['0.5']['value'] is not None for f in got['features'])
    rough = sites.c.mfl_json('data', 'stats', 'ward', '--bins', '4')['features']
    assert any(q['value'] is not None and q['within'] > 1e-3 for f in rough for q in f['quantiles'].values())
    assert '+-' in sites.c.mfl('data', 'stats', 'ward', '--bins', '4').stdout
    # Counts of fewer than 10 samples of a site stay there.
    assert got['hidden'] > 0
    for c, n in enumerate(got['labels']):
        shown = [int((d['y_train'] == c).sum()) for d in sites.data.values()]
        assert n <= sum(shown) and n >= sum(k for k in shown if k >= 10) - max(shown)
    assert sum(got['labels']) <= len(y)
    line = sites.audit('a')[-1]
    assert line['decision'] == 'takes' and line['owner'] == 'local' and 'statistics of data set ward' in line['reason']


def test_stats_of_some_sites(sites):
    d = sites.data['b']['x_train'].astype(np.float64)
    got = sites.c.mfl_json('data', 'stats', 'ward', '--at', 'b*')
    assert got['samples'] == 90 and [s['site'] for s in got['sites']] == ['b']
    assert got['features'][1]['mean'] == pytest.approx(d[:, 1].mean(), rel=1e-14)
    assert "that matches 'nobody'" in sites.c.mfl('data', 'stats', 'ward', '--at', 'nobody', status=4).stderr
    assert 'no connected daemon has data set nothing' in sites.c.mfl('data', 'stats', 'nothing', status=4).stderr


def test_validate_is_the_rounds_evaluation(sites, job):
    scores = {s['site']: s for s in sites.c.mfl_json('show', job)['scores']['clients']}
    got = sites.c.mfl_json('validate', job)['models'][0]
    assert got['round'] == 3 and got['job'] == job
    told = {s['site']: s for s in got['sites']}
    for name in 'ab':
        assert told[name]['samples'] == SIZES[name][1]
        n = scores[name]['samples']
        assert told[name]['loss'] == scores[name]['loss_sum'] / n and told[name]['accuracy'] == scores[name]['correct'] / n
    # c and d have fewer than 10 test samples: only their sum is told.
    for name in 'cd':
        assert told[name]['few'] and told[name]['loss'] is None and told[name]['samples'] == 0
    assert got['few']['samples'] == 13
    assert got['few']['accuracy'] == pytest.approx(sum(scores[n]['correct'] for n in 'cd') / 13)
    # One such site by itself is not told at all.
    alone = sites.c.mfl_json('validate', job, '--at', 'c')['models'][0]
    assert alone['few'] is None and alone['sites'][0]['loss'] is None


def test_cross_site_table(sites, job):
    table = sites.c.mfl('validate', job, job, '--round', '1').stdout
    assert table.count('round 1 of ' + job) == 2 and 'LOSS 2' in table
    rows = {line.split()[0]: line.split() for line in table.splitlines() if line[:1] in 'ab' and len(line.split()) == 6}
    assert set(rows) == {'a', 'b', 'all'} and rows['a'][2:4] == rows['a'][4:6]


def test_registry(sites, job):
    c = sites.c
    assert c.mfl('model', 'register', job, '--as', 'ward', '--round', '1').stdout.strip() == 'ward@1'
    assert c.mfl('model', 'register', job, '--as', 'ward', '--round', '2').stdout.strip() == 'ward@2'
    assert 'registered before' in c.mfl('model', 'register', job, '--as', 'ward', '--round', '2').stdout
    for words in (('register', job, '--as', '-ward'), ('alias', 'ward@-x', '1')):
        assert "begins with '-' would be taken for an option" in c.mfl('model', *words, status=5).stderr
    c.mfl('model', 'alias', 'ward@champion', '1')
    assert 'no site has validated it' in c.mfl('model', 'promote', 'ward@champion', '2', '--accuracy', '0.1', status=6).stderr
    done = c.mfl_json('validate', 'ward@2', 'ward@champion')['models']
    assert [m['model'] for m in done] == ['ward@2', 'ward@1'] and [m['round'] for m in done] == [2, 1]
    assert 'below' in c.mfl('model', 'promote', 'ward@champion', '2', '--accuracy', '1', status=6).stderr
    assert 'the gate wants 5' in c.mfl('model', 'promote', 'ward@champion', '2', '--sites', '5', status=6).stderr
    assert c.mfl('model', 'promote', 'ward@champion', '--sites', '4', '--worse', '1').stdout.strip() == 'ward@champion is version 2'
    versions = {v['version']: v for v in c.mfl_json('model', 'list')['versions']}
    assert versions[2]['aliases'] == ['champion'] and versions[2]['validated'] == 4 and versions[1]['aliases'] == []
    c.mfl('pull', 'ward@champion', '-o', 'champion.safetensors')
    c.mfl('pull', job, '--round', '2', '-o', 'two.safetensors')
    with open(os.path.join(c.dir, 'champion.safetensors'), 'rb') as a, open(os.path.join(c.dir, 'two.safetensors'), 'rb') as b:
        assert a.read() == b.read()
    assert 'again' in c.mfl('model', 'rollback', 'ward@champion').stdout
    assert c.mfl_json('model', 'show', 'ward@champion')['round'] == 1
    assert 'nothing before' in c.mfl('model', 'rollback', 'ward@champion', status=4).stderr
    assert 'points at version 1' in c.mfl('model', 'remove', 'ward@1', status=6).stderr
    assert 'has the registered model ward@1' in c.mfl('delete', job, status=6).stderr
    actions = [e['action'] for e in c.mfl_json('audit')['entries']]
    assert {'register', 'alias', 'promote', 'rollback', 'inquire'} <= set(actions)


def test_a_file_is_validated_at_every_site(sites, job):
    """The model travels with the question: the numbers are those of the round; wrong files are refused here or by the server, and nothing stays open."""
    c = sites.c
    c.mfl('pull', job, '--round', '2', '-o', 'two.safetensors')
    file, round_ = c.mfl_json('validate', os.path.join(c.dir, 'two.safetensors'))['models'] + c.mfl_json('validate', job, '--round', '2')['models']
    assert file['job'] is None and file['digest'] == round_['digest'] and file['model'].endswith('two.safetensors')
    assert file['all'] == round_['all'] and file['few'] == round_['few'] and file['all']['samples'] == 83
    table = c.mfl('validate', os.path.join(c.dir, 'two.safetensors'), job).stdout
    assert table.startswith('1   %s' % os.path.join(c.dir, 'two.safetensors')) and 'round 3 of ' + job in table and 'LOSS 2' in table
    with open(os.path.join(c.dir, 'two.safetensors'), 'rb') as f, open(os.path.join(c.dir, 'half.safetensors'), 'wb') as half:
        half.write(f.read()[:-8])
    assert 'half.safetensors' in c.mfl('validate', os.path.join(c.dir, 'half.safetensors'), status=5).stderr
    c.mfl('pull', job, '--format', 'onnx', '-o', 'two.onnx')
    assert 'mfl model import' in c.mfl('validate', os.path.join(c.dir, 'two.onnx'), status=5).stderr
    assert 'nowhere.safetensors' in c.mfl('validate', 'nowhere.safetensors', status=4).stderr
    assert 'no connected daemon' in c.mfl('validate', os.path.join(c.dir, 'two.safetensors'), '--data', 'elsewhere', status=4).stderr
    assert c.mfl_json('validate', os.path.join(c.dir, 'two.safetensors'), '--at', 'a')['models'][0]['all']['samples'] == 40
    # A folder is no model, and a file's name may have an @.
    os.makedirs(os.path.join(c.dir, job), exist_ok=True)
    assert c.mfl_json('validate', job, '--round', '2')['models'][0]['all'] == round_['all']
    os.rename(os.path.join(c.dir, 'two.safetensors'), os.path.join(c.dir, 'two@home.safetensors'))
    assert c.mfl_json('validate', os.path.join(c.dir, 'two@home.safetensors'))['models'][0]['all'] == round_['all']


def test_an_imported_network_is_validated_at_every_site(sites, job):
    """A network of another program, which has no round of its own: the numbers are those of the round that it was made of."""
    c = sites.c
    c.mfl('pull', job, '--format', 'onnx', '-o', 'foreign.onnx')
    c.mfl('model', 'import', 'foreign.onnx', '--set', 'data.name=ward', '-o', 'foreign.safetensors')
    file, round_ = c.mfl_json('validate', os.path.join(c.dir, 'foreign.safetensors'))['models'] + c.mfl_json('validate', job)['models']
    assert file['job'] is None and file['all']['samples'] == 83 and file['all']['accuracy'] == round_['all']['accuracy']
    assert file['all']['loss'] == pytest.approx(round_['all']['loss'], rel=1e-6)
    assert [s['site'] for s in file['sites']] == [s['site'] for s in round_['sites']]


def test_reports_are_kept(sites, job):
    """Of several versions one table, from the newest validation of each; a validation of the round counts, too."""
    c = sites.c
    for n in ('1', '2'):
        c.mfl('model', 'register', job, '--as', 'kept', '--round', n)
    assert 'no validation' in c.mfl('model', 'reports', 'nothing', status=4).stderr
    before = c.mfl_json('validate', 'kept@1')['models'][0]
    c.mfl('validate', job, '--round', '2')
    told = c.mfl_json('model', 'reports', 'kept')['models']
    assert [m['round'] for m in told] == [1, 2] and told[0]['sites'] == before['sites'] and told[0]['all'] == before['all']
    table = c.mfl('model', 'reports', 'kept').stdout
    assert 'LOSS 2' in table and 'sites with few' in table
    assert len(c.mfl_json('model', 'reports', 'kept@2')['models']) == 1
    newest = c.mfl_json('model', 'reports')['reports']
    assert newest[0]['round'] == 2 and newest[1]['model'] == 'kept@1' and newest[0]['number'] > newest[1]['number'] and newest[0]['time_ms']
    assert 'kept@1' in c.mfl('model', 'reports').stdout
    # A file is no version, not even one with its params.
    c.mfl('pull', job, '--round', '2', '-o', 'kept.safetensors')
    assert c.mfl_json('validate', os.path.join(c.dir, 'kept.safetensors'), '--at', 'a')['models'][0]['digest'] == told[1]['digest']
    assert c.mfl_json('model', 'reports', 'kept')['models'] == told and c.mfl_json('model', 'reports')['reports'][0]['job'] is None
    assert {v['version']: v['validated'] for v in c.mfl_json('model', 'list')['versions'] if v['name'] == 'kept'} == {1: 4, 2: 4}


def test_predictions_stay(sites, job):
    c = sites.c
    assert '`mfl validate` takes files' in c.mfl('predict', 'ward.safetensors', '--at', 'a', '--data', 'ward', status=2).stderr
    got = c.mfl_json('predict', job, '--at', 'a', '--data', 'ward')['sites']
    assert [(s['site'], s['status'], s['rows']) for s in got] == [('a', 'answered', 40)]
    files = os.listdir(sites.predictions('a'))
    assert len(files) == 1 and files[0].startswith('ward-') and not os.listdir(sites.predictions('b'))
    path = os.path.join(sites.predictions('a'), files[0])
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    c.mfl('pull', job, '-o', 'm.safetensors')
    p = h.read_safetensors(os.path.join(c.dir, 'm.safetensors'))
    w, b = (next(v for k, v in p.items() if k.endswith(end)) for end in ('weight', 'bias'))
    w, b = (np.frombuffer(v[2], np.float32).reshape(v[1]).astype(np.float64) for v in (w, b))
    z = sites.data['a']['x_test'].astype(np.float64) @ w.T + b
    rows = [line.split(',') for line in open(path, encoding='utf-8').read().splitlines()[1:]]
    assert [int(r[1]) for r in rows] == z.argmax(1).tolist()


def test_only_counts_travel(sites, job):
    """What goes from a daemon to the server while it predicts: requests for params, and one number."""
    c = sites.c
    tap = mfl_tap.Tap(c.address)
    try:
        sites.start('a-tapped', server=tap.address)
        c.wait_daemons(5)
        c.mfl('stop', job, status=None)
        got = c.mfl_json('predict', job, '--at', 'a-tapped')['sites']
        assert [(s['status'], s['rows']) for s in got] == [('answered', 40)]
        up = [(kind, body) for up, kind, body in tap.seen if up and kind.startswith('inquiry')]
        assert [kind for kind, _ in up] == ['inquiry_model_get', 'inquiry_answer'] and tap.error is None
        answer = {k: v for k, v in up[-1][1].items() if v}
        assert set(answer) == {'inquiry', 'status', 'samples'} and answer['samples'] == 40
        kinds = {kind for up, kind, _ in tap.seen if up}
        assert kinds <= {'hello', 'ping', 'pong', 'telemetry', 'inquiry_model_get', 'inquiry_answer'}
    finally:
        tap.close()


def test_the_same_from_python(sites, job, monkeypatch):
    """The scenarios above with the Python package, whose answers are compared with those of the command."""
    mfl_needs.module('google.protobuf')
    monkeypatch.setattr(sys, 'path', [os.path.join(h.BUILD, 'python'), *sys.path])
    import mfl  # pylint: disable=import-outside-toplevel,import-error
    c, client = sites.c, mfl.connect(sites.c.address, plain=True)
    told, got = client.validate(job), c.mfl_json('validate', job)['models'][0]
    assert [(s.site, s.status, s.samples, s.accuracy, s.loss, s.few) for s in told.sites] == [
        (s['site'], s['status'], s['samples'], s['accuracy'], s['loss'], s['few']) for s in got['sites']]
    assert (told.samples, told.accuracy, told.loss) == tuple(got['all'][k] for k in ('samples', 'accuracy', 'loss'))
    assert (told.round, told.digest, told.job, told.data, told.few.samples) == (3, got['digest'], job, 'ward', 13)
    one, two = (client.register(job, 'py', round=r) for r in (1, 2))
    assert (one.version, two.version, two.round, two.job) == (1, 2, 2, job) and client.register(job, 'py', round=2) == two
    assert client.alias('py@champion', 1) == 'py@champion is version 1'
    assert client.validate(two).model == 'py@2' and client.validate('py@champion').model == 'py@1'
    with pytest.raises(mfl.Conflict, match='below'):
        client.promote('py@champion', 2, accuracy=1.0)
    with pytest.raises(mfl.Conflict, match='the gate wants 5'):
        client.promote('py@champion', 2, sites=5)
    assert client.promote('py@champion', sites=4, worse=1) == 'py@champion is version 2'
    for v, j in zip(client.registry('py'), c.mfl_json('model', 'list', 'py')['versions']):
        assert dict(vars(v)) == j
    assert client.registry('py')[1].aliases == ['champion'] and client.registry('py')[1].validated == 4
    assert 'again' in client.rollback('py@champion')
    assert [v.digest for v in client.validations(two.digest)][:1] == [two.digest]
    answers = client.predict_at('py@2', 'a', 'ward')
    assert [(s.site, s.status, s.samples) for s in answers] == [('a', 'answered', 40)]
    with pytest.raises(mfl.Conflict, match='points at version 1'):
        client.unregister('py@1')
    with pytest.raises(mfl.Conflict, match='has the registered model'):
        client.delete(job)
    for what in ('py@champion', 'py@1', 'py@2'):
        assert client.unregister(what) == 'removed'
    assert client.registry('py') == []
    # A file: the numbers of its round, from the program.
    program, path = os.path.join(h.BUILD, 'cli', 'mfl'), os.path.join(c.dir, 'python.safetensors')
    c.mfl('pull', job, '--round', '2', '-o', path)
    ask = functools.partial(client.validate, program=program)
    brought, known = ask(path), client.validate(job, round=2)
    assert brought.model == path and brought.job is None and brought.digest == known.digest and brought.number > 0
    assert (brought.sites, brought.few, brought.samples, brought.accuracy, brought.loss) == (
        known.sites, known.few, known.samples, known.accuracy, known.loss)
    assert [s.site for s in ask(pathlib.Path(path), at='a', deadline=30).sites] == ['a']
    with open(path, 'rb') as f, open(os.path.join(c.dir, 'cut.safetensors'), 'wb') as cut:
        cut.write(f.read()[:-8])
    for call, kind, text in ((lambda: ask('./nowhere.safetensors'), mfl.NotFound, 'nowhere'), (lambda: ask(path, round=1), mfl.ConfigError, 'is a file'),
                             (lambda: ask(os.path.join(c.dir, 'cut.safetensors')), mfl.ConfigError, 'cut.safetensors'),
                             (lambda: ask(path, data='elsewhere'), mfl.NotFound, 'no connected daemon'),
                             (lambda: client.validate(path, program='/nowhere/mfl'), mfl.ConfigError, 'program=')):
        with pytest.raises(kind, match=text):
            call()
    for call, kind in ((lambda: client.alias('py'), mfl.ConfigError), (lambda: client.validate('py@9'), mfl.NotFound),
                       (lambda: client.validate('py@9', round=1), mfl.ConfigError), (lambda: client.validate(job, at='nobody'), mfl.NotFound)):
        with pytest.raises(kind):
            call()


def test_the_site_decides(sites, job):
    c = sites.c
    sites.start('a-closed', inquiries={'kinds': ['validate']}, keeps=False, node='n9')
    h.wait_until(lambda: 'a-closed' in c.mfl('daemons').stdout, 10, 'the daemon')
    # Its data are those of a: they are a part, which a answers for.
    assert [s['site'] for s in c.mfl_json('validate', job, '--at', 'a*')['models'][0]['sites']] == ['a']
    refused = c.mfl_json('data', 'stats', 'ward', '--at', 'a-closed', status=1)
    assert refused['error']
    assert 'policy.inquiries does not allow stats' in c.mfl('data', 'stats', 'ward', '--at', 'a-closed', status=1).stderr
    done = json.loads(c.mfl('predict', job, '--at', 'a-closed', '--json', status=1).stdout.splitlines()[0])
    assert [(s['status'], s['rows']) for s in done['sites']] == [('refused', 0)]
    assert sites.audit('a-closed')[-1]['decision'] == 'refuses' and sites.audit('a-closed')[-1]['rule'] == 'inquiries'
    # Who may have the server's models evaluated may not bring models.
    c.mfl('pull', job, '-o', 'brought.safetensors')
    asked = c.mfl('validate', os.path.join(c.dir, 'brought.safetensors'), '--at', 'a-closed', status=1)
    assert 'policy.inquiries does not allow foreign' in asked.stderr
    assert sites.audit('a-closed')[-1]['decision'] == 'refuses' and 'a foreign model' in sites.audit('a-closed')[-1]['reason']
    # Each model must have an answer.
    table = c.mfl('validate', job, os.path.join(c.dir, 'brought.safetensors'), '--at', 'a-closed', status=1)
    assert 'LOSS 2' in table.stdout and 'no site has validated %s' % os.path.join(c.dir, 'brought.safetensors') in table.stderr


def test_below_a_relay(tmp_path):
    with mfl_relay.Tree(tmp_path) as c:
        c.start_server()
        c.start_relay('r')
        s = Sites(c)
        for name in 'ab':
            config = c.write(name + '.yaml', h.yaml_of({'policy': {'dir': os.path.join(c.dir, name + '.d'), 'inquiries': ALL},
                                                        'predictions_dir': s.predictions(name)}))
            c.start_below(name, 'r', data=['ward=npz:%s/%s.npz' % (c.dir, name)], more=['--config', config])
        c.wait_daemons(2)
        # More params than one piece holds.
        job = c.run_job(name='ward', model={'layers': [{'dense': {'units': 20000}}, 'relu', {'dense': {'units': 3}}]}, rounds=1, data=LOCAL, training={'lr': 1e-6},
                        evaluation={'on': 'clients', 'split': 0})[0]
        scores = {x['site']: x for x in c.mfl_json('show', job)['scores']['clients']}
        got = {x['site']: x for x in c.mfl_json('validate', job)['models'][0]['sites']}
        assert {n: round(got[n]['accuracy'] * got[n]['samples']) for n in 'ab'} == {n: scores[n]['correct'] for n in 'ab'}
        assert c.mfl_json('data', 'stats', 'ward')['samples'] == 150
        assert c.mfl_json('predict', job, '--at', 'b')['sites'][0]['rows'] == 30


def test_retention_keeps_versions(cluster):
    c = cluster(1, config={'keep_ended_max': 1})
    job = c.submit(name='first', rounds=6, checkpoints={'keep': 0}, evaluation={'every': 0}, training={'epochs': 3})
    c.wait_info(job, lambda info: info['round'] >= 1, 30, 'a round')
    kept = next(m['round'] for m in reversed(c.mfl_json('models', job)['models']) if m['kept'])
    registered = c.mfl('model', 'register', job, '--as', 'tiny', '--round', kept, status=None)
    if registered.returncode:  # the next round came first
        kept = c.mfl_json('models', job)['models'][-1]['round']
    c.wait_job(job)
    if registered.returncode:
        c.mfl('model', 'register', job, '--as', 'tiny')
    version = c.mfl_json('model', 'list', 'tiny')['versions'][0]
    others = [c.run_job(rounds=1)[0] for _ in range(3)]
    h.wait_until(lambda: others[1] not in c.mfl('list').stdout, 10, 'the end of an older job')
    c.server.kill()
    c.start_server()
    c.wait_daemons(1)
    others.append(c.run_job(rounds=1)[0])
    h.wait_until(lambda: others[2] not in c.mfl('list').stdout, 10, 'the end of an older job')
    c.mfl('pull', 'tiny@1', '-o', 'tiny.safetensors')
    assert h.params_digest(os.path.join(c.dir, 'tiny.safetensors')) == version['digest']
    c.mfl('model', 'remove', 'tiny@1')
    h.wait_until(lambda: job not in c.mfl('list').stdout, 10, 'the end of ' + job)
