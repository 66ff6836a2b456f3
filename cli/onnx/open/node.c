/* SPDX-License-Identifier: Apache-2.0 */
/* Converts one node: checks it, and finds who knows its operator. */
#include "cli/onnx/internal.h"

/* Either the file is damaged, or an earlier node has more outputs than mfl makes. */
static int fail_missing(struct onnx *o, const char *input)
{
        for (int i = 0; i < o->node; i++) {
                const Onnx__NodeProto *node = o->graph->node[i];
                for (size_t k = 0; k < node->n_output; k++)
                        if (!strcmp(node->output[k], input))
                                return mfl_onnx_fail(o,
                                        "uses output %zu of node %.120s (%.20s), which mfl does not "
                                        "compute%s",
                                        k, node->name && *node->name ? node->name : "?", node->op_type,
                                        !strcmp(node->op_type, "TopK")
                                                ? "; mfl_export.save writes the places of up to 256 numbers"
                                        : !strcmp(node->op_type, "MaxPool")
                                                ? " (the places of the largest): instead of max_unpool use "
                                                  "F.interpolate or a ConvTranspose"
                                                : "");
        }
        return mfl_onnx_fail(o, "reads %.120s, which no earlier node computes", input);
}

static int check_node(struct onnx *o)
{
        const Onnx__NodeProto *node = mfl_onnx_node(o);
        bool own = !node->domain || !*node->domain || !strcmp(node->domain, "ai.onnx") ||
                   (!strcmp(node->domain, "mfl") && !strcmp(node->op_type, ONNX_STOP));
        if (!own && !strncmp(node->domain, "pkg.", 4))
                return mfl_onnx_fail(o,
                        "calls a function of %.120s that is not in the file; torch.onnx.export(..., "
                        "dynamo=True, optimize=True) writes it",
                        node->domain);
        if (!own)
                return mfl_onnx_fail(o,
                        "the operator is from domain %.120s; only ONNX's own operators are supported",
                        node->domain);
        for (size_t i = 0; i < node->n_input; i++) {
                const struct onnx_value *v = mfl_onnx_input(o, i);
                if (*node->input[i] && (!v || v->shape.rank < 0))
                        return fail_missing(o, node->input[i]);
        }
        return 0;
}

/* CastLike, which PyTorch's optimiser always removes. */
static bool is_unoptimised(const struct onnx *o)
{
        for (size_t i = 0; i < o->graph->n_node; i++)
                if (!strcmp(o->graph->node[i]->op_type, "CastLike"))
                        return true;
        return false;
}

/* Operators of modules that people have, and what to write instead. */
static const struct {
        const char *ops, *text; /* between blanks */
} known[] = {
        {" Loop ", "loops are not supported. nn.EmbeddingBag is exported as one: use nn.Embedding, "
                   "then mean(1) or "
                   "sum(1). Other loops over the positions: nn.LSTM, nn.GRU, or attention"},
        {" If ", "a choice while the model runs is not supported; export the branch that is trained"},
        {" Scan ", "loops are not supported; use nn.LSTM, nn.GRU, or attention"},
        {" ArgMax ArgMin Hardmax ",
                "has no gradient; of features, mfl_export.save writes it as comparisons, and of the model's "
                "outputs mfl chooses the class itself: return logits"},
        {" Mod BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot ",
                "is arithmetic of whole numbers; compute it "
                "before training, and store it with the data"},
        {" And Or Not Xor ",
                "joins conditions only: comparisons such as x > 0, constant masks, and others that it joins"},
        {" IsNaN IsInf ",
                "is not supported; mfl refuses updates that are not numbers by itself: leave out nan_to_num"},
        {" DFT STFT MelWeightMatrix HannWindow HammingWindow BlackmanWindow ",
                "a spectrum is not computed in training; "
                "compute it before, and store it with the data"},
        {" CumProd ", "is not supported; for positive values torch.exp(torch.log(x).cumsum(d)) is the same"},
        {" Det ", "is not supported; mfl has no linear algebra but products"},
        {" GridSample AffineGrid RoiAlign MaxRoiPool DeformConv ",
                "samples at computed positions; use nn.Upsample, "
                "slices or strided convolutions"},
        {" Col2Im ", "F.fold is not supported; nn.ConvTranspose2d with a kernel as large as its "
                     "stride joins patches"},
        {" MaxUnpool ", "is not supported; use nn.Upsample or nn.ConvTranspose2d"},
        {" ScatterElements ScatterND GatherND GatherElements ",
                "at computed positions is not supported; use a "
                "constant index, nn.Embedding, or a product with a mask; mfl_export.save writes scatter and "
                "scatter_add so"},
        {" QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul "
         "ConvInteger MatMulInteger ",
                "mfl trains floats; export the model before it is quantized"},
        {" SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss ",
                "the loss is not part of the model; export the model "
                "up to its scores, and name the loss in the job: training: {loss: ...}"},
        {" Multinomial RandomNormal RandomUniform RandomNormalLike RandomUniformLike Bernoulli ",
                "random numbers are "
                "supported as dropout and as stochastic depth"},
        {" NonMaxSuppression Unique Compress StringNormalizer TfIdfVectorizer ImageDecoder ",
                "gives a size that "
                "depends on the samples; do it before training, or after"},
        {" Equal ", "compares samples, which has no gradient; tokens may be compared with a constant, and "
                    "x > 1 and x < 3 is read"},
        {" NonZero ", "gives a size that depends on the samples; use a mask (torch.where) instead of "
                      "indexing by one"},
};

static int fail_known(struct onnx *o)
{
        char op[80];
        mfl_snprintf(op, sizeof op, " %.70s ", mfl_onnx_node(o)->op_type);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(known); i++)
                if (strstr(known[i].ops, op))
                        return mfl_onnx_fail(o, "%s", known[i].text);
        for (size_t i = 0; o->lifts[o->node] && i < mfl_onnx_node(o)->n_input; i++) {
                const struct onnx_value *v = mfl_onnx_input(o, i);
                if (v && !v->tensor)
                        return mfl_onnx_fail_computed(o, i, v);
        }
        return 0;
}

int mfl_onnx_convert_node(struct onnx *o)
{
        bool taken = false, lifted = false;
        if (mfl_onnx_is_copy(o, mfl_onnx_node(o)))
                return 0;
        int r = check_node(o);
        if (r || (r = mfl_onnx_zeros_step(o, &taken)) || taken)
                return r;
        if ((r = mfl_onnx_lift_inputs(o, &lifted)))
                return r;
        if (mfl_onnx_is_fold(o))
                return mfl_onnx_fold(o);
        if ((r = mfl_onnx_noise_step(o, &taken)) || taken)
                return r;
        if ((r = mfl_onnx_sequence_step(o, &taken)) || taken)
                return r;
        if ((r = mfl_onnx_tokens_step(o, &taken)) || taken)
                return r;
        if ((r = mfl_onnx_cut_step(o, &taken)) || taken)
                return r;
        if ((r = mfl_onnx_condition_step(o, &taken)) || taken)
                return r;
        if ((r = mfl_onnx_named_step(o, &taken)) || taken)
                return r;
        if ((r = mfl_onnx_computed_step(o, &taken)) || taken)
                return r;
        if ((r = mfl_onnx_attention_step(o, &taken)) || taken)
                return r;
        if ((r = mfl_onnx_norm_step(o, &taken)) || taken)
                return r;
        if ((r = mfl_onnx_groupnorm_step(o, &taken)) || taken)
                return r;
        if (mfl_onnx_is_elementwise(o))
                return mfl_onnx_elementwise(o);
        if (mfl_onnx_is_move(o))
                return mfl_onnx_move(o);
        if ((r = mfl_onnx_volume_step(o, &taken)) || taken)
                return r;
        if ((r = mfl_onnx_frames_step(o, &taken)) || taken)
                return r;
        if ((r = mfl_onnx_operator(o, &taken)) || taken)
                return r;
        if ((r = fail_known(o)))
                return r;
        if (is_unoptimised(o))
                return mfl_onnx_fail(o,
                        "this operator is not supported, and the file was exported with optimize=False: "
                        "torch.onnx.export(..., dynamo=True, optimize=True) may avoid it");
        return mfl_onnx_fail(o,
                "this operator is not supported. Supported are Conv, ConvTranspose, Gemm, MatMul, "
                "BatchNormalization, LayerNormalization, InstanceNormalization, GroupNormalization, Relu, "
                "LeakyRelu, Elu, Clip, Sigmoid, Tanh, HardSigmoid, HardSwish, Gelu, Softplus, pools, "
                "Pad, Resize, reductions, Reshape, Transpose, Slice, Concat, Add, Mul, Dropout, Softmax, "
                "LSTM, GRU, RNN, "
                "embeddings and attention");
}
