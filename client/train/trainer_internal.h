/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the trainer's files: memory budgets, threads, jobs kept ready, the running task. */
#ifndef MFL_CLIENT_TRAIN_TRAINER_INTERNAL_H
#define MFL_CLIENT_TRAIN_TRAINER_INTERNAL_H

#include <pthread.h>

#include "client/train/trainer.h"
#include "client/node/communicator.h"
#include "client/noise/site.h"
#include "client/plugin/plugin.h"
#include "client/program/program.h"
#include "common/partition/partition.h"
#include "common/method/method.h"
#include "common/parallel/plan.h"

/* ---- memory: trainer_memory.c ---- */

/* A result's buffer that other daemons may read. */
struct trainer_shared {
        struct mfl_share_buffer *buffer;
        uint64_t bytes;
        struct trainer_shared *next;
};

/* A result's sum on the device. */
struct trainer_held {
        struct mfl_sum *sum;
        uint64_t n, bytes; /* of the device's memory */
        struct trainer_held *next;
};

/* Unused result buffers wait in `idle`; the list's head is in the buffer's own first bytes. */
struct trainer_memory {
        pthread_mutex_t lock;
        struct mfl_budget *budget, own; /* idle buffers are charged too */
        uint64_t used;                  /* by this trainer */
        struct trainer_idle *idle;
        struct trainer_shared *idle_shared;
        struct trainer_held *idle_held; /* of the device's memory */
        void (*held_free)(struct mfl_sum *sum);
};
int mfl_trainer_memory_init(struct trainer_memory *memory, struct mfl_budget *budget, struct mfl_error *err);
void mfl_trainer_memory_deinit(struct trainer_memory *memory);
/* MFL_INVALID with what and the sizes. Frees idle buffers first if that helps. */
int mfl_trainer_memory_reserve(
        struct trainer_memory *memory, uint64_t bytes, const char *what, struct mfl_error *err);
void mfl_trainer_memory_release(struct trainer_memory *memory, uint64_t bytes);
int mfl_trainer_buffer_get(struct trainer_memory *memory, uint64_t bytes, const char *what, void **ret_buffer,
        struct mfl_error *err);
void mfl_trainer_buffer_put(struct trainer_memory *memory, void *buffer, uint64_t bytes);
/* The same in shared memory. Other daemons may still read a buffer that was put back, so it is reused only
 * when none does. MFL_INVALID also if the share has no room. */
int mfl_trainer_shared_get(struct trainer_memory *memory, struct mfl_share *share, uint64_t bytes,
        struct trainer_shared **ret_shared, struct mfl_error *err);
void mfl_trainer_shared_put(struct trainer_memory *memory, struct trainer_shared *shared); /* NULL is fine */
/* The same on a device; holds zeros. */
int mfl_trainer_held_get(struct trainer_memory *memory, const struct mfl_backend_ops *ops,
        struct mfl_device *device, uint64_t n, struct trainer_held **ret_held, struct mfl_error *err);
void mfl_trainer_held_put(struct trainer_memory *memory, struct trainer_held *held); /* NULL is fine */
void mfl_trainer_memory_trim(struct trainer_memory *memory);
/* What is left of the budget; UINT64_MAX without a limit. */
uint64_t mfl_trainer_memory_left(struct trainer_memory *memory);

/* ---- threads: trainer_pool.c ---- */

struct trainer_pool {
        pthread_mutex_t lock;
        pthread_cond_t start, done;
        struct trainer_thread *threads;
        uint32_t n, n_wanted, n_busy;
        uint64_t generation;
        bool stop;
        void (*fn)(void *arg, uint32_t worker);
        void *arg;
};
int mfl_trainer_pool_init(struct trainer_pool *pool, uint32_t n, struct mfl_error *err);
void mfl_trainer_pool_deinit(struct trainer_pool *pool);
/* Calls fn(arg, w) for w in [0, n) at the same time; returns when all have. n <= the pool's. */
void mfl_trainer_pool_run(
        struct trainer_pool *pool, uint32_t n, void (*fn)(void *arg, uint32_t worker), void *arg);

/* Calls fn(arg, w) for w in [0, n) at the same time; returns when all calls have. n <= the pool's. */

/* A task's clients, the longest first: most steps first, in the task's order among equals. */
struct trainer_clients {
        uint32_t n;
        struct trainer_client {
                uint64_t steps;
                uint32_t item;
        } * v;
};
void mfl_trainer_clients_sort(struct trainer_clients *clients);
/* The fewest lanes per worker with which the last client ends as early as with `most`, when a free lane takes
 * the next client: 50 equal clients on one worker with at most 16 lanes take four rounds with 13 lanes, too.
 * 1 <= result <= most. */
uint32_t mfl_trainer_balance(const struct trainer_clients *clients, uint32_t workers, uint32_t most);

/* ---- jobs: trainer_job.c ---- */

#define CHUNK_EVAL_BATCHES 4u

/* How far a client's local training is. */
struct trainer_local {
        uint64_t client;
        const uint32_t *samples;
        uint32_t n, n_epoch;    /* samples; those of an epoch */
        uint64_t n_steps, step; /* all steps; next step */
        uint32_t phase;         /* of the run's */
        uint64_t first, end;    /* steps of the phase: [first, end) */
        uint64_t epoch;         /* next epoch to shuffle */
        uint32_t at;            /* position within the epoch's order */
};

/* One group of a network: a client in training, or none. A lane whose client is done takes the next one at
 * once, so clients of different sizes keep the device busy. */
struct trainer_lane {
        bool active;
        uint32_t item; /* of the task */
        uint64_t weight, busy_ns;
        double loss; /* mean with the params that it received, where the strategy needs it */
        struct trainer_local local;
        uint32_t *order; /* the client's samples, shuffled */
};

struct mfl_mesh_memory;
struct trainer_team;
struct trainer_job;

/* Who does a job's local work: mfl's own networks, or a program. */
struct trainer_work {
        void (*train)(void *arg, uint32_t worker); /* arg: struct trainer_run; on n workers at once */
        void (*eval)(void *arg, uint32_t worker);
};
extern const struct trainer_work mfl_trainer_networks; /* trainer_job.c */
extern const struct trainer_work mfl_trainer_program;  /* trainer_program.c */

/* One worker's memory for one job. */
struct trainer_slot {
        struct mfl_net *train, *eval;
        struct trainer_team *team; /* trains the one lane's client; NULL: the network alone does */
        uint32_t n_lanes;          /* G, the training network's groups */
        uint32_t n_wanted;         /* number of clients that it was made for */
        uint32_t n_fit;            /* largest G: the job's, or the largest that pays and fits */
        uint32_t n_used;           /* lanes that take clients of the current task */
        struct trainer_lane *lanes;
        struct mfl_group_steps *groups;
        uint64_t *weight, *n_bad; /* each lane's, in sum_add */
        /* Params that move, after a training, then the delta; or a correction, or a client's own model that is evaluated.
         * NULL: no task needed one yet. */
        float *after;
        float *lr_scale;                      /* n_lanes * steps_max; NULL: the learning rate is constant */
        uint32_t *index;                      /* n_lanes * steps_max * rows of a step */
        uint32_t *count;                      /* n_lanes * steps_max */
        uint32_t steps_max;                   /* of one call of the backend */
        uint32_t chunk_steps;                 /* adapted to CHUNK_NS */
        bool sum_used;                        /* the network's own sum may hold something */
        uint64_t train_told_ns, eval_told_ns; /* what the networks have spent on batches, and was counted */
};

struct trainer_data {
        const struct mfl_dataset *dataset;
        uint64_t fingerprint;
        struct mfl_device_data *train, *test; /* made when first needed */
        bool train_streamed, test_streamed;
        uint64_t device_bytes; /* reserved */
};

struct trainer_job {
        char id[MFL_JOB_ID_BYTES];
        char *text;
        struct mfl_job *spec;
        struct mfl_graph *graph;
        struct trainer_data *data;
        struct trainer_data scaled; /* data.normalise: what `data` then is; its dataset is the job's own */
        struct mfl_partition *partition;
        uint32_t samples_max; /* of the largest client */
        uint32_t *test_index; /* 0, 1, 2, .. */
        uint32_t n_slots;     /* workers of the daemon / threads of a client */
        struct trainer_slot *slots;
        uint64_t bytes, device_bytes; /* reserved, of the host's memory and of the device's own */
        uint64_t population_bytes;    /* reserved, too, as long as the job is kept */
        bool told_ungrouped;
        bool checked_codes; /* of its data; what the model adds to them came with the first task */
        uint32_t
                apart; /* ranks of this daemon in the current task's team of several daemons; 0: it has none */
        uint32_t apart_ranks;          /* of all its daemons */
        uint32_t apart_widest;         /* the most that one of them has */
        bool apart_peers;              /* they may be on several nodes */
        struct mfl_parallel_took took; /* by the widest team of threads; ranks 0: none yet */
        uint32_t took_tasks;           /* begun since then */
        bool in_place; /* the current task's update is made where its team's leader had the params */
        bool sums; /* the current task needs a place for floats beside those where updates are uploaded from */
        struct trainer_poison
                *poison; /* of a simulated attack on data; NULL: there is none (trainer_poison.c) */
        const struct trainer_work *work;
        struct mfl_program *program; /* NULL: mfl trains */
        struct trainer_kept *kept;   /* of a client whose team was lost; NULL: nothing (trainer_kept.c) */
        bool wide; /* networks get all lanes that pay: one that was balanced for its first task had too few */
        struct trainer_job *next;
};

struct mfl_trainer {
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        struct mfl_device_info info;
        uint32_t workers;
        char name[MFL_NAME_BYTES], site[MFL_NAME_BYTES]; /* the daemon's; site "": it is one by itself */
        uint64_t local_item;                             /* the client of partition local */
        uint32_t n_data;
        struct trainer_data *data;
        struct trainer_memory memory, device_memory; /* the second only where the device has its own */
        struct trainer_pool pool;
        struct mfl_share *share;                /* NULL: none */
        struct mfl_collective *shm, *nccl;      /* NULL: none */
        struct mfl_peer_port *peers;            /* NULL: none */
        struct mfl_communicator comm;           /* between the GPUs of the last team */
        struct mfl_filters *filters;            /* NULL: none */
        const char *plugins;                    /* for jobs' logs; NULL: none */
        struct mfl_activity *activity;          /* NULL: none */
        const struct mfl_programs *programs;    /* NULL: none */
        const char *const *hidden;              /* from programs */
        const struct mfl_site_privacy *privacy; /* NULL: none */
        const char *state_dir;                  /* NULL: none */
        _Atomic uint64_t staged_bytes;          /* of the device's memory, beside its budget */
        struct trainer_job *jobs;               /* last used first */
        bool no_room;                           /* why the last mfl_trainer_job_prepare failed, if it did */
};

/* Whether evaluations read training samples, those that clients keep. */
static inline bool trainer_evaluates_held(const struct mfl_job *spec)
{
        return spec->evaluation.on == MFL_EVALUATE_CLIENTS && mfl_job_held(spec, UINT32_MAX);
}

/* The rows of an optimizer step: batch * accumulate. */
static inline uint32_t trainer_step_rows(const struct mfl_job *spec)
{
        return spec->training.batch * spec->training.accumulate;
}

/* How many of a client's n samples an epoch has: with drop_last, only whole batches. */
static inline uint32_t trainer_epoch_rows(const struct mfl_job *spec, uint32_t n)
{
        return spec->training.drop_last ? n - n % spec->training.batch : n;
}

struct trainer_run;
/* The optimizer of a task, for a strategy that sets some of it anew in each round. */
struct mfl_optimizer mfl_trainer_task_optimizer(const struct mfl_job *spec, const struct mfl_task *task);
/* trainer_spec.c: the daemon's data set that a job names. MFL_INVALID. */
/* data.normalise: the job gets a scaled copy of its data set. trainer_spec.c. */
int mfl_trainer_scale(struct mfl_trainer *trainer, struct trainer_job *job, struct mfl_error *err);
void mfl_trainer_scale_free(struct mfl_trainer *trainer, struct trainer_job *job);
/* Once, with the first task's params: the codes among its data. trainer_spec.c. */
int mfl_trainer_check_codes(
        const struct mfl_train_request *request, struct trainer_job *job, struct mfl_error *err);
int mfl_trainer_find_data(struct mfl_trainer *trainer, const struct mfl_job *spec,
        const struct mfl_task *task, struct trainer_data **ret_data, struct mfl_error *err);
/* trainer_spec.c: the request's population becomes that of the job. */
int mfl_trainer_tell_population(struct mfl_trainer *trainer, const struct mfl_train_request *request,
        struct trainer_job *job, struct mfl_error *err);
/* The lanes of a task: what the job says, or what is best for its clients, `most` at most. */
uint32_t mfl_trainer_lanes(const struct trainer_job *job, const struct trainer_clients *clients,
        uint32_t workers, uint32_t most);
/* Whether the networks that there are have too few of them for these clients. */
bool mfl_trainer_outgrown(struct trainer_job *job, const struct trainer_clients *clients, uint32_t workers);
/* The job of a request, made or found. */
int mfl_trainer_job_get(struct mfl_trainer *trainer, const struct mfl_train_request *request,
        struct trainer_job **ret_job, struct mfl_error *err);
/* Makes the first n slots ready for the kind of task. Training: `clients` are the task's. */
int mfl_trainer_job_prepare(struct mfl_trainer *trainer, struct trainer_job *job, enum mfl_task_kind kind,
        uint32_t n, const struct trainer_clients *clients, struct mfl_error *err);
/* trainer_program.c: starts nothing yet. MFL_INVALID: this daemon does not have the program. */
int mfl_trainer_program_new(struct mfl_trainer *trainer, struct trainer_job *job, struct mfl_error *err);
/* Afterwards the slots are as new, and the memory is released. */
void mfl_trainer_job_empty(struct mfl_trainer *trainer, struct trainer_job *job);
/* A task with no room beside what else is there: what a team of several daemons would take, if the job allows one. Appends to the text. */
void mfl_trainer_job_advise(struct mfl_trainer *trainer, struct trainer_job *job, struct mfl_error *err);
void mfl_trainer_job_free(struct mfl_trainer *trainer, struct trainer_job *job);
/* The samples that an item trains on, and those that it keeps for evaluations: MFL_INVALID for an item that the job does
 * not have. */
int mfl_trainer_job_client(const struct mfl_trainer *trainer, const struct trainer_job *job, uint64_t item,
        const uint32_t **ret_samples, uint32_t *ret_n, struct mfl_error *err);
int mfl_trainer_job_held(const struct mfl_trainer *trainer, const struct trainer_job *job, uint64_t item,
        const uint32_t **ret_samples, uint32_t *ret_n, struct mfl_error *err);

/* trainer_team.c: how many workers each of a task's clients gets: all of the daemon's, shared among the clients that
 * train side by side; 0: the job's clients have no teams. */
uint32_t mfl_trainer_team_width(
        const struct mfl_trainer *trainer, const struct trainer_job *job, uint32_t clients);
/* Before a task, from what the one before took: with members: auto, the widths to come are those that pay. */
void mfl_trainer_team_learn(struct trainer_job *job);
uint32_t mfl_trainer_team_size(const struct trainer_team *team); /* NULL: 1 */
/* Whether a slot's team, or NULL, can train the job's task. */
bool mfl_trainer_team_fits(const struct trainer_team *team, const struct trainer_job *job, uint32_t width);
/* What its networks take beside the first one: of the device's own memory where there is such memory. */
uint64_t mfl_trainer_team_net_bytes(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, uint32_t n);
/* What a team of n takes besides the first network, in that stage of ZeRO or a later one, of the host's memory. */
uint64_t mfl_trainer_team_bytes(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, uint32_t n, uint32_t zero);
uint64_t mfl_trainer_update_bytes(const struct trainer_job *job); /* of one that is made in place; else 0 */
/* The job's stage, or the least one that takes at most `room` bytes; the last one where none does. */
uint32_t mfl_trainer_team_zero(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, uint32_t n, uint64_t room);
/* The leader's copy of the params becomes the result's buffer, in the order of the flat vector. */
int mfl_trainer_team_take(
        struct trainer_run *run, struct trainer_slot *slot, float **ret_params, struct mfl_error *err);
/* A team took more than there is: what a worker would take in a team of several daemons. Appends to the text. */
void mfl_trainer_team_advise(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, uint32_t n, struct mfl_error *err);
/* first: rank 0's network, of those options. It outlives the team. bytes: reserved for it. */
int mfl_trainer_team_new(struct mfl_trainer *trainer, const struct trainer_job *job, struct mfl_net *first,
        const struct mfl_net_options *options, uint32_t n, uint32_t zero, uint64_t bytes,
        struct trainer_team **ret_team, struct mfl_error *err);
void mfl_trainer_team_free(struct mfl_trainer *trainer, struct trainer_team *team); /* NULL is fine */
/* The local training of an item begins, at all ranks. */
int mfl_trainer_team_begin(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t item, struct mfl_error *err);
/* After that, at all ranks, with the round's params in all networks: *ret_step is the step with which the client goes on, 0: it begins.
 * If not 0, *ret_score and *ret_squares are of the steps before. */
int mfl_trainer_resume(struct trainer_run *run, struct trainer_slot *slot, uint64_t client,
        uint32_t *ret_step, struct mfl_score *ret_score, int64_t *ret_squares, struct mfl_error *err);
void mfl_trainer_kept_drop(struct mfl_trainer *trainer, struct trainer_job *job); /* nothing kept is fine */
void mfl_trainer_kept_yield(struct mfl_trainer *trainer,
        struct trainer_job *job); /* the same, for others' memory: the log says so */
/* The backend's step, of lane 0. After an error a team of one daemon can only be freed, and one of several parts. */
int mfl_trainer_team_step(struct trainer_run *run, struct trainer_slot *slot, uint32_t n_steps,
        const struct mfl_optimizer *opt, struct mfl_error *err);

/* trainer_advice.c: a training network of these options takes more than `room` bytes. Appends to the text of
 * the refusal, which may not be NULL, what could be changed in the job and how much it would take then. */
void mfl_trainer_advise(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, uint64_t room, struct mfl_error *err);

/* Logs what a job's training takes, for people who want a larger batch. */
void mfl_trainer_log_network(const struct mfl_trainer *trainer, const struct trainer_job *job,
        const struct mfl_net_options *options, const struct mfl_net *net);

/* ---- one task: trainer.c, above trainer_train.c and trainer_eval.c, above trainer_run.c ---- */

#define STRIPES 64u

struct trainer_item {
        uint64_t weight, samples, correct, train_us, clamped;
        int64_t loss_sum, square_sum;            /* squares: where the job's selection needs them */
        int64_t scalars[MFL_METHOD_SCALARS_MAX]; /* what the strategy adds beside the deltas */
        char *rejected;                          /* reason; NULL: counted */
        struct mfl_site_state state;             /* client_state daemon: what is kept of it now */
};

struct trainer_run {
        struct mfl_trainer *trainer;
        struct trainer_job *job;
        const struct mfl_train_request *request;
        struct mfl_train_result *result;
        struct trainer_item *items;
        _Atomic uint32_t next; /* of clients, or unit of evaluation */
        atomic_bool stop;      /* a thread failed */
        pthread_mutex_t lock;  /* of code and err */
        int code;
        struct mfl_error err;
        struct trainer_clients clients;          /* of training, in the order in which they are taken */
        struct mfl_phase phases[MFL_PHASES_MAX]; /* of each client's training */
        uint32_t n_phases;
        struct mfl_fixed fixed;      /* the task's, with the room for the strategy's own weights */
        int64_t *sum;                /* MFL_ENCODING_I64 */
        bool sum_begun;              /* it holds something: under the lock */
        _Atomic uint32_t n_working;  /* workers that may still add to it */
        struct trainer_slot *last;   /* its network's sum is still to be added */
        struct mfl_task_times times; /* of a team that this daemon led */
        bool alone;                  /* a place that the group can read is not wanted */
        bool unprepared;             /* because of memory */
        struct mfl_sum *held;        /* where networks' sums go first, if not NULL */
        uint64_t stripe;             /* elements under one lock */
        pthread_mutex_t stripes[STRIPES];
        /* evaluation */
        struct trainer_unit *units;
        uint32_t n_units;
        pthread_mutex_t eval_lock;
};

/* A result together with what it takes to free its buffers. */
struct trainer_result {
        struct mfl_train_result base;
        enum mfl_encoding encoding;
        enum mfl_collective_kind kind; /* grouped: how */
        struct trainer_shared *shared; /* data[0] lies in it */
        struct mfl_mesh_memory *lent;  /* ... or in this; charged when the task has ended */
        uint64_t lent_bytes;           /* charged */
        struct trainer_held *held;
        /* late: what to bring, the held sum or a network's */
        struct trainer_slot *last;
        bool add; /* to what update 0 holds */
};

/* trainer_group.c: puts the result of a group's task where the group can read it, if possible; otherwise
 * changes nothing. Negative: this process can't go on. */
int mfl_trainer_group_place(struct trainer_run *run, struct trainer_result *result, struct mfl_error *err);
void mfl_trainer_group_leave(struct mfl_trainer *trainer, struct trainer_result *result);

/* trainer_stage.c: the request's params become those of a group, or with -1 the network's base. */
int mfl_trainer_params_start(struct trainer_run *run, struct mfl_net *net, int group, struct mfl_error *err);

/* n of the daemon's workers change from one state to another. */
static inline void trainer_turn(
        struct mfl_trainer *trainer, uint32_t n, enum mfl_activity_work from, enum mfl_activity_work to)
{
        if (trainer->activity)
                mfl_activity_move(trainer->activity, n, from, to, mfl_now_ns());
}
/* How many of the daemon's workers one network takes. */
static inline uint32_t trainer_width(const struct trainer_run *run)
{
        return MFL_MIN(run->trainer->workers, MFL_MAX(1u, run->job->spec->training.threads));
}
/* trainer_run.c. A network has worked until now: the samples it trained, and the time it has spent on batches
 * (in all calls so far); *told_ns of that was counted before. reads_ns: what the trainer has spent on their
 * indices. */
void mfl_trainer_count(struct trainer_run *run, struct mfl_net *net, uint64_t samples, uint64_t reads_ns,
        uint64_t now_ns, uint64_t *told_ns);

/* trainer_delta.c: what is done to each client's change; clip 0: nothing. Whether that can be done for the task: MFL_INVALID. */
struct mfl_local_rule mfl_trainer_rule(const struct trainer_run *run);
/* Whether no figure of the data may leave: by the job, or by the site's policy. */
bool mfl_trainer_withholds(const struct trainer_run *run);
int mfl_trainer_check_rule(const struct trainer_run *run, struct mfl_error *err);

/* Whether networks can add a task's updates to sums of their own. Those of a team's workers have none. Real weights are folded in on the
 * host, where all of a client's delta is at hand, and deltas are filtered, clipped and rounded to a grid there. */
static inline bool trainer_can_add_on_device(const struct trainer_run *run)
{
        return run->trainer->ops->sum_add && !run->job->program &&
               mfl_method_adds_on_device(run->job->spec) && !(mfl_trainer_rule(run).clip > 0) &&
               !mfl_filters_concern(run->trainer->filters, run->job->spec);
}

/* And whether they do; once it is known whether the task has a sum. */
static inline bool trainer_adds_on_device(const struct trainer_run *run)
{
        return run->sum && trainer_can_add_on_device(run);
}

/* Whether a job's clients start from the same params, and nothing else is ever put in their place. */
static inline bool trainer_shares_start(const struct mfl_job *spec)
{
        const struct mfl_method_ops *method = mfl_method_get(spec);
        return !method->starts && !method->models && !method->anchors;
}

/* Whether gradients are corrected: by what the server sends, or by phases that pull to elsewhere than their start. */
static inline bool trainer_corrects(const struct mfl_job *spec)
{
        struct mfl_phase phases[MFL_PHASES_MAX];
        const struct mfl_method_ops *method = mfl_method_get(spec);
        int n = mfl_method_phases(spec, 1, phases);
        bool pulls = false;
        for (int i = 0; i < n; i++)
                pulls |= phases[i].pull != 0;
        return pulls || method->guide || (method->correct && !method->starts);
}

/* Whether evaluations are of clients' own models. */
static inline bool trainer_evaluates_own(const struct mfl_job *spec)
{
        return mfl_job_has_own_models(spec) && spec->evaluation.on == MFL_EVALUATE_CLIENTS;
}

static inline const struct mfl_phase *trainer_phase(
        const struct trainer_run *run, const struct trainer_lane *lane)
{
        return &run->phases[lane->local.phase];
}

/* Whether networks keep the params that clients start from. Those of a team's workers don't. */
static inline bool trainer_keeps_start(const struct trainer_run *run)
{
        return run->trainer->ops->params_base &&
               !(run->job->spec->parallel.grain && run->trainer->ops->grad) &&
               trainer_shares_start(run->job->spec);
}

static inline float *mfl_trainer_scales(const struct trainer_slot *slot, uint32_t i_lane)
{
        return slot->lr_scale ? slot->lr_scale + (size_t)i_lane * slot->steps_max : NULL;
}

/* trainer_phase.c: a client's own model: the job's params with its own on top, or its own as a whole. n_moving floats. *ret_lost: its site
 * should have one, and has not. */
int mfl_trainer_own(
        struct trainer_run *run, uint64_t client, float *ret_own, bool *ret_lost, struct mfl_error *err);

/* trainer_delta.c: what stays at a client's site (client_state: daemon). load: *ret_there false: there is nothing, and ret_own may hold
 * anything. save: a full disk rejects the client. keep: after its last phase, its own model, or the layers that are not sent. */
bool mfl_trainer_keeps_own(const struct trainer_run *run);
int mfl_trainer_site_load(
        struct trainer_run *run, uint64_t client, float *ret_own, bool *ret_there, struct mfl_error *err);
int mfl_trainer_site_save(struct trainer_run *run, uint64_t client, size_t n, const float *own, bool there,
        struct trainer_item *item, struct mfl_error *err);
int mfl_trainer_site_keep(struct trainer_run *run, const struct trainer_lane *lane, struct trainer_item *item,
        struct mfl_error *err);

/* trainer_phase.c. The lane's phase begins: its network's group has the start. stepped: after each call of the backend's step.
 * own: the phase is over, and may leave the client's own model in its update; *ret_finite: it can be kept. */
int mfl_trainer_phase_begin(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t i, struct mfl_error *err);
int mfl_trainer_phase_stepped(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t i, struct mfl_error *err);
int mfl_trainer_phase_own(struct trainer_run *run, struct trainer_slot *slot, uint32_t i, bool *ret_finite,
        struct mfl_error *err);
struct mfl_optimizer mfl_trainer_phase_optimizer(const struct trainer_run *run, uint32_t phase);

/* trainer_gradient.c. A phase that takes the gradient over all samples begins; after each of its steps. */
struct mfl_optimizer mfl_trainer_gradient_optimizer(const struct trainer_run *run);
void mfl_trainer_gradient_begin(struct trainer_run *run, const struct trainer_lane *lane);
int mfl_trainer_gradient_stepped(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t i, struct mfl_error *err);
/* Before a step of a phase that needs the batch's gradient elsewhere, too; otherwise nothing. */
int mfl_trainer_probe(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t phase, struct mfl_error *err);
/* mix * v + (1 - mix) * w, n_moving floats. */
void mfl_trainer_mix(const struct trainer_run *run, double mix, const float *v, const float *w, float *to);
/* The phase's, or what a client keeps behind its own. */
double mfl_trainer_mix_of(const struct trainer_run *run, const struct mfl_phase *phase, const float *own);

/* Keeps the first failure and tells the other threads to stop. */
void mfl_trainer_run_fail(struct trainer_run *run, int code, const struct mfl_error *err);
/* True if the thread should return: a thread failed, or the task is cancelled. */
bool mfl_trainer_run_stopped(struct trainer_run *run);
/* Adds to the figures of progress. Any worker. */
void mfl_trainer_add_loss(struct trainer_run *run, int64_t loss_sum);
/* trainer_local.c: a client's local training begins. */
void mfl_trainer_local_begin(struct trainer_local *local, const struct mfl_job *spec, uint32_t round,
        uint64_t client, const uint32_t *samples, uint32_t n);
/* Its next phase begins. */
void mfl_trainer_local_phase(struct trainer_local *local, const struct mfl_job *spec,
        const struct mfl_phase *phases, uint32_t phase);
/* Prepares the lane's next n steps, or fewer if its client's phase ends before; the others count 0 rows, and so do all of a lane
 * that is in another phase. */
void mfl_trainer_local_fill(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t i_lane, uint32_t phase, uint32_t n);
/* How many steps the lanes of a phase take together next. */
uint32_t mfl_trainer_chunk(struct trainer_run *run, const struct trainer_slot *slot, uint32_t *ret_phase);
/* Leaves out the steps before `step`, which others have taken; returns their rows. */
uint64_t mfl_trainer_local_skip(struct trainer_run *run, struct trainer_lane *lane, uint64_t step);
/* trainer_items.c: how many items the training has, without those given back; begins the next one, if there
 * is one; whether there is one. */
uint32_t mfl_trainer_items(const struct trainer_run *run);
bool mfl_trainer_item_begin(struct trainer_run *run, uint32_t *ret_item);
bool mfl_trainer_item_waits(const struct trainer_run *run);

/* ---- trainer_delta.c ---- */

/* A client whose local training is over. */
struct trainer_trained {
        uint64_t client, weight, steps;
        uint32_t samples;
        double loss;   /* with the params that it received, where the strategy needs it */
        bool is_delta; /* the floats are the change already */
        const float *
                source; /* where they are, if not in place: memory that another process may change meanwhile */
};
/* Its params become its delta, which is counted, or the client is rejected: item->rejected. */
int mfl_trainer_delta(struct trainer_run *run, uint32_t worker, float *params,
        const struct trainer_trained *trained, struct trainer_item *item, struct mfl_error *err);
int mfl_trainer_reject(struct trainer_item *item, char *reason, struct mfl_error *err); /* NULL: no memory */
/* The weight of a client of n samples. One that can't be added is rejected. */
int mfl_trainer_weight(struct trainer_run *run, struct trainer_item *item, uint64_t n, uint64_t *ret_weight,
        struct mfl_error *err);
/* trainer_eval.c: the samples of an evaluation's item, of the test split or of a client's own. */
int mfl_trainer_eval_samples(struct trainer_run *run, uint64_t item, const uint32_t **ret_samples,
        uint32_t *ret_n, struct mfl_error *err);

void mfl_trainer_train_worker(void *arg, uint32_t worker);  /* arg: struct trainer_run */
void mfl_trainer_assist_worker(void *arg, uint32_t worker); /* of a task of kind ASSIST */
int mfl_trainer_train_result(struct trainer_run *run, struct mfl_error *err);
int mfl_trainer_eval_units(struct trainer_run *run, struct mfl_error *err);
void mfl_trainer_eval_worker(void *arg, uint32_t worker);

#endif
