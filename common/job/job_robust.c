/* SPDX-License-Identifier: Apache-2.0 */
/* Robust aggregation and simulated attacks in a job document: readers, rules between keys, how many rows a rule needs, and
 * which clients are bad. */
#include "common/base/rng.h"
#include "common/job/job_keys.h"

#define BIT MFL_JOB_BIT
#define KRUMS (BIT(MFL_STRATEGY_KRUM) | BIT(MFL_STRATEGY_MULTI_KRUM) | BIT(MFL_STRATEGY_BULYAN))
#define ROBUST                                                                                               \
        (KRUMS | BIT(MFL_STRATEGY_MEDIAN) | BIT(MFL_STRATEGY_TRIMMED_MEAN) |                                 \
                BIT(MFL_STRATEGY_MEAN_AROUND_MEDIAN) | BIT(MFL_STRATEGY_RFA) |                               \
                BIT(MFL_STRATEGY_CENTERED_CLIP) | BIT(MFL_STRATEGY_NORM_FILTER) | BIT(MFL_STRATEGY_DNC) |    \
                BIT(MFL_STRATEGY_SIGNGUARD) | BIT(MFL_STRATEGY_FLAME))
/* These have no meaning without f. */
#define NEEDS_F                                                                                              \
        (KRUMS | BIT(MFL_STRATEGY_MEAN_AROUND_MEDIAN) | BIT(MFL_STRATEGY_NORM_FILTER) | BIT(MFL_STRATEGY_DNC))
/* These look at single elements, which a mixture of rows does not have. */
#define UNMIXED (BIT(MFL_STRATEGY_DNC) | BIT(MFL_STRATEGY_SIGNGUARD))
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

bool mfl_robust_compares(const struct mfl_job *job)
{
        return mfl_job_is_robust(job) && (!is_one_of(job, COLUMNS) || job->aggregation.robust.n_before);
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
        {"before", ROBUST},
        {"on_few", ROBUST},
        {"weighting", ~ROBUST},
};

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
                        "%s looks at the elements of updates as they came; remove before, or write strategy: "
                        "multi-krum",
                        name);
        if (is_one_of(job, BIT(MFL_STRATEGY_CENTERED_CLIP)) && !mfl_job_find_key(aggregation, "clip_radius"))
                return mfl_yaml_fail(doc, aggregation, err,
                        "centered-clip needs clip_radius: the longest difference from the round before that "
                        "counts "
                        "in full, or median");
        if (spec->unit == MFL_ROWS_DAEMON && job->data.partition != MFL_PARTITION_LOCAL)
                return mfl_yaml_fail(doc, mfl_job_find_key(aggregation, "unit"), err,
                        "daemon needs partition: local, where each daemon is one client; a simulated "
                        "population has "
                        "unit: client");
        return 0;
}

int mfl_job_check_robust(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err)
{
        const struct mfl_yaml_node *root = mfl_yaml_root(doc),
                                   *aggregation = mfl_job_find_key(root, "aggregation");
        int r = check_keys(doc, aggregation, job, err);
        if (r || !mfl_job_is_robust(job) || job->data.partition == MFL_PARTITION_LOCAL)
                return r;
        const struct mfl_robust_spec *spec = &job->aggregation.robust;
        uint32_t most = mfl_job_cohort_size(job, job->data.clients);
        uint32_t drawn =
                MFL_MAX(mfl_job_cohort_least(job, job->data.clients), 1u); /* nobody: the update is zero */
        uint32_t fewest = mfl_robust_rows_after(spec, drawn);
        uint32_t least = mfl_robust_rows_least(job);
        if (mfl_robust_compares(job) && most > MFL_ROBUST_ROWS_MAX)
                return mfl_yaml_fail(doc, aggregation, err,
                        "%s compares each update of a round with all others: at most %u clients per round, "
                        "not %u "
                        "(selection.clients)",
                        mfl_strategy_name(job->aggregation.strategy), MFL_ROBUST_ROWS_MAX, most);
        if (fewest < least && spec->on_few == MFL_ON_FEW_FAIL)
                return mfl_yaml_fail(doc, spec->has_f ? mfl_job_find_key(aggregation, "f") : aggregation, err,
                        "%s with f: %u needs %u rows, and a round may have %u%s; lower f, select more "
                        "clients, or say "
                        "with on_few what such a round does",
                        mfl_strategy_name(job->aggregation.strategy), spec->f, least, fewest,
                        spec->n_before ? " after `before`" : "");
        return 0;
}

/* ---- simulated attacks ---- */

static const char *const attack_names[] = {
        "none", "sign-flip", "gaussian", "alie", "ipm", "min-max", "min-sum", "mimic", "lazy", "nan", NULL};
static const char *const attacks_later[] = {"label-flip", "backdoor", "fang", "stale"};
static const unsigned scaled = MFL_JOB_BIT(MFL_ATTACK_SIGN_FLIP) | MFL_JOB_BIT(MFL_ATTACK_GAUSSIAN) |
                               MFL_JOB_BIT(MFL_ATTACK_ALIE) | MFL_JOB_BIT(MFL_ATTACK_IPM);

static int read_attack(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_ENUM, .size = sizeof(int), .names = attack_names};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(attacks_later) && node->type == MFL_YAML_SCALAR; i++)
                if (!strcmp(node->text, attacks_later[i]))
                        return mfl_yaml_fail(doc, node, err, "%s is not supported yet; write another attack",
                                attacks_later[i]);
        return mfl_yaml_read_value(doc, node, &field, value, err);
}

const struct mfl_yaml_field mfl_job_simulation_fields[] = {
        {.key = "attack",
                .kind = MFL_YAML_CALL,
                .offset = offsetof(struct mfl_job, simulation.attack),
                .read = read_attack},
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
        {.key = "from", MFL_YAML_AT(U32, struct mfl_job, simulation.from), .min = 1, .max = 1000000}, {0}};

bool mfl_attack_is_on_updates(enum mfl_attack attack)
{
        return attack != MFL_ATTACK_NONE;
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
        if (s->attack == MFL_ATTACK_NONE || s->share == 0)
                return mfl_yaml_fail(
                        doc, node, err, "needs attack, and share, the share of clients that are bad");
        if (job->data.partition == MFL_PARTITION_LOCAL)
                return mfl_yaml_fail(doc, node, err,
                        "needs a simulated population: daemons with data of their own (partition local) are "
                        "attacked "
                        "by nobody here");
        if (s->has_scale && !(scaled & MFL_JOB_BIT(s->attack)))
                return mfl_yaml_fail(doc, mfl_job_find_key(node, "scale"), err,
                        "is not used by %s; remove it", attack_names[s->attack]);
        if (is_one_of(job, BIT(MFL_STRATEGY_FEDNOVA) | BIT(MFL_STRATEGY_QFEDAVG)))
                return mfl_yaml_fail(doc, mfl_job_find_key(node, "attack"), err,
                        "%s works on single updates, which %s does not have; write strategy: fedavg",
                        attack_names[s->attack], mfl_strategy_name(job->aggregation.strategy));
        uint32_t bad = mfl_simulation_bad(job);
        if (!bad || bad >= job->data.clients)
                return mfl_yaml_fail(doc, mfl_job_find_key(node, "share"), err,
                        "of %u clients, that is %u bad ones; some must be bad, and some honest",
                        job->data.clients, bad);
        if (!s->has_scale)
                s->scale = s->attack == MFL_ATTACK_GAUSSIAN || s->attack == MFL_ATTACK_IPM ? 0.1
                           : s->attack == MFL_ATTACK_SIGN_FLIP                             ? 1
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
        for (uint32_t i = 0; i < n_bad; i++)
                bad[order[i]] = true;
        free(order);
        *ret_bad = bad;
        return 0;
}

bool mfl_job_has_rows(const struct mfl_job *job)
{
        return mfl_job_is_robust(job) || mfl_attack_is_on_updates(job->simulation.attack);
}

bool mfl_job_needs_single_updates(const struct mfl_job *job)
{
        return mfl_job_has_rows(job) || mfl_job_keeps_state(job);
}
