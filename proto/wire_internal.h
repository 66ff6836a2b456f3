/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of proto/wire.h share: wire.c packs and unpacks, wire_check.c checks, wire_from.c and
 * wire_to.c convert. */
#ifndef MFL_PROTO_WIRE_INTERNAL_H
#define MFL_PROTO_WIRE_INTERNAL_H

#include "proto/wire.h"

/* Every field of every message. With `unpacked` the strings were made by mfl_wire_unpack, and bytes that a
 * NUL hides are found too. MFL_INVALID. */
int mfl_wire_check(const Mfl__Envelope *envelope, bool unpacked, struct mfl_error *err);

/* Copies what fits into bytes including the NUL, and cuts between characters. */
void mfl_wire_copy_text(char *dst, size_t bytes, const char *src);

#endif
