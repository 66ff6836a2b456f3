/* SPDX-License-Identifier: Apache-2.0 */
/* Where a job's params come from: a checkpoint, a file of initial params, or the seed; and their digest. Fails when a file does not fit the
 * graph. */
#include "server/runtime/runtime_internal.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/codec/grid.h"
#include "common/model/safetensors.h"

static int read_whole(int fd, const char *path, void *dst, uint64_t bytes, struct mfl_error *err)
{
        char *p = dst;
        while (bytes) {
                ssize_t got = read(fd, p, MFL_MIN(bytes, (uint64_t)1 << 30));
                if (got < 0 && errno == EINTR)
                        continue;
                if (got < 0)
                        return mfl_fail_errno(err, "read %s", path);
                if (!got)
                        return mfl_fail(err, MFL_INVALID, "%s: shorter than it was", path);
                p += got;
                bytes -= (uint64_t)got;
        }
        return 0;
}

static int read_tensors(int fd, const char *path, const struct mfl_graph *graph, float *frozen, float *moving,
        struct mfl_error *err)
{
        int r = 0;
        for (int t = 0; t < graph->n_params && !r; t++) {
                const struct mfl_param *param = &graph->params[t];
                float *to = t < graph->i_moving ? frozen + param->offset
                                                : moving + (param->offset - graph->n_frozen);
                if (lseek(fd, (off_t)(param->place * sizeof(float)), SEEK_SET) < 0)
                        return mfl_fail_errno(err, "seek in %s", path);
                r = read_whole(fd, path, to, param->count * sizeof(float), err);
                for (uint64_t i = 0; i < param->count && !r; i++)
                        if (!__builtin_isfinite(to[i]))
                                r = mfl_fail(err, MFL_INVALID, "model.initial: parameter %llu is not finite",
                                        (unsigned long long)(param->place + i));
        }
        return r;
}

static int load_initial(
        const char *path, const struct mfl_graph *graph, float *frozen, float *moving, struct mfl_error *err)
{
        uint64_t n = graph->n;
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return mfl_fail_errno(err, "open %s", path);
        struct stat st;
        int r;
        if (fstat(fd, &st))
                r = mfl_fail_errno(err, "stat %s", path);
        else if ((uint64_t)st.st_size != n * sizeof(float))
                r = mfl_fail(err, MFL_INVALID, "model.initial: %llu parameters, the model has %llu",
                        (unsigned long long)st.st_size / sizeof(float), (unsigned long long)n);
        else
                r = read_tensors(fd, path, graph, frozen, moving, err);
        close(fd);
        return r;
}

int mfl_runtime_load_state(struct mfl_runtime *rt, const struct mfl_st_file *file, const char *vector,
        float *to, const char *path, struct mfl_error *err)
{
        for (int t = rt->graph->i_moving; t < rt->graph->n_params; t++) {
                const struct mfl_param *param = &rt->graph->params[t];
                char name[256];
                snprintf(name, sizeof name, "strategy/%s/%s", vector, param->name);
                const struct mfl_st_tensor *tensor = mfl_st_find(file, name);
                if (!tensor || tensor->count != param->count)
                        return mfl_fail(err, MFL_INVALID, "%s: tensor %s is missing or has a wrong shape",
                                path, name);
                memcpy(to + (param->offset - rt->graph->n_frozen), tensor->data,
                        param->count * sizeof(float));
        }
        return 0;
}

int mfl_runtime_load_number(const struct mfl_st_file *file, const char *name, const char *path,
        double *ret_number, struct mfl_error *err)
{
        char key[64], *end;
        snprintf(key, sizeof key, MFL_CHECKPOINT_NUMBER "%s", name);
        const char *text = mfl_st_meta_get(file, key);
        *ret_number = text ? strtod(text, &end) : NAN;
        return !text || *end || !isfinite(*ret_number)
                       ? mfl_fail(err, MFL_INVALID, "%s: metadata %s is missing or no number", path, key)
                       : 0;
}

/* The numbers that the method keeps are metadata. */
static int load_numbers(
        struct mfl_runtime *rt, const struct mfl_st_file *file, const char *path, struct mfl_error *err)
{
        int r = 0;
        for (int i = 0; i < rt->method->n_state && !r; i++)
                r = mfl_runtime_load_number(file, rt->method->state_name[i], path, &rt->numbers[i], err);
        return r;
}

/* Of the checkpoint that the params came from; a job without one, or at its start, has none. */
int mfl_runtime_load_grid(
        struct mfl_runtime *rt, const char *path, struct mfl_params *params, struct mfl_error *err)
{
        struct mfl_st_file *file = NULL;
        uint32_t n = mfl_grid_tensors(rt->graph), i = 0;
        int r = mfl_st_open(path, &file, err);
        const char *text = r ? NULL : mfl_st_meta_get(file, MFL_CHECKPOINT_GRID);
        int32_t *grid = text ? mfl_calloc(n, sizeof *grid) : NULL;
        if (text && !grid)
                r = mfl_fail_memory(err, n * sizeof *grid, "a grid");
        for (char *end; !r && text && i < n; i++, text = end) {
                long v = strtol(text, &end, 10);
                if (end == text || ((v < MFL_GRID_LEAST || v > 127) && v != MFL_GRID_EXACT))
                        break;
                grid[i] = (int32_t)v;
        }
        if (!r && text && (i < n || *text))
                r = mfl_fail(err, MFL_INVALID,
                        "%s: metadata " MFL_CHECKPOINT_GRID ": number %u is missing or wrong", path, i + 1);
        if (!r && text) {
                params->grid = grid;
                params->n_grid = n;
        } else {
                free(grid);
        }
        mfl_st_close(file);
        return r == MFL_NOT_FOUND ? MFL_INVALID : r;
}

static int load_memory(struct mfl_runtime *rt, const struct mfl_st_file *file,
        const struct mfl_runtime_options *options, struct mfl_error *err)
{
        uint64_t count = 4 * options->n_memory;
        rt->memory = mfl_calloc(count, sizeof *rt->memory);
        if (!rt->memory)
                return mfl_fail_memory(err, count * sizeof *rt->memory, "the clients' losses");
        return mfl_st_words(file, MFL_CHECKPOINT_MEMORY, count, rt->memory)
                       ? mfl_fail(err, MFL_INVALID, "%s: tensor %s is missing or has a wrong shape",
                                 options->checkpoint_path, MFL_CHECKPOINT_MEMORY)
                       : 0;
}

static int load_checkpoint(struct mfl_runtime *rt, const struct mfl_runtime_options *options, float *frozen,
        float *moving, struct mfl_error *err)
{
        struct mfl_st_file *file = NULL, *rest = NULL;
        int r = mfl_st_open(options->checkpoint_path, &file, err);
        if (!r && options->frozen_path)
                r = mfl_st_open(options->frozen_path, &rest, err);
        if (!r)
                r = mfl_st_to_parts(file, rest, rt->graph, frozen, moving, err);
        for (int i = 0; i < mfl_runtime_n_state(rt) && !r; i++)
                r = mfl_runtime_load_state(
                        rt, file, rt->strategy->state_name[i], rt->state[i], options->checkpoint_path, err);
        if (!r && rt->rest)
                r = mfl_runtime_load_state(
                        rt, file, MFL_RUNTIME_REST, rt->rest, options->checkpoint_path, err);
        if (!r)
                r = load_numbers(rt, file, options->checkpoint_path, err);
        if (!r && options->n_memory)
                r = load_memory(rt, file, options, err);
        mfl_st_close(rest);
        mfl_st_close(file);
        return r == MFL_NOT_FOUND ? MFL_INVALID : r;
}

static void initial_state(struct mfl_runtime *rt)
{
        if (rt->method->initial)
                rt->method->initial(rt->spec, rt->graph->classes, rt->numbers);
        for (int i = 0; i < mfl_runtime_n_state(rt); i++) {
                float v = rt->strategy->state_initial(rt->spec, i);
                for (uint64_t e = 0; e < rt->n; e++)
                        rt->state[i][e] = v;
        }
}

int mfl_runtime_load_first(struct mfl_runtime *rt, const struct mfl_runtime_options *options, float *frozen,
        float *moving, struct mfl_error *err)
{
        if (options->initial_path)
                return load_initial(options->initial_path, rt->graph, frozen, moving, err);
        mfl_graph_init_parts(rt->graph, rt->spec->seed, frozen, moving);
        return 0;
}

int mfl_runtime_load_version(struct mfl_runtime *rt, const char *path, const char *frozen_path, float *frozen,
        float *moving, struct mfl_error *err)
{
        struct mfl_st_file *file = NULL, *rest = NULL;
        int r = mfl_st_open(path, &file, err);
        if (!r && frozen_path)
                r = mfl_st_open(frozen_path, &rest, err);
        if (!r)
                r = mfl_st_to_parts(file, rest, rt->graph, frozen, moving, err);
        mfl_st_close(rest);
        mfl_st_close(file);
        return r == MFL_NOT_FOUND ? MFL_INVALID : r;
}

int mfl_runtime_fill(struct mfl_runtime *rt, const struct mfl_runtime_options *options, float *frozen,
        float *moving, struct mfl_error *err)
{
        if (options->checkpoint_path)
                return load_checkpoint(rt, options, frozen, moving, err);
        initial_state(rt);
        int r = mfl_runtime_load_first(rt, options, frozen, moving, err);
        if (!r)
                mfl_down_first(rt, moving);
        return r;
}

int mfl_runtime_digest(
        const struct mfl_runtime *rt, const float *v, uint8_t digest[MFL_DIGEST_BYTES], struct mfl_error *err)
{
        struct mfl_sha256 sha = {NULL};
        int r = mfl_sha256_copy(&rt->hashed, &sha, err);
        if (!r)
                r = mfl_sha256_update(&sha, v, rt->n * sizeof *v, err);
        if (!r)
                r = mfl_sha256_final(&sha, digest, err);
        mfl_sha256_deinit(&sha);
        return r;
}
