/* SPDX-License-Identifier: Apache-2.0 */
/* What the conformance program trains: the table of cases, and their data, groups and graphs. */
#ifndef MFL_KERNELS_CONFORMANCE_CONFORMANCE_TRAIN_H
#define MFL_KERNELS_CONFORMANCE_CONFORMANCE_TRAIN_H

#include "kernels/conformance/conformance.h"

#define CONF_SAMPLES 61
#define CONF_STEPS 5
#define CONF_BATCH 7
#define CONF_PARTS 3 /* batches of a step, at most */
#define CONF_GROUPS 7
#define CONF_CLASSES_MAX 70000
#define CONF_TALLIED 24 /* classes whose predictions are counted, at most */
#define CONF_TALLY (CONF_TALLIED * CONF_TALLIED)

struct conf_train_case {
        const char *name, *preset; /* preset NULL: the layers */
        struct mfl_shape input;
        int classes;
        struct mfl_optimizer opt;
        struct mfl_augment augment;
        uint32_t rows_min; /* of a partial batch. A batch norm divides by the deviation of its rows, and
                              for a single row's few values that is close to zero */
        bool deep;         /* its many ReLUs include ties within rounding; see train_bounds_of */
        const struct mfl_layer *layers; /* the input's shape is filled in */
        int n_layers;
        struct mfl_loss loss; /* other than cross entropy: on targets */
        int accumulate;
        int positions;  /* labels of a sample; 0: 1 */
        int vocabulary; /* samples are tokens */
        bool ignored;   /* a third of the labels is -1 */
        bool scheduled; /* each step has its own learning rate */
        bool corrected; /* each group but the last has a correction */
        bool weighted;  /* each class, or target, has its own weight */
        bool held;      /* the opt moves some tensors: every other one is personal */
};
extern const struct conf_train_case mfl_conf_train_cases[];
extern const int mfl_conf_n_train_cases;

/* A local training of up to CONF_GROUPS groups: inputs and results. */
struct conf_training {
        struct mfl_dataset set;
        struct mfl_graph *graph;
        int threads;  /* 0: one */
        int segments; /* see mfl_net_options */
        bool input_grad;
        bool refused; /* nothing was trained */
        uint32_t index[CONF_GROUPS][CONF_STEPS * CONF_BATCH * CONF_PARTS], count[CONF_GROUPS][CONF_STEPS];
        float lr_scale[CONF_GROUPS][CONF_STEPS];
        float *first;  /* G * n */
        float *params; /* G * n, after the steps */
        int64_t *acc;  /* n: the exact sum of all groups' updates */
        struct mfl_group_steps groups[CONF_GROUPS];
        struct mfl_score eval;
        uint64_t tally[CONF_TALLY]; /* of eval */
        bool moved;                 /* see moves_agree */
        struct mfl_net_plan plan;
};
void mfl_conf_training_init(struct conf_training *t, const struct conf_train_case *kase);
void mfl_conf_training_deinit(struct conf_training *t);
/* Trains groups [first, first + groups); the results of group first + g are at place g. A refusal is
 * reported. */
void mfl_conf_train(const struct conf_backend *b, struct conf_training *t, const struct conf_train_case *kase,
        size_t first, size_t groups);
/* The options of a network that trains the case. weights: CONF_CLASSES_MAX, written, and used by the network. */
struct mfl_net_options mfl_conf_train_options(const struct conf_backend *b, const struct conf_training *t,
        const struct conf_train_case *kase, float *weights);
/* Largest |a - b| over the largest |b - first|: n floats each. */
double mfl_conf_params_distance(const float *a, const float *b, const float *first, size_t n);
/* Whether groups [0, groups) of `a` have the bits of groups [first, first + groups) of `b`. */
bool mfl_conf_training_same(
        const struct conf_training *a, const struct conf_training *b, size_t first, size_t groups);

#endif
