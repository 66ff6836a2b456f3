/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual time: how long each client takes and when it is on, as data of the job (`trace`), never from a clock. Either a
 * table with a line per client, or a model from the job's seed. All times are whole microseconds from the job's beginning.
 *
 * A table is CSV. The first line names its columns, in any order:
 *
 *      client      number of the client, from 0; each client of the population has exactly one line
 *      speed       samples per second of a forward pass; or
 *      duration    seconds of the whole local training
 *      bandwidth   bytes per second; may be missing, as may its column: the transfer takes no time
 *      on          when the client is on, in seconds of the day: "0-3600;7200-86400"; may be missing: always
 *
 * Numbers are decimal, with at most six digits behind the point. common/cohort/duration.h says what follows from them.
 *
 * Pure functions, any thread.
 */
#ifndef MFL_COMMON_TRACE_TRACE_H
#define MFL_COMMON_TRACE_TRACE_H

#include "common/base/base.h"

#define MFL_VIRTUAL_NEVER UINT64_MAX
#define MFL_VIRTUAL_MAX_US ((uint64_t)1 << 50) /* of one client's turn: 35 years */

struct mfl_trace_span {
        uint64_t from_us, until_us; /* [from, until) of the day */
};
struct mfl_trace_client {
        uint64_t speed;       /* 10^-6 samples per second; 0: duration_us */
        uint64_t duration_us; /* of the local training */
        uint64_t bandwidth;   /* 10^-6 bytes per second; 0: no limit */
        uint32_t first, n;    /* its spans; n = 0: always on */
};

struct mfl_trace {
        char *csv;       /* the table's text; NULL: the model */
        uint64_t day_ms; /* after which the spans repeat; default 24 h */
        /* The model; 1, 0.6, 200 and 1 unless the job says otherwise. */
        double mu, sigma, speed, online;
        uint64_t bandwidth; /* bytes per second; 0: no limit */
        /* Read from csv. */
        uint32_t n_clients;
        struct mfl_trace_client *client; /* NULL: the model */
        struct mfl_trace_span *span;
};

/* Reads trace->csv. MFL_INVALID: "line 7: ...". */
int mfl_trace_read(struct mfl_trace *trace, uint32_t n_clients, struct mfl_error *err);
void mfl_trace_deinit(struct mfl_trace *trace);

/* Every client has a duration of its own, whatever it trains on. */
bool mfl_trace_is_fixed(const struct mfl_trace *trace);

#endif
