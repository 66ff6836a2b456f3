/* SPDX-License-Identifier: Apache-2.0 */
/* Limits how often each address may connect: one token bucket per address, in a table of fixed size.
 *
 * A bucket holds at most `burst` tokens and gains `per_second` of them; each connection takes one. It is kept
 * by the generic cell rate algorithm (ITU-T I.371, annex A): one number per address, the time at which its
 * bucket will be full again. A full bucket needs no entry, so the table holds only recent addresses. When it
 * is full, the entry that is nearest to full makes room, which gives away the fewest tokens.
 */
#ifndef MFL_SERVER_SHELL_RATE_H
#define MFL_SERVER_SHELL_RATE_H

#include <netinet/in.h>

#include "common/base/base.h"

#define MFL_RATE_ADDRESSES_MAX 8192 /* 192 KiB */

struct mfl_rate;
/* per_second: at least 1; burst: at least 1. -ENOMEM. */
int mfl_rate_new(uint32_t per_second, uint32_t burst, struct mfl_rate **ret_rate, struct mfl_error *err);
void mfl_rate_free(struct mfl_rate *rate); /* NULL is fine */
/* Takes a token of the address; false: it has none. now_ns is monotonic. */
bool mfl_rate_take(struct mfl_rate *rate, const struct in6_addr *address, uint64_t now_ns);

#endif
