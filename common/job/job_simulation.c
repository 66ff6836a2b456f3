/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated attacks in a job document, and which clients are bad. */
#include "common/job/job_simulation.h"

#include "common/base/rng.h"
#include "common/job/method.h"

#define BIT(attack) (1u << (attack))

static const char *const attack_names[] = {"none", "sign-flip", "gaussian", "alie", "ipm", "min-max",
        "min-sum", "mimic", "lazy", "nan", NULL};
static const char *const attacks_later[] = {"label-flip", "backdoor", "fang", "stale"};
static const unsigned scaled =
        BIT(MFL_ATTACK_SIGN_FLIP) | BIT(MFL_ATTACK_GAUSSIAN) | BIT(MFL_ATTACK_ALIE) | BIT(MFL_ATTACK_IPM);

static int read_attack(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_ENUM, .size = sizeof(int), .names = attack_names};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(attacks_later) && node->type == MFL_YAML_SCALAR; i++)
                if (!strcmp(node->text, attacks_later[i]))
                        return mfl_yaml_fail(
                                doc, node, err, "%s is not supported yet; write another attack", attacks_later[i]);
        return mfl_yaml_read_value(doc, node, &field, value, err);
}

const struct mfl_yaml_field mfl_job_simulation_fields[] = {
        {.key = "attack", .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_job, simulation.attack),
                .read = read_attack},
        {.key = "share", MFL_YAML_AT(F64, struct mfl_job, simulation.share), .min = 0, .max = 1, .max_open = true},
        {.key = "scale", MFL_YAML_AT(F64, struct mfl_job, simulation.scale), .min = 0, .max = 1e6, .min_open = true,
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
                return mfl_yaml_fail(doc, node, err, "needs attack, and share, the share of clients that are bad");
        if (job->data.partition == MFL_PARTITION_LOCAL)
                return mfl_yaml_fail(doc, node, err,
                        "needs a simulated population: daemons with data of their own (partition local) are attacked "
                        "by nobody here");
        if (s->has_scale && !(scaled & BIT(s->attack)))
                return mfl_yaml_fail(doc, mfl_job_find_key(node, "scale"), err, "is not used by %s; remove it",
                        attack_names[s->attack]);
        if (mfl_attack_is_on_updates(s->attack) && mfl_method_get(job)->weighs)
                return mfl_yaml_fail(doc, mfl_job_find_key(node, "attack"), err,
                        "%s works on single updates, which %s does not have; write strategy: fedavg",
                        attack_names[s->attack], mfl_strategy_name(job->aggregation.strategy));
        uint32_t bad = mfl_simulation_bad(job);
        if (!bad || bad >= job->data.clients)
                return mfl_yaml_fail(doc, mfl_job_find_key(node, "share"), err,
                        "of %u clients, that is %u bad ones; some must be bad, and some honest", job->data.clients, bad);
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
