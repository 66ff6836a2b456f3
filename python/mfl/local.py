# SPDX-License-Identifier: Apache-2.0
"""What the program `mfl` does for a Client: a model's answers on this machine, how good they are, and model files, which it reads and
checks. Samples in memory travel in temporary files."""
from __future__ import annotations

import json
import os
import subprocess
import tempfile
from typing import Any, Dict, List, Type

import numpy as np

from .errors import ConfigError, Conflict, ConnectionLost, Denied, LimitReached, MflError, NotFound
from .model import Floats


_ERRORS: Dict[str, Type[MflError]] = {
    "not_found": NotFound, "conflict": Conflict, "limit": LimitReached, "unreachable": ConnectionLost, "refused": Denied}


def _start(command: List[str]) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    except OSError as e:
        raise ConfigError("%s: %s; install the command mfl, or say where it is with program=" % (command[0], e.strerror)) from e


def _run(command: List[str]) -> str:
    done = _start(command)
    if done.returncode:
        raise ConfigError(done.stderr.decode(errors="replace").strip() or "%s: it ended with status %d" % (command[0], done.returncode))
    return done.stdout.decode()


def _data(data: Any, folder: str, labels: Any) -> str:
    """What --data says: the text given, or an array as a file."""
    if isinstance(data, (str, os.PathLike)):
        if labels is not None:
            raise ConfigError("labels= goes with an array of samples; a file names its own")
        return os.fspath(data)
    path = os.path.join(folder, "samples.npy")
    np.save(path, np.ascontiguousarray(data))
    if labels is None:
        return "npy:" + path
    np.save(os.path.join(folder, "labels.npy"), np.ascontiguousarray(labels))
    return "npy:%s,train_y=%s" % (path, os.path.join(folder, "labels.npy"))


def run_predict(program: List[str], data: Any, logits: bool, precision: str) -> Floats:
    """program: the program, its options, and the model."""
    with tempfile.TemporaryDirectory(prefix="mfl-") as folder:
        out = os.path.join(folder, "answers.npy")
        _run([program[0], "predict", *program[1:], "--data", _data(data, folder, None), "--format", "npy", "-o", out, "--precision", precision,
              *(["--logits"] if logits else [])])
        answers: Floats = np.load(out)
        return answers


def run_evaluate(program: List[str], data: Any, labels: Any) -> Dict[str, Any]:
    """The object that `mfl evaluate --json` prints."""
    with tempfile.TemporaryDirectory(prefix="mfl-") as folder:
        text = _run([program[0], "evaluate", *program[1:], "--data", _data(data, folder, labels)])
        scores: Dict[str, Any] = json.loads(text)
        return scores


def run_validate(program: List[str], options: List[str]) -> Dict[str, Any]:
    """The report that `mfl validate --json FILE` prints, also if no site has answered. What the server or the file makes impossible comes
    as a line with the error's code (`mfl help json`)."""
    done = _start([program[0], "validate", *program[1:], *options])
    lines = [json.loads(line) for line in done.stdout.decode(errors="replace").splitlines() if line.startswith("{")]
    for line in lines:
        if "models" in line:
            report: Dict[str, Any] = line["models"][0]
            return report
    error = lines[-1].get("error", {}) if lines else {}
    text = error.get("text") or done.stderr.decode(errors="replace").strip() or "it ended with status %d" % done.returncode
    raise _ERRORS.get(error.get("code", ""), ConfigError)(text)
