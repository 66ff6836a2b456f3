/* SPDX-License-Identifier: Apache-2.0 */
/* The leader's commits: files to the shared directory or to most servers, then the entry to etcd. On the store's threads; see commit_core.h.
 * Fault points: "before-cluster-blob", "after-cluster-blob", "before-cluster-txn", "after-cluster-txn". */
#include "server/cluster/cluster_internal.h"

#include <sys/random.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "common/base/log.h"
#include "server/cluster/commit_core.h"
#include "server/cluster/entry.h"

#define WAIT_FOR_OTHERS_MS 60000u
#define RETRY_MS 300u
/* Without a server that takes anything: on the thread that only copies, and where others wait behind. */
#define PATIENCE_MS 5000u
#define PATIENCE_BRIEF_MS 1000u

static int pass(const char *point, const char *path, struct mfl_error *err)
{
        int r = mfl_fs_fault(point, path);
        return r ? mfl_fail(err, MFL_STORE_AGAIN, "%s: %s", point, strerror(-r)) : 0;
}

static int put(struct mfl_cluster_place *place, const char *path, const uint8_t sha256[32], uint64_t bytes,
        const struct mfl_copies_wait *wait, struct mfl_error *err)
{
        struct mfl_blobs blobs = place->blobs;
        char blob[MFL_BLOBS_PATH_BYTES];
        int r = pass("before-cluster-blob", path, err);
        if (r)
                return r;
        blobs.beat = NULL;
        r = mfl_blobs_put(&blobs, path, sha256, bytes, err);
        mfl_blobs_path(&blobs, sha256, blob);
        if (!r && place->copies)
                r = mfl_copies_put(place->copies, blob, sha256, bytes, wait, err);
        if (r)
                return r == -ENOMEM ? r : r == -ENOSPC || r == -EDQUOT ? MFL_STORE_FULL : MFL_STORE_AGAIN;
        return pass("after-cluster-blob", path, err);
}

static bool leads(void *user)
{
        struct mfl_cluster *cluster = user;
        pthread_mutex_lock(&cluster->lock);
        bool is = cluster->view.role == MFL_CLUSTER_LEADS;
        pthread_mutex_unlock(&cluster->lock);
        return is;
}

int mfl_cluster_blob(void *user, const char *path, const uint8_t sha256[32], uint64_t bytes, bool waits,
        struct mfl_error *err)
{
        struct mfl_cluster *cluster = user;
        const struct mfl_copies_wait wait = {waits ? PATIENCE_MS : PATIENCE_BRIEF_MS, !waits, leads, cluster};
        return put(&cluster->place, path, sha256, bytes, &wait, err);
}

/* ---- the entry ---- */

struct writing {
        const struct mfl_cluster_entry *entry;
        struct mfl_commit core;
        uint8_t *bytes;
        size_t n;
        struct mfl_error *err;
        int fatal; /* negative: memory */
};

static int make_entry(struct writing *w)
{
        const struct mfl_store_change *change = w->entry->change;
        struct mfl_entry entry = {.kind = w->entry->ends  ? MFL_ENTRY_END
                                          : change->whole ? MFL_ENTRY_WHOLE
                                                          : MFL_ENTRY_CHANGES,
                .schema = change->schema,
                .term = w->core.term,
                .id = w->core.id,
                .blob_bytes = change->whole_bytes,
                .payload = change->whole ? NULL : change->bytes,
                .n = change->whole ? 0 : change->n};
        memcpy(entry.sha256, change->whole_sha256, sizeof entry.sha256);
        return mfl_entry_write(&entry, &w->bytes, &w->n, w->err);
}

/* A server that begins to lead writes a whole database first, before it serves anybody: servers that start one after the other wait for each
 * other here. Later a whole database waits no longer than any other file, since everything else waits behind it. */
static struct mfl_commit_event do_blob(struct writing *w)
{
        const struct mfl_store_change *change = w->entry->change;
        const uint64_t end_ms = mfl_now_ms() + (change->first ? WAIT_FOR_OTHERS_MS : 0);
        const struct mfl_copies_wait wait = {.patience_ms = PATIENCE_BRIEF_MS, .ahead = true};
        int r;
        bool said = false;
        while ((r = put(w->entry->place, change->whole, change->whole_sha256, change->whole_bytes, &wait,
                        w->err)) == MFL_STORE_AGAIN &&
                w->entry->place->copies && mfl_now_ms() < end_ms) {
                if (!said)
                        mfl_log(MFL_LOG_WARN, "cluster: waiting for other servers: %s", w->err->text);
                said = true;
                usleep(1000 * RETRY_MS);
        }
        w->fatal = MFL_MIN(r, 0);
        return (struct mfl_commit_event){.kind = MFL_COMMIT_EV_BLOB, .ok = !r};
}

static struct mfl_commit_event do_txn(struct writing *w)
{
        const struct mfl_cluster_place *place = w->entry->place;
        char key[MFL_ETCD_KEY_BYTES], first[MFL_ETCD_KEY_BYTES] = "";
        struct mfl_commit_event event = {.kind = MFL_COMMIT_EV_TXN};
        mfl_cluster_log_key(place, w->core.seq, key);
        if (w->entry->change->whole) /* a whole database replaces all entries before it */
                mfl_cluster_log_key(place, 0, first);
        struct mfl_etcd_commit commit = {.guard = place->leader,
                .term = w->core.term,
                .key = key,
                .value = w->bytes,
                .n = w->n,
                .drop_first = first,
                .drop_end = key};
        int r = pass("before-cluster-txn", key, w->err);
        if (!r)
                r = mfl_etcd_commit(w->entry->etcd, &commit, &event.ok, w->err);
        event.known = !r;
        if (!r && pass("after-cluster-txn", key, w->err))
                event.known = false;
        w->fatal = MFL_MIN(r, 0);
        return event;
}

static struct mfl_commit_event do_look(struct writing *w)
{
        const struct mfl_cluster_place *place = w->entry->place;
        char key[MFL_ETCD_KEY_BYTES], end[MFL_ETCD_KEY_BYTES];
        struct mfl_commit_event event = {.kind = MFL_COMMIT_EV_LOOK};
        struct mfl_etcd_values values = {0};
        struct mfl_cluster_view view;
        struct mfl_entry entry;
        mfl_cluster_log_key(place, w->core.seq, key);
        mfl_cluster_log_key(place, w->core.seq + 1, end);
        int r = mfl_cluster_leader(w->entry->etcd, place, &view, &event.term, w->err);
        if (!r)
                r = mfl_etcd_range(w->entry->etcd, key, end, 1, &values, w->err);
        event.known = !r;
        w->fatal = MFL_MIN(r, 0);
        if (!r && values.n)
                event.id = mfl_entry_read(values.v[0].bytes, values.v[0].n, &entry, w->err) ? UINT64_MAX
                                                                                            : entry.id;
        mfl_etcd_values_deinit(&values);
        return event;
}

int mfl_cluster_write(const struct mfl_cluster_entry *entry, int *ret_result, struct mfl_error *err)
{
        struct writing w = {.entry = entry, .err = err};
        struct mfl_commit_event event = {.kind = MFL_COMMIT_EV_BEGIN};
        w.core = (struct mfl_commit){.seq = entry->change->seq,
                .term = entry->term,
                .has_blob = entry->change->whole && !entry->ends};
        if (getrandom(&w.core.id, sizeof w.core.id, 0) != sizeof w.core.id)
                return mfl_fail_errno(err, "getrandom");
        w.core.id |= 1;
        int r = make_entry(&w);
        if (r)
                return r;
        mfl_fail(err, MFL_STORE_AGAIN, "the cluster did not take the entry");
        for (enum mfl_commit_action action;
                !w.fatal && (action = mfl_commit_step(&w.core, &event)) != MFL_COMMIT_ACT_END;)
                event = action == MFL_COMMIT_ACT_BLOB  ? do_blob(&w)
                        : action == MFL_COMMIT_ACT_TXN ? do_txn(&w)
                                                       : do_look(&w);
        free(w.bytes);
        *ret_result = (int)w.core.result;
        return w.fatal;
}

int mfl_cluster_commit(void *user, const struct mfl_store_change *change, struct mfl_error *err)
{
        struct mfl_cluster *cluster = user;
        int result = MFL_COMMIT_WAIT;
        pthread_mutex_lock(&cluster->lock);
        bool is = cluster->view.role == MFL_CLUSTER_LEADS;
        uint64_t term = cluster->view.term;
        pthread_mutex_unlock(&cluster->lock);
        if (!is)
                return mfl_fail(err, MFL_STORE_AGAIN, "this server does not lead the cluster any more");
        struct mfl_cluster_entry entry = {
                .etcd = cluster->commit_etcd, .place = &cluster->place, .change = change, .term = term};
        pthread_mutex_lock(&cluster->commit_lock);
        int r = mfl_cluster_write(&entry, &result, err);
        pthread_mutex_unlock(&cluster->commit_lock);
        if (r || result == MFL_COMMIT_DONE)
                return r;
        if (result == MFL_COMMIT_WAIT) /* err says why */
                return MFL_STORE_AGAIN;
        pthread_mutex_lock(&cluster->lock);
        cluster->fenced = true;
        pthread_cond_signal(&cluster->woken);
        pthread_mutex_unlock(&cluster->lock);
        return mfl_fail(err, MFL_STORE_AGAIN,
                "another server leads the cluster now, or an older commit of this one arrived late");
}
