# SPDX-License-Identifier: Apache-2.0
"""The rooms of this house and who uses whom: from #include lines, and from calls of what another file defines.

A room is a folder of C. A file uses another one when it includes it, or when it names a function or a table that only that file
defines for others. What is static in a file is the file's own. The sources are read as text: a definition begins in column 0.
"""
import os
import re
import sys
from collections import defaultdict

SOURCE = (".c", ".h", ".cu", ".cuh")
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
_FUNCTION = re.compile(r"^(?!static\b|typedef\b|struct \w+ \{|enum\b|#|extern\b)[A-Za-z_][\w \*]*?[ \*](\w+)\([^;{}]*?\)\s*\n\{", re.M)
_TABLE = re.compile(r"^(?!static\b|typedef\b|extern\b|return\b)(?:const )?(?:struct |enum )?\w+[ \*](?:const )?\*?(\w+)(?:\[[^\]]*\])* = ",
                    re.M)
_STATIC = re.compile(r"^static\b[^;={]*?\b(\w+)\(", re.M)
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")


def without_comments(text):
    """The same text, line by line, without its comments."""
    text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def room_of(path):
    return os.path.dirname(path)


def _places(path, defined):
    """Of the files that define a name for others, those that this file can mean: programs and backends repeat each other's names."""
    part, backend = path.split("/")[0], "/".join(path.split("/")[:2])
    for near in (lambda d: room_of(d) == room_of(path),
                 lambda d: part == "kernels" and ((d + "/").startswith(backend + "/") or room_of(d) == "kernels"),
                 lambda d: part != "kernels" and d.split("/")[0] == part,
                 lambda d: d.split("/")[0] in ("common", "proto") or room_of(d) == "kernels"):
        found = [d for d in defined if near(d)]
        if found:
            return found
    return []


def read_uses(sources):
    """{path: {path that it uses: a name that shows it}} of {path: text}."""
    uses, defined = defaultdict(dict), defaultdict(list)
    code = {}
    for path, text in sources.items():
        text = without_comments(text)
        for header in _INCLUDE.findall(text):
            if header in sources and header != path:
                uses[path].setdefault(header, "#include")
        code[path] = text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
        if path.endswith((".c", ".cu")):
            for name in set(_FUNCTION.findall(text)) | set(_TABLE.findall(text)):
                if name != "main":
                    defined[name].append(path)
    for path, text in code.items():
        own = set(_STATIC.findall(text))
        for name in set(_WORD.findall(text)) & defined.keys() - own:
            if path not in defined[name] and not path.endswith(".h"):
                places = _places(path, defined[name])
                # x.c and x_absent.c define the same: one of the two is built.
                if len({room_of(d) for d in places}) == 1:
                    for place in places:
                        uses[path].setdefault(place, name)
    return uses


def circles(nodes, edges):
    """The sets of nodes that reach each other (Tarjan), without those of one node."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []
    sys.setrecursionlimit(10000)

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        on_stack.add(v)
        for w in sorted(edges.get(v, ())):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in on_stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            circle = set(stack[stack.index(v):])
            del stack[stack.index(v):]
            on_stack.difference_update(circle)
            if len(circle) > 1:
                found.append(circle)
    for v in sorted(nodes):
        if v not in index:
            visit(v)
    return found


def is_pair(circle):
    """Whether a circle is one module in two files: one's name begins with the other's (frame.c, frame_check.c, frame.h)."""
    stems = sorted({os.path.splitext(path)[0] for path in circle}, key=len)
    return len(stems) <= 2 and all(s.startswith(stems[0]) for s in stems)


def between_rooms(uses):
    """{room: {other room: [(file, file, name)]}}"""
    found = defaultdict(lambda: defaultdict(list))
    for path, others in uses.items():
        for other, name in others.items():
            if room_of(other) != room_of(path):
                found[room_of(path)][room_of(other)].append((path, other, name))
    return found
