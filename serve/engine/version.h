/* SPDX-License-Identifier: Apache-2.0 */
/* One version of a model, loaded: its network, what it takes and gives, and where its bytes are. Opening reads a whole file, and
 * running computes: both are for worker threads, one at a time per version or, when it runs, per instance. What `model` says is fixed once it is open, and may be
 * read by any thread.
 *
 * A source is a model file, or "identity:N", a network of N numbers that answers its input: for measuring the server itself.
 */
#ifndef MFL_SERVE_ENGINE_VERSION_H
#define MFL_SERVE_ENGINE_VERSION_H

#include "serve/kserve/kserve.h"

#define MFL_INSTANCES_MAX 64
#define MFL_VERSION_HEX 16 /* characters of the file's SHA-256 that name a version */

struct mfl_infer;
struct mfl_version {
        struct mfl_kserve_model model;
        char source[1024]; /* where it was asked for */
        uint32_t n_instances;
        struct mfl_infer *infer
                [MFL_INSTANCES_MAX]; /* n_instances networks, each with its own copy of the params; NULL: identity */
        uint32_t rows_max;
        const char *backend; /* that computes; "auto": the first that is here (kernels/backend.h). Stays */
        bool bf16;           /* products of bfloat16 */
};

/* How the name of a file in the cache begins that a job or a registered model has brought (serve/follow). */
#define MFL_VERSION_FOLLOWED "followed"

struct mfl_version_options {
        const char *name;
        const char *source;   /* what the configuration names: copies of another one are not served */
        const char *cache;    /* the model's folder for copies; NULL: none are kept */
        uint32_t n_instances; /* 1 to MFL_INSTANCES_MAX */
        uint32_t rows_max;
        const char *backend; /* that computes; "auto": the first that is here (kernels/backend.h). Stays */
        bool bf16;           /* products of bfloat16 */
};

/* Bytes of a source whose digest is known, and where they lie. */
struct mfl_staged {
        char source[1024], path[1400];
        char digest[65];
        bool in_place; /* path is the source itself: there is no cache */
};

/* Reads a source, digests it, and copies it to the cache as DIGEST.safetensors. MFL_NOT_FOUND, MFL_INVALID; -ENOMEM and such. */
int mfl_version_stage(const char *source, const struct mfl_version_options *options,
        struct mfl_staged *ret_staged, struct mfl_error *err);
/* The same of what is in the cache already: of this digest, or with NULL of the version that the cache's file `current` names.
 * MFL_NOT_FOUND: there is none, or `current` is of another source; MFL_INVALID: damaged. */
int mfl_version_stage_cached(const struct mfl_version_options *options, const char *digest,
        struct mfl_staged *ret_staged, struct mfl_error *err);
/* Opens it, and computes a full batch and a single row, so that the first request is as fast as others. MFL_INVALID; -ENOMEM and
 * such. */
int mfl_version_open(const struct mfl_staged *staged, const struct mfl_version_options *options,
        struct mfl_version **ret_version, struct mfl_error *err);
void mfl_version_free(struct mfl_version *version);
/* n rows at x to n * model.outputs floats at y; n <= rows_max. */
int mfl_version_run(struct mfl_version *version, uint32_t instance, uint32_t n, const void *x, float *y,
        struct mfl_error *err);

/* Whether n rows at x have only codes that the model's embeddings have rows for. MFL_INVALID; -ENOMEM. Any thread, also while others run. */
int mfl_version_check(const struct mfl_version *version, uint32_t n, const void *x, struct mfl_error *err);

/* Notes in the cache which version is served, after it has been taken into service, which was before it, and which one a rollback
 * keeps out ("": none); copies of others, and rounds that other sources have brought, are removed. */
int mfl_version_note(const struct mfl_version_options *options, const char *current, const char *previous,
        const char *refused, struct mfl_error *err);
/* Removes the source, which this program has written, and the note of what is served. */
void mfl_version_forget(const struct mfl_version_options *options);
/* The version that a rollback keeps out; "" if none does. */
void mfl_version_refused(const struct mfl_version_options *options, char ret_digest[65]);

#endif
