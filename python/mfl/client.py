# SPDX-License-Identifier: Apache-2.0
"""The client: what the command `mfl` does, as methods.

A Client holds no connection between calls, so that it survives restarts of the server, may be shared by threads, and costs nothing while a
notebook is idle. Reading, submitting, cloning and watching go on over a lost connection for up to `patience` seconds.
"""
from __future__ import annotations

import os
import re
import secrets
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, TypeVar, Union

import numpy as np

from . import _protocol
from ._config import Path, find_addresses, find_files, make_tls
from ._connection import Connection, Frame
from ._jobfile import JobLike, read_job
from .errors import (Conflict, ConfigError, ConnectionLost, ConnectionRefused, JobFailed, JobStopped, NotFound, ProtocolError,
                     WaitTimeout)
from .local import run_evaluate, run_predict, run_validate
from .model import Floats, Model, Tensor
from .records import (AuditEntry, Daemon, Event, Job, JobDetail, LogLine, ModelVersion, Replay, Round, Rule, SiteAnswer, Validation)

JobRef = Union[str, Job]
_PAUSE_FIRST, _PAUSE_MAX = 0.1, 2.0
_DENY, _ALLOW = 1, 2
_REGISTER, _ALIAS, _PROMOTE, _ROLLBACK, _REMOVE = 1, 2, 3, 4, 5
_EVALUATE, _PREDICT, _JOB = 2, 3, 4
_PAGE_ROWS = 1000
_T = TypeVar("_T")


def connect(server: Union[str, Sequence[str], None] = None, *, ca: Optional[Path] = None, cert: Optional[Path] = None, key: Optional[Path] = None,
            plain: bool = False, timeout: float = 10.0, patience: float = 60.0) -> Client:
    """A Client of the server "host:port", after a greeting with it.

    Without arguments it takes what the command `mfl` takes: $MFL_SERVER, or 127.0.0.1:7433; and for TLS $MFL_TLS_CA, $MFL_TLS_CERT and
    $MFL_TLS_KEY, or ca.pem, cert.pem and key.pem in ~/.config/mfl. plain: no TLS, even if there are certificates. timeout: seconds for
    connecting. patience: for how many seconds calls look for a server that went away.

    Raises ConfigError, ConnectionLost or ConnectionRefused.
    """
    client = Client(server, ca=ca, cert=cert, key=key, plain=plain, timeout=timeout, patience=patience)
    with client._open() as connection:
        client.software = connection.software
    return client


class _Patience:
    """How long a lost server is looked for."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.connected()

    def connected(self) -> None:
        self.lost: Optional[float] = None
        self.pause = _PAUSE_FIRST

    def wait(self, e: ConnectionLost, end: Optional[float] = None) -> None:
        """Sleeps before another try, or raises."""
        now = time.monotonic()
        if self.lost is None:
            self.lost, self.pause = now, _PAUSE_FIRST
        if isinstance(e, ConnectionRefused) or now - self.lost >= self.seconds:
            raise e
        if end is not None and now >= end:
            raise WaitTimeout(str(e)) from e
        time.sleep(self.pause if end is None else max(0.0, min(self.pause, end - now)))
        self.pause = min(self.pause * 2, _PAUSE_MAX)


class Client:
    """See connect(). Jobs are named by an id ("j-000001"), by a name that only one job has, by "last", or by a Job."""

    def __init__(self, server: Union[str, Sequence[str], None] = None, *, ca: Optional[Path] = None, cert: Optional[Path] = None,
                 key: Optional[Path] = None,
                 plain: bool = False, timeout: float = 10.0, patience: float = 60.0):
        """Connects to nothing yet."""
        self.addresses = find_addresses(server)
        self.address = self.addresses[0]  # the one that answered last
        self.timeout, self.patience = timeout, patience
        self.software = ""  # of the server
        self._files = find_files(ca, cert, key, plain)
        self._tls = make_tls(self._files)

    def __repr__(self) -> str:
        return "<mfl.Client of %s%s>" % (self.address.text, ", TLS" if self._tls else "")

    # -- connections --

    def _open(self) -> Connection:
        """Of a cluster: the server that leads, which one that does not lead names."""
        left = list(self.addresses)
        while True:
            left.remove(self.address)
            try:
                return Connection(self.address, self._tls, self.timeout)
            except ConnectionLost as e:
                if not left or isinstance(e, ConnectionRefused):
                    raise
                self.address = next((a for a in left if a.text == e.leader), left[0])

    def _safely(self, work: Callable[[Connection], _T]) -> _T:
        """Does what may be done twice, on as many connections as it needs."""
        patience = _Patience(self.patience)
        while True:
            try:
                with self._open() as connection:
                    return work(connection)
            except ConnectionLost as e:
                patience.wait(e)

    def _ask(self, kind: str, fields: Dict[str, Any], expected: str) -> Any:
        def work(connection: Connection) -> Any:
            return connection.call(kind, fields, expected)
        return self._safely(work)

    def _pages(self, kind: str, fields: Dict[str, Any], expected: str, keys: Callable[[Any], List[str]],
               order: Callable[[str], Any]) -> Iterator[Any]:
        """All pages of a list, each after the last key of the one before. keys: those of a page; order: what they are sorted by."""
        after = ""
        while True:
            page = self._ask(kind, {**fields, "after": after, "count": _PAGE_ROWS}, expected)
            yield page
            if not page.more:
                return
            last = (keys(page) or [""])[-1]
            if order(last) <= order(after):
                raise ProtocolError("the server says that its list goes on, but sends nothing after '%s' (%s)" % (after, expected))
            after = last

    def _change(self, kind: str, fields: Dict[str, Any]) -> str:
        """Once: if the connection breaks, nobody knows whether it was done."""
        with self._open() as connection:
            return str(connection.call(kind, fields, "done").text)

    def _id(self, job: JobRef) -> str:
        ref = job.job if isinstance(job, Job) else job
        if re.fullmatch(r"j-[0-9]{6,}", ref):
            return ref
        jobs = self.list(archived=None)
        named = [j.job for j in jobs if j.name == ref]
        if len(named) > 1:
            raise Conflict("%d jobs have the name '%s': use an id (list() shows them)" % (len(named), ref))
        if not named and ref == "last" and jobs:
            return max((j.job for j in jobs), key=lambda id_: (len(id_), id_))
        if not named:
            raise NotFound("there is no job '%s'%s" % (ref, "; list() shows the jobs" if jobs else ": the server has no jobs"))
        return named[0]

    # -- jobs --

    def submit(self, job: JobLike, *, token: Optional[str] = None) -> Job:
        """Submits a job: the path of a job file, its text (a str with a line break), or a dict of its keys.

        A lost connection is harmless: the submission has a token, and a second one with the same token gives the same job. token: one of
        your own, at most 63 characters, for programs that may be started again. Raises InvalidRequest with the line and the key of what
        is wrong. A job file that names files (model.onnx, model.initial) needs the command: `mfl submit`.
        """
        text, name = read_job(job)
        fields = {"text": text, "file": name, "token": token or secrets.token_hex(16)}
        return self.job(self._ask("submit", fields, "submitted").job)

    def clone(self, job: JobRef, *, token: Optional[str] = None) -> Job:
        """Submits the same job again."""
        return self.job(self._clone(job, {}, token))

    def forget(self, job: JobRef, client: int, *, token: Optional[str] = None) -> Job:
        """Trains a job that has ended again as if the client had never been there. Returns the new job, which takes the place of the old
        one: that is deleted with its models. A lost connection is harmless, as with submit()."""
        return self.job(self._clone(job, {"forget": True, "client": client}, token))

    def replay(self, job: JobRef, *, token: Optional[str] = None, timeout: Optional[float] = None) -> Replay:
        """Makes the committed rounds of a job again, in a job of their own, and compares the models' digests. Both jobs stay. Raises
        WaitTimeout after `timeout` seconds; with the same token, another call goes on waiting."""
        id_ = self._id(job)
        made = len(self._digests(id_))
        again = self._clone(id_, {"replay": True}, token)
        for event in self.events(again, after=2 ** 32 - 1, timeout=timeout):
            if event.job is not None and event.job.state == "failed":
                raise JobFailed(event.job)
        old, new = self._digests(id_), self._digests(again)
        wrong = [r for r in sorted(new) if new[r] != old.get(r)]
        missing = [r for r in sorted(old)[:made] if r not in new]
        differs = min(wrong + missing, default=None)
        return Replay(again, id_, len(new), differs is None, differs)

    def _clone(self, job: JobRef, how: Dict[str, Any], token: Optional[str]) -> str:
        fields = {"job": self._id(job), "token": token or secrets.token_hex(16), **how}
        return str(self._ask("clone_job", fields, "submitted").job)

    def _digests(self, job: str) -> Dict[int, Optional[str]]:
        """Of all rounds, also of more than the 1000 that show() has."""
        rounds: Dict[int, Optional[str]] = {}

        def work(connection: Connection) -> None:
            rounds.clear()
            connection.ask("watch", {"job": job, "all_rounds": True})
            while True:
                frame = connection.next()
                what = frame.body.WhichOneof("what") if frame.kind == "event" else None
                if what == "round":
                    rounds[frame.body.round.round] = frame.body.round.digest.hex()
                elif what == "info":  # the state comes after the rounds that there are
                    return
                else:
                    raise ProtocolError("%s: the server sent an unexpected answer to a watch (%s)" % (job, frame.kind))
        self._safely(work)
        return rounds

    def list(self, *, state: Optional[str] = None, name: Optional[str] = None, archived: Optional[bool] = False) -> List[Job]:
        """The jobs, in the order in which they were submitted. state: only those in that state; name: only those of that name. archived:
        True: only those that are archived, instead of the others; None: both."""
        pages = self._pages("list_jobs", {"without_archived": archived is False}, "job_list", lambda page: [j.job for j in page.jobs],
                            lambda key: (len(key), key))
        jobs = [Job._from(j) for page in pages for j in page.jobs]
        jobs = [j for j in jobs if archived is None or archived == (j.archived_unix_ms is not None)]
        kept = [j for j in jobs if (state is None or j.state == state) and (name is None or j.name == name)]
        return sorted(kept, key=lambda j: (len(j.job), j.job))

    def job(self, job: JobRef) -> Job:
        """How a job is now."""
        return self.show(job).job

    def show(self, job: JobRef) -> JobDetail:
        """A job with its file, its newest 1000 rounds, and what they cost."""
        return JobDetail._from(self._ask("show_job", {"job": self._id(job)}, "job_detail"))

    def stop(self, job: JobRef, *, after_round: bool = False) -> str:
        """Stops a job; after_round: commits the current round first. Returns what the server says."""
        return self._change("stop_after_round" if after_round else "stop_job", {"job": self._id(job)})

    def archive(self, job: JobRef, *, undo: bool = False) -> str:
        """Takes a job that has ended off the list; all else of it stays. undo: puts it back."""
        return self._change("archive_job", {"job": self._id(job), "undo": undo})

    def delete(self, job: JobRef) -> str:
        """Deletes a job that has ended, with its models."""
        return self._change("delete_job", {"job": self._id(job)})

    # -- watching --

    def events(self, job: JobRef, *, after: int = 0, crew: bool = False, timeout: Optional[float] = None) -> Iterator[Event]:
        """What happens to a job until it ends: all rounds after round `after`, without gaps, and its states and progress.

        A server that restarts is waited for (`patience`), and no round is missed or comes twice. The caller may take its time between two
        events. crew: the daemons at work, too. timeout: WaitTimeout after so many seconds. Raises NotFound if the job is deleted.
        """
        id_, patience, end = self._id(job), _Patience(self.patience), None if timeout is None else time.monotonic() + timeout
        state: Any = None
        while True:
            try:
                with self._open() as connection:
                    patience.connected()
                    connection.ask("watch", {"job": id_, "all_rounds": True, "rounds_from": after, "crew": crew})
                    while True:
                        event = self._event(id_, connection.next(end), state)
                        if event.round is not None:
                            after = event.round.round
                        if event.job is not None:
                            state = (event.job.state, event.job.reason)
                        yield event
                        if event.job is not None and event.job.ended:
                            return
            except ConnectionLost as e:
                patience.wait(e, end)

    @staticmethod
    def _event(job: str, frame: Frame, state: Any) -> Event:
        if frame.kind == "done":
            raise NotFound("%s: the server ended the watch, because the job was deleted" % job)
        what = frame.body.WhichOneof("what") if frame.kind == "event" else None
        if what == "round":
            return Event("round", None, Round._from(frame.body.round))
        if what != "info":
            raise ProtocolError("%s: the server sent an unexpected answer to a watch (%s)" % (job, frame.kind))
        info = Job._from(frame.body.info)
        return Event("progress" if (info.state, info.reason) == state else "state", info, None, Event._crew(frame.body))

    def watch(self, job: JobRef, *, after: int = 0, timeout: Optional[float] = None) -> Iterator[Round]:
        """The rounds of a job, each one as soon as it is committed, until the job ends; see events(). Raises JobFailed or JobStopped after
        the last round of a job that ends so."""
        for event in self.events(job, after=after, timeout=timeout):
            if event.round is not None:
                yield event.round
            elif event.job is not None:
                _raise_if_bad(event.job)

    def wait(self, job: JobRef, *, timeout: Optional[float] = None) -> Job:
        """Waits until a job is done, and returns it. Raises JobFailed or JobStopped, and WaitTimeout after `timeout` seconds."""
        last: Optional[Job] = None
        for event in self.events(job, after=2 ** 32 - 1, timeout=timeout):
            last = event.job or last
        assert last is not None  # events() ends with one
        _raise_if_bad(last)
        return last

    def logs(self, job: JobRef, *, follow: bool = False, timeout: Optional[float] = None) -> Iterator[LogLine]:
        """The newest 10000 lines of a job's log; follow: and what comes, until the job ends. Survives a restart of the server."""
        id_, patience, seq = self._id(job), _Patience(self.patience), 0
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                with self._open() as connection:
                    patience.connected()
                    connection.ask("watch", {"job": id_, "logs": True, "follow": follow})
                    while True:
                        frame = connection.next(end)
                        if frame.kind == "done":
                            return
                        line = frame.body.log if frame.kind == "event" else None
                        if line is not None and line.seq > seq:
                            seq = line.seq
                            yield LogLine(line.seq, line.time_ms, line.text)
            except ConnectionLost as e:
                patience.wait(e, end)

    # -- models --

    def models(self, job: JobRef) -> List[Round]:
        """The rounds of a job whose models are kept."""
        return [Round._from(r) for r in self._ask("list_models", {"job": self._id(job)}, "model_list").models]

    def pull(self, job: JobRef, round: Union[int, str] = "last", *, into: Any = None) -> Model:  # noqa: A002
        """Fetches a model, a mapping of names to numpy arrays. round: a number, "last" or "best" (by test accuracy).

        into: also copies it into a PyTorch module, a state_dict or a dict of arrays, by name (Model.into). The bytes are checked with
        CRC-32C frame by frame, and the whole with the SHA-256 of the round.
        """
        fields = {"job": self._id(job), "round": _which(round), "tensors": True}
        model = self._safely(lambda connection: _pull(connection, fields))
        if into is not None:
            model.into(into)
        return model

    def predict(self, model: Union[JobRef, Path], data: Any, *, round: Union[int, str, None] = None,  # noqa: A002
                logits: bool = False, precision: str = "fp32", program: Path = "mfl") -> Floats:
        """A model's answers for samples: probabilities, the values of a regression, or (logits) what the model gives.

        The program `mfl` computes them, so that they have the bits that it, a daemon and mfl-serve give; it must be installed. model: a
        file that `mfl pull` wrote as safetensors, which needs no server, or a job. data: an array of samples, or "FORMAT:PATH" as in
        `mfl predict --data`. precision: "fp32" or "bf16". Raises ConfigError with what the program says.
        """
        return run_predict(self._program(program, model, round), data, logits, precision)

    def evaluate(self, model: Union[JobRef, Path], data: Any, labels: Any = None, *, round: Union[int, str, None] = None,  # noqa: A002
                 program: Path = "mfl") -> Dict[str, Any]:
        """How good a model is on labelled samples, computed by the program `mfl`: what `mfl evaluate --json` prints. data: as in
        predict(); labels: of an array of samples."""
        return run_evaluate(self._program(program, model, round), data, labels)

    def _program(self, program: Path, model: Union[JobRef, Path], round: Union[int, str, None]) -> List[str]:  # noqa: A002
        """The program, the options that say which server, and the model."""
        options = ["--plain"]
        if self._files:
            options = ["--tls-ca", self._files[0], "--tls-cert", self._files[1], "--tls-key", self._files[2]]
        name = model.job if isinstance(model, Job) else os.fspath(model)
        which = [] if round is None else ["--round", str(round)]
        return [os.fspath(program), "--server", ",".join(a.text for a in self.addresses), *options, "--json", name, *which]

    # -- sites --

    def validate(self, model: Union[JobRef, ModelVersion, Path], *, at: str = "", data: str = "",
                 round: Union[int, str] = "last",  # noqa: A002
                 deadline: int = 60, program: Path = "mfl") -> Validation:
        """Evaluates a model at every site on the site's own test samples. model: a job, "NAME@ALIAS", "NAME@VERSION" or a ModelVersion; or a
        file, a pathlib.Path or a text with a '/' or that ends in .safetensors, which the program `mfl` reads and sends. at: a pattern of
        sites; data: a data set; deadline: seconds that the sites have. Needs OU=operator with TLS, as the rest of this part does."""
        if isinstance(model, os.PathLike) or (isinstance(model, str) and ("/" in model or model.endswith(".safetensors"))):
            if round != "last":
                raise ConfigError("round= chooses a model of a job; '%s' is a file" % os.fspath(model))
            options = [*(["--at", at] if at else []), *(["--data", data] if data else []), "--deadline", str(deadline)]
            return Validation._from_json(run_validate(self._program(program, _as_file(model), None), options))
        return Validation._from(self._inquire(_EVALUATE, model, at, data, round, deadline))

    def willing(self, job: JobLike, *, deadline: int = 1) -> List[SiteAnswer]:
        """What each connected site with the job's data set says of a job before it is submitted, by the site's policy: `status` "refused",
        or "answered" with a `reason` where an administrator is asked about each job. The site decides again when there is work."""
        text, _ = read_job(job)
        return [SiteAnswer._from(s) for s in self._report({"kind": _JOB, "text": text, "deadline_s": deadline}, deadline).sites]

    def predict_at(self, model: Union[JobRef, ModelVersion], at: str, data: str, *, round: Union[int, str] = "last",  # noqa: A002
                   deadline: int = 60) -> List[SiteAnswer]:
        """Runs a model at sites on the test samples of their data set. The answers stay there; only their number comes back."""
        return [SiteAnswer._from(s) for s in self._inquire(_PREDICT, model, at, data, round, deadline).sites]

    def _inquire(self, kind: int, model: Union[JobRef, ModelVersion], at: str, data: str, round: Union[int, str],  # noqa: A002
                 deadline: int) -> Any:
        fields: Dict[str, Any] = {"kind": kind, "at": at, "data": data, "deadline_s": deadline}
        if isinstance(model, ModelVersion):
            model = "%s@%d" % (model.name, model.version)
        if isinstance(model, str) and "@" in model:
            if round != "last":
                raise ConfigError("round= chooses a model of a job; '%s' is a registered model" % model)
            fields["model"] = model
        else:
            fields.update(job=self._id(model), round=_which(round))
        return self._report(fields, deadline)

    def _report(self, fields: Dict[str, Any], deadline: int) -> Any:
        with self._open() as connection:
            connection.ask("inquire", fields)
            frame = connection.next(time.monotonic() + deadline + self.patience)
            if frame.kind != "inquiry_report":
                raise ProtocolError("the server sent an unexpected answer to a question (%s)" % frame.kind)
            return frame.body

    def validations(self, digest: str = "", count: int = 20) -> List[Validation]:
        """The newest validations, the newest first; digest: those of one model."""
        fields = {"kind": _EVALUATE, "digest": bytes.fromhex(digest), "count": count}
        return [Validation._from(r) for r in self._ask("list_inquiries", fields, "inquiry_list").reports]

    # -- the registry --

    def registry(self, name: str = "") -> List[ModelVersion]:
        """The versions of registered models, or of one, by name and version."""
        return [ModelVersion._from(v) for v in self._ask("list_registry", {"name": name}, "registry").versions]

    def register(self, job: JobRef, name: str, *, round: Union[int, str] = "last") -> ModelVersion:  # noqa: A002
        """Makes a round of a job the next version of a registered model; one that was registered before stays that version. Its job and its
        checkpoint stay as long as the version does."""
        said = self._change_model(_REGISTER, name, job=self._id(job), round=_which(round))
        number = re.match(re.escape(name) + "@([0-9]+)", said)
        if not number:
            raise ProtocolError("the server did not say which version the model is, but: %s" % said)
        found = [v for v in self.registry(name) if v.version == int(number[1])]
        if not found:
            raise NotFound("%s was removed meanwhile" % number[0])
        return found[0]

    def alias(self, alias: str, version: int = 0) -> str:
        """Points "NAME@ALIAS" at a version (0: the newest). Returns what the server says."""
        return self._change_alias(_ALIAS, alias, version=version)

    def promote(self, alias: str, version: int = 0, *, accuracy: float = 0.0, worse: Optional[float] = None, sites: int = 0) -> str:
        """The same, if the version's newest validation passes: at least this accuracy over all sites; at no site lower by more than
        `worse` than that of the version that the alias has; at so many sites at least. Raises Conflict if it does not."""
        gates = {"accuracy": accuracy, "worse_max": -1.0 if worse is None else worse, "sites": sites}
        return self._change_alias(_PROMOTE, alias, version=version, gates=gates)

    def rollback(self, alias: str) -> str:
        """Points "NAME@ALIAS" at the version before."""
        return self._change_alias(_ROLLBACK, alias)

    def unregister(self, what: str) -> str:
        """Removes "NAME@VERSION", which no alias may have, or "NAME@ALIAS"."""
        name, at, which = what.partition("@")
        if at and which.isdigit():
            return self._change_model(_REMOVE, name, version=int(which))
        return self._change_alias(_REMOVE, what)

    def _change_alias(self, verb: int, alias: str, **fields: Any) -> str:
        name, _, which = alias.partition("@")
        if not name or not which:
            raise ConfigError("'%s': expected NAME@ALIAS" % alias)
        return self._change_model(verb, name, alias=which, **fields)

    def _change_model(self, verb: int, name: str, **fields: Any) -> str:
        return self._change("change_model", {"verb": verb, "name": name, **fields})

    # -- daemons --

    def daemons(self) -> List[Daemon]:
        """The daemons that are connected, or were refused lately, by name."""
        pages = self._pages("list_daemons", {}, "daemon_list", lambda page: [d.name for d in page.daemons], str.encode)
        daemons = [Daemon._from(d) for page in pages for d in page.daemons]
        return sorted(daemons, key=lambda d: d.name)

    def drain(self, daemon: Optional[str] = None, *, all: bool = False, undo: bool = False, wait: bool = False) -> str:  # noqa: A002
        """Gives a daemon, or all, no more work; wait: returns when it is idle; undo: lets it work again."""
        if all == (daemon is not None):
            raise ConfigError("drain: expected the name of a daemon, or all=True")
        return self._change("drain", {"daemon": daemon or "", "undo": undo, "wait": wait, "all": all})

    def rules(self) -> List[Rule]:
        """The rules about which daemons may take part."""
        return [Rule._from(r) for r in self._ask("list_access", {}, "access_list").rules]

    def disable(self, pattern: str, *, reason: str = "", seconds: int = 0) -> str:
        """Sends away the daemons that match: "site-b*", "cn:hospital-*", or "sha256:..." of a certificate. seconds: for so long; 0: until
        enable(). Needs OU=admin with TLS, as the next three do."""
        return self._change("access", {"pattern": pattern, "verdict": _DENY, "reason": reason, "seconds": seconds})

    def enable(self, pattern: str) -> str:
        """Takes back disable()."""
        return self._change("access", {"pattern": pattern, "verdict": _DENY, "remove": True})

    def allow(self, pattern: str) -> str:
        """Only daemons that match an allow rule may take part, once there is one."""
        return self._change("access", {"pattern": pattern, "verdict": _ALLOW})

    def disallow(self, pattern: str) -> str:
        """Takes back allow()."""
        return self._change("access", {"pattern": pattern, "verdict": _ALLOW, "remove": True})

    def audit(self, count: int = 100) -> List[AuditEntry]:
        """The newest changes and refused attempts, the oldest first."""
        return [AuditEntry._from(e) for e in self._ask("list_audit", {"count": count}, "audit_list").entries]


def _which(round: Union[int, str]) -> int:  # noqa: A002
    """A round as the protocol has it."""
    which = {"last": -1, "best": -2}.get(round, round) if isinstance(round, str) else round
    if not isinstance(which, int) or which < -2:
        raise ConfigError("round %r: expected a number, 'last' or 'best'" % (round,))
    return which


def _as_file(path: Path) -> str:
    """So that the program takes it for a file, whatever its name."""
    text = os.fspath(path)
    return text if "/" in text else os.path.join(".", text)


def _raise_if_bad(job: Job) -> None:
    if job.state == "failed":
        raise JobFailed(job)
    if job.state == "stopped":
        raise JobStopped(job)


class _Receiver:
    """Puts Params, which come in order, into the flat vector."""

    def __init__(self, n: int):
        self.params: Floats = np.empty(n, dtype="<f4")
        self.have = 0

    def sink(self, message: _protocol.Message, size: int) -> memoryview:
        at, n = self.have, size // 4
        if message.offset != at or message.total != len(self.params) or size % 4 or at + n > len(self.params):
            raise ProtocolError("the server sent the params out of order, or more than it announced")
        self.have += n
        return self.params[at:self.have].view(np.uint8).data


def _pull(connection: Connection, fields: Dict[str, Any]) -> Model:
    begin = connection.call("pull", fields, "pull_begin")
    if not begin.n_tensors:
        raise ProtocolError("the server (%s) is of an older release and does not name tensors: use `mfl pull`" % connection.software)
    receiver = _Receiver(begin.n_params)
    tensors: List[Tensor] = []
    while len(tensors) < begin.n_tensors or receiver.have < len(receiver.params):
        frame = connection.next(sink=receiver.sink)
        if frame.kind == "model_tensors":
            tensors += [Tensor(t.name, tuple(t.shape), t.offset) for t in frame.body.tensors]
        elif frame.kind != "params":
            raise ProtocolError("the server sent a message that is not params")
    return Model(fields["job"], Round._from(begin.round), begin.text, receiver.params, tensors)
