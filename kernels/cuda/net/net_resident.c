/* SPDX-License-Identifier: Apache-2.0 */
/* Workers whose params, sums and optimizer's state lie on the device (kernels/grad.h, struct mfl_grad_device_ops).
 *
 *     device   forward, backward | round and add | ... | add over ranks (NCCL) | squares | apply | reorder
 *     bus      loss, largest elements, statistics of batch norms             | squares of blocks
 *
 * Ways to fail: no room (MFL_INVALID); the device (negative). */
#include "kernels/check.h"
#include "kernels/cuda/net/net.h"
#include "kernels/cuda/ops/ops_grad.h"
#include "kernels/grad.h"

/* Parts of the one allocation, each at a multiple of 256 bytes. */
enum piece {
        PARAMS,
        PARTS,
        OF_BLOCK,
        OF_TENSOR,
        FACTOR,
        LARGEST,
        SCRATCH,
        AT,
        MOMENTUM,
        STATISTICS,
        SQUARES,
        PIECES
};

struct mfl_cuda_resident {
        char *memory;
        uint64_t at[PIECES + 1];
        struct mfl_cuda_grad_table table;
        uint32_t n_statistics;
        int *bits;      /* that FACTOR has */
        double *factor; /* the host's copy */
        float *largest; /* likewise */
        bool has_bits;
};

/* What the tables need, and the tables. */
struct tables {
        uint64_t n, n_blocks, n_parts, n_tensors, n_statistics;
        struct mfl_cuda_grad_part *part;
        uint32_t *of_block, *of_tensor, *at;
        float *momentum;
};

/* ---- sizes ---- */

static uint64_t blocks_of(uint64_t n)
{
        return (n + MFL_GRAD_BLOCK - 1) / MFL_GRAD_BLOCK;
}

static struct tables sizes_of(const struct mfl_graph *graph)
{
        struct tables sizes = {.n = graph->n_moving,
                .n_blocks = blocks_of(graph->n_moving),
                .n_statistics = mfl_grad_host_statistics_at(graph, graph->n_layers)};
        for (int t = 0; t < graph->n_params; t++) {
                uint64_t at = graph->params[t].offset - graph->n_frozen;
                if (!graph->params[t].trained)
                        continue;
                sizes.n_tensors++;
                sizes.n_parts += blocks_of(at + graph->params[t].count) - at / MFL_GRAD_BLOCK;
        }
        return sizes;
}

static uint64_t place_pieces(const struct tables *sizes, uint64_t at[PIECES + 1])
{
        const uint64_t bytes[PIECES] = {[PARAMS] = sizes->n * sizeof(float),
                [PARTS] = sizes->n_parts * sizeof(struct mfl_cuda_grad_part),
                [OF_BLOCK] = (sizes->n_blocks + 1) * sizeof(uint32_t),
                [OF_TENSOR] = (sizes->n_tensors + 1) * sizeof(uint32_t),
                [FACTOR] = sizes->n_tensors * sizeof(double),
                [LARGEST] = sizes->n_tensors * sizeof(float),
                [SCRATCH] = sizes->n_parts * sizeof(float),
                [AT] = sizes->n_statistics * sizeof(uint32_t),
                [MOMENTUM] = sizes->n_statistics * sizeof(float),
                [STATISTICS] = sizes->n_statistics * sizeof(float),
                [SQUARES] = sizes->n_blocks * sizeof(double)};
        at[0] = 0;
        for (int i = 0; i < PIECES; i++)
                at[i + 1] = at[i] + mfl_cuda_round_up(bytes[i]);
        return at[PIECES];
}

static uint64_t resident_bytes(const struct mfl_graph *graph, const struct mfl_net_options *options)
{
        uint64_t at[PIECES + 1];
        struct tables sizes = sizes_of(graph);
        return place_pieces(&sizes, at);
}

/* ---- tables ---- */

static void tables_deinit(struct tables *tables)
{
        free(tables->part);
        free(tables->of_block);
        free(tables->of_tensor);
        free(tables->at);
        free(tables->momentum);
}

static void fill_parts(const struct mfl_grad_host *host, struct tables *tables)
{
        uint32_t p = 0;
        uint64_t block = 0;
        for (int t = 0; t < host->n_tensors; t++) {
                const struct mfl_grad_tensor *tensor = &host->tensors[t];
                tables->of_tensor[t] = p;
                for (uint64_t at = tensor->at, end = at + tensor->count, next; at < end; at = next) {
                        next = MFL_MIN(end, (at / MFL_GRAD_BLOCK + 1) * MFL_GRAD_BLOCK);
                        while (block <= at / MFL_GRAD_BLOCK)
                                tables->of_block[block++] = p;
                        tables->part[p++] = (struct mfl_cuda_grad_part){at, (uint32_t)(next - at), t};
                }
        }
        mfl_assert(p == tables->n_parts);
        tables->of_tensor[host->n_tensors] = p;
        while (block <= tables->n_blocks)
                tables->of_block[block++] = p;
}

/* In the order in which a grain leaves them: of each layer the means, then the variances. */
static void fill_statistics(const struct mfl_graph *graph, struct tables *tables)
{
        uint64_t k = 0;
        for (int i = 0; i < graph->n_layers; i++) {
                const struct mfl_layer *layer = &graph->layers[i];
                const int tensors[] = {layer->param_mean, layer->param_var};
                for (size_t v = 0; tensors[0] >= 0 && v < MFL_ARRAY_SIZE(tensors); v++) {
                        const struct mfl_param *param = &graph->params[tensors[v]];
                        for (uint64_t e = 0; e < param->count; e++, k++) {
                                tables->at[k] = (uint32_t)(param->offset - graph->n_frozen + e);
                                tables->momentum[k] = layer->momentum;
                        }
                }
        }
        mfl_assert(k == tables->n_statistics);
}

static int make_tables(const struct mfl_net *net, struct tables *tables, struct mfl_error *err)
{
        const struct mfl_grad_host *host = &net->host;
        tables->part = mfl_calloc((size_t)tables->n_parts + 1, sizeof *tables->part);
        tables->of_block = mfl_calloc((size_t)tables->n_blocks + 1, sizeof *tables->of_block);
        tables->of_tensor = mfl_calloc((size_t)tables->n_tensors + 1, sizeof *tables->of_tensor);
        tables->at = mfl_calloc((size_t)tables->n_statistics + 1, sizeof *tables->at);
        tables->momentum = mfl_calloc((size_t)tables->n_statistics + 1, sizeof *tables->momentum);
        if (!tables->part || !tables->of_block || !tables->of_tensor || !tables->at || !tables->momentum)
                return mfl_fail_memory(err, tables->n_parts * sizeof *tables->part, "a gradient's tables");
        fill_parts(host, tables);
        fill_statistics(net->model.flat, tables);
        return 0;
}

/* ---- vectors ---- */

static void *at(const struct mfl_net *net, enum piece piece)
{
        return net->resident->memory + net->resident->at[piece];
}

static int send(struct mfl_net *net, void *to, const void *from, uint64_t bytes, struct mfl_error *err)
{
        return bytes ? mfl_cuda_pipe_send(&net->pipe, net->main.stream, to, from, bytes,
                               "copy a worker's vectors to the device", err)
                     : 0;
}

struct landing {
        const char *from;
        char *to;
};

static int find_piece(void *arg, uint64_t first, uint64_t n, const void **ret_from, struct mfl_error *err)
{
        const struct landing *landing = arg;
        *ret_from = landing->from + first;
        return 0;
}

static void take_piece(void *arg, uint64_t first, uint64_t n, const void *bytes)
{
        const struct landing *landing = arg;
        memcpy(landing->to + first, bytes, (size_t)n);
}

static int fetch(struct mfl_net *net, void *to, const void *from, uint64_t bytes, struct mfl_error *err)
{
        struct landing landing = {from, to};
        struct mfl_cuda_landing how = {
                "copy a worker's vectors to the host", bytes, find_piece, take_piece, &landing};
        return bytes ? mfl_cuda_pipe_land(&net->pipe, net->main.stream, &how, err) : 0;
}

static int alloc(struct mfl_net *net, uint64_t bytes, void **ret_memory, struct mfl_error *err)
{
        void *memory = NULL;
        int rc = mfl_cuda_enter(net, err);
        if (!rc)
                rc = mfl_cuda_alloc(MFL_MAX(bytes, 256), "a worker's vectors", &memory, err);
        if (rc)
                return rc;
        rc = mfl_cuda_check(cudaMemsetAsync(memory, 0, (size_t)bytes, net->main.stream), "clear", err);
        if (rc)
                (void)cudaFree(memory);
        else
                *ret_memory = memory;
        return rc;
}

/* A communicator that could not be aborted may still write there. */
static void release(struct mfl_net *net, void *memory)
{
        if (memory && !mfl_cuda_enter(net, NULL) && !mfl_cuda_sync(net, "free", NULL) && !mfl_cuda_is_stuck())
                (void)cudaFree(memory);
}

static int clear(struct mfl_net *net, void *memory, uint64_t bytes, struct mfl_error *err)
{
        int rc = mfl_cuda_enter(net, err);
        return rc ? rc
                  : mfl_cuda_check(cudaMemsetAsync(memory, 0, (size_t)bytes, net->main.stream), "clear", err);
}

static int copy(struct mfl_net *net, enum mfl_grad_copy way, void *to, const void *from, uint64_t bytes,
        struct mfl_error *err)
{
        int rc = mfl_cuda_enter(net, err);
        if (rc)
                return rc;
        if (way == MFL_GRAD_TO_DEVICE)
                return send(net, to, from, bytes, err);
        if (way == MFL_GRAD_TO_HOST)
                return fetch(net, to, from, bytes, err);
        return mfl_cuda_check(
                cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToDevice, net->main.stream),
                "copy a worker's vectors", err);
}

static int settle(struct mfl_net *net, struct mfl_error *err)
{
        int rc = mfl_cuda_enter(net, err);
        return rc ? rc : mfl_cuda_sync(net, "a worker's step", err);
}

/* ---- its life ---- */

static int fill(struct mfl_net *net, const struct tables *tables, struct mfl_error *err)
{
        const struct {
                enum piece piece;
                const void *from;
                uint64_t bytes;
        } pieces[] = {{PARAMS, net->host.params, tables->n * sizeof(float)},
                {PARTS, tables->part, tables->n_parts * sizeof *tables->part},
                {OF_BLOCK, tables->of_block, (tables->n_blocks + 1) * sizeof(uint32_t)},
                {OF_TENSOR, tables->of_tensor, (tables->n_tensors + 1) * sizeof(uint32_t)},
                {AT, tables->at, tables->n_statistics * sizeof(uint32_t)},
                {MOMENTUM, tables->momentum, tables->n_statistics * sizeof(float)}};
        int rc = 0;
        for (size_t i = 0; !rc && i < MFL_ARRAY_SIZE(pieces); i++)
                rc = send(net, at(net, pieces[i].piece), pieces[i].from, pieces[i].bytes, err);
        return rc ? rc : mfl_cuda_sync(net, "reside on the device", err);
}

static int make(struct mfl_net *net, struct tables *tables, struct mfl_error *err)
{
        struct mfl_cuda_resident *resident = net->resident;
        uint64_t bytes = place_pieces(tables, resident->at);
        void *memory = NULL;
        resident->bits = mfl_calloc((size_t)tables->n_tensors + 1, sizeof *resident->bits);
        resident->factor = mfl_calloc((size_t)tables->n_tensors + 1, sizeof *resident->factor);
        resident->largest = mfl_calloc((size_t)tables->n_tensors + 1, sizeof *resident->largest);
        if (!resident->bits || !resident->factor || !resident->largest)
                return mfl_fail_memory(err, tables->n_tensors * sizeof(double), "a gradient's tables");
        int rc = make_tables(net, tables, err);
        if (!rc)
                rc = alloc(net, bytes, &memory, err);
        if (rc)
                return rc;
        resident->memory = memory;
        resident->n_statistics = (uint32_t)tables->n_statistics;
        resident->table = (struct mfl_cuda_grad_table){.part = at(net, PARTS),
                .of_block = at(net, OF_BLOCK),
                .of_tensor = at(net, OF_TENSOR),
                .factor = at(net, FACTOR),
                .n_parts = (uint32_t)tables->n_parts,
                .n_tensors = (uint32_t)tables->n_tensors};
        return fill(net, tables, err);
}

void mfl_cuda_resident_free(struct mfl_net *net)
{
        struct mfl_cuda_resident *resident = net->resident;
        if (!resident)
                return;
        release(net, resident->memory);
        free(resident->bits);
        free(resident->factor);
        free(resident->largest);
        free(resident);
        net->resident = NULL;
}

static int reside(struct mfl_net *net, bool on, struct mfl_error *err)
{
        mfl_assert(net->model.options.worker && (!on || (net->host.params && !net->model.options.sibling)));
        if (!on)
                mfl_cuda_resident_free(net);
        if (!on || net->resident)
                return 0;
        if (mfl_cuda_is_stuck()) /* nothing would be freed */
                return mfl_fail(err, MFL_INVALID,
                        "a worker's vectors: a communicator of this process could not be aborted: restart "
                        "the daemon");
        struct tables tables = sizes_of(net->model.flat);
        net->resident = mfl_calloc(1, sizeof *net->resident);
        if (!net->resident)
                return mfl_fail_memory(err, sizeof *net->resident, "a worker");
        int rc = make(net, &tables, err);
        tables_deinit(&tables);
        if (rc)
                mfl_cuda_resident_free(net);
        return rc;
}

float *mfl_cuda_resident_params(const struct mfl_net *net)
{
        return net->resident ? at(net, PARAMS) : NULL;
}

int mfl_cuda_resident_set(struct mfl_net *net, const float *moving, struct mfl_error *err)
{
        return send(net, at(net, PARAMS), moving, net->model.flat->n_moving * sizeof(float), err);
}

int mfl_cuda_resident_get(
        struct mfl_net *net, uint64_t first, uint64_t n, float *params, struct mfl_error *err)
{
        return fetch(net, params, (const float *)at(net, PARAMS) + first, n * sizeof(float), err);
}

/* ---- a gradient ---- */

static int send_factors(struct mfl_net *net, const int *bits, struct mfl_error *err)
{
        struct mfl_cuda_resident *resident = net->resident;
        size_t n = resident->table.n_tensors;
        if (resident->has_bits && !memcmp(resident->bits, bits, n * sizeof *bits))
                return 0;
        for (size_t t = 0; t < n; t++)
                resident->factor[t] = ldexp(1.0, bits[t]);
        int rc = send(net, at(net, FACTOR), resident->factor, n * sizeof *resident->factor, err);
        if (n)
                memcpy(resident->bits, bits, n * sizeof *bits);
        resident->has_bits = !rc;
        return rc;
}

static int take_largest(struct mfl_net *net, const struct mfl_grad_sink *sink, struct mfl_error *err)
{
        struct mfl_cuda_resident *resident = net->resident;
        size_t n = resident->table.n_tensors;
        int rc = fetch(net, resident->largest, at(net, LARGEST), n * sizeof(float), err);
        for (size_t t = 0; !rc && t < n; t++)
                sink->largest[t] = MFL_MAX(sink->largest[t], resident->largest[t]);
        return rc;
}

static int take_statistics(struct mfl_net *net, float *to, struct mfl_error *err)
{
        const struct mfl_cuda_grad_running a = {.n = net->resident->n_statistics,
                .at = at(net, AT),
                .place = (uint32_t *)mfl_cuda_at(net, MFL_CUDA_PLACE) + net->model.flat->n_frozen,
                .from = mfl_cuda_at(net, MFL_CUDA_GRADS),
                .to = at(net, STATISTICS)};
        if (!a.n || !to)
                return 0;
        int rc = mfl_cuda_check(mfl_cuda_grad_running(&a, net->main.stream), "take statistics", err);
        return rc ? rc : fetch(net, to, a.to, a.n * sizeof(float), err);
}

int mfl_cuda_resident_take(
        struct mfl_net *net, float times, const struct mfl_grad_sink *sink, struct mfl_error *err)
{
        struct mfl_cuda_resident *resident = net->resident;
        const struct mfl_cuda_grad_round a = {.table = resident->table,
                .place = (uint32_t *)mfl_cuda_at(net, MFL_CUDA_PLACE) + net->model.flat->n_frozen,
                .from = mfl_cuda_at(net, MFL_CUDA_GRADS),
                .times = times,
                .first = sink->first,
                .sum = sink->resident,
                .largest = at(net, LARGEST),
                .scratch = at(net, SCRATCH)};
        mfl_assert(sink->resident && !sink->floats && !sink->ready);
        int rc = send_factors(net, sink->bits, err);
        if (!rc)
                rc = clear(net, a.largest, resident->table.n_tensors * sizeof(float), err);
        if (!rc)
                rc = mfl_cuda_check(mfl_cuda_grad_round(&a, net->main.stream), "round a gradient", err);
        if (!rc)
                rc = take_largest(net, sink, err);
        return rc ? rc : take_statistics(net, sink->statistics, err);
}

/* ---- the optimizer ---- */

static struct mfl_cuda_grad_step step_of(
        const struct mfl_net *net, const struct mfl_grad_total *total, const struct mfl_optimizer *opt)
{
        struct mfl_cuda_grad_step a = {.table = net->resident->table,
                .first = total->first,
                .n = total->n,
                .sum = total->sum,
                .params = at(net, PARAMS),
                .momentum = total->momentum,
                .second = total->second,
                .start = total->start,
                .prox_mu = mfl_optimizer_clips_prox(opt) ? opt->prox_mu : 0.0f,
                .opt = *opt,
                .squares = at(net, SQUARES)};
        if (a.prox_mu != 0.0f)
                a.opt.prox_mu = 0;
        return a;
}

int mfl_cuda_resident_squares(struct mfl_net *net, const struct mfl_grad_total *total,
        const struct mfl_optimizer *opt, double *ret_squares, struct mfl_error *err)
{
        const struct mfl_cuda_grad_step a = step_of(net, total, opt);
        int rc = mfl_cuda_enter(net, err);
        if (!rc)
                rc = send_factors(net, total->bits, err);
        if (!rc)
                rc = mfl_cuda_check(mfl_cuda_grad_squares(&a, net->main.stream), "measure a gradient", err);
        return rc ? rc : fetch(net, ret_squares, a.squares, blocks_of(total->n) * sizeof(double), err);
}

int mfl_cuda_resident_apply(struct mfl_net *net, const struct mfl_grad_total *total,
        const struct mfl_optimizer *opt, const struct mfl_rate *rate, float factor, struct mfl_error *err)
{
        struct mfl_cuda_grad_step a = step_of(net, total, opt);
        a.rate = *rate;
        a.factor = factor;
        int rc = mfl_cuda_enter(net, err);
        if (!rc)
                rc = send_factors(net, total->bits, err);
        return rc ? rc : mfl_cuda_check(mfl_cuda_grad_apply(&a, net->main.stream), "apply a gradient", err);
}

int mfl_cuda_resident_statistics(struct mfl_net *net, const float *of_grain, struct mfl_error *err)
{
        const struct mfl_cuda_grad_running a = {.n = net->resident->n_statistics,
                .at = at(net, AT),
                .momentum = at(net, MOMENTUM),
                .to = at(net, STATISTICS),
                .params = at(net, PARAMS)};
        int rc = mfl_cuda_enter(net, err);
        if (!rc)
                rc = send(net, a.to, of_grain, a.n * sizeof(float), err);
        return rc ? rc
                  : mfl_cuda_check(mfl_cuda_grad_running(&a, net->main.stream), "running statistics", err);
}

const struct mfl_grad_device_ops mfl_cuda_grad_device_ops = {
        .bytes = resident_bytes,
        .reside = reside,
        .alloc = alloc,
        .free = release,
        .clear = clear,
        .copy = copy,
        .settle = settle,
};
