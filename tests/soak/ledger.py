# SPDX-License-Identifier: Apache-2.0
"""The ledger of what was done to every job, and whether a job's end is true of it."""
import collections
import threading

import mfl_harness as h

TINY = 'tiny=synthetic:1,8,8:4:400:80:1'
PICTURES = 'pictures=synthetic:1,28,28:10:300:60:2'
CONVOLUTIONS = {'input': [1, 8, 8], 'classes': 4, 'layers': [
    {'conv2d': {'filters': 8, 'kernel': 3, 'padding': 1}}, {'groupnorm': {'norm_groups': 2}}, 'relu',
    {'maxpool2d': {'kernel': 2}}, 'flatten', {'dense': {'units': 4}}]}


class Kind:
    """A job file, and how it may end. fails: words of its reason when it is made to fail. endless: it waits for what never
    comes, until somebody stops it. loose: its model depends on who is there, and too few may be."""

    def __init__(self, name, fails=(), endless=False, loose=False, **changes):
        self.name, self.fails, self.endless, self.loose = name, fails, endless, loose
        self.doc = h.job_doc(name=name, **changes)
        self.rounds, self.digests = self.doc['rounds'], None

    @property
    def exact(self):
        return not (self.fails or self.endless or self.loose)


KINDS = [
    Kind('mlp-iid', rounds=4),
    Kind('logistic-dirichlet', rounds=5, model='logistic', data={'partition': 'dirichlet', 'alpha': 0.5},
         aggregation={'strategy': 'fedadam'}),
    Kind('lenet-shards', rounds=3, model='lenet5', data={'name': 'pictures', 'partition': 'shards', 'clients': 6},
         aggregation={'strategy': 'fedavgm'}, checkpoints={'keep': 1}),
    Kind('median-linear', rounds=4, model='logistic', data={'partition': 'linear'}, aggregation={'strategy': 'median'}),
    Kind('fedprox-selected', rounds=6, aggregation={'strategy': 'fedprox', 'mu': 0.01}, selection={'clients': 4}),
    Kind('layers-square', rounds=4, model=CONVOLUTIONS, data={'partition': 'square', 'clients': 5},
         aggregation={'strategy': 'fedyogi'}, checkpoints={'keep': 0}),
    Kind('adagrad-sizes', rounds=3, data={'partition': 'size', 'clients': 4, 'sizes': [100, 50, 150, 20]},
         training={'steps': 40, 'epochs': None}, aggregation={'strategy': 'fedadagrad'}),
    Kind('long', rounds=10, training={'steps': 120, 'epochs': None}, selection={'daemons': {'max': 3}}),
    Kind('crowd', fails=('401', '400'), data={'clients': 401}),
    Kind('too-large-steps', fails=('clients counted', 'rejected'), aggregation={'delta_max': 1e-6}, limits={'retries': 1}),
    Kind('nobody-has-it', endless=True, data={'name': 'elsewhere'}),
    Kind('sites', loose=True, rounds=3, data={'partition': 'local', 'clients': None},
         limits={'deadline': '15s', 'quorum': 0.5, 'retries': 20}),
]
BY_NAME = {k.name: k for k in KINDS}
WEIGHTS = [4 if k.exact else 1 for k in KINDS]


class Job:
    def __init__(self, job, kind, owner):
        self.id, self.kind, self.owner = job, kind, owner
        self.stops = set()        # who asked
        self.stopped = False      # the server said that it is, and that the disk has it
        self.end = None           # (state, reason, digests), once judged
        self.pinned = 0           # clones of it that may have to be asked for again
        self.deleting = False     # somebody asked, and the answer may have been lost


class Ledger:
    """Shared by all threads. Nothing is ever taken out of `jobs`; deleted ones are in `deleted`, too."""

    def __init__(self):
        self.lock = threading.Lock()
        self.jobs, self.deleted, self.pending = {}, set(), []
        self.audit = collections.Counter()  # (who, action, object, result) that must be in the book
        self.ends, self.faults = collections.Counter(), []

    def fault(self, text):
        with self.lock:
            self.faults.append(text)

    def submitted(self, job, kind, owner):
        with self.lock:
            if job not in self.jobs:
                self.jobs[job] = Job(job, kind, owner)
            return self.jobs[job]

    def there(self):
        with self.lock:
            return [j for j in self.jobs.values() if j.id not in self.deleted]

    def expect_audit(self, *entry):
        with self.lock:
            self.audit[entry] += 1

    def judge(self, detail):
        """Whether the end of a job, as `mfl show --json` tells it, is true. Once judged, it must stay the same."""
        info = detail['job']
        job = self.jobs[info['id'] if 'id' in info else info['job']]
        digests = [r['digest'] for r in sorted(detail['rounds'], key=lambda r: r['round'])]
        end = (info['state'], info['reason'], digests)
        if job.end:
            if end != job.end:
                self.fault('%s ended as %s, and is now %s' % (job.id, job.end[:2], end[:2]))
            return
        for text in untrue(job, info, detail['rounds'], digests):
            self.fault('%s (%s of %s): %s' % (job.id, job.kind.name, job.owner, text))
        with self.lock:
            job.end = end
            self.ends[info['state']] += 1


def untrue(job, info, rounds, digests):
    """Texts of what is not as it must be."""
    kind, state, reason = job.kind, info['state'], info['reason'] or ''
    numbers = sorted(r['round'] for r in rounds)
    if numbers != list(range(1, len(numbers) + 1)) or info['round'] != len(numbers):
        yield 'its rounds are %s, it says %s' % (numbers, info['round'])
    if kind.digests and digests != kind.digests[:len(digests)]:
        yield 'its models differ from those of the undisturbed run: %s, not %s' % (digests, kind.digests)
    if not info['finished_unix_ms'] or info['finished_unix_ms'] < info['created_unix_ms']:
        yield 'it ended at %s, before it was made at %s' % (info['finished_unix_ms'], info['created_unix_ms'])
    if info['owner'] != job.owner:
        yield 'its owner is %s' % info['owner']
    if state == 'stopped':
        if not any('stopped by ' + who == reason for who in job.stops):
            yield "it was stopped with the reason '%s', and %s asked" % (reason, sorted(job.stops) or 'nobody')
        return
    if job.stopped:
        yield "the server said that it was stopped, and it is %s: %s" % (state, reason)
    if kind.endless:
        yield 'it is %s without the data set that it wants: %s' % (state, reason)
    elif state == 'done':
        if kind.fails:
            yield 'it can only fail'
        if len(numbers) != kind.rounds:
            yield 'it is done with %d rounds of %d' % (len(numbers), kind.rounds)
        if reason:
            yield "it is done, with the reason '%s'" % reason
    elif state == 'failed':
        words = kind.fails or (('clients counted',) if kind.loose else None)
        if not words:
            yield 'nothing was done to it that would make it fail: ' + reason
        elif not all(w in reason for w in words):
            yield "it failed with the reason '%s', which does not say %s" % (reason, words)
    else:
        yield 'it is %s' % state


def self_test():
    """A judge that never condemns is none."""
    kind = BY_NAME['mlp-iid']
    rounds = [{'round': i, 'digest': str(i)} for i in (1, 2, 3, 4)]
    good = {'state': 'done', 'reason': '', 'round': 4, 'finished_unix_ms': 2, 'created_unix_ms': 1, 'owner': 'ann'}

    def faults(info=(), job=(), kind=kind, rounds=rounds):
        one = Job('j', kind, 'ann')
        for key, value in dict(job).items():
            setattr(one, key, value)
        return list(untrue(one, {**good, **dict(info)}, rounds, [r['digest'] for r in rounds]))
    stopped = {'state': 'stopped', 'reason': 'stopped by bob', 'round': 4}
    assert not faults()
    assert not faults(stopped, {'stops': {'bob'}, 'stopped': True})
    assert not faults({'state': 'failed', 'reason': '401 of 400', 'round': 0}, kind=BY_NAME['crowd'], rounds=[])
    assert faults(stopped) and faults(stopped, {'stops': {'ann'}})
    assert faults(job={'stopped': True, 'stops': {'ann'}})
    assert faults({'state': 'failed', 'reason': 'x'}) and faults({'state': 'running'}) and faults({'reason': 'x'})
    assert faults({'round': 3}) and faults(rounds=rounds[1:]) and faults(rounds=rounds[:3])
    assert faults(kind=BY_NAME['crowd']) and faults(kind=BY_NAME['nobody-has-it'])
    assert faults({'owner': 'bob'}) and faults({'finished_unix_ms': 0})
    kind.digests = ['1', '2', '3', '5']
    assert faults()
    kind.digests = None
