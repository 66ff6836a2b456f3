/* SPDX-License-Identifier: Apache-2.0 */
/* What a job's clients keep from round to round (common/method/method.h): a row of floats per client in the file clients.f32 of
 * the job's directory, and the exact sum over all of them.
 *
 * ROWS. A client gets a place in the file when its first update counts. A new row never overwrites the old one: it goes to a
 * free place, so that the old one stays until the round is committed. The commit's transaction stores the places of the round's
 * rows (mfl_states_batch); after it the old places are free, and their disk space goes back to the file system. So whatever
 * dies when, the rows that the database names are those of the newest committed round, and a round that is begun again starts
 * from them. The file takes (clients seen) times (a row, rounded up to 4 KiB), and while a round is not committed as many
 * rows more as it has updates.
 *
 * SUM. Only for methods that use the mean: what clients keep of a model of their own is added to nothing, and may have any finite
 * value. An element of a row counts as the integer round(v * 2^s); the sum of them over all clients is exact, so it does not
 * depend on who trained whom, or when. It is not stored: opening reads every row, compares its checksum, and adds it. A row that
 * is missing or damaged is left out: that client begins anew, and mfl_states_lost says how many did.
 *
 * MEMORY. 8 bytes for each element of a sum, 24 for each client seen, and a few rows' ranges. No row is kept in memory.
 *
 * THREADS. Everything on the worker of sums, but sync, batch and committed, which may run beside on another.
 * Errors: MFL_INVALID (what a client's update did wrong, or a full disk), negative for the rest. */
#ifndef MFL_SERVER_RUNTIME_STATES_H
#define MFL_SERVER_RUNTIME_STATES_H

#include "common/base/fixed.h"
#include "common/codec/top_k.h"
#include "common/method/method.h"
#include "proto/message.h"
#include "server/store/store.h"

struct mfl_states;

struct mfl_states_options {
        const char *path;                                    /* of the file; made if it is not there */
        const struct mfl_job *spec;                          /* outlives the states */
        const struct mfl_fixed_parts *statistics, *personal; /* outlive the states */
        uint64_t n;                                          /* floats of a row; 0: sites keep them */
        uint32_t population;                                 /* 0: partition local */
        const struct mfl_store_states *known;                /* of the newest committed round */
};

int mfl_states_open(
        const struct mfl_states_options *options, struct mfl_states **ret_states, struct mfl_error *err);
void mfl_states_close(struct mfl_states *states); /* NULL is fine */
/* Bytes of memory for n elements, without those for clients. */
uint64_t mfl_states_bytes(const struct mfl_job *spec, uint64_t n);
uint32_t mfl_states_seen(const struct mfl_states *states);

/* Forgets the rows of a round that was not applied. */
void mfl_states_round_open(struct mfl_states *states, uint32_t round);
/* A client's update is about to count: makes its new row. With `models` or `tells` of the method, that lies behind the delta, which is n_own floats
 * shorter. MFL_INVALID: it has none; nothing has changed. The row counts from
 * the next mfl_states_keep on; put again, or mfl_states_round_open, replaces or drops it. */
int mfl_states_put(struct mfl_states *states, uint64_t client, uint64_t steps, const float *delta,
        struct mfl_error *err);
/* The same with `feeds`, where u is the client's change and what it had not sent before: its new row is what the cut leaves of u, which
 * becomes what is sent. */
int mfl_states_put_rest(struct mfl_states *states, uint64_t client, const struct mfl_top_k *cut, float *u,
        struct mfl_error *err);
/* The same with client_state daemon: what the client's site says that it keeps. The file has nothing of it. */
int mfl_states_put_site(struct mfl_states *states, uint64_t client, const struct mfl_site_state *state,
        struct mfl_error *err);
void mfl_states_keep(struct mfl_states *states);

/* APPLY, range by range from 0 on: adds what the round changed, and gives the mean of elements [first, first + n) over all
 * clients' new states. n at most MFL_STATES_RANGE. Then once apply: the round's rows are the clients' own now. */
#define MFL_STATES_RANGE 16384u
int mfl_states_advance(
        struct mfl_states *states, uint64_t first, size_t n, const double **ret_mean, struct mfl_error *err);
int mfl_states_apply(struct mfl_states *states, struct mfl_error *err);

/* Elements [first, first + n) of a client's newest row: of this round, if it has one and `fresh`; else of the rounds before, zeros
 * at first. */
int mfl_states_read(struct mfl_states *states, uint64_t client, bool fresh, uint64_t first, size_t n,
        float *to, struct mfl_error *err);

/* What is added to the gradients of that client's next local training, or to the params that it starts from; with `models`, its
 * own model, or the params and own_start, if it has none yet: n floats. params: those of the newest committed or applied round. */
int mfl_states_correction(struct mfl_states *states, uint64_t client, const float *params,
        float *ret_correction, struct mfl_error *err);

/* A copy of all clients' rows, by client; the caller frees v. */
int mfl_states_list(
        const struct mfl_states *states, struct mfl_store_states *ret_list, struct mfl_error *err);

/* CHECKPOINT: the rows are durable when this returns 0. MFL_STORE_FULL: try again. */
int mfl_states_sync(struct mfl_states *states, struct mfl_error *err);
/* COMMIT: the rows of an applied round, and those that are lost. Borrowed until mfl_states_committed. */
const struct mfl_store_states *mfl_states_batch(
        struct mfl_states *states, uint32_t round, uint32_t *ret_lost);
void mfl_states_committed(struct mfl_states *states, uint32_t round);

/* For tests: the sum of element i, and one client's term of it. */
int64_t mfl_states_sum(const struct mfl_states *states, uint64_t i);
int64_t mfl_states_units(const struct mfl_states *states, float v);
/* How many clients' states were not there at the opening. */
uint32_t mfl_states_lost(const struct mfl_states *states);

#endif
