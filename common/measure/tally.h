/* SPDX-License-Identifier: Apache-2.0 */
/* Tallies: numbers that an evaluation adds up beside the loss and the right predictions. All are integers that are added
 * modulo 2^64, so the sum over shards, clients and daemons has no order. Pure; any thread.
 *
 *   classes    3 * C: for each class c predictions whose label is c [c], predictions of c [C + c], both [2 C + c]
 *   confusion  C * C: predictions of p whose label is c [c * C + p]
 *   targets    1 + 8 T: values that are too large to be added [0]; then for each target the sums of |error|, error^2, y and
 *              y^2, each as two numbers: whole parts (floor), and the rest in units of 2^-32, rounded down
 *   backdoor   2: samples of other labels that were shown with a backdoor's patch, and how many of them got its label
 *
 * C: classes of the model; T: target values of a sample. A value of 2^40 or more counts in [0] instead; then, and with
 * more than 2^23 samples, whose sums could overflow, the measures of targets are not known.
 */
#ifndef MFL_COMMON_MEASURE_TALLY_H
#define MFL_COMMON_MEASURE_TALLY_H

#include "common/measure/measure.h"

enum mfl_tally {
        MFL_TALLY_NONE,
        MFL_TALLY_CLASSES,
        MFL_TALLY_CONFUSION,
        MFL_TALLY_TARGETS,
        MFL_TALLY_BACKDOOR, /* filled by the trainer, not by a backend */
};
#define MFL_TALLY_CLASSES_MAX 256   /* of `classes` */
#define MFL_TALLY_CONFUSION_MAX 100 /* classes of `confusion` */
#define MFL_TALLY_TARGETS_MAX 64

/* How many numbers; n: classes, or target values of a sample. */
uint32_t mfl_tally_size(enum mfl_tally kind, uint32_t n);

/* Adds a prediction. */
void mfl_tally_label(enum mfl_tally kind, uint64_t *tally, uint32_t n, uint32_t label, uint32_t predicted);
void mfl_tally_target(uint64_t *tally, uint32_t k, float predicted, float target);

/* Whether a tally of that many scored and right predictions is possible. */
bool mfl_tally_agrees(
        enum mfl_tally kind, const uint64_t *tally, uint32_t n, uint64_t scored, uint64_t correct);
/* Adds the measures of a tally of that many scored predictions.
 *   macro F1  the mean, over the classes that are a label or a prediction, of 2 both / (labels + predictions)
 *   MAE, RMSE over all target values
 *   backdoor  the share of the patched samples that got the backdoor's label
 *   R2        1 - sum (y - prediction)^2 / sum (y - mean)^2; the mean over the targets */
void mfl_tally_measure(enum mfl_tally kind, const uint64_t *tally, uint32_t n, uint64_t scored,
        struct mfl_measures *measures);
/* The sums of a tally of targets, one for each target value: of |error|, error^2, y and y^2. False: they are not known. */
struct mfl_tally_target {
        double absolute, square, value, value_square;
};
bool mfl_tally_targets(const uint64_t *tally, uint32_t n, uint64_t scored,
        struct mfl_tally_target ret_targets[MFL_TALLY_TARGETS_MAX]);
/* The mean over the classes that are a label or a prediction of both / (labels + predictions - both); false: none is, or
 * the tally is of targets. */
bool mfl_tally_iou(enum mfl_tally kind, const uint64_t *tally, uint32_t n, double *ret_iou);

#endif
