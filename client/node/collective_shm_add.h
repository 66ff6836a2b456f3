/* SPDX-License-Identifier: Apache-2.0 */
/* Adds many vectors into one with several threads, from the first element on.
 *
 * out[i] = in[0][i] + ... + in[k - 1][i], as integers that wrap, in any order. Threads take slices in order,
 * so the final part grows from the beginning and can be sent while the rest is added. */
#ifndef MFL_CLIENT_NODE_COLLECTIVE_SHM_ADD_H
#define MFL_CLIENT_NODE_COLLECTIVE_SHM_ADD_H

#include "kernels/backend.h"
#include "proto/message.h"

#define MFL_ADDER_SLICE ((uint64_t)32 * 1024) /* elements */

struct mfl_adder;

struct mfl_addition {
        uint32_t k;       /* 1 to MFL_GROUP_MAX */
        uint32_t threads; /* at most this many of the adder's threads; 0: all */
        uint64_t n;
        const int64_t *in[MFL_GROUP_MAX]; /* 8-byte aligned */
        int64_t *out;                     /* 64-byte aligned is fastest; overlaps none of `in` */
        uint64_t end_ms;                  /* of mfl_now_ms */
        struct mfl_comm_control *control;
};

enum mfl_adder_end {
        MFL_ADDER_DONE,
        MFL_ADDER_CANCELLED,
        MFL_ADDER_LATE,
};

/* threads - 1 threads wait until they are needed; the caller is the last one. Negative on failure. */
int mfl_adder_new(uint32_t threads, struct mfl_adder **ret_adder, struct mfl_error *err);
/* Blocks. One thread at a time. */
enum mfl_adder_end mfl_adder_run(struct mfl_adder *adder, const struct mfl_addition *addition);
void mfl_adder_free(struct mfl_adder *adder); /* NULL is fine */

#endif
