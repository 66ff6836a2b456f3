/* SPDX-License-Identifier: Apache-2.0 */
/* What is drawn from a seed: jobs, daemons, and the faults; and the scripts of the golden scenarios. */
#include "tests/sim/sim.h"

#include <stdio.h>

static void setup_job(struct sim *sim, uint32_t i, bool second_data)
{
        struct sim_job *job = &sim->job[i];
        struct mfl_job *spec = &job->spec;
        snprintf(job->id, sizeof job->id, "j-%06u", i + 1);
        bool local = sim_chance(sim, sim->node_faults ? 10 : 25);
        spec->seed = sim->seed * 7 + i;
        spec->rounds = sim->scenario || !sim_chance(sim, sim->node_faults ? 80 : 10)
                               ? 1 + sim_below(sim, 4)
                               : 30 + sim_below(sim, 40);
        mfl_strcpy(spec->data.name, sizeof spec->data.name, second_data && sim_chance(sim, 50) ? "d1" : "d0");
        spec->data.partition = local ? MFL_PARTITION_LOCAL : MFL_PARTITION_NATURAL_ID;
        spec->data.clients = local ? 0 : 1 + sim_below(sim, 16);
        spec->aggregation.strategy =
                sim_chance(sim, sim->node_faults ? 5 : 20) ? MFL_STRATEGY_MEDIAN : MFL_STRATEGY_FEDAVG;
        spec->aggregation.weighting = sim_chance(sim, 50) ? MFL_WEIGHT_UNIFORM : MFL_WEIGHT_SAMPLES;
        spec->aggregation.delta_max = 16;
        spec->selection.clients = local || sim_chance(sim, 50) ? 0 : 1 + sim_below(sim, spec->data.clients);
        spec->selection.daemons_min = 1;
        if (spec->data.name[1] == '0' && sim_chance(sim, 30))
                spec->selection.daemons_min = 1 + sim_below(sim, sim->n_daemons);
        spec->selection.daemons_max = sim_chance(sim, 30) ? 1 + sim_below(sim, sim->n_daemons) : 0;
        if (spec->selection.daemons_max && spec->selection.daemons_max < spec->selection.daemons_min)
                spec->selection.daemons_max = spec->selection.daemons_min;
        spec->selection.assign = (sim->seed + i) % 4 ? MFL_ASSIGN_SPEED : MFL_ASSIGN_MODULO;
        spec->limits.quorum = sim_chance(sim, 70) ? 1 : 0.5;
        spec->limits.deadline_ms = spec->limits.quorum < 1 ? 1000 + sim_below(sim, 4000) : 3600000;
        spec->limits.retries = 100;
        spec->evaluation.every = 1 + sim_below(sim, 2);
        spec->evaluation.batch = 10;
        spec->training.epochs = 10;
        /* Not drawn, so that the other draws stay what they were. */
        if (!sim->scenario && (sim->seed + i) % 5 == 1 && spec->aggregation.strategy == MFL_STRATEGY_FEDAVG) {
                spec->aggregation.strategy = MFL_STRATEGY_FEDNOVA;
                spec->selection.daemons_min = 1; /* some daemons may be too old */
        }
        if (!sim->scenario && (sim->seed + i) % 7 == 3) { /* and nobody, in some rounds */
                spec->selection.kind = MFL_SELECT_POISSON;
                spec->selection.rate = spec->seed % 2 ? 0.5 : 0.1;
                spec->selection.clients = 0;
                spec->selection.daemons_min = 1; /* some daemons may be too old */
        }
        if (!sim->scenario && (sim->seed + i) % 6 == 4) {
                spec->evaluation.on = MFL_EVALUATE_CLIENTS;
                spec->evaluation.split = 0.5;
                spec->evaluation.clients = local ? 0 : 1 + (uint32_t)(sim->seed % spec->data.clients);
                spec->selection.daemons_min = 1; /* some daemons may be too old */
        }
        if (!sim->scenario && (sim->seed + i) % 11 == 5 && !local &&
                spec->selection.kind == MFL_SELECT_UNIFORM) {
                spec->selection.kind = MFL_SELECT_WEIGHTED;
                spec->selection.daemons_min = 1; /* some daemons may be too old */
        }
        bool poisson = spec->selection.kind == MFL_SELECT_POISSON;
        if (!sim->scenario && (sim->seed + i) % 9 == 4 && !local && !poisson) { /* nobody is late or absent */
                spec->time = MFL_TIME_VIRTUAL;
                spec->trace = (struct mfl_trace){.day_ms = 1000, .sigma = 1, .speed = 100, .online = 1};
                spec->selection.over = 1;
                spec->training.batch = 10;
                spec->training.accumulate = 1;
                spec->selection.daemons_min = 1; /* some daemons may be too old */
        }
        job->n_slots = 1 + sim_below(sim, SIM_SLOTS);
        /* Behind relays, single updates that come through few slots take longer than the shortest deadline where one daemon makes all. */
        if (sim->with_relays && mfl_job_needs_single_updates(spec))
                spec->limits.deadline_ms += 1000;
        job->pure = true;
        sim_initial(spec, job->params);
        /* Not drawn, so that the other draws stay what they were. */
        if (sim->scenario || (sim->seed + i) % 3 != 2)
                return;
        job->n_frozen = SIM_FROZEN;
        for (uint32_t k = 0; k < SIM_FROZEN; k++)
                job->frozen[k] = (float)(spec->seed % 1000 + k);
        spec->selection.daemons_min = 1; /* some daemons may be too old */
}

static void give_teams(struct mfl_job *spec, uint32_t clients, uint32_t members)
{
        spec->training.batch = 8;
        spec->training.accumulate = 1;
        spec->parallel.grain = 2;
        spec->parallel.members = members;
        spec->parallel.within = MFL_WITHIN_NODE;
        spec->parallel.exact = true;
        spec->parallel.zero = MFL_ZERO_AUTO;
        spec->selection.assign = MFL_ASSIGN_SPEED;
        spec->selection.clients = clients;
}

/* Jobs whose few clients are trained by teams. Not drawn, so that the other draws stay what they were. */
static void setup_teams(struct sim *sim)
{
        if (sim->seed % 4 != 1)
                return;
        for (uint32_t i = 0; i < sim->n_jobs; i++) {
                struct mfl_job *spec = &sim->job[i].spec;
                bool local = spec->data.partition == MFL_PARTITION_LOCAL;
                give_teams(spec, local ? 0 : 1 + sim->seed / 12 % 3 % spec->data.clients,
                        (sim->seed / 4 + i) % 3 * 2);
                spec->selection.daemons_min = 1; /* some daemons may be too old */
                if (sim->seed % 8 == 5)
                        spec->parallel.within = MFL_WITHIN_ANY;
        }
        /* Most daemons listen for others. */
        for (uint32_t i = 0; sim->seed % 8 == 5 && i < sim->n_daemons; i++)
                if ((sim->seed / 8 + i) % 4 && sim->daemon[i].info.protocol >= MFL_PROTOCOL_PEERS)
                        snprintf(sim->daemon[i].info.peer, sizeof sim->daemon[i].info.peer, "host%u:7434",
                                i + 1);
}

static void setup_daemon(struct sim *sim, uint32_t i, bool second_data)
{
        struct sim_daemon *d = &sim->daemon[i];
        snprintf(d->info.name, sizeof d->info.name, "d%u", i + 1);
        d->info.workers = 1 + sim_below(sim, 3);
        d->info.protocol = sim->scenario || i == 0 || (sim->seed / 3 + i) % 4 ? MFL_PROTOCOL_MAX : 1;
        d->info.n_data_sets = second_data && (i == 0 || sim_chance(sim, 60)) ? 2 : 1;
        for (uint32_t k = 0; k < 2; k++) {
                snprintf(d->data_sets[k].name, sizeof d->data_sets[k].name, "d%u", k);
                d->data_sets[k].shape = (struct mfl_shape){.rank = 1, .dim = {4}};
                d->data_sets[k].classes = 10;
                d->data_sets[k].train_samples = 128;
                d->data_sets[k].test_samples = 100;
                d->data_sets[k].fingerprint = 100 + k;
        }
        if (i && !sim->scenario && sim->seed % 5 == 2) /* two daemons per site; the first is alone */
                snprintf(d->info.site, sizeof d->info.site, "s%u", (i + 1) / 2);
        /* So that others have something to take over. Not drawn either. */
        d->slow = sim->scenario || sim->seed % 3 || (sim->seed / 3 + i) % 3 ? 1 : 15;
        sim_at(sim, sim->scenario ? i : sim_below(sim, 500), SIM_DAEMON_START)->a = i;
}

static void join_node(struct sim *sim, uint32_t i, uint32_t node, uint64_t memory_space)
{
        struct mfl_daemon_info *info = &sim->daemon[i].info;
        snprintf(info->node, sizeof info->node, "n%u", node + 1);
        info->has_reach = true;
        info->reach =
                (struct mfl_reach){.user = 1000, .network_space = 10 + node, .memory_space = memory_space};
}

static void give_gpu(struct sim *sim, uint32_t i, uint32_t card)
{
        struct mfl_daemon_info *info = &sim->daemon[i].info;
        snprintf(info->device_uuid, sizeof info->device_uuid, "GPU-%u-%u",
                (uint32_t)info->reach.network_space, card);
        snprintf(info->device_pci, sizeof info->device_pci, "0000:%02x:00.0", card);
        info->device_memory = (uint64_t)(16 + sim_below(sim, 2) * 16) << 30;
        info->reach.nccl = sim_chance(sim, 90) ? 22809 : 22700;
}

uint32_t sim_sites(const struct sim *sim)
{
        uint32_t n = 0;
        for (uint32_t i = 0; i < sim->n_daemons; i++) {
                const struct mfl_daemon_info *a = &sim->daemon[i].info, *b;
                uint32_t k = 0;
                for (; k < i; k++) {
                        b = &sim->daemon[k].info;
                        if (strcmp(a->name, b->name) == 0 || (*a->site && strcmp(a->site, b->site) == 0))
                                break;
                }
                n += k == i;
        }
        return n;
}

/* A `local` job counts sites. */
static void setup_sites(struct sim *sim)
{
        for (uint32_t i = 0; i < sim->n_jobs; i++) {
                struct mfl_job *spec = &sim->job[i].spec;
                if (spec->data.partition == MFL_PARTITION_LOCAL)
                        spec->selection.daemons_min = MFL_MIN(spec->selection.daemons_min, sim_sites(sim));
        }
}

/* Somebody has started a second daemon with the first one's file. Not drawn, so that the other draws stay
 * what they were. */
static void setup_twins(struct sim *sim)
{
        struct sim_daemon *first = &sim->daemon[0], *last = &sim->daemon[sim->n_daemons - 1];
        sim->twins = sim->seed % 8 == 5 && sim->n_daemons > 1;
        if (!sim->twins)
                return;
        mfl_strcpy(last->info.name, sizeof last->info.name, first->info.name);
        mfl_strcpy(last->info.site, sizeof last->info.site, first->info.site);
        last->info.n_data_sets = first->info.n_data_sets;
        last->info.protocol = first->info.protocol;
        for (uint32_t i = 0; i < sim->n_jobs; i++) {
                struct mfl_job *spec = &sim->job[i].spec;
                spec->selection.daemons_min = MFL_MIN(spec->selection.daemons_min, sim->n_daemons - 1);
        }
}

/* One job that wants all daemons, beside two that always want some: either side might starve. Not drawn
 * either. */
static void setup_rivals(struct sim *sim)
{
        if (sim->n_jobs < 3 || sim->seed % 2)
                return;
        for (uint32_t i = 0; i < sim->n_jobs; i++) {
                struct mfl_job *spec = &sim->job[i].spec;
                spec->data.partition = i ? MFL_PARTITION_NATURAL_ID : MFL_PARTITION_LOCAL;
                if (!i)
                        spec->time = MFL_TIME_REAL;
                spec->data.clients = i ? 1 + (uint32_t)(sim->seed / 2 + i) % 6 : 0;
                spec->evaluation.clients = MFL_MIN(spec->evaluation.clients, spec->data.clients);
                if (spec->evaluation.on == MFL_EVALUATE_CLIENTS && i)
                        spec->evaluation.clients = MFL_MAX(spec->evaluation.clients, 1u);
                spec->selection.clients = 0;
                spec->selection.daemons_min = 1;
                spec->rounds = i ? 100 : 20;
                mfl_strcpy(spec->data.name, sizeof spec->data.name, "d0");
        }
}

/* One to three hosts, some of whose daemons can't be reached, or are in a container of their own; some hosts
 * have GPUs, now and then two daemons on one. */
static void setup_nodes(struct sim *sim)
{
        uint32_t n_nodes = 1 + sim_below(sim, sim->node_faults ? 2 : 3);
        bool gpus[3] = {sim_chance(sim, 40), sim_chance(sim, 40), sim_chance(sim, 40)};
        bool shared = sim_chance(sim, 20), containers = sim_chance(sim, 15);
        for (uint32_t i = 0; i < sim->n_daemons; i++) {
                uint32_t node = sim_below(sim, n_nodes);
                if (sim_chance(sim, 8))
                        continue;
                join_node(sim, i, node, 20 + node + (containers ? 10 * sim_below(sim, 2) : 0));
                if (sim_chance(sim, 4))
                        sim->daemon[i].info.reach.memory_space = 0;
                if (gpus[node])
                        give_gpu(sim, i, shared ? i / 2 : i);
        }
}

static void setup_golden(struct sim *sim)
{
        sim->n_daemons = sim->scenario >= SIM_SWEEP ? 4 : 2;
        sim->n_jobs = sim->scenario == 4 ? 2 : 1;
        for (uint32_t i = 0; i < sim->n_daemons; i++) {
                setup_daemon(sim, i, false);
                sim->daemon[i].info.workers = 1;
                if (sim->scenario >= 6)
                        join_node(sim, i, i / 2, 20 + i / 2);
                if (sim->scenario == SIM_SWEEP_NCCL) {
                        give_gpu(sim, i, i);
                        sim->daemon[i].info.reach.nccl = 22809;
                }
        }
        for (uint32_t i = 0; i < sim->n_jobs; i++) {
                setup_job(sim, i, false);
                struct mfl_job *spec = &sim->job[i].spec;
                spec->rounds = 2;
                spec->data.partition = MFL_PARTITION_NATURAL_ID;
                spec->data.clients = sim->scenario >= SIM_SWEEP ? 8 : 4;
                spec->aggregation.strategy = MFL_STRATEGY_FEDAVG;
                spec->selection.clients = spec->selection.daemons_max = 0;
                spec->selection.daemons_min = 1;
                spec->selection.assign = MFL_ASSIGN_SPEED;
                spec->limits.quorum = 1;
                spec->limits.deadline_ms = 3600000;
                spec->evaluation.every = 2;
                spec->evaluation.batch = 50;
                sim->job[i].n_slots = 1;
                if (sim->scenario == SIM_SWEEP_TEAM)
                        give_teams(spec, 2, 0);
                if (sim->scenario != SIM_SWEEP_WIDE)
                        continue;
                give_teams(spec, 1, 0);
                spec->parallel.within = MFL_WITHIN_ANY;
                for (uint32_t k = 0; k < sim->n_daemons; k++)
                        snprintf(sim->daemon[k].info.peer, sizeof sim->daemon[k].info.peer, "host%u:7434",
                                k + 1);
        }
        sim->quiet = true;
        sim->faults_end = 1000;
        if (sim->scenario == 2)
                sim_at(sim, 350, SIM_SCRIPT)->a = 1;
        if (sim->scenario == 3)
                sim_at(sim, 396, SIM_SCRIPT)->a = 2;
        if (sim->scenario == 5) /* round 2 is trained, round 1 on its way to the disk */
                sim_at(sim, 418, SIM_SCRIPT)->a = 2;
        if (sim->scenario == 7) {
                sim->trap.step = SIM_TRAP_UPLOAD;
                sim->trap.leader = true;
                sim->trap.what = SIM_KILL;
        }
}

void sim_setup(struct sim *sim)
{
        sim->rng = mfl_rng_new(sim->seed, MFL_RNG_SIM, 0, 0);
        sim->params_rng = mfl_rng_new(sim->seed, MFL_RNG_SIM, 2, 0);
        sim->disk_slow = 1;
        if (sim->scenario)
                setup_golden(sim);
        else {
                bool second_data = sim_chance(sim, 40);
                sim->node_faults = sim_chance(sim, 25);
                sim->n_daemons = sim->node_faults ? 3 + sim_below(sim, 6) : 1 + sim_below(sim, SIM_DAEMONS);
                sim->n_jobs = sim_chance(sim, 50) ? 1 : 1 + sim_below(sim, SIM_JOBS);
                if (sim->seed % 16 == 9) /* the word of one, who may lie, against that of the other */
                        sim->n_daemons = 2;
                for (uint32_t i = 0; i < sim->n_daemons; i++)
                        setup_daemon(sim, i, second_data);
                for (uint32_t i = 0; i < sim->n_jobs; i++)
                        setup_job(sim, i, second_data);
                if (sim->node_faults || sim_chance(sim, 70))
                        setup_nodes(sim);
                setup_rivals(sim);
                setup_teams(sim);
                setup_twins(sim);
                setup_sites(sim);
                sim_versions_setup(sim);
                sim_regions_setup(sim);
                if (sim->with_relays)
                        sim_relays_setup(sim);
                sim->faults_end = sim_below(sim, sim->node_faults ? 16000 : 8000);
                sim->fault_gap = 50 + sim_below(sim, 1500);
                sim->duplicate = sim_chance(sim, 30) ? 10 : 0;
                sim_at(sim, sim_below(sim, 1000), SIM_FAULT);
                /* Downloads hold the memory of slots. Not drawn: so those of other seeds stay what they were.
                 */
                sim->memory_busy = sim->seed % 8 == 3 ? 60 : 0;
                if (sim->seed % 8 == 1) /* before anybody has told the truth */
                        sim->daemon[sim_below(sim, sim->n_daemons)].lie = SIM_LIE_CUT;
        }
        sim_server_start(sim);
}

static void stop_job(struct sim *sim)
{
        struct sim_job *job = &sim->job[sim_below(sim, sim->n_jobs)];
        struct mfl_core_event event = {.kind = MFL_EV_JOB_STOP};
        mfl_strcpy(event.job, sizeof event.job, job->id);
        if (sim->core && !job->over && sim_chance(sim, 15))
                sim_server_step(sim, &event);
}

/* From here on everything works, so everything must come to its end. */
void sim_end_faults(struct sim *sim)
{
        sim->faults_end = sim->now;
        sim->quiet = true;
        uint64_t back_at = MFL_MAX(sim->now, sim->stalled_to); /* what was put off comes only then */
        sim->calm_at = UINT64_MAX;
        sim->disk_fail = sim->duplicate = sim->crash_in = sim->memory_busy = 0;
        sim->crash_ahead = false;
        sim->disk_slow = 1;
        sim->trap.step = SIM_TRAP_NONE;
        sim_params_calm(sim);
        for (uint32_t i = 0; i < sim->n_conns; i++)
                sim->conns[i].latency = MFL_MIN(sim->conns[i].latency, 20u);
        for (uint32_t i = 0; i < sim->n_daemons; i++) {
                struct sim_daemon *d = &sim->daemon[i];
                d->slow = 1;
                back_at = MFL_MAX(back_at, d->stalled_to);
                d->mute_to = 0;
                d->corrupt = d->fail = d->reject = 0;
                d->lie = SIM_LIE_NONE;
                if (d->lied) /* somebody has seen to it */
                        sim_daemon_stop(sim, i);
                d->combine_fail = d->combine_hang = d->shm_full = 0;
                d->permanent = false;
                if (d->draining)
                        sim_server_drain(sim, i, false);
                if (d->denied)
                        sim_server_deny(sim, i, false);
                if (d->leaves) /* there is no time for that now */
                        sim_daemon_stop(sim, i);
                if (!d->agent)
                        sim_daemon_start(sim, i);
        }
        if (!sim->server_restarting)
                sim_server_start(sim);
        sim_relays_calm(sim, &back_at);
        if (sim->lost_at)
                back_at = MFL_MAX(back_at, sim->lost_at + SIM_LOST_MS);
        sim->calm_at = back_at + SIM_CALM_MS;
}

static void restart_later(struct sim *sim, uint32_t i)
{
        sim_daemon_crash(sim, i);
        sim_at(sim, sim_below(sim, 4000), SIM_DAEMON_START)->a = i;
}

/* A job that insists on many daemons may never find them again when one says that it can't. */
static bool may_bar(const struct sim *sim)
{
        for (uint32_t i = 0; i < sim->n_jobs; i++)
                if (sim->job[i].spec.selection.daemons_min > 1)
                        return false;
        return true;
}

/* Never sooner than what was drawn before: what was put off then comes no earlier. */
static uint64_t draw_standstill(struct sim *sim, uint64_t before)
{
        uint64_t to = sim->now + sim_below(sim, 6000);
        return MFL_MAX(to, before);
}

void sim_fault(struct sim *sim)
{
        if (sim->quiet)
                return;
        if (sim->now >= sim->faults_end) {
                sim_end_faults(sim);
                return;
        }
        uint32_t i = sim_below(sim, sim->n_daemons);
        struct sim_daemon *d = &sim->daemon[i];
        if (sim->seed % 4 == 1 && sim_chance(sim, 30)) /* other seeds' draws stay what they were */
                sim->daemon[sim_below(sim, sim->n_daemons)].lie = 1 + sim_below(sim, SIM_LIES - 1);
        if (sim->seed % 4 != 1) /* in those some daemons lie, which is enough */
                sim_params_fault(sim, may_bar(sim));
        if (sim->n_relays)
                sim_relay_fault(sim);
        bool node = sim->node_faults && sim_chance(sim, 80);
        switch (node ? 20 + sim_below(sim, 7) : sim_below(sim, 33)) {
        case 0:
        case 1:
        case 2:
                if (d->conn)
                        sim_conn_cut(sim, d->conn);
                break;
        case 3:
                if (d->conn) /* a partition: only silence tells */
                        sim_conn_dark(sim, d->conn);
                break;
        case 4:
        case 5:
                restart_later(sim, i);
                break;
        case 6:
                sim_server_crash(sim);
                break;
        case 7:
                sim->crash_in = sim->core ? 1 + sim_below(sim, 60) : 0;
                break;
        case 8:
                sim->disk_fail = sim_chance(sim, 50) ? 60 : 0;
                sim->disk_slow = 1 + sim_below(sim, 100);
                break;
        case 9:
                d->slow = 1 + sim_below(sim, 40);
                break;
        case 10:
                d->corrupt = 1;
                break;
        case 11:
                d->fail = 1 + sim_below(sim, 4);
                d->permanent = i > 0 && may_bar(sim) && sim_chance(sim, 20);
                break;
        case 12:
                d->reject = 1;
                break;
        case 13:
                if (!sim->twins) /* that is by name */
                        sim_server_drain(sim, i, !d->draining);
                break;
        case 14:
                stop_job(sim);
                break;
        case 16:
                sim_daemon_stop(sim, i);
                sim_at(sim, sim_below(sim, 4000), SIM_DAEMON_START)->a = i;
                break;
        case 17:
                d->stalled_to = draw_standstill(sim, d->stalled_to);
                break;
        case 19:
                sim->crash_ahead = true;
                sim->disk_slow = 1 + sim_below(sim, 100); /* so that there is time for it */
                break;
        case 18:
                sim->stalled_to = draw_standstill(sim, sim->stalled_to);
                break;
        case 20:
                d->combine_fail = 1;
                break;
        case 21:
                d->combine_hang = 1 + sim_below(sim, 2);
                break;
        case 22:
                d->shm_full = 1 + sim_below(sim, 2);
                break;
        case 23:
        case 24:
        case 25:
        case 26:
                sim->trap.step = 1 + sim_below(sim, SIM_TRAP_STEPS - 1);
                sim->trap.leader = sim_chance(sim, 50);
                sim->trap.what = sim_below(sim, SIM_HARMS);
                break;
        case 27:
                if (!sim->twins)
                        sim_server_deny(sim, i, !d->denied);
                break;
        case 28:
        case 29:
                sim_daemon_leave(sim, i, sim_below(sim, 4000));
                break;
        case 30:
        case 31:
                d->mute_to = sim->now + sim_below(sim, 6000);
                break;
        case 32:
                sim_server_crash(sim);
                sim->lost_state = true;
                break;
        case 15:
                if (d->conn)
                        sim->conns[d->conn - 1].latency = 1 + sim_below(sim, 400);
                break;
        }
        sim_at(sim, 1 + sim_below(sim, sim->fault_gap), SIM_FAULT);
}

void sim_script(struct sim *sim, uint32_t step)
{
        if (step == 1)
                sim_daemon_crash(sim, 0);
        else
                sim_server_crash(sim);
}
