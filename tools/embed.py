#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the dashboard's files into one C file: embed.py OUTPUT FRAME.html FILE...

FRAME becomes mfl_dashboard_frame, each FILE an asset at "/" and its name (server/web/dashboard.h).
embed.py OUTPUT --text NAME HEADER FILE: the file alone, as the terminated text NAME that HEADER declares."""
import os
import sys

TYPES = {'.css': 'text/css; charset=utf-8', '.js': 'text/javascript; charset=utf-8', '.svg': 'image/svg+xml'}


def array(data):
    rows = (data[i:i + 24] for i in range(0, len(data), 24))
    return '\n'.join('        ' + ''.join('%d,' % b for b in row) for row in rows)


def read(path):
    with open(path, 'rb') as f:
        return f.read()


def main():
    output, frame, *files = sys.argv[1:]
    if frame == '--text':
        name, header, path = files
        with open(output, 'w', encoding='ascii') as f:
            f.write('/* Made by tools/embed.py. */\n#include "%s"\n\nconst char %s[] = {\n%s\n};\n' % (header, name, array(read(path) + b'\0')))
        return
    lines = ['/* Made by tools/embed.py. */', '#include "server/web/dashboard.h"', '',
             'const char mfl_dashboard_frame[] = {', array(read(frame) + b'\0'), '};', '']
    for i, path in enumerate(files):
        lines += ['static const unsigned char file_%d[] = {' % i, array(read(path)), '};']
    lines += ['const struct mfl_asset mfl_dashboard_assets[] = {']
    for i, path in enumerate(files):
        name = os.path.basename(path)
        lines.append('        {"/%s", "%s", file_%d, sizeof file_%d},' % (name, TYPES[os.path.splitext(name)[1]], i, i))
    lines += ['};', 'const size_t mfl_dashboard_n_assets = %d;' % len(files), '']
    with open(output, 'w', encoding='ascii') as f:
        f.write('\n'.join(lines))


main()
