# SPDX-License-Identifier: Apache-2.0
"""mfl-conformance on the emulated device: an error of the device ends one case, a case that hangs is killed, and the others run.

    test_isolation.py PATH_OF_mfl-conformance
"""
import os
import re
import signal
import subprocess
import sys
import time

COMMAND = [sys.argv[1], 'test', '--backend', 'cuda', '--quick', '--no-inner']


def cases(out):
    """Names of the cases that said something: "cuda: NAME, batch 1: ..." or "cuda: NAME: ended with ..."."""
    return set(re.findall(r'^(?:not )?ok \d+ - cuda: (.*?)(?:, batch \d+)?: ', out, re.M))


def run(what, **env):
    done = subprocess.run([*COMMAND, what], env=dict(os.environ, **env), capture_output=True, text=True, check=False)
    return done.stdout, done.returncode


def test_error():
    whole, status = run('slice')
    assert status == 0, whole
    out, status = run('slice', MFL_EMU_FAIL='cudaLaunchKernel:150')
    died = re.findall(r'^not ok \d+ - cuda: (.*?): ended with status 1: mfl-conformance: cuda: .*cudaErrorLaunchFailure', out, re.M)
    assert status == 1 and len(died) > 1, out  # each process has its 150th launch
    assert cases(out) == cases(whole), cases(whole) ^ cases(out)
    passed = len(re.findall(r'^ok ', out, re.M))
    assert passed > len(died) and f'# {passed} passed, {len(died)} failed' in out, out
    assert out.endswith(f'1..{passed + len(died)}\n'), out
    numbers = [int(n) for n in re.findall(r'^(?:not )?ok (\d+) - ', out, re.M)]
    assert numbers == list(range(1, len(numbers) + 1)), out


def test_hang():
    whole, _ = run('slice')
    with subprocess.Popen([*COMMAND, '--limit', '5', 'slice'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run_:
        first = [next(run_.stdout) for _ in range(3)]
        with open(f'/proc/{run_.pid}/task/{run_.pid}/children', encoding='ascii') as file:
            child = int(file.read().split()[0])
        os.kill(child, signal.SIGSTOP)
        out = ''.join(first) + run_.stdout.read()
    assert re.search(r'^not ok \d+ - cuda: .*: hung: killed after 5 s', out, re.M), out
    assert cases(out) == cases(whole) and run_.returncode == 1, out


def test_one_process():
    out, status = run('slice of rows')
    alone = subprocess.run([*COMMAND, '--one-process', 'slice of rows'], capture_output=True, text=True, check=False)
    assert status == alone.returncode == 0 and alone.stdout == out, alone.stdout


begin = time.monotonic()
for test in (test_error, test_hang, test_one_process):
    test()
    print(f'{test.__name__}: ok [{time.monotonic() - begin:.1f} s]')
