/* SPDX-License-Identifier: Apache-2.0 */
/* Where the graph of a training step is cut into segments (Chen et al. 2016, section 4.2).
 *
 * A cut costs the bytes that are made before it and read after it, which are kept. A segment costs the bytes
 * that its layers make, which all exist while its backward runs. For a given bound on a segment's bytes,
 * dynamic programming over the possible places finds the cuts that the fewest bytes cross. The bound falls
 * from the whole graph's bytes in steps of a sixteenth; of the cuts found this way, the ones whose step has
 * the lowest peak are taken. Bytes that cross several cuts are counted at each of them, which makes cuts
 * within a skip connection look more expensive than they are; the peak is exact. */
#include "kernels/plan_internal.h"

#define BOUNDS_MAX 64
#define PASSES_MAX 16
#define FAR UINT64_MAX
#define WORTH 0.98 /* auto takes more segments only if the peak falls below this share of the peak before */

struct cutter {
        struct mfl_plan_draft *draft;
        int n_places;
        int *place;      /* n + 1: first 0, then the layers before which a cut may be; n at n_places */
        uint64_t *bytes; /* n + 1: that the layers before the place make, by place */
        uint64_t *cross; /* n + 1: that cross a cut there; 0 at the ends */
        /* By number of segments and place: the fewest bytes that cross, and where the last segment begins. */
        uint64_t (*cost)[MFL_LAYERS_MAX + 1];
        int16_t (*from)[MFL_LAYERS_MAX + 1];
        int n_best, best[MFL_SEGMENTS_MAX]; /* the best so far: number of segments, and where they begin */
};

static int cutter_init(
        struct cutter *c, struct mfl_plan_draft *draft, int segments_max, struct mfl_error *err)
{
        size_t n = (size_t)draft->graph->n_layers + 1, rows = (size_t)segments_max + 1;
        *c = (struct cutter){.draft = draft,
                .place = mfl_calloc(n, sizeof *c->place),
                .bytes = mfl_calloc(n, sizeof *c->bytes),
                .cross = mfl_calloc(n, sizeof *c->cross),
                .cost = mfl_calloc(rows, sizeof *c->cost),
                .from = mfl_calloc(rows, sizeof *c->from)};
        if (c->place && c->bytes && c->cross && c->cost && c->from)
                return 0;
        return mfl_fail_memory(err, rows * sizeof *c->cost, "plan of a network");
}

static void cutter_deinit(struct cutter *c)
{
        free(c->place);
        free(c->bytes);
        free(c->cross);
        free(c->cost);
        free(c->from);
}

/* The last layer whose output lies in root r's memory, and the last layer that reads it. */
static void find_ends(const struct mfl_plan_draft *draft, int r, int *ret_member, int *ret_reader)
{
        int member = r, reader = r;
        for (int i = r + 1; i < draft->graph->n_layers; i++) {
                const struct mfl_layer *layer = &draft->graph->layers[i];
                if (!draft->plan->layers[i].live)
                        continue;
                if (draft->root[i] == r)
                        member = i;
                if ((layer->input >= 0 && draft->root[layer->input] == r) ||
                        (layer->input2 >= 0 && draft->root[layer->input2] == r))
                        reader = i;
        }
        *ret_member = member;
        *ret_reader = reader;
}

/* Places, and what they cost. Layers that share memory are not separated. What comes before the first layer
 * with a backward, at least the input, stays with that layer. What has no backward costs nothing: wherever
 * cuts are, only what backward reads of it is kept. */
static void find_places(struct cutter *c)
{
        const struct mfl_plan_draft *draft = c->draft;
        int n = draft->graph->n_layers, n_places = 0;
        uint64_t sum = 0;
        for (int i = 0; i < n; i++) {
                const struct mfl_plan_need *need = &draft->needs[i];
                int member, reader;
                c->bytes[i] = sum;
                bool wants = draft->plan->layers[i].wants_grad;
                if (!draft->plan->layers[i].live)
                        continue;
                if (wants)
                        sum += need->aux_bytes + (draft->root[i] == i && i > 0 ? need->act_bytes : 0);
                if (draft->root[i] != i)
                        continue;
                find_ends(draft, i, &member, &reader);
                for (int at = i + 1; at <= reader; at++)
                        c->cross[at] = at <= member || c->cross[at] == FAR ? FAR
                                       : i == 0 || !wants                  ? c->cross[at]
                                                                           : c->cross[at] + need->act_bytes;
        }
        for (int i = 0; i < n; i++) {
                if ((i > 0 && !c->bytes[i]) || c->cross[i] == FAR)
                        continue;
                c->place[n_places] = i;
                c->bytes[n_places] = c->bytes[i];
                c->cross[n_places++] = c->cross[i];
        }
        c->place[n_places] = n;
        c->bytes[n_places] = sum;
        c->cross[n_places] = 0;
        c->n_places = n_places;
}

/* Fills cost and from for up to `segments` segments of at most `bound` bytes each. */
static void find_cuts(struct cutter *c, int segments, uint64_t bound)
{
        int n = c->n_places;
        for (int j = 0; j <= n; j++)
                c->cost[0][j] = j ? FAR : 0;
        for (int k = 1; k <= segments; k++) {
                c->cost[k][0] = FAR;
                for (int j = 1; j <= n; j++) {
                        c->cost[k][j] = FAR;
                        for (int i = j - 1; i >= 0 && c->bytes[j] - c->bytes[i] <= bound; i--) {
                                if (c->cost[k - 1][i] == FAR ||
                                        c->cost[k - 1][i] + c->cross[i] >= c->cost[k][j])
                                        continue;
                                c->cost[k][j] = c->cost[k - 1][i] + c->cross[i];
                                c->from[k][j] = (int16_t)i;
                        }
                }
        }
}

/* The peak of a step whose segments begin at these places. */
static uint64_t peak_of(struct cutter *c, const int *begin, int segments)
{
        struct mfl_plan *plan = c->draft->plan;
        plan->n_segments = segments;
        for (int k = 0; k < segments; k++) {
                int end = k + 1 < segments ? c->place[begin[k + 1]] : plan->n_layers;
                for (int i = c->place[begin[k]]; i < end; i++)
                        plan->layers[i].segment = k;
        }
        mfl_plan_live(c->draft);
        return mfl_plan_peak(c->draft);
}

/* How many segments cost least within the bound; 0: no number does. */
static int cheapest(const struct cutter *c, int least, int most)
{
        int best = 0;
        for (int k = least; k <= most; k++)
                if (c->cost[k][c->n_places] != FAR &&
                        (!best || c->cost[k][c->n_places] < c->cost[best][c->n_places]))
                        best = k;
        return best;
}

/* Finds cuts into `least` to `most` segments with a lower peak than `peak`, and puts them into c->best; where
 * there are none, one segment stays. Returns the peak. */
static uint64_t search(struct cutter *c, int least, int most, uint64_t peak)
{
        uint64_t whole = c->bytes[c->n_places], bound = whole;
        int begin[MFL_SEGMENTS_MAX];
        for (int t = 0; t < BOUNDS_MAX; t++, bound -= bound / 16) {
                /* At most twice as many as needed: a needless cut only costs. */
                int tried = bound ? (int)MFL_MIN((uint64_t)most, 2 * (whole / bound) + 2) : most;
                tried = MFL_MAX(tried, least);
                find_cuts(c, tried, bound);
                int k = cheapest(c, least, tried);
                if (!k)
                        break;
                for (int i = k, j = c->n_places; i > 0; i--)
                        j = begin[i - 1] = c->from[i][j];
                uint64_t got = peak_of(c, begin, k);
                if ((double)got > WORTH * (double)peak)
                        continue;
                peak = got;
                c->n_best = k;
                memcpy(c->best, begin, (size_t)k * sizeof *begin);
        }
        return peak;
}

/* Moves single cuts to the next place while that lowers the peak; bounds on bytes do not see this. */
static void refine(struct cutter *c, uint64_t peak)
{
        bool moved = true;
        for (int pass = 0; moved && pass < PASSES_MAX; pass++) {
                moved = false;
                for (int t = 2; t < 2 * c->n_best; t++) {
                        int k = t / 2, by = t % 2 ? 1 : -1, was = c->best[k];
                        int next = k + 1 < c->n_best ? c->best[k + 1] : c->n_places;
                        if (was + by <= c->best[k - 1] || was + by >= next)
                                continue;
                        c->best[k] = was + by;
                        uint64_t got = peak_of(c, c->best, c->n_best);
                        if (got < peak) {
                                peak = got;
                                moved = true;
                        } else {
                                c->best[k] = was;
                        }
                }
        }
}

int mfl_plan_cut(struct mfl_plan_draft *draft, int segments, struct mfl_error *err)
{
        struct cutter c;
        bool automatic = segments == MFL_SEGMENTS_AUTO;
        int most = automatic ? MFL_SEGMENTS_MAX : segments;
        int rc = cutter_init(&c, draft, most, err);
        if (!rc) {
                find_places(&c);
                most = MFL_MIN(most, c.n_places);
                c.n_best = 1;
                uint64_t peak = peak_of(&c, c.best, 1);
                if (most > 1)
                        peak = search(&c, automatic ? 2 : most, most, automatic ? peak : FAR);
                refine(&c, peak);
                peak_of(&c, c.best, c.n_best);
        }
        cutter_deinit(&c);
        return rc;
}
