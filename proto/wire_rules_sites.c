/* SPDX-License-Identifier: Apache-2.0 */
/* What makes the messages of inquiries and of the registry of models valid. */
#include "proto/wire_rules.h"

#include <inttypes.h>

#define PIECE_MAX MFL_INQUIRY_PIECE_MAX
#define MODEL_NAME 1, MFL_NAME_BYTES - 1
#define MODEL_NAME_OR_EMPTY 0, MFL_NAME_BYTES - 1

/* Whether there are two for each feature is for the site to say, which knows them. */
static int check_edges(const char *what, size_t n, uint32_t bins, struct mfl_error *err)
{
        if (n / 2 * (bins + 2) > MFL_STATS_BINS_MAX)
                return INVALID("%s.bins: %zu features of %u bins are more than %u counts", what, n / 2, bins,
                        MFL_STATS_BINS_MAX);
        return 0;
}

static int check_inquiry(const void *message, struct mfl_error *err)
{
        const Mfl__Inquiry *m = message;
        bool job = m->kind == MFL__INQUIRY_KIND__INQUIRY_JOB,
             model = m->kind != MFL__INQUIRY_KIND__INQUIRY_STATS && !job;
        if (model != (m->n_params > 0) || model != (m->digest.len > 0) ||
                (model || job) != (*m->text != '\0'))
                return INVALID("Inquiry.text: a model has its job file, params and digest, or is not there");
        if (m->n_frozen && m->n_frozen >= m->n_params)
                return INVALID(
                        "Inquiry.n_frozen: %" PRIu64 " of %" PRIu64 " params", m->n_frozen, m->n_params);
        return check_edges("Inquiry", m->n_edges, m->bins, err);
}

static int check_model(const void *message, struct mfl_error *err)
{
        const Mfl__InquiryModel *m = message;
        return m->data.len % sizeof(float)
                       ? INVALID("InquiryModel.data: %zu bytes are not whole floats", m->data.len)
                       : 0;
}

static int check_stats(const void *message, struct mfl_error *err)
{
        const Mfl__DataStats *m = message;
        for (size_t i = 0; i < m->n_features; i++)
                if (m->features[i]->n_bins != m->features[0]->n_bins)
                        return INVALID("DataStats.features: %zu bins beside %zu", m->features[i]->n_bins,
                                m->features[0]->n_bins);
        if (m->n_features && m->n_features * m->features[0]->n_bins > MFL_STATS_BINS_MAX)
                return INVALID("DataStats.features: more than %u counts", MFL_STATS_BINS_MAX);
        return 0;
}

static int check_answer(const void *message, struct mfl_error *err)
{
        const Mfl__InquiryAnswer *m = message;
        if (m->status == MFL__INQUIRY_STATUS__INQUIRY_NOT_ASKED)
                return INVALID("InquiryAnswer.status: a daemon that answers was asked");
        if (m->correct > m->samples)
                return INVALID(
                        "InquiryAnswer.correct: %" PRIu64 " of %" PRIu64 " samples", m->correct, m->samples);
        return 0;
}

static int check_inquire(const void *message, struct mfl_error *err)
{
        const Mfl__Inquire *m = message;
        bool job = m->kind == MFL__INQUIRY_KIND__INQUIRY_JOB,
             model = m->kind != MFL__INQUIRY_KIND__INQUIRY_STATS;
        if (job && (*m->job || *m->model || !*m->text || m->n_params || m->digest.len || m->n_edges))
                return INVALID("Inquire.text: a question about a job has its job file, and nothing else");
        if (job)
                return 0;
        if (model != (*m->job || *m->model || *m->text))
                return INVALID("Inquire.job: expected a job, a registered model or a job file, and none for "
                               "statistics");
        const bool sent = *m->text != '\0';
        if (sent != (m->n_params > 0) || sent != (m->digest.len > 0) ||
                (sent && m->kind != MFL__INQUIRY_KIND__INQUIRY_EVALUATE))
                return INVALID("Inquire.text: a model that is sent has its job file, params and digest, and "
                               "is evaluated");
        if (m->n_frozen && m->n_frozen >= m->n_params)
                return INVALID(
                        "Inquire.n_frozen: %" PRIu64 " of %" PRIu64 " params", m->n_frozen, m->n_params);
        if (!model && !*m->data)
                return INVALID("Inquire.data: empty; statistics are of a data set");
        return check_edges("Inquire", m->n_edges, m->bins, err);
}

static int check_change(const void *message, struct mfl_error *err)
{
        const Mfl__ChangeModel *m = message;
        if (!mfl_wire_name_is_plain(m->name) || !mfl_wire_name_is_plain(m->alias))
                return INVALID("ChangeModel.name: only A-Z, a-z, 0-9, '.', '_' and '-' are allowed in names "
                               "of models "
                               "and aliases");
        if (*m->alias && strspn(m->alias, "0123456789") == strlen(m->alias))
                return INVALID("ChangeModel.alias: '%s' looks like a version; use a name", m->alias);
        const bool gives =
                m->verb == MFL__MODEL_VERB__MODEL_ALIAS || m->verb == MFL__MODEL_VERB__MODEL_PROMOTE;
        if ((m->verb == MFL__MODEL_VERB__MODEL_REGISTER && *m->name == '-') || (gives && *m->alias == '-'))
                return INVALID("ChangeModel.name: a name that begins with '-' would be taken for an option");
        if ((m->verb == MFL__MODEL_VERB__MODEL_REGISTER) != (*m->job != '\0'))
                return INVALID("ChangeModel.job: a version is registered from a job, and nothing else is");
        bool alias = m->verb == MFL__MODEL_VERB__MODEL_ALIAS || m->verb == MFL__MODEL_VERB__MODEL_PROMOTE ||
                     m->verb == MFL__MODEL_VERB__MODEL_ROLLBACK;
        if (alias && !*m->alias)
                return INVALID("ChangeModel.alias: empty");
        return 0;
}

static const struct mfl_wire_message messages[] = {
        MESSAGE(inquiry, check_inquiry, {"inquiry", ANY}, {"kind", ENUM}, {"data", NAME},
                {"fingerprint", ANY}, {"who", NAME_OR_EMPTY, LINE}, {"text", 0, JOB_TEXT_MAX, VERBATIM},
                {"digest", 0, MFL_DIGEST_BYTES}, {"n_params", PARAMS_OFFSET}, {"n_frozen", PARAMS_OFFSET},
                {"bins", 0, MFL_STATS_BINS_MAX}, {"edges", 0, 2 * MFL_STATS_FEATURES_MAX}, {"foreign", BOOL}),
        MESSAGE(inquiry_model_get, NULL, {"inquiry", ANY}, {"offset", PARAMS_OFFSET}),
        MESSAGE(inquiry_model, check_model, {"inquiry", ANY}, {"offset", PARAMS_OFFSET},
                {"data", 0, PIECE_MAX, VERBATIM}),
        MESSAGE(inquiry_answer, check_answer, {"inquiry", ANY}, {"status", ENUM}, {"reason", REASON},
                {"samples", COUNTER}, {"loss_sum", NOT_NEGATIVE}, {"correct", COUNTER}, {"few", BOOL},
                {"stats", OPTIONAL}),
        MESSAGE(data_stats, check_stats, {"samples", COUNTER}, {"bytes", BOOL},
                {"features", 0, MFL_STATS_FEATURES_MAX}, {"labels", 0, MFL_STATS_LABELS_MAX},
                {"hidden", ANY}),
        MESSAGE(feature_stats, NULL, {"name", NAME_OR_EMPTY, LINE}, {"count", COUNTER},
                {"sum", 0, MFL_STATS_SUM_BYTES, VERBATIM}, {"squares", 0, MFL_STATS_SQUARES_BYTES, VERBATIM},
                {"least", FLOAT}, {"most", FLOAT}, {"bins", 0, MFL_STATS_BINS_MAX}),
        MESSAGE(inquire, check_inquire, {"kind", ENUM}, {"data", NAME_OR_EMPTY},
                {"at", 0, MFL_NAME_BYTES - 1}, {"deadline_s", 1, 86400}, {"job", JOB_OR_EMPTY},
                {"round", -2, UINT32_MAX}, {"model", 0, 2 * MFL_NAME_BYTES}, {"bins", 0, MFL_STATS_BINS_MAX},
                {"edges", 0, 2 * MFL_STATS_FEATURES_MAX}, {"text", 0, JOB_TEXT_MAX, VERBATIM},
                {"n_params", PARAMS_OFFSET}, {"n_frozen", PARAMS_OFFSET}, {"digest", 0, MFL_DIGEST_BYTES},
                {"token", NAME_OR_EMPTY, KEY}),
        MESSAGE(inquiry_site, NULL, {"site", NAME_OR_EMPTY, LINE}, {"daemon", NAME_OR_EMPTY, LINE},
                {"status", ENUM_OR_NONE}, {"reason", REASON}, {"samples", COUNTER},
                {"loss_sum", NOT_NEGATIVE}, {"correct", COUNTER}, {"few", BOOL}, {"daemons", ANY}),
        MESSAGE(inquiry_report, NULL, {"number", ANY}, {"kind", ENUM}, {"time_ms", ANY},
                {"who", NAME_OR_EMPTY, LINE}, {"data", NAME_OR_EMPTY, LINE}, {"at", NAME_OR_EMPTY, LINE},
                {"job", JOB_OR_EMPTY}, {"round", ANY}, {"digest", 0, MFL_DIGEST_BYTES},
                {"sites", 0, MFL_INQUIRY_SITES_MAX}, {"stats", OPTIONAL}, {"few", OPTIONAL},
                {"no_accuracy", BOOL}, {"model", 0, 2 * MFL_NAME_BYTES, LINE}),
        MESSAGE(list_inquiries, NULL, {"kind", ENUM_OR_NONE}, {"digest", 0, MFL_DIGEST_BYTES},
                {"count", 0, 1000}),
        MESSAGE(inquiry_list, NULL, {"reports", 0, 1000}),
        MESSAGE(change_model, check_change, {"verb", ENUM}, {"name", MODEL_NAME}, {"version", ANY},
                {"alias", MODEL_NAME_OR_EMPTY}, {"job", JOB_OR_EMPTY}, {"round", -2, UINT32_MAX},
                {"gates", OPTIONAL}),
        MESSAGE(model_gates, NULL, {"accuracy", FLOAT}, {"worse_max", FLOAT}, {"sites", ANY}),
        MESSAGE(list_registry, NULL, {"name", MODEL_NAME_OR_EMPTY}),
        MESSAGE(model_version, NULL, {"name", NAME_OR_EMPTY, LINE}, {"version", ANY}, {"job", JOB},
                {"round", ANY}, {"digest", 0, MFL_DIGEST_BYTES}, {"who", NAME_OR_EMPTY, LINE},
                {"time_ms", ANY}, {"aliases", 0, 1000, LINE}, {"no_accuracy", BOOL}, {"accuracy", FLOAT},
                {"loss", FLOAT}, {"evaluated", BOOL}, {"validated", ANY}),
        MESSAGE(registry, NULL, {"versions", 0, 65536}),
        MESSAGE(watch_model, NULL, {"model", 1, 2 * MFL_NAME_BYTES, LINE}),
        MESSAGE(serving, NULL, {"name", NAME, LINE}, {"follows", 0, 2 * MFL_NAME_BYTES, LINE},
                {"job", JOB_OR_EMPTY}, {"round", ANY}, {"version", NAME_OR_EMPTY, LINE}, {"requests", ANY},
                {"failed", ANY}, {"p50_us", ANY}, {"p99_us", ANY}, {"host", 0, 127, LINE},
                {"who", NAME_OR_EMPTY, LINE}, {"address", 0, 127, LINE}, {"time_ms", ANY}),
        MESSAGE_EMPTY(list_serving),
        MESSAGE(serving_list, NULL, {"serving", 0, 65536}),
};
const struct mfl_wire_family mfl_wire_sites_family = {messages, MFL_ARRAY_SIZE(messages)};
