/* SPDX-License-Identifier: Apache-2.0 */
/* The key `edges` of a job document: its fields, its rules, and which region a client is in. */
#include "common/base/rng.h"
#include "common/job/job_keys.h"

static const char *const within_names[] = {"mean", "median", "trimmed-mean", NULL};

const struct mfl_yaml_field mfl_job_edges_fields[] = {{.key = "count",
                                                              MFL_YAML_AT(U32, struct mfl_job, edges.count),
                                                              .required = true,
                                                              .min = 1,
                                                              .max = MFL_REGIONS_MAX},
        {.key = "rounds", MFL_YAML_AT(U32, struct mfl_job, edges.rounds), .min = 1, .max = 1000000},
        {.key = "within", MFL_YAML_AT(ENUM, struct mfl_job, edges.within), .names = within_names}, {0}};

bool mfl_job_has_regions(const struct mfl_job *job)
{
        return job->edges.count && job->aggregation.robust.unit != MFL_ROWS_SERVER;
}

uint32_t mfl_job_region(const struct mfl_job *job, uint64_t client)
{
        if (job->data.partition != MFL_PARTITION_LOCAL)
                return (uint32_t)(client * job->edges.count / job->data.clients);
        struct mfl_rng rng = mfl_rng_new(job->seed, MFL_RNG_REGION, client, 0);
        return mfl_rng_below(&rng, job->edges.count);
}

bool mfl_job_regions_meet(const struct mfl_job *job, uint32_t round)
{
        return round % job->edges.rounds == 0;
}

uint32_t mfl_job_bases(const struct mfl_job *job)
{
        return mfl_job_has_regions(job) ? job->edges.count : mfl_job_versions(job) + 1;
}

/* ---- servers that lie ---- */

static const char *const server_attack_names[] = {"none", "sign-flip", "noise", "random", "delayed", NULL};
static const struct mfl_job_usage server_usage[] = {{"scale", ~MFL_JOB_BIT(MFL_SERVER_DELAYED)}};

const struct mfl_yaml_field mfl_job_servers_fields[] = {
        {.key = "attack",
                MFL_YAML_AT(ENUM, struct mfl_job, simulation.servers.attack),
                .names = server_attack_names},
        {.key = "share",
                MFL_YAML_AT(F64, struct mfl_job, simulation.servers.share),
                .min = 0,
                .max = 1,
                .max_open = true},
        {.key = "scale",
                MFL_YAML_AT(F64, struct mfl_job, simulation.servers.scale),
                .min = 0,
                .max = 1e6,
                .min_open = true,
                .seen = offsetof(struct mfl_job, simulation.servers.has_scale)},
        {.key = "from", MFL_YAML_AT(U32, struct mfl_job, simulation.servers.from), .min = 1, .max = 1000000},
        {0}};

const char *mfl_server_attack_name(enum mfl_server_attack attack)
{
        return server_attack_names[attack];
}

static uint32_t bad_servers(const struct mfl_job *job)
{
        return (uint32_t)(job->simulation.servers.share * job->edges.count + 0.5);
}

uint32_t mfl_simulation_servers(const struct mfl_job *job, bool ret_bad[MFL_REGIONS_MAX])
{
        struct mfl_rng rng = mfl_rng_new(job->seed, MFL_RNG_SERVER, 0, 0);
        uint32_t order[MFL_REGIONS_MAX], n = job->simulation.servers.attack ? bad_servers(job) : 0;
        memset(ret_bad, 0, MFL_REGIONS_MAX * sizeof *ret_bad);
        for (uint32_t i = 0; i < job->edges.count; i++)
                order[i] = i;
        mfl_rng_shuffle(&rng, order, job->edges.count);
        for (uint32_t i = 0; i < n; i++)
                ret_bad[order[i]] = true;
        return n;
}

int mfl_job_check_servers(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *node =
                mfl_job_find_key(mfl_job_find_key(mfl_yaml_root(doc), "simulation"), "servers");
        if (!node)
                return 0;
        if (job->aggregation.robust.unit != MFL_ROWS_SERVER)
                return mfl_yaml_fail(doc, node, err,
                        "are bad where a strategy compares servers: write aggregation: {unit: server} and "
                        "edges: {count: 10}");
        if (job->simulation.servers.attack == MFL_SERVER_HONEST || job->simulation.servers.share == 0)
                return mfl_yaml_fail(
                        doc, node, err, "needs attack, and share, the share of servers that are bad");
        int r = mfl_job_check_usage(doc, node, server_usage, MFL_ARRAY_SIZE(server_usage),
                job->simulation.servers.attack, server_attack_names[job->simulation.servers.attack], err);
        uint32_t bad = bad_servers(job);
        if (!r && (!bad || bad >= job->edges.count))
                r = mfl_yaml_fail(doc, mfl_job_find_key(node, "share"), err,
                        "of %u servers, that is %u bad ones; some must be bad, and some honest",
                        job->edges.count, bad);
        if (!job->simulation.servers.has_scale)
                job->simulation.servers.scale =
                        job->simulation.servers.attack == MFL_SERVER_SIGN_FLIP ? 1 : 0.1;
        job->simulation.servers.from = MFL_MAX(job->simulation.servers.from, 1u);
        return r;
}

/* ---- the key edges ---- */

int mfl_job_check_edges(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *root = mfl_yaml_root(doc), *node = mfl_job_find_key(root, "edges");
        const struct mfl_yaml_node *aggregation = mfl_job_find_key(root, "aggregation");
        struct mfl_robust_spec *spec = &job->aggregation.robust;
        bool servers = spec->unit == MFL_ROWS_SERVER;
        if (!node)
                return servers ? mfl_yaml_fail(doc, mfl_job_find_key(aggregation, "unit"), err,
                                         "server needs edges: {count: 10}, the servers, each of which takes "
                                         "some of the clients")
                               : 0;
        if (job->data.partition != MFL_PARTITION_LOCAL && job->edges.count > job->data.clients)
                return mfl_yaml_fail(doc, mfl_job_find_key(node, "count"), err,
                        "%u regions, but the population has %u clients (data.clients)", job->edges.count,
                        job->data.clients);
        if (servers && job->edges.rounds > 1)
                return mfl_yaml_fail(doc, mfl_job_find_key(node, "rounds"), err,
                        "with unit: server the servers' aggregates meet in each round; remove rounds, or "
                        "unit");
        if (!servers && job->edges.within != MFL_REGION_MEAN)
                return mfl_yaml_fail(doc, mfl_job_find_key(node, "within"), err,
                        "goes with unit: server; regions with params of their own take the mean: remove it, "
                        "or write aggregation: {strategy: median, unit: server}");
        spec->servers = servers ? job->edges.count : 0;
        spec->server_clients =
                servers ? (job->data.clients + job->edges.count - 1) / MFL_MAX(job->edges.count, 1u) : 0;
        return 0;
}
