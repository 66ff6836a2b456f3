/* SPDX-License-Identifier: Apache-2.0 */
/* Robust aggregation on one engine. Nearly all rules of the literature depend on a round's rows x_1 .. x_m only through
 * their Gram matrix G = X X^T, and put out a weighted sum of rows, or a rule per element (a median, a trimmed mean) of
 * the rows of A X with a small matrix A. So a round is
 *
 *      pass 1    facts: G, and for some rules more           mfl_facts_add, over elements that are trained
 *      decision  weights, or A and a rule per element        mfl_robust_decide, from the facts alone
 *      pass 2    the aggregate, range by range               mfl_robust_reduce
 *
 * Rows are floats; a product of two is exact in double, and every sum has one order, so the bits depend neither
 * on threads nor on the width of vectors. Distances are G_ii + G_jj - 2 G_ij, at least 0. Ties go to the lower row.
 * Running statistics of norms are not part of G; they become the mean of the rows by the share that each row has
 * in the aggregate, or what the rule per element makes of them. Weights of clients are ignored: who claims a huge
 * weight gains nothing.
 *
 * Pure functions: no I/O, clock, threads, globals. Any thread.
 */
#ifndef MFL_SERVER_ROBUST_ROBUST_H
#define MFL_SERVER_ROBUST_ROBUST_H

#include "common/base/rng.h"
#include "common/job/job.h"

/* ---- pass 1 ---- */

#define MFL_GRAM_BLOCK 256u /* elements that are worked off at once */
#define MFL_GRAM_PANEL 4u   /* rows */

/* Doubles of scratch memory that mfl_gram_add needs for m rows. */
size_t mfl_gram_scratch(uint32_t m);
/* g[i * m + j] += sum over e < count of rows[i][from + e] * rows[j][from + e], for j <= i; the rest of g is not touched. */
void mfl_gram_add(
        const float *const *rows, uint32_t m, size_t from, size_t count, double *scratch, double *g);
/* Makes the upper half equal to the lower one. */
void mfl_gram_mirror(uint32_t m, double *g);

/* All that pass 1 finds, one vector of doubles, so that what ranges give is added element by element:
 *
 *      [m][m]               G
 *      [n_samples][m][m]    Gram matrices of a few elements each, for rules that draw them (dnc)
 *      [3][m]               for rules that want signs: how many elements of each row are negative, zero, positive
 *
 * Sample s has one element of each of `parts` equal parts of the vector, drawn by (seed, round, s). */
struct mfl_facts {
        uint32_t m; /* rows, with the guess */
        uint32_t n_samples, parts;
        bool signs;
        uint64_t seed, n; /* n: elements of a row */
        uint32_t round;
};
enum mfl_sign { MFL_SIGN_NEGATIVE, MFL_SIGN_ZERO, MFL_SIGN_POSITIVE, MFL_SIGNS };

/* Of the job's rule for m rows, with the guess. n: elements of a row. */
struct mfl_facts mfl_facts_of(const struct mfl_job *job, uint32_t m, uint64_t n, uint32_t round);
size_t mfl_facts_size(const struct mfl_facts *facts);    /* doubles of the vector */
size_t mfl_facts_scratch(const struct mfl_facts *facts); /* doubles that mfl_facts_add needs */
/* Adds elements first + [from, from + count) of the rows, which begin at element `first`, to v; lower halves only. -ENOMEM. */
int mfl_facts_add(const struct mfl_facts *facts, const float *const *rows, uint64_t first, size_t from,
        size_t count, double *scratch, double *v);
/* Upper halves. */
void mfl_facts_finish(const struct mfl_facts *facts, double *v);

/* ---- the decision ---- */

/* What a rule sees. */
struct mfl_rows {
        uint32_t m;           /* rows */
        uint32_t stride;      /* of g: m, or m + 1 with the guess, which is the last row */
        const double *g;      /* symmetric; NULL for rules that compare nothing */
        bool guess;           /* the aggregate of the round before, or the root's update, is there */
        const double *sample; /* [n_samples][m][m], symmetric; NULL unless the rule wants them */
        uint32_t n_samples;
        const double *sign; /* [MFL_SIGNS][m]; NULL unless the rule wants them */
};

enum mfl_column_rule {
        MFL_COLUMN_SUM, /* sum of weight[k] x_k */
        MFL_COLUMN_MEDIAN, /* of the rows whose weight is not 0; for an even number the mean of the two in the middle */
        MFL_COLUMN_TRIM, /* mean without the `cut` smallest and `cut` largest */
        MFL_COLUMN_NEAR, /* mean of the `cut` values nearest to the median; of equally near ones, of lower rows */
};

/* What it says of them. Arrays of rows.m, or m + 1 with the guess. */
struct mfl_ruling {
        enum mfl_column_rule column;
        uint32_t cut;
        double *weight; /* 0 at first */
        double *score;  /* what the rule judged a row by: large is bad. NAN at first: it has none */
        double noise;   /* MFL_COLUMN_SUM: the deviation of what is added to each element */
};

struct mfl_robust_rule {
        enum mfl_strategy_kind kind;
        bool wants_guess, wants_samples, wants_signs;
        bool wants_root;    /* the update of the job's root takes the place of the guess */
        bool wants_history; /* G is of the sums of all that each client has sent, not of its update */
        /* There are at least mfl_robust_rows_least rows. -ENOMEM. */
        int (*decide)(
                const struct mfl_rows *rows, const struct mfl_robust_spec *spec, struct mfl_ruling *ruling);
};
/* NULL: the strategy is not robust. */
const struct mfl_robust_rule *mfl_robust_get(enum mfl_strategy_kind kind);

/* A decision about the rows as they came. */
struct mfl_choice {
        uint32_t n_rows, n_in, n_out; /* rows; columns of A: with the guess; rows of A */
        enum mfl_column_rule column;
        uint32_t cut;
        double *a;       /* [n_out][n_in]; NULL: every row is itself */
        double *a_means; /* the same for running statistics: means of rows */
        double *share; /* [n_rows] of each row in the aggregate, not negative; all 1 / n_rows for rules per element */
        double *score;    /* [n_rows] NAN: none */
        double *distance; /* [n_rows] of a row from the share-weighted mean of the rows; NAN: not known */
        uint32_t n_used;  /* rows with a share */
        double noise; /* MFL_COLUMN_SUM: the deviation of normal numbers that are added, drawn by (seed, round, element) */
        struct mfl_rng_key noise_key;
        uint32_t few; /* 0, or the rows that the rule saw when they were too few for it: on_few has decided */
};

/* facts: of n_in rows, finished, or NULL when nothing compares rows (mfl_robust_compares); n_in is n_rows, or one more with the
 * guess. weight: of each row, for strategies that are not robust (a plain mean under a simulated attack); NULL: all
 * the same. MFL_INVALID: too few rows, and on_few is fail. -ENOMEM. */
int mfl_robust_decide(const struct mfl_job *job, uint32_t round, uint32_t n_rows, bool guess,
        const double *facts, const double *weight, struct mfl_choice *ret_choice, struct mfl_error *err);
void mfl_choice_deinit(struct mfl_choice *choice);

/* ---- pass 2 ---- */

/* Doubles of scratch memory that mfl_robust_reduce needs for a choice. */
size_t mfl_robust_scratch(const struct mfl_choice *choice);
/* d[e], e in [0, count), from rows[k][e], element first + e of the vector. means: these are running statistics. */
void mfl_robust_reduce(const struct mfl_choice *choice, bool means, const float *const *rows, uint64_t first,
        size_t count, double *scratch, double *d);

#endif
