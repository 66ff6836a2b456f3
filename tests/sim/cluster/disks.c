/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's disks: their files, what they do with messages, and what goes wrong with them. See copies.h. */
#include "tests/sim/cluster/copies_internal.h"

#define RECOVER_MS 20000 /* a disk that is lost, and a commit that counts on it, are not over before */

/* ---- files ---- */

uint32_t sim_file_bytes(uint64_t digest)
{
        return 1 + (uint32_t)(digest * 0x9e3779b97f4a7c15 >> 40) % SIM_PIECES;
}

uint64_t sim_file_byte(uint64_t digest, uint32_t at)
{
        return digest * 0x9e3779b97f4a7c15 + at + 1;
}

bool sim_file_is_right(const struct sim_file *file)
{
        bool same = file->bytes == sim_file_bytes(file->digest);
        for (uint32_t i = 0; same && i < file->bytes; i++)
                same = file->data[i] == sim_file_byte(file->digest, i);
        return same;
}

/* from 0: under its name. */
struct sim_file *sim_file_find(struct sim_disk *d, uint64_t digest, uint32_t from)
{
        for (uint32_t i = 0; i < d->n_files; i++)
                if (d->files[i].digest == digest && d->files[i].from == from)
                        return &d->files[i];
        return NULL;
}

static void remove_file(struct sim_disk *d, struct sim_file *file)
{
        *file = d->files[--d->n_files];
}

/* What nobody needs goes first. */
struct sim_file *sim_file_new(struct sim_copies *c, uint32_t server, uint64_t digest, uint32_t from)
{
        struct sim_disk *d = &c->disk[server];
        for (uint32_t i = 0; i < d->n_files && d->n_files == SIM_FILES;)
                if (!c->needs(c->user, d->files[i].digest)) {
                        memmove(&d->files[i], &d->files[i + 1], (--d->n_files - i) * sizeof d->files[0]);
                        break;
                } else
                        i++;
        mfl_assert(d->n_files < SIM_FILES);
        struct sim_file *file = &d->files[d->n_files++];
        *file = (struct sim_file){.digest = digest, .from = from};
        return file;
}

void sim_file_note(struct sim_copies *c, uint32_t server, uint64_t digest)
{
        const struct sim_file *file = sim_file_find(&c->disk[server], digest, 0);
        struct sim_had *had = c->had;
        if (!file || (!sim_file_is_right(file) && !file->rotten) || !file->synced || !file->name_synced)
                return;
        while (had < c->had + SIM_HAD && had->digest != digest)
                had++;
        if (had == c->had + SIM_HAD) {
                had = &c->had[c->n_had++ % SIM_HAD];
                *had = (struct sim_had){.digest = digest};
        }
        had->servers |= 1u << server;
}

bool sim_copies_held(const struct sim_copies *c, uint64_t digest)
{
        for (uint32_t i = 0; i < SIM_HAD; i++)
                if (c->had[i].digest == digest)
                        return (uint32_t)__builtin_popcount(c->had[i].servers) > c->n / 2;
        return false;
}

void sim_copies_check(struct sim_copies *c, uint64_t digest)
{
        bool there = false;
        for (uint32_t i = 0; i < c->n; i++) {
                const struct sim_file *file = sim_file_find(&c->disk[i], digest, 0);
                there = there || (file && sim_file_is_right(file));
        }
        sim_copies_require(c, there, "a committed model is on no disk");
}

/* ---- what a server gets ---- */

static bool next_op(struct sim_copies *c, uint32_t server)
{
        struct sim_disk *d = &c->disk[server];
        uint64_t delay =
                c->faulty && sim_copies_below(c, 40) == 0 ? sim_copies_below(c, 800) : sim_copies_below(c, 2);
        if (d->n_ops)
                sim_copies_post(c, delay, WORKS, server, 0);
        return d->n_ops != 0;
}

void sim_disk_arrive(struct sim_copies *c, const struct sim_copy_event *e)
{
        struct sim_disk *d = &c->disk[e->server];
        if (d->n_ops == SIM_OPS) /* too busy: as if it had come to nothing */
                return;
        d->ops[d->n_ops++] = e->op;
        if (d->n_ops == 1)
                next_op(c, e->server);
}

static void end_op(struct sim_copies *c, uint32_t server, bool ok)
{
        struct sim_disk *d = &c->disk[server];
        struct sim_op op = d->ops[0];
        memmove(d->ops, d->ops + 1, --d->n_ops * sizeof d->ops[0]);
        op.ok = ok;
        if (ok && op.puts && op.take.durable) {
                const struct sim_file *file = sim_file_find(d, op.digest, 0);
                /* What rots later is another matter. */
                sim_copies_require(c, file && file->synced && file->name_synced,
                        "a copy is told to be durable, and a power cut would take it");
                sim_file_note(c, server, op.digest);
        }
        sim_copies_send(c, server, op.from, ANSWERS, &op);
        next_op(c, server);
}

static void read_piece(struct sim_copies *c, uint32_t server)
{
        struct sim_disk *d = &c->disk[server];
        struct sim_op *op = &d->ops[0];
        const struct sim_file *file = sim_file_find(d, op->digest, 0);
        op->bytes = file ? file->bytes : 0;
        op->n = 0;
        for (uint64_t at = op->offset; file && at < file->bytes && op->n < SIM_PIECE_MAX; at++)
                op->data[op->n++] = file->data[at];
        end_op(c, server, file != NULL);
}

static void write_piece(struct sim_copies *c, struct sim_op *op, struct sim_file *part)
{
        sim_copies_require(c, part->bytes == op->take.offset && part->bytes + op->take.n <= SIM_PIECES,
                "a piece is not written at a part's end");
        for (uint32_t i = 0; i < op->take.n && part->bytes < SIM_PIECES; i++)
                part->data[part->bytes++] = op->data[i];
        part->synced = false;
}

static void name_part(struct sim_disk *d, uint64_t digest, struct sim_file *part)
{
        struct sim_file *old;
        part->from = 0;
        part->name_synced = false;
        for (uint32_t i = 0; i < d->n_files; i++) { /* one of the same name is replaced */
                old = &d->files[i];
                if (old != part && old->digest == digest && !old->from) {
                        *old = *part;
                        remove_file(d, part);
                        return;
                }
        }
}

void sim_disk_work(struct sim_copies *c, uint32_t server)
{
        struct sim_disk *d = &c->disk[server];
        struct sim_op *op = &d->ops[0];
        struct mfl_copy_take_event event = {.kind = MFL_COPY_TAKE_EV_DONE};
        if (!op->puts) {
                read_piece(c, server);
                return;
        }
        const uint32_t from = op->from + 1;
        struct sim_file *whole = sim_file_find(d, op->digest, 0), *part = sim_file_find(d, op->digest, from);
        enum mfl_copy_take_action done = op->take.doing;
        if (!op->begun) {
                event.kind = MFL_COPY_TAKE_EV_BEGIN;
                event.whole = whole && whole->bytes == op->take.bytes;
                if (!event.whole && d->full) {
                        end_op(c, server, false);
                        return;
                }
                if (!event.whole && !part)
                        part = sim_file_new(c, server, op->digest, from);
                event.part = part ? part->bytes : 0;
                op->begun = true;
        } else if (done == MFL_COPY_TAKE_CUT) {
                part->bytes = 0;
        } else if (done == MFL_COPY_TAKE_WRITE) {
                write_piece(c, op, part);
        } else if (done == MFL_COPY_TAKE_SYNC) {
                part->synced = true;
        } else if (done == MFL_COPY_TAKE_CHECK) {
                event.kind = MFL_COPY_TAKE_EV_CHECKED;
                event.ok = sim_file_is_right(part);
        } else if (done == MFL_COPY_TAKE_NAME) {
                name_part(d, op->digest, part);
        } else if (done == MFL_COPY_TAKE_SYNC_NAME && whole) {
                whole->name_synced = true;
        }
        enum mfl_copy_take_action next = mfl_copy_take_step(&op->take, &event);
        if (next == MFL_COPY_TAKE_DROP && part)
                remove_file(d, part);
        if (next == MFL_COPY_TAKE_DROP || next == MFL_COPY_TAKE_ANSWER)
                end_op(c, server, next == MFL_COPY_TAKE_ANSWER);
        else
                next_op(c, server);
}

/* ---- faults ---- */

void sim_copies_start(struct sim_copies *c, uint32_t server)
{
        c->disk[server].up = true;
}

static void fail_power(struct sim_copies *c, struct sim_disk *d)
{
        for (uint32_t i = 0; i < d->n_files;) {
                struct sim_file *file = &d->files[i];
                if (!file->synced && file->bytes &&
                        sim_copies_below(c, 2)) /* its length was written, and its bytes were not */
                        file->data[file->bytes - 1] = 0;
                else if (!file->synced)
                        file->bytes = 0;
                if (!file->from && !file->name_synced) { /* the name was not written */
                        remove_file(d, file);
                        continue;
                }
                i++;
        }
}

void sim_copies_kill(struct sim_copies *c, uint32_t server, bool power)
{
        struct sim_disk *d = &c->disk[server];
        d->up = false;
        d->boot++;
        d->n_ops = 0;
        memset(d->puts, 0, sizeof d->puts);
        memset(d->lines, 0, sizeof d->lines);
        d->fetch.busy = false;
        if (power)
                fail_power(c, d);
}

void sim_copies_recovered(struct sim_copies *c, uint32_t server)
{
        struct sim_disk *d = &c->disk[server];
        for (uint32_t i = 0; i < d->n_files; i++) /* it may have looked before that rotted */
                if (d->files[i].rotten && c->needs(c->user, d->files[i].digest))
                        return;
        if (d->lost && c->now >= d->lost_at + RECOVER_MS)
                d->lost = false;
}

/* As long as the others have all. */
static bool may_lose(struct sim_copies *c, uint32_t server)
{
        for (uint32_t i = 0; i < c->n; i++)
                if (c->disk[i].lost && i != server)
                        return false;
        c->disk[server].lost = true;
        c->disk[server].lost_at = c->now;
        c->n_lost++;
        return true;
}

void sim_copies_fault(struct sim_copies *c, uint32_t *ret_wiped)
{
        const uint32_t i = sim_copies_below(c, c->n), k = sim_copies_below(c, c->n);
        struct sim_disk *d = &c->disk[i];
        *ret_wiped = SIM_SERVERS;
        switch (sim_copies_below(c, 7)) {
        case 0: /* one way, or both */
                c->dark_until[i][k] = c->now + sim_copies_below(c, 8000);
                if (sim_copies_below(c, 2))
                        c->dark_until[k][i] = c->dark_until[i][k];
                break;
        case 1:
                d->stalled_until = c->now + sim_copies_below(c, 6000);
                break;
        case 2:
                d->full = !d->full;
                break;
        case 3: /* a byte of each second file */
                for (uint32_t f = 0; f < d->n_files && (f || may_lose(c, i)); f += 2)
                        if (d->files[f].bytes) {
                                d->files[f].rotten |= sim_file_is_right(&d->files[f]);
                                d->files[f].data[0] ^= 1;
                        }
                break;
        case 4:
                if (!may_lose(c, i))
                        break;
                *ret_wiped = i;
                d->n_files = 0;
                c->kill(c->user, i);
                break;
        case 5:
                c->kill(c->user, i);
                fail_power(c, d);
                break;
        default:
                d->full = false;
        }
}

void sim_copies_heal(struct sim_copies *c)
{
        for (uint32_t i = 0; i < c->n; i++) {
                c->disk[i].full = false;
                c->disk[i].stalled_until = 0;
        }
        memset(c->dark_until, 0, sizeof c->dark_until);
}

void sim_copies_check_lines(struct sim_copies *c)
{
        for (uint32_t i = 0; i < c->n; i++)
                for (uint32_t k = 0; k < c->n; k++)
                        sim_copies_require(c,
                                !c->disk[i].lines[k].busy || c->now < c->disk[i].lines[k].since + 20000,
                                "a file is on its way for ever");
}
