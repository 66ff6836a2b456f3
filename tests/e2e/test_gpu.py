# SPDX-License-Identifier: Apache-2.0
"""What `./dev gpu` does with its parts, on a machine without a device: the programs that it runs are scripts here, which note that
they were called, print what theirs print, and wait or die where a test says so."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

GPU = pathlib.Path(__file__).resolve().parents[2] / 'bench' / 'gpu.py'
CONFORMANCE = '''#!/bin/sh
echo "conformance $*" >>"$CALLS"
case "$*" in
*--smoke*) echo "not ok 1 - cuda: dense: ended with status 1: an illegal memory access"; echo "ok 2 - cuda: relu"; exit 1 ;;
*perf*) echo "cuda  dense  forward 1.0 us 3.0 GFLOP/s" ;;
esac
echo "ok 1 - cuda: relu"
'''
# Where $HOLD is, it blocks behind its first line of --precision tf32, until somebody opens the pipe.
DEVICE = '''#!/bin/sh
echo "device $*" >>"$CALLS"
mode=$1
case $mode in
repeat) echo '{"bench": "repeat", "repeats": 3, "differ": 0}' ;;
five) echo '{"bench": "five", "way": "fused", "ms": 2.0}' ;;
process) echo '{"ms": 1.5}' ;;
sum) echo '{"bench": "sum", "way": "fill", "groups": 1, "params": 3, "us": 1.0, "gb_per_s": 9.0}' ;;
fusion) echo '{"bench": "fusion", "model": "m", "batch": 1, "precision": "fp32", "groups": 1, "client_steps_per_s": 9, "gain": 1}' ;;
step)
        echo '{"bench": "step", "model": "m", "batch": 1, "precision": "fp32", "fast": false, "us": 5.0, "tflops": 1, "host_share": 0.1}'
        case "$*" in *--precision\\ tf32*) [ ! -e "$HOLD" ] || read -r line <"$HOLD" ;; esac ;;
esac
'''
PARTS = ['smoke', 'conformance', 'speed', 'fusion', 'repeats', 'sums', 'five', 'layers', 'inner']


class Machine:
    def __init__(self, tmp_path):
        self.build, self.out = tmp_path / 'build', tmp_path / 'out'
        self.calls, self.hold = tmp_path / 'calls', tmp_path / 'hold'
        for name, text in (('kernels/mfl-conformance', CONFORMANCE), ('bench/mfl-bench-device', DEVICE)):
            path = self.build / name
            path.parent.mkdir(parents=True)
            path.write_text(text)
            path.chmod(0o755)
        self.env = dict(os.environ, CALLS=str(self.calls), HOLD=str(self.hold), TORCH_PYTHON='/bin/false')
        self.calls.write_text('')

    def start(self, *argv):
        return subprocess.Popen([sys.executable, str(GPU), '--build', str(self.build), '--out', str(self.out), '--backend',
                                 'reference', *argv], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def run(self, *argv, status=0):
        self.calls.write_text('')
        with self.start(*argv) as gpu:
            said = gpu.communicate(timeout=120)[0]
        assert gpu.returncode == status, said
        return said

    def lines(self):
        path = self.out / 'gpu.jsonl'
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def begun(self):
        return [line['begin'] for line in self.lines() if 'begin' in line]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_order_and_a_case_that_dies(machine):
    """What is worth most comes first; a case that died is named and fails the command, and everything behind it runs."""
    said = machine.run('--only', *PARTS, status=1)
    parts = list(dict.fromkeys(step.partition(':')[0] for step in machine.begun()))
    assert parts == PARTS, parts
    failed = [line for line in machine.lines() if 'failed' in line]
    assert len(failed) == 1 and 'illegal memory access' in failed[0]['failed'] and failed[0]['step'].startswith('smoke')
    assert [line['check'] for line in machine.lines() if line.get('ok') is False] == ['smoke']
    assert 'FAIL  smoke: 1 passed, 1 failed' in said
    assert sum('bench' in line for line in machine.lines()) > 20
    assert len([line for line in machine.lines() if 'end' in line]) == len(machine.begun())


def test_cut_and_resume(machine):
    """A command that is killed in a step leaves what was measured before; the next one goes on with that step."""
    os.mkfifo(machine.hold)
    gpu = machine.start('--only', 'speed', 'repeats')
    end = time.monotonic() + 60
    while not any('tf32' in line.get('step', '') and 'bench' in line for line in machine.lines()):
        assert gpu.poll() is None and time.monotonic() < end, gpu.stdout.read()
        time.sleep(0.05)  # the line is there while the program that printed it still runs
    os.kill(gpu.pid, signal.SIGKILL)
    gpu.communicate()
    with open(machine.hold, 'w'):  # the program that it left behind
        machine.hold.unlink()
    before = machine.begun()
    assert before == ['speed: resnet18 128 fp32', 'speed: resnet18 128 tf32']
    machine.run('--only', 'speed', 'repeats', '--resume')
    after = machine.begun()[len(before):]
    assert after[0] == 'speed: resnet18 128 tf32' and after[-1].startswith('repeats: ')
    assert 'speed: resnet18 128 fp32' not in after
    # Done: nothing runs again, and the tables still show what other commands measured.
    said = machine.run('--only', 'speed', 'repeats', '--resume')
    assert machine.calls.read_text() == '' and said.count('| m | 1 | fp32 |') > 10
    # Without --resume all begins again, and the old file is still there.
    machine.run('--only', 'speed')
    assert machine.begun()[0] == 'speed: resnet18 128 fp32' and (machine.out / 'gpu.1.jsonl').exists()


def test_resume_elsewhere(machine, tmp_path):
    """The file of another machine's command is taken over."""
    machine.run('--only', 'repeats')
    other = tmp_path / 'carried.jsonl'
    (machine.out / 'gpu.jsonl').rename(other)
    machine.run('--only', 'repeats', 'five', '--resume', str(other))
    assert 'repeat' not in machine.calls.read_text() and 'device five' in machine.calls.read_text()
    machine.run('--only', 'repeats', 'five', '--resume')
    assert machine.calls.read_text() == ''


def test_budget(machine):
    """A part that has spent its seconds lets the others go first, and has its turn behind them."""
    said = machine.run('--only', 'speed', 'repeats', '--budget', 'speed=0')
    parts = list(dict.fromkeys(step.partition(':')[0] for step in machine.begun()))
    assert parts == ['repeats', 'speed'] and 'speed: resnet18 128 fp32: waits' in said
    with machine.start('--budget', 'sped=3') as gpu:
        assert '--budget sped=3: it is PART=SECONDS' in gpu.communicate()[0]
    assert gpu.returncode == 2


def test_no_time(machine):
    """Less time than a step needs: nothing begins, and the status says that something is left."""
    said = machine.run('--only', 'repeats', '--minutes', '0.3', status=75)
    assert machine.begun() == [] and '--resume goes on' in said
    machine.run('--only', 'repeats', '--resume')
    assert len(machine.begun()) == 5


def test_a_step_that_cuts(machine):
    """A step that was begun twice and never ended may be what ends the command: it is named and left out."""
    machine.out.mkdir()
    line = json.dumps({'begin': 'repeats: lenet5 fp32', 'part': 'repeats'})
    (machine.out / 'gpu.jsonl').write_text(f'{line}\n{line}\n{{"cut off')
    said = machine.run('--only', 'repeats', '--resume', status=1)
    assert 'FAIL  repeats: lenet5 fp32: begun twice, and never ended' in said
    assert '--precision fp32' not in machine.calls.read_text() and '--precision tf32' in machine.calls.read_text()
