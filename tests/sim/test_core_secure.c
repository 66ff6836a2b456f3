/* SPDX-License-Identifier: Apache-2.0 */
/* The server core and secure sums: what becomes of updates that are under way when a stage ends. Daemons send keys, shares and signatures
 * that nobody has made, since the server checks none. */
#include "tests/lib/test.h"

#include <stdio.h>

#include "common/secure/schedule.h"
#include "proto/version.h"
#include "server/core/core.h"

#define DAEMONS_MAX (MFL_SECURE_MEMBERS_MAX + 1)

struct daemon {
        uint64_t task;
        uint32_t round, n_survivors; /* 0: it was shown none */
        enum mfl_secure_step told;   /* last */
};

struct bed {
        struct mfl_core *core;
        struct mfl_job spec;
        uint64_t now;
        uint32_t n, holds; /* holds: the connection whose upload and addition the test ends; 0: none */
        struct daemon d[DAEMONS_MAX];
        uint32_t slot, n_added, n_unmasked, n_cancelled;
        uint64_t grant;
        bool granted, adding;
        uint32_t round, clients; /* committed last */
        char reason[MFL_REASON_BYTES];
};

static void feed(struct bed *bed, const struct mfl_core_event *event);

static void job_event(struct bed *bed, enum mfl_core_event_kind kind)
{
        struct mfl_core_event event = {.kind = kind, .ok = true, .job = "j-000001"};
        if (kind == MFL_EV_JOB_READY)
                event.job_ready.n_params = event.job_ready.n_slots = 4;
        if (kind == MFL_EV_UNMASKED)
                event.figures[MFL_FIGURE_WEIGHT] = event.figures[MFL_FIGURE_SAMPLES] = 100;
        feed(bed, &event);
}

static void slot_event(
        struct bed *bed, enum mfl_core_event_kind kind, uint32_t conn, uint32_t slot, uint64_t grant)
{
        feed(bed,
                &(struct mfl_core_event){
                        .kind = kind, .ok = true, .job = "j-000001", .conn = conn, .upload = {slot, grant}});
}

static void take_message(struct bed *bed, const struct mfl_core_action *action)
{
        struct daemon *d = &bed->d[action->conn - 1];
        const struct mfl_msg *msg = &action->msg;
        if (msg->kind == MFL_MSG_TASK) {
                *d = (struct daemon){.task = msg->task.task, .round = msg->task.round};
        } else if (msg->kind == MFL_MSG_CANCEL) {
                bed->n_cancelled++;
        } else if (msg->kind == MFL_MSG_SECURE) {
                d->told = msg->secure.step;
                if (d->told == MFL_SECURE_SURVIVORS)
                        d->n_survivors = mfl_secure_count(&msg->secure.set);
        }
}

static void answer(struct bed *bed, const struct mfl_core_action *action)
{
        bool held = bed->holds && action->conn == bed->holds;
        switch (action->kind) {
        case MFL_ACT_SEND:
                take_message(bed, action);
                break;
        case MFL_ACT_JOB_PREPARE:
                job_event(bed, MFL_EV_JOB_READY);
                break;
        case MFL_ACT_GRANT:
                bed->granted |= held;
                if (held) {
                        bed->slot = action->slot.slot;
                        bed->grant = action->slot.grant;
                } else
                        slot_event(bed, MFL_EV_UPLOAD_COMPLETE, action->conn, action->slot.slot,
                                action->slot.grant);
                break;
        case MFL_ACT_SLOT_ADD:
                bed->n_added++;
                bed->adding |= held;
                if (!held)
                        slot_event(bed, MFL_EV_ADDED, 0, action->slot.slot, action->slot.grant);
                break;
        case MFL_ACT_SECURE_NOTE:
                job_event(bed, MFL_EV_SECURE_NOTED);
                break;
        case MFL_ACT_UNMASK:
                bed->n_unmasked++;
                job_event(bed, MFL_EV_UNMASKED);
                break;
        case MFL_ACT_JOB_STATE:
                strcpy(bed->reason, action->reason);
                break;
        case MFL_ACT_APPLY:
                job_event(bed, MFL_EV_APPLIED);
                break;
        case MFL_ACT_CHECKPOINT:
                job_event(bed, MFL_EV_CHECKPOINTED);
                break;
        case MFL_ACT_COMMIT:
                bed->round = action->record.round;
                bed->clients = action->record.clients;
                job_event(bed, MFL_EV_COMMITTED);
                break;
        default:
                break;
        }
}

static void feed(struct bed *bed, const struct mfl_core_event *event)
{
        struct mfl_core_event now = *event;
        struct mfl_core_actions actions = {0};
        now.now_ms = bed->now;
        assert_int_equal(mfl_core_step(bed->core, &now, &actions), 0);
        for (uint32_t i = 0; i < actions.n; i++)
                answer(bed, &actions.v[i]);
        mfl_core_actions_deinit(&actions);
}

static void tick(struct bed *bed, uint64_t ms)
{
        bed->now += ms;
        feed(bed, &(struct mfl_core_event){.kind = MFL_EV_TICK});
}

static void send_msg(struct bed *bed, uint32_t i, const struct mfl_msg *msg)
{
        feed(bed, &(struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = i + 1, .msg = msg});
}

static void send_secure(struct bed *bed, uint32_t i, struct mfl_secure_msg *secure)
{
        struct mfl_msg msg = {.kind = MFL_MSG_SECURE, .secure = *secure};
        msg.secure.task = bed->d[i].task;
        send_msg(bed, i, &msg);
        mfl_secure_msg_deinit(secure);
}

/* Its masked update, and keys. */
static void announce(struct bed *bed, uint32_t i)
{
        static const uint8_t signature[] = "signature", chain[] = "chain";
        uint8_t bytes[MFL_SECURE_KEYS_MAX];
        struct mfl_secure_keys keys = {.signature = signature,
                .n_signature = sizeof signature,
                .chain = chain,
                .n_chain = sizeof chain};
        struct mfl_secure_msg secure = {.step = MFL_SECURE_KEYS};
        struct mfl_msg msg = {.kind = MFL_MSG_ANNOUNCE,
                .announce = {.task = bed->d[i].task,
                        .round = bed->d[i].round,
                        .item_count = 1,
                        .bytes = 4 * 8,
                        .encoding = MFL_ENCODING_I64,
                        .masked = true,
                        .job = "j-000001"}};
        send_msg(bed, i, &msg);
        keys.mask.v[0] = (uint8_t)(i >> 8);
        keys.mask.v[1] = (uint8_t)i;
        assert_int_equal(mfl_secure_msg_add(&secure, 0, bytes, mfl_secure_keys_write(&keys, bytes)), 0);
        send_secure(bed, i, &secure);
}

/* What the step that it was told last wants; the members' numbers are their daemons'. */
static void respond(struct bed *bed, uint32_t i)
{
        static const uint8_t bytes[2 * MFL_SECURE_KEY_BYTES + MFL_SECURE_SEAL_BYTES];
        static const enum mfl_secure_step steps[] = {[MFL_SECURE_PEERS] = MFL_SECURE_SHARES,
                [MFL_SECURE_MASK] = MFL_SECURE_MASKED,
                [MFL_SECURE_SURVIVORS] = MFL_SECURE_SIGNED,
                [MFL_SECURE_OPEN] = MFL_SECURE_OPENED};
        struct mfl_secure_msg secure = {.step = steps[bed->d[i].told], .has_figures = true};
        if (secure.step == MFL_SECURE_SIGNED)
                assert_int_equal(mfl_secure_msg_add(&secure, i, bytes, 8), 0);
        for (uint32_t k = 0; k < bed->n; k++)
                if (k != i && secure.step == MFL_SECURE_SHARES)
                        assert_int_equal(mfl_secure_msg_add(&secure, k, bytes, sizeof bytes), 0);
        send_secure(bed, i, &secure);
}

static void respond_all(struct bed *bed, enum mfl_secure_step told)
{
        for (uint32_t i = 0; i < bed->n; i++)
                if (bed->d[i].told == told)
                        respond(bed, i);
}

/* Each daemon is a site, and has its task. */
static void start(struct bed *bed, uint32_t n, uint32_t bucket)
{
        struct mfl_core_options options = {
                .boot = 1, .heartbeat_ms = 5000, .dead_ms = 600000, .reconnect_grace_ms = 600000};
        struct mfl_data_info data = {.name = "d", .classes = 10, .train_samples = 1000, .test_samples = 100};
        *bed = (struct bed){.n = n};
        strcpy(bed->spec.data.name, "d");
        bed->spec.rounds = 1;
        bed->spec.data.partition = MFL_PARTITION_LOCAL;
        bed->spec.aggregation.delta_max = 16;
        bed->spec.aggregation.strategy = bucket ? MFL_STRATEGY_MEDIAN : MFL_STRATEGY_FEDAVG;
        bed->spec.aggregation.weighting = MFL_WEIGHT_UNIFORM;
        if (bucket) {
                bed->spec.aggregation.robust.unit = MFL_ROWS_BUCKET;
                bed->spec.aggregation.robust.bucket = bucket;
        }
        bed->spec.secure.bits = 64;
        bed->spec.limits.quorum = 0.5;
        bed->spec.limits.deadline_ms = 60000;
        bed->spec.selection.daemons_min = n;
        assert_int_equal(mfl_core_new(&options, &bed->core, NULL), 0);
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_daemon_info info = {.protocol = MFL_PROTOCOL_MAX,
                        .instance = i + 1,
                        .workers = 1,
                        .n_data_sets = 1,
                        .data_sets = &data};
                snprintf(info.name, sizeof info.name, "d%05u", i);
                feed(bed, &(struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = i + 1, .daemon = &info});
        }
        feed(bed, &(struct mfl_core_event){
                          .kind = MFL_EV_JOB_ADD, .job = "j-000001", .job_add = {&bed->spec, 0}});
        tick(bed, 2000);
        for (uint32_t i = 0; i < n; i++)
                assert_true(bed->d[i].task);
}

static void end(struct bed *bed)
{
        mfl_core_check(bed->core);
        mfl_core_free(bed->core);
}

/* Four that upload, of whom the last one's upload is the test's. */
static void start_uploads(struct bed *bed, uint32_t bucket)
{
        start(bed, 4, bucket);
        for (uint32_t i = 0; i < 4; i++)
                announce(bed, i);
        respond_all(bed, MFL_SECURE_PEERS);
        bed->holds = 4;
        respond_all(bed, MFL_SECURE_MASK);
        assert_true(bed->granted && !bed->adding && bed->n_added == 3);
}

static void open_sum(struct bed *bed, uint32_t n_survivors, uint32_t n_told)
{
        for (uint32_t i = 0; i < 4; i++)
                assert_int_equal(bed->d[i].n_survivors, i < n_told ? n_survivors : 0);
        respond_all(bed, MFL_SECURE_SURVIVORS);
        respond_all(bed, MFL_SECURE_OPEN);
        assert_int_equal(bed->n_unmasked, 1);
        assert_true(bed->round == 1 && bed->clients == n_survivors);
        end(bed);
}

static const uint32_t buckets[] = {0, 4};

/* It may not come into the vector that is opened without it. */
static void test_an_upload_ends_after_the_deadline(void **state)
{
        struct bed bed;
        (void)state;
        for (size_t b = 0; b < MFL_ARRAY_SIZE(buckets); b++) {
                start_uploads(&bed, buckets[b]);
                tick(&bed, 60000);
                slot_event(&bed, MFL_EV_UPLOAD_COMPLETE, 4, bed.slot, bed.grant);
                assert_true(!bed.adding && bed.n_added == 3);
                open_sum(&bed, 3, 3);
        }
}

/* The sum waits for what becomes of an update that is being added, whatever time it is. */
static void test_an_update_is_being_added_at_the_deadline(void **state)
{
        struct bed bed;
        (void)state;
        for (size_t b = 0; b < MFL_ARRAY_SIZE(buckets); b++) {
                start_uploads(&bed, buckets[b]);
                slot_event(&bed, MFL_EV_UPLOAD_COMPLETE, 4, bed.slot, bed.grant);
                assert_true(bed.adding);
                tick(&bed, 60000);
                assert_int_equal(bed.d[0].n_survivors, 0);
                slot_event(&bed, MFL_EV_ADDED, 0, bed.slot, bed.grant);
                open_sum(&bed, 4, 4);
        }
}

/* It is in the sum though its daemon is lost meanwhile. */
static void test_a_daemon_is_lost_while_its_update_is_added(void **state)
{
        struct bed bed;
        (void)state;
        for (size_t b = 0; b < MFL_ARRAY_SIZE(buckets); b++) {
                start_uploads(&bed, buckets[b]);
                slot_event(&bed, MFL_EV_UPLOAD_COMPLETE, 4, bed.slot, bed.grant);
                feed(&bed, &(struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = 4});
                assert_int_equal(bed.d[0].n_survivors, 0);
                slot_event(&bed, MFL_EV_ADDED, 0, bed.slot, bed.grant);
                open_sum(&bed, 4, 3);
        }
}

/* The sum that begins at the deadline is one of those that have trained, and they have time to answer. */
static void test_the_sum_begins_at_the_deadline(void **state)
{
        struct bed bed;
        (void)state;
        for (size_t b = 0; b < MFL_ARRAY_SIZE(buckets); b++) {
                start(&bed, 4, b ? 3 : 0);
                for (uint32_t i = 0; i < 3; i++)
                        announce(&bed, i);
                assert_int_equal(bed.d[0].told, 0);
                tick(&bed, 60000);
                bed.n = 3;
                respond_all(&bed, MFL_SECURE_PEERS);
                tick(&bed, 1000);
                respond_all(&bed, MFL_SECURE_MASK);
                open_sum(&bed, 3, 3);
        }
}

/* More daemons than a secure sum may have: the job fails, and says why. */
static void test_too_many(void **state)
{
        static struct bed bed;
        (void)state;
        start(&bed, DAEMONS_MAX, 0);
        for (uint32_t i = 0; i < bed.n; i++)
                announce(&bed, i);
        assert_non_null(strstr(bed.reason, "at most 1024 participants, and there are 1025"));
        end(&bed);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_an_upload_ends_after_the_deadline),
                cmocka_unit_test(test_an_update_is_being_added_at_the_deadline),
                cmocka_unit_test(test_a_daemon_is_lost_while_its_update_is_added),
                cmocka_unit_test(test_the_sum_begins_at_the_deadline),
                cmocka_unit_test(test_too_many),
        };
        return cmocka_run_group_tests_name("core: secure sums", tests, NULL, NULL);
}
