/* SPDX-License-Identifier: Apache-2.0 */
/* What all operators of a pass share. */
#include "kernels/cpu/pass.h"

#include <math.h>

#define GEMM_ALONE 200000 /* multiplications: fewer take less time than waking another thread */

const float *mfl_cpu_plain(const struct mfl_net *net, int i, int which)
{
        const struct mfl_layout *l = &net->layers[i].layout;
        if (l->identity)
                return mfl_cpu_act(net, i);
        mfl_layout_to_plain(l, net->rows, mfl_cpu_act(net, i), net->plain[which]);
        return net->plain[which];
}

/* Whether the step is taken where a dense layer's gradient is computed. */
static bool is_fused(const struct pass *pass)
{
        return pass->opt && pass->opt->kind == MFL_OPTIMIZER_SGD;
}

struct mfl_apply mfl_cpu_apply(const struct pass *pass, int param)
{
        struct mfl_net *net = pass->net;
        uint64_t at = net->wide[param].at, group = net->n_wide * (uint64_t)pass->group;
        /* Loops go along both moments; Adagrad uses one for both. */
        float *v = net->second ? net->second + group + at : NULL;
        return (struct mfl_apply){.opt = pass->opt,
                .lr = pass->rate.lr,
                .rate = pass->rate,
                .grad = is_fused(pass) ? NULL : pass->grads + net->wide[param].grad,
                .p = net->params + group + at,
                .m = net->momentum ? net->momentum + group + at : v,
                .v = v,
                .p0 = net->options.worker ? NULL : mfl_cpu_first(net, pass->group) + at};
}

void mfl_cpu_take_grad(const struct pass *pass, int i, int param)
{
        const struct mfl_net *net = pass->net;
        if (!mfl_cpu_is_trained(net->graph, param))
                return;
        float *grad = pass->grads + net->wide[param].grad;
        if (mfl_cpu_adds_grad(pass, i, param))
                net->device->loops->add((int64_t)net->wide[param].count, grad,
                        net->extra + net->wide[param].extra, false, grad, net->options.threads);
        if (net->graph->params[param].layer == i)
                mfl_cpu_step_tensor(pass, param);
}

bool mfl_cpu_aim(const struct pass *pass, int param, struct mfl_apply *apply)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_cpu_param *wide = &net->wide[param];
        const struct mfl_grad_sink *sink = pass->sink;
        uint64_t n = wide->count;
        if (!sink || net->options.threads > 1 || (sink->floats && !sink->first) ||
                !mfl_cpu_is_trained(net->graph, param))
                return false;
        void *to = sink->place(sink->user, wide->at, &n);
        if (!to || n < wide->count)
                return false;
        apply->grad = sink->floats ? to : NULL;
        apply->sum = sink->floats ? NULL : to;
        apply->factor = sink->floats ? 0 : ldexp(1.0, sink->bits[wide->tensor]);
        apply->first = sink->first;
        apply->largest = sink->floats ? NULL : &sink->largest[wide->tensor];
        return true;
}

void mfl_cpu_tell_ready(const struct pass *pass, int param)
{
        if (pass->sink->ready)
                pass->sink->ready(pass->sink->user, pass->net->wide[param].tensor);
}

void mfl_cpu_give(const struct pass *pass, int param, uint64_t first, uint64_t end)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_cpu_param *wide = &net->wide[param];
        const struct mfl_grad_sink *sink = pass->sink;
        const struct mfl_loops *loops = net->device->loops;
        const float *g = pass->grads + wide->grad + (first - wide->at);
        for (uint64_t at = first, n; at < end; at += n, g += n) {
                n = end - at;
                void *to = sink->place(sink->user, at, &n);
                if (!to)
                        return;
                if (!sink->floats) {
                        float largest = loops->round_add(
                                (int64_t)n, g, ldexp(1.0, sink->bits[wide->tensor]), sink->first, to);
                        sink->largest[wide->tensor] = MFL_MAX(sink->largest[wide->tensor], largest);
                } else if (sink->first)
                        memcpy(to, g, (size_t)n * sizeof *g);
                else
                        loops->add((int64_t)n, to, g, false, to, net->options.threads);
        }
}

void mfl_cpu_step_tensor(const struct pass *pass, int param)
{
        const struct mfl_net *net = pass->net;
        if (!mfl_cpu_is_trained(net->graph, param))
                return;
        if (pass->sink) {
                mfl_cpu_give(pass, param, net->wide[param].at, net->wide[param].at + net->wide[param].count);
                mfl_cpu_tell_ready(pass, param);
        }
        if (!pass->opt)
                return;
        struct mfl_apply apply = mfl_cpu_apply(pass, param);
        apply.grad = NULL;
        net->device->loops->update((int64_t)net->wide[param].count, pass->grads + net->wide[param].grad,
                &apply, net->options.threads);
}

void mfl_cpu_gemm(const struct mfl_net *net, const struct mfl_gemm *g)
{
        const struct mfl_loops *loops = net->device->loops;
        int threads = net->options.threads;
        bool by_rows = g->m >= g->n;
        if (threads == 1 || g->m * g->n * g->k < GEMM_ALONE) {
                loops->products.gemm(g, net->work);
                return;
        }
        int64_t total = by_rows ? g->m : g->n, part = (total + threads - 1) / threads;
        part = (part + MFL_GEMM_HEIGHT - 1) / MFL_GEMM_HEIGHT * MFL_GEMM_HEIGHT;
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int t = 0; t < threads; t++) {
                int64_t begin = MFL_MIN(t * part, total), end = MFL_MIN(begin + part, total);
                struct mfl_gemm own = *g;
                own.a += by_rows ? begin * g->a_i : 0;
                own.b += by_rows ? 0 : begin * g->b_j;
                own.bias += by_rows || !g->bias ? 0 : begin;
                own.c += by_rows ? begin * g->ldc : begin;
                own.m = by_rows ? end - begin : g->m;
                own.n = by_rows ? g->n : end - begin;
                if (begin < end)
                        loops->products.gemm(&own, mfl_cpu_work(net, t));
        }
}
