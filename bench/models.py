#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training speed of PyTorch modules in mfl beside PyTorch, in the same run.

    TORCH_PYTHON bench/models.py build [--models NAME ...] [--threads 1 2] [--rounds 3] [--cpu]

Needs torch, torchvision and transformers. Each module is exported by python/mfl_export.py with random weights, dropout off. In each round
every contender trains once, one after another; the table has medians over the rounds of the median step. PyTorch is the best of its
default, of channels_last for images, and of both with a malloc that keeps its memory. --cpu compares processor time."""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "python")]
TUNED = {"MALLOC_TOP_PAD_": "268435456", "MALLOC_TRIM_THRESHOLD_": "1073741824", "MALLOC_MMAP_THRESHOLD_": "1073741824"}


def conv1d_net():
    from torch import nn

    def block(i, o, stride=1):
        return nn.Sequential(nn.Conv1d(i, o, 5, stride, 2), nn.BatchNorm1d(o), nn.ReLU())
    return nn.Sequential(block(9, 64), block(64, 64), block(64, 128, 2), block(128, 128), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(128, 6))


def unet():
    import torch
    from torch import nn

    def double(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())

    class Unet(nn.Module):
        def __init__(self):
            super().__init__()
            self.d1, self.d2, self.d3 = double(3, 32), double(32, 64), double(64, 128)
            self.u2, self.u1 = nn.ConvTranspose2d(128, 64, 2, 2), nn.ConvTranspose2d(64, 32, 2, 2)
            self.c2, self.c1, self.out = double(128, 64), double(64, 32), nn.Conv2d(32, 6, 1)

        def forward(self, x):
            a = self.d1(x)
            b = self.d2(nn.functional.max_pool2d(a, 2))
            c = self.d3(nn.functional.max_pool2d(b, 2))
            b = self.c2(torch.cat([b, self.u2(c)], 1))
            return self.out(self.c1(torch.cat([a, self.u1(b)], 1)))
    return Unet()


def swin_t():
    import torchvision
    return torchvision.models.swin_t(num_classes=10)


def bert_mini():
    import transformers
    config = transformers.BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, num_labels=4,
                                     max_position_embeddings=128)
    return transformers.BertForSequenceClassification(config)


def llama_mini():
    import transformers
    config = transformers.LlamaConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, intermediate_size=688,
                                      vocab_size=4096, max_position_embeddings=128, use_cache=False)
    return transformers.LlamaForCausalLM(config)


# maker, shape of a sample, vocabulary or 0, batch, steps
MODELS = {"conv1d": (conv1d_net, (9, 128), 0, 32, 40), "unet": (unet, (3, 64, 64), 0, 4, 10), "swin_t": (swin_t, (3, 64, 64), 0, 4, 8),
          "bert-mini": (bert_mini, (64,), 30522, 8, 12), "llama-mini": (llama_mini, (64,), 4096, 8, 12)}


def make(name):
    import torch
    import zoo
    torch.manual_seed(1)
    net = MODELS[name][0]()
    zoo.quiet(net)
    return net.train()


def example(name, n):
    import torch
    _, shape, vocabulary, _, _ = MODELS[name]
    return torch.randint(0, vocabulary, (n, *shape)) if vocabulary else torch.rand(n, *shape)


def logits_of(out):
    out = getattr(out, "logits", out)
    return out.movedim(1, -1) if out.dim() == 4 else out


def torch_child(name, threads, channels_last):
    import torch
    torch.set_num_threads(threads)
    net, (_, _, _, batch, steps) = make(name), MODELS[name]
    if channels_last:
        net = net.to(memory_format=torch.channels_last)
    x = example(name, 10 * batch)
    with torch.no_grad():
        out = logits_of(net(x[:batch]))
    y = torch.randint(0, out.shape[-1], (len(x), out[0].numel() // out.shape[-1]))
    optimizer, wall, cpu = torch.optim.SGD(net.parameters(), lr=0.05), [], []
    for t in range(3 + steps):
        rows = torch.randperm(len(x))[:batch]
        begin, begin_cpu = time.perf_counter(), time.process_time()
        given = x[rows].to(memory_format=torch.channels_last) if channels_last else x[rows]
        optimizer.zero_grad()
        out = logits_of(net(given))
        torch.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), y[rows].reshape(-1)).backward()
        optimizer.step()
        cpu.append((time.process_time() - begin_cpu) * 1e6)
        wall.append((time.perf_counter() - begin) * 1e6)
    print(statistics.median(wall[3:]), statistics.median(cpu[3:]))


def run(command, **extra):
    done = subprocess.run(command, env=dict(os.environ, OMP_WAIT_POLICY="passive", **extra), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()[-600:]}")
    return [float(word) for word in done.stdout.split()]


def contenders(args, folder, name, threads):
    _, shape, _, batch, steps = MODELS[name]
    program = os.path.join(args.build, "bench", "mfl-bench-train")
    torch = [sys.executable, os.path.abspath(__file__), args.build, "--child", name, str(threads)]
    count = {"OMP_NUM_THREADS": str(threads)}
    found = {"mfl": lambda: run([program, "cpu", os.path.join(folder, name + ".onnx"), str(batch), str(threads), str(steps)],
                                MFL_MODULE_DIR=os.path.join(args.build, "kernels", "cpu")),
             "default": lambda: run([*torch, "plain"], **count), "tuned": lambda: run([*torch, "plain"], **count, **TUNED)}
    if len(shape) == 3:
        found["last"] = lambda: run([*torch, "last"], **count)
        found["last+tuned"] = lambda: run([*torch, "last"], **count, **TUNED)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        torch_child(args.child[0], int(args.child[1]), args.child[2] == "last")
        return
    import mfl_export
    print(f"{'model':12} {'threads':>7} {'mfl ms':>9} {'PyTorch ms':>11} {'best of':>12} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            mfl_export.save(make(name), (example(name, 1),), os.path.join(folder, name + ".onnx"))
            for threads in args.threads:
                calls = contenders(args, folder, name, threads)
                times = {key: [] for key in calls}
                for _ in range(args.rounds):
                    for key, call in calls.items():
                        times[key].append(call()[1 if args.cpu else 0])
                found = {key: statistics.median(t) for key, t in times.items()}
                best = min((key for key in found if key != "mfl"), key=found.get)
                print(f"{name:12} {threads:7} {found['mfl'] / 1e3:9.2f} {found[best] / 1e3:11.2f} {best:>12} {found[best] / found['mfl']:6.2f}",
                      flush=True)


if __name__ == "__main__":
    main()
