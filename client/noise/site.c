/* SPDX-License-Identifier: Apache-2.0 */
/* Noise of a client's change at its own daemon (common/method/local_noise.h), by the job or the site's policy.
 *
 * THE SAME VALUE HAS THE SAME NOISE. It follows from the site's key, the task's job file, round, params and method, the data's fingerprint, the
 * client, and the change itself as integers. A round that is trained again after a kill, or for another attempt, gives the same
 * bits, and no second look at the value. Anything else that a server may ask for has noise of its own, and is another release in the
 * site's ledger, which is written before the noise is drawn.
 *
 * Fails with MFL_INVALID where the site's budget is spent. */
#include "client/noise/site.h"

#include "common/privacy/noise.h"
#include "common/secure/shares.h"

struct mfl_local_rule mfl_site_rule(const struct mfl_site_privacy *site, const struct mfl_job *job)
{
        struct mfl_local_rule of_job = mfl_local_of_job(job);
        return site ? mfl_local_stricter(site->rule, of_job) : of_job;
}

/* What the change is one of: everything that the server can choose about it. */
static int begin_name(const struct mfl_site_change *change, struct mfl_sha256 *sha, struct mfl_error *err)
{
        const struct mfl_task *task = change->task;
        const uint64_t numbers[] = {
                change->client, task->round, task->fingerprint, task->n_method, task->staleness};
        int r = mfl_sha256_init(sha, err);
        if (!r)
                r = mfl_sha256_update(sha, change->text, strlen(change->text) + 1, err);
        if (!r)
                r = mfl_sha256_update(sha, numbers, sizeof numbers, err);
        if (!r)
                r = mfl_sha256_update(sha, task->params_digest, sizeof task->params_digest, err);
        if (!r)
                r = mfl_sha256_update(sha, task->frozen_digest, sizeof task->frozen_digest, err);
        if (!r && task->n_method)
                r = mfl_sha256_update(sha, task->method, task->n_method * sizeof task->method[0], err);
        return r;
}

static int name_change(const struct mfl_local_rule *rule, const struct mfl_site_change *change,
        const int64_t *q, uint8_t ret_name[MFL_SHA256_BYTES], struct mfl_error *err)
{
        struct mfl_sha256 sha = {0};
        int r = begin_name(change, &sha, err);
        if (!r)
                r = mfl_sha256_update(&sha, rule, sizeof *rule, err);
        if (!r)
                r = mfl_sha256_update(&sha, q, change->n * sizeof *q, err);
        if (!r)
                r = mfl_sha256_final(&sha, ret_name, err);
        mfl_sha256_deinit(&sha);
        return r;
}

int mfl_site_noise(const struct mfl_site_privacy *site, const struct mfl_local_rule *rule,
        const struct mfl_site_change *change, int64_t *q, float *delta, struct mfl_error *err)
{
        uint8_t digest[MFL_SHA256_BYTES];
        struct mfl_secret name, noise;
        mfl_local_shorten(rule, delta, change->norm2, change->n, q);
        int r = name_change(rule, change, q, digest, err);
        if (!r) /* the name does not tell of the value whoever lacks the key */
                r = mfl_secret_derive(site->secret, "site-release", "", 0, digest, &name, err);
        if (!r)
                r = mfl_secret_derive(site->secret, "site-noise", "", 0, digest, &noise, err);
        if (r)
                return r;
        const struct mfl_site_release release = {.data = change->job->data.name,
                .sigma = rule->noise / MFL_PRIVACY_LOCAL_DISTANCE,
                .name = name.key};
        r = site->charge(site->user, &release, err);
        return r ? r
                 : mfl_local_noise(rule, &noise, change->threads, change->task->fixed.delta_max, change->n, q,
                           delta, err);
}

static int name_share(
        const struct mfl_site_share *share, uint8_t ret_name[MFL_SHA256_BYTES], struct mfl_error *err)
{
        const uint64_t numbers[] = {share->round, share->honest, share->sigma, share->n};
        struct mfl_sha256 sha = {0};
        int r = mfl_sha256_init(&sha, err);
        if (!r)
                r = mfl_sha256_update(&sha, share->text, strlen(share->text) + 1, err);
        if (!r)
                r = mfl_sha256_update(&sha, numbers, sizeof numbers, err);
        if (!r)
                r = mfl_sha256_update(&sha, share->params, MFL_SHA256_BYTES, err);
        if (!r)
                r = mfl_sha256_update(&sha, share->update, MFL_SHA256_BYTES, err);
        if (!r)
                r = mfl_sha256_update(&sha, share->group, MFL_SHA256_BYTES, err);
        if (!r)
                r = mfl_sha256_final(&sha, ret_name, err);
        mfl_sha256_deinit(&sha);
        return r;
}

int mfl_site_promise(const struct mfl_site_privacy *site, const uint8_t update[MFL_SHA256_BYTES],
        uint64_t ret_who[MFL_SECURE_WHO_WORDS], struct mfl_error *err)
{
        struct mfl_secret promise;
        int r = mfl_secret_derive(site->secret, "share-promise", "", 0, update, &promise, err);
        _Static_assert(sizeof promise.key == MFL_SECURE_WHO_WORDS * sizeof *ret_who, "a digest");
        if (!r)
                memcpy(ret_who, promise.key, sizeof promise.key);
        return r;
}

int mfl_site_add_share(const struct mfl_site_privacy *site, const struct mfl_site_share *share, int64_t *sums,
        struct mfl_error *err)
{
        uint8_t digest[MFL_SHA256_BYTES];
        struct mfl_secret name, secret;
        const struct mfl_noise noise = {.a = mfl_secure_share(share->sigma, share->honest), .b = 1};
        int r = name_share(share, digest, err);
        if (!r)
                r = mfl_secret_derive(site->secret, "share-release", "", 0, digest, &name, err);
        if (!r)
                r = mfl_secret_derive(site->secret, "share-noise", "", 0, digest, &secret, err);
        const struct mfl_site_release release = {
                .data = share->data, .sigma = share->charge, .name = name.key};
        if (!r && share->charge > 0)
                r = site->charge(site->user, &release, err);
        return r ? r : mfl_noise_add(&noise, &secret, share->n, share->threads, sums, err);
}
