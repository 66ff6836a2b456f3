#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random PyTorch modules: which mfl accepts, and whether it then trains them as PyTorch does.

    ZOO_PYTHON bench/random_modules.py build [--first SEED] [--count N] [--minutes M] [--exports mfl first plain default] [--jobs 2]
    ZOO_PYTHON bench/random_modules.py build --seed S [--print | --shrink EXPORT]

Needs an interpreter with torch; for the exports `plain` and `default` also with onnx and onnxscript. A seed makes a module: a graph of
layers, functions, parameters and inputs (bench/random_ops.py). It goes through four exports:

* mfl: mfl_export.save. `mfl check` replays the proof.
* first: torch.onnx.export as docs/pytorch.md has it, without mfl_export
* plain: torch.onnx.export(dynamo=True, optimize=False)
* default: torch.onnx.export as it is, which computes with constants, and merges what it can

The last three can't say what is frozen, detached, in eval mode or padding, so that the module is made without these. Of what is accepted,
ten steps are compared, as in bench/zoo.py: losses, and outputs of the trained model. Where they differ by more than 1e-3, and with other data as
well, that is an error. So is a crash, a proof that fails (the file was read as another model), and what `mfl pull --format onnx` writes
if it is not the trained model (written).
--shrink prints the smallest module that fails in the same way.
"""
import argparse
import collections
import contextlib
import functools
import importlib.util
import io
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "python")]
import zoo

EXPORTS = ("mfl", "first", "plain", "default")
DATA_SEEDS = (5, 6, 7)
FINDINGS = ("different", "proof", "crash", "written")
BATCHES = (1, 2, 3)


def load(source, folder):
    """The class that the source makes, from a file: exporters and tracebacks look for one."""
    path = os.path.join(folder, "module.py")
    with open(path, "w") as f:
        f.write(source)
    spec = importlib.util.spec_from_file_location("random_module", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Net


def entry_of(program, net):
    """As bench/zoo.py has them. Pixels have their classes in the second dimension."""
    import torch
    import random_ops
    import zoo_models

    def example(n):
        made = tuple(random_ops.example(n, shape, tokens) for shape, tokens in program.inputs.values())
        return made if len(made) > 1 else made[0]

    def logits(out):
        out = out[0] if isinstance(out, tuple) else out
        return zoo_models.pixels(out) if out.dim() == 4 else out
    auxiliary = (0.4, 0.25)[:len(program.outputs) - 1]
    entry = zoo_models.Entry(None, None, batch=BATCHES[program.seed % 3], logits=logits, lr=0.02, auxiliary=auxiliary)
    entry.example = example
    with contextlib.suppress(Exception):
        torch.manual_seed(1)
        net.train()(*zoo.inputs(entry, entry.batch))
        return entry
    entry.batch = 4  # batch norm of one number
    return entry


def export(kind, net, entry, path):
    """By which call."""
    import torch
    import mfl_export
    x = zoo.inputs(entry, 1 if kind == "mfl" else 2 if "BatchNorm1d" in repr(net) else 1)
    if kind == "mfl":
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            mfl_export.save(net.train(), x, path)
        return next((str(w.message) for w in told if "has no proof" in str(w.message)), "")
    if kind == "first":
        names = [f"input{i}" for i in range(len(x))]
        torch.onnx.export(net.train(), x, path, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, opset_version=17, dynamo=False,
                          input_names=names, dynamic_axes={n: {0: "batch"} for n in names} if len(x[0]) > 1 else None)
        return ""
    options = {"optimize": False} if kind == "plain" else {}
    torch.onnx.export(net.eval(), x, path, dynamo=True, external_data=False, **options)
    return ""


def trial(build, program, kind):
    """(what, text): what became of one export of a module."""
    import torch
    torch.set_num_threads(1)
    plain = {"mfl": None, "first": "parameters"}.get(kind, "buffers")
    with tempfile.TemporaryDirectory() as folder:
        made = load(program.source(plain), folder)
        torch.manual_seed(program.seed)
        net = made()
        entry = entry_of(program, net)
        path = os.path.join(folder, "net.onnx")
        note = ""
        for again in (False, True):
            if kind != "mfl" and not again:
                zoo.quiet(net)
                continue
            if again and kind == "mfl" and not zoo.quiet(net):
                break
            try:
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    note = export(kind, net, entry, path)
            except Exception as e:  # noqa: BLE001
                return "not exported", short(f"{type(e).__name__}: {e}")
            if kind == "mfl":
                zoo.job(os.path.join(folder, "job.yaml"), entry.auxiliary)
                read, proof, why, _ = zoo.read(build, folder)
                if read != "yes":
                    return ("proof" if "proof" in why and "roof: " in why else "refused"), why
        return compared(build, folder, entry, net, note)


def compared(build, folder, entry, net, note):
    """Ten steps. With other data if they differ: of a number that rounding decides, one in many batches tells nothing."""
    import copy
    worst, told = 0.0, []
    for seed in DATA_SEEDS:
        try:
            difference, why = zoo.steps(build, folder, entry, copy.deepcopy(net), seed, True)
        except RuntimeError as e:
            return "no training in PyTorch", short(str(e))
        if difference is None:
            written = "final.onnx" in why or re.match("mfl-onnx-trajectory: the export (is not|gives)", why)
            return ("written" if written else "refused" if why.startswith("mfl-onnx-trajectory: ") else "crash"), why
        told.append(difference)
        if difference < zoo.TOLERANCE or why:
            return ("rounding" if why else "same"), note
    return "different", "differences with three data sets: " + ", ".join(f"{d:.1e}" for d in told)


def short(text):
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[\d*m", "", text)).strip()[:400]


def child(build, program, kind, pipe):
    sys.stderr = open(os.devnull, "w")
    os.dup2(sys.stderr.fileno(), 2)
    os.dup2(sys.stderr.fileno(), 1)
    warnings.simplefilter("ignore")
    try:
        pipe.send(trial(build, program, kind))
    except Exception as e:  # noqa: BLE001
        pipe.send(("no training in PyTorch", short(f"{type(e).__name__}: {e}")))
    finally:
        pipe.close()
        os._exit(0)


def forked(build, program, kind, seconds):
    """The trial in a process of its own, which PyTorch may end."""
    ours, theirs = multiprocessing.Pipe(False)
    process = multiprocessing.get_context("fork").Process(target=child, args=(build, program, kind, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            process.kill()
            return "timeout", f"longer than {seconds} s"
        return ours.recv()
    except EOFError:
        return "no training in PyTorch", "the process of PyTorch ended"
    finally:
        process.join()
        ours.close()


# ---- smaller modules ----

def shapes_of(program):
    """Of each value, by one pass over two samples."""
    import torch
    import random_ops
    scope = {"torch": torch}
    text = program.source()
    with tempfile.TemporaryDirectory() as folder:
        text = re.sub(r"^        (v\w+) = (.*)$", r"        \1 = self._kept.setdefault('\1', \2)", text, flags=re.M)
        net = load(text, folder)()
    net._kept = {}
    inputs = [random_ops.example(2, shape, tokens) for shape, tokens in program.inputs.values()]
    scope = dict(zip(program.inputs, inputs))
    net(*inputs)
    scope.update(net._kept)
    return {k: (tuple(v.shape), v.is_floating_point()) for k, v in scope.items() if isinstance(v, torch.Tensor)}


def smaller(program):
    """Candidates, the smallest first: another end, a value that another replaces, a value that one dense layer makes."""
    import random_ops
    from random_ops import Program
    shapes = shapes_of(program)
    of = lambda **changes: Program(**{**{k: getattr(program, k) for k in ("inputs", "parts", "statements", "outputs", "frozen", "evals", "seed")}, **changes}).pruned()
    for k, (name, _) in enumerate(program.statements):
        shape, is_float = shapes.get(name, ((), False))
        if is_float and len(shape) > 1 and k < len(program.statements):
            flat = name if len(shape) == 2 else f"{name}.flatten(1)"
            code = f"self.m9000 = nn.Linear({functools.reduce(lambda a, b: a * b, shape[1:], 1)}, 3)"
            yield of(parts={**program.parts, "m9000": code}, outputs=[f"self.m9000({flat})"])
    for output in program.outputs:
        for part in output.split(" + "):
            if part != output or len(program.outputs) > 1:
                yield of(outputs=[part])
    for k, (name, _) in enumerate(program.statements):
        shape, is_float = shapes.get(name, ((), False))
        if not is_float or len(shape) < 2:
            continue
        for other, (shape_, is_float_) in shapes.items():
            if other != name and shape_ == shape and is_float_ and other in list(program.inputs) + [n for n, _ in program.statements[:k]]:
                yield of(statements=program.statements[:k] + [(name, other)] + program.statements[k + 1:])
        x, (given, tokens) = next(((x, i) for x, i in program.inputs.items() if not i[1]), (None, (None, None)))
        if x is not None and shape[1:] == given:
            yield of(statements=program.statements[:k] + [(name, x)] + program.statements[k + 1:])
        fresh = f"x{1 + max(int(i[1:]) for i in program.inputs)}"
        if len(program.inputs) < 6 and not re.fullmatch(r"[vx]\w+", program.statements[k][1]):
            yield of(inputs={**program.inputs, fresh: (shape[1:], 0)}, statements=program.statements[:k] + [(name, fresh)] + program.statements[k + 1:])
    for name in list(program.frozen):
        yield of(frozen=[f for f in program.frozen if f != name])
    for name in list(program.evals):
        yield of(evals=[f for f in program.evals if f != name])
    for k, (name, text) in enumerate(program.statements):
        for p, code in program.parts.items():
            if p[0] in "pbk" and f"self.{p}" in text:
                for call in re.findall(r"(?:torch\.\w+|F\.\w+)?\((?:[^()]|\([^()]*\))*self\." + p + r"\b(?:[^()]|\([^()]*\))*\)", text):
                    if call != f"self.{p}":
                        yield of(statements=program.statements[:k] + [(name, text.replace(call, f"self.{p}"))] + program.statements[k + 1:])


def cost(program):
    return len(program.source()), len(program.inputs)


def shrink(build, program, kind, seconds, tell=lambda text: None):
    what, text = forked(build, program, kind, seconds)
    want = (what, pattern(text) if what in ("refused", "crash", "written", "not exported") else "")
    begin = time.monotonic()
    while time.monotonic() - begin < 20 * seconds:
        for candidate in smaller(program):
            if cost(candidate) >= cost(program):
                continue
            what, text = forked(build, candidate, kind, seconds)
            if (what, pattern(text) if what in ("refused", "crash", "written", "not exported") else "") == want:
                program = candidate
                tell(f"{len(program.statements)} statements")
                break
        else:
            break
    return program, want[0], text


# ---- many ----

def pattern(text):
    """A refusal without the names and the numbers of its module."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'*'", text)
    text = re.sub(r"(?:net|job)\.(?:onnx|yaml)(?: line \d+)?:?", "", text)
    text = re.sub(r"\b(?:m|p|b|k|v|x|input|val|node)_?\d[\w./]*", "*", text)
    text = re.sub(r"/[\w./]+|\b\w+_\d+\w*", "*", text)
    return re.sub(r"\d+(?:\.\d+)?(?:e-?\d+)?", "N", text)[:150]


def work(args, seed):
    """All exports of one seed."""
    import random_ops
    results = []
    try:
        program = random_ops.draw(seed)
    except Exception as e:  # noqa: BLE001
        return [{"seed": seed, "export": "-", "what": "not drawn", "why": short(str(e))}]
    for kind in args.exports:
        what, why = forked(args.build, program, kind, args.seconds)
        results.append({"seed": seed, "export": kind, "what": what, "why": why})
    return results


def worker(args, seeds, pipe):
    import torch
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if {"plain", "default"} & set(args.exports):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), tempfile.TemporaryDirectory() as folder:
            torch.onnx.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),), os.path.join(folder, "x.onnx"), dynamo=True)  # what it imports, once
    end = time.monotonic() + 60 * args.minutes if args.minutes else None
    for seed in seeds:
        if end and time.monotonic() > end:
            break
        for result in work(args, seed):
            pipe.send(result)
    pipe.send(None)


def run(args):
    """Results of all seeds, by some processes."""
    pipes, processes = [], []
    for k in range(args.jobs):
        ours, theirs = multiprocessing.Pipe(False)
        seeds = range(args.first + k, args.first + args.count, args.jobs)
        process = multiprocessing.get_context("fork").Process(target=worker, args=(args, seeds, theirs))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    results = []
    with open(args.results, "w") if args.results else contextlib.nullcontext() as f:
        while pipes:
            for ours in multiprocessing.connection.wait(pipes):
                try:
                    result = ours.recv()
                except EOFError:
                    result = None
                if result is None:
                    pipes.remove(ours)
                    continue
                results.append(result)
                if f:
                    f.write(json.dumps(result) + "\n")
                    f.flush()
                if result["what"] in FINDINGS:
                    print(f"seed {result['seed']} {result['export']}: {result['what']}: {result['why']}", flush=True)
    for process in processes:
        process.join()
    return results


def table(results, exports, reasons):
    print(f"{'export':9} {'modules':>7} {'accepted':>8} {'same':>6} {'rounding':>8} {'different':>9} {'proof':>6} {'crash':>6} {'written':>7} {'refused':>7} {'not exported':>12} {'other':>6}")
    for kind in exports:
        counts = collections.Counter(r["what"] for r in results if r["export"] == kind)
        accepted = counts["same"] + counts["rounding"] + counts["different"]
        known = ("same", "rounding", "different", "proof", "crash", "written", "refused", "not exported")
        print(f"{kind:9} {sum(counts.values()):7} {accepted:8} {counts['same']:6} {counts['rounding']:8} {counts['different']:9} {counts['proof']:6} {counts['crash']:6} {counts['written']:7} "
              f"{counts['refused']:7} {counts['not exported']:12} {sum(v for k, v in counts.items() if k not in known):6}")
    for kind in exports:
        found = collections.defaultdict(list)
        for r in results:
            if r["export"] == kind and r["what"] not in ("same", "rounding", "different"):
                found[r["what"], pattern(r["why"])].append(r)
        for (what, _), of in sorted(found.items(), key=lambda item: -len(item[1]))[:reasons]:
            print(f"{kind}: {what}: {len(of)}, as seed {of[0]['seed']}: {of[0]['why']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", default=os.environ.get("MFL_BUILD", os.path.join(ROOT, "build")))
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=100, help="modules")
    parser.add_argument("--minutes", type=float, help="ends earlier")
    parser.add_argument("--exports", nargs="+", default=EXPORTS, choices=EXPORTS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=60, help="time for one export of one module")
    parser.add_argument("--reasons", type=int, default=30, help="refusals to print, per export")
    parser.add_argument("--results", help="a file: one line of JSON per export of a module")
    parser.add_argument("--seed", type=int, help="this module alone")
    parser.add_argument("--print", action="store_true", help="print its source")
    parser.add_argument("--shrink", choices=EXPORTS, help="print the source of the smallest module that ends in the same way")
    args = parser.parse_args()
    args.build = os.path.abspath(args.build)
    if args.seed is None:
        results = run(args)
        table(results, args.exports, args.reasons)
        sys.exit(any(r["what"] in FINDINGS for r in results))
    import random_ops
    warnings.simplefilter("ignore")
    program = random_ops.draw(args.seed)
    if args.shrink:
        program, what, text = shrink(args.build, program, args.shrink, args.seconds, lambda t: print(t, file=sys.stderr))
        print(f"# {args.shrink}: {what}: {text}\n# inputs: {program.inputs}\n{program.source()}")
        return
    if args.print:
        print(f"# inputs: {program.inputs}\n{program.source()}")
        return
    for kind in args.exports:
        print(kind, *forked(args.build, program, kind, args.seconds), sep=": ")


if __name__ == "__main__":
    main()
