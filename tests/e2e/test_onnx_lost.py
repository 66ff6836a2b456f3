# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's current exporter says of a module's tensors beside the graph: which are parameters, which are buffers, and which of
them its optimiser left out.

Skipped where there is no current PyTorch.
"""
import copy
import re

import numpy as np
import pytest

import mfl_needs

torch = mfl_needs.module("torch")
from torch import nn
from torch.nn import functional as F

from test_onnx import BATCH, NEW, STEPS, TOLERANCE, batches, export, run, train

pytestmark = pytest.mark.skipif(not NEW, reason="the other exporter needs a current PyTorch")


class Net(nn.Module):
    """A module of the parameters and buffers p, q, ..., with two dense layers; forward is a function of it and x."""
    tokens = 0

    def __init__(self, forward, shape=(6,), buffers=(), **tensors):
        super().__init__()
        self.run, self.shape = forward, shape
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 4)
        for name, value in tensors.items():
            if name in buffers:
                self.register_buffer(name, value.clone())
            else:
                setattr(self, name, nn.Parameter(value.clone()))

    def forward(self, x):
        return self.run(self, x)


def random(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def current(tmp_path, net, *inputs, optimize=True):
    path = tmp_path / "m.onnx"
    torch.onnx.export(net, inputs or (torch.zeros(1, *net.shape),), str(path), dynamo=True, external_data=False, optimize=optimize)
    return path


def trains(tmp_path, path, net):
    x, y = batches(net)
    x.astype(np.float32).tofile(tmp_path / "x.f32")
    y.astype(np.int32).tofile(tmp_path / "y.i32")
    code, out, err = run(path, tmp_path / "x.f32", tmp_path / "y.i32", BATCH, STEPS, 0.05, tmp_path, "reference", "outputs")
    assert code == 0, err
    want, got = train(net, x, y), np.fromfile(tmp_path / "losses.f64")
    assert np.max(np.abs(got - want) / np.abs(want)) < TOLERANCE
    return out


def copies(layer):
    """As nn.TransformerEncoder copies its layers."""
    net = Net(lambda m, x: m.b(torch.tanh(m.d(torch.tanh(m.c(m.a(x)))))))
    net.c, net.d = layer, copy.deepcopy(layer)
    return net


ONE, ZERO = torch.tensor(1.0), torch.tensor(0.0)
# What the optimiser loses, and what is said of it.
LOST = {
    "numbers": (lambda: Net(lambda m, x: m.b(torch.tanh(m.a(x)) * m.p + m.q), p=ONE, q=ZERO), "the file lacks the module's parameters [pq], [pq], and the operation "),
    "at-the-end": (lambda: Net(lambda m, x: m.b(torch.tanh(m.a(x))) * m.p, p=ONE), "the file lacks the module's parameters p, and the operation mul"),
    "divisor": (lambda: Net(lambda m, x: m.b(torch.tanh(m.a(x))) / m.p, p=ONE), "the file lacks the module's parameters p, and the operation div"),
    "one-use-of-two": (lambda: Net(lambda m, x: m.b(m.a(torch.sigmoid(x)) * m.p + torch.sigmoid(x) ** m.p), p=ONE), "left out the operation mul, one side of which is 0 or 1, as the parameter p is"),
    "part-of-an-operation": (lambda: Net(lambda m, x: m.b(torch.addcmul(m.a(x), x, m.p) * torch.sigmoid(x) ** m.p), p=ONE), "has lost the parameter p, which is 0 or 1"),
    "operator's-name": (lambda: Net(lambda m, x: m.b(m.a(x) * m.mean.exp()), mean=random(6)), r"the exporter computed exp from \['mean'\]"),
    "exporter's-name": (lambda: Net(lambda m, x: m.b(m.a(x) * m.val_0.exp()), val_0=random(6)), r"the exporter computed exp from \['val_0'\]"),
    "part": (lambda: Net(lambda m, x: m.b(m.a(x) + m.p[:6]), p=random(9)), "the exporter took a part of the parameter p"),
    "equal": (lambda: Net(lambda m, x: m.b(torch.tanh(m.a(x) * m.p) * m.q), p=random(6), q=random(6)), "reads the parameter [pq] in place of another tensor or number with the same value: PyTorch's optimiser made one of both"),
    "ones": (lambda: Net(lambda m, x: m.b(torch.tanh(m.a(x) * m.p) * m.q), p=torch.ones(6), q=torch.ones(6)), "reads the parameter [pq] in place of another"),
    "buffer": (lambda: Net(lambda m, x: m.b(torch.tanh(m.a(x) * m.p) * m.q), buffers="q", p=random(6), q=random(6)), "reads the parameter p in place of another"),
    "constant": (lambda: Net(lambda m, x: m.b(torch.tanh(m.a(x)) * m.p * 0.5), p=torch.tensor(0.5)), "reads the parameter p in place of another"),
    "exponent": (lambda: Net(lambda m, x: m.b(torch.sigmoid(m.a(x)) ** 3.0 * m.p), p=torch.tensor(3.0)), "reads the parameter p in place of another"),
    "equal-layers": (lambda: copies(nn.Linear(6, 6)), r"reads the parameter \w.weight in place of another"),
}


@pytest.mark.parametrize("name", LOST)
def test_a_parameter_that_the_optimiser_lost_is_refused(tmp_path, name):
    net = LOST[name][0]()
    code, _, err = run(current(tmp_path, net))
    assert code == 1 and re.search(LOST[name][1], err) and "mfl_export.save(net, example, file)" in err, err
    trains(tmp_path, current(tmp_path, net, optimize=False), net)


BUFFERS = {
    "matrix": lambda: Net(lambda m, x: m.b(torch.tanh(x @ m.p)), buffers="p", p=random(6, 6)),
    "scale": lambda: Net(lambda m, x: m.b(torch.tanh(m.a(x)) * m.p.exp()), buffers="p", p=random(6)),
    "part": lambda: Net(lambda m, x: F.linear(m.a(x) + m.p[:6], m.q[1:6]) + m.b(x)[:, :1], buffers="pq", p=random(9), q=random(8, 6)),
    "kernel": lambda: Net(lambda m, x: m.b(torch.tanh(F.conv2d(x, m.p, groups=2)).amax(3).flatten(1)), (2, 5, 5), "p", p=random(2, 1, 3, 3)),
}


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("name", BUFFERS)
def test_buffers_stay(tmp_path, name, optimize):
    net = BUFFERS[name]()
    trains(tmp_path, current(tmp_path, net, optimize=optimize), net)


@pytest.mark.parametrize("name", ["matrix", "scale", "kernel"])
def test_the_first_exporter_does_not_say_so_and_the_tensor_is_named(tmp_path, name):
    net = BUFFERS[name]()
    export(net, torch.zeros(1, *net.shape), tmp_path / "m.onnx", 17, False)
    code, out, err = run(tmp_path / "m.onnx")
    assert code == 0 and "does not say which tensors are parameters; taken for parameters: p; mfl_export.save writes it" in out, out + err


def test_names_of_a_module_that_an_exporter_could_make(tmp_path):
    """"scalar" and "val_0" are parameters where PyTorch's first exporter wrote the file."""
    net = Net(lambda m, x: m.b(m.a(x) * m.val_0.exp() + m.scalar), val_0=random(6), scalar=random(6))
    export(net, torch.zeros(1, 6), tmp_path / "m.onnx", 17, False)
    trains(tmp_path, tmp_path / "m.onnx", net)
    assert re.search("taken for parameters: (scalar, val_0|val_0, scalar);", run(tmp_path / "m.onnx")[1])


@pytest.mark.parametrize("layer", [lambda: nn.LayerNorm(6), lambda: nn.GroupNorm(2, 6)])
def test_ones_of_several_layers_are_several(tmp_path, layer):
    """The optimiser makes one tensor of them, and mfl several."""
    net = copies(layer())
    trains(tmp_path, current(tmp_path, net, optimize=False), net)
    path = current(tmp_path, net)
    code, out, err = run(path)
    if code == 0:
        trains(tmp_path, path, net)
    else:
        assert "mfl_export.save(net, example, file)" in err or "mfl_export.save(model, x, file)" in err, err


class Scale(nn.Module):
    """The parameters of a layer that computes with them."""

    def __init__(self):
        super().__init__()
        self.g, self.h = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return x * self.g + self.h


@pytest.mark.parametrize("name", ["equal", "ones", "layers", "scales"])
def test_equal_tensors_of_an_export_for_inference_are_several(tmp_path, name):
    """PyTorch's first exporter writes "q = Identity(p)"."""
    net = LOST[name][0]() if name in LOST else copies(nn.Linear(6, 6) if name == "layers" else Scale())
    export(net.eval(), torch.zeros(1, 6), tmp_path / "m.onnx", 17, False, training=torch.onnx.TrainingMode.EVAL, do_constant_folding=True)
    trains(tmp_path, tmp_path / "m.onnx", net)
    assert "it is trained as one parameter" not in run(tmp_path / "m.onnx")[1]


@pytest.mark.parametrize("optimize", [True, False])
def test_unused_and_tied_parameters_are_told(tmp_path, optimize):
    net = Net(lambda m, x: m.b(torch.tanh(m.a(torch.tanh(m.c(x))))), p=random(3))
    net.c = nn.Linear(6, 6)
    net.c.weight = net.a.weight
    path = current(tmp_path, net, optimize=optimize)
    out = run(path)[1]
    trains(tmp_path, path, net)
    assert re.search("the file lacks the module's parameters (p, [ac].weight|[ac].weight, p): they are tied to others, or the module does not use them", out), out


def merge(path, named=True):
    """Of equal initializers, the first; as onnx-simplifier and onnxruntime's optimiser do."""
    onnx = mfl_needs.module("onnx")
    model, first, names = onnx.load(path), {}, {}
    for t in model.graph.initializer:
        names[t.name] = first.setdefault((tuple(t.dims), onnx.numpy_helper.to_array(t).tobytes()), t.name)
    kept = [t for t in model.graph.initializer if names[t.name] == t.name]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.name = node.name if named else ""
    onnx.save(model, path)


def scaled(*layers):
    return nn.Sequential(nn.Linear(6, 6), *layers, nn.Linear(6, 4))


VALUES = {  # that a tool made one of two parameters: what is said of it; refused, where the file shows two modules
    "added": (lambda: Net(lambda m, x: m.b(torch.tanh(m.a(x) + m.p) + m.q), p=torch.zeros(6), q=torch.zeros(6)), False),
    "functions": (lambda: Net(lambda m, x: m.b(torch.tanh(m.a(x) * m.p.exp()) * m.q.exp()), p=torch.zeros(6), q=torch.zeros(6)), False),
    "one-plus": (lambda: Net(lambda m, x: m.b(torch.tanh(m.a(x) * (1 + m.p)) + m.q), p=torch.zeros(6), q=torch.zeros(6)), False),
    "numbers": (lambda: Net(lambda m, x: m.b(torch.tanh(m.a(x) * m.p) * m.q), p=torch.ones(1), q=torch.ones(1)), False),
    "modules": (lambda: scaled(Scale(), nn.Tanh(), Scale()), True),
    "norm": (lambda: Net(lambda m, x: m.b(F.silu(m.n(m.a(x))) * m.p), p=torch.ones(6)), True),
}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("name", VALUES)
def test_equal_values_that_a_tool_made_one(tmp_path, name, named):
    """Of one module, nobody can tell: mfl names the parameter."""
    made, refused = VALUES[name]
    net = made()
    if name == "norm":
        net.n = nn.LayerNorm(6)
    export(net, torch.zeros(1, 6), tmp_path / "m.onnx", 17, False)
    merge(tmp_path / "m.onnx", named)
    code, out, err = run(tmp_path / "m.onnx")
    if refused and named:
        assert code == 1 and "which an earlier layer has, and all its numbers are" in err, err
    elif name != "norm":
        assert code == 0 and "The file does not say whether a tool made one of several that are equal" in out, out + err


def test_a_module_that_is_called_twice_has_one(tmp_path):
    scale = Scale()
    net = scaled(scale, nn.Tanh(), scale)
    net.shape, net.tokens = (6,), 0
    export(net, torch.zeros(1, 6), tmp_path / "m.onnx", 17, False)
    assert "a tool made one" not in trains(tmp_path, tmp_path / "m.onnx", net)


@pytest.mark.parametrize("named", [True, False])
def test_equal_tensors_that_a_tool_made_one(tmp_path, named):
    """As onnx-simplifier and onnxruntime's optimiser do. Zeros of two biases part in training, and a tied bias looks the same."""
    onnx = mfl_needs.module("onnx")
    net = Net(lambda m, x: m.b(torch.tanh(m.c(torch.tanh(m.a(x))))))
    net.c = nn.Linear(6, 6)
    for layer in (net.a, net.c):
        nn.init.zeros_(layer.bias)
    export(net, torch.zeros(1, 6), tmp_path / "m.onnx", 17, False)
    model = onnx.load(tmp_path / "m.onnx")
    for node in model.graph.node:
        node.input[:] = ["a.bias" if name == "c.bias" else name for name in node.input]
        node.name = node.name if named else ""
    onnx.save(model, tmp_path / "m.onnx")
    code, _, err = run(tmp_path / "m.onnx")
    assert code == 1 and "reads a.bias, which an earlier layer has, and all its numbers are 0" in err and "Take the file as PyTorch wrote it" in err, err


class Tied(nn.Module):
    """A head that is tied to an embedding, beside an operation that the optimiser leaves out."""
    tokens, shape = 11, (5,)

    def __init__(self, change, scaled=False):
        super().__init__()
        self.embed, self.norm, self.head, self.change = nn.Embedding(11, 6), nn.LayerNorm(6), nn.Linear(6, 11, bias=False), change
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(())) if scaled else 1.0

    def forward(self, x):
        return self.head(self.change(self, self.norm(self.embed(x))))


NOTHING = {"times-one": lambda m, y: y * 1.0, "by-one": lambda m, y: y / 1.0, "plus-zero": lambda m, y: y + 0.0, "nothing": lambda m, y: torch.tanh(y)}


@pytest.mark.parametrize("name", NOTHING)
def test_a_tied_head_beside_an_operation_that_does_nothing(tmp_path, name):
    """The embedding's own notes say that it reads the head's weight, so its name is no parameter that was lost; and the transposed copy
    of the head is the same parameter."""
    net = Tied(NOTHING[name])
    out = trains(tmp_path, current(tmp_path, net, torch.zeros(1, 5, dtype=torch.long)), net)
    assert "shares_transposed: embed" in out or "shares_weight" in out, out


def test_a_scale_that_is_lost_beside_a_tied_head(tmp_path):
    code, _, err = run(current(tmp_path, Tied(lambda m, y: y * m.scale, True), torch.zeros(1, 5, dtype=torch.long)))
    assert code == 1 and "the file lacks the module's parameters scale, and the operation mul" in err, err


def test_a_symmetric_matrix_may_be_its_own_transpose(tmp_path):
    """Then the optimiser makes one of both."""
    net = Net(lambda m, x: m.b(torch.tanh(m.a(x).unsqueeze(1) @ m.p + F.linear(x.unsqueeze(1), m.p)).squeeze(1)), p=torch.eye(6) * 0.5)
    code, _, err = run(current(tmp_path, net))
    assert code == 1 and "reads the parameter p in place of another tensor" in err, err
    net.p.data = random(6, 6)
    trains(tmp_path, current(tmp_path, net), net)


def test_the_list_as_earlier_versions_wrote_it(tmp_path):
    """As Python prints it."""
    onnx = mfl_needs.module("onnx")
    for net, says in ((LOST["at-the-end"][0](), LOST["at-the-end"][1]), (BUFFERS["part"](), None)):
        path = current(tmp_path, net)
        model = onnx.load(str(path))
        entry = next(p for p in model.graph.metadata_props if p.key.endswith("graph_signature"))
        specs = re.findall(r"(\w+): (PARAMETER|BUFFER) target='([^']*)'", entry.value)
        assert len(specs) > 4
        entry.value = "ExportGraphSignature(input_specs=[" + ", ".join(
            f"InputSpec(kind=<InputKind.{kind}: 2>, arg=TensorArgument(name='{arg}'), target='{target}', persistent=None)" for arg, kind, target in specs) + (
            ", InputSpec(kind=<InputKind.USER_INPUT: 1>, arg=TensorArgument(name='x'), target=None, persistent=None)], output_specs=["
            "OutputSpec(kind=<OutputKind.BUFFER_MUTATION: 3>, arg=TensorArgument(name='add'), target='lost')])")
        onnx.save(model, str(path))
        code, _, err = run(path)
        assert (code == 1 and re.search(says, err)) if says else code == 0, err
        if not says:
            trains(tmp_path, path, net)


def test_names_that_the_exporter_numbered_twice(tmp_path):
    """A second "val_1" is "val_1_1", and a constant like the first."""
    onnx = mfl_needs.module("onnx")
    net = Net(lambda m, x: m.b(torch.tanh(m.a(x)) * torch.arange(6.0) + torch.tensor([1.0, 2, 3, 4, 5, 7])))
    path = current(tmp_path, net)
    model = onnx.load(str(path))
    names = {t.name: f"val_{k}_1" for k, t in enumerate(model.graph.initializer) if "." not in t.name}
    assert len(names) == 2
    for t in model.graph.initializer:
        t.name = names.get(t.name, t.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    onnx.save(model, str(path))
    trains(tmp_path, path, net)


def test_running_statistics_of_an_instance_norm_are_refused(tmp_path):
    """Training reads none, evaluation does; PyTorch's first exporter writes a batch norm for one sample."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.Flatten(), nn.Linear(36, 3))
    net.shape, net.tokens = (3, 5, 5), 0
    for path in (current(tmp_path, net, optimize=False), current(tmp_path, net)):
        code, _, err = run(path)
        assert code == 1 and "has lost 1.running_mean, with which the module evaluates: use an InstanceNorm with track_running_stats=False" in err, err
    export(net, torch.zeros(1, 3, 5, 5), tmp_path / "m.onnx", 17, False)
    code, _, err = run(tmp_path / "m.onnx")
    assert code == 1 and "is an InstanceNorm with running statistics: use track_running_stats=False" in err, err
    unused = Net(lambda m, x: m.b(m.a(x)))
    unused.norm = nn.InstanceNorm1d(4, track_running_stats=True)
    assert run(current(tmp_path, unused, optimize=False))[0] == 0


def test_what_to_do_is_said_of_nodes_with_long_names(tmp_path):
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    for k in range(6):
        outer = nn.Sequential()
        outer.add_module("a_module_with_a_long_name_%d" % k, net)
        net = outer
    export(net.eval(), torch.zeros(1, 5, 6), tmp_path / "m.onnx", 17, False, training=torch.onnx.TrainingMode.EVAL, do_constant_folding=True)
    code, _, err = run(tmp_path / "m.onnx")
    assert code == 1 and "node /a_module" in err and "Export for training: mfl_export.save(model, x, file) (see pytorch.md)" in err, err


class Twins(nn.Module):
    """Parameters with the names of arguments."""

    def __init__(self, *names):
        super().__init__()
        self.names = names
        for k, name in enumerate(names):
            setattr(self, name, nn.Parameter(random(6, seed=k)))


class One(Twins):
    def forward(self, x, b):
        return torch.tanh(x * self.b) + b


class Both(Twins):
    def forward(self, b, c):
        return torch.tanh(b * self.c) + c * self.b


class Only(Twins):
    def forward(self, b):
        return torch.tanh(b * self.b) + b


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("kind,names,n", [(One, "b", 2), (Both, "bc", 2), (Only, "b", 1)])
def test_parameters_with_the_names_of_arguments(tmp_path, kind, names, n, optimize):
    """Without its optimiser, the exporter writes one value for both; a file of which all parameters have such names looked like an old one."""
    path = current(tmp_path, kind(*names), *[torch.zeros(1, 6)] * n, optimize=optimize)
    code, out, err = run(path)
    if optimize:
        assert code == 0 and ("row of 12 numbers" in out or n == 1), out + err
    else:
        assert code == 1 and re.search("an input and a parameter both have the name [bc]: give the argument of forward", err), err


def test_initializers_that_are_inputs_too(tmp_path):
    """As the exporter writes them on request."""
    net = Net(lambda m, x: m.b(torch.tanh(m.a(x)) * m.p), p=random(6))
    torch.onnx.export(net, (torch.zeros(1, 6),), str(tmp_path / "m.onnx"), dynamo=True, external_data=False, keep_initializers_as_inputs=True)
    trains(tmp_path, tmp_path / "m.onnx", net)


def test_refusals_name_the_line_of_forward(tmp_path):
    net = Net(lambda m, x: m.b(torch.linalg.det(m.a(x).view(-1, 2, 3) @ m.a(x).view(-1, 3, 2))[:, None] * x))
    code, _, err = run(current(tmp_path, net))
    assert code == 1 and re.search(r": the model's own forward\(\), test_onnx_lost.py line \d+: node \w+ \(Det\): ", err), err


@pytest.mark.parametrize("layer", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("optimize", [True, False])
def test_recurrent_layers_that_are_refused_have_a_remedy(tmp_path, layer, optimize):
    """With a fixed batch, of two layers; nn.RNN, which the exporter writes position by position, in any batch."""
    class Rows(nn.Module):
        shape, tokens = (7, 4), 0

        def __init__(self):
            super().__init__()
            self.rnn, self.fc = layer(4, 5, 2, bidirectional=layer is not nn.RNN), nn.Linear(10 if layer is not nn.RNN else 5, 4)

        def forward(self, x):
            return self.fc(self.rnn(x.transpose(0, 1))[0].mean(0))
    for rows in ((1, 3) if layer is nn.RNN else (3,)):
        net = Rows()
        path = current(tmp_path, net, torch.zeros(rows, 7, 4), optimize=optimize)
        code, _, err = run(path)
        if code == 0 and layer is not nn.RNN:  # the optimiser took out what depends on the batch
            trains(tmp_path, path, net)
            continue
        assert code == 1 and "module rnn: " in err and "mfl_export.save(net, example, file)" in err, err


# ---- files that another program has changed, or that have lost PyTorch's list ----

def half(m, x):
    """A parameter that is 0, which optimisers leave out, and a bias of zeros."""
    return m.b(torch.tanh(m.a(x)) * 0.5 + m.p)


def by_onnxscript(path, folded):
    pytest.importorskip("onnxscript", reason="needs onnxscript, which PyTorch's exporter uses")
    import onnx
    import onnxscript.optimizer
    onnx.save(onnxscript.optimizer.optimize(onnx.load(path)), path)


def test_nothing_is_repeated_of_an_empty_constant(tmp_path):
    onnx = mfl_needs.module("onnx")
    net = Net(lambda m, x: m.b(m.a(x)))
    export(net, torch.zeros(1, 6), tmp_path / "m.onnx", 17, False)
    model = onnx.load(tmp_path / "m.onnx")
    g, make = model.graph, onnx.helper.make_node
    g.initializer.append(onnx.numpy_helper.from_array(np.array([0, 6, 0, 0]), "pads"))
    g.node[0].input[0] = "sum"
    for node in (make("Add", ["x", "padded"], ["sum"]), make("Pad", ["empty", "pads"], ["padded"], mode="edge"),
                 make("Constant", [], ["empty"], value=onnx.numpy_helper.from_array(np.zeros((1, 0), np.float32)))):
        g.node.insert(0, node)
    onnx.save(model, tmp_path / "m.onnx")
    code, _, err = run(tmp_path / "m.onnx")
    assert code == 1 and "pads a constant by more than it has" in err, err


def by_onnxruntime(path, folded):
    """What onnxruntime writes: the domains of its operators, and constants in place of nodes."""
    onnx = mfl_needs.module("onnx")
    model = onnx.load(path)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)


def by_folding(path, folded):
    """A node of parameters alone becomes an initializer of the name of its output, as onnx-simplifier does."""
    onnx = mfl_needs.module("onnx")
    model = onnx.load(path)
    node = next(n for n in model.graph.node if n.op_type == "Exp")
    model.graph.initializer.append(onnx.numpy_helper.from_array(folded, node.output[0]))
    model.graph.node.remove(node)
    onnx.save(model, path)


CHANGES = {
    "onnxscript": (by_onnxscript, half, torch.zeros(()), "onnxscript"),
    "bias": (by_onnxscript, lambda m, x: m.b(torch.tanh(m.a(x))), torch.zeros(()), "RemoveOptionalBiasFromGemm"),
    "onnxruntime": (by_onnxruntime, half, torch.zeros(()), "onnxruntime's optimiser has changed the file"),
    "folded": (by_folding, lambda m, x: m.b(m.a(x) * m.p.exp()), torch.zeros(()), "made a constant of the node that computed /Exp_output_0"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_a_tool_has_changed(tmp_path, name):
    change, forward, p, says = CHANGES[name]
    net = Net(forward, p=p)
    if name == "bias":
        nn.init.zeros_(net.a.bias)
    path = tmp_path / "m.onnx"
    export(net, torch.zeros(1, 6), path, 17, False)
    change(path, p.exp().numpy())
    code, _, err = run(path)
    assert code == 1 and says in err and "Train the file as PyTorch wrote it" in err, err


def converted(tmp_path, net, **options):
    """The current exporter converts its file to an opset below 18, and nothing is left but the graph."""
    torch.onnx.export(net, (torch.zeros(1, 6),), str(tmp_path / "m.onnx"), dynamo=True, external_data=False, opset_version=17, **options)
    return tmp_path / "m.onnx"


def test_an_optimised_file_without_the_list(tmp_path):
    net = Net(half, p=torch.zeros(()))
    code, _, err = run(converted(tmp_path, net))
    assert code == 1 and "without the list of the module's parameters" in err and "mfl_export.save" in err, err
    trains(tmp_path, converted(tmp_path, net, optimize=False), net)
