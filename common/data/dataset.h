/* SPDX-License-Identifier: Apache-2.0 */
/* Data sets in memory: samples of one shape with integer labels, a training and a test split.
 *
 * Readers: idx (plain or .gz: MNIST, Fashion-MNIST), CIFAR-10 binary, npy pairs. A file from a stranger is
 * never trusted: every size is checked against the file before anything is allocated; MFL_INVALID names the
 * file, what it says and what it should say. Blocking I/O: not on a loop thread. Immutable once loaded; any
 * thread.
 */
#ifndef MFL_COMMON_DATA_DATASET_H
#define MFL_COMMON_DATA_DATASET_H

#include "common/base.h"
#include "common/model/graph.h"

enum mfl_dtype {
        MFL_U8,
        MFL_F32,
};

/* n samples; sample i is mfl_shape_count(shape) elements at samples + i * count * element size. The value
 * that a model sees is x * scale[c] + shift[c], c being the channel (dimension 0 of an image; 0 for vectors).
 */
struct mfl_split {
        uint32_t n;
        enum mfl_dtype dtype;
        void *samples;
        int32_t *labels; /* in [0, classes) */
};

#define MFL_CHANNELS_MAX 16
#define MFL_CLASSES_MAX 65536
struct mfl_dataset {
        char name[MFL_NAME_BYTES];
        struct mfl_shape shape; /* {C,H,W} or {F} */
        int classes;
        float scale[MFL_CHANNELS_MAX], shift[MFL_CHANNELS_MAX];
        struct mfl_split train, test;
};

/* Where a data set comes from: one entry under `data_sets:` of a daemon's configuration. */
struct mfl_dataset_config {
        char name[MFL_NAME_BYTES];
        enum {
                MFL_FORMAT_IDX,       /* dir holds {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz] */
                MFL_FORMAT_CIFAR10,   /* dir holds data_batch_{1..5}.bin and test_batch.bin */
                MFL_FORMAT_NPY,       /* train_x, train_y, test_x, test_y name the files */
                MFL_FORMAT_SYNTHETIC, /* made from a seed, for benchmarks: see n, shape, classes below */
        } format;
        char *dir;
        char *train_x, *train_y, *test_x, *test_y;
        int classes;   /* 0: largest label + 1 */
        bool has_mean; /* mean and std per channel, of values scaled to [0, 1] when u8 */
        float mean[MFL_CHANNELS_MAX], std[MFL_CHANNELS_MAX];
        struct mfl_shape shape;   /* synthetic; npy: overrides, e.g. to give {1,28,28} to flat rows */
        uint32_t n_train, n_test; /* synthetic */
        uint64_t seed;            /* synthetic */
};
void mfl_dataset_config_deinit(struct mfl_dataset_config *config);

int mfl_dataset_load(
        const struct mfl_dataset_config *config, struct mfl_dataset **ret_dataset, struct mfl_error *err);
void mfl_dataset_free(struct mfl_dataset *dataset);

#endif
