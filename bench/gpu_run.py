# SPDX-License-Identifier: Apache-2.0
"""Runs steps within budgets, and writes down what they find as it comes: what bench/gpu.py's parts are run by.

A step is a program or a few, with a name. The file gpu.jsonl gets a line when a step begins, one for each result as it is
measured, and one when the step ends; each is written out at once, so that a command that is cut loses nothing that was
measured. With --resume the steps that ended are left out, and the one that was cut is begun again (once: a step that was cut
twice is left out, since it may be what cuts). A part has a budget of seconds over all commands; steps beyond it wait until all
parts had their turn. A step that the command has no time for is where the next one goes on.
"""
import json
import os
import queue
import signal
import subprocess
import threading
import time


class Cut(Exception):
    """The command's own time is over."""


class Clock:
    def __init__(self, minutes):
        self.end = time.monotonic() + 60 * minutes

    def left(self):
        return self.end - time.monotonic()


class Record:
    """gpu.jsonl."""

    def __init__(self, path, resume, others):
        self.path, self.lines = path, []
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not resume:
            number = 1
            while path.with_suffix(f".{number}.jsonl").exists():
                number += 1
            path.rename(path.with_suffix(f".{number}.jsonl"))
        whole = not path.exists() or path.read_bytes()[-1:] in (b"\n", b"")
        self.lines = read_lines(path) if path.exists() else []
        self.file = open(path, "a", encoding="utf-8")
        if not whole:
            self.file.write("\n")
        for other in others if resume else []:
            for line in read_lines(other):
                if line not in self.lines:
                    self.add(line)

    def put(self, line):
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def add(self, line):
        self.lines.append(line)
        self.put(line)

    def of(self, key):
        return [line for line in self.lines if key in line]

    def ended(self, step):
        return any(line["end"] == step for line in self.of("end"))

    def begun(self, step):
        return sum(line["begin"] == step for line in self.of("begin"))

    def spent(self, part):
        """Seconds of all commands. A step that was cut is counted by its last line."""
        return sum(line["seconds"] for line in self.of("seconds") if line.get("part") == part)


def read_lines(path):
    """Those that are whole: the last one may have been cut."""
    found = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                found.append(json.loads(text))
            except ValueError:
                pass
    return found


class Step:
    """run(gpu) does it. least: seconds without which it is not worth beginning."""

    def __init__(self, name, run, least=5):
        self.name, self.run, self.least = name, run, least


class Runner:
    def __init__(self, record, clock, env):
        self.record, self.clock, self.env = record, clock, env
        self.step_end = clock.end
        self.step = None

    # ---- what steps call ----

    def left(self):
        """Seconds that the step at hand may still take."""
        return min(self.step_end, self.clock.end) - time.monotonic()

    def result(self, line):
        self.record.add(dict(line, step=self.step))

    def note(self, text):
        self.result({"note": text})
        print(f"  note  {text}", flush=True)

    def check(self, name, ok, text):
        self.result({"check": name, "ok": ok, "text": text})
        print(f"  {'pass' if ok else 'FAIL'}  {name}: {text}", flush=True)

    def program(self, command, most, take):
        """Runs it; take(line) for each line as it comes. Exit status, None when `most` ran out; Cut when the command's own
        time did."""
        end = time.monotonic() + max(1.0, min(most, self.left()))
        child = subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 errors="replace", stdin=subprocess.DEVNULL, start_new_session=True)
        lines = queue.SimpleQueue()

        def read():
            for line in child.stdout:
                lines.put(line.rstrip("\n"))
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        try:
            while True:
                try:
                    line = lines.get(timeout=max(0.0, end - time.monotonic()))
                except queue.Empty:
                    break
                if line is None:
                    return child.wait()
                take(line)
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
        if self.clock.left() <= 0:
            raise Cut
        return None

    # ---- the loop ----

    def run_step(self, part, step, seconds):
        """False: it was cut by the end of the command."""
        self.step = f"{part}: {step.name}"
        self.step_end = time.monotonic() + seconds
        self.record.add({"begin": self.step, "part": part})
        print(f"-- {self.step}", flush=True)
        begin, cut = time.monotonic(), False
        try:
            step.run(self)
        except Cut:
            cut = True
        except (KeyError, IndexError, ValueError, OSError, subprocess.SubprocessError) as e:
            self.check(self.step, False, f"the step could not be run: {type(e).__name__}: {e}")
        line = {"part": part, "seconds": round(time.monotonic() - begin, 2)}
        self.record.add(dict(line, **({"cut": self.step} if cut else {"end": self.step})))
        print(f"   [{line['seconds']:.0f} s]" + (" cut: the command's time is over" if cut else ""), flush=True)
        return not cut

    def pending(self, part, steps):
        for step in steps:
            name = f"{part}: {step.name}"
            if self.record.ended(name):
                continue
            if self.record.begun(name) >= 2:
                self.step = name
                self.check(name, False, "begun twice, and never ended: left out")
                self.record.add({"end": name, "part": part, "seconds": 0})
                continue
            yield step

    def run_parts(self, parts):
        """parts: name, budget in seconds, list of steps. True: nothing is left to do."""
        for within_budget in (True, False):
            for part, budget, steps in parts:
                for step in self.pending(part, steps):
                    left = budget - self.record.spent(part) if within_budget else self.clock.left()
                    if left < step.least and within_budget:
                        print(f"-- {part}: {step.name}: waits: the part's {budget} s are spent", flush=True)
                        continue
                    if self.clock.left() < step.least:
                        return False
                    if not self.run_step(part, step, left):
                        return False
        return True
