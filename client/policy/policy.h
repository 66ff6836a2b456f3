/* SPDX-License-Identifier: Apache-2.0 */
/* What this daemon's site takes part in: `policy` of client.yaml, and its comparison with a job. Pure; any thread.
 *
 * The job file is what the daemon trains by, so the file's own numbers can't be wrong without showing. The owner, and the
 * clients of a round of a `local` job, are the server's word. */
#ifndef MFL_CLIENT_POLICY_POLICY_H
#define MFL_CLIENT_POLICY_POLICY_H

#include "common/base/base.h"
#include "common/job/job.h"
#include "common/method/local_noise.h"
#include "common/settings/yaml.h"
#include "proto/message.h"

#define MFL_POLICY_NAMES_MAX 64
#define MFL_POLICY_DIR_BYTES 1024

struct mfl_policy_names {
        uint32_t n; /* 0: the key is not there */
        char v[MFL_POLICY_NAMES_MAX][MFL_NAME_BYTES];
};

#define MFL_POLICY_PEERS_MAX 1024
#define MFL_POLICY_PRINT_BYTES 65

/* SHA-256 of certificates, lower-case hexadecimal. */
struct mfl_policy_prints {
        uint32_t n; /* 0: any */
        char v[MFL_POLICY_PEERS_MAX][MFL_POLICY_PRINT_BYTES];
};

struct mfl_policy {
        bool set; /* the file has a policy */
        struct mfl_policy_names owners, data, strategies, strategies_refused, programs;
        bool no_programs;                                  /* programs: false */
        uint32_t min_participants, rounds_max, epochs_max; /* 0: not limited */
        bool ask;
        bool secure_sum;            /* jobs without it are refused */
        double secure_bad;              /* and those that count on fewer bad daemons */
        struct mfl_local_rule rule; /* of every update that leaves; clip 0: none */
        double epsilon_max, delta;  /* of each data set, in the site's own ledger; epsilon_max 0: no limit */
        struct mfl_policy_prints peers; /* who may be in a secure sum with this daemon, itself included */
        char dir[MFL_POLICY_DIR_BYTES];
};

/* Reads the key `policy`. value: the struct mfl_policy. MFL_INVALID, -ENOMEM. */
int mfl_policy_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
/* MFL_INVALID if `data` names a data set that `has` does not know: nothing would ever match it. */
int mfl_policy_check_data(const struct mfl_policy *policy,
        bool (*has)(const void *user, const char *data_set), const void *user, struct mfl_error *err);

/* Whether the job may be worked for. NULL: yes; otherwise the key that refuses it, with a reason for its submitter.
 * owner: "" if the server has not told. */
const char *mfl_policy_job(const struct mfl_policy *policy, const struct mfl_job *job, const char *owner,
        char ret_reason[MFL_REASON_BYTES]);
/* The same for one training of it, with this many clients in the round; 0: the server has not told. */
const char *mfl_policy_round(const struct mfl_policy *policy, const struct mfl_job *job,
        uint32_t participants, char ret_reason[MFL_REASON_BYTES]);

/* Who adds the noise that the site counts. */
enum mfl_noise_by {
        MFL_NOISE_BY_NOBODY,
        MFL_NOISE_BY_SITE,   /* by its policy, or by a job of kind local */
        MFL_NOISE_BY_SERVER, /* kind central: by the server, as it says */
};
enum mfl_noise_by mfl_policy_noise(const struct mfl_policy *policy, const struct mfl_job *job);

/* Whether a secure sum may have a participant with this certificate. */
bool mfl_policy_peer(const struct mfl_policy *policy, const char *fingerprint);

#endif
