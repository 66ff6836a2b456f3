#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each CUDA kernel takes of a multiprocessor, beside the table of what it may: kernels/cuda/resources.txt.

    gpu_resources.py BUILD_DIR            compares; names each kernel that grew, and ends with status 1
    gpu_resources.py BUILD_DIR --update   writes the table
    gpu_resources.py --self-test          compares made-up kernels with made-up tables

Registers, stack (a kernel that spills has one), static shared memory and the most threads of a block are read from the sm_90
code that ptxas left in the build's kernels/cuda/*.cu.o; blocks is how many fit a multiprocessor of an H100 by these numbers
(dynamic shared memory, which the launch asks for, is not among them; a kernel without a bound is taken with 256 threads). A
kernel may not take more stack or shared memory than the table says, nor fit fewer blocks, nor take more registers, but for the few
by which one source differs in two folders (their names enter the symbols: 215 and 217 were seen). Another release of ptxas deals
out registers in another way: then only stacks are compared. Status 77 where there is no such build.
"""
import argparse
import pathlib
import re
import struct
import sys

TABLE = pathlib.Path(__file__).resolve().parent.parent / "kernels/cuda/resources.txt"
HEAD = """# What each kernel may take on sm_90: tools/gpu_resources.py, which also writes this table (--update).
# {release}
# file:kernel registers stack shared threads blocks
"""
FIELDS = ("registers", "stack", "shared", "threads", "blocks")
ARCH = 90
BY_FOLDER = 4  # registers
FATBIN, KIND_ELF, COMPRESSED = 0xBA55ED50, 2, 0xA000
REGISTERS, FRAME, MAX_THREADS = 0x2F, 0x11, 0x05  # attributes of .nv.info


class Elf:
    def __init__(self, data):
        self.data = data
        begin = struct.unpack_from("<Q", data, 0x28)[0]
        n, names = struct.unpack_from("<HH", data, 0x3C)
        rows = [struct.unpack_from("<IIQQQQIIQQ", data, begin + 64 * i) for i in range(n)]
        at = rows[names][4]
        self.sections = {self.text(at + r[0]): r for r in rows}

    def text(self, at):
        return self.data[at:self.data.index(b"\0", at)].decode()

    def section(self, name):
        row = self.sections.get(name)
        return b"" if row is None or row[1] == 8 else self.data[row[4]:row[4] + row[5]]

    def symbols(self):
        table, strings = self.section(".symtab"), self.sections[".strtab"][4]
        return [self.text(strings + struct.unpack_from("<I", table, i)[0]) for i in range(0, len(table), 24)]


def attributes(data):
    """Of a .nv.info section: attribute, and its bytes."""
    at = 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        yield attribute, data[at + 4:at + 4 + size] if form == 4 else b""
        at += 4 + (size if form == 4 else 0)


def cubins(path):
    """The device code of an object file: architecture, bytes."""
    data = Elf(path.read_bytes()).section(".nv_fatbin")
    at = data.find(struct.pack("<I", FATBIN))
    while at >= 0:
        header, size = struct.unpack_from("<HQ", data, at + 6)
        entry, end = at + header, at + header + size
        while entry < end:
            kind, _, skip, length = struct.unpack_from("<HHIQ", data, entry)
            arch, flags = struct.unpack_from("<I", data, entry + 28)[0], struct.unpack_from("<Q", data, entry + 40)[0]
            if kind == KIND_ELF and arch == ARCH:
                if flags & COMPRESSED or data[entry + skip:entry + skip + 4] != b"\x7fELF":
                    raise SystemExit(f"{path.name}: its code is compressed: build with nvcc's --compress-mode none")
                yield data[entry + skip:entry + skip + length]
            entry += skip + length
        at = data.find(struct.pack("<I", FATBIN), end)


def plain(symbol):
    """sgd of _Z3sgd3sgd."""
    m = re.match(r"_ZN?(?:\d+_[A-Za-z0-9_]*?)?(\d+)", symbol)
    return symbol[m.end():m.end() + int(m.group(1))] if m else symbol


def blocks_of(registers, shared, threads):
    """How many blocks fit a multiprocessor of compute capability 9.0 (CUDA's guide, "Technical Specifications")."""
    warps = (threads + 31) // 32
    by_registers = 65536 // ((registers * 32 + 255) // 256 * 256) // 4 * 4 // warps
    return max(0, min(32, 64 // warps, by_registers, 233472 // (shared + 1024)))


def kernels_of(stem, data):
    elf = Elf(data)
    names, found = elf.symbols(), {}
    for attribute, value in attributes(elf.section(".nv.info")):
        if attribute in (REGISTERS, FRAME):
            symbol, number = struct.unpack("<II", value)
            name = names[symbol]
            if f".nv.info.{name}" in elf.sections:  # else a function that is not inlined
                found.setdefault(name, {"stack": 0})["registers" if attribute == REGISTERS else "stack"] = number
    for name, k in found.items():
        bounds = [v for a, v in attributes(elf.section(f".nv.info.{name}")) if a == MAX_THREADS]
        k["threads"] = struct.unpack("<I", bounds[0][:4])[0] if bounds else 256
        row = elf.sections.get(f".nv.shared.{name}")
        k["shared"] = max(0, row[5] - 1024) if row else 0  # CUDA keeps the first KiB for itself
        k["blocks"] = blocks_of(k["registers"], k["shared"], k["threads"])
    return {f"{stem}:{plain(name)}": k for name, k in found.items()}, elf


def release_of(elf):
    m = re.search(rb"Cuda compilation tools, release [^\0]*", elf.section(".note.nv.tkinfo"))
    return m.group().decode() if m else "ptxas of an unknown release"


def read_build(build):
    found, release = {}, None
    for path in sorted((build / "kernels/cuda").glob("*.cu.o")):
        for data in cubins(path):
            kernels, elf = kernels_of(path.name.removesuffix(".cu.o"), data)
            found.update(kernels)
            release = release_of(elf)
    return found, release


def read_table(text):
    rows = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, *numbers = line.split()
            rows[name] = dict(zip(FIELDS, map(int, numbers)))
    return rows, text.splitlines()[1].removeprefix("# ")


def write_table(found, release):
    rows = [f"{name} " + " ".join(str(found[name][f]) for f in FIELDS) for name in sorted(found)]
    return HEAD.format(release=release) + "\n".join(rows) + "\n"


def compare(found, rows, same_release):
    """What is wrong, and what is only smaller than the table says."""
    wrong, smaller = [], []
    for name in sorted(set(found) | set(rows)):
        if name not in rows or name not in found:
            wrong.append(f"{name}: " + ("is not in the table" if name in found else "is in the table, and not built"))
            continue
        for field in FIELDS if same_release else ("stack",):
            was, now = rows[name][field], found[name][field]
            grew = now < was if field == "blocks" else now != was if field == "threads" else now > was
            if field == "registers":
                grew = now > was + BY_FOLDER
            if grew:
                wrong.append(f"{name}: {field}: {was} in the table, {now} now")
            elif now < was or field == "blocks" and now > was:
                smaller.append(f"{name}: {field}: {was} in the table, {now} now")
    return wrong, smaller


def self_test():
    one = {"a:k": dict(zip(FIELDS, (40, 0, 0, 256, 6)))}
    text = write_table(one, "release 1")
    rows, release = read_table(text)
    assert rows == one and release == "release 1", text
    assert compare(one, rows, True) == ([], [])
    for field, value in (("registers", 41 + BY_FOLDER), ("stack", 8), ("shared", 16), ("blocks", 5), ("threads", 512)):
        wrong, _ = compare({"a:k": dict(one["a:k"], **{field: value})}, rows, True)
        assert len(wrong) == 1 and wrong[0].startswith(f"a:k: {field}: "), (field, wrong)
    assert compare({"a:k": dict(one["a:k"], registers=40 + BY_FOLDER)}, rows, True)[0] == []
    assert compare({"a:k": dict(one["a:k"], registers=41 + BY_FOLDER)}, rows, False) == ([], [])
    assert len(compare({"a:k": dict(one["a:k"], stack=8)}, rows, False)[0]) == 1
    assert len(compare({"a:k": dict(one["a:k"], registers=39)}, rows, True)[1]) == 1
    assert [len(compare(*pair, True)[0]) for pair in (({}, rows), (one, {}))] == [1, 1]
    assert plain("_Z3sgd3sgd") == "sgd" and plain("_Z15attend_keys_12814mfl_flash_args") == "attend_keys_128"
    # CUDA's occupancy calculator: 255 registers in 256 threads, 32 in 1024, one warp with a third of the shared memory
    assert [blocks_of(255, 0, 256), blocks_of(32, 0, 1024), blocks_of(24, 70000, 32)] == [1, 2, 3]
    print("gpu_resources: what grows is found")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", nargs="?")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    found, release = read_build(pathlib.Path(options.build or parser.error("which build?")))
    if not found:
        print(f"skipped: no code of sm_{ARCH} in {options.build}: meson setup with -Dcuda=enabled, where the CUDA Toolkit is")
        return 77
    if options.update:
        TABLE.write_text(write_table(found, release))
    rows, release_then = read_table(TABLE.read_text())
    wrong, smaller = compare(found, rows, release == release_then)
    for line in smaller:
        print(f"smaller  {line}")
    for line in wrong:
        print(f"WRONG    {line}")
    stacks = [name for name in found if found[name]["stack"]]
    print(f"{len(found)} kernels, {max(k['registers'] for k in found.values())} registers at most, {len(stacks)} with a stack; "
          f"{release}" + ("" if release == release_then else f"; the table is of {release_then}: only stacks were compared"))
    if wrong:
        print("if that is meant, say why and run tools/gpu_resources.py BUILD_DIR --update")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
