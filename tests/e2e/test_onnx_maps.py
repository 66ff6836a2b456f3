# SPDX-License-Identifier: Apache-2.0
"""What PyTorch exports of padding, interpolation, views of many dimensions and sums: imported, trained for 20 steps with
PyTorch's losses, exported, and read back as the same layers. Skipped where there is no PyTorch."""
import numpy as np
import pytest

import mfl_needs

torch = mfl_needs.module("torch")
from torch import nn
from torch.nn import functional as F

import test_onnx as base


class Net(nn.Module):
    """A convolution before what is tested, and one number for each class behind it."""
    shape, tokens, channels = (3, 8, 6), 0, 8

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(self.shape[0], self.channels, 3, padding=1)
        with torch.no_grad():
            self.fc = nn.Linear(self.middle(torch.zeros(1, self.channels, *self.shape[1:])).flatten(1).shape[1], 10)

    def forward(self, x):
        return self.fc(self.middle(torch.tanh(self.stem(x))).flatten(1))


class UNet(nn.Module):
    shape, tokens = (3, 8, 12), 0

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 6, 3, padding=1)
        self.deep = nn.Conv2d(6, 12, 3, padding=1)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.join = nn.Conv2d(18, 8, 3, padding=1)
        self.shuffle = nn.PixelShuffle(2)
        self.near = nn.Upsample(scale_factor=2, mode="nearest")
        self.last = nn.Conv2d(4, 2, 3, padding=1)
        self.fc = nn.Linear(2 * 8 * 12, 10)

    def forward(self, x):
        a = torch.tanh(self.down(x))
        b = torch.tanh(self.deep(F.max_pool2d(a, 2)))
        c = self.join(torch.cat([a, self.up(b)], 1))
        d = F.avg_pool2d(torch.tanh(self.shuffle(c)), 2)
        return self.fc(self.last(torch.cat([d, F.avg_pool2d(self.near(d), 2)], 1)).flatten(1))


class Pads(Net):
    def middle(self, x):
        x = F.pad(x, (1, 2, 0, 1), mode="reflect")
        x = F.pad(x, (2, 0, 1, 1), mode="replicate")
        x = F.pad(x, (1, 1, 2, 0), value=0.5)
        x = F.pad(x.flatten(2), (3, 1))
        return x


class Shuffles(Net):
    def middle(self, x):
        x = F.pixel_shuffle(x, 2)
        x = F.pixel_unshuffle(torch.tanh(x), 2)
        x = torch.flip(x, [2, 3])
        return torch.tanh(x).repeat(1, 1, 2, 1)


class Nearest(Net):
    def middle(self, x):
        x = F.interpolate(x, size=(5, 11))
        return F.interpolate(x, scale_factor=1.6)


class Bilinear(Net):
    def middle(self, x):
        x = F.interpolate(x, size=(5, 11), mode="bilinear")
        x = F.interpolate(x, size=(9, 7), mode="bilinear", align_corners=True)
        return F.interpolate(x, scale_factor=1.5, mode="bilinear", recompute_scale_factor=False)


class Bicubic(Net):
    def middle(self, x):
        x = F.interpolate(x, size=(11, 5), mode="bicubic")
        return F.interpolate(x, size=(7, 9), mode="bicubic", align_corners=True)


class Line(Net):
    def middle(self, x):
        x = F.interpolate(x.flatten(2), scale_factor=2, mode="linear")
        return F.interpolate(x, size=33)


class Sums(Net):
    def middle(self, x):
        a = x.sum(1)                                     # {h, w}
        b = x.sum((2, 3))                                # {c}
        c = x.mean((1, 2))                               # {w}
        d = x.max(2)[0]                                  # {c, w}
        e = x.cumsum(3)
        f = (x * 0.1).sum((1, 2, 3), keepdim=True)
        return torch.cat([a.flatten(1), b, c, d.flatten(1), (e * f).flatten(1)], 1)


class Pools(Net):
    shape = (3, 9, 7)

    def middle(self, x):
        x = F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)
        x = F.avg_pool2d(torch.tanh(x), (3, 2), (1, 1), (1, 1))
        return F.avg_pool2d(x, 3, 2, ceil_mode=True)


class Windows(nn.Module):
    """Swin's: a roll, windows, and a bias for each relative position out of one table."""
    shape, tokens, heads, side = (3, 8, 8), 0, 2, 4

    def __init__(self):
        super().__init__()
        n = self.side
        self.embed = nn.Conv2d(3, 12, 1)
        self.table = nn.Parameter(torch.randn((2 * n - 1) ** 2, self.heads) * 0.3)
        at = torch.stack(torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")).flatten(1)
        near = (at[:, :, None] - at[:, None, :]) + (n - 1)
        self.register_buffer("index", near[0] * (2 * n - 1) + near[1])
        self.mix = nn.Linear(n * n, n * n)
        self.fc = nn.Linear(12, 10)

    def forward(self, x):
        n = self.side
        x = self.embed(x).permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        x = torch.roll(x, (-2, -1), (1, 2))
        x = x.view(b, h // n, n, w // n, n, c).permute(0, 1, 3, 2, 4, 5).reshape(b, -1, n * n, c)
        bias = self.table[self.index.view(-1)].view(n * n, n * n, -1).permute(2, 0, 1)
        x = torch.tanh(self.mix(x.transpose(2, 3)).transpose(2, 3))
        x = x.view(b, h // n, w // n, n, n, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h * w, c)
        return self.fc(torch.tanh(x)).mean(1) * bias.mean((0, 1, 2))


class Repeated(nn.Module):
    """Grouped-query heads: each of two keys stands for three heads."""
    shape, tokens = (5, 12), 0

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(12, 24), nn.Linear(12, 8)
        self.fc = nn.Linear(30, 10)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, 6, 4).transpose(1, 2).reshape(-1, t, 4)
        k = self.k(x).view(b, t, 2, 4).transpose(1, 2)
        k = k[:, :, None].expand(b, 2, 3, t, 4).reshape(-1, t, 4)
        y = torch.tanh((q * k).sum(-1))
        return self.fc(y.reshape(-1, 6 * t))


MODELS = {m.__name__.lower(): m for m in (UNet, Pads, Shuffles, Nearest, Bilinear, Bicubic, Line, Sums, Pools, Windows,
                                          Repeated)}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("opset", [14, 17])
def test_trains_like_pytorch(tmp_path, monkeypatch, name, opset):
    monkeypatch.setitem(base.MODELS, name, MODELS[name])
    base.test_trains_like_pytorch(tmp_path, name, opset, False)
