/* SPDX-License-Identifier: Apache-2.0 */
/* A committed model as a file for a browser.
 *
 *   - the round and the job are read, and the graph is made;
 *   - the tensors are found in the round's checkpoint and in the frozen params;
 *   - they are written with the metadata of `mfl pull`.
 * Ways to fail: no such round; its model is no longer kept; the disk is full; a file that is damaged. */
#include "server/web/model.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/contract/model_file.h"
#include "common/model/safetensors.h"
#include "proto/json/json.h"
#include "proto/version.h"
#include "server/views/contract_view.h"
#include "server/views/job_view.h"

struct model {
        struct mfl_store *store;
        const char *job;
        struct mfl_store_round round;
        struct mfl_store_job row;
        struct mfl_job *spec;
        struct mfl_graph *graph;
        struct mfl_st_file *file, *frozen;
        char *contract;
        int fd;
};

static int open_parts(struct model *m, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        int r = mfl_store_round_verify(m->store, m->job, &m->round, err);
        if (!r)
                r = mfl_st_open(mfl_store_path(m->store, m->job, m->round.file.name, path), &m->file, err);
        if (!r && *m->round.frozen.name)
                r = mfl_st_open(
                        mfl_store_path(m->store, m->job, m->round.frozen.name, path), &m->frozen, err);
        return r;
}

static int read_job(struct model *m, struct mfl_error *err)
{
        int r = mfl_store_job_get(m->store, m->job, &m->row, err);
        if (!r)
                r = mfl_job_parse(m->row.text, strlen(m->row.text), m->job, &m->spec, err);
        if (!r) {
                m->spec->by_layers = !m->row.n_frozen;
                r = mfl_job_graph(m->spec, &m->row.data.shape, (int)m->row.data.classes, &m->graph, err);
        }
        return r ? r : mfl_view_contract(m->store, m->job, &m->contract, err);
}

static int find_tensors(const struct model *m, struct mfl_st_tensor *tensors, struct mfl_error *err)
{
        for (int i = 0; i < m->graph->n_params; i++) {
                const struct mfl_param *param = &m->graph->params[i];
                const struct mfl_st_tensor *found = mfl_st_find(m->file, param->name);
                if (!found && m->frozen)
                        found = mfl_st_find(m->frozen, param->name);
                if (!found || found->count != param->count)
                        return mfl_fail(err, MFL_INVALID,
                                "%s: the checkpoint of round %u has no %s of %llu floats", m->job,
                                m->round.record.round, param->name, (unsigned long long)param->count);
                tensors[i] = (struct mfl_st_tensor){.name = param->name,
                        .shape = param->shape,
                        .data = found->data,
                        .count = param->count};
        }
        return 0;
}

static int write_tensors(
        struct model *m, const struct mfl_st_tensor *tensors, int n_tensors, struct mfl_error *err)
{
        struct mfl_model_meta model;
        Mfl__RoundInfo info;
        char round[16], digest[MFL_SHA256_HEX_BYTES], accuracy[MFL_DOUBLE_BYTES], loss[MFL_DOUBLE_BYTES],
                path[MFL_STORE_PATH_BYTES];
        mfl_view_round(&m->round, &info);
        snprintf(round, sizeof round, "%u", info.round);
        mfl_hex(m->round.record.digest, MFL_SHA256_BYTES, digest);
        mfl_double_text(info.accuracy, accuracy);
        mfl_double_text(info.loss, loss);
        struct mfl_st_meta meta[6 + MFL_MODEL_META_MAX] = {{"job", m->job}, {"round", round},
                {"digest", digest}, {"software", "mfl " MFL_VERSION}, {"loss", loss}, {"accuracy", accuracy}};
        /* Of a job with privacy only what has noise. */
        int n_meta = m->spec->privacy.kind ? 4 : mfl_has_accuracy(&info) ? 6 : info.evaluated ? 5 : 4;
        mfl_model_meta(
                &model, m->row.text, !m->graph->n_frozen, &m->graph->input, m->graph->classes, m->contract);
        memcpy(meta + n_meta, model.v, (size_t)model.n * sizeof *meta);
        m->fd = open(mfl_store_path(m->store, m->job, ".", path), O_TMPFILE | O_RDWR | O_CLOEXEC,
                S_IRUSR | S_IWUSR);
        if (m->fd < 0)
                return mfl_fail(err, MFL_BUSY, "%s: no file can be made there: %s", path, strerror(errno));
        int r = mfl_st_write(m->fd, "the model's file", tensors, n_tensors, meta, n_meta + model.n, err);
        /* A full disk concerns this download alone. */
        return r < 0 && r != -ENOMEM ? MFL_BUSY : r;
}

static int make(struct model *m, struct mfl_error *err)
{
        int r = read_job(m, err);
        if (!r)
                r = open_parts(m, err);
        if (r)
                return r;
        size_t n = (size_t)m->graph->n_params + (size_t)m->graph->n_aliases;
        MFL_CLEANUP_FREE struct mfl_st_tensor *tensors = mfl_calloc(n, sizeof *tensors);
        if (!tensors)
                return mfl_fail_memory(err, n * sizeof *tensors, "a table of tensors");
        r = find_tensors(m, tensors, err);
        return r ? r : write_tensors(m, tensors, mfl_st_add_aliases(m->graph, tensors), err);
}

int mfl_web_model(struct mfl_store *store, const char *job, int64_t which, int *ret_fd, uint64_t *ret_bytes,
        uint32_t *ret_round, struct mfl_error *err)
{
        struct model m = {.store = store, .job = job, .fd = -1};
        struct stat st;
        int r = mfl_store_round_get(store, job, which, which < 0, &m.round, err);
        if (!r && !m.round.kept)
                r = mfl_fail(err, MFL_NOT_FOUND,
                        "%s: the model of round %u is no longer kept (checkpoints.keep)", job,
                        m.round.record.round);
        if (!r)
                r = make(&m, err);
        if (!r && (fstat(m.fd, &st) || lseek(m.fd, 0, SEEK_SET)))
                r = mfl_fail(err, MFL_BUSY, "%s: the model's file: %s", job, strerror(errno));
        if (!r) {
                *ret_fd = m.fd;
                *ret_bytes = (uint64_t)st.st_size;
                *ret_round = m.round.record.round;
                m.fd = -1;
        }
        if (m.fd >= 0)
                close(m.fd);
        free(m.contract);
        mfl_st_close(m.frozen);
        mfl_st_close(m.file);
        mfl_graph_free(m.graph);
        mfl_job_free(m.spec);
        mfl_store_job_deinit(&m.row);
        return r;
}
