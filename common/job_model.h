/* SPDX-License-Identifier: Apache-2.0 */
/* The `model` key of a job document: a preset's name, or a mapping with a preset or a list of layers. Private
 * to job.c and job_model.c. */
#ifndef MFL_COMMON_JOB_MODEL_H
#define MFL_COMMON_JOB_MODEL_H

#include "common/job.h"
#include "common/yaml.h"

/* An mfl_yaml_field.read; job is the whole struct mfl_job. Layers are checked with all shapes when
 * model.input is given; the message then carries the layer's line. MFL_INVALID; -ENOMEM. */
int mfl_job_read_model(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *job, struct mfl_error *err);

/* The same for `layers`: appends to job->model.layers. */
int mfl_job_read_layers(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *job, struct mfl_error *err);

/* model.freeze and model.lora (job_adapt.c). */
extern const struct mfl_yaml_field mfl_job_lora_fields[];
int mfl_job_read_globs(/* into a struct mfl_job_globs */
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *globs, struct mfl_error *err);
int mfl_job_check_adapt(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *model,
        const struct mfl_job *job, struct mfl_error *err);
/* Gives dense layers their adapters, and freezes what shall not be trained; *graph may become another one.
 * MFL_INVALID for a pattern that matches nothing. */
int mfl_job_adapt_graph(const struct mfl_job *job, struct mfl_graph **graph, struct mfl_error *err);
/* The preset's or the layers' graph, as it is before that. */
int mfl_job_build_graph(const struct mfl_job *job, const struct mfl_shape *input, int classes,
        struct mfl_graph **ret_graph, struct mfl_error *err);
/* MFL_INVALID when nothing of it is trained. */
int mfl_job_check_trained(const struct mfl_job *job, const struct mfl_graph *graph, struct mfl_error *err);

#define MFL_JOB_INIT_NOT_GIVEN (-1)            /* in layer.init: a layer that does not name its own */
extern const char *const mfl_job_init_names[]; /* by enum mfl_init, then NULL */

/* All tables of keys, each list ends with NULL: for the test that the reference document knows every key. */
extern const struct mfl_yaml_field *const mfl_job_tables[];
extern const struct mfl_yaml_field *const mfl_job_model_tables[];
extern const struct mfl_yaml_field *const mfl_job_layer_tables[];

#endif
