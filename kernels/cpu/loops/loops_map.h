/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse linear maps (common/model/graph_map.h), forward and backward alike; part of loops_body.h. */

#define MAP_BLOCKS 8

/* Terms of row r are [*ret_from, returned end). */
INLINE int32_t map_terms(const struct mfl_map_rows *rows, int64_t r, int32_t *ret_from)
{
        *ret_from = rows->first ? rows->first[r] : (int32_t)r;
        return rows->first ? rows->first[r + 1] : (int32_t)r + 1;
}

/* `n` blocks of single floats side by side, so that their sums do not wait for each other. */
INLINE void map_floats(const struct mfl_map_loop *v, const float *restrict x, float *restrict y, const int n)
{
        const struct mfl_map_rows *rows = v->rows;
        const int32_t *index = rows->index;
        const float *weight = rows->weight;
        int64_t n_x = v->n_in, n_y = rows->n;
        for (int64_t r = 0; r < n_y; r++) {
                int32_t from, end = map_terms(rows, r, &from);
                float sum[MAP_BLOCKS];
                UNROLL for (int j = 0; j < n; j++) sum[j] = from == end ? v->fill : 0.0f;
                for (int32_t t = from; t < end; t++) {
                        const float w = weight ? weight[t] : 1.0f, *at = x + index[t];
                        UNROLL for (int j = 0; j < n; j++) sum[j] += w * at[j * n_x];
                }
                UNROLL for (int j = 0; j < n; j++) y[j * n_y + r] = sum[j];
        }
}

/* One block whose rows have one term each, of weight 1. */
static void map_copies(const struct mfl_map_loop *v, const float *restrict x, float *restrict y)
{
        const int32_t *index = v->rows->index;
        for (int64_t r = 0; r < v->rows->n; r++)
                y[r] = x[index[r]];
}

/* Blocks [begin, end). */
static void map_single(const struct mfl_map_loop *v, const float *x, float *y, int64_t begin, int64_t end)
{
        int64_t a = begin, n_x = v->n_in, n_y = v->rows->n;
        bool copies = !v->rows->first && !v->rows->weight;
        for (; !copies && a + MAP_BLOCKS <= end; a += MAP_BLOCKS)
                map_floats(v, x + a * n_x, y + a * n_y, MAP_BLOCKS);
        for (; a < end; a++)
                if (copies)
                        map_copies(v, x + a * n_x, y + a * n_y);
                else
                        map_floats(v, x + a * n_x, y + a * n_y, 1);
}

/* One block of vectors of `inner` floats, which is a constant for the usual layouts. */
INLINE void map_vectors(
        const struct mfl_map_loop *v, const float *restrict x, float *restrict y, const int64_t inner)
{
        const struct mfl_map_rows *rows = v->rows;
        for (int64_t r = 0; r < rows->n; r++, y += inner) {
                int32_t from, end = map_terms(rows, r, &from);
                const float *first = x + rows->index[from < end ? from : 0] * inner;
                float share = rows->weight && from < end ? rows->weight[from] : 1.0f;
                if (from == end)
                        for (int64_t b = 0; b < inner; b++)
                                y[b] = v->fill;
                else if (share == 1.0f)
                        memcpy(y, first, (size_t)inner * sizeof *y);
                else
                        for (int64_t b = 0; b < inner; b++)
                                y[b] = share * first[b];
                for (int32_t t = from + 1; t < end; t++) {
                        const float *next = x + rows->index[t] * inner;
                        float w = rows->weight ? rows->weight[t] : 1.0f;
                        for (int64_t b = 0; b < inner; b++)
                                y[b] += w * next[b];
                }
        }
}

static void map_blocks(const struct mfl_map_loop *v, const float *x, float *y, int64_t begin, int64_t end)
{
        int64_t n_x = v->n_in * v->inner, n_y = v->rows->n * v->inner;
        if (v->inner == 1) {
                map_single(v, x, y, begin, end);
                return;
        }
        for (int64_t a = begin; a < end; a++) {
                if (v->inner == 16)
                        map_vectors(v, x + a * n_x, y + a * n_y, 16);
                else if (v->inner == 8)
                        map_vectors(v, x + a * n_x, y + a * n_y, 8);
                else
                        map_vectors(v, x + a * n_x, y + a * n_y, v->inner);
        }
}

static void map_rows(const struct mfl_map_loop *v, const float *x, float *y)
{
        DIVIDE(v->threads, v->blocks, map_blocks(v, x, y, begin, end));
}
