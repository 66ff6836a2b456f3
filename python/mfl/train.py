# SPDX-License-Identifier: Apache-2.0
"""Training programs for mfl in Python: `run(train)` turns a function into a program that mfl-client starts (docs/programs.md).

    def train(params, client, round, config):
        ...                              # params: {name: numpy array}, which may be changed in place
        return params, n, {"loss": 0.3}  # new params, samples, metrics

    mfl.train.run(train)

Needs numpy and protobuf. PyTorch is used by name only: what `train` returns may be a state_dict.
"""
import inspect
import json
import os
import socket
import struct
import sys
import traceback

import numpy
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["run", "save", "load", "Data"]

MESSAGE_MAX = 64 << 20
TYPES = {"u64": 4, "u32": 13, "f64": 1, "f32": 2, "bool": 8, "text": 9}
# proto/program.proto: message -> (number, name, type), "*" for repeated.
MESSAGES = {
    "Tensor": [(1, "name", "text"), (2, "shape", "*u64"), (3, "offset", "u64"), (4, "count", "u64")],
    "Split": [(1, "n", "u64"), (2, "samples", "u64"), (3, "labels", "u64")],
    "DataSet": [(1, "name", "text"), (2, "shape", "*u64"), (3, "dtype", "u32"), (4, "classes", "u32"),
                (5, "labels_per_sample", "u32"), (6, "n_targets", "u32"), (7, "scale", "*f32"), (8, "shift", "*f32"),
                (9, "train", "Split"), (10, "test", "Split"), (11, "bytes", "u64")],
    "Describe": [(1, "job", "text"), (2, "config", "text"), (3, "n", "u64"), (4, "tensors", "*Tensor"), (5, "data", "DataSet"),
                 (6, "samples_max", "u64"), (7, "seed", "u64"), (8, "clients", "u32")],
    "Train": [(1, "client", "u64"), (2, "round", "u32"), (3, "seed", "u64"), (4, "samples", "*u32")],
    "Evaluate": [(1, "item", "u64"), (2, "round", "u32"), (3, "samples", "*u32")],
    "ToProgram": [(1, "describe", "Describe"), (2, "train", "Train"), (3, "evaluate", "Evaluate")],
    "Metric": [(1, "name", "text"), (2, "value", "f64")],
    "Described": [(1, "program", "text"), (2, "evaluates", "bool")],
    "Trained": [(1, "delta", "bool"), (2, "samples", "u64"), (3, "loss", "f64"), (4, "correct", "u64"), (5, "metrics", "*Metric")],
    "Evaluated": [(1, "samples", "u64"), (2, "loss", "f64"), (3, "correct", "u64"), (4, "metrics", "*Metric")],
    "Failed": [(1, "reason", "text")],
    "FromProgram": [(1, "described", "Described"), (2, "trained", "Trained"), (3, "evaluated", "Evaluated"), (4, "failed", "Failed")],
}


def _classes():
    """The messages as classes, without generated code, whose version would have to fit the library's."""
    file = descriptor_pb2.FileDescriptorProto(name="mfl/program.proto", package="mfl.program", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        if name in ("ToProgram", "FromProgram"):
            message.oneof_decl.add(name="body")
        for number, key, kind in fields:
            field = message.field.add(name=key, number=number, label=3 if kind[0] == "*" else 1)
            kind = kind.lstrip("*")
            if kind in TYPES:
                field.type = TYPES[kind]
            else:
                field.type = 11
                field.type_name = ".mfl.program." + kind
            if message.oneof_decl:
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = {}
    for name in MESSAGES:
        descriptor = pool.FindMessageTypeByName("mfl.program." + name)
        get = getattr(message_factory, "GetMessageClass", None)
        made[name] = get(descriptor) if get else message_factory.MessageFactory(pool).GetPrototype(descriptor)
    return made


_CLASS = _classes()


class Data:
    """A data set of the daemon: `train` and `test` have x and y as they are stored; `batch` makes floats of samples."""

    def __init__(self, told, memory):
        self.name, self.classes = told.name, told.classes
        self.shape = tuple(told.shape)
        dtype = (numpy.uint8, numpy.float32, numpy.int32)[told.dtype]
        self._scale = numpy.array(told.scale, numpy.float32)
        self._shift = numpy.array(told.shift, numpy.float32)
        each = told.n_targets or told.labels_per_sample
        self.train, self.test = (self._split(memory, split, dtype, told.n_targets, each) for split in (told.train, told.test))

    def _split(self, memory, split, dtype, n_targets, each):
        x = numpy.frombuffer(memory, dtype, split.n * int(numpy.prod(self.shape)), split.samples)
        y = numpy.frombuffer(memory, numpy.float32 if n_targets else numpy.int32, split.n * each, split.labels)
        return _Split(x.reshape((split.n,) + self.shape), y if each == 1 and not n_targets else y.reshape(split.n, each))

    def batch(self, samples, split="train"):
        """(x, y) of samples: x as float32, scaled as mfl's own models see it; tokens stay whole numbers."""
        part = getattr(self, split)
        x, y = part.x[samples], part.y[samples]
        if x.dtype == numpy.int32:
            return x, y
        channels = (1, -1, 1, 1) if len(self.shape) == 3 else (1,)
        scale, shift = (v[:self.shape[0]] if len(self.shape) == 3 else v[:1] for v in (self._scale, self._shift))
        return x.astype(numpy.float32) * scale.reshape(channels) + shift.reshape(channels), y


class _Split:
    def __init__(self, x, y):
        self.x, self.y = x, y


def _array(value):
    """A numpy array of an array or a torch tensor."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return numpy.asarray(value)


class _Program:
    def __init__(self, train, evaluate, name):
        self.train, self.evaluate, self.name = train, evaluate, name
        self.socket = socket.socket(fileno=int(os.environ["MFL_PROGRAM_FD"]))
        self.fds = []

    # -- frames --

    def _read(self, n):
        parts = []
        while n:
            piece, fds, _, _ = socket.recv_fds(self.socket, min(n, 1 << 20), 3)
            self.fds += fds
            if not piece:
                return None
            parts.append(piece)
            n -= len(piece)
        return b"".join(parts)

    def receive(self):
        head = self._read(4)
        if head is None:
            return None
        n = struct.unpack("<I", head)[0]
        body = self._read(n) if n <= MESSAGE_MAX else None
        return None if body is None else _CLASS["ToProgram"].FromString(body)

    def send(self, kind, **fields):
        metrics = fields.pop("metrics", {})
        message = _CLASS["FromProgram"](**{kind: _CLASS[kind.capitalize()](**fields)})
        for key, value in metrics.items():
            getattr(message, kind).metrics.add(name=str(key), value=float(value))
        body = message.SerializeToString()
        self.socket.sendall(struct.pack("<I", len(body)) + body)

    # -- a job --

    def describe(self, told):
        import mmap
        maps, n = [], told.n * 4
        for i, fd in enumerate(self.fds):
            prot = mmap.PROT_READ | (mmap.PROT_WRITE if i == 1 else 0)
            maps.append(mmap.mmap(fd, n if i < 2 else told.data.bytes, mmap.MAP_SHARED, prot))
            os.close(fd)
        self.fds = []
        self.params, self.result = (numpy.frombuffer(m, numpy.float32, told.n) for m in maps[:2])
        self.tensors = [(t.name, slice(t.offset, t.offset + t.count), tuple(t.shape)) for t in told.tensors]
        self.config = json.loads(told.config)
        self.data = Data(told.data, maps[2]) if told.HasField("data") else None
        self.send("described", program=self.name, evaluates=self.evaluate is not None)

    def _views(self, flat):
        return {name: flat[at].reshape(shape) for name, at, shape in self.tensors}

    def _call(self, fn, *args, **more):
        """Calls fn with as much of `more` as it has parameters for."""
        known = inspect.signature(fn).parameters
        every = any(p.kind == p.VAR_KEYWORD for p in known.values())
        return fn(*args, **{k: v for k, v in more.items() if every or k in known})

    def _take(self, returned):
        views = self._views(self.result)
        for name, value in returned.items():
            if name in views:
                views[name][...] = _array(value).reshape(views[name].shape)
            elif not name.endswith("num_batches_tracked"):
                raise KeyError(f"train returns {name}, which is no tensor of the model")
        missing = [name for name in views if name not in returned]
        if missing:
            raise KeyError(f"train does not return {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else ""))

    def _scores(self, n, metrics):
        metrics = dict(metrics or {})
        loss = float(metrics.pop("loss", 0.0))
        correct = metrics.pop("correct", None)
        accuracy = metrics.pop("accuracy", None)
        if correct is None:
            correct = 0 if accuracy is None else round(float(accuracy) * n)
        return dict(samples=int(n), loss=loss, correct=int(correct), metrics=metrics)

    def on_train(self, told):
        numpy.copyto(self.result, self.params)
        samples = numpy.array(told.samples, numpy.int64)
        params, n, metrics = self._call(self.train, self._views(self.result), told.client, told.round, self.config, seed=told.seed,
                                        samples=samples, data=self.data)
        self._take(params)
        self.send("trained", **self._scores(n, metrics))

    def on_evaluate(self, told):
        samples = numpy.array(told.samples, numpy.int64)
        n, metrics = self._call(self.evaluate, self._views(self.params), self.config, samples=samples, data=self.data,
                                item=told.item, round=told.round)
        self.send("evaluated", **self._scores(n, metrics))

    def serve(self):
        while True:
            message = self.receive()
            if message is None:
                return
            kind = message.WhichOneof("body")
            try:
                if kind == "describe":
                    self.describe(message.describe)
                elif kind == "train":
                    self.on_train(message.train)
                else:
                    self.on_evaluate(message.evaluate)
            except Exception as e:  # the program goes on; the daemon tells people
                traceback.print_exc()
                sys.stderr.flush()
                self.send("failed", reason=f"{type(e).__name__}: {e}")


def run(train, evaluate=None, name=None):
    """Serves the daemon until it closes the connection.

    train(params, client, round, config) -> (params, n, metrics). params: {name: float32 array}; they may be changed in place. What
    is returned has the same names: arrays, or torch tensors (a state_dict). n: samples, the client's weight. metrics: loss, and
    accuracy or correct, are shown with the round; others go to the daemon's log; None: none. It may have more parameters, by
    name: seed (a number that belongs to this client and round), data (Data, where the job names a data set of the
    daemon) and samples (the client's, numbers of the training split).
    evaluate(params, config) -> (n, metrics), or None: the job needs evaluation: {every: 0}. More parameters, by name: data,
    samples (of the test split), item and round. params can't be written."""
    if "MFL_PROGRAM_FD" not in os.environ:
        sys.exit("this is a training program: mfl-client starts it (programs in client.yaml; docs/programs.md)")
    _Program(train, evaluate, name or os.path.basename(sys.argv[0])).serve()


def save(path, params):
    """Writes {name: array or tensor} as a safetensors file of float32, for model.initial. What is no float is left out."""
    header, parts, at = {}, [], 0
    for name, value in params.items():
        value = _array(value)
        if value.dtype.kind != "f":
            continue
        data = numpy.ascontiguousarray(value, "<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def load(model, params):
    """Puts params into a torch module, by name; what the params lack, such as num_batches_tracked, stays. Returns the module."""
    import torch
    model.load_state_dict({name: torch.from_numpy(numpy.array(value)) for name, value in params.items()}, strict=False)
    return model
