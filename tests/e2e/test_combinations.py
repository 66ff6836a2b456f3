# SPDX-License-Identifier: Apache-2.0
"""What one job file may ask for at once: features that were built apart give one model together, on one daemon, on three, and beside
a daemon that is killed."""
import pytest

VIRTUAL = {'time': 'virtual', 'trace': {'sigma': 1, 'online': 0.7}}
PLAIN = {'model': 'mlp', 'rounds': 4, 'data': {'partition': 'dirichlet', 'clients': 9, 'alpha': 0.5}}
LAYERS = {'layers': [{'conv2d': {'filters': 4, 'kernel': 3}}, {'batchnorm': {}}, {'relu': {}}, {'flatten': {}}, {'dense': {'units': 4}}]}
JOBS = {
    'oort, bits, adam server': {**VIRTUAL, 'selection': {'kind': 'oort', 'clients': 4, 'over': 1.3}, 'compression': {'up': {'bits': 8}},
                                'aggregation': {'strategy': 'fedadam'}},
    'weighted draw, fednova, packed, on clients': {'selection': {'kind': 'weighted', 'clients': 5}, 'compression': {'up': 'lossless'},
                                                   'aggregation': {'strategy': 'fednova'}, 'evaluation': {'on': 'clients', 'split': 0.2}},
    'scaffold, virtual time, on clients': {**VIRTUAL, 'selection': {'clients': 5}, 'aggregation': {'strategy': 'scaffold'},
                                           'evaluation': {'on': 'clients', 'split': 0.2, 'detailed': True}},
    'ditto, virtual time, oort, on clients': {**VIRTUAL, 'selection': {'kind': 'oort', 'clients': 4}, 'aggregation': {'strategy': 'ditto'},
                                              'evaluation': {'on': 'clients', 'split': 0.2}},
    'mimelite, weighted draw, batch norm': {'model': LAYERS, 'selection': {'kind': 'weighted', 'clients': 5}, 'aggregation': {'strategy': 'mimelite'}},
    'mime, on clients': {'selection': {'clients': 5}, 'aggregation': {'strategy': 'mime', 'weighting': 'uniform'},
                         'evaluation': {'on': 'clients', 'split': 0.2}},
    'apfl, virtual time, oort, on clients': {**VIRTUAL, 'selection': {'kind': 'oort', 'clients': 4}, 'aggregation': {'strategy': 'apfl'},
                                             'evaluation': {'on': 'clients', 'split': 0.2}},
    'gradients of clients, virtual time, batch norm': {**VIRTUAL, 'model': LAYERS, 'selection': {'clients': 5},
                                                       'aggregation': {'strategy': 'scaffold', 'option': 'I'}},
    'pfedme, batch norm, separated': {'model': LAYERS, 'selection': {'kind': 'separated', 'separation': 2}, 'aggregation': {'strategy': 'pfedme'},
                                      'evaluation': {'on': 'clients', 'split': 0.25}},
    'layers of their own by phases, adam server': {'model': LAYERS, 'personal': {'layers': ['dense*'], 'epochs': 1},
                                                   'aggregation': {'strategy': 'fedadam'}, 'evaluation': {'on': 'clients', 'split': 0.25}},
    'feddyn, power of choice': {'selection': {'kind': 'power-of-choice', 'clients': 4, 'candidates': 6}, 'aggregation': {'strategy': 'feddyn'}},
    'multi-krum, virtual time, mixing': {**VIRTUAL, 'selection': {'clients': 7}, 'limits': {'quorum': 0.7},
                                         'aggregation': {'strategy': 'multi-krum', 'f': 1, 'before': 'nnm', 'on_few': 'mean'}},
    'batch norm, bits, clients in grains': {'model': LAYERS, 'compression': {'up': {'bits': 16}}, 'parallel': {'grain': 5, 'members': 64},
                                            'evaluation': {'on': 'clients', 'split': 0.25}},
    'shards, uniform bits, separated': {'parallel': {'grain': 5, 'zero': 2, 'members': 2}, 'compression': {'up': {'bits': 8}},
                                        'aggregation': {'weighting': 'uniform'}, 'selection': {'kind': 'separated', 'separation': 3}},
    'fedbuff, packed, on clients, in grains of time': {**VIRTUAL, 'selection': {'clients': 6}, 'compression': {'up': 'lossless'},
                                                      'aggregation': {'strategy': 'fedbuff', 'buffer': 3},
                                                      'evaluation': {'on': 'clients', 'split': 0.2, 'detailed': True}},
    'rfa under attack, poisson': {'selection': {'kind': 'poisson', 'rate': 0.8}, 'simulation': {'attack': 'sign-flip', 'share': 0.2},
                                  'aggregation': {'strategy': 'rfa', 'f': 2, 'on_few': 'mean'}},
    'clipped at the median, virtual time, adam server': {**VIRTUAL, 'selection': {'clients': 5, 'over': 1.3},
                                                         'aggregation': {'strategy': 'fedadam', 'update_clip': 'median'}},
    'clipped sums of 8 bits, clients in grains': {'parallel': {'grain': 5, 'members': 64}, 'compression': {'up': {'bits': 8}},
                                                  'aggregation': {'update_clip': 0.1}},
    'rows of buckets, poisson, flipped labels': {'selection': {'kind': 'poisson', 'rate': 0.8},
                                                 'simulation': {'attack': 'label-flip', 'share': 0.2, 'from': 2},
                                                 'aggregation': {'strategy': 'rfa', 'unit': 'bucket', 'f': 1, 'on_few': 'mean'}},
    'foolsgold, drawn clients, a backdoor': {'selection': {'clients': 5}, 'aggregation': {'strategy': 'foolsgold'},
                                             'simulation': {'attack': 'backdoor', 'share': 0.2, 'scale': 2}},
    'regions, batch norm, virtual time, adam server': {**VIRTUAL, 'model': LAYERS, 'edges': {'count': 3, 'rounds': 3}, 'selection': {'clients': 6},
                                                       'aggregation': {'strategy': 'fedadam'}, 'evaluation': {'on': 'clients', 'split': 0.2}},
    'servers that lie, flipped labels, nnm': {'edges': {'count': 5, 'within': 'median'},
                                              'simulation': {'attack': 'label-flip', 'share': 0.2, 'servers': {'attack': 'random', 'share': 0.2}},
                                              'aggregation': {'strategy': 'multi-krum', 'f': 1, 'unit': 'server', 'before': 'nnm'}},
    'fedbuff, a backdoor': {**VIRTUAL, 'model': LAYERS, 'selection': {'clients': 6}, 'aggregation': {'strategy': 'fedbuff', 'buffer': 3},
                            'simulation': {'attack': 'backdoor', 'share': 0.2, 'from': 2}},
    'fltrust, batch norm, nnm': {'model': LAYERS, 'simulation': {'attack': 'fang-trimmed', 'share': 0.2},
                                 'aggregation': {'strategy': 'fltrust', 'root': {'client': 2}, 'f': 1, 'before': 'nnm'}},
}


@pytest.mark.parametrize('name', JOBS)
def test_one_model(cluster, name):
    job, digests = {**PLAIN, **JOBS[name]}, []
    for n in (1, 3):
        c = cluster(n, workers=2, config={'allow_simulation': 'true'})
        c.wait_daemons(n)
        if n == 1:
            digests.append(c.run_job(60, **job)[1])
        else:
            at = c.submit(**job)
            c.wait_info(at, lambda i: i['round'] >= 1, 30, 'a round')
            c.daemons['d2'].kill()
            c.start_daemon('d2')
            c.wait_job(at, 60)
            digests.append(c.digests(at))
        c.close()
    assert digests[0] == digests[1]
