/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's daemon shell: carries out an agent's actions on in-memory params, results and connections.
 */
#include "tests/sim/sim.h"

void sim_daemon_step(struct sim *sim, uint32_t i, const struct mfl_agent_event *event);

static void free_result(struct sim *sim, struct sim_daemon *d, uint64_t task)
{
        struct sim_result *result = sim_result(d, task);
        sim_check(sim, result, "daemon %s frees a result it does not have", d->info.name);
        free(result->t.items);
        *result = (struct sim_result){0};
}

void sim_daemon_free(struct sim *sim, uint32_t i)
{
        struct sim_daemon *d = &sim->daemon[i];
        for (int k = 0; k < SIM_RESULTS; k++) {
                free(d->result[k].t.items);
                d->result[k] = (struct sim_result){0};
        }
        mfl_agent_free(d->agent);
        d->agent = NULL;
}

void sim_daemon_start(struct sim *sim, uint32_t i)
{
        struct sim_daemon *d = &sim->daemon[i];
        if (d->agent)
                return;
        d->generation++;
        d->info.instance = ++sim->serial;
        d->left_boot = 0;
        d->leaves = false;
        d->info.data_sets = d->data_sets;
        d->conn = 0;
        d->n_params = 0;
        d->params_job[0] = d->frozen_job[0] = '\0';
        d->n_frozen = 0;
        d->params_frozen = false;
        d->computing = NULL;
        d->params_order = d->params_answer = d->communicator = 0;
        d->abort = d->communicator_open = false;
        d->tick_at = UINT64_MAX;
        struct mfl_agent_options options = {
                .info = d->info, .seed = sim->seed ^ sim->serial, .results_max = 2};
        mfl_assert(mfl_agent_new(&options, &d->agent, NULL) == 0);
        sim_daemon_step(sim, i, &(struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
}

/* As by SIGTERM. */
void sim_daemon_stop(struct sim *sim, uint32_t i)
{
        struct sim_daemon *d = &sim->daemon[i];
        if (!d->agent)
                return;
        sim_line(sim, d->info.name, "is asked to stop");
        sim_daemon_step(sim, i, &(struct mfl_agent_event){.kind = MFL_AGENT_EV_STOP});
        sim_daemon_free(sim, i);
        d->conn = 0;
        d->generation++;
}

/* As by SIGTERM with `stop: task`. */
void sim_daemon_leave(struct sim *sim, uint32_t i, uint64_t within_ms)
{
        struct sim_daemon *d = &sim->daemon[i];
        if (!d->agent)
                return;
        sim_line(sim, d->info.name, "is asked to leave");
        d->leaves = true;
        sim_daemon_step(
                sim, i, &(struct mfl_agent_event){.kind = MFL_AGENT_EV_LEAVE, .within_ms = within_ms});
}

/* Its process has ended by itself; somebody starts it again. */
void sim_daemon_exited(struct sim *sim, uint32_t i)
{
        struct sim_daemon *d = &sim->daemon[i];
        sim_line(sim, d->info.name, "has ended");
        sim_daemon_free(sim, i);
        d->conn = 0;
        d->generation++;
        sim_at(sim, sim->quiet ? 1 : sim_below(sim, 4000), SIM_DAEMON_START)->a = i;
}

void sim_daemon_crash(struct sim *sim, uint32_t i)
{
        struct sim_daemon *d = &sim->daemon[i];
        if (!d->agent)
                return;
        sim_line(sim, d->info.name, "is killed");
        if (d->conn)
                sim_conn_cut(sim, d->conn);
        sim_daemon_free(sim, i);
        d->generation++;
}

/* As something outside of it does to it; a killed one is started again. */
void sim_harm(struct sim *sim, uint32_t i, enum sim_harm harm)
{
        struct sim_daemon *d = &sim->daemon[i];
        if (harm == SIM_KILL) {
                sim_daemon_crash(sim, i);
                sim_at(sim, 2000, SIM_DAEMON_START)->a = i;
        } else if (harm == SIM_STOP) {
                sim_line(sim, d->info.name, "is stopped for 6 s");
                d->stalled_to = sim->now + 6000;
        } else if (d->conn && harm == SIM_CUT)
                sim_conn_cut(sim, d->conn);
        else if (d->conn)
                sim->conns[d->conn - 1].dark = true;
}

/* ---- computing ---- */

struct sim_event *sim_self(struct sim *sim, uint32_t i, uint64_t delay, const struct mfl_agent_event *event)
{
        struct sim_event *e = sim_at(sim, delay, SIM_DAEMON_SELF);
        e->a = i;
        e->b = sim->daemon[i].generation;
        e->agent = malloc(sizeof *event);
        *e->agent = *event;
        return e;
}

static void compute(struct sim *sim, uint32_t i, const struct mfl_task *task)
{
        struct sim_daemon *d = &sim->daemon[i];
        const struct sim_job *job = sim_job(sim, task->job);
        sim_check(sim, task->n_frozen == job->n_frozen, "daemon %s was told of %u frozen params",
                d->info.name, (uint32_t)task->n_frozen);
        sim_check(sim, !task->n_frozen || d->info.protocol >= 2, "daemon %s knows no frozen params",
                d->info.name);
        sim_check(sim,
                !task->n_frozen || (d->n_frozen == SIM_FROZEN && strcmp(d->frozen_job, task->job) == 0 &&
                                           memcmp(d->frozen, job->frozen, sizeof d->frozen) == 0),
                "daemon %s computes without the job's frozen params", d->info.name);
        sim_check(sim, !d->computing, "daemon %s computes two tasks", d->info.name);
        uint8_t digest[MFL_DIGEST_BYTES];
        sim_digest(d->params, digest);
        sim_check(sim, memcmp(digest, task->params_digest, MFL_DIGEST_BYTES) == 0,
                "daemon %s computes on wrong params", d->info.name);
        d->computing = task;
        d->computing_task = task->task;
        d->computing_kind = task->group.collective;
        d->abort = d->retasked = false;
        struct sim_event *e =
                sim_at(sim, (uint64_t)(20 + task->n_items * 30) * d->slow / d->info.workers, SIM_COMPUTED);
        e->a = i;
        e->b = d->generation;
        e->task = task->task;
}

static struct sim_result *new_result(struct sim *sim, struct sim_daemon *d, const struct mfl_task *task)
{
        for (int i = 0; i < SIM_RESULTS; i++) {
                struct sim_result *result = &d->result[i];
                if (result->used)
                        continue;
                *result = (struct sim_result){.used = true, .task = task->task, .t = *task};
                return result;
        }
        /* Evaluation results are cheap, but even of them only a few are kept. */
        sim_fail(sim, "daemon %s holds more than %d results", d->info.name, SIM_RESULTS);
}

/* Two corrupt sums of one group could add up to one that looks good. */
static bool other_corrupt(const struct sim *sim)
{
        for (uint32_t i = 0; i < sim->n_daemons; i++)
                for (int k = 0; k < SIM_RESULTS; k++)
                        if (sim->daemon[i].result[k].used && sim->daemon[i].result[k].corrupt)
                                return true;
        return false;
}

static void announce_of(struct sim *sim, struct sim_daemon *d, struct sim_result *result, uint32_t first,
        uint32_t n, struct mfl_announce *a)
{
        const struct mfl_task *t = &result->t;
        struct sim_job *job = sim_job(sim, t->job);
        int64_t sum[SIM_PARAMS] = {0};
        float p1[SIM_PARAMS];
        *a = (struct mfl_announce){
                .item_first = first, .item_count = n, .encoding = MFL_ENCODING_I64, .train_us = 1000 * n};
        if (d->reject) {
                d->reject--;
                a->rejected = calloc(1, sizeof *a->rejected);
                a->n_rejected = 1;
                a->rejected[0].item = t->items[first];
        }
        for (uint32_t k = first + a->n_rejected; k < first + n; k++) {
                sim_train(t->items[k], t->round, d->params, p1);
                uint64_t weight = sim_weight(&job->spec, t->items[k]);
                mfl_assert(mfl_fixed_add_delta(&t->fixed, weight, p1, d->params, SIM_PARAMS, sum, NULL) == 0);
                a->weight += weight;
                a->samples += 10;
                a->correct += t->items[k] % 10;
                a->loss_sum += (int64_t)10 << 32;
        }
        if (n == a->n_rejected)
                return;
        uint8_t *data = result->data[result->n_updates];
        memcpy(data, sum, sizeof sum);
        a->bytes = sizeof sum;
        if (t->single_updates) {
                a->encoding = MFL_ENCODING_F32;
                a->bytes = SIM_PARAMS * sizeof(float);
                for (int i = 0; i < SIM_PARAMS; i++)
                        ((float *)data)[i] = p1[i] - d->params[i];
        }
        if (d->corrupt && !other_corrupt(sim)) { /* an element over every limit: the sum refuses it */
                d->corrupt--;
                result->corrupt = true;
                memset(data, 0x7f, a->bytes);
        }
}

static void finish_train(
        struct sim *sim, uint32_t i, const struct mfl_task *task, struct mfl_agent_event *event)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct sim_result *result = new_result(sim, d, task);
        struct mfl_announce a[SIM_ITEMS];
        struct mfl_group group = task->group; /* which announcing may end */
        uint64_t *items = malloc(task->n_items * sizeof *items);
        memcpy(items, task->items, task->n_items * sizeof *items);
        result->t.items = items;
        bool halves = task->n_items > 2 && task->items[0] % (d->computing_kind ? 8 : 2) == 1 &&
                      !(d->computing_kind && sim->quiet);
        uint32_t piece = task->single_updates ? 1 : halves ? task->n_items / 2 : task->n_items;
        for (uint32_t first = 0; first < task->n_items; first += piece) {
                announce_of(
                        sim, d, result, first, MFL_MIN(piece, task->n_items - first), &a[result->n_updates]);
                result->n_updates++;
        }
        event->ok = true;
        event->updates = a;
        event->n_updates = result->n_updates;
        uint32_t n = result->n_updates;
        event->grouped = result->grouped =
                d->computing_kind && n == 1 && !task->single_updates && a[0].bytes && !d->shm_full;
        d->shm_full -= d->computing_kind && d->shm_full;
        sim_daemon_step(sim, i, event);
        sim_trap_at(sim, SIM_TRAP_COMPUTED, &group);
        for (uint32_t k = 0; k < n; k++)
                free(a[k].rejected);
}

static void finish_eval(
        struct sim *sim, uint32_t i, const struct mfl_task *task, struct mfl_agent_event *event)
{
        struct mfl_eval_item v[SIM_ITEMS];
        uint32_t n = sim_job(sim, task->job)
                             ->spec.evaluation.batch; /* 100 test samples: every shard is one batch */
        for (uint32_t k = 0; k < task->n_items; k++)
                v[k] = (struct mfl_eval_item){.item = task->items[k],
                        .samples = n,
                        .correct = task->items[k] % n,
                        .loss_sum = (int64_t)n << 31};
        new_result(sim, &sim->daemon[i], task)->t.items = NULL;
        event->ok = true;
        event->eval = v;
        event->n_eval = task->n_items;
        sim_daemon_step(sim, i, event);
}

void sim_daemon_computed(struct sim *sim, uint32_t i, uint64_t number)
{
        struct sim_daemon *d = &sim->daemon[i];
        if (!d->computing || d->computing_task != number)
                return; /* it was aborted, and that was told */
        const struct mfl_task *task = d->computing;
        d->computing = NULL;
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_COMPUTED, .task = number};
        if (d->abort || d->fail) {
                event.permanent = !d->abort && d->permanent;
                sim->barred |= event.permanent;
                d->fail -= !d->abort;
                mfl_strcpy(event.reason, sizeof event.reason, "the trainer broke");
                d->permanent = false;
                sim_daemon_step(sim, i, &event);
        } else if (task->kind == MFL_TASK_TRAIN)
                finish_train(sim, i, task, &event);
        else
                finish_eval(sim, i, task, &event);
}

/* ---- actions ---- */

void sim_send_chunk(
        struct sim *sim, uint32_t i, uint64_t task, uint32_t update, uint64_t offset, const void *bytes)
{
        if (sim->now < sim->daemon[i].mute_to)
                return; /* its connection lives */
        struct sim_packet *packet = calloc(1, sizeof *packet);
        packet->to_server = true;
        packet->task = task;
        packet->update = update;
        packet->offset = offset;
        packet->n = 8;
        memcpy(packet->bytes, bytes, 8);
        sim_send(sim, sim->daemon[i].conn, packet);
}

static void upload(struct sim *sim, uint32_t i, const struct mfl_agent_action *action)
{
        struct sim_daemon *d = &sim->daemon[i];
        if (action->combined) {
                sim_upload_sum(sim, i, action);
                return;
        }
        struct sim_result *result = sim_result(d, action->task_number);
        sim_check(sim, result && action->update < result->n_updates,
                "daemon %s uploads what it does not hold", d->info.name);
        for (uint32_t r = 0; r < action->n_ranges; r++)
                for (uint64_t at = action->ranges[r].offset;
                        at < action->ranges[r].offset + action->ranges[r].bytes; at += 8)
                        sim_send_chunk(sim, i, action->wire_task, action->update, at,
                                result->data[action->update] + at);
        sim_self(sim, i, 0,
                &(struct mfl_agent_event){
                        .kind = MFL_AGENT_EV_SENT, .task = action->task_number, .update = action->update});
}

static void send_msg(struct sim *sim, uint32_t i, struct mfl_msg *msg)
{
        struct sim_packet *packet = calloc(1, sizeof *packet);
        packet->msg = *msg;
        packet->to_server = true;
        sim->daemon[i].n_combine_failed += msg->kind == MFL_MSG_COMBINE_FAILED;
        *msg = (struct mfl_msg){0};
        sim_send(sim, sim->daemon[i].conn, packet);
}

static void close_conn(struct sim *sim, uint32_t i)
{
        struct sim_daemon *d = &sim->daemon[i];
        if (!d->conn)
                return;
        struct sim_conn *conn = &sim->conns[d->conn - 1];
        conn->daemon_open = false;
        if (!conn->dark) {
                struct sim_event *e = sim_at(sim, conn->latency, SIM_CLOSED);
                e->conn = d->conn;
                e->a = 1;
        }
        d->conn = 0;
}

static void carry_out(struct sim *sim, uint32_t i, struct mfl_agent_action *action)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct sim_event *e;
        switch (action->kind) {
        case MFL_AGENT_ACT_CONNECT:
                close_conn(sim, i);
                e = sim_at(sim, 1 + sim_below(sim, 5), SIM_CONNECTED);
                e->a = i;
                e->b = d->generation;
                break;
        case MFL_AGENT_ACT_CLOSE:
                close_conn(sim, i);
                break;
        case MFL_AGENT_ACT_SEND:
                send_msg(sim, i, &action->msg);
                break;
        case MFL_AGENT_ACT_PARAMS_OPEN:
                sim_params_open(sim, i, action->task);
                break;
        case MFL_AGENT_ACT_COMPUTE:
                compute(sim, i, action->task);
                break;
        case MFL_AGENT_ACT_ABORT:
                sim_check(sim, d->computing && d->computing_task == action->task_number,
                        "abort of what is not computed");
                d->abort = true;
                e = sim_at(sim, 5, SIM_COMPUTED);
                e->a = i;
                e->b = d->generation;
                e->task = action->task_number;
                break;
        case MFL_AGENT_ACT_UPLOAD:
                upload(sim, i, action);
                break;
        case MFL_AGENT_ACT_PUBLISH:
                sim_publish(sim, i, action);
                break;
        case MFL_AGENT_ACT_COMBINE:
                sim_combine(sim, i, action);
                break;
        case MFL_AGENT_ACT_COMBINE_STOP:
                sim_combine_stop(sim, i, action);
                break;
        case MFL_AGENT_ACT_COMMUNICATOR:
                sim_communicator(sim, i, action);
                break;
        case MFL_AGENT_ACT_RESULT_FREE:
                free_result(sim, d, action->task_number);
                break;
        case MFL_AGENT_ACT_TRACE:
                sim_line(sim, d->info.name, "%s", action->reason);
                break;
        case MFL_AGENT_ACT_JOB_FORGET:
                break;
        case MFL_AGENT_ACT_EXIT:
                sim_check(sim, action->ok, "daemon %s exits: %s", d->info.name, action->reason);
                e = sim_at(sim, 0, SIM_DAEMON_EXIT);
                e->a = i;
                e->b = d->generation;
        }
}

void sim_daemon_step(struct sim *sim, uint32_t i, const struct mfl_agent_event *event)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct mfl_agent_actions actions = {0};
        struct mfl_agent_event now = *event;
        now.now_ms = sim->now;
        sim_check(sim, mfl_agent_step(d->agent, &now, &actions) == 0, "agent step failed");
        mfl_agent_check(d->agent);
        for (uint32_t k = 0; k < actions.n && d->agent; k++)
                carry_out(sim, i, &actions.v[k]);
        mfl_agent_actions_deinit(&actions);
        uint64_t next = d->agent ? mfl_agent_next_ms(d->agent) : UINT64_MAX;
        if (next < d->tick_at || d->tick_at <= sim->now) {
                d->tick_at = next;
                if (next != UINT64_MAX) {
                        struct sim_event *e =
                                sim_at(sim, next > sim->now ? next - sim->now : 0, SIM_TICK_DAEMON);
                        e->a = i;
                        e->b = d->generation;
                }
        }
}

static void take_params(struct sim *sim, uint32_t i, const struct sim_packet *packet)
{
        struct sim_daemon *d = &sim->daemon[i];
        sim_daemon_step(sim, i, &(struct mfl_agent_event){.kind = MFL_AGENT_EV_HEARD});
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_PARAMS_DONE, .ok = true};
        mfl_strcpy(event.job, sizeof event.job, packet->job);
        memcpy(event.digest, packet->digest, MFL_DIGEST_BYTES);
        if (strcmp(packet->job, d->frozen_job) == 0 && packet->offset == d->n_frozen &&
                d->n_frozen < SIM_FROZEN && memcmp(packet->digest, d->frozen_digest, MFL_DIGEST_BYTES) == 0) {
                memcpy(d->frozen + packet->offset, packet->bytes, packet->n * sizeof(float));
                d->n_frozen += packet->n;
                if (d->n_frozen == SIM_FROZEN)
                        sim_daemon_step(sim, i, &event);
                return;
        }
        if (strcmp(packet->job, d->params_job) != 0 ||
                memcmp(packet->digest, d->params_digest, MFL_DIGEST_BYTES) != 0 ||
                packet->offset != d->n_params)
                return;
        memcpy(d->params + packet->offset, packet->bytes, packet->n * sizeof(float));
        d->n_params += packet->n;
        if (d->n_params < SIM_PARAMS)
                return;
        sim_daemon_step(sim, i, &event);
}

/* Who was told to go on alone neither adds nor waits for another one's params. */
static void check_alone(struct sim *sim, struct sim_daemon *d, uint64_t number)
{
        struct sim_group *group = sim_ledger_group_of(sim, number);
        sim_check(sim,
                !d->params_order || d->params_task != number || !d->params_from ||
                        d->params_from == d->info.instance,
                "daemon %s waits for the params of another one, though it is alone", d->info.name);
        for (int k = 0; group && k < SIM_RESULTS; k++) {
                const struct sim_combine *c = &d->result[k].combine;
                sim_check(sim,
                        !d->result[k].used || c->group.group != group->number ||
                                c->state == SIM_COMBINE_NONE || c->state == SIM_COMBINE_STOPS,
                        "daemon %s goes on combining a group that is over", d->info.name);
        }
}

void sim_daemon_packet(struct sim *sim, uint32_t i, struct sim_packet *packet)
{
        if (packet->msg.kind == MFL_MSG_NONE)
                take_params(sim, i, packet);
        else
                sim_daemon_step(
                        sim, i, &(struct mfl_agent_event){.kind = MFL_AGENT_EV_MESSAGE, .msg = &packet->msg});
        struct sim_daemon *d = &sim->daemon[i];
        if (packet->msg.kind == MFL_MSG_ALONE && d->agent)
                check_alone(sim, d, packet->msg.cancel.task);
        d->retasked |= packet->msg.kind == MFL_MSG_TASK;
        if (packet->msg.kind == MFL_MSG_CANCEL && d->computing && !d->retasked &&
                d->computing_task == packet->msg.cancel.task)
                sim_check(
                        sim, d->abort, "daemon %s goes on computing a task that was cancelled", d->info.name);
}
