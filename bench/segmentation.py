# SPDX-License-Identifier: Apache-2.0
"""examples/segmentation.yaml in PyTorch: the same net, clients, steps and weighted loss, with FedAvg written out.
   python3 bench/segmentation.py scenes.npz [ROUNDS] [THREADS]
Prints pixel accuracy, mean IoU and loss after each round, and samples per second in training."""
import copy
import sys
import time

import numpy as np
import torch
from torch import nn

CLASSES, CLIENTS, BATCH = 11, 4, 16


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = (nn.Conv2d(a, b, 3, padding=1) for a, b in ((1, 16), (16, 32), (32, 64)))
        self.up2, self.up1 = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.join2, self.join1 = nn.Conv2d(64, 32, 3, padding=1), nn.Conv2d(32, 16, 3, padding=1)
        self.head = nn.Conv2d(16, CLASSES, 1)

    def forward(self, x):
        d1 = self.down1(x).relu()
        d2 = self.down2(nn.functional.max_pool2d(d1, 2)).relu()
        y = self.middle(nn.functional.max_pool2d(d2, 2)).relu()
        y = self.join2(torch.cat([d2, self.up2(y)], 1)).relu()
        return self.head(self.join1(torch.cat([d1, self.up1(y)], 1)).relu())


def train(net, x, y, loss_of):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.002)
    for rows in torch.randperm(len(x)).split(BATCH):
        optimizer.zero_grad()
        loss_of(net(x[rows]), y[rows]).backward()
        optimizer.step()


def evaluate(net, x, y):
    counts = torch.zeros(CLASSES, CLASSES, dtype=torch.int64)  # by label and prediction
    loss = 0.0
    with torch.no_grad():
        for at in range(0, len(x), 50):
            z, labels = net(x[at:at + 50]), y[at:at + 50]
            loss += nn.functional.cross_entropy(z, labels, ignore_index=255, reduction='sum').item()
            scored = labels != 255
            counts += torch.bincount(labels[scored] * CLASSES + z.argmax(1)[scored],
                                     minlength=CLASSES * CLASSES).view(CLASSES, CLASSES)
    both, either = counts.diag(), counts.sum(0) + counts.sum(1) - counts.diag()
    occur = either > 0
    return both.sum().item() / counts.sum().item(), (both[occur] / either[occur]).mean().item(), loss / counts.sum().item()


def main():
    rounds, threads = (int(v) for v in (sys.argv[2:4] + ['8', '1'][len(sys.argv) - 2:]))
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    data = np.load(sys.argv[1])
    x, test_x = (torch.tensor(data[k], dtype=torch.float32) / 255 for k in ('x_train', 'x_test'))
    y, test_y = (torch.tensor(data[k].astype(np.int64)) for k in ('y_train', 'y_test'))
    loss_of = nn.CrossEntropyLoss(torch.tensor([0.5] + [1.0] * (CLASSES - 1)), ignore_index=255)
    shards = torch.randperm(len(x)).chunk(CLIENTS)
    net, spent = Net(), 0.0
    for number in range(1, rounds + 1):
        clients, began = [], time.monotonic()
        for shard in shards:
            clients.append(copy.deepcopy(net))
            train(clients[-1], x[shard], y[shard], loss_of)
        spent += time.monotonic() - began
        states = [client.state_dict() for client in clients]
        net.load_state_dict({k: torch.stack([s[k] for s in states]).mean(0) for k in states[0]})
        print('round %d  accuracy %.4f  mean IoU %.4f  loss %.4f' % (number, *evaluate(net, test_x, test_y)), flush=True)
    print('%.1f samples/s on %d threads' % (len(x) * rounds / spent, threads))


main()
