/* SPDX-License-Identifier: Apache-2.0 */
/* The link's part in a group, against a small server on the same loop, with a compute that does what the test
 * says: results are published, a sum goes out no further than it is ready, and whatever ends a combine early
 * (Alone, Cancel, a lost connection, SIGTERM, its own failure) frees each thing once, when nothing uses it.
 */
#include "tests/lib/test.h"

#include <stdio.h>

#include "client/link/link.h"
#include "proto/stream.h"

#define JOB "j-000001"
#define N 1000u /* elements */
#define SUM_BYTES (N * sizeof(int64_t))
#define CHUNK 512u
#define TASK ((uint64_t)1 << 32 | 5)
#define GROUP ((uint64_t)1 << 32 | 6)
#define SELF 1u
#define OTHER 2u

enum ending {
        ACCEPTED,
        ALONE,
        CANCELLED,
        LOST,
        STOPPED,
        FAILED,
        TOO_LATE,
};

struct world {
        enum ending ending;
        bool late; /* no group: the own sum is on its way to the host */
        enum mfl_collective_kind collective;
        uv_loop_t loop;
        uv_timer_t watchdog, work, script;
        struct mfl_worker hasher;
        struct mfl_link *link;
        int exit_status;
        /* the fake compute */
        struct mfl_compute_call *task;
        struct mfl_combine_call *combine;
        struct mfl_train_result result;
        struct mfl_announce update;
        void *data;
        int64_t own[N], sum[N];
        uint64_t published;
        uint32_t n_results_freed, n_combines, n_combines_freed, n_cancels, n_communicators;
        bool result_out, combine_out, made_id, opened_id;
        struct mfl_compute_listener listener;
        /* the server */
        uv_tcp_t listener_tcp;
        struct mfl_stream stream;
        bool stream_open, got_bye, ended_group;
        uint32_t n_hellos, n_alone_announces, n_group_announces, n_communicator_ids;
        uint8_t upload[SUM_BYTES];
        uint64_t n_uploaded, chunk_task;
        uint32_t n_early; /* chunks that came while the sum was not whole */
        char combine_failed[MFL_REASON_BYTES];
};

/* ---- compute ---- */

static int fake_start(void *compute, struct mfl_compute_call *call, struct mfl_error *err)
{
        struct world *w = compute;
        assert_null(w->task);
        w->task = call;
        return 0;
}

static void fake_cancel(void *compute, struct mfl_compute_call *call)
{
}

static void fake_forget(void *compute, const char *job)
{
}

static void fake_result_free(void *compute, struct mfl_train_result *result)
{
        struct world *w = compute;
        if (!result)
                return;
        assert_ptr_equal(result, &w->result);
        assert_true(w->result_out);
        assert_false(w->combine_out); /* the sum goes before what it is made of */
        w->result_out = false;
        w->n_results_freed++;
}

static int fake_publish(
        void *compute, const struct mfl_train_result *result, uint64_t group, struct mfl_error *err)
{
        struct world *w = compute;
        assert_ptr_equal(result, &w->result);
        w->published = group;
        return 0;
}

static int fake_combine(void *compute, struct mfl_combine_call *call, struct mfl_error *err)
{
        struct world *w = compute;
        assert_null(w->combine);
        assert_false(w->combine_out);
        assert_ptr_equal(call->combine.result, &w->result);
        assert_int_equal(call->combine.group.group, GROUP);
        assert_int_equal(call->combine.ranks, 3);
        assert_int_equal(call->combine.leader, 0);
        assert_int_equal(call->combine.deadline_ms, 7000);
        call->combine.control = &call->control;
        w->combine = call;
        w->combine_out = true;
        w->n_combines++;
        return 0;
}

static void fake_combine_cancel(void *compute, struct mfl_combine_call *call)
{
        struct world *w = compute;
        assert_ptr_equal(call, w->combine);
        atomic_store(&call->control.cancel, true);
        w->n_cancels++;
}

static void fake_combine_free(void *compute, struct mfl_combine_call *call)
{
        struct world *w = compute;
        assert_true(w->combine_out && w->result_out && !w->combine);
        w->combine_out = false;
        w->n_combines_freed++;
        /* Whoever reads it now reads wrong bytes. */
        memset(w->sum, 0xee, sizeof(w->sum));
}

static int fake_communicator(
        void *compute, const struct mfl_group *group, const uint8_t *id, struct mfl_error *err)
{
        struct world *w = compute;
        assert_int_equal(group->communicator, 44);
        w->n_communicators++;
        w->made_id |= !id;
        w->opened_id |= id && id[0] == 0x5a;
        return 0;
}

static void fake_listen(void *compute, const struct mfl_compute_listener *listener)
{
        struct world *w = compute;
        w->listener = listener ? *listener : (struct mfl_compute_listener){0};
}

static const struct mfl_compute_ops fake_ops = {.start = fake_start,
        .cancel = fake_cancel,
        .forget = fake_forget,
        .result_free = fake_result_free,
        .publish = fake_publish,
        .combine = fake_combine,
        .combine_cancel = fake_combine_cancel,
        .combine_free = fake_combine_free,
        .communicator = fake_communicator,
        .listen = fake_listen};

static void end_combine(struct world *w, int status, const char *reason)
{
        struct mfl_combine_call *call = w->combine;
        w->combine = NULL;
        call->status = status;
        mfl_strcpy(call->err.text, sizeof(call->err.text), reason);
        call->done(call);
}

static void end_task(struct world *w)
{
        struct mfl_compute_call *call = w->task;
        w->task = NULL;
        w->result_out = true;
        w->data = w->own;
        w->update = (struct mfl_announce){
                .item_count = 1, .encoding = MFL_ENCODING_I64, .bytes = SUM_BYTES, .weight = 3, .samples = 3};
        w->result = (struct mfl_train_result){.n = N,
                .grouped = !w->late,
                .n_updates = 1,
                .updates = &w->update,
                .data = &w->data,
                .late = w->late};
        call->result = &w->result;
        call->done(call);
}

static void grow_result(struct world *w)
{
        uint64_t ready = atomic_load(&w->result.control.ready);
        for (uint64_t i = ready; i < ready + N / 8; i++)
                w->own[i] = -5 * (int64_t)i;
        atomic_store(&w->result.control.ready, ready + N / 8);
        w->listener.advanced(w->listener.user);
}

/* What worker threads would do meanwhile: a task is done at once, a sum grows by an eighth each time. */
static void on_work(uv_timer_t *timer)
{
        struct world *w = timer->data;
        if (w->task)
                end_task(w);
        else if (w->late && w->result_out && atomic_load(&w->result.control.ready) < N)
                grow_result(w);
        if (!w->combine)
                return;
        struct mfl_comm_control *control = &w->combine->control;
        uint64_t ready = atomic_load(&control->ready);
        if (atomic_load(&control->cancel)) {
                end_combine(w, MFL_COLLECTIVE_BROKEN, "cancelled");
        } else if (w->ending == FAILED && ready >= N / 2) {
                end_combine(w, MFL_COLLECTIVE_BROKEN, "rank 1 is gone");
        } else if (ready == N) {
                end_combine(w, 0, "");
        } else {
                w->combine->combine.sum = w->sum;
                for (uint64_t i = ready; i < ready + N / 8; i++)
                        w->sum[i] = (int64_t)i * 3 - 7;
                atomic_store(&control->ready, ready + N / 8);
                w->listener.advanced(w->listener.user);
        }
}

/* ---- server ---- */

static void send_msg(struct world *w, const struct mfl_msg *msg, const char *text)
{
        struct mfl_error err;
        assert_int_equal(
                mfl_stream_send_msg(&w->stream, msg, &(struct mfl_wire_extra){.job_text = text}, &err), 0);
}

static void send_task(struct world *w)
{
        uint64_t items[] = {4};
        struct mfl_msg welcome = {.kind = MFL_MSG_WELCOME,
                .welcome = {.heartbeat_ms = 1000, .dead_ms = 5000, .server_instance = 9}};
        struct mfl_msg spec = {.kind = MFL_MSG_JOB_SPEC, .job = JOB};
        struct mfl_msg task = {.kind = MFL_MSG_TASK,
                .task = {.task = TASK,
                        .job = JOB,
                        .round = 1,
                        .kind = MFL_TASK_TRAIN,
                        .n_items = 1,
                        .items = items,
                        .n_params = 1,
                        .fixed = {.scale_bits = 20, .delta_max = 16, .weight_max = 100}}};
        if (!w->late)
                task.task.group = (struct mfl_group){.group = GROUP,
                        .collective = w->collective,
                        .n_members = 2,
                        .members = {SELF, OTHER},
                        .workers = 2,
                        .communicator = w->collective == MFL_COLLECTIVE_NCCL ? 44 : 0};
        /* SHA-256 of four zero bytes. */
        static const uint8_t digest[] = {0xdf, 0x3f, 0x61, 0x98, 0x04, 0xa9, 0x2f, 0xdb, 0x40, 0x57, 0x19,
                0x2d, 0xc4, 0x3d, 0xd7, 0x48, 0xea, 0x77, 0x8a, 0xdc, 0x52, 0xbc, 0x49, 0x8c, 0xe8, 0x05,
                0x24, 0xc0, 0x14, 0xb8, 0x11, 0x19};
        memcpy(task.task.params_digest, digest, sizeof(digest));
        w->n_hellos++;
        w->stream.envelope_max = MFL_ENVELOPE_MAX;
        w->stream.payload_max = MFL_PAYLOAD_MAX;
        send_msg(w, &welcome, NULL);
        if (w->n_hellos > 1)
                return;
        send_msg(w, &spec, "name: t\n");
        send_msg(w, &task, NULL);
}

static void send_params(struct world *w, const struct mfl_msg *get)
{
        static const float zero;
        struct mfl_error err;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        Mfl__Params params = MFL__PARAMS__INIT;
        params.job = (char *)JOB;
        params.digest.data = (uint8_t *)get->params.digest;
        params.digest.len = MFL_DIGEST_BYTES;
        params.total = 1;
        envelope.body_case = MFL__ENVELOPE__BODY_PARAMS;
        envelope.params = &params;
        assert_int_equal(
                mfl_stream_send(&w->stream, &envelope, &zero, sizeof(zero), NULL, NULL, NULL, &err), 0);
}

static void grant(struct world *w, uint64_t task)
{
        struct mfl_range ranges[] = {{0, SUM_BYTES / 2}, {SUM_BYTES / 2, SUM_BYTES / 2}};
        struct mfl_msg msg = {
                .kind = MFL_MSG_GRANT, .update = {.task = task, .n_ranges = 2, .ranges = ranges}};
        w->n_uploaded = 0;
        send_msg(w, &msg, NULL);
}

static void on_announce(struct world *w, const struct mfl_announce *announce)
{
        assert_int_equal(announce->task, TASK);
        if (!announce->group) {
                w->n_alone_announces++;
                grant(w, TASK);
                return;
        }
        assert_int_equal(announce->group, GROUP);
        assert_int_equal(w->published, GROUP);
        w->n_group_announces++;
        struct mfl_msg combine = {
                .kind = MFL_MSG_COMBINE, .combine = {.group = GROUP, .ranks = 3, .deadline_ms = 7000}};
        send_msg(w, &combine, NULL);
        grant(w, GROUP);
}

static void end_upload(struct world *w)
{
        assert_memory_equal(w->upload, w->chunk_task == GROUP ? w->sum : w->own, SUM_BYTES);
        struct mfl_msg alone = {.kind = MFL_MSG_ALONE, .cancel = {.task = TASK, .reason = "rank 1 is lost"}};
        if (w->ending == TOO_LATE && w->chunk_task == GROUP) {
                send_msg(w, &alone, NULL);
                grant(w, TASK);
                return;
        }
        struct mfl_msg accepted = {.kind = MFL_MSG_ACCEPTED, .update = {.task = TASK}};
        send_msg(w, &accepted, NULL);
        mfl_link_stop(w->link);
}

/* In the midst of the sum's upload. */
static void end_group(struct world *w)
{
        struct mfl_msg alone = {.kind = MFL_MSG_ALONE, .cancel = {.task = TASK, .reason = "rank 1 is lost"}};
        struct mfl_msg cancel = {.kind = MFL_MSG_CANCEL, .cancel = {.task = TASK, .reason = "late"}};
        w->ended_group = w->ending != ACCEPTED && w->ending != TOO_LATE && w->ending != FAILED;
        if (w->ending == ALONE) {
                send_msg(w, &alone, NULL);
                grant(w, TASK);
        } else if (w->ending == CANCELLED) {
                send_msg(w, &cancel, NULL);
        } else if (w->ending == LOST) {
                mfl_stream_close(&w->stream, "cut", true);
        } else if (w->ending == STOPPED) {
                mfl_link_stop(w->link);
        }
}

static int on_payload(struct mfl_stream *stream, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        struct world *w = stream->owner;
        assert_int_equal(envelope->body_case, MFL__ENVELOPE__BODY_CHUNK);
        assert_true(envelope->chunk->offset + payload_bytes <= SUM_BYTES);
        *ret_dst = w->upload + envelope->chunk->offset;
        return 0;
}

static void take_chunk(struct world *w, const Mfl__Chunk *chunk, size_t bytes)
{
        if (chunk->task == GROUP && w->combine)
                assert_true(
                        chunk->offset + bytes <= atomic_load(&w->combine->control.ready) * sizeof(int64_t));
        if (w->late) {
                uint64_t ready = atomic_load(&w->result.control.ready);
                assert_true(chunk->offset + bytes <= ready * sizeof(int64_t));
                w->n_early += ready < N;
        }
        /* What was on its way when the group ended. */
        if (w->ended_group && chunk->task == GROUP)
                return;
        w->chunk_task = chunk->task;
        w->n_uploaded += bytes;
        if (w->n_uploaded == SUM_BYTES)
                end_upload(w);
        else if ((chunk->task == GROUP || w->late) && w->n_uploaded >= SUM_BYTES / 4 && !w->ended_group)
                end_group(w);
}

static int on_frame(struct mfl_stream *stream, const Mfl__Envelope *envelope, void *payload,
        size_t payload_bytes, struct mfl_error *err)
{
        struct world *w = stream->owner;
        if (envelope->body_case == MFL__ENVELOPE__BODY_CHUNK) {
                take_chunk(w, envelope->chunk, payload_bytes);
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
                assert_true(msg.hello.has_reach);
                assert_int_equal(msg.hello.reach.memory_space, 123);
                send_task(w);
        } else if (msg.kind == MFL_MSG_PARAMS_GET) {
                send_params(w, &msg);
        } else if (msg.kind == MFL_MSG_ANNOUNCE) {
                on_announce(w, &msg.announce);
        } else if (msg.kind == MFL_MSG_COMBINE_FAILED) {
                assert_int_equal(msg.cancel.task, GROUP);
                mfl_strcpy(w->combine_failed, sizeof(w->combine_failed), msg.cancel.reason);
                w->ended_group = true;
                struct mfl_msg alone = {.kind = MFL_MSG_ALONE, .cancel = {.task = TASK, .reason = "failed"}};
                send_msg(w, &alone, NULL);
                grant(w, TASK);
        } else if (msg.kind == MFL_MSG_COMMUNICATOR_ID) {
                assert_int_equal(msg.communicator.communicator, 44);
                w->n_communicator_ids++;
                if (w->n_communicator_ids == 1) {
                        assert_true(msg.communicator.made);
                        assert_int_equal(msg.communicator.id[127], 0x77);
                        w->listener.communicator(w->listener.user, 44, NULL, "rank 1 does not answer");
                } else {
                        assert_false(msg.communicator.made);
                        assert_string_equal(msg.communicator.reason, "rank 1 does not answer");
                }
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
        .on_payload = on_payload, .on_frame = on_frame, .on_closed = on_server_closed};

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

/* ---- the whole ---- */

static void on_link_closed(void *user)
{
        struct world *w = user;
        mfl_worker_close(&w->hasher, NULL);
        uv_close((uv_handle_t *)&w->listener_tcp, NULL);
        uv_close((uv_handle_t *)&w->watchdog, NULL);
        uv_close((uv_handle_t *)&w->work, NULL);
        uv_close((uv_handle_t *)&w->script, NULL);
        if (w->stream_open)
                mfl_stream_close(&w->stream, NULL, false);
}

static void on_exit_wanted(struct mfl_link *link, int status, const char *reason)
{
        struct world *w = mfl_link_user(link);
        w->exit_status = status;
        mfl_link_close(link, on_link_closed);
}

/* A task that is taken back is not answered, so nothing else ends this. */
static void on_script(uv_timer_t *timer)
{
        struct world *w = timer->data;
        uint8_t id[MFL_COMMUNICATOR_ID_BYTES] = {[127] = 0x77};
        if (w->made_id && !w->n_communicator_ids)
                w->listener.communicator(w->listener.user, 44, id, NULL);
        if (w->ending == CANCELLED && w->n_results_freed)
                mfl_link_stop(w->link);
}

static void on_watchdog(uv_timer_t *timer)
{
        fail_msg("nothing happened for 20 s");
}

static void open_link(struct world *w)
{
        struct mfl_error err;
        struct sockaddr_storage addr;
        int length = sizeof(addr);
        char server[64];
        assert_int_equal(uv_tcp_getsockname(&w->listener_tcp, (struct sockaddr *)&addr, &length), 0);
        snprintf(server, sizeof(server), "127.0.0.1:%u", ntohs(((struct sockaddr_in *)&addr)->sin_port));
        struct mfl_link_options options = {.server = server,
                .agent = {.results_max = 2,
                        .info = {.name = "d",
                                .node = "n",
                                .backend = "reference",
                                .device = "x",
                                .software = "test",
                                .instance = SELF,
                                .workers = 2,
                                .has_reach = true,
                                .reach = {.user = 1, .network_space = 5, .memory_space = 123}}},
                .ops = &fake_ops,
                .compute = w,
                .hasher = &w->hasher,
                .chunk_bytes = CHUNK,
                .chunks_max = 2,
                .user = w,
                .on_exit = on_exit_wanted};
        assert_int_equal(mfl_link_open(&w->loop, &options, &w->link, &err), 0);
}

static void run_world(struct world *w)
{
        struct mfl_error err;
        struct sockaddr_in any;
        w->exit_status = -1;
        for (uint64_t i = 0; i < N && !w->late; i++)
                w->own[i] = -5 * (int64_t)i;
        assert_int_equal(uv_loop_init(&w->loop), 0);
        uv_ip4_addr("127.0.0.1", 0, &any);
        uv_tcp_init(&w->loop, &w->listener_tcp);
        uv_timer_init(&w->loop, &w->watchdog);
        uv_timer_init(&w->loop, &w->work);
        uv_timer_init(&w->loop, &w->script);
        w->listener_tcp.data = w->work.data = w->script.data = w;
        assert_int_equal(uv_tcp_bind(&w->listener_tcp, (struct sockaddr *)&any, 0), 0);
        assert_int_equal(uv_listen((uv_stream_t *)&w->listener_tcp, 8, on_connection), 0);
        uv_timer_start(&w->watchdog, on_watchdog, 20000, 0);
        uv_timer_start(&w->work, on_work, 2, 2);
        uv_timer_start(&w->script, on_script, 2, 2);
        assert_int_equal(mfl_worker_start(&w->hasher, &w->loop, "hash", 16, &err), 0);
        open_link(w);
        uv_run(&w->loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&w->loop), 0);
        assert_int_equal(w->exit_status, 0);
        assert_true(w->got_bye);
        assert_int_equal(w->n_group_announces, !w->late);
        assert_int_equal(w->n_combines, !w->late);
        assert_int_equal(w->n_combines_freed, !w->late);
        assert_int_equal(w->n_results_freed, 1);
        assert_null(w->listener.communicator);
}

static struct world *new_world(enum ending ending, enum mfl_collective_kind collective)
{
        struct world *w = calloc(1, sizeof(*w));
        w->ending = ending;
        w->collective = collective;
        run_world(w);
        return w;
}

static void a_sum_is_uploaded_as_it_gets_ready(void **state)
{
        struct world *w = new_world(ACCEPTED, MFL_COLLECTIVE_SHM);
        assert_int_equal(w->chunk_task, GROUP);
        assert_int_equal(w->n_alone_announces, 0);
        assert_int_equal(w->n_communicators, 0);
        free(w);
}

/* Also when the connection is lost meanwhile, and when the result is not wanted any more. */
static void an_own_sum_is_uploaded_as_it_lands(void **state)
{
        static const enum ending endings[] = {ACCEPTED, LOST, CANCELLED};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(endings); i++) {
                struct world *w = calloc(1, sizeof(*w));
                w->late = true;
                w->ending = endings[i];
                run_world(w);
                assert_int_equal(w->n_hellos, endings[i] == LOST ? 2 : 1);
                assert_true(endings[i] == CANCELLED || w->n_uploaded == SUM_BYTES);
                assert_true(w->n_early > 0);
                free(w);
        }
}

static void alone_ends_a_combine_and_the_own_update_goes(void **state)
{
        struct world *w = new_world(ALONE, MFL_COLLECTIVE_SHM);
        assert_int_equal(w->n_cancels, 1);
        assert_int_equal(w->chunk_task, TASK);
        assert_int_equal(w->n_uploaded, SUM_BYTES);
        assert_string_equal(w->combine_failed, "");
        free(w);
}

/* The sum was there and sent, and it is not wanted: its memory goes while the result stays. */
static void alone_after_a_combine_frees_the_sum(void **state)
{
        struct world *w = new_world(TOO_LATE, MFL_COLLECTIVE_SHM);
        assert_int_equal(w->chunk_task, TASK);
        assert_int_equal(w->n_uploaded, SUM_BYTES);
        free(w);
}

static void a_cancelled_task_cancels_its_combine(void **state)
{
        struct world *w = new_world(CANCELLED, MFL_COLLECTIVE_SHM);
        assert_int_equal(w->n_cancels, 1);
        free(w);
}

static void a_lost_connection_ends_the_group(void **state)
{
        struct world *w = new_world(LOST, MFL_COLLECTIVE_SHM);
        assert_int_equal(w->n_hellos, 2);
        assert_int_equal(w->n_cancels, 1);
        assert_int_equal(w->n_alone_announces, 1);
        assert_int_equal(w->chunk_task, TASK);
        assert_int_equal(w->n_uploaded, SUM_BYTES);
        free(w);
}

static void a_stop_cancels_a_combine(void **state)
{
        struct world *w = new_world(STOPPED, MFL_COLLECTIVE_SHM);
        assert_int_equal(w->n_cancels, 1);
        free(w);
}

static void a_failed_combine_is_told_to_the_server(void **state)
{
        struct world *w = new_world(FAILED, MFL_COLLECTIVE_SHM);
        assert_string_equal(w->combine_failed, "rank 1 is gone");
        assert_int_equal(w->n_cancels, 0);
        assert_int_equal(w->chunk_task, TASK);
        free(w);
}

/* The leader makes the id; that the communicator fails later is told, too. */
static void a_communicator_is_made_and_its_end_told(void **state)
{
        struct world *w = new_world(ACCEPTED, MFL_COLLECTIVE_NCCL);
        assert_int_equal(w->n_communicators, 1);
        assert_true(w->made_id && !w->opened_id);
        assert_int_equal(w->n_communicator_ids, 2);
        free(w);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_sum_is_uploaded_as_it_gets_ready),
                cmocka_unit_test(an_own_sum_is_uploaded_as_it_lands),
                cmocka_unit_test(alone_ends_a_combine_and_the_own_update_goes),
                cmocka_unit_test(alone_after_a_combine_frees_the_sum),
                cmocka_unit_test(a_cancelled_task_cancels_its_combine),
                cmocka_unit_test(a_lost_connection_ends_the_group),
                cmocka_unit_test(a_stop_cancels_a_combine),
                cmocka_unit_test(a_failed_combine_is_told_to_the_server),
                cmocka_unit_test(a_communicator_is_made_and_its_end_told),
        };
        return cmocka_run_group_tests_name("client_link_group", tests, NULL, NULL);
}
