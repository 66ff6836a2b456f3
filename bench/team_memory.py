#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model that one daemon's `memory` refuses, trained by several daemons of one host: what each needs, and that the model is the same.

    team_memory.py [--runs 1:1.5GiB 4:1.5GiB 1:8GiB] [--depth 142] [--width 1024] [--steps 2] [--zero auto] [--snapshot 0]

Each run is a server of its own with DAEMONS:MEMORY daemons of one worker and the same job: one client, dense layers, AdamW, exact sums,
in the stage --zero, with a snapshot every so many steps. A refusal is printed with the sizes that `mfl show` gives. "resident" is the highest resident memory of a daemon, in
bytes per parameter above what it had before the job; what daemons share counts for each of them that has mapped it. "share" is the highest
sum over all daemons of what each has for its own, and its part of what it shares (Pss), by the number of daemons. The program fails if
jobs that were trained have different digests. At its size it needs 16 GB of memory."""

import argparse
import threading

import benchlib as bench


def job_text(options):
    layers = "\n".join(f"    - dense: {{units: {options.width}}}" for _ in range(options.depth))
    return f"""name: team-memory
seed: 5
rounds: 1
model:
  layers:
    - flatten
{layers}
    - dense: {{units: 10}}
data: {{name: images, partition: iid, clients: 1}}
training: {{optimizer: adamw, lr: 0.0001, batch: 4, steps: {options.steps}, backend: cpu}}
parallel: {{grain: 1, members: 4, within: node, zero: {options.zero}, snapshot: {options.snapshot}}}
evaluation: {{every: 0}}
limits: {{deadline: 20m}}
"""


class Sampler(threading.Thread):
    """The highest resident memory of each process, and the highest sum of their shares."""

    def __init__(self, pids):
        super().__init__(daemon=True)
        self.before = {pid: bench.memory(pid)[0] for pid in pids}
        self.highest, self.ended = dict(self.before), threading.Event()
        self.shares_before = self.shares = self.sum_of_shares()
        self.start()

    def sum_of_shares(self):
        return sum(bench.shared_memory(pid) for pid in self.before)

    def run(self):
        while not self.ended.wait(0.2):
            try:
                for pid in self.before:
                    self.highest[pid] = max(self.highest[pid], bench.memory(pid)[1])
                self.shares = max(self.shares, self.sum_of_shares())
            except OSError:  # a daemon has ended, and so has the run
                return

    def most(self):
        self.ended.set()
        self.join()
        shares = (self.shares - self.shares_before) / len(self.before)
        return max(self.highest[pid] - self.before[pid] for pid in self.before), shares


def measure(count, memory, options):
    features = options.width
    data = f"images=synthetic:1,1,{features}:10:64:8:1"
    with bench.Server(config="") as server, bench.Daemons(server.address, count, "auto", data, more=("--memory", memory)) as daemons:
        bench.wait_until(lambda: len(server.mfl("daemons")["daemons"]) == count, 60, f"{count} daemons")
        sampler = Sampler(daemons.pids)
        job = server.submit(job_text(options))
        shown = {}

        def ended():
            shown.update(server.mfl("show", job))
            return shown["job"]["state"] in ("done", "failed")
        bench.wait_until(ended, 1200, job)
        (resident, share), done = sampler.most(), shown["rounds"]
    params = shown["job"]["params"]
    row = [f"{count}", memory, shown["job"]["state"], f"{params / 1e6:.1f}", f"{resident / params:.2f}", f"{share / params:.2f}",
           f"{done[0]['seconds']:.1f}" if done else "", done[0]["digest"][:16] if done else ""]
    return row, "" if done else shown["job"]["reason"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs="+", default=["1:1.5GiB", "4:1.5GiB", "1:8GiB"])
    parser.add_argument("--depth", type=int, default=142)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--zero", default="auto")
    parser.add_argument("--snapshot", type=int, default=0)
    options = parser.parse_args()
    if not all(run.partition(":")[0].isdigit() and run.partition(":")[2] for run in options.runs):
        parser.error("--runs: each is DAEMONS:MEMORY, such as 4:1.5GiB")
    rows, reasons = [], []
    for run in options.runs:
        count, memory = run.split(":")
        row, reason = measure(int(count), memory, options)
        rows.append(row)
        if reason:
            reasons.append(f"{run}: {reason}")
    bench.table(["daemons", "memory", "state", "M params", "resident", "share", "round s", "digest"], rows)
    print(*reasons, sep="\n")
    if len({row[-1] for row in rows if row[-1]}) > 1:
        raise SystemExit("the digests differ")


if __name__ == "__main__":
    main()
