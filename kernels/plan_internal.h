/* SPDX-License-Identifier: Apache-2.0 */
/* A plan in the making: what plan.c, plan_cut.c and plan_live.c share. */
#ifndef MFL_KERNELS_PLAN_INTERNAL_H
#define MFL_KERNELS_PLAN_INTERNAL_H

#include "kernels/plan.h"

/* The memory of one tensor. Times of use, both included; `first` above `last`: none. */
struct mfl_plan_span {
        uint64_t bytes, offset;
        struct {
                int first, last;
        } use[2]; /* the second: from its second computation on */
};

struct mfl_plan_draft {
        const struct mfl_graph *graph;
        bool training;
        const struct mfl_plan_need *needs;
        struct mfl_plan *plan; /* the segments of the layers are given; the rest is filled in */
        int *root;  /* n: the layer whose memory layer i's output shares; i itself where it has its own */
        bool *kept; /* n, of roots: kept through the step, not computed again for its own sake */
        int *time_again, *time_backward; /* n: when the layer is computed again (-1: not), its backward */
        struct mfl_plan_span *spans;     /* 3 n: activations, gradients, auxiliary buffers, by layer */
        struct mfl_plan_span **order;    /* 3 n */
        int64_t *change;                 /* 3 n + 2: of the bytes in use, by time */
};

static inline bool mfl_plan_reads(const struct mfl_graph *graph, int j, int i)
{
        return graph->layers[j].input == i || graph->layers[j].input2 == i;
}

int mfl_plan_draft_init(struct mfl_plan_draft *draft, struct mfl_error *err); /* -ENOMEM */
void mfl_plan_draft_deinit(struct mfl_plan_draft *draft);

/* plan_cut.c: gives each layer of a training step its segment. Errors: -ENOMEM. */
int mfl_plan_cut(struct mfl_plan_draft *draft, int segments, struct mfl_error *err);

/* plan_live.c. Derives from the segments: what is computed again, the order of backward, and when each tensor
 * exists. */
void mfl_plan_live(struct mfl_plan_draft *draft);
/* Afterwards: the most bytes in use at one time, a lower bound of the arena. */
uint64_t mfl_plan_peak(struct mfl_plan_draft *draft);
/* Afterwards: a place for each tensor. */
void mfl_plan_place(struct mfl_plan_draft *draft);

#endif
