/* SPDX-License-Identifier: Apache-2.0 */
/* A job: what to train, on which data, how to aggregate, when to stop. The document is YAML (libyaml), the
 * same text that `mfl submit` sends and the server stores; this is its one parser and validator, used by the
 * command line, the server and the daemons. Unknown keys, wrong types and impossible values are MFL_INVALID with
 * "FILE:LINE: key.path: what is wrong, what would be right" (a misspelt key suggests the right one). Limits: 256 KiB
 * of text, depth 16, no aliases or anchors, no tags, no duplicate keys, one document.
 *
 * Ownership: one heap object. Immutable once parsed. Any thread.
 */
#ifndef MFL_COMMON_JOB_JOB_H
#define MFL_COMMON_JOB_JOB_H

#include "common/normalise/spec.h"
#include "common/base/base.h"
#include "common/base/fixed.h"
#include "common/job/edges.h"
#include "common/job/losses.h"
#include "common/job/robust.h"
#include "common/tags/where.h"
#include "common/measure/tally.h"
#include "common/model/graph.h"
#include "common/plugin/words.h"
#include "common/privacy/spec.h"
#include "common/secure/spec.h"
#include "common/trace/trace.h"

#define MFL_JOB_TEXT_MAX (256 * 1024)
/* Clients of one round. Within this limit, server work over all of them takes milliseconds. */
#define MFL_COHORT_MAX 250000u
/* Clients of a population of which the server knows each one: virtual time, and selections by samples or losses. */
#define MFL_COHORT_POPULATION_MAX (1u << 20)
#define MFL_COHORT_OORT_MAX                                                                                  \
        (1u << 17) /* oort sorts the durations and scores of all in each round: 60 ms for 100,000 */
/* Clients of one round, if daemons tell the losses of each. */
#define MFL_COHORT_LOSSES_MAX 32768u
/* Clients that train at once in an asynchronous job, and the default. */
#define MFL_CONCURRENCY_MAX 16384u
#define MFL_CONCURRENCY 100u
#define MFL_STALENESS_MAX 100u

/* How the training samples are cut into clients; the same as flwr-datasets' partitioners of these names,
 * whose documentation has the algorithms. common/partition/partition.h says which need labels or owners. */
enum mfl_partition_kind {
        MFL_PARTITION_LOCAL,     /* each daemon's own data set is one client */
        MFL_PARTITION_IID,       /* shuffled and divided evenly */
        MFL_PARTITION_DIRICHLET, /* class proportions per client from Dirichlet(alpha) (Hsu et al. 2019) */
        MFL_PARTITION_SHARDS, /* sorted by label, cut into clients * k shards, k each (McMahan et al. 2017) */
        MFL_PARTITION_PATHOLOGICAL, /* a fixed number of classes per client (Li et al. 2021, arXiv 2102.02079) */
        MFL_PARTITION_SIZE,         /* shuffled; client k gets sizes[k] */
        MFL_PARTITION_LINEAR,       /* shuffled; client k gets in proportion to k + 1 */
        MFL_PARTITION_SQUARE,       /* to (k + 1)^2 */
        MFL_PARTITION_EXPONENTIAL,  /* to exp(k + 1) */
        MFL_PARTITION_DISTRIBUTION, /* samples per class and client from a matrix (Li et al. 2020, FedProx) */
        MFL_PARTITION_NATURAL_ID,   /* each owner in the data is a client: a writer, a speaker, a site */
        MFL_PARTITION_INNER_DIRICHLET, /* sizes[k] samples, class mix of each from Dirichlet(alpha) (Acar et
                                          al. 2021, FedDyn) */
};
enum mfl_class_assignment {
        MFL_ASSIGNMENT_RANDOM,              /* each client's classes at random */
        MFL_ASSIGNMENT_DETERMINISTIC,       /* client k: k, k + 1, ..., modulo the number of classes */
        MFL_ASSIGNMENT_FIRST_DETERMINISTIC, /* the first one k modulo the number of classes, others random */
};
enum mfl_strategy_kind {
        MFL_STRATEGY_FEDAVG,
        MFL_STRATEGY_FEDAVGM,
        MFL_STRATEGY_FEDADAGRAD,
        MFL_STRATEGY_FEDADAM,
        MFL_STRATEGY_FEDYOGI,
        MFL_STRATEGY_FEDPROX,
        MFL_STRATEGY_MEDIAN,
        MFL_STRATEGY_FEDNOVA,
        MFL_STRATEGY_QFEDAVG,
        MFL_STRATEGY_SCAFFOLD,
        MFL_STRATEGY_FEDDYN,
        MFL_STRATEGY_TRIMMED_MEAN,
        MFL_STRATEGY_MEAN_AROUND_MEDIAN,
        MFL_STRATEGY_KRUM,
        MFL_STRATEGY_MULTI_KRUM,
        MFL_STRATEGY_BULYAN,
        MFL_STRATEGY_RFA,
        MFL_STRATEGY_CENTERED_CLIP,
        MFL_STRATEGY_NORM_FILTER,
        MFL_STRATEGY_DNC,
        MFL_STRATEGY_SIGNGUARD,
        MFL_STRATEGY_FLAME,
        MFL_STRATEGY_FEDBUFF,
        MFL_STRATEGY_FEDASYNC,
        MFL_STRATEGY_DITTO,
        MFL_STRATEGY_PFEDME,
        MFL_STRATEGY_FOOLSGOLD,
        MFL_STRATEGY_FLTRUST,
        MFL_STRATEGY_PLUGIN, /* aggregation.plugin says which (include/mfl/strategy.h) */
        MFL_STRATEGY_MIMELITE,
        MFL_STRATEGY_MIME,
        MFL_STRATEGY_APFL,
};
#define MFL_STRATEGIES ((int)MFL_STRATEGY_APFL + 1)
/* How a client of scaffold finds its control variate (common/method/scaffold.c). */
enum mfl_scaffold_option {
        MFL_SCAFFOLD_I,
        MFL_SCAFFOLD_II,
};
/* Who keeps what a client keeps from round to round. */
enum mfl_client_state {
        MFL_CLIENT_STATE_SERVER,
        MFL_CLIENT_STATE_DAEMON,
};
/* Whose formulas the adaptive strategies follow (server/strategy/strategy_fedopt.c). */
enum mfl_variant {
        MFL_VARIANT_PAPER,
        MFL_VARIANT_FLOWER,
};
enum mfl_weighting {
        MFL_WEIGHT_SAMPLES,
        MFL_WEIGHT_UNIFORM,
};
/* Which clients a round has. */
enum mfl_selection {
        MFL_SELECT_UNIFORM, /* drawn without replacement from all, each round anew */
        MFL_SELECT_SEPARATED, /* the same from those whose turn it is: client k in rounds r with (r - 1) mod separation = k
                                 mod separation */
        MFL_SELECT_POISSON,  /* each by itself with probability `rate`, to 2^-32; a round may have nobody */
        MFL_SELECT_WEIGHTED, /* without replacement, in proportion to their samples */
        MFL_SELECT_POWER_OF_CHOICE, /* of `candidates` drawn so, those with the largest loss */
        MFL_SELECT_OORT,            /* by loss and duration; virtual time only */
};
/* What decides how long clients take, and when they are there (common/cohort/cohort.h). */
enum mfl_time {
        MFL_TIME_REAL,    /* the machines that train them */
        MFL_TIME_VIRTUAL, /* the job's trace */
};
/* How a round's clients are divided over its daemons. The model does not depend on it. */
enum mfl_assign {
        MFL_ASSIGN_SPEED,  /* by measured speed, so that all daemons should finish at the same time */
        MFL_ASSIGN_MODULO, /* round robin: client modulo the number of daemons, which are in order of names */
};

/* What the model of a round is evaluated on. */
enum mfl_evaluate_on {
        MFL_EVALUATE_TEST, /* the data set's test split: all of it, or with partition local each site's own */
        MFL_EVALUATE_CLIENTS, /* samples of the clients' own, which they keep out of their training */
};

/* How the learning rate changes. Local step s (from 0) of round r (from 1) has lr * scale(t), with t = r - 1 per round and
 * t = s per step: a schedule per step starts again in every local training. With w = warmup, and from t = over on p = 1:
 *   t < w:     (t + 1) / w                              (torch LinearLR(1 / w, total_iters=w - 1))
 *   constant:  1
 *   step:      factor ^ floor((t - w) / every)          (StepLR)
 *   linear:    1 - (1 - min) * p                        (LinearLR(1, min, over - w))
 *   cosine:    min + (1 - min) * (1 + cos(pi * p)) / 2  (Loshchilov and Hutter 2017; CosineAnnealingLR)
 *   p = (t - w) / (over - w)
 * over: the job's rounds, or the client's local steps, which may differ from client to client. */
enum mfl_schedule_kind {
        MFL_SCHEDULE_CONSTANT,
        MFL_SCHEDULE_STEP,
        MFL_SCHEDULE_LINEAR,
        MFL_SCHEDULE_COSINE,
};
enum mfl_schedule_unit {
        MFL_SCHEDULE_PER_ROUND,
        MFL_SCHEDULE_PER_STEP,
};

/* Patterns for names of layers, or of all params of layers: '*' stands for any text and '?' for any one character. */
struct mfl_job_globs {
        char (*v)[MFL_TENSOR_NAME_BYTES];
        uint32_t n;
};

/* A tensor of a model that only its program knows (training.program). */
struct mfl_job_tensor {
        char name[MFL_TENSOR_NAME_BYTES];
        struct mfl_shape shape; /* rank 0: one number */
};

struct mfl_job_floats {
        float *v; /* on the heap; NULL: none */
        uint32_t n;
};

#define MFL_MEMBERS_MAX 64 /* workers of a client */
#define MFL_ZERO_AUTO (-1)
#define MFL_ZERO_AUTO_FLOATS 1 /* what auto is with exact: false */
#define MFL_ZERO_MAX 3

/* Where the workers of a client are. The result is the same. */
enum mfl_within {
        MFL_WITHIN_DAEMON, /* threads of one daemon */
        MFL_WITHIN_NODE,   /* and daemons of its node */
        MFL_WITHIN_ANY,    /* and of all nodes, where daemons listen for each other */
};

/* What a job says of a strategy that is a plug-in (include/mfl/strategy.h): its name, and numbers for it. */
struct mfl_plugin_spec {
        char name[MFL_PLUGIN_NAME_BYTES];   /* "": the strategy is no plug-in */
        struct mfl_plugin_numbers settings; /* as in the job; the server knows what they mean */
        /* The server's, once it has found it (server/strategy/plugin.h); else NULL. */
        const struct mfl_strategy_ops *ops;
        double values[MFL_PLUGIN_SETTINGS_MAX]; /* by the plug-in's own table */
};

/* What a job says of a metric that is a plug-in (include/mfl/metric.h). */
struct mfl_metric_spec {
        char name[MFL_PLUGIN_NAME_BYTES];
        struct mfl_plugin_numbers settings;
        const struct mfl_plugin_object *object; /* the server's (server/strategy/metric.h) */
        double values[MFL_PLUGIN_SETTINGS_MAX];
};

#define MFL_JOB_FILTERS_MAX 8

struct mfl_job {
        char name[MFL_NAME_BYTES];
        uint64_t seed;
        uint32_t rounds;
        /* Not part of the file: whether all params, the frozen ones too, are stored in the order of layers and sent,
         * as in version 1 of the protocol (mfl_graph_by_layers). Set before a graph is made. */
        bool by_layers;
        enum mfl_time time;
        struct mfl_trace trace; /* virtual time */
        /* The arithmetic that the job began with; mfl_job_parse sets MFL_ARITHMETIC_VERSION. */
        uint32_t arithmetic;

        struct {
                char preset[MFL_NAME_BYTES]; /* empty when layers were given */
                struct mfl_layer *layers;    /* without the input layer; NULL for a preset */
                int n_layers;
                struct mfl_job_tensor *tensors; /* of a program, in place of layers; NULL: none */
                int n_tensors;
                int init;                    /* enum mfl_init, or -1: the operator's or preset's own */
                struct mfl_shape input;      /* rank 0: the data set's */
                int classes;                 /* 0: the data set's */
                struct mfl_job_globs freeze; /* layers that are not trained */
                struct {
                        uint32_t rank;               /* 0: no adapters */
                        float alpha;                 /* 0: rank */
                        struct mfl_job_globs layers; /* dense; none: all of them */
                        struct mfl_job_globs
                                train; /* layers that are trained themselves; all others are frozen */
                } lora;
                char *initial; /* path of a safetensors file to start from, read by the command line; NULL */
                struct {
                        char *prefix; /* which the file's names have and the model's lack, or NULL */
                        struct mfl_job_globs missing; /* tensors of the model that the file may lack */
                        struct mfl_job_globs unused;  /* tensors of the file that the model may lack */
                        struct mfl_job_globs
                                transposed; /* matrices stored [in][out]; "!...": which are not */
                } from; /* how the names of `initial` become the model's (cli/job/pretrained.h) */
        } model;
        struct {
                /* Of a data set in the daemons' configuration; MFL_PROGRAM_DATA NAME: the program has its own data. */
                char name[MFL_NAME_BYTES];
                enum mfl_partition_kind partition;
                uint32_t clients;     /* population; 0 for local */
                double alpha;         /* dirichlet */
                uint32_t shards;      /* shards per client */
                uint32_t min_samples; /* dirichlet: redraw until each client has this many (default 1) */
                bool self_balancing;  /* dirichlet: clients above the average size get no further classes */
                uint32_t shard_size;  /* shards: samples of each; 0: all samples in clients * shards shards */
                bool keep_incomplete_shard;  /* the last samples, fewer than shard_size, form a shard, too */
                uint32_t classes_per_client; /* pathological, distribution: default 2 */
                int class_assignment;        /* pathological: enum mfl_class_assignment */
                uint32_t *sizes;             /* size, inner-dirichlet: n_sizes, or one for all clients */
                uint32_t n_sizes;
                double *distribution; /* distribution: [class][column], >= 0; NULL: log-normal with sigma */
                uint32_t distribution_rows, distribution_columns;
                double sigma; /* of the log-normal distribution; default 2 */
                uint32_t
                        preassigned_samples; /* distribution: samples per class and client before the rest is divided */
                bool rescale; /* distribution: scale the matrix to the available samples (default), or use its counts
                                 as they are */
                struct {
                        uint32_t crop; /* pixels of padding; 0: none */
                        bool flip;
                } augment; /* of training images; kernels/backend.h, struct mfl_augment, says how */
                struct mfl_normalise_spec normalise;
        } data;
        struct {
                /* The training code of the daemons' administrators that trains in place of mfl (docs/programs.md); "": none. The other
                 * fields are then unused. */
                char program[MFL_NAME_BYTES];
                char *config;  /* what it is given with each job, as JSON; NULL: nothing */
                int optimizer; /* as enum mfl_optimizer_kind (kernels/backend.h), which has the formulas */
                float lr, momentum, weight_decay; /* weight_decay: default 0, adamw 0.01 */
                float beta1, beta2, eps;          /* adam, adamw: 0.9, 0.999, 1e-8; adagrad: eps 1e-10 */
                float clip_norm;                  /* of the gradient of a step; 0: none */
                bool nesterov;
                struct {
                        enum mfl_schedule_kind kind;
                        enum mfl_schedule_unit per;
                        uint32_t warmup, every;
                        uint32_t over; /* 0: to the end */
                        double factor, min;
                } schedule;
                enum mfl_loss_kind loss;
                float label_smoothing;
                float focal_gamma, huber_delta, smooth_l1_beta; /* default 2, 1, 1 */
                bool has_ignore_index;
                int64_t ignore_index;                /* a label that is not scored */
                struct mfl_job_floats class_weights; /* or, of binary, pos_weight; none: all 1 */
                struct mfl_job_floats auxiliary;     /* weights of the model's auxiliary outputs */
                bool drop_last;         /* a client's last batch of an epoch, if it is short, is left out */
                uint32_t epochs, steps; /* exactly one is non-zero */
                uint32_t batch;
                uint32_t accumulate; /* batches of one optimizer step (default 1), their gradients added */
                uint32_t threads;    /* CPU threads per client (default 1); part of reproducibility */
                char backend[16];    /* "auto", "cpu", "reference", "cuda" */
                int precision;       /* as enum mfl_precision (kernels/backend.h): 0 fp32, tf32, bf16, fp16 */
                bool fast;           /* default false: deterministic */
                uint32_t fuse;       /* clients trained at once on one device; 0: auto */
                int checkpointing;   /* segments whose activations are computed again
                                        (mfl_net_options.segments): 0: off (default), -1: auto */
        } training;
        /* One client over several workers (kernels/team/team.h). The result depends on the grain alone. */
        struct {
                uint32_t grain;   /* samples of one gradient; 0: the job has no such key */
                uint32_t members; /* most workers of a client; 0: all of a daemon's */
                uint32_t
                        members_min; /* with fewer a client waits, or is trained by others; 0 or 1: any number will do */
                int within; /* enum mfl_within */
                bool exact; /* default true; false: sums of floats, whose bits depend on the number of workers */
                int zero;     /* where optimizer state and gradients lie: 0 to 3, default MFL_ZERO_AUTO */
                bool overlap; /* default false: sums of gradients travel while the last grain is computed */
                uint64_t bucket;   /* bytes of such a sum that travel at once; default 4 MiB */
                uint32_t snapshot; /* steps between copies of sharded state (kernels/team/team.h); 0: none */
        } parallel;
        /* How updates travel. */
        struct {
                double top_k; /* the share of a client's elements that is sent (common/codec/top_k.h); 0: all are */
                uint32_t down_bits; /* params change by steps of a grid of so many bits; 0: not so */
                bool up;            /* packed (common/codec/pack.h), without loss */
                bool up_half;       /* clients' deltas are rounded to bfloat16 (common/codec/bf16.h) */
                bool down_half;     /* so are params, whose rest the server keeps; they travel packed */
                uint32_t
                        bits; /* clients' deltas are rounded to a grid of so many bits (common/codec/grid.h); 0: they are not */
        } compression;
        struct {
                enum mfl_strategy_kind strategy;
                enum mfl_weighting weighting;
                float server_lr;         /* default 1; fedadagrad 0.1, fedadam and fedyogi 0.01 */
                float momentum;          /* fedavgm, mimelite, mime: 0.9 */
                bool nesterov;           /* fedavgm, default false */
                float beta1, beta2, tau; /* fedadam, fedyogi: 0.9, 0.99, 1e-3; fedadagrad: 0, unused, 1e-3 */
                float mu;                /* fedprox proximal term, default 0.01; */
                bool mu_adaptive;        /* or it follows the loss, from mu_start (0) on, */
                double mu_start;         /* and falls when the loss fell in as many rounds (1) */
                uint32_t mu_patience;
                double q;               /* qfedavg: 0.2 */
                double alpha;           /* feddyn: 0.1; fedasync: 0.6; apfl: 0.5; */
                bool alpha_adaptive;    /* apfl: or each client has its own (common/method/apfl.c) */
                uint32_t buffer;        /* fedbuff: updates of a version, 10 */
                uint32_t staleness_max; /* fedbuff, fedasync: 20 */
                double a;               /* fedbuff, fedasync: a stale update counts (1 + staleness)^-a; 0.5 */
                enum mfl_scaffold_option option; /* scaffold: II */
                double lambda;                   /* ditto: 0.1, pfedme: 15 */
                double eta;                      /* pfedme: 0.005 */
                uint32_t inner_steps;            /* pfedme: 5 */
                enum mfl_variant variant;        /* fedadagrad, fedadam, fedyogi; default paper */
                float delta_max;                 /* largest |delta| of an element, default 16 */
                float statistics_max;            /* the same for running statistics, default 65536 */
                struct mfl_robust_spec robust;
                struct mfl_plugin_spec plugin;
        } aggregation;
        enum mfl_client_state client_state; /* default server */
        /* Layers whose params stay with each client (common/method/personal.c). */
        struct {
                struct mfl_job_globs layers; /* none: all are everybody's */
                uint32_t
                        epochs; /* on them alone, before `training` moves the others alone; 0: all are trained together */
        } personal;
        struct mfl_privacy_spec privacy;
        struct mfl_secure_spec secure;    /* bits 0: the server sees each update */
        struct mfl_simulation simulation; /* bad clients, for tests of robust rules */
        struct mfl_edges edges;           /* regions, whose clients are averaged among themselves first */
        struct {
                enum mfl_selection kind;
                uint32_t separation; /* separated: rounds from one turn of a client to its next */
                double rate;         /* poisson: (0, 1] */
                uint32_t candidates; /* power-of-choice: at least `clients` */
                double over;         /* virtual time: `over` times `clients` are drawn; default 1 */
                struct {             /* common/cohort/cohort_oort.c says what each is */
                        double exploration, decay, floor; /* 0.9, 0.98, 0.3 */
                        double penalty, cut_off, clip;    /* 2, 0.95, 0.9 */
                        uint32_t pacer_step, pacer_delta; /* 20, 5 */
                        uint32_t threshold, window;       /* 30, 5 */
                } oort;
                uint32_t clients;                  /* per round; 0: all, or all whose turn it is */
                uint32_t daemons_min, daemons_max; /* default 1 and 0 (no limit) */
                enum mfl_assign assign;            /* default speed; not for partition local */
                char where[MFL_WHERE_BYTES];       /* the daemons that may work for it; "": all */
                uint32_t *without,
                        n_without; /* tombstones: clients that are drawn as all others, and then left out; ascending */
        } selection;
        struct {
                uint64_t deadline_ms; /* of one round's training, default 1 h */
                double quorum;        /* share of the round's clients that must arrive, (0, 1], default 1 */
                uint32_t retries;     /* of one round, default 3 */
                uint64_t virtual_deadline_ms; /* of one round's training, in virtual time; 0: none */
                uint64_t state;               /* bytes of all clients' states together, default 64 GiB */
        } limits;
        struct {
                uint32_t
                        every; /* rounds; 0: never; default 1; unless 0, the last round is always evaluated */
                uint32_t batch; /* samples at a time; part of reproducibility; default 50 */
                int on;         /* enum mfl_evaluate_on; default test */
                double split; /* clients: the share of its samples that each keeps; default 0.25. 0: none; with
                                   partition local, sites then evaluate on their own test samples */
                bool detailed; /* mfl_job_tally; default false */
                uint32_t
                        clients; /* clients: how many evaluate, the same ones in each round; 0 for local: all sites */
                uint32_t n_metrics; /* metrics imply `detailed` */
                struct mfl_metric_spec metrics[MFL_METRICS_MAX];
        } evaluation;
        /* Of the sites' filters of updates (include/mfl/filter.h), those that each client's update must have gone through. */
        uint32_t n_filters;
        char filters[MFL_JOB_FILTERS_MAX][MFL_PLUGIN_NAME_BYTES];
        struct {
                uint64_t
                        deltas; /* bytes of clients' changes that the server keeps for people (server/runtime/changes.h); 0: none */
        } debug;
        struct {
                uint32_t keep; /* checkpoints kept besides the best and the newest; default 3 */
        } checkpoints;
};

/* Parses and validates. file is for messages only. */
int mfl_job_parse(const char *text, size_t text_bytes, const char *file, struct mfl_job **ret_job,
        struct mfl_error *err);
void mfl_job_free(struct mfl_job *job);

/* The graph of a job for the data set's shape and classes (which the job may override, if they agree). */
int mfl_job_graph(const struct mfl_job *job, const struct mfl_shape *input, int classes,
        struct mfl_graph **ret_graph, struct mfl_error *err);

/* How many of its n samples a client keeps for evaluations and never trains on: round(split * n), but not all of them.
 * It never falls when n rises, and neither does what is left. */
uint32_t mfl_job_held(const struct mfl_job *job, uint32_t n);

/* Own training code. Daemons offer a program as they offer a data set, under the name mfl_job_program_offer, which no data set
 * has; its number of samples is the most that one of its clients may have. mfl_job_owns_data: the job's data are the program's. */
#define MFL_PROGRAM_DATA "program:"
#define MFL_PROGRAM_BYTES (MFL_NAME_BYTES - 8) /* of a program's name */
static inline bool mfl_job_has_program(const struct mfl_job *job)
{
        return job->training.program[0];
}
static inline bool mfl_job_owns_data(const struct mfl_job *job)
{
        return !strncmp(job->data.name, MFL_PROGRAM_DATA, sizeof MFL_PROGRAM_DATA - 1);
}
/* What the model is, in a word: its preset, or how it is given. */
static inline const char *mfl_job_model_name(const struct mfl_job *job)
{
        return job->model.preset[0] ? job->model.preset : job->model.tensors ? "tensors" : "layers";
}
char *mfl_job_program_offer(const char *program, char offer[MFL_NAME_BYTES]);
/* A filter that jobs may name is offered in the same way. */
#define MFL_FILTER_DATA "filter:"
#define MFL_FILTER_NAME_BYTES (MFL_NAME_BYTES - 7)
char *mfl_job_filter_offer(const char *filter, char offer[MFL_NAME_BYTES]);
bool mfl_job_has_filter(const struct mfl_job *job, const char *filter);

/* Whether anything is left to train, as far as that is known without the data: MFL_INVALID if not. For jobs that are
 * being submitted: mfl_job_parse accepts such a job, because old stored jobs must remain readable. */
int mfl_job_check_moves(const struct mfl_job *job, struct mfl_error *err);
/* Also for new jobs: the text contains no strange characters (common/base/plain.h), so that readers see what is
 * there. MFL_INVALID with the line and column. */
int mfl_job_check_text(const char *text, const char *file, struct mfl_error *err);

/* Also for new jobs: whether as many clients can be drawn as selection.over says. MFL_INVALID, with what to write instead. */
int mfl_job_check_over(const struct mfl_job *job, struct mfl_error *err);

/* Whether a round has more clients than a server accepts: MFL_INVALID, with what to write instead. For jobs that are
 * being submitted or prepared, as above. */
int mfl_job_check_cohort(const struct mfl_job *job, struct mfl_error *err);
/* Whether the ring of secure_sum holds sums of such weights (common/secure/ring.h). MFL_INVALID */
int mfl_job_check_ring(const struct mfl_job *job, uint64_t weight_max, struct mfl_error *err);

/* How many clients of a population take part in a round (selection.clients, or all). poisson: at most; what exceeds ten
 * standard deviations and forty clients is cut off, and has a probability below 2^-70 (Bernstein's inequality). */
uint32_t mfl_job_cohort_size(const struct mfl_job *job, uint32_t population);
/* The probability with which each client takes part in a round: of poisson, or 1 where all do. */
double mfl_job_rate(const struct mfl_job *job);
/* Asynchronous jobs (common/cohort/calendar.h): whether it is one; how many clients train at once; how many updates make
 * a version; and how many versions before the newest one must stay to be had. */
bool mfl_job_is_async(const struct mfl_job *job);
/* Asynchronous in real time: the order in which updates come is recorded, not computed. */
bool mfl_job_is_live(const struct mfl_job *job);
uint32_t mfl_job_concurrency(const struct mfl_job *job);
uint32_t mfl_job_buffer(const struct mfl_job *job);
uint32_t mfl_job_versions(const struct mfl_job *job);
/* How many params the clients of a round may start from: those versions and the newest one, or one for each region; else 1. */
uint32_t mfl_job_bases(const struct mfl_job *job);
/* Grains of an optimizer step, the most workers that a client can have; 1 without `parallel`. */
uint32_t mfl_job_grains(const struct mfl_job *job);
/* Local steps of a client of n samples; 0 if drop_last leaves it none. */
uint64_t mfl_job_steps(const struct mfl_job *job, uint32_t n);
uint64_t mfl_job_epoch_steps(const struct mfl_job *job, uint32_t n); /* of one epoch */
/* The fewest that a round draws. */
uint32_t mfl_job_cohort_least(const struct mfl_job *job, uint32_t population);
/* False for a loss that only measures a distance: such predictions are not right or wrong. */
bool mfl_job_has_accuracy(const struct mfl_job *job);
/* What the job's evaluations add up: with `evaluation: {detailed: true}` confusion or targets; otherwise classes, for the mean
 * intersection over union, where samples have labels at several positions, as an image's pixels, but not text. */
enum mfl_tally mfl_job_tally(const struct mfl_job *job, const struct mfl_graph *graph);
/* Whether the model can be evaluated as the job says. MFL_INVALID, with what to write. */
int mfl_job_check_tally(const struct mfl_job *job, const struct mfl_graph *graph, struct mfl_error *err);
/* Whether the model's outputs are those that `training` speaks of: class_weights, pos_weight, auxiliary. MFL_INVALID,
 * with what to write. */
int mfl_job_check_outputs(const struct mfl_job *job, const struct mfl_graph *graph, struct mfl_error *err);
/* The names of the losses for such answers: "binary, squared, huber". */
const char *mfl_job_losses(enum mfl_loss_answers answers);
/* Whether the client is one of selection.without. */
bool mfl_job_is_without(const struct mfl_job *job, uint64_t client);
/* Whether clients have a model of their own, the whole of it or some layers, which evaluations on clients use. */
bool mfl_job_has_own_models(const struct mfl_job *job);
/* Whether clients are steered by gradients that they tell the server: mimelite, mime. */
bool mfl_job_tells_gradients(const struct mfl_job *job);
/* Whether clients keep something from round to round (common/method/method.h). */
bool mfl_job_keeps_state(const struct mfl_job *job);
/* Whether the server keeps something of each client that the client never sees: the sum of its updates (foolsgold), or its
 * last update (the attack `stale`). */
bool mfl_job_keeps_history(const struct mfl_job *job);
/* True when the server keeps each update as a row: robust strategies, and any under an attack on updates. */
bool mfl_job_has_rows(const struct mfl_job *job);
/* True when those rows are secure sums of buckets of clients: the server never has a single update. */
bool mfl_job_sums_buckets(const struct mfl_job *job);
/* Daemons, or sites of a `local` job, that have to be there before a round begins; at least 1. */
uint32_t mfl_job_daemons_least(const struct mfl_job *job);
/* True when updates of several clients must not be added before they reach the server: with rows of their own, and with strategies whose
 * clients keep something that follows from their own update, or tell more than a delta. */
bool mfl_job_needs_single_updates(const struct mfl_job *job);
/* The factor of the learning rate in local step `step` of `n_steps` of round `round`; the same bits on every
 * machine. */
float mfl_job_lr_scale(const struct mfl_job *job, uint32_t round, uint64_t step, uint64_t n_steps);
/* False: the factor is 1 always. */
bool mfl_job_has_schedule(const struct mfl_job *job);
const char *mfl_strategy_name(enum mfl_strategy_kind kind);
const char *mfl_partition_name(enum mfl_partition_kind kind);
const char *mfl_selection_name(enum mfl_selection kind);

#endif
