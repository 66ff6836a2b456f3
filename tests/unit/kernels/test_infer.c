/* SPDX-License-Identifier: Apache-2.0 */
/* Model files: what `mfl pull` writes opens again; raw samples of each type give what the graph gives for scaled ones; rows alone and
 * among others; files that are no models. */
#include "tests/lib/test.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "kernels/infer/infer.h"

static char path[64];
static const char job_text[] =
        "name: t\nrounds: 1\nmodel: {layers: [{conv2d: {filters: 3, kernel: 3}}, relu, flatten, {dense: "
        "{units: 4}}]}\n"
        "data: {name: d, partition: local}\ntraining: {lr: 0.1, epochs: 1, batch: 4}\n";
static const struct mfl_shape input = {3, {2, 5, 5}};

static int make_path(void **state)
{
        mfl_strcpy(path, sizeof path, "/tmp/test-infer-XXXXXX");
        int fd = mkstemp(path);
        return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
        return unlink(path);
}

static struct mfl_graph *graph_of(const char *text)
{
        struct mfl_job *job;
        struct mfl_graph *graph = NULL;
        struct mfl_error err = {""};
        if (mfl_job_parse(text, strlen(text), "job", &job, &err) ||
                mfl_job_graph(job, &input, 4, &graph, &err))
                fail_msg("%s", err.text);
        mfl_job_free(job);
        return graph;
}

static void write_job(const char *text, const char *contract, bool complete)
{
        struct mfl_graph *graph = graph_of(text);
        float *params = calloc(graph->n, sizeof *params);
        struct mfl_st_tensor tensors[8];
        struct mfl_model_meta meta;
        struct mfl_error err;
        int fd = open(path, O_WRONLY | O_TRUNC);
        mfl_graph_init_params(graph, 5, params);
        mfl_st_from_params(graph, params, tensors);
        mfl_model_meta(&meta, text, false, &input, 4, contract);
        assert_int_equal(
                mfl_st_write(fd, path, tensors, graph->n_params, meta.v, complete ? meta.n : 0, &err), 0);
        close(fd);
        free(params);
        mfl_graph_free(graph);
}

static void write_file(const char *contract, bool complete)
{
        write_job(job_text, contract, complete);
}

static struct mfl_infer *open_model(const char *backend)
{
        struct mfl_infer_options options = {.backend = backend, .batch_max = 8};
        struct mfl_infer *infer = NULL;
        struct mfl_error err = {""};
        if (mfl_infer_open(path, &options, &infer, &err))
                fail_msg("%s", err.text);
        return infer;
}

#define PIXELS                                                                                               \
        "{\"shape\":[2,5,5],\"type\":\"u8\",\"unit\":\"pixel\",\"classes\":4,\"scale\":[0.5,0.25],"          \
        "\"shift\":[-1,2]}"
#define ROWS 8
#define COUNT 50

static void run(const char *backend, const char *contract, const void *x, uint32_t n, float *y)
{
        struct mfl_error err;
        write_file(contract, true);
        struct mfl_infer *infer = open_model(backend);
        assert_int_equal(mfl_infer_outputs(infer), 4);
        assert_int_equal(mfl_infer_classes(infer), 4);
        assert_int_equal(mfl_infer_run(infer, n, x, y, &err), 0);
        mfl_infer_free(infer);
}

/* Bytes that the contract scales, and the same numbers scaled before: 0.5 and 0.25 are exact. */
static void raw_and_scaled(void **state)
{
        uint8_t bytes[ROWS * COUNT];
        float scaled[ROWS * COUNT], a[ROWS * 4], b[ROWS * 4];
        for (size_t i = 0; i < MFL_ARRAY_SIZE(bytes); i++) {
                bytes[i] = (uint8_t)(i * 37 % 251);
                scaled[i] = i / 25 % 2 ? (float)bytes[i] * 0.25f + 2 : (float)bytes[i] * 0.5f - 1;
        }
        static const char *const backends[] = {"reference", "cpu"};
        for (int k = 0; k < 2; k++) {
                const struct mfl_backend_ops *ops;
                if (mfl_backend_open(backends[k], &ops, NULL))
                        continue; /* a build without oneDNN */
                run(backends[k], PIXELS, bytes, ROWS, a);
                run(backends[k], NULL, scaled, ROWS, b);
                assert_memory_equal(a, b, sizeof a);
                for (uint32_t n = 1; n < ROWS; n++) {
                        run(backends[k], PIXELS, bytes + COUNT, n, b);
                        assert_memory_equal(a + 4, b, n * 4 * sizeof *b);
                }
        }
}

/* Columns are scaled as the reader of tables does it. */
/* Widths that fill no vector, no panel and no tile; one to four rows take other loops than more. */
static void dense_rows_alone_and_among_others(void **state)
{
        enum { N = 40, CLASSES = 4 };
        static const char text[] =
                "name: t\nrounds: 1\nmodel: {layers: [flatten, {dense: {units: 37}}, relu, {dense: {units: "
                "70}}, "
                "relu, {dense: {units: 131}}, relu, {dense: {units: 4}}]}\n"
                "data: {name: d, partition: local}\ntraining: {lr: 0.1, epochs: 1, batch: 4}\n";
        const struct mfl_infer_options options = {.backend = "cpu", .batch_max = N};
        struct mfl_infer *infer;
        struct mfl_error err;
        static float x[N * COUNT], alone[N * CLASSES], y[N * CLASSES];
        for (int i = 0; i < N * COUNT; i++)
                x[i] = sinf((float)i);
        write_job(text, "{\"shape\":[2,5,5],\"type\":\"f32\",\"unit\":\"number\",\"classes\":4}", true);
        if (mfl_infer_open(path, &options, &infer, &err))
                fail_msg("%s", err.text);
        for (int i = 0; i < N; i++)
                assert_int_equal(mfl_infer_run(infer, 1, x + (ptrdiff_t)i * COUNT,
                                         alone + (ptrdiff_t)i * CLASSES, &err),
                        0);
        assert_true(alone[0] != 0 && alone[0] != alone[CLASSES]);
        for (uint32_t n = 2; n <= N; n++) {
                assert_int_equal(mfl_infer_run(infer, n, x, y, &err), 0);
                assert_memory_equal(y, alone, n * CLASSES * sizeof *y);
        }
        mfl_infer_free(infer);
}

static void columns(void **state)
{
        static const char contract[] =
                "{\"shape\":[50],\"type\":\"f32\",\"classes\":4,\"mean\":[%s],\"std\":[%s]}";
        char mean[512] = "", std[512] = "", text[1200];
        float x[COUNT], scaled[COUNT], a[4], b[4];
        for (int i = 0; i < COUNT; i++) {
                mfl_snprintf(mean + strlen(mean), sizeof mean - strlen(mean), "%s%d", i ? "," : "", i);
                mfl_snprintf(std + strlen(std), sizeof std - strlen(std), "%s%d", i ? "," : "", i % 3 + 3);
                x[i] = (float)i / 7;
                scaled[i] = (float)(((double)x[i] - i) / (i % 3 + 3));
        }
        snprintf(text, sizeof text, contract, mean, std);
        run("reference", text, x, 1, a);
        run("reference", NULL, scaled, 1, b);
        assert_memory_equal(a, b, sizeof a);
}

static void refused(const char *says)
{
        struct mfl_infer_options options = {.backend = "reference", .batch_max = 8};
        struct mfl_infer *infer = NULL;
        struct mfl_error err = {""};
        assert_int_equal(mfl_infer_open(path, &options, &infer, &err), MFL_INVALID);
        if (!strstr(err.text, says))
                fail_msg("'%s' does not say '%s'", err.text, says);
}

static void no_models(void **state)
{
        struct mfl_infer_options options = {.backend = "reference"};
        struct mfl_infer *infer = NULL;
        struct mfl_error err = {""};
        write_file(NULL, false);
        refused("has params but not their model");
        write_file("{\"shape\":[7],\"type\":\"f32\"}", true);
        refused("its contract is of another model's input");
        write_file("{\"shape\":", true);
        refused("contract: not a JSON object");
        write_file(NULL, true);
        assert_int_equal(mfl_infer_open(path, &options, &infer, &err), MFL_INVALID); /* no rows at once */
        options.batch_max = 1;
        assert_int_equal(mfl_infer_open("/nonexistent/m.safetensors", &options, &infer, &err), MFL_NOT_FOUND);
        options.backend = "abacus";
        assert_int_equal(mfl_infer_open(path, &options, &infer, &err), MFL_NOT_FOUND);
}

/* The reference backend has no other, and says what to take. */
static void precisions(void **state)
{
        struct mfl_error err = {""};
        assert_int_equal(mfl_infer_check_precision("reference", MFL_PRECISION_FP32, true, &err), 0);
        assert_int_equal(mfl_infer_check_precision("reference", MFL_PRECISION_BF16, true, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "fp32"));
        assert_int_equal(
                mfl_infer_check_precision("reference", MFL_PRECISION_TF32, false, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "fp32 is computed everywhere"));
        assert_int_equal(mfl_infer_check_precision("abacus", MFL_PRECISION_FP32, true, &err), MFL_NOT_FOUND);
}

/* Without a contract a model wants floats that are scaled. */
static void without_contract(void **state)
{
        write_file(NULL, true);
        struct mfl_infer *infer = open_model("reference");
        const struct mfl_contract *c = mfl_infer_contract(infer);
        assert_true(c->normalised && c->dtype == MFL_F32 && c->classes == 4 && c->has_loss);
        mfl_infer_free(infer);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(raw_and_scaled),
                cmocka_unit_test(dense_rows_alone_and_among_others), cmocka_unit_test(columns),
                cmocka_unit_test(no_models), cmocka_unit_test(precisions),
                cmocka_unit_test(without_contract)};
        return cmocka_run_group_tests_name("infer", tests, make_path, remove_path);
}
