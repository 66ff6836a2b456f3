#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps docs/architecture.md true: its table of rooms is the checker's, and each step of its walks names a function that is there.

check_house.py [ROOT]        checks the page
check_house.py --fix         writes the table of rooms anew
check_house.py --self-test   checks the checker with planted faults
"""
import os
import re
import sys

import check_layers
import rooms

PAGE = "docs/architecture.md"
# What each room of check_layers.ROOMS is for, in the order of the page's table.
PURPOSE = {
    "common/base": "errors, memory, files, logs, digests, fixed-point sums, worker threads",
    "common/exact": "logarithms and powers with the same bits on every machine",
    "common/settings": "YAML files and their settings",
    "common/model": "the graph of a model, presets, safetensors files",
    "common/plugin": "shared objects that an administrator adds: loading and checking",
    "common/job": "job files: reading and checking",
    "common/method": "what strategies add to the mean of deltas: a file for each",
    "common/data": "data sets: reading, checking, splitting",
    "common/stats": "exact sums of data sets' values, and data sets with another scale",
    "common/normalise": "the key data.normalise of job files",
    "common/measure": "what evaluations add up, and the measures made of it",
    "common/tags": "daemons' tags, and conditions on them",
    "common/trace": "durations and availability of clients, as data of a job",
    "common/cohort": "which clients a round has",
    "common/privacy": "what differential privacy costs",
    "common/contract": "what a model expects of its input; model files",
    "common/secure": "secure sums: masks, shares, who shares with whom",
    "client/secure": "a daemon's side of a secure sum",
    "client/noise": "a site's clip and noise, on every update that leaves it",
    "server/secure": "the server's side of a secure sum",
    "common/parallel": "what a team of workers takes",
    "common/codec": "how updates are rounded and packed for their way to the server",
    "common/partition": "which client has which samples",
    "proto": "the protocol: messages, frames, streams",
    "proto/tls": "TLS: contexts, roles, signatures",
    "proto/json": "messages as JSON objects",
    "proto/stats": "statistics as messages",
    "proto/pull": "a model that a server has sent, as a model file",
    "kernels": "the table of functions that every backend fills in, and what backends share",
    "kernels/mesh": "collectives among the workers of a client",
    "kernels/team": "a training step on several workers",
    "kernels/reference": "the slow backend that the others are compared with",
    "kernels/cpu/base": "memory layouts and bf16 of the CPU backend",
    "kernels/cpu/loops": "inner loops, compiled once per instruction set",
    "kernels/cpu/loops/bf16": "products and convolutions of bfloat16, on tiles too",
    "kernels/cpu": "the CPU backend (oneDNN)",
    "kernels/cuda/base": "CUDA contexts, libraries, tuning",
    "kernels/cuda/recurrent": "recurrent layers in CUDA",
    "kernels/cuda/ops": "operators in CUDA",
    "kernels/cuda/attention": "attention in CUDA",
    "kernels/cuda/conv": "convolutions in CUDA",
    "kernels/cuda/nccl": "sums over GPUs (NCCL)",
    "kernels/cuda/net": "networks and training steps in CUDA",
    "kernels/cuda": "the CUDA backend: devices, data, params, sums",
    "kernels/infer": "a model file becomes outputs of rows",
    "kernels/conformance": "tests that compare a backend with the reference",
    "server/strategy": "how a round's updates become new params",
    "server/robust": "robust rules over the single updates of a round, and the attacks to test them with",
    "server/state": "core: daemons, jobs, tasks and their states",
    "server/work": "core: tasks, updates, slots, groups, presence",
    "server/live": "core: rounds of asynchronous jobs in real time",
    "server/sum": "core: one secure sum of a round, or of a bucket of its clients",
    "server/round": "core: rounds of a job, and the scheduler",
    "server/core": "core: one step from an event to actions",
    "server/store": "the state directory: SQLite and checkpoints",
    "server/replica": "the state directory of a server that follows its cluster's leader",
    "server/move": "a job that moves to another server: what each of the two must not forget",
    "server/cluster": "several servers on etcd: who leads, the log, models by digest",
    "server/runtime": "a job's memory and sums",
    "server/config": "the server's configuration",
    "server/loop": "feeds events to the core, in order",
    "server/observe": "histograms, the timeline, disk faults",
    "server/jobs": "carries out what the core orders for a job",
    "server/session": "connections: admission, greeting, sending",
    "server/models": "rows of the registry of models and of inquiries' reports",
    "server/inquiry": "questions to sites about their data",
    "server/access": "rules about daemons, refusals, rows of the audit",
    "server/transfer": "params to daemons, chunks of updates from daemons",
    "server/carrier": "the connections of relays, which carry those of daemons",
    "server/relay": "a relay: passes messages on, and adds updates; its core is pure",
    "server/daemons": "the connections of daemons",
    "server/views": "what people see of jobs and daemons",
    "server/admin": "requests of operators",
    "server/web": "pages, JSON and metrics over HTTP",
    "server/shell": "connects the rooms; opens, runs and closes the server",
    "client/agent": "core: tasks, params, uploads and groups of a daemon",
    "client/policy": "what the daemon's site takes part in, and its administrator's answers",
    "client/inquiry": "predictions that stay at the site",
    "client/node": "what daemons of one host share",
    "client/peer": "teams over several nodes: their port, and their mesh over TCP",
    "client/gpu": "choosing, locking and measuring GPUs",
    "client/data": "how a data set is divided, for the server",
    "client/keep": "what sites keep of their client from round to round",
    "client/plugin": "a daemon's plug-ins: filters of updates, formats of data sets",
    "client/program": "own training code: its supervisor, its limits, what is said to it",
    "client/train": "training and evaluating clients",
    "client/link": "the connection to a server, and the agent's actions",
    "client/service": "the daemon's program: options, configuration, supervision",
    "cli/base": "requests to a server, tables, reports",
    "cli/view": "views of jobs, daemons and nodes; watching",
    "cli/proof": "what mfl_export.py adds to ONNX files: reading, and replaying the proof",
    "cli/onnx": "values of an ONNX graph as layers; writing ONNX files",
    "cli/onnx/nodes": "the nodes of an ONNX graph: operators, and sequences of nodes that one layer stands for",
    "cli/onnx/open": "reads an ONNX file in a process without rights, as text for a job file",
    "cli/pki": "certificates",
    "cli/pull": "fetching models, rounds and events",
    "cli/job": "submitting jobs",
    "cli/login": "codes with which browsers log in",
    "cli/many": "several jobs at once: which ones, and how they compare",
    "cli/predict": "a model's answers for samples of a file, and what they are worth",
    "cli/sites": "statistics, validation and predictions at sites; the registry of models",
    "cli/run": "`mfl run`: a server and daemons for one job",
    "cli/commands": "the commands, their options and help",
    "serve/http": "HTTP/1.1 connections: parsing, pipelining, TLS, limits",
    "serve/kserve": "the Open Inference Protocol: paths, JSON and binary tensors",
    "serve/batch": "core: which requests are computed together, and which version answers",
    "serve/engine": "versions of models: loading, running, taking turns",
    "serve/follow": "a job whose rounds become model files",
    "serve/shell": "mfl-serve: configuration, what each path does, metrics, signals",
}
TABLE = re.compile(r"(<!-- rooms: made by tools/check_house.py --fix -->\n\n)(.*?)(\n\n<!-- end of rooms -->)", re.S)
# "1. `server/shell/session.c`: `on_chunk` ... `mfl_slot_put`": every name in the line but paths is a function of that file.
STEP = re.compile(r"^\d+\. `([\w/]+\.(?:c|cu|h))`:((?:[^\n]|\n(?= ))*)", re.M)


def table(house, uses):
    between = rooms.between_rooms(uses)
    lines = ["| room | what it is for | uses |", "|---|---|---|"]
    for room, purpose in PURPOSE.items():
        lines.append(f"| `{room}` | {purpose} | {', '.join(f'`{r}`' for r in sorted(between[room]))} |")
    return "\n".join(lines)


def check_purposes(purposes):
    for room in check_layers.ROOMS.keys() - purposes.keys():
        yield f"{room}/: PURPOSE in tools/check_house.py does not say what this room is for"
    for room in purposes.keys() - check_layers.ROOMS.keys():
        yield f"{room}/: PURPOSE in tools/check_house.py names a room that ROOMS does not have"


def defines(text, name):
    return re.search(rf"^[A-Za-z_][^\n;=]*\b{name}\([^;{{}}]*\)\s*\{{", text, re.M)


def check_walks(page, sources):
    steps = STEP.findall(page)
    if len(steps) < 10:
        yield f"{PAGE}: {len(steps)} steps of walks, and there are more"
    for path, text in steps:
        if path not in sources:
            yield f"{PAGE}: there is no {path}"
            continue
        names = [n for n in re.findall(r"`([^`]+)`", text) if re.fullmatch(r"[a-z]\w*", n)]
        if not names:
            yield f"{PAGE}: the step in {path} names no function"
        for name in names:
            if not defines(sources[path], name):
                yield f"{PAGE}: {path} has no function {name}"


def check(page, sources, uses):
    found = TABLE.search(page)
    if not found or found[2] != table(sources, uses):
        yield f"{PAGE}: the table of rooms is not the tree's: tools/check_house.py --fix"
    yield from check_purposes(PURPOSE)
    yield from check_walks(page, sources)


def self_test():
    source = {"server/a.c": "static int put(int x)\n{\n}\n\nstatic int only_declared(void);\n\n"
                            "struct s *mfl_get(int a,\n        int b)\n{\n        return call();\n}\n"}
    ten = "\n".join("1. `server/a.c`: `put` does it" for _ in range(10)) + "\n"
    assert not list(check_walks(ten, source))
    assert not list(check_walks(ten + "2. `server/a.c`: `mfl_get`, then\n   `put` with `NULL` and `server/b.c`\n", source))
    for bad, why in (("1. `server/a.c`: first `put`,\n   then `gone`\n", "no function gone"), ("1. `server/b.c`: `put`\n", "no server/b.c"),
                     ("1. `server/a.c`: it works\n", "names no function"), ("1. `server/a.c`: `call`\n", "no function call"),
                     ("1. `server/a.c`: `only_declared`\n", "no function only_declared")):
        found = list(check_walks(ten + bad, source))
        assert len(found) == 1 and why in found[0], (bad, found)
    assert len(list(check_walks("", source))) == 1
    uses = rooms.read_uses(source)
    assert any("--fix" in line for line in check("no table", source, uses))
    page = f"<!-- rooms: made by tools/check_house.py --fix -->\n\n{table(source, uses)}\n\n<!-- end of rooms -->\n\n{ten}"
    assert not list(check(page, source, uses))
    stale = page.replace("| `server/loop` |", "| `server/hall` |")
    assert [line for line in check(stale, source, uses) if "--fix" in line]
    assert not list(check_purposes(PURPOSE))
    without = {room: purpose for room, purpose in PURPOSE.items() if room != "server/loop"}
    assert [line.split(":")[0] for line in check_purposes(without)] == ["server/loop/"]
    assert [line.split(":")[0] for line in check_purposes({**PURPOSE, "server/attic": "dust"})] == ["server/attic/"]


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    fix = sys.argv[1:] == ["--fix"]
    root = sys.argv[1] if sys.argv[1:] and not fix else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    texts = check_layers.read_tree(root)
    house = {path: text for path, text in texts.items() if path.split("/")[0] not in ("bench", "tests")}
    uses = rooms.read_uses(house)
    with open(os.path.join(root, PAGE), encoding="utf-8") as f:
        page = f.read()
    if fix:
        page = TABLE.sub(lambda m: m[1] + table(house, uses) + m[3], page)
        with open(os.path.join(root, PAGE), "w", encoding="utf-8") as f:
            f.write(page)
    found = list(check(page, house, uses))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
