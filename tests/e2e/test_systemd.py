# SPDX-License-Identifier: Apache-2.0
"""The units under a real systemd: a user instance in namespaces of its own, with an empty /run. Start, status, reload, watchdog,
sockets, one daemon for each instance, wrong configuration. Skipped, with the reason, where that can't be had."""
import os
import re
import shutil
import socket
import subprocess

import pytest

import mfl_harness as h
import mfl_needs
from mfl_servers import free_port
from test_deploy import BUILT, DEPLOY, copy_units

MANAGER = '/lib/systemd/systemd'
# Process 1 of the namespace: systemd, then a shell for the tests, which ends with its standard input.
INIT = '''
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/user/0
chmod 700 /run/user/0
export XDG_RUNTIME_DIR=/run/user/0
%s --user --unit=basic.target --log-target=console --log-level=info >"$1" 2>&1 </dev/null &
manager=$!
while IFS= read -r line; do
        out=$(sh -c "$line" 2>&1) && status=0 || status=$?
        printf '%%s\\n\\036%%d\\n' "$out" "$status"
done
kill "$manager" 2>/dev/null
wait "$manager" || true
'''
# What a user instance can't do, being no manager of users and name spaces of the machine.
NOT_FOR_USERS = re.compile(r'^(User|Group|PrivateUsers|OOMScoreAdjust|LimitMEMLOCK|ExecStartPre)=.*\n', re.M)


class Systemd:
    def __init__(self, directory):
        self.dir, self.units = directory, directory / 'units'
        self.log = directory / 'systemd.log'
        env = {k: v for k, v in os.environ.items() if not k.startswith(('MFL_', 'XDG_', 'DBUS_'))}
        env.update({'SYSTEMD_UNIT_PATH': str(self.units) + ':', # and the usual places, among them the generators'
                    'SYSTEMD_GENERATOR_PATH': str(directory / 'generators'), 'SYSTEMD_COLORS': '0', 'SYSTEMD_PAGER': '',
                    'MFL_GENERATOR_ROOT': str(directory / 'root'), 'XDG_CONFIG_HOME': str(directory / 'config'),
                    'XDG_STATE_HOME': str(directory / 'state'), 'XDG_CACHE_HOME': str(directory / 'cache')})
        self.popen = subprocess.Popen(['unshare', '--mount', '--pid', '--fork', '--mount-proc', '--kill-child', 'sh', '-c',
                                       INIT % MANAGER, 'sh', str(self.log)],
                                      env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, command, status=0):
        self.popen.stdin.write('timeout 60 ' + command + '\n')
        self.popen.stdin.flush()
        lines = []
        while True:
            line = self.popen.stdout.readline()
            if not line:
                raise EOFError('the namespace has ended: ' + ''.join(lines))
            if line.startswith('\036'):
                text = ''.join(lines).strip()
                assert status is None or int(line[1:]) == status, '%s: status %s\n%s\n%s' % (
                    command, line[1:].strip(), text, self.tail())
                return text
            lines.append(line)

    def tail(self):
        logs = [self.log, self.dir / 'units.log']
        return '\n'.join(path.read_text()[-3000:] for path in logs if path.exists())

    def ctl(self, *argv, status=0):
        return self.run('systemctl --user ' + ' '.join("'%s'" % a for a in argv), status)

    def show(self, unit, name):
        return self.ctl('show', '--value', '-p', name, unit)

    def wait(self, unit, name, value, timeout=30):
        h.wait_until(lambda: re.search(value, self.show(unit, name)), timeout, '%s of %s: %s' % (name, unit, value))

    def close(self):
        self.popen.stdin.close()
        try:
            self.popen.wait(20)
        except subprocess.TimeoutExpired:
            self.popen.kill() # its children go with it
            self.popen.wait(10)
        self.popen.stdout.close()


def adapt_units(directory):
    """The installed units for this instance: this build's programs, configuration in the test's folder, shorter times."""
    units = copy_units(directory / 'units')
    for path in units.iterdir():
        text = NOT_FOR_USERS.sub('', path.read_text())
        text = re.sub(r'(--config )\S*/mfl/', r'\1%s/etc/' % directory, text)
        text = re.sub(r'^WatchdogSec=.*', 'WatchdogSec=2', text, flags=re.M)
        # `meson test` may run in a home or temporary folder, where these let nothing be seen or written; and /proc is one of
        # this namespace, which can't be mounted over again.
        text = re.sub(r'^(ProtectHome|PrivateTmp|PrivateMounts|ProtectSystem|ProcSubset|ProtectProc|ProtectKernelTunables|ProtectKernelLogs)=.*\n', '', text, flags=re.M)
        text = text.replace('NoExecPaths=/tmp /var/tmp ', 'NoExecPaths=')
        text = text.replace('[Service]\n', '[Service]\nStandardError=append:%s/units.log\n' % directory)
        path.write_text(text)
    return units


@pytest.fixture(scope='module')
def systemd(tmp_path_factory):
    mfl_needs.program('systemctl')
    if os.geteuid() or not os.access(MANAGER, os.X_OK) or not shutil.which('unshare'):
        pytest.skip('only root can start a manager of its own, with unshare')
    directory = tmp_path_factory.mktemp('systemd')
    for name in ('etc', 'root', 'generators', 'config', 'state', 'cache'):
        (directory / name).mkdir()
    adapt_units(directory)
    generator = directory / 'generators' / 'mfl-client-generator'
    shutil.copy(os.path.join(BUILT, 'mfl-client-generator'), generator)
    text = generator.read_text()
    text = re.sub(r"^unit='.*/", "unit='%s/" % (directory / 'units'), text, flags=re.M)
    generator.write_text(re.sub(r'^(list=\$root)\S+', r'\1/client-instances', text, flags=re.M))
    generator.chmod(0o755)
    (directory / 'root' / 'client-instances').write_text('cpu\n')
    (directory / 'etc' / 'server.yaml').write_text('listen: 127.0.0.1:0\nmemory_max: 512MiB\n')
    manager = Systemd(directory)
    try:
        try:
            h.wait_until(lambda: manager.ctl('is-active', 'basic.target', status=None) == 'active', 15, 'systemd')
        except (TimeoutError, EOFError, BrokenPipeError) as e:
            pytest.skip('no user instance of systemd runs here: %s' % e)
        yield manager
    finally:
        manager.close()


def address(systemd):
    return systemd.show('mfl-server.service', 'StatusText').split(': ')[0]


def pid(systemd, unit):
    return int(systemd.show(unit, 'MainPID'))


def test_server(systemd):
    """`start` returns when it listens; reload keeps the process; a loop that hangs is ended and started again."""
    unit = 'mfl-server.service'
    systemd.ctl('start', unit)
    assert systemd.show(unit, 'SubState') == 'running'
    systemd.wait(unit, 'StatusText', r'^127\.0\.0\.1:\d+: 0 jobs running')
    # StateDirectory, which a user instance puts beside its configuration: the server found it without being told.
    assert [path for path in systemd.dir.rglob('mfl-server') if list(path.glob('*.db*'))]
    first = pid(systemd, unit)
    (systemd.dir / 'etc' / 'server.yaml').write_text('listen: 127.0.0.1:0\nmemory_max: 512MiB\nlog_level: debug\n')
    systemd.ctl('reload', unit)
    assert pid(systemd, unit) == first
    systemd.ctl('kill', '--signal=SIGSTOP', unit)
    systemd.wait(unit, 'NRestarts', '^1$')
    systemd.wait(unit, 'SubState', '^running$')
    assert pid(systemd, unit) != first
    systemd.ctl('stop', unit)
    assert systemd.show(unit, 'Result') == 'success'


def test_wrong_configuration(systemd):
    """Status 78: it is not started again."""
    unit = 'mfl-server.service'
    config = systemd.dir / 'etc' / 'server.yaml'
    good = config.read_text()
    config.write_text('lisen: 127.0.0.1:0\n')
    systemd.ctl('start', unit, status=1)
    assert systemd.show(unit, 'ActiveState') == 'failed' and systemd.show(unit, 'ExecMainStatus') == '78'
    assert systemd.show(unit, 'NRestarts') == '0'
    config.write_text(good)
    systemd.ctl('reset-failed')


def test_socket(systemd):
    """A caller starts the server; a restart keeps the port, whose callers wait meanwhile."""
    with socket.create_server(('127.0.0.1', 0)) as free:
        port = free.getsockname()[1]
    (systemd.units / 'mfl-server.socket.d').mkdir()
    (systemd.units / 'mfl-server.socket.d' / 'port.conf').write_text(
        '[Socket]\nListenStream=\nListenStream=127.0.0.1:%d\n' % port)
    systemd.ctl('daemon-reload')
    systemd.ctl('start', 'mfl-server.socket')
    systemd.run('%s list --server 127.0.0.1:%d' % (h.program('mfl'), port))
    systemd.wait('mfl-server.service', 'SubState', '^running$')
    systemd.wait('mfl-server.service', 'StatusText', r'^127\.0\.0\.1:\d+')
    before = address(systemd)
    systemd.ctl('restart', 'mfl-server.service')
    systemd.wait('mfl-server.service', 'StatusText', '^' + re.escape(before) + ':')
    systemd.run('%s list --server %s' % (h.program('mfl'), before))
    systemd.ctl('stop', 'mfl-server.socket', 'mfl-server.service')


def test_cluster(systemd):
    """The drop-in and the settings of etcd for a cluster, here of one host: started together, the server leads; stopped together, it gives its lease back
    before etcd ends."""
    if not shutil.which('etcd'):
        pytest.skip('no etcd here; on Debian: apt-get install etcd-server')
    cluster = os.path.join(DEPLOY, 'systemd', 'cluster')
    client, peer = ('http://127.0.0.1:%d' % free_port() for _ in range(2))
    with open(os.path.join(cluster, 'etcd.default'), encoding='utf-8') as f:
        text = ''.join(line for line in f if not re.search('CERT|KEY|TRUSTED', line))  # plain, on loopback
    text = re.sub(r'^(ETCD_INITIAL_CLUSTER=.*?),.*', r'\1', text, flags=re.M)
    text = re.sub(r'https://[\w.-]+:2379', client, re.sub(r'https://[\w.-]+:2380', peer, text))
    (systemd.dir / 'etc' / 'etcd').write_text(text.replace('/var/lib/etcd', str(systemd.dir / 'state')))
    (systemd.units / 'etcd.service').write_text('[Service]\nType=notify\nEnvironmentFile=%s\nExecStart=%s\nStandardError=file:%s\n' % (
        systemd.dir / 'etc' / 'etcd', shutil.which('etcd'), systemd.dir / 'etcd.log'))
    drop_ins = systemd.units / 'mfl-server.service.d'
    drop_ins.mkdir()
    shutil.copy(os.path.join(cluster, 'server.conf'), drop_ins)
    config = systemd.dir / 'etc' / 'server.yaml'
    good = config.read_text()
    port = free_port()
    config.write_text('listen: 127.0.0.1:%d\nstate_dir: %s\nmemory_max: 512MiB\ncluster: {etcd: [%s], name: s1, servers: [s1=127.0.0.1:%d]}\n' % (
        port, systemd.dir / 'state' / 'cluster', client, port))
    systemd.ctl('daemon-reload')
    assert 'etcd.service' in systemd.show('mfl-server.service', 'After').split()
    assert 'etcd.service' not in systemd.show('mfl-server.service', 'Requires').split()
    systemd.ctl('start', 'etcd.service', 'mfl-server.service')
    serves = 'listening on 127.0.0.1:%d, state in' % port
    h.wait_until(lambda: serves in (systemd.dir / 'units.log').read_text(), 30, 'the server to lead')
    systemd.run('%s list --server 127.0.0.1:%d' % (h.program('mfl'), port))
    systemd.ctl('stop', 'etcd.service', 'mfl-server.service')
    for unit in ('etcd.service', 'mfl-server.service'):
        assert systemd.show(unit, 'Result') == 'success'
    assert int(systemd.show('mfl-server.service', 'InactiveEnterTimestampMonotonic')) <= int(systemd.show('etcd.service', 'InactiveEnterTimestampMonotonic'))
    assert 'unrecognized' not in (systemd.dir / 'etcd.log').read_text()
    systemd.ctl('start', 'etcd.service', 'mfl-server.service')  # at once, since nobody's lease has to run out
    systemd.ctl('stop', 'mfl-server.service', 'etcd.service')
    shutil.rmtree(drop_ins)
    config.write_text(good)
    systemd.ctl('daemon-reload')


def test_target(systemd):
    """The generator's instances start and stop with the target, train, reload, and are started anew when they die."""
    systemd.ctl('start', 'mfl-server.service')
    systemd.wait('mfl-server.service', 'StatusText', '^127')
    (systemd.dir / 'etc' / 'client.yaml').write_text(
        'server: %s\nname: site\nbackend: reference\nworkers: 1\nmemory: 256MiB\ndata_sets:\n'
        '  - {name: tiny, format: synthetic, shape: [1, 8, 8], classes: 4, train: 400, test: 80, seed: 1}\n' % address(systemd))
    unit = 'mfl-client@cpu.service'
    systemd.ctl('start', 'mfl-client.target')
    systemd.wait(unit, 'StatusText', 'site-cpu: connected')
    assert 'MFL_CLIENT_INSTANCES=1' in systemd.show(unit, 'Environment')
    job = systemd.dir / 'job.yaml'
    job.write_text(h.job_text(rounds=2))
    systemd.run('%s submit %s --watch --server %s' % (h.program('mfl'), job, address(systemd)))
    first = pid(systemd, unit)
    mounts = systemd.run("grep ' /dev/shm ' /proc/%d/mountinfo" % first)
    assert 'noexec' in mounts.splitlines()[-1].split(' - ')[0], mounts  # the last is what it sees; nothing is run from there
    systemd.ctl('reload', unit)
    assert pid(systemd, unit) == first
    def reloads():
        return (systemd.dir / 'units.log').read_text().count('configuration read again: log_level info; other keys')
    h.wait_until(lambda: reloads() == 1, 10, 'a reload')
    systemd.ctl('reload', 'mfl-client.target')
    h.wait_until(lambda: reloads() == 2, 10, 'a reload of all')
    assert pid(systemd, unit) == first
    systemd.ctl('kill', '--signal=SIGKILL', unit)
    systemd.wait(unit, 'NRestarts', '^1$')
    systemd.wait(unit, 'StatusText', 'site-cpu: connected')
    systemd.ctl('restart', 'mfl-client.target')
    systemd.wait(unit, 'StatusText', 'site-cpu: connected')
    systemd.ctl('stop', 'mfl-client.target')
    systemd.wait(unit, 'ActiveState', '^inactive$')
    assert systemd.show(unit, 'Result') == 'success'
    # Another list, seen at the next daemon-reload: a GPU that isn't there is status 78, and not tried again.
    (systemd.dir / 'root' / 'client-instances').write_text('')
    systemd.ctl('daemon-reload')
    systemd.ctl('start', 'mfl-client.target')
    assert systemd.show(unit, 'ActiveState') == 'inactive'
    systemd.ctl('stop', 'mfl-client.target', 'mfl-server.service')
