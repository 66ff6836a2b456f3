# SPDX-License-Identifier: Apache-2.0
"""Columns of codes whose rows begin at an offset within one table, from PyTorch to answers. What PyTorch refuses with an IndexError is
refused by name, wherever data meet the model; what it reads is trained.

Skipped where there is no PyTorch.
"""
import os
import sys

import numpy as np
import pytest

import mfl_needs

torch = mfl_needs.module('torch')
from torch import nn  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'python'))
import mfl_export  # noqa: E402
import mfl_harness as h  # noqa: E402
import mfl_serve as s  # noqa: E402


class Fields(nn.Module):
    """Three columns of four codes each, beside two numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer('first', torch.tensor([0, 4, 8]))
        self.table, self.fc = nn.Embedding(12, 4), nn.Linear(14, 3)

    def forward(self, codes, x):
        return self.fc(torch.cat([self.table(codes + self.first).flatten(1), x], 1))


def rows_of(seed, n, **changed):
    """changed: column=value of row 5."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.integers(0, 4, (n, 3)), rng.normal(size=(n, 2))], 1).astype(np.float32)
    for column, value in changed.items():
        x[5, int(column[1:])] = value
    return x, (x[:, 0] % 3).astype(np.int64)


def save(path, seed, **changed):
    (x, y), (x_test, y_test) = rows_of(seed, 60, **changed), rows_of(seed + 1, 20)
    np.savez(path, x_train=x, y_train=y, x_test=x_test, y_test=y_test)


TRAIN, TEST = {'c2': 4}, {'c2': 3, 'c1': -4}  # a code beyond the table; a negative code whose row is there
SAYS = 'is 4, and 12 with the 8 that the model adds to it, but layer table reads categories there: whole numbers from 0 to 11'


@pytest.fixture(scope='module')
def cluster(shared_cluster):
    c = shared_cluster(0)
    torch.manual_seed(1)
    mfl_export.save(Fields(), (torch.tensor([[0, 1, 2], [3, 3, 3]]), torch.zeros(2, 2)), os.path.join(c.dir, 'model.onnx'))
    save(os.path.join(c.dir, 'good.npz'), 1, **TEST)
    save(os.path.join(c.dir, 'bad.npz'), 1, **TRAIN)
    for name in ('good', 'bad'):
        c.write(name + '.yaml', 'name: %s\nrounds: 1\nmodel: {onnx: model.onnx}\ndata: {name: %s, partition: iid, clients: 2}\n'
                'training: {lr: 0.1, epochs: 1, batch: 10}\n' % (name, name))
    c.start_daemon('f1', data=['%s=npz:%s/%s.npz' % (name, c.dir, name) for name in ('good', 'bad')])
    c.wait_daemons(1)
    return c


def test_check(cluster):
    c = cluster
    with pytest.raises(IndexError):
        Fields()(torch.tensor([[0, 0, 4]]), torch.zeros(1, 2))
    c.mfl('check', 'good.yaml', '--data', 'good=npz:good.npz')
    err = c.mfl('check', 'bad.yaml', '--data', 'bad=npz:bad.npz', status=5).stderr
    assert 'data set bad: feature 2 of training sample 5 ' + SAYS in err, err


def test_daemons_and_answers(cluster):
    c = cluster
    c.mfl('submit', 'good.yaml', '--watch')
    c.mfl('pull', 'last', '-o', 'm.safetensors')
    x, _ = rows_of(9, 8)
    np.save(os.path.join(c.dir, 'x.npy'), x)
    c.mfl('predict', 'm.safetensors', '--data', 'x.npy', '-o', 'p.csv')
    np.save(os.path.join(c.dir, 'x.npy'), rows_of(9, 8, **TRAIN)[0])
    err = c.mfl('predict', 'm.safetensors', '--data', 'x.npy', '-o', 'q.csv', status=5).stderr
    assert 'feature 2 of sample 5 ' + SAYS in err, err
    with s.Serve(c.dir, {'m': os.path.join(c.dir, 'm.safetensors')}) as serve:
        connection = serve.connect()
        for row, status in ((x[:4], 200), (rows_of(9, 8, **TRAIN)[0], 400), (x[4:], 200)):
            got, said = s.infer(connection, 'm', s.question([[float(v) for v in line] for line in row]))
            assert got == status and (status == 200 or 'feature 2 of sample 5 ' + SAYS in said['error']), said
    x, y = rows_of(9, 8, **TRAIN)
    np.savez(os.path.join(c.dir, 'e.npz'), x_train=x, y_train=y, x_test=x, y_test=y)
    err = c.mfl('evaluate', 'm.safetensors', '--data', 'e.npz', status=5).stderr
    assert 'feature 2 of sample 5 ' + SAYS in err, err
    job = c.mfl_json('submit', 'bad.yaml')['job']
    info = c.wait_job(job, state='failed', timeout=60)
    assert SAYS in str(info), info
