# SPDX-License-Identifier: Apache-2.0
"""Graphs exported here by PyTorch: imported, trained for 20 steps with PyTorch's losses, exported, read back.

Skipped where there is no PyTorch. With onnxruntime (not in Debian; by hand in a virtual environment) the exported file
must also give the trained model's outputs.
"""
import math
import os
import re
import subprocess
import sys
import types

import numpy as np
import pytest

import mfl_needs

torch = mfl_needs.module("torch")
from torch import nn
from torch.nn import functional as F

EXE = os.environ["MFL_ONNX_TRAJECTORY"]
STEPS, BATCH = 20, 4
# float32 on both sides in different orders of summation; errors grow over 20 steps.
TOLERANCE = 1e-4
NEW = hasattr(torch.onnx, "is_in_onnx_export") and int(torch.__version__.split(".")[0]) >= 2


class Mlp(nn.Module):
    shape, tokens = (1, 8, 8), 0

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


class Cnn(nn.Module):
    shape, tokens = (3, 12, 12), 0

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 6, 3, stride=2, groups=6, bias=False)
        self.bn2 = nn.BatchNorm2d(6, momentum=0.3, eps=1e-3)
        self.up = nn.ConvTranspose2d(6, 4, 2, 2)
        self.fc = nn.Linear(4 * 2 * 2, 10)

    def forward(self, x):
        x = F.relu6(self.bn1(self.conv1(x)))
        x = F.silu(self.bn2(self.conv2(x)))
        x = F.avg_pool2d(torch.tanh(self.up(F.max_pool2d(x, 2))), 2)
        return self.fc(torch.cat([x[:, :2], torch.sigmoid(x[:, 2:])], 1).reshape(x.size(0), -1))


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(o)
        self.downsample = None
        if stride != 1 or i != o:
            self.downsample = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    """torchvision's, narrow. Batch norm over few values makes small differences grow fast, hence small steps; and each channel
    starts on or off for all samples, because rounding must not decide a ReLU (test_torch_trajectory.py)."""
    shape, tokens, lr = (1, 32, 32), 0, 0.002

    def __init__(self, w=4):
        super().__init__()
        self.conv1 = nn.Conv2d(1, w, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(w)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        i = w
        for k in range(4):
            o = w << k
            setattr(self, f"layer{k + 1}", nn.Sequential(Block(i, o, 1 if k == 0 else 2), Block(o, o, 1)))
            i = o
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(i, 10)
        for name, norm in self.named_modules():
            if isinstance(norm, nn.BatchNorm2d):
                nn.init.constant_(norm.weight, 0.3)
                nn.init.constant_(norm.bias, 0 if name.endswith("bn2") else 2)
            if name.endswith("0.bn1"):
                nn.init.constant_(norm.bias[::4], -2)

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Recurrent(nn.Module):
    shape, tokens = (8,), 12
    kind = nn.LSTM

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 6)
        self.rnn = self.kind(6, 7, batch_first=True)
        self.fc = nn.Linear(7, 12)

    def forward(self, x):
        return self.fc(self.rnn(self.embed(x))[0])


class Gru(Recurrent):
    kind = nn.GRU


class GptBlock(nn.Module):
    def __init__(self, d, heads, positions):
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.ln2 = nn.LayerNorm(d)
        self.fc1 = nn.Linear(d, 2 * d)
        self.fc2 = nn.Linear(2 * d, d)
        self.register_buffer("mask", torch.tril(torch.ones(positions, positions)).view(1, 1, positions, positions))

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = (p.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for p in self.qkv(self.ln1(x)).split(c, dim=2))
        a = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        a = F.softmax(a.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf")), dim=-1)
        x = x + self.proj((a @ v).transpose(1, 2).contiguous().view(b, t, c))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class Gpt(nn.Module):
    shape, tokens = (8,), 12

    def __init__(self, d=8, heads=2):
        super().__init__()
        self.wte = nn.Embedding(12, d)
        self.wpe = nn.Embedding(8, d)
        self.h = nn.ModuleList([GptBlock(d, heads, 8) for _ in range(2)])
        self.ln_f = nn.LayerNorm(d)
        self.head = nn.Linear(d, 12, bias=False)

    def forward(self, x):
        h = self.wte(x) + self.wpe(torch.arange(0, x.size(1)).unsqueeze(0))
        for block in self.h:
            h = block(h)
        return self.head(self.ln_f(h))


class Mha(nn.Module):
    """nn.MultiheadAttention, a positional parameter, GELU by tanh, the mean over positions."""
    shape, tokens = (8,), 12

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(12, 8)
        self.pos = nn.Parameter(torch.randn(1, 8, 8) * 0.02)
        self.ln = nn.LayerNorm(8)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        h = self.emb(x) + self.pos
        n = self.ln(h)
        h = h + self.attn(n, n, n, need_weights=False)[0]
        return self.fc(F.gelu(h, approximate="tanh").mean(1))


class Separate(nn.Module):
    """Queries, keys and values from layers of their own; scaled_dot_product_attention where there is one."""
    shape, tokens = (8,), 12

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(12, 8)
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.fc = nn.Linear(8, 12)
        self.register_buffer("mask", torch.full((8, 8), float("-inf")).triu(1))

    def forward(self, x):
        h = self.emb(x)
        q, k, v = (l(h).view(x.size(0), 8, 2, 4).transpose(1, 2) for l in (self.q, self.k, self.v))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = F.softmax(q @ k.transpose(-2, -1) / 2.0 + self.mask, dim=-1) @ v
        return self.fc(h + self.o(y.transpose(1, 2).reshape(x.size(0), 8, 8)))


class Stack(nn.Module):
    """Recurrent layers on top of each other, batch first and not; RMS norm and a gated layer written out."""
    shape, tokens = (8,), 12

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 6)
        self.lstm = nn.LSTM(6, 7, num_layers=2, batch_first=True)
        self.gru = nn.GRU(7, 8, num_layers=3)
        self.scale = nn.Parameter(torch.rand(8) + 0.5)
        self.gate, self.up, self.down = nn.Linear(8, 9, bias=False), nn.Linear(8, 9, bias=False), nn.Linear(9, 8, bias=False)
        self.fc = nn.Linear(8, 12)

    def forward(self, x):
        h = self.gru(self.lstm(self.embed(x))[0].transpose(0, 1))[0].transpose(0, 1)
        n = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        return self.fc(h + self.down(F.silu(self.gate(n)) * self.up(n)))


class Groups(nn.Module):
    """Group norm with and without a scale, instance norm."""
    shape, tokens = (2, 8, 8), 0

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(2, 6, 3, padding=1), nn.GroupNorm(3, 6, eps=1e-3)
        self.conv2, self.norm2 = nn.Conv2d(6, 4, 3), nn.InstanceNorm2d(4, affine=True)
        self.conv3, self.norm3 = nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4, affine=False)
        self.fc = nn.Linear(4 * 4 * 4, 10)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        x = torch.tanh(self.norm2(self.conv2(x)))
        return self.fc(torch.flatten(self.norm3(self.conv3(x)), 1))


class Curves(nn.Module):
    """Activations of mobile and generative networks; hardswish and mish as products where the opset has no operator."""
    shape, tokens = (2, 10, 10), 0

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1, groups=3, bias=False), nn.BatchNorm2d(6)
        self.squeeze, self.excite = nn.Conv2d(6, 3, 1), nn.Conv2d(3, 6, 1)
        self.fc1, self.fc2, self.fc3, self.fc4, self.fc5 = (nn.Linear(i, o) for i, o in ((54, 8), *[(8, 8)] * 3, (8, 10)))

    def forward(self, x):
        x = F.leaky_relu(self.bn1(self.conv1(x)), 0.2)
        x = F.hardswish(self.bn2(self.conv2(F.max_pool2d(x, 3, 2, ceil_mode=True))))[:, :, 1:]
        s = self.excite(F.elu(self.squeeze(F.adaptive_avg_pool2d(x, 1)), 0.7))
        x = torch.flatten(x * F.hardsigmoid(s), 1)
        x = F.softplus(self.fc1(torch.cat([x[:, :36], x[:, 18:36]], 1)))
        x = F.selu(self.fc3(F.hardtanh(self.fc2(x), -0.8, 1.5)))
        return self.fc5(F.mish(self.fc4(x)))


class Functions(nn.Module):
    """Functions of one variable that are layers, alone and one behind another."""
    shape, tokens = (12,), 0

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(12, 4), nn.Linear(80, 10)

    def forward(self, x):
        x = self.fc1(x)
        y = torch.exp(x)
        return self.fc2(torch.cat([
            y, torch.exp(-x * x), torch.log(y), torch.sqrt(y), torch.rsqrt(y), torch.reciprocal(y), torch.abs(x), -torch.abs(x),
            x * x, torch.pow(x, 3), torch.pow(y, 0.3), torch.sin(x), torch.cos(x), torch.erf(x), F.celu(x, 0.7), F.softsign(x),
            x * torch.sigmoid(1.702 * x), F.hardtanh(x, -0.3, 0.2), F.logsigmoid(x), F.tanhshrink(x)], 1))


class Shuffle(nn.Module):
    """Halves of the channels, shuffled; lists of features that grow; every other column."""
    shape, tokens = (2, 6, 6), 0

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, padding=1)
        self.branch = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)])
        self.grow = nn.ModuleList([nn.Conv2d(8 + 3 * i, 3, 1) for i in range(3)])
        self.fc = nn.Linear(17, 10)

    def forward(self, x):
        x = self.stem(x)
        for branch in self.branch:
            a, b = x.chunk(2, dim=1)
            x = torch.cat([a, F.leaky_relu(branch(b))], 1)
            n, c, h, w = x.shape
            x = x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        features = [x[:, :, :, ::2]]
        for layer in self.grow:
            features.append(torch.tanh(layer(torch.cat(features, 1))))
        return self.fc(torch.cat(features, 1).mean([2, 3]))


MODELS = {"mlp": Mlp, "cnn": Cnn, "resnet18": ResNet18, "lstm": Recurrent, "gru": Gru, "gpt": Gpt, "mha": Mha,
          "separate": Separate, "stack": Stack, "groups": Groups, "curves": Curves, "shuffle": Shuffle,
          "functions": Functions}


def export(model, x, path, opset, dynamic, **options):
    settings = dict(training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
    settings.update(options)
    if NEW:
        settings.setdefault("dynamo", False)
    if dynamic:
        settings["dynamic_axes"] = {"x": {0: "n"}, "y": {0: "n"}}
    torch.onnx.export(model, (x,), str(path), opset_version=opset, input_names=["x"], output_names=["y"], **settings)


def batches(model):
    rng = np.random.default_rng(5)
    if model.tokens:
        x = rng.integers(0, model.tokens, (STEPS * BATCH, *model.shape))
    else:
        x = rng.random((STEPS * BATCH, *model.shape), dtype=np.float32)
    out = model(torch.tensor(x[:2]))
    y = rng.integers(0, out.shape[-1], (STEPS * BATCH, *out.shape[1:-1]))
    return x, y


def run(*args):
    done = subprocess.run([EXE, *map(str, args)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def rate(model):
    return getattr(model, "lr", 0.05)


def train(model, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate(model))
    losses = []
    for s in range(STEPS):
        part = slice(s * BATCH, (s + 1) * BATCH)
        out = model(torch.tensor(x[part]))
        loss = F.cross_entropy(out.reshape(-1, out.shape[-1]), torch.tensor(y[part]).reshape(-1))
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("opset,dynamic", [(14 if NEW else 13, False), (17, True)])
def test_trains_like_pytorch(tmp_path, name, opset, dynamic):
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = MODELS[name]().train()
    x, y = batches(model)
    # Batch norm at 1x1 needs two rows to train on; the graph says 2 then, and is read as one sample all the same.
    export(model, torch.tensor(x[:2 if name == "resnet18" else 1]), tmp_path / "m.onnx", opset, dynamic)
    x.astype(np.float32).tofile(tmp_path / "x.f32")
    y.astype(np.int32).tofile(tmp_path / "y.i32")
    code, out, err = run(tmp_path / "m.onnx", tmp_path / "x.f32", tmp_path / "y.i32", BATCH, STEPS, rate(model), tmp_path)
    assert code == 0, err
    want = train(model, x, y)
    got = np.fromfile(tmp_path / "losses.f64")
    assert np.max(np.abs(got - want) / np.abs(want)) < TOLERANCE
    model.eval()
    with torch.no_grad():
        logits = model(torch.tensor(x[:BATCH])).numpy()
    mine = np.fromfile(tmp_path / "logits.f32", dtype=np.float32).reshape(logits.shape)
    assert np.max(np.abs(mine - logits)) < 1e-3 * np.max(np.abs(logits))
    try:
        import onnxruntime
    except ImportError:
        return
    import onnx
    onnx.checker.check_model(onnx.load(tmp_path / "final.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "final.onnx"), providers=["CPUExecutionProvider"])
    feed = x[:BATCH] if model.tokens else x[:BATCH].astype(np.float32)
    theirs = session.run(None, {"input": feed})[0]
    assert theirs.shape == logits.shape
    assert np.max(np.abs(theirs - mine)) < 1e-4 * np.max(np.abs(mine))


# ---- by the command line ----

import mfl_harness as h

JOB = "name: t\nrounds: 2\nmodel: {onnx: %s}  # mine\ndata: {name: tiny, partition: iid, clients: 4}\n" \
      "training: {lr: 0.05, epochs: 1, batch: 10}\n"


def tiny_mlp():
    """Of the harness's data set: four classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))


def check(tmp_path, file, status):
    (tmp_path / "job.yaml").write_text(JOB % file)
    return h.mfl("check", tmp_path / "job.yaml", status=status, cwd=tmp_path)


def test_job_starts_from_the_file_and_comes_back(tmp_path):
    model = tiny_mlp()
    export(model, torch.zeros(1, 1, 8, 8), tmp_path / "m.onnx", 17, True)
    assert "556 parameters" in check(tmp_path, tmp_path / "m.onnx", 0).stdout
    # Steps of almost nothing: the end shows the start.
    (tmp_path / "job.yaml").write_text((JOB % (tmp_path / "m.onnx")).replace("lr: 0.05", "lr: 1e-9"))
    with h.start_cluster(str(tmp_path / "c")) as cluster:
        job = cluster.mfl("submit", tmp_path / "job.yaml").stdout.split()[0]
        cluster.wait_job(job)
        cluster.mfl("pull", job, "--format", "onnx", "-o", tmp_path / "end.onnx")
        cluster.mfl("pull", job, "--format", "npz", "-o", tmp_path / "end.npz")
    end = np.load(tmp_path / "end.npz")
    for name, value in model.state_dict().items():
        assert np.allclose(end[name], value.numpy(), rtol=0, atol=1e-6), name
    # Read back, the exported file is the same model.
    assert "model     layers, 556 parameters" in check(tmp_path, tmp_path / "end.onnx", 0).stdout


@pytest.mark.parametrize("what,says", [("truncated", "truncated"), ("garbage", "is not an ONNX file"),
                                       ("empty", "the file is empty"), ("missing", "no such file")])
def test_damaged_files_are_told(tmp_path, what, says):
    export(tiny_mlp(), torch.zeros(1, 1, 8, 8), tmp_path / "m.onnx", 17, True)
    good = (tmp_path / "m.onnx").read_bytes()
    bad = {"truncated": good[:700], "garbage": bytes(range(256)) * 8, "empty": b""}
    if what in bad:
        (tmp_path / "bad.onnx").write_bytes(bad[what])
    err = check(tmp_path, tmp_path / "bad.onnx", 5).stderr
    assert "job.yaml:3: model.onnx: " in err and says in err


def test_export_for_inference_is_refused(tmp_path):
    """The default export folds batch norm into the convolution and renames its weights."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 4)).eval()
    export(model, torch.zeros(1, 1, 8, 8), tmp_path / "m.onnx", 13, False, training=torch.onnx.TrainingMode.EVAL,
           do_constant_folding=True)
    err = check(tmp_path, tmp_path / "m.onnx", 5).stderr
    assert "batch norm was folded into" in err and "TrainingMode.TRAINING" in err and "`mfl model import`" in err


@pytest.mark.parametrize("exporter", ["torchscript", pytest.param("dynamo", marks=pytest.mark.skipif(not NEW, reason="needs a current PyTorch"))])
def test_export_for_inference_is_imported_for_inference(tmp_path, exporter):
    """A convolution with batch norm folded into it is a convolution: no job trains it, but it answers as in PyTorch."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 4))
    with torch.no_grad():
        for norm in (model[1], model[4]):
            for tensor in (norm.weight, norm.running_var):
                tensor.uniform_(0.5, 2)
            for tensor in (norm.bias, norm.running_mean):
                tensor.normal_()
    model.eval()
    x = torch.randn(7, 1, 8, 8)
    if exporter == "dynamo":
        torch.onnx.export(model, (x[:2],), str(tmp_path / "m.onnx"), dynamo=True, external_data=False)
    else:
        export(model, x[:1], tmp_path / "m.onnx", 13, False, training=torch.onnx.TrainingMode.EVAL, do_constant_folding=True)
    np.save(tmp_path / "x.npy", x.numpy())
    h.mfl("model", "import", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.safetensors"))
    for name in ("m.safetensors", "m.onnx"):
        h.mfl("predict", str(tmp_path / name), "--data", str(tmp_path / "x.npy"), "--logits", "-o", str(tmp_path / "y.npy"))
        expected = model(x).detach().numpy()
        assert np.abs(np.load(tmp_path / "y.npy") - expected).max() <= 1e-5 * np.abs(expected).max()


# Of whole numbers; a product with 1 / 41 is below 1 at 41.
QUOTIENTS = {
    "floor": lambda x: torch.floor(x / 41),
    "shifted": lambda x: torch.floor((x - 3) / -41 + 0.5),
    "ceil": lambda x: torch.ceil(x / 49),
    "round": lambda x: torch.round((x + 1.5) / 3),
    "sign": lambda x: torch.sign(x / 41 - 1),
    "at least": lambda x: (x / 41 >= 1).float() + (x / -41 < -5).float(),
    "equal": lambda x: (x / 41 == 3).float(),
    "absolute": lambda x: torch.floor(torch.abs(x / 41)),
    "used twice": lambda x: x / 41 - torch.floor(x / 41),
    "rest": lambda x: torch.fmod(x / 41, 1),
}


class Quotient(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f, self.fc = f, nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(self.f(x))


@pytest.mark.parametrize("name", QUOTIENTS)
def test_jumps_at_whole_quotients(tmp_path, name):
    torch.manual_seed(3)
    model, x = Quotient(QUOTIENTS[name]).eval(), torch.arange(0, 6 * 400, 1.0).reshape(-1, 6)
    export(model, x[:1], tmp_path / "m.onnx", 17, False, training=torch.onnx.TrainingMode.TRAINING)
    np.save(tmp_path / "x.npy", x.numpy())
    h.mfl("model", "import", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.safetensors"), "--set", "training.loss=squared")
    h.mfl("predict", str(tmp_path / "m.safetensors"), "--data", str(tmp_path / "x.npy"), "-o", str(tmp_path / "y.npy"))
    assert np.abs(np.load(tmp_path / "y.npy") - model(x).detach().numpy()).max() < 1e-3


@pytest.mark.parametrize("f", [lambda x: torch.floor(x / torch.tensor([3.0, 5, 7, 9, 11, 41])),
                               lambda x: torch.ceil(x / (x.sum(1, keepdim=True) + 1) + 0.25)])
def test_whole_parts_of_other_quotients_are_refused(tmp_path, f):
    export(Quotient(f), torch.ones(1, 6), tmp_path / "m.onnx", 17, False, training=torch.onnx.TrainingMode.TRAINING)
    assert "the whole part of a quotient by computed values or by several numbers" in check(tmp_path, tmp_path / "m.onnx", 5).stderr


def test_series_are_predicted(tmp_path):
    """An array of (n, positions, features) fits a model of {positions, features}."""
    torch.manual_seed(3)
    model, x = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Flatten(), nn.Linear(21, 4)).eval(), torch.randn(9, 7, 5)
    export(model, x[:1], tmp_path / "m.onnx", 17, False, training=torch.onnx.TrainingMode.TRAINING)
    np.save(tmp_path / "x.npy", x.numpy())
    h.mfl("predict", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "x.npy"), "--logits", "-o", str(tmp_path / "y.npy"))
    assert np.abs(np.load(tmp_path / "y.npy") - model(x).detach().numpy()).max() < 1e-5


# What is not chosen may be infinite or no number.
CHOICES = {
    "log": lambda x: torch.where(x > 0, torch.log(x), torch.zeros_like(x)),
    "reciprocal": lambda x: torch.where(x != 0, 1 / x, torch.zeros_like(x)),
    "quotient": lambda x: torch.where(x[:, :3] > 0, x[:, 3:] / x[:, :3], x[:, 3:] * 2),
    "root": lambda x: torch.where(x >= 0, torch.sqrt(x), -x),
    "filled": lambda x: torch.log(x).masked_fill(x <= 0, 0.5),
    # The flag has more elements than the value, or both are repeated.
    "row": lambda x: torch.where((x > -0.5) & (x[:, :1] > 0), torch.log(x[:, :1]), 0.3 * x),
    "rows": lambda x: torch.where((x[:, :3, None] > 0.1) & (x[:, None, 1:4] > 0), torch.log(x[:, None, 1:4]), 0.5).sum(2),
    # A condition of two values, with a constant where it does not hold.
    "pair": lambda x: torch.where(x[:, 3:] > x[:, :3].abs(), torch.log(x[:, 3:]), 0.0),
    "constants": lambda x: torch.where(torch.arange(6) % 2 == 0, 1.0, torch.log(x.abs() + (torch.arange(6) % 2))),
    "placed": lambda x: torch.where(torch.arange(6) % 2 == 0, 2.0, torch.log((x.abs() + 0.1) * (torch.arange(6) % 2))),
}


@pytest.mark.parametrize("name", CHOICES)
def test_what_is_not_chosen_counts_nothing(tmp_path, name):
    torch.manual_seed(3)
    x = torch.randn(50, 6)
    x[::3], x[1::7] = 0, -1
    model = Quotient(CHOICES[name]).eval()
    model.fc = nn.Linear(CHOICES[name](x).shape[1], 4)
    export(model, x[:1], tmp_path / "m.onnx", 17, False, training=torch.onnx.TrainingMode.TRAINING)
    np.save(tmp_path / "x.npy", x.numpy())
    h.mfl("model", "import", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.safetensors"), "--set", "training.loss=squared")
    h.mfl("predict", str(tmp_path / "m.safetensors"), "--data", str(tmp_path / "x.npy"), "-o", str(tmp_path / "y.npy"))
    want = model(x).detach().numpy()
    assert np.isfinite(want).all() and np.abs(np.load(tmp_path / "y.npy") - want).max() < 1e-5 * np.abs(want).max()


class Tensors(dict):
    """What safetensors.torch.load_file gives, where that is not installed."""

    def __init__(self, path):
        super().__init__((name, torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(shape))
                         for name, (_, shape, data) in h.read_safetensors(path).items())


def test_the_way_there_and_back_in_the_manual(tmp_path, monkeypatch):
    """docs/pytorch.md's first section as it stands, with small data: exported, checked, trained, and loaded under the same names."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "pytorch.md"), encoding="utf-8") as f:
        section = f.read().split("\n## ")[1]
    texts = {}
    for kind, text in re.findall(r"^```(\w+)\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
        texts.setdefault(kind, []).append(text)
    (tmp_path / "net.py").write_text(texts["python"][0])
    (tmp_path / "job.yaml").write_text(texts["yaml"][0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "safetensors", types.ModuleType("safetensors"))
    monkeypatch.setitem(sys.modules, "safetensors.torch", types.SimpleNamespace(load_file=Tensors))
    package = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python")
    said = ""
    for line in texts["sh"][0].splitlines():
        program, *arguments = line.split("#")[0].split()
        if program == "mfl":
            small = ("--backend", "reference", "--data", "fashion-mnist=synthetic:1,28,28:10:20:10:1") if arguments[0] == "run" else ()
            done = h.mfl(*arguments, *small, cwd=tmp_path)
            said += done.stdout + done.stderr
        else:
            subprocess.run([sys.executable, *arguments], cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": package})
    assert "parameters" in said and "proof: outputs and 6 gradients agree" in said
    names = {}
    exec(texts["python"][1], names)
    monkeypatch.delitem(sys.modules, "net")
    trained = Tensors("first/model.safetensors")
    state = {name: value for name, value in names["net"].state_dict().items() if not name.endswith("num_batches_tracked")}
    assert state.keys() == trained.keys()
    assert all(torch.equal(value, trained[name]) for name, value in state.items())


class Depth(nn.Module):
    """Stochastic depth: a branch is left out, for each sample anew."""

    def __init__(self, rate=0.5):
        super().__init__()
        self.rate, self.conv, self.fc = rate, nn.Conv2d(1, 3, 3, padding=1), nn.Linear(3, 4)

    def forward(self, x):
        y = F.hardswish(self.conv(x))
        if self.training:
            y = y * (torch.bernoulli(torch.full([x.shape[0], 1, 1, 1], 1 - self.rate)) / (1 - self.rate))
        return self.fc((x + y).mean([2, 3]))


def test_stochastic_depth_is_dropout_of_a_one(tmp_path):
    for opset, rate in ((13, 0.25), (17, 0.5)):
        export(Depth(rate).train(), torch.zeros(1, 1, 8, 8), tmp_path / "m.onnx", opset, True)
        code, layers, err = run(tmp_path / "m.onnx")
        assert code == 0, err
        assert re.search(r"- weight: {name: 'weight1', shape: \[1, 1, 1\], frozen: true}\n"
                         r" *- dropout: {name: 'dropout1', rate: %s[0-9]*}\n"
                         r" *- multiply: {name: 'multiply1', inputs: \['swish1', 'dropout1'\]}" % rate, layers), layers


DEPTHS = {  # of a share of 0.75: what is kept, and what is done with it
    "floor": lambda y, r: y.div(0.75) * torch.floor(r + 0.75), "floor-first": lambda y, r: (0.75 + r).floor() * (y / 0.75),
    "floor-function": lambda y, r: torch.relu(y).div(0.75) * (0.75 + r).floor(), "greater": lambda y, r: y * (r > 0.25).float() / 0.75,
    "greater-equal": lambda y, r: y * ((r >= 0.25) / 0.75), "constant-first": lambda y, r: y * (0.25 < r).float() / 0.75,
    "divided-later": lambda y, r: 2 * (y * (r + 0.75).floor()).div(0.75) / 2,
}
DEPTHS_REFUSED = {  # what is drawn or done, and what the refusal says
    "undivided": (lambda y: y * (torch.rand(y.shape[0], 1) + 0.75).floor() / 1.0, "the file does not say what evaluation does then"),
    "batch": (lambda y: y * (torch.rand(1, 1) > 0.25).float() / 0.75, "draws one random number for all samples of a batch"),
    "batch-bernoulli": (lambda y: y * torch.bernoulli(torch.full((1, 1), 0.75)) / 0.75, "draws one random number for all samples of a batch"),
    "last-dimension": (lambda y: y * (torch.rand(y.shape[0]) > 0.25).float() / 0.75, "random numbers other than one per sample"),
    "two-shares": (lambda y: (lambda r: y * (r > 0.25).float() / 0.75 + torch.relu(y) * (r > 0.5).float() / 0.5)(torch.rand(y.shape[0], 1)),
                   "the same random numbers with another share"),
}


class DepthNet(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.a, self.fc, self.drop = nn.Linear(6, 5), nn.Linear(5, 4), drop

    def forward(self, x):
        y = torch.tanh(self.a(x))
        return self.fc(y + self.drop(y))


@pytest.mark.parametrize("name", DEPTHS)
def test_other_ways_to_write_stochastic_depth(tmp_path, name):
    """As transformers and timm do."""
    export(DepthNet(lambda y: DEPTHS[name](y, torch.rand(y.shape[0], 1))).train(), torch.zeros(1, 6), tmp_path / "m.onnx", 17, True)
    code, layers, err = run(tmp_path / "m.onnx")
    assert code == 0, err
    assert re.search(r"dropout: {name: '?dropout1'?, rate: 0\.25[0-9]*}", layers), layers
    assert len(re.findall(r"- multiply: ", layers)) == 1, layers


@pytest.mark.parametrize("name", DEPTHS_REFUSED)
def test_stochastic_depth_of_another_kind_is_refused(tmp_path, name):
    drop, text = DEPTHS_REFUSED[name]
    export(DepthNet(drop).train(), torch.zeros(1, 6), tmp_path / "m.onnx", 17, True)
    code, _, err = run(tmp_path / "m.onnx")
    assert code == 1 and text in err, err


@pytest.mark.parametrize("file", ["one-sample", "samples"])
def test_a_random_number_in_a_fixed_batch(tmp_path, file):
    """A file of one sample does not say whether the number is the sample's or the batch's; one of several does."""
    net = DepthNet(lambda y: y * torch.bernoulli(torch.full((1, 1), 0.75)) / 0.75).train()
    export(net, torch.zeros(1 if file == "one-sample" else 3, 6), tmp_path / "m.onnx", 17, False)
    code, out, err = run(tmp_path / "m.onnx")
    if file == "samples":
        assert code == 1 and "draws one random number for all samples of a batch" in err, err
    else:
        assert code == 0 and "does not say whether for each sample or for a whole batch" in out, err


def test_one_mask_of_two_values(tmp_path):
    """What the same random numbers keep is kept together."""
    def drop(y):
        mask = (torch.rand(y.shape[0], 1) > 0.25).float() / 0.75
        return y * mask + torch.relu(y) * mask
    export(DepthNet(drop).train(), torch.zeros(1, 6), tmp_path / "m.onnx", 17, True)
    code, layers, err = run(tmp_path / "m.onnx")
    assert code == 0, err
    assert layers.count("- dropout:") == 1 and layers.count("'dropout1'") == 3, layers


@pytest.mark.skipif(not NEW, reason="the other exporter needs a current PyTorch")
def test_a_mask_that_the_exporter_drew(tmp_path):
    """PyTorch's optimiser computes torch.bernoulli of constants once."""
    net = DepthNet(lambda y: y * (torch.bernoulli(torch.full((y.shape[0], 1), 0.75)) / 0.75)).train()
    torch.onnx.export(net, (torch.zeros(1, 6),), str(tmp_path / "m.onnx"), dynamo=True, external_data=False)
    code, _, err = run(tmp_path / "m.onnx")
    assert code == 1 and "was random, and PyTorch's optimiser drew it once" in err, err


def test_a_far_bound_is_no_relu(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Hardtanh(0, 20), nn.Linear(8, 4))
    export(model, torch.zeros(1, 1, 8, 8), tmp_path / "m.onnx", 17, False)
    code, layers, err = run(tmp_path / "m.onnx")
    assert code == 0, err
    assert re.findall(r"- (\w+):", layers) == ["dense", "hardtanh", "dense"]


def test_unknown_operator_is_named(tmp_path):
    class Odd(nn.Module):
        def forward(self, x):
            return torch.det(x)
    export(Odd(), torch.zeros(1, 1, 2, 2), tmp_path / "m.onnx", 13, False)
    err = check(tmp_path, tmp_path / "m.onnx", 5).stderr
    assert "(Det): is not supported; mfl has no linear algebra but products" in err
