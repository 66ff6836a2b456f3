/* SPDX-License-Identifier: Apache-2.0 */
/* Attention, one head of one row after another; part of loops_body.h. */

/* One head of one row, and the memory for its block of queries. */
struct head {
        const float *q, *k, *v, *dy;
        float *y, *dq, *dk, *dv;
        float *kept;               /* max and 1 / sum of each query */
        const float *mask_of_keys; /* NULL: none */
        uint64_t first;
        float *product, *scores, *dropped, *grads, *mask, *keys, *values, *rows; /* the thread's */
};

static struct head head_of(const struct mfl_attention *v, int64_t pair, float *work)
{
        int64_t t = v->positions, size = v->width / v->heads, r = pair / v->heads, block = MFL_ATTENTION_ROWS;
        int64_t in = r * t * 3 * v->width + pair % v->heads * size,
                out = r * t * v->width + pair % v->heads * size;
        struct head h = {.q = v->x + in, .k = v->x + in + v->width, .v = v->x + in + 2 * v->width};
        h.kept = v->kept + pair * 2 * t;
        h.mask_of_keys = v->mask ? v->mask + r * t : NULL;
        h.first = (uint64_t)((pair + v->first_row * v->heads) * t * t);
        h.product = work;
        h.scores = h.product + MFL_GEMM_WORK;
        h.dropped = h.scores + block * t;
        h.grads = h.dropped + block * t;
        h.mask = h.grads + block * t;
        h.keys = h.mask + block * t + 8;
        h.values = h.keys + mfl_gemm_packed_floats(size, t);
        h.rows = h.values + MFL_MAX(mfl_gemm_packed_floats(size, t), mfl_gemm_packed_floats(t, size));
        if (v->y)
                h.y = v->y + out;
        if (v->dy)
                h.dy = v->dy + out;
        if (v->dx) {
                h.dq = v->dx + in;
                h.dk = h.dq + v->width;
                h.dv = h.dk + v->width;
        }
        return h;
}

/* Query i sees positions below this. */
INLINE int64_t seen_by(const struct mfl_attention *v, int64_t i)
{
        return v->causal ? i + 1 : v->positions;
}

/* The factors of queries [i, i + n) are at mask[ret]: the stream's blocks of four need not begin with a row.
 */
static const float *attention_mask(const struct mfl_attention *v, const struct head *h, int64_t i, int64_t n)
{
        uint64_t first = h->first + (uint64_t)(i * v->positions);
        int64_t ahead = (int64_t)(first % 4);
        dropout(*v->dropout, first - (uint64_t)ahead, n * v->positions + ahead, v->rate, h->mask);
        return h->mask + ahead;
}

/* scores = q k^T for n queries from i on, `seen` positions of them. */
static void attention_scores(
        const struct mfl_attention *v, const struct head *h, int64_t i, int64_t n, int64_t seen)
{
        int64_t step = 3 * v->width, size = v->width / v->heads;
        struct mfl_gemm g = {.m = n,
                .n = seen,
                .k = size,
                .a = h->q + i * step,
                .a_i = step,
                .a_k = 1,
                .c = h->scores,
                .ldc = v->positions};
        gemm_packed(&g, h->keys, size, 0, h->product);
        /* Before the scale, which leaves a masked key out as well. */
        for (int64_t r = 0; h->mask_of_keys && r < n; r++)
                for (int64_t k = 0; k < seen; k++)
                        h->scores[r * v->positions + k] += h->mask_of_keys[k];
}

static void head_forward(const struct mfl_attention *v, const struct head *h)
{
        int64_t t = v->positions, size = v->width / v->heads, step = 3 * v->width;
        float scale = 1.0f / sqrtf((float)size);
        gemm_pack(size, t, h->k, 1, step, h->keys);
        gemm_pack(t, size, h->v, step, 1, h->values);
        for (int64_t i = 0; i < t; i += MFL_ATTENTION_ROWS) {
                int64_t n = MFL_MIN(MFL_ATTENTION_ROWS, t - i), seen = seen_by(v, i + n - 1);
                attention_scores(v, h, i, n, seen);
                for (int64_t r = 0; r < n; r++) {
                        float *p = h->scores + r * t, *kept = h->kept + 2 * (i + r);
                        int64_t own = seen_by(v, i + r);
                        softmax_row(own, scale, p, p, &kept[0], &kept[1]);
                        for (int64_t k = own; k < seen; k++)
                                p[k] = 0.0f;
                }
                const float *mask = v->dropout ? attention_mask(v, h, i, n) : NULL;
                for (int64_t e = 0; mask && e < n * t; e += t)
                        multiply_range(h->scores + e, mask + e, h->scores + e, 0, seen);
                struct mfl_gemm g = {.m = n,
                        .n = size,
                        .k = seen,
                        .a = h->scores,
                        .a_i = t,
                        .a_k = 1,
                        .c = h->y + i * v->width,
                        .ldc = v->width};
                gemm_packed(&g, h->values, t, 0, h->product);
        }
}

static void attention_forward(const struct mfl_attention *v, int64_t begin, int64_t end, float *work)
{
        for (int64_t pair = begin; pair < end; pair++) {
                struct head h = head_of(v, pair, work);
                head_forward(v, &h);
        }
}

/* One query: computes the gradient of the scores, in `grads`, from the scores and the gradient of the weights
 * after softmax and dropout; `dropped` is what the values were weighted with. */
static void query_backward(const struct mfl_attention *v, int64_t own, int64_t seen, float scale,
        const float *kept, const float *mask, const float *restrict scores, float *restrict dropped,
        float *restrict grads)
{
        float max = kept[0], inverse = kept[1];
        for (int64_t k = 0; k < own; k++)
                dropped[k] = exp_unmasked(scores[k] * scale - max) * inverse;
        if (mask)
                multiply_range(grads, mask, grads, 0, own);
        float along = dot_of(dropped, grads, own);
        for (int64_t k = 0; k < own; k++)
                grads[k] = dropped[k] * (grads[k] - along) * scale;
        if (mask)
                multiply_range(dropped, mask, dropped, 0, own);
        for (int64_t k = own; k < seen; k++)
                dropped[k] = grads[k] = 0.0f;
}

/* to[j] += sum over the block's n queries of weights[i][j] * from[i] */
static void gather_back(const struct mfl_attention *v, const struct head *h, const float *weights, int64_t n,
        int64_t seen, const float *from, int64_t step, float *to)
{
        struct mfl_gemm g = {.m = seen,
                .n = v->width / v->heads,
                .k = n,
                .a = weights,
                .a_i = 1,
                .a_k = v->positions,
                .b = from,
                .b_k = step,
                .b_j = 1,
                .c = to,
                .ldc = 3 * v->width,
                .add = true};
        gemm(&g, h->product);
}

static void block_backward(const struct mfl_attention *v, const struct head *h, int64_t i, int64_t n)
{
        int64_t t = v->positions, size = v->width / v->heads, step = 3 * v->width;
        int64_t seen = seen_by(v, i + n - 1);
        float scale = 1.0f / sqrtf((float)size);
        const float *mask = v->dropout ? attention_mask(v, h, i, n) : NULL;
        struct mfl_gemm of_weights = {.m = n,
                .n = seen,
                .k = size,
                .a = h->dy + i * v->width,
                .a_i = v->width,
                .a_k = 1,
                .c = h->grads,
                .ldc = t};
        struct mfl_gemm of_queries = {.m = n,
                .n = size,
                .k = seen,
                .a = h->grads,
                .a_i = t,
                .a_k = 1,
                .c = h->dq + i * step,
                .ldc = step};
        attention_scores(v, h, i, n, seen);
        gemm_packed(&of_weights, h->values, size, 0, h->product);
        for (int64_t r = 0; r < n; r++)
                query_backward(v, seen_by(v, i + r), seen, scale, h->kept + 2 * (i + r),
                        mask ? mask + r * t : NULL, h->scores + r * t, h->dropped + r * t, h->grads + r * t);
        gather_back(v, h, h->dropped, n, seen, h->dy + i * v->width, v->width, h->dv);
        gather_back(v, h, h->grads, n, seen, h->q + i * step, step, h->dk);
        gemm_packed(&of_queries, h->rows, t, 0, h->product);
}

static void attention_backward(const struct mfl_attention *v, int64_t begin, int64_t end, float *work)
{
        int64_t t = v->positions, size = v->width / v->heads, step = 3 * v->width;
        for (int64_t pair = begin; pair < end; pair++) {
                struct head h = head_of(v, pair, work);
                gemm_pack(size, t, h.k, 1, step, h.keys);
                gemm_pack(size, t, h.v, 1, step, h.values);
                gemm_pack(t, size, h.k, step, 1, h.rows);
                for (int64_t i = 0; i < t; i++) {
                        memset(h.dk + i * step, 0, (size_t)size * sizeof(float));
                        memset(h.dv + i * step, 0, (size_t)size * sizeof(float));
                }
                for (int64_t i = 0; i < t; i += MFL_ATTENTION_ROWS)
                        block_backward(v, &h, i, MFL_MIN(MFL_ATTENTION_ROWS, t - i));
        }
}
