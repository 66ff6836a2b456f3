/* SPDX-License-Identifier: Apache-2.0 */
/* Codes: columns of the input that embeddings read. A code, with where its column's rows begin, is a row of the table; backends take
 * the nearest row for any other number, so what PyTorch refuses is refused here. */
#include "kernels/check.h"

/* The columns that an embedding reads, [start, end) of a sample, and where the rows of each begin: n_first numbers, one for all
 * columns or one for each. */
struct codes {
        const struct mfl_layer *layer;
        int64_t start, end, n_first;
        const float *first; /* NULL: 0 */
};

static const float *numbers_of(const struct mfl_graph *graph, const struct mfl_layer *weight,
        const struct mfl_model_numbers *of, int64_t *ret_n)
{
        const struct mfl_param *param = &graph->params[weight->param_weight];
        *ret_n = (int64_t)param->count;
        if (of->by_layers)
                return of->by_layers + param->place;
        return param->offset < graph->n_frozen ? of->frozen + param->offset
                                               : of->moving + (param->offset - graph->n_frozen);
}

/* False: the embedding reads tokens, or what follows from padding. */
static bool find_codes(const struct mfl_graph *graph, const struct mfl_layer *layer,
        const struct mfl_model_numbers *of, struct codes *ret_codes)
{
        const struct mfl_layer *in = &graph->layers[layer->input];
        struct codes codes = {.layer = layer};
        int at = layer->input;
        if (layer->op != MFL_OP_EMBEDDING || !layer->input)
                return false;
        if (in->op == MFL_OP_ADD) {
                const struct mfl_layer *first = &graph->layers[in->input2];
                if (!of || first->op != MFL_OP_WEIGHT || first->param_weight < 0)
                        return false;
                codes.first = numbers_of(graph, first, of, &codes.n_first);
                at = in->input;
                in = &graph->layers[at];
        }
        if (at && (in->op != MFL_OP_SLICE || in->input))
                return false;
        codes.start = at ? in->start : 0;
        codes.end = at ? in->end : mfl_shape_count(&in->out);
        *ret_codes = codes;
        return true;
}

/* What a model sees of a number, if the sample is a row. */
static float value_at(const struct mfl_dataset *dataset, const struct mfl_split *split, size_t at)
{
        float v = split->dtype == MFL_U8 ? (float)((const uint8_t *)split->samples)[at]
                                         : ((const float *)split->samples)[at];
        return v * dataset->scale[0] + dataset->shift[0];
}

static int fail_code(const struct codes *codes, const struct mfl_dataset *dataset, const char *rows,
        const size_t at[2], float v, float first, struct mfl_error *err)
{
        bool named = dataset->feature_names && dataset->shape.rank == 1;
        bool scaled = dataset->scale[0] != 1.0f || dataset->shift[0] != 0.0f;
        char sum[96] = "";
        if (first != 0)
                mfl_snprintf(sum, sizeof sum, ", and %g with the %g that the model adds to it",
                        (double)(v + first), (double)first);
        return mfl_fail(err, MFL_INVALID,
                "data set %s: feature %zu%s%.40s%s of %ssample %zu is %g%s, but layer %.63s reads "
                "categories there: whole numbers from 0 to %d%s",
                dataset->name, at[1], named ? " (" : "", named ? dataset->feature_names[at[1]] : "",
                named ? ")" : "", rows, at[0], (double)v, sum, codes->layer->name,
                codes->layer->vocabulary - 1,
                scaled ? "; mean, std and normalise: auto change them, normalise: columns leaves "
                         "columns with declared categories alone"
                       : "");
}

static int check_split(const struct codes *codes, const struct mfl_dataset *dataset,
        const struct mfl_split *split, const char *rows, struct mfl_error *err)
{
        size_t width = (size_t)mfl_shape_count(&dataset->shape);
        for (size_t n = 0; n < split->n; n++)
                for (int64_t c = codes->start; c < codes->end; c++) {
                        float v = value_at(dataset, split, n * width + (size_t)c);
                        float first = codes->first ? codes->first[(c - codes->start) % codes->n_first] : 0;
                        float row = v + first;
                        if (row >= 0 && row < (float)codes->layer->vocabulary && row == (float)(int)row)
                                continue;
                        const size_t at[2] = {n, (size_t)c};
                        return fail_code(codes, dataset, rows, at, v, first, err);
                }
        return 0;
}

int mfl_check_codes(const struct mfl_graph *graph, const struct mfl_model_numbers *of,
        const struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct codes codes;
        int r = 0;
        for (int i = 1; !r && i < graph->n_layers && !dataset->vocabulary; i++) {
                if (!find_codes(graph, &graph->layers[i], of, &codes))
                        continue;
                r = check_split(&codes, dataset, &dataset->train, dataset->test.n ? "training " : "", err);
                if (!r)
                        r = check_split(&codes, dataset, &dataset->test, "test ", err);
        }
        return r;
}
