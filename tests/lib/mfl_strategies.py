# SPDX-License-Identifier: Apache-2.0
"""Every strategy, with what it needs to run at all."""
VIRTUAL = {'time': 'virtual', 'trace': {'sigma': 1}}
STRATEGIES = {
    'fedavg': {}, 'fedavgm': {}, 'fedadagrad': {}, 'fedadam': {}, 'fedyogi': {}, 'fedprox': {}, 'median': {}, 'fednova': {}, 'qfedavg': {},
    'scaffold': {}, 'feddyn': {}, 'trimmed-mean': {'f': 1}, 'mean-around-median': {'f': 1}, 'krum': {'f': 1}, 'multi-krum': {'f': 1},
    'bulyan': {'f': 1}, 'rfa': {'f': 1}, 'centered-clip': {'f': 1, 'clip_radius': 'median'}, 'norm-filter': {'f': 1}, 'dnc': {'f': 1},
    'signguard': {}, 'flame': {}, 'fedbuff': {'buffer': 3}, 'fedasync': {}, 'ditto': {}, 'pfedme': {}, 'foolsgold': {},
    'fltrust': {'root': {'client': 0}}, 'mimelite': {}, 'mime': {}, 'apfl': {},
}
ROBUST = {'median', 'trimmed-mean', 'mean-around-median', 'krum', 'multi-krum', 'bulyan', 'rfa', 'centered-clip', 'norm-filter', 'dnc',
          'signguard', 'flame', 'foolsgold', 'fltrust'}
ASYNC = {'fedbuff', 'fedasync'}  # in virtual time; in real time it is test_async that has them


def settings_of(strategy):
    """The keys of a job file."""
    return {'aggregation': {'strategy': strategy, **STRATEGIES[strategy], **({'on_few': 'mean'} if strategy in ROBUST else {})},
            **(VIRTUAL if strategy in ASYNC else {})}
