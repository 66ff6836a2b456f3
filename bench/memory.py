#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The server's resident memory against the number of uploads in a round, in copies of the model (4 bytes a parameter).

    memory.py [--uploads 10 100] [--kinds local:2] [--features 2499] [--classes 10000] [--rounds 1]

Each upload is of one client: a swarm of as many daemons as uploads, which do not train. The model `logistic` has
classes * (features + 1) parameters, 25,000,000 as it stands. A swarm needs a copy of the model for each daemon; where
memory is short, there are fewer. A kind is PARTITION:SLOTS: `local` (each daemon is one client, so updates are float32
only) or `iid` (a simulated population, where updates may be sums of several clients in 64-bit fixed point). "peak" is VmHWM, "after" VmRSS when the job is done and its memory given back."""

import argparse

import benchlib as bench


def measure(uploads, kind, options):
    partition, slots = kind.split(":")
    model = 4 * options.classes * (options.features + 1)
    with bench.Server(config="" if slots == "auto" else f"slots: {slots}\n") as server:
        server.swarm(uploads, "--features", str(options.features), "--classes", str(options.classes))
        before = bench.memory(server.pid)[0]
        job = server.submit(bench.noop_job("memory", options.rounds, uploads, partition=partition))
        server.mfl("wait", job)
        done = server.rounds(job)
        counted = sum(r["clients"] for r in done) / len(done)
        after, peak = bench.memory(server.pid)
        seconds = bench.median([r["seconds"] for r in done])
        return [
            partition,
            slots,
            uploads,
            f"{counted:.0f}",
            f"{before / 1e6:.1f}",
            f"{peak / 1e6:.1f}",
            f"{peak / model:.2f}",
            f"{after / 1e6:.1f}",
            f"{seconds:.2f}",
        ], peak


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--uploads", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--kinds", nargs="+", default=["local:2"])
    parser.add_argument("--features", type=int, default=2499)
    parser.add_argument("--classes", type=int, default=10000)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    bench.raise_files()
    model = 4 * options.classes * (options.features + 1)
    fit = int((bench.available() - 12 * model) * 0.8 / model)
    print(f"a model of {model // 4:,} parameters, {model / 1e6:.1f} MB")
    rows, peaks = [], {}
    for kind in options.kinds:
        for uploads in options.uploads:
            if uploads > fit:
                print(f"memory here is enough for a swarm of {fit}: not {uploads}")
                uploads = fit
            row, peaks[uploads, kind] = measure(uploads, kind, options)
            rows.append(row)
    bench.table(
        ["partition", "slots", "uploads", "counted", "idle MB", "peak MB", "copies", "after MB", "s a round"],
        rows,
    )
    for kind in options.kinds:
        values = [peak for (_, k), peak in peaks.items() if k == kind]
        print(f"{kind}: peaks differ by {(max(values) - min(values)) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
