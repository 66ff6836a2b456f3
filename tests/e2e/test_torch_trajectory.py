# SPDX-License-Identifier: Apache-2.0
"""PyTorch as the judge: from the same params, over the same batches, the same gradients and losses.

PyTorch computes in double: two float runs part where rounding decides a ReLU or the winner of a max pool differently, and
then differ by a whole sample's gradient, which says nothing about either.

$MFL_TRAJECTORY is the driver program; $MFL_MODULE_DIR where the cpu module lies.
"""
import os
import subprocess

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

STEPS = 20
# Rounding of single steps is about 1e-6 of the values and grows over the steps; a wrong formula shows in the first digits.
LOSS_BOUND = 1e-4
# Params are compared after so few steps because a near-tie in a max pool, which rounding decides, moves one sample's gradient
# by one pixel: 1e-6 in fedavg-cnn's second convolution at the third step here, after which more decisions differ.
PARAMS_STEPS = 3
PARAMS_BOUND = 1e-3
GRADIENT_BOUND = 1e-4


# Rounding turns a ReLU's decision now and then in a network of 20 layers: a share of 1e-6 of 1.4 million a step here. So its
# params are compared after a single step, and its losses less closely and for fewer steps.
RESNET_STEPS = 5
RESNET_LOSS_BOUND = 1e-3


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
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (self.downsample(x) if self.downsample else x))


def resnet20(norm):
    parts, inputs = [nn.Conv2d(1, 16, 3, 1, 1, bias=False), norm(16), nn.ReLU()], 16
    for channels in (16, 32, 64):
        for block in range(3):
            parts.append(Block(inputs, channels, 2 if channels > 16 and block == 0 else 1, norm))
            inputs = channels
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def make(model):
    if model == "resnet20":
        return resnet20(nn.BatchNorm2d)
    if model == "resnet20-gn":
        return resnet20(lambda channels: nn.GroupNorm(min(32, channels // 2), channels))
    if model == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(),
                             nn.Linear(200, 10))
    if model == "lenet5":
        return nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(),
                             nn.AvgPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84),
                             nn.Tanh(), nn.Linear(84, 10))
    assert model == "fedavg-cnn"
    return nn.Sequential(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2),
                         nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10))


def read(directory, name, dtype):
    return torch.frombuffer(bytearray((directory / name).read_bytes()), dtype=dtype)


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def state_of(net):
    """All tensors in the order of mfl's table: running statistics behind the weights of their layer."""
    return {name: t for name, t in net.state_dict().items() if not name.endswith("num_batches_tracked")}


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


def run_driver(directory, backend, model, batch, steps=STEPS):
    program = os.environ.get("MFL_TRAJECTORY")
    if not program:
        pytest.skip("MFL_TRAJECTORY does not name the driver program")
    done = subprocess.run([program, backend, model, str(batch), str(steps), str(directory)], capture_output=True, text=True,
                          check=False)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("backend,model,batch", [
    ("cpu", "fedavg-cnn", 32), ("cpu", "lenet5", 10), ("cpu", "mlp", 10),
    ("reference", "lenet5", 10), ("reference", "mlp", 10), ("cpu", "resnet20", 10), ("cpu", "resnet20-gn", 10),
])
def test_the_first_steps_are_pytorchs(tmp_path, backend, model, batch):
    deep = model.startswith("resnet")
    steps, params_steps = (RESNET_STEPS, 1) if deep else (STEPS, PARAMS_STEPS)
    loss_bound = RESNET_LOSS_BOUND if deep else LOSS_BOUND
    run_driver(tmp_path, backend, model, batch, steps)
    few = tmp_path / "few"
    few.mkdir()
    run_driver(few, backend, model, batch, params_steps)
    torch.set_num_threads(1)
    net = make(model).double()
    load(net, read(tmp_path, "params.f32", torch.float32).double())
    images = read(tmp_path, "images.u8", torch.uint8).reshape(steps, batch, 1, 28, 28).double() / 255.0
    labels = read(tmp_path, "labels.i32", torch.int32).long().reshape(steps, batch)
    gradient = read(tmp_path, "gradient.f32", torch.float32).double()
    losses = read(tmp_path, "losses.f64", torch.float64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images[step]), labels[step])
        loss.backward()
        if step == 0:
            ours = gradient_of(net)
            assert (ours - gradient).abs().max() <= GRADIENT_BOUND * ours.abs().max()
        assert losses[step].item() == pytest.approx(loss.item(), rel=LOSS_BOUND if step == 0 else loss_bound), f"step {step}"
        optimizer.step()
        if step == params_steps - 1:
            params, start = flat(state_of(net).values()), read(few, "params.f32", torch.float32).double()
            difference = (params - read(few, "final.f32", torch.float32).double()).abs().max()
            assert difference <= PARAMS_BOUND * (params - start).abs().max()
