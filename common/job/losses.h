/* SPDX-License-Identifier: Apache-2.0 */
/* Losses: the one table of their names and of what they expect. Their arithmetic is in kernels/bodies.h
 * (mfl_label_loss, mfl_target_loss), which documents each formula.
 *
 * X(symbol, name in job files, answers, predictions can be right or wrong)
 * answers: LABELS: a class at each position, of `classes` logits; TARGETS: a number for each output. */
#ifndef MFL_COMMON_JOB_LOSSES_H
#define MFL_COMMON_JOB_LOSSES_H

#include <stdbool.h>

#define MFL_LOSSES(X)                                                                                        \
        X(CROSS_ENTROPY, "cross-entropy", LABELS, true)                                                      \
        X(BINARY, "binary", TARGETS, true)                                                                   \
        X(SQUARED, "squared", TARGETS, false)                                                                \
        X(FOCAL, "focal", LABELS, true)                                                                      \
        X(HUBER, "huber", TARGETS, false)                                                                    \
        X(SMOOTH_L1, "smooth-l1", TARGETS, false)                                                            \
        X(L1, "l1", TARGETS, false)

#define MFL_LOSS_SYMBOL(symbol, name, answers, decides) MFL_LOSS_##symbol,
enum mfl_loss_kind { MFL_LOSSES(MFL_LOSS_SYMBOL) MFL_LOSS_COUNT_ };
#undef MFL_LOSS_SYMBOL

enum mfl_loss_answers { MFL_ANSWERS_LABELS, MFL_ANSWERS_TARGETS };

/* Which answers a loss expects. */
static inline enum mfl_loss_answers mfl_loss_answers(enum mfl_loss_kind kind)
{
#define MFL_LOSS_ANSWERS(symbol, name, answers, decides) MFL_ANSWERS_##answers,
        static const enum mfl_loss_answers answers[] = {MFL_LOSSES(MFL_LOSS_ANSWERS)};
#undef MFL_LOSS_ANSWERS
        return answers[kind];
}

/* As in job files. */
static inline const char *mfl_loss_name(enum mfl_loss_kind kind)
{
#define MFL_LOSS_NAME(symbol, name, answers, decides) name,
        static const char *const names[] = {MFL_LOSSES(MFL_LOSS_NAME)};
#undef MFL_LOSS_NAME
        return names[kind];
}

/* Whether its predictions are right or wrong, so that they have an accuracy; the others measure a distance. */
static inline bool mfl_loss_decides(enum mfl_loss_kind kind)
{
#define MFL_LOSS_DECIDES(symbol, name, answers, decides) decides,
        static const bool table[] = {MFL_LOSSES(MFL_LOSS_DECIDES)};
#undef MFL_LOSS_DECIDES
        return table[kind];
}

#endif
