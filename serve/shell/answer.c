/* SPDX-License-Identifier: Apache-2.0 */
/* What each path does: from a request to an answer, at once or after its rows were computed. */
#include <stdio.h>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "serve/shell/page.h"
#include "serve/shell/serve.h"

#define JSON "application/json"
#define RETRY_AFTER_MAX_S 60

/* A request for inference that is under way. */
struct asked {
        struct mfl_query query;
        struct mfl_kserve_request request;
        struct mfl_serve *serve;
        struct mfl_http_exchange *exchange;
        uint32_t model; /* its place */
        bool mirror;    /* a version on trial computes it, too */
};

/* The same question to a version on trial. */
struct mirrored {
        struct mfl_query query;
        struct mfl_model *model;
        void *x;
        float *before; /* what was answered */
};

/* ---- short answers ---- */

static void refuse(
        struct mfl_serve *serve, struct mfl_http_exchange *x, int status, const char *more, const char *text)
{
        mfl_kserve_error(&x->reply, text);
        mfl_http_answer(&serve->http, x, status, JSON, more);
}

static void answer_empty(struct mfl_serve *serve, struct mfl_http_exchange *x, int status)
{
        mfl_http_answer(&serve->http, x, status, NULL, NULL);
}

static void refuse_for_now(
        struct mfl_serve *serve, struct mfl_http_exchange *x, int status, uint64_t seconds, const char *text)
{
        char more[48];
        snprintf(more, sizeof more, "Retry-After: %llu\r\n",
                (unsigned long long)MFL_MAX(MFL_MIN(seconds, RETRY_AFTER_MAX_S), 1u));
        refuse(serve, x, status, more, text);
}

void mfl_serve_on_error(void *user, struct mfl_reply *reply, const char *error)
{
        mfl_kserve_error(reply, error);
}

/* ---- inference ---- */

static void free_asked(struct asked *a)
{
        free(a->request.x);
        free(a->query.y);
        free(a);
}

/* ---- the version on trial ---- */

static void free_mirrored(struct mirrored *m)
{
        free(m->x);
        free(m->before);
        free(m->query.y);
        free(m);
}

static void on_mirrored(struct mfl_query *query, enum mfl_query_end end)
{
        struct mirrored *m = MFL_CONTAINER_OF(query, struct mirrored, query);
        const struct mfl_kserve_model *model = &query->lane->version->model;
        const bool numbers = !strcmp(model->output, "values");
        if (end == MFL_QUERY_ANSWERED) {
                mfl_mirrored_add(&m->model->mirrored, m->before, query->y, query->item.rows, model->outputs,
                        numbers ? 0 : model->positions);
                mfl_model_note_answer(m->model, query->lane,
                        !mfl_kserve_finite(query->y, (size_t)query->item.rows * model->outputs));
        } else if (end == MFL_QUERY_FAILED && !m->model->all->closing) {
                mfl_model_note_answer(m->model, query->lane, true);
        }
        free_mirrored(m);
}

static bool takes_the_same(const struct mfl_kserve_model *a, const struct mfl_kserve_model *b)
{
        return a->type == b->type && a->elements == b->elements && a->vocabulary == b->vocabulary &&
               a->outputs == b->outputs && a->positions == b->positions;
}

/* The question was answered: its tensors go on to the version on trial. What takes other questions has failed with this one. */
static void mirror(struct asked *a, struct mfl_model *model)
{
        struct mfl_lane *lane = model->candidate;
        if (!lane || lane == a->query.lane)
                return;
        if (!takes_the_same(&lane->version->model, &a->query.lane->version->model)) {
                mfl_model_note_answer(model, lane, true);
                return;
        }
        /* At most a batch of copies waits: they keep nobody from an answer, neither now nor when the version takes over. */
        const struct mfl_batcher *b = &lane->batcher;
        if (b->n_rows && b->n_rows + a->request.rows > b->config.rows_max) {
                model->mirrored.dropped++;
                return;
        }
        struct mirrored *m = mfl_calloc(1, sizeof *m);
        float *y = m ? mfl_malloc((size_t)a->request.rows * lane->version->model.outputs * sizeof *y) : NULL;
        if (!y) {
                model->mirrored.dropped++;
                free(m);
                return;
        }
        *m = (struct mirrored){.model = model, .x = a->request.x, .before = a->query.y};
        m->query = (struct mfl_query){
                .item.rows = a->request.rows, .x = m->x, .y = y, .silent = true, .ended = on_mirrored};
        a->request.x = NULL;
        a->query.y = NULL;
        if (mfl_lane_offer(lane, &m->query, mfl_now_ns() / 1000)) {
                model->mirrored.dropped++;
                free_mirrored(m);
        }
}

/* ---- answers ---- */

/* False: the answer is not finite. */
static bool answer_numbers(struct asked *a)
{
        struct mfl_serve *serve = a->serve;
        struct mfl_http_exchange *x = a->exchange;
        struct mfl_error err;
        size_t json_bytes = 0;
        char more[64];
        if (!mfl_kserve_answer(
                    &a->query.lane->version->model, &a->request, a->query.y, &x->reply, &json_bytes, &err)) {
                a->query.lane->counts.failed++;
                refuse(serve, x, 500, NULL, err.text);
                return false;
        }
        snprintf(more, sizeof more, "Inference-Header-Content-Length: %zu\r\n", json_bytes);
        mfl_http_answer(&serve->http, x, 200, json_bytes ? "application/octet-stream" : JSON,
                json_bytes ? more : NULL);
        return true;
}

static void on_ended(struct mfl_query *query, enum mfl_query_end end)
{
        struct asked *a = MFL_CONTAINER_OF(query, struct asked, query);
        struct mfl_model *model = &a->serve->models.v[a->model];
        const uint64_t now_us = mfl_now_ns() / 1000;
        mfl_latency_add(&a->serve->latency[a->model], now_us - MFL_MIN(a->exchange->began_us, now_us));
        if (end == MFL_QUERY_ANSWERED) {
                const bool fine = answer_numbers(a);
                mfl_model_note_answer(model, query->lane, !fine);
                if (fine && a->mirror)
                        mirror(a, model);
        } else if (end == MFL_QUERY_EXPIRED)
                refuse(a->serve, a->exchange, 504, NULL, "the request's deadline came before its turn");
        else if (a->serve->stopping)
                refuse_for_now(a->serve, a->exchange, 503, 1, "the server is stopping");
        else {
                mfl_model_note_answer(model, query->lane, true);
                refuse(a->serve, a->exchange, 500, NULL,
                        "the model could not compute this; the server's log says why");
        }
        free_asked(a);
}

static void queue(struct asked *a, struct mfl_lane *lane)
{
        struct mfl_serve *serve = a->serve;
        const uint64_t now_us = mfl_now_ns() / 1000, limit_us = serve->config->deadline_ms * 1000;
        const uint64_t wait_us = a->request.timeout_us ? MFL_MIN(a->request.timeout_us, limit_us) : limit_us;
        a->query.x = a->request.x;
        a->query.y = mfl_malloc((size_t)a->request.rows * lane->version->model.outputs * sizeof(float));
        a->query.item.rows = a->request.rows;
        a->query.item.deadline_us = now_us + wait_us;
        a->query.ended = on_ended;
        if (!a->query.y) {
                refuse_for_now(serve, a->exchange, 503, 1, "out of memory for the answer; try again");
                free_asked(a);
        } else if (mfl_lane_offer(lane, &a->query, now_us)) {
                char text[300];
                snprintf(text, sizeof text, "%u rows wait, at most %u may; try again later",
                        (unsigned)lane->batcher.n_rows, lane->batcher.config.queue_max);
                refuse_for_now(serve, a->exchange, 429, mfl_lane_drain_us(lane) / 1000000 + 1, text);
                free_asked(a);
        }
}

typedef struct mfl_lane *by_key(
        const struct mfl_model *model, const struct mfl_lane *lane, const void *key, size_t bytes);

/* Without a key the body decides: equal questions have one answer. */
static struct mfl_lane *with_key(const struct mfl_model *model, const struct mfl_http_request *request,
        const struct mfl_lane *lane, by_key *function)
{
        const uint32_t crc = *request->key ? 0 : mfl_crc32c(0, request->body, request->body_bytes);
        return *request->key ? function(model, lane, request->key, strlen(request->key))
                             : function(model, lane, &crc, sizeof crc);
}

static void infer(struct mfl_serve *serve, struct mfl_http_exchange *x,
        const struct mfl_http_request *request, struct mfl_model *model, struct mfl_lane *lane)
{
        struct mfl_error err = {{0}};
        const bool mirrored = model->candidate && with_key(model, request, lane, mfl_model_mirror);
        struct asked *a = mfl_calloc(1, sizeof *a);
        const size_t json_bytes = request->has_json_bytes ? request->json_bytes : request->body_bytes;
        int r = a ? mfl_kserve_parse(&lane->version->model, serve->config->rows_max, request->body,
                            request->body_bytes, json_bytes, &a->request, &err)
                  : mfl_fail_memory(&err, sizeof *a, "a request");
        if (!r && (r = mfl_version_check(lane->version, a->request.rows, a->request.x, &err)))
                free(a->request.x);
        if (r) {
                free(a);
                if (r < 0)
                        refuse_for_now(serve, x, 503, 1, err.text);
                else
                        refuse(serve, x, 400, NULL, err.text);
                return;
        }
        a->serve = serve;
        a->exchange = x;
        a->model = (uint32_t)(model - serve->models.v);
        a->mirror = mirrored;
        queue(a, lane);
}

/* ---- models ---- */

static void describe(struct mfl_serve *serve, struct mfl_http_exchange *x, const struct mfl_model *model,
        const struct mfl_lane *lane)
{
        const char *versions[3];
        uint32_t n = 0;
        if (model->current)
                versions[n++] = model->current->version->model.version;
        if (model->previous)
                versions[n++] = model->previous->version->model.version;
        if (model->candidate)
                versions[n++] = model->candidate->version->model.version;
        mfl_kserve_describe(&lane->version->model, versions, n, &x->reply);
        mfl_http_answer(&serve->http, x, 200, JSON, NULL);
}

static void roll_back(struct mfl_serve *serve, struct mfl_http_exchange *x, struct mfl_model *model)
{
        struct mfl_error err = {{0}};
        const int r = mfl_model_rollback(model, &err);
        if (r == MFL_BUSY)
                refuse_for_now(serve, x, 503, 1, err.text);
        else if (r)
                refuse(serve, x, 404, NULL, err.text);
        else
                describe(serve, x, model, model->current);
}

static struct mfl_lane *choose_lane(
        const struct mfl_model *model, const struct mfl_lane *lane, const void *key, size_t bytes)
{
        return mfl_model_choose(model, key, bytes);
}

static struct mfl_lane *choose(const struct mfl_model *model, const struct mfl_http_request *request,
        const struct mfl_kserve_path *path)
{
        if (*path->version || path->what != MFL_KSERVE_INFER || !model->candidate)
                return mfl_model_lane(model, path->version);
        return with_key(model, request, NULL, choose_lane);
}

static void answer_model(struct mfl_serve *serve, struct mfl_http_exchange *x,
        const struct mfl_http_request *request, const struct mfl_kserve_path *path)
{
        struct mfl_model *model = mfl_models_find(&serve->models, path->model);
        struct mfl_lane *lane = model ? choose(model, request, path) : NULL;
        char text[300];
        if (!model) {
                snprintf(text, sizeof text, "no model '%s' is served here", path->model);
                refuse(serve, x, 404, NULL, text);
        } else if (!model->current) {
                snprintf(text, sizeof text, "%s: no version has been loaded yet", model->name);
                refuse_for_now(serve, x, 503, 1, text);
        } else if (!lane) {
                snprintf(text, sizeof text, "%s: version '%s' is not served; %s is", model->name,
                        path->version, model->current->version->model.version);
                refuse(serve, x, 404, NULL, text);
        } else if (path->what == MFL_KSERVE_INFER) {
                infer(serve, x, request, model, lane);
        } else if (path->what == MFL_KSERVE_MODEL) {
                describe(serve, x, model, lane);
        } else if (path->what == MFL_KSERVE_CONFIG) {
                mfl_kserve_config(&lane->version->model, serve->config->rows_max, &x->reply);
                mfl_http_answer(&serve->http, x, 200, JSON, NULL);
        } else if (path->what == MFL_KSERVE_ROLLBACK) {
                roll_back(serve, x, model);
        } else {
                answer_empty(serve, x, 200);
        }
}

static void answer_index(
        struct mfl_serve *serve, struct mfl_http_exchange *x, const struct mfl_http_request *request)
{
        struct mfl_error err = {{0}};
        bool ready;
        uint32_t n = 0;
        if (mfl_kserve_parse_index(request->body, request->body_bytes, &ready, &err)) {
                refuse(serve, x, 400, NULL, err.text);
                return;
        }
        mfl_reply_put(&x->reply, "[");
        for (uint32_t i = 0; i < serve->models.n; i++) {
                const struct mfl_model *model = &serve->models.v[i];
                if (ready && !model->current)
                        continue;
                mfl_reply_format(&x->reply,
                        "%s{\"name\":\"%s\",\"version\":\"%s\",\"state\":\"%s\",\"reason\":", n++ ? "," : "",
                        model->name, model->current ? model->current->version->model.version : "",
                        model->current ? "READY" : "UNAVAILABLE");
                mfl_reply_string(&x->reply, model->error);
                mfl_reply_put(&x->reply, "}");
        }
        mfl_reply_put(&x->reply, "]");
        mfl_http_answer(&serve->http, x, 200, JSON, NULL);
}

/* ---- who may, and what ---- */

static bool is_post(enum mfl_kserve_what what)
{
        return what == MFL_KSERVE_INFER || what == MFL_KSERVE_ROLLBACK || what == MFL_KSERVE_INDEX;
}

/* Answers and returns false if the caller may not. */
static bool may(struct mfl_serve *serve, struct mfl_http_exchange *x, const struct mfl_http_request *request,
        enum mfl_kserve_what what)
{
        if (what == MFL_KSERVE_ROLLBACK && !serve->keys.n && request->from_page) {
                refuse(serve, x, 403, NULL,
                        "without api_keys no page in a browser may roll back: any page could");
                return false;
        }
        if (!serve->keys.n || what == MFL_KSERVE_LIVE || what == MFL_KSERVE_READY ||
                (what == MFL_KSERVE_PAGE && serve->config->page))
                return true;
        const struct mfl_key *key = *request->bearer ? mfl_keys_find(&serve->keys, request->bearer) : NULL;
        if (!key) {
                refuse(serve, x, 401, "WWW-Authenticate: Bearer\r\n",
                        *request->bearer ? "the key is none of ours" : "send Authorization: Bearer KEY");
                return false;
        }
        if (what == MFL_KSERVE_ROLLBACK && !key->admin) {
                refuse(serve, x, 403, NULL, "this key may not roll back: its line in api_keys lacks 'admin'");
                return false;
        }
        return true;
}

void mfl_serve_on_request(void *user, struct mfl_http_exchange *x, const struct mfl_http_request *request)
{
        struct mfl_serve *serve = user;
        struct mfl_kserve_path path;
        mfl_kserve_path(request->path, &path);
        if (!may(serve, x, request, path.what))
                return;
        if (path.what == MFL_KSERVE_NOWHERE || (path.what == MFL_KSERVE_PAGE && !serve->config->page)) {
                refuse(serve, x, 404, NULL, "no such path; see GET /v2");
                return;
        }
        if (is_post(path.what) ? request->method != MFL_HTTP_POST
                               : request->method != MFL_HTTP_GET && request->method != MFL_HTTP_HEAD) {
                refuse(serve, x, 405, is_post(path.what) ? "Allow: POST\r\n" : "Allow: GET, HEAD\r\n",
                        "this path does not take that method");
                return;
        }
        if (request->encoded) {
                refuse(serve, x, 415, NULL,
                        "compressed bodies are not supported; send it without Content-Encoding");
                return;
        }
        switch (path.what) {
        case MFL_KSERVE_SERVER:
                mfl_reply_put(&x->reply, "{\"name\":\"mfl-serve\",\"version\":\"" MFL_VERSION
                                         "\",\"extensions\":[\"binary_tensor_data\",\"classification\","
                                         "\"model_configuration\"]}");
                mfl_http_answer(&serve->http, x, 200, JSON, NULL);
                return;
        case MFL_KSERVE_LIVE:
                answer_empty(serve, x, 200);
                return;
        case MFL_KSERVE_READY:
                if (mfl_models_ready(&serve->models) && !serve->stopping)
                        answer_empty(serve, x, 200);
                else
                        refuse_for_now(serve, x, 503, 1,
                                serve->stopping ? "the server is stopping" : "models are being loaded");
                return;
        case MFL_KSERVE_INDEX:
                answer_index(serve, x, request);
                return;
        case MFL_KSERVE_PAGE:
                mfl_reply_put(&x->reply, mfl_serve_page);
                mfl_http_answer(&serve->http, x, 200, "text/html; charset=utf-8", MFL_SERVE_PAGE_HEAD);
                return;
        case MFL_KSERVE_METRICS:
                mfl_metrics_write(&serve->http, &serve->models, serve->latency, serve->follows, &x->reply);
                mfl_http_answer(&serve->http, x, 200, MFL_METRICS_TYPE, NULL);
                return;
        default:
                answer_model(serve, x, request, &path);
        }
}
