# SPDX-License-Identifier: Apache-2.0
"""Vocabularies that 16 bits don't number, such as Llama 3's and Qwen2's, through data sets, server and daemons."""
import numpy as np
import pytest

import mfl_harness as h

TOKENS, LENGTH = 128256, 6
JOB = {'name': 'large', 'rounds': 3, 'model': {'layers': [{'embedding': {'vocabulary': TOKENS, 'features': 4}}, 'flatten', {'dense': {'units': 2}}]},
       'data': {'name': 'posts', 'partition': 'iid', 'clients': 2}, 'training': {'optimizer': 'adam', 'lr': 0.05, 'batch': 8, 'epochs': 4}}


@pytest.fixture(scope='module')
def posts(tmp_path_factory):
    """The tokens of one class are those of the other class less 65,536."""
    draw, path = np.random.default_rng(5), tmp_path_factory.mktemp('posts') / 'posts.npz'
    arrays = {}
    for name, n in (('train', 240), ('test', 80)):
        y = draw.integers(0, 2, n)
        x = draw.integers(TOKENS - 16, TOKENS, (n, LENGTH)) - 65536 * (y == 0)[:, None]
        arrays['x_' + name], arrays['y_' + name] = x.astype(np.int64), y.astype(np.int64)
    np.savez(path, **arrays)
    return 'posts=npz:%s,vocabulary=%d' % (path, TOKENS)


def test_tokens_beyond_16_bits_are_told_apart(shared_cluster, posts):
    """A program that cuts tokens to 16 bits can't tell the classes apart."""
    digests = set()
    for daemons in (1, 2):
        c = shared_cluster(daemons, data=[posts])
        job, found = c.run_job(**JOB)
        assert c.rounds(job)[-1]['accuracy'] > 0.95, c.rounds(job)
        digests.add(tuple(found))
    assert len(digests) == 1


def test_words_of_a_large_vocabulary(shared_cluster, tmp_path):
    """A file of 70,000 words, of which the texts use the last ones."""
    words = ['w%05d' % i for i in range(70000)]
    (tmp_path / 'words.txt').write_text('\n'.join(words) + '\n', encoding='utf-8')
    draw = np.random.default_rng(6)
    for name, n in (('train', 160), ('test', 60)):
        with open(tmp_path / (name + '.csv'), 'w', encoding='utf-8') as f:
            f.write('body,stars\n')
            for y in draw.integers(0, 2, n):
                f.write('%s,%d\n' % (' '.join(words[i] for i in draw.integers(69900, 69950, 6) + 50 * y), y))
    c = shared_cluster(1, data=['posts=csv:%s,text=body,label=stars,length=6,vocabulary=%s/words.txt' % (tmp_path, tmp_path)])
    layers = [{'embedding': {'vocabulary': 70002, 'features': 4, 'padding_idx': 0}}, 'flatten', {'dense': {'units': 2}}]
    job, _ = c.run_job(**{**JOB, 'model': {'layers': layers}})
    assert c.rounds(job)[-1]['accuracy'] > 0.95


def test_a_vocabulary_beyond_the_limit_is_refused(tmp_path):
    (tmp_path / 'job.yaml').write_text('name: large\nrounds: 1\nmodel:\n  layers:\n    - embedding: {vocabulary: 2000000, features: 4}\n', encoding='utf-8')
    p = h.mfl('check', str(tmp_path / 'job.yaml'), status=5)
    assert 'expected a whole number from 1 to 1048576' in p.stderr, p.stderr
