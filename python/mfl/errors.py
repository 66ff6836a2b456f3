# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as exceptions. Each carries a text for people; where the server said something, its words."""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .records import Job


class MflError(Exception):
    """The base of all exceptions of this package."""


class ConfigError(MflError, ValueError):
    """An argument, an environment variable or a file on this machine is wrong: an address, certificates, a job."""


class ConnectionLost(MflError, ConnectionError):
    """There is no server, TLS failed, the connection ended, or the server was silent for too long. Trying again may help.
    leader: the address that a server of a cluster names, because it does not lead itself; or ""."""

    def __init__(self, text: str = "", leader: str = ""):
        super().__init__(text)
        self.leader = leader


class ConnectionRefused(ConnectionLost):
    """The server turned this program away for good: for example, no protocol version in common, or a certificate without a role."""


class ProtocolError(MflError):
    """The server sent something that breaks the protocol, or data that were damaged on the way."""


class WaitTimeout(MflError, TimeoutError):
    """A wait took longer than its limit."""


class RequestError(MflError):
    """The server refused a request; the text says why."""


class InvalidRequest(RequestError):
    """What was asked for is wrong: a job file (the text names the line and the key), or a name."""


class NotFound(RequestError):
    """There is no such job, round, model, daemon or rule."""


class Conflict(RequestError):
    """It contradicts what is there: a token that was used for another job, a name that several jobs have."""


class LimitReached(RequestError):
    """The server has reached a limit of its configuration."""


class Denied(RequestError):
    """Your certificate, or the job's owner, does not allow it."""


class JobEnded(MflError):
    """A job that was waited for ended otherwise than done; `job` says how."""

    def __init__(self, job: Job):
        how = "was stopped" if job.state == "stopped" else job.state
        super().__init__("%s (%s) %s: %s" % (job.job, job.name, how, job.reason or "no reason was given"))
        self.job = job


class JobFailed(JobEnded):
    """The job failed."""


class JobStopped(JobEnded):
    """Somebody stopped the job."""
