/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse linear maps: their tables in the order of the device's tensors, and their launches. */
#include "kernels/cuda/ops/ops_map.h"
#include "kernels/cuda/net/run.h"

static struct mfl_map_order order_of(const struct mfl_cuda_tensor *x)
{
        return (struct mfl_map_order){.channels = x->c, .pixels = (int64_t)x->h * x->w};
}

/* The six lists of a map, as they follow each other in the region. */
#define LISTS 6
struct list {
        const void *data; /* NULL: the map has no such list */
        uint64_t bytes;
};

static void list_rows(const struct mfl_map_rows *rows, struct list *lists)
{
        uint64_t terms = (uint64_t)rows->n_terms * sizeof(int32_t);
        lists[0] = (struct list){rows->first, rows->first ? (uint64_t)(rows->n + 1) * sizeof(int32_t) : 0};
        lists[1] = (struct list){rows->index, terms};
        lists[2] = (struct list){rows->weight, rows->weight ? terms : 0};
}

static void list_map(const struct mfl_map *map, struct list lists[LISTS])
{
        list_rows(&map->y, lists);
        list_rows(&map->x, lists + LISTS / 2);
}

int mfl_cuda_model_maps(struct mfl_cuda_model *model, struct mfl_error *err)
{
        const struct mfl_graph *graph = model->graph;
        uint64_t *bytes = &model->region_bytes[MFL_CUDA_MAPS];
        int rc = mfl_maps_new(graph, &model->maps, err);
        for (int i = 1; !rc && i < graph->n_layers; i++) {
                struct list lists[LISTS];
                struct mfl_error why;
                if (!model->maps[i])
                        continue;
                rc = mfl_map_reorder(&model->maps[i], order_of(&model->layers[graph->layers[i].input].x),
                        order_of(&model->layers[i].x), &why);
                if (rc)
                        return mfl_fail(err, rc, "layer %s: %.400s", graph->layers[i].name, why.text);
                list_map(model->maps[i], lists);
                model->layers[i].map_at = *bytes;
                for (int k = 0; k < LISTS; k++)
                        *bytes += lists[k].bytes;
        }
        return rc;
}

int mfl_cuda_maps_send(struct mfl_net *net, struct mfl_error *err)
{
        const struct mfl_cuda_model *model = &net->model;
        char *memory = mfl_cuda_at(net, MFL_CUDA_MAPS);
        int rc = 0;
        for (int i = 1; !rc && i < model->graph->n_layers; i++) {
                struct list lists[LISTS];
                if (!model->maps[i])
                        continue;
                list_map(model->maps[i], lists);
                uint64_t at = model->layers[i].map_at;
                for (int k = 0; !rc && k < LISTS; at += lists[k++].bytes)
                        if (lists[k].bytes)
                                rc = mfl_cuda_check(
                                        cudaMemcpyAsync(memory + at, lists[k].data, (size_t)lists[k].bytes,
                                                cudaMemcpyHostToDevice, net->main.stream),
                                        "copy the tables of a layer to the device", err);
        }
        return rc ? rc : mfl_cuda_sync(net, "copy the tables of layers", err);
}

static struct mfl_cuda_map map_of(const struct mfl_cuda_run *pass, int i, bool back)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        const struct mfl_map *map = model->maps[i];
        const char *at = (const char *)mfl_cuda_at(pass->net, MFL_CUDA_MAPS) + model->layers[i].map_at;
        const void *place[LISTS];
        struct list lists[LISTS];
        list_map(map, lists);
        for (int k = 0; k < LISTS; at += lists[k++].bytes)
                place[k] = lists[k].data ? at : NULL;
        const void *const *own = place + (back ? LISTS / 2 : 0);
        return (struct mfl_cuda_map){.groups = model->options.groups,
                .batch = model->options.batch,
                .type = model->type,
                .outer = (int)map->outer,
                .inner = (int)map->inner,
                .n_from = (int)(back ? map->n_out : map->n_in),
                .n_to = (int)(back ? map->n_in : map->n_out),
                .first = own[0],
                .index = own[1],
                .weight = own[2],
                .fill = back ? 0 : map->fill,
                .steps = pass->steps};
}

cudaError_t mfl_cuda_map_forward(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_cuda_map a = map_of(pass, i, false);
        a.from = mfl_cuda_act_at(pass->net, pass->net->model.graph->layers[i].input);
        a.to = mfl_cuda_act_at(pass->net, i);
        return mfl_cuda_map(&a, pass->net->main.stream);
}

cudaError_t mfl_cuda_map_backward(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_cuda_wanted want = mfl_cuda_wanted_of(pass, i);
        struct mfl_cuda_map a = map_of(pass, i, true);
        a.from = mfl_cuda_grad_at(pass->net, i);
        a.to = want.dx;
        a.add = want.add;
        return a.to ? mfl_cuda_map(&a, pass->net->main.stream) : cudaSuccess;
}
