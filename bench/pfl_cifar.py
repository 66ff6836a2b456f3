#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pfl-research's CIFAR-10 benchmark as a whole job, through a server and its daemons on this machine.

    pfl_cifar.py [--rounds 1500] [--backend cuda] [--precision fp32] [--fast] [--fuse auto] [--daemons 1] [--data DIR]

DIR holds CIFAR-10's binary files (data_batch_1.bin ...); $MFL_CIFAR10_DIR stands in for --data. Without them the images are
made up, in the same number and shape: then the time is that of the same work, and the accuracy means nothing and is not
printed. Prints one line of JSON: seconds from submission to the end of the job, seconds a round (median), rounds a second,
accuracy, CPU seconds of the server and of the daemons, and the server's share of them.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import benchlib as bench

HERE = pathlib.Path(__file__).resolve().parent


def job_text(options):
    text = (HERE / "pfl-cifar.yaml").read_text()
    training = f"training: {{lr: 0.1, epochs: 1, batch: 10, precision: {options.precision}, fuse: {options.fuse}, "
    training += f"fast: {'true' if options.fast else 'false'}}}"
    lines = []
    for line in text.splitlines():
        if line.startswith("rounds:"):
            line = f"rounds: {options.rounds}"
        elif line.startswith("training:"):
            line = training
        lines.append(line)
    return "\n".join(lines) + "\n"


def data_option(folder):
    if folder:
        return f"cifar10=cifar10:{folder}"
    return "cifar10=synthetic:3,32,32:10:50000:10000:1"


def cpu_seconds(pid):
    """Of all its threads, by the kernel's count."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_daemons(server, options):
    command = [bench.program("client/mfl-client"), "--server", server.address, "--backend", options.backend, "--data",
               data_option(options.data), "--exit-with-stdin", "--log-level", "warn"]
    if options.daemons > 1:  # a core each
        command += ["--workers", "1"]
    return [subprocess.Popen(command + ["--name", f"d{i}"], stdin=subprocess.PIPE) for i in range(options.daemons)]


def wait_daemons(server, clients):
    begin = time.monotonic()
    while len(server.mfl("daemons")["daemons"]) < len(clients):
        for client in clients:
            if client.poll() is not None:
                raise SystemExit(f"the daemon ended with status {client.returncode}")
        if time.monotonic() - begin > 120:
            raise SystemExit("daemons are missing after 120 s")
        time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--fuse", default="auto")
    parser.add_argument("--daemons", type=int, default=1)
    parser.add_argument("--data", default=os.environ.get("MFL_CIFAR10_DIR"))
    options = parser.parse_args()
    with bench.Server() as server:
        clients = start_daemons(server, options)
        try:
            wait_daemons(server, clients)
            begin, pids = time.monotonic(), [server.pid] + [client.pid for client in clients]
            before = [cpu_seconds(pid) for pid in pids]
            job = server.submit(job_text(options))
            server.mfl("wait", job)
            seconds = time.monotonic() - begin
            cpu = [cpu_seconds(pid) - b for pid, b in zip(pids, before)]
            rounds = server.rounds(job)
        finally:
            for client in clients:
                client.stdin.close()
                client.wait(30)
    evaluated = [r for r in rounds if r.get("accuracy") is not None]
    print(json.dumps({
        "bench": "pfl-cifar", "backend": options.backend, "precision": options.precision, "fast": options.fast,
        "rounds": options.rounds, "data": "CIFAR-10" if options.data else "made up", "seconds": round(seconds, 2),
        "round_ms": round(1000 * statistics.median(r["seconds"] for r in rounds), 2),
        "daemons": options.daemons, "rounds_s": round(options.rounds / seconds, 3),
        "server_cpu_s": round(cpu[0], 2), "daemons_cpu_s": round(sum(cpu[1:]), 2),
        "server_share": round(cpu[0] / max(1e-9, sum(cpu)), 4),
        "accuracy": evaluated[-1]["accuracy"] if options.data and evaluated else None,
    }))


if __name__ == "__main__":
    main()
