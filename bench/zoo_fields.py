# SPDX-License-Identifier: Apache-2.0
"""Models of many fields, as people write them by hand: the family `fields` of bench/zoo.py."""
import math

import torch
from torch import nn
from torch.nn import functional as F

from zoo_models import Calls, Entry, pixels

IMAGE, SERIES, TEXT, VECTOR = (3, 16, 16), (12, 6), (8,), (10,)


# ---- images ----

def conv_norm(i, o, k=3, **options):
    return nn.Sequential(nn.Conv2d(i, o, k, padding=k // 2, bias=False, **options), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class AttentionGate(nn.Module):
    def __init__(self, gate, skip, inner):
        super().__init__()
        self.wg, self.wx = nn.Sequential(nn.Conv2d(gate, inner, 1), nn.BatchNorm2d(inner)), nn.Sequential(nn.Conv2d(skip, inner, 1), nn.BatchNorm2d(inner))
        self.psi = nn.Sequential(nn.Conv2d(inner, 1, 1), nn.BatchNorm2d(1), nn.Sigmoid())

    def forward(self, g, x):
        return x * self.psi(F.relu(self.wg(g) + self.wx(x)))


class AttentionUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.d1, self.d2, self.mid = conv_norm(3, 8), conv_norm(8, 16), conv_norm(16, 32)
        self.u2, self.u1 = nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.g2, self.g1 = AttentionGate(16, 16, 8), AttentionGate(8, 8, 4)
        self.e2, self.e1, self.out = conv_norm(32, 16), conv_norm(16, 8), nn.Conv2d(8, 3, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        y = self.u2(self.mid(F.max_pool2d(b, 2)))
        y = self.u1(self.e2(torch.cat([self.g2(y, b), y], 1)))
        return self.out(self.e1(torch.cat([self.g1(y, a), y], 1)))


class PyramidHead(nn.Module):
    """A feature pyramid for segmentation."""

    def __init__(self):
        super().__init__()
        self.c = nn.ModuleList([conv_norm(3, 8), conv_norm(8, 16, stride=2), conv_norm(16, 24, stride=2)])
        self.lateral = nn.ModuleList([nn.Conv2d(c, 8, 1) for c in (8, 16, 24)])
        self.smooth = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)])
        self.out = nn.Conv2d(24, 3, 1)

    def forward(self, x):
        found = []
        for c in self.c:
            x = c(x)
            found.append(x)
        tops = [self.lateral[2](found[2])]
        for i in (1, 0):
            tops.insert(0, self.lateral[i](found[i]) + F.interpolate(tops[0], size=found[i].shape[-2:], mode="nearest"))
        size = tops[0].shape[-2:]
        return self.out(torch.cat([F.interpolate(s(t), size=size, mode="bilinear", align_corners=False) for s, t in zip(self.smooth, tops)], 1))


class YoloHead(nn.Module):
    """Boxes, objectness and classes of two scales, as one table."""

    def __init__(self, anchors=2, classes=3):
        super().__init__()
        self.anchors, self.of = anchors, 5 + classes
        self.stem, self.down = conv_norm(3, 8, stride=2), conv_norm(8, 16, stride=2)
        self.h1, self.h2 = nn.Conv2d(8, anchors * self.of, 1), nn.Conv2d(16, anchors * self.of, 1)
        self.register_buffer("grid1", self.grid(8))
        self.register_buffer("grid2", self.grid(4))
        self.register_buffer("sizes", torch.tensor([[1.0, 2.0], [2.0, 1.0]]))

    @staticmethod
    def grid(n):
        y, x = torch.meshgrid(torch.arange(n).float(), torch.arange(n).float(), indexing="ij")
        return torch.stack([x, y], -1)[None, None]

    def decode(self, y, grid):
        b, _, h, w = y.shape
        y = y.view(b, self.anchors, self.of, h, w).permute(0, 1, 3, 4, 2).contiguous()
        xy = (y[..., 0:2].sigmoid() + grid) / h
        wh = torch.exp(y[..., 2:4]) * self.sizes[None, :, None, None] / h
        return torch.cat([xy, wh, y[..., 4:]], -1).view(b, -1, self.of)

    def forward(self, x):
        a = self.stem(x)
        return torch.cat([self.decode(self.h1(a), self.grid1), self.decode(self.h2(self.down(a)), self.grid2)], 1)


class TwoHeads(nn.Module):
    """Detection scores of two scales, as two outputs: the second one is a loss of its own."""

    def __init__(self):
        super().__init__()
        self.stem, self.down = conv_norm(3, 8, stride=2), conv_norm(8, 16, stride=2)
        self.h1, self.h2 = nn.Linear(8, 4), nn.Linear(16, 4)

    def forward(self, x):
        a = self.stem(x)
        return self.h2(self.down(a).mean((2, 3))), self.h1(a.mean((2, 3)))


class DenseBlock(nn.Module):
    def __init__(self, i, growth, n):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.BatchNorm2d(i + k * growth), nn.ReLU(), nn.Conv2d(i + k * growth, growth, 3, padding=1, bias=False)) for k in range(n)])

    def forward(self, x):
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


class CBAM(nn.Module):
    def __init__(self, c, r=2):
        super().__init__()
        self.mlp, self.spatial = nn.Sequential(nn.Linear(c, c // r), nn.ReLU(), nn.Linear(c // r, c)), nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x):
        b, c, _, _ = x.size()
        scale = torch.sigmoid(self.mlp(F.adaptive_avg_pool2d(x, 1).view(b, c)) + self.mlp(F.adaptive_max_pool2d(x, 1).view(b, c)))
        x = x * scale.view(b, c, 1, 1)
        return x * torch.sigmoid(self.spatial(torch.cat([x.mean(1, keepdim=True), torch.max(x, 1, keepdim=True)[0]], 1)))


class ShuffleUnit(nn.Module):
    def __init__(self, c, groups=2):
        super().__init__()
        self.groups = groups
        self.a, self.dw, self.b = nn.Conv2d(c, c, 1, groups=groups), nn.Conv2d(c, c, 3, padding=1, groups=c), nn.Conv2d(c, c, 1, groups=groups)
        self.n = nn.BatchNorm2d(c)

    def forward(self, x):
        y = F.relu(self.a(x))
        b, c, h, w = y.shape
        y = y.view(b, self.groups, c // self.groups, h, w).transpose(1, 2).contiguous().view(b, -1, h, w)
        return F.relu(x + self.n(self.b(self.dw(y))))


class Inception(nn.Module):
    def __init__(self, i):
        super().__init__()
        self.b1, self.b2 = conv_norm(i, 4, 1), nn.Sequential(conv_norm(i, 4, 1), conv_norm(4, 6, 3))
        self.b3, self.b4 = nn.Sequential(conv_norm(i, 2, 1), conv_norm(2, 4, 5)), nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), conv_norm(i, 2, 1))

    def forward(self, x):
        return torch.cat([b(x) for b in (self.b1, self.b2, self.b3, self.b4)], 1)


class Ghost(nn.Module):
    def __init__(self, i, o, ratio=2):
        super().__init__()
        self.o, inner = o, math.ceil(o / ratio)
        self.primary, self.cheap = conv_norm(i, inner, 1), conv_norm(inner, inner * (ratio - 1), 3, groups=inner)

    def forward(self, x):
        a = self.primary(x)
        return torch.cat([a, self.cheap(a)], 1)[:, :self.o]


class SpatialGating(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.norm, self.proj = nn.LayerNorm(d // 2), nn.Conv1d(n, n, 1)
        nn.init.constant_(self.proj.bias, 1.0)

    def forward(self, x):
        u, v = x.chunk(2, -1)
        return u * self.proj(self.norm(v))


def gmlp():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch, self.norm, self.up = nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8), nn.Linear(8, 16)
            self.gate, self.down, self.fc = SpatialGating(16, 16), nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x):
            y = self.patch(x).flatten(2).transpose(1, 2)
            y = y + self.down(self.gate(F.gelu(self.up(self.norm(y)))))
            return self.fc(y.mean(1))
    return Net()


class MixerBlock(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.tokens, self.channels = (nn.Sequential(nn.Linear(k, 2 * k), nn.GELU(), nn.Linear(2 * k, k)) for k in (n, d))

    def forward(self, x):
        x = x + self.tokens(self.n1(x).mT).mT
        return x + self.channels(self.n2(x))


def mixer():
    return Calls(lambda m, x: m.fc(m.norm(m.blocks(m.patch(x).flatten(2).mT)).mean(1)), patch=nn.Conv2d(3, 8, 4, 4),
                 blocks=nn.Sequential(MixerBlock(16, 8), MixerBlock(16, 8)), norm=nn.LayerNorm(8), fc=nn.Linear(8, 4))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 4, 3, 2, 1), nn.ReLU())
        self.decoder = nn.Sequential(nn.ConvTranspose2d(4, 8, 3, 2, 1, 1), nn.ReLU(), nn.ConvTranspose2d(8, 3, 3, 2, 1, 1), nn.Sigmoid())

    def forward(self, x):
        return self.decoder(self.encoder(x))


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.mu, self.logvar, self.dec = nn.Linear(10, 8), nn.Linear(8, 3), nn.Linear(8, 3), nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 10))

    def forward(self, x):
        h = torch.relu(self.enc(x))
        mu, std = self.mu(h), torch.exp(0.5 * self.logvar(h))
        return self.dec(mu + std * torch.randn_like(std))


class Capsules(nn.Module):
    """Routing by agreement, three times."""

    def __init__(self):
        super().__init__()
        self.primary, self.w = nn.Conv2d(3, 8, 5, 4), nn.Parameter(0.3 * torch.randn(1, 18, 3, 5, 4))

    @staticmethod
    def squash(s, dim=-1):
        n = (s ** 2).sum(dim, keepdim=True)
        return n / (1 + n) * s / (torch.sqrt(n) + 1e-8)

    def forward(self, x):
        u = self.squash(self.primary(x).view(x.size(0), 2, 4, 9).permute(0, 1, 3, 2).reshape(x.size(0), 18, 4))
        hat = (self.w @ u[:, :, None, :, None]).squeeze(-1)           # b 18 3 5
        logits = torch.zeros(x.size(0), 18, 3, device=x.device)
        for i in range(3):
            c = F.softmax(logits, dim=2)
            v = self.squash((c[..., None] * hat).sum(1))
            if i < 2:
                logits = logits + (hat.detach() * v.detach()[:, None]).sum(-1)
        return v.norm(dim=-1)


# ---- tables ----

class FTTransformer(nn.Module):
    def __init__(self, n=10, d=8):
        super().__init__()
        self.w, self.b, self.cls = (nn.Parameter(torch.randn(*s) / 3) for s in ((n, d), (n, d), (1, 1, d)))
        self.t = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 2, 16, 0.0, F.gelu, batch_first=True, norm_first=True), 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(d), nn.ReLU(), nn.Linear(d, 3))

    def forward(self, x):
        y = x.unsqueeze(-1) * self.w + self.b
        y = torch.cat([self.cls.expand(x.size(0), -1, -1), y], 1)
        return self.head(self.t(y)[:, 0])


class TabTransformer(nn.Module):
    """Categories by embeddings with offsets; the floats by a norm."""

    def __init__(self, sizes=(4, 5, 6), floats=4, d=8):
        super().__init__()
        self.register_buffer("offsets", torch.tensor([0, *sizes[:-1]]).cumsum(0))
        self.n = len(sizes)
        self.embed, self.norm = nn.Embedding(sum(sizes), d), nn.LayerNorm(floats)
        self.t = nn.TransformerEncoderLayer(d, 2, 16, 0.0, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(self.n * d + floats, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        codes, floats = x[:, :self.n].long(), x[:, self.n:]
        y = self.t(self.embed(codes + self.offsets))
        return self.mlp(torch.cat([y.flatten(1), self.norm(floats)], 1))


class Codes(Entry):
    """Codes below `sizes`, then floats."""

    def __init__(self, make, sizes, floats, **options):
        super().__init__(make, (len(sizes) + floats,), **options)
        self.sizes, self.floats = sizes, floats

    def example(self, n):
        parts = [torch.randint(0, s, (n, 1)).float() for s in self.sizes]
        return torch.cat([*parts, torch.randn(n, self.floats)], 1) if self.floats else torch.cat(parts, 1).long()


class NeuMF(nn.Module):
    def __init__(self):
        super().__init__()
        self.ug, self.ig, self.um, self.im = (nn.Embedding(n, 6) for n in (20, 30, 20, 30))
        self.mlp, self.fc = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU()), nn.Linear(12, 2)

    def forward(self, x):
        user, item = x[:, 0], x[:, 1]
        return self.fc(torch.cat([self.ug(user) * self.ig(item), self.mlp(torch.cat([self.um(user), self.im(item)], -1))], -1))


class DeepFM(nn.Module):
    def __init__(self, n=24, fields=3, d=4):
        super().__init__()
        self.linear, self.embed, self.bias = nn.Embedding(n, 2), nn.Embedding(n, d), nn.Parameter(torch.zeros(2))
        self.register_buffer("offsets", torch.arange(fields) * 8)
        self.mlp = nn.Sequential(nn.Linear(fields * d, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        x = x + self.offsets.unsqueeze(0)
        e = self.embed(x)
        fm = 0.5 * (e.sum(1) ** 2 - (e ** 2).sum(1)).sum(1, keepdim=True)
        return self.linear(x).sum(1) + self.bias + fm + self.mlp(e.view(e.size(0), -1))


class DCNv2(nn.Module):
    def __init__(self):
        super().__init__()
        self.cross, self.deep, self.fc = nn.ModuleList([nn.Linear(10, 10) for _ in range(2)]), nn.Sequential(nn.Linear(10, 8), nn.ReLU()), nn.Linear(18, 3)

    def forward(self, x):
        y = x
        for w in self.cross:
            y = x * w(y) + y
        return self.fc(torch.cat([y, self.deep(x)], 1))


class WideDeep(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.deep = nn.Linear(10, 3, bias=False), nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.0), nn.Linear(16, 3))
        self.mix = nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        return self.mix * self.wide(torch.cat([x[:, :5], x[:, :5] * x[:, 5:]], 1)) + (1 - self.mix) * self.deep(x)


class Experts(nn.Module):
    """All experts are computed and weighted."""

    def __init__(self, n=4):
        super().__init__()
        self.gate, self.experts = nn.Linear(10, n), nn.ModuleList([nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(n)])

    def forward(self, x):
        w = F.softmax(self.gate(x), -1)
        return torch.einsum("be,beo->bo", w, torch.stack([e(x) for e in self.experts], 1))


class StackedExperts(nn.Module):
    """The experts' weights are one tensor; two tasks have gates of their own (MMoE)."""

    def __init__(self, n=4):
        super().__init__()
        self.w1, self.b1, self.w2 = (nn.Parameter(torch.randn(*s) / 3) for s in ((n, 10, 8), (n, 1, 8), (n, 8, 5)))
        self.gates, self.towers = nn.Parameter(torch.randn(2, 10, n) / 3), nn.ModuleList([nn.Linear(5, 2), nn.Linear(5, 2)])

    def forward(self, x):
        h = torch.relu(torch.matmul(x.unsqueeze(0), self.w1) + self.b1)    # e b 8
        h = torch.bmm(h, self.w2).permute(1, 0, 2)                         # b e 5
        out = []
        for i, tower in enumerate(self.towers):
            w = torch.softmax(x @ self.gates[i], 1)
            out.append(tower((w.unsqueeze(-1) * h).sum(1)))
        return torch.cat(out, 1)


class BSplines(nn.Module):
    """A Kolmogorov-Arnold layer: SiLU and cubic B-splines (efficient-kan)."""

    def __init__(self, i, o, grid=4, order=3):
        super().__init__()
        self.i, self.o, self.order = i, o, order
        h = 2 / grid
        self.register_buffer("grid", ((torch.arange(-order, grid + order + 1) * h) - 1).expand(i, -1).contiguous())
        self.base, self.spline = nn.Parameter(torch.randn(o, i) / 3), nn.Parameter(torch.randn(o, i, grid + order) / 3)
        self.scale = nn.Parameter(torch.ones(o, i) / 2)

    def bases(self, x):
        g, x = self.grid, x.unsqueeze(-1)
        b = ((x >= g[:, :-1]) & (x < g[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            b = (x - g[:, :-(k + 1)]) / (g[:, k:-1] - g[:, :-(k + 1)]) * b[:, :, :-1] + (g[:, k + 1:] - x) / (g[:, k + 1:] - g[:, 1:-k]) * b[:, :, 1:]
        return b.contiguous()

    def forward(self, x):
        spline = self.spline * self.scale.unsqueeze(-1)
        return F.linear(F.silu(x), self.base) + F.linear(self.bases(x).view(x.size(0), -1), spline.view(self.o, -1))


class FourierFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b", torch.randn(16, 10))
        self.net = nn.Sequential(nn.Linear(32, 16), nn.GELU(), nn.Linear(16, 3))

    def forward(self, x):
        y = 2 * math.pi * x @ self.b.T
        return self.net(torch.cat([torch.sin(y), torch.cos(y)], -1))


class Siren(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(10, 16), nn.Linear(16, 16), nn.Linear(16, 3)])
        for l in self.layers:
            nn.init.uniform_(l.weight, -0.02, 0.02)

    def forward(self, x):
        for l in self.layers[:-1]:
            x = torch.sin(30.0 * l(x))
        return self.layers[-1](x)


class Contrastive(nn.Module):
    """Two towers with normalised outputs; the cosine and the distance as logits."""

    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4))
        self.temperature = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, x):
        a, b = (F.normalize(self.tower(y), dim=-1) for y in x.split(5, 1))
        cosine = F.cosine_similarity(a, b) * self.temperature.exp().clamp(max=100)
        return torch.stack([cosine, -F.pairwise_distance(a, b)], 1)


# ---- time series and sound ----

class DLinear(nn.Module):
    def __init__(self, length=12, horizon=4, kernel=5):
        super().__init__()
        self.kernel, self.pool = kernel, nn.AvgPool1d(kernel, stride=1)
        self.season, self.trend = nn.Linear(length, horizon), nn.Linear(length, horizon)

    def forward(self, x):
        half = (self.kernel - 1) // 2
        padded = torch.cat([x[:, :1].repeat(1, half, 1), x, x[:, -1:].repeat(1, half, 1)], 1)
        trend = self.pool(padded.permute(0, 2, 1)).permute(0, 2, 1)
        y = self.season((x - trend).permute(0, 2, 1)) + self.trend(trend.permute(0, 2, 1))
        return y.permute(0, 2, 1)


class NLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(6, 12, 4) / 3), nn.Parameter(torch.zeros(6, 4))

    def forward(self, x):
        last = x[:, -1:, :].detach()
        y = torch.einsum("bti,ith->bhi", x - last, self.w) + self.b.T
        return y + last


class NBeats(nn.Module):
    """Two blocks, one of polynomials and one of Fourier terms."""

    def __init__(self, back=12, ahead=4):
        super().__init__()
        t_back, t_ahead = torch.arange(back) / back, torch.arange(ahead) / ahead
        self.net = nn.ModuleList([nn.Sequential(nn.Linear(back, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU()) for _ in range(2)])
        self.theta = nn.ModuleList([nn.Linear(16, 6, bias=False), nn.Linear(16, 8, bias=False)])
        for name, t in (("back", t_back), ("ahead", t_ahead)):
            self.register_buffer("trend_" + name, torch.stack([t ** i for i in range(3)]))
            self.register_buffer("season_" + name, torch.cat([torch.stack([torch.cos(2 * math.pi * i * t), torch.sin(2 * math.pi * i * t)]) for i in (1, 2)]))

    def forward(self, x):
        forecast = 0
        for net, theta, (back, ahead) in zip(self.net, self.theta, ((self.trend_back, self.trend_ahead), (self.season_back, self.season_ahead))):
            a, b = theta(net(x)).chunk(2, -1)
            x = x - a @ back
            forecast = forecast + b @ ahead
        return forecast


class GatedResidual(nn.Module):
    def __init__(self, i, d, o):
        super().__init__()
        self.a, self.b, self.gate = nn.Linear(i, d), nn.Linear(d, o), nn.Linear(o, 2 * o)
        self.skip, self.norm = nn.Linear(i, o) if i != o else nn.Identity(), nn.LayerNorm(o)

    def forward(self, x):
        return self.norm(self.skip(x) + F.glu(self.gate(self.b(F.elu(self.a(x)))), -1))


class FusionTransformer(nn.Module):
    """Variable selection, an LSTM, gating, attention: the parts of the temporal fusion transformer."""

    def __init__(self, n=6, d=8):
        super().__init__()
        self.embed = nn.ModuleList([nn.Linear(1, d) for _ in range(n)])
        self.weights, self.each = GatedResidual(n * d, d, n), nn.ModuleList([GatedResidual(d, d, d) for _ in range(n)])
        self.lstm, self.gate, self.norm = nn.LSTM(d, d, batch_first=True), nn.Linear(d, 2 * d), nn.LayerNorm(d)
        self.attention, self.last, self.out = nn.MultiheadAttention(d, 2, batch_first=True), GatedResidual(d, d, d), nn.Linear(d, 3)

    def forward(self, x):
        e = torch.stack([f(x[..., i:i + 1]) for i, f in enumerate(self.embed)], -1)      # b t d n
        w = torch.softmax(self.weights(e.flatten(2)), -1).unsqueeze(2)
        y = (torch.stack([f(e[..., i]) for i, f in enumerate(self.each)], -1) * w).sum(-1)
        h = self.norm(F.glu(self.gate(self.lstm(y)[0]), -1) + y)
        mask = torch.triu(torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device), 1)
        return self.out(self.last(self.attention(h, h, h, attn_mask=mask)[0] + h)[:, -1])


class WaveNet(nn.Module):
    def __init__(self, c=8, words=30):
        super().__init__()
        self.embed, self.out = nn.Embedding(words, c), nn.Sequential(nn.ReLU(), nn.Conv1d(c, c, 1), nn.ReLU(), nn.Conv1d(c, words, 1))
        self.dilated = nn.ModuleList([nn.Conv1d(c, 2 * c, 2, dilation=d) for d in (1, 2, 4)])
        self.res, self.skip = (nn.ModuleList([nn.Conv1d(c, c, 1) for _ in range(3)]) for _ in range(2))

    def forward(self, x):
        y, skips = self.embed(x).transpose(1, 2), 0
        for conv, res, skip in zip(self.dilated, self.res, self.skip):
            a, b = conv(F.pad(y, (conv.dilation[0], 0))).chunk(2, 1)
            z = torch.tanh(a) * torch.sigmoid(b)
            skips = skips + skip(z)
            y = y + res(z)
        return self.out(skips).transpose(1, 2)


class ConvTasNet(nn.Module):
    def __init__(self, n=8, sources=2):
        super().__init__()
        self.n, self.sources = n, sources
        self.encoder, self.decoder = nn.Conv1d(1, n, 4, 2, bias=False), nn.ConvTranspose1d(n, 1, 4, 2, bias=False)
        self.norm, self.bottle, self.mask = nn.GroupNorm(1, n, eps=1e-8), nn.Conv1d(n, 6, 1), nn.Conv1d(6, sources * n, 1)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Conv1d(6, 10, 1), nn.PReLU(), nn.GroupNorm(1, 10), nn.Conv1d(10, 10, 3, padding=d, dilation=d, groups=10), nn.PReLU(),
                                                   nn.GroupNorm(1, 10), nn.Conv1d(10, 6, 1)) for d in (1, 2)])

    def forward(self, x):
        w = F.relu(self.encoder(x.unsqueeze(1)))
        y = self.bottle(self.norm(w))
        for block in self.blocks:
            y = y + block(y)
        m = torch.sigmoid(self.mask(y)).view(x.size(0), self.sources, self.n, -1)
        s = (w.unsqueeze(1) * m).view(x.size(0) * self.sources, self.n, -1)
        return self.decoder(s).view(x.size(0), self.sources, -1)


class RecurrentNormal(nn.Module):
    """Reversible instance normalisation around a GRU."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(6))
        self.gru, self.fc = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 6)

    def forward(self, x):
        mean, std = x.mean(1, keepdim=True).detach(), torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5).detach()
        y = self.fc(self.gru((x - mean) / std * self.scale + self.shift)[0][:, -1])
        return (y - self.shift) / (self.scale + 1e-10) * std[:, 0] + mean[:, 0]


# ---- sets and graphs ----

class Perceiver(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.latents, self.up = nn.Parameter(torch.randn(4, d)), nn.Linear(6, d)
        self.nq, self.nk, self.nf = (nn.LayerNorm(d) for _ in range(3))
        self.cross, self.own = (nn.MultiheadAttention(d, 2, batch_first=True) for _ in range(2))
        self.ff, self.fc = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)), nn.Linear(d, 3)

    def forward(self, x):
        z, k = self.latents.unsqueeze(0).repeat(x.size(0), 1, 1), self.nk(self.up(x))
        for _ in range(2):
            z = z + self.cross(self.nq(z), k, k, need_weights=False)[0]
            z = z + self.own(z, z, z)[0]
            z = z + self.ff(self.nf(z))
        return self.fc(z.mean(1))


class InducedSets(nn.Module):
    """A set transformer: induced attention, then pooling by a seed."""

    def __init__(self, d=8):
        super().__init__()
        self.i, self.seed, self.up = nn.Parameter(torch.randn(1, 3, d)), nn.Parameter(torch.randn(1, 1, d)), nn.Linear(6, d)
        self.q, self.k, self.v, self.o = (nn.ModuleList([nn.Linear(d, d) for _ in range(3)]) for _ in range(4))
        self.heads, self.fc = 2, nn.Linear(d, 3)

    def mab(self, n, a, b):
        q, k, v = self.q[n](a), self.k[n](b), self.v[n](b)
        split = lambda y: torch.cat(y.split(y.size(-1) // self.heads, 2), 0)
        w = torch.softmax(split(q).bmm(split(k).transpose(1, 2)) / math.sqrt(q.size(-1)), 2)
        y = torch.cat((split(q) + w.bmm(split(v))).split(a.size(0), 0), 2)
        return y + F.relu(self.o[n](y))

    def forward(self, x):
        x = self.up(x)
        b = x.size(0)
        x = self.mab(1, x, self.mab(0, self.i.repeat(b, 1, 1), x))
        return self.fc(self.mab(2, self.seed.repeat(b, 1, 1), x).squeeze(1))


class InducedSetsBatch(InducedSets):
    """The same with heads as a dimension of their own."""

    def mab(self, n, a, b):
        q, k, v = (f[n](y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f, y in ((self.q, a), (self.k, b), (self.v, b)))
        y = (q + torch.softmax(q @ k.mT / math.sqrt(8), -1) @ v).transpose(1, 2).flatten(2)
        return y + F.relu(self.o[n](y))


class GraphConv(nn.Module):
    """The adjacency is a part of the sample: six nodes with four features."""

    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.fc = nn.Linear(4, 8, bias=False), nn.Linear(8, 8, bias=False), nn.Linear(8, 3)

    def forward(self, x):
        nodes, a = x[:, :, :4], x[:, :, 4:].sigmoid()
        a = a + torch.eye(6, device=x.device)
        d = a.sum(-1).pow(-0.5)
        a = d.unsqueeze(-1) * a * d.unsqueeze(-2)
        return self.fc(torch.relu(a @ self.w2(torch.relu(a @ self.w1(nodes)))).max(1)[0])


class GraphAttention(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.w, self.a, self.fc = nn.Linear(4, d, bias=False), nn.Parameter(torch.randn(2 * d, 1) / 3), nn.Linear(d, 3)

    def forward(self, x):
        h, adjacent = self.w(x[:, :, :4]), x[:, :, 4:] + 10 * torch.eye(6) > 0
        d = h.size(-1)
        e = F.leaky_relu(h @ self.a[:d] + (h @ self.a[d:]).transpose(1, 2), 0.2)
        w = torch.softmax(torch.where(adjacent, e, torch.full_like(e, -9e15)), -1)
        return self.fc(F.elu(w @ h).mean(1))


class PointNet(nn.Module):
    """A learned transformation of the points, shared layers, a maximum."""

    def __init__(self):
        super().__init__()
        self.t, self.tf = nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, 9)
        self.net, self.fc = nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 16, 1)), nn.Linear(16, 3)
        self.register_buffer("eye", torch.eye(3).flatten())

    def forward(self, x):
        m = (self.tf(torch.max(self.t(x), 2)[0]) + self.eye).view(-1, 3, 3)
        y = torch.bmm(x.transpose(2, 1), m).transpose(2, 1)
        return self.fc(torch.max(self.net(y), 2, keepdim=True)[0].view(-1, 16))


def entries():
    conv = lambda *mid, c=8: lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *[m() for m in mid], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 4))
    return {
        "attention-unet": Entry(AttentionUNet, IMAGE, logits=pixels),
        "feature-pyramid": Entry(PyramidHead, IMAGE, logits=pixels),
        "yolo-head": Entry(YoloHead, IMAGE),
        "two-heads": Entry(TwoHeads, IMAGE, auxiliary=(0.4,), logits=lambda out: out[0]),
        "densenet-blocks": Entry(conv(lambda: DenseBlock(8, 4, 3), lambda: nn.Conv2d(20, 10, 1), lambda: nn.AvgPool2d(2), lambda: DenseBlock(10, 4, 2), c=18), IMAGE),
        "cbam": Entry(conv(lambda: CBAM(8)), IMAGE),
        "shuffle-unit": Entry(conv(lambda: ShuffleUnit(8)), IMAGE),
        "inception": Entry(conv(lambda: Inception(8), c=16), IMAGE),
        "ghost": Entry(conv(lambda: Ghost(8, 11), c=11), IMAGE),
        "gmlp": Entry(gmlp, IMAGE),
        "mixer": Entry(mixer, IMAGE),
        "autoencoder": Entry(Autoencoder, IMAGE, logits=pixels),
        "vae": Entry(VAE, VECTOR),
        "capsule-routing": Entry(Capsules, IMAGE),
        "ft-transformer": Entry(FTTransformer, VECTOR),
        "tab-transformer": Codes(TabTransformer, (4, 5, 6), 4),
        "neumf": Codes(NeuMF, (20, 30), 0),
        "deepfm": Codes(DeepFM, (8, 8, 8), 0, batch=4),
        "dcn-v2": Entry(DCNv2, VECTOR),
        "wide-deep": Entry(WideDeep, VECTOR),
        "dense-experts": Entry(Experts, VECTOR),
        "stacked-experts": Entry(StackedExperts, VECTOR),
        "kan": Entry(lambda: nn.Sequential(BSplines(10, 6), BSplines(6, 3)), VECTOR),
        "fourier-features": Entry(FourierFeatures, VECTOR),
        "siren": Entry(Siren, VECTOR),
        "contrastive": Entry(Contrastive, VECTOR),
        "dlinear": Entry(DLinear, SERIES),
        "nlinear": Entry(NLinear, SERIES),
        "nbeats": Entry(NBeats, (12,)),
        "fusion-transformer": Entry(FusionTransformer, SERIES),
        "wavenet": Entry(WaveNet, TEXT, 30),
        "conv-tasnet": Entry(ConvTasNet, (40,)),
        "instance-reversed-gru": Entry(RecurrentNormal, SERIES),
        "perceiver": Entry(Perceiver, SERIES),
        "set-transformer": Entry(InducedSetsBatch, SERIES),
        "set-transformer-folded": Entry(InducedSets, SERIES),
        "deep-sets": Entry(lambda: Calls(lambda m, x: m.rho(m.phi(x).sum(1)), phi=nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8)),
                                         rho=nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))), SERIES),
        "graph-conv": Entry(GraphConv, (6, 10)),
        "graph-attention": Entry(GraphAttention, (6, 10)),
        "pointnet": Entry(PointNet, (3, 12), batch=4),
    }
