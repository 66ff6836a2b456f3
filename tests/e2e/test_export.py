# SPDX-License-Identifier: Apache-2.0
"""What `mfl pull` writes for others, read back by readers that are none of ours: event files by their definition, CSV and JSON
by Python's, npz by NumPy."""
import csv
import glob
import io
import json
import os
import signal
import struct
import subprocess
import time

import numpy
import pytest

import mfl_harness as h
import mfl_state
import mfl_wire as w

SCALARS = {'train/loss': 'train_loss', 'train/accuracy': 'train_accuracy', 'test/loss': 'loss', 'test/accuracy': 'accuracy',
           'round/seconds': 'seconds', 'round/attempt': 'attempt', 'round/samples': 'samples', 'round/daemons': 'daemons',
           'clients/counted': 'clients', 'clients/rejected': 'clients_rejected', 'network/up_bytes': 'bytes_up',
           'network/down_bytes': 'bytes_down', 'network/up_bytes_alone': 'bytes_up_alone',
           'network/down_bytes_alone': 'bytes_down_alone'}


# ---- event files, by the definition of their format ----

def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def fields(data):
    """{field number: [values]} of a protobuf message."""
    at, out = 0, {}
    while at < len(data):
        key, at = varint(data, at)
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            if key & 7 == 2:
                size, at = varint(data, at)
            value, at = data[at:at + size], at + size
            assert len(value) == size
        out.setdefault(key >> 3, []).append(value)
    return out


def masked_crc(data):
    crc = w.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def records(data):
    """Data of each record; asserts both checksums, and that the last one is whole."""
    at, out = 0, []
    while at < len(data):
        length, crc = struct.unpack_from('<QI', data, at)
        assert crc == masked_crc(data[at:at + 8])
        body = data[at + 12:at + 12 + length]
        assert struct.unpack_from('<I', data, at + 12 + length)[0] == masked_crc(body)
        out.append(body)
        at += length + 16
    return out


def read_events(path):
    """(text of the job, {step: (wall time, {tag: value})}); asserts what every event file must have."""
    with open(path, 'rb') as f:
        events = [fields(r) for r in records(f.read())]
    assert events[0][3] == [b'brain.Event:2'] and fields(events[0][10][0])[1] == [b'mfl']
    text, rounds = None, {}
    for event in events[1:]:
        step = event.get(2, [0])[0]
        values = {}
        for value in map(fields, fields(event[5][0])[1]):
            metadata = fields(value[9][0])
            plugin = fields(metadata[1][0])[1]
            if plugin == [b'text']:
                tensor = fields(value[8][0])
                assert tensor[1] == [7] and metadata[4] == [2] and step == 0 and text is None
                text = tensor[8][0].decode()
                continue
            assert plugin == [b'scalars'] and metadata[4] == [1]
            values[value[1][0].decode()] = struct.unpack('<f', value[2][0])[0]
        if values:
            assert step not in rounds and step > max(rounds, default=0)
            rounds[step] = (struct.unpack('<d', event[1][0])[0], values)
    return text, rounds


def check_events(path, shown):
    text, rounds = read_events(path)
    assert shown['job']['name'] in text and '    rounds: %d' % shown['job']['rounds'] in text
    assert list(rounds) == [r['round'] for r in shown['rounds']]
    for r in shown['rounds']:
        wall, values = rounds[r['round']]
        assert abs(wall - r['committed_unix_ms'] / 1000) < 1e-3
        expected = {tag: float(numpy.float32(r[name])) for tag, name in SCALARS.items() if r[name] is not None}
        assert values == expected


@pytest.fixture(scope='module')
def one(shared_cluster):
    c = shared_cluster(2)
    c.wait_daemons(2)
    return c


@pytest.fixture(scope='module')
def job(one):
    return one.run_job(name='exported', rounds=5, model='logistic', evaluation={'every': 2})[0]


def test_csv_and_jsonl(one, job):
    shown = one.mfl_json('show', job)['rounds']
    assert [r['accuracy'] is None for r in shown] == [True, False, True, False, False]
    one.mfl('pull', job, '--format', 'jsonl')
    with open(os.path.join(one.dir, job + '.jsonl'), encoding='utf-8') as f:
        assert [json.loads(line) for line in f] == shown
    done = one.mfl_json('pull', job, '--format', 'csv', '-o', 'rounds.csv')
    assert done == {'job': job, 'format': 'csv', 'file': 'rounds.csv', 'rounds': 5, 'round': 5}
    with open(os.path.join(one.dir, 'rounds.csv'), 'rb') as f:
        data = f.read()
    assert data.count(b'\r\n') == data.count(b'\n') == 6
    rows = list(csv.reader(io.StringIO(data.decode(), newline='')))
    assert rows[0] == list(shown[0])
    words = {None: '', True: 'true', False: 'false'}
    for row, r in zip(rows[1:], shown, strict=True):
        for cell, value in zip(row, r.values(), strict=True):
            if value is None or isinstance(value, bool):
                assert cell == words[value]
            else:
                assert type(value)(cell) == value
    # To standard output come the same bytes, and nothing else.
    assert one.mfl('pull', job, '--format', 'csv', '-o', '-').stdout == data.decode().replace('\r\n', '\n')
    assert len(one.mfl('pull', job, '--format', 'jsonl', '-o', '-', '--follow').stdout.splitlines()) == 5


def test_npz(one, job):
    """numpy.load reads it; names, shapes and every bit as in the safetensors file. The same model gives the same file."""
    one.mfl('pull', job, '-o', 'm.safetensors')
    done = one.mfl('pull', job, '--format', 'npz', status=None)
    if 'built without npz' in done.stderr:
        pytest.skip('built without npz')
    path = os.path.join(one.dir, job + '-r5.npz')
    expected = h.read_safetensors(os.path.join(one.dir, 'm.safetensors'))
    with numpy.load(path, allow_pickle=False) as arrays:
        assert sorted(arrays) == sorted(expected)
        for name, (_, shape, data) in expected.items():
            assert arrays[name].dtype == numpy.float32 and list(arrays[name].shape) == shape
            assert arrays[name].tobytes() == data
    one.mfl('pull', job, '--format', 'npz', '-o', 'again.npz')
    with open(path, 'rb') as a, open(os.path.join(one.dir, 'again.npz'), 'rb') as b:
        assert a.read() == b.read()
    # What can't be written leaves nothing behind, and the last model stays.
    done = subprocess.run(['sh', '-c', 'trap "" XFSZ; ulimit -f 1; exec "$@"', 'sh', h.program('mfl'), 'pull', job, '--format',
                           'npz', '-o', 'again.npz', '--server', one.server.address], cwd=one.dir, capture_output=True,
                          text=True, timeout=30, check=False)
    assert done.returncode == 1 and 'write again.npz.tmp: ' in done.stderr and 'File too large' in done.stderr, done
    assert not os.path.exists(os.path.join(one.dir, 'again.npz.tmp'))
    with open(path, 'rb') as a, open(os.path.join(one.dir, 'again.npz'), 'rb') as b:
        assert a.read() == b.read()


def test_tensorboard(one, job):
    """What is there is not written twice; a torn end is repaired, at any byte; another's file is left alone."""
    shown = one.mfl_json('show', job)
    done = one.mfl_json('pull', job, '--format', 'tensorboard', '-o', 'logs')
    assert done['rounds'] == 5 and done['round'] == 5
    path = os.path.join(one.dir, done['file'])
    assert os.path.relpath(path, one.dir) == 'logs/%s-exported/events.out.tfevents.%010d.mfl' % (
        job, shown['job']['created_unix_ms'] // 1000)
    check_events(path, shown)
    with open(path, 'rb') as f:
        whole = f.read()
    assert one.mfl_json('pull', job, '--format', 'tensorboard', '-o', 'logs')['rounds'] == 0
    sizes = [len(r) + 16 for r in records(whole)]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    # Inside the version, the text, a length, its CRC, the data, their CRC; on a border; and nothing at all.
    for cut in (0, 5, sizes[0], sizes[0] + 30, starts[3] + 3, starts[3] + 11, starts[4] + 40, starts[6] - 2, starts[6]):
        with open(path, 'wb') as f:
            f.write(whole[:cut])
        one.mfl('pull', job, '--format', 'tensorboard', '-o', 'logs')
        with open(path, 'rb') as f:
            assert f.read() == whole, cut
    flipped = bytearray(whole)
    flipped[starts[5] + 20] ^= 1
    with open(path, 'wb') as f:
        f.write(flipped)
    assert one.mfl_json('pull', job, '--format', 'tensorboard', '-o', 'logs')['rounds'] == 2
    with open(path, 'rb') as f:
        assert f.read() == whole
    with open(path, 'wb') as f:
        f.write(b'something else')
    assert "events are from another job" in one.mfl('pull', job, '--format', 'tensorboard', '-o', 'logs', status=6).stderr
    os.rename(path, os.path.join(os.path.dirname(path), 'events.out.tfevents.1.other'))
    assert 'something else' in one.mfl('pull', job, '--format', 'tensorboard', '-o', 'logs', status=6).stderr


def test_options_that_do_not_go_together(one, job):
    for argv, text in ((('--format', 'npy'), "did you mean 'npz'"), (('--format', 'csv', '--round', 'best'), '--round chooses a model'),
                       (('--follow',), '--follow goes only with rounds'), (('--format', 'npz', '-o', '-'), "'-' is for csv and jsonl"),
                       (('--format', 'tensorboard', '-o', '-'), 'needs a folder'), (('--timeout', '5'), 'goes only with --follow'),
                       (('--format', 'csv', '--follow'), "add '-o -'"), (('--format', 'csv', '-o', '-', '--json'), 'both write'),
                       (('--format', 'tensorboard', '-o', ''), '--output: the path is empty')):
        assert text in one.mfl('pull', job, *argv, status=2).stderr, argv


def start_follow(c, job):
    env = {k: v for k, v in os.environ.items() if not k.startswith('MFL_')}
    env.update({'MFL_SERVER': c.address, 'XDG_CONFIG_HOME': '/nonexistent'})
    return subprocess.Popen([h.program('mfl'), 'pull', job, '--format', 'tensorboard', '--follow', '-o', c.dir + '/logs'],
                            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_follow(cluster):
    """Follows a running job; killed in the middle, with half a record at the end, it goes on where it was; the server is
    restarted under it; at the end every round is there once. A second writer is sent away."""
    c = cluster(1)
    c.wait_daemons(1)
    job = c.submit(name='followed', rounds=20, model='mlp', training={'epochs': 8})

    def size():
        files = glob.glob(c.dir + '/logs/*/*tfevents*')
        return os.path.getsize(files[0]) if files else 0

    def grown(least):
        return h.wait_until(lambda: size() > least and size(), 30, 'rounds in the events')
    first = start_follow(c, job)
    try:
        seen = grown(2000)
        assert 'another' in c.mfl('pull', job, '--format', 'tensorboard', '-o', 'logs', status=6).stderr
        first.send_signal(signal.SIGKILL)
        first.wait(10)
        path, = glob.glob(c.dir + '/logs/*/*tfevents*')
        with open(path, 'rb') as f:
            last = records(f.read())[-1]
        with open(path, 'ab') as f:
            f.write(struct.pack('<QI', len(last), masked_crc(struct.pack('<Q', len(last)))) + last[:50])
    finally:
        first.kill()
        first.communicate()
    second = start_follow(c, job)
    try:
        grown(seen + 1000)
        c.server.kill()
        os.remove(c.log_path('server'))
        time.sleep(0.3)
        c.start_server()
        out, err = second.communicate(timeout=60)
    finally:
        second.kill()
    assert second.returncode == 0, err
    assert 'connection to the server lost' in err and 'connected to the server again' in err
    shown = c.mfl_json('show', job)
    assert len(shown['rounds']) == 20 and 'up to round 20' in out
    check_events(path, shown)


def test_thousands_of_rounds(cluster):
    """Every round comes, however many there are: the server sends them page by page. Most are put into the database by hand."""
    c = cluster(1)
    job = c.run_job(rounds=3, model='logistic')[0]
    c.server.stop()
    os.remove(c.log_path('server'))
    with mfl_state.changed(c.state_dir) as db:
        names = [name for name in mfl_state.columns_of(db, 'rounds') if name not in ('round', 'kept')]
        db.execute('WITH RECURSIVE n(i) AS (SELECT 4 UNION ALL SELECT i + 1 FROM n WHERE i < 2500) '
                   'INSERT INTO rounds (round, kept, {0}) SELECT i, 0, {0} FROM rounds, n WHERE round = 3'.format(', '.join(names)))
    c.start_server()
    rows = list(csv.DictReader(io.StringIO(c.mfl('pull', job, '--format', 'csv', '-o', '-').stdout)))
    assert [int(r['round']) for r in rows] == list(range(1, 2501))
    assert c.mfl_json('pull', job, '--format', 'tensorboard', '-o', 'logs') | {'file': ''} == {
        'job': job, 'format': 'tensorboard', 'file': '', 'rounds': 2500, 'round': 2500}
