/* SPDX-License-Identifier: Apache-2.0 */
/* Data sets that plug-ins read.
 *
 *   - the format is found among the daemon's plug-ins, with its numbers; it opens the path and says the shape;
 *   - samples are read piece by piece into the data set's memory, and checked;
 *   - the set is closed.
 * Fails: no such format; numbers that it does not take; a path that it can't open; a shape, a label or a number that no model takes. */
#include "client/plugin/plugin.h"

#include <math.h>

#include "client/plugin/internal.h"

#define PIECE_BYTES ((size_t)4 << 20)
#define SAMPLES_MAX (1u << 28)

static int fail(const struct mfl_plugin_data_config *config, const char *reason, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID, "data set %s: %s: format %s: %s", config->name, config->path,
                config->format, reason);
}

static int check_shape(
        const struct mfl_plugin_data_config *config, const struct mfl_format_shape *s, struct mfl_error *err)
{
        int64_t count = 1;
        if (s->rank != 1 && s->rank != 3)
                return fail(config, "a sample has neither 1 nor 3 dimensions", err);
        for (uint32_t d = 0; d < s->rank; d++) {
                if (s->dim[d] < 1 || s->dim[d] > INT32_MAX || (count *= s->dim[d]) > INT32_MAX)
                        return fail(
                                config, "a dimension of its samples is below 1, or they are too large", err);
        }
        if (s->rank == 3 && s->dim[0] > MFL_CHANNELS_MAX)
                return fail(config, "its samples have more than 16 channels", err);
        if ((s->classes == 0) == (s->targets == 0) || s->classes > MFL_CLASSES_MAX ||
                s->targets > MFL_TARGETS_MAX)
                return fail(config, "it must have either classes or targets, at most 1048576", err);
        if (!s->n_train || s->n_train > SAMPLES_MAX || s->n_test > SAMPLES_MAX)
                return fail(config, "it has no training samples, or too many samples", err);
        return 0;
}

static int check_piece(const struct mfl_plugin_data_config *config, const struct mfl_format_shape *shape,
        size_t floats, const struct mfl_format_read *piece, struct mfl_error *err)
{
        bool good = true;
        for (size_t i = 0; i < piece->count * floats; i++)
                good &= isfinite(piece->samples[i]) != 0;
        for (size_t i = 0; piece->targets && i < (size_t)piece->count * shape->targets; i++)
                good &= isfinite(piece->targets[i]) != 0;
        if (!good)
                return fail(config, "a number of its samples is not finite", err);
        for (uint32_t i = 0; piece->labels && i < piece->count; i++)
                good &= piece->labels[i] >= 0 && (uint32_t)piece->labels[i] < shape->classes;
        return good ? 0 : fail(config, "a label is not from 0 to classes - 1", err);
}

static int read_split(const struct mfl_format_plugin *table, void *set,
        const struct mfl_plugin_data_config *config, const struct mfl_format_shape *shape, int test,
        struct mfl_split *split, struct mfl_error *err)
{
        size_t floats = 1;
        for (uint32_t d = 0; d < shape->rank; d++)
                floats *= (size_t)shape->dim[d];
        split->n = test ? shape->n_test : shape->n_train;
        split->dtype = MFL_F32;
        uint32_t step = (uint32_t)MFL_MAX(1u, PIECE_BYTES / (floats * sizeof(float)));
        float *samples = split->samples = mfl_calloc(MFL_MAX(split->n, 1u) * floats, sizeof(float));
        if (shape->targets)
                split->targets = mfl_calloc((size_t)MFL_MAX(split->n, 1u) * shape->targets, sizeof(float));
        else
                split->labels = mfl_calloc(MFL_MAX(split->n, 1u), sizeof(int32_t));
        if (!samples || (!split->targets && !split->labels))
                return mfl_fail_memory(err, split->n * floats * sizeof(float), "a data set");
        for (uint32_t first = 0; first < split->n; first += step) {
                char reason[MFL_FORMAT_REASON_BYTES] = "it can't read a sample";
                const struct mfl_format_read piece = {.size = sizeof(piece),
                        .test = test,
                        .first = first,
                        .count = MFL_MIN(step, split->n - first),
                        .samples = samples + first * floats,
                        .labels = split->labels ? split->labels + first : NULL,
                        .targets = split->targets ? split->targets + (size_t)first * shape->targets : NULL,
                        .reason = reason};
                int r = table->read(set, &piece);
                reason[sizeof(reason) - 1] = '\0';
                r = r ? fail(config, reason, err) : check_piece(config, shape, floats, &piece, err);
                if (r)
                        return r;
        }
        return 0;
}

static int fill(const struct mfl_format_plugin *table, void *set, const struct mfl_plugin_data_config *config,
        const struct mfl_format_shape *shape, struct mfl_dataset *dataset, struct mfl_error *err)
{
        int r = check_shape(config, shape, err);
        if (r)
                return r;
        mfl_strcpy(dataset->name, sizeof(dataset->name), config->name);
        dataset->shape.rank = (int)shape->rank;
        for (uint32_t d = 0; d < shape->rank; d++)
                dataset->shape.dim[d] = shape->dim[d];
        dataset->classes = (int)shape->classes;
        dataset->n_targets = (int)shape->targets;
        dataset->labels_per_sample = 1;
        for (int c = 0; c < MFL_CHANNELS_MAX; c++)
                dataset->scale[c] = 1;
        r = read_split(table, set, config, shape, 0, &dataset->train, err);
        return r ? r : read_split(table, set, config, shape, 1, &dataset->test, err);
}

int mfl_plugin_data_load(struct mfl_client_plugins *plugins, const struct mfl_plugin_data_config *config,
        struct mfl_dataset **ret_dataset, struct mfl_error *err)
{
        double values[MFL_PLUGIN_NUMBERS_MAX];
        char reason[MFL_FORMAT_REASON_BYTES] = "it can't open it";
        const struct mfl_plugin_object *object;
        struct mfl_format_shape shape = {.size = sizeof(shape)};
        void *set = NULL;
        int r = mfl_client_plugin_find(plugins, &mfl_format_kind, "plugin_data", config->format,
                &config->numbers, &object, values, NULL, err);
        if (r)
                return r;
        const struct mfl_format_plugin *table = (const void *)object->table;
        struct mfl_dataset *dataset = mfl_calloc(1, sizeof(*dataset));
        if (!dataset)
                return mfl_fail_memory(err, sizeof(*dataset), "a data set");
        r = table->open(config->path, values, &set, &shape, reason);
        reason[sizeof(reason) - 1] = '\0';
        if (r) {
                mfl_dataset_free(dataset);
                return fail(config, reason, err);
        }
        r = fill(table, set, config, &shape, dataset, err);
        table->close(set);
        if (r)
                mfl_dataset_free(dataset);
        else
                *ret_dataset = dataset;
        return r;
}
