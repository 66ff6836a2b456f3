/* SPDX-License-Identifier: Apache-2.0 */
/* What the parser's files share: keys that only some kinds use, and the search for a key. Private to them. */
#ifndef MFL_COMMON_JOB_JOB_KEYS_H
#define MFL_COMMON_JOB_JOB_KEYS_H

#include "common/job/job.h"
#include "common/settings/yaml.h"

/* job_facts.c: by enum, with NULL at the end. */
extern const char *const mfl_job_partition_names[], *const mfl_job_strategy_names[],
                                                            *const mfl_job_selection_names[];

/* Keys that only some kinds use; bit k of `used_by` stands for kind k. */
struct mfl_job_usage {
        const char *key;
        unsigned used_by;
};
#define MFL_JOB_BIT(kind) (1u << (kind))
int mfl_job_check_usage(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *parent,
        const struct mfl_job_usage *usage, size_t n, unsigned kind, const char *kind_name,
        struct mfl_error *err);
/* The value of a key; NULL also when the whole mapping is missing. */
const struct mfl_yaml_node *mfl_job_find_key(const struct mfl_yaml_node *parent, const char *key);

/* job_robust.c. Readers of aggregation.before and clip_radius; the value is the whole struct mfl_robust_spec. */
int mfl_job_read_before(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
int mfl_job_read_clip_radius(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
int mfl_job_read_update_clip(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
extern const struct mfl_yaml_field mfl_job_root_fields[];
/* selection.without. The value is the whole job; check: once the population is known. */
int mfl_job_read_without(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
int mfl_job_check_without(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err);
/* The key goes with strategy: plugin, which needs it. */
extern const struct mfl_yaml_field mfl_job_plugin_fields[];
/* evaluation.metrics and filters. The value is the whole job. */
int mfl_job_read_metrics(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
int mfl_job_read_filters(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
int mfl_job_check_plugin(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err);
/* Which keys go with which rule, and whether a round has enough rows for it. */
int mfl_job_check_robust(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err);
extern const struct mfl_yaml_field mfl_job_simulation_fields[], mfl_job_servers_fields[];
/* Also sets the defaults of what the attack uses. */
int mfl_job_check_simulation(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err);

/* job_time.c: the keys `time` and `trace`, and selections that know clients by their samples, losses or durations. */
extern const char *const mfl_job_time_names[];
extern const struct mfl_yaml_field mfl_job_trace_fields[];

void mfl_job_time_defaults(struct mfl_job *job);
/* value: the job. */
int mfl_job_read_trace(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
/* After all keys are read, the partition's among them. MFL_INVALID names the key; reads the trace's table. */
int mfl_job_check_time(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err);

static inline bool mfl_job_is_virtual(const struct mfl_job *job)
{
        return job->time == MFL_TIME_VIRTUAL;
}

/* job_edges.c: the key `edges`. check: before mfl_job_check_robust. */
extern const struct mfl_yaml_field mfl_job_edges_fields[];
int mfl_job_check_servers(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err);
int mfl_job_check_edges(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err);

/* job_evaluation.c: the key `evaluation`. */
#define MFL_HELD_ALL 1000000u /* so many samples that each millionth of a split shows */
extern const struct mfl_yaml_field mfl_job_evaluation_fields[];
/* Of data.normalise. */
int mfl_job_check_normalise(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err);
/* After the rules of `data`; sets the defaults that depend on other keys. */
int mfl_job_check_evaluation(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err);

#endif
