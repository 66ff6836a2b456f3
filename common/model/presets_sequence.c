/* SPDX-License-Identifier: Apache-2.0 */
/* Presets for text, which predict the token after each position, and a transformer for images. */
#include "common/model/presets.h"

static void push_embedding(struct mfl_chain *c, const char *name, int vocabulary, int width)
{
        struct mfl_layer *layer = mfl_chain_push(c, MFL_OP_EMBEDDING, name);
        layer->vocabulary = vocabulary;
        layer->out_channels = width;
}

/* The first reads nothing; the next one still reads the layer before the first. */
static int push_weight(struct mfl_chain *c, const char *name, int64_t rows, int64_t width)
{
        struct mfl_layer *layer = mfl_chain_push(c, MFL_OP_WEIGHT, name);
        layer->input = -1;
        layer->shape = (struct mfl_shape){2, {rows, width}};
        return mfl_chain_last(c);
}

static void push_lstm(struct mfl_chain *c, const char *name, int units)
{
        struct mfl_layer *layer = mfl_chain_push(c, MFL_OP_LSTM, name);
        layer->out_channels = units;
        layer->bias = true;
}

/* McMahan et al. 2017, section 3, "stacked character-level LSTM"; LEAF (Caldas et al. 2018) has the same. */
void mfl_preset_char_lstm(struct mfl_chain *c, const struct mfl_shape *input, int classes)
{
        push_embedding(c, "embedding", classes, 8);
        push_lstm(c, "lstm1", 256);
        push_lstm(c, "lstm2", 256);
        mfl_chain_dense(c, "fc", classes);
}

/* A block with its norms ahead (Radford et al. 2019, section 2.3): x + attention(norm(x)), then x +
 * mlp(norm(x)). The names of its parts differ from family to family. */
struct block {
        int width, heads;
        bool causal, approximate;
        float eps;
        const char *norm1, *qkv, *attend, *project, *norm2, *fc1, *fc2;
};

static void push_layernorm(struct mfl_chain *c, const char *name, float eps)
{
        struct mfl_layer *layer = mfl_chain_push(c, MFL_OP_LAYERNORM, name);
        layer->bias = true;
        layer->eps = eps;
}

static void push_block(struct mfl_chain *c, const struct block *b)
{
        int x = mfl_chain_last(c);
        push_layernorm(c, b->norm1, b->eps);
        mfl_chain_dense(c, b->qkv, 3 * b->width);
        struct mfl_layer *attention = mfl_chain_push(c, MFL_OP_ATTENTION, b->attend);
        attention->heads = b->heads;
        attention->causal = b->causal;
        mfl_chain_dense(c, b->project, b->width);
        mfl_chain_join(c, MFL_OP_ADD, "add1", x, mfl_chain_last(c));
        x = mfl_chain_last(c);
        push_layernorm(c, b->norm2, b->eps);
        mfl_chain_dense(c, b->fc1, 4 * b->width);
        mfl_chain_push(c, MFL_OP_GELU, "gelu")->approximate = b->approximate;
        mfl_chain_dense(c, b->fc2, b->width);
        mfl_chain_join(c, MFL_OP_ADD, "add2", x, mfl_chain_last(c));
}

/* GPT-2's block (GELU by tanh) and names, at the size that nanoGPT trains on a CPU: 4 blocks, 4 heads, width
 * 128, without dropout. The last layer has weights of its own, where GPT-2 shares the embedding's. */
void mfl_preset_char_gpt(struct mfl_chain *c, const struct mfl_shape *input, int classes)
{
        static const struct block block = {.width = 128,
                .heads = 4,
                .causal = true,
                .approximate = true,
                .norm1 = "ln_1",
                .qkv = "attn.c_attn",
                .attend = "attn.softmax",
                .project = "attn.c_proj",
                .norm2 = "ln_2",
                .fc1 = "mlp.c_fc",
                .fc2 = "mlp.c_proj"};
        c->init = MFL_INIT_GPT2;
        push_embedding(c, "transformer.wte", classes, block.width);
        int tokens = mfl_chain_last(c),
            at = push_weight(c, "transformer.wpe.weight", input->dim[0], block.width);
        mfl_chain_join(c, MFL_OP_ADD, "transformer.add", tokens, at);
        for (int i = 0; i < 4; i++) {
                mfl_chain_prefix(c, "transformer.h.%d.", i);
                push_block(c, &block);
        }
        mfl_chain_prefix(c, "%s", "");
        push_layernorm(c, "transformer.ln_f", 0);
        mfl_chain_dense(c, "lm_head", classes);
        c->layers[mfl_chain_last(c)].bias = false;
}

int mfl_preset_vit_patch(const struct mfl_shape *input)
{
        return MFL_MIN(input->dim[1], input->dim[2]) < 96 ? 4 : 16;
}

/* Dosovitskiy et al. 2021, equations 1 to 4, at the size DeiT-Ti of Touvron et al. 2021, table 1: 12 blocks,
 * 3 heads, width 192. Names, order and eps are timm's. */
void mfl_preset_vit_tiny(struct mfl_chain *c, const struct mfl_shape *input, int classes)
{
        static const struct block block = {.width = 192,
                .heads = 3,
                .eps = 1e-6f,
                .norm1 = "norm1",
                .qkv = "attn.qkv",
                .attend = "attn.softmax",
                .project = "attn.proj",
                .norm2 = "norm2",
                .fc1 = "mlp.fc1",
                .fc2 = "mlp.fc2"};
        int patch = mfl_preset_vit_patch(input), width = block.width;
        int64_t n = input->dim[1] / patch * (input->dim[2] / patch);
        c->init = MFL_INIT_GPT2;
        int token = push_weight(c, "cls_token", 1, width), at = push_weight(c, "pos_embed", n + 1, width);
        mfl_chain_conv(c, "patch_embed.proj", width, patch, 0);
        struct mfl_layer *patches = &c->layers[mfl_chain_last(c)];
        patches->input = 0;
        patches->stride[0] = patches->stride[1] = patch;
        mfl_chain_push(c, MFL_OP_RESHAPE, "patch_embed.flatten")->shape = (struct mfl_shape){2, {width, n}};
        mfl_chain_push(c, MFL_OP_TRANSPOSE, "patch_embed.transpose")->order[0] = 1;
        mfl_chain_join(c, MFL_OP_CONCAT, "concat", token, mfl_chain_last(c));
        mfl_chain_join(c, MFL_OP_ADD, "add", mfl_chain_last(c), at);
        for (int i = 0; i < 12; i++) {
                mfl_chain_prefix(c, "blocks.%d.", i);
                push_block(c, &block);
        }
        mfl_chain_prefix(c, "%s", "");
        push_layernorm(c, "norm", block.eps);
        mfl_chain_push(c, MFL_OP_SLICE, "token")->end = 1;
        mfl_chain_push(c, MFL_OP_RESHAPE, "pre_logits")->shape = (struct mfl_shape){1, {width}};
        mfl_chain_dense(c, "head", classes);
}
