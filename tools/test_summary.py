#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up test results: prints 'N passed, N failed, N skipped', exits 1 when something failed or nothing ran.

test_summary.py [--xml FILE]... [--add PASSED,FAILED,SKIPPED]... [--failures]

The files are meson-logs/testlog.junit.xml. A test program with subtests (TAP) counts as its subtests, and once more when it
failed as a whole though none of them did (a crash); any other counts as one.
"""
import argparse
import sys
import xml.etree.ElementTree as ET

BAD = ("failure", "error")


def cases_of(path):
    """(name, outcome) of every test case. Meson writes a suite per TAP program, and one for all others."""
    for suite in ET.parse(path).getroot().iter("testsuite"):
        n_failed = 0
        for case in suite.findall("testcase"):
            if any(case.find(tag) is not None for tag in BAD):
                outcome = "failed"
                n_failed += 1
            elif case.find("skipped") is not None:
                outcome = "skipped"
            else:
                outcome = "passed"
            yield f"{suite.get('name')}/{case.get('name')}", outcome
        counted = int(suite.get("failures") or 0) + int(suite.get("errors") or 0)
        # A program that died after its last subtest, or before the first.
        for _ in range(n_failed, max(counted, n_failed)):
            yield f"{suite.get('name')} (the program itself)", "failed"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--xml", action="append", default=[])
    p.add_argument("--add", action="append", default=[])
    p.add_argument("--failures", action="store_true", help="also list what failed")
    args = p.parse_args()
    count = {"passed": 0, "failed": 0, "skipped": 0}
    for path in args.xml:
        try:
            for name, outcome in cases_of(path):
                count[outcome] += 1
                if args.failures and outcome == "failed":
                    print(f"failed: {name}")
        except (OSError, ET.ParseError) as e:
            print(f"failed: no test results in {path}: {e}")
            count["failed"] += 1
    for triple in args.add:
        for key, n in zip(count, triple.split(",")):
            count[key] += int(n)
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**count))
    return 1 if count["failed"] or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
