#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Connected daemons: what an idle one costs the server in memory, and rounds a second when a thousand take part in
rounds of a model of 2 parameters (8 bytes) without training.

    connections.py [--idle 10000] [--daemons 1000] [--rounds 200]

Rounds are timed by the server's own commit times (committed_unix_ms), the way a user sees them; the table has the median,
the 99th percentile, how many a second, and the processor time that server and swarm take for a round."""

import argparse

import benchlib as bench

MODEL = "{layers: [{dense: {units: 2, bias: false}}]}"


def idle(n):
    with bench.Server() as server:
        _, warm = server.swarm(100, "--idle", "--prefix", "warm")
        before = bench.memory(server.pid)[0]
        _, line = server.swarm(n, "--idle", "--prefix", "idle")
        after = bench.memory(server.pid)[0]
        return (after - before) / n, after, line


def rounds(n, count):
    with bench.Server() as server:
        swarm, _ = server.swarm(n, "--features", "1", "--classes", "2")
        before = [bench.processor_seconds(pid) for pid in (server.pid, swarm.pid)]
        job = server.submit(bench.noop_job("noop", count, n, model=MODEL))
        server.mfl("wait", job)
        after = [bench.processor_seconds(pid) for pid in (server.pid, swarm.pid)]
        done = server.rounds(job)
        cpu = [(b - a) * 1e3 / count for a, b in zip(before, after)]
        times = sorted(r["committed_unix_ms"] for r in done)
        seconds = [r["seconds"] for r in done][1:]
        rate = (len(times) - 1) / ((times[-1] - times[0]) / 1000)
        return rate, seconds, cpu, bench.memory(server.pid)[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--idle", type=int, default=10000)
    parser.add_argument("--daemons", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    limit = bench.raise_files()
    if options.idle > limit - 200:
        print(f"only {limit} open files are allowed here: {limit - 200} idle daemons instead of {options.idle}")
        options.idle = limit - 200
    each, resident, line = idle(options.idle)
    print(f"idle daemons: {line}")
    bench.table(
        ["idle daemons", "bytes each", "server MB"], [[options.idle, f"{each:.0f}", f"{resident / 1e6:.1f}"]]
    )
    rate, seconds, cpu, peak = rounds(options.daemons, options.rounds)
    bench.table(
        ["daemons in rounds", "rounds", "rounds/s", "p50 ms", "p99 ms", "server cpu ms", "swarm cpu ms", "server MB"],
        [
            [
                options.daemons,
                options.rounds,
                f"{rate:.2f}",
                f"{bench.median(seconds) * 1e3:.1f}",
                f"{bench.percentile(seconds, 0.99) * 1e3:.1f}",
                *(f"{ms:.1f}" for ms in cpu),
                f"{peak / 1e6:.1f}",
            ]
        ],
    )


if __name__ == "__main__":
    main()
