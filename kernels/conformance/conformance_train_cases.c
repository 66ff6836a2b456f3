/* SPDX-License-Identifier: Apache-2.0 */
/* The training cases of the conformance program, and their data. */
#include "kernels/conformance/conformance_train.h"

/* Both norms, both kinds of shortcut, pools and an add before an add, without anything that decides: tanh in
 * place of ReLU. So rounding stays rounding, however many layers there are. */
static const struct mfl_layer smooth_layers[] = {{.op = MFL_OP_INPUT, .input = -1},
        {.op = MFL_OP_CONV2D, .input = 0, .out_channels = 20, .kernel = {3, 3}, .padding = {1, 1}},
        {.op = MFL_OP_BATCHNORM, .input = 1}, {.op = MFL_OP_TANH, .input = 2},
        {.op = MFL_OP_CONV2D, .input = 3, .out_channels = 20, .kernel = {3, 3}, .padding = {1, 1}},
        {.op = MFL_OP_BATCHNORM, .input = 4, .momentum = 0.3f}, {.op = MFL_OP_ADD, .input = 5, .input2 = 3},
        {.op = MFL_OP_TANH, .input = 6},
        {.op = MFL_OP_CONV2D,
                .input = 7,
                .out_channels = 32,
                .kernel = {3, 3},
                .stride = {2, 2},
                .padding = {1, 1}},
        {.op = MFL_OP_GROUPNORM, .input = 8, .norm_groups = 8},
        {.op = MFL_OP_CONV2D,
                .input = 7,
                .out_channels = 32,
                .kernel = {1, 1},
                .stride = {2, 2},
                .bias = true},
        {.op = MFL_OP_AVGPOOL2D, .input = 9, .kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}},
        {.op = MFL_OP_ADD, .input = 10, .input2 = 9}, {.op = MFL_OP_ADD, .input = 11, .input2 = 12},
        {.op = MFL_OP_BATCHNORM, .input = 13}, {.op = MFL_OP_DROPOUT, .input = 14, .rate = 0.2f},
        {.op = MFL_OP_GLOBAL_AVGPOOL2D, .input = 15},
        {.op = MFL_OP_DENSE, .input = 16, .out_channels = 16, .bias = true},
        {.op = MFL_OP_BATCHNORM, .input = 17}, {.op = MFL_OP_TANH, .input = 18},
        {.op = MFL_OP_DENSE, .input = 19, .out_channels = 10, .bias = true}};

/* A small transformer with everything that one has: GPT-2's block. */
#define WIDTH 12
static const struct mfl_layer gpt_layers[] = {{.op = MFL_OP_INPUT, .input = -1},
        {.op = MFL_OP_EMBEDDING, .input = 0, .vocabulary = 17, .out_channels = WIDTH},
        {.op = MFL_OP_WEIGHT, .shape = {2, {6, WIDTH}}, .init = MFL_INIT_TORCH},
        {.op = MFL_OP_ADD, .input = 1, .input2 = 2}, {.op = MFL_OP_LAYERNORM, .input = 3, .bias = true},
        {.op = MFL_OP_DENSE, .input = 4, .out_channels = 3 * WIDTH, .bias = true},
        {.op = MFL_OP_ATTENTION, .input = 5, .heads = 2, .causal = true, .rate = 0.1f},
        {.op = MFL_OP_DENSE, .input = 6, .out_channels = WIDTH, .bias = true},
        {.op = MFL_OP_ADD, .input = 3, .input2 = 7}, {.op = MFL_OP_LAYERNORM, .input = 8, .bias = true},
        {.op = MFL_OP_DENSE, .input = 9, .out_channels = 4 * WIDTH, .bias = true},
        {.op = MFL_OP_GELU, .input = 10, .approximate = true},
        {.op = MFL_OP_DENSE, .input = 11, .out_channels = WIDTH, .bias = true},
        {.op = MFL_OP_DROPOUT, .input = 12, .rate = 0.1f}, {.op = MFL_OP_ADD, .input = 8, .input2 = 13},
        {.op = MFL_OP_RMSNORM, .input = 14}, {.op = MFL_OP_DENSE, .input = 15, .out_channels = 17}};

static const struct mfl_layer lstm_layers[] = {{.op = MFL_OP_INPUT, .input = -1},
        {.op = MFL_OP_EMBEDDING, .input = 0, .vocabulary = 11, .out_channels = 5},
        {.op = MFL_OP_LSTM, .input = 1, .out_channels = 9, .bias = true},
        {.op = MFL_OP_GRU, .input = 2, .out_channels = 7, .bias = true},
        {.op = MFL_OP_DENSE, .input = 3, .out_channels = 11, .bias = true}};

static const struct mfl_layer tanh_layers[] = {{.op = MFL_OP_INPUT, .input = -1},
        {.op = MFL_OP_DENSE, .input = 0, .out_channels = 13, .bias = true}, {.op = MFL_OP_TANH, .input = 1},
        {.op = MFL_OP_DENSE, .input = 2, .out_channels = 6, .bias = true}};

/* More classes than a warp's, and than the CPU takes one by one. */
static const struct mfl_layer wide_layers[] = {{.op = MFL_OP_INPUT, .input = -1},
        {.op = MFL_OP_DENSE, .input = 0, .out_channels = 13, .bias = true}, {.op = MFL_OP_TANH, .input = 1},
        {.op = MFL_OP_DENSE, .input = 2, .out_channels = 90, .bias = true}};

static const struct mfl_layer wider_layers[] = {{.op = MFL_OP_INPUT, .input = -1},
        {.op = MFL_OP_DENSE, .input = 0, .out_channels = 13, .bias = true}, {.op = MFL_OP_TANH, .input = 1},
        {.op = MFL_OP_DENSE, .input = 2, .out_channels = 1100, .bias = true}};

/* Tokens and classes that 16 bits don't number, as Llama 3 and Qwen2 have them. */
static const struct mfl_layer numerous_layers[] = {{.op = MFL_OP_INPUT, .input = -1},
        {.op = MFL_OP_EMBEDDING, .input = 0, .vocabulary = 70000, .out_channels = 3},
        {.op = MFL_OP_DENSE, .input = 1, .out_channels = 70000}};

/* One part frozen, one part adapted. */
static const struct mfl_layer lora_layers[] = {{.op = MFL_OP_INPUT, .input = -1},
        {.op = MFL_OP_DENSE, .input = 0, .out_channels = 15, .bias = true, .lora_rank = 3, .lora_alpha = 6},
        {.op = MFL_OP_SILU, .input = 1},
        {.op = MFL_OP_DENSE, .input = 2, .out_channels = 9, .bias = true, .frozen = true},
        {.op = MFL_OP_GELU, .input = 3}, {.op = MFL_OP_DENSE, .input = 4, .out_channels = 6, .bias = true}};

/* MobileNet's block and a transposed convolution, with silu in place of ReLU6. */
static const struct mfl_layer depthwise_layers[] = {{.op = MFL_OP_INPUT, .input = -1},
        {.op = MFL_OP_CONV2D, .input = 0, .out_channels = 16, .kernel = {1, 1}},
        {.op = MFL_OP_BATCHNORM, .input = 1}, {.op = MFL_OP_SILU, .input = 2},
        {.op = MFL_OP_CONV2D,
                .input = 3,
                .out_channels = 16,
                .kernel = {3, 3},
                .stride = {2, 2},
                .padding = {1, 1},
                .conv_groups = 16},
        {.op = MFL_OP_BATCHNORM, .input = 4}, {.op = MFL_OP_SILU, .input = 5},
        {.op = MFL_OP_CONVTRANSPOSE2D, .input = 6, .out_channels = 8, .kernel = {2, 2}, .stride = {2, 2}},
        {.op = MFL_OP_GLOBAL_AVGPOOL2D, .input = 7}, {.op = MFL_OP_SIGMOID, .input = 8},
        {.op = MFL_OP_MULTIPLY, .input = 7, .input2 = 9},
        {.op = MFL_OP_DENSE, .input = 10, .out_channels = 6, .bias = true}};

/* GPT-2's ties: a head with the embedding's weight, and one block twice, its norm too, as ALBERT has it. */
static const struct mfl_layer tied_layers[] = {{.op = MFL_OP_INPUT, .input = -1},
        {.op = MFL_OP_EMBEDDING, .input = 0, .vocabulary = 17, .out_channels = WIDTH, .init = MFL_INIT_GPT2},
        {.op = MFL_OP_LAYERNORM, .input = 1, .bias = true},
        {.op = MFL_OP_DENSE, .input = 2, .out_channels = 3 * WIDTH, .bias = true},
        {.op = MFL_OP_ATTENTION, .input = 3, .heads = 2, .causal = true},
        {.op = MFL_OP_DENSE, .input = 4, .out_channels = WIDTH, .bias = true},
        {.op = MFL_OP_ADD, .input = 1, .input2 = 5},
        {.op = MFL_OP_LAYERNORM, .input = 6, .bias = true, .shares = 2},
        {.op = MFL_OP_DENSE, .input = 7, .out_channels = 3 * WIDTH, .bias = true, .shares = 3},
        {.op = MFL_OP_ATTENTION, .input = 8, .heads = 2, .causal = true},
        {.op = MFL_OP_DENSE, .input = 9, .out_channels = WIDTH, .bias = true, .shares = 5},
        {.op = MFL_OP_ADD, .input = 6, .input2 = 10},
        {.op = MFL_OP_DENSE, .input = 11, .out_channels = 17, .shares = 1, .sharing = MFL_SHARES_WEIGHT}};

/* A convolution and its norm on both halves of an image, and a head with the transposed weight. */
static const struct mfl_layer siamese_layers[] = {{.op = MFL_OP_INPUT, .input = -1},
        {.op = MFL_OP_SLICE, .input = 0, .axis = 1, .end = 4},
        {.op = MFL_OP_SLICE, .input = 0, .axis = 1, .start = 4},
        {.op = MFL_OP_CONV2D,
                .input = 1,
                .out_channels = 16,
                .kernel = {3, 3},
                .padding = {1, 1},
                .bias = true},
        {.op = MFL_OP_BATCHNORM, .input = 3}, {.op = MFL_OP_TANH, .input = 4},
        {.op = MFL_OP_CONV2D,
                .input = 2,
                .out_channels = 16,
                .kernel = {3, 3},
                .padding = {1, 1},
                .bias = true,
                .shares = 3},
        {.op = MFL_OP_BATCHNORM, .input = 6, .shares = 4}, {.op = MFL_OP_TANH, .input = 7},
        {.op = MFL_OP_GLOBAL_AVGPOOL2D, .input = 5}, {.op = MFL_OP_GLOBAL_AVGPOOL2D, .input = 8},
        {.op = MFL_OP_MULTIPLY, .input = 9, .input2 = 10},
        {.op = MFL_OP_DENSE, .input = 11, .out_channels = 6, .bias = true}, {.op = MFL_OP_TANH, .input = 12},
        {.op = MFL_OP_DENSE, .input = 13, .out_channels = 16, .shares = 12, .sharing = MFL_SHARES_TRANSPOSED},
        {.op = MFL_OP_TANH, .input = 14},
        {.op = MFL_OP_DENSE, .input = 15, .out_channels = 6, .bias = true, .shares = 12}};

/* A label per pixel: a small U-Net. */
static const struct mfl_layer unet_layers[] = {{.op = MFL_OP_INPUT, .input = -1},
        {.op = MFL_OP_CONV2D,
                .input = 0,
                .out_channels = 7,
                .kernel = {3, 3},
                .padding = {1, 1},
                .bias = true},
        {.op = MFL_OP_SILU, .input = 1},
        {.op = MFL_OP_AVGPOOL2D, .input = 2, .kernel = {2, 2}, .stride = {2, 2}},
        {.op = MFL_OP_CONV2D,
                .input = 3,
                .out_channels = 9,
                .kernel = {3, 3},
                .padding = {1, 1},
                .bias = true},
        {.op = MFL_OP_TANH, .input = 4},
        {.op = MFL_OP_CONVTRANSPOSE2D, .input = 5, .out_channels = 7, .kernel = {2, 2}, .stride = {2, 2}},
        {.op = MFL_OP_CONCAT, .input = 2, .input2 = 6},
        {.op = MFL_OP_CONV2D, .input = 7, .out_channels = 6, .kernel = {1, 1}, .bias = true}};

/* An auxiliary output beside the main one. */
static const struct mfl_layer heads_layers[] = {{.op = MFL_OP_INPUT, .input = -1},
        {.op = MFL_OP_DENSE, .input = 0, .out_channels = 13, .bias = true}, {.op = MFL_OP_TANH, .input = 1},
        {.op = MFL_OP_DENSE, .input = 2, .out_channels = 11, .bias = true}, {.op = MFL_OP_TANH, .input = 3},
        {.op = MFL_OP_DENSE, .input = 4, .out_channels = 6, .bias = true},
        {.op = MFL_OP_RESHAPE, .input = 5, .shape = {2, {1, 6}}},
        {.op = MFL_OP_DENSE, .input = 2, .out_channels = 6, .bias = true},
        {.op = MFL_OP_RESHAPE, .input = 7, .shape = {2, {1, 6}}},
        {.op = MFL_OP_CONCAT, .input = 6, .input2 = 8}};

#define LAYERS(list) .layers = list, .n_layers = MFL_ARRAY_SIZE(list)
/* Adam's eps is as large as the gradients: with a small eps, the sign of a gradient that is 0 except for
 * rounding would cause a whole step. */
#define ADAM(kind_, ...)                                                                                     \
        {                                                                                                    \
                .kind = kind_, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 0.01f, __VA_ARGS__                      \
        }

const struct conf_train_case mfl_conf_train_cases[] = {
        {"logistic opt", "logistic", {1, {30}}, 5, {.lr = 0.1f}},
        {"mlp opt", "mlp", {1, {20}}, 10, {.lr = 0.05f}},
        {"mlp clipped adamw", "mlp", {1, {20}}, 10,
                ADAM(MFL_OPTIMIZER_ADAMW, .lr = 0.01f, .weight_decay = 0.1f, .clip_norm = 0.2f, .prox_mu = 2,
                        .clip_prox = true),
                .scheduled = true},
        {"mlp momentum", "mlp", {3, {1, 5, 5}}, 10, {.lr = 0.05f, .momentum = 0.9f}},
        {"lenet5 opt", "lenet5", {3, {1, 14, 14}}, 10, {.lr = 0.1f}},
        {"lenet5 nesterov decay", "lenet5", {3, {3, 12, 12}}, 10,
                {.lr = 0.05f, .momentum = 0.9f, .weight_decay = 0.01f, .nesterov = true}},
        {"lenet5 prox", "lenet5", {3, {1, 12, 12}}, 10, {.lr = 0.05f, .prox_mu = 0.1f}},
        {"fedavg-cnn opt", "fedavg-cnn", {3, {1, 8, 8}}, 10, {.lr = 0.05f}},
        {"pfl-cnn momentum prox", "pfl-cnn", {3, {3, 8, 8}}, 10,
                {.lr = 0.02f, .momentum = 0.5f, .prox_mu = 0.01f}},
        {"mlp augmented", "mlp", {3, {3, 6, 5}}, 10, {.lr = 0.05f}, {.crop = 2, .flip = true}},
        {"lenet5 cropped", "lenet5", {3, {1, 14, 14}}, 10, {.lr = 0.1f}, {.crop = 4}},
        {"lenet5 flipped", "lenet5", {3, {2, 12, 12}}, 10, {.lr = 0.1f}, {.flip = true}},
        {"resnet20 momentum prox decay", "resnet20", {3, {3, 8, 8}}, 10,
                {.lr = 0.01f, .momentum = 0.5f, .weight_decay = 0.001f, .prox_mu = 0.01f}, .rows_min = 3,
                .deep = true},
        {"resnet20-gn opt", "resnet20-gn", {3, {3, 6, 6}}, 10, {.lr = 0.01f}, {.crop = 1, .flip = true},
                .deep = true},
        {"residual opt", NULL, {3, {3, 8, 7}}, 10, {.lr = 0.05f}, .rows_min = 4, LAYERS(smooth_layers)},
        {"residual momentum prox decay", NULL, {3, {3, 7, 7}}, 10,
                {.lr = 0.02f, .momentum = 0.5f, .weight_decay = 0.01f, .prox_mu = 0.01f},
                {.crop = 2, .flip = true}, .rows_min = 4, LAYERS(smooth_layers)},
        {"adam", NULL, {1, {20}}, 6, ADAM(MFL_OPTIMIZER_ADAM, .lr = 0.01f), LAYERS(tanh_layers)},
        {"adam decay prox", NULL, {1, {20}}, 6,
                ADAM(MFL_OPTIMIZER_ADAM, .lr = 0.01f, .weight_decay = 0.1f, .prox_mu = 0.1f),
                LAYERS(tanh_layers)},
        {"adamw", NULL, {1, {20}}, 6, ADAM(MFL_OPTIMIZER_ADAMW, .lr = 0.01f, .weight_decay = 0.5f),
                LAYERS(tanh_layers)},
        {"adagrad", NULL, {1, {20}}, 6, ADAM(MFL_OPTIMIZER_ADAGRAD, .lr = 0.01f, .weight_decay = 0.1f),
                LAYERS(tanh_layers)},
        {"clipped", NULL, {1, {20}}, 6, {.lr = 0.1f, .momentum = 0.9f, .clip_norm = 0.3f},
                LAYERS(tanh_layers)},
        {"clipped prox", NULL, {1, {20}}, 6,
                {.lr = 0.1f,
                        .momentum = 0.5f,
                        .weight_decay = 0.01f,
                        .clip_norm = 0.3f,
                        .prox_mu = 2,
                        .clip_prox = true},
                LAYERS(tanh_layers)},
        {"clipped prox adamw", NULL, {1, {20}}, 6,
                ADAM(MFL_OPTIMIZER_ADAMW, .lr = 0.02f, .weight_decay = 0.1f, .clip_norm = 0.2f, .prox_mu = 2,
                        .clip_prox = true),
                LAYERS(tanh_layers)},
        {"clipped before prox", NULL, {1, {20}}, 6, {.lr = 0.1f, .clip_norm = 0.3f, .prox_mu = 2},
                LAYERS(tanh_layers)},
        {"corrected", "lenet5", {3, {1, 12, 12}}, 10, {.lr = 0.05f}, .corrected = true},
        {"corrected prox decay", NULL, {3, {3, 7, 7}}, 10,
                {.lr = 0.02f, .weight_decay = 0.01f, .prox_mu = 0.1f}, .rows_min = 4, LAYERS(smooth_layers),
                .corrected = true},
        {"corrected clipped adam", NULL, {1, {20}}, 6,
                ADAM(MFL_OPTIMIZER_ADAM, .lr = 0.01f, .clip_norm = 0.3f, .prox_mu = 0.5f, .clip_prox = true),
                LAYERS(tanh_layers), .corrected = true},
        {"corrected accumulated", NULL, {1, {20}}, 6, {.lr = 0.1f}, LAYERS(tanh_layers), .accumulate = 3,
                .corrected = true},
        {"held", NULL, {3, {3, 7, 7}}, 10,
                {.lr = 0.02f, .momentum = 0.5f, .weight_decay = 0.01f, .moves = MFL_MOVES_OTHERS},
                .rows_min = 4, LAYERS(smooth_layers), .held = true},
        {"held corrected clipped adamw", NULL, {1, {20}}, 6,
                ADAM(MFL_OPTIMIZER_ADAMW, .lr = 0.02f, .weight_decay = 0.1f, .clip_norm = 0.2f, .prox_mu = 2,
                        .clip_prox = true, .moves = MFL_MOVES_PERSONAL),
                LAYERS(tanh_layers), .corrected = true, .held = true},
        {"held accumulated", "lenet5", {3, {1, 12, 12}}, 10, {.lr = 0.05f, .moves = MFL_MOVES_PERSONAL},
                .accumulate = 2, .held = true},
        {"clipped not at all", NULL, {1, {20}}, 6, {.lr = 0.1f, .clip_norm = 1000}, LAYERS(tanh_layers)},
        {"scheduled", NULL, {1, {20}}, 6, {.lr = 0.1f, .momentum = 0.5f}, LAYERS(tanh_layers),
                .scheduled = true},
        {"accumulated", NULL, {1, {20}}, 6, {.lr = 0.1f}, LAYERS(tanh_layers), .accumulate = 3},
        {"smoothed", NULL, {1, {20}}, 6, {.lr = 0.1f}, LAYERS(tanh_layers), .loss = {.smoothing = 0.2f}},
        {"binary", NULL, {1, {20}}, 6, {.lr = 0.1f}, LAYERS(tanh_layers), .loss = {.kind = MFL_LOSS_BINARY}},
        {"squared", NULL, {1, {20}}, 6, {.lr = 0.02f}, LAYERS(tanh_layers),
                .loss = {.kind = MFL_LOSS_SQUARED}, .accumulate = 2},
        {"weighted classes accumulated", NULL, {1, {20}}, 6, {.lr = 0.1f}, LAYERS(tanh_layers),
                .accumulate = 3, .weighted = true},
        {"weighted smoothed ignored", NULL, {2, {5, 8}}, 6, {.lr = 0.1f}, LAYERS(tanh_layers),
                .loss = {.smoothing = 0.2f, .has_ignored = true, .ignored = 2}, .positions = 5,
                .ignored = true, .weighted = true},
        {"focal", NULL, {1, {20}}, 6, {.lr = 0.1f}, LAYERS(tanh_layers),
                .loss = {.kind = MFL_LOSS_FOCAL, .parameter = 2}},
        {"focal weighted", NULL, {1, {20}}, 6, {.lr = 0.1f}, LAYERS(tanh_layers),
                .loss = {.kind = MFL_LOSS_FOCAL, .parameter = 0.5f}, .accumulate = 2, .weighted = true},
        {"binary weighted", NULL, {1, {20}}, 6, {.lr = 0.1f}, LAYERS(tanh_layers),
                .loss = {.kind = MFL_LOSS_BINARY}, .weighted = true},
        {"huber", NULL, {1, {20}}, 6, {.lr = 0.1f}, LAYERS(tanh_layers),
                .loss = {.kind = MFL_LOSS_HUBER, .parameter = 0.7f}},
        {"smooth l1", NULL, {1, {20}}, 6, {.lr = 0.05f}, LAYERS(tanh_layers),
                .loss = {.kind = MFL_LOSS_SMOOTH_L1, .parameter = 0.5f}, .accumulate = 2},
        {"l1", NULL, {1, {20}}, 6, {.lr = 0.05f}, LAYERS(tanh_layers), .loss = {.kind = MFL_LOSS_L1}},
        {"auxiliary output", NULL, {1, {20}}, 6, {.lr = 0.1f}, LAYERS(heads_layers),
                .loss = {.n_auxiliary = 1, .auxiliary_weights = {0.3f}}, .accumulate = 2},
        {"label per pixel", NULL, {3, {3, 6, 8}}, 6, {.lr = 0.1f, .momentum = 0.5f}, LAYERS(unet_layers),
                .positions = 48, .ignored = true},
        {"label per pixel weighted", NULL, {3, {3, 4, 6}}, 6, {.lr = 0.1f}, LAYERS(unet_layers),
                .accumulate = 2, .positions = 24, .ignored = true, .weighted = true},
        {"many classes weighted", NULL, {1, {20}}, 90, {.lr = 0.1f}, LAYERS(wide_layers), .weighted = true},
        {"many classes weighted smoothed", NULL, {1, {20}}, 90, {.lr = 0.1f}, LAYERS(wide_layers),
                .loss = {.smoothing = 0.1f}, .weighted = true},
        {"many classes focal", NULL, {1, {20}}, 90, {.lr = 0.1f}, LAYERS(wide_layers),
                .loss = {.kind = MFL_LOSS_FOCAL, .parameter = 2}},
        {"very many classes focal weighted", NULL, {1, {20}}, 1100, {.lr = 0.1f}, LAYERS(wider_layers),
                .loss = {.kind = MFL_LOSS_FOCAL, .parameter = 1.5f}, .weighted = true},
        {"70000 tokens", NULL, {1, {2}}, 70000, {.lr = 0.1f}, LAYERS(numerous_layers), .positions = 2,
                .vocabulary = 70000},
        {"several positions", NULL, {2, {5, 8}}, 6, {.lr = 0.1f}, LAYERS(tanh_layers), .positions = 5},
        {"lora and frozen", NULL, {1, {20}}, 6, {.lr = 0.2f, .momentum = 0.9f, .weight_decay = 0.1f},
                LAYERS(lora_layers)},
        {"lora clipped adamw", NULL, {1, {20}}, 6,
                ADAM(MFL_OPTIMIZER_ADAMW, .lr = 0.02f, .weight_decay = 0.1f, .clip_norm = 0.2f),
                LAYERS(lora_layers)},
        {"depthwise accumulated", NULL, {3, {3, 6, 6}}, 6, {.lr = 0.02f}, {.crop = 1, .flip = true},
                .rows_min = 4, LAYERS(depthwise_layers), .accumulate = 2},
        {"lstm ignored labels", NULL, {1, {7}}, 11, {.lr = 0.5f, .clip_norm = 0.5f}, LAYERS(lstm_layers),
                .positions = 7, .vocabulary = 11, .ignored = true},
        {"gpt adamw", NULL, {1, {6}}, 17,
                ADAM(MFL_OPTIMIZER_ADAMW, .lr = 0.01f, .weight_decay = 0.1f, .clip_norm = 1),
                LAYERS(gpt_layers), .positions = 6, .vocabulary = 17, .scheduled = true},
        {"tied momentum prox decay", NULL, {1, {6}}, 17,
                {.lr = 0.05f, .momentum = 0.5f, .weight_decay = 0.01f, .prox_mu = 0.01f}, LAYERS(tied_layers),
                .positions = 6, .vocabulary = 17},
        {"tied plain", NULL, {1, {6}}, 17, {.lr = 0.05f}, LAYERS(tied_layers), .positions = 6,
                .vocabulary = 17},
        {"tied adamw clipped accumulated", NULL, {1, {6}}, 17,
                ADAM(MFL_OPTIMIZER_ADAMW, .lr = 0.01f, .weight_decay = 0.1f, .clip_norm = 0.5f),
                LAYERS(tied_layers), .accumulate = 2, .positions = 6, .vocabulary = 17},
        {"siamese momentum", NULL, {3, {3, 8, 6}}, 6, {.lr = 0.05f, .momentum = 0.9f}, .rows_min = 4,
                LAYERS(siamese_layers)},
        {"siamese adagrad", NULL, {3, {3, 8, 6}}, 6, ADAM(MFL_OPTIMIZER_ADAGRAD, .lr = 0.01f), .rows_min = 4,
                LAYERS(siamese_layers)},
        {"gpt smoothed accumulated", NULL, {1, {6}}, 17, {.lr = 0.1f}, LAYERS(gpt_layers),
                .loss = {.smoothing = 0.1f}, .accumulate = 2, .positions = 6, .vocabulary = 17,
                .ignored = true},
};
const int mfl_conf_n_train_cases = MFL_ARRAY_SIZE(mfl_conf_train_cases);

/* Labels (-1 where they are ignored), or targets, which come from a stream of their own. */
static void make_answers(struct mfl_dataset *set, const struct conf_train_case *kase, struct mfl_rng *rng)
{
        size_t positions = kase->positions > 1 ? (size_t)kase->positions : 1;
        bool targets = mfl_loss_answers(kase->loss.kind) == MFL_ANSWERS_TARGETS;
        size_t n = CONF_SAMPLES * (targets ? (size_t)kase->classes : positions);
        if (targets) {
                set->classes = 0;
                set->n_targets = kase->classes;
                set->train.targets = mfl_conf_alloc(n * sizeof(float));
                mfl_conf_fill(set->train.targets, n, 13, 0, false);
                for (size_t i = 0; kase->loss.kind == MFL_LOSS_BINARY && i < n; i++)
                        set->train.targets[i] = set->train.targets[i] > 0 ? 1.0f : 0.0f;
                return;
        }
        set->labels_per_sample = (int)positions;
        set->train.labels = mfl_conf_alloc(n * sizeof *set->train.labels);
        for (size_t i = 0; i < n; i++) {
                set->train.labels[i] = (int32_t)mfl_rng_below(rng, (uint32_t)kase->classes);
                if (kase->ignored && i % 3 == 1)
                        set->train.labels[i] = -1;
        }
}

static void make_data(struct mfl_dataset *set, const struct conf_train_case *kase)
{
        struct mfl_rng rng = mfl_rng_new(11, MFL_RNG_TEST, 0, 0);
        size_t count = (size_t)mfl_shape_count(&kase->input) * CONF_SAMPLES;
        *set = (struct mfl_dataset){.shape = kase->input, .classes = kase->classes};
        set->vocabulary = kase->vocabulary;
        set->train = (struct mfl_split){.n = CONF_SAMPLES, .dtype = kase->vocabulary ? MFL_I32 : MFL_U8};
        set->train.samples = mfl_conf_alloc(count * (kase->vocabulary ? sizeof(int32_t) : 1));
        for (size_t i = 0; i < count; i++) {
                if (kase->vocabulary)
                        ((int32_t *)set->train.samples)[i] =
                                (int32_t)mfl_rng_below(&rng, (uint32_t)kase->vocabulary);
                else
                        ((uint8_t *)set->train.samples)[i] = (uint8_t)mfl_rng_below(&rng, 256);
        }
        make_answers(set, kase, &rng);
        for (int c = 0; c < MFL_CHANNELS_MAX; c++) {
                set->scale[c] = 1.0f / (64.0f + (float)c);
                set->shift[c] = -1.5f + 0.25f * (float)c;
        }
}

/* Different amounts of data: every group has its own partial batches, and steps in which it rests. In a step
 * of several batches the second is partial, or there is only a part of the first. */
static void make_groups(struct conf_training *t, const struct conf_train_case *kase)
{
        struct mfl_rng rng = mfl_rng_new(12, MFL_RNG_TEST, 0, 0);
        uint32_t parts = (uint32_t)MFL_MAX(1, kase->accumulate);
        for (uint32_t g = 0; g < CONF_GROUPS; g++) {
                uint32_t partial = MFL_MAX(kase->rows_min, 1 + g % CONF_BATCH);
                if (parts > 1 && g % 2)
                        partial += CONF_BATCH;
                for (uint32_t s = 0; s < CONF_STEPS; s++) {
                        t->count[g][s] = (s + g) % 4 == 2   ? 0
                                         : (s + g) % 3 == 1 ? MFL_MIN(partial, parts * CONF_BATCH)
                                                            : parts * CONF_BATCH;
                        t->lr_scale[g][s] = 1.0f / (float)(1 + s + g % 3);
                }
                for (uint32_t i = 0; i < CONF_STEPS * CONF_BATCH * parts; i++)
                        t->index[g][i] = mfl_rng_below(&rng, CONF_SAMPLES);
        }
}

static void make_graph(struct conf_training *t, const struct conf_train_case *kase)
{
        struct mfl_error err;
        size_t bytes = (size_t)kase->n_layers * sizeof *kase->layers;
        if (kase->preset) {
                mfl_conf_must(
                        mfl_graph_preset(kase->preset, &kase->input, kase->classes, &t->graph, &err), &err);
                return;
        }
        struct mfl_layer *layers = mfl_conf_alloc(bytes);
        memcpy(layers, kase->layers, bytes);
        layers[0].out = kase->input;
        mfl_conf_must(
                mfl_graph_build(kase->name, layers, kase->n_layers, kase->classes, &t->graph, &err), &err);
        free(layers);
}

void mfl_conf_training_init(struct conf_training *t, const struct conf_train_case *kase)
{
        *t = (struct conf_training){0};
        make_data(&t->set, kase);
        make_groups(t, kase);
        make_graph(t, kase);
        size_t n = (size_t)t->graph->n;
        t->first = mfl_conf_alloc(CONF_GROUPS * n * sizeof(float));
        t->params = mfl_conf_alloc(CONF_GROUPS * n * sizeof(float));
        t->acc = mfl_conf_alloc(n * sizeof *t->acc);
        for (uint64_t g = 0; g < CONF_GROUPS; g++)
                mfl_graph_init_params(t->graph, g, t->first + g * n);
        for (int i = 0; kase->held && i < t->graph->n_params; i++)
                t->graph->params[i].personal = t->graph->params[i].layer % 2;
}

void mfl_conf_training_deinit(struct conf_training *t)
{
        free(t->set.train.samples);
        free(t->set.train.labels);
        free(t->set.train.targets);
        free(t->first);
        free(t->params);
        free(t->acc);
        mfl_graph_free(t->graph);
}
