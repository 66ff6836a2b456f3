# SPDX-License-Identifier: Apache-2.0
"""Kinds of training through server and daemons: text, target values, frozen layers; the same model whoever trains, and
whatever is killed meanwhile."""
import random

import pytest

import mfl_harness as h

WORDS = 'the cat sat on a mat and ate his red hat while we ran far'.split()
LETTERS = len(set(' '.join(WORDS) + '\n'))
GRU = {'layers': [{'embedding': {'features': 12, 'vocabulary': LETTERS}}, {'gru': {'units': 24}},
                  {'dense': {'name': 'head', 'units': LETTERS}}]}
TEXT = {
    'name': 'text', 'rounds': 4, 'model': GRU,
    'data': {'name': 'text', 'partition': 'iid', 'clients': 5},
    'training': {'optimizer': 'adam', 'lr': 0.01, 'batch': 8, 'clip_norm': 1.0,
                 'schedule': {'kind': 'cosine', 'per': 'step', 'warmup': 2, 'min': 0.1}},
}


@pytest.fixture(scope='module')
def text_data(tmp_path_factory):
    draw = random.Random(3)
    path = tmp_path_factory.mktemp('text') / 'text.txt'
    path.write_text(' '.join(draw.choice(WORDS) for _ in range(2000)) + '\n', encoding='utf-8')
    return 'text=text:%s,length=16,test_fraction=0.1' % path


@pytest.fixture(scope='module')
def values_config(tmp_path_factory):
    """A daemon's configuration with two data sets of one file: two numbers to be met, and two yes-or-no answers."""
    draw, folder = random.Random(4), tmp_path_factory.mktemp('values')
    with open(folder / 'v.csv', 'w', encoding='utf-8') as f:
        f.write('a,b,c,far,near,big,even\n')
        for _ in range(400):
            a, b, c = (draw.gauss(0, 1) for _ in range(3))
            f.write('%.6f,%.6f,%.6f,%.6f,%.6f,%d,%d\n' % (a, b, c, 2 * a - b, a + c / 2, a + b > 0, c > 0.3))
    with open(folder / 'client.yaml', 'w', encoding='utf-8') as f:
        f.write('data_sets:\n')
        for name, targets, ignore in (('numbers', 'far, near', 'big, even'), ('answers', 'big, even', 'far, near')):
            f.write('  - {name: %s, format: csv, dir: %s, test_fraction: 0.2, targets: [%s], ignore: [%s]}\n' % (
                name, folder / 'v.csv', targets, ignore))
    return str(folder / 'client.yaml')


@pytest.fixture(scope='module')
def expected(shared_cluster, text_data):
    c = shared_cluster(1, data=[text_data])
    job, digests = c.run_job(**TEXT)
    rounds = c.rounds(job)
    # A tenth of the samples of 16 letters; letters of words are far from evenly spread, so chance is the commonest, a fifth.
    assert rounds[-1]['accuracy'] > 0.4 and rounds[-1]['loss'] < rounds[0]['loss'] < 3
    assert rounds[-1]['samples'] % 16 == 0 and rounds[-1]['weight'] * 16 == rounds[-1]['samples']
    shown = c.mfl('show', job).stdout
    assert 'perplexity' in shown, shown
    assert c.info(job)['per_token']
    return digests


def test_text_on_two_daemons(cluster, text_data, expected):
    c = cluster(2, data=[text_data], workers=2)
    c.wait_daemons(2)
    job, digests = c.run_job(**TEXT)
    assert digests == expected
    assert max(r['daemons'] for r in c.rounds(job)) == 2


def test_text_through_kills(cluster, text_data):
    """kill -9 of a daemon and of the server, each in the middle of a round."""
    c = cluster(2, data=[text_data])
    c.wait_daemons(2)
    # A schedule would go by the number of rounds.
    settings = dict(TEXT, training=dict(TEXT['training'], schedule=None))
    del settings['training']['schedule']
    job = c.begin(**settings)
    c.wait_info(job, lambda i: i['in_round'] >= 2, 20, 'round 2')
    c.daemons['d2'].kill()
    c.start_daemon('d2', data=[text_data])
    at = c.info(job)['in_round']
    c.wait_info(job, lambda i: i['in_round'] > at, 30, 'the next round')
    c.server.kill()
    c.start_server()
    c.finish(job, **settings)
    assert c.info(job)['per_token']  # known from the store


@pytest.fixture(scope='module')
def values(shared_cluster, values_config):
    c = shared_cluster(2, data=[], more=['--config', values_config])
    c.wait_daemons(2)
    return c


def both_ways(c, **job):
    """Digests of two daemons, and of one."""
    first, digests = c.run_job(**job)
    with c.operator() as o:
        o.request('drain', {'daemon': 'd2', 'wait': True})
    _, alone = c.run_job(**job)
    with c.operator() as o:
        o.request('drain', {'daemon': 'd2', 'undo': True})
    assert alone == digests
    return first


def test_numbers_are_met(values):
    c = values
    job = both_ways(c, rounds=6, model={'layers': [{'dense': {'units': 2}}]}, data={'name': 'numbers', 'clients': 4},
                    training={'loss': 'squared', 'batch': 4, 'accumulate': 2})
    rounds = c.rounds(job)
    assert rounds[-1]['loss'] < 0.05 < 1 < rounds[0]['train_loss']  # the targets' variance is 5 and 1.25
    assert all(r['no_accuracy'] and r['accuracy'] == r['train_accuracy'] == 0 for r in rounds)
    shown = c.mfl('show', job).stdout
    assert 'accuracy n/a' in shown and '0.0000' not in shown, shown
    parsed = c.mfl_json('show', job)
    assert parsed['job']['last']['accuracy'] is None and parsed['job']['last']['loss'] == rounds[-1]['loss']
    assert parsed['job']['best']['round'] == min(rounds, key=lambda r: (r['loss'], -r['round']))['round']


def test_answers_are_given(values):
    c = values
    job = both_ways(c, rounds=4, model={'layers': [{'dense': {'units': 2}}]}, data={'name': 'answers', 'clients': 4},
                    training={'loss': 'binary', 'optimizer': 'adamw', 'lr': 0.05})
    last = c.rounds(job)[-1]
    assert last['accuracy'] > 0.9 and not last['no_accuracy'] and last['samples'] == 2 * last['weight']


@pytest.mark.parametrize('changes,reason', [
    ({'data': {'name': 'numbers', 'clients': 4}}, 'training.loss must be one of binary, squared, huber, smooth-l1 and l1'),
    ({'data': {'name': 'numbers', 'clients': 4}, 'training': {'loss': 'squared', 'precision': 'bf16'}},
     'backend reference: precision bf16 needs the cuda backend'),
])
def test_what_no_daemon_can_do(values, changes, reason):
    job = values.submit(model={'layers': [{'dense': {'units': 2}}]}, **changes)
    info = values.wait_job(job, state='failed')
    assert reason in info['reason'], info['reason']


def tensors(c, job):
    path = c.dir + '/' + job + '.safetensors'
    c.mfl('pull', job, '--output', path)
    return path, {name: data for name, (_, _, data) in h.read_safetensors(path).items()}


def test_frozen_layers_and_adapters(cluster):
    """What is frozen stays as it was, from a file on, and only adapters move."""
    c = cluster(1)
    whole = {'layers': ['flatten', {'dense': {'name': 'a', 'units': 8}}, 'relu', {'dense': {'name': 'head', 'units': 4}}]}
    job, _ = c.run_job(model=whole, rounds=1)
    path, first = tensors(c, job)
    warm = {**whole, 'input': [1, 8, 8], 'classes': 4, 'initial': path}

    def run(name, **more):
        text = h.job_text(name=name, model={**warm, **more}, rounds=2, training={'momentum': 0.9, 'weight_decay': 0.1})
        submitted = c.mfl_json('submit', c.write(name + '.yaml', text))['job']
        c.wait_job(submitted)
        return tensors(c, submitted)[1]
    frozen = run('frozen', freeze=['a'])
    assert {n for n in first if frozen[n] != first[n]} == {'head.weight', 'head.bias'}
    adapted = run('lora', lora={'rank': 2, 'alpha': 4, 'train': ['head']})
    assert {n for n in first if adapted[n] != first[n]} == {'head.weight', 'head.bias'}
    assert set(adapted) - set(first) == {'a.lora_A', 'a.lora_B'}
    assert any(adapted['a.lora_B'])
