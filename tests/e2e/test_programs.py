# SPDX-License-Identifier: Apache-2.0
"""Own training code: a program of the daemon's administrator trains a job's clients (docs/programs.md)."""
import os
import signal
import sys

import pytest

import mfl_harness as h
import mfl_needs

numpy = mfl_needs.module('numpy')
mfl_needs.module('google.protobuf')

PYTHON = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'python'))
sys.path.insert(0, PYTHON)
mfl_train = pytest.importorskip('mfl.train')

# Softmax regression. What it does to whom is in its config: {behaviour: WORD, client: N, round: N}.
PROGRAM = r'''
import os, socket, sys, time
sys.path.insert(0, %r)
import numpy
from mfl import train as mfl_train

HERE = os.path.dirname(os.path.abspath(__file__))


def softmax(x, params):
    z = x @ params['out.weight'].T + params['out.bias']
    z = numpy.exp(z - z.max(1, keepdims=True))
    return z / z.sum(1, keepdims=True)


def own_data(client):
    rng = numpy.random.default_rng(client)
    y = rng.integers(0, 4, 40 + client)
    return rng.normal(size=(len(y), 64)).astype(numpy.float32) + y[:, None].astype(numpy.float32) / 4, y


def score(x, y, params):
    p = softmax(x, params)
    return {'loss': float(-numpy.log(p[numpy.arange(len(y)), y] + 1e-9).mean()), 'correct': int((p.argmax(1) == y).sum())}


def misbehave(word, params):
    if word == 'crash':
        print('the answer is 42', file=sys.stderr)
        os.abort()
    if word == 'raise':
        raise ValueError('no such pet')
    if word == 'hang':
        print('going to sleep', file=sys.stderr, flush=True)
        time.sleep(3600)
    if word == 'nan':
        print('dividing by zero', file=sys.stderr, flush=True)
        params['out.bias'][2] = numpy.nan
    if word == 'long':
        print('writing a novel', file=sys.stderr, flush=True)
        program.socket.sendall(b'\xff\xff\xff\x7f')
        time.sleep(3600)
    if word == 'short':
        program.socket.sendall(b'\x08\x00\x00\x00garbage!')
        time.sleep(3600)
    if word == 'wait':
        with open(os.path.join(HERE, 'waits'), 'a') as f:
            f.write('%%d\n' %% os.getpid())
        while not os.path.exists(os.path.join(HERE, 'go')):
            time.sleep(0.01)


def train(params, client, round, config, samples, data, seed):
    x, y = data.batch(samples) if data else own_data(client)
    x = x.reshape(len(y), -1)
    n = len(y)
    scores = score(x, y, params)
    for i in numpy.random.default_rng(seed).permutation(n):
        g = softmax(x[i:i + 1], params)
        g[0, y[i]] -= 1
        params['out.weight'] -= config['lr'] * g.T @ x[i:i + 1]
        params['out.bias'] -= config['lr'] * g[0]
    if config.get('client', client) == client and config.get('round', round) == round:
        misbehave(config.get('behaviour'), params)
        if config.get('behaviour') == 'lie':
            n = n + 1
    return params, n, scores


def evaluate(params, config, samples, data, round):
    x, y = data.batch(samples, 'test') if data else own_data(999)
    if config.get('behaviour') == 'crash-evaluation':
        print('no test data', file=sys.stderr)
        os.abort()
    return len(y), score(x.reshape(len(y), -1), y, params)


program = mfl_train._Program(train, evaluate, 'softmax')
program.serve()
'''

CLIENT_YAML = '''
programs:
  - name: pets
    command: [%(python)s, %(script)s]
    timeout: %(timeout)s
    memory: 2GiB
'''


class Lab:
    """A server, and daemons with the program `pets`."""

    def __init__(self, directory, source=PROGRAM, timeout='60s', more=''):
        self.cluster = h.Cluster(directory)
        self.script = self.cluster.write('train.py', source % PYTHON if '%r' in source else source)
        self.config = self.cluster.write('client.yaml', CLIENT_YAML % {
            'python': sys.executable, 'script': self.script, 'timeout': timeout} + more)
        mfl_train.save(self.path('initial.safetensors'), {'out.weight': numpy.zeros((4, 64)), 'out.bias': numpy.zeros(4)})
        self.cluster.start_server()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cluster.close()

    def daemon(self, name, **options):
        return self.cluster.start_daemon(name, more=['--config', self.config], node=name, **options)

    def path(self, name):
        return os.path.join(self.cluster.dir, name)

    def job(self, data=None, config=None, **changes):
        doc = {'name': 'pets', 'seed': 7, 'rounds': 2, 'model': {'initial': 'initial.safetensors'},
               'data': data or {'name': 'tiny', 'partition': 'iid', 'clients': 6},
               'training': {'program': 'pets', 'config': dict({'lr': 0.1}, **(config or {}))}}
        doc.update(changes)
        return self.cluster.write('job.yaml', h.yaml_of(doc))

    def submit(self, *args, **changes):
        return self.cluster.mfl_json('submit', self.job(*args, **changes))['job']

    def run(self, *args, state='done', **changes):
        job = self.submit(*args, **changes)
        info = self.cluster.wait_job(job, 60, state)
        return job, self.cluster.digests(job) if state == 'done' else info['reason']

    def logs(self, job):
        return self.cluster.mfl('logs', job).stdout


def test_one_daemon_and_two_give_one_model(tmp_path):
    with Lab(tmp_path) as lab:
        lab.daemon('d1')
        job, one = lab.run()
        rounds = lab.cluster.rounds(job)
        assert len(set(one)) == 2, 'nothing was learned'
        assert rounds[-1]['accuracy'] > 0.5 and rounds[-1]['loss'] > 0
        lab.daemon('d2')
        lab.cluster.wait_daemons(2)
        _, two = lab.run(selection={'daemons': {'min': 2}})
        assert one == two
        lab.cluster.mfl('pull', job, '-o', 'model.safetensors')
        assert h.params_digest(lab.path('model.safetensors')) == one[-1]
        assert list(h.read_safetensors(lab.path('model.safetensors'))) == ['out.weight', 'out.bias']
