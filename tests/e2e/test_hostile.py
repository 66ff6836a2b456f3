# SPDX-License-Identifier: Apache-2.0
"""Wrong input of every kind: each is refused with a text that says what is wrong, and the server works on."""
import gzip
import os
import struct
import threading
import time

import numpy as np
import pytest

import mfl_harness as h
import mfl_wire as w


@pytest.fixture(scope='module')
def one(shared_cluster):
    c = shared_cluster(1)
    c.wait_daemons(1)
    return c


@pytest.fixture(scope='module')
def expected(one):
    return one.run_job(rounds=1)[1]


@pytest.fixture(autouse=True)
def _works_after(request):
    """After each test of the shared server: a job gives the model that it gave before."""
    yield
    if 'one' in request.fixturenames:
        c, expected = request.getfixturevalue('one'), request.getfixturevalue('expected')
        assert c.run_job(rounds=1)[1] == expected


# ---- jobs ----

BAD_JOBS = [
    ('unknown key', h.job_text() + 'learning_rte: 3\n', ['job.yaml:7', 'learning_rte']),
    ('near miss', h.job_text(training={'momentun': 0.9}), ['training.momentun', 'momentum']),
    ('wrong type', h.job_text(rounds='many'), ['rounds', 'many']),
    ('missing', h.job_text(rounds=None), ['rounds']),
    ('out of range', h.job_text(training={'lr': -1}), ['training.lr']),
    ('unknown strategy', h.job_text(aggregation={'strategy': 'fedbest'}), ['aggregation.strategy', 'fedavg']),
    ('unknown preset', h.job_text(model='resnet9000'), ['model', 'resnet9000']),
    ('rules between keys', h.job_text(training={'steps': 3}), ['training']),
    ('impossible shape', h.job_text(model={'input': [1, 8, 8], 'classes': 4, 'layers': [
        {'conv2d': {'filters': 3, 'kernel': 9}}, 'flatten', {'dense': {'units': 4}}]}), ['model', '9']),
    ('not yaml', 'name: [', ['job.yaml']),
    ('alias', 'name: &a x\nseed: *a\n', ['job.yaml']),
    ('empty', '\n', ['job.yaml']),
]


@pytest.mark.parametrize('text,words', [b[1:] for b in BAD_JOBS], ids=[b[0] for b in BAD_JOBS])
def test_bad_job(one, text, words):
    with one.operator() as o:
        with pytest.raises(w.Failure) as e:
            o.submit(text)
        assert e.value.code == w.ENUM_VALUE['FAILURE_INVALID']
        for word in words:
            assert word in e.value.text
        o.jobs()  # the connection is as good as before
    path = one.write('job.yaml', text)
    done = one.mfl('submit', path, status=5)
    assert all(word in done.stderr for word in words), done.stderr
    assert one.mfl('check', path, status=5).stderr


def test_a_model_that_does_not_come(one):
    """Who announces params takes no memory for them before they come."""
    def resident():
        with open('/proc/%d/status' % one.server.pid, encoding='ascii') as f:
            return next(int(line.split()[1]) for line in f if line.startswith('VmRSS'))

    with one.operator() as o:
        before = resident()
        o.send('inquire', {'kind': w.ENUM_VALUE['INQUIRY_EVALUATE'], 'deadline_s': 5, 'text': h.job_text(), 'n_params': 1 << 28, 'digest': bytes(32)}, request=7)
        o.jobs()
        assert resident() < before + (64 << 10)


def test_a_model_is_not_a_job(one):
    path = one.write('net.onnx', b'\x08\x08\x12\x00')
    for command in 'check', 'submit', 'run':
        said = one.mfl(command, path, status=5).stderr
        assert 'net.onnx: this is a model; write a job file that names it, model: {onnx: ' in said, said
        said = one.mfl(command, 'net.safetensors', status=5).stderr
        assert 'net.safetensors: this is a model; write a job file that starts from it' in said and 'initial: net.safetensors}' in said, said
    for model, why in (({'initial': 'net.safetensors'}, 'initial gives start values, not layers'), ({'onnx': 'net.safetensors'}, 'write initial in place of onnx')):
        assert why in one.mfl('check', one.write('job.yaml', h.job_text(model=model)), status=5).stderr


def test_population_larger_than_data(one):
    job = one.submit(name='crowd', data={'clients': 401})
    info = one.wait_job(job, state='failed')
    assert '401' in info['reason'] and '400' in info['reason']


def test_shape_that_does_not_fit_the_data(one):
    job = one.submit(name='misfit', model={'input': [3, 8, 8], 'classes': 4, 'layers': ['flatten', {'dense': {'units': 4}}]})
    info = one.wait_job(job, state='failed')
    assert '3' in info['reason'] and '1' in info['reason'] and 'input' in info['reason']


def test_missing_data_set_waits_and_goes_on(one):
    """A data set that nobody has is not an error: the job waits and says for what; a daemon with it makes it go on."""
    job = one.submit(name='waits', rounds=1, data={'name': 'elsewhere'})
    info = one.wait_info(job, lambda i: i['state'] == 'waiting' and i['reason'], 10, 'a reason')
    assert 'elsewhere' in info['reason']
    late = one.start_daemon('late', data=['elsewhere=synthetic:1,8,8:4:400:80:1'])
    one.wait_job(job)
    assert late.stop() == 0


def test_daemons_that_disagree(one):
    """Another content under the same name must not be mixed into a population; `mfl daemons` says why it is not used."""
    other = one.start_daemon('impostor', data=['tiny=synthetic:1,8,8:4:400:80:2'])
    h.wait_until(lambda: any(d['name'] == 'impostor' for d in one.mfl_json('daemons')['daemons']), 10, 'the second daemon')
    job, _ = one.run_job(rounds=2)
    assert {r['daemons'] for r in one.rounds(job)} == {1}
    other.stop()


# ---- peers ----

def bye_of(one, data, timeout=5):
    with w.Connection(one.address) as c:
        c.send_raw(data)
        return c.until_closed(timeout)


def greeted(one, data):
    """What the server says to a peer that greeted well and then sends data."""
    with w.Operator(one.address) as c:
        c.send_raw(data)
        return c.until_closed(5)


HELLO = w.hello()
BAD_OPENINGS = [
    ('http', b'GET / HTTP/1.1\r\nHost: localhost\r\n\r\n', 'HTTP'),
    ('tls', b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03' + bytes(32), 'TLS'),
    ('magic', w.frame('hello', HELLO, magic=b'NOPE'), 'expected 4d 46 4c 31'),
    ('newer frame', w.frame('hello', HELLO, version=9), 'version'),
    ('flags', w.frame('hello', HELLO, flags=1), 'flag'),
    # Envelope.term may add 10 bytes.
    ('envelope over its limit', w.frame('hello', HELLO, envelope_bytes=(64 << 10) + 11), '65547'),
    ('huge envelope', w.frame('hello', HELLO, envelope_bytes=0xFFFFFFFF), '4294967295'),
    ('no envelope', w.frame('hello', HELLO, envelope_bytes=0), '0'),
    ('early payload', w.frame('hello', HELLO, payload=b'1234'), 'payload'),
    ('checksum', w.frame('hello', HELLO, envelope_crc=1), 'checksum'),
    ('newer protocol', w.frame('hello', w.hello(protocol_min=90, protocol_max=91)), 'protocol 1'),
    ('no hello', w.frame('list_jobs'), 'Hello'),
    ('no role', w.frame('hello', w.hello('ROLE_UNSPECIFIED')), 'role'),
    ('daemon without a name', w.frame('hello', w.hello('ROLE_DAEMON', backend='cpu', workers=1)), 'name'),
]


@pytest.mark.parametrize('data,word', [b[1:] for b in BAD_OPENINGS], ids=[b[0] for b in BAD_OPENINGS])
def test_bad_opening(one, data, word):
    reason = bye_of(one, data)
    assert word.lower() in reason.lower(), reason


BAD_FRAMES = [
    ('oversized envelope', w.frame('list_jobs', envelope_bytes=(1 << 20) + 11), '1048587'),
    ('oversized payload', w.frame('initial', {}, payload_bytes=(4 << 20) + 1), '4194305'),
    ('payload where none belongs', w.frame('list_jobs', payload=b'abcd'), 'payload'),
    ('payload nobody asked for', w.frame('chunk', {'task': 1}, payload=b'12345678'), 'payload'),
    ('a daemon\'s message', w.frame('params_get', {'job': 'j-000001', 'digest': bytes(32)}), 'operator'),
    ('hello twice', w.frame('hello', HELLO), ''),
    ('a message that is not valid', w.frame('announce', {'task': 1}), 'Announce.item_count'),
    ('random bytes', bytes(range(256)) * 8, 'expected 4d 46 4c 31'),
]


@pytest.mark.parametrize('data,word', [b[1:] for b in BAD_FRAMES], ids=[b[0] for b in BAD_FRAMES])
def test_bad_frame(one, data, word):
    reason = greeted(one, data)
    assert word.lower() in reason.lower(), reason


def test_garbage_inside_the_envelope(one):
    """Bytes that are no Envelope, with a right checksum: seeded, so that a failure comes again."""
    rng = h.seeded('garbage')
    for _ in range(60):
        data = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 200)))
        header = w.HEADER.pack(w.MAGIC, 1, 0, len(data), 0, w.crc32c(data), 0)
        try:
            with w.Operator(one.address, 5) as o:
                o.send_raw(header + data)
                o.request('list_jobs', {}, 5)
        except (w.Closed, w.Failure):
            pass
    one.check_alive()


def test_half_a_submission(one):
    """Initial params that never come whole make no job and leave nothing behind."""
    before = len(one.mfl_json('list')['jobs'])
    text = h.job_text(name='half', model={'preset': 'mlp', 'initial': 'x.safetensors'})
    with one.operator() as o:
        o.send('submit', {'text': text, 'file': 'job.yaml', 'initial_count': 1000}, 1)
        o.send('initial', {'offset': 0}, 1, payload=bytes(400))
        time.sleep(0.1)
    with one.operator() as o:
        o.send('submit', {'text': text, 'file': 'job.yaml', 'initial_count': 1000}, 1)
        o.send('initial', {'offset': 500}, 1, payload=bytes(400))
        assert 'Initial' in o.until_closed(5)
    assert len(one.mfl_json('list')['jobs']) == before
    h.wait_until(lambda: not os.listdir(os.path.join(one.state_dir, 'uploads')), 5, 'an empty uploads directory')


# ---- daemons that send nonsense ----

class Liar:
    """Takes tasks and uploads what `update` makes of (task, number of params)."""

    def __init__(self, update, announce=()):
        self.update, self.extra, self.task, self.data, self.refused = update, announce, None, None, []

    def __call__(self, daemon, kind, body, payload):
        if kind == 'task' and body['kind'] == w.ENUM_VALUE['TASK_TRAIN']:
            self.task = body
            self.data = self.update(body)
            announce = {'task': body['task'], 'update': 0, 'item_first': 0, 'item_count': len(body['items']),
                        'encoding': 'ENCODING_I64', 'bytes': 8 * body['n_params'], 'weight': 50 * len(body['items']),
                        'samples': 50 * len(body['items']), 'job': body['job'], 'round': body['round']}
            announce.update(self.extra(body) if callable(self.extra) else self.extra)
            daemon.send('announce', announce)
        elif kind == 'task':
            daemon.send('task_failed', {'task': body['task'], 'reason': 'not me'})
        elif kind == 'grant':
            for r in body['ranges']:
                part = self.data[r['offset']:r['offset'] + r['bytes']]
                daemon.send('chunk', {'task': body['task'], 'update': 0, 'offset': r['offset']}, payload=part)
        elif kind == 'refused':
            self.refused.append(body)


def over_range(task):
    return np.full(task['n_params'], 1 << 62, '<i8').tobytes()


def numbers_without_clients(task):
    return {'bytes': 0, 'weight': 0, 'samples': 0, 'scalars': [1] * 4,
            'rejected': [{'item': item, 'reason': 'no'} for item in task['items']]}


LIES = [
    ('over range', over_range, {}, 'REFUSED_INVALID'),
    ('wrong size', over_range, {'bytes': 16}, 'REFUSED_INVALID'),
    ('weight over the limit', over_range, {'weight': 1 << 40}, 'REFUSED_INVALID'),
    ('no weight', over_range, {'weight': 0}, 'REFUSED_INVALID'),
    ('clients of others', over_range, {'item_count': 4000}, 'REFUSED_INVALID'),
    ('numbers that the job does not add', over_range, {'scalars': [1] * 4}, 'REFUSED_INVALID'),
    ('numbers without clients', over_range, numbers_without_clients, 'REFUSED_INVALID'),
    ('unknown task', over_range, {'task': 12345}, 'REFUSED_UNKNOWN'),
]


@pytest.mark.parametrize('update,announce,code', [x[1:] for x in LIES], ids=[x[0] for x in LIES])
def test_lying_daemon(cluster, update, announce, code):
    """A wrong update is refused by name, counts for nothing, and the job ends with the model of an honest round."""
    c = cluster(1)
    expected = c.run_job(model='logistic', rounds=2)[1]
    liar = Liar(update, announce)
    fake = w.FakeDaemon(c.address, 'liar', c.data_sets(), liar)
    c.wait_daemons(2)
    job = c.submit(model='logistic', rounds=2, limits={'deadline': '1s', 'quorum': 0.25, 'retries': 5})
    h.wait_until(lambda: liar.refused or fake.closed is not None, 10, 'a refusal')
    if liar.refused:
        assert liar.refused[0]['code'] == w.ENUM_VALUE[code], liar.refused
        assert liar.refused[0]['reason']
    else:
        assert fake.closed  # sent away with a reason
    assert fake.error is None
    fake.close()
    c.wait_job(job)
    assert c.run_job(model='logistic', rounds=2)[1] == expected
    c.check_alive()


UNTRUE = [
    ('room', {'weight': 512}, 'weight 512, but its '),
    ('one sample more', {'weight': 201}, 'weight 201, but its 4 clients have 200 samples'),
    ('correct', {'correct': 5470207103 * 200, 'samples': 200}, 'predictions are correct'),
    ('loss', {'loss_sum': 2 ** 63 - 1}, 'each has at most 2^20'),
    ('samples', {'samples': 2 ** 32 - 1}, 'predictions, but its 4 clients make '),
]


@pytest.mark.parametrize('partition', ['iid', 'dirichlet'])
@pytest.mark.parametrize('announce,why', [x[1:] for x in UNTRUE], ids=[x[0] for x in UNTRUE])
def test_what_cannot_be_true(cluster, announce, why, partition):
    """A daemon whose numbers can't be true is named and sent away, and its clients go to others: the model is that of honest
    daemons alone, though the quorum is small and the deadline far."""
    c = cluster(1)
    data = {'partition': partition, 'clients': 8}
    if partition == 'dirichlet':
        data.update(alpha=0.5, min_samples=3)
        why = ''  # what its clients have is not known at once, so the first lie that is found may be another
    job = {'model': 'logistic', 'rounds': 2, 'data': data, 'limits': {'deadline': '60s', 'quorum': 0.1}}
    expected = c.run_job(**job)[1]
    liar = Liar(lambda task: bytes(8 * task['n_params']), announce)
    fake = w.FakeDaemon(c.address, 'liar', c.data_sets(), liar)
    c.wait_daemons(2)
    job = c.submit(**job)
    h.wait_until(lambda: fake.closed is not None, 20, 'its end')
    assert why in fake.closed and liar.refused == [] and fake.error is None
    info = c.wait_job(job)
    assert c.digests(job) == expected
    assert info['last']['clients'] == 8
    assert 'daemon liar is sent away for what it said: ' in c.mfl('logs', job).stdout
    entry = [e for e in c.mfl_json('audit')['entries'] if e['action'] == 'expel']
    assert len(entry) == 1 and entry[0]['object'] == 'liar' and 'sent away' in entry[0]['text']
    fake.close()
    c.check_alive()


@pytest.mark.parametrize('score,why', [
    ({'samples': 2 ** 32 - 1, 'correct': 1}, '4294967295 predictions are scored, but the test samples have 10'),
    ({'samples': 10, 'correct': 11}, '11 of 10'),
    ({'samples': 10, 'correct': 5, 'loss_sum': 2 ** 63 - 1}, 'each has at most 2^20'),
], ids=['samples', 'correct', 'loss'])
def test_an_evaluation_that_cannot_be_true(cluster, score, why):
    """Its shards go to others, so the round is evaluated on what there is. The liar's clients are rejected, by itself."""
    c = cluster(1)

    def evaluate(daemon, kind, body, payload):
        if kind == 'task' and body['kind'] == w.ENUM_VALUE['TASK_EVAL']:
            daemon.send('eval_result', {'task': body['task'], 'items': [{'item': i, **score} for i in body['items']]})
        elif kind == 'task':
            daemon.send('announce', {'task': body['task'], 'update': 0, 'item_first': 0, 'item_count': len(body['items']),
                                     'rejected': [{'item': i, 'reason': 'not fit'} for i in body['items']],
                                     'encoding': 'ENCODING_I64', 'job': body['job'], 'round': body['round']})
    fake = w.FakeDaemon(c.address, 'liar', c.data_sets(), evaluate)
    c.wait_daemons(2)
    job = c.submit(model='logistic', rounds=3, limits={'quorum': 0.1}, evaluation={'batch': 10})
    h.wait_until(lambda: fake.closed is not None, 20, 'its end')
    assert why in fake.closed and fake.error is None
    info = c.wait_job(job)
    assert 0 < info['best']['accuracy'] <= 1 and 0 < info['best']['loss'] < 10 and info['last']['clients'] == 8
    assert 'daemon liar is sent away for what it said: ' in c.mfl('logs', job).stdout
    fake.close()


def test_ten_million_clients(cluster):
    """A round takes what the server can hold, or is refused by name with what to write; the population costs nothing."""
    c = cluster(1)
    with c.operator() as o:
        with pytest.raises(w.Failure) as e:
            o.request('submit', {'text': h.job_text(data={'partition': 'iid', 'clients': 10_000_000}), 'file': 'job.yaml'}, 5)
    assert 'each round would take all 10000000 clients, and the limit is 250000; set selection.clients' in str(e.value)
    job = c.submit(data={'partition': 'iid', 'clients': 10_000_000}, selection={'clients': 10})
    info = c.wait_job(job, state='failed')
    assert '10000000 clients with at least 1 each' in info['reason'] and 'training samples' in info['reason']


def test_update_that_is_not_finite(cluster):
    """The median takes single float updates: NaN is refused, the client counts as rejected."""
    c = cluster(1)

    def nan(task):
        return np.full(task['n_params'], np.nan, '<f4').tobytes()

    class Single(Liar):
        def __call__(self, daemon, kind, body, payload):
            if kind == 'task' and body['kind'] == w.ENUM_VALUE['TASK_TRAIN']:
                self.data = nan(body)
                for i in range(len(body['items'])):
                    daemon.send('announce', {
                        'task': body['task'], 'update': i, 'item_first': i, 'item_count': 1, 'encoding': 'ENCODING_F32',
                        'bytes': 4 * body['n_params'], 'weight': 50, 'samples': 50, 'job': body['job'],
                        'round': body['round']})
            elif kind == 'grant':
                for r in body['ranges']:
                    daemon.send('chunk', {'task': body['task'], 'update': body['update'], 'offset': r['offset']},
                                payload=self.data[r['offset']:r['offset'] + r['bytes']])
            else:
                super().__call__(daemon, kind, body, payload)
    liar = Single(nan)
    fake = w.FakeDaemon(c.address, 'liar', c.data_sets(), liar)
    c.wait_daemons(2)
    job = c.submit(model='logistic', rounds=1, aggregation={'strategy': 'median'}, limits={'deadline': '5s', 'quorum': 0.25})
    h.wait_until(lambda: liar.refused, 10, 'a refusal')
    assert liar.refused[0]['code'] == w.ENUM_VALUE['REFUSED_INVALID']
    assert 'finite' in liar.refused[0]['reason'] or 'nan' in liar.refused[0]['reason'].lower()
    info = c.wait_job(job)
    assert info['last']['clients_rejected'] + info['last']['clients'] == 8
    assert info['last']['clients_rejected'] >= 1
    fake.close()
    c.check_alive()


def test_clients_over_the_limit_are_rejected_by_their_own_daemon(cluster):
    c = cluster(1)
    job = c.submit(aggregation={'delta_max': 1e-6}, limits={'retries': 0})
    info = c.wait_job(job, state='failed')
    assert '0 of 8 clients counted, 8 needed' in info['reason']
    assert 'elements of the update' in info['reason'] and 'fc' in info['reason']  # what was wrong with the last one
    c.run_job(rounds=1)


# ---- daemons of one node ----

class Quitter:
    """Gives back every task, without a word more."""

    def __init__(self):
        self.tasks = []

    def __call__(self, daemon, kind, body, payload):
        if kind == 'ping':
            daemon.send('pong', {'cookie': body['cookie']})
        elif kind == 'task':
            self.tasks.append(body)
            daemon.send('task_failed', {'task': body['task'], 'reason': 'no', 'permanent': True})


@pytest.mark.parametrize('instance', [0, 77])
def test_daemons_of_one_number(cluster, instance):
    """Two processes of one node with one Hello.instance can't be members of one group; each is still told its task."""
    c = cluster(1)
    c.wait_daemons(1)
    expected = c.run_job(rounds=1)[1]
    reach = {'user': 1, 'network_space': 2, 'memory_space': 3}
    fakes = [w.FakeDaemon(c.address, name, c.data_sets(), Quitter(), instance=instance, reach=reach)
             for name in ('twin-1', 'twin-2')]
    c.wait_daemons(3)
    assert c.run_job(rounds=1)[1] == expected
    for fake in fakes:
        assert fake.error is None and fake.closed is None
        assert fake.on_message.tasks and all(not t['group'] for t in fake.on_message.tasks)
        fake.close()


def test_reason_that_is_cut_within_a_character(cluster):
    """What a member says went wrong is told to the others of its group, shortened to whole characters."""
    c = cluster(1)
    sets, alone = c.data_sets(), []

    def member(daemon, kind, body, payload):
        if kind == 'ping':
            daemon.send('pong', {'cookie': body['cookie']})
        elif kind == 'task' and body['group']:
            daemon.send('combine_failed', {'group': body['group']['group'], 'reason': 'x' + '\u00e9' * 200})
        elif kind == 'task':
            daemon.send('task_failed', {'task': body['task'], 'reason': 'no', 'permanent': True})
        elif kind == 'alone':
            alone.append(body['reason'])
            daemon.send('task_failed', {'task': body['task'], 'reason': 'no', 'permanent': True})

    reach = {'user': 1, 'network_space': 2, 'memory_space': 3}
    fakes = [w.FakeDaemon(c.address, name, sets, member, instance=i, reach=reach)
             for i, name in enumerate(('m1', 'm2'), 1)]
    c.wait_daemons(3)
    c.run_job(rounds=1)
    assert len(alone) == 2 and all('x\u00e9' in reason for reason in alone), alone
    for fake in fakes:
        assert fake.error is None and fake.closed is None
        fake.close()


# ---- text that steers a terminal ----

STEERS = '\033]0;owned\a\x9b31m\u202egnp\u2066\u2028\ufeff'


def plain(text):
    return not any(ord(c) < 32 and c != '\n' or 0x7f <= ord(c) < 0xa0 or c in '\u202e\u2066\u2028\ufeff' for c in text)


def test_what_a_daemon_says_of_itself_steers_no_terminal(cluster):
    """Names are refused, the rest is cleaned where it enters: for operators of any release, the log and /metrics."""
    c = cluster(1)
    for field, value in (('node', STEERS), ('backend', STEERS), ('device_uuid', STEERS), ('device_pci', 'a\u202e'),
                         ('data_sets', [{**c.data_sets()[0], 'name': 'tiny\u202e'}])):
        with pytest.raises(w.Closed) as e:
            w.FakeDaemon(c.address, 'evil', **{'data_sets': c.data_sets(), field: value})
        assert (field if field != 'data_sets' else 'DataSet.name') in e.value.reason and plain(e.value.reason)

    def refuse(daemon, kind, body, payload):
        if kind == 'task':
            daemon.send('task_failed', {'task': body['task'], 'reason': 'no: ' + STEERS, 'permanent': True})

    evil = w.FakeDaemon(c.address, 'evil', c.data_sets(), refuse, device='card ' + STEERS, numerics='n ' + STEERS,
                        software='s ' + STEERS, reach={'memory_reason': STEERS, 'nccl_reason': STEERS})
    c.wait_daemons(2)
    job, _ = c.run_job(rounds=1)
    with c.operator() as o:
        told = str([d for d in o.daemons() if d['name'] == 'evil']) + ' '.join(o.logs(job))
    assert 'card ?]0;owned??31m?gnp???' in told and 'no: ?]0;owned' in told and '\\x' not in told
    shown = c.mfl('daemons').stdout + c.mfl('logs', job).stdout
    assert 'evil' in shown and '?]0;owned' in shown and plain(shown)
    with open(c.log_path('server'), newline='') as f:
        assert plain(f.read())
    evil.close()


def test_job_whose_text_is_not_what_it_shows(one):
    with one.operator() as o:
        with pytest.raises(w.Failure) as e:
            o.submit(h.job_text() + '# lr: 0.1 \u202e1.0 :rl\n')
    assert 'job.yaml:' in str(e.value) and 'column 11 has U+202E' in str(e.value)


# ---- a daemon that is silent, and a quorum ----

def test_quorum_closes_the_round_without_a_silent_daemon(cluster):
    c = cluster(1)
    c.wait_daemons(1)
    fake = w.FakeDaemon(c.address, 'silent', c.data_sets())  # lives, takes work, never delivers
    c.wait_daemons(2)
    start = time.monotonic()
    job = c.submit(rounds=2, limits={'deadline': '1s', 'quorum': 0.25})
    c.wait_job(job)
    rounds = c.rounds(job)
    assert all(2 <= r['clients'] <= 8 for r in rounds)
    assert rounds[0]['clients'] < 8
    assert rounds[0]['weight'] == 50 * rounds[0]['clients']  # the mean is over those that came
    assert time.monotonic() - start >= 1
    kinds = [k for k, _ in fake.seen]
    assert 'task' in kinds and 'cancel' in kinds  # it was told that nobody waits any more
    fake.close()


def test_below_quorum_fails_with_a_reason(cluster):
    c = cluster(0)
    honest = c.start_daemon('d1')
    sets = c.data_sets()
    assert honest.stop() == 0
    fake = w.FakeDaemon(c.address, 'silent', sets)
    job = c.submit(rounds=2, limits={'deadline': '1s', 'quorum': 0.5, 'retries': 1})
    info = c.wait_job(job, state='failed')
    assert '0 of 8 clients counted, 4 needed' in info['reason'] and c.rounds(job) == []
    fake.close()


# ---- files ----

def idx_files(folder, n=40, classes=4, spoil=None):
    """A data set of 4x4 images in IDX; spoil = (file, function of its bytes)."""
    os.makedirs(folder, exist_ok=True)
    rng = np.random.default_rng(1)
    for split, count in (('train', n), ('t10k', n // 4)):
        labels = np.arange(count) % classes
        images = (rng.integers(0, 100, (count, 4, 4)) + 30 * labels[:, None, None]).astype(np.uint8)
        files = {split + '-images-idx3-ubyte': struct.pack('>IIII', 0x803, count, 4, 4) + images.tobytes(),
                 split + '-labels-idx1-ubyte': struct.pack('>II', 0x801, count) + labels.astype(np.uint8).tobytes()}
        for name, data in files.items():
            if spoil and spoil[0] == name:
                data = spoil[1](data)
            with open(os.path.join(folder, name), 'wb') as f:
                f.write(data)
    return 'pics=idx:' + folder


BAD_IDX = [
    ('truncated images', ('train-images-idx3-ubyte', lambda d: d[:-7]), 'train-images-idx3-ubyte'),
    ('wrong magic', ('train-images-idx3-ubyte', lambda d: b'\0\0\0\0' + d[4:]), 'train-images-idx3-ubyte'),
    ('promises too much', ('train-images-idx3-ubyte', lambda d: d[:4] + b'\xff\xff\xff\xff' + d[8:]),
     'train-images-idx3-ubyte'),
    ('labels do not match', ('train-labels-idx1-ubyte', lambda d: struct.pack('>II', 0x801, 39) + d[8:-1]), '39'),
    ('corrupt gzip', ('t10k-labels-idx1-ubyte', lambda d: gzip.compress(d)[:-9]), 't10k-labels-idx1-ubyte'),
    ('empty', ('t10k-images-idx3-ubyte', lambda d: b''), 't10k-images-idx3-ubyte'),
]


@pytest.mark.parametrize('spoil,word', [b[1:] for b in BAD_IDX], ids=[b[0] for b in BAD_IDX])
def test_bad_idx(one, folder, spoil, word):
    data = idx_files(os.path.join(folder, 'pics'), spoil=spoil)
    daemon = one.start_daemon('idx', data=[data])
    assert daemon.wait(10) == 78
    assert word in daemon.log().splitlines()[-1]
    os.remove(daemon.log_path)


def test_idx_works(one, folder):
    daemon = one.start_daemon('idx', data=[idx_files(os.path.join(folder, 'pics'))])
    one.run_job(name='pics', rounds=1, model='logistic', data={'name': 'pics', 'clients': 2})
    assert daemon.stop() == 0


def npy_config(folder, spoil=None):
    """A daemon's configuration with a data set in .npy files."""
    rng = np.random.default_rng(2)
    arrays = {'train_x': rng.random((40, 6), np.float32), 'train_y': np.arange(40) % 3,
              'test_x': rng.random((8, 6), np.float32), 'test_y': np.arange(8) % 3}
    lines = ['data_sets:', '  - name: rows', '    format: npy']
    for name, array in arrays.items():
        path = os.path.join(folder, name + '.npy')
        np.save(path, array)
        if spoil and spoil[0] == name:
            with open(path, 'rb') as f:
                data = f.read()
            with open(path, 'wb') as f:
                f.write(spoil[1](data))
        lines.append('    %s: %s' % (name, path))
    path = os.path.join(folder, 'daemon.yaml')
    with open(path, 'w', encoding='utf-8') as f:
        f.write('\n'.join(lines) + '\n')
    return path


BAD_NPY = [
    ('truncated', ('train_x', lambda d: d[:-5]), 'train_x.npy'),
    ('wrong magic', ('train_x', lambda d: b'X' + d[1:]), 'train_x.npy'),
    ('header is no header', ('test_y', lambda d: d[:10] + b'{' * (len(d) - 10)), 'test_y.npy'),
    ('not a number', ('train_x', lambda d: d[:-4] + struct.pack('<f', float('nan'))), 'train_x.npy'),
    ('label out of range', ('train_y', lambda d: d[:-8] + struct.pack('<q', -1)), 'train_y.npy'),
]


@pytest.mark.parametrize('spoil,word', [b[1:] for b in BAD_NPY], ids=[b[0] for b in BAD_NPY])
def test_bad_npy(one, folder, spoil, word):
    daemon = one.start_daemon('npy', data=[], more=['--config', npy_config(folder, spoil)])
    assert daemon.wait(10) == 78
    assert word in daemon.log().splitlines()[-1]
    os.remove(daemon.log_path)


def test_npy_works(one, folder):
    daemon = one.start_daemon('npy', data=[], more=['--config', npy_config(folder)])
    one.run_job(name='rows', rounds=1, model='logistic', data={'name': 'rows', 'clients': 2})
    assert daemon.stop() == 0


BAD_MODELS = [
    ('truncated', lambda d: d[:len(d) // 2]),
    ('header length', lambda d: b'\xff' * 8 + d[8:]),
    ('no json', lambda d: d[:8] + b'!' + d[9:]),
    ('not a number', lambda d: d[:-4] + struct.pack('<f', float('nan'))),
    ('empty', lambda d: b''),
]


@pytest.mark.parametrize('spoil', [b[1] for b in BAD_MODELS], ids=[b[0] for b in BAD_MODELS])
def test_bad_initial_model(one, folder, spoil):
    with one.operator() as o:
        job = next(j['job'] for j in o.jobs() if j['model'] == 'mlp' and j['state'] == w.ENUM_VALUE['JOB_DONE'])
    model = os.path.join(folder, 'model.safetensors')
    one.mfl('pull', job, '--output', model)
    with open(model, 'rb') as f:
        data = f.read()
    with open(model, 'wb') as f:
        f.write(spoil(data))
    path = one.write('start.yaml', h.job_text(model={'preset': 'mlp', 'initial': model, 'input': [1, 8, 8], 'classes': 4}))
    assert 'model.safetensors' in one.mfl('submit', path, status=5).stderr


def test_model_of_another_shape(one, folder):
    with one.operator() as o:
        job = next(j['job'] for j in o.jobs() if j['model'] == 'mlp' and j['state'] == w.ENUM_VALUE['JOB_DONE'])
    model = os.path.join(folder, 'model.safetensors')
    one.mfl('pull', job, '--output', model)
    path = one.write('start.yaml', h.job_text(model={'preset': 'logistic', 'initial': model, 'input': [1, 8, 8], 'classes': 4}))
    done = one.mfl('submit', path, status=5)
    assert 'model.safetensors' in done.stderr and 'fc' in done.stderr


# ---- programs ----

def test_wrong_options_and_configurations(folder):
    def status(name, *argv):
        p = h.Process([h.program(name), *argv], os.path.join(folder, 'log'))
        try:
            return p.wait(10), p.log()
        finally:
            p.kill()
    for name in ('mfl-server', 'mfl-client'):
        assert status(name, '--no-such-option')[0] == 2
        code, log = status(name, '--config', os.path.join(folder, 'missing.yaml'))
        assert code == 78 and 'missing.yaml' in log
        bad = os.path.join(folder, 'bad.yaml')
        with open(bad, 'w', encoding='utf-8') as f:
            f.write('log_level: info\nlissten: 1\n')
        code, log = status(name, '--config', bad)
        assert code == 78 and 'bad.yaml:2' in log and 'lissten' in log
        assert status(name, '--version')[0] == 0
        assert status(name, '--help')[0] == 0
    code, log = status('mfl-server', '--listen', '0.0.0.0:0', '--state-dir', os.path.join(folder, 's'))
    assert code in (1, 78) and 'insecure' in log  # not on the network without TLS, unless told so


def test_second_server_on_one_state(cluster):
    c = cluster(0)
    second = h.Process([h.program('mfl-server'), '--listen', '127.0.0.1:0', '--state-dir', c.state_dir, '--exit-with-stdin'],
                       c.log_path('second'))
    assert second.wait(10) != 0
    assert c.state_dir in second.log()
    c.check_alive()


def test_children_end_with_their_parent(cluster):
    c = cluster(1)
    c.wait_daemons(1)
    for p in (c.daemons['d1'], c.server):
        p.popen.stdin.close()
        assert p.wait(10) == 0


# ---- too much at once ----

def flood(connection, frame, n=70_000):
    """n frames, and then a Ping of which the server's loop is known to have read them all; answers are read meanwhile."""
    reader = threading.Thread(target=lambda: connection.sock.sendall(frame * n + w.frame('ping', {'cookie': 7})), daemon=True)
    reader.start()
    try:
        while connection.recv(60)[:2] != ('pong', {'cookie': 7}):
            pass
    finally:
        reader.join(60)


def test_a_daemon_that_tells_of_its_data_for_ever(cluster):
    """Each word on a site's data is a transaction. They may not fill the queue that commits wait in."""
    c = cluster(1)
    job = c.submit(rounds=100_000, data={'partition': 'local', 'clients': None})
    c.wait_info(job, lambda i: i['round'] > 0, 20, 'a round')
    word = {'job': job, 'clients': 1, 'samples': 5, 'samples_min': 5, 'samples_max': 5, 'shown': [{'client': 1, 'samples': 5}]}
    fake = w.FakeDaemon(c.address, 'talker', [])
    fake.connection.sock.sendall(w.frame('partition', word) * 70_000)
    then = c.wait_info(job, lambda i: i['round'] > 0, 20, 'a round')['round']
    c.wait_info(job, lambda i: i['round'] > then + 3, 20, 'more rounds')
    fake.close()
    c.mfl('stop', job)


def test_a_viewer_that_asks_for_ever(cluster):
    c = cluster(1)
    job = c.submit(rounds=100_000)
    c.wait_info(job, lambda i: i['round'] > 0, 20, 'a round')
    with w.Operator(c.address) as o:
        flood(o, w.frame('list_models', {'job': job}, request=9))
        then = o.info(job)['round']
    c.wait_info(job, lambda i: i['round'] > then + 3, 20, 'more rounds')
    c.mfl('stop', job)


def test_job_larger_than_the_memory_fails_with_the_sizes(cluster):
    """A job that exceeds memory_max will not fit later either: it fails at once, and the server takes the next one."""
    c = cluster(1, config={'memory_max': '64MiB'})
    c.wait_daemons(1)
    job = c.submit(rounds=1, model={'layers': [{'dense': {'units': 65536}}, 'relu', {'dense': {'units': 4}}]})
    c.wait_job(job, state='failed')
    reason = c.info(job)['reason']
    assert 'MiB' in reason and 'memory_max' in reason, reason
    c.run_job(rounds=1)
