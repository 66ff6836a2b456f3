/* SPDX-License-Identifier: Apache-2.0 */
/* What backends that compute in host memory share: data sets, gathering a batch, the loss of a batch. Pure
 * functions on the caller's memory. Labels outside [0, classes) are a programmer's error: the data set's
 * reader has checked them. */
#ifndef MFL_KERNELS_HOST_H
#define MFL_KERNELS_HOST_H

#include "kernels/backend.h"
#include "kernels/check.h"

/* Refers to the caller's data set, which outlives it. */
struct mfl_device_data {
        const struct mfl_dataset *dataset;
        const struct mfl_split *split;
        int64_t count;           /* floats of a sample */
        int64_t n_planes, plane; /* channels, and floats of one */
};

int mfl_host_data_new(struct mfl_device *device, const struct mfl_dataset *dataset,
        const struct mfl_split *split, bool resident, struct mfl_device_data **ret_data,
        struct mfl_error *err);
void mfl_host_data_free(struct mfl_device_data *data);

/* x[r] = sample index[r] * scale + shift for r in [0, rows), NCHW floats. */
void mfl_host_gather(const struct mfl_device_data *data, const uint32_t *index, uint32_t rows, float *x);

/* The same of the first n rows in order. */
void mfl_host_read_rows(const struct mfl_rows *rows, uint32_t n, float *x);

/* The same for images of that shape. Each row is shifted and mirrored as mfl_augment_pick says for the step's
 * key (mfl_rng_augment_key); index[0] is row first_row of the step. */
void mfl_host_gather_augmented(const struct mfl_device_data *data, const struct mfl_shape *image,
        const struct mfl_augment *augment, struct mfl_rng_key step_key, uint32_t first_row,
        const uint32_t *index, uint32_t rows, float *x);

/* The shape in which samples are augmented: the data set's or, where its samples are flat, the graph's input.
 * MFL_INVALID where neither is an image. */
int mfl_host_image_shape(const struct mfl_graph *graph, const struct mfl_device_data *data,
        struct mfl_shape *ret_image, struct mfl_error *err);
static inline bool mfl_host_augments(const struct mfl_augment *augment)
{
        return augment->crop > 0 || augment->flip;
}

/* The loss of one row of logits, as mfl_label_loss; for backends with a faster one. */
typedef float mfl_host_row(const void *user, const struct mfl_loss *loss, const float *z, int classes,
        int label, float scale, float *dz, bool *ret_hit);

struct mfl_host_loss {
        const struct mfl_device_data *data;
        const struct mfl_graph *graph;
        const struct mfl_loss *loss;
        const uint32_t *index; /* of the batch's rows */
        uint32_t rows;
        const struct mfl_loss_share *share; /* NULL: evaluation; auxiliary outputs do not count */
        mfl_host_row *row;                  /* NULL: mfl_label_loss */
        const void *row_user;
        enum mfl_tally tally; /* of score->tally, if that is not NULL */
};

/* The loss of rows with outputs z of the graph's last layer. Adds to the score; dz (NULL: not wanted) is the
 * rows' share of the gradient of the step's loss. */
void mfl_host_loss(const struct mfl_host_loss *a, const float *z, float *dz, struct mfl_score *score);

/* MFL_INVALID where batch, groups or threads is below 1, or the precision is not fp32: these backends have no
 * products for others. `fast` and `streamed` are ignored. */
int mfl_host_check_options(const struct mfl_net_options *options, struct mfl_error *err);

/* "fp32", ...: as in job files. */
const char *mfl_precision_name(enum mfl_precision precision);

/* The machine's name and cores, and its installed memory. */
void mfl_host_device_info(struct mfl_device_info *info);

#endif
