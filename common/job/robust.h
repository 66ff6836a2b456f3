/* SPDX-License-Identifier: Apache-2.0 */
/* Robust aggregation as a job file asks for it, how many rows it needs, and attacks to test it with. A row is what the rule sees as one update: a
 * client's delta, or a mean of several after `before: {bucket: s}`. server/robust has the rules themselves. Pure
 * functions; any thread. */
#ifndef MFL_COMMON_JOB_ROBUST_H
#define MFL_COMMON_JOB_ROBUST_H

#include "common/job/edges.h"
#include "common/model/graph.h"

/* Rules that compare rows with each other keep a matrix of rows x rows numbers. */
#define MFL_ROBUST_ROWS_MAX 1024u
#define MFL_BEFORE_MAX 4

/* What is done to the rows before the rule. */
enum mfl_before_kind {
        MFL_BEFORE_NNM, /* each row becomes the mean of the m - f rows nearest to it, with itself (Allouah et al. 2023) */
        MFL_BEFORE_ARC, /* the floor(2 (f / m) (m - f)) longest rows get the length of the next (Allouah et al. 2024) */
        MFL_BEFORE_BUCKET, /* means of `size` rows each, drawn anew in each round (Karimireddy et al. 2022) */
        MFL_BEFORE_CLIP,   /* no row is longer than `radius`, or than the median length */
};
struct mfl_before {
        enum mfl_before_kind kind;
        uint32_t size;
        double radius; /* 0: the median */
};

/* What happens in a round with fewer rows than the rule needs. */
enum mfl_on_few {
        MFL_ON_FEW_FAIL,
        MFL_ON_FEW_MEAN,
        MFL_ON_FEW_MEDIAN,
};

enum mfl_rows_unit {
        MFL_ROWS_CLIENT,
        MFL_ROWS_DAEMON, /* partition local: a daemon is one client */
        MFL_ROWS_BUCKET, /* exact means of `bucket` clients each, drawn anew in each round */
        MFL_ROWS_SERVER, /* what each region makes of its clients' updates (common/job/edges.h) */
};

struct mfl_robust_spec {
        enum mfl_rows_unit unit;
        bool has_f, has_more; /* the job has f; unit, before or on_few */
        uint32_t f;           /* rows that may be bad */
        double beta;          /* trimmed-mean without f: the share that is cut off at each end, default 0.2 */
        uint32_t neighbours;  /* krum, multi-krum, bulyan: 0: m - f - 2 */
        double clip_radius;   /* centered-clip; 0: the median distance */
        uint32_t sample, iterations;      /* dnc: elements of a draw, default 10,000; draws, default 1 */
        uint32_t bucket;                  /* unit bucket: clients of a row, default 2 */
        uint32_t servers, server_clients; /* unit server: how many there are; most clients of one */
        /* Strategies that average: no client's update is longer than update_clip; 0: than the median length of the
         * round's updates, which the server keeps as rows for that. */
        bool has_update_clip;
        double update_clip;
        /* fltrust: whose update is the trusted one. */
        struct {
                char daemon[MFL_NAME_BYTES]; /* partition local: a site, or a daemon without one; "": none */
                char data[MFL_NAME_BYTES];   /* its data set; "": the job's */
                bool has_client;
                uint32_t client; /* of a simulated population */
        } root;
        double noise; /* flame: the deviation of the noise over the median length, default 0.001 */
        enum mfl_on_few on_few;
        uint32_t n_before;
        struct mfl_before before[MFL_BEFORE_MAX];
};

struct mfl_job;

/* The strategy works on single rows: the median and all rules of server/robust. */
bool mfl_job_is_robust(const struct mfl_job *job);
/* The name of the data set that a daemon uses for the job: the root's own, or the job's. site: "" if it is one by itself. */
const char *mfl_job_data_for(const struct mfl_job *job, const char *daemon, const char *site);
/* The rows of m updates: fewer with unit bucket, and without the root's. */
uint32_t mfl_robust_rows_of(const struct mfl_robust_spec *spec, uint32_t m);
/* The rows that are left of m rows after `before`. */
uint32_t mfl_robust_rows_after(const struct mfl_robust_spec *spec, uint32_t m);
/* The fewest rows, after buckets, that the job's rule works with; at least 1. */
uint32_t mfl_robust_rows_least(const struct mfl_job *job);
/* unit: bucket. Draws the buckets of n clients in the order of their numbers: order, 0 to n - 1 at first or whatever stands for them, becomes
 * one bucket after another. The same for everybody who knows the job and the round. */
void mfl_robust_draw(const struct mfl_job *job, uint32_t round, uint32_t *order, uint32_t n);
/* The clients of the bucket that begins at `at`: the last of them may be fewer, but with secure sums, where the rest is in the last whole
 * one, since a sum of fewer tells more. n > at. */
uint32_t mfl_robust_bucket_of(const struct mfl_job *job, uint32_t at, uint32_t n);
/* Whether the rule, or what is done before it, compares or measures rows: then there are at most MFL_ROBUST_ROWS_MAX. */
bool mfl_robust_compares(const struct mfl_job *job);

/* ---- simulated attacks ----
 *
 * For tests of robust rules: some clients of a simulated population are bad. A server carries such a job out only if it
 * was started with --allow-simulation. Attacks on data are the daemon's: the training samples of bad clients change. The
 * server makes attacks on the round's single updates before anything else looks at them, because the strong ones need all
 * honest updates. The bad clients are the first share * clients of a shuffle of all clients with the stream (seed,
 * MFL_RNG_ATTACK). */

enum mfl_attack {
        MFL_ATTACK_NONE,
        MFL_ATTACK_SIGN_FLIP, /* -scale * own (1) */
        MFL_ATTACK_GAUSSIAN,  /* N(0, scale^2) per element (0.1) */
        MFL_ATTACK_ALIE, /* mean + z std of the honest rows (Baruch et al. 2019); scale: z, 0: from the numbers of rows */
        MFL_ATTACK_IPM, /* -scale * mean of the honest rows (0.1) (Xie et al. 2020) */
        MFL_ATTACK_MIN_MAX, /* mean - gamma std, as far as a honest row is from another (Shejwalkar, Houmansadr 2021) */
        MFL_ATTACK_MIN_SUM,   /* the same for the sum of squared distances */
        MFL_ATTACK_MIMIC,     /* the first honest row (Karimireddy et al. 2022) */
        MFL_ATTACK_LAZY,      /* zeros */
        MFL_ATTACK_NAN,       /* not a number: refused as any such update is */
        MFL_ATTACK_FANG_KRUM, /* -lambda sign(mean), the largest lambda that Krum takes (Fang et al. 2020) */
        MFL_ATTACK_FANG_TRIMMED, /* beyond the honest extremes, against the mean's sign (Fang et al. 2020) */
        MFL_ATTACK_STALE,        /* its own update of its last turn; zeros at first */
        MFL_ATTACK_LABEL_FLIP,   /* on data: other labels */
        /* on data: a patch in the images' corner that stands for the label `target`; the update times scale (1) (Gu et al.
         * 2017; Bagdasaryan et al. 2020) */
        MFL_ATTACK_BACKDOOR,
};

/* What a server that lies sends as the aggregate of its clients (unit server). */
enum mfl_server_attack {
        MFL_SERVER_HONEST,
        MFL_SERVER_SIGN_FLIP, /* -scale * own (1) */
        MFL_SERVER_NOISE,     /* own + N(0, scale^2) per element (0.1) */
        MFL_SERVER_RANDOM,    /* N(0, scale^2) per element (0.1) */
        MFL_SERVER_DELAYED,   /* its own of the round before; zeros at first */
};

/* Which labels a label flip gives, of C classes. */
enum mfl_flip {
        MFL_FLIP_REVERSE, /* C - 1 - y */
        MFL_FLIP_NEXT,    /* y + 1 modulo C */
        MFL_FLIP_PAIR,    /* pair[0] becomes pair[1]; others stay */
};

struct mfl_simulation {
        enum mfl_attack attack;
        double share; /* of the population */
        double scale;
        bool has_scale;
        uint32_t from; /* the first round with the attack; default 1 */
        enum mfl_flip labels;
        uint32_t pair[2];
        uint32_t target; /* backdoor: default 0 */
        double poison;   /* backdoor: the share of a bad client's samples that get the patch, default 0.5 */
        struct {
                enum mfl_server_attack attack;
                double share; /* of the servers */
                double scale;
                bool has_scale;
                uint32_t from;
        } servers;
};

#define MFL_SIMULATION_REFUSED                                                                               \
        "this server takes no jobs with simulated attacks; start it with --allow-simulation, or use mfl run"

/* The server has to have the updates as rows. */
bool mfl_attack_is_on_updates(const struct mfl_simulation *simulation);
bool mfl_attack_is_on_data(const struct mfl_simulation *simulation);
/* Whether anybody is bad. */
static inline bool mfl_simulation_is_on(const struct mfl_simulation *simulation)
{
        return simulation->attack || simulation->servers.attack;
}
/* What a bad client's label y of n classes becomes. */
int32_t mfl_attack_label(const struct mfl_simulation *simulation, int32_t y, int32_t n);
const char *mfl_attack_name(enum mfl_attack attack);
const char *mfl_server_attack_name(enum mfl_server_attack attack);
/* How many clients are bad. */
uint32_t mfl_simulation_bad(const struct mfl_job *job);
/* ret_bad[k]: client k is bad; data.clients of them, on the heap. -ENOMEM. */
int mfl_simulation_draw(const struct mfl_job *job, bool **ret_bad);
/* The bad servers: the first share * count of a shuffle with the stream (seed, MFL_RNG_SERVER). ret_bad: MFL_REGIONS_MAX of them;
 * returns how many are. */
uint32_t mfl_simulation_servers(const struct mfl_job *job, bool ret_bad[MFL_REGIONS_MAX]);

#endif
