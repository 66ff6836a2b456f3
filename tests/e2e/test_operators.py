# SPDX-License-Identifier: Apache-2.0
"""What people do with `mfl`: every command against a real server, its exit statuses, its JSON, and how soon daemons are free."""
import json
import os
import sqlite3
import time

import pytest

import mfl_harness as h
import mfl_pages
import mfl_state
import mfl_wire

# A round of this takes minutes: only what ends it early lets a test pass.
LONG = {'name': 'long', 'rounds': 100, 'training': {'steps': 200000, 'epochs': None}}


@pytest.fixture(scope='module')
def one(shared_cluster):
    c = shared_cluster(1)
    c.wait_daemons(1)
    return c


@pytest.fixture(scope='module')
def done_job(one):
    """(cluster, id of a finished job of 5 rounds, digests of its rounds)."""
    job, digests = one.run_job(name='finished', rounds=5, checkpoints={'keep': 1})
    return one, job, digests


def state_of(c, name):
    with c.operator() as o:
        return next(d['state'] for d in o.daemons() if d['name'] == name)


def wait_training(c, job, daemons=1):
    c.wait_info(job, lambda i: i['phase'] == 'train' and i['daemons'] >= daemons, 15, job + ' to train')


# ---- submit, wait ----

def test_submit_watch_wait(one):
    path = one.write('ok.yaml', h.job_text(name='submitted'))
    done = one.mfl('submit', path)
    job = next(w for w in done.stdout.split() if w.startswith('j-'))
    one.mfl('wait', job, status=0, timeout=30)
    one.mfl('watch', job, timeout=30)
    assert 'submitted' in one.mfl('list').stdout
    assert 'submitted' in one.mfl('show', job).stdout
    assert one.info(job)['round'] == 3
    watched = one.mfl('submit', path, '--watch', timeout=30)
    assert watched.returncode == 0


def test_wait_statuses(cluster):
    c = cluster(1)
    job = c.submit(rounds=1)
    c.mfl('wait', job, status=0, timeout=30)
    stopped = c.submit(**LONG)
    c.mfl('stop', stopped)
    assert 'stopped' in c.mfl('wait', stopped, status=1, timeout=30).stderr
    # Every step is larger than an update may be: each client is rejected, and the retries are spent.
    failed = c.submit(name='rejected', aggregation={'delta_max': 1e-6}, limits={'retries': 1})
    done = c.mfl('wait', failed, status=1, timeout=30)
    assert 'failed' in done.stdout + done.stderr
    c.mfl('wait', 'j-999999', status=4)
    c.mfl('wait', status=2)
    c.mfl('wait', job, '--no-such-option', status=2)
    c.mfl('no-such-command', status=2)
    bad = c.write('bad.yaml', h.job_text(name='bad') + 'learning: 3\n')
    assert 'learning' in c.mfl('submit', bad, status=5).stderr
    # Nobody listens on the port any more once the cluster is down.
    c.close()
    c.mfl('wait', job, '--timeout', 1, status=3, timeout=30)
    c.mfl('list', '--timeout', 1, status=None, timeout=30)
    h.mfl('list', server='127.0.0.1:1', status=3)


def test_token_makes_one_job(one):
    path = one.write('token.yaml', h.job_text(name='token', rounds=1))
    first = one.mfl_json('submit', path, '--token', 'once')
    again = one.mfl_json('submit', path, '--token', 'once')
    other = one.mfl_json('submit', path, '--token', 'twice')
    assert first['job'] == again['job'] != other['job']
    # Another job under the same token is refused, by the name of the job that has it; so is a clone.
    changed = one.write('changed.yaml', h.job_text(name='token', rounds=2))
    for said in (one.mfl('submit', changed, '--token', 'once', status=6).stderr,
                 one.mfl('clone', other['job'], '--token', 'once', status=6).stderr):
        assert "token 'once'" in said and first['job'] in said and 'nothing was submitted' in said, said
    assert sum(j['name'] == 'token' for j in one.mfl_json('list')['jobs']) == 2
    for job in (first, other):
        one.wait_job(job['job'])


def test_token_survives_restart(cluster):
    c = cluster(1)
    job = c.submit(rounds=1, token='t1')
    c.wait_job(job)
    c.server.kill()
    c.start_server()
    assert c.submit(rounds=1, token='t1') == job


def test_clone_and_delete(one):
    job, digests = one.run_job(name='original', rounds=2)
    clone = one.mfl_json('clone', job)['job']
    assert clone != job
    one.wait_job(clone)
    assert one.digests(clone) == digests
    folder = os.path.join(one.state_dir, 'jobs', clone)
    assert os.listdir(folder)
    one.mfl('delete', clone)
    assert not os.path.exists(folder)
    one.mfl('show', clone, status=4)
    one.mfl('delete', clone, status=4)
    assert clone not in [j['job'] for j in one.mfl_json('list')['jobs']]
    running = one.submit(**LONG)
    assert 'stop' in one.mfl('delete', running, status=6).stderr
    one.mfl('stop', running)
    h.wait_until(lambda: one.mfl('delete', running, status=None).returncode == 0, 10, 'the deletion of a stopped job')


# ---- models ----

def test_pull_gives_the_model_shown(done_job):
    c, job, digests = done_job
    rounds = c.rounds(job)
    best = max(rounds, key=lambda r: (r['accuracy'], -r['loss'], r['round']))['round']
    kept = [r['round'] for r in rounds if r['kept']]
    assert 5 in kept and best in kept and len(kept) in (2, 3)  # newest, best, and one more
    for which, number in (('last', 5), ('best', best), (str(kept[0]), kept[0])):
        path = os.path.join(c.dir, 'pulled-%s.safetensors' % which)
        c.mfl('pull', job, '--round', which, '--output', path)
        assert h.params_digest(path) == digests[number - 1]
        names = {n: shape for n, (_, shape, _) in h.read_safetensors(path).items()}
        assert [s for n, s in names.items() if not n.startswith('strategy/')] == [
            [200, 64], [200], [200, 200], [200], [4, 200], [4]]
    gone = next(r['round'] for r in rounds if not r['kept'])
    assert 'no longer kept' in c.mfl('pull', job, '--round', gone, '--output', 'x', status=4).stderr
    assert not os.path.exists(os.path.join(c.dir, 'x'))
    c.mfl('pull', job, '--round', 77, '--output', 'x', status=4)
    default = c.mfl('pull', job)
    assert h.params_digest(os.path.join(c.dir, job + '-r5.safetensors')) == digests[4], default.stdout


def test_initial_model(done_job):
    """A pulled model is where another job may start: with a learning rate of next to nothing it stays there."""
    c, job, digests = done_job
    start = os.path.join(c.dir, 'start.safetensors')
    c.mfl('pull', job, '--round', 'last', '--output', start)
    path = c.write('warm.yaml', h.job_text(name='warm', rounds=1, model={'preset': 'mlp', 'initial': start, 'input': [1, 8, 8], 'classes': 4},
                                           training={'lr': 1e-12}))
    warm = c.mfl_json('submit', path)['job']
    info = c.wait_job(warm)
    assert abs(info['last']['accuracy'] - c.rounds(job)[-1]['accuracy']) < 1e-9
    assert c.digests(warm) == digests[4:]  # the steps are below the resolution of every weight


def test_models_and_logs(done_job):
    c, job, digests = done_job
    models = c.mfl_json('models', job)['models']
    assert [m['digest'] for m in models] == [digests[m['round'] - 1] for m in models]
    assert {m['round'] for m in models} == {r['round'] for r in c.rounds(job) if r['kept']}
    assert digests[4][:8] in c.mfl('models', job).stdout
    log = c.mfl('logs', job).stdout
    for r in range(1, 6):
        assert 'round %d' % r in log
    c.mfl('logs', 'j-999999', status=4)
    assert c.mfl('logs', job, '--follow', timeout=20).stdout.splitlines() == log.splitlines()


# ---- daemons ----

def test_cancel_frees_daemons_at_once(cluster):
    c = cluster(2)
    c.wait_daemons(2)
    job = c.submit(**LONG)
    wait_training(c, job, 2)
    c.mfl('stop', job)
    # The next job gets through on the same daemons, whose round of the other would have taken minutes.
    c.run_job(rounds=1)
    assert c.info(job)['state'] == 'stopped'
    assert {state_of(c, 'd1'), state_of(c, 'd2')} == {'idle'}
    c.mfl('stop', job)  # again is fine


def test_stop_after_the_round(cluster):
    """The round under way is evaluated and committed, also when the server is killed meanwhile; then the job is stopped."""
    c = cluster(1)
    c.wait_daemons(1)
    job = c.submit(rounds=100, training={'steps': 25, 'epochs': None}, evaluation={'every': 50})
    wait_training(c, job, 1)
    said = c.mfl('stop', job, '--after-round').stdout
    last = int(said.split('stops after round ')[1])
    assert c.info(job)['reason'] in ('stops after round %d' % last, 'stopped after round %d as requested' % last)
    c.server.kill()
    c.start_server()
    info = c.wait_job(job, 30, 'stopped')
    assert info['reason'] == 'stopped after round %d as requested' % last
    rounds = c.rounds(job)
    assert len(rounds) == last and rounds[-1]['evaluated'] and rounds[-1]['kept']
    c.mfl('pull', job, '-o', c.dir + '/last.safetensors')
    assert h.params_digest(c.dir + '/last.safetensors') == rounds[-1]['digest'].hex()


def test_client_that_goes_frees_nothing_else(cluster):
    """A watcher that is killed leaves the job alone."""
    c = cluster(1)
    job = c.submit(name='goes-on', training={'steps': 50, 'epochs': None})
    watcher = h.Process([h.program('mfl'), 'watch', job, '--server', c.address], c.log_path('watch'))
    time.sleep(0.2)
    watcher.kill()
    c.wait_job(job)


def test_drain(cluster):
    c = cluster(2)
    c.wait_daemons(2)
    job = c.submit(name='drains', rounds=6, training={'steps': 30, 'epochs': None})
    wait_training(c, job)
    c.mfl('drain', 'd1', '--wait', timeout=20)
    assert state_of(c, 'd1') == 'drained'
    c.wait_job(job)
    last = c.rounds(job)[-1]
    assert last['daemons'] == 1
    c.mfl('drain', 'd1', '--undo')
    assert state_of(c, 'd1') == 'idle'
    job, _ = c.run_job(rounds=1)
    assert c.rounds(job)[0]['daemons'] == 2
    c.mfl('drain', 'nobody', status=4)
    # What drained is in JobInfo's model too: drain changed nothing in it.
    assert c.info('j-000001')['state'] == 'done'


def test_drain_all(cluster):
    """Nothing is at work when it returns, daemons that come later or back get nothing, over a restart of the server too; and
    then the job goes on."""
    c = cluster(2)
    c.wait_daemons(2)
    job = c.submit(name='all-drain', rounds=6, training={'steps': 30, 'epochs': None})
    wait_training(c, job, 2)
    said = c.mfl('drain', '--all', '--wait', timeout=20).stdout
    assert 'safe to restart' in said and '2 connected' in said
    assert [state_of(c, d) for d in ('d1', 'd2')] == ['drained'] * 2
    c.start_daemon('d3')
    c.wait_daemons(3)
    assert state_of(c, 'd3') == 'drained', 'one that comes later gets work'
    c.mfl('drain', 'd2', '--undo')
    assert state_of(c, 'd2') == 'drained', 'one by one is no way out of all'
    c.mfl('drain', 'd3')
    assert c.server.stop() == 0
    c.start_server()
    c.wait_daemons(3)
    assert {state_of(c, d) for d in c.daemons} == {'drained'}
    assert c.info(job)['state'] in ('running', 'waiting')
    assert '1 stay drained by name' in c.mfl('drain', '--all', '--undo').stdout
    c.wait_job(job)
    assert state_of(c, 'd3') == 'drained'
    for wrong in (['drain'], ['drain', 'd1', '--all']):
        assert 'needs the name of a daemon, or --all' in c.mfl(*wrong, status=None).stderr


def test_drain_is_checked(cluster):
    c = cluster(0)
    for wrong in ({'daemon': 'd1', 'all': True}, {'wait': True}):
        with c.operator() as o, pytest.raises((mfl_wire.Closed, mfl_wire.Failure)):
            o.request('drain', wrong)
    c.check_alive()


def test_daemon_says_goodbye(cluster):
    """SIGTERM: the daemon leaves at once, its clients go to the other one, its exit status is 0."""
    c = cluster(2)
    c.wait_daemons(2)
    settings = {'training': {'steps': 40, 'epochs': None}}
    job = c.begin(**settings)
    wait_training(c, job, 2)
    assert c.daemons['d2'].stop() == 0
    c.finish(job, **settings)


def test_server_stops_and_goes_on(cluster):
    """SIGTERM of the server: status 0; the job goes on from its last committed round."""
    c = cluster(1)
    job = c.begin()
    c.wait_info(job, lambda i: i['round'] >= 2, 20, 'two rounds')
    assert c.server.stop() == 0
    c.start_server()
    c.finish(job)


# ---- JSON ----

JOB_KEYS = {'job', 'name', 'state', 'reason', 'round', 'rounds', 'params', 'moving', 'model', 'data', 'strategy', 'created_unix_ms',
            'finished_unix_ms', 'archived_unix_ms', 'last', 'best', 'owner', 'per_token', 'progress', 'evaluated', 'privacy'}
ROUND_KEYS = {'round', 'accuracy', 'loss', 'train_loss', 'train_accuracy', 'samples', 'clients', 'clients_rejected', 'weight',
              'bytes_up', 'bytes_down', 'seconds', 'digest', 'attempt', 'daemons', 'committed_unix_ms', 'kept',
              'bytes_up_alone', 'bytes_down_alone', 'mean_iou', 'clamped', 'virtual_start', 'virtual_end', 'states_lost', 'choice',
              'clients_evaluated', 'client_bins', 'metrics', *h.measures()}
NODE_KEYS = {'round', 'node', 'daemons', 'bytes_up', 'bytes_down', 'bytes_up_alone', 'bytes_down_alone'}
DAEMON_KEYS = {'name', 'node', 'address', 'backend', 'device', 'workers', 'state', 'job', 'round', 'items_done', 'items_total',
               'samples_per_second', 'connected_unix_ms', 'data_sets', 'filters', 'software', 'note', 'gpu', 'collective', 'leader', 'alone',
               'clients_per_second', 'numerics', 'activity', 'items_part', 'site', 'tags', 'relay'}


def test_json_shapes(done_job):
    """These keys are promised (`mfl help json`): scripts read them."""
    c, job, digests = done_job
    listed = next(j for j in c.mfl_json('list')['jobs'] if j['job'] == job)
    assert set(listed) == JOB_KEYS
    assert (listed['state'], listed['round'], listed['rounds'], listed['params']) == ('done', 5, 5, 54004)
    assert set(listed['last']) == set(listed['best']) == ROUND_KEYS
    assert listed['last']['digest'] == digests[4]
    assert listed['last']['samples'] == 400 and listed['last']['clients'] == 8
    # 8 clients, one update: 64-bit sums go up, floats come down, at least once.
    assert listed['last']['bytes_up'] >= 54004 * 8
    shown = c.mfl_json('show', job)
    assert set(shown) == {'job', 'rounds', 'text', 'nodes', 'teams', 'scores', 'contract'} and set(shown['job']) == JOB_KEYS
    assert shown['text'].startswith('name: "finished"')
    assert [set(r) for r in shown['rounds']] == [ROUND_KEYS] * 5
    assert [set(n) for n in shown['nodes']] == [NODE_KEYS] * 5
    for key in ('bytes_up', 'bytes_down', 'bytes_up_alone', 'bytes_down_alone'):
        assert [n[key] for n in shown['nodes']] == [r[key] for r in shown['rounds']]
    daemons = c.mfl_json('daemons')['daemons']
    assert [set(d) for d in daemons] == [DAEMON_KEYS]
    assert daemons[0]['name'] == 'd1' and daemons[0]['backend'] == 'reference'
    assert daemons[0]['data_sets'] == [
        {'name': 'tiny', 'shape': [1, 8, 8], 'classes': 4, 'train_samples': 400, 'test_samples': 80}]
    assert [set(m) for m in c.mfl_json('models', job)['models']][0] == ROUND_KEYS
    done = c.mfl('show', 'j-999999', '--json', status=4)
    assert json.loads(done.stdout)['error']['code'] == 'not_found'
    events = [json.loads(line) for line in c.mfl('watch', job, '--json').stdout.splitlines()]
    assert events and all('event' in e for e in events)


def test_json_of_every_command(one):
    """The same promise for the commands that act."""
    path = one.write('json.yaml', h.job_text(name='json', rounds=2))
    assert set(one.mfl_json('check', path)) == {
        'valid', 'name', 'rounds', 'model', 'params', 'moving', 'data', 'partition', 'clients', 'strategy', 'samples', 'privacy'}
    submitted = one.mfl_json('submit', path, '--token', 'json')
    assert set(submitted) == {'job', 'existed'} and submitted['existed'] is False
    assert one.mfl_json('submit', path, '--token', 'json') == {'job': submitted['job'], 'existed': True}
    job = submitted['job']
    waited = one.mfl_json('wait', job)
    assert set(waited) == {'job'} and set(waited['job']) == JOB_KEYS and waited['job']['state'] == 'done'
    assert set(one.mfl_json('clone', job)) == {'job', 'existed'}
    pulled = one.mfl_json('pull', job, '--output', one.dir + '/json.safetensors')
    assert set(pulled) == {'job', 'round', 'file', 'digest', 'params', 'accuracy', 'loss'}
    assert (pulled['round'], pulled['params'], pulled['digest']) == (2, 54004, one.digests(job)[-1])
    long = one.submit(**LONG)
    assert set(one.mfl_json('stop', long)) == {'job', 'text'}
    assert set(one.mfl_json('drain', 'd1')) == {'daemon', 'text'}
    assert set(one.mfl_json('drain', 'd1', '--undo')) == {'daemon', 'text'}
    one.wait_info(long, lambda i: i['state'] == 'stopped', 10, 'the end')
    assert set(h.wait_until(lambda: one.mfl_json('delete', long, status=None).get('text') and {'text'}, 10, 'deletion'))
    shown = one.mfl_json('data', 'show', path, '--data', h.TINY)
    assert set(shown) == {'data', 'train', 'test', 'classes', 'population', 'clients'}
    assert (shown['train'], shown['test'], shown['population']) == (400, 80, 8)
    assert [set(c) for c in shown['clients']] == [{'client', 'samples', 'classes'}] * 8
    assert sum(c['samples'] for c in shown['clients']) == 400
    lines = [json.loads(line) for line in one.mfl('logs', job, '--json').stdout.splitlines()]
    assert [set(e) for e in lines] == [{'event', 'seq', 'time_ms', 'text'}] * len(lines) and lines
    lines = [json.loads(line) for line in one.mfl('run', path, '--daemons', 1, '--backend', 'reference', '--data', h.TINY,
                                                  '--out', one.dir + '/run-json', '--json').stdout.splitlines()]
    assert {'event', 'job', 'state', 'accuracy', 'loss', 'mean_iou', 'rounds', 'seconds', 'digest', 'model', 'csv', 'out',
            'state_dir'} == set(lines[-1])
    assert lines[-1]['digest'] == pulled['digest']
    assert {'round', 'result'} <= {e['event'] for e in lines}


def test_offline_commands(folder):
    """check, data show and presets need no server."""
    path = os.path.join(folder, 'job.yaml')
    with open(path, 'w', encoding='utf-8') as f:
        f.write(h.job_text())
    h.mfl('check', path)
    table = h.mfl('data', 'show', path, '--data', h.TINY).stdout
    assert '400' in table and '50' in table
    assert 'lenet5' in h.mfl('presets').stdout
    assert 'submit' in h.mfl('help').stdout
    for command in ('submit', 'list', 'show', 'watch', 'wait', 'logs', 'stop', 'clone', 'delete', 'models', 'pull', 'daemons',
                    'drain', 'data', 'run', 'check'):
        assert 'Usage' in h.mfl(command, '--help').stdout or 'usage' in h.mfl(command, '--help').stdout


SHOWN = """d: 24 training and 6 test samples of 2, 2 classes, 3 owners; natural-id, 3 clients
client   samples              classes                                      skew
     0         9  ##########  000000000000000000011111111111111111111111  0.097
     1         6  #######     000000000000000000000000000011111111111111  0.125
     2         9  ##########  000000000000000000000001111111111111111111  0.014
   all        24              000000000000000000000001111111111111111111
samples  min 6, median 9, max 9 per client; 3 clients
skew     mean 0.079 (0: clients have the class mix of all, 1: none of it)
"""


def test_data_show_of_a_table(folder):
    """A CSV file whose clients are its owners, and text, which has owners and no classes."""
    path, table = os.path.join(folder, 'job.yaml'), os.path.join(folder, 'flowers.csv')
    with open(path, 'w', encoding='utf-8') as f:
        f.write('name: j\nrounds: 1\nmodel: {preset: mlp}\ndata: {name: d, partition: natural-id, clients: 3}\n'
                'training: {lr: 0.1}\n')
    with open(table, 'w', encoding='utf-8') as f:
        f.write('a,b,who,species\n')
        for i in range(30):
            f.write('%g,%d,"p %d",%s\n' % (i * .5, i, i % 3, 'rose' if i % 2 else 'lily'))
    shown = h.mfl('data', 'show', path, '--data', 'd=csv:%s,owner=who,test_fraction=0.2,seed=4' % table,
                  env={'LC_ALL': 'C'}).stdout
    assert shown == SHOWN
    play = os.path.join(folder, 'play.txt')
    with open(play, 'w', encoding='utf-8') as f:
        f.write(''.join('%s:\nsome words, indeed\nand more\n\n' % 'ABC'[i % 3] for i in range(30)))
    out = h.mfl('data', 'show', path, '--json', '--data',
                'd=text:%s,owner=speaker,length=16,stride=4,test_fraction=0.2' % play).stdout
    data = json.loads(out)
    assert (data['owners'], data['vocabulary']) == (3, 13)
    assert [[n > 0 for n in c['owners']] for c in data['clients']] == [[i == k for i in range(3)] for k in range(3)]


def test_operator_by_hand(one):
    """A peer written from mfl.proto alone is as good as mfl: a request's number comes back with its answer."""
    with one.operator() as o:
        assert o.welcome['protocol'] == 1 and o.welcome['heartbeat_ms'] == 500 and o.welcome['dead_ms'] == 5000
        o.send('list_jobs', {}, 41)
        o.send('list_daemons', {}, 42)
        o.send('ping', {'cookie': 9})
        got = {}
        while len(got) < 3:
            kind, body, request, _ = o.recv()
            got[kind] = (request, body)
        assert got['job_list'][0] == 41 and got['daemon_list'][0] == 42 and got['pong'][1]['cookie'] == 9
        with pytest.raises(mfl_wire.Failure, match='j-000000'):
            o.request('show_job', {'job': 'j-000000'})


def test_more_daemons_than_a_page(cluster):
    """1,100 daemons, one of which is lost and refused besides: mfl and Python have all of them, one page after the other; an older mfl has the first 1000."""
    c = cluster(0, config={'heartbeat': '60s', 'dead_after': '10m'})
    names = ['d%04d' % i for i in range(1100)]
    daemons = []
    for i, name in enumerate(names):
        daemon = mfl_wire.Connection(c.address)
        daemon.send('hello', mfl_wire.hello('ROLE_DAEMON', name=name, node='n', instance=i + 1, workers=1, backend='none'))
        daemons.append(daemon)
    for daemon in daemons:
        daemon.expect('welcome')
    c.mfl('daemons', 'disable', 'd0999')
    again = mfl_wire.Connection(c.address)
    again.send('hello', mfl_wire.hello('ROLE_DAEMON', name='d0999', node='n', instance=5000, workers=1, backend='none'))
    h.wait_until(lambda: [d['state'] for d in c.mfl_json('daemons')['daemons'] if d['name'] == 'd0999'] == ['refused'], 20, 'its refusal')
    assert sorted(d['name'] for d in c.mfl_json('daemons')['daemons']) == names
    text = c.mfl('daemons').stdout
    assert all(name in text for name in names)
    with c.operator() as o:
        assert [d['name'] for d in o.daemons()] == names[:1000]
        page = o.request('list_daemons', {'after': 'd0990', 'count': 20})
        assert [d['name'] for d in page['daemons']] == names[991:1011] and page['more']
        page = o.request('list_daemons', {'after': 'd1079', 'count': 20})
        assert [d['name'] for d in page['daemons']] == names[1080:] and not page['more']
        assert not o.request('list_daemons', {'after': 'd2', 'count': 20})['daemons']
    for daemon in [again, *daemons]:
        daemon.sock.close()


def test_list_longer_than_an_envelope(cluster):
    """More jobs than a frame may carry: mfl asks for a page after the other, the dashboard shows the newest, and an older mfl gets them."""
    c = cluster.empty({'http': '127.0.0.1:0'})
    c.start_server()
    n = 4000
    first = c.submit(name='n' * 60, data={'name': 'd' * 60})
    c.mfl('stop', first)
    assert c.server.stop() == 0
    # As if it had been submitted, and stopped, again and again.
    with mfl_state.changed(c.state_dir) as db:
        db.execute("UPDATE jobs SET reason = '%s'" % ('r' * 200))
        columns = ', '.join(row[1] for row in db.execute('PRAGMA table_info(jobs)') if row[1] not in ('n', 'id', 'token'))
        db.execute("WITH RECURSIVE k(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM k WHERE i < %d) INSERT INTO jobs (id, %s) "
                   "SELECT printf('j-%%06d', i), %s FROM k, jobs WHERE id = '%s'" % (n, columns, columns, first))
    c.start_server()
    everything = ['j-%06d' % i for i in range(1, n + 1)]
    assert [j['job'] for j in json.loads(c.mfl('list', '--json').stdout)['jobs']] == everything
    with c.operator() as o:
        newest = o.request('list_jobs', {})  # as before there were pages
        assert not newest['more'] and 1000 < len(newest['jobs']) < n and newest['jobs'][-1]['job'] == everything[-1]
        page = o.request('list_jobs', {'after': 'j-000010', 'count': 3})
        assert [j['job'] for j in page['jobs']] == everything[10:13] and page['more']
        long = o.request('list_jobs', {'after': 'j-000010', 'count': 4000})  # what does not fit comes with the next page
        assert long['more'] and [j['job'] for j in long['jobs']] == everything[10:10 + len(long['jobs'])]
        page = o.request('list_jobs', {'after': 'j-003999', 'count': 3})
        assert [j['job'] for j in page['jobs']] == everything[-1:] and not page['more']
        assert not o.request('list_jobs', {'after': 'j-004000', 'count': 3})['jobs']
        with pytest.raises(mfl_wire.Failure, match="after: 'late' is not a job's id"):
            o.request('list_jobs', {'after': 'late', 'count': 3})

    def shown():
        data = json.loads(mfl_pages.get(c, '/api/jobs'))
        return data['n_jobs'], [(j['job'], j['archived_unix_ms'] is not None) for j in data['jobs']]
    assert shown() == (n, [(j, False) for j in everything[-1000:]])
    # What is kept of a job's text goes when the job changes, or is no more.
    c.mfl('archive', everything[-3])
    c.mfl('delete', everything[-2])
    rest = [j for j in everything if j not in everything[-3:-1]]
    h.wait_until(lambda: shown() == (n - 1, [(j, False) for j in rest[-1000:]]), 10, 'a list without them')
    c.mfl('unarchive', everything[-3])
    rest = [j for j in everything if j != everything[-2]]
    h.wait_until(lambda: shown() == (n - 1, [(j, False) for j in rest[-1000:]]), 10, 'a list with one of them again')
    late = c.submit(name='late', data={'name': 'd' * 60})
    h.wait_until(lambda: shown() == (n, [(j, False) for j in (rest + [late])[-1000:]]), 10, 'a list with a new one')
    c.check_alive()
