/* SPDX-License-Identifier: Apache-2.0 */
/* A server that says what a test tells it to, and `mfl` run against it as a process. */
#ifndef MFL_TESTS_CLI_FAKE_H
#define MFL_TESTS_CLI_FAKE_H

#include <jansson.h>

#include "proto/stream.h"
#include "tests/lib/test.h"

struct fake_conn;

struct fake {
        uv_loop_t loop;
        uv_tcp_t listener;
        char address[64];
        /* Called for each request after Hello was answered; answers with fake_send and the like. */
        void (*on_request)(struct fake *fake, struct fake_conn *conn, const Mfl__Envelope *request);
        bool bye_at_hello; /* the greeting is refused */
        uint32_t dead_ms;  /* as Welcome tells; the fake answers no Ping */
        int requests, connections, pings;
        void *arg;
        float *received; /* Initial frames */
        uint64_t n_received;
        struct fake_conn *conns;
};

void fake_open(struct fake *fake);
void fake_close(struct fake *fake);
/* Answers: the body is the caller's; request numbers are copied from the request. */
void fake_send(
        struct fake_conn *conn, const Mfl__Envelope *request, Mfl__Envelope__BodyCase body, void *message);
void fake_send_payload(struct fake_conn *conn, const Mfl__Envelope *request, Mfl__Envelope__BodyCase body,
        void *message, const void *payload, size_t bytes);
void fake_fail(struct fake_conn *conn, const Mfl__Envelope *request, Mfl__FailureCode code, const char *text);
/* Cuts the connection without a word, when what was sent before is out. */
void fake_cut(struct fake_conn *conn);
/* No connection is taken any more. */
void fake_stop_listening(struct fake *fake);

struct fake_result {
        int status; /* exit code, or -signal */
        char out[65536], err[16384];
};
/* Runs `mfl` with these words (split at blanks; no quoting) and MFL_SERVER set to the fake. */
const struct fake_result *fake_run(struct fake *fake, const char *words, ...) MFL_PRINTF(2, 3);
/* The last line of out as JSON; fails the test when it is none. */
json_t *fake_json(const struct fake_result *result);
/* Fails the test, with a picture, unless the last line of out is exactly this JSON. */
void fake_assert_json(const struct fake_result *result, const char *expected);
/* A fresh file under a folder of this process; freed at exit. Returns its path. */
const char *fake_path(const char *name);
void fake_write_file(const char *path, const char *text);
bool fake_exists(const char *path);

Mfl__JobInfo fake_job(const char *job, const char *name, Mfl__JobState state);
Mfl__RoundInfo fake_round(uint32_t round, double accuracy);

#endif
