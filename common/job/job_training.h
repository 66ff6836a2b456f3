/* SPDX-License-Identifier: Apache-2.0 */
/* The `training` and `parallel` keys of a job document. Private to the parser. */
#ifndef MFL_COMMON_JOB_JOB_TRAINING_H
#define MFL_COMMON_JOB_JOB_TRAINING_H

#include "common/job/job.h"
#include "common/job/job_keys.h"
#include "common/settings/yaml.h"

extern const struct mfl_yaml_field mfl_job_training_fields[];
extern const struct mfl_yaml_field mfl_job_schedule_fields[];
/* The `parallel` key: its table, and its rules, after those of `training`. */
extern const struct mfl_yaml_field mfl_job_parallel_fields[];
int mfl_job_read_parallel(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *job, struct mfl_error *err);
int mfl_job_check_parallel(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err);
void mfl_job_training_defaults(struct mfl_job *job);
/* The rules between its keys, and the defaults that depend on other keys. MFL_INVALID with the line. */
int mfl_job_check_training(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err);

enum { SGD, ADAM, ADAMW, ADAGRAD }; /* training.optimizer */
enum { FP32, TF32, BF16, FP16 };    /* training.precision */

#endif
