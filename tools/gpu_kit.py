#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs what `./dev gpu` runs into one folder, for a GPU machine without a network, compiler or libraries.

    gpu_kit.py BUILD_DIR KIT_DIR

The folder has the layout of a build folder, with the libraries that its programs need in lib/, where `./dev gpu --pack`
links them to look; except for the compiler's own and those of CUDA: the C library there must not be older than here, and
CUDA's (and NCCL, which is opened when it is first used) come from a toolkit or from Python's packages of it. There:
`./dev gpu --kit KIT_DIR` in a copy of these sources.
"""
import pathlib
import shutil
import subprocess
import sys

PROGRAMS = ["server/mfl-server", "client/mfl-client", "cli/mfl", "kernels/mfl-conformance", "bench/mfl-bench-device"]
MODULES = ["kernels/cuda/libmfl_cuda.so"]
STAYS = ("linux-vdso", "ld-linux", "libc.", "libm.", "libdl.", "libpthread.", "librt.", "libresolv.", "libcud",
         "libcublas", "libnccl", "libnv", "libnvidia", "libstdc++", "libgcc_s")


def needed(path):
    out = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        name, _, rest = line.strip().partition(" => ")
        if rest.startswith("/") and not name.startswith(STAYS):
            yield name, rest.split(" (")[0]


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    build, kit = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    libraries = {}
    for name in PROGRAMS + MODULES:
        if not (build / name).exists():
            raise SystemExit(f"{build / name} is not there: build with -Dcuda=enabled first")
        (kit / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(build / name, kit / name)
        subprocess.run(["strip", "--strip-debug", str(kit / name)], check=True)
        libraries.update(needed(build / name))
    (kit / "lib").mkdir(exist_ok=True)
    for name, path in libraries.items():
        shutil.copy2(path, kit / "lib" / name, follow_symlinks=True)
    size = sum(f.stat().st_size for f in kit.rglob("*") if f.is_file())
    print(f"{kit}: {len(PROGRAMS) + len(MODULES)} programs and modules, {len(libraries)} libraries, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
