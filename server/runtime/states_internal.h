/* SPDX-License-Identifier: Apache-2.0 */
/* What states.c (the file, the sum, commits) and states_put.c (a client's new row) share. */
#ifndef MFL_SERVER_RUNTIME_STATES_INTERNAL_H
#define MFL_SERVER_RUNTIME_STATES_INTERNAL_H

#include <pthread.h>

#include "server/runtime/states.h"
#include "server/runtime/states_list.h"

/* |element| <= 2^14: far above any gradient of a training that works. With 2^20 clients, units are 2^-28. */
#define MFL_STATES_LIMIT_BITS 14

/* An applied round that is not committed yet. */
struct batch {
        uint32_t round, n_lost;
        struct mfl_states_list rows; /* and the lost */
        struct mfl_states_places old;
        struct mfl_store_states told;
        struct batch *next;
};

struct mfl_states {
        int fd;
        char *path;
        const struct mfl_job *spec;
        const struct mfl_method_ops *method;
        const struct mfl_fixed_parts *parts; /* what a row has: see clear_others */
        uint64_t n, row_bytes;
        uint32_t population, round, n_places, lost;
        int scale_bits;
        double unit; /* 2^scale_bits */
        int64_t *sum;
        struct mfl_states_list index;      /* by client */
        struct mfl_states_list round_rows; /* by client: of the round, not applied */
        struct mfl_store_state put;        /* the last put, until keep */
        bool has_put, put_anew;
        uint32_t n_anew;                  /* of the round: sites that did not have what they kept */
        struct mfl_states_list lost_rows; /* for the next batch */
        pthread_mutex_t lock;             /* of free and batches */
        struct mfl_states_places free;
        struct batch *batches;
        double *mean;
        float *own, *fresh; /* MFL_STATES_RANGE each */
};

/* states.c */
uint32_t mfl_states_take_place(struct mfl_states *states);
int mfl_states_give_place(struct mfl_states *states, uint32_t place, struct mfl_error *err);
/* Elements that are read or written at a time, from `first` on. */
size_t mfl_states_range(const struct mfl_states *states, uint64_t first);
/* MFL_INVALID: the disk is full. */
int mfl_states_write(const struct mfl_states *states, uint32_t place, uint64_t first, size_t n,
        const float *from, struct mfl_error *err);
/* A client's own range: zeros before its first turn. */
int mfl_states_own(struct mfl_states *states, const struct mfl_store_state *row, uint64_t first, size_t n,
        float *to, struct mfl_error *err);
void mfl_states_mean(const struct mfl_states *states, uint64_t first, size_t n, double *ret_mean);
/* What was put and not kept. */
void mfl_states_drop_put(struct mfl_states *states);

#endif
