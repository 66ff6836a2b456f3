#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes text files into a C file with a table of strings, sorted by name: embed_texts.py HEADER STRUCT TABLE OUTPUT INPUT..."""
import os
import sys

header, struct, table, output = sys.argv[1:5]
rows = []
for path in sorted(sys.argv[5:], key=lambda path: os.path.splitext(path)[0]):
    with open(path, 'rb') as f:
        data = f.read() + b'\0'
    text = '\n'.join('        ' + ''.join('%d,' % b for b in data[i:i + 24]) for i in range(0, len(data), 24))
    name = os.path.splitext(os.path.basename(path))[0]
    rows.append('        {"%s", (const char[]){\n%s\n        }},\n' % (name, text))
with open(output, 'w', encoding='ascii') as f:
    f.write('/* Made by tools/embed_texts.py. */\n#include "%s"\nconst struct %s %s[] = {\n%s        {0}};\n' % (
        header, struct, table, ''.join(rows)))
