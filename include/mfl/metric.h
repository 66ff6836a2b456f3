/* SPDX-License-Identifier: Apache-2.0 */
/* A metric of your own for mfl-server: a number that is made of what an evaluation has counted.
 *
 * A plug-in is a shared object that exports one function, mfl_metric_plugin. Build it against this header alone:
 *
 *      cc -shared -fPIC -O2 -ffp-contract=off -o f-beta.so f_beta.c
 *
 * The server's administrator puts it into the directory that `plugins` in server.yaml names; a job asks for it by name:
 *
 *      evaluation: {metrics: [kappa, {name: f-beta, settings: {beta: 2}}]}
 *
 * What mfl does: the daemons count, for each class, which classes were predicted for it, or add up errors of target values. These are
 * integers, and mfl adds them exactly, so that they are the same for any number of daemons. When a round has been evaluated, the plug-in
 * turns the sums into one number, which is stored with the round and shown with its loss: mfl show, rounds.csv, --json, TensorBoard, the
 * dashboard. What a plug-in promises: the number follows from the arguments alone. A metric that needs more of each sample than the counts
 * below tell can't be a plug-in.
 *
 * A plug-in runs inside the server. If it crashes, the server starts anew and continues; after three crashes in a row the job goes on
 * without its metrics, and its log says so. One that never returns holds the server's disk thread. */
#ifndef MFL_METRIC_H
#define MFL_METRIC_H

#include <stddef.h>
#include <stdint.h>

#include "plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MFL_METRIC_ABI 1

/* Which losses leave something that the metric can be made of. */
#define MFL_METRIC_LABELS 1u  /* cross-entropy, focal: confusion */
#define MFL_METRIC_TARGETS 2u /* squared, huber, smooth-l1, l1: target */

/* Sums over all samples, of one target value. */
struct mfl_metric_target {
        double absolute, square;    /* of |prediction - y| and (prediction - y)^2 */
        double value, value_square; /* of y and y^2 */
};

struct mfl_metric_call {
        uint32_t size;          /* of this struct: later releases append */
        uint32_t round;         /* from 1 on */
        const double *settings; /* in the plug-in's order */
        uint64_t scored;        /* predictions: one per label, or one per target value; more than 0 */
        double loss;            /* their mean loss */
        uint32_t classes;       /* at most 100; 0 with targets */
        uint32_t targets;       /* values per sample; 0 with labels */
        /* classes * classes: how often class p was predicted where the label is c, at [c * classes + p]; NULL with targets */
        const uint64_t *confusion;
        const struct mfl_metric_target *target; /* one for each target value; NULL with labels */
};

struct mfl_metric_plugin {
        uint32_t abi;        /* MFL_METRIC_ABI */
        const char *name;    /* as in job files: lower-case letters, digits and '-'; at most 63 */
        const char *version; /* for the job's log; at most 40 bytes */
        uint32_t n_settings; /* at most MFL_PLUGIN_NUMBERS_MAX */
        const struct mfl_plugin_number *settings;
        uint32_t answers; /* MFL_METRIC_LABELS, MFL_METRIC_TARGETS, or both */
        /* The metric; a value that is not finite is shown as unknown. */
        double (*measure)(const struct mfl_metric_call *call);
};

/* What the shared object exports. The result stays valid and unchanged as long as the object is loaded. */
__attribute__((visibility("default"))) const struct mfl_metric_plugin *mfl_metric_plugin(void);

#ifdef __cplusplus
}
#endif

#endif
