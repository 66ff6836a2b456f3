/* SPDX-License-Identifier: Apache-2.0 */
/* Opens what the daemons of one host share, and reports what others must have in common with this daemon. */
#include "client/node/node.h"

#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/base/budget.h"

#define SHARE_DIR "/dev/shm"

/* Equal in two processes only if both are in the same network namespace, with near certainty; 0: unknown. */
static uint64_t network_space(void)
{
        struct stat st;
        if (stat("/proc/self/ns/net", &st))
                return 0;
        uint64_t space = ((uint64_t)st.st_dev << 32 ^ (uint64_t)st.st_ino) * 0x9e3779b97f4a7c15u;
        return space ? space : 1;
}

static int open_shm(
        struct mfl_client_node *node, const struct mfl_client_node_options *options, struct mfl_error *err)
{
        struct mfl_share_options share = {.dir = options->share_dir, .instance = options->instance};
        struct mfl_error why;
        int r = mfl_share_open(&share, &node->share, &why);
        if (!r)
                r = mfl_collective_shm_new(node->share, options->threads, &node->shm, &why);
        if (r < 0) {
                if (err)
                        *err = why;
                return r;
        }
        if (r) {
                mfl_share_close(node->share);
                node->share = NULL;
                mfl_strcpy(node->reach.memory_reason, sizeof(node->reach.memory_reason), why.text);
        } else {
                node->reach.memory_space = mfl_share_id(node->share);
        }
        return 0;
}

static int find_nccl(struct mfl_client_node *node, const struct mfl_client_node_options *options,
        char text[64], struct mfl_error *err)
{
        const struct mfl_backend_ops *ops = options->ops;
        uint32_t version = 0;
        if (options->collective == MFL_CLIENT_COLLECTIVE_SHM)
                return mfl_fail(err, MFL_INVALID, "the configuration turns it off (collective: shm)");
        if (!ops->comm)
                return mfl_fail(err, MFL_INVALID, "backend %s has none", ops->name);
        int r = ops->comm->version(options->device, text, &version, err);
        if (!r)
                r = mfl_collective_nccl_new(ops, options->device, &node->nccl, err);
        if (!r)
                node->reach.nccl = version;
        return r;
}

static int open_nccl(struct mfl_client_node *node, const struct mfl_client_node_options *options,
        char text[64], struct mfl_error *err)
{
        struct mfl_error why;
        int r = find_nccl(node, options, text, &why);
        if (r < 0) {
                if (err)
                        *err = why;
                return r;
        }
        if (r && options->collective == MFL_CLIENT_COLLECTIVE_NCCL)
                return mfl_fail(err, MFL_INVALID, "collective nccl: %s", why.text);
        if (r)
                mfl_strcpy(node->reach.nccl_reason, sizeof(node->reach.nccl_reason), why.text);
        return 0;
}

static void describe(struct mfl_client_node *node, const char *dir, const char *nccl)
{
        struct statvfs fs;
        char free_text[16] = "";
        if (node->share && !statvfs(dir, &fs))
                mfl_format_bytes((uint64_t)fs.f_bavail * fs.f_frsize, free_text);
        if (node->share)
                snprintf(node->text, sizeof(node->text), "%s%sshm (%.120s, %s free)", node->nccl ? nccl : "",
                        node->nccl ? ", " : "", dir, free_text);
        else if (node->nccl)
                snprintf(node->text, sizeof(node->text), "%s; no shared memory: %.200s", nccl,
                        node->reach.memory_reason);
        else
                snprintf(node->text, sizeof(node->text), "solo: %.200s; no NCCL: %.200s",
                        node->reach.memory_reason, node->reach.nccl_reason);
}

int mfl_client_node_open(
        struct mfl_client_node *node, const struct mfl_client_node_options *options, struct mfl_error *err)
{
        mfl_assert(options->instance && options->threads);
        char nccl[64] = "";
        if (options->collective == MFL_CLIENT_COLLECTIVE_SOLO) {
                static const char why[] = "the configuration says so (collective: solo)";
                snprintf(node->text, sizeof(node->text), "solo: %s", why);
                mfl_strcpy(node->reach.memory_reason, sizeof(node->reach.memory_reason), why);
                mfl_strcpy(node->reach.nccl_reason, sizeof(node->reach.nccl_reason), why);
                node->has_reach = true;
                return 0;
        }
        int r = open_nccl(node, options, nccl, err);
        if (!r)
                r = open_shm(node, options, err);
        if (r)
                return r;
        node->has_reach = true;
        node->reach.user = (uint32_t)geteuid();
        node->reach.network_space = network_space();
        describe(node, options->share_dir ? options->share_dir : SHARE_DIR, nccl);
        return 0;
}

void mfl_client_node_close(struct mfl_client_node *node)
{
        mfl_collective_close(node->nccl);
        mfl_collective_close(node->shm);
        mfl_share_close(node->share);
        *node = (struct mfl_client_node){0};
}
