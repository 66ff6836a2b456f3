/* SPDX-License-Identifier: Apache-2.0 */
/* What backward keeps and what it computes again. The presets that users train, made small, give the same
 * bits with activations computed again (mfl_net_options.segments) as with everything kept, in less memory.
 * Operators and training cases are cut at every place in their own tests. For frozen layers in front, nothing
 * is kept: the bits are those of a network whose backward reaches the input. */
#include "kernels/conformance/conformance_train.h"

static const struct conf_train_case cases[] = {
        {"checkpoint resnet20", "resnet20", {3, {3, 4, 4}}, 10, {.lr = 0.01f, .momentum = 0.5f},
                .rows_min = 3, .accumulate = 2},
        {"checkpoint char-gpt", "char-gpt", {1, {5}}, 7, {.lr = 0.01f, .clip_norm = 1}, .positions = 5,
                .vocabulary = 7},
        {"checkpoint mobilenet-v2", "mobilenet-v2", {3, {3, 8, 8}}, 10, {.lr = 0.01f}, .rows_min = 3,
                .deep = true},
        {"checkpoint vit-tiny", "vit-tiny", {3, {3, 8, 8}}, 10, {.lr = 0.01f}, .deep = true},
        {"checkpoint char-lstm", "char-lstm", {1, {4}}, 7, {.lr = 0.1f}, .positions = 4, .vocabulary = 7,
                .deep = true},
};

#define FROZEN_CONV(from, n)                                                                                 \
        {                                                                                                    \
                .op = MFL_OP_CONV2D, .input = from, .out_channels = n, .kernel = {3, 3}, .padding = {1, 1},  \
                .frozen = true                                                                               \
        }
/* Two frozen blocks with moving running statistics, the second added to a trained branch; a trained norm of
 * frozen features; a frozen layer between trained ones. */
static const struct mfl_layer frozen_images[] = {{.op = MFL_OP_INPUT, .input = -1}, FROZEN_CONV(0, 8),
        {.op = MFL_OP_BATCHNORM, .input = 1, .frozen = true}, {.op = MFL_OP_RELU, .input = 2},
        FROZEN_CONV(3, 8), {.op = MFL_OP_BATCHNORM, .input = 4, .frozen = true},
        {.op = MFL_OP_ADD, .input = 5, .input2 = 3}, {.op = MFL_OP_RELU, .input = 6},
        {.op = MFL_OP_CONV2D, .input = 7, .out_channels = 8, .kernel = {3, 3}, .padding = {1, 1}},
        FROZEN_CONV(7, 8), {.op = MFL_OP_BATCHNORM, .input = 9, .frozen = true},
        {.op = MFL_OP_ADD, .input = 10, .input2 = 8}, {.op = MFL_OP_BATCHNORM, .input = 11},
        {.op = MFL_OP_RELU, .input = 12},
        {.op = MFL_OP_MAXPOOL2D, .input = 13, .kernel = {2, 2}, .stride = {2, 2}}, FROZEN_CONV(14, 8),
        {.op = MFL_OP_SILU, .input = 15}, {.op = MFL_OP_GLOBAL_AVGPOOL2D, .input = 16},
        {.op = MFL_OP_DENSE, .input = 17, .out_channels = 6, .bias = true}};

/* A transformer whose embedding and first block are frozen, with adapters in the rest. */
static const struct mfl_layer frozen_text[] = {{.op = MFL_OP_INPUT, .input = -1},
        {.op = MFL_OP_EMBEDDING, .input = 0, .vocabulary = 7, .out_channels = 8, .frozen = true},
        {.op = MFL_OP_WEIGHT, .input = -1, .shape = {2, {4, 8}}, .frozen = true},
        {.op = MFL_OP_ADD, .input = 1, .input2 = 2},
        {.op = MFL_OP_LAYERNORM, .input = 3, .bias = true, .frozen = true},
        {.op = MFL_OP_DENSE, .input = 4, .out_channels = 24, .frozen = true},
        {.op = MFL_OP_ATTENTION, .input = 5, .heads = 2, .causal = true, .rate = 0.1f},
        {.op = MFL_OP_ADD, .input = 3, .input2 = 6},
        {.op = MFL_OP_LAYERNORM, .input = 7, .bias = true, .frozen = true},
        {.op = MFL_OP_DENSE, .input = 8, .out_channels = 24, .bias = true, .lora_rank = 2},
        {.op = MFL_OP_ATTENTION, .input = 9, .heads = 2, .causal = true},
        {.op = MFL_OP_DENSE, .input = 10, .out_channels = 8, .frozen = true},
        {.op = MFL_OP_ADD, .input = 7, .input2 = 11},
        {.op = MFL_OP_DENSE, .input = 12, .out_channels = 7, .bias = true, .lora_rank = 2}};

static const struct conf_train_case frozen_cases[] = {
        {"frozen images", NULL, {3, {3, 4, 4}}, 6, {.lr = 0.05f, .momentum = 0.5f}, .rows_min = 3,
                .layers = frozen_images, .n_layers = MFL_ARRAY_SIZE(frozen_images)},
        {"frozen text", NULL, {1, {4}}, 7, {.lr = 0.05f, .clip_norm = 1}, .layers = frozen_text,
                .n_layers = MFL_ARRAY_SIZE(frozen_text), .positions = 4, .vocabulary = 7},
};

/* Against a backward through all layers, with everything kept and with parts computed again. */
static void test_frozen(const struct conf_backend *b, const struct conf_train_case *kase)
{
        static const int segments[] = {0, 0, MFL_SEGMENTS_AUTO, 2};
        struct conf_training t[MFL_ARRAY_SIZE(segments)];
        size_t n = 0, most = conf_quick ? 3 : MFL_ARRAY_SIZE(segments);
        while (n < most) {
                mfl_conf_training_init(&t[n], kase);
                t[n].segments = segments[n];
                t[n].input_grad = n == 0;
                mfl_conf_train(b, &t[n], kase, 1, 1);
                if (t[n++].refused)
                        break;
        }
        for (size_t k = 1; k < n && !t[0].refused && !t[k].refused; k++)
                mfl_conf_report(mfl_conf_training_same(&t[k], &t[0], 0, 1) &&
                                        t[k].plan.tensor_bytes < t[0].plan.tensor_bytes,
                        "%s: %s: %d segments, the bits of a whole backward, %.0f%% of its tensors", b->label,
                        kase->name, t[k].plan.segments,
                        100.0 * (double)t[k].plan.tensor_bytes / (double)t[0].plan.tensor_bytes);
        while (n > 0)
                mfl_conf_training_deinit(&t[--n]);
}

static void test_case(const struct conf_backend *b, const struct conf_train_case *kase)
{
        static const int segments[] = {0, MFL_SEGMENTS_AUTO, 3};
        struct conf_training t[MFL_ARRAY_SIZE(segments)];
        /* Other backends run their groups one after another. */
        size_t n = 0, groups = strcmp(b->ops->name, "cuda") ? 1 : 2;
        while (n < MFL_ARRAY_SIZE(segments)) {
                mfl_conf_training_init(&t[n], kase);
                t[n].segments = segments[n];
                mfl_conf_train(b, &t[n], kase, 1, groups);
                if (t[n++].refused)
                        break;
        }
        for (size_t k = 1; k < n && !t[0].refused && !t[k].refused; k++) {
                bool same = mfl_conf_training_same(&t[k], &t[0], 0, groups);
                bool less = t[k].plan.tensor_bytes < t[0].plan.tensor_bytes;
                bool cut = segments[k] > 0 ? t[k].plan.segments == segments[k] : t[k].plan.segments > 1;
                mfl_conf_report(same && less && cut,
                        "%s: %s: %d segments, the bits of one, %.0f%% of its tensors", b->label, kase->name,
                        t[k].plan.segments,
                        100.0 * (double)t[k].plan.tensor_bytes / (double)t[0].plan.tensor_bytes);
        }
        while (n > 0)
                mfl_conf_training_deinit(&t[--n]);
}

void mfl_conf_test_checkpoint(const struct conf_backend *backend, const char *filter)
{
        /* Plain loops are too slow for the deep networks. */
        bool quick = conf_quick || !strcmp(backend->ops->name, "reference");
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++)
                if (strstr(cases[i].name, filter) && !(quick && cases[i].deep) &&
                        mfl_conf_begin("%s: %s", backend->label, cases[i].name))
                        test_case(backend, &cases[i]);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(frozen_cases); i++)
                if (strstr(frozen_cases[i].name, filter) &&
                        mfl_conf_begin("%s: %s", backend->label, frozen_cases[i].name))
                        test_frozen(backend, &frozen_cases[i]);
}
