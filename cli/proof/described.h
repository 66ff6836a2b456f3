/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the metadata of an ONNX file (python/mfl_export.py says what they hold) and finds each parameter of
 * PyTorch in mfl's model.
 *
 * Where an element of a parameter ends up is not told by names: exporters and the reader transpose, reorder,
 * split and join tensors. So the graph is converted once with tags in place of the parameters: some elements
 * of each are distinct whole numbers, the others 0. A tag's place in the params is the element's. A parameter
 * without a tag there was merged into something else, one with two is used as two.
 *
 * Errors: MFL_INVALID with the parameter's name; -ENOMEM.
 */
#ifndef MFL_CLI_PROOF_DESCRIBED_H
#define MFL_CLI_PROOF_DESCRIBED_H

#include "cli/proof/proof.h"

struct mfl_described;

/* The values of the keys mfl.model and mfl.proof; proof NULL: the file has none. path is for messages. */
int mfl_described_read(const char *model, const char *proof, const char *path,
        struct mfl_described **ret_described, struct mfl_error *err);
void mfl_described_free(struct mfl_described *described); /* NULL is fine */

/* The names of initializers that are one parameter, for i = 0, 1, ...; *ret_n 0: it has one name. False: there is no
 * parameter i. They live as long as `described`. */
bool mfl_described_tied(
        const struct mfl_described *described, uint32_t i, const char *const **ret_names, size_t *ret_n);
/* Whether the initializer is a parameter. */
bool mfl_described_has(const struct mfl_described *described, const char *initializer);
/* Whether it requires a gradient; true for what is no parameter. */
bool mfl_described_trains(const struct mfl_described *described, const char *initializer);
/* Whether two parameters are both trained, or both not. */
bool mfl_described_alike(const struct mfl_described *described, const char *a, const char *b);
/* Puts its tags into v[0 .. n), which holds zeros. */
void mfl_described_tag(const struct mfl_described *described, const char *initializer, float *v, uint64_t n);

/* Finds the tags in the params of a graph in the order of layers. Afterwards mfl_described_frozen says which
 * layers are not trained: those whose tensors don't require gradients, or are no parameters. */
int mfl_described_locate(struct mfl_described *described, const struct mfl_graph *graph, const float *params,
        struct mfl_error *err);
/* Whether the module ends in log_softmax, which the file lacks. */
bool mfl_described_log_softmax(const struct mfl_described *described);
bool mfl_described_frozen(const struct mfl_described *described, int layer);
/* The padding_idx of the layer, an embedding; -1: it has none. */
int64_t mfl_described_padding(const struct mfl_described *described, int layer);

/* The proof as one block, for mfl_proof_replay; the caller frees it. NULL: the file has none, and *ret_why
 * (which lives as long as `described`) is the exporter's reason or NULL. */
int mfl_described_proof(const struct mfl_described *described, struct mfl_proof **ret_proof,
        const char **ret_why, struct mfl_error *err);

#endif
