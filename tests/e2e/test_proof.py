# SPDX-License-Identifier: Apache-2.0
"""python/mfl_export.py: modules that mfl trains as PyTorch does pass their proof; what differs is refused by name.

Skipped where there is no PyTorch.
"""
import base64
import json
import os
import random
import struct
import sys

import numpy as np
import pytest

import mfl_needs

torch = mfl_needs.module("torch")
from torch import nn  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
import mfl_export  # noqa: E402
import mfl_harness as h  # noqa: E402
import mfl_modules as modules  # noqa: E402

IMAGES = "d=synthetic:1,8,8:3:200:20:1"
JOB = ("name: t\nrounds: %d\nmodel: {onnx: model.onnx}\ndata: {name: d, partition: iid, clients: 2}\n"
       "training: {optimizer: sgd, lr: 0.1, epochs: 1, batch: 10}\n")


def export(tmp_path, made, example):
    torch.manual_seed(1)
    net = made()
    mfl_export.save(net, example, tmp_path / "model.onnx")
    (tmp_path / "job.yaml").write_text(JOB % 1)
    return net


def check(tmp_path, status=0, *argv):
    return h.mfl("check", "job.yaml", *argv, status=status, cwd=tmp_path).stderr


@pytest.mark.parametrize("name", modules.PROVED)
def test_proof(tmp_path, name):
    net = export(tmp_path, *modules.PROVED[name])
    n = sum(p.requires_grad for p in net.parameters())
    for backend in ("auto", "reference"):
        assert f"proof: outputs and {n} gradients agree with PyTorch" in check(tmp_path, 0, "--backend", backend)


class Code(nn.Module):
    """One code per sample, whose input has no dimension but the batch."""

    def __init__(self):
        super().__init__()
        self.a, self.fc = nn.Embedding(5, 3), nn.Linear(3, 3)

    def forward(self, code):
        return self.fc(torch.tanh(self.a(code)))


def test_codes_without_a_dimension(tmp_path):
    """The file is written, and mfl says what it lacks."""
    export(tmp_path, Code, torch.tensor([4]))
    assert "has 1 dimensions; expected the batch and 1 to 4 dimensions of a sample" in check(tmp_path, 5)


@pytest.mark.parametrize("name", modules.REFUSED)
def test_refused(tmp_path, name):
    made, example, text = modules.REFUSED[name]
    export(tmp_path, made, example)
    assert text in check(tmp_path, 5)


class Ways(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        return self.a(x) if x.sum() > 0 else self.b(x)


def recurrent(**options):
    return lambda: nn.Sequential(nn.LSTM(8, 6, **options))


class Called(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.fc, self.function = nn.Linear(8, 4), [function]

    def forward(self, x):
        return self.function[0](self.fc(x))


class Keeps(nn.Module):
    """A forward pass that changes the next one."""

    def __init__(self, step):
        super().__init__()
        self.fc, self.scale, self.step = nn.Linear(8, 4), nn.Parameter(torch.tensor(1.2)), step
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        return self.step(self, self.fc(x) * self.scale)


def centre(net, y):
    if net.training:
        with torch.no_grad():
            net.mean.mul_(0.9).add_(0.1 * y.mean(0))
    return y - net.mean


def clip(net, y):
    net.fc.weight.data.clamp_(-0.2, 0.2)
    return y


UNSUPPORTED = {
    "moving-mean": (lambda: Keeps(centre), modules.VECTOR, "by mean, which the forward pass changes"),
    "clipped": (lambda: Keeps(clip), modules.VECTOR, "the forward pass changes the parameter fc.weight"),
    "number": (lambda: Keeps(lambda net, y: y * net.scale.item()), modules.VECTOR, "takes a number from a parameter"),
    "choice": (lambda: Keeps(lambda net, y: y if net.scale > 0.5 else torch.tanh(y)), modules.VECTOR, "takes a number from a parameter"),
    "ways": (Ways, modules.VECTOR, "takes one way or another"),
    "projection": (recurrent(proj_size=2), torch.zeros(1, 3, 8), "0 (LSTM): proj_size is not supported"),
    "max-norm": (lambda: nn.Sequential(nn.Embedding(9, 4, max_norm=1.0)), modules.tokens(), "0 (Embedding): max_norm changes"),
    "by-count": (lambda: nn.Sequential(nn.Embedding(9, 4, scale_grad_by_freq=True)), modules.tokens(), "scale_grad_by_freq"),
    "cumulative": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=None)), modules.IMAGE, "1 (BatchNorm2d): momentum=None"),
    "no-statistics": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)), modules.IMAGE,
                      "use track_running_stats=True"),
    "statistics": (lambda: nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True)), modules.IMAGE, "use track_running_stats=False"),
    "divisor": (lambda: nn.Sequential(nn.AvgPool2d(2, divisor_override=3)), modules.IMAGE, "divisor_override"),
    "drops-to-less": (lambda: nn.Sequential(nn.Linear(8, 4), nn.AlphaDropout(0.2)), modules.VECTOR, "1 (AlphaDropout): mfl drops to 0 only"),
    "orthogonal": (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)), modules.VECTOR, "does not train with orthogonal weights"),
    "spectral": (lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 8))), modules.VECTOR, "0 (Linear): mfl does not train with spectral norm"),
    "of-the-batch": (lambda: Called(lambda x: x + x.flip(0)), modules.VECTOR, "depends on the other samples"),
    "of-samples-before": (lambda: Called(lambda x: x.cumsum(0)), modules.VECTOR, "depends on the other samples"),
    "mixed-in-training": (lambda: Keeps(lambda net, y: 0.7 * y + 0.3 * y.flip(0) if net.training else y), modules.VECTOR, "depends on the other samples"),
    "channels-always": (lambda: Called(lambda x: nn.functional.dropout2d(x[..., None, None], 0.5).flatten(1)), modules.VECTOR,
                        "calls dropout2d, which drops in evaluation, too"),
    "no-exporter": (lambda: Called(lambda x: torch.lgamma(x.exp())), modules.VECTOR, "the module (Called) calls lgamma, which PyTorch can't export"),
    "complex": (lambda: Called(lambda x: torch.fft.fft(x).sgn().real), modules.VECTOR, "the module (Called) calls sgn of complex numbers"),
    "complex-power": (lambda: Called(lambda x: (torch.fft.fft(x) ** 0.5).real), modules.VECTOR, "the module (Called) calls pow with another exponent"),
    "scripted": (lambda: nn.Sequential(torch.jit.script(nn.Linear(8, 4))), modules.VECTOR, "0 (RecursiveScriptModule) is compiled: export the module that"),
    "slopes": (lambda: nn.Sequential(nn.Linear(8, 4), nn.RReLU()), modules.VECTOR, "1 (RReLU): draws its slopes"),
    "drops-always": (lambda: Called(lambda x: nn.functional.dropout(x, 0.5)), modules.VECTOR, "calls dropout, which drops in evaluation, too"),
    **({"attention-drops-always": (lambda: Called(lambda x: nn.functional.scaled_dot_product_attention(*[x.view(-1, 1, 2, 2)] * 3, dropout_p=0.1).flatten(1)),
         modules.VECTOR, "calls scaled_dot_product_attention, which drops in evaluation, too")} if hasattr(nn.functional, "scaled_dot_product_attention") else {}),
    "noise-always": (lambda: Called(lambda x: x + torch.randn_like(x)), modules.VECTOR, "calls randn_like in evaluation, too"),
    "depth-always": (lambda: Called(lambda x: x * (torch.rand(len(x), 1) < 0.5) / 0.5), modules.VECTOR, "calls rand in evaluation, too"),
    "depth-of-the-batch": (lambda: Keeps(lambda net, y: y * torch.empty(1, 1).bernoulli_(0.5) / 0.5 if net.training else y), modules.VECTOR,
                           "calls bernoulli_, one number for all samples of a batch"),
    "layer-drop": (lambda: Keeps(lambda net, y: torch.tanh(y) if net.training and torch.rand([]) < 0.3 else y), modules.VECTOR, "as layer drop does"),
    "layer-drop-by-python": (lambda: Keeps(lambda net, y: torch.tanh(y) if net.training and random.random() < 0.3 else y), modules.VECTOR, "as layer drop does"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_no_file_can_say_is_refused(tmp_path, name):
    made, example, text = UNSUPPORTED[name]
    with pytest.raises(mfl_export.ExportError) as refused:
        mfl_export.save(made(), example, tmp_path / "model.onnx")
    assert text in str(refused.value) and not os.listdir(tmp_path)


def test_running_statistics_are_the_modules(tmp_path):
    """Not as the export's own forward pass would leave them."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(256, 3))
    nn.init.constant_(net[1].running_mean, 3.25)
    mfl_export.save(net, torch.zeros(2, 3, 10, 10), tmp_path / "model.onnx")
    assert np.full(4, 3.25, "<f4").tobytes() in (tmp_path / "model.onnx").read_bytes()
    assert net[1].running_mean.tolist() == [3.25] * 4


def test_a_proof_beside_an_auxiliary_output(tmp_path):
    """The proof is of the main output; the job trains both."""
    export(tmp_path, modules.Heads, modules.VECTOR)
    (tmp_path / "job.yaml").write_text((JOB % 1).replace("lr: 0.1", "lr: 0.1, auxiliary: [0.3]"))
    assert "proof: outputs and 6 gradients agree" in check(tmp_path)


# ---- another model than the proof's ----

def detach(pick, share=1.0):
    """The gradient, or a share of it, stops behind a module, which a file without a node for it does not say."""
    return lambda net: pick(net).register_forward_hook(lambda module, inputs, out: out + share * (out.detach() - out))


def set_to(pick, **values):
    def change(net):
        for key, value in values.items():
            setattr(pick(net), key, value)
    return change


class Tanh(nn.Module):
    def forward(self, x):
        return nn.functional.gelu(x, approximate="tanh")


def tanh_gelu(net):
    net[1] = Tanh()


# In deep networks, rounding hides single elements; what differs as a whole must still be seen.
DEEP = modules.PROVED["deep"]
WRONG = {
    "gate": (*DEEP, detach(lambda net: net.gates[4])), "last-gate": (*DEEP, detach(lambda net: net.gates[9])),
    "branch": (*DEEP, detach(lambda net: net.b[5])), "share": (*DEEP, detach(lambda net: net.b[5], 0.02)), "first-branch": (*DEEP, detach(lambda net: net.a[0])),
    "eps": (*DEEP, set_to(lambda net: net.b[3][1], eps=1e-3)), "padding": (*DEEP, set_to(lambda net: net.a[3][0], padding_mode="reflect")),
    "transposed": (*DEEP, lambda net: net.a[3][0].weight.data.copy_(net.a[3][0].weight.data.transpose(2, 3).clone())),
    "gelu": (lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), modules.VECTOR, tanh_gelu),
    "side": (modules.Cnn, modules.IMAGE, detach(lambda net: net.conv1)),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_model_is_refused(tmp_path, monkeypatch, name):
    made, example, change = WRONG[name]
    prove = mfl_export._prove

    def of_another(net, examples, model):
        change(net)
        return prove(net, examples, model)
    monkeypatch.setattr(mfl_export, "_prove", of_another)
    export(tmp_path, made, example)
    said = check(tmp_path, 5)
    assert "differ" in said and "mfl would train another model" in said


def test_a_file_of_an_earlier_mfl_export(tmp_path):
    """Without `spread`, `noise` takes its place; without `precision`, gradients may have been computed in floats."""
    export(tmp_path, *DEEP)

    def change(found):
        assert found["mfl.proof"].pop("precision") == "double"
        for parameter in found["mfl.proof"]["parameters"]:
            assert len(parameter.pop("spread")) == 2
    rewrite(tmp_path, change)
    assert "agree" in check(tmp_path)


@pytest.mark.parametrize("batches,precision", [(1, "float"), (2, "float"), (2, "double")])
def test_a_spread_excuses_little(tmp_path, batches, precision):
    """However much a file says that rounding changes: 0.15 in both batches is too much, and so is half in one of them. In double,
    it excuses nothing."""
    export(tmp_path, *DEEP)

    def change(found):
        found["mfl.proof"]["precision"] = precision
        for parameter in found["mfl.proof"]["parameters"]:
            parameter["spread"] = [1e6, 1e6]
            for b in range(batches):
                values = np.frombuffer(base64.b64decode(parameter["value"][b]), "<f4") * np.float32(
                    1.002 if precision == "double" else 1.15 if batches == 2 else 1.5)
                parameter["value"][b] = base64.b64encode(values.astype("<f4").tobytes()).decode()
    rewrite(tmp_path, change)
    assert "the gradient of" in check(tmp_path, 5)


# ---- a backend that computes something else ----

FAULTY = {"outputs": (dict(FAULTY_KIND="gelu"), "its outputs differ from PyTorch's by", "the first layer that differs is gelu1 (gelu)"),
          "gradients": (dict(FAULTY_GRADIENTS="1"), "its gradient of 2.bias differs from PyTorch's by 2 (plain loops: ", "Report it")}


@pytest.mark.parametrize("name", FAULTY)
def test_a_wrong_backend_is_not_excused_by_a_right_model(tmp_path, name):
    """tests/lib/faulty: the double of the reference says that the model is right, and that the reference is."""
    export(tmp_path, lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), modules.VECTOR)
    env = {"MFL_MODULE_DIR": os.path.join(h.BUILD, "tests", "lib", "faulty")}
    assert "agree" in h.mfl("check", "job.yaml", cwd=tmp_path, env=env).stderr
    variables, *texts = FAULTY[name]
    said = h.mfl("check", "job.yaml", status=5, cwd=tmp_path, env=dict(env, **variables)).stderr
    for text in ["the model is right, but the cpu backend (faulty 1.0) is not", *texts]:
        assert text in said, said
    assert "agree" in h.mfl("check", "job.yaml", "--backend", "reference", cwd=tmp_path, env=dict(env, **variables)).stderr


# ---- damaged files ----

def entries(data):
    """The file without mfl's metadata, which are at its end; and the metadata."""
    found, size = {}, 0
    for field, a, b in mfl_export._fields(data, 0, len(data)):
        parts = {f: data[s:e] for f, s, e in mfl_export._fields(data, a, b)} if field == 14 else {}
        if parts.get(1, b"").startswith(b"mfl."):
            found[parts[1].decode()] = json.loads(parts[2])
            size += len(mfl_export._field(14, data[a:b]))
    return data[:len(data) - size], found


def rewrite(tmp_path, change):
    path = tmp_path / "model.onnx"
    before, found = entries(path.read_bytes())
    change(found)
    path.write_bytes(before + b"".join(mfl_export._metadata(key, value) for key, value in found.items()))


def changed(text, i, factor):
    values = np.frombuffer(base64.b64decode(text), "<f4").copy()
    values[i] *= factor
    return base64.b64encode(values.tobytes()).decode()


def test_a_gradient_that_differs(tmp_path):
    export(tmp_path, *modules.PROVED["buffers"])

    def change(found):
        grad = found["mfl.proof"]["parameters"][1]
        top = int(np.abs(np.frombuffer(base64.b64decode(grad["value"][1]), "<f4")).argmax())
        grad["value"][1] = changed(grad["value"][1], top, 1.01)
    rewrite(tmp_path, lambda found: None)
    assert "agree" in check(tmp_path)
    rewrite(tmp_path, change)
    assert "the gradient of fc1.bias differs from PyTorch's by 0.01" in check(tmp_path, 5)


def test_weights_of_another_model(tmp_path):
    """The layer whose weights were exchanged is named, not a later one."""
    export(tmp_path, *modules.PROVED["cnn"])
    path = tmp_path / "model.onnx"
    data = path.read_bytes()
    net = export(tmp_path, *modules.PROVED["cnn"])
    weight = net.conv2.weight.detach().numpy().tobytes()
    assert data.count(weight) == 1
    path.write_bytes(data.replace(weight, np.roll(np.frombuffer(weight, "<f4"), 1).tobytes()))
    said = check(tmp_path, 5)
    assert "outputs differ from PyTorch's" in said and "the first layer that differs is conv2 (Conv2d)" in said


@pytest.mark.parametrize("what", ["json", "short", "base64", "index", "count", "finite", "format", "cut"])
def test_damaged_metadata(tmp_path, what):
    export(tmp_path, *modules.PROVED["buffers"])
    path = tmp_path / "model.onnx"
    before, found = entries(path.read_bytes())
    proof, model = found["mfl.proof"], found["mfl.model"]
    grad = proof["parameters"][0]
    if what == "short":
        grad["value"][0] = grad["value"][0][:8]
    elif what == "base64":
        grad["value"][0] = "?" + grad["value"][0][1:]
    elif what == "index":
        proof["outputs"][0]["index"] = base64.b64encode(struct.pack("<12I", *[10**6] * 12)).decode()
    elif what == "count":
        del proof["parameters"][-1]
    elif what == "finite":
        grad["value"][0] = changed(grad["value"][0], 0, np.nan)
    elif what == "format":
        model["format"] = 2
    tail = b"".join(mfl_export._metadata(key, value) for key, value in found.items())
    if what == "json":
        tail = tail.replace(b'"requires_grad":', b'"requires_grad";')
    path.write_bytes(before + (tail[:-100] if what == "cut" else tail))
    said = check(tmp_path, 5)
    assert {"format": "reads format 1", "cut": "is not an ONNX file, or is truncated"}.get(what, "its metadata are damaged") in said


# ---- files without a proof ----

def test_without_a_proof(tmp_path):
    made, example = modules.PROVED["vectors"]
    options = {"dynamo": False} if int(torch.__version__.split(".")[0]) >= 2 else {}
    torch.onnx.export(made(), example, tmp_path / "model.onnx", training=torch.onnx.TrainingMode.TRAINING,
                      do_constant_folding=False, opset_version=17, **options)
    (tmp_path / "job.yaml").write_text(JOB % 1)
    said = check(tmp_path)
    assert "has no proof" in said and "tied or frozen" in said and "mfl_export.save" in said


# ---- what is trained ----

def run(tmp_path, rounds, data):
    """The trained tensors."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((100, 8)).astype("float32"), rng.integers(0, 4, 100)
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    (tmp_path / "job.yaml").write_text(JOB % rounds)
    h.mfl("run", "job.yaml", "--daemons", 1, "--backend", "reference", "--data", data, "--out", "out", cwd=tmp_path)
    return {name: np.frombuffer(values, "<f4").reshape(shape)
            for name, (_, shape, values) in h.read_safetensors(tmp_path / "out" / "model.safetensors").items()}


def test_norms_without_scale_stay(tmp_path):
    """Five rounds: scales are 1 and shifts are 0 to the bit; the running statistics move."""
    export(tmp_path, *modules.PROVED["affine-false"])
    tensors = run(tmp_path, 5, IMAGES)
    norms = {name for name, values in tensors.items() if values.ndim == 1 and name.split(".")[0] not in
             ("conv1", "conv2", "conv3", "fc", "out") and "running" not in name}
    assert len(norms) >= 7
    for name in norms:
        assert np.all(tensors[name] == (1 if name.endswith("weight") else 0)), name
    assert np.any(tensors["bn.running_mean"] != 0)


def test_batch_norm_without_scale_stays_without_metadata(tmp_path):
    """The same from an export that says nothing about parameters."""
    made, example = modules.PROVED["affine-false"]
    options = {"dynamo": False} if int(torch.__version__.split(".")[0]) >= 2 else {}
    torch.onnx.export(made(), example, tmp_path / "model.onnx", training=torch.onnx.TrainingMode.TRAINING,
                      do_constant_folding=False, opset_version=16, **options)
    tensors = run(tmp_path, 5, IMAGES)
    assert np.all(tensors["bn.weight"] == 1) and np.all(tensors["bn.bias"] == 0)


def test_buffers_and_frozen_parameters_stay(tmp_path):
    net = export(tmp_path, *modules.PROVED["buffers"])
    tensors = run(tmp_path, 2, "d=npz:data.npz")
    assert np.array_equal(tensors["shift"].ravel(), net.shift.numpy())
    assert not np.array_equal(tensors["fc1.weight"], net.fc1.weight.detach().numpy())


# ---- the module itself ----

class Leaves(nn.Module):
    """Its forward pass leaves traces of every kind in two modules that share a dict and a list."""

    def __init__(self, fails):
        super().__init__()
        self.fc, self.norm, self.drop, self.head, self.fails = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3), fails
        self.cache = self.fc.cache = {"inner": [torch.ones(2)]}
        self.seen = self.head.seen = [1]
        self.last, self.fc.weight.grad = None, torch.ones(6, 8)
        self.norm.weight.requires_grad_(False)
        self.register_buffer("free", torch.zeros(2))
        self.fc.register_forward_hook(lambda *_: None)

    def forward(self, x):
        y = self.norm(self.fc(x))
        self.last, self.cache["y"], self.fc.extra = y, y, y
        self.cache["inner"].append(y)
        self.seen[:] = [y]
        self.seen = self.seen + [y]
        self.head.register_forward_pre_hook(lambda *_: None)
        self.drop.p, self.norm.training = 0.25, False
        self.free = torch.ones(2)
        self.norm.weight.requires_grad_(True)
        random.random(), np.random.rand()
        torch.set_default_dtype(torch.float64)
        torch.set_default_dtype(torch.float32)
        with torch.no_grad():
            self.norm.running_mean.add_(0.1)
            if self.fails:
                self.fc.bias.mul_(2)
                self.head.weight.data = self.head.weight.data * 2
        if self.fails:
            torch.set_default_dtype(torch.float64)
            torch._C._set_grad_enabled(False)
            raise RuntimeError("fails")
        return self.head(self.drop(y))


def contents(value, seen):
    """Everything below the value with the objects' identities, tensors by their bits. A shared container shows by its identity."""
    if isinstance(value, torch.Tensor):
        return (id(value), value.data_ptr(), value.detach().numpy().tobytes(), str(value.dtype), value.requires_grad, contents(value.grad, seen))
    if isinstance(value, nn.Module):
        value = vars(value)
    if not isinstance(value, (dict, list, tuple, set)) or id(value) in seen:
        return id(value)
    seen.add(id(value))
    items = [(key, contents(v, seen)) for key, v in value.items()] if isinstance(value, dict) else [contents(v, seen) for v in value]
    return id(value), type(value), items


def state_of(net):
    return (contents(net, set()), torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state()), torch.get_default_dtype(),
            torch.is_grad_enabled(), *({name: id(function) for name, function in vars(owner).items() if callable(function) and name != 'manual_seed'}  # torch.export wraps it
                                      for owner in (torch, nn.functional, torch.Tensor, nn.Module)))


@pytest.mark.parametrize("mode", ["train", "eval", "mixed"])
@pytest.mark.parametrize("made", ["net", "leaves", "fails", "refused"])
def test_save_leaves_the_module_as_it_was(tmp_path, mode, made):
    net = modules.Cnn() if made == "net" else Leaves(made == "fails")
    if made == "refused":
        net.drop = nn.AlphaDropout(0.5)
    net.train(mode != "eval")
    net.drop.train(mode == "train")
    example = modules.IMAGE if made == "net" else torch.randn(4, 8)
    torch.set_grad_enabled(mode != "mixed")
    before = state_of(net)
    try:
        if made == "net":
            mfl_export.save(net, example, tmp_path / "model.onnx")
        else:
            with pytest.raises(Exception):  # it has states, or fails, or drops to another number than 0
                mfl_export.save(net, example, tmp_path / "model.onnx")
        after = state_of(net)
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
    for a, b in zip(before, after):
        assert a == b
    assert os.listdir(tmp_path) == (["model.onnx"] if made == "net" else [])


def test_modules_that_share_a_dict_keep_it_within_the_proof(tmp_path):
    """What the first one puts there, the second one reads; of two dicts, one would have numbers of an earlier pass."""
    class Half(nn.Module):
        def __init__(self, kept, key):
            super().__init__()
            self.fc, self.kept, self.key = nn.Linear(8, 8), kept, key

        def forward(self, x):
            self.kept[self.key] = self.fc(x)
            return self.kept[self.key] if self.key else self.kept[1] * self.kept[0]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            kept = {1: 0.0}
            self.a, self.b, self.head = Half(kept, 1), Half(kept, 0), nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.b(torch.tanh(self.a(x))))
    net = export(tmp_path, Net, torch.randn(4, 8))
    assert net.a.kept is net.b.kept and net.a.kept == {1: 0.0}
    assert "agree with PyTorch" in h.mfl("check", "job.yaml", cwd=tmp_path).stderr


@pytest.mark.parametrize("name", [name for name in ("spectral", "rotated") if name in modules.PROVED])
def test_complex_numbers_stay_what_they_are(tmp_path, name):
    made, example = modules.PROVED[name]
    net = made()
    before, held = state_of(net), [*net.parameters(), *net.buffers()]
    mfl_export.save(net, example, tmp_path / "model.onnx")
    assert state_of(net) == before and all(a is b for a, b in zip(held, (*net.parameters(), *net.buffers())))
    assert any(t.is_complex() for t in (*net.parameters(), *net.buffers()))


def test_a_failed_export_leaves_no_file(tmp_path):
    with pytest.raises(Exception):
        mfl_export.save(modules.Cnn(), torch.zeros(1, 5, 10, 10), tmp_path / "model.onnx")
    assert not os.listdir(tmp_path)
    with pytest.raises(mfl_export.ExportError, match="the batch"):
        mfl_export.save(modules.Cnn(), 3, tmp_path / "model.onnx")
    with pytest.raises(mfl_export.ExportError, match="takes 9 inputs, and mfl reads up to 8"):
        mfl_export.save(modules.Cnn(), (torch.zeros(1, 1, 10, 10),) * 9, tmp_path / "model.onnx")
