# SPDX-License-Identifier: Apache-2.0
"""Which daemons may take part, changed while they work, and a daemon that finishes what it has before it ends."""
import hashlib
import signal
import ssl

import pytest

import mfl_certs
import mfl_harness as h
import mfl_wire as w
from test_tls import TlsCluster

# A round of some tenths of a second: time enough to do something in the middle of it.
ROUNDS = {'rounds': 2, 'training': {'steps': 150, 'epochs': None}}
FOREVER = {'rounds': 100, 'training': {'steps': 200000, 'epochs': None}}


@pytest.fixture(scope='module')
def undisturbed(shared_cluster):
    return shared_cluster(2).run_job(**ROUNDS)[1]


def daemons(c):
    with c.operator() as o:
        return {d['name']: d for d in o.daemons()}


def states(c):
    return {name: d['state'] for name, d in daemons(c).items()}


def wait_state(c, name, *wanted):
    h.wait_until(lambda: states(c).get(name) in wanted, 30, '%s to be %s' % (name, ' or '.join(wanted)))


def wait_at_work(c, job, n):
    c.wait_info(job, lambda i: i['phase'] == 'train' and i['daemons'] >= n, 20, '%d daemons at work' % n)




# ---- rules ----

def test_disabled_in_the_middle_of_a_round(cluster, undisturbed):
    """The other one does its part: the same bits. It knocks, is told why once, is shown as refused, and is back after enable."""
    c = cluster(2)
    c.wait_daemons(2)
    job = c.submit(**ROUNDS)
    wait_at_work(c, job, 2)
    wait_state(c, 'd1', 'training')
    said = c.mfl('daemons', 'disable', 'd1', '--reason', 'its disk smokes').stdout
    assert 'd1: disabled; 1 connected daemon is sent away' in said
    assert 'd1' not in states(c) or states(c)['d1'] == 'refused'
    c.wait_job(job, 60)
    assert c.digests(job) == undisturbed
    assert 'daemon d1 is sent away' in c.mfl('logs', job).stdout  # it was in its work
    wait_state(c, 'd1', 'refused')
    assert states(c)['d2'] == 'idle'
    d1 = daemons(c)['d1']
    assert d1['note'] == "disabled by the rule 'd1': its disk smokes" and d1['backend'] == 'reference'
    assert 'refused' in c.mfl('daemons').stdout and 'its disk smokes' in c.mfl('daemons').stdout
    # Several tries later both sides have told it once.
    tries = daemons(c)['d1']['connected_ms']
    h.wait_until(lambda: daemons(c)['d1']['connected_ms'] > tries, 30, 'another try')
    assert c.daemons['d1'].log().count('its disk smokes') == 1
    assert c.server.log().count('its disk smokes') <= 2  # sent away; the rule itself
    assert c.daemons['d1'].alive()
    said = c.mfl('daemons', 'enable', 'd1').stdout
    assert said == 'd1: enabled\n'
    wait_state(c, 'd1', 'idle')
    again, digests = c.run_job(**{**ROUNDS, 'rounds': 1})
    assert digests == undisturbed[:1] and c.rounds(again)[0]['daemons'] == 2
    c.check_alive()


@pytest.mark.parametrize('shared', [False, True])
def test_sites_with_words_of_their_own(cluster, shared):
    """Two sites whose texts have other words number them differently, so they never train together, unless both name one file."""
    c = cluster(0)
    c.write('words.txt', 'film\nbad\nfine\ngreat\n')
    more = ',vocabulary=%s/words.txt' % c.dir if shared else ''
    for n, (site, word) in enumerate((('site-a', 'fine'), ('site-b', 'great'))):
        c.write(site + '.csv', 'text,kind\n' + ''.join('%s film %d,%d\n' % ((word, 'bad')[i % 2], i, i % 2) for i in range(40)))
        c.start_daemon(site, data=['texts=csv:%s/%s.csv,text=text,length=3,test_fraction=0.2%s' % (c.dir, site, more)])
        c.wait_daemons(n + 1)
    layers = [{'embedding': {'vocabulary': 100, 'features': 4, 'padding_idx': 0}}, 'flatten', {'dense': {'units': 2}}]
    job = c.begin(model={'layers': layers}, data={'name': 'texts', 'partition': 'local', 'clients': None},
                  training={'steps': 5, 'epochs': None, 'batch': 8})
    c.wait_info(job, lambda i: i['round'] >= 2, 20, 'two rounds')
    notes = [d['note'] for d in c.mfl_json('daemons')['daemons'] if d['note']]
    assert [r['clients'] for r in c.rounds(job)[:2]] == ([2, 2] if shared else [1, 1])
    assert len(notes) == (0 if shared else 1)
    assert all('its data set texts has other classes, categories or tokens than that of' in note for note in notes)


def test_sites_that_can_not_work_together(cluster):
    """Data sets of one name and form whose classes are called otherwise: who came first decides, also after a restart; a job
    that waits says whom it lacks and why."""
    c = cluster(0)
    for site, other in (('site-a', 'dog'), ('site-b', 'emu'), ('site-c', 'dog')):
        text = 'x,y,kind\n' + ''.join('%d,%d,%s\n' % (i, -i, ('cat', other)[i % 2]) for i in range(40))
        c.write(site + '.csv', text)

    def start(site):
        c.start_daemon(site, data=['pets=csv:%s/%s.csv,test_fraction=0.2' % (c.dir, site)])
    start('site-a')
    c.wait_daemons(1)
    c.mfl('daemons', 'disable', 'site-c')
    start('site-b')
    start('site-c')
    local = {'name': 'pets', 'partition': 'local', 'clients': None}
    job = c.begin(data=local, training={'steps': 50, 'epochs': None, 'batch': 8})
    c.wait_info(job, lambda i: i['round'] >= 1, 20, 'a round')
    note = next(d['note'] for d in c.mfl_json('daemons')['daemons'] if d['name'] == 'site-b')
    assert note == job + ': its data set pets has other classes, categories or tokens than that of site-a'
    c.server.kill()
    c.daemons['site-a'].kill()
    c.start_server()
    c.wait_info(job, lambda i: i['reason'] == '2 daemons offer pets: site-c is disabled by a rule, '
                'site-b has other classes, categories or tokens than site-a', 20, 'the reason')
    c.mfl('daemons', 'enable', 'site-c')
    done = c.info(job)['round']
    c.wait_info(job, lambda i: i['round'] > done, 20, 'another round')
    assert [r['clients'] for r in c.rounds(job)[-1:]] == [1]


def test_globs_allow_lists_and_restarts(cluster):
    c = cluster(0)
    for name in ('site-a1', 'site-b1', 'site-b2'):
        c.start_daemon(name)
    c.wait_daemons(3)
    c.mfl('daemons', 'disable', 'site-b*', '--for', '12h')
    assert set(states(c)) == {'site-a1', 'site-b1', 'site-b2'}
    assert {n for n, s in states(c).items() if s == 'refused'} == {'site-b1', 'site-b2'}
    # Who enables one of them is told what stands in the way still; the rule of that very pattern is not there.
    assert 'no rule' in c.mfl('daemons', 'enable', 'site-b1', status=4).stderr
    c.mfl('daemons', 'disable', 'site-b1')
    assert "still may not take part: disabled by the rule 'site-b*'" in c.mfl('daemons', 'enable', 'site-b1').stdout
    assert "still may not take part: disabled by the rule 'site-b*'" in c.mfl('daemons', 'allow', 'site-b2').stdout
    wait_state(c, 'site-a1', 'refused')  # it matches no rule that allows
    assert daemons(c)['site-a1']['note'] == "only daemons that a rule allows may take part, and no rule allows 'site-a1'"
    c.server.kill()
    c.start_server()
    rules = c.mfl_json('daemons', 'rules')['rules']
    assert [(r['pattern'], r['rule'], r['who']) for r in rules] == [('site-b*', 'disable', 'local'), ('site-b2', 'allow', 'local')]
    assert rules[0]['until_ms'] - rules[0]['time_ms'] == 12 * 3600 * 1000 and rules[1]['until_ms'] is None
    h.wait_until(lambda: sorted(states(c).items()) == [(n, 'refused') for n in ('site-a1', 'site-b1', 'site-b2')], 40,
                 'all to be refused')
    assert [(r['connected'], r['refused']) for r in c.mfl_json('daemons', 'rules')['rules']] == [(0, 2), (0, 1)]
    c.mfl('daemons', 'disallow', 'site-b2')
    wait_state(c, 'site-a1', 'idle')
    c.mfl('daemons', 'enable', 'site-b*')
    for name in ('site-b1', 'site-b2'):
        wait_state(c, name, 'idle')
    assert 'every daemon may take part' in c.mfl('daemons', 'rules').stdout
    book = [(e['action'], e['object'], e['result']) for e in c.mfl_json('audit')['entries']]
    for entry in (('disable', 'site-b*', 'done'), ('enable', 'site-b1', 'failed'), ('allow', 'site-b2', 'done'),
                  ('disallow', 'site-b2', 'done'), ('connect', 'site-a1', 'refused')):
        assert entry in book
    assert book.count(('connect', 'site-b1', 'refused')) <= 3  # not one for each try


def test_a_rule_ends_by_itself_and_drains_stay(cluster):
    c = cluster(1)
    c.wait_daemons(1)
    c.mfl('drain', 'd1')
    c.mfl('daemons', 'disable', 'd1', '--for', '2s')
    assert states(c) == {'d1': 'refused'}
    wait_state(c, 'd1', 'drained')
    assert c.mfl_json('daemons', 'rules') == {'rules': []}


@pytest.mark.parametrize('argv,words', [
    (('disabel', 'd1'), "did you mean 'disable'"),
    (('remove', 'd1'), 'disable, enable, allow, disallow and rules'),
    (('disable',), 'name of a daemon'),
    (('disable', 'a/b'), 'is not a pattern'),
    (('disable', 'sha256:12'), '64 hexadecimal'),
    (('disable', 'd1', '--for', '5 years'), 'such as 90s'),
    (('disable', 'd1', '--for', '367d'), 'such as 90s'),
    (('allow', 'd1', '--for', '5m'), 'goes only with disable'),
    (('enable', 'd1', '--reason', 'x'), 'no --reason'),
    (('disable', 'd1', '--reason', 'x' * 201), 'at most 200'),
    (('rules', 'd1'), 'no more arguments'),
])
def test_mistakes_at_the_command_line(argv, words):
    assert words in h.mfl('daemons', *argv, server='127.0.0.1:1', status=2).stderr


def test_patterns_that_match_nobody_and_requests_that_break_rules(cluster):
    c = cluster(1)
    c.wait_daemons(1)
    assert 'warning: no daemon' in c.mfl('daemons', 'disable', 'd7').stdout
    assert states(c) == {'d1': 'idle'}
    for body in ({'pattern': 'd1', 'verdict': 0}, {'pattern': '', 'verdict': 1}, {'pattern': 'd 1', 'verdict': 1},
                 {'pattern': 'x' * 64, 'verdict': 1}, {'pattern': 'd1', 'verdict': 2, 'seconds': 5},
                 {'pattern': 'd1', 'verdict': 1, 'reason': 'x' * 201}, {'pattern': 'cn:', 'verdict': 1}):
        with pytest.raises((w.Failure, w.Closed)), c.operator() as o:
            o.request('access', body)
    assert [r['pattern'] for r in c.mfl_json('daemons', 'rules')['rules']] == ['d7']
    c.check_alive()


def test_certificates_and_roles(tmp_path):
    ca = mfl_certs.Ca(tmp_path / 'ca')
    ca.server()
    ca.pairs = {n: ca.issue(n, roles) for n, roles in {'ann': ['operator'], 'vic': ['viewer'], 'root': ['admin'],
                                                       'site-a': ['daemon'], 'site-b': ['daemon']}.items()}
    with TlsCluster(tmp_path / 'c', ca) as c:
        c.start_server()
        for name, cert in (('site-a-gpu0', 'site-a'), ('site-a-gpu1', 'site-a'), ('site-b', 'site-b')):
            c.start_daemon(name, pair=ca.pairs[cert])
        c.wait_daemons(3)
        for name, words in (('vic', 'OU=admin'), ('ann', 'OU=admin')):
            assert words in c.mfl('daemons', 'disable', 'site-a', name=name, status=5).stderr
        c.mfl('daemons', 'rules', name='vic')
        assert 'warning: no daemon' in c.mfl('daemons', 'disable', 'site-a', name='root').stdout  # a name, of none of them
        assert '2 connected daemons are sent away' in c.mfl('daemons', 'disable', 'cn:site-a', name='root').stdout
        assert states(c) == {'site-a-gpu0': 'refused', 'site-a-gpu1': 'refused', 'site-b': 'idle'}
        with open(ca.pairs['site-b'][0], encoding='ascii') as f:
            pattern = 'sha256:' + hashlib.sha256(ssl.PEM_cert_to_DER_cert(f.read())).hexdigest().upper()
        assert '1 connected daemon is sent' in c.mfl('daemons', 'disable', pattern, name='root').stdout
        c.mfl('daemons', 'enable', pattern, name='root')
        c.mfl('daemons', 'enable', 'cn:site-a', name='root')
        for name in ('site-a-gpu0', 'site-a-gpu1', 'site-b'):
            wait_state(c, name, 'idle')
        book = [(e['who'], e['action'], e['result']) for e in c.mfl_json('audit', name='ann')['entries']]
        assert ('vic', 'disable', 'refused') in book and ('ann', 'disable', 'refused') in book
        assert ('root', 'disable', 'done') in book


# ---- stop: task ----

def gentle(c, name, timeout='60s'):
    path = c.write(name + '.yaml', 'stop: task\nstop_timeout: %s\n' % timeout)
    return c.start_daemon(name, more=('--config', path))


def test_sigterm_lets_it_finish_its_task(cluster, undisturbed):
    c = cluster(0)
    d1 = gentle(c, 'd1')
    c.start_daemon('d2')
    c.wait_daemons(2)
    job = c.submit(**ROUNDS)
    wait_at_work(c, job, 2)
    wait_state(c, 'd1', 'training')
    at = c.info(job)['in_round']
    d1.signal(signal.SIGTERM)
    h.wait_until(lambda: 'ends when its work is done' in daemons(c).get('d1', {'note': ''})['note'] or not d1.alive(), 10,
                 'the server to know')
    assert d1.wait(60) == 0
    c.wait_job(job, 60)
    assert c.digests(job) == undisturbed
    # Its own update counted in the round that it was in, and it had no part in the next.
    rounds = {r['round']: r for r in c.rounds(job)}
    assert at == 1 and rounds[1]['daemons'] == 2 and rounds[2]['daemons'] == 1
    assert 'taken back' not in c.mfl('logs', job).stdout
    assert 'daemon d1 leaves' in c.server.log()  # it is not waited for
    assert 'd1' not in states(c)


def test_an_idle_one_ends_at_once_and_a_second_signal_hurries(cluster):
    c = cluster(0)
    idle = gentle(c, 'd1')
    c.wait_daemons(1)
    idle.signal(signal.SIGTERM)
    assert idle.wait(10) == 0
    busy = gentle(c, 'd2')
    late = gentle(c, 'd3', '1s')
    c.wait_daemons(2)
    job = c.submit(**FOREVER)
    wait_at_work(c, job, 2)
    busy.signal(signal.SIGTERM)
    wait_state(c, 'd2', 'draining')
    assert busy.alive()
    busy.signal(signal.SIGTERM)
    assert busy.wait(20) == 0
    late.signal(signal.SIGTERM)
    assert late.wait(30) == 0  # its time is over
    assert c.info(job)['state'] in ('running', 'waiting')
    c.check_alive()
