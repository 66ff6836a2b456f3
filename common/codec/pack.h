/* SPDX-License-Identifier: Apache-2.0 */
/* Packing: a piece of an update in fewer bytes, without loss. Blocks of 256 elements, the last one shorter:
 *
 *     u8 width, u8 shift, then each element in `width` bits with its sign, the lowest bits first; a block ends with a byte
 *     int64   element = number * 2^shift, width 0 to 64
 *     float32 element = number * 2^(shift - 150), width 0 to 25; only +0 is packed, -0 and what is finer is not
 *     float32 width 253: a bit for each element, the first one in the lowest bit, whole bytes; then the elements whose bit is set, as they
 *                      are; the others are +0
 *     float32 width 254: the upper 2 bytes of each element follow, the lower ones are 0
 *     float32 width 255: the elements follow as they are
 *
 * (Frame-of-reference coding; Zukowski et al. 2006, "Super-scalar RAM-CPU cache compression", with the sign in place of a
 * base, since deltas lie around zero.) Elements that are multiples of a common power of two, as those of a grid are, lose
 * their zero bits. A sum of m clients of b bits takes b + log2(m) bits an element and 2 bytes a block.
 *
 * The packed piece is unpacked in place: it is put at the end of the memory that its elements will fill. The packer promises
 * that no block is overwritten before it is read, or refuses to pack. Pure functions, no allocation, any thread.
 */
#ifndef MFL_COMMON_CODEC_PACK_H
#define MFL_COMMON_CODEC_PACK_H

#include "common/base/base.h"

#define MFL_PACK_BLOCK 256u

/* The most bytes that packing looks at before it gives up: room for `out`. */
static inline size_t mfl_pack_room(size_t bytes)
{
        return bytes + bytes / 128 + 64;
}

/* Packs `bytes` bytes of int64 or float32 elements (little-endian; whole elements) into out, which has mfl_pack_room(bytes).
 * Returns the packed length, or 0: packed, it would not be shorter. */
size_t mfl_pack(bool floats, const void *elements, size_t bytes, void *out);

/* memory has `bytes` bytes; the packed ones are the last `packed` of them. MFL_INVALID: no packer made these; memory then
 * holds anything. */
int mfl_unpack(bool floats, void *memory, size_t bytes, size_t packed, struct mfl_error *err);

#endif
