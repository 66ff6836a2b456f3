/* SPDX-License-Identifier: Apache-2.0 */
/* Parsers of data files: from bytes in memory to an array description, and from there to samples or labels.
 *
 * Private to common/data, its tests and its fuzzers. Nothing here does I/O. `path` is for messages only. The bytes
 * are never trusted: sizes are computed with overflow checks and compared with the number of bytes before anything is
 * allocated. Pure; any thread. MFL_INVALID: "PATH: what it says, what it should say".
 */
#ifndef MFL_COMMON_DATA_FORMATS_H
#define MFL_COMMON_DATA_FORMATS_H

#include "common/data/dataset.h"

#define MFL_ARRAY_RANK_MAX 5 /* samples, then at most channels, depth, height, width */

enum mfl_array_type {
        MFL_ARRAY_U8,
        MFL_ARRAY_I8,
        MFL_ARRAY_I32,
        MFL_ARRAY_I64,
        MFL_ARRAY_F32,
        MFL_ARRAY_F64,
};

/* An array in C order, as stored in a file. Every dimension is at least 1, and count elements of the type fill the
 * file exactly from offset to its end. */
struct mfl_array {
        enum mfl_array_type type;
        bool big_endian;
        int rank; /* 1 to MFL_ARRAY_RANK_MAX */
        uint64_t dim[MFL_ARRAY_RANK_MAX];
        uint64_t count;
        size_t offset;
};

size_t mfl_array_element_bytes(enum mfl_array_type type);
/* Sets array->count from rank and dim, and checks that elements fill n_bytes from array->offset exactly. */
int mfl_array_check(struct mfl_array *array, size_t n_bytes, const char *path, struct mfl_error *err);

/* idx as published with MNIST (http://yann.lecun.com/exdb/mnist/): 00 00 type rank, big-endian dimensions,
 * data; types 08 (u8) and 0d (f32). */
int mfl_idx_parse(const uint8_t *bytes, size_t n_bytes, const char *path, struct mfl_array *ret_array,
        struct mfl_error *err);
/* True when the bytes are gzip (RFC 1952). */
bool mfl_is_gzip(const uint8_t *bytes, size_t n_bytes);
/* Inflates one gzip member that holds an idx file. The idx header inside declares the size; a size beyond what
 * deflate could compress into n_bytes is refused before allocation. The caller frees. */
int mfl_idx_inflate(const uint8_t *bytes, size_t n_bytes, const char *path, uint8_t **ret_bytes,
        size_t *ret_n_bytes, struct mfl_error *err);

/* npy 1.0, 2.0 and 3.0 (numpy.lib.format): u1, i1, <i4, <i8, <f4, <f8, C order. */
int mfl_npy_parse(const uint8_t *bytes, size_t n_bytes, const char *path, struct mfl_array *ret_array,
        struct mfl_error *err);

/* Turns the array into samples at the start of the same bytes: in place, so that a data set is never in
 * memory twice. (n, F) becomes {F}, (n, H, W) {1,H,W}, (n, C, H, W) {C,H,W}; `shape`, unless its rank is 0, replaces
 * that if it has as many elements. Integers other than u8 become floats. Float values must be finite (as floats). */
int mfl_array_to_samples(const struct mfl_array *array, uint8_t *bytes, const struct mfl_shape *shape,
        const char *path, struct mfl_shape *ret_shape, enum mfl_dtype *ret_dtype, uint32_t *ret_n,
        struct mfl_error *err);
/* Copies a rank 1 integer array; labels are checked to be in [0, MFL_CLASSES_MAX). The caller frees. */
int mfl_array_to_labels(const struct mfl_array *array, const uint8_t *bytes, const char *path,
        int32_t **ret_labels, uint32_t *ret_n, struct mfl_error *err);
/* A label for each pixel of samples of this shape {C, H, W}: integers (n, H, W) or (n, 1, H, W); or for each position of
 * {T} or {T, F}: (n, T). Their values are not checked. */
int mfl_array_to_label_maps(const struct mfl_array *array, const uint8_t *bytes, const char *path,
        const struct mfl_shape *shape, int32_t **ret_labels, int *ret_each, uint32_t *ret_n,
        struct mfl_error *err);

bool mfl_array_is_float(const struct mfl_array *array);
/* Copies an array of rank 1 or 2 as floats, (n) as (n, 1). The caller frees. */
int mfl_array_to_targets(const struct mfl_array *array, const uint8_t *bytes, const char *path,
        float **ret_targets, int *ret_n_targets, uint32_t *ret_n, struct mfl_error *err);

/* Appends the records of one CIFAR binary batch to the split, which grows. A record has label_bytes bytes, where byte
 * `label` is the label, below classes; then 3 x 32 x 32 bytes. CIFAR-10 has one label byte, CIFAR-100 a coarse and a
 * fine one. */
#define MFL_CIFAR_IMAGE_BYTES 3072
struct mfl_cifar_kind {
        int label_bytes, label, classes;
};
extern const struct mfl_cifar_kind mfl_cifar10, mfl_cifar100_fine, mfl_cifar100_coarse;
int mfl_cifar_append(const uint8_t *bytes, size_t n_bytes, const char *path,
        const struct mfl_cifar_kind *kind, struct mfl_split *split, struct mfl_error *err);

/* Fills the splits, shape and classes of a synthetic data set: u8, every class around its own mean image. */
int mfl_synthetic_fill(
        const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err);
/* MFL_INVALID unless the shape is {F} or {C,H,W} with at most MFL_CHANNELS_MAX channels, and samples are
 * below 2^31 elements. what: the subject of the message. */
int mfl_sample_shape_check(const struct mfl_shape *shape, const char *what, struct mfl_error *err);

#endif
