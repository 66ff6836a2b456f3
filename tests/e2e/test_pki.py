# SPDX-License-Identifier: Apache-2.0
"""`mfl pki` as administrators use it; what it makes is judged by the openssl program, which did not make it."""
import json
import os
import re
import signal
import stat
import subprocess
import tarfile
import time

import pytest

import mfl_harness
import mfl_needs

DAY = 86400
pytestmark = mfl_needs.needs_program('openssl')


def run(*args, code=0, env=None, stdin=None):
    """`mfl pki ...`; its standard output as bytes."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith('MFL_')}
    environment.update(env or {})
    p = subprocess.run([mfl_harness.program('mfl'), 'pki', *args], capture_output=True, timeout=30, env=environment,
                       input=stdin)
    assert p.returncode == code, (args, p.returncode, p.stdout, p.stderr)
    run.stderr = p.stderr.decode()
    return p.stdout


def openssl(*args, ok=True):
    p = subprocess.run(['openssl', *args], capture_output=True, timeout=30, text=True)
    assert (p.returncode == 0) == ok, (args, p.returncode, p.stdout, p.stderr)
    return p.stdout + p.stderr


class Ca:
    def __init__(self, folder, *init):
        self.dir = os.path.join(folder, 'pki')
        self.pki('init', *init)

    def pki(self, *args, **options):
        return run(*args, '--dir', self.dir, **options)

    def json(self, *args, **options):
        return json.loads(self.pki(*args, '--json', **options))

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def cert(self, name):
        return self.path('issued', name, 'cert.pem')

    def text(self, name):
        return openssl('x509', '-in', self.cert(name), '-noout', '-text')

    def verify(self, name, purpose, ok=True, crl=True):
        extra = ['-crl_check', '-CRLfile', self.path('crl.pem')] if crl else []
        return openssl('verify', '-x509_strict', '-CAfile', self.path('ca.pem'), '-purpose', purpose, *extra,
                       self.cert(name), ok=ok)

    def shown(self, name):
        return [c for c in self.json('show')['certificates'] if c['name'] == name]


@pytest.fixture
def ca(folder):
    return Ca(folder)


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def tree(folder):
    out = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            with open(path, 'rb') as f:
                out[path] = (mode(path), f.read())
        out[where] = mode(where)
    return out


def seconds(text):
    return int(subprocess.check_output(['date', '-u', '-d', text, '+%s']))


def dates(path):
    text = openssl('x509', '-in', path, '-noout', '-startdate', '-enddate')
    return [seconds(re.search(key + r'=(.*)', text).group(1)) for key in ('notBefore', 'notAfter')]


def test_ca_certificate(ca):
    before = time.time()
    text = openssl('x509', '-in', ca.path('ca.pem'), '-noout', '-text')
    assert re.search(r'Basic Constraints: critical\s+CA:TRUE, pathlen:0\n', text)
    assert re.search(r'Key Usage: critical\s+Certificate Sign, CRL Sign\n', text)
    assert 'prime256v1' in text and 'Signature Algorithm: ecdsa-with-SHA256' in text
    assert openssl('verify', '-x509_strict', '-check_ss_sig', '-CAfile', ca.path('ca.pem'), ca.path('ca.pem'))
    start, end = dates(ca.path('ca.pem'))
    assert before - 400 <= start <= before - 200 and abs(end - start - 3650 * DAY - 300) <= 1
    assert mode(ca.dir) == 0o700 and mode(ca.path('ca.key')) == 0o600 and mode(ca.path('ca.pem')) == 0o644
    assert openssl('crl', '-in', ca.path('crl.pem'), '-CAfile', ca.path('ca.pem'), '-noout').strip() == 'verify OK'


def test_server_certificate(ca):
    out = ca.pki('issue', 'server', '--host', 'agg.example.org', '--host', '10.0.0.1', '--host', '2001:db8::7').decode()
    text = ca.text('server')
    assert 'DNS:agg.example.org, IP Address:10.0.0.1, IP Address:2001:DB8:0:0:0:0:0:7\n' in text
    assert re.search(r'Subject: CN = server\n', text)
    assert re.search(r'Extended Key Usage: \s+TLS Web Server Authentication\n', text)
    assert re.search(r'Basic Constraints: critical\s+CA:FALSE\n', text)
    assert re.search(r'Key Usage: critical\s+Digital Signature\n', text)
    assert 'Subject Key Identifier' in text and 'Authority Key Identifier' in text
    ca.verify('server', 'sslserver')
    ca.verify('server', 'sslclient', ok=False)
    check = ['x509', '-in', ca.cert('server'), '-noout']
    assert 'does match' in openssl(*check, '-checkhost', 'agg.example.org')
    assert 'does NOT match' in openssl(*check, '-checkhost', 'example.org')
    assert 'does match' in openssl(*check, '-checkip', '10.0.0.1')
    for key, name in (('tls_ca', 'ca.pem'), ('tls_cert', 'cert.pem'), ('tls_key', 'key.pem')):
        assert '  %s: "%s"\n' % (key, ca.path('issued', 'server', name)) in out
    assert '  tls_crl: "%s"\n' % ca.path('crl.pem') in out


def test_leaf_certificates(ca):
    for role, name in (('daemon', 'site-a'), ('operator', 'alice'), ('viewer', 'bob'), ('admin', 'root.1')):
        out = ca.pki('issue', role, name).decode()
        text = ca.text(name)
        assert 'Subject: OU = %s, CN = %s\n' % (role, name) in text
        assert re.search(r'Extended Key Usage: \s+TLS Web Client Authentication\n', text)
        ca.verify(name, 'sslclient')
        ca.verify(name, 'sslserver', ok=False)
        assert ('client.yaml' in out) == (role == 'daemon') and ('export MFL_TLS_CERT=' in out) == (role != 'daemon')
        assert mode(ca.path('issued', name)) == 0o700 and mode(ca.path('issued', name, 'key.pem')) == 0o600
        public = openssl('pkey', '-in', ca.path('issued', name, 'key.pem'), '-pubout')
        assert public == openssl('x509', '-in', ca.cert(name), '-noout', '-pubkey')
    ca.pki('issue', 'operator', 'carol', '--role', 'viewer', '--role', 'admin', '--days', '90')
    assert 'Subject: OU = operator, OU = viewer, OU = admin, CN = carol\n' in ca.text('carol')
    start, end = dates(ca.cert('carol'))
    assert abs(end - start - 90 * DAY - 300) <= 1
    serials = [openssl('x509', '-in', ca.cert(n), '-noout', '-serial').split('=')[1].strip()
               for n in ('site-a', 'alice', 'bob', 'root.1', 'carol')]
    assert len(set(serials)) == 5 and all(re.fullmatch('[0-9A-F]{32}', s) for s in serials)
    assert [c['serial'] for c in ca.json('show')['certificates']] == serials


def test_never_longer_than_the_ca(folder):
    ca = Ca(folder, '--days', '100')
    assert b"when the CA's own certificate expires" in ca.pki('issue', 'daemon', 'a')
    assert dates(ca.cert('a'))[1] == dates(ca.path('ca.pem'))[1]


def test_revoke(ca):
    for name in ('a', 'b'):
        ca.pki('issue', 'daemon', name)
    serial = ca.shown('b')[0]['serial']
    assert 'systemctl reload' in ca.pki('revoke', 'a', '--crl-days', '7').decode()
    ca.verify('a', 'sslclient', crl=False)
    assert 'certificate revoked' in ca.verify('a', 'sslclient', ok=False)
    ca.verify('b', 'sslclient')
    text = openssl('crl', '-in', ca.path('crl.pem'), '-noout', '-text')
    assert 'Serial Number: ' + ca.shown('a')[0]['serial'] in text and serial not in text
    last, following = [seconds(re.search(k + r' Update: (.*)', text).group(1)) for k in ('Last', 'Next')]
    assert abs(following - last - 7 * DAY - 300) <= 1
    assert ca.json('revoke', serial.lower())['name'] == 'b'
    assert 'certificate revoked' in ca.verify('b', 'sslclient', ok=False)
    before = tree(ca.dir)
    ca.pki('revoke', 'a', code=6)
    assert 'already revoked' in run.stderr
    ca.pki('revoke', 'nobody', code=4)
    ca.pki('renew', 'a', code=6)
    ca.pki('export', 'a', '--tar', ca.path('x.tar'), code=6)
    assert tree(ca.dir) == before
    # The name is free again, with another key; and it says what it has replaced.
    old = openssl('x509', '-in', ca.cert('a'), '-noout', '-pubkey')
    assert b'were replaced' in ca.pki('issue', 'viewer', 'a')
    assert openssl('x509', '-in', ca.cert('a'), '-noout', '-pubkey') != old
    ca.verify('a', 'sslclient')
    number = ca.json('show')['crl']['number']
    assert ca.json('crl')['number'] == number + 1
    assert [c['state'] for c in ca.shown('a')] == ['revoked', 'valid']


def test_renew(ca):
    ca.pki('issue', 'server', 'agg', '--host', 'old.example', '--days', '20')
    key = open(ca.path('issued', 'agg', 'key.pem'), 'rb').read()
    first = openssl('x509', '-in', ca.cert('agg'), '-noout', '-serial')
    assert 'expires soon' in ca.pki('show').decode()
    out = ca.pki('renew', 'agg').decode()
    assert 'were replaced' in out and 'stays valid until it expires' in out
    assert open(ca.path('issued', 'agg', 'key.pem'), 'rb').read() == key
    assert openssl('x509', '-in', ca.cert('agg'), '-noout', '-serial') != first
    assert 'DNS:old.example\n' in ca.text('agg') and dates(ca.cert('agg'))[1] > time.time() + 364 * DAY
    assert 'expires soon' not in ca.pki('show').decode()
    ca.pki('renew', 'agg', '--new-key', '--revoke-old', '--host', 'new.example', '--out', ca.path('..', 'out'))
    assert open(ca.path('issued', 'agg', 'key.pem'), 'rb').read() != key
    assert 'DNS:new.example\n' in ca.text('agg')
    assert [c['state'] for c in ca.shown('agg')] == ['renewed', 'revoked', 'valid']
    ca.verify('agg', 'sslserver')
    assert sorted(os.listdir(ca.path('..', 'out'))) == ['ca.pem', 'cert.pem', 'crl.pem', 'key.pem']
    assert mode(ca.path('..', 'out', 'key.pem')) == 0o600
    # A key that was exchanged behind its back is not certified.
    openssl('genpkey', '-algorithm', 'EC', '-pkeyopt', 'ec_paramgen_curve:P-256', '-out',
            ca.path('issued', 'agg', 'key.pem'))
    before = tree(ca.dir)
    ca.pki('renew', 'agg', code=5)
    assert 'does not belong' in run.stderr and tree(ca.dir) == before


def request(folder, name, *args):
    csr, key = os.path.join(folder, name + '.csr'), os.path.join(folder, name + '.key')
    openssl('req', '-new', '-nodes', '-keyout', key, '-out', csr, '-subj', '/OU=admin/CN=mallory', *args)
    return csr, key


def test_site(ca):
    """A daemon's site is the O of its certificate, and stays when it is renewed."""
    out = ca.pki('issue', 'daemon', 'box-1', '--site', 'hospital-a').decode()
    assert '  site: hospital-a' in out
    assert 'O = hospital-a, OU = daemon, CN = box-1' in ca.text('box-1')
    ca.pki('renew', 'box-1')
    assert 'O = hospital-a, OU = daemon, CN = box-1' in ca.text('box-1')
    ca.pki('renew', 'box-1', '--site', 'hospital-b')
    assert 'O = hospital-b,' in ca.text('box-1')
    ca.pki('issue', 'daemon', 'alone')
    assert {c['name']: c.get('site') for c in ca.json('show')['certificates']}['alone'] is None
    assert [c['site'] for c in ca.json('show', 'box-1')['certificates']] == ['hospital-a', 'hospital-a', 'hospital-b']


def test_csr(folder, ca):
    wishes = ['-addext', 'basicConstraints=critical,CA:TRUE', '-addext', 'subjectAltName=DNS:evil.example']
    csr, key = request(folder, 'r', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', *wishes)
    assert b'key stayed where the request was made' in ca.pki('issue', 'daemon', 'site-b', '--csr', csr)
    text = ca.text('site-b')
    assert 'Subject: OU = daemon, CN = site-b\n' in text and 'CA:FALSE' in text
    assert 'evil' not in text and 'mallory' not in text and 'admin' not in text
    assert openssl('pkey', '-in', key, '-pubout') == openssl('x509', '-in', ca.cert('site-b'), '-noout', '-pubkey')
    assert sorted(os.listdir(ca.path('issued', 'site-b'))) == ['ca.pem', 'cert.pem']
    ca.verify('site-b', 'sslclient')
    ca.pki('renew', 'site-b')
    assert openssl('pkey', '-in', key, '-pubout') == openssl('x509', '-in', ca.cert('site-b'), '-noout', '-pubkey')
    ca.pki('renew', 'site-b', '--new-key', code=2)
    # From a key that was made here to one that was not: the old key goes.
    ca.pki('issue', 'daemon', 'site-c')
    ca.pki('renew', 'site-c', '--csr', csr)
    assert sorted(os.listdir(ca.path('issued', 'site-c'))) == ['ca.pem', 'cert.pem']


def test_csr_refused(folder, ca):
    csr, _ = request(folder, 'r', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256')
    weak, _ = request(folder, 'weak', '-newkey', 'rsa:1024')
    der = os.path.join(folder, 'x.der')
    openssl('req', '-in', csr, '-outform', 'DER', '-out', der)
    data = bytearray(open(der, 'rb').read())
    # The last byte of the signature.
    data[-1] ^= 1
    open(der, 'wb').write(data)
    forged = os.path.join(folder, 'forged.csr')
    openssl('req', '-inform', 'DER', '-in', der, '-out', forged)
    garbage = os.path.join(folder, 'garbage')
    open(garbage, 'wb').write(b'-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n\0\xff')
    before = tree(ca.dir)
    for path, code, says in ((weak, 5, 'too weak'), (forged, 5, 'signature is wrong'), (garbage, 5, 'not a certificate req'),
                             (ca.path('ca.pem'), 5, 'not a certificate req'), (folder, 5, 'is a directory'),
                             (folder + '/none', 4, 'no such file'), ('/dev/zero', 5, 'more than 65536 bytes')):
        ca.pki('issue', 'daemon', 'd', '--csr', path, code=code)
        assert says in run.stderr, (path, run.stderr)
    assert tree(ca.dir) == before


def test_pass_phrase(folder):
    good, bad, empty, open_to_all = (os.path.join(folder, n) for n in ('good', 'bad', 'empty', 'open'))
    for path, text in ((good, 'correct horse\nnot this\n'), (bad, 'correct hors\n'), (empty, '\n'), (open_to_all, 'x\n')):
        with open(path, 'w', encoding='ascii') as f:
            f.write(text)
        os.chmod(path, 0o600)
    os.chmod(open_to_all, 0o644)
    ca = Ca(folder, '--ca-pass-file', good)
    with open(ca.path('ca.key'), encoding='ascii') as f:
        assert f.readline() == '-----BEGIN ENCRYPTED PRIVATE KEY-----\n'
    assert 'Private-Key' in openssl('pkey', '-in', ca.path('ca.key'), '-passin', 'pass:correct horse', '-noout', '-text')
    parts = openssl('asn1parse', '-in', ca.path('ca.key'))
    assert 'PBKDF2' in parts and 'hmacWithSHA256' in parts and 'aes-256-cbc' in parts and '0927C0' in parts
    before = tree(ca.dir)
    for path, code, says in ((bad, 5, 'wrong pass phrase'), (empty, 5, 'empty'), (open_to_all, 5, 'chmod 600'),
                             (folder + '/none', 4, 'no such file')):
        ca.pki('issue', 'daemon', 'd', '--ca-pass-file', path, code=code)
        assert says in run.stderr
    ca.pki('issue', 'daemon', 'd', code=5)
    assert '--ca-pass-file' in run.stderr and tree(ca.dir) == before
    ca.pki('issue', 'daemon', 'd', '--ca-pass-file', good)
    ca.verify('d', 'sslclient')
    # Looking needs no key.
    assert ca.shown('d')[0]['days_left'] in (364, 365)


def test_two_at_once(ca):
    argv = [mfl_harness.program('mfl'), 'pki', 'issue', 'daemon']
    names = ['d%d' % i for i in range(8)] + ['same', 'same']
    running = [subprocess.Popen([*argv, n, '--dir', ca.dir], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
               for n in names]
    codes = [p.wait(60) for p in running]
    assert codes[:8] == [0] * 8 and sorted(codes[8:]) == [0, 6]
    shown = ca.json('show')
    assert sorted(c['name'] for c in shown['certificates']) == sorted(set(names)) and shown['crl']['number'] == 10
    for name in set(names):
        ca.verify(name, 'sslclient')
        assert ca.shown(name)[0]['serial'] in openssl('x509', '-in', ca.cert(name), '-noout', '-serial')


def test_killed_in_the_middle(ca):
    ca.pki('issue', 'daemon', 'a')
    before = tree(ca.dir)
    for point, n in (('after-rename', 4), ('before-fsync', 7), ('after-mkdir', 2)):
        ca.pki('issue', 'server', 'agg', '--host', 'h', env={'MFL_FAULT': '%s:%d:exit' % (point, n)}, code=99)
        assert tree(ca.dir) != before, point
        ca.pki('show')
        assert tree(ca.dir) == before, point
    ca.pki('issue', 'server', 'agg', '--host', 'h', env={'MFL_FAULT': 'before-write:6:enospc'}, code=1)
    assert 'No space left' in run.stderr and tree(ca.dir) == before
    ca.pki('issue', 'server', 'agg', '--host', 'h')


def test_export(folder, ca):
    ca.pki('issue', 'server', '--host', 'agg')
    ca.pki('issue', 'daemon', 'site-a')
    path = os.path.join(folder, 's.tar')
    os.umask(0)
    try:
        assert b'Delete the archive' in ca.pki('export', 'site-a', '--tar', path)
    finally:
        os.umask(0o022)
    assert mode(path) == 0o600
    with tarfile.open(path) as t:
        members = {m.name: (m.mode, m.isdir()) for m in t}
        assert members == {'site-a': (0o700, True), 'site-a/cert.pem': (0o644, False),
                           'site-a/ca.pem': (0o644, False), 'site-a/key.pem': (0o600, False)}
        with open(ca.path('issued', 'site-a', 'key.pem'), 'rb') as f:
            assert t.extractfile('site-a/key.pem').read() == f.read()
    ca.pki('export', 'site-a', '--tar', path, code=6)
    ca.pki('export', 'nobody', '--tar', path + '2', code=4)
    ca.pki('export', 'site-a', code=2)
    names = subprocess.run(['tar', 'tf', '-'], input=ca.pki('export', 'server', '--tar', '-'), capture_output=True,
                           check=True, timeout=30).stdout.split()
    assert names == [b'server/', b'server/cert.pem', b'server/ca.pem', b'server/crl.pem', b'server/key.pem']


def test_command_line(folder, ca):
    before = tree(ca.dir)
    for args, code, says in (
            (['issue', 'boss', 'x'], 2, 'is not a role'), (['issue', 'daemon'], 2, 'the name is missing'),
            (['issue', 'daemon', '../x'], 2, 'is not a name'), (['issue', 'daemon', 'x' * 64], 2, 'is not a name'),
            (['issue', 'operator', 'local'], 2, 'another name'), (['issue', 'server'], 2, '--host'), (['issue', 'server', '--host', 'a:1'], 2, 'no port'),
            (['issue', 'daemon', 'x', '--host', 'a'], 2, "a server's"),
            (['issue', 'server', '--host', 'a', '--role', 'admin'], 2, 'have other roles'),
            (['issue', 'operator', 'x', '--site', 'a'], 2, "a daemon's"),
            (['issue', 'daemon', 'x', '--site', 'a b'], 2, '--site'),
            (['issue', 'daemon', 'x', '--role', 'server'], 2, '--role'), (['issue', 'daemon', 'x', '--days', '0'], 2, '1..36500'),
            (['revoke', 'x', '--new-key'], 2, 'takes no --new-key'), (['destroy'], 2, 'knows no'),
            (['show', 'x'], 4, 'no certificate'), (['init'], 6, 'already'), (['revoke'], 2, 'usage: mfl pki revoke'),
            (['crl', 'x'], 2, 'usage: mfl pki crl')):
        ca.pki(*args, code=code)
        assert says in run.stderr, (args, run.stderr)
    assert tree(ca.dir) == before
    assert json.loads(ca.pki('issue', 'boss', 'x', '--json', code=2))['error']['code'] == 'usage'
    run('show', '--dir', folder + '/none', code=4)
    out = run('init', 'My CA', env={'HOME': folder, 'XDG_CONFIG_HOME': ''}).decode()
    assert folder + '/.config/mfl/pki' in out and "'My CA'" in out
    run('issue', 'daemon', 'a', env={'XDG_CONFIG_HOME': folder + '/.config'})


def test_damaged_directory(ca):
    ca.pki('issue', 'daemon', 'a')
    for name, says in (('index.json', 'index.json:1'), ('ca.pem', 'ca.pem: not a certificate'),
                       ('ca.key', 'ca.key: not a private key')):
        with open(ca.path(name), 'rb') as f:
            good = f.read()
        with open(ca.path(name), 'wb') as f:
            f.write(b'x' + good[40:])
        before = tree(ca.dir)
        ca.pki('issue', 'daemon', 'b', code=5)
        assert says in run.stderr and tree(ca.dir) == before
        with open(ca.path(name), 'wb') as f:
            f.write(good)
    ca.pki('issue', 'daemon', 'b')


# ---- with a server, a daemon and an operator ----

def lines_for(out, where):
    """The lines that a command prints for one place, as a dict."""
    part = out.split('\nFor %s:\n' % where)[1].split('\n\n')[0]
    if where.endswith('.yaml'):
        return {k: v.strip('"') for k, v in re.findall(r'^  (\w+): (.*)$', part, re.M)}
    return {k: v.strip("'") for k, v in re.findall(r'^  export (\w+)=(.*)$', part, re.M)}


class Person:
    """Somebody who pastes what `mfl pki issue` told into the environment."""

    def __init__(self, cluster, out):
        self.cluster, self.env = cluster, lines_for(out.decode(), 'the environment of mfl')

    def mfl(self, *argv, status=0):
        options = [x for o in ('ca', 'cert', 'key') for x in ('--tls-' + o, self.env['MFL_TLS_' + o.upper()])]
        return self.cluster.mfl(*argv, *options, status=status)


def reload(cluster):
    seen = cluster.server.log().count('read again')
    cluster.server.signal(signal.SIGHUP)
    mfl_harness.wait_until(lambda: cluster.server.log().count('read again') > seen, 10, 'the reload')


def test_full_run(folder, ca):
    out = ca.pki('issue', 'server', '--host', 'localhost', '--host', '127.0.0.1').decode()
    daemon = lines_for(ca.pki('issue', 'daemon', 'site-a').decode(), 'client.yaml')
    assert daemon.pop('name') == 'site-a'
    with mfl_harness.Cluster(os.path.join(folder, 'c'), lines_for(out, 'server.yaml')) as c:
        c.start_server()
        alice = Person(c, ca.pki('issue', 'operator', 'alice'))
        vic = Person(c, ca.pki('issue', 'viewer', 'vic'))
        # The same keys, as environment: the daemon has the names of client.yaml in capitals.
        c.start_daemon('site-a', env={'MFL_' + k.upper(): v for k, v in daemon.items()})
        job = c.write('job.yaml', mfl_harness.job_text())
        alice.mfl('submit', job, '--watch')
        assert 'may only look' in vic.mfl('submit', job, status=5).stderr
        assert 'site-a' in vic.mfl('daemons').stdout
        # Revoked: in force from the reload on, and for the one who is meant only.
        ca.pki('revoke', 'alice')
        reload(c)
        assert 'it is revoked' in alice.mfl('list', status=3).stderr
        # It tells the client first, and then its log.
        mfl_harness.wait_until(lambda: 'certificate revoked' in c.server.log(), 20, 'the line of the log')
        vic.mfl('list')
        # Renewed: the files are where they were, so a reload is all that it takes.
        ca.pki('renew', 'server', '--new-key', '--revoke-old')
        ca.pki('renew', 'vic')
        reload(c)
        vic.mfl('list')
        alice = Person(c, ca.pki('issue', 'operator', 'alice'))
        reload(c)
        alice.mfl('submit', job, '--watch')
        assert c.server.log().count('daemon site-a is up') == 1
        # A daemon with a certificate of another name is refused.
        other = c.start_daemon('site-b', env={'MFL_' + k.upper(): v for k, v in daemon.items()})
        mfl_harness.wait_until(lambda: "'site-b'" in other.log(), 15, 'the line about the name')
