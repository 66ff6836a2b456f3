/* SPDX-License-Identifier: Apache-2.0 */
/* What the loaders of data sets share: files, names, splitting; and one loader per format. Private to
 * common/data, its tests and its fuzzers. Blocking I/O. MFL_INVALID and negative errors as in dataset.h.
 */
#ifndef MFL_COMMON_DATA_SOURCES_H
#define MFL_COMMON_DATA_SOURCES_H

#include "common/data/formats.h"

/* A whole file on the heap; data is aligned as by mfl_alloc_aligned. */
struct mfl_data_bytes {
        uint8_t *data;
        size_t n;
};
int mfl_data_read_file(const char *path, struct mfl_data_bytes *ret_bytes, struct mfl_error *err);
bool mfl_data_is_folder(const char *path);
/* Where the splits of config->dir are: it is one file, or a folder with train.SUFFIX and test.SUFFIX (suffix
 * with its dot, "" for folders). *ret_test may become NULL; then config->test_fraction is above 0. The caller frees. */
int mfl_data_find(const struct mfl_dataset_config *config, const char *suffix, char **ret_train,
        char **ret_test, struct mfl_error *err);
/* Names of files or of folders in a folder, in byte order, without hidden ones. */
int mfl_data_list(const char *dir, bool folders, char ***ret_names, size_t *ret_n, struct mfl_error *err);
void mfl_data_list_free(char **names, size_t n);

/* Turns two arrays into the samples and labels, or float targets, of a split. Takes over the bytes, also on failure;
 * the paths are for messages. */
int mfl_pair_settle(struct mfl_data_bytes *x, const struct mfl_array *x_array, const char *x_path,
        struct mfl_data_bytes *y, const struct mfl_array *y_array, const char *y_path,
        const struct mfl_shape *shape, struct mfl_shape *ret_shape, int *ret_n_targets,
        struct mfl_split *split, struct mfl_error *err);
/* The same without labels: the training split, whose labels are 0. */
int mfl_samples_settle(struct mfl_data_bytes *x, const struct mfl_array *array, const char *path,
        const struct mfl_shape *shape, struct mfl_dataset *dataset, struct mfl_error *err);
/* Whether both splits have the same shape, type and targets. */
int mfl_pairs_check(const struct mfl_dataset *dataset, const struct mfl_shape *test_shape, int test_targets,
        struct mfl_error *err);

/* A borrowed piece of text. */
struct mfl_span {
        const char *s;
        size_t n;
};
/* The distinct texts among n, in byte order, as one allocation (see dataset.h). */
int mfl_names_new(const struct mfl_span *texts, size_t n, char ***ret_names, uint32_t *ret_n_names,
        struct mfl_error *err);
/* The number of a name, or UINT32_MAX. */
uint32_t mfl_names_find(char *const *names, uint32_t n_names, struct mfl_span text);

/* Moves config->test_fraction of the training samples, drawn with config->seed, into the test split, which is
 * empty. Both keep their order. */
int mfl_split_off_test(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err);

/* ---- parsers: bytes in memory; no I/O ---- */

/* A table of numbers. Cells of columns with a purpose of their own point into bytes, which the parser changes (it
 * removes quotes in place) and which must outlive the table. */
struct mfl_csv {
        uint32_t n, n_features, n_targets;
        char **names;            /* n_features, one allocation (see dataset.h); NULL: headless */
        uint8_t *categorical;    /* n_features; NULL: all are numbers */
        char *encoding;          /* the same */
        float *features;         /* n * n_features */
        float *targets;          /* n * n_targets */
        struct mfl_span *labels; /* n, or NULL */
        struct mfl_span *owners; /* n, or NULL */
        struct mfl_span *groups; /* of windows: the row's series; n, or NULL */
        struct mfl_span *times;  /* of windows: n, or NULL */
        struct mfl_span *texts;  /* n, or NULL; then n_features is 0 */
};
int mfl_csv_parse(uint8_t *bytes, size_t n_bytes, const char *path, const struct mfl_dataset_config *config,
        struct mfl_csv *ret_csv, struct mfl_error *err);
void mfl_csv_deinit(struct mfl_csv *csv);

/* Turns the rows of the splits into windows over time series. rows: the tables of the splits, whose cells are the
 * series and times of the splits' rows; without a second table, the test split is empty, and is cut from the first.
 * Frees the rows. */
int mfl_series_windows(const struct mfl_dataset_config *config, const struct mfl_csv *const rows[2],
        struct mfl_dataset *dataset, struct mfl_error *err);
/* Sets the samples of the splits from the texts of their tables: word by word, of the longest dictionary; the table of
 * a test split may be NULL. Changes the texts (A to Z become a to z). Then, when test samples exist, _vocabulary
 * numbers the words by their frequency in the training samples, or by the configured file. Bytes need no second
 * call. */
struct mfl_dictionary {
        char **words; /* n, in byte order; one allocation */
        uint32_t n;
};
int mfl_words_take(const struct mfl_dataset_config *config, const struct mfl_csv *const tables[2],
        struct mfl_dataset *dataset, struct mfl_dictionary *ret_dictionary, struct mfl_error *err);
int mfl_words_vocabulary(const struct mfl_dataset_config *config, const struct mfl_dictionary *dictionary,
        struct mfl_dataset *dataset, struct mfl_error *err);
/* npy, npz: makes tokens of the samples, which are whole numbers below config->vocabulary. */
int mfl_tokens_settle(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err);

/* Columns that hold categories. _of_header removes the type from a header cell's name; n = 0 if it has none. _encode
 * writes _width numbers; false: the cell is not one of the values. _describe appends to a text (NULL at first); two
 * texts are equal exactly if the encodings are. */
int mfl_categories_add_value(struct mfl_categories *c, const char *text, size_t n, struct mfl_error *err);
int mfl_categories_check(const struct mfl_categories *c, struct mfl_error *err);
int mfl_categories_of_header(
        struct mfl_span *name, struct mfl_categories *ret_categories, struct mfl_error *err);
uint32_t mfl_categories_width(const struct mfl_categories *c); /* NULL: a number */
bool mfl_categories_encode(const struct mfl_categories *c, struct mfl_span cell, float *features);
void mfl_categories_text(const struct mfl_categories *c, char *text, size_t bytes);
int mfl_categories_describe(
        const struct mfl_categories *c, uint32_t feature, char **encoding, struct mfl_error *err);

/* Brings each feature that is a quantity to mean 0 and deviation 1 of the training samples; a constant feature
 * becomes 0. MFL_INVALID unless the samples are rows of floats. */
int mfl_columns_normalise(struct mfl_dataset *dataset, struct mfl_error *err);
/* Sets dataset->note if quantities of very different size occur together. */
void mfl_columns_note(struct mfl_dataset *dataset);

/* Units of a text: code points or bytes. The caller frees. */
int mfl_text_decode(const uint8_t *bytes, size_t n_bytes, enum mfl_text_unit unit, const char *path,
        uint32_t **ret_units, size_t *ret_n, struct mfl_error *err);

/* Arrays of an npz file in memory: NAME.npy within a zip archive, stored or deflated. An array whose declared size
 * exceeds what deflate can produce is refused before allocation. */
struct mfl_npz;
int mfl_npz_open(const uint8_t *bytes, size_t n_bytes, const char *path, struct mfl_npz **ret_npz,
        struct mfl_error *err);
void mfl_npz_close(struct mfl_npz *npz);
/* The archive's comment, not terminated, of *ret_n bytes; and how many files it has. */
const char *mfl_npz_comment(struct mfl_npz *npz, size_t *ret_n);
size_t mfl_npz_count(struct mfl_npz *npz);
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
 * (bilinear, with a wider support when it shrinks), in integers. shape is {1 or 3, H, W}; one channel is ITU-R 601
 * luma. Writes the pixels to out, planar. */
int mfl_image_fit(const uint8_t *rgb, uint32_t width, uint32_t height, const struct mfl_shape *shape,
        uint8_t *out, struct mfl_error *err);

/* A PNG whose greys, or places in its palette, are labels of pixels. The caller frees. Fitted, each pixel has the label that is
 * nearest to its centre, in the same window of the image as above. */
int mfl_mask_decode(const uint8_t *bytes, size_t n_bytes, const char *path, uint16_t **ret_labels,
        uint32_t *ret_width, uint32_t *ret_height, struct mfl_error *err);
void mfl_mask_fit(
        const uint16_t *labels, uint32_t width, uint32_t height, const struct mfl_shape *shape, int32_t *out);

/* ---- loaders: fill shape, splits, classes and everything else that the format provides ---- */

int mfl_load_csv(const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err);
int mfl_load_npz(const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err);
int mfl_load_text(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err);
int mfl_load_images(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err);

#endif
