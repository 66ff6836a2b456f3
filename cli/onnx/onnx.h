/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes ONNX models. A graph becomes the native list of layers with its params: text for a job
 * file, and floats in the order of its parameter table. A native graph becomes an ONNX file.
 *
 * A file from a stranger is never trusted: mfl_onnx_open reads it in a child process without rights
 * (child.c). mfl_onnx_convert is the part that the child runs. Errors: MFL_INVALID with FILE, node and
 * operator; negative for this machine.
 */
#ifndef MFL_CLI_ONNX_ONNX_H
#define MFL_CLI_ONNX_ONNX_H

#include "common/model/graph.h"

struct mfl_proof; /* cli/proof/proof.h */

struct mfl_onnx_model {
        char *text; /* YAML, the value of `layers:`, each line indented by four blanks */
        struct mfl_shape input;
        int classes;
        float *params; /* the tensors in the order of the layers (mfl_graph_by_layers) */
        uint64_t n;
        char notes[1024]; /* notes for the user, one per line; empty: none */
        /* From python/mfl_export.py; the params' places in the proof are those of `params`. */
        bool own;       /* mfl wrote the file: its layers are the model */
        bool described; /* it says which tensors are parameters, and which are trained */
        bool said;      /* not described, but it says which tensors are parameters and which are buffers */
        struct mfl_proof *proof; /* NULL: none */
        uint64_t proof_bytes;
        char no_proof[256]; /* why a described model has no proof */
        bool log_softmax;   /* it ends in log_softmax, which is left out */
        /* Params that are a part of a tensor of the module, such as the first positions of a table, one per line: "NAME FIRST DIM ...",
         * the first element's number and the shape of the whole tensor. NULL: none. */
        char *parts;
        char *contract; /* of a file that mfl wrote: its input contract (common/contract), unparsed. NULL: none */
};
void mfl_onnx_model_deinit(struct mfl_onnx_model *model);

/* Maps a file of external data, given as a path below the model's folder. The bytes outlive the call.
 * MFL_INVALID. */
struct mfl_onnx_files {
        int (*map)(void *user, const char *name, const uint8_t **ret_bytes, size_t *ret_n,
                struct mfl_error *err);
        void *user;
        uint32_t auxiliary; /* how many outputs after the first are trained, too; all or none */
        bool inference; /* the network is not trained: what an export has computed from parameters is taken as it is */
};

/* path is for messages. files may be NULL: then a model with external data is refused. */
int mfl_onnx_convert(const uint8_t *bytes, size_t n_bytes, const char *path,
        const struct mfl_onnx_files *files, struct mfl_onnx_model *ret_model, struct mfl_error *err);

/* Converts a file in a child process of this program that may only compute: its time, memory, files and
 * system calls are limited, in proportion to the size of the model's files. External data must be ordinary
 * files below the model's folder, not reached through a symbolic link. auxiliary: how many outputs after the first are
 * trained, too; the model then ends in all of them, one after another. inference: as in mfl_onnx_files. MFL_NOT_FOUND: no such file. */
#define MFL_ONNX_FILES_GIB_MAX 16 /* the model and its external data together */
int mfl_onnx_open(const char *path, uint32_t auxiliary, bool inference, struct mfl_onnx_model *ret_model,
        struct mfl_error *err);
/* Runs in the child, whose first argument selects it; returns the exit status. */
#define MFL_ONNX_CHILD "read-onnx-in-sandbox"
int mfl_onnx_child(int socket);

/* Writes the graph for inference (batch norm with its running statistics, without dropout), with a batch
 * dimension of any size, opset 17. Replaces path once the file is complete. MFL_INVALID: an operator that
 * ONNX can't express, or a model above 2 GiB, protobuf's limit. */
int mfl_onnx_write(
        const char *path, const struct mfl_graph *graph, const float *params, struct mfl_error *err);

struct mfl_contract;
/* How the file's input is to be given. */
struct mfl_onnx_contract {
        const char *text; /* JSON, for the metadata; NULL or empty: none */
        const struct mfl_contract
                *contract; /* the file's first layers scale as it says; NULL: the input is the graph's */
};
/* The same with a contract. MFL_INVALID also: the contract says that the input must be scaled before. */
int mfl_onnx_write_with(const char *path, const struct mfl_graph *graph, const float *params,
        const struct mfl_onnx_contract *contract, struct mfl_error *err);

#endif
