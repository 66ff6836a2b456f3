/* SPDX-License-Identifier: Apache-2.0 */
/* The server: connections (serve/http), models (serve/engine), and what goes between them. Loop thread only. */
#ifndef MFL_SERVE_SHELL_SERVE_H
#define MFL_SERVE_SHELL_SERVE_H

#include "serve/engine/models.h"
#include "serve/follow/follow.h"
#include "serve/http/http.h"
#include "serve/shell/config.h"
#include "serve/shell/keys.h"
#include "serve/shell/metrics.h"

struct mfl_serve {
        struct mfl_serve_config *config;
        uv_loop_t loop;
        struct mfl_http http;
        struct mfl_models models;
        struct mfl_keys keys;
        struct mfl_latency latency[MFL_MODELS_MAX];
        struct mfl_follow follows[MFL_MODELS_MAX]; /* of models that follow a job; otherwise zeros */
        char followed[MFL_MODELS_MAX][1200];       /* the files that they write */
        uint64_t bodies_left;
        char address[300];
        /* Private. */
        uv_check_t check;
        uv_prepare_t prepare;
        uv_timer_t due, stop, status, watchdog, expiry;
        uv_signal_t sigterm, sigint, sighup;
        uv_pipe_t input;
        uint64_t watchdog_ms;
        uint32_t n_handles;
        int cache_fd; /* the lock on cache_dir; -1: none */
        int result;
        struct mfl_error err;
        bool stopping, has_input;
        char status_text[200];
};

/* The configuration must stay. MFL_INVALID: it is wrong. On failure too, mfl_serve_close releases what there is. */
int mfl_serve_open(struct mfl_serve *serve, struct mfl_serve_config *config, struct mfl_error *err);
/* Until it is told to stop: 0, or why it can't go on. */
int mfl_serve_run(struct mfl_serve *serve, struct mfl_error *err);
void mfl_serve_close(struct mfl_serve *serve);
/* Answers what it has taken, and stops. */
void mfl_serve_stop(struct mfl_serve *serve);
/* Certificates and keys, again. Failures change nothing. */
int mfl_serve_read_secrets(struct mfl_serve *serve, struct mfl_error *err);

/* answer.c: what each path does. */
void mfl_serve_on_request(
        void *user, struct mfl_http_exchange *exchange, const struct mfl_http_request *request);
void mfl_serve_on_error(void *user, struct mfl_reply *reply, const char *error);
/* serve_service.c: signals and the service manager. */
void mfl_serve_service_open(struct mfl_serve *serve);
/* There is another certificate, or the first one: its end will be told. */
void mfl_serve_watch_certificate(struct mfl_serve *serve);
void mfl_serve_service_close(struct mfl_serve *serve);

#endif
