# SPDX-License-Identifier: Apache-2.0
"""A Debian machine of its own for tests of packages: a root by debootstrap, booted with its systemd by systemd-nspawn, without a
network but loopback."""
import os
import shutil
import signal
import subprocess
import time

SUITE = 'bookworm'
MIRROR = 'http://deb.debian.org/debian'
PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'


class Failure(Exception):
    pass


class Skip(Exception):
    pass


def run(argv, timeout=120, status=0, **options):
    """Standard output; Failure with everything it said when it ends otherwise than expected."""
    options = {'stdin': subprocess.DEVNULL, **options}
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout, check=False,
                              errors='replace', **options)
    except subprocess.TimeoutExpired:
        raise Failure('%s: no end after %d s' % (' '.join(argv)[:300], timeout)) from None
    if status is not None and done.returncode != status:
        raise Failure('%s: status %d\n%s%s' % (' '.join(argv)[:300], done.returncode, done.stdout[-4000:], done.stderr[-4000:]))
    return done.stdout


def make_base(base, packages):
    """A minimal root with a service manager; kept for the next time. Skip where there is no network."""
    if os.path.isdir(base):
        return
    making = base + '.new'
    shutil.rmtree(making, ignore_errors=True)
    try:
        run(['debootstrap', '--variant=minbase', '--include=' + ','.join(packages), SUITE, making, MIRROR], 400)
        # Suites of a machine that is kept up to date.
        with open(making + '/etc/apt/sources.list', 'a', encoding='utf-8') as f:
            f.write('deb %s %s-updates main\n' % (MIRROR, SUITE))
        in_root(making, 'apt-get update', 200)
    except Failure as e:
        if 'Failed to fetch' in str(e) or 'Failed getting release file' in str(e) or 'Temporary failure' in str(e):
            raise Skip('%s can\'t be reached' % MIRROR) from e
        raise
    os.rename(making, base)


def in_root(root, command, timeout=120):
    return run(['chroot', root, '/usr/bin/env', '-i', 'PATH=' + PATH, 'DEBIAN_FRONTEND=noninteractive', 'LC_ALL=C.UTF-8', 'sh', '-ec',
                command], timeout)


def is_init(pid, root):
    """Whether that is process 1 of a machine with this root."""
    try:
        with open('/proc/%s/status' % pid, encoding='utf-8') as f:
            numbers = next(line for line in f if line.startswith('NSpid:')).split()[1:]
        return len(numbers) > 1 and numbers[-1] == '1' and os.path.samestat(os.stat('/proc/%s/root' % pid), os.stat(root))
    except (OSError, StopIteration):
        return False


class Machine:
    # nspawn divides the control group that it starts in: one of its own, where that can be had.
    START = '''
for tree in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do
        [ -e "$tree/cgroup.procs" ] || continue
        mkdir "$tree/$0" 2>/dev/null && echo $$ >"$tree/$0/cgroup.procs" 2>/dev/null
done
exec "$@"
'''

    def __init__(self, root, log):
        self.root, self.log_path, self.init = root, log, None
        self.name = 'mfl-packages-%d' % os.getpid()
        with open(log, 'wb') as out:
            self.popen = subprocess.Popen(
                ['sh', '-c', self.START, self.name, 'systemd-nspawn', '--directory=' + root, '--boot', '--register=no', '--keep-unit',
                 '--private-network', '--machine=' + self.name, '--resolv-conf=off', '--timezone=off', '--link-journal=no'],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            self.wait(self.find_init, 20, 'the first process')
            self.wait(lambda: self.sh('systemctl is-system-running', None).strip() in ('running', 'degraded'), 60, 'the boot')
        except (Failure, TimeoutError) as e:
            with open(log, encoding='utf-8', errors='replace') as f:
                said = f.read()[-1500:]
            self.stop()
            raise Skip('systemd-nspawn boots no machine here: %s\n%s' % (e, said)) from e

    def find_init(self):
        if self.popen.poll() is not None:
            raise Failure('systemd-nspawn has ended with status %d' % self.popen.returncode)
        self.init = next((pid for pid in os.listdir('/proc') if pid.isdigit() and is_init(pid, self.root)), None)
        return self.init

    @staticmethod
    def wait(condition, timeout, what):
        """Looks again and again, until it is true."""
        end = time.monotonic() + timeout
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > end:
                raise TimeoutError('waited %d s for %s' % (timeout, what))
            time.sleep(0.1)

    def argv(self, command):
        return ['nsenter', '--target', self.init, '--mount', '--uts', '--ipc', '--net', '--pid', '--root', '/usr/bin/env', '-i',
                'PATH=' + PATH, 'HOME=/run/root', 'LC_ALL=C.UTF-8', 'DEBIAN_FRONTEND=noninteractive', 'sh', '-ec', command]

    def sh(self, command, status=0, timeout=120):
        return run(self.argv(command), timeout, status)

    def path(self, name):
        """A file of the machine, as it is seen from here. Not for /run, /tmp and /dev."""
        return self.root + name

    def write(self, name, text):
        with open(self.path(name), 'w', encoding='utf-8') as f:
            f.write(text)

    def show(self, unit, *names):
        """Properties of a unit, in the order asked for."""
        found = dict(line.split('=', 1) for line in self.sh(
            'systemctl show %s -p %s' % (unit, ','.join(names))).splitlines() if '=' in line)
        return [found[name] for name in names]

    def stop(self):
        """Shuts it down; what does not go is ended."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            try:
                self.popen.wait(30)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait(10)
        for tree in ('/sys/fs/cgroup/systemd', '/sys/fs/cgroup/unified', '/sys/fs/cgroup'):
            for at, _, _ in os.walk(os.path.join(tree, self.name), topdown=False):
                try:
                    os.rmdir(at)
                except OSError:
                    pass
