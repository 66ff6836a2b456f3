# SPDX-License-Identifier: Apache-2.0
"""The configuration files and units of deploy/ are taken by the programs that they are for."""
import os
import re
import shutil
import subprocess

import pytest

import mfl_harness as h
import mfl_needs

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'deploy')
BUILT = os.path.join(h.BUILD, 'deploy')
SERVES = os.path.exists(h.program('mfl-serve'))  # http-parser was there
UNITS = ('mfl-server.service', 'mfl-server.socket', 'mfl-client@.service', 'mfl-client.target', *(['mfl-serve.service'] if SERVES else []))


def example(tmp_path, name, *keys):
    """The example of deploy/ with some keys that stand behind a '#' in it."""
    with open(os.path.join(DEPLOY, name), encoding='utf-8') as f:
        text = f.read()
    for key in keys:
        assert '\n# %s:' % key in text
        text = text.replace('\n# %s:' % key, '\n%s:' % key)
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_server_configuration(tmp_path):
    """Port 0 and a folder of its own come from options, which go before the file; stdin's end stops it."""
    done = subprocess.run(
        [h.program('mfl-server'), '--config', example(tmp_path, 'server.yaml', 'memory_max'), '--listen', '127.0.0.1:0', '--state-dir',
         str(tmp_path / 'state'), '--exit-with-stdin'], input='', capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert '16.0 GiB for jobs' in done.stderr


def test_client_configuration(tmp_path):
    done = subprocess.run(
        [h.program('mfl-client'), '--config', example(tmp_path, 'client.yaml', 'name', 'memory'), '--server', '127.0.0.1:9',
         '--backend', 'reference', '--exit-with-stdin'], input='', capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert 'site-a: backend reference' in done.stderr


@pytest.mark.skipif(not SERVES, reason='no mfl-serve here; on Debian: apt-get install libhttp-parser-dev')
def test_serve_configuration(tmp_path):
    config = example(tmp_path, 'serve.yaml', 'models')
    done = subprocess.run([h.program('mfl-serve'), '--config', config, '--listen', '127.0.0.1:0', '--exit-with-stdin'], input='', capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == 0 and 'listening on 127.0.0.1:' in done.stderr, done.stderr


def analyze(*argv, **options):
    mfl_needs.program('systemd-analyze')
    return subprocess.run(['systemd-analyze', *argv], capture_output=True, text=True, timeout=60, check=False, **options)


def copy_units(folder, programs=None):
    """The units as they are installed, with the programs where they stand now."""
    folder.mkdir(exist_ok=True)
    for unit in UNITS:
        with open(os.path.join(BUILT, unit), encoding='utf-8') as f:
            text = f.read()
        for name in ('mfl-server', 'mfl-client', 'mfl-serve'):
            text = re.sub(r'^(ExecStart=)\S*/%s ' % name, lambda m, n=name: m[1] + (programs or h.program)(n) + ' ', text, flags=re.M)
        (folder / unit).write_text(text)
    return folder


# ---- units ----

def test_units_verify(tmp_path):
    """systemd reads all of them without a complaint."""
    folder = copy_units(tmp_path / 'units')
    done = analyze('verify', *(str(folder / unit.replace('@', '@0')) if '@' in unit else str(folder / unit) for unit in UNITS),
                   env={**os.environ, 'SYSTEMD_UNIT_PATH': str(folder) + ':'})
    complaints = [line for line in done.stderr.splitlines() if 'mfl' in line]
    assert not complaints and done.returncode == 0, done.stderr


@pytest.mark.parametrize('unit,threshold', [('mfl-server.service', 2.0), ('mfl-client@0.service', 2.5), *([('mfl-serve.service', 2.0)] if SERVES else [])])
def test_units_are_hardened(tmp_path, unit, threshold):
    """The exposure that systemd computes: 2.0 at most for the server; GPUs and code made at run time leave the daemon more."""
    folder = copy_units(tmp_path / 'units')
    if '@' in unit:
        shutil.copy(folder / 'mfl-client@.service', folder / unit)
    done = analyze('security', '--offline=true', '--threshold=%d' % (threshold * 10), '--no-pager', str(folder / unit))
    if 'unrecognized option' in done.stderr:
        pytest.skip('this systemd-analyze judges no files')
    assert done.returncode == 0, done.stdout[-300:] + done.stderr
    assert float(re.search(r'exposure level for \S+: ([0-9.]+)', done.stdout)[1]) <= threshold


def test_drop_ins_of_a_cluster(tmp_path):
    """Both of them beside an etcd.service: systemd reads them without a complaint, the server is ordered behind it, and does not require it."""
    folder = copy_units(tmp_path / 'units')
    (folder / 'mfl-server.service.d').mkdir()
    for name in ('server.conf', 'blobs.conf'):
        shutil.copy(os.path.join(DEPLOY, 'systemd', 'cluster', name), folder / 'mfl-server.service.d')
    (folder / 'etcd.service').write_text('[Service]\nExecStart=/bin/true\n')
    unit, env = str(folder / 'mfl-server.service'), {**os.environ, 'SYSTEMD_UNIT_PATH': str(folder) + ':'}
    done = analyze('verify', unit, env=env)
    complaints = [line for line in done.stderr.splitlines() if 'mfl' in line]
    assert not complaints and done.returncode == 0, done.stderr
    (folder / 'mfl-server.service.d' / 'server.conf').write_text('[Unit]\nAfer=etcd.service\n')  # a slip is seen
    assert 'Afer' in analyze('verify', unit, env=env).stderr


def test_what_daemons_share():
    """What they add their updates in belongs to all instances: one user, /dev/shm, IPC and network."""
    with open(os.path.join(BUILT, 'mfl-client@.service'), encoding='utf-8') as f:
        settings = dict(line.strip().split('=', 1) for line in f if re.match(r'[A-Z]\w*=', line))
    assert settings['User'] == 'mfl' and settings['RemoveIPC'] == 'no'
    assert settings['PrivateIPC'] == 'no' and settings['PrivateNetwork'] == 'no'
    assert not {'DynamicUser', 'PrivateDevices', 'MemoryDenyWriteExecute', 'ProtectClock', 'DevicePolicy'} & set(settings)
    assert settings['RestartPreventExitStatus'] == '2 78'


def test_programs_may_be_held():
    """@system-service has no Landlock, with which mfl-client limits the files of training programs."""
    with open(os.path.join(BUILT, 'mfl-client@.service'), encoding='utf-8') as f:
        allowed = ' '.join(re.findall(r'^SystemCallFilter=([^~].*)', f.read(), re.M)).split()
    assert {'landlock_create_ruleset', 'landlock_add_rule', 'landlock_restrict_self'} <= set(allowed)


@pytest.mark.parametrize('program,file', [('systemd-sysusers', 'sysusers'), ('systemd-tmpfiles', 'tmpfiles')])
def test_accounts_and_folders(tmp_path, program, file):
    """Made in a root of their own; a second time changes nothing."""
    mfl_needs.program(program)
    if os.geteuid():
        pytest.skip('only root can do that')
    root = tmp_path / 'root'
    (root / 'etc').mkdir(parents=True)
    (root / 'etc' / 'passwd').write_text('root:x:0:0:root:/root:/bin/sh\n')
    (root / 'etc' / 'group').write_text('root:x:0:\n')
    (root / 'dev' / 'shm').mkdir(parents=True)
    paths = [os.path.join(DEPLOY, 'systemd', name + '.sysusers.conf') if file == 'sysusers' else
             os.path.join(BUILT, name + '.tmpfiles.conf') for name in ('mfl-server', 'mfl-client', *(['mfl-serve'] if SERVES else []))]
    for _ in range(2):
        done = subprocess.run([program, '--root', str(root), *(['--create'] if file == 'tmpfiles' else []), *paths],
                              capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0 and 'ailed' not in done.stderr, done.stderr
    if file == 'sysusers':
        users = (root / 'etc' / 'passwd').read_text()
        groups = (root / 'etc' / 'group').read_text()
        assert users.count('\nmfl:') == 1 and users.count('\nmfl-server:') == 1
        assert re.search(r'^video:.*:mfl$', groups, re.M) and re.search(r'^render:.*:mfl$', groups, re.M)


# ---- the generator ----

def generate(tmp_path, config=None, cuda=True):
    """(names of instances, what was said) for the fake root in tmp_path/root, with the backend for GPUs or without."""
    root, out = tmp_path / 'root', tmp_path / 'out'
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    with open(os.path.join(BUILT, 'mfl-client-generator'), encoding='utf-8') as f:
        script = f.read()
    etc = re.search(r'^list=\$root(\S+)', script, re.M)[1]
    module = root / re.search(r'(/\S+/libmfl_cuda\.so)"', script)[1].lstrip('/')
    module.parent.mkdir(parents=True, exist_ok=True)
    if cuda:
        module.write_text('')
    else:
        module.unlink(missing_ok=True)
    if config is not None:
        path = root / etc.lstrip('/')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(config)
    done = subprocess.run(['sh', os.path.join(BUILT, 'mfl-client-generator'), str(out), '/nowhere', '/nowhere'],
                          env={'PATH': os.environ['PATH'], 'MFL_GENERATOR_ROOT': str(root)}, capture_output=True, text=True,
                          timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    wants = out / 'mfl-client.target.wants'
    links = sorted(wants.iterdir()) if wants.exists() else []
    assert all(os.readlink(link).endswith('/systemd/system/mfl-client@.service') for link in links)
    names = [link.name[len('mfl-client@'):-len('.service')] for link in links]
    drop_in = out / 'mfl-client@.service.d' / '50-mfl-instances.conf'
    assert ('MFL_CLIENT_INSTANCES=%d\n' % len(names) in drop_in.read_text()) if names else not drop_in.exists()
    return names, done.stderr


def pci(root, address, vendor='0x10de', kind='0x030200', driver=None):
    path = root / 'sys/bus/pci/devices' / address
    path.mkdir(parents=True)
    (path / 'vendor').write_text(vendor + '\n')
    (path / 'class').write_text(kind + '\n')
    if driver:
        target = root / 'sys/bus/pci/drivers' / driver
        target.mkdir(parents=True, exist_ok=True)
        (path / 'driver').symlink_to(target)


def test_generator_finds_gpus(tmp_path):
    root = tmp_path / 'root'
    root.mkdir()
    assert generate(tmp_path)[0] == ['cpu']
    # Boot: no driver yet. Not counted: sound of a card, another maker's, one of a virtual machine, one of nouveau.
    pci(root, '0000:01:00.0')
    pci(root, '0000:01:00.1', kind='0x040300')
    pci(root, '0000:02:00.0', kind='0x030000', driver='nvidia')
    pci(root, '0000:03:00.0', vendor='0x8086')
    pci(root, '0000:04:00.0', driver='vfio-pci')
    pci(root, '0000:05:00.0', driver='nouveau')
    assert generate(tmp_path)[0] == ['0', '1']
    (root / 'dev').mkdir()
    for name in ('nvidia0', 'nvidia1', 'nvidia2', 'nvidiactl', 'nvidia-uvm', 'nvidia0x'):
        (root / 'dev' / name).write_text('')
    assert generate(tmp_path)[0] == ['0', '1', '2']
    for i in range(12):
        (root / ('proc/driver/nvidia/gpus/0000:%02x:00.0' % i)).mkdir(parents=True)
    assert generate(tmp_path)[0] == sorted(map(str, range(12)))
    names, said = generate(tmp_path, cuda=False)
    assert names == ['cpu'] and 'GPUs, but no' in said


def test_generator_takes_orders(tmp_path):
    """The administrator's list goes before everything; a word that is none is told and left out."""
    root = tmp_path / 'root'
    for i in range(2):
        (root / ('proc/driver/nvidia/gpus/%d' % i)).mkdir(parents=True)
    assert generate(tmp_path, '# two cards\n0 GPU-5d1c2b3a-0000 # the big one\ncpu')[0] == ['0', 'GPU-5d1c2b3a-0000', 'cpu']
    assert generate(tmp_path, '')[0] == []
    names, said = generate(tmp_path, '0 ../../x * 1;reboot\n')
    assert names == ['0'] and said.count('is no GPU') == 3


def test_generator_never_fails_the_boot(tmp_path):
    (tmp_path / 'root').mkdir()
    (tmp_path / 'out').write_text('a file is in the way')
    done = subprocess.run(['sh', os.path.join(BUILT, 'mfl-client-generator'), str(tmp_path / 'out')], timeout=20, check=False,
                          env={'PATH': os.environ['PATH'], 'MFL_GENERATOR_ROOT': str(tmp_path / 'root')}, capture_output=True)
    assert done.returncode == 0


# ---- installation ----

def test_install(tmp_path):
    """All files are where they belong, nothing refers to the build, and the programs run from there."""
    if not shutil.which('meson'):
        pytest.skip('no meson here')
    done = subprocess.run(['meson', 'install', '-C', h.BUILD, '--no-rebuild', '--destdir', str(tmp_path / 'root')],
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    files = {os.path.relpath(os.path.join(at, name), tmp_path / 'root'): os.path.join(at, name)
             for at, _, names in os.walk(tmp_path / 'root') for name in names}
    prefix = next(name for name in files if name.endswith('bin/mfl-server'))[:-len('bin/mfl-server')]
    expected = ['bin/mfl', 'bin/mfl-client', 'bin/mfl-server', 'lib/systemd/system/mfl-server.service',
                'lib/systemd/system/mfl-server.socket', 'lib/systemd/system/mfl-client@.service',
                'lib/systemd/system/mfl-client.target', 'lib/systemd/system-generators/mfl-client-generator',
                'lib/sysusers.d/mfl-server.conf', 'lib/tmpfiles.d/mfl-server.conf', 'lib/sysusers.d/mfl-client.conf',
                'lib/tmpfiles.d/mfl-client.conf', 'share/doc/mfl/server.yaml', 'share/doc/mfl/client.yaml',
                'share/doc/mfl/cluster/server.conf', 'share/doc/mfl/cluster/blobs.conf', 'share/doc/mfl/cluster/etcd.default', 'share/doc/mfl/LICENSE', 'share/doc/mfl/examples/demo.yaml', 'share/man/man1/mfl.1', 'share/man/man5/mfl-job.5',
                'share/man/man5/mfl-server.yaml.5', 'share/man/man5/mfl-client.yaml.5', 'share/man/man8/mfl-server.8',
                'share/man/man8/mfl-client.8', 'share/bash-completion/completions/mfl',
                'share/zsh/site-functions/_mfl', 'share/fish/vendor_completions.d/mfl.fish',
                'share/bash-completion/completions/mfl-server', 'share/bash-completion/completions/mfl-client']
    if SERVES:
        expected += ['lib/systemd/system/mfl-serve.service', 'lib/sysusers.d/mfl-serve.conf', 'lib/tmpfiles.d/mfl-serve.conf', 'share/doc/mfl/serve.yaml',
                     'share/man/man5/mfl-serve.yaml.5', 'share/man/man8/mfl-serve.8', 'share/bash-completion/completions/mfl-serve']
        assert prefix + 'bin/mfl-serve' in files
    assert not [name for name in expected if prefix + name not in files], sorted(files)
    build = os.path.realpath(h.BUILD)
    for name in expected[3:]:
        with open(files[prefix + name], encoding='utf-8') as f:
            text = f.read()
        assert build not in text and not re.search(r'@\w+dir@', text), name
    assert '/' + prefix + 'bin/mfl-server --config' in open(files[prefix + expected[3]], encoding='utf-8').read()
    assert os.access(files[prefix + 'lib/systemd/system-generators/mfl-client-generator'], os.X_OK)
    backends = [os.path.basename(name) for name in files if '/libmfl_' in name]
    done = subprocess.run([files[prefix + 'bin/mfl'], 'run', files[prefix + 'share/doc/mfl/examples/demo.yaml'], '--help'],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    job = tmp_path / 'job.yaml'
    job.write_text(h.job_text(rounds=1))
    backend = 'cpu' if 'libmfl_cpu.so' in backends else 'reference'
    done = subprocess.run([files[prefix + 'bin/mfl'], 'run', str(job), '--daemons', '1', '--data', h.TINY, '--backend', backend,
                           '--out', str(tmp_path / 'result')], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
