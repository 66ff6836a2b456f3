/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's daemon shell: carries out an agent's actions on in-memory params, results and connections.
 */
#include "tests/sim/sim.h"

void sim_daemon_step(struct sim *sim, uint32_t i, const struct mfl_agent_event *event);
static void send_msg(struct sim *sim, uint32_t i, uint64_t task, struct mfl_msg *msg);

static void free_result(struct sim *sim, struct sim_daemon *d, uint64_t task)
{
        struct sim_result *result = sim_result(d, task);
        sim_check(sim, result, "daemon %s frees a result it does not have", d->info.name);
        free(result->t.items);
        *result = (struct sim_result){0};
}

/* Its process is gone, and so is what it computes. */
static void leave_team(struct sim *sim, struct sim_daemon *d)
{
        struct mfl_task_team team = {0};
        if (d->agent && d->computing)
                team = d->computing->team;
        d->computing = NULL;
        if (team.team && d->team_state == SIM_TEAM_MET)
                sim_team_end(sim, &team, false, team.member + 1);
}

void sim_daemon_free(struct sim *sim, uint32_t i)
{
        struct sim_daemon *d = &sim->daemon[i];
        leave_team(sim, d);
        for (int k = 0; k < SIM_RESULTS; k++) {
                free(d->result[k].t.items);
                d->result[k] = (struct sim_result){0};
        }
        sim_params_reset(d);
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
        d->leaves = d->lied = false;
        memset(d->told_cut, 0, sizeof d->told_cut);
        memset(d->made_cut, 0, sizeof d->made_cut);
        memset(d->false_cut, 0, sizeof d->false_cut);
        d->info.data_sets = d->data_sets;
        d->conn = 0;
        sim_params_reset(d);
        d->computing = NULL;
        d->communicator = 0;
        d->abort = d->communicator_open = false;
        d->tick_at = UINT64_MAX;
        struct mfl_agent_options options = {
                .info = d->info, .seed = sim->seed ^ sim->serial, .results_max = 2};
        options.info.relay[0] = 0; /* the relays say it */
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
                sim_conn_dark(sim, d->conn);
}

/* The server has sent it away for what it said: it ends, and somebody sees to it and starts it again. What is
 * still on its way may be of a process that has ended since. */
void sim_daemon_accused(struct sim *sim, const struct mfl_core_action *accusation)
{
        uint32_t i = 0, conn = accusation->conn;
        if (conn)
                i = sim->conns[conn - 1].daemon;
        else /* of two with that name, the one that has lied */
                while (i < sim->n_daemons &&
                        (!sim->daemon[i].has_lied || strcmp(sim->daemon[i].info.name, accusation->accused)))
                        i++;
        sim_check(sim, i < sim->n_daemons, "daemon %s is accused, and has not lied: %s", accusation->accused,
                accusation->reason);
        struct sim_daemon *d = &sim->daemon[i];
        bool same = d->agent && conn && sim->conns[conn - 1].generation == d->generation;
        sim_check(sim, same ? d->lied : d->has_lied, "daemon %s is accused, and has not lied: %s",
                d->info.name, accusation->reason);
        sim->n_lies++;
        if (!same)
                return;
        if (d->conn)
                sim_conn_cut(sim, d->conn);
        struct sim_event *e = sim_at(sim, 1, SIM_DAEMON_EXIT);
        e->a = i;
        e->b = d->generation;
}

/* ---- telling of the clients ---- */

static bool lies(struct sim_daemon *d, enum sim_lie lie)
{
        if (d->lie != lie)
                return false;
        d->lie = SIM_LIE_NONE;
        d->lied = d->has_lied = true;
        return true;
}

/* Two that tell the same falsehood outvote the truth: one of them at a time. */
static bool others_false(const struct sim *sim, size_t job)
{
        for (uint32_t i = 0; i < sim->n_daemons; i++)
                if (sim->daemon[i].false_cut[job])
                        return true;
        return false;
}

/* Moves samples between clients, so that their sum stays. */
static void falsify(uint32_t *counts, uint32_t n)
{
        for (uint32_t k = 0; k + 1 < n; k += 2) {
                counts[k] += counts[k + 1] - 1;
                counts[k + 1] = 1;
        }
}

static void tell_cut(struct sim *sim, uint32_t i, const char *job_id)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct sim_job *job = sim_job(sim, job_id);
        size_t j = (size_t)(job - sim->job);
        const struct mfl_job *spec = &job->spec;
        if (spec->data.partition == MFL_PARTITION_LOCAL)
                return;
        bool made = d->made_cut[j];
        d->made_cut[j] = true;
        bool timed = mfl_job_is_async(spec); /* who trains when follows from the counts */
        if (!made && spec->data.clients > 1 && !timed && !others_false(sim, j) && lies(d, SIM_LIE_CUT))
                d->false_cut[j] = job->misled = true;
        if (!d->conn ||
                d->told_cut[j] == d->conn) /* what is made without a connection is told on the next one */
                return;
        d->told_cut[j] = d->conn;
        uint32_t n = spec->data.clients, half = n > 3 ? n / 2 : n;
        for (uint32_t first = 0; first < n; first += half) { /* in pieces */
                struct sim_packet *packet = calloc(1, sizeof *packet);
                packet->population = packet->to_server = true;
                mfl_strcpy(packet->job, sizeof packet->job, job_id);
                for (uint32_t k = 0; k < n; k++)
                        packet->counts[k] = sim_samples(spec, k);
                if (d->false_cut[j])
                        falsify(packet->counts, n);
                packet->offset = first;
                packet->n = MFL_MIN(half, n - first);
                sim_send(sim, d->conn, packet);
        }
}

/* What its own false cut makes of the update's clients; 0: it has told none. If nobody else is there who tells the truth, nobody can
 * know that such a weight is a lie. */
static uint64_t false_weight(
        struct sim *sim, const struct sim_daemon *d, const struct mfl_task *t, const struct mfl_announce *a)
{
        const struct sim_job *job = sim_job(sim, t->job);
        const struct mfl_job *spec = &job->spec;
        uint32_t counts[SIM_ITEMS];
        uint64_t weight = 0;
        if (!d->false_cut[job - sim->job] || spec->aggregation.weighting == MFL_WEIGHT_UNIFORM)
                return 0;
        for (uint32_t k = 0; k < spec->data.clients; k++)
                counts[k] = sim_samples(spec, k);
        falsify(counts, spec->data.clients);
        for (uint32_t k = a->item_first + a->n_rejected; k < a->item_first + a->item_count; k++)
                weight += counts[t->items[k]] - mfl_job_held(spec, counts[t->items[k]]);
        return weight;
}

static void lie_of_update(
        struct sim *sim, struct sim_daemon *d, const struct mfl_task *t, struct mfl_announce *a)
{
        if (lies(d, SIM_LIE_ROOM))
                a->weight = t->fixed.weight_max + 1;
        else if (a->weight + 1 != false_weight(sim, d, t, a) && lies(d, SIM_LIE_WEIGHT))
                a->weight++;
        else if (lies(d, SIM_LIE_CORRECT))
                a->correct = a->samples + 1;
        else if (lies(d, SIM_LIE_LOSS))
                a->loss_sum = INT64_MAX;
        else if (lies(d, SIM_LIE_SAMPLES))
                a->samples = (uint64_t)1 << 40;
        else if (a->n_scalars && lies(d, SIM_LIE_SCALARS))
                a->scalars[0] = INT64_MAX;
}

static void lie_of_scores(struct sim_daemon *d, struct mfl_eval_item *item)
{
        if (lies(d, SIM_LIE_EVAL_SAMPLES))
                item->samples = UINT32_MAX;
        else if (lies(d, SIM_LIE_EVAL_CORRECT))
                item->correct = item->samples + 1;
        else if (lies(d, SIM_LIE_EVAL_LOSS))
                item->loss_sum = INT64_MAX;
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

/* The task is done when it should be with so many items. What was to come before it comes for nothing. */
static void computed_after(struct sim *sim, uint32_t i, uint32_t n_items)
{
        struct sim_daemon *d = &sim->daemon[i];
        uint64_t at = d->computing_at + (uint64_t)(20 + n_items * 30) * d->computing_slow / d->info.workers;
        struct sim_event *e = sim_at(sim, at > sim->now ? at - sim->now : 1, SIM_COMPUTED);
        e->a = i;
        e->b = d->generation;
        e->task = d->computing_task;
}

/* All members of the team are there: its leader begins. */
static void lead(struct sim *sim, const struct mfl_task_team *team)
{
        struct sim_daemon *leader = sim_instance(sim, team->members[0]);
        leader->computing_at = sim->now;
        computed_after(sim, (uint32_t)(leader - sim->daemon), leader->computing->n_items);
}

static void progress_later(struct sim *sim, uint32_t i)
{
        struct sim_event *e = sim_at(sim, 500, SIM_PROGRESS);
        e->a = i;
        e->b = sim->daemon[i].generation;
        e->task = sim->daemon[i].computing_task;
}

static void compute(struct sim *sim, uint32_t i, const struct mfl_agent_action *action)
{
        struct sim_daemon *d = &sim->daemon[i];
        const struct mfl_task *task = action->task;
        const struct sim_part *part = sim_part(d, action->part), *frozen = sim_part(d, action->frozen_part);
        const struct sim_job *job = sim_job(sim, task->job);
        sim_check(sim, task->n_frozen == job->n_frozen, "daemon %s was told of %u frozen params",
                d->info.name, (uint32_t)task->n_frozen);
        sim_check(sim, !task->n_frozen || d->info.protocol >= 2, "daemon %s knows no frozen params",
                d->info.name);
        sim_check(sim,
                job->spec.aggregation.strategy != MFL_STRATEGY_FEDNOVA ||
                        d->info.protocol >= MFL_PROTOCOL_METHODS,
                "daemon %s knows no weights of clients' own", d->info.name);
        sim_check(sim,
                !task->n_frozen ||
                        (frozen && frozen->have == SIM_FROZEN && strcmp(frozen->job, task->job) == 0 &&
                                memcmp(frozen->data, job->frozen, sizeof job->frozen) == 0),
                "daemon %s computes without the job's frozen params", d->info.name);
        sim_check(sim, !d->computing, "daemon %s computes two tasks", d->info.name);
        sim_check(sim, part && part->have == SIM_PARAMS, "daemon %s computes without params", d->info.name);
        uint8_t digest[MFL_DIGEST_BYTES];
        memcpy(d->params, part->data, sizeof d->params);
        sim_digest(d->params, digest);
        sim_check(sim, memcmp(digest, task->params_digest, MFL_DIGEST_BYTES) == 0,
                "daemon %s computes on wrong params", d->info.name);
        d->computing = task;
        d->computing_task = task->task;
        d->computing_kind = task->group.collective;
        d->abort = d->retasked = false;
        d->computing_at = sim->now;
        d->computing_slow = d->slow;
        tell_cut(sim, i, task->job);
        d->team_state = SIM_TEAM_NONE;
        if (!task->team.team)
                computed_after(sim, i, task->n_items);
        else if (sim_team_join(sim, i))
                lead(sim, &task->team);
        if (!sim->scenario)
                progress_later(sim, i);
}

/* As the link: twice a second while it computes. */
void sim_daemon_progress(struct sim *sim, uint32_t i, uint64_t task)
{
        struct sim_daemon *d = &sim->daemon[i];
        if (!d->computing || d->computing_task != task)
                return;
        struct mfl_msg msg = {.kind = MFL_MSG_PROGRESS, .progress = {.task = task}};
        uint64_t done = (sim->now - d->computing_at) * d->info.workers / (50 * d->computing_slow);
        msg.progress.items_done = (uint32_t)MFL_MIN(done, (uint64_t)d->computing->n_items);
        if (d->computing->kind == MFL_TASK_TRAIN && mfl_agent_online(d->agent))
                send_msg(sim, i, 0, &msg);
        progress_later(sim, i);
}

/* What is begun stays: clients are trained one after another, as many at a time as there are workers. */
static void recall(struct sim *sim, uint32_t i, const struct mfl_agent_action *action)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct mfl_agent_event event = {
                .kind = MFL_AGENT_EV_RECALLED, .task = action->task_number, .n_items = UINT32_MAX};
        sim_check(sim, action->n_items > 0, "daemon %s is to keep nothing", d->info.name);
        if (d->computing && d->computing_task == action->task_number && !d->abort) {
                uint64_t ms = sim->now - d->computing_at;
                uint64_t begun = d->info.workers * (1 + ms / (50 * d->computing_slow));
                event.n_items = (uint32_t)MFL_MAX(begun, (uint64_t)action->n_items);
        }
        if (event.n_items < UINT32_MAX && event.n_items < d->computing->n_items) {
                sim->n_returned += d->computing->n_items - event.n_items;
                computed_after(sim, i, event.n_items);
        }
        sim_self(sim, i, 0, &event);
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
        a->n_scalars = (uint32_t)mfl_method_get(&job->spec)->n_scalars;
        if (d->reject) {
                d->reject--;
                a->rejected = calloc(1, sizeof *a->rejected);
                a->n_rejected = 1;
                a->rejected[0].item = t->items[first];
        }
        for (uint32_t k = first + a->n_rejected; k < first + n; k++) {
                sim_train(t->items[k], t->round, d->params, p1);
                uint64_t weight = sim_weight(&job->spec, t->items[k]);
                sim_fold(
                        &job->spec, &t->fixed, t->items[k], t->staleness, p1, d->params, sum, &a->scalars[0]);
                a->weight += weight;
                a->samples += 10;
                a->correct += t->items[k] % 10;
                a->loss_sum += (int64_t)10 << 32;
        }
        if (n == a->n_rejected)
                return;
        lie_of_update(sim, d, t, a);
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
        const bool in_group = d->computing_kind || d->relay;
        bool halves =
                task->n_items > 2 && task->items[0] % (in_group ? 8 : 2) == 1 && !(in_group && sim->quiet);
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
        const struct mfl_job *spec = &sim_job(sim, task->job)->spec;
        bool local = spec->data.partition == MFL_PARTITION_LOCAL;
        for (uint32_t k = 0; k < task->n_items; k++) {
                uint32_t n =
                        local ? 100 : spec->evaluation.batch; /* 100 test samples: every shard is one batch */
                if (spec->evaluation.on == MFL_EVALUATE_CLIENTS)
                        n = mfl_job_held(spec, sim_samples(spec, task->items[k]));
                v[k] = (struct mfl_eval_item){.item = task->items[k],
                        .samples = n,
                        .correct = n ? task->items[k] % n : 0,
                        .loss_sum = (int64_t)n << 31};
        }
        lie_of_scores(&sim->daemon[i], &v[0]);
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
        const struct mfl_task_team team = task->team;
        if (team.team && !sim_team_ready(sim, i))
                return;
        enum sim_team_state met = d->team_state;
        d->computing = NULL;
        d->team_state = SIM_TEAM_NONE;
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_COMPUTED, .task = number};
        if (d->abort || d->fail) {
                event.permanent = !d->abort && d->permanent;
                sim->barred |= event.permanent;
                d->fail -= !d->abort;
                mfl_strcpy(event.reason, sizeof event.reason, "the trainer broke");
                d->permanent = false;
                if (met == SIM_TEAM_MET)
                        sim_team_end(sim, &team, false, 0);
                sim_daemon_step(sim, i, &event);
        } else if (met == SIM_TEAM_BROKEN) {
                event.broken = true;
                event.accused = d->accused;
                mfl_strcpy(event.reason, sizeof event.reason, "the mesh broke");
                sim_team_end(sim, &team, false, d->accused);
                sim_daemon_step(sim, i, &event);
        } else if (task->kind == MFL_TASK_ASSIST) {
                event.ok = true;
                sim_daemon_step(sim, i, &event);
        } else if (task->kind == MFL_TASK_TRAIN) {
                if (team.team)
                        sim_team_end(sim, &team, true, 0);
                finish_train(sim, i, task, &event);
        } else
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

/* As a daemon of now does with small updates; one of before puts nothing into its Announce. */
static void put_inside(struct sim *sim, uint32_t i, uint64_t task, struct sim_packet *packet)
{
        const struct mfl_announce *a = &packet->msg.announce;
        const struct sim_result *result = sim_result(&sim->daemon[i], task);
        packet->inside =
                !sim->daemon[i].relay && !sim->scenario && sim->seed % 3 && result && a->bytes && !a->group;
        if (packet->inside)
                memcpy(packet->data, result->data[a->update], a->bytes);
}

static void send_msg(struct sim *sim, uint32_t i, uint64_t task, struct mfl_msg *msg)
{
        struct sim_packet *packet = calloc(1, sizeof *packet);
        packet->msg = *msg;
        packet->to_server = true;
        if (msg->kind == MFL_MSG_ANNOUNCE)
                put_inside(sim, i, task, packet);
        sim->daemon[i].n_combine_failed += msg->kind == MFL_MSG_COMBINE_FAILED;
        *msg = (struct mfl_msg){0};
        /* That is where it hurts: the server goes on as if nothing had come back. */
        if (packet->msg.kind == MFL_MSG_RETURNED && sim->daemon[i].conn && !sim->quiet && sim_chance(sim, 30))
                sim_conn_cut(sim, sim->daemon[i].conn);
        sim_send(sim, sim->daemon[i].conn, packet);
}

static void close_conn(struct sim *sim, uint32_t i)
{
        struct sim_daemon *d = &sim->daemon[i];
        if (!d->conn)
                return;
        struct sim_conn *conn = &sim->conns[d->conn - 1];
        conn->daemon_open = false;
        sim_conn_close(sim, d->conn, false);
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
                send_msg(sim, i, action->task_number, &action->msg);
                break;
        case MFL_AGENT_ACT_PARAMS_LOOK:
        case MFL_AGENT_ACT_PARAMS_ROOM:
        case MFL_AGENT_ACT_PARAMS_HASH:
        case MFL_AGENT_ACT_PARAMS_SHARE:
        case MFL_AGENT_ACT_PARAMS_FREE:
                sim_params_order(sim, i, action);
                break;
        case MFL_AGENT_ACT_COMPUTE:
                compute(sim, i, action);
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
        case MFL_AGENT_ACT_REGROUP:
                sim_team_regroup(sim, i, action->task_number);
                break;
        case MFL_AGENT_ACT_RECALL:
                recall(sim, i, action);
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
        if (event->kind == MFL_AGENT_EV_PARAMS_LOOKED && !event->ok)
                d->look_waits = true;
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

/* Who was told to go on alone neither adds nor waits for another one's params. */
static void check_alone(struct sim *sim, struct sim_daemon *d, uint64_t number)
{
        struct sim_group *group = sim_ledger_group_of(sim, number);
        sim_check(sim, !d->look_waits || d->look_task != number,
                "daemon %s waits for the params of another one, though it is alone", d->info.name);
        for (int k = 0; group && k < SIM_RESULTS; k++) {
                const struct sim_combine *c = &d->result[k].combine;
                sim_check(sim,
                        !d->result[k].used || c->group.group != group->number ||
                                c->state == SIM_COMBINE_NONE || c->state == SIM_COMBINE_STOPS,
                        "daemon %s goes on combining a group that is over", d->info.name);
        }
}

/* The server that the daemon is connected to gave it the task under that number. */
/* Work that stands has the number that it got last. */
static bool is_newest(const struct sim_daemon *d, size_t k)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(d->given); i++)
                if (d->given[i].conn == d->given[k].conn && d->given[i].task > d->given[k].task &&
                        d->given[i].stands && d->given[i].round == d->given[k].round &&
                        d->given[i].item == d->given[k].item)
                        return false;
        return true;
}

static bool given_here(const struct sim_daemon *d, uint64_t task)
{
        for (size_t k = 0; k < MFL_ARRAY_SIZE(d->given); k++)
                if (d->given[k].conn == d->conn && d->given[k].task == task)
                        return !d->given[k].stands || is_newest(d, k);
        return false;
}

void sim_daemon_packet(struct sim *sim, uint32_t i, struct sim_packet *packet)
{
        if (packet->msg.kind == MFL_MSG_NONE)
                sim_params_piece(sim, i, packet);
        else
                sim_daemon_step(
                        sim, i, &(struct mfl_agent_event){.kind = MFL_AGENT_EV_MESSAGE, .msg = &packet->msg});
        struct sim_daemon *d = &sim->daemon[i];
        if (packet->msg.kind == MFL_MSG_ALONE && d->agent)
                check_alone(sim, d, packet->msg.cancel.task);
        if (packet->msg.kind == MFL_MSG_TASK) {
                uint32_t at = d->n_given++ % MFL_ARRAY_SIZE(d->given);
                d->given[at].conn = d->conn;
                d->given[at].task = packet->msg.task.task;
                d->given[at].stands = packet->msg.task.stands;
                d->given[at].round = packet->msg.task.round;
                d->given[at].item = packet->msg.task.n_items ? packet->msg.task.items[0] : 0;
                d->retasked = true;
        }
        const char *job_id = packet->msg.kind == MFL_MSG_TASK       ? packet->msg.task.job
                             : packet->msg.kind == MFL_MSG_JOB_SPEC ? packet->msg.job
                                                                    : NULL;
        for (uint32_t j = 0; d->agent && job_id && j < sim->n_jobs; j++)
                if (d->made_cut[j] && strcmp(sim->job[j].id, job_id) == 0)
                        tell_cut(sim, i, sim->job[j].id);
        if (packet->msg.kind == MFL_MSG_CANCEL && d->computing && !d->retasked &&
                d->computing_task == packet->msg.cancel.task && given_here(d, packet->msg.cancel.task))
                sim_check(
                        sim, d->abort, "daemon %s goes on computing a task that was cancelled", d->info.name);
}
