#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The README's two commands on a machine that has nothing: ./dev demo and ./dev test in a minimal Debian of its own, which holds the
files of this tree and can reach Debian's mirror, and nothing else. With --optional what was skipped there follows.

The last line is the sum. Skipped, with the reason, where debootstrap, systemd-nspawn, root or the network is missing."""
import argparse
import glob
import os
import shutil
import subprocess
import sys

from machine import Failure, Machine, carry_out, check_tools, keep_packages, make_base, make_root, only_mirror, run

TOP = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
CLONE = '/root/mfl'


class Test:
    def __init__(self, options):
        self.options, self.work, self.machine = options, os.path.abspath(options.work), None
        self.root, self.base = (os.path.join(self.work, name) for name in ('fresh', 'base'))

    def make(self):
        os.makedirs(self.work, exist_ok=True)
        make_base(self.base)
        make_root(self.base, self.root)
        # A mirror's list that is there already spares one failed attempt; a fresh machine may have none.
        for path in glob.glob(self.root + '/var/lib/apt/lists/*_*'):
            os.unlink(path)
        only_mirror(self.root)

    def clone(self):
        """What git has of this tree, and what it would add."""
        names = run(['git', '-c', 'safe.directory=*', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'], cwd=TOP).split('\0')
        there = '\0'.join(name for name in names if os.path.lexists(os.path.join(TOP, name)) and name)
        os.makedirs(self.root + CLONE)
        tar = subprocess.run(['tar', '-c', '--null', '-T', '-', '--owner=0', '--group=0'], input=there.encode(), cwd=TOP, check=True,
                             stdout=subprocess.PIPE).stdout
        subprocess.run(['tar', '-x', '-C', self.root + CLONE], input=tar, check=True)

    def boot(self):
        self.machine = Machine(self.root, os.path.join(self.work, 'console.log'), network=True)

    def command(self, name, seconds):
        """./dev NAME; what it says goes to a file beside the root, and its last lines here."""
        file = name.split(' --')[0].replace(' ', '-') + '.log'
        log, path = '/root/' + file, os.path.join(self.work, file)
        try:
            self.machine.sh('cd %s; HOME=/root ./dev %s >%s 2>&1 </dev/null' % (CLONE, name, log), timeout=seconds)
        except Failure as e:
            raise Failure('%s\n%s' % (str(e).split('\n', maxsplit=1)[0], self.tail(log, 60))) from None
        finally:
            shutil.copy(self.root + log, path)
        print(self.tail(log, 6 if name.startswith('demo') else 12), flush=True)

    def tail(self, log, n):
        with open(self.root + log, encoding='utf-8', errors='replace') as f:
            return ''.join('    ' + line.rstrip() + '\n' for line in f.read().rstrip().split('\n')[-n:]).rstrip()

    def demo(self):
        self.command('demo --out /root/model', 1800)
        if not glob.glob(self.root + '/root/model/*.safetensors'):
            raise Failure('no model in %s' % os.listdir(self.root + '/root/model'))

    def test(self):
        self.command('test', 3400)

    def optional(self):
        self.command('test optional', 3400)

    def close(self):
        if self.machine:
            self.machine.stop()
            keep_packages(self.base, self.root)
        if not self.options.keep:
            shutil.rmtree(self.root, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--work', default=os.environ.get('MFL_PACKAGES') or os.path.join(TOP, 'build-packages'),
                        help='folder for roots, that of ./dev test packages; the clean root in it is used again (default: build-packages)')
    parser.add_argument('--only', choices=('demo', 'test'), help='one of the two commands')
    parser.add_argument('--optional', action='store_true', help='./dev test optional, too')
    parser.add_argument('--keep', action='store_true', help='leave the root')
    test = Test(parser.parse_args())
    steps = [('tools', check_tools), ('clean root', test.make), ('clone', test.clone), ('boot', test.boot),
             ('./dev demo', test.demo), ('./dev test', test.test), ('./dev test optional', test.optional)]
    if test.options.only:
        steps = [step for step in steps if step[0] in ('./dev ' + test.options.only, './dev test optional') or not step[0].startswith('./dev ')]
    if not test.options.optional:
        steps.pop()
    try:
        return carry_out(steps)
    finally:
        test.close()


if __name__ == '__main__':
    sys.exit(main())
