#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks sources: an SPDX line at the top, no marks of unfinished work, no trailing blanks or tabs in C."""
import os
import re
import sys

SPDX = "SPDX-License-Identifier: Apache-2.0"
# Put together, so that this file does not find itself.
MARKS = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3]) + r")\b")
ENDINGS = (".c", ".h", ".cu", ".cuh", ".py", ".sh", ".proto")
SCRIPTS = ["dev", ".ci/run"]
SKIPPED = re.compile(r"^(build.*|\.git|__pycache__|mfl-run.*|corpus)$")


def check(path, text):
    head = "\n".join(text.split("\n", 3)[:3])
    if SPDX not in head:
        yield f"{path}:1: no line '{SPDX}' in the first three"
    for i, line in enumerate(text.split("\n"), 1):
        mark = MARKS.search(line)
        if mark:
            yield f"{path}:{i}: {mark.group(1)}: unfinished work belongs in an issue"
        if path.endswith((".c", ".h")) and ("\t" in line or line != line.rstrip()):
            yield f"{path}:{i}: a tab or a blank at the end"


def sources(root):
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(d for d in folders if not SKIPPED.match(d))
        for name in sorted(files):
            path = os.path.relpath(os.path.join(folder, name), root)
            if name.endswith(ENDINGS) or path in SCRIPTS:
                yield path


def self_test():
    good = f"/* {SPDX} */\nint x;\n"
    assert not list(check("a.c", good))
    assert list(check("a.c", "int x;\n"))
    assert list(check("a.c", good + "/* " + "TO" + "DO: more */\n"))
    assert list(check("a.c", good + "\tint y;\n"))
    assert list(check("a.c", good + "int y; \n"))
    print("text: self-test passed")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    n, found = 0, []
    for path in sources(root):
        n += 1
        with open(os.path.join(root, path), encoding="utf-8") as f:
            found += check(path, f.read())
    print("\n".join(found + [f"text: {n} files, {len(found)} findings"]))
    return 1 if found or n == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
