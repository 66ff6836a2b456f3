/* SPDX-License-Identifier: Apache-2.0 */
/* What a file says of its initializers, and what it does not have of the module; a part of internal.h. */
#ifndef MFL_CLI_ONNX_KNOWN_H
#define MFL_CLI_ONNX_KNOWN_H

#include <stdbool.h>
#include <stddef.h>

#include "onnx.pb-c.h"

struct onnx;
struct onnx_tensor;

/* signature.c: what PyTorch's current exporter says of the module's tensors, whether the file has them or not. */
enum onnx_role { ONNX_NOT_SAID, ONNX_PARAMETER, ONNX_BUFFER };
int mfl_onnx_read_signature(struct onnx *o);
enum onnx_role mfl_onnx_role(const struct onnx *o, const char *name);
/* The name in place i of the n_said places; NULL: none. */
const char *mfl_onnx_said_name(const struct onnx *o, size_t i);

/* known.c: what the file says of its initializers. Before they are read: */
int mfl_onnx_read_infos(struct onnx *o);
/* What the file has beside the value of this name; NULL: nothing. */
const char *mfl_onnx_said_of(const struct onnx *o, const char *name, const char *key);
/* The list of what the exporter computed an initializer from. */
#define ONNX_FOLDED "pkg.onnxscript.optimizer.folded_from"
/* Whether an argument in a note, of n characters, is the value: "p_fc_weight" and "b_fc_weight" are "fc.weight", others have the
 * value's name. */
bool mfl_onnx_is_noted(const char *arg, size_t n, const char *value);
/* Whether the node's note names the value as a parameter of the module; the first node of which this holds, -1: none. */
bool mfl_onnx_is_noted_at(const struct onnx *o, int node, const char *name);
int mfl_onnx_noted_at(const struct onnx *o, const char *name);
/* After the initializers: those that the file has as an Identity of another one; and whether the node is such an Identity. */
int mfl_onnx_read_copies(struct onnx *o);
/* After all initializers: those that the current exporter's optimiser transposed and that are in the file as they are, too, become
 * the same parameter. */
int mfl_onnx_read_turned(struct onnx *o);
bool mfl_onnx_is_copy(const struct onnx *o, const Onnx__NodeProto *node);
/* The parameter that the node reads in place of another tensor or number; NULL: none. */
const char *mfl_onnx_merged_at(const struct onnx *o, int node, bool *ret_apart);
int mfl_onnx_fail_merged(struct onnx *o, const char *name);
/* open/changed.c: refuses to train a file that another program has changed, once the initializers are read. */
int mfl_onnx_check_changed(struct onnx *o);
/* Sets what t, an initializer, was in the module. */
int mfl_onnx_mark_param(struct onnx *o, struct onnx_tensor *t);

/* share.c */
/* Says that tensors with these names are one; the array outlives the conversion. Called before the nodes; with n 0 it
 * says that all ties are known. */
int mfl_onnx_tie(struct onnx *o, const char *const *names, size_t n);
/* A tensor of one number that two layers read, and of which nothing says whether it is one parameter. */
int mfl_onnx_fail_equal(struct onnx *o, const struct onnx_tensor *t);
bool mfl_onnx_is_uniform(const struct onnx_tensor *t); /* one number, repeated */
/* Whether the node belongs to the module that has the parameter by its name, or to another call of that module. */
bool mfl_onnx_is_of_module(const struct onnx *o, int node, const char *origin);
/* Finds the layers that use tensors of earlier ones, once all layers are in order. */
int mfl_onnx_share(struct onnx *o);

#endif
