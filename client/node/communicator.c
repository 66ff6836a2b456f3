/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator between GPUs that outlives its task: communicator.h. */
#include "client/node/communicator.h"

#include "common/base/digest.h"
#include "common/base/log.h"
#include "kernels/mesh/mesh.h"

#define OPEN_MS 60000u
#define UNREACHED_MAX 3u /* meetings, after which GPUs are not tried again for a while */
#define UNREACHED_REST_MS 600000u

int64_t mfl_communicator_number(const struct mfl_communicator *c, const struct mfl_mesh *meeting)
{
        const struct mfl_mesh *mesh = c->mesh;
        bool same = mesh && mesh->rank == meeting->rank && mesh->n_ranks == meeting->n_ranks;
        return same ? c->number : 0;
}

void mfl_communicator_close(struct mfl_communicator *c)
{
        mfl_mesh_close(c->mesh);
        c->mesh = NULL;
        c->number = 0;
}

void mfl_communicator_close_of(struct mfl_communicator *c, const char *job, bool others)
{
        if (c->mesh && !strcmp(c->job, job) != others)
                mfl_communicator_close(c);
}

/* From the id, above 0. */
static int number_of(const uint8_t id[MFL_COMM_ID_BYTES], int64_t *ret_number, struct mfl_error *err)
{
        uint8_t digest[MFL_SHA256_BYTES];
        int r = mfl_sha256(id, MFL_COMM_ID_BYTES, digest, err);
        if (!r)
                *ret_number = (int64_t)(mfl_sha256_number(digest) >> 1 | 1);
        return r;
}

static void count_unreached(struct mfl_communicator *c)
{
        c->unreached_ns = mfl_now_ns();
        c->unreached++;
}

int mfl_communicator_open(struct mfl_communicator *c, const struct mfl_backend_ops *ops,
        struct mfl_device *device, const char *job, const struct mfl_mesh *meeting,
        const uint8_t id[MFL_COMM_ID_BYTES], const atomic_bool *cancel, struct mfl_error *err)
{
        uint64_t start_ns = mfl_now_ns();
        int64_t number = 0;
        mfl_communicator_close(c);
        int r = number_of(id, &number, err);
        if (r)
                return r;
        r = ops->comm->mesh(device, id, meeting->rank, meeting->n_ranks, OPEN_MS, cancel, &c->mesh, err);
        if (r) {
                c->mesh = NULL;
                if (!atomic_load(cancel))
                        count_unreached(c);
                return r;
        }
        c->number = number;
        mfl_strcpy(c->job, sizeof(c->job), job);
        mfl_log_job(MFL_LOG_INFO, job, "%s: the team's %u GPUs opened a communicator in %.1f s", job,
                meeting->n_ranks, (double)(mfl_now_ns() - start_ns) / 1e9);
        return 0;
}

void mfl_communicator_leave(struct mfl_communicator *c, struct mfl_mesh *mesh, bool whole)
{
        if (!mesh)
                return;
        mfl_assert(mesh == c->mesh);
        mesh->beside = NULL;
        if (whole) {
                c->unreached = 0;
                return;
        }
        if (mesh->unreached)
                count_unreached(c);
        mfl_communicator_close(c);
}

/* What kept GPUs apart may be over some time, and nobody restarts a daemon for it. */
int mfl_communicator_check(const struct mfl_communicator *c, struct mfl_error *err)
{
        uint32_t n = c->unreached, rest_ms = c->rest_ms ? c->rest_ms : UNREACHED_REST_MS;
        uint64_t rested_ns = mfl_now_ns() - c->unreached_ns;
        if (n < UNREACHED_MAX || rested_ns >= (uint64_t)rest_ms * 1000000)
                return 0;
        return mfl_fail(err, MFL_INVALID,
                "GPUs did not reach each other %u times; %u minutes after the last time they try again", n,
                (rest_ms + 59999) / 60000);
}
