# SPDX-License-Identifier: Apache-2.0
"""The HTTP port of a real server: metrics against what `mfl show` says, health and readiness, the pages, and peers that mean
no good."""
import html.parser
import http.client
import json
import math
import os
import re
import socket
import subprocess

import pytest

import mfl_harness as h
import mfl_needs
import mfl_wire as w
from mfl_pages import CHROMIUM, address_of, browse, get, request

JOB = {'rounds': 12, 'model': 'logistic'}
NAME = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*')
SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)$')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


# ---- the format, read strictly ----

def unescape(text):
    return re.sub(r'\\(.)', lambda m: {'n': '\n'}.get(m.group(1), m.group(1)), text)


def parse(text):
    """{(name, ((label, value), ...)): value}; asserts all rules of the text format, and the naming conventions."""
    assert text.endswith('\n')
    types, helps, series, family, closed = {}, set(), {}, None, set()
    for line in text[:-1].split('\n'):
        if line.startswith('# HELP '):
            name, words = line[7:].split(' ', 1)
            assert NAME.fullmatch(name) and words.endswith('.') and name not in helps, line
            closed.add(family)
            assert name not in closed, 'family twice: ' + line
            helps.add(name)
            family = name
            continue
        if line.startswith('# TYPE '):
            name, kind = line[7:].split(' ')
            assert name == family and name not in types and kind in ('counter', 'gauge', 'histogram'), line
            assert (kind == 'counter') == name.endswith('_total'), line
            types[name] = kind
            continue
        match = SAMPLE.match(line)
        assert match, 'no sample: ' + line
        name, inside, number = match.groups()
        labels = tuple((k, unescape(v)) for k, v in LABEL.findall(inside or ''))
        assert len({k for k, _ in labels}) == len(labels), line
        base = re.sub('_(bucket|sum|count)$', '', name) if types[family] == 'histogram' else name
        assert base == family, 'outside its family: ' + line
        assert (name, labels) not in series, 'series twice: ' + line
        series[name, labels] = float(number)
    check_histograms(types, series)
    for (name, labels), value in series.items():
        assert types.get(name) != 'counter' or (value >= 0 and math.isfinite(value)), (name, labels, value)
    return types, series


def check_histograms(types, series):
    for name in (n for n, kind in types.items() if kind == 'histogram'):
        groups = {}
        for (s, labels), value in series.items():
            if s == name + '_bucket':
                groups.setdefault(tuple(x for x in labels if x[0] != 'le'), []).append((dict(labels)['le'], value))
        for labels, buckets in groups.items():
            bounds, counts = [float(b) for b, _ in buckets], [v for _, v in buckets]
            assert bounds == sorted(bounds) and buckets[-1][0] == '+Inf', (name, buckets)
            assert counts == sorted(counts) and counts[-1] == series[name + '_count', labels], (name, buckets)


def scrape(c):
    status, headers, body = request(c, '/metrics')
    assert status == 200 and headers['Content-Type'] == 'text/plain; version=0.0.4; charset=utf-8'
    return parse(body.decode('utf-8'))


def check_rises(types, before, after):
    """Counters, and what histograms count, never fall and never go away while their job or daemon is there."""
    for (name, labels), value in before.items():
        base = re.sub('_(bucket|sum|count)$', '', name)
        if types.get(name) == 'counter' or (types.get(base) == 'histogram' and base != name):
            assert after.get((name, labels), -1) >= value, (name, labels, value, after.get((name, labels)))


@pytest.fixture(scope='module')
def one(shared_cluster):
    c = shared_cluster(2, config={'http': '127.0.0.1:0'})
    c.wait_daemons(2)
    return c


def test_metrics_of_a_job(one):
    """Scraped while it runs: strictly in the format, rising; at its end the figures are those that `mfl show` has."""
    types, before = scrape(one)
    planned = 60
    job = one.submit(name='scraped', rounds=planned, model='mlp')
    label = (('job', job),)
    last, at = before, set()

    def caught_up():
        nonlocal last
        new_types, now = scrape(one)
        assert set(types) == set(new_types)
        check_rises(types, last, now)
        last = now
        at.add(now.get(('mfl_job_round', label), 0))
        return now.get(('mfl_job_round', label)) == planned and now['mfl_jobs', (('state', 'running'),)] == 0
    h.wait_until(caught_up, 60, 'the last round in the metrics')
    assert len(at) >= 2
    shown = one.mfl_json('show', job)
    rounds = shown['rounds']
    assert last['mfl_job_received_bytes_total', label] == sum(r['bytes_up'] for r in rounds) > 0
    assert last['mfl_job_sent_bytes_total', label] == sum(r['bytes_down'] for r in rounds) > 0
    assert last['mfl_job_clients_counted_total', label] == sum(r['clients'] for r in rounds)
    assert last['mfl_job_round_seconds_count', label] == len(rounds) == planned
    assert abs(last['mfl_job_round_seconds_sum', label] - sum(r['seconds'] for r in rounds)) < 1e-6
    assert last['mfl_job_rounds_planned', label] == planned
    assert abs(last['mfl_job_accuracy_ratio', label] - rounds[-1]['accuracy']) < 1e-9
    assert abs(last['mfl_job_loss', label] - rounds[-1]['loss']) < 1e-9

    def delta(name, *labels):
        return last[name, labels] - before[name, labels]
    assert delta('mfl_rounds_committed_total') == planned
    assert delta('mfl_commit_seconds_count') == delta('mfl_checkpoint_seconds_count') == planned
    assert delta('mfl_jobs_ended_total', ('state', 'done')) == 1
    assert delta('mfl_jobs', ('state', 'done')) == 1
    assert delta('mfl_updates_added_total') >= planned
    assert delta('mfl_received_bytes_total') > last['mfl_job_received_bytes_total', label]
    assert delta('mfl_connections_accepted_total') > 0
    assert last['mfl_daemons', (('state', 'idle'),)] == 2
    for name in ('d1', 'd2'):
        daemon = ('daemon', name)
        assert last['mfl_daemon_up', (daemon,)] == 1
        assert last['mfl_daemon_clients_per_second', (daemon,)] > 0
        assert sum(v for (s, labels), v in last.items() if s == 'mfl_daemon_state' and daemon in labels) == 1
    assert last['mfl_slots', ()] == last['mfl_slots_used', ()] == 0
    assert last['mfl_disk_failing', ()] == 0
    fds = len(os.listdir('/proc/%d/fd' % one.server.pid))
    assert abs(last['process_open_fds', ()] - fds) < 10
    assert last['process_resident_memory_bytes', ()] > 1 << 20


@mfl_needs.needs_program('promtool')
def test_promtool(one):
    one.run_job(rounds=1, model='logistic')
    done = subprocess.run(['promtool', 'check', 'metrics'], input=get(one, '/metrics'), text=True, capture_output=True,
                          timeout=30, check=False)
    assert done.returncode == 0 and not done.stderr and not done.stdout, done


@mfl_needs.needs_program('promtool')
def test_alerts_and_board(one):
    """The alert rules are right by promtool, and rules and board speak of metrics that there are."""
    deploy = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'deploy')
    rules = os.path.join(deploy, 'prometheus-alerts.yml')
    done = subprocess.run(['promtool', 'check', 'rules', rules], text=True, capture_output=True, timeout=30, check=False)
    assert done.returncode == 0, done
    types, series = scrape(one)
    known = set(types) | {name for name, _ in series} | {t + s for t, k in types.items() if k == 'histogram'
                                                         for s in ('_bucket', '_sum', '_count')}
    with open(rules, encoding='utf-8') as f:
        exprs = re.findall(r'expr: (.*)', f.read())
    with open(os.path.join(deploy, 'grafana.json'), encoding='utf-8') as f:
        board = json.load(f)
    targets = [t['expr'] for p in board['panels'] for t in p.get('targets', [])]
    assert len(exprs) >= 8 and len(targets) >= 10
    for expr in exprs + targets:
        names = set(re.findall(r'(?<!\$)\b(?:mfl|process)_[a-z0-9_]+\b', expr))
        assert names <= known, (expr, names - known)
    assert all(len(set(p['gridPos'])) == 4 for p in board['panels'])
    assert len({p['id'] for p in board['panels']}) == len(board['panels'])


# ---- the pages ----

def test_pages(one):
    job, digests = one.run_job(name='shown', **JOB)
    h.wait_until(lambda: json.loads(get(one, '/api/jobs/' + job))['job']['round'] == JOB['rounds'], 10, 'the last round')
    page = json.loads(get(one, '/api/jobs/' + job))
    shown = one.mfl_json('show', job)
    rounds = shown['rounds']
    assert [r['round'] for r in page['rounds']] == list(range(1, len(digests) + 1))
    # The pages speak as the command line does: the same words, the same values but for digits that nobody sees.
    for told, expected in zip(page['rounds'], rounds):
        assert told.keys() == expected.keys() and told == pytest.approx(expected, rel=1e-8)
    assert page['job'].keys() == shown['job'].keys()
    assert page['job']['state'] == 'done' and page['job']['name'] == 'shown'
    assert page['job']['created_unix_ms'] == shown['job']['created_unix_ms']
    # Pages are up to a second old.
    h.wait_until(lambda: {'job': job, 'state': 'done'}.items() <= json.loads(get(one, '/api/jobs'))['jobs'][-1].items(),
                 10, 'the job in the list')
    daemons = json.loads(get(one, '/api/daemons'))['daemons']
    assert sorted(d['name'] for d in daemons) == ['d1', 'd2'] and all(d['node'] == 'n1' for d in daemons)
    assert [d.keys() for d in daemons] == [d.keys() for d in one.mfl_json('daemons')['daemons']]

    def timeline():
        data = json.loads(get(one, '/api/rounds'))
        return sum(r['job'] == job for r in data['rounds']) == JOB['rounds'] and data
    data = h.wait_until(timeline, 10, 'the rounds in the timeline')
    spans = [s for s in data['spans'] if s['job'] == job]
    assert all(s['from_ago_seconds'] >= s['to_ago_seconds'] >= 0 and not s['open'] for s in spans)
    for name in ('d1', 'd2'):
        trained = {s['round'] for s in spans if s['daemon'] == name and s['what'] == 'train'}
        assert trained == set(range(1, JOB['rounds'] + 1))
        assert any(s['what'] == 'evaluate' for s in spans if s['daemon'] == name)
    # One upload a round and node at least: daemons of one node may add theirs before.
    assert {s['round'] for s in spans if s['what'] == 'upload'} == set(range(1, JOB['rounds'] + 1))
    for path in ('/', '/jobs/' + job):
        text = get(one, path)
        assert job in text and 'shown' in text and '<table' in text and text.rstrip().endswith('</html>')
        assert '@TITLE@' not in text and '@MAIN@' not in text
    assert '%.4f' % rounds[-1]['accuracy'] in get(one, '/jobs/' + job)
    for path, kind in (('/dashboard.js', 'text/javascript'), ('/dashboard.css', 'text/css'), ('/icon.svg', 'image/svg+xml')):
        status, headers, body = request(one, path)
        assert status == 200 and headers['Content-Type'].startswith(kind) and body


def test_partition(one):
    """A population is told by daemons, kept once, and the same in all places; of the skewed one, what `mfl data show` counts."""
    data = {'partition': 'dirichlet', 'alpha': 0.3, 'clients': 12}
    job = one.run_job(name='cut', rounds=2, model='logistic', data=data)[0]
    path = '/api/jobs/%s/partition' % job

    def known():
        return json.loads(get(one, path))['partition']
    page = h.wait_until(known, 10, 'the partition')
    expected = json.loads(h.mfl('data', 'show', one.write('cut.yaml', h.job_text(name='cut', rounds=2, model='logistic', data=data)),
                                '--data', h.TINY, '--json').stdout)['clients']
    assert [(c['client'], c['samples'], c['classes']) for c in page['shown']] == [
        (c['client'], c['samples'], c['classes']) for c in expected]
    assert page['clients'] == 12 and page['classes'] == 4
    assert page['samples'] == sum(c['samples'] for c in expected) == 400
    sizes = [c['samples'] for c in expected]
    assert (page['samples_min'], page['samples_max']) == (min(sizes), max(sizes))
    shown = one.mfl_json('show', job, '--partition')
    assert shown == json.loads(get(one, path)) and not shown['local']
    assert '12 clients, 400 samples' in one.mfl('show', job, '--partition').stdout
    table = Tags()
    table.feed(get(one, '/jobs/' + job))
    assert ('section', {'id': 'partition'}) in table.tags and '12 clients, 400 samples' in table.text
    status, headers, _ = request(one, path)
    assert request(one, path, headers={'If-None-Match': headers['ETag']})[0] == 304
    other = one.submit(name='none-yet', rounds=1, data={'name': 'nowhere'})
    assert json.loads(get(one, '/api/jobs/%s/partition' % other)) == {'job': other, 'local': False, 'partition': None}
    assert 'no daemon has reported' in one.mfl('show', other, '--partition').stdout
    one.mfl('stop', other)


def test_partition_of_sites(cluster):
    """Of real sites the number of samples is known, and nothing of their labels; also when a daemon tells of them. What does
    not fit the job is dropped. It outlives a restart of the server."""
    c = cluster(0, config={'http': '127.0.0.1:0'})
    for name, n in (('a', 120), ('b', 40)):
        c.start_daemon(name, data=('tiny=synthetic:1,8,8:4:%d:40:1' % n,))
    c.wait_daemons(2)
    fake = w.FakeDaemon(c.address, 'talker', [{**c.data_sets()[0], 'train_samples': 7}])
    data = {'partition': 'local', 'clients': None}
    job = c.submit(name='sites', rounds=3, model='logistic', data=data)
    path = '/api/jobs/%s/partition' % job

    def sites(n):
        told = json.loads(get(c, path))
        assert told['local']
        return told['partition'] and told['partition']['clients'] == n and told['partition']
    fake.send('partition', {'job': job, 'clients': 1, 'samples': 7, 'samples_min': 7, 'samples_max': 7, 'classes': 2,
                             'shown': [{'client': 5, 'samples': 7, 'classes': [3, 4]}]})
    fake.send('partition', {'job': job, 'clients': 9, 'samples': 9, 'samples_min': 9, 'samples_max': 9,
                             'shown': [{'client': 5, 'samples': 9}]})
    fake.send('partition', {'job': 'j-999999', 'clients': 1, 'samples': 9, 'samples_min': 9, 'samples_max': 9,
                             'shown': [{'client': 5, 'samples': 9}]})
    h.wait_until(lambda: any(s['daemon'] == 'talker' for s in (sites(1) or sites(2) or sites(3) or {'shown': []})['shown']), 10,
                 'the talker')
    fake.close()
    page = h.wait_until(lambda: sites(3), 30, 'three sites')
    assert [(s['daemon'], s['samples']) for s in page['shown']] == [('a', 120), ('b', 40), ('talker', 7)]
    assert page['classes'] is None and not any(s['classes'] for s in page['shown'])
    assert page['samples'] == 167 and (page['samples_min'], page['samples_max']) == (7, 120)
    c.server.kill()
    os.remove(c.log_path('server'))
    c.start_server()
    h.wait_until(lambda: request(c, '/readyz')[0] == 200, 10, 'readiness')
    kept = h.wait_until(lambda: sites(3), 20, 'them after the restart')
    assert [(s['daemon'], s['samples']) for s in kept['shown']] == [('a', 120), ('b', 40), ('talker', 7)]
    assert '3 sites, 167 samples' in c.mfl('show', job, '--partition').stdout


@pytest.mark.skipif(not CHROMIUM, reason=mfl_needs.lack('chromium'))
@pytest.mark.parametrize('width', [1200, 500])
def test_in_a_browser(one, folder, width):
    """The live page draws the partition: a column for each client and class that is there, and the figures below."""
    data = {'partition': 'shards', 'shards': 1, 'clients': 8}
    job = one.run_job(name='drawn', rounds=2, model='logistic', data=data)[0]
    h.wait_until(lambda: json.loads(get(one, '/api/jobs/%s/partition' % job))['partition'], 10, 'the partition')
    told = json.loads(get(one, '/api/jobs/%s/partition' % job))['partition']['shown']
    page, said = browse(one, '/jobs/' + job, width, folder)
    assert said == []
    start = page.index('id="partition"')
    section = page[start:page.index('</section>', start)]
    assert '8 clients, 400 samples: 50 to 50 each, by class.' in section
    paths = re.findall(r'<path class="" d="([^"]*)" fill="hsl[^"]*">', section)
    assert len(paths) == 4
    assert [d.count('M') for d in paths] == [sum(c['classes'][k] > 0 for c in told) for k in range(4)]
    assert len(re.findall('<tr>', section)) == 1 + 8
    drawn = int(re.search(r'viewBox="0 0 (\d+) 200"', section).group(1))
    assert width - 120 < drawn < width


@pytest.mark.skipif(not CHROMIUM, reason=mfl_needs.lack('chromium'))
def test_who_was_left_out_is_drawn(one, folder):
    """A mark for each client that a robust rule left out of a round, with the score and the distance."""
    for aggregation, out in (({'strategy': 'multi-krum', 'f': 2}, 2), ({'strategy': 'multi-krum', 'f': 1, 'unit': 'bucket'}, 2),
                             ({'strategy': 'median'}, 0)):
        job = one.run_job(name='left-out', rounds=4, model='logistic', data={'clients': 10}, aggregation=aggregation)[0]
        told = [r['choice'] for r in one.rounds(job)]
        page, said = browse(one, '/jobs/' + job, 900, folder)
        assert said == []
        start = page.index('id="leftout"')
        section = page[start:page.index('</section>', start)]
        marks = re.findall(r'<rect class="out"[^>]*><title>round (\d+), client (\d+): counted least, score ([^ ]+) distance ([^<]+)</title>', section)
        assert len(marks) == 4 * out
        for r, client, score, distance in marks:
            row = next(part for part in told[int(r) - 1].split('least: ')[1].split(', ') if 'client %s ' % client in part)
            assert row.endswith(' score %s distance %s' % (score, distance))
        assert ('No client was left out.' in section) == (not out)


def test_timeline_of_a_lost_daemon(cluster):
    """What a daemon was at when it went ends there; the others' spans go on. Its name stays in the metrics while it has grace."""
    c = cluster(2, config={'http': '127.0.0.1:0', 'reconnect_grace': '60s'})
    c.wait_daemons(2)
    job = c.submit(name='long', rounds=100, training={'steps': 200000, 'epochs': None})

    def spans_of(name, is_open):
        return [s for s in json.loads(get(c, '/api/rounds'))['spans'] if s['daemon'] == name and s['open'] == is_open]
    h.wait_until(lambda: spans_of('d1', True) and spans_of('d2', True), 20, 'both to train')
    c.daemons['d1'].kill()
    ended = h.wait_until(lambda: not spans_of('d1', True) and spans_of('d1', False), 20, 'the end of the span')
    assert [s['what'] for s in ended] == ['train'] and ended[0]['job'] == job and ended[0]['round'] == 1
    assert spans_of('d2', True)[0]['what'] == 'train'

    def lost():
        _, series = scrape(c)
        return (series['mfl_daemon_up', (('daemon', 'd1'),)] == 0 and series['mfl_daemon_up', (('daemon', 'd2'),)] == 1 and
                series['mfl_daemon_state', (('daemon', 'd1'), ('state', 'lost'))] == 1 and
                series['mfl_daemons', (('state', 'lost'),)] == 1)
    h.wait_until(lost, 10, 'the lost daemon in the metrics')


def test_methods_and_missing_pages(one):
    job = one.run_job(rounds=1, model='logistic')[0]
    for path in ('/metrics', '/', '/healthz', '/api/jobs', '/api/jobs/' + job, '/dashboard.js'):
        status, headers, body = request(one, path, 'HEAD')
        assert status == 200 and body == b'' and int(headers['Content-Length']) > 0, path
        assert "default-src 'none'" in headers['Content-Security-Policy'] and headers['X-Content-Type-Options'] == 'nosniff'
        for method in ('POST', 'PUT', 'DELETE', 'OPTIONS', 'PATCH'):
            status, headers, _ = request(one, path, method)
            if (path, method) == ('/api/jobs', 'POST'):  # a new job, which needs a login (test_login.py)
                assert status == 403
                continue
            assert status == 405 and headers['Allow'] == 'GET, HEAD'
    for path in ('/nothing', '/metrics/', '/api/jobs/j-999999', '/jobs/j-999999', '/jobs/', '/jobs/../metrics', '/jobs/' + job + '/partition', '/api/jobs/' + job + '/partitions',
                 '/api/jobs/j-999999/partition', '/api/jobs/%00',
                 '/jobs/' + 'j' * 500, '//', '/jobs/<script>'):
        assert request(one, path)[0] == 404, path
    assert request(one, '/metrics', headers={'Host': 'rebound.example'})[0] == 403
    assert request(one, '/metrics?collect[]=x')[0] == 200
    status, headers, _ = request(one, '/api/jobs/' + job)
    assert request(one, '/api/jobs/' + job, headers={'If-None-Match': headers['ETag']})[0] == 304


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], ''

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_users_text_is_text(cluster):
    """A job may not have such a name at all; what a daemon says of itself comes out as it is, as text, everywhere, but for what
    would steer a terminal."""
    evil = '<script>alert(1)</script>"\'&\\{}é</td>'
    c = cluster(1, config={'http': '127.0.0.1:0'})
    with pytest.raises(Exception, match='name'):
        c.submit(name='<script>alert(1)</script>')
    fake = w.FakeDaemon(c.address, 'fake', c.data_sets(), node=evil[:31], device=evil + '\n\x9b\u202e', backend='"<b>')
    c.wait_daemons(2)
    _, series = scrape(c)
    device = evil + '???'
    info = [dict(labels) for (name, labels) in series if name == 'mfl_daemon_info' and ('daemon', 'fake') in labels]
    assert len(info) == 1 and info[0]['device'] == device and info[0]['backend'] == '"<b>' and evil[:31] in info[0]['node']
    daemons = h.wait_until(lambda: [d for d in json.loads(get(c, '/api/daemons'))['daemons'] if d['name'] == 'fake'], 10, 'it')
    assert daemons[0]['device'] == device
    assert '<script>alert' not in get(c, '/api/daemons')
    page = Tags()
    page.feed(get(c, '/'))
    scripts = [{'src': '/dashboard_jobs.js', 'defer': None}, {'src': '/dashboard_tree.js', 'defer': None}, {'src': '/dashboard_acts.js', 'defer': None}, {'src': '/dashboard_models.js', 'defer': None}, {'src': '/dashboard.js', 'defer': None}]
    assert [a for t, a in page.tags if t == 'script'] == scripts
    assert device in page.text and not any(t == 'b' for t, _ in page.tags)
    with c.operator() as o:  # a job file is text, too
        job = o.submit('# </pre><script>alert(1)</script><b>\n' + h.job_text(name='text', data={'name': 'nowhere'}))
    page = Tags()
    page.feed(get(c, '/jobs/' + job))
    assert [a for t, a in page.tags if t == 'script'] == scripts and not any(t == 'b' for t, _ in page.tags)
    assert '</pre><script>alert(1)</script><b>\nname:' in page.text
    assert '<' not in get(c, '/api/jobs/%s/file' % job) and json.loads(get(c, '/api/jobs/%s/file' % job))['text'].startswith('# </pre>')
    fake.close()


# ---- health ----

def test_health(cluster):
    c = cluster(1, config={'http': '127.0.0.1:0', 'connections_max': 3})
    c.wait_daemons(1)
    h.wait_until(lambda: request(c, '/readyz')[0] == 200, 10, 'readiness')
    assert get(c, '/healthz') == 'ok\n'
    operators = [c.operator(), c.operator()]
    status, _, body = h.wait_until(lambda: (lambda a: a[0] == 503 and a)(request(c, '/readyz')), 10, 'a full server')
    assert b'connections_max (3)' in body and request(c, '/healthz')[0] == 200
    for o in operators:
        o.close()
    h.wait_until(lambda: request(c, '/readyz')[0] == 200, 10, 'readiness again')


def test_health_tells_of_the_disk(cluster):
    """A checkpoint that meets a full disk is tried again after 5 s: until then the server says that it is not well, and why."""
    c = cluster.empty({'http': '127.0.0.1:0'})
    c.start_server({'MFL_FAULT': 'before-write:2:enospc'})
    c.start_daemon('d1')
    job = c.submit(**JOB)
    status, _, body = h.wait_until(lambda: (lambda a: a[0] == 503 and a)(request(c, '/healthz')), 20, 'a sick server')
    assert b'No space left' in body
    assert 'No space left' in c.mfl('probe', 'healthz', address_of(c), status=1).stderr
    assert request(c, '/readyz')[0] == 200
    c.wait_job(job)
    h.wait_until(lambda: request(c, '/healthz')[0] == 200, 10, 'health')

    def counted():
        _, series = scrape(c)
        return series['mfl_disk_failures_total', (('operation', 'checkpoint'),)] == 1 and series['mfl_disk_failing', ()] == 0
    h.wait_until(counted, 10, 'the failure in the metrics')


def test_probe_of_the_command_line(cluster):
    c = cluster(0, config={'http': '127.0.0.1:0'})
    h.wait_until(lambda: request(c, '/readyz')[0] == 200, 10, 'readiness')
    address = address_of(c)
    assert c.mfl('probe', 'healthz', address).stdout == 'ok\n'
    assert json.loads(c.mfl('probe', 'readyz', address, '--json').stdout)['status'] == 200
    assert 'expected healthz or readyz' in c.mfl('probe', 'metrics', address, status=2).stderr
    assert 'is not from the HTTP port' in c.mfl('probe', 'readyz', c.address, status=1).stderr
    c.server.stop()
    assert 'Connection refused' in c.mfl('probe', 'healthz', address, status=3).stderr


def test_restart(cluster):
    """Counters begin anew, the last accuracy does not: it is known from the database."""
    c = cluster(1, config={'http': '127.0.0.1:0'})
    job = c.run_job(**JOB)[0]
    accuracy = c.mfl_json('show', job)['rounds'][-1]['accuracy']
    c.server.kill()
    os.remove(c.log_path('server'))
    c.start_server()
    h.wait_until(lambda: request(c, '/readyz')[0] == 200, 10, 'readiness')
    _, series = scrape(c)
    assert abs(series['mfl_job_accuracy_ratio', (('job', job),)] - accuracy) < 1e-9
    assert series['mfl_job_received_bytes_total', (('job', job),)] == 0
    assert series['mfl_rounds_committed_total', ()] == 0


# ---- the port ----

def refused(c, text):
    c.start_server(ready=False)
    assert c.server.wait(20) == 78
    assert text in c.server.log()


def test_only_loopback_unless_told(cluster):
    refused(cluster.empty({'http': '0.0.0.0:0'}), '--insecure-http')
    refused(cluster.empty({'http': '127.0.0.1:none'}), 'port')
    c = cluster.empty({'http': '0.0.0.0:0', 'insecure_http': 'true'})
    c.start_server()
    assert '(insecure_http)' in c.server.log()
    c = cluster.empty()
    c.start_server()
    assert 'http://' not in c.server.log()


def open_sockets(c, n, first):
    host, port = address_of(c).rsplit(':', 1)
    sockets = []
    for _ in range(n):
        s = socket.create_connection((host, int(port)), 10)
        s.setblocking(False)
        try:
            s.send(first)
        except OSError:
            pass
        sockets.append(s)
    return sockets


GARBAGE = [b'', b'\0' * 4000, os.urandom(4000), b'GET / HTTP/9.9\r\n\r\n', b'GET ' + b'/' * 100000, b'MFL1' + bytes(60),
           b'GET / HTTP/1.1\r\n' + b'A: b\r\n' * 5000, b'\r\n' * 3000, b'GET /metrics HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n',
           b'POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n', b'\x16\x03\x01\x02\x00',
           b'POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n']


def test_hostile_peers_touch_no_job(cluster):
    """Hundreds that are slow, send nonsense, ask and never read: the job ends with the model of a quiet run, and whoever asks
    properly is answered again."""
    c = cluster(2, config={'http': '127.0.0.1:0'})
    long_job = {'rounds': 60, 'model': 'mlp'}
    expected = c.run_job(name='quiet', **long_job)[1]
    job = c.submit(name='beset', **long_job)
    slow = open_sockets(c, 150, b'GET /metrics HTTP/1.1\r\nHo')
    waves = 0
    while c.info(job)['state'] not in h.ENDED and waves < 60:
        waves += 1
        for garbage in GARBAGE:
            for s in open_sockets(c, 2, garbage):
                s.close()
        deaf = open_sockets(c, 10, b'GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n' * 20)
        for s in slow:
            try:
                s.send(b's')
            except OSError:
                pass
        for s in deaf:
            s.close()
    c.wait_job(job)
    assert c.digests(job) == expected and waves > 0
    c.check_alive()
    # The slow ones are still there, or were sent away for others: one who asks gets through.
    def answered():
        try:
            return request(c, '/healthz', timeout=2)[0] == 200
        except (OSError, http.client.HTTPException):
            return False
    h.wait_until(answered, 30, 'an answer')
    for s in slow:
        s.close()
    fds = '/proc/%d/fd' % c.server.pid
    h.wait_until(lambda: len(os.listdir(fds)) < 60, 30, 'descriptors to be given back')
    _, series = scrape(c)
    assert series['mfl_connections_accepted_total', ()] > 0


def test_stop_while_asked(cluster):
    """SIGTERM with requests under way and connections open: it ends, and well."""
    c = cluster(1, config={'http': '127.0.0.1:0'})
    c.run_job(rounds=1, model='logistic')
    sockets = open_sockets(c, 20, b'GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n') + open_sockets(c, 10, b'GET ')
    assert c.server.stop(20) == 0
    for s in sockets:
        s.close()
