/* SPDX-License-Identifier: Apache-2.0 */
/* Privacy of a job: its secret, its budget, and its releases.
 *
 * WHAT A RELEASE IS. Once a round is applied, its params may leave: daemons evaluate them, and train the next round from them,
 * before the round is committed. So a release happens where a round is applied, and it is written down before: a row with the
 * round and a digest of the key and the exact sum (which does not tell of the sum whoever lacks the key), durable before a bit of
 * noise is drawn. All rows count, whether their round was committed or not.
 *
 * NO TWO SUMS HAVE THE SAME NOISE. The noise follows from the key, the job, the round, and the digest of the exact sum. After kill
 * -9 the round is trained again. With the same sum it gets the same noise: nothing new is told, and the row is there. With another
 * sum (a client was lost, or another was drawn) the noise is independent, and the round has cost two releases: were it the same, the
 * difference of both would be the difference of the sums. This also holds where a state directory is restored from a copy, or job
 * numbers start again.
 *
 * WHO IS DRAWN is secret, too: the accountant counts on it (amplification by sampling), and the job's seed is public.
 *
 * CORRELATED NOISE (mechanism bisr, bsr) follows from the key, the job, when it was submitted, and the round alone, since later rounds need it
 * again. So a round has one release. If it is trained again, after kill -9, and its sum is another, the job stops. It also stops where the key is
 * another than earlier rounds had (a state directory of which a part was restored, another server of a cluster): noise of another key does
 * not take back what theirs has added, and the rounds would cost more than one release. Therefore a row's digest begins with a mark of the key.
 *
 * KIND LOCAL. Daemons add the noise (common/method/local_noise.h), so there is no secret here. A client makes one release for each params that
 * a round has started from: a round that is trained again from the same ones gets the same noise again. But the next round trains while
 * a round is stored, and after kill -9 that round may be trained again with other sites: then the next one starts from other
 * params, which is another release. So sums are written down as above. A round has at most as many releases of a client as the round
 * before it has rows.
 *
 * SECURE SUMS. The row that says that a sum's opening begins (job_secure.c) is the release, of every kind: a round has one at most, is skipped
 * after a kill, and is never opened again. A skipped round of kind central puts out noise alone, which is not the noise of what the
 * opening may have put out before, since the digest of its sum is another.
 *
 * Worker thread. Fails when the budget is spent, and when the disk or the key's file is not usable.
 */
#include <stdio.h>

#include "common/base/log.h"
#include "common/method/central_grid.h"
#include "common/privacy/secret.h"
#include "common/privacy/spend.h"
#include "server/jobs/job_internal.h"
#include "server/jobs/spent.h"

#define MARK_BYTES 16 /* of a row's 32 */

static int open_secret(const struct mfl_server_job *job, struct mfl_secret *ret_secret, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *path =
                mfl_asprintf("%s/" MFL_STORE_SECRET_FILE, mfl_store_dir(job->jobs->store));
        if (!path)
                return mfl_fail_memory(err, 64, "a file name");
        return mfl_secret_open(path, ret_secret, err);
}

/* How many releases the budget allows: at most one for each round, and those of rounds that were trained again. */
static int find_budget(struct mfl_server_job *job, uint64_t released, struct mfl_error *err)
{
        const struct mfl_job *spec = job->spec;
        int r = mfl_privacy_releases(
                &spec->privacy, mfl_job_rate(spec), spec->rounds + released, &job->releases_max, err);
        return r || job->releases_max ? r : mfl_privacy_check_first(&spec->privacy, mfl_job_rate(spec), err);
}

static struct mfl_spent_ask ask_of(const struct mfl_server_job *job)
{
        return (struct mfl_spent_ask){
                .store = job->jobs->store, .limits = job->jobs->limits, .spec = job->spec, .job = job->id};
}

static bool is_central(const struct mfl_server_job *job)
{
        return job->spec->privacy.kind == MFL_PRIVACY_CENTRAL;
}

static bool is_correlated(const struct mfl_server_job *job)
{
        return job->spec->privacy.mechanism != MFL_MECHANISM_GAUSSIAN;
}

/* Kinds local and distributed, and secure sums: what is released is so before the server adds up, so all rounds to come are counted when the
 * job begins. */
static int reserve(struct mfl_server_job *job, uint64_t rounds, struct mfl_error *err)
{
        const struct mfl_spent_ask ask = ask_of(job);
        int r = mfl_spent_check(&ask, rounds, err);
        return r ? r : mfl_spent_add(&ask, rounds, err);
}

/* Kind central: the release is counted for its data set, too, before there is any noise. */
static int count_release(
        struct mfl_server_job *job, uint64_t releases, struct mfl_core_event *event, struct mfl_error *err)
{
        const struct mfl_spent_ask ask = ask_of(job);
        int r = mfl_spent_check(&ask, releases, err);
        event->spent |= r == MFL_INVALID;
        return r ? r : mfl_spent_add(&ask, releases, err);
}

int mfl_job_private_prepare(struct mfl_server_job *job, const struct mfl_fixed *fixed, uint64_t n,
        struct job_private *ret_private, struct mfl_error *err)
{
        struct mfl_store_released released = {0};
        struct mfl_secret secret = {{0}}, seed = {{0}};
        *ret_private = (struct job_private){0};
        if (!job->spec->privacy.kind) {
                const struct mfl_spent_ask ask = ask_of(job);
                return mfl_spent_check_plan(&ask, err);
        }
        int r = mfl_central_check(job->spec, fixed, n, err);
        bool ahead = !is_central(job) || job->spec->secure.bits;
        if (!r)
                r = mfl_store_released(job->jobs->store, job->id, job->committed, &released, err);
        if (!r)
                r = find_budget(job, released.n, err);
        if (!r && is_central(job))
                r = open_secret(job, &secret, err);
        if (!r && is_central(job))
                r = mfl_secret_derive(&secret, "select", job->id, 0, NULL, &seed, err);
        if (r)
                return r;
        /* A round that is trained again costs nothing if its sum is the same. If it differs, APPLY refuses what is too much. */
        uint64_t left = job->releases_max - MFL_MIN(released.n, job->releases_max) + released.beyond;
        ret_private->select_seed = mfl_sha256_number(seed.key);
        ret_private->last_round = (uint32_t)MFL_MIN(job->committed + left, (uint64_t)job->spec->rounds);
        job->last_round = ret_private->last_round;
        return ahead ? reserve(job, released.n - released.beyond + job->last_round - job->committed, err) : 0;
}

/* A row of kind local. Sites have noise of their own in the sum, so its digest needs no key. There must be room for what
 * they release in the next round. The data set's row has one release per round already. */
static int release_local(struct mfl_server_job *job, uint32_t round, const uint8_t digest[MFL_DIGEST_BYTES],
        uint64_t *ret_n, struct mfl_core_event *event, struct mfl_error *err)
{
        bool more = round < job->last_round;
        int r = mfl_store_release(
                job->jobs->store, job->id, round, digest, job->releases_max - more, ret_n, err);
        if (r || *ret_n <= round)
                return r;
        return count_release(job, *ret_n + (more ? job->last_round - round : 0), event, err);
}

/* Correlated noise: the row's name begins with the mark of its key, as all rows before must. */
static int mark_row(struct mfl_server_job *job, const struct mfl_secret *noise, struct mfl_secret *name,
        struct mfl_core_event *event, struct mfl_error *err)
{
        struct mfl_secret mark;
        bool alike = false;
        int r = mfl_secret_derive(noise, "mark", job->id, 0, NULL, &mark, err);
        if (r)
                return r;
        memcpy(name->key, mark.key, MARK_BYTES);
        r = mfl_store_released_alike(job->jobs->store, job->id, mark.key, MARK_BYTES, &alike, err);
        if (r || alike)
                return r;
        event->spent = true;
        return mfl_fail(err, MFL_INVALID,
                "this server's " MFL_STORE_SECRET_FILE
                " is another than the one of earlier rounds, and noise of "
                "privacy.mechanism %s takes back what theirs has added: clone the job",
                mfl_privacy_mechanism_names[job->spec->privacy.mechanism]);
}

/* Kind central: the row, and the key of the noise. */
static int release_central(struct mfl_server_job *job, uint32_t round, const uint8_t digest[MFL_DIGEST_BYTES],
        uint64_t *ret_n, struct mfl_core_event *event, struct mfl_error *err)
{
        struct mfl_secret secret, name, noise;
        uint64_t most = is_correlated(job) ? MFL_MIN(job->releases_max, (uint64_t)round) : job->releases_max;
        int r = open_secret(job, &secret, err);
        if (!r)
                r = mfl_secret_derive(&secret, "release", job->id, round, digest, &name, err);
        if (!r && is_correlated(job))
                r = mfl_secret_derive(
                        &secret, "correlated", job->id, job->created_unix_ms, NULL, &noise, err);
        else if (!r)
                r = mfl_secret_derive(&secret, "noise", job->id, round, digest, &noise, err);
        if (!r && is_correlated(job))
                r = mark_row(job, &noise, &name, event, err);
        if (!r && !job->spec->secure.bits)
                r = mfl_store_release(job->jobs->store, job->id, round, name.key, most, ret_n, err);
        if (!r && !job->spec->secure.bits)
                r = count_release(job, *ret_n, event, err);
        if (!r)
                mfl_runtime_set_noise(job->runtime, &noise);
        return r;
}

/* The opening's rows. */
static int count_openings(struct mfl_server_job *job, uint64_t *ret_n, struct mfl_error *err)
{
        struct mfl_store_released released = {0};
        int r = mfl_store_released(job->jobs->store, job->id, job->committed, &released, err);
        *ret_n = released.n;
        return r;
}

static int refuse_another(
        const struct mfl_server_job *job, struct mfl_core_event *event, struct mfl_error *err)
{
        event->spent = true;
        if (is_correlated(job))
                return mfl_fail(err, MFL_INVALID,
                        "it was trained again and its sum differs, and privacy.mechanism %s has one noise "
                        "for "
                        "a round: two sums with it would show their difference",
                        mfl_privacy_mechanism_names[job->spec->privacy.mechanism]);
        return mfl_fail(err, MFL_INVALID,
                "it was trained again and its sum differs: another release would pass privacy.epsilon_max, "
                "which is %g",
                job->spec->privacy.epsilon_max);
}

int mfl_job_private_release(struct mfl_server_job *job, uint32_t round, const struct mfl_round_totals *totals,
        struct mfl_core_event *event, struct mfl_error *err)
{
        uint8_t digest[MFL_DIGEST_BYTES];
        uint64_t n = 0;
        bool opened = job->spec->secure.bits;
        if (!job->spec->privacy.kind)
                return 0;
        int r = mfl_runtime_sum_digest(job->runtime, totals, digest, err);
        if (!r && opened)
                r = count_openings(job, &n, err);
        if (!r && is_central(job))
                r = release_central(job, round, digest, &n, event, err);
        else if (!r && !opened)
                r = release_local(job, round, digest, &n, event, err);
        if (r == MFL_BUSY)
                return refuse_another(job, event, err);
        r = mfl_job_operation_disk(job, r, "a release", err); /* if it is full: nothing has left */
        if (!r)
                r = mfl_privacy_epsilon(
                        &job->spec->privacy, mfl_job_rate(job->spec), n, &event->epsilon, err);
        return r;
}
