# SPDX-License-Identifier: Apache-2.0
"""The models of bench/zoo.py: FAMILIES[family][name] is an entry with make(), example(batch) and logits(output)."""
import math

import torch
from torch import nn
from torch.nn import functional as F


class Entry:
    def __init__(self, make, shape, tokens=0, batch=2, logits=None, lr=0.05, auxiliary=()):
        """auxiliary: the weights of the losses of the outputs after the first."""
        self.make, self.shape, self.tokens, self.batch, self.lr, self.auxiliary = make, shape, tokens, batch, lr, auxiliary
        self.logits = logits or (lambda out: out)

    def example(self, n):
        if self.tokens:
            return torch.randint(1, self.tokens, (n, *self.shape))
        return torch.randn(n, *self.shape)


# ---- torchvision ----

def torchvision_models():
    from torchvision import models
    entries = {}
    sizes = {"inception_v3": 299, "maxvit_t": 224}  # the smallest for inception's auxiliary output; 224 for maxvit's partitions
    for name in models.list_models(module=models):
        options = {"num_classes": 10}
        size = sizes.get(name, 64)
        if name.startswith("vit_"):
            options["image_size"] = size = 56 if name == "vit_h_14" else 64
        if name == "inception_v3":
            options["init_weights"] = False
        if name == "googlenet":
            options["init_weights"] = False
        entries[name] = Entry(lambda name=name, options=options: models.get_model(name, weights=None, **options), (3, size, size),
                              lr=1e-4, batch=2 if size > 64 else 4,
                              auxiliary={"googlenet": (0.3, 0.3), "inception_v3": (0.3,)}.get(name, ()),
                              logits=lambda out: out[0] if isinstance(out, tuple) else out)
    # vgg has 100 M weights in its first dense layer alone: the same layers, narrower.
    for name, config in (("vgg11", "A"), ("vgg13_bn", "B"), ("vgg16_bn", "D"), ("vgg19", "E")):
        entries[name + "_narrow"] = Entry(lambda name=name, config=config: narrow_vgg(config, "bn" in name), (3, 64, 64), lr=1e-4, batch=4)
    return entries


def narrow_vgg(config, norm, by=8):
    from torchvision.models import vgg
    layers = [c if c == "M" else c // by for c in vgg.cfgs[config]]
    net = vgg.VGG(vgg.make_layers(layers, batch_norm=norm), num_classes=10)
    net.classifier[0], net.classifier[3], net.classifier[6] = nn.Linear(512 // by * 49, 512), nn.Linear(512, 512), nn.Linear(512, 10)
    return net


# ---- modules of the kinds that people write ----

class Calls(nn.Module):
    """A net whose forward is a function of itself and x."""

    def __init__(self, forward, **parts):
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)
        self.fn = [forward]

    def forward(self, x):
        return self.fn[0](self, x)


def seq(*parts):
    return lambda: nn.Sequential(*[p() if callable(p) and not isinstance(p, nn.Module) else p for p in parts])


def text_cnn():
    return Calls(lambda m, x: m.fc(torch.cat([torch.relu(c(m.embed(x).transpose(1, 2))).amax(2) for c in (m.c3, m.c4, m.c5)], 1)),
                 embed=nn.Embedding(50, 16, padding_idx=0), c3=nn.Conv1d(16, 8, 3), c4=nn.Conv1d(16, 8, 4), c5=nn.Conv1d(16, 8, 5),
                 fc=nn.Linear(24, 4))


class TemporalBlock(nn.Module):
    def __init__(self, i, o, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.c1, self.c2 = nn.Conv1d(i, o, 3, padding=self.pad, dilation=dilation), nn.Conv1d(o, o, 3, padding=self.pad, dilation=dilation)
        self.down = nn.Conv1d(i, o, 1) if i != o else None

    def forward(self, x):
        y = torch.relu(self.c1(x)[:, :, :-self.pad])
        y = torch.relu(self.c2(y)[:, :, :-self.pad])
        return torch.relu(y + (x if self.down is None else self.down(x)))


def tcn():
    return Calls(lambda m, x: m.fc(m.net(x)[:, :, -1]), net=nn.Sequential(TemporalBlock(3, 8, 1), TemporalBlock(8, 8, 2)), fc=nn.Linear(8, 4))


def rnn(kind, **options):
    def make():
        layer = kind(6, 7, batch_first=True, **options)
        return Calls(lambda m, x: m.fc(m.rnn(x)[0][:, -1]), rnn=layer, fc=nn.Linear(7 * (2 if options.get("bidirectional") else 1), 4))
    return make


def rnn_state(kind):
    def make():
        def forward(m, x):
            state = m.rnn(x)[1]
            return m.fc((state[0] if isinstance(state, tuple) else state)[-1])
        return Calls(forward, rnn=kind(6, 7, num_layers=2, batch_first=True), fc=nn.Linear(7, 4))
    return make


def cell_state():
    return Calls(lambda m, x: m.fc(m.rnn(x)[1][1][-1]), rnn=nn.LSTM(6, 7, batch_first=True), fc=nn.Linear(7, 4))


class UNet(nn.Module):
    def __init__(self, up="transpose"):
        super().__init__()
        block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())
        self.d1, self.d2, self.mid = block(3, 8), block(8, 16), block(16, 32)
        grow = {"transpose": lambda i, o: nn.ConvTranspose2d(i, o, 2, 2),
                "bilinear": lambda i, o: nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.Conv2d(i, o, 1)),
                "nearest": lambda i, o: nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(i, o, 1))}[up]
        self.u2, self.u1, self.e2, self.e1 = grow(32, 16), grow(16, 8), block(32, 16), block(16, 8)
        self.out = nn.Conv2d(8, 5, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        y = self.mid(F.max_pool2d(b, 2))
        y = self.e2(torch.cat([self.u2(y), b], 1))
        return self.out(self.e1(torch.cat([self.u1(y), a], 1)))


def pixels(out):
    return out.flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions, as in Llama."""

    def __init__(self, d=16, heads=4, kv=2, t=8):
        super().__init__()
        self.heads, self.kv, self.hd = heads, kv, d // heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, n, bias=False) for n in (d, kv * self.hd, kv * self.hd, d))
        inverse = 1.0 / 10000 ** (torch.arange(0, self.hd, 2).float() / self.hd)
        angle = torch.outer(torch.arange(t).float(), inverse)
        self.register_buffer("cos", torch.cat([angle, angle], 1).cos())
        self.register_buffer("sin", torch.cat([angle, angle], 1).sin())
        self.register_buffer("mask", torch.full((t, t), -1e9).triu(1))

    def turn(self, x):
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin

    def forward(self, x):
        b, t, _ = x.shape
        split = lambda y, n: y.view(b, t, n, self.hd).transpose(1, 2)
        q, k, v = self.turn(split(self.q(x), self.heads)), self.turn(split(self.k(x), self.kv)), split(self.v(x), self.kv)
        k, v = (y.repeat_interleave(self.heads // self.kv, 1) for y in (k, v))
        w = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(self.hd) + self.mask, -1)
        return self.o((w @ v).transpose(1, 2).reshape(b, t, -1))


def grouped_query():
    return Calls(lambda m, x: m.fc((m.e(x) + m.a(m.n(m.e(x)))).mean(1)), e=nn.Embedding(30, 16), n=nn.LayerNorm(16), a=Attention(),
                 fc=nn.Linear(16, 4))


def cross_attention():
    def forward(m, x):
        q = m.queries.expand(x.size(0), -1, -1)
        return m.fc(m.a(q, x, x, need_weights=False)[0].flatten(1))
    return Calls(forward, queries=nn.Parameter(torch.randn(1, 3, 16)), a=nn.MultiheadAttention(16, 4, batch_first=True), fc=nn.Linear(48, 4))


def alibi():
    t, heads = 8, 4
    bias = -(torch.arange(t)[None] - torch.arange(t)[:, None]).abs().float() * (2.0 ** -torch.arange(1, heads + 1).float())[:, None, None]

    def forward(m, x):
        b = x.size(0)
        q, k, v = (y.view(b, t, heads, 4).transpose(1, 2) for y in m.qkv(x).chunk(3, -1))
        w = torch.softmax(q @ k.transpose(2, 3) / 2 + m.bias, -1)
        return m.fc((w @ v).transpose(1, 2).reshape(b, t, 16).mean(1))
    return Calls(forward, bias=bias, qkv=nn.Linear(16, 48), fc=nn.Linear(16, 4))


def window_attention():
    def forward(m, x):
        b = x.size(0)
        y = m.proj(x)                                                  # b 8 8 8
        y = y.view(b, 8, 2, 4, 2, 4).permute(0, 2, 4, 3, 5, 1).reshape(b * 4, 16, 8)
        q, k, v = m.qkv(y).chunk(3, -1)
        y = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(8), -1) @ v
        return m.fc(y.reshape(b, 4, 16, 8).mean((1, 2)))
    return Calls(forward, proj=nn.Conv2d(3, 8, 1), qkv=nn.Linear(8, 24), fc=nn.Linear(8, 4))


def tied_gpt():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(30, 16), nn.Embedding(8, 16)
            self.block = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True, norm_first=True)
            self.ln, self.head = nn.LayerNorm(16), nn.Linear(16, 30, bias=False)
            self.head.weight = self.wte.weight
            self.register_buffer("mask", torch.full((8, 8), float("-inf")).triu(1))

        def forward(self, x):
            y = self.wte(x) + self.wpe(torch.arange(8, device=x.device))
            return self.head(self.ln(self.block(y, self.mask)))
    return Net()


def tied_autoencoder():
    return Calls(lambda m, x: F.linear(torch.tanh(m.fc(x)), m.fc.weight.t(), m.bias), fc=nn.Linear(12, 5), bias=nn.Parameter(torch.zeros(12)))


def siamese():
    return Calls(lambda m, x: m.fc((m.tower(x[:, :6]) - m.tower(x[:, 6:])).abs()),
                 tower=nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8)), fc=nn.Linear(8, 3))


def one_norm_twice():
    return Calls(lambda m, x: m.fc(torch.relu(m.bn(m.c2(torch.relu(m.bn(m.c1(x))))))).mean((2, 3)),
                 c1=nn.Conv2d(3, 8, 3), c2=nn.Conv2d(8, 8, 3), bn=nn.BatchNorm2d(8), fc=nn.Conv2d(8, 4, 1))


def residual_1d():
    return nn.Sequential(nn.Conv1d(3, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(8, 16, 3), nn.GroupNorm(4, 16),
                         nn.GELU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4))


def squeeze_excite():
    return Calls(lambda m, x: m.fc((lambda y: y * m.b(F.silu(m.a(y.mean((2, 3), keepdim=True)))).sigmoid())(m.c(x)).mean((2, 3))),
                 c=nn.Conv2d(3, 8, 3), a=nn.Conv2d(8, 2, 1), b=nn.Conv2d(2, 8, 1), fc=nn.Linear(8, 4))


def tabular():
    def forward(m, x):
        a, b = m.a(x[:, 0].long()), m.b(x[:, 1].long())
        return m.net(torch.cat([a, b, x[:, 2:]], 1))

    net = Calls(forward, a=nn.Embedding(5, 3), b=nn.Embedding(7, 4), net=nn.Sequential(nn.Linear(11, 16), nn.ReLU(), nn.Linear(16, 3)))
    return net


class Tabular(Entry):
    def example(self, n):
        return torch.cat([torch.randint(0, 5, (n, 2)).float(), torch.randn(n, 4)], 1)


class SlotAttention(nn.Module):
    """A weight for samples and for a parameter; a cell that is called twice."""

    def __init__(self):
        super().__init__()
        self.slots, self.k, self.v = nn.Parameter(torch.randn(1, 3, 8)), nn.Linear(6, 8, False), nn.Linear(6, 8, False)
        self.own, self.gru, self.fc = nn.Linear(8, 8, False), nn.GRUCell(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        slots, k, v = self.slots.expand(len(x), -1, -1), self.k(x), self.v(x)
        for _ in range(2):
            a = (torch.einsum("bnd,bsd->bns", k, self.own(slots)) / 8 ** 0.5).softmax(-1) + 1e-8
            updates = torch.einsum("bns,bnd->bsd", a / a.sum(1, keepdim=True), v)
            slots = self.gru(updates.reshape(-1, 8), slots.reshape(-1, 8)).view(len(x), 3, 8)
        return self.fc(slots.mean(1))


def cut_gem(m, x):
    y = m.c(x).clamp(min=1e-6).pow(m.p)
    return m.fc(F.avg_pool2d(y, tuple(y.shape[-2:])).pow(1.0 / m.p).flatten(1))


def cross_network(m, x):
    y = x
    for w, b in zip(m.w, m.b):
        y = x * (y @ w).unsqueeze(-1) + b + y
    return m.fc(y)


def more_entries(image, series, text):
    """Steps, conditions, orders, powers, volumes in groups, and parameters as vectors."""
    L, P = nn.Linear, nn.Parameter
    vector, volume = (7,), (4, 4, 6, 6)
    of = lambda forward, **parts: lambda: Calls(forward, **{k: part() for k, part in parts.items()})
    a, fc = lambda: L(7, 6), lambda: L(6, 3)
    return {
        "gem-pool": Entry(of(cut_gem, c=lambda: nn.Conv2d(3, 6, 3), p=lambda: P(torch.ones(1) * 3), fc=fc), image),
        "where-learned-slopes": Entry(of(lambda m, x: (lambda y: m.fc(torch.where(y > 0, y, m.p * y)))(m.a(x)), a=a, p=lambda: P(torch.rand(6)), fc=fc), vector),
        "huber-activation": Entry(of(lambda m, x: (lambda y: m.fc(torch.where(y.abs() <= 1, 0.5 * y * y, y.abs() - 0.5)))(m.a(x)), a=a, fc=fc), vector),
        "hard-attention": Entry(of(lambda m, x: (lambda w: m.fc((w * (w > 0.15) * x).sum(1)))(m.w(x).softmax(1)), w=lambda: L(6, 1), fc=fc), series),
        "ternary-weights": Entry(of(lambda m, x: m.fc(F.linear(x, m.a.weight * (m.a.weight.abs() > 0.1), m.a.bias)), a=a, fc=fc), vector),
        "binary-weights": Entry(of(lambda m, x: m.fc(F.linear(x, m.a.weight.sign() * m.a.weight.abs().mean(), m.a.bias)), a=a, fc=fc), vector),
        "rounded-features": Entry(of(lambda m, x: (lambda y: m.fc(y + torch.round(y) - torch.floor(2 * y)))(m.a(x)), a=a, fc=fc), vector),
        "signed-root": Entry(of(lambda m, x: (lambda y: m.fc(torch.sign(y) * (y.abs() + 1e-3).sqrt()))(m.a(x)), a=a, fc=fc), vector),
        "noisy-or": Entry(of(lambda m, x: m.fc(1 - torch.prod(1 - m.a(x).sigmoid(), 1)), a=lambda: L(6, 6), fc=fc), series),
        "k-max-pool": Entry(of(lambda m, x: m.fc(m.c(m.e(x).transpose(1, 2)).topk(2, 2)[0].flatten(1)), e=lambda: nn.Embedding(15, 6),
                               c=lambda: nn.Conv1d(6, 3, 3), fc=fc), text, 15),
        "median-pool": Entry(of(lambda m, x: m.fc(m.c(x).median(2)[0]), c=lambda: nn.Conv1d(6, 6, 2), fc=fc), series),
        "one-hot": Entry(of(lambda m, x: m.fc(m.a(F.one_hot(x, 7).float()).tanh().mean(1)), a=a, fc=fc), text, 7),
        "cross-network": Entry(of(cross_network, w=lambda: nn.ParameterList([torch.randn(7) * 0.3 for _ in range(2)]),
                                  b=lambda: nn.ParameterList([torch.randn(7) * 0.1 for _ in range(2)]), fc=lambda: L(7, 3)), vector),
        "factorization-machine": Entry(of(lambda m, x: m.fc(x) + 0.5 * ((x @ m.v) ** 2 - (x ** 2) @ (m.v ** 2)).sum(1, keepdim=True),
                                          v=lambda: P(torch.randn(7, 4) * 0.3), fc=lambda: L(7, 3)), vector),
        "outer-product-weights": Entry(of(lambda m, x: m.fc(torch.tanh(x @ torch.outer(m.v, m.u))), v=lambda: P(torch.randn(7)),
                                          u=lambda: P(torch.randn(6)), fc=fc), vector),
        "slot-attention": Entry(SlotAttention, series),
        "encoder-decoder": Entry(of(lambda m, x: m.fc(m.t(x, m.q.expand(len(x), -1, -1)).mean(1)), t=lambda: nn.Transformer(6, 2, 1, 1, 16, 0.0, batch_first=True),
                                    q=lambda: P(torch.randn(1, 3, 6)), fc=fc), series),
        "conv3d-groups": Entry(seq(nn.Conv3d(4, 8, 3, padding=1, groups=2), nn.ReLU(), nn.Conv3d(8, 6, (1, 3, 3), groups=2), nn.Flatten(), L(6 * 64, 4)), volume),
        "convtranspose3d": Entry(seq(nn.ConvTranspose3d(4, 4, 3, 2, 1, 1, groups=2), nn.InstanceNorm3d(4, affine=True), nn.ReLU(), nn.AdaptiveAvgPool3d(1),
                                     nn.Flatten(), L(4, 4)), volume),
        "depthwise-weight-norm": Entry(lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv1d(6, 6, 3, groups=6)), nn.Tanh(), nn.Flatten(),
                                                             L(24, 3)), series),
        "capsules": Entry(of(lambda m, x: (lambda u: (u * u).sum(-1) / (1 + (u * u).sum(-1)) * m.s.sigmoid())(m.a(x).view(-1, 3, 2)), a=a,
                             s=lambda: P(torch.zeros(3))), vector),
        "statistics-pool": Entry(of(lambda m, x: m.fc((lambda y: torch.cat([y.mean(2), y.std(2)], 1))(F.relu(m.c(x)))), c=lambda: nn.Conv1d(6, 3, 3), fc=fc), series),
    }


def module_entries():
    image, series, text = (3, 16, 16), (6, 6), (8,)
    vector = lambda f: seq(nn.Linear(10, 16), f, nn.Linear(16, 4))
    e = {
        "textcnn": Entry(text_cnn, (12,), 50),
        "tcn": Entry(tcn, (3, 16)),
        "conv1d-resnet": Entry(residual_1d, (3, 32)),
        "lstm-bidirectional": Entry(rnn(nn.LSTM, bidirectional=True), series),
        "gru-bidirectional": Entry(rnn(nn.GRU, bidirectional=True), series),
        "rnn-tanh": Entry(rnn(nn.RNN), series),
        "lstm-last-state": Entry(rnn_state(nn.LSTM), series),
        "gru-last-state": Entry(rnn_state(nn.GRU), series),
        "lstm-cell-state": Entry(cell_state, series),
        "unet-transpose": Entry(UNet, image, logits=pixels),
        "unet-bilinear": Entry(lambda: UNet("bilinear"), image, logits=pixels),
        "unet-nearest": Entry(lambda: UNet("nearest"), image, logits=pixels),
        "pixel-shuffle": Entry(seq(nn.Conv2d(3, 16, 3, padding=1), nn.PixelShuffle(2), nn.ReLU(), nn.Conv2d(4, 5, 3)), image, logits=pixels),
        "reflect-pad": Entry(seq(nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)), image),
        "replicate-pad": Entry(seq(nn.ReplicationPad2d(2), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 18 * 18, 4)), image),
        "conv-same": Entry(seq(nn.Conv2d(3, 8, 4, padding="same"), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16 * 16, 4)), image),
        "avgpool-without-padding": Entry(seq(nn.Conv2d(3, 8, 3), nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.Flatten(), nn.Linear(392, 4)), image),
        "prelu": Entry(seq(nn.Conv2d(3, 8, 3), nn.PReLU(8), nn.Flatten(), nn.Linear(8 * 14 * 14, 4)), image),
        "grouped-query-rope": Entry(grouped_query, text, 30),
        "cross-attention": Entry(cross_attention, (7, 16)),
        "alibi": Entry(alibi, (8, 16)),
        "window-attention": Entry(window_attention, (3, 8, 8)),
        "tied-gpt": Entry(tied_gpt, text, 30),
        "tied-autoencoder": Entry(tied_autoencoder, (12,)),
        "siamese": Entry(siamese, (12,)),
        "one-norm-twice": Entry(one_norm_twice, image),
        "squeeze-excite": Entry(squeeze_excite, image),
        "layernorm-image": Entry(seq(nn.Conv2d(3, 4, 3), nn.LayerNorm([4, 14, 14]), nn.ReLU(), nn.Flatten(), nn.Linear(784, 4)), image),
        "instance-norm": Entry(seq(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), nn.Flatten(), nn.Linear(784, 4)), image),
        "batchnorm-without-affine": Entry(seq(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.ReLU(), nn.Flatten(), nn.Linear(784, 4)), image),
        "softmax-channels": Entry(lambda: Calls(lambda m, x: m.fc((m.c(x) * torch.softmax(m.c(x), 1)).mean((2, 3))), c=nn.Conv2d(3, 8, 3),
                                                fc=nn.Linear(8, 4)), image),
        "einsum": Entry(lambda: Calls(lambda m, x: m.fc(torch.einsum("btd,de->bte", torch.relu(m.a(x)), m.w).sum(1)), a=nn.Linear(6, 8),
                                      w=nn.Parameter(torch.randn(8, 5) / 3), fc=nn.Linear(5, 4)), series),
        "cosine-head": Entry(lambda: Calls(lambda m, x: 10 * m.fc(F.normalize(torch.relu(m.a(x)), dim=1)), a=nn.Linear(10, 8),
                                           fc=nn.Linear(8, 4, bias=False)), (10,)),
        "clip-temperature": Entry(lambda: Calls(lambda m, x: m.fc(m.a(x)) * m.scale.exp(), a=nn.Linear(10, 8), fc=nn.Linear(8, 4),
                                                scale=nn.Parameter(torch.tensor(0.5))), (10,)),
        "embedding-bag": Entry(lambda: Calls(lambda m, x: m.fc(m.e(x)), e=nn.EmbeddingBag(30, 8, mode="mean"), fc=nn.Linear(8, 4)), text, 30),
        "lrn": Entry(seq(nn.Conv2d(3, 8, 3), nn.LocalResponseNorm(5), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 4)), image),
        "conv3d": Entry(seq(nn.Conv3d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6 * 6, 4)), (2, 6, 6, 6)),
        "weight-norm": Entry(lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(10, 8)), nn.ReLU(), nn.Linear(8, 4)), (10,)),
        "tabular-embeddings": Tabular(tabular, (6,)),
        "transformer-encoder": Entry(lambda: Calls(lambda m, x: m.fc(m.t(m.e(x)).mean(1)), e=nn.Embedding(30, 16),
                                                   t=nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True), 2,
                                                                           enable_nested_tensor=False), fc=nn.Linear(16, 4)), text, 30),
        "mlp-mixer": Entry(lambda: Calls(lambda m, x: m.fc((lambda y: y + m.ch(y))((lambda y: y + m.tok(y.transpose(1, 2)).transpose(1, 2))(
            m.p(x).flatten(2).transpose(1, 2))).mean(1)), p=nn.Conv2d(3, 8, 4, 4), tok=nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 16)),
            ch=nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), fc=nn.Linear(8, 4)), image),
        "two-headed-loss": Entry(seq(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 4)), (10,)),
    }
    del e["two-headed-loss"]
    e.update(more_entries(image, series, text))
    for f in (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish,
              nn.Tanhshrink, nn.LogSigmoid, nn.Hardshrink, nn.Softshrink):
        e["act-" + f.__name__.lower()] = Entry(vector(f()), (10,))
    return e


def transformer_entries():
    import zoo_transformers
    return zoo_transformers.entries()


def timm_entries():
    import zoo_timm
    return zoo_timm.entries()


def field_entries():
    import zoo_fields
    return zoo_fields.entries()


class Families(dict):
    """Made when they are asked for: torchvision, transformers and timm take seconds to import."""
    kinds = {"torchvision": torchvision_models, "modules": module_entries, "transformers": transformer_entries, "timm": timm_entries,
             "fields": field_entries}

    def __missing__(self, family):
        self[family] = self.kinds[family]()
        return self[family]


FAMILIES = Families()
