# SPDX-License-Identifier: Apache-2.0
"""A model that was pulled: named tensors over one flat vector of floats."""
from __future__ import annotations

import hashlib
import math
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Tuple

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError, ProtocolError
from .records import Round

Floats = NDArray[np.float32]


class Tensor(NamedTuple):
    """A part of the flat vector."""

    name: str
    shape: Tuple[int, ...]
    offset: int


class Model(Mapping[str, Floats]):
    """{name: array}, in the order of the model's tensors. Arrays are views of `params`; layers that share a tensor share the array."""

    def __init__(self, job: str, round_: Round, text: str, params: Floats, tensors: List[Tensor]):
        """Raises ProtocolError if tensors don't cover params, or params don't have the digest of the round."""
        self.job = job
        self.round = round_
        self.text = text  # the job file
        self.params = params
        self.digest = hashlib.sha256(params.data).hexdigest()
        if self.digest != round_.digest:
            raise ProtocolError("the params were damaged on the way: their SHA-256 is %s, not the one that the server sent" % self.digest)
        self._arrays = self._cut(params, tensors)

    @staticmethod
    def _cut(params: Floats, tensors: List[Tensor]) -> Dict[str, Floats]:
        arrays: Dict[str, Floats] = {}
        covered, offsets = 0, set()
        for tensor in tensors:
            count = math.prod(tensor.shape)
            if tensor.offset == covered:
                covered += count
            elif tensor.offset not in offsets:
                raise ProtocolError("tensor %s: the server says that it is at %d, expected %d" % (tensor.name, tensor.offset, covered))
            if tensor.offset + count > len(params) or tensor.name in arrays:
                raise ProtocolError("tensor %s is beyond the params, or there twice" % tensor.name)
            offsets.add(tensor.offset)
            arrays[tensor.name] = params[tensor.offset:tensor.offset + count].reshape(tensor.shape)
        if covered != len(params):
            raise ProtocolError("the tensors have %d floats, the model %d" % (covered, len(params)))
        return arrays

    def __getitem__(self, name: str) -> Floats:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return "<mfl.Model %s round %d, %d tensors, %d params, %s>" % (self.job, self.round.round, len(self), len(self.params), self.digest[:12])

    def state_dict(self) -> Dict[str, Any]:
        """{name: torch.Tensor} that shares memory with `params`."""
        import torch
        return {name: torch.from_numpy(array) for name, array in self._arrays.items()}

    def into(self, target: Any) -> None:
        """Copies the model into a PyTorch module, or into a state_dict or dict of arrays: by name, in place. Every tensor of the model must
        be there with its shape, and nothing else but batch norms' num_batches_tracked. Raises ConfigError, and then target is as before."""
        found: Mapping[str, Any] = target.state_dict() if hasattr(target, "state_dict") else target
        rest = [name for name in found if name not in self._arrays and not name.endswith("num_batches_tracked")]
        missing = [name for name in self._arrays if name not in found]
        if rest or missing:
            raise ConfigError("the model of %s and the target differ: %s" % (self.job, "; ".join(
                what + " " + ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
                for what, names in (("the target lacks", missing), ("the model lacks", rest)) if names)))
        for name, array in self._arrays.items():
            if tuple(found[name].shape) != array.shape:
                raise ConfigError("tensor %s: the model's shape is %s, the target's %s" % (name, array.shape, tuple(found[name].shape)))
        for name, array in self._arrays.items():
            _copy(array, found[name])


def _copy(array: Floats, to: Any) -> None:
    if hasattr(to, "copy_"):
        import torch
        with torch.no_grad():
            to.copy_(torch.from_numpy(array))
    else:
        to[...] = array
