/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of models, and the reports of inquiries: rows of the store (store.h says what holds for all of it). */
#ifndef MFL_SERVER_MODELS_MODELS_H
#define MFL_SERVER_MODELS_MODELS_H

#include "server/store/store.h"

/* ---- reports ---- */
/* Of each kind; the oldest go. Statistics are large, and a job that measures asks every five seconds: they don't push out validations. */
#define MFL_STORE_INQUIRIES_MAX 10000
#define MFL_STORE_STATS_MAX 200 /* of no model */
struct mfl_store_inquiry {
        uint64_t n; /* set by the store */
        uint32_t kind;
        uint64_t time_ms;
        const uint8_t *digest; /* MFL_DIGEST_BYTES, of the params; NULL: none */
        void *body;            /* bytes that the store does not interpret */
        size_t bytes;
};
struct mfl_store_inquiries {
        uint32_t n;
        struct mfl_store_inquiry *v;
};
int mfl_store_inquiry_add(struct mfl_store *store, const struct mfl_store_inquiry *inquiry, uint64_t *ret_n,
        struct mfl_error *err);
/* The newest, at most limit, the newest first. kind 0: any; digest NULL: any. The rows' digest is NULL. */
int mfl_store_inquiry_list(struct mfl_store *store, uint32_t kind, const uint8_t *digest, uint32_t limit,
        struct mfl_store_inquiries *ret_inquiries, struct mfl_error *err);
void mfl_store_inquiries_deinit(struct mfl_store_inquiries *inquiries);

/* ---- models ---- */
/* A version is a committed round of a job. As long as it is there, the round's checkpoint is kept, and the job can't be deleted. The numbers
 * of a name's versions rise, and are never used twice. */
struct mfl_store_version {
        char name[MFL_NAME_BYTES];
        uint32_t version;
        char job[MFL_JOB_ID_BYTES];
        uint32_t round;
        uint8_t digest[MFL_DIGEST_BYTES];
        char who[MFL_OWNER_BYTES];
        uint64_t time_ms;
};
struct mfl_store_versions {
        uint32_t n;
        struct mfl_store_version *v;
};
/* round: of the job. MFL_NOT_FOUND: no such job or round; MFL_BUSY: the round is no longer kept; MFL_EXISTS: it is a version of that name
 * already, *ret_version. */
int mfl_store_version_add(struct mfl_store *store, const char *name, const char *job, int64_t round,
        const char *who, uint32_t *ret_version, struct mfl_error *err);
/* MFL_NOT_FOUND; MFL_BUSY: an alias has it. */
int mfl_store_version_remove(
        struct mfl_store *store, const char *name, uint32_t version, struct mfl_error *err);
/* By name and version; name "": all. */
int mfl_store_version_list(struct mfl_store *store, const char *name, struct mfl_store_versions *ret_versions,
        struct mfl_error *err);
void mfl_store_versions_deinit(struct mfl_store_versions *versions);
/* "NAME@alias" or "NAME@7"; "NAME": its newest version. MFL_NOT_FOUND names what is missing. */
int mfl_store_version_find(struct mfl_store *store, const char *model, struct mfl_store_version *ret_version,
        struct mfl_error *err);

/* Aliases remember where they pointed before. */
struct mfl_store_alias {
        char name[MFL_NAME_BYTES], alias[MFL_NAME_BYTES];
        uint32_t version;
};
struct mfl_store_aliases {
        uint32_t n;
        struct mfl_store_alias *v;
};
/* MFL_NOT_FOUND: no such version. */
int mfl_store_alias_set(struct mfl_store *store, const char *name, const char *alias, uint32_t version,
        const char *who, struct mfl_error *err);
/* MFL_NOT_FOUND: there is no such alias, or nothing before. */
int mfl_store_alias_back(struct mfl_store *store, const char *name, const char *alias, uint32_t *ret_version,
        struct mfl_error *err);
int mfl_store_alias_remove(
        struct mfl_store *store, const char *name, const char *alias, struct mfl_error *err);
/* Where each points now. */
int mfl_store_alias_list(
        struct mfl_store *store, struct mfl_store_aliases *ret_aliases, struct mfl_error *err);
void mfl_store_aliases_deinit(struct mfl_store_aliases *aliases);

#endif
