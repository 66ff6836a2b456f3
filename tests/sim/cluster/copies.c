/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's copies: messages between servers, what a leader sends, and what a server brings. See copies.h. */
#include "tests/sim/cluster/copies_internal.h"

#define ANSWER_MS 1000
#define PATIENCE_MS 1000
#define LOOK_MS 200

uint32_t sim_copies_below(struct sim_copies *c, uint32_t n)
{
        return mfl_rng_below(&c->rng, n);
}

void sim_copies_require(struct sim_copies *c, bool holds, const char *rule)
{
        if (!holds && !c->broken)
                c->broken = rule;
}

struct sim_copy_event *sim_copies_post(
        struct sim_copies *c, uint64_t delay, int kind, uint32_t server, uint32_t other)
{
        mfl_assert(c->n_queue < SIM_COPY_EVENTS);
        struct sim_copy_event *event = &c->queue[c->n_queue++];
        *event = (struct sim_copy_event){.at = c->now + delay,
                .number = ++c->number,
                .boot = c->disk[server].boot,
                .kind = kind,
                .server = server,
                .other = other};
        return event;
}

/* ---- messages ---- */

static uint32_t index_of(uint32_t own, uint32_t other)
{
        return other < own ? other : other - 1;
}

static uint64_t delay_of(struct sim_copies *c)
{
        return c->faulty && sim_copies_below(c, 10) == 0 ? 50 + sim_copies_below(c, 1500)
                                                         : 1 + sim_copies_below(c, 4);
}

/* At the other one, unless it is lost on the way. */
void sim_copies_send(struct sim_copies *c, uint32_t from, uint32_t to, int kind, const struct sim_op *op)
{
        bool lost = c->now < c->dark_until[from][to] || (c->faulty && sim_copies_below(c, 50) == 0);
        if (!lost)
                sim_copies_post(c, delay_of(c), kind, to, from)->op = *op;
}

static void ask(struct sim_copies *c, uint32_t server, uint32_t to, struct sim_op *op)
{
        op->from = server;
        op->from_boot = c->disk[server].boot;
        op->request = ++c->request;
        sim_copies_send(c, server, to, ARRIVES, op);
        sim_copies_post(c, ANSWER_MS, LATE, server, to)->op = *op;
}

/* ---- what a leader sends ---- */

static void release(struct sim_put *put)
{
        if (--put->users == 0)
                put->used = false;
}

static void verdict(struct sim_copies *c, uint32_t server, struct sim_put *put, bool give_up)
{
        if (!put->used || !put->waits || !put->own)
                return;
        const enum mfl_copy_verdict v = mfl_copy_verdict(&put->tally);
        if (v == MFL_COPY_WAIT && !give_up)
                return;
        const uint64_t token = put->token;
        put->waits = false;
        release(put);
        c->put_done(c->user, server, token, v == MFL_COPY_HELD);
}

static void send_piece(struct sim_copies *c, uint32_t server, uint32_t to)
{
        struct sim_disk *d = &c->disk[server];
        struct sim_line *line = &d->lines[to];
        const struct sim_put *put = &d->puts[line->put];
        struct sim_op op = {.puts = true,
                .digest = put->digest,
                .take = {.bytes = put->bytes, .offset = line->give.offset, .n = line->give.n}};
        for (uint32_t i = 0; i < line->give.n; i++)
                op.data[i] = sim_file_byte(put->digest, (uint32_t)line->give.offset + i);
        ask(c, server, to, &op);
        line->request = op.request;
}

static void next_file(struct sim_copies *c, uint32_t server, uint32_t to)
{
        struct sim_line *line = &c->disk[server].lines[to];
        if (line->busy || !line->n_queue)
                return;
        line->busy = true;
        line->since = c->now;
        line->put = line->queue[0];
        memmove(line->queue, line->queue + 1, --line->n_queue * sizeof line->queue[0]);
        mfl_copy_give_init(&line->give, c->disk[server].puts[line->put].bytes, SIM_PIECE_MAX);
        send_piece(c, server, to);
}

static void end_file(struct sim_copies *c, uint32_t server, uint32_t to, bool ok)
{
        struct sim_disk *d = &c->disk[server];
        struct sim_line *line = &d->lines[to];
        struct sim_put *put = &d->puts[line->put];
        line->busy = false;
        line->request = 0;
        d->moved = c->now;
        mfl_copy_sent(&put->tally, index_of(server, to), ok);
        verdict(c, server, put, false);
        release(put);
        next_file(c, server, to);
}

static void on_taken(struct sim_copies *c, uint32_t server, uint32_t to, const struct sim_op *op)
{
        struct sim_disk *d = &c->disk[server];
        struct sim_line *line = &d->lines[to];
        if (!op->ok) {
                end_file(c, server, to, false);
                return;
        }
        d->moved = c->now;
        enum mfl_copy_give_action action = mfl_copy_give_step(&line->give, op->take.have, op->take.durable);
        if (action == MFL_COPY_GIVE_PIECE)
                send_piece(c, server, to);
        else
                end_file(c, server, to, action == MFL_COPY_GIVE_DONE);
}

static struct sim_put *open_put(struct sim_disk *d, uint64_t digest, uint32_t others)
{
        for (uint32_t i = 0; i < SIM_PUTS; i++)
                if (d->puts[i].used && d->puts[i].digest == digest)
                        return &d->puts[i];
        for (uint32_t i = 0; i < SIM_PUTS; i++)
                if (!d->puts[i].used) {
                        d->puts[i] = (struct sim_put){.used = true,
                                .digest = digest,
                                .bytes = sim_file_bytes(digest),
                                .tally.n = others};
                        return &d->puts[i];
                }
        return NULL;
}

void sim_copies_put(struct sim_copies *c, uint32_t server, uint64_t digest, uint64_t token)
{
        struct sim_disk *d = &c->disk[server];
        struct sim_put *put = d->full ? NULL : open_put(d, digest, c->n - 1);
        if (!put) { /* as many files as that are on their way */
                c->put_done(c->user, server, token, false);
                return;
        }
        put->users++;
        put->waits = true;
        put->own = false;
        put->token = token;
        put->began = c->now;
        c->n_put++;
        uint32_t i = (uint32_t)(put - d->puts);
        sim_copies_post(
                c, sim_file_find(d, digest, 0) ? 1 : 1 + sim_copies_below(c, 20), OWN_NAMED, server, i);
        sim_copies_post(c, LOOK_MS, LOOK, server, i)->op.request = token;
}

static void fill(struct sim_file *file)
{
        file->bytes = sim_file_bytes(file->digest);
        for (uint32_t i = 0; i < file->bytes; i++)
                file->data[i] = sim_file_byte(file->digest, i);
        file->synced = true;
}

static void on_own(struct sim_copies *c, const struct sim_copy_event *e)
{
        struct sim_disk *d = &c->disk[e->server];
        struct sim_put *put = &d->puts[e->other];
        struct sim_file *file = sim_file_find(d, put->digest, 0);
        if (e->kind == OWN_NAMED) {
                if (!file)
                        fill(sim_file_new(c, e->server, put->digest, 0));
                sim_copies_post(c, 1 + sim_copies_below(c, 5), OWN_SYNCED, e->server, e->other);
                return;
        }
        if (!file)
                return;
        file->name_synced = put->own = true;
        sim_file_note(c, e->server, put->digest);
        for (uint32_t to = 0; to < c->n; to++) {
                struct sim_line *line = &d->lines[to];
                if (to == e->server || !mfl_copy_wants(&put->tally, index_of(e->server, to)))
                        continue;
                if (line->n_queue == SIM_PUTS) {
                        mfl_copy_sent(&put->tally, index_of(e->server, to), false);
                        continue;
                }
                put->users++;
                line->queue[line->n_queue++] = e->other;
                next_file(c, e->server, to);
        }
        verdict(c, e->server, put, false);
}

static void look(struct sim_copies *c, const struct sim_copy_event *e)
{
        struct sim_disk *d = &c->disk[e->server];
        struct sim_put *put = &d->puts[e->other];
        if (!put->used || !put->waits || put->token != e->op.request)
                return;
        const bool over = c->now >= MFL_MAX(d->moved, put->began) + PATIENCE_MS;
        sim_copies_post(c, LOOK_MS, LOOK, e->server, e->other)->op.request = e->op.request;
        verdict(c, e->server, put, over);
}

/* ---- what a server brings ---- */

static void ask_source(struct sim_copies *c, uint32_t server)
{
        struct sim_fetch *fetch = &c->disk[server].fetch;
        if (fetch->source == server)
                fetch->source++;
        if (fetch->source >= c->n) { /* nobody who answers has it: again later */
                fetch->busy = false;
                return;
        }
        struct sim_op op = {.digest = fetch->digest, .offset = fetch->core.offset};
        ask(c, server, fetch->source, &op);
        fetch->request = op.request;
}

static void next_source(struct sim_copies *c, uint32_t server)
{
        struct sim_fetch *fetch = &c->disk[server].fetch;
        fetch->source++;
        fetch->core = (struct mfl_copy_fetch){.bytes = sim_file_bytes(fetch->digest)};
        ask_source(c, server);
}

static void on_piece(struct sim_copies *c, uint32_t server, const struct sim_op *op)
{
        struct sim_fetch *fetch = &c->disk[server].fetch;
        struct mfl_copy_fetch_event event = {MFL_COPY_FETCH_EV_PIECE, op->bytes, op->n, false};
        if (!op->ok) {
                next_source(c, server);
                return;
        }
        enum mfl_copy_fetch_action action = mfl_copy_fetch_step(&fetch->core, &event);
        if (action == MFL_COPY_FETCH_WRITE) {
                for (uint32_t i = 0; i < op->n; i++)
                        fetch->data[fetch->core.offset + i] = op->data[i];
                event.kind = MFL_COPY_FETCH_EV_WRITTEN;
                action = mfl_copy_fetch_step(&fetch->core, &event);
        }
        if (action == MFL_COPY_FETCH_CHECK) {
                event.kind = MFL_COPY_FETCH_EV_CHECKED;
                event.ok = true;
                for (uint32_t i = 0; i < fetch->core.bytes; i++)
                        event.ok = event.ok && fetch->data[i] == sim_file_byte(fetch->digest, i);
                action = mfl_copy_fetch_step(&fetch->core, &event);
        }
        if (action == MFL_COPY_FETCH_ASK)
                ask_source(c, server);
        else if (action == MFL_COPY_FETCH_KEEP)
                sim_copies_post(c, 1, KEPT_NAMED, server, 0);
        else
                next_source(c, server);
}

static void on_kept(struct sim_copies *c, const struct sim_copy_event *e)
{
        struct sim_disk *d = &c->disk[e->server];
        struct sim_file *file = sim_file_find(d, d->fetch.digest, 0);
        if (e->kind == KEPT_NAMED) {
                if (!file)
                        file = sim_file_new(c, e->server, d->fetch.digest, 0);
                file->bytes = (uint32_t)d->fetch.core.bytes;
                memcpy(file->data, d->fetch.data, sizeof file->data);
                file->rotten = false;
                file->synced = true;
                sim_copies_require(c, sim_file_is_right(file), "a server keeps a file that is not right");
                sim_copies_post(c, 1, KEPT_SYNCED, e->server, 0);
                return;
        }
        if (file)
                file->name_synced = true;
        c->n_fetched++;
        d->fetch.busy = false;
}

bool sim_copies_get(struct sim_copies *c, uint32_t server, uint64_t digest)
{
        struct sim_disk *d = &c->disk[server];
        struct sim_file *file = sim_file_find(d, digest, 0);
        if (file && sim_file_is_right(file) && file->name_synced)
                return true;
        if (d->fetch.busy || d->full)
                return false;
        if (file && sim_file_is_right(file)) {
                file->name_synced = true;
                return true;
        }
        d->fetch = (struct sim_fetch){
                .busy = true, .digest = digest, .core.bytes = sim_file_bytes(digest), .source = 0};
        sim_copies_post(c, 1, ASKS, server, 0);
        return false;
}

/* ---- events ---- */

static uint32_t first_event(const struct sim_copies *c)
{
        uint32_t first = 0;
        for (uint32_t i = 1; i < c->n_queue; i++)
                if (c->queue[i].at < c->queue[first].at ||
                        (c->queue[i].at == c->queue[first].at && c->queue[i].number < c->queue[first].number))
                        first = i;
        return first;
}

uint64_t sim_copies_next(const struct sim_copies *c)
{
        return c->n_queue ? c->queue[first_event(c)].at : UINT64_MAX;
}

static void on_answer(struct sim_copies *c, const struct sim_copy_event *e)
{
        struct sim_disk *d = &c->disk[e->server];
        struct sim_line *line = &d->lines[e->other];
        const bool late = e->kind == LATE;
        if (e->op.from_boot != d->boot)
                return;
        if (e->op.puts && line->busy && line->request == e->op.request)
                late ? end_file(c, e->server, e->other, false) : on_taken(c, e->server, e->other, &e->op);
        if (!e->op.puts && d->fetch.busy && d->fetch.request == e->op.request) {
                d->fetch.request = 0;
                late ? next_source(c, e->server) : on_piece(c, e->server, &e->op);
        }
}

static void run(struct sim_copies *c, const struct sim_copy_event *e)
{
        switch (e->kind) {
        case OWN_NAMED:
        case OWN_SYNCED:
                on_own(c, e);
                break;
        case LOOK:
                look(c, e);
                break;
        case ARRIVES:
                sim_disk_arrive(c, e);
                break;
        case WORKS:
                sim_disk_work(c, e->server);
                break;
        case ANSWERS:
        case LATE:
                on_answer(c, e);
                break;
        case ASKS:
                ask_source(c, e->server);
                break;
        default:
                on_kept(c, e);
        }
}

void sim_copies_step(struct sim_copies *c)
{
        const uint32_t first = first_event(c);
        struct sim_copy_event e = c->queue[first];
        const struct sim_disk *d = &c->disk[e.server];
        c->queue[first] = c->queue[--c->n_queue];
        c->now = MFL_MAX(c->now, e.at);
        const bool passes = e.kind == ARRIVES; /* it reaches whoever is there */
        if (!d->up || (!passes && e.boot != d->boot))
                return;
        const uint64_t until =
                e.kind == WORKS ? MFL_MAX(d->stopped_until, d->stalled_until) : d->stopped_until;
        if (c->now < until) {
                e.at = until;
                c->queue[c->n_queue++] = e;
                return;
        }
        run(c, &e);
        if (c->faulty && sim_copies_below(c, 2000) == 0) /* dies between two steps */
                c->kill(c->user, e.server);
}
