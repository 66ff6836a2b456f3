/* SPDX-License-Identifier: Apache-2.0 */
/* The `evaluation` key of a job document: on which samples the model of a round is evaluated. */
#include "common/job/job_keys.h"

#include <math.h>

#define SPLIT_DEFAULT 0.25
#define CLIENTS_DEFAULT 1000u
#define AT(kind, member) MFL_YAML_AT(kind, struct mfl_job, member)

static const char *const on_names[] = {"test", "clients", NULL};

const struct mfl_yaml_field mfl_job_evaluation_fields[] = {
        {.key = "every", AT(U32, evaluation.every), .min = 0, .max = 1000000},
        {.key = "batch", AT(U32, evaluation.batch), .min = 1, .max = 65536},
        {.key = "on", AT(ENUM, evaluation.on), .names = on_names},
        {.key = "split", AT(F64, evaluation.split), .min = 0, .max = 0.9},
        {.key = "clients", AT(U32, evaluation.clients), .min = 1, .max = MFL_COHORT_MAX},
        {.key = "detailed", AT(BOOL, evaluation.detailed)},
        {.key = "metrics", .kind = MFL_YAML_CALL, .read = mfl_job_read_metrics}, {0}};

/* What sites tell for it is not noised, and what a program reads is its own. */
int mfl_job_check_normalise(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *node =
                mfl_job_find_key(mfl_job_find_key(mfl_yaml_root(doc), "data"), "normalise");
        if (job->data.normalise.kind == MFL_NORMALISE_FEDERATED && job->privacy.kind != MFL_PRIVACY_NONE)
                return mfl_yaml_fail(doc, node, err,
                        "the mean and deviation that it measures would not be private; give them: {mean: "
                        "[...], std: [...]}");
        if (job->data.normalise.kind != MFL_NORMALISE_SITE && *job->training.program)
                return mfl_yaml_fail(doc, node, err,
                        "a program (training.program) scales its data itself: remove the key");
        return 0;
}

/* Metrics are made of what `detailed` adds up. */
static int check_metrics(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *section,
        struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *detailed = mfl_job_find_key(section, "detailed"),
                                   *metrics = mfl_job_find_key(section, "metrics");
        if (!job->evaluation.n_metrics)
                return 0;
        if (detailed && !job->evaluation.detailed)
                return mfl_yaml_fail(
                        doc, detailed, err, "false leaves nothing that metrics could be made of; remove it");
        if (!job->evaluation.every)
                return mfl_yaml_fail(doc, metrics, err,
                        "evaluation.every is 0, so nothing is ever measured; remove one of them");
        job->evaluation.detailed = true;
        return 0;
}

int mfl_job_check_evaluation(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err)
{
        static const struct mfl_job_usage usage[] = {
                {"split", MFL_JOB_BIT(MFL_EVALUATE_CLIENTS)}, {"clients", MFL_JOB_BIT(MFL_EVALUATE_CLIENTS)}};
        const struct mfl_yaml_node *section = mfl_job_find_key(mfl_yaml_root(doc), "evaluation");
        const struct mfl_yaml_node *split = mfl_job_find_key(section, "split"),
                                   *clients = mfl_job_find_key(section, "clients");
        bool local = job->data.partition == MFL_PARTITION_LOCAL;
        const struct mfl_yaml_node *detailed = mfl_job_find_key(section, "metrics");
        int r = check_metrics(doc, section, job, err);
        if (r)
                return r;
        if (!detailed)
                detailed = mfl_job_find_key(section, "detailed");
        if (job->evaluation.detailed && job->training.loss == MFL_LOSS_BINARY)
                return mfl_yaml_fail(doc, detailed, err,
                        "loss binary has neither a confusion matrix nor errors of numbers; remove it");
        bool targets = mfl_loss_answers(job->training.loss) == MFL_ANSWERS_TARGETS;
        if (job->evaluation.detailed && targets && !strcmp(job->training.backend, "cuda"))
                return mfl_yaml_fail(doc, detailed, err,
                        "errors of target values are not supported on the cuda backend yet: use "
                        "training.backend: cpu, "
                        "or remove it");
        r = mfl_job_check_usage(
                doc, section, usage, MFL_ARRAY_SIZE(usage), job->evaluation.on, "on: test", err);
        if (r || job->evaluation.on != MFL_EVALUATE_CLIENTS)
                return r;
        if (!split)
                job->evaluation.split = SPLIT_DEFAULT;
        if (!job->evaluation.every)
                return mfl_yaml_fail(doc, mfl_job_find_key(section, "every"), err,
                        "0 never evaluates, so clients would keep samples for nothing; remove on: clients");
        if (split && !mfl_job_held(job, MFL_HELD_ALL) && !local)
                return mfl_yaml_fail(doc, split, err,
                        "0 leaves clients nothing to evaluate on; write the share of its samples that a "
                        "client "
                        "keeps, such as 0.25");
        if (clients && local)
                return mfl_yaml_fail(
                        doc, clients, err, "with partition local, every site evaluates; remove it");
        if (!local && job->evaluation.clients > job->data.clients)
                return mfl_yaml_fail(doc, clients, err,
                        "%u clients, but the population has %u (data.clients)", job->evaluation.clients,
                        job->data.clients);
        if (!clients)
                job->evaluation.clients = MFL_MIN(CLIENTS_DEFAULT, job->data.clients);
        return 0;
}

uint32_t mfl_job_held(const struct mfl_job *job, uint32_t n)
{
        uint64_t millionths = (uint64_t)llround(job->evaluation.split * 1e6);
        uint64_t held = (n * millionths + 500000) / 1000000;
        return (uint32_t)MFL_MIN(held, (uint64_t)n - (n > 0));
}
