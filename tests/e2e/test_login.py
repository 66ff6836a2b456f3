# SPDX-License-Identifier: Apache-2.0
"""Logging in to the dashboard with a code of the command line, and what people then do from a browser, with the protocol's roles."""
import http.client
import json
import os
import shutil
import socket
import ssl
import struct
import subprocess

import pytest

import mfl_certs
import mfl_harness as h
import mfl_needs
from mfl_browser import Browser
from mfl_pages import CHROMIUM, address_of
from mfl_tls import TlsCluster

ELSEWHERE = {'data': {'name': 'elsewhere'}}


@pytest.fixture(scope='module')
def people(tmp_path_factory):
    ca = mfl_certs.Ca(tmp_path_factory.mktemp('ca'))
    ca.server()
    ca.pairs = {name: ca.issue(name, roles) for name, roles in
                {'ann': ['operator'], 'bob': ['operator'], 'vic': ['viewer'], 'd1': ['daemon']}.items()}
    with TlsCluster(tmp_path_factory.mktemp('login'), ca, http='127.0.0.1:0') as c:
        c.start_server()
        c.start_daemon('d1')
        c.wait_daemons(1)
        yield c


def ask(c, path, method='GET', body=None, headers=None):
    """(status, headers, JSON or bytes)"""
    connection = http.client.HTTPConnection(address_of(c), timeout=20)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        data = answer.read()
        return answer.status, answer.headers, json.loads(data) if answer.headers['Content-Type'] == 'application/json' else data
    finally:
        connection.close()


class Login:
    """Of a name; asks with the cookie and the CSRF token."""

    def __init__(self, c, name, *options):
        self.c = c
        self.issued = json.loads(c.mfl('login', 'issue', '--json', *options, name=name).stdout)
        status, headers, self.told = ask(c, '/api/login', 'POST', self.issued['code'], {'X-MFL-CSRF': 'login'})
        assert status == 200, self.told
        self.set_cookie = headers['Set-Cookie']
        self.cookie = self.set_cookie.split(';')[0]

    def get(self, path):
        return ask(self.c, path, headers={'Cookie': self.cookie})

    def post(self, path, body='', **more):
        headers = {'Cookie': self.cookie, 'X-MFL-CSRF': self.told['csrf'], **more}
        status, _, data = ask(self.c, path, 'POST', body, {k: v for k, v in headers.items() if v is not None})
        return status, data


@pytest.fixture(scope='module')
def ann(people):
    return Login(people, 'ann')


def test_a_code_works_once_and_the_cookie_is_strict(people):
    one = Login(people, 'ann', '--for', '30m')
    assert one.issued['url'] == 'http://%s/login#%s' % (address_of(people), one.issued['code']) and len(one.issued['code']) == 64
    assert one.told['who'] == 'ann' and one.told['roles'] == 'operator' and one.told['may_change'] and 1700 < one.told['seconds'] <= 1800
    assert one.issued['code'] not in one.set_cookie
    attributes = [a.strip() for a in one.set_cookie.split(';')[1:]]
    assert {'HttpOnly', 'SameSite=Strict', 'Path=/'} <= set(attributes) and 'Secure' not in attributes  # no TLS here
    for code in (one.issued['code'], 'f' * 64, '', 'x', 'g' * 5000):
        status, _, data = ask(people, '/api/login', 'POST', code, {'X-MFL-CSRF': 'login'})
        assert status == 401 and 'mfl login issue' in data['error']
    # A code is no cookie, and a cookie is no code.
    issued = json.loads(people.mfl('login', 'issue', '--json').stdout)['code']
    assert ask(people, '/api/login', headers={'Cookie': one.cookie.split('=')[0] + '=' + issued})[0] == 401
    assert ask(people, '/api/login', 'POST', one.cookie.split('=')[1], {'X-MFL-CSRF': 'login'})[0] == 401
    assert one.get('/api/login')[0] == 200


def test_a_login_ends(people):
    short, other = Login(people, 'bob', '--for', '6s'), Login(people, 'bob')
    h.wait_until(lambda: short.get('/api/login')[0] == 401, 20, 'the end of six seconds')
    assert short.post('/api/jobs', h.job_text(name='late')) == (401, {'error': 'this login has ended: mfl login issue makes a code for another one'})
    assert other.post('/api/logout')[0] == 200 and other.get('/api/login')[0] == 401
    third, anns = Login(people, 'bob'), Login(people, 'ann')
    assert '1 login ended' in people.mfl('login', 'end', name='bob').stdout
    assert third.get('/api/login')[0] == 401 and anns.get('/api/login')[0] == 200
    assert ask(people, '/api/login')[2] == {'error': 'nobody is logged in: mfl login issue makes a code'}
    assert ask(people, '/api/login', 'POST', 'f' * 64, {'X-MFL-CSRF': 'login'})[0] == 401
    assert 'at most 1d' in people.mfl('login', 'issue', '--for', '2d', status=2).stderr
    seen = [(e['who'], e['action'], e['text']) for e in json.loads(people.mfl('audit', '--json', '--last', 1000).stdout)['entries']]
    assert ('', 'login', 'a code that is unknown, used, or too old') in seen
    assert ('bob', 'login', 'by a browser') in seen and ('bob', 'logout', '1 login ended') in seen


def test_a_job_from_submit_to_its_model(people, ann, tmp_path):
    """The file that a browser gets is the one that `mfl pull` writes."""
    token = 'token-%d' % os.getpid()
    text = h.job_text(name='by-browser', rounds=2)
    status, told = ann.post('/api/jobs', text, **{'X-MFL-Token': token})
    assert status == 200 and not told['existed']
    job = told['job']
    assert ann.post('/api/jobs', text, **{'X-MFL-Token': token}) == (200, {'job': job, 'existed': True})
    assert ann.post('/api/jobs', text + '# other\n', **{'X-MFL-Token': token})[0] == 409
    people.wait_job(job)
    shown = json.loads(people.mfl('show', job, '--json').stdout)
    assert shown['text'] == text and shown['job']['owner'] == 'ann'
    for which, name in (('newest', 'last'), ('1', '1'), ('best', 'best')):
        status, headers, data = ann.get('/api/jobs/%s/model/%s' % (job, which))
        path = tmp_path / (name + '.safetensors')
        people.mfl('pull', job, '--round', name, '--output', path)
        assert status == 200 and data == path.read_bytes()
        assert headers['Content-Disposition'].startswith('attachment; filename="%s-round-' % job)
    assert ann.get('/api/jobs/%s/model/99' % job)[0] == 404 and ann.get('/api/jobs/j-999999/model/best')[0] == 404
    assert ask(people, '/api/jobs/%s/model/best' % job)[0] == 401  # not for everybody
    status, told = ann.post('/api/jobs/%s/clone' % job)
    assert status == 200 and json.loads(people.mfl('show', told['job'], '--json').stdout)['text'] == text
    people.wait_job(told['job'])
    rows = [(e['who'], e['action'], e['object'], e['result'], e['address']) for e in
            json.loads(people.mfl('audit', '--json', '--last', 1000).stdout)['entries']]
    assert ('ann', 'submit', job, 'done', 'http 127.0.0.1') in rows and ('ann', 'clone', told['job'], 'done', 'http 127.0.0.1') in rows


def test_stop_now_and_after_a_round(people, ann):
    job = ann.post('/api/jobs', h.job_text(name='waits', **ELSEWHERE))[1]['job']
    assert ann.post('/api/jobs/%s/stop' % job) == (200, {'done': 'stopped'})
    people.wait_job(job, state='stopped')
    job = ann.post('/api/jobs', h.job_text(name='long', rounds=1000))[1]['job']
    people.wait_info(job, lambda i: i['round'] >= 1, 30, 'a round')
    status, told = ann.post('/api/jobs/%s/stop-after-round' % job)
    assert status == 200 and told['done'].startswith(('stops after round', 'stopped'))
    people.wait_job(job, state='stopped')


def test_a_wrong_job_file_is_told_as_the_command_line_does(people, ann):
    text = 'name: wrong\nmodel: {preset: nonsense}\n'
    status, told = ann.post('/api/jobs', text)
    assert status == 400 and told['error'].startswith('job.yaml:2: model.preset: ')
    people.write('job.yaml', text)
    assert told['error'] in people.mfl('submit', 'job.yaml', status=None).stderr
    assert ann.post('/api/jobs', '')[0] == 400
    assert ann.post('/api/jobs', b'name: a\0b')[1]['error'] == 'job.yaml: it has a zero byte'
    assert ann.post('/api/jobs', b'\xff\xfe')[0] == 400
    status, told = ann.post('/api/jobs', h.job_text(model={'preset': 'logistic', 'initial': 'x.safetensors'}))
    assert status == 400 and 'model.initial' in told['error']


def test_roles_are_those_of_the_protocol(people, ann):
    viewer, bob = Login(people, 'vic'), Login(people, 'bob')
    job = ann.post('/api/jobs', h.job_text(name='anns', **ELSEWHERE))[1]['job']
    assert not viewer.told['may_change'] and viewer.told['roles'] == 'viewer'
    for who, path in ((viewer, '/api/jobs'), (viewer, '/api/jobs/%s/stop' % job), (viewer, '/api/jobs/%s/clone' % job),
                      (bob, '/api/jobs/%s/stop' % job), (bob, '/api/jobs/%s/stop-after-round' % job), (bob, '/api/jobs/%s/clone' % job)):
        status, told = who.post(path, h.job_text(name='not-me') if path == '/api/jobs' else '')
        assert status == 403 and ('may only look' in told['error'] if who is viewer else "belongs to 'ann'" in told['error'])
    assert ann.post('/api/jobs/j-999999/stop')[0] == 404
    assert ann.post('/api/jobs/%s/stop' % job)[0] == 200
    refused = [(e['who'], e['action']) for e in json.loads(people.mfl('audit', '--json', '--last', 1000).stdout)['entries'] if e['result'] == 'refused']
    assert {('vic', 'submit'), ('vic', 'stop'), ('vic', 'clone'), ('bob', 'stop'), ('bob', 'clone')} <= set(refused)


def test_what_a_page_of_another_site_can_send_is_refused(people, ann):
    """It has the cookie at most: no header of its own, or a browser that says where the request is from."""
    before = len(json.loads(people.mfl('list', '--json').stdout)['jobs'])
    text = h.job_text(name='forged')
    assert ann.post('/api/jobs', text, **{'X-MFL-CSRF': None})[0] == 403
    assert ann.post('/api/jobs', text, **{'X-MFL-CSRF': 'login'})[0] == 403
    assert ann.post('/api/jobs', text, **{'X-MFL-CSRF': 'a' * 64})[0] == 403
    assert ann.post('/api/jobs', text, **{'X-MFL-CSRF': Login(people, 'ann').told['csrf']})[0] == 403  # of another login
    for site in ('cross-site', 'same-site', 'none'):
        assert ann.post('/api/jobs', text, **{'Sec-Fetch-Site': site})[0] == 403
    assert ann.post('/api/jobs', text, Host='evil.example')[0] == 403
    assert ask(people, '/api/jobs', 'POST', text, {'X-MFL-CSRF': ann.told['csrf']})[0] == 401  # no cookie
    assert ask(people, '/api/jobs/j-000001/stop')[0] == 404  # GET changes nothing
    assert ask(people, '/api/daemons', 'POST', '', {'X-MFL-CSRF': 'x'})[0] == 405
    assert ask(people, '/api/login', 'OPTIONS')[0] == 405  # a preflight: no page of another origin may go on
    assert len(json.loads(people.mfl('list', '--json').stdout)['jobs']) == before


def test_bodies_have_a_limit(people, ann):
    size = 256 * 1024
    assert ann.post('/api/jobs', b'#' * (size + 1))[0] == 413
    status, told = ann.post('/api/jobs', b'#' * size)
    assert status == 400 and 'job.yaml' in told['error']
    host, port = address_of(people).split(':')
    for head in (b'Transfer-Encoding: chunked\r\n', b'Content-Length: 99999999999999999999\r\n', b'Content-Length: -1\r\n', b''):
        with socket.create_connection((host, int(port)), timeout=20) as s:
            s.sendall(b'POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nX-MFL-CSRF: x\r\n' + head + b'\r\n')
            assert s.recv(4096).split()[1:2] in ([b'411'], [b'413'], [b'400'])
    # Half a body, then silence or the end: the server keeps its eight places free.
    for _ in range(20):
        with socket.create_connection((host, int(port)), timeout=20) as s:
            s.sendall(b'POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nX-MFL-CSRF: x\r\nContent-Length: 1000\r\n\r\nname')
    h.wait_until(lambda: ann.post('/api/jobs', b'x')[0] == 400, 20, 'a free place')


def test_a_proxys_name_and_tls(tmp_path):
    """Behind a proxy that speaks TLS the cookie is for TLS alone, and links have the proxy's name."""
    with h.Cluster(tmp_path, {'http': '127.0.0.1:0', 'http_url': 'https://mfl.example.org/'}) as c:
        c.start_server()
        issued = json.loads(c.mfl('login', 'issue', '--json').stdout)
        assert issued['url'].startswith('https://mfl.example.org/login#')
        headers = {'X-MFL-CSRF': 'login', 'Host': 'mfl.example.org', 'Sec-Fetch-Site': 'same-origin'}
        status, got, told = ask(c, '/api/login', 'POST', issued['code'], headers)
        assert status == 200 and told['who'] == 'local'
        assert got['Set-Cookie'].startswith('__Host-mfl-login') and '; Secure' in got['Set-Cookie']
        assert ask(c, '/', headers={'Host': 'other.example.org'})[0] == 403
    for url in ('mfl.example.org', 'https://', 'https://a/b', 'https://a b'):
        with h.Cluster(tmp_path / 'wrong', {'http': '127.0.0.1:0', 'http_url': url}) as c:
            server = c.start_server(ready=False)
            assert server.wait(10) == 78 and 'http_url' in server.log()


class Visitor:
    """Of a port with TLS, with the certificate of a name, or with none."""

    def __init__(self, c, name=None):
        self.c, self.context = c, ssl.create_default_context(cafile=c.ca.ca)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        if name:
            self.context.load_cert_chain(*c.ca.pairs[name])

    def ask(self, path, method='GET', body=None, headers=None):
        connection = http.client.HTTPSConnection(address_of(self.c).replace('127.0.0.1', 'localhost'), timeout=20, context=self.context)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            data = answer.read()
            return answer.status, answer.headers, json.loads(data) if answer.headers['Content-Type'] == 'application/json' else data
        finally:
            connection.close()


@pytest.mark.parametrize('kind', ['server', 'certificates'])
def test_tls_of_the_port(people, tmp_path, kind):
    """People log in with the certificates of their browsers; with `certificates` nobody else sees anything."""
    ca = people.ca
    with TlsCluster(tmp_path, ca, http='127.0.0.1:0', http_tls=kind) as c:
        c.start_server()
        ann, vic, stranger, daemon = Visitor(c, 'ann'), Visitor(c, 'vic'), Visitor(c), Visitor(c, 'd1')
        assert stranger.ask('/healthz')[0] == 200
        assert h.mfl('probe', 'healthz', address_of(c)).stdout == 'ok\n'  # as the probes of containers do, without certificates
        for nobody in (stranger, daemon):
            seen = nobody.ask('/api/jobs')[0]
            assert seen == (403 if kind == 'certificates' else 200)
            status, _, told = nobody.ask('/api/login')
            assert status == 403 if kind == 'certificates' else told == {'error': 'nobody is logged in: mfl login issue makes a code'}
        assert b'mfl_jobs' in ann.ask('/metrics')[2]
        assert ann.ask('/api/login')[2] == {'error': 'nobody is logged in', 'certificate': 'ann'}
        assert ann.ask('/api/login', 'POST', '')[0] == 403  # no X-MFL-CSRF: a page of another site may have sent it
        status, headers, told = ann.ask('/api/login', 'POST', '', {'X-MFL-CSRF': 'login'})
        assert status == 200 and told['who'] == 'ann' and told['may_change'] and '; Secure' in headers['Set-Cookie']
        assert headers['Set-Cookie'].startswith('__Host-mfl-login')
        mine = {'Cookie': headers['Set-Cookie'].split(';')[0], 'X-MFL-CSRF': told['csrf']}
        job = ann.ask('/api/jobs', 'POST', h.job_text(name='by-certificate', **ELSEWHERE), mine)[2]['job']
        told = vic.ask('/api/login', 'POST', '', {'X-MFL-CSRF': 'login'})[2]
        assert told['who'] == 'vic' and not told['may_change']
        assert ann.ask('/api/jobs/%s/delete' % job, 'POST', '', mine)[0] == 409  # it has not ended
        assert ann.ask('/api/jobs/%s/stop' % job, 'POST', '', mine)[0] == 200
        c.wait_job(job, state='stopped')
        assert ann.ask('/api/jobs/%s/delete' % job, 'POST', '', mine)[0] == 200 and ann.ask('/api/jobs/' + job)[0] == 404
        seen = [(e['who'], e['action'], e['text']) for e in json.loads(c.mfl('audit', '--json').stdout)['entries']]
        assert ('ann', 'login', 'by a browser, with a certificate') in seen
        assert json.loads(c.mfl('login', 'issue', '--json').stdout)['url'].startswith('https://')
        ca.server('renewed')  # SIGHUP: the next handshake has it
        c.install('renewed')
        before = ssl.get_server_certificate(tuple(address_of(c).split(':')))
        c.reload()
        h.wait_until(lambda: ssl.get_server_certificate(tuple(address_of(c).split(':'))) != before, 20, 'the new certificate')
        assert ann.ask('/api/login', headers=mine)[0] == 200


def test_a_name_of_a_port_with_tls(people, tmp_path):
    """http_url beside http_tls: links have the name, the name alone is served, and a link that TLS would not answer is refused."""
    with TlsCluster(tmp_path / 'named', people.ca, http='127.0.0.1:0', http_tls='certificates', http_url='https://mfl.example.org:8443') as c:
        c.start_server()
        ann = Visitor(c, 'ann')
        assert json.loads(c.mfl('login', 'issue', '--json').stdout)['url'].startswith('https://mfl.example.org:8443/login#')
        headers = {'X-MFL-CSRF': 'login', 'Host': 'mfl.example.org:8443', 'Sec-Fetch-Site': 'same-origin'}
        status, got, told = ann.ask('/api/login', 'POST', '', headers)
        assert status == 200 and told['who'] == 'ann' and got['Set-Cookie'].startswith('__Host-mfl-login') and '; Secure' in got['Set-Cookie']
        assert ann.ask('/', headers={'Host': 'other.example.org'})[0] == 403
    with TlsCluster(tmp_path / 'plain', people.ca, http='127.0.0.1:0', http_tls='server', http_url='http://mfl.example.org/') as c:
        server = c.start_server(ready=False)
        assert server.wait(10) == 78 and 'with http_tls the port speaks TLS: write https://mfl.example.org' in server.log()


def asked_for(c):
    """What the port tells browsers of the certificates that it takes: the names of their CAs."""
    said = subprocess.run(['openssl', 's_client', '-connect', address_of(c)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=20, check=False).stdout
    return said.partition('Acceptable client certificate CA names')[2].partition('Requested Signature')[0]


def test_the_port_asks_for_certificates_of_a_ca_that_came_later(people, tmp_path):
    """Browsers offer only certificates of the CAs that they are told."""
    trust, other = str(tmp_path / 'trust.pem'), mfl_certs.Ca(tmp_path / 'other', 'Other CA')
    shutil.copy(people.ca.ca, trust)
    with TlsCluster(tmp_path, people.ca, tls_ca=trust, http='127.0.0.1:0', http_tls='server') as c:
        c.start_server()
        assert 'Test CA' in asked_for(c) and 'Other CA' not in asked_for(c)
        with open(other.ca, encoding='ascii') as f, open(trust, 'a', encoding='ascii') as to:
            to.write(f.read())
        c.reload()
        h.wait_until(lambda: 'Other CA' in asked_for(c), 20, 'the new CA')


def test_tls_of_the_port_needs_certificates(tmp_path):
    with h.Cluster(tmp_path, {'http': '127.0.0.1:0', 'http_tls': 'server'}) as c:
        server = c.start_server(ready=False)
        assert server.wait(10) == 78 and 'http_tls: server needs tls_cert, tls_key and tls_ca' in server.log()


def test_no_dashboard_no_login(tmp_path):
    with h.Cluster(tmp_path) as c:
        c.start_server()
        assert 'http' in c.mfl('login', 'issue', status=None).stderr


# ---- a browser ----

in_a_browser = pytest.mark.skipif(not CHROMIUM, reason=mfl_needs.lack('chromium'))


@in_a_browser
def test_a_browser_from_the_link_to_a_stopped_job(people, folder):
    """With the keyboard alone, but for what a confirmation needs."""
    url = 'http://%s' % address_of(people)
    with Browser(folder) as b:
        b.go(url + '/')
        b.wait("document.querySelector('#who a')", 'the offer to log in')
        b.wait("document.getElementById('submit').hidden", 'the page, without a form')
        b.go(json.loads(people.mfl('login', 'issue', '--json').stdout)['url'])
        b.wait("location.pathname === '/' && document.getElementById('who').textContent.includes('ann')", 'the login')
        assert '#' not in b.eval('location.href') and b.eval('document.cookie') == ''  # no script sees the cookie
        b.wait("document.getElementById('submit') && !document.getElementById('submit').hidden", 'the form')
        b.eval("document.querySelector('#submit summary').focus()")
        b.key('Enter')
        b.key('Tab')
        assert b.eval('document.activeElement.id') == 'job-text'
        b.type('name: wrong\nrounds: many\n')
        b.key('Tab')
        b.key('Tab')
        b.key('Enter')
        said = b.wait("document.getElementById('submit-said').textContent", 'the refusal')
        assert 'job.yaml:2' in said and 'rounds' in said
        b.eval("document.getElementById('job-text').value = ''; document.getElementById('job-text').focus()")
        b.type(h.job_text(name='typed', **ELSEWHERE))
        b.key('Tab')
        b.key('Tab')
        b.key('Enter')
        job = b.wait("(document.querySelector('#submit-said a') || {}).textContent", 'the job')
        b.go('%s/jobs/%s' % (url, job))
        b.wait("document.querySelector('[data-act=stop]') && !document.getElementById('acts').hidden", 'the buttons')
        b.eval("document.querySelector('[data-act=stop]').focus()")
        b.key('Enter')
        assert b.wait("document.getElementById('act-said').textContent", 'the answer') == 'stopped'
        people.wait_job(job, state='stopped')
        b.wait("document.querySelector('[data-act=stop]').hidden", 'no more to stop')
        b.eval("document.querySelector('[data-act=archive]').focus()")
        b.key('Enter')
        b.wait("document.querySelector('[data-act=archive]').hidden && !document.querySelector('[data-act=unarchive]').hidden", 'the archive')
        assert job not in people.mfl('list').stdout and job in people.mfl('list', '--archived').stdout
        b.go(url + '/')
        b.wait("(document.querySelector('#jobs [role=status]') || {}).textContent", 'the list of jobs')
        assert not b.eval("document.querySelector('#jobs tbody').textContent.includes('%s')" % job)
        b.eval("const s = document.querySelectorAll('#jobs select')[1]; s.value = 'only'; s.dispatchEvent(new Event('change'))")
        b.wait("document.querySelector('#jobs tbody').textContent.includes('%s')" % job, 'the archived jobs')
        assert b.eval('location.search') == '?archived=only' and 'archived' in b.eval("document.querySelector('#jobs tbody').textContent")
        b.go('%s/jobs/%s' % (url, job))
        b.wait("document.querySelector('[data-act=unarchive]') && !document.querySelector('[data-act=unarchive]').hidden", 'the way back')
        b.eval("document.querySelector('[data-act=unarchive]').focus()")
        b.key('Enter')
        b.wait("document.querySelector('[data-act=unarchive]').hidden", 'the list of jobs')
        assert job in people.mfl('list').stdout
        b.eval("document.querySelector('[data-act=delete]').focus()")
        b.key('Enter')
        b.wait("location.pathname === '/' && document.getElementById('jobs')", 'the list of jobs')
        assert job not in people.mfl('list').stdout
        assert not [line for line in b.said if '400' not in line and '401' not in line], b.said


@in_a_browser
@pytest.mark.parametrize('width', [1200, 800, 400])
def test_landmarks_and_pictures(people, folder, width):
    """Every page has its landmarks and headings; nothing is wider than the window; each picture shows something."""
    url = 'http://%s' % address_of(people)
    job = people.submit(name='pictures', **ELSEWHERE)
    with Browser(folder, width) as b:
        b.go(json.loads(people.mfl('login', 'issue', '--json').stdout)['url'])
        b.wait("location.pathname === '/' && document.getElementById('who').textContent.includes('ann')", 'the login')
        for path, ready, headings in (('/', '#submit:not([hidden])', ('New job', 'Jobs')), ('/jobs/' + job, '#acts:not([hidden])', ('Work on this job', 'Job file', 'Log')),
                                      ('/login', '#code', ('Log in',))):
            b.go(url + path)
            b.wait("document.querySelector('%s')" % ready, path)
            roles = b.landmarks()
            assert {'banner', 'main', 'contentinfo', 'navigation'} <= {role for role, _ in roles}
            assert set(headings) <= {name for role, name in roles if role == 'heading'}
            assert all(name for role, name in roles if role in ('button', 'textbox', 'link', 'searchbox', 'combobox'))
            assert b.eval('document.documentElement.scrollWidth <= window.innerWidth'), path
            data = b.picture(os.path.join(folder, 'page.png'))
            assert struct.unpack('>I', data[16:20])[0] == width and len(data) > 5000
        assert not [line for line in b.said if '401' not in line], b.said
