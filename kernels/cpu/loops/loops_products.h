/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of a dense layer's weights by the operands that grains left; part of loops_body.h. All grains' elements are rounded and
 * added while they lie in the first caches, so that a sum never goes to memory. An element's sum over the rows has one order, whatever tile it is in: the
 * bits are those of dense_backward. */

/* Outputs [o, last) of the panel at column k, of which elements [skip, skip + n) of the block are wanted. */
static void product_block(const struct mfl_dense *d, const struct mfl_dense_products *v, int64_t k, int64_t o,
        int64_t last, int64_t skip, int64_t n, float *out)
{
        _Alignas(64) float grads[BACKWARD_OUTS * MFL_DENSE_PANEL];
        _Alignas(64) int64_t sums[BACKWARD_OUTS * MFL_DENSE_PANEL];
        const struct mfl_apply to = {.grad = grads, .p = grads};
        const int64_t width = panel_width(d, k);
        for (int64_t g = 0; g < v->n_grains; g++) {
                const float *x = v->operands + g * v->stride, *dy = x + d->rows * d->n_in;
                weights_panel(d, dy, x + k, &to, -o * width, width, o, last);
                if (v->factor == 0)
                        continue;
                float largest = round_add(n, grads + skip, v->factor, !g, sums);
                *v->largest = MFL_MAX(*v->largest, largest);
        }
        if (v->factor == 0)
                memcpy(out, grads + skip, (size_t)n * sizeof *out);
        else
                unround(n, sums, v->inverse, out);
}

static void dense_products(const struct mfl_dense *d, const struct mfl_dense_products *v)
{
        float *out = v->out;
        for (int64_t at = v->first, end; at < v->end; out += end - at, at = end) {
                int64_t k = at / (MFL_DENSE_PANEL * d->n_out) * MFL_DENSE_PANEL, width = panel_width(d, k),
                        panel = k * d->n_out, o = (at - panel) / width,
                        last = MFL_MIN(o + BACKWARD_OUTS, d->n_out);
                end = MFL_MIN(panel + last * width, v->end);
                product_block(d, v, k, o, last, at - panel - o * width, end - at, out);
        }
}
