/* SPDX-License-Identifier: Apache-2.0 */
/* The `compression` key: {up: lossless | bf16 | {bits: 8} | {top_k: 0.05}, down: bf16 | {bits: 8}}. */
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

static int read_down_bits(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_U32, .size = sizeof(uint32_t), .min = 8, .max = 16};
        uint32_t *bits = value;
        int r = mfl_yaml_read_value(doc, node, &field, bits, err);
        if (!r && *bits != 8 && *bits != 16)
                r = mfl_yaml_fail(doc, node, err, "expected 8 or 16, got %u", *bits);
        return r;
}

static int read_up(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field fields[] = {
                {.key = "bits",
                        .kind = MFL_YAML_CALL,
                        .offset = offsetof(struct mfl_job, compression.bits),
                        .read = read_bits},
                {.key = "top_k",
                        .kind = MFL_YAML_F64,
                        .offset = offsetof(struct mfl_job, compression.top_k),
                        .size = sizeof(double),
                        .min = 0,
                        .max = 1,
                        .min_open = true},
                {0}};
        struct mfl_job *job = value;
        job->compression.up = true;
        int r = node->type == MFL_YAML_MAPPING ? mfl_yaml_read(doc, node, fields, job, err) : 0;
        if (node->type == MFL_YAML_MAPPING && !r &&
                (job->compression.bits > 0) == (job->compression.top_k > 0))
                return mfl_yaml_fail(doc, node, err, "expected one of {bits: 8} and {top_k: 0.05}");
        if (node->type == MFL_YAML_MAPPING)
                return r;
        if (node->type == MFL_YAML_SCALAR && !strcmp(node->text, "lossless"))
                return 0;
        if (node->type == MFL_YAML_SCALAR && !strcmp(node->text, "bf16"))
                job->compression.up_half = true;
        return job->compression.up_half
                       ? 0
                       : mfl_yaml_fail(doc, node, err,
                                 "expected lossless, bf16, {bits: 8} (16, 32, 48), or {top_k: 0.05}");
}

static int read_down(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_job *job = value;
        static const struct mfl_yaml_field fields[] = {
                {.key = "bits",
                        .kind = MFL_YAML_CALL,
                        .offset = offsetof(struct mfl_job, compression.down_bits),
                        .read = read_down_bits,
                        .required = true},
                {0}};
        if (node->type == MFL_YAML_MAPPING)
                return mfl_yaml_read(doc, node, fields, job, err);
        if (node->type != MFL_YAML_SCALAR || strcmp(node->text, "bf16"))
                return mfl_yaml_fail(doc, node, err, "expected bf16, or {bits: 8} (16)");
        job->compression.down_half = true;
        return 0;
}

const struct mfl_yaml_field mfl_job_compression_fields[] = {
        {.key = "up", .kind = MFL_YAML_CALL, .read = read_up},
        {.key = "down", .kind = MFL_YAML_CALL, .read = read_down}, {0}};

/* What a site did not send would take more bytes than it saves, if the server kept it. */
void mfl_job_compression_defaults(const struct mfl_yaml_doc *doc, struct mfl_job *job)
{
        bool at_site = mfl_job_cuts(job) && job->data.partition == MFL_PARTITION_LOCAL;
        if (at_site && !mfl_job_find_key(mfl_yaml_root(doc), "client_state"))
                job->client_state = MFL_CLIENT_STATE_DAEMON;
}
