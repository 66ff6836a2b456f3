/* SPDX-License-Identifier: Apache-2.0 */
/* The `parallel` key of a job document: one client over several workers. */
#include "common/job/job_training.h"

static const char *const within_names[] = {"daemon", "node", "any", NULL};

/* A number of workers, or auto: 0. */
static int read_members(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_U32, .size = sizeof(uint32_t), .min = 1, .max = MFL_MEMBERS_MAX};
        uint32_t *members = value;
        *members = 0;
        if (node->type == MFL_YAML_SCALAR && !strcmp(node->text, "auto"))
                return 0;
        if (node->type == MFL_YAML_MAPPING)
                return mfl_yaml_fail(doc, node, err,
                        "a least number of workers is not supported yet; write the largest number, or auto: a daemon with "
                        "fewer workers trains the same model");
        return mfl_yaml_read_value(doc, node, &field, members, err);
}

#define AT(kind, member) MFL_YAML_AT(kind, struct mfl_job, parallel.member)
const struct mfl_yaml_field mfl_job_parallel_fields[] = {
        {.key = "members",
                .kind = MFL_YAML_CALL,
                .offset = offsetof(struct mfl_job, parallel.members),
                .read = read_members},
        {.key = "within", AT(ENUM, within), .names = within_names},
        {.key = "grain", AT(U32, grain), .min = 1, .max = 65536}, {.key = "exact", AT(BOOL, exact)}, {0}};

/* batch / 2^ceil(log2 members), so that each worker has one grain of a batch. */
static uint32_t default_grain(const struct mfl_job *job)
{
        uint32_t grain = job->training.batch;
        for (uint32_t workers = 1; workers < job->parallel.members && grain % 2 == 0; workers *= 2)
                grain /= 2;
        return grain;
}

static int check_values(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *parallel, struct mfl_job *job,
        struct mfl_error *err)
{
        const struct mfl_yaml_node *grain = mfl_job_find_key(parallel, "grain");
        uint32_t batch = job->training.batch;
        if (job->parallel.within)
                return mfl_yaml_fail(doc, mfl_job_find_key(parallel, "within"), err,
                        "teams over several daemons are not supported yet; write daemon: the workers of one daemon");
        if (!job->parallel.exact)
                return mfl_yaml_fail(doc, mfl_job_find_key(parallel, "exact"), err,
                        "sums of floats are not supported; leave it out, or write true");
        if (!grain && !job->parallel.members)
                return mfl_yaml_fail(doc, parallel, err,
                        "needs grain, the samples of one gradient, which decides the result; for example %u, a quarter of "
                        "training.batch",
                        MFL_MAX(batch / 4, 1u));
        if (!grain)
                job->parallel.grain = default_grain(job);
        if (job->parallel.grain > batch)
                return mfl_yaml_fail(doc, grain, err, "%u samples are more than training.batch, which is %u",
                        job->parallel.grain, batch);
        if (batch % job->parallel.grain)
                return mfl_yaml_fail(doc, grain, err, "training.batch, which is %u, is no multiple of %u", batch,
                        job->parallel.grain);
        return 0;
}

int mfl_job_check_parallel(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *root = mfl_yaml_root(doc), *parallel = mfl_job_find_key(root, "parallel"),
                                   *training = mfl_job_find_key(root, "training");
        if (!parallel)
                return 0;
        int r = check_values(doc, parallel, job, err);
        if (r)
                return r;
        if (job->training.fuse > 1)
                return mfl_yaml_fail(doc, mfl_job_find_key(training, "fuse"), err,
                        "parallel trains one client at a time on each of its workers; leave fuse out, or write 1");
        if (!strcmp(job->training.backend, "cuda"))
                return mfl_yaml_fail(doc, mfl_job_find_key(training, "backend"), err,
                        "the cuda backend does not do parallel yet; leave parallel out, or write cpu");
        return 0;
}
