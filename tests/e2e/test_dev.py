# SPDX-License-Identifier: Apache-2.0
"""./dev before the first program is there: what it says and does when something is in its way. The tools that it calls are scripts
here, which note that they were called. And what runs the tests: one that lacks something is skipped and says why."""
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
DEV = os.path.join(TOP, 'dev')
MESON = '''echo "noise of meson"
echo "meson $1" >>"$CALLS"
if [ "$1" = test ]; then
        for name; do :; done
        echo "only $name, of ${MFL_SKIPPED_IN##*/}" >>"$CALLS"
        cp "$LATER" "$3/meson-logs/testlog.json"
fi
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
         'dpkg-query': 'echo ok installed', 'apt-get': 'echo "apt-get $*" >>"$CALLS"; exit ${APT:-100}'}


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
    assert [call.split()[1] for call in calls] == ['install', 'update']
    last = said.split('\n')[-2]
    assert last.startswith('dev: apt-get, above, says why there are no libuv1-dev ') and last.endswith('then start ./dev again')


def test_demo(clone):
    """Its options are told without a build; a clone without the program says so."""
    said, calls = clone.run('demo', '--help')
    assert said.startswith('usage: ./dev COMMAND') and not calls
    said, calls = clone.run('demo', status=1)
    assert said.endswith('dev: the build has no cli/mfl\n') and calls == ['meson setup', 'ninja']
    # Where there is no GPU, nothing is compiled for one until somebody asks for a whole build.
    if not os.path.exists('/dev/nvidiactl'):
        assert clone.run('build')[1] == ['meson configure', 'ninja']
    assert clone.run('build')[1] == ['ninja']


# ---- what lacks something ----

LACKS = """import mfl_needs
nothing = mfl_needs.module('torch')
def test_it():
    assert nothing.of_that_kind
"""
SOME = """import mfl_needs
import pytest
def test_good():
    pass
@mfl_needs.needs_program('promtool')
def test_of_rules():
    pass
def test_by_hand():
    mfl_needs.program('no-such-program')
"""


HANGS = """import subprocess
def test_it(tmp_path):
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out' / 'server.log').write_text('its last words')
    subprocess.run(['/bin/sleep', '4321'], timeout=0.1)
"""
WAITS = """import subprocess
import pytest
@pytest.fixture
def sleeper():
    with subprocess.Popen(['/bin/sleep', '4321']) as process:
        yield process
        process.kill()
def test_it(sleeper):
    raise TimeoutError('waited 1 s for the end of the night')
"""


def run_file_as(tmp_path, text, env):
    """One file of tests, where there are neither torch nor promtool."""
    (tmp_path / 'modules').mkdir(exist_ok=True)
    (tmp_path / 'modules' / 'torch.py').write_text('raise ImportError("none")\n')
    (tmp_path / 'test_x.py').write_text(text)
    return subprocess.run([sys.executable, os.path.join(TOP, 'tests', 'lib', 'run_pytest.py'), str(tmp_path / 'test_x.py')], text=True,
                          capture_output=True, timeout=60, check=False, cwd=tmp_path,
                          env={'PATH': str(tmp_path), 'PYTHONPATH': str(tmp_path / 'modules'), **env})


def run_file(tmp_path, text, **env):
    """(status, lines of TAP)"""
    done = run_file_as(tmp_path, text, env)
    return done.returncode, done.stdout.splitlines()


def summary(tmp_path, *argv, **test):
    (tmp_path / 'log').write_text(json.dumps(test) + '\n')
    return subprocess.run([sys.executable, os.path.join(TOP, 'tools', 'test_summary.py'), *argv, str(tmp_path / 'log')], text=True,
                          capture_output=True, timeout=30, check=False).stdout


def test_a_file_that_lacks_something_is_skipped(tmp_path):
    status, lines = run_file(tmp_path, LACKS)
    why = 'no torch here; on Debian: apt-get install python3-torch'
    assert (status, lines) == (0, ['ok 1 - test_x.py # SKIP ' + why, '1..1'])
    test = {'name': 'x', 'result': 'SKIP', 'stdout': '\n'.join(lines)}
    assert summary(tmp_path, '--failures', **test) == 'skipped: x - test_x.py: %s\n0 passed, 0 failed, 1 skipped\n' % why
    assert summary(tmp_path, '--lacking', **test) == 'x python3-torch\n'
    # Nothing to run is no reason.
    assert run_file(tmp_path, 'x = 1\n') == (5, ['not ok 1 - no test in test_x.py', '1..1'])
    assert run_file(tmp_path, 'import no_such_module\n') == (2, ['not ok 1 - test_x.py', '1..1'])


def test_who_hangs_says_where(tmp_path):
    """A hang is seen once in a long while: the failure shows what the processes were doing, and their logs."""
    done = run_file_as(tmp_path, HANGS, {})
    assert done.returncode == 1 and done.stdout.startswith('not ok 1 - test_x.py::test_it\n')
    assert re.search(r'^\d+: /bin/sleep 4321\n  \d+ sleep S ', done.stderr, re.M), done.stderr
    assert '== out/server.log, 1 lines\nits last words\n' in done.stderr
    done = run_file_as(tmp_path, WAITS, {})
    assert done.returncode == 1 and re.search(r'^\d+: /bin/sleep 4321$', done.stderr, re.M), done.stderr


def test_what_was_skipped_is_run_again_alone(tmp_path):
    lines = run_file(tmp_path, SOME)[1]
    assert lines == ['ok 1 - test_x.py::test_good', 'ok 2 - test_x.py::test_of_rules # SKIP no promtool here; on Debian: apt-get '
                     'install prometheus', 'ok 3 - test_x.py::test_by_hand # SKIP no no-such-program here', '1..3']
    test = {'name': 'x', 'result': 'OK', 'stdout': '\n'.join(lines)}
    assert summary(tmp_path, **test) == '1 passed, 0 failed, 2 skipped\n'
    assert summary(tmp_path, '--lacking', **test) == 'x prometheus\n'
    (tmp_path / 'promtool').write_text('')
    (tmp_path / 'promtool').chmod(0o755)
    assert run_file(tmp_path, SOME, MFL_SKIPPED_IN=str(tmp_path / 'log'))[1] == [
        'ok 1 - test_x.py::test_of_rules', 'ok 2 - test_x.py::test_by_hand # SKIP no no-such-program here', '1..2']


def test_optional(clone, tmp_path):
    """What skipped tests ask for is installed, they run, they alone, and the sum is that of both runs."""
    (clone.dir / 'tools').mkdir()
    shutil.copy(os.path.join(TOP, 'tools', 'test_summary.py'), clone.dir / 'tools')
    assert './dev test comes first' in clone.run('test', 'optional', status=1)[0]
    log = clone.dir / 'build' / 'meson-logs' / 'testlog.json'
    log.parent.mkdir(parents=True)
    lines = ['ok 1 - a', 'ok 2 - b # SKIP no promtool here; on Debian: apt-get install prometheus']
    tests = [{'name': 'mfl:e2e / some', 'result': 'OK', 'stdout': '\n'.join(lines)}, {'name': 'all', 'result': 'OK', 'stdout': 'ok 1 - c'},
             {'name': 'gpu', 'result': 'SKIP', 'stdout': '1..0 # SKIP no device'}]
    log.write_text(''.join(json.dumps(test) + '\n' for test in tests))
    later = tmp_path / 'later'
    later.write_text(json.dumps({'name': 'mfl:e2e / some', 'result': 'OK', 'stdout': 'ok 1 - b'}))
    said, calls = clone.run('test', 'optional', APT='0', LATER=str(later))
    assert calls == ['apt-get install -y --no-install-recommends prometheus', 'meson test', 'only some, of lacking.json']
    assert said.endswith('skipped: gpu: no device\n3 passed, 0 failed, 1 skipped\n')
    said, calls = clone.run('test', 'optional')
    assert not calls and said.startswith('no test of the last run was skipped for want of a package\n')
