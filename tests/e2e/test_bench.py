# SPDX-License-Identifier: Apache-2.0
"""What benchmarks count when what they measure ends: bench/flower without Flower, with processes of the same lives."""
import os
import subprocess
import sys

import pytest

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'bench')
sys.path[:0] = [BENCH, os.path.join(BENCH, 'flower')]
import benchlib  # noqa: E402
import flower_bench  # noqa: E402

import mfl_certs  # noqa: E402
import mfl_harness as h  # noqa: E402

BUILD = os.path.dirname(os.path.dirname(h.program('mfl')))

REPORT = """for i in range(%d): print('{"time": %%d, "accuracy": 0.5}' %% i)"""


@pytest.fixture
def flower(monkeypatch):
    monkeypatch.setenv('FLOWER_PYTHON', sys.executable)
    with flower_bench.Processes() as f:
        yield f


def ended(*argv, **options):
    """A process that has ended and that nobody has waited for."""
    process = subprocess.Popen(argv, **options)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process


def test_memory_of_a_process_that_has_ended(flower):
    process = ended('true')
    with pytest.raises(ProcessLookupError, match='process %d has ended' % process.pid):
        benchlib.memory(process.pid)
    flower.peaks[process.pid] = 12345
    flower.watch_memory(process.pid)
    assert flower.peaks[process.pid] == 12345  # what it was when it was seen last
    process.wait()


def test_a_server_that_ends_with_its_last_report(flower):
    """Its report is read before anybody complains, and what is missing in it is told."""
    with open(flower.report, 'w', encoding='ascii') as out:
        server = ended(sys.executable, '-c', REPORT % 4, stdout=out)
    flower.started.append(server)
    result = flower.result(server, 3, 60)
    assert result.accuracy == 0.5 and result.seconds == [1, 1]
    with pytest.raises(SystemExit, match='Flower did not get to round 9'):
        flower.result(server, 9, 60)


def test_memory_is_summed_over_a_server_and_its_children(flower):
    with subprocess.Popen(['sh', '-c', 'sleep 60 & echo; wait'], stdout=subprocess.PIPE, start_new_session=True) as server:
        server.stdout.readline()
        flower.watch_memory(server.pid)
        os.killpg(server.pid, 9)
    assert len(flower.peaks) == 2 and server.pid in flower.peaks and min(flower.peaks.values()) > 0


@pytest.mark.parametrize('lost', [0, 4])
def test_a_secure_sum_in_one_process(tmp_path, lost):
    """All its members sign with one key; the program ends with an error if the sum is wrong. The server opens the mask of each that is left, and what
    each of the lost shared with those."""
    program = os.path.join(BUILD, 'bench', 'bench_secure')
    if not os.path.exists(program):
        pytest.skip('no benchmarks in this build (-Dbench=enabled)')
    ca = mfl_certs.Ca(tmp_path)
    done = subprocess.run([program, '16', '1000', str(lost), ca.ca, *ca.issue('d1', ['daemon'])], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    masks = int(done.stdout.split(' masks')[0].split()[-1])
    assert masks == 16 - lost + lost * (16 - lost), done.stdout
