# SPDX-License-Identifier: Apache-2.0
"""precision: bf16 on the CPU backend: it trains, one job gives one model, a model answers, and a processor without it is told so.

Where the processor has no avx512_bf16 the daemons compute with operands rounded to bfloat16 in float (kernels/cpu/base/bf16.h),
which is the same arithmetic but for the order of sums."""
import json
import os

import numpy
import pytest

import mfl_harness as h
import mfl_serve as s

with open('/proc/cpuinfo', encoding='utf-8') as cpuinfo:
    NATIVE = 'avx512_bf16' in cpuinfo.read().split()
BF16 = {} if NATIVE else {'MFL_CPU_BF16': 'rounded'}
TRAINING = {'precision': 'bf16', 'lr': 0.1, 'momentum': 0.9, 'epochs': 4}
WITHOUT = {'ONEDNN_MAX_CPU_ISA': 'AVX512_CORE', 'DNNL_MAX_CPU_ISA': 'AVX512_CORE'}
JOB = {'model': 'fedavg-cnn', 'rounds': 2, 'training': TRAINING}


def run(cluster, daemons, env, **training):
    c = cluster(0)
    for i in range(daemons):
        c.start_daemon('d%d' % i, env=env, backend='cpu')
    c.wait_daemons(daemons)
    job, digests = c.run_job(**{**JOB, 'training': {**TRAINING, **training}})
    rounds = c.rounds(job)
    c.close()
    return rounds, digests


def test_one_job_gives_one_model(cluster):
    rounds, digests = run(cluster, 1, BF16)
    assert rounds[-1]['loss'] < rounds[0]['loss'] and rounds[-1]['accuracy'] > 0.5  # four classes
    shared, again = run(cluster, 2, BF16, fuse=3)
    assert again == digests and {r['daemons'] for r in shared} == {2}
    near, float_digests = run(cluster, 2, {}, precision='fp32')
    assert float_digests[0] != digests[0]
    assert abs(near[0]['loss'] - rounds[0]['loss']) < 0.02 * near[0]['loss']  # a unit is 2^-8


def test_a_processor_without_it_is_told(cluster):
    c = cluster(0)
    c.start_daemon('d1', env=WITHOUT, backend='cpu')
    c.wait_daemons(1)
    job = c.mfl('submit', c.write('job.yaml', h.job_text(**JOB))).stdout.split()[0]
    reason = c.wait_job(job, state='failed')['reason']
    assert 'backend cpu: precision bf16 needs ' in reason and 'avx512_bf16 or amx_bf16' in reason, reason
    assert ('ONEDNN_MAX_CPU_ISA' in reason) == NATIVE, reason
    assert 'avx512_bf16 or amx_bf16' in c.mfl('show', job).stdout


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A cluster with a job of a CNN in bf16 on images of 8x8, its data as a file, and models of two rounds."""
    with h.start_cluster(tmp_path_factory.mktemp('bf16'), 0) as c:
        rng = numpy.random.default_rng(4)
        images = {name: rng.integers(0, 256, (n, 1, 8, 8), dtype=numpy.uint8) for name, n in (('train', 60), ('test', 70))}
        labels = {name: x.reshape(len(x), 4, 16).mean(2).argmax(1) for name, x in images.items()}
        numpy.savez(os.path.join(c.dir, 'x.npz'), x_train=images['train'], y_train=labels['train'], x_test=images['test'], y_test=labels['test'])
        c.start_daemon('d1', env=BF16, backend='cpu', data=['x=npz:%s/x.npz' % c.dir])
        c.wait_daemons(1)
        job, _ = c.run_job(model='fedavg-cnn', rounds=2, data={'name': 'x', 'partition': 'local', 'clients': None}, training={**TRAINING, 'epochs': 1, 'batch': 8})
        for n in (1, 2):
            c.mfl('pull', job, '--round', n, '-o', 'round%d.safetensors' % n)
        yield c, job, images['test']


def test_evaluate_is_the_round_and_rows_have_their_bits_alone(trained):
    c, job, x = trained
    last = c.mfl_json('show', job)['rounds'][-1]
    argv = ('round2.safetensors', '--data', 'x.npz', '--backend', 'cpu')
    done = c.mfl_json('evaluate', *argv, env=BF16)
    assert (done['loss'], done['accuracy']) == (last['loss'], last['accuracy'])
    assert c.mfl_json('evaluate', *argv, '--precision', 'bf16', env=BF16) == done
    near = c.mfl_json('evaluate', *argv, '--precision', 'fp32')
    assert near['loss'] != done['loss'] and abs(near['loss'] - done['loss']) < 0.02 * done['loss']
    # Without it, an evaluation says that it is another one; what was asked for is refused.
    other = c.mfl('evaluate', *argv, '--json', env=WITHOUT)
    assert "in fp32, not in the job's bf16: precision bf16 needs" in other.stderr and json.loads(other.stdout)['loss'] == near['loss']
    refused = c.mfl('predict', *argv, '--precision', 'bf16', env=WITHOUT, status=5).stderr
    assert 'precision bf16 needs' in refused and 'fp32 is computed everywhere' in refused
    assert 'fp32 or bf16' in c.mfl('predict', *argv, '--precision', 'fp8', status=2).stderr
    assert 'leave out --backend, --precision and --threads' in c.mfl('predict', job, '--at', 'd1', '--data', 'x', '--precision', 'bf16', status=2).stderr
    assert 'leave out --output' in c.mfl('predict', job, '--at', 'd1', '--data', 'x', '--logits', status=2).stderr

    def logits(precision, samples):
        numpy.save(os.path.join(c.dir, 'some.npy'), samples)
        c.mfl('predict', 'round2.safetensors', '--data', 'some.npy', '--backend', 'cpu', '--precision', precision, '--logits', '-o', 'z.npy', env=BF16)
        return numpy.load(os.path.join(c.dir, 'z.npy'))

    whole = logits('bf16', x)
    for n in (1, 3, 65):
        assert logits('bf16', x[2:2 + n]).tobytes() == whole[2:2 + n].tobytes()
    plain = logits('fp32', x)
    assert plain.tobytes() != whole.tobytes() and numpy.abs(plain - whole).max() < 0.05 * numpy.abs(plain).max()


def test_served_in_bf16(trained, tmp_path):
    """The same bits alone, at once, together and after a swap; those of mfl predict in the same precision."""
    c, _, x = trained
    file = os.path.join(str(tmp_path), 'm.safetensors')

    def put(n):
        with open(os.path.join(c.dir, 'round%d.safetensors' % n), 'rb') as f, open(file + '.new', 'wb') as out:
            out.write(f.read())
        os.rename(file + '.new', file)

    def about(serve):
        return json.loads(serve.get('/v2/models/m')[2])

    def ask(serve, rows):
        return s.infer(serve.connect(), 'm', s.question(rows.tolist(), 'UINT8'))[1]['bits']

    put(2)
    numpy.save(os.path.join(c.dir, 'served.npy'), x)
    c.mfl('predict', 'round2.safetensors', '--data', 'served.npy', '--backend', 'cpu', '--precision', 'bf16', '--logits', '-o', 'served_z.npy', env=BF16)
    expected = [float(v).hex() for v in numpy.load(os.path.join(c.dir, 'served_z.npy')).ravel()]
    with s.Serve(tmp_path, {'m': file}, {'poll': '50ms', 'precision': 'bf16', 'delay': '2ms'}, env=BF16) as serve:
        first = about(serve)
        assert first['parameters']['precision'] == 'bf16'
        assert ask(serve, x) == expected
        assert [v for i in range(20) for v in ask(serve, x[i:i + 1])] == expected[:80]
        put(1)
        h.wait_until(lambda: about(serve)['versions'][0] != first['versions'][0], 10, 'the swap')
        assert ask(serve, x[:9]) != expected[:36]
        put(2)
        h.wait_until(lambda: about(serve)['versions'][0] == first['versions'][0], 10, 'the swap back')
        assert ask(serve, x[5:14]) == expected[20:56]
    with s.Serve(tmp_path, {'m': file}) as serve:
        assert about(serve)['parameters']['precision'] == 'fp32' and ask(serve, x) != expected
    serve = s.Serve(tmp_path, {'m': file}, {'precision': 'bf16'}, env=WITHOUT, ready=False)
    assert serve.wait(10) == 78 and 'precision bf16 needs' in serve.log() and 'fp32 is computed everywhere' in serve.log()
