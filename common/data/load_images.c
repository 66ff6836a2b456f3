/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of images as a data set, in the layout of torchvision's ImageFolder: DIR/train/CLASS/FILE and
 * DIR/test/CLASS/FILE. Classes are numbered in the byte order of their names, and samples are in the order of class
 * and file. Every file in a class's folder is an image. Without DIR/test, test_fraction makes the test split; then
 * DIR/CLASS/FILE is enough.
 *
 * With `masks: NAME`, a label for each pixel: images in DIR/train/images, and in DIR/train/NAME a PNG of the same name and size
 * for each of them, with the ending .png; the same under DIR/test, or DIR/images and DIR/NAME with a test_fraction. */
#include "common/data/sources.h"

#define FILE_BYTES_MAX (64u << 20)

struct folder {
        const struct mfl_dataset_config *config;
        struct mfl_dataset *dataset;
        size_t capacity; /* samples that the current split has room for */
        size_t each;     /* labels of a sample */
};

static int grow(struct folder *f, struct mfl_split *split, struct mfl_error *err)
{
        size_t count = (size_t)mfl_shape_count(&f->dataset->shape);
        size_t capacity = MFL_MAX(f->capacity * 2, 256);
        void *samples = split->n < INT32_MAX ? mfl_realloc(split->samples, capacity * count) : NULL;
        if (samples)
                split->samples = samples;
        int32_t *labels = samples ? mfl_realloc(split->labels, capacity * f->each * sizeof *labels) : NULL;
        if (!labels)
                return mfl_fail_memory(err, capacity * count, f->config->name);
        split->labels = labels;
        f->capacity = capacity;
        return 0;
}

static int read_file(const char *path, struct mfl_data_bytes *ret_bytes, struct mfl_error *err)
{
        int r = mfl_data_read_file(path, ret_bytes, err);
        if (r || ret_bytes->n <= FILE_BYTES_MAX)
                return r;
        free(ret_bytes->data);
        return mfl_fail(err, MFL_INVALID, "%s: %zu bytes; the limit for an image is %u", path, ret_bytes->n,
                FILE_BYTES_MAX);
}

/* The next sample's pixels; the caller adds its labels, and counts it. */
static int read_image(struct folder *f, struct mfl_split *split, const char *path, uint32_t *ret_width,
        uint32_t *ret_height, struct mfl_error *err)
{
        struct mfl_data_bytes bytes;
        uint8_t *rgb = NULL;
        int r = split->n == f->capacity ? grow(f, split, err) : 0;
        if (r || (r = read_file(path, &bytes, err)))
                return r;
        r = mfl_image_decode(bytes.data, bytes.n, path, &rgb, ret_width, ret_height, err);
        free(bytes.data);
        if (!r)
                r = mfl_image_fit(rgb, *ret_width, *ret_height, &f->dataset->shape,
                        (uint8_t *)split->samples + split->n * (size_t)mfl_shape_count(&f->dataset->shape),
                        err);
        free(rgb);
        return r;
}

static int add_image(
        struct folder *f, struct mfl_split *split, const char *path, int32_t label, struct mfl_error *err)
{
        uint32_t width, height;
        int r = read_image(f, split, path, &width, &height, err);
        if (!r)
                split->labels[split->n++] = label;
        return r;
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
        if (!n && f->config->unlabelled) {
                mfl_data_list_free(names, n);
                f->dataset->classes = 1;
                return add_class(f, split, root, ".", 0, err);
        }
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

/* ---- masks ---- */

static int check_mask(const struct mfl_dataset_config *config, const uint16_t *labels, uint32_t width,
        uint32_t height, const char *path, struct mfl_error *err)
{
        for (size_t i = 0; i < (size_t)width * height; i++)
                if (labels[i] >= config->classes &&
                        !(config->has_ignore_index && labels[i] == config->ignore_index))
                        return mfl_fail(err, MFL_INVALID,
                                "%s: pixel %zu of row %zu is %u, but there are %d classes: 0 to %d; with "
                                "ignore_index=%u, such pixels have no label",
                                path, i % width, i / width, labels[i], config->classes, config->classes - 1,
                                labels[i]);
        return 0;
}

static int add_pair(
        struct folder *f, struct mfl_split *split, const char *image, const char *mask, struct mfl_error *err)
{
        struct mfl_data_bytes bytes;
        uint16_t *labels = NULL;
        uint32_t width, height, mask_width, mask_height;
        int r = read_image(f, split, image, &width, &height, err);
        if (r || (r = read_file(mask, &bytes, err)))
                return r;
        r = mfl_mask_decode(bytes.data, bytes.n, mask, &labels, &mask_width, &mask_height, err);
        free(bytes.data);
        if (!r && (mask_width != width || mask_height != height))
                r = mfl_fail(err, MFL_INVALID, "%s: the mask is %ux%u, but its image %s is %ux%u", mask,
                        mask_width, mask_height, image, width, height);
        if (!r)
                r = check_mask(f->config, labels, width, height, mask, err);
        if (!r)
                mfl_mask_fit(labels, width, height, &f->dataset->shape, split->labels + f->each * split->n++);
        free(labels);
        return r;
}

static int compare_names(const void *a, const void *b)
{
        return strcmp(*(char *const *)a, *(char *const *)b);
}

struct names {
        char *dir, **files;
        size_t n;
};

static int list(
        struct folder *f, const char *root, const char *name, struct names *ret, struct mfl_error *err)
{
        ret->dir = mfl_asprintf("%s/%s", root, name);
        if (!ret->dir)
                return mfl_fail_memory(err, strlen(root), "a path");
        if (!mfl_data_is_folder(ret->dir))
                return mfl_fail(err, MFL_INVALID,
                        "%s: not a folder; with masks, images belong in %s/images, and a PNG of the same "
                        "name "
                        "for each in %s/%s",
                        ret->dir, root, root, f->config->masks);
        return mfl_data_list(ret->dir, false, &ret->files, &ret->n, err);
}

static void end_names(struct names *names)
{
        mfl_data_list_free(names->files, names->n);
        free(names->dir);
}

/* Each image with the mask of its name; `used` has an element for each mask. */
static int add_pairs(struct folder *f, struct mfl_split *split, const struct names *images,
        const struct names *masks, bool *used, struct mfl_error *err)
{
        int r = 0;
        for (size_t i = 0; i < images->n && !r; i++) {
                const char *file = images->files[i], *dot = strrchr(file, '.');
                int stem = (int)(dot ? (size_t)(dot - file) : strlen(file));
                MFL_CLEANUP_FREE char *image = mfl_asprintf("%s/%s", images->dir, file);
                MFL_CLEANUP_FREE char *name = mfl_asprintf("%.*s.png", stem, file);
                MFL_CLEANUP_FREE char *mask = mfl_asprintf("%s/%.*s.png", masks->dir, stem, file);
                if (!image || !name || !mask)
                        return mfl_fail_memory(err, strlen(file), "a path");
                char **found =
                        masks->n ? bsearch(&name, masks->files, masks->n, sizeof name, compare_names) : NULL;
                if (!found)
                        return mfl_fail(err, MFL_INVALID, "%s: there is no mask %s for it", image, mask);
                if (used[found - masks->files])
                        return mfl_fail(
                                err, MFL_INVALID, "%s: another image has the same mask, %s", image, mask);
                used[found - masks->files] = true;
                r = add_pair(f, split, image, mask, err);
        }
        for (size_t i = 0; i < masks->n && !r; i++)
                if (!used[i])
                        r = mfl_fail(err, MFL_INVALID, "%s/%s: there is no image in %s for this mask",
                                masks->dir, masks->files[i], images->dir);
        if (!r && !split->n)
                r = mfl_fail(err, MFL_INVALID, "%s: contains no images", images->dir);
        return r;
}

static int add_masked_split(
        struct folder *f, struct mfl_split *split, const char *root, struct mfl_error *err)
{
        struct names images = {0}, masks = {0};
        f->capacity = 0;
        split->dtype = MFL_U8;
        split->labels_each = (int)f->each;
        int r = list(f, root, "images", &images, err);
        if (!r)
                r = list(f, root, f->config->masks, &masks, err);
        bool *used = r ? NULL : mfl_calloc(masks.n + 1, sizeof *used);
        if (!r)
                r = used ? add_pairs(f, split, &images, &masks, used, err)
                         : mfl_fail_memory(err, masks.n, "masks");
        free(used);
        end_names(&images);
        end_names(&masks);
        return r;
}

int mfl_load_images(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct folder f = {.config = config, .dataset = dataset, .each = 1};
        int (*add)(struct folder *, struct mfl_split *, const char *, struct mfl_error *) =
                config->masks ? add_masked_split : add_split;
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
        if (config->masks)
                f.each = (size_t)(dim[1] * dim[2]);
        r = mfl_data_find(config, "", &train, &test, err);
        if (!r && !test && !mfl_data_is_folder(train)) {
                free(train);
                train = mfl_strdup(config->dir);
                r = train ? 0 : mfl_fail_memory(err, strlen(config->dir), "a path");
        }
        if (r)
                return r;
        r = add(&f, &dataset->train, train, err);
        if (!r)
                r = test ? add(&f, &dataset->test, test, err) : mfl_split_off_test(config, dataset, err);
        free(train);
        free(test);
        return r;
}
