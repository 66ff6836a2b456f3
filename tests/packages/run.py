#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Debian packages on a clean Debian: built, judged by lintian, installed by apt, services started by systemd, a job trained over TLS
with the server restarted in the middle, upgraded with a job at work, purged, and the files before compared with those after.

The last line is the sum. Skipped, with the reason, where debootstrap, systemd-nspawn, root or the network is missing."""
import argparse
import filecmp
import glob
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import threading

from machine import Failure, Machine, Skip, carry_out, check_tools, in_root, keep_packages, make_base, make_root, run

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
NEXT = '0.1.0+next'
UNITS = ('mfl-server.service', 'mfl-client.target', 'mfl-client@cpu.service')
REPOSITORY = '/srv/mfl'
# Some seconds of training, in more rounds than a restart takes; every run of it must give the same models.
JOB = '''name: packages
seed: 7
rounds: 16
model: lenet5
data: {name: tiny, partition: iid, clients: 8}
training: {lr: 0.05, epochs: 2, batch: 16}
'''
SERVER_YAML = '''listen: 0.0.0.0:7433
tls_ca: /etc/mfl/tls/server/ca.pem
tls_cert: /etc/mfl/tls/server/cert.pem
tls_key: /etc/mfl/tls/server/key.pem
tls_crl: /etc/mfl/tls/server/crl.pem
http: 127.0.0.1:7434
'''
CLIENT_YAML = '''server: 127.0.0.1:7433
tls_ca: /etc/mfl/tls/site-a/ca.pem
tls_cert: /etc/mfl/tls/site-a/cert.pem
tls_key: /etc/mfl/tls/site-a/key.pem
name: site-a
'''
DATA = '''data_sets:
  - {name: tiny, format: synthetic, shape: [1, 28, 28], classes: 10, train: 3000, test: 200, seed: 1}
'''
FASHION = '  - {name: fashion-mnist, format: idx, dir: /usr/share/datasets/fashion-mnist}\n'
# Packages of debugging symbols, which nothing here installs, would be made twice; so what they would hold is kept short.
BUILD_ENV = {**os.environ, 'DEB_BUILD_OPTIONS': 'noautodbgsym', 'DEB_CFLAGS_APPEND': '-g1'}
# What another program than ours may write at any time.
NOT_OURS = ('/dev', '/proc', '/run', '/sys', '/tmp', REPOSITORY, '/var/cache/apt', '/var/cache/debconf', '/var/cache/ldconfig',
            '/var/lib/apt', '/var/lib/dpkg', '/var/log', '/var/tmp', '/etc/ld.so.cache', '/var/lib/systemd/random-seed',
            '/var/lib/systemd/timers', '/var/lib/systemd/timesync', '/var/lib/private', '/var/lib/systemd/catalog')
# What Debian's policy keeps: accounts, so that no number goes to somebody else; and systemd's own backups of their files.
ACCOUNTS = {'/etc/' + name + end for name in ('passwd', 'group', 'shadow', 'gshadow') for end in ('', '-')} | {'/etc/.pwd.lock'}


def snapshot(root):
    """{path: what is there}, for all of the machine's disk."""
    found = {}
    for at, folders, files in os.walk(root):
        inside = at[len(root):]
        folders[:] = [name for name in folders if inside + '/' + name not in NOT_OURS]
        for name in folders + files:
            path, inside_path = os.path.join(at, name), inside + '/' + name
            if inside_path in NOT_OURS:
                continue
            info = os.lstat(path)
            what = (stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid)
            if stat.S_ISLNK(info.st_mode):
                what += (os.readlink(path),)
            elif stat.S_ISREG(info.st_mode):
                with open(path, 'rb') as f:
                    what += (hashlib.sha256(f.read()).hexdigest(),)
            found[inside_path] = what
    return found


class Test:
    def __init__(self, options):
        self.options, self.work = options, os.path.abspath(options.work)
        self.root, self.base, self.debs = (os.path.join(self.work, name) for name in ('root', 'base', 'debs'))
        self.machine, self.digests, self.before = None, None, None

    # ---- preparation ----

    @staticmethod
    def check_tools():
        check_tools('dpkg-buildpackage', 'dpkg-scanpackages', 'lintian')

    def build(self):
        """Packages of this tree, and once more with a higher version; the root is made meanwhile."""
        os.makedirs(self.work, exist_ok=True)
        failed = []

        def base():
            try:
                make_base(self.base)
            except (Failure, Skip) as e:
                failed.append(e)
        thread = threading.Thread(target=base)
        thread.start()
        try:
            if self.options.built:
                return
            shutil.rmtree(self.debs, ignore_errors=True)
            cuda = ['--cuda'] if self.options.cuda else []
            run([os.path.join(TOP, 'tools', 'package.sh'), 'deb', '--out', self.debs, '--next', NEXT, *cuda], 3000 if cuda else 580,
                env=BUILD_ENV)
        finally:
            thread.join()
        if failed:
            raise failed[0]

    def lintian(self):
        changes = glob.glob(self.debs + '/*.changes')
        run(['lintian', '--info', '--allow-root', '--fail-on', 'error,warning', *changes], 200)

    def reproducible(self):
        """A second build, elsewhere, gives the same files."""
        again = os.path.join(self.work, 'again')
        shutil.rmtree(again, ignore_errors=True)
        run([os.path.join(TOP, 'tools', 'package.sh'), 'deb', '--out', again], 580, env=BUILD_ENV)
        for path in glob.glob(self.debs + '/*.deb'):
            if not filecmp.cmp(path, os.path.join(again, os.path.basename(path)), shallow=False):
                raise Failure(os.path.basename(path) + ' differs between two builds')

    def tarball(self):
        """Unpacked, moved, and a job trained on a root that has the C library and nothing else, not even a shell."""
        if not self.options.built:
            run([os.path.join(TOP, 'tools', 'package.sh'), 'tar', '--out', self.debs], 580)
        root = os.path.join(self.work, 'bare')
        shutil.rmtree(root, ignore_errors=True)
        for folder in ('proc', 'tmp', 'dev/shm', 'etc', 'lib64', 'usr/lib/x86_64-linux-gnu', 'elsewhere'):
            os.makedirs(os.path.join(root, folder))
        os.symlink('usr/lib', root + '/lib')
        shutil.copy('/lib64/ld-linux-x86-64.so.2', root + '/lib64/')
        for name in ('libc.so.6', 'libm.so.6', 'libdl.so.2', 'libpthread.so.0', 'librt.so.1', 'libresolv.so.2'):
            shutil.copy('/usr/lib/x86_64-linux-gnu/' + name, root + '/usr/lib/x86_64-linux-gnu/')
        archive, = glob.glob(self.debs + '/*.tar.xz')
        run(['tar', '-xf', archive, '-C', root + '/tmp'])
        name, = os.listdir(root + '/tmp')
        os.rename(os.path.join(root, 'tmp', name), root + '/elsewhere/moved')
        with open(root + '/job.yaml', 'w', encoding='utf-8') as f:
            f.write(JOB.replace('rounds: 16', 'rounds: 2'))
        script = '''
mount --bind "$0" "$0" && mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/dev/shm" || exit 99
HOME=/ exec chroot "$0" /elsewhere/moved/bin/mfl run /job.yaml --daemons 2 --backend cpu --out /result \
        --data tiny=synthetic:1,28,28:10:600:100:1
'''
        run(['unshare', '--mount', '--pid', '--fork', '--kill-child', 'sh', '-c', script, root], 120, env={'PATH': os.environ['PATH']})
        if not glob.glob(root + '/result/*.safetensors'):
            raise Failure('no model in %s' % os.listdir(root + '/result'))
        shutil.rmtree(root)

    def publish(self, folder):
        """Makes the packages of a folder what apt finds in the machine's own repository."""
        repository = self.root + REPOSITORY
        shutil.rmtree(repository, ignore_errors=True)
        os.makedirs(repository)
        for path in glob.glob(folder + '/*.deb'):
            if '-dbgsym_' not in path:
                shutil.copy(path, repository)
        if self.options.cuda:
            self.stand_in(repository)
        with open(repository + '/Packages', 'w', encoding='utf-8') as f:
            f.write(run(['dpkg-scanpackages', '--multiversion', '.'], cwd=repository))

    def stand_in(self, repository):
        """Empty packages in the place of NVIDIA's, which are in no part of Debian: of each choice the first."""
        path, = glob.glob(repository + '/mfl-client-cuda_*.deb')
        depends = run(['dpkg-deb', '-f', path, 'Depends']).split(',')
        first = [clause.split('|')[0].split('(')[0].strip() for clause in depends]
        names = [name for name in first if name.startswith(('libcublas', 'libcudnn'))]
        if len(names) != 2:
            raise Failure('mfl-client-cuda does not depend on cuBLAS and cuDNN: %s' % depends)
        for name in names:
            folder = os.path.join(self.work, 'stand-in', name)
            os.makedirs(folder + '/DEBIAN', exist_ok=True)
            with open(folder + '/DEBIAN/control', 'w', encoding='utf-8') as f:
                f.write('Package: %s\nVersion: 9999\nArchitecture: all\nMaintainer: nobody <nobody@mfl.example>\n'
                        'Description: empty, for a test\n' % name)
            run(['dpkg-deb', '--build', '--root-owner-group', folder, repository])

    UPDATE = 'apt-get update -qq -o Dir::Etc::sourcelist=sources.list.d/mfl.list -o Dir::Etc::sourceparts=- -o APT::Get::List-Cleanup=0'

    def prepare(self):
        """A clean root with a local repository; what the packages depend on is fetched, not installed."""
        make_root(self.base, self.root)
        self.publish(self.debs)
        with open(self.root + '/etc/apt/sources.list.d/mfl.list', 'w', encoding='utf-8') as f:
            f.write('deb [trusted=yes] file:%s ./\n' % REPOSITORY)
        shutil.copy('/etc/resolv.conf', self.root + '/etc/resolv.conf')
        more = ' dataset-fashion-mnist' if self.options.whole else ''
        in_root(self.root, self.UPDATE + '; apt-get install -qq --download-only --no-install-recommends mfl-server mfl-client mfl-cli' + more, 300)
        keep_packages(self.base, self.root)

    def boot(self):
        self.machine = Machine(self.root, os.path.join(self.work, 'console.log'))
        self.machine.sh('mkdir -p /run/root; systemctl is-system-running --wait || true')
        self.before = snapshot(self.root)

    # ---- what must hold ----

    def active(self, *units):
        for unit in units:
            state, restarts = self.machine.show(unit, 'ActiveState', 'NRestarts') if unit.endswith('.service') else \
                (*self.machine.show(unit, 'ActiveState'), '0')
            if state != 'active' or restarts not in ('0', ''):
                raise Failure('%s is %s, started again %s times\n%s' % (
                    unit, state, restarts, self.machine.sh('journalctl -o cat -n 40 -u ' + unit, None)))

    def install(self):
        """One command, and the server runs; the daemon when it is told what to train on. Both as their own accounts."""
        self.machine.sh('apt-get install -qq --no-install-recommends mfl-server mfl-client mfl-cli', timeout=200)
        self.active('mfl-server.service')
        enabled = [self.machine.sh('systemctl is-enabled ' + unit, None).strip() for unit in (*UNITS[:2], 'mfl-server.socket')]
        if enabled != ['enabled', 'disabled', 'disabled']:
            raise Failure('enabled: %s' % enabled)
        self.machine.sh('systemctl enable --quiet mfl-client.target')
        # The packages' own autopkgtest: a job without TLS.
        with open(os.path.join(TOP, 'debian', 'tests', 'smoke'), encoding='utf-8') as f:
            self.machine.write(REPOSITORY + '/smoke', f.read())
        self.machine.sh('AUTOPKGTEST_TMP=/run/root sh %s/smoke' % REPOSITORY)
        self.active(*UNITS)
        self.machine.wait(lambda: len(self.json('daemons')['daemons']) == 1, 20, 'the daemon at the server')
        for unit, account in (('mfl-server.service', 'mfl-server'), ('mfl-client@cpu.service', 'mfl')):
            pid = self.machine.show(unit, 'MainPID')[0]
            user = self.machine.sh('stat -c %U /proc/' + pid).strip()
            if user != account:
                raise Failure('%s runs as %s' % (unit, user))
        for name in ('mfl-server', 'mfl-client', 'mfl'):
            self.machine.sh(name + ' --help')

    def without_driver(self):
        """The backend for GPUs beside the daemon, without NVIDIA's driver and libraries: the daemon says so and uses the CPU."""
        self.machine.sh('apt-get install -qq --no-install-recommends mfl-client-cuda', timeout=200)
        self.machine.sh('systemctl restart mfl-client.target')
        self.active(*UNITS)
        # The instance is for the CPU; a daemon that looks for itself tells why it ends there.
        said = self.machine.sh('timeout 5 mfl-client --name by-hand --data x=synthetic:1,28,28:10:60:10:1 2>&1 || true')
        for line in ('backend cuda: no NVIDIA driver on this machine', 'cpu'):
            if line not in said:
                raise Failure('a daemon without a driver says: ' + said)
        said = self.machine.sh('mfl-client --backend cuda --data x=synthetic:1,28,28:10:60:10:1 2>&1 || echo status $?')
        if 'no NVIDIA driver' not in said or 'status' not in said:
            raise Failure('a daemon that must use a GPU says: ' + said)
        self.machine.sh('apt-get purge -qq --autoremove mfl-client-cuda')
        if self.machine.sh('ls /usr/lib/mfl').split() != ['libmfl_cpu.so']:
            raise Failure('left in /usr/lib/mfl: ' + self.machine.sh('ls /usr/lib/mfl'))

    def json(self, *argv):
        return json.loads(self.machine.sh('mfl %s --json' % ' '.join(argv)).splitlines()[-1])

    def certify(self):
        """A CA by mfl pki; keys go where the packages' configuration says, to the accounts that use them."""
        self.machine.sh('''
mfl pki init
mfl pki issue server --host 127.0.0.1
mfl pki issue daemon site-a
mfl pki issue operator alice
mfl pki issue viewer bob
for name in server site-a; do mfl pki export $name --tar - | tar xpf - -C /etc/mfl/tls; done
chown -R mfl-server:mfl-server /etc/mfl/tls/server
chown -R mfl:mfl /etc/mfl/tls/site-a
cp /run/root/.config/mfl/pki/issued/alice/*.pem /run/root/.config/mfl/
''')
        self.machine.write('/etc/mfl/server.yaml', SERVER_YAML)
        self.machine.write('/etc/mfl/client.yaml', CLIENT_YAML + DATA + (FASHION if self.options.whole else ''))
        self.machine.sh('systemctl restart mfl-server.service mfl-client.target')
        self.machine.wait(lambda: [d['name'] for d in self.json('daemons')['daemons'] if d['state'] != 'lost'] == ['site-a-cpu'], 20,
                          'the daemon over TLS')
        self.active(*UNITS)
        self.machine.sh('mfl list --plain 2>/dev/null', status=3)
        if self.options.whole:
            with open(os.path.join(TOP, 'examples', 'demo.yaml'), encoding='utf-8') as f:
                job = f.read()
        else:
            job = JOB
        self.machine.write('/srv/mfl/job.yaml', job)
        viewer = ' '.join('--tls-%s /run/root/.config/mfl/pki/issued/bob/%s.pem' % (key, key) for key in ('ca', 'cert', 'key'))
        said = self.machine.sh('mfl submit /srv/mfl/job.yaml %s 2>&1 || echo status $?' % viewer)
        if 'status 5' not in said:
            raise Failure('a viewer submits: ' + said)

    def last(self):
        return self.json('show', 'last')

    def job(self, disturb=None, endless=False):
        """Submits the job, watches it to its end, and compares its models with the first run's. disturb: called in the middle.
        endless: stopped when it has gone on far enough after that, since nobody knows how long apt takes."""
        name, known = '/srv/mfl/job.yaml', self.json('list')['jobs']
        if endless:
            self.machine.sh("sed 's/^rounds: .*/rounds: 10000/' %s >/run/root/endless.yaml" % name)
            name = '/run/root/endless.yaml'
        watch = subprocess.Popen(self.machine.argv('exec mfl submit %s --watch --json' % name), stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        timeout = 1200 if self.options.whole else 120
        try:
            if disturb:
                self.machine.wait(lambda: len(self.json('list')['jobs']) > len(known), 30, 'the job')
                self.machine.wait(lambda: self.last()['job']['round'] >= 2, timeout, 'the second round')
                disturb()
                after = self.last()['job']
                if after['state'] not in ('waiting', 'running'): # waiting: for the daemon, which comes back
                    raise Failure('the job is %s after that: nothing was tested' % after['state'])
                if endless:
                    enough = max(len(self.digests), after['round'] + 2)
                    self.machine.wait(lambda: self.last()['job']['round'] >= enough, timeout, 'two more rounds')
                    self.machine.sh('mfl stop last')
            out, _ = watch.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise Failure('the job has no end: %s' % self.machine.sh('mfl show last', None)) from None
        finally:
            if watch.poll() is None:
                watch.kill()
                watch.wait()
        shown = self.last()
        if (shown['job']['state'], watch.returncode) != (('stopped', 1) if endless else ('done', 0)) or shown['job']['owner'] != 'alice':
            raise Failure('status %d, %s\n%s' % (watch.returncode, shown['job'], out[-2000:]))
        digests = [r['digest'] for r in shown['rounds']]
        self.digests = self.digests or digests
        if digests[:len(self.digests)] != self.digests:
            raise Failure('other models than those of the run that nobody touched')
        self.active('mfl-client.target')

    def undisturbed(self):
        self.job()

    def restarted(self):
        def disturb():
            before = self.machine.show('mfl-server.service', 'MainPID')
            self.machine.sh('systemctl restart mfl-server.service')
            if self.machine.show('mfl-server.service', 'MainPID') == before:
                raise Failure('the server was not restarted')
        self.job(disturb)

    def upgraded(self):
        """Both services are others afterwards; the administrator's configuration is his; the job has not noticed."""
        def disturb():
            units = ('mfl-server.service', 'mfl-client@cpu.service')
            before = [self.machine.show(unit, 'MainPID') for unit in units]
            self.publish_next()
            self.machine.sh('apt-get install -qq --no-install-recommends mfl-server mfl-client mfl-cli', timeout=200)
            versions = self.machine.sh("dpkg-query -W -f '${Version} ' mfl-server mfl-client mfl-cli").split()
            if versions != [NEXT] * 3:
                raise Failure('versions: %s' % versions)
            after = [self.machine.show(unit, 'MainPID') for unit in units]
            if any(a == b or a == ['0'] for a, b in zip(after, before)):
                raise Failure('processes %s before and %s after the upgrade' % (before, after))
        self.job(disturb, endless=True)
        for name, text in (('server', SERVER_YAML), ('client', CLIENT_YAML)):
            with open(self.machine.path('/etc/mfl/%s.yaml' % name), encoding='utf-8') as f:
                if not f.read().startswith(text):
                    raise Failure(name + '.yaml is no longer the administrator\'s')

    def publish_next(self):
        with open(self.root + '/srv/mfl/job.yaml', encoding='utf-8') as f:
            job = f.read()
        self.publish(os.path.join(self.debs, NEXT))
        self.machine.write('/srv/mfl/job.yaml', job)
        self.machine.sh(self.UPDATE)

    def quiet(self):
        """Nothing was started anew by systemd, broken off or refused by the sandbox; no word of a crash."""
        bad = self.machine.sh("journalctl -o cat -u 'mfl-*' | grep -iE 'failed with result|core-dump|watchdog timeout|status=[1-9]' || true")
        if bad:
            raise Failure(bad)

    def removed(self):
        """Without purge, configuration and state stay; services are gone, and a reinstallation finds everything again."""
        self.machine.sh('apt-get remove -qq mfl-server mfl-client mfl-cli')
        for unit in UNITS:
            if self.machine.sh('systemctl is-active %s || true' % unit).strip() == 'active':
                raise Failure(unit + ' runs after the removal')
        for name in ('/etc/mfl/server.yaml', '/etc/mfl/client.yaml', '/var/lib/mfl-server', '/etc/mfl/tls/server/key.pem'):
            if not os.path.exists(self.machine.path(name)):
                raise Failure(name + ' went with the removal')
        self.machine.sh('apt-get install -qq --no-install-recommends mfl-server mfl-client mfl-cli', timeout=200)
        self.active('mfl-server.service')
        if self.machine.sh('systemctl is-enabled mfl-client.target').strip() != 'enabled':
            raise Failure('mfl-client.target was enabled before the removal')
        self.machine.sh('systemctl start mfl-client.target')
        self.active(*UNITS)
        jobs = [job['state'] for job in self.json('list')['jobs']]
        if sorted(jobs) != ['done', 'done', 'done', 'stopped']:
            raise Failure('jobs after the reinstallation: %s' % jobs)

    def purged(self):
        """The machine's files are those from before, but for what the policy keeps and what the administrator brought."""
        self.machine.sh('echo cpu >/etc/mfl/client-instances')
        self.machine.sh('apt-get purge -qq --autoremove mfl-server mfl-client mfl-cli dataset-fashion-mnist 2>&1 ||'
                        'apt-get purge -qq --autoremove mfl-server mfl-client mfl-cli', timeout=200)
        running = self.machine.sh('ps -eo user,args 2>/dev/null | grep -E "^mfl" || true; ls /dev/shm')
        if running.strip():
            raise Failure('still there: ' + running)
        after = snapshot(self.root)
        keys = {p for p in after if p == '/etc/mfl' or p == '/etc/mfl/tls' or p.startswith(('/etc/mfl/tls/server', '/etc/mfl/tls/site-a'))}
        left = sorted(p for p in after if self.before.get(p) != after[p] and p not in ACCOUNTS and p not in keys)
        lost = sorted(p for p in self.before if p not in after)
        # A folder's own time and size are not compared; of a changed file its path is told.
        if left or lost:
            raise Failure('left behind or changed:\n  %s\ngone:\n  %s' % ('\n  '.join(left), '\n  '.join(lost)))
        accounts = self.machine.sh('cut -d: -f1 /etc/passwd').split()
        print('    kept: accounts %s; %d files of the administrator in /etc/mfl/tls' % (
            ' '.join(name for name in accounts if name.startswith('mfl')), len([p for p in keys if p.endswith('.pem')])))

    def close(self):
        if self.machine:
            self.machine.stop()
        if not self.options.keep:
            shutil.rmtree(self.root, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--work', default=os.environ.get('MFL_PACKAGES') or os.path.join(TOP, 'build-packages'),
                        help='folder for packages and roots; the clean root in it is used again (default: build-packages)')
    parser.add_argument('--whole', action='store_true', help='with examples/demo.yaml on Fashion-MNIST: minutes instead of seconds')
    parser.add_argument('--reproducible', action='store_true', help='build twice and compare')
    parser.add_argument('--built', action='store_true', help='test the packages that an earlier run built')
    parser.add_argument('--no-tarball', action='store_true', help='leave out the tarball, which is a build of its own')
    parser.add_argument('--cuda', action='store_true',
                        help='mfl-client-cuda, too, on a machine without a driver: its kernels take long to compile')
    parser.add_argument('--keep', action='store_true', help='leave the root that was tested')
    test = Test(parser.parse_args())
    steps = [('tools', test.check_tools), ('build', test.build), ('lintian', test.lintian), ('tarball', test.tarball), ('clean root', test.prepare),
             ('boot', test.boot), ('install', test.install), ('certificates, TLS', test.certify), ('job', test.undisturbed),
             ('job, server restarted', test.restarted), ('job, packages upgraded', test.upgraded), ('journal', test.quiet),
             ('remove, install again', test.removed), ('purge', test.purged)]
    if test.options.no_tarball:
        steps = [step for step in steps if step[0] != 'tarball']
    if test.options.cuda:
        steps.insert([name for name, _ in steps].index('install') + 1, ('GPU backend, no driver', test.without_driver))
    if test.options.reproducible:
        steps.insert(3, ('built twice', test.reproducible))

    def journal():
        if test.machine:
            print(test.machine.sh("journalctl -o short-monotonic -n 60 -u 'mfl-*'", None))
    try:
        return carry_out(steps, (test.lintian, test.reproducible, test.tarball), journal)
    finally:
        test.close()


if __name__ == '__main__':
    sys.exit(main())
