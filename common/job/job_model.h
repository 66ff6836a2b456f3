/* SPDX-License-Identifier: Apache-2.0 */
/* The `model` key of a job document: a preset's name, or a mapping with a preset or a list of layers. Private to
 * job*.c. */
#ifndef MFL_COMMON_JOB_JOB_MODEL_H
#define MFL_COMMON_JOB_JOB_MODEL_H

#include "common/job/job.h"
#include "common/settings/yaml.h"

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
/* Adds adapters to dense layers, and freezes what is not trained; may replace *graph. MFL_INVALID for a pattern that
 * matches nothing. */
int mfl_job_adapt_graph(const struct mfl_job *job, struct mfl_graph **graph, struct mfl_error *err);
/* An input layer and the job's layers behind it, as mfl_graph_build takes them. Freed with free(); NULL: out of
 * memory. */
struct mfl_layer *mfl_job_layers(const struct mfl_job *job, const struct mfl_shape *input);
/* MFL_INVALID when no part of the graph is trained. */
int mfl_job_check_trained(const struct mfl_job *job, const struct mfl_graph *graph, struct mfl_error *err);
/* The `personal` key. mfl_job_mark_personal sets graph->personal. MFL_INVALID: a name that the model does not have, or nothing or
 * everything is personal. */
extern const struct mfl_yaml_field mfl_job_personal_fields[];
int mfl_job_mark_personal(const struct mfl_job *job, struct mfl_graph *graph, struct mfl_error *err);

#define MFL_JOB_INIT_NOT_GIVEN (-1) /* in layer.init: the layer names no initialisation of its own */
extern const char *const mfl_job_init_names[]; /* by enum mfl_init, then NULL */

/* All tables of keys; each list ends with NULL. For the test that the reference document describes every key. */
extern const struct mfl_yaml_field *const mfl_job_tables[];
extern const struct mfl_yaml_field *const mfl_job_model_tables[];
extern const struct mfl_yaml_field *const mfl_job_layer_tables[];

#endif
