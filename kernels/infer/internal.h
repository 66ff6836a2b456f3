/* SPDX-License-Identifier: Apache-2.0 */
/* What an inference object holds; private to kernels/infer. */
#ifndef MFL_KERNELS_INFER_INTERNAL_H
#define MFL_KERNELS_INFER_INTERNAL_H

#include "kernels/host.h"
#include "kernels/infer/infer.h"

struct mfl_infer {
        struct mfl_model_file *own; /* NULL: the model is the caller's */
        const struct mfl_model_file *model;
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        struct mfl_net *net;
        uint32_t batch_max, outputs;
        enum mfl_precision precision;
        int64_t count;        /* elements of a sample */
        struct mfl_rows rows; /* of a call */
        float *columns;       /* normalise: columns: a batch of rows, scaled; otherwise NULL */
        float *x, *y;         /* backends without infer: a whole batch */
        float ones[MFL_CHANNELS_MAX], zeros[MFL_CHANNELS_MAX];
};

/* normalise: columns, as the daemons' reader does it (common/data/columns.c): n samples. */
void mfl_infer_scale_columns(const struct mfl_infer *infer, uint64_t n, const float *x, float *to);

#endif
