/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the link's files. A file calls only functions of the files above it in this list; the rest goes
 * through struct link_top.
 *
 *   link_base.c      events for the agent, failures
 *   link_store.c     memory for params
 *   link_params.c    the bytes of params
 *   link_result.c    results of trainings
 *   link_combine.c   sums of groups
 *   link_upload.c    chunks on their way to the server
 *   link_wants.c     what clients' states add to gradients
 *   link_book.c      with whom updates were summed
 *   link_secure.c    secure sums
 *   link_work.c      jobs and running tasks
 *   link_gate.c      the site's policy
 *   link_inquiry.c   questions about the site's data
 *   link.c           the connection, the timer, and the agent's orders */
#ifndef MFL_CLIENT_LINK_LINK_INTERNAL_H
#define MFL_CLIENT_LINK_LINK_INTERNAL_H

#include <pthread.h>

#include "client/link/link.h"
#include "client/secure/member.h"
#include "common/base/digest.h"
#include "proto/servers.h"
#include "proto/stream.h"

struct link_job {
        char id[MFL_JOB_ID_BYTES];
        char *text;
        char owner[MFL_NAME_BYTES];    /* "": not told */
        struct mfl_secure_spec secure; /* of its file; bits 0: it has no secure sums */
        uint32_t
                bucket; /* secure sums of buckets: members of one, before anybody drops out; 0: a sum has all */
        struct mfl_privacy_spec privacy;
        char data[MFL_NAME_BYTES];  /* set */
        Mfl__Partition *population; /* NULL: not made yet */
        bool known;                 /* its JobSpec came on this connection */
        uint32_t population_next;   /* clients before this one were sent on this connection */
        struct link_job *next;
};

/* Memory of params. A zeroed one is none. */
struct link_store {
        float *data; /* read-only when it is another daemon's */
        uint64_t n;
        struct mfl_share_buffer *buffer; /* own, in shared memory */
        struct mfl_share_view *view;     /* another daemon's */
        struct mfl_budget *budget;       /* charged to it; NULL: not charged */
};

enum link_params_state {
        LINK_PARAMS_COMES,   /* it is arriving */
        LINK_PARAMS_HASHING, /* it is arriving, and the hasher has a stretch of it */
        LINK_PARAMS_WHOLE,   /* its digest is right */
};

/* The bytes of one part of params: a version of a job's moving params, or its frozen params. */
struct link_params {
        struct mfl_link *link;
        uint64_t number; /* the agent's */
        enum link_params_state state;
        bool dead;     /* off the list; freed with the last reference */
        uint32_t refs; /* running tasks, parts behind it, a piece on its way, hashing */
        char job[MFL_JOB_ID_BYTES];
        uint8_t digest[MFL_DIGEST_BYTES];
        uint64_t n;                      /* floats */
        struct link_params *frozen;      /* the part before it in the flat vector, referenced; NULL: none */
        struct link_store store;         /* zeroed: no room was found */
        struct link_store copy;          /* a shared copy for the node, when `store` is not shared and a task
                                            reads it */
        struct mfl_stage *stage;         /* on the device; only the hasher fills it. NULL: not staged */
        bool stage_off;                  /* it won't be staged, or not whole */
        struct mfl_share_buffer *absent; /* tells other daemons that these params are not shared */
        struct mfl_sha256 sha;    /* begun by the first stretch; for params behind frozen ones it continues
                                     the frozen ones' digest */
        struct mfl_sha256 prefix; /* the state after all of it, for params behind it; only the hasher touches
                                     it */
        uint64_t hash_first, hash_end; /* floats; of the stretch at the hasher, or the last one */
        int hash_status;
        struct mfl_error hash_err;
        uint8_t hash_digest[MFL_SHA256_BYTES];
        struct mfl_work work;
        struct mfl_trim_call trim;
        struct link_params *next;
};

/* A running task. */
struct link_work {
        struct mfl_link *link;
        uint64_t task;
        struct mfl_task order; /* a copy, because the agent's own changes its group meanwhile */
        struct link_params *params;
        char *text;
        struct mfl_compute_call call;
        uint64_t progress_sent; /* samples told to the server */
        struct link_work *next;
};

struct link_result {
        uint64_t task;
        struct mfl_train_result *result;
        uint32_t refs; /* uploads, combines and masks that read it */
        bool dead;     /* RESULT_FREE came */
        /* A secure sum: the update itself is never sent. */
        bool secure;
        uint8_t params[MFL_DIGEST_BYTES];     /* that it starts from */
        uint64_t figures[MFL_SECURE_FIGURES]; /* enum mfl_secure_figure, not under the mask */
        uint64_t *masked;                     /* what is sent instead; NULL: not yet */
        struct link_result *next;
};

enum link_combine_state {
        LINK_COMBINE_RUNS,
        LINK_COMBINE_DONE,
        LINK_COMBINE_STOPS, /* cancelled and off the list; freed when it has ended and nothing reads it */
        LINK_COMBINE_DEAD,  /* ended and off the list; freed when nothing reads it */
};

/* A group's sum, being added or there. */
struct link_combine {
        struct mfl_link *link;
        uint64_t task;
        struct link_result *result;
        struct mfl_combine_call call;
        uint32_t refs; /* uploads that read it */
        enum link_combine_state state;
        bool quiet; /* its result is freed: nobody expects COMBINED */
        struct link_combine *next;
};

struct link_upload {
        struct mfl_link *link;
        struct link_result *result;
        struct link_combine *combine; /* NULL: of the result itself */
        uint64_t task, wire_task;
        uint32_t update, n_ranges, range; /* range: the one being queued */
        struct mfl_range *ranges;
        uint64_t at;        /* bytes of that range that were queued */
        uint32_t in_flight; /* chunks */
        bool failed;
        struct link_upload *next;
};

/* What threads wait for, and the one client that the server was asked for. */
struct link_wants {
        pthread_mutex_t lock; /* of first, closed, and each want's done */
        pthread_cond_t done;
        struct link_want *first; /* in their threads' stacks */
        bool closed;
        uv_async_t async;
        /* The loop's own: what is in the buffer. */
        char job[MFL_JOB_ID_BYTES];
        uint8_t digest[MFL_DIGEST_BYTES];
        uint64_t client, n, have, room; /* floats */
        float *buffer;
        bool asked, landing; /* the server was asked for the rest; a piece is on its way */
};

enum link_life {
        LINK_RUNS,
        LINK_EXITED,  /* its end is decided; the owner will be told */
        LINK_TOLD,    /* the owner was told, and will close it */
        LINK_CLOSING, /* waits for what is pending */
};

enum link_stream {
        LINK_STREAM_NONE,
        LINK_STREAM_OPEN,   /* from init to on_closed */
        LINK_STREAM_REOPEN, /* the same, and the next connection begins when this one has closed */
};

/* What the lower files call in link.c. */
struct link_top {
        void (*step)(struct mfl_link *link, struct mfl_agent_event *event); /* and carries out its actions */
        void (*stepped)(struct mfl_link *link);                             /* after an event and all that it
                                                                               caused */
        void (*moved)(struct mfl_link *link);  /* a transfer has ended without an event */
        void (*summed)(struct mfl_link *link); /* a combine has ended */
        void (*end)(struct mfl_link *link, int status, const char *reason);
        void (*free)(struct mfl_link *link); /* nothing is pending */
};

struct mfl_link {
        const struct link_top *top;
        enum link_life life;
        uv_loop_t *loop;
        struct mfl_link_options options;
        struct mfl_servers servers;
        bool greeting;    /* connected, and the agent knows */
        char leader[304]; /* whom a server that does not lead has named */
        bool stays;       /* it is none of the list: the next Hello says so */
        struct mfl_agent *agent;
        struct mfl_agent_actions actions;
        uv_timer_t timer;
        struct mfl_stream stream;
        enum link_stream stream_state;
        bool online;
        bool transfer; /* what the activity was told */
        uint64_t heard_ms;
        char close_reason[MFL_REASON_BYTES], last_reason[MFL_REASON_BYTES];
        struct link_job *jobs;
        struct link_params *params;
        struct link_params *receiving;      /* the params that the payload at hand belongs to */
        uint64_t receiving_at;              /* floats */
        uint64_t receiving_bytes;           /* that the payload stands for */
        bool receiving_packed;              /* it lies at their end */
        struct link_params *receiving_base; /* it is to be added to these, referenced; NULL: to none */
        struct link_inside
                *inside;     /* params that came in a Task, until the agent asks for them; NULL: none */
        uint32_t inline_max; /* the most bytes of an update that the server takes in its Announce */
        struct link_work *works;
        struct link_result *results;
        struct link_combine *combines;
        struct link_secure *secures;
        struct mfl_secure_book *book;
        int book_file;               /* -1: none */
        struct link_upload *uploads; /* with bytes to queue, first come first */
        uint32_t chunks_in_flight;
        struct link_wants wants;
        struct link_inquiry *inquiries;      /* link_inquiry.h */
        char told_no_room[MFL_JOB_ID_BYTES]; /* the last job whose params had no room in the share */
        uint64_t progress_ms;
        /* Events that are posted during a step wait here. */
        bool stepping;
        uint32_t n_deferred, deferred_max;
        struct mfl_agent_event *deferred;
        int exit_status;
        char exit_reason[MFL_REASON_BYTES];
        uint32_t pending; /* open handles and running work; the link is freed when there are none */
        void (*closed)(void *user);
};

/* link_base.c */
/* Whom a Bye has named, and what the next Hello says of it. Returns msg. */
void mfl_link_note_leader(struct mfl_link *link, const char *leader);
struct mfl_msg *mfl_link_mark_hello(const struct mfl_link *link, struct mfl_msg *msg);
/* Handles the event now, or after the current one. Pointers in the event must live until then: deferred
 * events have none. */
void mfl_link_post(struct mfl_link *link, const struct mfl_agent_event *event);
/* The process can't go on. */
void mfl_link_fatal(struct mfl_link *link, const struct mfl_error *err);
void mfl_link_pending_done(struct mfl_link *link);
void mfl_link_trace(struct mfl_link *link, const char *fmt, ...) MFL_PRINTF(2, 3);

/* link_store.c */
/* Memory for n floats: shared, or private if the share has no room; *ret_no_room then says why (it stays
 * empty without a share). MFL_BUSY: not in the budget. Negative: no memory. */
int mfl_link_store_new(struct mfl_link *link, uint64_t n, struct link_store *ret_store,
        struct mfl_error *ret_no_room, struct mfl_error *err);
void mfl_link_store_free(struct link_store *store); /* a zeroed one is fine */
/* Prepares a store that nothing reads any more for n floats of other params; false: it can't be reused. */
bool mfl_link_store_reuse(struct link_store *store, uint64_t n);

/* link_params.c: orders of the agent, and what comes from the socket */
void mfl_link_params_look(struct mfl_link *link, const struct mfl_agent_action *action);
void mfl_link_params_room(struct mfl_link *link, const struct mfl_agent_action *action);
void mfl_link_params_hash(struct mfl_link *link, const struct mfl_agent_action *action);
void mfl_link_params_share(struct mfl_link *link, const struct mfl_agent_action *action);
void mfl_link_params_free(struct mfl_link *link, uint64_t number); /* an unknown one is fine */
void mfl_link_params_free_all(struct mfl_link *link);
struct link_params *mfl_link_params_find(struct mfl_link *link, uint64_t number);
void mfl_link_params_unref(struct link_params *params);
/* Where it lies on the device, whole and right; NULL: nowhere. */
const struct mfl_stage *mfl_link_params_stage(const struct link_params *params);
/* *ret_dst stays NULL for a piece that is no longer wanted. */
int mfl_link_params_payload(
        struct mfl_link *link, const Mfl__Params *msg, size_t bytes, void **ret_dst, struct mfl_error *err);
/* A piece is whole. MFL_INVALID: what came is not as a packer writes it. */
int mfl_link_params_frame(struct mfl_link *link, size_t bytes, struct mfl_error *err);
void mfl_link_params_cut(struct mfl_link *link); /* the connection is lost */

/* link_result.c */
struct link_result *mfl_link_result_add(
        struct mfl_link *link, uint64_t task, struct mfl_train_result *result);
void mfl_link_result_free(struct mfl_link *link, uint64_t task);
void mfl_link_results_free_all(struct mfl_link *link);
struct link_result *mfl_link_result_find(struct mfl_link *link, uint64_t task);
void mfl_link_result_unref(struct mfl_link *link, struct link_result *result);

/* link_upload.c */
/* The update that an Announce carries, if it is small enough. */
struct mfl_wire_extra mfl_link_upload_inside(struct mfl_link *link, const struct mfl_agent_action *action);
void mfl_link_upload_add(struct mfl_link *link, struct mfl_agent_action *action);
void mfl_link_upload_pump(struct mfl_link *link); /* sends what can go now */
void mfl_link_upload_cut(struct mfl_link *link);
void mfl_link_upload_purge(struct mfl_link *link); /* of sums that were stopped */

/* link_combine.c */
void mfl_link_publish(struct mfl_link *link, const struct mfl_agent_action *action);
void mfl_link_combine_start(struct mfl_link *link, const struct mfl_agent_action *action);
void mfl_link_combine_stop(struct mfl_link *link, uint64_t task, bool quiet);
void mfl_link_combine_stop_all(struct mfl_link *link);
struct link_combine *mfl_link_combine_find(struct mfl_link *link, uint64_t task);
bool mfl_link_combine_is_dead(const struct link_combine *combine); /* nothing of it is sent from here on */
/* Bytes of the sum that are final, counted from the first. */
uint64_t mfl_link_combine_ready(const struct link_combine *combine);
void mfl_link_combine_unref(struct link_combine *combine);
void mfl_link_communicator_open(struct mfl_link *link, const struct mfl_agent_action *action);
void mfl_link_communicator_noted(
        void *user, uint64_t communicator, const uint8_t *id, const char *reason); /* user: the link */

/* link_wants.c. want: any thread; user: the struct link_work; to: n floats. */
int mfl_link_want(void *user, uint64_t client, uint64_t n, float *to, struct mfl_error *err);
int mfl_link_wants_open(struct mfl_link *link, struct mfl_error *err);
void mfl_link_wants_close(struct mfl_link *link); /* one pending ends later */
void mfl_link_wants_free(struct mfl_link *link);
void mfl_link_wants_pump(struct mfl_link *link); /* asks for what can be asked for now */
int mfl_link_wants_payload(
        struct mfl_link *link, const Mfl__Params *msg, size_t bytes, void **ret_dst, struct mfl_error *err);
void mfl_link_wants_frame(struct mfl_link *link, size_t bytes);
void mfl_link_wants_gone(struct mfl_link *link, const Mfl__ParamsGone *msg);
void mfl_link_wants_cut(struct mfl_link *link);

/* link_work.c */
void mfl_link_work_start(struct mfl_link *link, const struct mfl_agent_action *action);
void mfl_link_work_end(
        struct mfl_link *link, uint64_t task, bool unmet); /* unmet: only if its team has not met */
void mfl_link_work_abort_all(struct mfl_link *link);
void mfl_link_work_recall(struct mfl_link *link, uint64_t task, uint32_t keep);
void mfl_link_work_progress(struct mfl_link *link); /* also the figures of the jobs' populations */
void mfl_link_work_cut(struct mfl_link *link);      /* the connection is lost */
int mfl_link_job_set(struct mfl_link *link, const Mfl__JobSpec *spec);
void mfl_link_job_forget(struct mfl_link *link, const char *id); /* its text; NULL: all */

/* link_gate.c */
/* Compares a Task with the site's policy, and tells the server what the site says. True: the agent gets it. */
bool mfl_link_gate_lets(struct mfl_link *link, const struct mfl_task *task);
void mfl_link_gate_open(struct mfl_link *link);
void mfl_link_gate_close(struct mfl_link *link);

#endif
