/* SPDX-License-Identifier: Apache-2.0 */
/* A test split out of the training samples, where no file has one. */
#include "common/data/sources.h"
#include "common/rng.h"

#define STREAM_TEST_FRACTION 3 /* of MFL_RNG_DATA, coordinate a; synthetic.c has 0 to 2 */

uint32_t mfl_test_count(uint32_t n, double fraction)
{
        uint32_t count = (uint32_t)(n * fraction + 0.5);
        return count < n ? count : 0;
}

/* Moves the elements, of each sample of `bytes` bytes, whose sample is marked: to a new array, the rest
 * closing up. */
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
        uint32_t n = train->n, n_test = mfl_test_count(n, config->test_fraction);
        if (!n_test)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: test_fraction %g of %u samples; each split needs at least one",
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
        r = r ? r : move(marked, n, n_test, sizeof *train->labels, train->labels, &labels);
        r = r ? r
              : move(marked, n, n_test, (size_t)dataset->n_targets * sizeof *train->targets, train->targets,
                        &targets);
        r = r ? r : move(marked, n, n_test, sizeof *train->owner, train->owner, &owner);
        test->labels = labels;
        test->targets = targets;
        test->owner = owner;
        if (r)
                return mfl_fail_memory(err, n_test * count * element, config->name);
        test->dtype = train->dtype;
        test->n = n_test;
        train->n = n - n_test;
        return 0;
}
