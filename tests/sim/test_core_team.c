/* SPDX-License-Identifier: Apache-2.0 */
/* The server core and teams: who is in them, and how they end. */
#include "tests/lib/test.h"

#include "proto/version.h"
#include "server/core/core.h"

#include <stdio.h>

#define JOB "j-000001"
#define DAEMONS 8
#define TASKS 64

struct bed {
        struct mfl_core *core;
        struct mfl_job spec;
        uint64_t now;
        struct mfl_data_info data;
        struct mfl_daemon_info info[DAEMONS];
        struct mfl_task task[DAEMONS];          /* the last one of each connection, from 1 on */
        uint64_t item[DAEMONS];                 /* its first item */
        char peers[DAEMONS][3][MFL_PEER_BYTES]; /* addresses of the first members of its team */
        struct {
                uint32_t conn;
                uint64_t task;
        } sent[TASKS];      /* all of them */
        bool busy[DAEMONS]; /* it has a task, which was not cancelled */
        uint32_t n_sent, n_cancelled;
        struct mfl_team_totals ended; /* the released job's */
        bool released;
        bool works; /* what the worker is told succeeds at once, and rounds end */
};

static void feed(struct bed *bed, struct mfl_core_event event);

static void take(struct bed *bed, const struct mfl_core_action *a)
{
        struct mfl_core_event ready = {.kind = MFL_EV_JOB_READY, .ok = true};
        if (a->kind == MFL_ACT_JOB_PREPARE) {
                strcpy(ready.job, a->job);
                ready.job_ready.n_params = 4;
                ready.job_ready.n_slots = 1;
                feed(bed, ready);
        } else if (a->kind == MFL_ACT_SEND && a->msg.kind == MFL_MSG_TASK) {
                bed->task[a->conn] = a->msg.task;
                bed->item[a->conn] = a->msg.task.items[0];
                memset(bed->peers[a->conn], 0, sizeof bed->peers[a->conn]);
                for (uint32_t m = 0; a->msg.task.team.peers && m < 3 && m < a->msg.task.team.n_members; m++)
                        strcpy(bed->peers[a->conn][m], a->msg.task.team.peers[m]);
                bed->busy[a->conn] = true;
                assert_true(bed->n_sent < TASKS);
                bed->sent[bed->n_sent].conn = a->conn;
                bed->sent[bed->n_sent++].task = a->msg.task.task;
        } else if (a->kind == MFL_ACT_SEND && a->msg.kind == MFL_MSG_CANCEL) {
                bed->busy[a->conn] &= bed->task[a->conn].task != a->msg.cancel.task;
                bed->n_cancelled++;
        } else if (a->kind == MFL_ACT_JOB_RELEASE) {
                bed->ended = a->teams;
                bed->released = true;
        }
        static const enum mfl_core_event_kind answers[] = {[MFL_ACT_GRANT] = MFL_EV_UPLOAD_COMPLETE,
                [MFL_ACT_SLOT_ADD] = MFL_EV_ADDED,
                [MFL_ACT_APPLY] = MFL_EV_APPLIED,
                [MFL_ACT_CHECKPOINT] = MFL_EV_CHECKPOINTED,
                [MFL_ACT_COMMIT] = MFL_EV_COMMITTED};
        if (bed->works && (size_t)a->kind < MFL_ARRAY_SIZE(answers) && answers[a->kind])
                feed(bed, (struct mfl_core_event){.kind = answers[a->kind],
                                  .ok = true,
                                  .job = JOB,
                                  .upload = {.slot = a->slot.slot, .grant = a->slot.grant}});
}

static void feed(struct bed *bed, struct mfl_core_event event)
{
        struct mfl_core_actions actions = {0};
        event.now_ms = bed->now;
        assert_int_equal(mfl_core_step(bed->core, &event, &actions), 0);
        for (uint32_t i = 0; i < actions.n; i++)
                take(bed, &actions.v[i]);
        mfl_core_actions_deinit(&actions);
        mfl_core_check(bed->core);
}

static void message(struct bed *bed, uint32_t conn, struct mfl_msg msg)
{
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_MESSAGE, .conn = conn, .msg = &msg});
}

/* n daemons of one node with one worker each, which a test may change before `begin`. */
static void setup(struct bed *bed, uint32_t n, uint32_t clients)
{
        struct mfl_core_options options = {.boot = 1,
                .heartbeat_ms = 100000,
                .dead_ms = 300000,
                .reconnect_grace_ms = 10000,
                .upload_stall_ms = 15000};
        *bed = (struct bed){.data = {.name = "pets",
                                    .shape = {.rank = 1, .dim = {4}},
                                    .classes = 2,
                                    .train_samples = 100,
                                    .fingerprint = 5}};
        strcpy(bed->spec.data.name, "pets");
        bed->spec.rounds = 30;
        bed->spec.data.partition = MFL_PARTITION_NATURAL_ID;
        bed->spec.data.clients = clients;
        bed->spec.aggregation.delta_max = 16;
        bed->spec.aggregation.weighting = MFL_WEIGHT_UNIFORM;
        bed->spec.limits.quorum = 1;
        bed->spec.limits.deadline_ms = 3600000;
        bed->spec.limits.retries = 3;
        bed->spec.selection.daemons_min = n;
        bed->spec.training.batch = 16;
        bed->spec.training.accumulate = 1;
        bed->spec.parallel.grain = 4;
        bed->spec.parallel.within = MFL_WITHIN_NODE;
        bed->spec.parallel.exact = true;
        bed->spec.parallel.zero = MFL_ZERO_AUTO;
        for (uint32_t i = 1; i <= n; i++) {
                struct mfl_daemon_info *info = &bed->info[i];
                *info = (struct mfl_daemon_info){.instance = 10 + i,
                        .protocol = MFL_PROTOCOL_MAX,
                        .workers = 1,
                        .node = "n",
                        .has_reach = true,
                        .reach = {.user = 1, .network_space = 2, .memory_space = 3},
                        .n_data_sets = 1,
                        .data_sets = &bed->data};
                snprintf(info->name, sizeof info->name, "d%u", i);
        }
        assert_int_equal(mfl_core_new(&options, &bed->core, NULL), 0);
}

static void begin(struct bed *bed)
{
        feed(bed, (struct mfl_core_event){
                          .kind = MFL_EV_JOB_ADD, .job = JOB, .job_add = {&bed->spec, 0, NULL, ""}});
        for (uint32_t i = 1; i < DAEMONS; i++)
                if (bed->info[i].instance)
                        feed(bed, (struct mfl_core_event){
                                          .kind = MFL_EV_DAEMON_UP, .conn = i, .daemon = &bed->info[i]});
        for (int i = 0; i < 4; i++) {
                bed->now += 500;
                feed(bed, (struct mfl_core_event){.kind = MFL_EV_TICK});
        }
}

/* "d1:1+d2:1" - the members with their ranks - if this daemon leads that team, "d3" if it trains alone, else "". */
static const char *led_by(const struct bed *bed, uint32_t conn, char text[128])
{
        const struct mfl_task *t = &bed->task[conn];
        text[0] = '\0';
        if (!bed->busy[conn] || t->kind != MFL_TASK_TRAIN)
                return text;
        if (!t->team.team)
                return strcpy(text, bed->info[conn].name);
        for (uint32_t m = 0; m < t->team.n_members; m++) {
                uint32_t d = (uint32_t)(t->team.members[m] - 10) % 100;
                size_t n = strlen(text);
                snprintf(text + n, 128 - n, "%s%s:%u", m ? "+" : "", bed->info[d].name, t->team.widths[m]);
                assert_int_equal(bed->task[d].team.team, t->team.team);
                assert_int_equal(bed->task[d].team.member, m);
                assert_int_equal(bed->task[d].kind, m ? MFL_TASK_ASSIST : MFL_TASK_TRAIN);
                assert_int_equal(bed->item[d], bed->item[conn]);
        }
        return text;
}

#define ASSERT_LEADS(bed, conn, expected)                                                                    \
        do {                                                                                                 \
                char text_[128];                                                                             \
                assert_string_equal(led_by(bed, conn, text_), expected);                                     \
        } while (0)

static void idle_daemons_help(void **state)
{
        struct bed bed;
        setup(&bed, 5, 1);
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1+d4:1"); /* a step has four grains */
        assert_false(bed.busy[5]);
        mfl_core_free(bed.core);
        setup(&bed, 5, 2);
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        ASSERT_LEADS(&bed, 3, "d3:1+d4:1+d5:1");
        mfl_core_free(bed.core);
        setup(&bed, 5, 3);
        bed.spec.parallel.members = 2;
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1");
        ASSERT_LEADS(&bed, 2, "d2:1+d3:1");
        ASSERT_LEADS(&bed, 4, "d4:1+d5:1");
        mfl_core_free(bed.core);
}

static void with_enough_clients_nobody_helps(void **state)
{
        struct bed bed;
        for (int kind = 0; kind < 3; kind++) {
                setup(&bed, 3, kind ? 1 : 6);
                if (kind == 1)
                        bed.spec.parallel.within = MFL_WITHIN_DAEMON;
                if (kind == 2)
                        bed.spec.parallel.grain = 16; /* a step is one grain */
                begin(&bed);
                for (uint32_t i = 1; i <= 3; i++)
                        assert_int_equal(bed.task[i].team.team, 0);
                mfl_core_free(bed.core);
        }
}

static void workers_are_ranks(void **state)
{
        struct bed bed;
        setup(&bed, 3, 1);
        bed.info[1].workers = 4; /* enough by itself */
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1");
        mfl_core_free(bed.core);
        setup(&bed, 3, 1);
        bed.info[1].workers = bed.info[2].workers = 3;
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1:3+d2:1");
        mfl_core_free(bed.core);
        setup(&bed, 3, 1);
        bed.info[1].workers = bed.info[2].workers = 4;
        bed.spec.training.threads = 2;
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1:2+d2:2");
        mfl_core_free(bed.core);
}

static void only_equals_that_reach_each_other_join(void **state)
{
        struct bed bed;
        setup(&bed, 7, 1);
        strcpy(bed.info[1].node, "other");
        strcpy(bed.info[2].numerics, "other");
        bed.info[3].alone = true;
        bed.info[4].protocol = MFL_PROTOCOL_SHARDS - 1;
        bed.info[5].reach.memory_space = 0;
        begin(&bed);
        ASSERT_LEADS(&bed, 6, "d6:1+d7:1");
        mfl_core_free(bed.core);
}

/* Two daemons on each of three nodes; all but one listen for others. */
static void setup_nodes(struct bed *bed)
{
        setup(bed, 6, 1);
        bed->spec.parallel.within = MFL_WITHIN_ANY;
        for (uint32_t i = 1; i <= 6; i++) {
                snprintf(bed->info[i].node, sizeof bed->info[i].node, "n%u", (i + 1) / 2);
                if (i != 4)
                        snprintf(bed->info[i].peer, sizeof bed->info[i].peer, "host%u:1", i);
        }
}

static void teams_reach_over_nodes_where_daemons_listen(void **state)
{
        struct bed bed;
        setup_nodes(&bed);
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1+d5:1");
        for (uint32_t i = 1; i <= 5; i++) {
                const struct mfl_task_team *team = &bed.task[i].team;
                if (i == 4)
                        continue;
                assert_string_equal(bed.peers[i][2], "host3:1");
                assert_memory_equal(team->key, bed.task[1].team.key, sizeof team->key);
        }
        mfl_core_free(bed.core);
        setup_nodes(&bed);
        bed.spec.parallel.members = 2; /* a team within one node needs no network */
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        assert_string_equal(bed.peers[1][0], "");
        mfl_core_free(bed.core);
        setup_nodes(&bed);
        bed.spec.parallel.within = MFL_WITHIN_NODE;
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        mfl_core_free(bed.core);
        setup_nodes(&bed);
        bed.info[1].protocol = MFL_PROTOCOL_PEERS - 1; /* knows no such job */
        bed.spec.selection.daemons_min = 5;
        begin(&bed);
        ASSERT_LEADS(&bed, 2, "d2:1+d3:1+d5:1+d6:1");
        assert_false(bed.busy[1]);
        mfl_core_free(bed.core);
}

static void tick(struct bed *bed)
{
        bed->now += 500;
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_TICK});
}

/* The leader's result of a round of one client, by a team whose times are these. */
static void end_round(struct bed *bed, uint32_t conn, struct mfl_task_times times)
{
        struct mfl_msg msg = {.kind = MFL_MSG_ANNOUNCE,
                .announce = {.task = bed->task[conn].task,
                        .item_count = 1,
                        .encoding = MFL_ENCODING_F32,
                        .bytes = 16,
                        .weight = 1,
                        .samples = 1,
                        .job = JOB,
                        .round = bed->task[conn].round,
                        .has_team = bed->task[conn].team.team != 0,
                        .team = times}};
        bed->busy[conn] = false;
        message(bed, conn, msg);
        tick(bed);
}

static const struct mfl_task_times slow_line = {.compute_us = 100, .exchange_us = 900, .apply_us = 1},
                                   fast_line = {.compute_us = 900, .exchange_us = 10, .apply_us = 1};

/* The one daemon that trains alone; the others have nothing to do. */
static uint32_t single(const struct bed *bed)
{
        uint32_t conn = 0;
        for (uint32_t i = 1; i < DAEMONS; i++)
                if (bed->busy[i]) {
                        assert_int_equal(conn, 0);
                        assert_int_equal(bed->task[i].team.team, 0);
                        conn = i;
                }
        assert_int_not_equal(conn, 0);
        return conn;
}

/* More workers than pay are left alone, for some rounds. */
static void a_team_is_as_large_as_pays(void **state)
{
        struct bed bed;
        setup(&bed, 4, 1);
        bed.works = true;
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1+d4:1");
        end_round(&bed, 1, fast_line);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1+d4:1");
        end_round(&bed, 1, slow_line);
        for (uint32_t round = 3; round < 18; round++)
                end_round(&bed, single(&bed), (struct mfl_task_times){0});
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1+d4:1"); /* which is measured again */
        mfl_core_free(bed.core);
}

/* Whoever writes a number gets it. */
static void a_number_is_a_number(void **state)
{
        struct bed bed;
        setup(&bed, 4, 1);
        bed.spec.parallel.members = 4;
        bed.works = true;
        begin(&bed);
        end_round(&bed, 1, slow_line);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1+d4:1");
        mfl_core_free(bed.core);
        setup(&bed, 4, 1);
        bed.spec.parallel.members_min = 3;
        bed.works = true;
        begin(&bed);
        end_round(&bed, 1, slow_line);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1");
        mfl_core_free(bed.core);
}

static void say_failed(struct bed *bed, uint32_t conn, bool broken, uint32_t accused);

static void a_wall_is_remembered(void **state)
{
        struct bed bed;
        setup_nodes(&bed);
        begin(&bed);
        say_failed(&bed, 5, true, 1);
        struct mfl_team_totals totals;
        assert_int_equal(mfl_core_job_teams(bed.core, JOB, &totals), 0);
        assert_string_equal(totals.last, "daemon d5: lost");
        ASSERT_LEADS(&bed, 2, "d2:1+d3:1+d5:1"); /* without d1 in this phase */
        mfl_core_free(bed.core);
}

static void a_site_helps_itself(void **state)
{
        struct bed bed;
        setup(&bed, 4, 0);
        bed.spec.data.partition = MFL_PARTITION_LOCAL;
        bed.spec.selection.daemons_min = 2; /* sites */
        for (uint32_t i = 1; i <= 4; i++)
                strcpy(bed.info[i].site, i <= 3 ? "a" : "b");
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1");
        ASSERT_LEADS(&bed, 4, "d4");
        mfl_core_free(bed.core);
}

static void the_leaders_result_frees_the_others(void **state)
{
        struct bed bed;
        setup(&bed, 3, 1);
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1");
        struct mfl_msg msg = {.kind = MFL_MSG_ANNOUNCE,
                .announce = {.task = bed.task[1].task,
                        .item_count = 1,
                        .encoding = MFL_ENCODING_F32,
                        .bytes = 16,
                        .weight = 1,
                        .samples = 1,
                        .job = JOB,
                        .round = 1,
                        .has_team = true,
                        .team = {.compute_us = 70, .exchange_us = 20, .apply_us = 10}}};
        message(&bed, 1, msg);
        assert_true(bed.busy[1] && !bed.busy[2] && !bed.busy[3]);
        struct mfl_team_totals totals;
        assert_int_equal(mfl_core_job_teams(bed.core, JOB, &totals), 0);
        assert_int_equal(totals.formed, 1);
        assert_int_equal(totals.broken + totals.taken, 0);
        assert_int_equal(totals.times.exchange_us, 20);
        mfl_core_free(bed.core);
}

static void say_failed(struct bed *bed, uint32_t conn, bool broken, uint32_t accused)
{
        struct mfl_msg msg = {.kind = MFL_MSG_TASK_FAILED,
                .failed = {.task = bed->task[conn].task,
                        .reason = "lost",
                        .broken = broken,
                        .accused = accused}};
        bed->busy[conn] = false;
        message(bed, conn, msg);
}

/* It can do none of the tasks that it has got so far. */
static void refuse(struct bed *bed, uint32_t conn)
{
        uint32_t n = bed->n_sent;
        bed->busy[conn] = false;
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_msg msg = {.kind = MFL_MSG_TASK_FAILED,
                        .failed = {.task = bed->sent[i].task, .reason = "no memory", .permanent = true}};
                if (bed->sent[i].conn == conn)
                        message(bed, conn, msg);
        }
}

/* Six clients on three daemons would be trained side by side, but none of them has the memory. */
static void who_cannot_do_it_alone_gets_a_team(void **state)
{
        struct bed bed;
        setup(&bed, 3, 6);
        begin(&bed);
        for (uint32_t i = 1; i <= 3; i++)
                assert_true(bed.busy[i] && !bed.task[i].team.team);
        for (uint32_t i = 1; i <= 3; i++)
                refuse(&bed, i);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        assert_false(bed.busy[3]); /* it waits for others */
        refuse(&bed, 2);
        tick(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1"); /* one client at a time */
        mfl_core_free(bed.core);
}

/* Two that have as many workers as a step has grains, but not the memory: the first one does not stand for a whole team. */
static void the_wide_leave_room_for_others(void **state)
{
        struct bed bed;
        setup(&bed, 3, 6);
        for (uint32_t i = 1; i <= 3; i++)
                bed.info[i].workers = 4;
        begin(&bed);
        for (uint32_t i = 1; i <= 3; i++)
                refuse(&bed, i);
        ASSERT_LEADS(&bed, 1, "d1:3+d2:1");
        refuse(&bed, 2); /* who needs a team of three gets one, and not by number of ranks */
        tick(&bed);
        ASSERT_LEADS(&bed, 1, "d1:2+d2:1+d3:1");
        mfl_core_free(bed.core);
}

/* A site's client has no help from other sites' daemons, also if they are on one node: it is missing, and does not wait for them. Here
 * no client is left. */
static void other_sites_do_not_help(void **state)
{
        struct bed bed;
        setup(&bed, 2, 0);
        bed.spec.data.partition = MFL_PARTITION_LOCAL;
        begin(&bed);
        assert_true(bed.busy[1] && bed.busy[2] && !bed.task[1].team.team && !bed.task[2].team.team);
        refuse(&bed, 1);
        refuse(&bed, 2);
        assert_true(bed.released);
        mfl_core_free(bed.core);
}

/* A daemon of the node without the data set is no help, either. */
static void daemons_without_the_data_do_not_help(void **state)
{
        struct bed bed;
        setup(&bed, 2, 4);
        bed.spec.selection.daemons_min = 1;
        bed.info[2].n_data_sets = 0;
        begin(&bed);
        assert_true(bed.busy[1] && !bed.busy[2]);
        refuse(&bed, 1);
        tick(&bed);
        assert_true(bed.released); /* the job has failed */
        mfl_core_free(bed.core);
}

/* Whoever lacks memory in the largest team is out, and so are those who then find none. */
static void teams_grow_until_they_fit(void **state)
{
        struct bed bed;
        setup(&bed, 4, 2);
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        ASSERT_LEADS(&bed, 3, "d3:1+d4:1");
        uint32_t most = 0;
        for (uint32_t turn = 0; turn < 40 && !bed.released; turn++) {
                uint32_t i = 1 + turn % 4;
                if (bed.busy[i] && bed.task[i].team.team)
                        most = MFL_MAX(most, bed.task[i].team.n_members);
                refuse(&bed, i);
                tick(&bed);
        }
        assert_int_equal(most, 4);
        assert_true(bed.released); /* the job has failed */
        mfl_core_free(bed.core);
}

/* With room for one daemon a refusal is final, as nobody ever forms a team. */
static void who_needs_a_team_leaves_its_place(void **state)
{
        struct bed bed;
        setup(&bed, 2, 4);
        bed.spec.selection.daemons_min = bed.spec.selection.daemons_max = 1;
        begin(&bed);
        uint32_t first = bed.busy[1] ? 1 : 2, other = 3 - first;
        assert_true(bed.busy[first] && !bed.busy[other]);
        refuse(&bed, first);
        tick(&bed);
        assert_true(bed.busy[other] && !bed.task[other].team.team);
        assert_false(bed.busy[first]);
        refuse(&bed, other);
        tick(&bed);
        assert_true(bed.released); /* the job has failed */
        mfl_core_free(bed.core);
        /* With room for two, one of two that can't form a team makes room for one that trains without others. */
        setup(&bed, 4, 4);
        bed.spec.selection.daemons_min = bed.spec.selection.daemons_max = 2;
        strcpy(bed.info[2].numerics, "others");
        strcpy(bed.info[4].numerics, "others");
        begin(&bed);
        assert_true(bed.busy[1] && bed.busy[2] && !bed.busy[3] && !bed.busy[4]);
        refuse(&bed, 1);
        refuse(&bed, 2);
        tick(&bed);
        assert_true(bed.busy[3] || bed.busy[4]);
        mfl_core_free(bed.core);
}

/* One more that looks like d2, but for its number. */
static void come(struct bed *bed, uint32_t conn)
{
        struct mfl_daemon_info *info = &bed->info[conn];
        *info = bed->info[2];
        info->instance = 10 + conn;
        snprintf(info->name, sizeof info->name, "d%u", conn);
        feed(bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = conn, .daemon = info});
}

/* A team that works keeps its place between two clients, though a daemon has come that needs no others. */
static void a_team_is_not_taken_apart(void **state)
{
        struct bed bed;
        setup(&bed, 2, 6);
        bed.spec.selection.daemons_max = 2;
        bed.works = true;
        begin(&bed);
        refuse(&bed, 1);
        refuse(&bed, 2);
        tick(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        come(&bed, 3);
        for (int client = 0; client < 3; client++) {
                end_round(&bed, 1, fast_line);
                ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
                assert_false(bed.busy[3]);
        }
        mfl_core_free(bed.core);
}

/* The job may have two, none of which can do it alone: it has one that d4, which is away, could help, and one that d2 or d3 could help. */
static void who_joins_nobody_makes_room_for_a_team(void **state)
{
        struct bed bed;
        setup(&bed, 4, 6);
        bed.spec.selection.daemons_min = bed.spec.selection.daemons_max = 2;
        strcpy(bed.info[1].numerics, "others");
        strcpy(bed.info[4].numerics, "others");
        begin(&bed);
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = 4});
        refuse(&bed, 1);
        refuse(&bed, 2);
        tick(&bed);
        assert_true(bed.busy[3]);
        refuse(&bed, 3);
        tick(&bed);
        ASSERT_LEADS(&bed, 2, "d2:1+d3:1");
        assert_false(bed.busy[1]);
        mfl_core_free(bed.core);
}

/* Who has failed tries again where the others can't do without it: they are too few for a team, or one of them is too small. */
static void who_has_failed_is_not_missed_for_ever(void **state)
{
        struct bed bed;
        setup(&bed, 2, 1);
        bed.spec.parallel.members_min = bed.spec.parallel.members = 2;
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        say_failed(&bed, 1, false, 0);
        tick(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        mfl_core_free(bed.core);
        setup(&bed, 2, 1);
        bed.spec.parallel.members_min = bed.spec.parallel.members = 2;
        bed.info[1].workers = 2;
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1");
        say_failed(&bed, 1, false, 0);
        tick(&bed);
        ASSERT_LEADS(&bed, 1, "d1");
        mfl_core_free(bed.core);
}

/* Two jobs that want teams of two have lost a daemon each: the older one gets the other's. */
static void halves_of_two_teams_make_one(void **state)
{
        struct bed bed;
        setup(&bed, 4, 1);
        bed.spec.selection.daemons_min = 2;
        bed.spec.parallel.members_min = bed.spec.parallel.members = 2;
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        feed(&bed, (struct mfl_core_event){
                           .kind = MFL_EV_JOB_ADD, .job = "j-000002", .job_add = {&bed.spec, 0, NULL, ""}});
        tick(&bed);
        ASSERT_LEADS(&bed, 3, "d3:1+d4:1");
        for (uint32_t i = 2; i <= 3; i++) {
                bed.busy[i] = false;
                feed(&bed,
                        (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = i, .reason = "a test"});
        }
        for (int i = 0; i < 25; i++) /* longer than they are waited for */
                tick(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d4:1");
        assert_string_equal(bed.task[1].job, JOB);
        mfl_core_free(bed.core);
}

/* Where state is not shared out, or nobody may join, a refusal is for good. */
static void without_shards_a_refusal_is_final(void **state)
{
        for (int kind = 0; kind < 2; kind++) {
                struct bed bed;
                setup(&bed, 2, 4);
                if (kind)
                        bed.spec.parallel.zero = 0;
                else
                        bed.spec.parallel.within = MFL_WITHIN_DAEMON;
                begin(&bed);
                refuse(&bed, 1);
                tick(&bed);
                assert_false(bed.busy[1]);
                assert_true(bed.busy[2] && !bed.task[2].team.team);
                mfl_core_free(bed.core);
        }
}

/* Below parallel.members.min nobody trains a client, alone or in a team, and the job says why. */
static void teams_shrink_to_the_least(void **state)
{
        struct bed bed;
        setup(&bed, 4, 1);
        bed.spec.parallel.members_min = 3;
        bed.spec.parallel.members = 4;
        bed.works = true;
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1+d4:1");
        say_failed(&bed, 4, true, 2);
        ASSERT_LEADS(&bed, 1, "d1:1+d3:1+d4:1");
        say_failed(&bed, 3, true, 1);
        tick(&bed);
        for (uint32_t i = 1; i <= 4; i++)
                assert_false(bed.busy[i]); /* two of three are left */
        mfl_core_free(bed.core);
        /* Three clients on five daemons: one team of at least three at a time, and none alone. */
        setup(&bed, 5, 3);
        bed.spec.parallel.members_min = 3;
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1+d4:1");
        assert_false(bed.busy[5]);
        mfl_core_free(bed.core);
        /* More clients than daemons; a daemon with enough workers is enough. */
        setup(&bed, 3, 6);
        bed.spec.parallel.members_min = 2;
        bed.info[1].workers = 4;
        bed.spec.parallel.members = 2;
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1");
        ASSERT_LEADS(&bed, 2, "d2:1+d3:1");
        mfl_core_free(bed.core);
}

static void ends_are_counted_by_reason(void **state)
{
        struct bed bed;
        struct mfl_team_totals totals;
        setup(&bed, 5, 1);
        begin(&bed);
        for (uint32_t loss = MFL_TEAM_GONE; loss <= MFL_TEAM_UNREACHED; loss++) {
                struct mfl_msg msg = {.kind = MFL_MSG_TASK_FAILED,
                        .failed = {.task = bed.task[1].task,
                                .reason = "lost",
                                .broken = true,
                                .accused = 2,
                                .loss = loss}};
                bed.busy[1] = false;
                message(&bed, 1, msg);
        }
        assert_int_equal(mfl_core_job_teams(bed.core, JOB, &totals), 0);
        assert_int_equal(totals.broken, 3);
        assert_int_equal(totals.late, 1);
        assert_int_equal(totals.unreached, 1);
        assert_string_equal(totals.last, "daemon d1 can't connect to daemon d4: lost");
        mfl_core_free(bed.core);
}

/* Three daemons that listen, on nodes of their own. */
static void setup_three(struct bed *bed, uint32_t members, uint32_t least)
{
        setup(bed, 3, 1);
        bed->works = true;
        bed->spec.parallel.within = MFL_WITHIN_ANY;
        bed->spec.parallel.members = members;
        bed->spec.parallel.members_min = least;
        for (uint32_t i = 1; i <= 3; i++) {
                snprintf(bed->info[i].node, sizeof bed->info[i].node, "n%u", i);
                snprintf(bed->info[i].peer, sizeof bed->info[i].peer, "host%u:1", i);
        }
        begin(bed);
}

/* conn's connection to the accused member fails. */
static void say_unreached(struct bed *bed, uint32_t conn, uint32_t accused, uint32_t loss)
{
        struct mfl_msg msg = {.kind = MFL_MSG_TASK_FAILED,
                .failed = {.task = bed->task[conn].task,
                        .reason = "closed",
                        .broken = true,
                        .accused = accused,
                        .loss = loss}};
        bed->busy[conn] = false;
        message(bed, conn, msg);
}

/* Of three that are needed, one can't be reached for a while: it is asked again, and takes part as soon as it can be. */
static void needed_daemons_do_not_rest_for_long(void **state)
{
        static const uint32_t losses[] = {MFL_TEAM_LATE, MFL_TEAM_UNREACHED, MFL_TEAM_ISOLATED};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(losses); i++) {
                struct bed bed;
                setup_three(&bed, 0, 3);
                for (int turn = 0; turn < 5; turn++) { /* more than limits.retries */
                        ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1");
                        say_unreached(&bed, 3, 2, losses[i]);
                        tick(&bed);
                        for (int k = 1; k <= 3; k++)
                                assert_false(bed.busy[k]);
                        for (int k = 0; k < 20; k++)
                                tick(&bed);
                }
                ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1");
                assert_int_equal(bed.task[1].round, 1);
                end_round(&bed, 1, fast_line);
                ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1");
                mfl_core_free(bed.core);
        }
}

/* What `mfl show` says of a job that waits for a team. */
static void assert_waits(const struct bed *bed, const char *words)
{
        struct mfl_core_job_view view;
        assert_int_equal(mfl_core_job_view(bed->core, JOB, &view), 0);
        if (!strstr(view.reason, words))
                assert_string_equal(view.reason, words);
}

static void who_waits_for_a_team_says_why(void **state)
{
        struct bed bed;
        for (int kind = 0; kind < 7; kind++) {
                setup(&bed, 3, 1);
                bed.spec.parallel.members_min = kind == 1 ? 4 : 3;
                for (int i = 1; i <= 3; i++)
                        strcpy(bed.info[i].numerics, "mfl-9 cuda (CUDA 13.0, cuDNN 9.19.0) on NVIDIA H100");
                if (kind == 2)
                        bed.info[2].alone = true;
                if (kind == 3) /* the names of the devices are what differs */
                        strcpy(bed.info[2].numerics, "mfl-9 cuda (CUDA 13.0, cuDNN 9.19.0) on NVIDIA A100");
                if (kind == 4)
                        strcpy(bed.info[2].numerics, "");
                if (kind >= 5)
                        strcpy(bed.info[2].node, "other");
                if (kind == 6) {
                        bed.spec.parallel.within = MFL_WITHIN_ANY;
                        strcpy(bed.info[1].peer, "host1:1");
                        strcpy(bed.info[2].peer, "host2:1");
                }
                begin(&bed);
                if (!kind) {
                        ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1");
                        say_failed(&bed, 3, true, 2);
                }
                for (int i = 0; i < 8; i++)
                        tick(&bed);
                static const char *const words[] = {
                        "; d2 rests for some seconds; j-000001: its team lost it: daemon d3: lost",
                        "; all have 3", "; daemon d2 joins no team (team: off, or an older release)",
                        "; these compute with other last bits: d1 (H100) and d2 (A100)",
                        ("; these compute with other last bits: d1 (mfl-9 cuda (CUDA 13.0, cuDNN 9.19.0)) "
                         "and "
                         "d2 (unknown)"),
                        "; no node has them (within: any joins nodes)",
                        "; daemon d3 has no peer_listen in client.yaml, so other nodes can't reach it"};
                assert_waits(&bed, words[kind]);
                mfl_core_free(bed.core);
        }
}

/* It says so itself, or another one that it has told; it works alone, and joins again after two rounds. */
static void who_reaches_nobody_is_left_alone(void **state)
{
        for (uint32_t by = 2; by <= 3; by++) {
                struct bed bed;
                struct mfl_team_totals totals;
                setup_three(&bed, 4, 1);
                ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1");
                say_unreached(&bed, by, 2, MFL_TEAM_ISOLATED);
                assert_int_equal(mfl_core_job_teams(bed.core, JOB, &totals), 0);
                assert_int_equal(totals.unreached, 1);
                assert_string_equal(totals.last,
                        "daemon d2 can't connect to others; is there a firewall around it? closed");
                for (uint32_t round = 1; round < 3; round++) {
                        ASSERT_LEADS(&bed, 1, "d1:1+d3:1");
                        assert_false(bed.busy[2]);
                        end_round(&bed, 1, fast_line);
                }
                ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1");
                mfl_core_free(bed.core);
        }
}

/* Teams of two: nobody knows at first whether d1's port is closed, or d2 may not connect. */
static void of_two_others_decide_who_is_at_fault(void **state)
{
        struct bed bed;
        struct mfl_team_totals totals;
        setup_three(&bed, 2, 1);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        say_unreached(&bed, 2, 1, MFL_TEAM_UNREACHED);
        ASSERT_LEADS(&bed, 2, "d2:1+d3:1");
        end_round(&bed, 2, fast_line);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        say_unreached(&bed, 2, 1, MFL_TEAM_UNREACHED); /* now d2 */
        ASSERT_LEADS(&bed, 1, "d1:1+d3:1");
        end_round(&bed, 1, fast_line); /* d3 has connected to d1 */
        ASSERT_LEADS(&bed, 1, "d1:1+d3:1");
        end_round(&bed, 1, fast_line);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        say_unreached(&bed, 2, 1, MFL_TEAM_UNREACHED);
        assert_int_equal(mfl_core_job_teams(bed.core, JOB, &totals), 0);
        assert_string_equal(totals.last, "daemon d2 can't connect to daemon d1, as others can: closed");
        for (uint32_t round = 4; round < 10; round++) { /* six rounds, and d1 is free of it */
                ASSERT_LEADS(&bed, 1, "d1:1+d3:1");
                end_round(&bed, 1, fast_line);
        }
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        mfl_core_free(bed.core);
}

/* d2 is blamed for not reaching d1, which comes back as another process: that was why. */
static void a_restart_clears_who_could_not_connect(void **state)
{
        struct bed bed;
        setup_three(&bed, 2, 1);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        say_unreached(&bed, 2, 1, MFL_TEAM_UNREACHED);
        end_round(&bed, 2, fast_line);
        say_unreached(&bed, 2, 1, MFL_TEAM_UNREACHED);
        ASSERT_LEADS(&bed, 1, "d1:1+d3:1"); /* d2 would rest in the next round, too */
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = 1});
        bed.busy[1] = false;
        bed.info[1].instance += 100;
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_UP, .conn = 1, .daemon = &bed.info[1]});
        tick(&bed);
        end_round(&bed, 1, fast_line);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        mfl_core_free(bed.core);
}

/* Teams of two; d2 has connected to d1 before, and then can't connect to anybody any more. */
static void who_reached_others_once_may_be_at_fault_later(void **state)
{
        struct bed bed;
        struct mfl_team_totals totals;
        setup_three(&bed, 2, 1);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        end_round(&bed, 1, fast_line);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        say_unreached(&bed, 2, 1, MFL_TEAM_UNREACHED); /* d1: it is the first time */
        ASSERT_LEADS(&bed, 2, "d2:1+d3:1");
        end_round(&bed, 2, fast_line);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
        say_unreached(&bed, 2, 1, MFL_TEAM_UNREACHED);
        assert_int_equal(mfl_core_job_teams(bed.core, JOB, &totals), 0);
        assert_string_equal(totals.last, "daemon d2 can't connect to daemon d1: closed");
        ASSERT_LEADS(&bed, 1, "d1:1+d3:1"); /* now d2 */
        mfl_core_free(bed.core);
}

/* Of two members the first one waits for the second one, and neither has others to try. */
static void what_a_member_cannot_know_blames_nobody(void **state)
{
        static const struct {
                uint32_t by, accused, loss;
        } lies[] = {{2, 1, MFL_TEAM_ISOLATED}, {1, 2, MFL_TEAM_ISOLATED}, {1, 2, MFL_TEAM_UNREACHED}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(lies); i++) {
                struct bed bed;
                struct mfl_team_totals totals;
                setup_three(&bed, 2, 1);
                ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
                say_unreached(&bed, lies[i].by, lies[i].accused, lies[i].loss);
                assert_int_equal(mfl_core_job_teams(bed.core, JOB, &totals), 0);
                assert_int_equal(totals.unreached, 0);
                end_round(&bed, bed.busy[1] && bed.task[1].kind == MFL_TASK_TRAIN ? 1 : 2, fast_line);
                ASSERT_LEADS(&bed, 1, "d1:1+d2:1");
                mfl_core_free(bed.core);
        }
}

static void who_is_accused_rests(void **state)
{
        struct bed bed;
        setup(&bed, 4, 1);
        begin(&bed);
        ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1+d4:1");
        say_failed(&bed, 4, true, 2); /* d2 has died, says d4 */
        ASSERT_LEADS(&bed, 1, "d1:1+d3:1+d4:1");
        assert_false(bed.busy[2]);
        say_failed(&bed, 3, true, 1); /* the leader is late */
        ASSERT_LEADS(&bed, 3, "d3:1+d4:1");
        assert_false(bed.busy[1]);
        mfl_core_free(bed.core);
}

static void what_fails_again_and_again_is_left_alone(void **state)
{
        struct bed bed;
        setup(&bed, 3, 1);
        begin(&bed);
        for (int k = 0; k < 4; k++) {
                ASSERT_LEADS(&bed, 1, "d1:1+d2:1+d3:1");
                say_failed(&bed, 1, true, 0);
        }
        assert_int_equal(bed.busy[1] + bed.busy[2] + bed.busy[3], 1);
        for (uint32_t i = 1; i <= 3; i++)
                assert_true(!bed.busy[i] || !bed.task[i].team.team);
        mfl_core_free(bed.core);
}

static void a_lost_member_ends_its_team(void **state)
{
        for (uint32_t victim = 1; victim <= 3; victim++) {
                struct bed bed;
                setup(&bed, 3, 1);
                begin(&bed);
                feed(&bed, (struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = victim});
                assert_int_equal(bed.n_sent, 3); /* it may come back, and its team may still be at work */
                bed.now += 10001;
                feed(&bed, (struct mfl_core_event){.kind = MFL_EV_TICK});
                ASSERT_LEADS(&bed, victim == 1 ? 2 : 1,
                        victim == 1   ? "d2:1+d3:1"
                        : victim == 2 ? "d1:1+d3:1"
                                      : "d1:1+d2:1");
                mfl_core_free(bed.core);
        }
}

/* A member that fails by itself is told apart from one that lost another, and counts like any failure. */
static void a_failure_is_the_members_own(void **state)
{
        struct bed bed;
        setup(&bed, 3, 1);
        begin(&bed);
        say_failed(&bed, 2, false, 0);
        ASSERT_LEADS(&bed, 1, "d1:1+d3:1"); /* who has just failed comes last */
        struct mfl_team_totals totals;
        assert_int_equal(mfl_core_job_teams(bed.core, JOB, &totals), 0);
        assert_int_equal(totals.taken, 1);
        assert_int_equal(totals.broken, 0);
        mfl_core_free(bed.core);
}

static void a_stopped_jobs_teams_have_not_failed(void **state)
{
        struct bed bed;
        struct mfl_team_totals totals;
        setup(&bed, 3, 1);
        begin(&bed);
        uint32_t n = bed.n_cancelled;
        feed(&bed, (struct mfl_core_event){.kind = MFL_EV_JOB_STOP, .job = JOB});
        assert_int_equal(bed.n_cancelled, n + 3);
        assert_true(!bed.busy[1] && !bed.busy[2] && !bed.busy[3]);
        assert_int_equal(mfl_core_job_teams(bed.core, JOB, &totals), MFL_NOT_FOUND); /* it is released */
        assert_int_equal(bed.ended.formed, 1);
        assert_int_equal(bed.ended.taken + bed.ended.broken, 0);
        mfl_core_free(bed.core);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(idle_daemons_help),
                cmocka_unit_test(with_enough_clients_nobody_helps),
                cmocka_unit_test(workers_are_ranks),
                cmocka_unit_test(only_equals_that_reach_each_other_join),
                cmocka_unit_test(teams_reach_over_nodes_where_daemons_listen),
                cmocka_unit_test(a_wall_is_remembered),
                cmocka_unit_test(a_site_helps_itself),
                cmocka_unit_test(the_leaders_result_frees_the_others),
                cmocka_unit_test(a_team_is_as_large_as_pays),
                cmocka_unit_test(a_number_is_a_number),
                cmocka_unit_test(needed_daemons_do_not_rest_for_long),
                cmocka_unit_test(who_waits_for_a_team_says_why),
                cmocka_unit_test(who_reaches_nobody_is_left_alone),
                cmocka_unit_test(of_two_others_decide_who_is_at_fault),
                cmocka_unit_test(who_reached_others_once_may_be_at_fault_later),
                cmocka_unit_test(a_restart_clears_who_could_not_connect),
                cmocka_unit_test(what_a_member_cannot_know_blames_nobody),
                cmocka_unit_test(who_is_accused_rests),
                cmocka_unit_test(teams_shrink_to_the_least),
                cmocka_unit_test(ends_are_counted_by_reason),
                cmocka_unit_test(who_cannot_do_it_alone_gets_a_team),
                cmocka_unit_test(the_wide_leave_room_for_others),
                cmocka_unit_test(other_sites_do_not_help),
                cmocka_unit_test(daemons_without_the_data_do_not_help),
                cmocka_unit_test(teams_grow_until_they_fit),
                cmocka_unit_test(who_needs_a_team_leaves_its_place),
                cmocka_unit_test(a_team_is_not_taken_apart),
                cmocka_unit_test(who_joins_nobody_makes_room_for_a_team),
                cmocka_unit_test(who_has_failed_is_not_missed_for_ever),
                cmocka_unit_test(halves_of_two_teams_make_one),
                cmocka_unit_test(without_shards_a_refusal_is_final),
                cmocka_unit_test(what_fails_again_and_again_is_left_alone),
                cmocka_unit_test(a_lost_member_ends_its_team),
                cmocka_unit_test(a_failure_is_the_members_own),
                cmocka_unit_test(a_stopped_jobs_teams_have_not_failed),
        };
        return cmocka_run_group_tests_name("core_team", tests, NULL, NULL);
}
