# SPDX-License-Identifier: Apache-2.0
"""mfl's presets in PyTorch, with the same names in their state_dicts and in the same order."""
import collections

import torch
from torch import nn


def sequence(**layers):
    return nn.Sequential(collections.OrderedDict(layers))


class Block(nn.Module):
    """The basic block of He et al. 2016 with torchvision's names, and so the order of its state_dict."""

    def __init__(self, inputs, channels, stride, norm):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = norm(channels)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), norm(channels))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu_(self.bn1(self.conv1(x)))))
        y += self.downsample(x) if self.downsample else x
        return torch.relu_(y)


def group_norm(channels):
    return nn.GroupNorm(min(32, channels // 2), channels)


def resnet(inputs, classes, stages, blocks, channels, norm):
    layers = {"conv1": nn.Conv2d(inputs, channels, 3, 1, 1, bias=False), "bn1": norm(channels), "relu": nn.ReLU()}
    before = channels
    for stage in range(stages):
        parts = []
        for block in range(blocks):
            parts.append(Block(before, channels, 2 if stage > 0 and block == 0 else 1, norm))
            before = channels
        layers[f"layer{stage + 1}"] = nn.Sequential(*parts)
        channels *= 2
    return sequence(**layers, avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(before, classes))


def unit(inputs, outputs, kernel, stride=1, groups=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
                         nn.BatchNorm2d(outputs), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Sandler et al. 2018, figure 4d, with torchvision's names."""

    def __init__(self, inputs, outputs, expand, stride):
        super().__init__()
        hidden = inputs * expand
        widen = [unit(inputs, hidden, 1)] if expand > 1 else []
        self.conv = nn.Sequential(*widen, unit(hidden, hidden, 3, stride, hidden),
                                  nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.conv(x) if self.shortcut else self.conv(x)


def mobilenet_v2(inputs, classes, dropout):
    """For images below 64 pixels."""
    parts, before = [unit(inputs, 32, 3)], 32
    for expand, channels, n, stride in [(1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                        (6, 160, 3, 2), (6, 320, 1, 1)]:
        for i in range(n):
            parts.append(InvertedResidual(before, channels, expand, 1 if i else stride))
            before = channels
    parts.append(unit(before, 1280, 1))
    return sequence(features=nn.Sequential(*parts), avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(),
                    classifier=nn.Sequential(nn.Dropout(0.2 if dropout else 0), nn.Linear(1280, classes)))


class CharLSTM(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.lstm1 = nn.LSTM(8, 256, batch_first=True)
        self.lstm2 = nn.LSTM(256, 256, batch_first=True)
        self.fc = nn.Linear(256, vocabulary)

    def forward(self, x):
        return self.fc(self.lstm2(self.lstm1(self.embedding(x))[0])[0])


def attention(qkv, heads, causal, fused):
    """Vaswani et al. 2017, section 3.2; fused: by PyTorch's own function, which came with version 2."""
    rows, positions, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    q, k, v = (t.reshape(rows, positions, heads, width // heads).transpose(1, 2) for t in qkv.split(width, 2))
    if fused:
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return y.transpose(1, 2).reshape(rows, positions, width)
    scores = q @ k.transpose(2, 3) / (width // heads) ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(positions, positions, device=qkv.device).triu(1).bool(), float("-inf"))
    return (scores.softmax(3) @ v).transpose(1, 2).reshape(rows, positions, width)


class Attention(nn.Module):
    fused = False

    def __init__(self, width, heads, causal, names):
        super().__init__()
        self.heads, self.causal, self.names = heads, causal, names
        self.add_module(names[0], nn.Linear(width, 3 * width))
        self.add_module(names[1], nn.Linear(width, width))

    def forward(self, x):
        qkv, project = (getattr(self, name) for name in self.names)
        return project(attention(qkv(x), self.heads, self.causal, self.fused))


class GPTBlock(nn.Module):
    """Radford et al. 2019, with GPT-2's names."""

    def __init__(self, width, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, True, ["c_attn", "c_proj"])
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = sequence(c_fc=nn.Linear(width, 4 * width), gelu=nn.GELU(approximate="tanh"),
                            c_proj=nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class CharGPT(nn.Module):
    def __init__(self, vocabulary, positions):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocabulary, 128), "wpe": nn.Embedding(positions, 128),
            "h": nn.ModuleList([GPTBlock(128, 4) for _ in range(4)]), "ln_f": nn.LayerNorm(128)})
        self.lm_head = nn.Linear(128, vocabulary, bias=False)

    def forward(self, x):
        parts = self.transformer
        y = parts["wte"](x) + parts["wpe"](torch.arange(x.shape[1], device=x.device))
        for block in parts["h"]:
            y = block(y)
        return self.lm_head(parts["ln_f"](y))


class ViTBlock(nn.Module):
    """Dosovitskiy et al. 2021, with timm's names."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads, False, ["qkv", "proj"])
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = sequence(fc1=nn.Linear(width, 4 * width), gelu=nn.GELU(), fc2=nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """For images below 96 pixels."""

    def __init__(self, shape, classes):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 192))
        self.pos_embed = nn.Parameter(torch.zeros(shape[1] // 4 * (shape[2] // 4) + 1, 192))
        self.patch_embed = sequence(proj=nn.Conv2d(shape[0], 192, 4, 4))
        self.blocks = nn.Sequential(*[ViTBlock(192, 3) for _ in range(12)])
        self.norm = nn.LayerNorm(192, eps=1e-6)
        self.head = nn.Linear(192, classes)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], 1, 192), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def lenet5(shape, classes):
    padding = 2 if min(shape[1:]) < 32 else 0
    sides = [((side + 2 * padding - 4) // 2 - 4) // 2 for side in shape[1:]]
    return sequence(conv1=nn.Conv2d(shape[0], 6, 5, padding=padding), tanh1=nn.Tanh(), pool1=nn.AvgPool2d(2),
                    conv2=nn.Conv2d(6, 16, 5), tanh2=nn.Tanh(), pool2=nn.AvgPool2d(2), flatten=nn.Flatten(),
                    fc1=nn.Linear(16 * sides[0] * sides[1], 120), tanh3=nn.Tanh(), fc2=nn.Linear(120, 84),
                    tanh4=nn.Tanh(), fc3=nn.Linear(84, classes))


def fedavg_cnn(shape, classes):
    return sequence(conv1=nn.Conv2d(shape[0], 32, 5, padding=2), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2),
                    conv2=nn.Conv2d(32, 64, 5, padding=2), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2),
                    flatten=nn.Flatten(), fc1=nn.Linear(64 * (shape[1] // 4) * (shape[2] // 4), 512), relu3=nn.ReLU(),
                    fc2=nn.Linear(512, classes))


def pfl_cnn(shape, classes, dropout):
    sides = [(side - 4) // 2 for side in shape[1:]]
    return sequence(conv1=nn.Conv2d(shape[0], 32, 3), relu1=nn.ReLU(), conv2=nn.Conv2d(32, 64, 3), relu2=nn.ReLU(),
                    pool=nn.MaxPool2d(2), drop1=nn.Dropout(0.25 if dropout else 0), flatten=nn.Flatten(),
                    fc1=nn.Linear(64 * sides[0] * sides[1], 128), relu3=nn.ReLU(),
                    drop2=nn.Dropout(0.5 if dropout else 0), fc2=nn.Linear(128, classes))


def preset(name, shape, classes, dropout=False):
    inputs, count = shape[0], torch.Size(shape).numel()
    makers = {
        "logistic": lambda: sequence(flatten=nn.Flatten(), fc=nn.Linear(count, classes)),
        "mlp": lambda: sequence(flatten=nn.Flatten(), fc1=nn.Linear(count, 200), relu1=nn.ReLU(), fc2=nn.Linear(200, 200),
                                relu2=nn.ReLU(), fc3=nn.Linear(200, classes)),
        "lenet5": lambda: lenet5(shape, classes),
        "fedavg-cnn": lambda: fedavg_cnn(shape, classes),
        "pfl-cnn": lambda: pfl_cnn(shape, classes, dropout),
        "resnet18": lambda: resnet(inputs, classes, 4, 2, 64, nn.BatchNorm2d),
        "resnet18-gn": lambda: resnet(inputs, classes, 4, 2, 64, group_norm),
        "resnet20": lambda: resnet(inputs, classes, 3, 3, 16, nn.BatchNorm2d),
        "resnet20-gn": lambda: resnet(inputs, classes, 3, 3, 16, group_norm),
        "mobilenet-v2": lambda: mobilenet_v2(inputs, classes, dropout),
        "char-lstm": lambda: CharLSTM(classes),
        "char-gpt": lambda: CharGPT(classes, shape[0]),
        "vit-tiny": lambda: ViT(shape, classes),
    }
    return makers[name]()


def state_of(net):
    """All tensors in the order of mfl's table: running statistics behind the weights of their layer."""
    return {name: t for name, t in net.state_dict().items() if not name.endswith("num_batches_tracked")}


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def load(net, values):
    at = 0
    for tensor in state_of(net).values():
        tensor.copy_(values[at:at + tensor.numel()].reshape(tensor.shape))
        at += tensor.numel()
    assert at == values.numel()


def gradient_of(net):
    """Zero for running statistics."""
    gradients = dict(net.named_parameters())
    return flat(gradients[name].grad if name in gradients else torch.zeros_like(t) for name, t in state_of(net).items())
