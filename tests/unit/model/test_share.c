/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that share tensors: names, places, what is refused, job files, and files of tensors. */
#include "tests/lib/test.h"

#include "common/job/job.h"
#include "common/model/safetensors.h"

#include <stdio.h>
#include <unistd.h>

static struct mfl_graph *build(const struct mfl_layer *layers, int n)
{
        struct mfl_graph *graph = NULL;
        struct mfl_error err = {""};
        if (mfl_graph_build("m", layers, n, 0, &graph, &err))
                fail_msg("%s", err.text);
        return graph;
}

static void assert_refused(const struct mfl_layer *layers, int n, const char *want)
{
        struct mfl_graph *graph = NULL;
        struct mfl_error err = {""};
        assert_int_equal(mfl_graph_build("m", layers, n, 0, &graph, &err), MFL_INVALID);
        assert_string_equal(err.text, want);
}

#define WEIGHT_OF(i) .shares = i, .sharing = MFL_SHARES_WEIGHT
static const struct mfl_layer gpt[] = {{.op = MFL_OP_INPUT, .out = {1, {6}}},
        {.op = MFL_OP_EMBEDDING, .name = "wte", .vocabulary = 11, .out_channels = 8},
        {.op = MFL_OP_LAYERNORM, .name = "ln", .input = 1, .bias = true},
        {.op = MFL_OP_DENSE, .name = "fc", .input = 2, .out_channels = 8, .bias = true},
        {.op = MFL_OP_LAYERNORM, .name = "ln_again", .input = 3, .bias = true, .shares = 2},
        {.op = MFL_OP_DENSE, .name = "lm_head", .input = 4, .out_channels = 11, WEIGHT_OF(1)}};

static void a_shared_tensor_is_one(void **state)
{
        struct mfl_graph *graph = build(gpt, MFL_ARRAY_SIZE(gpt));
        const struct mfl_layer *l = graph->layers;
        assert_int_equal(graph->n, 88 + 16 + 72);
        assert_int_equal(graph->n_params, 5);
        assert_int_equal(l[5].param_weight, l[1].param_weight);
        assert_true(l[4].param_weight == l[2].param_weight && l[4].param_bias == l[2].param_bias);
        const struct mfl_param *wte = &graph->params[l[1].param_weight];
        assert_string_equal(wte->name, "wte.weight");
        assert_true(wte->layer == 1 && wte->last_layer == 5 && wte->n_uses == 2);
        assert_int_equal(mfl_graph_features(graph, 5), 8);
        assert_int_equal(mfl_graph_find_param(graph, "lm_head.weight"), l[1].param_weight);
        assert_int_equal(mfl_graph_find_param(graph, "ln_again.bias"), l[2].param_bias);
        assert_int_equal(mfl_graph_find_param(graph, "lm_head.bias"), -1);
        char *text = mfl_graph_describe(graph);
        assert_non_null(strstr(text, "lm_head              dense            6x11                      0  "
                                     "weight shared with wte\n"));
        assert_non_null(strstr(text, "  shared with ln\n"));
        assert_non_null(strstr(text, "176 parameters"));
        free(text);
        mfl_graph_free(graph);
}

/* The order of version 1, and with frozen layers. */
static void indices_follow_the_order_of_tensors(void **state)
{
        struct mfl_layer layers[MFL_ARRAY_SIZE(gpt)];
        struct mfl_error err;
        memcpy(layers, gpt, sizeof gpt);
        layers[2].frozen = layers[4].frozen = true;
        struct mfl_graph *graph = build(layers, MFL_ARRAY_SIZE(layers));
        assert_int_equal(graph->n_frozen, 16);
        for (int pass = 0; pass < 2; pass++) {
                const struct mfl_layer *l = graph->layers;
                assert_string_equal(graph->params[l[5].param_weight].name, "wte.weight");
                assert_string_equal(graph->params[l[4].param_bias].name, "ln.bias");
                assert_int_equal(mfl_graph_find_param(graph, "lm_head.weight"), l[1].param_weight);
                assert_int_equal(mfl_graph_by_layers(graph, &err), 0);
        }
        mfl_graph_free(graph);
}

static void untied_layers_have_their_own_tensors(void **state)
{
        struct mfl_graph *graph = build(gpt, MFL_ARRAY_SIZE(gpt)), *apart = NULL;
        struct mfl_error err;
        int *param = NULL;
        assert_true(mfl_graph_is_tied(graph));
        assert_int_equal(mfl_graph_untie(graph, &apart, &param, &err), 0);
        assert_false(mfl_graph_is_tied(apart));
        assert_int_equal(apart->n, 88 + 16 + 72 + 16 + 88);
        for (int t = 0; t < apart->n_params; t++)
                assert_int_equal(apart->params[t].count, graph->params[param[t]].count);
        free(param);
        mfl_graph_free(apart);
        mfl_graph_free(graph);
}

#define DENSE(name_, from, units, ...)                                                                       \
        {                                                                                                    \
                .op = MFL_OP_DENSE, .name = name_, .input = from, .out_channels = units, __VA_ARGS__         \
        }
#define INPUT(n)                                                                                             \
        {                                                                                                    \
                .op = MFL_OP_INPUT, .out = { 1, {n} }                                                        \
        }
#define REFUSED(want, ...)                                                                                   \
        do {                                                                                                 \
                const struct mfl_layer layers_[] = {__VA_ARGS__};                                            \
                assert_refused(layers_, MFL_ARRAY_SIZE(layers_), want);                                      \
        } while (0)

static void bad_sharing_is_refused(void **state)
{
        REFUSED("layer b (dense): its weight is 4x8, but that of a, which it shares, is 8x8", INPUT(8),
                DENSE("a", 0, 8, ), DENSE("b", 1, 4, .shares = 1));
        REFUSED("layer b (weight): its tensor is 8, but that of a, which it shares, is 8x8", INPUT(8),
                DENSE("a", 0, 8, ),
                {.op = MFL_OP_WEIGHT,
                        .name = "b",
                        .input = -1,
                        .shape = {1, {8}},
                        .shares = 1,
                        .sharing = MFL_SHARES_WEIGHT},
                {.op = MFL_OP_MULTIPLY, .name = "m", .input = 1, .input2 = 2});
        REFUSED("layer b (dense): its weight is 9x4, but that of a, which it shares transposed, is 4x8",
                INPUT(8), DENSE("a", 0, 4, ),
                DENSE("b", 1, 9, .shares = 1, .sharing = MFL_SHARES_TRANSPOSED));
        REFUSED("layer a (dense): shares the weights of layer 2; it can share those of layers 1 to 0",
                INPUT(8), DENSE("a", 0, 8, .shares = 2), DENSE("b", 1, 8, ));
        REFUSED("layer a (dense): shares the weights of layer 1; it can share those of layers 1 to 0",
                INPUT(8), DENSE("a", 0, 8, .shares = 1));
        REFUSED("layer b (dense): shares the weights of r (relu), which has none", INPUT(8),
                {.op = MFL_OP_RELU, .name = "r"}, DENSE("b", 1, 8, .shares = 1));
        REFUSED("layer n (layernorm): shares all weights of a (dense), another operator; shares_weight "
                "shares "
                "`weight` alone",
                INPUT(8), DENSE("a", 0, 8, ), {.op = MFL_OP_LAYERNORM, .name = "n", .input = 1, .shares = 1});
        REFUSED("layer b (dense): has a bias of its own, but a, whose weights it shares, has none; set bias: "
                "false, or use shares_weight",
                INPUT(8), DENSE("a", 0, 8, ), DENSE("b", 1, 8, .bias = true, .shares = 1));
        REFUSED("layer b (dense): its weight is trained, but it is also that of a, which is frozen; train or "
                "freeze both",
                INPUT(8), DENSE("a", 0, 8, .frozen = true), DENSE("b", 1, 8, .shares = 1));
        REFUSED("layer n (layernorm): shares_transposed is for a dense layer and the weight of a dense, "
                "embedding "
                "or weight layer; a is dense",
                INPUT(8), DENSE("a", 0, 8, ),
                {.op = MFL_OP_LAYERNORM,
                        .name = "n",
                        .input = 1,
                        .shares = 1,
                        .sharing = MFL_SHARES_TRANSPOSED});
        REFUSED("layer w (weight): the weight of b lies transposed; only a dense layer can share it",
                INPUT(8), DENSE("a", 0, 8, ), DENSE("b", 1, 8, .shares = 1, .sharing = MFL_SHARES_TRANSPOSED),
                {.op = MFL_OP_RESHAPE, .name = "r", .input = 2, .shape = {2, {1, 8}}},
                {.op = MFL_OP_WEIGHT, .name = "w", .shape = {2, {8, 8}}, WEIGHT_OF(2)},
                {.op = MFL_OP_MATMUL, .name = "m", .input = 3, .input2 = 4});
}

/* ---- job files ---- */

static int job_graph(
        const char *layers, const char *rest, struct mfl_graph **ret_graph, struct mfl_error *err)
{
        char text[2048];
        struct mfl_job *job = NULL;
        const struct mfl_shape shape = {1, {6}};
        snprintf(text, sizeof text,
                "name: j\nrounds: 1\nmodel:\n  layers:\n%s%sdata: {name: d}\ntraining: {lr: 0.1, batch: 4}\n",
                layers, rest);
        int r = mfl_job_parse(text, strlen(text), "j.yaml", &job, err);
        if (!r)
                r = mfl_job_graph(job, &shape, 11, ret_graph, err);
        mfl_job_free(job);
        return r;
}

#define GPT_LAYERS                                                                                           \
        "    - embedding: {name: wte, features: 8, vocabulary: 11}\n"                                        \
        "    - dense: {name: fc, units: 8}\n"                                                                \
        "    - dense: {name: again, units: 8, shares: fc}\n"                                                 \
        "    - dense: {name: lm_head, units: 11, bias: false, shares_weight: wte}\n"

static void job_files_name_the_earlier_layer(void **state)
{
        struct mfl_graph *graph = NULL;
        struct mfl_error err = {""};
        if (job_graph(GPT_LAYERS, "", &graph, &err))
                fail_msg("%s", err.text);
        assert_int_equal(graph->n, 88 + 72);
        assert_int_equal(graph->layers[4].sharing, MFL_SHARES_WEIGHT);
        mfl_graph_free(graph);
        assert_int_equal(
                job_graph("    - dense: {name: a, units: 11, shares: b}\n    - dense: {name: b, units: 11}\n",
                        "", &graph, &err),
                MFL_INVALID);
        assert_non_null(strstr(err.text, "shares: no layer before this one has the name 'b'"));
        assert_int_equal(job_graph("    - dense: {name: a, units: 6}\n"
                                   "    - dense: {units: 11, shares: a, shares_weight: a}\n",
                                 "", &graph, &err),
                MFL_INVALID);
        assert_non_null(strstr(err.text, "shares and shares_weight: give one of them"));
        assert_int_equal(
                job_graph("    - relu: {name: a}\n    - relu: {shares: a}\n", "", &graph, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "shares: unknown key"));
}

/* Also of a second name that files have. */
static void each_tensor_has_a_name_of_its_own(void **state)
{
        static const char *const jobs[][2] = {
                {"    - dense: {name: n, units: 11}\n    - weight: {name: n.weight, shape: [11]}\n    - add: "
                 "{inputs: [n, n.weight]}\n",
                        "layers n (dense) and n.weight (weight) both have a tensor n.weight: give one of "
                        "them another name"},
                {"    - embedding: {name: e, features: 11, vocabulary: 11}\n    - weight: {name: a.weight, "
                 "shape: [11, 11]}\n"
                 "    - matmul: {inputs: [e, a.weight]}\n    - dense: {name: a, units: 11, bias: false, "
                 "shares_weight: e}\n",
                        "layers a.weight (weight) and a (dense) both have a tensor a.weight"},
        };
        struct mfl_graph *graph = NULL;
        struct mfl_error err = {""};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(jobs); i++) {
                int r = job_graph(jobs[i][0], "", &graph, &err);
                if (r != MFL_INVALID || !strstr(err.text, jobs[i][1]))
                        fail_msg("%zu: %d: %s", i, r, err.text);
        }
}

/* Either name of a layer that stands in two places selects it. */
static void patterns_select_both_uses(void **state)
{
        static const char *const both[] = {
                "  freeze: [fc]\n", "  freeze: [again]\n", "  freeze: ['fc*']\n", "  freeze: [again.*]\n"};
        struct mfl_graph *graph = NULL;
        struct mfl_error err = {""};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(both); i++) {
                if (job_graph(GPT_LAYERS, both[i], &graph, &err))
                        fail_msg("%s%s", both[i], err.text);
                assert_int_equal(graph->n_frozen, 72);
                mfl_graph_free(graph);
        }
        assert_int_equal(job_graph(GPT_LAYERS, "  freeze: [lm_head]\n", &graph, &err), MFL_INVALID);
        assert_non_null(
                strstr(err.text, "its weight is frozen, but it is also that of wte, which is trained"));
        assert_int_equal(job_graph(GPT_LAYERS, "  freeze: [wte]\n", &graph, &err), MFL_INVALID);
        if (job_graph(GPT_LAYERS, "  freeze: [wte, lm_head.weight]\n", &graph, &err))
                fail_msg("%s", err.text);
        assert_int_equal(graph->n_frozen, 88);
        mfl_graph_free(graph);
        if (job_graph(GPT_LAYERS, "  lora: {rank: 2, layers: [again]}\n", &graph, &err))
                fail_msg("%s", err.text);
        assert_int_equal(graph->n_moving, 32);
        assert_int_equal(graph->layers[2].param_weight2, graph->layers[3].param_weight2);
        mfl_graph_free(graph);
        if (job_graph(GPT_LAYERS, "  lora: {rank: 2}\n", &graph, &err))
                fail_msg("%s", err.text);
        assert_int_equal(graph->n_moving, 32 + 2 * (8 + 11));
        mfl_graph_free(graph);
}

/* ---- files ---- */

static void write_tensors(const char *path, const struct mfl_st_tensor *tensors, int n)
{
        struct mfl_error err = {""};
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        if (mfl_st_write(fileno(f), path, tensors, n, NULL, 0, &err))
                fail_msg("%s", err.text);
        fclose(f);
}

static int read_tensors(const char *path, const struct mfl_graph *graph, float *params, struct mfl_error *err)
{
        struct mfl_st_file *file = NULL;
        int r = mfl_st_open(path, &file, err);
        if (!r)
                r = mfl_st_to_params(file, NULL, graph, params, err);
        mfl_st_close(file);
        return r;
}

static void files_have_both_names_of_tied_modules(void **state)
{
        struct mfl_graph *graph = build(gpt, MFL_ARRAY_SIZE(gpt));
        char path[] = "/tmp/mfl-share-XXXXXX";
        float params[176], back[176] = {0}, other[88];
        struct mfl_st_tensor tensors[8];
        struct mfl_error err = {""};
        close(mkstemp(path));
        for (int i = 0; i < 176; i++)
                params[i] = (float)i;
        for (int i = 0; i < 88; i++)
                other[i] = 1;
        mfl_st_from_params(graph, params, tensors);
        assert_int_equal(
                mfl_st_add_aliases(graph, tensors), 6); /* not those of ln_again, which is ln again */
        assert_string_equal(tensors[5].name, "lm_head.weight");
        write_tensors(path, tensors, 6);
        assert_int_equal(read_tensors(path, graph, back, &err), 0);
        assert_memory_equal(params, back, sizeof params);
        tensors[5].data = other;
        write_tensors(path, tensors, 6);
        assert_int_equal(read_tensors(path, graph, back, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "tensors wte.weight and lm_head.weight differ, but the model shares "
                                         "one tensor under both names"));
        tensors[5].data = params;
        tensors[0] = tensors[5]; /* the later name alone, and the norm's */
        tensors[1].name = "ln_again.weight";
        write_tensors(path, tensors, 5);
        memset(back, 0, sizeof back);
        assert_int_equal(read_tensors(path, graph, back, &err), 0);
        assert_memory_equal(params, back, sizeof params);
        unlink(path);
        mfl_graph_free(graph);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_shared_tensor_is_one),
                cmocka_unit_test(indices_follow_the_order_of_tensors),
                cmocka_unit_test(untied_layers_have_their_own_tensors),
                cmocka_unit_test(bad_sharing_is_refused),
                cmocka_unit_test(job_files_name_the_earlier_layer),
                cmocka_unit_test(each_tensor_has_a_name_of_its_own),
                cmocka_unit_test(patterns_select_both_uses),
                cmocka_unit_test(files_have_both_names_of_tied_modules),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
