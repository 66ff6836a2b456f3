/* SPDX-License-Identifier: Apache-2.0 */
/* The key data.normalise. */
#include "common/normalise/spec.h"

#include <math.h>
#include <stdio.h>

#define NUMBER_BYTES 26

static int read_list(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, double *ret,
        uint32_t n, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_F64, .size = sizeof(double), .min = -1e30, .max = 1e30};
        uint32_t i = 0;
        for (const struct mfl_yaml_node *v = node->first; v; v = v->next, i++) {
                int r = mfl_yaml_read_value(doc, v, &field, &ret[i], err);
                if (r)
                        return r;
        }
        mfl_assert(i == n);
        return 0;
}

int mfl_normalise_give(struct mfl_normalise_spec *spec, uint32_t n, const double *mean, const double *std)
{
        double *v = mfl_calloc(2 * (size_t)n, sizeof *v);
        if (!v)
                return -ENOMEM;
        memcpy(v, mean, n * sizeof *v);
        memcpy(v + n, std, n * sizeof *v);
        mfl_normalise_deinit(spec);
        *spec = (struct mfl_normalise_spec){MFL_NORMALISE_GIVEN, n, v, v + n};
        return 0;
}

static int read_given(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct mfl_normalise_spec *spec, struct mfl_error *err)
{
        const struct mfl_yaml_node *mean = mfl_yaml_find(node, "mean"), *std = mfl_yaml_find(node, "std");
        bool lists = mean && std && mean->type == MFL_YAML_SEQUENCE && std->type == MFL_YAML_SEQUENCE;
        if (!lists || node->n_children != 2 || mean->n_children != std->n_children || !mean->n_children ||
                mean->n_children > MFL_NORMALISE_MAX)
                return mfl_yaml_fail(doc, node, err,
                        "expected federated, or {mean: [...], std: [...]} with a number for each column or "
                        "channel");
        uint32_t n = (uint32_t)mean->n_children;
        double *v = mfl_calloc(2 * (size_t)n, sizeof *v);
        if (!v)
                return mfl_fail_memory(err, 2 * n * sizeof *v, "data.normalise");
        *spec = (struct mfl_normalise_spec){MFL_NORMALISE_GIVEN, n, v, v + n};
        int r = read_list(doc, mean, spec->mean, n, err);
        if (!r)
                r = read_list(doc, std, spec->std, n, err);
        for (uint32_t i = 0; i < n && !r; i++)
                if (!(spec->std[i] > 0))
                        r = mfl_yaml_fail(doc, std, err, "expected numbers above 0");
        return r;
}

int mfl_normalise_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_normalise_spec *spec = value;
        if (node->type == MFL_YAML_SCALAR && !strcmp(node->text, "federated")) {
                spec->kind = MFL_NORMALISE_FEDERATED;
                return 0;
        }
        if (node->type == MFL_YAML_MAPPING)
                return read_given(doc, node, spec, err);
        return mfl_yaml_fail(doc, node, err, "expected federated, or {mean: [...], std: [...]}");
}

static size_t print_list(char *at, const char *name, uint32_t n, const double *v)
{
        char *start = at;
        at += sprintf(at, "%s: [", name);
        for (uint32_t i = 0; i < n; i++)
                at += snprintf(at, NUMBER_BYTES, "%s%.17g", i ? "," : "", v[i]);
        at += sprintf(at, "]");
        return (size_t)(at - start);
}

char *mfl_normalise_text(uint32_t n, const double *mean, const double *std)
{
        char *text = mfl_malloc(2 * (size_t)n * NUMBER_BYTES + 64), *at = text;
        if (!text)
                return NULL;
        *at++ = '{';
        at += print_list(at, "mean", n, mean);
        at += sprintf(at, ", ");
        at += print_list(at, "std", n, std);
        sprintf(at, "}");
        return text;
}

void mfl_normalise_deinit(struct mfl_normalise_spec *spec)
{
        free(spec->mean);
        *spec = (struct mfl_normalise_spec){0};
}
