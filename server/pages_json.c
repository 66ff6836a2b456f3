/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON that the dashboard draws from. Times are seconds before now ("ago"), so that the clocks of the
 * server and of whoever looks need not agree; Unix time in milliseconds where it is named so. */
#include "server/pages.h"

static const char *flag(bool on)
{
        return on ? "true" : "false";
}

static void put_key(struct mfl_text *text, const char *key)
{
        mfl_text_format(text, ",\"%s\":", key);
}

static void put_string(struct mfl_text *text, const char *key, const char *value)
{
        put_key(text, key);
        mfl_text_json(text, value);
}

static void put_u64(struct mfl_text *text, const char *key, uint64_t value)
{
        mfl_text_format(text, ",\"%s\":%llu", key, (unsigned long long)value);
}

static void put_double(struct mfl_text *text, const char *key, double value)
{
        put_key(text, key);
        mfl_text_json_double(text, value);
}

/* ---- jobs ---- */

static void put_round(struct mfl_text *text, const Mfl__RoundInfo *round)
{
        mfl_text_format(text, "{\"round\":%u", round->round);
        if (round->evaluated) {
                if (!round->no_accuracy)
                        put_double(text, "accuracy", round->accuracy);
                put_double(text, "loss", round->loss);
        }
        put_double(text, "train_loss", round->train_loss);
        put_double(text, "seconds", round->seconds);
        put_u64(text, "clients", round->clients);
        put_u64(text, "clients_rejected", round->clients_rejected);
        put_u64(text, "daemons", round->daemons);
        put_u64(text, "bytes_up", round->bytes_up);
        put_u64(text, "bytes_down", round->bytes_down);
        put_u64(text, "committed_unix_ms", round->committed_ms);
        mfl_text_put(text, "}");
}

static void put_job(struct mfl_text *text, struct mfl_server_job *job)
{
        Mfl__JobInfo info;
        struct mfl_job_info_buffers buffers;
        mfl_watch_job_info(job, &info, &buffers);
        mfl_text_put(text, "\"job\":");
        mfl_text_json(text, info.job);
        put_string(text, "name", info.name);
        put_string(text, "state", mfl_job_state_name(job->state));
        put_string(text, "reason", info.reason);
        put_string(text, "phase", info.phase);
        put_string(text, "model", info.model);
        put_string(text, "data", info.data);
        put_string(text, "strategy", info.strategy);
        put_u64(text, "params", info.n_params);
        put_u64(text, "moving", info.n_params - info.n_frozen);
        put_u64(text, "round", info.round);
        put_u64(text, "rounds", info.rounds);
        put_u64(text, "in_round", info.in_round);
        put_u64(text, "attempt", info.attempt);
        put_u64(text, "clients_done", info.clients_done);
        put_u64(text, "clients_total", info.clients_total);
        put_u64(text, "daemons", info.daemons);
        put_u64(text, "created_unix_ms", info.created_ms);
        put_u64(text, "finished_unix_ms", info.finished_ms);
        if (info.last) {
                put_key(text, "last");
                put_round(text, info.last);
        }
        if (info.best) {
                put_key(text, "best");
                put_round(text, info.best);
        }
}

void mfl_json_jobs(struct mfl_server *server, struct mfl_text *text)
{
        uint32_t n = 0, skip;
        const char *separator = "";
        for (const struct mfl_server_job *job = server->jobs; job; job = job->next)
                n++;
        skip = n > MFL_PAGES_JOBS_MAX ? n - MFL_PAGES_JOBS_MAX : 0;
        mfl_text_format(text, "{\"version\":\"%s\",\"n_jobs\":%u,\"jobs\":[", MFL_VERSION, n);
        for (struct mfl_server_job *job = server->jobs; job; job = job->next) {
                /* Jobs that run are shown however old they are. */
                if (skip && job->state > MFL_JOB_RUNNING) {
                        skip--;
                        continue;
                }
                mfl_text_format(text, "%s{", separator);
                put_job(text, job);
                mfl_text_put(text, "}");
                separator = ",\n";
        }
        mfl_text_put(text, "]}\n");
}

void mfl_json_job(struct mfl_server_job *job, const struct mfl_store_rounds *rounds, struct mfl_text *text)
{
        uint32_t stride = mfl_rounds_stride(rounds->n);
        const char *separator = "";
        mfl_text_put(text, "{");
        put_job(text, job);
        put_u64(text, "stride", stride);
        put_key(text, "points");
        mfl_text_put(text, "[");
        for (uint32_t i = 0; i < rounds->n; i++) {
                Mfl__RoundInfo info;
                if ((rounds->n - 1 - i) % stride)
                        continue;
                mfl_watch_round_info(&rounds->v[i], &info);
                mfl_text_put(text, separator);
                put_round(text, &info);
                separator = ",\n";
        }
        mfl_text_put(text, "]}\n");
}

/* ---- daemons ---- */

static void put_activity(struct mfl_text *text, const struct mfl_activity_figures *activity)
{
        mfl_text_format(text, ",\"activity\":{\"workers\":%u", (unsigned)activity->workers);
        put_double(text, "samples_per_second", activity->samples_per_second);
        for (int s = 0; s < MFL_ACTIVITY_STATES; s++)
                put_double(text, mfl_activity_state_name(s), activity->share[s]);
        mfl_text_put(text, "}");
}

static void put_telemetry(struct mfl_text *text, const struct mfl_telemetry *telemetry)
{
        if (telemetry->known & MFL_TELEMETRY_ACTIVITY)
                put_activity(text, &telemetry->activity);
        if (!(telemetry->known & MFL_TELEMETRY_OF_GPU))
                return;
        mfl_text_format(text, ",\"gpu\":{\"known\":%u", telemetry->known & MFL_TELEMETRY_OF_GPU);
        if (telemetry->known & MFL_TELEMETRY_GPU)
                put_u64(text, "percent", telemetry->gpu_percent);
        if (telemetry->known & MFL_TELEMETRY_MEMORY_USED)
                put_u64(text, "memory_used", telemetry->memory_used);
        if (telemetry->known & MFL_TELEMETRY_MEMORY_TOTAL)
                put_u64(text, "memory_total", telemetry->memory_total);
        if (telemetry->known & MFL_TELEMETRY_TEMPERATURE)
                put_u64(text, "temperature", telemetry->temperature_c);
        if (telemetry->known & MFL_TELEMETRY_POWER)
                put_double(text, "watts", telemetry->power_mw / 1000.0);
        mfl_text_put(text, "}");
}

void mfl_json_daemons(struct mfl_server *server, struct mfl_text *text)
{
        uint32_t n;
        struct mfl_daemon_row *rows = mfl_daemon_rows(server, MFL_PAGES_DAEMONS_MAX, &n);
        text->failed |= !rows;
        mfl_text_format(text, "{\"n_daemons\":%u,\"daemons\":[", mfl_core_daemon_count(server->core));
        for (uint32_t i = 0; i < n; i++) {
                const struct mfl_core_daemon_view *view = &rows[i].view;
                mfl_text_put(text, i ? ",\n{\"daemon\":" : "{\"daemon\":");
                mfl_text_json(text, view->info->name);
                put_string(text, "node", view->node);
                put_string(text, "state", view->state);
                put_string(text, "job", view->job);
                put_u64(text, "round", view->round);
                put_u64(text, "items_done", view->items_done);
                put_u64(text, "items_total", view->items_total);
                put_double(text, "clients_per_second", view->clients_per_second);
                put_string(text, "backend", view->info->backend);
                put_string(text, "device", view->info->device);
                put_string(text, "software", view->info->software);
                put_string(text, "address", rows[i].address);
                put_string(text, "note", view->note);
                put_key(text, "leader");
                mfl_text_put(text, flag(view->leader));
                if (rows[i].telemetry)
                        put_telemetry(text, rows[i].telemetry);
                mfl_text_put(text, "}");
        }
        mfl_text_put(text, "]}\n");
        free(rows);
}

/* ---- the timeline ---- */

#define TIMELINE_SECONDS 600 /* older facts are left out */
#define TIMELINE_SPANS_MAX 2000

struct writer {
        struct mfl_text *text;
        uint64_t now_ms, skip;
        const char *separator;
};

static double ago(const struct writer *out, uint64_t ms)
{
        return (double)(out->now_ms - MFL_MIN(ms, out->now_ms)) / 1000.0;
}

static void put_span(void *user, const struct mfl_span *span, bool open)
{
        struct writer *out = user;
        if (out->skip || ago(out, span->to_ms) > TIMELINE_SECONDS) {
                out->skip -= out->skip > 0;
                return;
        }
        mfl_text_format(out->text, "%s{\"daemon\":", out->separator);
        mfl_text_json(out->text, span->daemon);
        put_string(out->text, "job", span->job);
        put_u64(out->text, "round", span->round);
        put_string(out->text, "what", mfl_span_kind_name(span->kind));
        mfl_text_format(out->text, ",\"from\":%.3f,\"to\":%.3f,\"open\":%s}", ago(out, span->from_ms),
                ago(out, span->to_ms), flag(open));
        out->separator = ",\n";
}

static void put_rounds(struct writer *out, const struct mfl_timeline *timeline)
{
        uint64_t n = MFL_MIN(timeline->n_rounds, (uint64_t)MFL_ROUNDS_SEEN_MAX);
        out->separator = "";
        for (uint64_t i = timeline->n_rounds - n; i < timeline->n_rounds; i++) {
                const struct mfl_round_seen *round = &timeline->rounds[i % MFL_ROUNDS_SEEN_MAX];
                if (ago(out, round->committed_ms) > TIMELINE_SECONDS)
                        continue;
                mfl_text_format(out->text, "%s{\"round\":%u", out->separator, round->round);
                put_string(out->text, "job", round->job);
                put_u64(out->text, "daemons", round->daemons);
                put_u64(out->text, "clients", round->clients);
                mfl_text_format(out->text, ",\"started\":%.3f,\"ended\":%.3f,\"committed\":%.3f}",
                        ago(out, round->started_ms), ago(out, round->ended_ms),
                        ago(out, round->committed_ms));
                out->separator = ",\n";
        }
}

void mfl_json_timeline(struct mfl_server *server, struct mfl_text *text)
{
        const struct mfl_timeline *timeline = server->observed.timeline;
        struct writer out = {.text = text, .now_ms = mfl_server_now(server), .separator = ""};
        if (!timeline) { /* pages are asked for only when there is one */
                text->failed = true;
                return;
        }
        uint64_t n = MFL_MIN(timeline->n_spans, (uint64_t)MFL_SPANS_MAX);
        out.skip = n > TIMELINE_SPANS_MAX ? n - TIMELINE_SPANS_MAX : 0;
        mfl_text_put(text, "{\"spans\":[");
        mfl_observe_spans(server, put_span, &out);
        mfl_text_put(text, "],\n\"rounds\":[");
        put_rounds(&out, timeline);
        mfl_text_put(text, "]}\n");
}
