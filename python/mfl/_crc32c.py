# SPDX-License-Identifier: Apache-2.0
"""CRC-32C (Castagnoli, reflected) with numpy.

Long data are cut into blocks, whose checksums are computed side by side, and joined in pairs: the checksum of a and b is that of a moved
on by as many zero bytes as b has, XOR that of b, if both begin with 0 instead of the usual ones. Moving on is linear over bits, so it is
four tables, one for each byte of the checksum.
"""
from __future__ import annotations

from functools import lru_cache
from typing import List, Union

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
_BLOCK = 1024  # bytes
_WIDTH = 8     # bytes per step of a block
_Words = NDArray[np.uint32]


def _first_table() -> _Words:
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (_POLYNOMIAL if n & 1 else 0)
        table.append(n)
    return np.array(table, dtype=np.uint32)


_TABLE = _first_table()
_LIST: List[int] = _TABLE.tolist()


@lru_cache(maxsize=None)
def _slices() -> _Words:
    """Row k: what a byte contributes k bytes later."""
    rows = [_TABLE]
    for _ in range(_WIDTH - 1):
        rows.append((rows[-1] >> 8) ^ _TABLE[rows[-1] & 255])
    return np.stack(rows)


def _move(tables: _Words, crc: _Words) -> _Words:
    moved: _Words = tables[0][crc & 255] ^ tables[1][crc >> 8 & 255] ^ tables[2][crc >> 16 & 255] ^ tables[3][crc >> 24]
    return moved


@lru_cache(maxsize=None)
def _zeros(doublings: int) -> _Words:
    """The tables that move a checksum on by _BLOCK * 2^doublings zero bytes."""
    if doublings:
        half = _zeros(doublings - 1)
        return np.stack([_move(half, row) for row in half])
    rows = np.stack([np.arange(256, dtype=np.uint32) << np.uint32(8 * k) for k in range(4)])
    for _ in range(_BLOCK):
        rows = (rows >> 8) ^ _TABLE[rows & 255]
    return np.asarray(rows, dtype=np.uint32)


def _blocks(words: NDArray[np.uint8]) -> _Words:
    """words: [n, _BLOCK]; the checksum of each row, all begun with 0."""
    slices = _slices()
    crc = np.zeros(len(words), dtype=np.uint32)
    columns = np.ascontiguousarray(words.T)
    for at in range(0, _BLOCK, _WIDTH):
        step = [columns[at + k] ^ (crc >> np.uint32(8 * k) & np.uint32(255)) if k < 4 else columns[at + k] for k in range(_WIDTH)]
        crc = slices[_WIDTH - 1][step[0]]
        for k in range(1, _WIDTH):
            crc ^= slices[_WIDTH - 1 - k][step[k]]
    return crc


def crc32c(data: Union[bytes, bytearray, memoryview]) -> int:
    """The checksum of bytes."""
    array = np.frombuffer(data, dtype=np.uint8)
    n = len(array) // _BLOCK
    state = 0xFFFFFFFF
    if n > 1:
        rows = array[:n * _BLOCK].reshape(n, _BLOCK).copy()
        rows[0, :4] ^= 255  # as if it had begun with ones
        crc = _blocks(rows)
        doublings = 0
        while len(crc) > 1:
            if len(crc) % 2:
                crc = np.concatenate([np.zeros(1, dtype=np.uint32), crc])  # zeros before everything change nothing
            crc = _move(_zeros(doublings), crc[0::2]) ^ crc[1::2]
            doublings += 1
        state = int(crc[0])
        array = array[n * _BLOCK:]
    for byte in array.tobytes():
        state = state >> 8 ^ _LIST[(state ^ byte) & 255]
    return state ^ 0xFFFFFFFF
