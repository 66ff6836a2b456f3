/* SPDX-License-Identifier: Apache-2.0 */
/* When each tensor of a step is needed, and a first-fit placement of them in one arena. */
#include <limits.h>

#include "kernels/plan_internal.h"

static int find_root(const struct mfl_plan_need *needs, int i)
{
        while (needs[i].alias >= 0)
                i = needs[i].alias;
        return i;
}

int mfl_plan_draft_init(struct mfl_plan_draft *draft, struct mfl_error *err)
{
        size_t n = (size_t)draft->graph->n_layers;
        draft->root = mfl_calloc(n, sizeof *draft->root);
        draft->kept = mfl_calloc(n, sizeof *draft->kept);
        draft->time_again = mfl_calloc(2 * n, sizeof *draft->time_again);
        draft->spans = mfl_calloc(3 * n, sizeof *draft->spans);
        draft->order = mfl_calloc(3 * n, sizeof *draft->order);
        draft->change = mfl_calloc(3 * n + 2, sizeof *draft->change);
        if (!draft->root || !draft->kept || !draft->time_again || !draft->spans || !draft->order ||
                !draft->change)
                return mfl_fail_memory(err, 3 * n * sizeof *draft->spans, "plan of a network");
        draft->time_backward = draft->time_again + n;
        for (size_t i = 0; i < n; i++)
                draft->root[i] = find_root(draft->needs, (int)i);
        return 0;
}

void mfl_plan_draft_deinit(struct mfl_plan_draft *draft)
{
        free(draft->root);
        free(draft->kept);
        free(draft->time_again);
        free(draft->spans);
        free(draft->order);
        free(draft->change);
}

static bool has_backward(const struct mfl_plan *plan, int i)
{
        return plan->layers[i].live && plan->layers[i].wants_grad;
}

static int root_of_input(const struct mfl_plan_draft *draft, int i, int which)
{
        const struct mfl_layer *layer = &draft->graph->layers[i];
        int input = which ? layer->input2 : layer->input;
        return input < 0 ? -1 : draft->root[input];
}

static bool backward_reads(const struct mfl_plan_draft *draft, int i, int which)
{
        return which ? draft->needs[i].uses_input2 : draft->needs[i].uses_input;
}

/* The first layer of the segment that ends before layer `end`. */
static int segment_begin(const struct mfl_plan *plan, int end)
{
        int begin = end - 1;
        while (begin > 0 && plan->layers[begin - 1].segment == plan->layers[end - 1].segment)
                begin--;
        return begin;
}

/* Marks layer i as computed again, with all layers that share its memory. Returns whether that is new. */
static bool compute_again(struct mfl_plan_draft *draft, int i)
{
        struct mfl_plan_layer *layers = draft->plan->layers;
        if (layers[i].again || draft->root[i] == 0)
                return false;
        int n = draft->plan->n_layers;
        for (int j = draft->root[i]; j < n && layers[j].segment == layers[i].segment; j++)
                if (draft->root[j] == draft->root[i])
                        layers[j].again = true;
        return true;
}

/* Marks what the backward of layer i, or its second forward, needs computed again. */
static bool ask_again(struct mfl_plan_draft *draft, int i)
{
        const struct mfl_plan_layer *layers = draft->plan->layers;
        bool changed = draft->needs[i].aux_bytes && compute_again(draft, i);
        if (draft->needs[i].uses_output && !draft->kept[draft->root[i]])
                changed |= compute_again(draft, i);
        for (int k = 0; k < 2; k++) {
                int r = root_of_input(draft, i, k);
                if (r >= 0 && !draft->kept[r] && layers[r].segment == layers[i].segment &&
                        (backward_reads(draft, i, k) || layers[i].again))
                        changed |= compute_again(draft, r);
        }
        return changed;
}

/* From the last segment to the first, since what a later one needs is kept, and what has no backward is not
 * computed again. Where a layer's memory is older than the layer, a pass over a segment may ask for more than
 * the pass before. */
static void find_again(struct mfl_plan_draft *draft)
{
        int n = draft->plan->n_layers, last = draft->plan->n_segments - 1;
        struct mfl_plan_layer *layers = draft->plan->layers;
        for (int i = 0; i < n; i++) {
                layers[i].again = false;
                draft->kept[i] = draft->root[i] == 0 || layers[i].segment == last || !layers[i].wants_grad;
        }
        for (int end = n, begin; end > 0; end = begin) {
                begin = segment_begin(draft->plan, end);
                for (bool changed = layers[begin].segment < last; changed;) {
                        changed = false;
                        for (int i = end - 1; i >= MFL_MAX(begin, 1); i--)
                                changed |= has_backward(draft->plan, i) && ask_again(draft, i);
                }
                for (int i = MFL_MAX(begin, 1); i < end; i++)
                        for (int k = 0; k < 2; k++) {
                                int r = root_of_input(draft, i, k);
                                if (r >= 0 && r < begin && has_backward(draft->plan, i) &&
                                        (backward_reads(draft, i, k) || layers[i].again))
                                        draft->kept[r] = true;
                        }
        }
}

/* The steps behind the loss, and their times. */
static void schedule_backward(struct mfl_plan_draft *draft)
{
        struct mfl_plan *plan = draft->plan;
        int n = plan->n_layers, at = 0;
        for (int i = 0; i < n; i++)
                draft->time_again[i] = -1;
        for (int end = n, begin; end > 0; end = begin) {
                begin = segment_begin(plan, end);
                for (int i = MFL_MAX(begin, 1); i < end; i++) {
                        if (!plan->layers[i].again || !plan->layers[i].live)
                                continue;
                        draft->time_again[i] = n + 1 + at;
                        plan->backward[at++] = (struct mfl_plan_step){i, true};
                }
                for (int i = end - 1; i >= MFL_MAX(begin, 1); i--) {
                        if (!has_backward(plan, i))
                                continue;
                        draft->time_backward[i] = n + 1 + at;
                        plan->backward[at++] = (struct mfl_plan_step){i, false};
                }
        }
        draft->time_backward[0] = n + 1 + at; /* the input's gradient is read there */
        plan->n_backward = at;
}

static void extend(struct mfl_plan_span *span, int which, int time)
{
        span->use[which].first = MFL_MIN(span->use[which].first, time);
        span->use[which].last = MFL_MAX(span->use[which].last, time);
}

/* An activation that is not kept exists twice. */
static void use_act(struct mfl_plan_draft *draft, int root, int time)
{
        bool second = draft->training && !draft->kept[root] && time > draft->plan->n_layers;
        extend(&draft->spans[root], second, time);
}

/* What layer i reads and, in backward, gives gradients to. */
static void use_inputs(struct mfl_plan_draft *draft, int i)
{
        int n = draft->plan->n_layers;
        for (int k = 0; k < 2; k++) {
                int r = root_of_input(draft, i, k);
                if (r < 0)
                        continue;
                use_act(draft, r, i);
                if (!draft->training || !draft->plan->layers[i].wants_grad)
                        continue;
                if (draft->time_again[i] >= 0)
                        use_act(draft, r, draft->time_again[i]);
                if (backward_reads(draft, i, k))
                        use_act(draft, r, draft->time_backward[i]);
                if (draft->plan->layers[r].wants_grad)
                        extend(&draft->spans[n + r], 0, draft->time_backward[i]);
        }
}

static void use_own(struct mfl_plan_draft *draft, int i)
{
        int n = draft->plan->n_layers, r = draft->root[i], again = draft->time_again[i],
            backward = draft->time_backward[i];
        const struct mfl_plan_need *need = &draft->needs[i];
        struct mfl_plan_span *grad = &draft->spans[n + r], *aux = &draft->spans[2 * n + i];
        draft->spans[r].bytes = MFL_MAX(draft->spans[r].bytes, need->act_bytes);
        aux->bytes = need->aux_bytes;
        use_act(draft, r, i);
        if (i == n - 1)
                use_act(draft, r, n);
        extend(aux, 0, i);
        if (!draft->training)
                return;
        if (i == n - 1 || draft->plan->layers[i].wants_grad)
                grad->bytes = MFL_MAX(grad->bytes, need->act_bytes);
        if (i == n - 1) /* the loss gives it */
                extend(grad, 0, n);
        if (!draft->plan->layers[i].wants_grad)
                return;
        if (again >= 0)
                use_act(draft, r, again);
        if (need->uses_output)
                use_act(draft, r, backward);
        extend(grad, 0, backward);
        extend(aux, again >= 0, again >= 0 ? again : backward);
        extend(aux, again >= 0, backward);
}

void mfl_plan_live(struct mfl_plan_draft *draft)
{
        int n = draft->plan->n_layers;
        for (int i = 0; i < 3 * n; i++)
                draft->spans[i] = (struct mfl_plan_span){.use = {{INT_MAX, -1}, {INT_MAX, -1}}};
        if (draft->training) {
                find_again(draft);
                schedule_backward(draft);
        }
        for (int i = 0; i < n; i++) {
                if (!draft->plan->layers[i].live)
                        continue;
                use_own(draft, i);
                use_inputs(draft, i);
        }
        for (int i = 0; i < 3 * n; i++)
                draft->spans[i].bytes =
                        (draft->spans[i].bytes + MFL_PLAN_ALIGN - 1) / MFL_PLAN_ALIGN * MFL_PLAN_ALIGN;
}

uint64_t mfl_plan_peak(struct mfl_plan_draft *draft)
{
        int n = draft->plan->n_layers, n_times = 3 * n + 1;
        int64_t now = 0, most = 0;
        memset(draft->change, 0, ((size_t)n_times + 1) * sizeof *draft->change);
        for (int i = 0; i < 3 * n; i++)
                for (int k = 0; k < 2; k++) {
                        const struct mfl_plan_span *span = &draft->spans[i];
                        if (span->use[k].last < 0)
                                continue;
                        draft->change[span->use[k].first] += (int64_t)span->bytes;
                        draft->change[span->use[k].last + 1] -= (int64_t)span->bytes;
                }
        for (int t = 0; t <= n_times; t++) {
                now += draft->change[t];
                most = MFL_MAX(most, now);
        }
        return (uint64_t)most;
}

static bool together(const struct mfl_plan_span *a, const struct mfl_plan_span *b)
{
        for (int k = 0; k < 4; k++)
                if (a->use[k / 2].first <= b->use[k % 2].last && b->use[k % 2].first <= a->use[k / 2].last)
                        return true;
        return false;
}

/* Puts a span at the lowest offset that is free of earlier spans alive at the same time. */
static uint64_t place(struct mfl_plan_span *const *placed, int n_placed, struct mfl_plan_span *span)
{
        uint64_t at = 0;
        for (bool moved = true; moved;) {
                moved = false;
                for (int i = 0; i < n_placed; i++) {
                        const struct mfl_plan_span *other = placed[i];
                        if (other->offset < at + span->bytes && at < other->offset + other->bytes &&
                                together(other, span)) {
                                at = other->offset + other->bytes;
                                moved = true;
                        }
                }
        }
        span->offset = at;
        return at + span->bytes;
}

static int compare_spans(const void *a, const void *b)
{
        const struct mfl_plan_span *x = *(struct mfl_plan_span *const *)a,
                                   *y = *(struct mfl_plan_span *const *)b;
        if (x->bytes != y->bytes)
                return x->bytes < y->bytes ? 1 : -1;
        return x < y ? -1 : x > y;
}

void mfl_plan_place(struct mfl_plan_draft *draft)
{
        struct mfl_plan *plan = draft->plan;
        int n = plan->n_layers, n_order = 0;
        for (int i = 0; i < 3 * n; i++)
                if (draft->spans[i].bytes)
                        draft->order[n_order++] = &draft->spans[i];
        qsort(draft->order, (size_t)n_order, sizeof(struct mfl_plan_span *), compare_spans);
        for (int i = 0; i < n_order; i++) {
                uint64_t end = place(draft->order, i, draft->order[i]);
                plan->arena_bytes = MFL_MAX(plan->arena_bytes, end);
        }
        for (int i = 0; i < n; i++) {
                int r = draft->root[i];
                plan->layers[i].act = draft->spans[r].offset;
                plan->layers[i].grad = draft->spans[n + r].offset;
                plan->layers[i].aux = draft->spans[2 * n + i].offset;
        }
}
