/* SPDX-License-Identifier: Apache-2.0 */
/* What the loaders of data sets share: files, names, splitting; and one loader per format. Private to
 * common/data, its tests and its fuzzers. Blocking I/O. MFL_INVALID and negative errors as dataset.h says.
 */
#ifndef MFL_COMMON_DATA_SOURCES_H
#define MFL_COMMON_DATA_SOURCES_H

#include "common/data/formats.h"

/* A whole file on the heap; data is aligned as mfl_alloc_aligned has it. */
struct mfl_data_bytes {
        uint8_t *data;
        size_t n;
};
int mfl_data_read_file(const char *path, struct mfl_data_bytes *ret_bytes, struct mfl_error *err);
bool mfl_data_is_folder(const char *path);
/* Where the splits of config->dir are: it is one file, or a folder with train.SUFFIX and test.SUFFIX (suffix
 * with its dot, "" for folders). ret_test may be NULL, and then config->test_fraction is above 0. The caller
 * frees. */
int mfl_data_find(const struct mfl_dataset_config *config, const char *suffix, char **ret_train,
        char **ret_test, struct mfl_error *err);
/* Names of files or of folders in a folder, in byte order, without hidden ones. */
int mfl_data_list(const char *dir, bool folders, char ***ret_names, size_t *ret_n, struct mfl_error *err);
void mfl_data_list_free(char **names, size_t n);

/* Turns two arrays into the samples and labels, or float targets, of a split. Takes the bytes over, also on
 * failure; the paths are for messages. */
int mfl_pair_settle(struct mfl_data_bytes *x, const struct mfl_array *x_array, const char *x_path,
        struct mfl_data_bytes *y, const struct mfl_array *y_array, const char *y_path,
        const struct mfl_shape *shape, struct mfl_shape *ret_shape, int *ret_n_targets,
        struct mfl_split *split, struct mfl_error *err);
/* Whether both splits have the same shape, type and targets. */
int mfl_pairs_check(const struct mfl_dataset *dataset, const struct mfl_shape *test_shape, int test_targets,
        struct mfl_error *err);

/* A piece of text that somebody else owns. */
struct mfl_span {
        const char *s;
        size_t n;
};
/* The different ones of n texts, in byte order, as one allocation (see dataset.h). */
int mfl_names_new(const struct mfl_span *texts, size_t n, char ***ret_names, uint32_t *ret_n_names,
        struct mfl_error *err);
/* The number of a name, or UINT32_MAX. */
uint32_t mfl_names_find(char *const *names, uint32_t n_names, struct mfl_span text);

/* How many of n samples a test_fraction takes: to the nearest, at least 1 and not all. 0 where that can't be.
 */
uint32_t mfl_test_count(uint32_t n, double fraction);
/* Moves config->test_fraction of the training samples, drawn with config->seed, into the test split, which is
 * empty. Both keep their order. */
int mfl_split_off_test(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err);

/* ---- parsers: bytes in memory; no I/O ---- */

/* A table of numbers. Cells of the label and owner columns point into bytes, which the parser changes (quotes
 * are undone in place) and which must stay. */
struct mfl_csv {
        uint32_t n, n_features, n_targets;
        float *features;         /* n * n_features */
        float *targets;          /* n * n_targets */
        struct mfl_span *labels; /* n, or NULL */
        struct mfl_span *owners; /* n, or NULL */
};
int mfl_csv_parse(uint8_t *bytes, size_t n_bytes, const char *path, const struct mfl_dataset_config *config,
        struct mfl_csv *ret_csv, struct mfl_error *err);
void mfl_csv_deinit(struct mfl_csv *csv);

/* Units of a text: code points or bytes. The caller frees. */
int mfl_text_decode(const uint8_t *bytes, size_t n_bytes, enum mfl_text_unit unit, const char *path,
        uint32_t **ret_units, size_t *ret_n, struct mfl_error *err);

/* Arrays of an npz file in memory: NAME.npy within a zip archive, stored or deflated. An array that says it
 * inflates to more than deflate can give is refused before allocation. */
struct mfl_npz;
int mfl_npz_open(const uint8_t *bytes, size_t n_bytes, const char *path, struct mfl_npz **ret_npz,
        struct mfl_error *err);
void mfl_npz_close(struct mfl_npz *npz);
bool mfl_npz_has(struct mfl_npz *npz, const char *name);
/* The npy file of that name. The caller frees. */
int mfl_npz_read(
        struct mfl_npz *npz, const char *name, struct mfl_data_bytes *ret_bytes, struct mfl_error *err);

/* A PNG or JPEG image in memory, as RGB of 8 bits: depth 16 is cut to 8, transparency and gamma are ignored,
 * as Pillow's convert("RGB") does. The caller frees. */
#define MFL_IMAGE_SIDE_MAX 16384
#define MFL_IMAGE_PIXELS_MAX (1 << 26)
int mfl_image_decode(const uint8_t *bytes, size_t n_bytes, const char *path, uint8_t **ret_rgb,
        uint32_t *ret_width, uint32_t *ret_height, struct mfl_error *err);
/* Centre-crops an RGB image to the shape's aspect ratio and scales it to its size by a triangle filter
 * (bilinear, with as wide a support as the scale asks for when it shrinks), in integers. shape is {1 or 3, H,
 * W}; of one channel it is ITU-R 601 luma. Pixels go to out, planar. */
int mfl_image_fit(const uint8_t *rgb, uint32_t width, uint32_t height, const struct mfl_shape *shape,
        uint8_t *out, struct mfl_error *err);

/* ---- loaders: fill shape, splits, classes and what else the format knows ---- */

int mfl_load_csv(const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err);
int mfl_load_npz(const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err);
int mfl_load_text(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err);
int mfl_load_images(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err);

#endif
