# SPDX-License-Identifier: Apache-2.0
"""precision: bf16 on the CPU backend: it trains, one job gives one model, and a processor without it is told so.

Where the processor has no avx512_bf16 the daemons compute with operands rounded to bfloat16 in float (kernels/cpu/base/bf16.h),
which is the same arithmetic but for the order of sums."""
import mfl_harness as h

with open('/proc/cpuinfo', encoding='utf-8') as cpuinfo:
    NATIVE = 'avx512_bf16' in cpuinfo.read().split()
BF16 = {} if NATIVE else {'MFL_CPU_BF16': 'rounded'}
TRAINING = {'precision': 'bf16', 'lr': 0.1, 'momentum': 0.9, 'epochs': 4}
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
    c.start_daemon('d1', env={'ONEDNN_MAX_CPU_ISA': 'AVX512_CORE', 'DNNL_MAX_CPU_ISA': 'AVX512_CORE'}, backend='cpu')
    c.wait_daemons(1)
    job = c.mfl('submit', c.write('job.yaml', h.job_text(**JOB))).stdout.split()[0]
    reason = c.wait_job(job, state='failed')['reason']
    assert 'backend cpu: precision bf16 needs ' in reason and 'avx512_bf16 or amx_bf16' in reason, reason
    assert ('ONEDNN_MAX_CPU_ISA' in reason) == NATIVE, reason
    assert 'avx512_bf16 or amx_bf16' in c.mfl('show', job).stdout
