# SPDX-License-Identifier: Apache-2.0
"""Python's side of mfl, a federated-learning system.

    import mfl
    client = mfl.connect()                      # the server that the command `mfl` would take
    job = client.submit("job.yaml")
    for round in client.watch(job):
        print(round.round, round.accuracy)
    model = client.pull(job, "best")            # {name: numpy array}; into=net fills a PyTorch module

docs/python.md explains it. `mfl.export` makes ONNX files of PyTorch modules (it needs torch); the client needs numpy and protobuf. What a
program does not use is not imported.
"""
from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from ._built import VERSION as __version__
    from .client import Client, connect
    from .errors import (ConfigError, Conflict, ConnectionLost, ConnectionRefused, Denied, InvalidRequest, JobEnded, JobFailed, JobStopped,
                         LimitReached, MflError, NotFound, ProtocolError, RequestError, WaitTimeout)
    from .model import Model
    from .records import (Activity, AuditEntry, Daemon, DataSet, Event, Job, JobDetail, LogLine, ModelVersion, Privacy, Progress, Replay, Round,
                          Rule, SiteAnswer, Validation)

_HOMES = {
    "client": ("Client", "connect"),
    "errors": ("ConfigError", "Conflict", "ConnectionLost", "ConnectionRefused", "Denied", "InvalidRequest", "JobEnded", "JobFailed",
               "JobStopped", "LimitReached", "MflError", "NotFound", "ProtocolError", "RequestError", "WaitTimeout"),
    "model": ("Model",),
    "records": ("Activity", "AuditEntry", "Daemon", "DataSet", "Event", "Job", "JobDetail", "LogLine", "ModelVersion", "Privacy",
                "Progress", "Replay", "Round", "Rule", "SiteAnswer", "Validation"),
}
_MODULES = ("export", "train")
_HOME = {name: module for module, names in _HOMES.items() for name in names}
__all__ = ["Activity", "AuditEntry", "Client", "ConfigError", "Conflict", "ConnectionLost", "ConnectionRefused", "Daemon", "DataSet",
           "Denied", "Event", "InvalidRequest", "Job", "JobDetail", "JobEnded", "JobFailed", "JobStopped", "LimitReached", "LogLine",
           "MflError", "Model", "ModelVersion", "NotFound", "Privacy", "Progress", "ProtocolError", "Replay", "RequestError", "Round", "Rule",
           "SiteAnswer", "Validation", "WaitTimeout", "connect"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("._built", __name__).VERSION
    if name in _MODULES and importlib.util.find_spec("." + name, __name__):
        return importlib.import_module("." + name, __name__)
    if name not in _HOME:
        raise AttributeError("module 'mfl' has no attribute '%s'" % name)
    return getattr(importlib.import_module("." + _HOME[name], __name__), name)


def __dir__() -> List[str]:
    return sorted([*__all__, "__version__", *(name for name in _MODULES if importlib.util.find_spec("." + name, __name__))])
