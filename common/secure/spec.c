/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of `secure_sum`, and what they default to. */
#include "common/secure/spec.h"

static int read_bits(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_U32, .size = sizeof(uint32_t), .min = 32, .max = 64};
        uint32_t *bits = value;
        int r = mfl_yaml_read_value(doc, node, &field, bits, err);
        if (!r && *bits != 32 && *bits != 48 && *bits != 64)
                r = mfl_yaml_fail(doc, node, err, "expected 32, 48 or 64, got %u", *bits);
        return r;
}

#define AT(kind, member) MFL_YAML_AT(kind, struct mfl_secure_spec, member)

const struct mfl_yaml_field mfl_secure_fields[] = {{.key = "bits",
                                                           .kind = MFL_YAML_CALL,
                                                           .offset = offsetof(struct mfl_secure_spec, bits),
                                                           .read = read_bits,
                                                           .required = true},
        {.key = "bad", AT(F64, bad), .min = 0, .max = 0.5},
        {.key = "lost", AT(F64, lost), .min = 0, .max = 0.5}, {0}};

int mfl_secure_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_secure_spec spec = {.bad = 0.1, .lost = 0.1};
        int r = mfl_yaml_read(doc, node, mfl_secure_fields, &spec, err);
        if (!r)
                *(struct mfl_secure_spec *)value = spec;
        return r;
}
