# SPDX-License-Identifier: Apache-2.0
"""Daemons of one host add their updates and share their params: what goes over the network is one daemon's worth, and the
model is the same, bit for bit, as without."""
import os
import subprocess

import pytest

import mfl_harness as h
import mfl_lab as lab

# 24 clients of unequal shares, ten shards of test samples, a job of four rounds, each evaluated: every daemon has work in every
# phase, so that all of them want all params.
DATA = ('tiny=synthetic:1,8,8:4:400:640:1',)
JOB = {'rounds': 4, 'selection': {'assign': 'modulo'},
       'data': {'name': 'tiny', 'partition': 'dirichlet', 'clients': 24, 'alpha': 0.5, 'min_samples': 3}}
FAST = {'heartbeat': '300ms', 'dead_after': '1500ms', 'reconnect_grace': '400ms'}


@pytest.fixture(scope='module')
def expected(shared_cluster):
    """Digests of one daemon alone, by jobs' settings."""
    known = {}

    def digests(**changes):
        key = h.job_text(**changes)
        if key not in known:
            c = shared_cluster(1, data=DATA)
            known[key] = c.run_job(**changes)[1]
            c.close()
        return known[key]
    return digests


def make_nodes(cluster, kinds, config=None, **options):
    """A daemon for each kind of collective (None: none is named), with memory of their own to share."""
    c = cluster(0, config=config)
    c.share()
    for i, kind in enumerate(kinds):
        c.start_daemon('d%d' % (i + 1), collective=kind, data=DATA, **options)
    c.wait_daemons(len(kinds))
    return c


def traffic(c, job):
    """[(bytes up, bytes down)] of all rounds, by the server's count; asserts that its nodes are its sum."""
    rounds, nodes = c.rounds(job), c.nodes(job)
    for r in rounds:
        for key in ('bytes_up', 'bytes_down', 'bytes_up_alone', 'bytes_down_alone'):
            assert sum(n[key] for n in nodes[r['round']]) == r[key], (key, r, nodes[r['round']])
    return [(r['bytes_up'], r['bytes_down']) for r in rounds]


def shown_daemons(c):
    return {d['name']: d for d in c.mfl_json('daemons')['daemons']}


def stop_all(c):
    """SIGTERM to all; nothing may be left of what they shared."""
    assert [d.stop() for d in c.daemons.values()] == [0] * len(c.daemons)
    assert c.shared_files() == []


# ---- one host ----

@pytest.mark.parametrize('k', [2, 4, 8])
def test_one_upload_and_one_download_for_a_node(cluster, expected, k):
    c = make_nodes(cluster, ['shm'] * k)
    job, digests = c.run_job(**JOB)
    n = c.info(job)['n_params']
    assert digests == expected(**JOB)
    assert {r['daemons'] for r in c.rounds(job)} == {k}
    up, down = zip(*traffic(c, job))
    assert up == (8 * n,) * 4
    assert sum(down) == 4 * n * 5  # what rounds 1 to 4 started from, and what the last one became
    alone_up = [r['bytes_up_alone'] for r in c.rounds(job)]
    assert alone_up == [8 * n * k] * 4
    assert sum(r['bytes_down_alone'] for r in c.rounds(job)) == k * sum(down)
    assert [len(nodes) for nodes in c.nodes(job).values()] == [1] * 4
    assert all(node['daemons'] == k for nodes in c.nodes(job).values() for node in nodes)
    stop_all(c)


@pytest.mark.parametrize('k', [2, 4, 8])
def test_solo_is_k_times_that(cluster, expected, k):
    c = make_nodes(cluster, ['solo'] * k)
    job, digests = c.run_job(**JOB)
    n = c.info(job)['n_params']
    assert digests == expected(**JOB)
    up, down = zip(*traffic(c, job))
    assert up == (8 * n * k,) * 4
    assert sum(down) == 4 * n * 5 * k
    for r in c.rounds(job):
        assert (r['bytes_up_alone'], r['bytes_down_alone']) == (r['bytes_up'], r['bytes_down'])
    assert {(d['collective'], d['leader']) for d in shown_daemons(c).values()} == {('solo', False)}
    assert all(d['alone'] for d in shown_daemons(c).values())
    stop_all(c)


def test_some_shm_some_solo(cluster, expected):
    c = make_nodes(cluster, ['shm', 'solo', 'shm', 'solo', 'auto'])
    job, digests = c.run_job(**JOB)
    n = c.info(job)['n_params']
    assert digests == expected(**JOB)
    assert [up for up, _ in traffic(c, job)] == [8 * n * 3] * 4  # the three that share, and two alone
    assert [r['bytes_up_alone'] for r in c.rounds(job)] == [8 * n * 5] * 4
    shown = shown_daemons(c)
    assert [shown[d]['collective'] for d in ('d1', 'd2', 'd3', 'd4', 'd5')] == ['shm', 'solo', 'shm', 'solo', 'shm']
    stop_all(c)


def test_two_node_ids_are_two_groups(cluster, expected):
    c = cluster(0)
    c.share()
    for i, node in enumerate(['east', 'west', 'east', 'west', 'west']):
        c.start_daemon('d%d' % (i + 1), node=node, data=DATA)
    c.wait_daemons(5)
    job, digests = c.run_job(**JOB)
    n = c.info(job)['n_params']
    assert digests == expected(**JOB)
    assert [up for up, _ in traffic(c, job)] == [8 * n * 2] * 4
    for nodes in c.nodes(job).values():
        assert [(x['node'], x['daemons'], x['bytes_up'], x['bytes_up_alone']) for x in nodes] == [
            ('east', 2, 8 * n, 16 * n), ('west', 3, 8 * n, 24 * n)]
    stop_all(c)


def test_shown_daemons_and_rounds(cluster):
    """`mfl daemons` has one leader for a node and says who is why alone; `mfl show` has each node's part."""
    c = make_nodes(cluster, ['shm', 'shm', 'solo'])
    c.start_daemon('e1', node='far', data=DATA)
    c.wait_daemons(4)
    job = c.run_job(**JOB)[0]
    shown = shown_daemons(c)
    # Two nodes with one id, as containers have: each is told by the first of its daemons.
    assert {d: shown[d]['node'] for d in shown} == {'d1': 'n1/d1', 'd2': 'n1/d1', 'd3': 'n1/d3', 'e1': 'far'}
    assert [shown['d1']['leader'], shown['d2']['leader']].count(True) == 1
    assert not shown['d3']['leader']
    assert shown['d3']['collective'] == 'solo' and 'solo' in shown['d3']['alone']
    assert not shown['d1']['alone'] and not shown['d2']['alone']
    assert shown['d1']['clients_per_second'] > 0
    text = c.mfl('daemons').stdout
    assert 'shm' in text and 'solo' in text
    detail = c.mfl_json('show', job)
    assert {n['node'] for n in detail['nodes']} == {'n1/d1', 'n1/d3', 'far'}
    for r in detail['rounds']:
        parts = [n for n in detail['nodes'] if n['round'] == r['round']]
        for key in ('bytes_up', 'bytes_down', 'bytes_up_alone', 'bytes_down_alone'):
            assert sum(n[key] for n in parts) == r[key]
    assert 'alone' in c.mfl('show', job).stdout or 'far' in c.mfl('show', job).stdout
    stop_all(c)


def test_shared_memory_of_the_system(cluster, expected):
    """Without any option: the daemons find each other by themselves, and leave nothing behind in /dev/shm."""
    before = set(os.listdir('/dev/shm'))
    c = cluster(3, node=None, data=DATA)
    c.wait_daemons(3)
    job, digests = c.run_job(**JOB)
    assert digests == expected(**JOB)
    assert [up for up, _ in traffic(c, job)] == [8 * c.info(job)['n_params']] * 4
    mine = {f for d in c.daemons.values() for f in held_files(d.pid, '/dev/shm')}
    assert len({f.split('.')[0].split('-')[1] for f in mine}) >= 3  # the lock of each
    assert not mine & before
    assert [d.stop() for d in c.daemons.values()] == [0, 0, 0]
    instances = {f.split('.')[0].split('-')[1] for f in mine}
    assert not [f for f in os.listdir('/dev/shm') if any(i in f for i in instances)]


def held_files(pid, folder):
    """Names of the files of a folder that a process has open or mapped."""
    paths = []
    for fd in os.listdir('/proc/%d/fd' % pid):
        try:
            paths.append(os.readlink('/proc/%d/fd/%s' % (pid, fd)))
        except OSError:
            pass
    with open('/proc/%d/maps' % pid, encoding='utf-8') as f:
        paths += [line.split(maxsplit=5)[-1].strip() for line in f]
    return {os.path.basename(p) for p in paths if os.path.dirname(p) == folder and os.path.basename(p).startswith('mfl-')}


# ---- other kinds of jobs ----

def test_local_partition(cluster):
    """Each daemon is one client with data of its own."""
    found = []
    for kind in ('shm', 'solo'):
        c = cluster(0)
        c.share()
        for i in (1, 2, 3):
            c.start_daemon('site-%d' % i, data=['tiny=synthetic:1,8,8:4:%d:40:%d' % (100 + 50 * i, i)], collective=kind)
        c.wait_daemons(3)
        job, digests = c.run_job(data={'partition': 'local', 'clients': None}, selection={'daemons': {'min': 3}})
        assert [(r['clients'], r['weight']) for r in c.rounds(job)] == [(3, 150 + 200 + 250)] * 3
        found.append((digests, sum(down for _, down in traffic(c, job)), c.info(job)['n_params']))
        assert all(r['bytes_up'] <= r['bytes_up_alone'] for r in c.rounds(job))
        stop_all(c)
    shm, solo = found
    assert shm[0] == solo[0]
    assert (shm[1], solo[1]) == (4 * shm[2] * 4, 3 * 4 * shm[2] * 4)


def test_median_shares_params_only(cluster, expected):
    """Single updates are not added: every client's goes up by itself, and params still come down once."""
    job_settings = {'aggregation': {'strategy': 'median'}, 'rounds': 3, 'selection': {'assign': 'modulo'}}
    c = make_nodes(cluster, ['shm'] * 3)
    job, digests = c.run_job(**job_settings)
    n = c.info(job)['n_params']
    assert digests == expected(**job_settings)
    up, down = zip(*traffic(c, job))
    assert up == (4 * n * 8,) * 3
    assert sum(down) == 4 * n * 4
    assert sum(r['bytes_down_alone'] for r in c.rounds(job)) == 3 * 4 * n * 4
    assert [r['bytes_up_alone'] for r in c.rounds(job)] == list(up)
    stop_all(c)


def test_rejected_clients_in_a_group(cluster, expected):
    """Some clients' updates are over the limit: they are missing from the group's sum, and everybody knows why."""
    settings = None
    for limit in (0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03):  # one that some of the clients pass
        trial = dict(JOB, aggregation={'delta_max': limit}, rounds=1, limits={'quorum': 0.1})
        c = cluster(1, data=DATA)
        job = c.submit(**trial)
        info = h.wait_until(lambda: (lambda i: i['state'] in h.ENDED and i)(c.info(job)), 20, 'the trial')
        rejected = info['last']['clients_rejected'] if info['last'] else 24
        c.close()
        if 0 < rejected < 24:
            settings = trial
            break
    assert settings, 'no limit rejects some clients and not all'
    c = make_nodes(cluster, ['shm'] * 4)
    job, digests = c.run_job(**settings)
    assert digests == expected(**settings)
    assert c.rounds(job)[0]['clients_rejected'] == rejected
    assert c.rounds(job)[0]['clients'] == 24 - rejected
    assert traffic(c, job)[0][0] <= 8 * c.info(job)['n_params'] * 1
    stop_all(c)


def test_two_jobs_at_once(cluster, expected):
    c = make_nodes(cluster, ['shm'] * 4)
    jobs = [c.submit(**JOB), c.submit(seed=21, **JOB), c.submit(**JOB)]
    for job in jobs:
        c.wait_job(job, 60)
    assert [c.digests(j) for j in jobs] == [expected(**JOB), expected(seed=21, **JOB), expected(**JOB)]
    stop_all(c)


def test_daemons_that_come_while_a_job_runs(cluster, expected):
    """A group is made anew at a round's start: with whoever is there then."""
    c = make_nodes(cluster, ['shm'])
    job = c.begin(**JOB)
    for i in (2, 3):
        c.wait_info(job, lambda info: info['round'] >= i, 20, 'round %d' % i)
        c.start_daemon('d%d' % i, data=DATA)
        h.wait_until(lambda: [r for r in c.rounds(job) if r['daemons'] == i], 20, 'a round of %d' % i)
    again = c.finish(job, **JOB)
    n = c.info(job)['n_params']
    assert c.digests(job)[:4] == expected(**JOB)[:len(c.digests(job))]
    assert {up for up, _ in traffic(c, job)} == {8 * n}
    assert {r['daemons'] for r in c.rounds(again)} == {3} and {up for up, _ in traffic(c, again)} == {8 * n}
    stop_all(c)


# ---- memory that can't be shared ----

def test_nothing_to_share_in(cluster, expected):
    """A directory on a disk, or one that is not there: the daemon says why, is not grouped, and works."""
    c = cluster(0)
    c.share()
    for i in (1, 2):
        c.start_daemon('d%d' % i, data=DATA)
    c.start_daemon('lost', data=DATA, share_dir=os.path.join(c.dir, 'nowhere'))
    c.wait_daemons(3)
    job, digests = c.run_job(**JOB)
    assert digests == expected(**JOB)
    assert [up for up, _ in traffic(c, job)] == [2 * 8 * c.info(job)['n_params']] * 4
    lost = shown_daemons(c)['lost']
    assert lost['collective'] == 'solo' and not lost['leader'] and 'nowhere' in lost['alone']
    assert 'nowhere' in c.daemons['lost'].log()
    stop_all(c)


def test_memory_of_their_own(cluster, expected):
    """Two containers of one host, each with its own /dev/shm: not grouped, and `mfl daemons` says what differs."""
    c = cluster(0)
    other = c.share()
    c.share_dir = None
    mine = c.share()
    for name, folder in (('a1', mine), ('b1', other), ('a2', mine)):
        c.start_daemon(name, data=DATA, share_dir=folder)
    c.wait_daemons(3)
    job, digests = c.run_job(**JOB)
    assert digests == expected(**JOB)
    assert [up for up, _ in traffic(c, job)] == [2 * 8 * c.info(job)['n_params']] * 4
    shown = shown_daemons(c)
    assert {d: shown[d]['node'] for d in shown} == {'a1': 'n1/a1', 'a2': 'n1/a1', 'b1': 'n1/b1'}
    assert shown['b1']['collective'] == 'solo' and shown['b1']['alone'] == 'another /dev/shm than a1', shown['b1']
    stop_all(c)
    assert os.listdir(other) == []
    os.rmdir(other)


@lab.in_lab
def test_shared_memory_is_too_small(cluster, expected):
    """64 MiB is what a container has, and less than some models need: a file system of 256 KiB for one of 33,860
    parameters, whose sums are 271 kB."""
    settings = dict(JOB, rounds=2, model={'layers': ['flatten', {'dense': {'units': 500}}, 'relu', {'dense': {'units': 4}}]})
    c = cluster(0)
    small = os.path.join(c.dir, 'small')
    os.mkdir(small)
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=256k', 'small', small], check=True)
    try:
        for i in (1, 2, 3):
            c.start_daemon('d%d' % i, data=DATA, share_dir=small)
        c.wait_daemons(3)
        job, digests = c.run_job(**settings)
        assert digests == expected(**settings)
        n = c.info(job)['n_params']
        assert 8 * n > 256 * 1024
        assert [up for up, _ in traffic(c, job)] == [3 * 8 * n] * 2
        logs = ''.join(d.log() for d in c.daemons.values())
        assert small in logs and 'room' in logs
        assert c.run_job()[1] == expected()  # a model that fits shares as before
        assert [d.stop() for d in c.daemons.values()] == [0, 0, 0]
        assert os.listdir(small) == []
    finally:
        c.close()
        subprocess.run(['umount', small], check=True)


# ---- two hosts ----

def make_hosts(cluster, config=None, own_memory=False):
    """The server, and two hosts with two daemons each; nothing says which host a daemon is on but the host itself."""
    c = cluster.empty(dict(FAST, insecure_listen='true', **(config or {})))
    hosts = [lab.Host(i, own_memory) for i in (1, 2)]
    c.start_server(listen='0.0.0.0:0')
    port = c.address.rsplit(':', 1)[1]
    for i, host in enumerate(hosts):
        for j in (1, 2):
            c.start_daemon('h%d-%d' % (i + 1, j), node=None, data=DATA, prefix=host.prefix,
                           server='%s:%s' % (host.gateway, port))
    c.wait_daemons(4)
    return c, hosts


def close_hosts(c, hosts):
    for host in hosts:
        host.mend()
    c.close()
    for host in hosts:
        host.close()


def shown_nodes(c):
    """{node: [names of its daemons]} of those that are there, and the leaders."""
    shown = [d for d in shown_daemons(c).values() if d['state'] != 'lost']
    nodes = {}
    for d in shown:
        nodes.setdefault(d['node'], []).append(d['name'])
    return {n: sorted(d) for n, d in nodes.items()}, sorted(d['name'] for d in shown if d['leader'])


@lab.in_lab
@pytest.mark.parametrize('own_memory', [False, True])
def test_two_hosts_are_two_groups(cluster, expected, own_memory):
    """Network namespaces of one machine, whose memory is one or is not: two uploads a round, and a leader for each."""
    c, hosts = make_hosts(cluster, own_memory=own_memory)
    try:
        job, digests = c.run_job(**JOB)
        n = c.info(job)['n_params']
        assert digests == expected(**JOB)
        assert [up for up, _ in traffic(c, job)] == [2 * 8 * n] * 4
        assert sum(down for _, down in traffic(c, job)) == 2 * 4 * n * 5
        nodes, leaders = shown_nodes(c)
        assert sorted(nodes.values()) == [['h1-1', 'h1-2'], ['h2-1', 'h2-2']]
        assert len(leaders) == 2 and {name[:2] for name in leaders} == {'h1', 'h2'}
        assert [len(x) for x in c.nodes(job).values()] == [2] * 4
    finally:
        close_hosts(c, hosts)


SLOW = dict(JOB, training={'steps': 15, 'epochs': None, 'batch': 10})


def cut_in_mid_round(c, hosts, job):
    c.wait_info(job, lambda i: i['in_round'] >= 2 and i['phase'] == 'train' and i['daemons'] == 4, 20, 'round 2')
    hosts[1].cut()
    return c.info(job)['in_round']


@lab.in_lab
def test_host_cut_off_quorum(cluster):
    """Half of the clients are enough, and a daemon is not dead yet when the deadline comes: the round closes without the
    host. Its daemons come back when the cable is in again, and are a group again."""
    c, hosts = make_hosts(cluster, {'dead_after': '6s'})
    try:
        # Of the deadline a round needs a small part only, also on a busy machine.
        job = c.submit(**dict(JOB, rounds=10000, limits={'quorum': 0.5, 'deadline': '2s'}, evaluation={'every': 0},
                              training={'steps': 5, 'epochs': None, 'batch': 10}))
        number = cut_in_mid_round(c, hosts, job)
        by_quorum = h.wait_until(lambda: [r for r in c.rounds(job) if r['clients'] < 24], 20, 'a round by quorum')
        assert [r['round'] for r in by_quorum][0] in (number, number + 1)
        assert by_quorum[0]['clients'] >= 12 and by_quorum[0]['attempt'] == 0
        c.wait_info(job, lambda i: i['daemons'] == 2 and i['phase'] == 'train', 30, 'rounds without the host')
        at = c.info(job)['in_round']
        c.wait_info(job, lambda i: i['round'] > at + 1, 20, 'rounds without the host')
        hosts[1].mend()
        c.wait_info(job, lambda i: i['daemons'] == 4 and i['phase'] == 'train', 30, 'the host')
        at = c.info(job)['in_round']
        c.wait_info(job, lambda i: i['round'] > at + 2, 20, 'rounds with the host')
        with c.operator() as o:
            o.request('stop_job', {'job': job})
        n = c.info(job)['n_params']
        late = [r for r in c.rounds(job) if r['round'] > at]
        assert late[-1]['clients'] == 24 and late[-1]['bytes_up'] == 2 * 8 * n and late[-1]['bytes_up_alone'] == 4 * 8 * n
        nodes, leaders = shown_nodes(c)
        assert sorted(nodes.values()) == [['h1-1', 'h1-2'], ['h2-1', 'h2-2']] and len(leaders) == 2
    finally:
        close_hosts(c, hosts)


@lab.in_lab
def test_host_cut_off_all_clients(cluster, expected):
    """Every client is wanted, and there is time: those of the host go to the others, in the same round."""
    c, hosts = make_hosts(cluster)
    try:
        settings = dict(SLOW, limits={'deadline': '600s'})
        job = c.begin(**settings)
        at = cut_in_mid_round(c, hosts, job)
        c.wait_info(job, lambda i: i['round'] > at, 40, 'rounds without the host')
        c.finish(job, **settings)
        assert {(r['clients'], r['attempt']) for r in c.rounds(job)} == {(24, 0)}
        hosts[1].mend()
        h.wait_until(lambda: len(shown_nodes(c)[0]) == 2 and len(sum(shown_nodes(c)[0].values(), [])) == 4, 20, 'the host')
        again, digests = c.run_job(**JOB)
        assert digests == expected(**JOB)
        assert [up for up, _ in traffic(c, again)] == [2 * 8 * c.info(again)['n_params']] * 4
    finally:
        close_hosts(c, hosts)
