/* SPDX-License-Identifier: Apache-2.0 */
/* The `compression` key: {up: lossless | bf16 | {bits: 8}, down: bf16}. */
#include "common/job/job_compression.h"

static int read_bits(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_U32, .size = sizeof(uint32_t), .min = 8, .max = 48};
        uint32_t *bits = value;
        int r = mfl_yaml_read_value(doc, node, &field, bits, err);
        if (!r && *bits != 8 && *bits != 16 && *bits != 32 && *bits != 48)
                r = mfl_yaml_fail(doc, node, err, "expected 8, 16, 32 or 48, got %u", *bits);
        return r;
}

static int refuse_top_k(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        return mfl_yaml_fail(doc, node, err,
                "is not supported yet, since a client would have to keep what it did not send; write {bits: "
                "8}");
}

static int read_up(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field grid_fields[] = {
                {.key = "bits",
                        .kind = MFL_YAML_CALL,
                        .offset = offsetof(struct mfl_job, compression.bits),
                        .read = read_bits,
                        .required = true},
                {.key = "top_k", .kind = MFL_YAML_CALL, .read = refuse_top_k}, {0}};
        struct mfl_job *job = value;
        job->compression.up = true;
        if (node->type == MFL_YAML_MAPPING)
                return mfl_yaml_read(doc, node, grid_fields, job, err);
        if (node->type == MFL_YAML_SCALAR && !strcmp(node->text, "lossless"))
                return 0;
        if (node->type == MFL_YAML_SCALAR && !strcmp(node->text, "bf16"))
                job->compression.up_half = true;
        return job->compression.up_half
                       ? 0
                       : mfl_yaml_fail(doc, node, err, "expected lossless, bf16, or {bits: 8} (16, 32, 48)");
}

static int read_down(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_job *job = value;
        if (node->type == MFL_YAML_MAPPING)
                return mfl_yaml_fail(doc, node, err,
                        "a grid is not supported yet, since daemons that come later lack the params before; "
                        "write "
                        "bf16");
        if (node->type != MFL_YAML_SCALAR || strcmp(node->text, "bf16"))
                return mfl_yaml_fail(doc, node, err, "expected bf16");
        job->compression.down_half = true;
        return 0;
}

const struct mfl_yaml_field mfl_job_compression_fields[] = {
        {.key = "up", .kind = MFL_YAML_CALL, .read = read_up},
        {.key = "down", .kind = MFL_YAML_CALL, .read = read_down}, {0}};
