# SPDX-License-Identifier: Apache-2.0
"""A cluster that speaks TLS, with the certificates of a mfl_certs.Ca."""
import os
import shutil
import signal

import mfl_harness as h
import mfl_wire as w


class TlsCluster(h.Cluster):
    """ann is the operator unless somebody else is named."""

    def __init__(self, directory, ca, **config):
        self.ca = ca
        self.cert, self.key = os.path.join(str(directory), 'server.pem'), os.path.join(str(directory), 'server.key')
        settings = {'tls_cert': self.cert, 'tls_key': self.key, 'tls_ca': ca.ca}
        settings.update(config)
        super().__init__(directory, settings)
        self.install('server')

    def install(self, file):
        shutil.copy(self.ca.path(file + '.key'), self.key)
        shutil.copy(self.ca.path(file + '.pem'), self.cert)

    def reload(self):
        n = self.server.log().count('read again') + self.server.log().count('reload:')
        self.server.signal(signal.SIGHUP)
        h.wait_until(lambda: self.server.log().count('read again') + self.server.log().count('reload:') > n, 10, 'the reload')

    def start_daemon(self, name='d1', pair=None, **options):  # pylint: disable=arguments-differ
        cert, key = pair or self.ca.pairs[name]
        env = {'MFL_TLS_CA': self.ca.ca, 'MFL_TLS_CERT': cert, 'MFL_TLS_KEY': key}
        return super().start_daemon(name, env=env, **options)

    def operator(self, timeout=10, name='ann'):  # pylint: disable=arguments-differ
        return w.Operator(self.address, timeout, self.ca.python(self.ca.pairs[name]))

    def connect(self, name):
        return w.Connection(self.address, 10, self.ca.python(name and self.ca.pairs[name]))

    def mfl(self, *argv, name='ann', **options):  # pylint: disable=arguments-differ
        cert, key = self.ca.pairs[name]
        return super().mfl(*argv, '--tls-ca', self.ca.ca, '--tls-cert', cert, '--tls-key', key, **options)
