/* SPDX-License-Identifier: Apache-2.0 */
/* npz files as a data set: one file with the arrays x_train, y_train, x_test, y_test, or with x and y, which are
 * split; or two files, each with x and y. The configuration may name the arrays. And of npy and npz: samples that are
 * whole numbers become tokens. */
#include "common/data/sources.h"

#include <math.h>
#include <stdio.h>

static int read_array(struct mfl_npz *npz, const char *path, const char *name, struct mfl_data_bytes *bytes,
        struct mfl_array *array, char *text, size_t text_bytes, struct mfl_error *err)
{
        snprintf(text, text_bytes, "%s: %s", path, name);
        int r = mfl_npz_read(npz, name, bytes, err);
        return r ? r : mfl_npy_parse(bytes->data, bytes->n, text, array, err);
}

static int load_pair(struct mfl_npz *npz, const char *path, const char *x_name, const char *y_name,
        const struct mfl_shape *shape, struct mfl_shape *ret_shape, int *ret_n_targets,
        struct mfl_split *split, struct mfl_error *err)
{
        char x_text[512], y_text[512];
        struct mfl_data_bytes x = {0}, y = {0};
        struct mfl_array x_array, y_array;
        int r = read_array(npz, path, x_name, &x, &x_array, x_text, sizeof x_text, err);
        if (!r)
                r = read_array(npz, path, y_name, &y, &y_array, y_text, sizeof y_text, err);
        if (r) {
                free(x.data);
                free(y.data);
                return r;
        }
        return mfl_pair_settle(
                &x, &x_array, x_text, &y, &y_array, y_text, shape, ret_shape, ret_n_targets, split, err);
}

struct npz_file {
        struct mfl_data_bytes bytes;
        struct mfl_npz *npz;
};

static int open_file(const char *path, struct npz_file *file, struct mfl_error *err)
{
        int r = mfl_data_read_file(path, &file->bytes, err);
        return r ? r : mfl_npz_open(file->bytes.data, file->bytes.n, path, &file->npz, err);
}

static void close_file(struct npz_file *file)
{
        mfl_npz_close(file->npz);
        free(file->bytes.data);
}

#define OR(name, usual) ((name) ? (name) : (usual))

/* The arrays x and y, or those of the test split. */
static int load_whole(const struct mfl_dataset_config *config, struct npz_file *file,
        struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct mfl_data_bytes bytes = {0};
        struct mfl_array array;
        char text[512];
        bool plain = !config->train_x && !mfl_npz_read(file->npz, "x", &bytes, NULL);
        const char *x = OR(config->train_x, plain ? "x" : "x_test"),
                   *y = OR(config->train_y, plain ? "y" : "y_test");
        free(bytes.data);
        bytes = (struct mfl_data_bytes){0};
        if (!config->unlabelled)
                return load_pair(file->npz, config->dir, x, y, &config->shape, &dataset->shape,
                        &dataset->n_targets, &dataset->train, err);
        int r = read_array(file->npz, config->dir, x, &bytes, &array, text, sizeof text, err);
        if (!r)
                return mfl_samples_settle(&bytes, &array, text, &config->shape, dataset, err);
        free(bytes.data);
        return r;
}

/* One file holds both splits, unless it has only x and y. */
static int load_one(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct npz_file file = {0};
        struct mfl_shape test_shape;
        bool fraction = config->test_fraction > 0;
        int test_targets, r = open_file(config->dir, &file, err);
        if (config->whole) {
                r = r ? r : load_whole(config, &file, dataset, err);
                close_file(&file);
                return r;
        }
        if (!r)
                r = load_pair(file.npz, config->dir, OR(config->train_x, fraction ? "x" : "x_train"),
                        OR(config->train_y, fraction ? "y" : "y_train"), &config->shape, &dataset->shape,
                        &dataset->n_targets, &dataset->train, err);
        if (!r && fraction)
                r = mfl_split_off_test(config, dataset, err);
        if (!r && !fraction) {
                r = load_pair(file.npz, config->dir, OR(config->test_x, "x_test"),
                        OR(config->test_y, "y_test"), &config->shape, &test_shape, &test_targets,
                        &dataset->test, err);
                if (!r)
                        r = mfl_pairs_check(dataset, &test_shape, test_targets, err);
        }
        close_file(&file);
        return r;
}

static int load_two(const struct mfl_dataset_config *config, const char *train, const char *test,
        struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct npz_file file = {0};
        struct mfl_shape test_shape;
        int test_targets, r = open_file(train, &file, err);
        if (!r)
                r = load_pair(file.npz, train, OR(config->train_x, "x"), OR(config->train_y, "y"),
                        &config->shape, &dataset->shape, &dataset->n_targets, &dataset->train, err);
        close_file(&file);
        if (r)
                return r;
        if (!test)
                return mfl_split_off_test(config, dataset, err);
        file = (struct npz_file){0};
        r = open_file(test, &file, err);
        if (!r)
                r = load_pair(file.npz, test, OR(config->test_x, "x"), OR(config->test_y, "y"),
                        &config->shape, &test_shape, &test_targets, &dataset->test, err);
        close_file(&file);
        return r ? r : mfl_pairs_check(dataset, &test_shape, test_targets, err);
}

int mfl_load_npz(const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        char *train, *test;
        if (!mfl_data_is_folder(config->dir))
                return load_one(config, dataset, err);
        int r = mfl_data_find(config, ".npz", &train, &test, err);
        if (r)
                return r;
        r = load_two(config, train, test, dataset, err);
        free(train);
        free(test);
        return r;
}

/* ---- tokens ---- */

/* The number of tokens; 0: auto. */
static int read_vocabulary(
        const struct mfl_dataset_config *config, int *ret_vocabulary, struct mfl_error *err)
{
        const char *text = config->vocabulary;
        char *end;
        *ret_vocabulary = 0;
        if (!strcmp(text, "auto"))
                return 0;
        unsigned long v = strtoul(text, &end, 10);
        if (*text < '0' || *text > '9' || *end || v < 2 || v > MFL_CLASSES_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: vocabulary '%.40s' is not the number of tokens, 2 to %d, or auto: the "
                        "largest + 1",
                        config->name, text, MFL_CLASSES_MAX);
        *ret_vocabulary = (int)v;
        return 0;
}

/* u8 becomes float, as other integers have. */
static int widen(struct mfl_split *split, size_t count, struct mfl_error *err)
{
        const uint8_t *from = split->samples;
        float *to = mfl_alloc_aligned(count * sizeof *to);
        if (!to)
                return mfl_fail_memory(err, count * sizeof *to, "tokens");
        for (size_t i = 0; i < count; i++)
                to[i] = from[i];
        free(split->samples);
        split->samples = to;
        split->dtype = MFL_F32;
        return 0;
}

/* In place. *largest grows to the largest token. */
static int convert(const struct mfl_dataset_config *config, const char *name, struct mfl_split *split,
        size_t each, int vocabulary, int *largest, struct mfl_error *err)
{
        float *from = split->samples;
        size_t count = split->n * each;
        for (size_t i = 0; i < count; i++) {
                float v = from[i];
                unsigned long long sample = i / each;
                if (v != floorf(v) || v < 0 || v >= MFL_CLASSES_MAX)
                        return mfl_fail(err, MFL_INVALID,
                                "data set %s: %.9g in %s sample %llu is not a token; tokens are whole "
                                "numbers "
                                "from 0 "
                                "to %d",
                                config->name, (double)v, name, sample, MFL_CLASSES_MAX - 1);
                if (vocabulary && v >= (float)vocabulary)
                        return mfl_fail(err, MFL_INVALID,
                                "data set %s: token %.9g in %s sample %llu is outside the vocabulary of %d: "
                                "0 "
                                "to %d",
                                config->name, (double)v, name, sample, vocabulary, vocabulary - 1);
                int32_t token = (int32_t)v;
                *largest = MFL_MAX(*largest, token);
                memcpy((char *)split->samples + i * sizeof token, &token, sizeof token);
        }
        split->dtype = MFL_I32;
        return 0;
}

int mfl_tokens_settle(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct mfl_split *splits[] = {&dataset->train, &dataset->test};
        static const char *const names[] = {"training", "test"};
        char text[96];
        int vocabulary, largest = 0, r = read_vocabulary(config, &vocabulary, err);
        if (!r && dataset->shape.rank != 1)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: samples of tokens have one dimension, the positions, but these are %s",
                        config->name, mfl_shape_text(&dataset->shape, text, sizeof text));
        size_t each = (size_t)mfl_shape_count(&dataset->shape);
        for (int s = 0; !r && s < 2; s++) {
                if (splits[s]->dtype == MFL_U8)
                        r = widen(splits[s], splits[s]->n * each, err);
                if (!r)
                        r = convert(config, names[s], splits[s], each, vocabulary, &largest, err);
        }
        dataset->vocabulary = vocabulary ? vocabulary : largest + 1;
        dataset->tokens = MFL_TOKENS_NUMBERS;
        return r;
}
