# SPDX-License-Identifier: Apache-2.0
"""The pages show what the programs print, and the README's commands work, one after the other, on a machine of a newcomer."""
import os
import re
import subprocess
import sys

import pytest

import mfl_harness as h
import mfl_needs

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
sys.path.insert(0, os.path.join(ROOT, 'tools'))
import samples  # noqa: E402

PLACES = [(page, m[1], m[2]) for page in samples.pages() for m in samples.SAMPLE.finditer(samples.read(page))]
FASHION = '/usr/share/datasets/fashion-mnist'


@pytest.mark.parametrize('page, name, have', PLACES, ids=['%s-%s' % place[:2] for place in PLACES])
def test_sample_has_the_form_of_the_output(page, name, have):
    said = samples.compare(page, name, have, samples.make(h.BUILD, name, False))
    assert not said, said + '\n./dev docs makes the samples again'


def test_every_recipe_is_used():
    assert sorted(set(place[1] for place in PLACES)) == sorted(samples.RECIPES)


@pytest.mark.parametrize('page', samples.pages())
def test_every_block_names_its_kind(page):
    found = list(samples.check_fences(page, samples.read(page)))
    assert not found, '\n'.join(found)


def test_form():
    """Numbers, ids, bars and blanks are masked; words, columns and lines are not."""
    a = 'j-000001 demo  running\nrounds  ███▊   3/4  clients 0/10  0:15 left\nup 40 MB, down 1.2 kB  6f5c08200916\n'
    b = 'j-000123 demo  running\nrounds  █▁ 1/9  clients 5/10  50%  1:02:03 left\nup 7 B, down 12 GB 0123456789ab'
    assert samples.form(a) == samples.form(b)
    for other in (a.replace('left', 'gone'), a.replace('up 40 MB, ', ''), a.replace('running', ''), a + 'more'):
        assert samples.form(other) != samples.form(b)


# ---- a newcomer's walk ----

def readme_commands():
    """The lines of the README's sh blocks, without their remarks."""
    blocks = re.findall(r'^```sh\n(.*?)^```', samples.read('README.md'), re.M | re.S)
    return [re.sub(r'\s+# .*', '', line) for block in blocks for line in block.splitlines()]


def test_newcomers_walk(tmp_path):
    """The README's commands in their order, in an empty folder, with the built programs. ./dev is what brings those, so its lines
    are left out (./dev test fresh runs them). The examples are those of the tree; the demo is shortened to a small model and one
    round. The port is a free one."""
    if not os.path.isdir(FASHION):
        pytest.skip(mfl_needs.lack('Fashion-MNIST'))
    commands = [line for line in readme_commands() if not line.startswith('./dev ')]
    words = {line.split()[0] for line in commands}
    assert len(commands) >= 6 and words <= {'mfl', 'mfl-server', 'mfl-client'}, commands
    port = subprocess.run([sys.executable, '-c', 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'],
                          capture_output=True, text=True, check=True).stdout.strip()
    home, folder = tmp_path / 'home', tmp_path / 'empty'
    (folder / 'examples').mkdir(parents=True)
    home.mkdir()
    for name in os.listdir(samples.ROOT + '/examples'):
        if name.endswith('.yaml'):
            text = samples.read('examples/' + name)
            if name == 'demo.yaml':
                text = re.sub(r'^model: .*', 'model: mlp', re.sub(r'^rounds: .*', 'rounds: 1', text, flags=re.M), flags=re.M)
            (folder / 'examples' / name).write_text(text)
    script = ['trap \'kill $(jobs -p); wait\' EXIT', 'mfl-server() { exec "$(type -P mfl-server)" --listen $MFL_SERVER "$@"; }']
    for command in commands:
        if command.startswith('mfl '):
            script.append('until mfl daemons --json | grep -q \'"name"\'; do sleep 0.1; done')  # people type more slowly
        script.append(command)
    env = {'PATH': ':'.join([*(os.path.dirname(h.program(p)) for p in ('mfl', 'mfl-server', 'mfl-client')), os.environ['PATH']]),
           'MFL_SERVER': '127.0.0.1:' + port, 'HOME': str(home), 'LC_ALL': 'C.UTF-8'}
    done = subprocess.run(['bash', '-euxc', '\n'.join(script)], env=env, text=True, capture_output=True, timeout=300, check=False,
                          cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'fashion-demo: done after 1 round, accuracy' in done.stdout, done.stdout
    assert (folder / 'model.safetensors').stat().st_size > 100 and (home / 'mfl-state' / 'mfl.db').exists()
    assert sorted(os.listdir(folder)) == ['examples', 'model.safetensors']
