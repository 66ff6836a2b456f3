# SPDX-License-Identifier: Apache-2.0
"""`mfl privacy`: the figures of others, lists, and wrong options. tests/unit/common/test_privacy.c has the arithmetic."""
import json
import os
from concurrent import futures

import numpy as np
import pytest

import mfl_harness as h


def answer(*words):
    return json.loads(h.mfl('privacy', *words, '--json').stdout)


def test_epsilon_and_noise():
    got = answer('--sigma', '1', '--q', '0.1', '--rounds', '100', '--delta', '1e-5')
    assert abs(got['epsilon'] - 7.046603) < 1e-4 and got['sigma'] == 1 and got['epsilon'] <= got['epsilon_rdp'] < 8.5
    found = answer('--calibrate', '2', '--q', '0.1', '--rounds', '100', '--delta', '1e-5')
    assert abs(found['sigma'] - 2.24772) < 1e-4 and 1.999 < found['epsilon'] <= 2
    # The least noise costs more than 210, so that it is no answer for 210.
    assert abs(answer('--calibrate', '210', '--q', '1', '--rounds', '1', '--delta', '1e-5')['sigma'] - 0.0598) < 1e-4
    assert answer('--calibrate', '900', '--q', '1', '--rounds', '1', '--delta', '1e-5')['sigma'] == 0.05
    two = answer('--sigma', '1,0.8', '--q', '0.1', '--rounds', '100,20', '--delta', '1e-5')
    assert abs(two['epsilon'] - 8.669218) < 1e-4 and two['sigma'] is None
    assert answer('--sigma', '0.05', '--q', '1', '--rounds', '1000000000', '--delta', '1e-5')['epsilon'] is None


def test_random_rows():
    """What dp-accounting said of 200 random rows, every fifth of two or three kinds of rounds; bench/privacy.py made the file. test_accountant.py asks
    dp-accounting itself."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'privacy_rows.json'), encoding='utf-8') as f:
        rows = json.load(f)['rows']
    assert len(rows) == 200 and sum(len(r['parts']) > 1 for r in rows) >= 30 and max(r['epsilon'] for r in rows) > 20

    def ours(row):
        lists = [','.join(repr(part[i]) for part in row['parts']) for i in range(3)]
        return answer('--sigma', lists[0], '--q', lists[1], '--rounds', lists[2], '--delta', repr(row['delta']))

    with futures.ThreadPoolExecutor(2) as pool:
        for row, got in zip(rows, pool.map(ours, rows)):
            assert abs(got['epsilon'] - row['epsilon']) <= min(1e-3, 1e-3 * row['epsilon']), (row, got)
            assert got['epsilon'] <= got['epsilon_rdp'] + 1e-9, (row, got)


def series(power, n):
    """Coefficients of (1 - x) ** power."""
    v = np.ones(n)
    for j in range(1, n):
        v[j] = v[j - 1] * (j - 1 - power) / j
    return v


def toeplitz(v, n):
    return sum(np.diag(np.full(n - j, x), -j) for j, x in enumerate(v[:n]))


@pytest.mark.parametrize('rounds,b', [(100, 10), (90, 20), (60, 60), (50, 1)])
def test_correlated_noise_is_as_good_as_published(rounds, b):
    """The formulas of banded (inverse) square roots, as jax_privacy's toeplitz.py has them, by dense matrices."""
    a, turns = np.tril(np.ones((rounds, rounds))), range(0, rounds, b)

    def error_and_sensitivity(c):
        return np.linalg.norm(a @ np.linalg.inv(c)) / rounds ** .5, np.linalg.norm(c[:, turns].sum(axis=1))

    common = ('--rounds', rounds, '--separation', b, '--sigma', '2', '--delta', '1e-5')
    bsr = answer('--mechanism', 'bsr', *map(str, common))
    want = error_and_sensitivity(toeplitz(series(-.5, min(b, rounds)), rounds))
    assert np.allclose((bsr['error'], bsr['sensitivity']), want, rtol=1e-6) and bsr['bands'] == min(b, rounds)
    bisr = answer('--mechanism', 'bisr', *map(str, common))
    best = [error_and_sensitivity(np.linalg.inv(toeplitz(series(.5, p), rounds))) for p in range(1, min(rounds, 64) + 1)]
    assert np.allclose((bisr['error'], bisr['sensitivity']), best[bisr['bands'] - 1], rtol=1e-6)
    assert bisr['error'] * bisr['sensitivity'] <= min(e * s for e, s in best) * (1 + 1e-6)
    # One release, whatever the rounds.
    once = answer('--sigma', '2', '--q', '1', '--rounds', '1', '--delta', '1e-5')['epsilon']
    assert abs(bisr['epsilon'] - once) < 2e-4 and bsr['epsilon'] == bisr['epsilon']


@pytest.mark.parametrize('words,said', [
    (['--mechanism', 'tree', '--sigma', '1', '--rounds', '10', '--delta', '1e-5'], 'expected gaussian, bisr or bsr'),
    (['--mechanism', 'bisr', '--sigma', '1', '--rounds', '10', '--delta', '1e-5'], '--separation is missing'),
    (['--mechanism', 'bisr', '--separation', '5', '--q', '0.1', '--sigma', '1', '--rounds', '10', '--delta', '1e-5'], 'not on sampling'),
    (['--separation', '5', '--sigma', '1', '--q', '1', '--rounds', '10', '--delta', '1e-5'], 'only with --mechanism'),
    (['--q', '0.1', '--rounds', '10', '--delta', '1e-5'], '--sigma is missing'),
    (['--sigma', '1', '--calibrate', '1', '--q', '0.1', '--rounds', '10', '--delta', '1e-5'], 'give the noise, or ask for it'),
    (['--sigma', 'x', '--q', '0.1', '--rounds', '10', '--delta', '1e-5'], "'x' is not a number"),
    (['--sigma', '1,2', '--q', '0.1,0.2,0.3', '--rounds', '10', '--delta', '1e-5'], '--q: 3 numbers, where another list has 2'),
    (['--sigma', '1', '--q', '0.1', '--rounds', '1.5', '--delta', '1e-5'], '--rounds: expected a whole number'),
    (['--sigma', '1', '--q', '2', '--rounds', '1', '--delta', '1e-5'], 'q: expected a probability'),
    (['--calibrate', '-1', '--q', '0.1', '--rounds', '1', '--delta', '1e-5'], '--calibrate: expected an epsilon above 0'),
])
def test_wrong_options_are_named(words, said):
    done = h.mfl('privacy', *words, status=None)
    assert done.returncode and said in done.stderr, done.stderr
