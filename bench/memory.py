#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The server's resident memory against the number of uploads in a round, in copies of the model (4 bytes a parameter), and
what such a round takes.

    memory.py [--uploads 10 100] [--kinds local:2] [--features 2499] [--classes 10000] [--rounds 4]
              [--aggregation "strategy: multi-krum, f: 10"]

A swarm of as many daemons as uploads, which do not train. The model `logistic` has classes * (features + 1) parameters,
25,000,000 as it stands. A swarm needs two copies of the model for each daemon; where memory is short, there are fewer. A kind
is PARTITION:SLOTS: with `local` each daemon is one client, so updates travel as float32; with `iid` each daemon has two
clients of a simulated population, so updates are sums in 64-bit fixed point. "up" says which: megabytes of an upload. "peak" is
VmHWM, "after" VmRSS when the job is done and its memory given back. Seconds are the median between the commits of two rounds, and
the processor's of server and swarm those of a round: the first one, in which all memory is touched, is in neither. Params change in
each round, so each daemon downloads and hashes them."""

import argparse

import benchlib as bench


def processor(server, child):
    return bench.processor_seconds(server.pid), bench.processor_seconds(child.pid)


def measure(uploads, kind, options):
    partition, slots = kind.split(":")
    model = 4 * options.classes * (options.features + 1)
    clients = uploads if partition == "local" else 2 * uploads
    with bench.Server(config="" if slots == "auto" else f"slots: {slots}\n") as server:
        child, _ = server.swarm(uploads, "--moving", "--features", str(options.features), "--classes", str(options.classes),
                                *(["--samples", "1"] if options.aggregation else []))
        before = bench.memory(server.pid)[0]
        job = server.submit(bench.noop_job("memory", options.rounds, clients, partition=partition, aggregation=options.aggregation))
        bench.wait_until(lambda: server.rounds(job), 600, "the first round")
        seen, start = len(server.rounds(job)), processor(server, child)
        server.mfl("wait", job)
        end = processor(server, child)
        done = sorted(server.rounds(job), key=lambda r: r["round"])
        counted = sum(r["clients"] for r in done) / len(done)
        after, peak = bench.memory(server.pid)
        commits = [r["committed_unix_ms"] / 1000 for r in done]
        seconds = bench.median([b - a for a, b in zip(commits, commits[1:])])
        cpu = [(b - a) / max(len(done) - seen, 1) for a, b in zip(start, end)]
        return [
            partition,
            slots,
            uploads,
            f"{counted:.0f}",
            f"{done[-1]['bytes_up'] / uploads / 1e6:.0f}",
            f"{before / 1e6:.1f}",
            f"{peak / 1e6:.1f}",
            f"{peak / model:.2f}",
            f"{after / 1e6:.1f}",
            f"{seconds:.2f}",
            f"{cpu[0]:.2f}",
            f"{cpu[1]:.2f}",
        ], peak


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--uploads", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--kinds", nargs="+", default=["local:2"])
    parser.add_argument("--features", type=int, default=2499)
    parser.add_argument("--classes", type=int, default=10000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--aggregation", help="what stands in a job's aggregation: {...}; default: fedavg")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: at least 2, because the first one is not timed")
    bench.raise_files()
    model = 4 * options.classes * (options.features + 1)
    fit = int((bench.available() - 12 * model) * 0.8 / (2 * model))
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
        ["partition", "slots", "uploads", "counted", "up MB", "idle MB", "peak MB", "copies", "after MB", "s a round", "server s", "swarm s"],
        rows,
    )
    for kind in options.kinds:
        values = [peak for (_, k), peak in peaks.items() if k == kind]
        print(f"{kind}: peaks differ by {(max(values) - min(values)) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
