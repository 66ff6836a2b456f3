#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks from the #include lines which part may use which (DESIGN, 'Layout and dependencies').

check_layers.py [ROOT]        checks the tree
check_layers.py --self-test   checks the checker with planted violations
"""
import fnmatch
import os
import re
import sys

PARTS = ["common", "proto", "kernels", "server", "client", "cli", "bench", "tests"]
# Which parts the files of a part may include. A program's parts see each other only over the wire.
MAY_USE = {
    "common": {"common"},
    "proto": {"proto", "common"},
    "kernels": {"kernels", "common"},
    "server": {"server", "proto", "kernels", "common"},
    "client": {"client", "proto", "kernels", "common"},
    "cli": {"cli", "proto", "kernels", "common"},
    "bench": set(PARTS) - {"tests"},
    "tests": set(PARTS),
}
# A library's headers: who may include them. Tests and bench may include all of them.
LIBRARIES = [
    (r"(cuda|cudnn|cublas|cublasLt|curand|nvrtc|driver_types|vector_types).*\.h(pp)?$|cuda/.*",
     ["kernels/cuda/*", "client/collective_nccl*"], "CUDA"),
    (r"nccl.*\.h$", ["kernels/cuda/*", "client/collective_nccl*"], "NCCL"),
    (r"openssl/.*", ["common/digest.c", "proto/tls.c", "proto/tls_files.c", "proto/tls_internal.h",
     "cli/pki_x509.c"], "OpenSSL"),
    (r"sqlite3.*\.h$", ["server/store*.c"], "SQLite"),
    (r"yaml\.h$", ["common/yaml.c"], "libyaml"),
    (r"isa-l(\.h|/.*)$", ["common/crc32c.c"], "ISA-L"),
    (r"(dnnl|oneapi/).*", ["kernels/cpu/*"], "oneDNN"),
    (r"jansson\.h$", ["common/model/safetensors.c", "cli/*", "server/*"], "jansson"),
    (r"systemd/.*", ["common/systemd.c"], "libsystemd"),
    (r"microhttpd\.h$", ["server/http*.c"], "libmicrohttpd"),
]
# Cores decide and do nothing else: no loop, no clock, no files, no threads.
CORES = ["server/core*", "server/round*", "server/scheduler*", "client/agent*"]
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
        yield "includes name the path from the top ('common/base.h')"


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


def check_tree(root):
    n, found = 0, []
    for path in sources(root):
        n += 1
        with open(os.path.join(root, path), encoding="utf-8") as f:
            found += check_text(path, f.read())
    return n, found


SELF_TEST_BAD = [
    ("common/x.c", '"proto/frame.h"'), ("common/model/x.c", '"kernels/backend.h"'),
    ("proto/x.c", '"server/core.h"'), ("kernels/cpu/x.c", '"proto/frame.h"'),
    ("server/x.c", '"client/agent.h"'), ("client/x.c", '"server/core.h"'), ("cli/x.c", '"server/store.h"'),
    ("cli/x.c", '"client/agent.h"'), ("bench/x.c", '"tests/lib/test.h"'), ("server/x.c", '"cli/x.h"'),
    ("client/x.c", "<cuda_runtime.h>"), ("kernels/cpu/x.c", "<cudnn.h>"), ("server/x.c", "<nccl.h>"),
    ("client/x.c", "<cublas_v2.h>"), ("common/x.c", "<openssl/evp.h>"), ("server/tls.c", "<openssl/ssl.h>"),
    ("server/core.c", "<sqlite3.h>"), ("common/job.c", "<yaml.h>"), ("proto/frame.c", "<isa-l.h>"),
    ("proto/frame.c", "<isa-l/crc.h>"), ("kernels/reference/x.c", "<dnnl.h>"),
    ("client/x.c", "<oneapi/dnnl/dnnl.h>"), ("common/job.c", "<jansson.h>"), ("client/x.c", "<jansson.h>"),
    ("server/x.c", "<systemd/sd-daemon.h>"),
    ("server/core.c", "<uv.h>"), ("server/round_close.c", "<uv.h>"), ("server/scheduler.h", "<uv.h>"),
    ("client/agent.c", "<uv.h>"), ("common/model/graph.c", "<uv.h>"), ("common/data/x.c", "<uv.h>"),
    ("kernels/cpu/x.c", "<uv.h>"), ("server/core.c", "<time.h>"), ("server/round.c", "<stdio.h>"),
    ("client/agent.c", "<unistd.h>"), ("server/scheduler.c", "<pthread.h>"), ("server/x.c", '"store.h"'),
]
SELF_TEST_GOOD = [
    ("server/x.c", '"kernels/backend.h"'), ("client/x.c", '"proto/frame.h"'), ("cli/x.c", '"proto/frame.h"'),
    ("tests/sim/x.c", '"server/core.h"'), ("tests/unit/x.c", "<sqlite3.h>"), ("bench/x.c", '"client/agent.h"'),
    ("kernels/cuda/x.cu", "<cudnn.h>"), ("client/collective_nccl.c", "<nccl.h>"), ("server/store_sql.c", "<sqlite3.h>"),
    ("common/digest.c", "<openssl/evp.h>"), ("common/systemd.c", "<systemd/sd-daemon.h>"), ("common/yaml.c", "<yaml.h>"), ("common/job.c", '"common/yaml.h"'),
    ("server/main.c", "<uv.h>"), ("common/worker.h", "<uv.h>"), ("server/main.c", "<time.h>"),
    ("server/core.c", "<string.h>"), ("common/model/safetensors.c", "<jansson.h>"), ("cli/x.c", "<jansson.h>"),
    ("proto/x.c", '"mfl.pb-c.h"'),
]


def self_test():
    for path, header in SELF_TEST_BAD:
        found = list(check_text(path, f"/* x */\n\n  #  include {header}\n"))
        assert found and found[0].startswith(f"{path}:3: "), (path, header, found)
    for path, header in SELF_TEST_GOOD:
        assert not list(check_text(path, f"#include {header}\n")), (path, header)
    assert not list(check_text("common/x.c", '/*\n#include "server/core.h"\n*/\n'))
    print(f"layers: self-test: {len(SELF_TEST_BAD)} violations found, {len(SELF_TEST_GOOD)} good lines passed")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    n, found = check_tree(root)
    for line in found:
        print(line)
    print(f"layers: {n} files, {len(found)} violations")
    return 1 if found or n == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
