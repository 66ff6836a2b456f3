# SPDX-License-Identifier: Apache-2.0
"""What a machine has of what `./dev gpu` needs: device, driver, libraries, programs, PyTorch."""
import ctypes
import functools
import glob
import os
import shutil
import subprocess
import sys


def library_folders():
    """Where the libraries of CUDA may be, besides the loader's own places: the toolkit, and Python's packages of it."""
    places = ["/usr/local/cuda/lib64"]
    if os.environ.get("CUDA_HOME"):
        places.append(os.path.join(os.environ["CUDA_HOME"], "lib64"))
    for base in set(sys.path) | set(python_sites()):
        places += glob.glob(os.path.join(base, "nvidia", "*", "lib"))
    return [p for p in places if os.path.isdir(p)]


@functools.cache
def torch_python():
    own = os.environ.get("TORCH_PYTHON")
    for name in [own] if own else ["python3", "/usr/bin/python3"]:
        if name and shutil.which(name) and not subprocess.run([name, "-c", "import torch"], capture_output=True).returncode:
            return shutil.which(name)
    return None


def python_sites():
    name = os.environ.get("TORCH_PYTHON") or shutil.which("python3")
    if not name:
        return []
    done = subprocess.run([name, "-c", "import sys; print('\\n'.join(sys.path))"], capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if line]


def loads(name, folders):
    for path in [os.path.join(f, name) for f in folders] + [name]:
        try:
            ctypes.CDLL(path)
            return path
        except OSError:
            continue
    return None


def report_machine(build, needed):
    """What is here, by name; printed. Second: whether the suite can run. needed: whether it needs a device."""
    folders = library_folders()
    smi = shutil.which("nvidia-smi")
    out = subprocess.run([smi, "-L"], capture_output=True, text=True).stdout.strip() if smi else ""
    rows = {"device": out or "none (nvidia-smi finds none)", "driver": loads("libcuda.so.1", []) or "missing: libcuda.so.1"}
    for name in ("libcudnn.so.9", "libcublasLt.so.13", "libnccl.so.2"):
        rows[name] = loads(name, folders) or "missing"
    for name in ("kernels/mfl-conformance", "bench/mfl-bench-device", "server/mfl-server", "client/mfl-client", "cli/mfl"):
        rows[name] = "built" if (build / name).exists() else f"missing in {build}"
    module = build / "kernels/cuda/libmfl_cuda.so"
    rows["libmfl_cuda.so"] = str(module) if module.exists() else f"missing in {build}"
    rows["compute-sanitizer"] = find_sanitizer() or "missing: no memory check"
    rows["PyTorch"] = torch_python() or "missing: no comparison; TORCH_PYTHON names its interpreter"
    for name, value in rows.items():
        print(f"{name:<26}{value}", flush=True)
    return rows, not needed or (bool(out) and module.exists() and not rows["libcudnn.so.9"].startswith("missing"))


def find_sanitizer():
    return shutil.which("compute-sanitizer") or next(iter(glob.glob("/usr/local/cuda*/bin/compute-sanitizer")), None)
