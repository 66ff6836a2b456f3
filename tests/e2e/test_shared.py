# SPDX-License-Identifier: Apache-2.0
"""Models whose parameters stand in several places: trained beside PyTorch, submitted, pulled, and loaded by PyTorch.

Skipped where there is no PyTorch.
"""
import numpy as np
import pytest

import mfl_needs

torch = mfl_needs.module("torch")
from torch import nn
from torch.nn import functional as F

import mfl_harness as h
from test_onnx import BATCH, STEPS, TOLERANCE, batches, check, export, rate, run, train


def heads(qkv, n):
    rows, positions, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    q, k, v = (t.reshape(rows, positions, n, width // n).transpose(1, 2) for t in qkv.split(width, 2))
    y = (q @ k.transpose(2, 3) / (width // n) ** 0.5).softmax(3) @ v
    return y.transpose(1, 2).reshape(rows, positions, width)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.proj(heads(self.qkv(self.ln(x)), 2))
        return x + self.down(F.gelu(self.up(self.ln(x))))


class TiedGpt(nn.Module):
    """GPT-2's tie: the head has the embedding's weight."""
    shape, tokens = (8,), 17

    def __init__(self):
        super().__init__()
        self.wte, self.wpe, self.block = nn.Embedding(17, 12), nn.Parameter(torch.randn(8, 12) * 0.1), Block(12)
        self.lm_head = nn.Linear(12, 17, bias=False)
        nn.init.normal_(self.wte.weight, std=0.2)
        self.lm_head.weight = self.wte.weight

    def forward(self, x):
        return self.lm_head(self.block(self.wte(x) + self.wpe))


class Albert(nn.Module):
    """Lan et al. 2020: one block, four times."""
    shape, tokens = (6,), 13

    def __init__(self):
        super().__init__()
        self.embed, self.block, self.fc = nn.Embedding(13, 8), Block(8), nn.Linear(8, 10)

    def forward(self, x):
        x = self.embed(x)
        for _ in range(4):
            x = self.block(x)
        return self.fc(x.mean(1))


class Siamese(nn.Module):
    """One branch over both halves of an image, its batch norm too; its second convolution at two sizes."""
    shape, tokens = (2, 12, 8), 0

    def __init__(self):
        super().__init__()
        self.conv1, self.bn = nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.fc = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 10)

    def branch(self, x):
        x = torch.tanh(self.conv2(torch.tanh(self.bn(self.conv1(x)))))
        return self.conv2(F.max_pool2d(x, 2)).mean((2, 3))

    def forward(self, x):
        return self.fc(self.branch(x[:, :, :6]) * self.branch(x[:, :, 6:]))


class Autoencoder(nn.Module):
    """A decoder with the encoder's weights transposed, in front of a classifier."""
    shape, tokens = (20,), 0

    def __init__(self):
        super().__init__()
        self.enc1, self.enc2 = nn.Linear(20, 12), nn.Linear(12, 5)
        self.b1, self.b2 = nn.Parameter(torch.full((12,), 0.1)), nn.Parameter(torch.full((20,), 0.2))
        self.out = nn.Linear(20, 10)

    def forward(self, x):
        x = torch.tanh(self.enc2(torch.tanh(self.enc1(x))))
        x = torch.tanh(F.linear(x, self.enc2.weight.t(), self.b1))
        return self.out(torch.tanh(F.linear(x, self.enc1.weight.t(), self.b2)))


class Twice(nn.Module):
    """An LSTM and a layer norm, twice."""
    shape, tokens = (5, 6), 0

    def __init__(self):
        super().__init__()
        self.lstm, self.ln, self.fc = nn.LSTM(6, 6, batch_first=True), nn.LayerNorm(6), nn.Linear(6, 10)

    def forward(self, x):
        for _ in range(2):
            x = self.ln(self.lstm(x)[0])
        return self.fc(x[:, -1])


class Norms(nn.Module):
    """A group norm, an instance norm and an attention, twice each; its biases begin as zeros."""
    shape, tokens = (3, 6, 5), 0

    def __init__(self):
        super().__init__()
        self.conv, self.group, self.instance = nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)
        self.attention, self.fc = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 10)

    def forward(self, x):
        x = self.conv(x)
        for _ in range(2):
            x = self.instance(torch.tanh(self.group(x)))
        x = x.flatten(2).transpose(1, 2)
        for _ in range(2):
            x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.fc(x.amax(1))


MODELS = {"gpt": TiedGpt, "albert": Albert, "siamese": Siamese, "autoencoder": Autoencoder, "twice": Twice, "norms": Norms}


def parameters(model):
    """Distinct ones, and running statistics."""
    return sum(p.numel() for p in model.parameters()) + sum(b.numel() for b in model.buffers() if b.dim())


@pytest.mark.parametrize("name", MODELS)
def test_trains_like_pytorch(tmp_path, name):
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = MODELS[name]().train()
    x, y = batches(model)
    export(model, torch.tensor(x[:1]), tmp_path / "m.onnx", 17, True)
    assert f"{parameters(model)} parameters" in check(tmp_path, tmp_path / "m.onnx", 0).stdout
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
    # Read back, what mfl writes is the same model: shared tensors stand there once.
    assert f"{parameters(model)} parameters" in check(tmp_path, tmp_path / "final.onnx", 0).stdout


class TiedText(nn.Module):
    """Of the harness's data set of images, whose bytes are its rows: a tied pair of dense layers, and a norm twice."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.norm = nn.Linear(64, 64), nn.Linear(64, 64), nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 4)
        self.fc2.weight = self.fc1.weight

    def forward(self, x):
        x = torch.relu(self.norm(self.fc1(torch.flatten(x, 1))))
        return self.head(torch.relu(self.norm(self.fc2(x))))


def test_pulled_models_load_into_pytorch(tmp_path):
    torch.manual_seed(4)
    model = TiedText()
    export(model, torch.zeros(2, 1, 8, 8), tmp_path / "m.onnx", 17, True)
    (tmp_path / "job.yaml").write_text("name: t\nrounds: 2\nmodel: {onnx: %s}\ndata: {name: tiny, partition: iid, clients: 4}\n"
                                       "training: {lr: 0.05, epochs: 1, batch: 10}\n" % (tmp_path / "m.onnx"))
    with h.start_cluster(str(tmp_path / "c")) as cluster:
        job = cluster.mfl("submit", tmp_path / "job.yaml").stdout.split()[0]
        cluster.wait_job(job)
        cluster.mfl("pull", job, "--format", "npz", "-o", tmp_path / "end.npz")
        cluster.mfl("pull", job, "-o", tmp_path / "end.safetensors")
    end = {name: torch.tensor(value) for name, value in np.load(tmp_path / "end.npz").items()}
    assert set(end) == {name for name in model.state_dict() if not name.endswith("num_batches_tracked")}
    assert torch.equal(end["fc1.weight"], end["fc2.weight"])
    assert not torch.equal(end["fc1.weight"], model.fc1.weight)
    missing = model.load_state_dict(end, strict=False)
    assert not missing.unexpected_keys and missing.missing_keys in ([], ["norm.num_batches_tracked"])
    # The pulled file is a start, under both names.
    job = (tmp_path / "job.yaml").read_text().replace("m.onnx}", f"m.onnx, initial: {tmp_path / 'end.safetensors'}}}")
    (tmp_path / "again.yaml").write_text(job)
    h.mfl("check", tmp_path / "again.yaml", cwd=tmp_path)


def test_a_folded_tie_is_refused(tmp_path):
    torch.manual_seed(5)
    export(TiedGpt(), torch.zeros(1, 8, dtype=torch.int64), tmp_path / "m.onnx", 17, True, do_constant_folding=True)
    assert "reads onnx::MatMul_" in check(tmp_path, tmp_path / "m.onnx", 5).stderr


class Fresh(nn.Module):
    """Two norms that an export for inference makes one: both are ones and zeros, and of one width."""

    def __init__(self):
        super().__init__()
        self.ln1, self.fc, self.ln2, self.out = nn.LayerNorm(8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.ln2(self.fc(self.ln1(x))))


def test_equal_norms_are_not_one(tmp_path):
    export(Fresh(), torch.zeros(1, 8), tmp_path / "m.onnx", 17, True, training=torch.onnx.TrainingMode.EVAL)
    assert f"{parameters(Fresh())} parameters" in check(tmp_path, tmp_path / "m.onnx", 0).stdout
