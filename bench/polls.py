#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What looking costs the server: CPU time of its loop for a poll of the dashboard, of the metrics, and for `mfl list`, by how many jobs
it knows.

    bench/polls.py [--jobs 1000 10000] [--polls 10]

The jobs have ended, each after one round of a swarm's daemon. A poll's time is that of the loop's thread (schedstat), from before the
request to after its answer, so that the time which a worker, the HTTP thread or the asker takes is not in it; the median of the polls. Pages
are asked for when the one before is too old to be sent again. `idle` is the same without a request, over 50 ms: beats and timers."""

import argparse
import pathlib
import socket
import statistics
import sys
import time
import urllib.request

import benchlib as bench

sys.path.insert(0, str(bench.BUILD / "python"))
import mfl  # noqa: E402

FRESH_S = 1.1  # a page is sent again for a second
PAGES = ("/api/jobs", "/", "/metrics", "/api/daemons", "/api/rounds")


def loop_ms(pid):
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e6


def fill(server, client, have, want):
    for i in range(have, want):
        client.submit(bench.noop_job(f"job-{i}", 1, 1))
    last = client.submit(bench.noop_job("last", 1, 1))
    client.wait(last)
    bench.wait_until(lambda: all(j.ended for j in client.list()), 600, "the end of all jobs")


def measure(server, work):
    before = loop_ms(server.pid)
    size = work()
    return loop_ms(server.pid) - before, size


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--polls", type=int, default=10)
    options = parser.parse_args()
    rows = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        http = "127.0.0.1:%d" % free.getsockname()[1]
    with bench.Server("--http", http) as server:
        client = mfl.connect(server.address, plain=True)
        server.swarm(1)
        have = 0
        for want in options.jobs:
            fill(server, client, have, want)
            have = want
            works = {p: (lambda p=p: len(urllib.request.urlopen("http://" + http + p).read())) for p in PAGES}
            works["mfl list"] = lambda: len(client.list())
            works["idle"] = lambda: time.sleep(0.05)
            found = {name: [] for name in works}
            for _ in range(options.polls):
                for name, work in works.items():
                    found[name].append(measure(server, work))
                time.sleep(FRESH_S)
            for name, seen in found.items():
                ms = [m for m, _ in seen]
                rows.append([want, name, f"{statistics.median(ms):.2f}", f"{max(ms):.2f}", seen[-1][1] or ""])
    bench.table(["jobs", "poll", "ms of the loop", "most", "bytes (list: jobs)"], rows)


if __name__ == "__main__":
    main()
