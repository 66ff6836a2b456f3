# SPDX-License-Identifier: Apache-2.0
"""./dev before the first program is there: what it says and does when something is in its way. The tools that it calls are scripts
here, which note that they were called."""
import fcntl
import os
import shutil
import subprocess

import pytest

DEV = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'dev')
MESON = '''echo "noise of meson"
echo "meson $1" >>"$CALLS"
[ "$1" = setup ] || exit 0
mkdir -p "$2/meson-info"
printf '{"directories": {"source": "%s"}}' "$3" >"$2/meson-info/meson-info.json"
touch "$2/build.ninja"
'''
NINJA = '''echo "noise of ninja"
echo "ninja" >>"$CALLS"
[ ! -e "$BROKEN" ] || exit 1
echo "[7/7] the last line"
'''
TOOLS = {'meson': MESON, 'ninja': NINJA, 'gcc': 'cat >/dev/null', 'protoc-c': '', 'pkg-config': 'exit ${PKG_CONFIG:-0}', 'sudo': '"$@"',
         'dpkg-query': 'echo ok installed', 'apt-get': 'echo "apt-get $1" >>"$CALLS"; exit 100'}


class Clone:
    def __init__(self, tmp_path):
        self.dir = tmp_path / 'a clone'
        self.calls = tmp_path / 'calls'
        self.broken = tmp_path / 'broken'
        self.tools = tmp_path / 'tools'
        for folder in (self.dir, self.tools):
            folder.mkdir()
        shutil.copy(DEV, self.dir / 'dev')
        for name, text in TOOLS.items():
            (self.tools / name).write_text('#!/bin/sh\n' + text)
            (self.tools / name).chmod(0o755)
        self.env = {'PATH': '%s:/usr/bin:/bin' % self.tools, 'CALLS': str(self.calls), 'BROKEN': str(self.broken)}

    def start(self, *argv, **env):
        return subprocess.Popen([str(self.dir / 'dev'), *argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, env={**self.env, **env}, cwd=self.dir)

    def run(self, *argv, status=0, **env):
        self.calls.write_text('')
        with self.start(*argv, **env) as dev:
            said = dev.communicate(timeout=30)[0]
        assert dev.returncode == status, said
        return said, self.calls.read_text().split('\n')[:-1]


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


def test_build(clone):
    """In a folder with a space in its name; tools are heard when they fail."""
    said, calls = clone.run('build')
    assert calls == ['meson setup', 'ninja'] and 'noise' not in said and '[7/7] the last line' in said
    said, calls = clone.run('build')
    assert calls == ['ninja']
    clone.broken.touch()
    said, calls = clone.run('build', status=1)
    assert 'noise of ninja' in said and said.endswith('dev: the build failed; the lines above are in %s/build/dev.log\n' % clone.dir)
    said, calls = clone.run('biuld', status=2)
    assert not calls and said.endswith("dev: there is no command 'biuld'\n")


def test_renamed(clone):
    """What was built for another folder is not taken for this one's, nor what a stopped meson left."""
    clone.run('build')
    clone.dir = clone.dir.rename(clone.dir.parent / 'renamed')
    said, calls = clone.run('build')
    assert 'is made anew' in said and calls == ['meson setup', 'ninja']
    (clone.dir / 'build/build.ninja').unlink()
    core = clone.dir / 'build/meson-private/coredata.dat'
    core.parent.mkdir()
    core.touch()
    assert clone.run('build')[1] == ['meson setup', 'ninja'] and not core.exists()


def test_two_at_once(clone):
    clone.run('build')
    held = os.open(clone.dir / 'build', os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    clone.calls.write_text('')
    with clone.start('build') as dev:
        assert dev.stdout.readline() == 'dev: another ./dev builds in %s/build: waiting for it\n' % clone.dir
        assert not clone.calls.read_text()
        os.close(held)
        dev.communicate(timeout=30)
        assert dev.returncode == 0 and clone.calls.read_text() == 'ninja\n'


def test_in_the_way(clone):
    """A file in the place of the folder; packages that can't be had."""
    said, calls = clone.run('build', MFL_BUILD='dev/build', status=1)
    assert not calls and 'Not a directory; MFL_BUILD=DIR builds elsewhere' in said
    said, calls = clone.run('build', PKG_CONFIG='1', status=1)
    assert calls == ['apt-get install', 'apt-get update']
    last = said.split('\n')[-2]
    assert last.startswith('dev: apt-get, above, says why there are no libuv1-dev ') and last.endswith('then start ./dev again')


def test_demo(clone):
    """Its options are told without a build; a clone without the program says so."""
    said, calls = clone.run('demo', '--help')
    assert said.startswith('usage: ./dev COMMAND') and not calls
    said, calls = clone.run('demo', status=1)
    assert said.endswith('dev: the build has no cli/mfl\n') and calls == ['meson setup', 'ninja']
