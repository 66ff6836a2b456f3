/* SPDX-License-Identifier: Apache-2.0 */
/* What the shell tells the core: its options at the start, then one event after another. */
#ifndef MFL_SERVER_STATE_EVENT_H
#define MFL_SERVER_STATE_EVENT_H

#include "common/cohort/calendar.h"
#include "common/measure/tally.h"
#include "common/method/method.h"
#include "proto/message.h"

struct mfl_core_options {
        uint64_t server_instance; /* random; daemons get it in Welcome */
        /* Rises with each start of a state directory. It is the upper half of task numbers. The lower half
         * starts at the upper half of server_instance, in case the directory was lost and created again
         * within the same second. */
        uint32_t boot;
        uint8_t secret[MFL_TEAM_KEY_BYTES]; /* random; the keys of teams over several nodes follow from it */
        uint32_t heartbeat_ms, dead_ms, reconnect_grace_ms;
        uint32_t upload_stall_ms; /* an upload that is silent for this long loses its slot; 0: never */
};

enum mfl_core_event_kind {
        MFL_EV_NONE, /* no event; mfl_core_step never sees it */
        /* time has passed: at least every 100 ms once mfl_core_next_ms is reached */
        MFL_EV_TICK,
        MFL_EV_JOB_ADD,   /* a submitted job, or an unfinished one after a restart */
        MFL_EV_JOB_READY, /* answers JOB_PREPARE */
        /* answers JOB_PREPARE: the job fails with `reason`, or is prepared again later if `later` is set */
        MFL_EV_JOB_PREPARE_FAILED,
        MFL_EV_JOB_STOP,    /* now, or when the round under way is committed (`after_round`) */
        MFL_EV_DAEMON_UP,   /* a valid Hello came from a daemon on connection conn */
        MFL_EV_DAEMON_DOWN, /* connection conn is closed */
        MFL_EV_MESSAGE,     /* from connection conn; also proves that the peer lives */
        MFL_EV_HEARD,       /* bytes came from connection conn */
        /* bytes of uploads came from connection conn since its last such event: at most one event per 200
         * ms, not one per chunk. Includes HEARD */
        MFL_EV_UPLOADING,
        /* all bytes of `upload` have arrived, the last ones on connection conn. May be late: it means
         * nothing once the slot was taken back. Includes HEARD */
        MFL_EV_UPLOAD_COMPLETE,
        /* `upload` was not opened: downloads of old params hold the memory. May be late */
        MFL_EV_SLOT_BUSY,
        /* answers SLOT_ADD; ok = false: the update was invalid and nothing was added */
        MFL_EV_ADDED,
        /* answers APPLY with the digest of the new params; ok = false: some are not finite, and the job
         * fails */
        MFL_EV_APPLIED,
        MFL_EV_SECURE_NOTED, /* answers SECURE_NOTE */
        /* answers UNMASK with the figures; ok = false: the sum is not one of valid updates, and no round is made of it */
        MFL_EV_UNMASKED,
        MFL_EV_CHECKPOINTED, /* answers CHECKPOINT */
        MFL_EV_COMMITTED,    /* answers COMMIT */
        MFL_EV_DRAIN,        /* an operator drains daemon `drain.name`, or ends that */
        MFL_EV_REFUSED,      /* the shell turned the daemon away */
        /* connection conn tells how it cut the job's population; includes HEARD */
        MFL_EV_POPULATION,
        /* the shell closed connection conn: it broke the rules of the wire (`reason`) */
        MFL_EV_LIED,
        /* daemon `drain.name` may no longer take part (`reason`). It gets Bye with retry; its work goes to
         * other daemons at once */
        MFL_EV_EXPEL,
};

/* Why the shell turned a daemon away. */
enum mfl_refusal {
        MFL_REFUSAL_RULE,
        MFL_REFUSAL_VERSION,
        MFL_REFUSAL_SITE, /* its data differ from those of its site's other daemons */
        MFL_REFUSAL_LIE,  /* it reported something impossible; the same process is never let in again */
};

/* What a daemon tells about its cut of a population (mfl.proto, Partition). */
struct mfl_population {
        uint32_t clients;
        uint64_t samples; /* of all clients together */
        uint32_t samples_min, samples_max;
        uint32_t first, n; /* `count` covers clients [first, first + n); n = 0: only the sizes are told */
        const uint32_t *count;
};
/* For larger populations no counts are kept: [samples_min, samples_max] bounds each client. */
#define MFL_CUT_CLIENTS_MAX (1u << 20)

struct mfl_core_event {
        enum mfl_core_event_kind kind;
        uint64_t now_ms; /* never falls */
        uint32_t conn;   /* the shell's number of a connection; never used twice */
        char job[MFL_JOB_ID_BYTES];
        union {
                struct {
                        const struct mfl_job *spec; /* outlives the job in the core */
                        uint32_t committed;         /* last committed round; 0: the initial params */
                        const struct mfl_data_info
                                *data; /* what JOB_PREPARE or JOB_DATA told last; NULL or no
                                                             name: no data set was chosen yet */
                        const char *data_from;
                        uint32_t stop_after; /* as JOB_STATE told; 0: the job runs to its last round */
                } job_add;
                struct {
                        uint64_t n_params, n_frozen;
                        bool statistics; /* the model has running statistics */
                        uint32_t n_slots;
                        uint32_t scored;      /* maximum number of predictions per sample; 0: not known */
                        bool scored_all;      /* every sample has exactly that many */
                        enum mfl_tally tally; /* what evaluations add up */
                        uint32_t answers;     /* the model's classes, or target values */
                        uint8_t frozen_digest[MFL_DIGEST_BYTES]; /* of the frozen params, if n_frozen > 0 */
                        uint8_t digest[MFL_DIGEST_BYTES];        /* of the params after round `committed` */
                        uint64_t select_seed; /* privacy: of the draws, in place of the job's seed */
                        uint32_t last_round;  /* privacy: that the budget allows; 0: no limit */
                        bool opened; /* secure_sum: the round after `committed` was being opened when the server died */
                        uint64_t virtual_us; /* when that round ended in virtual time */
                        const int64_t *
                                memory; /* common/cohort/memory.h or calendar.h, as CHECKPOINT stored it; NULL: none yet; borrowed */
                        /* Asynchronous jobs in real time: what is recorded of versions after `committed`, ascending; borrowed. */
                        const struct mfl_arrival *arrivals;
                        uint32_t n_arrivals;
                } job_ready;
                struct mfl_daemon_info *daemon;   /* DAEMON_UP, REFUSED; borrowed */
                const struct mfl_msg *msg;        /* MESSAGE; borrowed */
                struct mfl_population population; /* POPULATION; count is borrowed */
                struct {
                        uint32_t slot;
                        uint64_t grant;               /* as in GRANT */
                } upload;                             /* UPLOAD_COMPLETE, SLOT_BUSY, ADDED */
                uint8_t digest[MFL_DIGEST_BYTES];     /* APPLIED */
                uint64_t figures[MFL_SECURE_FIGURES]; /* UNMASKED */
                struct {
                        char name[MFL_NAME_BYTES];
                        bool on;
                } drain; /* DRAIN; EXPEL uses the name */
        };
        double method
                [MFL_METHOD_STATES_MAX]; /* JOB_READY, APPLIED: what the strategy keeps from round to round */
        /* JOB_READY; APPLIED, regions: digests of the params that clients start from, or have started from, mfl_job_bases of them: an
         * asynchronous job's version v at v % mfl_job_bases, or those of each region. NULL: the newest ones alone; borrowed. */
        const uint8_t (*bases)[MFL_DIGEST_BYTES];
        double epsilon; /* APPLIED, privacy: what the job has spent */
        bool spent;     /* APPLIED, not ok: another release would pass the budget */
        bool ok;
        enum mfl_refusal refusal; /* REFUSED */
        bool after_round;         /* JOB_STOP */
        bool later;               /* JOB_PREPARE_FAILED: for a passing reason, for example a full disk */
        bool drained;             /* DAEMON_UP: gets no work from the first moment, as after DRAIN */
        char reason[MFL_REASON_BYTES];
};

#endif
