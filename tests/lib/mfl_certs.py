# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests, made by the `openssl` program: a CA, and whatever it issues, revokes, or dates wrongly."""
import os
import ssl
import subprocess
import time

CONFIG = '''
[ca]
default_ca = this
[this]
dir = {dir}
database = {dir}/index.txt
serial = {dir}/serial
crlnumber = {dir}/crlnumber
new_certs_dir = {dir}
certificate = {dir}/ca.pem
private_key = {dir}/ca.key
default_md = sha256
default_days = 30
default_crl_days = 30
policy = any
unique_subject = no
copy_extensions = copy
string_mask = utf8only
[any]
organizationName = optional
organizationalUnitName = optional
commonName = optional
[req]
distinguished_name = none
[none]
'''


def openssl(*argv):
    done = subprocess.run(['openssl', *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30,
                          check=False)
    assert done.returncode == 0, 'openssl %s: %s' % (' '.join(argv), done.stdout)


def stamp(days):
    """A date so many days from now, as `openssl ca` takes it."""
    return time.strftime('%Y%m%d%H%M%SZ', time.gmtime(time.time() + days * 86400))


class Ca:
    def __init__(self, directory, name='Test CA'):
        self.dir = str(directory)
        os.makedirs(self.dir, exist_ok=True)
        self.config = self.path('openssl.cnf')
        for file, text in (('openssl.cnf', CONFIG.format(dir=self.dir)), ('index.txt', ''), ('serial', '1000\n'),
                           ('crlnumber', '01\n')):
            with open(self.path(file), 'w', encoding='ascii') as f:
                f.write(text)
        self.ca = self.path('ca.pem')
        openssl('req', '-x509', '-config', self.config, '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes',
                '-keyout', self.path('ca.key'), '-out', self.ca, '-days', '30', '-subj', '/CN=' + name,
                '-addext', 'basicConstraints=critical,CA:TRUE', '-addext', 'keyUsage=critical,keyCertSign,cRLSign')

    def path(self, name):
        return os.path.join(self.dir, name)

    def issue(self, name, roles=(), san='', file=None, begin=-1, end=30, site=''):
        """(certificate, key) of a new pair: CN=name, an OU for each role, O=site; begin and end in days from now."""
        file = file or name
        cert, key, request = self.path(file + '.pem'), self.path(file + '.key'), self.path(file + '.csr')
        subject = ('/O=' + site if site else '') + ''.join('/OU=' + r for r in roles) + '/CN=' + name
        openssl('req', '-new', '-config', self.config, '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes',
                '-keyout', key, '-out', request, '-subj', subject,
                *(['-addext', 'subjectAltName=' + san] if san else []))
        os.chmod(key, 0o600)
        openssl('ca', '-batch', '-notext', '-preserveDN', '-config', self.config, '-in', request, '-out', cert,
                '-startdate', stamp(begin), '-enddate', stamp(end))
        return cert, key

    def server(self, file='server', **options):
        return self.issue('server', san='DNS:localhost,IP:127.0.0.1', file=file, **options)

    def revoke(self, *certs):
        """The revocation list that says so."""
        for cert in certs:
            openssl('ca', '-config', self.config, '-revoke', cert)
        crl = self.path('crl.pem')
        openssl('ca', '-config', self.config, '-gencrl', '-out', crl)
        return crl

    def python(self, pair=None):
        """What Python's ssl needs to reach a server of this CA with that certificate, or with none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.ca)
        if pair:
            context.load_cert_chain(*pair)
        return context
