/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of `privacy`. */
#include "common/privacy/spec.h"

const char *mfl_privacy_kind_name(enum mfl_privacy_kind kind)
{
        static const char *const names[] = {"", "central", "local", "distributed"};
        return names[kind];
}

static int read_kind(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        enum mfl_privacy_kind *kind = value;
        const char *text = node->type == MFL_YAML_SCALAR ? node->text : "";
        for (*kind = MFL_PRIVACY_CENTRAL; *kind <= MFL_PRIVACY_DISTRIBUTED; (*kind)++)
                if (!strcmp(text, mfl_privacy_kind_name(*kind)))
                        return 0;
        *kind = MFL_PRIVACY_NONE;
        return mfl_yaml_fail(doc, node, err, "expected central, local or distributed");
}

#define CLIP_FIRST 0.1 /* Andrew et al. 2021 */

/* value: the whole spec. */
static int read_clip(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_F64, .size = sizeof(double), .min = 1e-6, .max = 1e4};
        struct mfl_privacy_spec *spec = value;
        spec->adaptive = node->type == MFL_YAML_SCALAR && !strcmp(node->text, "adaptive");
        spec->clip = CLIP_FIRST;
        return spec->adaptive ? 0 : mfl_yaml_read_value(doc, node, &field, &spec->clip, err);
}

const char *const mfl_privacy_mechanism_names[] = {"gaussian", "bisr", "bsr", NULL};

const char *const mfl_privacy_metrics_names[] = {"plain", "withheld", NULL};

bool mfl_privacy_withholds(const struct mfl_privacy_spec *spec)
{
        return spec->has_metrics ? spec->metrics == MFL_METRICS_WITHHELD : spec->kind > MFL_PRIVACY_CENTRAL;
}

#define AT(kind, member) MFL_YAML_AT(kind, struct mfl_privacy_spec, member)

const struct mfl_yaml_field mfl_privacy_fields[] = {{.key = "kind",
                                                            .kind = MFL_YAML_CALL,
                                                            .offset = offsetof(struct mfl_privacy_spec, kind),
                                                            .read = read_kind,
                                                            .required = true},
        {.key = "clip", .kind = MFL_YAML_CALL, .read = read_clip, .required = true},
        {.key = "noise", AT(F64, noise), .required = true, .min = 0.05, .max = 100},
        {.key = "epsilon_max", AT(F64, epsilon_max), .required = true, .min = 0, .max = 30, .min_open = true},
        {.key = "delta", AT(F64, delta), .required = true, .min = 1e-12, .max = 0.1},
        {.key = "clients", AT(U32, clients), .min = 1, .max = 65536},
        {.key = "mechanism", AT(ENUM, mechanism), .names = mfl_privacy_mechanism_names},
        {.key = "metrics",
                AT(ENUM, metrics),
                .names = mfl_privacy_metrics_names,
                .seen = offsetof(struct mfl_privacy_spec, has_metrics)},
        {0}};

int mfl_privacy_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return mfl_yaml_read(doc, node, mfl_privacy_fields, value, err);
}
