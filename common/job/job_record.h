/* SPDX-License-Identifier: Apache-2.0 */
/* What is recorded of a job and of its rounds: the words that the server's core and its store have in common. */
#ifndef MFL_COMMON_JOB_JOB_RECORD_H
#define MFL_COMMON_JOB_JOB_RECORD_H

#include "common/base/base.h"
#include "common/base/digest.h"
#include "common/measure/measure.h"
#include "common/model/graph.h"

/* The numbers are those of mfl.proto and of the database. */
enum mfl_job_state {
        MFL_JOB_WAITING = 1,
        MFL_JOB_RUNNING = 2,
        MFL_JOB_DONE = 3,
        MFL_JOB_FAILED = 4,
        MFL_JOB_STOPPED = 5,
};

/* What is known of a committed round. */
struct mfl_round_record {
        uint32_t round, attempt;
        bool evaluated;
        /* Means over the scored predictions: one per sample with class labels, one per token or target value otherwise.
         * Accuracies are not a number where the loss has none (mfl_job_has_accuracy). */
        double loss, accuracy;             /* of the test split, after the round */
        double train_loss, train_accuracy; /* of the local trainings */
        /* Of the test split, for labels at several positions: the mean over the classes that occur of both / (labels +
         * predictions - both). */
        bool has_mean_iou;
        double mean_iou;
        struct mfl_measures measures;
        uint64_t eval_samples, samples, weight;
        uint64_t clamped; /* elements of its clients' deltas beyond the grid (common/codec/grid.h) */
        uint32_t clients, clients_rejected, daemons;
        bool has_virtual; /* virtual time, since the job's beginning */
        uint64_t virtual_start_us, virtual_end_us;
        uint64_t started_ms, ended_ms; /* the core's clock, up to the order to commit; rounds may overlap */
        uint8_t digest[MFL_SHA256_BYTES];
};

/* The lists of a round's evaluation: what each client has scored, the worst first, without those that have no samples; and
 * the confusion matrix. */
#define MFL_SCORES_SHOWN_MAX 1000 /* kept with the round: the worst */
struct mfl_round_scores {
        uint32_t round, n;
        struct mfl_client_score *v;
        char (*sites)
                [MFL_NAME_BYTES]; /* partition local: their names, "" where the site has left; else NULL */
        uint32_t classes;         /* of the confusion matrix; 0: none */
        uint32_t answers, n_sums;
        uint64_t *
                sums; /* the tally (common/measure/tally.h): of confusion, or, for metrics, of targets; NULL: none */
};

#endif
