/* SPDX-License-Identifier: Apache-2.0 */
/* The link against a small server on the same loop: one task from Hello to Accepted over a real socket, with
 * the connection cut in the middle of the download, a download that is wrong, and params that don't fit. */
#include "tests/lib/test.h"

#include <stdio.h>

#include "client/link/link.h"
#include "common/base/digest.h"
#include "common/job/job.h"
#include "proto/stream.h"

#define JOB "j-000001"
#define HALF 64u /* floats before the cut; a multiple of nothing in particular */

#define JOB_TEXT(model)                                                                                      \
        "name: t\nrounds: 3\nseed: 11\nmodel: {preset: " model "}\n"                                         \
        "data: {name: toy, partition: iid, clients: 5}\ntraining: {lr: 0.1, epochs: 1, batch: 8}\n"

struct world {
        /* of the test */
        const char *job_text; /* NULL: the larger model */
        bool cut_once, corrupt_once, grant_twice, staged, no_slot;
        bool wrong_inside; /* the params in the Task are not what their digest says */
        uint64_t budget_bytes,
                held_bytes; /* held: by networks that no task uses, until they are asked to make room */
        uint32_t n_trims;
        struct mfl_dataset *dataset;
        struct mfl_device *device;
        struct mfl_graph *graph;
        float *params;
        struct mfl_task task;
        uint64_t items[3];
        uv_loop_t loop;
        uv_timer_t watchdog;
        /* the daemon */
        struct mfl_budget budget;
        struct mfl_activity activity;
        struct mfl_trainer *trainer;
        struct mfl_compute compute;
        struct mfl_worker hasher;
        struct mfl_link *link;
        int exit_status;
        uint32_t n_online;
        /* the server */
        uv_tcp_t listener;
        struct mfl_stream stream;
        bool stream_open, got_bye;
        uint32_t n_hellos, n_gets;
        uint64_t get_offset[4];
        struct mfl_announce announce;
        uint8_t *upload;
        uint32_t n_inside;
        uint64_t n_uploaded, n_chunks, uploaded_to, n_at_end; /* n_at_end: when the last byte came first */
        char failed[MFL_REASON_BYTES];
        bool failed_permanent;
};

/* ---- server ---- */

static void send_to_daemon(struct world *w, const struct mfl_msg *msg, const char *text)
{
        struct mfl_error err;
        assert_int_equal(
                mfl_stream_send_msg(&w->stream, msg, &(struct mfl_wire_extra){.job_text = text}, &err), 0);
}

static void send_params(struct world *w, uint64_t offset, uint64_t n, const float *data)
{
        struct mfl_error err;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        Mfl__Params params = MFL__PARAMS__INIT;
        params.job = (char *)JOB;
        params.digest.data = w->task.params_digest;
        params.digest.len = MFL_DIGEST_BYTES;
        params.offset = offset;
        params.total = w->graph->n;
        envelope.body_case = MFL__ENVELOPE__BODY_PARAMS;
        envelope.params = &params;
        assert_int_equal(
                mfl_stream_send(&w->stream, &envelope, data, n * sizeof(float), NULL, NULL, NULL, &err), 0);
}

static void answer_get(struct world *w, uint64_t offset)
{
        static float wrong[HALF];
        uint64_t n = w->graph->n;
        assert_true(w->n_gets < 4);
        w->get_offset[w->n_gets++] = offset;
        if (w->cut_once) {
                w->cut_once = false;
                send_params(w, offset, HALF, w->params + offset);
                mfl_stream_close(&w->stream, "cut", true);
                return;
        }
        if (offset < HALF) {
                send_params(w, offset, HALF - offset, w->corrupt_once ? wrong : w->params + offset);
                w->corrupt_once = false;
                offset = HALF;
        }
        send_params(w, offset, n - offset, w->params + offset);
}

static void greet(struct world *w)
{
        struct mfl_msg welcome = {.kind = MFL_MSG_WELCOME,
                .welcome = {.heartbeat_ms = 1000, .dead_ms = 5000, .server_instance = 9}};
        struct mfl_msg spec = {.kind = MFL_MSG_JOB_SPEC, .job = JOB};
        struct mfl_msg task = {.kind = MFL_MSG_TASK, .task = w->task};
        w->n_hellos++;
        w->stream.envelope_max = MFL_ENVELOPE_MAX;
        w->stream.payload_max = MFL_PAYLOAD_MAX;
        send_to_daemon(w, &welcome, NULL);
        send_to_daemon(w, &spec, w->job_text);
        struct mfl_error err;
        uint64_t bytes = w->graph->n * sizeof(float);
        float *wrong = mfl_calloc(1, bytes);
        struct mfl_wire_extra extra = {.data = w->wrong_inside ? wrong : w->params, .n = bytes};
        bool fits = bytes <= MFL_INLINE_MAX;
        if (mfl_stream_send_msg(&w->stream, &task, fits ? &extra : NULL, &err))
                fail_msg("%s", err.text);
        free(wrong);
}

static void grant_all(struct world *w)
{
        uint64_t half = w->announce.bytes / 16 * 8;
        struct mfl_range ranges[] = {{0, half}, {half, w->announce.bytes - half}};
        struct mfl_msg grant = {
                .kind = MFL_MSG_GRANT, .update = {.task = w->announce.task, .n_ranges = 2, .ranges = ranges}};
        if (!w->upload)
                w->upload = mfl_calloc(1, w->announce.bytes);
        send_to_daemon(w, &grant, NULL);
}

static int on_server_payload(struct mfl_stream *stream, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        struct world *w = stream->owner;
        assert_int_equal(envelope->body_case, MFL__ENVELOPE__BODY_CHUNK);
        assert_true(envelope->chunk->offset + payload_bytes <= w->announce.bytes);
        w->uploaded_to = envelope->chunk->offset + payload_bytes;
        *ret_dst = w->upload + envelope->chunk->offset;
        return 0;
}

static void take_chunk(struct world *w, size_t bytes)
{
        w->n_uploaded += bytes;
        w->n_chunks++;
        if (w->uploaded_to < w->announce.bytes)
                return;
        w->n_at_end = w->n_at_end ? w->n_at_end : w->n_uploaded;
        struct mfl_msg accepted = {.kind = MFL_MSG_ACCEPTED, .update = {.task = w->announce.task}};
        send_to_daemon(w, &accepted, NULL);
        mfl_link_stop(w->link);
}

/* The whole update came in its Announce. */
static void take_inside(struct world *w, const ProtobufCBinaryData *data)
{
        struct mfl_msg accepted = {.kind = MFL_MSG_ACCEPTED, .update = {.task = w->announce.task}};
        w->n_inside++;
        if (w->no_slot) {
                grant_all(w);
                return;
        }
        w->upload = mfl_calloc(1, data->len);
        memcpy(w->upload, data->data, data->len);
        w->n_uploaded = data->len;
        send_to_daemon(w, &accepted, NULL);
        mfl_link_stop(w->link);
}

static int on_server_frame(struct mfl_stream *stream, const Mfl__Envelope *envelope, void *payload,
        size_t payload_bytes, struct mfl_error *err)
{
        struct world *w = stream->owner;
        if (envelope->body_case == MFL__ENVELOPE__BODY_CHUNK) {
                take_chunk(w, payload_bytes);
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
                greet(w);
        } else if (msg.kind == MFL_MSG_PARAMS_GET) {
                answer_get(w, msg.params.offset);
        } else if (msg.kind == MFL_MSG_ANNOUNCE) {
                w->announce = msg.announce;
                assert_int_equal(msg.announce.n_rejected, 0);
                if (envelope->announce->data.len)
                        take_inside(w, &envelope->announce->data);
                else
                        grant_all(w);
                if (w->grant_twice)
                        grant_all(w);
        } else if (msg.kind == MFL_MSG_TASK_FAILED) {
                mfl_strcpy(w->failed, sizeof(w->failed), msg.failed.reason);
                w->failed_permanent = msg.failed.permanent;
                mfl_link_stop(w->link);
        } else if (msg.kind == MFL_MSG_BYE) {
                w->got_bye = true;
        }
        mfl_msg_deinit(&msg);
        return 0;
}

static void on_server_closed(struct mfl_stream *stream, const char *reason)
{
        struct world *w = stream->owner;
        w->stream_open = false;
}

static const struct mfl_stream_ops server_ops = {
        .on_payload = on_server_payload, .on_frame = on_server_frame, .on_closed = on_server_closed};

static void on_connection(uv_stream_t *listener, int status)
{
        struct world *w = listener->data;
        struct mfl_error err;
        assert_int_equal(status, 0);
        assert_false(w->stream_open);
        assert_int_equal(mfl_stream_init(&w->stream, &w->loop, &server_ops, w, &err), 0);
        w->stream_open = true;
        mfl_stream_accept(&w->stream, listener);
}

/* ---- daemon ---- */

static void on_link_closed(void *user)
{
        struct world *w = user;
        mfl_compute_close(&w->compute, NULL);
        mfl_worker_close(&w->hasher, NULL);
        uv_close((uv_handle_t *)&w->listener, NULL);
        uv_close((uv_handle_t *)&w->watchdog, NULL);
        if (w->stream_open)
                mfl_stream_close(&w->stream, NULL, false);
}

static void on_exit_wanted(struct mfl_link *link, int status, const char *reason)
{
        struct world *w = mfl_link_user(link);
        w->exit_status = status;
        mfl_link_close(link, on_link_closed);
}

static void on_online(struct mfl_link *link, bool online)
{
        struct world *w = mfl_link_user(link);
        w->n_online += online;
}

static void on_watchdog(uv_timer_t *timer)
{
        fail_msg("nothing happened for 20 s");
}

static void make_trainer(struct world *w)
{
        struct mfl_error err;
        uint64_t fingerprint = 77;
        struct mfl_dataset_config config = {.name = "toy",
                .format = MFL_FORMAT_SYNTHETIC,
                .classes = 4,
                .shape = {3, {1, 6, 6}},
                .n_train = 100,
                .n_test = 10,
                .seed = 5};
        assert_int_equal(mfl_dataset_load(&config, &w->dataset, &err), 0);
        assert_int_equal(mfl_backend_reference.device_open(&w->device, &err), 0);
        struct mfl_trainer_options options = {.ops = &mfl_backend_reference,
                .device = w->device,
                .workers = 2,
                .name = "d",
                .n_data_sets = 1,
                .data_sets = (const struct mfl_dataset *const *)&w->dataset,
                .fingerprints = &fingerprint,
                .activity = &w->activity};
        assert_int_equal(mfl_activity_init(&w->activity, 2, mfl_now_ns(), &err), 0);
        assert_int_equal(mfl_trainer_new(&options, &w->trainer, &err), 0);
}

static void make_task(struct world *w)
{
        struct mfl_error err;
        struct mfl_job *job;
        assert_int_equal(mfl_job_parse(w->job_text, strlen(w->job_text), "t", &job, &err), 0);
        assert_int_equal(mfl_job_graph(job, &w->dataset->shape, 4, &w->graph, &err), 0);
        mfl_job_free(job);
        assert_true(w->graph->n > 2 * HALF);
        w->params = mfl_malloc(w->graph->n * sizeof(float));
        mfl_graph_init_params(w->graph, 3, w->params);
        w->items[0] = 4;
        w->items[2] = 2;
        w->task = (struct mfl_task){.task = (uint64_t)1 << 32 | 5,
                .job = JOB,
                .round = 1,
                .kind = MFL_TASK_TRAIN,
                .n_items = 3,
                .items = w->items,
                .n_params = w->graph->n,
                .fingerprint = 77};
        assert_int_equal(mfl_fixed_choose(16, 128, &w->task.fixed, &err), 0);
        assert_int_equal(mfl_sha256(w->params, w->graph->n * sizeof(float), w->task.params_digest, &err), 0);
}

/* ---- a device that has its own memory ---- */

static struct {
        struct world *w;
        float *memory;
        uint64_t n, have; /* have: floats, from the first on */
        uint32_t n_new, n_free, n_restarts, n_puts, n_starts;
} stage;

static int stage_new(void *compute, uint64_t n, struct mfl_stage **ret_stage, struct mfl_error *err)
{
        stage.n_new++;
        stage.n = n;
        stage.memory = mfl_calloc(n, sizeof(float));
        *ret_stage = (struct mfl_stage *)&stage;
        return 0;
}

static void stage_free(void *compute, struct mfl_stage *of, uint64_t n)
{
        assert_true(n == stage.n && of == (struct mfl_stage *)&stage);
        free(stage.memory);
        stage.n_free++;
}

static int stage_put(void *compute, struct mfl_stage *of, uint64_t first, const float *params, uint64_t n,
        struct mfl_error *err)
{
        stage.n_restarts += first < stage.have;
        assert_true(first == stage.have || first == 0);
        memcpy(stage.memory + first, params, n * sizeof(float));
        stage.have = first + n;
        stage.n_puts++;
        return 0;
}

/* The task gets the copy, whole and right; the reference then reads the host's memory all the same. */
static int start_staged(void *compute, struct mfl_compute_call *call, struct mfl_error *err)
{
        assert_ptr_equal(call->params_stage, &stage);
        assert_null(call->frozen_stage);
        assert_memory_equal(stage.memory, stage.w->params, stage.n * sizeof(float));
        call->params_stage = NULL;
        stage.n_starts++;
        return mfl_compute_trainer.start(compute, call, err);
}

static struct world *holder;

static bool trim_held(void *compute, struct mfl_trim_call *call)
{
        mfl_budget_release(&holder->budget, holder->held_bytes);
        holder->n_trims++;
        return mfl_compute_trainer.trim(compute, call);
}

static const struct mfl_compute_ops *ops_of(struct world *w)
{
        static struct mfl_compute_ops ops;
        ops = mfl_compute_trainer;
        holder = w;
        if (w->held_bytes)
                ops.trim = trim_held;
        if (!w->staged)
                return &ops;
        ops.start = start_staged;
        ops.stage_new = stage_new;
        ops.stage_free = stage_free;
        ops.stage_put = stage_put;
        memset(&stage, 0, sizeof(stage));
        stage.w = w;
        return &ops;
}

static void open_link(struct world *w)
{
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
        mfl_budget_init(&w->budget, w->budget_bytes);
        if (w->held_bytes)
                assert_int_equal(mfl_budget_reserve(&w->budget, w->held_bytes, "networks", &err), 0);
        struct mfl_link_options options = {.server = server,
                .agent = {.results_max = 2,
                        .info = {.name = "d",
                                .node = "n",
                                .backend = "reference",
                                .device = "x",
                                .software = "test",
                                .instance = 1,
                                .workers = 2,
                                .n_data_sets = 1,
                                .data_sets = &data}},
                .ops = ops_of(w),
                .compute = &w->compute,
                .hasher = &w->hasher,
                .budget = &w->budget,
                .activity = &w->activity,
                .chunk_bytes = 1024,
                .user = w,
                .on_exit = on_exit_wanted,
                .on_online = on_online};
        assert_int_equal(mfl_link_open(&w->loop, &options, &w->link, &err), 0);
}

static void run_world(struct world *w)
{
        struct mfl_error err;
        struct sockaddr_in any;
        w->job_text = w->job_text ? w->job_text : JOB_TEXT("mlp");
        make_trainer(w);
        make_task(w);
        w->exit_status = -1;
        assert_int_equal(uv_loop_init(&w->loop), 0);
        uv_ip4_addr("127.0.0.1", 0, &any);
        uv_tcp_init(&w->loop, &w->listener);
        w->listener.data = w;
        assert_int_equal(uv_tcp_bind(&w->listener, (struct sockaddr *)&any, 0), 0);
        assert_int_equal(uv_listen((uv_stream_t *)&w->listener, 8, on_connection), 0);
        uv_timer_init(&w->loop, &w->watchdog);
        uv_timer_start(&w->watchdog, on_watchdog, 20000, 0);
        assert_int_equal(mfl_compute_open(&w->compute, &w->loop, w->trainer, &err), 0);
        assert_int_equal(mfl_worker_start(&w->hasher, &w->loop, "hash", 16, &err), 0);
        open_link(w);
        uv_run(&w->loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&w->loop), 0);
        assert_int_equal(w->exit_status, 0);
        assert_true(w->got_bye);
        assert_int_equal(mfl_budget_used(&w->budget), 0);
        assert_false(w->activity.transfer);
        assert_int_equal(w->activity.n[MFL_ACTIVITY_IDLE], 2);
}

/* What arrived is what the trainer gives when it is asked directly. */
static void check_upload(struct world *w)
{
        struct mfl_error err;
        struct mfl_train_control control = {0};
        struct mfl_train_request request = {
                .task = &w->task, .job_text = w->job_text, .params = w->params, .control = &control};
        struct mfl_train_result *result;
        assert_int_equal(mfl_trainer_run(w->trainer, &request, &result, &err), 0);
        assert_int_equal(w->n_uploaded, w->graph->n * sizeof(int64_t));
        assert_int_equal(w->announce.weight, 60);
        assert_memory_equal(w->upload, result->data[0], w->n_uploaded);
        assert_true(w->n_inside || w->activity.total_ns[MFL_ACTIVITY_NETWORK] > 0);
        assert_true(w->n_inside || w->n_chunks >= w->n_uploaded / 1024);
        mfl_trainer_result_free(w->trainer, result);
}

static void end_world(struct world *w)
{
        free(w->upload);
        free(w->params);
        mfl_graph_free(w->graph);
        mfl_trainer_free(w->trainer);
        mfl_backend_reference.device_close(w->device);
        mfl_dataset_free(w->dataset);
        mfl_activity_deinit(&w->activity);
}

static void a_task_goes_from_hello_to_accepted(void **state)
{
        struct world w = {0};
        run_world(&w);
        check_upload(&w);
        assert_int_equal(w.n_hellos, 1);
        assert_int_equal(w.n_gets, 1);
        assert_int_equal(w.get_offset[0], 0);
        end_world(&w);
}

static void a_small_model_takes_three_messages(void **state)
{
        struct world w = {.job_text = JOB_TEXT("logistic")};
        run_world(&w);
        check_upload(&w);
        assert_int_equal(w.n_gets, 0);
        assert_int_equal(w.n_inside, 1);
        assert_int_equal(w.n_chunks, 0);
        end_world(&w);
}

/* Params that are not what their digest says are fetched; an update that is granted all the same is uploaded. */
static void what_is_not_taken_from_inside_goes_the_long_way(void **state)
{
        struct world w = {.job_text = JOB_TEXT("logistic"), .wrong_inside = true, .no_slot = true};
        run_world(&w);
        check_upload(&w);
        assert_int_equal(w.n_gets, 1);
        assert_int_equal(w.n_inside, 1);
        assert_true(w.n_chunks > 0);
        end_world(&w);
}

static void a_cut_download_goes_on_where_it_was(void **state)
{
        struct world w = {.cut_once = true};
        run_world(&w);
        check_upload(&w);
        assert_int_equal(w.n_hellos, 2);
        assert_int_equal(w.n_online, 2);
        assert_int_equal(w.n_gets, 2);
        assert_int_equal(w.get_offset[1], HALF);
        end_world(&w);
}

static void wrong_params_are_fetched_anew(void **state)
{
        struct world w = {.corrupt_once = true};
        run_world(&w);
        check_upload(&w);
        assert_int_equal(w.n_hellos, 1);
        assert_int_equal(w.n_gets, 2);
        assert_int_equal(w.get_offset[1], 0);
        end_world(&w);
}

/* Each range goes to the device when it has arrived, after a wrong digest from the first on again. */
static void params_are_staged_as_they_arrive(void **state)
{
        struct world w = {.staged = true, .corrupt_once = true};
        run_world(&w);
        check_upload(&w);
        assert_int_equal(stage.n_new, 1);
        assert_int_equal(stage.n_free, 1);
        assert_int_equal(stage.n_restarts, 1);
        assert_int_equal(stage.n_starts, 1);
        assert_true(stage.n_puts >= 2 && stage.have == stage.n && stage.n == w.graph->n);
        end_world(&w);
}

/* A server that has heard nothing for long asks for all of it again: what was still to be sent of the same
 * goes only once. */
static void a_second_grant_takes_the_place_of_the_first(void **state)
{
        struct world w = {.grant_twice = true};
        run_world(&w);
        uint64_t bytes = w.announce.bytes;
        assert_true(bytes > 64 * 1024);
        /* All of it, and what was on its way when the second one came, which may be nothing. */
        assert_in_range(w.n_at_end, bytes, bytes + 32 * 1024);
        w.n_uploaded = bytes;
        check_upload(&w);
        end_world(&w);
}

static void params_that_do_not_fit_fail_the_task(void **state)
{
        struct world w = {.budget_bytes = 1000};
        run_world(&w);
        assert_non_null(strstr(w.failed, "for params: only"));
        assert_true(w.failed_permanent);
        assert_int_equal(w.n_gets, 0);
        end_world(&w);
}

static void idle_networks_make_room_for_params(void **state)
{
        struct world w = {.budget_bytes = 8 << 20, .held_bytes = (8 << 20) - 1000};
        run_world(&w);
        assert_string_equal(w.failed, "");
        assert_int_equal(w.n_trims, 1);
        check_upload(&w);
        end_world(&w);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_task_goes_from_hello_to_accepted),
                cmocka_unit_test(a_small_model_takes_three_messages),
                cmocka_unit_test(what_is_not_taken_from_inside_goes_the_long_way),
                cmocka_unit_test(a_cut_download_goes_on_where_it_was),
                cmocka_unit_test(wrong_params_are_fetched_anew),
                cmocka_unit_test(params_are_staged_as_they_arrive),
                cmocka_unit_test(a_second_grant_takes_the_place_of_the_first),
                cmocka_unit_test(params_that_do_not_fit_fail_the_task),
                cmocka_unit_test(idle_networks_make_room_for_params),
        };
        return cmocka_run_group_tests_name("client_link", tests, NULL, NULL);
}
