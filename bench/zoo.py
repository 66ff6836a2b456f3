#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A zoo of PyTorch's models: which of them mfl reads, whether the proof holds, and ten steps beside PyTorch.

    ZOO_PYTHON bench/zoo.py build [--families torchvision modules fields transformers] [--only NAME ...] [--limit 100e6]

Needs an interpreter with torch, torchvision, transformers and timm. Weights are random, and nothing is downloaded. Each model is saved by
python/mfl_export.py with a small input, and

* read: `mfl check` reads the file and builds the network. A refusal is printed below the table, as users see it.
* proof: `mfl check` computes the outputs and the gradients that the file says PyTorch computed.
* steps: ten steps of SGD with the same batches on the CPU backend and in PyTorch, dropout off. The number is the largest difference
  of a loss, relative to the loss (absolute below 1). Above 1e-3 the model is *wrong*, which is the one thing that must not happen,
  unless rounding alone does that: then PyTorch's float32 differs from its own float64, or from itself with parameters changed by 1e-7,
  by at least a quarter of it, and the line below says by how much.

Models above --limit parameters are read without training. Each model has a process of its own; --resume leaves out those that the file of
results has.
"""
import argparse
import copy
import json
import os
import re
import resource
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "python")]
STEPS, TOLERANCE, ROUNDING = 10, 1e-3, 4


def quiet(net):
    """Without what draws random numbers. Whether that changed anything."""
    changed = False
    for m in net.modules():
        for key in ("p", "dropout_p", "dropout", "attention_dropout", "drop_prob"):
            if isinstance(getattr(m, key, None), float) and getattr(m, key):
                setattr(m, key, 0.0)
                changed = True
    return changed


def job(path, auxiliary=()):
    text = ("name: zoo\nrounds: 1\nmodel: {onnx: net.onnx}\n"
            "data: {name: zoo, partition: iid, clients: 1}\ntraining: {optimizer: sgd, lr: 0.001, steps: 10, batch: 2"
            + (f", auxiliary: {list(auxiliary)}" if auxiliary else "") + "}\n")
    with open(path, "w") as f:
        f.write(text)


def read(build, folder):
    p = subprocess.run([os.path.join(build, "cli", "mfl"), "check", "job.yaml"], cwd=folder, text=True, capture_output=True)
    text = p.stdout + p.stderr
    if p.returncode:
        return "refused", None, re.sub(r"\s+", " ", p.stderr.strip())[:400], None
    proof = re.search(r"^(?:mfl: )?proof: (.*)$", text, re.M)
    none = re.search(r"has no proof that mfl computes what PyTorch does: (.*)$", text, re.M)
    return "yes", proof.group(1) if proof else None, "", none and f"no proof: {none.group(1)}"


def inputs(entry, n):
    """Examples as a tuple: of several inputs, the data has one row of numbers for all."""
    x = entry.example(n)
    return x if isinstance(x, tuple) else (x,)


def difference(ours, theirs):
    """Relative, absolute below 1; of what is no number, infinite."""
    found = [abs(a - b) / max(1, abs(b)) for a, b in zip(ours, theirs)]
    return max(found) if all(d == d for d in found) else float("inf")


def steps(build, folder, entry, net, seed=5, outputs=False):
    """The largest difference of ten steps' losses and, with `outputs`, of what the trained models say of the first batch."""
    import numpy as np
    import torch
    torch.manual_seed(seed)
    x = tuple(map(torch.cat, zip(*[inputs(entry, entry.batch) for _ in range(STEPS)])))
    with torch.no_grad():
        out = entry.logits(net.eval()(*(t[:1] for t in x)))
    net.train()
    classes = out.shape[-1]
    positions = out.numel() // classes
    y = torch.randint(0, classes, (len(x[0]), positions))
    torch.cat([t.float().reshape(len(t), -1) for t in x], 1).numpy().tofile(os.path.join(folder, "x"))
    y.int().numpy().tofile(os.path.join(folder, "y"))
    lr = entry.lr
    p = subprocess.run([os.path.join(build, "tests", "e2e", "mfl-onnx-trajectory"), "net.onnx", "x", "y", str(entry.batch), str(STEPS),
                        str(lr), ".", "cpu", "outputs", *map(str, entry.auxiliary)], cwd=folder, text=True, capture_output=True,
                       env=dict(os.environ, MFL_MODULE_DIR=os.path.join(build, "kernels", "cpu")))
    if p.returncode:
        return None, re.sub(r"\s+", " ", p.stderr.strip())[:400] or f"mfl-onnx-trajectory ended with status {p.returncode}"
    ours = np.fromfile(os.path.join(folder, "losses.f64"))
    said = np.fromfile(os.path.join(folder, "logits.f32"), dtype=np.float32)
    exact, rounded = copy.deepcopy(net).double(), copy.deepcopy(net)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.mul_(1 + 1e-7 * torch.randn_like(parameter))
    theirs, theirs_said = losses(entry, net, x, y, classes), logits(entry, net, x)

    def worst_of(losses_, said_):
        return max(difference(losses_, theirs), difference([0.0], [np.abs(said_ - theirs_said).max() / max(1, np.abs(theirs_said).max())]) if outputs else 0)
    worst = worst_of(ours, said.reshape(len(theirs_said), -1)[:, :theirs_said.shape[1]] if outputs else None)
    if not worst < TOLERANCE:
        wide = tuple(t.double() if t.is_floating_point() else t for t in x)
        others = [(exact, wide), (rounded, x)]
        rounding = [worst_of(losses(entry, other, own, y, classes), logits(entry, other, own)) for other, own in others]
        if worst < ROUNDING * max(rounding):
            return worst, f"PyTorch in float32 differs from itself in float64 by {rounding[0]:.1e}, and with other last bits of its parameters by {rounding[1]:.1e}"
    return worst, ""


def logits(entry, net, x):
    """Of the first batch, after training; one row per sample."""
    import torch
    with torch.no_grad():
        return entry.logits(net.eval()(*(t[:entry.batch] for t in x))).reshape(entry.batch, -1).numpy()


def losses(entry, net, x, y, classes):
    """Ten steps in PyTorch."""
    import torch
    from torch.nn import functional as F
    found, opt = [], torch.optim.SGD([p for p in net.parameters() if p.requires_grad], entry.lr)
    for s in range(STEPS):
        part = slice(s * entry.batch, (s + 1) * entry.batch)
        out = net(*(t[part] for t in x))
        loss = F.cross_entropy(entry.logits(out).reshape(-1, classes), y[part].reshape(-1))
        for weight, other in zip(entry.auxiliary, out[1:] if entry.auxiliary else ()):
            loss = loss + weight * F.cross_entropy(other, y[part].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        found.append(loss.item())
    return found


def one(build, family, name, limit):
    """What happened to one model, as a dictionary."""
    import torch
    import mfl_export
    import zoo_models
    torch.set_num_threads(1)
    entry = zoo_models.FAMILIES[family][name]
    torch.manual_seed(1)
    net = entry.make()
    result = {"family": family, "name": name, "params": sum(p.numel() for p in net.parameters())}
    with tempfile.TemporaryDirectory() as folder:
        job(os.path.join(folder, "job.yaml"), entry.auxiliary)
        path = os.path.join(folder, "net.onnx")
        mfl_export.save(net.train(), inputs(entry, 1), path)
        result["read"], result["proof"], result["why"], result["note"] = read(build, folder)
        if result["read"] == "yes" and result["params"] <= limit:
            if quiet(net):
                mfl_export.save(net.train(), inputs(entry, 1), path)
            result["steps"], why = steps(build, folder, entry, net)
            result["why"] = result["why"] or why
            result["rounding"] = bool(why and result["steps"] is not None)
    return result


def child(args, family, name):
    cmd = [sys.executable, os.path.abspath(__file__), args.build, "--limit", str(args.limit), "--one", family, name]
    try:
        p = subprocess.run(cmd, text=True, capture_output=True, timeout=args.seconds)
    except subprocess.TimeoutExpired:
        return {"family": family, "name": name, "read": "timeout", "why": f"longer than {args.seconds} s"}
    lines = [l for l in p.stdout.splitlines() if l.startswith("{")]
    if lines:
        return json.loads(lines[-1])
    last = (p.stderr.strip().splitlines() or [f"ended with status {p.returncode}"])[-1]
    return {"family": family, "name": name, "read": "not exported", "why": last[-300:]}


def is_good(r):
    return r.get("steps") is not None and (r["steps"] < TOLERANCE or r.get("rounding", False))


def line(r):
    steps_ = r.get("steps")
    told = "-" if steps_ is None else f"{steps_:.1e}" + ("" if is_good(r) else " WRONG")
    proof = "-" if not r.get("proof") else "holds" if "agree" in r["proof"] else "FAILS"
    params = f"{r['params'] / 1e6:.2f}" if "params" in r else "?"
    return f"{r['family']:12} {r['name']:28} {params:>8}  {r['read']:12} {proof:6} {told}"


def summary(results):
    for family in sorted({r["family"] for r in results}):
        of = [r for r in results if r["family"] == family]
        good = [r for r in of if is_good(r)]
        large = [r for r in of if r["read"] == "yes" and r.get("steps") is None and not r["why"]]
        wrong = [r for r in of if r.get("steps") is not None and not is_good(r)]
        print(f"{family}: {len(of)} models, {len(good)} trained as PyTorch does, {len(large)} more read (too large to train here), "
              f"{len(wrong)} wrong, {len(of) - len(good) - len(large) - len(wrong)} refused or failed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--families", nargs="+", default=["modules", "fields", "transformers", "timm", "torchvision"])
    parser.add_argument("--only", nargs="+", help="names of models; * stands for any text")
    parser.add_argument("--limit", type=float, default=100e6, help="parameters above which a model is only read")
    parser.add_argument("--seconds", type=int, default=600, help="time for one model")
    parser.add_argument("--results", default="zoo.jsonl", help="one line of JSON per model")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("FAMILY", "NAME"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.build = os.path.abspath(args.build)
    if args.one:
        print(json.dumps(one(args.build, *args.one, args.limit)))
        return
    import fnmatch
    import zoo_models
    done = []
    if args.resume and os.path.exists(args.results):
        with open(args.results) as f:
            done = [json.loads(l) for l in f]
    results = []
    print(f"{'family':12} {'model':28} {'M params':>8}  {'read':12} {'proof':6} 10 steps")
    with open(args.results, "a" if args.resume else "w") as f:
        for family in args.families:
            for name in zoo_models.FAMILIES[family]:
                if args.only and not any(fnmatch.fnmatch(name, o) for o in args.only):
                    continue
                old = [r for r in done if (r["family"], r["name"]) == (family, name)]
                r = old[0] if old else child(args, family, name)
                if not old:
                    f.write(json.dumps(r) + "\n")
                    f.flush()
                print(line(r) + "".join(f"\n    {r[k]}" for k in ("why", "note") if r.get(k)), flush=True)
                results.append(r)
    summary(results)
    print(f"CPU time of all processes: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime:.0f} s")


if __name__ == "__main__":
    main()
