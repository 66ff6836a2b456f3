#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the worked changes of docs/changes still apply to the tree; tests/e2e/test_worked_changes.py builds and runs them.

check_changes.py [ROOT]        checks the tree
check_changes.py --self-test   checks the checker with a change that does not apply
"""
import glob
import os
import shutil
import subprocess
import sys
import tempfile


def faults(root):
    """What is wrong, one text each."""
    paths = sorted(glob.glob(os.path.join(root, 'docs', 'changes', '*.patch')))
    found = [] if paths else ['docs/changes has no patch']
    for path in paths:
        done = subprocess.run(['git', 'apply', '--check', path], cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**os.environ, 'GIT_CEILING_DIRECTORIES': os.path.dirname(os.path.abspath(root))}, check=False)
        if done.returncode:
            found.append('docs/changes/%s no longer applies: make its change again, and git diff > it\n%s' % (os.path.basename(path), done.stdout))
    return found


def self_test():
    with tempfile.TemporaryDirectory() as root:
        os.makedirs(os.path.join(root, 'docs', 'changes'))
        assert faults(root) == ['docs/changes has no patch']
        patch = os.path.join(root, 'docs', 'changes', 'one.patch')
        with open(patch, 'w', encoding='utf-8') as f:
            f.write('diff --git a/x.txt b/x.txt\n--- a/x.txt\n+++ b/x.txt\n@@ -1 +1 @@\n-old\n+new\n')
        for text, n in (('old\n', 0), ('other\n', 1)):
            with open(os.path.join(root, 'x.txt'), 'w', encoding='utf-8') as f:
                f.write(text)
            assert len(faults(root)) == n, faults(root)
    print('changes: self-test passed')


def main():
    if not shutil.which('git'):
        print('changes: skipped: no git here; on Debian: apt-get install git')
        return 77
    if sys.argv[1:] == ['--self-test']:
        self_test()
        return 0
    found = faults(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), '..')))
    print('\n'.join(found) or 'changes: all apply')
    return 1 if found else 0


sys.exit(main())
