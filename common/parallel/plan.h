/* SPDX-License-Identifier: Apache-2.0 */
/* Where a team's state lies, what that takes, and what a step by it should take: pure, for daemons that reserve memory and for
 * people who ask beforehand (`mfl plan`). Stages and columns are those of kernels/team/team.h.
 *
 * Times are a model: each member has a core of its own, computes the same number of grains at the measured pace, takes its part of
 * the optimizer's step, and then waits for what of the traffic was not behind backward, two thirds of a grain. Sums are added by
 * processors, so traffic is behind backward only as far as there are more cores than members. */
#ifndef MFL_COMMON_PARALLEL_PLAN_H
#define MFL_COMMON_PARALLEL_PLAN_H

#include "common/base/base.h"

#define MFL_PARALLEL_STAGES 4u
#define MFL_PARALLEL_BLOCK ((uint64_t)4096) /* elements; kernels/grad.h */

/* What a rank keeps beside its params. */
struct mfl_parallel_shape {
        uint64_t n;          /* elements of the gradient */
        uint64_t n_tensors;  /* of the params */
        uint64_t largest;    /* elements of the largest layer's params */
        uint64_t statistics; /* floats of all grains */
        uint32_t kept;       /* floats per element that optimizer and proximal term keep */
        uint32_t size;       /* bytes of an element of a sum */
        uint32_t grains;     /* of a step, at most */
        uint64_t bucket;     /* elements */
        bool aside;          /* a bucket of params that another rank writes */
        uint64_t
                deferred; /* elements whose totals their owners compute from operands (kernels/team/team.h), without rounding to blocks */
        uint32_t n_deferred; /* tensors of them */
        uint64_t operands;   /* floats of all grains */
        uint32_t snapshot;   /* bytes per own element of copies of sharded state; 0: none are kept */
};

/* The stage at which so many ranks work: one alone has nothing to share out, and ranks with one memory share it anyway. */
uint32_t mfl_parallel_stage(uint32_t zero, bool shared, uint32_t n_ranks);
/* Whether ranks send grains as floats, which their owners round: where no rank adds a grain to another before. grains: of a step. */
bool mfl_parallel_rounds_late(uint32_t grains, uint32_t n_ranks, uint32_t stage);
/* Bytes of a rank, at most, beside its params; stage: as above. */
uint64_t mfl_parallel_rank_bytes(const struct mfl_parallel_shape *shape, uint32_t n_ranks, uint32_t stage);

/* Who keeps a copy of whose shards: rank r's is at keeper[r], which is a rank of another process. Ranks stand process by process, `width`
 * of each, two processes or more. */
void mfl_parallel_keepers(const uint32_t *width, uint32_t n_processes, uint8_t *keeper);
/* The most ranks that have one keeper then. widest: of the widths. */
uint32_t mfl_parallel_keeps(uint32_t widest, uint32_t n_ranks);

/* Of a job on daemons of one node, with one worker each. Seconds: 0 where nothing was measured. */
struct mfl_parallel_facts {
        struct mfl_parallel_shape shape;
        uint64_t moving;       /* params that move: those at the start, and the update */
        uint64_t network;      /* bytes of a worker's network beside these params; 0 where a card has it */
        bool own_memory;       /* each member has a card, whose memory is not counted */
        uint64_t link;         /* bytes of a member's traffic */
        uint64_t memory;       /* a daemon's budget in bytes; 0: no limit */
        bool overlap;          /* traffic behind backward */
        uint32_t cores;        /* of the node, for members with one thread each; 0: enough */
        double grain_s;        /* of a grain's gradient by one worker alone */
        double beside_s;       /* the same, while another worker computes; 0: as alone */
        double apply_s;        /* of the optimizer's step of all params by one member */
        double apply_beside_s; /* the same, while another member takes another part; 0: as alone */
        double bytes_per_s;    /* that a member takes from others */
        double wait_s;         /* of an operation without data */
        /* What a step of two members takes in each stage besides all of that: they come to operations at different times, and what sleeps
         * meanwhile has to wake. Below 0: it takes less. With more members it is shared out among the operations of a step, of which a member
         * with fewer grains has fewer; how much later the last of many comes than the last of two nobody has measured. */
        double sync_s[MFL_PARALLEL_STAGES];
        uint32_t n_buckets;
};

struct mfl_parallel_plan {
        uint32_t members, zero;
        uint64_t leader,
                member; /* bytes of the daemon that makes the update and has the params at the start, and of another */
        uint64_t traffic; /* bytes that a member takes in a step */
        double seconds;   /* of a step; 0: not known */
        bool fits;
};

/* members from 1, zero from 0 to MFL_PARALLEL_STAGES - 1. */
void mfl_parallel_estimate(const struct mfl_parallel_facts *facts, uint32_t members, uint32_t zero,
        struct mfl_parallel_plan *ret_plan);
/* The plan of at most so many members that fits and is fastest. More members than a plan needs must gain a twentieth for each
 * doubling, and a higher stage a fiftieth. Without times: the fewest members that fit. zero < 0: any stage but 0, which takes
 * more of everything than 1. False: nothing fits, and *ret_plan is the one that takes least. */
bool mfl_parallel_choose(const struct mfl_parallel_facts *facts, uint32_t members_max, int zero,
        struct mfl_parallel_plan *ret_plan);

/* What steps of a team took at its leader, in any unit: only ratios count. exchange: with the others while nothing was computed. */
struct mfl_parallel_took {
        uint32_t ranks, grains; /* of the team; of a step */
        bool whole;             /* each rank applies the whole gradient: stage 0 */
        uint64_t compute, exchange, apply;
};

/* The ranks, at most so many, with which such steps should be fastest: each has the grains of the one that has the most, the traffic
 * is (n - 1) / n of the gradient, and the optimizer's step is shared out. As in mfl_parallel_choose, twice the ranks must gain a
 * twentieth. took.ranks is 2 or more. */
uint32_t mfl_parallel_width(const struct mfl_parallel_took *took, uint32_t ranks_max);

#endif
