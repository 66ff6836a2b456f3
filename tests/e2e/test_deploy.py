# SPDX-License-Identifier: Apache-2.0
"""The configuration files and units of deploy/ are taken by the programs that they are for."""
import os
import shutil
import subprocess

import pytest

import mfl_harness as h

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'deploy')


def test_server_configuration(tmp_path):
    """Port 0 and a folder of its own come from options, which go before the file; stdin's end stops it."""
    done = subprocess.run(
        [h.program('mfl-server'), '--config', os.path.join(DEPLOY, 'server.yaml'), '--listen', '127.0.0.1:0', '--state-dir',
         str(tmp_path / 'state'), '--exit-with-stdin'], input='', capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert '16.0 GiB for jobs' in done.stderr


def test_client_configuration():
    done = subprocess.run(
        [h.program('mfl-client'), '--config', os.path.join(DEPLOY, 'client.yaml'), '--server', '127.0.0.1:9',
         '--backend', 'reference', '--exit-with-stdin'], input='', capture_output=True, text=True, timeout=60)
    if 'there is no' in done.stderr or 'No such file' in done.stderr:
        assert done.returncode == 78 and 'fashion-mnist' in done.stderr
        pytest.skip('fashion-mnist is not installed here')
    assert done.returncode == 0, done.stderr
    assert 'site-a: backend reference' in done.stderr


@pytest.mark.parametrize('unit', ['mfl-server.service', 'mfl-client.service'])
def test_unit(unit, tmp_path):
    """systemd-analyze reads the unit; the programs stand where the unit looks for them."""
    if not shutil.which('systemd-analyze'):
        pytest.skip('no systemd-analyze here')
    text = open(os.path.join(DEPLOY, 'systemd', unit), encoding='utf-8').read()
    for name in ('mfl-server', 'mfl-client'):
        text = text.replace('/usr/bin/' + name, h.program(name))
    path = tmp_path / unit
    path.write_text(text)
    done = subprocess.run(['systemd-analyze', 'verify', str(path)], capture_output=True, text=True, timeout=30)
    complaints = [line for line in done.stderr.splitlines() if unit in line]
    assert not complaints and done.returncode == 0, done.stderr
