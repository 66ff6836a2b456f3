/* SPDX-License-Identifier: Apache-2.0 */
/* Robust aggregation and simulated attacks in a job document: readers, rules between keys, how many rows a rule needs, and
 * which clients are bad. */
#include <stdio.h>

#include "common/base/rng.h"
#include "common/job/job_keys.h"

#define BIT MFL_JOB_BIT
#define KRUMS (BIT(MFL_STRATEGY_KRUM) | BIT(MFL_STRATEGY_MULTI_KRUM) | BIT(MFL_STRATEGY_BULYAN))
#define ROBUST                                                                                               \
        (KRUMS | BIT(MFL_STRATEGY_MEDIAN) | BIT(MFL_STRATEGY_TRIMMED_MEAN) |                                 \
                BIT(MFL_STRATEGY_MEAN_AROUND_MEDIAN) | BIT(MFL_STRATEGY_RFA) |                               \
                BIT(MFL_STRATEGY_CENTERED_CLIP) | BIT(MFL_STRATEGY_NORM_FILTER) | BIT(MFL_STRATEGY_DNC) |    \
                BIT(MFL_STRATEGY_SIGNGUARD) | BIT(MFL_STRATEGY_FLAME) | BIT(MFL_STRATEGY_FOOLSGOLD) |        \
                BIT(MFL_STRATEGY_FLTRUST))
/* These have no meaning without f. */
#define NEEDS_F                                                                                              \
        (KRUMS | BIT(MFL_STRATEGY_MEAN_AROUND_MEDIAN) | BIT(MFL_STRATEGY_NORM_FILTER) | BIT(MFL_STRATEGY_DNC))
/* These look at single elements, or at what a client has sent before, which a mixture of rows does not have. */
#define UNMIXED (BIT(MFL_STRATEGY_DNC) | BIT(MFL_STRATEGY_SIGNGUARD) | BIT(MFL_STRATEGY_FOOLSGOLD))
/* These look at one element at a time. */
#define COLUMNS                                                                                              \
        (BIT(MFL_STRATEGY_MEDIAN) | BIT(MFL_STRATEGY_TRIMMED_MEAN) | BIT(MFL_STRATEGY_MEAN_AROUND_MEDIAN))

static bool is_one_of(const struct mfl_job *job, unsigned kinds)
{
        return kinds & BIT(job->aggregation.strategy);
}

bool mfl_job_is_robust(const struct mfl_job *job)
{
        return is_one_of(job, ROBUST);
}

const char *mfl_job_data_for(const struct mfl_job *job, const char *daemon, const char *site)
{
        const struct mfl_robust_spec *spec = &job->aggregation.robust;
        bool is_root = spec->root.data[0] && !strcmp(spec->root.daemon, site && *site ? site : daemon);
        return is_root ? spec->root.data : job->data.name;
}

uint32_t mfl_robust_rows_of(const struct mfl_robust_spec *spec, uint32_t m)
{
        if (m && (spec->root.daemon[0] || spec->root.has_client))
                m--;
        if (spec->unit == MFL_ROWS_SERVER)
                return MFL_MIN(m, spec->servers);
        return spec->unit == MFL_ROWS_BUCKET ? m / spec->bucket + (m % spec->bucket != 0) : m;
}

uint32_t mfl_robust_rows_after(const struct mfl_robust_spec *spec, uint32_t m)
{
        for (uint32_t i = 0; i < spec->n_before; i++)
                if (spec->before[i].kind == MFL_BEFORE_BUCKET)
                        m = m / spec->before[i].size + (m % spec->before[i].size != 0);
        return m;
}

uint32_t mfl_robust_rows_least(const struct mfl_job *job)
{
        uint32_t f = job->aggregation.robust.f;
        switch (job->aggregation.strategy) {
        case MFL_STRATEGY_KRUM:
        case MFL_STRATEGY_MULTI_KRUM:
                return MFL_MAX(2 * f + 3, job->aggregation.robust.neighbours + 1);
        case MFL_STRATEGY_BULYAN:
                return 4 * f + 3;
        default:
                return 2 * f + 1;
        }
}

void mfl_robust_draw(const struct mfl_job *job, uint32_t round, uint32_t *order, uint32_t n)
{
        struct mfl_rng rng = mfl_rng_new(job->seed, MFL_RNG_UNIT, round, 0);
        mfl_rng_shuffle(&rng, order, n);
}

uint32_t mfl_robust_bucket_of(const struct mfl_job *job, uint32_t at, uint32_t n)
{
        uint32_t size = job->aggregation.robust.bucket, left = n - at;
        if (mfl_job_sums_buckets(job) && left / 2 < size) /* the rest is not a whole bucket */
                return left;
        return MFL_MIN(size, left);
}

bool mfl_robust_compares(const struct mfl_job *job)
{
        return job->aggregation.robust.n_before || (mfl_job_is_robust(job) && !is_one_of(job, COLUMNS));
}

/* ---- readers ---- */

static const struct mfl_yaml_field radius_field = {
        .kind = MFL_YAML_F64, .size = sizeof(double), .min = 0, .max = 1e12, .min_open = true};

static bool is_word(const struct mfl_yaml_node *node, const char *word)
{
        return node->type == MFL_YAML_SCALAR && !strcmp(node->text, word);
}

static int read_radius(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, double *radius,
        struct mfl_error *err)
{
        *radius = 0;
        return is_word(node, "median") ? 0 : mfl_yaml_read_value(doc, node, &radius_field, radius, err);
}

int mfl_job_read_clip_radius(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_robust_spec *spec = value;
        return read_radius(doc, node, &spec->clip_radius, err);
}

int mfl_job_read_update_clip(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_robust_spec *spec = value;
        return read_radius(doc, node, &spec->update_clip, err);
}

const struct mfl_yaml_field mfl_job_root_fields[] = {
        {.key = "daemon", MFL_YAML_AT(STRING, struct mfl_job, aggregation.robust.root.daemon)},
        {.key = "data", MFL_YAML_AT(STRING, struct mfl_job, aggregation.robust.root.data)},
        {.key = "client",
                MFL_YAML_AT(U32, struct mfl_job, aggregation.robust.root.client),
                .min = 0,
                .max = 10000000,
                .seen = offsetof(struct mfl_job, aggregation.robust.root.has_client)},
        {0}};

static int read_one_before(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct mfl_robust_spec *spec, struct mfl_error *err)
{
        static const struct mfl_yaml_field size_field = {
                .kind = MFL_YAML_U32, .size = sizeof(uint32_t), .min = 2, .max = 65536};
        const struct mfl_yaml_node *only =
                node->type == MFL_YAML_MAPPING && node->n_children == 1 ? node->first : NULL;
        if (spec->n_before == MFL_BEFORE_MAX)
                return mfl_yaml_fail(doc, node, err, "at most %d steps", MFL_BEFORE_MAX);
        struct mfl_before *before = &spec->before[spec->n_before++];
        *before = (struct mfl_before){MFL_BEFORE_NNM, 0, 0};
        if (is_word(node, "nnm"))
                return 0;
        if (is_word(node, "arc")) {
                before->kind = MFL_BEFORE_ARC;
                return 0;
        }
        if (only && !strcmp(only->key, "bucket")) {
                before->kind = MFL_BEFORE_BUCKET;
                return mfl_yaml_read_value(doc, only, &size_field, &before->size, err);
        }
        if (only && !strcmp(only->key, "clip")) {
                before->kind = MFL_BEFORE_CLIP;
                return read_radius(doc, only, &before->radius, err);
        }
        return mfl_yaml_fail(doc, node, err,
                "expected nnm, arc, {bucket: 2}, {clip: median}, {clip: 1.5}, or a list of these");
}

int mfl_job_read_before(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_robust_spec *spec = value;
        if (node->type != MFL_YAML_SEQUENCE)
                return read_one_before(doc, node, spec, err);
        int r = 0;
        for (const struct mfl_yaml_node *n = node->first; n && !r; n = n->next)
                r = read_one_before(doc, n, spec, err);
        return r;
}

/* ---- rules between keys ---- */

static const struct mfl_job_usage usage[] = {
        {"f", ROBUST},
        {"beta", BIT(MFL_STRATEGY_TRIMMED_MEAN)},
        {"neighbours", KRUMS & ~BIT(MFL_STRATEGY_BULYAN)},
        {"clip_radius", BIT(MFL_STRATEGY_CENTERED_CLIP)},
        {"sample", BIT(MFL_STRATEGY_DNC)},
        {"iterations", BIT(MFL_STRATEGY_DNC)},
        {"noise", BIT(MFL_STRATEGY_FLAME)},
        {"unit", ROBUST},
        {"root", BIT(MFL_STRATEGY_FLTRUST)},
        {"before", ROBUST},
        {"on_few", ROBUST},
        {"weighting", ~ROBUST},
};

/* The fewest rows, before `before`, that a round of so many of the population's clients makes. */
static uint32_t fewest_rows(const struct mfl_job *job, uint32_t drawn)
{
        const struct mfl_robust_spec *spec = &job->aggregation.robust;
        if (job->data.partition == MFL_PARTITION_LOCAL) /* with sites in each of them */
                return spec->servers;
        if (spec->unit == MFL_ROWS_SERVER && drawn < job->data.clients) /* all of as few servers as may be */
                return (drawn + spec->server_clients - 1) / spec->server_clients;
        return mfl_robust_rows_of(spec, drawn);
}

/* Whose update is trusted, and that each round has it. */
static int check_root(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *aggregation,
        const struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_robust_spec *spec = &job->aggregation.robust;
        const struct mfl_yaml_node *node = mfl_job_find_key(aggregation, "root");
        bool local = job->data.partition == MFL_PARTITION_LOCAL;
        if (!is_one_of(job, BIT(MFL_STRATEGY_FLTRUST)))
                return 0;
        if (local ? !spec->root.daemon[0] || spec->root.has_client
                  : !spec->root.has_client || spec->root.daemon[0])
                return mfl_yaml_fail(doc, node ? node : aggregation, err,
                        local ? "fltrust needs root: {daemon: NAME}, the site, or the daemon of no site, "
                                "whose "
                                "data are trusted"
                              : "fltrust needs root: {client: NUMBER}, the client of the population whose "
                                "data "
                                "are trusted; with partition local it is root: {daemon: NAME}");
        if (spec->root.data[0] && (!local || mfl_job_owns_data(job)))
                return mfl_yaml_fail(doc, mfl_job_find_key(node, "data"), err,
                        "is a data set of the root's daemon, with partition local; remove it");
        if (local)
                return 0;
        if (spec->root.client >= job->data.clients)
                return mfl_yaml_fail(doc, mfl_job_find_key(node, "client"), err,
                        "is %u, and the population has clients 0 to %u", spec->root.client,
                        job->data.clients - 1);
        if (mfl_job_is_without(job, spec->root.client))
                return mfl_yaml_fail(doc, mfl_job_find_key(node, "client"), err,
                        "is %u, which selection.without leaves out: name another client", spec->root.client);
        if (mfl_job_cohort_least(job, job->data.clients) < job->data.clients - job->selection.n_without)
                return mfl_yaml_fail(doc, node, err,
                        "each round needs the root's update, and this selection may leave it out: let every "
                        "round take all clients");
        return 0;
}

/* Strategies that average. */
static int check_update_clip(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *aggregation,
        struct mfl_job *job, struct mfl_error *err)
{
        struct mfl_robust_spec *spec = &job->aggregation.robust;
        char clip[32] = "median";
        if (!spec->has_update_clip)
                return 0;
        if (spec->update_clip > 0)
                snprintf(clip, sizeof clip, "%g", spec->update_clip);
        if (mfl_job_is_robust(job))
                return mfl_yaml_fail(doc, mfl_job_find_key(aggregation, "update_clip"), err,
                        "is for strategies that average, and %s is none; write before: {clip: %s}",
                        mfl_strategy_name(job->aggregation.strategy), clip);
        /* Where the server has rows, it clips them once more: an attack may have changed them. */
        if (mfl_job_has_rows(job))
                spec->before[spec->n_before++] = (struct mfl_before){MFL_BEFORE_CLIP, 0, spec->update_clip};
        return 0;
}

static int check_keys(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *aggregation,
        const struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_robust_spec *spec = &job->aggregation.robust;
        const char *name = mfl_strategy_name(job->aggregation.strategy);
        const struct mfl_yaml_node *beta = mfl_job_find_key(aggregation, "beta");
        int r = mfl_job_check_usage(
                doc, aggregation, usage, MFL_ARRAY_SIZE(usage), job->aggregation.strategy, name, err);
        if (r || !mfl_job_is_robust(job))
                return r;
        if (beta && spec->has_f)
                return mfl_yaml_fail(doc, beta, err, "f says how many are cut off: remove one of the two");
        if (is_one_of(job, NEEDS_F) && !spec->has_f)
                return mfl_yaml_fail(doc, aggregation, err,
                        "%s needs f, the number of bad updates that it tolerates", name);
        for (uint32_t i = 0; i < spec->n_before; i++)
                if (!spec->has_f && spec->before[i].kind <= MFL_BEFORE_ARC)
                        return mfl_yaml_fail(doc, mfl_job_find_key(aggregation, "before"), err,
                                "%s needs f, the number of bad updates that it tolerates",
                                spec->before[i].kind == MFL_BEFORE_NNM ? "nnm" : "arc");
        if (is_one_of(job, UNMIXED) && spec->n_before)
                return mfl_yaml_fail(doc, mfl_job_find_key(aggregation, "before"), err,
                        "%s looks at updates as they came; remove before, or write strategy: multi-krum",
                        name);
        if (is_one_of(job, BIT(MFL_STRATEGY_CENTERED_CLIP)) && !mfl_job_find_key(aggregation, "clip_radius"))
                return mfl_yaml_fail(doc, aggregation, err,
                        "centered-clip needs clip_radius: the longest difference from the round before that "
                        "counts "
                        "in full, or median");
        if (spec->unit != MFL_ROWS_BUCKET && mfl_job_find_key(aggregation, "bucket"))
                return mfl_yaml_fail(doc, mfl_job_find_key(aggregation, "bucket"), err,
                        "is the size of a row with unit: bucket; add that, or remove it");
        if (spec->unit >= MFL_ROWS_BUCKET && mfl_job_keeps_history(job))
                return mfl_yaml_fail(doc, mfl_job_find_key(aggregation, "unit"), err,
                        "a %s has no history of a client's updates; write unit: client",
                        spec->unit == MFL_ROWS_SERVER ? "server" : "bucket");
        if (spec->unit == MFL_ROWS_SERVER && is_one_of(job, BIT(MFL_STRATEGY_FLTRUST)))
                return mfl_yaml_fail(doc, mfl_job_find_key(aggregation, "unit"), err,
                        "the root is one client, and its update is in that of its server; write unit: "
                        "client");
        if (spec->unit == MFL_ROWS_DAEMON && job->data.partition != MFL_PARTITION_LOCAL)
                return mfl_yaml_fail(doc, mfl_job_find_key(aggregation, "unit"), err,
                        "daemon needs partition: local, where each daemon is one client; a simulated "
                        "population has "
                        "unit: client");
        return check_root(doc, aggregation, job, err);
}

int mfl_job_check_robust(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *root = mfl_yaml_root(doc),
                                   *aggregation = mfl_job_find_key(root, "aggregation");
        int r = check_update_clip(doc, aggregation, job, err);
        if (!r)
                r = check_keys(doc, aggregation, job, err);
        const struct mfl_robust_spec *spec = &job->aggregation.robust;
        if (r || (job->data.partition == MFL_PARTITION_LOCAL && spec->unit != MFL_ROWS_SERVER))
                return r;
        uint32_t most = mfl_robust_rows_of(spec, mfl_job_cohort_size(job, job->data.clients));
        uint32_t drawn =
                MFL_MAX(mfl_job_cohort_least(job, job->data.clients), 1u); /* nobody: the update is zero */
        uint32_t fewest = mfl_robust_rows_after(spec, fewest_rows(job, drawn));
        uint32_t least = mfl_robust_rows_least(job);
        if (mfl_robust_compares(job) && most > MFL_ROBUST_ROWS_MAX)
                return mfl_yaml_fail(doc, aggregation, err,
                        "%s compares each update of a round with all others: at most %u clients per round, "
                        "not %u "
                        "(selection.clients)",
                        spec->has_update_clip ? "update_clip" : mfl_strategy_name(job->aggregation.strategy),
                        MFL_ROBUST_ROWS_MAX, most);
        if (mfl_job_is_robust(job) && fewest < least && spec->on_few == MFL_ON_FEW_FAIL)
                return mfl_yaml_fail(doc, spec->has_f ? mfl_job_find_key(aggregation, "f") : aggregation, err,
                        "%s with f: %u needs %u rows, and a round may have %u%s; lower f, select more "
                        "clients, or say "
                        "with on_few what such a round does",
                        mfl_strategy_name(job->aggregation.strategy), spec->f, least, fewest,
                        spec->unit == MFL_ROWS_BUCKET   ? " after buckets"
                        : spec->unit == MFL_ROWS_SERVER ? ", one for each server"
                        : spec->n_before                ? " after `before`"
                                                        : "");
        return 0;
}

/* ---- simulated attacks ---- */

static const char *const attack_names[] = {"none", "sign-flip", "gaussian", "alie", "ipm", "min-max",
        "min-sum", "mimic", "lazy", "nan", "fang-krum", "fang-trimmed", "stale", "label-flip", "backdoor",
        NULL};
static const unsigned scaled = MFL_JOB_BIT(MFL_ATTACK_SIGN_FLIP) | MFL_JOB_BIT(MFL_ATTACK_GAUSSIAN) |
                               MFL_JOB_BIT(MFL_ATTACK_ALIE) | MFL_JOB_BIT(MFL_ATTACK_IPM) |
                               MFL_JOB_BIT(MFL_ATTACK_FANG_TRIMMED) | MFL_JOB_BIT(MFL_ATTACK_BACKDOOR);
static const struct mfl_job_usage attack_usage[] = {{"scale", scaled},
        {"labels", MFL_JOB_BIT(MFL_ATTACK_LABEL_FLIP)}, {"target", MFL_JOB_BIT(MFL_ATTACK_BACKDOOR)},
        {"poison", MFL_JOB_BIT(MFL_ATTACK_BACKDOOR)}};

/* reverse, next, or [from, to]. */
static int read_labels(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_U32, .size = sizeof(uint32_t), .min = 0, .max = INT32_MAX};
        struct mfl_simulation *s = value;
        s->labels = is_word(node, "next") ? MFL_FLIP_NEXT : MFL_FLIP_REVERSE;
        if (is_word(node, "next") || is_word(node, "reverse"))
                return 0;
        if (node->type != MFL_YAML_SEQUENCE || node->n_children != 2)
                return mfl_yaml_fail(doc, node, err, "expected reverse, next, or two labels, [from, to]");
        s->labels = MFL_FLIP_PAIR;
        int r = mfl_yaml_read_value(doc, node->first, &field, &s->pair[0], err);
        return r ? r : mfl_yaml_read_value(doc, node->first->next, &field, &s->pair[1], err);
}

const struct mfl_yaml_field mfl_job_simulation_fields[] = {
        {.key = "attack", MFL_YAML_AT(ENUM, struct mfl_job, simulation.attack), .names = attack_names},
        {.key = "share",
                MFL_YAML_AT(F64, struct mfl_job, simulation.share),
                .min = 0,
                .max = 1,
                .max_open = true},
        {.key = "scale",
                MFL_YAML_AT(F64, struct mfl_job, simulation.scale),
                .min = 0,
                .max = 1e6,
                .min_open = true,
                .seen = offsetof(struct mfl_job, simulation.has_scale)},
        {.key = "from", MFL_YAML_AT(U32, struct mfl_job, simulation.from), .min = 1, .max = 1000000},
        {.key = "labels",
                .kind = MFL_YAML_CALL,
                .offset = offsetof(struct mfl_job, simulation),
                .read = read_labels},
        {.key = "target", MFL_YAML_AT(U32, struct mfl_job, simulation.target), .min = 0, .max = INT32_MAX},
        {.key = "poison",
                MFL_YAML_AT(F64, struct mfl_job, simulation.poison),
                .min = 0,
                .max = 1,
                .min_open = true},
        {.key = "servers", .kind = MFL_YAML_FIELDS, .fields = mfl_job_servers_fields}, {0}};

bool mfl_attack_is_on_data(const struct mfl_simulation *s)
{
        return s->attack == MFL_ATTACK_LABEL_FLIP || s->attack == MFL_ATTACK_BACKDOOR;
}

bool mfl_attack_is_on_updates(const struct mfl_simulation *s)
{
        bool replaces = s->attack == MFL_ATTACK_BACKDOOR && s->has_scale && s->scale != 1;
        return replaces || (s->attack != MFL_ATTACK_NONE && !mfl_attack_is_on_data(s));
}

int32_t mfl_attack_label(const struct mfl_simulation *s, int32_t y, int32_t n)
{
        if (y < 0 || y >= n)
                return y;
        if (s->labels == MFL_FLIP_PAIR)
                return (uint32_t)y == s->pair[0] && s->pair[1] < (uint32_t)n ? (int32_t)s->pair[1] : y;
        return s->labels == MFL_FLIP_NEXT ? (y + 1) % n : n - 1 - y;
}

const char *mfl_attack_name(enum mfl_attack attack)
{
        return attack_names[attack];
}

int mfl_job_check_simulation(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *root = mfl_yaml_root(doc), *node = mfl_job_find_key(root, "simulation");
        struct mfl_simulation *s = &job->simulation;
        if (!node)
                return 0;
        int r = mfl_job_check_servers(doc, job, err);
        if (r || (s->servers.attack && s->attack == MFL_ATTACK_NONE && node->n_children == 1))
                return r;
        if (s->attack == MFL_ATTACK_NONE || s->share == 0)
                return mfl_yaml_fail(
                        doc, node, err, "needs attack, and share, the share of clients that are bad");
        if (job->data.partition == MFL_PARTITION_LOCAL)
                return mfl_yaml_fail(doc, node, err,
                        "needs a simulated population: daemons with data of their own (partition local) are "
                        "attacked "
                        "by nobody here");
        r = mfl_job_check_usage(doc, node, attack_usage, MFL_ARRAY_SIZE(attack_usage), s->attack,
                attack_names[s->attack], err);
        if (r)
                return r;
        if (mfl_attack_is_on_updates(s) &&
                is_one_of(job, BIT(MFL_STRATEGY_FEDNOVA) | BIT(MFL_STRATEGY_QFEDAVG)))
                return mfl_yaml_fail(doc, mfl_job_find_key(node, "attack"), err,
                        "%s works on single updates, which %s does not have; write strategy: fedavg",
                        attack_names[s->attack], mfl_strategy_name(job->aggregation.strategy));
        uint32_t bad = mfl_simulation_bad(job);
        if (!bad || bad >= job->data.clients)
                return mfl_yaml_fail(doc, mfl_job_find_key(node, "share"), err,
                        "of %u clients, that is %u bad ones; some must be bad, and some honest",
                        job->data.clients, bad);
        bool compares = s->attack == MFL_ATTACK_MIN_MAX || s->attack == MFL_ATTACK_MIN_SUM ||
                        s->attack == MFL_ATTACK_FANG_KRUM;
        if (compares && mfl_job_cohort_size(job, job->data.clients) > MFL_ROBUST_ROWS_MAX)
                return mfl_yaml_fail(doc, mfl_job_find_key(node, "attack"), err,
                        "%s compares each update of a round with all others: at most %u clients per round "
                        "(selection.clients)",
                        attack_names[s->attack], MFL_ROBUST_ROWS_MAX);
        if (s->attack == MFL_ATTACK_STALE &&
                (is_one_of(job, BIT(MFL_STRATEGY_FOOLSGOLD)) || job->aggregation.mu_adaptive))
                return mfl_yaml_fail(doc, mfl_job_find_key(node, "attack"), err,
                        "stale keeps what this strategy keeps in the same place: write lazy, or another "
                        "strategy");
        if (!s->has_scale)
                s->scale = s->attack == MFL_ATTACK_GAUSSIAN || s->attack == MFL_ATTACK_IPM         ? 0.1
                           : s->attack == MFL_ATTACK_SIGN_FLIP || s->attack == MFL_ATTACK_BACKDOOR ? 1
                           : s->attack == MFL_ATTACK_FANG_TRIMMED                                  ? 2
                                                                                                   : 0;
        s->from = MFL_MAX(s->from, 1u);
        return 0;
}

uint32_t mfl_simulation_bad(const struct mfl_job *job)
{
        return (uint32_t)(job->simulation.share * job->data.clients + 0.5);
}

int mfl_simulation_draw(const struct mfl_job *job, bool **ret_bad)
{
        uint32_t n = job->data.clients, n_bad = mfl_simulation_bad(job);
        struct mfl_rng rng = mfl_rng_new(job->seed, MFL_RNG_ATTACK, 0, 0);
        uint32_t *order = mfl_malloc(n * sizeof *order);
        bool *bad = mfl_calloc(n, sizeof *bad);
        if (!order || !bad) {
                free(order);
                free(bad);
                return -ENOMEM;
        }
        for (uint32_t i = 0; i < n; i++)
                order[i] = i;
        mfl_rng_shuffle(&rng, order, n);
        const struct mfl_robust_spec *spec = &job->aggregation.robust;
        for (uint32_t i = 0; i < n && n_bad; i++) {
                bad[order[i]] = !spec->root.has_client || order[i] != spec->root.client;
                n_bad -= bad[order[i]];
        }
        free(order);
        *ret_bad = bad;
        return 0;
}

bool mfl_job_has_rows(const struct mfl_job *job)
{
        const struct mfl_robust_spec *spec = &job->aggregation.robust;
        return mfl_job_is_robust(job) || job->edges.count || mfl_attack_is_on_updates(&job->simulation) ||
               (spec->has_update_clip && spec->update_clip == 0);
}

bool mfl_job_sums_buckets(const struct mfl_job *job)
{
        return job->secure.bits && mfl_job_is_robust(job);
}

uint32_t mfl_job_daemons_least(const struct mfl_job *job)
{
        uint32_t sums = mfl_job_sums_buckets(job) ? job->aggregation.robust.bucket
                        : job->secure.bits        ? MFL_SECURE_LEAST
                                                  : 1;
        return MFL_MAX(job->selection.daemons_min, sums);
}

bool mfl_job_needs_single_updates(const struct mfl_job *job)
{
        return (mfl_job_has_rows(job) && !mfl_job_sums_buckets(job)) || mfl_job_keeps_state(job) ||
               mfl_job_tells_gradients(job) || mfl_job_is_live(job) || job->debug.deltas;
}
