/* SPDX-License-Identifier: Apache-2.0 */
/* Loads a data set: finds its files, reads each one completely, and passes the bytes to the parsers of formats.h.
 *
 * Happy path: find, read, inflate if gzip, parse, convert in place; both splits; classes; scaling.
 * Fails with MFL_INVALID: a file that is missing, unreadable, no regular file, changes while it is read, or
 * is not what it should be; images and labels that differ in number; splits that differ in shape. Negative:
 * I/O errors, memory.
 */
#include "common/data/formats.h"
#include "common/data/sources.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

const char *const mfl_data_format_names[] = {
        "idx", "cifar10", "npy", "synthetic", "cifar100", "csv", "npz", "text", "images", NULL};
_Static_assert(MFL_ARRAY_SIZE(mfl_data_format_names) == MFL_FORMAT_COUNT + 1, "one name for each format");

static void free_list(char ***list, int *n)
{
        for (int i = 0; i < *n; i++)
                free((*list)[i]);
        free(*list);
        *list = NULL;
        *n = 0;
}

void mfl_dataset_config_deinit(struct mfl_dataset_config *config)
{
        char **texts[] = {&config->dir, &config->train_x, &config->train_y, &config->test_x, &config->test_y,
                &config->label, &config->owner, &config->group, &config->time, &config->text,
                &config->vocabulary, &config->masks};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(texts); i++) {
                free(*texts[i]);
                *texts[i] = NULL;
        }
        free_list(&config->targets, &config->n_target_columns);
        free_list(&config->ignored, &config->n_ignored);
        free_list(&config->features, &config->n_feature_columns);
        mfl_categories_free(config->categories, config->n_categories);
        config->categories = NULL;
        config->n_categories = 0;
}

void mfl_dataset_free(struct mfl_dataset *dataset)
{
        if (!dataset)
                return;
        struct mfl_split *splits[] = {&dataset->train, &dataset->test};
        for (int s = 0; s < 2; s++) {
                free(splits[s]->samples);
                free(splits[s]->labels);
                free(splits[s]->targets);
                free(splits[s]->owner);
        }
        free(dataset->owner_names);
        free(dataset->class_names);
        free(dataset->symbols);
        free(dataset->words);
        free(dataset->feature_names);
        free(dataset->categorical);
        free(dataset->encoding);
        free(dataset->column_mean);
        free(dataset);
}

/* One file of a split: its bytes (which the caller frees, also on failure) and the array that they hold. */
static int read_idx(
        const char *path, struct mfl_data_bytes *bytes, struct mfl_array *ret_array, struct mfl_error *err)
{
        int r = mfl_data_read_file(path, bytes, err);
        if (!r && mfl_is_gzip(bytes->data, bytes->n)) {
                struct mfl_data_bytes plain;
                r = mfl_idx_inflate(bytes->data, bytes->n, path, &plain.data, &plain.n, err);
                if (!r) {
                        free(bytes->data);
                        *bytes = plain;
                }
        }
        return r ? r : mfl_idx_parse(bytes->data, bytes->n, path, ret_array, err);
}

static int read_npy(
        const char *path, struct mfl_data_bytes *bytes, struct mfl_array *ret_array, struct mfl_error *err)
{
        int r = mfl_data_read_file(path, bytes, err);
        return r ? r : mfl_npy_parse(bytes->data, bytes->n, path, ret_array, err);
}

typedef int read_fn(
        const char *path, struct mfl_data_bytes *bytes, struct mfl_array *ret_array, struct mfl_error *err);

/* Samples that nobody has labelled. */
static int load_samples(read_fn *read_array, const char *path, const struct mfl_dataset_config *config,
        struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct mfl_data_bytes x = {0};
        struct mfl_array array;
        int r = read_array(path, &x, &array, err);
        return r ? r : mfl_samples_settle(&x, &array, path, &config->shape, dataset, err);
}

/* shape has rank 0, or is the configured one. */
static int load_pair(read_fn *read_array, const char *x_path, const char *y_path,
        const struct mfl_shape *shape, struct mfl_shape *ret_shape, int *ret_n_targets,
        struct mfl_split *split, struct mfl_error *err)
{
        struct mfl_data_bytes x = {0}, y = {0};
        struct mfl_array x_array, y_array;
        int r = read_array(x_path, &x, &x_array, err);
        if (!r)
                r = read_array(y_path, &y, &y_array, err);
        if (r) {
                free(x.data);
                free(y.data);
                return r;
        }
        return mfl_pair_settle(
                &x, &x_array, x_path, &y, &y_array, y_path, shape, ret_shape, ret_n_targets, split, err);
}

/* The first usual spelling that exists: train-images-idx3-ubyte, train-images.idx3-ubyte, each also as .gz. */
static int find_idx(
        const char *dir, const char *stem, const char *kind, char **ret_path, struct mfl_error *err)
{
        for (int i = 0; i < 4; i++) {
                char *path = mfl_asprintf(
                        "%s/%s%c%s-ubyte%s", dir, stem, i & 1 ? '.' : '-', kind, i & 2 ? ".gz" : "");
                if (!path)
                        return mfl_fail_memory(err, strlen(dir) + 64, "a path");
                if (access(path, F_OK) == 0) {
                        *ret_path = path;
                        return 0;
                }
                free(path);
        }
        if (!mfl_data_is_folder(dir))
                return mfl_fail(err, MFL_INVALID, "%s: no such folder", dir);
        return mfl_fail(err, MFL_INVALID,
                "%s: contains neither %s-%s-ubyte nor %s.%s-ubyte, nor these with .gz", dir, stem, kind, stem,
                kind);
}

static int load_idx_split(const char *dir, const char *images, const char *labels,
        const struct mfl_shape *shape, struct mfl_shape *ret_shape, struct mfl_split *split,
        struct mfl_error *err)
{
        int n_targets;
        MFL_CLEANUP_FREE char *x = NULL;
        MFL_CLEANUP_FREE char *y = NULL;
        int r = find_idx(dir, images, "idx3", &x, err);
        if (!r)
                r = find_idx(dir, labels, "idx1", &y, err);
        return r ? r : load_pair(read_idx, x, y, shape, ret_shape, &n_targets, split, err);
}

static int load_idx(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct mfl_shape test_shape;
        if (config->whole)
                return load_idx_split(config->dir, "t10k-images", "t10k-labels", &config->shape,
                        &dataset->shape, &dataset->train, err);
        int r = load_idx_split(config->dir, "train-images", "train-labels", &config->shape, &dataset->shape,
                &dataset->train, err);
        if (!r)
                r = load_idx_split(config->dir, "t10k-images", "t10k-labels", &config->shape, &test_shape,
                        &dataset->test, err);
        return r ? r : mfl_pairs_check(dataset, &test_shape, 0, err);
}

/* The four files: the given names, within dir if it is set; by default train_x.npy and so on.
 */
static int load_npy(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        static const char *const usual[] = {"train_x.npy", "train_y.npy", "test_x.npy", "test_y.npy"};
        const char *names[] = {config->train_x, config->train_y, config->test_x, config->test_y};
        char *paths[4] = {NULL};
        struct mfl_shape test_shape;
        int test_targets, r = 0;
        if (config->whole && config->unlabelled)
                return load_samples(read_npy, config->dir, config, dataset, err);
        if (config->whole && names[1])
                return load_pair(read_npy, config->dir, names[1], &config->shape, &dataset->shape,
                        &dataset->n_targets, &dataset->train, err);
        if (config->whole)
                return mfl_fail(
                        err, MFL_INVALID, "%s: where are its labels? add ,train_y=FILE.npy", config->dir);
        for (int i = 0; i < 4 && !r; i++) {
                const char *name = names[i] ? names[i] : usual[i];
                paths[i] = config->dir && *name != '/' ? mfl_asprintf("%s/%s", config->dir, name)
                                                       : mfl_strdup(name);
                r = paths[i] ? 0 : mfl_fail_memory(err, strlen(name), "a path");
        }
        if (!r)
                r = load_pair(read_npy, paths[0], paths[1], &config->shape, &dataset->shape,
                        &dataset->n_targets, &dataset->train, err);
        if (!r)
                r = load_pair(read_npy, paths[2], paths[3], &config->shape, &test_shape, &test_targets,
                        &dataset->test, err);
        for (int i = 0; i < 4; i++)
                free(paths[i]);
        return r ? r : mfl_pairs_check(dataset, &test_shape, test_targets, err);
}

/* The archive for Python contains pickles with the same names but no extension. */
static int check_cifar(const char *dir, const char *first, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/%s", dir, first);
        MFL_CLEANUP_FREE char *pickle =
                mfl_asprintf("%s/%.*s", dir, (int)(strlen(first) - strlen(".bin")), first);
        if (!path || !pickle)
                return mfl_fail_memory(err, strlen(dir) + 64, "a path");
        if (access(path, F_OK) && !access(pickle, F_OK))
                return mfl_fail(err, MFL_INVALID,
                        "%s is from the archive for Python; use the binary archive, whose files end in .bin, "
                        "or make an npz file (docs/pytorch.md)",
                        pickle);
        return 0;
}

static int load_cifar(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        static const char *const ten[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"};
        static const char *const hundred[] = {"train.bin", "test.bin"};
        bool is_ten = config->format == MFL_FORMAT_CIFAR10;
        const struct mfl_cifar_kind *kind = is_ten           ? &mfl_cifar10
                                            : config->coarse ? &mfl_cifar100_coarse
                                                             : &mfl_cifar100_fine;
        int n = is_ten ? 6 : 2, r = check_cifar(config->dir, is_ten ? ten[0] : hundred[0], err);
        dataset->shape = (struct mfl_shape){.rank = 3, .dim = {3, 32, 32}};
        dataset->classes = kind->classes;
        for (int i = config->whole ? n - 1 : 0; i < n && !r; i++) {
                struct mfl_data_bytes bytes = {0};
                MFL_CLEANUP_FREE char *path =
                        mfl_asprintf("%s/%s", config->dir, is_ten ? ten[i] : hundred[i]);
                if (!path)
                        return mfl_fail_memory(err, strlen(config->dir) + 64, "a path");
                r = mfl_data_read_file(path, &bytes, err);
                if (!r)
                        r = mfl_cifar_append(bytes.data, bytes.n, path, kind,
                                config->whole || i < n - 1 ? &dataset->train : &dataset->test, err);
                free(bytes.data);
        }
        return r;
}

/* Labels of pixels are still as in the file. */
static int settle_pixels(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct mfl_split *splits[] = {&dataset->train, &dataset->test};
        size_t each = (size_t)dataset->train.labels_each;
        if (!each && config->has_ignore_index)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: ignore_index is given, but it does not have a label per pixel, y of "
                        "the "
                        "shape (n, height, width), or per token or row, (n, positions)",
                        config->name);
        if (!each)
                return 0;
        dataset->labels_per_sample = (int)each;
        for (int s = 0; s < 2; s++)
                for (size_t i = 0; i < splits[s]->n * each; i++) {
                        int32_t *label = &splits[s]->labels[i];
                        if (config->has_ignore_index && *label == config->ignore_index)
                                *label = -1;
                        else if (*label < 0 || *label >= MFL_CLASSES_MAX)
                                return mfl_fail(err, MFL_INVALID,
                                        "data set %s: label %d of a pixel of %s sample %zu; labels are 0 to "
                                        "%d; with "
                                        "ignore_index: %d, such pixels have none",
                                        config->name, *label, s ? "test" : "training", i / each,
                                        MFL_CLASSES_MAX - 1, *label);
                }
        return 0;
}

/* Uses the configured number of classes, or the largest label + 1, and checks every label against it. Tokens have
 * their vocabulary instead, and targets have no classes. */
static int settle_classes(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        const struct mfl_split *splits[] = {&dataset->train, &dataset->test};
        static const char *const names[] = {"training", "test"};
        bool next_token = config->format == MFL_FORMAT_TEXT;
        if (config->classes && (dataset->n_targets || next_token))
                return mfl_fail(err, MFL_INVALID, "data set %s: classes is given, but it has %s",
                        config->name, dataset->n_targets ? "float targets" : "tokens");
        if (dataset->n_targets)
                return 0;
        if (config->classes)
                dataset->classes = config->classes;
        bool given = dataset->classes > 0;
        for (int s = 0; s < 2; s++) {
                uint64_t each = mfl_dataset_labels_per_sample(dataset), n = splits[s]->n * each;
                for (uint64_t i = 0; i < n; i++) {
                        int32_t label = splits[s]->labels[i];
                        if (given && label >= dataset->classes)
                                return mfl_fail(err, MFL_INVALID,
                                        "data set %s: label %d of %s sample %llu, but there are %d classes: "
                                        "0 to %d",
                                        config->name, label, names[s], (unsigned long long)(i / each),
                                        dataset->classes, dataset->classes - 1);
                        if (!given && label >= dataset->classes)
                                dataset->classes = label + 1;
                }
        }
        if (dataset->classes == 1 && !next_token && !config->whole)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: all labels are the same, and one class gives nothing to learn; if "
                        "other sites have more classes, use numbers as labels and set classes to their "
                        "number",
                        config->name);
        return 0;
}

/* Mean and standard deviation per channel of the training samples. For u8 they come from exact sums; floats are added
 * in double, in the order of the samples, which is the same everywhere. */
static int measure(
        const struct mfl_dataset *dataset, int channels, double *mean, double *std, struct mfl_error *err)
{
        const struct mfl_split *t = &dataset->train;
        size_t count = (size_t)mfl_shape_count(&dataset->shape), plane = count / (size_t)channels;
        for (int c = 0; c < channels; c++) {
                double n = (double)t->n * (double)plane, sum = 0, squares = 0;
                uint64_t whole = 0;
                unsigned __int128 whole_squares = 0;
                for (uint32_t i = 0; i < t->n; i++) {
                        size_t at = i * count + (size_t)c * plane;
                        uint64_t part = 0, part_squares = 0;
                        for (size_t e = at; e < at + plane; e++) {
                                if (t->dtype == MFL_U8) {
                                        uint64_t v = ((const uint8_t *)t->samples)[e];
                                        part += v;
                                        part_squares += v * v;
                                } else {
                                        sum += ((const float *)t->samples)[e];
                                }
                        }
                        whole += part;
                        whole_squares += part_squares;
                }
                if (t->dtype == MFL_U8) {
                        unsigned __int128 pixels = (unsigned __int128)t->n * plane;
                        mean[c] = (double)whole / n / 255;
                        std[c] = sqrt((double)(pixels * whole_squares - (unsigned __int128)whole * whole)) /
                                 n / 255;
                } else {
                        mean[c] = sum / n;
                        for (uint32_t i = 0; i < t->n; i++) {
                                const float *x = (const float *)t->samples + i * count + (size_t)c * plane;
                                for (size_t e = 0; e < plane; e++)
                                        squares += (x[e] - mean[c]) * (x[e] - mean[c]);
                        }
                        std[c] = sqrt(squares / n);
                }
                if (!(std[c] > 0))
                        return mfl_fail(err, MFL_INVALID,
                                "data set %s: normalise: all values of channel %d are the same",
                                dataset->name, c);
        }
        return 0;
}

/* x/255 for u8, then (x - mean) / std, folded into one scale and shift per channel. */
static int settle_scale(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        int channels = dataset->shape.rank == 3 ? (int)dataset->shape.dim[0] : 1;
        double unit = dataset->train.dtype == MFL_U8 ? 1.0 / 255.0 : 1.0;
        double means[MFL_CHANNELS_MAX] = {0}, stds[MFL_CHANNELS_MAX];
        bool shifted = config->has_mean || config->normalise;
        if (shifted && dataset->vocabulary)
                return mfl_fail(err, MFL_INVALID, "data set %s: tokens have no mean and std", config->name);
        if (config->has_mean && config->normalise)
                return mfl_fail(
                        err, MFL_INVALID, "data set %s: mean and normalise are both given", config->name);
        int r = config->normalise ? measure(dataset, channels, means, stds, err) : 0;
        for (int c = 0; c < channels && !r; c++) {
                if (!config->normalise) {
                        means[c] = config->has_mean ? config->mean[c] : 0.0;
                        stds[c] = config->has_mean ? config->std[c] : 1.0;
                }
                double mean = means[c], std = stds[c];
                if (!isfinite(mean) || !isfinite(std) || std <= 0.0)
                        return mfl_fail(err, MFL_INVALID,
                                "data set %s: mean %g and std %g of channel %d; std must be "
                                "above 0, and each of the %d channels needs both",
                                config->name, mean, std, c, channels);
                dataset->scale[c] = (float)(unit / std);
                dataset->shift[c] = (float)(shifted ? -mean / std : 0.0);
                if (!isfinite(dataset->scale[c]) || !isfinite(dataset->shift[c]))
                        return mfl_fail(err, MFL_INVALID, "data set %s: std %g of channel %d is too small",
                                config->name, std, c);
        }
        return r;
}

static int check_config(const struct mfl_dataset_config *config, struct mfl_error *err)
{
        if (config->classes < 0 || config->classes > MFL_CLASSES_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: %d classes; 1 to %d are possible, or 0 to take them from the labels",
                        config->name, config->classes, MFL_CLASSES_MAX);
        if (config->format != MFL_FORMAT_NPY && config->format != MFL_FORMAT_SYNTHETIC && !config->dir)
                return mfl_fail(err, MFL_INVALID, "data set %s: dir is missing", config->name);
        if (config->format == MFL_FORMAT_NPY && !config->dir &&
                !(config->train_x && config->train_y && config->test_x && config->test_y))
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: npy needs train_x, train_y, test_x and test_y", config->name);
        if (!(config->test_fraction >= 0 && config->test_fraction < 1))
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: test_fraction %g; above 0 and below 1 is possible", config->name,
                        config->test_fraction);
        return 0;
}

int mfl_dataset_load(
        const struct mfl_dataset_config *config, struct mfl_dataset **ret_dataset, struct mfl_error *err)
{
        int r = check_config(config, err);
        if (r)
                return r;
        struct mfl_dataset *dataset = mfl_calloc(1, sizeof *dataset);
        if (!dataset)
                return mfl_fail_memory(err, sizeof *dataset, "a data set");
        mfl_strcpy(dataset->name, sizeof dataset->name, config->name);
        dataset->labels_per_sample = 1;
        dataset->measured = config->normalise || config->normalise_columns;
        dataset->share_names = config->share_names;
        static int (*const loaders[])(const struct mfl_dataset_config *, struct mfl_dataset *,
                struct mfl_error *) = {[MFL_FORMAT_IDX] = load_idx,
                [MFL_FORMAT_CIFAR10] = load_cifar,
                [MFL_FORMAT_NPY] = load_npy,
                [MFL_FORMAT_SYNTHETIC] = mfl_synthetic_fill,
                [MFL_FORMAT_CIFAR100] = load_cifar,
                [MFL_FORMAT_CSV] = mfl_load_csv,
                [MFL_FORMAT_NPZ] = mfl_load_npz,
                [MFL_FORMAT_TEXT] = mfl_load_text,
                [MFL_FORMAT_IMAGES] = mfl_load_images};
        r = (size_t)config->format < MFL_ARRAY_SIZE(loaders)
                    ? loaders[config->format](config, dataset, err)
                    : mfl_fail(err, MFL_INVALID, "data set %s: unknown format %d", config->name,
                              (int)config->format);
        if (!r && (config->format == MFL_FORMAT_NPY || config->format == MFL_FORMAT_NPZ) &&
                config->vocabulary)
                r = mfl_tokens_settle(config, dataset, err);
        if (!r)
                r = settle_pixels(config, dataset, err);
        if (!r)
                r = settle_classes(config, dataset, err);
        if (!r && config->normalise_columns)
                r = mfl_columns_normalise(dataset, err);
        else if (!r && !config->normalise && !config->has_mean)
                mfl_columns_note(dataset);
        if (!r)
                r = settle_scale(config, dataset, err);
        if (r)
                mfl_dataset_free(dataset);
        else
                *ret_dataset = dataset;
        return r;
}
