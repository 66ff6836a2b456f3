#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up test results: prints 'N passed, N failed, N skipped'; exits 1 when something failed or nothing passed.

test_summary.py [--failures] FILE...      the files are meson-logs/testlog.json; --failures: names what failed, and what was
                                          skipped with the reason. What an earlier file skipped for want of a
                                          package, and a later one has run, counts there alone
test_summary.py --lacking FILE...         of tests that were skipped for want of a Debian package: 'TEST PACKAGE...' a line
test_summary.py --self-test

A test program that speaks TAP counts as its subtests, and as one failure more when it failed as a whole though none of
them did (a crash, a time-out: Meson's JUnit file does not show these). Any other counts as one. The reason of a skip stands
behind '# SKIP', or in a line before it ('# skipped: ...', 'NAME: skipped: ...').
"""
import collections
import json
import re
import sys

SUBTEST = re.compile(r"(not )?ok\b(?:\s+\d+)?(.*)")
# A directive stands behind an unescaped '#'.
SKIP = re.compile(r"(?<!\\)#\s*skip(?:ped)?\b:?\s*(.*)", re.I)
WHOLE = re.compile(r"1\.\.0\s*" + SKIP.pattern, re.I)
SAID = re.compile(r"(?:#|[\w-]+:)\s*skipped: (.*)")
WANTS = re.compile(r"apt-get install ([a-z0-9.+ -]+)")
GOOD, SKIPPED = ("OK", "EXPECTEDFAIL"), ("SKIP",)

Outcome = collections.namedtuple("Outcome", "name word reason", defaults=[""])


def outcomes(test):
    """What all that one line of the log stands for came to."""
    result, name, any_failed, any_subtest, said = test["result"], test["name"], False, False, ""
    for line in (test.get("stdout") or "").splitlines():
        subtest, reason = SUBTEST.match(line), SAID.match(line) or WHOLE.match(line)
        if reason:
            said = reason[1]
        if not subtest:
            continue
        any_subtest, skip = True, SKIP.search(subtest[2])
        if skip:
            yield Outcome(name + subtest[2][:skip.start()].rstrip(), "skipped", skip[1] or said)
        else:
            any_failed |= bool(subtest[1])
            yield Outcome(name + subtest[2], "failed" if subtest[1] else "passed")
    if result not in GOOD + SKIPPED:
        if not any_failed:
            yield Outcome(f"{name} ({result.lower()})", "failed")
    elif not any_subtest:
        yield Outcome(name, "skipped" if result in SKIPPED else "passed", said)


def read(path):
    """[(name of a test, its outcomes)]"""
    with open(path, encoding="utf-8") as f:
        tests = [json.loads(line) for line in f if line.strip()]
    return [(test["name"], list(outcomes(test))) for test in tests]


def wanted(part):
    """The packages that it was skipped for."""
    return [p for w in WANTS.findall(part.reason) for p in w.split()] if part.word == "skipped" else []


def lacking(tests):
    """{test: packages that its skipped parts ask for}"""
    found = {name: sorted({p for part in parts for p in wanted(part)}) for name, parts in tests}
    return {name: packages for name, packages in found.items() if packages}


def merge(earlier, later):
    again = {name for name, _ in later}
    return [(name, [part for part in parts if name not in again or not wanted(part)]) for name, parts in earlier] + later


def add_up(tests):
    count = {"passed": 0, "failed": 0, "skipped": 0}
    for _, parts in tests:
        for part in parts:
            count[part.word] += 1
    return count


def show(tests):
    """What failed; and what was skipped, by the reason."""
    skipped = {}
    for _, parts in tests:
        for part in parts:
            if part.word == "failed":
                print(f"failed: {part.name}")
            elif part.word == "skipped":
                skipped.setdefault(part.reason or "no reason given", []).append(part.name)
    for reason, names in skipped.items():
        print(f"skipped: {names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}: {reason}")


def self_test():
    cases = [
        ("OK", "1..2\nok 1 - a\nok 2 - b\n# ok - all\n", (2, 0, 0), ""),
        ("OK", "", (1, 0, 0), ""),
        ("OK", "okay, this is fine\n", (1, 0, 0), ""),
        ("FAIL", "1..2\nok 1 - a\nnot ok 2 - b\n", (1, 1, 0), ""),
        ("ERROR", "1..2\nok 1 - a\n", (1, 1, 0), ""),
        ("TIMEOUT", "", (0, 1, 0), ""),
        ("INTERRUPT", "ok 1 - a\n", (1, 1, 0), ""),
        ("SKIP", "", (0, 0, 1), ""),
        ("SKIP", "1..0 # SKIP no device\n", (0, 0, 1), "no device"),
        ("SKIP", "format: skipped: no clang-format\n", (0, 0, 1), "no clang-format"),
        ("SKIP", "ok 1 - a.py # SKIP no torch here\n1..1\n", (0, 0, 1), "no torch here"),
        ("OK", "ok 1 - a\nok 2 - b # SKIP no device\n", (1, 0, 1), "no device"),
        ("OK", "# skipped: no NCCL\nok 1 - a # SKIP\nok 2 - b \\# skip\n", (1, 0, 1), "no NCCL"),
        ("UNEXPECTEDPASS", "", (0, 1, 0), ""),
    ]
    for result, stdout, want, reason in cases:
        parts = list(outcomes({"name": "x", "result": result, "stdout": stdout}))
        got = tuple(add_up([("x", parts)]).values())
        assert got == want and "".join(p.reason for p in parts) == reason, (result, stdout, parts)
    tests = [("a", [Outcome("a", "skipped", "no b here; on Debian: apt-get install b libc6")]), ("c", [Outcome("c", "skipped", "no device")])]
    assert lacking(tests) == {"a": ["b", "libc6"]}
    again = [("a", [Outcome("a - x", "passed"), Outcome("a - y", "passed")])]
    assert tuple(add_up(merge(tests, again)).values()) == (2, 0, 1)
    print(f"summary: self-test: {len(cases) + 2} cases passed")


def main():
    args = sys.argv[1:]
    if args == ["--self-test"]:
        self_test()
        return 0
    tests = []
    for path in [a for a in args if not a.startswith("--")]:
        try:
            tests = merge(tests, read(path))
        except (OSError, ValueError) as e:
            tests.append((path, [Outcome(f"no test results in {path}: {e}", "failed")]))
    if "--lacking" in args:
        for name, packages in lacking(tests).items():
            print(name.split(" / ")[-1], *packages)  # as meson test takes it, without the suite
        return 0
    if "--failures" in args:
        show(tests)
    count = add_up(tests)
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**count))
    return 1 if count["failed"] or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
