# SPDX-License-Identifier: Apache-2.0
"""Random PyTorch modules, made from a seed, as Python source: the operations of bench/random_modules.py.

An operation is a function of a Drawing and a value's name and returns an expression of Python; what it needs in __init__ it adds to the
drawing. Nothing is known of shapes in advance: each expression is computed at once, on two samples, and left out if PyTorch
refuses it, if its numbers are too large, or if its first dimension is no longer the samples'.
"""
import math
import random
import re

import torch
from torch import nn
from torch.nn import functional as F

LARGEST, SIZE_MAX = 40.0, 700  # of a value; elements of a sample
OPERATIONS = []  # (weight, ranks, dtype, function)


def op(*ranks, weight=1.0, of="float"):
    """Registers an operation on values of these ranks (with the batch); of none: of any."""
    def register(function):
        OPERATIONS.append((weight, ranks, of, function))
        return function
    return register


class Drawing:
    """A module under construction: its parts, its statements, and the values of two samples."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.seed, self.parts, self.statements, self.frozen, self.evals = seed, {}, [], [], []
        self.inputs = {}  # name: (shape, tokens)
        self.namespace = {"torch": torch, "nn": nn, "F": F, "math": math, "self": nn.Module()}
        self.n = 0
        self.pending, self.modules = {}, {}

    # -- random choices --

    def pick(self, *of):
        return self.rng.choice(of)

    def chance(self, p):
        return self.rng.random() < p

    def int(self, low, high):
        return self.rng.randint(low, high)

    def number(self):
        return self.pick(0.5, 2, -1, 0.3, 1.7, -0.6, 3, 1, 0.1, 1.0, 2.0)

    def options(self, **of):
        """Keyword arguments: each with its chance of one half, one of its choices."""
        chosen = {k: self.pick(*v) for k, v in of.items() if self.chance(0.5)}
        return "".join(f", {k}={v!r}" for k, v in chosen.items())

    # -- parts --

    def name(self, letter):
        self.n += 1
        return f"{letter}{self.n}"

    def part(self, letter, code, kind="attr"):
        """An attribute of the module, made in __init__; the expression for it."""
        name = self.name(letter)
        if kind == "buffer":
            text = f'self.register_buffer("{name}", {code})'
        else:
            text = f"self.{name} = {code}"
        exec(text, self.namespace)  # noqa: S102
        self.pending[name] = text
        return f"self.{name}"

    def module(self, code):
        """A module, or one that has been made by the same code."""
        if code in self.modules and self.chance(0.4):
            return self.modules[code]
        made = self.part("m", code)
        if "(" in code and self.chance(0.08):
            self.evals.append(made)
        if self.chance(0.06):
            self.frozen.append(made)
        self.modules.setdefault(code, made)
        return made

    def parameter(self, *shape):
        """A parameter or, rarely, a buffer or one that is there already."""
        if self.chance(0.2):
            old = [name for name in self.parts if name[0] == "p" and tuple(getattr(self.namespace["self"], name).shape) == shape]
            if old:
                return "self." + self.pick(*old)
        values = f"torch.randn({', '.join(map(str, shape)) or '()'})"
        scale = self.pick(" * 0.3", " * 0.5", "", " * 0.1 + 1")
        if self.chance(0.08):
            return self.part("b", values + scale, "buffer")
        if self.chance(0.15):
            values, scale = self.pick("torch.zeros", "torch.ones") + f"({', '.join(map(str, shape)) or '()'})", ""
        made = self.part("p", f"nn.Parameter({values}{scale})")
        if self.chance(0.06):
            self.frozen.append(made)
        return made

    def expression(self, *shape, depth=0):
        """Parameters, computed with."""
        if depth > 2 or self.chance(0.35 if depth else 0.3):
            return self.parameter(*shape)
        more = lambda *s: self.expression(*s, depth=depth + 1)
        makers = [
            lambda: f"{more(*shape)}.exp()", lambda: f"(1 + {more(*shape)})", lambda: f"({more(*shape)} * {self.number()})",
            lambda: f"torch.sigmoid({more(*shape)})", lambda: f"({more(*shape)} + {more(*shape)})", lambda: f"({more(*shape)} * {more(*shape)})",
            lambda: f"torch.tanh({more(*shape)})", lambda: f"F.softplus({more(*shape)})", lambda: f"-{more(*shape)}", lambda: f"{more(*shape)}.abs()",
            lambda: f"({more(*shape)} - {more(*shape)})", lambda: f"{more(*shape)}.clamp({self.pick(-0.5, -1, 0)}, {self.pick(0.4, 1)})",
            lambda: f"({more(*shape)} ** 2)", lambda: f"{more(*shape)} / {self.pick(2, 3.0, 0.7)}", lambda: f"({more(*shape)}).square().add(1e-3).sqrt()",
            lambda: f"({more(*shape)} > {self.number()}).float() * {more(*shape)}", lambda: f"({more(*shape)} * {more()})",
            lambda: f"torch.where({more(*shape)} > 0, {more(*shape)}, {more(*shape)})",
        ]
        if shape:
            n, d = len(shape), self.int(0, len(shape) - 1)
            larger = [s + (2 if k == d else 0) for k, s in enumerate(shape)]
            index = lambda a: "[" + ", ".join([":"] * d + [a]) + "]"
            makers += [
                lambda: f"torch.softmax({more(*shape)}, {self.pick(d, d - n)})", lambda: f"{more(*larger)}{index(f'1:{shape[d] + 1}')}",
                lambda: f"{more(*larger)}{index(f'-{shape[d]}:')}", lambda: f"{more(*shape)}.flip({d})", lambda: f"{more(*shape)}.roll({self.pick(1, -1)}, {d})",
                lambda: f"({more(*shape)} / {more(*shape)}.norm())", lambda: f"F.normalize({more(*shape)}, dim={d})",
                lambda: f"({more(*shape)} - {more(*shape)}.mean({d}, keepdim=True))", lambda: f"{more(*shape, 3)}.{self.pick('sum', 'mean', 'amax')}(-1)",
                lambda: f"{more(*[1 if k == d else s for k, s in enumerate(shape)])}.expand({', '.join(map(str, shape))})",
                lambda: f"{more(math.prod(shape))}.view({', '.join(map(str, shape))})", lambda: f"({more(*shape)} * {self.mask(*shape)})",
                lambda: f"torch.cumsum({more(*shape)}, {d})", lambda: f"{more(shape[d], *shape)}[{self.int(0, shape[d] - 1)}]",
                lambda: f"{more(*shape)}.masked_fill({self.mask(*shape)} > 0, {self.number()})",
            ]
            if shape[d] > 1:
                first = self.int(1, shape[d] - 1)
                makers.append(lambda: "torch.cat([" + ", ".join(more(*[size if k == d else s for k, s in enumerate(shape)])
                                                                for size in (first, shape[d] - first)) + f"], {d})")
            if n == 2:
                makers += [lambda: f"({more(shape[0], 2)} @ {more(2, shape[1])})", lambda: f"{more(shape[1], shape[0])}.t()", lambda: f"{more(*shape)}.tril()",
                           lambda: f"torch.outer({more(shape[0])}, {more(shape[1])})", lambda: f"{more(shape[0], 1)} * {more(1, shape[1])}",
                           lambda: f"F.linear({more(*shape)}, {more(shape[1], shape[1])})"]
            if n == 1:
                makers += [lambda: f"({more(shape[0], 3)} @ {more(3)})", lambda: f"{more(3, shape[0])}.mean(0)",
                           lambda: f"F.layer_norm({more(*shape)}, ({shape[0]},))", lambda: f"{more()}.repeat({shape[0]})"]
        return self.pick(*makers)()

    def mask(self, *shape):
        return self.part("k", f"(torch.rand({', '.join(map(str, shape))}) > {self.pick(0.5, 0.3)}).float()", "buffer")

    def weight(self, module):
        """The weights of a module that is there, or None."""
        return f"{module}.weight"

    # -- values --

    def shape(self, v):
        return tuple(self.namespace[v].shape)

    def other(self, v, test):
        """Another value whose shape passes, or v."""
        found = [u for u in self.values() if u != v and test(self.shape(u))]
        return self.pick(*found) if found else v

    def same(self, v):
        return self.other(v, lambda s: s == self.shape(v))

    def values(self, dtype="float"):
        kinds = {"float": lambda t: t.is_floating_point(), "tokens": lambda t: t.dtype == torch.int64}
        names = list(self.inputs) + [s[0] for s in self.statements]
        return [n for n in names if isinstance(self.namespace[n], torch.Tensor) and kinds[dtype](self.namespace[n])]

    def add_input(self, shape, tokens=0):
        name = f"x{len(self.inputs)}"
        self.inputs[name] = (shape, tokens)
        self.namespace[name] = example(2, shape, tokens, 7 + len(self.inputs))
        return name

    def state(self):
        return (len(self.frozen), len(self.evals), dict(self.modules))

    def back(self, state):
        self.pending = {}
        del self.frozen[state[0]:], self.evals[state[1]:]
        self.modules = state[2]

    def step(self):
        """One more statement. Whether there is one."""
        weighted = [(w, f, names) for w, ranks, of, f in OPERATIONS
                    for names in [[v for v in self.values(of) if not ranks or self.namespace[v].dim() in ranks]] if names]
        _, function, names = self.rng.choices(weighted, [w for w, _, _ in weighted])[0]
        recent = names[-3:] if self.chance(0.7) else names
        v, state, out = self.pick(*recent), self.state(), self.name("v")
        torch.manual_seed(self.seed * 1000 + self.n)
        try:
            expression = function(self, v)
            lines = [(out, expression)] if isinstance(expression, str) else [(out if n == len(expression) - 1 else f"{out}_{n}", e.replace("$", out + "_"))
                                                                             for n, e in enumerate(expression)]
            for name, text in lines:
                self.namespace[name] = eval(text, self.namespace)  # noqa: S307
            value = self.namespace[out]
            good = self.is_good(value)
        except ZeroDivisionError:
            good = False
        except Exception:  # noqa: BLE001: whatever PyTorch refuses
            good = False
        if good:
            self.parts.update(self.pending)
            self.statements += lines
            self.pending = {}
            return True
        self.back(state)
        return False

    @staticmethod
    def is_good(value):
        if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.dim() > 6 or len(value) != 2 or not value.is_floating_point():
            return False
        return 0 < value.numel() <= 2 * SIZE_MAX and bool(value.isfinite().all()) and float(value.detach().abs().max()) < LARGEST


def example(n, shape, tokens=0, seed=None):
    g = torch.Generator().manual_seed(seed) if seed is not None else None
    if tokens:
        return torch.randint(0, tokens, (n, *shape), generator=g)
    return torch.randn(n, *shape, generator=g)


def dims(g, v, least=1):
    """One or more dimensions of a sample, in either way of counting."""
    n = len(g.shape(v))
    chosen = sorted(g.rng.sample(range(1, n), g.int(1, n - 1)) if g.chance(0.4) else [g.int(1, n - 1)])
    chosen = [d - n if g.chance(0.5) else d for d in chosen]
    return chosen[0] if len(chosen) == 1 and g.chance(0.8) else tuple(chosen)


def dim(g, v):
    n = len(g.shape(v))
    d = g.int(1, n - 1)
    return d - n if g.chance(0.5) else d


# ---- layers of images, series and volumes ----

def kernel(g, n):
    """A size for n dimensions: a number or a tuple."""
    return g.int(1, 3) if g.chance(0.7) else tuple(g.int(1, 3) for _ in range(n))


def window(g, n, low, high):
    return g.int(low, high) if g.chance(0.7) else tuple(g.int(low, high) for _ in range(n))


@op(3, 4, 5, weight=5)
def conv(g, v):
    n = len(g.shape(v)) - 2
    c = g.shape(v)[1]
    groups = g.pick(*[k for k in range(1, c + 1) if c % k == 0]) if g.chance(0.4) else 1
    outs = groups * g.int(1, max(1, 6 // groups))
    more = g.options(bias=(False,), groups=(groups,)) if groups == 1 else g.options(bias=(False,)) + f", groups={groups}"
    if g.chance(0.4):
        more += f", padding={g.pick(0, 1, 2)}" + (f", padding_mode={g.pick('circular', 'reflect', 'replicate', 'zeros')!r}" if g.chance(0.4) else "")
    elif g.chance(0.3):
        more += ", padding='same'"
    if "same" not in more and g.chance(0.5):
        more += f", stride={window(g, n, 1, 3)}"
    if g.chance(0.25):
        more += f", dilation={window(g, n, 1, 2)}"
    return f"{g.module(f'nn.Conv{n}d({c}, {outs}, {kernel(g, n)}{more})')}({v})"


@op(3, 4, 5, weight=2)
def conv_transpose(g, v):
    n = len(g.shape(v)) - 2
    c = g.shape(v)[1]
    groups = g.pick(*[k for k in range(1, c + 1) if c % k == 0]) if g.chance(0.3) else 1
    more = g.options(bias=(False,), padding=(0, 1), output_padding=(0, 1), dilation=(1, 2), stride=(1, 2, 3)) + (f", groups={groups}" if groups > 1 else "")
    return f"{g.module(f'nn.ConvTranspose{n}d({c}, {groups * g.int(1, 3)}, {kernel(g, n)}{more})')}({v})"


@op(3, 4, weight=2)
def functional_conv(g, v):
    n = len(g.shape(v)) - 2
    c = g.shape(v)[1]
    groups = g.pick(1, c)
    k = [g.int(1, 3) for _ in range(n)]
    weight = g.expression(groups * g.int(1, 3) if groups == 1 else c, c // groups, *k)
    bias = g.pick("None", "", "bias")
    bias = f", {g.expression(int(eval(weight, g.namespace).shape[0]))}" if bias == "bias" else ", None" if bias else ""
    return f"F.conv{n}d({v}, {weight}{bias}{g.options(stride=(1, 2), padding=(0, 1), dilation=(1, 2)) if bias else ''}" + (f", groups={groups}" if groups > 1 else "") + ")"


@op(3, 4, 5, weight=3)
def pool(g, v):
    n = len(g.shape(v)) - 2
    kind = g.pick("Max", "Avg")
    options = dict(stride=(1, 2, 3), ceil_mode=(True, False), padding=(0, 1))
    options.update({"dilation": (1, 2)} if kind == "Max" else {"count_include_pad": (False, True)})
    return f"{g.module(f'nn.{kind}Pool{n}d({kernel(g, n)}{g.options(**options)})')}({v})"


@op(3, 4, 5, weight=1.5)
def adaptive_pool(g, v):
    n = len(g.shape(v)) - 2
    size = g.int(1, 3) if g.chance(0.6) else tuple(g.pick(1, 2, 3, None) for _ in range(n))
    size = size if not isinstance(size, tuple) or n > 1 else 2
    return f"nn.functional.adaptive_{g.pick('avg', 'max')}_pool{n}d({v}, {size})" if g.chance(0.5) else \
        f"{g.module(f'nn.Adaptive{g.pick(chr(65) + chr(118) + chr(103), chr(77) + chr(97) + chr(120))}Pool{n}d({size})')}({v})"


@op(3, 4, weight=0.5)
def power_pool(g, v):
    n = len(g.shape(v)) - 2
    return f"nn.LPPool{n}d({g.pick(1, 2, 2.0)}, {kernel(g, n) if n > 1 else 2}{g.options(stride=(1, 2), ceil_mode=(True,))})({v})"


@op(2, 3, 4, 5, weight=3)
def batch_norm(g, v):
    n = max(1, len(g.shape(v)) - 2)
    return f"{g.module(f'nn.BatchNorm{n}d({g.shape(v)[1]}{g.options(eps=(1e-3, 1e-5), momentum=(0.3, 0.01), affine=(False, True))})')}({v})"


@op(3, 4, 5, weight=1)
def instance_norm(g, v):
    n = len(g.shape(v)) - 2
    return f"{g.module(f'nn.InstanceNorm{n}d({g.shape(v)[1]}{g.options(eps=(1e-3,), affine=(True,))})')}({v})"


@op(2, 3, 4, 5, weight=1.5)
def group_norm(g, v):
    c = g.shape(v)[1]
    return f"{g.module(f'nn.GroupNorm({g.pick(*[k for k in range(1, c + 1) if c % k == 0])}, {c}{g.options(eps=(1e-3,), affine=(False, True))})')}({v})"


@op(2, 3, 4, 5, weight=3)
def layer_norm(g, v):
    shape = g.shape(v)[-g.int(1, len(g.shape(v)) - 1):] if g.chance(0.3) else g.shape(v)[-1:]
    shape = shape[0] if len(shape) == 1 and g.chance(0.5) else shape
    if g.chance(0.2):
        return f"F.layer_norm({v}, {shape if isinstance(shape, tuple) else (shape,)}, {g.pick('None', g.expression(*(shape if isinstance(shape, tuple) else (shape,))))})"
    kind, more = ("Layer", g.options(eps=(1e-3,), elementwise_affine=(False, True), bias=(False,))) if g.chance(0.7) else \
        ("RMS", g.options(eps=(1e-3,), elementwise_affine=(False, True)))
    return f"{g.module(f'nn.{kind}Norm({shape}{more})')}({v})"


@op(3, 4, weight=0.5)
def response_norm(g, v):
    return f"nn.LocalResponseNorm({g.int(1, 3)}{g.options(alpha=(0.1,), beta=(0.5,), k=(2.0,))})({v})"


@op(3, 4, 5, weight=1.5)
def upsample(g, v):
    n = len(g.shape(v)) - 2
    mode = g.pick("nearest", "nearest-exact", {1: "linear", 2: "bilinear", 3: "trilinear"}[n], "bicubic" if n == 2 else "nearest")
    corners = ", align_corners=" + str(g.pick(True, False)) if "linear" in mode or "cubic" in mode else ""
    if g.chance(0.5):
        return f"{g.module(f'nn.Upsample(scale_factor={g.pick(2, 2.0, 1.5, 0.5, 3)}, mode={mode!r}{corners})')}({v})"
    size = tuple(g.int(1, 6) for _ in range(n))
    return f"F.interpolate({v}, size={size}, mode={mode!r}{corners})"


@op(4, weight=1)
def shuffle(g, v):
    return g.pick(f"nn.PixelShuffle({g.pick(2, 3)})({v})", f"F.pixel_unshuffle({v}, 2)", f"nn.ChannelShuffle({g.pick(2, 3)})({v})",
                  f"F.unfold({v}, {kernel(g, 2)}{g.options(padding=(1,), stride=(2,), dilation=(2,))})", f"nn.Softmax2d()({v})")


@op(2, 3, 4, 5, weight=2)
def pad(g, v):
    n = len(g.shape(v))
    if g.chance(0.5) or n < 3:
        pads = [g.pick(0, 1, 2, -1) for _ in range(2 * g.int(1, n - 1))]
        return f"F.pad({v}, {tuple(pads)}" + (f", value={g.number()}" if g.chance(0.4) else "") + ")"
    kind = g.pick("Constant", "Reflection", "Replication", "Zero", "Circular")
    amount = g.int(0, 2) if g.chance(0.5) else tuple(g.int(0, 2) for _ in range(2 * (n - 2)))
    return f"nn.{kind}Pad{n - 2}d({amount}{', ' + str(g.number()) if kind == 'Constant' else ''})({v})"


# ---- dense layers and attention ----

@op(2, 3, 4, weight=6)
def linear(g, v):
    bias = ", bias=False" if g.chance(0.25) else ""
    return f"{g.module(f'nn.Linear({g.shape(v)[-1]}, {g.pick(3, 4, 5, 6, 8)}{bias})')}({v})"


@op(2, 3, weight=2.5)
def functional_linear(g, v):
    o, i = g.int(2, 6), g.shape(v)[-1]
    bias = f", {g.expression(o)}" if g.chance(0.5) else ""
    return g.pick(f"F.linear({v}, {g.expression(o, i)}{bias})", f"{v} @ {g.expression(i, o)}")


@op(2, 3, weight=1)
def tied(g, v):
    """The weights of a module that is there."""
    found = [p for p in g.parts if p[0] == "m" and isinstance(getattr(getattr(g.namespace["self"], p), "weight", None), nn.Parameter)]
    name = g.pick(*found)
    w = getattr(g.namespace["self"], name).weight
    if w.dim() == 1:
        return g.pick(f"{v} * self.{name}.weight", f"{v} + self.{name}.weight")
    return g.pick(f"F.linear({v}, self.{name}.weight)", f"F.linear({v}, self.{name}.weight.t())", f"{v} @ self.{name}.weight", f"{v} @ self.{name}.weight.t()")


@op(2, 3, weight=0.7)
def reparametrised(g, v):
    i, o = g.shape(v)[-1], g.int(2, 5)
    return g.pick(f"{g.module(f'nn.utils.parametrizations.weight_norm(nn.Linear({i}, {o}), dim={g.pick(0, 1)})')}({v})",
                  f"{g.module(f'nn.utils.weight_norm(nn.Linear({i}, {o}))')}({v})")


@op(2, 3, weight=0.7)
def bilinear(g, v):
    u = g.other(v, lambda s: s[:-1] == g.shape(v)[:-1])
    return f"{g.module(f'nn.Bilinear({g.shape(v)[-1]}, {g.shape(u)[-1]}, {g.int(2, 4)}{g.options(bias=(False,))})')}({v}, {u})"


@op(3, weight=5)
def recurrent(g, v):
    kind = g.pick("LSTM", "GRU", "RNN")
    first = g.chance(0.7)
    hidden, i = g.int(2, 5), g.shape(v)[-1]
    more = g.options(bias=(False,), bidirectional=(True,), num_layers=(2, 1), dropout=(0.0, 0.1))
    more += ", batch_first=True" if first else ""
    more += ", nonlinearity='relu'" if kind == "RNN" and g.chance(0.4) else ""
    module = g.module(f"nn.{kind}({i}, {hidden}{more})")
    x = v if first else f"{v}.transpose(0, 1)"
    ways = (2 if "bidirectional=True" in more else 1) * (2 if "num_layers=2" in more else 1)
    if g.chance(0.15):
        state = g.parameter(ways, 1, hidden)
        start = f"{state}.expand(-1, {v}.shape[0], -1).contiguous()"
        x += f", ({start}, {start})" if kind == "LSTM" else f", {start}"
    call, c = f"{module}({x})", "[1]" if kind == "LSTM" and g.chance(0.4) else "[0]" if kind == "LSTM" else ""
    if g.chance(0.55):
        return f"{call}[0]" if first else f"{call}[0].transpose(0, 1)"
    return g.pick(f"{call}[1]{c}[-1]", f"{call}[1]{c}.transpose(0, 1)", f"torch.cat([{call}[1]{c}[0], {call}[1]{c}[-1]], 1)", f"{call}[1]{c}.permute(1, 0, 2).flatten(1)")


@op(2, weight=0.6)
def cell(g, v):
    kind, h = g.pick("GRUCell", "LSTMCell", "RNNCell"), g.int(2, 5)
    module = g.module(f"nn.{kind}({g.shape(v)[-1]}, {h}{g.options(bias=(False,))})")
    return f"{module}({v})" + ("[0]" if kind == "LSTMCell" else "")


@op(3, weight=4)
def attention(g, v):
    d, heads = g.shape(v)[-1], None
    heads = g.pick(*[k for k in range(1, d + 1) if d % k == 0])
    u = g.other(v, lambda s: len(s) == 3 and s[2] == d) if g.chance(0.3) else v
    more = g.options(bias=(False,), dropout=(0.0, 0.1), add_bias_kv=(False, False, True))
    t, s = g.shape(v)[1], g.shape(u)[1]
    call = ""
    if g.chance(0.3):
        call += ", attn_mask=" + g.pick(g.part("k", f"torch.ones({t}, {s}).triu(1).bool()", "buffer"), g.part("k", f"torch.randn({t}, {s})", "buffer"),
                                        f"torch.triu(torch.full(({t}, {s}), float('-inf')), 1)")
    masks = [x for x, (shape, tokens) in g.inputs.items() if tokens and shape == (s,)]
    if masks and g.chance(0.6):
        call += f", key_padding_mask={masks[0]} == 0"
    if g.chance(0.5):
        call += ", need_weights=False"
    module = g.module(f"nn.MultiheadAttention({d}, {heads}{more}, batch_first=True)")
    return f"{module}({v}, {u}, {u}{call})[0]"


@op(3, weight=1.5)
def transformer_layer(g, v):
    d = g.shape(v)[-1]
    heads = g.pick(*[k for k in range(1, d + 1) if d % k == 0])
    more = g.options(norm_first=(True, False), activation=("gelu", "relu"), bias=(False, True), layer_norm_eps=(1e-3,))
    if g.chance(0.3):
        u = g.other(v, lambda s: len(s) == 3 and s[2] == d)
        return f"{g.module(f'nn.TransformerDecoderLayer({d}, {heads}, {g.int(3, 6)}, 0.0{more}, batch_first=True)')}({v}, {u})"
    t = g.shape(v)[1]
    call = g.pick("", "", f", src_mask=nn.Transformer.generate_square_subsequent_mask({t})", f", torch.ones({t}, {t}).triu(1).bool()")
    return f"{g.module(f'nn.TransformerEncoderLayer({d}, {heads}, {g.int(3, 6)}, 0.0{more}, batch_first=True)')}({v}{call})"


@op(3, 4, weight=2)
def scaled_attention(g, v):
    u = g.same(v)
    w = g.same(v)
    return f"F.scaled_dot_product_attention({v}, {u}, {w}{g.options(is_causal=(True,), scale=(0.3, 1.0))})"


@op(3, weight=1)
def heads_by_hand(g, v):
    d, t = g.shape(v)[-1], g.shape(v)[1]
    h = g.pick(*[k for k in range(1, d + 1) if d % k == 0])
    mask = g.pick("", "", f" + torch.full(({t}, {t}), float('-inf')).triu(1)", f" + {g.expression(t, t)}", f" + {g.expression(h, 1, t)}")
    scale = g.pick(f" / math.sqrt({d // h})", f" * {g.expression()}", "", f" * {d // h} ** -0.5")
    split = lambda x: f"{x}.view({v}.shape[0], {t}, {h}, {d // h}).transpose(1, 2)"
    q = f"nn.Linear({d}, {d})"
    return (f"{split(f'{g.module(q)}({v})')}", f"{split(f'{g.module(q)}({v})')}", f"({'$0'} @ {'$1'}.transpose(-2, -1)){scale}{mask}",
            f"(torch.softmax($2, -1) @ {split(v)}).transpose(1, 2).reshape({v}.shape[0], {t}, {d})")


# ---- functions ----

ACTIVATIONS = ["nn.ReLU()", "nn.ReLU6()", "nn.LeakyReLU(0.2)", "nn.ELU(0.7)", "nn.CELU(1.3)", "nn.SELU()", "nn.Sigmoid()", "nn.Hardsigmoid()", "nn.LogSigmoid()",
               "nn.Tanh()", "nn.Hardtanh(-0.7, 0.4)", "nn.Tanhshrink()", "nn.Softshrink(0.3)", "nn.Hardshrink(0.4)", "nn.Threshold(0.1, -0.3)", "nn.Softsign()",
               "nn.SiLU()", "nn.Hardswish()", "nn.Softplus(2.0, 3.0)", "nn.Softplus()", "nn.Mish()", "nn.GELU()", "nn.GELU(approximate='tanh')", "nn.PReLU()",
               "nn.Identity()", "nn.Dropout(0.2)", "nn.ReLU(inplace=True)", "nn.SiLU(inplace=True)", "nn.Softmax(dim=-1)", "nn.Softmin(dim=1)", "nn.LogSoftmax(dim=1)"]
UNARY = ["{}.exp()", "torch.log({}.abs() + 0.1)", "({} * {} + 0.1).sqrt()", "torch.rsqrt({} ** 2 + 0.5)", "{}.abs()", "{}.sin()", "torch.cos({})", "torch.erf({})",
         "{}.square()", "torch.sigmoid({})", "{}.tanh()", "torch.atan({})", "{}.neg()", "-{}", "torch.expm1({})", "torch.log1p({}.abs())", "F.silu({})", "F.gelu({})",
         "{}.sign() * {}", "torch.floor({})", "{}.round()", "torch.ceil({})", "{}.trunc()", "torch.frac({})", "{}.clamp(-0.5, 1)", "{}.clamp(min=0.1)", "{}.clamp_max(0.3)",
         "torch.nan_to_num({})", "torch.logit(torch.sigmoid({}))", "torch.softmax({}, -1)", "F.log_softmax({}, dim=-1)", "torch.reciprocal({}.abs() + 1)", "{}.detach()",
         "{}.detach() * {}", "torch.sinh({})", "torch.asinh({})", "torch.square({}).mean(-1, keepdim=True) + {}", "torch.erfc({})", "torch.sinc({})", "torch.exp2({})",
         "torch.heaviside({}, torch.tensor(0.5))", "torch.relu({}).sqrt()", "torch.special.expit({})", "torch.log2({}.abs() + 1)", "torch.log10({}.abs() + 1)", "torch.tan({} * 0.1)",
         "torch.special.log1p({} ** 2)", "F.relu({}, inplace=True)", "F.hardtanh({}, -1.0, 1.0)", "F.threshold({}, 0.1, 20)", "F.rrelu({}, 0.2, 0.2)", "torch.positive({})",
         "{}.pow(2)", "{}.pow(3)", "torch.pow({}.abs() + 0.1, 0.7)", "torch.pow(2, {})", "torch.float_power({}.abs() + 0.1, 0.5).float()", "{}.double().float()", "{}.contiguous()",
         "{}.clone()", "torch.deg2rad({})", "torch.special.erf({})", "torch.clip({}, -1, 2)", "F.glu({}, -1)", "F.glu({}, 1)", "torch.lgamma({}.abs() + 1)", "torch.special.i0({})"]


@op(weight=7)
def activation(g, v):
    if g.chance(0.1):
        return f"{g.module(f'nn.PReLU({g.shape(v)[1]})')}({v})"
    return f"{g.module(g.pick(*ACTIVATIONS))}({v})"


@op(weight=7)
def unary(g, v):
    return g.pick(*UNARY).replace("{}", v)


@op(weight=3)
def with_number(g, v):
    n = g.number()
    return g.pick(f"{v} + {n}", f"{n} - {v}", f"{v} * {n}", f"{v} / {n}", f"{n} / ({v}.abs() + 1)", f"{v} % {abs(n)}", f"torch.fmod({v}, {abs(n)})", f"{v} // {n}",
                  f"torch.remainder({v}, {n})", f"torch.add({v}, {v}, alpha={n})", f"torch.sub({n}, {v})", f"torch.rsub({v}, {n}, alpha=2)",
                  f"torch.maximum({v}, torch.tensor({float(n)}))", f"({v} > {n}).float() + {v}", f"torch.div({v}, {n}, rounding_mode='floor')",
                  f"torch.addcmul({v}, {v}, {v}, value={n})", f"torch.addcdiv({v}, {v}, {v}.abs() + 1, value={n})", f"torch.lerp({v}, {v} * 2, {n})", f"torch.mul({n}, {v})")


def near(g, v):
    """A value that broadcasts with v, made to."""
    shape = g.shape(v)
    way = g.int(0, 4)
    if way < 3:
        return g.same(v)
    d = g.int(1, len(shape) - 1)
    if way == 3:
        return g.other(v, lambda s: len(s) == len(shape) and all(a == b or a == 1 for a, b in zip(s, shape))) + ("" if g.chance(0.6) else f".mean({d}, keepdim=True)")
    fewer = g.other(v, lambda s: len(s) < len(shape) and s == shape[:len(s)])
    return fewer + "[..., None]" * (len(shape) - len(g.shape(fewer)))


@op(weight=8)
def binary(g, v):
    u = near(g, v)
    a, b = (v, u) if g.chance(0.7) else (u, v)
    return g.pick(f"{a} + {b}", f"{a} * {b}", f"{a} - {b}", f"{a} / ({b}.abs() + 0.5)", f"torch.maximum({a}, {b})", f"torch.min({a}, {b})", f"torch.where({a} > {b}, {a}, {b} * 0.5)",
                  f"({a} < {b}).float() * {a}", f"{a} * torch.sigmoid({b})", f"torch.atan2({a}, {b}.abs() + 1)", f"torch.hypot({a}, {b} + 0.1)", f"torch.logaddexp({a}, {b})",
                  f"{a} + {b}.detach()", f"torch.add({a}, {b}, alpha={g.number()})", f"{a}.addcmul({b}, {b}, value=0.5)", f"torch.lerp({a}, {b}, 0.3)", f"({a} - {b}) ** 2",
                  f"torch.fmax({a}, {b})", f"torch.where({a}.abs() > 0.4, {b}, 0.0)", f"torch.where({a} >= 0, {g.number()}, {b})", f"torch.copysign({a}, {b})",
                  f"{a}.masked_fill({b} > 0.2, {g.number()})", f"torch.xlogy({a}, {b}.abs() + 0.2)", f"{a} + {b} * ({a} != 0)", f"({a} > 0).logical_and({b} > 0).float() + {a}",
                  f"torch.clamp({a}, max={b})", f"torch.pow({a}.abs() + 0.5, {b}.clamp(-1, 1))", f"torch.squared_difference({a}, {b})" if hasattr(torch, "squared_difference") else f"({a} - {b}).square()")


@op(weight=9)
def with_parameter(g, v):
    shape = list(g.shape(v)[1:])
    if g.chance(0.5):
        shape = shape[g.int(0, len(shape) - 1):]
    shape = [1 if g.chance(0.25) else s for s in shape]
    if g.chance(0.15):
        shape = []
    if len(shape) == len(g.shape(v)) - 1 and g.chance(0.2):
        shape = [1] + shape
    p = g.expression(*shape)
    return g.pick(f"{v} + {p}", f"{v} * {p}", f"{p} * {v}", f"{v} - {p}", f"{p} - {v}", f"{v} / ({p}.abs() + 0.5)", f"torch.maximum({v}, {p})", f"torch.sigmoid({p}) * {v}",
                  f"torch.where({v} > {p}, {v}, {p})", f"{v} * (1 + {p})", f"({v} - {p}).abs()", f"torch.exp(-({v} - {p}) ** 2)", f"torch.min({v}, {p})", f"torch.addcmul({v}, {v}, {p})",
                  f"{p} + {v}", f"({v} + {p}).relu()", f"F.softplus({p}) * {v} + {p}", f"{v} * {p} + {v}", f"torch.where({p} > 0, {v}, {p})", f"torch.pow({v}.abs() + 0.3, {p})",
                  f"torch.clamp({v}, max={p})", f"torch.lerp({v}, {p}.expand_as({v}), 0.3)", f"{v}.masked_fill({v} > {p}, 0.0)", f"torch.tanh({v} * {p})", f"{v} * {p}.detach()")


# ---- reductions ----

@op(3, 4, 5, weight=4)
def reduce(g, v):
    d, keep = dims(g, v), g.pick("", "", ", keepdim=True")
    return g.pick(f"{v}.sum({d}{keep})", f"{v}.mean({d}{keep})", f"torch.mean({v}, dim={d}{keep})", f"{v}.amax({d}{keep})", f"{v}.amin({d}{keep})", f"torch.logsumexp({v}, {d}{keep})",
                  f"{v}.norm(dim={d}{keep})", f"torch.linalg.vector_norm({v}, {g.pick(1, 2, 3)}, {d}{keep})", f"{v}.var({d}{keep})", f"{v}.std({d}, unbiased=False{keep})",
                  f"{v}.var({d}, correction=0{keep})", f"torch.std({v}, {d}{keep})", f"{v}.norm(1, {d}{keep})", f"({v} > 0).float().mean({d}{keep})",
                  f"torch.linalg.vector_norm({v}, float('inf'), {d}{keep})", f"({v} > 0).sum({d}{keep}).float()", f"torch.var_mean({v}, {d}{keep})[{g.pick(0, 1)}]")


@op(2, 3, 4, weight=3)
def along(g, v):
    d = dim(g, v)
    n = g.shape(v)[d]
    return g.pick(f"torch.cumsum({v}, {d})", f"torch.softmax({v}, {d})", f"F.log_softmax({v}, {d})", f"F.normalize({v}, dim={d})", f"F.normalize({v}, p=1, dim={d})",
                  f"{v}.max({d}, keepdim=True)[0]", f"{v}.max({d}).values", f"torch.sort({v}, {d})[0]", f"torch.sort({v}, dim={d}, descending=True).values",
                  f"torch.topk({v}, {g.int(1, n)}, {d})[0]", f"{v}.median({d}, keepdim=True)[0]", f"{v}.prod({d}, keepdim=True)", f"{v}.cumprod({d})", f"{v}.cummax({d})[0]",
                  f"torch.logcumsumexp({v}, {d})", f"torch.diff({v}, dim={d})", f"{v}.kthvalue({g.int(1, n)}, {d})[0]", f"F.softmin({v}, {d})", f"{v}.flip({d}).cumsum({d})",
                  f"{v}.argmax({d}, keepdim=True).float() + {v}", f"F.one_hot({v}.argmax({d}), {n}).float()", f"{v} - {v}.logsumexp({d}, keepdim=True)",
                  f"torch.quantile({v}, {g.pick(0.3, 0.5, 0.9)}, dim={d})", f"{v} / {v}.abs().sum({d}, keepdim=True).clamp(min=1e-6)", f"{v} - {v}.mean({d}, keepdim=True)",
                  f"torch.gather({v}, {d}, {v}.argsort({d}))", f"F.cosine_similarity({v}, {g.same(v)}, dim={d})", f"torch.renorm({v}, 2, 1, 1.0)", f"torch.trapezoid({v}, dim={d})")


# ---- places ----

@op(weight=6)
def move(g, v):
    shape = g.shape(v)
    n = len(shape)
    d = dim(g, v)
    size = shape[d]
    a = g.int(0, size - 1)
    b = g.int(a + 1, size)
    order = list(range(1, n))
    g.rng.shuffle(order)
    slices = [":"] * n
    slices[d] = g.pick(f"{a}:{b}", f"{a}:", f"-{size - a}:", f"::{g.pick(2, 3)}", f"{a}:{b}:2", f"{a}:{a + 1}", f":{b}", "[" + ", ".join(str(g.int(0, size - 1)) for _ in range(g.int(1, 3))) + "]")
    index = ", ".join(slices)
    return g.pick(f"{v}.flip({dims(g, v)})", f"torch.roll({v}, {g.pick(1, -1, 2)}, {d})", f"{v}.permute(0, {', '.join(map(str, order))})", f"{v}[{index}]", f"{v}[{index}]",
                  f"{v}.transpose({d}, {dim(g, v)})", f"{v}.narrow({d}, {a}, {b - a})", f"{v}.unsqueeze({g.int(1, n)})", f"{v}.select({d}, {a})", f"{v}.movedim(1, -1)",
                  f"{v}.chunk({g.pick(2, 3)}, {d})[{g.pick(0, -1)}]", f"{v}.split({g.pick(1, 2)}, {d})[{g.pick(0, -1)}]", f"{v}.unbind({d})[{a}]", f"{v}[..., ::2]", f"{v}[..., -1]", f"{v}[:, 0]",
                  f"torch.index_select({v}, {d}, torch.tensor([{a}, {b - 1}, {a}]))", f"torch.rot90({v}, 1, (-2, -1))", f"{v}.swapaxes(1, -1)", f"{v}.tril()", f"{v}.triu(1)", f"torch.tril({v}, -1)",
                  f"torch.diagonal({v}, dim1=-2, dim2=-1)", f"{v}.unfold({d}, {g.pick(1, 2)}, {g.pick(1, 2)})", f"{v}.squeeze({d})", f"{v}.tensor_split({g.pick(2, 3)}, {d})[0]",
                  f"{v}.repeat_interleave(2, {d})", f"{v}.repeat({', '.join(['1'] + [str(g.pick(1, 2)) for _ in range(n - 1)])})", f"{v}.tile({', '.join(['1'] + [str(g.pick(1, 2)) for _ in range(n - 1)])})",
                  f"{v}.index_select({d}, torch.arange({size - 1}, -1, -1))", f"torch.take_along_dim({v}, torch.arange({size}).flip(0).view({', '.join(['-1' if k == d % n else '1' for k in range(n)])}), {d})",
                  f"torch.diag_embed({v})", f"torch.fliplr({v})", f"{v}.mT", f"torch.atleast_3d({v})", f"{v}.expand_as({v})", f"{v}.adjoint()")


@op(weight=5)
def reshape(g, v):
    shape = g.shape(v)[1:]
    n = math.prod(shape)
    a = g.pick(*[k for k in range(1, n + 1) if n % k == 0])
    b = g.pick(*[k for k in range(1, n // a + 1) if n // a % k == 0])
    d = g.int(1, len(shape))
    c = g.pick(*[k for k in range(1, shape[d - 1] + 1) if shape[d - 1] % k == 0])
    batch = g.pick(f"{v}.shape[0]", f"{v}.size(0)", f"len({v})")
    return g.pick(f"{v}.flatten(1)", f"torch.flatten({v}, 1)", f"{v}.reshape({batch}, {a}, -1)", f"{v}.reshape({batch}, {a}, {b}, {n // a // b})", f"{v}.reshape({batch}, -1)", f"{v}.flatten(1, 2)",
                  f"{v}.unflatten({d}, ({c}, {shape[d - 1] // c}))", f"{v}.view({batch}, -1, {a})", f"{v}.reshape(-1, {a}, {n // a})", f"nn.Flatten({g.pick(1, 2)})({v})", f"{v}.flatten(2).transpose(1, 2)",
                  f"nn.Unflatten(1, ({c}, -1))({v})", f"{v}.flatten(-2)", f"{v}.transpose(1, -1).reshape({batch}, {a}, -1)", f"{v}.reshape({batch}, {a}, {b}, 1, {n // a // b})",
                  f"{v}.contiguous().view({batch}, {b}, -1)", f"{v}.unsqueeze({g.int(1, len(shape) + 1)})", f"{v}.ravel().view({batch}, -1)")


@op(weight=5)
def join(g, v):
    d = dim(g, v)
    shape = g.shape(v)
    k = d % len(shape)
    u = g.other(v, lambda s: len(s) == len(shape) and all(a == b or i == k for i, (a, b) in enumerate(zip(s, shape))))
    p = f"{g.expression(*[1 if i == 0 else 2 if i == k else s for i, s in enumerate(shape)])}.expand({v}.shape[0], {', '.join(['-1'] * (len(shape) - 1))})"
    return g.pick(f"torch.cat([{v}, {u}], {d})", f"torch.cat(({u}, {v}, {u}), dim={d})", f"torch.cat([{v}, {p}], {d})", f"torch.cat([{p}, {v}], {d})", f"torch.stack([{v}, {g.same(v)}], {g.pick(1, -1)})",
                  f"torch.cat([{v}, torch.zeros_like({v})], {d})", f"torch.cat([{v}[:, :1], {v}], 1)", f"torch.stack([{v}, {v} * 2], 1).sum(1)", f"torch.hstack([{v}, {v}])",
                  f"torch.cat([t * k for k, t in enumerate({v}.unbind({d}), 1)], -1)", f"torch.cat([{v}, torch.ones({v}.shape[0], *{v}.shape[1:])], {d})")


@op(weight=3)
def product(g, v):
    shape = g.shape(v)
    n, last = len(shape), shape[-1]
    u = g.other(v, lambda s: len(s) == n and s[:-2] == shape[:-2] and s[-2] == last) if n > 2 else v
    w = g.same(v)
    letters = "abcde"[:n]
    makers = [f"{v} @ {g.expression(last, g.int(1, 4))}", f"torch.matmul({v}, {g.expression(last)}).unsqueeze(-1)",
              f"torch.einsum('{letters},{letters[-1]}z->{letters[:-1]}z', {v}, {g.expression(last, 3)})", f"torch.einsum('{letters},{letters}->a{letters[-1] if n > 1 else ''}', {v}, {w})",
              f"torch.tensordot({v}, {g.expression(last, 3)}, 1)", f"torch.inner({v}, {g.expression(3, last)})"]
    if n == 2:
        makers += [f"torch.einsum('bi,bj->bij', {v}, {g.other(v, lambda s: len(s) == 2)})", f"{v}[:, :, None] * {w}[:, None, :]", f"({v} * {w}).sum(1, keepdim=True)",
                   f"torch.addmm({g.expression(3)}, {v}, {g.expression(last, 3)}, beta={g.pick(1, 0.5)})", f"torch.cdist({v}, {g.expression(3, last)})", f"torch.mm({v}, {g.expression(last, 4)})",
                   f"torch.einsum('bi,oij,bj->bo', {v}, {g.expression(3, last, last)}, {v})", f"F.pairwise_distance({v}, {w})", f"({v}.unsqueeze(1) - {g.expression(3, last)}).pow(2).sum(-1)"]
    if n == 3:
        makers += [f"torch.bmm({v}, {w}.transpose(1, 2))", f"{v} @ {u}", f"torch.einsum('bic,bjc->bij', {v}, {w})", f"{v}.transpose(1, 2) @ {w}", f"{g.expression(2, shape[1])} @ {v}",
                   f"torch.einsum('bnc,nco->bno', {v}, {g.expression(shape[1], last, 2)})", f"torch.bmm(torch.softmax({v} @ {v}.mT, -1), {w})", f"torch.einsum('bnc,n->bc', {v}, {g.expression(shape[1])})",
                   f"torch.baddbmm({v}, {v} @ {v}.mT, {w}, beta=0.5)", f"torch.cdist({v}, {w})", f"torch.einsum('bnc,cd,bmd->bnm', {v}, {g.expression(last, last)}, {w})"]
    if n == 4:
        makers += [f"{v} @ {w}.transpose(-2, -1)", f"torch.einsum('bhtd,bhsd->bhts', {v}, {w})", f"torch.einsum('bchw,oc->bohw', {v}, {g.expression(3, shape[1])})",
                   f"torch.einsum('bchw,c->bhw', {v}, {g.expression(shape[1])})", f"{v} * {v}.mean((2, 3), keepdim=True).sigmoid()"]
    return g.pick(*makers)


@op(weight=2)
def written(g, v):
    """Values written into others, and constant places."""
    d = dim(g, v)
    shape = g.shape(v)
    size = shape[d]
    at = ", ".join([":"] * (d % len(shape)) + [g.pick("0", "1:", ":1", "-1", "::2")])
    out = g.pick(f"{v} * 2", f"{g.number()}", f"{g.same(v)}[{at}]", f"{v}[{at}] + 1", f"{g.expression()}")
    rest = ", ".join("1" if k != d % len(shape) else str(size) for k in range(len(shape)))
    return g.pick((f"{v}.clone()", f"($0.__setitem__(({at.replace('::2', 'slice(None, None, 2)').replace('1:', 'slice(1, None)').replace(':1', 'slice(None, 1)').replace(':,', 'slice(None),')},), {out}), $0)[1]"),
                  f"torch.index_add({v}, {d}, torch.tensor([0, {size - 1}]), {v}.narrow({d}, 0, 1).repeat({', '.join('2' if k == d % len(shape) else '1' for k in range(len(shape)))}))",
                  f"{v}.masked_fill({g.mask(*shape[1:])} > 0, {g.number()})", f"{v} * {g.mask(*shape[1:])}", f"torch.where({g.mask(*shape[1:])}.bool(), {v}, {g.same(v)})",
                  f"{v}.masked_fill(torch.arange({size}).view({rest}) > {size // 2}, {g.pick(0.0, -1e9 if False else -2.0)})", f"{v} + torch.arange({size}).float().view({rest}) * 0.1",
                  f"{v}.index_fill({d}, torch.tensor([0]), 0.5)", f"{v} * torch.linspace(0, 1, {size}).view({rest})", f"{v}.index_copy({d}, torch.tensor([0]), {v}.narrow({d}, {size - 1}, 1))",
                  f"torch.slice_scatter({v}, {v}.narrow({d}, 0, 1) * 2, {d}, 0, 1)", f"torch.select_scatter({v}, {v}.select({d}, 0) + 1, {d}, {size - 1})")


@op(weight=0.12)
def across_the_batch(g, v):
    """What mfl must refuse: samples that see each other."""
    return g.pick(f"{v}.flip(0)", f"{v} - {v}.mean(0, keepdim=True)", f"{v}.roll(1, 0)", f"torch.softmax({v}, 0)", f"{v} / {v}.norm()", f"{v} - {v}.mean()", f"{v}.cumsum(0)", f"{v} * {v}.amax()")


@op(weight=1.5)
def block(g, v):
    """A residual branch, or gates."""
    c = g.shape(v)[-1]
    act = g.pick("nn.ReLU()", "nn.GELU()", "nn.Tanh()", "nn.SiLU()")
    body = g.module(f"nn.Sequential(nn.LayerNorm({c}), nn.Linear({c}, 6), {act}, nn.Linear(6, {c}))")
    return g.pick(f"{v} + {body}({v})", f"{v} + {g.expression()} * {body}({v})", f"{v} * torch.sigmoid({body}({v}))", f"{body}({body}({v}))", f"{v} + {g.expression(c)} * {body}({v})")


@op(4, weight=1.5)
def image_block(g, v):
    c = g.shape(v)[1]
    body = g.module(f"nn.Sequential(nn.Conv2d({c}, {c}, 3, padding=1, bias=False), nn.BatchNorm2d({c}), nn.ReLU(inplace=True), nn.Conv2d({c}, {c}, 1))")
    gate = g.module(f"nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear({c}, 2), nn.ReLU(), nn.Linear(2, {c}), nn.Sigmoid())")
    return g.pick(f"{v} + {body}({v})", f"F.relu({v} + {body}({v}))", f"{v} * {gate}({v}).view({v}.shape[0], {c}, 1, 1)", f"{v} * {gate}({v})[:, :, None, None] + {v}")


# ---- tokens ----

@op(2, weight=12, of="tokens")
def embedding(g, v):
    n = g.inputs[v][1]
    more = f", padding_idx={g.pick(0, 0, n - 1, 1)}" if g.chance(0.3) else ""
    return f"{g.module(f'nn.Embedding({n}, {g.pick(3, 4, 6)}{more})')}({v})"


@op(2, weight=4, of="tokens")
def other_tokens(g, v):
    n, size = g.inputs[v][1], g.inputs[v][0][0]
    bag = g.pick("mean", "sum")
    return g.pick(f"{g.module(f'nn.EmbeddingBag({n}, 4, mode={bag!r})')}({v})", f"F.one_hot({v}, {n}).float()", f"{v}.float() / {n}", f"({v} != 0).float()", f"F.embedding({v}, {g.expression(n, 4)})",
                  f"{g.expression(n, 3)}[{v}]", f"({v} == {g.expression(1)}.detach().round()).float()", f"F.embedding({v} * 0 + torch.arange({size}), {g.expression(size, 4)})",
                  f"F.embedding(({v} + 1) % {n}, {g.expression(n, 4)})", f"F.embedding({v}.clamp(max={n - 2}), {g.expression(n, 4)})", f"F.embedding({v}.flip(1), {g.expression(n, 4)})")


@op(3, weight=3)
def masked(g, v):
    """By tokens, where there are some."""
    tokens = [x for x, (shape, n) in g.inputs.items() if n and shape == g.shape(v)[1:2]]
    x = g.pick(*tokens)
    m = g.pick(f"({x} != 0)", f"{x}.ne(0)", f"({x} > 0)", f"~({x} == 0)")
    return g.pick(f"{v} * {m}.unsqueeze(-1)", f"({v} * {m}.float().unsqueeze(-1)).sum(1) / {m}.float().sum(1, keepdim=True).clamp(min=1)", f"{v}.masked_fill(~{m}[..., None], 0.0)",
                  f"{v}.masked_fill(({x} == 0)[:, :, None], -1e4).amax(1)", f"(torch.softmax({v}.mean(-1).masked_fill(~{m}, -1e4), 1).unsqueeze(-1) * {v}).sum(1)",
                  f"torch.where({m}[:, :, None], {v}, {g.expression(g.shape(v)[2])})", f"{v}.cumsum(1) / {m}.cumsum(1).clamp(min=1).unsqueeze(-1)",
                  f"{v}[torch.arange(len({v})), {m}.sum(1) - 1]", f"{v}[torch.arange({v}.shape[0]), {x}.argmax(1)]")


# ---- a whole module ----

STARTS = [((3, 5, 6), 0), ((2, 4, 4), 0), ((1, 7, 5), 0), ((4, 6, 6), 0), ((2, 3, 4, 3), 0), ((3, 9), 0), ((5, 4), 0), ((6, 6), 0), ((8,), 0), ((5,), 0), ((6,), 11), ((5,), 7), ((4, 2, 3), 0)]


class Program:
    """Inputs, parts and statements of a module, without anything computed: what is printed, tried and made smaller."""

    def __init__(self, inputs, parts, statements, outputs, frozen=(), evals=(), seed=0):
        self.inputs, self.parts, self.statements, self.outputs = dict(inputs), dict(parts), list(statements), list(outputs)
        self.frozen, self.evals, self.seed = list(frozen), list(evals), seed

    def pruned(self):
        """Without what no output depends on. Values that are changed in place depend on what changes them, which is not looked at."""
        used, kept = set(names(" ".join(self.outputs))), []
        for name, text in reversed(self.statements):
            if name in used:
                used |= set(names(text))
                kept.append((name, text))
        text = " ".join([t for _, t in kept] + self.outputs)
        parts, wanted = {}, set(re.findall(r"self\.(\w+)", text))
        for name, code in reversed(self.parts.items()):
            if name in wanted or (name == "_tie" and code):
                parts[name] = code
                wanted |= set(re.findall(r"self\.(\w+)", code))
        there = lambda of: [x for x in of if x.split(".")[1] in parts]
        inputs = {k: v for k, v in self.inputs.items() if k in used} or dict(list(self.inputs.items())[:1])
        return Program(inputs, dict(reversed(parts.items())), kept[::-1], self.outputs, there(self.frozen), there(self.evals), self.seed)

    def source(self, plain=None):
        """plain: without what no file but mfl_export's says (None: with it): "buffers" keeps buffers, "parameters" makes parameters of them."""
        lines = ["import math", "import torch", "from torch import nn", "from torch.nn import functional as F", "", "", "class Net(nn.Module):",
                 "    def __init__(self):", "        super().__init__()"]
        frozen, evals = ([], []) if plain else (self.frozen, self.evals)
        for text in self.parts.values():
            lines.append("        " + (as_plain(text, plain) if plain else text))
        lines += [f"        {x}.requires_grad_(False)" for x in frozen]
        if evals:
            lines += ["", "    def train(self, mode=True):", "        super().train(mode)"] + [f"        {x}.eval()" for x in evals] + ["        return self"]
        lines += ["", f"    def forward(self, {', '.join(self.inputs)}):"]
        for name, text in self.statements:
            lines.append(f"        {name} = {re.sub(r'[.]detach[(][)]', '', text) if plain else text}")
        lines.append(f"        return {', '.join(self.outputs)}")
        return "\n".join(lines) + "\n"


def as_plain(text, plain):
    text = re.sub(r", padding_idx=\d+", "", text)
    if plain == "parameters":
        text = re.sub(r'self\.register_buffer\("(b\d+)", (.*)\)$', r"self.\1 = nn.Parameter(\2)", text)
    return text


def names(text):
    return re.findall(r"(?<![\w.])[vx]\d+(?:_\d+)?\b", text)


def draw(seed, size=None):
    """A random program and its number of classes."""
    g = Drawing(seed)
    torch.manual_seed(seed)
    for _ in range(g.pick(1, 1, 1, 1, 2, 2, 3)):
        g.add_input(*g.pick(*STARTS))
    wanted, tries = size or g.int(2, 14), 0
    while len(g.statements) < wanted and tries < 20 * wanted:
        tries += 1
        g.step()
    classes = g.int(2, 4)
    used = set(names(" ".join(t for _, t in g.statements)))
    leaves = [n for n, _ in g.statements if n not in used and g.namespace[n].is_floating_point()] or g.values()[-1:]
    if not leaves:  # tokens alone
        leaves = [g.name("v")]
        x = next(iter(g.inputs))
        g.statements.append((leaves[0], f"{g.part('m', f'nn.Embedding({g.inputs[x][1]}, 4)')}({x})"))
        g.namespace[leaves[0]] = eval(g.statements[-1][1], g.namespace)  # noqa: S307
    heads = [head(g, v, classes, g.chance(0.5)) for v in leaves]
    if len(heads) > 1:
        shapes = [eval(h, g.namespace).shape for h in heads]  # noqa: S307
        if len(set(shapes)) > 1:
            heads = [head(g, v, classes, False) for v in leaves]
    g.parts.update(g.pending)
    outputs = heads if len(heads) > 1 and len(heads) < 4 and g.chance(0.15) else [" + ".join(heads)]
    return Program(g.inputs, g.parts, g.statements, outputs, g.frozen, g.evals, seed).pruned()


def head(g, v, classes, dense):
    """Logits from a value: of positions or pixels where it has them, else of the sample."""
    shape = g.shape(v)
    if dense and len(shape) == 3:
        return f"{g.part('m', f'nn.Linear({shape[2]}, {classes})')}({v})"
    if dense and len(shape) == 4:
        return f"{g.part('m', f'nn.Conv2d({shape[1]}, {classes}, 1)')}({v})"
    flat = v if len(shape) == 2 else f"{v}.flatten(1)"
    return f"{g.part('m', f'nn.Linear({math.prod(shape[1:])}, {classes})')}({flat})"
