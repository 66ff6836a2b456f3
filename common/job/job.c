/* SPDX-License-Identifier: Apache-2.0 */
/* The job document: its keys, their limits and defaults, and the rules between keys. */
#include "common/job/job.h"
#include "common/job/job_compression.h"
#include "common/job/job_goes.h"
#include "common/job/job_model.h"
#include "common/job/job_training.h"
#include "common/settings/yaml.h"

#include <math.h>

static const char *const assignment_names[] = {"random", "deterministic", "first-deterministic", NULL};
static const char *const option_names[] = {"I", "II", NULL};
static const char *const client_state_names[] = {"server", "daemon", NULL};
static const char *const unit_names[] = {"client", "daemon", "bucket", "server", NULL};
static const char *const on_few_names[] = {"fail", "mean", "median", NULL};
static const char *const weighting_names[] = {"samples", "uniform", NULL};
static const char *const variant_names[] = {"paper", "flower", NULL};
static const char *const assign_names[] = {"speed", "modulo", NULL};

/* The name appears in paths, metrics and on terminals. */
static int read_name(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {.kind = MFL_YAML_STRING, .size = MFL_NAME_BYTES};
        char *name = value;
        int r = mfl_yaml_read_value(doc, node, &field, name, err);
        if (r)
                return r;
        for (const char *p = name; *p; p++) {
                bool inner = *p == '-' || *p == '_' || *p == '.';
                bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9');
                if (!plain && (!inner || p == name))
                        return mfl_yaml_fail(doc, node, err,
                                "must be letters, digits, '-', '_' and '.', and start with a letter or "
                                "digit");
        }
        return *name ? 0 : mfl_yaml_fail(doc, node, err, "must not be empty");
}

static int read_where(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {.kind = MFL_YAML_STRING, .size = MFL_WHERE_BYTES};
        struct mfl_error why;
        int r = mfl_yaml_read_value(doc, node, &field, value, err);
        if (!r && mfl_where_check(value, &why))
                r = mfl_yaml_fail(doc, node, err, "%s", why.text);
        return r;
}

/* One number for all clients, or a list with one for each. */
static int read_sizes(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_U32, .size = sizeof(uint32_t), .min = 1, .max = INT32_MAX};
        struct mfl_job *job = value;
        bool list = node->type == MFL_YAML_SEQUENCE;
        if (list && !node->n_children)
                return mfl_yaml_fail(
                        doc, node, err, "is empty; give one size per client, or one size for all");
        job->data.n_sizes = list ? node->n_children : 1;
        job->data.sizes = mfl_calloc(job->data.n_sizes, sizeof *job->data.sizes);
        if (!job->data.sizes)
                return mfl_fail_memory(err, job->data.n_sizes * sizeof *job->data.sizes, "sizes");
        int r = list ? 0 : mfl_yaml_read_value(doc, node, &field, job->data.sizes, err);
        for (const struct mfl_yaml_node *n = list ? node->first : NULL; n && !r; n = n->next)
                r = mfl_yaml_read_value(doc, n, &field, &job->data.sizes[n->index], err);
        return r;
}

/* A list of lists of the same length: a row for each class. */
static int read_distribution(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_F64, .size = sizeof(double), .min = 0, .max = INT32_MAX};
        struct mfl_job *job = value;
        const struct mfl_yaml_node *row = node->first;
        if (node->type != MFL_YAML_SEQUENCE || !row || row->type != MFL_YAML_SEQUENCE || !row->n_children)
                return mfl_yaml_fail(
                        doc, node, err, "expected a list of rows, [[0.2, 0.8], [0.5, 0.5], ...]");
        uint32_t columns = row->n_children;
        size_t count = (size_t)node->n_children * columns;
        double *v = job->data.distribution = mfl_calloc(count, sizeof *v);
        if (!v)
                return mfl_fail_memory(err, count * sizeof *v, "a distribution");
        job->data.distribution_rows = node->n_children;
        job->data.distribution_columns = columns;
        for (; row; row = row->next) {
                if (row->type != MFL_YAML_SEQUENCE || row->n_children != columns)
                        return mfl_yaml_fail(
                                doc, row, err, "expected a row of %u numbers, like the first row", columns);
                for (const struct mfl_yaml_node *n = row->first; n; n = n->next) {
                        int r = mfl_yaml_read_value(doc, n, &field, v++, err);
                        if (r)
                                return r;
                }
        }
        return 0;
}

/* A number, or adaptive. */
static int read_adaptive(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_yaml_field *field, void *number, bool *ret_adaptive, struct mfl_error *err)
{
        *ret_adaptive = node->type == MFL_YAML_SCALAR && !strcmp(node->text, "adaptive");
        int r = *ret_adaptive ? 0 : mfl_yaml_read_value(doc, node, field, number, err);
        return r <= 0 || node->type != MFL_YAML_SCALAR
                       ? r
                       : mfl_yaml_fail(doc, node, err,
                                 "expected a number from %g to %g, or adaptive, got '%s'", field->min,
                                 field->max, node->text);
}

static int read_mu(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_F32, .size = sizeof(float), .min = 0, .max = 1000};
        struct mfl_job *job = value;
        return read_adaptive(doc, node, &field, &job->aggregation.mu, &job->aggregation.mu_adaptive, err);
}

static int read_alpha(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_F64, .size = sizeof(double), .min = 1e-6, .max = 1000};
        struct mfl_job *job = value;
        return read_adaptive(
                doc, node, &field, &job->aggregation.alpha, &job->aggregation.alpha_adaptive, err);
}

#define AT(kind, member) MFL_YAML_AT(kind, struct mfl_job, member)
#define CALL_AT(member, read_)                                                                               \
        .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_job, member), .read = read_
#define FIELDS(table) .kind = MFL_YAML_FIELDS, .fields = table

static const struct mfl_yaml_field augment_fields[] = {
        {.key = "crop", AT(U32, data.augment.crop), .min = 0, .max = 1024},
        {.key = "flip", AT(BOOL, data.augment.flip)}, {0}};
static const struct mfl_yaml_field data_fields[] = {{.key = "name", CALL_AT(data.name, read_name)},
        {.key = "partition", AT(ENUM, data.partition), .names = mfl_job_partition_names},
        {.key = "clients", AT(U32, data.clients), .min = 1, .max = 10000000},
        {.key = "alpha", AT(F64, data.alpha), .min = 1e-6, .max = 1e6},
        {.key = "shards", AT(U32, data.shards), .min = 1, .max = 65536},
        {.key = "min_samples", AT(U32, data.min_samples), .min = 1, .max = 1000000},
        {.key = "self_balancing", AT(BOOL, data.self_balancing)},
        {.key = "shard_size", AT(U32, data.shard_size), .min = 1, .max = INT32_MAX},
        {.key = "keep_incomplete_shard", AT(BOOL, data.keep_incomplete_shard)},
        {.key = "classes_per_client", AT(U32, data.classes_per_client), .min = 1, .max = 65536},
        {.key = "class_assignment", AT(ENUM, data.class_assignment), .names = assignment_names},
        {.key = "sizes", .kind = MFL_YAML_CALL, .read = read_sizes},
        {.key = "distribution", .kind = MFL_YAML_CALL, .read = read_distribution},
        {.key = "sigma", AT(F64, data.sigma), .min = 0, .max = 20},
        {.key = "preassigned_samples", AT(U32, data.preassigned_samples), .min = 0, .max = 1000000},
        {.key = "rescale", AT(BOOL, data.rescale)},
        {.key = "normalise", CALL_AT(data.normalise, mfl_normalise_read)},
        {.key = "augment", FIELDS(augment_fields)}, {0}};
static const struct mfl_yaml_field aggregation_fields[] = {
        {.key = "strategy", AT(ENUM, aggregation.strategy), .names = mfl_job_strategy_names},
        {.key = "weighting", AT(ENUM, aggregation.weighting), .names = weighting_names},
        {.key = "server_lr", AT(F32, aggregation.server_lr), .min = 0, .max = 1000, .min_open = true},
        {.key = "momentum", AT(F32, aggregation.momentum), .min = 0, .max = 1, .max_open = true},
        {.key = "nesterov", AT(BOOL, aggregation.nesterov)},
        {.key = "beta1", AT(F32, aggregation.beta1), .min = 0, .max = 1, .max_open = true},
        {.key = "beta2", AT(F32, aggregation.beta2), .min = 0, .max = 1, .max_open = true},
        {.key = "tau", AT(F32, aggregation.tau), .min = 0, .max = 1, .min_open = true},
        {.key = "variant", AT(ENUM, aggregation.variant), .names = variant_names},
        {.key = "mu", .kind = MFL_YAML_CALL, .read = read_mu},
        {.key = "mu_start", AT(F64, aggregation.mu_start), .min = 0, .max = 1},
        {.key = "mu_patience", AT(U32, aggregation.mu_patience), .min = 1, .max = 1000},
        {.key = "q", AT(F64, aggregation.q), .min = 0, .max = 100},
        {.key = "alpha", .kind = MFL_YAML_CALL, .read = read_alpha},
        {.key = "buffer", AT(U32, aggregation.buffer), .min = 1, .max = MFL_CONCURRENCY_MAX},
        {.key = "staleness_max", AT(U32, aggregation.staleness_max), .min = 0, .max = MFL_STALENESS_MAX},
        {.key = "a", AT(F64, aggregation.a), .min = 0, .max = 10},
        {.key = "option", AT(ENUM, aggregation.option), .names = option_names},
        {.key = "lambda", AT(F64, aggregation.lambda), .min = 0, .max = 1000},
        {.key = "eta", AT(F64, aggregation.eta), .min = 0, .max = 1000, .min_open = true},
        {.key = "inner_steps", AT(U32, aggregation.inner_steps), .min = 1, .max = 1000},
        {.key = "delta_max", AT(F32, aggregation.delta_max), .min = 1e-6, .max = 65536},
        {.key = "statistics_max", AT(F32, aggregation.statistics_max), .min = 1e-6, .max = 1e12},
        {.key = "f",
                AT(U32, aggregation.robust.f),
                .min = 0,
                .max = 100000,
                .seen = offsetof(struct mfl_job, aggregation.robust.has_f)},
        {.key = "beta", AT(F64, aggregation.robust.beta), .min = 0, .max = 0.5, .max_open = true},
        {.key = "neighbours", AT(U32, aggregation.robust.neighbours), .min = 1, .max = MFL_ROBUST_ROWS_MAX},
        {.key = "clip_radius", CALL_AT(aggregation.robust, mfl_job_read_clip_radius)},
        {.key = "sample", AT(U32, aggregation.robust.sample), .min = 1, .max = 1u << 24},
        {.key = "iterations", AT(U32, aggregation.robust.iterations), .min = 1, .max = 16},
        {.key = "noise", AT(F64, aggregation.robust.noise), .min = 0, .max = 1000},
        {.key = "unit",
                AT(ENUM, aggregation.robust.unit),
                .names = unit_names,
                .seen = offsetof(struct mfl_job, aggregation.robust.has_more)},
        {.key = "bucket", AT(U32, aggregation.robust.bucket), .min = 2, .max = 65536},
        {.key = "root", FIELDS(mfl_job_root_fields)}, {.key = "plugin", FIELDS(mfl_job_plugin_fields)},
        {.key = "update_clip",
                CALL_AT(aggregation.robust, mfl_job_read_update_clip),
                .seen = offsetof(struct mfl_job, aggregation.robust.has_update_clip)},
        {.key = "before",
                CALL_AT(aggregation.robust, mfl_job_read_before),
                .seen = offsetof(struct mfl_job, aggregation.robust.has_more)},
        {.key = "on_few",
                AT(ENUM, aggregation.robust.on_few),
                .names = on_few_names,
                .seen = offsetof(struct mfl_job, aggregation.robust.has_more)},
        {0}};
static const struct mfl_yaml_field daemons_fields[] = {
        {.key = "min", AT(U32, selection.daemons_min), .min = 1, .max = 65536},
        {.key = "max", AT(U32, selection.daemons_max), .min = 1, .max = 65536}, {0}};
static const struct mfl_yaml_field oort_fields[] = {
        {.key = "exploration", AT(F64, selection.oort.exploration), .min = 0, .max = 1},
        {.key = "decay", AT(F64, selection.oort.decay), .min = 0, .max = 1, .min_open = true},
        {.key = "floor", AT(F64, selection.oort.floor), .min = 0, .max = 1},
        {.key = "penalty", AT(F64, selection.oort.penalty), .min = 0, .max = 100},
        {.key = "cut_off", AT(F64, selection.oort.cut_off), .min = 0, .max = 1},
        {.key = "clip", AT(F64, selection.oort.clip), .min = 0, .max = 1},
        {.key = "pacer_step", AT(U32, selection.oort.pacer_step), .min = 1, .max = 1000000},
        {.key = "pacer_delta", AT(U32, selection.oort.pacer_delta), .min = 1, .max = 100},
        {.key = "threshold", AT(U32, selection.oort.threshold), .min = 1, .max = 100},
        {.key = "window", AT(U32, selection.oort.window), .min = 1, .max = 1000000}, {0}};
static const struct mfl_yaml_field selection_fields[] = {
        {.key = "kind", AT(ENUM, selection.kind), .names = mfl_job_selection_names},
        {.key = "separation", AT(U32, selection.separation), .min = 2, .max = 10000000},
        {.key = "rate", AT(F64, selection.rate), .min = 1e-6, .max = 1},
        {.key = "candidates", AT(U32, selection.candidates), .min = 1, .max = 1048576},
        {.key = "over", AT(F64, selection.over), .min = 1, .max = 100}, {.key = "oort", FIELDS(oort_fields)},
        {.key = "clients", AT(U32, selection.clients), .min = 1, .max = 10000000},
        {.key = "daemons", FIELDS(daemons_fields)},
        {.key = "assign", AT(ENUM, selection.assign), .names = assign_names},
        {.key = "where", CALL_AT(selection.where, read_where)},
        {.key = "without", .kind = MFL_YAML_CALL, .read = mfl_job_read_without}, {0}};
static const struct mfl_yaml_field limits_fields[] = {
        {.key = "deadline", AT(DURATION, limits.deadline_ms), .min = 1000, .max = 30.0 * 86400000},
        {.key = "quorum", AT(F64, limits.quorum), .min = 0, .max = 1, .min_open = true},
        {.key = "retries", AT(U32, limits.retries), .min = 0, .max = 1000},
        {.key = "virtual_deadline",
                AT(DURATION, limits.virtual_deadline_ms),
                .min = 1,
                .max = 365.0 * 86400000},
        {.key = "state", AT(SIZE, limits.state), .min = 1, .max = (double)((uint64_t)1 << 50)}, {0}};
static const struct mfl_yaml_field checkpoints_fields[] = {
        {.key = "keep", AT(U32, checkpoints.keep), .min = 0, .max = 1000}, {0}};
static const struct mfl_yaml_field debug_fields[] = {
        {.key = "deltas", AT(SIZE, debug.deltas), .min = 1, .max = (double)((uint64_t)1 << 40)}, {0}};
static const struct mfl_yaml_field job_fields[] = {
        {.key = "name", CALL_AT(name, read_name), .required = true}, {.key = "seed", AT(U64, seed)},
        {.key = "rounds", AT(U32, rounds), .required = true, .min = 1, .max = 1000000},
        {.key = "model", .kind = MFL_YAML_CALL, .read = mfl_job_read_model, .required = true},
        {.key = "data", FIELDS(data_fields), .required = true},
        {.key = "training", FIELDS(mfl_job_training_fields), .required = true},
        {.key = "parallel",
                .kind = MFL_YAML_CALL,
                .read = mfl_job_read_parallel,
                .fields = mfl_job_parallel_fields},
        {.key = "compression", FIELDS(mfl_job_compression_fields)},
        {.key = "aggregation", FIELDS(aggregation_fields)},
        {.key = "client_state", AT(ENUM, client_state), .names = client_state_names},
        {.key = "personal", FIELDS(mfl_job_personal_fields)}, {.key = "selection", FIELDS(selection_fields)},
        {.key = "privacy", CALL_AT(privacy, mfl_privacy_read), .fields = mfl_privacy_fields},
        {.key = "secure_sum", CALL_AT(secure, mfl_secure_read), .fields = mfl_secure_fields},
        {.key = "time", AT(ENUM, time), .names = mfl_job_time_names},
        {.key = "trace", .kind = MFL_YAML_CALL, .read = mfl_job_read_trace, .fields = mfl_job_trace_fields},
        {.key = "edges", FIELDS(mfl_job_edges_fields)},
        {.key = "simulation", FIELDS(mfl_job_simulation_fields)}, {.key = "limits", FIELDS(limits_fields)},
        {.key = "evaluation", FIELDS(mfl_job_evaluation_fields)},
        {.key = "filters", .kind = MFL_YAML_CALL, .read = mfl_job_read_filters},
        {.key = "checkpoints", FIELDS(checkpoints_fields)}, {.key = "debug", FIELDS(debug_fields)}, {0}};

const struct mfl_yaml_field *const mfl_job_tables[] = {job_fields, data_fields, augment_fields,
        mfl_job_training_fields, mfl_job_schedule_fields, mfl_job_parallel_fields, mfl_job_compression_fields,
        aggregation_fields, mfl_job_root_fields, mfl_job_plugin_fields, mfl_job_personal_fields,
        selection_fields, oort_fields, daemons_fields, mfl_privacy_fields, mfl_secure_fields,
        mfl_job_trace_fields, mfl_job_edges_fields, mfl_job_simulation_fields, mfl_job_servers_fields,
        limits_fields, mfl_job_evaluation_fields, checkpoints_fields, debug_fields, NULL};

#define BIT MFL_JOB_BIT
static const struct mfl_job_usage data_usage[] = {
        {"clients", ~BIT(MFL_PARTITION_LOCAL)},
        {"alpha", BIT(MFL_PARTITION_DIRICHLET) | BIT(MFL_PARTITION_INNER_DIRICHLET)},
        {"min_samples", BIT(MFL_PARTITION_DIRICHLET)},
        {"self_balancing", BIT(MFL_PARTITION_DIRICHLET)},
        {"shards", BIT(MFL_PARTITION_SHARDS)},
        {"shard_size", BIT(MFL_PARTITION_SHARDS)},
        {"keep_incomplete_shard", BIT(MFL_PARTITION_SHARDS)},
        {"classes_per_client", BIT(MFL_PARTITION_PATHOLOGICAL) | BIT(MFL_PARTITION_DISTRIBUTION)},
        {"class_assignment", BIT(MFL_PARTITION_PATHOLOGICAL)},
        {"sizes", BIT(MFL_PARTITION_SIZE) | BIT(MFL_PARTITION_INNER_DIRICHLET)},
        {"distribution", BIT(MFL_PARTITION_DISTRIBUTION)},
        {"sigma", BIT(MFL_PARTITION_DISTRIBUTION)},
        {"preassigned_samples", BIT(MFL_PARTITION_DISTRIBUTION)},
        {"rescale", BIT(MFL_PARTITION_DISTRIBUTION)},
};

#define STATEFUL (BIT(MFL_STRATEGY_SCAFFOLD) | BIT(MFL_STRATEGY_FEDDYN))
#define ASYNC (BIT(MFL_STRATEGY_FEDBUFF) | BIT(MFL_STRATEGY_FEDASYNC))
#define GUIDED (BIT(MFL_STRATEGY_MIMELITE) | BIT(MFL_STRATEGY_MIME))
#define ADAPTIVE (BIT(MFL_STRATEGY_FEDADAGRAD) | BIT(MFL_STRATEGY_FEDADAM) | BIT(MFL_STRATEGY_FEDYOGI))

static const struct mfl_job_usage strategy_usage[] = {
        {"weighting", ~(BIT(MFL_STRATEGY_QFEDAVG) | BIT(MFL_STRATEGY_FEDASYNC) | STATEFUL)},
        {"momentum", BIT(MFL_STRATEGY_FEDAVGM) | GUIDED},
        {"nesterov", BIT(MFL_STRATEGY_FEDAVGM)},
        {"beta1", ADAPTIVE},
        {"beta2", BIT(MFL_STRATEGY_FEDADAM) | BIT(MFL_STRATEGY_FEDYOGI)},
        {"tau", ADAPTIVE},
        {"variant", ADAPTIVE},
        {"mu", BIT(MFL_STRATEGY_FEDPROX)},
        {"mu_start", BIT(MFL_STRATEGY_FEDPROX)},
        {"mu_patience", BIT(MFL_STRATEGY_FEDPROX)},
        {"q", BIT(MFL_STRATEGY_QFEDAVG)},
        {"alpha", BIT(MFL_STRATEGY_FEDDYN) | BIT(MFL_STRATEGY_FEDASYNC) | BIT(MFL_STRATEGY_APFL)},
        {"buffer", BIT(MFL_STRATEGY_FEDBUFF)},
        {"staleness_max", ASYNC},
        {"a", ASYNC},
        {"option", BIT(MFL_STRATEGY_SCAFFOLD)},
        {"lambda", BIT(MFL_STRATEGY_DITTO) | BIT(MFL_STRATEGY_PFEDME)},
        {"eta", BIT(MFL_STRATEGY_PFEDME)},
        {"inner_steps", BIT(MFL_STRATEGY_PFEDME)},
        {"server_lr", ~(BIT(MFL_STRATEGY_FEDDYN) | BIT(MFL_STRATEGY_FEDASYNC) | BIT(MFL_STRATEGY_PLUGIN))},
};

/* What a kind needs, and what goes together. */
static int check_partition(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *data,
        const struct mfl_job *job, struct mfl_error *err)
{
        enum mfl_partition_kind partition = job->data.partition;
        const char *kind = mfl_partition_name(partition);
        const struct mfl_yaml_node *sizes = mfl_job_find_key(data, "sizes"),
                                   *sigma = mfl_job_find_key(data, "sigma");
        const struct mfl_yaml_node *shard_size = mfl_job_find_key(data, "shard_size");
        const struct mfl_yaml_node *keep = mfl_job_find_key(data, "keep_incomplete_shard");
        bool inner = partition == MFL_PARTITION_INNER_DIRICHLET;
        if ((partition == MFL_PARTITION_DIRICHLET || inner) && !mfl_job_find_key(data, "alpha"))
                return mfl_yaml_fail(doc, data, err, "partition %s needs alpha, for example 0.5", kind);
        if ((partition == MFL_PARTITION_SIZE || inner) && !sizes)
                return mfl_yaml_fail(doc, data, err,
                        "partition %s needs sizes: one number of samples, or a list with one for each client",
                        kind);
        if (sizes && job->data.n_sizes != 1 && job->data.n_sizes != job->data.clients)
                return mfl_yaml_fail(doc, sizes, err,
                        "%u sizes for %u clients; give one size per client, or one size for all",
                        job->data.n_sizes, job->data.clients);
        if (shard_size && mfl_job_find_key(data, "shards"))
                return mfl_yaml_fail(doc, shard_size, err, "shards is given too; keep one");
        if (keep && !shard_size)
                return mfl_yaml_fail(
                        doc, keep, err, "needs shard_size; without shard_size no sample is left over");
        if (sigma && job->data.distribution)
                return mfl_yaml_fail(doc, sigma, err, "distribution is given too; keep one");
        if (!job->data.rescale && (!job->data.distribution || job->data.preassigned_samples))
                return mfl_yaml_fail(doc, mfl_job_find_key(data, "rescale"), err,
                        "false needs a distribution of sample counts, without preassigned_samples");
        return 0;
}

static int check_data(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *data = mfl_job_find_key(mfl_yaml_root(doc), "data");
        if (!job->data.name[0] && !mfl_job_has_program(job))
                return mfl_yaml_fail(doc, data, err, "key 'name' is missing");
        if (!job->data.name[0])
                mfl_job_program_offer(job->training.program, job->data.name);
        int r = mfl_job_check_usage(doc, data, data_usage, MFL_ARRAY_SIZE(data_usage), job->data.partition,
                mfl_partition_name(job->data.partition), err);
        if (r)
                return r;
        if (job->data.partition == MFL_PARTITION_LOCAL)
                return 0;
        if (!job->data.clients && job->data.n_sizes > 1)
                job->data.clients = job->data.n_sizes;
        if (!job->data.clients)
                return mfl_yaml_fail(doc, data, err, "partition %s needs clients, the size of the population",
                        mfl_partition_name(job->data.partition));
        return check_partition(doc, data, job, err);
}

/* FedAvg and its relatives take the whole mean step. The adaptive strategies (Reddi et al. 2021, "Adaptive federated
 * optimization", algorithm 2) divide by the size of the step, so server_lr is roughly how far a parameter moves in a
 * round, and 1 would be far too much. The default is 0.01, as in Flower's FedYogi, and ten times that for FedAdagrad,
 * whose denominator only grows. Classic Adagrad has no momentum, so beta1 is 0 there. */
static void set_strategy_defaults(const struct mfl_yaml_node *aggregation, struct mfl_job *job)
{
        enum mfl_strategy_kind kind = job->aggregation.strategy;
        if (!mfl_job_find_key(aggregation, "server_lr")) {
                if (kind == MFL_STRATEGY_FEDADAGRAD)
                        job->aggregation.server_lr = 0.1f;
                else if (kind == MFL_STRATEGY_FEDADAM || kind == MFL_STRATEGY_FEDYOGI)
                        job->aggregation.server_lr = 0.01f;
        }
        if (kind == MFL_STRATEGY_PFEDME && !mfl_job_find_key(aggregation, "lambda"))
                job->aggregation.lambda = 15;
        if (kind == MFL_STRATEGY_FEDADAGRAD && !mfl_job_find_key(aggregation, "beta1"))
                job->aggregation.beta1 = 0;
        if (job->privacy.kind) {
                job->secure.least = job->privacy.kind == MFL_PRIVACY_DISTRIBUTED ? job->limits.quorum : 0;
                if (mfl_privacy_of_sums(&job->privacy) && !mfl_job_find_key(aggregation, "weighting"))
                        job->aggregation.weighting = MFL_WEIGHT_UNIFORM;
                if (!mfl_job_find_key(aggregation, "delta_max")) /* what is long is clipped, not left out */
                        job->aggregation.delta_max = 65536;
        }
        /* Its weights are the losses'; theirs are those of the mean over all clients' states. */
        if (kind == MFL_STRATEGY_QFEDAVG || STATEFUL & BIT(kind))
                job->aggregation.weighting = MFL_WEIGHT_UNIFORM;
        if (ASYNC & BIT(kind) && !mfl_job_find_key(aggregation, "weighting"))
                job->aggregation.weighting = MFL_WEIGHT_UNIFORM;
        if (kind == MFL_STRATEGY_FEDASYNC && !mfl_job_find_key(aggregation, "alpha"))
                job->aggregation.alpha = 0.6;
        if (kind == MFL_STRATEGY_APFL && !mfl_job_find_key(aggregation, "alpha"))
                job->aggregation.alpha = 0.5;
}

static const struct mfl_job_usage selection_usage[] = {{"separation", BIT(MFL_SELECT_SEPARATED)},
        {"rate", BIT(MFL_SELECT_POISSON)}, {"clients", ~BIT(MFL_SELECT_POISSON)},
        {"candidates", BIT(MFL_SELECT_POWER_OF_CHOICE)}, {"oort", BIT(MFL_SELECT_OORT)},
        {"over", ~BIT(MFL_SELECT_POISSON)}};

static int check_selection(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *selection,
        struct mfl_job *job, struct mfl_error *err)
{
        enum mfl_selection kind = job->selection.kind;
        uint32_t separation = job->selection.separation, population = job->data.clients;
        int r = mfl_job_check_usage(doc, selection, selection_usage, MFL_ARRAY_SIZE(selection_usage), kind,
                mfl_job_selection_names[kind], err);
        const struct mfl_yaml_node *node = mfl_job_find_key(selection, "kind");
        if (!r && kind == MFL_SELECT_POISSON && job->selection.rate == 0)
                return mfl_yaml_fail(doc, node, err, "poisson needs rate, the probability of each client");
        if (!r)
                r = mfl_job_check_time(doc, job, err);
        if (r || kind != MFL_SELECT_SEPARATED)
                return r;
        if (!separation)
                return mfl_yaml_fail(doc, node, err,
                        "separated needs separation, the rounds from one turn of a client to its next");
        if (separation > population)
                return mfl_yaml_fail(doc, mfl_job_find_key(selection, "separation"), err,
                        "%u rounds need as many clients, but the population has %u (data.clients)",
                        separation, population);
        if (job->selection.clients > population / separation)
                return mfl_yaml_fail(doc, mfl_job_find_key(selection, "clients"), err,
                        "%u clients per round, but %u clients divided among %u rounds are %u; lower it, or "
                        "separation",
                        job->selection.clients, population, separation, population / separation);
        return 0;
}

static int check_rest(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *root = mfl_yaml_root(doc),
                                   *selection = mfl_job_find_key(root, "selection");
        const struct mfl_yaml_node *aggregation = mfl_job_find_key(root, "aggregation");
        int r = mfl_job_check_usage(doc, aggregation, strategy_usage, MFL_ARRAY_SIZE(strategy_usage),
                job->aggregation.strategy, mfl_strategy_name(job->aggregation.strategy), err);
        if (r)
                return r;
        set_strategy_defaults(aggregation, job);
        mfl_job_compression_defaults(doc, job);
        r = mfl_job_check_plugin(doc, job, err);
        if (!r)
                r = mfl_job_check_goes(doc, job, err);
        if (r)
                return r;
        r = check_selection(doc, selection, job, err);
        r = r ? r : mfl_job_check_without(doc, job, err);
        r = r ? r : mfl_job_check_edges(doc, job, err);
        if (!r)
                r = mfl_job_check_robust(doc, job, err);
        if (!r)
                r = mfl_job_check_simulation(doc, job, err);
        if (r)
                return r;
        if (job->data.partition != MFL_PARTITION_LOCAL && job->selection.clients > job->data.clients)
                return mfl_yaml_fail(doc, mfl_job_find_key(selection, "clients"), err,
                        "%u clients per round, but the population has %u (data.clients)",
                        job->selection.clients, job->data.clients);
        if (job->selection.daemons_max && job->selection.daemons_max < job->selection.daemons_min)
                return mfl_yaml_fail(doc, mfl_job_find_key(mfl_job_find_key(selection, "daemons"), "max"),
                        err, "%u is below min, which is %u", job->selection.daemons_max,
                        job->selection.daemons_min);
        return 0;
}

static void set_defaults(struct mfl_job *job)
{
        job->model.init = -1;
        job->data.shards = 2;
        job->data.min_samples = 1;
        job->data.classes_per_client = 2;
        job->data.sigma = 2;
        job->data.rescale = true;
        mfl_job_training_defaults(job);
        job->parallel.exact = true;
        job->parallel.zero = MFL_ZERO_AUTO;
        job->parallel.within = MFL_WITHIN_NODE;
        job->parallel.bucket = (uint64_t)4 << 20;
        job->aggregation.server_lr = 1;
        job->aggregation.momentum = 0.9f;
        job->aggregation.beta1 = 0.9f;
        job->aggregation.beta2 = 0.99f;
        job->aggregation.tau = 1e-3f;
        job->aggregation.mu = 0.01f;
        job->aggregation.mu_patience = 1;
        job->aggregation.q = 0.2;
        job->aggregation.alpha = 0.1;
        job->aggregation.buffer = 10;
        job->aggregation.staleness_max = 20;
        job->aggregation.a = 0.5;
        job->aggregation.option = MFL_SCAFFOLD_II;
        job->aggregation.lambda = 0.1;
        job->aggregation.eta = 0.005;
        job->aggregation.inner_steps = 5;
        job->aggregation.delta_max = 16;
        job->aggregation.statistics_max = 65536;
        job->aggregation.robust.beta = 0.2;
        job->aggregation.robust.sample = 10000;
        job->aggregation.robust.iterations = 1;
        job->aggregation.robust.noise = 0.001;
        job->aggregation.robust.bucket = 2;
        job->edges.rounds = 1;
        job->simulation.poison = 0.5;
        job->arithmetic = MFL_ARITHMETIC_VERSION;
        job->selection.daemons_min = 1;
        job->limits.deadline_ms = 3600000;
        job->limits.quorum = 1;
        job->limits.retries = 3;
        mfl_job_time_defaults(job);
        job->limits.state = (uint64_t)64 << 30;
        job->evaluation.every = 1;
        job->evaluation.batch = 50;
        job->checkpoints.keep = 3;
}

int mfl_job_parse(const char *text, size_t text_bytes, const char *file, struct mfl_job **ret_job,
        struct mfl_error *err)
{
        struct mfl_yaml_limits limits = {.bytes_max = MFL_JOB_TEXT_MAX, .depth_max = 16, .nodes_max = 65536};
        struct mfl_yaml_doc *doc = NULL;
        struct mfl_job *job = mfl_calloc(1, sizeof *job);
        if (!job)
                return mfl_fail_memory(err, sizeof *job, "a job");
        set_defaults(job);
        int r = mfl_yaml_parse(text, text_bytes, file, &limits, &doc, err);
        if (!r && mfl_yaml_root(doc)->type != MFL_YAML_MAPPING)
                r = mfl_yaml_fail(doc, mfl_yaml_root(doc), err, "a job must be a mapping of keys and values");
        if (!r)
                r = mfl_yaml_read(doc, mfl_yaml_root(doc), job_fields, job, err);
        if (!r)
                r = mfl_job_check_training(doc, job, err);
        if (!r)
                r = check_data(doc, job, err);
        if (!r)
                r = mfl_job_check_parallel(doc, job, err);
        if (!r)
                r = check_rest(doc, job, err);
        if (!r)
                r = mfl_job_check_evaluation(doc, job, err);
        if (!r)
                r = mfl_job_check_normalise(doc, job, err);
        mfl_yaml_free(doc);
        if (r) {
                mfl_job_free(job);
                return r;
        }
        *ret_job = job;
        return 0;
}

void mfl_job_free(struct mfl_job *job)
{
        if (!job)
                return;
        for (int i = 0; i < job->model.n_layers; i++)
                free((void *)job->model.layers[i].map.index);
        free(job->model.layers);
        free(job->model.tensors);
        free(job->training.config);
        free(job->model.initial);
        free(job->model.from.prefix);
        free(job->model.from.missing.v);
        free(job->model.from.unused.v);
        free(job->model.from.transposed.v);
        free(job->model.freeze.v);
        free(job->model.lora.layers.v);
        free(job->model.lora.train.v);
        free(job->personal.layers.v);
        mfl_normalise_deinit(&job->data.normalise);
        free(job->data.sizes);
        free(job->selection.without);
        free(job->training.class_weights.v);
        free(job->training.auxiliary.v);
        free(job->data.distribution);
        mfl_trace_deinit(&job->trace);
        free(job);
}
