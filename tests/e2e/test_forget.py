# SPDX-License-Identifier: Apache-2.0
"""Exact unlearning: `mfl forget` gives the models of a job that never had the client, whoever trains and whatever is killed; tombstones in
each kind of selection; and what makes no sense."""
import os

import pytest

import mfl_certs
import mfl_harness as h
from mfl_tls import TlsCluster

JOB = {'model': 'mlp', 'rounds': 6, 'data': {'clients': 9}, 'selection': {'clients': 2}, 'debug': {'deltas': '64MiB'}}
KINDS = {
    'fedavg': {},
    'scaffold': {'aggregation': {'strategy': 'scaffold'}, 'debug': None},
    'ditto, on clients': {'aggregation': {'strategy': 'ditto'}, 'evaluation': {'on': 'clients', 'split': 0.2}, 'debug': None},
    'median, virtual time': {'time': 'virtual', 'trace': {'sigma': 1}, 'selection': {'clients': 3}, 'aggregation': {'strategy': 'median', 'on_few': 'mean'},
                             'debug': None},
    'oort, top-k': {'time': 'virtual', 'trace': {'sigma': 1}, 'selection': {'kind': 'oort', 'clients': 3}, 'compression': {'up': {'top_k': 0.1}}, 'debug': None},
}


def turns_of(c, job):
    """The clients of each round, from what was kept of them."""
    turns = {}
    data = open(os.path.join(c.state_dir, 'jobs', job, 'deltas.f32'), 'rb').read()
    at = 0
    while at < len(data):
        turns.setdefault(int.from_bytes(data[at:at + 4], 'little'), set()).add(int.from_bytes(data[at + 8:at + 16], 'little'))
        at += 32 + 4 * int.from_bytes(data[at + 24:at + 32], 'little')
    return turns


@pytest.mark.parametrize('name', KINDS)
def test_the_models_of_a_job_that_never_had_the_client(cluster, name):
    c = cluster(3)
    c.wait_daemons(3)
    job_of = {**JOB, **KINDS[name]}
    job, digests = c.run_job(60, **job_of)
    first, client = 0, 4
    if name == 'fedavg':
        turns = turns_of(c, job)
        client = sorted(turns[4] - turns[1] - turns[2] - turns[3])[0]
        first = 4
    before = c.mfl_json('show', job)['rounds']
    told = c.mfl_json('forget', job, str(client))
    assert told['replaces'] == job and told['client'] == client
    new = told['job']
    assert h.mfl('show', job, server=c.address, status=None).returncode != 0 and not os.path.exists(os.path.join(c.state_dir, 'jobs', job))
    c.wait_info(new, lambda i: i['round'] >= 2, 30, 'round 2')
    c.server.kill()
    c.start_server()
    c.daemons['d1'].kill()
    c.wait_job(new, 60)
    rest = c.digests(new)
    rounds = c.mfl_json('show', new)['rounds']
    same = [a['committed_unix_ms'] == b['committed_unix_ms'] for a, b in zip(before, rounds)]
    assert same == [first > r and name == 'fedavg' for r in range(1, 7)]  # it goes on after the checkpoint before the client's first turn
    if first:
        assert rest[:first - 1] == digests[:first - 1] and rest[first - 1] != digests[first - 1]
        assert all(client not in clients for clients in turns_of(c, new).values())
    again, fresh = c.run_job(60, **{**job_of, 'selection': {**job_of['selection'], 'without': [client]}})
    assert rest == fresh
    audit = [a for a in c.mfl_json('audit')['entries'] if a['action'] == 'forget']
    assert [(a['object'], a['text'], a['result']) for a in audit] == [(job, 'client %d' % client, 'done')]
    other = c.mfl_json('forget', again, '0')['job']
    c.wait_job(other, 60)
    with c.operator() as o:
        assert '[%d, 0]' % client in o.request('show_job', {'job': other})['text']


def test_a_request_is_repeated(cluster):
    """With its token, the answer is the same job, also from a server that was killed meanwhile; everything else is refused."""
    c = cluster(1)
    c.wait_daemons(1)
    job = c.run_job(**{**JOB, 'rounds': 2})[0]
    other = c.run_job(**{**JOB, 'rounds': 1})[0]
    first = c.mfl_json('forget', job, '4', '--token', 'f')
    assert first['existed'] is False
    c.server.kill()
    c.start_server()
    assert c.mfl_json('forget', job, '4', '--token', 'f') == {**first, 'existed': True}
    assert '(was done before with this token)' in c.mfl('forget', job, '4', '--token', 'f').stdout
    for argv, status, text in (([job, '5', '--token', 'f'], 6, "the token 'f' was already used for job " + first['job']),
                               ([other, '4', '--token', 'f'], 6, "the token 'f' was already used"), (['j-000099', '4', '--token', 'f'], 6, 'already used'),
                               ([job, '4', '--token', 'g'], 4, "there is no job '%s'" % job), ([job, '4'], 4, "there is no job '%s'" % job)):
        assert text in h.mfl('forget', *argv, server=c.address, status=status).stderr
    assert [j['job'] for j in c.mfl_json('list')['jobs']] == [other, first['job']]
    c.wait_job(first['job'], 60)
    c.mfl('delete', first['job'])  # and what took its place may go, too
    assert 'there is no job' in h.mfl('forget', job, '4', '--token', 'f', server=c.address, status=4).stderr


def test_the_token_is_that_of_who_asks(tmp_path):
    """An administrator may forget a client of another's job, and repeat it; the new job is its owner's."""
    ca = mfl_certs.Ca(tmp_path / 'ca')
    ca.server()
    ca.pairs = {n: ca.issue(n, roles) for n, roles in {'ann': ['operator'], 'bob': ['operator'], 'root': ['admin'], 'd1': ['daemon']}.items()}
    with TlsCluster(tmp_path / 'c', ca) as c:
        c.start_server()
        c.start_daemon('d1')
        c.wait_daemons(1)
        job = c.submit('f', **{**JOB, 'rounds': 1})  # whose token 'f' is another one
        c.wait_job(job)
        first = c.mfl_json('forget', job, '4', '--token', 'f', name='root')
        assert c.mfl_json('forget', job, '4', '--token', 'f', name='root') == {**first, 'existed': True}
        for name in ('bob', 'ann'):
            assert 'there is no job' in c.mfl('forget', job, '4', '--token', 'f', name=name, status=4).stderr
        assert [j['owner'] for j in c.mfl_json('list')['jobs']] == ['ann']


def test_no_checkpoint_before_the_first_turn(cluster):
    """It begins with round 1, as the file alone decides."""
    c = cluster(1)
    c.wait_daemons(1)
    job, digests = c.run_job(**{**JOB, 'checkpoints': {'keep': 0}, 'evaluation': {'every': 0}})
    client = sorted(turns_of(c, job)[2] - turns_of(c, job)[1])[0]
    before = c.mfl_json('show', job)['rounds']
    new = c.mfl_json('forget', job, str(client))['job']
    c.wait_job(new, 60)
    assert before[0]['committed_unix_ms'] != c.mfl_json('show', new)['rounds'][0]['committed_unix_ms'] and c.digests(new)[0] == digests[0]


def test_rounds_of_nobody_change_nothing(cluster):
    c = cluster(1)
    c.wait_daemons(1)
    job, digests = c.run_job(model='logistic', rounds=8, data={'clients': 2}, selection={'clients': 1, 'without': [0]})
    same = sum(a == b for a, b in zip(digests, digests[1:]))
    assert 0 < same < 7 and len(digests) == 8


@pytest.mark.parametrize('more, expected', [
    ({'selection': {'without': [9]}}, 'selection.without: there is no client 9: the clients are 0 to 8'),
    ({'selection': {'without': [3, 3]}}, 'selection.without: client 3 is there twice'),
    ({'selection': {'without': []}}, "selection.without: expected a list of clients' numbers"),
    ({'selection': {'without': list(range(9))}}, 'selection.without: no client is left'),
    ({'data': {'partition': 'local', 'clients': None}, 'selection': {'without': [1]}}, 'selection.without: names clients by their numbers'),
    ({'time': 'virtual', 'trace': {'sigma': 1}, 'aggregation': {'strategy': 'fedasync'}, 'selection': {'without': [1]}}, 'selection.without: is for rounds'),
    ({'secure_sum': {'bits': 64}, 'selection': {'without': [1]}}, 'selection.without: is not supported with privacy and secure_sum'),
])
def test_what_makes_no_sense_is_refused(tmp_path, more, expected):
    path = tmp_path / 'job.yaml'
    path.write_text(h.job_text(**{'model': 'logistic', 'data': {'clients': 9}, **more}))
    assert expected in h.mfl('check', str(path), status=5).stderr


def test_a_running_job_is_stopped_first(cluster):
    c = cluster(1)
    c.wait_daemons(1)
    job = c.begin(model='logistic', data={'clients': 3})
    assert 'still running; stop it first' in h.mfl('forget', job, '1', server=c.address, status=None).stderr
    c.stop_job(job)
    assert 'there is no client 7' in h.mfl('forget', job, '7', server=c.address, status=None).stderr
    assert "'x' is not a client's number" in h.mfl('forget', job, 'x', server=c.address, status=2).stderr
    assert c.info(job)['state'] == 'stopped'


def test_a_registered_model_keeps_its_job(cluster):
    """What is refused leaves nothing: neither a job that begins at the server's next start, nor a folder."""
    c = cluster(1)
    c.wait_daemons(1)
    job, _ = c.run_job(model='logistic', data={'clients': 3})
    c.mfl('model', 'register', job, '--as', 'kept')
    assert 'has the registered model kept@1' in h.mfl('forget', job, '1', '--token', 'f', server=c.address, status=6).stderr
    assert os.listdir(os.path.join(c.state_dir, 'jobs')) == [job]
    c.server.kill()
    c.start_server()
    assert [j['job'] for j in c.mfl_json('list')['jobs']] == [job]
    c.mfl('model', 'remove', 'kept@1')
    new = c.mfl_json('forget', job, '1', '--token', 'f')['job']
    c.wait_job(new, 60)
    assert [j['job'] for j in c.mfl_json('list')['jobs']] == [new]


def test_sites_are_not_numbered(cluster):
    c = cluster(1)
    c.wait_daemons(1)
    job, _ = c.run_job(model='logistic', data={'partition': 'local', 'clients': None})
    assert 'its clients are sites (partition local)' in h.mfl('forget', job, '0', server=c.address, status=5).stderr
    assert c.info(job)['state'] == 'done'
