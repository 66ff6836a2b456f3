/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated cluster's etcd: leases, the leader's key, and the log. */
#include "tests/sim/cluster/world.h"

/* When it ends; NULL: it has ended. */
static uint64_t *find_lease(struct world *w, uint64_t lease)
{
        uint32_t i = (uint32_t)(lease % LEASES);
        return w->leases[i] == lease && w->expires[i] > w->now ? &w->expires[i] : NULL;
}

void sim_etcd_expire(struct world *w)
{
        if (w->leader_created && !find_lease(w, w->leader_lease))
                w->leader_created = 0;
}

void sim_etcd_lead(struct world *w, struct event *e)
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

void sim_etcd_commit(struct world *w, struct event *e)
{
        struct mfl_commit_event *a = &e->commit_answer;
        const uint64_t seq = e->commit.seq;
        a->known = true;
        if (e->commit_asks == MFL_COMMIT_ACT_LOOK) {
                a->term = w->leader_created;
                a->id = seq <= w->n_log ? w->log[seq - 1].id : 0;
        } else {
                /* As the transaction says: the leader's key is of this term, and there is no such entry. */
                a->ok = w->leader_created == e->commit.term && (seq > w->n_log || !w->log[seq - 1].id) &&
                        w->n_log < ENTRIES;
                if (!a->ok)
                        return;
                sim_cluster_require(w, seq == w->n_log + 1, "an entry does not follow the one before it");
                sim_cluster_require(w, sim_copies_held(&w->copies, e->digest),
                        "an entry was written before its blob was on most disks");
                w->log[w->n_log++] = (struct entry){e->commit.id, e->digest, e->commit.term};
        }
}
