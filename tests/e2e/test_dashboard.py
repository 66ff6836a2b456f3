# SPDX-License-Identifier: Apache-2.0
"""The dashboard for daily work: filters, pages and comparisons of jobs, and what a job's page shows of it."""
import html
import json
import re

import pytest

import mfl_harness as h
import mfl_needs
from mfl_browser import Browser
from mfl_pages import CHROMIUM, address_of, browse, get, request, section_of


@pytest.fixture(scope='module')
def crowd(shared_cluster):
    """A server with two jobs that have run, one that waits, and 45 that were stopped; (cluster, the two, the one, the others)."""
    c = shared_cluster(1, config={'http': '127.0.0.1:0'})
    ran = [c.run_job(name=name, rounds=3, model='logistic', training={'lr': lr}, evaluation={'on': 'clients'})[0]
           for name, lr in (('slow', 0.01), ('fast', 0.2))]
    stopped = [c.submit(name='idle-%d' % i, data={'name': 'nowhere'}) for i in range(45)]
    for job in stopped:
        c.stop_job(job)
    waiting = c.submit(name='later', data={'name': 'elsewhere'})
    return c, ran, waiting, stopped


def test_parts_of_a_job_as_json(crowd):
    """The job file, the log and the scores, in the words of the command line."""
    c, ran, _, _ = crowd
    shown = c.mfl_json('show', ran[0])
    assert json.loads(get(c, '/api/jobs/%s/file' % ran[0])) == {'job': ran[0], 'text': shown['text']}
    scores = json.loads(get(c, '/api/jobs/%s/scores' % ran[0]))['scores']
    assert len(scores['clients']) == 8 and scores['round'] == shown['scores']['round']
    for told, expected in zip(scores['clients'], shown['scores']['clients']):  # to the digits that a page has
        assert told.pop('site') == expected.pop('site') and told == pytest.approx(expected, rel=1e-8)
    log = json.loads(get(c, '/api/jobs/%s/log' % ran[0]))
    lines = [json.loads(line) for line in c.mfl('logs', ran[0], '--json').stdout.splitlines()]
    assert log['n_lines'] == len(lines) and [(e['seq'], e['text']) for e in log['lines']] == [(e['seq'], e['text']) for e in lines][-300:]
    page = get(c, '/jobs/' + ran[0])
    assert 'submitted by local' in page and html.escape(shown['text'].splitlines()[0], quote=True) in page
    for path in ('/api/jobs/%s/nothing' % ran[0], '/jobs/%s/file' % ran[0], '/api/jobs/j-999999/file'):
        assert request(c, path)[0] == 404


@pytest.mark.skipif(not CHROMIUM, reason=mfl_needs.lack('chromium'))
@pytest.mark.parametrize('query,rows,said', [
    ('', 20, '1 to 20 of 48'), ('?page=9', 8, '41 to 48 of 48'), ('?q=idle-4', 6, '1 to 6 of 6'),
    ('?state=done', 2, '1 to 2 of 2'), ('?state=waiting&q=later', 1, '1 to 1 of 1'), ('?q=no%20such%20job', 0, 'none'),
    ('?state=nonsense', 20, '1 to 20 of 48')])
def test_jobs_are_filtered_and_paged(crowd, folder, query, rows, said):
    page, console = browse(crowd[0], '/' + query, 1200, folder)
    section = section_of(page, 'jobs')
    assert console == [] and section.count('data-key=') == rows and said in section
    assert ('>Newer</button>' in section and 'role="search"' in section and 'type="search"' in section)


@pytest.mark.skipif(not CHROMIUM, reason=mfl_needs.lack('chromium'))
def test_jobs_are_compared_in_one_plot(crowd, folder):
    c, ran, _, _ = crowd
    page, console = browse(c, '/?compare=%s,%s,j-999999' % tuple(ran), 1200, folder)
    section = section_of(page, 'compare')
    assert console == [line for line in console if '404' in line]  # of the job that is gone
    assert section.count('class="curve c0"') == section.count('class="curve c1"') == 3  # two plots and the key
    assert all('/jobs/' + job in section for job in ran) and 'j-999999' not in section
    assert 'hidden' in re.search(r'<section id="compare"[^>]*>', browse(c, '/', 1200, folder)[0])[0]


@pytest.fixture(scope='module')
def many(shared_cluster):
    """A server with 500 jobs, of which 260 were stopped, and 20 of these archived."""
    c = shared_cluster(1, config={'http': '127.0.0.1:0'})
    with c.operator() as o:
        for i in range(500):
            job = o.submit(h.job_text(name='job-%d' % i, data={'name': 'nowhere'}))
            if i < 260:
                o.request('stop_job', {'job': job})
            if i < 20:
                o.request('archive_job', {'job': job})
    return c


@pytest.mark.skipif(not CHROMIUM, reason=mfl_needs.lack('chromium'))
@pytest.mark.parametrize('width', [1200, 800, 400])
def test_500_jobs_leave_room_for_the_rest(many, folder, width):
    """With the keyboard: every job is found, and what is below the list stays where people find it."""
    told = "document.querySelector('#jobs [role=status]').textContent"
    with Browser(folder, width) as b:
        b.go('http://%s/' % address_of(many))
        b.wait(told + ".includes('1 to 20 of 480')", 'the list')
        assert b.eval("document.querySelector('#jobs').getBoundingClientRect().height") < 1000
        assert b.eval('document.documentElement.scrollWidth') <= width
        assert {'banner', 'main', 'navigation', 'search', 'contentinfo'} <= {role for role, _ in b.landmarks()}
        b.eval("document.querySelector('#jobs [type=search]').focus()")
        b.type('job-3')
        b.wait(told + ".includes('1 to 20 of 110')", 'those that match: 30 to 39, and 300 to 399')
        for _ in range(2):
            b.key('Tab')
        assert b.eval('document.activeElement.parentElement.textContent').startswith('Archived')
        b.key('Tab')
        assert b.eval('document.activeElement.textContent') == 'Older'  # Newer can't be pressed on the first page
        b.key('Enter')
        b.wait(told + ".includes('21 to 40 of 110')", 'the second page')
        b.go('http://%s/?archived=only' % address_of(many))
        b.wait(told + ".includes('1 to 20 of 20')", 'the archived ones')
        b.go('http://%s/?archived=shown&q=job-1' % address_of(many))
        b.wait(told + ".includes('1 to 20 of 111')", 'all')
        data = b.picture(folder + '/many.png')
        assert len(data) > 5000 and not [line for line in b.said if '401' not in line], b.said


@pytest.mark.skipif(not CHROMIUM, reason=mfl_needs.lack('chromium'))
@pytest.mark.parametrize('width', [1200, 800, 500])
def test_a_jobs_page(crowd, folder, width):
    c, ran, _, _ = crowd
    page, console = browse(c, '/jobs/' + ran[1], width, folder)
    assert console == []
    assert 'name: fast' in section_of(page, 'file') or '&quot;fast&quot;' in section_of(page, 'file') or '"fast"' in section_of(page, 'file')
    assert 'submitted' in section_of(page, 'log') or 'round 1' in section_of(page, 'log')
    facts = section_of(page, 'job')
    assert all('<dt>%s</dt>' % name in facts for name in ('Owner', 'Submitted', 'Took')) and '<dd>local</dd>' in facts
    assert section_of(page, 'sites').count('<tr>') == 1 + 8
    assert page.count('<main>') == page.count('<header>') == page.count('<footer>') == 1
