# SPDX-License-Identifier: Apache-2.0
"""Models that come from elsewhere and go back: raw features with batch norm, initial params from files of Hugging Face, adapters
for `peft`."""
import json
import os
import random
import struct

import numpy as np
import pytest

import mfl_harness as h

CLASSIFIER = ('classifier.weight', 'classifier.bias')
LAYERS = [{'flatten': {}}, {'dense': {'name': 'encoder.attention.query', 'units': 12}}, {'relu': {}},
          {'dense': {'name': 'encoder.output.dense', 'units': 12}}, {'dense': {'name': 'classifier', 'units': 4}}]
MODEL = {'input': [1, 8, 8], 'classes': 4, 'layers': LAYERS}
SHAPES = {'encoder.attention.query.weight': (12, 64), 'encoder.attention.query.bias': (12,),
          'encoder.output.dense.weight': (12, 12), 'encoder.output.dense.bias': (12,),
          'classifier.weight': (4, 12), 'classifier.bias': (4,)}
# Nothing learns, so a pulled model is the file; a rate of 0 is not allowed.
STILL = {'rounds': 1, 'training': {'lr': 1e-30}}


def write_safetensors(path, tensors):
    """tensors: {name: array of float32, float16 or int64, or (dtype, shape, bytes)}."""
    types = {'float32': 'F32', 'float16': 'F16', 'int64': 'I64'}
    header, data = {}, b''
    for name, t in tensors.items():
        dtype, shape, raw = t if isinstance(t, tuple) else (types[str(t.dtype)], t.shape, t.tobytes())
        header[name] = {'dtype': dtype, 'shape': list(shape), 'data_offsets': [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text + data)
    return str(path)


def weights(seed=1):
    draw = np.random.RandomState(seed)
    return {n: draw.normal(0, 0.2, size=s).astype('f4') for n, s in SHAPES.items()}


def arrays(path):
    return {n: np.frombuffer(data, '<f4').reshape(shape) for n, (_, shape, data) in h.read_safetensors(path).items()}


@pytest.fixture(scope='module')
def one(shared_cluster):
    c = shared_cluster(1)
    c.wait_daemons(1)
    return c


def run(c, model, **changes):
    job = c.mfl_json('submit', c.write('job.yaml', h.job_text(**{'model': model, **changes})))['job']
    c.wait_job(job)
    path = '%s/%s.safetensors' % (c.dir, job)
    c.mfl('pull', job, '-o', path)
    return job, arrays(path)


def refusal(c, tmp_path, model):
    path = tmp_path / 'job.yaml'
    path.write_text(h.job_text(model=model))
    return c.mfl('check', str(path), status=5).stderr


# ---- running statistics ----

def table(c, deviation, mean):
    draw = random.Random(5)
    rows = ['a,b,c,kind']
    for i in range(200):
        a, b, d = (mean + deviation * draw.gauss(0, 1) for _ in range(3))
        rows.append('%.4f,%.4f,%.4f,%s' % (a, b, d, 'yes' if a > b else 'no'))
    return c.write('t%d.csv' % deviation, '\n'.join(rows) + '\n')


NORMED = {'layers': [{'batchnorm': {'name': 'bn'}}, {'dense': {'units': 8}}, {'relu': {}}, {'dense': {'units': 2}}]}


@pytest.mark.parametrize('backend', ['reference', 'cpu'])
def test_raw_features_with_batch_norm(cluster, backend):
    """Deviation 10 moves the running variance by 100, far beyond what a weight may move."""
    c = cluster(0)
    c.start_daemon('d1', data=['raw=csv:%s,test_fraction=0.2' % table(c, 10, 30)], backend=backend)
    c.wait_daemons(1)
    job, got = run(c, NORMED, data={'name': 'raw', 'clients': 4}, rounds=3, training={'epochs': 5})
    assert c.info(job)['state'] == 'done'
    assert np.abs(got['bn.running_mean'] - 30).max() < 3 and np.abs(got['bn.running_var'] - 100).max() < 30
    # Half the units of what delta_max would give, and enough: the same job with a narrow range has the same model, nearly.
    _, near = run(c, NORMED, data={'name': 'raw', 'clients': 4}, rounds=3, training={'epochs': 5},
                  aggregation={'statistics_max': 1e9})
    assert all(np.abs(near[n] - got[n]).max() < 1e-3 for n in got)
    failed = c.submit(model=NORMED, data={'name': 'raw', 'clients': 4}, rounds=1, limits={'retries': 0},
                      aggregation={'statistics_max': 16})
    c.wait_job(failed, state='failed')
    log = c.server.log() + json.dumps(c.info(failed))
    assert "batch norm's running statistics" in log and 'aggregation.statistics_max' in log and 'bn.running_' in log


# ---- names, types, shards ----

def test_a_plain_file(one, tmp_path):
    want = weights()
    _, got = run(one, {**MODEL, 'initial': write_safetensors(tmp_path / 'm.safetensors', want)}, **STILL)
    assert {n: a.tobytes() for n, a in got.items()} == {n: a.tobytes() for n, a in want.items()}


@pytest.mark.parametrize('side', ['file', 'model'])
def test_a_prefix_that_one_side_lacks(one, tmp_path, side):
    want = weights()
    layers = json.loads(json.dumps(LAYERS).replace('"encoder', '"bert.encoder')) if side == 'model' else LAYERS
    stored = {'bert.' + n if side == 'file' and n.startswith('encoder') else n: a for n, a in want.items()}
    path = write_safetensors(tmp_path / 'm.safetensors', stored)
    said = refusal(one, tmp_path, {**MODEL, 'layers': layers, 'initial': path})
    assert '4 tensors of the model are missing' in said and 'prefix: bert.' in said
    _, got = run(one, {**MODEL, 'layers': layers, 'initial': {'file': path, 'prefix': 'bert.'}}, **STILL)
    assert {n.replace('bert.', ''): a.tobytes() for n, a in got.items()} == {n: a.tobytes() for n, a in want.items()}


def test_a_new_head_and_tensors_of_the_old_one(one, tmp_path):
    want = weights()
    stored = {n: a for n, a in want.items() if n not in CLASSIFIER}
    stored.update({'cls.predictions.bias': np.ones(7, 'f4'), 'encoder.position_ids': np.arange(3),
                   'strategy/momentum/x': np.ones(2, 'f4')})
    path = write_safetensors(tmp_path / 'm.safetensors', stored)
    said = refusal(one, tmp_path, {**MODEL, 'initial': path})
    assert 'classifier.weight, classifier.bias' in said and 'cls.predictions.bias' in said and 'model.initial.missing' in said
    said = refusal(one, tmp_path, {**MODEL, 'initial': {'file': path, 'missing': ['classifier*']}})
    assert 'the model has no tensor cls.predictions.bias' in said and 'model.initial.unused' in said
    model = {**MODEL, 'initial': {'file': path, 'missing': ['classifier*'], 'unused': ['cls.*']}}
    job = tmp_path / 'job.yaml'
    job.write_text(h.job_text(model=model))
    said = one.mfl('check', str(job)).stderr
    assert '2 tensors of the model not in the file' in said and '1 tensor not used: cls.predictions.bias' in said
    _, got = run(one, model, **STILL)
    _, fresh = run(one, MODEL, **STILL)
    for n in SHAPES:
        assert got[n].tobytes() == (fresh if n in CLASSIFIER else want)[n].tobytes()


def test_half_precision_is_exact(one, tmp_path):
    """All numbers of each type between -1 and 1, also below the least normal one."""
    bits = np.arange(1 << 16, dtype='u2')
    halves = [v for v in (bits.view('f2').astype('f4'), (bits.astype('u4') << 16).view('f4'))]
    kept = [bits[np.abs(np.nan_to_num(v, nan=9)) < 1] for v in halves]
    layers = [{'flatten': {}}, {'dense': {'name': 'a', 'units': 1024, 'bias': False}},
              {'dense': {'name': 'b', 'units': 64, 'bias': False}}, {'dense': {'name': 'c', 'units': 4, 'bias': False}}]
    stored = {'a.weight': ('F16', (1024, 64), np.resize(kept[0], 65536).tobytes()),
              'b.weight': ('BF16', (64, 1024), np.resize(kept[1], 65536).tobytes()), 'c.weight': np.zeros((4, 64), 'f4')}
    path = write_safetensors(tmp_path / 'm.safetensors', stored)
    model = {**MODEL, 'layers': layers, 'initial': path, 'freeze': ['a', 'b']}
    _, got = run(one, model, **STILL)
    assert got['a.weight'].tobytes() == np.resize(kept[0], 65536).view('f2').astype('f4').tobytes()
    assert got['b.weight'].tobytes() == (np.resize(kept[1], 65536).astype('u4') << 16).tobytes()
    stored['c.weight'] = np.zeros((4, 64), 'i8')
    write_safetensors(path, stored)
    assert 'c.weight is I64; F32, F16 and BF16 are supported' in refusal(one, tmp_path, model)


def test_shards(one, tmp_path):
    want = weights()
    names = list(want)
    files = {'model-00001-of-00002.safetensors': names[:3], 'model-00002-of-00002.safetensors': names[3:]}
    for f, own in files.items():
        write_safetensors(tmp_path / f, {n: want[n] for n in own})
    index = tmp_path / 'model.safetensors.index.json'
    index.write_text(json.dumps({'metadata': {}, 'weight_map': {n: f for f, own in files.items() for n in own}}))
    for path in (index, tmp_path):  # the index, or the folder
        _, got = run(one, {**MODEL, 'initial': str(path)}, **STILL)
        assert {n: a.tobytes() for n, a in got.items()} == {n: a.tobytes() for n, a in want.items()}
    index.write_text(json.dumps({'weight_map': {'a': '../other.safetensors'}}))
    assert 'is not a file name' in refusal(one, tmp_path, {**MODEL, 'initial': str(index)})
    index.write_text('{"weight_map": {}}')
    assert 'not an index of shards' in refusal(one, tmp_path, {**MODEL, 'initial': str(index)})


def test_matrices_stored_transposed(one, tmp_path):
    want = weights()
    stored = {n: a.T.copy() if n.endswith('weight') and n not in CLASSIFIER else a for n, a in want.items()}
    path = write_safetensors(tmp_path / 'm.safetensors', stored)
    said = refusal(one, tmp_path, {**MODEL, 'initial': path})
    assert "add 'encoder.attention.query.weight' to model.initial.transposed" in said
    # Another matrix is square: its shape does not tell, so a pattern must.
    said = refusal(one, tmp_path, {**MODEL, 'initial': {'file': path, 'transposed': ['*.query.weight']}})
    assert 'encoder.output.dense.weight is square' in said and "'!encoder.output.dense.weight'" in said
    _, got = run(one, {**MODEL, 'initial': {'file': path, 'transposed': ['encoder.*.weight']}}, **STILL)
    assert {n: a.tobytes() for n, a in got.items()} == {n: a.tobytes() for n, a in want.items()}
    model = {**MODEL, 'initial': {'file': path, 'transposed': ['!*.dense.weight', '*.query.weight']}}
    _, got = run(one, model, **STILL)
    assert got['encoder.output.dense.weight'].tobytes() == stored['encoder.output.dense.weight'].tobytes()
    assert 'only matrices' in refusal(one, tmp_path, {**MODEL, 'initial': {'file': path, 'transposed': ['*']}})


def test_a_name_that_both_sides_could_mean(one, tmp_path):
    stored = weights()
    stored['bert.classifier.bias'] = stored['classifier.bias']
    path = write_safetensors(tmp_path / 'm.safetensors', stored)
    said = refusal(one, tmp_path, {**MODEL, 'initial': {'file': path, 'prefix': 'bert.'}})
    assert 'classifier.bias of the model is in the file twice' in said


# ---- adapters ----

@pytest.fixture(scope='module')
def adapter(one, tmp_path_factory):
    """(folder, pulled model, file of the base)."""
    folder = tmp_path_factory.mktemp('peft')
    base = write_safetensors(folder / 'base.safetensors', weights())
    model = {**MODEL, 'initial': base, 'lora': {'rank': 3, 'alpha': 6, 'layers': ['encoder*'], 'train': ['classifier']}}
    job, got = run(one, model, rounds=2, training={'lr': 0.1})
    out = str(folder / 'adapter')
    one.mfl('pull', job, '--format', 'peft', '--base', 'models/base', '-o', out)
    return out, got, base


def test_an_adapter_in_the_form_of_peft(one, adapter):
    out, got, _ = adapter
    assert sorted(os.listdir(out)) == ['adapter_config.json', 'adapter_model.safetensors']
    with open(out + '/adapter_config.json') as f:
        config = json.load(f)
    assert (config['peft_type'], config['r'], config['lora_alpha']) == ('LORA', 3, 6)
    assert config['target_modules'] == ['encoder.attention.query', 'encoder.output.dense']
    assert config['modules_to_save'] == ['classifier'] and config['base_model_name_or_path'] == 'models/base'
    root, tensors = 'base_model.model.', arrays(out + '/adapter_model.safetensors')
    want = {root + n + ('.weight' if '.lora_' in n else ''): a for n, a in got.items() if '.lora_' in n or n in CLASSIFIER}
    assert len(want) == 6 and {n: (a.shape, a.tobytes()) for n, a in tensors.items()} == \
        {n: (a.shape, a.tobytes()) for n, a in want.items()}
    assert any(a.any() for n, a in tensors.items() if 'lora_B' in n)
    plain, _ = one.run_job(**{'model': MODEL, **STILL})
    assert 'trains no adapters' in one.mfl('pull', plain, '--format', 'peft', status=5).stderr
    assert '--base goes only with' in one.mfl('pull', plain, '--base', 'x', status=2).stderr


def test_peft_loads_the_adapter(adapter):
    peft = pytest.importorskip('peft', reason='peft of Hugging Face is not installed')
    import torch
    out, got, base = adapter

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = torch.nn.ModuleDict({
                'attention': torch.nn.ModuleDict({'query': torch.nn.Linear(64, 12)}),
                'output': torch.nn.ModuleDict({'dense': torch.nn.Linear(12, 12)})})
            self.classifier = torch.nn.Linear(12, 4)

        def forward(self, x):
            x = torch.relu(self.encoder['attention']['query'](x))
            return self.classifier(self.encoder['output']['dense'](x))
    net = Net()
    net.load_state_dict({n: torch.tensor(a) for n, a in arrays(base).items()})
    x = torch.tensor(np.random.RandomState(2).normal(size=(5, 64)).astype('f4'))
    net = peft.PeftModel.from_pretrained(net, out).eval()
    y = np.asarray(x)
    for name in ('encoder.attention.query', 'encoder.output.dense'):
        w = got[name + '.weight'] + 6 / 3 * got[name + '.lora_B'] @ got[name + '.lora_A']
        y = y @ w.T + got[name + '.bias']
        y = np.maximum(y, 0) if 'query' in name else y
    y = y @ got['classifier.weight'].T + got['classifier.bias']
    assert np.abs(net(x).detach().numpy() - y).max() < 1e-4


def test_adapters_on_an_onnx_model(one, tmp_path):
    """Weights come from the ONNX file, or from another one; layers are chosen by pattern."""
    want, onnx = weights(), str(tmp_path / 'net.onnx')
    job, _ = run(one, {**MODEL, 'initial': write_safetensors(tmp_path / 'm.safetensors', want)}, **STILL)
    one.mfl('pull', job, '--format', 'onnx', '-o', onnx)
    model = {'onnx': onnx, 'lora': {'rank': 2, 'alpha': 4, 'layers': ['encoder*'], 'train': ['classifier']}}
    job, got = run(one, model, rounds=2)
    for n in want:
        assert (got[n].tobytes() == want[n].tobytes()) == (n not in CLASSIFIER)
    assert got['encoder.output.dense.lora_B'].any()
    one.mfl('pull', job, '--format', 'peft', '-o', str(tmp_path / 'adapter'))
    other = weights(2)
    head = {n: a for n, a in other.items() if n not in CLASSIFIER}
    path = write_safetensors(tmp_path / 'o.safetensors', {'bert.' + n: a for n, a in head.items()})
    _, got = run(one, {**model, 'initial': {'file': path, 'prefix': 'bert.', 'missing': ['classifier*']}}, **STILL)
    assert all(got[n].tobytes() == a.tobytes() for n, a in head.items())
    said = refusal(one, tmp_path, {**model, 'lora': {'rank': 2, 'layers': ['decoder*']}})
    assert "'decoder*' is not a layer of this model" in said
    said = refusal(one, tmp_path, {**model, 'classes': 3})
    assert 'lora and freeze can be added' in said


# ---- modules of PyTorch ----

def test_a_half_frozen_batch_norm_comes_home(one, tmp_path):
    """Its running statistics have PyTorch's names, in the file that is pulled and in a file to start from; called twice, they are one."""
    torch = pytest.importorskip('torch', reason='PyTorch is not installed')
    import sys
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'python'))
    import mfl_export
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.norm, self.head = nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)
            self.norm.weight.requires_grad_(False)
            nn.init.uniform_(self.norm.weight, 0.5, 1.5)
            nn.init.uniform_(self.norm.running_mean)

        def forward(self, x):
            x = torch.relu(self.norm(self.fc(torch.flatten(x, 1))))
            return self.head(torch.relu(self.norm(x)))
    torch.manual_seed(2)
    net, onnx = Net(), str(tmp_path / 'net.onnx')
    mfl_export.save(net, torch.zeros(2, 1, 8, 8), onnx)
    job, got = run(one, {'onnx': onnx})
    missing = net.load_state_dict({n: torch.tensor(a) for n, a in got.items()}, strict=False)
    assert missing.missing_keys in ([], ['norm.num_batches_tracked'])
    assert sorted(missing.unexpected_keys) == ['norm.statistics.bias', 'norm.statistics.weight']
    one.mfl('pull', job, '--format', 'onnx', '-o', str(tmp_path / 'end.onnx'))
    raw = torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8)
    x = raw / 255
    for model, samples in ((onnx, x), (str(tmp_path / 'end.onnx'), raw)):  # which scales them, as the data set says
        np.save(tmp_path / 'x.npy', samples.numpy())
        one.mfl('predict', model, '--data', str(tmp_path / 'x.npy'), '--logits', '-o', str(tmp_path / 'y.npy'))
        same = np.abs(np.load(tmp_path / 'y.npy') - net.eval()(x).detach().numpy()).max() < 1e-4
        assert same == (model != onnx)
    # What PyTorch has is a start, without the constants that mfl adds.
    state = {n: (t + 0.25).numpy() for n, t in net.state_dict().items() if n != 'norm.num_batches_tracked'}
    path = write_safetensors(tmp_path / 'start.safetensors', state)
    _, got = run(one, {'onnx': onnx, 'initial': path}, **STILL)
    assert all(got[n].tobytes() == a.tobytes() for n, a in state.items() if 'running' not in n)
    assert not np.array_equal(got['norm.running_mean'], state['norm.running_mean'])
    assert (got['norm.statistics.weight'] == 1).all() and (got['norm.statistics.bias'] == 0).all()


def test_names_as_long_as_those_of_large_models(one, tmp_path):
    """Trained, frozen, adapted, pulled and refused under PyTorch's names of 120 characters."""
    torch = pytest.importorskip('torch', reason='PyTorch is not installed')
    import sys
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'python'))
    import mfl_export
    deep = '.'.join('encoder_of_many_words_%d' % k for k in range(4)) + '.attention'

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name in ('query', 'kept', 'norm'):
                at = self
                for part in (deep + '.' + name).split('.')[:-1]:
                    at.add_module(part, getattr(at, part, torch.nn.Module()))
                    at = getattr(at, part)
                at.add_module(name, torch.nn.Linear(8, 8) if name != 'norm' else torch.nn.BatchNorm1d(8))
            self.fc, self.head, self.own = torch.nn.Linear(64, 8), torch.nn.Linear(8, 4), at
            at.kept.requires_grad_(False)

        def forward(self, x):
            x = torch.tanh(self.own.kept(torch.tanh(self.own.query(self.fc(torch.flatten(x, 1))))))
            return self.head(self.own.norm(x))
    torch.manual_seed(2)
    net, onnx = Net(), str(tmp_path / 'net.onnx')
    mfl_export.save(net, torch.randn(4, 1, 8, 8), onnx)
    state = {n: (t + 0.25).numpy() for n, t in net.state_dict().items() if n.startswith(deep) and 'num' not in n or n[:2] in ('fc', 'he')}
    assert len(state) == 12
    path = write_safetensors(tmp_path / 'start.safetensors', state)
    job, got = run(one, {'onnx': onnx, 'initial': path}, **STILL)
    assert sorted(got) == sorted(state)
    assert all(got[n].tobytes() == a.tobytes() for n, a in state.items() if 'running' not in n)
    del state[deep + '.query.bias']
    write_safetensors(path, state)
    assert deep + '.query.bias of the model is missing' in refusal(one, tmp_path, {'onnx': onnx, 'initial': path})
    said = refusal(one, tmp_path, {'onnx': onnx, 'freeze': [deep + '.nothing']})
    assert deep + '.nothing' in said
    _, got = run(one, {'onnx': onnx, 'freeze': [deep + '.q*']}, rounds=1)
    assert got[deep + '.query.weight'].tobytes() == net.own.query.weight.detach().numpy().tobytes()
    assert got['fc.weight'].tobytes() != net.fc.weight.detach().numpy().tobytes()
    job, got = run(one, {'onnx': onnx, 'lora': {'rank': 2, 'layers': ['*.attention.query']}}, rounds=1)
    assert got[deep + '.query.lora_B'].any() and deep + '.kept.lora_B' not in got
    one.mfl('pull', job, '--format', 'onnx', '-o', str(tmp_path / 'end.onnx'))
    one.mfl('pull', job, '--format', 'npz', '-o', str(tmp_path / 'end.npz'))
    one.mfl('pull', job, '--format', 'peft', '-o', str(tmp_path / 'adapter'))
    with open(tmp_path / 'adapter' / 'adapter_config.json') as f:
        assert json.load(f)['target_modules'] == [deep + '.query']


def test_constants_of_an_onnx_file_beside_initial(one, tmp_path):
    """A constant of the module is in no state_dict; a tensor that may be missing keeps the file's numbers."""
    torch = pytest.importorskip('torch', reason='PyTorch is not installed')
    import sys
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'python'))
    import mfl_export

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.head = torch.nn.Linear(64, 8), torch.nn.Linear(8, 4)

        def forward(self, x):
            return self.head(torch.tanh(self.fc(torch.flatten(x, 1))) * torch.linspace(0.5, 2, 8))
    torch.manual_seed(2)
    net, onnx = Net(), str(tmp_path / 'net.onnx')
    mfl_export.save(net, torch.zeros(2, 1, 8, 8), onnx)
    state = {n: (t + 0.25).numpy() for n, t in net.state_dict().items() if n != 'head.bias'}
    path = write_safetensors(tmp_path / 'start.safetensors', state)
    assert 'tensor head.bias of the model is missing' in refusal(one, tmp_path, {'onnx': onnx, 'initial': path})
    _, got = run(one, {'onnx': onnx, 'initial': {'file': path, 'missing': ['head.bias']}}, **STILL)
    assert all(got[n].tobytes() == a.tobytes() for n, a in state.items())
    assert got['head.bias'].tobytes() == net.head.bias.detach().numpy().tobytes()
    assert got['weight1'].tobytes() == torch.linspace(0.5, 2, 8).numpy().tobytes()


@pytest.mark.parametrize('where', ['bias', 'constant'])
def test_numbers_that_initial_replaces(one, tmp_path, where):
    """Only what is trained from has to be finite: a parameter that the export found uninitialised is not, a constant is."""
    torch = pytest.importorskip('torch', reason='PyTorch is not installed')
    import sys
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'python'))
    import mfl_export

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(64, 4)
            self.register_buffer('shift', torch.zeros(4), persistent=False)

        def forward(self, x):
            return self.fc(torch.flatten(x, 1)) + self.shift
    torch.manual_seed(2)
    net, onnx = Net(), str(tmp_path / 'net.onnx')
    state = {n: t.numpy().copy() for n, t in net.state_dict().items()}
    with torch.no_grad():
        (net.fc.bias if where == 'bias' else net.shift)[1] = float('nan')
    with pytest.warns(UserWarning, match='not finite'):
        mfl_export.save(net, torch.zeros(2, 1, 8, 8), onnx)
    path = write_safetensors(tmp_path / 'start.safetensors', state)
    said = 'net.onnx: tensor %s: element 1 is nan' % ('fc.bias' if where == 'bias' else 'weight1')
    assert said in refusal(one, tmp_path, {'onnx': onnx})
    if where == 'constant':
        assert said in refusal(one, tmp_path, {'onnx': onnx, 'initial': path})
        return
    _, got = run(one, {'onnx': onnx, 'initial': path}, **STILL)
    assert all(got[n].tobytes() == a.tobytes() for n, a in state.items())


@pytest.mark.parametrize('first', [0, 2])
def test_a_model_that_reads_a_part_of_a_table(one, tmp_path, first):
    """Fewer positions than the file has, as of BERT and GPT-2; a scale behind `.to(dtype)`, as of Llama; a gate with a dimension more."""
    torch = pytest.importorskip('torch', reason='PyTorch is not installed')
    import sys
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'python'))
    import mfl_export

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.at, self.scale = torch.nn.Embedding(12, 8), torch.nn.Parameter(torch.rand(8))
            self.gate, self.head = torch.nn.Parameter(torch.rand(8)), torch.nn.Linear(64, 4)
            self.register_buffer('places', torch.arange(first, first + 8)[None], persistent=False)

        def forward(self, x):
            x = x.flatten(1, 2) + self.at(self.places)
            y = x.to(torch.float32)
            y = self.scale * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
            return self.head(torch.tanh(y * self.gate).flatten(1))
    torch.manual_seed(2)
    net, onnx = Net(), str(tmp_path / 'net.onnx')
    mfl_export.save(net, torch.randn(2, 1, 8, 8), onnx)
    state = {n: (t + 0.25).numpy() for n, t in net.state_dict().items()}
    path = write_safetensors(tmp_path / 'start.safetensors', state)
    _, got = run(one, {'onnx': onnx, 'initial': path}, **STILL)
    assert got['at.weight'].tobytes() == state['at.weight'][first:first + 8].tobytes()
    assert all(a.tobytes() in {t.tobytes() for t in got.values()} for n, a in state.items() if n != 'at.weight')
    whole = state['at.weight']
    state['at.weight'] = whole.T.copy()  # as many numbers, of another table
    path = write_safetensors(tmp_path / 'start.safetensors', state)
    assert 'at.weight is 8x12; the model expects 8x8' in refusal(one, tmp_path, {'onnx': onnx, 'initial': path})
    state['at.weight'] = whole
    path = write_safetensors(tmp_path / 'start.safetensors', state)
    said = refusal(one, tmp_path, {'onnx': onnx, 'initial': {'file': path, 'transposed': ['at.weight']}})
    assert 'at.weight is 12x8; the model expects 8x8, transposed' in said
    state['at.weight'] = whole[:11]
    path = write_safetensors(tmp_path / 'start.safetensors', state)
    assert 'at.weight is 11x8; the model expects 8x8' in refusal(one, tmp_path, {'onnx': onnx, 'initial': path})


def test_lines_are_those_of_the_users_file(one, tmp_path):
    """The layers of an ONNX file take the place of a line, and errors behind them name the line that the user sees."""
    onnx = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'examples', 'model.onnx')
    path = tmp_path / 'job.yaml'
    for model, rest, says in (('{onnx: %s}', 'stepz: 1', 'job.yaml:5: training.stepz'), ('{onnx: %s, lora: {rank: x}}', 'steps: 1', 'job.yaml:3: model.lora')):
        path.write_text('name: a\nrounds: 1\nmodel: %s\ndata: {name: d, partition: iid, clients: 1}\ntraining: {lr: 0.1, batch: 2, %s}\n'
                        % (model % onnx, rest))
        assert says in one.mfl('check', str(path), status=5).stderr
