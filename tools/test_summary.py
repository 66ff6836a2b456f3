#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up test results: prints 'N passed, N failed, N skipped'; exits 1 when something failed or nothing passed.

test_summary.py [--failures] FILE...      the files are meson-logs/testlog.json
test_summary.py --self-test

A test program that speaks TAP counts as its subtests, and as one failure more when it failed as a whole though none of
them did (a crash, a time-out: Meson's JUnit file does not show these). Any other counts as one.
"""
import json
import re
import sys

SUBTEST = re.compile(r"^(not )?ok\b(?:\s+\d+)?(.*)$", re.M)
# A directive stands behind an unescaped '#'.
SKIP = re.compile(r"#\s*skip", re.I)
GOOD, SKIPPED = ("OK", "EXPECTEDFAIL"), ("SKIP",)


def outcomes(test):
    """(name, outcome) of all that one line of the log stands for."""
    result, any_failed, any_subtest = test["result"], False, False
    for bad, rest in SUBTEST.findall(test.get("stdout") or ""):
        any_subtest = True
        if SKIP.search(rest):
            yield test["name"] + rest, "skipped"
        elif bad:
            any_failed = True
            yield test["name"] + rest, "failed"
        else:
            yield test["name"] + rest, "passed"
    if result not in GOOD + SKIPPED:
        if not any_failed:
            yield f"{test['name']} ({result.lower()})", "failed"
    elif not any_subtest:
        yield test["name"], "skipped" if result in SKIPPED else "passed"


def add_up(lines, count, failures):
    for line in lines:
        if line.strip():
            for name, outcome in outcomes(json.loads(line)):
                count[outcome] += 1
                if outcome == "failed":
                    failures.append(name)


def new_count():
    return {"passed": 0, "failed": 0, "skipped": 0}


def self_test():
    cases = [
        ("OK", "1..2\nok 1 - a\nok 2 - b\n# ok - all\n", (2, 0, 0)),
        ("OK", "", (1, 0, 0)),
        ("OK", "okay, this is fine\n", (1, 0, 0)),
        ("FAIL", "1..2\nok 1 - a\nnot ok 2 - b\n", (1, 1, 0)),
        ("ERROR", "1..2\nok 1 - a\n", (1, 1, 0)),
        ("TIMEOUT", "", (0, 1, 0)),
        ("INTERRUPT", "ok 1 - a\n", (1, 1, 0)),
        ("SKIP", "", (0, 0, 1)),
        ("SKIP", "1..0 # SKIP no device\n", (0, 0, 1)),
        ("OK", "ok 1 - a\nok 2 - b # SKIP no device\n", (1, 0, 1)),
        ("UNEXPECTEDPASS", "", (0, 1, 0)),
    ]
    for result, stdout, want in cases:
        count = new_count()
        add_up([json.dumps({"name": "x", "result": result, "stdout": stdout})], count, [])
        assert tuple(count.values()) == want, (result, stdout, count)
    print(f"summary: self-test: {len(cases)} cases passed")


def main():
    args = sys.argv[1:]
    if args == ["--self-test"]:
        self_test()
        return 0
    count, failures = new_count(), []
    for path in [a for a in args if a != "--failures"]:
        try:
            with open(path, encoding="utf-8") as f:
                add_up(f, count, failures)
        except (OSError, ValueError) as e:
            failures.append(f"no test results in {path}: {e}")
            count["failed"] += 1
    if "--failures" in args:
        for name in failures:
            print(f"failed: {name}")
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**count))
    return 1 if count["failed"] or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
