/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of images as a data set, in the layout of torchvision's ImageFolder: DIR/train/CLASS/FILE and
 * DIR/test/CLASS/FILE. Classes are numbered in the byte order of their names, and samples are in the order of class
 * and file. Every file in a class's folder is an image. Without DIR/test, test_fraction makes the test split; then
 * DIR/CLASS/FILE is enough. */
#include "common/data/sources.h"

#define FILE_BYTES_MAX (64u << 20)

struct folder {
        const struct mfl_dataset_config *config;
        struct mfl_dataset *dataset;
        size_t capacity; /* samples that the current split has room for */
};

static int grow(struct folder *f, struct mfl_split *split, struct mfl_error *err)
{
        size_t count = (size_t)mfl_shape_count(&f->dataset->shape);
        size_t capacity = MFL_MAX(f->capacity * 2, 256);
        void *samples = split->n < INT32_MAX ? mfl_realloc(split->samples, capacity * count) : NULL;
        if (samples)
                split->samples = samples;
        int32_t *labels = samples ? mfl_realloc(split->labels, capacity * sizeof *labels) : NULL;
        if (!labels)
                return mfl_fail_memory(err, capacity * count, f->config->name);
        split->labels = labels;
        f->capacity = capacity;
        return 0;
}

static int add_image(
        struct folder *f, struct mfl_split *split, const char *path, int32_t label, struct mfl_error *err)
{
        struct mfl_data_bytes bytes;
        uint8_t *rgb = NULL;
        uint32_t width, height;
        int r = split->n == f->capacity ? grow(f, split, err) : 0;
        if (r)
                return r;
        r = mfl_data_read_file(path, &bytes, err);
        if (r)
                return r;
        if (bytes.n > FILE_BYTES_MAX)
                r = mfl_fail(err, MFL_INVALID, "%s: %zu bytes; the limit for an image is %u", path, bytes.n,
                        FILE_BYTES_MAX);
        if (!r)
                r = mfl_image_decode(bytes.data, bytes.n, path, &rgb, &width, &height, err);
        free(bytes.data);
        if (!r)
                r = mfl_image_fit(rgb, width, height, &f->dataset->shape,
                        (uint8_t *)split->samples + split->n * (size_t)mfl_shape_count(&f->dataset->shape),
                        err);
        free(rgb);
        if (r)
                return r;
        split->labels[split->n++] = label;
        return 0;
}

static int add_class(struct folder *f, struct mfl_split *split, const char *root, const char *name,
        int32_t label, struct mfl_error *err)
{
        char **files;
        size_t n;
        MFL_CLEANUP_FREE char *dir = mfl_asprintf("%s/%s", root, name);
        if (!dir)
                return mfl_fail_memory(err, strlen(root), "a path");
        int r = mfl_data_list(dir, false, &files, &n, err);
        if (r)
                return r;
        for (size_t i = 0; i < n && !r; i++) {
                MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/%s", dir, files[i]);
                r = path ? add_image(f, split, path, label, err)
                         : mfl_fail_memory(err, strlen(dir), "a path");
        }
        mfl_data_list_free(files, n);
        return r;
}

static int name_classes(
        struct mfl_dataset *dataset, const char *root, char *const *names, size_t n, struct mfl_error *err)
{
        uint32_t n_names;
        if (!n || n > MFL_CLASSES_MAX)
                return mfl_fail(err, MFL_INVALID, "%s: %zu folders; expected one folder per class, 1 to %d",
                        root, n, MFL_CLASSES_MAX);
        MFL_CLEANUP_FREE struct mfl_span *spans = mfl_calloc(n, sizeof *spans);
        if (!spans)
                return mfl_fail_memory(err, n * sizeof *spans, root);
        for (size_t i = 0; i < n; i++)
                spans[i] = (struct mfl_span){names[i], strlen(names[i])};
        dataset->classes = (int)n;
        return mfl_names_new(spans, n, &dataset->class_names, &n_names, err);
}

static int add_split(struct folder *f, struct mfl_split *split, const char *root, struct mfl_error *err)
{
        char **names;
        size_t n;
        f->capacity = 0;
        split->dtype = MFL_U8;
        int r = mfl_data_list(root, true, &names, &n, err);
        if (r)
                return r;
        if (split == &f->dataset->train)
                r = name_classes(f->dataset, root, names, n, err);
        for (size_t i = 0; i < n && !r; i++) {
                struct mfl_span name = {names[i], strlen(names[i])};
                uint32_t c = mfl_names_find(f->dataset->class_names, (uint32_t)f->dataset->classes, name);
                r = c == UINT32_MAX
                            ? mfl_fail(err, MFL_INVALID, "%s/%s: there are no training images for this class",
                                      root, names[i])
                            : add_class(f, split, root, names[i], (int32_t)c, err);
        }
        mfl_data_list_free(names, n);
        if (!r && !split->n)
                r = mfl_fail(err, MFL_INVALID, "%s: contains no images in class folders", root);
        return r;
}

int mfl_load_images(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct folder f = {.config = config, .dataset = dataset};
        char *train, *test;
        int r = mfl_sample_shape_check(&config->shape, config->name, err);
        if (r)
                return r;
        const int64_t *dim = config->shape.dim;
        if (config->shape.rank != 3 || (dim[0] != 1 && dim[0] != 3) || dim[1] > 4096 || dim[2] > 4096)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: shape must be [1 or 3, height, width], at most 4096 per side: all "
                        "images are scaled to it",
                        config->name);
        if (!mfl_data_is_folder(config->dir))
                return mfl_fail(err, MFL_INVALID, "%s: not a folder; images belong in %s/train/CLASS/",
                        config->dir, config->dir);
        dataset->shape = config->shape;
        r = mfl_data_find(config, "", &train, &test, err);
        if (!r && !test && !mfl_data_is_folder(train)) {
                free(train);
                train = mfl_strdup(config->dir);
                r = train ? 0 : mfl_fail_memory(err, strlen(config->dir), "a path");
        }
        if (r)
                return r;
        r = add_split(&f, &dataset->train, train, err);
        if (!r)
                r = test ? add_split(&f, &dataset->test, test, err)
                         : mfl_split_off_test(config, dataset, err);
        free(train);
        free(test);
        return r;
}
