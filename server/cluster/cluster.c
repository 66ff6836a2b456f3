/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster's thread: the actions of lead_core.h, carried out one by one, and what the server is told. See cluster.h.
 *   - open: etcd's addresses, the shared directory, the state directory as a follower; then the thread;
 *   - the thread: step, carry out, step with the result; it sleeps until the core wants to be woken;
 *   - close: the thread gives the lease back.
 * Fails at the start when the options or the state directory are wrong. Later nothing is fatal: what goes wrong is in the view, is
 * logged once, and is tried again. */
#include "server/cluster/cluster_internal.h"

#include <stdio.h>
#include <time.h>

#include "common/base/fs.h"
#include "common/base/log.h"

#define POLL_MS 250u
#define REQUEST_MS 2000u
#define SWEEP_EVERY_MS 600000u

/* ---- what the server is told ---- */

static void tell(struct mfl_cluster *cluster, enum mfl_cluster_role role, uint64_t term)
{
        pthread_mutex_lock(&cluster->lock);
        cluster->view.role = role;
        cluster->view.term = term;
        if (cluster->changed)
                cluster->changed(cluster->user);
        pthread_mutex_unlock(&cluster->lock);
}

/* why "": all is well. A line in the log for each that is new. */
static void trouble(struct mfl_cluster *cluster, const char *why)
{
        pthread_mutex_lock(&cluster->lock);
        bool same = !strcmp(cluster->view.trouble, why);
        mfl_strcpy(cluster->view.trouble, sizeof cluster->view.trouble, why);
        pthread_mutex_unlock(&cluster->lock);
        if (!same && *why)
                mfl_log(MFL_LOG_WARN, "cluster: %s", why);
        else if (!same)
                mfl_log(MFL_LOG_INFO, "cluster: all is well again");
}

/* ---- actions ---- */

static int open_replica(struct mfl_cluster *cluster, struct mfl_error *err)
{
        int r = cluster->replica ? 0 : mfl_replica_open(cluster->place.state_dir, &cluster->replica, err);
        cluster->files_seq = UINT64_MAX;
        return r;
}

static struct mfl_lead_event do_read(struct mfl_cluster *cluster)
{
        struct mfl_lead_event event = {.kind = MFL_LEAD_EV_READ};
        struct mfl_cluster_view view = {.leader = ""};
        struct mfl_error err = {""};
        uint64_t term = 0;
        int r = open_replica(cluster, &err);
        if (!r)
                r = mfl_cluster_leader(cluster->etcd, &cluster->place, &view, &term, &err);
        struct mfl_cluster_reader reader = {
                cluster->etcd, &cluster->place, cluster->replica, &cluster->files, &cluster->files_seq, ""};
        if (!r)
                r = mfl_cluster_read(&reader, &event.behind, &err);
        event.leader = term != 0;
        event.ok = !r;
        if (!r && !event.behind && term && cluster->lead.state == MFL_LEAD_FOLLOW &&
                mfl_now_ms() >= cluster->sweep_ms) {
                cluster->sweep_ms = mfl_now_ms() + SWEEP_EVERY_MS;
                r = mfl_cluster_sweep(&reader, &err); /* a failure is only reported */
        }
        pthread_mutex_lock(&cluster->lock);
        mfl_strcpy(cluster->view.leader, sizeof cluster->view.leader, view.leader);
        mfl_strcpy(cluster->view.leader_name, sizeof cluster->view.leader_name, view.leader_name);
        cluster->view.seq = cluster->replica ? mfl_replica_seq(cluster->replica) : 0;
        bool ended = cluster->view.role == MFL_CLUSTER_ENDED;
        pthread_mutex_unlock(&cluster->lock);
        trouble(cluster, r ? err.text : "");
        if (*reader.ended_by && !ended)
                tell(cluster, MFL_CLUSTER_ENDED, 0);
        return event;
}

static struct mfl_lead_event do_grant(struct mfl_cluster *cluster)
{
        struct mfl_lead_event event = {.kind = MFL_LEAD_EV_GRANTED, .sent_ms = mfl_now_ms()};
        struct mfl_error err;
        uint32_t ttl_s = 0;
        event.ok = !mfl_etcd_grant(cluster->etcd, (uint32_t)((cluster->lead.options.lease_ms + 999) / 1000),
                &event.lease, &ttl_s, &err);
        event.ttl_ms = (uint64_t)ttl_s * 1000;
        trouble(cluster, event.ok ? "" : err.text);
        return event;
}

static struct mfl_lead_event do_campaign(struct mfl_cluster *cluster)
{
        struct mfl_lead_event event = {.kind = MFL_LEAD_EV_CAMPAIGN};
        struct mfl_etcd_values values = {0};
        struct mfl_error err;
        char own[512];
        bool won;
        int n = snprintf(own, sizeof own, "%s\n%s\n%llx\n", cluster->name, cluster->address,
                (unsigned long long)cluster->lead.lease);
        int r = mfl_etcd_create(
                cluster->etcd, cluster->place.leader, own, (size_t)n, cluster->lead.lease, &won, &err);
        /* Also after a clear answer: the revision is the key's. */
        if (!r)
                r = mfl_etcd_range(
                        cluster->etcd, cluster->place.leader, cluster->place.leader_end, 1, &values, &err);
        event.ok = !r;
        if (!r && values.n && values.v[0].n == (size_t)n && !memcmp(values.v[0].bytes, own, (size_t)n))
                event.term = values.v[0].created;
        mfl_etcd_values_deinit(&values);
        trouble(cluster, r ? err.text : "");
        return event;
}

static struct mfl_lead_event do_keep(struct mfl_cluster *cluster)
{
        struct mfl_lead_event event = {.kind = MFL_LEAD_EV_KEPT, .sent_ms = mfl_now_ms()};
        struct mfl_error err;
        uint32_t ttl_s = 0;
        event.ok = !mfl_etcd_keep(cluster->etcd, cluster->lead.lease, &ttl_s, &err);
        event.ttl_ms = (uint64_t)ttl_s * 1000;
        trouble(cluster, event.ok ? "" : err.text);
        return event;
}

/* While a large file is copied. */
static bool beat(void *user)
{
        struct mfl_cluster *cluster = user;
        struct mfl_lead *lead = &cluster->lead;
        if (lead->state != MFL_LEAD_CATCH_UP || mfl_now_ms() < lead->keep_ms)
                return true;
        struct mfl_lead_event event = do_keep(cluster);
        event.now_ms = mfl_now_ms();
        mfl_lead_step(lead, &event);
        return lead->state == MFL_LEAD_CATCH_UP;
}

static void serve(struct mfl_cluster *cluster)
{
        mfl_log(MFL_LOG_INFO, "cluster: this server (%s) leads, term %llu, after entry %llu", cluster->name,
                (unsigned long long)cluster->lead.term,
                (unsigned long long)mfl_replica_seq(cluster->replica));
        mfl_replica_close(cluster->replica);
        cluster->replica = NULL;
        cluster->sweep_ms = mfl_now_ms() + SWEEP_EVERY_MS;
        tell(cluster, MFL_CLUSTER_LEADS, cluster->lead.term);
}

/* A shared directory is swept by those that follow. */
static void sweep_own(struct mfl_cluster *cluster)
{
        struct mfl_error err;
        if (!cluster->place.copies || cluster->lead.state != MFL_LEAD_LEADS ||
                mfl_now_ms() < cluster->sweep_ms)
                return;
        cluster->sweep_ms = mfl_now_ms() + SWEEP_EVERY_MS;
        if (mfl_cluster_sweep_own(cluster->etcd, &cluster->place, &err))
                mfl_log(MFL_LOG_WARN, "cluster: %s", err.text);
}

/* Sleeps until the core wants to be woken, or something is told. */
static struct mfl_lead_event wait_event(struct mfl_cluster *cluster)
{
        struct mfl_lead_event event = {.kind = MFL_LEAD_EV_TICK};
        struct timespec until;
        uint64_t now = mfl_now_ms(), wake = cluster->lead.wake_ms;
        uint64_t wait = wake > now ? MFL_MIN(wake - now, (uint64_t)60000) : 0;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += (time_t)(wait / 1000);
        until.tv_nsec += (long)(wait % 1000) * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&cluster->lock);
        if (wait && !cluster->stop && !cluster->fenced && !cluster->closed)
                pthread_cond_timedwait(&cluster->woken, &cluster->lock, &until);
        if (cluster->closed)
                event.kind = MFL_LEAD_EV_RESUMED;
        else if (cluster->fenced)
                event.kind = MFL_LEAD_EV_FENCED;
        cluster->fenced = cluster->closed = false;
        pthread_mutex_unlock(&cluster->lock);
        return event;
}

static struct mfl_lead_event carry_out(struct mfl_cluster *cluster, enum mfl_lead_action_kind action)
{
        struct mfl_error err;
        switch (action) {
        case MFL_LEAD_ACT_NONE:
                sweep_own(cluster);
                return wait_event(cluster);
        case MFL_LEAD_ACT_READ:
                return do_read(cluster);
        case MFL_LEAD_ACT_GRANT:
                return do_grant(cluster);
        case MFL_LEAD_ACT_CAMPAIGN:
                return do_campaign(cluster);
        case MFL_LEAD_ACT_KEEP:
                return do_keep(cluster);
        case MFL_LEAD_ACT_REVOKE:
                mfl_etcd_revoke(cluster->etcd, cluster->lead.old_lease, &err);
                break;
        case MFL_LEAD_ACT_SERVE:
                serve(cluster);
                break;
        case MFL_LEAD_ACT_STEP_DOWN:
                mfl_log(MFL_LOG_WARN, "cluster: this server (%s) leads no longer: %s", cluster->name,
                        mfl_now_ms() >= cluster->lead.until_ms ? "its lease is over"
                                                               : "a commit was refused");
                tell(cluster, MFL_CLUSTER_LEAVES, 0);
        }
        return (struct mfl_lead_event){.kind = MFL_LEAD_EV_TICK};
}

static bool is_stopping(struct mfl_cluster *cluster)
{
        pthread_mutex_lock(&cluster->lock);
        bool stop = cluster->stop && !cluster->closed;
        pthread_mutex_unlock(&cluster->lock);
        return stop;
}

static void *run(void *arg)
{
        struct mfl_cluster *cluster = arg;
        struct mfl_lead_event event = {.kind = MFL_LEAD_EV_TICK};
        struct mfl_error err;
        while (!is_stopping(cluster)) {
                event.now_ms = mfl_now_ms();
                event = carry_out(cluster, mfl_lead_step(&cluster->lead, &event));
        }
        if (cluster->lead.lease)
                mfl_etcd_revoke(cluster->etcd, cluster->lead.lease, &err);
        return NULL;
}

/* ---- open ---- */

int mfl_cluster_place_init(
        struct mfl_cluster_place *place, const struct mfl_cluster_options *options, struct mfl_error *err)
{
        *place = (struct mfl_cluster_place){.prefix = ""};
        if (!mfl_strcpy(place->prefix, sizeof place->prefix, options->prefix) ||
                !mfl_strcpy(place->state_dir, sizeof place->state_dir, options->state_dir) ||
                !mfl_strcpy(place->blobs.dir, sizeof place->blobs.dir, options->blobs) ||
                !mfl_strcpy(place->blobs.name, sizeof place->blobs.name, options->name))
                return mfl_fail(err, MFL_INVALID, "cluster: a name or a path is too long");
        place->blobs.links = *options->servers != 0;
        snprintf(place->leader, sizeof place->leader, "%s/leader", place->prefix);
        snprintf(place->leader_end, sizeof place->leader_end, "%s/leader!",
                place->prefix); /* any byte ends the range */
        snprintf(place->log_end, sizeof place->log_end, "%s/log0", place->prefix); /* '0' follows '/' */
        return mfl_fs_mkdirs(place->blobs.dir, 0700, err);
}

int mfl_cluster_copies(
        struct mfl_cluster_place *place, const struct mfl_cluster_options *options, struct mfl_error *err)
{
        const struct mfl_copies_options copies = {options->name, options->servers, options->tls};
        return *options->servers ? mfl_copies_open(&copies, &place->copies, err) : 0;
}

int mfl_cluster_etcd_new(
        const struct mfl_cluster_options *options, struct mfl_etcd **ret_etcd, struct mfl_error *err)
{
        struct mfl_etcd_options etcd = {.endpoints = options->etcd,
                .ca = options->tls_ca,
                .cert = options->tls_cert,
                .key = options->tls_key,
                .timeout_ms = (uint32_t)MFL_MIN((uint64_t)REQUEST_MS, options->lease_ms / 2)};
        return mfl_etcd_new(&etcd, ret_etcd, err);
}

static int start_thread(struct mfl_cluster *cluster, struct mfl_error *err)
{
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&cluster->woken, &attributes);
        pthread_condattr_destroy(&attributes);
        pthread_mutex_init(&cluster->lock, NULL);
        pthread_mutex_init(&cluster->commit_lock, NULL);
        int r = pthread_create(&cluster->thread, NULL, run, cluster);
        cluster->runs = !r;
        return r ? mfl_fail(err, -r, "start the cluster's thread: %s", strerror(r)) : 0;
}

int mfl_cluster_open(
        const struct mfl_cluster_options *options, struct mfl_cluster **ret_cluster, struct mfl_error *err)
{
        struct mfl_cluster *cluster = mfl_calloc(1, sizeof *cluster);
        if (!cluster)
                return mfl_fail_memory(err, sizeof *cluster, "the cluster");
        mfl_strcpy(cluster->name, sizeof cluster->name, options->name);
        mfl_strcpy(cluster->address, sizeof cluster->address, options->address);
        cluster->store = (struct mfl_store_cluster){mfl_cluster_blob, mfl_cluster_commit, cluster};
        mfl_lead_init(&cluster->lead, &(struct mfl_lead_options){options->lease_ms, POLL_MS});
        int r = mfl_cluster_place_init(&cluster->place, options, err);
        cluster->place.blobs.beat = beat;
        cluster->place.blobs.user = cluster;
        if (!r)
                r = mfl_cluster_copies(&cluster->place, options, err);
        if (!r)
                r = mfl_cluster_etcd_new(options, &cluster->etcd, err);
        if (!r)
                r = mfl_cluster_etcd_new(options, &cluster->commit_etcd, err);
        if (!r)
                r = open_replica(cluster, err);
        if (!r)
                r = start_thread(cluster, err);
        if (r) {
                mfl_cluster_close(cluster);
                return r;
        }
        *ret_cluster = cluster;
        return 0;
}

void mfl_cluster_close(struct mfl_cluster *cluster)
{
        if (!cluster)
                return;
        if (cluster->runs) {
                pthread_mutex_lock(&cluster->lock);
                cluster->stop = true;
                pthread_cond_signal(&cluster->woken);
                pthread_mutex_unlock(&cluster->lock);
                pthread_join(cluster->thread, NULL);
                pthread_mutex_destroy(&cluster->lock);
                pthread_mutex_destroy(&cluster->commit_lock);
                pthread_cond_destroy(&cluster->woken);
        }
        mfl_copies_close(cluster->place.copies);
        mfl_replica_close(cluster->replica);
        mfl_etcd_free(cluster->etcd);
        mfl_etcd_free(cluster->commit_etcd);
        free(cluster->files.v);
        free(cluster);
}

void mfl_cluster_listen(struct mfl_cluster *cluster, void (*changed)(void *user), void *user)
{
        pthread_mutex_lock(&cluster->lock);
        cluster->changed = changed;
        cluster->user = user;
        if (changed)
                changed(user);
        pthread_mutex_unlock(&cluster->lock);
}

void mfl_cluster_look(struct mfl_cluster *cluster, struct mfl_cluster_view *ret_view)
{
        pthread_mutex_lock(&cluster->lock);
        *ret_view = cluster->view;
        pthread_mutex_unlock(&cluster->lock);
}

const struct mfl_store_cluster *mfl_cluster_store(struct mfl_cluster *cluster)
{
        return &cluster->store;
}

void mfl_cluster_closed(struct mfl_cluster *cluster)
{
        pthread_mutex_lock(&cluster->lock);
        cluster->view.role = MFL_CLUSTER_FOLLOWS;
        cluster->view.term = 0;
        cluster->view.leader[0] = 0;
        cluster->closed = true;
        pthread_cond_signal(&cluster->woken);
        pthread_mutex_unlock(&cluster->lock);
}
