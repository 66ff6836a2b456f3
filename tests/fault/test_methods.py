# SPDX-License-Identifier: Apache-2.0
"""Strategies with weights or numbers of their own: killed servers and daemons leave no trace in the model."""
import pytest

METHODS = [
    {'strategy': 'fednova'},
    {'strategy': 'qfedavg', 'q': 3},
    {'strategy': 'fedprox', 'mu': 'adaptive', 'mu_start': 0.5},
]


@pytest.mark.parametrize('aggregation', METHODS, ids=lambda a: a['strategy'])
def test_killed_at_random(cluster, aggregation):
    """finish() compares with a job that nobody disturbs. What the server keeps comes back from checkpoints."""
    c = cluster(3)
    c.wait_daemons(3)
    job = {'model': 'logistic', 'data': {'partition': 'linear', 'clients': 12}, 'aggregation': aggregation,
           'training': {'lr': 0.3, 'epochs': 2, 'batch': 10, 'momentum': 0.5}}
    at = c.begin(**job)
    c.harass('methods')
    c.finish(at, **job)
