/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's server shell: memory, disk and worker behind the core's actions, and the ledger that says
 * what must be in a round's sum. */
#include "tests/sim/sim.h"

struct sim_job *sim_job(struct sim *sim, const char *id)
{
        for (uint32_t i = 0; i < sim->n_jobs; i++)
                if (strcmp(sim->job[i].id, id) == 0)
                        return &sim->job[i];
        sim_fail(sim, "no job %s", id);
}

/* Its state directory is gone; whoever had jobs there submits them anew, and they get the same ids. */
static void lose_state(struct sim *sim)
{
        sim_line(sim, "server", "has lost its state directory");
        for (uint32_t i = 0; i < sim->n_jobs; i++) {
                struct sim_job *job = &sim->job[i];
                if (job->over)
                        continue;
                job->committed = 0;
                job->virtual_us = 0;
                job->pure = true;
                sim_initial(&job->spec, job->params);
                sim_versions_reset(job);
                sim_regions_reset(job, &job->regions);
        }
        for (uint32_t i = 0; i < sim->n_daemons; i++)
                sim->daemon[i].left_boot = 0;
}

void sim_server_start(struct sim *sim)
{
        if (sim->core)
                return;
        /* A start's number is a time in seconds: after a loss it may be the one of before. */
        bool lost = sim->lost_state, same_second = lost && sim_chance(sim, 50);
        if (lost)
                lose_state(sim);
        sim->lost_state = false;
        sim->boot += !same_second;
        sim->n_starts++;
        struct mfl_core_options options = {
                .server_instance = ++sim->serial | (lost ? (uint64_t)sim_below(sim, UINT32_MAX) << 32 : 0),
                .boot = sim->boot,
                .heartbeat_ms = 500,
                .dead_ms = 1600,
                .reconnect_grace_ms = 1500,
                .upload_stall_ms = 1500};
        mfl_assert(mfl_core_new(&options, &sim->core, NULL) == 0);
        sim->server_tick_at = UINT64_MAX;
        sim->server_restarting = false;
        sim_line(sim, "server", "starts, boot %u", sim->boot);
        for (uint32_t i = 0; i < sim->n_jobs && sim->core; i++) {
                struct sim_job *job = &sim->job[i];
                if (job->over)
                        continue;
                job->in_core = true;
                struct mfl_core_event event = {
                        .kind = MFL_EV_JOB_ADD, .job_add = {&job->spec, job->committed}};
                mfl_strcpy(event.job, sizeof event.job, job->id);
                sim_server_step(sim, &event);
        }
        for (uint32_t i = 0; i < sim->n_daemons && sim->core; i++)
                if (sim->daemon[i].draining)
                        sim_server_drain(sim, i, true);
}

void sim_server_drain(struct sim *sim, uint32_t i, bool on)
{
        struct mfl_core_event event = {.kind = MFL_EV_DRAIN, .drain = {.on = on}};
        sim->daemon[i].draining = on;
        mfl_strcpy(event.drain.name, sizeof event.drain.name, sim->daemon[i].info.name);
        if (sim->core)
                sim_server_step(sim, &event);
}

/* A rule of an administrator. Whoever is denied has nothing to do from that moment on. */
void sim_server_deny(struct sim *sim, uint32_t i, bool on)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct mfl_core_event event = {.kind = MFL_EV_EXPEL, .reason = "it is denied"};
        struct mfl_core_daemon_view view;
        d->denied = on;
        mfl_strcpy(event.drain.name, sizeof event.drain.name, d->info.name);
        sim_line(sim, "server", "daemon %s is %s", d->info.name, on ? "denied" : "let in again");
        if (!sim->core || !on)
                return;
        sim_server_step(sim, &event);
        for (uint32_t k = 0; sim->core && k < mfl_core_daemon_count(sim->core); k++) {
                mfl_core_daemon_view(sim->core, k, &view);
                sim_check(sim, strcmp(view.info->name, d->info.name) || (!view.conn && !*view.job),
                        "daemon %s is denied and keeps its work", d->info.name);
        }
}

/* Trains from params that are not committed. */
static bool job_is_ahead(const struct sim_job *job)
{
        return job->has_new && job->opened == job->committed + 2;
}

static bool is_of(const struct sim_job *job, const struct mfl_task *task)
{
        return strcmp(task->job, job->id) == 0 && task->kind == MFL_TASK_TRAIN &&
               task->round == job->committed + 2;
}

/* Some daemon is at such a round, or holds a result of it. */
static bool is_ahead(const struct sim *sim)
{
        for (uint32_t j = 0; j < sim->n_jobs; j++)
                for (uint32_t i = 0; job_is_ahead(&sim->job[j]) && i < sim->n_daemons; i++) {
                        const struct sim_daemon *d = &sim->daemon[i];
                        if (d->agent && d->computing && is_of(&sim->job[j], d->computing))
                                return true;
                        for (int k = 0; d->agent && k < SIM_RESULTS; k++)
                                if (d->result[k].used && is_of(&sim->job[j], &d->result[k].t))
                                        return true;
                }
        return false;
}

void sim_server_crash(struct sim *sim)
{
        if (!sim->core)
                return;
        sim->n_ahead += is_ahead(sim);
        sim_line(sim, "server", "is killed");
        mfl_core_free(sim->core);
        sim->core = NULL;
        sim->crash_in = 0;
        sim->crash_ahead = false;
        for (uint32_t i = 0; i < sim->n_conns; i++) {
                if (sim->conns[i].server_open && sim->conns[i].n_path)
                        sim_link_cut(sim, i + 1, 0);
                else if (sim->conns[i].server_open)
                        sim_conn_cut(sim, i + 1);
        }
        sim_relays_server_gone(sim);
        for (uint32_t i = 0; i < sim->n_jobs; i++) {
                struct sim_job *job = &sim->job[i];
                job->in_core = job->ready = job->has_new = job->checkpoint = false;
                memset(job->slots, 0, sizeof job->slots);
        }
        sim->server_restarting = true;
        sim_at(sim, 50 + sim_below(sim, 3000), SIM_SERVER_START);
}

/* ---- the worker ---- */

static struct mfl_core_event *answer(
        struct sim *sim, const struct sim_job *job, uint64_t delay, enum mfl_core_event_kind kind)
{
        struct sim_event *e = sim_at(sim, delay, SIM_WORK);
        e->a = sim->n_starts;
        e->core = calloc(1, sizeof *e->core);
        e->core->kind = kind;
        e->core->ok = true;
        mfl_strcpy(e->core->job, sizeof e->core->job, job->id);
        return e->core;
}

static void answer_upload(struct sim *sim, const struct sim_job *job, uint64_t delay,
        enum mfl_core_event_kind kind, uint32_t slot, uint64_t grant)
{
        struct mfl_core_event *event = answer(sim, job, delay, kind);
        event->upload.slot = slot;
        event->upload.grant = grant;
}

/* Events of the shell may wait their turn, while slots are taken back and given to others. */
static uint64_t late_ms(struct sim *sim)
{
        if (sim->scenario || !sim_chance(sim, 20))
                return 0;
        return sim_below(sim, sim->quiet || sim_chance(sim, 70) ? 30 : 3000);
}

static uint64_t disk_delay(struct sim *sim)
{
        return (1 + sim_below(sim, 10)) * sim->disk_slow;
}

/* A worker that is busy with a slow disk adds late: deadlines pass while it does. */
static uint64_t sum_delay(struct sim *sim)
{
        return sim->scenario ? 2 : 1 + sim_below(sim, 5 * sim->disk_slow);
}

static void prepare(struct sim *sim, struct sim_job *job)
{
        sim_check(sim, !job->ready, "job %s is prepared twice", job->id);
        sim_fixed(job);
        struct mfl_core_event *e = answer(sim, job, 5, MFL_EV_JOB_READY);
        e->job_ready.n_params = SIM_PARAMS + job->n_frozen;
        e->job_ready.n_frozen = job->n_frozen;
        if (job->n_frozen)
                sim_digest_frozen(job->frozen, e->job_ready.frozen_digest);
        e->job_ready.n_slots = job->n_slots;
        e->job_ready.scored = 1;
        e->job_ready.scored_all = true;
        e->job_ready.virtual_us = job->virtual_us;
        sim_digest(job->params, e->job_ready.digest);
        sim_versions_ready(job, e);
        sim_regions_tell(job, e);
        job->ready = true;
}

static bool add_slot(struct sim *sim, struct sim_job *job, struct sim_slot *slot)
{
        if (slot->encoding == MFL_ENCODING_F32) {
                const struct mfl_method_ops *method = mfl_method_get(&job->spec);
                double share = method->discount ? method->discount(&job->spec, slot->staleness) : 1;
                int64_t scratch[SIM_PARAMS] = {0}, *to = mfl_job_is_live(&job->spec) ? job->sum : scratch;
                if (mfl_fixed_parts_add_real(&job->fixed, NULL, 0, slot->weight, share * (double)slot->weight,
                            (const float *)slot->data, SIM_PARAMS, to, NULL))
                        return false;
        } else if (mfl_fixed_add_i64(&job->fixed, slot->weight, (const int64_t *)slot->data, SIM_PARAMS,
                           job->sum, NULL))
                return false;
        sim_ledger_count(sim, job, slot);
        return true;
}

static void apply(struct sim *sim, struct sim_job *job, uint32_t round, const struct mfl_round_totals *totals)
{
        uint64_t weight = totals->weight;
        const struct mfl_method_ops *method = mfl_method_get(&job->spec);
        double factor = method->step && weight ? method->step(&job->spec, totals) : 1;
        sim_check(sim, round == job->committed + 1 && round == job->opened && !job->has_new,
                "round %u is applied after %u", round, job->committed);
        sim_check(sim, weight == job->weight_in, "weight %llu is applied, %llu were added",
                (unsigned long long)weight, (unsigned long long)job->weight_in);
        for (int s = 0; s < SIM_SLOTS; s++)
                sim_check(sim, !job->slots[s].open, "round %u is applied with slot %d open", round, s);
        if (!weight) { /* nobody was drawn */
                sim_check(sim, job->spec.selection.kind == MFL_SELECT_POISSON && !job->n_in,
                        "round %u is applied without clients", round);
                memcpy(job->params_new, job->params, sizeof job->params);
        } else if (mfl_job_has_regions(&job->spec)) {
                job->regions_new = job->regions;
                sim_regions_make(job, round, job->in, job->n_in, (const float(*)[SIM_PARAMS])job->single,
                        job->params, &job->regions_new, job->params_new);
        } else if (sim_single(&job->spec))
                sim_median((const float(*)[SIM_PARAMS])job->single, job->n_in, job->params, job->params_new);
        else
                for (int i = 0; i < SIM_PARAMS; i++)
                        job->params_new[i] =
                                job->params[i] +
                                (float)sim_mix(job, totals, round, i,
                                        mfl_fixed_mean(&job->fixed, job->sum[i], weight) * factor);
        memcpy(job->version[round], job->params_new, sizeof job->params_new);
        job->n_applied = job->n_in;
        job->weight_applied = job->weight_in;
        memcpy(job->in_applied, job->in, sizeof job->in);
        job->has_new = true;
        job->checkpoint = false;
        job->applied = round;
        struct mfl_core_event *e = answer(sim, job, 3, MFL_EV_APPLIED);
        sim_digest(job->params_new, e->digest);
        sim_regions_tell(job, e);
}

/* The samples of an evaluation: of 100 test samples, or of the clients that evaluate. */
static uint32_t tested(const struct mfl_job *spec)
{
        uint32_t v[SIM_ITEMS], n = spec->evaluation.clients, sum = 0;
        if (spec->evaluation.on == MFL_EVALUATE_TEST)
                return 100;
        struct mfl_rng rng = mfl_rng_new(spec->seed, MFL_RNG_SELECT, 0, 0);
        for (uint32_t i = 0; i < spec->data.clients; i++)
                v[i] = i;
        for (uint32_t i = 0; i < n; i++) {
                uint32_t j = i + mfl_rng_below(&rng, spec->data.clients - i), t = v[i];
                v[i] = v[j];
                v[j] = t;
                sum += mfl_job_held(spec, sim_samples(spec, v[i]));
        }
        return sum;
}

static uint32_t cohort_of(const struct sim_job *job, uint32_t round, uint32_t attempt, uint64_t *ret_items)
{
        uint32_t bases[SIM_ITEMS];
        return mfl_job_is_async(&job->spec) ? sim_turns(job, round, ret_items, bases)
                                            : sim_cohort(&job->spec, round, attempt, ret_items);
}

static void check_record(struct sim *sim, struct sim_job *job, const struct mfl_round_record *record)
{
        uint8_t digest[MFL_DIGEST_BYTES];
        float params[SIM_PARAMS];
        uint64_t cohort[SIM_ITEMS];
        bool local = job->spec.data.partition == MFL_PARTITION_LOCAL;
        sim_check(sim, record->round == job->committed + 1, "round %u is committed after %u", record->round,
                job->committed);
        sim_check(sim, job->has_new && job->checkpoint && job->applied == record->round,
                "round %u is committed without its params on disk", record->round);
        sim_check(sim, record->clients == job->n_applied && record->weight == job->weight_applied,
                "the record of round %u is wrong", record->round);
        sim_digest(job->params_new, digest);
        sim_check(sim, memcmp(digest, record->digest, sizeof digest) == 0, "the digest of round %u is wrong",
                record->round);
        struct sim_regions regions = job->regions;
        if (mfl_job_is_async(&job->spec))
                sim_versions_apply(job, record->round, job->in_applied, job->n_applied, params);
        else if (mfl_job_has_regions(&job->spec))
                sim_regions_apply(
                        job, record->round, job->in_applied, job->n_applied, job->params, &regions, params);
        else
                sim_apply(&job->spec, &job->fixed, record->round, job->params, job->in_applied,
                        job->n_applied, params);
        sim_check(sim, sim_single(&job->spec) || memcmp(params, job->params_new, sizeof params) == 0,
                "the model of round %u is not that of its clients", record->round);
        sim_check(sim,
                !mfl_job_has_regions(&job->spec) ||
                        memcmp(regions.x, job->regions_new.x, sizeof regions.x) == 0,
                "the regions of round %u are not those of their clients", record->round);
        bool due = record->round % job->spec.evaluation.every == 0 || record->round == job->spec.rounds;
        due &= local || tested(&job->spec); /* clients may have nothing to keep */
        sim_check(sim,
                record->evaluated == due || !due || job->spec.limits.quorum < 1 || local || sim->barred,
                "round %u: evaluated %d", record->round, record->evaluated);
        sim_check(sim, !record->evaluated || local || record->eval_samples == tested(&job->spec),
                "round %u: evaluated on %u samples", record->round, (uint32_t)record->eval_samples);
        sim_check(sim, !record->evaluated || record->measures.clients <= record->eval_samples,
                "round %u: %u clients evaluated", record->round, record->measures.clients);
        bool timed = job->spec.time == MFL_TIME_VIRTUAL;
        sim_check(sim,
                record->has_virtual == timed && record->virtual_start_us == job->virtual_us &&
                        record->virtual_end_us >=
                                record->virtual_start_us + (timed && !mfl_job_is_async(&job->spec)),
                "round %u begins at another virtual time than the one before ended", record->round);
        if (local) {
                uint32_t n_sites = sim_sites(sim);
                sim_check(sim, job->n_applied <= n_sites, "round %u is committed with %u clients of %u sites",
                        record->round, job->n_applied, n_sites);
                return;
        }
        if (job->misled && job->spec.selection.kind == MFL_SELECT_WEIGHTED) {
                job->pure = false;
                return;
        }
        uint32_t n = cohort_of(job, record->round, record->attempt, cohort);
        uint32_t need = (uint32_t)(job->spec.limits.quorum * n + 0.9999);
        sim_check(sim, job->n_applied >= need && job->n_applied <= n,
                "round %u is committed with %u of %u clients", record->round, job->n_applied, n);
        for (uint32_t i = 0; i < job->n_applied; i++) {
                uint32_t k = 0;
                while (k < n && cohort[k] != job->in_applied[i])
                        k++;
                sim_check(sim, k < n, "client %u is not in the cohort", (uint32_t)job->in_applied[i]);
        }
        job->pure &= record->attempt == 0 && job->n_applied == n;
}

static void commit(struct sim *sim, struct sim_job *job, const struct mfl_round_record *record)
{
        bool ok = !sim_chance(sim, sim->disk_fail);
        check_record(sim, job, record);
        struct mfl_core_event *e = answer(sim, job, disk_delay(sim), MFL_EV_COMMITTED);
        e->ok = ok;
        mfl_strcpy(e->reason, sizeof e->reason, ok ? "" : "no space left");
        if (!ok)
                return;
        job->committed = record->round;
        job->virtual_us = record->virtual_end_us;
        job->moved_at = sim->now;
        sim_versions_commit(job);
        memcpy(job->params, job->params_new, sizeof job->params);
        job->regions = job->regions_new;
        job->has_new = false;
}

/* Without faults the model is a function of the job alone. */
static void check_end(struct sim *sim, struct sim_job *job)
{
        if (job->end == MFL_JOB_FAILED)
                sim_check(sim, job->spec.limits.quorum < 1 || sim->barred, "job %s failed: %s", job->id,
                        job->end_reason);
        if (job->end != MFL_JOB_DONE || !job->pure || job->spec.data.partition == MFL_PARTITION_LOCAL)
                return;
        float p[SIM_PARAMS], next[SIM_PARAMS];
        uint64_t cohort[SIM_ITEMS];
        struct sim_regions regions = {0};
        sim_initial(&job->spec, p);
        for (uint32_t e = 0; e < SIM_REGIONS; e++)
                memcpy(regions.x[e], p, sizeof p);
        memcpy(job->version[0], p, sizeof p);
        for (uint32_t r = 1; r <= job->spec.rounds; r++) {
                uint32_t n = cohort_of(job, r, 0, cohort);
                if (mfl_job_is_async(&job->spec)) {
                        sim_versions_apply(job, r, cohort, n, next);
                        memcpy(job->version[r], next, sizeof next);
                } else if (mfl_job_has_regions(&job->spec))
                        sim_regions_apply(job, r, cohort, n, p, &regions, next);
                else
                        sim_apply(&job->spec, &job->fixed, r, p, cohort, n, next);
                memcpy(p, next, sizeof p);
        }
        sim_check(sim, memcmp(p, job->params, sizeof p) == 0,
                "job %s: the model is not that of a run without faults", job->id);
}

/* ---- actions ---- */

static void send_packet(struct sim *sim, uint32_t conn, struct mfl_msg *msg)
{
        struct sim_packet *packet = calloc(1, sizeof *packet);
        packet->msg = *msg;
        *msg = (struct mfl_msg){0};
        sim_send(sim, conn, packet);
}

static bool open_slot(struct sim *sim, struct sim_job *job, const struct mfl_core_action *action)
{
        struct sim_slot *slot = &job->slots[action->slot.slot];
        sim_check(sim, action->slot.slot < job->n_slots, "slot %u of %u", action->slot.slot, job->n_slots);
        sim_check(sim, !slot->open, "slot %u is given twice", action->slot.slot);
        sim_check(sim, action->slot.bytes && action->slot.bytes <= SIM_UPDATE_BYTES, "slot of %u bytes",
                (uint32_t)action->slot.bytes);
        *slot = (struct sim_slot){.busy = true};
        if (sim->memory_busy && sim_chance(sim, sim->memory_busy)) {
                sim->n_busy++;
                answer_upload(
                        sim, job, late_ms(sim), MFL_EV_SLOT_BUSY, action->slot.slot, action->slot.grant);
                return false;
        }
        *slot = (struct sim_slot){.open = true,
                .grant = action->slot.grant,
                .task = action->slot.task,
                .update = action->slot.update,
                .bytes = action->slot.bytes,
                .weight = action->slot.weight,
                .item = action->slot.item,
                .staleness = action->slot.staleness,
                .encoding = action->slot.encoding};
        return true;
}

/* The last part makes it whole; the core hears of that, at once or a little later. */
static void chunk_landed(struct sim *sim, struct sim_job *job, uint32_t s, bool in_step)
{
        struct sim_slot *slot = &job->slots[s];
        slot->complete = true;
        for (uint32_t i = 0; i < slot->bytes / 8; i++)
                slot->complete &= slot->have[i];
        if (!slot->complete)
                return;
        uint64_t late = late_ms(sim);
        struct mfl_core_event event = {
                .kind = MFL_EV_UPLOAD_COMPLETE, .conn = slot->conn, .upload = {s, slot->grant}};
        mfl_strcpy(event.job, sizeof event.job, job->id);
        if (late || in_step)
                *answer(sim, job, late, event.kind) = event;
        else
                sim_server_step(sim, &event);
}

static void take_inside(struct sim *sim, struct sim_job *job, uint32_t s)
{
        struct sim_slot *slot = &job->slots[s];
        const struct sim_packet *packet = sim->inside;
        if (slot->complete || !packet || packet->msg.announce.task != slot->task ||
                packet->msg.announce.update != slot->update)
                return;
        memcpy(slot->data, packet->data, slot->bytes);
        memset(slot->have, true, sizeof slot->have);
        sim->n_inside++;
        chunk_landed(sim, job, s, true);
}

static void grant(struct sim *sim, struct sim_job *job, const struct mfl_core_action *action)
{
        struct sim_slot *slot = &job->slots[action->slot.slot];
        if (slot->grant != action->slot.grant && !open_slot(sim, job, action))
                return;
        sim_check(sim, slot->open && slot->task == action->slot.task && slot->update == action->slot.update,
                "a grant for a slot that is not its own");
        slot->conn = action->conn;
        take_inside(sim, job, action->slot.slot);
        struct mfl_msg msg = {.kind = MFL_MSG_GRANT, .update = {.task = slot->task, .update = slot->update}};
        msg.update.ranges = calloc(SIM_PARAMS, sizeof *msg.update.ranges);
        for (uint32_t i = 0; i < slot->bytes / 8; i++)
                if (!slot->have[i])
                        msg.update.ranges[msg.update.n_ranges++] = (struct mfl_range){i * 8, 8};
        if (msg.update.n_ranges)
                send_packet(sim, action->conn, &msg);
        else
                mfl_msg_deinit(&msg);
}

static void open_round(struct sim *sim, struct sim_job *job, uint32_t round)
{
        sim_check(sim, round == job->committed + 1 + job->has_new, "round %u begins after %u, %u is applied",
                round, job->committed, job->applied);
        for (int s = 0; s < SIM_SLOTS; s++)
                sim_check(sim, !job->slots[s].open, "round %u begins with slot %d open", round, s);
        job->opened = round;
        job->moved_at = sim->now;
        sim->first_round_at = sim->first_round_at ? sim->first_round_at : sim->n_events;
        job->n_in = job->n_rejected = 0;
        job->weight_in = 0;
        memset(job->sum, 0, sizeof job->sum);
}

static void close_conn(struct sim *sim, uint32_t number, const char *reason)
{
        struct sim_conn *conn = &sim->conns[number - 1];
        const struct sim_daemon *d = &sim->daemon[conn->daemon];
        if (!conn->server_open)
                return;
        bool given_up = strstr(reason, "another process came under its name") != NULL;
        bool lives = d->agent && d->conn == number && !conn->dark && sim->now >= d->stalled_to;
        sim_check(sim, !given_up || !lives || sim->now < sim->calm_at,
                "daemon %u lives and is given up for another one of its name", conn->daemon);
        conn->server_open = false;
        sim_conn_close(sim, number, true);
}

static void set_job_state(struct sim *sim, struct sim_job *job, const struct mfl_core_action *action)
{
        enum mfl_job_state state = action->job_state.state;
        sim_line(sim, "server", "job %s: state %d %s", job->id, state, action->reason);
        if (state < MFL_JOB_DONE)
                return;
        sim_check(sim, !job->over, "job %s ends twice", job->id);
        sim_check(sim, state != MFL_JOB_DONE || job->committed == job->spec.rounds,
                "job %s is done after round %u", job->id, job->committed);
        job->over = true;
        job->end = state;
        mfl_strcpy(job->end_reason, sizeof job->end_reason, action->reason);
        check_end(sim, job);
}

static void free_slot(struct sim *sim, struct sim_job *job, uint32_t s)
{
        sim_check(sim, job->slots[s].open || job->slots[s].busy, "slot %u is freed twice", s);
        sim_check(sim, !job->slots[s].adding, "slot %u is freed while the worker reads it", s);
        job->slots[s] = (struct sim_slot){0};
}

/* One that leaves is sent again what it has, and nothing that is new. */
static void check_task_to(struct sim *sim, uint32_t conn, const struct mfl_msg *msg)
{
        if (msg->kind != MFL_MSG_TASK)
                return;
        for (uint32_t i = 0; i < sim->n_daemons; i++) {
                const struct sim_daemon *d = &sim->daemon[i];
                sim_check(sim, d->conn != conn || d->left_boot != sim->boot || msg->task.task <= d->left_task,
                        "daemon %s is leaving and gets a new task", d->info.name);
        }
        sim->newest_task = MFL_MAX(sim->newest_task, msg->task.task);
}

/* The shell refuses a Hello by the rules; the core only hears that it did. */
static bool refuse(struct sim *sim, uint32_t conn, const struct mfl_daemon_info *hello)
{
        for (uint32_t i = 0; i < sim->n_daemons; i++) {
                if (!sim->daemon[i].denied || strcmp(sim->daemon[i].info.name, hello->name))
                        continue;
                struct mfl_msg bye = {.kind = MFL_MSG_BYE, .bye = {"it is denied", true}};
                send_packet(sim, conn, &bye);
                close_conn(sim, conn, "");
                sim_server_step(sim, &(struct mfl_core_event){.kind = MFL_EV_REFUSED,
                                             .daemon = (struct mfl_daemon_info *)hello});
                return true;
        }
        return false;
}

static void note_leaving(struct sim *sim, uint32_t conn)
{
        for (uint32_t i = 0; i < sim->n_daemons; i++)
                if (sim->daemon[i].conn == conn) {
                        sim->daemon[i].left_boot = sim->boot;
                        sim->daemon[i].left_task = sim->newest_task;
                }
}

static void carry_out(struct sim *sim, struct mfl_core_action *action)
{
        struct sim_job *job = action->job[0] ? sim_job(sim, action->job) : NULL;
        struct mfl_core_event *e;
        struct sim_group *group;
        switch (action->kind) {
        case MFL_ACT_SEND:
                check_task_to(sim, action->conn, &action->msg);
                sim_ledger_sent(sim, action->conn, &action->msg);
                send_packet(sim, action->conn, &action->msg);
                break;
        case MFL_ACT_CLOSE:
                close_conn(sim, action->conn, action->reason);
                break;
        case MFL_ACT_JOB_PREPARE:
                prepare(sim, job);
                break;
        case MFL_ACT_JOB_STATE:
                set_job_state(sim, job, action);
                break;
        case MFL_ACT_JOB_RELEASE:
                sim_check(sim, job->over, "job %s is released before its end", job->id);
                job->in_core = job->ready = false;
                break;
        case MFL_ACT_ROUND_OPEN:
                open_round(sim, job, action->round);
                break;
        case MFL_ACT_GRANT:
                grant(sim, job, action);
                break;
        case MFL_ACT_SLOT_ADD:
                group = sim_ledger_group(sim, job->slots[action->slot.slot].task);
                if (group)
                        sim_trap_at(sim, SIM_TRAP_ADDING, &group->group);
                job->slots[action->slot.slot].adding = true;
                answer_upload(sim, job, sum_delay(sim), MFL_EV_ADDED, action->slot.slot, action->slot.grant);
                break;
        case MFL_ACT_SLOT_FREE:
                free_slot(sim, job, action->slot.slot);
                break;
        case MFL_ACT_APPLY:
                sim_arrivals_record(sim, job, action);
                apply(sim, job, action->round, &action->totals);
                break;
        case MFL_ACT_CHECKPOINT:
                sim_check(sim, job->has_new && action->round == job->applied,
                        "round %u is stored, %u applied", action->round, job->applied);
                sim_versions_store(sim, job, action);
                e = answer(sim, job, disk_delay(sim), MFL_EV_CHECKPOINTED);
                e->ok = !sim_chance(sim, sim->disk_fail);
                job->checkpoint |= e->ok;
                mfl_strcpy(e->reason, sizeof e->reason, e->ok ? "" : "no space left");
                break;
        case MFL_ACT_COMMIT:
                commit(sim, job, &action->record);
                break;
        case MFL_ACT_ACCUSE:
                sim_daemon_accused(sim, action);
                break;
        case MFL_ACT_COST:
        case MFL_ACT_JOB_DATA:    /* the simulated data have no meaning */
        case MFL_ACT_SECURE_NOTE: /* no simulated job has a secure sum: tests/unit/server/test_secure_sum.c */
        case MFL_ACT_UNMASK:
                break;
        case MFL_ACT_TRACE:
                sim_line(sim, "server", "%s", action->reason);
        }
}

/* The worker's answers carry what the worker did; the sum is touched when it answers, as late as it can be.
 */
static void before_event(struct sim *sim, struct mfl_core_event *event)
{
        if (event->kind != MFL_EV_ADDED)
                return;
        struct sim_job *job = sim_job(sim, event->job);
        struct sim_slot *slot = &job->slots[event->upload.slot];
        sim_check(sim, slot->open && slot->adding && slot->complete, "a sum of a slot that is not full");
        event->ok = add_slot(sim, job, slot);
        slot->adding = false;
        mfl_strcpy(event->reason, sizeof event->reason, event->ok ? "" : "an element is over delta_max");
}

/* While nothing goes wrong, neither a job that wants all daemons starves, nor one beside it. */
static void check_still(struct sim *sim)
{
        for (uint32_t i = 0; i < sim->n_jobs; i++) {
                const struct sim_job *job = &sim->job[i];
                uint64_t since = MFL_MAX(job->moved_at, sim->calm_at);
                sim_check(sim,
                        job->over || sim->calm_at == UINT64_MAX || !sim->quiet || sim->scenario ||
                                sim->now < since + SIM_STILL_MS,
                        "job %s has stood still for %u s", job->id, (uint32_t)((sim->now - since) / 1000));
        }
}

void sim_server_step(struct sim *sim, const struct mfl_core_event *event)
{
        struct mfl_core_actions actions = {0};
        struct mfl_core_event now = *event;
        now.now_ms = sim->now;
        before_event(sim, &now);
        sim_check(sim, mfl_core_step(sim->core, &now, &actions) == 0, "core step failed");
        mfl_core_check(sim->core);
        check_still(sim);
        sim_ledger_dealt(sim, &actions);
        for (uint32_t i = 0; i < actions.n && sim->core; i++) {
                if (sim->crash_in && --sim->crash_in == 0)
                        sim_server_crash(sim);
                else
                        carry_out(sim, &actions.v[i]);
        }
        mfl_core_actions_deinit(&actions);
        if (sim->crash_ahead && is_ahead(sim) && sim_chance(sim, 10))
                sim_server_crash(sim);
        uint64_t next = sim->core ? mfl_core_next_ms(sim->core) : UINT64_MAX;
        if (next != UINT64_MAX && (next < sim->server_tick_at || sim->server_tick_at <= sim->now)) {
                sim->server_tick_at = MFL_MAX(next, sim->now + 1);
                sim_at(sim, sim->server_tick_at - sim->now, SIM_TICK_SERVER)->a = sim->n_starts;
        } else if (next == UINT64_MAX)
                sim->server_tick_at = UINT64_MAX;
}

/* ---- packets ---- */

/* What comes for a slot that was taken back is dropped. */
static void take_chunk(struct sim *sim, uint32_t number, const struct sim_packet *packet)
{
        struct sim_conn *conn = &sim->conns[number - 1];
        if (!conn->uploading) {
                struct sim_event *e = sim_at(sim, SIM_BEAT_MS, SIM_UPLOADING);
                e->conn = number;
                e->a = sim->n_starts;
                conn->uploading = true;
        }
        for (uint32_t j = 0; j < sim->n_jobs; j++)
                for (uint32_t s = 0; s < sim->job[j].n_slots; s++) {
                        struct sim_slot *slot = &sim->job[j].slots[s];
                        if (!slot->open || slot->complete || slot->conn != number ||
                                slot->task != packet->task || slot->update != packet->update)
                                continue;
                        memcpy(slot->data + packet->offset, packet->bytes, 8);
                        slot->have[packet->offset / 8] = true;
                        chunk_landed(sim, &sim->job[j], s, false);
                        return;
                }
}

void sim_server_uploading(struct sim *sim, uint32_t number)
{
        struct sim_conn *conn = &sim->conns[number - 1];
        conn->uploading = false;
        if (conn->server_open)
                sim_server_step(sim, &(struct mfl_core_event){.kind = MFL_EV_UPLOADING, .conn = number});
}

static void take_population(struct sim *sim, uint32_t conn, const struct sim_packet *packet)
{
        const struct mfl_job *spec = &sim_job(sim, packet->job)->spec;
        struct mfl_core_event event = {.kind = MFL_EV_POPULATION, .conn = conn};
        struct mfl_population *told = &event.population;
        told->clients = spec->data.clients;
        told->samples_min = UINT32_MAX;
        for (uint32_t k = 0; k < told->clients; k++) {
                told->samples += packet->counts[k];
                told->samples_min = MFL_MIN(told->samples_min, packet->counts[k]);
                told->samples_max = MFL_MAX(told->samples_max, packet->counts[k]);
        }
        told->first = packet->offset;
        told->n = packet->n;
        told->count = packet->counts + packet->offset;
        mfl_strcpy(event.job, sizeof event.job, packet->job);
        sim_server_step(sim, &event);
}

static void give_params(struct sim *sim, uint32_t conn, const struct mfl_msg *msg)
{
        sim_ledger_fetched(sim, conn, msg->params.digest);
        struct sim_job *job = sim_job(sim, msg->params.job);
        uint8_t digest[MFL_DIGEST_BYTES];
        const float *params = job->params;
        uint32_t n = SIM_PARAMS;
        sim_digest(params, digest);
        if (job->n_frozen)
                sim_digest_frozen(job->frozen, digest);
        if (job->n_frozen && memcmp(digest, msg->params.digest, sizeof digest) == 0) {
                params = job->frozen;
                n = SIM_FROZEN;
                sim->n_frozen_sent += n - MFL_MIN(msg->params.offset, (uint64_t)n);
        } else {
                sim_digest(params, digest);
        }
        if (job->has_new && n == SIM_PARAMS && memcmp(digest, msg->params.digest, sizeof digest) != 0) {
                params = job->params_new;
                sim_digest(params, digest);
        }
        const float *older = mfl_job_has_regions(&job->spec) ? sim_regions_find(job, msg->params.digest)
                                                             : sim_versions_find(job, msg->params.digest);
        if (older && n == SIM_PARAMS) {
                params = older;
                sim_digest(params, digest);
        }
        if (!job->ready || memcmp(digest, msg->params.digest, sizeof digest) != 0) {
                struct mfl_msg gone = *msg;
                gone.kind = MFL_MSG_PARAMS_GONE;
                send_packet(sim, conn, &gone);
                return;
        }
        for (uint64_t at = msg->params.offset; at < n; at += 2) {
                struct sim_packet *packet = calloc(1, sizeof *packet);
                packet->params = true;
                packet->offset = at;
                packet->total = n;
                packet->n = MFL_MIN(2u, (uint32_t)(n - at));
                mfl_strcpy(packet->job, sizeof packet->job, job->id);
                memcpy(packet->digest, digest, sizeof digest);
                memcpy(packet->bytes, params + at, packet->n * sizeof(float));
                sim_send(sim, conn, packet);
        }
}

void sim_server_packet(struct sim *sim, uint32_t conn, struct sim_packet *packet)
{
        struct mfl_core_event event = {.kind = MFL_EV_MESSAGE, .conn = conn, .msg = &packet->msg};
        if (packet->population) {
                take_population(sim, conn, packet);
                return;
        }
        if (packet->msg.kind == MFL_MSG_NONE) {
                take_chunk(sim, conn, packet);
                return;
        }
        if (packet->msg.kind == MFL_MSG_HELLO) {
                if (refuse(sim, conn, &packet->msg.hello))
                        return;
                sim->conns[conn - 1].greeted = true;
                if (packet->msg.hello.leaving)
                        note_leaving(sim, conn);
                event.kind = MFL_EV_DAEMON_UP;
                event.daemon = &packet->msg.hello;
        } else if (packet->msg.kind == MFL_MSG_ANNOUNCE) {
                sim_ledger_announced(sim, &packet->msg.announce);
                sim->inside = packet->inside ? packet : NULL;
        } else if (packet->msg.kind == MFL_MSG_LEAVING)
                note_leaving(sim, conn);
        sim_server_step(sim, &event);
        sim->inside = NULL;
        if (sim->core && packet->msg.kind == MFL_MSG_PARAMS_GET)
                give_params(sim, conn, &packet->msg);
}
