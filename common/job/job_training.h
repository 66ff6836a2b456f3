/* SPDX-License-Identifier: Apache-2.0 */
/* The `training` key of a job document, and what job.c and job_training.c share. Private to both. */
#ifndef MFL_COMMON_JOB_JOB_TRAINING_H
#define MFL_COMMON_JOB_JOB_TRAINING_H

#include "common/job/job.h"
#include "common/settings/yaml.h"

extern const struct mfl_yaml_field mfl_job_training_fields[];
extern const struct mfl_yaml_field mfl_job_schedule_fields[];
/* The `parallel` key: its table, and its rules, after those of `training`. */
extern const struct mfl_yaml_field mfl_job_parallel_fields[];
int mfl_job_check_parallel(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err);
void mfl_job_training_defaults(struct mfl_job *job);
/* The rules between its keys, and the defaults that depend on other keys. MFL_INVALID with the line. */
int mfl_job_check_training(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err);

/* Keys that only some kinds use; bit k of `used_by` stands for kind k. */
struct mfl_job_usage {
        const char *key;
        unsigned used_by;
};
#define MFL_JOB_BIT(kind) (1u << (kind))
enum { SGD, ADAM, ADAMW, ADAGRAD }; /* training.optimizer */
int mfl_job_check_usage(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *parent,
        const struct mfl_job_usage *usage, size_t n, unsigned kind, const char *kind_name,
        struct mfl_error *err);
/* The value of a key; NULL also when the whole mapping is missing. */
const struct mfl_yaml_node *mfl_job_find_key(const struct mfl_yaml_node *parent, const char *key);

#endif
