# SPDX-License-Identifier: Apache-2.0
"""The Python package against real processes: what the command line's tests do, with the package, with TLS and without. Its answers are
compared with those of `mfl` and with files that `mfl` has written."""
import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
import threading

import pytest

import mfl_certs
import mfl_harness as h
import mfl_needs
import mfl_wire as w
from mfl_tap import Tap
from mfl_tls import TlsCluster

mfl_needs.module('google.protobuf')
np = mfl_needs.module('numpy')
sys.path.insert(0, os.path.join(h.BUILD, 'python'))
import mfl  # noqa: E402  pylint: disable=wrong-import-position

# A pair of layers that share a tensor, and one that no training changes: names, order and digest are then not trivial.
LAYERS = [{'flatten': {}}, {'dense': {'name': 'a', 'units': 64, 'frozen': True}}, {'relu': {}}, {'dense': {'name': 'b', 'units': 64}}, {'relu': {}},
          {'dense': {'name': 'c', 'units': 64, 'shares_weight': 'b'}}, {'relu': {}}, {'dense': {'name': 'head', 'units': 4}}]


class Side:
    """A cluster and a client of it."""

    def __init__(self, cluster, arguments):
        self.cluster, self.arguments = cluster, arguments
        self.client = mfl.connect(cluster.address, **arguments)

    def write(self, **changes):
        return self.cluster.write('job.yaml', h.job_text(**changes))


@pytest.fixture(scope='module')
def ca(tmp_path_factory):
    mfl_needs.program('openssl')
    ca = mfl_certs.Ca(tmp_path_factory.mktemp('ca'))
    ca.server()
    ca.pairs = {name: ca.issue(name, roles) for name, roles in (
        ('ann', ['operator', 'admin']), ('vic', ['viewer']), ('nobody', []), ('d1', ['daemon']), ('d2', ['daemon']))}
    return ca


def certificates(ca, name):
    return {'ca': ca.ca, 'cert': ca.pairs[name][0], 'key': ca.pairs[name][1]}


@pytest.fixture(scope='module')
def tls(ca, tmp_path_factory):
    with TlsCluster(tmp_path_factory.mktemp('tls'), ca) as c:
        c.start_server()
        c.start_daemon('d1')
        c.start_daemon('d2')
        c.wait_daemons(2)
        yield Side(c, certificates(ca, 'ann'))


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
    with h.start_cluster(tmp_path_factory.mktemp('plain'), 2) as c:
        c.wait_daemons(2)
        yield Side(c, {'plain': True})


@pytest.fixture(params=['plain', 'tls'])
def side(request):
    return request.getfixturevalue(request.param)


# ---- jobs and models ----

def test_a_job_from_submit_to_pull(side):
    c, client = side.cluster, side.client
    job = client.submit(side.write(rounds=3))
    rounds = list(client.watch(job))
    assert [r.round for r in rounds] == [1, 2, 3]
    done = client.wait(job)
    assert (done.state, done.round, done.ended) == ('done', 3, True) and done.last == rounds[-1]
    assert done.owner == ('ann' if side.arguments.get('ca') else 'local')
    assert [r.digest for r in rounds] == c.digests(job.job)
    pulled = c.mfl_json('pull', job.job, '-o', os.path.join(c.dir, 'm.safetensors'))
    model = client.pull(job)
    assert model.digest == pulled['digest'] == rounds[-1].digest
    same_as_file(model, pulled['file'])
    assert [r.round for r in client.models(job)] == [m['round'] for m in c.mfl_json('models', job.job)['models']]
    best = client.pull(job, 'best')
    assert best.round.round == done.best.round and best.digest == client.pull(job, done.best.round).digest


def same_as_file(model, path):
    tensors = h.read_safetensors(path)
    assert list(model) == list(tensors)
    for name, (dtype, shape, data) in tensors.items():
        assert dtype == 'F32' and list(model[name].shape) == shape and model[name].tobytes() == data


def test_frozen_and_shared_tensors(plain):
    c, client = plain.cluster, plain.client
    job = client.submit(h.job_doc(model={'layers': LAYERS}))
    done = client.wait(job)
    assert 0 < done.moving < done.params
    pulled = c.mfl_json('pull', job.job, '-o', os.path.join(c.dir, 'shared.safetensors'))
    model = client.pull(job)
    assert model.digest == pulled['digest']
    assert np.shares_memory(model['b.weight'], model['c.weight'])
    same_as_file(model, pulled['file'])


def test_more_tensors_than_one_message_has(plain):
    """600 layers have 1200 tensors; a message of the protocol has at most 1000."""
    c, client = plain.cluster, plain.client
    layers = [{'flatten': {}}, *({'dense': {'name': 'd%d' % i, 'units': 4}} for i in range(600))]
    job = client.submit(h.job_doc(rounds=1, model={'layers': layers}, data={'clients': 1}))
    client.wait(job)
    model = client.pull(job)
    assert len(model) == 1200
    same_as_file(model, c.mfl_json('pull', job.job, '-o', os.path.join(c.dir, 'deep.safetensors'))['file'])


def test_a_model_goes_into_arrays_and_modules(plain):
    client = plain.client
    job = client.submit(h.job_doc(rounds=1))
    client.wait(job)
    model = client.pull(job)
    arrays = {name: np.zeros_like(array) for name, array in model.items()}
    arrays['norm.num_batches_tracked'] = np.zeros(())
    client.pull(job, into=arrays)
    assert all((arrays[name] == model[name]).all() for name in model)
    name = next(iter(model))
    for wrong, said in (({**arrays, name: np.zeros(3)}, 'shape'), ({**arrays, 'more': np.zeros(3)}, 'the model lacks more'),
                        ({}, 'the target lacks ' + name)):
        before = {key: array.copy() for key, array in wrong.items()}
        with pytest.raises(mfl.ConfigError, match=said):
            model.into(wrong)
        assert all((wrong[key] == before[key]).all() for key in wrong)


def test_a_model_goes_into_pytorch(plain):
    torch = mfl_needs.module('torch')
    client = plain.client
    job = client.submit(h.job_doc(model={'layers': LAYERS}, rounds=1))
    client.wait(job)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.head = (torch.nn.Linear(64, n) for n in (64, 64, 64, 4))
            self.c.weight = self.b.weight
    net = Net()
    model = client.pull(job, into=net)
    assert list(model.state_dict()) and all(torch.equal(net.state_dict()[name], t) for name, t in model.state_dict().items())


def test_text_dict_and_path_are_one_job(plain):
    client = plain.client
    doc = h.job_doc(rounds=1, training={'lr': np.float32(0.05), 'momentum': np.float64(0.5)})
    text = 'name: tiny\nseed: 7\nrounds: 1\nmodel: mlp\ndata: {name: tiny, partition: iid, clients: 8}\n' \
           'training: {lr: 0.05000000074505806, momentum: 0.5, epochs: 1, batch: 10}\n'
    digests = {client.wait(client.submit(job)).last.digest for job in (doc, text, plain.cluster.write('path.yaml', text))}
    assert len(digests) == 1
    one, two = client.submit(text, token='mine'), client.submit(text, token='mine')
    assert one.job == two.job and client.submit(text).job != one.job
    with pytest.raises(mfl.Conflict, match=one.job):
        client.submit(doc, token='mine')
    assert client.show(one).text == text
    copy = client.clone(one)
    assert copy.job != one.job and client.wait(copy).last.digest in digests


@pytest.mark.parametrize('job,said', [
    ('name: x\nrounds: 2\nmodel: mlp\ndata: {name: tiny}\ntraining: {lrr: 0.1}\n', r"job:5: training.lrr: .*'lr'"),
    ('name: x\nrounds: many\n', r'job:2: rounds'),
    ({'name': 'x', 'rounds': 2, 'model': 'mlp', 'data': {'name': 'tiny'}, 'training': {'lr': -1}}, r'job:5: training.lr'),
])
def test_a_bad_job_is_refused_with_its_line(side, job, said):
    with pytest.raises(mfl.InvalidRequest, match=said) as e:
        side.client.submit(job)
    path = side.cluster.write('job', job if isinstance(job, str) else h.yaml_of(job))
    assert str(e.value).split(': ', 1)[1] in side.cluster.mfl('submit', path, status=5).stderr


def test_what_no_job_file_can_say(plain):
    for job, said in (({'training': {'lr': float('nan')}}, 'training.lr'), ({'data': object()}, 'data'), ('/no/such/job.yaml', 'No such file')):
        with pytest.raises(mfl.ConfigError, match=said):
            plain.client.submit(job)


# ---- watching ----

def test_a_watch_survives_kill_9_of_the_server(side):
    c, client = side.cluster, side.client
    job = client.submit(h.job_doc(rounds=h.ENDLESS))
    rounds, restarted = [], 0
    with pytest.raises(mfl.JobStopped) as e:
        for r in client.watch(job):
            rounds.append(r)
            if len(rounds) in (2, 5):
                c.server.kill()
                c.start_server()
                restarted += 1
            if len(rounds) == 8:
                client.stop(job)
    assert e.value.job.state == 'stopped' and restarted == 2
    assert [r.round for r in rounds] == list(range(1, len(rounds) + 1))
    assert [r.digest for r in rounds] == c.digests(job.job)
    c.wait_daemons(2)


def test_a_call_waits_for_the_server(plain):
    c = plain.cluster
    c.server.kill()
    with pytest.raises(mfl.ConnectionLost, match=r'refused.*\$MFL_SERVER'):
        mfl.Client(c.address, plain=True, patience=0).list()
    starter = threading.Timer(0.2, c.start_server)
    starter.start()
    assert plain.client.list()
    starter.join()
    c.wait_daemons(2)


def test_a_job_that_fails(plain):
    client = plain.client
    job = client.submit(h.job_doc(data={'clients': 401}))
    with pytest.raises(mfl.JobFailed) as e:
        client.wait(job)
    assert '401' in e.value.job.reason and e.value.job.reason in str(e.value)
    with pytest.raises(mfl.JobFailed):
        list(client.watch(job))


def test_100_watches_at_once(side):
    client = side.client
    job = client.submit(h.job_doc(rounds=5))
    seen = [None] * 100

    def watch(i):
        seen[i] = [r.digest for r in client.watch(job)]
    threads = [threading.Thread(target=watch, args=(i,)) for i in range(len(seen))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert seen == [side.cluster.digests(job.job)] * len(seen)


def test_events_logs_and_limits(plain):
    client = plain.client
    job = client.submit(h.job_doc(rounds=h.ENDLESS))
    kinds = set()
    for event in client.events(job, crew=True):
        kinds |= {event.kind} | ({'crew'} if event.crew else set())
        if {'round', 'state', 'progress', 'crew'} <= kinds:
            break
    with pytest.raises(mfl.WaitTimeout):
        client.wait(job, timeout=0.2)
    client.stop(job, after_round=True)
    lines = list(client.logs(job, follow=True))
    assert [line.seq for line in lines] == sorted({line.seq for line in lines})
    with plain.cluster.operator() as o:
        assert [line.text for line in client.logs(job)] == o.logs(job.job)
    assert client.delete(job) and job.job not in [j.job for j in client.list()]
    for call in (client.show, client.wait, client.pull, client.stop):
        with pytest.raises(mfl.NotFound, match=job.job):
            call(job)


def test_the_archive(plain, monkeypatch):
    client = plain.client
    monkeypatch.setattr(mfl.client, '_PAGE_ROWS', 1)  # a list comes in pages
    job = client.submit(h.job_doc(name='old', rounds=1))
    with pytest.raises(mfl.Conflict, match='has not ended'):
        client.archive(client.submit(h.job_doc(name='archive-waits', data={'name': 'elsewhere'})))
    client.stop('archive-waits')
    client.wait(job)
    assert client.archive(job) == 'archived'
    assert job.job not in [j.job for j in client.list()] and [j.job for j in client.list(name='old', archived=True)] == [job.job]
    shown = client.job('old')  # by its name, too
    assert shown.job == job.job and shown.archived_unix_ms == plain.cluster.mfl_json('show', job.job)['job']['archived_unix_ms']
    assert client.pull(job).digest == shown.last.digest and len(client.list(name='old', archived=None)) == 1
    assert client.archive(job, undo=True) == 'no longer archived' and job.job in [j.job for j in client.list()]


def test_replay_and_forget(plain):
    client = plain.client
    job = client.submit(h.job_doc(name='again', rounds=3))
    client.wait(job)
    token = 'replayed by a test'.replace(' ', '-')
    done = client.replay(job, token=token, timeout=60)
    assert (done.replays, done.rounds, done.same, done.differs) == (job.job, 3, True, None) and done.job != job.job
    assert client.replay(job, token=token) == done
    assert [r.digest for r in client.show(done.job).rounds] == [r.digest for r in client.show(job).rounds]
    new = client.forget(job, 2)
    assert 'without' in client.show(client.wait(new)).text and new.job != job.job
    with pytest.raises(mfl.NotFound):
        client.job(job)
    with pytest.raises(mfl.NotFound):
        client.forget('j-999999', 0)


def test_a_lost_answer_to_forget(plain):
    """The job has gone when the client asks again, and the answer is the job that took its place."""
    job = plain.client.wait(plain.client.submit(h.job_doc(name='lost', rounds=1)))

    def lose(tap, up, kind, body):
        return False if kind == 'submitted' and len(tap.bodies('submitted')) == 1 else None
    tap = Tap(plain.cluster.address, lose)
    try:
        new = mfl.connect(tap.address, plain=True).forget(job, 1)
        answers = tap.bodies('submitted')
    finally:
        tap.close()
    assert [a['job'] for a in answers] == [new.job, new.job] and [bool(a['existed']) for a in answers] == [False, True]
    assert [j.job for j in plain.client.list(name='lost')] == [new.job] != [job.job]
    plain.client.wait(new)


def test_answers_and_scores_of_the_program(side, tmp_path):
    """The bits of `mfl predict`, of a job and of a file, and the numbers of `mfl evaluate`."""
    client, program = side.client, os.path.join(h.BUILD, 'cli', 'mfl')
    job = client.submit(h.job_doc(name='answers', rounds=2))
    client.wait(job)
    rng = np.random.default_rng(5)
    x, y = rng.integers(0, 256, size=(9, 1, 8, 8)).astype('uint8'), (np.arange(9) % 4).astype('int64')
    np.save(tmp_path / 'x.npy', x)
    np.save(tmp_path / 'y.npy', y)
    path = str(tmp_path / 'model.safetensors')
    side.cluster.mfl('pull', job.job, '-o', path)
    h.mfl('predict', path, '--data', str(tmp_path / 'x.npy'), '--format', 'npy', '-o', str(tmp_path / 'answers.npy'))
    expected = np.load(tmp_path / 'answers.npy')
    for model, data in ((job, x), (job.job, 'npy:%s' % (tmp_path / 'x.npy')), (path, x)):
        assert client.predict(model, data, program=program).tobytes() == expected.tobytes()
    assert mfl.Client('127.0.0.1:1', plain=True).predict(path, x, program=program).tobytes() == expected.tobytes()  # a file needs no server
    assert client.predict(job, x, logits=True, round=1, program=program).shape == expected.shape
    scores = json.loads(h.mfl('evaluate', path, '--data', 'npy:%s,train_y=%s' % (tmp_path / 'x.npy', tmp_path / 'y.npy'), '--json').stdout)
    assert client.evaluate(job, x, y, program=program) == scores and scores['samples'] == 9
    for call, words in ((lambda: client.predict(job, x[:, :, :4], program=program), 'mfl: '), (lambda: client.predict(job, x, program='/nowhere/mfl'), 'install'),
                        (lambda: client.evaluate(job, 'csv:x.csv', y, program=program), 'labels=')):
        with pytest.raises(mfl.ConfigError, match=words):
            call()


# ---- one vocabulary ----

def as_json(record):
    """A record as `mfl --json` prints it."""
    out = dataclasses.asdict(record)
    for name in ('last', 'best', 'evaluated'):
        if out.get(name):
            out[name] = spread(out[name])
    return spread(out) if 'measures' in out else out


def spread(round_):
    known = round_.pop('measures')
    return {**round_, **{name: known.get(name) for name in h.measures()}}


def test_the_names_are_those_of_json(plain):
    c, client = plain.cluster, plain.client
    job = client.submit(h.job_doc(rounds=2, evaluation={'on': 'clients', 'detailed': True}))
    client.wait(job)
    shown = c.mfl_json('show', job.job)
    detail = client.show(job)
    assert as_json(detail.job) == shown['job'] and detail.text == shown['text']
    assert [as_json(r) for r in detail.rounds] == shown['rounds'] and any(r.measures for r in detail.rounds)
    assert [dataclasses.asdict(n) for n in detail.nodes] == shown['nodes']
    assert dataclasses.asdict(detail.scores) == shown['scores'] and detail.scores.confusion
    assert set(mfl.records.MEASURES) == set(h.measures())
    changing = {'activity', 'note', 'items_part', 'samples_per_second', 'clients_per_second'}
    listed = sorted(c.mfl_json('daemons')['daemons'], key=lambda d: d['name'])
    for ours, theirs in zip(client.daemons(), listed):
        ours = json.loads(json.dumps(dataclasses.asdict(ours)))
        assert set(ours) == set(theirs)
        assert {k: v for k, v in ours.items() if k not in changing} == {k: v for k, v in theirs.items() if k not in changing}
        assert not ours['activity'] or set(ours['activity']) <= set(theirs['activity'] or ours['activity'])


def test_jobs_are_found_by_id_name_and_last(plain):
    client = plain.client
    job = client.submit(h.job_doc(rounds=1, name='alone'))
    client.wait(job)
    assert client.job('alone').job == client.job('last').job == client.job(job.job).job == job.job
    assert [j.job for j in client.list(name='alone')] == [job.job] and not client.list(state='waiting', name='alone')
    assert [j.job for j in client.list()] == sorted(j['job'] for j in plain.cluster.mfl_json('list')['jobs'])
    with pytest.raises(mfl.Conflict, match="jobs have the name 'tiny'"):
        client.submit(h.job_doc(rounds=1))
        client.submit(h.job_doc(rounds=1))
        client.job('tiny')
    with pytest.raises(mfl.NotFound, match='nobody'):
        client.job('nobody')


# ---- daemons ----

def test_drain_and_access(side):
    client = side.client
    assert sorted(d.name for d in client.daemons()) == ['d1', 'd2']
    client.drain('d1', wait=True)
    assert [d.state for d in client.daemons() if d.name == 'd1'] == ['drained']
    client.drain('d1', undo=True)
    with pytest.raises(mfl.ConfigError):
        client.drain()
    with pytest.raises(mfl.NotFound, match='d9'):
        client.drain('d9')
    client.disable('d2', reason='maintenance', seconds=3600)
    rule, = client.rules()
    assert (rule.pattern, rule.rule, rule.reason) == ('d2', 'disable', 'maintenance') and rule.until_ms > rule.time_ms
    client.enable('d2')
    client.allow('d*')
    assert [r.rule for r in client.rules()] == ['allow']
    client.disallow('d*')
    assert not client.rules()
    with pytest.raises(mfl.NotFound):
        client.enable('d2')
    actions = [(e.action, e.result) for e in client.audit(20)]
    assert ('disable', 'done') in actions and ('drain', 'done') in actions
    side.cluster.wait_daemons(2)


# ---- TLS ----

def test_certificates_that_are_refused(tls, plain, ca, tmp_path, monkeypatch):
    address = tls.cluster.address
    other = mfl_certs.Ca(tmp_path / 'other', 'Other CA')
    stranger = other.issue('ann', ['operator'])
    with pytest.raises(mfl.ConnectionLost, match="the server's certificate is refused"):
        mfl.connect(address, ca=other.ca, cert=stranger[0], key=stranger[1])
    with pytest.raises(mfl.ConnectionLost, match='TLS: .*unknown ca'):
        mfl.connect(address, ca=ca.ca, cert=stranger[0], key=stranger[1])
    with pytest.raises(mfl.ConnectionRefused, match='no role'):
        mfl.connect(address, **certificates(ca, 'nobody'))
    with pytest.raises(mfl.ConnectionRefused, match='OU=operator'):
        mfl.connect(address, **certificates(ca, 'd1'))
    with pytest.raises(mfl.MflError):
        mfl.connect(address, plain=True)
    with pytest.raises(mfl.ConnectionLost, match='TLS'):
        mfl.connect(plain.cluster.address, **certificates(ca, 'ann'))
    with pytest.raises(mfl.ConfigError, match='needs key='):
        mfl.connect(address, ca=ca.ca, cert=ca.pairs['ann'][0])
    with pytest.raises(mfl.ConfigError, match='certificate and its key'):
        mfl.connect(address, ca=ca.ca, cert=ca.pairs['ann'][0], key=ca.pairs['vic'][1])
    open_key = tmp_path / 'open.key'
    open_key.write_bytes(open(ca.pairs['ann'][1], 'rb').read())
    open_key.chmod(0o644)
    with pytest.raises(mfl.ConfigError, match='chmod 600'):
        mfl.connect(address, ca=ca.ca, cert=ca.pairs['ann'][0], key=open_key)
    for name, path in zip(('MFL_TLS_CA', 'MFL_TLS_CERT', 'MFL_TLS_KEY', 'MFL_SERVER'), (ca.ca, *ca.pairs['ann'], address)):
        monkeypatch.setenv(name, path)
    assert mfl.connect().daemons()


def test_certificates_are_found_in_the_home(tls, ca, tmp_path, monkeypatch):
    for name in ('MFL_TLS_CA', 'MFL_TLS_CERT', 'MFL_TLS_KEY'):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / 'mfl').mkdir()
    for name, path in zip(('ca', 'cert', 'key'), (ca.ca, *ca.pairs['vic'])):
        os.symlink(path, tmp_path / 'mfl' / (name + '.pem'))
    monkeypatch.setenv('XDG_CONFIG_HOME', str(tmp_path))
    assert 'TLS' in repr(mfl.connect(tls.cluster.address))
    with pytest.raises(mfl.MflError):
        mfl.connect(tls.cluster.address, plain=True)


def test_a_viewer_looks_and_changes_nothing(tls, ca):
    job = tls.client.submit(h.job_doc(rounds=1))
    tls.client.wait(job)
    vic = mfl.connect(tls.cluster.address, **certificates(ca, 'vic'))
    assert vic.pull(job).digest == vic.job(job).last.digest and vic.daemons() and list(vic.logs(job))
    for call in (lambda: vic.submit(h.job_doc()), lambda: vic.stop(job), lambda: vic.delete(job), lambda: vic.clone(job),
                 lambda: vic.archive(job), lambda: vic.forget(job, 1), lambda: vic.replay(job), lambda: vic.register(job, 'm'),
                 lambda: vic.alias('m@a'), lambda: vic.promote('m@a'), lambda: vic.rollback('m@a'), lambda: vic.unregister('m@1'),
                 lambda: vic.willing(h.job_doc()), lambda: vic.validate(job), lambda: vic.predict_at(job, 'd1', 'tiny'), vic.validations,
                 lambda: vic.drain('d1'), vic.audit, lambda: vic.disable('d1')):
        with pytest.raises(mfl.Denied, match="'vic' may only look.*OU="):
            call()


def test_sites_say_whether_they_take_a_job(tmp_path):
    with h.Cluster(tmp_path) as c:
        c.start_server()
        policy = c.write('site.yaml', h.yaml_of({'policy': {'strategies_refused': ['median'], 'dir': str(tmp_path / 'site.d')}}))
        c.start_daemon('site', more=['--config', policy])
        c.start_daemon('free')
        c.wait_daemons(2)
        client = mfl.connect(c.address)
        said = {s.site: s for s in client.willing(h.job_doc(aggregation={'strategy': 'median'}))}
        assert said['site'].status == 'refused' and 'refuses the strategy median' in said['site'].reason
        assert said['free'].status == 'answered' and not said['free'].reason
        assert {s.status for s in client.willing(h.job_doc())} == {'answered'}
        with pytest.raises(mfl.InvalidRequest, match='rounds'):
            client.willing('rounds: many\n')
        with pytest.raises(mfl.NotFound):
            client.willing(h.job_doc(data={'name': 'nowhere'}))


# ---- servers that lie ----

class Liar(threading.Thread):
    """Greets, and answers one request on each connection with frames of the test's making: the first with answers[0], and so on."""

    def __init__(self, *answers):
        super().__init__(daemon=True)
        self.answers, self.listener = answers, socket.create_server(('127.0.0.1', 0))
        self.address = '127.0.0.1:%d' % self.listener.getsockname()[1]
        self.start()

    def run(self):
        with self.listener:
            for frames in self.answers:
                self._answer(frames)

    def _answer(self, frames):
        s, _ = self.listener.accept()
        with s:
            s.recv(1 << 16)
            s.sendall(w.frame('welcome', {'protocol': 8, 'software': 'liar', 'heartbeat_ms': 500, 'dead_ms': 1000}))
            s.recv(1 << 16)
            try:
                for frame in frames:
                    s.sendall(frame)
                while s.recv(1 << 16):
                    pass
            except OSError:  # the client has left in the middle
                pass


FLOATS = np.arange(6, dtype='<f4').tobytes()
TENSORS = [{'name': 'a', 'shape': [2, 2], 'offset': 0}, {'name': 'b', 'shape': [2], 'offset': 4}]


def lies(tensors=None, digest=None, n=6, offset=0, **header):
    begin = {'round': {'round': 1, 'digest': digest or bytes.fromhex(h.hashlib.sha256(FLOATS).hexdigest())}, 'n_params': n, 'text': 'x\n',
             'input': [1], 'classes': 2, 'n_tensors': len(TENSORS)}
    return [w.frame('pull_begin', begin, 1), w.frame('model_tensors', {'tensors': tensors or TENSORS}, 1),
            w.frame('params', {'job': 'j-000001', 'digest': b'x' * 32, 'offset': offset, 'total': n}, 1, FLOATS, **header)]


@pytest.mark.parametrize('frames,said', [
    (lies(payload_crc=1), 'CRC-32C is wrong'),
    (lies(envelope_crc=1), 'CRC-32C is wrong'),
    (lies(digest=b'y' * 32), 'SHA-256'),
    (lies(offset=1), 'out of order'),
    (lies(n=5), 'out of order'),
    (lies(tensors=[{'name': 'a', 'shape': [7], 'offset': 0}, {'name': 'b', 'shape': [2], 'offset': 4}]), 'tensor'),
    (lies(tensors=[{'name': 'a', 'shape': [4], 'offset': 0}, {'name': 'a', 'shape': [2], 'offset': 4}]), 'tensor'),
    ([b'HTTP/1.1 400 Bad Request\r\n\r\n' * 3], 'no frame of mfl'),
    ([w.frame('done', {'text': 'x'}, 1)], 'unexpected answer'),
    ([w.frame('failure', {'code': 3, 'text': 'the words of the server'}, 1)], 'the words of the server'),
])
def test_a_server_that_lies(frames, said):
    client = mfl.Client(Liar(frames).address, plain=True, patience=0)
    with pytest.raises(mfl.MflError, match=said):
        client.pull('j-000001')


def page(kind, rows, key, names, more=True):
    return [w.frame(kind, {rows: [{key: name} for name in names], 'more': more}, 1)]


@pytest.mark.parametrize('second', [['b2'], ['a1', 'b1'], []])
def test_a_list_that_never_ends(second):
    """The same page again, one that goes back, and an empty one, from a server that always has more."""
    client = mfl.Client(Liar(page('daemon_list', 'daemons', 'name', ['b1', 'b2']), page('daemon_list', 'daemons', 'name', second)).address,
                        plain=True, patience=0)
    with pytest.raises(mfl.ProtocolError, match="goes on, but sends nothing after 'b2'"):
        client.daemons()
    jobs = {'a1': 'j-000001', 'b1': 'j-999999', 'b2': 'j-1000000'}
    client = mfl.Client(Liar(page('job_list', 'jobs', 'job', [jobs['b1'], jobs['b2']]),
                             page('job_list', 'jobs', 'job', [jobs[name] for name in second])).address, plain=True, patience=0)
    with pytest.raises(mfl.ProtocolError, match="goes on, but sends nothing after 'j-1000000'"):
        client.list()


def test_lists_of_several_pages():
    client = mfl.Client(Liar(page('daemon_list', 'daemons', 'name', ['b1', 'b2']), page('daemon_list', 'daemons', 'name', ['c', 'd'], False)).address,
                        plain=True, patience=0)
    assert [d.name for d in client.daemons()] == ['b1', 'b2', 'c', 'd']


def test_the_truth_and_silence():
    model = mfl.Client(Liar(lies()).address, plain=True).pull('j-000001')
    assert model['a'].tolist() == [[0, 1], [2, 3]] and model['b'].tolist() == [4, 5]
    with pytest.raises(mfl.ConnectionLost, match='no message for 1 s'):
        mfl.Client(Liar([]).address, plain=True, patience=0).pull('j-000001')


@pytest.mark.parametrize('n', [0, 1, 3, 1023, 1024, 2047, 2048, 2049, 5000, 33333])
def test_crc32c(n):
    from mfl._crc32c import crc32c
    data = h.seeded('crc %d' % n).randbytes(n)
    assert crc32c(data) == w.crc32c(data)


# ---- the package ----

def test_the_wheel(tmp_path):
    """`./dev package wheel` in effect: what pip builds of the tree, imported from the file itself."""
    for name in ('pip', 'setuptools', 'wheel'):
        mfl_needs.installed(name)
    top = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
    subprocess.run([os.path.join(top, 'tools', 'package.sh'), 'wheel', '--out', str(tmp_path)], check=True, timeout=300)
    wheel, = [n for n in os.listdir(tmp_path) if n.endswith('-py3-none-any.whl')]
    code = 'import mfl, mfl.client; from mfl import _protocol; print(mfl.__version__, len(_protocol.message_class("Envelope").DESCRIPTOR.fields))'
    env = dict(os.environ, PYTHONPATH=str(tmp_path / wheel))
    said = subprocess.run([sys.executable, '-c', code], env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    assert wheel.startswith('mfl-%s-' % said[0]) and said[0] == mfl.__version__ and int(said[1]) > 50


def test_types():
    mfl_needs.installed('mypy')
    done = subprocess.run([sys.executable, '-m', 'mypy', '--config-file', os.path.join(os.path.dirname(__file__), '../../python/pyproject.toml'),
                           '-p', 'mfl'], cwd=os.path.join(h.BUILD, 'python'), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout


# ---- the notebook ----

NOTEBOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'examples', 'compare.ipynb')


def test_the_cells_of_the_notebook(plain, monkeypatch, capsys):
    """In order, without Jupyter and without windows."""
    monkeypatch.setenv('MFL_SERVER', plain.cluster.address)
    monkeypatch.setenv('MPLBACKEND', 'agg')
    monkeypatch.setenv('XDG_CONFIG_HOME', '/nonexistent')
    with open(NOTEBOOK, encoding='utf-8') as f:
        cells = [''.join(c['source']) for c in json.load(f)['cells'] if c['cell_type'] == 'code']
    names = {}
    for i, cell in enumerate(cells):
        exec(compile(cell, 'cell %d' % i, 'exec'), names)  # pylint: disable=exec-used
    said = capsys.readouterr().out
    assert [len(rs) for rs in names['rounds'].values()] == [6, 6] and said.count('accuracy') >= 14
    assert names['models']['fedavg'].digest != names['models']['fedavgm'].digest


def test_the_notebook_in_jupyter(plain, monkeypatch):
    nbformat, nbclient = mfl_needs.module('nbformat'), mfl_needs.module('nbclient')
    mfl_needs.installed('ipykernel')
    monkeypatch.setenv('MFL_SERVER', plain.cluster.address)
    monkeypatch.setenv('PYTHONPATH', os.path.join(h.BUILD, 'python'))
    monkeypatch.setenv('MPLBACKEND', 'module://matplotlib_inline.backend_inline')
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name='python3').execute()
    plots = [o for c in notebook.cells if c.cell_type == 'code' for o in c.outputs if 'image/png' in o.get('data', {})]
    try:
        import matplotlib  # noqa: F401  pylint: disable=import-outside-toplevel,unused-import
    except ImportError:
        return
    assert len(plots) == 1


def test_the_page(plain, monkeypatch, tmp_path):
    """The blocks of docs/python.md are one program."""
    with open(os.path.join(os.path.dirname(NOTEBOOK), '..', 'docs', 'python.md'), encoding='utf-8') as f:
        blocks = re.findall(r'```python\n(.*?)```', f.read(), re.S)
    (tmp_path / 'job.yaml').write_text(h.job_text(), encoding='utf-8')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('MFL_SERVER', plain.cluster.address)
    monkeypatch.setenv('XDG_CONFIG_HOME', '/nonexistent')
    names = {}
    for i, block in enumerate(blocks):
        exec(compile(block, 'block %d' % i, 'exec'), names)  # pylint: disable=exec-used
    assert len(blocks) == 6 and np.load('model.npz').files == list(names['model'])
    assert all((names['arrays'][name] == array).all() for name, array in names['model'].items())
