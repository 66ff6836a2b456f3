# SPDX-License-Identifier: Apache-2.0
"""bench/random_modules.py on modules of fixed seeds: what mfl accepts, it trains as PyTorch does.

Skipped where there is no PyTorch. It takes about a minute.
"""
import os
import subprocess
import sys

import mfl_needs

torch = mfl_needs.module("torch")

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
COUNT = 30


def test_random_modules():
    done = subprocess.run([sys.executable, os.path.join(ROOT, "bench", "random_modules.py"), os.environ["MFL_BUILD"], "--first", "1", "--count", str(COUNT),
                           "--exports", "mfl", "first", "--jobs", "2"], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    accepted = [int(line.split()[2]) for line in done.stdout.splitlines() if line.startswith(("mfl ", "first "))]
    assert len(accepted) == 2 and accepted[0] > COUNT // 3 and accepted[1] > 0, done.stdout
