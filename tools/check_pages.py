#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the Markdown pages: links lead somewhere, the README stays short, and each measured figure names its command.

check_pages.py [ROOT]        checks the tree
check_pages.py --self-test   checks the checker with planted faults
"""
import os
import re
import sys
import tempfile

README_LINES, README_BYTES = 130, 11000
LINK = re.compile(r'\]\(([^)\s]+)\)')
FENCE = re.compile(r'^(```|~~~).*?^\1\s*$', re.M | re.S)
MEASURED = [('README.md', '## Measured'), ('docs/measured.md', '')]


def anchors(text):
    """The names that a page's headings have as link targets."""
    names = set()
    for heading in re.findall(r'^#+ (.+)$', FENCE.sub('', text), re.M):
        words = re.sub(r'[^\w\- ]', '', heading.lower())
        names.add(words.replace(' ', '-'))
    return names


def read(root, path):
    with open(os.path.join(root, path), encoding='utf-8') as f:
        return f.read()


def check_links(root, page):
    for target in LINK.findall(FENCE.sub('', read(root, page))):
        if re.match(r'[a-z]+:', target):
            continue
        path, _, anchor = target.partition('#')
        path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if not os.path.exists(os.path.join(root, path)):
            yield f'{page}: the link {target} leads nowhere'
        elif anchor and path.endswith('.md') and anchor not in anchors(read(root, path)):
            yield f'{page}: {path} has no heading for the link {target}'


def check_size(root):
    text = read(root, 'README.md')
    lines, size = text.count('\n'), len(text.encode())
    if lines > README_LINES or size > README_BYTES:
        yield f'README.md has {lines} lines and {size} bytes; at most {README_LINES} and {README_BYTES}: move details to docs/'


def check_measured(root, page, heading):
    """Each row of the table has a command whose script is in the tree, or belongs to the row before ("..." or "the same")."""
    table = read(root, page).partition(heading)[2].partition('\n\n## ')[0] if heading else read(root, page)
    rows = [line for line in table.split('\n') if line.startswith('| ')][1:]
    if not rows:
        yield f'{page}: no table of measured figures'
    for row in rows:
        cells = [cell.strip() for cell in re.split(r'(?<!\\)\|', row)[1:-1]]
        commands = re.findall(r'`(?:[A-Z_]+=\S+ )*([^`\s]+)', cells[-1])
        if not commands and cells[-1] != 'the same' and not cells[0].startswith('...'):
            yield f'{page}: no command prints "{cells[0]}"'
        for command in commands:
            script = command if command.startswith('bench/') else './dev' if command == './dev' else None
            if script and not os.path.exists(os.path.join(root, script)):
                yield f'{page}: {command} is not in the tree'


def pages(root):
    skipped = ('build', '.git', 'mfl-run')
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith(skipped))
        for name in sorted(files):
            if name.endswith('.md'):
                yield os.path.relpath(os.path.join(folder, name), root)


def check(root):
    faults = list(check_size(root))
    for page in pages(root):
        faults += check_links(root, page)
    for page, heading in MEASURED:
        faults += check_measured(root, page, heading)
    return faults


def self_test():
    head = '| what | mfl | command |\n|---|---|---|\n'
    good = {'README.md': '# m\n[a](docs/measured.md#some-figures)\n\n## Measured\n\n' + head + '| a | 1 | `bench/a.py -x` |\n',
            'docs/measured.md': '# Some figures!\n' + head + '| a | 1 | `X=1 bench/a.py` |\n| ... b | 2 | |\n| c | 3 | the same |\n',
            'bench/a.py': ''}
    planted = [
        ({}, None),
        ({'docs/b.md': '[x](gone.md)\n'}, 'leads nowhere'),
        ({'docs/b.md': '```\n[x](gone.md)\n```\n[y](https://example.org)\n'}, None),
        ({'docs/b.md': '[x](measured.md#other)\n'}, 'no heading'),
        ({'docs/b.md': '# B\n[x](#b)\n'}, None),
        ({'README.md': good['README.md'] + '\n' * README_LINES}, 'at most'),
        ({'docs/measured.md': '# Some figures!\n' + head + '| a | 1 | |\n'}, 'no command'),
        ({'docs/measured.md': '# Some figures!\n' + head + '| a | 1 | `bench/b.py` |\n'}, 'not in the tree'),
        ({'docs/measured.md': '# Some figures!\n'}, 'no table'),
    ]
    for changes, expected in planted:
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**good, **changes}.items():
                os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
                with open(os.path.join(root, path), 'w', encoding='utf-8') as f:
                    f.write(text)
            faults = check(root)
            assert bool(faults) == bool(expected) and all(expected in fault for fault in faults), (changes, faults)


def main():
    if sys.argv[1:] == ['--self-test']:
        self_test()
        return 0
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')
    faults = check(root)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
