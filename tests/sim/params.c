/* SPDX-License-Identifier: Apache-2.0 */
/* The params of the simulator's daemons: their bytes, and what goes wrong with them. The agent decides what is
 * fetched, from whom, and what is kept; this shell has the memory, looks at other daemons of the node, and
 * takes digests.
 *
 * Faults: pieces that are garbled, lost, swapped or doubled; a connection that is cut, and a daemon that is
 * killed, in the middle of a download; no memory; no room in the share; a daemon that is harmed just when
 * another one looks for its copy. They come from a stream of random numbers of their own, so that the other
 * draws of a seed stay what they were.
 */
#include "tests/sim/sim.h"

static uint32_t draw(struct sim *sim, uint32_t n)
{
        return sim->scenario ? 0 : mfl_rng_below(&sim->params_rng, n);
}

struct sim_part *sim_part(struct sim_daemon *d, uint64_t number)
{
        for (int k = 0; number && k < SIM_PARTS; k++)
                if (d->part[k].number == number)
                        return &d->part[k];
        return NULL;
}

static void digest_of(const struct sim_part *part, uint8_t *ret_digest)
{
        if (part->n == SIM_FROZEN)
                sim_digest_frozen(part->data, ret_digest);
        else
                sim_digest(part->data, ret_digest);
}

static struct sim_part *new_part(struct sim *sim, struct sim_daemon *d, const struct mfl_agent_action *action)
{
        for (int k = 0; k < SIM_PARTS; k++) {
                if (d->part[k].number)
                        continue;
                d->part[k] = (struct sim_part){.number = action->part, .n = (uint32_t)action->n_floats};
                memcpy(d->part[k].digest, action->digest, MFL_DIGEST_BYTES);
                mfl_strcpy(d->part[k].job, sizeof d->part[k].job, action->job);
                return &d->part[k];
        }
        sim_fail(sim, "daemon %s keeps more than %d parts of params", d->info.name, SIM_PARTS);
}

static void answer(struct sim *sim, uint32_t i, uint64_t delay, const struct mfl_agent_event *event)
{
        sim_self(sim, i, delay, event);
}

/* ---- the agent's orders ---- */

static void get_room(struct sim *sim, uint32_t i, const struct mfl_agent_action *action)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct mfl_agent_event event = {
                .kind = MFL_AGENT_EV_PARAMS_ROOM, .part = action->part, .ok = true, .reason = "no memory"};
        struct sim_part *part = sim_part(d, action->reuse);
        uint32_t n_versions = 0;
        d->look_waits = false;
        if (part) {
                part->number = 0;
                sim->n_evicted++;
        }
        if (d->refuse_params) {
                d->refuse_params--;
                sim->n_params_refused++;
                sim->barred = true;
                event.ok = false;
                answer(sim, i, draw(sim, 3), &event);
                return;
        }
        part = sim_part(d, action->part);
        sim_check(sim, !part || !part->have, "daemon %s gets memory for params that it has", d->info.name);
        part = part ? part : new_part(sim, d, action);
        part->room = true;
        part->private = d->unshared_params > 0;
        d->unshared_params -= part->private;
        for (int k = 0; k < SIM_PARTS; k++)
                n_versions += d->part[k].number && d->part[k].n == SIM_PARAMS &&
                              (d->part[k].room || d->part[k].have) && strcmp(d->part[k].job, part->job) == 0;
        sim_check(sim, n_versions <= 2, "daemon %s keeps %u versions of a job's params", d->info.name,
                n_versions);
        answer(sim, i, draw(sim, 3), &event);
}

/* The copy that another daemon shares, as it lies there now. */
static void look(struct sim *sim, uint32_t i, const struct mfl_agent_action *action)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct sim_daemon *from = sim_instance(sim, action->from);
        struct mfl_agent_event event = {
                .kind = MFL_AGENT_EV_PARAMS_LOOKED, .part = action->part, .gone = !from};
        uint32_t pause = sim->scenario ? 4 : draw(sim, 4);
        sim_check(sim, action->from && action->from != d->info.instance, "daemon %s looks for its own params",
                d->info.name);
        d->look_task = action->task_number;
        d->look_waits = false;
        for (int k = 0; from && k < SIM_PARTS; k++) {
                const struct sim_part *theirs = &from->part[k];
                if (!theirs->number || strcmp(theirs->job, action->job) != 0 ||
                        memcmp(theirs->digest, action->digest, MFL_DIGEST_BYTES) != 0)
                        continue;
                event.gone = theirs->private;
                if (!theirs->shared)
                        continue;
                sim_check(sim, theirs->have == theirs->n, "daemon %s shares params that it has not got",
                        from->info.name);
                struct sim_part *part = sim_part(d, action->part);
                part = part ? part : new_part(sim, d, action);
                memcpy(part->data, theirs->data, sizeof part->data);
                part->have = part->hashed = part->n;
                event.ok = true;
                pause = 0;
                sim->n_params_read++;
        }
        answer(sim, i, pause, &event);
        if (from && sim->params_trap.set && draw(sim, 2)) {
                sim->params_trap.set = false;
                struct sim_event *e = sim_at(sim, draw(sim, 20), SIM_TRAP);
                e->a = (uint32_t)(from - sim->daemon);
                e->b = sim->params_trap.what;
        }
}

static void hash(struct sim *sim, uint32_t i, const struct mfl_agent_action *action)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct sim_part *part = sim_part(d, action->part);
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_PARAMS_HASHED, .part = action->part};
        sim_check(sim, part && part->room, "daemon %s hashes params that it has no memory for", d->info.name);
        sim_check(sim, action->offset == part->hashed && action->offset + action->n_floats <= part->have,
                "daemon %s hashes params that are not there, or twice", d->info.name);
        part->hashed += (uint32_t)action->n_floats;
        if (part->hashed == part->n) {
                uint8_t digest[MFL_DIGEST_BYTES];
                digest_of(part, digest);
                event.ok = memcmp(digest, part->digest, sizeof digest) == 0;
                sim->n_params_wrong += !event.ok;
                if (!event.ok)
                        part->have = part->hashed = 0;
        }
        answer(sim, i, draw(sim, 5), &event);
}

static void share(struct sim *sim, uint32_t i, const struct mfl_agent_action *action)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct sim_part *part = sim_part(d, action->part);
        sim_check(sim, part && part->have == part->n && part->hashed == part->n,
                "daemon %s shares params that are not whole", d->info.name);
        /* What is not its own memory in the share is copied there. */
        if (action->make || (part->room && !part->private))
                part->shared = true;
}

void sim_params_order(struct sim *sim, uint32_t i, const struct mfl_agent_action *action)
{
        struct sim_part *part = sim_part(&sim->daemon[i], action->part);
        switch (action->kind) {
        case MFL_AGENT_ACT_PARAMS_ROOM:
                get_room(sim, i, action);
                break;
        case MFL_AGENT_ACT_PARAMS_LOOK:
                look(sim, i, action);
                break;
        case MFL_AGENT_ACT_PARAMS_HASH:
                hash(sim, i, action);
                break;
        case MFL_AGENT_ACT_PARAMS_SHARE:
                share(sim, i, action);
                break;
        default:
                if (part)
                        part->number = 0;
        }
}

/* ---- pieces ---- */

static void take(struct sim *sim, uint32_t i, const struct sim_packet *packet)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_HEARD};
        const struct mfl_agent_piece piece = {.job = packet->job,
                .digest = packet->digest,
                .offset = packet->offset,
                .n = packet->n,
                .total = packet->total};
        int r = mfl_agent_params_place(d->agent, &piece, &event.part);
        sim_check(sim, r != MFL_INVALID, "daemon %s takes a piece of params for one that can't be",
                d->info.name);
        if (!r) {
                struct sim_part *part = sim_part(d, event.part);
                sim_check(sim, part && part->room && part->have == packet->offset,
                        "daemon %s places a piece of params where it does not belong", d->info.name);
                event.kind = MFL_AGENT_EV_PARAMS_ARRIVED;
                event.offset = packet->offset;
                event.n_floats = packet->n;
                part->have += packet->n;
                memcpy(part->data + packet->offset, packet->bytes, packet->n * sizeof(float));
                if (d->garble_params) {
                        d->garble_params--;
                        part->data[packet->offset] += 1;
                }
        }
        sim_daemon_step(sim, i, &event);
}

static bool lose_or_swap(struct sim *sim, struct sim_daemon *d, const struct sim_packet *packet)
{
        if (d->lose_params || d->swap_params)
                sim->lost_at = sim->now;
        if (d->lose_params) {
                d->lose_params--;
                return true;
        }
        if (!d->swap_params || d->swapped)
                return false;
        d->swap_params--;
        d->swapped = calloc(1, sizeof *packet);
        *d->swapped = *packet;
        return true;
}

static void in_the_middle(struct sim *sim, uint32_t i)
{
        struct sim_daemon *d = &sim->daemon[i];
        if (d->params_cut)
                sim_harm(sim, i, d->params_cut == 2 ? SIM_KILL : SIM_CUT);
        d->params_cut = 0;
}

void sim_params_piece(struct sim *sim, uint32_t i, const struct sim_packet *packet)
{
        struct sim_daemon *d = &sim->daemon[i];
        struct sim_packet *swapped = d->swapped;
        if (lose_or_swap(sim, d, packet))
                return;
        d->swapped = NULL;
        take(sim, i, packet);
        if (swapped && d->agent)
                take(sim, i, swapped);
        free(swapped);
        if (packet->offset + packet->n < packet->total)
                in_the_middle(sim, i);
}

void sim_params_reset(struct sim_daemon *d)
{
        memset(d->part, 0, sizeof d->part);
        free(d->swapped);
        d->swapped = NULL;
        d->look_task = 0;
        d->look_waits = false;
}

/* ---- faults ---- */

void sim_params_calm(struct sim *sim)
{
        sim->params_trap.set = false;
        for (uint32_t i = 0; i < sim->n_daemons; i++) {
                struct sim_daemon *d = &sim->daemon[i];
                d->garble_params = d->lose_params = d->swap_params = d->refuse_params = d->unshared_params =
                        0;
                d->params_cut = 0;
        }
}

void sim_params_fault(struct sim *sim, bool may_bar)
{
        uint32_t i = draw(sim, sim->n_daemons);
        struct sim_daemon *d = &sim->daemon[i];
        switch (draw(sim, 10)) {
        case 0:
                d->garble_params = 1 + draw(sim, 4);
                break;
        case 1:
                d->lose_params = 1 + draw(sim, 2);
                break;
        case 2:
                d->swap_params = 1;
                break;
        case 3:
                d->params_cut = 1 + draw(sim, 2);
                break;
        case 4:
                d->refuse_params = i > 0 && may_bar && !draw(sim, 4);
                break;
        case 5:
                d->unshared_params = 1 + draw(sim, 2);
                break;
        case 6:
                sim->params_trap.set = true;
                sim->params_trap.what = draw(sim, SIM_HARMS);
                break;
        case 7:
                for (uint32_t k = 0; d->agent && k < sim->n_jobs; k++) {
                        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_JOB_OVER};
                        mfl_strcpy(event.job, sizeof event.job, sim->job[k].id);
                        if (sim->job[k].over && mfl_agent_online(d->agent))
                                sim_daemon_step(sim, i, &event);
                }
                break;
        default:
                break;
        }
}
