#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The GPU suite and every GPU benchmark, as one table, within nine minutes: what `./dev gpu` runs.

    gpu.py [--build DIR] [--minutes 9] [--out DIR] [--only PART ...] [--backend cuda]

Parts, in the order of what they are worth: conformance (every operator and precision against the reference), repeats (one
digest), sums (exact sums on the device, and between devices by NCCL), memcheck (compute-sanitizer), speed (steps, beside PyTorch on the same card), five and fusion (clients at once),
layers (each layer's share of the chip), job (pfl-cifar through server and daemon). A part that finds its time spent is left
out and named. It needs no network. What it found missing is said first; where there is no device it says so and ends with
status 77. All results go to OUT/gpu.json too. --backend cpu or reference runs the same parts without a GPU, to try this
script itself; --backend cuda with MFL_MODULE_DIR naming the tests' emulated module tries the parts of CUDA, slowly.
"""
import argparse
import ctypes
import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SPEED = [("resnet18", 128, p) for p in ("fp32", "tf32", "bf16", "fp16")]
SPEED += [("resnet18", 512, p) for p in ("tf32", "bf16")]
SPEED += [("fedavg-cnn", 32, "fp32"), ("fedavg-cnn", 32, "tf32"), ("pfl-cnn", 10, "fp32"), ("pfl-cnn", 10, "tf32"),
          ("lenet5", 10, "fp32"), ("char-lstm", 10, "fp32")]
SPEED += [(m, 10, p) for m in ("char-lstm", "char-gpt", "vit-tiny") for p in ("tf32", "bf16")]
FUSION = [("lenet5", 10, "fp32", 256), ("pfl-cnn", 10, "fp32", 256), ("pfl-cnn", 10, "tf32", 256),
          ("fedavg-cnn", 10, "fp32", 256), ("char-lstm", 10, "fp32", 64), ("char-lstm", 10, "tf32", 64),
          ("char-lstm", 10, "bf16", 64), ("char-gpt", 10, "bf16", 64), ("vit-tiny", 10, "bf16", 64)]


class Clock:
    def __init__(self, minutes):
        self.end = time.monotonic() + 60 * minutes

    def left(self):
        return self.end - time.monotonic()


class Gpu:
    def __init__(self, options):
        self.options = options
        self.build = pathlib.Path(options.build).resolve()
        self.clock = Clock(options.minutes)
        self.results, self.failed, self.notes = [], [], []
        self.env = dict(os.environ, MFL_BUILD=str(self.build), OMP_WAIT_POLICY="passive")
        if "MFL_MODULE_DIR" not in self.env and options.backend != "cuda":
            self.env["MFL_MODULE_DIR"] = str(self.build / "kernels" / options.backend)
        folders = library_folders() + [f for f in self.env.get("LD_LIBRARY_PATH", "").split(":") if f]
        self.env["LD_LIBRARY_PATH"] = ":".join(folders)
        # The tests' module: no speed is to be had from it.
        self.emulated = pathlib.Path(self.env.get("MFL_MODULE_DIR", "."), "libmfl_cuda_emulated.so").exists()

    def program(self, path):
        return str(self.build / path)

    def run(self, command, most, quiet=False):
        """Output and exit status; status None when its time ran out. Never longer than what is left."""
        seconds = max(5.0, min(most, self.clock.left()))
        begin = time.monotonic()
        try:
            done = subprocess.run(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  errors="replace", timeout=seconds, stdin=subprocess.DEVNULL)
            out, status = done.stdout, done.returncode
        except subprocess.TimeoutExpired as e:
            out, status = e.stdout or "", None
            out = out.decode(errors="replace") if isinstance(out, bytes) else out
        if status and not quiet:
            print("\n".join("    " + line for line in out.strip().splitlines()[-12:]), flush=True)
        print(f"  [{time.monotonic() - begin:.0f} s] {' '.join(os.path.basename(c) for c in command[:6])}", flush=True)
        return out, status

    def measure(self, *arguments, most=30):
        """mfl-bench-device's lines; an error becomes a note."""
        out, status = self.run([self.program("bench/mfl-bench-device"), *map(str, arguments), "--backend",
                                self.options.backend], most)
        lines = json_lines(out)
        if status != 0:
            self.notes.append(f"mfl-bench-device {' '.join(map(str, arguments))}: "
                              + ("no time left" if status is None else out.strip().splitlines()[-1][:160] if out else
                                 f"status {status}"))
        self.results += lines
        return lines

    def check(self, name, ok, text):
        self.results.append({"check": name, "ok": ok, "text": text})
        if not ok:
            self.failed.append(f"{name}: {text}")
        print(f"  {'pass' if ok else 'FAIL'}  {name}: {text}", flush=True)


def json_lines(text):
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                pass
    return found


def library_folders():
    """Where the libraries of CUDA may be, besides the loader's own places: the toolkit, and Python's packages of it."""
    places = ["/usr/local/cuda/lib64"]
    if os.environ.get("CUDA_HOME"):
        places.append(os.path.join(os.environ["CUDA_HOME"], "lib64"))
    for base in set(sys.path) | set(python_sites()):
        places += glob.glob(os.path.join(base, "nvidia", "*", "lib"))
    return [p for p in places if os.path.isdir(p)]


def torch_python():
    for name in (os.environ.get("TORCH_PYTHON"), "python3", "/usr/bin/python3"):
        if name and shutil.which(name) and not subprocess.run([name, "-c", "import torch"], capture_output=True).returncode:
            return shutil.which(name)
    return None


def python_sites():
    name = os.environ.get("TORCH_PYTHON") or shutil.which("python3")
    if not name:
        return []
    done = subprocess.run([name, "-c", "import sys; print('\\n'.join(sys.path))"], capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if line]


def loads(name, folders):
    for path in [os.path.join(f, name) for f in folders] + [name]:
        try:
            ctypes.CDLL(path)
            return path
        except OSError:
            continue
    return None


def report_machine(gpu):
    """What is here. True when the suite can run."""
    folders = library_folders()
    rows = []
    smi = shutil.which("nvidia-smi")
    out = subprocess.run([smi, "-L"], capture_output=True, text=True).stdout.strip() if smi else ""
    rows.append(("device", out or "none (nvidia-smi finds none)"))
    rows.append(("driver", loads("libcuda.so.1", []) or "missing: libcuda.so.1"))
    for name in ("libcudnn.so.9", "libcublasLt.so.13", "libnccl.so.2"):
        rows.append((name, loads(name, folders) or "missing"))
    for name in ("kernels/mfl-conformance", "bench/mfl-bench-device", "server/mfl-server", "client/mfl-client", "cli/mfl"):
        rows.append((name, "built" if (gpu.build / name).exists() else f"missing in {gpu.build}"))
    module = [p for p in gpu.build.glob("kernels/cuda/libmfl_cuda.so")]
    rows.append(("libmfl_cuda.so", str(module[0]) if module else f"missing in {gpu.build}"))
    rows.append(("compute-sanitizer", find_sanitizer() or "missing: no memory check"))
    rows.append(("PyTorch", torch_python() or "missing: no comparison; TORCH_PYTHON names its interpreter"))
    for name, value in rows:
        print(f"{name:<26}{value}")
    gpu.results.append({"machine": dict(rows)})
    if gpu.options.backend != "cuda" or gpu.emulated:
        return True
    return bool(out) and bool(module) and not rows[2][1].startswith("missing")


def find_sanitizer():
    return shutil.which("compute-sanitizer") or next(iter(glob.glob("/usr/local/cuda*/bin/compute-sanitizer")), None)


# ---- parts ----


def conformance(gpu):
    for precision, most in (("fp32", 120), ("tf32", 45), ("bf16", 45), ("fp16", 45)):
        out, status = gpu.run([gpu.program("kernels/mfl-conformance"), "test", "--backend", gpu.options.backend,
                               "--precision", precision], most)
        passed, failed = out.count("\nok "), out.count("\nnot ok ")
        for line in out.splitlines():
            if line.startswith("not ok"):
                print("    " + line[:200], flush=True)
        gpu.check(f"conformance {precision}", status == 0,
                  f"{passed} passed, {failed} failed" + (", cut off" if status is None else ""))


def repeats(gpu):
    cases = [("lenet5", 10, 4, "fp32", 1000), ("lenet5", 10, 4, "tf32", 200), ("lenet5", 10, 4, "bf16", 200),
             ("lenet5", 10, 4, "fp16", 200), ("resnet20", 32, 2, "tf32", 50)]
    for model, batch, groups, precision, count in cases:
        lines = gpu.measure("repeat", "--model", model, "--batch", batch, "--groups", groups, "--precision", precision,
                            "--repeats", count, "--steps", 10)
        gpu.check(f"repeats {model} {precision}", bool(lines) and lines[0]["differ"] == 0,
                  f"{lines[0]['repeats']} runs, {lines[0]['differ']} differ" if lines else "did not run")


def cards(gpu):
    """What CUDA_VISIBLE_DEVICES (or, emulated, MFL_EMU_FIRST) says for each card."""
    if gpu.emulated:
        return ["0", "1"]
    visible = gpu.env.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return visible.split(",")
    smi = shutil.which("nvidia-smi")
    out = subprocess.run([smi, "-L"], capture_output=True, text=True).stdout if smi else ""
    return [str(i) for i, _ in enumerate(line for line in out.splitlines() if line.startswith("GPU "))]


def ranks(gpu, places, model, repeats, deadline_ms, dies=None):
    """One process for each of places, pairs of a card and a host's name for NCCL (None: its own): what they print, and
    their exit statuses. A host's name of its own makes ranks on one card look like several hosts: a trick for tests."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank, (card, host) in enumerate(places):
            env = dict(gpu.env, **{"MFL_EMU_FIRST" if gpu.emulated else "CUDA_VISIBLE_DEVICES": card})
            if host:
                env["NCCL_HOSTID"] = host
            command = [gpu.program("bench/mfl-bench-device"), "reduce", "--backend", gpu.options.backend, "--model", model,
                       "--rank", str(rank), "--ranks", str(len(places)), "--id-file", os.path.join(folder, "id"),
                       "--repeats", str(repeats), "--deadline", str(deadline_ms)]
            children.append(subprocess.Popen(command + (["--die"] if rank == dies else []), env=env, text=True,
                                             stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        end, outs = time.monotonic() + max(5, min(90, gpu.clock.left())), []
        for child in children:
            try:
                outs.append(child.communicate(timeout=max(1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                child.kill()
                outs.append((child.communicate()[0] or "", "hung"))
        return [json_lines(out) for out, _ in outs], [c.returncode for c in children], [err for _, err in outs]


def reduce_with(gpu, name, places, model):
    lines, statuses, errors = ranks(gpu, places, model, 20, 60000)
    if 77 in statuses:
        gpu.notes.append(f"sums: {name}: {errors[statuses.index(77)].strip()[-160:]}")
        return
    first = lines[0][0] if lines[0] else {}
    gpu.results += [dict(line, way=name) for each in lines for line in each]
    gpu.check(f"NCCL {name}", statuses == [0] * len(places) and bool(first.get("exact")),
              f"{first['params']} sums, exact, opened in {first['open_ms']} ms, {first['ms']} ms = {first['gb_per_s']} GB/s, "
              f"to the host alone {first['read_ms']} ms" if first.get("exact") else
              f"statuses {statuses}: {' | '.join(e.strip()[-160:] for e in errors if e)}")


def die_with(gpu, name, places, model):
    """The last rank is killed; the others must notice by their deadline, abort, and end by themselves."""
    lines, statuses, errors = ranks(gpu, places, model, 3, 5000, dies=len(places) - 1)
    if 77 in statuses:
        return
    left = [line for each in lines[:-1] for line in each if "broken_ms" in line]
    gpu.results += [dict(line, way=name + ", one killed") for line in left]
    gpu.check(f"NCCL {name}, one killed", statuses == [3] * (len(places) - 1) + [-9] and len(left) == len(places) - 1,
              f"noticed after {max(x['broken_ms'] for x in left)} ms, closed in {max(x['close_ms'] for x in left)} ms: "
              f"{left[0]['text'][:100]}" if left else f"statuses {statuses}: {' | '.join(e.strip()[-160:] for e in errors if e)}")


def sums(gpu):
    here, model = cards(gpu), "lenet5" if gpu.emulated else "resnet18"
    for groups in (1,) if gpu.emulated else (1, 8):
        gpu.measure("sum", "--model", model, "--groups", groups)
    if gpu.options.backend != "cuda":
        return
    one = here[0] if here else "0"
    layouts = [(f"{k} ranks on one card (NCCL_HOSTID)", [(one, f"bench-{i}") for i in range(k)]) for k in (2, 4)]
    if len(here) > 1:
        layouts.insert(0, (f"{len(here)} cards", [(card, None) for card in here]))
    else:
        gpu.notes.append("sums: one card: NCCL between cards did not run")
    for name, places in layouts:
        if gpu.clock.left() < 40:
            gpu.notes.append(f"sums: {name}: left out, {gpu.clock.left():.0f} s were left")
            continue
        reduce_with(gpu, name, places, model)
        die_with(gpu, name, places, model)


def memcheck(gpu):
    sanitizer = find_sanitizer()
    if not sanitizer:
        gpu.notes.append("memcheck: compute-sanitizer is not here")
        return
    for tool, most in (("memcheck", 60), ("racecheck", 45)):
        for case in ("conv 3x3 same", "attention of 65 of 64"):
            out, status = gpu.run([sanitizer, "--tool", tool, "--error-exitcode", "9",
                                   gpu.program("kernels/mfl-conformance"), "test", "--backend",
                                   gpu.options.backend, case], most)
            gpu.check(f"{tool}, {case}", status == 0, out.strip().splitlines()[-1][:120] if out.strip() else "no output")


def speed(gpu):
    for model, batch, precision in SPEED:
        gpu.measure("step", "--model", model, "--batch", batch, "--precision", precision, "--seconds", 0.7)
    for model, batch, precision in [("resnet18", 128, "bf16"), ("resnet18", 128, "tf32")]:
        gpu.measure("step", "--model", model, "--batch", batch, "--precision", precision, "--seconds", 0.7, "--fast", most=60)


def torch_speed(gpu):
    python = torch_python()
    if not python:
        gpu.notes.append("PyTorch is not here: no comparison")
        return
    most = max(20.0, min(150.0, gpu.clock.left() - 20))
    device = ["--device", "cuda" if gpu.options.backend == "cuda" else "cpu"]
    out, status = gpu.run([python, str(HERE / "torch_device.py"), str(most - 15),
                           *[f"{m}:{b}:{p}" for m, b, p in SPEED], *device], most)
    gpu.results += json_lines(out)
    if status != 0:
        gpu.notes.append("PyTorch: " + ("cut off" if status is None else f"status {status}"))


def five(gpu):
    gpu.measure("five", "--model", "lenet5", "--batch", 10, "--steps", 10)
    start = time.time() + 8
    command = [gpu.program("bench/mfl-bench-device"), "process", "--model", "lenet5", "--batch", "10", "--steps", "10",
               "--start-at", str(start), "--backend", gpu.options.backend]
    children = [subprocess.Popen(command, env=gpu.env, stdout=subprocess.PIPE, text=True) for _ in range(5)]
    times = []
    for child in children:
        try:
            lines = json_lines(child.communicate(timeout=60)[0])
            times += [line["ms"] for line in lines]
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    if len(times) == 5:
        gpu.results.append({"bench": "five", "model": "lenet5", "batch": 10, "way": "5 processes", "ms": max(times)})
    else:
        gpu.notes.append(f"five: {len(times)} of 5 processes finished")


def fusion(gpu):
    for model, batch, precision, groups in FUSION:
        gpu.measure("fusion", "--model", model, "--batch", batch, "--precision", precision, "--groups", groups,
                    "--seconds", 0.3, most=45)


def layers(gpu):
    for what in ([], ["--precision", "bf16", "attention"], ["--precision", "bf16", "matmul"]):
        out, status = gpu.run([gpu.program("kernels/mfl-conformance"), "perf", "--backend", gpu.options.backend, *what], 45)
        gpu.results.append({"layers": out.splitlines()})
        print(out)


def job(gpu):
    rounds = 1500 if gpu.options.backend == "cuda" else 2
    for extra in ([], ["--precision", "tf32"]):
        out, status = gpu.run([sys.executable, str(HERE / "pfl_cifar.py"), "--backend", gpu.options.backend, "--rounds",
                               str(rounds), *(extra if gpu.options.backend == "cuda" else [])], 90)
        gpu.results += json_lines(out)
        if status != 0:
            gpu.notes.append("pfl-cifar: " + ("cut off" if status is None else out.strip()[-160:]))


PARTS = [("conformance", conformance, 30), ("repeats", repeats, 15), ("speed", speed, 20), ("sums", sums, 40), ("five", five, 12),
         ("fusion", fusion, 25), ("job", job, 30), ("torch", torch_speed, 40), ("layers", layers, 15),
         ("memcheck", memcheck, 30)]


# ---- the table ----


def row(*cells):
    print("| " + " | ".join(str(c) for c in cells) + " |")


def best_torch(results, model, batch, precision):
    times = [(r["us"], r["way"]) for r in results
             if "torch" in r and "us" in r and (r["model"], r["batch"], r["precision"]) == (model, batch, precision)]
    return min(times) if times else None


def table_speed(gpu):
    steps = [r for r in gpu.results if r.get("bench") == "step"]
    if not steps:
        return
    peak = {r["precision"]: r["tflops"] for r in gpu.results if r.get("ceiling") == "product"}
    print()
    row("model", "batch", "precision", "mfl us/step", "best PyTorch us", "(which)", "times faster", "TFLOP/s",
        "of a large product", "host share")
    row(*["---"] * 10)
    for r in steps:
        torch = best_torch(gpu.results, r["model"], r["batch"], r["precision"])
        share = f"{r['tflops'] / peak[r['precision']]:.1%}" if peak.get(r["precision"]) else "-"
        row(r["model"], r["batch"], r["precision"] + (" fast" if r["fast"] else ""), f"{r['us']:.1f}",
            f"{torch[0]:.1f}" if torch else "-", torch[1] if torch else "-",
            f"{torch[0] / r['us']:.2f}" if torch else "-", f"{r['tflops']:.2f}", share,
            f"{r['host_share']:.1%}" if r["host_share"] >= 0 else "-")


def table_five(gpu):
    rows = [r for r in gpu.results if r.get("bench") == "five"]
    if rows:
        print()
        row("5 lenet5 clients of 10 steps", "ms", "of one after another")
        row(*["---"] * 3)
        for r in rows:
            row(r["way"], f"{r['ms']:.3f}", f"{r['ms'] / rows[0]['ms']:.2f}")


def table_fusion(gpu):
    rows = [r for r in gpu.results if r.get("bench") == "fusion"]
    for key in dict.fromkeys((r["model"], r["batch"], r["precision"]) for r in rows):
        mine = [r for r in rows if (r["model"], r["batch"], r["precision"]) == key]
        print()
        row(f"{key[0]} batch {key[1]} {key[2]}: clients at once", *[r["groups"] for r in mine])
        row(*["---"] * (len(mine) + 1))
        row("client steps a second", *[f"{r['client_steps_per_s']:.0f}" for r in mine])
        row("against one client alone", *[f"{r['gain']:.1f}" for r in mine])


def table_sums(gpu):
    rows = [r for r in gpu.results if r.get("bench") == "sum"]
    if rows:
        print()
        row("exact sums on the device", "clients", "params", "us", "GB/s", "of filling")
        row(*["---"] * 6)
        for r in rows:
            fill = next(f["gb_per_s"] for f in rows if f["way"] == "fill" and f["groups"] == r["groups"])
            row(r["way"], r["groups"], r["params"], f"{r['us']:.1f}", f"{r['gb_per_s']:.1f}", f"{r['gb_per_s'] / fill:.0%}")
    rows = [r for r in gpu.results if r.get("bench") == "reduce" and r["rank"] == 0 and "ms" in r]
    if rows:
        print()
        row("NCCL, sums to the host of rank 0", "params", "opening ms", "first ms", "ms", "GB/s", "to the host alone ms")
        row(*["---"] * 7)
        for r in rows:
            row(r["way"], r["params"], f"{r['open_ms']:.0f}", f"{r['first_ms']:.1f}", f"{r['ms']:.2f}", f"{r['gb_per_s']:.2f}",
                f"{r['read_ms']:.2f}")


def table_rest(gpu):
    for r in gpu.results:
        if r.get("bench") == "pfl-cifar":
            print(f"\npfl-cifar, {r['rounds']} rounds, {r['precision']}, data {r['data']}: {r['seconds']} s, "
                  f"{r['round_ms']} ms a round, accuracy {r['accuracy']}")
    print()
    for r in gpu.results:
        if "check" in r:
            print(f"{'pass' if r['ok'] else 'FAIL'}  {r['check']}: {r['text']}")
    for note in gpu.notes:
        print(f"note  {note}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=os.environ.get("MFL_BUILD", str(HERE.parent / "build")))
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--out", default=None)
    parser.add_argument("--only", nargs="*", choices=[p[0] for p in PARTS])
    parser.add_argument("--backend", default="cuda", choices=["cuda", "cpu", "reference"])
    gpu = Gpu(parser.parse_args())
    gpu.clock.end -= 15  # for the table
    if not report_machine(gpu):
        print("gpu: skipped: no device, or something that it needs is missing (above)")
        return 77
    for name, part, least in PARTS:
        if gpu.options.only and name not in gpu.options.only:
            continue
        if gpu.clock.left() < least:
            gpu.notes.append(f"{name}: left out, {gpu.clock.left():.0f} s were left")
            continue
        print(f"== {name}", flush=True)
        part(gpu)
        if gpu.options.out:
            pathlib.Path(gpu.options.out, "gpu.json").write_text(json.dumps(gpu.results, indent=1))
    table_speed(gpu)
    table_five(gpu)
    table_fusion(gpu)
    table_sums(gpu)
    table_rest(gpu)
    return 1 if gpu.failed else 0


if __name__ == "__main__":
    sys.exit(main())
