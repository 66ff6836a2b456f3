#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws ten comments, ten messages and ten paragraphs of the pages at random, so that a reader can judge the language of the tree.

draw_text.py [SEED] [COUNT]
"""
import os
import random
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
CODE = ("bench", "cli", "client", "common", "kernels", "proto", "server")
# Calls whose text a person reads: log lines, reasons, errors, help.
SPEAKS = re.compile(r"\b(?:mfl_(?:log\w*|error\w*|fail\w*|say\w*)|\w*(?:fail|refuse|reason|warn|note|err|say|trace)\w*)\s*\(")
STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"')


def tracked(*endings):
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [f for f in files if f.endswith(endings)]


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def comments(path):
    text = read(path)
    for m in re.finditer(r"/\*.*?\*/|(?:^[ \t]*//[^\n]*\n)+", text, re.S | re.M):
        words = re.sub(r"\s+", " ", re.sub(r"^\s*(/\*+|\*/|\*|//)|\*/", "", m.group(), flags=re.M)).strip()
        if len(words.split()) > 5 and "SPDX" not in words:
            yield path, line_of(text, m.start()), words


def messages(path):
    text = read(path)
    for m in SPEAKS.finditer(text):
        end = text.find(";", m.end())
        words = "".join(STRING.findall(text[m.end():end])).replace("\\n", " ").strip()
        if len(words.split()) > 4 and end - m.end() < 500:
            yield path, line_of(text, m.start()), words


def paragraphs(path):
    text = re.sub(r"^```.*?^```", lambda m: re.sub(r"[^\n]", "", m.group()), read(path), flags=re.M | re.S)
    for m in re.finditer(r"(?:^(?![#|])[^\n]+\n)+", text, re.M):
        words = re.sub(r"\s+", " ", m.group()).strip()
        if len(words.split()) > 8:
            yield path, line_of(text, m.start()), words


def main():
    seed, count = (int(a) for a in (sys.argv[1:] + ["1", "10"][len(sys.argv) - 1:])[:2])
    code = [f for f in tracked(".c", ".h", ".cu", ".cuh", ".proto") if f.split("/")[0] in CODE]
    for title, found in (("comments", [c for f in code for c in comments(f)]), ("messages", [m for f in code for m in messages(f)]),
                         ("paragraphs", [p for f in tracked(".md") for p in paragraphs(f)])):
        print(f"{title}: {count} of {len(found)}, seed {seed}")
        for path, line, words in random.Random(seed).sample(found, count):
            print(f"  {path}:{line}\n    {words}")


if __name__ == "__main__":
    main()
