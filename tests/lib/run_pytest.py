#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one file of tests; exits with 77 (skipped, for Meson) when pytest or numpy is not installed."""
import os
import sys

sys.dont_write_bytecode = True
try:
    import numpy  # noqa: F401
    import pytest
except ImportError as e:
    print('skipped: %s; on Debian: apt-get install python3-pytest python3-numpy' % e)
    sys.exit(77)

folder = os.path.dirname(os.path.abspath(sys.argv[1]))
status = pytest.main(['-q', '-x', '-rs', '--durations=5', '-p', 'no:cacheprovider', '--rootdir', os.path.dirname(folder),
                      *sys.argv[1:]])
sys.exit(int(status))
