# SPDX-License-Identifier: Apache-2.0
"""Modules of PyTorch, one kind each: exported, trained beside PyTorch, exported again; or refused by a text that says what to write.

Skipped where there is no PyTorch.
"""
import math
import os
import sys

import numpy as np
import pytest

import mfl_needs

torch = mfl_needs.module("torch")
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
import mfl_export  # noqa: E402
from test_onnx import BATCH, NEW, STEPS, TOLERANCE, batches, export, rate, run, train

MODELS, REFUSED = {}, {}


def of(shape, tokens=0, refused=None):
    """Registers a module; `refused`: what the refusal says, in parts."""
    def register(kind):
        kind.shape, kind.tokens = shape, tokens
        (REFUSED if refused else MODELS)[kind.__name__] = kind
        kind.refused = refused
        return kind
    return register


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.build()


class Between(Base):
    """Something between two dense layers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x):
        return self.b(self.mid(torch.tanh(self.a(x))))


class WithP(Between):
    """... with the parameters p and q."""
    scale = 0.3

    def build(self):
        self.p, self.q = nn.Parameter(torch.randn(5) * self.scale), nn.Parameter(torch.randn(5) * self.scale)


class WithW(Between):
    """... with the weights w."""

    def build(self):
        self.w, self.bias = nn.Parameter(torch.randn(5, 5)), nn.Parameter(torch.randn(5))
        self.register_buffer("mask", (torch.rand(5, 5) > 0.5).float())


# ---- steep functions, which are no clamps ----

@of((6,))
class SteepTanh(Between):
    def build(self):
        pass

    def mid(self, x):
        return torch.tanh(20 * x) + torch.erf(7.5 * x) * x


@of((6,))
class SteepGate(Between):
    """As the differentiable binarization of text detectors."""

    def build(self):
        pass

    def mid(self, x):
        return torch.sigmoid(50 * (x - 0.3)) + F.softplus(100 * x) / 100


@of((6,))
class PaddedConstants(Between):
    """A table that is padded in each mode."""

    def build(self):
        pass

    def mid(self, x):
        row = torch.tensor([[[-1.0, 0.5, 2.0]]])
        modes = [F.pad(row, (1, 1), mode=mode) for mode in ("constant", "reflect", "replicate", "circular")]
        return x * (sum(modes) + F.pad(row, (3, -1), value=0.5) + F.pad(torch.arange(4), (1, 0), value=7))[0, 0]


# ---- bounds and numbers that samples of a function do not show ----

@of((6,))
class FarBounds(Between):
    def build(self):
        pass

    def mid(self, x):
        y = 1000 * x
        a = y.clamp(0, 400) + y.clamp(-350, 2000) + F.relu(y - 500) + F.relu(y.clamp(max=450)) + 3 * (2 * y).clamp(0, 700)
        b = torch.where(y > 330, 2 * y, y) + torch.where(2 * y < -900, -y, y) + (y > 520).float() * y
        c = F.softshrink(y, 400) + F.hardtanh(0.001 * y + 0.5, 0, 1) * 1000 + torch.minimum(y, torch.tensor(420.0))
        return (a + b + c + torch.maximum(torch.tensor(-410.0), y) + 2e4 * torch.tanh(y / 2e4) + F.celu(y, 700.0)) / 1000


@of((6,))
class NearBounds(Between):
    def build(self):
        pass

    def mid(self, x):
        y = 1e-6 * x
        a = 1e6 * y.clamp(min=3e-7) + 1e6 * y.clamp(-4e-7, 4e-7) + torch.sqrt(F.relu(x) + 1e-8)
        return a + torch.where(x > 0.31, 2 * x, x) + torch.where(x > 0.27, torch.tensor(0.2), x) + 1e8 * (1e-8 * F.silu(x)) + 2 ** x


@of((6,))
class NarrowBends(Base):
    """Bends and steps of which several lie between two of the points at which functions are compared."""
    lr = 1e-5  # no step crosses a bend, which rounding would decide

    def build(self):
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 4)
        with torch.no_grad():
            self.a.weight.mul_(0.05)
            self.a.bias.copy_(torch.linspace(0.295, 0.325, 5))

    def forward(self, x):
        y = self.a(x)
        hat = F.relu(y - 0.3) - 2 * F.relu(y - 0.31) + F.relu(y - 0.32)
        gate = torch.sigmoid(1000 * (y - 0.3)) - torch.sigmoid(1000 * (y - 0.33))
        step = (y >= 0.3).unsqueeze(-1).float() * (y < 0.315).unsqueeze(-1).float()
        return self.b(10 * hat + gate + 10 * ((1.02 * y).clamp(0.3, 0.31) + (F.hardtanh(y, 0.3, 0.33) - F.hardtanh(y, 0.31, 0.32))) + step.squeeze(-1))


@of((6,))
class Zeros(Base):
    """Conditions on numbers that are exactly 0, which no point of comparison is, also behind a move."""

    def build(self):
        self.e, self.a, self.fc = nn.Linear(1, 5), nn.Linear(6, 6), nn.Linear(11, 4)

    def forward(self, x):
        x = x * torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
        h = self.a(x) * (x.abs() > 0).float() + torch.where(x.abs() <= 0, torch.tensor(0.5), x)
        return self.fc(torch.cat([(torch.tanh(self.e(x.unsqueeze(-1))) * (x != 0).unsqueeze(-1).float()).sum(1), h], 1))


# ---- parameters computed from parameters ----

@of((6,))
class ScalarParameters(Between):
    def build(self):
        self.p, self.q = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.tensor([0.2]))

    def mid(self, x):
        return x * self.p + self.q


@of((6,))
class OnePlus(WithP):
    def mid(self, x):
        return x * (1 + self.p)


@of((6,))
class RmsNormOnePlus(WithP):
    """As Gemma's."""

    def mid(self, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * (1 + self.p)


@of((6,))
class SumOfTwo(WithP):
    def mid(self, x):
        return x * (self.p + self.q)


@of((6,))
class Minus(WithP):
    def mid(self, x):
        return x - self.p


@of((6,))
class Gate(WithP):
    def mid(self, x):
        g = torch.sigmoid(self.p)
        return x * g + (1 - g) * torch.tanh(x)


@of((6,))
class Temperature(Between):
    """As CLIP's."""

    def build(self):
        self.p = nn.Parameter(torch.tensor(0.3))

    def mid(self, x):
        return x * self.p.exp()


@of((6,))
class FunctionsOfZeros(WithP):
    scale = 0

    def mid(self, x):
        return x * self.p.exp() + self.q.tanh() + (1 + self.p) ** 2


@of((6,))
class DividedBy(WithP):
    def mid(self, x):
        return x / (2 + self.p.abs() * self.p)


@of((6,))
class SoftmaxOfParameter(WithP):
    def mid(self, x):
        return x * F.softmax(self.p, 0)


@of((6,))
class SlicesOverlap(WithP):
    def build(self):
        self.p = nn.Parameter(torch.randn(8))

    def mid(self, x):
        return x * self.p[:5] + self.p[3:]


@of((6,))
class Joined(Between):
    def build(self):
        self.p, self.q = nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(2))

    def mid(self, x):
        return x * torch.cat([self.p, self.q, torch.ones(1)])


@of((6,))
class NormScale(WithP):
    def mid(self, x):
        return F.layer_norm(x, (5,), 1 + self.p, None)


@of((6,))
class EqualizedDense(WithW):
    def mid(self, x):
        return F.linear(x, self.w * 0.3, self.bias)


@of((6,))
class PrunedDense(WithW):
    """The weights under the mask don't move."""

    def mid(self, x):
        return F.linear(x, self.w * self.mask, self.bias)


@of((6,))
class MergedLora(WithW):
    def build(self):
        super().build()
        self.u, self.v = nn.Parameter(torch.randn(5, 2)), nn.Parameter(torch.randn(2, 5))

    def mid(self, x):
        return F.linear(x, self.w + self.u @ self.v)


@of((6,))
class ConstantWeights(WithW):
    def mid(self, x):
        return F.linear(x, torch.arange(25.0).view(5, 5) / 25)


@of((3, 8, 8))
class EqualizedConv(Base):
    def build(self):
        self.w, self.bias, self.fc = nn.Parameter(torch.randn(4, 3, 3, 3)), nn.Parameter(torch.randn(4)), nn.Linear(4, 5)

    def forward(self, x):
        return self.fc(torch.tanh(F.conv2d(x, self.w * 0.2, self.bias)).mean([2, 3]))


@of((6,))
class TurnedToo(WithW):
    def mid(self, x):
        return F.linear(torch.tanh(F.linear(x, self.w)), self.w.t())


class OfBatch(Between):
    def build(self):
        pass


for _name, _mid, _op in [("SumsOverTheBatch", lambda s, x: x.cumsum(0), "CumSum"), ("SortsTheBatch", lambda s, x: torch.sort(x, 0)[0], "TopK"),
                         ("MeanOverTheBatch", lambda s, x: x - x.mean(0), "ReduceMean")]:
    of((6,), refused=[_op, "is over the batch", "dim=1"])(type(_name, (OfBatch,), {"mid": _mid}))


@of((6,), refused=["parameter p", "two places"])
class WeightsOverlap(Between):
    def build(self):
        self.p = nn.Parameter(torch.randn(8, 8))

    def mid(self, x):
        return F.linear(torch.tanh(F.linear(x, self.p[:5, :5])), self.p[3:, 3:])


@of((6,))
class WeightNorm(Between):
    def build(self):
        self.c = nn.utils.weight_norm(nn.Linear(5, 5))

    def mid(self, x):
        return self.c(x)


@of((3, 8, 8))
class WeightNormOfConv(Base):
    def build(self):
        self.c, self.fc = nn.utils.weight_norm(nn.Conv2d(3, 4, 3)), nn.Linear(4, 5)

    def forward(self, x):
        return self.fc(self.c(x).mean([2, 3]))


@of((3, 8, 8))
class PrunedConv(Base):
    def build(self):
        self.w, self.fc = nn.Parameter(torch.randn(4, 3, 3, 3)), nn.Linear(4, 5)
        self.register_buffer("mask", (torch.rand(4, 3, 3, 3) > 0.5).float())

    def forward(self, x):
        return self.fc(F.conv2d(x, self.w * self.mask).mean([2, 3]))


@of((4, 8, 8))
class PrunedGroups(Base):
    def build(self):
        self.w, self.fc = nn.Parameter(torch.randn(4, 2, 3, 3)), nn.Linear(4, 5)
        self.register_buffer("mask", (torch.rand(4, 2, 3, 3) > 0.5).float())

    def forward(self, x):
        return self.fc(F.conv2d(x, self.w * self.mask, groups=2).mean([2, 3]))


@of((3, 8, 8), refused=["c.weight_v", "remove_weight_norm"])
class WeightNormTransposed(Base):
    def build(self):
        self.c, self.fc = nn.utils.weight_norm(nn.ConvTranspose2d(3, 4, 3)), nn.Linear(4, 5)

    def forward(self, x):
        return self.fc(self.c(x).mean([2, 3]))


@of((8,), 12, refused=["module r: ", "starts from the parameter h", "without an initial state"])
class LearnedStart(Base):
    """Zeros at first, but trained."""

    def build(self):
        self.e, self.r, self.h = nn.Embedding(12, 6), nn.GRU(6, 7, batch_first=True), nn.Parameter(torch.zeros(1, 1, 7))
        self.fc = nn.Linear(7, 5)

    def forward(self, x):
        return self.fc(self.r(self.e(x), self.h.expand(1, x.size(0), 7).contiguous())[0])


# ---- rows of positions ----

@of((3, 12))
class Tcn(Base):
    def build(self):
        self.c1, self.b1 = nn.Conv1d(3, 6, 3, padding=1), nn.BatchNorm1d(6)
        self.c2, self.g = nn.Conv1d(6, 6, 3, dilation=2, padding=2, groups=3, bias=False), nn.GroupNorm(2, 6)
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        x = F.max_pool1d(F.silu(self.b1(self.c1(x))), 2)
        return self.fc(torch.tanh(self.g(self.c2(x))).mean(-1))


@of((3, 12))
class Up(Base):
    def build(self):
        self.c, self.i, self.j = nn.ConvTranspose1d(3, 4, 4, 2, 1, output_padding=1), nn.InstanceNorm1d(4, affine=True), nn.InstanceNorm1d(4)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        x = self.j(F.avg_pool1d(self.i(self.c(x)), 3, 2))
        return self.fc(torch.flatten(F.adaptive_avg_pool1d(x, 1) + F.adaptive_max_pool1d(x, 1), 1))


@of((12,), 9)
class TextCnn(Base):
    def build(self):
        self.e, self.c, self.fc = nn.Embedding(9, 6), nn.ModuleList([nn.Conv1d(6, 4, k) for k in (2, 3, 4)]), nn.Linear(12, 5)

    def forward(self, x):
        x = self.e(x).transpose(1, 2)
        return self.fc(torch.cat([torch.tanh(c(x)).amax(-1) for c in self.c], 1))


@of((12, 3))
class LstmOfFeatures(Base):
    def build(self):
        self.r, self.fc = nn.LSTM(3, 7, batch_first=True), nn.Linear(7, 5)

    def forward(self, x):
        return self.fc(self.r(x)[0][:, -1])


@of((12, 3))
class LastStates(Base):
    def build(self):
        self.r, self.fc = nn.GRU(3, 7, 2, batch_first=True), nn.Linear(14, 5)

    def forward(self, x):
        h = self.r(x)[1]
        return self.fc(torch.cat([h[0], h[1]], 1))


@of((12, 3))
class BothDirections(Base):
    def build(self):
        self.r, self.fc = nn.LSTM(3, 7, batch_first=True, bidirectional=True), nn.Linear(14, 5)

    def forward(self, x):
        return self.fc(self.r(x)[0][:, 0])


@of((12, 3))
class LastStatesOfBoth(Base):
    def build(self):
        self.r, self.fc = nn.GRU(3, 7, batch_first=True, bidirectional=True), nn.Linear(14, 5)

    def forward(self, x):
        h = self.r(x)[1]
        return self.fc(torch.cat([h[0], h[1]], 1))


@of((12, 3))
class LastCell(Base):
    def build(self):
        self.r, self.fc = nn.LSTM(3, 7, batch_first=True), nn.Linear(7, 5)

    def forward(self, x):
        return self.fc(self.r(x)[1][1][-1])


@of((5, 3))
class AllStates(Base):
    """Outputs, hidden states and cell states of two layers and both directions."""

    def build(self):
        self.r, self.fc = nn.LSTM(3, 6, 2, batch_first=True, bidirectional=True), nn.Linear(60, 5)

    def forward(self, x):
        y, (h, c) = self.r(x)
        return self.fc(torch.cat([y.mean(1), h.transpose(0, 1).flatten(1), c.transpose(0, 1).flatten(1)], 1))


@of((1, 3))
class OnePosition(LastCell):
    """Backward, for ONNX."""

    def forward(self, x):
        return self.fc(self.r(x.flip(1))[1][1][0])


@of((12, 3))
class PlainRnn(Base):
    def build(self):
        self.r, self.fc = nn.RNN(3, 7, batch_first=True), nn.Linear(7, 5)

    def forward(self, x):
        return self.fc(self.r(x)[0])


# ---- others ----

@of((2, 8, 8))
class Prelu(Base):
    def build(self):
        self.c, self.p, self.q, self.fc = nn.Conv2d(2, 4, 3), nn.PReLU(4), nn.PReLU(), nn.Linear(4, 5)

    def forward(self, x):
        return self.fc(self.q(self.p(self.c(x)) - 0.2).mean([2, 3]))


@of((6, 4))
class SoftmaxOfPositions(Base):
    def build(self):
        self.a, self.fc = nn.Linear(4, 4), nn.Linear(4, 5)

    def forward(self, x):
        return self.fc((F.softmax(self.a(x), 1) * x).mean(1))


@of((6,))
class LogSoftmaxLast(Base):
    def build(self):
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        return F.log_softmax(self.fc(x), -1)


@of((6,))
class LogSoftmaxInside(Base):
    """Over the last dimension, and over one between; far from 0, where the logarithm of a softmax is infinite."""

    def build(self):
        self.fc, self.out = nn.Linear(6, 12), nn.Linear(24, 4)

    def forward(self, x):
        h = self.fc(x)
        far = F.log_softmax(h.view(-1, 3, 4) * torch.tensor([1.0, 1.0, 1.0, 400.0]), 1)
        return self.out(torch.cat([F.log_softmax(h, -1), far.flatten(1) * 0.01], 1))


@of((5, 6))
class BiasOfATable(Base):
    """Swin v2: numbers for each place, computed by layers from a constant table."""

    def build(self):
        self.register_buffer("table", torch.randn(1, 5, 2))
        self.up, self.down, self.a, self.fc = nn.Linear(2, 7), nn.Linear(7, 6, bias=False), nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(torch.tanh(self.a(x) + torch.sigmoid(self.down(torch.relu(self.up(self.table))))).mean(1))


@of((6,))
class WrittenInto(Base):
    """A part of a parameter, and a part of a sample, that constants are written into."""

    def build(self):
        self.w, self.b, self.fc = nn.Parameter(torch.randn(9, 6) * 0.3), nn.Parameter(torch.randn(9)), nn.Linear(9, 4)

    def forward(self, x):
        b, h = self.b.clone(), x.clone()
        b[3:6] = 0
        h[:, 1:3] = 0.5
        return self.fc(torch.tanh(F.linear(h, self.w, b)))


@of((8,), 12)
class SumAndMean(Base):
    def build(self):
        self.e, self.fc = nn.Embedding(12, 6), nn.Linear(6, 5)

    def forward(self, x):
        h = self.e(x)
        return self.fc(h.sum(1) * 0.1 + h.mean(1))


@of((8,), 12, refused=["module e: ", "nn.EmbeddingBag", "nn.Embedding"])
class Bag(Base):
    def build(self):
        self.e, self.fc = nn.EmbeddingBag(12, 6, mode="mean"), nn.Linear(6, 5)

    def forward(self, x):
        return self.fc(self.e(x))


@of((4, 6))
class UnitLength(Base):
    """Of features, and of a dimension between."""

    def build(self):
        self.a, self.fc = nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x):
        return self.fc((F.normalize(self.a(x), dim=-1) + F.normalize(x, dim=1)).mean(1))


class Volume(Base):
    def build(self):
        self.c, self.up, self.d, self.fc = nn.Conv3d(1, 2, 3, padding=1), nn.ConvTranspose3d(2, 2, 2, 2), nn.Conv3d(2, 3, 3), nn.Linear(3, 4)

    def forward(self, x):
        return self.fc(torch.tanh(self.d(self.larger(torch.tanh(self.c(x))))).mean([2, 3, 4]))


@of((1, 3, 4, 2))
class TransposedVolume(Volume):
    def larger(self, x):
        return self.up(x)


@of((1, 3, 4, 2))
class BlockVolume(Volume):
    def build(self):
        super().build()
        self.up = nn.ConvTranspose3d(2, 2, (1, 3, 2), (1, 3, 2), bias=False)

    def larger(self, x):
        return self.up(x)


@of((1, 4, 4, 4))
class OverlappingVolume(Volume):
    def build(self):
        super().build()
        self.up = nn.ConvTranspose3d(2, 2, 3, 2)

    def larger(self, x):
        return self.up(x)


@of((4, 3, 4, 5))
class GroupsOfVolumes(Base):
    """Strides, padding, dilation and output_padding that differ, more padding than the kernel reaches, and groups of both kinds."""

    def build(self):
        self.c = nn.Conv3d(4, 6, (2, 3, 3), (1, 2, 1), (0, 1, 1), groups=2)
        self.up = nn.ConvTranspose3d(6, 4, (1, 3, 2), (2, 1, 3), (0, 1, 1), (1, 0, 2), groups=2, dilation=(1, 2, 1))
        self.cut, self.fc = nn.ConvTranspose3d(4, 2, 1, 2, 1), nn.Linear(2, 5)

    def forward(self, x):
        return self.fc(torch.tanh(self.cut(torch.tanh(self.up(torch.tanh(self.c(x)))))).mean([2, 3, 4]))


@of((4, 2, 4, 4))
class NormsOfVolumes(Base):
    def build(self):
        self.c, self.i, self.g, self.fc = nn.Conv3d(4, 6, 1), nn.InstanceNorm3d(6, affine=True), nn.GroupNorm(3, 6), nn.Linear(6, 5)

    def forward(self, x):
        return self.fc(torch.tanh(self.g(torch.relu(self.i(self.c(x))))).amax([2, 3, 4]))


class Interpolated(Volume):
    def build(self):
        super().build()
        del self.up

    def larger(self, x):
        return F.interpolate(x, **self.how)


@of((1, 3, 4, 5))
class Trilinear(Interpolated):
    how = dict(scale_factor=2.0, mode="trilinear")


@of((1, 3, 4, 5))
class TrilinearCorners(Interpolated):
    how = dict(size=(5, 4, 8), mode="trilinear", align_corners=True)


@of((1, 3, 4, 5))
class TrilinearFactors(Interpolated):
    how = dict(scale_factor=(1.5, 2, 1.7), mode="trilinear")


@of((1, 3, 4, 5))
class NearestVolume(Interpolated):
    how = dict(scale_factor=(2, 1, 1.5), mode="nearest")


@of((1, 4, 6, 4))
class VolumeUNet(Base):
    """Volumes are joined."""

    def build(self):
        self.down, self.mid, self.up, self.out = nn.Conv3d(1, 2, 3, padding=1), nn.Conv3d(2, 3, 3, padding=1), nn.ConvTranspose3d(3, 2, 2, 2), nn.Conv3d(4, 5, 1)

    def forward(self, x):
        a = torch.tanh(self.down(x))
        b = torch.tanh(self.mid(F.max_pool3d(a, 2)))
        return self.out(torch.cat([a, self.up(b)], 1)).mean([2, 3, 4])


@of((1, 4, 4, 4))
class RepeatedVolume(Volume):
    def build(self):
        super().build()
        del self.up

    def larger(self, x):
        n, c, d, h, w = x.shape
        x = x[:, :, :, None, :, None, :, None].expand(n, c, d, 2, h, 2, w, 2)
        return x.reshape(n, c, 2 * d, 2 * h, 2 * w)


@of((4, 6))
class LengthOfZeros(Base):
    """Rows of zeros, as padded windows have them: 1e-12 is not 0, neither in this file nor in the one that mfl writes."""

    def build(self):
        self.a, self.fc = nn.Linear(6, 6, bias=False), nn.Linear(6, 5)

    def forward(self, x):
        x = x * torch.tensor([[[1.0], [0.0], [1.0], [0.0]]])
        h = self.a(x)
        return self.fc((F.normalize(h, dim=-1) + torch.log(torch.relu(x) + 1e-12) * 0.01).mean(1))


@of((2, 4, 4))
class NormOfImage(Base):
    def build(self):
        self.c, self.n, self.fc = nn.Conv2d(2, 3, 3, padding=1), nn.LayerNorm([3, 4, 4]), nn.Linear(3, 5)

    def forward(self, x):
        return self.fc(torch.tanh(self.n(self.c(x))).mean([2, 3]))


@of((5, 6))
class EinsumDense(Base):
    def build(self):
        self.w, self.v, self.fc = nn.Parameter(torch.randn(6, 4) * 0.3), nn.Parameter(torch.randn(3, 2, 4) * 0.3), nn.Linear(6, 5)

    def forward(self, x):
        x = torch.einsum("btd,de->bte", x, self.w)
        return self.fc(torch.einsum("btd,ehd->bteh", x, self.v).flatten(2))


@of((5, 6))
class EinsumAttention(Base):
    back = "is part of an attention"  # as the file that mfl writes
    def build(self):
        self.q, self.k, self.fc = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x):
        q, k, v = self.q(x).view(-1, 5, 2, 3), self.k(x).view(-1, 5, 2, 3), x.view(-1, 5, 2, 3)
        a = (torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(3)).softmax(-1)
        return self.fc(torch.einsum("bhqk,bkhd->bqhd", a, v).reshape(-1, 5, 6))


# ---- products of matrices, as many on either side or not ----

@of((5, 8))
class MultiQuery(Base):
    """Heads share their keys and values without a copy."""

    def build(self):
        self.q, self.kv, self.fc = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        q, (k, v) = self.q(x).view(-1, 5, 2, 4).transpose(1, 2), self.kv(x).unsqueeze(1).chunk(2, -1)
        return self.fc(((q @ k.transpose(2, 3) * 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2).mean(1))


@of((5, 8))
class HeadsAgainstHeads(Base):
    """{2, 1} matrices by {1, 2}: as many of them, but not side by side."""

    def build(self):
        self.a, self.fc = nn.Linear(8, 8), nn.Linear(25, 4)

    def forward(self, x):
        y = torch.tanh(self.a(x)).view(-1, 5, 2, 4).transpose(1, 2)
        return self.fc((y.unsqueeze(2) @ y.unsqueeze(1).transpose(3, 4)).flatten(1, 2).square().mean(1).flatten(1))


@of((5, 8))
class ByItself(Base):
    def build(self):
        self.a, self.fc = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        y = self.a(x)
        return self.fc(((y @ y.transpose(1, 2) / math.sqrt(8)).softmax(-1) @ y + torch.einsum("btd,bsd->bts", y, y) @ x * 0.1).mean(1))


@of((6, 4))
class WeightsOnTheLeft(Base):
    def build(self):
        self.a, self.b, self.fc = nn.Parameter(torch.randn(5, 6) * 0.3), nn.Parameter(torch.randn(4, 3) * 0.3), nn.Linear(15, 4)

    def forward(self, x):
        return self.fc(torch.tanh(self.a @ x @ self.b).flatten(1))


@of((6,))
class EinsumOfThree(Base):
    """A mixture of experts."""

    def build(self):
        self.w, self.g, self.fc = nn.Parameter(torch.randn(3, 6, 5) * 0.3), nn.Linear(6, 3), nn.Linear(5, 4)

    def forward(self, x):
        return self.fc(torch.einsum("bi,eio,be->bo", x, self.w, self.g(x).softmax(-1)))


@of((5, 6))
class Triangles(Base):
    def build(self):
        self.w, self.fc = nn.Parameter(torch.randn(6, 6) * 0.3), nn.Linear(6, 4)

    def forward(self, x):
        y = x @ self.w.triu(1)
        return self.fc((torch.tril(y @ x.transpose(1, 2), -1) @ x).mean(1))


@of((5, 6))
class ShiftedTokens(Base):
    """As RWKV's: nn.ZeroPad2d((0, 0, 1, -1))."""

    def build(self):
        self.a, self.fc = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(torch.tanh(self.a(x) - F.pad(x, (1, -2, 1, -1))[..., :1]).mean(1))


@of((5, 6))
class NormOfRows(Base):
    """Positions are rows of the batch, as in PointNet."""

    def build(self):
        self.a, self.n, self.fc = nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Linear(7, 4)

    def forward(self, x):
        return self.fc(torch.relu(self.n(self.a(x).view(-1, 7))).view(-1, 5, 7).mean(1))


# ---- combinations ----

@of((3, 6, 6))
class OneNormTwice(Base):
    """Without a scale and a shift, whose constants are no shared tensors."""

    def build(self):
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1)
        self.n, self.fc = nn.BatchNorm2d(4, affine=False), nn.Linear(4, 5)

    def forward(self, x):
        return self.fc(torch.tanh(self.n(self.b(torch.tanh(self.n(self.a(x)))))).mean([2, 3]))


@of((7, 8))
class OtherKeys(Base):
    """The three biases are slices of one tensor of zeros."""

    def build(self):
        self.a, self.fc = nn.MultiheadAttention(8, 2, kdim=6, vdim=5, batch_first=True), nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(self.a(x[:, :3], x[:, 3:, :6], x[:, 3:, :5], need_weights=False)[0])


@of((6,))
class ZeroSlices(Between):
    """Two parts of a parameter that begins at 0."""

    def build(self):
        self.p = nn.Parameter(torch.zeros(2, 5))

    def mid(self, x):
        return torch.tanh(x + self.p[0]) * 0.5 - torch.tanh(x - self.p[1])


@of((3, 4))
class MatrixForEach(Base):
    def build(self):
        self.w, self.fc = nn.Parameter(torch.randn(3, 4, 5) * 0.4), nn.Linear(15, 5)

    def forward(self, x):
        return self.fc(torch.bmm(x.transpose(0, 1), self.w).transpose(0, 1).flatten(1))


@of((5, 6))
class Spread(Base):
    def build(self):
        self.a, self.fc = nn.Linear(6, 6), nn.Linear(24, 5)

    def forward(self, x):
        y = self.a(x)
        return self.fc(torch.cat([y.std(1), y.var(1, unbiased=False), (y - y.mean(-1, keepdim=True)).abs().sum(1), y.amin(1)], 1))


@of((6,))
class Extremes(Between):
    def build(self):
        self.c = nn.Linear(6, 5)

    def forward(self, x):
        a, c = self.a(x), self.c(x)
        return self.b(torch.maximum(a, c) * torch.minimum(a, torch.tanh(c)) / torch.clamp(a.norm(p=1, dim=1, keepdim=True), min=0.5))


class ComputedKernel(Base):
    def forward(self, x):
        return self.fc(torch.tanh(self.conv(x)).mean([2, 3]))


@of((3, 7, 6))
class MaskedConv(ComputedKernel):
    def build(self):
        self.c, self.fc = nn.Conv2d(3, 4, (3, 2)), nn.Linear(4, 5)
        self.register_buffer("mask", (torch.rand(4, 3, 3, 2) > 0.5).float())

    def conv(self, x):
        return F.conv2d(x, self.c.weight * self.mask, self.c.bias, stride=(2, 1), padding=(1, 2), dilation=(1, 2))


@of((3, 7, 6))
class StandardisedConv(ComputedKernel):
    def build(self):
        self.w, self.fc = nn.Parameter(torch.randn(4, 3, 3, 3) * 0.3), nn.Linear(4, 5)

    def conv(self, x):
        dims = (1, 2, 3)
        return F.conv2d(x, (self.w - self.w.mean(dims, keepdim=True)) / (self.w.std(dims, keepdim=True) + 1e-3))


@of((6,))
class Factorised(Base):
    def build(self):
        self.v, self.fc = nn.Parameter(torch.randn(6, 3) * 0.3), nn.Linear(6, 5)

    def forward(self, x):
        return self.fc(x) + ((x @ self.v) ** 2 - (x ** 2) @ (self.v ** 2)).sum(1, keepdim=True)


# ---- steps, conditions, order ----

@of((6,))
class Steps(Between):
    def build(self):
        pass

    def mid(self, x):
        x = 3 * x
        return torch.sign(x) * torch.sqrt(x.abs() + 0.1) + torch.round(2 * x) * x - torch.floor(x) + torch.ceil(x) * 0.5


@of((6,))
class StepsOfParameters(WithP):
    """The step changes while the parameter is trained."""
    scale = 1.0

    def mid(self, x):
        return x * torch.sign(self.p) + self.p * torch.round(3 * self.q) + torch.where(self.q > 0.1, self.q, 0.0)


@of((6,))
class LearnedSlopes(WithP):
    def mid(self, x):
        return torch.where(x > 0.1, x * self.p, torch.where(x <= -0.2, self.q, x)) + torch.where(x.abs() < 0.3, x * x, 2 * x.abs() - 0.5)


@of((6,))
class Conditions(WithP):
    """Of different values, joined, as numbers; chosen constants."""

    def mid(self, x):
        y = x.flip(1)
        both, one = (x > y) & (x > self.p), (x >= 0.1) | ~(y < self.q)
        inside = (x > -0.3) & (x < 0.4)
        return x * both + torch.where(one, y, -1.5) + (1 - inside.float()) * x * y + torch.where(x < y, 2.0, self.q)


@of((5, 6))
class Products(Base):
    """Over an odd and an even number of numbers, of any sign."""

    def build(self):
        self.a, self.fc = nn.Linear(6, 4), nn.Linear(9, 5)

    def forward(self, x):
        y = self.a(x)
        return self.fc(torch.cat([y.prod(1), (1 - torch.sigmoid(y)).prod(2)], 1))


@of((3, 6, 6))
class LearnedPower(Base):
    """GeM pooling."""

    def build(self):
        self.c, self.p, self.q, self.fc = nn.Conv2d(3, 4, 3), nn.Parameter(torch.tensor([3.0])), nn.Parameter(torch.rand(4) + 1), nn.Linear(4, 5)

    def forward(self, x):
        y = torch.relu(self.c(x)).pow(self.p + 1).mean([2, 3]) + 0.1
        return self.fc(y.pow(1 / self.p) + y.tanh() ** self.q)


@of((8,), 9)
class OneHotTokens(Base):
    def build(self):
        self.a, self.b, self.fc = nn.Linear(9, 6), nn.Embedding(9, 6), nn.Linear(6, 5)

    def forward(self, x):
        return self.fc(torch.tanh(self.a(F.one_hot(x, 9).float()) + self.b(x)))


@of((3, 7))
class Ordered(Base):
    """A sort, the largest and the smallest ones, and the median, along both dimensions."""

    def build(self):
        self.c, self.fc = nn.Conv1d(3, 4, 1), nn.Linear(28 + 12 + 14 + 4, 5)

    def forward(self, x):
        y = self.c(x)
        parts = y.sort(2)[0], y.topk(3, 2)[0], y.topk(2, 1, largest=False)[0], y.sort(2, descending=True)[0][:, :, 3]
        return self.fc(torch.cat([p.flatten(1) for p in parts], 1))


@of((6,))
class Vectors(WithP):
    """Products with a vector, and with the outer product of two."""

    def mid(self, x):
        return x * (x @ self.p).unsqueeze(-1) + x @ torch.outer(self.q, self.p)


@of((4, 6))
class WeightsOfBoth(Base):
    """A dense layer of samples and of a parameter."""

    def build(self):
        self.s, self.a, self.fc = nn.Parameter(torch.randn(1, 3, 6)), nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x):
        w = torch.softmax(self.a(self.s) @ self.a(x).transpose(1, 2), -1)
        return self.fc((w @ x).mean(1))


@of((6,))
class Angles(WithP):
    """Trigonometry of values and of a parameter, and what is left after divisions."""

    def mid(self, x):
        y = torch.tanh(x) * 0.9
        angles = torch.atan(2 * x) + torch.asin(y) * torch.acos(y) + torch.tan(y) * torch.atan(self.p)
        return torch.tanh(angles + torch.fmod(3 * x, 0.7) - torch.fmod(x, -0.3) + torch.remainder(x, 0.41))


@of((6,))
class PlacedParameters(WithP):
    """A parameter, and one number, where a constant mask is."""

    def build(self):
        super().build()
        self.s = nn.Parameter(torch.tensor(0.4))
        self.register_buffer("mask", torch.tensor([True, False, True, True, False]))

    def mid(self, x):
        return torch.where(self.mask, x, self.p) * torch.where(self.mask, self.s, x)


# Functions between two dense layers that mfl does not have, and what it says instead.
FUNCTIONS = {
    "Powers": (lambda x: x ** torch.arange(1.0, 7), "torch.stack"),
    "Sampled": (lambda x: F.grid_sample(x.view(-1, 1, 2, 3), x.view(-1, 1, 3, 2), align_corners=True).flatten(1).repeat(1, 2), "nn.Upsample"),
}


def six(self):
    nn.Module.__init__(self)
    self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 4)


for _name, (_fn, _says) in FUNCTIONS.items():
    of((6,), refused=["node ", _says])(type(_name, (nn.Module,), {"fn": staticmethod(_fn), "__init__": six,
                                                                    "forward": lambda self, x: self.b(self.fn(self.a(x)))}))


def exported(tmp_path, kind):
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = kind().train()
    x, y = batches(model)
    export(model, torch.tensor(x[:1]), tmp_path / "m.onnx", 17, True)
    return model, x, y


@pytest.mark.parametrize("name", MODELS)
def test_trains_like_pytorch(tmp_path, name):
    model, x, y = exported(tmp_path, MODELS[name])
    x.astype(np.float32).tofile(tmp_path / "x.f32")
    y.astype(np.int32).tofile(tmp_path / "y.i32")
    # The file that mfl writes may be read as other layers (two factors become one), but computes the same.
    code, out, err = run(tmp_path / "m.onnx", tmp_path / "x.f32", tmp_path / "y.i32", BATCH, STEPS, rate(model), tmp_path, "reference", "outputs")
    assert code == 0 or getattr(model, "back", err) in err, err
    want, got = train(model, x, y), np.fromfile(tmp_path / "losses.f64")
    assert np.max(np.abs(got - want) / np.abs(want)) < TOLERANCE


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_by_name(tmp_path, name):
    exported(tmp_path, REFUSED[name])
    code, _, err = run(tmp_path / "m.onnx")
    assert code == 1
    for part in REFUSED[name].refused:
        assert part in err, err


@pytest.mark.parametrize("name,says", [("PrunedDense", "taken for parameters: w, bias; taken for constants: mask"),
                                       ("OnePlus", "taken for parameters: p")])
def test_what_the_file_does_not_say_is_told(tmp_path, name, says):
    exported(tmp_path, MODELS[name])
    code, out, err = run(tmp_path / "m.onnx")
    assert code == 0, err
    assert f"the file does not say which tensors are parameters; {says}; mfl_export.save writes it\n" in out


@pytest.mark.skipif(not NEW, reason="the other exporter needs a current PyTorch")
@pytest.mark.parametrize("name", ["OnePlus", "EqualizedDense", "PrunedConv", "WeightNorm"])
def test_what_the_exporter_computed_is_refused(tmp_path, name):
    model = {**MODELS, **REFUSED}[name]()
    torch.onnx.export(model, (torch.zeros(2, *model.shape),), str(tmp_path / "m.onnx"), dynamo=True, external_data=False)
    code, _, err = run(tmp_path / "m.onnx")
    assert code == 1 and "the exporter computed" in err and "mfl_export.save" in err, err


class Grouped(nn.Module):
    """A scale and a shift that an export for inference reshapes."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(torch.tanh(self.norm(self.conv(x))).amax((2, 3)))


class Fresh(nn.Module):
    """Biases that are zeros: one exporter makes them one, the other leaves them out."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        for layer in (self.a, self.b, self.c):
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


class Normed(nn.Module):
    """A batch norm that the current exporter merges into the layer before it."""

    def __init__(self, affine=True, layer=lambda: nn.Linear(6, 5), norm=nn.BatchNorm1d):
        super().__init__()
        self.a, self.norm, self.fc = layer(), norm(5, affine=affine), nn.LazyLinear(4)

    def forward(self, x):
        return self.fc(torch.tanh(self.norm(self.a(x))).flatten(1))


class Sliced(nn.Module):
    """Positions of which a part is read: of a parameter, or of a buffer."""

    def __init__(self, kind):
        super().__init__()
        self.e, self.at, self.fc = nn.Embedding(9, 6), kind(torch.randn(1, 8, 6)), nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(torch.tanh(self.e(x) + self.at[:, :x.shape[1]]))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.fc = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(torch.tanh(F.linear(x, self.a.weight * 0.3, self.a.bias)))


class Tempered(nn.Module):
    """A learned temperature, which the current exporter makes a number."""

    def __init__(self):
        super().__init__()
        self.a, self.fc, self.t = nn.Linear(6, 6), nn.Linear(6, 4), nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return self.fc(torch.tanh((x @ self.a(x).transpose(1, 2) * self.t.exp()).softmax(2) @ x).mean(1))


class Interpolated(nn.Module):
    """A parameter as an end of torch.lerp, whose own numbers the current exporter computes; or as its weight."""

    def __init__(self, by_weight=False):
        super().__init__()
        self.a, self.fc, self.p, self.by_weight = nn.Linear(6, 6), nn.Linear(6, 4), nn.Parameter(torch.randn(6)), by_weight

    def forward(self, x):
        y = torch.tanh(self.a(x))
        return self.fc(torch.lerp(y, x, self.p) if self.by_weight else torch.lerp(y, self.p, 0.7))


class Called(nn.Module):
    """A module with a name that says something else, whose first bias is zeros."""

    def __init__(self, name):
        super().__init__()
        self.name = name
        self.add_module(name, nn.Linear(6, 5))
        self.fc = nn.Linear(5, 4)
        nn.init.zeros_(getattr(self, name).bias)

    def forward(self, x):
        return self.fc(torch.tanh(getattr(self, self.name)(x)))


# Exports for inference, and what mfl says of them: by PyTorch's first exporter, and by the current one.
TEXT = torch.arange(10).reshape(2, 5) % 9
class Pruned(nn.Module):
    """A Linear without a bias, whose weight is a parameter times a mask, or a weight norm's."""

    def __init__(self, normed):
        super().__init__()
        self.w, self.b, self.normed = nn.Parameter(torch.randn(5, 6)), nn.Linear(5, 4), normed
        self.register_buffer("mask", (torch.arange(30).reshape(5, 6) % 3 > 0).float())

    def forward(self, x):
        return self.b(torch.tanh(F.linear(x, F.normalize(self.w, dim=1) if self.normed else self.w * self.mask)))


CHANGED = {
    "group-norm": (Grouped, torch.zeros(2, 3, 8, 8), "the exporter computed onnx::", None),
    "scaled": (Scaled, torch.zeros(2, 6), "reads onnx::Gemm_", "the exporter computed mul from"),
    "masked": (lambda: Pruned(False), torch.zeros(2, 6), "reads onnx::MatMul_", "the exporter computed mul from"),
    "normed": (lambda: Pruned(True), torch.zeros(2, 6), "reads onnx::", "the exporter computed"),
    "positions": (lambda: Sliced(nn.Parameter), TEXT, "reads onnx::Add_", "the exporter took a part of the parameter at"),
    "buffer": (lambda: Sliced(nn.Buffer if hasattr(nn, "Buffer") else nn.Parameter), TEXT, "reads onnx::Add_", None),
    "temperature": (Tempered, torch.ones(2, 5, 6), "reads onnx::MatMul_", "reads exp, which an export for inference computed"),
    "numbers": (Interpolated, torch.zeros(2, 6), None, None),
    "lerp": (lambda: Interpolated(True), torch.zeros(2, 6), "which an export for inference computed", "the exporter computed weight"),
    "slopes": (lambda: nn.Sequential(nn.Linear(6, 5), nn.PReLU(5), nn.Linear(5, 4)), torch.zeros(2, 6), None, None),
    "zero-biases": (Fresh, torch.zeros(2, 6), None, "has lost a parameter that is zeros"),
    "zero-bias-of-rnn": (lambda: Called("rnn_out"), torch.zeros(2, 6), None, "has lost a parameter that is zeros"),
    "called-norm": (lambda: Called("patch_norm"), torch.zeros(2, 6), None, "has lost a parameter that is zeros"),
    "linear-norm": (Normed, torch.zeros(2, 6), None, "batch norm was folded into it"),
    "linear-norm-without-scale": (lambda: Normed(False), torch.zeros(2, 6), None, "batch norm was folded into it"),
    "transposed-norm": (lambda: Normed(True, lambda: nn.ConvTranspose2d(3, 5, 2), nn.BatchNorm2d), torch.zeros(2, 3, 4, 4), None,
                        "batch norm was folded into it"),
    "conv-norm": (lambda: Normed(True, lambda: nn.Conv2d(3, 5, 2), nn.BatchNorm2d), torch.zeros(2, 3, 4, 4), "batch norm was folded into its weights",
                  "batch norm was folded into it"),
}


@pytest.mark.parametrize("exporter", ["first", "current"])
@pytest.mark.parametrize("name", CHANGED)
def test_an_export_for_inference(tmp_path, name, exporter):
    made, example, *says = CHANGED[name]
    torch.manual_seed(3)
    net = made().eval()
    net(example)
    if exporter == "current":
        if not NEW:
            pytest.skip("the other exporter needs a current PyTorch")
        torch.onnx.export(net, (example,), str(tmp_path / "m.onnx"), dynamo=True, external_data=False)
    else:
        export(net, example[:1], tmp_path / "m.onnx", 17, False, training=torch.onnx.TrainingMode.EVAL, do_constant_folding=True)
    code, out, err = run(tmp_path / "m.onnx")
    text = says[exporter == "current"]
    assert (code == 1 and text in err and "mfl_export.save" in err) if text else code == 0, err
    if name == "slopes":
        assert "frozen" not in out, out
    if name == "zero-biases" and exporter == "first":
        assert out.count("dense: {name:") == 3 and "shares" not in out, out


class Twins(nn.Module):
    """A parameter with the name of an argument, and of its shape."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Parameter(torch.randn(1, 4))

    def forward(self, x, b):
        return self.a(x) + b * self.b


@pytest.mark.skipif(not NEW, reason="the other exporter needs a current PyTorch")
@pytest.mark.parametrize("optimize", [True, False])
def test_an_argument_with_the_name_of_a_parameter(tmp_path, optimize):
    """What PyTorch writes has one of both, unless its optimiser renames the argument."""
    torch.onnx.export(Twins(), (torch.zeros(1, 6), torch.zeros(1, 4)), str(tmp_path / "m.onnx"), dynamo=True, external_data=False, optimize=optimize)
    code, out, err = run(tmp_path / "m.onnx")
    if code:
        assert "an input and a parameter both have the name b: give the argument of forward() another name" in err
    else:
        assert "row of 10 numbers" in out, out


class Halves(nn.Module):
    """As many heads, rows or positions as the file's fixed batch has samples."""
    shape, tokens = (6, 8), 0

    def __init__(self, way):
        super().__init__()
        self.a, self.b, self.c, self.way = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4), way

    def forward(self, x):
        n, x = x.shape[0], torch.tanh(self.a(x))
        if self.way == "heads":
            q = x.view(n, 6, 2, -1).transpose(1, 2)
            x = (q @ q.transpose(2, 3)).softmax(3) @ q
            x = x.transpose(1, 2).reshape(n, 6, -1)
        elif self.way == "rows":
            x = self.b(x.view(n * 6, -1)).view(n, -1, 8)
        elif self.way == "unit":
            x = x / x.norm(dim=2, keepdim=True).clamp(min=1e-9).expand(n, 6, 8)
        elif self.way == "first":
            x = x.transpose(0, 1).reshape(6, n, 2, -1).transpose(2, 3).flatten(2).transpose(0, 1)
        elif self.way == "square":
            x = x.transpose(0, 1).reshape(6, n, 2, 4).permute(1, 2, 0, 3).reshape(n, 6, 8)
        return self.c(torch.tanh(x).mean(1))


class Recurrent(nn.Module):
    """Behind a recurrent layer the batch is not the first dimension. As many positions, or states, as samples in the file."""
    shape, tokens = (3, 4), 0

    def __init__(self, kind, way, **options):
        super().__init__()
        self.rnn, self.way = kind(4, 3, batch_first=way != "time", **options), way
        self.norm, self.fc = nn.LayerNorm(3), nn.Linear(3, 4)

    def forward(self, x):
        y, h = self.rnn(x.transpose(0, 1) if self.way == "time" else x)
        h = h[0] if isinstance(h, tuple) else h
        both = y[..., :3] + y[..., -3:]
        y = {"all": lambda: both.mean(1), "time": lambda: both.mean(0),
             "states": lambda: h.transpose(0, 1).tanh().sum(1), "joined": lambda: h.permute(1, 2, 0).tanh().amax(2)}[self.way]()
        return self.fc(self.norm(y))


@pytest.mark.parametrize("exporter", ["first", "current"])
@pytest.mark.parametrize("way", ["all", "time", "states", "joined"])
@pytest.mark.parametrize("kind,options", [(nn.LSTM, {}), (nn.GRU, {"bidirectional": True, "num_layers": 2}), (nn.LSTM, {"num_layers": 3})])
def test_a_fixed_batch_of_recurrent_layers(tmp_path, kind, options, way, exporter):
    if exporter == "current" and not NEW:
        pytest.skip("the other exporter needs a current PyTorch")
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = Recurrent(kind, way, **options).train()
    x, y = batches(model)
    if exporter == "current":
        torch.onnx.export(model, (torch.tensor(x[:3]),), str(tmp_path / "m.onnx"), dynamo=True, external_data=False)
    else:
        export(model, torch.tensor(x[:3]), tmp_path / "m.onnx", 17, False)
    x.astype(np.float32).tofile(tmp_path / "x.f32")
    y.astype(np.int32).tofile(tmp_path / "y.i32")
    code, _, err = run(tmp_path / "m.onnx", tmp_path / "x.f32", tmp_path / "y.i32", BATCH, STEPS, rate(model), tmp_path, "reference", "outputs")
    assert code == 0, err
    want, got = train(model, x, y), np.fromfile(tmp_path / "losses.f64")
    assert np.max(np.abs(got - want) / np.abs(want)) < TOLERANCE


@pytest.mark.parametrize("exporter", ["first", "current"])
@pytest.mark.parametrize("way", ["heads", "rows", "unit", "first", "square"])
def test_a_fixed_batch(tmp_path, way, exporter):
    """The file's shapes contain the batch: they are read as those of a sample, or refused."""
    if exporter == "current" and not NEW:
        pytest.skip("the other exporter needs a current PyTorch")
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = Halves(way).train()
    x, y = batches(model)
    n = 6 if way == "square" else 2
    if exporter == "current":
        torch.onnx.export(model, (torch.tensor(x[:n]),), str(tmp_path / "m.onnx"), dynamo=True, external_data=False)
    else:
        export(model, torch.tensor(x[:n]), tmp_path / "m.onnx", 17, False)
    x.astype(np.float32).tofile(tmp_path / "x.f32")
    y.astype(np.int32).tofile(tmp_path / "y.i32")
    code, out, err = run(tmp_path / "m.onnx", tmp_path / "x.f32", tmp_path / "y.i32", BATCH, STEPS, rate(model), tmp_path, "reference", "outputs")
    if way in ("first", "square"):
        assert code == 1 and "export the model with a batch of 1, with dynamic_axes, or by mfl_export.save" in err
        return
    assert code == 0, err
    want, got = train(model, x, y), np.fromfile(tmp_path / "losses.f64")
    assert np.max(np.abs(got - want) / np.abs(want)) < TOLERANCE


class FrozenStart(LearnedStart):
    """A recurrent layer that starts from a row that is not trained: mfl_export writes it position by position."""

    def __init__(self):
        super().__init__()
        self.h.requires_grad_(False).normal_(0, 0.5)


def test_a_frozen_start_is_read_back(tmp_path):
    """The pulled file has a dense layer of the constant row."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = FrozenStart().train()
    x, y = batches(model)
    mfl_export.save(model, torch.tensor(x[:1]), tmp_path / "m.onnx")
    x.astype(np.float32).tofile(tmp_path / "x.f32")
    y.astype(np.int32).tofile(tmp_path / "y.i32")
    code, _, err = run(tmp_path / "m.onnx", tmp_path / "x.f32", tmp_path / "y.i32", BATCH, STEPS, rate(model), tmp_path, "reference", "outputs")
    assert code == 0, err
    want, got = train(model, x, y), np.fromfile(tmp_path / "losses.f64")
    assert np.max(np.abs(got - want) / np.abs(want)) < TOLERANCE


class Channels(nn.Module):
    """Dropout of whole channels, of two numbers each; `stop`: by PyTorch's second exporter."""

    def __init__(self, rank, stop):
        super().__init__()
        self.w, self.drop, self.rank, self.stop = nn.Parameter(torch.ones(4)), getattr(nn, f"Dropout{rank}d")(0.5), rank, stop

    def forward(self, x):
        y = self.drop((x * self.w).view(-1, 2, *(1,) * (self.rank - 1), 2)).flatten(1)
        return y + (y - y).detach() if self.stop else y


@pytest.mark.skipif(not hasattr(nn, "Dropout1d"), reason="Dropout1d needs a newer PyTorch")
@pytest.mark.parametrize("rank, stop", [(1, False), (2, False), (3, False), (2, True)])
def test_channels_are_dropped_whole(tmp_path, rank, stop):
    """Of four numbers in two channels: the mean loss is 2.54 where channels are dropped, 3.33 where numbers are; evaluation drops none."""
    rows = 800
    mfl_export.save(Channels(rank, stop), torch.ones(1, 4), tmp_path / "m.onnx")
    np.full((rows, 4), 3, np.float32).tofile(tmp_path / "x.f32")
    np.zeros(rows, np.int32).tofile(tmp_path / "y.i32")
    code, _, err = run(tmp_path / "m.onnx", tmp_path / "x.f32", tmp_path / "y.i32", rows, 1, 1e-9, tmp_path, "reference", "outputs")
    assert code == 0, err
    alike, one = math.log(4), math.log(2 + 2 * math.exp(-6))  # both or none are dropped; the other, or the label's
    wanted = (2 * alike + one + one + 6) / 4
    assert abs(np.fromfile(tmp_path / "losses.f64")[0] - wanted) < 0.35
    assert np.allclose(np.fromfile(tmp_path / "logits.f32", dtype=np.float32)[:4], 3, atol=1e-4)
