# SPDX-License-Identifier: Apache-2.0
"""A mfl-serve of a test, and requests to it: as JSON, as bytes, and as whatever a socket can send."""
import http.client
import json
import os
import select
import socket
import struct

import mfl_harness as h


class Serve(h.Process):
    """models: {name: file}. Ends with the test. Listens when this returns, unless ready is False."""

    def __init__(self, folder, models=None, config=None, options=(), ready=True, env=None):
        self.path = os.path.join(str(folder), 'serve.yaml')
        with open(self.path, 'w', encoding='utf-8') as f:
            f.write(h.yaml_of(config or {}) or '{}')
        argv = [h.program('mfl-serve'), '--config', self.path, '--listen', '127.0.0.1:0', '--exit-with-stdin', *options]
        for name, file in (models or {}).items():
            argv += ['--model', '%s=%s' % (name, file)]
        read_fd, write_fd = os.pipe()
        try:
            super().__init__(argv + ['--ready-fd', str(write_fd)], os.path.join(str(folder), 'serve.log'), env, (write_fd,))
        finally:
            os.close(write_fd)
        if not select.select([read_fd], [], [], 5 * h.PATIENCE)[0]:
            raise TimeoutError('mfl-serve did not listen')
        self.address = os.read(read_fd, 300).decode().strip()
        os.close(read_fd)
        if ready:
            assert self.address, self.log()
            self.wait_ready()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    @property
    def place(self):
        host, port = self.address.rsplit(':', 1)
        return host, int(port)

    def connect(self, timeout=30):
        return http.client.HTTPConnection(*self.place, timeout=timeout)

    def wait_ready(self, timeout=10):
        h.wait_until(lambda: self.get('/v2/health/ready')[0] == 200, timeout, 'models to be loaded')

    def get(self, path, headers=None):
        return self.ask('GET', path, None, headers)

    def ask(self, method, path, body=None, headers=None):
        """(status, headers, body)"""
        connection = self.connect()
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def raw(self, timeout=30):
        return socket.create_connection(self.place, timeout)


def question(rows, datatype='FP32', **more):
    """The body that asks about rows, a list of nested lists."""
    shape, inner = [], rows
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0]
    return json.dumps({'inputs': [{'name': 'input', 'shape': shape, 'datatype': datatype, 'data': rows}], **more})


def infer(connection, model, body, headers=None, version=''):
    """(status, the answer as a dictionary with 'bits': the output's floats as hexadecimal texts)"""
    path = '/v2/models/%s%s/infer' % (model, '/versions/' + version if version else '')
    connection.request('POST', path, body, headers or {})
    answer = connection.getresponse()
    data = answer.read()
    n = answer.headers.get('Inference-Header-Content-Length')
    said = json.loads(data[:int(n)] if n else data)
    if answer.status == 200:
        if n:
            floats = struct.unpack('<%df' % ((len(data) - int(n)) // 4), data[int(n):])
        else:
            floats = [struct.unpack('<f', struct.pack('<f', v))[0] for v in said['outputs'][0]['data']]
        said['bits'] = [v.hex() for v in floats]
    return answer.status, said


def read_answer(stream):
    """One answer from a socket's file: (status, headers as a dictionary in lower case, body)."""
    line = stream.readline()
    if not line:
        return None
    headers = {}
    for header in iter(stream.readline, b'\r\n'):
        assert header, 'the head ends in the middle'
        key, value = header.decode().split(':', 1)
        headers[key.lower()] = value.strip()
    return int(line.split()[1]), headers, stream.read(int(headers.get('content-length', 0)))
