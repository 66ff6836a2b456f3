/* SPDX-License-Identifier: Apache-2.0 */
/* Synthetic data sets: a function of (shape, classes, n, seed), for benchmarks and tests without files. */
#include "common/data/formats.h"
#include "common/base/rng.h"

/* Streams of one data set, by the coordinate a. */
enum {
        STREAM_MEANS = 0,  /* b: class */
        STREAM_LABELS = 1, /* b: split */
        STREAM_SAMPLE = 2, /* b: split, sample */
};

/* Class means are uniform in [96, 160) per element. */
static void draw_means(uint64_t seed, int classes, size_t count, uint8_t *means)
{
        for (int c = 0; c < classes; c++) {
                struct mfl_rng rng = mfl_rng_new(seed, MFL_RNG_DATA, STREAM_MEANS, (uint64_t)c);
                for (size_t e = 0; e < count; e++)
                        means[(size_t)c * count + e] = (uint8_t)(96 + (mfl_rng_u32(&rng) >> 26));
        }
}

/* mean + noise, clamped. The noise is a quarter of the centred sum of the four bytes of one number:
 * bell-shaped, of standard deviation 37, and pure integer arithmetic, so that every machine makes the same
 * data. */
static void draw_sample(struct mfl_rng *rng, const uint8_t *mean, size_t count, uint8_t *sample)
{
        for (size_t e = 0; e < count; e++) {
                uint32_t u = mfl_rng_u32(rng);
                int sum = (int)((u & 255) + (u >> 8 & 255) + (u >> 16 & 255) + (u >> 24));
                int v = mean[e] + (sum - 510) / 4;
                sample[e] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
        }
}

static int fill_split(const struct mfl_dataset *dataset, uint64_t seed, unsigned which, uint32_t n,
        const uint8_t *means, struct mfl_split *split, struct mfl_error *err)
{
        size_t count = (size_t)mfl_shape_count(&dataset->shape), bytes = 0;
        if (__builtin_mul_overflow(count, n, &bytes))
                return mfl_fail(err, MFL_INVALID, "data set %s: %u samples of %zu bytes are too large",
                        dataset->name, n, count);
        split->samples = mfl_alloc_aligned(bytes);
        split->labels = mfl_calloc(n, sizeof *split->labels);
        if (!split->samples || !split->labels)
                return mfl_fail_memory(err, bytes, dataset->name);
        split->n = n;
        split->dtype = MFL_U8;
        /* Classes are as equal as n allows, in random order. */
        for (uint32_t i = 0; i < n; i++)
                split->labels[i] = (int32_t)(i % (uint32_t)dataset->classes);
        struct mfl_rng order = mfl_rng_new(seed, MFL_RNG_DATA, STREAM_LABELS, which);
        mfl_rng_shuffle(&order, (uint32_t *)split->labels, n);
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_rng rng =
                        mfl_rng_new(seed, MFL_RNG_DATA, STREAM_SAMPLE, (uint64_t)which << 32 | i);
                draw_sample(&rng, means + (size_t)split->labels[i] * count, count,
                        (uint8_t *)split->samples + i * count);
        }
        return 0;
}

int mfl_synthetic_fill(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        int classes = config->classes ? config->classes : 10;
        int r = mfl_sample_shape_check(&config->shape, config->name, err);
        if (r)
                return r;
        if (!config->n_train || !config->n_test || config->n_train > INT32_MAX || config->n_test > INT32_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: %u training and %u test samples; 1 to %d of each are possible",
                        config->name, config->n_train, config->n_test, INT32_MAX);
        dataset->shape = config->shape;
        dataset->classes = classes;
        size_t count = (size_t)mfl_shape_count(&config->shape);
        MFL_CLEANUP_FREE uint8_t *means = mfl_calloc((size_t)classes, count);
        if (!means)
                return mfl_fail_memory(err, (size_t)classes * count, "class means");
        draw_means(config->seed, classes, count, means);
        r = fill_split(dataset, config->seed, 0, config->n_train, means, &dataset->train, err);
        if (!r)
                r = fill_split(dataset, config->seed, 1, config->n_test, means, &dataset->test, err);
        return r;
}
