# SPDX-License-Identifier: Apache-2.0
"""Job files: a path, a text or a dict becomes the text that is sent."""
from __future__ import annotations

import json
import math
import os
from typing import Any, Mapping, Tuple, Union

from .errors import ConfigError

JobLike = Union[str, "os.PathLike[str]", Mapping[str, Any]]
_TEXT_MAX = 256 * 1024


def _plain(value: Any, key: str) -> Any:
    """Numbers of numpy become Python's; what no job file can say is refused by its key."""
    if hasattr(value, "item") and not isinstance(value, (str, bytes)) and getattr(value, "ndim", 0) == 0:
        value = value.item()
    if isinstance(value, Mapping):
        return {str(k): _plain(v, "%s.%s" % (key, k)) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, "%s[%d]" % (key, i)) for i, v in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError("job: %s: %r is no number that a job file can have" % (key, value))
    if value is not None and not isinstance(value, (str, int, float, bool)):
        raise ConfigError("job: %s: expected text, a number, True or False, a list or a dict, not %s" % (key, type(value).__name__))
    return value


def _from_dict(job: Mapping[str, Any]) -> str:
    """A line for each key at the top; the rest in flow style, which is JSON."""
    return "".join("%s: %s\n" % (key, json.dumps(_plain(value, str(key)), ensure_ascii=False)) for key, value in job.items())


def read_job(job: JobLike) -> Tuple[str, str]:
    """(text, name of the file for messages). A str with a line break, or that begins with "{", is a text; another one is a path."""
    if isinstance(job, Mapping):
        text, name = _from_dict(job), "job"
    elif isinstance(job, str) and ("\n" in job or job.lstrip().startswith("{")):
        text, name = job, "job"
    else:
        path = os.fspath(job)
        try:
            with open(path, encoding="utf-8") as f:
                text = f.read()
        except OSError as e:
            raise ConfigError("%s: %s (a text has a line break)" % (path, e.strerror)) from e
        except UnicodeDecodeError as e:
            raise ConfigError("%s: is no text in UTF-8: %s" % (path, e)) from e
        name = os.path.basename(path)
    if len(text.encode()) > _TEXT_MAX:
        raise ConfigError("%s: a job file has at most %d bytes" % (name, _TEXT_MAX))
    return text, name
