/* SPDX-License-Identifier: Apache-2.0 */
/* The list of GPUs without NVML: /proc/driver/nvidia/gpus has a folder for each GPU, named by its PCI
 * address, with a file `information` that has the lines "Model:" and "GPU UUID:". Until a device has been
 * opened once, the driver writes '?' for digits of its UUID: such a GPU is left out. */
#include "client/gpu/gpu.h"

#include <dirent.h>
#include <stdio.h>

#include "common/base/fs.h"

/* The rest of the line that begins with `key`, without surrounding blanks. */
static bool find_line(const char *text, const char *key, char *ret_value, size_t bytes)
{
        for (const char *line = text; line; line = strchr(line, '\n')) {
                line += *line == '\n';
                if (strncmp(line, key, strlen(key)))
                        continue;
                const char *from = line + strlen(key);
                from += strspn(from, " \t");
                size_t n = strcspn(from, "\n");
                while (n && (from[n - 1] == ' ' || from[n - 1] == '\t'))
                        n--;
                if (n >= bytes)
                        return false;
                memcpy(ret_value, from, n);
                ret_value[n] = 0;
                return n > 0;
        }
        return false;
}

static bool read_gpu(const char *folder, const char *pci, struct mfl_gpu *ret_gpu)
{
        char path[512];
        MFL_CLEANUP_FREE char *text = NULL;
        size_t bytes;
        struct mfl_gpu gpu = {.mig = -1};
        struct mfl_gpu_id id;
        if (snprintf(path, sizeof(path), "%s/%s/information", folder, pci) >= (int)sizeof(path) ||
                mfl_fs_read(path, 65536, &text, &bytes, NULL))
                return false;
        if (!find_line(text, "GPU UUID:", gpu.uuid, sizeof(gpu.uuid)) || !mfl_gpu_id_parse(gpu.uuid, &id) ||
                id.kind != MFL_GPU_UUID)
                return false;
        if (!find_line(text, "Model:", gpu.name, sizeof(gpu.name)))
                gpu.name[0] = 0;
        strcpy(gpu.gpu_uuid, gpu.uuid);
        mfl_strcpy(gpu.pci, sizeof(gpu.pci), pci);
        *ret_gpu = gpu;
        return true;
}

int mfl_gpu_list_proc(const char *folder, struct mfl_gpus *ret_gpus, struct mfl_error *err)
{
        struct dirent **entries;
        ret_gpus->n = 0;
        int n = scandir(folder, &entries, NULL, alphasort);
        /* The index counts all folders, readable or not, because CUDA counts that way. */
        uint32_t index = 0;
        for (int i = 0; i < n; i++) {
                struct mfl_gpu *g = &ret_gpus->v[ret_gpus->n];
                if (entries[i]->d_name[0] != '.' && ret_gpus->n < MFL_GPUS_MAX) {
                        if (read_gpu(folder, entries[i]->d_name, g)) {
                                g->index = index;
                                ret_gpus->n++;
                        }
                        index++;
                }
                free(entries[i]);
        }
        if (n >= 0)
                free(entries);
        return ret_gpus->n ? 0 : mfl_fail(err, MFL_NOT_FOUND, "%s: no GPU with a UUID is listed", folder);
}
