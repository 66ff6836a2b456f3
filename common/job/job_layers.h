/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that read a job's layers share; private to common/job. */
#ifndef MFL_COMMON_JOB_JOB_LAYERS_H
#define MFL_COMMON_JOB_JOB_LAYERS_H

#include "common/model/graph.h"
#include "common/settings/yaml.h"

/* The values of a layer's mapping; without a key, ints stay -1 and names empty. */
struct mfl_layer_reader {
        struct mfl_layer layer;
        int init;
        char inputs[2][MFL_LAYER_NAME_BYTES]; /* names of the layers that it reads */
        char shares[3][MFL_LAYER_NAME_BYTES]; /* by enum mfl_sharing: the layer whose tensors it uses */
        bool count_include_pad;               /* avgpool2d; true unless it is set */
        int n_strides, n_shifts;              /* view: how many were given */
        int map_mode;                         /* pad, resize: a position in the mode's names */
};

/* Readers of values: kernel and stride, padding, a shape, the name of the layer that is read. */
int mfl_job_read_window(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
int mfl_job_read_shape(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
int mfl_job_read_input(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);

/* What the tables of keys are made of. */
#define AT(kind, member) MFL_YAML_AT(kind, struct mfl_layer_reader, member)
#define CALL_AT(member, read_)                                                                               \
        .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_layer_reader, member), .read = read_
#define NAME                                                                                                 \
        {                                                                                                    \
                .key = "name", AT(STRING, layer.name)                                                        \
        }
#define INPUT                                                                                                \
        {                                                                                                    \
                .key = "input", CALL_AT(inputs[0], mfl_job_read_input)                                       \
        }

/* job_layers_map.c: the keys of maps by kind, and of `mean`, which is a map where it has several dimensions. */
extern const struct mfl_yaml_field mfl_job_mean_fields[];
extern const struct mfl_yaml_field *const mfl_job_map_fields[MFL_MAP_COUNT_]; /* NULL: no layer of its own */
/* After all keys: turns an average pool without its padding and a mean of several dimensions into maps, and checks
 * what belongs together. */
int mfl_job_finish_map(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct mfl_layer_reader *reader, struct mfl_error *err);

#endif
