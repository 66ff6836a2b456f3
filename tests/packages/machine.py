# SPDX-License-Identifier: Apache-2.0
"""A Debian machine of its own for tests of packages and of a fresh clone: a root by debootstrap, booted with its systemd by
systemd-nspawn, without a network but loopback, or with one that leads to Debian's mirror alone."""
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse

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


def check_tools(*names):
    if os.geteuid():
        raise Skip('only root can make and boot a machine')
    missing = [name for name in ('debootstrap', 'systemd-nspawn', 'nsenter', 'chroot', *names) if not shutil.which(name)]
    if missing:
        raise Skip('not installed: ' + ' '.join(missing))


def mirror():
    """Where this machine has its Debian from, if it is of that suite."""
    try:
        for line in run(['apt-get', 'indextargets', '--format', '$(REPO_URI) $(RELEASE) $(COMPONENT)', 'Created-By: Packages']).splitlines():
            uri, release, component = line.split()
            if (release, component) == (SUITE, 'main') and uri.startswith('http://'):
                return uri.rstrip('/')
    except (Failure, OSError, ValueError):
        pass
    return MIRROR


def apt_settings():
    """How this machine's apt reaches a mirror, as a file of settings: proxies, time limits."""
    dump = run(['apt-config', 'dump']) if shutil.which('apt-config') else ''
    lines = [line for line in dump.splitlines() if re.match(r'Acquire::(http|Retries|ForceIPv)', line, re.I)]
    if os.environ.get('http_proxy') and not any('http::proxy ' in line.lower() for line in lines):
        lines.append('Acquire::http::Proxy "%s";' % os.environ['http_proxy'])
    return ''.join(line + '\n' for line in lines)


def make_base(base):
    """A minimal root with a service manager; kept for the next time. Skip where there is no network."""
    if os.path.isdir(base):
        return
    making, site = base + '.new', mirror()
    shutil.rmtree(making, ignore_errors=True)
    try:
        run(['debootstrap', '--variant=minbase', '--include=systemd,systemd-sysv', SUITE, making, site], 400)
        # Suites of a machine that is kept up to date.
        with open(making + '/etc/apt/sources.list', 'a', encoding='utf-8') as f:
            f.write('deb %s %s-updates main\n' % (site, SUITE))
        with open(making + '/etc/apt/apt.conf.d/90host', 'w', encoding='utf-8') as f:
            f.write(apt_settings())
        in_root(making, 'apt-get update', 200)
    except Failure as e:
        if 'Failed to fetch' in str(e) or 'Failed getting release file' in str(e) or 'Temporary failure' in str(e):
            raise Skip('%s can\'t be reached' % site) from e
        raise
    os.rename(making, base)


def make_root(base, root):
    """A copy of the base."""
    shutil.rmtree(root, ignore_errors=True)
    run(['cp', '-a', '--reflink=auto', base, root], 200)


def keep_packages(base, root):
    """What was fetched for a root is there the next time."""
    for name in os.listdir(root + '/var/cache/apt/archives'):
        if name.endswith('.deb'):
            shutil.copy(root + '/var/cache/apt/archives/' + name, base + '/var/cache/apt/archives/')


def only_mirror(root):
    """Of all names the root knows that of the mirror, or of the proxy that leads there: whoever looks for another place finds none."""
    with open(root + '/etc/apt/apt.conf.d/90host', encoding='utf-8') as f:
        proxies = re.findall(r'Proxy "(\w+://[^"]+)"', f.read())
    with open(root + '/etc/apt/sources.list', encoding='utf-8') as f:
        sites = re.findall(r'^deb (\S+)', f.read(), re.M)
    names = {urllib.parse.urlsplit(url).hostname for url in proxies or sites}
    hosts = {(info[4][0], name) for name in names for info in socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)}
    with open(root + '/etc/hosts', 'w', encoding='utf-8') as f:
        f.write('127.0.0.1 localhost\n::1 localhost\n' + ''.join('%s %s\n' % host for host in sorted(hosts)))
    if os.path.lexists(root + '/etc/resolv.conf'):
        os.unlink(root + '/etc/resolv.conf')
    with open(root + '/etc/resolv.conf', 'w', encoding='utf-8'):
        pass


def carry_out(steps, go_on=(), at_failure=lambda: None):
    """[(name, step)]: each prints a line, the last line is the sum; returns the status to end with. A step that fails or is skipped
    is the last one, but for those to `go_on` after."""
    passed = failed = skipped = 0
    for name, step in steps:
        start = time.monotonic()
        try:
            step()
        except Skip as e:
            print('%-28s skipped: %s' % (name, e), flush=True)
            skipped += 1
            break
        except (Failure, TimeoutError) as e:
            print('%-28s FAILED: %s' % (name, e), flush=True)
            at_failure()
            failed += 1
            if step not in go_on:
                break
            continue
        passed += 1
        print('%-28s ok %6.1f s' % (name, time.monotonic() - start), flush=True)
    print('%d passed, %d failed, %d skipped' % (passed, failed, skipped))
    return 1 if failed else 0


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

    def __init__(self, root, log, network=False):
        self.root, self.log_path, self.init = root, log, None
        self.name = 'mfl-%d' % os.getpid()
        with open(log, 'wb') as out:
            self.popen = subprocess.Popen(
                ['sh', '-c', self.START, self.name, 'systemd-nspawn', '--directory=' + root, '--boot', '--register=no', '--keep-unit',
                 *([] if network else ['--private-network']), '--machine=' + self.name, '--resolv-conf=off', '--timezone=off',
                 '--link-journal=no'],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, 'SYSTEMD_NSPAWN_TMPFS_TMP': '0'})
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
