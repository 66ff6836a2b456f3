# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/admin.md and docs/upgrade.md that stop and start services, as they stand there, while a job runs. For several servers, in that
order: into a cluster, back-up, a lost disk, one server more and one less, etcd away, a new release, etcd lost, and back to one server. For one: restore,
repair, a new release, another machine, `mfl move`. No committed round is lost, and the digests are those of one server.

A block that is marked with `hosts` is run line by line. `# on s1 and s2` says where (the server and the old one are s1, the new one is s2); a host is a folder here, whose /etc/mfl and /var/lib/mfl-server
the commands get, and whose systemctl, apt-get, rsync and chown are below: they start, stop and replace real programs."""
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

import mfl_harness as h
import mfl_wire
from mfl_servers import Etcd, free_port
from test_cluster import JOB

pytestmark = pytest.mark.skipif(not shutil.which('etcd'), reason='etcd is not installed (Debian: etcd-server)')
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
HOSTS = ('s1', 's2', 's3', 's4')
NAMES = {'the server': 's1', 'old': 's1', 'new': 's2', 'any': 's4'}
NEW = '0.1.9'  # the release that comes

# systemctl, apt-get, rsync and chown of a host. State: a pid in a file.
SHIM = r'''#!%(python)s
import os, shutil, signal, subprocess, sys, time
root, host, args = os.environ['TEST_ROOT'], os.environ['TEST_HOST'], sys.argv[1:]
here = os.path.join(root, host)
name = os.path.basename(sys.argv[0])
if name == 'chown':  # there is no such account here
    sys.exit(args[:2] != ['-R', 'mfl-server:'] or not os.path.isdir(args[2]))
if name == 'rsync':
    assert args[0] == '-a' and args[2].startswith('new:'), args
    shutil.copytree(args[1], args[2][4:].replace('/s1/', '/s2/'), dirs_exist_ok=True)
    sys.exit(0)
if name == 'apt-get':
    assert args[:2] == ['install', '--only-upgrade'], args
    if args[2] == 'mfl-server':
        os.replace(os.path.join(here, 'new', 'mfl-server'), os.path.join(here, 'bin', 'mfl-server'))
    sys.exit(0)
verb, unit = args[0], args[-1]
assert unit in ('mfl-server', 'etcd', 'mfl-client.target'), args
argv, log = {'mfl-server': ([os.path.join(here, 'bin', 'mfl-server'), '--config', os.path.join(here, 'etc', 'server.yaml')], 'server.log'),
             'mfl-client.target': (os.environ['TEST_CLIENT'].split('\n'), 'client.log'),
             'etcd': (os.environ['TEST_ETCD'].split('\n'), 'etcd.log')}[unit]
pid_file, log = os.path.join(here, unit + '.pid'), os.path.join(here, log)
ready = {'mfl-server': 'listening on', 'mfl-client.target': 'connected to', 'etcd': 'ready to serve'}[unit]
def stop():
    if not os.path.exists(pid_file):  # stopping what does not run is no failure
        return
    pid = int(open(pid_file).read())
    os.kill(pid, signal.SIGTERM)
    while os.path.exists('/proc/%%d' %% pid) and open('/proc/%%d/stat' %% pid).read().rsplit(')', 1)[1].split()[0] != 'Z':
        time.sleep(0.05)
    os.unlink(pid_file)
def start():
    assert not os.path.exists(pid_file), 'it runs'
    at = os.path.getsize(log) if os.path.exists(log) else 0
    if unit == 'etcd':
        os.makedirs(argv[argv.index('--data-dir') + 1], exist_ok=True)
    with open(log, 'ab') as out:
        p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    with open(pid_file, 'w') as f:
        f.write(str(p.pid))
    while ready not in open(log, errors='replace').read()[at:]:
        if p.poll() is not None:
            os.unlink(pid_file)
            sys.exit('%%s has ended with %%d: %%s' %% (unit, p.returncode, open(log).read()[at:]))
        time.sleep(0.05)
if verb in ('stop', 'restart', 'disable'):
    stop()
if verb in ('start', 'restart', 'enable'):
    start()
'''


def blocks(page):
    with open(os.path.join(ROOT, 'docs', page), encoding='utf-8') as f:
        return re.findall(r'^```(sh|yaml) hosts (\w+)\n(.*?)^```', f.read(), re.M | re.S)


class Site:
    """Four hosts with mfl-server, one with etcd, one with a daemon, and the commands that the page gives them."""

    def __init__(self, directory):
        self.dir, self.job = str(directory), ''
        self.ports = {host: free_port() for host in HOSTS}
        self.etcd = Etcd.__new__(Etcd)
        self.etcd.client, peer = ('http://127.0.0.1:%d' % free_port() for _ in range(2))
        bin_dir = os.path.join(self.dir, 'bin')
        os.makedirs(bin_dir)
        for name in ('systemctl', 'apt-get', 'rsync', 'chown'):
            self.write('bin/' + name, SHIM % {'python': sys.executable}, 0o755)
        os.symlink(h.program('mfl'), os.path.join(bin_dir, 'mfl'))
        self.servers = ','.join('127.0.0.1:%d' % self.ports[host] for host in HOSTS[:3])
        self.env = {
            'PATH': bin_dir + ':' + os.environ['PATH'], 'HOME': self.dir, 'LC_ALL': 'C.UTF-8', 'XDG_CONFIG_HOME': '/nonexistent', 'TEST_ROOT': self.dir,
            'MFL_SERVER': self.servers,
            'TEST_CLIENT': '\n'.join([h.program('mfl-client'), '--server', self.servers, '--name', 'd1', '--workers', '1', '--backend', 'reference',
                                      '--data', h.TINY]),
            'TEST_ETCD': '\n'.join(['etcd', '--data-dir', os.path.join(self.dir, 'etcd', 'data', 'default'), '--listen-client-urls', self.etcd.client,
                                    '--advertise-client-urls', self.etcd.client, '--listen-peer-urls', peer, '--initial-advertise-peer-urls', peer,
                                    '--initial-cluster', 'default=' + peer, '--unsafe-no-fsync'])}
        with open(h.program('mfl-server'), 'rb') as f:
            program = f.read()
        assert b'mfl-server 0.1.0\0' in program
        for host in (*HOSTS, 'etcd', 'client'):
            for name in ('etc', 'state', 'bin', 'new', 'backups'):
                os.makedirs(os.path.join(self.dir, host, name))
            if host in HOSTS:
                shutil.copy(h.program('mfl-server'), os.path.join(self.dir, host, 'bin'))
                self.write(host + '/new/mfl-server', program.replace(b'0.1.0\0', NEW.encode() + b'\0'), 0o755)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for folder, _, files in os.walk(self.dir):
            for name in files:
                if name.endswith('.pid'):
                    with open(os.path.join(folder, name), encoding='utf-8') as f:
                        os.kill(int(f.read()), signal.SIGKILL)

    def write(self, name, content, mode=0o644):
        path = os.path.join(self.dir, name)
        with open(path, 'wb') as f:
            f.write(content if isinstance(content, bytes) else content.encode())
        os.chmod(path, mode)
        return path

    def here(self, text, host):
        """A line of the page, for this machine."""
        folder = os.path.join(self.dir, host)
        text = text.replace('j-000003', self.job).replace('b.example.org', 's3.example.org')
        text = re.sub(r'(s\d)\.example\.org:7433', lambda m: '127.0.0.1:%d' % self.ports[m[1]], text)
        text = re.sub(r'https://etcd-1:2379(, ?https://etcd-\d:2379)*', self.etcd.client, text)
        for there, where in (('/etc/mfl', folder + '/etc'), ('/var/lib/mfl-server', folder + '/state'), ('/var/backups/mfl', folder + '/backups'),
                             ('/var/lib/etcd', self.dir + '/etcd/data')):
            text = text.replace(there, where)
        return re.sub(r' ETCDCTL_(CACERT|CERT|KEY)=[^ ;]+', '', text)

    def run(self, line, host):
        env = dict(self.env, TEST_HOST=host, PATH=os.path.join(self.dir, host, 'bin') + ':' + self.env['PATH'])
        done = subprocess.run(['bash', '-euc', self.here(line, host)], env=env, text=True, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, '%s, on %s: %s%s' % (line, host, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def block(self, page, name):
        """Runs it; returns what each line has said."""
        text = next(b for kind, n, b in blocks(page) if (kind, n) == ('sh', name))
        assert text.startswith('# on '), 'a block says where it is run'
        said, hosts, pending = [], [], []
        for line in [*text.splitlines(), '# on']:
            if not line.startswith('# on'):
                pending.append(line)
                continue
            for host in hosts:
                said += [self.run(one, host) for one in pending]
            hosts, pending = [NAMES.get(x, x) for x in re.findall(r'\b(s\d|etcd|client|the server|old|new|any)\b', line.partition(',')[0]
                                                                 if ' and ' not in line else line)], []
        return said

    def config(self, name):
        text = next(b for kind, n, b in blocks('admin.md') if (kind, n) == ('yaml', 'config'))
        text = re.sub(r'^listen: .*', 'listen: 127.0.0.1:%d' % self.ports[name], text, flags=re.M)
        text = re.sub(r'^ *tls_.*\n', '', self.here(text, name), flags=re.M)  # plain, on loopback
        assert text.count('name: s1') == 1
        if name == 's4':
            text = re.sub(r'(servers: .*)\]', r'\1, s4=127.0.0.1:%d]' % self.ports[name], text)
        own = 'state_dir: %s/%s/state\nmemory_max: 512MiB\nheartbeat: 500ms\ndead_after: 5s\n' % (self.dir, name)
        return own + text.replace('name: s1', 'name: ' + name)

    def operator(self):
        for host in HOSTS:
            try:
                return mfl_wire.Operator('127.0.0.1:%d' % self.ports[host], 10)
            except (OSError, mfl_wire.Closed, TimeoutError, AssertionError):
                continue
        return None

    def rounds(self, job):
        """Digests by number, of the newest 1,000 at most."""
        o = self.operator()
        if not o:
            return {}
        try:
            with o:
                found = {r['round']: r['digest'].hex() for r in o.rounds(job)}
        except (OSError, mfl_wire.Closed, TimeoutError):
            return {}
        assert not found or sorted(found) == list(range(max(found) - len(found) + 1, max(found) + 1)), 'a round is missing'
        return found

    def goes_on(self, job, before):
        """What was committed is there, and more comes."""
        last = max(before, default=0)
        after = h.wait_until(lambda: (lambda r: max(r, default=0) > last and r)(self.rounds(job)), 60, 'the next round')
        assert all(after[n] == before[n] for n in after if n in before)
        return after

    def ends(self, job, directory):
        """Stops it; its digests are those of a server that nothing happens to."""
        with self.operator() as o:
            o.request('stop_job', {'job': job})
            h.wait_until(lambda: h.STATES[o.info(job)['state']] == 'stopped', 20, 'the job to stop')
        seen = self.rounds(job)
        with h.Cluster(directory) as c:
            c.start_server()
            c.start_daemon()
            again = c.submit(**dict(JOB, rounds=max(seen)))
            c.wait_job(again, 300)
            with c.operator() as o:
                assert {r['round']: r['digest'].hex() for r in o.rounds(again)} == seen

    def software(self):
        o = self.operator()
        with o:
            return o.welcome['software']


def test_commands_of_the_pages(tmp_path):
    with Site(tmp_path / 'site') as s:
        s.run('systemctl start etcd', 'etcd')
        for host in HOSTS:
            s.write(host + '/etc/server.yaml', s.config(host).partition('cluster:')[0] if host == 's1' else s.config(host))
        s.run('systemctl start mfl-server', 's1')
        s.run('systemctl start mfl-client.target', 'client')
        with s.operator() as o:
            job = o.submit(h.job_text(**dict(JOB, rounds=100000)), '')
        seen = s.goes_on(job, {})
        s.write('s1/etc/server.yaml', s.config('s1'))
        s.block('admin.md', 'join')
        seen = s.goes_on(job, seen)
        assert any('(s1) does not lead the cluster' in line or job in line for line in s.block('admin.md', 'who'))
        said = s.block('admin.md', 'backup')
        assert any('rounds' in line for line in said)
        for name in ('disk', 'add', 'remove', 'etcd'):
            s.block('admin.md', name)
            seen = s.goes_on(job, seen)
            if name == 'add':
                folder = os.path.join(s.dir, 's4', 'state', 'jobs', job)
                h.wait_until(lambda at=folder: os.path.isdir(at) and any(f.endswith('.safetensors') for f in os.listdir(at)), 60, 'files of s4')
        assert s.software() == 'mfl-server 0.1.0'
        s.block('upgrade.md', 'rolling')
        seen = s.goes_on(job, seen)
        assert s.software() == 'mfl-server ' + NEW
        for name in ('lost', 'leave'):
            s.block('admin.md', name)
            seen = s.goes_on(job, seen)
        s.ends(job, tmp_path / 'alone')


def test_commands_for_one_server(tmp_path):
    with Site(tmp_path / 'site') as s:
        for host in HOSTS[:3]:
            s.write(host + '/etc/server.yaml', s.config(host).partition('cluster:')[0])
        s.run('systemctl start mfl-server', 's1')
        s.run('systemctl start mfl-client.target', 'client')
        with s.operator() as o:
            job = o.submit(h.job_text(**dict(JOB, rounds=100000)), '')
        seen = s.goes_on(job, {})
        s.run('mfl-server --state-dir /var/lib/mfl-server --backup /var/backups/mfl/saved', 's1')
        # What came after the back-up is trained again, to the same digests.
        seen = s.goes_on(job, seen)
        s.block('admin.md', 'restore')
        seen = s.goes_on(job, seen)
        # Committed rounds are lost with the database's log: the server refuses, until it is repaired.
        s.run('kill -9 $(cat $TEST_ROOT/s1/mfl-server.pid); sleep 0.2; rm $TEST_ROOT/s1/mfl-server.pid /var/lib/mfl-server/mfl.db-wal', 's1')
        with pytest.raises(AssertionError, match='has ended with 78'):
            s.run('systemctl start mfl-server', 's1')
        assert any('orphans' in line or 'missing' in line for line in s.block('admin.md', 'repair'))
        h.wait_until(lambda: len(s.rounds(job)) > 1, 60, 'rounds after the repair')
        seen = s.rounds(job)
        assert s.software() == 'mfl-server 0.1.0'
        s.block('upgrade.md', 'upgrade')
        seen = s.goes_on(job, seen)
        assert s.software() == 'mfl-server ' + NEW
        s.block('admin.md', 'machine')
        assert s.software() == 'mfl-server 0.1.0'  # s2 has another one
        seen = s.goes_on(job, seen)
        s.run('systemctl start mfl-server', 's3')
        s.job = job
        s.block('admin.md', 'move')
        s.run('systemctl stop mfl-server', 's2')
        seen = s.goes_on(job, seen)
        s.ends(job, tmp_path / 'alone')


def test_every_block_is_run():
    """A command of these sections that nobody runs would be one that nobody knows to work."""
    with open(__file__, encoding='utf-8') as f:
        text = f.read()
    for page in ('admin.md', 'upgrade.md'):
        for kind, name, _ in blocks(page):
            assert kind == 'yaml' or "'%s'" % name in text, (page, name)
    with open(os.path.join(ROOT, 'docs', 'admin.md'), encoding='utf-8') as f:
        text = f.read()
    plain = re.findall(r'^```sh\n(.*?)^```', text, re.M | re.S)
    assert len(plain) == 1 and plain[0].startswith('# /etc/cron.d/'), plain
