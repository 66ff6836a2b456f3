/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON that the dashboard draws from. The timeline's times are seconds before now (..._ago_seconds), so
 * that the clocks of the server and of the browser need not agree. */
#include "proto/json/json.h"
#include "proto/version.h"
#include "server/jobs/partition.h"
#include "server/views/daemon_view.h"
#include "server/views/job_view.h"
#include "server/web/contents.h"

/* In JSON these characters occur inside of strings only; escaped, the text is safe in HTML, too. */
static int put_part(const char *bytes, size_t n, void *user)
{
        struct mfl_text *text = user;
        size_t from = 0;
        for (size_t i = 0; i < n; i++) {
                if (bytes[i] != '<' && bytes[i] != '>' && bytes[i] != '&')
                        continue;
                mfl_text_bytes(text, bytes + from, i - from);
                mfl_text_format(text, "\\u%04x", (unsigned char)bytes[i]);
                from = i + 1;
        }
        mfl_text_bytes(text, bytes + from, n - from);
        return text->failed ? -1 : 0;
}

void mfl_page_put_json(struct mfl_text *text, json_t *object)
{
        if (!object || json_dump_callback(object, put_part, text, JSON_COMPACT | JSON_REAL_PRECISION(9)))
                text->failed = true;
        mfl_text_put(text, "\n");
        json_decref(object);
}

/* ---- a job ---- */

static json_t *make_job(const struct mfl_server_job *job)
{
        Mfl__JobInfo info;
        struct mfl_job_info_buffers buffers;
        mfl_view_job(job, &info, &buffers);
        return mfl_json_job(&info);
}

void mfl_page_job(
        const struct mfl_server_job *job, const struct mfl_store_rounds *rounds, struct mfl_text *text)
{
        uint32_t stride = (rounds->n + MFL_PAGES_ROUNDS_MAX - 1) / MFL_PAGES_ROUNDS_MAX;
        json_t *list = json_array();
        for (uint32_t i = 0; i < rounds->n; i++) {
                Mfl__RoundInfo info;
                if ((rounds->n - 1 - i) % stride)
                        continue;
                mfl_view_round(&rounds->v[i], &info);
                if (json_array_append_new(list, mfl_json_round(&info)))
                        text->failed = true;
        }
        mfl_page_put_json(text,
                json_pack("{so sI so}", "job", make_job(job), "stride", (json_int_t)stride, "rounds", list));
}

void mfl_page_partition(
        const struct mfl_server_job *job, const Mfl__Partition *partition, struct mfl_text *text)
{
        Mfl__JobPartition body = MFL__JOB_PARTITION__INIT;
        body.job = (char *)job->id;
        body.local = mfl_job_partition_is_local(job);
        body.partition = (Mfl__Partition *)partition;
        mfl_page_put_json(text, mfl_json_partition(&body));
}

void mfl_page_file(const struct mfl_server_job *job, struct mfl_text *text)
{
        mfl_page_put_json(text, json_pack("{ss so}", "job", job->id, "text", mfl_json_text(job->text)));
}

void mfl_page_log(
        const struct mfl_server_job *job, const struct mfl_store_lines *lines, struct mfl_text *text)
{
        json_t *list = json_array();
        size_t first = lines->n > MFL_PAGES_LINES_MAX ? lines->n - MFL_PAGES_LINES_MAX : 0;
        for (size_t i = first; i < lines->n; i++)
                if (json_array_append_new(list, json_pack("{sI sI so}", "seq", (json_int_t)lines->v[i].seq,
                                                        "time_ms", (json_int_t)lines->v[i].time_ms, "text",
                                                        mfl_json_text(lines->v[i].text))))
                        text->failed = true;
        mfl_page_put_json(text,
                json_pack("{ss sI so}", "job", job->id, "n_lines", (json_int_t)lines->n, "lines", list));
}

void mfl_page_scores(const struct mfl_server_job *job, const Mfl__RoundScores *scores, struct mfl_text *text)
{
        mfl_page_put_json(text, json_pack("{ss so}", "job", job->id, "scores", mfl_json_scores(scores)));
}

/* ---- daemons ---- */

void mfl_page_daemons(const struct mfl_pages *pages, struct mfl_text *text)
{
        uint32_t n, n_known = mfl_core_daemon_count(pages->loop->core);
        MFL_CLEANUP_FREE struct mfl_daemon_row *rows =
                mfl_daemon_rows(pages->sessions, MFL_PAGES_DAEMONS_MAX, &n);
        json_t *daemons = json_array();
        text->failed |= !rows;
        for (uint32_t i = 0; i < n; i++) {
                Mfl__DaemonInfo info;
                struct mfl_daemon_info_buffers buffers;
                mfl_view_daemon(&rows[i], &info, &buffers);
                if (json_array_append_new(daemons, mfl_json_daemon(&info)))
                        text->failed = true;
        }
        mfl_page_put_json(text, json_pack("{sI so}", "n_daemons", (json_int_t)n_known, "daemons", daemons));
}

/* ---- the timeline ---- */

#define TIMELINE_SECONDS 600    /* older facts are left out */
#define TIMELINE_SPANS_MAX 1000 /* two milliseconds of the loop */

struct span_list {
        json_t *spans;
        uint64_t now_ms, skip;
        bool failed;
};

static double ago(uint64_t now_ms, uint64_t ms)
{
        return (double)(now_ms - MFL_MIN(ms, now_ms)) / 1000.0;
}

static void add_span(void *user, const struct mfl_span *span, bool open)
{
        struct span_list *list = user;
        double to = ago(list->now_ms, span->to_ms);
        if (list->skip || to > TIMELINE_SECONDS) {
                list->skip -= list->skip > 0;
                return;
        }
        json_t *one = json_pack("{so ss sI ss sf sf sb}", "daemon", mfl_json_text(span->daemon), "job",
                span->job, "round", (json_int_t)span->round, "what", mfl_span_kind_name(span->kind),
                "from_ago_seconds", ago(list->now_ms, span->from_ms), "to_ago_seconds", to, "open",
                (int)open);
        list->failed |= json_array_append_new(list->spans, one) != 0;
}

static json_t *make_rounds(const struct mfl_timeline *timeline, uint64_t now_ms)
{
        uint64_t n = MFL_MIN(timeline->n_rounds, (uint64_t)MFL_ROUNDS_SEEN_MAX);
        json_t *rounds = json_array();
        for (uint64_t i = timeline->n_rounds - n; i < timeline->n_rounds; i++) {
                const struct mfl_round_seen *round = &timeline->rounds[i % MFL_ROUNDS_SEEN_MAX];
                double committed = ago(now_ms, round->committed_ms);
                if (committed > TIMELINE_SECONDS)
                        continue;
                json_array_append_new(
                        rounds, json_pack("{sI ss sI sI sf sf sf}", "round", (json_int_t)round->round, "job",
                                        round->job, "daemons", (json_int_t)round->daemons, "clients",
                                        (json_int_t)round->clients, "started_ago_seconds",
                                        ago(now_ms, round->started_ms), "ended_ago_seconds",
                                        ago(now_ms, round->ended_ms), "committed_ago_seconds", committed));
        }
        return rounds;
}

void mfl_page_timeline(const struct mfl_pages *pages, struct mfl_text *text)
{
        const struct mfl_timeline *timeline = pages->observed->timeline;
        mfl_assert(timeline); /* there is one when there are pages */
        uint64_t n = MFL_MIN(timeline->n_spans, (uint64_t)MFL_SPANS_MAX);
        struct span_list list = {.spans = json_array(),
                .now_ms = mfl_loop_now(pages->loop),
                .skip = n > TIMELINE_SPANS_MAX ? n - TIMELINE_SPANS_MAX : 0};
        mfl_timeline_spans(timeline, add_span, &list);
        for (const struct mfl_session *s = pages->sessions->first; s; s = s->next)
                if (mfl_session_is_daemon(s) && s->peer)
                        mfl_lanes_spans(&mfl_daemon_of(s)->lanes, list.now_ms, add_span, &list);
        text->failed |= list.failed;
        mfl_page_put_json(text,
                json_pack("{so so}", "spans", list.spans, "rounds", make_rounds(timeline, list.now_ms)));
}
