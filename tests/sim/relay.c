/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's relays: the shell of a relay's core, links between relays, and what goes wrong with them. A daemon's connection
 * goes over its relays: place 0 is the server, 1 to n_path are relays from above, n_path + 1 is the daemon; link p is between
 * places p and p + 1. */
#include "tests/sim/sim.h"

#include <stdio.h>

#define DEAD_MS 2000 /* until a link on which nothing comes is given up */

static uint32_t draw(struct sim *sim, uint32_t n)
{
        return mfl_rng_below(&sim->relay_rng, n);
}

/* Where the relay is on the way of a connection; 0: it is not. */
static uint32_t place_of(const struct sim_conn *conn, uint32_t relay)
{
        for (uint32_t p = 1; p <= conn->n_path; p++)
                if (conn->path[p - 1] == relay)
                        return p;
        return 0;
}

static void set_link(struct sim_conn *conn, uint32_t link, bool up, bool down)
{
        conn->link[1][link] = up;
        conn->link[0][link] = down;
}

void sim_relay_path(struct sim *sim, struct sim_conn *conn)
{
        uint32_t n = 0, path[SIM_HOPS];
        for (uint32_t r = sim->daemon[conn->daemon].relay; r; r = sim->relay[r - 1].above)
                path[n++] = r - 1;
        conn->n_path = n;
        for (uint32_t p = 0; p < n; p++)
                conn->path[p] = path[n - 1 - p];
        for (uint32_t p = 0; p <= n; p++)
                set_link(conn, p, true, true);
}

bool sim_relays_up(const struct sim *sim, uint32_t daemon)
{
        for (uint32_t r = sim->daemon[daemon].relay; r; r = sim->relay[r - 1].above)
                if (!sim->relay[r - 1].core)
                        return false;
        return true;
}

/* ---- links ---- */

/* below: its link below has ended; else the one above. */
static void tell_hop(struct sim *sim, uint32_t number, uint32_t place, bool below, uint64_t delay)
{
        const struct sim_conn *conn = &sim->conns[number - 1];
        struct sim_event *e = sim_at(sim, delay, SIM_HOP);
        e->conn = number;
        e->a = place;
        e->b = below;
        e->task = place && place <= conn->n_path ? sim->relay[conn->path[place - 1]].boot : 0;
}

void sim_link_cut(struct sim *sim, uint32_t number, uint32_t link)
{
        struct sim_conn *conn = &sim->conns[number - 1];
        if (!conn->link[0][link] && !conn->link[1][link])
                return;
        set_link(conn, link, false, false);
        tell_hop(sim, number, link, true, 1 + draw(sim, 30));
        tell_hop(sim, number, link + 1, false, 1 + draw(sim, 30));
}

/* Only silence tells. */
void sim_link_dark(struct sim *sim, uint32_t number, uint32_t link, bool up, bool down)
{
        struct sim_conn *conn = &sim->conns[number - 1];
        if (!conn->link[0][link] && !conn->link[1][link])
                return;
        set_link(conn, link, conn->link[1][link] && up, conn->link[0][link] && down);
        if (link)
                tell_hop(sim, number, link, true, DEAD_MS);
}

static void new_core(struct sim *sim, struct sim_relay *relay)
{
        const struct mfl_relay_options options = {.n_slots = SIM_RELAY_SLOTS, .stall_ms = 1500};
        relay->boot = (uint32_t)++sim->serial;
        memset(relay->slots, 0, sizeof relay->slots);
        memset(relay->sums, 0, sizeof relay->sums);
        mfl_assert(mfl_relay_core_new(&options, &relay->core, NULL) == 0);
        struct sim_event *e = sim_at(sim, SIM_BEAT_MS, SIM_RELAY_TICK);
        e->a = (uint32_t)(relay - sim->relay);
        e->b = relay->boot;
}

/* All that is under way there is gone, and so are its connections. */
static void drop_all(struct sim *sim, uint32_t r)
{
        struct sim_relay *relay = &sim->relay[r];
        mfl_relay_core_free(relay->core);
        relay->core = NULL;
        relay->boot = 0;
        relay->crash_in = 0;
        for (uint32_t i = 0; i < sim->n_conns; i++) {
                uint32_t p = place_of(&sim->conns[i], r);
                if (!p)
                        continue;
                sim_link_cut(sim, i + 1, p - 1);
                sim_link_cut(sim, i + 1, p);
        }
}

void sim_relay_start(struct sim *sim, uint32_t r)
{
        if (!sim->relay[r].core)
                new_core(sim, &sim->relay[r]);
}

static void kill_relay(struct sim *sim, uint32_t r)
{
        if (!sim->relay[r].core)
                return;
        sim_line(sim, sim->relay[r].name, "is killed");
        drop_all(sim, r);
        sim->n_relays_killed++;
        sim_at(sim, 50 + draw(sim, 3000), SIM_RELAY_START)->a = r;
}

/* Its connection above has ended. */
void sim_relay_drop(struct sim *sim, uint32_t r)
{
        if (!sim->relay[r].core)
                return;
        sim_line(sim, sim->relay[r].name, "has lost the connection above");
        drop_all(sim, r);
        sim_relay_start(sim, r);
}

static void drop_later(struct sim *sim, uint32_t r, uint64_t delay)
{
        struct sim_event *e = sim_at(sim, delay, SIM_RELAY_DROP);
        e->a = r;
        e->b = sim->relay[r].boot;
}

void sim_relays_server_gone(struct sim *sim)
{
        for (uint32_t r = 0; r < sim->n_relays; r++)
                if (!sim->relay[r].above)
                        drop_later(sim, r, 1 + draw(sim, 30));
}

/* ---- a step ---- */

static void forward(struct sim *sim, uint32_t number, uint32_t place, struct sim_packet *packet, bool up)
{
        packet->to_server = up;
        sim_hop(sim, number, packet, place);
}

static void send_msg(struct sim *sim, uint32_t number, uint32_t place, struct mfl_msg *msg, bool up)
{
        struct sim_packet *packet = calloc(1, sizeof *packet);
        packet->msg = *msg;
        *msg = (struct mfl_msg){0};
        forward(sim, number, place, packet, up);
}

static void pass(struct sim *sim, uint32_t place, const struct mfl_relay_action *action,
        const struct sim_packet *packet)
{
        sim_check(sim, packet, "a relay passes on what did not come");
        struct sim_packet *copy = sim_copy(packet);
        struct mfl_task *t = &copy->msg.task;
        if (copy->msg.kind == MFL_MSG_TASK && action->change == MFL_RELAY_NEW_GROUP) {
                t->group.rank = action->members.rank;
                t->group.n_members = action->members.n_members;
                memcpy(t->group.members, action->members.members, sizeof t->group.members);
        } else if (copy->msg.kind == MFL_MSG_TASK && action->change != MFL_RELAY_AS_IS) {
                t->group = (struct mfl_group){0};
                t->sum |= action->change == MFL_RELAY_FOR_SUM;
        }
        forward(sim, action->peer, place, copy, action->up);
}

static struct sim_relay_sum *find_sum(struct sim_relay *relay, uint64_t group)
{
        for (int k = 0; k < SIM_RELAY_SUMS; k++)
                if (relay->sums[k].group == group)
                        return &relay->sums[k];
        return NULL;
}

static void open_slot(struct sim *sim, uint32_t r, uint32_t place, const struct mfl_relay_action *action)
{
        struct sim_relay_slot *slot = &sim->relay[r].slots[action->slot];
        sim_check(sim, action->slot < SIM_RELAY_SLOTS && !slot->open, "a relay gives a slot twice");
        *slot = (struct sim_relay_slot){
                .open = true, .grant = action->grant, .task = action->task, .conn = action->peer};
        if (!sim->quiet && draw(sim, 20) == 0) {
                struct sim_event *e = sim_at(sim, 0, SIM_RELAY_ADDED);
                e->a = r;
                e->b = sim->relay[r].boot;
                e->conn = action->slot + 1;
                e->task = action->grant;
                slot->no_room = true;
                return;
        }
        struct mfl_msg msg = {.kind = MFL_MSG_GRANT, .update = {.task = action->task, .n_ranges = 1}};
        msg.update.ranges = calloc(1, sizeof *msg.update.ranges);
        msg.update.ranges[0].bytes = action->bytes;
        send_msg(sim, action->peer, place, &msg, false);
}

static void begin_add(struct sim *sim, uint32_t r, const struct mfl_relay_action *action)
{
        struct sim_relay_slot *slot = &sim->relay[r].slots[action->slot];
        sim_check(sim, slot->open && slot->grant == action->grant && slot->whole,
                "a relay adds what has not come");
        slot->adding = action->group;
        struct sim_event *e = sim_at(sim, 1 + draw(sim, sim->quiet ? 5 : 200), SIM_RELAY_ADDED);
        e->a = r;
        e->b = sim->relay[r].boot;
        e->conn = action->slot + 1;
        e->task = action->grant;
}

static void close_slot(struct sim *sim, uint32_t r, const struct mfl_relay_action *action)
{
        struct sim_relay_slot *slot = &sim->relay[r].slots[action->slot];
        sim_check(sim, slot->open && slot->grant == action->grant, "a relay closes a slot that is not open");
        sim_check(sim, !slot->adding, "a relay closes a slot that its worker reads");
        *slot = (struct sim_relay_slot){0};
}

static void send_sum(struct sim *sim, uint32_t r, uint32_t place, const struct mfl_relay_action *action)
{
        const struct sim_relay_sum *sum = find_sum(&sim->relay[r], action->group);
        sim_check(sim, sum, "a relay sends a sum that it does not have");
        sim->n_relay_sums++;
        for (uint32_t k = 0; k < action->n_ranges; k++)
                for (uint64_t at = action->ranges[k].offset;
                        at < action->ranges[k].offset + action->ranges[k].bytes; at += 8) {
                        struct sim_packet *packet = calloc(1, sizeof *packet);
                        packet->task = action->group;
                        packet->offset = at;
                        packet->n = 8;
                        memcpy(packet->bytes, &sum->sum[at / 8], 8);
                        forward(sim, action->peer, place, packet, true);
                }
}

static void free_sum(struct sim *sim, uint32_t r, uint64_t group)
{
        struct sim_relay *relay = &sim->relay[r];
        struct sim_relay_sum *sum = find_sum(relay, group);
        sim_check(sim, group && sum, "a relay frees a sum that it does not have");
        for (int s = 0; s < SIM_RELAY_SLOTS; s++)
                sim_check(sim, relay->slots[s].adding != group, "a relay frees a sum that its worker writes");
        *sum = (struct sim_relay_sum){0};
}

static void carry_out(
        struct sim *sim, uint32_t r, struct mfl_relay_action *action, const struct sim_packet *packet)
{
        struct sim_conn *conn = action->peer ? &sim->conns[action->peer - 1] : NULL;
        uint32_t place = conn ? place_of(conn, r) : 0;
        switch (action->kind) {
        case MFL_RELAY_ACT_PASS:
                pass(sim, place, action, packet);
                break;
        case MFL_RELAY_ACT_SEND:
                send_msg(sim, action->peer, place, &action->msg, action->up);
                break;
        case MFL_RELAY_ACT_PART:
                set_link(conn, place - 1, false, false);
                tell_hop(sim, action->peer, place, false, 1);
                tell_hop(sim, action->peer, place - 1, true, conn->latency);
                break;
        case MFL_RELAY_ACT_OPEN:
                open_slot(sim, r, place, action);
                break;
        case MFL_RELAY_ACT_CLOSE:
                close_slot(sim, r, action);
                break;
        case MFL_RELAY_ACT_ADD:
                begin_add(sim, r, action);
                break;
        case MFL_RELAY_ACT_SUM_SEND:
                send_sum(sim, r, place, action);
                break;
        case MFL_RELAY_ACT_SUM_FREE:
                free_sum(sim, r, action->group);
                break;
        case MFL_RELAY_ACT_TRACE:
                sim_line(sim, sim->relay[r].name, "%s", action->text);
        }
}

static void step(struct sim *sim, uint32_t r, struct mfl_relay_event *event, const struct sim_packet *packet)
{
        struct sim_relay *relay = &sim->relay[r];
        struct mfl_relay_actions actions = {0};
        event->now_ms = sim->now;
        sim_check(sim, mfl_relay_core_step(relay->core, event, &actions) == 0, "a relay's step failed");
        mfl_relay_core_check(relay->core);
        for (uint32_t i = 0; i < actions.n && relay->core; i++) {
                if (relay->crash_in && --relay->crash_in == 0)
                        kill_relay(sim, r);
                else
                        carry_out(sim, r, &actions.v[i], packet);
        }
        mfl_relay_actions_deinit(&actions);
}

/* ---- events ---- */

void sim_relay_tick(struct sim *sim, uint32_t r, uint32_t boot)
{
        if (sim->relay[r].boot != boot)
                return;
        step(sim, r, &(struct mfl_relay_event){.kind = MFL_RELAY_EV_TICK}, NULL);
        struct sim_event *e = sim_at(sim, SIM_BEAT_MS, SIM_RELAY_TICK);
        e->a = r;
        e->b = boot;
}

/* As late as it can be: the sum is touched when the worker answers. */
static bool add(struct sim *sim, struct sim_relay *relay, const struct sim_relay_slot *slot)
{
        struct sim_relay_sum *sum = find_sum(relay, slot->adding);
        int64_t all[SIM_PARAMS];
        if (!sum) {
                sum = find_sum(relay, 0);
                sim_check(sim, sum, "a relay has more than %d sums", SIM_RELAY_SUMS);
                sum->group = slot->adding;
                memcpy(sum->sum, slot->data, sizeof sum->sum);
                return true;
        }
        for (int k = 0; k < SIM_PARAMS; k++)
                if (__builtin_add_overflow(sum->sum[k], slot->data[k], &all[k]))
                        return false;
        memcpy(sum->sum, all, sizeof all);
        return true;
}

void sim_relay_added(struct sim *sim, uint32_t r, uint32_t boot, uint32_t s, uint64_t grant)
{
        struct sim_relay *relay = &sim->relay[r];
        struct sim_relay_slot *slot = &relay->slots[s];
        if (relay->boot != boot || !slot->open || slot->grant != grant)
                return;
        struct mfl_relay_event event = {.kind = MFL_RELAY_EV_NO_ROOM, .slot = s, .grant = grant};
        if (!slot->no_room) {
                event.kind = MFL_RELAY_EV_ADDED;
                event.ok = add(sim, relay, slot);
                slot->adding = 0;
        }
        step(sim, r, &event, NULL);
}

/* Whether a slot takes the chunk. */
static bool take_chunk(struct sim *sim, uint32_t r, uint32_t number, const struct sim_packet *packet)
{
        struct sim_relay *relay = &sim->relay[r];
        for (uint32_t s = 0; s < SIM_RELAY_SLOTS; s++) {
                struct sim_relay_slot *slot = &relay->slots[s];
                if (!slot->open || slot->no_room || slot->whole || slot->conn != number ||
                        slot->task != packet->task || packet->update)
                        continue;
                memcpy(&slot->data[packet->offset / 8], packet->bytes, 8);
                slot->have[packet->offset / 8] = slot->whole = true;
                for (int k = 0; k < SIM_PARAMS; k++)
                        slot->whole &= slot->have[k];
                struct mfl_relay_event event = {.kind = slot->whole ? MFL_RELAY_EV_WHOLE : MFL_RELAY_EV_MOVED,
                        .slot = s,
                        .grant = slot->grant};
                step(sim, r, &event, NULL);
                return true;
        }
        return false;
}

static void greet(struct sim *sim, uint32_t r, uint32_t number, const struct sim_packet *packet)
{
        const struct sim_conn *conn = &sim->conns[number - 1];
        uint32_t place = place_of(conn, r);
        struct sim_packet *copy = sim_copy(packet);
        struct mfl_daemon_info *hello = &copy->msg.hello;
        struct mfl_relay_event event = {.kind = MFL_RELAY_EV_UP,
                .peer = number,
                .instance = hello->instance,
                .lane = place < conn->n_path ? conn->path[place] + 1 : 0};
        mfl_snprintf(hello->relay, sizeof hello->relay, "%s%s%s", sim->relay[r].name,
                packet->msg.hello.relay[0] ? "/" : "", packet->msg.hello.relay);
        step(sim, r, &event, NULL);
        forward(sim, number, place, copy, true);
}

void sim_relay_packet(struct sim *sim, uint32_t number, const struct sim_packet *packet)
{
        const struct sim_conn *conn = &sim->conns[number - 1];
        uint32_t r = conn->path[packet->at - 1];
        if (!sim->relay[r].core)
                return;
        if (packet->msg.kind == MFL_MSG_HELLO) {
                greet(sim, r, number, packet);
                return;
        }
        bool bulk = packet->msg.kind == MFL_MSG_NONE, chunk = bulk && !packet->params && !packet->population;
        if (chunk && packet->to_server && take_chunk(sim, r, number, packet))
                return;
        if (bulk || packet->msg.kind == MFL_MSG_PARAMS_GET || packet->msg.kind == MFL_MSG_PARAMS_GONE) {
                forward(sim, number, packet->at, sim_copy(packet), packet->to_server);
                return;
        }
        struct mfl_relay_event event = {
                .kind = packet->to_server ? MFL_RELAY_EV_FROM_BELOW : MFL_RELAY_EV_FROM_ABOVE,
                .peer = number,
                .msg = &packet->msg};
        step(sim, r, &event, packet);
}

void sim_relay_hop(struct sim *sim, uint32_t number, uint32_t place, bool below, uint64_t boot)
{
        const struct sim_conn *conn = &sim->conns[number - 1];
        uint32_t r = conn->path[place - 1];
        if (!sim->relay[r].core || sim->relay[r].boot != boot)
                return;
        struct mfl_relay_event event = {
                .kind = below ? MFL_RELAY_EV_DOWN : MFL_RELAY_EV_ENDED, .peer = number};
        step(sim, r, &event, NULL);
        if (!below)
                sim_link_cut(sim, number, place);
}

/* ---- faults ---- */

/* The line between the relay and what is above it. Both sides find out by the silence, and what a relay is cut off from is as dead as
 * if it had been killed. */
static void darken(struct sim *sim, uint32_t r, bool up, bool down)
{
        for (uint32_t i = 0; i < sim->n_conns; i++) {
                uint32_t p = place_of(&sim->conns[i], r);
                if (!p || (!sim->conns[i].link[0][p - 1] && !sim->conns[i].link[1][p - 1]))
                        continue;
                sim_link_dark(sim, i + 1, p - 1, up, down);
                if (p == 1)
                        tell_hop(sim, i + 1, 0, true, DEAD_MS);
        }
        drop_later(sim, r, DEAD_MS);
        sim->relays_back_at = MFL_MAX(sim->relays_back_at, sim->now + DEAD_MS);
}

void sim_relay_fault(struct sim *sim)
{
        uint32_t r = draw(sim, sim->n_relays);
        struct sim_relay *relay = &sim->relay[r];
        switch (draw(sim, 8)) {
        case 0:
        case 1:
                kill_relay(sim, r);
                break;
        case 2:
                relay->crash_in = relay->core ? 1 + draw(sim, 30) : 0;
                break;
        case 3:
                sim_line(sim, relay->name, "is cut off from above");
                drop_later(sim, r, 1 + draw(sim, 30));
                break;
        case 4:
                sim_line(sim, relay->name, "is stopped");
                relay->stalled_to = MFL_MAX(relay->stalled_to, sim->now + draw(sim, 5000));
                break;
        case 5:
                sim_line(sim, relay->name, "nothing goes to and fro above");
                darken(sim, r, false, false);
                break;
        case 6:
                sim_line(sim, relay->name, "nothing goes up");
                darken(sim, r, false, true);
                break;
        default:
                sim_line(sim, relay->name, "nothing comes down");
                darken(sim, r, true, false);
        }
}

void sim_relays_calm(struct sim *sim, uint64_t *back_at)
{
        for (uint32_t r = 0; r < sim->n_relays; r++) {
                struct sim_relay *relay = &sim->relay[r];
                *back_at = MFL_MAX(*back_at, relay->stalled_to);
                relay->crash_in = 0;
                sim_relay_start(sim, r);
        }
        *back_at = MFL_MAX(*back_at, sim->relays_back_at);
}

/* After the end of all jobs, nothing is kept for them. */
bool sim_relays_settled(const struct sim *sim)
{
        for (uint32_t r = 0; r < sim->n_relays; r++) {
                for (int s = 0; s < SIM_RELAY_SLOTS; s++)
                        if (sim->relay[r].slots[s].open)
                                return false;
                for (int k = 0; k < SIM_RELAY_SUMS; k++)
                        if (sim->relay[r].sums[k].group)
                                return false;
        }
        return true;
}

void sim_relays_free(struct sim *sim)
{
        for (uint32_t r = 0; r < sim->n_relays; r++)
                mfl_relay_core_free(sim->relay[r].core);
}

/* A tree of at most three levels of relays; some daemons are at the server. */
void sim_relays_setup(struct sim *sim)
{
        sim->relay_rng = mfl_rng_new(sim->seed, MFL_RNG_SIM, 3, 0);
        sim->n_relays = 1 + draw(sim, SIM_RELAYS);
        for (uint32_t r = 0; r < sim->n_relays; r++) {
                struct sim_relay *relay = &sim->relay[r];
                snprintf(relay->name, sizeof relay->name, "r%u", r + 1);
                relay->above = draw(sim, r + 1);
                relay->level = relay->above ? sim->relay[relay->above - 1].level + 1 : 1;
                if (relay->level > SIM_HOPS - 1) {
                        relay->above = 0;
                        relay->level = 1;
                }
                sim_relay_start(sim, r);
        }
        for (uint32_t i = 0; i < sim->n_daemons; i++) {
                struct sim_daemon *d = &sim->daemon[i];
                d->relay = draw(sim, sim->n_relays + 1);
                if (!d->relay)
                        continue;
                char path[MFL_RELAY_BYTES] = "", below[MFL_RELAY_BYTES];
                for (uint32_t r = d->relay; r; r = sim->relay[r - 1].above) {
                        memcpy(below, path, sizeof below);
                        mfl_snprintf(path, sizeof path, "%s%s%s", sim->relay[r - 1].name, *below ? "/" : "",
                                below);
                }
                memcpy(d->info.relay, path, sizeof d->info.relay);
        }
}
