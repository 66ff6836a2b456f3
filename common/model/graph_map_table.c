/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of sparse linear maps. */
#include "common/model/graph_map_internal.h"

/* ---- views: what repeats at the outside and lies together at the inside stays out of the table ---- */

/* Where output element e, counted over the digits [from, n), lies from the offset. */
static int64_t view_at(const struct mfl_map_spec *v, int from, int64_t e)
{
        int64_t at = 0;
        for (int d = v->n_digits - 1; d >= from; d--) {
                int64_t digit = (e % v->size[d] - v->shift[d] + v->size[d]) % v->size[d];
                at += digit * v->stride[d];
                e /= v->size[d];
        }
        return at;
}

/* The largest number of neighbours that move together: the last digit counts them, and everything else is a
 * multiple. */
static int64_t view_inner(const struct mfl_map_spec *v, int64_t total)
{
        int last = v->n_digits - 1;
        int64_t inner = v->stride[last] == 1 && v->shift[last] == 0 ? v->size[last] : 1;
        bool fits = v->offset % inner == 0 && total % inner == 0;
        for (int d = 0; d < last; d++)
                fits = fits && v->stride[d] % inner == 0;
        return fits ? inner : 1;
}

/* Whether the first digit counts equal parts of the input, each read in the same way. */
static bool view_repeats(const struct mfl_map_spec *v, int64_t total)
{
        int64_t least = v->offset, most = v->offset;
        if (v->n_digits < 2 || v->shift[0] || v->stride[0] < 1 || v->stride[0] * v->size[0] != total)
                return false;
        for (int d = 1; d < v->n_digits; d++) {
                int64_t reach = (v->size[d] - 1) * v->stride[d];
                least += MFL_MIN(reach, 0);
                most += MFL_MAX(reach, 0);
        }
        return least >= 0 && most < v->stride[0];
}

static int new_view(const struct mfl_layer *layer, int64_t total, struct mfl_map *map,
        struct mfl_map_axis **ret_table, struct mfl_error *err)
{
        const struct mfl_map_spec *v = &layer->map;
        int from = view_repeats(v, total);
        map->inner = view_inner(v, total);
        map->outer = from ? v->size[0] : 1;
        map->n_in = total / map->outer / map->inner;
        map->n_out = mfl_shape_count(&layer->out) / map->outer / map->inner;
        int r = mfl_map_axis_empty(map->n_in, map->n_out, map->n_out, ret_table, err);
        for (int64_t o = 0; !r && o < map->n_out; o++) {
                (*ret_table)->first[o + 1] = (int32_t)(o + 1);
                (*ret_table)->index[o] =
                        (int32_t)((v->offset + view_at(v, from, o * map->inner)) / map->inner);
                (*ret_table)->weight[o] = 1;
        }
        return r;
}

static int new_gather(const struct mfl_layer *layer, int64_t total, struct mfl_map *map,
        struct mfl_map_axis **ret_table, struct mfl_error *err)
{
        const struct mfl_map_spec *v = &layer->map;
        map->n_in = total;
        map->n_out = v->n_index;
        int r = mfl_map_axis_empty(total, v->n_index, v->n_index, ret_table, err);
        for (int o = 0; !r && o < v->n_index; o++) {
                (*ret_table)->first[o + 1] = o + 1;
                (*ret_table)->index[o] = v->index[o];
                (*ret_table)->weight[o] = 1;
        }
        return r;
}

/* ---- maps of several dimensions ---- */

/* The map of two dimensions: each row of a with each row of b. */
static int join_axes(const struct mfl_map_axis *a, const struct mfl_map_axis *b,
        struct mfl_map_axis **ret_axis, struct mfl_error *err)
{
        struct mfl_map_axis *c;
        int64_t terms = (int64_t)a->first[a->n_out] * b->first[b->n_out];
        int r = mfl_map_axis_empty(a->n_in * b->n_in, a->n_out * b->n_out, terms, &c, err);
        if (r)
                return r;
        int32_t n = 0;
        for (int64_t row = 0; row < c->n_out; row++) {
                int64_t ra = row / b->n_out, rb = row % b->n_out;
                for (int32_t s = a->first[ra]; s < a->first[ra + 1]; s++)
                        for (int32_t t = b->first[rb]; t < b->first[rb + 1]; t++, n++) {
                                c->index[n] = (int32_t)(a->index[s] * b->n_in + b->index[t]);
                                c->weight[n] = a->weight[s] * b->weight[t];
                        }
                c->first[row + 1] = n;
        }
        *ret_axis = c;
        return 0;
}

/* The dimensions [*ret_first, *ret_end) between those that pass through unchanged. */
static void find_moving(
        const struct mfl_layer *layer, const struct mfl_shape *in, int *ret_first, int *ret_end)
{
        int first = 0, end = in->rank;
        while (first < end - 1 && mfl_map_keeps(layer, in, first))
                first++;
        while (end > first + 1 && mfl_map_keeps(layer, in, end - 1))
                end--;
        *ret_first = first;
        *ret_end = end;
}

static int new_product(const struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_map *map,
        struct mfl_map_axis **ret_table, struct mfl_error *err)
{
        int first, end, r = 0;
        struct mfl_map_axis *table = NULL;
        find_moving(layer, in, &first, &end);
        for (int d = 0; d < first; d++)
                map->outer *= in->dim[d];
        for (int d = end; d < in->rank; d++)
                map->inner *= in->dim[d];
        for (int d = first; !r && d < end; d++) {
                struct mfl_map_axis *own = NULL, *both = NULL;
                r = mfl_map_axis_new(layer, in, d, &own, err);
                if (!r && table)
                        r = join_axes(table, own, &both, err);
                if (both) {
                        mfl_map_axis_free(own);
                        own = both;
                }
                mfl_map_axis_free(table);
                table = own;
        }
        if (r) {
                mfl_map_axis_free(table);
                return r;
        }
        map->n_in = table->n_in;
        map->n_out = table->n_out;
        if (layer->map.kind == MFL_MAP_PAD && layer->map.mode == MFL_MAP_CONSTANT)
                map->fill = layer->map.value;
        *ret_table = table;
        return 0;
}

uint64_t mfl_map_terms(const struct mfl_layer *layer, const struct mfl_shape *in)
{
        if (layer->map.kind == MFL_MAP_VIEW || layer->map.kind == MFL_MAP_GATHER)
                return (uint64_t)mfl_shape_count(&layer->shape);
        int first, end;
        uint64_t terms = 1;
        find_moving(layer, in, &first, &end);
        for (int d = first; d < end; d++)
                terms = mfl_graph_multiply(terms, mfl_map_axis_terms(layer, in, d));
        return terms;
}

/* ---- the two tables of a map ---- */

/* Takes what it needs of a table of doubles; the lists that say nothing are left out. */
static int keep_rows(
        const struct mfl_map_axis *from, struct mfl_map_rows *rows, uint64_t *bytes, struct mfl_error *err)
{
        int64_t n = from->n_out, n_terms = from->first[n];
        bool single = n_terms == n, ones = true;
        for (int64_t r = 0; r < n && single; r++)
                single = from->first[r + 1] == r + 1;
        for (int64_t t = 0; t < n_terms && ones; t++)
                ones = from->weight[t] == 1;
        int32_t *first = single ? NULL : mfl_malloc((size_t)(n + 1) * sizeof *first);
        int32_t *index = mfl_malloc((size_t)n_terms * sizeof *index + 1);
        float *weight = ones ? NULL : mfl_malloc((size_t)n_terms * sizeof *weight + 1);
        *rows = (struct mfl_map_rows){
                .n = n, .n_terms = n_terms, .first = first, .index = index, .weight = weight};
        if ((!single && !first) || !index || (!ones && !weight))
                return mfl_fail_memory(err, (size_t)n_terms * sizeof *index, "the table of a layer");
        memcpy(index, from->index, (size_t)n_terms * sizeof *index);
        if (first)
                memcpy(first, from->first, (size_t)(n + 1) * sizeof *first);
        for (int64_t t = 0; weight && t < n_terms; t++)
                weight[t] = (float)from->weight[t];
        *bytes += (uint64_t)(n_terms * (1 + !ones) + (single ? 0 : n + 1)) * sizeof(int32_t);
        return 0;
}

static int transpose(const struct mfl_map_axis *a, struct mfl_map_axis **ret_axis, struct mfl_error *err)
{
        struct mfl_map_axis *b;
        int64_t n_terms = a->first[a->n_out];
        int r = mfl_map_axis_empty(a->n_out, a->n_in, n_terms, &b, err);
        if (r)
                return r;
        for (int64_t t = 0; t < n_terms; t++)
                b->first[a->index[t] + 1]++;
        for (int64_t i = 0; i < b->n_out; i++)
                b->first[i + 1] += b->first[i];
        /* first[i] counts up to the end of row i, which is the start of the next one. */
        for (int64_t o = 0; o < a->n_out; o++)
                for (int32_t t = a->first[o]; t < a->first[o + 1]; t++) {
                        int32_t at = b->first[a->index[t]]++;
                        b->index[at] = (int32_t)o;
                        b->weight[at] = a->weight[t];
                }
        memmove(b->first + 1, b->first, (size_t)b->n_out * sizeof *b->first);
        b->first[0] = 0;
        *ret_axis = b;
        return 0;
}

static int keep_tables(struct mfl_map *map, const struct mfl_map_axis *table, struct mfl_error *err)
{
        struct mfl_map_axis *back = NULL;
        int r = transpose(table, &back, err);
        if (!r)
                r = keep_rows(table, &map->y, &map->bytes, err);
        if (!r)
                r = keep_rows(back, &map->x, &map->bytes, err);
        mfl_map_axis_free(back);
        return r;
}

int mfl_map_new(const struct mfl_graph *graph, int i, struct mfl_map **ret_map, struct mfl_error *err)
{
        const struct mfl_layer *layer = &graph->layers[i];
        const struct mfl_shape *in = &graph->layers[layer->input].out;
        struct mfl_map_axis *table = NULL;
        struct mfl_map *map = mfl_calloc(1, sizeof *map);
        int r;
        mfl_assert(layer->op == MFL_OP_MAP);
        if (!map)
                return mfl_fail_memory(err, sizeof *map, "the table of a layer");
        map->outer = map->inner = 1;
        if (layer->map.kind == MFL_MAP_VIEW)
                r = new_view(layer, mfl_shape_count(in), map, &table, err);
        else if (layer->map.kind == MFL_MAP_GATHER)
                r = new_gather(layer, mfl_shape_count(in), map, &table, err);
        else
                r = new_product(layer, in, map, &table, err);
        if (!r)
                r = keep_tables(map, table, err);
        mfl_map_axis_free(table);
        if (r) {
                mfl_map_free(map);
                return r;
        }
        *ret_map = map;
        return 0;
}

void mfl_map_free(struct mfl_map *map)
{
        if (!map)
                return;
        const struct mfl_map_rows *rows[] = {&map->y, &map->x};
        for (size_t k = 0; k < MFL_ARRAY_SIZE(rows); k++) {
                free((void *)rows[k]->first);
                free((void *)rows[k]->index);
                free((void *)rows[k]->weight);
        }
        free(map);
}

int mfl_maps_new(const struct mfl_graph *graph, struct mfl_map ***ret_maps, struct mfl_error *err)
{
        size_t bytes = (size_t)graph->n_layers * sizeof **ret_maps;
        struct mfl_map **maps = mfl_calloc(1, bytes);
        if (!maps)
                return mfl_fail_memory(err, bytes, "the tables of layers");
        for (int i = 0; i < graph->n_layers; i++) {
                int r = graph->layers[i].op == MFL_OP_MAP ? mfl_map_new(graph, i, &maps[i], err) : 0;
                if (r) {
                        mfl_maps_free(graph, maps);
                        return r;
                }
        }
        *ret_maps = maps;
        return 0;
}

void mfl_maps_free(const struct mfl_graph *graph, struct mfl_map **maps)
{
        for (int i = 0; maps && i < graph->n_layers; i++)
                mfl_map_free(maps[i]);
        free(maps);
}

/* Both tables, each with an index and a weight for each term. */
uint64_t mfl_map_bytes(const struct mfl_graph *graph, int i)
{
        const struct mfl_layer *layer = &graph->layers[i];
        if (layer->op != MFL_OP_MAP)
                return 0;
        const struct mfl_shape *in = &graph->layers[layer->input].out;
        return (4 * mfl_map_terms(layer, in) + (uint64_t)mfl_shape_count(in) +
                       (uint64_t)mfl_shape_count(&layer->out) + 2) *
               sizeof(int32_t);
}

int64_t mfl_map_longest(const struct mfl_map *map)
{
        const struct mfl_map_rows *rows[] = {&map->y, &map->x};
        int64_t most = 1;
        for (size_t k = 0; k < MFL_ARRAY_SIZE(rows); k++)
                for (int64_t r = 0; rows[k]->first && r < rows[k]->n; r++)
                        most = MFL_MAX(most, (int64_t)rows[k]->first[r + 1] - rows[k]->first[r]);
        return most;
}

/* ---- other orders of elements ---- */

static int64_t placed(struct mfl_map_order order, int64_t e)
{
        return order.pixels > 1 ? e % order.pixels * order.channels + e / order.pixels : e;
}

static int64_t unplaced(struct mfl_map_order order, int64_t at)
{
        return order.pixels > 1 ? at % order.channels * order.pixels + at / order.channels : at;
}

/* The terms of row o of the whole map, at their places. */
static void place_row(
        const struct mfl_map *map, struct mfl_map_order in, int64_t o, struct mfl_map_axis *to, int32_t *n)
{
        int64_t b = o % map->inner, row = o / map->inner % map->n_out, a = o / map->inner / map->n_out;
        int64_t from = map->y.first ? map->y.first[row] : row,
                end = map->y.first ? map->y.first[row + 1] : row + 1;
        for (int64_t t = from; t < end; t++) {
                int64_t e = (a * map->n_in + map->y.index[t]) * map->inner + b;
                to->index[*n] = (int32_t)placed(in, e);
                to->weight[*n] = map->y.weight ? (double)map->y.weight[t] : 1;
                (*n)++;
        }
}

/* Every element by itself. */
static int expand(
        struct mfl_map **map, struct mfl_map_order in, struct mfl_map_order out, struct mfl_error *err)
{
        const struct mfl_map *old = *map;
        int64_t times = old->outer * old->inner, n_out = old->n_out * times;
        if (old->y.n_terms > MFL_MAP_TERMS_MAX / times)
                return mfl_fail(err, MFL_INVALID,
                        "its table has more than %lld entries where channels vary fastest",
                        (long long)MFL_MAP_TERMS_MAX);
        struct mfl_map *whole = mfl_calloc(1, sizeof *whole);
        struct mfl_map_axis *table = NULL;
        int r = whole ? mfl_map_axis_empty(old->n_in * times, n_out, old->y.n_terms * times, &table, err)
                      : mfl_fail_memory(err, sizeof *whole, "the table of a layer");
        int32_t n = 0;
        for (int64_t o = 0; !r && o < n_out; o++) {
                place_row(old, in, unplaced(out, o), table, &n);
                table->first[o + 1] = n;
        }
        if (!r) {
                *whole = (struct mfl_map){
                        .outer = 1, .inner = 1, .n_in = table->n_in, .n_out = n_out, .fill = old->fill};
                r = keep_tables(whole, table, err);
        }
        mfl_map_axis_free(table);
        if (r) {
                mfl_map_free(whole);
                return r;
        }
        mfl_map_free(*map);
        *map = whole;
        return 0;
}

int mfl_map_reorder(
        struct mfl_map **map, struct mfl_map_order in, struct mfl_map_order out, struct mfl_error *err)
{
        struct mfl_map *m = *map;
        if (in.pixels <= 1 && out.pixels <= 1)
                return 0;
        bool planes = in.channels == out.channels && m->outer % in.channels == 0 &&
                      m->outer / in.channels * m->n_in * m->inner == in.pixels &&
                      m->outer / in.channels * m->n_out * m->inner == out.pixels;
        if (!planes)
                return expand(map, in, out, err);
        m->outer /= in.channels;
        m->inner *= in.channels;
        return 0;
}
