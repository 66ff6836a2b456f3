/* SPDX-License-Identifier: Apache-2.0 */
/* A relay's core: traces of what it does, in plain English; random events, after which nothing is left behind; memory that runs
 * out at every allocation. */
#include "tests/lib/test.h"

#include "server/relay/relay_core.h"

#include <stdio.h>

#define BYTES 80u /* of an update */
#define GROUPS_MAX 500u

struct bed {
        struct mfl_relay_core *core;
        struct mfl_relay_actions actions;
        char text[8192];
        size_t n;
        uint64_t now;
        int r;
        /* What the shell would have. */
        struct {
                bool open, adding;
                uint64_t grant;
                uint64_t group;
        } slot[2];
        bool sum[GROUPS_MAX]; /* by the group's number */
        uint64_t group;       /* random events: the first of two groups at work */
        uint32_t n_opened;
        bool quiet;
};

static void bed_start(struct bed *bed)
{
        struct mfl_error err;
        const struct mfl_relay_options options = {.n_slots = 2, .stall_ms = 15000};
        *bed = (struct bed){.now = 1000};
        assert_int_equal(mfl_relay_core_new(&options, &bed->core, &err), 0);
}

static void bed_end(struct bed *bed)
{
        mfl_relay_actions_deinit(&bed->actions);
        mfl_relay_core_free(bed->core);
}

static void put(struct bed *bed, const char *fmt, ...) MFL_PRINTF(2, 3);
static void put(struct bed *bed, const char *fmt, ...)
{
        va_list ap;
        if (bed->quiet)
                return;
        va_start(ap, fmt);
        bed->n += (size_t)vsnprintf(bed->text + bed->n, sizeof bed->text - bed->n, fmt, ap);
        va_end(ap);
        assert_true(bed->n < sizeof bed->text);
}

static void put_action(struct bed *bed, const struct mfl_relay_action *a)
{
        char text[512];
        switch (a->kind) {
        case MFL_RELAY_ACT_PASS:
                put(bed, "  %s d%u: passed on%s\n", a->up ? "up, from" : "down, to", a->peer,
                        a->change == MFL_RELAY_NO_GROUP    ? " without its group"
                        : a->change == MFL_RELAY_FOR_SUM   ? " for a sum"
                        : a->change == MFL_RELAY_NEW_GROUP ? " with the group of a relay below"
                                                           : "");
                break;
        case MFL_RELAY_ACT_SEND:
                put(bed, "  %s d%u: %s\n", a->up ? "up, for" : "down, to", a->peer,
                        mfl_msg_text(&a->msg, text, sizeof text));
                break;
        case MFL_RELAY_ACT_PART:
                put(bed, "  d%u is told to be lost\n", a->peer);
                break;
        case MFL_RELAY_ACT_OPEN:
                put(bed, "  slot %u: %u bytes of %u from d%u\n", a->slot, (unsigned)a->bytes,
                        (unsigned)a->task, a->peer);
                break;
        case MFL_RELAY_ACT_CLOSE:
                put(bed, "  slot %u: closed\n", a->slot);
                break;
        case MFL_RELAY_ACT_ADD:
                put(bed, "  slot %u: is added to sum %u\n", a->slot, (unsigned)a->group);
                break;
        case MFL_RELAY_ACT_SUM_SEND:
                put(bed, "  up, for d%u: %u ranges of sum %u\n", a->peer, a->n_ranges, (unsigned)a->group);
                break;
        case MFL_RELAY_ACT_SUM_FREE:
                put(bed, "  sum %u goes\n", (unsigned)a->group);
                break;
        case MFL_RELAY_ACT_TRACE:
                put(bed, "  (%s)\n", a->text);
                break;
        }
}

/* What the shell does: a slot is open or not, as the core says. */
static void follow(struct bed *bed, const struct mfl_relay_action *a)
{
        if (a->kind == MFL_RELAY_ACT_OPEN) {
                assert_false(bed->slot[a->slot].open);
                bed->slot[a->slot].open = true;
                bed->slot[a->slot].adding = false;
                bed->slot[a->slot].grant = a->grant;
                bed->n_opened++;
        } else if (a->kind == MFL_RELAY_ACT_CLOSE) {
                assert_true(bed->slot[a->slot].open && bed->slot[a->slot].grant == a->grant);
                bed->slot[a->slot].open = false;
        } else if (a->kind == MFL_RELAY_ACT_ADD) {
                assert_true(bed->slot[a->slot].open && !bed->slot[a->slot].adding);
                bed->slot[a->slot].adding = true;
                bed->slot[a->slot].group = a->group;
        } else if (a->kind == MFL_RELAY_ACT_SUM_FREE) {
                assert_true(bed->sum[a->group]);
                bed->sum[a->group] = false;
        }
}

static void feed(struct bed *bed, const struct mfl_relay_event *event)
{
        struct mfl_relay_event e = *event;
        if (bed->r)
                return;
        e.now_ms = bed->now;
        bed->r = mfl_relay_core_step(bed->core, &e, &bed->actions);
        for (uint32_t i = 0; i < bed->actions.n && !bed->r; i++) {
                put_action(bed, &bed->actions.v[i]);
                follow(bed, &bed->actions.v[i]);
        }
        mfl_relay_actions_clear(&bed->actions);
        if (!bed->r)
                mfl_relay_core_check(bed->core);
}

/* ---- what happens ---- */

static void up(struct bed *bed, uint32_t peer, uint32_t lane)
{
        const struct mfl_relay_event event = {
                .kind = MFL_RELAY_EV_UP, .peer = peer, .instance = 100 + peer, .lane = lane};
        put(bed, "d%u comes%s\n", peer, lane ? " through a relay below" : "");
        feed(bed, &event);
}

static void peer_event(struct bed *bed, enum mfl_relay_event_kind kind, uint32_t peer)
{
        const struct mfl_relay_event event = {.kind = kind, .peer = peer};
        put(bed, "d%u %s\n", peer, kind == MFL_RELAY_EV_DOWN ? "is lost" : "is gone above");
        feed(bed, &event);
}

static void message(struct bed *bed, bool above, uint32_t peer, const struct mfl_msg *msg)
{
        char text[512];
        const struct mfl_relay_event event = {
                .kind = above ? MFL_RELAY_EV_FROM_ABOVE : MFL_RELAY_EV_FROM_BELOW, .peer = peer, .msg = msg};
        put(bed, "%s d%u: %s\n", above ? "from above, to" : "from", peer,
                mfl_msg_text(msg, text, sizeof text));
        feed(bed, &event);
}

/* Task 10 + peer of d`first` .. in group 50. */
static void task(struct bed *bed, uint32_t peer, uint32_t first, uint32_t n, uint64_t group)
{
        uint64_t items[1] = {peer};
        struct mfl_msg msg = {.kind = MFL_MSG_TASK};
        msg.task.task = 10 + peer;
        strcpy(msg.task.job, "j-000001");
        msg.task.round = 1;
        msg.task.kind = MFL_TASK_TRAIN;
        msg.task.n_items = 1;
        msg.task.items = items;
        msg.task.group = (struct mfl_group){.group = group,
                .collective = MFL_COLLECTIVE_RELAY,
                .rank = peer - first,
                .n_members = n,
                .workers = n};
        for (uint32_t r = 0; r < n; r++)
                msg.task.group.members[r] = 100 + first + r;
        message(bed, true, peer, &msg);
}

static void announce(struct bed *bed, uint32_t peer, uint64_t group)
{
        struct mfl_msg msg = {.kind = MFL_MSG_ANNOUNCE};
        msg.announce = (struct mfl_announce){.task = 10 + peer,
                .item_count = 1,
                .encoding = MFL_ENCODING_I64,
                .bytes = BYTES,
                .weight = 5,
                .round = 1,
                .group = group,
                .job = "j-000001"};
        message(bed, false, peer, &msg);
}

static void slot_event(struct bed *bed, enum mfl_relay_event_kind kind, uint32_t slot, bool ok)
{
        const struct mfl_relay_event event = {
                .kind = kind, .slot = slot, .grant = bed->slot[slot].grant, .ok = ok};
        put(bed, "slot %u: %s\n", slot,
                kind == MFL_RELAY_EV_WHOLE     ? "is whole"
                : kind == MFL_RELAY_EV_NO_ROOM ? "has no memory"
                : kind == MFL_RELAY_EV_MOVED   ? "moves"
                : ok                           ? "was added"
                                               : "was not added");
        if (kind == MFL_RELAY_EV_ADDED && ok)
                bed->sum[bed->slot[slot].group] = true;
        feed(bed, &event);
}

static void arrive(struct bed *bed, uint32_t slot)
{
        slot_event(bed, MFL_RELAY_EV_WHOLE, slot, false);
        slot_event(bed, MFL_RELAY_EV_ADDED, slot, true);
}

static void combine(struct bed *bed, uint32_t peer, uint64_t group, uint64_t ranks)
{
        struct mfl_msg msg = {.kind = MFL_MSG_COMBINE};
        msg.combine.group = group;
        msg.combine.ranks = ranks;
        msg.combine.deadline_ms = 1000;
        message(bed, true, peer, &msg);
}

static void answer(struct bed *bed, enum mfl_msg_kind kind, uint32_t peer, uint64_t number)
{
        struct mfl_range range = {.bytes = BYTES};
        struct mfl_msg msg = {.kind = kind};
        if (kind == MFL_MSG_ALONE || kind == MFL_MSG_CANCEL) {
                msg.cancel.task = number;
        } else {
                msg.update.task = number;
                msg.update.n_ranges = kind == MFL_MSG_GRANT;
                msg.update.ranges = kind == MFL_MSG_GRANT ? &range : NULL;
        }
        message(bed, true, peer, &msg);
}

static void expect(struct bed *bed, const char *golden)
{
        if (strcmp(bed->text, golden) != 0)
                fputs(bed->text, stderr); /* the message below is cut */
        assert_string_equal(bed->text, golden);
        bed->n = 0;
        bed->text[0] = '\0';
}

/* ---- traces ---- */

static void two_tasks(struct bed *bed)
{
        bed_start(bed);
        up(bed, 1, 0);
        up(bed, 2, 0);
        task(bed, 1, 1, 2, 50);
        task(bed, 2, 1, 2, 50);
}

static void test_a_sum(void **state)
{
        (void)state;
        struct bed bed;
        two_tasks(&bed);
        announce(&bed, 1, 0);
        announce(&bed, 2, 0);
        arrive(&bed, 1);
        arrive(&bed, 0);
        combine(&bed, 1, 50, 3);
        answer(&bed, MFL_MSG_GRANT, 1, 50);
        answer(&bed, MFL_MSG_ACCEPTED, 1, 11);
        answer(&bed, MFL_MSG_ACCEPTED, 2, 12);
        expect(&bed, "d1 comes\n"
                     "d2 comes\n"
                     "from above, to d1: task 11: train round 1 of j-000001, 1 items, in a group\n"
                     "  down, to d1: passed on for a sum\n"
                     "from above, to d2: task 12: train round 1 of j-000001, 1 items, in a group\n"
                     "  down, to d2: passed on for a sum\n"
                     "from d1: task 11: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 bytes, "
                     "weight 5\n"
                     "  slot 0: 80 bytes of 11 from d1\n"
                     "from d2: task 12: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 bytes, "
                     "weight 5\n"
                     "  slot 1: 80 bytes of 12 from d2\n"
                     "slot 1: is whole\n"
                     "  slot 1: is added to sum 50\n"
                     "slot 1: was added\n"
                     "  slot 1: closed\n"
                     "  up, for d2: task 12: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 "
                     "bytes, weight 5, for its group\n"
                     "slot 0: is whole\n"
                     "  slot 0: is added to sum 50\n"
                     "slot 0: was added\n"
                     "  slot 0: closed\n"
                     "  up, for d1: task 11: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 "
                     "bytes, weight 5, for its group\n"
                     "from above, to d1: group 50: combine ranks 3 at rank 0 within 1000 ms\n"
                     "from above, to d1: task 50: update 0 granted: 1 ranges, 80 bytes\n"
                     "  up, for d1: 1 ranges of sum 50\n"
                     "from above, to d1: task 11: update 0 accepted\n"
                     "  down, to d1: passed on\n"
                     "from above, to d2: task 12: update 0 accepted\n"
                     "  sum 50 goes\n"
                     "  down, to d2: passed on\n");
        bed_end(&bed);
}

/* The server learns of the loss when the update has counted. */
static void test_lost_in_a_sum(void **state)
{
        (void)state;
        struct bed bed;
        two_tasks(&bed);
        announce(&bed, 1, 0);
        arrive(&bed, 0);
        expect(&bed, "d1 comes\n"
                     "d2 comes\n"
                     "from above, to d1: task 11: train round 1 of j-000001, 1 items, in a group\n"
                     "  down, to d1: passed on for a sum\n"
                     "from above, to d2: task 12: train round 1 of j-000001, 1 items, in a group\n"
                     "  down, to d2: passed on for a sum\n"
                     "from d1: task 11: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 bytes, "
                     "weight 5\n"
                     "  slot 0: 80 bytes of 11 from d1\n"
                     "slot 0: is whole\n"
                     "  slot 0: is added to sum 50\n"
                     "slot 0: was added\n"
                     "  slot 0: closed\n"
                     "  up, for d1: task 11: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 "
                     "bytes, weight 5, for its group\n");
        peer_event(&bed, MFL_RELAY_EV_DOWN, 1);
        const struct mfl_msg ping = {.kind = MFL_MSG_PING, .cookie = 7};
        message(&bed, true, 1, &ping);
        announce(&bed, 2, 0);
        arrive(&bed, 0);
        combine(&bed, 1, 50, 3);
        answer(&bed, MFL_MSG_GRANT, 1, 50);
        answer(&bed, MFL_MSG_ACCEPTED, 1, 11);
        peer_event(&bed, MFL_RELAY_EV_ENDED, 1);
        answer(&bed, MFL_MSG_ACCEPTED, 2, 12);
        expect(&bed, "d1 is lost\n"
                     "  (a daemon is lost, and its update is in a sum: the server is told later)\n"
                     "from above, to d1: ping 7\n"
                     "  up, for d1: pong 7\n"
                     "from d2: task 12: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 bytes, "
                     "weight 5\n"
                     "  slot 0: 80 bytes of 12 from d2\n"
                     "slot 0: is whole\n"
                     "  slot 0: is added to sum 50\n"
                     "slot 0: was added\n"
                     "  slot 0: closed\n"
                     "  up, for d2: task 12: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 "
                     "bytes, weight 5, for its group\n"
                     "from above, to d1: group 50: combine ranks 3 at rank 0 within 1000 ms\n"
                     "from above, to d1: task 50: update 0 granted: 1 ranges, 80 bytes\n"
                     "  up, for d1: 1 ranges of sum 50\n"
                     "from above, to d1: task 11: update 0 accepted\n"
                     "  d1 is told to be lost\n"
                     "d1 is gone above\n"
                     "from above, to d2: task 12: update 0 accepted\n"
                     "  sum 50 goes\n"
                     "  down, to d2: passed on\n");
        bed_end(&bed);
}

/* The server has other work for it: now it must know. Then the sum has an update that Combine does not name. */
static void test_lost_and_asked(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed);
        for (uint32_t i = 1; i <= 3; i++)
                up(&bed, i, 0);
        for (uint32_t i = 1; i <= 3; i++)
                task(&bed, i, 1, 3, 50);
        for (uint32_t i = 1; i <= 3; i++) {
                announce(&bed, i, 0);
                arrive(&bed, 0);
        }
        bed.n = 0;
        peer_event(&bed, MFL_RELAY_EV_DOWN, 1);
        struct mfl_msg other = {.kind = MFL_MSG_TASK};
        other.task.task = 99;
        message(&bed, true, 1, &other);
        peer_event(&bed, MFL_RELAY_EV_ENDED, 1);
        combine(&bed, 2, 50, 6);
        answer(&bed, MFL_MSG_ALONE, 2, 12);
        answer(&bed, MFL_MSG_ALONE, 3, 13);
        answer(&bed, MFL_MSG_GRANT, 2, 12);
        answer(&bed, MFL_MSG_ACCEPTED, 2, 12);
        expect(&bed,
                "d1 is lost\n"
                "  (a daemon is lost, and its update is in a sum: the server is told later)\n"
                "from above, to d1: task 99: train round 0 of , 0 items\n"
                "  d1 is told to be lost\n"
                "d1 is gone above\n"
                "from above, to d2: group 50: combine ranks 6 at rank 0 within 1000 ms\n"
                "  (a sum of 3 daemons is not combined: the sum has the update of a daemon that is lost)\n"
                "  up, for d2: group 50: combine failed: the sum has the update of a daemon that is lost\n"
                "from above, to d2: task 12: go on alone: \n"
                "  down, to d2: passed on\n"
                "from above, to d3: task 13: go on alone: \n"
                "  sum 50 goes\n"
                "  down, to d3: passed on\n"
                "from above, to d2: task 12: update 0 granted: 1 ranges, 80 bytes\n"
                "  down, to d2: passed on\n"
                "from above, to d2: task 12: update 0 accepted\n"
                "  down, to d2: passed on\n");
        bed_end(&bed);
}

/* Combine does not name the third: its Announce, which was kept, goes up without the group. */
static void test_late(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed);
        for (uint32_t i = 1; i <= 3; i++)
                up(&bed, i, 0);
        for (uint32_t i = 1; i <= 3; i++)
                task(&bed, i, 1, 3, 50);
        for (uint32_t i = 1; i <= 2; i++) {
                announce(&bed, i, 0);
                arrive(&bed, 0);
        }
        announce(&bed, 3, 0);
        bed.n = 0;
        combine(&bed, 1, 50, 3);
        answer(&bed, MFL_MSG_GRANT, 3, 13);
        answer(&bed, MFL_MSG_GRANT, 1, 50);
        expect(&bed, "from above, to d1: group 50: combine ranks 3 at rank 0 within 1000 ms\n"
                     "  slot 0: closed\n"
                     "  up, for d3: task 13: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 "
                     "bytes, weight 5\n"
                     "from above, to d3: task 13: update 0 granted: 1 ranges, 80 bytes\n"
                     "  down, to d3: passed on\n"
                     "from above, to d1: task 50: update 0 granted: 1 ranges, 80 bytes\n"
                     "  up, for d1: 1 ranges of sum 50\n");
        bed_end(&bed);
}

static void test_goes_up_alone(void **state)
{
        (void)state;
        struct bed bed;
        two_tasks(&bed);
        bed.n = 0;
        announce(&bed, 1, 0);
        slot_event(&bed, MFL_RELAY_EV_NO_ROOM, 0, false);
        announce(&bed, 2, 0);
        slot_event(&bed, MFL_RELAY_EV_MOVED, 0, false);
        bed.now += 20000;
        const struct mfl_relay_event tick = {.kind = MFL_RELAY_EV_TICK};
        put(&bed, "20 s pass\n");
        feed(&bed, &tick);
        expect(&bed, "from d1: task 11: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 bytes, "
                     "weight 5\n"
                     "  slot 0: 80 bytes of 11 from d1\n"
                     "slot 0: has no memory\n"
                     "  (there is no memory for an update of task 11; it goes up alone)\n"
                     "  slot 0: closed\n"
                     "  up, for d1: task 11: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 "
                     "bytes, weight 5\n"
                     "from d2: task 12: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 bytes, "
                     "weight 5\n"
                     "  slot 0: 80 bytes of 12 from d2\n"
                     "slot 0: moves\n"
                     "20 s pass\n"
                     "  (an update of task 12 does not come; it goes up alone)\n"
                     "  slot 0: closed\n"
                     "  up, for d2: task 12: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 "
                     "bytes, weight 5\n");
        bed_end(&bed);
}

/* d1 is here; d2 and d3 are below the relay with connection 7, d4 alone below relay 8. */
static void test_below_a_relay(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed);
        up(&bed, 1, 0);
        up(&bed, 2, 7);
        up(&bed, 3, 7);
        up(&bed, 4, 8);
        for (uint32_t i = 1; i <= 4; i++)
                task(&bed, i, 1, 4, 50);
        announce(&bed, 1, 0);
        arrive(&bed, 0);
        announce(&bed, 2, 50);
        announce(&bed, 3, 50);
        announce(&bed, 4, 0);
        arrive(&bed, 0);
        combine(&bed, 1, 50, 15);
        answer(&bed, MFL_MSG_GRANT, 1, 50);
        arrive(&bed, 0);
        for (uint32_t i = 1; i <= 4; i++)
                answer(&bed, MFL_MSG_ACCEPTED, i, 10 + i);
        expect(&bed, "d1 comes\n"
                     "d2 comes through a relay below\n"
                     "d3 comes through a relay below\n"
                     "d4 comes through a relay below\n"
                     "from above, to d1: task 11: train round 1 of j-000001, 1 items, in a group\n"
                     "  down, to d1: passed on for a sum\n"
                     "from above, to d2: task 12: train round 1 of j-000001, 1 items, in a group\n"
                     "  down, to d2: passed on with the group of a relay below\n"
                     "from above, to d3: task 13: train round 1 of j-000001, 1 items, in a group\n"
                     "  down, to d3: passed on with the group of a relay below\n"
                     "from above, to d4: task 14: train round 1 of j-000001, 1 items, in a group\n"
                     "  down, to d4: passed on for a sum\n"
                     "from d1: task 11: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 bytes, "
                     "weight 5\n"
                     "  slot 0: 80 bytes of 11 from d1\n"
                     "slot 0: is whole\n"
                     "  slot 0: is added to sum 50\n"
                     "slot 0: was added\n"
                     "  slot 0: closed\n"
                     "  up, for d1: task 11: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 "
                     "bytes, weight 5, for its group\n"
                     "from d2: task 12: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 bytes, "
                     "weight 5, for its group\n"
                     "  up, from d2: passed on\n"
                     "from d3: task 13: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 bytes, "
                     "weight 5, for its group\n"
                     "  up, from d3: passed on\n"
                     "from d4: task 14: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 bytes, "
                     "weight 5\n"
                     "  slot 0: 80 bytes of 14 from d4\n"
                     "slot 0: is whole\n"
                     "  slot 0: is added to sum 50\n"
                     "slot 0: was added\n"
                     "  slot 0: closed\n"
                     "  up, for d4: task 14: update 0 of round 1 of j-000001: items 0 to 0, 0 rejected, 80 "
                     "bytes, weight 5, for its group\n"
                     "from above, to d1: group 50: combine ranks f at rank 0 within 1000 ms\n"
                     "  down, to d2: group 50: combine ranks 3 at rank 0 within 1000 ms\n"
                     "  slot 0: 80 bytes of 50 from d2\n"
                     "from above, to d1: task 50: update 0 granted: 1 ranges, 80 bytes\n"
                     "slot 0: is whole\n"
                     "  slot 0: is added to sum 50\n"
                     "slot 0: was added\n"
                     "  slot 0: closed\n"
                     "  up, for d1: 1 ranges of sum 50\n"
                     "from above, to d1: task 11: update 0 accepted\n"
                     "  down, to d1: passed on\n"
                     "from above, to d2: task 12: update 0 accepted\n"
                     "  down, to d2: passed on\n"
                     "from above, to d3: task 13: update 0 accepted\n"
                     "  down, to d3: passed on\n"
                     "from above, to d4: task 14: update 0 accepted\n"
                     "  sum 50 goes\n"
                     "  down, to d4: passed on\n");
        bed_end(&bed);
}

/* ---- random events ---- */

struct draw {
        uint64_t x;
};

static uint32_t draw(struct draw *d, uint32_t n)
{
        d->x = d->x * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(d->x >> 33) % n;
}

static void random_slot(struct bed *bed, struct draw *d)
{
        static const enum mfl_relay_event_kind kinds[] = {
                MFL_RELAY_EV_WHOLE, MFL_RELAY_EV_WHOLE, MFL_RELAY_EV_MOVED, MFL_RELAY_EV_NO_ROOM};
        uint32_t s = draw(d, 2);
        if (!bed->slot[s].open)
                return;
        if (bed->slot[s].adding) {
                bool ok = draw(d, 8) != 0;
                slot_event(bed, MFL_RELAY_EV_ADDED, s, ok);
        } else {
                slot_event(bed, kinds[draw(d, 4)], s, false);
        }
}

static void random_event(struct bed *bed, struct draw *d)
{
        static const enum mfl_msg_kind answers[] = {
                MFL_MSG_ACCEPTED, MFL_MSG_REFUSED, MFL_MSG_ALONE, MFL_MSG_CANCEL, MFL_MSG_GRANT};
        static const struct mfl_relay_event tick = {.kind = MFL_RELAY_EV_TICK};
        static const struct mfl_relay_event over = {.kind = MFL_RELAY_EV_JOB_OVER, .job = "j-000001"};
        uint32_t peer = 1 + draw(d, 6), group = bed->group + draw(d, 2);
        if (!draw(d, 30) && bed->group + 4 < GROUPS_MAX) /* numbers never come again */
                bed->group += 2;
        switch (draw(d, 14)) {
        case 0:
                peer_event(bed, MFL_RELAY_EV_DOWN, peer);
                break;
        case 1:
                peer_event(bed, MFL_RELAY_EV_ENDED, peer);
                up(bed, peer, peer > 3 ? 7 : 0);
                break;
        case 2:
        case 3:
        case 4:
                task(bed, peer, 1, 6, group);
                break;
        case 5:
        case 6:
        case 7:
                announce(bed, peer, peer > 3 ? group : 0);
                break;
        case 8:
                combine(bed, peer, group, (uint64_t)draw(d, 63) | (uint64_t)1 << (peer - 1));
                break;
        case 9:
                answer(bed, MFL_MSG_GRANT, peer, group);
                break;
        case 10:
                answer(bed, answers[draw(d, 5)], peer, 10 + peer);
                break;
        case 11:
                bed->now += draw(d, 20000);
                feed(bed, &tick);
                break;
        case 12:
                if (!draw(d, 8))
                        feed(bed, &over);
                break;
        default:
                random_slot(bed, d);
        }
}

/* Everything ends: every slot is closed, and every sum has gone. */
static void wind_up(struct bed *bed)
{
        for (uint32_t peer = 1; peer <= 6; peer++)
                peer_event(bed, MFL_RELAY_EV_ENDED, peer);
        for (uint32_t s = 0; s < 2; s++)
                if (bed->slot[s].open && bed->slot[s].adding)
                        slot_event(bed, MFL_RELAY_EV_ADDED, s, true);
        for (uint32_t s = 0; s < 2 && !bed->r; s++)
                assert_false(bed->slot[s].open);
        for (uint32_t g = 0; g < GROUPS_MAX && !bed->r; g++)
                assert_false(bed->sum[g]);
}

/* fail_at: the allocation that fails; -1: none. */
static void run_seed(struct bed *bed, uint64_t seed, uint32_t n_events, long fail_at)
{
        struct draw d = {seed * 7919 + 1};
        bed_start(bed);
        mfl_alloc_fail_at(fail_at);
        bed->quiet = true;
        bed->group = 50;
        for (uint32_t peer = 1; peer <= 6; peer++)
                up(bed, peer, peer > 3 ? 7 : 0);
        for (uint32_t i = 0; i < n_events && !bed->r; i++)
                random_event(bed, &d);
}

static void test_random(void **state)
{
        (void)state;
        uint32_t n_opened = 0;
        for (uint64_t seed = 0; seed < 2000; seed++) {
                struct bed bed;
                run_seed(&bed, seed, 200, -1);
                assert_int_equal(bed.r, 0);
                wind_up(&bed);
                n_opened += bed.n_opened;
                bed_end(&bed);
        }
        assert_true(n_opened > 5000);
}

static void test_no_memory(void **state)
{
        (void)state;
        bool failed = true;
        for (long n = 0; failed; n++) {
                struct bed bed;
                run_seed(&bed, 3, 100, n);
                failed = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(bed.r, failed ? -ENOMEM : 0);
                bed_end(&bed);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_a_sum),
                cmocka_unit_test(test_lost_in_a_sum),
                cmocka_unit_test(test_lost_and_asked),
                cmocka_unit_test(test_late),
                cmocka_unit_test(test_goes_up_alone),
                cmocka_unit_test(test_below_a_relay),
                cmocka_unit_test(test_random),
                cmocka_unit_test(test_no_memory),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
