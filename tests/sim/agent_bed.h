/* SPDX-License-Identifier: Apache-2.0 */
/* One agent, what it is told, and what it ordered: for the tests of the agent. */
#ifndef MFL_TESTS_SIM_AGENT_BED_H
#define MFL_TESTS_SIM_AGENT_BED_H

#include "tests/lib/test.h"

#include "client/agent/agent.h"

#include <stdio.h>

static struct mfl_agent *agent;
static struct mfl_agent_actions actions;
static uint64_t now_ms;
static int result;
/* The last order about params that is not carried out yet. */
static struct {
        enum { ARRIVE_NOTHING, ARRIVE_ROOM, ARRIVE_PIECE, ARRIVE_HASH } order;
        uint64_t part, n, have;
} arriving;

static inline void note_params(void)
{
        for (uint32_t i = 0; i < actions.n; i++) {
                const struct mfl_agent_action *a = &actions.v[i];
                if (a->kind == MFL_AGENT_ACT_PARAMS_ROOM) {
                        arriving.order = ARRIVE_ROOM;
                        arriving.part = a->part;
                        arriving.n = a->n_floats;
                } else if (a->kind == MFL_AGENT_ACT_PARAMS_HASH) {
                        arriving.order = ARRIVE_HASH;
                } else if (a->kind == MFL_AGENT_ACT_SEND && a->msg.kind == MFL_MSG_PARAMS_GET) {
                        arriving.order = ARRIVE_PIECE;
                        arriving.have = a->msg.params.offset;
                }
        }
}

static inline void feed(struct mfl_agent_event event)
{
        event.now_ms = now_ms;
        mfl_agent_actions_clear(&actions);
        if (!result)
                result = mfl_agent_step(agent, &event, &actions);
        if (!result)
                mfl_agent_check(agent);
        note_params();
}

static inline void tick(uint64_t at)
{
        now_ms = at;
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_TICK});
}

static inline void message(struct mfl_msg msg)
{
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_MESSAGE, .msg = &msg});
}

/* The i-th action of a kind; NULL if there is none. */
static inline struct mfl_agent_action *action(enum mfl_agent_action_kind kind)
{
        for (uint32_t i = 0; i < actions.n; i++)
                if (actions.v[i].kind == kind)
                        return &actions.v[i];
        return NULL;
}

static inline struct mfl_msg *sent(enum mfl_msg_kind kind)
{
        for (uint32_t i = 0; i < actions.n; i++)
                if (actions.v[i].kind == MFL_AGENT_ACT_SEND && actions.v[i].msg.kind == kind)
                        return &actions.v[i].msg;
        return NULL;
}

static inline int make(void)
{
        struct mfl_agent_options options = {
                .info = {.name = "d1", .instance = 7, .workers = 1}, .seed = 3, .results_max = 2};
        actions = (struct mfl_agent_actions){0};
        agent = NULL;
        now_ms = 1000;
        memset(&arriving, 0, sizeof arriving);
        result = mfl_agent_new(&options, &agent, NULL);
        return result;
}

static inline void end(void)
{
        mfl_agent_actions_deinit(&actions);
        mfl_agent_free(agent);
}

static inline void go_online(void)
{
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_CONNECTED});
        message((struct mfl_msg){.kind = MFL_MSG_WELCOME, .welcome = {1000, 3000, 99}});
}

/* A task of this daemon, whose instance is 7, in a group of three, as the given rank; group 0: without one.
 */
static inline struct mfl_msg task_message(
        uint64_t number, uint32_t round, uint64_t group, uint32_t rank, uint64_t params_from)
{
        static uint64_t items[2] = {4, 5};
        struct mfl_msg msg = {.kind = MFL_MSG_TASK};
        msg.task = (struct mfl_task){.task = number,
                .job = "j-000001",
                .round = round,
                .kind = MFL_TASK_TRAIN,
                .n_items = 2,
                .items = items,
                .n_params = 4,
                .params_from = params_from};
        if (!group)
                return msg;
        msg.task.group = (struct mfl_group){
                .group = group, .collective = MFL_COLLECTIVE_SHM, .rank = rank, .n_members = 3, .workers = 3};
        for (uint32_t i = 0; i < 3; i++)
                msg.task.group.members[i] = i == rank ? 7 : 100 + i;
        return msg;
}

static inline void send_task(uint64_t number, uint32_t round)
{
        message(task_message(number, round, 0, 0, 0));
}

static inline void send_group_task(uint64_t number, uint64_t group, uint32_t rank)
{
        message(task_message(number, 1, group, rank, 0));
}

/* Does what the shell and the server do until the params that were ordered are whole, and the digest right. */
static inline void arrive(void)
{
        while (arriving.order && !result) {
                struct mfl_agent_event event = {.part = arriving.part, .ok = true};
                event.kind = arriving.order == ARRIVE_ROOM    ? MFL_AGENT_EV_PARAMS_ROOM
                             : arriving.order == ARRIVE_PIECE ? MFL_AGENT_EV_PARAMS_ARRIVED
                                                              : MFL_AGENT_EV_PARAMS_HASHED;
                event.offset = arriving.have;
                event.n_floats = arriving.n - arriving.have;
                arriving.order = ARRIVE_NOTHING;
                feed(event);
        }
}

static inline void computed(uint64_t number, bool grouped)
{
        struct mfl_announce a = {.item_count = 2, .bytes = 32, .weight = 2, .encoding = MFL_ENCODING_I64};
        arrive();
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_COMPUTED,
                .task = number,
                .ok = true,
                .n_updates = 1,
                .updates = &a,
                .grouped = grouped});
}

static inline void compute(uint64_t number)
{
        computed(number, false);
}

static inline void sweep_memory(void (*run)(void))
{
        for (long n = 0;; n++) {
                mfl_alloc_fail_at(n);
                if (make() == 0)
                        run();
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                end();
                if (!struck) {
                        assert_true(n > 8);
                        return;
                }
                assert_int_equal(result, -ENOMEM);
        }
}

#endif
