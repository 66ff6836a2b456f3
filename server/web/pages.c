/* SPDX-License-Identifier: Apache-2.0 */
/* Which page is made by what: those made from memory at once, those of a job after a query on the disk
 * worker. */
#include "server/web/pages.h"

#include "common/base/log.h"
#include "server/access/logins.h"
#include "server/jobs/partition.h"
#include "server/jobs/scores.h"
#include "server/session/admission.h"
#include "server/web/acts.h"
#include "server/web/contents.h"
#include "server/web/dashboard.h"
#include "server/web/exposition.h"

#define ROUNDS_READ_MAX 2000 /* the newest: a query of a few milliseconds */

#define LINES_READ_MAX 10000 /* all that the store keeps of a job */

#define JOBS_PATH "/api/jobs"
#define TYPE_JSON "application/json"
#define TYPE_HTML "text/html; charset=utf-8"

/* ---- paths ---- */

typedef void make_page(const struct mfl_pages *pages, struct mfl_text *text);
static const struct {
        const char *path, *type;
        make_page *make;
} table[] = {
        {"/", TYPE_HTML, mfl_html_overview},
        {"/login", TYPE_HTML, mfl_html_login},
        {"/models", TYPE_HTML, mfl_html_models},
        {"/metrics", MFL_EXPOSITION_TYPE, mfl_metrics_text},
        {"/api/daemons", TYPE_JSON, mfl_page_daemons},
        {"/api/rounds", TYPE_JSON, mfl_page_timeline},
};

enum detail_kind {
        DETAIL_HTML,      /* "/jobs/ID" */
        DETAIL_JSON,      /* "/api/jobs/ID" */
        DETAIL_PARTITION, /* "/api/jobs/ID/partition", and so on */
        DETAIL_FILE,
        DETAIL_LOG,
        DETAIL_SCORES,
};
static const struct {
        const char *end;
        enum detail_kind kind;
} ends[] = {{"", DETAIL_JSON}, {"/partition", DETAIL_PARTITION}, {"/file", DETAIL_FILE}, {"/log", DETAIL_LOG},
        {"/scores", DETAIL_SCORES}};

static bool kind_of(const char *end, enum detail_kind *ret_kind)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(ends); i++)
                if (!strcmp(end, ends[i].end)) {
                        *ret_kind = ends[i].kind;
                        return true;
                }
        return false;
}

/* The job whose page it is; false: the path is none of a job. */
static bool job_of(const char *path, char ret_id[MFL_JOB_ID_BYTES], enum detail_kind *ret_kind)
{
        bool html = !strncmp(path, "/jobs/", 6);
        const char *id = html ? path + 6 : !strncmp(path, "/api/jobs/", 10) ? path + 10 : "";
        size_t n = strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789-");
        if (!n || n >= MFL_JOB_ID_BYTES)
                return false;
        if (html ? id[n] != '\0' : !kind_of(id + n, ret_kind))
                return false;
        if (html)
                *ret_kind = DETAIL_HTML;
        memcpy(ret_id, id, n);
        ret_id[n] = '\0';
        return true;
}

static bool knows(const char *path)
{
        char id[MFL_JOB_ID_BYTES];
        enum detail_kind kind;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(table); i++)
                if (!strcmp(table[i].path, path))
                        return true;
        return !strcmp(path, JOBS_PATH) || job_of(path, id, &kind);
}

/* Takes the text. */
static void answer(
        struct mfl_pages *pages, const char *path, unsigned status, const char *type, struct mfl_text *text)
{
        if (text->failed)
                mfl_text_deinit(text);
        mfl_http_answer(pages->http, path, status, type, text->v, text->n);
}

static void answer_missing(struct mfl_pages *pages, const char *path)
{
        struct mfl_text text = {0};
        mfl_text_put(&text, "there is no such job\n");
        answer(pages, path, 404, "text/plain; charset=utf-8", &text);
}

/* ---- a job's page ---- */

struct mfl_page_detail {
        struct mfl_work work;
        struct mfl_page_detail *next; /* waits for this one */
        struct mfl_pages *pages;
        char path[MFL_HTTP_PATH_BYTES], job[MFL_JOB_ID_BYTES];
        enum detail_kind kind;
        struct mfl_store_rounds rounds;
        Mfl__Partition *partition;
        struct mfl_store_lines lines;
        Mfl__RoundScores *scores;
        int status;
        struct mfl_error err;
};

static void run_detail(struct mfl_work *work)
{
        struct mfl_page_detail *detail = MFL_CONTAINER_OF(work, struct mfl_page_detail, work);
        struct mfl_store *store = detail->pages->store;
        if (detail->kind == DETAIL_JSON || detail->kind == DETAIL_HTML)
                detail->status = mfl_store_round_list(
                        store, detail->job, 0, ROUNDS_READ_MAX, &detail->rounds, &detail->err);
        if (!detail->status && (detail->kind == DETAIL_PARTITION || detail->kind == DETAIL_HTML))
                detail->status = mfl_job_partition_read(store, detail->job, &detail->partition, &detail->err);
        if (detail->kind == DETAIL_LOG)
                detail->status = mfl_store_log_list(
                        store, detail->job, 0, LINES_READ_MAX, &detail->lines, &detail->err);
        if (detail->kind == DETAIL_SCORES)
                detail->status = mfl_job_scores_read(store, detail->job, &detail->scores, &detail->err);
}

static void make_detail(
        const struct mfl_page_detail *detail, const struct mfl_server_job *job, struct mfl_text *text)
{
        switch (detail->kind) {
        case DETAIL_HTML:
                mfl_html_job(job, &detail->rounds, detail->partition, text);
                break;
        case DETAIL_JSON:
                mfl_page_job(job, &detail->rounds, text);
                break;
        case DETAIL_PARTITION:
                mfl_page_partition(job, detail->partition, text);
                break;
        case DETAIL_FILE:
                mfl_page_file(job, text);
                break;
        case DETAIL_LOG:
                mfl_page_log(job, &detail->lines, text);
                break;
        case DETAIL_SCORES:
                mfl_page_scores(job, detail->scores, text);
                break;
        }
}

static void answer_detail(struct mfl_page_detail *detail)
{
        struct mfl_pages *pages = detail->pages;
        const struct mfl_server_job *job = mfl_server_job_find(pages->jobs, detail->job);
        struct mfl_text text = {0};
        if (!pages->http)
                return;
        if (!job) {
                answer_missing(pages, detail->path);
                return;
        }
        if (detail->status) /* answered with 503 */
                text.failed = true;
        else
                make_detail(detail, job, &text);
        answer(pages, detail->path, 200, detail->kind == DETAIL_HTML ? TYPE_HTML : TYPE_JSON, &text);
}

static void done_detail(struct mfl_work *work);

/* Starts the first page that waits; pages that the worker does not take are answered with 503. */
static void start_details(struct mfl_pages *pages)
{
        while (pages->details) {
                struct mfl_page_detail *detail = pages->details;
                detail->work = (struct mfl_work){.run = run_detail, .done = done_detail};
                if (!mfl_worker_submit(&pages->loop->disk, &detail->work))
                        return;
                pages->details = detail->next;
                if (pages->http)
                        mfl_http_answer(pages->http, detail->path, 503, "", NULL, 0);
                free(detail);
        }
}

static void done_detail(struct mfl_work *work)
{
        struct mfl_page_detail *detail = MFL_CONTAINER_OF(work, struct mfl_page_detail, work);
        struct mfl_pages *pages = detail->pages;
        pages->details = detail->next;
        if (detail->status < 0 && !work->cancelled)
                mfl_loop_fatal(pages->loop, detail->status, &detail->err);
        else if (!work->cancelled)
                answer_detail(detail);
        mfl_store_rounds_deinit(&detail->rounds);
        mfl_job_partition_free(detail->partition);
        mfl_store_lines_deinit(&detail->lines);
        mfl_job_scores_free(detail->scores);
        free(detail);
        start_details(pages);
}

static void want_detail(struct mfl_pages *pages, const char *path, const char *job, enum detail_kind kind)
{
        struct mfl_page_detail **at = &pages->details;
        if (!mfl_server_job_find(pages->jobs, job)) {
                answer_missing(pages, path);
                return;
        }
        struct mfl_page_detail *detail = mfl_calloc(1, sizeof *detail);
        if (!detail) {
                mfl_http_answer(pages->http, path, 503, "", NULL, 0);
                return;
        }
        detail->pages = pages;
        detail->kind = kind;
        mfl_strcpy(detail->path, sizeof detail->path, path);
        mfl_strcpy(detail->job, sizeof detail->job, job);
        while (*at)
                at = &(*at)->next;
        *at = detail;
        if (pages->details == detail)
                start_details(pages);
}

/* ---- the list of jobs ---- */

/* Other work of the loop has its turn between two pieces. */
static void on_list_turn(uv_timer_t *timer)
{
        struct mfl_pages *pages = timer->data;
        struct mfl_text text;
        if (mfl_page_jobs_step(pages->list, pages->jobs, &text))
                answer(pages, JOBS_PATH, 200, TYPE_JSON, &text);
        else
                uv_timer_start(timer, on_list_turn, 1, 0);
}

static int open_list(struct mfl_pages *pages, struct mfl_error *err)
{
        pages->list = mfl_page_jobs_new();
        if (!pages->list)
                return mfl_fail_memory(err, 0, "the list of jobs");
        uv_timer_init(&pages->loop->uv, &pages->list_turn);
        pages->list_turn.data = pages;
        return 0;
}

static void close_list(struct mfl_pages *pages)
{
        if (pages->list)
                uv_close((uv_handle_t *)&pages->list_turn, NULL);
        mfl_page_jobs_free(pages->list);
        pages->list = NULL;
}

static void render(void *user, const char *path)
{
        struct mfl_pages *pages = user;
        char id[MFL_JOB_ID_BYTES];
        enum detail_kind kind;
        if (!strcmp(path, JOBS_PATH)) {
                on_list_turn(&pages->list_turn);
                return;
        }
        for (size_t i = 0; i < MFL_ARRAY_SIZE(table); i++)
                if (!strcmp(table[i].path, path)) {
                        struct mfl_text text = {0};
                        table[i].make(pages, &text);
                        answer(pages, path, 200, table[i].type, &text);
                        return;
                }
        bool is_detail = job_of(path, id, &kind);
        mfl_assert(is_detail); /* no other path is known */
        want_detail(pages, path, id, kind);
}

/* ---- the port ---- */

static void act(void *user, const struct mfl_http_act *act)
{
        mfl_act(user, act);
}

/* What people type, and the host in it. */
static int take_url(struct mfl_pages *pages, struct mfl_error *err)
{
        const char *url = pages->config->http_url;
        bool tls = !strncmp(url, "https://", 8);
        const char *host = url + (tls ? 8 : 7);
        size_t n = strcspn(host, "/");
        if (!*url)
                return 0;
        if ((!tls && strncmp(url, "http://", 7) != 0) || !n || (host[n] && host[n + 1]) ||
                strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]") < n)
                return mfl_fail(err, MFL_INVALID,
                        "http_url: %s: expected https://HOST or http://HOST, with or without :PORT; the "
                        "dashboard can't be "
                        "below a path",
                        url);
        if (!tls && pages->config->http_tls != MFL_HTTP_TLS_OFF)
                return mfl_fail(err, MFL_INVALID,
                        "http_url: %s: with http_tls the port speaks TLS: write https://%.*s", url, (int)n,
                        host);
        mfl_strcpy(pages->host, sizeof pages->host, host);
        pages->host[n] = '\0';
        return 0;
}

/* Cookies do not tell ports apart: two servers on one host have cookies of different names. */
static void set_names(struct mfl_pages *pages)
{
        const char *address = mfl_http_address(pages->http);
        bool tls = *pages->config->http_url ? !strncmp(pages->config->http_url, "https:", 6)
                                            : pages->config->http_tls != MFL_HTTP_TLS_OFF;
        mfl_snprintf(pages->logins->url, sizeof pages->logins->url, "%s://%s/login", tls ? "https" : "http",
                *pages->host ? pages->host : address);
        mfl_snprintf(pages->cookie, sizeof pages->cookie, "%smfl-login%.8s", tls ? "__Host-" : "",
                strrchr(address, ':') + 1);
}

int mfl_pages_open(struct mfl_pages *pages, struct mfl_error *err)
{
        const char *address = pages->config->http;
        bool wanted = *address && strcmp(address, "off");
        if (!wanted)
                return 0;
        mfl_assert(pages->observed->timeline);
        const struct mfl_tls_files files = mfl_admission_files(pages->config);
        enum mfl_http_tls_kind tls = (enum mfl_http_tls_kind)pages->config->http_tls;
        struct mfl_http_options options = {.address = address,
                .anywhere = pages->config->insecure_http || tls == MFL_HTTP_TLS_CERTIFICATES,
                .tls = tls ? &files : NULL,
                .certificates = tls == MFL_HTTP_TLS_CERTIFICATES,
                .loop = &pages->loop->uv,
                .assets = mfl_dashboard_assets,
                .n_assets = mfl_dashboard_n_assets,
                .knows = knows,
                .render = render,
                .acts = mfl_acts_known,
                .act = act,
                .cookie = pages->cookie,
                .host = pages->host,
                .user = pages};
        int r = take_url(pages, err);
        if (!r)
                r = open_list(pages, err);
        if (!r)
                r = mfl_http_open(&options, &pages->http, err);
        if (r)
                return r;
        set_names(pages);
        mfl_log(MFL_LOG_INFO, "metrics and dashboard on http%s://%s/", tls ? "s" : "",
                mfl_http_address(pages->http));
        if (!mfl_http_is_loopback(pages->http) && tls != MFL_HTTP_TLS_CERTIFICATES)
                mfl_log(MFL_LOG_WARN, "http: anyone who can reach %s sees jobs and daemons (insecure_http)",
                        mfl_http_address(pages->http));
        return 0;
}

int mfl_pages_renew(struct mfl_pages *pages, struct mfl_error *err)
{
        const struct mfl_tls_files files = mfl_admission_files(pages->config);
        return pages->http ? mfl_http_renew(pages->http, &files, err) : 0;
}

void mfl_pages_ready(struct mfl_pages *pages)
{
        pages->ready = true;
        mfl_pages_beat(pages);
}

void mfl_pages_beat(struct mfl_pages *pages)
{
        char unwell[MFL_REASON_BYTES + 32], full[64];
        if (!pages->http)
                return;
        const char *disk = mfl_disk_failing(&pages->observed->disk, mfl_loop_now(pages->loop)),
                   *unready = NULL;
        mfl_snprintf(unwell, sizeof unwell, "the disk fails: %s", disk ? disk : "");
        mfl_snprintf(full, sizeof full, "connections_max (%u) is reached", pages->config->connections_max);
        if (!pages->ready)
                unready = "starting";
        else if (pages->sessions->n >= pages->config->connections_max)
                unready = full;
        mfl_http_beat(pages->http, disk ? unwell : NULL, unready);
}

void mfl_pages_close(struct mfl_pages *pages)
{
        struct mfl_http *http = pages->http;
        pages->http = NULL;
        mfl_acts_close(pages);
        close_list(pages);
        mfl_http_close(http);
}
