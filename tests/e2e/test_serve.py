# SPDX-License-Identifier: Apache-2.0
"""mfl-serve as a process: answers that depend on model and row alone, versions that take turns, limits, keys, and peers that mean no
good. Nothing here measures time."""
import json
import math
import os
import shutil
import signal
import socket
import ssl
import struct
import threading

import numpy
import pytest

import mfl_certs
import mfl_harness as h
import mfl_needs
import mfl_serve as s
from mfl_browser import Browser
from mfl_pages import CHROMIUM
from mfl_tls import TlsCluster

ROWS = 200


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """Files of two rounds of a small job on 8x8 images in 4 classes."""
    folder = tmp_path_factory.mktemp('trained')
    with h.start_cluster(folder) as c:
        job, _ = c.run_job()
        files = {n: os.path.join(str(folder), 'round%d.safetensors' % n) for n in (1, 3)}
        for n, file in files.items():
            c.mfl('pull', job, '--round', n, '-o', file)
    return files


@pytest.fixture(scope='module')
def rows():
    return numpy.random.default_rng(7).integers(0, 256, size=(ROWS, 1, 8, 8), dtype='uint8')


def forward(file, x):
    """The network `mlp` by numpy, with the scale and shift of its contract: an independent answer, in double."""
    tensors = [numpy.frombuffer(data, '<f4').reshape(shape).astype('float64') for _, shape, data in h.read_safetensors(file).values()]
    with open(file, 'rb') as f:
        header = f.read(struct.unpack('<Q', f.read(8))[0])
    contract = json.loads(json.loads(header)['__metadata__']['contract'])
    y = x.reshape(len(x), -1) * contract['scale'][0] + contract['shift'][0]
    for i in range(0, len(tensors), 2):
        weight, bias = tensors[i], tensors[i + 1]
        y = y @ (weight.T if weight.shape[1] == y.shape[1] else weight) + bias
        y = numpy.maximum(y, 0) if i + 2 < len(tensors) else y
    return y


def replace(file, by):
    shutil.copy(by, file + '.new')
    os.rename(file + '.new', file)


def ask_each(serve, rows, n_threads=1, **options):
    """Bits of each row, asked alone, over so many connections at once."""
    bits = [None] * len(rows)

    def work(first):
        connection = serve.connect()
        for i in range(first, len(rows), n_threads):
            status, said = s.infer(connection, 'm', s.question(rows[i:i + 1].tolist(), 'UINT8'), **options)
            assert status == 200, said
            bits[i] = said['bits']
        connection.close()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n_threads)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return bits


def test_an_answer_depends_on_model_and_row_alone(tmp_path, trained, rows):
    file = os.path.join(str(tmp_path), 'm.safetensors')
    replace(file, trained[3])
    with s.Serve(tmp_path, {'m': file}, {'delay': '2ms', 'poll': '50ms'}) as serve:
        alone = ask_each(serve, rows)
        assert ask_each(serve, rows, 32) == alone
        connection = serve.connect()
        together = s.infer(connection, 'm', s.question(rows[:150].tolist(), 'UINT8'))[1]['bits']
        assert [together[i:i + 4] for i in range(0, 600, 4)] == alone[:150]
        binary = json.dumps({'inputs': [{'name': 'input', 'shape': list(rows.shape), 'datatype': 'UINT8', 'parameters': {'binary_data_size': rows.nbytes}}],
                             'parameters': {'binary_data_output': True}}).encode()
        said = s.infer(connection, 'm', binary + rows.tobytes(), {'Inference-Header-Content-Length': str(len(binary))})[1]
        assert [said['bits'][i:i + 4] for i in range(0, 4 * ROWS, 4)] == alone
        got = numpy.array([[float.fromhex(v) for v in row] for row in alone])
        expected = forward(trained[3], rows)
        assert numpy.abs(got - expected).max() <= 1e-5 * max(1, numpy.abs(expected).max())
        # There and back.
        first = said['model_version']
        replace(file, trained[1])
        h.wait_until(lambda: first not in json.loads(serve.get('/v2/models/m')[2])['versions'][:1], 10, 'the swap')
        assert ask_each(serve, rows[:20]) != alone[:20]
        assert ask_each(serve, rows[:20], version=first) == alone[:20]  # the one before is still there
        replace(file, trained[3])
        h.wait_until(lambda: json.loads(serve.get('/v2/models/m')[2])['versions'][0] == first, 10, 'the swap back')
        assert ask_each(serve, rows, 32) == alone


def context_switches(serve, thread):
    """How often the thread of this name has waited for work."""
    folder = '/proc/%d/task' % serve.pid
    for task in os.listdir(folder):
        with open('%s/%s/status' % (folder, task), encoding='utf-8') as f:
            text = f.read()
        if text.startswith('Name:\t%s\n' % thread):
            return int(text.split('\nvoluntary_ctxt_switches:\t')[1].split('\n')[0])
    raise AssertionError('no thread %s' % thread)


def test_several_instances_give_the_same_bits(tmp_path, trained, rows):
    """Batches of one model on several threads, before, during and after a swap; a second model on the threads that follow; a request that is divided among the networks."""
    file = os.path.join(str(tmp_path), 'm.safetensors')
    replace(file, trained[3])
    with s.Serve(tmp_path, {'m': file}) as serve:
        alone = ask_each(serve, rows)
        assert serve.stop() == 0
    with s.Serve(tmp_path, {'m': file, 'other': trained[1]}, {'poll': '50ms', 'threads': 3, 'instances': 2, 'batch': 4, 'canary': 0.5, 'canary_for': '1s', 'mirror': 0.5}) as serve:
        idle = context_switches(serve, 'engine 1')

        def works():
            assert ask_each(serve, rows, 32) == alone
            return context_switches(serve, 'engine 1') > idle

        h.wait_until(works, 30, 'work for the second network')
        together = s.infer(serve.connect(), 'm', s.question(rows.tolist(), 'UINT8'))[1]['bits']
        assert [together[i:i + 4] for i in range(0, 4 * ROWS, 4)] == alone
        first = json.loads(serve.get('/v2/models/m')[2])['versions'][0]
        replace(file, trained[1])
        while json.loads(serve.get('/v2/models/m')[2])['versions'][0] == first:
            assert ask_each(serve, rows[:40], 16, version=first) == alone[:40]
        other = s.infer(serve.connect(), 'other', s.question(rows.tolist(), 'UINT8'))[1]['bits']
        assert ask_each(serve, rows, 32) == [other[i:i + 4] for i in range(0, 4 * ROWS, 4)]
        assert ask_each(serve, rows, 32, version=first) == alone
        assert serve.stop() == 0


def test_swaps_lose_no_request(tmp_path, trained, rows):
    file = os.path.join(str(tmp_path), 'm.safetensors')
    replace(file, trained[1])
    with s.Serve(tmp_path, {'m': file}, {'poll': '50ms', 'cache_dir': str(tmp_path / 'cache')}) as serve:
        expected, wrong, n, stop = {}, [], [0], threading.Event()

        def version():
            return json.loads(serve.get('/v2/models/m')[2])['versions'][0]

        def learn():
            expected[version()] = ask_each(serve, rows[:1])[0]

        learn()
        old = version()
        replace(file, trained[3])
        h.wait_until(lambda: version() != old, 10, 'the first swap')
        learn()
        assert len({tuple(bits) for bits in expected.values()}) == 2

        def load():
            connection = serve.connect()
            while not stop.is_set():
                status, said = s.infer(connection, 'm', s.question(rows[:1].tolist(), 'UINT8'))
                if status != 200 or expected[said['model_version']] != said['bits']:
                    wrong.append((status, said))
                n[0] += 1
            connection.close()

        threads = [threading.Thread(target=load) for _ in range(4)]
        for t in threads:
            t.start()
        for i in range(20):
            old = version()
            replace(file, trained[(3, 1)[i % 2 == 0]])
            h.wait_until(lambda: version() != old, 10, 'a swap')
        stop.set()
        for t in threads:
            t.join()
        assert not wrong and n[0] > 20
        metrics = serve.get('/metrics')[2].decode()
        assert 'mfl_serve_swaps_total{model="m"} 22\n' in metrics and 'mfl_serve_failed_total{model="m"} 0\n' in metrics


def test_a_file_that_is_no_model_changes_nothing(tmp_path, trained, rows):
    file = os.path.join(str(tmp_path), 'm.safetensors')
    replace(file, trained[3])
    with s.Serve(tmp_path, {'m': file}, {'poll': '50ms', 'cache_dir': str(tmp_path / 'cache')}) as serve:
        before = ask_each(serve, rows[:5])
        with open(file + '.new', 'wb') as f:
            f.write(open(trained[1], 'rb').read()[:1000])
        os.rename(file + '.new', file)
        h.wait_until(lambda: 'stays in service' in serve.log(), 10, 'the refusal')
        assert ask_each(serve, rows[:5]) == before
        reason = json.loads(serve.ask('POST', '/v2/repository/index')[2])[0]
        assert reason['state'] == 'READY' and reason['reason']
        replace(file, trained[1])
        h.wait_until(lambda: ask_each(serve, rows[:5]) != before, 10, 'the swap')
        # Back, by hand; what the file has stays out until it is something else, also after a restart. 503: the swap is being noted.
        h.wait_until(lambda: serve.ask('POST', '/v2/models/m/rollback')[0] == 200, 10, 'the rollback')
        assert ask_each(serve, rows[:5]) == before
        serve.signal(signal.SIGHUP)
        h.wait_until(lambda: 'read again' in serve.log(), 10, 'the reload')
        assert ask_each(serve, rows[:5]) == before
        current = tmp_path / 'cache' / 'm' / 'current'
        h.wait_until(lambda: len(current.read_text().split()) == 3, 10, 'the note of the rollback')
        serve.kill()
    with s.Serve(tmp_path, {'m': file}, {'poll': '50ms', 'cache_dir': str(tmp_path / 'cache')}) as serve:
        assert ask_each(serve, rows[:5]) == before
        with open(file, 'rb') as f:
            changed = bytearray(f.read().replace(b'"digest"', b'"digesf"'))  # another program's params
        changed[-1] ^= 1
        with open(file + '.new', 'wb') as f:
            f.write(changed)
        os.rename(file + '.new', file)
        h.wait_until(lambda: ask_each(serve, rows[:5]) != before, 10, 'the swap')


def test_a_new_version_on_trial(tmp_path, trained, rows):
    """It answers its share of the keys, a key always the same, and takes over when it has done well; one that fails goes out by itself."""
    file = os.path.join(str(tmp_path), 'm.safetensors')
    replace(file, trained[3])
    options = {'poll': '50ms', 'canary': 0.5, 'canary_for': '3s'}
    with s.Serve(tmp_path, {'m': file}, options) as serve:
        def versions():
            return json.loads(serve.get('/v2/models/m')[2])['versions']

        def ask(key):
            return s.infer(serve.connect(), 'm', s.question(rows[:1].tolist(), 'UINT8'), {'Mfl-Key': key})

        old, = versions()
        replace(file, trained[1])
        h.wait_until(lambda: len(versions()) == 2, 10, 'the trial')
        given = {key: ask(key)[1]['model_version'] for key in map(str, range(30))}
        if versions()[0] == old:  # the trial went on all the time
            assert len(set(given.values())) == 2
            assert {key: ask(key)[1]['model_version'] for key in given} == given or versions()[0] != old
        h.wait_until(lambda: versions()[0] != old, 10, 'its end')
        assert len({ask(key)[1]['model_version'] for key in given}) == 1
        good = versions()[0]
        # Its answers are no numbers.
        with open(trained[3], 'rb') as f:
            broken = f.read().replace(b'"digest"', b'"digesf"')[:-16] + struct.pack('<4f', *[float('nan')] * 4)
        (tmp_path / 'broken').write_bytes(broken)
        replace(file, str(tmp_path / 'broken'))
        failed = []

        def is_out():
            failed.extend(status for status, _ in map(ask, map(str, range(10))) if status != 200)
            return b'mfl_serve_failed_trials_total{model="m"} 1\n' in serve.get('/metrics')[2]

        h.wait_until(is_out, 10, 'the end of the broken version')
        assert set(failed) == {500} and len(failed) <= 20
        assert {ask(key)[1]['model_version'] for key in given} == {good}


def test_a_version_that_fails_goes_back_by_itself(tmp_path, trained, rows):
    file = os.path.join(str(tmp_path), 'm.safetensors')
    replace(file, trained[3])
    with s.Serve(tmp_path, {'m': file}, {'poll': '50ms'}) as serve:
        before = ask_each(serve, rows[:5])
        with open(trained[3], 'rb') as f:
            broken = f.read().replace(b'"digest"', b'"digesf"')[:-16] + struct.pack('<4f', *[float('nan')] * 4)
        (tmp_path / 'broken').write_bytes(broken)
        replace(file, str(tmp_path / 'broken'))
        connection, statuses = serve.connect(), []

        def is_back():
            statuses.append(s.infer(connection, 'm', s.question(rows[:1].tolist(), 'UINT8'))[0])
            return statuses.count(500) and statuses[-1] == 200

        h.wait_until(is_back, 10, 'the way back')
        assert statuses.count(500) <= 20
        assert ask_each(serve, rows[:5]) == before


def test_a_tenth_of_10000_keys(tmp_path, trained, rows):
    """Each key is asked for once, and some again."""
    file = os.path.join(str(tmp_path), 'm.safetensors')
    replace(file, trained[3])
    with s.Serve(tmp_path, {'m': file}, {'poll': '50ms', 'canary': 0.1, 'canary_for': '1h'}) as serve:
        def versions():
            return json.loads(serve.get('/v2/models/m')[2])['versions']

        old, = versions()
        replace(file, trained[1])
        h.wait_until(lambda: len(versions()) == 2, 10, 'the trial')
        connection, body = serve.connect(), s.question(rows[:1].tolist(), 'UINT8')

        def ask(i):
            status, said = s.infer(connection, 'm', body, {'Mfl-Key': 'user-%d' % i})
            assert status == 200
            return said['model_version']

        given = [ask(i) for i in range(10000)]
        assert 900 <= 10000 - given.count(old) <= 1100 and len(set(given)) == 2
        assert [ask(i) for i in range(0, 10000, 7)] == given[::7]


def test_a_version_that_fails_a_twentieth_is_out_within_200(tmp_path, trained, rows):
    """Two weights are so large that their sum is infinite, and every twentieth row has both pixels that they see."""
    file = os.path.join(str(tmp_path), 'm.safetensors')
    replace(file, trained[3])
    tensors = h.read_safetensors(trained[3])
    _, shape, data = tensors['fc1.weight']
    weight = numpy.frombuffer(data, '<f4').reshape(shape).copy()
    weight[0, :2] = 3e38  # of one unit: inf minus inf would be 0 after relu
    whole = open(trained[3], 'rb').read()
    assert whole.count(data) == 1
    (tmp_path / 'broken').write_bytes(whole.replace(data, weight.tobytes()).replace(b'"digest"', b'"digesf"'))
    good, bad = rows[:1].copy(), rows[:1].copy()
    good[..., 0, :2], bad[..., 0, :2] = 0, 255
    with s.Serve(tmp_path, {'m': file}, {'poll': '50ms', 'canary': 1, 'canary_for': '1h'}) as serve:
        old = json.loads(serve.get('/v2/models/m')[2])['versions'][0]
        replace(file, str(tmp_path / 'broken'))
        h.wait_until(lambda: len(json.loads(serve.get('/v2/models/m')[2])['versions']) == 2, 10, 'the trial')
        connection, failed = serve.connect(), 0
        for n in range(1, 1000):
            status, said = s.infer(connection, 'm', s.question((good if n % 20 else bad).tolist(), 'UINT8'), {'Mfl-Key': str(n)})
            failed += status == 500
            if status == 200 and said['model_version'] == old:
                break
        assert n <= 200 and 3 <= failed <= 10


def test_a_restart_needs_the_cache_alone(tmp_path, trained, rows):
    file = os.path.join(str(tmp_path), 'm.safetensors')
    config = {'cache_dir': str(tmp_path / 'cache'), 'poll': '50ms'}
    replace(file, trained[3])
    with s.Serve(tmp_path, {'m': file}, config) as serve:
        before = ask_each(serve, rows[:5])
        h.wait_until(lambda: os.path.exists(tmp_path / 'cache' / 'm' / 'current'), 10, 'the note in the cache')
        serve.kill()
    os.unlink(file)
    with s.Serve(tmp_path, {'m': file}, config) as serve:
        assert ask_each(serve, rows[:5]) == before
        replace(file, trained[1])
        h.wait_until(lambda: ask_each(serve, rows[:5]) != before, 10, 'the file that is there again')
        assert serve.stop() == 0
    copy = next(p for p in (tmp_path / 'cache' / 'm').iterdir() if p.name.startswith((tmp_path / 'cache' / 'm' / 'current').read_text()[:16]))
    data = bytearray(copy.read_bytes())
    data[-1] ^= 1
    copy.write_bytes(data)
    os.unlink(file)
    with s.Serve(tmp_path, {'m': file}, config, ready=False) as serve:
        h.wait_until(lambda: 'the copy is damaged' in serve.log(), 10, 'the complaint')
        assert serve.get('/v2/health/ready')[0] == 503


def test_a_name_that_has_another_source_is_another_model(tmp_path, trained, rows):
    """The cache of a name is of the file, the job or the registered model that it had: under another configuration it is no answer."""
    cache = tmp_path / 'cache'
    config = {'cache_dir': str(cache), 'poll': '50ms'}
    files = {n: os.path.join(str(tmp_path), '%d.safetensors' % n) for n in trained}
    replace(files[3], trained[3])
    with s.Serve(tmp_path, {'m': files[3]}, config) as serve:
        before = ask_each(serve, rows[:5])
        h.wait_until(lambda: os.path.exists(cache / 'm' / 'current'), 10, 'the note in the cache')
        assert serve.stop() == 0
    # Another file, which is not there: nothing is served in its place; a job and an alias of a server that is away: neither.
    gone = ('--server', '127.0.0.1:1')
    for options, models in (((), {'m': files[1]}), ((*gone, '--follow', 'm=j-000001'), {}), ((*gone, '--follow', 'm=digits@champion'), {})):
        with s.Serve(tmp_path, models, config, options, ready=False) as serve:
            h.wait_until(lambda serve=serve: 'is of another source' in serve.log(), 10, 'the look at the cache')
            assert serve.get('/v2/health/ready')[0] == 503
            assert s.infer(serve.connect(), 'm', s.question(rows[:1].tolist(), 'UINT8'))[0] == 503
            assert serve.stop() == 0
    # The one before, from the cache alone; then the other one, which takes the cache over.
    os.unlink(files[3])
    with s.Serve(tmp_path, {'m': files[3]}, config) as serve:
        assert ask_each(serve, rows[:5]) == before and serve.stop() == 0
    replace(files[1], trained[1])
    with s.Serve(tmp_path, {'m': files[1]}, config) as serve:
        assert ask_each(serve, rows[:5]) != before
        h.wait_until(lambda: files[1] in (cache / 'm' / 'current').read_text(), 10, 'the note in the cache')
        assert serve.stop() == 0
    with s.Serve(tmp_path, {'m': files[3]}, config, ready=False) as serve:
        h.wait_until(lambda: 'no such file' in serve.log(), 10, 'the complaint')
        assert serve.get('/v2/health/ready')[0] == 503


def test_the_index_of_models(tmp_path):
    """All of them, or those that are ready."""
    with s.Serve(tmp_path, {'m': 'identity:2', 'gone': str(tmp_path / 'nowhere')}, ready=False) as serve:
        def index(body):
            status, _, said = serve.ask('POST', '/v2/repository/index', body)
            return status, json.loads(said)

        h.wait_until(lambda: len(index('{"ready": true}')[1]) == 1, 10, 'the one that is there')
        assert [m['state'] for m in index('{"ready":false}')[1]] == ['READY', 'UNAVAILABLE'] and index('')[1] == index('{}')[1] == index('{"ready":false}')[1]
        for wrong in ('{"ready": 1}', '{"all": true}', '{', '{} x'):
            status, said = index(wrong)
            assert status == 400 and said['error'].startswith('JSON, at byte')


def test_503_until_there_is_a_model(tmp_path, trained, rows):
    file = os.path.join(str(tmp_path), 'm.safetensors')
    with s.Serve(tmp_path, {'m': file}, {'poll': '50ms'}, ready=False) as serve:
        assert serve.get('/v2/health/live')[0] == 200
        for path in ('/v2/health/ready', '/v2/models/m/ready', '/v2/models/m'):
            status, headers, body = serve.get(path)
            assert (status, headers['Retry-After']) == (503, '1') and json.loads(body)['error']
        status, said = s.infer(serve.connect(), 'm', s.question(rows[:1].tolist(), 'UINT8'))
        assert status == 503 and 'no version' in said['error']
        replace(file, trained[3])
        serve.wait_ready()
        assert ask_each(serve, rows[:1])


def test_the_queue_is_bounded_and_deadlines_hold(tmp_path):
    """A long delay keeps rows waiting for as long as this needs."""
    config = {'delay': '10s', 'batch': 8, 'queue': 4, 'deadline': '60s'}
    row = [[1.0, 2.0]]
    with s.Serve(tmp_path, {'m': 'identity:2'}, config) as serve:
        first = serve.connect()
        first.request('POST', '/v2/models/m/infer', s.question(row * 4))
        h.wait_until(lambda: b'mfl_serve_waiting_rows{model="m"} 4\n' in serve.get('/metrics')[2], 10, 'the rows to wait')
        status, headers, body = serve.ask('POST', '/v2/models/m/infer', s.question(row))
        assert status == 429 and int(headers['Retry-After']) >= 1 and '4 rows wait, at most 4 may' in json.loads(body)['error']
        first.close()  # whose rows stay in the queue until their batch
    with s.Serve(tmp_path, {'m': 'identity:2'}, config) as serve:
        connection = serve.connect()
        status, said = s.infer(connection, 'm', s.question(row, parameters={'timeout': 1000}))
        assert (status, said['error']) == (504, "the request's deadline came before its turn")
        connection.request('POST', '/v2/models/m/infer', s.question(row))
        h.wait_until(lambda: b'mfl_serve_waiting_rows{model="m"} 1\n' in serve.get('/metrics')[2], 10, 'the row to wait')
        # A full batch does not wait for the delay, and takes the row along.
        assert s.infer(serve.connect(), 'm', s.question(row * 8))[0] == 429
        assert s.infer(serve.connect(), 'm', s.question(row * 3, parameters={'timeout': 1000}))[0] == 504
        # Told to stop, it answers what it owes.
        serve.popen.terminate()
        assert connection.getresponse().status == 200
        assert serve.wait(10) == 0


@pytest.fixture
def plain(tmp_path):
    config = {'request_timeout': '1s', 'head_max': '2KiB', 'body_max': '64KiB', 'bodies_max': '2MiB', 'connections_max': 700, 'pipeline_max': 4}
    with s.Serve(tmp_path, {'m': 'identity:2'}, config) as serve:
        yield serve
        # Whatever was sent: others are answered.
        assert s.infer(serve.connect(), 'm', s.question([[1.0, -2.5]]))[1]['bits'] == [(1.0).hex(), (-2.5).hex()]
        assert serve.stop() == 0
        assert 'assert' not in serve.log()


def post(body, *headers):
    head = 'POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n' + ''.join(line + '\r\n' for line in headers)
    return head.encode() + b'\r\n' + body.encode()


GOOD = s.question([[1.0, 2.0]])


@pytest.mark.parametrize('request_bytes, status', [
    (b'nonsense\r\n\r\n', 400),
    (b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03', 400),
    (b'GET /v2 HTTP/1.1\r\n\r\n', 400),
    (b'GET /v2 HTTP/3.0\r\nHost: x\r\n\r\n', 505),
    (b'GET /v2 HTTP/1.1\r\nHost: x\r\nX: ' + b'a' * 5000 + b'\r\n\r\n', 431),
    (b'GET /' + b'a' * 1500 + b' HTTP/1.1\r\nHost: x\r\n\r\n', 414),
    (post(GOOD, 'Content-Length: 5', 'Transfer-Encoding: chunked'), 400),
    (post(GOOD, 'Content-Length: 5', 'Content-Length: 6'), 400),
    (post(GOOD, 'Content-Length: 99999999999999999999999'), 400),
    (post(GOOD, 'Content-Length: 9999999999'), 413),
    (post('fffffffffff\r\n', 'Transfer-Encoding: chunked'), 413),
    (post('20000\r\n' + 'x' * 0x20000 + '\r\n0\r\n\r\n', 'Transfer-Encoding: chunked'), 413),
    (post('zz\r\n', 'Transfer-Encoding: chunked'), 400),
    (post(GOOD, 'Content-Length: %d' % (len(GOOD) + 10)), 408),
    (b'GET /v2 HTTP/1.1\r\nHost: ', 408),
    (post(GOOD, 'Expect: wonders', 'Content-Length: 5'), 417),
], ids=lambda v: ''.join(c if c.isalnum() else '-' for c in ascii(v)[:50]))
def test_what_is_no_request_is_answered_and_closed(plain, request_bytes, status):
    with plain.raw() as sock:
        sock.sendall(request_bytes)
        stream = sock.makefile('rb')
        got, headers, body = s.read_answer(stream)
        assert got == status and headers['connection'] == 'close' and json.loads(body)['error']
        assert stream.read() == b''


@pytest.mark.parametrize('body, why', [
    ('', 'ends here'),
    ('{"inputs": 3}', "expected '['"),
    (s.question([[1.0]]), 'this model takes [n, 2]'),
    (s.question([[1.0, 2.0]], datatype='INT32'), 'takes FP32, not INT32'),
    (s.question([[1.0, float('nan')]]), 'JSON has no NaN'),
    (s.question([[1.0, 2.0]], priority=1), "'priority' is not supported"),
    ('[' * 30000, "expected '{'"),
    ('{"inputs":[{"name":"input","shape":[1,2],"datatype":"FP32","data":' + '[' * 1000, 'deeper'),
    (s.question([[1.0, 2.0]])[:-4], ''),
], ids=lambda v: ''.join(c if c.isalnum() else '-' for c in ascii(v)[:50]))
def test_wrong_questions_get_400_and_the_connection_stays(plain, body, why):
    connection = plain.connect()
    status, said = s.infer(connection, 'm', body)
    assert status == 400 and why in said['error'] and said['error'].startswith(('JSON, at byte', 'inputs'))
    assert s.infer(connection, 'm', GOOD)[0] == 200  # the same one
    connection.close()


def test_paths_and_methods(plain):
    for method, path, status in (('GET', '/', 404), ('GET', '/v2/models/x', 404), ('GET', '/v2/models/m/versions/0', 404), ('GET', '/v2/models/m/infer', 405),
                                 ('POST', '/v2', 405), ('DELETE', '/v2/models/m', 405), ('HEAD', '/v2', 200), ('POST', '/v2/models/m/rollback', 404)):
        got, headers, body = plain.ask(method, path)
        assert got == status, (method, path)
        assert status != 405 or headers['Allow']
        assert (body == b'') == (method == 'HEAD')
    assert plain.ask('POST', '/v2/models/m/infer', GOOD, {'Content-Encoding': 'gzip'})[0] == 415


def test_rows_that_are_not_finite_harm_no_others(plain):
    """Beside good ones, in the same batches."""
    head = json.dumps({'inputs': [{'name': 'input', 'shape': [1, 2], 'datatype': 'FP32', 'parameters': {'binary_data_size': 8}}]}).encode()
    wrong = []

    def load(value):
        connection = plain.connect()
        for _ in range(50):
            status, said = s.infer(connection, 'm', head + struct.pack('<2f', 3.5, value), {'Inference-Header-Content-Length': str(len(head))})
            if (status, said.get('bits')) != ((200, [(3.5).hex(), value.hex()]) if value == 1.5 else (400, None)):
                wrong.append((status, said))
        connection.close()

    threads = [threading.Thread(target=load, args=(v,)) for v in (1.5, float('nan'), 1.5, float('inf'), 1.5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_pipelined_and_chunked_requests_are_answered_in_order(plain):
    one, two = s.question([[1.0, 2.0]], id='one'), s.question([[3.0, 4.0]], id='two')
    requests = b''
    for i in range(30):
        requests += post(one, 'Content-Length: %d' % len(one))
        requests += post('%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n' % (10, two[:10], len(two) - 10, two[10:]), 'Transfer-Encoding: chunked')
        requests += b'GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n'
    with plain.raw() as sock:
        sock.sendall(requests)
        sock.shutdown(socket.SHUT_WR)  # half open: the answers are still wanted
        stream = sock.makefile('rb')
        for i in range(90):
            status, _, body = s.read_answer(stream)
            assert status == 200 and (i % 3 == 2 or json.loads(body)['id'] == ('one', 'two')[i % 3])
        assert stream.read() == b''


def test_a_client_of_http_1_0(plain):
    """It must be told that the connection stays, and it knows no "100 Continue"."""
    ask = post(GOOD, 'Content-Length: %d' % len(GOOD), 'Connection: keep-alive', 'Expect: 100-continue').replace(b'HTTP/1.1', b'HTTP/1.0')
    with plain.raw() as sock:
        stream = sock.makefile('rb')
        for _ in range(2):
            sock.sendall(ask)
            status, headers, _ = s.read_answer(stream)
            assert status == 200 and headers['connection'] == 'keep-alive'
        sock.sendall(ask.replace(b'Connection: keep-alive\r\n', b''))
        status, headers, _ = s.read_answer(stream)
        assert status == 200 and headers['connection'] == 'close' and stream.read() == b''


def test_a_row_as_bytes_alone(plain):
    """Triton's raw binary request: no JSON goes, and the answer's numbers are bytes."""
    status, said = s.infer(plain.connect(), 'm', struct.pack('<2f', 1.5, -2), {'Inference-Header-Content-Length': '0'})
    assert status == 200 and said['bits'] == [(1.5).hex(), (-2.0).hex()]
    assert s.infer(plain.connect(), 'm', struct.pack('<4f', 1, 2, 3, 4), {'Inference-Header-Content-Length': '0'})[0] == 400


def test_a_client_may_ask_before_it_sends(plain):
    with plain.raw() as sock:
        sock.sendall(post('', 'Content-Length: %d' % len(GOOD), 'Expect: 100-continue'))
        stream = sock.makefile('rb')
        assert stream.readline() == b'HTTP/1.1 100 Continue\r\n' and stream.readline() == b'\r\n'
        sock.sendall(GOOD.encode())
        assert s.read_answer(stream)[0] == 200


def test_many_connections_that_say_nothing_or_little(plain):
    sockets = [plain.raw() for _ in range(600)]
    for i, sock in enumerate(sockets[:300]):
        sock.sendall(post(GOOD, 'Content-Length: %d' % (len(GOOD) + 1))[:20 + i])
    for _ in range(20):
        assert plain.ask('POST', '/v2/models/m/infer', GOOD)[0] == 200
    # Beyond connections_max they are closed at once, and the others stay.
    more = [plain.raw() for _ in range(150)]
    assert any(sock.recv(1) == b'' for sock in more[-1:])
    for sock in sockets[:300]:
        stream = sock.makefile('rb')
        assert s.read_answer(stream)[0] == 408 and stream.read() == b''
    for sock in sockets + more:
        sock.close()


def resident(serve):
    """KiB"""
    with open('/proc/%d/status' % serve.pid, encoding='ascii') as f:
        return next(int(line.split()[1]) for line in f if line.startswith('VmRSS'))


def test_an_answer_that_nobody_reads_stops_the_reading(plain):
    """Questions without end on one connection, whose answers stay unread: the server reads no more of them, and keeps little."""
    big = s.question([[float(i), 0.1] for i in range(1000)])
    data = post(big, 'Content-Length: %d' % len(big))
    for _ in range(50):
        plain.ask('POST', '/v2/models/m/infer', big)
    before = resident(plain)
    with plain.raw() as sock:
        sock.setblocking(False)
        sent, stalled = 0, 0
        while stalled < 20:
            try:
                sent += sock.send(data[sent % len(data):])
                stalled = 0
            except BlockingIOError:
                stalled += 1
                threading.Event().wait(0.02)
            assert sent < 64 << 20
        assert plain.ask('POST', '/v2/models/m/infer', GOOD)[0] == 200
    with open('/proc/%d/maps' % plain.pid, encoding='ascii', errors='replace') as f:
        sanitized = 'libasan' in f.read()  # which keeps what is freed for a while
    assert sanitized or resident(plain) < before + (64 << 10)


def test_keys_and_tls(tmp_path):
    mfl_needs.program('openssl')
    ca = mfl_certs.Ca(tmp_path / 'ca')
    cert, key = ca.server()
    keys = tmp_path / 'keys'
    keys.write_text('# of the test\nann 0123456789abcdef\nroot fedcba9876543210 admin\n')
    keys.chmod(0o600)
    options = ('--tls-cert', cert, '--tls-key', key, '--api-keys', str(keys))
    with s.Serve(tmp_path, {'m': 'identity:2'}, options=options, ready=False) as serve:
        context = ca.python()

        def ask(method, path, bearer=None, body=None):
            connection = s.http.client.HTTPSConnection(*serve.place, timeout=30, context=context)
            connection.request(method, path, body, {'Authorization': 'Bearer ' + bearer} if bearer else {})
            answer = connection.getresponse()
            said = answer.read()
            connection.close()
            return answer.status, said

        h.wait_until(lambda: ask('GET', '/v2/health/ready')[0] == 200, 10, 'readiness')
        path = '/v2/models/m/infer'
        assert ask('POST', path, body=GOOD)[0] == 401
        assert ask('POST', path, 'x' * 16, GOOD)[0] == 401
        assert ask('GET', '/metrics')[0] == 401
        status, said = ask('POST', path, '0123456789abcdef', GOOD)
        assert status == 200 and json.loads(said)['outputs'][0]['data'] == [1, 2]
        big = s.question([[i, 0.1] for i in range(1000)])  # several records each way
        assert len(json.loads(ask('POST', path, '0123456789abcdef', big)[1])['outputs'][0]['data']) == 2000
        assert ask('POST', '/v2/models/m/rollback', '0123456789abcdef')[0] == 403
        assert ask('POST', '/v2/models/m/rollback', 'fedcba9876543210')[0] == 404  # there is none
        for data in (b'GET / HTTP/1.1\r\n\r\n', b'\x16\x03\x01\x00\x05hello', b'MFLP'):
            with serve.raw() as sock:
                sock.sendall(data)
                sock.recv(1000)
        # Other certificates and keys, without a restart; wrong ones change nothing.
        keys.write_text('ann short\n')
        serve.signal(signal.SIGHUP)
        h.wait_until(lambda: 'keys:1: a key has at least 16 characters' in serve.log(), 10, 'the complaint')
        assert ask('GET', '/v2', '0123456789abcdef')[0] == 200
        keys.write_text('ben 0123456789ABCDEF\n')
        serve.signal(signal.SIGHUP)
        h.wait_until(lambda: 'keys read again' in serve.log(), 10, 'the reload')
        assert ask('GET', '/v2', '0123456789abcdef')[0] == 401
        assert ask('GET', '/v2', '0123456789ABCDEF')[0] == 200
        assert serve.stop() == 0


def test_a_certificate_that_expires(tmp_path):
    """While the server runs, which says so; a new one in its place, and SIGHUP, without a restart."""
    mfl_needs.program('openssl')
    ca = mfl_certs.Ca(tmp_path / 'ca')
    cert, key = ca.server(end=10 / 86400)
    with s.Serve(tmp_path, {'m': 'identity:2'}, options=('--tls-cert', cert, '--tls-key', key), ready=False) as serve:
        def expires():
            connection = s.http.client.HTTPSConnection(*serve.place, timeout=30, context=ca.python())
            connection.request('GET', '/metrics')
            told = connection.getresponse().read().split(b'\nmfl_serve_certificate_expires_seconds ')[1].split()[0]
            with connection.sock as sock:
                assert int(told) == ssl.cert_time_to_seconds(sock.getpeercert()['notAfter'])
            return int(told)

        first = expires()
        h.wait_until(lambda: 'has expired: clients refuse it' in serve.log(), 60, 'the complaint')
        assert 'expires in 0 hours' in serve.log()
        with pytest.raises(OSError):
            expires()
        serve.signal(signal.SIGHUP)
        h.wait_until(lambda: 'certificates and keys stay as they were' in serve.log(), 10, 'the refusal')
        ca.server()
        serve.signal(signal.SIGHUP)
        h.wait_until(lambda: 'certificates and keys read again' in serve.log(), 10, 'the reload')
        assert expires() > first and serve.stop() == 0


def test_clients_with_certificates(tmp_path):
    """With tls_ca, those that the CA has issued."""
    mfl_needs.program('openssl')
    ca = mfl_certs.Ca(tmp_path / 'ca')
    cert, key = ca.server()
    with s.Serve(tmp_path, {'m': 'identity:2'}, options=('--tls-cert', cert, '--tls-key', key), config={'tls_ca': ca.ca}, ready=False) as serve:
        def ask(pair):
            connection = s.http.client.HTTPSConnection(*serve.place, timeout=30, context=ca.python(pair))
            connection.request('GET', '/v2/health/live')
            return connection.getresponse().status

        assert ask(ca.issue('ann', roles=['viewer'])) == 200
        with pytest.raises(OSError):
            ask(None)
        assert ask(ca.issue('ben', roles=['viewer'])) == 200


@pytest.mark.parametrize('options, why', [
    (('--listen', '0.0.0.0:0'), 'is not a loopback address'),
    (('--listen', 'x y'), 'listen'),
    (('--model', 'a/b=identity:1'), 'no name for a model'),
    (('--model', 'm=identity:1', '--model', 'm=identity:2'), "'m' twice"),
    (('--tls-cert', '/nowhere'), 'tls_key is missing'),
    (('--api-keys', '/nowhere'), '/nowhere: no such file'),
    (('--follow', 'm=j-000001'), 'server is missing'),
    (('--follow', 'm=j-000001', '--server', '127.0.0.1:1'), 'cache_dir is missing'),
    (('--model', 'm=identity:2', '--server', '127.0.0.1:1'), 'server is 127.0.0.1:1, but no model follows it'),
    (('--backend', 'reference', '--precision', 'bf16'), 'fp32 is computed everywhere'),
    (('--model', 'm=identity:2', '--threads', '2', '--instances', '3'), 'set threads (--threads) to 3'),
])
def test_wrong_settings(tmp_path, options, why):
    serve = s.Serve(tmp_path, {} if {'--model', '--follow'} & set(options) else {'m': 'identity:1'}, options=options, ready=False)
    assert serve.wait(10) == 78 and why in serve.log()
    serve.kill()


def test_the_backend_that_is_asked_for(tmp_path, trained, rows):
    """Not the one that `auto` would take; one that is not there ends the start, and so does a name that is none."""
    with s.Serve(tmp_path, {'m': trained[3]}, {'backend': 'reference'}) as serve:
        got = numpy.array([[float.fromhex(v) for v in row] for row in ask_each(serve, rows[:3])])
        assert numpy.abs(got - forward(trained[3], rows[:3])).max() <= 1e-5 * max(1, numpy.abs(got).max())
        with open('/proc/%d/maps' % serve.pid, encoding='utf-8') as maps:
            assert 'libmfl_' not in maps.read()
        assert serve.stop() == 0
    (tmp_path / 'libmfl_cuda_emulated.so').write_text('no module')
    for options, status, why in ((('--backend', 'cuda'), 78, 'backend cuda: '), (('--backend', 'gpu'), 2, 'expected auto, cpu, reference or cuda')):
        serve = s.Serve(tmp_path, {'m': trained[3]}, options=options, ready=False, env={'MFL_MODULE_DIR': str(tmp_path)})
        assert serve.wait(10) == status and why in serve.log()
        serve.kill()


def test_triton_client(tmp_path, trained, rows):
    """The client of others, as it is."""
    client_of = mfl_needs.module('tritonclient.http')
    with s.Serve(tmp_path, {'m': trained[3]}) as serve:
        client = client_of.InferenceServerClient(serve.address)
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready('m')
        about = client.get_model_metadata('m')
        assert about['inputs'][0]['shape'] == [-1, 1, 8, 8] and client.get_model_config('m')['input'][0]['dims'] == [1, 8, 8]
        assert client.get_server_metadata()['name'] == 'mfl-serve' and client.get_model_repository_index()[0]['state'] == 'READY'
        expected = ask_each(serve, rows[:8])
        for binary in (True, False):
            given = client_of.InferInput('input', [8, 1, 8, 8], 'UINT8')
            given.set_data_from_numpy(rows[:8], binary_data=binary)
            wanted = [client_of.InferRequestedOutput('logits', binary_data=binary)]
            answer = client.infer('m', [given], outputs=wanted, request_id='x')
            got = answer.as_numpy('logits')
            assert [[float(v).hex() for v in row] for row in got] == expected
            assert answer.get_response()['model_version'] == about['versions'][0]
            best = client.infer('m', [given], outputs=[client_of.InferRequestedOutput('logits', binary_data=binary, class_count=2)]).as_numpy('logits')
            assert [int(row[0].decode().split(':')[1] if binary else row[0].split(':')[1]) for row in best.tolist()] == got.argmax(1).tolist()
        with pytest.raises(client_of.InferenceServerException, match='no model'):
            client.infer('x', [given])


def test_follows_a_job(tmp_path, rows):
    """Each round is served when it is committed; what is served stays when the server goes, over a restart, and goes on when it is back."""
    config = {'cache_dir': str(tmp_path / 'cache')}
    with h.start_cluster(tmp_path / 'cluster') as c:
        job = c.begin(rounds=h.ENDLESS)
        options = ('--server', c.address, '--follow', 'm=' + job)

        def about(serve):
            return json.loads(serve.get('/v2/models/m')[2])['parameters']

        with s.Serve(tmp_path, config=config, options=options) as serve:
            first = about(serve)['round']
            h.wait_until(lambda: about(serve)['round'] >= first + 2, 20, 'two more rounds')
            # What is served is that round.
            c.stop_job(job)
            newest = max(r['round'] for r in c.rounds(job))
            h.wait_until(lambda: about(serve)['round'] == newest, 20, 'the last round')
            file = os.path.join(str(tmp_path), 'pulled.safetensors')
            c.mfl('pull', job, '-o', file)
            bits = ask_each(serve, rows[:5])
            got = numpy.array([[float.fromhex(v) for v in row] for row in bits])
            assert numpy.abs(got - forward(file, rows[:5])).max() <= 1e-5 * max(1, numpy.abs(got).max())
            assert b'mfl_serve_following{model="m"} 1\n' in serve.get('/metrics')[2]
            c.server.kill()
            h.wait_until(lambda: b'mfl_serve_following{model="m"} 0\n' in serve.get('/metrics')[2], 20, 'the loss')
            assert ask_each(serve, rows[:5]) == bits
            serve.kill()
        with s.Serve(tmp_path, config=config, options=options) as serve:
            assert ask_each(serve, rows[:5]) == bits and about(serve)['round'] == newest
            c.start_server()
            h.wait_until(lambda: b'mfl_serve_following{model="m"} 1\n' in serve.get('/metrics')[2], 20, 'the connection')
            assert ask_each(serve, rows[:5]) == bits
            assert serve.stop() == 0


def flip(path):
    """One bit near the end, where the params are."""
    with open(path, 'r+b') as f:
        f.seek(-101, 2)
        byte = f.read(1)[0]
        f.seek(-101, 2)
        f.write(bytes([byte ^ 4]))


def test_a_bit_that_has_changed(tmp_path, trained, rows):
    """In the last round that came: the copy is served, while the server is away, and the round comes again when it is back. In a file of the configuration: it
    is no model."""
    config = {'cache_dir': str(tmp_path / 'cache'), 'poll': '50ms'}
    with h.start_cluster(tmp_path / 'cluster') as c:
        job, _ = c.run_job()
        options = ('--server', c.address, '--follow', 'm=' + job)
        with s.Serve(tmp_path, config=config, options=options) as serve:
            bits = ask_each(serve, rows[:5])
            # Nobody else may use its cache.
            other = s.Serve(tmp_path / 'cluster', config=config, options=options, ready=False)
            assert other.wait(10) == 78 and 'another mfl-serve uses %s' % config['cache_dir'] in other.log()
            assert serve.stop() == 0
        c.server.kill()
        followed, = (tmp_path / 'cache' / 'm').glob('followed-*')
        for part in (-101, 100):
            good = followed.read_bytes()
            flip(str(followed)) if part < 0 else followed.write_bytes(good[:part] + bytes([good[part] ^ 1]) + good[part + 1:])  # pylint: disable=expression-not-assigned
            with s.Serve(tmp_path, config=config, options=options) as serve:
                assert ask_each(serve, rows[:5]) == bits and 'the file is damaged; it is removed' in serve.log()
                assert serve.stop() == 0
            assert not followed.exists()
            followed.write_bytes(good)
        followed.unlink()
        followed.symlink_to('/proc/self/mem')  # whose first byte can't be read, as on a broken disk
        with s.Serve(tmp_path, config=config, options=options) as serve:
            assert ask_each(serve, rows[:5]) == bits and 'Input/output error' in serve.log() and serve.stop() == 0
        followed.unlink()
        followed.write_bytes(good)
        flip(str(followed))
        with s.Serve(tmp_path, config=config, options=options) as serve:
            c.start_server()
            h.wait_until(followed.exists, 30, 'the round to come again')
            assert ask_each(serve, rows[:5]) == bits and serve.stop() == 0
    file = str(tmp_path / 'm.safetensors')
    shutil.copy(trained[3], file)
    flip(file)
    with s.Serve(tmp_path, {'m': file}, ready=False) as serve:
        h.wait_until(lambda: "its metadata 'digest' says" in serve.log(), 10, 'the complaint')
        assert serve.get('/v2/health/ready')[0] == 503


def test_a_version_without_memory_is_tried_again(tmp_path, trained, rows):
    """No change of the model's file tells when there is some."""
    with s.Serve(tmp_path, {'m': trained[3]}, env={'MFL_FAULT': 'open-lane:1:enospc'}, ready=False) as serve:
        h.wait_until(lambda: "a version's queue" in serve.log(), 10, 'the complaint')
        serve.wait_ready(30)
        assert ask_each(serve, rows[:2]) and serve.stop() == 0


def test_a_cache_that_can_t_be_locked(tmp_path, trained, rows):
    """Some network file systems lock no directories: it is used all the same."""
    with s.Serve(tmp_path, {'m': trained[3]}, {'cache_dir': str(tmp_path / 'cache')}, env={'MFL_FAULT': 'lock-cache:1:eio'}) as serve:
        assert "can't be locked (Input/output error)" in serve.log() and ask_each(serve, rows[:2]) and serve.stop() == 0


def test_a_cache_that_can_t_be_written_is_tried_again(tmp_path, trained, rows):
    """As after a full disk; no change of the model's file tells when."""
    (tmp_path / 'cache').mkdir()
    (tmp_path / 'cache' / 'm').write_text('in the way')
    with s.Serve(tmp_path, {'m': trained[3]}, {'cache_dir': str(tmp_path / 'cache'), 'poll': '50ms'}, ready=False) as serve:
        h.wait_until(lambda: 'Not a directory' in serve.log() or 'File exists' in serve.log(), 10, 'the complaint')
        (tmp_path / 'cache' / 'm').unlink()
        serve.wait_ready(30)
        assert ask_each(serve, rows[:2]) and serve.stop() == 0
    (tmp_path / 'file').write_text('no directory')
    serve = s.Serve(tmp_path, {'m': trained[3]}, {'cache_dir': str(tmp_path / 'file')}, ready=False)
    assert serve.wait(10) == 78 and 'cache_dir: ' in serve.log()


def test_a_server_with_another_name(tmp_path, rows):
    """The text of `server` says where a server is, not which one: with another text the last round is served until the server behind it has answered.
    One that knows nothing of the job ends that."""
    config = {'cache_dir': str(tmp_path / 'cache')}

    def folder(name):
        (tmp_path / name).mkdir()
        return tmp_path / name

    def follow(server):
        return ('--server', server, '--follow', 'm=' + job)

    with h.start_cluster(tmp_path / 'cluster') as c:
        job, _ = c.run_job()
        with s.Serve(folder('first'), config=config, options=follow(c.address)) as serve:
            bits = ask_each(serve, rows[:5])
            assert serve.stop() == 0 and 'came from' not in serve.log()
        port = c.address.rsplit(':', 1)[1]
        renamed = follow('localhost:%s' % port)
        c.server.kill()
        with s.Serve(folder('renamed'), config=config, options=renamed) as serve:
            assert ask_each(serve, rows[:5]) == bits
            assert 'came from %s; it is served until localhost:%s has answered' % (c.address, port) in serve.log()
            c.start_server()
            h.wait_until(lambda: 'has come' in serve.log(), 20, 'the round')
            assert ask_each(serve, rows[:5]) == bits and serve.stop() == 0
        with s.Serve(folder('again'), config=config, options=renamed) as serve:
            assert ask_each(serve, rows[:5]) == bits and serve.stop() == 0 and 'came from' not in serve.log()
    # Another installation: with no such job, and with a job of this number that has no round yet.
    for begun in (False, True):
        with h.start_cluster(tmp_path / ('other%d' % begun), 0) as other:
            if begun:
                assert other.submit(rounds=1) == job
            shutil.copytree(tmp_path / 'cache', tmp_path / ('cache%d' % begun))
            with s.Serve(folder('denied%d' % begun), config={'cache_dir': str(tmp_path / ('cache%d' % begun))}, options=follow(other.address), ready=False) as serve:
                h.wait_until(lambda serve=serve: 'nothing is served until it does' in serve.log(), 20, 'the denial')
                h.wait_until(lambda serve=serve: serve.get('/v2/health/ready')[0] == 503, 20, 'the end of it')
                assert s.infer(serve.connect(), 'm', s.question(rows[:1].tolist(), 'UINT8'))[0] == 503
                if begun:
                    other.start_daemon('d9')
                    serve.wait_ready(30)
                    assert ask_each(serve, rows[:1]) != bits[:1]
                assert serve.stop() == 0


def test_a_round_whose_file_is_gone(tmp_path, rows):
    """The server has the job and the round, and only its file is not there: that is no denial, so what another name of the server has brought stays,
    and the next round takes its place."""
    config = {'cache_dir': str(tmp_path / 'cache')}
    for name in ('first', 'renamed'):
        (tmp_path / name).mkdir()
    with h.start_cluster(tmp_path / 'cluster', 0) as c:
        daemon = c.start_daemon('d1')
        job = c.begin(rounds=h.ENDLESS)
        follow = ('--follow', 'm=' + job)
        with s.Serve(tmp_path / 'first', config=config, options=('--server', c.address, *follow)) as serve:
            daemon.kill()
            h.wait_until(lambda: not c.mfl_json('daemons')['daemons'], 20, 'the daemon to be gone')
            newest = max(r['round'] for r in c.rounds(job))
            h.wait_until(lambda: json.loads(serve.get('/v2/models/m')[2])['parameters']['round'] == newest, 20, 'the last round')
            bits = ask_each(serve, rows[:5])
            assert serve.stop() == 0
        gone = [str(path) for path in (tmp_path / 'cluster').rglob('round-*.safetensors') if job in str(path)]
        assert gone
        for path in gone:
            os.rename(path, path + '.away')
        renamed = 'localhost:%s' % c.address.rsplit(':', 1)[1]
        with s.Serve(tmp_path / 'renamed', config=config, options=('--server', renamed, *follow)) as serve:
            h.wait_until(lambda: 'what is served stays' in serve.log(), 20, 'the complaint')
            assert 'nothing is served' not in serve.log() and ask_each(serve, rows[:5]) == bits
            for path in gone:
                os.rename(path + '.away', path)
            c.start_daemon('d2')
            h.wait_until(lambda: json.loads(serve.get('/v2/models/m')[2])['parameters']['round'] > newest, 60, 'the next round')
            assert serve.stop() == 0


def test_follows_a_registered_model(tmp_path, rows):
    """The version that the alias has, over TLS with OU=serve, which allows nothing else; the server knows who serves what."""
    mfl_needs.program('openssl')
    ca = mfl_certs.Ca(tmp_path / 'ca')
    ca.server()
    ca.pairs = {name: ca.issue(name, roles) for name, roles in {'ann': ['operator'], 'root': ['admin'], 'd1': ['daemon'], 'web': ['serve']}.items()}
    with TlsCluster(tmp_path / 'cluster', ca) as c:
        c.start_server()
        c.start_daemon('d1')
        job, _ = c.run_job()
        for n in (1, 3):
            c.mfl('model', 'register', job, '--as', 'digits', '--round', n)
        options = ('--server', c.address, '--server-ca', ca.ca, '--server-cert', ca.pairs['web'][0], '--server-key', ca.pairs['web'][1],
                   '--follow', 'm=digits@champion')
        config = {'cache_dir': str(tmp_path / 'cache')}
        with s.Serve(tmp_path, config=config, options=options, ready=False) as serve:
            h.wait_until(lambda: "there is no model 'digits@champion'" in serve.log(), 10, 'the complaint')
            assert serve.get('/v2/health/ready')[0] == 503
            c.mfl('model', 'alias', 'digits@champion', '1')
            serve.wait_ready(30)

            def served():
                return json.loads(serve.get('/v2/models/m')[2])['parameters']['round']

            assert served() == 1
            first = ask_each(serve, rows[:5])
            c.mfl('model', 'alias', 'digits@champion', '2')
            h.wait_until(lambda: served() == 3, 10, 'the second version')
            c.mfl('model', 'rollback', 'digits@champion')
            h.wait_until(lambda: served() == 1, 10, 'the first version again')
            assert ask_each(serve, rows[:5]) == first
            h.wait_until(lambda: [(one['who'], one['name'], one['model'], one['job'], one['round'])
                                  for one in c.mfl_json('model', 'serving')['serving'] if one['p99_us']]
                         == [('web', 'm', 'digits@champion', job, 1)], 20, 'the server to know')
            denied = dict(zip(('MFL_TLS_CA', 'MFL_TLS_CERT', 'MFL_TLS_KEY'), (ca.ca, *ca.pairs['web'])))
            for words in (('list',), ('model', 'list'), ('stop', job), ('logs', job), ('model', 'serving'), ('model', 'alias', 'digits@champion', '2')):
                assert 'may only load models' in h.mfl(*words, server=c.address, status=5, env=denied).stderr, words
            h.mfl('pull', job, '-o', str(tmp_path / 'pulled'), server=c.address, env=denied)
            c.server.kill()
            h.wait_until(lambda: b'mfl_serve_following{model="m"} 0\n' in serve.get('/metrics')[2], 20, 'the loss')
            serve.kill()
        with s.Serve(tmp_path, config=config, options=options) as serve:
            assert ask_each(serve, rows[:5]) == first and serve.stop() == 0


def test_a_version_in_the_mirror(tmp_path, trained, rows):
    """It computes what the other one has answered, nobody gets its answers, and it takes over; one whose answers are no numbers goes out."""
    file = os.path.join(str(tmp_path), 'm.safetensors')
    replace(file, trained[3])
    with s.Serve(tmp_path, {'m': file}, {'poll': '50ms', 'mirror': 1, 'canary_for': '3s'}) as serve:
        def versions():
            return json.loads(serve.get('/v2/models/m')[2])['versions']

        def metric(name):
            return float(next(line.split()[1] for line in serve.get('/metrics')[2].decode().splitlines() if line.startswith('mfl_serve_%s{' % name)))

        before, (old,) = ask_each(serve, rows[:10]), versions()
        requests = metric('requests_total')
        replace(file, trained[1])
        h.wait_until(lambda: len(versions()) == 2, 10, 'the trial')
        asked = [ask_each(serve, rows[:10]) for _ in range(2)]
        if versions()[0] == old:  # the trial went on all the time
            assert asked == [before, before] and metric('requests_total') == requests + 20
            h.wait_until(lambda: metric('mirrored_total') + metric('mirror_dropped_total') == 20, 10, 'the copies')
            assert metric('mirror_difference') > 0
        h.wait_until(lambda: versions()[0] != old, 10, 'its end')
        good = ask_each(serve, rows[:10])
        assert good != before
        with open(trained[3], 'rb') as f:
            broken = f.read().replace(b'"digest"', b'"digesf"')[:-16] + struct.pack('<4f', *[float('nan')] * 4)
        (tmp_path / 'broken').write_bytes(broken)
        replace(file, str(tmp_path / 'broken'))
        h.wait_until(lambda: ask_each(serve, rows[:10]) == good and metric('failed_trials_total') == 1, 10, 'the end of the broken version')
        assert metric('failed_total') == 0 and math.isinf(metric('mirror_difference'))


def test_a_source_that_goes_back(tmp_path, trained, rows):
    """It ends a trial at once, and what was rolled back may come again after it."""
    file = os.path.join(str(tmp_path), 'm.safetensors')
    replace(file, trained[1])
    with s.Serve(tmp_path, {'m': file}, {'poll': '50ms', 'canary': 0.5, 'canary_for': '1h'}) as serve:
        def versions():
            return json.loads(serve.get('/v2/models/m')[2])['versions']

        first, before = versions(), ask_each(serve, rows[:20])
        replace(file, trained[3])
        h.wait_until(lambda: len(versions()) == 2, 10, 'the trial')
        replace(file, trained[1])
        h.wait_until(lambda: versions() == first, 10, 'its end')
        assert ask_each(serve, rows[:20]) == before
        replace(file, trained[3])
        h.wait_until(lambda: len(versions()) == 2, 10, 'the trial again')
    with s.Serve(tmp_path, {'m': file}, {'poll': '50ms', 'cache_dir': str(tmp_path / 'cache')}) as serve:
        new = versions()
        replace(file, trained[1])
        h.wait_until(lambda: versions()[0] != new[0], 10, 'the other version')
        # Any page that somebody opens could send this one.
        assert serve.ask('POST', '/v2/models/m/rollback', headers={'Origin': 'http://evil.example'})[0] == 403 and versions()[0] != new[0]
        h.wait_until(lambda: serve.ask('POST', '/v2/models/m/rollback')[0] == 200, 10, 'the rollback')
        assert versions()[0] == new[0]
        replace(file, trained[3])
        h.wait_until(lambda: 'may come back' in serve.log(), 10, 'the source to be what is served')
        replace(file, trained[1])
        h.wait_until(lambda: versions()[0] == first[0], 10, 'the version that was rolled back')


@pytest.mark.skipif(not CHROMIUM, reason=mfl_needs.lack('chromium'))
def test_the_page_for_people(tmp_path, trained, rows):
    """Off unless it is configured; in a browser an image is dropped, a row is typed, and both get the answer that the protocol gives."""
    with s.Serve(tmp_path, {'m': trained[3]}) as serve:
        assert serve.get('/')[0] == 404
    keys = tmp_path / 'keys'
    keys.write_text('ann 0123456789abcdef\n')
    keys.chmod(0o600)
    with s.Serve(tmp_path, {'m': trained[3], 'numbers': 'identity:3'}, {'page': True, 'api_keys': str(keys)}, ready=False) as serve, \
            Browser(str(tmp_path), 900) as browser:
        status, headers, body = serve.get('/')
        assert status == 200 and "default-src 'none'" in headers['Content-Security-Policy'] and b'0123456789abcdef' not in body
        browser.go('http://%s/' % serve.address)
        browser.wait("!document.getElementById('keybox').hidden", 'the question for a key')
        browser.eval("document.getElementById('key').value = '0123456789abcdef'; document.getElementById('key').dispatchEvent(new Event('change'))")
        browser.wait("document.getElementById('about').textContent.includes('takes UINT8 [1, 8, 8]')", 'the model')
        row = rows[0].reshape(8, 8).tolist()
        browser.eval("document.getElementById('values').value = '%s'; document.getElementById('ask').click()" % ' '.join(str(v) for r in row for v in r))
        shown = "[...document.querySelectorAll('#answer .num')].map((e) => e.textContent).join(' ')"
        browser.wait("document.querySelectorAll('#answer .num').length === 4", 'the answer')
        typed = browser.eval(shown)
        said = s.infer(serve.connect(), 'm', s.question(rows[:1].tolist(), 'UINT8'), {'Authorization': 'Bearer 0123456789abcdef'})[1]['outputs'][0]['data']
        odds = numpy.exp(numpy.array(said) - max(said))
        assert typed.split() == ['%.4f' % v for v in sorted(odds / odds.sum(), reverse=True)]
        browser.eval("document.getElementById('answer').replaceChildren()")
        browser.eval("""(async () => {
            const canvas = new OffscreenCanvas(8, 8), context = canvas.getContext('2d'), pixels = context.createImageData(8, 8), values = %s.flat();
            values.forEach((v, i) => pixels.data.set([v, v, v, 255], 4 * i));
            context.putImageData(pixels, 0, 0);
            const data = new DataTransfer();
            data.items.add(new File([await canvas.convertToBlob({ type: 'image/png' })], 'digit.png', { type: 'image/png' }));
            document.getElementById('drop').dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true }));
        })()""" % json.dumps(row))
        browser.wait("document.querySelectorAll('#answer .num').length === 4", 'the answer of the image')
        assert browser.eval(shown) == typed
        browser.picture(str(tmp_path / 'page.png'))
        browser.eval("document.getElementById('model').value = 'numbers'; document.getElementById('model').dispatchEvent(new Event('change'))")
        browser.wait("document.getElementById('about').textContent.includes('takes FP32 [3]') && document.getElementById('image').hidden", 'the other model')
        browser.eval("document.getElementById('values').value = '1, x'; document.getElementById('ask').click()")
        browser.wait("document.getElementById('error').textContent === \"'x' is no number\"", 'the complaint')
        browser.eval("document.getElementById('values').value = '1,-2,4'; document.getElementById('ask').click()")
        browser.wait("%s === '1.00000 -2.00000 4.00000'" % shown, 'the answer of the other model')
        # By the keyboard, at each size, and for a screen reader.
        for width in (1200, 800, 400):
            browser.resize(width)
            browser.eval("document.getElementById('answer').replaceChildren(); document.getElementById('values').value = ''; document.getElementById('values').focus()")
            browser.type('4 5 6')
            browser.key('Tab')
            assert browser.eval('document.activeElement.id') == 'ask'
            browser.key('Enter')
            browser.wait("%s === '4.00000 5.00000 6.00000'" % shown, 'the answer')
            roles = browser.landmarks()
            assert {'banner', 'main', 'contentinfo', 'status'} <= {role for role, _ in roles}
            assert {'mfl-serve', 'A row', 'Answer'} <= {name for role, name in roles if role == 'heading'}
            assert all(name for role, name in roles if role in ('button', 'textbox', 'link', 'combobox', 'region'))
            assert browser.eval('document.documentElement.scrollWidth <= window.innerWidth')
            data = browser.picture(str(tmp_path / 'page.png'))
            assert struct.unpack('>I', data[16:20])[0] == width and len(data) > 5000
        assert not [said for said in browser.said if '401' not in said]


def test_follows_what_is_not_there(tmp_path):
    with h.start_cluster(tmp_path / 'cluster', daemons=0) as c:
        options = ('--server', c.address, '--follow', 'm=j-000042', '--model', 'other=identity:2')
        with s.Serve(tmp_path, config={'cache_dir': str(tmp_path / 'cache')}, options=options, ready=False) as serve:
            h.wait_until(lambda: 'j-000042 of ' in serve.log(), 10, 'the complaint')
            h.wait_until(lambda: s.infer(serve.connect(), 'other', GOOD)[0] == 200, 10, 'the other model')
            assert serve.get('/v2/health/ready')[0] == 503
            assert serve.stop() == 0
