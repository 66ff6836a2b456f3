# SPDX-License-Identifier: Apache-2.0
"""A connection to the server: frames, the greeting, liveness, and one request after another.

Happy path: connect -> (TLS) -> Hello -> Welcome -> request -> answers -> Bye. Failures: no server or no TLS (ConnectionLost); a Bye
(ConnectionLost, or ConnectionRefused where it rules out another try); end of file; silence for longer than Welcome.dead_ms; a frame that
breaks the protocol (ProtocolError); a Failure of the server (RequestError). A connection belongs to one thread.
"""
from __future__ import annotations

import socket
import ssl
import struct
import time
from typing import Any, Callable, Dict, NamedTuple, Optional, Type

from . import _protocol
from ._config import Address
from ._crc32c import crc32c
from .errors import (Conflict, ConnectionLost, ConnectionRefused, Denied, InvalidRequest, LimitReached, MflError, NotFound, ProtocolError,
                     RequestError, WaitTimeout)

_HEADER = struct.Struct("<4sHHIIII")
_MAGIC = b"MFL1"
_ENVELOPE_EARLY, _ENVELOPE_MAX, _PAYLOAD_MAX = 64 << 10, 1 << 20, 4 << 20
_FAILURES: Dict[str, Type[RequestError]] = {
    "FAILURE_INVALID": InvalidRequest, "FAILURE_NOT_FOUND": NotFound, "FAILURE_CONFLICT": Conflict, "FAILURE_LIMIT": LimitReached,
    "FAILURE_DENIED": Denied}
_TRY_AGAIN_LATER = "is mfl-server running there? server= or $MFL_SERVER gives another address"

# Given a Params message and the size of its payload: where the payload goes.
Sink = Callable[[Any, int], memoryview]


class Frame(NamedTuple):
    """An Envelope without its payload; `kind` is the name of its body."""

    kind: str
    body: Any
    request: int


class Connection:
    """Opens at once. timeout: seconds for connecting and for the greeting together."""

    def __init__(self, address: Address, tls: Optional[ssl.SSLContext], timeout: float):
        self.address = address
        self.requests = 0
        self.heartbeat, self.dead = timeout, timeout
        self._welcomed = False
        self._sent = time.monotonic()
        self._socket = self._connect(tls, timeout)
        try:
            self._greet()
        except BaseException:
            self._socket.close()
            raise

    # -- opening and closing --

    def _connect(self, tls: Optional[ssl.SSLContext], timeout: float) -> socket.socket:
        try:
            plain = socket.create_connection((self.address.host, self.address.port), timeout)
        except OSError as e:
            raise ConnectionLost("connect to %s: %s (%s)" % (self.address.text, e.strerror or e, _TRY_AGAIN_LATER)) from e
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not tls:
            return plain
        try:
            return tls.wrap_socket(plain, server_hostname=self.address.host)
        except (OSError, ValueError) as e:
            plain.close()
            raise self._tls_failed(e) from e

    def _tls_failed(self, e: Exception) -> ConnectionLost:
        """OpenSSL's words, without its numbers."""
        if isinstance(e, ssl.SSLCertVerificationError):
            text = "the server's certificate is refused: " + e.verify_message
        elif isinstance(e, ssl.SSLError) and e.reason:
            text = e.reason.replace("_", " ").lower()
        else:
            text = getattr(e, "strerror", None) or str(e) or "the connection was closed"
        return ConnectionLost("server %s: TLS: %s; see 'mfl help tls'" % (self.address.text, text))

    def _greet(self) -> None:
        self.send("hello", {"protocol_min": _protocol.PROTOCOL_MIN, "protocol_max": _protocol.PROTOCOL_MAX, "role": 2,
                            "software": "mfl-python " + _protocol.VERSION})
        frame = self._receive(None, None)
        if frame.kind != "welcome":
            raise ProtocolError("server %s: did not answer Hello with Welcome" % self.address.text)
        welcome = frame.body
        if not _protocol.PROTOCOL_MIN <= welcome.protocol <= _protocol.PROTOCOL_MAX:
            raise ConnectionRefused("server %s: %s chose protocol %d; mfl-python %s knows %d to %d" % (
                self.address.text, welcome.software, welcome.protocol, _protocol.VERSION, _protocol.PROTOCOL_MIN, _protocol.PROTOCOL_MAX))
        self.software: str = welcome.software
        self.heartbeat = max(welcome.heartbeat_ms, 100) / 1000
        self.dead = max(welcome.dead_ms, 1000) / 1000
        self._welcomed = True

    def close(self) -> None:
        """Says goodbye. Idempotent."""
        try:
            self.send("bye", {"reason": "done"})
        except (MflError, OSError):
            pass
        self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- frames --

    def send(self, kind: str, fields: Dict[str, Any], request: int = 0, payload: Optional[memoryview] = None) -> None:
        """Sends one frame."""
        data = _protocol.envelope(kind, fields, request).SerializeToString()
        size = payload.nbytes if payload is not None else 0
        header = _HEADER.pack(_MAGIC, 1, 0, len(data), size, crc32c(data), crc32c(payload) if payload is not None and size else 0)
        try:
            self._socket.settimeout(self.dead)
            self._socket.sendall(header + data)
            if payload is not None:
                self._socket.sendall(payload)
        except (OSError, ValueError) as e:
            raise self._lost(e) from e
        self._sent = time.monotonic()

    def _lost(self, e: Optional[Exception]) -> ConnectionLost:
        if isinstance(e, ssl.SSLError):
            return self._tls_failed(e)
        text = getattr(e, "strerror", None) or (str(e) if e else "") or "the connection was closed"
        return ConnectionLost("server %s: %s" % (self.address.text, text))

    def _read(self, view: memoryview, end: Optional[float]) -> None:
        """Fills the view. end: when a WaitTimeout comes, if nothing of the frame has arrived yet."""
        have, size, heard = 0, view.nbytes, time.monotonic()  # of the time before, the caller may have used any part for itself
        while have < size:
            now = time.monotonic()
            if now - heard > self.dead:
                raise ConnectionLost("server %s: no message for %g s" % (self.address.text, self.dead))
            if end is not None and not have and now >= end:
                raise WaitTimeout("server %s: nothing came in time" % self.address.text)
            wait = min(self.heartbeat, self.dead) if end is None or have else min(self.heartbeat, max(end - now, 0.001))
            try:
                self._socket.settimeout(wait)
                n = self._socket.recv_into(view[have:])
            except socket.timeout:
                if self._welcomed and time.monotonic() - self._sent >= self.heartbeat:
                    self.send("ping", {})
                continue
            except (OSError, ValueError) as e:
                raise self._lost(e) from e
            if not n:
                raise self._lost(None)
            have, heard = have + n, time.monotonic()

    def _receive_one(self, end: Optional[float], sink: Optional[Sink]) -> Frame:
        header = bytearray(_HEADER.size)
        self._read(memoryview(header), end)
        magic, version, flags, size, payload_size, check, payload_check = _HEADER.unpack(header)
        if magic != _MAGIC or version != 1 or flags:
            raise ProtocolError("server %s: what came is no frame of mfl; is TLS used on one side only?" % self.address.text)
        if not 0 < size <= (_ENVELOPE_MAX if self._welcomed else _ENVELOPE_EARLY) or payload_size > (_PAYLOAD_MAX if self._welcomed else 0):
            raise ProtocolError("server %s: a frame of %d and %d bytes, over the limits" % (self.address.text, size, payload_size))
        data = bytearray(size)
        self._read(memoryview(data), None)
        if crc32c(data) != check:
            raise ProtocolError("server %s: a message was damaged on the way: its CRC-32C is wrong" % self.address.text)
        message = _protocol.message_class("Envelope").FromString(bytes(data))
        kind = message.WhichOneof("body") or ""
        body = getattr(message, kind) if kind else None
        if payload_size:
            mine = sink is not None and kind == "params" and message.request == self.requests
            to = sink(body, payload_size) if mine and sink else memoryview(bytearray(payload_size))
            self._read(to, None)
            if crc32c(to) != payload_check:
                raise ProtocolError("server %s: params were damaged on the way: their CRC-32C is wrong" % self.address.text)
        return Frame(kind, body, message.request)

    def _receive(self, end: Optional[float], sink: Optional[Sink]) -> Frame:
        """The next frame that is no Ping, Pong or Bye."""
        while True:
            frame = self._receive_one(end, sink)
            if frame.kind == "ping":
                self.send("pong", {"cookie": frame.body.cookie})
            elif frame.kind == "bye":
                refused = not self._welcomed and not frame.body.retry
                raise (ConnectionRefused if refused else ConnectionLost)(
                    "server %s: the server said: %s" % (self.address.text, frame.body.reason), frame.body.leader)
            elif frame.kind != "pong":
                return frame

    # -- requests --

    def ask(self, kind: str, fields: Dict[str, Any]) -> None:
        """Sends a request; `next` gives its answers, and drops those of earlier ones."""
        self.requests += 1
        self.send(kind, fields, self.requests)

    def next(self, end: Optional[float] = None, sink: Optional[Sink] = None) -> Frame:
        """The next answer to the newest request. end: time.monotonic() when a WaitTimeout comes; None: never, but a dead server is found."""
        while True:
            frame = self._receive(end, sink)
            if frame.request != self.requests:
                continue
            if frame.kind == "failure":
                names = {number: name for name, number in _protocol.enum_values("FailureCode").items()}
                raise _FAILURES.get(names.get(frame.body.code, ""), RequestError)(frame.body.text)
            return frame

    def call(self, kind: str, fields: Dict[str, Any], expected: str) -> Any:
        """Sends a request; returns the body of its only answer."""
        self.ask(kind, fields)
        frame = self.next()
        if frame.kind != expected:
            raise ProtocolError("server %s: sent an unexpected answer (%s); is it of another release?" % (
                self.address.text, frame.kind or "of an unknown kind"))
        return frame.body
