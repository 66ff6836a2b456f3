/* SPDX-License-Identifier: Apache-2.0 */
/* The server's loop: after each turn of events batches begin and answers go out. */
#include "serve/shell/serve.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/systemd.h"
#include "proto/tls/tls_web.h"
#include "serve/follow/origin.h"

#define STOP_MS 5000 /* for answers that are owed */

/* ---- turns ---- */

static void fail(struct mfl_serve *serve, int r, const struct mfl_error *err)
{
        if (!serve->result) {
                serve->result = r;
                serve->err = *err;
        }
        uv_stop(&serve->loop);
}

static void turn(struct mfl_serve *serve);

static void on_due(uv_timer_t *timer)
{
        /* on_prepare follows. */
}

static void turn(struct mfl_serve *serve)
{
        struct mfl_error err = {{0}};
        const uint64_t now_us = mfl_now_ns() / 1000;
        uint64_t due_us;
        const int r = mfl_models_pump(&serve->models, now_us, &due_us, &err);
        if (r) {
                fail(serve, r, &err);
                return;
        }
        mfl_http_flush(&serve->http);
        if (due_us == UINT64_MAX)
                uv_timer_stop(&serve->due);
        else
                uv_timer_start(&serve->due, on_due, due_us > now_us ? (due_us - now_us + 999) / 1000 : 0, 0);
        if (serve->stopping && !serve->http.n_conns)
                uv_stop(&serve->loop);
}

static void on_check(uv_check_t *check)
{
        turn(check->data);
}

static void on_prepare(uv_prepare_t *prepare)
{
        turn(prepare->data);
}

/* ---- opening ---- */

static int new_tls(
        const struct mfl_serve_config *config, struct mfl_tls_context **ret_tls, struct mfl_error *err)
{
        const struct mfl_tls_files files = {
                .ca = config->tls_ca, .cert = config->tls_cert, .key = config->tls_key};
        *ret_tls = NULL;
        return *config->tls_cert ? mfl_tls_context_new_web(&files, ret_tls, err) : 0;
}

int mfl_serve_read_secrets(struct mfl_serve *serve, struct mfl_error *err)
{
        struct mfl_tls_context *tls;
        int r = new_tls(serve->config, &tls, err);
        if (!r && *serve->config->api_keys)
                r = mfl_keys_read(&serve->keys, serve->config->api_keys, err);
        if (r)
                mfl_tls_context_unref(tls); /* all or nothing */
        else if (tls)
                mfl_http_set_tls(&serve->http, tls);
        return r;
}

static int open_http(struct mfl_serve *serve, struct mfl_error *err)
{
        const struct mfl_serve_config *c = serve->config;
        struct mfl_tls_context *tls;
        int r = *c->api_keys ? mfl_keys_read(&serve->keys, c->api_keys, err) : 0;
        if (!r)
                r = new_tls(c, &tls, err);
        if (r)
                return r;
        serve->bodies_left = c->bodies_bytes_max;
        const struct mfl_http_config http = {.limits = {.head_bytes_max = (uint32_t)c->head_bytes_max,
                                                     .body_bytes_max = c->body_bytes_max,
                                                     .budget = &serve->bodies_left},
                .connections_max = c->connections_max,
                .pipeline_max = c->pipeline_max,
                .idle_ms = c->idle_ms,
                .request_ms = c->request_ms,
                .tls = tls,
                .on_request = mfl_serve_on_request,
                .on_error = mfl_serve_on_error,
                .error_type = "application/json",
                .user = serve};
        return mfl_http_open(&serve->http, &serve->loop, &http, err);
}

/* The file of what is followed. Its name has all that says what that is, so that a round of one job is never taken for another's. Which server
 * it came from is noted beside it (serve/follow/origin.h). */
static int name_followed(
        struct mfl_serve *serve, const struct mfl_serve_model *model, char path[1200], struct mfl_error *err)
{
        const struct mfl_serve_config *c = serve->config;
        char text[sizeof model->job + sizeof model->model + 16], hex[MFL_SHA256_HEX_BYTES];
        uint8_t digest[MFL_SHA256_BYTES];
        const int n = snprintf(text, sizeof text, "%s\n%s\n%d", model->job, model->model, model->round);
        const int r = mfl_sha256(text, (size_t)n, digest, err);
        if (r)
                return r;
        mfl_hex(digest, sizeof digest, hex);
        snprintf(path, 1200, "%s/%s/" MFL_VERSION_FOLLOWED "-%.16s.safetensors", c->cache_dir, model->name,
                hex);
        return 0;
}

/* Two processes would take away each other's files. The lock ends with the process. */
static int lock_cache(struct mfl_serve *serve, struct mfl_error *err)
{
        const char *dir = serve->config->cache_dir;
        struct mfl_error why;
        if (!*dir)
                return 0;
        if (access(dir, F_OK) && mfl_fs_mkdirs(dir, 0700, &why))
                return mfl_fail(err, MFL_INVALID, "cache_dir: %s", why.text);
        serve->cache_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (serve->cache_fd < 0)
                return mfl_fail(err, MFL_INVALID, "cache_dir: %s: %s", dir, strerror(errno));
        const int fault = mfl_fs_fault("lock-cache", dir);
        const int why_not = fault ? -fault : flock(serve->cache_fd, LOCK_EX | LOCK_NB) ? errno : 0;
        if (!why_not)
                return 0;
        if (why_not == EWOULDBLOCK)
                return mfl_fail(err, MFL_INVALID,
                        "cache_dir: another mfl-serve uses %s; give each one a directory of its own", dir);
        mfl_log(MFL_LOG_WARN,
                "cache_dir: %s can't be locked (%s), as on some network file systems: let no other mfl-serve "
                "use it",
                dir, strerror(why_not));
        return 0;
}

/* A file of the cache that is not what came is no version: it comes again, and meanwhile the copy is served. */
static void check_followed(const char *name, const char *path)
{
        struct mfl_error why;
        const int r = mfl_origin_check(path, &why);
        if (r)
                mfl_log(MFL_LOG_ERROR, "%s: %s%s", name, why.text,
                        r == MFL_INVALID ? "; it is removed, and asked for again" : "");
        if (r == MFL_INVALID && unlink(path))
                mfl_log(MFL_LOG_WARN, "remove %s: %s", path, strerror(errno));
}

static int open_models(struct mfl_serve *serve, struct mfl_error *err)
{
        const struct mfl_serve_config *c = serve->config;
        const struct mfl_models_config config = {.cache_dir = c->cache_dir,
                .backend = c->backend,
                .bf16 = c->precision != 0,
                .batch = {.rows_max = c->batch, .delay_us = c->delay_ms * 1000, .queue_max = c->queue},
                .canary = {.share = c->canary_share,
                        .mirror = c->mirror_share,
                        .for_us = c->canary_ms * 1000,
                        .failures_max = c->canary_failures,
                        .slower_max = c->canary_slower},
                .threads = c->threads,
                .instances = c->instances,
                .poll_ms = c->poll_ms};
        int r = mfl_models_open(&serve->models, &serve->loop, &config, err);
        for (uint32_t i = 0; !r && i < c->models.n; i++) {
                const struct mfl_serve_model *model = &c->models.v[i];
                const bool follows = !*model->file;
                if (follows)
                        r = name_followed(serve, model, serve->followed[i], err);
                if (!r && follows)
                        check_followed(model->name, serve->followed[i]);
                if (!r)
                        r = mfl_models_add(&serve->models, model->name,
                                follows ? serve->followed[i] : model->file, follows, err);
        }
        return r;
}

static void on_new_round(void *user)
{
        mfl_model_load(user);
}

static void on_denied(void *user)
{
        mfl_model_withdraw(user);
}

static void describe(void *user, Mfl__Serving *serving)
{
        struct mfl_model *model = user;
        struct mfl_serve *serve = MFL_CONTAINER_OF(model->all, struct mfl_serve, models);
        const struct mfl_kserve_model *served = model->current ? &model->current->version->model : NULL;
        struct mfl_latency *latency = &serve->latency[model - serve->models.v];
        struct mfl_lane_counts counts;
        mfl_model_counts(model, &counts);
        serving->requests = counts.requests;
        serving->failed = counts.failed;
        serving->host = serve->address;
        if (served) {
                serving->job = (char *)(uintptr_t)served->job;
                serving->round = (uint32_t)MFL_MAX(served->round, 0);
                serving->version = (char *)(uintptr_t)served->version;
        }
        mfl_latency_take(latency, &serving->p50_us, &serving->p99_us);
}

static void start_following(struct mfl_serve *serve)
{
        const struct mfl_serve_config *c = serve->config;
        for (uint32_t i = 0; i < c->models.n; i++) {
                const struct mfl_serve_model *model = &c->models.v[i];
                const struct mfl_follow_config follow = {.name = model->name,
                        .server = c->server,
                        .job = model->job,
                        .model = model->model,
                        .best = model->round == 1,
                        .tls = {.ca = c->server_ca, .cert = c->server_cert, .key = c->server_key},
                        .path = serve->followed[i],
                        .on_new = on_new_round,
                        .on_denied = on_denied,
                        .describe = describe,
                        .user = &serve->models.v[i]};
                if (!*model->file)
                        mfl_follow_start(&serve->follows[i], &serve->loop, &serve->models.loader, &follow);
        }
}

static int listen_on_all(struct mfl_serve *serve, struct mfl_error *err)
{
        const struct mfl_serve_config *c = serve->config;
        const bool safe = *c->tls_cert && (*c->api_keys || *c->tls_ca);
        int fds[MFL_HTTP_LISTENERS_MAX];
        uint32_t n = 0;
        int r = mfl_systemd_listeners(fds, MFL_HTTP_LISTENERS_MAX, &n, err);
        const bool loopback = !safe && !c->insecure_listen;
        for (uint32_t i = 0; !r && i < n; i++)
                r = mfl_http_listen_on(
                        &serve->http, fds[i], loopback, serve->address, sizeof serve->address, err);
        if (!r && !n)
                r = mfl_http_listen(
                        &serve->http, c->listen, loopback, serve->address, sizeof serve->address, err);
        if (r == MFL_HTTP_ABROAD)
                return mfl_fail(err, MFL_INVALID,
                        "listen: %s is not a loopback address, and anyone who can reach it could use the "
                        "models; set tls_cert, tls_key and api_keys, "
                        "or insecure_listen (--insecure-listen) behind a proxy that has both",
                        c->listen);
        if (!r && !safe && c->insecure_listen)
                mfl_log(MFL_LOG_WARN, "listening on %s without TLS or without keys (insecure_listen)",
                        serve->address);
        return r;
}

int mfl_serve_open(struct mfl_serve *serve, struct mfl_serve_config *config, struct mfl_error *err)
{
        *serve = (struct mfl_serve){.config = config, .cache_fd = -1};
        int r = uv_loop_init(&serve->loop);
        if (r)
                return mfl_fail(err, -1, "event loop: %s", uv_strerror(r));
        uv_check_init(&serve->loop, &serve->check);
        uv_prepare_init(&serve->loop, &serve->prepare);
        uv_timer_init(&serve->loop, &serve->due);
        uv_timer_init(&serve->loop, &serve->stop);
        serve->check.data = serve->prepare.data = serve->due.data = serve->stop.data = serve;
        r = lock_cache(serve, err);
        if (!r)
                r = open_models(serve, err);
        if (!r)
                r = open_http(serve, err);
        if (!r)
                r = listen_on_all(serve, err);
        if (r)
                return r;
        uv_check_start(&serve->check, on_check);
        uv_prepare_start(&serve->prepare, on_prepare);
        mfl_serve_service_open(serve);
        mfl_models_start(&serve->models);
        start_following(serve);
        return 0;
}

/* ---- running and ending ---- */

int mfl_serve_run(struct mfl_serve *serve, struct mfl_error *err)
{
        uv_run(&serve->loop, UV_RUN_DEFAULT);
        if (serve->result)
                *err = serve->err;
        return serve->result;
}

static void on_stop(uv_timer_t *timer)
{
        struct mfl_serve *serve = timer->data;
        uv_stop(&serve->loop);
}

void mfl_serve_stop(struct mfl_serve *serve)
{
        if (serve->stopping)
                return;
        serve->stopping = true;
        mfl_systemd_notify("STOPPING=1");
        mfl_models_hurry(&serve->models);
        mfl_http_stop_listening(&serve->http);
        uv_timer_start(&serve->stop, on_stop, STOP_MS, 0);
}

void mfl_serve_close(struct mfl_serve *serve)
{
        serve->stopping = true;
        for (uint32_t i = 0; i < MFL_MODELS_MAX; i++)
                mfl_follow_close(&serve->follows[i]);
        mfl_models_close(&serve->models);
        if (serve->http.loop)
                mfl_http_flush(&serve->http);
        mfl_http_close(&serve->http);
        mfl_serve_service_close(serve);
        uv_close((uv_handle_t *)&serve->check, NULL);
        uv_close((uv_handle_t *)&serve->prepare, NULL);
        uv_close((uv_handle_t *)&serve->due, NULL);
        uv_close((uv_handle_t *)&serve->stop, NULL);
        uv_run(&serve->loop, UV_RUN_DEFAULT);
        mfl_assert(!uv_loop_close(&serve->loop));
        mfl_http_deinit(&serve->http);
        mfl_keys_deinit(&serve->keys);
        if (serve->cache_fd >= 0)
                close(serve->cache_fd);
}
