# SPDX-License-Identifier: Apache-2.0
"""A cluster with relays between its server and its daemons."""
import os
import select

import mfl_harness as h
from mfl_tls import TlsCluster

# Daemons by the relay that they connect to; '' is the server. A relay's own upstream is the part of its name before the last '-'.
FLAT = {'': 4}
TWO = {'a': 2, 'b': 2}
FOUR = {'a': 1, 'b': 1, 'c': 2, 'd': 2}
EIGHT = dict.fromkeys('abcdefgh', 1)
DEEP = {'a': 1, 'a-b': 2, 'a-c': 2}
THREE = {'a': 1, 'a-b': 1, 'a-b-c': 2, 'd-e': 1}
MIXED = {'': 1, 'a': 2, 'b-c': 1}


class Relay(h.Process):
    def __init__(self, cluster, name, upstream, listen='127.0.0.1:0', config=None, more=()):
        read_fd, write_fd = os.pipe()
        try:
            super().__init__([h.program('mfl-server'), '--config', config or cluster.config_path, '--upstream', upstream,
                              '--name', name, '--listen', listen, '--ready-fd', str(write_fd), '--exit-with-stdin', *more],
                             cluster.log_path('relay-' + name), None, (write_fd,))
        finally:
            os.close(write_fd)
        self.ready_fd, self.address = read_fd, None

    def wait_ready(self, timeout=20):
        """The address that it listens on; None when the program ended first."""
        if not select.select([self.ready_fd], [], [], timeout)[0]:
            raise TimeoutError('a relay did not listen within %g s' % timeout)
        self.address = os.read(self.ready_fd, 300).decode().strip() or None
        os.close(self.ready_fd)
        return self.address


class Tree(h.Cluster):
    """A server, relays, and daemons d1, d2, ... below them."""

    def __init__(self, directory, config=None):
        super().__init__(directory, config)
        self.relays, self.places = {}, {}

    def start_relay(self, name, upstream=None, **options):
        """Starts it, or starts it again at the same address."""
        old = self.relays.get(name)
        if old:
            self.others.append(old)
            options.setdefault('listen', old.address)
        relay = Relay(self, name, upstream or self.address, **options)
        self.relays[name] = relay
        assert relay.wait_ready(), 'relay %s did not start: %s' % (name, relay.log()[-2000:])
        return relay

    def plant(self, shape, data=None):
        """Starts the relays and daemons of one of the shapes above. data: of the i-th daemon."""
        n = 0
        for place in sorted(shape, key=lambda p: (p.count('-'), p)):
            above = place.rsplit('-', 1)[0] if '-' in place else ''
            if above and above not in self.relays:
                self.start_relay(above)
            if place:
                self.start_relay(place, self.relays[above].address if above else None)
            for _ in range(shape[place]):
                n += 1
                self.start_below('d%d' % n, place, data=(data[n - 1],) if data else (h.TINY,))
        self.wait_daemons(n)
        return self

    def start_below(self, name, place, **options):
        options.setdefault('node', 'host-of-' + name)
        self.places[name] = (place, options)
        server = self.relays[place].address if place else self.address
        return self.start_daemon(name, server=server, **options)

    def start_again(self, name):
        place, options = self.places[name]
        return self.start_below(name, place, **options)

    def restart_relay(self, name):
        above = name.rsplit('-', 1)[0] if '-' in name else ''
        return self.start_relay(name, self.relays[above].address if above else None)

    def close(self):
        self.others += self.relays.values()
        super().close()


class TlsTree(TlsCluster, Tree):
    """The same with TLS; a relay has the certificate of its name."""

    def start_relay(self, name, upstream=None, **options):
        cert, key = self.ca.pairs[name]
        options['config'] = self.write('relay-%s.yaml' % name, 'heartbeat: 500ms\ndead_after: 5s\ntls_cert: %s\ntls_key: %s\ntls_ca: %s\n' % (
            cert, key, self.ca.ca))
        return super().start_relay(name, upstream, **options)
