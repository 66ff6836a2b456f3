# SPDX-License-Identifier: Apache-2.0
"""Exports a PyTorch module for mfl: an ONNX file that keeps the module as it is, what ONNX can't say about it, and a proof.

    import mfl_export
    mfl_export.save(net, example, "model.onnx")

`example` is one input of the module (a tensor whose first dimension is the batch), or a tuple of inputs. `mfl check`, `mfl submit` and
`mfl run` replay the proof: mfl computes the same outputs and gradients from the same inputs, or refuses the file. The module itself does
not change: parameters, buffers, training flags and random states are afterwards what they were before.

Needs only torch (1.13 or newer). While it runs, it replaces functions of torch (dropout among them) in the whole process: exports of several threads wait
for each other, and no other thread should train meanwhile.

What the file says beyond ONNX, as JSON in the file's metadata_props:

  mfl.model  the names of parameters and buffers, which of them are tied, trained, or persistent, embeddings' padding_idx, and classes of
             modules
  mfl.proof  for two batches of seeded inputs: outputs, norms of modules' outputs, and up to 64 elements of each parameter's gradient.
             The loss is the sum of outputs times seeded numbers, so it needs no labels. Dropout and stochastic depth are off, batch norm
             takes the batch's statistics. `noise` is how much the numbers change by rounding alone.

A module in eval mode is exported as if in training mode. If the module itself is in training mode, its parts keep their own modes.
"""
import base64
import collections
import contextlib
import copy
import gc
import inspect
import itertools
import json
import math
import os
import random
import re
import struct
import sys
import threading
import time
import unittest.mock
import warnings

import torch

__version__ = "1"
__all__ = ["save"]

SAMPLES, SAMPLES_TOTAL = 64, 20000  # of gradients: per parameter, and of all
OUTPUTS = 4096  # stored elements of a batch's outputs
MODULES = 2000
DOUBLE_MAX = 100_000_000  # parameters; larger modules are computed in float32
BRANCH_TRIES = 20
TRIES, GOOD_NOISE, SLOW_S = 6, 1e-3, 4.0  # seeds at most; seconds after which no other one is tried
ROUNDING_BITS, SPREAD_BITS = 22, 19  # relative changes of parameters: as large as rounding, and eight times
INPUTS_MAX = 8
ROWS_MAX, NUMBERS_NORMED = 16, 64  # of a batch of the proof; that each batch norm's statistics are of
BATCH_NORMS = torch.nn.modules.batchnorm._BatchNorm


_nn = torch.nn
# What no ONNX file says, or no exporter writes, and mfl does not do: a class, when, and what to write instead.
UNSUPPORTED = (
    ((_nn.LSTM,), lambda m: getattr(m, "proj_size", 0), "proj_size is not supported: use proj_size=0"),
    ((_nn.Embedding, _nn.EmbeddingBag), lambda m: m.max_norm is not None,
     "max_norm changes the weights in each forward pass, which mfl does not: leave it out"),
    ((_nn.Embedding, _nn.EmbeddingBag), lambda m: m.scale_grad_by_freq, "scale_grad_by_freq is not supported: leave it out"),
    ((_nn.EmbeddingBag,), lambda m: m.mode == "max" or m.padding_idx is not None,
     "is supported for sums and means without padding_idx: use nn.Embedding, and amax(1) or a mask"),
    ((BATCH_NORMS,), lambda m: m.momentum is None, "momentum=None, a cumulative mean, is not supported: give a number, such as 0.1"),
    ((BATCH_NORMS,), lambda m: m.running_mean is None,
     "mfl evaluates with running statistics: use track_running_stats=True, or nn.InstanceNorm or nn.GroupNorm, which need none"),
    ((_nn.modules.instancenorm._InstanceNorm,), lambda m: m.running_mean is not None,
     "mfl's instance norm has no running statistics: use track_running_stats=False"),
    ((_nn.AvgPool2d, _nn.AvgPool3d), lambda m: m.divisor_override is not None,
     "divisor_override is not supported: multiply the pool's output by the size of the window / divisor"),
    ((_nn.AlphaDropout, _nn.FeatureAlphaDropout), lambda m: m.p > 0, "mfl drops to 0 only: use nn.Dropout, or nn.Dropout2d for whole channels"),
    ((_nn.MultiheadAttention,), lambda m: m.add_zero_attn, "add_zero_attn is not supported: use add_bias_kv=True, whose key and value start near 0"),
    ((_nn.RReLU,), lambda m: m.lower != m.upper, "draws its slopes at random, which mfl does not: use nn.LeakyReLU"),
)


PARAMETRIZATIONS = {"_SpectralNorm": "spectral norm", "SpectralNorm": "spectral norm", "_Orthogonal": "orthogonal weights"}
# Functions that have an ONNX file of another function, or none.
REFUSED_CALLS = {
    **{getattr(_nn.functional, n): "mfl drops to 0 only: use F.dropout, or F.dropout2d for whole channels"
       for n in ("alpha_dropout", "feature_alpha_dropout") if hasattr(_nn.functional, n)},
    _nn.functional.rrelu: "draws its slopes at random, which mfl does not: use F.leaky_relu",
    _nn.functional.grid_sample: "samples at computed places are not supported: use F.interpolate, or crops of constant places",
    _nn.functional.affine_grid: "samples at computed places are not supported: use F.interpolate, or crops of constant places",
    _nn.functional.gumbel_softmax: "draws random numbers, which mfl does for dropout and stochastic depth alone: use torch.softmax",
}

def _changes(func, x, *args, **kwargs):
    """Whether the call is not the identity, as dropout with p=0 is."""
    return "dropout" not in func.__name__ or kwargs.get("p", args[0] if args else 0.5) > 0


Ordered = collections.namedtuple("Ordered", ("values", "indices"))
_LOCK = threading.RLock()  # an export replaces functions of torch for its duration


class ExportError(Exception):
    """The module can't be exported; the text says why."""


def save(net, example, path):
    """Writes `net` to `path` (ONNX). Warns if there can be no proof."""
    examples = example if isinstance(example, (tuple, list)) else (example,)
    if not examples or not all(isinstance(e, torch.Tensor) and e.dim() and len(e) for e in examples):
        raise ExportError("example: a tensor whose first dimension is the batch, or a tuple of such tensors")
    if len(examples) > INPUTS_MAX:
        raise ExportError(f"the module takes {len(examples)} inputs, and mfl reads up to {INPUTS_MAX}: join inputs by torch.cat, and split them in forward()")
    path = os.fspath(path)
    unfinished = path + ".part"
    try:
        with _LOCK, _unchanged(net):
            if not net.training:
                net.train()
            _check(net)
            stops, calls = _find_stops(net, examples)
            _check_draws(net, examples)
            _check_states(net, examples)
            exporter, is_log = _export(net, tuple(e.detach()[:1] for e in examples), unfinished, stops, calls)
            model = _describe(net, _initializers(unfinished), exporter)
            if is_log:
                model["log_softmax"] = True  # at the end, left out
            model["stops"] = [{"module": s.module, "class": s.kind, "by": s.by} for s in stops if not s.kept]
            proof, problem = _prove(net, examples, model)
        if problem:
            warnings.warn(f"mfl_export: {path} has no proof: {problem}", stacklevel=2)
            model["no_proof"] = problem
        with open(unfinished, "ab") as f:
            f.write(_metadata("mfl.model", model))
            if proof:
                f.write(_metadata("mfl.proof", proof))
        os.replace(unfinished, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(unfinished)


def _check(net):
    for scope, module in net.named_modules():
        if any(torch.nn.parameter.is_lazy(t) for t in itertools.chain(module._parameters.values(), module._buffers.values())):
            raise ExportError(f"{scope or 'the module'} ({type(module).__name__}) has no size yet: call the module once before the export")
        for kinds, applies, text in UNSUPPORTED:
            if isinstance(module, kinds) and applies(module):
                raise ExportError(f"{scope or 'the module'} ({type(module).__name__}): {text}")
        name = type(module).__name__
        if name == "OptimizedModule" or isinstance(module, torch.jit.ScriptModule):
            raise ExportError(f"{scope or 'the module'} ({name}) is compiled: export the module that it was made from, and compile it afterwards")
        if name in PARAMETRIZATIONS:
            raise ExportError(f"{scope}: mfl does not train with {PARAMETRIZATIONS[name]}: call torch.nn.utils.parametrize."
                              "remove_parametrizations(module, 'weight') before the export")
        if any(type(hook).__name__ == "SpectralNorm" for hook in module._forward_pre_hooks.values()):
            raise ExportError(f"{scope or 'the module'} ({name}): mfl does not train with spectral norm: call torch.nn.utils."
                              "remove_spectral_norm(module) before the export")


# ---- the module stays as it is ----

@contextlib.contextmanager
def _unchanged(net):
    """Whatever happens within, the module and PyTorch's modes and random states are afterwards what they were."""
    devices = sorted({p.get_device() for p in itertools.chain(net.parameters(), net.buffers()) if p.is_cuda})
    dtype, drawn, numpy = torch.get_default_dtype(), random.getstate(), sys.modules.get("numpy")
    drawn_by_numpy = numpy.random.get_state() if numpy else None
    with torch.random.fork_rng(devices=devices), torch.inference_mode(False), torch.enable_grad(), _as_it_was(net, True):
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            random.setstate(drawn)
            if numpy:
                numpy.random.set_state(drawn_by_numpy)


@contextlib.contextmanager
def _as_it_was(net, parameters):
    """Restores what the modules hold: flags, attributes, hooks, what a forward pass keeps in dicts and lists, buffers, and parameters if
    asked. Dicts and lists are restored in place, since several modules may share one, and tensors only where they have changed: a graph of
    the user's may need them as they are."""
    held, tensors = {}, {}

    def hold(value):
        if isinstance(value, (dict, list, set, collections.deque)) and id(value) not in held:
            held[id(value)] = value, list(value.items()) if isinstance(value, dict) else list(value)
            for inner in value.values() if isinstance(value, dict) else value:
                hold(inner)
        elif isinstance(value, tuple):
            for inner in value:
                hold(inner)

    for module in net.modules():
        hold(vars(module))
        for kind, own in ((module._buffers, True), (module._parameters, parameters)):
            tensors.update({id(t): (t, t.data, t.detach().clone() if own else None, t.requires_grad, t.grad)
                            for t in kind.values() if t is not None and not torch.nn.parameter.is_lazy(t) and not t.is_meta})
    try:
        yield
    finally:
        for value, before in held.values():
            _restore(value, before)
        for tensor, memory, before, requires_grad, grad in tensors.values():
            if tensor.data_ptr() != memory.data_ptr() or tensor.shape != memory.shape:
                tensor.data = memory
            if before is not None and not torch.equal(memory, before):
                memory.copy_(before)
            if tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)
            if tensor.grad is not grad:
                tensor.grad = grad


def _restore(value, before):
    """The contents of a dict, list, set or deque."""
    now = list(value.items()) if isinstance(value, dict) else list(value)
    pairs = zip(itertools.chain.from_iterable(now), itertools.chain.from_iterable(before)) if isinstance(value, dict) else zip(now, before)
    if len(now) == len(before) and all(a is b for a, b in pairs):
        return
    value.clear()
    (value.extend if isinstance(value, (list, collections.deque)) else value.update)(before)


def _check_states(net, examples):
    """Refuses what a forward pass leaves for the next one, other than batch norm's statistics: centres and scales that follow the data,
    weights that are clipped. The proof is of one pass, and can't show it."""
    try:
        copied, outs = _copy_as_it_is(net), []
        for _ in range(2):
            torch.manual_seed(1)
            out = _tensors(copied(*(torch.cat([e[:1], e[:1]]) for e in examples)))
            outs.append([o.detach() for o in (out if isinstance(out, tuple) else (out,))])
        params, buffers = (_changed(a, b) for a, b in ((net.named_parameters(), copied.named_parameters()), (net.named_buffers(), copied.named_buffers())))
        same = all(a.shape == b.shape and torch.allclose(a.double(), b.double(), 1e-4, 1e-4 * float(torch.nan_to_num(a.double()).abs().max()), equal_nan=True)
                   for a, b in zip(*outs) if a.numel())  # not a number: rows of nothing but padding
    except Exception:  # noqa: BLE001: the export says what fails
        return
    if params:
        raise ExportError(f"the forward pass changes the parameter {params[0]}, which mfl does not do: compute another tensor from it "
                          "(self.weight.clamp(-1, 1)); what the first pass sets, set before the export")
    if not same:
        raise ExportError(f"a second forward pass of the same input has other outputs than the first: by {buffers[0] if buffers else 'a state of the module'}, "
                          "which the forward pass changes, or by random numbers that are not torch's. mfl keeps no state but batch norm's statistics: "
                          "compute it from the input, or leave it constant")


def _changed(before, after):
    return [name for (name, a), (_, b) in zip(before, after) if not torch.allclose(a.detach().cpu().to(b.dtype), b, 0, 0, equal_nan=True)]


# ---- random numbers ----

DRAWS = {"rand", "rand_like", "randn", "randn_like", "bernoulli", "bernoulli_", "uniform_", "normal", "normal_", "exponential_", "gumbel_softmax",
         "multinomial", "randint", "randperm", "rrelu"}
DROPOUTS = {"dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "scaled_dot_product_attention",
            "multi_head_attention_forward"}
LOW, HIGH = 0.0, 1 - 2.0 ** -24  # of torch.rand


class _Draws(torch.overrides.TorchFunctionMode):
    """Lists what draws random numbers. `fill`, LOW or HIGH: what a number that is drawn alone becomes, and what Python's own are."""

    def __init__(self, net, fill=None):
        super().__init__()
        self.net, self.fill, self.found, self.single, self.scopes = net, fill, [], False, [("", type(net).__name__)]

    def draws(self, name, args, kwargs):
        if name not in DROPOUTS:
            return name in DRAWS
        given = inspect.signature(getattr(_nn.functional, name)).bind(*args, **kwargs).arguments if name != "scaled_dot_product_attention" else kwargs
        if name == "scaled_dot_product_attention":
            return (args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)) > 0
        if name == "multi_head_attention_forward":
            return given.get("training", True) and given.get("dropout_p", 0.0) > 0
        return given.get("training", name not in ("alpha_dropout", "feature_alpha_dropout")) and given.get("p", 0.5) > 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, out = getattr(func, "__name__", ""), func(*args, **(kwargs or {}))
        if self.draws(name, args, kwargs or {}):
            self.found.append((*self.scopes[-1], name))
            if isinstance(out, torch.Tensor) and out.numel() == 1 and name in DRAWS:
                self.single = True
                if self.fill is not None:
                    out.data.fill_(self.fill if name in ("rand", "rand_like", "uniform_") else round(self.fill))
        return out

    def run(self, examples):
        handles, asked, plain = [], [], torch.Tensor.__bool__
        for name, module in self.net.named_modules():
            handles.append(module.register_forward_pre_hook(lambda m, args, name=name: self.scopes.append((name, type(m).__name__))))
            handles.append(module.register_forward_hook(lambda m, args, out: self.scopes.pop() and None))
        torch.manual_seed(1)
        with contextlib.ExitStack() as stack:
            stack.enter_context(unittest.mock.patch.object(torch.Tensor, "__bool__", lambda t: asked.append(plain(t)) or asked[-1]))
            others = [random] + ([sys.modules["numpy"].random] if "numpy" in sys.modules else [])
            for owner, name in itertools.product(others if self.fill is not None else (), ("random", "rand", "uniform")):
                if hasattr(owner, name):
                    stack.enter_context(unittest.mock.patch.object(owner, name, lambda *args, plain=getattr(owner, name), uniform=name == "uniform", **kwargs: (
                        args[0] + (args[1] - args[0]) * self.fill if uniform and len(args) == 2 else plain(*args, **kwargs) if args or kwargs else self.fill)))
            try:
                with self, torch.no_grad():
                    out = _tensors(self.net(*(torch.cat([e[:1], e[:1]]) for e in examples)))
            finally:
                for handle in handles:
                    handle.remove()
        return [o.detach().double() for o in (out if isinstance(out, tuple) else (out,))], asked

    def where(self):
        scope, kind, name = self.found[0]
        return f"{scope or 'the module'} ({kind}) calls {name}"


def _check_draws(net, examples):
    """Refuses random numbers in evaluation, where mfl has none, and those that a whole batch shares: mfl draws one for each sample."""
    try:
        still, low, high = _Draws(_copy(net)), _Draws(_copy_as_it_is(net), LOW), _Draws(_copy_as_it_is(net), HIGH)
        still.run(examples)
        (a, ways), (b, others) = low.run(examples), high.run(examples)
        same = len(a) == len(b) and all(x.shape == y.shape and torch.allclose(x, y, 1e-6, 1e-6 * float(x.abs().max()), equal_nan=True)
                                        for x, y in zip(a, b) if x.numel())
    except Exception:  # noqa: BLE001: the export says what fails
        return
    if still.found and still.found[0][2] in DROPOUTS:
        raise ExportError(f"{still.where()}, which drops in evaluation, too; mfl drops in training alone: write "
                          "F.dropout(x, p, self.training), or dropout_p=p if self.training else 0.0")
    if still.found:
        raise ExportError(f"{still.where()} in evaluation, too, where mfl draws no random numbers: draw them `if self.training`, or take them "
                          "as an input, drawn with the data")
    if not same and (not low.single or ways != others):
        raise ExportError("the module takes one way or another by a random number in training, as layer drop does; the file would have the way "
                          "that the export took. Set the share of layers that are dropped to 0, or use StochasticDepth(p, 'row')")
    if not same:
        raise ExportError(f"{low.where()}, one number for all samples of a batch; mfl draws one for each: torch.rand(x.shape[0], 1, 1), "
                          "StochasticDepth(p, 'row')")


# ---- where gradients stop ----

Stop = collections.namedtuple("Stop", ("module", "kind", "by", "kept"))
DETACHES = (torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__)


class _Watch(torch.overrides.TorchFunctionMode):
    """Lists what stops gradients that a parameter has: detach(), .data, no_grad() and functions with a backward of their own."""

    def __init__(self, net):
        super().__init__()
        self.net, self.found, self.refused, self.calls, self.scopes = net, {}, {}, {}, [("", type(net).__name__)]

    def note(self, by, kept=False):
        self.found.setdefault((self.scopes[-1][0], by), Stop(*self.scopes[-1], by, kept))

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.calls.setdefault(getattr(func, "__name__", "").replace("inverse", "linalg_inv"), self.scopes[-1])
        if func in REFUSED_CALLS and _changes(func, *args, **(kwargs or {})):
            self.refused.setdefault((self.scopes[-1], func.__name__), REFUSED_CALLS[func])
        if isinstance(out, torch.Tensor) and out.dtype in OTHER_FLOATS:
            self.calls.setdefault("other precision", self.scopes[-1])
        if any(isinstance(v, torch.Tensor) and v.is_complex() for v in (out, *args)):
            self.calls.setdefault("complex", self.scopes[-1])
        if any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
            if func in DETACHES:
                self.note("detach()", True)
            elif not torch.is_grad_enabled() and isinstance(out, torch.Tensor) and (out.is_floating_point() or out.is_complex()):
                self.note("no_grad()", True)
        return out

    def run(self, examples):
        function, handles = torch.autograd.Function, []
        own = function.__dict__.get("apply")

        def watched(kind, *args, **kwargs):
            if any(isinstance(a, torch.Tensor) and a.requires_grad for a in args) and not kind.__module__.startswith("torch."):
                self.note(f"{kind.__name__}.backward()")
            return own.__get__(None, kind)(*args, **kwargs) if own else super(function, kind).apply(*args, **kwargs)
        for name, module in self.net.named_modules():
            handles.append(module.register_forward_pre_hook(lambda m, args, name=name: self.scopes.append((name, type(m).__name__))))
            handles.append(module.register_forward_hook(lambda m, args, out: self.scopes.pop() and None))
        try:
            with unittest.mock.patch.object(function, "apply", classmethod(watched)), self, torch.enable_grad():
                self.net(*(torch.cat([e[:1], e[:1]]) for e in examples))
        finally:
            for handle in handles:
                handle.remove()
        return list(self.found.values())


def _find_stops(net, examples):
    watch, found = None, []
    try:
        watch = _Watch(_copy_as_it_is(net))
        found = watch.run(examples)
    except Exception:  # noqa: BLE001: the export says what fails
        pass
    for ((scope, kind), name), text in watch.refused.items() if watch else ():
        raise ExportError(f"{scope or 'the module'} ({kind}) calls {name}: {text}")
    return found, watch.calls if watch else {}


class _StopGradient(torch.autograd.Function):
    """detach() as a node, which no exporter writes: mfl reads it as a layer `detach`."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return None

    @staticmethod
    def symbolic(g, x):
        return g.op("mfl::StopGradient", x).setType(x.type())


class _ByName(torch.autograd.Function):
    """A function that ONNX has, and PyTorch's first exporter does not write. Within an export, where no gradient is computed."""

    @staticmethod
    def forward(ctx, x, name):
        return getattr(torch.ops.aten, name)(x)

    @staticmethod
    def symbolic(g, x, name):
        return g.op(name.capitalize(), x).setType(x.type())


class _KeepStops(torch.overrides.TorchFunctionMode):
    """Within an export. What is computed under no_grad() is detached."""

    def __init__(self, stops):
        super().__init__()
        self.depth, self.by = 0, {s.by for s in stops}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in DETACHES and "detach()" in self.by and args[0].is_floating_point():
            return _StopGradient.apply(args[0])
        out = func(*args, **(kwargs or {}))
        if self.depth and "no_grad()" in self.by and isinstance(out, _Complex):
            return _Complex(*map(_StopGradient.apply, out.parts))
        within = self.depth and isinstance(out, torch.Tensor) and out.is_floating_point() and any(isinstance(a, torch.Tensor) for a in args)
        return _StopGradient.apply(out) if within and "no_grad()" in self.by else out

    @contextlib.contextmanager
    def patched(self):
        no_grad = torch.no_grad
        enter, leave = no_grad.__enter__, no_grad.__exit__

        def entered(own):
            enter(own)
            self.depth += 1

        def left(own, *args):
            self.depth -= 1
            return leave(own, *args)
        with unittest.mock.patch.object(no_grad, "__enter__", entered), unittest.mock.patch.object(no_grad, "__exit__", left), self:
            yield


# ---- computed places ----

ORDERS = {getattr(owner, name): name for owner in (torch, torch.Tensor) for name in ("argmax", "argmin", "topk", "sort", "argsort", "max", "min")}
ORDERS.update({torch.bucketize: "bucketize"})
READS = {getattr(owner, name): name for owner in (torch, torch.Tensor) for name in ("gather", "scatter", "scatter_add")}
READS.update({torch.Tensor.scatter_: "scatter", torch.Tensor.scatter_add_: "scatter_add", torch.nn.functional.one_hot: "one_hot",
              torch.nn.functional.embedding: "embedding", torch.Tensor.__getitem__: "getitem"})
MOVES = {"add", "sub", "__add__", "__sub__", "clamp", "unsqueeze", "squeeze", "view", "reshape", "expand", "expand_as", "repeat", "flatten", "transpose",
         "permute", "t", "__getitem__", "contiguous", "clone", "detach"}
NUMBERS = {"float", "mul", "__mul__", "__rmul__", "div", "__truediv__", "eq", "__eq__"}  # which take a place as a number
PLACES_MAX, ORDERED_MAX = 256, 1 << 22  # that are compared with each other; comparisons
MASKED = -1e9  # what mfl adds where a mask is: in float, its exponential is 0


class _Places(torch.overrides.TorchFunctionMode):
    """Within an export. The place of a value among others is computed by comparing them, and what is read or written at a computed
    place is a product with ones where a constant place equals it: mixtures of experts, codebooks, hard attention, the last word of
    a text. mfl has no operators for places. Those of equal numbers follow each other, as in PyTorch."""

    def __init__(self):
        super().__init__()
        self.places = {}  # by id: whole numbers that the samples decide, as floats, since mfl has no others
        self.later = {}  # by id: what PyTorch computed, and how to compute the same as floats, once something reads it

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name, plain = ORDERS.get(func), lambda: func(*args, **kwargs)
        out = self.order(name, plain, *args, **kwargs) if name else None
        called, known = getattr(func, "__name__", ""), any(self.knows(a) for a in _flat(args, kwargs))
        if known and (func in READS or called in MOVES or called in NUMBERS or called in ("long", "int", "to")):
            args, kwargs = [self.made(a) for a in args], {k: self.made(a) for k, a in kwargs.items()}
        constant = READS.get(func) in ("gather", "scatter", "scatter_add")
        if out is None and func in READS and (constant or known):
            out = getattr(self, READS[func])(*args, **kwargs)
            if out is not None and func in (torch.Tensor.scatter_, torch.Tensor.scatter_add_):
                out = args[0].copy_(out)
        if out is not None:
            return out
        if known and (called in ("long", "int") or called == "to" and args[1:] in ([torch.int64], [torch.int32])):
            return args[0]
        out = plain()
        counts = called == "sum" and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.bool
        if counts or known and called in MOVES:
            self.note(out)
        return out

    def note(self, places):
        self.places[id(places)] = places
        return places

    def knows(self, value):
        return isinstance(value, torch.Tensor) and (id(value) in self.places or id(value) in self.later)

    def made(self, value):
        if isinstance(value, tuple):
            return tuple(map(self.made, value))
        if not isinstance(value, torch.Tensor) or id(value) not in self.later:
            return value
        if callable(self.later[id(value)][1]):
            self.later[id(value)] = value, self.later[id(value)][1]()
        return self.later[id(value)][1]

    def put_off(self, places, make):
        self.later[id(places)] = places, make
        return places

    # -- which places --

    def order(self, name, plain, x, *args, **kwargs):
        if name == "bucketize":
            return self.note((x.unsqueeze(-1) > args[0]).to(x.dtype).sum(-1)) if not kwargs and x.is_floating_point() else None
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() and name != "argmax":
            return None
        a = list(args)
        k = (kwargs.get("k") or a.pop(0)) if name == "topk" else None
        dim = kwargs.get("dim", a[0] if a else None if name in ("argmax", "argmin", "max", "min") else -1)
        if not isinstance(dim, int) or not 0 < dim % x.dim() or int(x.shape[dim]) > PLACES_MAX:
            return None
        least = (name in ("argmin", "min") or name == "topk" and kwargs.get("largest", a[1] if len(a) > 1 else True) is False or
                 name in ("sort", "argsort") and not kwargs.get("descending", a[1] if len(a) > 1 else False))
        dim %= x.dim()
        out = plain()
        found = out if isinstance(out, torch.Tensor) else out[1]
        n = k or (int(x.shape[dim]) if name in ("sort", "argsort") else 1)

        def make():
            places = self.among(x if x.is_floating_point() else x.float(), dim, n, least)
            return places if places.dim() == found.dim() else self.note(places.squeeze(dim))
        self.put_off(found, make)
        return out if found is out else Ordered(out[0], found)

    def among(self, x, dim, k, least):
        """Places of the k largest or least numbers: a number's rank is how many come before it."""
        x = x.detach().transpose(dim, -1)
        n = int(x.shape[-1])
        if x.numel() * n > ORDERED_MAX:
            raise ExportError(f"the places of the largest or least of {n} numbers, {x.numel() // n} times, are too many for mfl, which compares "
                              f"each with each (at most {ORDERED_MAX} comparisons): pool or slice before")
        own, other = x.unsqueeze(-1), x.unsqueeze(-2)
        earlier = torch.ones(n, n, dtype=torch.bool).tril(-1)
        before = (other < own) if least else (other > own)
        rank = (before | (~((other < own) | (other > own)) & earlier)).float().sum(-1)
        at = _equal(rank.unsqueeze(-2), torch.arange(k).unsqueeze(-1)).float()
        return self.note((at * torch.arange(n, dtype=torch.float32)).sum(-1).transpose(dim, -1))

    # -- what is there --

    def ones(self, places, n):
        return _equal(places.unsqueeze(-1), torch.arange(n))

    def wrapped(self, places, n):
        """As an index: -1 is the last place."""
        return self.ones(places, n) | self.ones(places + n, n)

    def one_hot(self, places, num_classes=-1):
        return self.ones(places, num_classes).long() if num_classes > 0 else None

    def embedding(self, places, weight, padding_idx=None, *args, **kwargs):
        if padding_idx is not None and self.knows(places):
            raise ExportError("an embedding with padding_idx at computed places: mfl would train that row, too: leave padding_idx out")
        return self.ones(places, int(weight.shape[0])).to(weight.dtype) @ weight if self.knows(places) else None

    def turned(self, dim, *tensors):
        return [t.transpose(dim, -1) if isinstance(t, torch.Tensor) else t for t in tensors]

    def gather(self, x, dim, index, **_):
        value, places = self.turned(dim, x, index)
        if value.shape[:-1] != places.shape[:-1] or not x.is_floating_point() or value.shape[-1] * places.shape[-1] > PLACES_MAX ** 2:
            return None
        return (self.ones(places, int(value.shape[-1])).to(x.dtype) * value.unsqueeze(-2)).sum(-1).transpose(dim, -1)

    def scatter(self, x, dim, index, src=None, *, value=None, reduce=None, add=False):
        value = src if value is None else value
        base, places, new = self.turned(dim, x, index, value)
        if base.shape[:-1] != places.shape[:-1] or reduce is not None or isinstance(new, torch.Tensor) and new.dim() and new.shape != places.shape:
            return None
        if int(base.shape[-1]) * int(places.shape[-1]) > PLACES_MAX ** 2:
            return None
        kind = x.dtype if x.is_floating_point() else torch.float32
        if not add and bool((base == -math.inf).all()):  # what is not chosen, before a softmax: no product with 0 has a number
            base = torch.full_like(base, MASKED)
        at = self.ones(places, int(base.shape[-1])).to(kind)
        n = int(places.shape[-1])
        if not add and n > 1:  # of equal places the last one is written, as PyTorch does on the CPU
            at = at * (torch.ones(n, n, dtype=kind).triu(1) @ at < 0.5).to(kind)
        written = (at * (new.unsqueeze(-1) if isinstance(new, torch.Tensor) and new.dim() else new)).sum(-2)
        return ((base if add else base * (1 - at.sum(-2))) + written).transpose(dim, -1)

    def scatter_add(self, x, dim, index, src):
        return self.scatter(x, dim, index, src, add=True)

    def getitem(self, x, key):
        if self.knows(key) and x.is_floating_point():
            if x.dim() < 2:
                return None
            rows = self.wrapped(key, int(x.shape[0])).to(x.dtype) @ x.reshape(int(x.shape[0]), -1)
            return rows if x.dim() == 2 else rows.reshape(*rows.shape[:-1], *x.shape[1:])
        if not isinstance(key, tuple) or len(key) != 2 or not self.knows(key[1]) or key[1].dim() != 1 or x.dim() != 3:
            return None
        rows = key[0]
        if not isinstance(rows, torch.Tensor) or not torch.equal(rows, torch.arange(len(rows))) or len(rows) != len(x):
            return None
        return (self.wrapped(key[1], int(x.shape[1])).to(x.dtype).unsqueeze(-1) * x).sum(1)


def _equal(places, other):
    """Of whole numbers."""
    places = places if places.is_floating_point() else places.float()
    return (places > other - 0.5) & (places < other + 0.5)


def _flat(args, kwargs):
    for a in (*args, *kwargs.values()):
        yield from a if isinstance(a, (tuple, list)) else (a,)


# ---- constants ----

OTHER_FLOATS = (torch.bfloat16, torch.float16, torch.float64)


class _Constants(torch.overrides.TorchFunctionMode):
    """Within an export. What follows from no input, parameter or buffer is computed here if it is in another precision than mfl's (a bias in
    bfloat16) or chooses between two values (torch.where). Where samples are computed in double, the file has float32, as mfl."""

    def __init__(self, net):
        super().__init__()
        self.net, self.live, self.kept = net, {}, {}

    def start(self, inputs):
        for t in itertools.chain(inputs, self.net.parameters(), self.net.buffers()):
            self.live[id(t)] = t

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        values = list(_flat_deep((*args, *kwargs.values())))
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        live = any(id(t) in self.live for t in tensors)
        other = any(v in OTHER_FLOATS for v in values if isinstance(v, torch.dtype)) or name in ("bfloat16", "half", "double") or any(
            id(t) in self.kept or t.dtype in OTHER_FLOATS for t in tensors)
        if name == "where" and len(args) == 3 and id(args[0]) not in self.live and isinstance(args[0], torch.Tensor):
            with _untraced():
                chosen = args[1] if bool(args[0].all()) else None if bool(args[0].any()) else args[2]
            if isinstance(chosen, torch.Tensor):
                return self.note(chosen.expand(torch.broadcast_shapes(*(a.shape for a in args if isinstance(a, torch.Tensor)))), live)
        if other and not live and not any(word in name for word in RANDOM):
            with _untraced():
                out = func(*args, **kwargs)
            for t in _flat_deep([out]):
                if isinstance(t, torch.Tensor):
                    self.kept[id(t)] = t
            return out
        if live and (torch.float64 in values or name == "double"):
            out = args[0].float() if name == "double" else func(*(torch.float32 if a is torch.float64 else a for a in args),
                                                                **{k: torch.float32 if v is torch.float64 else v for k, v in kwargs.items()})
        else:
            out = func(*args, **kwargs)
        if func in SIZES or name in FILLED:
            return out
        in_place = name.endswith("_") and not name.endswith("__") or name == "__setitem__" or name.startswith("__i") and "in" not in name
        self.note([out, args[0]] if in_place and args else out, live or any(word in name for word in RANDOM))
        return out

    def note(self, out, live):
        for t in _flat_deep([out] if live else []):
            if isinstance(t, torch.Tensor):
                self.live[id(t)] = t
        return out


SIZES = (torch.Tensor.shape.__get__, torch.Tensor.size, torch.Tensor.numel, torch.Tensor.dim, torch.Tensor.__len__)
FILLED = {f"{fill}_like" for fill in ("empty", "zeros", "ones", "full")} | {f"new_{fill}" for fill in ("empty", "zeros", "ones", "full")}
RANDOM = ("rand", "bernoulli", "normal", "uniform", "exponential", "multinomial", "dropout", "poisson")


# ---- complex numbers ----

TRANSFORMED_MAX = 1 << 24  # elements of a discrete Fourier transform's matrix
BOTH_PARTS = {"reshape", "view", "permute", "transpose", "swapaxes", "movedim", "flatten", "unflatten", "unsqueeze", "squeeze", "expand", "expand_as", "repeat", "cat",
              "stack", "chunk", "split", "tensor_split", "unbind", "getitem", "sum", "mean", "roll", "flip", "contiguous", "clone", "narrow", "select", "index_select",
              "pad", "tile", "t", "detach", "neg", "zeros_like", "diff", "cumsum", "broadcast_to", "take_along_dim", "gather", "masked_fill", "where"}
PRODUCTS = {"mul", "matmul", "bmm", "mm", "einsum", "outer", "rmul", "multiply"}
FACTORIES = {"zeros", "empty", "ones", "full", "eye", "new_zeros", "new_empty", "new_ones"}
COMPLEX = (torch.complex64, torch.complex128)


class _NotInParts(ExportError):
    """A function of complex numbers, by its name."""


class _Complex:
    """A complex value within an export, as its real and its imaginary part: neither mfl nor the exporter has complex numbers."""

    def __init__(self, real, imag):
        self.parts = [real, imag]

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return _computed_in_parts(func, args, kwargs or {})

    real, imag = property(lambda self: self.parts[0]), property(lambda self: self.parts[1])
    shape, ndim, device, requires_grad = (property(lambda self, name=name: getattr(self.parts[0], name)) for name in ("shape", "ndim", "device", "requires_grad"))
    dtype, T, mT = torch.complex64, property(lambda self: self.t()), property(lambda self: self.transpose(-2, -1))

    def __getattr__(self, name):
        if name in ("dim", "size", "numel", "ndimension"):
            return getattr(self.parts[0], name)
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("H", "mH"):
            return self.mT.conj()
        if name == "data":
            return self.detach()
        func = getattr(torch.Tensor, name)
        if not callable(func):  # is_cuda, layout
            return getattr(self.parts[0], name)
        return lambda *args, **kwargs: _computed_in_parts(func, (self, *args), kwargs)

    def __len__(self):
        return len(self.parts[0])

    def __iter__(self):
        return iter(self.unbind(0))


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "neg", "matmul", "rmatmul", "pow", "getitem", "setitem", "abs"):
    setattr(_Complex, f"__{_name}__", lambda self, *args, _name=_name: _computed_in_parts(getattr(torch.Tensor, f"__{_name}__"), (self, *args), {}))
del _name


class _ComplexParameter(_Complex):
    """A parameter, which the file has as pairs of real numbers."""

    def __init__(self, pairs):
        self.pairs = pairs

    parts = property(lambda self: [self.pairs.select(-1, k) for k in (0, 1)])


class _InParts(torch.overrides.TorchFunctionMode):
    """Within an export: complex values are computed by their parts, and Fourier transforms as products with constant matrices."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name, values = getattr(func, "__name__", ""), list(_flat_deep((*args, *kwargs.values())))
        own = any(isinstance(v, (_Complex, complex)) for v in values)
        constants = [v for v in values if isinstance(v, torch.Tensor) and v.is_complex()]
        if constants and not own and all(v.is_complex() for v in values if isinstance(v, torch.Tensor)):
            with _untraced():
                return func(*args, **kwargs)
        transforms = name.startswith("fft_") and not name.endswith("freq") or name in ("stft", "istft")
        if own or constants or transforms or name in ("view_as_complex", "polar", "complex") or any(v in COMPLEX for v in values if isinstance(v, torch.dtype)):
            return _computed_in_parts(func, args, kwargs)
        return func(*args, **kwargs)


def _flat_deep(values):
    for v in values:
        if isinstance(v, (tuple, list)):
            yield from _flat_deep(v)
        else:
            yield v


def _parts(value):
    """Real and imaginary part, which is None for a real value."""
    if isinstance(value, _Complex):
        return value.parts
    if isinstance(value, torch.Tensor) and value.is_complex():
        with _untraced():
            return [value.real.detach().clone(), value.imag.detach().clone()]
    return [value.real, value.imag] if isinstance(value, complex) else [value, None]


def _made_of(real, imag):
    if isinstance(real, (tuple, list)):
        return tuple(_Complex(r, i) for r, i in zip(real, imag))
    return _Complex(real, imag)


def _computed_in_parts(func, args, kwargs):
    name = getattr(func, "__name__", "")
    known, in_place = name.strip("_"), name.endswith("_") and not name.endswith("__")
    if name.startswith("fft_"):
        known = name[4:]
    if "input" in kwargs:
        kwargs = dict(kwargs)
        args = (kwargs.pop("input"), *args)
    if known in ("masked_fill", "where"):  # a number has the imaginary part 0
        args, kwargs = (args[0], *map(_as_complex, args[1:])), {key: _as_complex(v) for key, v in kwargs.items()}
    if known in BOTH_PARTS:
        out = _made_of(*(func(*_part(args, k), **_part(kwargs, k)) for k in (0, 1)))
    elif known in PRODUCTS:
        out = _multilinear(getattr(torch.Tensor, known) if in_place else func, args, kwargs)
    elif known in IN_PARTS:
        out = IN_PARTS[known](*args, **kwargs)
    elif known in FACTORIES:
        out = _Complex(*(_filled(func, args, kwargs, k) for k in (0, 1)))
    elif known == "setitem":
        for part, value in zip(args[0].parts, _both(args[2])):
            part[args[1]] = value
        return None
    else:
        raise _NotInParts(name)
    if in_place:
        for part, value in zip(args[0].parts, _both(out)):
            part.copy_(value)
        return args[0]
    return out


def _as_complex(value):
    return complex(value) if isinstance(value, (int, float)) else value


def _both(value):
    real, imag = _parts(value)
    if imag is None:
        imag = torch.zeros_like(real) if isinstance(real, torch.Tensor) else 0.0
    return real, imag


def _part(values, k):
    """Arguments of the k-th part: constants as they are, real numbers among complex ones without an imaginary part."""
    if isinstance(values, dict):
        return {key: v if key == "dtype" else _part((v,), k)[0] for key, v in values.items()}
    mixed = any(isinstance(v, _Complex) or isinstance(v, torch.Tensor) and v.is_complex() for v in values)
    return type(values)(_part(v, k) if isinstance(v, (tuple, list)) else _both(v)[k] if isinstance(v, (_Complex, complex)) or
                        isinstance(v, torch.Tensor) and (v.is_complex() or mixed and v.is_floating_point()) else v for v in values)


def _filled(func, args, kwargs, k):
    kwargs = {key: v for key, v in kwargs.items() if key != "dtype"}
    if getattr(func, "__name__", "") == "full":
        args = (args[0], _both(args[1])[k])
    elif k:
        func = {"ones": torch.zeros, "eye": torch.zeros, "new_ones": torch.Tensor.new_zeros}.get(func.__name__, func)
    return func(*(a for a in args if not isinstance(a, torch.dtype)), **kwargs)


def _multilinear(func, args, kwargs):
    """A product of several values: every choice of their parts, each imaginary one of which is a quarter of a turn."""
    head, values = (list(args[:1]), args[1:]) if isinstance(args[0], str) else ([], args)
    if head and len(values) == 1 and isinstance(values[0], (tuple, list)):
        values = values[0]
    sums = [None, None]
    for choice in itertools.product((0, 1), repeat=len(values)):
        chosen = [_parts(v)[k] for v, k in zip(values, choice)]
        if any(c is None or isinstance(c, float) and c == 0 for c in chosen):
            continue
        if not any(isinstance(c, torch.Tensor) for c in chosen[:1]):
            chosen.reverse()  # a number times a value
        term, turns = func(*head, *chosen, **kwargs), sum(choice)
        before = sums[turns % 2]
        sums[turns % 2] = term if before is None and turns < 2 else -term if before is None else before + term if turns % 4 < 2 else before - term
    real, imag = sums
    return _Complex(torch.zeros_like(imag) if real is None else real, torch.zeros_like(real) if imag is None else imag)


def _sum(sign, swapped=False):
    def add(a, b, *, alpha=1):
        a, b = (b, a) if swapped else (a, b)
        (real, imag), (other, turned) = _both(a), _both(b)
        return _Complex(real + sign * alpha * other, imag + sign * alpha * turned)
    return add


def _quotient(a, b):
    (real, imag), (other, turned) = _parts(a), _parts(b)
    if turned is None:
        return _Complex(real / other, imag / other)
    size = other * other + turned * turned
    imag = 0.0 if imag is None else imag
    return _Complex((real * other + imag * turned) / size, (imag * other - real * turned) / size)


def _absolute(x):
    """PyTorch's has the gradient 0 at 0, where that of a root is infinite."""
    real, imag = _both(x)
    return (real * real + imag * imag + 1e-24).sqrt()


def _polar(size, angle):
    return _Complex(size * torch.cos(angle), size * torch.sin(angle))


def _power(x, exponent):
    if exponent not in range(1, 9):
        raise _NotInParts("pow with another exponent than 1 to 8")
    return x if exponent == 1 else _multilinear(torch.mul, (x, _power(x, exponent - 1)), {})


def _cast(x, *args, **kwargs):
    """To a complex type, a device, or from complex to real numbers."""
    types = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.dtype)]
    if types and types[0] not in COMPLEX:
        return _parts(x)[0].to(types[0])
    return _Complex(*_both(x))


def _along(x, dim, n, matrices):
    """The product of x along a dimension, cut to the first n places, with pairs of constant matrices: [(of the real part, of the imaginary part)]."""
    parts = [p if p is None or int(p.shape[dim]) == n else p.narrow(dim, 0, n) for p in _parts(x)]
    turn = (lambda t: t) if dim % parts[0].dim() == parts[0].dim() - 1 else (lambda t: t.transpose(dim, -1))
    sums = []
    for pair in matrices:
        terms = [turn(p) @ m.to(p.dtype) for p, m in zip(parts, pair) if p is not None and m is not None]
        sums.append(turn(terms[0] + terms[1] if len(terms) > 1 else terms[0]))
    return sums


def _angles(rows, columns, n, norm, inverse):
    """2 pi j k / n, and the factor."""
    if rows * columns > TRANSFORMED_MAX:
        raise ExportError(f"a Fourier transform of {n} numbers is a product with a matrix of {rows} x {columns} in mfl, which is too large: transform shorter "
                          "parts (torch.stft)")
    if norm not in (None, "backward", "ortho", "forward"):
        raise ExportError(f'norm="{norm}" of a Fourier transform: write "backward", "ortho" or "forward"')
    turns = (torch.arange(rows)[:, None] * torch.arange(columns)[None]) % n
    divided = norm == "ortho" or (norm == "forward") != inverse
    return turns.double() * (2 * math.pi / n), n ** -(0.5 if norm == "ortho" else 1.0) if divided else 1.0


def _exact(x):
    """Sines and cosines of what is a whole number of quarters."""
    return torch.where((x - x.round()).abs() < 1e-14, x.round(), x)


def _dft(x, n=None, dim=-1, norm=None, inverse=False, half=False):
    real = _parts(x)[0]
    n = int(n or real.shape[dim])
    taken = min(n, int(real.shape[dim]))
    with _untraced():
        angles, factor = _angles(taken, n // 2 + 1 if half else n, n, norm, inverse)
        c, s = _exact(torch.cos(angles)) * factor, _exact(torch.sin(angles)) * (factor if inverse else -factor)
        matrices = [(c.float(), -s.float()), (s.float(), c.float())]
    return _Complex(*_along(x, dim, taken, matrices))


def _real_from_half(x, n=None, dim=-1, norm=None):
    """The inverse of a real transform: all but the first frequency, and the last one of an even n, stand for two."""
    real = _both(x)[0]
    n = int(n or 2 * (int(real.shape[dim]) - 1))
    taken = min(n // 2 + 1, int(real.shape[dim]))
    with _untraced():
        angles, factor = _angles(taken, n, n, norm, True)
        twice = torch.full((taken, 1), 2.0 * factor, dtype=torch.float64)
        twice[0] = factor
        if n % 2 == 0 and taken == n // 2 + 1:
            twice[-1] = factor
        pair = (_exact(torch.cos(angles)) * twice).float(), (-_exact(torch.sin(angles)) * twice).float()
    return _along(_Complex(*_both(x)), dim, taken, [pair])[0]


def _several(default, last, other):
    """A transform over several dimensions: `last` along the last one, `other` along those before. An inverse real one comes last."""
    def transform(x, s=None, dim=default, norm=None):
        rank = _parts(x)[0].dim()
        dims = list(range(rank))[rank - len(s) if s is not None else 0:] if dim is None else [dim] if isinstance(dim, int) else list(dim)
        sizes = [None] * len(dims) if s is None else [None if v == -1 else v for v in s]
        order = list(zip(dims, sizes))
        if last is _real_from_half:
            for d, n in order[:-1]:
                x = other(x, n, d, norm)
            return last(x, order[-1][1], order[-1][0], norm)
        x = last(x, order[-1][1], order[-1][0], norm)
        for d, n in order[:-1]:
            x = other(x, n, d, norm)
        return x
    return transform


def _inverse(*args, **kwargs):
    return _dft(*args, **kwargs, inverse=True)


def _half(*args, **kwargs):
    return _dft(*args, **kwargs, half=True)


def _shift(forward):
    def shift(x, dim=None):
        real = _parts(x)[0]
        dims = list(range(real.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
        by = [int(real.shape[d]) // 2 if forward else -(int(real.shape[d]) // 2) for d in dims]
        parts = [None if p is None else torch.roll(p, by, dims) for p in _parts(x)]
        return parts[0] if parts[1] is None else _Complex(*parts)
    return shift


def _stft(input, n_fft, hop_length=None, win_length=None, window=None, center=True, pad_mode="reflect", normalized=False, onesided=None,
          return_complex=None, **_):
    """A convolution with constant weights."""
    x, n = input.reshape(-1, 1, int(input.shape[-1])), n_fft if onesided is False else n_fft // 2 + 1
    if center:
        x = torch.nn.functional.pad(x, (n_fft // 2, n_fft // 2), mode=pad_mode)
    taper = _taper(window, win_length, n_fft)
    with _untraced():
        angles, factor = _angles(n, n_fft, n_fft, "ortho" if normalized else None, False)
        weights = (torch.cat([_exact(torch.cos(angles)), -_exact(torch.sin(angles))]) * factor * taper).to(x.dtype).unsqueeze(1)
    out = torch.nn.functional.conv1d(x, weights, stride=hop_length or n_fft // 4)
    out = out if input.dim() > 1 else out[0]
    parts = out.narrow(-2, 0, n), out.narrow(-2, n, n)
    return _Complex(*parts) if return_complex else torch.stack(parts, -1)


def _taper(window, width, n_fft):
    with _untraced():
        width = width or n_fft
        taper = torch.ones(width) if window is None else window.detach().clone()
        return torch.nn.functional.pad(taper, ((n_fft - width) // 2, n_fft - width - (n_fft - width) // 2))


def _istft(x, n_fft, hop_length=None, win_length=None, window=None, center=True, normalized=False, onesided=None, length=None, return_complex=False):
    """Frames, added where they overlap, and divided by the sum of the windows' squares."""
    if onesided is False or return_complex:
        raise ExportError("istft is supported for the half of the frequencies that a real signal has (onesided=True, return_complex=False)")
    hop, taper, shape = hop_length or n_fft // 4, _taper(window, win_length, n_fft), [int(d) if k else -1 for k, d in enumerate(x.shape[:-2])]
    frames = _real_from_half(x.transpose(-2, -1), n_fft, norm="ortho" if normalized else None) * taper
    n = int(frames.shape[-2])
    total = n_fft + hop * (n - 1)

    def joined(columns):
        return torch.nn.functional.fold(columns, (1, total), (1, n_fft), stride=(1, hop))
    with _untraced():
        squares = joined((taper * taper)[None, :, None].repeat(1, 1, n)).reshape(-1)
    begin = n_fft // 2 if center else 0
    end = min(total, begin + length) if length else total - begin
    y = joined(frames.reshape(-1, n, n_fft).transpose(1, 2)).reshape(*shape, total)[..., begin:end] / squares[begin:end]
    return torch.nn.functional.pad(y, (0, length - (end - begin))) if length and length > end - begin else y


IN_PARTS = {
    "add": _sum(1), "radd": _sum(1), "sub": _sum(-1), "rsub": _sum(-1, True), "truediv": _quotient, "div": _quotient, "rdiv": lambda a, b: _quotient(b, a),
    "rmatmul": lambda a, b: _multilinear(torch.matmul, (b, a), {}), "pow": _power, "square": lambda x: _power(x, 2), "abs": _absolute,
    "conj": lambda x: _Complex(_both(x)[0], -_both(x)[1]), "conj_physical": lambda x: _Complex(_both(x)[0], -_both(x)[1]), "resolve_conj": lambda x: x,
    "real": lambda x: _both(x)[0], "imag": lambda x: _both(x)[1], "view_as_real": lambda x: torch.stack(_both(x), -1),
    "view_as_complex": lambda x: _Complex(x[..., 0], x[..., 1]), "complex": _Complex, "polar": _polar,
    "angle": lambda x: torch.atan2(_both(x)[1], _both(x)[0]), "exp": lambda x: _polar(torch.exp(_both(x)[0]), _both(x)[1]),
    "log": lambda x: _Complex(torch.log(_absolute(x)), torch.atan2(_both(x)[1], _both(x)[0])),
    "is_complex": lambda x: True, "is_floating_point": lambda x: False, "to": _cast, "type": _cast, "cfloat": _cast, "cdouble": _cast, "type_as": lambda x, other: _cast(x, other.dtype),
    "cuda": _cast, "cpu": _cast,
    "fft": _dft, "ifft": _inverse, "rfft": _half, "irfft": _real_from_half,
    "fft2": _several((-2, -1), _dft, _dft), "ifft2": _several((-2, -1), _inverse, _inverse), "fftn": _several(None, _dft, _dft), "ifftn": _several(None, _inverse, _inverse),
    "rfft2": _several((-2, -1), _half, _dft), "rfftn": _several(None, _half, _dft), "irfft2": _several((-2, -1), _real_from_half, _inverse),
    "irfftn": _several(None, _real_from_half, _inverse), "fftshift": _shift(True), "ifftshift": _shift(False), "stft": _stft, "istft": _istft,
}


@contextlib.contextmanager
def _complex_as_pairs(net):
    """Within an export, parameters of complex numbers are parameters of pairs, under their names, and buffers are constants."""
    pairs, changed = {}, []
    for module in net.modules():
        for kept in (module._parameters, module._buffers):
            for name, tensor in list(kept.items()):
                if tensor is None or not tensor.is_complex():
                    continue
                if kept is module._parameters:
                    made = pairs.setdefault(id(tensor), torch.nn.Parameter(torch.view_as_real(tensor.detach()).clone(), tensor.requires_grad))
                    kept[name] = made
                    module.__dict__[name] = _ComplexParameter(made)
                else:
                    kept[name] = None
                    module.__dict__[name] = tensor
                changed.append((module, kept, name, tensor))
    try:
        yield
    finally:
        for module, kept, name, tensor in changed:
            del module.__dict__[name]
            kept[name] = tensor


def _pairs(tensor):
    """As mfl has it: of complex numbers, pairs of real ones."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


@contextlib.contextmanager
def _untraced():
    """What is computed within is a constant of the graph."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)


# ---- the graph ----

def _export(net, inputs, path, stops, calls):
    """One sample: mfl reads a graph of one sample. Batch norm of vectors can't train on one, so there the batch is dynamic. PyTorch's
    first exporter keeps names and needs no other package; the second one writes operators that the first does not know."""
    takes = inspect.signature(torch.onnx.export).parameters
    orders = calls.keys() & {*ORDERS.values(), "gather", "scatter", "scatter_", "scatter_add", "scatter_add_"} or {"sum", "embedding"} <= calls.keys()
    constants = [_Constants(net)] if calls.keys() & {"where", "other precision"} else []
    modes = [lambda: constants[0]] * len(constants) + ([_InParts] if "complex" in calls else []) + ([_Places] if orders else []) + ([_KeepStops(stops).patched] if any(s.kept for s in stops) else [])

    @contextlib.contextmanager
    def keep(given):
        with contextlib.ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode())
            for mode in constants:
                mode.start(given)
            yield
    with _only_torch(), _complex_as_pairs(net), _plain_forward(net, keep) as removed, _plain_functions(), _quiet():
        problem = None
        if "training" in takes:
            try:
                _export_once(net, inputs, path, {"dynamo": False} if "dynamo" in takes else {})
                return "torchscript", bool(removed)
            except _NotInParts as e:
                scope, kind = calls.get(str(e).split(" ")[0], ("", type(net).__name__))
                raise ExportError(f"{scope or 'the module'} ({kind}) calls {e} of complex numbers, which is not supported: compute it from the real and "
                                  "the imaginary part (x.real, x.imag)") from e
            except ExportError:
                raise
            except Exception as e:  # noqa: BLE001
                problem = e
        missing = re.search(r"operator '\w+::(\w+)'", str(problem))
        if missing and "dynamo" not in takes:
            raise _unexported(net, calls, missing[1]) from problem
        if "dynamo" not in takes:
            raise problem
        if any(s.kept for s in stops):
            stop = next(s for s in stops if s.kept)
            raise ExportError(f"{stop.module or 'the module'} ({stop.kind}) stops gradients by {stop.by}, which only PyTorch's first exporter "
                              f"can write, and that one fails: {problem}")
        try:
            torch.onnx.export(net, inputs, path, dynamo=True, optimize=False, external_data=False)
        except Exception as e:  # noqa: BLE001
            if missing:
                raise _unexported(net, calls, missing[1]) from e
            told = [re.sub(r"\x1b\[\d*m", "", str(x or e)).split("\n")[0] for x in (problem, e)]
            raise ExportError(f"PyTorch can't export this module: {told[0]}; nor with dynamo=True: {told[1]}") from e
        return "dynamo", bool(removed)


def _unexported(net, calls, function):
    scope, kind = calls.get(function, ("", type(net).__name__))
    if function == "histc" and any(hasattr(m, "set_experts_implementation") for m in net.modules()):
        told = 'call set_experts_implementation("batched_mm") of the model before'
    else:
        told = ("compute it before and store the result with the data or as the parameter, or write it with the functions that docs/pytorch.md lists")
    return ExportError(f"{scope or 'the module'} ({kind}) calls {function}, which PyTorch can't export: {told}")


@contextlib.contextmanager
def _quiet():
    """Without the warnings and graphs that the exporters print, also from C++."""
    sys.stdout.flush()
    kept = os.dup(1)
    with open(os.devnull, "w", encoding="utf-8") as nothing, warnings.catch_warnings(), contextlib.redirect_stdout(nothing):
        warnings.simplefilter("ignore")
        os.dup2(nothing.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)


def _export_once(net, inputs, path, options):
    # What an export that failed has left in cycles of frames keeps graphs of PyTorch 1 by their addresses; a new graph at one of them crashes.
    gc.collect()
    options = {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False, "opset_version": 17, **options}
    try:
        torch.onnx.export(net, inputs, path, **options)
    except getattr(torch.onnx.errors, "CheckerError", ()):  # PyTorch 1.13 writes opset 17's LayerNormalization only with a scale
        torch.onnx.export(net, inputs, path, **{**options, "opset_version": 16})
    except ValueError as e:
        if "more than 1 value" not in str(e):
            raise
        names = [f"input{i}" for i in range(len(inputs))]
        torch.onnx.export(net, tuple(torch.cat([x, x]) for x in inputs), path, input_names=names,
                          dynamic_axes={name: {0: "batch"} for name in names}, **options)


@contextlib.contextmanager
def _plain_forward(net, within):
    """Takes positional tensors and returns tensors: the exporter makes inputs of default values, and can't write caches."""
    forward, own, removed = net.forward, net.__dict__.get("forward"), []

    def plain(*inputs):
        with within(inputs), _logits() as logits:
            out = _tensors(forward(*inputs))
            plain_out = logits(out)
            removed.extend(o for o, p in zip(*(o if isinstance(o, tuple) else (o,) for o in (out, plain_out))) if o is not p)
            return plain_out

    net.__dict__["forward"] = plain
    try:
        yield removed
    finally:
        del net.__dict__["forward"]
        if own is not None:
            net.__dict__["forward"] = own


@contextlib.contextmanager
def _logits():
    """Yields a function that returns what an output is the log_softmax of: the job's loss contains it, as NLLLoss does not. Of four dimensions
    and more, classes are the second one."""
    before, patches = {}, []
    for owner in (torch.nn.functional, torch, torch.Tensor):
        def log_softmax(x, dim=None, *args, plain=owner.log_softmax, **kwargs):
            out = plain(x, dim, *args, **kwargs)
            if isinstance(dim, int) and dim % x.dim() == (1 if x.dim() > 3 else x.dim() - 1):
                before[id(out)] = x, out
            return out
        patches.append(unittest.mock.patch.object(owner, "log_softmax", log_softmax))

    def logits(out):
        return tuple(map(logits, out)) if isinstance(out, tuple) else before.get(id(out), (out,))[0]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield logits


@contextlib.contextmanager
def _plain_functions():
    """Adaptive pools whose windows differ, as means of slices, bags of tokens, as reductions of their embeddings, and norms over
    neighbouring channels, as sums: no exporter writes them in another way that has a gradient, or without loops and volumes."""
    functional, patches = torch.nn.functional, []
    for name, reduce in ((f"adaptive_{kind}_pool{n}d", reduce) for kind, reduce in (("avg", "mean"), ("max", "amax")) for n in (1, 2, 3)):
        def pool(x, output_size, return_indices=False, plain=getattr(functional, name), reduce=reduce, rank=int(name[-2])):
            if return_indices:
                return plain(x, output_size, True)
            sizes = (output_size,) * rank if isinstance(output_size, int) else tuple(output_size)
            dims = [(d - rank, int(x.shape[d - rank]), n) for d, n in enumerate(sizes) if n is not None]
            if all(size % n == 0 for _, size, n in dims):
                return plain(x, output_size)
            for d, size, n in dims:
                ends = [(i * size // n, -(-(i + 1) * size // n)) for i in range(n)]
                x = torch.cat([getattr(x.narrow(d, a, b - a), reduce)(d, keepdim=True) for a, b in ends], d)
            return x
        patches.append(unittest.mock.patch.object(functional, name, pool))
    plain_bag, parameters = functional.embedding_bag, inspect.signature(functional.embedding_bag)

    def bag(*args, **kwargs):
        a = parameters.bind(*args, **kwargs)
        a.apply_defaults()
        a = a.arguments
        special = ("offsets", "max_norm", "scale_grad_by_freq", "per_sample_weights", "include_last_offset", "padding_idx")
        if a["input"].dim() != 2 or a["mode"] not in ("mean", "sum") or any(a[key] is not None and a[key] is not False for key in special):
            return plain_bag(*args, **kwargs)
        return getattr(functional.embedding(a["input"], a["weight"]), a["mode"])(1)
    patches.append(unittest.mock.patch.object(functional, "embedding_bag", bag))

    def response_norm(x, size, alpha=1e-4, beta=0.75, k=1.0):
        padded = functional.pad(x * x, (0, 0) * (x.dim() - 2) + (size // 2, (size - 1) // 2))
        near = sum(padded.narrow(1, i, x.shape[1]) for i in range(1, size)) + padded.narrow(1, 0, x.shape[1])
        return x * (near * (alpha / size) + k).pow(-beta)
    patches.append(unittest.mock.patch.object(functional, "local_response_norm", response_norm))
    plain_norm = functional.batch_norm

    def norm(x, mean, var, weight=None, bias=None, training=False, *args, **kwargs):
        if (mean is None or var is None) and _is_parameter(x):  # weights: over all but their outputs, whatever the batch
            over = [d for d in range(x.dim()) if d != 1]
            centred = x - x.mean(over, keepdim=True)
            eps = kwargs.get("eps", args[1] if len(args) > 1 else 1e-5)
            x = centred * torch.rsqrt((centred * centred).mean(over, keepdim=True) + eps)
            shape = (1, -1) + (1,) * (x.dim() - 2)
            return x * (1 if weight is None else weight.reshape(shape)) + (0 if bias is None else bias.reshape(shape))
        if mean is None or var is None:
            raise ExportError("F.batch_norm without running statistics: mfl evaluates with them: use nn.BatchNorm1d, 2d or 3d, or F.layer_norm, which needs none")
        if training:
            with _kept(mean, var):
                return plain_norm(x, mean, var, weight, bias, training, *args, **kwargs)
        eps = kwargs.get("eps", args[1] if len(args) > 1 else 1e-5)
        shape = (1, -1) + (1,) * (x.dim() - 2)
        scale = torch.rsqrt(var + eps) if weight is None else weight * torch.rsqrt(var + eps)
        return x * scale.reshape(shape) + ((0 if bias is None else bias) - mean * scale).reshape(shape)
    patches.append(unittest.mock.patch.object(functional, "batch_norm", norm))
    for owner in (torch, torch.Tensor):  # the slope of a root is infinite at 0, where PyTorch's deviation has the gradient 0
        var = owner.var
        patches.append(unittest.mock.patch.object(owner, "std", lambda *args, var=var, **kwargs: (var(*args, **kwargs) + 1e-24).sqrt()))
    for owner in (torch, torch.Tensor):
        patches.append(unittest.mock.patch.object(owner, "median", _median_by_sort(owner.median)))
    plain_unfold = torch.Tensor.unfold  # PyTorch 2 writes another order for a dimension counted from the end
    patches.append(unittest.mock.patch.object(torch.Tensor, "unfold", lambda x, dimension, size, step: plain_unfold(
        x, dimension % x.dim(), size, step)))
    patches.append(unittest.mock.patch.object(functional, "fold", _fold_by_transpose(functional.fold)))
    patches.append(unittest.mock.patch.object(functional, "interpolate", _nearest_by_select(functional.interpolate)))
    for owner in (torch, functional):
        patches.append(unittest.mock.patch.object(owner, "cosine_similarity", _cosine_of_alike(owner.cosine_similarity)))
    for name, written in LAYERS.items():
        if hasattr(functional, name):
            patches.append(unittest.mock.patch.object(functional, name, written(getattr(functional, name))))
    for kind in (_nn.LSTM, _nn.GRU, _nn.RNN):
        patches.append(unittest.mock.patch.object(kind, "forward", _from_states(kind.forward)))
    patches.append(unittest.mock.patch.object(torch._VF, "_pack_padded_sequence", _refuse_packed))
    for name in ("mT", "mH", "H"):
        patches.append(unittest.mock.patch.object(torch.Tensor, name, property(
            lambda x, turned=name != "mT": x.transpose(-2, -1).conj() if turned and x.is_complex() else x.transpose(-2, -1))))
    patches.append(unittest.mock.patch.object(torch, "einsum", _einsum_of_letters(torch.einsum)))
    for name, written in WRITTEN.items():
        for owner in (torch, torch.Tensor) + ((functional,) if name == "pairwise_distance" else ()):
            if hasattr(owner, name):
                patches.append(unittest.mock.patch.object(owner, name, written(getattr(owner, name))))
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


@contextlib.contextmanager
def _kept(*tensors):
    """The exporter writes running statistics as they are after its forward pass: here they stay what they are, without a trace in the graph."""
    state = torch._C._get_tracing_state()
    if state is None:
        yield
        return
    torch._C._set_tracing_state(None)
    before = [(t, t.detach().clone()) for t in tensors if t is not None]
    torch._C._set_tracing_state(state)
    yield
    torch._C._set_tracing_state(None)
    with torch.no_grad():
        for t, value in before:
            t.copy_(value)
    torch._C._set_tracing_state(state)


def _from_states(plain):
    """An LSTM, GRU or RNN that starts from a learned or a computed state, position by position: mfl's recurrent layers start from zeros."""
    def forward(net, x, hx=None):
        states = () if hx is None else tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
        if not any(h.requires_grad or bool((h != 0).any()) for h in states) or not isinstance(x, torch.Tensor) or x.dim() != 3:
            return plain(net, x, hx)
        y = x if net.batch_first else x.transpose(0, 1)
        ways, ends = 2 if net.bidirectional else 1, []
        if int(y.shape[1]) * ways * net.num_layers > STEPS_MAX:
            raise ExportError(f"{type(net).__name__} starts from a learned or computed state, so each of its {int(y.shape[1])} positions becomes layers of its "
                              f"own, of which there may be {STEPS_MAX}: call it without an initial state, and add the state's Linear to its input")
        for k in range(net.num_layers):
            both = [_walk(net, y, [h[k * ways + d] for h in states], f"_l{k}" + "_reverse" * d) for d in range(ways)]
            ends += [end for _, end in both]
            y = torch.cat([out for out, _ in both], -1)
            if k + 1 < net.num_layers:
                y = torch.nn.functional.dropout(y, net.dropout, net.training)
        last = tuple(torch.stack(each) for each in zip(*ends))
        return y if net.batch_first else y.transpose(0, 1), last if len(last) > 1 else last[0]
    return forward


def _walk(net, x, state, suffix):
    """One direction of one layer: its outputs in the order of the positions, and its last states."""
    linear, outs = torch.nn.functional.linear, []
    w, u = getattr(net, "weight_ih" + suffix), getattr(net, "weight_hh" + suffix)
    b, v = (getattr(net, "bias_ih" + suffix), getattr(net, "bias_hh" + suffix)) if net.bias else (None, None)
    given, back = linear(x, w, b), suffix.endswith("reverse")
    for t in reversed(range(int(x.shape[1]))) if back else range(int(x.shape[1])):
        state = CELLS[net.mode](given[:, t], linear(state[0], u, v), *state)
        outs.append(state[0])
    return torch.stack(outs[::-1] if back else outs, 1), state


def _lstm(given, own, h, c):
    i, f, g, o = (given + own).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(given, own, h):
    (r, z, n), (own_r, own_z, own_n) = given.chunk(3, -1), own.chunk(3, -1)
    n, z = torch.tanh(n + torch.sigmoid(r + own_r) * own_n), torch.sigmoid(z + own_z)
    return (n + z * (h - n),)


CELLS = {"LSTM": _lstm, "GRU": _gru, "RNN_TANH": lambda given, own, h: (torch.tanh(given + own),),
         "RNN_RELU": lambda given, own, h: (torch.relu(given + own),)}
STEPS_MAX = 128  # of positions, layers and directions


def _fold_by_transpose(plain):
    """Columns are images of channels * kernel: a transposed convolution puts each where it belongs, and adds where they overlap."""
    def fold(input, output_size, kernel_size, dilation=1, padding=0, stride=1):
        out, kernel, spread, pad, step = ((v, v) if isinstance(v, int) else tuple(v)
                                          for v in (output_size, kernel_size, dilation, padding, stride))
        if input.dim() != 3:
            return plain(input, output_size, kernel_size, dilation, padding, stride)
        window = [d * (k - 1) + 1 for d, k in zip(spread, kernel)]
        n = [(o + 2 * p - w) // s + 1 for o, p, w, s in zip(out, pad, window, step)]
        more = [o - ((m - 1) * s - 2 * p + w) for o, m, s, p, w in zip(out, n, step, pad, window)]
        taps, channels = kernel[0] * kernel[1], int(input.shape[1]) // (kernel[0] * kernel[1])
        weight = torch.eye(taps).reshape(taps, 1, *kernel).repeat(channels, 1, 1, 1)
        x = input.reshape(-1, int(input.shape[1]), *n)
        return torch.nn.functional.conv_transpose2d(x, weight, None, step, pad, more, channels, spread)
    return fold


def _repeat_by_expand(plain):
    def repeat(x, repeats, dim=None, **options):
        if not isinstance(repeats, int) or dim is None or options.get("output_size") is not None:
            return plain(x, repeats, dim, **options)
        dim %= x.dim()
        shape = [int(n) for n in x.shape]
        wide = x.unsqueeze(dim + 1).expand(*[-1] * (dim + 1), repeats, *[-1] * (x.dim() - dim - 1))
        return wide.reshape(-1 if dim else shape[0] * repeats, *(n * (repeats if d + 1 == dim else 1) for d, n in enumerate(shape[1:])))
    return repeat


def _repeat_by_tile(x, *dims, **options):
    dims = options.get("dims", dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)
    return x.repeat(*[1] * (x.dim() - len(dims)), *dims)


def _add_by_product(plain):
    """index_add of constant places: a product with ones where a row goes."""
    def index_add(x, dim, index, source, *, alpha=1):
        if index.dtype not in (torch.int32, torch.int64) or index.dim() != 1:
            return plain(x, dim, index, source, alpha=alpha)
        dim %= x.dim()
        places = (torch.arange(int(x.shape[dim]))[:, None] == index[None]).to(source.dtype)
        if dim == x.dim() - 1:
            return x + alpha * (source @ places.t())
        turn = (lambda t: t) if dim == x.dim() - 2 else (lambda t: t.transpose(dim, x.dim() - 2))
        return x + alpha * turn(places @ turn(source))
    return index_add


def _einsum_of_letters(plain):
    """Without '...', and with the diagonal of a value whose letter stands twice."""
    def einsum(equation, *operands):
        if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = tuple(operands[0])
        if not isinstance(equation, str):
            return plain(equation, *operands)
        left, arrow, right = equation.replace(" ", "").partition("->")
        terms, operands = left.split(","), list(operands)
        free = [c for c in "zyxwvutsrqponmlkjihgfedcba" if c not in equation]
        dots = max([0] + [t.dim() - len(term) + 3 for term, t in zip(terms, operands) if "..." in term])
        if "..." in left and arrow and dots <= len(free):
            more = "".join(free[:dots])
            terms = [term.replace("...", more[dots - (t.dim() - len(term) + 3):]) if "..." in term else term for term, t in zip(terms, operands)]
            right = right.replace("...", more)
        for k, term in enumerate(terms):
            for letter in sorted({c for c in term if arrow and term.count(c) == 2}):
                a, b = term.index(letter), term.rindex(letter)
                operands[k] = _diagonal(operands[k], 0, a, b)
                term = terms[k] = (term[:a] + term[a + 1:b] + term[b + 1:]) + letter
        if len(operands) == 1 and terms[0] == right:
            return operands[0]
        return plain(",".join(terms) + arrow + right, *operands)
    return einsum


def _is_parameter(x):
    return any(isinstance(t, torch.nn.Parameter) for t in (x, x._base))


def _add_by_factors(plain):
    def add(x, mat1=None, mat2=None, *, batch1=None, batch2=None, beta=1, alpha=1):
        a, b = (m if m is not None else n for m, n in ((mat1, batch1), (mat2, batch2)))
        return plain(x, a, b) if beta == 1 and alpha == 1 else x * beta + (a @ b) * alpha
    return add


def _diagonal(x, offset=0, dim1=0, dim2=1):
    x = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = int(x.shape[-2]), int(x.shape[-1])
    begin, n = (offset, min(rows, columns - offset)) if offset >= 0 else (-offset * columns, min(rows + offset, columns))
    return x.flatten(-2)[..., begin:begin + (n - 1) * (columns + 1) + 1:columns + 1]


def _differences(plain):
    def diff(x, n=1, dim=-1, prepend=None, append=None):
        x = torch.cat([t for t in (prepend, x, append) if t is not None], dim)
        for _ in range(n):
            x = x.narrow(dim, 1, int(x.shape[dim]) - 1) - x.narrow(dim, 0, int(x.shape[dim]) - 1)
        return x
    return diff


def _kth(ordered, k, dim, keepdim):
    one = ordered.narrow(dim, k, 1)
    return one if keepdim else one.squeeze(dim)


def _quantile_by_sort(plain):
    def quantile(x, q, dim=None, keepdim=False, **options):
        if dim is None or isinstance(q, torch.Tensor) or options.get("interpolation", "linear") != "linear" or options.get("out") is not None:
            return plain(x, q, dim, keepdim, **options)
        ordered, at = torch.sort(x, dim)[0], q * (int(x.shape[dim]) - 1)
        low, high = (_kth(ordered, k, dim, keepdim) for k in (math.floor(at), math.ceil(at)))
        return low + (high - low) * (at - math.floor(at))
    return quantile


def _take_by_gather(plain):
    def take_along_dim(x, indices, dim=None):
        if dim is None or x.dim() != indices.dim():
            return plain(x, indices, dim)
        dim %= x.dim()
        sizes = [-1 if d == dim else max(int(a), int(b)) for d, (a, b) in enumerate(zip(x.shape, indices.shape))]
        return x.expand(*sizes).gather(dim, indices.expand(*sizes))
    return take_along_dim


def _nearest_by_select(plain):
    """nearest-exact, which exporters write as computed places or not at all: rows and columns at constant places."""
    def single(v):
        return struct.unpack("f", struct.pack("f", v))[0]  # PyTorch computes them in float32

    def interpolate(input, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None, **options):
        if mode != "nearest-exact":
            return plain(input, size, scale_factor, mode, align_corners, recompute_scale_factor, **options)
        for d in range(input.dim() - 2):
            have, given = int(input.shape[d + 2]), scale_factor if size is None else size
            given = given[d] if isinstance(given, (tuple, list)) else given
            want = math.floor(have * given) if size is None else int(given)
            step = single(have / want if size is not None or recompute_scale_factor else 1 / given)
            places = [min(int(single((k + 0.5) * step)), have - 1) for k in range(want)]
            input = input.index_select(d + 2, torch.tensor(places))
        return input
    return interpolate


def _cosine_of_alike(plain):
    """PyTorch 2 counts the dimension from the front in each of the two, though only their common shape has it."""
    def cosine_similarity(x1, x2, dim=1, eps=1e-8):
        if x1.dim() != x2.dim():
            n = max(x1.dim(), x2.dim())
            x1, x2 = (x.reshape(*[1] * (n - x.dim()), *x.shape) if x.dim() < n else x for x in (x1, x2))
        return plain(x1, x2, dim, eps)
    return cosine_similarity


def _refuse_packed(*_):
    raise ExportError("packed sequences are not supported: pass all positions, and take the state of the last word, "
                      "y[torch.arange(len(y)), lengths - 1]")


def _each_in_turn(step):
    """Of the values along a dimension, each and the result before it."""
    def function(plain):
        def along(x, dim, **kwargs):
            if kwargs or int(x.shape[dim]) > PLACES_MAX:
                return plain(x, dim, **kwargs)
            parts = [x.narrow(dim, 0, 1)]
            for k in range(1, int(x.shape[dim])):
                parts.append(step(parts[-1], x.narrow(dim, k, 1)))
            return torch.cat(parts, dim)
        return along
    return function


def _product_with_log(plain):
    """x log(y). Where x is 0 and y has no logarithm, that of 1, so that neither the product nor its slope is infinite."""
    def xlogy(x, y):
        if not isinstance(x, torch.Tensor):
            return x * torch.log(y) if x else torch.zeros_like(y)
        if not isinstance(y, torch.Tensor):
            return x * math.log(y)
        return x * torch.log(torch.where((y <= 0) & (x >= 0) & (x <= 0), 1.0, y))
    return xlogy


def _bilinear(x, y, weight, bias=None):
    """A dense layer of the products of each number with each."""
    return torch.nn.functional.linear((x.unsqueeze(-1) * y.unsqueeze(-2)).flatten(-2), weight.flatten(1), bias)


def _dropout_of_channels(plain):
    """One random number for each channel of a sample: a 1 that is dropped or not, times the channel."""
    def dropout(input, p=0.5, training=True, inplace=False):
        if not training or p <= 0 or input.dim() < 3:
            return plain(input, p, training, inplace)
        one = input
        for d in range(2, input.dim()):
            one = one.narrow(d, 0, 1)
        return input * torch.nn.functional.dropout(one * 0 + 1, p)
    return dropout


def _rms_norm(x, normalized_shape, weight=None, eps=None):
    dims = tuple(range(-len(normalized_shape), 0))
    y = x * torch.rsqrt((x * x).mean(dims, keepdim=True) + (torch.finfo(x.dtype).eps if eps is None else eps))
    return y if weight is None else y * weight


def _threshold_by_choice(plain):
    return lambda x, threshold, value, inplace=False: plain(x, threshold, value, inplace) if inplace else torch.where(x > threshold, x, float(value))


def _padded_by_numbers(plain):
    """padding="same", without the numbers in the file. Of an odd sum the larger part is behind: as much before, and one place less."""
    def conv(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        if padding != "same":
            return plain(input, weight, bias, stride, 0 if padding == "valid" else padding, dilation, groups)
        n = weight.dim() - 2
        each = [d * (int(k) - 1) for d, k in zip((dilation,) * n if isinstance(dilation, int) else dilation, weight.shape[2:])]
        out = plain(input, weight, bias, stride, tuple(e - e // 2 for e in each), dilation, groups)
        for d, e in enumerate(each):
            out = out.narrow(d + 2, 1, int(out.shape[d + 2]) - 1) if e % 2 else out
        return out
    return conv


# Functions of torch.nn.functional that PyTorch's first exporter does not write, or not so that mfl can read it.
LAYERS = {
    "bilinear": lambda plain: _bilinear,
    "rms_norm": lambda plain: _rms_norm,
    **dict.fromkeys(("dropout1d", "dropout2d", "dropout3d"), _dropout_of_channels),
    "threshold": _threshold_by_choice,
    "conv3d": _padded_by_numbers,
}


def _distance(a, b, p=2.0, eps=1e-6, keepdim=False):
    """PyTorch's first exporter forgets the absolute values, which matter where p is odd."""
    return torch.linalg.vector_norm(a - b + eps, p, -1, keepdim)


def _distances(plain):
    """PyTorch's first exporter adds 1e-6, and a root, whose slope is infinite between equal rows, where PyTorch's has the gradient 0."""
    def cdist(x1, x2, p=2.0, compute_mode=None):
        difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
        return torch.linalg.vector_norm(difference, p, -1) if p != 2 else ((difference * difference).sum(-1) + 1e-24).sqrt()
    return cdist


# Functions that no exporter writes, or none in a way that mfl reads, by others.
WRITTEN = {
    **{name: lambda plain, name=name: lambda x: _ByName.apply(x, name) for name in ("sinh", "cosh", "asinh", "acosh", "atanh")},
    "xlogy": _product_with_log,
    "erfc": lambda plain: lambda x: 1 - torch.erf(x),
    "exp2": lambda plain: lambda x: torch.exp(x * math.log(2)),
    "hstack": lambda plain: lambda tensors: torch.cat(tuple(tensors), 1) if tensors[0].dim() > 1 else plain(tensors),
    "dstack": lambda plain: lambda tensors: torch.cat(tuple(tensors), 2) if tensors[0].dim() > 2 else plain(tensors),
    "take_along_dim": _take_by_gather,
    "fmax": lambda plain: torch.maximum,
    "fmin": lambda plain: torch.minimum,
    "cummax": lambda plain: lambda x, dim: Ordered(_each_in_turn(torch.maximum)(plain)(x, dim), None),
    "cummin": lambda plain: lambda x, dim: Ordered(_each_in_turn(torch.minimum)(plain)(x, dim), None),
    "kthvalue": lambda plain: lambda x, k, dim=-1, keepdim=False: Ordered(_kth(torch.sort(x, dim)[0], k - 1, dim, keepdim), None),
    "quantile": _quantile_by_sort,
    "lerp": lambda plain: lambda x, end, weight: x + (end - x) * weight,
    "cdist": _distances,
    "pairwise_distance": lambda plain: _distance,
    "copysign": lambda plain: lambda x, y: x.abs() * torch.where(y < 0, -1.0, 1.0) if isinstance(y, torch.Tensor) else plain(x, y),
    "diff": _differences,
    "repeat_interleave": _repeat_by_expand,
    "tile": lambda plain: _repeat_by_tile,
    "index_add": _add_by_product,
    "inner": lambda plain: lambda x, y: x @ y.transpose(-2, -1) if x.dim() > 1 and y.dim() == 2 else plain(x, y),
    "addmm": _add_by_factors,
    "baddbmm": _add_by_factors,
    "hypot": lambda plain: lambda x, y: (x * x + y * y).sqrt(),
    "diagonal": lambda plain: _diagonal,
    "cumprod": _each_in_turn(lambda a, b: a * b),
}


def _median_by_sort(plain):
    """The lower one of two, as PyTorch takes it; no exporter writes a median."""
    def median(x, dim=None, keepdim=False):
        if dim is None:
            return plain(x)
        both = [t.narrow(dim, (x.shape[dim] - 1) // 2, 1) for t in torch.sort(x, dim)]
        return Ordered(*(t if keepdim else t.squeeze(dim) for t in both))
    return median


def _only_torch():
    """PyTorch 2 asks for the package onnx, but uses it only for functions of onnxscript, which are not in this graph."""
    try:
        import onnx  # noqa: F401
        return contextlib.nullcontext()
    except ImportError:
        pass
    for name in ("torch.onnx._internal.torchscript_exporter.onnx_proto_utils", "torch.onnx._internal.onnx_proto_utils"):
        try:
            module = __import__(name, fromlist=["_add_onnxscript_fn"])
        except ImportError:
            continue
        if hasattr(module, "_add_onnxscript_fn"):
            return unittest.mock.patch.object(module, "_add_onnxscript_fn", lambda model_bytes, custom_opsets: model_bytes)
    return contextlib.nullcontext()


# ---- what ONNX can't say ----

def _describe(net, initializers, exporter):
    tensors = {}  # a parameter's id -> all of its names
    for scope, module in net.named_modules(remove_duplicate=False):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                tensors.setdefault(_identity(parameter), (parameter, []))[1].append(f"{scope}.{name}" if scope else name)
    parameters = []
    for parameter, names in tensors.values():
        names = list(dict.fromkeys(names))
        entry = {"name": names[0], "shape": list(_pairs(parameter).shape), "requires_grad": parameter.requires_grad,
                 "initializer": next((n for n in names if n in initializers), None)}
        if len(names) > 1:
            entry["tied"] = names[1:]
        parameters.append(entry)
    buffers = [{"name": f"{scope}.{name}" if scope else name, "persistent": name not in module._non_persistent_buffers_set}
               for scope, module in net.named_modules() for name, buffer in module._buffers.items() if buffer is not None]
    return {
        "format": 1, "module": __version__, "torch": str(torch.__version__), "exporter": exporter,
        "parameters": parameters, "buffers": buffers,
        "padding_idx": {f"{scope}.weight" if scope else "weight": module.padding_idx % module.num_embeddings
                        for scope, module in net.named_modules()
                        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.padding_idx is not None},
        "classes": {scope: type(module).__name__ for scope, module in itertools.islice(net.named_modules(), MODULES) if scope},
    }


def _identity(tensor):
    return tensor.data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()), tensor.numel() or id(tensor)


# ---- the proof ----

def _prove(net, examples, model):
    """The best of a few seeds, and None; or None and why there is none. With some inputs, rounding decides a ReLU or the winner of a
    max pool, and mfl then rightly has another gradient."""
    by_name = {}
    for scope, module in net.named_modules():
        by_name.update({f"{scope}.{n}" if scope else n: p for n, p in module._parameters.items()})
    n_elements = sum(math.prod(p["shape"]) for p in model["parameters"])
    trained = [(i, p["name"]) for i, p in enumerate(model["parameters"]) if p["requires_grad"] and math.prod(p["shape"])]
    if not trained:
        return None, "no parameter requires a gradient"
    inputs = [_input_kind(net, e, len(examples) > 1) for e in examples]
    if _depends(net, inputs):
        raise ExportError("the output of a sample depends on the other samples of its batch, as by flip(0), x @ x.t(), a mean over dimension 0, a recurrent layer without batch_first=True or "
                          "F.batch_norm with training=True: mfl trains samples by themselves, and batch norm only as nn.BatchNorm. Leave it out")
    if _branches(net, inputs):
        raise ExportError("the module takes one way or another by the numbers of its input (a tensor in an `if` or `while`); the file "
                          "would have the way that the example takes. Compute both, and choose with a product or torch.clamp")
    if _asks_parameters(net, inputs):
        raise ExportError("the module takes a number from a parameter (item(), float(), or an `if`); the file would have the number of today, while "
                          "the parameter is trained. Compute with the parameter itself, and choose with torch.where")
    rows = _rows(net, examples, [3, 5] if n_elements < 10_000_000 else [2, 3])
    best, start = None, time.monotonic()
    for seed in range(1, TRIES + 1):
        try:
            runs = _runs_of_tokens(net, examples, inputs, rows, seed, [name for _, name in trained], n_elements <= DOUBLE_MAX)
        except ExportError as e:
            return None, str(e)
        noise = max(run["noise"] for run in runs)
        if best is None or noise < best[0]:
            best = noise, seed, runs
        if noise < GOOD_NOISE or time.monotonic() - start > SLOW_S:
            break
    noise, seed, runs = best
    if not math.isfinite(noise):
        return None, "outputs or gradients are not finite for seeded inputs; give an example with typical values"
    _spread(net, inputs, rows, seed, runs)
    per = max(4, min(SAMPLES, SAMPLES_TOTAL // len(model["parameters"])))
    return {
        "format": 1, "seed": seed, "rows": rows, "inputs": inputs, "precision": runs[0]["precision"],
        "outputs": [_outputs(run, seed) for run in runs],
        "parameters": [_samples(i, p, runs, per, seed) for i, p in enumerate(model["parameters"])],
        "activations": [{"module": name, "norm": [run["norms"][name] for run in runs]} for name in runs[0]["norms"]
                        if all(math.isfinite(run["norms"].get(name, math.inf)) for run in runs)],
    }, None


def _branches(net, inputs):
    """Whether tensors that Python asks for their truth have another one for other inputs, half of them around 0. Shapes are no
    tensors here."""
    plain, seen, start = torch.Tensor.__bool__, None, time.monotonic()
    try:
        copied = _copy(net)
        for seed in range(1, BRANCH_TRIES + 1):
            asked = []
            with unittest.mock.patch.object(torch.Tensor, "__bool__", lambda t: asked.append(plain(t)) or asked[-1]), torch.no_grad():
                copied(*(_make_input({**kind, "mean": kind.get("mean", 0.0) * (seed % 2)}, seed, 2 * i, 2) for i, kind in enumerate(inputs)))
            if seen not in (None, asked):
                return True
            seen = asked
            if not asked or time.monotonic() - start > SLOW_S:
                break
    except Exception:  # noqa: BLE001: the proof says what fails
        pass
    return False


ASKED = ("__bool__", "__float__", "__int__", "item", "tolist")


def _ask(net, inputs, known=()):
    """The outputs, and what Python asked of tensors; as far as they go, it is given the known answers."""
    answers, patches = [], []
    for name in ASKED:
        def asked(t, plain=getattr(torch.Tensor, name)):
            answers.append(plain(t))
            return known[len(answers) - 1] if len(answers) <= len(known) else answers[-1]
        patches.append(unittest.mock.patch.object(torch.Tensor, name, asked))
    with contextlib.ExitStack() as stack, torch.no_grad():
        for patch in patches:
            stack.enter_context(patch)
        out = _tensors(net(*(_make_input(kind, 1, 2 * i, 2) for i, kind in enumerate(inputs))))
    return (out[0] if isinstance(out, tuple) else out).double(), answers


def _asks_parameters(net, inputs):
    """Whether other parameters have other outputs than the file would give: one with the numbers that these parameters had."""
    try:
        changed = _copy(net)
        _, before = _ask(changed, inputs)
        if not before:
            return False
        for _ in range(BRANCH_TRIES):
            with torch.no_grad():
                for p in map(_pairs, changed.parameters()):
                    p.mul_(torch.empty_like(p).uniform_(-1.5, 1.5)).add_(torch.randn_like(p), alpha=0.1)
            right, after = _ask(changed, inputs)
            if before != after and not torch.allclose(_ask(changed, inputs, before)[0], right, 1e-4, 1e-6, equal_nan=True):
                return True
        return False
    except Exception:  # noqa: BLE001: the proof says what fails
        return False


def _depends(net, inputs):
    """Whether a sample's output has to do with the other samples of the batch, in evaluation or in training, as where samples are mixed: a
    file of one sample can't say how."""
    plain = torch.nn.functional.batch_norm

    def by_running(x, mean, var, weight=None, bias=None, training=False, *args, **kwargs):
        return plain(x, mean, var, weight, bias, training and mean is None, *args, **kwargs)
    try:
        training = _copy_as_it_is(net)
        for module in training.modules():
            module.training = module.training and not isinstance(module, BATCH_NORMS)
        with _without_dropout(), unittest.mock.patch.object(torch.nn.functional, "batch_norm", by_running):
            mixes = _mixes(training, inputs)
    except Exception:  # noqa: BLE001: the proof says what fails
        mixes = False
    try:
        return mixes or _mixes(_copy(net).eval(), inputs)
    except Exception:  # noqa: BLE001
        return False


def _mixes(copied, inputs):
    """What draws random numbers differs from itself, and is not judged."""
    own = [_make_input(kind, 1, 2 * i, 3) for i, kind in enumerate(inputs)]
    others = [_make_input(kind, 2, 2 * i, 2) for i, kind in enumerate(inputs)]
    behind = [torch.cat([a[:1], b]) for a, b in zip(own, others)]
    before = [torch.cat([b, a[:1]]) for a, b in zip(own, others)]  # cumsum(0) and the like read earlier samples alone
    with torch.no_grad():
        outs = [_tensors(copied(*x)) for x in (own, own, behind, before)]
    first, again, *mixed = (out[0] if isinstance(out, tuple) else out for out in outs)
    one = first[0].double()
    if _difference(one, again[0].double()) != 0:
        return False
    places = [mixed[0][0], *(mixed[1][-1:] if len(mixed[1]) == 3 else ())]
    return any(_difference(one, place.double()) > 1e-3 * float(one.abs().max()) for place in places)


def _rows(net, examples, least):
    """More rows where batch norm would divide by the deviation of a handful of numbers: that multiplies what rounding changes."""
    sizes = []

    def hook(module, args, out):
        sizes.append(out.numel() // (len(out) * module.num_features))
    handles = [m.register_forward_hook(hook) for m in net.modules() if isinstance(m, BATCH_NORMS)]
    try:
        with torch.no_grad():
            net(*(torch.cat([e[:1], e[:1]]) for e in examples))
    except Exception:  # noqa: BLE001
        return least
    finally:
        for handle in handles:
            handle.remove()
    wanted = -(-NUMBERS_NORMED // min(sizes)) if sizes and min(sizes) else 0
    return [min(max(n, wanted), ROWS_MAX - 1 + i) for i, n in enumerate(least)]


def _input_kind(net, example, several):
    """How inputs like the example are made from a seed. Of several inputs it is unknown which one an embedding reads, so that the
    example's largest number counts."""
    shape = list(example.shape[1:])
    if example.is_floating_point():
        value = example.detach().double()
        deviation = float(value.std(unbiased=False)) if value.numel() > 1 else 0.0
        mean = float(value.mean()) if deviation > 0 else 0.0
        return {"kind": "float", "shape": shape, "mean": mean, "deviation": deviation if deviation > 0 else 1.0}
    if example.dtype == torch.bool:
        return {"kind": "tokens", "shape": shape, "below": 2}
    below = max(int(example.max()) + 1, 2 if several else _vocabulary(net))
    return {"kind": "tokens", "shape": shape, "below": below}


def _vocabulary(net):
    """Of the first embedding: the one that reads the tokens."""
    sizes = [m.num_embeddings for m in net.modules() if isinstance(m, (torch.nn.Embedding, torch.nn.EmbeddingBag))]
    return sizes[0] if sizes else 0


def _hash(seed, stream, n):
    """Numbers below 2^24 from (seed, stream, position): mfl has the same function (cli/proof/seeded.h)."""
    h = (torch.arange(n, dtype=torch.int64) * 2654435761 + seed * 1000003 + stream * 7919) & 0xFFFFFFFF
    h = h ^ (h >> 16)
    h = (h * 0x7FEB352D) & 0xFFFFFFFF
    h = h ^ (h >> 15)
    h = (h * 0x046CA68B) & 0xFFFFFFFF
    h = h ^ (h >> 16)
    return h >> 8


def _make_input(kind, seed, stream, rows):
    n = rows * math.prod(kind["shape"])
    h = _hash(seed, stream, n)
    shape = [rows] + kind["shape"]
    if kind["kind"] == "tokens":
        return ((h * kind["below"]) >> 24).reshape(shape)
    unit = (h.double() / 8388608.0 - 1.0) * math.sqrt(3.0)
    return (kind["mean"] + kind["deviation"] * unit).float().reshape(shape)


def _tensors(out):
    """The tensors among a module's outputs, or the first within them."""
    if isinstance(out, torch.Tensor):
        return out
    parts = list(out.values()) if isinstance(out, dict) else list(out) if isinstance(out, (tuple, list)) else []
    found = [part for part in parts if isinstance(part, torch.Tensor)]
    if found:
        return found[0] if len(found) == 1 else tuple(found)
    for part in parts:
        inner = _tensors(part)
        if inner is not None:
            return inner
    return None


def _runs_of_tokens(net, examples, inputs, rows, seed, names, in_double):
    """Where a column's offset is added to its tokens, numbers up to the embedding's size are too many: the example shows how many
    there are. Columns with embeddings of their own have the numbers that the smallest one's example shows."""
    tokens = [(kind, e.reshape(len(e), -1)) for e, kind in zip(examples, inputs) if kind["kind"] == "tokens"]
    for below in (None, lambda e: int(e.max()) + 1, lambda e: int(e.amax(0).min()) + 1):
        before = [kind["below"] for kind, _ in tokens]
        for kind, e in tokens if below else ():
            kind["below"] = max(below(e), 2)
        if below and before == [kind["below"] for kind, _ in tokens]:
            continue
        try:
            return _runs(net, inputs, rows, seed, names, in_double)
        except ExportError as e:
            problem = e
    raise problem


def _runs(net, inputs, rows, seed, names, in_double):
    """For each batch: outputs, gradients, norms of modules' outputs, and how much rounding changes them."""
    base, second = _copy(net), _copy(net)
    if in_double:
        try:
            base.double()
            for p in base.parameters():
                if p.is_complex():
                    p.data = p.data.to(torch.complex128)
        except Exception:  # noqa: BLE001: modules with their own idea of precision
            in_double = False
            base = _copy(net)
    if not in_double:
        _perturb(second, ROUNDING_BITS)
    results = []
    for b, n in enumerate(rows):
        x = [_make_input(kind, seed, 2 * i + 100 * b, n) for i, kind in enumerate(inputs)]
        try:
            run = _run(base, x, seed, b, names, in_double)
        except ExportError:
            raise
        except Exception as e:  # noqa: BLE001
            if not in_double:
                raise ExportError(f"the module fails on seeded inputs of shape {[list(t.shape) for t in x]}: {e}") from e
            return _runs(net, inputs, rows, seed, names, False)
        other = _run(second, x, seed, b, names, False)
        run["precision"] = "double" if in_double else "float"
        run["out_noise"] = _difference(run["out"], other["out"])
        if run["out_noise"] > 0.05 * float(run["out"].abs().max()):
            raise ExportError("its outputs are random even without dropout, or rounding alone changes them by 5%")
        run["grad_noise"] = {k: _difference(g, other["grads"][k]) for k, g in run["grads"].items()}
        run["spread"] = _relative(run["grads"], other["grads"])
        largest = {k: float(g.abs().max()) for k, g in run["grads"].items()}
        floor = 1e-3 * max(largest.values())
        run["noise"] = max([run["out_noise"] / max(float(run["out"].abs().max()), 1e-30)] +
                           [run["grad_noise"][k] / max(largest[k], floor, 1e-30) for k in largest])
        if not all(map(math.isfinite, itertools.chain([run["noise"], run["out_noise"]], largest.values()))):
            run["noise"] = math.inf
        results.append(run)
    return results


def _spread(net, inputs, rows, seed, runs):
    """How much of each gradient, by L2 norms, changes by rounding alone, or with parameters that change by a little more than that. Flips of ReLUs
    and of winners of max pools are rare events: one run with rounding alone may show none where the next one has some."""
    changed = _copy(net)
    _perturb(changed, SPREAD_BITS)
    for b, (n, run) in enumerate(zip(rows, runs)):
        x = [_make_input(kind, seed, 2 * i + 100 * b, n) for i, kind in enumerate(inputs)]
        other = _relative(run["grads"], _run(changed, x, seed, b, list(run["grads"]), False)["grads"])
        run["spread"] = {k: max(v, other[k]) for k, v in run["spread"].items()}


def _relative(grads, other):
    """By L2 norms; of a gradient that is small beside the others, by what is small beside them."""
    sizes = {k: _norm(g) for k, g in grads.items()}
    floor = 1e-3 * max(size / math.sqrt(grads[k].numel()) for k, size in sizes.items())
    found = {k: _norm(other[k] - g) / max(sizes[k], floor * math.sqrt(g.numel()), 1e-30) for k, g in grads.items()}
    return {k: v if math.isfinite(v) else 1.0 for k, v in found.items()}


def _difference(a, b):
    return float((a - b).abs_().max())


def _norm(tensor):
    """In double, without a copy in double: gradients of large models are gigabytes."""
    return float(torch.linalg.vector_norm(tensor.reshape(-1), dtype=torch.float64))


def _copy(net):
    """In the proof's mode, on the CPU: dropout and all else off, batch norm as it was."""
    # What a forward pass computes anew, as nn.utils.weight_norm does, is no leaf, and deepcopy refuses it.
    computed = {id(v): v.detach().clone() for m in net.modules() if any(type(hook).__name__ == "WeightNorm" for hook in m._forward_pre_hooks.values())
                for v in vars(m).values() if isinstance(v, torch.Tensor) and not v.is_leaf}
    try:
        made = copy.deepcopy(net, computed)
    except Exception as e:  # noqa: BLE001
        raise ExportError(f"the module can't be copied: {e}") from e
    norms = [m for m in made.modules() if isinstance(m, BATCH_NORMS) and m.training]
    made.cpu().float().eval()
    for norm in norms:
        norm.training = True
    return made


def _copy_as_it_is(net):
    made = _copy(net)
    for own, module in zip(net.modules(), made.modules()):
        module.training = own.training
    return made


def _perturb(net, bits):
    """By 2**-bits of each parameter, at random."""
    with torch.no_grad():
        for p in net.parameters():
            p = _pairs(p)
            p.mul_(torch.empty_like(p).bernoulli_(0.5).mul_(2.0 ** (1 - bits)).add_(1 - 2.0 ** -bits))


class _OnlyCodes(torch.overrides.TorchFunctionMode):
    """Within a run: columns of a float input that hold codes, of which seeded numbers are none."""

    def __init__(self, inputs):
        super().__init__()
        self.inputs = inputs

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in ("long", "int", "to", "type") and isinstance(out, torch.Tensor) and out.dtype in (torch.int64, torch.int32):
            x = args[0]
            if x.is_floating_point() and any(x is t or x._base is t for t in self.inputs) and bool((x != x.trunc()).any()):
                raise ExportError("it takes numbers of a float input as codes, and seeded numbers are none: give the codes an int64 input of their own")
        return out


def _run(net, x, seed, batch, names, in_double):
    with _as_it_was(net, False):  # what a forward pass keeps has the graph of its gradients
        return _run_once(net, x, seed, batch, names, in_double)


@contextlib.contextmanager
def _without_dropout():
    with contextlib.ExitStack() as stack:
        for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"):
            if hasattr(torch.nn.functional, name):
                stack.enter_context(unittest.mock.patch.object(torch.nn.functional, name, lambda input, *_, **__: input))
        yield


def _run_once(net, x, seed, batch, names, in_double):
    norms, handles, calls = {}, [], {}

    def hook(name):
        def keep(module, args, out):
            calls[name] = calls.get(name, 0) + 1
            if isinstance(out, torch.Tensor) and out.is_floating_point():
                norms[name] = float(out.detach().double().norm())
        return keep

    for name, module in itertools.islice(net.named_modules(), MODULES):
        if name and not any(True for _ in module.children()):
            handles.append(module.register_forward_hook(hook(name)))
    torch.manual_seed(1)
    try:
        given = [t.double() if in_double and t.is_floating_point() else t for t in x]
        with _without_dropout(), _logits() as logits, _OnlyCodes(given):
            out = logits(_tensors(net(*given)))
        out = out[0] if isinstance(out, tuple) else out
    finally:
        for handle in handles:
            handle.remove()
    if out is None or not out.is_floating_point() or out.dim() < 2 or len(out) != len(x[0]):
        raise ExportError("its first output is not a tensor of floats with a row for each sample")
    weights = (_hash(seed, 50 + 100 * batch, out.numel()).double() / 8388608.0 - 1.0).to(out.dtype).reshape(out.shape)
    by_name = {}
    for scope, module in net.named_modules():
        by_name.update({f"{scope}.{n}" if scope else n: p for n, p in module._parameters.items()})
    params = [by_name[name] for name in names]
    grads = torch.autograd.grad((out * weights).sum(), params, allow_unused=True)
    return {"out": out.detach(), "norms": {k: v for k, v in norms.items() if calls[k] == 1},
            "grads": {n: _pairs(torch.zeros_like(p).detach() if g is None else g.detach()) for n, p, g in zip(names, params, grads)}}


def _pick(tensors, n, seed, stream):
    """Elements of tensors of one shape: the largest of each, and seeded ones."""
    count = tensors[0].numel()
    if count <= n:
        return list(range(count))
    top = max(1, n // 8)
    chosen = set()
    for t in tensors:
        chosen.update(t.reshape(-1).abs().topk(top).indices.tolist())
    for h in _hash(seed, stream, 4 * n).tolist():
        if len(chosen) >= n:
            break
        chosen.add(h * count >> 24)
    return sorted(chosen)


def _outputs(run, seed):
    index = _pick([run["out"]], OUTPUTS, seed, 11)
    return {"shape": list(run["out"].shape), "index": _pack(index, torch.int32), "value": _floats(run["out"], index),
            "largest": float(run["out"].abs().max()), "noise": run["out_noise"]}


def _samples(i, parameter, runs, per, seed):
    """Also for frozen parameters, whose places in mfl's model are looked up by these elements."""
    name = parameter["name"]
    grads = [run["grads"][name] for run in runs] if name in runs[0]["grads"] else []
    index = _pick(grads or [torch.zeros(math.prod(parameter["shape"]))], per, seed, 13 + i)
    entry = {"parameter": i, "index": _pack(index, torch.int32)}
    if grads:
        entry.update(value=[_floats(g, index) for g in grads], largest=[float(g.abs().max()) for g in grads],
                     noise=[run["grad_noise"][name] for run in runs], spread=[run["spread"][name] for run in runs])
    return entry


def _floats(tensor, index):
    return _pack(tensor.reshape(-1)[torch.tensor(index, dtype=torch.int64)].tolist(), torch.float32)


def _pack(numbers, dtype):
    """Little-endian, base64."""
    tensor = torch.tensor(numbers, dtype=dtype)
    return base64.b64encode(bytes(tensor.contiguous().view(torch.uint8).tolist()) if len(numbers) else b"").decode()


# ---- ONNX's encoding: protocol buffers by hand ----

def _varint(v):
    out = bytearray()
    while v > 127:
        out.append(v & 127 | 128)
        v >>= 7
    out.append(v)
    return bytes(out)


def _field(number, data):
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _metadata(key, value):
    """One more entry of ModelProto.metadata_props (field 14): appended fields belong to the message."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return _field(14, _field(1, key.encode()) + _field(2, text.encode()))


def _fields(data, start, end):
    """(field, start, end) of a message's fields of bytes."""
    def varint(at):
        v = shift = 0
        while True:
            byte = data[at]
            v |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return v, at
    while start < end:
        tag, start = varint(start)
        kind = tag & 7
        if kind == 2:
            n, start = varint(start)
            yield tag >> 3, start, start + n
            start += n
        elif kind == 0:
            _, start = varint(start)
        else:
            start += 8 if kind == 1 else 4


def _initializers(path):
    with open(path, "rb") as f:
        data = f.read()
    return {data[a:b].decode() for field, s, e in _fields(data, 0, len(data)) if field == 7
            for field2, s2, e2 in _fields(data, s, e) if field2 == 5
            for field3, a, b in _fields(data, s2, e2) if field3 == 8}
