# SPDX-License-Identifier: Apache-2.0
"""From a committed round to an answer: the contract that a site tells, `mfl predict`, `mfl evaluate` and `mfl model show`, beside NumPy, the
round's own evaluation, and onnxruntime where it is there."""
import csv
import io
import json
import os
import zipfile

import numpy as np
import pytest

import mfl_harness as h

CLASSES = ['ant', 'bee', 'cat, wild', 'dog']
CNN = {'layers': [{'conv2d': {'filters': 9, 'kernel': 3, 'padding': 1}}, 'relu', {'maxpool2d': {'kernel': 2}}, 'flatten',
                  {'dense': {'units': 4}}]}


def make_images(path, seed, n=(120, 90)):
    """Class c is brighter in its quarter."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, count in zip(('train', 'test'), n):
        y = rng.integers(0, 4, count)
        x = rng.integers(0, 160, (count, 3, 8, 8))
        for i, c in enumerate(y):
            x[i, :, 4 * (c // 2):4 * (c // 2) + 4, 4 * (c % 2):4 * (c % 2) + 4] += 60
        arrays['x_' + name], arrays['y_' + name] = x.astype(np.uint8), y.astype(np.int64)
    np.savez(path, **arrays)
    return arrays


def make_table(path, seed, n, shift=0.0, labels=True):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, n)
    x = rng.normal(size=(n, 5)) * [1, 10, 0.1, 5, 2] + shift
    x[:, 0] += y
    x[:, 1] -= 10 * y
    with open(path, 'w', newline='', encoding='utf-8') as f:
        out = csv.writer(f)
        out.writerow(['a', 'b', 'c', 'd', 'e'] + ['kind'] * labels)
        for row, c in zip(x, y):
            out.writerow([*('%.5f' % v for v in row)] + [CLASSES[c]] * labels)
    return np.array([[float('%.5f' % v) for v in row] for row in x], np.float32), y


def softmax(z):
    e = np.exp(z.astype(np.float64) - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.fixture(scope='module')
def cluster(shared_cluster):
    return shared_cluster(0)


@pytest.fixture(scope='module')
def images(cluster):
    """A job of images on a site that normalises them, pulled."""
    c = cluster
    arrays = make_images(os.path.join(c.dir, 'images.npz'), 1)
    c.start_daemon('i1', data=['pix=npz:%s/images.npz,normalise=auto' % c.dir], backend='cpu')
    c.wait_daemons(1)
    job = c.run_job(name='images', model=CNN, rounds=2, data={'name': 'pix', 'partition': 'local', 'clients': None},
                    training={'backend': 'cpu'})[0]
    c.mfl('pull', job, '-o', 'images.safetensors')
    return c, job, arrays


def test_evaluate_is_the_round(images):
    """Loss and accuracy have the bits of the round's evaluation; the rest is recomputed."""
    c, job, arrays = images
    last = c.mfl_json('show', job)['rounds'][-1]
    done = c.mfl_json('evaluate', 'images.safetensors', '--data', 'images.npz')
    assert done['loss'] == last['loss'] and done['accuracy'] == last['accuracy'] and done['samples'] == 90
    assert c.mfl_json('evaluate', job, '--data', 'npz:images.npz') == done
    c.mfl('predict', 'images.safetensors', '--data', 'images.npz', '-o', 'p.npy')
    p, y = np.load(os.path.join(c.dir, 'p.npy')).astype(np.float64), arrays['y_test']
    confusion = np.zeros((4, 4), int)
    np.add.at(confusion, (y, p.argmax(1)), 1)
    assert done['confusion'] == confusion.tolist()
    both, label, said = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    assert abs(done['macro_f1'] - np.mean(2 * both / (label + said))) < 1e-12
    areas = []
    for k in range(4):
        a, b = p[y == k, k], p[y != k, k]
        areas.append(((a[:, None] > b).mean() + (a[:, None] == b).mean() / 2))
    assert abs(done['auc'] - np.mean(areas)) < 1e-6  # float32 in the file may make equals of unequal ones
    conf, right = p.max(1), p.argmax(1) == y
    bins = np.minimum((conf * 15).astype(int), 14)
    ece = sum(abs(right[bins == b].mean() - conf[bins == b].mean()) * (bins == b).mean() for b in range(15) if (bins == b).any())
    assert abs(done['calibration_error'] - ece) < 1e-6
    shown = c.mfl('evaluate', 'images.safetensors', '--data', 'images.npz').stdout
    assert 'accuracy           %.4f' % done['accuracy'] in shown and 'label \\ predicted' in shown


def test_rows_alone(images):
    """A row's bits are the same alone and among others."""
    c, _, arrays = images
    c.mfl('predict', 'images.safetensors', '--data', 'images.npz', '--logits', '-o', 'all.npy')
    z = np.load(os.path.join(c.dir, 'all.npy'))
    assert z.shape == (90, 4) and z.dtype == np.float32
    for n in (1, 3, 65):
        np.save(os.path.join(c.dir, 'some.npy'), arrays['x_test'][17:17 + n])
        c.mfl('predict', 'images.safetensors', '--data', 'some.npy', '--logits', '-o', 'some_z.npy')
        assert np.load(os.path.join(c.dir, 'some_z.npy')).tobytes() == z[17:17 + n].tobytes()


def test_formats(images):
    c, _, _ = images
    c.mfl('predict', 'images.safetensors', '--data', 'images.npz', '-o', 'p.npy')
    p = np.load(os.path.join(c.dir, 'p.npy'))
    text = c.mfl('predict', 'images.safetensors', '--data', 'images.npz', '--top', 2, '--probabilities').stdout
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[0] == ['row', 'class', 'probability', 'class_2', 'probability_2', 'p_0', 'p_1', 'p_2', 'p_3']
    order = np.argsort(-p, axis=1, kind='stable')
    for i, row in enumerate(rows[1:]):
        assert [int(row[0]), int(row[1]), int(row[3])] == [i, order[i][0], order[i][1]]
        assert np.allclose([float(v) for v in row[5:]], p[i], rtol=0, atol=1e-7) and row[2] == row[5 + order[i][0]]
    lines = c.mfl('predict', 'images.safetensors', '--data', 'images.npz', '--format', 'jsonl', '--logits').stdout.splitlines()
    one = json.loads(lines[4])
    assert len(lines) == 90 and one['row'] == 4 and one['class'] == order[4][0] and len(one['logits']) == 4
    assert np.allclose(softmax(np.array(one['logits']))[one['class']], one['probability'], atol=1e-7)


def test_contract(images):
    """What the site measured; names stay there."""
    c, job, arrays = images
    shown = c.mfl_json('show', job)['contract']
    model = c.mfl_json('model', 'show', 'images.safetensors')
    # Who told first is not in files: two of one model are equal.
    assert dict(model['contract'], **{'from': 'i1'}) == shown and model['job'] == job and model['round'] == 2
    assert shown['shape'] == [3, 8, 8] and shown['type'] == 'u8' and shown['unit'] == 'pixel' and shown['classes'] == 4
    assert shown['loss'] == 'cross-entropy' and shown['from'] == 'i1' and 'class_names' not in shown
    x = arrays['x_train'].astype(np.float64) / 255
    mean, std = x.mean((0, 2, 3)), x.std((0, 2, 3))
    assert np.allclose(shown['scale'], 1 / 255 / std, rtol=1e-6) and np.allclose(shown['shift'], -mean / std, rtol=1e-6)
    text = c.mfl('model', 'show', 'images.safetensors').stdout
    assert 'input      3x8x8 pixels, bytes' in text and 'output     4 classes' in text
    assert 'input      3x8x8 pixels' in c.mfl('show', job).stdout


def test_other_readers(images):
    """The file stays one for the safetensors library's format: texts as metadata, and the tensors that NumPy computes with."""
    c, _, arrays = images
    params = h.read_safetensors(os.path.join(c.dir, 'images.safetensors'))
    assert len(params) == 4
    with open(os.path.join(c.dir, 'images.safetensors'), 'rb') as f:
        n = int.from_bytes(f.read(8), 'little')
        meta = json.loads(f.read(n))['__metadata__']
    assert all(isinstance(v, str) for v in meta.values()) and meta['input'] == '3,8,8' and meta['classes'] == '4'
    assert json.loads(meta['contract'])['shape'] == list(arrays['x_test'].shape[1:])


def test_npz_comment(images):
    c, job, _ = images
    done = c.mfl('pull', job, '--format', 'npz', '-o', 'm.npz', status=None)
    if 'built without npz' in done.stderr:
        pytest.skip('built without npz')
    with zipfile.ZipFile(os.path.join(c.dir, 'm.npz')) as z:
        assert dict(json.loads(z.comment), **{'from': 'i1'}) == c.mfl_json('show', job)['contract']
        arrays = len(z.namelist())
    shown = c.mfl_json('model', 'show', 'm.npz')
    assert shown['arrays'] == arrays and shown['contract'] == c.mfl_json('model', 'show', 'images.safetensors')['contract']
    assert 'input      ' in c.mfl('model', 'show', 'm.npz').stdout
    np.savez(os.path.join(c.dir, 'other.npz'), a=np.zeros(3))
    assert "says nothing of a model's input" in c.mfl('model', 'show', 'other.npz', status=5).stderr
    assert 'no-model.npz' in c.mfl('model', 'show', 'no-model.npz', status=4).stderr
    assert '--round chooses a model of a job' in c.mfl('model', 'show', 'm.npz', '--round', 'best', status=2).stderr
    c.write('broken.npz', b'PK no archive')
    assert 'broken.npz: not an npz file' in c.mfl('model', 'show', 'broken.npz', status=5).stderr


def test_onnxruntime(images):
    """The pulled ONNX file with its input, in onnxruntime."""
    onnxruntime = pytest.importorskip('onnxruntime', reason='onnxruntime is not in Debian; install it in a virtual environment')
    c, job, arrays = images
    c.mfl('predict', 'images.safetensors', '--data', 'images.npz', '--logits', '-o', 'z.npy')
    z = np.load(os.path.join(c.dir, 'z.npy'))
    c.mfl('pull', job, '--format', 'onnx', '--with-input', '-o', 'raw.onnx')
    session = onnxruntime.InferenceSession(os.path.join(c.dir, 'raw.onnx'), providers=['CPUExecutionProvider'])
    y, = session.run(None, {session.get_inputs()[0].name: arrays['x_test']})
    assert np.abs(y - z).max() <= 1e-5
    assert json.loads(session.get_modelmeta().custom_metadata_map['contract'])['type'] == 'u8'


def test_torch(images):
    """The tensors, read by the safetensors library, in PyTorch."""
    torch = pytest.importorskip('torch', reason='there is no PyTorch')
    loader = pytest.importorskip('safetensors.torch', reason='there is no safetensors library')
    c, _, arrays = images
    v = loader.load_file(os.path.join(c.dir, 'images.safetensors'))
    conv, dense = (next(n[:-len('.weight')] for n, t in v.items() if t.dim() == d) for d in (4, 2))
    contract = c.mfl_json('model', 'show', 'images.safetensors')['contract']
    scale, shift = (torch.tensor(contract[k]).float().reshape(1, 3, 1, 1) for k in ('scale', 'shift'))
    x = torch.tensor(arrays['x_test']).float() * scale + shift
    f = torch.nn.functional
    y = f.max_pool2d(f.relu(f.conv2d(x, v[conv + '.weight'], v[conv + '.bias'], padding=1)), 2).flatten(1)
    y = f.linear(y, v[dense + '.weight'], v[dense + '.bias'])
    c.mfl('predict', 'images.safetensors', '--data', 'images.npz', '--logits', '-o', 'z.npy')
    assert np.abs(y.numpy() - np.load(os.path.join(c.dir, 'z.npy'))).max() <= 1e-4


TABLE = 'tab=csv:%s/%s,test_fraction=0.25,normalise=columns,names=share'


@pytest.fixture(scope='module')
def table(cluster, images):
    """A job of tables on a site that shares its names."""
    c = cluster
    make_table(os.path.join(c.dir, 'site.csv'), 5, 160)
    c.start_daemon('t1', data=[TABLE % (c.dir, 'site.csv')])
    c.wait_daemons(2)
    data = {'name': 'tab', 'partition': 'local', 'clients': None}
    job = c.run_job(name='table', model='logistic', rounds=2, data=data)[0]
    c.mfl('pull', job, '-o', 'table.safetensors')
    return c, job, data


def test_table(table):
    """A new table without labels: each column is scaled as the site did it, and classes have their names."""
    c, job, _ = table
    x, _ = make_table(os.path.join(c.dir, 'new.csv'), 6, 40, labels=False)
    contract = c.mfl_json('show', job)['contract']
    assert contract['class_names'] == CLASSES and contract['feature_names'] == list('abcde')
    params = h.read_safetensors(os.path.join(c.dir, 'table.safetensors'))
    w, b = (np.frombuffer(params[k][2], np.float32).reshape(params[k][1]) for k in sorted(params, reverse=True))
    scaled = ((x - np.array(contract['mean'])) / np.array(contract['std'])).astype(np.float32)
    z = scaled.astype(np.float64) @ w.T.astype(np.float64) + b
    c.mfl('predict', 'table.safetensors', '--data', 'new.csv', '--logits', '-o', 'z.npy')
    assert np.abs(np.load(os.path.join(c.dir, 'z.npy')) - z).max() < 1e-4
    rows = list(csv.DictReader(io.StringIO(c.mfl('predict', 'table.safetensors', '--data', 'csv:new.csv').stdout)))
    assert [r['name'] for r in rows] == [CLASSES[k] for k in z.argmax(1)]


def test_columns_by_name(table):
    """Columns in another order, or others, would give answers without complaint; so many that are no sample are named as such."""
    c, _, _ = table
    for name, header, why in (('swapped', 'b,a,c,d,e', "column 0 is 'b', the model's is 'a'"), ('others', 'a,b,c,d,f', "column 4 is 'f', the model's is 'e'"),
                              ('more', 'a,b,c,d,e,f,g', "its samples are 7, the model's are 5")):
        c.write(name + '.csv', '%s\n%s\n' % (header, ','.join('1.5' for _ in header.split(','))))
        assert why in c.mfl('predict', 'table.safetensors', '--data', name + '.csv', status=5).stderr
    c.write('bare.csv', '1,2,3,4,5\n')  # without names, nobody knows
    assert len(c.mfl('predict', 'table.safetensors', '--data', 'bare.csv,header=no').stdout.splitlines()) == 2
    np.save(os.path.join(c.dir, 'nan.npy'), np.full((2, 5), np.nan, np.float32))
    assert 'is not a finite float' in c.mfl('predict', 'table.safetensors', '--data', 'nan.npy', status=5).stderr


def test_labels_by_name(table):
    """A file with two of the four classes: names decide, not their places."""
    c, _, _ = table
    with open(os.path.join(c.dir, 'site.csv'), encoding='utf-8') as f:
        lines = f.read().splitlines()
    some = [line for line in lines[1:] if line.endswith(('dog', 'bee'))]
    c.write('two.csv', '\n'.join([lines[0], *some]) + '\n')
    done = c.mfl_json('evaluate', 'table.safetensors', '--data', 'two.csv')
    assert [sum(row) for row in done['confusion']] == [0, sum(s.endswith('bee') for s in some), 0,
                                                       sum(s.endswith('dog') for s in some)]
    c.write('odd.csv', '\n'.join([lines[0], *some]).replace('dog', 'eel') + '\n')
    assert "class 'eel' is none of the model's" in c.mfl('evaluate', 'table.safetensors', '--data', 'odd.csv', status=5).stderr


def test_sites_that_differ(table):
    """Another site scales differently: it is named, and the model wants input that is scaled already."""
    c, _, data = table
    make_table(os.path.join(c.dir, 'other.csv'), 7, 100, shift=3)
    c.start_daemon('t2', data=[TABLE % (c.dir, 'other.csv')], node='n2')
    c.wait_daemons(3)
    job = c.run_job(name='two-sites', model='logistic', rounds=2, data=data)[0]
    contract = h.wait_until(lambda: (lambda k: k and k.get('sites') and k)(c.mfl_json('show', job)['contract']), 10, 'both sites')
    assert contract['normalised'] and {contract['from'], *contract['sites']} == {'t1', 't2'}
    shown = c.mfl('model', 'show', job).stdout
    assert 'must be scaled before it is given: sites differ: ' in shown and contract['sites'][0] in shown
    keys = ',mean=[1],std=[2]'
    c.mfl('pull', job, '-o', 'mixed.safetensors')
    c.mfl('predict', 'mixed.safetensors', '--data', 'new.csv' + keys, '--logits', '-o', 'a.npy')
    c.mfl('predict', 'mixed.safetensors', '--data', 'new.csv', '--logits', '-o', 'b.npy')
    a, b = (np.load(os.path.join(c.dir, k)) for k in ('a.npy', 'b.npy'))
    assert a.shape == b.shape == (40, 4) and np.abs(a - b).max() > 1e-3


def test_an_onnx_file_is_a_model(images):
    """A pulled ONNX file, as a model file and directly: the bits of the original's logits, as it carries the same contract. Without the contract
    the input must be scaled before, and logits are near those."""
    c, job, arrays = images
    c.mfl('pull', job, '--format', 'onnx', '-o', 'net.onnx')
    told = c.mfl_json('model', 'import', 'net.onnx', '--set', 'data.name=pix')
    assert told['file'] == 'net.safetensors' and told['digest'] == c.mfl_json('model', 'show', 'images.safetensors')['digest']
    contract = c.mfl_json('model', 'show', 'images.safetensors')['contract']
    x = arrays['x_test'][:20].astype(np.float32)
    scale, shift = (np.array(contract[k], np.float32).reshape(3, 1, 1) for k in ('scale', 'shift'))
    np.save(os.path.join(c.dir, 'scaled.npy'), x * scale + shift)
    np.save(os.path.join(c.dir, 'raw.npy'), arrays['x_test'][:20])
    c.mfl('predict', 'images.safetensors', '--data', 'raw.npy', '--logits', '-o', 'expected.npy')
    for name in ('net.onnx', 'net.safetensors'):
        c.mfl('predict', name, '--data', 'raw.npy', '--logits', '-o', 'got.npy')
        got, expected = (np.load(os.path.join(c.dir, n)) for n in ('got.npy', 'expected.npy'))
        assert got.tobytes() == expected.tobytes()
        assert c.mfl_json('model', 'show', name)['contract'] == contract
    with open(os.path.join(c.dir, 'net.onnx'), 'rb') as f:
        plain = f.read()
    c.write('damaged.onnx', plain.replace(b'"shape"', b'"shapf"'))
    assert "damaged.onnx: contract: shape: expected" in c.mfl('model', 'show', 'damaged.onnx', status=5).stderr
    c.write('plain.onnx', plain.replace(b'contract', b'anything'))
    c.mfl('predict', 'plain.onnx', '--data', 'scaled.npy', '--logits', '-o', 'got.npy')
    got = np.load(os.path.join(c.dir, 'got.npy'))
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()  # scaled in another order
    shown = c.mfl('model', 'show', 'plain.onnx').stdout
    assert 'the input must be scaled before it is given: as the program does that it comes from' in shown
    # A job starts from it, with its layers: as from the model itself.
    digests = []
    for file in ('net.safetensors', 'images.safetensors'):
        text = h.job_text(name='again', model={**CNN, 'input': [3, 8, 8], 'classes': 4, 'initial': file}, rounds=1,
                          data={'name': 'pix', 'partition': 'local', 'clients': None}, training={'backend': 'cpu'})
        again = c.mfl('submit', c.write('again.yaml', text)).stdout.split()[0]
        c.wait_job(again)
        digests.append(c.rounds(again)[0]['digest'])
    assert digests[0] == digests[1] != c.rounds(job)[0]['digest']
    assert 'no such file' in c.mfl('model', 'import', 'nowhere.onnx', status=4).stderr
    c.mfl('pull', job, '--format', 'onnx', '--with-input', '-o', 'with.onnx')
    assert 'without --with-input writes the network alone' in c.mfl('predict', 'with.onnx', '--data', 'raw.npy', status=5).stderr
    c.write('bad.onnx', b'no model')
    assert 'bad.onnx' in c.mfl('model', 'import', 'bad.onnx', status=5).stderr


def test_text(cluster):
    """Of a folder with two parts the one for tests, as the round; and a text alone as a whole, with the model's characters."""
    c, rng = cluster, np.random.default_rng(3)
    os.makedirs(os.path.join(c.dir, 'poem'))
    for part, n in (('train', 900), ('test', 400)):
        c.write('poem/%s.txt' % part, ''.join(rng.choice(list('abcdef '), n)))
    c.start_daemon('p1', data=['poem=text:%s/poem,length=12,names=share' % c.dir], backend='cpu')
    c.wait_daemons(1)
    job = c.run_job(name='poem', model='char-lstm', rounds=1, data={'name': 'poem', 'partition': 'local', 'clients': None},
                    training={'backend': 'cpu'})[0]
    c.mfl('pull', job, '-o', 'poem.safetensors')
    expected = c.rounds(job)[0]
    for data in ('text:poem', 'poem/test.txt'):
        done = c.mfl_json('evaluate', 'poem.safetensors', '--data', data)
        assert (done['loss'], done['accuracy']) == (expected['loss'], expected['accuracy'])
    c.write('few.txt', 'fed cab fed cab ')  # not all of the model's characters
    rows = list(csv.DictReader(io.StringIO(c.mfl('predict', 'poem.safetensors', '--data', 'few.txt').stdout)))
    assert len(rows) == 12
    c.write('odd.txt', 'fed%cab' * 5)
    assert "character U+0025 is none of the model's" in c.mfl('predict', 'poem.safetensors', '--data', 'odd.txt', status=5).stderr
    c.write('short.txt', 'fed')
    assert 'the text is too short: a sample of the model has 12 characters' in c.mfl('predict', 'poem.safetensors', '--data', 'short.txt', status=5).stderr


def test_refusals(table):
    """What can't be done is named, with what to do."""
    c, job, _ = table

    def refused(*argv, status=5):
        return c.mfl(*argv, status=status).stderr
    np.save(os.path.join(c.dir, 'shape.npy'), np.zeros((3, 7), np.float32))
    np.save(os.path.join(c.dir, 'float.npy'), np.zeros((3, 3, 8, 8), np.float32))
    c.write('what.bin', b'1')
    assert "samples are 7, the model's are 5" in refused('predict', 'table.safetensors', '--data', 'shape.npy')
    assert 'its values are floats, the model\'s are bytes (0 to 255)' in refused('predict', 'images.safetensors', '--data',
                                                                               'float.npy')
    assert 'what format is it? Write FORMAT:PATH' in refused('predict', 'table.safetensors', '--data', 'what.bin')
    assert 'no such file' in refused('predict', 'table.safetensors', '--data', 'none.csv', status=4)
    assert "have names; write 'csv:new.csv'" in refused('predict', 'table.safetensors', '--data', 'tab=csv:new.csv')
    for data in ('synthetic:1,8,8:4:10:10:1', 'x=synthetic:1,8,8:4:10:10:1'):
        assert 'synthetic samples are in no file; `mfl validate`' in refused('evaluate', 'table.safetensors', '--data', data)
    os.makedirs(os.path.join(c.dir, 'synthetic'))  # a name like any other
    for data in ('synthetic', 'site.csv,label=synthetic'):
        assert 'synthetic samples' not in refused('evaluate', 'table.safetensors', '--data', data)
    assert 'test_fraction is for training' in refused('evaluate', 'table.safetensors', '--data', 'site.csv,test_fraction=0.5')
    assert 'normalise is given, but the model knows' in refused('predict', 'table.safetensors', '--data', 'new.csv,normalise=auto')
    assert 'where are its labels? add ,train_y=' in refused('evaluate', 'images.safetensors', '--data', 'float.npy')
    assert 'give the samples as one --data' in refused('predict', 'table.safetensors', status=2)
    assert "'txt' is not csv, jsonl or npy" in refused('predict', 'table.safetensors', '--data', 'new.csv', '-o', 'a.txt', status=2)
    with open(os.path.join(c.dir, 'table.safetensors'), 'rb') as f:
        n = int.from_bytes(f.read(8), 'little')
        header, data = json.loads(f.read(n)), f.read()
    header['__metadata__'] = {'job': job}  # as an older `mfl pull` wrote it
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    c.write('old.safetensors', len(text).to_bytes(8, 'little') + text + data)
    # Params that another program has changed are not those of the digest; without it they are taken, and answers that are none are named.
    with open(os.path.join(c.dir, 'table.safetensors'), 'rb') as f:
        whole = f.read()[:-4] + np.float32('nan').tobytes()
    c.write('nan.safetensors', whole)
    assert "its metadata 'digest' says" in refused('predict', 'nan.safetensors', '--data', 'new.csv')
    c.write('nan.safetensors', whole.replace(b'"digest"', b'"digesf"'))
    assert '40 of 40 samples have an answer that is not finite' in c.mfl('predict', 'nan.safetensors', '--data', 'new.csv').stderr
    assert 'has params but not their model' in refused('predict', 'old.safetensors', '--data', 'new.csv')
    c.write('bad.safetensors', b'not a model')
    assert 'bad.safetensors' in refused('model', 'show', 'bad.safetensors')
    assert 'none-such' in refused('model', 'show', 'none-such', status=4)


def test_regression(cluster, images):
    """MAE, RMSE and R2 beside NumPy; values instead of classes."""
    c = cluster
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 6)).astype(np.float32)
    y = (x @ rng.normal(size=(6, 2)) + 0.1).astype(np.float32)
    np.savez(os.path.join(c.dir, 'reg.npz'), x_train=x[:150], y_train=y[:150], x_test=x[150:], y_test=y[150:])
    c.start_daemon('r1', data=['reg=npz:%s/reg.npz' % c.dir], node='n3')
    h.wait_until(lambda: any(d['name'] == 'r1' for d in c.wait_daemons(1)), 10, 'r1')
    job = c.run_job(name='reg', model='logistic', rounds=3, data={'name': 'reg', 'partition': 'local', 'clients': None},
                    training={'loss': 'squared', 'lr': 0.05})[0]
    c.mfl('pull', job, '-o', 'reg.safetensors')
    done = c.mfl_json('evaluate', 'reg.safetensors', '--data', 'reg.npz', '--backend', 'reference')
    last = c.mfl_json('show', job)['rounds'][-1]
    c.mfl('predict', 'reg.safetensors', '--data', 'reg.npz', '-o', 'values.npy')
    v = np.load(os.path.join(c.dir, 'values.npy')).astype(np.float64)
    e = v - y[150:]
    assert done['loss'] == last['loss'] and done['accuracy'] is None and done['confusion'] is None
    assert abs(done['mae'] - np.abs(e).mean()) < 1e-6 and abs(done['rmse'] - np.sqrt((e * e).mean())) < 1e-6
    assert abs(done['r2'] - np.mean(1 - (e * e).sum(0) / ((y[150:] - y[150:].mean(0)) ** 2).sum(0))) < 1e-5
    rows = list(csv.DictReader(io.StringIO(c.mfl('predict', 'reg.safetensors', '--data', 'reg.npz').stdout)))
    assert np.allclose(float(rows[7]['value_1']), v[7, 1], rtol=1e-6)
    # The file's contract also says that these are values, not logits.
    c.mfl('pull', job, '--format', 'onnx', '-o', 'reg.onnx')
    assert c.mfl_json('evaluate', 'reg.onnx', '--data', 'reg.npz', '--backend', 'reference')['mae'] == done['mae']
