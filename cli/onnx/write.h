/* SPDX-License-Identifier: Apache-2.0 */
/* Builds an ONNX graph; private to cli/onnx. */
#ifndef MFL_CLI_ONNX_WRITE_H
#define MFL_CLI_ONNX_WRITE_H

#include "cli/onnx/onnx.h"
#include "onnx.pb-c.h"

#define WRITER_NAME_BYTES (MFL_LAYER_NAME_BYTES + 32)

enum { WRITER_TYPE_FLOAT = 1, WRITER_TYPE_UINT8 = 2, WRITER_TYPE_INT64 = 7 }; /* TensorProto.DataType */

/* A failed allocation is remembered in `failed`, and later calls do nothing. */
struct onnx_writer {
        const struct mfl_graph *graph;
        const float *params;
        const struct mfl_contract *contract; /* whose scaling the file does; NULL: none */
        Onnx__GraphProto proto;
        void **blocks;
        size_t n_blocks, blocks_max;
        char (*names)[WRITER_NAME_BYTES]; /* names of the layers' outputs */
        const char *at;                   /* the current layer */
        bool failed;
};

/* write_input.c: the layers between the file's input and the graph's; returns the name of the last one's output. */
const char *mfl_onnx_write_input(struct onnx_writer *w);

void *mfl_onnx_writer_alloc(
        struct onnx_writer *w, size_t n, size_t size); /* freed with the writer; NULL after a failure */
/* Appends a zeroed element of `size` bytes to a list of pointers; NULL after a failure. */
void *mfl_onnx_writer_append(struct onnx_writer *w, size_t *n, void ***list, size_t size);
char *mfl_onnx_writer_copy(struct onnx_writer *w, const char *text);
/* "/LAYER/what"; "" is the layer's own output. */
const char *mfl_onnx_writer_name(struct onnx_writer *w, const char *what);
/* Adds a node with n inputs; returns the output's name, so that calls nest. */
const char *mfl_onnx_writer_node(
        struct onnx_writer *w, const char *op, const char *output, int n, const char *const *inputs);
void mfl_onnx_writer_int(
        struct onnx_writer *w, const char *name, int64_t v); /* attributes of the last node */
void mfl_onnx_writer_ints(struct onnx_writer *w, const char *name, const int64_t *v, int n);
void mfl_onnx_writer_string(struct onnx_writer *w, const char *name, const char *v);
void mfl_onnx_writer_strings(struct onnx_writer *w, const char *name, const char *v); /* a list of one */
void mfl_onnx_writer_float(struct onnx_writer *w, const char *name, float v);
void mfl_onnx_writer_output(struct onnx_writer *w, const char *name); /* adds an output to the last node */
/* Constants for one use: whole numbers, and one float. */
const char *mfl_onnx_writer_whole(struct onnx_writer *w, const char *what, const int64_t *v, int n);
const char *mfl_onnx_writer_scalar(struct onnx_writer *w, const char *what, float v);
const char *mfl_onnx_writer_repeated(struct onnx_writer *w, const char *what, float v, int64_t n); /* {n} */
/* Adds an initializer; data is not copied. */
const char *mfl_onnx_writer_tensor(struct onnx_writer *w, const char *name, const int64_t *dims, int n_dims,
        const float *data, uint64_t count);
/* Adds one of the graph's tensors with other dimensions of equal count. */
const char *mfl_onnx_writer_shaped(struct onnx_writer *w, int param, const int64_t *dims, int n_dims);
const char *mfl_onnx_writer_param(
        struct onnx_writer *w, int param); /* adds one of the graph's tensors under its
                                                                  * name */

/* Constants with dimensions; the data is copied. */
const char *mfl_onnx_writer_indices(
        struct onnx_writer *w, const char *what, const int64_t *v, const int64_t *dims, int n_dims);
const char *mfl_onnx_writer_numbers(
        struct onnx_writer *w, const char *what, const float *v, const int64_t *dims, int n_dims);

/* write_recurrent.c: the nodes of an LSTM, GRU or RNN. */
void mfl_onnx_write_recurrent(
        struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out);
/* write_map.c: the nodes of layer i, a sparse linear map. -ENOMEM. */
int mfl_onnx_write_map(struct onnx_writer *w, int i, const char *in, const char *out, struct mfl_error *err);
/* write_ops.c: the nodes of layer i. */
int mfl_onnx_write_layer(struct onnx_writer *w, int i, struct mfl_error *err);

#endif
