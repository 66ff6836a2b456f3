#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Daemons of one host, that add their updates in shared memory (shm) and that each upload their own (solo): bytes over TCP,
rounds a second and memory, for a model of 1.66 million parameters that is trained for one step of two samples a client.

    nodes.py [--daemons 1 2 4 8] [--rounds 12] [--clients 16] [--model fedavg-cnn] [--mbit 0]

Every run is a server of its own with the same job, so the last column, the digest of the last round, must be the same
everywhere. Bytes are the server's count, a round's median. Memory is sampled twenty times a second: the server's highest
resident memory, and the highest proportional share (Pss: a shared page counts once, over all that map it) of all daemons
together. --mbit N puts N Mbit/s between the daemons and the server, one line for all, as a network card would."""

import argparse
import pathlib
import socket
import threading
import time

import benchlib as bench


def job_text(options):
    return f"""name: nodes
seed: 5
rounds: {options.rounds}
model: {options.model}
data: {{name: images, partition: iid, clients: {options.clients}}}
training: {{lr: 0.01, steps: 1, batch: 2}}
evaluation: {{every: 0}}
selection: {{assign: modulo}}
"""


class Line:
    """TCP with so many bytes a second for all connections together, in each direction."""

    def __init__(self, target, rate):
        self.target, self.rate = target, rate
        self.free_at = [0.0, 0.0]
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        host, port = self.target.rsplit(":", 1)
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection((host, int(port)))
            for way, (source, sink) in enumerate(((near, far), (far, near))):
                threading.Thread(target=self._pump, args=(source, sink, way), daemon=True).start()

    def _pump(self, source, sink, way):
        try:
            while data := source.recv(1 << 16):
                with self.lock:
                    self.free_at[way] = max(self.free_at[way], time.monotonic()) + len(data) / self.rate
                    wait = self.free_at[way] - time.monotonic()
                if wait > 0:
                    time.sleep(wait)
                sink.sendall(data)
        except OSError:
            pass
        for s in (source, sink):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()


def proportional(pid):
    """Pss in bytes; 0 when the process has gone."""
    try:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class Sampler(threading.Thread):
    def __init__(self, pids):
        super().__init__(daemon=True)
        self.pids, self.highest, self.ended = pids, 0, threading.Event()
        self.start()

    def run(self):
        while not self.ended.wait(0.05):
            self.highest = max(self.highest, sum(proportional(pid) for pid in self.pids))


def measure(count, kind, options):
    with bench.Server() as server:
        line = Line(server.address, options.mbit * 1e6 / 8) if options.mbit else None
        address = line.address if line else server.address
        try:
            with bench.Daemons(address, count, kind, "images=synthetic:1,28,28:10:800:10:1", options.backend) as daemons:
                bench.wait_until(lambda: len(server.mfl("daemons")["daemons"]) == count, 60, f"{count} daemons")
                sampler = Sampler(daemons.pids)
                job = server.submit(job_text(options))
                server.mfl("wait", job)
                sampler.ended.set()
                sampler.join()
                rounds = server.rounds(job)
                resident = bench.memory(server.pid)[1]
        finally:
            if line:
                line.close()
    times = sorted(r["committed_unix_ms"] for r in rounds)
    return {
        "up": bench.median(r["bytes_up"] for r in rounds), "down": bench.median(r["bytes_down"] for r in rounds),
        "rate": (len(times) - 1) / ((times[-1] - times[0]) / 1000), "server": resident, "daemons": sampler.highest,
        "digest": rounds[-1]["digest"] if rounds[-1]["round"] == options.rounds else rounds[0]["digest"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--daemons", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--model", default="fedavg-cnn")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--mbit", type=float, default=0)
    options = parser.parse_args()
    rows, digests = [], set()
    for count in options.daemons:
        found = {kind: measure(count, kind, options) for kind in ("solo", "shm")}
        for kind, m in found.items():
            base = found["solo"]
            rows.append([f"{count} {kind}", f"{m['up'] / 1e6:.2f}", f"{m['down'] / 1e6:.2f}",
                         f"{(m['up'] + m['down']) / (base['up'] + base['down']):.3f}", f"{m['rate']:.2f}",
                         f"{m['rate'] / base['rate']:.2f}", f"{m['server'] / 1e6:.0f}", f"{m['daemons'] / 1e6:.0f}",
                         f"{m['daemons'] / base['daemons']:.2f}", m["digest"][:12]])
            digests.add(m["digest"])
    bench.table(["daemons", "MB up", "MB down", "to solo", "rounds/s", "to solo", "server MB", "daemons MB", "to solo",
                 "digest"], rows)
    if len(digests) != 1:
        raise SystemExit("the digests differ")


if __name__ == "__main__":
    main()
