/* SPDX-License-Identifier: Apache-2.0 */
/* Where elements of the flat vector lie in a wide one. Most tensors lie there as they are and need no table; dense weights need
 * one entry per column; a convolution's weights have the order of a primitive, and one entry per element. */
#include "kernels/cpu/net.h"

#define LOW_BITS 20u /* a float holds these bits, and the rest, exactly */

/* Fills a vector with the numbers of its places and converts one or all of its tensors: this tells where flat elements come
 * from. It takes two passes, as a float has only 24 bits. `wide` is not yet used, and holds 0 afterwards. tensor < 0: all copied
 * ones. */
static int number_places(struct mfl_net *net, int tensor, float *wide, uint64_t n_wide, float *flat,
        uint64_t n, uint32_t *place, struct mfl_error *err)
{
        int rc = 0;
        memset(place, 0, (size_t)n * sizeof *place);
        for (unsigned part = 0; !rc && part < 2; part++) {
                for (uint64_t i = 0; i < n_wide; i++)
                        wide[i] = (float)(part ? i >> LOW_BITS : i & ((1u << LOW_BITS) - 1));
                rc = tensor < 0 ? mfl_cpu_params_to_flat(net, MFL_CPU_COPIED, wide, flat, err)
                                : mfl_cpu_tensor_to_flat(net, tensor, wide, flat, err);
                for (uint64_t i = 0; !rc && i < n; i++)
                        place[i] |= (uint32_t)flat[i] << (part ? LOW_BITS : 0);
        }
        memset(wide, 0, (size_t)n_wide * sizeof *wide);
        return rc;
}

static int number_elements(struct mfl_net *net, int tensor, struct mfl_error *err)
{
        struct mfl_cpu_param *own = &net->wide[tensor];
        size_t n = (size_t)net->graph->params[tensor].count;
        MFL_CLEANUP_FREE float *flat = mfl_malloc(n * sizeof *flat + 1);
        own->place = mfl_malloc(n * sizeof *own->place + 1);
        if (!flat || !own->place)
                return mfl_fail_memory(err, n * sizeof *own->place, "places of parameters");
        MFL_CLEANUP_FREE float *wide = mfl_alloc_aligned((size_t)own->count * sizeof *wide + 1);
        if (!wide)
                return mfl_fail_memory(err, (size_t)own->count * sizeof *wide, "places of parameters");
        int rc = number_places(net, tensor, wide, own->count, flat, n, own->place, err);
        for (size_t i = 0; !rc && i < n; i++)
                own->place[i] += (uint32_t)own->at;
        return rc;
}

static int number_columns(struct mfl_net *net, int tensor, struct mfl_error *err)
{
        struct mfl_cpu_param *own = &net->wide[tensor];
        const struct mfl_layer *layer = &net->graph->layers[net->graph->params[tensor].layer];
        const struct mfl_layout *in = &net->layers[layer->input].layout;
        size_t n = (size_t)in->logical;
        own->column[0] = mfl_malloc(2 * n * sizeof *own->column[0]);
        if (!own->column[0])
                return mfl_fail_memory(err, 2 * n * sizeof *own->column[0], "places of parameters");
        own->column[1] = own->column[0] + n;
        for (size_t c = 0; c < n; c++) {
                int64_t stride, at = mfl_cpu_column_at(in->count, layer->out_channels,
                                        mfl_layout_at(in, (int64_t)c), &stride);
                own->column[0][c] = (uint32_t)(own->at + (uint64_t)at);
                own->column[1][c] = (uint32_t)stride;
        }
        return 0;
}

static int number_copied(struct mfl_net *net, struct mfl_error *err)
{
        size_t n = (size_t)net->n_copied_flat;
        MFL_CLEANUP_FREE float *flat = mfl_malloc(n * sizeof *flat + 1);
        net->copied = mfl_malloc(n * sizeof *net->copied + 1);
        if (!flat || !net->copied)
                return mfl_fail_memory(err, n * sizeof *net->copied, "places of parameters");
        return number_places(net, -1, net->copies, net->n_copied, flat, n, net->copied, err);
}

int mfl_cpu_places_new(struct mfl_net *net, struct mfl_error *err)
{
        if (net->n_wide > UINT32_MAX || net->n_copied > UINT32_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "the cpu backend supports at most 2^32 parameters, not %llu",
                        (unsigned long long)net->graph->n);
        int rc = number_copied(net, err);
        for (int t = 0; !rc && t < net->graph->n_params; t++) {
                const struct mfl_param *param = &net->graph->params[t];
                if (net->wide[t].home != MFL_CPU_WIDE || mfl_cpu_is_flat(net, param))
                        continue;
                rc = net->graph->layers[param->layer].op == MFL_OP_DENSE ? number_columns(net, t, err)
                                                                         : number_elements(net, t, err);
        }
        return rc;
}

void mfl_cpu_places_free(struct mfl_net *net)
{
        for (int t = 0; net->wide && t < net->graph->n_params; t++) {
                free(net->wide[t].place);
                free(net->wide[t].column[0]);
        }
        free(net->copied);
}

static void skip(struct mfl_cpu_places *places)
{
        const struct mfl_net *net = places->net;
        while (places->tensor < net->graph->n_params &&
                (net->wide[places->tensor].home != MFL_CPU_WIDE ||
                        places->k >= net->graph->params[places->tensor].count)) {
                if (net->wide[places->tensor].home == MFL_CPU_WIDE)
                        places->k -= net->graph->params[places->tensor].count;
                places->tensor++;
        }
}

struct mfl_cpu_places mfl_cpu_places_from(const struct mfl_net *net, uint64_t first)
{
        struct mfl_cpu_places places = {net, 0, first};
        skip(&places);
        return places;
}

/* n elements of one tensor. */
static void list(
        const struct mfl_cpu_param *own, uint64_t width, uint64_t k, uint32_t n, uint32_t *restrict to)
{
        if (own->place)
                memcpy(to, own->place + k, n * sizeof *to);
        else if (!own->column[0])
                for (uint32_t i = 0; i < n; i++)
                        to[i] = (uint32_t)(own->at + k + i);
        else
                for (uint64_t row = k / width, c = k % width; n--;
                        row += ++c == width, c = c == width ? 0 : c)
                        *to++ = own->column[0][c] + (uint32_t)row * own->column[1][c];
}

void mfl_cpu_places_next(struct mfl_cpu_places *places, uint32_t n, uint32_t *ret_place)
{
        const struct mfl_graph *graph = places->net->graph;
        while (n) {
                const struct mfl_param *param = &graph->params[places->tensor];
                uint32_t count = (uint32_t)MFL_MIN(n, param->count - places->k);
                uint64_t rows = (uint64_t)graph->layers[param->layer].out_channels;
                list(&places->net->wide[places->tensor], param->count / MFL_MAX(rows, 1), places->k, count,
                        ret_place);
                places->k += count;
                ret_place += count;
                n -= count;
                skip(places);
        }
}
