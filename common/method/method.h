/* SPDX-License-Identifier: Apache-2.0 */
/* Methods: what a strategy adds to the plain weighted mean of deltas, on the daemon and on the server. A client may count
 * with a real weight beside its whole one (the number of its samples, or 1), it may tell a few numbers that are added over
 * the round's clients like the deltas themselves, exactly and in any order, and the server may keep a few numbers from
 * round to round that daemons need to train. Each client may keep a vector of floats from round to round, too: see `correct`.
 * One table of functions and one file per method (common/method).
 *
 * A client's real weight is folded into its delta before the only rounding, q = round(real * delta * 2^s), and is at
 * most its whole weight times 2^share_bits, which the scale s allows for: an overflow is impossible by construction.
 * Running statistics of norms are no gradient: they count with the whole weight always. Scalars are integers of
 * 2^-bits, mfl_method_scalar_bits, which leaves room for the whole weight of a round.
 *
 * All arithmetic is in double, in a fixed order, with mfl_exact_power for powers, so that it has the same bits everywhere.
 * Pure functions, no allocation, any thread.
 */
#ifndef MFL_COMMON_METHOD_METHOD_H
#define MFL_COMMON_METHOD_METHOD_H

#include "common/job/job.h"
#include "common/model/graph.h"

#define MFL_METHOD_SCALARS_MAX 2
#define MFL_METHOD_STATES_MAX 3

/* What a daemon knows of a client whose local training is over. */
struct mfl_client_facts {
        uint64_t weight, samples; /* whole weight; samples of the client */
        uint64_t steps;           /* of the local optimizer */
        double loss;              /* needs_loss: mean over its predictions with the params that it received */
        double norm2;             /* needs_norm: sum of squares of the delta's trained elements, */
        uint64_t n;               /* and the delta's elements; */
        int scale_bits;           /* the sums' units */
        uint32_t staleness; /* versions made since the one that it starts from (common/cohort/calendar.h) */
};

/* What the server knows of a round, exactly: of the clients that count. */
struct mfl_round_totals {
        uint64_t weight;
        double train_loss; /* mean over the scored predictions of their local trainings */
        double scalar[MFL_METHOD_SCALARS_MAX];
        uint32_t staleness; /* the largest of its updates */
        const uint64_t *
                weights; /* asynchronous: whole weights of the updates by staleness; borrowed until they are applied */
};

/* What a client's new state follows from. */
struct mfl_client_turn {
        uint32_t round;
        uint64_t steps; /* of the local optimizer */
};

/* A client's local training is a short program of phases, one after another. Each begins with an optimizer without memory, and
 * with an epoch of its own. Most methods have one phase; its numbers are 0. */
#define MFL_PHASES_MAX 2
struct mfl_phase {
        enum mfl_phase_from {
                MFL_FROM_RECEIVED, /* the params that the server sent, x; with `starts`, and the client's own on top */
                MFL_FROM_OWN,  /* the client's own model; before its first turn, x */
                MFL_FROM_LAST, /* where the phase before ended */
        } from;
        enum mfl_moves moves;
        uint32_t epochs; /* 0: the epochs or steps of `training` */
        double pull;     /* the gradient at v has pull * (v - w) added to it: w is x, or see inner */
        uint32_t inner;  /* 0: a batch is one step. Otherwise so many, after which w, which begins as x, */
        double rate; /* moves by rate * pull * (v - w). w is what the phase ends with; v goes on from step to step */
        bool unsent,
                models; /* its end is no update; with inner v, otherwise its end, is the client's own model */
        bool gradient; /* Nothing moves: the gradients of all batches of the client's samples, in their own order, are taken at
                          x, and their mean over the samples is the update's second vector. `from` is received, no `pull`. */
        bool anchored; /* A batch's gradient at y has the same batch's gradient at x taken from it. No memory of the optimizer. */
        double mix; /* not 0: Before each step of w, the client's own v takes one with mix times the batch's gradient at
                          mix * v + (1 - mix) * w, which is its own model. No memory of the optimizer. With n_own, mix is the client's number,
                          which takes a step with that gradient times v - w, too, within [0, 1]. */
};

struct mfl_method_ops {
        /* Clients count with real weights, which their daemons fold in: updates travel as int64, never as float32. */
        bool weighs;
        bool needs_loss, needs_norm;
        /* Scalar 0 is the number of the client's steps; clients count with their whole weights. */
        bool counts_steps;
        bool starts; /* see `correct` */
        bool models; /* Each client keeps a model of its own, as long as the params that move. Its daemon makes it, and sends it
                        behind the delta. No `correct` and no `remember`. */
        uint32_t n_own;  /* models: so many numbers are kept and sent behind that model, */
        float own_start; /* which are this before a client's first turn */
        bool tells; /* The gradient over all of a client's samples at x, the params that it received, comes behind the delta. With
                       `correct` it is the client's new state; otherwise the strategy gets the round's weighted mean of them. */
        bool anchors; /* a phase is anchored */
        bool feeds; /* Each client keeps the part of its changes that was not sent, which is added to its next one (common/codec/top_k.h).
                       No `correct` and no `remember`. */
        int n_scalars, n_state;
        const char *state_name[MFL_METHOD_STATES_MAX]; /* in checkpoints */
        /* Largest scalar per unit of whole weight, as a power of two: a client with more is rejected. */
        int scalar_max_bits[MFL_METHOD_SCALARS_MAX];

        /* Largest real weight per unit of whole weight, as a power of two. NULL: 0. */
        int (*share_bits)(const struct mfl_job *job);
        /* Before the first round. classes: of the model, 0: it has none. NULL if n_state is 0. */
        void (*initial)(const struct mfl_job *job, int classes, double *state);
        /* A client's real weight and its scalars per unit of whole weight, from what came with the task. Both must be
         * finite and not negative; weight 0 adds nothing. NULL if weighs is false. */
        void (*weigh)(const struct mfl_job *job, const double *state, const struct mfl_client_facts *facts,
                double *ret_weight, double *ret_scalars);
        /* The factor of the mean delta, sum(real weight * delta) / sum(whole weight), in the server's step. NULL: 1. */
        double (*step)(const struct mfl_job *job, const struct mfl_round_totals *totals);
        /* The new params are (1 - share) of the newest ones, and for the rest the client's: those that it started from plus its
         * delta. The round has one client. NULL: d is the mean delta. */
        double (*share)(const struct mfl_job *job, const struct mfl_round_totals *totals);
        /* The server's own factor of a client's delta, at most 1, which it folds in before the only rounding. Updates come as float32. NULL: 1. */
        double (*discount)(const struct mfl_job *job, uint32_t staleness);
        /* The numbers that the next round starts with. NULL if n_state is 0. */
        void (*advance)(const struct mfl_job *job, const struct mfl_round_totals *totals, double *state);

        /* Clients that keep a state: a float for each param that moves, 0 before a client's first turn, and always for
         * running statistics, which are no gradients; with `starts`, always outside the job's personal layers. The server knows the exact mean over all clients of the population,
         * those that never had a turn included; of partition `local`, over all that had one.
         *   correct   what is added to the gradients of a client's local training; with `starts`, to the params that
         *             its local training and its evaluations start from
         *   remember  its new state, once its delta is counted
         * n elements each; remember's ret_own may be own. correct NULL: clients never see it. Both NULL: clients keep nothing. */
        void (*correct)(const struct mfl_job *job, size_t n, const double *mean, const float *own,
                float *ret_correction);
        void (*remember)(const struct mfl_job *job, const struct mfl_client_turn *turn, size_t n,
                const double *mean, const float *own, const float *delta, float *ret_own);
        /* The phases of a client's local training in that round; returns how many. NULL: one. */
        int (*phases)(const struct mfl_job *job, uint32_t round, struct mfl_phase *ret_phases);
        /* What is added to the gradients of every client's local training, from n elements of the strategy's vectors
         * (server/strategy/strategy.h), in rounds where `guided` says so. NULL: nothing. */
        bool (*guided)(const struct mfl_job *job, uint32_t round);
        void (*guide)(const struct mfl_job *job, size_t n, const float *const *state, float *ret_correction);
        /* The factor of the local learning rate. NULL: 1. */
        double (*rate)(const struct mfl_job *job);
        uint32_t
                turn_rounds; /* so many rounds have the same clients, which retries don't draw anew; 0: each has its own */
        /* For each element, what the server adds to the new params, from the mean over all clients' new states. NULL: nothing. */
        double (*shift)(const struct mfl_job *job, double mean);
};

/* The fixed-point limits of a job, from a bound on the weight of a whole cohort. samples: the data set's training
 * samples rounded up to a power of two (population), or 2^36 (local); uniform: the cohort size. */
int mfl_job_fixed(const struct mfl_job *spec, uint32_t train_samples, uint32_t population,
        struct mfl_fixed *ret_fixed, struct mfl_error *err);

/* Never NULL. */
const struct mfl_method_ops *mfl_method_get(const struct mfl_job *job);

/* Whether a device may add clients' updates to a sum of its own: nothing is done to a delta on the host before. Teams make theirs there. */
static inline bool mfl_method_adds_on_device(const struct mfl_job *job)
{
        return !job->parallel.grain && !mfl_method_get(job)->weighs && !job->compression.bits &&
               !job->compression.up_half && !(job->aggregation.robust.update_clip > 0);
}

/* Whether the server keeps something of each client, or adds up a vector beside the delta. */
static inline bool mfl_method_keeps(const struct mfl_method_ops *ops)
{
        return ops->remember || ops->models || ops->tells || ops->feeds;
}

/* With n params that move: floats of a client's state; those that one client's training makes; and those of its update, as a model of its
 * own may stay at its site. */
static inline uint64_t mfl_method_state_floats(const struct mfl_job *job, uint64_t n)
{
        return n + mfl_method_get(job)->n_own;
}

static inline uint64_t mfl_method_trained_floats(const struct mfl_job *job, uint64_t n)
{
        const struct mfl_method_ops *ops = mfl_method_get(job);
        return n + (ops->models || ops->tells ? mfl_method_state_floats(job, n) : 0);
}

static inline uint64_t mfl_method_update_floats(const struct mfl_job *job, uint64_t n)
{
        bool stays = mfl_method_get(job)->models && job->client_state == MFL_CLIENT_STATE_DAEMON;
        return stays ? n : mfl_method_trained_floats(job, n);
}

/* What a client's state of n floats takes in the server's file of them: whole pages. */
static inline uint64_t mfl_method_row_bytes(uint64_t n)
{
        const uint64_t page = 4096;
        return (n * sizeof(float) + page - 1) / page * page;
}
/* MFL_INVALID: the states of a population of known size, with n params that move, take more than limits.state. */
int mfl_method_check_states(
        const struct mfl_job *job, uint32_t population, uint64_t n, struct mfl_error *err);

/* The phases, how many; the steps of one, and of all together, for a client of n samples. */
int mfl_method_phases(const struct mfl_job *job, uint32_t round, struct mfl_phase ret_phases[MFL_PHASES_MAX]);
uint64_t mfl_phase_steps(const struct mfl_job *job, const struct mfl_phase *phase, uint32_t n);
uint64_t mfl_method_all_steps(const struct mfl_job *job, uint32_t round, uint32_t n);

/* Whether the server has something for a client of that round, which is added to its gradients (or, with `starts`, to the params that
 * it starts from). Nobody has a state in the first round. */
static inline bool mfl_method_corrects(const struct mfl_job *job, uint32_t round)
{
        const struct mfl_method_ops *ops = mfl_method_get(job);
        return ops->guided ? ops->guided(job, round) : ops->correct && !ops->starts && round >= 2;
}

/* Of scalar i when the weights of one daemon's clients, or of all clients of a population, are at most fixed->weight_max. */
int mfl_method_scalar_bits(const struct mfl_job *job, const struct mfl_fixed *fixed, int i);

/* The real weight and the scalars of one client, in units. MFL_INVALID: it can't count; the text says why, and what to
 * change. state: as many numbers as the method has. */
int mfl_method_weigh(const struct mfl_job *job, const struct mfl_fixed *fixed, const double *state,
        const struct mfl_client_facts *facts, double *ret_weight, int64_t ret_units[MFL_METHOD_SCALARS_MAX],
        struct mfl_error *err);

/* counts_steps: one client's scalar, and its steps again. MFL_INVALID: too many. */
int mfl_method_count(const struct mfl_job *job, const struct mfl_fixed *fixed, uint64_t steps,
        int64_t *ret_units, struct mfl_error *err);
uint64_t mfl_method_steps(const struct mfl_job *job, const struct mfl_fixed *fixed, int64_t units);

/* The sum of squares of a delta's trained elements: of blocks of 4,096 elements of the vector, in their order. */
double mfl_method_norm2(
        const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts, const float *delta, size_t n);

/* Shortens a delta's trained elements to the norm `limit`, if they are longer: the floats' exact norm is then at most `limit`.
 * Running statistics stay as they are. Returns the factor; 1: nothing has changed. */
double mfl_method_clip(const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts, double limit,
        float *delta, size_t n);

extern const struct mfl_method_ops mfl_method_fednova, mfl_method_qfedavg, mfl_method_adaptive_prox,
        mfl_method_scaffold, mfl_method_feddyn, mfl_method_personal, mfl_method_foolsgold, mfl_method_stale,
        mfl_method_fedbuff, mfl_method_fedbuff_live, mfl_method_fedasync, mfl_method_ditto, mfl_method_pfedme,
        mfl_method_central, mfl_method_central_adaptive, mfl_method_scaffold_first, mfl_method_mimelite,
        mfl_method_mime, mfl_method_apfl, mfl_method_apfl_adaptive, mfl_method_top_k;

#endif
