# SPDX-License-Identifier: Apache-2.0
"""A label per pixel, losses with weights, auxiliary outputs and drop_last through server and daemons."""
import json
import random
import struct

import pytest

import mfl_harness as h

SIDE, CLASSES, TRAIN, TEST = 8, 3, 60, 23
NET = {'classes': CLASSES, 'layers': [{'conv2d': {'name': 'head', 'filters': CLASSES, 'kernel': 1}}]}
DEEP = {'classes': CLASSES, 'layers': [
    {'conv2d': {'filters': 4, 'kernel': 3, 'padding': 1}}, {'relu': {'name': 'r'}}, {'maxpool2d': {'kernel': 2}},
    {'conv2d': {'filters': 8, 'kernel': 3, 'padding': 1}}, 'relu', {'convtranspose2d': {'name': 'up', 'filters': 4, 'kernel': 2, 'stride': 2}},
    {'concat': {'inputs': ['r', 'up'], 'axis': 0}}, {'conv2d': {'filters': CLASSES, 'kernel': 1}}]}
JOB = {'name': 'pixels', 'rounds': 3, 'model': NET, 'data': {'name': 'pixels', 'partition': 'iid', 'clients': 4},
       'training': {'optimizer': 'adam', 'lr': 0.5, 'batch': 5}, 'evaluation': {'batch': 4}}


def npy(shape, data):
    header = ("{'descr': '|u1', 'fortran_order': False, 'shape': %s, }" % (shape,)).ljust(117) + '\n'
    return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header)) + header.encode() + data


def make_samples(draw, n):
    """Grey says the class, mostly; each tenth pixel has no label."""
    labels = [draw.randrange(CLASSES) for _ in range(n * SIDE * SIDE)]
    greys = [min(255, 100 * label + draw.randrange(120)) for label in labels]
    return bytes(greys), bytes(255 if i % 10 == 0 else label for i, label in enumerate(labels))


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    draw, folder, made = random.Random(5), tmp_path_factory.mktemp('pixels'), {}
    for split, n in ('train', TRAIN), ('test', TEST):
        made[split] = make_samples(draw, n)
        (folder / (split + '_x.npy')).write_bytes(npy((n, 1, SIDE, SIDE), made[split][0]))
        (folder / (split + '_y.npy')).write_bytes(npy((n, SIDE, SIDE), made[split][1]))
    return 'npy:%s,ignore_index=255' % folder, made['test']


@pytest.fixture(scope='module')
def option(data):
    return 'pixels=' + data[0]


def shown(c, job):
    return json.loads(c.mfl('show', job, '--json').stdout)['rounds'][-1]


def tensors(path):
    raw = path.read_bytes()
    n = struct.unpack('<Q', raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    return {name: struct.unpack('<%df' % ((t['data_offsets'][1] - t['data_offsets'][0]) // 4),
                                raw[8 + n + t['data_offsets'][0]:8 + n + t['data_offsets'][1]])
            for name, t in header.items() if name != '__metadata__'}


def test_scores_are_those_of_the_model(shared_cluster, data, option, tmp_path):
    """Accuracy and mean IoU, from the pulled model's own predictions; they are the same with two daemons."""
    found = []
    for n in 1, 2:
        c = shared_cluster(n, data=[option])
        job, digests = c.run_job(**JOB)
        found.append((shown(c, job), digests))
    assert [f[0][k] for f in found[:1] for k in ('accuracy', 'mean_iou', 'loss')] == \
           [f[0][k] for f in found[1:] for k in ('accuracy', 'mean_iou', 'loss')]
    assert found[0][1] == found[1][1]
    c.mfl('pull', job, '-o', str(tmp_path / 'm.safetensors'))
    params = tensors(tmp_path / 'm.safetensors')
    table = [[0] * CLASSES for _ in range(CLASSES)]
    for grey, label in zip(*data[1]):
        logits = [params['head.weight'][k] * grey / 255 + params['head.bias'][k] for k in range(CLASSES)]
        if label != 255:
            table[label][logits.index(max(logits))] += 1
    right, total = sum(table[k][k] for k in range(CLASSES)), sum(map(sum, table))
    ratios = [table[k][k] / (sum(table[k]) + sum(row[k] for row in table) - table[k][k]) for k in range(CLASSES)]
    assert total == sum(label != 255 for label in data[1][1])
    assert found[0][0]['accuracy'] == right / total and 0.5 < right / total < 1
    assert found[0][0]['mean_iou'] == pytest.approx(sum(ratios) / CLASSES, abs=1e-12)


def test_a_net_with_scales_learns(shared_cluster, option):
    c = shared_cluster(2, data=[option])
    job, _ = c.run_job(**dict(JOB, rounds=20, model=DEEP, training={'lr': 0.03, 'optimizer': 'adam', 'batch': 5,
                                                         'class_weights': [0.5, 1, 2], 'loss': 'focal', 'focal_gamma': 1}))
    assert shown(c, job)['mean_iou'] > 0.4
    assert 'MEAN IOU' in c.mfl('show', job).stdout


def test_other_jobs_have_no_mean_iou(shared_cluster):
    c = shared_cluster(1)
    job, _ = c.run_job(rounds=1)
    assert shown(c, job)['mean_iou'] is None and 'MEAN IOU' not in c.mfl('show', job).stdout


@pytest.mark.parametrize('changes, text', [
    ({'model': {'classes': CLASSES, 'layers': ['flatten', {'dense': {'units': CLASSES}}]}}, 'a label per pixel'),
    ({'data': {'name': 'pixels', 'partition': 'iid', 'clients': 4, 'augment': {'flip': True}}}, 'remove it'),
    ({'training': {'lr': 1, 'class_weights': [1, 2]}}, 'class_weights has 2 numbers, but the model has 3 classes'),
    ({'training': {'lr': 1, 'loss': 'huber'}}, 'training.loss must be one of cross-entropy and focal'),
    ({'training': {'lr': 1, 'auxiliary': [0.3]}}, '1 auxiliary outputs'),
])
def test_what_does_not_fit_is_named(shared_cluster, option, changes, text, tmp_path):
    c = shared_cluster(1, data=[option])
    (tmp_path / 'j.yaml').write_text(h.job_text(**dict(JOB, **changes)))
    done = c.mfl('check', str(tmp_path / 'j.yaml'), '--data', option, status=None)
    assert done.returncode and text in done.stderr, done.stderr


def test_auxiliary_outputs_are_trained_but_not_scored(shared_cluster):
    """The main output alone is scored; the auxiliary one's loss counts in training by its weight."""
    c = shared_cluster(1)
    model = {'layers': ['flatten', {'dense': {'name': 'body', 'units': 12}}, {'relu': {'name': 'r'}},
                        {'dense': {'name': 'main', 'units': 4}}, {'reshape': {'name': 'm', 'shape': [1, 4]}},
                        {'dense': {'name': 'aux', 'units': 4, 'input': 'r'}},
                        {'reshape': {'name': 'a', 'shape': [1, 4]}}, {'concat': {'inputs': ['m', 'a'], 'axis': 0}}]}
    losses = []
    for weight in 0, 1:
        job, _ = c.run_job(rounds=1, model=model, training={'lr': 1e-6, 'batch': 10, 'auxiliary': [weight]})
        losses.append(shown(c, job))
    assert losses[0]['samples'] == losses[1]['samples'] and losses[0]['mean_iou'] is None
    assert losses[1]['train_loss'] > 1.5 * losses[0]['train_loss']
    assert abs(losses[1]['loss'] - losses[0]['loss']) < 1e-3 and abs(losses[0]['loss'] - losses[0]['train_loss']) < 0.5


def test_drop_last_leaves_out_what_is_short(shared_cluster, option):
    c = shared_cluster(1, data=[option])
    pixels = TRAIN * SIDE * SIDE
    plain = shown(c, c.run_job(**dict(JOB, rounds=1, training={'lr': 0.1, 'batch': 4}))[0])
    whole = shown(c, c.run_job(**dict(JOB, rounds=1, training={'lr': 0.1, 'batch': 4, 'drop_last': True}))[0])
    assert plain['clients'] == whole['clients'] == 4  # of 15 samples: 12 are left of each
    assert plain['weight'] == whole['weight'] == TRAIN
    assert pixels * 0.85 < plain['samples'] < pixels * 0.95 and pixels * 0.65 < whole['samples'] < pixels * 0.76


def test_drop_last_rejects_a_client_without_a_batch(shared_cluster, option):
    c = shared_cluster(1, data=[option])
    job = c.submit(**dict(JOB, rounds=1, training={'lr': 0.1, 'batch': 16, 'drop_last': True}, limits={'retries': 0}))
    info = c.wait_job(job, state='failed')
    assert 'drop_last leaves none of its 15 samples: a batch has 16' in c.mfl('show', job).stdout + info['reason']
