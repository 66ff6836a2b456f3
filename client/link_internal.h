/* SPDX-License-Identifier: Apache-2.0 */
/* What the link's files share. */
#ifndef MFL_CLIENT_LINK_INTERNAL_H
#define MFL_CLIENT_LINK_INTERNAL_H

#include "client/link.h"
#include "common/digest.h"
#include "proto/stream.h"

struct link_job {
        char id[MFL_JOB_ID_BYTES];
        char *text;
        Mfl__Partition *population; /* NULL: not made yet */
        bool population_sent;       /* on this connection */
        struct link_job *next;
};

/* Where params lie. A zeroed one is none. */
struct link_store {
        float *data; /* read-only when it is another daemon's */
        uint64_t n;
        struct mfl_share_buffer *buffer; /* own, in shared memory */
        struct mfl_share_view *view;     /* another daemon's */
        struct mfl_budget *budget;       /* charged to it; NULL: not charged */
};

/* One version of a job's params, arriving or here; or the job's frozen params, which have one version alone
 * and stay as long as the job's file. */
struct link_params {
        struct mfl_link *link;
        char job[MFL_JOB_ID_BYTES];
        uint8_t digest[MFL_DIGEST_BYTES];
        bool is_frozen;
        struct link_params
                *frozen;          /* what comes before these in the flat vector, referenced; NULL: nothing */
        uint64_t n, have, hashed; /* floats: in all, received, hashed */
        struct link_store store;
        struct link_store copy;          /* what others of the node read, where tasks here read another */
        uint64_t from;                   /* instance of the daemon whose copy is waited for; 0: not waiting */
        uint64_t since_ms, deadline_ms;  /* of that wait */
        struct mfl_share_buffer *absent; /* tells others that these won't come */
        bool ready;                      /* whole, and the digest is right */
        bool refused;                    /* no memory for it: reason */
        bool dead;                       /* off the list; freed with the last reference */
        uint32_t refs;                   /* running tasks, a payload on its way, hashing */
        uint64_t used;                   /* for the least recently used */
        char reason[MFL_REASON_BYTES];
        struct mfl_sha256 sha; /* begun by the first piece; of params behind frozen ones, of those too */
        struct mfl_sha256
                prefix; /* frozen: all of them, for those behind; made when first needed. Hasher alone */
        bool hashing;
        uint64_t hash_end; /* floats; of the piece at work */
        int hash_status;
        struct mfl_error hash_err;
        uint8_t hash_digest[MFL_SHA256_BYTES];
        struct mfl_work work;
        struct link_params *next;
};

/* A task at work. */
struct link_work {
        struct mfl_link *link;
        uint64_t task;
        struct mfl_task order; /* as it was then: the agent changes its own's group meanwhile */
        struct link_params *params;
        char *text;
        struct mfl_compute_call call;
        uint64_t progress_sent; /* samples told to the server */
        struct link_work *next;
};

struct link_result {
        uint64_t task;
        struct mfl_train_result *result;
        uint32_t refs; /* uploads and combines that read it */
        bool dead;     /* RESULT_FREE came */
        struct link_result *next;
};

/* A group's sum, being added or there. */
struct link_combine {
        struct mfl_link *link;
        uint64_t task;
        struct link_result *result;
        struct mfl_combine_call call;
        uint32_t refs; /* uploads that read it */
        bool running;
        bool quiet; /* its result is freed: nobody waits for COMBINED */
        bool dead;  /* off the list; goes when it has ended and nothing reads it */
        struct link_combine *next;
};

struct link_upload {
        struct mfl_link *link;
        struct link_result *result;
        struct link_combine *combine; /* NULL: of the result itself */
        uint64_t task, wire_task;
        uint32_t update, n_ranges, range; /* range: the one being queued */
        struct mfl_range *ranges;
        uint64_t at;        /* bytes of that range queued */
        uint32_t in_flight; /* chunks */
        bool failed;
        struct link_upload *next;
};

struct mfl_link {
        uv_loop_t *loop;
        struct mfl_link_options options;
        char *server;
        struct mfl_agent *agent;
        struct mfl_agent_actions actions;
        uv_timer_t timer;
        uv_timer_t poll; /* while somebody waits for other daemons' memory */
        struct mfl_stream stream;
        bool stream_open;  /* from init to on_closed */
        bool connect_next; /* when the stream at hand has closed */
        bool online;
        bool transfer; /* as the activity was told */
        uint64_t heard_ms;
        char close_reason[MFL_REASON_BYTES], last_reason[MFL_REASON_BYTES];
        struct link_job *jobs;
        struct link_params *params;
        struct link_params *receiving;
        struct link_work *works;
        struct link_result *results;
        struct link_combine *combines;
        struct link_upload *uploads; /* with bytes to queue, first come first */
        uint32_t chunks_in_flight;
        char told_no_room[MFL_JOB_ID_BYTES]; /* the last job whose params found no room in the share */
        uint64_t clock;                      /* for link_params.used */
        uint64_t progress_ms;
        /* Events made while an event is worked on wait here. */
        bool stepping;
        uint32_t n_deferred, deferred_max;
        struct mfl_agent_event *deferred;
        bool exited, told, closing;
        int exit_status;
        char exit_reason[MFL_REASON_BYTES];
        uint32_t pending; /* handles and work that must end before the memory goes */
        void (*closed)(void *user);
};

/* Now, or after the event at work. Pointers in the event must live until then: deferred ones have none. */
void link_post(struct mfl_link *link, const struct mfl_agent_event *event);
/* The process can't go on. */
void link_fatal(struct mfl_link *link, const struct mfl_error *err);
void link_pending_done(struct mfl_link *link);
/* Tells the activity whether anything is on its way. After every event; else only where something ends
 * without one. */
void link_tell_transfer(struct mfl_link *link);
void link_trace(struct mfl_link *link, const char *fmt, ...) MFL_PRINTF(2, 3);
/* Looks again in at most so many ms, and goes on until nothing is waited for. */
void link_poll(struct mfl_link *link, uint32_t ms);
#define LINK_POLL_MS 3u /* for a sum that is being added */

/* link_store.c */
/* Room for n floats: in the share, or private where it has none, which *ret_no_room then tells (it stays
 * empty where there is no share). MFL_BUSY: not in the budget. Negative: no memory. */
int link_store_new(struct mfl_link *link, uint64_t n, struct link_store *ret_store,
        struct mfl_error *ret_no_room, struct mfl_error *err);
void link_store_free(struct link_store *store); /* a zeroed one is fine */
/* Takes a store that nobody here uses any more, for other params; false: it can't be written to. */
bool link_store_reuse(struct link_store *store, uint64_t n);

/* link_params.c */
void link_params_open(struct mfl_link *link, const struct mfl_task *task);
struct link_params *link_params_find(struct mfl_link *link, const char *job, const uint8_t *digest);
void link_params_unref(struct link_params *params);
void link_params_forget(struct mfl_link *link, const char *job); /* NULL: all */
int link_params_payload(
        struct mfl_link *link, const Mfl__Params *msg, size_t bytes, void **ret_dst, struct mfl_error *err);
void link_params_frame(struct mfl_link *link, size_t bytes);
void link_params_cut(struct mfl_link *link);      /* the connection is gone */
uint32_t link_params_poll(struct mfl_link *link); /* 0, or somebody waits still: ms to the next look */

/* link_upload.c */
void link_upload_add(struct mfl_link *link, struct mfl_agent_action *action);
bool link_upload_pump(struct mfl_link *link); /* true: bytes are waited for */
void link_upload_cut(struct mfl_link *link);
/* What reads the sum goes as soon as no chunk of it is in flight. */
void link_upload_drop(struct mfl_link *link, struct link_combine *combine);
struct link_result *link_result_add(struct mfl_link *link, uint64_t task, struct mfl_train_result *result);
void link_result_free(struct mfl_link *link, uint64_t task);
void link_results_free_all(struct mfl_link *link);
struct link_result *link_result_find(struct mfl_link *link, uint64_t task);
void link_result_unref(struct mfl_link *link, struct link_result *result);

/* link_combine.c */
void link_publish(struct mfl_link *link, const struct mfl_agent_action *action);
void link_combine_start(struct mfl_link *link, const struct mfl_agent_action *action);
void link_combine_stop(struct mfl_link *link, uint64_t task, bool quiet);
void link_combine_stop_all(struct mfl_link *link);
struct link_combine *link_combine_find(struct mfl_link *link, uint64_t task);
/* Bytes of the sum that are final, from the first on. */
uint64_t link_combine_ready(const struct link_combine *combine);
void link_combine_unref(struct link_combine *combine);
void link_communicator_open(struct mfl_link *link, const struct mfl_agent_action *action);
void link_communicator_noted(
        void *user, uint64_t communicator, const uint8_t *id, const char *reason); /* user: the link */

/* link_work.c */
void link_work_start(struct mfl_link *link, const struct mfl_task *task);
void link_work_abort(struct mfl_link *link, uint64_t task);
void link_work_abort_all(struct mfl_link *link);
void link_work_progress(struct mfl_link *link); /* and what is known of the jobs' data */
void link_work_cut(struct mfl_link *link);      /* the connection is gone */
int link_job_set(struct mfl_link *link, const char *id, const char *text);
void link_job_forget(struct mfl_link *link, const char *id); /* NULL: all */

#endif
