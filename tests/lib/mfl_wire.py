# SPDX-License-Identifier: Apache-2.0
"""The wire protocol in plain Python, written from proto/mfl.proto alone: for tests that play operators, daemons and
hostile peers. It reads the message definitions from that file, so it can't drift from it unnoticed."""
import os
import re
import select
import socket
import struct
import threading
import time

PROTO = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'proto', 'mfl.proto')
HEADER = struct.Struct('<4sHHIIII')
MAGIC = b'MFL1'


def _crc_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


_CRC = _crc_table()


def crc32c(data):
    """CRC-32C (Castagnoli), reflected."""
    c = 0xFFFFFFFF
    for b in data:
        c = _CRC[(c ^ b) & 255] ^ c >> 8
    return c ^ 0xFFFFFFFF


# ---- protobuf ----

def _parse_proto(path):
    """Returns ({message: {field name: (number, type, repeated)}}, {enum: {name: value}})."""
    with open(path, encoding='utf-8') as f:
        text = re.sub(r'//[^\n]*', '', f.read())
    messages, enums = {}, {}
    for kind, name, start in [(m[1], m[2], m.end()) for m in re.finditer(r'\b(message|enum)\s+(\w+)\s*\{', text)]:
        depth, end = 1, start
        while depth:
            depth += {'{': 1, '}': -1}.get(text[end], 0)
            end += 1
        body = text[start:end - 1]
        if kind == 'enum':
            enums[name] = {m[1]: int(m[2]) for m in re.finditer(r'(\w+)\s*=\s*(\d+)\s*;', body)}
            continue
        messages[name] = {m[3]: (int(m[4]), m[2], bool(m[1]))
                          for m in re.finditer(r'(repeated\s+)?(\w+)\s+(\w+)\s*=\s*(\d+)\s*;', body)}
    return messages, enums


MESSAGES, ENUMS = _parse_proto(PROTO)
ENUM_VALUE = {name: value for values in ENUMS.values() for name, value in values.items()}
_VARINT = ('uint32', 'uint64', 'bool', 'sint32', 'sint64')


def _varint(v):
    out = bytearray()
    while v > 127:
        out.append(v & 127 | 128)
        v >>= 7
    out.append(v)
    return bytes(out)


def _scalar(type_, v):
    """(wire type, bytes) of one value."""
    if type_ in ENUMS:
        return 0, _varint(ENUM_VALUE[v] if isinstance(v, str) else v)
    if type_ in ('sint32', 'sint64'):
        return 0, _varint((v << 1 ^ v >> 63) & (1 << 64) - 1)
    if type_ in _VARINT:
        return 0, _varint(int(v) & (1 << 64) - 1)
    if type_ == 'fixed64':
        return 1, struct.pack('<Q', v)
    if type_ == 'fixed32':
        return 5, struct.pack('<I', v)
    if type_ == 'double':
        return 1, struct.pack('<d', v)
    if type_ == 'float':
        return 5, struct.pack('<f', v)
    if type_ in MESSAGES:
        data = encode(type_, v)
    else:
        data = v.encode() if isinstance(v, str) else bytes(v)
    return 2, _varint(len(data)) + data


def encode(message, fields):
    out = bytearray()
    for name, v in fields.items():
        number, type_, repeated = MESSAGES[message][name]
        if not repeated:
            wire, data = _scalar(type_, v)
            out += _varint(number << 3 | wire) + data
        elif type_ in MESSAGES or type_ in ('string', 'bytes'):
            for one in v:
                wire, data = _scalar(type_, one)
                out += _varint(number << 3 | wire) + data
        elif v:
            data = b''.join(_scalar(type_, one)[1] for one in v)
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return bytes(out)


def _read_varint(data, at):
    v = shift = 0
    while True:
        b = data[at]
        at += 1
        v |= (b & 127) << shift
        shift += 7
        if b < 128:
            return v, at


def _from_varint(type_, v):
    if type_ in ('sint32', 'sint64'):
        return v >> 1 ^ -(v & 1)
    return bool(v) if type_ == 'bool' else v


def _read_scalar(type_, wire, data, at):
    if wire == 0:
        v, at = _read_varint(data, at)
        return _from_varint(type_, v), at
    if wire == 1:
        return struct.unpack_from('<d' if type_ == 'double' else '<Q', data, at)[0], at + 8
    if wire == 5:
        return struct.unpack_from('<f' if type_ == 'float' else '<I', data, at)[0], at + 4
    n, at = _read_varint(data, at)
    v = bytes(data[at:at + n])
    if type_ in MESSAGES:
        return decode(type_, v), at + n
    return (v.decode() if type_ == 'string' else v), at + n


_DEFAULTS = {'string': '', 'bytes': b'', 'bool': False, 'double': 0.0, 'float': 0.0}


def decode(message, data):
    """A dict with every field of the message: absent scalars have their default, absent messages are None."""
    fields = MESSAGES[message]
    by_number = {number: (name, type_, repeated) for name, (number, type_, repeated) in fields.items()}
    out = {name: [] if repeated else None if type_ in MESSAGES else _DEFAULTS.get(type_, 0)
           for name, (_, type_, repeated) in fields.items()}
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        name, type_, repeated = by_number.get(key >> 3, (None, 'bytes', False))
        packed = repeated and key & 7 == 2 and type_ not in MESSAGES and type_ not in ('string', 'bytes')
        if packed:
            n, at = _read_varint(data, at)
            end = at + n
            wire = {'fixed64': 1, 'double': 1, 'float': 5}.get(type_, 0)
            while at < end:
                v, at = _read_scalar(type_, wire, data, at)
                out[name].append(v)
            continue
        v, at = _read_scalar(type_, key & 7, data, at)
        if name and repeated:
            out[name].append(v)
        elif name:
            out[name] = v
    return out


# ---- frames ----

def frame(kind, body=None, request=0, payload=b'', **header):
    """One frame; header overrides (magic, version, flags, envelope_bytes, payload_bytes, envelope_crc,
    payload_crc) make broken ones."""
    envelope = {kind: body or {}}
    if request:
        envelope['request'] = request
    data = encode('Envelope', envelope)
    h = {'magic': MAGIC, 'version': 1, 'flags': 0, 'envelope_bytes': len(data), 'payload_bytes': len(payload),
         'envelope_crc': crc32c(data), 'payload_crc': crc32c(payload) if payload else 0}
    h.update(header)
    return HEADER.pack(h['magic'], h['version'], h['flags'], h['envelope_bytes'], h['payload_bytes'],
                       h['envelope_crc'], h['payload_crc']) + data + payload


class Closed(Exception):
    """The other side has closed; reason is its Bye's, or empty."""

    def __init__(self, reason=''):
        super().__init__(reason or 'closed without Bye')
        self.reason = reason


class Failure(Exception):
    """The server refused a request."""

    def __init__(self, body):
        super().__init__(body['text'])
        self.code, self.text = body['code'], body['text']


class Connection:
    """A blocking connection. Every wait has a limit. Ping is answered inside recv. tls: an ssl.SSLContext."""

    def __init__(self, address, timeout=10, tls=None):
        host, port = address.rsplit(':', 1)
        self.timeout = timeout
        self.sock = socket.create_connection((host, int(port)), timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            self.sock = tls.wrap_socket(self.sock, server_hostname=host)
        self.buffer = bytearray()
        self.requests = 0
        self.bye, self.retry = '', None

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send_raw(self, data):
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed(self.bye) from None

    def send(self, kind, body=None, request=0, payload=b'', **header):
        self.send_raw(frame(kind, body, request, payload, **header))

    def _wait(self, seconds):
        poll = select.poll()  # select() knows no descriptor over 1023
        poll.register(self.sock, select.POLLIN)
        return poll.poll(seconds * 1000)

    def _fill(self, n, end):
        while len(self.buffer) < n:
            left = end - time.monotonic()
            waiting = self.sock.pending() if hasattr(self.sock, 'pending') else 0
            if left <= 0 or not (waiting or self._wait(left)):
                raise TimeoutError('nothing came from the server in time')
            try:
                data = self.sock.recv(1 << 20)
            except ConnectionResetError:
                data = b''
            if not data:
                raise Closed(self.bye)
            self.buffer += data

    def recv(self, timeout=None):
        """(kind, body, request, payload) of the next frame that is not a Ping."""
        end = time.monotonic() + (timeout or self.timeout)
        while True:
            self._fill(HEADER.size, end)
            magic, version, flags, n_envelope, n_payload, crc, payload_crc = HEADER.unpack_from(self.buffer)
            assert (magic, version, flags) == (MAGIC, 1, 0), 'the server sent a wrong header'
            self._fill(HEADER.size + n_envelope + n_payload, end)
            data = bytes(self.buffer[HEADER.size:HEADER.size + n_envelope])
            payload = bytes(self.buffer[HEADER.size + n_envelope:HEADER.size + n_envelope + n_payload])
            del self.buffer[:HEADER.size + n_envelope + n_payload]
            assert crc32c(data) == crc, 'the server sent a wrong checksum'
            envelope = decode('Envelope', data)
            kinds = [k for k, v in envelope.items() if k not in ('request', 'via', 'term') and v is not None]
            assert len(kinds) == 1, kinds
            kind = kinds[0]
            if kind == 'ping':
                self.send('pong', {'cookie': envelope['ping']['cookie']})
                continue
            if kind == 'bye':
                self.bye, self.retry = envelope['bye']['reason'], envelope['bye']['retry']
                raise Closed(self.bye)
            return kind, envelope[kind], envelope['request'], payload

    def expect(self, kind, timeout=None):
        got = self.recv(timeout)
        assert got[0] == kind, 'expected %s, got %s: %s' % (kind, got[0], got[1])
        return got[1]

    def until_closed(self, timeout=10):
        """Reads until the server closes; returns its Bye's reason, or ''."""
        end = time.monotonic() + timeout
        while True:
            try:
                self.recv(max(0.01, end - time.monotonic()))
            except Closed as e:
                return e.reason


def hello(role='ROLE_OPERATOR', **fields):
    body = {'protocol_min': 1, 'protocol_max': 1, 'role': role, 'software': 'test 1'}
    body.update(fields)
    return body


class Operator(Connection):
    """What `mfl` does, without `mfl`."""

    def __init__(self, address, timeout=10, tls=None):
        super().__init__(address, timeout, tls)
        self.send('hello', hello())
        self.welcome = self.expect('welcome')

    def request(self, kind, body=None, timeout=None):
        self.requests += 1
        self.send(kind, body, self.requests)
        while True:
            got, answer, request, _ = self.recv(timeout)
            if request != self.requests:
                continue
            if got == 'failure':
                raise Failure(answer)
            return answer

    def submit(self, text, token=''):
        body = {'text': text, 'file': 'job.yaml'}
        if token:
            body['token'] = token
        return self.request('submit', body)['job']

    def jobs(self):
        return self.request('list_jobs')['jobs']

    def info(self, job):
        return next(j for j in self.jobs() if j['job'] == job)

    def rounds(self, job):
        return sorted(self.request('show_job', {'job': job})['rounds'], key=lambda r: r['round'])

    def daemons(self):
        return self.request('list_daemons')['daemons']

    def logs(self, job):
        self.requests += 1
        self.send('watch', {'job': job, 'logs': True, 'follow': False}, self.requests)
        lines = []
        while True:
            try:
                got, answer, request, _ = self.recv(1)
            except TimeoutError:
                return lines
            if got == 'event' and answer['log'] and request == self.requests:
                lines.append(answer['log']['text'])
            elif got == 'done' and request == self.requests:
                return lines


class FakeDaemon(threading.Thread):
    """A daemon of the test's own making: greets as one, then calls on_message(self, kind, body, payload) for all that
    comes. Without it, it is one that lives (answers Ping) and never works."""

    def __init__(self, address, name, data_sets, on_message=None, **fields):
        super().__init__(daemon=True)
        self.connection = Connection(address)
        body = {'name': name, 'instance': 77, 'node': 'fake', 'backend': 'reference', 'device': 'test', 'workers': 1,
                'data_sets': data_sets}
        body.update(fields)
        self.connection.send('hello', hello('ROLE_DAEMON', **body))
        self.connection.expect('welcome')
        self.on_message = on_message
        self.seen, self.error, self.closed = [], None, None
        self.start()

    def run(self):
        try:
            while True:
                kind, body, _, payload = self.connection.recv(120)
                self.seen.append((kind, body))
                if self.on_message:
                    self.on_message(self, kind, body, payload)
        except Closed as e:
            self.closed = e.reason
        except (OSError, ValueError) as e:
            self.closed = str(e)
        except Exception as e:  # an assertion of on_message: shown by the test
            self.error = e
            self.closed = repr(e)

    def send(self, kind, body=None, **more):
        self.connection.send(kind, body, **more)

    def close(self):
        try:
            self.connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.join(5)
        self.connection.close()


class FakeServer:
    """Answers every Hello with the next of the answers, and after those with the last. Each: (kind, body). `hellos`: of the connections;
    `heard`: (kind, body) of what comes after a Welcome; `byes`: why connections ended."""

    def __init__(self, *answers):
        self.answers, self.hellos, self.heard, self.byes = list(answers), [], [], []
        self.listener = socket.create_server(('127.0.0.1', 0))
        self.address = '127.0.0.1:%d' % self.listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(sock,), daemon=True).start()

    def _talk(self, sock):
        c = Connection.__new__(Connection)
        c.sock, c.buffer, c.timeout, c.bye = sock, bytearray(), 60, ''
        try:
            self.hellos.append(c.expect('hello'))
            kind, body = self.answers[min(len(self.hellos), len(self.answers)) - 1]
            c.send(kind, body)
            while kind == 'welcome':
                self.heard.append(c.recv()[:2])
        except (Closed, OSError, TimeoutError) as e:
            self.byes.append(str(e))
        sock.close()

    def close(self):
        self.listener.close()
