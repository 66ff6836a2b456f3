# SPDX-License-Identifier: Apache-2.0
"""The accountant beside dp-accounting: 200 random rows, every fifth of two or three kinds of rounds, and rows that are often cited (skipped where it is
not installed; tests/unit/common/test_privacy.c has cited rows and calibrations without it). bench/privacy.py prints them."""
import os
import sys

import mfl_harness as h
import mfl_needs

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'bench')
sys.path[:0] = [BENCH]
BUILD = os.path.dirname(os.path.dirname(h.program('mfl')))


def test_random_rows():
    mfl_needs.module('dp_accounting')
    import privacy  # pylint: disable=import-outside-toplevel
    assert privacy.cited(BUILD)
    rows = privacy.compare(BUILD, 7, 200, 2)
    assert not [r for r in rows if privacy.beyond(r)], max(rows)
    assert not [r for r in rows if r[3] > r[5] + 1e-9]
    assert sum(len(r[1]) > 1 for r in rows) >= 30
