# SPDX-License-Identifier: Apache-2.0
"""A team's losses beside those of PyTorch's DistributedDataParallel (gloo, two processes): 20 steps from the same params over the same
rows, and beside a job without `parallel`. Each round is one step over all samples, so their order does not matter."""
import csv
import os
import struct
import subprocess
import sys

import mfl_harness as h
import mfl_needs

np, torch = mfl_needs.module('numpy'), mfl_needs.module('torch')
import mfl_torch  # noqa: E402

STEPS, ROWS, LR, SHAPE = 20, 32, 0.1, (1, 16, 16)


def write_safetensors(path, tensors):
    header, at = [], 0
    for name, t in tensors.items():
        header.append('"%s":{"dtype":"F32","shape":%s,"data_offsets":[%d,%d]}' % (name, list(t.shape), at, at + 4 * t.numel()))
        at += 4 * t.numel()
    text = ('{' + ','.join(header) + '}').encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text + b''.join(t.detach().numpy().tobytes() for t in tensors.values()))


def ddp(rank, folder):
    """One of two processes with half of the rows; the first one prints the losses of all rows."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo', init_method='file://' + os.path.join(folder, 'store'), rank=rank, world_size=2)
    net = mfl_torch.preset('fedavg-cnn', SHAPE, 10)
    net.load_state_dict(torch.load(os.path.join(folder, 'start.pt')))
    both = torch.nn.parallel.DistributedDataParallel(net)
    data = np.load(os.path.join(folder, 'data.npz'))
    own = slice(rank * ROWS // 2, (rank + 1) * ROWS // 2)
    x, y = torch.tensor(data['x_train'][own]).float() / 255, torch.tensor(data['y_train'][own]).long()
    optimizer = torch.optim.SGD(both.parameters(), lr=LR)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(both(x), y)
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        torch.distributed.all_reduce(total)
        if not rank:
            print(total.item() / 2, flush=True)


def try_ddp(folder):
    """None: its processes did not end, or failed."""
    (folder / 'store').unlink(missing_ok=True)
    ranks = [subprocess.Popen([sys.executable, __file__, str(r), str(folder)], stdout=subprocess.PIPE, text=True,
                              env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), GLOO_SOCKET_IFNAME='lo')) for r in range(2)]
    try:
        out = [p.communicate(timeout=90)[0] for p in ranks]
    except subprocess.TimeoutExpired:
        out = None
    finally:
        for p in ranks:
            p.kill()
            p.wait()
    return None if out is None or any(p.returncode for p in ranks) else [float(word) for word in out[0].split()]


def losses_of_ddp(folder):
    """gloo now and then does not connect its processes on a machine with much to do."""
    found = None
    for _ in range(3):
        found = found or try_ddp(folder)
    assert found
    return found


def losses_of_mfl(folder, name, daemons, **more):
    job = {'name': name, 'seed': 1, 'rounds': STEPS,
           'model': {'preset': 'fedavg-cnn', 'initial': str(folder / 'start.safetensors'), 'input': list(SHAPE), 'classes': 10},
           'data': {'name': 'images', 'partition': 'iid', 'clients': 1}, 'training': {'lr': LR, 'batch': ROWS, 'steps': 1, 'backend': 'cpu'},
           'selection': {'clients': 1}, **more}
    (folder / (name + '.yaml')).write_text(h.yaml_of(job))
    h.mfl('run', str(folder / (name + '.yaml')), '--daemons', str(daemons), '--threads', '1', '--out', str(folder / name), '--data',
          'images=npz:%s' % (folder / 'data.npz'), timeout=300)
    with open(folder / name / 'rounds.csv', encoding='utf-8') as f:
        return [float(row['train_loss']) for row in csv.DictReader(f)]


def largest_difference(a, b):
    assert len(a) == len(b) == STEPS
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def test_losses_beside_ddp(tmp_path):
    random = np.random.default_rng(5)
    labels = np.arange(ROWS) % 10
    images = (random.integers(128, size=(10, *SHAPE))[labels] + random.integers(128, size=(ROWS, *SHAPE))).astype(np.uint8)
    np.savez(tmp_path / 'data.npz', x_train=images, y_train=labels, x_test=images[:8], y_test=labels[:8])
    torch.manual_seed(3)
    net = mfl_torch.preset('fedavg-cnn', SHAPE, 10)
    torch.save(net.state_dict(), tmp_path / 'start.pt')
    write_safetensors(tmp_path / 'start.safetensors', mfl_torch.state_of(net))
    team = losses_of_mfl(tmp_path, 'team', 2, parallel={'grain': 8, 'members': 2})
    plain = losses_of_mfl(tmp_path, 'plain', 1)
    assert team[-1] < team[0] - 0.02  # it learns
    assert largest_difference(team, plain) < 1e-5
    other = losses_of_ddp(tmp_path)
    assert largest_difference(team, other) < 1e-4
    # 20 small steps move the loss by a hundredth of itself: beside that it must be little, too.
    assert max(abs(a - b) for a, b in zip(team, other)) < 0.01 * (team[0] - team[-1])


if __name__ == '__main__':
    ddp(int(sys.argv[1]), sys.argv[2])
