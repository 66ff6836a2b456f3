/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/test.h"
#include "common/model/graph.h"

#include <math.h>
#include <stdio.h>

static const struct mfl_shape image28 = {3, {1, 28, 28}}, image32 = {3, {3, 32, 32}},
                              image224 = {3, {3, 224, 224}};

static struct mfl_layer input(int64_t c, int64_t h, int64_t w)
{
        return (struct mfl_layer){.op = MFL_OP_INPUT, .input = -1, .out = {3, {c, h, w}}};
}

static struct mfl_layer conv(int reads, int filters, int kernel)
{
        return (struct mfl_layer){.op = MFL_OP_CONV2D,
                .input = reads,
                .out_channels = filters,
                .kernel = {kernel, kernel},
                .bias = true};
}

static struct mfl_layer dense(int reads, int units)
{
        return (struct mfl_layer){.op = MFL_OP_DENSE, .input = reads, .out_channels = units, .bias = true};
}

static void assert_shape(const struct mfl_layer *layer, const char *want)
{
        char text[96];
        assert_string_equal(mfl_shape_text(&layer->out, text, sizeof text), want);
}

static void assert_refused(const struct mfl_layer *layers, int n, int classes, const char *want)
{
        struct mfl_graph *graph = NULL;
        struct mfl_error err;
        assert_int_equal(mfl_graph_build("m", layers, n, classes, &graph, &err), MFL_INVALID);
        assert_string_equal(err.text, want);
        assert_null(graph);
}

static void assert_preset(const char *name, const struct mfl_shape *shape, int classes, uint64_t n)
{
        struct mfl_graph *graph;
        struct mfl_error err = {""};
        if (mfl_graph_preset(name, shape, classes, &graph, &err))
                fail_msg("%s", err.text);
        assert_int_equal(graph->n, n);
        assert_string_equal(graph->name, name);
        uint64_t end = 0;
        for (int i = 0; i < graph->n_params; i++) {
                assert_int_equal(graph->params[i].offset, end);
                assert_int_equal(graph->params[i].count, mfl_shape_count(&graph->params[i].shape));
                end += graph->params[i].count;
        }
        assert_int_equal(end, n);
        mfl_graph_free(graph);
}

static void presets_have_the_published_sizes(void **state)
{
        assert_preset("logistic", &image28, 10, 7850);
        assert_preset("mlp", &image28, 10, 199210); /* McMahan et al. 2017, section 3 */
        assert_preset("lenet5", &image28, 10, 61706);
        assert_preset("lenet5", &(struct mfl_shape){3, {1, 32, 32}}, 10, 61706);
        assert_preset("lenet5", &image32, 10, 62006);
        assert_preset("fedavg-cnn", &image28, 10, 1663370); /* McMahan et al. 2017, section 3 */
        assert_preset("fedavg-cnn", &image28, 62, 1690046);
        assert_preset("pfl-cnn", &image32, 10, 1626442);
        /* Trained ones as in torchvision's resnet18 with such a stem: 11,173,962; and 2 * 4800 statistics. */
        assert_preset("resnet18", &image32, 10, 11173962 + 9600);
        assert_preset("resnet18-gn", &image32, 10, 11173962);
        /* 0.27 M (He et al. 2016, table 6), 2752 of them in the two projections. */
        assert_preset("resnet20", &image32, 10, 272474 + 1568);
        assert_preset("resnet20-gn", &image32, 10, 272474);
        /* torchvision's mobilenet_v2: 3,504,872 trained; and two statistics for each of 17,056 channels. */
        assert_preset("mobilenet-v2", &image224, 1000, 3504872 + 2 * 17056);
        assert_preset("mobilenet-v2", &image32, 10, 3504872 + 2 * 17056 - 990 * 1281);
        /* One embedding of 8; two LSTMs of 4 gates with two biases each; a dense layer. */
        assert_preset("char-lstm", &(struct mfl_shape){1, {80}}, 90,
                90 * 8 + 4 * 256 * (8 + 256 + 2) + 4 * 256 * (256 + 256 + 2) + 90 * 257);
        /* Of each block 12 w^2 + 13 w; two tables, a norm, and the last layer. */
        assert_preset("char-gpt", &(struct mfl_shape){1, {64}}, 65,
                4 * (12 * 128 * 128 + 13 * 128) + (65 + 64 + 2 + 65) * 128);
        assert_preset("vit-tiny", &image224, 1000, 5717416); /* timm's deit_tiny_patch16_224 */
        assert_preset(
                "vit-tiny", &image32, 10, 5717416 - 990 * 193 - (197 - 65) * 192 - 192 * 3 * (256 - 16));
}

/* What is not trained, and where. */
static void running_statistics_are_not_trained(void **state)
{
        struct mfl_graph *graph;
        uint64_t untrained = 0;
        assert_int_equal(mfl_graph_preset("resnet20", &image32, 10, &graph, NULL), 0);
        const struct mfl_layer *bn = &graph->layers[2];
        assert_string_equal(bn->name, "bn1");
        assert_int_equal(bn->param_bias, bn->param_weight + 1);
        assert_int_equal(bn->param_mean, bn->param_weight + 2);
        assert_int_equal(bn->param_var, bn->param_weight + 3);
        assert_string_equal(graph->params[bn->param_mean].name, "bn1.running_mean");
        assert_string_equal(graph->params[bn->param_var].name, "bn1.running_var");
        assert_true(graph->params[bn->param_weight].trained && graph->params[bn->param_bias].trained);
        assert_true(graph->params[bn->param_bias].is_bias && !graph->params[bn->param_mean].is_bias);
        assert_int_equal(graph->params[bn->param_var].count, 16);
        float *params = mfl_malloc(graph->n * sizeof *params);
        assert_non_null(params);
        mfl_graph_init_params(graph, 3, params);
        for (int t = 0; t < graph->n_params; t++) {
                const struct mfl_param *p = &graph->params[t];
                bool of_norm = graph->layers[p->layer].op == MFL_OP_BATCHNORM;
                bool one = strstr(p->name, "running_var") || (of_norm && strstr(p->name, ".weight"));
                untrained += p->trained ? 0 : p->count;
                assert_int_equal(p->trained, !strstr(p->name, "running"));
                for (uint64_t i = 0; of_norm && i < p->count; i++)
                        assert_true(params[p->offset + i] == (one ? 1.0f : 0.0f));
        }
        assert_int_equal(untrained, 1568);
        free(params);
        mfl_graph_free(graph);
}

/* The frozen first, each part in the order of layers; running statistics of a frozen norm move. */
static void frozen_params_come_first(void **state)
{
        static const char *const names[] = {"conv1.weight", "conv1.bias", "bn1.weight", "bn1.bias",
                "head.weight", "head.bias", "bn1.running_mean", "bn1.running_var", "head.lora_A",
                "head.lora_B"};
        static const int by_layers[] = {0, 1, 2, 3, 6, 7, 4, 5, 8, 9};
        const struct mfl_layer layers[] = {{.op = MFL_OP_INPUT, .out = {3, {2, 4, 4}}},
                {.op = MFL_OP_CONV2D, .out_channels = 3, .kernel = {3, 3}, .bias = true, .frozen = true},
                {.op = MFL_OP_BATCHNORM, .input = 1, .frozen = true},
                {.op = MFL_OP_DENSE,
                        .name = "head",
                        .input = 2,
                        .out_channels = 5,
                        .bias = true,
                        .lora_rank = 2}};
        struct mfl_graph *graph, *old;
        assert_int_equal(mfl_graph_build("g", layers, 4, 5, &graph, NULL), 0);
        assert_int_equal(mfl_graph_build("g", layers, 4, 5, &old, NULL), 0);
        assert_int_equal(mfl_graph_by_layers(old, NULL), 0);
        assert_int_equal(graph->n_params, MFL_ARRAY_SIZE(names));
        assert_int_equal(graph->n_frozen, 54 + 3 + 3 + 3 + 60 + 5);
        assert_int_equal(graph->n_moving, 3 + 3 + 24 + 10);
        assert_int_equal(graph->i_moving, 6);
        assert_true(old->n == graph->n && old->n_moving == graph->n && !old->n_frozen && !old->i_moving);
        float *v = mfl_malloc(graph->n * sizeof *v), *w = mfl_malloc(graph->n * sizeof *w);
        assert_true(v && w);
        mfl_graph_init_params(graph, 3, v);
        mfl_graph_init_params(old, 3, w);
        uint64_t offset = 0, place = 0;
        for (int t = 0; t < graph->n_params; t++) {
                const struct mfl_param *p = &graph->params[t], *then = &old->params[p->number];
                assert_string_equal(p->name, names[t]);
                assert_string_equal(old->params[t].name, names[by_layers[t]]);
                assert_int_equal(p->offset, offset);
                assert_int_equal(old->params[t].offset, place);
                assert_true(p->place == then->offset && then->place == then->offset);
                assert_int_equal(p->moves, t >= graph->i_moving);
                assert_int_equal(p->trained, t >= 8);
                assert_memory_equal(v + p->offset, w + then->offset, p->count * sizeof *v);
                offset += p->count;
                place += old->params[t].count;
        }
        assert_string_equal(graph->params[graph->layers[2].param_var].name, "bn1.running_var");
        assert_string_equal(graph->params[graph->layers[3].param_weight2].name, "head.lora_A");
        assert_string_equal(old->params[old->layers[3].param_bias2].name, "head.lora_B");
        free(v);
        free(w);
        mfl_graph_free(old);
        mfl_graph_free(graph);
}

static const struct mfl_param *param_named(const struct mfl_graph *graph, const char *name)
{
        for (int t = 0; t < graph->n_params; t++)
                if (!strcmp(graph->params[t].name, name))
                        return &graph->params[t];
        fail_msg("there is no %s", name);
        return NULL;
}

static void presets_have_the_names_of_their_state_dicts(void **state)
{
        static const struct {
                const char *preset;
                struct mfl_shape input;
                const char *param, *shape;
        } wants[] = {
                {"mobilenet-v2", {3, {3, 32, 32}}, "features.0.1.running_var", "32"},
                {"mobilenet-v2", {3, {3, 32, 32}}, "features.1.conv.0.0.weight", "32x1x3x3"},
                {"mobilenet-v2", {3, {3, 32, 32}}, "features.1.conv.1.weight", "16x32x1x1"},
                {"mobilenet-v2", {3, {3, 32, 32}}, "features.2.conv.3.bias", "24"},
                {"mobilenet-v2", {3, {3, 32, 32}}, "features.17.conv.1.0.weight", "960x1x3x3"},
                {"mobilenet-v2", {3, {3, 32, 32}}, "features.18.0.weight", "1280x320x1x1"},
                {"mobilenet-v2", {3, {3, 32, 32}}, "classifier.1.weight", "10x1280"},
                {"char-lstm", {1, {80}}, "lstm2.weight_ih_l0", "1024x256"},
                {"char-gpt", {1, {64}}, "transformer.wpe.weight", "64x128"},
                {"char-gpt", {1, {64}}, "transformer.h.3.attn.c_attn.bias", "384"},
                {"char-gpt", {1, {64}}, "lm_head.weight", "10x128"},
                {"vit-tiny", {3, {1, 28, 28}}, "pos_embed", "50x192"},
                {"vit-tiny", {3, {1, 28, 28}}, "patch_embed.proj.weight", "192x1x4x4"},
                {"vit-tiny", {3, {1, 28, 28}}, "blocks.11.mlp.fc1.weight", "768x192"},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(wants); i++) {
                struct mfl_graph *graph;
                char text[96];
                assert_int_equal(mfl_graph_preset(wants[i].preset, &wants[i].input, 10, &graph, NULL), 0);
                const struct mfl_param *param = param_named(graph, wants[i].param);
                assert_string_equal(mfl_shape_text(&param->shape, text, sizeof text), wants[i].shape);
                mfl_graph_free(graph);
        }
}

/* 4x4 of 32x32 are left in the end, 7x7 of 224x224. */
static void small_images_keep_their_size_longer(void **state)
{
        const struct mfl_shape *inputs[] = {&image32, &image224};
        static const char *const wants[] = {"1280x4x4", "1280x7x7"};
        for (int i = 0; i < 2; i++) {
                struct mfl_graph *graph;
                assert_int_equal(mfl_graph_preset("mobilenet-v2", inputs[i], 10, &graph, NULL), 0);
                assert_shape(&graph->layers[graph->n_layers - 4], wants[i]);
                mfl_graph_free(graph);
        }
}

static void presets_of_text_predict_at_each_position(void **state)
{
        static const char *const names[] = {"char-lstm", "char-gpt"};
        for (int i = 0; i < 2; i++) {
                struct mfl_graph *graph;
                assert_int_equal(
                        mfl_graph_preset(names[i], &(struct mfl_shape){1, {20}}, 65, &graph, NULL), 0);
                assert_int_equal(graph->vocabulary, 65);
                assert_int_equal(graph->positions, 20);
                mfl_graph_free(graph);
        }
}

static void a_residual_block_joins_two_layers(void **state)
{
        struct mfl_graph *graph;
        assert_int_equal(mfl_graph_preset("resnet20-gn", &image32, 10, &graph, NULL), 0);
        int add = 0, project = 0, pool = graph->n_layers - 2;
        for (int i = 0; i < graph->n_layers; i++) {
                const struct mfl_layer *layer = &graph->layers[i];
                add = strcmp(layer->name, "layer2.0.add") ? add : i;
                project = strcmp(layer->name, "layer2.0.downsample.0") ? project : i;
                assert_true(layer->op == MFL_OP_ADD || layer->input2 == -1);
                assert_true(layer->op != MFL_OP_GROUPNORM || layer->norm_groups == layer->out.dim[0] / 2);
        }
        assert_shape(&graph->layers[add], "32x16x16");
        assert_string_equal(graph->layers[graph->layers[add].input].name, "layer2.0.bn2");
        assert_string_equal(graph->layers[graph->layers[add].input2].name, "layer2.0.downsample.1");
        assert_string_equal(graph->layers[graph->layers[project].input].name, "layer1.2.relu2");
        assert_shape(&graph->layers[pool - 1], "64x8x8");
        assert_shape(&graph->layers[pool], "64x1x1");
        mfl_graph_free(graph);
}

static struct mfl_layer join(int a, int b)
{
        return (struct mfl_layer){.op = MFL_OP_ADD, .input = a, .input2 = b};
}

static void norms_get_defaults_and_names(void **state)
{
        struct mfl_layer layers[] = {input(4, 5, 5), {.op = MFL_OP_BATCHNORM, .input = 0},
                {.op = MFL_OP_GROUPNORM, .input = 0, .norm_groups = 2, .eps = 0.5f}, join(1, 2),
                {.op = MFL_OP_GLOBAL_AVGPOOL2D, .input = 3}};
        struct mfl_graph *graph;
        assert_int_equal(mfl_graph_build("m", layers, 5, 0, &graph, NULL), 0);
        assert_string_equal(graph->layers[1].name, "bn1");
        assert_string_equal(graph->layers[2].name, "gn1");
        assert_string_equal(graph->layers[3].name, "add1");
        assert_string_equal(graph->layers[4].name, "pool1");
        assert_true(graph->layers[1].eps == 1e-5f && graph->layers[1].momentum == 0.1f);
        assert_true(graph->layers[2].eps == 0.5f);
        assert_int_equal(graph->n, 4 * 4 + 2 * 4);
        assert_int_equal(graph->layers[2].param_mean, -1);
        assert_shape(&graph->layers[4], "4x1x1");
        mfl_graph_free(graph);
}

static void bad_joins_and_norms_are_refused(void **state)
{
        const struct mfl_layer ok[] = {input(6, 8, 8), conv(0, 6, 1), join(0, 1)};
        struct mfl_layer l[3];
        int at = -1;
#define RESET memcpy(l, ok, sizeof ok)
        RESET;
        assert_int_equal(mfl_graph_check(l, 3, 0, &at, NULL), 0);
        assert_int_equal(at, -1);
        l[2].input2 = 2;
        assert_refused(l, 3, 0, "layer add1 (add): reads layer 2; it can read layers 0 to 1");
        assert_int_equal(mfl_graph_check(l, 3, 0, &at, NULL), MFL_INVALID);
        assert_int_equal(at, 2);
        l[2].input2 = 0;
        assert_refused(l, 3, 0, "layer add1 (add): reads layer input twice; it joins two layers");
        RESET;
        l[1].out_channels = 5;
        assert_refused(l, 3, 0,
                "layer add1 (add): its inputs must have one shape, or the second has 1 in dimensions where "
                "it is repeated; "
                "they are 6x8x8 and 5x8x8 (layers input and conv1)");
        RESET;
        l[2] = conv(1, 3, 1);
        l[2].input2 = 1;
        assert_refused(l, 3, 0, "layer conv2 (conv2d): takes one input");
        l[2] = (struct mfl_layer){.op = MFL_OP_GROUPNORM, .input = 1, .norm_groups = 4};
        assert_refused(l, 3, 0, "layer gn1 (groupnorm): norm_groups 4 does not divide its 6 channels");
        l[2].norm_groups = 0;
        assert_refused(l, 3, 0, "layer gn1 (groupnorm): norm_groups 0 does not divide its 6 channels");
        l[2].norm_groups = 3;
        l[2].eps = -1;
        assert_refused(l, 3, 0, "layer gn1 (groupnorm): eps -1 is outside (0, 1]");
        l[2] = (struct mfl_layer){.op = MFL_OP_BATCHNORM, .input = 1, .momentum = 1.5f};
        assert_refused(l, 3, 0, "layer bn1 (batchnorm): momentum 1.5 is outside (0, 1]");
        l[0].out = (struct mfl_shape){1, {6}};
        l[1] = (struct mfl_layer){.op = MFL_OP_RELU, .input = 0};
        l[2] = (struct mfl_layer){.op = MFL_OP_GLOBAL_AVGPOOL2D, .input = 1};
        assert_refused(l, 3, 0,
                "layer pool1 (global_avgpool2d): needs an image (channels x height x width); its input is 6");
}

static void shapes_are_inferred(void **state)
{
        struct mfl_layer layers[] = {input(3, 20, 30), conv(0, 8, 3),
                {.op = MFL_OP_MAXPOOL2D, .input = 1, .kernel = {3, 2}, .stride = {2, 2}, .padding = {1, 0}},
                conv(2, 4, 5), {.op = MFL_OP_AVGPOOL2D, .input = 3, .kernel = {2, 2}},
                {.op = MFL_OP_RELU, .input = 4}, {.op = MFL_OP_DROPOUT, .input = 5, .rate = 0.5f},
                {.op = MFL_OP_FLATTEN, .input = 6}, dense(7, 7)};
        struct mfl_graph *graph;
        layers[1].stride[0] = 2;
        layers[1].stride[1] = 3;
        layers[1].padding[0] = 1;
        layers[3].dilation[1] = 2;
        layers[3].padding[0] = layers[3].padding[1] = 4;
        layers[3].bias = false;
        assert_int_equal(mfl_graph_build("m", layers, 9, 7, &graph, NULL), 0);
        assert_shape(&graph->layers[1], "8x10x10"); /* (20 + 2 - 3) / 2 + 1; (30 - 3) / 3 + 1 */
        assert_shape(&graph->layers[2], "8x5x5");   /* (10 + 2 - 3) / 2 + 1; (10 - 2) / 2 + 1 */
        assert_shape(&graph->layers[3], "4x9x5");   /* 5 + 8 - 5 + 1; 5 + 8 - 9 + 1 */
        assert_shape(&graph->layers[4], "4x8x4");
        assert_shape(&graph->layers[6], "4x8x4");
        assert_shape(&graph->layers[7], "128");
        assert_shape(&graph->layers[8], "7");
        assert_string_equal(graph->layers[3].name, "conv2");
        assert_string_equal(graph->layers[8].name, "dense1");
        assert_int_equal(graph->n_params, 5);
        assert_string_equal(graph->params[0].name, "conv1.weight");
        assert_string_equal(graph->params[1].name, "conv1.bias");
        assert_true(graph->params[1].is_bias);
        assert_int_equal(graph->layers[3].param_bias, -1);
        assert_int_equal(graph->params[2].fan_in, 8 * 25);
        assert_int_equal(graph->params[2].fan_out, 4 * 25);
        assert_int_equal(graph->params[2].offset, 8 * 3 * 9 + 8);
        assert_true(mfl_shape_equal(&graph->params[2].shape, &(struct mfl_shape){4, {4, 8, 5, 5}}));
        assert_true(mfl_shape_equal(&graph->params[3].shape, &(struct mfl_shape){2, {7, 128}}));
        assert_int_equal(graph->n, 8 * 3 * 9 + 8 + 4 * 8 * 25 + 7 * 128 + 7);
        mfl_graph_free(graph);
}

/* What torch.nn.MaxPool2d(kernel, stride, padding, ceil_mode=True) gives. */
static void a_last_window_may_reach_beyond(void **state)
{
        static const struct {
                int size, kernel, stride, padding, out;
        } rows[] = {{7, 2, 2, 0, 4}, {6, 2, 2, 0, 3}, {112, 3, 2, 0, 56}, {5, 2, 3, 1, 2}, {8, 4, 3, 1, 3},
                {9, 4, 3, 1, 4}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows); i++) {
                int k = rows[i].kernel, s = rows[i].stride, p = rows[i].padding;
                struct mfl_layer l[] = {input(1, rows[i].size, 4), {.op = MFL_OP_MAXPOOL2D,
                                                                           .kernel = {k, 1},
                                                                           .stride = {s, 1},
                                                                           .padding = {p, 0},
                                                                           .ceil_mode = true}};
                struct mfl_graph *graph;
                assert_int_equal(mfl_graph_build("m", l, 2, 0, &graph, NULL), 0);
                assert_int_equal(graph->layers[1].out.dim[1], rows[i].out);
                assert_int_equal(graph->layers[1].out.dim[2], 4);
                mfl_graph_free(graph);
        }
}

static void generated_names_avoid_given_ones(void **state)
{
        struct mfl_layer layers[] = {input(1, 9, 9), conv(0, 1, 3), conv(1, 1, 3), dense(2, 2)};
        struct mfl_graph *graph;
        strcpy(layers[2].name, "conv1");
        assert_int_equal(mfl_graph_build("m", layers, 4, 2, &graph, NULL), 0);
        assert_string_equal(graph->layers[1].name, "conv2");
        mfl_graph_free(graph);
}

static void a_single_operator_is_a_graph_without_classes(void **state)
{
        struct mfl_layer layers[] = {input(1, 9, 9), {.op = MFL_OP_TANH, .input = 0}};
        struct mfl_graph *graph;
        assert_int_equal(mfl_graph_build("m", layers, 2, 0, &graph, NULL), 0);
        assert_int_equal(graph->n, 0);
        mfl_graph_free(graph);
}

static void bad_structure_is_refused(void **state)
{
        const struct mfl_layer ok[] = {input(1, 8, 8), conv(0, 2, 3), dense(1, 4)};
        struct mfl_layer l[3];
        RESET;
        assert_refused(l, 1, 4, "a model of 1 layers (the input included); 2 to 4096 are possible");
        assert_refused(l, 4097, 4, "a model of 4097 layers (the input included); 2 to 4096 are possible");
        assert_refused(l, 3, -1, "-1 classes; 1 to 1048576 are possible");
        assert_refused(l, 3, 5,
                "layer dense1 (dense): the last layer gives 4; it must give one number for each of the 5 "
                "classes");
        assert_refused(l + 1, 2, 4, "layer 0 is conv2d; the first layer must be the input");
        l[2] = input(1, 1, 1);
        strcpy(l[2].name, "b");
        assert_refused(l, 3, 4, "layer b: only the first layer can be the input");
        RESET;
        l[1].input = 1;
        assert_refused(l, 3, 4, "layer conv1 (conv2d): reads layer 1; it can read layers 0 to 0");
        RESET;
        l[2].input = 0;
        assert_refused(l, 3, 4,
                "layer conv1 (conv2d) is not read by any other layer; every layer except the last must be "
                "read");
        RESET;
        l[1].op = (enum mfl_op)99;
        assert_refused(l, 3, 4, "layer 1: there is no operator number 99");
        RESET;
        strcpy(l[1].name, "a");
        strcpy(l[2].name, "a");
        assert_refused(l, 3, 4, "layers 1 and 2 have the same name: a");
        strcpy(l[2].name, "a b");
        assert_refused(
                l, 3, 4, "layer 2: the name has byte 0x20; letters, digits, '_', '-' and '.' are allowed");
        memset(l[2].name, 'a', sizeof l[2].name);
        assert_refused(l, 3, 4, "layer 2: the name is longer than 191 bytes");
        RESET;
        l[0].out.rank = 2;
        assert_refused(l, 3, 4,
                "layer conv1 (conv2d): needs an image (channels x height x width); its input is 1x8");
        RESET;
        l[0].out.dim[1] = 0;
        assert_refused(l, 3, 4, "the input is 1x0x8; each dimension must be 1 to 1048576");
        l[0].out = (struct mfl_shape){3, {65536, 65536, 65536}};
        assert_refused(l, 3, 4,
                "layer input (input): its output 65536x65536x65536 is larger than 17179869184 numbers");
}

static void bad_layers_are_refused(void **state)
{
        const struct mfl_layer ok[] = {input(1, 8, 8), conv(0, 2, 3), dense(1, 4)};
        struct mfl_layer l[3];
        RESET;
        l[0].out = (struct mfl_shape){1, {784}};
        assert_refused(l, 3, 4,
                "layer conv1 (conv2d): needs an image (channels x height x width); its input is 784");
        RESET;
        l[1].kernel[0] = 0;
        assert_refused(l, 3, 4, "layer conv1 (conv2d): kernel 0x3 is outside 1 to 65536");
        RESET;
        l[1].stride[1] = -1;
        assert_refused(l, 3, 4, "layer conv1 (conv2d): stride 1x-1 is outside 1 to 65536");
        RESET;
        l[1].dilation[1] = 65537;
        assert_refused(l, 3, 4, "layer conv1 (conv2d): dilation 1x65537 is outside 1 to 65536");
        RESET;
        l[1].padding[0] = -2;
        assert_refused(l, 3, 4, "layer conv1 (conv2d): padding -2x0 is outside 0 to 65536");
        RESET;
        l[1].out_channels = 0;
        assert_refused(l, 3, 4, "layer conv1 (conv2d): filters 0 is outside 1 to 1048576");
        l[1].out_channels = 1;
        l[2].out_channels = 1048577;
        assert_refused(l, 3, 4, "layer dense1 (dense): units 1048577 is outside 1 to 1048576");
        RESET;
        l[1].init = (enum mfl_init)9;
        assert_refused(l, 3, 4, "layer conv1 (conv2d): there is no initialisation number 9");
        RESET;
        l[1].kernel[1] = 11;
        assert_refused(l, 3, 4,
                "layer conv1 (conv2d): the width of its input 1x8x8 with padding 0 is 8, less than the "
                "kernel's "
                "reach of 11; use a smaller kernel or padding of at least 2");
        RESET;
        l[1] = (struct mfl_layer){.op = MFL_OP_DROPOUT, .input = 0, .rate = 1};
        assert_refused(l, 3, 4, "layer dropout1 (dropout): rate 1 is outside [0, 1)");
        l[1].rate = NAN;
        assert_refused(l, 3, 4, "layer dropout1 (dropout): rate nan is outside [0, 1)");
        l[1] = (struct mfl_layer){.op = MFL_OP_LEAKY_RELU, .input = 0, .alpha = -0.1f};
        assert_refused(l, 3, 4, "layer relu1 (leaky_relu): negative_slope -0.1 is outside (0, 1000]");
        l[1] = (struct mfl_layer){.op = MFL_OP_ELU, .input = 0, .alpha = INFINITY};
        assert_refused(l, 3, 4, "layer elu1 (elu): alpha inf is outside (0, 1000]");
        l[1] = (struct mfl_layer){.op = MFL_OP_AVGPOOL2D, .input = 0, .kernel = {2, 2}, .ceil_mode = true};
        assert_refused(l, 3, 4,
                "layer avgpool1 (avgpool2d): maxpool2d has ceil_mode, and avgpool2d with count_include_pad: "
                "false");
        l[1] = (struct mfl_layer){.op = MFL_OP_MAXPOOL2D, .input = 0, .kernel = {2, 2}, .padding = {2, 1}};
        assert_refused(
                l, 3, 4, "layer maxpool1 (maxpool2d): padding 2x1 is more than half of the kernel 2x2");
        l[0].out.dim[1] = l[0].out.dim[2] = 1;
        l[1].padding[0] = 1;
        l[1].dilation[0] = l[1].dilation[1] = 2;
        assert_refused(l, 3, 4,
                "layer maxpool1 (maxpool2d): a window of dilation 2x2 contains only padding; use a smaller "
                "dilation");
        RESET;
        l[0].out = (struct mfl_shape){3, {60000, 1, 1}};
        l[1].kernel[0] = l[1].kernel[1] = 65535;
        l[1].padding[0] = l[1].padding[1] = 32767;
        l[1].out_channels = 65536;
        assert_refused(l, 3, 4,
                "layer conv1 (conv2d): the model has more than 17179869184 parameters, the largest supported "
                "number");
}

static void presets_refuse_what_does_not_fit(void **state)
{
        struct mfl_graph *graph = NULL;
        struct mfl_error err;
        struct mfl_shape flat = {1, {784}}, tiny = {3, {1, 4, 4}}, odd = {3, {3, 32, 30}};
        assert_int_equal(mfl_graph_preset("lenet", &image28, 10, &graph, &err), MFL_NOT_FOUND);
        assert_string_equal(err.text, "there is no preset lenet; the presets are logistic, mlp, lenet5, "
                                      "fedavg-cnn, pfl-cnn, resnet18, resnet18-gn, resnet20, resnet20-gn, "
                                      "mobilenet-v2, char-lstm, char-gpt, vit-tiny");
        assert_int_equal(mfl_graph_preset("char-gpt", &image28, 65, &graph, &err), MFL_INVALID);
        assert_string_equal(
                err.text, "preset char-gpt needs tokens, samples of one dimension; the input is 1x28x28");
        assert_int_equal(mfl_graph_preset("vit-tiny", &odd, 10, &graph, &err), MFL_INVALID);
        assert_string_equal(err.text, "preset vit-tiny cuts images into patches of 4x4, but the input "
                                      "3x32x30 is not a multiple of");
        assert_int_equal(mfl_graph_preset("lenet5", &flat, 10, &graph, &err), MFL_INVALID);
        assert_string_equal(
                err.text, "preset lenet5 needs an image (channels x height x width); the input is 784");
        assert_int_equal(mfl_graph_preset("mlp", &flat, 0, &graph, &err), MFL_INVALID);
        assert_string_equal(err.text, "preset mlp needs at least 1 class, not 0");
        assert_int_equal(mfl_graph_preset("lenet5", &tiny, 10, &graph, &err), MFL_INVALID);
        assert_string_equal(err.text,
                "preset lenet5: layer conv2 (conv2d): the height of its input 6x2x2 with padding 0 is 2, "
                "less than "
                "the kernel's reach of 5; use a smaller kernel or padding of at least 2");
        assert_null(graph);
}

/* The edges say of each element that moves what the table of parameters says, also in the order of layers. */
static void places_of_running_statistics(void **state)
{
        struct mfl_graph *graph;
        assert_int_equal(mfl_graph_preset("resnet20", &image32, 10, &graph, NULL), 0);
        for (int pass = 0; pass < 2; pass++) {
                const struct mfl_fixed_parts *parts = &graph->statistics;
                assert_int_equal(parts->n, 2 * 21); /* mean and variance are neighbours */
                for (int t = graph->i_moving; t < graph->n_params; t++) {
                        const struct mfl_param *p = &graph->params[t];
                        bool statistics = strstr(p->name, "running_");
                        for (uint64_t i = 0; i < p->count; i++) {
                                size_t k = 0;
                                while (k < parts->n && parts->edge[k] <= p->offset - graph->n_frozen + i)
                                        k++;
                                assert_int_equal(k % 2, statistics);
                        }
                }
                assert_int_equal(mfl_graph_by_layers(graph, NULL), 0);
        }
        mfl_graph_free(graph);
}

static void allocation_failures_leave_nothing_behind(void **state)
{
        for (int n = 0;; n++) {
                struct mfl_graph *graph = NULL;
                struct mfl_error err;
                mfl_alloc_fail_at(n);
                int r = mfl_graph_preset("pfl-cnn", &image32, 10, &graph, &err);
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(r, struck ? -ENOMEM : 0);
                mfl_graph_free(graph);
                if (!struck) {
                        assert_int_equal(n,
                                6); /* the graph, its layers, its table, names (twice), places of statistics */
                        break;
                }
                assert_null(graph);
        }
}

/* FNV-1a over the bits of the parameters. */
static uint64_t digest(const float *params, uint64_t n)
{
        const unsigned char *p = (const unsigned char *)params;
        uint64_t h = 0xcbf29ce484222325u;
        for (uint64_t i = 0; i < n * sizeof *params; i++)
                h = (h ^ p[i]) * 0x100000001b3u;
        return h;
}

static uint64_t digest_of_preset(const char *preset, const struct mfl_shape *shape, uint64_t seed)
{
        struct mfl_graph *graph;
        assert_int_equal(mfl_graph_preset(preset, shape, 10, &graph, NULL), 0);
        float *params = mfl_malloc(graph->n * sizeof *params);
        assert_non_null(params);
        mfl_graph_init_params(graph, seed, params);
        uint64_t h = digest(params, graph->n);
        free(params);
        mfl_graph_free(graph);
        return h;
}

/* Computed once, and for lenet5 again by an independent program; another value on any machine means that
 * seeds no longer give the same model. */
static void first_params_are_the_same_everywhere(void **state)
{
        assert_int_equal(digest_of_preset("lenet5", &image28, 1), 0x6db6e2ec8214a5c3u);
        assert_int_equal(digest_of_preset("mlp", &image28, 1), 0x6555b51b9bce1ce7u);
        assert_int_not_equal(digest_of_preset("lenet5", &image28, 2), 0x6db6e2ec8214a5c3u);
}

/* A uniform distribution on (-b, b) has mean 0 and variance b * b / 3. Over n = 9408 weights the mean's
 * standard error is b / sqrt(3 n) = 0.006 b; the limits below are five of them, and as wide for the variance.
 */
static void init_has_the_documented_spread(void **state)
{
        static const double bounds[] = {
                0.0875, 0.0868, 0.0357, 0}; /* he, glorot, torch, zero for 784 in, 12 out */
        for (int init = 0; init <= MFL_INIT_ZERO; init++) {
                struct mfl_layer layers[] = {input(1, 28, 28), dense(0, 12)};
                struct mfl_graph *graph;
                static float params[785 * 12];
                double sum = 0, squares = 0, b = bounds[init], largest = 0;
                layers[1].init = (enum mfl_init)init;
                assert_int_equal(mfl_graph_build("m", layers, 2, 12, &graph, NULL), 0);
                mfl_graph_init_params(graph, 5, params);
                for (int i = 0; i < 784 * 12; i++) {
                        sum += params[i];
                        squares += (double)params[i] * params[i];
                        largest = fmax(largest, fabs(params[i]));
                }
                assert_true(largest <= b * 1.001 && largest >= b * 0.99);
                assert_true(fabs(sum / 9408) <= 0.03 * b);
                assert_true(fabs(squares / 9408 - b * b / 3) <= 0.03 * b * b);
                for (int i = 784 * 12; i < 785 * 12; i++)
                        assert_true(init == MFL_INIT_TORCH ? params[i] != 0 : params[i] == 0);
                mfl_graph_free(graph);
        }
}

static void flops_count_multiplications_and_additions(void **state)
{
        struct mfl_layer layers[] = {
                input(1, 4, 4), conv(0, 2, 3), {.op = MFL_OP_RELU, .input = 1}, dense(2, 3)};
        struct mfl_graph *graph;
        uint64_t forward, training;
        assert_int_equal(mfl_graph_build("m", layers, 4, 3, &graph, NULL), 0);
        mfl_graph_flops(graph, &forward, &training);
        assert_int_equal(forward, (2 * 9 + 1) * 8 + 8 + (2 * 8 + 1) * 3);
        assert_int_equal(training, 2 * (2 * 9 + 1) * 8 + 2 * 8 + 3 * (2 * 8 + 1) * 3);
        mfl_graph_free(graph);
        struct mfl_layer branches[] = {input(2, 4, 4), conv(0, 2, 1), {.op = MFL_OP_TANH, .input = 0},
                join(1, 2), {.op = MFL_OP_BATCHNORM, .input = 3},
                {.op = MFL_OP_GLOBAL_AVGPOOL2D, .input = 4}};
        assert_int_equal(mfl_graph_build("m", branches, 6, 0, &graph, NULL), 0);
        mfl_graph_flops(graph, &forward, &training);
        assert_int_equal(forward, (2 * 2 + 1) * 32 + 32 + 32 + 8 * 32 + 32);
        assert_int_equal(training, 2 * (2 * 2 + 1) * 32 + 32 + 2 * 32 + 3 * 8 * 32 + 2 * 32);
        mfl_graph_free(graph);
}

static void descriptions_name_layers_and_sizes(void **state)
{
        struct mfl_graph *graph;
        assert_int_equal(mfl_graph_preset("logistic", &image28, 10, &graph, NULL), 0);
        char *text = mfl_graph_describe(graph);
        assert_string_equal(text,
                "layer                operator         output           parameters\n"
                "input                input            1x28x28                   0\n"
                "fc                   dense            10                     7850\n"
                "logistic: 7850 parameters (0.03 MiB), 0.02 MFLOP forward, 0.03 MFLOP training per sample\n");
        free(text);
        mfl_alloc_fail_at(0);
        assert_null(mfl_graph_describe(graph));
        mfl_alloc_fail_at(-1);
        mfl_graph_free(graph);
        assert_int_equal(mfl_graph_preset("resnet20", &image32, 10, &graph, NULL), 0);
        text = mfl_graph_describe(graph);
        assert_non_null(
                strstr(text, "\nbn1                  batchnorm        16x32x32                 64\n"));
        assert_non_null(strstr(text, "\nlayer2.0.downsample.0 conv2d           32x16x16                512  "
                                     "reads layer1.2.relu2\n"));
        assert_non_null(strstr(text, "  reads layer2.0.bn2, layer2.0.downsample.1\n"));
        assert_non_null(strstr(text, ": 274042 parameters (1.05 MiB), 1568 of them not trained, "));
        free(text);
        mfl_graph_free(graph);
}

/* The text of a refusal; "" if the layers form a graph of 2 classes. */
static void check_layers_of(const struct mfl_layer *layers, int n, const char *text)
{
        struct mfl_graph *graph = NULL;
        struct mfl_error err = {.text = ""};
        int r = mfl_graph_build("t", layers, n, 2, &graph, &err);
        if (!strstr(err.text, text))
                print_message("%s\n", err.text);
        assert_true((r == 0) == !*text && strstr(err.text, text));
        mfl_graph_free(graph);
}

static void tokens_have_their_readers(void **state)
{
        const struct mfl_layer embedding = {
                .op = MFL_OP_EMBEDDING, .input = 0, .vocabulary = 5, .out_channels = 6, .has_padding = true};
        struct mfl_layer layers[] = {{.op = MFL_OP_INPUT, .input = -1, .out = {1, {4}}}, embedding,
                {.op = MFL_OP_PADDING_MASK, .input = 0},
                {.op = MFL_OP_ATTENTION, .input = 1, .input2 = 2, .heads = 2},
                {.op = MFL_OP_DENSE, .input = 3, .out_channels = 2}};
        check_layers_of(layers, 5, "");
        layers[2].padding_idx = 5;
        check_layers_of(layers, 5, "(padding_mask): token 5 is outside the vocabulary");
        layers[2].padding_idx = 0;
        layers[2].input = 1;
        check_layers_of(layers, 5, "(padding_mask): reads the model's input, tokens in one dimension");
        layers[2].input = 0;
        /* What counts padding is whole; a mean of positions may be anything. */
        struct mfl_layer counted[] = {{.op = MFL_OP_INPUT, .input = -1, .out = {1, {4}}}, embedding,
                {.op = MFL_OP_PADDING_MASK, .input = 0}, {.op = MFL_OP_EXP, .input = 2},
                {.op = MFL_OP_EMBEDDING, .input = 3, .vocabulary = 2, .out_channels = 6},
                {.op = MFL_OP_ADD, .input = 1, .input2 = 4},
                {.op = MFL_OP_DENSE, .input = 5, .out_channels = 2}};
        check_layers_of(counted, 7, "");
        counted[3] = (struct mfl_layer){.op = MFL_OP_MEAN, .input = 1, .axis = 1};
        counted[2] = (struct mfl_layer){.op = MFL_OP_RELU, .input = 1};
        counted[5].input2 = 2;
        counted[5].input = 4;
        check_layers_of(counted, 7, "; an embedding reads the input (tokens), a slice");
        layers[1].padding_idx = 5;
        check_layers_of(layers, 5, "(embedding): padding_idx 5 is outside the vocabulary, 0 to 4");
        layers[1].padding_idx = 0;
        layers[2] = (struct mfl_layer){.op = MFL_OP_MEAN, .input = 1, .axis = 1};
        check_layers_of(layers, 5, "mask must name a padding_mask layer");
        struct mfl_layer columns[] = {layers[0], {.op = MFL_OP_SLICE, .input = 0, .start = 1, .end = 3},
                embedding, {.op = MFL_OP_DENSE, .input = 2, .out_channels = 2}};
        columns[2].input = 1;
        check_layers_of(columns, 4, "");
        columns[1] = (struct mfl_layer){.op = MFL_OP_RELU, .input = 0};
        check_layers_of(columns, 4, "an embedding reads the input (tokens), a slice of the input");
}

static void padding_starts_at_zero(void **state)
{
        const struct mfl_layer layers[] = {
                {.op = MFL_OP_INPUT, .input = -1, .out = {1, {4}}}, {.op = MFL_OP_EMBEDDING,
                                                                            .input = 0,
                                                                            .vocabulary = 3,
                                                                            .out_channels = 2,
                                                                            .has_padding = true,
                                                                            .padding_idx = 1,
                                                                            .init = MFL_INIT_TORCH}};
        struct mfl_graph *graph;
        struct mfl_error err;
        float params[6];
        assert_int_equal(mfl_graph_build("t", layers, 2, 2, &graph, &err), 0);
        mfl_graph_init_params(graph, 1, params);
        assert_true(params[2] == 0 && params[3] == 0 && params[1] != 0 && params[4] != 0);
        mfl_graph_free(graph);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(presets_have_the_published_sizes),
                cmocka_unit_test(frozen_params_come_first),
                cmocka_unit_test(presets_have_the_names_of_their_state_dicts),
                cmocka_unit_test(small_images_keep_their_size_longer),
                cmocka_unit_test(presets_of_text_predict_at_each_position),
                cmocka_unit_test(running_statistics_are_not_trained),
                cmocka_unit_test(a_residual_block_joins_two_layers),
                cmocka_unit_test(norms_get_defaults_and_names),
                cmocka_unit_test(bad_joins_and_norms_are_refused),
                cmocka_unit_test(shapes_are_inferred),
                cmocka_unit_test(a_last_window_may_reach_beyond),
                cmocka_unit_test(generated_names_avoid_given_ones),
                cmocka_unit_test(a_single_operator_is_a_graph_without_classes),
                cmocka_unit_test(bad_structure_is_refused),
                cmocka_unit_test(bad_layers_are_refused),
                cmocka_unit_test(presets_refuse_what_does_not_fit),
                cmocka_unit_test(places_of_running_statistics),
                cmocka_unit_test(allocation_failures_leave_nothing_behind),
                cmocka_unit_test(first_params_are_the_same_everywhere),
                cmocka_unit_test(init_has_the_documented_spread),
                cmocka_unit_test(flops_count_multiplications_and_additions),
                cmocka_unit_test(descriptions_name_layers_and_sizes),
                cmocka_unit_test(tokens_have_their_readers),
                cmocka_unit_test(padding_starts_at_zero),
        };
        return cmocka_run_group_tests_name("graph", tests, NULL, NULL);
}
