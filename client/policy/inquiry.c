/* SPDX-License-Identifier: Apache-2.0 */
/* What a site's policy says of inquiries, and of losses and accuracies. */
#include "client/policy/policy.h"

static const char *const kind_names[] = {"stats", "validate", "predict", "foreign", NULL}; /* by bit */

static int read_kinds(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        uint32_t *kinds = value;
        if (node->type != MFL_YAML_SEQUENCE)
                return mfl_yaml_fail(doc, node, err,
                        "expected a list of stats, validate, predict and foreign; [] for none");
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                int k = 0;
                while (kind_names[k] && (n->type != MFL_YAML_SCALAR || strcmp(n->text, kind_names[k]) != 0))
                        k++;
                if (!kind_names[k])
                        return mfl_yaml_fail(doc, n, err, "expected stats, validate, predict or foreign");
                *kinds |= 1u << k;
        }
        return 0;
}

#define AT(kind_, member_) MFL_YAML_AT(kind_, struct mfl_policy_inquiries, member_)
static const struct mfl_yaml_field fields[] = {
        {.key = "kinds",
                .kind = MFL_YAML_CALL,
                .offset = offsetof(struct mfl_policy_inquiries, kinds),
                .read = read_kinds,
                .required = true},
        {.key = "min_samples", AT(U32, min_samples), .min = 1, .max = 1000000},
        {.key = "extremes", AT(BOOL, extremes)},
        {0},
};

int mfl_policy_read_inquiries(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_policy_inquiries inquiries = {.min_samples = MFL_POLICY_MIN_SAMPLES};
        if (node->type != MFL_YAML_MAPPING)
                return mfl_yaml_fail(
                        doc, node, err, "expected a mapping such as {kinds: [stats], min_samples: 10}");
        int r = mfl_yaml_read(doc, node, fields, &inquiries, err);
        if (!r)
                *(struct mfl_policy_inquiries *)value = inquiries;
        return r;
}

bool mfl_policy_withholds(const struct mfl_policy *policy)
{
        return policy->has_metrics ? policy->metrics == MFL_METRICS_WITHHELD : policy->rule.noise > 0;
}

static bool listed(const struct mfl_policy_names *names, const char *name)
{
        for (uint32_t i = 0; i < names->n; i++)
                if (!strcmp(names->v[i], name))
                        return true;
        return !names->n;
}

const char *mfl_policy_inquiry(const struct mfl_policy *policy, enum mfl_policy_inquiry kind, const char *who,
        const char *data, char ret_reason[MFL_REASON_BYTES])
{
        int bit = 0;
        while (kind >> bit != 1)
                bit++;
        if (!(policy->inquiries.kinds & kind)) {
                mfl_snprintf(ret_reason, MFL_REASON_BYTES, "this site's policy.inquiries does not allow %s",
                        kind_names[bit]);
                return "inquiries";
        }
        if (!listed(&policy->owners, who)) {
                mfl_snprintf(
                        ret_reason, MFL_REASON_BYTES, "this site's policy.owners does not have '%s'", who);
                return "owners";
        }
        if (!listed(&policy->data, data)) {
                mfl_snprintf(ret_reason, MFL_REASON_BYTES,
                        "this site's policy.data does not have data set %s", data);
                return "data";
        }
        /* Last: who may not ask is not told what this site keeps. */
        if ((kind == MFL_POLICY_VALIDATE || kind == MFL_POLICY_FOREIGN) && mfl_policy_withholds(policy)) {
                mfl_snprintf(ret_reason, MFL_REASON_BYTES,
                        "this site's policy keeps losses and accuracies here (metrics: withheld, the default "
                        "with noise), which are all of an answer to %s; with metrics: plain it would answer",
                        kind_names[bit]);
                return "metrics";
        }
        return NULL;
}

void mfl_policy_inquiry_limits(
        const struct mfl_policy *policy, uint32_t *ret_min_samples, bool *ret_keeps_extremes)
{
        *ret_min_samples = policy ? policy->inquiries.min_samples : MFL_POLICY_MIN_SAMPLES;
        *ret_keeps_extremes = policy && !policy->inquiries.extremes;
}
