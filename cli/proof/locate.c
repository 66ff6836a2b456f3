/* SPDX-License-Identifier: Apache-2.0 */
/* Finds PyTorch's parameters in mfl's model by tags, and compares what both train. */
#include <math.h>

#include "cli/proof/described_internal.h"

/* A gradient this small, beside the largest of the model, is rounding. */
#define NOTHING 1e-6

static const struct described_param *find(const struct mfl_described *d, const char *initializer)
{
        for (uint32_t i = 0; i < d->n_params; i++) {
                const struct described_param *p = &d->params[i];
                bool is = p->initializer && !strcmp(p->initializer, initializer);
                for (size_t k = 1; k < p->n_names; k++)
                        is = is || !strcmp(p->names[k], initializer);
                if (is)
                        return p;
        }
        return NULL;
}

bool mfl_described_tied(
        const struct mfl_described *described, uint32_t i, const char *const **ret_names, size_t *ret_n)
{
        if (i >= described->n_params)
                return false;
        *ret_names = described->params[i].names;
        *ret_n = described->params[i].n_names;
        return true;
}

bool mfl_described_has(const struct mfl_described *described, const char *initializer)
{
        return find(described, initializer);
}

bool mfl_described_trains(const struct mfl_described *described, const char *initializer)
{
        const struct described_param *p = find(described, initializer);
        return !p || p->trained;
}

bool mfl_described_alike(const struct mfl_described *described, const char *a, const char *b)
{
        const struct described_param *p = find(described, a), *q = find(described, b);
        return !p || !q || p->trained == q->trained;
}

void mfl_described_tag(const struct mfl_described *described, const char *initializer, float *v, uint64_t n)
{
        const struct described_param *p = find(described, initializer);
        for (uint32_t k = 0; p && k < p->n; k++)
                if (p->index[k] < n)
                        v[p->index[k]] = (float)(TAG_FIRST + p->first + k);
}

/* The number of the sample, or -1. */
static int64_t tag_of(const struct mfl_described *d, float v)
{
        float a = fabsf(v);
        if (!(a >= (float)TAG_FIRST && a < (float)(TAG_FIRST + d->n_samples)) || a != floorf(a))
                return -1;
        return (int64_t)a - TAG_FIRST;
}

static const struct described_param *owner_of(const struct mfl_described *d, uint32_t sample)
{
        uint32_t low = 0, high = d->n_params - 1;
        while (low < high) {
                uint32_t middle = (low + high + 1) / 2;
                if (d->params[middle].first <= sample)
                        low = middle;
                else
                        high = middle - 1;
        }
        return &d->params[low];
}

/* ---- layers ---- */

/* What a layer's tensors are in PyTorch. */
struct owners {
        const struct described_param *trained, *fixed;
        const struct mfl_param *constant; /* no parameter's */
};

static void note_tensor(
        struct mfl_described *d, const struct mfl_param *tensor, const float *params, struct owners *o)
{
        bool tagged = false;
        for (uint64_t i = tensor->offset; i < tensor->offset + tensor->count; i++) {
                int64_t tag = tag_of(d, params[i]);
                if (tag < 0)
                        continue;
                struct described_place *place = &d->places[tag];
                if (place->at != NOWHERE) {
                        place->twice = true;
                        place->other = tensor->layer;
                } else {
                        *place = (struct described_place){
                                .at = i, .negated = params[i] < 0, .layer = tensor->layer, .other = -1};
                }
                const struct described_param *p = owner_of(d, (uint32_t)tag);
                if (p->trained)
                        o->trained = p;
                else
                        o->fixed = p;
                tagged = true;
        }
        if (!tagged)
                o->constant = tensor;
}

static int judge_layer(struct mfl_described *d, const struct mfl_layer *layer, int i, const struct owners *o,
        struct mfl_error *err)
{
        d->frozen[i] = layer->frozen || !o->trained;
        if (!o->trained)
                return 0;
        if (o->fixed)
                return mfl_fail(err, MFL_INVALID,
                        "%.120s: %.120s is trained, but %.120s is not (requires_grad=False); both are in "
                        "layer "
                        "%s, which mfl "
                        "trains or freezes as a whole. Set requires_grad alike for both",
                        d->path, o->trained->name, o->fixed->name, layer->name);
        if (layer->frozen)
                return mfl_fail(err, MFL_INVALID,
                        "%.120s: %.120s is trained in PyTorch, but mfl would keep layer %s (%s) as it is: a "
                        "parameter is "
                        "computed into a constant there. Use the parameter as it is, or set "
                        "requires_grad=False",
                        d->path, o->trained->name, layer->name, mfl_layer_kind(layer));
        if (o->constant)
                return mfl_fail(err, MFL_INVALID,
                        "%.120s: %.120s is trained, but %.120s of the same layer is a buffer or a constant "
                        "in "
                        "PyTorch; mfl "
                        "trains or freezes a layer as a whole. Make both parameters, or set "
                        "requires_grad=False",
                        d->path, o->trained->name, o->constant->name);
        return 0;
}

static int judge_layers(
        struct mfl_described *d, const struct mfl_graph *graph, const float *params, struct mfl_error *err)
{
        for (int i = 0; i < graph->n_layers; i++) {
                const struct mfl_layer *layer = &graph->layers[i];
                struct owners o = {.trained = NULL};
                bool any = false;
                for (int t = 0; t < graph->n_params; t++) {
                        if (graph->params[t].layer != i || t == layer->param_mean || t == layer->param_var)
                                continue;
                        note_tensor(d, &graph->params[t], params, &o);
                        any = true;
                }
                int r = any ? judge_layer(d, layer, i, &o, err) : 0;
                if (r)
                        return r;
        }
        return 0;
}

/* ---- parameters ---- */

static double largest_gradient(const struct mfl_described *d)
{
        double v = 0;
        for (uint32_t i = 0; i < d->n_params; i++)
                for (int b = 0; b < MFL_PROOF_BATCHES; b++)
                        v = fmax(v, d->params[i].largest[b]);
        return v;
}

/* Whether PyTorch would change the element. Without a proof, nothing is known. */
static bool moves(const struct described_param *p, uint32_t k, double scale)
{
        if (!p->value[0])
                return p->initializer;
        for (int b = 0; b < MFL_PROOF_BATCHES; b++)
                if (fabs((double)p->value[b][k]) > NOTHING * scale + 8 * p->noise[b])
                        return true;
        return false;
}

static int judge_sample(const struct mfl_described *d, const struct mfl_graph *graph,
        const struct described_param *p, uint32_t k, double scale, struct mfl_error *err)
{
        const struct described_place *place = &d->places[p->first + k];
        if (place->at == NOWHERE && moves(p, k, scale))
                return mfl_fail(err, MFL_INVALID,
                        "%.120s: %.120s is trained in PyTorch, but it is no parameter of mfl's model: the "
                        "export or mfl "
                        "computed something else from it. Use the parameter as it is, or set "
                        "requires_grad=False",
                        d->path, p->name);
        if (place->at == NOWHERE)
                return 0;
        if (place->negated)
                return mfl_fail(err, MFL_INVALID,
                        "%.120s: %.120s is subtracted, and mfl would train its negative under the same name. "
                        "Add it instead",
                        d->path, p->name);
        if (place->twice)
                return mfl_fail(err, MFL_INVALID,
                        "%.120s: %.120s is used twice, in layers %s and %s, which mfl would train apart. "
                        "Give "
                        "each layer its "
                        "own parameter",
                        d->path, p->name, graph->layers[place->layer].name, graph->layers[place->other].name);
        return 0;
}

/* A layer that shares all of its tensors is trained as the other; one that shares its weight, with it. */
static int judge_shared(struct mfl_described *d, const struct mfl_graph *graph, struct mfl_error *err)
{
        for (int i = 0; i < graph->n_layers; i++) {
                const struct mfl_layer *layer = &graph->layers[i];
                bool own = false;
                if (!layer->shares)
                        continue;
                for (int t = 0; t < graph->n_params; t++)
                        own = own || graph->params[t].layer == i;
                if (own && d->frozen[i] != d->frozen[layer->shares])
                        return mfl_fail(err, MFL_INVALID,
                                "%.120s: layers %s and %s have one weight, but only %s is trained; mfl "
                                "trains or "
                                "freezes a layer as a whole. Set requires_grad alike for all tensors of both",
                                d->path, layer->name, graph->layers[layer->shares].name,
                                d->frozen[i] ? graph->layers[layer->shares].name : layer->name);
                d->frozen[i] = d->frozen[layer->shares];
        }
        return 0;
}

/* The row of an embedding that is not trained. */
static int judge_padding(struct mfl_described *d, const struct mfl_graph *graph,
        const struct described_param *p, struct mfl_error *err)
{
        uint64_t at = d->places[p->first].at;
        int n = 0;
        if (p->padding < 0 || !p->trained || at == NOWHERE)
                return 0;
        for (int i = 0; i < graph->n_layers; i++) {
                const struct mfl_layer *layer = &graph->layers[i];
                const struct mfl_param *w =
                        layer->param_weight < 0 ? NULL : &graph->params[layer->param_weight];
                if (!w || layer->op != MFL_OP_EMBEDDING || at < w->offset || at >= w->offset + w->count)
                        continue;
                d->padding[i] = p->padding;
                n++;
        }
        if (n == 1 || (n && (p->n_names == 0 || p->n_padded + 1 == p->n_names)))
                return 0;
        return mfl_fail(err, MFL_INVALID,
                "%.120s: %.120s has padding_idx=%lld, and is used %s; mfl would train that row, too. Remove "
                "padding_idx",
                d->path, p->name, (long long)p->padding,
                n ? "by several embeddings, of which not all have it" : "by no embedding");
}

int mfl_described_locate(struct mfl_described *described, const struct mfl_graph *graph, const float *params,
        struct mfl_error *err)
{
        struct mfl_described *d = described;
        free(d->places);
        free(d->frozen);
        free(d->padding);
        d->places = mfl_calloc(d->n_samples + 1, sizeof *d->places);
        d->frozen = mfl_calloc((size_t)graph->n_layers, sizeof *d->frozen);
        d->padding = mfl_calloc((size_t)graph->n_layers, sizeof *d->padding);
        if (!d->places || !d->frozen || !d->padding)
                return mfl_fail_memory(err, d->n_samples * sizeof *d->places, "the places of parameters");
        for (uint32_t i = 0; i < d->n_samples; i++)
                d->places[i].at = NOWHERE;
        for (int i = 0; i < graph->n_layers; i++)
                d->padding[i] = -1;
        int r = judge_layers(d, graph, params, err);
        if (!r)
                r = judge_shared(d, graph, err);
        double scale = largest_gradient(d);
        for (uint32_t i = 0; !r && i < d->n_params; i++)
                for (uint32_t k = 0; !r && d->params[i].trained && k < d->params[i].n; k++)
                        r = judge_sample(d, graph, &d->params[i], k, scale, err);
        for (uint32_t i = 0; !r && i < d->n_params; i++)
                r = judge_padding(d, graph, &d->params[i], err);
        return r;
}

bool mfl_described_frozen(const struct mfl_described *described, int layer)
{
        return described->frozen[layer];
}

int64_t mfl_described_padding(const struct mfl_described *described, int layer)
{
        return described->padding[layer];
}

/* ---- the proof as a block ---- */

static bool has_gradient(const struct described_param *p)
{
        return p->trained && p->value[0];
}

static void put_gradients(const struct mfl_described *d, struct mfl_proof *proof)
{
        struct mfl_proof_gradient *g = (void *)(uintptr_t)mfl_proof_gradients(proof);
        struct mfl_proof_sample *s = (void *)(uintptr_t)mfl_proof_samples(proof);
        uint32_t n = 0;
        for (uint32_t i = 0; i < d->n_params; i++) {
                const struct described_param *p = &d->params[i];
                if (!has_gradient(p))
                        continue;
                mfl_strcpy(g->name, sizeof g->name, p->name);
                memcpy(g->largest, p->largest, sizeof g->largest);
                memcpy(g->noise, p->noise, sizeof g->noise);
                memcpy(g->spread, p->spread, sizeof g->spread);
                g->first = n;
                for (uint32_t k = 0; k < p->n; k++) {
                        const struct described_place *place = &d->places[p->first + k];
                        if (place->at == NOWHERE)
                                continue;
                        s[n++] = (struct mfl_proof_sample){place->at, {p->value[0][k], p->value[1][k]}};
                }
                g->n = n - g->first;
                g++;
        }
}

static void put_modules(const struct mfl_described *d, struct mfl_proof *proof)
{
        struct mfl_proof_module *m = (void *)(uintptr_t)mfl_proof_modules(proof);
        const json_t *list = json_object_get(d->proof, "activations"),
                     *kinds = json_object_get(d->model, "classes");
        for (uint32_t i = 0; i < proof->n_modules; i++, m++) {
                const json_t *v = json_array_get(list, i);
                const char *name = json_string_value(json_object_get(v, "module")), *kind = NULL;
                if (name)
                        kind = json_string_value(json_object_get(kinds, name));
                /* Only numbers that can be compared: a module with a damaged entry is not looked up. */
                if (!name || !mfl_strcpy(m->name, sizeof m->name, name))
                        m->name[0] = '\0';
                mfl_strcpy(m->kind, sizeof m->kind, kind ? kind : "module");
                for (int b = 0; b < MFL_PROOF_BATCHES; b++) {
                        double norm =
                                json_number_value(json_array_get(json_object_get(v, "norm"), (size_t)b));
                        m->norm[b] = isfinite(norm) && norm >= 0 ? norm : 0;
                }
        }
}

int mfl_described_proof(const struct mfl_described *described, struct mfl_proof **ret_proof,
        const char **ret_why, struct mfl_error *err)
{
        struct mfl_proof head = described->head, *proof;
        *ret_proof = NULL;
        *ret_why = described->why_not;
        if (!described->proof)
                return 0;
        head.n_modules = (uint32_t)json_array_size(json_object_get(described->proof, "activations"));
        for (uint32_t i = 0; i < described->n_params; i++) {
                const struct described_param *p = &described->params[i];
                head.n_gradients += has_gradient(p);
                for (uint32_t k = 0; has_gradient(p) && k < p->n; k++)
                        head.n_samples += described->places[p->first + k].at != NOWHERE;
        }
        head.bytes = mfl_proof_size(&head);
        if (head.bytes > MFL_PROOF_BYTES_MAX)
                return mfl_fail(err, MFL_INVALID, "%.200s: its proof is larger than %llu MiB",
                        described->path, (unsigned long long)(MFL_PROOF_BYTES_MAX >> 20));
        proof = mfl_calloc(1, head.bytes);
        if (!proof)
                return mfl_fail_memory(err, head.bytes, "the proof of an ONNX file");
        *proof = head;
        for (int b = 0; b < MFL_PROOF_BATCHES; b++)
                memcpy((void *)(uintptr_t)mfl_proof_outputs(proof, b), described->outputs[b],
                        head.batch[b].n_outputs * sizeof(struct mfl_proof_output));
        put_gradients(described, proof);
        put_modules(described, proof);
        *ret_proof = proof;
        return 0;
}
