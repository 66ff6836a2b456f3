#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a text file into a C file with one string: embed_text.py NAME INPUT OUTPUT"""
import sys

name, source, output = sys.argv[1:]
with open(source, 'rb') as f:
    data = f.read() + b'\0'
rows = '\n'.join('        ' + ''.join('%d,' % b for b in data[i:i + 24]) for i in range(0, len(data), 24))
with open(output, 'w', encoding='ascii') as f:
    f.write('/* Made by tools/embed_text.py. */\nextern const char %s[];\nconst char %s[] = {\n%s\n};\n' % (name, name, rows))
