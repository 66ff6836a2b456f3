#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bytes of an update with `compression`, for each preset: compression.py [--models NAME ...] [--clients 4].

One daemon trains so many clients of made-up data for three rounds. The bytes are the server's count of the second and third round's
uploads, per parameter that moves; the ratios are to the column `plain`. The second table has one client, whose update travels alone, and what goes
down. In the first, clients count alike (`weighting: uniform`) with 16 and 8
bits, and by their samples with `8 bits, weighed`. The table below has the time to pack and unpack, from build/bench/bench_pack."""

import argparse
import subprocess

import benchlib as bench
import lora

IMAGES = {"logistic": "1,28,28", "mlp": "1,28,28", "lenet5": "1,28,28", "fedavg-cnn": "1,28,28", "pfl-cnn": "3,32,32",
          "resnet20": "3,32,32", "resnet18": "3,32,32", "mobilenet-v2": "3,32,32", "vit-tiny": "3,32,32"}
TEXTS = ["char-lstm", "char-gpt"]
KINDS = [("plain", "", ""), ("lossless", "compression: {up: lossless}\n", ""),
         ("16 bits", "compression: {up: {bits: 16}}\n", "aggregation: {weighting: uniform}\n"),
         ("8 bits", "compression: {up: {bits: 8}}\n", "aggregation: {weighting: uniform}\n"),
         ("8 bits, weighed", "compression: {up: {bits: 8}}\n", ""), ("bf16", "compression: {up: bf16}\n", "")]
ALONE = [("plain", ""), ("8 bits", "compression: {up: {bits: 8}}\n"), ("bf16", "compression: {up: bf16}\n"),
         ("down bf16", "compression: {down: bf16}\n"), ("both bf16", "compression: {up: bf16, down: bf16}\n"),
         ("top-k 5%", "compression: {up: {top_k: 0.05}}\n"), ("down 8 bits", "compression: {down: {bits: 8}}\n"),
         ("top-k 5%, down 8 bits", "compression: {up: {top_k: 0.05}, down: {bits: 8}}\n")]


def job_text(model, name, clients, more):
    """One client is a site: with a population, the server would cut its updates."""
    data = f"partition: iid, clients: {clients}" if clients > 1 else "partition: local"
    return f"""name: bytes
seed: 5
rounds: 3
model: {model}
data: {{name: {name}, {data}}}
training: {{lr: 0.02, momentum: 0.9, steps: 3, batch: 8}}
evaluation: {{every: 0}}
{more}"""


def measure(server, model, name, clients, more, way="bytes_up"):
    job = server.submit(job_text(model, name, clients, more))
    server.mfl("wait", job)
    info = server.mfl("show", job)
    return bench.median(r[way] for r in info["rounds"] if r["round"] > 1) / info["job"]["moving"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=[*IMAGES, *TEXTS])
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    rows, alone = [], []
    for model in options.models:
        with bench.Server() as server:
            data = lora.write_text(server.folder) if model in TEXTS else f"{model}=synthetic:{IMAGES[model]}:10:400:10:1"
            with bench.Daemons(server.address, 1, "solo", data, more=("--state-dir", f"{server.folder}/site")) as daemons:
                bench.wait_until(lambda: len(server.mfl("daemons")["daemons"]) == len(daemons.pids), 60, "the daemon")
                name = data.split("=")[0]
                found = [measure(server, model, name, options.clients, a + b) for _, a, b in KINDS]
                alone.append([model, *(f"{measure(server, model, name, 1, text, way):.2f}" for way in ("bytes_up", "bytes_down")
                                       for _, text in ALONE)])
        rows.append([model, *(f"{x:.2f}" for x in found), *(f"{x / found[0]:.3f}" for x in found[1:])])
    names = [k for k, _, _ in KINDS]
    bench.table(["bytes a parameter:", *names, *(f"{n}, ratio" for n in names[1:])], rows)
    print()
    bench.table(["one client, bytes a parameter:", *(f"{way} {n}" for way in ("up", "down") for n, _ in ALONE)], alone)
    print()
    subprocess.run([bench.program("bench/bench_pack")], check=True)


if __name__ == "__main__":
    main()
