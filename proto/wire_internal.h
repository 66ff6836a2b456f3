/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of proto/wire.h share: wire.c packs and unpacks, wire_check.c checks, wire_from.c and
 * wire_to.c convert. */
#ifndef MFL_PROTO_WIRE_INTERNAL_H
#define MFL_PROTO_WIRE_INTERNAL_H

#include "proto/wire.h"

/* Checks every field of every message. unpacked: mfl_wire_unpack allocated the strings, so that bytes hidden behind a
 * NUL are found, too. MFL_INVALID. */
int mfl_wire_check(const Mfl__Envelope *envelope, bool unpacked, struct mfl_error *err);

/* Copies what fits into bytes including the NUL, and cuts between characters. */
void mfl_wire_copy_text(char *dst, size_t bytes, const char *src);

#endif
