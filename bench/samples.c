/* SPDX-License-Identifier: Apache-2.0 */
/* Random images and texts for benchmarks. */
#include "bench/samples.h"

#include "common/base/rng.h"

/* LEAF's Shakespeare (Caldas et al. 2018): samples of 80 characters, 80 different ones. */
#define TEXT_LENGTH 80
#define TEXT_SYMBOLS 80

static bool starts_with(const char *text, const char *start)
{
        return !strncmp(text, start, strlen(start));
}

struct mfl_shape bench_shape(const char *model, int *ret_classes)
{
        *ret_classes = 10;
        if (starts_with(model, "char-")) {
                *ret_classes = TEXT_SYMBOLS;
                return (struct mfl_shape){1, {TEXT_LENGTH}};
        }
        if (!strcmp(model, "pfl-cnn") || !strcmp(model, "mobilenet-v2") || !strcmp(model, "vit-tiny") ||
                starts_with(model, "resnet"))
                return (struct mfl_shape){3, {3, 32, 32}};
        return (struct mfl_shape){3, {1, 28, 28}};
}

static void *random_bytes(struct mfl_rng *rng, size_t n)
{
        uint8_t *bytes = mfl_malloc(n);
        mfl_assert(bytes);
        for (size_t i = 0; i < n; i++)
                bytes[i] = (uint8_t)mfl_rng_u32(rng);
        return bytes;
}

static int32_t *random_classes(struct mfl_rng *rng, size_t n, int classes)
{
        int32_t *labels = mfl_malloc(n * sizeof *labels);
        mfl_assert(labels);
        for (size_t i = 0; i < n; i++)
                labels[i] = (int32_t)mfl_rng_below(rng, (uint32_t)classes);
        return labels;
}

/* vocabulary 0: bytes; each: labels of a sample. */
static void fill(const struct mfl_shape *shape, int classes, int vocabulary, int each, uint32_t n,
        struct mfl_dataset *ret_set)
{
        struct mfl_rng rng = mfl_rng_new(1, MFL_RNG_TEST, 0, 0);
        size_t count = n * (size_t)mfl_shape_count(shape);
        *ret_set = (struct mfl_dataset){.shape = *shape,
                .classes = classes,
                .vocabulary = vocabulary,
                .labels_per_sample = each > 1 ? each : 0};
        if (vocabulary)
                ret_set->train = (struct mfl_split){n, MFL_I32, random_classes(&rng, count, vocabulary)};
        else
                ret_set->train = (struct mfl_split){n, MFL_U8, random_bytes(&rng, count)};
        ret_set->train.labels = random_classes(&rng, n * (size_t)each, classes);
        for (int c = 0; c < MFL_CHANNELS_MAX; c++)
                ret_set->scale[c] = 1.0f / 255.0f;
}

void bench_samples_init(const char *model, uint32_t n, struct mfl_dataset *ret_set)
{
        int classes;
        struct mfl_shape shape = bench_shape(model, &classes);
        bool text = shape.rank == 1;
        fill(&shape, classes, text ? classes : 0, text ? TEXT_LENGTH : 1, n, ret_set);
}

void bench_samples_of(const struct mfl_graph *graph, uint32_t n, struct mfl_dataset *ret_set)
{
        fill(&graph->input, graph->classes, graph->vocabulary, graph->positions, n, ret_set);
}

void bench_samples_deinit(struct mfl_dataset *set)
{
        free(set->train.samples);
        free(set->train.labels);
}
