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


def make(model):
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
    ("reference", "lenet5", 10), ("reference", "mlp", 10),
])
def test_the_first_steps_are_pytorchs(tmp_path, backend, model, batch):
    run_driver(tmp_path, backend, model, batch)
    few = tmp_path / "few"
    few.mkdir()
    run_driver(few, backend, model, batch, PARAMS_STEPS)
    torch.set_num_threads(1)
    net = make(model).double()
    nn.utils.vector_to_parameters(read(tmp_path, "params.f32", torch.float32).double(), net.parameters())
    images = read(tmp_path, "images.u8", torch.uint8).reshape(STEPS, batch, 1, 28, 28).double() / 255.0
    labels = read(tmp_path, "labels.i32", torch.int32).long().reshape(STEPS, batch)
    gradient = read(tmp_path, "gradient.f32", torch.float32).double()
    losses = read(tmp_path, "losses.f64", torch.float64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images[step]), labels[step])
        loss.backward()
        if step == 0:
            ours = flat(p.grad for p in net.parameters())
            assert (ours - gradient).abs().max() <= GRADIENT_BOUND * ours.abs().max()
        assert losses[step].item() == pytest.approx(loss.item(), rel=LOSS_BOUND), f"step {step}"
        optimizer.step()
        if step == PARAMS_STEPS - 1:
            params, start = flat(net.parameters()), read(few, "params.f32", torch.float32).double()
            difference = (params - read(few, "final.f32", torch.float32).double()).abs().max()
            assert difference <= PARAMS_BOUND * (params - start).abs().max()
