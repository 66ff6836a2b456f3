# SPDX-License-Identifier: Apache-2.0
"""TLS with real processes: the same bits as without, who may do what, certificates that are refused, renewed or revoked while
jobs run, and strangers who only waste time."""
import os
import shutil
import socket
import ssl

import pytest

import mfl_certs
import mfl_harness as h
import mfl_wire as w
from mfl_tls import TlsCluster

DENIED = w.ENUM_VALUE['FAILURE_DENIED']
PEOPLE = {'ann': ['operator'], 'bob': ['operator'], 'root': ['operator', 'admin'], 'vic': ['viewer'], 'd1': ['daemon'],
          'd2': ['daemon'], 'nobody': []}


@pytest.fixture(scope='module')
def ca(tmp_path_factory):
    ca = mfl_certs.Ca(tmp_path_factory.mktemp('ca'))
    ca.server()
    ca.pairs = {name: ca.issue(name, roles) for name, roles in PEOPLE.items()}
    ca.pairs['north1'] = ca.issue('north1', ['daemon'], site='north')
    return ca


@pytest.fixture(scope='module')
def cluster(ca, tmp_path_factory):
    with TlsCluster(tmp_path_factory.mktemp('tls'), ca) as c:
        c.start_server()
        c.start_daemon('d1')
        c.start_daemon('d2')
        c.wait_daemons(2)
        yield c


@pytest.fixture(scope='module')
def plain_digests(tmp_path_factory):
    with h.start_cluster(tmp_path_factory.mktemp('plain'), 2) as c:
        c.wait_daemons(2)
        return c.run_job(rounds=4)[1]


def refusal(call):
    with pytest.raises(w.Failure) as e:
        call()
    return e.value


# ---- the same as without ----

def test_same_digests_as_plain(cluster, plain_digests):
    job, digests = cluster.run_job(rounds=4)
    assert digests == plain_digests
    out = cluster.mfl_json('pull', job, '-o', os.path.join(cluster.dir, 'm.safetensors'))
    assert out['digest'] == digests[-1] == h.params_digest(out['file'])


def test_any_address_may_be_listened_on(ca, tmp_path):
    with TlsCluster(tmp_path, ca) as c:
        c.address = '0.0.0.0:0'
        c.start_server()
        assert 'WITHOUT' not in c.server.log() and 'with TLS' in c.server.log()


def test_missing_files_stop_the_start(ca, tmp_path):
    with TlsCluster(tmp_path, ca) as c:
        os.chmod(c.key, 0o644)
        server = c.start_server(ready=False)
        assert server.wait(10) == 78
        assert 'chmod 600' in server.log()
    with h.Cluster(tmp_path / 'half', {'tls_cert': '/x.pem'}) as c:
        server = c.start_server(ready=False)
        assert server.wait(10) == 78 and 'tls_key is missing' in server.log()


# ---- roles ----

def test_a_viewer_looks_and_changes_nothing(cluster):
    job, _ = cluster.run_job(rounds=1)
    with cluster.operator(name='vic') as o:
        assert o.info(job)['owner'] == 'ann'
        assert o.rounds(job) and o.daemons()
        for kind, body in (('submit', {'text': h.job_text(), 'file': 'j'}), ('stop_job', {'job': job}), ('delete_job', {'job': job}),
                           ('archive_job', {'job': job}), ('archive_job', {'job': job, 'undo': True}),
                           ('clone_job', {'job': job}), ('drain', {'daemon': 'd1'}), ('list_audit', {})):
            failure = refusal(lambda k=kind, b=body: o.request(k, b))
            assert failure.code == DENIED and 'vic' in failure.text and 'OU=operator' in failure.text
        o.jobs()  # the connection is as good as before
    done = cluster.mfl('submit', cluster.write('job.yaml', h.job_text()), name='vic', status=5)
    assert 'may only look' in done.stderr
    assert cluster.mfl_json('pull', job, '-o', os.path.join(cluster.dir, 'v.safetensors'), name='vic')['job'] == job


@pytest.mark.parametrize('name,role,hello,words', [
    ('d1', 'ROLE_OPERATOR', {}, ['d1', 'OU=operator']),
    ('nobody', 'ROLE_OPERATOR', {}, ['no role']),
    ('ann', 'ROLE_DAEMON', {'name': 'ann'}, ['OU=daemon']),
    ('d1', 'ROLE_DAEMON', {'name': 'd2'}, ["'d2'", "'d1'"]),
    ('d1', 'ROLE_DAEMON', {'name': 'd1-gpu'}, ['d1-gpuN']),
    ('d1', 'ROLE_DAEMON', {'name': 'd1-gpu0x'}, ['d1-gpuN']),
    ('d1', 'ROLE_DAEMON', {'name': 'd1-GPU-'}, ['d1-gpuN']),
    ('d1', 'ROLE_DAEMON', {'name': 'd1-GPU-5dxy'}, ['d1-gpuN']),
    ('d1', 'ROLE_DAEMON', {'name': 'd1-cpu2'}, ['d1-gpuN']),
    ('d1', 'ROLE_DAEMON', {'name': 'd1', 'site': 'north'}, ["'north'", 'no O', 'mfl pki issue daemon d1 --site north']),
    ('north1', 'ROLE_DAEMON', {'name': 'north1', 'site': 'south'}, ["'south'", 'O=north']),
])
def test_hello_must_match_the_certificate(cluster, name, role, hello, words):
    if role == 'ROLE_DAEMON':
        hello = dict(hello, instance=5, node='n', backend='reference', device='x', workers=1, data_sets=cluster.data_sets())
    with cluster.connect(name) as c:
        c.send('hello', w.hello(role, **hello))
        reason = c.until_closed()
        assert all(word in reason for word in words), reason


@pytest.mark.parametrize('name', ['d1-gpu12', 'd1-cpu', 'd1-GPU-5d1c2b3a', 'd1-MIG-0f-3'])
def test_daemons_of_one_host_share_a_certificate(cluster, name):
    with cluster.connect('d1') as c:
        c.send('hello', w.hello('ROLE_DAEMON', name=name, instance=5, node='n', backend='reference', device='x', workers=1,
                                data_sets=cluster.data_sets()))
        c.expect('welcome')


def test_a_daemon_of_a_wrong_site_reads_why(cluster):
    """As its administrator sees it: the certificate's site and what to write; with the right one it is in."""
    bad = cluster.start_daemon('north1', more=['--site', 'south'])
    h.wait_until(lambda: 'O=north' in bad.log() and "'south'" in bad.log(), 20, 'the refusal')
    assert not any(d['name'] == 'north1' for d in cluster.mfl_json('daemons')['daemons'])
    bad.kill()
    cluster.start_daemon('north1', more=['--site', 'north'])
    cluster.wait_daemons(3)
    cluster.daemons.pop('north1').kill()
    cluster.wait_daemons(2)


def test_the_certificate_names_the_site(cluster):
    """A certificate of a site also lets the daemon be a site by itself."""
    for site in ('north', ''):
        with cluster.connect('north1') as c:
            c.send('hello', w.hello('ROLE_DAEMON', name='north1', site=site, instance=5, node='n', backend='reference',
                                    device='x', workers=1, data_sets=cluster.data_sets()))
            c.expect('welcome')


def test_jobs_have_owners(cluster):
    with cluster.operator() as ann, cluster.operator(name='bob') as bob, cluster.operator(name='root') as root:
        job = ann.submit(h.job_text(name='owned', data={'name': 'elsewhere'}))
        for kind in ('stop_job', 'clone_job', 'archive_job', 'delete_job'):
            failure = refusal(lambda k=kind: bob.request(k, {'job': job}))
            assert failure.code == DENIED and "'ann'" in failure.text and 'OU=admin' in failure.text
        assert ann.info(job)['state'] == w.ENUM_VALUE['JOB_WAITING']
        copy = ann.request('clone_job', {'job': job})['job']
        ann.request('stop_job', {'job': job})
        root.request('stop_job', {'job': copy})
        assert 'root' in bob.info(copy)['reason']
        h.wait_until(lambda: root.request('delete_job', {'job': job}), 5, 'the deletion')
    entries = cluster.mfl_json('audit', '--last', 1000, name='bob')['entries']
    seen = [(e['who'], e['action'], e['object'], e['result']) for e in entries]
    for row in (('ann', 'submit', job, 'done'), ('bob', 'stop', job, 'refused'), ('bob', 'delete', job, 'refused'),
                ('ann', 'clone', copy, 'done'), ('ann', 'stop', job, 'done'), ('root', 'stop', copy, 'done'),
                ('root', 'delete', job, 'done')):
        assert row in seen
    assert [e['seq'] for e in entries] == sorted(e['seq'] for e in entries)
    assert all(e['address'].startswith('127.0.0.1:') for e in entries)
    assert job in cluster.mfl('audit').stdout
    assert 'audit needs OU=operator' in cluster.mfl('audit', name='vic', status=5).stderr


def test_a_token_is_its_operator_s(cluster):
    """What bob has sent is no answer for ann, whatever word both chose."""
    mine, his = cluster.write('mine.yaml', h.job_text(name='mine', rounds=1)), cluster.write('his.yaml', h.job_text(name='his', rounds=1))
    first = cluster.mfl_json('submit', his, '--token', 'nightly', name='bob')
    second = cluster.mfl_json('submit', mine, '--token', 'nightly', name='ann')
    assert first['job'] != second['job'] and not second['existed']
    assert cluster.mfl_json('submit', his, '--token', 'nightly', name='bob')['job'] == first['job']
    assert second['job'] in cluster.mfl('submit', his, '--token', 'nightly', name='ann', status=6).stderr
    for job in (first, second):
        cluster.wait_job(job['job'])


def test_plain_loopback_is_an_admin_named_local(tmp_path):
    with h.start_cluster(tmp_path, 1) as c:
        c.wait_daemons(1)
        job, _ = c.run_job(rounds=1)
        assert c.info(job)['owner'] == 'local'
        c.mfl('delete', job)
        c.mfl('drain', 'd1')
        seen = [(e['who'], e['action'], e['object']) for e in c.mfl_json('audit')['entries']]
        assert seen == [('local', 'submit', job), ('local', 'delete', job), ('local', 'drain', 'd1')]


def test_run_needs_no_certificate(ca, tmp_path):
    """Its server is its own; certificates for another one, in the home directory or named, are of no concern."""
    home = tmp_path / 'home' / '.config' / 'mfl'
    home.mkdir(parents=True)
    for source, name in ((ca.ca, 'ca.pem'), (ca.pairs['ann'][0], 'cert.pem'), (ca.pairs['ann'][1], 'key.pem')):
        shutil.copy(source, home / name)
    job = tmp_path / 'job.yaml'
    job.write_text(h.job_text(rounds=1))
    env = {'HOME': str(tmp_path / 'home'), 'XDG_CONFIG_HOME': '', 'MFL_TLS_CA': ca.ca}
    done = h.mfl('run', job, '--data', h.TINY, '--backend', 'reference', '--daemons', 1, cwd=str(tmp_path), env=env)
    assert 'done' in done.stdout


def test_certificates_in_the_home_directory(cluster, ca, tmp_path):
    home = tmp_path / '.config' / 'mfl'
    home.mkdir(parents=True)
    for source, name in ((ca.ca, 'ca.pem'), (ca.pairs['ann'][0], 'cert.pem')):
        shutil.copy(source, home / name)
    at_home = {'HOME': str(tmp_path), 'XDG_CONFIG_HOME': ''}
    done = h.mfl('list', server=cluster.address, env=at_home, status=2)
    assert 'key.pem' in done.stderr
    shutil.copy(ca.pairs['ann'][1], home / 'key.pem')
    assert h.mfl('list', server=cluster.address, env=at_home).stdout
    done = h.mfl('list', server=cluster.address, env={**at_home, 'MFL_TLS_KEY': ca.pairs['bob'][1]}, status=5)
    assert 'does not belong to' in done.stderr


# ---- certificates that are refused ----

def handshake(c, context):
    """The client's error, or None: a server's refusal comes with the first read in TLS 1.3."""
    try:
        with w.Connection(c.address, 5, context) as connection:
            connection.send('hello', w.hello())
            connection.expect('welcome')
    except (ssl.SSLError, w.Closed, ConnectionError) as e:
        return str(e)
    return None


def test_refused_certificates_are_told_on_both_sides(cluster, ca, tmp_path):
    other = mfl_certs.Ca(tmp_path / 'other', 'Other CA')
    foreign = other.issue('ann', ['operator'])
    ours = ca.python(foreign)  # trusts our server, shows the other CA's certificate
    cases = [(ours, 'UNKNOWN_CA', 'unable to get local issuer'), (ca.python(), 'CERTIFICATE_REQUIRED', 'showed no certificate'),
             (ca.python(ca.issue('old', ['operator'], begin=-9, end=-2)), 'CERTIFICATE_EXPIRED', 'has expired'),
             (ca.python(ca.issue('new', ['operator'], begin=5)), 'BAD_CERTIFICATE', 'not yet valid')]
    for context, client_says, server_says in cases:
        error = handshake(cluster, context)
        assert error and client_says in error, error
        h.wait_until(lambda s=server_says: s in cluster.server.log(), 5, 'the log line ' + server_says)
    # The other way round: mfl does not trust a server of another CA, or for another name, or its own broken files.
    cert, key = ca.pairs['ann']
    done = h.mfl('list', '--tls-ca', other.ca, '--tls-cert', cert, '--tls-key', key, server=cluster.address, status=3)
    assert 'is refused' in done.stderr
    h.wait_until(lambda: 'does not know the CA' in cluster.server.log(), 5, "the server's line about its CA")
    done = h.mfl('list', '--tls-ca', ca.ca, '--tls-cert', cert, '--tls-key', ca.pairs['bob'][1], server=cluster.address, status=5)
    assert 'does not belong to' in done.stderr
    done = cluster.mfl('list', '--server', '127.0.0.2:' + cluster.address.split(':')[1], status=3)
    assert done.stderr
    assert cluster.mfl('list').stdout


def test_who_speaks_without_tls_is_told(cluster, tmp_path, ca):
    done = h.mfl('list', '--plain', server=cluster.address, status=3)
    assert 'requires TLS' in done.stderr
    with h.Cluster(tmp_path) as c:
        c.start_server()
        cert, key = ca.pairs['ann']
        done = c.mfl('list', '--tls-ca', ca.ca, '--tls-cert', cert, '--tls-key', key, status=3)
        assert 'the server speaks plain TCP' in done.stderr
        h.wait_until(lambda: 'looks like TLS' in c.server.log(), 20, 'the log line')  # told the client first


def test_a_certificate_is_revoked_by_a_reload(ca, tmp_path):
    pair = ca.issue('eve', ['operator'])
    crl = str(tmp_path / 'crl.pem')
    shutil.copy(ca.revoke(), crl)
    with TlsCluster(tmp_path / 'c', ca, tls_crl=crl) as c:
        c.start_server()
        assert handshake(c, ca.python(pair)) is None
        shutil.copy(ca.revoke(pair[0]), crl)
        c.reload()
        assert 'REVOKED' in handshake(c, ca.python(pair))
        h.wait_until(lambda: 'certificate revoked' in c.server.log(), 20, 'the log line')
        done = h.mfl('list', '--tls-ca', ca.ca, '--tls-cert', pair[0], '--tls-key', pair[1], server=c.address, status=3)
        assert 'the peer refuses our certificate: it is revoked' in done.stderr
        assert handshake(c, ca.python(ca.pairs['ann'])) is None


# ---- while a job runs ----

def test_certificates_are_renewed_under_load(ca, tmp_path, plain_digests):
    """Reloads with new, broken and restored files while rounds go on: no connection ends, no round is lost."""
    with TlsCluster(tmp_path, ca) as c:
        c.start_server()
        c.start_daemon('d1')
        c.start_daemon('d2')
        c.wait_daemons(2)
        job = c.submit(rounds=40)
        for i in range(6):
            c.info(job)
            ca.server(file='server%d' % (i % 2))
            c.install('server%d' % (i % 2))
            if i == 3:
                c.write('server.key', 'broken')
                os.chmod(c.key, 0o600)
            c.reload()
        assert 'the certificates stay as they were' in c.server.log()
        info = c.wait_job(job, 100)
        assert info['round'] == 40
        assert c.digests(job)[:4] == plain_digests
        for name in ('d1', 'd2'):
            assert c.server.log().count('daemon %s is up' % name) == 1
        with c.operator() as o:
            results = [e['result'] for e in o.request('list_audit', {})['entries'] if e['action'] == 'reload']
        assert results.count('failed') == 1 and results.count('done') == 5


def test_a_daemon_reads_its_renewed_certificate(ca, tmp_path):
    """What it shows counts at each connection: after a restart of the server the new one is in use."""
    with TlsCluster(tmp_path, ca) as c:
        cert, key = str(tmp_path / 'd.pem'), str(tmp_path / 'd.key')
        for source, target in zip(ca.issue('d1', ['daemon'], file='short'), (cert, key)):
            shutil.copy(source, target)
        c.start_server()
        d = c.start_daemon('d1', pair=(cert, key))
        c.wait_daemons(1)
        shutil.copy(ca.pairs['d2'][0], cert)  # first one that does not fit its key: told, and tried again
        c.server.stop()
        c.start_server()
        h.wait_until(lambda: 'does not belong to' in d.log(), 15, 'the line about the key')
        for source, target in zip(ca.pairs['d1'], (cert, key)):
            shutil.copy(source, target)
        c.wait_daemons(1, 20)
        assert d.alive()


def test_strangers_leave_a_running_job_alone(ca, tmp_path, plain_digests):
    """Garbage, half-open and slow handshakes by the hundred, from an address that may have 64 unfinished ones."""
    with TlsCluster(tmp_path, ca) as c:
        c.start_server()
        c.start_daemon('d1')
        c.start_daemon('d2')
        c.wait_daemons(2)
        job = c.submit(rounds=40)
        host, port = c.address.split(':')
        noise = [b'', b'\x16', b'\x16\x03\x01\x02\x00\x01\x00', b'GET / HTTP/1.1\r\n\r\n', b'MFL1' + bytes(20), os.urandom(700)]
        sockets = []
        for i in range(400):
            s = socket.create_connection((host, int(port)), 5)
            s.setblocking(False)
            try:
                s.send(noise[i % len(noise)])
            except OSError:
                pass
            sockets.append(s)
            if i % 3 == 2:
                sockets.pop(0).close()

        def told():
            """The server says so many things about connections a second and leaves out others, so one more is refused each time."""
            sockets.append(socket.create_connection((host, int(port)), 5))
            return 'have not greeted yet' in c.server.log()
        h.wait_until(told, 10, 'the line about the limit')
        for s in sockets:
            s.close()
        info = c.wait_job(job, 100)
        assert info['round'] == 40
        assert c.digests(job)[:4] == plain_digests
        assert c.server.log().count('is up') == 2
        assert c.server.log().count('closed before it had greeted') < 200  # the log is bounded
