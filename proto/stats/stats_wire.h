/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics (common/stats/stats.h) as messages, and back. Any thread. */
#ifndef MFL_PROTO_STATS_STATS_WIRE_H
#define MFL_PROTO_STATS_STATS_WIRE_H

#include "common/stats/stats.h"
#include "mfl.pb-c.h"

/* On the heap; -ENOMEM. */
int mfl_stats_to_wire(const struct mfl_stats *stats, Mfl__DataStats **ret_message, struct mfl_error *err);
void mfl_stats_wire_free(Mfl__DataStats *message); /* of mfl_stats_to_wire; NULL is fine */
/* message has passed mfl_wire_check. MFL_INVALID: numbers that no data set has. */
int mfl_stats_from_wire(const Mfl__DataStats *message, struct mfl_stats *ret_stats, struct mfl_error *err);

#endif
