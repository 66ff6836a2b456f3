/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's clock, event queue and network, and the run from start to end. */
#include "tests/sim/sim.h"

#include <setjmp.h>
#include <stdio.h>

uint32_t sim_below(struct sim *sim, uint32_t n)
{
        return mfl_rng_below(&sim->rng, n);
}

bool sim_chance(struct sim *sim, uint32_t percent)
{
        return percent && sim_below(sim, 100) < percent;
}

void sim_line(struct sim *sim, const char *who, const char *fmt, ...)
{
        if (!sim->trace)
                return;
        char text[512], line[640];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        int n = snprintf(line, sizeof line, "%3u.%03u %-8s %s\n", (uint32_t)(sim->now / 1000),
                (uint32_t)(sim->now % 1000), who, text);
        if (sim->n_lines + (size_t)n + 1 > sim->lines_capacity) {
                sim->lines_capacity = (sim->lines_capacity + (size_t)n) * 2 + 4096;
                sim->lines = realloc(sim->lines, sim->lines_capacity);
        }
        memcpy(sim->lines + sim->n_lines, line, (size_t)n + 1);
        sim->n_lines += (size_t)n;
}

/* ---- the event queue: a binary heap by (time, order of making) ---- */

static bool before(const struct sim_event *a, const struct sim_event *b)
{
        return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

struct sim_event *sim_at(struct sim *sim, uint64_t delay_ms, enum sim_event_kind kind)
{
        if (sim->n_heap == sim->heap_capacity) {
                sim->heap_capacity = sim->heap_capacity ? sim->heap_capacity * 2 : 256;
                sim->heap = realloc(sim->heap, sim->heap_capacity * sizeof *sim->heap);
        }
        struct sim_event event = {.at = sim->now + delay_ms, .seq = ++sim->seq, .kind = kind};
        uint32_t i = sim->n_heap++;
        for (; i && before(&event, &sim->heap[(i - 1) / 2]); i = (i - 1) / 2)
                sim->heap[i] = sim->heap[(i - 1) / 2];
        sim->heap[i] = event;
        return &sim->heap[i];
}

static struct sim_event pop(struct sim *sim)
{
        struct sim_event top = sim->heap[0], last = sim->heap[--sim->n_heap];
        uint32_t i = 0;
        for (uint32_t c = 1; c < sim->n_heap; c = 2 * i + 1) {
                if (c + 1 < sim->n_heap && before(&sim->heap[c + 1], &sim->heap[c]))
                        c++;
                if (!before(&sim->heap[c], &last))
                        break;
                sim->heap[i] = sim->heap[c];
                i = c;
        }
        if (sim->n_heap)
                sim->heap[i] = last;
        return top;
}

static void free_packet(struct sim_packet *packet)
{
        if (packet)
                mfl_msg_deinit(&packet->msg);
        free(packet);
}

static void free_event(struct sim_event *event)
{
        free_packet(event->packet);
        free(event->core);
        free(event->agent);
}

void sim_deinit(struct sim *sim)
{
        for (uint32_t i = 0; i < sim->n_heap; i++)
                free_event(&sim->heap[i]);
        for (uint32_t i = 0; i < sim->n_daemons; i++)
                sim_daemon_free(sim, i);
        mfl_core_free(sim->core);
        sim_relays_free(sim);
        free(sim->heap);
        free(sim->conns);
        free(sim->updates);
        free(sim->groups);
        free(sim->lines);
}

/* ---- network ---- */

uint32_t sim_connect(struct sim *sim, uint32_t daemon)
{
        if (sim->n_conns == sim->conns_capacity) {
                sim->conns_capacity = sim->conns_capacity ? sim->conns_capacity * 2 : 32;
                sim->conns = realloc(sim->conns, sim->conns_capacity * sizeof *sim->conns);
        }
        sim->conns[sim->n_conns] = (struct sim_conn){.daemon = daemon,
                .generation = sim->daemon[daemon].generation,
                .server_open = true,
                .daemon_open = true,
                .latency = 1 + sim_below(sim, sim->scenario ? 1 : 20)};
        sim_relay_path(sim, &sim->conns[sim->n_conns]);
        return ++sim->n_conns;
}

static void post(struct sim *sim, uint32_t number, struct sim_packet *packet)
{
        struct sim_conn *conn = &sim->conns[number - 1];
        uint64_t *free_at = &conn->free_at[packet->to_server][packet->at - !packet->to_server];
        uint64_t at = sim->now + conn->latency + (sim->quiet || sim->scenario ? 0 : sim_below(sim, 5));
        *free_at = MFL_MAX(at, *free_at + (packet->msg.kind == MFL_MSG_NONE &&
                                                  !packet->population)); /* FIFO; bulk takes its time */
        struct sim_event *e = sim_at(sim, *free_at - sim->now, SIM_PACKET);
        e->conn = number;
        e->packet = packet;
}

struct sim_packet *sim_copy(const struct sim_packet *packet)
{
        struct sim_packet *copy = malloc(sizeof *copy);
        *copy = *packet;
        mfl_assert(mfl_msg_copy(&packet->msg, &copy->msg) == 0);
        return copy;
}

void sim_hop(struct sim *sim, uint32_t number, struct sim_packet *packet, uint32_t from)
{
        const struct sim_conn *conn = &sim->conns[number - 1];
        packet->at = packet->to_server ? from - 1 : from + 1;
        if (!conn->link[packet->to_server][MFL_MIN(from, packet->at)]) {
                free_packet(packet);
                return;
        }
        post(sim, number, packet);
}

void sim_send(struct sim *sim, uint32_t number, struct sim_packet *packet)
{
        struct sim_conn *conn = number ? &sim->conns[number - 1] : NULL;
        enum mfl_msg_kind kind = packet->msg.kind;
        if (!conn || conn->dark || !(packet->to_server ? conn->daemon_open : conn->server_open)) {
                free_packet(packet);
                return;
        }
        const uint32_t from = packet->to_server ? conn->n_path + 1 : 0;
        bool twice = kind != MFL_MSG_HELLO && kind != MFL_MSG_WELCOME && kind != MFL_MSG_PARAMS_GET &&
                     sim_chance(sim, sim->duplicate);
        if (twice)
                sim_hop(sim, number, sim_copy(packet), from);
        sim_hop(sim, number, packet, from);
}

/* Both ends learn of it after a while. */
void sim_conn_cut(struct sim *sim, uint32_t number)
{
        const struct sim_conn *conn = &sim->conns[number - 1];
        if (conn->n_path) {
                sim_link_cut(sim, number, conn->n_path);
                return;
        }
        for (uint32_t to_server = 0; to_server < 2; to_server++) {
                struct sim_event *e = sim_at(sim, 1 + sim_below(sim, 30), SIM_CLOSED);
                e->conn = number;
                e->a = to_server;
        }
        sim->conns[number - 1].dark = true;
}

void sim_conn_dark(struct sim *sim, uint32_t number)
{
        struct sim_conn *conn = &sim->conns[number - 1];
        if (conn->n_path)
                sim_link_dark(sim, number, conn->n_path, false, false);
        else
                conn->dark = true;
}

/* The other side learns of it, and nothing more comes through. */
void sim_conn_close(struct sim *sim, uint32_t number, bool by_server)
{
        struct sim_conn *conn = &sim->conns[number - 1];
        if (conn->n_path) {
                sim_link_cut(sim, number, by_server ? 0 : conn->n_path);
        } else if (!conn->dark) {
                struct sim_event *e = sim_at(sim, conn->latency, SIM_CLOSED);
                e->conn = number;
                e->a = !by_server;
        }
}

static void on_packet(struct sim *sim, struct sim_event *event)
{
        struct sim_conn *conn = &sim->conns[event->conn - 1];
        struct sim_daemon *d = &sim->daemon[conn->daemon];
        const struct sim_packet *packet = event->packet;
        if (conn->dark || !conn->link[packet->to_server][packet->at - !packet->to_server])
                return;
        if (packet->at && packet->at <= conn->n_path) {
                sim_relay_packet(sim, event->conn, packet);
                return;
        }
        if (sim->trace && sim->scenario == 0 && event->packet->msg.kind != MFL_MSG_NONE) {
                char text[300];
                sim_line(sim, event->packet->to_server ? "->server" : d->info.name, "%s: %s",
                        event->packet->to_server ? d->info.name : "server",
                        mfl_msg_text(&event->packet->msg, text, sizeof text));
        }
        if (event->packet->to_server) {
                if (conn->server_open && sim->core)
                        sim_server_packet(sim, event->conn, event->packet);
        } else if (conn->daemon_open && d->agent && d->conn == event->conn)
                sim_daemon_packet(sim, conn->daemon, event->packet);
}

static void on_closed(struct sim *sim, const struct sim_event *event)
{
        struct sim_conn *conn = &sim->conns[event->conn - 1];
        struct sim_daemon *d = &sim->daemon[conn->daemon];
        if (event->a) {
                if (!conn->server_open)
                        return;
                conn->server_open = false;
                if (sim->core && conn->greeted)
                        sim_server_step(sim,
                                &(struct mfl_core_event){.kind = MFL_EV_DAEMON_DOWN, .conn = event->conn});
        } else if (conn->daemon_open) {
                conn->daemon_open = false;
                if (d->conn != event->conn || !d->agent)
                        return;
                d->conn = 0;
                sim_daemon_step(sim, conn->daemon, &(struct mfl_agent_event){.kind = MFL_AGENT_EV_CLOSED});
        }
}

static void on_hop(struct sim *sim, const struct sim_event *event)
{
        const struct sim_conn *conn = &sim->conns[event->conn - 1];
        struct sim_event closed = *event;
        closed.a = !event->a;
        if (event->a && event->a <= conn->n_path)
                sim_relay_hop(sim, event->conn, event->a, event->b, event->task);
        else
                on_closed(sim, &closed);
}

static void on_connected(struct sim *sim, uint32_t i)
{
        struct sim_daemon *d = &sim->daemon[i];
        if (!sim->core || !sim_relays_up(sim, i)) {
                sim_daemon_step(sim, i,
                        &(struct mfl_agent_event){
                                .kind = MFL_AGENT_EV_CLOSED, .reason = "connection refused"});
                return;
        }
        d->conn = sim_connect(sim, i);
        sim_daemon_step(sim, i, &(struct mfl_agent_event){.kind = MFL_AGENT_EV_CONNECTED});
}

/* ---- running ---- */

static void on_work(struct sim *sim, struct sim_event *event)
{
        if (!sim->core || event->a != sim->n_starts)
                return;
        sim_server_step(sim, event->core);
}

static uint64_t place_stalled_to(const struct sim *sim, const struct sim_conn *conn, uint32_t place)
{
        if (!place)
                return sim->stalled_to;
        return place <= conn->n_path ? sim->relay[conn->path[place - 1]].stalled_to
                                     : sim->daemon[conn->daemon].stalled_to;
}

/* When the process that an event is for stands still, until when. */
static uint64_t stalled_to(const struct sim *sim, const struct sim_event *event)
{
        const struct sim_conn *conn =
                event->conn && event->conn <= sim->n_conns ? &sim->conns[event->conn - 1] : NULL;
        switch (event->kind) {
        case SIM_TICK_SERVER:
        case SIM_WORK:
        case SIM_UPLOADING:
                return sim->stalled_to;
        case SIM_PACKET:
                return place_stalled_to(sim, conn, event->packet->at);
        case SIM_HOP:
                return place_stalled_to(sim, conn, event->a);
        case SIM_RELAY_TICK:
        case SIM_RELAY_ADDED:
        case SIM_RELAY_DROP:
                return sim->relay[event->a].stalled_to;
        case SIM_CLOSED:
                return event->a ? sim->stalled_to : sim->daemon[conn->daemon].stalled_to;
        case SIM_TICK_DAEMON:
        case SIM_CONNECTED:
        case SIM_COMPUTED:
        case SIM_PROGRESS:
        case SIM_DAEMON_SELF:
        case SIM_COMBINE:
                return sim->daemon[event->a].stalled_to;
        default:
                return 0;
        }
}

/* Events keep their order over a standstill, because those that were put off are put off in order. */
static bool put_off(struct sim *sim, const struct sim_event *event)
{
        uint64_t to = stalled_to(sim, event);
        if (to <= sim->now)
                return false;
        struct sim_event *later = sim_at(sim, to - sim->now, event->kind);
        uint64_t at = later->at, seq = later->seq;
        *later = *event;
        later->at = at;
        later->seq = seq;
        return true;
}

static void handle_relay(struct sim *sim, const struct sim_event *event)
{
        switch (event->kind) {
        case SIM_RELAY_TICK:
                sim_relay_tick(sim, event->a, event->b);
                break;
        case SIM_RELAY_ADDED:
                sim_relay_added(sim, event->a, event->b, event->conn - 1, event->task);
                break;
        case SIM_RELAY_DROP:
                if (sim->relay[event->a].boot == event->b)
                        sim_relay_drop(sim, event->a);
                break;
        default:
                sim_relay_start(sim, event->a);
        }
}

static void handle(struct sim *sim, struct sim_event *event)
{
        struct sim_daemon *d = &sim->daemon[event->a < SIM_DAEMONS ? event->a : 0];
        bool mine = d->agent && d->generation == event->b;
        switch (event->kind) {
        case SIM_TICK_SERVER:
                if (sim->core && event->a == sim->n_starts)
                        sim_server_step(sim, &(struct mfl_core_event){.kind = MFL_EV_TICK});
                break;
        case SIM_TICK_DAEMON:
                if (mine)
                        sim_daemon_step(sim, event->a, &(struct mfl_agent_event){.kind = MFL_AGENT_EV_TICK});
                break;
        case SIM_PACKET:
                on_packet(sim, event);
                break;
        case SIM_CONNECTED:
                if (mine)
                        on_connected(sim, event->a);
                break;
        case SIM_CLOSED:
                on_closed(sim, event);
                break;
        case SIM_WORK:
                on_work(sim, event);
                break;
        case SIM_UPLOADING:
                if (sim->core && event->a == sim->n_starts)
                        sim_server_uploading(sim, event->conn);
                break;
        case SIM_COMPUTED:
                if (mine)
                        sim_daemon_computed(sim, event->a, event->task);
                break;
        case SIM_PROGRESS:
                if (mine)
                        sim_daemon_progress(sim, event->a, event->task);
                break;
        case SIM_DAEMON_SELF:
                if (mine)
                        sim_daemon_step(sim, event->a, event->agent);
                break;
        case SIM_COMBINE:
                if (mine)
                        sim_combine_step(sim, event->a, event->task);
                break;
        case SIM_TRAP:
                sim_harm(sim, event->a, event->b);
                break;
        case SIM_FAULT:
                sim_fault(sim);
                break;
        case SIM_SERVER_START:
                sim_server_start(sim);
                break;
        case SIM_DAEMON_START:
                sim_daemon_start(sim, event->a);
                break;
        case SIM_DAEMON_EXIT:
                if (event->b == sim->daemon[event->a].generation)
                        sim_daemon_exited(sim, event->a);
                break;
        case SIM_SCRIPT:
                sim_script(sim, event->a);
                break;
        case SIM_HOP:
                on_hop(sim, event);
                break;
        default:
                handle_relay(sim, event);
        }
}

static bool all_over(const struct sim *sim)
{
        for (uint32_t i = 0; i < sim->n_jobs; i++)
                if (!sim->job[i].over)
                        return false;
        return true;
}

/* Something of a job is still there that nobody will ask for. What was made for an earlier start of the
 * server may stay: the daemon keeps it until it needs the room. */
static bool is_left(const struct sim *sim, const struct sim_daemon *d)
{
        if (sim->twins && d->agent && !mfl_agent_online(d->agent))
                return false; /* it is refused, because the other one of its name lives */
        for (int k = 0; d->agent && k < SIM_RESULTS; k++) {
                const struct sim_result *result = &d->result[k];
                if (result->used && result->task >> 32 == sim->boot &&
                        (result->n_updates || result->published || result->combine.state))
                        return true;
        }
        /* The same holds of a team that will never meet: the mesh gives up in the end. */
        return d->agent && d->computing &&
               (d->team_state != SIM_TEAM_WAITS || d->computing->task >> 32 == sim->boot);
}

static bool is_settled(const struct sim *sim)
{
        for (uint32_t i = 0; i < sim->n_daemons; i++)
                if (is_left(sim, &sim->daemon[i]))
                        return false;
        return sim_relays_settled(sim);
}

/* limit_ms: without a fault, and without a round of a job that is not over. */
static bool is_late(
        const struct sim *sim, uint64_t progress[SIM_JOBS], uint64_t since_ms[SIM_JOBS], uint64_t limit_ms)
{
        bool late = false, all = true;
        for (uint32_t i = 0; i < sim->n_jobs; i++) {
                const struct sim_job *job = &sim->job[i];
                const uint64_t now = job->committed + job->over;
                if (now > progress[i])
                        since_ms[i] = sim->now;
                progress[i] = now;
                all = all && job->over;
                late = late || (!job->over && sim->now >= MFL_MAX(sim->faults_end, since_ms[i]) + limit_ms);
        }
        for (uint32_t i = 0; all && i < sim->n_jobs; i++)
                since_ms[0] = MFL_MAX(since_ms[0], since_ms[i]);
        return late || (all && sim->now >= MFL_MAX(sim->faults_end, since_ms[0]) + limit_ms);
}

static void run_until(
        struct sim *sim, bool (*done)(const struct sim *sim), uint64_t limit_ms, const char *what)
{
        uint64_t progress[SIM_JOBS] = {0}, since_ms[SIM_JOBS] = {0};
        while (!done(sim)) {
                sim_check(sim, sim->n_heap, "nothing left to happen");
                struct sim_event event = pop(sim);
                mfl_assert(event.at >= sim->now);
                sim->now = event.at;
                sim->n_events++;
                sim_check(sim, !is_late(sim, progress, since_ms, limit_ms), "%s", what);
                if (put_off(sim, &event))
                        continue;
                handle(sim, &event);
                free_event(&event);
                if (sim->n_events == sim->inject_at)
                        for (uint32_t i = 0; i < sim->n_daemons; i++)
                                if (sim->inject_daemons >> i & 1)
                                        sim_harm(sim, i, sim->inject_what);
        }
}

void sim_run(struct sim *sim)
{
        sim_setup(sim);
        run_until(sim, all_over, 40000,
                "no round of a job ends within 40 s after its last one, or the last fault");
        if (sim->scenario && sim->scenario < SIM_SWEEP)
                return;
        if (!sim->scenario)
                sim_end_faults(sim);
        run_until(sim, is_settled, 30000, "results are left 30 s after the last job's end");
}
