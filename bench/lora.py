#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a round costs when only adapters move: char-gpt with all of it trained and with LoRA on its dense layers, two daemons of
one host that each upload for themselves (solo) and that add their updates in shared memory (shm).

    lora.py [--rounds 4] [--rank 4] [--steps 2] [--model char-gpt]

Every run is a server of its own. Of equal models the digests of the last round must be equal. Bytes are the server's count, a
round's median; the first round sends all params besides, which the median leaves out. `file` is a round's checkpoint, and
`written` what the kernel counts of the server's writes to disk (0 in memory), over the rounds; `server MB` its highest
resident memory."""

import argparse
import pathlib
import random

import benchlib as bench

WORDS = "the cat sat on a mat and ate his red hat while we ran far".split()


def write_text(folder):
    draw = random.Random(3)
    path = folder / "text.txt"
    path.write_text(" ".join(draw.choice(WORDS) for _ in range(2000)) + "\n", encoding="utf-8")
    return f"text=text:{path},length=80,test_fraction=0.1"


def job_text(rank, options):
    return f"""name: lora
seed: 5
rounds: {options.rounds}
model: {{preset: {options.model}{f", lora: {{rank: {rank}}}" if rank else ""}}}
data: {{name: text, partition: iid, clients: 4}}
training: {{lr: 0.05, steps: {options.steps}, batch: 2}}
evaluation: {{every: 0}}
selection: {{daemons: {{min: 2}}, assign: modulo}}
"""


def written(pid):
    for line in pathlib.Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    return 0


def measure(kind, rank, options):
    with bench.Server() as server, bench.Daemons(server.address, 2, kind, write_text(server.folder)) as daemons:
        bench.wait_until(lambda: len(server.mfl("daemons")["daemons"]) == len(daemons.pids), 60, "the daemons")
        before = written(server.pid)
        job = server.submit(job_text(rank, options))
        server.mfl("wait", job)
        info = server.mfl("show", job)
        rounds = info["rounds"]
        files = (server.folder / "state" / "jobs" / job).glob("round-*.safetensors")
        return {
            "up": bench.median(r["bytes_up"] for r in rounds), "down": bench.median(r["bytes_down"] for r in rounds),
            "file": max(f.stat().st_size for f in files), "written": (written(server.pid) - before) / options.rounds,
            "server": bench.memory(server.pid)[1],
            "digest": next(r["digest"] for r in rounds if r["round"] == options.rounds),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--model", default="char-gpt")
    options = parser.parse_args()
    rows, digests = [], {}
    for kind in ("solo", "shm"):
        whole = None
        for rank in (0, options.rank):
            m = measure(kind, rank, options)
            whole = whole or m
            rows.append([kind, f"rank {rank}" if rank else "all", f"{m['up'] / 1e6:.3f}", f"{m['down'] / 1e6:.3f}",
                         f"{(m['up'] + m['down']) / (whole['up'] + whole['down']):.3f}", f"{m['file'] / 1e6:.3f}",
                         f"{m['written'] / 1e6:.3f}", f"{m['server'] / 1e6:.1f}", m["digest"][:12]])
            digests.setdefault(rank, set()).add(m["digest"])
    bench.table(["daemons", "trained", "MB up", "MB down", "to all", "file MB", "written MB", "server MB", "digest"], rows)
    if any(len(d) != 1 for d in digests.values()):
        raise SystemExit("the digests differ")


if __name__ == "__main__":
    main()
