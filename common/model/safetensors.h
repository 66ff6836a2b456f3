/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors files (u64 header length, JSON header, little-endian data): reads and writes checkpoints and models.
 * Format: https://github.com/huggingface/safetensors, "Format". Only F32 tensors are read into params. The header is
 * limited to 16 MiB, offsets must be inside the file, contiguous and without overlap: a file from a stranger is never
 * trusted. Blocking I/O: call from a worker thread, never from a loop.
 */
#ifndef MFL_COMMON_MODEL_SAFETENSORS_H
#define MFL_COMMON_MODEL_SAFETENSORS_H

#include "common/model/graph.h"

struct mfl_st_tensor {
        const char *name;
        struct mfl_shape shape;
        const float *data; /* count floats */
        uint64_t count;
        const int64_t *words; /* to be written as I64 instead: count of them; NULL in files that are read */
};
struct mfl_st_meta {
        const char *key, *value;
};

/* Writes tensors and metadata to fd at its position (no fsync, no rename: see common/base/fs.h). Data follow the
 * order given; the header is padded with spaces to 8 bytes; keys appear in the order given, so equal input
 * gives equal bytes. Errors: -errno with path in the text. */
int mfl_st_write(int fd, const char *path, const struct mfl_st_tensor *tensors, int n_tensors,
        const struct mfl_st_meta *meta, int n_meta, struct mfl_error *err);

/* A file opened for reading, mapped read-only. Tensors of types other than F32 are checked but hidden: count,
 * tensor_at and find cover only F32. MFL_NOT_FOUND: no such file; MFL_INVALID: not of this format; -errno. Data must
 * start at a multiple of 4 bytes in the file, as all current writers ensure. */
struct mfl_st_file;
int mfl_st_open(const char *path, struct mfl_st_file **ret_file, struct mfl_error *err);
void mfl_st_close(struct mfl_st_file *file);
/* The same over bytes in memory that outlive the object (fuzzing, tests). */
int mfl_st_parse(const void *bytes, size_t n_bytes, const char *path, struct mfl_st_file **ret_file,
        struct mfl_error *err);
int mfl_st_count(const struct mfl_st_file *file);
const struct mfl_st_tensor *mfl_st_tensor_at(const struct mfl_st_file *file, int i);
const struct mfl_st_tensor *mfl_st_find(const struct mfl_st_file *file, const char *name); /* NULL: none */
/* Copies an I64 tensor of exactly that many elements. MFL_NOT_FOUND: there is none. */
int mfl_st_words(const struct mfl_st_file *file, const char *name, uint64_t count, int64_t *to);
const char *mfl_st_meta_get(const struct mfl_st_file *file, const char *key); /* NULL: none */

/* Tensors of all types, i in [0, mfl_st_count_all). *ret_dtype: "F32", "BF16", ... data is NULL unless F32; shapes of
 * other types with more than 4 dimensions are one dimension. */
int mfl_st_count_all(const struct mfl_st_file *file);
const struct mfl_st_tensor *mfl_st_any_at(const struct mfl_st_file *file, int i, const char **ret_dtype);
/* Tensor i as floats, exactly: F32, F16, BF16. False: another type, which floats can't hold. */
bool mfl_st_floats(const struct mfl_st_file *file, int i, float *to);
/* Whether tensors i and k have the same bytes. */
bool mfl_st_equal(const struct mfl_st_file *file, int i, const struct mfl_st_file *other, int k);

/* Copies the tensors named by the graph's parameter table into the flat vector; MFL_INVALID names the first tensor
 * that is missing, has another shape or type, or is not in the model (params are then unchanged). `rest`, unless
 * NULL, has the tensors that `file` lacks. A shared tensor may have the name of any layer that uses it; under several
 * names it has one content. Tensors with a '/' in their name ("strategy/momentum/conv1.weight") are
 * not part of the model and are skipped: no layer name has a '/'. So is a batch norm's num_batches_tracked from a
 * PyTorch state_dict. */
int mfl_st_to_params(const struct mfl_st_file *file, const struct mfl_st_file *rest,
        const struct mfl_graph *graph, float *params, struct mfl_error *err);
/* The tensors of a flat vector, pointing into params and graph; tensors has graph->n_params entries. */
void mfl_st_from_params(const struct mfl_graph *graph, const float *params, struct mfl_st_tensor *tensors);
/* Appends the other names of shared tensors that exported files have, as a PyTorch state_dict does, to the n_params
 * tensors of mfl_st_from_params; there is room for n_aliases more. Returns how many tensors there are. */
int mfl_st_add_aliases(const struct mfl_graph *graph, struct mfl_st_tensor *tensors);
/* The same with the two parts of the vector in different places: graph->n_frozen and n_moving floats. */
int mfl_st_to_parts(const struct mfl_st_file *file, const struct mfl_st_file *rest,
        const struct mfl_graph *graph, float *frozen, float *moving, struct mfl_error *err);
void mfl_st_from_parts(const struct mfl_graph *graph, const float *frozen, const float *moving,
        struct mfl_st_tensor *tensors);

#endif
