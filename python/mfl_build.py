# SPDX-License-Identifier: Apache-2.0
"""Builds the package `mfl`: setuptools, after writing mfl/_built.py from proto/mfl.proto, proto/version.h and meson.build.

    pip install ./python, pip wheel ./python      call the functions of PEP 517 below
    mfl_build.py --tree DIR                       a folder to import from, for tests: DIR/mfl and DIR/mfl_export.py

Messages come from the protocol's description as protoc compiles it (a FileDescriptorSet), so that one package works with every
protobuf runtime; what protoc writes for Python works only with runtimes of its own generation. Takes `protoc` or `protoc-c` (Debian:
protobuf-c-compiler, which the C programs need as well); else pip brings grpcio-tools.
"""
import argparse
import base64
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(HERE)
PROTO = os.path.join(TOP, "proto", "mfl.proto")
BUILT = os.path.join(HERE, "mfl", "_built.py")


def _compilers():
    for name in ("protoc", "protoc-c"):
        if shutil.which(name):
            yield [name]
    if importlib.util.find_spec("grpc_tools"):
        yield [sys.executable, "-m", "grpc_tools.protoc"]


def _describe():
    """The FileDescriptorSet of proto/mfl.proto."""
    said = []
    for compiler in _compilers():
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "mfl.pb")
            done = subprocess.run([*compiler, "--proto_path=" + os.path.dirname(PROTO), "--descriptor_set_out=" + out, PROTO],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if done.returncode == 0:
                with open(out, "rb") as f:
                    return f.read()
            said.append("%s: %s" % (compiler[-1], done.stdout.strip()))
    raise SystemExit("mfl: can't compile proto/mfl.proto: " + ("; ".join(said) or "there is no protoc; on Debian: apt-get install "
                     "protobuf-c-compiler; elsewhere: pip install grpcio-tools"))


def _find(pattern, *path):
    with open(os.path.join(TOP, *path), encoding="utf-8") as f:
        return re.search(pattern, f.read(), re.M)[1]


def _built_text():
    lines = "\n".join('    b"%s"' % part for part in textwrap.wrap(base64.b64encode(_describe()).decode(), 120))
    return "\n".join((
        "# SPDX-License-Identifier: Apache-2.0",
        '"""Made by mfl_build.py from proto/mfl.proto; do not edit."""',
        'VERSION = "%s"' % _find(r"^  version: '(.*)',", "meson.build"),
        "PROTOCOL_MIN = %s" % _find(r"^#define MFL_PROTOCOL_MIN (\d+)", "proto", "version.h"),
        "PROTOCOL_MAX = %s" % _find(r"^#define MFL_PROTOCOL_MAX (\d+)", "proto", "version.h"),
        "# A FileDescriptorSet, in base64.",
        "DESCRIPTOR = (\n%s\n)\n" % lines))


def write_built(path=BUILT):
    """Where the tree's proto/ is not (a source distribution), the file that came along is kept."""
    if not os.path.exists(PROTO):
        if not os.path.exists(path):
            raise SystemExit("mfl: neither %s nor %s is there: build in a clone of the whole tree" % (PROTO, path))
        return
    text = _built_text()
    with open(path, "w", encoding="ascii") as f:
        f.write(text)


# ---- PEP 517 ----

def _backend():
    from setuptools import build_meta
    return build_meta


def _requires(own):
    return list(own) + ([] if any(True for _ in _compilers()) or not os.path.exists(PROTO) else ["grpcio-tools"])


def get_requires_for_build_wheel(config_settings=None):
    return _requires(["wheel"])


def get_requires_for_build_sdist(config_settings=None):
    return _requires([])


def get_requires_for_build_editable(config_settings=None):
    return _requires(["wheel"])


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    write_built()
    return _backend().prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    write_built()
    # A left-over of another build would go into the wheel.
    shutil.rmtree(os.path.join(HERE, "build"), ignore_errors=True)
    return _backend().build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    write_built()
    return _backend().build_sdist(sdist_directory, config_settings)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    write_built()
    return _backend().build_editable(wheel_directory, config_settings, metadata_directory)


# ---- for tests ----

def make_tree(folder, depfile=None):
    package = os.path.join(folder, "mfl")
    os.makedirs(package, exist_ok=True)
    sources = [os.path.join(HERE, "mfl", n) for n in sorted(os.listdir(os.path.join(HERE, "mfl")))
               if n.endswith((".py", ".typed")) and n != "_built.py"]
    for path in sources:
        shutil.copyfile(path, os.path.join(package, os.path.basename(path)))
    shutil.copyfile(os.path.join(HERE, "mfl_export.py"), os.path.join(folder, "mfl_export.py"))
    write_built(os.path.join(package, "_built.py"))
    if depfile:
        with open(depfile, "w", encoding="utf-8") as f:
            f.write("python/mfl_export.py: %s\n" % " ".join([*sources, PROTO, os.path.join(HERE, "mfl_export.py"), os.path.join(TOP, "proto", "version.h")]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", metavar="DIR", required=True)
    parser.add_argument("--depfile")
    arguments = parser.parse_args()
    make_tree(arguments.tree, arguments.depfile)
