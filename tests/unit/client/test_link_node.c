/* SPDX-License-Identifier: Apache-2.0 */
/* Two daemons of one node on one loop, with a real share each, against a small server: params come down once
 * and are read by the other, the sum of both goes up once; and each way in which the other one's params don't
 * come ends in exactly one request to the server. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <unistd.h>

#include "client/link/link.h"
#include "common/base/digest.h"
#include "common/job/job.h"
#include "proto/stream.h"

#define JOB "j-000001"
#define TASK ((uint64_t)1 << 32) /* + instance */
#define GROUP ((uint64_t)1 << 32 | 9)
#define N_ITEMS 2u /* of each */
#define N_ROUNDS 6u
#define BUFFERS_MAX 3u /* that a fetcher makes: of two versions, and of the one that is arriving */

static const char job_text[] = "name: t\nrounds: 3\nseed: 11\nmodel: {preset: mlp}\n"
                               "data: {name: toy, partition: iid, clients: 5}\n"
                               "training: {lr: 0.1, epochs: 1, batch: 8}\n";
static const char frozen_text[] = "name: t\nrounds: 3\nseed: 11\nmodel: {preset: mlp, freeze: [fc1, fc2]}\n"
                                  "data: {name: toy, partition: iid, clients: 5}\n"
                                  "training: {lr: 0.1, epochs: 1, batch: 8}\n";

/* How the second daemon comes to its params; the first is to fetch them. */
enum way {
        TOGETHER,      /* from the first */
        NO_ROOM,       /* the first has no room to share them */
        FETCHER_GONE,  /* nobody of that number */
        TOLD_ALONE,    /* the server sends Alone while it waits */
        FETCHER_FIRST, /* the first holds them since long */
        MANY_ROUNDS,   /* from the first, again and again */
        FROZEN,        /* from the first: those that are frozen, then those that move, of which the sum is */
};

struct world;
struct daemon {
        struct world *w;
        uint64_t instance;
        struct mfl_share *share;
        struct mfl_collective *shm;
        struct mfl_budget budget;
        struct mfl_trainer *trainer;
        struct mfl_compute compute;
        struct mfl_link *link;
        int exit_status;
        uint32_t n_read; /* from the other */
        bool not_from_other, grouped;
        /* The server's side. */
        struct mfl_stream stream;
        bool stream_open, task_sent;
        uint32_t n_gets;
        bool announced;
        uint64_t weight;
};

struct world {
        enum way way;
        char dir[64];
        struct mfl_dataset *dataset;
        struct mfl_device *device;
        struct mfl_graph *graph;
        float *params;
        uint8_t digest[MFL_DIGEST_BYTES], frozen_digest[MFL_DIGEST_BYTES];
        uint64_t bytes;
        const char *text; /* the job's */
        uv_loop_t loop;
        uv_timer_t watchdog, later;
        struct mfl_worker hasher;
        uv_tcp_t listener;
        struct daemon daemons[2], *later_get;
        bool later_frozen;
        uint32_t n_connections, n_closed;
        uint8_t *upload;
        uint64_t n_uploaded, upload_task;
        bool combined, handed_on;
        uint32_t n_rounds, n_evals;
};

/* ---- server ---- */

static void send_msg(struct daemon *d, const struct mfl_msg *msg, const char *text)
{
        struct mfl_error err;
        assert_int_equal(
                mfl_stream_send_msg(&d->stream, msg, &(struct mfl_wire_extra){.job_text = text}, &err), 0);
}

static struct mfl_task task_of(struct world *w, uint32_t rank, uint64_t items[N_ITEMS])
{
        struct mfl_error err;
        for (uint32_t i = 0; i < N_ITEMS; i++)
                items[i] = rank * N_ITEMS + i;
        struct mfl_task task = {.task = TASK + rank + 1,
                .job = JOB,
                .round = 1,
                .kind = MFL_TASK_TRAIN,
                .n_items = N_ITEMS,
                .items = items,
                .n_params = w->graph->n,
                .n_frozen = w->graph->n_frozen,
                .fingerprint = 77,
                .params_from = w->way == FETCHER_GONE && rank ? 99 : 1,
                .group = {.group = GROUP,
                        .collective = MFL_COLLECTIVE_SHM,
                        .rank = rank,
                        .n_members = 2,
                        .members = {1, 2},
                        .workers = 2}};
        assert_int_equal(mfl_fixed_choose(16, 128, &task.fixed, &err), 0);
        memcpy(task.params_digest, w->digest, MFL_DIGEST_BYTES);
        if (task.n_frozen)
                memcpy(task.frozen_digest, w->frozen_digest, MFL_DIGEST_BYTES);
        return task;
}

static void send_task(struct daemon *d)
{
        uint64_t items[N_ITEMS];
        struct mfl_msg spec = {.kind = MFL_MSG_JOB_SPEC, .job = JOB};
        struct mfl_msg task = {.kind = MFL_MSG_TASK, .task = task_of(d->w, (uint32_t)d->instance - 1, items)};
        struct mfl_msg alone = {
                .kind = MFL_MSG_ALONE, .cancel = {.task = task.task.task, .reason = "no group"}};
        d->task_sent = true;
        send_msg(d, &spec, d->w->text);
        send_msg(d, &task, NULL);
        if (d->w->way == TOLD_ALONE && d->instance == 2)
                send_msg(d, &alone, NULL);
}

/* An evaluation of other params than those of the round before. */
static void start_round(struct world *w)
{
        struct mfl_error err;
        w->params[0] = (float)++w->n_rounds;
        w->n_evals = 0;
        assert_int_equal(mfl_sha256(w->params, w->graph->n * sizeof(float), w->digest, &err), 0);
        for (uint32_t i = 0; i < 2; i++) {
                uint64_t items[N_ITEMS];
                struct mfl_msg spec = {.kind = MFL_MSG_JOB_SPEC, .job = JOB};
                struct mfl_msg task = {.kind = MFL_MSG_TASK, .task = task_of(w, i, items)};
                task.task.task += 2 * w->n_rounds;
                task.task.round = w->n_rounds;
                task.task.kind = MFL_TASK_EVAL;
                task.task.n_items = 1;
                task.task.items[0] = 0;
                task.task.group = (struct mfl_group){0};
                send_msg(&w->daemons[i], &spec, w->text);
                send_msg(&w->daemons[i], &task, NULL);
        }
}

/* Once both are there; the second alone where the first is not to fetch, and later where the first holds the
 * params already. */
static void greet(struct daemon *d)
{
        struct world *w = d->w;
        struct mfl_msg welcome = {.kind = MFL_MSG_WELCOME,
                .welcome = {.heartbeat_ms = 10000, .dead_ms = 30000, .server_instance = 9}};
        d->stream.envelope_max = MFL_ENVELOPE_MAX;
        d->stream.payload_max = MFL_PAYLOAD_MAX;
        send_msg(d, &welcome, NULL);
        if (++w->n_connections < 2)
                return;
        if (w->way == MANY_ROUNDS) {
                start_round(w);
                return;
        }
        if (w->way != TOLD_ALONE)
                send_task(&w->daemons[0]);
        if (w->way != FETCHER_FIRST)
                send_task(&w->daemons[1]);
}

static void send_params(struct daemon *d, bool frozen)
{
        struct world *w = d->w;
        struct mfl_error err;
        uint64_t first = frozen ? 0 : w->graph->n_frozen,
                 n = frozen ? w->graph->n_frozen : w->graph->n_moving;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        Mfl__Params params = MFL__PARAMS__INIT;
        params.job = (char *)JOB;
        params.digest.data = frozen ? w->frozen_digest : w->digest;
        params.digest.len = MFL_DIGEST_BYTES;
        params.total = n;
        envelope.body_case = MFL__ENVELOPE__BODY_PARAMS;
        envelope.params = &params;
        assert_int_equal(mfl_stream_send(&d->stream, &envelope, w->params + first, n * sizeof(float), NULL,
                                 NULL, NULL, &err),
                0);
}

static void on_later(uv_timer_t *timer)
{
        struct world *w = timer->data;
        send_params(w->later_get, w->later_frozen);
}

static void answer_get(struct daemon *d, uint64_t offset, const uint8_t *digest)
{
        struct world *w = d->w;
        bool frozen = w->graph->n_frozen && !memcmp(digest, w->frozen_digest, MFL_DIGEST_BYTES);
        assert_int_equal(offset, 0);
        assert_true(frozen || !memcmp(digest, w->digest, MFL_DIGEST_BYTES));
        assert_int_equal(
                d->n_gets++, w->way == MANY_ROUNDS ? w->n_rounds - 1 : w->graph->n_frozen && !frozen);
        /* The other one is to wait in earnest. */
        if ((w->way == TOGETHER || w->way == FROZEN) && d->instance == 1) {
                w->later_get = d;
                w->later_frozen = frozen;
                uv_timer_start(&w->later, on_later, 40, 0);
        } else {
                send_params(d, frozen);
        }
}

static void stop_all(struct world *w)
{
        for (int i = 0; i < 2; i++)
                mfl_link_stop(w->daemons[i].link);
}

static void combine(struct world *w)
{
        struct mfl_range range = {0, w->bytes};
        struct mfl_msg order = {
                .kind = MFL_MSG_COMBINE, .combine = {.group = GROUP, .ranks = 3, .deadline_ms = 10000}};
        struct mfl_msg grant = {
                .kind = MFL_MSG_GRANT, .update = {.task = GROUP, .n_ranges = 1, .ranges = &range}};
        send_msg(&w->daemons[0], &order, NULL);
        send_msg(&w->daemons[0], &grant, NULL);
}

static void on_announce(struct daemon *d, const struct mfl_announce *announce)
{
        struct world *w = d->w;
        struct daemon *other = &w->daemons[d->instance == 1];
        assert_false(d->announced);
        d->announced = true;
        d->grouped = announce->group == GROUP;
        d->weight = announce->weight;
        if (w->way == FETCHER_FIRST && !other->task_sent)
                send_task(other);
        else if (w->way == TOLD_ALONE)
                stop_all(w);
        else if (other->announced && d->grouped && other->grouped)
                combine(w);
        else if (other->announced)
                stop_all(w);
}

static int on_payload(struct mfl_stream *stream, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        struct daemon *d = stream->owner;
        assert_int_equal(envelope->body_case, MFL__ENVELOPE__BODY_CHUNK);
        assert_true(envelope->chunk->offset + payload_bytes <= d->w->bytes);
        *ret_dst = d->w->upload + envelope->chunk->offset;
        return 0;
}

/* The second daemon, which reads the first one's copy, is now to have them for the node. */
static void hand_on(struct world *w)
{
        uint64_t items[N_ITEMS];
        struct mfl_msg task = {.kind = MFL_MSG_TASK, .task = task_of(w, 1, items)};
        task.task.task = GROUP + 1;
        task.task.kind = MFL_TASK_EVAL;
        task.task.n_items = 1;
        task.task.items[0] = 0;
        task.task.params_from = 2;
        task.task.group = (struct mfl_group){0};
        send_msg(&w->daemons[1], &task, NULL);
}

/* A buffer that the first makes now has a name that tells how many it made before. */
static void count_buffers(struct world *w)
{
        struct mfl_error err;
        struct mfl_share_buffer *buffer;
        char path[128];
        uint32_t n = 0;
        assert_int_equal(mfl_share_buffer_new(w->daemons[0].share, 1, &buffer, &err), 0);
        do
                snprintf(path, sizeof(path), "%s/mfl-%016x-%u", w->dir, 1, n++);
        while (access(path, F_OK) && n < 100);
        assert_in_range(n - 1, 1, BUFFERS_MAX);
        mfl_share_buffer_free(buffer);
}

static void on_round_eval(struct world *w)
{
        if (++w->n_evals < 2)
                return;
        if (w->n_rounds < N_ROUNDS) {
                start_round(w);
                return;
        }
        count_buffers(w);
        stop_all(w);
}

static void on_eval(struct world *w)
{
        struct mfl_error err;
        struct mfl_share_view *view;
        uint64_t bytes = w->graph->n * sizeof(float);
        assert_int_equal(mfl_share_view_open(w->daemons[0].share, 2, w->digest, bytes, &view, &err), 0);
        assert_memory_equal(mfl_share_view_data(view), w->params, bytes);
        mfl_share_view_close(view);
        w->handed_on = true;
        stop_all(w);
}

static void take_chunk(struct world *w, const Mfl__Chunk *chunk, size_t bytes)
{
        assert_int_equal(chunk->task, GROUP);
        w->n_uploaded += bytes;
        if (w->n_uploaded < w->bytes)
                return;
        w->combined = true;
        for (uint32_t i = 0; i < 2; i++) {
                struct mfl_msg accepted = {.kind = MFL_MSG_ACCEPTED, .update = {.task = TASK + i + 1}};
                send_msg(&w->daemons[i], &accepted, NULL);
        }
        if (w->way == FETCHER_FIRST)
                hand_on(w);
        else
                stop_all(w);
}

static int on_frame(struct mfl_stream *stream, const Mfl__Envelope *envelope, void *payload,
        size_t payload_bytes, struct mfl_error *err)
{
        struct daemon *d = stream->owner;
        if (envelope->body_case == MFL__ENVELOPE__BODY_CHUNK) {
                take_chunk(d->w, envelope->chunk, payload_bytes);
                return 0;
        }
        if (envelope->body_case ==
                MFL__ENVELOPE__BODY_PARTITION) { /* for people: no message of the agent's */
                assert_true(envelope->partition->n_shown > 0);
                return 0;
        }
        struct mfl_msg msg = {0};
        assert_int_equal(mfl_wire_to_msg(envelope, &msg, err), 0);
        if (msg.kind == MFL_MSG_HELLO) {
                assert_int_equal(msg.hello.instance, d->instance);
                greet(d);
        } else if (msg.kind == MFL_MSG_PARAMS_GET) {
                answer_get(d, msg.params.offset, msg.params.digest);
        } else if (msg.kind == MFL_MSG_ANNOUNCE) {
                on_announce(d, &msg.announce);
        } else if (msg.kind == MFL_MSG_EVAL_RESULT) {
                d->w->way == MANY_ROUNDS ? on_round_eval(d->w) : on_eval(d->w);
        } else if (msg.kind == MFL_MSG_COMBINE_FAILED || msg.kind == MFL_MSG_TASK_FAILED) {
                fail_msg("%s", msg.cancel.reason);
        }
        mfl_msg_deinit(&msg);
        return 0;
}

static void on_server_closed(struct mfl_stream *stream, const char *reason)
{
        struct daemon *d = stream->owner;
        d->stream_open = false;
}

static const struct mfl_stream_ops server_ops = {
        .on_payload = on_payload, .on_frame = on_frame, .on_closed = on_server_closed};

static void open_link(struct daemon *d);

/* The second daemon connects when the first has: so it is known which is which. */
static void on_connection(uv_stream_t *listener, int status)
{
        struct world *w = listener->data;
        struct mfl_error err;
        struct daemon *d = &w->daemons[w->daemons[0].stream_open];
        assert_int_equal(status, 0);
        assert_false(d->stream_open);
        assert_int_equal(mfl_stream_init(&d->stream, &w->loop, &server_ops, d, &err), 0);
        d->stream_open = true;
        mfl_stream_accept(&d->stream, listener);
        if (d->instance == 1)
                open_link(&w->daemons[1]);
}

/* ---- daemons ---- */

static void on_link_closed(void *user)
{
        struct daemon *d = user;
        struct world *w = d->w;
        mfl_compute_close(&d->compute, NULL);
        if (++w->n_closed < 2)
                return;
        mfl_worker_close(&w->hasher, NULL);
        uv_close((uv_handle_t *)&w->listener, NULL);
        uv_close((uv_handle_t *)&w->watchdog, NULL);
        uv_close((uv_handle_t *)&w->later, NULL);
        for (int i = 0; i < 2; i++)
                if (w->daemons[i].stream_open)
                        mfl_stream_close(&w->daemons[i].stream, NULL, false);
}

static void on_exit_wanted(struct mfl_link *link, int status, const char *reason)
{
        struct daemon *d = mfl_link_user(link);
        d->exit_status = status;
        mfl_link_close(link, on_link_closed);
}

static void on_trace(struct mfl_link *link, const char *line)
{
        struct daemon *d = mfl_link_user(link);
        d->n_read += strstr(line, "read from daemon") != NULL;
        d->not_from_other |= strstr(line, "not from daemon") != NULL;
}

static void on_watchdog(uv_timer_t *timer)
{
        fail_msg("nothing happened for 20 s");
}

static void open_link(struct daemon *d)
{
        struct world *w = d->w;
        struct mfl_error err;
        struct sockaddr_storage addr;
        int length = sizeof(addr);
        char server[64];
        assert_int_equal(uv_tcp_getsockname(&w->listener, (struct sockaddr *)&addr, &length), 0);
        snprintf(server, sizeof(server), "127.0.0.1:%u", ntohs(((struct sockaddr_in *)&addr)->sin_port));
        struct mfl_data_info data = {.name = "toy",
                .shape = w->dataset->shape,
                .classes = 4,
                .train_samples = 100,
                .test_samples = 10,
                .fingerprint = 77};
        struct mfl_link_options options = {.server = server,
                .agent = {.results_max = 2,
                        .info = {.name = {(char)('a' + d->instance)},
                                .node = "n",
                                .backend = "reference",
                                .device = "x",
                                .software = "test",
                                .instance = d->instance,
                                .workers = 1,
                                .n_data_sets = 1,
                                .data_sets = &data}},
                .ops = &mfl_compute_trainer,
                .compute = &d->compute,
                .hasher = &w->hasher,
                .budget = &d->budget,
                .share = d->share,
                .chunk_bytes = 4096,
                .user = d,
                .on_exit = on_exit_wanted,
                .on_trace = on_trace};
        assert_int_equal(mfl_link_open(&w->loop, &options, &d->link, &err), 0);
}

static struct mfl_trainer *new_trainer(struct world *w, struct daemon *d)
{
        struct mfl_error err;
        uint64_t fingerprint = 77;
        struct mfl_trainer_options options = {.ops = &mfl_backend_reference,
                .device = w->device,
                .workers = 1,
                .budget = d ? &d->budget : NULL,
                .name = "d",
                .n_data_sets = 1,
                .data_sets = (const struct mfl_dataset *const *)&w->dataset,
                .fingerprints = &fingerprint,
                .share = d ? d->share : NULL,
                .shm = d ? d->shm : NULL};
        struct mfl_trainer *trainer;
        assert_int_equal(mfl_trainer_new(&options, &trainer, &err), 0);
        return trainer;
}

static void open_daemon(struct world *w, uint32_t i)
{
        struct mfl_error err;
        struct daemon *d = &w->daemons[i];
        *d = (struct daemon){.w = w, .instance = i + 1, .exit_status = -1};
        /* Room for its sum, and not for params besides; or for nothing but the page that says so. */
        struct mfl_share_options options = {.dir = w->dir,
                .instance = d->instance,
                .bytes_max = w->way == NO_ROOM && !i ? w->graph->n * sizeof(float) - 1 : 0};
        assert_int_equal(mfl_share_open(&options, &d->share, &err), 0);
        assert_int_equal(mfl_collective_shm_new(d->share, 2, &d->shm, &err), 0);
        mfl_budget_init(&d->budget, 0);
        d->trainer = new_trainer(w, d);
        assert_int_equal(mfl_compute_open(&d->compute, &w->loop, d->trainer, &err), 0);
}

static void close_daemon(struct daemon *d)
{
        mfl_trainer_free(d->trainer);
        assert_int_equal(mfl_budget_used(&d->budget), 0);
        mfl_collective_close(d->shm);
        mfl_share_close(d->share);
        assert_int_equal(d->exit_status, 0);
}

static void make_model(struct world *w)
{
        struct mfl_error err;
        struct mfl_job *job;
        struct mfl_dataset_config config = {.name = "toy",
                .format = MFL_FORMAT_SYNTHETIC,
                .classes = 4,
                .shape = {3, {1, 6, 6}},
                .n_train = 100,
                .n_test = 10,
                .seed = 5};
        assert_int_equal(mfl_dataset_load(&config, &w->dataset, &err), 0);
        assert_int_equal(mfl_backend_reference.device_open(&w->device, &err), 0);
        w->text = w->way == FROZEN ? frozen_text : job_text;
        assert_int_equal(mfl_job_parse(w->text, strlen(w->text), "t", &job, &err), 0);
        assert_int_equal(mfl_job_graph(job, &w->dataset->shape, 4, &w->graph, &err), 0);
        mfl_job_free(job);
        w->params = mfl_malloc(w->graph->n * sizeof(float));
        mfl_graph_init_params(w->graph, 3, w->params);
        assert_int_equal(mfl_sha256(w->params, w->graph->n * sizeof(float), w->digest, &err), 0);
        assert_int_equal(
                mfl_sha256(w->params, w->graph->n_frozen * sizeof(float), w->frozen_digest, &err), 0);
        w->bytes = w->graph->n_moving * sizeof(int64_t);
        w->upload = mfl_calloc(1, w->bytes);
}

static void listen_loopback(struct world *w)
{
        struct sockaddr_in any;
        uv_ip4_addr("127.0.0.1", 0, &any);
        uv_tcp_init(&w->loop, &w->listener);
        w->listener.data = w->later.data = w;
        assert_int_equal(uv_tcp_bind(&w->listener, (struct sockaddr *)&any, 0), 0);
        assert_int_equal(uv_listen((uv_stream_t *)&w->listener, 8, on_connection), 0);
}

static void run_world(struct world *w)
{
        struct mfl_error err;
        strcpy(w->dir, "/tmp/mfl-test-node-XXXXXX");
        assert_non_null(mkdtemp(w->dir));
        make_model(w);
        assert_int_equal(uv_loop_init(&w->loop), 0);
        uv_timer_init(&w->loop, &w->watchdog);
        uv_timer_init(&w->loop, &w->later);
        uv_timer_start(&w->watchdog, on_watchdog, 20000, 0);
        listen_loopback(w);
        assert_int_equal(mfl_worker_start(&w->hasher, &w->loop, "hash", 16, &err), 0);
        for (uint32_t i = 0; i < 2; i++)
                open_daemon(w, i);
        open_link(&w->daemons[0]);
        uv_run(&w->loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&w->loop), 0);
        for (uint32_t i = 0; i < 2; i++)
                close_daemon(&w->daemons[i]);
        assert_int_equal(rmdir(w->dir), 0); /* nothing is left in it */
}

/* What one trainer makes of the clients of both. */
static void check_sum(struct world *w)
{
        struct mfl_error err;
        uint64_t items[2 * N_ITEMS], two[N_ITEMS];
        struct mfl_train_control control = {0};
        struct mfl_task task = task_of(w, 0, two);
        for (uint32_t i = 0; i < 2 * N_ITEMS; i++)
                items[i] = i;
        task.items = items;
        task.n_items = 2 * N_ITEMS;
        task.group = (struct mfl_group){0};
        struct mfl_train_request request = {.task = &task,
                .job_text = w->text,
                .frozen = w->graph->n_frozen ? w->params : NULL,
                .params = w->params + w->graph->n_frozen,
                .control = &control};
        struct mfl_train_result *result;
        struct mfl_trainer *trainer = new_trainer(w, NULL);
        assert_int_equal(mfl_trainer_run(trainer, &request, &result, &err), 0);
        assert_memory_equal(w->upload, result->data[0], w->bytes);
        assert_int_equal(w->daemons[0].weight + w->daemons[1].weight, result->updates[0].weight);
        mfl_trainer_result_free(trainer, result);
        mfl_trainer_free(trainer);
}

static void end_world(struct world *w)
{
        free(w->upload);
        free(w->params);
        mfl_graph_free(w->graph);
        mfl_backend_reference.device_close(w->device);
        mfl_dataset_free(w->dataset);
        free(w);
}

static struct world *new_world(enum way way)
{
        struct world *w = calloc(1, sizeof(*w));
        bool read = way == TOGETHER || way == FETCHER_FIRST || way == MANY_ROUNDS || way == FROZEN;
        uint32_t n_params = way == MANY_ROUNDS ? N_ROUNDS : way == FROZEN ? 2 : 1;
        w->way = way;
        run_world(w);
        assert_int_equal(w->daemons[1].n_read, read ? n_params : 0);
        assert_int_equal(w->daemons[1].not_from_other, way == NO_ROOM || way == FETCHER_GONE);
        assert_int_equal(w->daemons[0].n_gets, way == TOLD_ALONE ? 0 : n_params);
        assert_int_equal(w->daemons[1].n_gets, !read);
        return w;
}

static void params_come_down_once_and_a_sum_goes_up_once(void **state)
{
        struct world *w = new_world(TOGETHER);
        assert_true(w->combined);
        check_sum(w);
        end_world(w);
}

/* What is frozen comes down once too, and is no part of the sum, whose buffer in shared memory is as much
 * smaller. */
static void frozen_params_come_down_once_and_stay_out_of_the_sum(void **state)
{
        struct world *w = new_world(FROZEN);
        assert_true(w->combined);
        assert_true(w->graph->n_frozen > 10 * w->graph->n_moving);
        check_sum(w);
        end_world(w);
}

static void params_held_since_long_are_read_and_handed_on(void **state)
{
        struct world *w = new_world(FETCHER_FIRST);
        assert_true(w->combined && w->handed_on);
        check_sum(w);
        end_world(w);
}

/* The first uploads alone then, and the second is told at once that it will not find the params. */
static void without_room_each_fetches_for_itself(void **state)
{
        struct world *w = new_world(NO_ROOM);
        assert_true(w->daemons[1].grouped && !w->daemons[0].grouped);
        end_world(w);
}

static void a_dead_fetcher_is_not_waited_for(void **state)
{
        struct world *w = new_world(FETCHER_GONE);
        assert_true(w->combined);
        check_sum(w);
        end_world(w);
}

static void alone_ends_the_wait(void **state)
{
        struct world *w = new_world(TOLD_ALONE);
        assert_false(w->daemons[1].grouped);
        end_world(w);
}

/* Making shared memory is not cheap, so versions of params take turns in what there is. */
static void a_fetcher_uses_its_memory_again(void **state)
{
        end_world(new_world(MANY_ROUNDS));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(params_come_down_once_and_a_sum_goes_up_once),
                cmocka_unit_test(frozen_params_come_down_once_and_stay_out_of_the_sum),
                cmocka_unit_test(params_held_since_long_are_read_and_handed_on),
                cmocka_unit_test(without_room_each_fetches_for_itself),
                cmocka_unit_test(a_dead_fetcher_is_not_waited_for),
                cmocka_unit_test(alone_ends_the_wait),
                cmocka_unit_test(a_fetcher_uses_its_memory_again),
        };
        return cmocka_run_group_tests_name("client_link_node", tests, NULL, NULL);
}
