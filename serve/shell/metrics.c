/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers for Prometheus: of the process's connections, and of each model. Models' names have no character that a label must
 * escape (mfl_models_add). */
#include "serve/shell/metrics.h"

#include <math.h>

static void put_family(struct mfl_reply *reply, const char *name, const char *type, const char *help)
{
        mfl_reply_format(reply, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_number(
        struct mfl_reply *reply, const char *name, const char *type, const char *help, uint64_t value)
{
        put_family(reply, name, type, help);
        mfl_reply_format(reply, "%s %llu\n", name, (unsigned long long)value);
}

static void put_http(const struct mfl_http *http, struct mfl_reply *reply)
{
        static const char answers[] = "mfl_serve_answers_total";
        const struct mfl_http_counts *c = &http->counts;
        put_number(reply, "mfl_serve_connections", "gauge", "Open connections.", http->n_conns);
        put_number(reply, "mfl_serve_connections_total", "counter", "Connections since the start.",
                c->connections);
        put_number(reply, "mfl_serve_connections_refused_total", "counter",
                "Connections closed because there were connections_max.", c->refused);
        put_number(reply, "mfl_serve_requests_bad_total", "counter", "Requests that could not be understood.",
                c->bad_requests);
        put_number(reply, "mfl_serve_timeouts_total", "counter",
                "Connections closed because nothing, or half a request, came.", c->timeouts);
        put_number(reply, "mfl_serve_received_bytes_total", "counter", "Bytes received.", c->bytes_in);
        put_number(reply, "mfl_serve_sent_bytes_total", "counter", "Bytes sent.", c->bytes_out);
        put_family(reply, answers, "counter", "Answers by the class of their status.");
        for (int i = 1; i < 6; i++)
                mfl_reply_format(
                        reply, "%s{class=\"%dxx\"} %llu\n", answers, i, (unsigned long long)c->by_class[i]);
}

enum value {
        REQUESTS,
        ROWS,
        BATCHES,
        BUSY,
        EXPIRED,
        REFUSED,
        FAILED,
        WAITING,
        SWAPS,
        LOAD_FAILURES,
        ROLLBACKS,
        FAILED_TRIALS,
        MIRRORED,
        MIRROR_DROPPED,
        MIRRORED_ROWS,
        MIRROR_DIFFER,
};

static uint64_t value_of(const struct mfl_model *model, enum value which)
{
        struct mfl_lane_counts c;
        mfl_model_counts(model, &c);
        switch (which) {
        case REQUESTS:
                return c.requests;
        case ROWS:
                return c.rows;
        case BATCHES:
                return c.batches;
        case BUSY:
                return c.batch_us;
        case EXPIRED:
                return c.expired;
        case REFUSED:
                return c.refused;
        case FAILED:
                return c.failed;
        case WAITING:
                return model->current ? model->current->batcher.n_rows : 0;
        case SWAPS:
                return model->counts.swaps;
        case LOAD_FAILURES:
                return model->counts.load_failures;
        case ROLLBACKS:
                return model->counts.rollbacks;
        case MIRRORED:
                return model->mirrored.requests;
        case MIRROR_DROPPED:
                return model->mirrored.dropped;
        case MIRRORED_ROWS:
                return model->mirrored.rows;
        case MIRROR_DIFFER:
                return model->mirrored.differ;
        default:
                return model->counts.failed_trials;
        }
}

static void put_models(const struct mfl_models *models, struct mfl_reply *reply)
{
        static const struct {
                enum value which;
                const char *name, *type, *help;
        } families[] = {{REQUESTS, "mfl_serve_requests_total", "counter", "Requests that were queued."},
                {ROWS, "mfl_serve_rows_total", "counter", "Rows of them."},
                {BATCHES, "mfl_serve_batches_total", "counter", "Batches computed."},
                {BUSY, "mfl_serve_computing_microseconds_total", "counter",
                        "Time spent on computing batches."},
                {EXPIRED, "mfl_serve_expired_total", "counter",
                        "Requests that waited until their deadline (504)."},
                {REFUSED, "mfl_serve_refused_total", "counter",
                        "Requests refused because the queue was full (429)."},
                {FAILED, "mfl_serve_failed_total", "counter",
                        "Requests that the network could not compute (500)."},
                {WAITING, "mfl_serve_waiting_rows", "gauge", "Rows in the queue."},
                {SWAPS, "mfl_serve_swaps_total", "counter", "Versions taken into service."},
                {LOAD_FAILURES, "mfl_serve_load_failures_total", "counter",
                        "Versions that could not be loaded."},
                {ROLLBACKS, "mfl_serve_rollbacks_total", "counter", "Rollbacks."},
                {FAILED_TRIALS, "mfl_serve_failed_trials_total", "counter",
                        "New versions that were taken out again."},
                {MIRRORED, "mfl_serve_mirrored_total", "counter",
                        "Requests that a version on trial has computed, too."},
                {MIRROR_DROPPED, "mfl_serve_mirror_dropped_total", "counter",
                        "Requests that it would have, but a batch of them was waiting."},
                {MIRRORED_ROWS, "mfl_serve_mirrored_rows_total", "counter", "Rows that were compared."},
                {MIRROR_DIFFER, "mfl_serve_mirror_differ_total", "counter",
                        "Rows of them with another class, or without classes another answer."}};
        for (size_t k = 0; k < MFL_ARRAY_SIZE(families); k++) {
                put_family(reply, families[k].name, families[k].type, families[k].help);
                for (uint32_t i = 0; i < models->n; i++)
                        mfl_reply_format(reply, "%s{model=\"%s\"} %llu\n", families[k].name,
                                models->v[i].name,
                                (unsigned long long)value_of(&models->v[i], families[k].which));
        }
        put_family(reply, "mfl_serve_mirror_difference", "gauge",
                "The largest difference between two numbers in the last trial.");
        for (uint32_t i = 0; i < models->n; i++)
                if (isfinite(models->v[i].mirrored.difference_max))
                        mfl_reply_format(reply, "mfl_serve_mirror_difference{model=\"%s\"} %.9g\n",
                                models->v[i].name, models->v[i].mirrored.difference_max);
                else
                        mfl_reply_format(
                                reply, "mfl_serve_mirror_difference{model=\"%s\"} +Inf\n", models->v[i].name);
        put_family(reply, "mfl_serve_version", "gauge", "1 for the version in service.");
        for (uint32_t i = 0; i < models->n; i++)
                if (models->v[i].current)
                        mfl_reply_format(reply,
                                "mfl_serve_version{model=\"%s\",version=\"%s\",round=\"%lld\"} 1\n",
                                models->v[i].name, models->v[i].current->version->model.version,
                                (long long)models->v[i].current->version->model.round);
}

static void put_latency(const char *model, const struct mfl_latency *latency, struct mfl_reply *reply)
{
        static const char name[] = "mfl_serve_latency_seconds";
        uint64_t sum = 0;
        for (size_t i = 0; i < MFL_LATENCY_BUCKETS; i++) {
                sum += latency->bucket[i];
                mfl_reply_format(reply, "%s_bucket{model=\"%s\",le=\"%g\"} %llu\n", name, model,
                        (double)mfl_latency_bounds[i] * 1e-6, (unsigned long long)sum);
        }
        mfl_reply_format(reply, "%s_bucket{model=\"%s\",le=\"+Inf\"} %llu\n", name, model,
                (unsigned long long)latency->n);
        mfl_reply_format(reply, "%s_sum{model=\"%s\"} %.6f\n", name, model, (double)latency->sum_us * 1e-6);
        mfl_reply_format(reply, "%s_count{model=\"%s\"} %llu\n", name, model, (unsigned long long)latency->n);
}

static void put_follows(
        const struct mfl_models *models, const struct mfl_follow *follows, struct mfl_reply *reply)
{
        static const char connected[] = "mfl_serve_following", rounds[] = "mfl_serve_followed_rounds_total";
        put_family(reply, connected, "gauge", "1 while the server of the job that is followed is reached.");
        for (uint32_t i = 0; i < models->n; i++)
                if (follows[i].loop)
                        mfl_reply_format(reply, "%s{model=\"%s\"} %d\n", connected, models->v[i].name,
                                follows[i].connected);
        put_family(reply, rounds, "counter", "Rounds fetched from it.");
        for (uint32_t i = 0; i < models->n; i++)
                if (follows[i].loop)
                        mfl_reply_format(reply, "%s{model=\"%s\"} %llu\n", rounds, models->v[i].name,
                                (unsigned long long)follows[i].n_written);
}

void mfl_metrics_write(const struct mfl_http *http, const struct mfl_models *models,
        const struct mfl_latency *latency, const struct mfl_follow *follows, struct mfl_reply *reply)
{
        put_http(http, reply);
        if (http->config.tls) {
                put_family(reply, "mfl_serve_certificate_expires_seconds", "gauge",
                        "When the certificate expires, in Unix time.");
                mfl_reply_format(reply, "mfl_serve_certificate_expires_seconds %lld\n",
                        (long long)mfl_tls_context_expires(http->config.tls));
        }
        put_models(models, reply);
        put_follows(models, follows, reply);
        put_family(reply, "mfl_serve_latency_seconds", "histogram", "From a whole request to its answer.");
        for (uint32_t i = 0; i < models->n; i++)
                put_latency(models->v[i].name, &latency[i], reply);
}
