#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LoRA of a GPT-2 of 124 M parameters, two daemons of one host, beside PyTorch with peft in two processes.

    TORCH_PYTHON bench/lora_gpt2.py [--layers 12] [--width 768] [--vocabulary 50257] [--positions 64] [--rounds 4] [--steps 4] [--rank 8]

Needs an interpreter with torch, transformers and peft. Weights are drawn from a seed, tokens too; nothing is downloaded. Adapters are on
the attention's projections (c_attn). In each of several turns mfl trains a job, and then both PyTorch processes train as many steps as often, at
once, each with one thread. A round's time is from its begin to its commit, with what travels; the first round of a job, which also sends the
frozen params, is left out. Samples/s is of both daemons, or both processes, together. CPU seconds are those that a daemon, or a process,
takes for a round, which other programs on the machine change less; `CPU ratio` is PyTorch's divided by mfl's."""

import argparse
import pathlib
import subprocess
import sys
import time

import benchlib as bench

sys.path.insert(0, str(bench.HERE.parent / "python"))


def model(options):
    import torch
    import transformers
    torch.manual_seed(1)
    config = transformers.GPT2Config(n_layer=options.layers, n_embd=options.width, vocab_size=options.vocabulary, n_positions=options.positions,
                                     attn_pdrop=0, embd_pdrop=0, resid_pdrop=0, use_cache=False, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def tokens(options, n):
    import torch
    torch.manual_seed(2)
    return torch.randint(0, options.vocabulary, (n, options.positions + 1))


def torch_child(options):
    """One PyTorch process: waits for a line, trains, prints the seconds."""
    import peft
    import torch
    torch.set_num_threads(1)
    net = peft.get_peft_model(model(options), peft.LoraConfig(r=options.rank, lora_alpha=options.rank, target_modules=["c_attn"]))
    data = tokens(options, options.batch * options.steps)
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.05)

    def train(steps):
        for s in range(steps):
            rows = data[s % options.steps * options.batch:][:options.batch]
            out = net(input_ids=rows[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(out.reshape(-1, options.vocabulary), rows[:, 1:].reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    train(1)
    print("ready", flush=True)
    for _ in sys.stdin:
        begin, used = time.monotonic(), bench.processor_seconds("self")
        train(options.steps)
        used = bench.processor_seconds("self") - used
        print(time.monotonic() - begin, bench.memory("self")[1], used, flush=True)


class Torch:
    def __init__(self, argv):
        command = [sys.executable, __file__, *argv, "--child"]
        self.children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for child in self.children:
            assert child.stdout.readline().strip() == "ready"

    def turn(self):
        """Seconds, the highest memory of a process, and the CPU seconds of one."""
        for child in self.children:
            child.stdin.write("\n")
            child.stdin.flush()
        found = [child.stdout.readline().split() for child in self.children]
        return max(float(f[0]) for f in found), max(int(f[1]) for f in found), sum(float(f[2]) for f in found) / len(found)

    def close(self):
        for child in self.children:
            child.stdin.close()
            child.wait()


def job_text(folder, options):
    return f"""name: lora-gpt2
seed: 5
rounds: {options.rounds}
model: {{onnx: {folder}/model.onnx, lora: {{rank: {options.rank}, layers: ["*c_attn*"]}}}}
data: {{name: text, partition: iid, clients: 2}}
training: {{lr: 0.05, steps: {options.steps}, batch: {options.batch}}}
evaluation: {{every: 0}}
selection: {{daemons: {{min: 2}}, assign: modulo}}
"""


def write_inputs(folder, options):
    import mfl_export
    import numpy as np
    net = model(options)
    mfl_export.save(net, tokens(options, 1)[:, :-1], folder / "model.onnx")
    data = tokens(options, max(4 * options.batch, 8)).numpy()
    np.savez(folder / "text.npz", x_train=data[:, :-1], y_train=data[:, 1:], x_test=data[:2, :-1], y_test=data[:2, 1:])
    return sum(p.numel() for p in net.parameters())


def turn(server, daemons, options):
    """A job's rounds without the first, and a daemon's CPU seconds for one of them."""
    job = server.submit(job_text(server.folder, options))

    def done():
        return [r for r in server.mfl("show", job)["rounds"] if r.get("digest")]
    bench.wait_until(done, 600, "the first round")
    used, before = bench.median(map(bench.processor_seconds, daemons.pids)), len(done())
    if before == options.rounds:
        raise SystemExit("all rounds ended between two looks: give more --rounds, --steps or --layers")
    server.mfl("wait", job)
    used = bench.median(map(bench.processor_seconds, daemons.pids)) - used
    return server.mfl("show", job)["rounds"][1:], used / (options.rounds - before)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--positions", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--turns", type=int, default=2, help="of mfl and PyTorch by turns")
    parser.add_argument("--steps", type=int, default=4, help="of a client in a round")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.width % 12:
        parser.error('--width: expected a multiple of 12, the number of heads')
    if options.child:
        torch_child(options)
        return
    argv = [a for key in ("layers", "width", "vocabulary", "positions", "steps", "batch", "rank") for a in (f"--{key}", str(getattr(options, key)))]
    with bench.Server(config="memory_max: 12GiB\n") as server:
        folder = pathlib.Path(server.folder)
        n = write_inputs(folder, options)
        data = f"text=npz:{folder}/text.npz,vocabulary={options.vocabulary},classes={options.vocabulary}"
        torch, rounds, theirs, used = Torch(argv), [], [], []
        with bench.Daemons(server.address, 2, "solo", data) as daemons:
            bench.wait_until(lambda: len(server.mfl("daemons")["daemons"]) == len(daemons.pids), 120, "the daemons")
            for _ in range(options.turns):
                found, seconds = turn(server, daemons, options)
                rounds += found
                used.append(seconds)
                theirs += [torch.turn() for _ in range(options.rounds)][1:]
            peak = max(bench.memory(pid)[1] for pid in daemons.pids)
        torch.close()
    samples = 2 * options.steps * options.batch
    rate, their_rate = samples / bench.median(r["seconds"] for r in rounds), samples / bench.median(t[0] for t in theirs)
    cpu, their_cpu, memory = bench.median(used), bench.median(t[2] for t in theirs), max(t[1] for t in theirs)
    print(f"{n / 1e6:.1f} M parameters, {options.positions} positions, rank {options.rank}, batch {options.batch}")
    bench.table(["", "samples/s", "ratio", "CPU s a round", "CPU ratio", "MB up", "MB down", "GB of a process"], [
        ["mfl", f"{rate:.2f}", f"{rate / their_rate:.2f}", f"{cpu:.2f}", f"{their_cpu / cpu:.2f}", f"{bench.median(r['bytes_up'] for r in rounds) / 1e6:.3f}",
         f"{bench.median(r['bytes_down'] for r in rounds) / 1e6:.3f}", f"{peak / 1e9:.2f}"],
        ["PyTorch, peft", f"{their_rate:.2f}", "1.00", f"{their_cpu:.2f}", "1.00", "-", "-", f"{memory / 1e9:.2f}"]])


if __name__ == "__main__":
    main()
