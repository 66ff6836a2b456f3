#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks which part and which room may use which (DESIGN, 'Layout and dependencies'), and that no files go round in a circle.

check_layers.py [ROOT]        checks the tree
check_layers.py --print       prints the rooms and their directions
check_layers.py --self-test   checks the checker with planted violations
"""
import fnmatch
import os
import re
import sys

import rooms

PARTS = ["common", "proto", "kernels", "server", "client", "cli", "serve", "bench", "tests"]
# Which parts the files of a part may include. A program's parts see each other only over the wire.
MAY_USE = {
    "common": {"common"},
    "proto": {"proto", "common"},
    "kernels": {"kernels", "common"},
    "server": {"server", "proto", "kernels", "common"},
    "client": {"client", "proto", "kernels", "common"},
    "cli": {"cli", "proto", "kernels", "common"},
    "serve": {"serve", "proto", "kernels", "common"},
    "bench": set(PARTS) - {"tests"},
    "tests": set(PARTS),
}
# What the files of a room may use besides their own room. "x/*" is x and every room in it. Every room has its line, and no line
# makes a circle.
ROOMS = {
    "common/base": [],
    "common/exact": ["common/base"],
    "common/settings": ["common/base"],
    "common/model": ["common/base"],
    "common/measure": ["common/base"],
    "common/trace": ["common/base"],
    "common/tags": ["common/base", "common/model"],
    "common/plugin": ["common/base", "common/settings"],
    "common/job": ["common/base", "common/measure", "common/normalise", "common/plugin", "common/privacy", "common/secure", "common/settings", "common/model", "common/tags", "common/trace"],
    "common/method": ["common/base", "common/job", "common/model", "common/exact", "common/privacy", "common/secure"],
    "common/data": ["common/base", "common/settings", "common/model"],
    "common/partition": ["common/base", "common/data", "common/job", "common/exact"],
    "common/cohort": ["common/base", "common/job", "common/method", "common/trace", "common/exact"],
    "common/privacy": ["common/base", "common/settings"],
    "common/contract": ["common/base", "common/data", "common/job", "common/model"],
    "common/parallel": ["common/base"],
    "common/codec": ["common/base", "common/model"],
    "common/secure": ["common/base", "common/codec", "common/exact", "common/model", "common/settings"],
    "common/stats": ["common/base", "common/data", "common/model"],
    "common/normalise": ["common/base", "common/settings"],
    "proto/tls": ["common/base"],
    "proto": ["common/base", "common/model", "common/secure", "proto/tls"],
    "proto/json": ["common/base", "common/measure", "proto"],
    "proto/stats": ["common/base", "common/stats", "proto"],
    "proto/pull": ["common/*", "proto", "proto/json"],
    "kernels": ["common/*"],
    "kernels/mesh": ["common/base"],
    "kernels/team": ["common/*", "kernels", "kernels/mesh"],
    "kernels/reference": ["common/*", "kernels"],
    "kernels/cpu/base": ["common/*", "kernels"],
    "kernels/cpu/loops": ["common/model", "kernels", "kernels/cpu/base"],
    "kernels/cpu/loops/bf16": ["kernels/cpu/base", "kernels/cpu/loops"],
    "kernels/cpu": ["common/*", "kernels", "kernels/cpu/base", "kernels/cpu/loops"],
    "kernels/cuda/base": ["common/*", "kernels"],
    "kernels/cuda/recurrent": ["kernels/cuda/base"],
    "kernels/cuda/ops": ["common/base", "common/measure", "common/model", "kernels", "kernels/cuda/base", "kernels/cuda/recurrent"],
    "kernels/cuda/attention": ["kernels/cuda/base", "kernels/cuda/ops"],
    "kernels/cuda/conv": ["common/base", "kernels/cuda/base", "kernels/cuda/ops"],
    "kernels/cuda/nccl": ["common/base", "kernels", "kernels/cuda/base", "kernels/mesh"],
    "kernels/cuda/net": ["common/*", "kernels", "kernels/cuda/attention", "kernels/cuda/base", "kernels/cuda/conv", "kernels/cuda/ops"],
    "kernels/cuda": ["common/*", "kernels", "kernels/cuda/*"],
    "kernels/infer": ["common/*", "kernels"],
    "kernels/conformance": ["common/*", "kernels", "kernels/mesh", "kernels/team"],
    "server/strategy": ["common/*"],
    "server/robust": ["common/*"],
    "server/secure": ["common/*"],
    "server/state": ["common/*", "proto"],
    "server/work": ["common/*", "proto", "server/state"],
    "server/sum": ["common/*", "proto", "server/secure", "server/state", "server/work"],
    "server/live": ["common/*", "proto", "server/state"],
    "server/round": ["common/*", "proto", "server/live", "server/secure", "server/state", "server/sum", "server/work"],
    "server/core": ["common/*", "proto", "server/round", "server/state", "server/work"],
    "server/store": ["common/*", "proto"],
    "server/replica": ["common/*", "server/store"],
    "server/move": ["common/*", "server/store"],
    "server/cluster": ["common/*", "proto", "proto/tls", "server/replica", "server/store"],
    "server/runtime": ["common/*", "proto", "server/robust", "server/secure", "server/store", "server/strategy"],
    "server/config": ["common/*"],
    "server/loop": ["common/*", "server/core"],
    "server/observe": ["common/*", "proto", "server/core"],
    "server/jobs": ["common/*", "kernels", "proto", "server/core", "server/loop", "server/observe", "server/runtime", "server/secure", "server/store", "server/strategy"],
    "server/session": ["common/*", "proto", "proto/tls", "server/config", "server/loop"],
    "server/access": ["common/*", "proto", "server/core", "server/loop", "server/session", "server/store"],
    "server/transfer": ["common/*", "proto", "server/jobs", "server/loop", "server/runtime", "server/session"],
    "server/carrier": ["common/*", "proto", "server/config", "server/loop", "server/session", "server/state"],
    "server/relay": ["common/*", "proto", "proto/tls", "server/carrier", "server/config", "server/loop", "server/runtime", "server/session", "server/state", "server/transfer"],
    "server/models": ["common/*", "proto", "server/store"],
    "server/inquiry": ["common/*", "proto", "proto/stats", "server/core", "server/loop", "server/models", "server/runtime", "server/session", "server/store"],
    "server/daemons": ["common/*", "proto", "server/access", "server/core", "server/inquiry", "server/jobs", "server/loop", "server/observe", "server/runtime", "server/session", "server/store", "server/transfer"],
    "server/views": ["common/*", "proto", "server/access", "server/core", "server/daemons", "server/jobs", "server/loop", "server/session", "server/store"],
    "server/admin": ["common/*", "proto", "proto/tls", "server/access", "server/config", "server/core", "server/inquiry", "server/jobs", "server/loop", "server/models", "server/move", "server/runtime", "server/session", "server/store", "server/strategy", "server/transfer", "server/views"],
    "server/web": ["common/*", "proto", "proto/json", "proto/tls", "server/access", "server/config", "server/core", "server/daemons", "server/jobs", "server/loop", "server/observe", "server/session", "server/store", "server/views"],
    "server/shell": ["common/*", "proto", "server/*"],
    "client/agent": ["common/*", "proto"],
    "client/policy": ["common/*", "proto"],
    "client/secure": ["common/*"],
    "client/noise": ["common/*", "proto"],
    "client/inquiry": ["common/*", "kernels", "kernels/infer"],
    "client/node": ["common/*", "kernels", "kernels/mesh", "proto"],
    "client/peer": ["common/base", "kernels/mesh", "proto", "proto/tls"],
    "client/gpu": ["common/*", "kernels", "proto"],
    "client/data": ["common/*", "proto"],
    "client/plugin": ["common/*"],
    "client/program": ["common/*", "proto"],
    "client/keep": ["common/base"],
    "client/train": ["client/data", "client/keep", "client/node", "client/noise", "client/peer", "client/plugin", "client/program", "common/*", "kernels", "kernels/mesh", "kernels/team", "proto"],
    "client/link": ["client/agent", "client/data", "client/inquiry", "client/node", "client/noise", "client/policy", "client/secure", "client/train", "common/*", "proto", "proto/stats", "proto/tls"],
    "client/service": ["client/*", "common/*", "kernels", "proto", "proto/tls"],
    "cli/base": ["common/*", "proto/*"],
    "cli/view": ["cli/base", "common/*", "proto/*"],
    "cli/proof": ["common/*", "kernels"],
    "cli/onnx": ["cli/proof", "common/*"],
    "cli/onnx/nodes": ["cli/onnx", "common/*"],
    "cli/onnx/open": ["cli/onnx", "cli/onnx/nodes", "cli/proof", "common/*"],
    "cli/pki": ["cli/base", "common/*"],
    "cli/pull": ["cli/base", "cli/onnx/*", "cli/view", "common/*", "proto/*"],
    "cli/job": ["cli/base", "cli/onnx/*", "cli/proof", "common/*", "kernels", "kernels/mesh", "kernels/team", "proto/*"],
    "cli/login": ["cli/base", "common/*", "proto/*"],
    "cli/many": ["cli/base", "cli/view", "common/*", "proto/*"],
    "cli/predict": ["cli/base", "cli/job", "cli/onnx/*", "cli/pull", "cli/view", "common/*", "kernels", "kernels/infer", "proto/*"],
    "cli/sites": ["cli/base", "cli/pull", "common/*", "proto/*"],
    "cli/run": ["cli/base", "cli/job", "cli/pull", "cli/view", "common/*", "proto/*"],
    "cli/commands": ["cli/*", "common/*", "kernels", "proto/*"],
    "serve/http": ["common/base", "proto", "proto/tls"],
    "serve/kserve": ["common/base", "serve/http"],
    "serve/batch": ["common/base"],
    "serve/engine": ["common/*", "kernels", "kernels/infer", "serve/batch", "serve/kserve"],
    "serve/follow": ["common/*", "proto", "proto/tls", "proto/pull"],
    "serve/shell": ["common/*", "proto", "proto/tls", "serve/*"],
}
FILES_MAX = 30  # of C in a folder
LINES_MAX = 600  # of a file
FUNCTION_MAX = 70  # lines of a function
# A library's headers: who may include them. Tests and bench may include all of them.
LIBRARIES = [
    (r"(cuda|cudnn|cublas|cublasLt|curand|nvrtc|driver_types|vector_types).*\.h(pp)?$|cuda/.*",
     ["kernels/cuda/*", "client/node/collective_nccl*"], "CUDA"),
    (r"nccl.*\.h$", ["kernels/cuda/*", "client/node/collective_nccl*"], "NCCL"),
    (r"openssl/.*", ["common/base/digest.c", "common/privacy/secret.c", "common/secure/crypto.c", "proto/tls/tls.c", "proto/tls/tls_ask.c", "proto/tls/tls_files.c", "proto/tls/tls_internal.h", "proto/tls/tls_sign.c",
     "cli/pki/pki_x509.c"], "OpenSSL"),
    (r"sqlite3.*\.h$", ["server/store/*.c"], "SQLite"),
    (r"yaml\.h$", ["common/settings/yaml.c"], "libyaml"),
    (r"isa-l(\.h|/.*)$", ["common/base/crc32c.c"], "ISA-L"),
    (r"(dnnl|oneapi/).*", ["kernels/cpu/*"], "oneDNN"),
    (r"jansson\.h$", ["common/contract/*", "common/model/safetensors.c", "cli/*", "proto/json/*", "server/cluster/etcd.c"], "jansson"),
    (r"curl/.*", ["server/cluster/etcd.c"], "libcurl"),
    (r"systemd/.*", ["common/base/systemd.c"], "libsystemd"),
    (r"microhttpd\.h$", ["server/web/http*.c"], "libmicrohttpd"),
    (r"http_parser\.h$", ["serve/http/parse.*"], "http-parser"),
]
# Cores decide and do nothing else: no loop, no clock, no files, no threads.
CORES = ["server/inquiry/gates.[ch]", "server/inquiry/plan.[ch]", "server/relay/relay_core.[ch]", "server/relay/relay_fill.c", "server/relay/relay_group.c", "server/relay/relay_internal.h", "server/relay/relay_out.c",
         "serve/batch/*", "server/robust/*", "server/secure/*", "client/secure/*", "server/core/*", "server/live/*", "server/round/*", "server/state/*", "server/sum/*", "server/work/*", "client/agent/*"]
CORE_FORBIDDEN = {"uv.h", "time.h", "sys/time.h", "stdio.h", "unistd.h", "pthread.h", "threads.h"}
NO_UV = CORES + ["common/model/*", "common/data/*", "kernels/*"]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
SOURCE = (".c", ".h", ".cu", ".cuh")


def matches(path, patterns):
    return any(fnmatch.fnmatch(path, p) for p in patterns)


def check_include(path, quoted, header):
    """The rules that one include line breaks."""
    part = path.split("/")[0]
    target = header.split("/")[0]
    free = part in ("tests", "bench")
    if quoted and target in PARTS and target not in MAY_USE[part]:
        yield f"{part}/ may not use {target}/"
    # A core may include other cores' headers of its own side only; shells know the cores, never the reverse.
    if not free:
        for pattern, allowed, name in LIBRARIES:
            if not (quoted and target in PARTS) and re.match(pattern, header) and not matches(path, allowed):
                yield f"{name} may be included only in {', '.join(allowed)}"
        if header == "uv.h" and matches(path, NO_UV):
            yield "libuv may not be used here"
        if header in CORE_FORBIDDEN - {"uv.h"} and matches(path, CORES):
            yield "a pure core has no I/O, clock or threads"
    if quoted and "/" not in header and not matches(header, ["*.pb-c.h"]):
        yield "includes name the path from the top ('common/base/base.h')"


def check_text(path, text):
    text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
    for m in INCLUDE.finditer(text):
        line = text.count("\n", 0, m.start(1)) + 1
        for rule in check_include(path, m.group(1) == '"', m.group(2)):
            yield f"{path}:{line}: {m.group(2)}: {rule}"


def sources(root):
    for part in PARTS:
        for folder, _, files in os.walk(os.path.join(root, part)):
            for name in sorted(files):
                if name.endswith(SOURCE):
                    yield os.path.relpath(os.path.join(folder, name), root)


def read_tree(root):
    texts = {}
    for path in sources(root):
        with open(os.path.join(root, path), encoding="utf-8") as f:
            texts[path] = f.read()
    return texts


def check_tree(texts):
    found = [line for path, text in texts.items() for line in check_text(path, text)]
    house = {path: text for path, text in texts.items() if path.split("/")[0] not in ("bench", "tests")}
    uses = rooms.read_uses(house)
    return found + [*check_table(), *check_rooms(uses), *check_circles(uses), *check_sizes(house)], house, uses


def may_use(room, other):
    return any(fnmatch.fnmatch(other, p) or other == p.removesuffix("/*") for p in ROOMS.get(room, []))


def check_rooms(uses):
    """Uses between rooms that no line of ROOMS allows."""
    for room, others in sorted(rooms.between_rooms(uses).items()):
        if room not in ROOMS:
            yield f"{room}/: no line in ROOMS says what this room may use"
            continue
        for other, edges in sorted(others.items()):
            for path, target, name in edges if not may_use(room, other) else []:
                yield f"{path}: uses {target} ({name}): {room}/ may not use {other}/"


def check_table():
    """Circles in ROOMS itself."""
    edges = {room: {other for other in ROOMS if other != room and may_use(room, other)} for room in ROOMS}
    for circle in rooms.circles(ROOMS, edges):
        yield f"ROOMS: {', '.join(sorted(circle))} may use each other"


def check_circles(uses):
    """Files that use each other in a circle, but pairs that are one module."""
    for circle in rooms.circles(uses, uses):
        if rooms.is_pair(circle):
            continue
        files = sorted(circle)
        yield f"{files[0]}: {len(files)} files use each other in a circle: {' '.join(files)}"


def check_sizes(sources):
    for room in sorted({rooms.room_of(path) for path in sources}):
        n = sum(rooms.room_of(path) == room for path in sources)
        if n > FILES_MAX:
            yield f"{room}/: {n} files of C, at most {FILES_MAX}"
    for path, text in sources.items():
        if text.count("\n") > LINES_MAX:
            yield f"{path}: {text.count(chr(10))} lines, at most {LINES_MAX}"
        for body in re.finditer(r"^\{\n.*?^\}$", text, re.M | re.S):
            n = body.group().count("\n") + 1
            if n > FUNCTION_MAX:
                yield f"{path}:{text.count(chr(10), 0, body.start()) + 1}: a function of {n} lines, at most {FUNCTION_MAX}"


def print_rooms(sources, uses):
    between = rooms.between_rooms(uses)
    for room in ROOMS:
        others = sorted(between[room])
        n = sum(rooms.room_of(path) == room for path in sources)
        print(f"{room} ({n} files)" + (": " + ", ".join(others) if others else ""))


SELF_TEST_BAD = [
    ("common/x.c", '"proto/frame.h"'), ("common/model/x.c", '"kernels/backend.h"'),
    ("proto/x.c", '"server/core/core.h"'), ("kernels/cpu/x.c", '"proto/frame.h"'),
    ("server/x.c", '"client/agent/agent.h"'), ("client/x.c", '"server/core/core.h"'), ("cli/x.c", '"server/store/store.h"'),
    ("cli/x.c", '"client/agent/agent.h"'), ("bench/x.c", '"tests/lib/test.h"'), ("server/x.c", '"cli/x.h"'),
    ("client/x.c", "<cuda_runtime.h>"), ("kernels/cpu/x.c", "<cudnn.h>"), ("server/x.c", "<nccl.h>"),
    ("client/x.c", "<cublas_v2.h>"), ("common/x.c", "<openssl/evp.h>"), ("server/tls.c", "<openssl/ssl.h>"),
    ("server/core/core.c", "<sqlite3.h>"), ("common/job/job.c", "<yaml.h>"), ("proto/frame.c", "<isa-l.h>"),
    ("proto/frame.c", "<isa-l/crc.h>"), ("kernels/reference/x.c", "<dnnl.h>"),
    ("client/x.c", "<oneapi/dnnl/dnnl.h>"), ("common/job/job.c", "<jansson.h>"), ("client/x.c", "<jansson.h>"),
    ("server/x.c", "<systemd/sd-daemon.h>"),
    ("server/core/core.c", "<uv.h>"), ("server/round/round_close.c", "<uv.h>"), ("server/round/scheduler.h", "<uv.h>"),
    ("client/agent/agent.c", "<uv.h>"), ("common/model/graph.c", "<uv.h>"), ("common/data/x.c", "<uv.h>"),
    ("kernels/cpu/x.c", "<uv.h>"), ("server/core/core.c", "<time.h>"), ("server/round/round.c", "<stdio.h>"),
    ("client/agent/agent.c", "<unistd.h>"), ("server/round/scheduler.c", "<pthread.h>"), ("server/x.c", '"store.h"'),
]
SELF_TEST_GOOD = [
    ("server/x.c", '"kernels/backend.h"'), ("client/x.c", '"proto/frame.h"'), ("cli/x.c", '"proto/frame.h"'),
    ("tests/sim/x.c", '"server/core/core.h"'), ("tests/unit/x.c", "<sqlite3.h>"), ("bench/x.c", '"client/agent/agent.h"'),
    ("kernels/cuda/x.cu", "<cudnn.h>"), ("client/node/collective_nccl.c", "<nccl.h>"), ("server/store/store_sql.c", "<sqlite3.h>"),
    ("common/base/digest.c", "<openssl/evp.h>"), ("common/base/systemd.c", "<systemd/sd-daemon.h>"), ("common/settings/yaml.c", "<yaml.h>"), ("common/job/job.c", '"common/settings/yaml.h"'),
    ("server/loop/loop.h", "<uv.h>"), ("common/base/worker.h", "<uv.h>"), ("server/loop/loop.c", "<time.h>"),
    ("server/core/core.c", "<string.h>"), ("common/model/safetensors.c", "<jansson.h>"), ("cli/x.c", "<jansson.h>"),
    ("proto/x.c", '"mfl.pb-c.h"'),
]


def self_test_rooms():
    """Plants a circle of three files, a use of a room above, and a pair that is one module."""
    def text(name, called=""):
        return f"int {name}(void)\n{{\n        return {called}();\n}}\n" if called else f"int {name}(void)\n{{\n        return 0;\n}}\n"

    def found(files):
        uses = rooms.read_uses(files)
        return list(check_rooms(uses)) + list(check_circles(uses))
    ring = {"proto/a.c": text("mfl_a", "mfl_b"), "proto/b.c": text("mfl_b", "mfl_c"), "proto/c.c": text("mfl_c", "mfl_a")}
    assert len(found(ring)) == 1 and "3 files" in found(ring)[0], found(ring)
    ring["proto/c.c"] = text("mfl_c")
    assert not found(ring), found(ring)
    pair = {"proto/a.c": text("mfl_a", "mfl_b"), "proto/a_check.c": text("mfl_b", "mfl_a"), "proto/a.h": "int mfl_a(void);\n"}
    assert not found(pair), found(pair)
    up = {"common/base/a.c": '/* "x" */\n' + text("mfl_a", "mfl_b"), "common/job/b.c": text("mfl_b")}
    assert len(found(up)) == 1 and "common/base/ may not use common/job/" in found(up)[0], found(up)
    up["common/base/a.c"] += "static int mfl_b(void)\n{\n        return 0;\n}\n"
    assert not found(up), found(up)
    assert found({"server/attic/a.c": '#include "server/attic/../b.h"\n', "common/base/b.c": "",
                  "server/attic/c.c": text("mfl_c", "mfl_d"), "common/base/d.c": text("mfl_d")})
    assert not list(check_table())
    long = {"proto/a.c": "int mfl_a(void)\n{\n" + "        x();\n" * (FUNCTION_MAX - 1) + "}\n"}
    assert len(list(check_sizes(long))) == 1 and not list(check_sizes({"proto/a.c": long["proto/a.c"].replace("        x();\n", "", 1)}))


def self_test():
    self_test_rooms()
    for path, header in SELF_TEST_BAD:
        found = list(check_text(path, f"/* x */\n\n  #  include {header}\n"))
        assert found and found[0].startswith(f"{path}:3: "), (path, header, found)
    for path, header in SELF_TEST_GOOD:
        assert not list(check_text(path, f"#include {header}\n")), (path, header)
    assert not list(check_text("common/x.c", '/*\n#include "server/core/core.h"\n*/\n'))
    print(f"layers: self-test: {len(SELF_TEST_BAD)} violations found, {len(SELF_TEST_GOOD)} good lines passed")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    root = next((a for a in sys.argv[1:] if a != "--print"), os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    texts = read_tree(root)
    found, house, uses = check_tree(texts)
    if "--print" in sys.argv:
        print_rooms(house, uses)
    for line in found:
        print(line)
    print(f"layers: {len(texts)} files in {len(ROOMS)} rooms, {len(found)} violations")
    return 1 if found or not texts else 0


if __name__ == "__main__":
    sys.exit(main())
