/* SPDX-License-Identifier: Apache-2.0 */
/* What a site does to every update before it leaves, whatever jobs and servers say: the policy's clip and noise, and a record of each noisy
 * value. Jobs with local noise use the same (common/method/local_noise.h). */
#ifndef MFL_CLIENT_NOISE_SITE_H
#define MFL_CLIENT_NOISE_SITE_H

#include "common/method/local_noise.h"
#include "common/secure/packet.h"
#include "proto/message.h"

/* A noisy value that is about to be made. */
struct mfl_site_release {
        const char *data; /* the data set */
        double sigma;     /* the accountant's */
        const uint8_t *
                name; /* MFL_SHA256_BYTES. Equal names: the same value with the same noise, which tells nothing new */
};

/* Of a daemon. */
struct mfl_site_privacy {
        struct mfl_local_rule rule;      /* of the policy; clip 0: none */
        bool withholds;                  /* no loss, accuracy or other figure of the data leaves */
        const struct mfl_secret *secret; /* NULL: this daemon has no place for a key, and makes no noise */
        /* Writes the release down; after 0 it is durable. MFL_INVALID: the site's budget does not allow it, or it can't be written. Any of
         * the trainer's threads; blocks. */
        int (*charge)(void *user, const struct mfl_site_release *release, struct mfl_error *err);
        void *user;
};

/* A client's change that is about to leave. */
struct mfl_site_change {
        const struct mfl_job *job;
        const char *text; /* the job file */
        const struct mfl_task *task;
        uint64_t client, n; /* elements */
        double norm2;       /* mfl_method_norm2 */
        uint32_t threads;   /* at most */
};

/* What is done to each change of the job's clients; clip 0: nothing. site NULL: the daemon has no policy. */
struct mfl_local_rule mfl_site_rule(const struct mfl_site_privacy *site, const struct mfl_job *job);
/* Writes the release down and adds the noise: delta becomes what may leave. q: room for n. MFL_INVALID as `charge`; negative without
 * memory. Blocks. */
int mfl_site_noise(const struct mfl_site_privacy *site, const struct mfl_local_rule *rule,
        const struct mfl_site_change *change, int64_t *q, float *delta, struct mfl_error *err);

/* A member's share of the noise of a secure sum (common/secure/shares.h), of the kind distributed. */
struct mfl_site_share {
        const char *data, *text; /* data set, job file */
        const uint8_t *params, *update,
                *group; /* MFL_SHA256_BYTES: what the round starts from, the sum before its noise, and what it is added to
                                    (mfl_secure_member_group) */
        uint32_t round, honest, threads;
        uint64_t sigma, n; /* of the whole noise, in units of the sum; elements */
        double charge; /* the accountant's sigma; 0: this site's own noise is in the sum, which is counted already */
};
/* Which update this site brings, so that others know it again, and nothing else of it: no one finds it without the site's key. */
int mfl_site_promise(const struct mfl_site_privacy *site, const uint8_t update[MFL_SHA256_BYTES],
        uint64_t ret_who[MFL_SECURE_WHO_WORDS], struct mfl_error *err);
/* Writes the release down and adds the share. The same sum gets the same noise, whoever asks how often: if anybody's update is another, all
 * shares are, too. Otherwise the difference of two sums would show how that update has changed with the noise of its own share alone. As
 * mfl_site_noise. */
int mfl_site_add_share(const struct mfl_site_privacy *site, const struct mfl_site_share *share, int64_t *sums,
        struct mfl_error *err);

#endif
