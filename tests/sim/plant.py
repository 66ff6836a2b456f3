#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants the simulator's bugs: writes copies of the cores' sources in which each bug can be switched on by its number.

plant.py BUGS NAME SOURCE OUT     writes the copy of one source; NAME is its path in the project, e.g. server/core/core.c
plant.py --sources BUGS           prints the sources that have bugs
plant.py --titles BUGS OUT        writes the C file with the bugs' titles
plant.py --check BUGS ROOT        checks that each bug still has its place in the sources under ROOT
plant.py --self-test              checks the checks

A bug in the file BUGS is a paragraph: a line with its number, its source, and what goes wrong; then the lines of the source that
change ("-") and the lines that take their place ("+"), in which BUG(number) says whether the bug is on. A bug that needs more than
one place has more than one paragraph; only the first says what goes wrong. The lines must stand in the source exactly once, so that
a change of the source that moves a bug breaks the build, and does not lose the bug.
"""
import pathlib
import re
import sys


class Stale(Exception):
    pass


def read_bugs(text):
    """[(number, source, title or None, old lines, new lines)]"""
    found = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = [line for line in paragraph.split("\n") if not line.startswith("#")]
        if not lines:
            continue
        head = re.fullmatch(r"(\d+) (\S+)(?: +(\S.*))?", lines[0])
        old = [line[1:] for line in lines[1:] if line.startswith("-")]
        new = [line[1:] for line in lines[1:] if line.startswith("+")]
        if not head or not old or not new or len(old) + len(new) != len(lines) - 1:
            raise Stale(f"not a bug:\n{paragraph}")
        number = int(head[1])
        if {int(n) for n in re.findall(r"\bBUG\((\d+)\)", "\n".join(new))} != {number}:
            raise Stale(f"bug {number}: its new lines must ask BUG({number}) and no other")
        if (head[3] is None) != (number in {bug[0] for bug in found}):
            raise Stale(f"bug {number}: its first place, and no other, must have a title")
        found.append((number, head[2], head[3], old, new))
    numbers = sorted({bug[0] for bug in found})
    if numbers != list(range(1, len(numbers) + 1)):
        raise Stale(f"the numbers are not 1 to {len(numbers)}: {numbers}")
    return found


def plant(text, name, shown, bugs):
    """The text of a source with its bugs in it. For messages and debuggers, each line keeps its number, in the file shown."""
    lines = text.split("\n")
    places = []
    for number, source, _, old, new in bugs:
        if source != name:
            continue
        at = [i for i in range(len(lines)) if lines[i:i + len(old)] == old]
        if len(at) != 1:
            raise Stale(f"{name}: bug {number} has {len(at)} places in it, and must have one:\n" + "\n".join(old))
        places.append((at[0], number, old, new))
    if not places:
        raise Stale(f"{name}: no bug is planted there")
    places.sort(key=lambda place: place[0])
    for (i, first, old, _), (k, second, _, _) in zip(places, places[1:]):
        if i + len(old) > k:
            raise Stale(f"{name}: bugs {first} and {second} change the same line")
    for i, _, old, new in reversed(places):
        lines[i:i + len(old)] = new + [f'#line {i + len(old) + 1} "{shown}"']
    return f'#line 1 "{shown}"\n' + "\n".join(lines)


def titles(bugs):
    """The C file with the titles: the first is that of no bug."""
    found = ["none"] + [title for _, title in sorted((bug[0], bug[2]) for bug in bugs if bug[2])]
    return "\n".join(['#include "tests/sim/bugs.h"', "const char *const mfl_sim_bugs[] = {",
                      *('        "' + title.replace("\\", "\\\\").replace('"', '\\"') + '",' for title in found), "};",
                      f"const int mfl_sim_n_bugs = {len(found) - 1};", ""])


def self_test():
    bug = '1 a.c it fails\n-x;\n+if (!BUG(1))\n+x;'
    good = plant("a\nx;\nb\n", "a.c", "../a.c", read_bugs(bug))
    assert good == '#line 1 "../a.c"\na\nif (!BUG(1))\nx;\n#line 3 "../a.c"\nb\n', good
    assert '"none",\n        "it fails",\n};\nconst int mfl_sim_n_bugs = 1;' in titles(read_bugs(bug))
    other = '\n\n2 a.c it fails too\n-x;\n-y;\n+BUG(2);'
    for planted, source, what in [
            (bug, "a\ny;\n", "0 places"), (bug, "x;\nx;\n", "2 places"), (bug + other, "x;\ny;\n", "the same line"),
            (bug.replace("a.c", "b.c"), "x;\n", "no bug is planted"), (bug.replace("BUG(1)", "BUG(2)"), "x;\n", "must ask"),
            (bug.replace("1", "2"), "x;\n", "not 1 to 1"), (bug + "\n\n" + bug, "x;\n", "title"),
            (bug.replace(" it fails", ""), "x;\n", "title"), (bug + "\ny;", "x;\n", "not a bug"),
            ("1 a.c it fails\n+BUG(1)", "x;\n", "not a bug")]:
        try:
            plant(source, "a.c", "a.c", read_bugs(planted))
        except Stale as e:
            assert what in str(e), (what, e)
        else:
            raise AssertionError(f"not found: {what}")
    print("plant: the self-test passed")


def main(args):
    if args[0] == "--self-test":
        return self_test()
    command = args.pop(0) if args[0].startswith("--") else None
    bugs = read_bugs(pathlib.Path(args[0]).read_text(encoding="utf-8"))
    sources = sorted({bug[1] for bug in bugs})
    if command == "--sources":
        print("\n".join(sources))
    elif command == "--titles":
        pathlib.Path(args[1]).write_text(titles(bugs), encoding="utf-8")
    elif command == "--check":
        for name in sources:
            plant((pathlib.Path(args[1]) / name).read_text(encoding="utf-8"), name, name, bugs)
        print(f"plant: {len({bug[0] for bug in bugs})} bugs have their {len(bugs)} places in {len(sources)} sources")
    else:
        name, source, out = args[1:]
        text = plant(pathlib.Path(source).read_text(encoding="utf-8"), name, source, bugs)
        pathlib.Path(out).write_text(text, encoding="utf-8")
    return None


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (Stale, OSError) as e:
        sys.exit(f"plant: {e}")
