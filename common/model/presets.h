/* SPDX-License-Identifier: Apache-2.0 */
/* How presets are built: a chain of layers, and the makers of each family. Private to common/model. */
#ifndef MFL_COMMON_MODEL_PRESETS_H
#define MFL_COMMON_MODEL_PRESETS_H

#include "common/model/graph.h"

#define MFL_PRESET_LAYERS_MAX 192

/* Each layer reads the one before it, unless its maker names another. */
struct mfl_chain {
        struct mfl_layer layers[MFL_PRESET_LAYERS_MAX];
        int n;
        enum mfl_init init;
        char prefix[32]; /* of the names of layers that follow: "layer2.0." */
};

/* The new layer's name is the prefix and `name`. */
struct mfl_layer *mfl_chain_push(struct mfl_chain *c, enum mfl_op op, const char *name);
void mfl_chain_prefix(struct mfl_chain *c, const char *fmt, ...) MFL_PRINTF(2, 3);
/* The index of the layer that was pushed last. */
static inline int mfl_chain_last(const struct mfl_chain *c)
{
        return c->n - 1;
}
void mfl_chain_dense(struct mfl_chain *c, const char *name, int units);
void mfl_chain_conv(struct mfl_chain *c, const char *name, int filters, int kernel, int padding);
/* Without bias, because a norm follows, and padded by half of the kernel. */
struct mfl_layer *mfl_chain_bare_conv(
        struct mfl_chain *c, const char *name, int filters, int kernel, int stride);
void mfl_chain_pool(struct mfl_chain *c, enum mfl_op op, const char *name); /* 2x2 */
void mfl_chain_dropout(struct mfl_chain *c, const char *name, float rate);
void mfl_chain_join(struct mfl_chain *c, enum mfl_op op, const char *name, int input, int input2);

/* Each adds its layers after the input. */
typedef void mfl_preset_maker(struct mfl_chain *c, const struct mfl_shape *input, int classes);
mfl_preset_maker mfl_preset_logistic, mfl_preset_mlp, mfl_preset_lenet5, mfl_preset_fedavg_cnn,
        mfl_preset_pfl_cnn;
mfl_preset_maker mfl_preset_resnet18, mfl_preset_resnet18_gn, mfl_preset_resnet20, mfl_preset_resnet20_gn;
mfl_preset_maker mfl_preset_mobilenet_v2;
mfl_preset_maker mfl_preset_char_lstm, mfl_preset_char_gpt, mfl_preset_vit_tiny;
/* Pixels of a patch's side for images of that size. */
int mfl_preset_vit_patch(const struct mfl_shape *input);

#endif
