# SPDX-License-Identifier: Apache-2.0
"""The parts of `./dev gpu`: what each measures or checks, as steps for bench/gpu_run.py."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from gpu_machine import find_sanitizer, torch_python
from gpu_run import Step

HERE = pathlib.Path(__file__).resolve().parent
SPEED = [("resnet18", 128, p) for p in ("fp32", "tf32", "bf16", "fp16")]
SPEED += [("resnet18", 512, p) for p in ("tf32", "bf16")]
SPEED += [("fedavg-cnn", 32, "fp32"), ("fedavg-cnn", 32, "tf32"), ("pfl-cnn", 10, "fp32"), ("pfl-cnn", 10, "tf32"),
          ("lenet5", 10, "fp32"), ("char-lstm", 10, "fp32")]
SPEED += [(m, 10, p) for m in ("char-lstm", "char-gpt", "vit-tiny") for p in ("tf32", "bf16")]
FAST = [("resnet18", 128, "bf16"), ("resnet18", 128, "tf32")]
FUSION = [("lenet5", 10, "fp32", 256), ("pfl-cnn", 10, "fp32", 256), ("pfl-cnn", 10, "tf32", 256),
          ("fedavg-cnn", 10, "fp32", 256), ("char-lstm", 10, "fp32", 64), ("char-lstm", 10, "tf32", 64),
          ("char-lstm", 10, "bf16", 64), ("char-gpt", 10, "bf16", 64), ("vit-tiny", 10, "bf16", 64)]
REPEATS = [("lenet5", 10, 4, "fp32", 1000), ("lenet5", 10, 4, "tf32", 200), ("lenet5", 10, 4, "bf16", 200),
           ("lenet5", 10, 4, "fp16", 200), ("resnet20", 32, 2, "tf32", 50)]
CASE_SECONDS = 60  # a case of conformance that takes longer hangs


class Parts:
    def __init__(self, options, build, env, emulated):
        self.options, self.build, self.env, self.emulated = options, build, env, emulated

    def path(self, name):
        return str(self.build / name)

    # ---- programs ----

    def tap(self, gpu, name, arguments, most):
        """The conformance program: failures as they come, sums at the end."""
        counts = {"ok": 0, "skipped": 0, "not ok": 0}
        words = []

        def take(line):
            if line.startswith("not ok"):
                counts["not ok"] += 1
                gpu.result({"failed": line})
                print("    " + line[:200], flush=True)
            elif line.startswith("ok "):
                counts["skipped" if "# SKIP" in line else "ok"] += 1
            else:
                words.append(line)

        status = gpu.program([self.path("kernels/mfl-conformance"), *arguments, "--backend", self.options.backend, "--limit",
                              str(CASE_SECONDS)], most, take)
        text = f"{counts['ok']} passed, {counts['not ok']} failed, {counts['skipped']} skipped"
        if status is None:
            text += ", cut off"
        elif status not in (0, 1):
            text += f", status {status}: {words[-1][:160] if words else ''}"
        gpu.check(name, status == 0 and counts["ok"] > 0, text)

    def measure(self, gpu, *arguments, most=30):
        """mfl-bench-device's lines, each written down as it comes; an error becomes a note."""
        command = [self.path("bench/mfl-bench-device"), *map(str, arguments), "--backend", self.options.backend]
        lines, words = [], []
        status = gpu.program(command, most, lambda line: self.take_json(gpu, line, lines, words))
        if status != 0:
            gpu.note(f"mfl-bench-device {' '.join(map(str, arguments))}: "
                     + ("no time left" if status is None else words[-1][:160] if words else f"status {status}"))
        return lines

    @staticmethod
    def take_json(gpu, line, lines, words):
        try:
            found = json.loads(line) if line.startswith("{") else None
        except ValueError:
            found = None
        if found is None:
            words.append(line)
            return
        lines.append(found)
        gpu.result(found)
        print("  " + "  ".join(f"{k} {v}" for k, v in found.items() if k not in ("device", "torch")), flush=True)

    # ---- parts ----

    def smoke(self):
        yield Step("each kernel once", lambda gpu: self.tap(gpu, "smoke", ["test", "--smoke", "--precision", "all"], 60))

    def conformance(self):
        for precision in ("fp32", "tf32", "bf16", "fp16"):
            arguments = ["test", "--no-inner", "--precision", precision]
            yield Step(precision, lambda gpu, a=arguments, p=precision: self.tap(gpu, f"conformance {p}", a, 150), least=15)

    def job(self):
        rounds = 150 if self.options.backend == "cuda" and not self.emulated else 2
        for precision in ("fp32", "tf32") if self.options.backend == "cuda" else ("fp32",):
            yield Step(f"{rounds} rounds {precision}", lambda gpu, p=precision: self.one_job(gpu, rounds, p), least=15)

    def one_job(self, gpu, rounds, precision):
        lines, words = [], []
        status = gpu.program([sys.executable, str(HERE / "pfl_cifar.py"), "--backend", self.options.backend, "--rounds",
                              str(rounds), "--precision", precision], 90,
                             lambda line: self.take_json(gpu, line, lines, words))
        gpu.check(f"pfl-cifar, {rounds} rounds, {precision}", status == 0 and bool(lines),
                  f"{lines[0]['round_ms']} ms a round" if lines else
                  "cut off" if status is None else words[-1][:160] if words else f"status {status}")

    def speed(self):
        for model, batch, precision in SPEED:
            yield Step(f"{model} {batch} {precision}", lambda gpu, m=model, b=batch, p=precision: self.measure(
                gpu, "step", "--model", m, "--batch", b, "--precision", p, "--seconds", 0.7))
        for model, batch, precision in FAST:
            yield Step(f"{model} {batch} {precision} fast", lambda gpu, m=model, b=batch, p=precision: self.measure(
                gpu, "step", "--model", m, "--batch", b, "--precision", p, "--seconds", 0.7, "--fast", most=60))

    def torch(self, ways, most):
        """PyTorch's speed, by groups of models, so that a command that is cut loses one group; a process takes its seconds to
        begin."""
        for model in dict.fromkeys(m for m, _, _ in SPEED):
            cases = [f"{m}:{b}:{p}" for m, b, p in SPEED if m == model]
            yield Step(f"{model} {ways}", lambda gpu, c=cases: self.one_torch(gpu, ways, c, most), least=15)

    def one_torch(self, gpu, ways, cases, most):
        python = torch_python()
        if not python:
            gpu.note("PyTorch is not here: no comparison")
            return
        seconds = max(10.0, min(most, gpu.left()))
        known = any("ceiling" in line for line in gpu.record.lines)
        lines, words = [], []
        status = gpu.program([python, str(HERE / "torch_device.py"), str(seconds - 8), *cases, "--ways", ways, "--device",
                              "cuda" if self.options.backend == "cuda" else "cpu", *(["--no-ceilings"] if known else [])],
                             seconds, lambda line: self.take_json(gpu, line, lines, words))
        if status != 0:
            gpu.note("PyTorch: " + ("cut off" if status is None else words[-1][:160] if words else f"status {status}"))

    def torch_speed(self):
        return self.torch("eager,graph", 60)

    def torch_compile(self):
        return self.torch("compile", 120)

    def fusion(self):
        for model, batch, precision, groups in FUSION:
            yield Step(f"{model} {precision}", lambda gpu, m=model, b=batch, p=precision, g=groups: self.measure(
                gpu, "fusion", "--model", m, "--batch", b, "--precision", p, "--groups", g, "--seconds", 0.3, most=45), least=10)

    def repeats(self):
        for model, batch, groups, precision, count in REPEATS:
            yield Step(f"{model} {precision}", lambda gpu, c=(model, batch, groups, precision, count): self.one_repeat(gpu, *c))

    def one_repeat(self, gpu, model, batch, groups, precision, count):
        lines = self.measure(gpu, "repeat", "--model", model, "--batch", batch, "--groups", groups, "--precision", precision,
                             "--repeats", count, "--steps", 10)
        gpu.check(f"repeats {model} {precision}", bool(lines) and lines[0]["differ"] == 0,
                  f"{lines[0]['repeats']} runs, {lines[0]['differ']} differ" if lines else "did not run")

    def five(self):
        yield Step("one after another, in threads, fused", lambda gpu: self.measure(gpu, "five", "--model", "lenet5", "--batch", 10,
                                                                                    "--steps", 10))
        yield Step("5 processes", self.five_processes, least=12)

    def five_processes(self, gpu):
        start = time.time() + 8
        command = [self.path("bench/mfl-bench-device"), "process", "--model", "lenet5", "--batch", "10", "--steps", "10",
                   "--start-at", str(start), "--backend", self.options.backend]
        children = [subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, text=True) for _ in range(5)]
        times = []
        for child in children:
            try:
                out = child.communicate(timeout=max(1, gpu.left()))[0]
                times += [json.loads(line)["ms"] for line in out.splitlines() if line.startswith("{")]
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if len(times) == 5:
            gpu.result({"bench": "five", "model": "lenet5", "batch": 10, "way": "5 processes", "ms": max(times)})
        else:
            gpu.note(f"five: {len(times)} of 5 processes finished")

    def layers(self):
        for what in (["--precision", "fp32"], ["--precision", "bf16", "attention"], ["--precision", "bf16", "matmul"]):
            yield Step(" ".join(what[1:]), lambda gpu, w=what: self.one_layers(gpu, w))

    def one_layers(self, gpu, what):
        def take(line):
            print("  " + line, flush=True)
            if " us" in line:
                gpu.result({"layer": line})

        status = gpu.program([self.path("kernels/mfl-conformance"), "perf", "--backend", self.options.backend, *what], 60, take)
        if status != 0:
            gpu.note("layers: " + ("cut off" if status is None else f"status {status}"))

    def inner(self):
        yield Step("variants and plans of convolutions, NCCL alone", lambda gpu: self.tap(gpu, "inner checks", ["inner"], 240),
                   least=20)

    def memcheck(self):
        for tool in ("memcheck", "racecheck"):
            for case in ("conv 3x3 same", "attention of 65 of 64"):
                yield Step(f"{tool}, {case}", lambda gpu, t=tool, c=case: self.one_memcheck(gpu, t, c), least=20)

    def one_memcheck(self, gpu, tool, case):
        sanitizer = find_sanitizer()
        if not sanitizer:
            gpu.note("memcheck: compute-sanitizer is not here")
            return
        words = [""]
        status = gpu.program([sanitizer, "--tool", tool, "--error-exitcode", "9", self.path("kernels/mfl-conformance"), "test",
                              "--no-inner", "--one-process", "--backend", self.options.backend, case], 60, words.append)
        gpu.check(f"{tool}, {case}", status == 0, "cut off" if status is None else words[-1].strip()[:120])

    # ---- sums, on the device and between devices ----

    def cards(self):
        """What CUDA_VISIBLE_DEVICES (or, emulated, MFL_EMU_FIRST) says for each card."""
        if self.emulated:
            return ["0", "1"]
        visible = self.env.get("CUDA_VISIBLE_DEVICES")
        if visible:
            return visible.split(",")
        smi = shutil.which("nvidia-smi")
        out = subprocess.run([smi, "-L"], capture_output=True, text=True).stdout if smi else ""
        return [str(i) for i, _ in enumerate(line for line in out.splitlines() if line.startswith("GPU "))]

    def sums(self):
        here, model = self.cards(), "lenet5" if self.emulated else "resnet18"
        for groups in (1,) if self.emulated else (1, 8):
            yield Step(f"{groups} clients", lambda gpu, g=groups: self.measure(gpu, "sum", "--model", model, "--groups", g))
        if self.options.backend != "cuda":
            return
        one = here[0] if here else "0"
        layouts = [(f"{k} ranks on one card (NCCL_HOSTID)", [(one, f"bench-{i}") for i in range(k)]) for k in (2, 4)]
        if len(here) > 1:
            layouts.insert(0, (f"{len(here)} cards", [(card, None) for card in here]))
        for name, places in layouts:
            yield Step(f"NCCL {name}", lambda gpu, n=name, p=places: self.reduce_with(gpu, n, p, model), least=20)
            yield Step(f"NCCL {name}, one killed", lambda gpu, n=name, p=places: self.die_with(gpu, n, p, model), least=20)

    def ranks(self, gpu, places, model, repeats, deadline_ms, dies=None):
        """One process for each of places, pairs of a card and a host's name for NCCL (None: its own): what they print, and
        their exit statuses. A host's name of its own makes ranks on one card look like several hosts: a trick for tests."""
        with tempfile.TemporaryDirectory() as folder:
            children = []
            for rank, (card, host) in enumerate(places):
                env = dict(self.env, **{"MFL_EMU_FIRST" if self.emulated else "CUDA_VISIBLE_DEVICES": card})
                if host:
                    env["NCCL_HOSTID"] = host
                command = [self.path("bench/mfl-bench-device"), "reduce", "--backend", self.options.backend, "--model", model,
                           "--rank", str(rank), "--ranks", str(len(places)), "--id-file", os.path.join(folder, "id"),
                           "--repeats", str(repeats), "--deadline", str(deadline_ms)]
                children.append(subprocess.Popen(command + (["--die"] if rank == dies else []), env=env, text=True,
                                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            end, outs = time.monotonic() + max(5, min(90, gpu.left())), []
            for child in children:
                try:
                    outs.append(child.communicate(timeout=max(1, end - time.monotonic())))
                except subprocess.TimeoutExpired:
                    child.kill()
                    outs.append((child.communicate()[0] or "", "hung"))
            lines = [[json.loads(line) for line in out.splitlines() if line.startswith("{")] for out, _ in outs]
            return lines, [c.returncode for c in children], [err for _, err in outs]

    def reduce_with(self, gpu, name, places, model):
        lines, statuses, errors = self.ranks(gpu, places, model, 20, 60000)
        if 77 in statuses:
            gpu.note(f"sums: {name}: {errors[statuses.index(77)].strip()[-160:]}")
            return
        first = lines[0][0] if lines[0] else {}
        for line in (line for each in lines for line in each):
            gpu.result(dict(line, way=name))
        gpu.check(f"NCCL {name}", statuses == [0] * len(places) and bool(first.get("exact")),
                  f"{first['params']} sums, exact, opened in {first['open_ms']} ms, {first['ms']} ms = {first['gb_per_s']} GB/s, "
                  f"to the host alone {first['read_ms']} ms" if first.get("exact") else
                  f"statuses {statuses}: {' | '.join(e.strip()[-160:] for e in errors if e)}")

    def die_with(self, gpu, name, places, model):
        """The last rank is killed; the others must notice by their deadline, abort, and end by themselves."""
        lines, statuses, errors = self.ranks(gpu, places, model, 3, 5000, dies=len(places) - 1)
        if 77 in statuses:
            return
        left = [line for each in lines[:-1] for line in each if "broken_ms" in line]
        for line in left:
            gpu.result(dict(line, way=name + ", one killed"))
        gpu.check(f"NCCL {name}, one killed", statuses == [3] * (len(places) - 1) + [-9] and len(left) == len(places) - 1,
                  f"noticed after {max(x['broken_ms'] for x in left)} ms, closed in {max(x['close_ms'] for x in left)} ms: "
                  f"{left[0]['text'][:100]}" if left else
                  f"statuses {statuses}: {' | '.join(e.strip()[-160:] for e in errors if e)}")


# Name, method, seconds of its budget; in the order of what they are worth on a card that is there for the first time.
PARTS = [("smoke", Parts.smoke, 60), ("conformance", Parts.conformance, 300), ("job", Parts.job, 90), ("speed", Parts.speed, 90),
         ("torch", Parts.torch_speed, 180), ("fusion", Parts.fusion, 150), ("repeats", Parts.repeats, 60),
         ("sums", Parts.sums, 120), ("five", Parts.five, 40), ("layers", Parts.layers, 90), ("memcheck", Parts.memcheck, 90),
         ("inner", Parts.inner, 180), ("compile", Parts.torch_compile, 240)]
