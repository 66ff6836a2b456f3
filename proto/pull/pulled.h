/* SPDX-License-Identifier: Apache-2.0 */
/* A model that a server has sent (Pull, PullBegin, Params), checked and written as a model file. Blocking I/O in
 * mfl_pulled_write; any thread. MFL_INVALID: what was sent does not fit together; negative: memory or disk.
 */
#ifndef MFL_PROTO_PULL_PULLED_H
#define MFL_PROTO_PULL_PULLED_H

#include "common/job/job.h"
#include "proto/wire.h"

/* The graph of the params, and the job that they belong to. The caller frees both. */
int mfl_pulled_graph(const Mfl__PullBegin *begin, struct mfl_job **ret_job, struct mfl_graph **ret_graph,
        struct mfl_error *err);
/* The params' SHA-256, if it is the one that the server has sent. */
int mfl_pulled_digest(
        const float *params, const Mfl__PullBegin *begin, char ret_hex[65], struct mfl_error *err);
/* Replaces the file at path (common/base/fs.h) by a model file (common/contract/model_file.h). spec, graph: of mfl_pulled_graph. digest: of
 * the params. */
int mfl_pulled_write(const Mfl__PullBegin *begin, const struct mfl_job *spec, const struct mfl_graph *graph,
        const float *params, const char *job, const char *digest, const char *path, struct mfl_error *err);

#endif
