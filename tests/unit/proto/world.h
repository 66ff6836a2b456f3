/* SPDX-License-Identifier: Apache-2.0 */
/* Two streams over a real loopback listener and loop, plain or with TLS, and what was seen at each. */
#ifndef MFL_TESTS_UNIT_PROTO_WORLD_H
#define MFL_TESTS_UNIT_PROTO_WORLD_H

#include "tests/lib/test.h"
#include "proto/stream.h"

/* One end of a connection, and what was seen there. */
struct end {
        struct mfl_stream stream;
        int frames, payloads, closed, connected, connect_status, sent_ok, sent_failed;
        int last; /* body_case */
        uint64_t cookie;
        char bye[512], reason[256], text[512];
        uint8_t *dst;
        size_t dst_bytes, got;
        bool in_api, close_on_frame;
        int frame_answer, payload_answer;
};

struct world {
        uv_loop_t loop;
        uv_tcp_t listener;
        struct end server, client;
        struct mfl_tls_context *tls_server, *tls_client; /* NULL: plain */
        char address[32];
        int port;
};

extern const struct mfl_stream_ops world_ops;
int world_setup(void **state);
int world_teardown(void **state);
/* Runs the loop until *what is at least want; fails after 4 seconds. */
void run_until(struct world *w, const int *what, int want);
void connect_both(struct world *w);
void close_end(struct end *end, const char *bye);
void ping(struct end *end, uint64_t cookie);
int send_chunk(struct end *end, uint64_t offset, const void *data, size_t n, const uint32_t *crc);

#endif
