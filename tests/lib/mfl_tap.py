# SPDX-License-Identifier: Apache-2.0
"""A tap in one daemon's wire: it hands frames on one by one, and a test looks at each before it goes on.

So a process can be hit at an exact step of the protocol: its announce has arrived and the others' has not; the order to
combine is in the leader's socket; half of an upload has been sent.
"""
import socket
import ssl
import threading

import mfl_harness as h
import mfl_wire as w


class Tap(h.Proxy):
    """on_frame(tap, up, kind, body) is called on the tap's own threads, one for each direction, before a frame is handed on.
    It may block, which is a slow network, and signal processes. What it returns, if anything, is called after the frame was
    handed on; False loses the frame, and with it the connection. `seen` holds (up, kind, body) of all that went through."""

    def __init__(self, target, on_frame=None):
        self.on_frame = on_frame
        self.instance = 0  # of the daemon that greeted last
        self.seen, self.error = [], None
        super().__init__(target)

    @staticmethod
    def _read(source, n):
        data = bytearray()
        while len(data) < n:
            more = source.recv(n - len(data))
            if not more:
                raise EOFError
            data += more
        return bytes(data)

    def _frame(self, source):
        """(kind, body, its bytes) of the next one."""
        header = self._read(source, w.HEADER.size)
        _, _, _, n_envelope, n_payload, _, _ = w.HEADER.unpack(header)
        data = self._read(source, n_envelope)
        payload = self._read(source, n_payload)
        envelope = w.decode('Envelope', data)
        kind = next(k for k, v in envelope.items() if k not in ('request', 'via', 'term') and v is not None)
        return kind, dict(envelope[kind], payload_bytes=n_payload), header + data + payload

    def _pump(self, source, sink, up):
        try:
            while True:
                kind, body, data = self._frame(source)
                if kind == 'hello':
                    self.instance = body['instance']
                self.seen.append((up, kind, body))
                after = self.on_frame and self.on_frame(self, up, kind, body)
                if after is False:
                    break
                sink.sendall(data)
                if after:
                    after()
        except (OSError, EOFError):
            pass
        except Exception as e:  # a mistake in the test, which shows it
            self.error = e
        for s in (source, sink):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            with self.lock:
                self.sockets.discard(s)

    def bodies(self, kind, up=None):
        return [body for u, k, body in list(self.seen) if k == kind and up in (None, u)]

    def close(self):
        self.closing = True
        self.listener.close()
        with self.lock:
            sockets = list(self.sockets)
        for s in sockets:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        assert self.error is None, repr(self.error)


class TlsTap(h.Proxy):
    """A server in the middle: it has the server's certificate and its daemons', reads what they tell each other, and changes it.
    change(name, up, kind, body), name being the daemon's, returns the body to hand on instead, or None for the frame as it is. It is called under
    a lock. ca: the mfl_certs.Ca; pair: the server's (certificate, key)."""

    def __init__(self, target, ca, pair, change):
        self.ca, self.change, self.turn, self.error = ca, change, threading.Lock(), None
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(*pair)
        self.context.load_verify_locations(ca.ca)
        self.context.verify_mode = ssl.CERT_REQUIRED
        super().__init__(target)

    def _accept(self):
        while not self.closing:
            try:
                down, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(down,), daemon=True).start()

    def _serve(self, down):
        try:
            down = self.context.wrap_socket(down, server_side=True)
            subject = {k: v for part in down.getpeercert()['subject'] for k, v in part}
            name = subject['commonName']
            host, port = self.target.rsplit(':', 1)
            up = self.ca.python(self.ca.pairs[name]).wrap_socket(socket.create_connection((host, int(port)), 5), server_hostname=host)
        except (OSError, KeyError):
            down.close()
            return
        for s in (down, up):
            s.settimeout(None)
        with self.lock:
            self.sockets |= {up, down}
        for a, b, upwards in ((down, up, True), (up, down, False)):
            threading.Thread(target=self._carry, args=(name, a, b, upwards), daemon=True).start()

    def _changed(self, name, up, envelope, payload, data):
        kind = next(k for k, v in envelope.items() if k not in ('request', 'via', 'term') and v is not None)
        with self.turn:
            body = self.change(name, up, kind, envelope[kind])
        if body is None:
            return data
        return w.frame(kind, {k: v for k, v in body.items() if v is not None}, envelope['request'], payload)

    def _carry(self, name, source, sink, up):
        try:
            while True:
                header = Tap._read(source, w.HEADER.size)
                _, _, _, n_envelope, n_payload, _, _ = w.HEADER.unpack(header)
                data = Tap._read(source, n_envelope)
                payload = Tap._read(source, n_payload)
                sink.sendall(self._changed(name, up, w.decode('Envelope', data), payload, header + data + payload))
        except (OSError, EOFError):
            pass
        except Exception as e:  # a mistake in the test, which shows it
            self.error = e
        self._reset(source, sink)

    def close(self):
        super().close()
        assert self.error is None, repr(self.error)
