/* SPDX-License-Identifier: Apache-2.0 */
/* How params arrive. A *part* is what one digest names: a version of a job's moving params, or a job's frozen
 * params. The agent knows each part's state and how far it is; the shell holds its bytes under its number.
 *
 *              +----------------- not found -----------------+
 *              |                                             v
 *   EMPTY --> LOOK <--> WAIT ------ too late, or gone ----> ROOM --> HELD --> FETCH --> CHECK --> READY
 *     |        |          |                                 ^  |      ^ ^-cut---'        |
 *     |        |          '--- another task: EMPTY          |  |      '--wrong digest----'
 *     |        '----- found: READY                          |  '-----> no memory: FAILED
 *     '-----------------------------------------------------'
 *
 * One task at a time seeks its params: first the frozen part, then the moving one. If its task names
 * another daemon of the node, the agent looks for that daemon's copy until it is there, that daemon is dead,
 * or the wait has taken too long; then it asks the server. A lost connection ends the wait and the download,
 * and the next download goes on where that one ended. A download that stands still is asked for again.
 *
 * Kept: two versions of a job's moving params, and its frozen params as long as its file. A new version takes
 * the place of the one that was used longest ago.
 */
#include "client/agent/agent_internal.h"

#define VERSIONS_MAX 2u
#define WAIT_MS 5000u
#define WAIT_FLOATS_PER_MS (16u * 1024 * 1024 / 1000 / sizeof(float))
#define PAUSE_MAX_MS 20u
#define STILL_MS 10000u /* without a piece of the download */
#define TRIES_MAX 3u    /* downloads whose digest is wrong */

#define TO(state) (1u << (state))
static const uint16_t edges[PART_STATES] = {
        [PART_EMPTY] = TO(PART_LOOK) | TO(PART_ROOM),
        [PART_LOOK] = TO(PART_WAIT) | TO(PART_READY),
        [PART_WAIT] = TO(PART_LOOK) | TO(PART_ROOM) | TO(PART_EMPTY),
        [PART_ROOM] = TO(PART_HELD) | TO(PART_FAILED),
        [PART_HELD] = TO(PART_FETCH) | TO(PART_CHECK),
        [PART_FETCH] = TO(PART_HELD) | TO(PART_CHECK) | TO(PART_FAILED),
        [PART_CHECK] = TO(PART_READY) | TO(PART_HELD) | TO(PART_FAILED),
        [PART_READY] = 0,
        [PART_FAILED] = 0,
};

static void move(struct agent_part *part, enum agent_part_state to)
{
        mfl_assert(to < PART_STATES && edges[part->state] & TO(to));
        part->state = to;
}

static void fail(struct agent_part *part, bool permanent, const char *reason)
{
        move(part, PART_FAILED);
        part->permanent = permanent;
        mfl_strcpy(part->reason, sizeof part->reason, reason);
}

/* ---- the list ---- */

static struct agent_part *find_number(const struct mfl_agent *agent, uint64_t number)
{
        for (struct agent_part *part = agent->parts; part; part = part->next)
                if (part->number == number)
                        return part;
        return NULL;
}

static struct agent_part *find_digest(const struct mfl_agent *agent, const char *job, const uint8_t *digest)
{
        for (struct agent_part *part = agent->parts; part; part = part->next)
                if (memcmp(part->digest, digest, MFL_DIGEST_BYTES) == 0 && strcmp(part->job, job) == 0)
                        return part;
        return NULL;
}

static void unlink_part(struct mfl_agent *agent, struct agent_part *part)
{
        struct agent_part **at = &agent->parts;
        while (*at != part)
                at = &(*at)->next;
        *at = part->next;
        free(part);
}

static void drop_part(struct mfl_agent *agent, struct agent_part *part)
{
        mfl_agent_act(agent, MFL_AGENT_ACT_PARAMS_FREE)->part = part->number;
        unlink_part(agent, part);
}

static struct agent_part *new_part(
        struct mfl_agent *agent, const char *job, const uint8_t *digest, uint64_t n, bool is_frozen)
{
        struct agent_part *part = mfl_calloc(1, sizeof *part);
        if (!part) {
                agent->error = -ENOMEM;
                return NULL;
        }
        *part = (struct agent_part){.number = ++agent->part_numbers,
                .n = n,
                .is_frozen = is_frozen,
                .hash_end = AGENT_NEVER,
                .used = ++agent->part_clock,
                .next = agent->parts};
        mfl_strcpy(part->job, sizeof part->job, job);
        memcpy(part->digest, digest, MFL_DIGEST_BYTES);
        agent->parts = part;
        return part;
}

/* Two tasks that name one digest with different sizes can't both be right: the newer one counts, and its
 * digest will tell. NULL: no memory. */
static struct agent_part *get_part(struct mfl_agent *agent, const char *job, const uint8_t *digest,
        uint64_t n, const struct agent_part *frozen, bool is_frozen)
{
        struct agent_part *part = find_digest(agent, job, digest);
        uint64_t before = frozen ? frozen->number : 0;
        if (part && (part->n != n || part->frozen != before || part->is_frozen != is_frozen)) {
                drop_part(agent, part);
                part = NULL;
        }
        if (!part)
                part = new_part(agent, job, digest, n, is_frozen);
        if (part)
                part->frozen = before;
        return part;
}

/* A running task reads it, or the next one is about to. */
static bool is_read(const struct mfl_agent *agent, const struct agent_part *part)
{
        for (const struct agent_task *task = agent->tasks; task; task = task->next)
                if ((task->state == TASK_READY || task->state == TASK_COMPUTE || task->state == TASK_ABORT) &&
                        strcmp(task->task.job, part->job) == 0 &&
                        memcmp(task->task.params_digest, part->digest, MFL_DIGEST_BYTES) == 0)
                        return true;
        return false;
}

/* The least recently used version of the job besides `keep`; NULL: no version has to go. */
static struct agent_part *find_surplus(const struct mfl_agent *agent, const struct agent_part *keep)
{
        uint32_t n_versions = 0;
        struct agent_part *oldest = NULL;
        for (struct agent_part *part = agent->parts; part; part = part->next) {
                if (part == keep || part->is_frozen || strcmp(part->job, keep->job) != 0)
                        continue;
                n_versions++;
                if (!oldest || part->used < oldest->used)
                        oldest = part;
        }
        return n_versions < VERSIONS_MAX || keep->is_frozen ? NULL : oldest;
}

/* Makes room for one more version of a job: returns the number of the part that has to go, 0 if none has. A
 * task that reads it keeps its bytes until its end. */
static uint64_t evict(struct mfl_agent *agent, const struct agent_part *keep)
{
        uint64_t number = 0;
        for (struct agent_part *part; (part = find_surplus(agent, keep));) {
                if (number) /* one that was sought from another daemon comes on top */
                        mfl_agent_act(agent, MFL_AGENT_ACT_PARAMS_FREE)->part = number;
                number = part->number;
                unlink_part(agent, part);
        }
        return number;
}

void mfl_agent_params_forget(struct mfl_agent *agent, const char *job)
{
        for (struct agent_part *part = agent->parts, *next; part; part = next) {
                next = part->next;
                if (strcmp(part->job, job) == 0)
                        drop_part(agent, part);
        }
}

void mfl_agent_params_free(struct mfl_agent *agent)
{
        while (agent->parts)
                unlink_part(agent, agent->parts);
}

/* ---- orders ---- */

static struct mfl_agent_action *order(
        struct mfl_agent *agent, enum mfl_agent_action_kind kind, const struct agent_part *part)
{
        struct mfl_agent_action *action = mfl_agent_act(agent, kind);
        action->part = part->number;
        action->n_floats = part->n;
        action->frozen_part = part->frozen;
        memcpy(action->digest, part->digest, MFL_DIGEST_BYTES);
        mfl_strcpy(action->job, sizeof action->job, part->job);
        return action;
}

static void order_room(struct mfl_agent *agent, struct agent_part *part)
{
        move(part, PART_ROOM);
        part->from = 0;
        uint64_t reuse = evict(agent, part);
        order(agent, MFL_AGENT_ACT_PARAMS_ROOM, part)->reuse = reuse;
}

static void order_look(struct mfl_agent *agent, struct agent_part *part, const struct mfl_task *task)
{
        move(part, PART_LOOK);
        struct mfl_agent_action *action = order(agent, MFL_AGENT_ACT_PARAMS_LOOK, part);
        action->from = part->from;
        action->task_number = task->task;
}

static void begin_look(
        struct mfl_agent *agent, struct agent_part *part, const struct mfl_task *task, uint64_t from)
{
        part->from = from;
        part->since_ms = agent->now_ms;
        part->deadline_ms = agent->now_ms + WAIT_MS + part->n / WAIT_FLOATS_PER_MS;
        order_look(agent, part, task);
}

/* The newest version of the job's params that is there: the server may say how the others differ from it. */
static const struct agent_part *find_base(const struct mfl_agent *agent, const struct agent_part *part)
{
        const struct agent_part *base = NULL;
        for (const struct agent_part *other = agent->parts; other && !part->is_frozen; other = other->next)
                if (other->state == PART_READY && !other->is_frozen && other->n == part->n &&
                        other->frozen == part->frozen && !strcmp(other->job, part->job) &&
                        (!base || other->used > base->used))
                        base = other;
        return base;
}

static void ask_server(struct mfl_agent *agent, struct agent_part *part)
{
        struct mfl_msg *msg = mfl_agent_send(agent, MFL_MSG_PARAMS_GET);
        mfl_strcpy(msg->params.job, sizeof msg->params.job, part->job);
        memcpy(msg->params.digest, part->digest, MFL_DIGEST_BYTES);
        msg->params.offset = part->have;
        const struct agent_part *base = find_base(agent, part);
        msg->params.has_base = base != NULL;
        if (base)
                memcpy(msg->params.base, base->digest, MFL_DIGEST_BYTES);
        part->piece_ms = agent->now_ms;
}

/* The server sends one part at a time: a new request replaces the one before. */
static void fetch(struct mfl_agent *agent, struct agent_part *part)
{
        for (struct agent_part *other = agent->parts; other; other = other->next)
                if (other->state == PART_FETCH)
                        move(other, PART_HELD);
        move(part, PART_FETCH);
        ask_server(agent, part);
}

/* What has arrived is hashed while the rest still comes, one stretch at a time. */
static void hash_on(struct mfl_agent *agent, struct agent_part *part)
{
        if (part->hash_end != AGENT_NEVER || (part->hashed == part->have && part->state != PART_CHECK))
                return;
        part->hash_end = part->have;
        struct mfl_agent_action *action = order(agent, MFL_AGENT_ACT_PARAMS_HASH, part);
        action->offset = part->hashed;
        action->n_floats = part->have - part->hashed;
}

static void check(struct mfl_agent *agent, struct agent_part *part)
{
        move(part, PART_CHECK);
        hash_on(agent, part);
}

/* A daemon that is to have the params for its node copies them to where the others can read them, if they are
 * not there yet. */
static void share(struct mfl_agent *agent, const struct agent_part *part, const struct mfl_task *task)
{
        bool fetches = task && task->params_from == agent->options.info.instance;
        order(agent, MFL_AGENT_ACT_PARAMS_SHARE, part)->make = fetches;
}

/* ---- a task's params ---- */

/* The daemon of the node whose copy the task reads; 0: none. */
static uint64_t other_daemon(const struct mfl_agent *agent, const struct mfl_task *task)
{
        return task->params_from == agent->options.info.instance ? 0 : task->params_from;
}

static void go_on_waiting(
        struct mfl_agent *agent, struct agent_part *part, const struct mfl_task *task, uint64_t from)
{
        bool changed = part->from != from;
        if (changed && from)
                begin_look(agent, part, task, from);
        else if (changed || agent->now_ms >= part->deadline_ms)
                order_room(agent, part);
        else if (agent->now_ms >= part->look_ms)
                order_look(agent, part, task);
}

/* Does what the part needs next, as far as it can be done now. */
static void drive(struct mfl_agent *agent, struct agent_part *part, const struct mfl_task *task)
{
        uint64_t from = part->n ? other_daemon(agent, task) : 0;
        if (part->state == PART_EMPTY && from)
                begin_look(agent, part, task, from);
        else if (part->state == PART_EMPTY)
                order_room(agent, part);
        else if (part->state == PART_WAIT)
                go_on_waiting(agent, part, task, from);
        else if (part->state == PART_HELD && part->have == part->n)
                check(agent, part);
        else if (part->state == PART_HELD && agent->state == AGENT_ONLINE)
                fetch(agent, part);
        else if (part->state == PART_FETCH && agent->now_ms >= part->piece_ms + STILL_MS)
                ask_server(agent, part);
}

/* The part that the task lacks, or its moving one if it lacks none. NULL: no memory. */
static struct agent_part *next_part(struct mfl_agent *agent, const struct mfl_task *task)
{
        struct agent_part *frozen = NULL;
        if (task->n_frozen) {
                frozen = get_part(agent, task->job, task->frozen_digest, task->n_frozen, NULL, true);
                if (!frozen || frozen->state != PART_READY)
                        return frozen;
        }
        return get_part(
                agent, task->job, task->params_digest, task->n_params - task->n_frozen, frozen, false);
}

static void open_part(struct mfl_agent *agent, const char *job, const uint8_t *digest)
{
        struct agent_part *part = find_digest(agent, job, digest);
        if (!part)
                return;
        part->used = ++agent->part_clock;
        if (part->state == PART_WAIT)
                move(part, PART_EMPTY);
        else if (part->state == PART_FAILED) /* for a task that was cancelled meanwhile */
                drop_part(agent, part);
}

void mfl_agent_params_open(struct mfl_agent *agent, struct agent_task *task)
{
        const struct mfl_task *t = &task->task;
        mfl_agent_task_move(task, TASK_PARAMS);
        open_part(agent, t->job, t->params_digest);
        if (t->n_frozen)
                open_part(agent, t->job, t->frozen_digest);
}

enum agent_arrival mfl_agent_params_seek(
        struct mfl_agent *agent, struct agent_task *task, struct agent_failure *ret_failure)
{
        mfl_assert(task->state == TASK_PARAMS);
        const struct mfl_task *t = &task->task;
        struct agent_part *part = next_part(agent, t);
        if (!part)
                return ARRIVAL_GOES_ON; /* no memory: the step fails */
        drive(agent, part, t);
        if (part->state == PART_FAILED) {
                *ret_failure = (struct agent_failure){.permanent = part->permanent};
                mfl_strcpy(ret_failure->reason, sizeof ret_failure->reason, part->reason);
                drop_part(agent, part);
                return ARRIVAL_FAILED;
        }
        if (part->state != PART_READY)
                return ARRIVAL_GOES_ON;
        if (t->n_frozen)
                share(agent, find_number(agent, part->frozen), t);
        share(agent, part, t);
        return ARRIVAL_DONE;
}

/* The next look, the end of a wait, or a download that stands still. */
uint64_t mfl_agent_params_due_ms(const struct mfl_agent *agent, const struct agent_task *task)
{
        const struct mfl_task *t = &task->task;
        const struct agent_part *part = t->n_frozen ? find_digest(agent, t->job, t->frozen_digest) : NULL;
        if (!t->n_frozen || (part && part->state == PART_READY))
                part = find_digest(agent, t->job, t->params_digest);
        if (part && part->state == PART_WAIT)
                return MFL_MIN(part->look_ms, part->deadline_ms);
        return part && part->state == PART_FETCH ? part->piece_ms + STILL_MS : AGENT_NEVER;
}

/* The task's parts, for COMPUTE. */
void mfl_agent_params_name(
        struct mfl_agent *agent, const struct agent_task *task, struct mfl_agent_action *action)
{
        struct agent_part *part = find_digest(agent, task->task.job, task->task.params_digest);
        mfl_assert(part && part->state == PART_READY);
        part->used = ++agent->part_clock;
        action->part = part->number;
        action->frozen_part = part->frozen;
}

/* ---- events ---- */

static void on_room(struct agent_part *part, const struct mfl_agent_event *event)
{
        mfl_assert(part->state == PART_ROOM);
        if (event->ok)
                move(part, PART_HELD);
        else /* a daemon without room for a job's params can't do that job */
                fail(part, true, event->reason);
}

/* The daemon that the copies belong to can write the next version into that memory only when nobody reads it,
 * and new memory for every version costs more than to look at an old version again, should it be wanted. */
static void drop_older_views(struct mfl_agent *agent, const struct agent_part *keep)
{
        for (struct agent_part *part = agent->parts, *next; part; part = next) {
                next = part->next;
                if (part != keep && part->is_view && !part->is_frozen && !is_read(agent, part) &&
                        strcmp(part->job, keep->job) == 0)
                        drop_part(agent, part);
        }
}

/* Looks come often at first, so that small params are found at once, and rarely after a while. */
static void on_looked(struct mfl_agent *agent, struct agent_part *part, const struct mfl_agent_event *event)
{
        mfl_assert(part->state == PART_LOOK);
        if (event->ok) {
                part->is_view = true;
                part->have = part->hashed = part->n;
                move(part, PART_READY);
                if (!part->is_frozen)
                        drop_older_views(agent, part);
                uint64_t evicted = evict(agent, part);
                if (evicted)
                        mfl_agent_act(agent, MFL_AGENT_ACT_PARAMS_FREE)->part = evicted;
                return;
        }
        move(part, PART_WAIT);
        uint64_t pause_ms = 1 + (agent->now_ms - part->since_ms) / 32;
        part->look_ms = agent->now_ms + MFL_MIN(pause_ms, (uint64_t)PAUSE_MAX_MS);
        if (event->gone)
                part->deadline_ms = agent->now_ms;
}

static void on_arrived(struct mfl_agent *agent, struct agent_part *part, const struct mfl_agent_event *event)
{
        if (part->state != PART_FETCH || event->offset != part->have)
                return; /* the connection was lost, or another part was asked for, while it came */
        mfl_assert(event->n_floats && event->n_floats <= part->n - part->have);
        part->have += event->n_floats;
        part->piece_ms = agent->now_ms;
        if (part->have == part->n)
                check(agent, part);
        else
                hash_on(agent, part);
}

static void on_hashed(struct mfl_agent *agent, struct agent_part *part, const struct mfl_agent_event *event)
{
        mfl_assert(part->hash_end != AGENT_NEVER && part->hash_end <= part->have);
        part->hashed = part->hash_end;
        part->hash_end = AGENT_NEVER;
        if (part->state != PART_CHECK || part->hashed < part->n) {
                hash_on(agent, part);
        } else if (event->ok) {
                move(part, PART_READY);
                share(agent, part, NULL);
        } else if (++part->tries == TRIES_MAX) {
                fail(part, false, "the params came with a wrong digest each time");
        } else {
                part->have = part->hashed = 0;
                move(part, PART_HELD);
        }
}

void mfl_agent_params_event(struct mfl_agent *agent, const struct mfl_agent_event *event)
{
        struct agent_part *part = find_number(agent, event->part);
        if (!part)
                return; /* it was evicted or forgotten while the shell was at it */
        switch (event->kind) {
        case MFL_AGENT_EV_PARAMS_ROOM:
                on_room(part, event);
                break;
        case MFL_AGENT_EV_PARAMS_LOOKED:
                on_looked(agent, part, event);
                break;
        case MFL_AGENT_EV_PARAMS_ARRIVED:
                on_arrived(agent, part, event);
                break;
        default:
                on_hashed(agent, part, event);
        }
}

void mfl_agent_params_heard(struct mfl_agent *agent, uint64_t number)
{
        struct agent_part *part = find_number(agent, number);
        if (part && part->state == PART_FETCH)
                part->piece_ms = agent->now_ms;
}

void mfl_agent_params_gone(struct mfl_agent *agent, const struct mfl_msg *msg)
{
        struct agent_part *part = find_digest(agent, msg->params.job, msg->params.digest);
        if (part && part->state == PART_FETCH)
                fail(part, false, "the server no longer has its params");
}

void mfl_agent_params_lost(struct mfl_agent *agent)
{
        for (struct agent_part *part = agent->parts; part; part = part->next)
                if (part->state == PART_FETCH)
                        move(part, PART_HELD);
}

int mfl_agent_params_place(
        const struct mfl_agent *agent, const struct mfl_agent_piece *piece, uint64_t *ret_part)
{
        const struct agent_part *part = find_digest(agent, piece->job, piece->digest);
        if (!part || part->state != PART_FETCH || piece->offset != part->have)
                return MFL_NOT_FOUND;
        if (piece->total != part->n || !piece->n || piece->n > part->n - part->have)
                return MFL_INVALID;
        *ret_part = part->number;
        return 0;
}

void mfl_agent_params_check(const struct mfl_agent *agent)
{
        uint32_t n_fetch = 0;
        for (const struct agent_part *part = agent->parts; part; part = part->next) {
                bool whole = part->have == part->n;
                n_fetch += part->state == PART_FETCH;
                mfl_assert(part->state < PART_STATES);
                mfl_assert(part->hashed <= part->have && part->have <= part->n);
                mfl_assert(part->hash_end == AGENT_NEVER || part->hash_end <= part->have);
                mfl_assert(part->state != PART_READY || whole);
                mfl_assert(part->state != PART_FETCH || !whole);
                mfl_assert(part->state != PART_CHECK || (whole && part->hash_end != AGENT_NEVER));
                mfl_assert(part->state > PART_ROOM || !part->have);
                for (const struct agent_part *other = part->next; other; other = other->next)
                        mfl_assert(other->number != part->number);
        }
        mfl_assert(n_fetch <= 1 && (!n_fetch || agent->state == AGENT_ONLINE || agent->state == AGENT_ENDED));
        for (const struct agent_task *task = agent->tasks; task; task = task->next) {
                const struct mfl_task *t = &task->task;
                const struct agent_part *part = find_digest(agent, t->job, t->params_digest);
                mfl_assert(task->state != TASK_READY || (part && part->state == PART_READY));
        }
}
