# SPDX-License-Identifier: Apache-2.0
"""Teams over several nodes: daemons whose node ids differ, each on a port of its own, with TLS and without."""
import os
import re
import signal
import socket

import pytest

import mfl_certs
import mfl_lab as lab
from mfl_harness import mfl, wait_until
from mfl_tls import TlsCluster

# One client in a round, and four grains in a step.
JOB = {'rounds': 3, 'data': {'partition': 'dirichlet', 'clients': 5, 'alpha': 0.5, 'min_samples': 3}, 'selection': {'clients': 1},
       'training': {'batch': 8, 'accumulate': 2, 'momentum': 0.9, 'clip_norm': 1.0}, 'parallel': {'grain': 4, 'members': 64, 'within': 'any'}}
NODES = {'d1': 'n1', 'd2': 'n2', 'd3': 'n3'}


@pytest.fixture(scope='module')
def expected(shared_cluster):
    return shared_cluster(1).run_job(**JOB)[1]


def start(c, name, listen='127.0.0.1:0', **options):
    return c.start_daemon(name, node=options.pop('node', NODES.get(name)), more=['--peer-listen', listen], **options)


def start_all(c, names=('d1', 'd2', 'd3'), **options):
    for name in names:
        start(c, name, **options)
    c.wait_daemons(len(c.daemons))
    return c


def logs(c, job):
    return c.mfl('logs', job).stdout


@pytest.mark.parametrize('names,workers,team', [(['d1', 'd2'], 1, 'd2'), (['d1', 'd2', 'd3'], 1, 'd2 and d3'), (['d1', 'd2'], 3, 'd2')])
def test_the_same_model_over_tcp(cluster, expected, names, workers, team):
    c = start_all(cluster(0), names, workers=workers)
    job, digests = c.run_job(**JOB)
    assert digests == expected
    assert logs(c, job).count('daemon d1 leads a team with %s over the network\n' % team) == JOB['rounds']


def test_shards_over_tcp(cluster, expected):
    """Whatever the members keep of the optimizer's state and gradients, and however the sums travel."""
    c = start_all(cluster(0))
    for how in ({'zero': 1}, {'zero': 2, 'overlap': True, 'bucket': '64KiB'}, {'zero': 3, 'overlap': True, 'bucket': '64KiB'}):
        job, digests = c.run_job(**dict(JOB, parallel={'grain': 4, 'members': 64, 'within': 'any', **how}))
        assert digests == expected, how
        assert 'd1 leads a team with d2 and d3 over the network' in logs(c, job)


def test_two_on_one_node_and_one_elsewhere(cluster, expected):
    c = cluster(0)
    start(c, 'd1', node='n1')
    start(c, 'd2', node='n1')
    start(c, 'd3', node='n2')
    c.wait_daemons(3)
    job, digests = c.run_job(**JOB)
    assert digests == expected and 'd1 leads a team with d2 and d3 over the network' in logs(c, job)
    job, digests = c.run_job(**dict(JOB, parallel={'grain': 4, 'within': 'any', 'members': 2}))
    assert digests == expected  # a team of one node stays in its memory
    assert 'd1 leads a team with d2\n' in logs(c, job) and 'over the network' not in logs(c, job)


def test_who_does_not_listen_joins_nobody_elsewhere(cluster, expected):
    c = cluster(0)
    start(c, 'd1')
    c.start_daemon('d2', node='n2')
    c.start_daemon('d3', node='n3', more=['--team', 'off', '--peer-listen', '127.0.0.1:0'])
    c.wait_daemons(3)
    job, digests = c.run_job(**JOB)
    assert digests == expected and 'leads' not in logs(c, job)
    start(c, 'd4', node='n4')
    c.wait_daemons(4)
    for within, teams in (('node', 0), ('any', JOB['rounds'])):
        job, digests = c.run_job(**dict(JOB, parallel={'grain': 4, 'members': 64, 'within': within}))
        assert digests == expected and logs(c, job).count('d1 leads a team with d4 over the network') == teams


def test_what_is_shown(cluster):
    c = start_all(cluster(0))
    job = c.begin(**JOB)
    wait_until(lambda: re.search(r'(?m)^d1 +3 +tcp +d2, d3 *$', c.mfl('show', job, '--teams').stdout), 30, 'a team in the table')

    def lost():
        """Between two rounds there is no team to lose."""
        if c.daemons['d3'].alive():
            c.daemons['d3'].kill()
        elif 'd3' not in c.mfl('daemons').stdout:
            start(c, 'd3')
        return re.search(r'(?m)^last lost: daemon ', c.mfl('show', job, '--teams').stdout)
    wait_until(lost, 60, 'a reason')
    shown = c.mfl('show', job, '--teams').stdout
    assert 'last lost: %s\n' % c.mfl_json('show', job)['teams']['last_lost'] in shown
    c.finish(job, **JOB)


@pytest.mark.parametrize('victim', ['d1', 'd2', 'd3'])
def test_a_killed_member_costs_no_bit(cluster, victim):
    c = start_all(cluster(0))
    few = dict(JOB, evaluation={'every': 0})
    job = c.begin(**few)
    c.wait_info(job, lambda i: i['round'] >= 1, 30, 'round 1')
    c.daemons[victim].kill()
    c.finish(job, **few)
    assert 'leads a team with d2 and d3 over the network' in logs(c, job)


def test_a_stopped_member_costs_no_bit(cluster):
    c = start_all(cluster(0))
    job = c.begin(**JOB)
    c.wait_info(job, lambda i: i['round'] >= 1, 30, 'round 1')
    c.daemons['d2'].signal(signal.SIGSTOP)
    at = c.info(job)['round']
    c.wait_info(job, lambda i: i['round'] >= at + 2, 30, 'rounds without d2')
    c.daemons['d2'].signal(signal.SIGCONT)  # what it still does for its old team is nobody's business
    c.finish(job, **JOB)


def test_a_port_that_cannot_be_reached(cluster, expected):
    """As behind a firewall that lets only one side through: d1 is said to be where nobody listens."""
    with socket.create_server(('127.0.0.1', 0)) as taken:
        closed = '127.0.0.1:%d' % taken.getsockname()[1]
    c = cluster(0)
    c.start_daemon('d1', node='n1', more=['--peer-listen', '127.0.0.1:0', '--peer-address', closed])
    start(c, 'd2')
    c.wait_daemons(2)
    job, digests = c.run_job(60, **JOB)
    assert digests == expected
    assert re.search(r"rank 0 of the team can't be reached at %s: Connection refused" % closed, logs(c, job))
    assert re.search(r"(?m)^last lost: daemon d2 can't connect to daemon d1: .* can't be reached", c.mfl('show', job, '--teams').stdout)
    assert c.mfl_json('show', job)['teams']['unreached'] >= 1


def test_garbage_on_the_port(cluster, expected):
    c = start_all(cluster(0), ['d1', 'd2'])
    found = re.search(r'reach this one at 127.0.0.1:(\d+)', c.daemons['d1'].log())
    held = []
    for k in range(80):
        s = socket.create_connection(('127.0.0.1', int(found.group(1))), 5)
        s.sendall([b'', b'GET / HTTP/1.1\r\n\r\n', b'MFL1' + bytes(20), b'MFL1\x01\0\0\0\xff\xff\xff\xff' + bytes(4000)][k % 4])
        held.append(s)
    job, digests = c.run_job(**JOB)
    assert digests == expected and 'd1 leads a team with d2 over the network' in logs(c, job)
    for s in held:
        s.close()
    assert 'peers: 127.0.0.1:' in c.daemons['d1'].log()


@pytest.mark.parametrize('more,words', [
    (['--peer-listen', '0.0.0.0:0'], 'no TLS is configured'),
    (['--peer-listen', 'http://x'], 'not a URL'),
    (['--peer-address', 'node7'], 'set peer_listen, too'),
])
def test_a_wrong_configuration_ends_the_daemon(cluster, more, words):
    c = cluster(0)
    daemon = c.start_daemon('d1', more=more)
    assert daemon.wait(10) == 78 and words in daemon.log()


def test_a_port_behind_a_firewall(cluster, expected):
    """One that drops what comes: a listener that accepts nobody, and has as many waiting as it takes."""
    c = cluster(0)
    with socket.create_server(('127.0.0.1', 0), backlog=0) as silent:
        waiting = []
        for _ in range(4):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(silent.getsockname())
        c.start_daemon('d1', node='n1', more=['--peer-listen', '127.0.0.1:0', '--peer-address', '127.0.0.1:%d' % silent.getsockname()[1]])
        start(c, 'd2')
        c.wait_daemons(2)
        job, digests = c.run_job(60, **dict(JOB, rounds=1))
        assert digests == expected[:1] and 'no answer within 8 s; is there a firewall?' in logs(c, job)
        for s in waiting:
            s.close()


# ---- TLS ----

class Pki:
    """The certificates of `mfl pki`, as people use them: a daemon's is a client's only."""

    def __init__(self, directory, *hosts):
        self.dir, self.pairs = str(directory), {}
        self.ca = os.path.join(self.dir, 'ca.pem')
        self.run('init')
        self.run('issue', 'server', 'server', *(word for host in hosts for word in ('--host', host)))
        for name, role in (('ann', 'operator'), ('d1', 'daemon'), ('d2', 'daemon'), ('d3', 'daemon')):
            self.run('issue', role, name)
            self.pairs[name] = self.file(name, 'cert.pem'), self.file(name, 'key.pem')

    def run(self, *argv):
        mfl('pki', *argv, '--dir', self.dir)

    def file(self, name, file):
        return os.path.join(self.dir, 'issued', name, file)

    def path(self, file):
        name, kind = file.rsplit('.', 1)
        return self.file(name, 'cert.pem' if kind == 'pem' else 'key.pem')

    def python(self, pair=None):
        return mfl_certs.Ca.python(self, pair)


def test_the_same_model_over_tls(tmp_path, expected):
    with TlsCluster(tmp_path / 'c', Pki(tmp_path / 'pki', '127.0.0.1')) as c:
        c.start_server()
        start_all(c)
        job, digests = c.run_job(**JOB)
        assert digests == expected
        assert logs(c, job).count('daemon d1 leads a team with d2 and d3 over the network\n') == JOB['rounds']
        again = c.begin(**JOB)
        c.wait_info(again, lambda i: i['round'] >= 1, 30, 'round 1')
        c.daemons['d2'].kill()
        c.finish(again, **JOB)


@lab.in_lab
def test_hosts_that_vanish(tmp_path):
    """Daemons in network namespaces, with TLS; one host's cable is pulled, and nobody is told."""
    with open('/proc/sys/net/ipv4/ip_forward', 'w', encoding='ascii') as f:
        f.write('1')
    hosts = [lab.Host(i) for i in (1, 2)]
    ca = Pki(tmp_path / 'pki', '127.0.0.1', *(host.gateway for host in hosts))
    with TlsCluster(tmp_path / 'c', ca, dead_after='3s', reconnect_grace='500ms') as c:
        try:
            c.start_server(listen='0.0.0.0:0')
            port = c.address.rsplit(':', 1)[1]
            c.address = '127.0.0.1:' + port
            for i, host in enumerate(hosts, 1):
                lab.ip('route', 'add', 'default', 'via', host.gateway, prefix=host.prefix)
                c.start_daemon('d%d' % i, node='n%d' % i, server='%s:%s' % (host.gateway, port), prefix=host.prefix,
                               more=['--peer-listen', '10.77.%d.2:0' % i])
            c.wait_daemons(2)
            job = c.begin(**JOB)
            c.wait_info(job, lambda i: i['round'] >= 2, 30, 'round 2')
            hosts[1].cut()
            at = c.info(job)['round']
            c.wait_info(job, lambda i: i['round'] >= at + 2, 60, 'rounds without d2')
            hosts[1].mend()
            n = logs(c, job).count('leads a team with d2 over the network')
            wait_until(lambda: logs(c, job).count('leads a team with d2 over the network') > n, 60, 'd2 in a team again')
            c.finish(job, **JOB)
            assert n
        finally:
            for host in hosts:
                host.mend()
                host.close()


@lab.in_lab
def test_a_host_that_may_not_connect(tmp_path):
    """Others reach d2, and it reaches the server, but its connections to others' ports are dropped. So d2 is the one that joins no team."""
    with open('/proc/sys/net/ipv4/ip_forward', 'w', encoding='ascii') as f:
        f.write('1')
    hosts = [lab.Host(i) for i in (1, 2, 3)]
    ca = Pki(tmp_path / 'pki', '127.0.0.1', *(host.gateway for host in hosts))
    with TlsCluster(tmp_path / 'c', ca) as c:
        try:
            c.start_server(listen='0.0.0.0:0')
            port = c.address.rsplit(':', 1)[1]
            c.address = '127.0.0.1:' + port
            for i, host in enumerate(hosts, 1):
                lab.ip('route', 'add', 'default', 'via', host.gateway, prefix=host.prefix)
                c.start_daemon('d%d' % i, node='n%d' % i, server='%s:%s' % (host.gateway, port), prefix=host.prefix,
                               more=['--peer-listen', '10.77.%d.2:7500' % i])
            c.wait_daemons(3)
            lab.ip('rule', 'add', 'ipproto', 'tcp', 'dport', '7500', 'priority', '10', 'prohibit', prefix=hosts[1].prefix)
            job = c.run_job(60, **dict(JOB, rounds=2))[0]
            shown = logs(c, job)
            assert shown.count("daemon d2 can't connect to others; is there a firewall around it? rank 0 of the team can't be reached at "
                               "10.77.1.2:7500: ") == 1, shown
            assert shown.count('d1 leads a team with d3 over the network') == 2
            assert c.mfl_json('show', job)['teams']['unreached'] == 1
        finally:
            for host in hosts:
                host.close()
