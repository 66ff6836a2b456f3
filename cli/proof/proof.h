/* SPDX-License-Identifier: Apache-2.0 */
/* What python/mfl_export.py adds to an ONNX file: a description of the PyTorch module, and a proof.
 *
 * The proof has two batches of seeded inputs, with outputs, norms of modules' outputs and elements of each
 * parameter's gradient, as PyTorch computes them. mfl replays it: a model is taken only if mfl computes the
 * same. Dropout is off and batch norm takes the statistics of the batch; the loss is the sum of outputs times
 * seeded numbers.
 *
 * The file's bytes are a stranger's. The sandboxed reader of ONNX files parses them (described.h) and gives
 * the command line one block of plain numbers, which mfl_proof_check checks again.
 */
#ifndef MFL_CLI_PROOF_PROOF_H
#define MFL_CLI_PROOF_PROOF_H

#include "common/model/graph.h"

#define MFL_PROOF_BATCHES 2
#define MFL_PROOF_ROWS_MAX 16
#define MFL_PROOF_INPUTS_MAX 8
#define MFL_PROOF_RANK_MAX 6
#define MFL_PROOF_BYTES_MAX ((uint64_t)32 << 20)
#define MFL_PROOF_NAME_BYTES 256
#define MFL_PROOF_STOPS_BYTES 320

/* How an input is made from the seed: tokens below a number, or mean + deviation * (uniform, of variance 1). */
struct mfl_proof_input {
        uint32_t below; /* 0: floats */
        uint32_t unused;
        double mean, deviation;
        uint64_t count; /* of a row */
};

/* One batch's outputs: their largest magnitude, and how much they change by rounding in PyTorch. */
struct mfl_proof_batch {
        uint32_t rows, n_outputs;
        double largest, noise;
};

struct mfl_proof_output {
        uint32_t index; /* in PyTorch's order */
        float value;
};

struct mfl_proof_gradient {
        char name[MFL_PROOF_NAME_BYTES]; /* of the parameter in PyTorch */
        double largest[MFL_PROOF_BATCHES], noise[MFL_PROOF_BATCHES];
        double spread[MFL_PROOF_BATCHES]; /* how much of its L2 norm rounding, and a little more, changes */
        uint32_t first, n;                /* its samples */
};

struct mfl_proof_sample {
        uint64_t place; /* in the params, by layers */
        float value[MFL_PROOF_BATCHES];
};

struct mfl_proof_module {
        char name[MFL_PROOF_NAME_BYTES], kind[MFL_PROOF_NAME_BYTES]; /* "layer1.0.conv1", "Conv2d" */
        double norm[MFL_PROOF_BATCHES];                              /* L2, of the batch's outputs */
};

/* The head of the block. After it: outputs of batch 0, of batch 1, gradients, samples, modules. */
struct mfl_proof {
        uint64_t bytes;
        uint32_t seed, n_inputs, n_gradients, n_samples, n_modules, rank;
        uint32_t exact; /* 1: computed in double; 0: in floats, or the file does not say */
        char stops
                [MFL_PROOF_STOPS_BYTES]; /* what stops gradients in PyTorch and is not in the file; empty: nothing */
        int64_t shape[MFL_PROOF_RANK_MAX]; /* of the outputs; shape[0], the batch, is 0 */
        struct mfl_proof_batch batch[MFL_PROOF_BATCHES];
        struct mfl_proof_input input[MFL_PROOF_INPUTS_MAX];
};

uint64_t mfl_proof_size(
        const struct mfl_proof *head); /* of the block with these counts; UINT64_MAX: too large */
const struct mfl_proof_output *mfl_proof_outputs(const struct mfl_proof *proof, int batch);
const struct mfl_proof_gradient *mfl_proof_gradients(const struct mfl_proof *proof);
const struct mfl_proof_sample *mfl_proof_samples(const struct mfl_proof *proof);
const struct mfl_proof_module *mfl_proof_modules(const struct mfl_proof *proof);

/* Whether n_bytes, aligned as malloc does, are a block whose numbers are all within bounds, for a model of
 * n_params floats. MFL_INVALID. */
int mfl_proof_check(const void *bytes, uint64_t n_bytes, uint64_t n_params, struct mfl_error *err);

/* Computes the two batches with the graph (in the order of layers, mfl_graph_by_layers) and its params on
 * `backend`: "reference", or "auto": the CPU backend, and the reference where that is missing or lacks an
 * operator. auxiliary: how many outputs the graph has after the main one; the proof is of the main one, so theirs
 * are ignored. ret_text is one line for the user. MFL_INVALID: outputs differ by more than 1e-4 of the largest
 * one, or a gradient by more than 1e-3 of its largest element, and so they do in double; the text names the layer. More is
 * allowed where rounding alone changes it in PyTorch (judge.c), if PyTorch computed in floats or double would take minutes. Needs memory for a network of the proof's rows. Blocking. */
#define MFL_PROOF_TEXT 256
int mfl_proof_replay(const struct mfl_proof *proof, const struct mfl_graph *graph, const float *params,
        uint32_t auxiliary, const char *backend, char ret_text[MFL_PROOF_TEXT], struct mfl_error *err);

#endif
