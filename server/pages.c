/* SPDX-License-Identifier: Apache-2.0 */
/* Which page is made of what: those of memory at once, a job's after a query on the disk worker. */
#include "server/pages.h"

#include "common/log.h"
#include "server/dashboard.h"
#include "server/partition.h"

#define ROUNDS_READ_MAX 2000 /* the newest: a query of a few milliseconds */

#define TYPE_JSON "application/json"
#define TYPE_HTML "text/html; charset=utf-8"

/* ---- what pages have in common ---- */

const char *mfl_job_state_name(enum mfl_job_state state)
{
        static const char *const names[] = {"unknown", "waiting", "running", "done", "failed", "stopped"};
        return names[state];
}

uint32_t mfl_rounds_stride(uint32_t n)
{
        return (n + MFL_PAGES_ROUNDS_MAX - 1) / MFL_PAGES_ROUNDS_MAX;
}

static int by_node_and_name(const void *a, const void *b)
{
        const struct mfl_core_daemon_view *x = &((const struct mfl_daemon_row *)a)->view;
        const struct mfl_core_daemon_view *y = &((const struct mfl_daemon_row *)b)->view;
        int r = strcmp(x->node, y->node);
        return r ? r : strcmp(x->info->name, y->info->name);
}

struct mfl_daemon_row *mfl_daemon_rows(struct mfl_server *server, uint32_t max, uint32_t *ret_n)
{
        uint32_t n = MFL_MIN(mfl_core_daemon_count(server->core), max);
        struct mfl_daemon_row *rows = mfl_calloc(n, sizeof *rows);
        for (uint32_t i = 0; rows && i < n; i++) {
                struct mfl_daemon_row *row = &rows[i];
                mfl_core_daemon_view(server->core, i, &row->view);
                if (!row->view.node[0])
                        mfl_strcpy(row->view.node, sizeof row->view.node, row->view.info->node);
                const struct mfl_session *s =
                        row->view.conn ? mfl_session_find(server, row->view.conn) : NULL;
                row->telemetry = mfl_session_telemetry(server, row->view.conn);
                row->address = s ? s->peer : "";
        }
        if (rows)
                qsort(rows, n, sizeof *rows, by_node_and_name);
        *ret_n = rows ? n : 0;
        return rows;
}

/* ---- paths ---- */

typedef void make_page(struct mfl_server *server, struct mfl_text *text);
static const struct {
        const char *path, *type;
        make_page *make;
} pages[] = {
        {"/", TYPE_HTML, mfl_html_overview},
        {"/metrics", MFL_EXPOSITION_TYPE, mfl_metrics_text},
        {"/api/jobs", TYPE_JSON, mfl_json_jobs},
        {"/api/daemons", TYPE_JSON, mfl_json_daemons},
        {"/api/rounds", TYPE_JSON, mfl_json_timeline},
};

enum detail_kind {
        DETAIL_HTML,      /* "/jobs/ID" */
        DETAIL_JSON,      /* "/api/jobs/ID" */
        DETAIL_PARTITION, /* "/api/jobs/ID/partition" */
};

/* The job whose page that is; false: it is another path. */
static bool job_of(const char *path, char ret_id[MFL_JOB_ID_BYTES], enum detail_kind *ret_kind)
{
        bool html = !strncmp(path, "/jobs/", 6);
        const char *id = html ? path + 6 : !strncmp(path, "/api/jobs/", 10) ? path + 10 : "";
        size_t n = strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789-");
        if (!n || n >= MFL_JOB_ID_BYTES)
                return false;
        if (id[n] && (html || strcmp(id + n, "/partition")))
                return false;
        *ret_kind = html ? DETAIL_HTML : id[n] ? DETAIL_PARTITION : DETAIL_JSON;
        memcpy(ret_id, id, n);
        ret_id[n] = '\0';
        return true;
}

static bool knows(const char *path)
{
        char id[MFL_JOB_ID_BYTES];
        enum detail_kind kind;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(pages); i++)
                if (!strcmp(pages[i].path, path))
                        return true;
        return job_of(path, id, &kind);
}

/* Takes the text. */
static void answer(
        struct mfl_server *server, const char *path, unsigned status, const char *type, struct mfl_text *text)
{
        if (text->failed)
                mfl_text_deinit(text);
        mfl_http_answer(server->http, path, status, type, text->v, text->n);
}

static void answer_missing(struct mfl_server *server, const char *path)
{
        struct mfl_text text = {0};
        mfl_text_put(&text, "there is no such job\n");
        answer(server, path, 404, "text/plain; charset=utf-8", &text);
}

/* ---- a job's page ---- */

struct mfl_page_detail {
        struct mfl_work work;
        struct mfl_page_detail *next; /* waits for this one */
        struct mfl_server *server;
        char path[MFL_HTTP_PATH_BYTES], job[MFL_JOB_ID_BYTES];
        enum detail_kind kind;
        struct mfl_store_rounds rounds;
        Mfl__Partition *partition;
        int status;
        struct mfl_error err;
};

static void run_detail(struct mfl_work *work)
{
        struct mfl_page_detail *detail = MFL_CONTAINER_OF(work, struct mfl_page_detail, work);
        struct mfl_store *store = detail->server->store;
        if (detail->kind != DETAIL_PARTITION)
                detail->status = mfl_store_round_list(
                        store, detail->job, 0, ROUNDS_READ_MAX, &detail->rounds, &detail->err);
        if (!detail->status && detail->kind != DETAIL_JSON)
                detail->status = mfl_job_partition_read(store, detail->job, &detail->partition, &detail->err);
}

static void answer_detail(struct mfl_page_detail *detail)
{
        struct mfl_server *server = detail->server;
        struct mfl_server_job *job = mfl_server_job_find(server, detail->job);
        struct mfl_text text = {0};
        if (!server->http)
                return;
        if (!job) {
                answer_missing(server, detail->path);
                return;
        }
        if (detail->status) /* told as 503: NULL is what there is no page of */
                text.failed = true;
        else if (detail->kind == DETAIL_HTML)
                mfl_html_job(job, &detail->rounds, detail->partition, &text);
        else if (detail->kind == DETAIL_PARTITION)
                mfl_json_partition(job, detail->partition, &text);
        else
                mfl_json_job(job, &detail->rounds, &text);
        answer(server, detail->path, 200, detail->kind == DETAIL_HTML ? TYPE_HTML : TYPE_JSON, &text);
}

static void done_detail(struct mfl_work *work);

/* Starts the first of those that wait; those that the worker does not take are told so. */
static void start_details(struct mfl_server *server)
{
        while (server->details) {
                struct mfl_page_detail *detail = server->details;
                detail->work = (struct mfl_work){.run = run_detail, .done = done_detail};
                if (!mfl_worker_submit(&server->disk, &detail->work))
                        return;
                server->details = detail->next;
                if (server->http)
                        mfl_http_answer(server->http, detail->path, 503, "", NULL, 0);
                free(detail);
        }
}

static void done_detail(struct mfl_work *work)
{
        struct mfl_page_detail *detail = MFL_CONTAINER_OF(work, struct mfl_page_detail, work);
        struct mfl_server *server = detail->server;
        server->details = detail->next;
        if (detail->status < 0 && !work->cancelled)
                mfl_server_fatal(server, detail->status, &detail->err);
        else if (!work->cancelled)
                answer_detail(detail);
        mfl_store_rounds_deinit(&detail->rounds);
        mfl_job_partition_free(detail->partition);
        free(detail);
        start_details(server);
}

static void want_detail(struct mfl_server *server, const char *path, const char *job, enum detail_kind kind)
{
        struct mfl_page_detail **at = &server->details;
        if (!mfl_server_job_find(server, job)) {
                answer_missing(server, path);
                return;
        }
        struct mfl_page_detail *detail = mfl_calloc(1, sizeof *detail);
        if (!detail) {
                mfl_http_answer(server->http, path, 503, "", NULL, 0);
                return;
        }
        detail->server = server;
        detail->kind = kind;
        mfl_strcpy(detail->path, sizeof detail->path, path);
        mfl_strcpy(detail->job, sizeof detail->job, job);
        while (*at)
                at = &(*at)->next;
        *at = detail;
        if (server->details == detail)
                start_details(server);
}

static void render(void *user, const char *path)
{
        struct mfl_server *server = user;
        char id[MFL_JOB_ID_BYTES];
        enum detail_kind kind;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(pages); i++)
                if (!strcmp(pages[i].path, path)) {
                        struct mfl_text text = {0};
                        pages[i].make(server, &text);
                        answer(server, path, 200, pages[i].type, &text);
                        return;
                }
        bool is_detail = job_of(path, id, &kind);
        mfl_assert(is_detail); /* no other path is known */
        want_detail(server, path, id, kind);
}

/* ---- the port ---- */

int mfl_pages_open(struct mfl_server *server, struct mfl_error *err)
{
        const char *address = server->config.http;
        bool wanted = *address && strcmp(address, "off");
        int r = mfl_observe_open(server, wanted, err);
        if (r || !wanted)
                return r;
        struct mfl_http_options options = {.address = address,
                .anywhere = server->config.insecure_http,
                .loop = &server->loop,
                .assets = mfl_dashboard_assets,
                .n_assets = mfl_dashboard_n_assets,
                .knows = knows,
                .render = render,
                .user = server};
        r = mfl_http_open(&options, &server->http, err);
        if (r)
                return r;
        mfl_log(MFL_LOG_INFO, "metrics and dashboard on http://%s/", mfl_http_address(server->http));
        if (!mfl_http_is_loopback(server->http))
                mfl_log(MFL_LOG_WARN, "http: whoever reaches %s sees jobs and daemons, as ordered",
                        mfl_http_address(server->http));
        return 0;
}

void mfl_pages_ready(struct mfl_server *server)
{
        server->ready = true;
        mfl_pages_beat(server);
}

void mfl_pages_beat(struct mfl_server *server)
{
        char unwell[MFL_REASON_BYTES + 32], full[64];
        if (!server->http)
                return;
        const char *disk = mfl_observe_disk_failing(server, mfl_server_now(server)), *unready = NULL;
        mfl_snprintf(unwell, sizeof unwell, "the disk fails: %s", disk ? disk : "");
        mfl_snprintf(full, sizeof full, "connections_max (%u) is reached", server->config.connections_max);
        if (!server->ready)
                unready = "starting";
        else if (server->n_sessions >= server->config.connections_max)
                unready = full;
        mfl_http_beat(server->http, disk ? unwell : NULL, unready);
}

void mfl_pages_close(struct mfl_server *server)
{
        struct mfl_http *http = server->http;
        server->http = NULL;
        mfl_http_close(http);
}
