/* SPDX-License-Identifier: Apache-2.0 */
/* The models that are served: by name, each with the version in service and the one before it.
 *
 *   source changes -> stage (read, digest, copy) -> the version before the present one leaves memory -> open beside the
 *   present one -> switch: new requests go to the new version, those that the old one has taken are answered by it -> the cache
 *   notes the new one
 *
 * With a canary share, a new version first answers that share of the keys, and takes over when it has done well. With a mirror's share, it
 * computes these questions after they were answered by the present version, and the answers are compared. A version that fails
 * too often, or is too slow, within that time goes out again, with a canary or without.
 *
 * Two versions of a model are in memory at most. Whatever fails on the way is logged, and the present version stays. At the start,
 * a model whose source can't be read is served from its cache. A rollback lasts until the source changes.
 *
 * Loop thread only; files are read on a worker of its own, networks run on `threads` others.
 */
#ifndef MFL_SERVE_ENGINE_MODELS_H
#define MFL_SERVE_ENGINE_MODELS_H

#include <uv.h>

#include "serve/batch/canary.h"
#include "serve/engine/lane.h"

#define MFL_MODELS_MAX 64
#define MFL_ENGINE_THREADS_MAX 64

struct mfl_model_counts {
        uint64_t swaps, load_failures, rollbacks, failed_trials;
};

struct mfl_model {
        char name[MFL_KSERVE_NAME_BYTES], source[1024];
        char cache[1200];                    /* "": none */
        struct mfl_lane *current, *previous; /* NULL: none */
        struct mfl_lane *candidate;          /* on trial beside the current one */
        struct mfl_model_counts counts;
        struct mfl_lane_counts past;  /* of versions that have left */
        struct mfl_mirrored mirrored; /* of all trials; difference_max: of the last one */
        char error[512];              /* why the last load failed; "" if it did not */
        /* Private. */
        struct mfl_models *all;
        struct mfl_lane_workers workers;
        struct mfl_lane *retired[4]; /* that still have requests */
        struct mfl_load *load;       /* in progress */
        struct mfl_canary trial;     /* of the candidate, or of the current version after a switch */
        bool on_trial;
        char refused[65]; /* after a rollback: the digest that is not wanted */
        char previous_digest[65];
        uv_fs_poll_t poll;
        uv_timer_t look; /* until a source that was not there is looked at again */
        bool withdrawn;  /* no version is to be served until the source is there again */
        bool again;      /* the source has changed during the load */
        bool later;      /* the source has another version than the two that are side by side */
        bool polls;
        bool comes; /* the source is written while this runs: it need not be there yet */
};

struct mfl_models_config {
        const char *cache_dir; /* "": no copies */
        struct mfl_batcher_config batch;
        const char *backend; /* as mfl_backend_open; must stay */
        bool bf16;           /* products of all versions are bfloat16's, not float32's */
        struct mfl_canary_config canary;
        uint32_t threads;
        uint32_t instances; /* networks of a version that compute at the same time, 1 to threads */
        uint64_t poll_ms;   /* how often sources are looked at */
};

struct mfl_models {
        struct mfl_model v[MFL_MODELS_MAX];
        uint32_t n;
        struct mfl_models_config config;
        uint32_t swaps; /* of all models: changes when anything about versions does */
        /* Private. */
        uv_loop_t *loop;
        struct mfl_worker loader, engines[MFL_ENGINE_THREADS_MAX];
        struct mfl_worker
                mirror; /* versions on trial, with config.canary.mirror: their batches delay no other version's */
        uint32_t n_engines;
        bool loading, mirroring, closing; /* loading, mirroring: that worker has been started */
};

/* MFL_INVALID: this machine does not have the backend, or bf16 with it. */
int mfl_models_open(struct mfl_models *models, uv_loop_t *loop, const struct mfl_models_config *config,
        struct mfl_error *err);
/* comes: the source is written while this runs, and need not be there yet. MFL_INVALID: the name or source is not fine, or the
 * name is there. */
int mfl_models_add(
        struct mfl_models *models, const char *name, const char *source, bool comes, struct mfl_error *err);
/* Loads all, and follows their sources from then on. */
void mfl_models_start(struct mfl_models *models);
/* Looks at the model's source, and loads what is new there. */
void mfl_model_load(struct mfl_model *model);
/* Serves nothing any more, and forgets the source and its copies: they are not what the configuration means. A source that comes later is
 * loaded. */
void mfl_model_withdraw(struct mfl_model *model);
/* Looks at all sources now. */
void mfl_models_reload(struct mfl_models *models);
struct mfl_model *mfl_models_find(struct mfl_models *models, const char *name);
/* The lane that answers for this version; "": the one in service. NULL: there is none. */
struct mfl_lane *mfl_model_lane(const struct mfl_model *model, const char *version);
/* The lane that answers a request with this key, if it names no version. NULL: there is none yet. */
struct mfl_lane *mfl_model_choose(const struct mfl_model *model, const void *key, size_t bytes);
/* The lane that is to compute this question, too, after `answered` has; NULL: none. */
struct mfl_lane *mfl_model_mirror(
        const struct mfl_model *model, const struct mfl_lane *answered, const void *key, size_t bytes);
/* A lane has answered a request of this model, or failed to. */
void mfl_model_note_answer(struct mfl_model *model, const struct mfl_lane *lane, bool failed);
/* Every model has a version. */
bool mfl_models_ready(const struct mfl_models *models);
/* Back to the version before. MFL_NOT_FOUND: there is none; MFL_BUSY: a load is in progress. */
int mfl_model_rollback(struct mfl_model *model, struct mfl_error *err);
/* Pumps all lanes (lane.h); *ret_due_us: when to do so again, UINT64_MAX: when something happens. Negative: the process can't go on. */
int mfl_models_pump(struct mfl_models *models, uint64_t now_us, uint64_t *ret_due_us,
        struct mfl_error *err) MFL_MUST_CHECK;
/* From now on no batch waits for more rows. */
void mfl_models_hurry(struct mfl_models *models);
/* Ends what waits, lets running batches finish. The memory must stay until the loop has ended. */
void mfl_models_close(struct mfl_models *models);
/* Counts of all versions of a model. */
void mfl_model_counts(const struct mfl_model *model, struct mfl_lane_counts *ret_counts);

#endif
