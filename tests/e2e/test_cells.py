# SPDX-License-Identifier: Apache-2.0
"""What goes with what: every strategy with every feature, and every two features. `mfl check` refuses a cell with a reason of the table in
common/job (`mfl help job`), or with one of OWN below; every other cell trains a round to one model, on one daemon and on two. The ordinary
run has a sample; with MFL_CELLS=all, at night, each cell is checked and trained, and each reason of the table must have been given."""
import concurrent.futures
import os
import re
import signal
import zlib

import pytest

import mfl_harness as h
from mfl_strategies import STRATEGIES, VIRTUAL, settings_of

WHOLE = os.environ.get('MFL_CELLS') == 'all'
CHECKS, SAMPLE = 6, 60  # one of so many cells is checked, and one of so many trained, in the ordinary run
FEATURES = {
    'personal': {'personal': {'layers': ['fc1*']}, 'evaluation': {'every': 0}},
    'personal by phases': {'personal': {'layers': ['fc1*'], 'epochs': 1}, 'evaluation': {'every': 0}},
    'up lossless': {'compression': {'up': 'lossless'}},
    'up 8 bits': {'compression': {'up': {'bits': 8}}},
    'up bf16': {'compression': {'up': 'bf16'}},
    'up top-k': {'compression': {'up': {'top_k': 0.1}}},
    'down bf16': {'compression': {'down': 'bf16'}},
    'down 8 bits': {'compression': {'down': {'bits': 8}}},
    'separated': {'selection': {'kind': 'separated', 'separation': 2}},
    'poisson': {'selection': {'kind': 'poisson', 'rate': 1}},
    'weighted': {'selection': {'kind': 'weighted', 'clients': 8}},
    'power of choice': {'selection': {'kind': 'power-of-choice', 'clients': 7, 'candidates': 8}},
    'oort': {**VIRTUAL, 'selection': {'kind': 'oort', 'clients': 7}},
    'by modulo': {'selection': {'assign': 'modulo'}},
    'without': {'selection': {'without': [7]}},
    'over': {**VIRTUAL, 'selection': {'clients': 7, 'over': 1.1}},
    'virtual time': VIRTUAL,
    'grains': {'parallel': {'grain': 5, 'members': 64}},
    'sums of floats': {'parallel': {'grain': 5, 'members': 2, 'exact': False}},
    'stage 2': {'parallel': {'grain': 5, 'members': 2, 'zero': 2}},
    'central noise': {'privacy': {'kind': 'central', 'clip': 1, 'noise': 1, 'epsilon_max': 30, 'delta': 1e-5},
                      'aggregation': {'weighting': 'uniform'}},
    'correlated noise': {'privacy': {'kind': 'central', 'clip': 1, 'noise': 1, 'epsilon_max': 30, 'delta': 1e-5, 'mechanism': 'bisr'},
                         'aggregation': {'weighting': 'uniform'}, 'selection': {'kind': 'separated', 'separation': 2}},
    'regions': {'edges': {'count': 2, 'rounds': 2}},
    'clip': {'aggregation': {'update_clip': 0.5}},
    'clip at the median': {'aggregation': {'update_clip': 'median'}},
    'attack on updates': {'simulation': {'attack': 'sign-flip', 'share': 0.2}},
    'attack on data': {'simulation': {'attack': 'label-flip', 'share': 0.2}},
    'stale attack': {'simulation': {'attack': 'stale', 'share': 0.2}},
    'state at sites': {'client_state': 'daemon'},
    'a limit of states': {'limits': {'state': '1GiB'}},
    'sites': {'data': {'partition': 'local', 'clients': None}},
    'on clients': {'evaluation': {'on': 'clients', 'split': 0.25}},
    'detailed': {'evaluation': {'detailed': True}},
    'kept changes': {'debug': {'deltas': '1MiB'}},
    'uniform weights': {'aggregation': {'weighting': 'uniform'}},
    'momentum': {'training': {'momentum': 0.9}},
    'adam': {'training': {'optimizer': 'adam'}},
    'adamw': {'training': {'optimizer': 'adamw'}},
    'clipped gradients': {'training': {'clip_norm': 1}},
    'adaptive mu': {'aggregation': {'strategy': 'fedprox', 'mu': 'adaptive'}},
    'adaptive alpha': {'aggregation': {'strategy': 'apfl', 'alpha': 'adaptive'}},
    'secure sums': {'secure_sum': {'bits': 64}},
    'fp16': {'training': {'precision': 'fp16'}},
}
CHECKED = {'secure sums', 'fp16', 'central noise', 'correlated noise'}  # need TLS or a device, or have secret noise: other tests train them
# Reasons that are no pairs: of single keys, of counts, and of lists of strategies.
OWN = ['is not used by', 'is for strategies that average', 'works on single updates', "needs the root's update", 'needs a simulated population',
       'needs root', 'stale keeps what this strategy keeps', '0 never evaluates', 'divided among', 'needs buffer',
       'to draw from']
NOISY = {'kind': 'central', 'clip': 1, 'noise': 1, 'epsilon_max': 30, 'delta': 1e-5}
SITES = {'partition': 'local', 'clients': None}
APART = {'kind': 'separated', 'separation': 2}
SHARES = {'secure_sum': {'bits': 64}, 'privacy': {**NOISY, 'kind': 'distributed'}, 'data': SITES, 'aggregation': {'weighting': 'uniform'},
          'evaluation': {'every': 0}}
# Rows of the table that need more than two features.
MORE = [
    {'aggregation': {'strategy': 'apfl', 'alpha': 1.5}},
    {'aggregation': {'strategy': 'fedasync', 'alpha': 'adaptive'}},
    {'aggregation': {'strategy': 'pfedme', 'lambda': 0}},
    {'aggregation': {'strategy': 'fedprox', 'mu_start': 0.5}},
    {'aggregation': {'strategy': 'fedprox', 'mu_patience': 2}},
    {'aggregation': {'strategy': 'fedbuff', 'buffer': 3}, 'compression': {'up': 'lossless'}},
    {'compression': {}},
    {'personal': {'layers': ['fc1*']}},
    {'parallel': {'grain': 5, 'members': {'min': 2}, 'within': 'daemon'}},
    {'parallel': {'grain': 5, 'within': 'daemon', 'snapshot': 1, 'zero': 3}},
    {'parallel': {'grain': 5, 'snapshot': 1, 'zero': 0}},
    {'parallel': {'grain': 5, 'snapshot': 1, 'zero': 1, 'exact': False}},
    {'parallel': {'grain': 5, 'exact': False, 'zero': 2}},
    {'parallel': {'grain': 5, 'members': {'min': 2}}, 'selection': {'assign': 'modulo'}},
    {'simulation': {'attack': 'backdoor', 'share': 0.2}, 'evaluation': {'on': 'clients', 'split': 0.25}},
    {'simulation': {'attack': 'backdoor', 'share': 0.2}, 'evaluation': {'detailed': True}},
    {'simulation': {'attack': 'backdoor', 'share': 0.2}, 'evaluation': {'metrics': ['f-beta']}},
    {**SHARES, 'evaluation': {'every': 1}},
    {'selection': {'kind': 'oort', 'clients': 4}},
    {'trace': {'sigma': 1}},
    {'selection': {'over': 1.2, 'clients': 4}},
    {'limits': {'virtual_deadline': '1m'}},
    {'privacy': {**NOISY}, 'aggregation': {'weighting': 'samples'}},
    {'privacy': {**NOISY, 'clients': 5}, 'aggregation': {'weighting': 'uniform'}},
    {'privacy': {**NOISY, 'kind': 'local'}, 'aggregation': {'weighting': 'uniform'}},
    {'privacy': {**NOISY, 'kind': 'local', 'clients': 5}, 'data': SITES, 'aggregation': {'weighting': 'uniform'}},
    {'privacy': {**NOISY, 'kind': 'local'}, 'data': SITES, 'aggregation': {'weighting': 'uniform'}, 'parallel': {'grain': 5}},
    {'privacy': {**NOISY, 'kind': 'local', 'clip': 'adaptive'}, 'data': SITES, 'aggregation': {'weighting': 'uniform'}},
    {'privacy': {**NOISY, 'clip': 'adaptive'}, 'aggregation': {'weighting': 'uniform'}},
    {'privacy': {**NOISY, 'clip': 100}, 'aggregation': {'weighting': 'uniform', 'delta_max': 16}},
    {'privacy': {**NOISY}, 'data': SITES, 'aggregation': {'weighting': 'uniform'}},
    {'privacy': {**NOISY}, 'compression': {'up': {'bits': 8}}, 'aggregation': {'weighting': 'uniform'}},
    {'privacy': {**NOISY, 'kind': 'local', 'mechanism': 'bisr'}, 'data': SITES, 'aggregation': {'weighting': 'uniform'}},
    {'privacy': {**NOISY, 'mechanism': 'bsr'}, 'aggregation': {'weighting': 'uniform'}},
    {'privacy': {**NOISY, 'mechanism': 'bisr', 'clip': 'adaptive', 'noise': 0.1}, 'selection': APART, 'aggregation': {'weighting': 'uniform'}},
    {'privacy': {**NOISY, 'mechanism': 'bisr'}, 'selection': APART, 'aggregation': {'weighting': 'uniform'}, 'rounds': 10001},
    {'privacy': {**NOISY, 'mechanism': 'bisr'}, 'selection': APART, 'aggregation': {'weighting': 'uniform'}, 'secure_sum': {'bits': 64}},
    {'privacy': {**NOISY, 'kind': 'distributed'}, 'data': SITES, 'aggregation': {'weighting': 'uniform'}},
    {**SHARES, 'compression': {'up': {'bits': 8}}},
    {**SHARES, 'privacy': {**NOISY, 'kind': 'distributed', 'clip': 'adaptive'}},
    {**SHARES, 'privacy': {**NOISY, 'kind': 'distributed', 'clients': 5}},
    {**SHARES, 'limits': {'quorum': 0.1}},
    {**SHARES, 'selection': {'clients': 21}},
    {'secure_sum': {'bits': 64}, 'selection': {'clients': 2}},
    {'secure_sum': {'bits': 64}, 'aggregation': {'strategy': 'median', 'unit': 'bucket', 'bucket': 3}},
    {'secure_sum': {'bits': 64}, 'aggregation': {'strategy': 'median', 'unit': 'bucket', 'bucket': 2}, 'data': SITES},
    {'secure_sum': {'bits': 64}, 'aggregation': {'strategy': 'median', 'unit': 'bucket', 'bucket': 4}, 'data': SITES, 'selection': {'clients': 3}},
    {'secure_sum': {'bits': 64}, 'aggregation': {'strategy': 'median', 'unit': 'bucket', 'bucket': 513}, 'data': SITES},
    {'secure_sum': {'bits': 64}, 'data': SITES, 'selection': {'clients': 1025}},
    {'secure_sum': {'bits': 64}, 'aggregation': {'strategy': 'median', 'f': 1, 'unit': 'bucket', 'bucket': 3}, 'data': SITES, 'selection': {'clients': 8}},
    {'secure_sum': {'bits': 32}, 'aggregation': {'strategy': 'median', 'unit': 'bucket', 'bucket': 3}, 'data': SITES},
    {'secure_sum': {'bits': 64}, 'aggregation': {'strategy': 'fltrust', 'unit': 'bucket', 'bucket': 3, 'root': {'daemon': 'd1'}}, 'data': SITES},
    {'secure_sum': {'bits': 32}, 'privacy': {**NOISY}, 'aggregation': {'weighting': 'uniform'}},
    {'secure_sum': {'bits': 32}},
    {'secure_sum': {'bits': 64}, 'compression': {'up': 'lossless'}},
    {'secure_sum': {'bits': 64}, 'parallel': {'grain': 5}},
    {'secure_sum': {'bits': 64}, **VIRTUAL},
    {'aggregation': {'strategy': 'fedprox', 'mu': 'adaptive'}, 'compression': {'up': {'top_k': 0.1}}},
]
# Rows of own training programs, and of teams and models that only they have: test_programs.py.
PROGRAMS = {'program', 'model: tensors', 'program with its own data'}


def merged(*parts):
    """None: two of them want different things of one key."""
    job = {}
    for part in parts:
        for key, value in part.items():
            old = job.get(key)
            if isinstance(value, dict) and isinstance(old, dict):
                if any(k in old and old[k] != v for k, v in value.items()):
                    return None
                job[key] = {**old, **value}
            elif old is not None and old != value:
                return None
            else:
                job[key] = value
    return job


def cells():
    plain = {'model': 'mlp', 'rounds': 1}
    for strategy in STRATEGIES:
        chosen = settings_of(strategy)
        for feature, wants in FEATURES.items():
            job = merged(plain, chosen, wants)
            if job:
                yield (strategy, feature), job
    names = list(FEATURES)
    for i, one in enumerate(names):
        for other in names[i + 1:]:
            job = merged(plain, FEATURES[one], FEATURES[other])
            if job:
                yield (one, other), job


def one_of(n, name):
    return WHOLE or zlib.crc32(repr(name).encode()) % n == 0


CELLS = {name: job for name, job in cells() if one_of(CHECKS, name)}


def error_of(folder, job):
    """What `mfl check` says; '': nothing."""
    text = h.job_text(**job)
    path = folder / ('%08x.yaml' % zlib.crc32(text.encode()))
    path.write_text(text)
    done = h.mfl('check', str(path), status=None)
    assert done.returncode in (0, 5), (job, done.stderr)
    return done.stderr.replace('`', '')


@pytest.fixture(scope='module')
def checked(tmp_path_factory):
    """The error of each cell."""
    folder = tmp_path_factory.mktemp('cells')
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return dict(zip(CELLS, pool.map(lambda name: error_of(folder, CELLS[name]), CELLS)))


def reasons():
    """Of the table, as the manual has them."""
    text = re.sub(r'[`\\]', '', ' '.join(h.mfl('help', 'markdown-job').stdout.split()))
    text = text.split('refuses these combinations, each with the reason. ')[1].split(' ```')[0]
    found = re.findall(r"'([^']*(?:'s [^']*)?)' and '((?:[^']|'s )*)': (.*?)\.(?= '|$| #)", text)
    return {(one, other): why for one, other, why in found}


def test_each_refusal_has_its_reason(checked, tmp_path):
    table, given = reasons(), set()
    assert len(table) > 100
    errors = {**checked, **{repr(job): error_of(tmp_path, job) for job in MORE}}
    for name, error in errors.items():
        rows = {row for row, why in table.items() if why in error}
        assert not error or rows or any(why in error for why in OWN), (name, error)
        assert error or name in CELLS, name
        given |= rows
    if WHOLE:
        assert {row for row in table if row not in given and row[0] not in PROGRAMS and 'program' not in row[1]} == set()


def digests_of(c, job):
    at = c.submit(**job)
    c.wait_job(at, 60)
    return c.digests(at)


@pytest.fixture(scope='module')
def clusters(shared_cluster, tmp_path_factory):
    """Of one daemon and of two, each with a place for what its site keeps."""
    made = [shared_cluster(0, config={'allow_simulation': 'true'}) for _ in range(2)]
    for n, c in enumerate(made):
        for i in range(n + 1):
            c.start_daemon('d%d' % (i + 1), more=['--state-dir', str(tmp_path_factory.mktemp('site'))])
        c.wait_daemons(n + 1)
    return made


def test_each_other_cell_trains(checked, clusters):
    if WHOLE:
        signal.alarm(0)  # more than a thousand jobs: the limit is meson's
    n = 0
    for name, error in checked.items():
        if error or CHECKED & set(name) or not one_of(SAMPLE, name):
            continue
        job = {**CELLS[name], 'name': '%s.%s' % tuple(re.sub('[^a-z0-9]+', '-', part) for part in name)}
        pair = clusters if 'sites' not in name else (clusters[1], clusters[1])  # two daemons are two sites
        one, two = [digests_of(c, job) for c in pair]
        assert one == two and len(one) == 1, name
        n += 1
    assert n > (300 if WHOLE else 5)
