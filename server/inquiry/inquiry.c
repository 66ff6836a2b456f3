/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to sites about their data. */
#include "server/inquiry/inquiry.h"

#include "common/base/log.h"
#include "proto/inquiry.h"
#include "proto/stats/stats_wire.h"
#include "proto/version.h"
#include "server/inquiry/report.h"
#include "server/models/models.h"

/* ---- whom to ask ---- */

static bool takes(const struct mfl_core_daemon_view *view, const struct mfl_session *session)
{
        return session && session->state == MFL_SESSION_WELCOME &&
               session->protocol >= MFL_PROTOCOL_INQUIRIES && !session->stream.closing &&
               strcmp(view->state, "draining") != 0 && strcmp(view->state, "drained") != 0;
}

/* Of a name (FNV-1a). */
static uint64_t number_of(const char *name)
{
        uint64_t h = 0xcbf29ce484222325;
        for (; *name; name++)
                h = (h ^ (uint8_t)*name) * 0x100000001b3;
        return h;
}

/* Which daemons: those with a data set of that name. */
struct whom {
        const char *data, *at, *where; /* at, where: "": all */
        bool by_site;                  /* each site has a policy, whoever else has its data */
};

/* On the heap; NULL: memory ran out. */
static struct mfl_inquiry_daemon *list_daemons(
        const struct mfl_inquiries *all, struct whom whom, uint32_t *ret_n)
{
        uint32_t n = mfl_core_daemon_count(all->loop->core), n_found = 0;
        struct mfl_inquiry_daemon *list = mfl_calloc(n + 1, sizeof *list);
        if (!strncmp(whom.data, MFL_FILTER_DATA, sizeof MFL_FILTER_DATA - 1))
                n = 0; /* offered as data sets are, but it is none */
        for (uint32_t i = 0; list && i < n; i++) {
                struct mfl_core_daemon_view view;
                mfl_core_daemon_view(all->loop->core, i, &view);
                if (!view.conn || !takes(&view, mfl_session_find(all->sessions, view.conn)) ||
                        !mfl_core_daemon_where(view.info, whom.where))
                        continue;
                struct mfl_inquiry_daemon *d = &list[n_found];
                mfl_strcpy(d->name, sizeof d->name, view.info->name);
                mfl_strcpy(d->site, sizeof d->site, *view.info->site ? view.info->site : view.info->name);
                d->conn = view.conn;
                for (uint32_t k = 0; k < view.info->n_data_sets; k++) {
                        const struct mfl_data_info *info = &view.info->data_sets[k];
                        if (strcmp(info->name, whom.data) != 0 || !mfl_inquiry_matches(whom.at, d))
                                continue;
                        d->fingerprint = whom.by_site ? number_of(d->site) : info->fingerprint;
                        d->train_samples = info->train_samples;
                        d->test_samples = info->test_samples;
                        n_found++;
                        break;
                }
        }
        *ret_n = n_found;
        return list;
}

static int order_by_site(const void *a, const void *b)
{
        const struct mfl_inquiry_daemon *x = a, *y = b;
        return strcmp(x->site, y->site);
}

uint32_t mfl_inquiry_sites(const struct mfl_inquiries *inquiries, const char *data)
{
        uint32_t n = 0, sites = 0;
        struct mfl_inquiry_daemon *list = list_daemons(inquiries, (struct whom){data, "", "", false}, &n);
        if (!list)
                return 0;
        qsort(list, n, sizeof *list, order_by_site);
        for (uint32_t i = 0; i < n; i++)
                sites += !i || strcmp(list[i].site, list[i - 1].site) != 0;
        free(list);
        return sites;
}

/* ---- asking ---- */

static void send_question(
        const struct mfl_inquiry *q, struct mfl_session *session, const struct mfl_inquiry_part *part)
{
        Mfl__Inquiry body = MFL__INQUIRY__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        body.inquiry = q->number;
        body.kind = q->kind;
        body.data = (char *)(uintptr_t)q->data;
        body.fingerprint = part->fingerprint;
        body.who = (char *)(uintptr_t)q->who;
        if (q->text)
                body.text = q->text;
        if (q->params) {
                body.digest = (ProtobufCBinaryData){MFL_DIGEST_BYTES, (uint8_t *)(uintptr_t)q->digest};
                body.n_params = q->params->n;
                body.n_frozen = q->n_frozen;
                body.foreign = q->foreign;
        }
        body.bins = q->bins;
        body.n_edges = q->n_edges;
        body.edges = q->edges;
        envelope.body_case = MFL__ENVELOPE__BODY_INQUIRY;
        envelope.inquiry = &body;
        mfl_session_send(session, &envelope);
}

static struct whom whom(const struct mfl_inquiry *q)
{
        return (struct whom){q->data, q->at, q->where, q->kind == MFL__INQUIRY_KIND__INQUIRY_JOB};
}

static void ask(struct mfl_inquiry *q)
{
        uint32_t n;
        struct mfl_inquiry_daemon *list = list_daemons(q->all, whom(q), &n);
        if (!list)
                return; /* the next beat tries again */
        for (uint32_t i = 0; i < q->plan.n; i++) {
                const struct mfl_inquiry_daemon *d = mfl_inquiry_next(&q->plan, i, list, n);
                if (d)
                        send_question(q, mfl_session_find(q->all->sessions, d->conn), &q->plan.parts[i]);
        }
        free(list);
}

static void unlink_inquiry(struct mfl_inquiry *q)
{
        struct mfl_inquiry **at = &q->all->first;
        while (*at && *at != q)
                at = &(*at)->next;
        if (*at) {
                *at = q->next;
                q->all->n--;
        }
}

static void free_inquiry(struct mfl_inquiry *q)
{
        if (!q)
                return;
        mfl_inquiry_report_free(q->report);
        mfl_inquiry_plan_deinit(&q->plan);
        mfl_stats_deinit(&q->stats);
        mfl_params_unref(q->params);
        free(q->text);
        free(q->edges);
        free(q);
}

/* ---- the end ---- */

static void run_store(struct mfl_work *work)
{
        struct mfl_inquiry *q = MFL_CONTAINER_OF(work, struct mfl_inquiry, work);
        q->status = mfl_inquiry_report_store(q->all->store, q->report, &q->err);
}

static void on_stored(struct mfl_work *work)
{
        struct mfl_inquiry *q = MFL_CONTAINER_OF(work, struct mfl_inquiry, work);
        if (q->status < 0 && !work->cancelled)
                mfl_loop_fatal(q->all->loop, q->status, &q->err);
        else if (!work->cancelled) {
                if (q->status)
                        mfl_log(MFL_LOG_WARN, "an inquiry's report is not kept: %s", q->err.text);
                q->done(q->user, q->report, &q->stats);
        }
        free_inquiry(q);
}

/* Whoever has been asked for params and has not all of them learns that there are no more. */
static void end(struct mfl_inquiry *q)
{
        struct mfl_inquiries *all = q->all;
        unlink_inquiry(q);
        int r = mfl_inquiry_report_new(q, &q->report, &q->err);
        if (r) {
                mfl_loop_fatal(all->loop, r, &q->err);
                free_inquiry(q);
                return;
        }
        mfl_params_unref(q->params);
        q->params = NULL;
        if (q->kind == MFL__INQUIRY_KIND__INQUIRY_JOB) { /* nothing of it stays */
                q->done(q->user, q->report, &q->stats);
                free_inquiry(q);
                return;
        }
        q->work.run = run_store;
        q->work.done = on_stored;
        if (!mfl_worker_submit(&all->loop->disk, &q->work))
                return;
        mfl_log(MFL_LOG_WARN, "an inquiry's report is not kept: the disk has too much to do");
        q->done(q->user, q->report, &q->stats);
        free_inquiry(q);
}

void mfl_inquiries_beat(struct mfl_inquiries *inquiries)
{
        uint64_t now_ms = mfl_loop_now(inquiries->loop);
        for (struct mfl_inquiry *q = inquiries->first, *next; q; q = next) {
                next = q->next;
                if (mfl_inquiry_over(&q->plan, now_ms))
                        end(q);
                else
                        ask(q);
        }
}

void mfl_inquiries_close(struct mfl_inquiries *inquiries)
{
        while (inquiries->first) {
                struct mfl_inquiry *q = inquiries->first;
                unlink_inquiry(q);
                free_inquiry(q);
        }
}

/* ---- what daemons say ---- */

static struct mfl_inquiry *find(const struct mfl_inquiries *all, uint64_t number)
{
        struct mfl_inquiry *q = all->first;
        while (q && q->number != number)
                q = q->next;
        return q;
}

int mfl_inquiry_model_get(
        struct mfl_inquiries *inquiries, struct mfl_session *session, const Mfl__InquiryModelGet *get)
{
        const struct mfl_inquiry *q = find(inquiries, get->inquiry);
        Mfl__InquiryModel body = MFL__INQUIRY_MODEL__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        body.inquiry = get->inquiry;
        body.offset = get->offset;
        if (q && q->params && mfl_inquiry_asked(&q->plan, session->conn) && get->offset < q->params->n) {
                uint64_t n = MFL_MIN(q->params->n - get->offset, MFL_INQUIRY_PIECE_MAX / sizeof(float));
                body.data = (ProtobufCBinaryData){
                        n * sizeof(float), (uint8_t *)(uintptr_t)(q->params->v + get->offset)};
        }
        envelope.body_case = MFL__ENVELOPE__BODY_INQUIRY_MODEL;
        envelope.inquiry_model = &body;
        mfl_session_send(session, &envelope);
        return 0;
}

/* Positive: they are not what was asked for. Whoever reads the report relies on their number. */
static int check_shape(const struct mfl_inquiry *q, const struct mfl_stats *stats, struct mfl_error *err)
{
        bool bins = q->bins && q->n_edges;
        if (bins ? stats->n_features == q->n_edges / 2 && stats->n_bins == q->bins + 2 : !stats->n_bins)
                return 0;
        return mfl_fail(err, MFL_INVALID, "it tells of %u features in %u parts, and was asked for %u in %u",
                stats->n_features, stats->n_bins, bins ? q->n_edges / 2 : stats->n_features,
                bins ? q->bins + 2 : 0);
}

/* Adds a site's statistics to the total. Positive: they can't be. */
static int add_stats(struct mfl_inquiry *q, const struct mfl_inquiry_part *part,
        const Mfl__DataStats *message, struct mfl_error *err)
{
        struct mfl_stats stats;
        if (!message || message->samples != part->train_samples)
                return mfl_fail(err, MFL_INVALID,
                        "it tells of %llu training samples, and had %u when it connected",
                        message ? (unsigned long long)message->samples : 0ull, part->train_samples);
        int r = mfl_stats_from_wire(message, &stats, err);
        if (r)
                return r;
        r = check_shape(q, &stats, err);
        if (!r && stats.samples)
                r = mfl_stats_add(&q->stats, &stats, err);
        mfl_stats_deinit(&stats);
        return r;
}

/* Positive: numbers that the site can't have. */
static int check_scores(const struct mfl_inquiry *q, const struct mfl_inquiry_part *part,
        const Mfl__InquiryAnswer *answer, struct mfl_error *err)
{
        uint64_t most = part->test_samples;
        if (q->kind == MFL__INQUIRY_KIND__INQUIRY_EVALUATE) /* evaluation.split takes training samples */
                most = MFL_MAX(part->train_samples, part->test_samples);
        if (q->kind == MFL__INQUIRY_KIND__INQUIRY_EVALUATE)
                most = q->scored ? most * q->scored : UINT64_MAX;
        if (answer->samples <= most)
                return 0;
        return mfl_fail(err, MFL_INVALID,
                "it tells of %llu predictions, and had %u training and %u test samples when it connected",
                (unsigned long long)answer->samples, part->train_samples, part->test_samples);
}

int mfl_inquiry_take(struct mfl_inquiries *inquiries, struct mfl_session *session,
        const Mfl__InquiryAnswer *answer, struct mfl_error *err)
{
        struct mfl_inquiry *q = find(inquiries, answer->inquiry);
        struct mfl_inquiry_part *part = q ? mfl_inquiry_asked(&q->plan, session->conn) : NULL;
        struct mfl_error why = {""};
        if (!part)
                return 0; /* it is late */
        part->status = (enum mfl_inquiry_status)answer->status;
        mfl_strcpy(part->reason, sizeof part->reason, answer->reason);
        if (part->status == MFL_INQUIRY_ANSWERED) {
                int r = q->kind == MFL__INQUIRY_KIND__INQUIRY_STATS ? add_stats(q, part, answer->stats, &why)
                                                                    : check_scores(q, part, answer, &why);
                if (r < 0) {
                        *err = why;
                        return r;
                }
                if (r) {
                        part->status = MFL_INQUIRY_FAILED;
                        mfl_strcpy(part->reason, sizeof part->reason, why.text);
                }
                part->samples = r ? 0 : answer->samples;
                part->loss_sum = r ? 0 : answer->loss_sum;
                part->correct = r ? 0 : answer->correct;
                part->few = !r && answer->few;
        }
        if (mfl_inquiry_over(&q->plan, mfl_loop_now(inquiries->loop)))
                end(q);
        return 0;
}

/* ---- the start ---- */

static int fill(struct mfl_inquiry *q, const struct mfl_inquiry_question *question, struct mfl_error *err)
{
        uint32_t n;
        struct mfl_inquiry_daemon *list = list_daemons(q->all, whom(q), &n);
        if (!list)
                return mfl_fail_memory(err, sizeof *list, "an inquiry");
        int r = n ? mfl_inquiry_plan_init(&q->plan, list, n, mfl_loop_now(q->all->loop) + question->within_ms)
                  : 0;
        free(list);
        if (!n)
                return mfl_fail(err, MFL_NOT_FOUND,
                        "no connected daemon%s%s%s has data set %s, or it is drained or too old",
                        *question->at ? " that matches '" : "", question->at, *question->at ? "'" : "",
                        question->data);
        if (q->plan.n > MFL_INQUIRY_SITES_MAX)
                return mfl_fail(err, MFL_BUSY,
                        "%u sites have data set %s: ask at most %d of them, with a pattern", q->plan.n,
                        question->data, MFL_INQUIRY_SITES_MAX);
        q->text = question->text ? mfl_strdup(question->text) : NULL;
        q->edges = mfl_calloc(question->n_edges + 1, sizeof *q->edges);
        if (r || !q->edges || (question->text && !q->text))
                return mfl_fail_memory(err, question->n_edges * sizeof *q->edges, "an inquiry");
        for (uint32_t i = 0; i < question->n_edges; i++)
                q->edges[i] = question->edges[i];
        return 0;
}

int mfl_inquiry_start(struct mfl_inquiries *inquiries, const struct mfl_inquiry_question *question,
        mfl_inquiry_done *done, void *user, struct mfl_error *err)
{
        if (inquiries->n >= MFL_INQUIRIES_MAX)
                return mfl_fail(
                        err, MFL_BUSY, "%d inquiries are under way; try again later", MFL_INQUIRIES_MAX);
        struct mfl_inquiry *q = mfl_calloc(1, sizeof *q);
        if (!q)
                return mfl_fail_memory(err, sizeof *q, "an inquiry");
        q->all = inquiries;
        q->kind = question->kind;
        mfl_strcpy(q->data, sizeof q->data, question->data);
        mfl_strcpy(q->at, sizeof q->at, question->at);
        mfl_strcpy(q->who, sizeof q->who, question->who);
        mfl_strcpy(q->job, sizeof q->job, question->job);
        mfl_strcpy(q->model, sizeof q->model, question->model);
        mfl_strcpy(q->where, sizeof q->where, question->where ? question->where : "");
        q->round = question->round;
        q->n_frozen = question->n_frozen;
        q->foreign = question->foreign;
        q->no_accuracy = question->no_accuracy;
        q->scored = question->scored;
        q->bins = question->bins;
        q->n_edges = question->n_edges;
        memcpy(q->digest, question->digest, sizeof q->digest);
        q->done = done;
        q->user = user;
        int r = fill(q, question, err);
        if (r) {
                free_inquiry(q);
                return r;
        }
        q->params = question->params ? mfl_params_ref(question->params) : NULL;
        q->number = (uint64_t)mfl_store_boot(inquiries->store) << 32 | ++inquiries->last;
        q->next = inquiries->first;
        inquiries->first = q;
        inquiries->n++;
        ask(q);
        return 0;
}
