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

struct mfl_policy_some {
        bool none; /* false */
        struct mfl_policy_names names;
};

#define MFL_POLICY_PEERS_MAX 1024
#define MFL_POLICY_PRINT_BYTES 65

/* SHA-256 of certificates, lower-case hexadecimal. */
struct mfl_policy_prints {
        uint32_t n; /* 0: any */
        char v[MFL_POLICY_PEERS_MAX][MFL_POLICY_PRINT_BYTES];
};

/* What the server may ask about the site's data beside its jobs. */
enum mfl_policy_inquiry {
        MFL_POLICY_STATS = 1,
        MFL_POLICY_VALIDATE = 2,
        MFL_POLICY_PREDICT = 4,
        MFL_POLICY_FOREIGN = 8, /* validations of models that whoever asks has brought */
};
#define MFL_POLICY_MIN_SAMPLES 10
struct mfl_policy_inquiries {
        uint32_t kinds;       /* enum mfl_policy_inquiry, added up; 0: none */
        uint32_t min_samples; /* of a count that is told; default MFL_POLICY_MIN_SAMPLES */
        bool extremes;        /* smallest and largest values are told, too */
};

struct mfl_policy {
        bool set; /* the file has a policy */
        struct mfl_policy_names owners, data, strategies, strategies_refused;
        struct mfl_policy_some programs, plugins;
        uint32_t min_participants, rounds_max, epochs_max; /* 0: not limited */
        bool ask;
        bool secure_sum;                  /* jobs without it are refused */
        double secure_bad;                /* and those that count on fewer bad daemons */
        enum mfl_privacy_metrics metrics; /* where has_metrics */
        bool has_metrics;
        struct mfl_local_rule rule; /* of every update that leaves; clip 0: none */
        double epsilon_max, delta;  /* of each data set, in the site's own ledger; epsilon_max 0: no limit */
        struct mfl_policy_prints peers; /* who may be in a secure sum with this daemon, itself included */
        struct mfl_policy_inquiries inquiries;
        char dir[MFL_POLICY_DIR_BYTES];
};

/* Reads the key `policy`. value: the struct mfl_policy. MFL_INVALID, -ENOMEM. */
int mfl_policy_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
/* MFL_INVALID if `data` names a data set that `has` does not know: nothing would ever match it. */
int mfl_policy_check_data(const struct mfl_policy *policy,
        bool (*has)(const void *user, const char *data_set), const void *user, struct mfl_error *err);

/* Whether the job may be worked for. NULL: yes; otherwise the key that refuses it, with a reason for its submitter.
 * data: the data set that this daemon would use (mfl_job_data_for). owner: "" if the server has not told. */
const char *mfl_policy_job(const struct mfl_policy *policy, const struct mfl_job *job, const char *data,
        const char *owner, char ret_reason[MFL_REASON_BYTES]);
/* The same for one training of it, with this many clients in the round; 0: the server has not told. */
const char *mfl_policy_round(const struct mfl_policy *policy, const struct mfl_job *job,
        uint32_t participants, char ret_reason[MFL_REASON_BYTES]);

/* Who adds the noise that the site counts. */
enum mfl_noise_by {
        MFL_NOISE_BY_NOBODY,
        MFL_NOISE_BY_SITE,    /* by its policy, or by a job of kind local */
        MFL_NOISE_BY_SERVER,  /* kind central: by the server, as it says */
        MFL_NOISE_BY_MEMBERS, /* kind distributed: by this daemon, and others of a secure sum */
};
enum mfl_noise_by mfl_policy_noise(const struct mfl_policy *policy, const struct mfl_job *job);

/* Whether losses, accuracies and the like stay here whatever jobs say: by default, where the policy has noise. */
bool mfl_policy_withholds(const struct mfl_policy *policy);

/* Whether the site answers such an inquiry of this person about a data set. NULL: yes; otherwise as mfl_policy_job. inquiry.c. */
const char *mfl_policy_inquiry(const struct mfl_policy *policy, enum mfl_policy_inquiry kind, const char *who,
        const char *data, char ret_reason[MFL_REASON_BYTES]);
/* Whether the site runs the program that the job names, if it names one; as mfl_policy_job. */
const char *mfl_policy_program(
        const struct mfl_policy *policy, const struct mfl_job *job, char ret_reason[MFL_REASON_BYTES]);
/* How small a count may be, and whether extreme values stay here. policy NULL: the site has none. */
void mfl_policy_inquiry_limits(
        const struct mfl_policy *policy, uint32_t *ret_min_samples, bool *ret_keeps_extremes);
/* Reads policy.inquiries; value: the struct mfl_policy_inquiries. */
int mfl_policy_read_inquiries(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);

/* Whether a secure sum may have a participant with this certificate. */
bool mfl_policy_peer(const struct mfl_policy *policy, const char *fingerprint);

#endif
