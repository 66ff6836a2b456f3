#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/configuration.md and the examples in deploy/ from what the programs say about their own tables.

docs.py BUILD            writes what has changed
docs.py --check BUILD    writes nothing, and fails where a file is not what the programs say
"""
import difflib
import os
import subprocess
import sys

HEAD = """<!-- Made by ./dev docs from the programs' own tables: change common/settings/settings.h's rows, not this file. -->
# Configuration

Every key of the programs' files and of job files, with its default and what it takes. The same text is in
`mfl-server.yaml(5)`, `mfl-client.yaml(5)`, `mfl-serve.yaml(5)` and `mfl-job(5)`; [deploy/server.yaml](../deploy/server.yaml),
[deploy/client.yaml](../deploy/client.yaml) and [deploy/serve.yaml](../deploy/serve.yaml) are commented files with every key.

* **What wins:** an option, then a variable of the environment, then the file, then the default; where it says "after the file",
  the variable is only a default.
* **Durations** are a number with `ms`, `s`, `m`, `h` or `d`; **sizes** one with `KiB`, `MiB`, `GiB`, `TiB`, `kB`, `MB`,
  `GB`, `TB`, or nothing, which is bytes.
* **A mistake** ends a program with exit status 78 (file) or 2 (option), and a line that names file, line and key and says what
  would be right.
* **Reload:** `SIGHUP` (`systemctl reload`) reads the file again. What the column names is taken over; every other key counts
  from the next start.

"""


def ask(build, program, *argv):
    folder = {'mfl': 'cli', 'mfl-server': 'server', 'mfl-client': 'client', 'mfl-serve': 'serve'}[program]
    done = subprocess.run([os.path.join(build, folder, program), *argv], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout


def make(build):
    """Path in the tree: text."""
    if not os.path.exists(os.path.join(build, 'serve', 'mfl-serve')):
        print('docs: skipped: no mfl-serve here; on Debian: apt-get install libhttp-parser-dev')
        sys.exit(77)
    chapters = [ask(build, 'mfl-server', '--help=markdown'), ask(build, 'mfl-client', '--help=markdown'),
                ask(build, 'mfl-serve', '--help=markdown'), ask(build, 'mfl', 'help', 'markdown-job').lstrip('\n')]
    return {
        'docs/configuration.md': HEAD + '\n'.join(chapters),
        'deploy/server.yaml': ask(build, 'mfl-server', '--help=yaml'),
        'deploy/client.yaml': ask(build, 'mfl-client', '--help=yaml'),
        'deploy/serve.yaml': ask(build, 'mfl-serve', '--help=yaml'),
    }


def main():
    check = sys.argv[1:2] == ['--check']
    build = os.path.abspath(sys.argv[1 + check])
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')
    stale = 0
    for path, text in make(build).items():
        full = os.path.join(root, path)
        before = ''
        if os.path.exists(full):
            with open(full, encoding='utf-8') as f:
                before = f.read()
        if before == text:
            continue
        stale += 1
        if check:
            sys.stdout.writelines(list(difflib.unified_diff(before.splitlines(True), text.splitlines(True), path, 'the programs'))[:30])
            print('docs: %s is not what the programs say; run ./dev docs' % path)
        else:
            with open(full, 'w', encoding='utf-8') as f:
                f.write(text)
            print('docs: wrote %s' % path)
    return 1 if check and stale else 0


if __name__ == '__main__':
    sys.exit(main())
