# SPDX-License-Identifier: Apache-2.0
"""Daemons and their GPUs, as whole processes: pinning, the lock, --all-gpus, figures in `mfl daemons`.

The machine's GPUs come from the NVML of tests/lib/nvml. Where no CUDA is needed the daemons compute on the reference backend:
they are pinned, locked, named, measured and watched over as those on a GPU are. Where it is, they open the module beside that
NVML, which takes the device that CUDA_VISIBLE_DEVICES shows, as CUDA does, and computes on the CPU.
"""
import os
import re
import signal
import socket
import subprocess
import time

import pytest

import mfl_harness as h
import mfl_wire
from mfl_manager import Manager

NVML = os.path.join(h.BUILD, 'tests', 'lib', 'nvml')
A, B, C = ('GPU-aaaa%d111-0000-0000-0000-000000000000' % i for i in range(3))
GPUS = ';'.join((A + '|Alpha|11|1000|4000|51|100500', B + '|Beta|0|0|4000|52|-', C + '|Gamma|-|-|-|-|-'))


@pytest.fixture
def env(folder):
    """Three GPUs, a folder of their locks, and nothing of the caller's own devices."""
    for name in ('CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER', 'CUDA_MPS_PIPE_DIRECTORY'):
        os.environ.pop(name, None)
    return {'LD_LIBRARY_PATH': NVML, 'FAKE_NVML': GPUS, 'MFL_GPU_LOCK_DIR': folder,
            'CUDA_MPS_PIPE_DIRECTORY': os.path.join(folder, 'mps')}


def client(*argv, env=None, timeout=30):
    """Runs a daemon whose standard input is at its end: it ends by itself after it has started."""
    full = {k: v for k, v in os.environ.items() if not k.startswith('MFL_')}
    full.update(env or {})
    return subprocess.run([h.program('mfl-client'), '--server', '127.0.0.1:9', '--data', h.TINY, '--exit-with-stdin', *argv],
                          env=full, input='', capture_output=True, text=True, timeout=timeout, check=False)


def wait_log(process, text, timeout=20, count=1):
    h.wait_until(lambda: process.log().count(text) >= count, timeout, '%d times "%s" in %s' % (count, text, process.log()[-3000:]))


def gpu_of(cluster, name):
    found = [d for d in cluster.mfl_json('daemons')['daemons'] if d['name'] == name]
    return found[0]['gpu'] if found else None


# ---- one daemon ----

def test_no_driver(folder):
    """Demanded, a GPU that is not there ends the program with one line; else the CPU is taken, with one line."""
    if os.path.isdir('/proc/driver/nvidia'):
        pytest.skip('this machine has a driver')
    env = {'LD_LIBRARY_PATH': NVML, 'MFL_MODULE_DIR': folder}
    for argv in (['--gpu', '0'], ['--gpu', A], ['--all-gpus'], ['--gpus', '0,1']):
        done = client(*argv, env=env)
        assert done.returncode == 78 and len(done.stderr.splitlines()) == 1, done.stderr
        assert 'NVML: Driver Not Loaded' in done.stderr if 's' in argv[0] else 'was asked for: ' in done.stderr
    done = client(env=env)
    assert done.returncode == 0
    assert len(re.findall('no GPU: .*; training on the CPU', done.stderr)) == 1, done.stderr


def test_none_is_silent(env):
    done = client('--gpu', 'none', env=env)
    assert done.returncode == 0 and 'GPU' not in done.stderr, done.stderr
    done = client('--gpu', 'none', '--backend', 'cuda', env=env)
    assert done.returncode == 78 and 'contradict' in done.stderr


@pytest.mark.parametrize('argv, visible, text', [
    (['--gpu', '7'], None, 'GPU 7: there is no such device; there are: 0 (Alpha, ' + A),
    (['--gpu', 'GPU-aaaa'], None, 'several begin like this'),
    (['--gpu', '0'], '1', 'CUDA_VISIBLE_DEVICES=1 is set: remove one of the two'),
    (['--gpu', '0'], '', 'CUDA_VISIBLE_DEVICES= is set'),
    (['--gpus', '0'], None, None),
    (['--gpus', '0,1'], '0,1', 'remove one of the two'),
    (['--gpus', '0,9'], None, 'GPU 9: there is no such device'),
    (['--all-gpus'], '', 'expected indices or UUIDs of GPUs'),
    (['--gpu', '1'], B, None),
    (['--gpu', '1'], '1', None),
    (['--gpu', 'gpu'], None, 'expected an index'),
])
def test_choice(env, argv, visible, text):
    if visible is not None:
        env['CUDA_VISIBLE_DEVICES'] = visible
    done = client('--backend', 'reference', *argv, env=env)
    if text is None:
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == (2 if 'gpu' in argv else 78) and text in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_mig(env):
    env['FAKE_NVML'] = A + '|Alpha|0|0|4000|1|1;MIG-bbbb0|-|-|7|900|-|-;MIG-bbbb1|-|-|8|900|-|-'
    done = client('--gpu', '0', '--backend', 'reference', env=env)
    assert done.returncode == 78 and 'GPU 0 is in MIG mode: choose one of its MIG devices: MIG-bbbb0, MIG-bbbb1' in done.stderr
    done = client('--gpu', 'MIG-bbbb1', '--backend', 'reference', env=env)
    assert done.returncode == 0 and 'GPU 0: Alpha, MIG-bbbb1 at 0000:a0:00.0, driver 999.1' in done.stderr, done.stderr


def test_figures(cluster, env):
    """What NVML reports arrives at the server and is shown; what it does not report is null, and no GPU is null."""
    c = cluster(daemons=0)
    c.start_daemon('a', env=env, more=['--gpu', '0'])
    c.start_daemon('b', env=env, more=['--gpu', B[:12]])
    c.start_daemon('cpu', env=env)
    h.wait_until(lambda: all((gpu_of(c, n) or {}).get('temperature') for n in 'ab'), 20, 'figures')
    assert gpu_of(c, 'a') == {'uuid': A, 'pci': '0000:a0:00.0', 'memory': 4000, 'percent': 11, 'memory_used': 1000,
                              'memory_total': 4000, 'temperature': 51, 'power_watts': 100.5}
    assert gpu_of(c, 'b') == {'uuid': B, 'pci': '0000:a1:00.0', 'memory': 4000, 'percent': 0, 'memory_used': 0,
                              'memory_total': 4000, 'temperature': 52, 'power_watts': None}
    assert gpu_of(c, 'cpu') is None
    table = c.mfl('daemons').stdout
    assert re.search(r'^.* a .* 11% +1\.0 kB/4\.0 kB +51 C +10[01] W ', table, re.M), table
    assert re.search(r'^NODE .* GPU +MEMORY +TEMP +POWER +DEVICE$', table, re.M)


def test_slow_nvml_does_not_hold_the_loop_up(cluster, env):
    """Each measurement takes longer than the server's patience; a daemon that waited for it would be taken for dead."""
    c = cluster(daemons=0, config={'heartbeat': '200ms', 'dead_after': '1s'})
    env['FAKE_NVML_SLEEP_MS'] = '2500'
    d = c.start_daemon('a', env=env, more=['--gpu', '0'])
    h.wait_until(lambda: (gpu_of(c, 'a') or {}).get('percent') == 11, 20, 'figures')
    c.run_job()
    assert d.log().count('connected to') == 1


def test_nvml_that_hangs_does_not_hold_the_end_up(cluster, env):
    c = cluster(daemons=0)
    d = c.start_daemon('a', env=dict(env, FAKE_NVML_SLEEP_MS='60000'), more=['--gpu', '0'])
    c.wait_daemons(1)
    time.sleep(0.2)
    assert d.stop(10) == 0


def test_lost_gpu(cluster, env, folder):
    lost = os.path.join(folder, 'lost')
    open(lost, 'w').close()
    env['FAKE_NVML_LOST'] = lost
    c = cluster(daemons=0)
    d = c.start_daemon('a', env=env, more=['--gpu', '0'])
    wait_log(d, "can't be measured: NVML: %s: GPU is lost" % A)
    os.unlink(lost)
    wait_log(d, 'can be measured again')
    h.wait_until(lambda: (gpu_of(c, 'a') or {}).get('percent') == 11, 20, 'figures')
    assert d.log().count("can't be measured") == 1


def test_figures_of_a_stranger_are_checked(cluster):
    c = cluster()
    sets = c.data_sets()
    for i, (body, name) in enumerate((({'gpu_percent': 101}, 'Telemetry.gpu_percent'), ({'temperature': 5000}, 'Telemetry.temperature'),
                       ({'memory_used': 2, 'memory_total': 1}, 'Telemetry.memory_used'),
                       ({'memory_total': 1 << 61}, 'Telemetry.memory_total'))):
        d = mfl_wire.FakeDaemon(c.address, 'stranger', sets, instance=100 + i)  # the process that lied does not come in again
        d.send('telemetry', body)
        h.wait_until(lambda: d.closed is not None, 10, 'the end of the connection')
        assert name in d.closed, d.closed
        d.close()
    d = mfl_wire.FakeDaemon(c.address, 'honest', sets, device_uuid='GPU-1')
    d.send('telemetry', {'temperature': 0})
    h.wait_until(lambda: gpu_of(c, 'honest')['temperature'] == 0, 10, 'a figure')
    assert gpu_of(c, 'honest')['percent'] is None
    d.close()
    c.check_alive()


# ---- a CUDA module ----

@pytest.fixture
def cuda(env):
    return dict(env, MFL_MODULE_DIR=NVML)


@pytest.mark.parametrize('argv, visible, uuid', [
    (['--gpu', '1'], None, B), (['--gpu', 'gpu-aaaa2'.replace('gpu', 'GPU')], None, C), (['--gpu', '1'], '1', B),
    ([], None, A), ([], '2', C), ([], C[:12] + ',0', C), (['--backend', 'cuda'], '1', B),
])
def test_pinned(cuda, argv, visible, uuid):
    """The device that is open is the one asked for: CUDA_VISIBLE_DEVICES was set before."""
    if visible is not None:
        cuda['CUDA_VISIBLE_DEVICES'] = visible
    done = client(*argv, env=cuda)
    assert done.returncode == 0 and 'backend cuda on Fake GPU' in done.stderr, done.stderr
    assert re.search(r'GPU %d: \S+, %s at 0000:a%d:00\.0, driver 999\.1' % (int(uuid[8]), uuid, int(uuid[8])), done.stderr)
    several = 'GPUs are visible and one daemon uses one: this is the first; --gpu chooses another, --all-gpus'
    assert (several in done.stderr) == (not argv and (visible is None or ',' in visible)), done.stderr


def test_pinned_to_mig(cuda):
    cuda['FAKE_NVML'] = A + '|Alpha|0|0|4000|1|1;MIG-bbbb0|-|-|7|900|-|-;MIG-bbbb1|-|-|8|900|-|-'
    done = client('--gpu', 'MIG-bbbb1', env=cuda)
    assert done.returncode == 0 and 'GPU 0: Alpha, MIG-bbbb1 at' in done.stderr, done.stderr
    for opens, status in ((A, 0), ('GPU-bbbb1', 0), ('MIG-bbbb0', 78)):  # CUDA has named MIG devices in several ways
        assert client('--gpu', 'MIG-bbbb1', env=dict(cuda, FAKE_CUDA_OPENS=opens)).returncode == status


def test_the_wrong_device_is_noticed(cuda):
    done = client('--gpu', '1', env=dict(cuda, FAKE_CUDA_OPENS=A))
    assert done.returncode == 78 and len(done.stderr.splitlines()) == 1, done.stderr
    assert 'GPU 1 (%s) was asked for, but CUDA opened %s (Fake GPU)' % (B, A) in done.stderr
    # Without NVML the beginning of a UUID is all there is to compare with.
    cuda['FAKE_NVML_FAILS'] = '1'
    assert client('--gpu', B[:10], env=cuda).returncode == 0
    done = client('--gpu', B[:10], env=dict(cuda, FAKE_CUDA_OPENS=A))
    assert done.returncode == 78 and 'but CUDA opened ' + A in done.stderr, done.stderr


def test_fallback(cuda):
    for visible, reason in (('', r'cuda: no device is visible \(CUDA_VISIBLE_DEVICES is empty\)'), ('9', 'cuda: no device is visible')):
        done = client(env=dict(cuda, CUDA_VISIBLE_DEVICES=visible))
        assert done.returncode == 0
        assert len(re.findall('no GPU: %s; training on the CPU' % reason, done.stderr)) == 1, done.stderr
        done = client('--backend', 'cuda', env=dict(cuda, CUDA_VISIBLE_DEVICES=visible))
        assert done.returncode == 78 and 'cuda: no device is visible' in done.stderr
    done = client('--gpu', '0', env=dict(cuda, FAKE_CUDA_FAILS='unspecified launch failure'))
    assert done.returncode == 1 and 'cuda: set device: unspecified launch failure' in done.stderr


def test_a_device_that_nobody_named_is_locked(cluster, cuda):
    c = cluster(daemons=0)
    first = c.start_daemon('a', env=cuda, backend='auto')
    c.wait_daemons(1)
    done = client(env=cuda)
    assert done.returncode == 78 and 'GPU %s: process %d already trains on it' % (A, first.pid) in done.stderr
    assert client('--gpu', '1', env=cuda).returncode == 0
    assert client('--backend', 'reference', env=cuda).returncode == 0


def test_mps_is_named(cluster, cuda):
    pipes = cuda['CUDA_MPS_PIPE_DIRECTORY']
    os.mkdir(pipes)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.bind(os.path.join(pipes, 'control'))
    control.listen()
    c = cluster(daemons=0)
    for name in 'ab':
        c.start_daemon(name, env=cuda, backend='auto', more=['--gpu', '0', '--share-gpu'])
    assert [d['device'] for d in c.wait_daemons(2)] == ['Fake GPU, MPS'] * 2
    for d in c.daemons.values():
        assert 'Multi-Process Service (MPS) runs' in d.log() and 'shared without' not in d.log()
    control.close()
    assert 'shared without MPS' in client('--gpu', '1', '--share-gpu', env=cuda).stderr


def test_a_broken_device_ends_the_daemon(cluster, cuda, folder):
    """With the operation's name and a status that a service manager starts again; under --all-gpus the parent does, and the
    job goes on where it was."""
    cuda['FAKE_CUDA_BREAKS'] = broken = os.path.join(folder, 'broken')
    open(broken, 'w').close()
    c = cluster(daemons=0)
    d = c.start_daemon('a', env=cuda, backend='auto', more=['--gpu', '0'])
    c.wait_daemons(1)
    job = c.submit()
    assert d.wait(20) == 1
    assert "cuda: launch the step's graph: an illegal memory access was encountered" in d.log()
    del c.daemons['a']
    parent = c.start_daemon('lab', env=cuda, backend='auto', more=['--gpus', '0,1'])
    wait_log(parent, 'ended with status 1; restarting it in 1 s')
    os.unlink(broken)
    c.wait_job(job, 60)
    assert parent.stop() == 0


EMULATED = os.path.join(h.BUILD, 'tests', 'emu')
EMULATED_UUID = 'GPU-' + b'emulated GPU 0\0\0'.hex()
EMULATED_UUID = '-'.join((EMULATED_UUID[:12], EMULATED_UUID[12:16], EMULATED_UUID[16:20], EMULATED_UUID[20:24], EMULATED_UUID[24:]))


def test_the_emulated_device_trains(cluster, env):
    """The CUDA backend itself on the emulated device: pinned, checked by UUID, measured, and it trains a job."""
    if not os.path.exists(os.path.join(EMULATED, 'libmfl_cuda_emulated.so')):
        pytest.skip('there is no emulated CUDA module in this build')
    env.update(MFL_MODULE_DIR=EMULATED, XDG_CACHE_HOME=env['MFL_GPU_LOCK_DIR'], FAKE_NVML=EMULATED_UUID + '|Emulated|7|1|2|30|9000;' + GPUS)
    c = cluster(daemons=0)
    d = c.start_daemon('a', env=env, backend='auto', more=['--gpu', '0'])
    _, digests = c.run_job(60, rounds=1)
    assert len(digests) == 1
    daemon = c.wait_daemons(1)[0]
    assert daemon['backend'] == 'cuda' and daemon['device'].startswith('emulated GPU')
    h.wait_until(lambda: gpu_of(c, 'a')['temperature'] == 30, 10, 'figures')
    assert gpu_of(c, 'a')['uuid'] == EMULATED_UUID
    assert d.stop() == 0, d.log()
    # It does not heed CUDA_VISIBLE_DEVICES, so that any other GPU is the wrong one.
    done = client('--gpu', '1', env=env)
    assert done.returncode == 78 and 'but CUDA opened ' + EMULATED_UUID in done.stderr, done.stderr


@pytest.mark.parametrize('zero', [1, 3])
def test_emulated_devices_train_one_client(cluster, env, zero):
    """Daemons with GPUs are a team: its model is that of one of them."""
    if not os.path.exists(os.path.join(EMULATED, 'libmfl_cuda_emulated.so')):
        pytest.skip('there is no emulated CUDA module in this build')
    env.update(MFL_MODULE_DIR=EMULATED, XDG_CACHE_HOME=env['MFL_GPU_LOCK_DIR'], FAKE_NVML=EMULATED_UUID + '|Emulated|7|1|2|30|9000;' + GPUS)
    job = {'rounds': 2, 'training': {'batch': 8, 'optimizer': 'adam', 'lr': 0.01, 'clip_norm': 1.0}, 'selection': {'clients': 1},
           'parallel': {'grain': 2, 'members': 2, 'zero': zero}}
    found = []
    for names in (['a'], ['a', 'b']):
        c = cluster(daemons=0)
        c.share()
        for name in names:
            c.start_daemon(name, env=env, backend='cuda', more=['--gpu', '0', '--share-gpu'])
        c.wait_daemons(len(names))
        done, digests = c.run_job(60, **job)
        found.append(digests)
        assert c.mfl('logs', done).stdout.count('daemon a leads a team with b') == 2 * (len(names) - 1)
        for name in names:
            assert c.daemons[name].stop() == 0, c.daemons[name].log()
    assert found[0] == found[1]


def test_a_job_that_is_over_frees_the_card(cluster, cuda):
    """Done or stopped: the daemon lets go of what it kept for the job, after the task that ran; another job goes on."""
    c = cluster(daemons=0)
    d = c.start_daemon('a', env=cuda, backend='auto', more=['--gpu', '0', '--log-level', 'debug'])
    c.wait_daemons(1)
    job, _ = c.run_job()
    wait_log(d, 'job %s is over: what was kept for it goes' % job)
    job = c.submit(rounds=100000)
    c.wait_info(job, lambda i: i['round'] >= 2, 20, 'rounds')
    c.mfl('stop', job)
    wait_log(d, 'job %s is over' % job)
    c.wait_job(job, state='stopped')
    c.run_job()
    assert d.stop() == 0
    assert 'never came' not in d.log()


# ---- one daemon per GPU ----

def test_second_daemon_is_refused(cluster, env):
    c = cluster(daemons=0)
    first = c.start_daemon('a', env=env, more=['--gpu', '0'])
    c.wait_daemons(1)
    done = client('--gpu', A, '--backend', 'reference', env=env)
    assert done.returncode == 78, done.stderr
    assert 'GPU %s: process %d already trains on it' % (A, first.pid) in done.stderr
    done = client('--gpu', '0', '--share-gpu', '--backend', 'reference', env=env)
    assert done.returncode == 78 and 'process %d uses it without --share-gpu' % first.pid in done.stderr
    assert client('--gpu', '1', '--backend', 'reference', env=env).returncode == 0
    first.kill()
    assert client('--gpu', '0', '--backend', 'reference', env=env).returncode == 0


def test_sharing(cluster, env):
    """Two that want to share may; without MPS they are told what it costs, with it they are told that it runs."""
    c = cluster(daemons=0)
    for name in 'ab':
        c.start_daemon(name, env=env, more=['--gpu', '2', '--share-gpu'])
    c.wait_daemons(2)
    assert all('shared without MPS' in d.log() for d in c.daemons.values())
    done = client('--gpu', '2', '--backend', 'reference', env=env)
    assert done.returncode == 78 and '--share-gpu' in done.stderr


# ---- a daemon for each GPU ----

def children(parent):
    """{name: process number}, the newest of each."""
    return {m[1]: int(m[2]) for m in re.finditer(r'mfl-client: (\S+): process (\d+) on GPU', parent.log())}


def alive(pid):
    try:
        with open('/proc/%d/stat' % pid, encoding='utf-8') as f:
            return f.read().rsplit(')', 1)[1].split()[0] != 'Z'
    except OSError:
        return False


def all_gpus(c, env, *more):
    return c.start_daemon('lab', env=env, more=['--all-gpus', *more])


def test_a_daemon_for_each_gpu(cluster, env):
    c = cluster(daemons=0)
    parent = all_gpus(c, env)
    daemons = c.wait_daemons(3)
    assert sorted(d['name'] for d in daemons) == ['lab-gpu0', 'lab-gpu1', 'lab-gpu2']
    h.wait_until(lambda: (gpu_of(c, 'lab-gpu1') or {}).get('temperature') == 52, 20, 'figures')
    assert [gpu_of(c, 'lab-gpu%d' % i)['uuid'] for i in range(3)] == [A, B, C]
    _, digests = c.run_job()
    assert len(digests) == 3
    for i in range(3):
        assert re.search(r'^gpu%d\| .*connected to ' % i, parent.log(), re.M)
    pids = children(parent)
    assert parent.stop() == 0, parent.log()
    assert not any(alive(p) for p in pids.values())
    assert 'all 3 daemons have ended' in parent.log()
    assert not [f for f in os.listdir(env['MFL_GPU_LOCK_DIR']) if f.endswith('.lock')]


def test_a_manager_hears_the_parent_alone(cluster, env, folder):
    """Ready is who watches over all; SIGHUP reaches every daemon, and the work goes on."""
    if 'libsystemd' not in subprocess.run(['ldd', h.program('mfl-client')], capture_output=True, text=True, check=False).stdout:
        pytest.skip('built without libsystemd')
    c = cluster(daemons=0)
    manager = Manager(folder)
    parent = all_gpus(c, {**env, **manager.env(watchdog_ms=300)})
    manager.wait('READY=1')
    c.wait_daemons(3)
    manager.wait('WATCHDOG=1')
    assert {line for line in manager.poll() if line != 'WATCHDOG=1'} <= {'STATUS=watching over 3 daemons'}
    parent.signal(signal.SIGHUP)
    manager.wait('RELOADING=1')
    manager.wait('READY=1')
    h.wait_until(lambda: manager.poll() and parent.log().count('configuration read again') == 4, 20, 'reloads')
    c.wait_daemons(3)
    assert parent.stop() == 0, parent.log()
    manager.wait('STOPPING=1')
    assert not [line for line in manager.poll() if line.startswith(('READY', 'STATUS'))]


def test_instances_of_a_unit(cluster, env):
    """As mfl-client@1.service and mfl-client@GPU-....service run them, of one configuration."""
    c = cluster(daemons=0)
    c.start_daemon('lab', env=env, more=['--instance', '1'])
    c.wait_daemons(1)
    c.start_daemon('lab', env=env, more=['--instance', C])
    assert sorted(d['name'] for d in c.wait_daemons(2)) == ['lab-GPU-aaaa2111', 'lab-gpu1']
    assert gpu_of(c, 'lab-gpu1')['uuid'] == B and gpu_of(c, 'lab-GPU-aaaa2111')['uuid'] == C
    done = client('--name', 'lab', '--instance', '7', env=env)
    assert done.returncode == 78 and 'GPU 7: there is no such device' in done.stderr


def test_some_gpus(cluster, env):
    c = cluster(daemons=0)
    c.start_daemon('list', env=env, more=['--gpus', '2,0'])
    env = dict(env, CUDA_VISIBLE_DEVICES='1')
    c.start_daemon('batch', env=env, more=['--all-gpus'])
    assert sorted(d['name'] for d in c.wait_daemons(3)) == ['batch-gpu1', 'list-gpu0', 'list-gpu2']


def test_a_child_that_dies_is_started_again(cluster, env):
    c = cluster(daemons=0)
    parent = all_gpus(c, env)
    c.wait_daemons(3)
    before = children(parent)
    for n, delay in ((1, 1), (2, 2)):
        os.kill(children(parent)['lab-gpu1'], signal.SIGKILL)
        wait_log(parent, 'lab-gpu1 was ended by signal 9 (Killed); restarting it in %d s' % delay)
        wait_log(parent, 'lab-gpu1: process', count=n + 1)
        wait_log(parent, 'gpu1| ', count=2)
    c.wait_daemons(3)
    after = children(parent)
    assert after['lab-gpu1'] != before['lab-gpu1'] and after['lab-gpu0'] == before['lab-gpu0']
    c.run_job()
    assert parent.stop() == 0, parent.log()


def test_a_child_that_ends_in_order_stays_away(cluster, env):
    c = cluster(daemons=0)
    parent = all_gpus(c, env)
    c.wait_daemons(3)
    os.kill(children(parent)['lab-gpu2'], signal.SIGTERM)
    wait_log(parent, 'lab-gpu2 ended with status 0')
    assert parent.stop() == 0
    assert parent.log().count('lab-gpu2: process') == 1


def test_hopeless_children_are_not_started_again(env, folder):
    """Their GPUs are demanded and there is no CUDA backend in an empty folder: the configuration is wrong, for all of them."""
    env['MFL_MODULE_DIR'] = folder
    if client('--gpu', '0', env=env).returncode == 0:
        pytest.skip('this build finds a CUDA backend and a device')
    parent = h.Process([h.program('mfl-client'), '--server', '127.0.0.1:9', '--data', h.TINY, '--all-gpus', '--name', 'lab'],
                       os.path.join(folder, 'lab.log'), env)
    try:
        assert parent.wait(20) == 78
    finally:
        parent.kill()
    for i in range(3):
        assert re.search(r'^gpu%d\| .*error: GPU GPU-aaaa%d.* was asked for: ' % (i, i), parent.log(), re.M), parent.log()
        assert parent.log().count('lab-gpu%d: process' % i) == 1
        assert 'lab-gpu%d ended with status 78; not restarting it' % i in parent.log()


def test_the_end_of_the_parent_is_the_end_of_its_children(cluster, env):
    c = cluster(daemons=0)
    parent = all_gpus(c, env)
    c.wait_daemons(3)
    pids = children(parent)
    assert len(pids) == 3
    parent.kill()
    h.wait_until(lambda: not any(alive(p) for p in pids.values()), 10, 'the end of orphans')


def test_the_end_of_standard_input_stops_them_all(cluster, env):
    c = cluster(daemons=0)
    parent = all_gpus(c, env)
    c.wait_daemons(3)
    parent.popen.stdin.close()
    assert parent.wait(10) == 0
    assert 'stopping 3 daemons: standard input ended' in parent.log()


def test_a_second_signal_kills(cluster, env):
    c = cluster(daemons=0)
    parent = all_gpus(c, env)
    c.wait_daemons(3)
    pids = children(parent)
    os.kill(pids['lab-gpu0'], signal.SIGSTOP)
    parent.signal(signal.SIGINT)
    wait_log(parent, 'lab-gpu1 ended with status 0')
    time.sleep(0.2)
    assert parent.alive()
    parent.signal(signal.SIGTERM)
    assert parent.wait(10) == 1
    assert 'lab-gpu0 was ended by signal 9' in parent.log()
    assert not any(alive(p) for p in pids.values())
