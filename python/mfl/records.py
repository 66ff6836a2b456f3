# SPDX-License-Identifier: Apache-2.0
"""What the server says, as dataclasses. A field has the name that `mfl ... --json` gives it (`mfl help json` explains each one), and what is
not known is None."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from . import _protocol

STATES = ("unknown", "waiting", "running", "done", "failed", "stopped")
ENDED = ("done", "failed", "stopped")
COLLECTIVES = (None, "solo", "shm", "nccl", "relay")
# By their bits in RoundInfo.measured: common/measure/measure.h.
MEASURES = ("client_mean", "client_variance", "client_worst", "client_best", "client_low", "client_high", "macro_f1", "mae", "rmse", "r2",
            "staleness_mean", "staleness_max", "dropped", "epsilon", "backdoor", "clip")
_LOSS_UNIT = 2.0 ** -32
_FILTER = "filter:"  # a daemon offers a filter as it offers a data set


def _number(known: bool, value: float) -> Optional[float]:
    return value if known and math.isfinite(value) else None


def _name(names: Tuple[Any, ...], number: int) -> Any:
    return names[number] if 0 <= number < len(names) else names[0]


@dataclass(frozen=True)
class Round:
    """A committed round (ROUND in `mfl help json`)."""

    round: int
    accuracy: Optional[float]
    loss: Optional[float]
    train_loss: Optional[float]
    train_accuracy: Optional[float]
    samples: int
    clients: int
    clients_rejected: int
    weight: int
    bytes_up: int
    bytes_down: int
    seconds: float
    digest: Optional[str]  # SHA-256 of the params after this round
    attempt: int
    daemons: int
    committed_unix_ms: int
    kept: bool  # its model can be pulled
    bytes_up_alone: int
    bytes_down_alone: int
    mean_iou: Optional[float]
    virtual_start: Optional[float]
    virtual_end: Optional[float]
    clamped: int
    states_lost: int
    choice: Optional[str]
    clients_evaluated: Optional[int]
    client_bins: Optional[List[int]]
    measures: Dict[str, float]  # what else was measured: "macro_f1", "epsilon", ...
    metrics: Optional[Dict[str, Optional[float]]]  # of the server's plug-ins (evaluation.metrics), by name; None: there are none

    @property
    def evaluated(self) -> bool:
        """Whether the model was tested after this round."""
        return self.loss is not None

    @classmethod
    def _from(cls, m: _protocol.Message) -> Round:
        virtual = m.WhichOneof("has_virtual_end") is not None
        measures = {name: m.measures[k] for k, name in enumerate(MEASURES) if m.measured >> k & 1 and k < len(m.measures)}
        return cls(
            round=m.round, accuracy=_number(m.evaluated and not m.no_accuracy, m.accuracy), loss=_number(m.evaluated, m.loss),
            train_loss=_number(m.clients > 0, m.train_loss),
            train_accuracy=_number(m.clients > 0 and not m.no_accuracy, m.train_accuracy), samples=m.samples, clients=m.clients,
            clients_rejected=m.clients_rejected, weight=m.weight, bytes_up=m.bytes_up, bytes_down=m.bytes_down, seconds=m.seconds,
            digest=m.digest.hex() or None, attempt=m.attempt, daemons=m.daemons, committed_unix_ms=m.committed_ms, kept=m.kept,
            bytes_up_alone=m.bytes_up_alone, bytes_down_alone=m.bytes_down_alone,
            mean_iou=_number(m.WhichOneof("has_mean_iou") is not None, m.mean_iou), virtual_start=_number(virtual, m.virtual_start),
            virtual_end=_number(virtual, m.virtual_end), clamped=m.clamped, states_lost=m.states_lost, choice=m.choice or None,
            clients_evaluated=m.clients_evaluated or None, client_bins=list(m.client_bins) if m.clients_evaluated else None,
            measures=measures, metrics={name: _number(True, value) for name, value in zip(m.metrics.split(","), m.metric_values)} or None)


def _round(message: _protocol.Message, field: str) -> Optional[Round]:
    return Round._from(getattr(message, field)) if message.HasField(field) else None


@dataclass(frozen=True)
class Progress:
    """How far the current round is."""

    round: int
    attempt: int
    phase: Optional[str]  # "train", "apply", "evaluate", "commit", "wait"
    clients_done: int
    clients_total: int
    daemons: int
    trained: float  # part of the round's training, 0 to 1


@dataclass(frozen=True)
class Privacy:
    """Of a job with differential privacy: what it has spent."""

    kind: str
    epsilon: float
    epsilon_max: float
    delta: float
    clip: float
    noise: float


@dataclass(frozen=True)
class Job:
    """A job (JOB in `mfl help json`)."""

    job: str  # its id: "j-000001"
    name: str
    state: str  # "waiting", "running", "done", "failed", "stopped"
    reason: Optional[str]  # why it waits or has failed
    round: int  # the last committed
    rounds: int
    params: int
    moving: int  # params that are trained or travel
    model: Optional[str]
    data: Optional[str]
    strategy: Optional[str]
    created_unix_ms: int
    finished_unix_ms: Optional[int]
    archived_unix_ms: Optional[int]
    last: Optional[Round]
    best: Optional[Round]  # by test accuracy
    progress: Optional[Progress]
    owner: Optional[str]
    per_token: bool
    evaluated: Optional[Round]  # the last round that was evaluated
    privacy: Optional[Privacy]

    @property
    def ended(self) -> bool:
        """Whether it is done, failed or stopped."""
        return self.state in ENDED

    @classmethod
    def _from(cls, m: _protocol.Message) -> Job:
        last = _round(m, "last")
        progress = Progress(m.in_round, m.attempt, m.phase or None, m.clients_done, m.clients_total, m.daemons,
                            m.trained) if m.in_round else None
        privacy = Privacy(m.privacy, m.epsilon, m.epsilon_max, m.delta, m.clip, m.noise) if m.privacy else None
        return cls(
            job=m.job, name=m.name, state=_name(STATES, m.state), reason=m.reason or None, round=m.round, rounds=m.rounds, params=m.n_params,
            moving=m.n_params - m.n_frozen, model=m.model or None, data=m.data or None, strategy=m.strategy or None,
            created_unix_ms=m.created_ms, finished_unix_ms=m.finished_ms or None, archived_unix_ms=m.archived_ms or None, last=last,
            best=_round(m, "best"), progress=progress, owner=m.owner or None, per_token=m.per_token, evaluated=_round(m, "evaluated") or (last if last and last.evaluated else None),
            privacy=privacy)


@dataclass(frozen=True)
class NodeCost:
    """What a round cost one node."""

    round: int
    node: str
    daemons: int
    bytes_up: int
    bytes_down: int
    bytes_up_alone: int
    bytes_down_alone: int


@dataclass(frozen=True)
class ClientScore:
    """What one client scored in an evaluation on clients."""

    client: int
    site: Optional[str]
    samples: int
    correct: int
    loss_sum: float


@dataclass(frozen=True)
class Scores:
    """The lists of the newest evaluation that has some."""

    round: int
    clients: List[ClientScore]  # the worst first, at most 1000
    confusion: Optional[List[List[int]]]  # [label][prediction]

    @classmethod
    def _from(cls, m: _protocol.Message) -> Scores:
        n = m.classes
        rows = [list(m.confusion[c * n:(c + 1) * n]) for c in range(n)] if n else None
        clients = [ClientScore(c.client, c.site or None, c.samples, c.correct, c.loss_sum * _LOSS_UNIT) for c in m.clients]
        return cls(m.round, clients, rows)


@dataclass(frozen=True)
class JobDetail:
    """All that the server keeps of a job."""

    job: Job
    text: str  # the job file
    rounds: List[Round]  # the newest 1000
    nodes: List[NodeCost]
    scores: Optional[Scores]

    @classmethod
    def _from(cls, m: _protocol.Message) -> JobDetail:
        nodes = [NodeCost(c.round, c.node, c.daemons, c.bytes_up, c.bytes_down, c.bytes_up_alone, c.bytes_down_alone) for c in m.nodes]
        rounds = sorted((Round._from(r) for r in m.rounds), key=lambda r: r.round)
        return cls(Job._from(m.info), m.text, rounds, nodes, Scores._from(m.scores) if m.HasField("scores") else None)


@dataclass(frozen=True)
class Activity:
    """Where the time of a daemon's workers went in the last ten seconds: shares with a sum of 1."""

    workers: int
    samples_per_second: float
    compute: float
    data: float
    network: float
    wait: float
    samples: int  # trained since the daemon began

    @classmethod
    def _of(cls, m: _protocol.Message) -> Optional[Activity]:
        if not m.HasField("activity"):
            return None
        a = m.activity
        return cls(a.workers, a.samples_per_second, a.compute, a.data, a.network, a.wait, a.samples)


@dataclass(frozen=True)
class CrewMember:
    """A daemon at work for a job."""

    name: str
    state: str
    items_done: int
    items_total: int
    activity: Optional[Activity]


@dataclass(frozen=True)
class Event:
    """What happened to a job that is watched: a round was committed, or its state or progress changed."""

    kind: str  # "round", "state" or "progress"
    job: Optional[Job]  # of "state" and "progress"
    round: Optional[Round]  # of "round"
    crew: Optional[List[CrewMember]] = None  # if asked for, about once per second

    @staticmethod
    def _crew(m: _protocol.Message) -> Optional[List[CrewMember]]:
        if not m.HasField("crew"):
            return None
        return [CrewMember(c.daemon, c.state, c.items_done, c.items_total, Activity._of(c)) for c in m.crew.members]


@dataclass(frozen=True)
class ModelVersion:
    """A version of a registered model: a round of a job."""

    name: str
    version: int
    job: str
    round: int
    digest: str
    who: str
    time_ms: int  # Unix time
    aliases: List[str]
    accuracy: Optional[float]
    loss: Optional[float]
    validated: int  # sites that have validated it

    @classmethod
    def _from(cls, m: _protocol.Message) -> ModelVersion:
        return cls(m.name, m.version, m.job, m.round, m.digest.hex(), m.who, m.time_ms, list(m.aliases),
                   _number(m.evaluated and not m.no_accuracy, m.accuracy), _number(m.evaluated, m.loss), m.validated)


SITE_STATES = ("silent", "answered", "refused", "failed")


@dataclass(frozen=True)
class SiteAnswer:
    """What a site said to a question."""

    site: str
    daemon: str  # that was asked
    status: str  # "answered", "refused", "failed", "silent"
    reason: Optional[str]
    samples: int
    accuracy: Optional[float]
    loss: Optional[float]
    few: bool  # its scores are in Validation.few

    @classmethod
    def _from(cls, m: _protocol.Message, no_accuracy: bool = False) -> SiteAnswer:
        told = SITE_STATES[1] == _name(SITE_STATES, m.status) and m.samples > 0
        return cls(m.site, m.daemon, _name(SITE_STATES, m.status), m.reason or None, m.samples,
                   m.correct / m.samples if told and not no_accuracy else None, m.loss_sum * _LOSS_UNIT / m.samples if told else None, m.few)


    @classmethod
    def _from_json(cls, m: Dict[str, Any]) -> SiteAnswer:
        """Of a report, or of its `few`, which is no site."""
        return cls(m.get("site", ""), m.get("daemon", ""), m.get("status", SITE_STATES[1]), m.get("reason") or None, m["samples"], m["accuracy"],
                   m["loss"], m.get("few", True))


@dataclass(frozen=True)
class Validation:
    """How good a model is at the sites (`mfl validate`)."""

    number: int  # in the server's list
    time_ms: int  # Unix time of its end
    who: str
    model: Optional[str]  # "NAME@version", if it was asked so
    job: Optional[str]
    round: int
    digest: Optional[str]
    data: str
    sites: List[SiteAnswer]
    samples: int  # of all sites
    accuracy: Optional[float]
    loss: Optional[float]
    few: Optional[SiteAnswer]  # sites with few samples, added up

    @classmethod
    def _from(cls, m: _protocol.Message) -> Validation:
        told = [s for s in [*m.sites, *([m.few] if m.HasField("few") else [])] if s.status == 1 and s.samples]
        n = sum(s.samples for s in told)
        return cls(m.number, m.time_ms, m.who, m.model or None, m.job or None, m.round, m.digest.hex() or None, m.data,
                   [SiteAnswer._from(s, m.no_accuracy) for s in m.sites], n,
                   sum(s.correct for s in told) / n if n and not m.no_accuracy else None,
                   sum(s.loss_sum for s in told) * _LOSS_UNIT / n if n else None,
                   SiteAnswer._from(m.few, m.no_accuracy) if m.HasField("few") else None)

    @classmethod
    def _from_json(cls, m: Dict[str, Any]) -> Validation:
        """Of what `mfl validate --json` prints."""
        return cls(m["number"], m["time_ms"], m["who"], m["model"], m["job"], m["round"], m["digest"] or None, m["data"],
                   [SiteAnswer._from_json(s) for s in m["sites"]], m["all"]["samples"], m["all"]["accuracy"], m["all"]["loss"],
                   SiteAnswer._from_json(m["few"]) if m["few"] else None)


@dataclass(frozen=True)
class Replay:
    """A job whose rounds were made again, and whether they have the same models."""

    job: str
    replays: str
    rounds: int  # made again
    same: bool
    differs: Optional[int]  # the first round whose model differs or is missing


@dataclass(frozen=True)
class LogLine:
    """A line of a job's log."""

    seq: int
    time_ms: int  # Unix time
    text: str


@dataclass(frozen=True)
class DataSet:
    """What a daemon offers."""

    name: str
    shape: Tuple[int, ...]
    classes: int
    train_samples: int
    test_samples: int


@dataclass(frozen=True)
class Gpu:
    """A daemon's GPU."""

    uuid: Optional[str]
    pci: Optional[str]
    memory: Optional[int]
    percent: Optional[int]
    memory_used: Optional[int]
    memory_total: Optional[int]
    temperature: Optional[int]
    power_watts: Optional[float]

    @classmethod
    def _from(cls, d: _protocol.Message) -> Optional[Gpu]:
        if not d.device_uuid and not d.HasField("telemetry"):
            return None
        t = d.telemetry

        def known(field: str) -> Any:
            return getattr(t, field) if t.HasField(field) else None
        power = known("power_mw")
        return cls(d.device_uuid or None, d.device_pci or None, d.device_memory or None, known("gpu_percent"), known("memory_used"),
                   known("memory_total"), known("temperature"), power / 1000 if power is not None else None)


@dataclass(frozen=True)
class Daemon:
    """A daemon, as in `mfl daemons --json`."""

    name: str
    node: Optional[str]
    address: Optional[str]
    backend: Optional[str]
    device: Optional[str]
    workers: int
    state: str  # "idle", "training", ..., "drained", "lost", "refused"
    job: Optional[str]
    round: int
    items_done: int
    items_total: int
    samples_per_second: float
    connected_unix_ms: int
    data_sets: List[DataSet]
    filters: List[str]  # that jobs may name
    software: Optional[str]
    note: Optional[str]  # why it is not used
    gpu: Optional[Gpu]
    collective: Optional[str]
    leader: bool
    alone: Optional[str]
    clients_per_second: float
    numerics: Optional[str]
    activity: Optional[Activity]
    items_part: float
    site: Optional[str]
    tags: Optional[str]
    relay: Optional[str]  # the relays between it and the server, the server's first, with '/' between

    @classmethod
    def _from(cls, d: _protocol.Message) -> Daemon:
        sets = [DataSet(s.name, tuple(s.shape), s.classes, s.train_samples, s.test_samples) for s in d.data_sets
                if not s.name.startswith(_FILTER)]
        filters = [s.name[len(_FILTER):] for s in d.data_sets if s.name.startswith(_FILTER)]
        return cls(
            name=d.name, node=d.node or None, address=d.address or None, backend=d.backend or None, device=d.device or None,
            workers=d.workers, state=d.state, job=d.job or None, round=d.round, items_done=d.items_done, items_total=d.items_total,
            samples_per_second=d.samples_per_second, connected_unix_ms=d.connected_ms, data_sets=sets, filters=filters, software=d.software or None,
            note=d.note or None, gpu=Gpu._from(d), collective=_name(COLLECTIVES, d.collective), leader=d.leader, alone=d.alone or None,
            clients_per_second=d.clients_per_second, numerics=d.numerics or None, activity=Activity._of(d), items_part=d.items_part,
            site=d.site or None, tags=d.tags or None, relay=d.relay or None)


@dataclass(frozen=True)
class Rule:
    """A rule of administrators about which daemons may take part."""

    pattern: str
    rule: str  # "disable" or "allow"
    who: Optional[str]
    time_ms: int
    until_ms: Optional[int]  # None: for good
    reason: Optional[str]
    connected: int
    refused: int

    @classmethod
    def _from(cls, m: _protocol.Message) -> Rule:
        return cls(m.pattern, "allow" if m.verdict == 2 else "disable", m.who or None, m.time_ms, m.until_ms or None, m.reason or None,
                   m.connected, m.refused)


@dataclass(frozen=True)
class AuditEntry:
    """Somebody changed something, or tried to."""

    seq: int
    time_ms: int
    who: Optional[str]
    address: Optional[str]
    action: str
    object: Optional[str]
    result: str  # "done", "failed", "refused"
    text: Optional[str]

    @classmethod
    def _from(cls, m: _protocol.Message) -> AuditEntry:
        return cls(m.seq, m.time_ms, m.who or None, m.address or None, m.action, m.object or None, m.result, m.text or None)
