/* SPDX-License-Identifier: Apache-2.0 */
/* The agent alone, while params arrive: from the server and from another daemon, with everything that may go
 * wrong on the way. */
#include "tests/sim/agent_bed.h"

#define JOB "j-000001"

static void begin(void)
{
        assert_int_equal(make(), 0);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
        go_online();
        message((struct mfl_msg){.kind = MFL_MSG_JOB_SPEC, .job = JOB});
}

/* A task whose params are those of the given digest. */
static struct mfl_msg task_of(uint64_t number, uint32_t round, uint8_t digest, uint64_t params_from)
{
        struct mfl_msg msg = task_message(number, round, 0, 0, params_from);
        msg.task.params_digest[0] = digest;
        return msg;
}

static void reconnect(void)
{
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_CLOSED});
        tick(mfl_agent_next_ms(agent));
        go_online();
}

static void give_room(uint64_t part)
{
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_PARAMS_ROOM, .part = part, .ok = true});
}

static void looked(uint64_t part, bool ok, bool gone)
{
        feed((struct mfl_agent_event){
                .kind = MFL_AGENT_EV_PARAMS_LOOKED, .part = part, .ok = ok, .gone = gone});
}

static void arrived(uint64_t part, uint64_t offset, uint64_t n)
{
        feed((struct mfl_agent_event){
                .kind = MFL_AGENT_EV_PARAMS_ARRIVED, .part = part, .offset = offset, .n_floats = n});
}

static void hashed(uint64_t part, bool ok)
{
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_PARAMS_HASHED, .part = part, .ok = ok});
}

static int place(uint8_t first, uint64_t offset, uint64_t n, uint64_t total)
{
        uint8_t digest[MFL_DIGEST_BYTES] = {first};
        uint64_t part;
        const struct mfl_agent_piece piece = {
                .job = JOB, .digest = digest, .offset = offset, .n = n, .total = total};
        return mfl_agent_params_place(agent, &piece, &part);
}

/* Runs out of PINGs: only the moment of the tick matters. */
static void wait_ms(uint64_t ms)
{
        for (uint64_t until = now_ms + ms; now_ms < until;) {
                feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_HEARD});
                tick(MFL_MIN(until, now_ms + 900));
        }
}

/* Pieces are hashed while the rest comes, and computing begins only when the digest is right. */
static void test_pieces(void **state)
{
        (void)state;
        begin();
        message(task_of(1, 1, 5, 0));
        const struct mfl_agent_action *room = action(MFL_AGENT_ACT_PARAMS_ROOM);
        uint64_t part = room->part;
        assert_int_equal(room->n_floats, 4);
        assert_int_equal(room->reuse, 0);
        assert_int_equal(place(5, 0, 2, 4), MFL_NOT_FOUND); /* nothing is asked for yet */
        give_room(part);
        assert_int_equal(sent(MFL_MSG_PARAMS_GET)->params.offset, 0);
        assert_int_equal(place(5, 0, 2, 4), 0);
        assert_int_equal(place(5, 0, 5, 4), MFL_INVALID);
        assert_int_equal(place(5, 0, 2, 9), MFL_INVALID);
        assert_int_equal(place(5, 2, 2, 4), MFL_NOT_FOUND); /* it is not the next one */
        assert_int_equal(place(6, 0, 2, 4), MFL_NOT_FOUND);
        arrived(part, 0, 2);
        assert_int_equal(action(MFL_AGENT_ACT_PARAMS_HASH)->n_floats, 2);
        arrived(part, 0, 2); /* doubled */
        assert_int_equal(place(5, 0, 2, 4), MFL_NOT_FOUND);
        arrived(part, 2, 2);
        assert_null(action(MFL_AGENT_ACT_PARAMS_HASH)); /* one stretch at a time */
        hashed(part, false);
        assert_int_equal(action(MFL_AGENT_ACT_PARAMS_HASH)->offset, 2);
        assert_null(action(MFL_AGENT_ACT_COMPUTE));
        hashed(part, true);
        assert_int_equal(action(MFL_AGENT_ACT_COMPUTE)->part, part);
        assert_non_null(action(MFL_AGENT_ACT_PARAMS_SHARE));
        end();
}

static void test_refused(void **state)
{
        (void)state;
        begin();
        message(task_of(1, 1, 5, 0));
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_PARAMS_ROOM,
                .part = action(MFL_AGENT_ACT_PARAMS_ROOM)->part,
                .reason = "16 GB of params, 8 GB are left"});
        assert_true(sent(MFL_MSG_TASK_FAILED)->failed.permanent);
        assert_string_equal(sent(MFL_MSG_TASK_FAILED)->failed.reason, "16 GB of params, 8 GB are left");
        assert_null(action(MFL_AGENT_ACT_COMPUTE));
        message(task_of(2, 1, 5, 0)); /* there may be room by now */
        assert_non_null(action(MFL_AGENT_ACT_PARAMS_ROOM));
        end();
}

static void test_wrong_digest(void **state)
{
        (void)state;
        begin();
        message(task_of(1, 1, 5, 0));
        uint64_t part = action(MFL_AGENT_ACT_PARAMS_ROOM)->part;
        give_room(part);
        for (int i = 0; i < 3; i++) {
                assert_int_equal(sent(MFL_MSG_PARAMS_GET)->params.offset, 0);
                arrived(part, 0, 4);
                hashed(part, false);
        }
        assert_false(sent(MFL_MSG_TASK_FAILED)->failed.permanent);
        assert_int_equal(action(MFL_AGENT_ACT_PARAMS_FREE)->part, part);
        end();
}

static void test_cut(void **state)
{
        (void)state;
        begin();
        message(task_of(1, 1, 5, 0));
        uint64_t part = action(MFL_AGENT_ACT_PARAMS_ROOM)->part;
        give_room(part);
        arrived(part, 0, 3);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_CLOSED});
        assert_int_equal(place(5, 3, 1, 4), MFL_NOT_FOUND);
        arrived(part, 3, 1); /* it was on its way when the connection was lost: nobody knows it any more */
        tick(mfl_agent_next_ms(agent));
        go_online();
        assert_int_equal(sent(MFL_MSG_PARAMS_GET)->params.offset, 3);
        end();
}

/* A piece that got lost is not waited for for ever; one that comes slowly is. */
static void test_standstill(void **state)
{
        (void)state;
        begin();
        message(task_of(1, 1, 5, 0));
        uint64_t part = action(MFL_AGENT_ACT_PARAMS_ROOM)->part;
        give_room(part);
        arrived(part, 0, 1);
        wait_ms(9000);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_HEARD, .part = part});
        wait_ms(9500);
        assert_null(sent(MFL_MSG_PARAMS_GET));
        wait_ms(500);
        assert_int_equal(sent(MFL_MSG_PARAMS_GET)->params.offset, 1);
        end();
}

static void test_gone(void **state)
{
        (void)state;
        begin();
        message(task_of(1, 1, 5, 0));
        give_room(action(MFL_AGENT_ACT_PARAMS_ROOM)->part);
        struct mfl_msg gone = {.kind = MFL_MSG_PARAMS_GONE, .params = {.job = JOB, .digest = {6}}};
        message(gone);
        assert_null(sent(MFL_MSG_TASK_FAILED));
        gone.params.digest[0] = 5;
        message(gone);
        assert_false(sent(MFL_MSG_TASK_FAILED)->failed.permanent);
        end();
}

/* The frozen part comes first, by its own digest, and stays; then the moving one. */
static void test_frozen(void **state)
{
        struct mfl_msg task = task_of(1, 1, 5, 0);
        task.task.n_frozen = 3;
        task.task.frozen_digest[0] = 9;
        (void)state;
        begin();
        message(task);
        uint64_t frozen = action(MFL_AGENT_ACT_PARAMS_ROOM)->part;
        assert_int_equal(action(MFL_AGENT_ACT_PARAMS_ROOM)->n_floats, 3);
        give_room(frozen);
        assert_int_equal(sent(MFL_MSG_PARAMS_GET)->params.digest[0], 9);
        arrived(frozen, 0, 3);
        hashed(frozen, true);
        const struct mfl_agent_action *room = action(MFL_AGENT_ACT_PARAMS_ROOM);
        assert_int_equal(room->n_floats, 1);
        assert_int_equal(room->frozen_part, frozen);
        arrive();
        assert_int_equal(action(MFL_AGENT_ACT_COMPUTE)->frozen_part, frozen);
        end();
}

/* ---- from another daemon ---- */

static void test_look(void **state)
{
        (void)state;
        begin();
        message(task_of(1, 1, 5, 101));
        uint64_t part = action(MFL_AGENT_ACT_PARAMS_LOOK)->part, n_looks = 0;
        assert_int_equal(action(MFL_AGENT_ACT_PARAMS_LOOK)->from, 101);
        for (uint64_t start = now_ms; now_ms < start + 4000; n_looks++) {
                looked(part, false, false);
                assert_in_range(mfl_agent_next_ms(agent), now_ms + 1, now_ms + 20);
                while (!action(MFL_AGENT_ACT_PARAMS_LOOK)) {
                        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_HEARD});
                        tick(mfl_agent_next_ms(agent));
                }
        }
        assert_in_range(n_looks, 100, 400);
        looked(part, true, false);
        assert_int_equal(action(MFL_AGENT_ACT_COMPUTE)->part, part);
        assert_null(sent(MFL_MSG_PARAMS_GET));
        end();
}

/* What ends a wait: the other daemon's death, its time, another order, a lost connection. */
static void test_look_ends(void **state)
{
        (void)state;
        begin();
        message(task_of(1, 1, 5, 101));
        looked(action(MFL_AGENT_ACT_PARAMS_LOOK)->part, false, true);
        assert_non_null(action(MFL_AGENT_ACT_PARAMS_ROOM));
        end();

        begin();
        message(task_of(1, 1, 5, 101));
        uint64_t part = action(MFL_AGENT_ACT_PARAMS_LOOK)->part;
        wait_ms(6000); /* the answer comes late */
        looked(part, false, false);
        assert_non_null(action(MFL_AGENT_ACT_PARAMS_ROOM));
        end();

        begin();
        message(task_of(1, 1, 5, 101));
        looked(part, false, false);
        message(task_of(1, 1, 5, 101));
        assert_null(action(MFL_AGENT_ACT_PARAMS_LOOK));
        message(task_of(1, 1, 5, 102));
        assert_int_equal(action(MFL_AGENT_ACT_PARAMS_LOOK)->from, 102);
        message((struct mfl_msg){.kind = MFL_MSG_ALONE, .cancel = {1, "it is gone"}});
        looked(part, false, false);
        assert_non_null(action(MFL_AGENT_ACT_PARAMS_ROOM));
        give_room(part);
        message(task_of(1, 1, 5, 101)); /* the download of its own just goes on */
        assert_int_equal(actions.n, 0);
        end();

        begin();
        message(task_of(1, 1, 5, 101));
        looked(part, false, false);
        reconnect();
        assert_null(action(MFL_AGENT_ACT_PARAMS_LOOK));
        give_room(part);
        assert_non_null(sent(MFL_MSG_PARAMS_GET));
        end();
}

/* The one that is to have them for the node shares them, also what it holds since long. */
static void test_share(void **state)
{
        (void)state;
        begin();
        message(task_of(1, 1, 5, 0));
        arrive();
        assert_false(action(MFL_AGENT_ACT_PARAMS_SHARE)->make);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_COMPUTED, .task = 1, .reason = "it broke"});
        message(task_of(2, 1, 5, 7));
        assert_true(action(MFL_AGENT_ACT_PARAMS_SHARE)->make);
        assert_non_null(action(MFL_AGENT_ACT_COMPUTE));
        end();
}

/* ---- what is kept ---- */

static void test_evict(void **state)
{
        uint64_t part[6];
        (void)state;
        begin();
        for (uint32_t round = 1; round <= 5; round++) {
                message(task_of(round, round, (uint8_t)round, 0));
                part[round] = arriving.part;
                if (round > 2)
                        assert_int_equal(action(MFL_AGENT_ACT_PARAMS_ROOM)->reuse, part[round - 2]);
                computed(round, false);
                message((struct mfl_msg){.kind = MFL_MSG_ACCEPTED, .update = {.task = round}});
        }
        message(task_of(6, 6, 4, 0)); /* the one of before is here still */
        assert_int_equal(action(MFL_AGENT_ACT_COMPUTE)->part, part[4]);
        end();
}

static void test_job_over(void **state)
{
        (void)state;
        begin();
        message(task_of(1, 1, 5, 0));
        uint64_t part = arriving.part;
        arrive();
        message(task_of(2, 1, 6, 0));
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_JOB_OVER, .job = JOB});
        assert_int_equal(action(MFL_AGENT_ACT_PARAMS_FREE)->part, part);
        assert_string_equal(action(MFL_AGENT_ACT_JOB_FORGET)->job, JOB);
        assert_null(action(MFL_AGENT_ACT_ABORT)); /* its own Cancel does that */
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_COMPUTED, .task = 1, .reason = "it broke"});
        assert_null(action(MFL_AGENT_ACT_PARAMS_ROOM)); /* the second task is gone */
        message(task_of(3, 1, 6, 0));
        assert_string_equal(sent(MFL_MSG_TASK_FAILED)->failed.reason, "a task without its job file");
        end();
}

/* The job ended while the daemon was away: the server names another one to the new connection, and never this one. */
static void test_unnamed(void **state)
{
        uint32_t seconds = 0;
        (void)state;
        begin();
        message(task_of(1, 1, 5, 0));
        uint64_t part = arriving.part;
        computed(1, false);
        message((struct mfl_msg){.kind = MFL_MSG_ACCEPTED, .update = {.task = 1}});
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_CLOSED, .reason = "cut"});
        tick(mfl_agent_next_ms(agent));
        go_online();
        message((struct mfl_msg){.kind = MFL_MSG_JOB_SPEC, .job = "j-000002"});
        for (; seconds < 30; seconds++) {
                tick(now_ms + 1000);
                if (action(MFL_AGENT_ACT_JOB_FORGET))
                        break;
                message((struct mfl_msg){.kind = MFL_MSG_PONG});
        }
        assert_true(seconds >= 9 && seconds < 12);
        assert_string_equal(action(MFL_AGENT_ACT_JOB_FORGET)->job, JOB);
        assert_int_equal(action(MFL_AGENT_ACT_PARAMS_FREE)->part, part);
        for (seconds = 0; seconds < 20; seconds++) {
                message((struct mfl_msg){.kind = MFL_MSG_PONG});
                tick(now_ms + 1000);
                assert_null(action(MFL_AGENT_ACT_JOB_FORGET)); /* the other one was named */
        }
        end();
}

static void download(void)
{
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
        go_online();
        message((struct mfl_msg){.kind = MFL_MSG_JOB_SPEC, .job = JOB});
        struct mfl_msg task = task_of(1, 1, 5, 101);
        task.task.n_frozen = 3;
        message(task);
        if (result)
                return;
        looked(action(MFL_AGENT_ACT_PARAMS_LOOK)->part, true, false);
        if (result)
                return;
        looked(action(MFL_AGENT_ACT_PARAMS_LOOK)->part, false, true);
        computed(1, false);
}

static void test_no_memory(void **state)
{
        (void)state;
        sweep_memory(download);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_pieces),
                cmocka_unit_test(test_refused),
                cmocka_unit_test(test_wrong_digest),
                cmocka_unit_test(test_cut),
                cmocka_unit_test(test_standstill),
                cmocka_unit_test(test_gone),
                cmocka_unit_test(test_frozen),
                cmocka_unit_test(test_look),
                cmocka_unit_test(test_look_ends),
                cmocka_unit_test(test_share),
                cmocka_unit_test(test_evict),
                cmocka_unit_test(test_job_over),
                cmocka_unit_test(test_unnamed),
                cmocka_unit_test(test_no_memory),
        };
        return cmocka_run_group_tests_name("agent_params", tests, NULL, NULL);
}
