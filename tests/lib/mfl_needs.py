# SPDX-License-Identifier: Apache-2.0
"""What a test needs and a machine may lack. Such a test is skipped, never failed, with a line that says what would bring it:
'no promtool here; on Debian: apt-get install prometheus'. `./dev test optional` does what these lines say, and runs what was skipped.
"""
import importlib.util
import os
import shutil

import pytest

# Of a program or a Python module: the Debian packages that bring it. Others are named as they are.
PACKAGES = {
    'Fashion-MNIST': 'dataset-fashion-mnist',
    'chromium': 'chromium',
    'fish': 'fish',
    'google.protobuf': 'python3-protobuf',
    'groff': 'groff-base',
    'ip': 'iproute2',
    'ipykernel': 'python3-ipykernel',
    'mypy': 'python3-mypy',
    'nbclient': 'python3-nbclient',
    'nbformat': 'python3-nbformat',
    'numpy': 'python3-numpy',
    'openssl': 'openssl',
    'pip': 'python3-pip',
    'promtool': 'prometheus',
    'setuptools': 'python3-setuptools',
    'slurmctld': 'slurmctld slurmd slurm-client munge',
    'systemctl': 'systemd',
    'systemd-analyze': 'systemd',
    'systemd-sysusers': 'systemd',
    'systemd-tmpfiles': 'systemd',
    'torch': 'python3-torch',
    'wheel': 'python3-wheel',
    'yaml': 'python3-yaml',
    'zsh': 'zsh',
}


def lack(what):
    """The reason of a skip."""
    return 'no %s here%s' % (what, '; on Debian: apt-get install ' + PACKAGES[what] if what in PACKAGES else '')


def module(name):
    """The Python module; or the tests of the file that asks are skipped."""
    return pytest.importorskip(name, reason=lack(name))


def installed(name):
    """The same for one test, without importing the module."""
    if not importlib.util.find_spec(name):
        pytest.skip(lack(name))


def which(name):
    return shutil.which(name, path=os.environ.get('PATH', '') + ':/usr/sbin:/sbin')


def program(name):
    """Its path; or the test, or what the calling fixture is for, is skipped."""
    path = which(name)
    if not path:
        pytest.skip(lack(name))
    return path


def needs_program(name):
    """A mark for a test or a file (pytestmark)."""
    return pytest.mark.skipif(not which(name), reason=lack(name))
