# SPDX-License-Identifier: Apache-2.0
"""Evaluation on clients, confusion matrices and errors of numbers: exact, recomputed in numpy from the pulled model, the same for any
number of daemons."""
import csv
import io
import random

import numpy as np
import pytest

import mfl_harness as h
import mfl_wire as wire
from federated import SELECT, Stream, Momentum, federated_average, loss_of, parts_of, pulled, synthetic

SIZES = [1, 2, 10, 20, 37, 40, 50, 60, 80, 100]
DATA = {'partition': 'size', 'clients': len(SIZES), 'sizes': SIZES}
ON_CLIENTS = {'on': 'clients', 'split': 0.25, 'batch': 7}
CHANGES = {'model': 'logistic', 'seed': 5, 'rounds': 3, 'data': DATA, 'training': {'lr': 0.1, 'epochs': 2, 'batch': 10},
           'evaluation': ON_CLIENTS}


def shown(c, job):
    return c.mfl_json('show', job)


def evaluated(c, job):
    """What the server says of the last round, without times and traffic."""
    detail = shown(c, job)
    keep = ('accuracy', 'loss', 'client_mean', 'client_variance', 'client_worst', 'client_best', 'client_low', 'client_high',
            'clients_evaluated', 'client_bins', 'macro_f1', 'mae', 'rmse', 'r2', 'backdoor', 'clip')
    return [{k: r[k] for k in keep} for r in detail['rounds']], detail['scores']


def pulled_scores(c, job, parts, x, y):
    """{client: (samples, correct, loss)} of the pulled model on what each keeps."""
    w, b = (v.astype(np.float64) for v in pulled(c, job).values())
    scores = {}
    for k, (_, held) in enumerate(parts):
        if held:
            z = x[held] @ w.T + b
            scores[k] = (len(held), int(np.sum(np.argmax(z, axis=1) == y[held])), loss_of(w, b, x[held], y[held]))
    return scores


def test_clients_evaluate_on_what_they_keep(shared_cluster):
    """Each client's numbers and their summary are those of numpy; one and two daemons agree; nothing that is kept was trained on."""
    found = []
    for n in 1, 2:
        c = shared_cluster(n)
        c.wait_daemons(n)
        job, digests = c.run_job(**CHANGES)
        found.append((digests, evaluated(c, job)))
    assert found[0] == found[1]
    x, y = synthetic((1, 8, 8), 4, 400, 1, 0)
    parts = parts_of(5, 400, SIZES, 0.25)
    assert [len(held) for _, held in parts] == [0, 1, 3, 5, 9, 10, 13, 15, 20, 25]
    expected = pulled_scores(c, job, parts, x, y)
    rounds, scores = found[0][1]
    last = rounds[-1]
    told = {s['client']: s for s in scores['clients']}
    assert scores['round'] == 3 and told.keys() == expected.keys()
    for k, (samples, correct, loss) in expected.items():
        assert (told[k]['samples'], told[k]['correct']) == (samples, correct)
        assert told[k]['loss_sum'] == pytest.approx(samples * loss, rel=1e-5)
    accuracy = sorted(correct / samples for samples, correct, _ in expected.values())
    assert [s['correct'] / s['samples'] for s in scores['clients']] == accuracy, 'the worst first'
    assert last['clients_evaluated'] == 9
    assert last['accuracy'] == sum(c for _, c, _ in expected.values()) / sum(n for n, _, _ in expected.values())
    assert last['client_mean'] == pytest.approx(np.mean(accuracy)) and last['client_variance'] == pytest.approx(np.var(accuracy))
    assert (last['client_worst'], last['client_best']) == (accuracy[0], accuracy[-1])
    assert last['client_bins'] == np.histogram(accuracy, bins=10, range=(0, 1))[0].tolist()
    w, b, _ = federated_average(seed=5, rounds=3, clients=SIZES, lr=lambda r: 0.1, batch=10, epochs=2,
                                optimizer=lambda: Momentum(0), split=0.25)
    got_w, got_b = pulled(c, job).values()
    assert np.abs(got_w - w).max() < 1e-5 and np.abs(got_b - b).max() < 1e-5


def test_measures_are_in_every_view(shared_cluster):
    c = shared_cluster(1)
    job, _ = c.run_job(**dict(CHANGES, evaluation=dict(ON_CLIENTS, detailed=True)))
    last = shown(c, job)['rounds'][-1]
    rows = list(csv.DictReader(io.StringIO(c.mfl('pull', job, '--format', 'csv', '-o', '-').stdout)))
    assert len(rows) == 3 and float(rows[-1]['client_worst']) == last['client_worst']
    assert rows[-1]['client_bins'] == ' '.join(map(str, last['client_bins'])) and float(rows[-1]['macro_f1']) == last['macro_f1']
    text = c.mfl('show', job).stdout
    assert 'clients: round 3 on 9 clients: mean accuracy %.4f' % last['client_mean'] in text
    assert 'confusion matrix: a row for each class' in text and 'macro F1: round 3' in text
    assert "clients' worst 10%% %.4f" % last['client_worst'] in c.mfl('watch', job).stdout


def test_some_clients_evaluate_and_always_the_same(shared_cluster):
    c = shared_cluster(2)
    c.wait_daemons(2)
    job, _ = c.run_job(**dict(CHANGES, data={'partition': 'iid', 'clients': 40}, selection={'clients': 5}, checkpoints={'keep': 10},
                              evaluation={'on': 'clients', 'clients': 8}))
    rounds, scores = evaluated(c, job)
    draw, order = Stream(5, SELECT, 0, 0), list(range(40))
    for i in range(8):  # the first places of Fisher-Yates from the front
        j = i + draw.below(40 - i)
        order[i], order[j] = order[j], order[i]
    assert sorted(s['client'] for s in scores['clients']) == sorted(order[:8])
    assert [r['clients_evaluated'] for r in rounds] == [8] * 3


def test_each_site_evaluates(shared_cluster):
    """With partition local and split 0, a site evaluates on its own test split; the table names the sites."""
    c = shared_cluster.empty()
    c.start_server()
    for i, (train, test) in enumerate(((40, 20), (80, 30), (60, 50))):
        c.start_daemon('site-%d' % i, data=['tiny=synthetic:1,8,8:4:%d:%d:%d' % (train, test, i + 1)])
    c.wait_daemons(3)
    local = dict(CHANGES, data={'partition': 'local', 'clients': None}, selection={'daemons': {'min': 3}})
    job, _ = c.run_job(**dict(local, evaluation={'on': 'clients', 'split': 0}))
    _, scores = evaluated(c, job)
    assert {s['site']: s['samples'] for s in scores['clients']} == {'site-0': 20, 'site-1': 30, 'site-2': 50}
    assert 'SITE' in c.mfl('show', job).stdout
    job, _ = c.run_job(**dict(local, evaluation={'on': 'clients'}))
    detail = shown(c, job)
    assert {s['site']: s['samples'] for s in detail['scores']['clients']} == {'site-0': 10, 'site-1': 20, 'site-2': 15}
    assert detail['rounds'][-1]['weight'] == 30 + 60 + 45


def test_kill_in_evaluation_changes_nothing(shared_cluster):
    """The server and a daemon are killed while a job goes on; the numbers are those of an undisturbed one."""
    changes = dict(CHANGES, evaluation=dict(ON_CLIENTS, detailed=True))
    c = shared_cluster(2)
    c.wait_daemons(2)
    job = c.begin(**changes)
    for i in range(3):
        at = c.wait_info(job, lambda info: True, 10, 'an answer')['round']
        c.wait_info(job, lambda info: info['round'] > at, 30, 'a round')
        victim = c.daemons['d1'] if i == 1 else c.server
        victim.kill()
        if i == 1:
            c.start_daemon('d1')
        else:
            c.start_server()
    again = c.finish(job, **changes)
    told, expected = evaluated(c, job), evaluated(c, again)
    assert told == expected


def f1_and_matrix(y, z, classes):
    p = np.argmax(z, axis=1)
    matrix = np.zeros((classes, classes), int)
    np.add.at(matrix, (y, p), 1)
    both, seen = np.diag(matrix), matrix.sum(0) + matrix.sum(1)
    return np.mean(2 * both[seen > 0] / seen[seen > 0]), matrix


@pytest.mark.parametrize('n', [1, 2])
def test_confusion_matrix_and_macro_f1(shared_cluster, n):
    c = shared_cluster(n)
    c.wait_daemons(n)
    job, _ = c.run_job(**dict(CHANGES, rounds=1, evaluation={'detailed': True, 'batch': 7}))
    x, y = synthetic((1, 8, 8), 4, 80, 1, 1)
    w, b = (v.astype(np.float64) for v in pulled(c, job).values())
    f1, matrix = f1_and_matrix(y, x @ w.T + b, 4)
    rounds, scores = evaluated(c, job)
    assert scores['confusion'] == matrix.tolist() and len(set(y)) == 4
    assert rounds[-1]['macro_f1'] == pytest.approx(f1, abs=1e-12) and rounds[-1]['client_mean'] is None


@pytest.fixture(scope='module')
def numbers(tmp_path_factory):
    """Two target values of three columns; the second is large and negative. {'train' or 'test': rows}."""
    draw, folder, rows = random.Random(3), tmp_path_factory.mktemp('numbers'), {}
    for split, n in ('train', 150), ('test', 53):
        rows[split] = []
        for _ in range(n):
            a, b, c = (round(draw.uniform(-1, 1), 3) for _ in range(3))
            rows[split].append((a, b, c, round(a + b + draw.gauss(0, 0.1), 3), round(40 * b - 300 + draw.gauss(0, 5), 3)))
        with open(folder / (split + '.csv'), 'w', encoding='utf-8') as f:
            f.write('a,b,c,one,two\n' + ''.join(','.join(map(str, row)) + '\n' for row in rows[split]))
    return folder, {split: np.array(v) for split, v in rows.items()}


@pytest.mark.parametrize('on', [{}, {'on': 'clients', 'split': 0.3}])
def test_errors_of_numbers(shared_cluster, numbers, on, tmp_path):
    """MAE, RMSE and R2 are those of the pulled model in numpy, and the same with one and two daemons."""
    found, (folder, rows) = [], numbers
    (tmp_path / 'd.yaml').write_text('data_sets:\n  - {name: v, format: csv, dir: %s, targets: [one, two]}\n' % folder)
    for n in 1, 2:
        c = shared_cluster.empty()
        c.start_server()
        for i in range(n):
            c.start_daemon('d%d' % i, data=[], more=['--config', str(tmp_path / 'd.yaml')])
        c.wait_daemons(n)
        job, digests = c.run_job(model={'layers': [{'dense': {'name': 'fc', 'units': 2}}]}, rounds=4, seed=5,
                                 data={'name': 'v', 'partition': 'iid', 'clients': 3},
                                 training={'lr': 0.1, 'batch': 10, 'loss': 'squared'}, aggregation={'delta_max': 1024},
                                 evaluation=dict(on, detailed=True, batch=7))
        found.append((digests, evaluated(c, job)))
    assert found[0] == found[1]
    last, used = found[0][1][0][-1], rows['test']
    if on:
        used = rows['train'][[i for _, held in parts_of(5, 150, 3, 0.3) for i in held]]
        assert len(used) == 45 and last['clients_evaluated'] == 3
    w, b = (v.astype(np.float64) for v in pulled(c, job).values())
    y, error = used[:, 3:], used[:, :3] @ w.T + b - used[:, 3:]
    assert last['mae'] == pytest.approx(np.abs(error).mean(), rel=1e-5)
    assert last['rmse'] == pytest.approx(np.sqrt((error ** 2).mean()), rel=1e-5)
    assert last['r2'] == pytest.approx((1 - (error ** 2).sum(0) / ((y - y.mean(0)) ** 2).sum(0)).mean(), rel=1e-5)
    assert last['accuracy'] is None and (last['client_mean'] is not None) == bool(on)


@pytest.mark.parametrize('changes, text', [
    ({'evaluation': {'split': 0.2}}, 'evaluation.split: is not used by on: test; remove it'),
    ({'evaluation': {'on': 'clients', 'split': 0}}, 'evaluation.split: 0 leaves clients nothing to evaluate on'),
    ({'evaluation': {'on': 'clients', 'every': 0}}, 'evaluation.every: 0 never evaluates'),
    ({'evaluation': {'on': 'clients', 'clients': 11}}, 'evaluation.clients: 11 clients, but the population has 10'),
    ({'evaluation': {'on': 'clients', 'clients': 2}, 'data': {'partition': 'local', 'clients': None}}, 'every site evaluates; remove it'),
    ({'evaluation': {'on': 'server'}}, "evaluation.on: expected one of 'test', 'clients', got 'server'"),
    ({'evaluation': {'detailed': True}, 'training': {'lr': 1, 'loss': 'squared', 'backend': 'cuda'}}, 'use training.backend: cpu'),
    ({'evaluation': {'detailed': True}, 'training': {'lr': 1, 'loss': 'binary'}}, 'neither a confusion matrix'),
])
def test_what_makes_no_sense_is_refused(shared_cluster, changes, text, tmp_path):
    c = shared_cluster(1)
    (tmp_path / 'j.yaml').write_text(h.job_text(**dict(CHANGES, **changes)))
    done = c.mfl('check', str(tmp_path / 'j.yaml'), status=None)
    assert done.returncode and text in done.stderr, done.stderr


def test_old_daemons_get_no_such_job(shared_cluster):
    """A daemon of protocol 7 is named as the reason why the job waits."""
    c = shared_cluster.empty()
    c.start_server()
    with wire.Connection(c.address) as old:
        old.send('hello', wire.hello(role='ROLE_DAEMON', name='old', backend='cpu', workers=1, instance=3, protocol_max=7, data_sets=[
            {'name': 'tiny', 'shape': [1, 8, 8], 'classes': 4, 'train_samples': 400, 'test_samples': 80, 'fingerprint': 1}]))
        old.expect('welcome')
        job = c.submit(**CHANGES)
        info = c.wait_info(job, lambda i: 'old' in i['reason'], 10, 'the reason')
        assert 'evaluation on clients' in info['reason'], info['reason']
