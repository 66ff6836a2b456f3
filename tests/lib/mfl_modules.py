# SPDX-License-Identifier: Apache-2.0
"""Small PyTorch modules of the kinds that people train, for tests of mfl_export: name -> (module, example)."""
import math

import torch
from torch import nn
from torch.nn import functional as F

TOKENS = 12


def tokens(positions=6, rows=1):
    return torch.arange(rows * positions).reshape(rows, positions) % TOKENS


class Cnn(nn.Module):
    """Batch norm, strides, a depthwise convolution, dropout."""

    def __init__(self, **norm):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6, **norm)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, stride=2, groups=6, bias=False), nn.BatchNorm2d(6, eps=1e-3, **norm)
        self.drop, self.fc = nn.Dropout(0.5), nn.Linear(6 * 2 * 2, 10)

    def forward(self, x):
        x = F.max_pool2d(torch.tanh(self.bn1(self.conv1(x))), 2)
        return self.fc(self.drop(torch.tanh(self.bn2(self.conv2(x))).flatten(1)))


class Backbone(nn.Module):
    """Fine-tuning: only the head is trained."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16)), nn.Linear(16, 4)
        self.body.requires_grad_(False)

    def forward(self, x):
        return self.head(self.body(x))


class Buffered(nn.Module):
    """Adds a buffer and multiplies by one; PyTorch trains neither."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 6), nn.Linear(6, 4)
        self.register_buffer("shift", torch.linspace(-1, 1, 6))
        self.register_buffer("scale", torch.linspace(0.5, 2, 6), persistent=False)

    def forward(self, x):
        return self.fc2(torch.tanh((self.fc1(x) + self.shift) * self.scale))


class Norms(nn.Module):
    """Each norm without scale and shift."""

    def __init__(self, affine=False):
        super().__init__()
        self.conv1, self.bn = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=affine)
        self.conv2, self.gn = nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4, affine=affine)
        self.conv3, self.inorm = nn.Conv2d(4, 4, 3), nn.InstanceNorm2d(4, affine=affine)
        self.fc, self.ln, self.out = nn.Linear(16, 6), nn.LayerNorm(6, elementwise_affine=affine), nn.Linear(6, 3)

    def forward(self, x):
        x = torch.tanh(self.gn(self.conv2(torch.tanh(self.bn(self.conv1(x))))))
        return self.out(self.ln(self.fc(torch.tanh(self.inorm(self.conv3(x))).flatten(1))))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed, self.rnn, self.fc = nn.Embedding(TOKENS, 6), kind(6, 7, batch_first=True), nn.Linear(7, TOKENS)

    def forward(self, x):
        return self.fc(self.rnn(self.embed(x))[0])


class States(nn.Module):
    """The outputs' mean beside the last states of all layers and directions."""

    def __init__(self, kind, num_layers=1, bidirectional=False, **options):
        super().__init__()
        n = 7 * (1 + bidirectional)
        self.rnn = kind(6, 7, num_layers=num_layers, bidirectional=bidirectional, batch_first=True, **options)
        self.embed, self.fc = nn.Embedding(TOKENS, 6), nn.Linear(n * (1 + num_layers), 4)

    def forward(self, x):
        y, states = self.rnn(self.embed(x))
        if isinstance(states, tuple):  # of an LSTM, the cell state
            states = states[1]
        return self.fc(torch.cat([y.mean(1), states.transpose(0, 1).flatten(1)], 1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.pos = nn.Embedding(TOKENS, 8), nn.Parameter(torch.randn(1, 6, 8) * 0.5)
        self.norm, self.attn, self.fc = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 5)

    def forward(self, x):
        h = self.embed(x) + self.pos
        n = self.norm(h)
        h = h + self.attn(n, n, n, need_weights=False)[0]
        return self.fc(F.gelu(h).mean(1))


class Block(nn.Module):
    def __init__(self, d, heads, dropout):
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(dropout)
        self.ln1, self.qkv, self.proj = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ln2, self.fc1, self.fc2 = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in self.qkv(self.ln1(x)).split(c, 2))
        a = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        a = a.masked_fill(torch.ones(t, t).tril() == 0, float("-inf")).softmax(-1)
        x = x + self.drop(self.proj((a @ v).transpose(1, 2).reshape(b, t, c)))
        return x + self.drop(self.fc2(F.gelu(self.fc1(self.ln2(x)), approximate="tanh")))


class Gpt(nn.Module):
    """As GPT-2 starts: all biases 0, weights of a deviation of 0.02."""

    def __init__(self, tied=False, dropout=0.1):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(TOKENS, 8), nn.Embedding(6, 8)
        self.h = nn.ModuleList([Block(8, 2, dropout) for _ in range(2)])
        self.ln_f, self.head = nn.LayerNorm(8), nn.Linear(8, TOKENS, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.2)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if tied:
            self.head.weight = self.wte.weight

    def forward(self, x):
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1]).unsqueeze(0))
        for block in self.h:
            h = block(h)
        return self.head(self.ln_f(h))


class Lora(nn.Module):
    """Adapters by hand: the weight is frozen, and each adapter is two layers."""

    def __init__(self):
        super().__init__()
        self.base, self.a, self.b = nn.Linear(8, 6), nn.Linear(8, 2, bias=False), nn.Linear(2, 6, bias=False)
        self.out = nn.Linear(6, 3)
        self.base.requires_grad_(False)

    def forward(self, x):
        return self.out(torch.tanh(self.base(x) + self.b(self.a(x))))


class Merged(nn.Module):
    """Adapters inside the weight: a product of parameters."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8))
        self.a, self.b = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.randn(4, 2))

    def forward(self, x):
        return F.linear(x, self.weight + self.b @ self.a)


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(TOKENS, 6, padding_idx=0), nn.Linear(6, TOKENS)

    def forward(self, x):
        return self.fc(torch.tanh(self.embed(x)))


class HalfNorms(nn.Module):
    """Norms whose scale is trained and whose shift is not, or the other way round."""

    def __init__(self, frozen):
        super().__init__()
        self.conv, self.group, self.image = nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.BatchNorm2d(4)
        self.a, self.layer, self.row, self.fc = nn.Linear(4, 6), nn.LayerNorm(6), nn.BatchNorm1d(6), nn.Linear(6, 4)
        for norm in (self.group, self.image, self.layer, self.row):
            for name, parameter in norm.named_parameters():
                nn.init.uniform_(parameter, 0.5, 1.5)
                parameter.requires_grad_(name != frozen)

    def forward(self, x):
        x = torch.tanh(self.image(torch.tanh(self.group(self.conv(x))))).mean((2, 3))
        return self.fc(torch.tanh(self.row(torch.tanh(self.layer(self.a(x))))))


class Resized(nn.Module):
    """Rows and columns that are repeated or left out, by sizes and by factors."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc, self.up = nn.Conv2d(3, 4, 1), nn.Linear(4, 4), nn.Upsample(scale_factor=(1.5, 0.7), mode="nearest-exact")

    def forward(self, x):
        x = F.interpolate(torch.tanh(self.conv(x)), (8, 3), mode="nearest-exact")
        return self.fc(torch.tanh(2 * self.up(x)).mean((2, 3)))


class HalfTwice(nn.Module):
    """Norms that are called twice, of which one half is trained."""

    def __init__(self, frozen):
        super().__init__()
        self.conv, self.group, self.image = nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.BatchNorm2d(4)
        self.a, self.layer, self.row, self.fc = nn.Linear(4, 6), nn.LayerNorm(6), nn.BatchNorm1d(6), nn.Linear(6, 4)
        for norm in (self.group, self.image, self.layer, self.row):
            for name, parameter in norm.named_parameters():
                nn.init.uniform_(parameter, 0.5, 1.5)
                parameter.requires_grad_(name != frozen)

    def forward(self, x):
        x = self.conv(x)
        for norm in (self.group, self.image) * 2:
            x = torch.tanh(norm(x))
        x = self.a(x.mean((2, 3)))
        for norm in (self.layer, self.row) * 2:
            x = torch.tanh(norm(x))
        return self.fc(x)


class Products(nn.Module):
    """A product of parameters in four dimensions, and a similarity whose sides differ in their dimensions."""

    def __init__(self):
        super().__init__()
        self.u, self.v, self.w = (nn.Parameter(torch.randn(n)) for n in ((2, 2), (4, 4), (5, 8)))
        self.fc = nn.Linear(5, 4)

    def forward(self, x):
        x = x @ torch.kron(self.u, self.v)
        return self.fc(F.cosine_similarity(x.unsqueeze(1), self.w, 2))


class Kinds(nn.Module):
    """Layers that PyTorch's first exporter does not write, or not with all of their options."""

    def __init__(self):
        super().__init__()
        self.a, self.pairs, self.norm, self.w = nn.Linear(6, 5), nn.Bilinear(5, 6, 4), nn.RMSNorm(4, eps=1e-3), nn.Parameter(torch.randn(3, 4))
        self.bare, self.gate, self.fc = nn.RMSNorm(4, elementwise_affine=False, eps=1e-2), nn.Threshold(0.1, -0.3), nn.Linear(3, 3)

    def forward(self, x):
        y = torch.erfc(self.a(x))
        return self.fc(torch.inner(self.gate(self.norm(self.pairs(y, x))) + self.bare(y[:, 1:]).detach() * y[:, :4], self.w))


class Distances(nn.Module):
    """Between rows of which some are equal, and to rows that are trained."""

    def __init__(self):
        super().__init__()
        self.e, self.p, self.fc = nn.Embedding(9, 4), nn.Parameter(torch.randn(3, 4)), nn.Linear(6, 3)

    def forward(self, ids):
        y = self.e(ids)
        return self.fc(torch.cdist(y, y).tanh().sum(1) + torch.cdist(y, self.p).mean(-1) + torch.cdist(y, y[:, :2], p=1.0).mean(-1))


class SameVolume(nn.Module):
    """padding="same" of an odd and of an even kernel, and pools of windows that differ."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.fc = nn.Conv3d(2, 3, 3, padding="same"), nn.Conv3d(3, 2, (1, 2, 3), padding="same", dilation=(1, 1, 2)), nn.Linear(16, 3)

    def forward(self, x):
        y = torch.tanh(self.b(torch.tanh(self.a(x))))
        return self.fc((nn.functional.adaptive_avg_pool3d(y, 2) + nn.functional.adaptive_max_pool3d(y, (2, 2, 2))).flatten(1))


def partial():
    net = nn.Sequential(nn.LSTM(6, 5, batch_first=True))
    net[0].weight_ih_l0.requires_grad_(False)
    return net


class Angles(nn.Module):
    """Inverses, hyperbolic functions, remainders, of values and of a parameter."""

    def __init__(self):
        super().__init__()
        self.a, self.fc, self.p = nn.Linear(8, 6), nn.Linear(6, 4), nn.Parameter(torch.linspace(-0.7, 0.8, 6))

    def forward(self, x):
        x = self.a(x)
        y = torch.tanh(x) * 0.9
        angles = torch.atan(x) + torch.asin(y) - torch.acos(y) * 0.3 + torch.tan(y)
        curves = torch.sinh(x) + torch.cosh(x) * 0.4 + torch.asinh(3 * x) + torch.acosh(x * x + 1.3) + torch.atanh(y) + torch.xlogy(x, x * x + 0.5)
        return self.fc(torch.tanh(angles * torch.asin(self.p) + curves * torch.sinh(self.p) + torch.fmod(x, 0.37) + torch.remainder(x, 0.41)))


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.out = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.fc(torch.tanh(self.fc(x)))))


def vectors():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 4))


def frozen_norm():
    net = Cnn()
    net.bn1.eval()
    return net


class Uneven(nn.Module):
    """Windows of different sizes, padding of one end, and a value joined with itself."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool, self.fc = nn.Conv2d(3, 4, 4), nn.AdaptiveAvgPool2d((3, 4)), nn.Linear(96, 4)

    def forward(self, x):
        x = self.pool(self.conv(F.pad(x, (1, 2, 1, 2))))
        x = torch.cat([x, x], 1)
        return self.fc(torch.flatten(x * x, 1))


class Scores(nn.Module):
    """Attention that is no single layer: another scale, a band as the mask, a learned bias; fewer queries than keys, and one
    head of keys for all."""

    def __init__(self, few=False):
        super().__init__()
        self.embed, self.q, self.kv, self.fc = nn.Embedding(32, 16), nn.Linear(16, 16), nn.Linear(16, 8 if few else 32), nn.Linear(16, 4)
        self.few, self.bias = few, None if few else nn.Parameter(torch.randn(4, 8, 8))
        self.register_buffer("band", (torch.arange(8)[:, None] - torch.arange(8)).abs() > 2)

    def forward(self, x):
        x = self.embed(x)
        n, t, _ = x.shape
        q = self.q(x[:, :3] if self.few else x).view(n, -1, 4, 4).transpose(1, 2)
        if self.few:
            k, v = (p.view(n, t, 1, 4).transpose(1, 2).expand(n, 4, t, 4) for p in self.kv(x).chunk(2, 2))
            s = q @ k.transpose(-2, -1) / 2
        else:
            k, v = (p.view(n, t, 4, 4).transpose(1, 2) for p in self.kv(x).chunk(2, 2))
            s = (q @ k.transpose(-2, -1) * 0.3 + self.bias).masked_fill(self.band, float("-inf"))
        return self.fc((s.softmax(-1) @ v).transpose(1, 2).flatten(2).mean(1))


class Shifted(nn.Module):
    """Windows of 4 x 4 of an image of 10 x 10 that is padded and shifted, with a mask that is assigned, as Swin's."""

    def __init__(self):
        super().__init__()
        self.conv, self.q, self.kv, self.fc = nn.Conv2d(3, 8, 1), nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(8, 4)

    def forward(self, x):
        x, n = self.conv(x).permute(0, 2, 3, 1), x.shape[0]
        y = torch.roll(F.pad(x, (0, 0, 0, 2, 0, 2)), (-2, -2), (1, 2))
        w = y.view(n, 3, 4, 3, 4, 8).permute(0, 1, 3, 2, 4, 5).reshape(n * 9, 16, 8)
        mask = torch.zeros(12, 12)
        for i, rows in enumerate(((0, 8), (8, 10), (10, 12))):
            for k, columns in enumerate(((0, 8), (8, 10), (10, 12))):
                mask[rows[0]:rows[1], columns[0]:columns[1]] = 3 * i + k
        mask = mask.view(3, 4, 3, 4).permute(0, 2, 1, 3).reshape(9, 16)
        mask = (mask[:, None] - mask[:, :, None]).ne(0).float() * -100.0
        q = self.q(w).view(n * 9, 16, 2, 4).transpose(1, 2)
        k, v = (p.view(n * 9, 16, 2, 4).transpose(1, 2) for p in self.kv(w).chunk(2, 2))
        a = ((q @ k.transpose(-2, -1)) / 2).view(n, 9, 2, 16, 16) + mask[:, None]
        y = (a.view(n * 9, 2, 16, 16).softmax(-1) @ v).transpose(1, 2).reshape(n, 3, 3, 4, 4, 8)
        y = torch.roll(y.permute(0, 1, 3, 2, 4, 5).reshape(n, 12, 12, 8), (2, 2), (1, 2))[:, :10, :10]
        return self.fc((x + y).mean((1, 2)))


class Positions(nn.Module):
    """Rotated positions from a buffer, and a mask from sums of constants, as the current Llama."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.fc = nn.Embedding(TOKENS, 8), nn.Linear(8, 24), nn.Linear(8, 4)
        self.register_buffer("rates", torch.tensor([1.0, 0.1]))

    def forward(self, x):
        n, t = x.shape
        at = torch.arange(t)
        angles = torch.cat([at[:, None] * self.rates] * 2, 1)
        q, k, v = (p.view(n, t, 2, 4).transpose(1, 2) for p in self.qkv(self.embed(x)).chunk(3, 2))
        q, k = (p * angles.cos() + torch.cat([-p[..., 2:], p[..., :2]], 3) * angles.sin() for p in (q, k))
        part = torch.cumsum((at == 4).long(), 0)
        seen = (part[:, None] == part) & (at[:, None] >= at)
        a = (q @ k.transpose(-2, -1) / 2 + torch.where(seen, 0.0, float("-inf"))).softmax(-1) @ v
        return self.fc(a.transpose(1, 2).flatten(2))


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.sum, self.fc = nn.EmbeddingBag(TOKENS, 6), nn.EmbeddingBag(TOKENS, 6, mode="sum"), nn.Linear(12, 4)
        self.near = nn.LocalResponseNorm(3, 0.5, 0.75, 2.0)

    def forward(self, x):
        x = torch.cat([self.mean(x), self.sum(x)], 1)
        return self.fc(self.near(x[:, :, None]).flatten(1))


class Windows(nn.Module):
    """Attention within windows by einsum over five dimensions, with scaled keys, as MaxViT's."""

    def __init__(self):
        super().__init__()
        self.conv, self.qkv, self.fc = nn.Conv2d(3, 8, 1), nn.Linear(8, 24), nn.Linear(8, 4)
        self.bias = nn.Parameter(torch.randn(1, 2, 25, 25) * 0.5)

    def forward(self, x):
        n = x.shape[0]
        y = self.conv(x).reshape(n, 8, 2, 5, 2, 5).permute(0, 2, 4, 3, 5, 1).reshape(n, 4, 25, 8)
        q, k, v = (p.reshape(n, 4, 25, 2, 4).permute(0, 1, 3, 2, 4) for p in self.qkv(y).chunk(3, -1))
        a = torch.einsum("bghid,bghjd->bghij", q, k * 0.3)
        y = torch.einsum("bghij,bghjd->bghid", (a + self.bias).softmax(-1), v)
        return self.fc(y.permute(0, 1, 3, 2, 4).reshape(n, 4, 25, 8).mean((1, 2)))


class Deep(nn.Module):
    """Deep, with ReLUs behind batch norms: rounding flips some of them, and no single element of a gradient can be compared."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.a, self.b, self.gates = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for _ in range(10):
            self.a.append(nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()))
            self.b.append(nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)))
            self.gates.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 16, 1), nn.Sigmoid()))
        self.pool, self.fc = nn.MaxPool2d(2), nn.Linear(16, 10)

    def forward(self, x):
        x = self.stem(x)
        for i, (a, b, gate) in enumerate(zip(self.a, self.b, self.gates)):
            y = b(a(x))
            x = torch.relu(x + y * gate(y))
            x = self.pool(x) if i == 4 else x
        return self.fc(x.mean((2, 3)))


class Heads(nn.Module):
    """A main output and an auxiliary one."""

    def __init__(self):
        super().__init__()
        self.body, self.side, self.fc = nn.Linear(8, 6), nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x):
        x = torch.tanh(self.body(x))
        return self.fc(torch.tanh(x)), self.side(x)


class Masked(nn.Module):
    """Padding by token 0: an encoder that does not see it, and the mean of the rest."""

    def __init__(self, causal=False):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
        self.embed, self.enc, self.fc = nn.Embedding(TOKENS, 8, padding_idx=0), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 4)
        self.mask = torch.full((6, 6), float("-inf")).triu(1) if causal else None

    def forward(self, x):
        padding = x == 0
        h = self.enc(self.embed(x), mask=self.mask, src_key_padding_mask=padding.float() * -1e9 if self.mask is not None else padding)
        seen = (~padding).unsqueeze(-1).float()
        return self.fc((h * seen).sum(1) / seen.sum(1).clamp(min=1))


class Joined(nn.Module):
    """A causal mask, a constant, or-ed with the padding: by hand, and as PyTorch 1's exporter writes an encoder's two."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
        self.embed, self.enc, self.fc = nn.Embedding(TOKENS, 8, padding_idx=0), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, 4)
        self.q = nn.Linear(8, 8)
        self.register_buffer("later", torch.ones(6, 6, dtype=torch.bool).triu(1))

    def forward(self, x):
        padding, h = x == 0, self.embed(x)
        hidden = (self.later | padding[:, None, :]) & ~torch.eye(6, dtype=torch.bool)
        h = h + (self.q(h) @ h.transpose(1, 2) / 3).masked_fill(hidden, float("-inf")).softmax(-1) @ h
        return self.fc(self.enc(h, mask=self.later, src_key_padding_mask=padding).mean(1))


class Filled(nn.Module):
    """Masks from tokens as Hugging Face and people write them: scores that are filled, sums with the least number, pairs of
    positions, and a maximum that leaves padding out."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.fc = nn.Embedding(TOKENS, 8), nn.Linear(8, 24), nn.Linear(8, 4)

    def forward(self, x):
        n, t = x.shape
        seen = (x != 1).float()
        least = (1.0 - seen[:, None, None, :]) * torch.finfo(torch.float32).min
        q, k, v = (p.view(n, t, 2, 4).transpose(1, 2) for p in self.qkv(self.embed(x)).chunk(3, 2))
        h = (q @ k.transpose(-1, -2) / 2 + least).softmax(-1) @ v
        h = h + (q @ k.transpose(-1, -2) * 0.3).masked_fill((x == 1)[:, None, None, :], float("-inf")).softmax(-1) @ v
        h = h + F.scaled_dot_product_attention(q, k, v, attn_mask=((x != 1) | (x > 0))[:, None, None, :])
        both = (x.ne(1)[:, :, None] & x.ne(1)[:, None, :])[:, None]
        h = h + (q @ k.transpose(-1, -2) / 2).softmax(-1).masked_fill(~both, 0.0) @ v
        h = h.transpose(1, 2).reshape(n, t, 8).masked_fill((x == 1)[:, :, None], -1e9)
        return self.fc(h.amax(1))


class Counted(nn.Module):
    """Positions that count the tokens which are no padding, as RoBERTa's."""

    def __init__(self):
        super().__init__()
        self.embed, self.at, self.fc = nn.Embedding(TOKENS, 8, padding_idx=1), nn.Embedding(9, 8, padding_idx=1), nn.Linear(8, 4)

    def forward(self, x):
        seen = x.ne(1).int()
        at = (torch.cumsum(seen, 1).type_as(seen) * seen).long() + 1
        return self.fc(torch.tanh(self.embed(x) + self.at(at)))


class TwoInputs(nn.Module):
    """An image and a row of features."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc1, self.fc2 = nn.Conv2d(3, 4, 3), nn.Linear(8, 6), nn.Linear(4 * 64 + 6, 5)

    def forward(self, image, features):
        return self.fc2(torch.cat([torch.tanh(self.conv(image)).flatten(1), torch.tanh(self.fc1(features))], 1))


class Twins(nn.Module):
    """Two texts, the same encoder, and padding in both; an attention mask as a third input."""

    def __init__(self):
        super().__init__()
        self.embed, self.fc, self.out = nn.Embedding(TOKENS, 8, padding_idx=0), nn.Linear(8, 8), nn.Linear(16, 3)

    def encode(self, x, seen):
        h = torch.tanh(self.fc(self.embed(x))) * seen.unsqueeze(-1)
        return h.sum(1) / seen.sum(1, keepdim=True).clamp(min=1)

    def forward(self, a, b, seen):
        return self.out(torch.cat([self.encode(a, (a != 0).float()), self.encode(b, seen.float())], 1))


class Queries(nn.Module):
    """Attention whose queries are a parameter (Perceiver): in_proj_weight multiplies them, and the samples."""

    def __init__(self):
        super().__init__()
        self.queries, self.attn, self.fc = nn.Parameter(torch.randn(1, 3, 8)), nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(24, 4)

    def forward(self, x):
        return self.fc(self.attn(self.queries.expand(x.size(0), -1, -1), x, x, need_weights=False)[0].flatten(1))


class Jumps(nn.Module):
    """Functions that jump."""

    def __init__(self):
        super().__init__()
        self.fc1, self.shrink, self.threshold, self.fc2 = nn.Linear(8, 12), nn.Hardshrink(0.2), nn.Threshold(0.1, -2.0), nn.Linear(12, 4)

    def forward(self, x):
        h = self.fc1(x)
        return self.fc2(self.shrink(h) + self.threshold(h) + torch.where((h <= 0.3) & (h >= -0.3), 0.0, h))


class Volume(nn.Module):
    """Convolutions, pools and batch norm of volumes; padding, strides and dilation differ by dimension."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn = nn.Conv3d(2, 4, 3, padding=(1, 2, 0)), nn.BatchNorm3d(4)
        self.conv2 = nn.Conv3d(4, 3, (2, 1, 3), stride=(1, 2, 1), dilation=(1, 1, 2), bias=False)
        self.max, self.mean = nn.MaxPool3d((2, 3, 2), (1, 2, 2), (1, 1, 0)), nn.AvgPool3d(2, 1, 1, count_include_pad=False)
        self.pool, self.fc = nn.AdaptiveAvgPool3d(1), nn.Linear(3, 4)

    def forward(self, x):
        x = self.mean(self.max(torch.tanh(self.bn(self.conv1(x)))))
        return self.fc(self.pool(torch.tanh(self.conv2(x))).flatten(1))


class Cells(nn.Module):
    """A cell that is called position by position, from a state of zeros."""

    def __init__(self, kind, **settings):
        super().__init__()
        self.cell, self.fc = kind(6, 5, **settings), nn.Linear(5, 4)

    def forward(self, x):
        h = x.new_zeros(x.size(0), 5)
        c = torch.zeros_like(h)
        for t in range(x.size(1)):
            if isinstance(self.cell, nn.LSTMCell):
                h, c = self.cell(x[:, t], (h, c))
            else:
                h = self.cell(x[:, t], h)
        return self.fc(h)


class Sums(nn.Module):
    """Sums of exponentials and of squares, over single dimensions and several."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 24), nn.Linear(12, 4)

    def forward(self, x):
        x = self.fc1(x).view(-1, 2, 3, 4)
        return self.fc2(torch.cat([(30 * x).logsumexp(1).flatten(1) / 30 - x.logsumexp((2, 3)).sum(1, keepdim=True)], 1) +
                        x.square().sum(2).logsumexp(2, keepdim=True).sum(1))


class Straight(nn.Module):
    """Straight-through estimators: the step's values, and the gradient of what goes around it; and a part that nothing trains."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(6, 4)

    def forward(self, x):
        h = torch.tanh(self.fc1(x))
        h = h + (h.sign() - h).detach() - h.amax(1, keepdim=True).detach()
        with torch.no_grad():
            target = torch.tanh(self.fc2(x))
        w = self.fc3.weight
        size = w.abs().amax(1, keepdim=True).detach() / 7
        return F.linear(h + target, w + ((w / size).round() * size - w).detach(), self.fc3.bias)


class Nearest(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class Rounds(nn.Module):
    def forward(self, x):
        return Nearest.apply(x)


class Joints(nn.Module):
    """Patches that overlap, and a constant boolean mask."""

    def __init__(self):
        super().__init__()
        self.conv, self.patch, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(36, 36), nn.Linear(3, 4)
        self.register_buffer("seen", torch.tensor([True, False, True, True]))

    def forward(self, x):
        x = self.conv(x)
        columns = self.patch(F.unfold(x, 3, padding=1, stride=2).transpose(1, 2)).transpose(1, 2)
        return self.fc(torch.tanh(F.fold(columns, (8, 8), 3, padding=1, stride=2))[:, self.seen].mean((2, 3)))


class Branches(nn.Module):
    """RepVGG's branches as one convolution: the weights of the small one are padded."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 1), nn.Linear(4, 4)

    def forward(self, x):
        x = F.conv2d(x, self.wide.weight + F.pad(self.narrow.weight, (1, 1, 1, 1)), self.wide.bias + self.narrow.bias)
        return self.fc(torch.tanh(x).mean((2, 3)))


class Offsets(nn.Module):
    """A table for several columns of categories: numbers up to its size are too large for the first one."""

    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(12, 4), nn.Linear(12, 4)
        self.register_buffer("offsets", torch.tensor([0, 4, 8]))

    def forward(self, x):
        return self.fc(self.embed(x + self.offsets).flatten(1))


class Rewritten(nn.Module):
    """Functions that mfl_export writes by others, the sums of a graph's edges, and steep ones that are no clamps."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.p = nn.Linear(8, 6), nn.Linear(12, 4), nn.Parameter(torch.rand(4))
        self.q, self.r = nn.Parameter(torch.rand(4)), nn.Parameter(torch.rand(4))
        self.register_buffer("rows", torch.tensor([0, 1, 1, 2, 0, 2]))

    def forward(self, x):
        h = self.fc1(x)
        h = h + torch.sinh(0.3 * h) + torch.cosh(0.2 * h) + torch.tan(0.1 * h) + torch.exp2(0.1 * h)
        h = torch.erf(7.5 * h) * h + torch.sigmoid(50 * (h - 0.3)) + 0.1 * torch.tanh(20 * h)
        edges = torch.zeros(x.shape[0], 3).index_add(1, self.rows, h).repeat_interleave(2, 1)
        scale = (self.p * self.q).sum().exp() - (self.p * self.r).sum().exp()
        return self.fc2(torch.cat([h.tile(1, 1), edges * scale], 1))


class Experts(nn.Module):
    """Weights that are scattered to the largest two, the largest alone, a rank, and places that are constant."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts, self.fc = nn.Linear(8, 4), nn.Linear(8, 12), nn.Linear(12, 4)
        self.register_buffer("places", torch.tensor([[0, 2, 2, 1]]))

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        best, places = torch.topk(p, 2)
        w = torch.zeros_like(p).scatter(1, places, best / best.sum(1, keepdim=True)) + p * F.one_hot(torch.relu(p - 0.3).argmax(-1), 4).float()
        mixed = (self.experts(x).view(-1, 4, 3) * w.unsqueeze(-1)).sum(1)
        sorted_ = p.gather(1, p.argsort(1, descending=True))
        return self.fc(torch.cat([mixed, sorted_, torch.zeros(len(x), 3).scatter_add(1, self.places.expand(len(x), -1), p),
                                  p.gather(1, self.places[:, :2].expand(len(x), -1))], 1))


class Codebook(nn.Module):
    """VQ-VAE's nearest code, whose gradient goes straight through; a code of the features; and edges of a histogram."""

    def __init__(self):
        super().__init__()
        self.a, self.codes, self.steps, self.fc = nn.Linear(8, 5), nn.Embedding(6, 5), nn.Embedding(3, 5), nn.Linear(5, 4)
        self.register_buffer("edges", torch.tensor([-0.4, 0.4]))

    def forward(self, x):
        z = self.a(x)
        nearest = ((z.unsqueeze(1) - self.codes.weight) ** 2).sum(-1).argmin(-1)
        q = self.codes(nearest)
        return self.fc(z + (q - z).detach() + 0.1 * q + self.steps(torch.bucketize(z, self.edges)).mean(1) + self.codes.weight[z.max(1)[1]])


class LastWord(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.fc = nn.Embedding(9, 4), nn.Linear(4, 4)

    def forward(self, x):
        last = ((x != 0).sum(1) - 1).clamp(min=0)
        return self.fc(self.e(x).gather(1, last.view(-1, 1, 1).expand(-1, 1, 4)).squeeze(1))


class Letters(nn.Module):
    """einsum with dots and a diagonal, addmm with factors, hypot, products that go on, and .mT."""

    def __init__(self):
        super().__init__()
        self.w, self.b, self.fc = nn.Parameter(torch.randn(4, 4) * 0.4), nn.Parameter(torch.randn(8)), nn.Linear(10, 4)
        self.v = nn.Parameter(torch.randn(8, 8) * 0.3)

    def forward(self, x):
        x = torch.addmm(self.b, x, self.v, beta=0.5, alpha=2.0)
        y = torch.einsum("...c,cd->...d", x.view(-1, 2, 4), self.w)
        square = torch.einsum("bii->bi", y.mT @ y)
        return self.fc(torch.cat([square, torch.hypot(y[:, 0], y[:, 1] + 3), torch.cumprod(x[:, :2].sigmoid(), 1)], 1))


class Reshaped(nn.Module):
    """The weights of a layer as a value of another shape, and its length."""

    def __init__(self):
        super().__init__()
        self.a, self.fc = nn.Linear(8, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(self.a(x) / self.a.weight.norm(dim=1))


class Starts(nn.Module):
    """Recurrent layers that start from learned states, from what another one ends with, and from what a layer computes."""

    def __init__(self):
        super().__init__()
        self.h, self.c = nn.Parameter(torch.zeros(4, 1, 6)), nn.Parameter(torch.randn(4, 1, 6))
        self.a = nn.LSTM(5, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.b, self.e, self.fc = nn.GRU(12, 12, batch_first=True), nn.RNN(12, 6), nn.Linear(6, 4)

    def forward(self, x):
        n = len(x)
        y, (h, _) = self.a(x, (self.h.expand(-1, n, -1).contiguous(), self.c.repeat(1, n, 1)))
        y, _ = self.b(y, torch.cat([h[2], h[3]], 1)[None])
        return self.fc(self.e(y.transpose(0, 1), torch.tanh(y[:, :1, :6]).transpose(0, 1).contiguous())[1][0])


class Frames(nn.Module):
    """Images of each sample: a convolution of each, then the row of them."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 3, stride=2, padding=(1, 2)), nn.BatchNorm2d(6)
        self.c = nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=3, bias=False)
        self.r, self.fc = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x):
        y = F.max_pool2d(torch.tanh(self.b(self.a(x.flatten(0, 1)))), 2, 1)
        y = F.adaptive_avg_pool2d(F.avg_pool2d(torch.tanh(self.c(y)), 2), 1)
        return self.fc(self.r(y.view(*x.shape[:2], 6))[0][:, -1])


class Pooled(nn.Module):
    """Adaptive max pools whose windows differ, overlap, or keep a dimension."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 4, 3), nn.Conv1d(4, 3, 2), nn.Linear(21, 4)

    def forward(self, x):
        y = nn.AdaptiveMaxPool2d((3, None))(self.a(x)).amax(2)
        y = F.adaptive_max_pool1d(self.b(y), 5)
        return self.fc(torch.cat([y.flatten(1), F.adaptive_max_pool2d(torch.relu(self.a(x)), (3, 5)).mean(1)[:, :2, :3].flatten(1)], 1))


class Placed(nn.Module):
    """What stands at constant places, some of them several times, of a value and of its function."""

    def __init__(self):
        super().__init__()
        self.a, self.fc = nn.Linear(8, 6), nn.Linear(12, 4)

    def forward(self, x):
        y = self.a(x)
        again = torch.tanh(y).gather(1, torch.tensor([[3, 3, 0, 5]]).expand(len(x), -1)) ** 2
        rows = torch.take_along_dim(y.view(-1, 3, 2), torch.tensor([[[2], [0]]]), 1)
        return self.fc(torch.cat([again, rows.flatten(1), y.view(-1, 2, 3).gather(1, torch.tensor([[[1, 0, 1]]]).expand(len(x), -1, -1)).flatten(1) * y[:, [0]], y[:, -1:]], 1))


class Biases(nn.Module):
    """A bias in two places, and biases that are trained while their weights are not."""

    def __init__(self):
        super().__init__()
        self.conv, self.a, self.b, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 4)
        self.conv.weight.requires_grad_(False)
        self.fc.weight.requires_grad_(False)

    def forward(self, x):
        y = torch.tanh(self.a(torch.tanh(self.conv(x)).mean((2, 3))))
        return self.fc(torch.tanh(self.b(y) + self.a.bias) + torch.tanh(F.linear(y, self.b.weight.t(), self.a.bias)))


class Written(nn.Module):
    """Values that are written into others, conditions, differences and a choice that is none."""

    def __init__(self):
        super().__init__()
        self.a, self.fc = nn.Linear(8, 6), nn.Linear(6, 4)

    def forward(self, x):
        x = self.a(x)
        y = torch.zeros_like(x)
        y[:, 1:3] = x[:, :2] * 2
        y[:, 5] = 0.5
        y = y * ((x > 0) ^ (x.flip(1) > 0)) * x.argmax(1, keepdim=True).float() + (torch.round(x) == 1) * x.square() + torch.minimum(x, -x)
        return self.fc(torch.lerp(y, x, 0.3) + torch.cat([torch.diff(x, dim=1), torch.hstack([x[:, :1]])], 1))


class Directions(nn.Module):
    """The angle of a point, and the experts that are chosen: the others' scores are minus infinity."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.gate = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        scores, places = self.gate(x).topk(2, -1)
        weights = torch.full((len(x), 4), -math.inf).scatter(-1, places, scores).softmax(-1)
        return torch.atan2(self.a(x), self.b(x)) * weights


class Codes(nn.Module):
    """Columns of codes with embeddings of their own, which have different numbers of rows, beside numbers."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.fc = nn.Embedding(5, 3), nn.Embedding(7, 4), nn.Linear(11, 3)

    def forward(self, codes, x):
        return self.fc(torch.tanh(torch.cat([self.a(codes[:, 0]), self.b(codes[:, 1]), x], 1)))


IMAGE, VECTOR = torch.zeros(1, 3, 10, 10), torch.zeros(2, 8)


class Odd(nn.Module):
    """Distances of an odd power, a dimension moved from the end, and a bias that the model computes with, too."""

    def __init__(self):
        super().__init__()
        self.w, self.b, self.p = nn.Parameter(torch.randn(6, 6) * 0.3), nn.Parameter(torch.zeros(6)), nn.Parameter(torch.randn(3, 6))
        self.fc = nn.Linear(9, 4)

    def forward(self, x):
        for k in range(3):
            x = torch.tanh(F.linear(x, self.w if k % 2 else self.w.t(), self.b * (k + 1)))
        near = F.pairwise_distance(x[:, None], self.p, 3.0)
        return self.fc(torch.cat([near, x.reshape(-1, 2, 3).movedim(-1, -2).flatten(1).softmax(-1)], 1))


class MaskedPadding(nn.Module):
    """Embeddings of padding, which a learned position made no zeros, left out of a sum."""

    def __init__(self):
        super().__init__()
        self.e, self.at, self.fc = nn.Embedding(9, 6, padding_idx=0), nn.Parameter(torch.randn(5, 6)), nn.Linear(6, 4)

    def forward(self, x):
        seen = x.eq(0)
        return self.fc((self.e(x) + self.at).masked_fill(seen[..., None], 0).sum(1) / (~seen).sum(1, keepdim=True).clamp(min=1))


class Patches(nn.Module):
    """Batch norm of the rows of each channel by itself, folded into the batch."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.fc = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(30, 4)

    def forward(self, x):
        y = self.up(x.view(-1, 3, 2, 4)).flatten(0, 1)
        return self.fc(torch.tanh(self.norm(y.transpose(1, 2)).transpose(1, 2)).reshape(len(x), -1))


class Latents(nn.Module):
    """A norm of a parameter, and of samples; a frozen table of which two layers read parts."""

    def __init__(self):
        super().__init__()
        self.latents, self.norm = nn.Parameter(torch.randn(4, 8)), nn.LayerNorm(8)
        self.table = nn.Parameter(torch.randn(3, 16), requires_grad=False)
        self.cross, self.fc = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        x = x.view(-1, 3, 8) * self.table[:, :8] + self.table[:, 1::2]
        z = self.latents.unsqueeze(0).repeat(x.size(0), 1, 1)
        for _ in range(2):
            z = z + self.cross(self.norm(z), x, x, need_weights=False)[0]
        return self.fc(torch.baddbmm(z, batch1=z, batch2=z.transpose(1, 2) @ z, beta=0.5, alpha=0.1).mean(1))


class Numbers(nn.Module):
    """Tokens as numbers beside their embedding: the largest one's place, and a sum."""

    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(TOKENS, 6), nn.Linear(7, 3)

    def forward(self, x):
        y = self.embed(x)
        return self.fc(torch.cat([y[torch.arange(len(x)), x.argmax(-1)], x.float().mean(1, keepdim=True) / TOKENS], 1))


class ColumnsOfCodes(nn.Module):
    """One table for all columns of codes, with the row where each column's begin."""

    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(15, 4), nn.Linear(14, 3)
        self.register_buffer("begins", torch.tensor([0, 5, 10]))

    def forward(self, codes, x):
        return self.fc(torch.cat([self.embed(codes + self.begins).flatten(1), x], 1))


class Standardised(nn.Module):
    """A convolution whose weights F.batch_norm standardises, a pool that is larger than the image, and a part without elements."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 6, 3), nn.Linear(6, 3)

    def forward(self, x):
        w = F.batch_norm(self.conv.weight.reshape(1, 6, -1), None, None, training=True, momentum=0.0, eps=1e-6)
        y = F.avg_pool2d(torch.tanh(F.conv2d(x, w.reshape_as(self.conv.weight), self.conv.bias)), 64, ceil_mode=True).flatten(1)
        return self.fc(torch.cat([y[:, :6].sin(), y[:, 6:]], 1))


class Caches(nn.Module):
    """What a forward pass in eval mode keeps, with the graph of its gradients."""

    def __init__(self):
        super().__init__()
        self.bias, self.fc, self.kept = nn.Parameter(torch.randn(8)), nn.Linear(8, 3), {}

    def forward(self, x):
        if self.training:
            return self.fc(x * self.bias.tanh())
        if "bias" not in self.kept:
            self.kept["bias"] = self.bias.tanh()
        return self.fc(x * self.kept["bias"])


class Precisions(nn.Module):
    """A constant in bfloat16, a choice between values by a constant condition, and samples in double."""

    def __init__(self):
        super().__init__()
        self.a, self.fc = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x):
        y = self.a(x) + (torch.tensor([0.3]).bfloat16() * torch.arange(6)).reshape(1, 6).to(x.dtype)
        seen = torch.ones_like(y).sum(-1, keepdim=True)
        y = torch.where(seen > 0, y, y.mean(0, keepdim=True))
        return self.fc(torch.softmax(y.double(), -1).to(self.fc.weight.dtype))


class ExpertWeights(nn.Module):
    """The weights of the experts that a sample chooses, read from one parameter."""

    def __init__(self):
        super().__init__()
        self.gate, self.w, self.fc = nn.Linear(8, 4), nn.Parameter(torch.randn(4, 5, 8) / 3), nn.Linear(5, 3)

    def forward(self, x):
        share, places = torch.topk(torch.softmax(self.gate(x), -1), 2, -1)
        return self.fc(((self.w[places] @ x[:, None, :, None]).squeeze(-1) * share.unsqueeze(-1)).sum(1))


class Spectral(nn.Module):
    """As Fourier neural operators: complex weights of the first frequencies, written into zeros."""

    def __init__(self):
        super().__init__()
        self.lift, self.fc = nn.Conv2d(2, 4, 1), nn.Linear(4, 3)
        self.low, self.high = (nn.Parameter(torch.randn(4, 4, 2, 3, dtype=torch.cfloat) / 4) for _ in range(2))

    def forward(self, x):
        x = self.lift(x)
        found = torch.fft.rfft2(x)
        kept = torch.zeros(x.shape[0], 4, x.size(-2), x.size(-1) // 2 + 1, dtype=torch.cfloat, device=x.device)
        kept[:, :, :2, :3] = torch.einsum("bixy,ioxy->boxy", found[:, :, :2, :3], self.low)
        kept[:, :, -2:, :3] = torch.einsum("bixy,ioxy->boxy", found[:, :, -2:, :3], self.high)
        return self.fc(torch.tanh(torch.fft.irfft2(kept, s=x.shape[-2:])).mean((2, 3)))


class Filtered(nn.Module):
    """As global filter networks and Wiener filters."""

    def __init__(self):
        super().__init__()
        self.a, self.fc = nn.Linear(8, 9), nn.Linear(9, 3)
        self.pairs, self.other = nn.Parameter(torch.randn(5, 2)), nn.Parameter(torch.randn(5, dtype=torch.cfloat))

    def forward(self, x):
        f = torch.fft.rfft(self.a(x), norm="ortho") * torch.view_as_complex(self.pairs)
        f = f * self.other.conj() / (self.other.abs() ** 2 + 0.1) + f * (0.5 + 0.2j)
        f = 1j * f - f.conj() / (f * f.conj() + 1.0) + torch.exp(1j * f.real)
        y = torch.fft.ifft(torch.fft.fft(x, n=9, norm="forward"), norm="forward").real
        return self.fc(torch.tanh(torch.fft.irfft(f, n=9, norm="ortho") + y) + torch.fft.fftshift(torch.fft.fftn(x[:, None], dim=(1, 2)).abs(), dim=2)[:, :, :1].mean(1))


class Mixed(nn.Module):
    """Complex values beside real ones and plain numbers, in place, adjoint, under no_grad() and by keywords."""

    def __init__(self):
        super().__init__()
        self.a, self.w, self.fc = nn.Linear(8, 8), nn.Parameter(torch.randn(5, dtype=torch.cfloat)), nn.Linear(8, 3)
        self.register_buffer("turn", torch.randn(4, 4, dtype=torch.cfloat))

    def forward(self, x):
        x = self.a(x)
        f = torch.fft.rfft(input=x)
        f.mul_(self.w)
        f = torch.where(torch.arange(5) > 3, f.masked_fill(torch.arange(5) < 1, 1.0), 2.0) ** 2.0 + 1.0 / (f + 9.0)
        with torch.no_grad():
            kept = torch.fft.rfft(x)
        f = f + kept + (3.0 if f.is_cuda else 0.0) + f.data
        y = torch.fft.fft(x.view(-1, 2, 4)) @ self.turn.mH
        y = y.mH.real.flatten(1) + y.imag.flatten(1) + torch.fft.fft(x).type_as(x)
        return self.fc(torch.tanh(torch.fft.irfft(f, 8) + y))


class Rotated(nn.Module):
    """Positions as complex rotations, as in Llama's own code."""

    def __init__(self):
        super().__init__()
        self.embed, self.q, self.fc = nn.Embedding(TOKENS, 8), nn.Linear(8, 8), nn.Linear(8, TOKENS)
        angles = torch.outer(torch.arange(6.0), torch.tensor([1.0, 0.1]))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, x):
        q = self.q(self.embed(x)).view(*x.shape, 2, 4)
        q = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2)) * self.turns[:x.shape[1]].view(1, -1, 1, 2)
        q = torch.view_as_real(q).flatten(3).transpose(1, 2)
        return self.fc(F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2))


class Spectrogram(nn.Module):
    """Masks of a short-time Fourier transform, and the power of what is left."""

    def __init__(self):
        super().__init__()
        self.mask, self.fc = nn.Conv1d(9, 9, 3, padding=1), nn.Linear(9, 3)
        self.register_buffer("window", torch.hann_window(16))

    def forward(self, x):
        f = torch.stft(x, 16, hop_length=8, window=self.window, return_complex=True)
        y = torch.istft(f * torch.sigmoid(self.mask(torch.log1p(f.abs()))), 16, hop_length=8, window=self.window, length=40)
        again = torch.view_as_real(torch.stft(y, 16, hop_length=4, win_length=12, window=self.window[:12], center=False, return_complex=True))
        return self.fc(again.pow(2).sum(-1).mean(-1))


class StateSpace(nn.Module):
    """As S4D: a kernel of complex exponentials of the parameters, convolved by transforms."""

    def __init__(self):
        super().__init__()
        self.a, self.fc, self.decay = nn.Linear(2, 3), nn.Linear(3, 3), nn.Parameter(torch.rand(3, 2))
        self.turn, self.c = nn.Parameter(torch.rand(3, 2)), nn.Parameter(torch.randn(3, 2, dtype=torch.cfloat))

    def forward(self, x):
        x, n = self.a(x).transpose(1, 2), int(x.shape[1])
        rates = (-torch.exp(self.decay) + 1j * self.turn).unsqueeze(-1) * (torch.arange(n) / 8)
        kernel = 2 * torch.einsum("hn,hnl->hl", self.c, torch.exp(rates)).real
        y = torch.fft.irfft(torch.fft.rfft(x, n=2 * n) * torch.fft.rfft(kernel, n=2 * n), n=2 * n)[..., :n]
        return self.fc(F.gelu(y).mean(-1))


class Undivided(nn.Module):
    """Stochastic depth that does not divide by the share that it keeps, as timm's drop_path with scale_by_keep=False. `kept`: what evaluation
    multiplies by; as the first paper of it does, the share."""

    def __init__(self, kept=1.0):
        super().__init__()
        self.a, self.fc, self.kept = nn.Linear(8, 8), nn.Linear(8, 4), kept

    def forward(self, x):
        y = torch.tanh(self.a(x))
        return self.fc(x + (y * (torch.rand(len(y), 1) < 0.75) if self.training else y * self.kept))


# mfl computes what PyTorch computes.
PROVED = {
    **({"kinds": (Kinds, torch.zeros(1, 6))} if hasattr(nn, "RMSNorm") else {}), "distances": (Distances, tokens()), "same-volume": (SameVolume, torch.zeros(1, 2, 3, 4, 5)),
    "undivided": (Undivided, VECTOR),
    "odd": (Odd, torch.zeros(1, 6)), "masked-padding": (MaskedPadding, torch.tensor([[3, 0, 8, 1, 0]])),
    "codes": (Codes, (torch.tensor([[4, 6]]), torch.ones(1, 4))),
    "cnn": (Cnn, IMAGE), "norms": (lambda: Norms(True), torch.zeros(1, 1, 8, 8)), "affine-false": (Norms, torch.zeros(1, 1, 8, 8)),
    "vectors": (vectors, VECTOR), "backbone": (Backbone, VECTOR), "buffers": (Buffered, VECTOR),
    "lstm": (lambda: Recurrent(nn.LSTM), tokens()), "gru": (lambda: Recurrent(nn.GRU), tokens()),
    "rnn": (lambda: Recurrent(nn.RNN), tokens()),
    "rnn-both": (lambda: States(nn.RNN, num_layers=2, bidirectional=True), tokens()),
    "rnn-relu": (lambda: States(nn.RNN, nonlinearity="relu", bidirectional=True), tokens()),
    "lstm-states": (lambda: States(nn.LSTM, num_layers=2, bidirectional=True), tokens()),
    "gru-states": (lambda: States(nn.GRU, num_layers=2, bidirectional=True), tokens()),
    "attention": (Attention, tokens()), "gpt": (Gpt, tokens()), "lora": (Lora, VECTOR),
    "uneven": (Uneven, IMAGE), "scores": (Scores, tokens(8)), "few-queries": (lambda: Scores(True), tokens(8)),
    "bags": (Bags, tokens()), "shifted": (Shifted, IMAGE), "positions": (Positions, tokens(8)),
    "masked": (Masked, tokens()), "masked-joined": (Joined, tokens()), "counted": (Counted, tokens()),
    "two-inputs": (TwoInputs, (IMAGE, VECTOR[:1])), "twins": (Twins, (tokens(), tokens(5), torch.ones(1, 5, dtype=torch.long))),
    "queries": (Queries, torch.zeros(1, 6, 8)), "volume": (Volume, torch.zeros(1, 2, 5, 6, 12)),
    "tied": (lambda: Gpt(tied=True), tokens()), "siamese": (Siamese, VECTOR), "padded": (Padded, tokens()),
    "lstm-cell": (lambda: Cells(nn.LSTMCell), torch.zeros(1, 4, 6)), "gru-cell": (lambda: Cells(nn.GRUCell), torch.zeros(1, 4, 6)),
    "rnn-cell": (lambda: Cells(nn.RNNCell, bias=False), torch.zeros(1, 4, 6)), "sums": (Sums, VECTOR),
    "straight": (Straight, VECTOR), "joints": (Joints, IMAGE), "offsets": (Offsets, torch.arange(3).reshape(1, 3)),
    "rewritten": (Rewritten, VECTOR), "frozen-norm": (frozen_norm, IMAGE), "sums-of-letters": (Letters, VECTOR), "reshaped": (Reshaped, VECTOR),
    "experts": (Experts, VECTOR), "last-word": (LastWord, tokens()),
    "log-softmax": (lambda: nn.Sequential(nn.Linear(8, 4), nn.LogSoftmax(1)), VECTOR),
    "pooled": (Pooled, torch.zeros(1, 3, 10, 11)), "placed": (Placed, VECTOR),
    "frames": (Frames, torch.zeros(1, 3, 3, 9, 11)), "biases": (Biases, IMAGE), "angles": (Angles, VECTOR),
    "half-norms-scale": (lambda: HalfNorms("weight"), torch.zeros(2, 3, 10, 10)), "half-norms-shift": (lambda: HalfNorms("bias"), torch.zeros(2, 3, 10, 10)),
    "half-twice-scale": (lambda: HalfTwice("weight"), torch.zeros(2, 3, 10, 10)), "half-twice-shift": (lambda: HalfTwice("bias"), torch.zeros(2, 3, 10, 10)),
    "resized": (Resized, torch.zeros(1, 3, 5, 7)), "written": (Written, VECTOR),
    "starts": (Starts, torch.zeros(1, 4, 5)), "merged": (Merged, VECTOR), "windows": (Windows, IMAGE), "deep": (Deep, torch.zeros(1, 3, 18, 18)),
    "patches": (Patches, torch.zeros(1, 24)), "latents": (Latents, torch.zeros(1, 24)), "standardised": (Standardised, IMAGE), "caches": (Caches, VECTOR),
    "columns-of-codes": (ColumnsOfCodes, (torch.tensor([[4, 4, 4]]), torch.ones(1, 2))),
}
if int(torch.__version__.split(".")[0]) > 1:  # what PyTorch 1 does not have, or does not export
    PROVED.update({"precisions": (Precisions, VECTOR), "expert-weights": (ExpertWeights, VECTOR), "spectral": (Spectral, torch.zeros(1, 2, 6, 8)), "filtered": (Filtered, VECTOR), "mixed": (Mixed, VECTOR), "normed-filter": (lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 8)), Filtered()), VECTOR), "rotated": (Rotated, tokens()), "spectrogram": (Spectrogram, torch.zeros(1, 40)),
                   "state-space": (StateSpace, torch.zeros(1, 8, 2))})
    PROVED.update({"codebook": (Codebook, VECTOR), "numbers": (Numbers, tokens()), "products": (Products, VECTOR), "directions": (Directions, VECTOR), "masked-causal": (lambda: Masked(True), tokens()), "filled": (Filled, tokens()), "jumps": (Jumps, VECTOR), "branches": (Branches, IMAGE)})
# What mfl can't do, and what it says.
REFUSED = {
    "partial": (partial, torch.zeros(1, 4, 6), "is trained, but 0.weight_ih_l0 is not"),
    "own-backward": (lambda: nn.Sequential(nn.Linear(8, 6), Rounds(), nn.Linear(6, 4)), VECTOR,
                     "1 (Rounds) has a gradient of its own, Nearest.backward(), which no ONNX file says"),
    "momentum-0": (lambda: nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4, momentum=0.0)), VECTOR, "momentum and eps must be above 0"),
    "eps-0": (lambda: nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4, eps=0.0), nn.Linear(4, 3)), VECTOR, "needs an eps above 0"),
    "undivided-share": (lambda: Undivided(0.75), VECTOR, "differ"),
}
