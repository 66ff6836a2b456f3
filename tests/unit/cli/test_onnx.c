/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion of graphs that PyTorch's exporters wrote (1.13's, and the two of 2.15; the fuzz corpus holds
 * them), what comes back from an export, and damaged files. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/onnx/onnx.h"
#include "common/base/fs.h"
#include "tests/lib/test.h"

static char *read_graph(const char *name, size_t *ret_n)
{
        struct mfl_error err;
        char *bytes, path[1024];
        snprintf(path, sizeof path, "%s/%s", getenv("MFL_ONNX_FILES"), name);
        if (mfl_fs_read(path, 1 << 20, &bytes, ret_n, &err))
                fail_msg("%s", err.text);
        return bytes;
}

/* The operators of a list of layers, by their initials: enough to see which were recognised. */
static void ops_of(const char *text, char *ops, size_t room)
{
        size_t n = 0;
        for (const char *p = text; (p = strstr(p, "    - ")); p += 6) {
                size_t length = strcspn(p + 6, ":");
                assert_true(n + length + 2 < room);
                memcpy(ops + n, p + 6, length);
                ops[n + length] = ' ';
                n += length + 1;
        }
        ops[n ? n - 1 : 0] = '\0';
}

#define BLOCK "layernorm dense attention dense add layernorm dense gelu dense add "

#define ACTIVATIONS                                                                                          \
        "conv2d batchnorm hardswish maxpool2d leaky_relu global_avgpool2d conv2d hardsigmoid multiply "      \
        "dense elu dense softplus "
#define MISH "softplus tanh multiply dense"
#define SHUFFLED_HALVES "slice transpose reshape conv2d leaky_relu slice transpose reshape "

static const struct {
        const char *file, *ops;
        int classes;
} graphs[] = {{"torch113-mlp.17.1", "dense relu dense", 10},
        {"torch113-lstm.13.1", "embedding lstm dense", 12}, {"torch113-gru.11.0", "embedding gru dense", 12},
        {"torch113-mha.13.0", "embedding weight add layernorm dense attention dense add gelu mean dense", 4},
        {"torch113-gpt.17.1", "embedding weight add " BLOCK BLOCK "layernorm dense", 12},
        {"torch215-gpt.17.0", "embedding weight add " BLOCK BLOCK "layernorm dense", 12},
        {"torch113-mv2.13.0",
                "conv2d batchnorm relu6 conv2d batchnorm relu6 convtranspose2d avgpool2d slice sigmoid slice "
                "concat "
                "global_avgpool2d dropout dense",
                10},
        {"torch215-cnn.17.1", "conv2d batchnorm relu maxpool2d dropout dense", 10},
        {"torch215-sdpa.17.1", "embedding dense dense dense concat concat attention dense add dense", 12},
        {"torch215-sdpa.dynamo", "embedding dense dense dense concat concat attention dense add dense", 12},
        {"torch215-mha.dynamo", "embedding weight add layernorm dense attention dense add gelu mean dense",
                4},
        {"torch215-lstm.dynamo", "embedding lstm dense", 12},
        {"torch113-gn.17.1", "conv2d groupnorm relu conv2d dense", 5},
        {"torch215-gn.dynamo", "conv2d groupnorm relu conv2d dense", 5},
        {"torch215-gn.noopt", "conv2d groupnorm relu conv2d dense", 5},
        {"torch215-in.noopt", "conv2d groupnorm relu conv2d dense", 5},
        {"torch215-rms.noopt", "embedding dense rmsnorm dense", 12},
        {"torch215-swiglu.dynamo", "embedding dense dense silu dense multiply dense dense", 12},
        {"torch215-tel.noopt",
                "embedding dense layernorm dense attention dense add layernorm dense relu dense add dense",
                12},
        {"torch215-lstm2.noopt", "embedding lstm lstm dense", 12},
        {"torch215-acts.13.1", ACTIVATIONS MISH, 4}, {"torch215-acts.17.1", ACTIVATIONS MISH, 4},
        {"torch215-acts.noopt", ACTIVATIONS "mish dense", 4},
        {"torch215-shuffle.17.1",
                "conv2d slice conv2d leaky_relu slice concat reshape " SHUFFLED_HALVES
                "concat reshape " SHUFFLED_HALVES
                "concat reshape transpose reshape slice reshape conv2d tanh concat conv2d tanh concat conv2d "
                "tanh concat global_avgpool2d dense",
                10},
        {"torch215-depth.17.1", "conv2d hardswish weight dropout multiply add global_avgpool2d dense", 4}};

static void test_exporters(void **state)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(graphs); i++) {
                struct mfl_onnx_model model;
                struct mfl_error err;
                char ops[1024];
                size_t n;
                MFL_CLEANUP_FREE char *bytes = read_graph(graphs[i].file, &n);
                if (mfl_onnx_convert((uint8_t *)bytes, n, graphs[i].file, NULL, &model, &err))
                        fail_msg("%s", err.text);
                ops_of(model.text, ops, sizeof ops);
                assert_string_equal(ops, graphs[i].ops);
                assert_int_equal(model.classes, graphs[i].classes);
                mfl_onnx_model_deinit(&model);
        }
}

static void test_names_and_settings(void **state)
{
        struct mfl_onnx_model model;
        struct mfl_error err;
        size_t n;
        MFL_CLEANUP_FREE char *bytes = read_graph("torch113-gpt.17.1", &n);
        assert_int_equal(mfl_onnx_convert((uint8_t *)bytes, n, "gpt", NULL, &model, &err), 0);
        assert_non_null(strstr(model.text, "- weight: {name: 'wpe.weight', shape: [8, 8]}"));
        assert_non_null(strstr(model.text, "- dense: {name: 'h.1.qkv', units: 24}"));
        assert_non_null(strstr(model.text, "heads: 2, causal: true}"));
        assert_non_null(strstr(model.text, "- dense: {name: 'head', units: 12, bias: false}"));
        mfl_onnx_model_deinit(&model);
}

/* The scale and shift of a norm are its own, whatever an exporter makes of them. */
static void test_names_of_parts(void **state)
{
        static const struct {
                const char *file, *line;
        } lines[] = {{"torch113-gn.17.1", "- groupnorm: {name: 'n', norm_groups: 2}"},
                {"torch215-gn.noopt", "- groupnorm: {name: 'n', norm_groups: 2}"},
                {"torch215-in.noopt", "- groupnorm: {name: 'n', norm_groups: 8}"},
                {"torch215-lstm2.noopt", "- lstm: {name: 'rnn.1', units: 7}"},
                {"torch215-rms.noopt", "- rmsnorm: {name: 'mid', eps: "},
                {"torch215-acts.noopt", "- leaky_relu: {name: 'relu1', negative_slope: 0.200000003}"},
                {"torch215-acts.17.1", "- elu: {name: 'elu1', alpha: 0.699999988}"},
                {"torch215-acts.13.1", "- maxpool2d: {name: 'maxpool1', kernel: 2, ceil_mode: true}"},
                {"torch215-depth.17.1", "- dropout: {name: 'dropout1', rate: 0.5}"}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(lines); i++) {
                struct mfl_onnx_model model;
                struct mfl_error err;
                size_t n;
                MFL_CLEANUP_FREE char *bytes = read_graph(lines[i].file, &n);
                assert_int_equal(mfl_onnx_convert((uint8_t *)bytes, n, "m", NULL, &model, &err), 0);
                if (!strstr(model.text, lines[i].line))
                        fail_msg("%s: no %s in\n%s", lines[i].file, lines[i].line, model.text);
                mfl_onnx_model_deinit(&model);
        }
}

static void test_folded_batch_norm_is_refused(void **state)
{
        struct mfl_onnx_model model;
        struct mfl_error err;
        size_t n;
        MFL_CLEANUP_FREE char *bytes = read_graph("torch215-cnn.dynamo", &n);
        assert_int_equal(mfl_onnx_convert((uint8_t *)bytes, n, "c.onnx", NULL, &model, &err), MFL_INVALID);
        assert_non_null(
                strstr(err.text, "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False"));
}

/* Every beginning of a file is refused or, where only the end of the list of outputs is missing, read. */
static void test_truncated(void **state)
{
        struct mfl_onnx_model model;
        struct mfl_error err;
        size_t n;
        MFL_CLEANUP_FREE char *bytes = read_graph("torch113-mlp.17.1", &n);
        for (size_t cut = 0; cut < n; cut += 13) {
                int r = mfl_onnx_convert((uint8_t *)bytes, cut, "cut.onnx", NULL, &model, &err);
                assert_int_equal(r, MFL_INVALID);
                assert_non_null(strstr(err.text, "cut.onnx"));
        }
}

static void test_unknown_operator(void **state)
{
        struct mfl_onnx_model model;
        struct mfl_error err;
        size_t n;
        MFL_CLEANUP_FREE char *bytes = read_graph("torch113-mlp.17.1", &n);
        char *op = memmem(bytes, n, "\x22\x04Relu", 6);
        assert_non_null(op);
        memcpy(op + 2, "Rule", 4);
        assert_int_equal(mfl_onnx_convert((uint8_t *)bytes, n, "m.onnx", NULL, &model, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "m.onnx: the model's own forward(): node /Relu (Rule): this "
                                         "operator is not supported. Supported are Conv"));
}

/* Such as an export without optimisation leaves behind. */
static void test_unoptimised(void **state)
{
        struct mfl_onnx_model model;
        struct mfl_error err;
        size_t n;
        MFL_CLEANUP_FREE char *bytes = read_graph("torch215-gn.noopt", &n);
        char *op = memmem(bytes, n, "\x22\x04Relu", 6);
        assert_non_null(op);
        memcpy(op + 2, "Rule", 4);
        assert_int_equal(mfl_onnx_convert((uint8_t *)bytes, n, "m.onnx", NULL, &model, &err), MFL_INVALID);
        assert_non_null(strstr(err.text,
                "m.onnx: node node_relu (Rule): this operator is not supported, and the file was "
                "exported with optimize=False: torch.onnx.export(..., dynamo=True, optimize=True)"));
        /* A cast that changes the type of the samples is none of those that may be left out. */
        free(bytes);
        bytes = read_graph("torch215-gn.noopt", &n);
        op = memmem(bytes, n, "\x22\x04Relu", 6);
        memcpy(op + 2, "Cast", 4);
        assert_int_equal(mfl_onnx_convert((uint8_t *)bytes, n, "m.onnx", NULL, &model, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "node node_relu (Cast): converts the samples to other numbers"));
}

static void test_allocation_failures(void **state)
{
        size_t n;
        MFL_CLEANUP_FREE char *bytes = read_graph("torch113-mlp.17.1", &n);
        for (long at = 0;; at++) {
                struct mfl_onnx_model model = {.text = NULL};
                struct mfl_error err;
                mfl_alloc_fail_at(at);
                int r = mfl_onnx_convert((uint8_t *)bytes, n, "m.onnx", NULL, &model, &err);
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                mfl_onnx_model_deinit(&model);
                assert_int_equal(r, struck ? -ENOMEM : 0);
                if (!struck)
                        return;
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_exporters),
                cmocka_unit_test(test_names_and_settings),
                cmocka_unit_test(test_names_of_parts),
                cmocka_unit_test(test_folded_batch_norm_is_refused),
                cmocka_unit_test(test_truncated),
                cmocka_unit_test(test_unknown_operator),
                cmocka_unit_test(test_unoptimised),
                cmocka_unit_test(test_allocation_failures),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
