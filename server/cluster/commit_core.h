/* SPDX-License-Identifier: Apache-2.0 */
/* One commit: the entry with number seq of the installation's log, written once, by the leader of one term. A state machine without
 * I/O.
 *
 *     begin --> BLOB --> TXN --> done
 *                 |       | refused, or no answer
 *                 v       v
 *               wait     LOOK --> done: the entry is there, and it is this one
 *                         |-----> lost: another entry is there, or another server leads
 *                         |-----> wait: there is none, and we lead; nothing has happened
 *                         +-----> wait, in doubt: etcd does not answer
 *
 * TXN is one transaction of etcd: if the leader's key was created by `term`, and the entry does not exist, write it. So an entry
 * is written at most once, a leader whose term is over writes none, and an entry follows the one before it.
 *
 * IN DOUBT. A request that was not answered may be carried out later. The caller gives up that commit and may try another one,
 * with the same seq: if the older one arrives after all, one of the two is refused, and LOOK finds an entry that is not this one.
 * The answer is `lost` then, although the entry is this server's own: it closes, reads the log, and begins again, because what it
 * has in memory may lack what the entry says. */
#ifndef MFL_SERVER_CLUSTER_COMMIT_CORE_H
#define MFL_SERVER_CLUSTER_COMMIT_CORE_H

#include "common/base/base.h"

enum mfl_commit_result {
        MFL_COMMIT_DONE,
        MFL_COMMIT_LOST, /* this server must stop leading */
        MFL_COMMIT_WAIT, /* not now; the caller may try again */
};

enum mfl_commit_event_kind {
        MFL_COMMIT_EV_BEGIN,
        MFL_COMMIT_EV_BLOB, /* ok: the blob is durable */
        MFL_COMMIT_EV_TXN,  /* known: etcd answered; ok: it was written */
        MFL_COMMIT_EV_LOOK, /* known; term: of the leader's key, 0 if there is none; id: of the entry, 0 if there is none */
};
struct mfl_commit_event {
        enum mfl_commit_event_kind kind;
        bool ok, known;
        uint64_t term, id;
};

enum mfl_commit_action {
        MFL_COMMIT_ACT_BLOB,
        MFL_COMMIT_ACT_TXN,
        MFL_COMMIT_ACT_LOOK,
        MFL_COMMIT_ACT_END, /* with the result */
};

struct mfl_commit {
        uint64_t seq, term;
        uint64_t id;   /* random, not 0: tells this entry from any other */
        bool has_blob; /* the entry names one */
        enum mfl_commit_result result;
};

enum mfl_commit_action mfl_commit_step(struct mfl_commit *commit, const struct mfl_commit_event *event);

#endif
