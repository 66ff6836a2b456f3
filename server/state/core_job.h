/* SPDX-License-Identifier: Apache-2.0 */
/* A job as the core knows it: its phase, the clients of the phase at hand, and the round being stored. */
#ifndef MFL_SERVER_STATE_CORE_JOB_H
#define MFL_SERVER_STATE_CORE_JOB_H

#include "common/base/fixed.h"
#include "common/cohort/calendar.h"
#include "common/cohort/memory.h"
#include "common/job/job_record.h"
#include "common/measure/tally.h"
#include "common/method/method.h"
#include "common/parallel/plan.h"
#include "proto/message.h"

struct core_cut;
struct core_daemon;
struct core_group;
struct core_task;
struct core_secure;
struct core_slot;
struct core_team;
struct core_update;
struct mfl_core;

#define CORE_NEVER UINT64_MAX

/* A sum of losses, each of which may be near 2^63. */
__extension__ typedef __int128 core_sum;
static inline double mfl_core_loss(core_sum sum)
{
        return (double)sum * 0x1p-32; /* as mfl_fixed_loss_to_double */
}

enum item_state {
        ITEM_OPEN,     /* not given to a daemon */
        ITEM_ASSIGNED, /* in a live task */
        ITEM_COUNTED,
        ITEM_REJECTED, /* done, but its update was refused as invalid */
        ITEM_MISSING,  /* `local` jobs: its daemon is gone */
        ITEM_STATES_,
};

/* One client (train) or one shard (evaluate) of the phase at hand. */
struct core_item {
        uint64_t item;
        enum item_state state;
        struct core_task *task; /* ASSIGNED */
};

/* Work of a round that is over which a daemon goes on with, because it is to count in a later one (real time). */
struct core_standing {
        uint64_t item, task, owner_key, owner_instance;
        uint32_t base;
};

/* Legal changes are in core_job.c. */
enum core_phase {
        PHASE_DATA,       /* waits for a daemon with the data set */
        PHASE_PREPARE,    /* JOB_PREPARE is under way */
        PHASE_SETTLE,     /* waits a moment for more daemons before the first round */
        PHASE_TRAIN_WAIT, /* waits for daemons to begin a round */
        PHASE_TRAIN,
        PHASE_CLOSING, /* the round is decided; sums under way end first */
        PHASE_TRAINED, /* the round is counted, and waits until its predecessor is committed */
        PHASE_APPLY,
        PHASE_EVAL_WAIT, /* waits for daemons to evaluate */
        PHASE_EVAL,
        PHASE_STORE, /* only stores the round */
        PHASE_OVER,  /* waits for the worker's last answers, then the job is released */
        PHASES_,
};

/* Legal changes are in server/round/round_store.c. */
enum store_state {
        STORE_EMPTY,            /* no round is being stored */
        STORE_CHECKPOINT,       /* CHECKPOINT is ordered */
        STORE_CHECKPOINT_RETRY, /* it failed, and is ordered again at retry_ms */
        STORE_CHECKPOINTED,     /* the file is on disk; the record may be incomplete */
        STORE_COMMIT,           /* COMMIT is ordered */
        STORE_COMMIT_RETRY,     /* it failed, and is ordered again at retry_ms */
        STORE_STATES_,
};

/* The round that is applied and not yet committed. The next one may train from its params meanwhile. */
struct core_store {
        uint32_t round; /* 0: EMPTY */
        enum store_state state;
        bool complete; /* the record is final: the round is evaluated, or is not evaluated at all */
        bool failing;  /* the disk failed; `reason` says how until the round is committed */
        char reason[MFL_REASON_BYTES];
        struct mfl_round_record record;
        uint64_t retry_ms; /* CORE_NEVER: no retry is due */
};

struct core_job {
        char id[MFL_JOB_ID_BYTES];
        const struct mfl_job *spec;
        uint32_t serial;
        struct core_job *next;
        enum mfl_job_state state;
        char reason[MFL_REASON_BYTES];
        enum core_phase phase;
        bool dirty; /* its decisions are due before the step ends */

        struct mfl_data_info data;      /* name "": no data set was chosen yet */
        char data_from[MFL_NAME_BYTES]; /* the daemon whose data set was chosen; "": not known */
        struct mfl_fixed fixed;
        bool statistics;             /* the model has running statistics */
        uint64_t n_params, n_frozen; /* an update has n_params - n_frozen elements */
        uint32_t n_slots;
        uint8_t frozen_digest[MFL_DIGEST_BYTES];
        uint8_t digest[MFL_DIGEST_BYTES];     /* of the newest params, committed or not */
        double method[MFL_METHOD_STATES_MAX]; /* what the strategy keeps, with the newest params */
        char numerics[MFL_NUMERICS_BYTES];    /* of the first daemon that trained */
        bool has_numerics, numerics_mixed;    /* mixed: people were told */
        bool numerics_part;                   /* people were told that daemons form no team for it */
        struct core_store store;

        uint32_t committed, round, attempt, eval_tries;
        uint32_t excused; /* of the attempts: sites have turned the job away in them, which is no failure */
        bool turned_away; /* in this attempt */
        uint32_t stop_after;  /* 0: the job runs to its last round */
        uint32_t last_round;  /* that the privacy budget allows; 0: no limit */
        uint64_t select_seed; /* of the draws: the job's, or a secret one */
        uint64_t stamp;       /* rises with every phase that gives out work */
        uint64_t served;      /* the scheduler's turn at which it last began a phase */
        uint64_t wait_turn;   /* the turn at which it began to wait for the next phase; 0: it does not wait */
        uint64_t claim;   /* core->lease_turn when it began to wait for busy daemons; 0: it does not wait */
        uint64_t wait_ms; /* since when it waits for daemons to begin a phase; 0: it does not wait */
        uint64_t began_ms, train_ms, eval_ms; /* start of this phase; mean duration of earlier phases */
        bool asks;        /* scheduler's pass: some daemon was asked to give clients back */
        uint64_t left_ms; /* scheduler's pass: time until the phase at hand ends */
        bool moving;      /* its open items were asked back for idle daemons */
        uint64_t arrival_ms, ready_ms;
        uint64_t prepare_ms; /* after a full disk: when JOB_PREPARE is repeated; 0: at any time */
        uint64_t
                rest_ms; /* when resting daemons work again, since no team can do without them; 0: they need not */

        struct core_cut *cuts, *cut; /* cut: the valid one; NULL: none is known */
        bool cut_exact, cuts_dirty;  /* exact: all of its counts are known; dirty: votes must be counted */
        bool spoilt;                 /* an update that counts in this round has proved false */
        uint32_t scored;             /* as in JOB_READY */
        bool scored_all;
        enum mfl_tally tally_kind;
        uint32_t answers, n_tally; /* as in JOB_READY; numbers of a tally */

        uint32_t *
                samples; /* of each client of the population, when the newest round was drawn; NULL: it needs none */
        bool census; /* the evaluation at hand only makes a daemon tell the clients' samples */
        uint32_t census_tries;

        struct core_item *items;        /* sorted by item */
        struct mfl_client_loss *losses; /* of each item that counts, if the job remembers them; else NULL */
        uint32_t n_wanted;              /* what the quorum is a share of: n_items, or more in virtual time */
        struct mfl_seen_client *seen;   /* of the round that is counted and not yet applied */
        uint32_t n_seen;
        union mfl_memory_row *memory; /* of all clients, with the newest params; NULL: the job needs none */
        /* Asynchronous jobs; else NULL. What is under way with the newest params, and when the round at hand is applied. */
        union mfl_calendar_row *calendar, *calendar_next;
        /* Jobs whose clients start from several params; else NULL. The digests of these, b at b % mfl_job_bases; and for each item of a
         * training its b: the version, or the region. */
        uint8_t (*bases)[MFL_DIGEST_BYTES];
        uint32_t *base, staleness; /* staleness: the largest */
        uint64_t *weights;         /* asynchronous: of the updates that count, by staleness */
        /* Real time (server/live/live.h): what counts in the round at hand, in the order in which it came; what is recorded
         * of rounds that are not committed, ascending; and what daemons go on with. */
        struct mfl_arrival *arrivals, *recorded;
        uint32_t n_arrivals, n_recorded;
        struct core_standing *standing;
        uint32_t n_standing, standing_capacity;
        uint64_t virtual_us; /* virtual time: when the newest round that is applied ended */
        uint32_t n_items, count[ITEM_STATES_];
        struct core_task *tasks;
        struct core_group *groups;
        struct core_team *teams;
        struct mfl_team_totals team_totals;
        uint64_t team_stamp; /* of the phase in which team_fails teams have ended badly */
        uint32_t team_fails;
        uint32_t team_round;                 /* before this one its clients get no teams */
        bool needs_teams;                    /* some daemon can't train a client of it alone */
        struct mfl_parallel_took team_took;  /* by the widest team since team_took_round */
        uint32_t team_took_round, team_best; /* ranks that pay for a client, by that; 0: not known */
        struct core_daemon **leased;
        uint32_t n_leased, leased_capacity, n_leased_up;

        struct core_slot *slots;
        struct core_update *queue_head, *queue_tail;
        uint64_t memory_ms; /* no slot is granted before, because downloads hold the memory; 0: at any time */
        uint32_t n_adding;
        uint64_t weight_claimed, weight_counted; /* of updates that may still count; of those that count */

        uint64_t deadline_ms, deadline_left; /* CORE_NEVER: the clock stands still with this much left */
        bool released;
        uint32_t n_pending; /* orders that the worker has not answered, n_adding included */
        char last_failure[MFL_REASON_BYTES];

        struct core_secure *secure; /* the secure sum of the round at hand; NULL: it has not begun */
        uint32_t skip_round;        /* its sum was being opened when an earlier server died; 0: none */
        uint32_t n_skipped;         /* rounds in a row */
        struct mfl_round_record record;
        core_sum train_loss, eval_loss;
        core_sum scalars
                [MFL_METHOD_SCALARS_MAX]; /* what the strategy adds beside the deltas (common/method/method.h) */
        uint64_t train_correct, eval_correct;
        uint64_t *tally; /* n_tally, of the evaluation at hand */
        /* Evaluation on clients: by item while it runs, which takes 32 bytes for each of at most MFL_COHORT_MAX clients;
         * then, as for all jobs, of the round that is being stored. */
        struct mfl_round_scores scores;
        uint64_t progress_samples;
        core_sum progress_loss;
};

static inline bool mfl_core_job_is_local(const struct core_job *job)
{
        return job->spec->data.partition == MFL_PARTITION_LOCAL;
}

struct core_job *mfl_core_job(const struct mfl_core *core, const char *id); /* NULL: no such job */
/* Its decisions are made before the step ends. */
void mfl_core_dirty(struct mfl_core *core, struct core_job *job);
/* Asserts that the change is legal. */
void mfl_core_job_move(struct core_job *job, enum core_phase to);
void mfl_core_item_set(struct core_job *job, uint32_t i, enum item_state state, struct core_task *task);
void mfl_core_items_clear(struct core_job *job);
/* Of the params that the item's work starts from; and how many versions have been made since. */
const uint8_t *mfl_core_item_params(const struct core_job *job, uint32_t i);
/* Asynchronous jobs; else 0. */
uint32_t mfl_core_item_staleness(const struct core_job *job, uint32_t i);
/* What daemons know as the round of the item's training. In real time, a client that is under way does not know the round it will
 * count in: it is the one after its params'. */
uint32_t mfl_core_item_round(const struct core_job *job, uint32_t i);
/* Whether the task is work that a daemon goes on with between rounds. */
bool mfl_core_stands(const struct mfl_core *core, uint64_t task);

#endif
