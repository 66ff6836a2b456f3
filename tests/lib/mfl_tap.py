# SPDX-License-Identifier: Apache-2.0
"""A tap in one daemon's wire: it hands frames on one by one, and a test looks at each before it goes on.

So a process can be hit at an exact step of the protocol: its announce has arrived and the others' has not; the order to
combine is in the leader's socket; half of an upload has been sent.
"""
import socket

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
