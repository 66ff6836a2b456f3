# SPDX-License-Identifier: Apache-2.0
"""Finds the server and the certificates as the command `mfl` does: arguments, environment, ~/.config/mfl."""
from __future__ import annotations

import os
import ssl
import stat
from typing import List, NamedTuple, Optional, Sequence, Union

from .errors import ConfigError

PORT = 7433
Path = Union[str, "os.PathLike[str]"]
_FILES = ("ca", "cert", "key")


class Address(NamedTuple):
    """Where the server is; `text` as it was given."""

    host: str
    port: int
    text: str


def parse_address(text: str) -> Address:
    """"host", "host:port" or "[v6]:port"."""
    if "://" in text:
        raise ConfigError('address "%s": expected "host:port", not a URL' % text)
    host, port = text, ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ConfigError('address "%s": expected "[v6]:port"' % text)
        port = rest[1:] if rest else str(PORT)
    elif text.count(":") > 1:
        raise ConfigError('address "%s": an IPv6 address is written "[%s]:port"' % (text, text))
    else:
        host, colon, port = text.partition(":")
        port = port if colon else str(PORT)
    if not text:
        raise ConfigError('address: empty, expected "host:port"')
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ConfigError('address "%s": port "%s" is not a number up to 65535' % (text, port))
    return Address(host or "127.0.0.1", int(port), text)


def find_addresses(server: Union[str, Sequence[str], None]) -> List[Address]:
    """The argument, $MFL_SERVER, or 127.0.0.1:7433: one address; or all servers of a cluster, as a list or separated by commas."""
    given = server or os.environ.get("MFL_SERVER") or "127.0.0.1:%d" % PORT
    return [parse_address(one.strip()) for one in (given.split(",") if isinstance(given, str) else given)]


def _default_file(name: str) -> Optional[str]:
    config, home = os.environ.get("XDG_CONFIG_HOME"), os.environ.get("HOME")
    if not config and not home:
        return None
    path = os.path.join(config or os.path.join(home or "", ".config"), "mfl", name + ".pem")
    return path if os.path.exists(path) else None


def find_files(ca: Optional[Path], cert: Optional[Path], key: Optional[Path], plain: bool) -> List[str]:
    """The files of the CA, the certificate and its key; none: no TLS. They come from the arguments, $MFL_TLS_CA, $MFL_TLS_CERT
    and $MFL_TLS_KEY, or ca.pem, cert.pem and key.pem in ~/.config/mfl."""
    given = [os.fspath(path) if path is not None else None for path in (ca, cert, key)]
    if plain:
        if any(given):
            raise ConfigError("plain=True can't be combined with certificates")
        return []
    given = [path or os.environ.get("MFL_TLS_" + name.upper()) or None for path, name in zip(given, _FILES)]
    asked = any(given)
    given = [path or _default_file(name) for path, name in zip(given, _FILES)]
    if not asked and not (given[0] and given[1]):
        return []
    for path, name in zip(given, _FILES):
        if not path:
            raise ConfigError("TLS needs %s=, too (or $MFL_TLS_%s, or ~/.config/mfl/%s.pem)" % (name, name.upper(), name))
    return [path or "" for path in given]


def make_tls(files: List[str]) -> Optional[ssl.SSLContext]:
    """The context for TLS 1.3 with a certificate on both sides; None: no TLS."""
    return _make_context(*files) if files else None


def _make_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        if os.path.isdir(ca):
            for name in sorted(os.listdir(ca)):
                if name.endswith((".pem", ".crt")):
                    context.load_verify_locations(os.path.join(ca, name))
        else:
            context.load_verify_locations(ca)
    except OSError as e:
        raise ConfigError("TLS: %s: can't be read as certificates of a CA: %s" % (ca, e.strerror or e)) from e
    try:
        mode = os.stat(key).st_mode
    except OSError as e:
        raise ConfigError("TLS: %s: %s" % (key, e.strerror)) from e
    if mode & stat.S_IROTH:
        raise ConfigError("TLS: %s: everybody may read this key; chmod 600 %s" % (key, key))
    try:
        # A pass phrase would be asked for on the terminal.
        context.load_cert_chain(cert, key, lambda: "")
    except OSError as e:  # ssl.SSLError is one
        raise ConfigError("TLS: %s and %s: not a certificate and its key: %s" % (cert, key, e.strerror or e)) from e
    return context
