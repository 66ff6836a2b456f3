/* SPDX-License-Identifier: Apache-2.0 */
/* ONNX models in and out. A graph becomes the native list of layers with its params, as text that a job file
 * can hold and floats in the order of its parameter table; and a native graph becomes an ONNX file.
 *
 * A file from a stranger is never trusted: mfl_onnx_open reads it in a child process without rights
 * (child.c). mfl_onnx_convert is what the child does. Errors: MFL_INVALID with FILE, node and operator;
 * negative for this machine.
 */
#ifndef MFL_CLI_ONNX_ONNX_H
#define MFL_CLI_ONNX_ONNX_H

#include "common/model/graph.h"

struct mfl_onnx_model {
        char *text; /* YAML, the value of `layers:`, each line indented by four blanks */
        struct mfl_shape input;
        int classes;
        float *params; /* tensors in the order of layers (mfl_graph_by_layers) */
        uint64_t n;
        char notes[1024]; /* what the user should know, lines; empty: nothing */
};
void mfl_onnx_model_deinit(struct mfl_onnx_model *model);

/* The bytes of a file of external data, told as a path below the model's folder, which outlive the call.
 * MFL_INVALID. */
struct mfl_onnx_files {
        int (*map)(void *user, const char *name, const uint8_t **ret_bytes, size_t *ret_n,
                struct mfl_error *err);
        void *user;
};

/* path is for messages. files may be NULL: then a model with external data is refused. */
int mfl_onnx_convert(const uint8_t *bytes, size_t n_bytes, const char *path,
        const struct mfl_onnx_files *files, struct mfl_onnx_model *ret_model, struct mfl_error *err);

/* The same of a file, in a child process of this program that may only compute: limits on time, memory, files
 * and system calls, which grow with the size of the model's files. Those of external data must be ordinary
 * files below the model's folder, by no symbolic link. MFL_NOT_FOUND: no such file. */
#define MFL_ONNX_FILES_GIB_MAX 16 /* the model and its external data together */
int mfl_onnx_open(const char *path, struct mfl_onnx_model *ret_model, struct mfl_error *err);
/* What the child runs, told by its first argument; returns the exit status. */
#define MFL_ONNX_CHILD "read-onnx-in-sandbox"
int mfl_onnx_child(int socket);

/* Writes the graph for inference (batch norm by its running statistics, dropout left out), with a batch
 * dimension of any size, opset 17. Replaces path when it is whole. MFL_INVALID: an operator that ONNX can't
 * say, or a model of more than 2 GiB, which protobuf can't hold. */
int mfl_onnx_write(
        const char *path, const struct mfl_graph *graph, const float *params, struct mfl_error *err);

#endif
