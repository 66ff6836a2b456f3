# SPDX-License-Identifier: Apache-2.0
"""`mfl privacy`: the figures of others, lists, and wrong options. tests/unit/common/test_privacy.c has the arithmetic."""
import json

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


@pytest.mark.parametrize('words,said', [
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
