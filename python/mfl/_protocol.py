# SPDX-License-Identifier: Apache-2.0
"""The messages of proto/mfl.proto as classes of the protobuf runtime, from the description that mfl_build.py has compiled."""
from __future__ import annotations

import base64
from typing import Any, Dict

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

try:
    from . import _built
except ImportError as e:
    raise ImportError("mfl/_built.py is missing: this is the source of the package. Install it with `pip install ./python`, or import it "
                      "from the python/ of a build folder") from e

VERSION: str = _built.VERSION
PROTOCOL_MIN: int = _built.PROTOCOL_MIN
PROTOCOL_MAX: int = _built.PROTOCOL_MAX
Message = Any  # made at run time, so that there are no types to check


def _load() -> Any:
    pool = descriptor_pool.DescriptorPool()  # one of its own: another package may know another mfl.proto
    files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(_built.DESCRIPTOR))
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _load()
_CLASSES: Dict[str, Any] = {}


def message_class(name: str) -> Any:
    """The class of a message of package mfl."""
    if name not in _CLASSES:
        descriptor = _POOL.FindMessageTypeByName("mfl." + name)
        if hasattr(message_factory, "GetMessageClass"):
            _CLASSES[name] = message_factory.GetMessageClass(descriptor)
        else:  # before 4.22
            factory: Any = message_factory.MessageFactory(_POOL)
            _CLASSES[name] = factory.GetPrototype(descriptor)
    return _CLASSES[name]


def enum_values(name: str) -> Dict[str, int]:
    """{name: number} of an enum of package mfl."""
    return {value.name: value.number for value in _POOL.FindEnumTypeByName("mfl." + name).values}


def envelope(kind: str, fields: Dict[str, Any], request: int = 0) -> Any:
    """An Envelope with that body."""
    message = message_class("Envelope")()
    if request:
        message.request = request
    body = getattr(message, kind)
    body.SetInParent()
    _fill(body, fields)
    return message


def _fill(message: Any, fields: Dict[str, Any]) -> None:
    """A dict is a message within the message."""
    for name, value in fields.items():
        if isinstance(value, dict):
            getattr(message, name).SetInParent()
            _fill(getattr(message, name), value)
        else:
            setattr(message, name, value)
