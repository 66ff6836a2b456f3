/* SPDX-License-Identifier: Apache-2.0 */
#include "client/policy/policy.h"

#include <math.h>

#include "common/cohort/memory.h"
#include "common/method/method.h"

/* ---- the file ---- */

static int read_names(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_policy_names *names = value;
        const struct mfl_yaml_field field = {.kind = MFL_YAML_STRING, .size = MFL_NAME_BYTES};
        if (node->type != MFL_YAML_SEQUENCE || !node->first)
                return mfl_yaml_fail(doc, node, err, "expected a list of names, at least one: [NAME, ...]");
        if (node->n_children > MFL_POLICY_NAMES_MAX)
                return mfl_yaml_fail(doc, node, err, "expected at most %d names", MFL_POLICY_NAMES_MAX);
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                int r = mfl_yaml_read_value(doc, n, &field, names->v[names->n], err);
                if (r)
                        return r;
                if (!names->v[names->n][0])
                        return mfl_yaml_fail(doc, n, err, "expected a name");
                names->n++;
        }
        return 0;
}

static int read_peers(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_policy_prints *prints = value;
        const struct mfl_yaml_field field = {.kind = MFL_YAML_STRING, .size = MFL_POLICY_PRINT_BYTES};
        if (node->type != MFL_YAML_SEQUENCE || !node->first)
                return mfl_yaml_fail(
                        doc, node, err, "expected a list of fingerprints, at least one: [SHA256, ...]");
        if (node->n_children > MFL_POLICY_PEERS_MAX)
                return mfl_yaml_fail(
                        doc, node, err, "expected at most %d fingerprints", MFL_POLICY_PEERS_MAX);
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                char *print = prints->v[prints->n];
                int r = mfl_yaml_read_value(doc, n, &field, print, err);
                if (r)
                        return r;
                if (strlen(print) != 64 || strspn(print, "0123456789abcdef") != 64)
                        return mfl_yaml_fail(doc, n, err,
                                "expected the SHA-256 of a certificate, 64 digits of 0-9a-f, as `mfl pki "
                                "show` prints it");
                prints->n++;
        }
        return 0;
}

static int read_required(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        if (node->type != MFL_YAML_SCALAR || strcmp(node->text, "required") != 0)
                return mfl_yaml_fail(
                        doc, node, err, "expected required; without the key, updates may travel unmasked");
        *(bool *)value = true;
        return 0;
}

static int read_strategies(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        int r = read_names(doc, node, value, err);
        for (const struct mfl_yaml_node *n = node->first; n && !r; n = n->next) {
                bool known = false;
                for (int k = MFL_STRATEGY_FEDAVG; k < MFL_STRATEGIES; k++)
                        known |= strcmp(n->text, mfl_strategy_name((enum mfl_strategy_kind)k)) == 0;
                if (!known)
                        r = mfl_yaml_fail(doc, n, err, "'%s' is not a strategy", n->text);
        }
        return r;
}

/* A list, or false. */
static int read_some(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_policy_some *some = value;
        bool any = false;
        if (node->type == MFL_YAML_SEQUENCE)
                return read_names(doc, node, &some->names, err);
        const struct mfl_yaml_field field = {.kind = MFL_YAML_BOOL, .size = sizeof(any)};
        if (node->type != MFL_YAML_SCALAR || !mfl_yaml_parse_value(node->text, &field, &any))
                return mfl_yaml_fail(doc, node, err, "expected false, or a list of names: [NAME, ...]");
        some->none = !any;
        return 0;
}

#define AT(kind_, member_) MFL_YAML_AT(kind_, struct mfl_policy, member_)
#define NAMES(key_, member_, read_)                                                                          \
        {                                                                                                    \
                .key = (key_), .kind = MFL_YAML_CALL, .offset = offsetof(struct mfl_policy, member_),        \
                .read = (read_)                                                                              \
        }
static const struct mfl_yaml_field fields[] = {
        NAMES("owners", owners, read_names),
        NAMES("data", data, read_names),
        NAMES("strategies", strategies, read_strategies),
        NAMES("strategies_refused", strategies_refused, read_strategies),
        NAMES("secure_sum", secure_sum, read_required),
        {.key = "secure_bad", AT(F64, secure_bad), .min = 0, .max = 0.5},
        NAMES("peers", peers, read_peers),
        NAMES("programs", programs, read_some),
        NAMES("plugins", plugins, read_some),
        NAMES("inquiries", inquiries, mfl_policy_read_inquiries),
        {.key = "min_participants", AT(U32, min_participants), .min = 1, .max = 1000000},
        {.key = "rounds_max", AT(U32, rounds_max), .min = 1, .max = UINT32_MAX},
        {.key = "epochs_max", AT(U32, epochs_max), .min = 1, .max = UINT32_MAX},
        {.key = "clip", AT(F64, rule.clip), .min = 1e-6, .max = 1e4},
        {.key = "noise", AT(F64, rule.noise), .min = 0.05, .max = 1000},
        {.key = "epsilon_max", AT(F64, epsilon_max), .min = 0, .max = 1000, .min_open = true},
        {.key = "delta", AT(F64, delta), .min = 1e-12, .max = 0.1},
        {.key = "metrics",
                AT(ENUM, metrics),
                .names = mfl_privacy_metrics_names,
                .seen = offsetof(struct mfl_policy, has_metrics)},
        {.key = "ask", AT(BOOL, ask)},
        {.key = "dir", AT(STRING, dir), .required = true},
        {0},
};

int mfl_policy_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_policy policy = {.set = true, .secure_bad = 0.1, .delta = 1e-5};
        if (node->type != MFL_YAML_MAPPING)
                return mfl_yaml_fail(
                        doc, node, err, "expected a mapping such as {owners: [alice], dir: DIR}");
        int r = mfl_yaml_read(doc, node, fields, &policy, err);
        if (r)
                return r;
        if (policy.strategies.n && policy.strategies_refused.n)
                return mfl_yaml_fail(doc, mfl_yaml_find(node, "strategies_refused"), err,
                        "strategies already lists all that are allowed: write one of the two");
        if (mfl_yaml_find(node, "secure_bad") && !policy.secure_sum)
                return mfl_yaml_fail(doc, mfl_yaml_find(node, "secure_bad"), err,
                        "is held against secure sums alone: add secure_sum: required");
        if (policy.peers.n && !policy.secure_sum)
                return mfl_yaml_fail(doc, mfl_yaml_find(node, "peers"), err,
                        "only secure sums name their participants: add secure_sum: required");
        if (policy.rule.noise > 0 && policy.rule.clip == 0)
                return mfl_yaml_fail(doc, mfl_yaml_find(node, "noise"), err,
                        "is a multiple of clip, the longest update that leaves this site: add clip");
        if (mfl_yaml_find(node, "delta") && policy.epsilon_max == 0)
                return mfl_yaml_fail(doc, mfl_yaml_find(node, "delta"), err,
                        "is only used with epsilon_max: add that, or remove it");
        if (policy.dir[0] != '/')
                return mfl_yaml_fail(doc, mfl_yaml_find(node, "dir"), err,
                        "expected an absolute path, such as /var/lib/mfl-client");
        *(struct mfl_policy *)value = policy;
        return 0;
}

int mfl_policy_check_data(const struct mfl_policy *policy,
        bool (*has)(const void *user, const char *data_set), const void *user, struct mfl_error *err)
{
        for (uint32_t i = 0; i < policy->data.n; i++)
                if (!has(user, policy->data.v[i]))
                        return mfl_fail(err, MFL_INVALID,
                                "policy.data names '%s', and this daemon has no such data set",
                                policy->data.v[i]);
        return 0;
}

/* ---- a job ---- */

static bool contains(const struct mfl_policy_names *names, const char *name)
{
        for (uint32_t i = 0; i < names->n; i++)
                if (strcmp(names->v[i], name) == 0)
                        return true;
        return false;
}

static const char *check_owner(const struct mfl_policy *policy, const char *owner, char *reason)
{
        if (!policy->owners.n || (*owner && contains(&policy->owners, owner)))
                return NULL;
        if (*owner)
                mfl_snprintf(reason, MFL_REASON_BYTES,
                        "this site takes no jobs of '%s': its policy.owners does not have that name", owner);
        else
                mfl_snprintf(reason, MFL_REASON_BYTES,
                        "the server does not say whose job this is, and this site's policy has owners");
        return "owners";
}

static bool allows(const struct mfl_policy_some *some, const char *name)
{
        return (!some->none && !some->names.n) || contains(&some->names, name);
}

/* What the job wants of plug-ins, at the server and here. */
static const char *check_plugins(const struct mfl_policy *policy, const struct mfl_job *job, char *reason)
{
        const char *what = NULL, *name = NULL;
        if (*job->aggregation.plugin.name && !allows(&policy->plugins, job->aggregation.plugin.name)) {
                what = "strategy";
                name = job->aggregation.plugin.name;
        }
        for (uint32_t i = 0; i < job->evaluation.n_metrics && !what; i++)
                if (!allows(&policy->plugins, job->evaluation.metrics[i].name)) {
                        what = "metric";
                        name = job->evaluation.metrics[i].name;
                }
        for (uint32_t i = 0; i < job->n_filters && !what; i++)
                if (!allows(&policy->plugins, job->filters[i])) {
                        what = "filter";
                        name = job->filters[i];
                }
        if (!what)
                return NULL;
        if (policy->plugins.none)
                mfl_snprintf(reason, MFL_REASON_BYTES,
                        "this site's policy refuses jobs with plug-ins, as the %s %s", what, name);
        else
                mfl_snprintf(reason, MFL_REASON_BYTES, "this site's policy refuses the plug-in %s, a %s",
                        name, what);
        return "plugins";
}

static const char *check_program(const struct mfl_policy *policy, const char *program, char *reason)
{
        if (!*program || allows(&policy->programs, program))
                return NULL;
        if (policy->programs.none)
                mfl_snprintf(reason, MFL_REASON_BYTES,
                        "this site's policy refuses jobs that are trained by a program, as %s", program);
        else
                mfl_snprintf(reason, MFL_REASON_BYTES, "this site's policy refuses the program %s", program);
        return "programs";
}

const char *mfl_policy_program(
        const struct mfl_policy *policy, const struct mfl_job *job, char ret_reason[MFL_REASON_BYTES])
{
        return check_program(policy, job->training.program, ret_reason);
}

static const char *check_strategy(const struct mfl_policy *policy, const char *name, char *reason)
{
        bool listed = !policy->strategies.n || contains(&policy->strategies, name);
        if (listed && !contains(&policy->strategies_refused, name))
                return NULL;
        mfl_snprintf(reason, MFL_REASON_BYTES, "this site's policy refuses the strategy %s", name);
        return listed ? "strategies_refused" : "strategies";
}

/* How many of n clients a round must have counted. */
static uint32_t least(const struct mfl_job *job, uint32_t n)
{
        return (uint32_t)ceil(job->limits.quorum * n - 1e-9);
}

static const char *check_participants(
        const struct mfl_policy *policy, const struct mfl_job *job, uint32_t n, char *reason)
{
        uint32_t counted = least(job, n);
        if (counted >= policy->min_participants)
                return NULL;
        mfl_snprintf(reason, MFL_REASON_BYTES,
                "a round may count only %u of its %u clients (limits.quorum %g), and this site's policy "
                "wants %u",
                counted, n, job->limits.quorum, policy->min_participants);
        return "min_participants";
}

static const char *check_limits(const struct mfl_policy *policy, const struct mfl_job *job, char *reason)
{
        if (policy->rounds_max && job->rounds > policy->rounds_max) {
                mfl_snprintf(reason, MFL_REASON_BYTES, "it has %u rounds, and this site's policy allows %u",
                        job->rounds, policy->rounds_max);
                return "rounds_max";
        }
        if (!policy->epochs_max || (job->training.epochs && job->training.epochs <= policy->epochs_max))
                return NULL;
        if (job->training.epochs)
                mfl_snprintf(reason, MFL_REASON_BYTES,
                        "it trains %u epochs in a round, and this site's policy allows %u",
                        job->training.epochs, policy->epochs_max);
        else
                mfl_snprintf(reason, MFL_REASON_BYTES,
                        "it counts training.steps, and this site's policy limits epochs: write "
                        "training.epochs");
        return "epochs_max";
}

/* NULL: an update of such a job is one vector, which the site can shorten and add noise to. */
static const char *uncovered(const struct mfl_job *job)
{
        const struct mfl_method_ops *method = mfl_method_get(job);
        if (method->needs_loss || mfl_method_keeps(method) || method->correct || job->personal.layers.n)
                return "clients of its strategy tell more than one change";
        if (job->parallel.grain && job->parallel.within != MFL_WITHIN_DAEMON)
                return "daemons of its teams exchange gradients (write parallel: {within: daemon})";
        return NULL;
}

enum mfl_noise_by mfl_policy_noise(const struct mfl_policy *policy, const struct mfl_job *job)
{
        if (policy->rule.noise > 0 || job->privacy.kind == MFL_PRIVACY_LOCAL)
                return MFL_NOISE_BY_SITE;
        if (job->privacy.kind == MFL_PRIVACY_DISTRIBUTED)
                return MFL_NOISE_BY_MEMBERS;
        return job->privacy.kind == MFL_PRIVACY_CENTRAL ? MFL_NOISE_BY_SERVER : MFL_NOISE_BY_NOBODY;
}

static const char *check_noise(const struct mfl_policy *policy, const struct mfl_job *job, char *reason)
{
        const char *why = policy->rule.clip > 0 ? uncovered(job) : NULL;
        if (why) {
                mfl_snprintf(reason, MFL_REASON_BYTES, "this site's policy %s every update, and %s",
                        policy->rule.noise > 0 ? "adds noise to" : "clips", why);
                return policy->rule.noise > 0 ? "noise" : "clip";
        }
        if (mfl_policy_withholds(policy) && (mfl_method_get(job)->needs_loss || mfl_memory_is_needed(job))) {
                mfl_strcpy(reason, MFL_REASON_BYTES,
                        "this site's policy keeps losses here (metrics: withheld), and the job's strategy or "
                        "selection takes them from each client");
                return "metrics";
        }
        if (policy->epsilon_max == 0)
                return NULL;
        if (mfl_policy_noise(policy, job) == MFL_NOISE_BY_NOBODY)
                mfl_snprintf(reason, MFL_REASON_BYTES,
                        "nothing bounds what it tells of this site's data, and the site's policy has "
                        "epsilon_max: add privacy to the job");
        else if (job->data.partition != MFL_PARTITION_LOCAL)
                mfl_strcpy(reason, MFL_REASON_BYTES,
                        "this site's policy counts epsilon for its data as a whole, and the job cuts them "
                        "into "
                        "clients: write partition: local");
        return *reason ? "epsilon_max" : NULL;
}

const char *mfl_policy_job(const struct mfl_policy *policy, const struct mfl_job *job, const char *data,
        const char *owner, char ret_reason[MFL_REASON_BYTES])
{
        const char *rule = check_owner(policy, owner, ret_reason);
        if (!rule)
                rule = check_program(policy, job->training.program, ret_reason);
        if (!rule)
                rule = check_plugins(policy, job, ret_reason);
        if (!rule && policy->data.n && !mfl_job_owns_data(job) && !contains(&policy->data, data)) {
                mfl_snprintf(ret_reason, MFL_REASON_BYTES,
                        "this site's policy does not give data set %s to jobs", data);
                rule = "data";
        }
        if (!rule)
                rule = check_strategy(policy, mfl_strategy_name(job->aggregation.strategy), ret_reason);
        if (!rule && policy->secure_sum && !job->secure.bits) {
                mfl_strcpy(ret_reason, MFL_REASON_BYTES,
                        "this site's policy wants secure sums: add secure_sum: {bits: 64} to the job");
                rule = "secure_sum";
        }
        if (!rule && policy->secure_sum && job->secure.bad < policy->secure_bad) {
                mfl_snprintf(ret_reason, MFL_REASON_BYTES,
                        "this site's policy counts on %g%% of daemons that work with the server: write "
                        "secure_sum: "
                        "{bits: %u, bad: %g} or more",
                        policy->secure_bad * 100, job->secure.bits, policy->secure_bad);
                rule = "secure_bad";
        }
        if (!rule)
                rule = check_noise(policy, job, ret_reason);
        if (!rule)
                rule = check_limits(policy, job, ret_reason);
        bool local = job->data.partition == MFL_PARTITION_LOCAL;
        uint32_t n = local ? job->selection.clients : mfl_job_cohort_least(job, job->data.clients);
        if (!rule && policy->min_participants && job->selection.kind == MFL_SELECT_POISSON) {
                mfl_snprintf(ret_reason, MFL_REASON_BYTES,
                        "selection poisson may draw nobody, and this site's policy wants %u clients in a "
                        "round",
                        policy->min_participants);
                rule = "min_participants";
        }
        if (!rule && n)
                rule = check_participants(policy, job, n, ret_reason);
        return rule;
}

const char *mfl_policy_round(const struct mfl_policy *policy, const struct mfl_job *job,
        uint32_t participants, char ret_reason[MFL_REASON_BYTES])
{
        if (policy->min_participants && !participants) {
                mfl_snprintf(ret_reason, MFL_REASON_BYTES,
                        "the server does not say how many clients the round has, and this site's policy "
                        "wants "
                        "%u: upgrade the server",
                        policy->min_participants);
                return "min_participants";
        }
        return policy->min_participants ? check_participants(policy, job, participants, ret_reason) : NULL;
}

bool mfl_policy_peer(const struct mfl_policy *policy, const char *fingerprint)
{
        for (uint32_t i = 0; i < policy->peers.n; i++)
                if (strcmp(policy->peers.v[i], fingerprint) == 0)
                        return true;
        return !policy->peers.n;
}
