# SPDX-License-Identifier: Apache-2.0
"""Builds plug-ins as their headers say, against include/ alone."""
import os
import subprocess

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def build(directory, name, source):
    """source: C text, or the path of a file of the tree."""
    path = os.path.join(TOP, source) if source.endswith('.c') else os.path.join(directory, name + '.c')
    if not source.endswith('.c'):
        with open(path, 'w', encoding='utf-8') as f:
            f.write(source)
    subprocess.run(['cc', '-shared', '-fPIC', '-O2', '-ffp-contract=off', '-Wall', '-Werror', '-I', os.path.join(TOP, 'include'), '-o',
                    os.path.join(directory, name + '.so'), path, '-lm'], check=True, timeout=60)
