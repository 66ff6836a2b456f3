/* SPDX-License-Identifier: Apache-2.0 */
/* Robust aggregation as a job file asks for it, and how many rows it needs. A row is what the rule sees as one update: a
 * client's delta, or a mean of several after `before: {bucket: s}`. server/robust has the rules themselves. Pure
 * functions; any thread. */
#ifndef MFL_COMMON_JOB_ROBUST_H
#define MFL_COMMON_JOB_ROBUST_H

#include "common/base/base.h"

/* Rules that compare rows with each other keep a matrix of rows x rows numbers. */
#define MFL_ROBUST_ROWS_MAX 1024u
#define MFL_BEFORE_MAX 4

/* What is done to the rows before the rule. */
enum mfl_before_kind {
        MFL_BEFORE_NNM,    /* each row becomes the mean of the m - f rows nearest to it, with itself (Allouah et al. 2023) */
        MFL_BEFORE_ARC,    /* the floor(2 (f / m) (m - f)) longest rows get the length of the next (Allouah et al. 2024) */
        MFL_BEFORE_BUCKET, /* means of `size` rows each, drawn anew in each round (Karimireddy et al. 2022) */
        MFL_BEFORE_CLIP,   /* no row is longer than `radius`, or than the median length */
};
struct mfl_before {
        enum mfl_before_kind kind;
        uint32_t size;
        double radius; /* 0: the median */
};

/* What happens in a round with fewer rows than the rule needs. */
enum mfl_on_few {
        MFL_ON_FEW_FAIL,
        MFL_ON_FEW_MEAN,
        MFL_ON_FEW_MEDIAN,
};

enum mfl_rows_unit {
        MFL_ROWS_CLIENT,
        MFL_ROWS_DAEMON, /* partition local: a daemon is one client */
};

struct mfl_robust_spec {
        enum mfl_rows_unit unit;
        bool has_f, has_more; /* the job has f; unit, before or on_few */
        uint32_t f;          /* rows that may be bad */
        double beta;         /* trimmed-mean without f: the share that is cut off at each end, default 0.2 */
        uint32_t neighbours; /* krum, multi-krum, bulyan: 0: m - f - 2 */
        double clip_radius;  /* centered-clip; 0: the median distance */
        enum mfl_on_few on_few;
        uint32_t n_before;
        struct mfl_before before[MFL_BEFORE_MAX];
};

struct mfl_job;

/* The strategy works on single rows: the median and all rules of server/robust. */
bool mfl_job_is_robust(const struct mfl_job *job);
/* The rows that are left of m by buckets. */
uint32_t mfl_robust_rows_after(const struct mfl_robust_spec *spec, uint32_t m);
/* The fewest rows, after buckets, that the job's rule works with; at least 1. */
uint32_t mfl_robust_rows_least(const struct mfl_job *job);
/* Whether the rule, or what is done before it, compares rows: then there are at most MFL_ROBUST_ROWS_MAX. */
bool mfl_robust_compares(const struct mfl_job *job);

#endif
