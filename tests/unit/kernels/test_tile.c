/* SPDX-License-Identifier: Apache-2.0 */
/* Products and convolutions on tiles: random shapes beside plain loops in double over the same rounded operands, on loops in the tiles'
 * place, and on the processor's own tiles where it has them. Working memory holds NaNs before, so that nothing is
 * read that was not written, and what is behind it stays as it is. */
#include <math.h>

#include "kernels/cpu/loops/loops.h"
#include "tests/lib/test.h"

#define TRIALS 120
#define GUARD 256 /* bytes */

static uint64_t state;

/* A number of [0, n). */
static int64_t draw(int64_t n)
{
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (int64_t)(state >> 33) % n;
}

static float *numbers(int64_t n)
{
        float *x = malloc((size_t)(n + 1) * sizeof *x);
        assert_non_null(x);
        for (int64_t i = 0; i < n; i++)
                x[i] = (float)(draw(2001) - 1000) * 0.00137f;
        return x;
}

static double rounded(float f)
{
        uint32_t bits = mfl_bf16_bits(f);
        memcpy(&f, &bits, sizeof f);
        return f;
}

struct work {
        char *bytes;
        size_t n;
};

static struct work work_new(size_t n)
{
        struct work w = {malloc(n + GUARD), n};
        assert_non_null(w.bytes);
        memset(w.bytes, 0xff, n);
        memset(w.bytes + n, 0x5a, GUARD);
        return w;
}

static void work_free(struct work *w)
{
        for (size_t i = 0; i < GUARD; i++)
                assert_int_equal(w->bytes[w->n + i], 0x5a);
        free(w->bytes);
}

static void near(double got, double wanted, double size)
{
        if (!(fabs(got - wanted) <= 1e-5 * (size + 1)))
                fail_msg("%.9g in place of %.9g", got, wanted);
}

struct trial {
        struct mfl_tile_conv v;
        float *x, *w, *bias, *dy;
};

static struct mfl_layout a_layout(int64_t c, int64_t h, int64_t w)
{
        static const dnnl_format_tag_t tags[] = {
                dnnl_nChw16c, dnnl_nChw16c, dnnl_nchw, dnnl_nhwc, dnnl_nChw8c};
        const struct mfl_shape shape = {.rank = 3, .dim = {c, h, w}};
        return mfl_layout_of(&shape, tags[draw(5)]);
}

static struct trial trial_new(void)
{
        struct trial t = {0};
        struct mfl_window g = {.groups = 1, .c = 1 + draw(draw(3) ? 40 : 70), .o = 1 + draw(40), .d = {1, 1}};
        g.s[0] = g.s[1] = 1 + draw(3);
        g.k[0] = 1 + draw(5);
        g.k[1] = 1 + draw(5);
        for (int a = 0; a < 2; a++) {
                g.p[a] = draw(g.k[a]);
                int64_t side = MFL_MAX(g.k[a] - 2 * g.p[a], 1) + draw(20);
                *(a ? &g.w : &g.h) = side;
                *(a ? &g.ow : &g.oh) = (side + 2 * g.p[a] - g.k[a]) / g.s[a] + 1;
        }
        t.v = (struct mfl_tile_conv){.window = g,
                .in = a_layout(g.c, g.h, g.w),
                .out = a_layout(g.o, g.oh, g.ow),
                .rows = 1 + draw(5),
                .threads = 1 + (int)draw(3),
                .relu = draw(2)};
        t.x = numbers(t.v.rows * t.v.in.count);
        t.dy = numbers(t.v.rows * t.v.out.count);
        mfl_layout_clear_padding(&t.v.in, t.v.rows, t.x);
        mfl_layout_clear_padding(&t.v.out, t.v.rows, t.dy);
        t.w = numbers(g.o * g.c * g.k[0] * g.k[1]);
        t.bias = draw(2) ? numbers(g.o) : NULL;
        return t;
}

static void trial_free(struct trial *t)
{
        free(t->x);
        free(t->dy);
        free(t->w);
        free(t->bias);
}

/* Calls `tap` for each product of the convolution: x index, w index, y index. */
#define FOR_TAPS(t, body)                                                                                    \
        for (int64_t n = 0; n < (t)->v.rows; n++)                                                            \
                for (int64_t o = 0; o < g->o; o++)                                                           \
                        for (int64_t i = 0; i < g->oh; i++)                                                  \
                                for (int64_t j = 0; j < g->ow; j++)                                          \
                                        for (int64_t c = 0; c < g->c; c++)                                   \
                                                for (int64_t r = 0; r < g->k[0]; r++)                        \
                                                        for (int64_t s = 0; s < g->k[1]; s++) {              \
                                                                int64_t h = i * g->s[0] + r - g->p[0];       \
                                                                int64_t w = j * g->s[1] + s - g->p[1];       \
                                                                if (h < 0 || h >= g->h || w < 0 ||           \
                                                                        w >= g->w)                           \
                                                                        continue;                            \
                                                                int64_t at_x =                               \
                                                                        ((n * g->c + c) * g->h + h) * g->w + \
                                                                        w;                                   \
                                                                int64_t at_w =                               \
                                                                        ((o * g->c + c) * g->k[0] + r) *     \
                                                                                g->k[1] +                    \
                                                                        s;                                   \
                                                                int64_t at_y =                               \
                                                                        ((n * g->o + o) * g->oh + i) *       \
                                                                                g->ow +                      \
                                                                        j;                                   \
                                                                body;                                        \
                                                        }

/* What plain loops make of a trial, in NCHW and OIHW. */
struct truth {
        double *y, *dx, *dw;
};

static struct truth truth_of(const struct trial *t)
{
        const struct mfl_window *g = &t->v.window;
        const int64_t in = g->c * g->h * g->w, out = g->o * g->oh * g->ow;
        const size_t n_w = (size_t)(g->o * g->c * g->k[0] * g->k[1]);
        struct truth of = {calloc((size_t)(t->v.rows * out), sizeof(double)),
                calloc((size_t)(t->v.rows * in), sizeof(double)), calloc(n_w, sizeof(double))};
        float *x = numbers(t->v.rows * in), *dy = numbers(t->v.rows * out);
        mfl_layout_to_plain(&t->v.in, t->v.rows, t->x, x);
        mfl_layout_to_plain(&t->v.out, t->v.rows, t->dy, dy);
        FOR_TAPS(t, {
                of.y[at_y] += rounded(x[at_x]) * rounded(t->w[at_w]);
                of.dx[at_x] += rounded(dy[at_y]) * rounded(t->w[at_w]);
                of.dw[at_w] += rounded(x[at_x]) * rounded(dy[at_y]);
        })
        for (int64_t i = 0; i < t->v.rows * out; i++) {
                of.y[i] += t->bias ? (double)t->bias[i / (g->oh * g->ow) % g->o] : 0.0;
                of.y[i] = t->v.relu ? fmax(of.y[i], 0.0) : of.y[i];
        }
        free(x);
        free(dy);
        return of;
}

static void is_near(const struct mfl_layout *l, int64_t rows, const float *got, const double *wanted)
{
        float *plain = numbers(rows * l->logical), *kept = numbers(rows * l->count);
        memcpy(kept, got, (size_t)(rows * l->count) * sizeof *got);
        mfl_layout_clear_padding(l, rows, kept);
        assert_memory_equal(
                kept, got, (size_t)(rows * l->count) * sizeof *got); /* lanes past the channels are 0 */
        mfl_layout_to_plain(l, rows, got, plain);
        for (int64_t i = 0; i < rows * l->logical; i++)
                near(plain[i], wanted[i], 20);
        free(plain);
        free(kept);
}

static void try_convolution(const struct mfl_products *products, struct trial *t)
{
        const struct mfl_window *g = &t->v.window;
        const int64_t n_w = g->o * g->c * g->k[0] * g->k[1];
        struct truth of = truth_of(t);
        struct work work = work_new(products->tile_work(&t->v, true));
        float *y = numbers(t->v.rows * t->v.out.count), *dx = numbers(t->v.rows * t->v.in.count),
              *dw = numbers(n_w), *dbias = numbers(g->o);
        t->v.work = work.bytes;
        products->tile_forward(&t->v, t->x, t->w, t->bias, y);
        is_near(&t->v.out, t->v.rows, y, of.y);
        memset(work.bytes, 0xff, work.n);
        products->tile_data(&t->v, t->w, t->dy, dx);
        is_near(&t->v.in, t->v.rows, dx, of.dx);
        memset(work.bytes, 0xff, work.n);
        products->tile_gradient(&t->v, t->x, t->dy, dw, dbias);
        for (int64_t i = 0; i < n_w; i++)
                near(dw[i], of.dw[i], 100);
        for (int64_t o = 0; o < g->o; o++) {
                double sum = 0;
                for (int64_t i = 0; i < t->v.rows * g->oh * g->ow; i++) {
                        int64_t n = i / (g->oh * g->ow), k = o * g->oh * g->ow + i % (g->oh * g->ow);
                        sum += (double)t->dy[n * t->v.out.count + mfl_layout_at(&t->v.out, k)];
                }
                near(dbias[o], sum, 100);
        }
        /* One sample alone has the bits that it has beside others. */
        float *alone = numbers(t->v.out.count);
        struct mfl_tile_conv one = t->v;
        one.rows = one.threads = 1;
        one.threads = t->v.threads; /* inference makes a convolution for one sample */
        assert_true(products->tile_work(&one, false) >= products->tile_work(&t->v, false));
        one.threads = 1;
        products->tile_forward(&one, t->x + (t->v.rows - 1) * t->v.in.count, t->w, t->bias, alone);
        assert_memory_equal(alone, y + (t->v.rows - 1) * t->v.out.count, (size_t)t->v.out.count * sizeof *y);
        free(alone);
        work_free(&work);
        free(y);
        free(dx);
        free(dw);
        free(dbias);
        free(of.y);
        free(of.dx);
        free(of.dw);
}

static void try_product(const struct mfl_products *products)
{
        const int64_t m = 1 + draw(130), n = 1 + draw(100), k = 1 + draw(draw(4) ? 90 : 600);
        const int64_t a_i = draw(2) ? k + draw(3) : 1, a_k = a_i == 1 ? m + draw(3) : 1;
        const int64_t b_k = draw(2) ? n + draw(3) : 1, b_j = b_k == 1 ? k + draw(3) : 1, ldc = n + draw(20);
        float *a = numbers(m * k + 3 * (m + k)), *b = numbers(n * k + 3 * (n + k)), *c = numbers(m * ldc),
              *bias = numbers(n);
        float *before = numbers(m * ldc), *packed = numbers(mfl_gemm_packed_floats(k, n)),
              *again = numbers(m * ldc);
        struct work work = work_new(MFL_GEMM_WORK * sizeof(float));
        struct mfl_gemm g = {.m = m,
                .n = n,
                .k = k,
                .a = a,
                .a_i = a_i,
                .a_k = a_k,
                .b = b,
                .b_k = b_k,
                .b_j = b_j,
                .c = c,
                .ldc = ldc,
                .bias = draw(2) ? bias : NULL,
                .add = draw(2)};
        memcpy(before, c, (size_t)(m * ldc) * sizeof *c);
        memcpy(again, c, (size_t)(m * ldc) * sizeof *c);
        products->gemm(&g, (float *)work.bytes);
        products->gemm_pack(k, n, b, b_k, b_j, packed);
        g.c = again;
        products->gemm_packed(&g, packed, k, 0, (float *)work.bytes);
        assert_memory_equal(again, c, (size_t)(m * ldc) * sizeof *c);
        for (int64_t i = 0; i < m; i++)
                for (int64_t j = 0; j < ldc; j++) {
                        double sum = j >= n || g.add ? (double)before[i * ldc + j] : 0.0;
                        for (int64_t e = 0; j < n && e < k; e++)
                                sum += rounded(a[i * a_i + e * a_k]) * rounded(b[e * b_k + j * b_j]);
                        near(c[i * ldc + j], sum + (j < n && g.bias ? (double)bias[j] : 0.0), 100);
                }
        work_free(&work);
        float *const all[] = {a, b, c, bias, before, packed, again};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(all); i++)
                free(all[i]);
}

static void try_all(const struct mfl_products *products)
{
        for (state = 1; state <= TRIALS; state++) {
                uint64_t seed = state;
                struct trial t = trial_new();
                try_convolution(products, &t);
                trial_free(&t);
                try_product(products);
                state = seed;
        }
}

static void test_loops_in_place_of_tiles(void **unused)
{
        try_all(&mfl_products_base_tile);
}

static void test_tiles_of_the_processor(void **unused)
{
#if defined(__x86_64__)
        if (mfl_cpu_bf16_choose() == MFL_CPU_BF16_TILES) {
                try_all(&mfl_products_amx_bf16);
                return;
        }
#endif
        print_message("skipped: this processor has no amx_bf16\n");
        skip();
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(test_loops_in_place_of_tiles),
                cmocka_unit_test(test_tiles_of_the_processor)};
        return cmocka_run_group_tests(tests, NULL, NULL);
}
