# SPDX-License-Identifier: Apache-2.0
"""PyTorch as the judge: from the same params, over the same batches, the same gradients, losses and params.

PyTorch computes in double: two float runs part where rounding decides a ReLU or the winner of a max pool differently, and
then differ by a whole sample's gradient, which says nothing about either. The deepest networks start where no activation is
near such a decision (Case.far); there float32 will do, in which PyTorch's convolutions are many times faster.

$MFL_TRAJECTORY is the driver program; $MFL_MODULE_DIR where the cpu module lies; $MFL_TRAJECTORY_BACKEND the backend, by
default the cpu where it has all that a model needs, else the reference.
"""
import dataclasses
import math
import os
import subprocess

import pytest

import mfl_needs

torch = mfl_needs.module("torch")
from torch import nn  # noqa: E402

import mfl_torch  # noqa: E402

STEPS = 20
# Rounding of single steps is about 1e-6 of the values and grows over the steps; a wrong formula shows in the first digits.
LOSS_BOUND = 1e-4
GRADIENT_BOUND = 1e-4
# Params are compared after few steps (Case.middle), relative to the largest move, because a near-tie in a max pool or ReLU, which
# rounding decides, moves one sample's gradient to another place; after that more decisions differ.
PARAMS_BOUND = 1e-3


@dataclasses.dataclass
class Case:
    model: str
    shape: tuple
    batch: int
    classes: int = 10
    options: dict = dataclasses.field(default_factory=dict)
    lr_scale: list = None
    ignored: bool = False
    middle: int = 3
    far: bool = False
    steps: int = STEPS

    @property
    def tokens(self):
        return len(self.shape) == 1

    @property
    def rows(self):
        return self.batch * self.options.get("accumulate", 1)


def read(directory, name, dtype):
    return torch.frombuffer(bytearray((directory / name).read_bytes()), dtype=dtype)


def write(directory, name, tensor):
    (directory / name).write_bytes(tensor.contiguous().numpy().tobytes())


def make_data(case, directory):
    """Batches of all steps, and what they should give: patterns of the class in noise, so that there is something to learn."""
    generator = torch.Generator().manual_seed(7)
    n = case.steps * case.rows
    if case.tokens:
        text = torch.randint(case.classes, (n, case.shape[0] + 1), generator=generator)
        text[:, 1::2] = text[:, :-1:2] * 3 % case.classes
        samples, answers = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        if case.ignored:
            answers[:, ::3] = -1
        write(directory, "tokens.i32", samples.int())
        write(directory, "labels.i32", answers.int())
        return samples, answers
    labels = torch.randint(case.classes, (n,), generator=generator)
    patterns = torch.randint(128, (case.classes, *case.shape), generator=generator)
    pixels = patterns[labels] + torch.randint(128, (n, *case.shape), generator=generator)
    write(directory, "samples.u8", pixels.to(torch.uint8))
    samples = pixels.double() / 255.0
    if case.options.get("loss", "cross-entropy") in ("cross-entropy", "focal"):
        write(directory, "labels.i32", labels.int())
        return samples, labels
    targets = nn.functional.one_hot(labels, case.classes).float()
    write(directory, "targets.f32", targets)
    return samples, targets.double()


def far_start(case):
    """Params by which every channel that a ReLU reads is on, off, or (ReLU6) at 6 for all samples: the norm's bias is farther
    from the kink than values are from their mean, which is 2 or 3 deviations mostly. Other norms keep a bias of 0."""
    generator = torch.Generator().manual_seed(11)
    torch.manual_seed(5)
    net = mfl_torch.preset(case.model, case.shape, case.classes)
    for norm in [module for module in net.modules() if isinstance(module, (nn.BatchNorm2d, nn.GroupNorm))]:
        norm.weight.data = 0.2 + 0.2 * torch.rand(norm.weight.shape, generator=generator)
    for module in net.modules():
        if isinstance(module, mfl_torch.Block):
            module.bn1.bias.data += 2
            module.bn1.bias.data[::4] -= 4
            if module.downsample:
                module.downsample[1].bias.data += 2
        elif isinstance(module, nn.Sequential) and len(module) == 3 and isinstance(module[2], nn.ReLU6):
            module[1].bias.data += 2
            module[1].bias.data[::8] -= 4
            module[1].bias.data[4::8] += 6
    if hasattr(net, "bn1"):
        net.bn1.bias.data += 2
    return mfl_torch.flat(mfl_torch.state_of(net).values())


def run_driver(directory, backend, case):
    program = os.environ.get("MFL_TRAJECTORY")
    if not program:
        pytest.skip("MFL_TRAJECTORY does not name the driver program")
    if case.lr_scale:
        write(directory, "lr_scale.f32", torch.tensor(case.lr_scale))
    if case.far:
        write(directory, "start.f32", far_start(case))
    if case.options.get("weights"):
        write(directory, "weights.f32", torch.tensor(case.options["weights"]))
    options = [f"{key}={value}" for key, value in case.options.items() if key != "weights"]
    done = subprocess.run([program, backend, case.model, "x".join(map(str, case.shape)), str(case.classes),
                           str(case.batch), str(case.steps), str(directory), f"middle={case.middle}", *options],
                          capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    print(f"{case.model}: {done.stdout.strip()}")


def optimizer_of(net, options):
    lr, decay, eps = options.get("lr", 0.05), options.get("weight_decay", 0), options.get("eps", 1e-8)
    kind = options.get("optimizer", "sgd")
    if kind == "sgd":
        return torch.optim.SGD(net.parameters(), lr=lr, momentum=options.get("momentum", 0), weight_decay=decay,
                               nesterov=bool(options.get("nesterov", 0)))
    if kind == "adagrad":
        return torch.optim.Adagrad(net.parameters(), lr=lr, weight_decay=decay, eps=eps)
    maker = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]
    return maker(net.parameters(), lr=lr, weight_decay=decay, eps=eps)


def loss_of(outputs, answers, options):
    kind, weights = options.get("loss", "cross-entropy"), options.get("weights")
    weights = torch.tensor(weights, dtype=outputs.dtype) if weights else None
    targets = {
        "binary": lambda: nn.functional.binary_cross_entropy_with_logits(outputs, answers, pos_weight=weights),
        "squared": lambda: nn.functional.mse_loss(outputs, answers),
        "huber": lambda: nn.functional.huber_loss(outputs, answers, delta=options["parameter"]),
        "smooth-l1": lambda: nn.functional.smooth_l1_loss(outputs, answers, beta=options["parameter"]),
        "l1": lambda: nn.functional.l1_loss(outputs, answers),
    }
    if kind in targets:
        return targets[kind]()
    logits, labels = outputs.reshape(-1, outputs.shape[-1]), answers.reshape(-1)
    if kind == "focal":  # Lin et al. 2017, equation 5, with softmax; the mean over the predictions
        log_p = nn.functional.log_softmax(logits, 1).gather(1, labels[:, None])[:, 0]
        alpha = weights[labels] if weights is not None else 1
        return (-alpha * (1 - log_p.exp()) ** options["parameter"] * log_p).mean()
    return nn.functional.cross_entropy(logits, labels, ignore_index=options.get("ignored", -1), weight=weights,
                                       label_smoothing=options.get("smoothing", 0.0))


def assert_near(ours, theirs, scale, bound, what):
    difference = ((ours - theirs).abs().max() / scale).item()
    print(f"{what}: {difference:.1e} of {bound:.0e}")
    assert difference <= bound, f"{what}: {difference:.1e}, bound {bound:.0e}"


def check(directory, backend, case):
    torch.set_num_threads(1)
    samples, answers = make_data(case, directory)
    samples = samples if case.tokens else samples.to(torch.float32 if case.far else torch.float64)
    run_driver(directory, backend, case)
    real = torch.float32 if case.far else torch.float64
    options, start = case.options, read(directory, "params.f32", torch.float32).to(real)
    net = mfl_torch.preset(case.model, case.shape, case.classes).to(real)
    assert list(mfl_torch.state_of(net)) == (directory / "names.txt").read_text(encoding="utf-8").split()
    mfl_torch.load(net, start)
    losses = read(directory, "losses.f64", torch.float64)
    optimizer = optimizer_of(net, options)
    worst = 0.0
    for step in range(case.steps):
        rows = slice(step * case.rows, (step + 1) * case.rows)
        for group in optimizer.param_groups:
            group["lr"] = options.get("lr", 0.05) * (case.lr_scale[step] if case.lr_scale else 1)
        if step == 0:
            first = slice(0, case.batch)
            mfl_torch.load(net, start)
            state = {name: t.clone() for name, t in net.state_dict().items()}
            loss_of(net(samples[first]), answers[first], options).backward()
            net.load_state_dict(state)  # running statistics have moved
            ours = mfl_torch.gradient_of(net)
            assert_near(read(directory, "gradient.f32", torch.float32).to(real), ours, ours.abs().max(),
                        GRADIENT_BOUND, "gradient")
        optimizer.zero_grad()
        loss = loss_of(net(samples[rows]), answers[rows], options)
        loss.backward()
        apart = abs(losses[step].item() / loss.item() - 1)
        assert step > 0 or apart <= LOSS_BOUND
        worst = max(worst, apart)
        if options.get("clip_norm"):
            nn.utils.clip_grad_norm_(net.parameters(), options["clip_norm"])
        optimizer.step()
        if step == case.middle - 1:
            params = mfl_torch.flat(mfl_torch.state_of(net).values())
            assert_near(read(directory, "middle.f32", torch.float32).to(real), params, (params - start).abs().max(),
                        PARAMS_BOUND, "params")
    print(f"losses: {worst:.1e} of {LOSS_BOUND:.0e}, from {losses[0].item():.3f} to {losses[-1].item():.3f}")
    assert worst <= LOSS_BOUND


# A decision that rounding turns, a share of 1e-6 of a deep network's, changes the gradient by one sample's share of it, and so
# params by that times the learning rate, which batch norm of few values then multiplies. From the ordinary start mobilenet-v2's
# losses over 20 steps of 1e-5 part by 3.7e-3 from those in double, PyTorch's own in float32 by 5.6e-3. So deep networks of ReLUs
# start far from all kinks, and agree to some 1e-6 over steps that are 70 times as long.
FAR = {"far": True, "options": {"lr": 7e-4}}
PRESETS = [
    Case("logistic", (1, 28, 28), 10),
    Case("mlp", (1, 28, 28), 10),
    Case("lenet5", (1, 28, 28), 10),
    Case("fedavg-cnn", (1, 12, 12), 10),
    Case("pfl-cnn", (3, 16, 16), 8),
    Case("resnet18", (3, 4, 4), 8, **FAR),
    Case("resnet18-gn", (3, 4, 4), 2, **FAR),
    Case("resnet20", (1, 16, 16), 8, **FAR),
    Case("resnet20-gn", (1, 16, 16), 4, **FAR),
    Case("mobilenet-v2", (3, 16, 16), 4, **FAR),
    Case("char-lstm", (12,), 4, 31, options={"lr": 0.5}),
    Case("char-gpt", (16,), 4, 31, options={"lr": 0.1}),
    Case("vit-tiny", (3, 8, 8), 2, options={"lr": 0.01}),
]


@pytest.mark.parametrize("case", PRESETS, ids=lambda case: case.model)
def test_the_first_steps_of_a_preset_are_pytorchs(tmp_path, case):
    check(tmp_path, os.environ.get("MFL_TRAJECTORY_BACKEND", "auto"), case)


# Of these the reference is asked too: it is what the other backends are compared with.
COSINE = [0.5 * (1 + math.cos(math.pi * step / STEPS)) for step in range(STEPS)]
WARM_UP = [min(1.0, (step + 1) / 5) for step in range(STEPS)]
# eps of Adam: with a small one the sign of a gradient that is 0 but for rounding is worth a whole step.
WEIGHTS = [0.5, 2.0, 1.0, 0.25, 1.5, 0.0, 3.0, 0.75, 1.0, 0.1]  # of classes, or of targets
WAYS = {
    "momentum": {"lr": 0.05, "momentum": 0.9},
    "nesterov decay": {"lr": 0.05, "momentum": 0.9, "nesterov": 1, "weight_decay": 0.01},
    "adam": {"optimizer": "adam", "lr": 0.002, "eps": 1e-3, "weight_decay": 0.01},
    "adamw": {"optimizer": "adamw", "lr": 0.002, "eps": 1e-3, "weight_decay": 0.1},
    "adagrad": {"optimizer": "adagrad", "lr": 0.01, "eps": 1e-3, "weight_decay": 0.01},
    "clipped": {"lr": 0.2, "clip_norm": 0.3},
    "accumulated": {"lr": 0.1, "accumulate": 3},
    "smoothed": {"lr": 0.1, "smoothing": 0.1},
    "binary": {"lr": 0.5, "loss": "binary"},
    "squared": {"lr": 0.1, "loss": "squared", "accumulate": 2},
    "weighted": {"lr": 0.1, "weights": WEIGHTS},
    "weighted accumulated": {"lr": 0.1, "weights": WEIGHTS, "accumulate": 3},
    "weighted smoothed ignored": {"lr": 0.1, "weights": WEIGHTS, "smoothing": 0.2, "ignored": 3},
    "focal": {"lr": 0.2, "loss": "focal", "parameter": 2.0},
    "focal weighted": {"lr": 0.2, "loss": "focal", "parameter": 0.5, "weights": WEIGHTS, "accumulate": 2},
    "binary weighted": {"lr": 0.2, "loss": "binary", "weights": WEIGHTS},
    "huber": {"lr": 0.2, "loss": "huber", "parameter": 0.4},
    "smooth l1": {"lr": 0.1, "loss": "smooth-l1", "parameter": 0.3, "accumulate": 2},
    "l1": {"lr": 0.02, "loss": "l1"},
}


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("way", WAYS)
def test_optimizers_and_losses_are_pytorchs(tmp_path, backend, way):
    check(tmp_path, backend, Case("lenet5", (1, 12, 12), 4, options=WAYS[way]))


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("factors", [COSINE, WARM_UP], ids=["cosine", "warm-up"])
def test_schedules_are_pytorchs(tmp_path, backend, factors):
    check(tmp_path, backend, Case("lenet5", (1, 12, 12), 4, options={"optimizer": "adamw", "lr": 0.002, "eps": 1e-3},
                                  lr_scale=factors))


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_ignored_labels_are_pytorchs(tmp_path, backend):
    check(tmp_path, backend, Case("char-gpt", (6,), 2, 11, options={"lr": 0.1, "smoothing": 0.1, "clip_norm": 0.5},
                                  ignored=True))
