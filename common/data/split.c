/* SPDX-License-Identifier: Apache-2.0 */
/* The two splits of a data set: whether they fit each other, and how a test split is taken out of the training samples
 * when no file has one. */
#include "common/data/sources.h"
#include "common/base/rng.h"

#define STREAM_TEST_FRACTION 3 /* of MFL_RNG_DATA, coordinate a; synthetic.c has 0 to 2 */

size_t mfl_dtype_bytes(enum mfl_dtype dtype)
{
        return dtype == MFL_U8 ? 1 : 4;
}

/* A label for each token, or for each row of a series. Tokens are whole numbers: floats are one row of features. */
static bool has_labels_of_positions(
        const struct mfl_array *x, const struct mfl_array *y, const struct mfl_shape *shape)
{
        return y->rank == 2 && y->dim[1] > 1 && y->dim[1] == (uint64_t)shape->dim[0] &&
               (shape->rank == 2 || (shape->rank == 1 && !mfl_array_is_float(x)));
}

int mfl_pair_settle(struct mfl_data_bytes *x, const struct mfl_array *x_array, const char *x_path,
        struct mfl_data_bytes *y, const struct mfl_array *y_array, const char *y_path,
        const struct mfl_shape *shape, struct mfl_shape *ret_shape, int *ret_n_targets,
        struct mfl_split *split, struct mfl_error *err)
{
        uint32_t n_labels = 0;
        int n_targets = 0;
        int r = mfl_array_to_samples(
                x_array, x->data, shape, x_path, ret_shape, &split->dtype, &split->n, err);
        if (!r && mfl_array_is_float(y_array))
                r = mfl_array_to_targets(
                        y_array, y->data, y_path, &split->targets, &n_targets, &n_labels, err);
        else if (!r && (y_array->rank > 2 || has_labels_of_positions(x_array, y_array, ret_shape)))
                r = mfl_array_to_label_maps(y_array, y->data, y_path, ret_shape, &split->labels,
                        &split->labels_each, &n_labels, err);
        else if (!r)
                r = mfl_array_to_labels(y_array, y->data, y_path, &split->labels, &n_labels, err);
        if (!r && n_labels != split->n)
                r = mfl_fail(err, MFL_INVALID, "%s: %u labels, but %s has %u samples", y_path, n_labels,
                        x_path, split->n);
        free(y->data);
        split->samples = x->data; /* freed with the data set, whatever r says */
        *x = *y = (struct mfl_data_bytes){0};
        *ret_n_targets = n_targets;
        return r;
}

int mfl_samples_settle(struct mfl_data_bytes *x, const struct mfl_array *array, const char *path,
        const struct mfl_shape *shape, struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct mfl_split *split = &dataset->train;
        int r = mfl_array_to_samples(
                array, x->data, shape, path, &dataset->shape, &split->dtype, &split->n, err);
        split->samples = x->data; /* freed with the data set, whatever r says */
        *x = (struct mfl_data_bytes){0};
        if (r)
                return r;
        split->labels = mfl_calloc(split->n, sizeof *split->labels);
        return split->labels ? 0 : mfl_fail_memory(err, split->n * sizeof *split->labels, path);
}

int mfl_pairs_check(const struct mfl_dataset *dataset, const struct mfl_shape *test_shape, int test_targets,
        struct mfl_error *err)
{
        char a[96], b[96];
        if (!mfl_shape_equal(&dataset->shape, test_shape) || dataset->train.dtype != dataset->test.dtype)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: training samples are %s of %s, test samples %s of %s", dataset->name,
                        mfl_shape_text(&dataset->shape, a, sizeof a),
                        dataset->train.dtype == MFL_U8 ? "u8" : "floats",
                        mfl_shape_text(test_shape, b, sizeof b),
                        dataset->test.dtype == MFL_U8 ? "u8" : "floats");
        if (dataset->train.labels_each != dataset->test.labels_each)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: training samples have %d labels, test samples %d", dataset->name,
                        MFL_MAX(1, dataset->train.labels_each), MFL_MAX(1, dataset->test.labels_each));
        if (dataset->n_targets != test_targets)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: training samples have %d float targets, test samples %d (0: class "
                        "labels)",
                        dataset->name, dataset->n_targets, test_targets);
        return 0;
}

/* How many of n samples a test_fraction takes: to the nearest, at least 1 and not all; 0: impossible. */
static uint32_t count_test(uint32_t n, double fraction)
{
        uint32_t count = (uint32_t)(n * fraction + 0.5);
        return count < n ? count : 0;
}

/* Moves the marked samples, `bytes` bytes each, to a new array, and closes the gaps. */
static int move(
        const uint8_t *marked, uint32_t n, uint32_t n_test, size_t bytes, void *train, void **ret_test)
{
        if (!train)
                return 0;
        uint8_t *from = train, *to = mfl_alloc_aligned(MFL_MAX(n_test * bytes, 1));
        size_t n_kept = 0, n_moved = 0;
        if (!to)
                return -ENOMEM;
        for (uint32_t i = 0; i < n; i++) {
                if (marked[i])
                        memcpy(to + bytes * n_moved++, from + bytes * i, bytes);
                else
                        memmove(from + bytes * n_kept++, from + bytes * i, bytes);
        }
        *ret_test = to;
        return 0;
}

int mfl_split_off_test(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct mfl_split *train = &dataset->train, *test = &dataset->test;
        uint32_t n = train->n, n_test = count_test(n, config->test_fraction);
        if (config->whole)
                return 0;
        if (!n_test)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: test_fraction %g of %u samples leaves a split empty; each split needs "
                        "at least one",
                        config->name, config->test_fraction, n);
        MFL_CLEANUP_FREE uint32_t *order = mfl_calloc(n, sizeof *order);
        MFL_CLEANUP_FREE uint8_t *marked = mfl_calloc(n, 1);
        if (!order || !marked)
                return mfl_fail_memory(err, n * (sizeof *order + 1), config->name);
        for (uint32_t i = 0; i < n; i++)
                order[i] = i;
        struct mfl_rng rng = mfl_rng_new(config->seed, MFL_RNG_DATA, STREAM_TEST_FRACTION, 0);
        mfl_rng_shuffle(&rng, order, n);
        for (uint32_t i = 0; i < n_test; i++)
                marked[order[i]] = 1;
        size_t element = mfl_dtype_bytes(train->dtype), count = (size_t)mfl_shape_count(&dataset->shape);
        void *labels = NULL, *targets = NULL, *owner = NULL;
        int r = move(marked, n, n_test, count * element, train->samples, &test->samples);
        r = r ? r
              : move(marked, n, n_test, sizeof *train->labels * (size_t)MFL_MAX(1, train->labels_each),
                        train->labels, &labels);
        r = r ? r
              : move(marked, n, n_test, (size_t)dataset->n_targets * sizeof *train->targets, train->targets,
                        &targets);
        r = r ? r : move(marked, n, n_test, sizeof *train->owner, train->owner, &owner);
        test->labels = labels;
        test->labels_each = train->labels_each;
        test->targets = targets;
        test->owner = owner;
        if (r)
                return mfl_fail_memory(err, n_test * count * element, config->name);
        test->dtype = train->dtype;
        test->n = n_test;
        train->n = n - n_test;
        return 0;
}
