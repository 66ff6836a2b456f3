# SPDX-License-Identifier: Apache-2.0
"""Jobs with frozen params: what no training changes travels once, what moves in every round, and the model is the same whoever
trains, how often the server dies, and of whatever release peers and state are."""
import hashlib
import json
import os
import random
import sqlite3
import struct

import mfl_harness as h
import mfl_state
import mfl_wire as w
import pytest

WORDS = 'the cat sat on a mat and ate his red hat while we ran far'.split()
LETTERS = len(set(' '.join(WORDS) + '\n'))
GPT = {'preset': 'char-gpt', 'input': [16], 'classes': LETTERS}
JOB = {'name': 'lora', 'rounds': 3, 'data': {'name': 'text', 'partition': 'iid', 'clients': 4},
       'aggregation': {'strategy': 'fedavgm'}, 'training': {'lr': 0.1, 'epochs': None, 'steps': 1, 'batch': 2}}


@pytest.fixture(scope='module')
def text_data(tmp_path_factory):
    draw = random.Random(3)
    path = tmp_path_factory.mktemp('text') / 'text.txt'
    path.write_text(' '.join(draw.choice(WORDS) for _ in range(80)) + '\n', encoding='utf-8')
    return ('text=text:%s,length=16,test_fraction=0.1' % path,)


@pytest.fixture(scope='module')
def lora(shared_cluster, text_data):
    """What one daemon makes of a model that came from a file: (job's text, tensors of the file, digests, cluster, job)."""
    c = shared_cluster(1, data=text_data, backend='auto')
    start, _ = c.run_job(**{**JOB, 'rounds': 1, 'model': GPT})
    path = pull(c, start)
    model = {**GPT, 'initial': path, 'lora': {'rank': 4}}
    text = h.job_text(**{**JOB, 'model': model})
    job = submit(c, text)
    c.wait_job(job)
    return text, h.read_safetensors(path), c.digests(job), c, job


def submit(c, text):
    return c.mfl_json('submit', c.write('job.yaml', text))['job']


def pull(c, job):
    path = c.dir + '/' + job + '.safetensors'
    c.mfl('pull', job, '--output', path)
    return path


def run(c, text):
    job = submit(c, text)
    c.wait_job(job)
    return job, c.digests(job)


def traffic(c, job):
    up, down = zip(*((r['bytes_up'], r['bytes_down']) for r in c.rounds(job)))
    return list(up), sum(down)


def sizes(c, job):
    info = c.info(job)
    return info['n_frozen'], info['n_params'] - info['n_frozen']


def test_only_adapters_move_and_travel(lora):
    _, start, digests, c, job = lora
    frozen, moving = sizes(c, job)
    assert frozen > 20 * moving > 0
    up, down = traffic(c, job)
    assert up == [8 * moving] * 3
    assert down == 4 * frozen + 4 * moving * 4  # once; then what rounds started from, and what the last one became
    rounds = c.rounds(job)
    assert sum(r['bytes_down_alone'] for r in rounds) == down and rounds[1]['bytes_down'] == rounds[2]['bytes_down'] < 8 * moving
    assert '%d parameters, %d of them move' % (frozen + moving, moving) in c.mfl('show', job).stdout
    path = pull(c, job)
    model = h.read_safetensors(path)
    assert h.params_digest(path) == digests[-1]
    assert {n for n in start if model[n] != start[n]} == set(), 'what is frozen has the bits of the file'
    adapters = set(model) - set(start)
    assert adapters and all('.lora_' in n for n in adapters)
    assert sum(len(model[n][2]) for n in adapters) == 4 * moving
    assert any(any(model[n][2]) for n in adapters if n.endswith('.lora_B'))
    folder = '%s/jobs/%s/' % (c.state_dir, job)
    checkpoint = h.read_safetensors(folder + 'round-000003.safetensors')
    assert {n: t for n, t in checkpoint.items() if not n.startswith('strategy/')} == {n: model[n] for n in adapters}
    assert {n for n in checkpoint if n.startswith('strategy/')} == {'strategy/momentum/' + n for n in adapters}
    assert h.read_safetensors(folder + 'frozen.safetensors') == {n: t for n, t in model.items() if n not in adapters}


@pytest.mark.parametrize('kind', ['shm', 'solo'])
def test_two_daemons(cluster, lora, text_data, kind):
    text, _, digests, _, _ = lora
    c = cluster(0)
    c.share()
    for name in ('d1', 'd2'):
        c.start_daemon(name, collective=kind, data=text_data, backend='auto')
    c.wait_daemons(2)
    job, got = run(c, text + 'selection: {daemons: {min: 2}, assign: modulo}\n')
    frozen, moving = sizes(c, job)
    up, down = traffic(c, job)
    assert got == digests
    assert up == [8 * moving * (2 if kind == 'solo' else 1)] * 3
    alone = 2 * 4 * frozen + 4 * moving * 7  # the one test sample of the last evaluation is one daemon's
    assert sum(r['bytes_down_alone'] for r in c.rounds(job)) == alone
    assert down == (alone if kind == 'solo' else 4 * frozen + 4 * moving * 4)
    assert [d.stop() for d in c.daemons.values()] == [0, 0] and c.shared_files() == []


def test_the_server_is_killed(cluster, lora, text_data):
    """Daemons keep what is frozen over that; one that comes in the middle fetches it."""
    text, _, digests, _, _ = lora
    c = cluster(1, data=text_data, backend='auto')
    job = submit(c, text.replace('rounds: 3', 'rounds: %d' % h.ENDLESS))
    c.wait_info(job, lambda i: i['round'] >= 1, 20, 'the first round')
    c.server.kill()
    c.start_server()
    c.start_daemon('d2', data=text_data, backend='auto')
    c.wait_info(job, lambda i: i['round'] >= 3, 30, 'three rounds')
    c.stop_job(job)
    assert c.digests(job)[:3] == digests
    assert h.params_digest(pull(c, job)) == c.digests(job)[-1]


def test_what_version_1_knows(cluster, lora, text_data):
    """A daemon of then is told of no frozen params, and takes all other jobs; `mfl` of then pulls the model in its order."""
    text, _, digests, old, of_then = lora
    c = cluster(1, data=text_data, backend='auto')
    data_sets = c.data_sets(20)
    c.daemons['d1'].kill()
    with c.operator() as o:
        h.wait_until(lambda: all(d['state'] == 'lost' for d in o.daemons()) or not o.daemons(), 20, 'the daemon to go')
    fake = w.FakeDaemon(c.address, 'old', data_sets)
    job = submit(c, text)
    c.wait_info(job, lambda i: 'protocol 2' in i['reason'] and 'old' in i['reason'], 20, 'the reason')
    plain = submit(c, h.job_text(**{**JOB, 'model': GPT, 'name': 'plain'}))
    h.wait_until(lambda: [b for k, b in fake.seen if k == 'task'], 20, 'a task of the other job')
    assert {b['job'] for k, b in fake.seen if k == 'task'} == {plain}
    with c.operator() as o:
        assert any('old' in x and 'protocol 1' in x and 'upgrade' in x for x in o.logs(job))
        assert 'upgrade this daemon' in next(d['note'] for d in o.daemons() if d['name'] == 'old')
    fake.close()
    c.start_daemon('d2', data=text_data, backend='auto')
    c.wait_job(job)
    assert c.digests(job) == digests
    # Of a checkpoint that rotted on the disk it gets none: it could not compare the digest.
    with open('%s/jobs/%s/frozen.safetensors' % (c.state_dir, job), 'r+b') as f:
        f.seek(-1, 2)
        last = f.read(1)[0]
        f.seek(-1, 2)
        f.write(bytes([last ^ 1]))
    with c.operator() as o, pytest.raises(w.Failure, match='frozen.safetensors on the disk differs'):
        o.request('pull', {'job': job, 'round': -1})
    # The order of layers is that of a state_dict, and the digest is of that.
    with old.operator() as o:
        assert o.welcome['protocol'] == 1
        o.requests += 1
        o.send('pull', {'job': of_then, 'round': -1}, o.requests)
        begin, data = o.expect('pull_begin'), b''
        while len(data) < 4 * begin['n_params']:
            data += o.recv()[3]
    assert begin['n_frozen'] == 0 and hashlib.sha256(data).digest() == begin['round']['digest']
    model, at = h.read_safetensors(pull(old, of_then)), {}
    for name, (_, _, bits) in model.items():
        at[name] = data.find(bits)
        assert at[name] >= 0, name
    first = sorted(n for n in at if n.startswith('transformer.h.0.attn'))
    assert at[next(n for n in first if n.endswith('.weight'))] < at[next(n for n in first if n.endswith('lora_A'))]


def write_safetensors(path, tensors):
    at, header = 0, {}
    for name, (dtype, shape, bits) in tensors.items():
        header[name] = {'dtype': dtype, 'shape': shape, 'data_offsets': [at, at + len(bits)]}
        at += len(bits)
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text + b''.join(t[2] for t in tensors.values()))


def as_schema(c, job, schema):
    """The state as an earlier release wrote it: all params in each round's file, and columns of then."""
    folder = '%s/jobs/%s/' % (c.state_dir, job)
    frozen = h.read_safetensors(folder + 'frozen.safetensors')
    db = sqlite3.connect(c.state_dir + '/mfl.db')
    for name, in db.execute("SELECT file FROM rounds WHERE job = ? AND kept", (job,)).fetchall():
        write_safetensors(folder + name, {**frozen, **h.read_safetensors(folder + name)})
        with open(folder + name, 'rb') as f:
            data = f.read()
        db.execute('UPDATE rounds SET file_sha256 = ?, file_bytes = ? WHERE job = ? AND file = ?',
                   (hashlib.sha256(data).digest(), len(data), job, name))
    os.unlink(folder + 'frozen.safetensors')
    mfl_state.drop_sums(db)
    for column in ('frozen_file', 'frozen_sha256', 'frozen_bytes', 'mean_iou', 'clamped', 'virtual_start_us', 'virtual_end_us', 'states_lost',
                   'choice', 'measures', 'metric_names', 'metrics'):
        db.execute('ALTER TABLE rounds DROP COLUMN ' + column)
    db.execute('ALTER TABLE jobs DROP COLUMN archived_ms')
    for column in ('data_meaning', 'data_from', 'stop_after', 'n_frozen') if schema < 5 else ():
        db.execute('ALTER TABLE jobs DROP COLUMN ' + column)
    db.execute('DROP TABLE client_states')
    db.execute('PRAGMA user_version = %d' % schema)
    db.commit()
    db.close()


@pytest.mark.parametrize('schema', [4, 5])
def test_a_job_that_an_earlier_release_began(cluster, lora, text_data, schema):
    """Before schema 5 it goes on with all params in the order of layers, and comes to the same tensors; then what is frozen goes
    into a file of its own with the next round."""
    text, _, digests, old, _ = lora
    if schema == 4:
        text = text.replace('fedavgm', 'fedavg')  # whose checkpoints are as they were
    c = cluster.empty()
    c.start_server({'MFL_FAULT': 'before-rename:3:exit'})  # of the second round's checkpoint, after what is frozen and the first one's
    c.start_daemon('d1', data=text_data, backend='auto')
    job = submit(c, text)
    assert c.server.wait(30) == h.FAULT_STATUS
    assert [name for name in os.listdir('%s/jobs/%s' % (c.state_dir, job)) if name.startswith('round-000001')]
    as_schema(c, job, schema)
    c.start_server()
    info = c.wait_job(job)
    last = c.rounds(job)[-1]
    path = pull(c, job)
    assert h.params_digest(path) == last['digest'].hex()
    apart = os.path.exists('%s/jobs/%s/frozen.safetensors' % (c.state_dir, job))
    if schema == 4:
        assert info['n_frozen'] == 0 and not apart
        assert last['bytes_up'] == 8 * info['n_params']
        assert h.read_safetensors(path) == h.read_safetensors(pull(old, run(old, text)[0]))
    else:
        assert info['n_frozen'] > 0 and apart
        assert c.digests(job)[:3] == digests


def test_nothing_is_left_to_train(lora):
    _, _, _, c, _ = lora
    for model in ({'preset': 'char-gpt', 'freeze': ['*']}, {'layers': [{'dense': {'units': 4, 'frozen': True}}]}):
        done = c.mfl('submit', c.write('none.yaml', h.job_text(model=model)), status=5)
        assert 'nothing is left to train' in done.stderr, done.stderr
        with c.operator() as o, pytest.raises(w.Failure) as e:
            o.submit(h.job_text(model=model))
        assert 'nothing is left to train' in str(e.value)
