/* SPDX-License-Identifier: Apache-2.0 */
/* The cores of a cluster (server/cluster/) under seeded faults: three or five servers, each with a disk of its own
 * (copies.h), one etcd, a virtual clock.
 *
 *     mfl-sim-cluster --seeds A..B    no rule may break
 *     mfl-sim-cluster --bugs A..B     each planted bug (bugs.txt) must break one, in some seed
 *
 * Requests to etcd are late or lost, on the way there or back; servers are killed, also between two steps of a commit, are stopped
 * and wake, and are cut off from etcd; etcd is away. Rules, after every event:
 *   - an entry of the log is written once, follows the one before it, and its blob was durable on most disks before;
 *   - a round that a leader has reported as committed is in the log, with that digest, for good;
 *   - a leader that begins to serve has the whole log, and the blobs of its newest entries;
 *   - while no server is stopped, no two hold a lease at the same time, and none serves long after its own;
 *   - a daemon takes no order of a lower term than one that it has taken.
 * In the end, without faults, a round is committed again and every server has the whole log and those blobs. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/cluster/world.h"

int mfl_sim_bug;

static uint32_t below(struct world *w, uint32_t n)
{
        return mfl_rng_below(&w->rng, n);
}

void sim_cluster_require(struct world *w, bool holds, const char *rule)
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

/* ---- a server's steps ---- */

static void kill_server(struct world *w, uint32_t i)
{
        struct server *s = &w->server[i];
        s->up = s->serves = s->closing = s->fenced = s->committing = false;
        s->doing = MFL_LEAD_ACT_NONE;
        s->boot++;
        s->n_files = 0;
        sim_copies_kill(&w->copies, i, false);
}

static void start_server(struct world *w, uint32_t i)
{
        struct server *s = &w->server[i];
        if (s->up)
                return;
        s->up = true;
        s->stopped_until = w->copies.disk[i].stopped_until = 0;
        sim_copies_start(&w->copies, i);
        mfl_lead_init(&s->lead, &(struct mfl_lead_options){LEASE_MS, 250});
        post(w, 1 + below(w, 300), TICKS, i, LINE_LEAD);
}

static void serve(struct world *w, uint32_t i)
{
        struct server *s = &w->server[i];
        sim_cluster_require(w, s->n == w->n_log && s->n_files == w->n_log,
                "a leader serves without the whole log and its blobs");
        for (uint32_t k = 0; k < w->n && !w->stalls; k++) {
                const struct server *other = &w->server[k];
                if (k == i || !other->serves)
                        continue;
                sim_cluster_require(w, w->now >= other->lead.until_ms, "two servers hold a lease");
                /* A request that is out delays it by no more than the time limit. */
                sim_cluster_require(w, w->now <= other->lead.until_ms + TIMEOUT_MS + 100,
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

static uint32_t first_needed(const struct world *w)
{
        return w->n_log > KEEP ? w->n_log - KEEP : 0;
}

static bool has_blobs(struct world *w, uint32_t i)
{
        struct server *s = &w->server[i];
        for (uint32_t k = MFL_MAX(s->n_files, first_needed(w)); k < w->n_log; k++) {
                if (!sim_copies_get(&w->copies, i, w->log[k].digest))
                        return false;
                s->n_files = k + 1;
        }
        sim_copies_recovered(&w->copies, i);
        return true;
}

static void read_log(struct world *w, struct server *s, struct mfl_lead_event *event)
{
        for (int k = 0; k < 1 && s->n < w->n_log; k++, s->n++)
                s->disk[s->n] = w->log[s->n].digest;
        event->behind = s->n < w->n_log;
        event->ok = event->behind || has_blobs(w, (uint32_t)(s - w->server));
}

static void report(struct world *w, uint32_t i)
{
        struct server *s = &w->server[i];
        const uint64_t seq = s->commit.seq;
        sim_cluster_require(w, seq <= w->n_log && w->log[seq - 1].digest == s->digest,
                "a committed round is not in the log");
        if (w->broken)
                return;
        sim_cluster_require(w, !w->acked[seq - 1] || w->acked[seq - 1] == s->digest,
                "one round was committed with two digests");
        w->acked[seq - 1] = s->digest;
        s->disk[s->n++] = s->digest;
        s->n_files = s->n;
        for (uint32_t d = 0; d < DAEMONS; d++) {
                struct mfl_error err;
                if (below(w, 3) == 0 || mfl_servers_hear(&w->daemon[d], s->commit.term, &err))
                        continue;
                sim_cluster_require(
                        w, s->commit.term >= w->taken[d], "a daemon took an order of an older term");
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
                if (action == MFL_COMMIT_ACT_BLOB) /* or it was killed */
                        sim_copies_put(&w->copies, i, s->digest, ++s->request[LINE_COMMIT]);
                else
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

/* ---- its disks ---- */

static void on_put(void *user, uint32_t i, uint64_t token, bool held)
{
        struct world *w = user;
        struct server *s = &w->server[i];
        if (token != s->request[LINE_COMMIT])
                return;
        struct event *event = post(w, 1, ANSWERS, i, LINE_COMMIT);
        event->answered = true;
        event->commit_answer = (struct mfl_commit_event){.kind = MFL_COMMIT_EV_BLOB, .ok = held};
}

static void on_kill(void *user, uint32_t i)
{
        kill_server(user, i);
}

static bool is_needed(void *user, uint64_t digest)
{
        const struct world *w = user;
        for (uint32_t k = first_needed(w); k < w->n_log; k++)
                if (w->log[k].digest == digest)
                        return true;
        for (uint32_t i = 0; i < w->n; i++)
                if (w->server[i].digest == digest)
                        return true;
        return false;
}

static void check_blobs(struct world *w)
{
        for (uint32_t k = first_needed(w); k < w->n_log; k++)
                sim_copies_check(&w->copies, w->log[k].digest);
}

static void break_disks(struct world *w)
{
        uint32_t wiped;
        sim_copies_fault(&w->copies, &wiped);
        if (wiped < w->n) /* it has no rows, either */
                w->server[wiped].n = 0;
        check_blobs(w);
}

/* It is carried out however late it is, and whether or not the server that sent it is still there. */
static void arrive(struct world *w, const struct event *request)
{
        struct server *s = &w->server[request->server];
        struct event e = *request;
        if (w->now < w->away_until)
                return;
        sim_etcd_expire(w);
        e.line == LINE_LEAD ? sim_etcd_lead(w, &e) : sim_etcd_commit(w, &e);
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
        uint32_t i = below(w, w->n);
        struct server *s = &w->server[i];
        if (!faulty(w)) {
                w->copies.faulty = false;
                sim_copies_heal(&w->copies);
                for (i = 0; i < w->n; i++) {
                        w->server[i].cut = false;
                        start_server(w, i);
                }
                return;
        }
        switch (below(w, 9)) {
        case 0:
                kill_server(w, i);
                break;
        case 1:
                if (w->stalls)
                        s->stopped_until = w->copies.disk[i].stopped_until = w->now + below(w, 12000);
                break;
        case 2:
                s->cut = !s->cut;
                break;
        case 3:
                w->away_until = w->now + below(w, 6000);
                break;
        case 4:
        case 5:
        case 6:
                break_disks(w);
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

static void init(struct world *w, uint64_t seed)
{
        *w = (struct world){.rng = mfl_rng_new(seed, MFL_RNG_JITTER, 0, 0),
                .stalls = seed % 2,
                .revision = 1,
                .n = seed % 3 ? 3 : 5};
        w->faults_end = 20000 + below(w, 60000);
        w->copies = (struct sim_copies){.rng = mfl_rng_new(seed, MFL_RNG_JITTER, 1, 0),
                .n = w->n,
                .faulty = true,
                .user = w,
                .put_done = on_put,
                .kill = on_kill,
                .needs = is_needed};
        for (uint32_t i = 0; i < w->n; i++)
                start_server(w, i);
        post(w, 3000, FAULT, 0, LINE_LEAD);
}

/* The next event of the servers and etcd, or of the disks. */
static void run_next(struct world *w)
{
        uint64_t at = UINT64_MAX;
        for (uint32_t i = 0; i < w->n_queue; i++)
                at = MFL_MIN(at, w->queue[i].at);
        if (sim_copies_next(&w->copies) < at) {
                w->now = w->copies.now = MFL_MAX(w->now, sim_copies_next(&w->copies));
                sim_copies_step(&w->copies);
        } else {
                struct event e = take(w);
                w->now = w->copies.now = MFL_MAX(w->now, e.at);
                run_event(w, &e);
        }
        if (w->copies.broken && !w->broken)
                w->broken = w->copies.broken;
}

static const char *check_end(struct world *w, uint32_t before)
{
        sim_cluster_require(w, w->n_log > before || w->n_log >= ENTRIES - 2,
                "no round is committed when all faults are over");
        for (uint32_t i = 0; i < w->n_log; i++)
                sim_cluster_require(
                        w, !w->acked[i] || w->acked[i] == w->log[i].digest, "a committed round was lost");
        for (uint32_t i = 0; i < w->n; i++) {
                const struct server *s = &w->server[i], *leader = &w->server[w->leader_server];
                sim_cluster_require(w,
                        s->n + 8 >= w->n_log &&
                                !memcmp(s->disk, leader->disk, sizeof(uint64_t) * MFL_MIN(s->n, leader->n)),
                        "a server does not have the log");
                sim_cluster_require(w, s->n_files + 8 >= w->n_log, "a server does not have the blobs");
        }
        sim_copies_check_lines(&w->copies);
        return w->copies.broken && !w->broken ? w->copies.broken : w->broken;
}

static const char *run_seed(struct world *w, uint64_t seed)
{
        struct mfl_error err;
        init(w, seed);
        for (uint32_t d = 0; d < DAEMONS; d++)
                if (mfl_servers_init(&w->daemon[d], "a:1,b:1,c:1", &err))
                        return err.text[0] ? "a list of servers" : "";
        const bool hour = seed % 64 == 0; /* etcd is away, in the middle */
        uint32_t before = 0;
        bool quiet = false;
        while (w->n_queue && !w->broken && w->now < w->faults_end + QUIET_MS) {
                if (hour && w->now > w->faults_end / 2 && w->now < 3600000 && w->away_until < 3600000) {
                        w->away_until = w->now + 3600000;
                        w->faults_end = w->away_until + 20000;
                }
                run_next(w);
                if (!quiet && w->now >= w->faults_end + QUIET_MS / 2) {
                        quiet = true;
                        before = w->n_log;
                }
                quiet = quiet && !faulty(w);
        }
        return w->broken ? w->broken : check_end(w, before);
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
        uint64_t entries = 0, fetched = 0, lost = 0;
        for (uint64_t seed = first; seed < end; seed++) {
                const char *broken = run_seed(&w, seed);
                if (broken) {
                        printf("seed %llu, at %llu ms: %s\n", (unsigned long long)seed,
                                (unsigned long long)w.now, broken);
                        return 1;
                }
                entries += w.n_log;
                fetched += w.copies.n_fetched;
                lost += w.copies.n_lost;
        }
        printf("%llu seeds, %llu rounds; %llu files brought from other servers, %llu disks lost or rotten\n",
                end - first, (unsigned long long)entries, (unsigned long long)fetched,
                (unsigned long long)lost);
        return 0;
}
