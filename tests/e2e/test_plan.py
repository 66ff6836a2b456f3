# SPDX-License-Identifier: Apache-2.0
"""`mfl plan`: what teams take, which one is best, and what it refuses."""
import json
import os

import pytest

import mfl_harness as h

# 1.3 million parameters: a member of a team of four in stage 3 has 5 bytes for each, and the leader 4 more for those at the start.
JOB = """name: plan
rounds: 1
model: {layers: [flatten, LAYERS, {dense: {units: 10}}]}
data: {name: images, partition: iid, clients: 1}
training: {optimizer: adamw, lr: 0.001, batch: 16, backend: BACKEND}
PARALLEL
"""
LAYERS = ', '.join(['{dense: {units: 256}}'] * 20)
DATA = ('--data', 'images=synthetic:1,16,16:10:64:8:1')


def plan(tmp_path, *argv, parallel='parallel: {grain: 2, bucket: 64KiB}', backend='reference', status=0):
    (tmp_path / 'job.yaml').write_text(JOB.replace('PARALLEL', parallel).replace('BACKEND', backend).replace('LAYERS', LAYERS))
    return h.mfl('plan', str(tmp_path / 'job.yaml'), *argv, status=status)


def test_sizes(tmp_path):
    found = json.loads(plan(tmp_path, *DATA, '--sizes', '--json').stdout)
    params = 20 * 257 * 256 + 257 * 10
    assert (found['moving'], found['grains'], found['measured']) == (params, 8, None)
    sizes = {(p['members'], p['zero']): p for p in found['plans']}
    assert set(sizes) == {(1, 0)} | {(n, zero) for n in (2, 4, 8) for zero in range(4)}
    assert all(p['fits'] and p['seconds'] is None for p in sizes.values())
    for n in (2, 4, 8):  # 1 - 1/n of four bytes per grain of a member
        assert sizes[n, 3]['traffic_bytes'] == pytest.approx(4 * (8 / n) * params * (n - 1) / n, rel=0.01)
    leaders = [sizes[4, zero]['leader_bytes'] for zero in range(4)]
    assert leaders == sorted(leaders, reverse=True)
    assert leaders[2] - leaders[3] == pytest.approx(3 * params, rel=0.05)
    assert found['best']['members'] == 1  # without times, the fewest that fit


def test_snapshots_are_counted(tmp_path):
    def members(parallel):
        found = json.loads(plan(tmp_path, *DATA, '--sizes', '--json', parallel=parallel).stdout)
        return {(p['members'], p['zero']): p['member_bytes'] for p in found['plans']}
    plain, copied = members('parallel: {grain: 2, bucket: 64KiB}'), members('parallel: {grain: 2, bucket: 64KiB, snapshot: 5}')
    params = 20 * 257 * 256 + 257 * 10
    for (n, zero), size in copied.items():  # two shards, twice; each with a block more in each bucket
        more = 48 * params / n if zero and n > 1 else 0
        assert more <= size - plain[n, zero] <= more + 48 * 4096 * 42


def test_memory_decides(tmp_path):
    sizes = json.loads(plan(tmp_path, *DATA, '--sizes', '--json').stdout)['plans']
    least = min(sizes, key=lambda p: p['leader_bytes'])
    shown = plan(tmp_path, *DATA, '--sizes', '--memory', '1GiB').stdout
    assert 'One daemon for each client is best where it fits' in shown and 'too large' not in shown
    room = next(p['leader_bytes'] for p in sizes if (p['members'], p['zero']) == (4, 3))
    assert 'Best: parallel: {members: 4, zero: 3}.' in plan(tmp_path, *DATA, '--sizes', '--memory', str(room)).stdout
    small = plan(tmp_path, *DATA, '--sizes', '--memory', str(least['leader_bytes'] - 1)).stdout
    assert 'No plan fits: the one that takes least' in small and 'best' not in small


def test_times_of_this_machine(tmp_path):
    found = json.loads(plan(tmp_path, *DATA, '--members', '2', '--json').stdout)
    assert all(found['measured'][what] > 0 for what in ('grain_seconds', 'apply_seconds', 'bytes_per_second', 'wait_seconds'))
    assert {p['members'] for p in found['plans']} == {1, 2} and all(p['seconds'] > 0 for p in found['plans'])
    assert 'MS/STEP' in plan(tmp_path, *DATA, '--members', '2').stdout


@pytest.mark.parametrize('model,loss', [
    ('{input: [16], classes: 3, layers: [{dense: {units: 3}}]}', 'squared'),
    ('{input: [2, 6, 6], classes: 3, layers: [{conv2d: {filters: 3, kernel: 1}}]}', 'cross-entropy'),  # a label for each pixel
])
def test_target_values_and_labels_of_pixels_are_timed(tmp_path, model, loss):
    (tmp_path / 'job.yaml').write_text(f'''name: plan
rounds: 1
model: {model}
data: {{name: rows, partition: iid, clients: 1}}
training: {{loss: {loss}, lr: 0.1, batch: 8, backend: reference}}
parallel: {{grain: 4}}
''')
    found = json.loads(h.mfl('plan', str(tmp_path / 'job.yaml'), '--members', '2', '--json').stdout)
    assert found['measured']['grain_seconds'] > 0 and all(p['seconds'] > 0 for p in found['plans'])


def plan_of_cards(tmp_path, layers, batch, grain):
    emulated = os.path.join(h.BUILD, 'tests', 'emu')
    if not os.path.exists(os.path.join(emulated, 'libmfl_cuda_emulated.so')):
        pytest.skip('there is no emulated CUDA module in this build')
    (tmp_path / 'job.yaml').write_text(f"""name: plan
rounds: 1
model: {{input: [4], classes: 3, layers: [{layers}{{dense: {{units: 3}}}}]}}
data: {{name: rows, partition: iid, clients: 1}}
training: {{optimizer: adamw, lr: 0.001, batch: {batch}}}
parallel: {{grain: {grain}}}
""")
    env = {'MFL_MODULE_DIR': emulated, 'XDG_CACHE_HOME': str(tmp_path)}
    return json.loads(h.mfl('plan', str(tmp_path / 'job.yaml'), '--backend', 'cuda', '--members', '2', '--json', env=env).stdout)


def test_a_card_has_the_network(tmp_path):
    """What is shown counts against the host's memory; and members with a card each are not measured on one card."""
    found = plan_of_cards(tmp_path, '{dense: {units: 500}}, ' * 3, 4, 2)
    # Params, those at the start, sums, moments; blocks of 4,096 elements, and a bucket.
    assert found['plans'][0]['leader_bytes'] == pytest.approx(28 * found['moving'], rel=0.1)
    assert found['measured']['grain_seconds'] > 0 and found['measured']['grain_seconds_beside'] == 0


def test_a_card_takes_many_grains(tmp_path):
    assert plan_of_cards(tmp_path, '', 1030, 1)['measured']['grain_seconds'] > 0


def test_a_stage_of_the_job_is_kept(tmp_path):
    job = 'parallel: {grain: 2, members: 4, zero: 2}'
    found = json.loads(plan(tmp_path, *DATA, '--sizes', '--json', parallel=job).stdout)
    assert [(p['members'], p['zero']) for p in found['plans']] == [(1, 0), (2, 2), (4, 2)]


@pytest.mark.parametrize('parallel,argv,text', [
    ('', DATA, 'the job has no `parallel`, so one daemon trains each client; write parallel: {grain: 4}'),
    ('parallel: {grain: 2}', (), "the model's size depends on the data set: give it with --data images=FORMAT:DIR"),
    ('parallel: {grain: 2}', (*DATA, '--memory', 'much'), "--memory: expected a size like 512MiB or 4GiB, got 'much'"),
    ('parallel: {grain: 2}', (*DATA, '--members', '0'), '--members'),
    ('parallel: {grain: 3}', DATA, 'parallel.grain: training.batch, which is 16, is no multiple of 3'),
])
def test_refusals(tmp_path, parallel, argv, text):
    done = plan(tmp_path, *argv, parallel=parallel, status=None)
    assert done.returncode in (2, 3, 4, 5) and text in done.stderr, done.stderr
