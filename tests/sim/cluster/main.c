/* SPDX-License-Identifier: Apache-2.0 */
/* The cores of a cluster (server/cluster/) under seeded faults: three servers, one etcd, one directory of blobs, a virtual clock.
 *
 *     mfl-sim-cluster --seeds A..B    no rule may break
 *     mfl-sim-cluster --bugs A..B     each planted bug (bugs.txt) must break one, in some seed
 *
 * Requests to etcd are late or lost, on the way there or back; servers are killed, also between two steps of a commit, are stopped
 * and wake, and are cut off from etcd; etcd is away. Rules, after every event:
 *   - an entry of the log is written once, follows the one before it, and its blob was durable before;
 *   - a round that a leader has reported as committed is in the log, with that digest, for good;
 *   - a leader that begins to serve has the whole log;
 *   - while no server is stopped, no two hold a lease at the same time, and none serves long after its own;
 *   - a daemon takes no order of a lower term than one that it has taken.
 * In the end, without faults, a round is committed again and every server has the whole log. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/rng.h"
#include "proto/servers.h"
#include "server/cluster/commit_core.h"
#include "server/cluster/lead_core.h"

int mfl_sim_bug;

#define SERVERS 3
#define DAEMONS 2
#define ENTRIES 4096
#define TIMEOUT_MS 1500
#define LEASE_MS 3000
#define QUIET_MS 60000
#define EVENTS 512
#define LEASES 4096

struct entry {
        uint64_t id, digest, term;
};

/* One of the two threads of a server: at most one request is out. */
enum line {
        LINE_LEAD,
        LINE_COMMIT,
};

enum kind {
        ARRIVES, /* a request at etcd, or at the blobs */
        ANSWERS, /* the answer at the server, or the time limit */
        TICKS,   /* the lead core wants to be woken */
        WORKS,   /* a leader begins a commit */
        FAULT,
};

struct event {
        uint64_t at, number;
        enum kind kind;
        uint32_t server;
        enum line line;
        uint64_t boot, request; /* an answer of before is for nobody */
        /* A request, as it was sent; or its answer. answered false: the time limit. */
        bool answered;
        enum mfl_lead_action_kind lead_asks;
        uint64_t lease;
        struct mfl_lead_event lead_answer;
        enum mfl_commit_action commit_asks;
        struct mfl_commit commit;
        uint64_t digest;
        struct mfl_commit_event commit_answer;
};

struct server {
        bool up, serves, closing, fenced, cut;
        uint64_t boot, stopped_until;
        struct mfl_lead lead;
        enum mfl_lead_action_kind doing; /* the request that is out, or NONE */
        struct mfl_lead_event answer;    /* what the core gets if there is none */
        bool committing;
        struct mfl_commit commit;
        enum mfl_commit_action commit_doing;
        struct mfl_commit_event commit_answer;
        uint64_t request[2], digest;
        uint32_t n; /* entries that its disk has */
        uint64_t disk[ENTRIES];
};

struct world {
        struct mfl_rng rng;
        uint64_t now, number, faults_end;
        bool stalls;
        struct event queue[EVENTS];
        uint32_t n_queue;
        struct server server[SERVERS];
        /* etcd */
        uint64_t revision, away_until, leader_created, leader_lease, leases[LEASES], expires[LEASES];
        uint32_t leader_server;
        struct entry log[ENTRIES];
        uint32_t n_log;
        uint64_t blobs[4 * ENTRIES];
        uint32_t n_blobs;
        uint64_t acked[ENTRIES];
        struct mfl_servers daemon[DAEMONS];
        uint64_t taken[DAEMONS];
        const char *broken;
};

static uint32_t below(struct world *w, uint32_t n)
{
        return mfl_rng_below(&w->rng, n);
}

static void require(struct world *w, bool holds, const char *rule)
{
        if (!holds && !w->broken)
                w->broken = rule;
}

static struct event *post(struct world *w, uint64_t delay, enum kind kind, uint32_t server, enum line line)
{
        struct server *s = &w->server[server];
        mfl_assert(w->n_queue < EVENTS);
        struct event *event = &w->queue[w->n_queue++];
        *event = (struct event){.at = w->now + delay,
                .number = ++w->number,
                .kind = kind,
                .server = server,
                .line = line,
                .boot = s->boot,
                .request = s->request[line]};
        return event;
}

static struct event take(struct world *w)
{
        uint32_t first = 0;
        for (uint32_t i = 1; i < w->n_queue; i++)
                if (w->queue[i].at < w->queue[first].at ||
                        (w->queue[i].at == w->queue[first].at && w->queue[i].number < w->queue[first].number))
                        first = i;
        struct event event = w->queue[first];
        w->queue[first] = w->queue[--w->n_queue];
        return event;
}

static bool faulty(const struct world *w)
{
        return w->now < w->faults_end;
}

/* ---- requests ---- */

static void send(struct world *w, uint32_t i, enum line line)
{
        struct server *s = &w->server[i];
        s->request[line]++;
        bool lost = faulty(w) && below(w, 20) == 0;
        if (!lost && !s->cut) {
                uint64_t delay = faulty(w) && below(w, 10) == 0 ? 200 + below(w, 4000) : 1 + below(w, 5);
                struct event *event = post(w, delay, ARRIVES, i, line);
                event->lead_asks = s->doing;
                event->lease = s->lead.lease;
                event->commit_asks = s->commit_doing;
                event->commit = s->commit;
                event->digest = s->digest;
                event->lead_answer = s->answer;
                event->commit_answer = s->commit_answer;
        }
        post(w, TIMEOUT_MS, ANSWERS, i, line);
}

/* When it ends; NULL: it has ended. */
static uint64_t *find_lease(struct world *w, uint64_t lease)
{
        uint32_t i = (uint32_t)(lease % LEASES);
        return w->leases[i] == lease && w->expires[i] > w->now ? &w->expires[i] : NULL;
}

static void expire(struct world *w)
{
        if (w->leader_created && !find_lease(w, w->leader_lease))
                w->leader_created = 0;
}

static void etcd_lead(struct world *w, struct event *e)
{
        struct mfl_lead_event *a = &e->lead_answer;
        uint64_t *expires = find_lease(w, e->lease);
        a->ok = true;
        switch (e->lead_asks) {
        case MFL_LEAD_ACT_READ:
                a->leader = w->leader_created != 0;
                break; /* entries are read when the answer is there: what was read then is a prefix in any case */
        case MFL_LEAD_ACT_GRANT:
                a->lease = ++w->revision;
                a->ttl_ms = LEASE_MS;
                w->leases[a->lease % LEASES] = a->lease;
                w->expires[a->lease % LEASES] = w->now + LEASE_MS;
                break;
        case MFL_LEAD_ACT_CAMPAIGN:
                if (!w->leader_created && expires) {
                        w->leader_created = ++w->revision;
                        w->leader_lease = e->lease;
                        w->leader_server = e->server;
                }
                a->term = w->leader_created && w->leader_lease == e->lease ? w->leader_created : 0;
                break;
        default:
                a->ttl_ms = expires ? LEASE_MS : 0;
                if (expires)
                        *expires = w->now + LEASE_MS;
        }
}

static bool has_blob(const struct world *w, uint64_t digest)
{
        for (uint32_t i = 0; i < w->n_blobs; i++)
                if (w->blobs[i] == digest)
                        return true;
        return false;
}

static void etcd_commit(struct world *w, struct event *e)
{
        struct mfl_commit_event *a = &e->commit_answer;
        const uint64_t seq = e->commit.seq;
        a->known = true;
        if (e->commit_asks == MFL_COMMIT_ACT_BLOB) {
                a->ok = w->n_blobs < MFL_ARRAY_SIZE(w->blobs);
                if (a->ok)
                        w->blobs[w->n_blobs++] = e->digest;
        } else if (e->commit_asks == MFL_COMMIT_ACT_LOOK) {
                a->term = w->leader_created;
                a->id = seq <= w->n_log ? w->log[seq - 1].id : 0;
        } else {
                /* As the transaction says: the leader's key is of this term, and there is no such entry. */
                a->ok = w->leader_created == e->commit.term && (seq > w->n_log || !w->log[seq - 1].id) &&
                        w->n_log < ENTRIES;
                if (!a->ok)
                        return;
                require(w, seq == w->n_log + 1, "an entry does not follow the one before it");
                require(w, has_blob(w, e->digest), "an entry was written before its blob");
                w->log[w->n_log++] = (struct entry){e->commit.id, e->digest, e->commit.term};
        }
}

/* ---- a server's steps ---- */

static void kill_server(struct world *w, uint32_t i)
{
        struct server *s = &w->server[i];
        s->up = s->serves = s->closing = s->fenced = s->committing = false;
        s->doing = MFL_LEAD_ACT_NONE;
        s->boot++;
}

static void start_server(struct world *w, uint32_t i)
{
        struct server *s = &w->server[i];
        if (s->up)
                return;
        s->up = true;
        s->stopped_until = 0;
        mfl_lead_init(&s->lead, &(struct mfl_lead_options){LEASE_MS, 250});
        post(w, 1 + below(w, 300), TICKS, i, LINE_LEAD);
}

static void serve(struct world *w, uint32_t i)
{
        struct server *s = &w->server[i];
        require(w, s->n == w->n_log, "a leader serves without the whole log");
        for (uint32_t k = 0; k < SERVERS && !w->stalls; k++) {
                const struct server *other = &w->server[k];
                if (k == i || !other->serves)
                        continue;
                require(w, w->now >= other->lead.until_ms, "two servers hold a lease");
                /* A request that is out delays it by no more than the time limit. */
                require(w, w->now <= other->lead.until_ms + TIMEOUT_MS + 100,
                        "a server leads after its lease");
        }
        s->serves = true;
        post(w, 50 + below(w, 500), WORKS, i, LINE_COMMIT);
}

static void lead_step(struct world *w, uint32_t i, struct mfl_lead_event event)
{
        struct server *s = &w->server[i];
        event.now_ms = w->now;
        enum mfl_lead_action_kind action = mfl_lead_step(&s->lead, &event);
        for (; action == MFL_LEAD_ACT_SERVE || action == MFL_LEAD_ACT_STEP_DOWN ||
                action == MFL_LEAD_ACT_REVOKE;
                action = mfl_lead_step(
                        &s->lead, &(struct mfl_lead_event){.kind = MFL_LEAD_EV_TICK, .now_ms = w->now})) {
                if (action == MFL_LEAD_ACT_SERVE)
                        serve(w, i);
                s->closing |= action == MFL_LEAD_ACT_STEP_DOWN;
                s->serves &= action != MFL_LEAD_ACT_STEP_DOWN;
        }
        s->doing = action;
        s->answer = (struct mfl_lead_event){.sent_ms = w->now,
                .kind = action == MFL_LEAD_ACT_READ       ? MFL_LEAD_EV_READ
                        : action == MFL_LEAD_ACT_GRANT    ? MFL_LEAD_EV_GRANTED
                        : action == MFL_LEAD_ACT_CAMPAIGN ? MFL_LEAD_EV_CAMPAIGN
                                                          : MFL_LEAD_EV_KEPT};
        if (action != MFL_LEAD_ACT_NONE) {
                send(w, i, LINE_LEAD);
                return;
        }
        s->request[LINE_LEAD]++;
        uint64_t wait = s->lead.wake_ms > w->now ? MFL_MIN(s->lead.wake_ms - w->now, (uint64_t)1000) : 1;
        post(w, s->closing || s->fenced ? 1 : wait, TICKS, i, LINE_LEAD);
}

static void tick(struct world *w, uint32_t i)
{
        struct server *s = &w->server[i];
        struct mfl_lead_event event = {.kind = MFL_LEAD_EV_TICK};
        if (s->closing && !s->committing) {
                s->closing = false;
                event.kind = MFL_LEAD_EV_RESUMED;
        } else if (s->fenced) {
                event.kind = MFL_LEAD_EV_FENCED;
        }
        s->fenced = false;
        lead_step(w, i, event);
}

static void read_log(struct world *w, struct server *s, struct mfl_lead_event *event)
{
        for (int k = 0; k < 1 && s->n < w->n_log; k++, s->n++)
                s->disk[s->n] = w->log[s->n].digest;
        event->behind = s->n < w->n_log;
}

static void report(struct world *w, uint32_t i)
{
        struct server *s = &w->server[i];
        const uint64_t seq = s->commit.seq;
        require(w, seq <= w->n_log && w->log[seq - 1].digest == s->digest,
                "a committed round is not in the log");
        if (w->broken)
                return;
        require(w, !w->acked[seq - 1] || w->acked[seq - 1] == s->digest,
                "one round was committed with two digests");
        w->acked[seq - 1] = s->digest;
        s->disk[s->n++] = s->digest;
        for (uint32_t d = 0; d < DAEMONS; d++) {
                struct mfl_error err;
                if (below(w, 3) == 0 || mfl_servers_hear(&w->daemon[d], s->commit.term, &err))
                        continue;
                require(w, s->commit.term >= w->taken[d], "a daemon took an order of an older term");
                w->taken[d] = s->commit.term;
        }
}

static void commit_step(struct world *w, uint32_t i, struct mfl_commit_event event)
{
        struct server *s = &w->server[i];
        enum mfl_commit_action action = mfl_commit_step(&s->commit, &event);
        if (faulty(w) && below(w, 300) == 0) { /* dies between two steps */
                kill_server(w, i);
                return;
        }
        if (action != MFL_COMMIT_ACT_END) {
                s->commit_doing = action;
                s->commit_answer = (struct mfl_commit_event){
                        .kind = action == MFL_COMMIT_ACT_BLOB  ? MFL_COMMIT_EV_BLOB
                                : action == MFL_COMMIT_ACT_TXN ? MFL_COMMIT_EV_TXN
                                                               : MFL_COMMIT_EV_LOOK};
                send(w, i, LINE_COMMIT);
                return;
        }
        s->committing = false;
        s->request[LINE_COMMIT]++;
        if (s->commit.result == MFL_COMMIT_DONE)
                report(w, i);
        s->fenced |= s->commit.result == MFL_COMMIT_LOST;
        if (s->serves)
                post(w, 20 + below(w, 400), WORKS, i, LINE_COMMIT);
}

static void work(struct world *w, uint32_t i)
{
        struct server *s = &w->server[i];
        if (!s->serves || s->committing || s->n >= ENTRIES - 1)
                return;
        if (!s->digest || s->commit.result == MFL_COMMIT_DONE || below(w, 2))
                s->digest = ++w->revision << 20 | below(w, 1 << 20);
        s->committing = true;
        s->commit = (struct mfl_commit){
                .seq = s->n + 1, .term = s->lead.term, .id = ++w->revision << 8 | 1, .has_blob = true};
        commit_step(w, i, (struct mfl_commit_event){.kind = MFL_COMMIT_EV_BEGIN});
}

static void answer(struct world *w, const struct event *e)
{
        struct server *s = &w->server[e->server];
        struct mfl_lead_event event = e->answered ? e->lead_answer : s->answer;
        if (e->line == LINE_COMMIT) {
                commit_step(w, e->server, e->answered ? e->commit_answer : s->commit_answer);
                return;
        }
        if (s->doing == MFL_LEAD_ACT_READ && event.ok)
                read_log(w, s, &event);
        lead_step(w, e->server, event);
}

/* It is carried out however late it is, and whether or not the server that sent it is still there. */
static void arrive(struct world *w, const struct event *request)
{
        struct server *s = &w->server[request->server];
        struct event e = *request;
        if (w->now < w->away_until)
                return;
        expire(w);
        e.line == LINE_LEAD ? etcd_lead(w, &e) : etcd_commit(w, &e);
        bool lost = faulty(w) && below(w, 20) == 0;
        if (lost || e.boot != s->boot || e.request != s->request[e.line])
                return;
        uint64_t delay = faulty(w) && below(w, 10) == 0 ? 100 + below(w, 1200) : 1 + below(w, 5);
        struct event *answer = post(w, delay, ANSWERS, e.server, e.line);
        answer->answered = true;
        answer->lead_answer = e.lead_answer;
        answer->commit_answer = e.commit_answer;
}

static void fault(struct world *w)
{
        uint32_t i = below(w, SERVERS);
        struct server *s = &w->server[i];
        if (!faulty(w)) {
                for (i = 0; i < SERVERS; i++) {
                        w->server[i].cut = false;
                        start_server(w, i);
                }
                return;
        }
        switch (below(w, 6)) {
        case 0:
                kill_server(w, i);
                break;
        case 1:
                if (w->stalls)
                        s->stopped_until = w->now + below(w, 12000);
                break;
        case 2:
                s->cut = !s->cut;
                break;
        case 3:
                w->away_until = w->now + below(w, 6000);
                break;
        default:
                start_server(w, i);
        }
        post(w, 100 + below(w, 4000), FAULT, 0, LINE_LEAD);
}

/* ---- a seed ---- */

static void run_event(struct world *w, const struct event *e)
{
        struct server *s = &w->server[e->server];
        if (e->kind == FAULT) {
                fault(w);
                return;
        }
        if (e->kind == ARRIVES) {
                arrive(w, e);
                return;
        }
        if (!s->up || e->boot != s->boot)
                return;
        if (w->now < s->stopped_until) { /* it goes on when it wakes */
                struct event later = *e;
                later.at = s->stopped_until;
                w->queue[w->n_queue++] = later;
                return;
        }
        if (e->kind == WORKS)
                work(w, e->server);
        else if (e->request == s->request[e->line])
                e->kind == TICKS ? tick(w, e->server) : answer(w, e);
}

static const char *run_seed(struct world *w, uint64_t seed)
{
        struct mfl_error err;
        *w = (struct world){
                .rng = mfl_rng_new(seed, MFL_RNG_JITTER, 0, 0), .stalls = seed % 2, .revision = 1};
        w->faults_end = 20000 + below(w, 60000);
        for (uint32_t d = 0; d < DAEMONS; d++)
                if (mfl_servers_init(&w->daemon[d], "a:1,b:1,c:1", &err))
                        return err.text[0] ? "a list of servers" : "";
        for (uint32_t i = 0; i < SERVERS; i++)
                start_server(w, i);
        post(w, 3000, FAULT, 0, LINE_LEAD);
        const bool hour = seed % 64 == 0; /* etcd is away, in the middle */
        uint32_t before = 0;
        bool quiet = false;
        while (w->n_queue && !w->broken && w->now < w->faults_end + QUIET_MS) {
                struct event e = take(w);
                w->now = MFL_MAX(w->now, e.at);
                if (hour && w->now > w->faults_end / 2 && w->now < 3600000 && w->away_until < 3600000) {
                        w->away_until = w->now + 3600000;
                        w->faults_end = w->away_until + 20000;
                }
                run_event(w, &e);
                if (!quiet && w->now >= w->faults_end + QUIET_MS / 2) {
                        quiet = true;
                        before = w->n_log;
                }
                quiet = quiet && !faulty(w);
        }
        if (w->broken)
                return w->broken;
        require(w, w->n_log > before || w->n_log >= ENTRIES - 2,
                "no round is committed when all faults are over");
        for (uint32_t i = 0; i < w->n_log; i++)
                require(w, !w->acked[i] || w->acked[i] == w->log[i].digest, "a committed round was lost");
        for (uint32_t i = 0; i < SERVERS; i++)
                require(w,
                        w->server[i].n + 8 >= w->n_log &&
                                !memcmp(w->server[i].disk, w->server[w->leader_server].disk,
                                        sizeof(uint64_t) *
                                                MFL_MIN(w->server[i].n, w->server[w->leader_server].n)),
                        "a server does not have the log");
        return w->broken;
}

static int run_bugs(struct world *w, uint64_t first, uint64_t end)
{
        int missed = 0;
        for (int bug = 1; bug <= mfl_sim_n_bugs; bug++) {
                const char *found = NULL;
                uint64_t seed = first;
                mfl_sim_bug = bug;
                for (; seed < end && !found; seed++)
                        found = run_seed(w, seed);
                printf("bug %d (%s): %s", bug, mfl_sim_bugs[bug], found ? found : "NOT FOUND");
                found ? printf(", seed %llu\n", (unsigned long long)seed - 1) : printf("\n");
                missed += !found;
        }
        return missed ? 1 : 0;
}

int main(int argc, char **argv)
{
        unsigned long long first, end;
        static struct world w;
        if (argc != 3 || sscanf(argv[2], "%llu..%llu", &first, &end) != 2) {
                fprintf(stderr, "usage: mfl-sim-cluster --seeds A..B | --bugs A..B\n");
                return 2;
        }
        if (!strcmp(argv[1], "--bugs"))
                return run_bugs(&w, first, end);
        uint64_t entries = 0;
        for (uint64_t seed = first; seed < end; seed++) {
                const char *broken = run_seed(&w, seed);
                if (broken) {
                        printf("seed %llu, at %llu ms: %s\n", (unsigned long long)seed,
                                (unsigned long long)w.now, broken);
                        return 1;
                }
                entries += w.n_log;
        }
        printf("%llu seeds, %llu rounds\n", end - first, (unsigned long long)entries);
        return 0;
}
