# SPDX-License-Identifier: Apache-2.0
"""The programs as services: a fake manager hears them by $NOTIFY_SOCKET, hands over sockets, reloads and stops them."""
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

import mfl_harness as h
from mfl_manager import Manager


@pytest.fixture
def manager(tmp_path):
    m = Manager(tmp_path)
    yield m
    m.socket.close()


@pytest.fixture(autouse=True)
def needs_libsystemd():
    done = subprocess.run(['ldd', h.program('mfl-server')], capture_output=True, text=True, check=False)
    if done.returncode == 0 and 'libsystemd' not in done.stdout:
        pytest.skip('built without libsystemd')


def start_server(c, manager, prefix=(), **options):
    c.start_server(env=manager.env(**options), prefix=prefix)
    return c.server


# ---- readiness, status ----

def test_server_tells(cluster, manager):
    """READY comes when it answers; the status line follows daemons and jobs; STOPPING comes before the end."""
    c = cluster.empty()
    start_server(c, manager)
    manager.wait('READY=1')
    c.check_alive()
    assert manager.wait('STATUS=') == 'STATUS=%s: 0 jobs running, 0 waiting; 0 daemons connected' % c.address
    c.start_daemon('d1')
    manager.wait('STATUS=%s: 0 jobs running, 0 waiting; 1 daemon connected' % c.address)
    job = c.submit(name='long', rounds=100, training={'steps': 200000, 'epochs': None})
    manager.wait('STATUS=%s: 1 job running, 0 waiting; 1 daemon connected' % c.address)
    with c.operator() as o:
        o.request('stop_job', {'job': job})
    manager.wait('STATUS=%s: 0 jobs running, 0 waiting; 1 daemon connected' % c.address)
    assert 'WATCHDOG=1' not in manager.poll()
    assert c.server.stop() == 0
    manager.wait('STOPPING=1')


def test_server_is_not_ready_when_it_fails(cluster, manager):
    c = cluster.empty({'listen': 'nowhere:x'})
    with open(c.config_path, 'a', encoding='utf-8') as f:
        f.write('no_such_key: 1\n')
    c.start_server(env=manager.env(), ready=False)
    assert c.server.wait(20) == 78
    assert not [line for line in manager.poll() if line.startswith('READY')]


def test_daemon_is_ready_without_a_server(cluster, manager):
    """It tells that it tries, then that it is connected, then that it lost the connection."""
    c = cluster(0)
    c.server.stop()
    c.start_daemon('d1', env=manager.env())
    manager.wait('READY=1')
    assert manager.wait('STATUS=') == 'STATUS=d1: up, trying to reach ' + c.address
    c.start_server()
    manager.wait('STATUS=d1: connected to ' + c.address)
    c.server.stop()
    manager.wait('STATUS=d1: the connection to %s is lost' % c.address)
    assert c.daemons['d1'].stop() == 0
    manager.wait('STOPPING=1')


def test_without_a_manager(cluster):
    """$NOTIFY_SOCKET that leads nowhere changes nothing."""
    c = cluster.empty()
    c.start_server(env={'NOTIFY_SOCKET': c.dir + '/nobody', 'WATCHDOG_USEC': '100000'})
    c.start_daemon('d1', env={'NOTIFY_SOCKET': c.dir + '/nobody', 'WATCHDOG_USEC': '100000'})
    c.wait_daemons(1)
    c.run_job(rounds=1)


# ---- the watchdog ----

@pytest.mark.parametrize('who', ['server', 'daemon'])
def test_watchdog(cluster, manager, who):
    """Signs of life end when the loop stands still, and come again with it. Nothing else feeds them."""
    c = cluster.empty()
    env = manager.env(watchdog_ms=400)
    c.start_server(env=env if who == 'server' else None)
    c.start_daemon('d1', env=env if who == 'daemon' else None)
    c.wait_daemons(1)
    process = c.server if who == 'server' else c.daemons['d1']
    manager.wait('READY=1')
    for _ in range(3):
        manager.wait('WATCHDOG=1')
    process.signal(signal.SIGSTOP)
    h.wait_until(lambda: open('/proc/%d/stat' % process.pid).read().rsplit(')', 1)[1].split()[0] == 'T', 10, 'the stop')
    manager.forget()
    time.sleep(1)
    assert not manager.poll(), 'a stopped process sends watchdog signals'
    process.signal(signal.SIGCONT)
    for _ in range(3):
        manager.wait('WATCHDOG=1')
    c.run_job(rounds=1)


def test_watchdog_while_training(cluster, manager):
    """A daemon whose worker is busy for long is not taken for dead."""
    c = cluster(0)
    c.start_daemon('d1', env=manager.env(watchdog_ms=200))
    c.wait_daemons(1)
    job = c.submit(name='busy', rounds=1, training={'steps': 200000, 'epochs': None})
    c.wait_info(job, lambda i: i['phase'] == 'train' and i['daemons'] == 1, 15, 'training')
    manager.forget()
    for _ in range(5):
        manager.wait('WATCHDOG=1')
    with c.operator() as o:
        o.request('stop_job', {'job': job})


def test_watchdog_of_another_process(cluster, manager):
    """$WATCHDOG_PID names somebody else: this process need not send watchdog signals."""
    c = cluster.empty()
    start_server(c, manager, watchdog_ms=100, WATCHDOG_PID='1')
    manager.wait('READY=1')
    time.sleep(0.5)
    assert 'WATCHDOG=1' not in manager.poll()


def test_watchdog_and_a_disk_that_hangs(cluster, manager):
    """The loop turns and answers, but a checkpoint does not come to its end: the manager shall start the server anew."""
    c = cluster.empty()
    start_server(c, manager, watchdog_ms=200, MFL_FAULT='before-fsync:1:hang')
    c.start_daemon('d1')
    job = c.submit(rounds=3)
    manager.wait('READY=1')
    h.wait_until(lambda: manager.poll() and 'no watchdog signal is sent to the service manager' in c.server.log(), 20, 'the end of watchdog signals')
    manager.forget()
    time.sleep(0.5)
    assert 'WATCHDOG=1' not in manager.poll()
    assert c.info(job)['round'] == 0, 'the loop still answers'
    c.server.kill()
    start_server(c, manager)
    c.wait_job(job)


# ---- reload ----

def rewrite(c, **settings):
    with open(c.config_path, encoding='utf-8') as f:
        lines = [line for line in f if line.split(':')[0] not in settings]
    with open(c.config_path, 'w', encoding='utf-8') as f:
        f.write(''.join(lines) + ''.join('%s: %s\n' % item for item in settings.items()))


def test_server_reload(cluster, manager):
    """log_level is taken over; connections stay; a wrong file changes nothing and is told with its line."""
    c = cluster.empty()
    start_server(c, manager)
    c.start_daemon('d1')
    connected = c.wait_daemons(1)[0]['connected_ms']
    manager.wait('READY=1')
    job = c.submit(name='goes-on', rounds=3, training={'steps': 60, 'epochs': None})
    with c.operator() as o:
        rewrite(c, log_level='debug')
        c.server.signal(signal.SIGHUP)
        manager.wait('RELOADING=1')
        assert int(manager.wait('MONOTONIC_USEC=').split('=')[1]) > 0
        manager.wait('READY=1')
        assert 'log_level debug, was info' in c.server.log()
        rewrite(c, log_level='loud')
        c.server.signal(signal.SIGHUP)
        manager.wait('RELOADING=1')
        manager.wait('READY=1')
        assert 'the configuration stays as it was: %s:' % c.config_path in c.server.log()
        c.wait_job(job)
        assert '%s: round' % job in c.server.log(), 'lines of debug'
        assert o.daemons()[0]['connected_ms'] == connected, 'the daemon had to connect anew'
    rewrite(c, log_level='error')
    os.unlink(c.config_path)
    c.server.signal(signal.SIGHUP)
    h.wait_until(lambda: 'there is no such file' in c.server.log(), 10, 'the complaint')
    c.check_alive()


def test_daemon_reload(cluster, manager):
    c = cluster(0)
    path = c.write('client.yaml', 'log_level: info\n')
    c.start_daemon('d1', env=manager.env(), more=('--config', path))
    connected = c.wait_daemons(1)[0]['connected_ms']
    c.write('client.yaml', 'log_level: debug\n')
    manager.wait('READY=1')
    daemon = c.daemons['d1']
    daemon.signal(signal.SIGHUP)
    manager.wait('RELOADING=1')
    manager.wait('READY=1')
    assert 'log_level debug' in daemon.log()
    c.write('client.yaml', 'log_lvel: debug\n')
    daemon.signal(signal.SIGHUP)
    manager.wait('RELOADING=1')
    manager.wait('READY=1')
    assert 'the configuration stays unchanged: %s:1' % path in daemon.log()
    c.run_job(rounds=1)
    assert c.wait_daemons(1)[0]['connected_ms'] == connected


# ---- sockets ----

HAND_OVER = '''
import os, socket, sys
fds = []
for address in sys.argv[1].split(','):
    if address.startswith('/'):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.bind(address)
        s.listen(5)
    elif address == 'mute':
        s = socket.socket()
        s.bind(('127.0.0.1', 0))
    else:
        host, port = address.rsplit(':', 1)
        s = socket.create_server((host, int(port)))
    fds.append(os.dup2(s.fileno(), 100 + len(fds)))
for i, fd in enumerate(fds):
    os.dup2(fd, 3 + i)
os.environ['LISTEN_FDS'] = str(len(fds))
os.environ['LISTEN_PID'] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
'''


def start_activated(c, addresses, manager, ready=True):
    """As systemd does it: descriptors from 3 on."""
    argv = [sys.executable, '-c', HAND_OVER, addresses, h.program('mfl-server'), '--config', c.config_path,
            '--state-dir', c.state_dir, '--exit-with-stdin']
    c.server = h.Process(argv, c.log_path('server'), manager.env())
    c.server.ready_fd = -1
    if ready:
        manager.wait('READY=1')
        c.address = manager.wait('STATUS=').split('=')[1].split(': ')[0]
    return c.server


def test_socket_activation(cluster, manager):
    """Two sockets are served, `listen` of the configuration is not; the variables do not reach children."""
    c = cluster.empty({'listen': '127.0.0.1:1'})
    start_activated(c, '127.0.0.1:0,127.0.0.1:0', manager)
    log = c.server.log()
    addresses = [line.split('listening on ')[1].split()[0] for line in log.splitlines() if "manager's socket" in line]
    assert len(addresses) == 2 and addresses[0] == c.address
    for c.address in addresses:
        c.check_alive()
    c.start_daemon('d1')
    c.run_job(rounds=1)


def test_activation_keeps_callers(cluster, manager):
    """The socket outlives the server: who calls between two servers is answered by the second."""
    with socket.create_server(('127.0.0.1', 0)) as listener:
        address = '127.0.0.1:%d' % listener.getsockname()[1]
        c = cluster.empty()

        def start():
            fd = listener.fileno()
            code = HAND_OVER.replace("s = socket.create_server((host, int(port)))", 's = socket.socket(fileno=%d)' % fd)
            c.server = h.Process([sys.executable, '-c', code, address, h.program('mfl-server'), '--config', c.config_path,
                                  '--state-dir', c.state_dir, '--exit-with-stdin'], c.log_path('server'), manager.env(), (fd,))
            c.server.ready_fd = -1
        start()
        manager.wait('READY=1')
        c.address = address
        c.check_alive()
        assert c.server.stop() == 0
        early = socket.create_connection(('127.0.0.1', int(address.rsplit(':', 1)[1])), 5)
        start()
        manager.wait('READY=1')
        early.sendall(b'GET / HTTP/1.1\r\n\r\n' * 4)
        early.settimeout(10)
        assert early.recv(100), 'the second server did not answer whom it found waiting'
        early.close()
        c.check_alive()


@pytest.mark.parametrize('addresses,status,text', [
    ('0.0.0.0:0', 78, 'is not a loopback address'),
    ('mute', 78, 'does not listen on TCP'),
    (','.join(['127.0.0.1:0'] * 9), 78, 'the limit is 8'),
])
def test_sockets_that_will_not_do(cluster, manager, addresses, status, text):
    c = cluster.empty()
    start_activated(c, addresses, manager, ready=False)
    assert c.server.wait(20) == status
    assert text in c.server.log()


def test_a_local_socket_will_not_do(cluster, manager, tmp_path):
    c = cluster.empty()
    start_activated(c, str(tmp_path / 's'), manager, ready=False)
    assert c.server.wait(20) == 78 and 'does not listen on TCP' in c.server.log()


# ---- the journal ----

JOURNAL = '''
import os, socket, subprocess, sys, time
subprocess.run(['mount', '-t', 'tmpfs', 'tmpfs', '/run'], check=True)
os.makedirs('/run/systemd/journal')
entries = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
entries.bind('/run/systemd/journal/socket')
lines, err = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
st = os.fstat(err.fileno())
os.environ['JOURNAL_STREAM'] = '%d:%d' % (st.st_dev, st.st_ino)
server = subprocess.Popen(sys.argv[3:], stderr=err, stdin=subprocess.PIPE)
err.close()
entries.settimeout(20)
def until(word):
    while True:
        entry = entries.recv(65536).decode()
        print(repr(entry))
        if word in entry:
            return entry
address = until('listening on').split('listening on ')[1].split(',')[0]
subprocess.run([sys.argv[1], 'submit', sys.argv[2], '--server', address], check=True, stdout=subprocess.DEVNULL)
until('submitted')
server.stdin.close()
print('status', server.wait(20))
print('stderr', repr(lines.recv(65536).decode()))
'''


def test_journal_fields(tmp_path):
    """With the journal at stderr each line is an entry with its priority and name, and nothing goes to stderr itself."""
    unshare = ['unshare', '--mount', '--map-root-user']
    if not shutil.which('unshare') or subprocess.run([*unshare, 'mount', '-t', 'tmpfs', 'tmpfs', '/run'],
                                                     capture_output=True, check=False).returncode:
        pytest.skip('this machine lets nobody mount in a namespace of their own')
    job = tmp_path / 'job.yaml'
    job.write_text(h.job_text())
    done = subprocess.run(
        [*unshare, sys.executable, '-c', JOURNAL, h.program('mfl'), str(job), h.program('mfl-server'), '--listen', '127.0.0.1:0', '--state-dir',
         str(tmp_path / 'state'), '--exit-with-stdin'], capture_output=True, text=True, timeout=60, check=False)
    assert 'status 0' in done.stdout, done.stdout + done.stderr
    assert "stderr ''" in done.stdout
    entry = next(line for line in done.stdout.splitlines() if 'listening on 127.0.0.1:' in line)
    assert 'MESSAGE=listening on' in entry and r'\nPRIORITY=6\nSYSLOG_IDENTIFIER=mfl-server\n' in entry
    assert 'MFL_JOB' not in entry
    entry = next(line for line in done.stdout.splitlines() if 'submitted' in line)
    assert r'\nMFL_JOB=j-000001' in entry


# ---- instances ----

@pytest.mark.parametrize('instance,name', [('cpu', 'site-cpu'), ('none', None), ('0,1', None), ('all', None), ('x', None)])
def test_instance(cluster, instance, name):
    c = cluster(0)
    daemon = c.start_daemon('site', more=('--instance', instance))
    if name:
        assert c.wait_daemons(1)[0]['name'] == name
    else:
        assert daemon.wait(20) == 2 and "expected a GPU's index" in daemon.log()
