/* SPDX-License-Identifier: Apache-2.0 */
/* Loads a data set: finds its files, reads each in one go, and hands the bytes to the parsers of formats.h.
 *
 * Happy path: find, read, inflate if gzip, parse, convert in place; both splits; classes; scaling.
 * Fails with MFL_INVALID: a file that is missing, unreadable, no regular file, changes while it is read, or
 * is not what it should be; images and labels that differ in number; splits that differ in shape. Negative:
 * I/O errors, memory.
 */
#include "common/data/formats.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const mfl_data_format_names[] = {
        "idx", "cifar10", "npy", "synthetic", "cifar100", "csv", "npz", "text", "images", NULL};
_Static_assert(MFL_ARRAY_SIZE(mfl_data_format_names) == MFL_FORMAT_COUNT + 1, "one name for each format");

struct bytes {
        uint8_t *data;
        size_t n;
};

size_t mfl_dtype_bytes(enum mfl_dtype dtype)
{
        return dtype == MFL_U8 ? 1 : 4;
}

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
                &config->label, &config->owner};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(texts); i++) {
                free(*texts[i]);
                *texts[i] = NULL;
        }
        free_list(&config->targets, &config->n_target_columns);
        free_list(&config->ignored, &config->n_ignored);
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
        free(dataset);
}

/* What the operator can put right (a wrong path, a permission) is invalid input; the rest is a broken
 * machine. */
static int fail_open(const char *path, struct mfl_error *err)
{
        int r = mfl_fail_errno(err, "%s", path);
        return r == -ENOENT || r == -ENOTDIR || r == -EACCES || r == -EPERM || r == -ELOOP ||
                               r == -ENAMETOOLONG
                       ? MFL_INVALID
                       : r;
}

static int read_all(int fd, const char *path, size_t n, uint8_t *data, struct mfl_error *err)
{
        size_t done = 0;
        while (done < n) {
                ssize_t got = read(fd, data + done, n - done);
                if (got < 0 && errno == EINTR)
                        continue;
                if (got < 0)
                        return mfl_fail_errno(err, "%s: read", path);
                if (got == 0)
                        return mfl_fail(err, MFL_INVALID,
                                "%s: shrank from %zu to %zu bytes while it was read", path, n, done);
                done += (size_t)got;
        }
        return 0;
}

/* The whole file on the heap. Not mapped: a mapped file that somebody truncates kills the process. */
static int read_file(const char *path, struct bytes *ret_bytes, struct mfl_error *err)
{
        struct stat st;
        struct bytes b = {0};
        int r = 0;
        /* Without O_NONBLOCK a FIFO of that name would hang the open. */
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
                return fail_open(path, err);
        if (fstat(fd, &st) < 0) {
                r = mfl_fail_errno(err, "%s: stat", path);
        } else if (!S_ISREG(st.st_mode)) {
                r = mfl_fail(err, MFL_INVALID, "%s: not a regular file", path);
        } else {
                b.n = (size_t)st.st_size;
                b.data = mfl_alloc_aligned(b.n);
                r = b.data ? read_all(fd, path, b.n, b.data, err) : mfl_fail_memory(err, b.n, path);
        }
        close(fd);
        if (r)
                free(b.data);
        else
                *ret_bytes = b;
        return r;
}

/* One file of a split: its bytes (which the caller frees, also on failure) and the array that they hold. */
static int read_idx(const char *path, struct bytes *bytes, struct mfl_array *ret_array, struct mfl_error *err)
{
        int r = read_file(path, bytes, err);
        if (!r && mfl_is_gzip(bytes->data, bytes->n)) {
                struct bytes plain;
                r = mfl_idx_inflate(bytes->data, bytes->n, path, &plain.data, &plain.n, err);
                if (!r) {
                        free(bytes->data);
                        *bytes = plain;
                }
        }
        return r ? r : mfl_idx_parse(bytes->data, bytes->n, path, ret_array, err);
}

static int read_npy(const char *path, struct bytes *bytes, struct mfl_array *ret_array, struct mfl_error *err)
{
        int r = read_file(path, bytes, err);
        return r ? r : mfl_npy_parse(bytes->data, bytes->n, path, ret_array, err);
}

typedef int read_fn(
        const char *path, struct bytes *bytes, struct mfl_array *ret_array, struct mfl_error *err);

/* Samples and labels of a split. shape has rank 0 or what the configuration gives. */
static int load_pair(read_fn *read_array, const char *x_path, const char *y_path,
        const struct mfl_shape *shape, struct mfl_shape *ret_shape, struct mfl_split *split,
        struct mfl_error *err)
{
        struct bytes x = {0}, y = {0};
        struct mfl_array array;
        uint32_t n_labels = 0;
        int r = read_array(x_path, &x, &array, err);
        if (!r)
                r = mfl_array_to_samples(
                        &array, x.data, shape, x_path, ret_shape, &split->dtype, &split->n, err);
        if (!r)
                r = read_array(y_path, &y, &array, err);
        if (!r)
                r = mfl_array_to_labels(&array, y.data, y_path, &split->labels, &n_labels, err);
        if (!r && n_labels != split->n)
                r = mfl_fail(err, MFL_INVALID, "%s: %u labels, but %s has %u samples", y_path, n_labels,
                        x_path, split->n);
        free(y.data);
        split->samples = x.data; /* freed with the data set, whatever r says */
        return r;
}

/* The first of the usual spellings that exists: train-images-idx3-ubyte, train-images.idx3-ubyte, each or
 * .gz. */
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
        return mfl_fail(err, MFL_INVALID, "%s: holds none of %s-%s-ubyte, %s.%s-ubyte, and the same with .gz",
                dir, stem, kind, stem, kind);
}

static int load_idx_split(const char *dir, const char *images, const char *labels,
        const struct mfl_shape *shape, struct mfl_shape *ret_shape, struct mfl_split *split,
        struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *x = NULL;
        MFL_CLEANUP_FREE char *y = NULL;
        int r = find_idx(dir, images, "idx3", &x, err);
        if (!r)
                r = find_idx(dir, labels, "idx1", &y, err);
        return r ? r : load_pair(read_idx, x, y, shape, ret_shape, split, err);
}

static int load_pairs(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct mfl_shape test_shape;
        char a[96], b[96];
        int r;
        if (config->format == MFL_FORMAT_IDX) {
                r = load_idx_split(config->dir, "train-images", "train-labels", &config->shape,
                        &dataset->shape, &dataset->train, err);
                if (!r)
                        r = load_idx_split(config->dir, "t10k-images", "t10k-labels", &config->shape,
                                &test_shape, &dataset->test, err);
        } else {
                r = load_pair(read_npy, config->train_x, config->train_y, &config->shape, &dataset->shape,
                        &dataset->train, err);
                if (!r)
                        r = load_pair(read_npy, config->test_x, config->test_y, &config->shape, &test_shape,
                                &dataset->test, err);
        }
        if (r)
                return r;
        if (!mfl_shape_equal(&dataset->shape, &test_shape) || dataset->train.dtype != dataset->test.dtype)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: training samples are %s of %s, test samples %s of %s", config->name,
                        mfl_shape_text(&dataset->shape, a, sizeof a),
                        dataset->train.dtype == MFL_U8 ? "u8" : "floats",
                        mfl_shape_text(&test_shape, b, sizeof b),
                        dataset->test.dtype == MFL_U8 ? "u8" : "floats");
        return 0;
}

static int load_cifar(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        dataset->shape = (struct mfl_shape){.rank = 3, .dim = {3, 32, 32}};
        dataset->classes = 10;
        int r = 0;
        for (int i = 0; i < 6 && !r; i++) {
                struct bytes bytes = {0};
                MFL_CLEANUP_FREE char *path = i < 5 ? mfl_asprintf("%s/data_batch_%d.bin", config->dir, i + 1)
                                                    : mfl_asprintf("%s/test_batch.bin", config->dir);
                if (!path)
                        return mfl_fail_memory(err, strlen(config->dir) + 64, "a path");
                r = read_file(path, &bytes, err);
                if (!r)
                        r = mfl_cifar_append(
                                bytes.data, bytes.n, path, i < 5 ? &dataset->train : &dataset->test, err);
                free(bytes.data);
        }
        return r;
}

/* Takes the configured number of classes, or the largest label + 1, and checks every label against it. */
static int settle_classes(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        const struct mfl_split *splits[] = {&dataset->train, &dataset->test};
        static const char *const names[] = {"training", "test"};
        if (config->classes)
                dataset->classes = config->classes;
        bool given = dataset->classes > 0;
        for (int s = 0; s < 2; s++) {
                for (uint32_t i = 0; i < splits[s]->n; i++) {
                        int32_t label = splits[s]->labels[i];
                        if (given && label >= dataset->classes)
                                return mfl_fail(err, MFL_INVALID,
                                        "data set %s: label %d of %s sample %u, but there "
                                        "are %d classes: 0 to %d",
                                        config->name, label, names[s], i, dataset->classes,
                                        dataset->classes - 1);
                        if (!given && label >= dataset->classes)
                                dataset->classes = label + 1;
                }
        }
        return 0;
}

/* x/255 for u8, then (x - mean) / std, folded into one scale and shift per channel. */
static int settle_scale(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        int channels = dataset->shape.rank == 3 ? (int)dataset->shape.dim[0] : 1;
        double unit = dataset->train.dtype == MFL_U8 ? 1.0 / 255.0 : 1.0;
        for (int c = 0; c < channels; c++) {
                double mean = config->has_mean ? config->mean[c] : 0.0;
                double std = config->has_mean ? config->std[c] : 1.0;
                if (!isfinite(mean) || !isfinite(std) || std <= 0.0)
                        return mfl_fail(err, MFL_INVALID,
                                "data set %s: mean %g and std %g of channel %d; std must be "
                                "above 0, and each of the %d channels needs both",
                                config->name, mean, std, c, channels);
                dataset->scale[c] = (float)(unit / std);
                dataset->shift[c] = (float)(config->has_mean ? -mean / std : 0.0);
                if (!isfinite(dataset->scale[c]) || !isfinite(dataset->shift[c]))
                        return mfl_fail(err, MFL_INVALID, "data set %s: std %g of channel %d is too small",
                                config->name, std, c);
        }
        return 0;
}

static int check_config(const struct mfl_dataset_config *config, struct mfl_error *err)
{
        if (config->classes < 0 || config->classes > MFL_CLASSES_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: %d classes; 1 to %d are possible, or 0 to take them "
                        "from the labels",
                        config->name, config->classes, MFL_CLASSES_MAX);
        if ((config->format == MFL_FORMAT_IDX || config->format == MFL_FORMAT_CIFAR10) && !config->dir)
                return mfl_fail(err, MFL_INVALID, "data set %s: dir is missing", config->name);
        if (config->format == MFL_FORMAT_NPY &&
                !(config->train_x && config->train_y && config->test_x && config->test_y))
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: npy needs train_x, train_y, test_x and test_y", config->name);
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
        switch (config->format) {
        case MFL_FORMAT_IDX:
        case MFL_FORMAT_NPY:
                r = load_pairs(config, dataset, err);
                break;
        case MFL_FORMAT_CIFAR10:
                r = load_cifar(config, dataset, err);
                break;
        case MFL_FORMAT_SYNTHETIC:
                r = mfl_synthetic_fill(config, dataset, err);
                break;
        default:
                r = mfl_fail(err, MFL_INVALID, "data set %s: unknown format %d", config->name,
                        (int)config->format);
        }
        if (!r)
                r = settle_classes(config, dataset, err);
        if (!r)
                r = settle_scale(config, dataset, err);
        if (r)
                mfl_dataset_free(dataset);
        else
                *ret_dataset = dataset;
        return r;
}
