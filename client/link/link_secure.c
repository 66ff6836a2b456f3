/* SPDX-License-Identifier: Apache-2.0 */
/* Secure sums at the daemon: from a result to its masked update.
 *
 *   result computed -> its figures are kept here, and the agent announces none; where others of the node may add the update, they
 *                      stand behind it
 *   Announce sent   -> a member (client/secure/member.h) with new keys: KEYS. With a group, only its leader has one, when it has the
 *                      node's sum; Alone makes one for the update alone
 *   PEERS ..        -> what the member answers; MASK: a worker masks a copy of the update, then MASKED. From then on grants are
 *                      answered from the copy: the update itself never leaves
 *
 * Ways to end: OPENED; a lost connection; a refusal, which the log, the site's audit and the server are told of. */
#include "client/link/link_secure.h"

#include "client/noise/site.h"
#include "client/secure/member.h"
#include "common/base/log.h"
#include "proto/tls/tls_sign.h"

struct link_secure {
        struct mfl_link *link;
        uint64_t task, wire; /* the agent's number, and the server's */
        char job[MFL_JOB_ID_BYTES];
        struct mfl_tls_signer *signer;
        struct mfl_secure_trust trust;
        struct mfl_secure_member *member; /* NULL: the update waits for its group */
        uint32_t round;
        bool group;
        bool summed;                  /* what is masked is the node's sum */
        struct link_combine *combine; /* that sum, until it is masked */
        struct link_secure *next;
        bool dead; /* off the list; freed when the worker has masked */
        /* While the worker masks: */
        struct link_result *result;
        uint64_t *masked;
        char data[MFL_NAME_BYTES], *text; /* the job's data set and file; a copy */
        double charge;                    /* for the site's ledger; 0: nothing */
        struct mfl_secure_msg answer;
        struct mfl_work work;
        int status;
        struct mfl_error err;
};

static struct link_job *job_of(const struct mfl_link *link, const char *id)
{
        struct link_job *job = link->jobs;
        while (job && strcmp(job->id, id))
                job = job->next;
        return job;
}

/* ---- trust ---- */

static int sign(void *user, const void *data, size_t n, uint8_t ret_signature[MFL_SECURE_SIGNATURE_MAX],
        uint32_t *ret_n, struct mfl_error *err)
{
        struct link_secure *secure = user;
        return mfl_tls_sign(secure->signer, data, n, ret_signature, MFL_SECURE_SIGNATURE_MAX, ret_n, err);
}

static int keep(void *user, const uint8_t update[MFL_SHA256_BYTES], const uint8_t with[MFL_SHA256_BYTES],
        struct mfl_error *err)
{
        struct link_secure *secure = user;
        return mfl_link_book_keep(secure->link, update, with, err);
}

static int check(void *user, const uint8_t *chain, uint32_t n_chain, const void *data, size_t n,
        const uint8_t *signature, uint32_t n_signature, struct mfl_secure_identity *ret_identity,
        struct mfl_error *err)
{
        struct link_secure *secure = user;
        struct mfl_tls_identity identity;
        int r = mfl_tls_verify(
                secure->signer, chain, n_chain, data, n, signature, n_signature, &identity, err);
        if (r)
                return r;
        const struct mfl_policy *policy = mfl_gate_policy(secure->link->options.gate);
        if (policy && !mfl_policy_peer(policy, identity.fingerprint))
                return mfl_fail(err, MFL_INVALID,
                        "the certificate of '%s', sha256 %s, is not among this site's policy.peers",
                        identity.name, identity.fingerprint);
        mfl_strcpy(ret_identity->name, sizeof ret_identity->name, identity.name);
        mfl_strcpy(ret_identity->fingerprint, sizeof ret_identity->fingerprint, identity.fingerprint);
        return 0;
}

/* ---- life ---- */

static void leave_combine(struct link_secure *secure)
{
        if (secure->combine)
                mfl_link_combine_unref(secure->combine);
        secure->combine = NULL;
}

static void free_secure(struct link_secure *secure)
{
        mfl_secure_member_free(secure->member);
        leave_combine(secure);
        mfl_tls_signer_free(secure->signer);
        mfl_secure_msg_deinit(&secure->answer);
        free(secure->masked);
        free(secure->text);
        free(secure);
}

/* Takes it off the list. */
static void drop(struct link_secure **at)
{
        struct link_secure *secure = *at;
        *at = secure->next;
        secure->dead = true;
        if (!secure->result)
                free_secure(secure);
}

static void drop_one(struct link_secure *secure)
{
        struct link_secure **at = &secure->link->secures;
        while (*at && *at != secure)
                at = &(*at)->next;
        if (*at)
                drop(at);
}

void mfl_link_secure_cut(struct mfl_link *link)
{
        while (link->secures)
                drop(&link->secures);
}

static void send_secure(struct link_secure *secure, const struct mfl_secure_msg *answer)
{
        struct mfl_link *link = secure->link;
        struct mfl_msg msg = {.kind = MFL_MSG_SECURE, .secure = *answer};
        struct mfl_error err;
        msg.secure.task = secure->wire;
        if (link->stream_state && mfl_stream_send_msg(&link->stream, &msg, NULL, &err) < 0)
                mfl_link_fatal(link, &err);
}

static void tell_failed(struct mfl_link *link, uint64_t task, bool permanent, const char *reason)
{
        struct mfl_msg msg = {.kind = MFL_MSG_TASK_FAILED, .failed = {.task = task, .permanent = permanent}};
        struct mfl_error err;
        mfl_strcpy(msg.failed.reason, sizeof msg.failed.reason, reason);
        if (link->stream_state && mfl_stream_send_msg(&link->stream, &msg, NULL, &err) < 0)
                mfl_link_fatal(link, &err);
}

static void note(struct mfl_link *link, const char *id, const char *reason)
{
        const struct link_job *job = job_of(link, id);
        struct mfl_error err;
        mfl_log(MFL_LOG_WARN, "job %s: this daemon refuses a secure sum: %s", id, reason);
        if (link->options.gate && mfl_gate_note(link->options.gate, id, job ? job->owner : "",
                                          job ? job->text : "", "secure_sum", reason, &err))
                mfl_log(MFL_LOG_ERROR, "%s", err.text);
}

/* Ends this daemon's part. status: what the member, or a worker, has returned. */
static void refuse(struct link_secure *secure, int status, const struct mfl_error *err)
{
        struct mfl_link *link = secure->link;
        if (status < 0) {
                mfl_link_fatal(link, err);
                return;
        }
        note(link, secure->job, err->text);
        tell_failed(link, secure->wire, false, err->text);
        drop_one(secure);
}

/* ---- results ---- */

/* Behind the update, in memory that the daemons of the node can read. A group of a secure sum never adds on GPUs. */
static void put_tail(struct mfl_link *link, const struct mfl_train_result *result, const uint64_t *figures)
{
        uint64_t who[MFL_SECURE_WHO_WORDS];
        struct mfl_error err;
        if (result->tail != MFL_SECURE_TAIL || !result->data[0])
                return;
        uint64_t *tail = (uint64_t *)result->data[0] + result->n;
        if (mfl_secure_who(link->options.agent.info.name, who, &err)) {
                mfl_link_fatal(link, &err);
                return;
        }
        memcpy(tail, figures, MFL_SECURE_FIGURES * sizeof *tail);
        memcpy(tail + MFL_SECURE_FIGURES, who, sizeof who);
}

void mfl_link_secure_hide(
        struct mfl_link *link, const char *id, struct mfl_train_result *result, struct link_result *entry)
{
        const struct link_job *job = job_of(link, id);
        if (!job || !job->secure.bits)
                return;
        entry->secure = true;
        result->packed = result->ring.n > 0; /* masked numbers are as wide as the ring, and no wider */
        for (uint32_t i = 0; i < result->n_updates; i++) {
                struct mfl_announce *a = &result->updates[i];
                uint64_t figures[MFL_SECURE_FIGURES] = {
                        a->weight, a->samples, (uint64_t)a->loss_sum, a->correct, a->clamped};
                for (uint32_t s = 0; s < a->n_scalars; s++)
                        figures[MFL_FIGURE_SCALAR + s] = (uint64_t)a->scalars[s];
                memcpy(entry->figures, figures, sizeof figures);
                if (result->grouped && a->bytes)
                        put_tail(link, result, entry->figures);
                a->weight = a->samples = a->correct = a->clamped = 0;
                a->loss_sum = 0;
                a->n_scalars = 0;
                memset(a->scalars, 0, sizeof a->scalars);
                a->masked = true;
        }
}

/* Behind the node's sum. */
static const uint64_t *tail_of(const struct link_combine *combine)
{
        return (const uint64_t *)combine->call.combine.sum + combine->result->result->n;
}

static int new_member(struct link_secure *secure, const struct link_job *job,
        const struct link_result *result, struct mfl_error *err)
{
        const struct mfl_policy *policy = mfl_gate_policy(secure->link->options.gate);
        int r = mfl_tls_signer_new(&secure->link->options.tls, &secure->signer, err);
        if (r)
                return r;
        secure->trust = (struct mfl_secure_trust){.user = secure, .sign = sign, .check = check};
        secure->trust.chain = mfl_tls_signer_chain(secure->signer, &secure->trust.n_chain);
        struct mfl_secure_member_options options = {.job = job->id,
                .text = job->text,
                .round = secure->round,
                .params = result->params,
                .spec = job->secure,
                .least = policy ? policy->min_participants : 0,
                .members = job->bucket,
                .trust = &secure->trust,
                .book = secure->link->book,
                .keep = keep};
        if (result->result->noise)
                r = mfl_site_promise(secure->link->options.privacy, result->result->digest, options.who, err);
        else
                r = mfl_secure_who(secure->link->options.agent.info.name, options.who, err);
        if (secure->combine)
                memcpy(options.who, tail_of(secure->combine) + MFL_SECURE_FIGURES, sizeof options.who);
        return r ? r : mfl_secure_member_new(&options, &secure->member, err);
}

/* Makes the member, of the node's sum or of the update alone. */
static void begin(struct link_secure *secure)
{
        struct mfl_link *link = secure->link;
        struct link_result *result = mfl_link_result_find(link, secure->task);
        const struct link_job *job = job_of(link, secure->job);
        struct mfl_secure_msg keys = {0};
        struct mfl_error err;
        if (!result || !job) {
                drop_one(secure);
                return;
        }
        int r = new_member(secure, job, result, &err);
        if (!r)
                r = mfl_secure_member_keys(secure->member, &keys, &err);
        if (r) {
                refuse(secure, r, &err);
                return;
        }
        send_secure(secure, &keys);
        mfl_secure_msg_deinit(&keys);
}

void mfl_link_secure_summed(struct mfl_link *link)
{
        for (struct link_secure *secure = link->secures, *next; secure; secure = next) {
                next = secure->next;
                struct link_combine *combine =
                        secure->group ? mfl_link_combine_find(link, secure->task) : NULL;
                if (!combine || combine->state != LINK_COMBINE_DONE || !combine->call.combine.sum)
                        continue;
                secure->group = false;
                secure->summed = true;
                secure->combine = combine;
                combine->refs++;
                begin(secure);
        }
}

/* The group is over: what was made of its sum is, too. */
void mfl_link_secure_alone(struct mfl_link *link, uint64_t wire)
{
        for (struct link_secure **at = &link->secures; *at; at = &(*at)->next) {
                struct link_secure *secure = *at;
                if (secure->wire != wire)
                        continue;
                struct link_secure *own = secure->group || secure->summed ? mfl_calloc(1, sizeof *own) : NULL;
                if (!own)
                        return;
                own->link = link;
                own->task = secure->task;
                own->wire = wire;
                own->round = secure->round;
                mfl_strcpy(own->job, sizeof own->job, secure->job);
                drop(at);
                own->next = link->secures;
                link->secures = own;
                begin(own);
                return;
        }
}

/* Who was not masked until now never will be, and would keep the node's sum. */
void mfl_link_secure_freed(struct mfl_link *link, uint64_t task)
{
        for (struct link_secure **at = &link->secures; *at;) {
                if ((*at)->task == task && (*at)->combine)
                        drop(at);
                else
                        at = &(*at)->next;
        }
        mfl_link_combine_stop(link, task, true);
}

/* An earlier sum of this job is over, whatever became of it. */
static void drop_earlier(struct mfl_link *link, const char *job)
{
        for (struct link_secure **at = &link->secures; *at;) {
                if (strcmp((*at)->job, job) == 0)
                        drop(at);
                else
                        at = &(*at)->next;
        }
}

void mfl_link_secure_announced(struct mfl_link *link, const struct mfl_agent_action *action)
{
        const struct mfl_announce *a = &action->msg.announce;
        const struct link_result *result = mfl_link_result_find(link, action->task_number);
        const struct link_job *job = job_of(link, a->job);
        struct mfl_error err;
        if (!result || !result->secure || !a->bytes || !job || !link->stream_state)
                return;
        drop_earlier(link, a->job);
        struct link_secure *secure = mfl_calloc(1, sizeof *secure);
        if (!secure) {
                mfl_fail_memory(&err, sizeof *secure, "a secure sum");
                mfl_link_fatal(link, &err);
                return;
        }
        secure->link = link;
        secure->task = action->task_number;
        secure->wire = a->task;
        secure->round = a->round;
        secure->group = a->group != 0;
        mfl_strcpy(secure->job, sizeof secure->job, a->job);
        secure->next = link->secures;
        link->secures = secure;
        if (!secure->group)
                begin(secure);
}

/* ---- masking ---- */

/* This daemon's share of the sum's noise, in jobs of the kind distributed: after the book has the update's digest, before the mask. */
static int add_share(struct link_secure *secure, struct mfl_error *err)
{
        const struct mfl_train_result *result = secure->result->result;
        const struct mfl_site_privacy *site = secure->link->options.privacy;
        uint8_t group[MFL_SHA256_BYTES];
        struct mfl_site_share share = {.data = secure->data,
                .text = secure->text,
                .params = secure->result->params,
                .update = mfl_secure_member_update(secure->member),
                .group = group,
                .round = secure->round,
                .threads = 1,
                .sigma = result->noise,
                .n = result->n,
                .charge = secure->charge};
        if (!result->noise)
                return 0;
        mfl_assert(site && site->secret); /* the trainer has refused the task without */
        int r = mfl_secure_member_honest(secure->member, &share.honest, err);
        if (!r)
                r = mfl_secure_member_group(secure->member, group, err);
        return r ? r : mfl_site_add_share(site, &share, (int64_t *)secure->masked, err);
}

static void run_mask(struct mfl_work *work)
{
        struct link_secure *secure = MFL_CONTAINER_OF(work, struct link_secure, work);
        const struct mfl_train_result *result = secure->result->result;
        const struct link_combine *combine = secure->combine;
        memcpy(secure->answer.figures, combine ? tail_of(combine) : secure->result->figures,
                sizeof secure->answer.figures);
        memcpy(secure->masked, combine ? combine->call.combine.sum : result->data[0],
                result->n * sizeof *secure->masked);
        secure->status = mfl_secure_member_knows(secure->member, secure->masked, result->n, &secure->err);
        if (!secure->status)
                secure->status = add_share(secure, &secure->err);
        if (!secure->status)
                secure->status = mfl_secure_ring_fold(
                        &result->ring, (int64_t *)secure->masked, result->n, &secure->err);
        if (!secure->status)
                secure->status = mfl_secure_member_mask(
                        secure->member, secure->masked, result->n, secure->answer.figures, &secure->err);
        mfl_secure_ring_cut(&result->ring, 0, secure->masked, result->n);
}

static void on_masked(struct mfl_work *work)
{
        struct link_secure *secure = MFL_CONTAINER_OF(work, struct link_secure, work);
        struct mfl_link *link = secure->link;
        struct link_result *result = secure->result;
        secure->result = NULL;
        if (secure->dead) {
                free_secure(secure);
        } else if (secure->status || work->cancelled) {
                refuse(secure, secure->status, &secure->err);
        } else {
                result->masked = secure->masked;
                secure->masked = NULL;
                leave_combine(secure);
                send_secure(secure, &secure->answer);
        }
        mfl_link_result_unref(link, result);
        mfl_link_pending_done(link);
}

static int start_mask(struct link_secure *secure, struct mfl_error *err)
{
        struct mfl_link *link = secure->link;
        struct link_result *result = mfl_link_result_find(link, secure->task);
        if (!result || result->refs > (secure->combine ? 1u : 0u))
                return mfl_fail(err, MFL_INVALID, "the update is not there, or is being sent");
        const struct mfl_train_result *made = result->result;
        if (made->n_updates != 1 || made->updates[0].encoding != MFL_ENCODING_I64 ||
                made->updates[0].bytes != made->n * sizeof *secure->masked)
                return mfl_fail(err, MFL_INVALID,
                        "this daemon's update is not one sum of int64, which alone can be masked");
        free(result->masked);
        result->masked = NULL;
        secure->masked = mfl_malloc(result->result->n * sizeof *secure->masked);
        if (!secure->masked)
                return mfl_fail_memory(err, result->result->n * sizeof *secure->masked, "a masked update");
        if (made->noise) {
                const struct link_job *job = job_of(link, secure->job);
                secure->text = job ? mfl_strdup(job->text) : NULL;
                if (!secure->text)
                        return mfl_fail(err, MFL_INVALID, "the job is not known any more");
                mfl_strcpy(secure->data, sizeof secure->data, job->data);
                bool counted = link->options.privacy->rule.noise > 0;
                secure->charge = counted ? 0 : job->privacy.noise / MFL_PRIVACY_LOCAL_DISTANCE;
        }
        secure->work = (struct mfl_work){.run = run_mask, .done = on_masked};
        secure->answer.step = MFL_SECURE_MASKED;
        secure->answer.has_figures = true;
        secure->result = result;
        if (mfl_worker_submit(link->options.hasher, &secure->work)) {
                secure->result = NULL;
                return mfl_fail(err, -EAGAIN, "mask an update: the worker's queue is full");
        }
        result->refs++;
        link->pending++;
        return 0;
}

/* ---- the server's steps ---- */

void mfl_link_secure_message(struct mfl_link *link, const struct mfl_secure_msg *msg)
{
        struct link_secure *secure = link->secures;
        struct mfl_secure_msg answer = {0};
        struct mfl_error err;
        while (secure && secure->wire != msg->task)
                secure = secure->next;
        if (!secure || secure->result || !secure->member) {
                mfl_link_trace(link, "a step of a secure sum that is over, or not due: ignored");
                return;
        }
        int r = mfl_secure_member_take(secure->member, msg, &answer, &err);
        if (!r && mfl_secure_member_masks(secure->member))
                r = start_mask(secure, &err);
        if (r) {
                refuse(secure, r, &err);
                return;
        }
        enum mfl_secure_step step = answer.step;
        if (step)
                send_secure(secure, &answer);
        mfl_secure_msg_deinit(&answer);
        if (step == MFL_SECURE_SIGNED)
                mfl_link_trace(link, "job %s: a secure sum with %u participants", secure->job,
                        mfl_secure_member_count(secure->member));
        if (step == MFL_SECURE_OPENED)
                drop_one(secure);
}

void mfl_link_secure_apart(struct mfl_link *link, struct mfl_task *task)
{
        const struct link_job *job = job_of(link, task->job);
        if (job && job->secure.bits && mfl_gate_policy(link->options.gate) &&
                task->group.collective == MFL_COLLECTIVE_SHM)
                task->group = (struct mfl_group){0};
}

bool mfl_link_secure_lets(struct mfl_link *link, const struct mfl_task *task)
{
        const struct link_job *job = job_of(link, task->job);
        const char *why = NULL;
        if (!job || !job->secure.bits || task->kind == MFL_TASK_EVAL)
                return true;
        if (!link->options.tls.ca)
                why = "secure_sum: " MFL_SECURE_NEEDS_TLS;
        else if ((task->group.group && task->group.collective != MFL_COLLECTIVE_SHM) || task->team.team ||
                 task->single_updates)
                why = "the server wants updates of a job with secure_sum to be shared before they are masked";
        if (!why)
                return true;
        note(link, task->job, why);
        tell_failed(link, task->task, true, why);
        return false;
}
