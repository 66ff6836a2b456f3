#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `mfl plan` says a step takes beside what it takes: plan.py [--repeats 2] [--models wide fedavg-cnn vit-tiny] [--steps 20]

For each model four plans: one daemon alone, and two daemons of one node in stages 1 to 3 of ZeRO; about ten minutes on two idle cores. A plan's time is that of a
round of 3 x STEPS steps less that of a round of STEPS, by 2 x STEPS: what a round costs besides is in neither. Each repeat asks `mfl
plan` and runs all plans once, one after the other; the fastest of a plan's runs counts, and so does the fastest prediction, since other
load only adds. "cpu" is the processor time of all daemons for a step. Behind a model's plans stands what the plan that `mfl plan` chose took over what the
fastest plan took: in each repeat by that repeat's choice, beside the plan that is fastest over all repeats, and of that the median. The last lines are the median of
the errors, how the order of the plans agrees (Spearman, mean over the models), and for how many models the choice is within 5% of the fastest plan. Two members need
two cores of their own: with other load on the machine the errors say little."""

import argparse
import json
import statistics
import subprocess
import sys

import benchlib as bench

# name: (model, features of the synthetic images, batch, steps of a round relative to --steps)
MODELS = {
    "wide": ("{layers: [flatten, {dense: {units: 1024}}, relu, {dense: {units: 1024}}, relu, {dense: {units: 1024}}, relu, {dense: {units: 10}}]}",
             "1,28,28", 64, 1),
    "fedavg-cnn": ("fedavg-cnn", "1,28,28", 32, 1),
    "vit-tiny": ("vit-tiny", "3,32,32", 16, 0.25),
}
PLANS = [(1, 0), (2, 1), (2, 2), (2, 3)]


def job_text(name, members, zero, steps):
    model, _, batch, _ = MODELS[name]
    return f"""name: plan
seed: 3
rounds: 3
model: {model}
data: {{name: images, partition: iid, clients: 1}}
training: {{optimizer: adamw, lr: 0.0001, batch: {batch}, steps: {steps}, threads: 1, backend: cpu}}
parallel: {{grain: {batch // 4}, members: {members}, zero: {zero}, overlap: true}}
evaluation: {{every: 0}}
"""


def data_of(name):
    return f"images=synthetic:{MODELS[name][1]}:10:512:8:1"


def predict(name, folder):
    path = folder / "plan.yaml"
    path.write_text(job_text(name, 2, "auto", 1))
    done = subprocess.run([bench.program("cli/mfl"), "plan", str(path), "--data", data_of(name), "--members", "2", "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    found = json.loads(done.stdout)
    return {(p["members"], p["zero"]): p["seconds"] for p in found["plans"]}, (found["best"]["members"], found["best"]["zero"])


def round_seconds(server, daemons, text):
    """The fastest of the rounds after the first one, and the processor's time of a round."""
    cpu = sum(bench.processor_seconds(pid) for pid in daemons.pids)
    job = server.submit(text)
    server.mfl("wait", job)
    rounds = sorted(server.rounds(job), key=lambda r: r["round"])
    cpu = sum(bench.processor_seconds(pid) for pid in daemons.pids) - cpu
    commits = [r["committed_unix_ms"] / 1000 for r in rounds]
    return min(b - a for a, b in zip(commits, commits[1:])), cpu / len(rounds)


def measure(name, plan, steps):
    with bench.Server() as server, bench.Daemons(server.address, plan[0], "shm", data_of(name)) as daemons:
        bench.wait_until(lambda: len(server.mfl("daemons")["daemons"]) == plan[0], 60, "daemons")
        short, long = (round_seconds(server, daemons, job_text(name, *plan, n)) for n in (steps, 3 * steps))
    return [(b - a) / (2 * steps) for a, b in zip(short, long)]


def ranks(values):
    order = sorted(range(len(values)), key=lambda i: values[i])
    return [order.index(i) for i in range(len(values))]


def spearman(a, b):
    n = len(a)
    return 1 - 6 * sum((x - y) ** 2 for x, y in zip(ranks(a), ranks(b))) / (n * (n * n - 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    options = parser.parse_args()
    errors, orders, slower = [], [], []
    line = "{:11} {:>7} {:>4} {:>9} {:>9} {:>6} {:>9}  {}"
    print(line.format("model", "members", "zero", "said ms", "took ms", "error", "cpu ms", ""), flush=True)
    for name in options.models:
        steps = max(4, int(options.steps * MODELS[name][3]))
        said, took, cpu, best, runs = {}, {}, {}, None, []
        for _ in range(options.repeats):
            with bench.Server() as server:
                now, best = predict(name, server.folder)
            best = best if best in PLANS else (1, 0)
            runs.append((best, {}))
            said = {plan: min(now[plan], said.get(plan, now[plan])) for plan in PLANS}
            for plan in PLANS:
                seconds, processor = measure(name, plan, steps)
                runs[-1][1][plan] = seconds
                took[plan] = min(seconds, took.get(plan, seconds))
                cpu[plan] = min(processor, cpu.get(plan, processor))
        for plan in PLANS:
            error = said[plan] / took[plan] - 1
            errors.append(abs(error))
            print(line.format(name, plan[0], plan[1] if plan[0] > 1 else "-", f"{1e3 * said[plan]:.2f}", f"{1e3 * took[plan]:.2f}", f"{100 * error:+.0f}%",
                              f"{1e3 * cpu[plan]:.2f}", "chosen" if plan == best else ""), flush=True)
        orders.append(spearman([said[p] for p in PLANS], [took[p] for p in PLANS]))
        fastest = min(took, key=took.get)
        slower.append(statistics.median(seconds[chosen] / seconds[fastest] for chosen, seconds in runs) - 1)
        print(f"{name}: the chosen plan takes {1 + slower[-1]:.2f} of the fastest one's time", flush=True)
    print(f"median error {100 * statistics.median(errors):.0f}% of {len(errors)} plans; order {statistics.mean(orders):.2f}; "
          f"the chosen plan is {100 * max(slower):.0f}% slower than the fastest at most")
    print(f"aims: median error {'is' if statistics.median(errors) <= 0.15 else 'is not'} within 15%; "
          f"the choice is within 5% of the fastest plan for {sum(s <= 0.05 for s in slower)} of {len(slower)} models")


if __name__ == "__main__":
    main()
