/* SPDX-License-Identifier: Apache-2.0 */
/* Naming and choosing GPUs: what a user writes, and which of the machine's devices it means. Pure. */
#include "client/gpu/gpu.h"

#include <ctype.h>

/* ---- what a user writes ---- */

/* The longest form is the old "MIG-GPU-<uuid>/<instance>/<instance>". */
static bool parse_uuid(const char *text, const char *more)
{
        size_t n = strlen(text);
        for (size_t i = 4; i < n; i++) {
                if (!isxdigit((unsigned char)text[i]) && !strchr(more, text[i]))
                        return false;
        }
        return n > 4 && n < MFL_GPU_TEXT_BYTES;
}

bool mfl_gpu_id_parse(const char *text, struct mfl_gpu_id *ret_id)
{
        struct mfl_gpu_id id = {.kind = MFL_GPU_UNSET};
        if (!mfl_strcpy(id.text, sizeof(id.text), text))
                return false;
        size_t n = strlen(text);
        if (!strcmp(text, "none")) {
                id.kind = MFL_GPU_NONE;
        } else if (n && n <= 4 && strspn(text, "0123456789") == n) {
                id.kind = MFL_GPU_INDEX;
                id.index = (uint32_t)strtoul(text, NULL, 10);
        } else if (!strncmp(text, "GPU-", 4) && parse_uuid(text, "-")) {
                id.kind = MFL_GPU_UUID;
        } else if (!strncmp(text, "MIG-", 4) && parse_uuid(text, "-/GPU")) {
                id.kind = MFL_GPU_MIG;
        } else if (n) {
                return false;
        }
        *ret_id = id;
        return true;
}

bool mfl_gpu_ids_parse(const char *text, struct mfl_gpu_id ids[MFL_GPUS_MAX], uint32_t *ret_n)
{
        uint32_t n = 0;
        for (const char *at = text;; at++) {
                char one[MFL_GPU_TEXT_BYTES];
                size_t bytes = strcspn(at, ",");
                if (n == MFL_GPUS_MAX || bytes >= sizeof(one))
                        return false;
                memcpy(one, at, bytes);
                one[bytes] = 0;
                if (!mfl_gpu_id_parse(one, &ids[n]) || ids[n].kind < MFL_GPU_INDEX)
                        return false;
                for (uint32_t i = 0; i < n; i++) {
                        if (!strcmp(ids[i].text, ids[n].text))
                                return false;
                }
                n++;
                at += bytes;
                if (!*at)
                        break;
        }
        *ret_n = n;
        return true;
}

bool mfl_gpu_uuid_begins(const char *uuid, const char *asked)
{
        for (; *asked; asked++, uuid++) {
                if (tolower((unsigned char)*asked) != tolower((unsigned char)*uuid))
                        return false;
        }
        return true;
}

/* ---- choosing ---- */

static bool means(const struct mfl_gpu_id *id, const struct mfl_gpu *gpu)
{
        if (id->kind == MFL_GPU_INDEX)
                return gpu->mig < 0 && gpu->index == id->index;
        /* Only a MIG device's UUID begins with "MIG-". */
        return mfl_gpu_uuid_begins(gpu->uuid, id->text);
}

/* "0 (NVIDIA H200, GPU-5d3c...), 1 (...)"; cut to fit. With mig_of, only that GPU's MIG devices. */
static const char *list_text(
        const struct mfl_gpus *gpus, const struct mfl_gpu *mig_of, char *buf, size_t buf_bytes)
{
        size_t have = 0;
        buf[0] = 0;
        for (uint32_t i = 0; i < gpus->n && have < buf_bytes; i++) {
                const struct mfl_gpu *g = &gpus->v[i];
                const char *comma = have ? ", " : "";
                if (mig_of && (g->mig < 0 || g->index != mig_of->index))
                        continue;
                int n = g->mig < 0 ? mfl_snprintf(buf + have, buf_bytes - have, "%s%u (%s%s%s)", comma,
                                             g->index, g->name, *g->name ? ", " : "", g->uuid)
                                   : mfl_snprintf(buf + have, buf_bytes - have, "%s%s", comma, g->uuid);
                have += n > 0 ? (size_t)n : 0;
        }
        return *buf ? buf : "none";
}

int mfl_gpu_find(const struct mfl_gpus *gpus, const struct mfl_gpu_id *id, const struct mfl_gpu **ret_gpu,
        struct mfl_error *err)
{
        const struct mfl_gpu *found = NULL;
        char list[360];
        for (uint32_t i = 0; i < gpus->n; i++) {
                if (!means(id, &gpus->v[i]))
                        continue;
                if (found)
                        return mfl_fail(err, MFL_INVALID, "GPU %s: several begin like this: %s", id->text,
                                list_text(gpus, NULL, list, sizeof(list)));
                found = &gpus->v[i];
        }
        if (!found)
                return mfl_fail(err, MFL_INVALID, "GPU %s: there is no such device; there are: %s", id->text,
                        list_text(gpus, NULL, list, sizeof(list)));
        if (found->mig_mode)
                return mfl_fail(err, MFL_INVALID, "GPU %s is in MIG mode: choose one of its MIG devices: %s",
                        id->text, list_text(gpus, found, list, sizeof(list)));
        *ret_gpu = found;
        return 0;
}

/* The device that one entry of CUDA_VISIBLE_DEVICES means. An index counts in the order of PCI addresses, as
 * with CUDA_DEVICE_ORDER=PCI_BUS_ID and as batch systems set it. NULL: not known. */
static const struct mfl_gpu *find_visible(const struct mfl_gpus *gpus, const char *entry)
{
        struct mfl_gpu_id id;
        const struct mfl_gpu *gpu;
        if (!gpus || !mfl_gpu_id_parse(entry, &id) || id.kind < MFL_GPU_INDEX ||
                mfl_gpu_find(gpus, &id, &gpu, NULL))
                return NULL;
        return gpu;
}

int mfl_gpu_check_visible(const char *visible, const struct mfl_gpu_id *id, const struct mfl_gpu *gpu,
        const struct mfl_gpus *gpus, struct mfl_error *err)
{
        if (!visible || !strcmp(visible, id->text))
                return 0;
        const struct mfl_gpu *other = find_visible(gpus, visible);
        if (gpu && other && !strcmp(gpu->uuid, other->uuid))
                return 0;
        return mfl_fail(err, MFL_INVALID,
                "GPU %s was asked for, but CUDA_VISIBLE_DEVICES=%.100s is set: remove one of the two",
                id->text, visible);
}

uint32_t mfl_gpu_count_visible(const char *visible, uint32_t n_gpus)
{
        if (!visible)
                return n_gpus;
        uint32_t n = *visible != 0;
        for (const char *c = visible; *c; c++)
                n += *c == ',';
        return n;
}

/* Adds the device, or all MIG devices of a GPU in MIG mode; each once. */
static void choose(const struct mfl_gpus *gpus, const struct mfl_gpu *gpu, struct mfl_gpus *chosen)
{
        for (uint32_t i = 0; i < gpus->n; i++) {
                const struct mfl_gpu *g = &gpus->v[i];
                bool wanted = gpu->mig_mode ? g->mig >= 0 && g->index == gpu->index : g == gpu;
                for (uint32_t k = 0; k < chosen->n; k++)
                        wanted = wanted && strcmp(chosen->v[k].uuid, g->uuid);
                if (wanted && chosen->n < MFL_GPUS_MAX)
                        chosen->v[chosen->n++] = *g;
        }
}

static int choose_id(const struct mfl_gpus *gpus, const struct mfl_gpu_id *id, struct mfl_gpus *chosen,
        struct mfl_error *err)
{
        const struct mfl_gpu *gpu = NULL;
        for (uint32_t i = 0; id->kind == MFL_GPU_INDEX && i < gpus->n; i++) {
                if (means(id, &gpus->v[i]))
                        gpu = &gpus->v[i];
        }
        int r = gpu && gpu->mig_mode ? 0 : mfl_gpu_find(gpus, id, &gpu, err);
        if (!r)
                choose(gpus, gpu, chosen);
        return r;
}

int mfl_gpu_select(const struct mfl_gpus *gpus, const struct mfl_gpu_id *ids, uint32_t n_ids,
        const char *visible, struct mfl_gpus *ret_chosen, struct mfl_error *err)
{
        struct mfl_gpu_id listed[MFL_GPUS_MAX];
        ret_chosen->n = 0;
        if (n_ids && visible)
                return mfl_fail(err, MFL_INVALID,
                        "GPUs were listed, but CUDA_VISIBLE_DEVICES=%.100s is set: remove one of the two",
                        visible);
        if (!n_ids && visible) {
                if (!mfl_gpu_ids_parse(visible, listed, &n_ids))
                        return mfl_fail(err, MFL_INVALID,
                                "CUDA_VISIBLE_DEVICES=%.100s: expected indices or UUIDs of GPUs, each once",
                                visible);
                ids = listed;
        }
        for (uint32_t i = 0; i < n_ids; i++) {
                int r = choose_id(gpus, &ids[i], ret_chosen, err);
                if (r)
                        return r;
        }
        for (uint32_t i = 0; !n_ids && i < gpus->n; i++) {
                if (gpus->v[i].mig < 0)
                        choose(gpus, &gpus->v[i], ret_chosen);
        }
        return ret_chosen->n ? 0 : mfl_fail(err, MFL_INVALID, "there is no GPU to start a daemon for");
}
