/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/test.h"
#include "common/model/safetensors.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* A file in memory: the header's text, then n_data bytes of zeros. */
struct file {
        _Alignas(8) unsigned char bytes[1024];
        size_t n;
};

static struct file make(const char *header, size_t n_data)
{
        struct file f = {{0}, 0};
        uint64_t length = strlen(header);
        memcpy(f.bytes, &length, 8);
        memcpy(f.bytes + 8, header, length);
        f.n = 8 + length + n_data;
        assert_true(f.n <= sizeof f.bytes);
        return f;
}

/* The header is padded to 8 bytes so that the data are aligned. */
static struct file make_aligned(const char *header, size_t n_data)
{
        char padded[1024];
        snprintf(padded, sizeof padded, "%-*s", (int)((strlen(header) + 7) / 8 * 8), header);
        return make(padded, n_data);
}

static void assert_refused(struct file f, const char *want)
{
        struct mfl_st_file *file = NULL;
        struct mfl_error err = {""};
        int r = mfl_st_parse(f.bytes, f.n, "x", &file, &err);
        assert_string_equal(err.text, want);
        assert_int_equal(r, MFL_INVALID);
        assert_null(file);
}

#define T(name, dtype, shape, begin, end)                                                                    \
        "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

static void bad_files_are_refused(void **state)
{
        struct file f = make("{}", 0);
        f.n = 7;
        assert_refused(f, "x: 7 bytes are too few for a safetensors file");
        f = make("{}", 0);
        f.bytes[0] = 3;
        assert_refused(f, "x: truncated: a header of 3 bytes in a file of 10");
        f.bytes[7] = 1;
        assert_refused(f, "x: a header of 72057594037927939 bytes; the limit is 16777216: it is no "
                          "safetensors file, or damaged");
        assert_refused(make("[]", 0), "x: the header must be a JSON object");
        assert_refused(make("{", 0), "x: the header is not JSON: string or '}' expected near end of file");
        assert_refused(
                make("{\"a\":1,\"a\":1}", 0), "x: the header is not JSON: duplicate object key near '\"a\"'");
        assert_refused(make("{}", 4), "x: 4 bytes after the last tensor");
        assert_refused(make("{\"a\":{}}", 0),
                "x: tensor a: must have dtype, shape and data_offsets, and nothing else");
        assert_refused(make("{\"a\":[1]}", 0),
                "x: tensor a: must have dtype, shape and data_offsets, and nothing else");
        assert_refused(
                make_aligned("{" T("a", "F31", "[1]", "0", "4") "}", 4), "x: tensor a: its dtype is unknown");
        assert_refused(make_aligned("{" T("a", "F32", "1", "0", "4") "}", 4),
                "x: tensor a: its shape must be a list of whole numbers");
        assert_refused(make_aligned("{" T("a", "F32", "[-1]", "0", "4") "}", 4),
                "x: tensor a: its shape must be a list of whole numbers");
        assert_refused(make_aligned("{" T("a", "F32", "[1.0]", "0", "4") "}", 4),
                "x: tensor a: its shape must be a list of whole numbers");
        assert_refused(make_aligned("{" T("a", "F32", "[4294967296,4294967296]", "0", "4") "}", 4),
                "x: tensor a: its shape is too large");
        assert_refused(make_aligned("{" T("a", "F32", "[4611686018427387905]", "0", "4") "}", 4),
                "x: tensor a: 4 bytes for 4611686018427387905 elements of F32");
        assert_refused(make_aligned("{" T("a", "F32", "[1,1,1,1,1]", "0", "4") "}", 4),
                "x: tensor a: it has more than 4 dimensions");
        assert_refused(make_aligned("{" T("a", "F32", "[1]", "-4", "0") "}", 4),
                "x: tensor a: its data_offsets must be two whole numbers");
        assert_refused(make_aligned("{" T("a", "F32", "[1]", "0", "4,8") "}", 4),
                "x: tensor a: its data_offsets must be two whole numbers");
        assert_refused(make_aligned("{" T("a", "F32", "[2]", "0", "8") "}", 4),
                "x: tensor a: bytes 0 to 8 are outside the file's 4");
        assert_refused(make_aligned("{" T("a", "F32", "[1]", "4", "0") "}", 4),
                "x: tensor a: bytes 4 to 0 are outside the file's 4");
        assert_refused(make_aligned("{" T("a", "F32", "[2]", "0", "4") "}", 4),
                "x: tensor a: 4 bytes for 2 elements of F32");
        assert_refused(
                make_aligned("{" T("a", "F32", "[1]", "0", "4") "," T("b", "F32", "[1]", "0", "4") "}", 4),
                "x: tensor b: starts at byte 0; expected 4 (overlap)");
        assert_refused(make_aligned("{" T("a", "F32", "[1]", "4", "8") "}", 8),
                "x: tensor a: starts at byte 4; expected 0 (gap)");
        assert_refused(
                make_aligned("{" T("a", "U8", "[1]", "0", "1") "," T("b", "F32", "[1]", "1", "5") "}", 5),
                "x: tensor b: its data are not aligned to 4 bytes");
        assert_refused(make_aligned("{" T("\\u001b", "U8", "[1]", "0", "1") "}", 1),
                "x: a tensor's name has a control character");
        assert_refused(
                make("{\"__metadata__\":{\"k\":1}}", 0), "x: __metadata__ must be an object of strings");
        assert_refused(make("{\"__metadata__\":[]}", 0), "x: __metadata__ must be an object of strings");
}

static void every_cut_of_a_good_file_is_refused(void **state)
{
        struct file f = make_aligned("{" T("a", "F32", "[2]", "0", "8") "}", 8);
        struct mfl_st_file *file = NULL;
        for (size_t n = 0; n < f.n; n++)
                assert_int_equal(mfl_st_parse(f.bytes, n, "x", &file, NULL), MFL_INVALID);
        assert_int_equal(mfl_st_parse(f.bytes, f.n, "x", &file, NULL), 0);
        mfl_st_close(file);
}

static void other_types_are_checked_but_not_shown(void **state)
{
        struct file f =
                make_aligned("{" T("n", "I64", "[]", "0", "8") "," T("a", "F32", "[0,3]", "8", "8") "}", 8);
        struct mfl_st_file *file;
        assert_int_equal(mfl_st_parse(f.bytes, f.n, "x", &file, NULL), 0);
        assert_int_equal(mfl_st_count(file), 1);
        assert_string_equal(mfl_st_tensor_at(file, 0)->name, "a");
        assert_null(mfl_st_find(file, "n"));
        assert_null(mfl_st_find(file, "m"));
        assert_null(mfl_st_meta_get(file, "k"));
        mfl_st_close(file);
}

static struct mfl_graph *small_graph(void)
{
        struct mfl_layer layers[] = {{.op = MFL_OP_INPUT, .out = {1, {2}}},
                {.op = MFL_OP_DENSE, .input = 0, .out_channels = 3, .bias = true, .name = "fc"}};
        struct mfl_graph *graph;
        assert_int_equal(mfl_graph_build("m", layers, 2, 3, &graph, NULL), 0);
        return graph;
}

static int temporary_file(char path[64])
{
        strcpy(path, "safetensors-test-XXXXXX");
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        return fd;
}

static void what_was_written_is_read_back(void **state)
{
        struct mfl_graph *graph = small_graph();
        float params[9], back[9] = {0};
        struct mfl_st_tensor tensors[3];
        struct mfl_st_meta meta[] = {{"round", "7"}, {"quote\"\\\n", "\x01 and \xc3\xa9"}};
        struct mfl_st_file *file;
        char path[64];
        for (int i = 0; i < 9; i++)
                params[i] = (float)i / 3;
        mfl_st_from_params(graph, params, tensors);
        tensors[2] = (struct mfl_st_tensor){"strategy/momentum", {0}, params, 1};
        int fd = temporary_file(path);
        assert_int_equal(mfl_st_write(fd, path, tensors, 3, meta, 2, NULL), 0);
        close(fd);
        assert_int_equal(mfl_st_open(path, &file, NULL), 0);
        unlink(path);
        assert_int_equal(mfl_st_count(file), 3);
        assert_string_equal(mfl_st_meta_get(file, "round"), "7");
        assert_string_equal(mfl_st_meta_get(file, meta[1].key), meta[1].value);
        assert_int_equal(mfl_st_find(file, "strategy/momentum")->count, 1);
        assert_int_equal(mfl_st_to_params(file, NULL, graph, back, NULL), 0);
        assert_memory_equal(back, params, sizeof params);
        mfl_st_close(file);
        mfl_graph_free(graph);
}

/* The exact bytes: what a reader in another language sees. */
static void the_layout_is_that_of_the_format(void **state)
{
        static const char header[] =
                "{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"F32\",\"shape\":[1,2],"
                "\"data_offsets\":[0,8]}}";
        float data[2] = {1, -2};
        struct mfl_st_tensor tensor = {"a", {2, {1, 2}}, data, 2};
        struct mfl_st_meta meta = {"k", "v"};
        unsigned char bytes[256];
        uint64_t length;
        char path[64];
        int fd = temporary_file(path);
        unlink(path);
        assert_int_equal(mfl_st_write(fd, path, &tensor, 1, &meta, 1, NULL), 0);
        ssize_t n = pread(fd, bytes, sizeof bytes, 0);
        close(fd);
        memcpy(&length, bytes, 8);
        assert_int_equal(length, (sizeof header - 1 + 7) / 8 * 8);
        assert_int_equal(n, 8 + length + 8);
        assert_memory_equal(bytes + 8, header, sizeof header - 1);
        for (size_t i = sizeof header - 1; i < length; i++)
                assert_int_equal(bytes[8 + i], ' ');
        assert_memory_equal(bytes + 8 + length, data, 8);
}

static void assert_not_the_model(struct file f, const char *want)
{
        struct mfl_graph *graph = small_graph();
        struct mfl_st_file *file;
        struct mfl_error err;
        float params[9] = {5};
        assert_int_equal(mfl_st_parse(f.bytes, f.n, "x", &file, NULL), 0);
        assert_int_equal(mfl_st_to_params(file, NULL, graph, params, &err), MFL_INVALID);
        assert_string_equal(err.text, want);
        assert_true(params[0] == 5);
        mfl_st_close(file);
        mfl_graph_free(graph);
}

#define WEIGHT T("fc.weight", "F32", "[3,2]", "0", "24")
static void files_of_other_models_are_refused(void **state)
{
        assert_not_the_model(make_aligned("{" WEIGHT "}", 24), "x: tensor fc.bias of the model is missing");
        assert_not_the_model(make_aligned("{" T("fc.weight", "F32", "[2,3]", "0", "24") "}", 24),
                "x: tensor fc.weight is 2x3; the model expects 3x2");
        assert_not_the_model(make_aligned("{" WEIGHT "," T("fc.bias", "F16", "[3]", "24", "30") "}", 30),
                "x: tensor fc.bias is F16; only F32 is supported");
        assert_not_the_model(make_aligned("{" WEIGHT "," T("fc.bias", "F32", "[3]", "24", "36") "," T(
                                                  "z", "F32", "[0]", "36", "36") "}",
                                     36),
                "x: the model has no tensor z");
}

/* A state_dict of a batch norm has a counter, which is passed over; that of another layer is too much. */
static void counters_of_batch_norms_are_passed_over(void **state)
{
#define NORM                                                                                                 \
        T("bn.weight", "F32", "[2]", "0", "8")                                                               \
        "," T("bn.bias", "F32", "[2]", "8", "16") "," T("bn.running_mean", "F32", "[2]", "16", "24") "," T(  \
                "bn.running_var", "F32", "[2]", "24", "32")
        struct mfl_layer layers[] = {{.op = MFL_OP_INPUT, .input = -1, .out = {1, {2}}},
                {.op = MFL_OP_BATCHNORM, .name = "bn", .input = 0}};
        const char *names[] = {"{" NORM "," T("bn.num_batches_tracked", "I64", "[]", "32", "40") "}",
                "{" NORM "," T("n.num_batches_tracked", "I64", "[]", "32", "40") "}"};
        struct mfl_graph *graph;
        assert_int_equal(mfl_graph_build("m", layers, 2, 2, &graph, NULL), 0);
        for (int i = 0; i < 2; i++) {
                struct file f = make_aligned(names[i], 40);
                struct mfl_st_file *file;
                struct mfl_error err;
                float params[8], values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
                memcpy(f.bytes + f.n - 40, values, sizeof values);
                assert_int_equal(mfl_st_parse(f.bytes, f.n, "x", &file, NULL), 0);
                assert_int_equal(mfl_st_to_params(file, NULL, graph, params, &err), i ? MFL_INVALID : 0);
                if (i)
                        assert_string_equal(err.text, "x: the model has no tensor n.num_batches_tracked");
                else
                        assert_memory_equal(params, values, sizeof values);
                mfl_st_close(file);
        }
        mfl_graph_free(graph);
}

static void missing_and_odd_files_are_told_apart(void **state)
{
        struct mfl_st_file *file;
        struct mfl_error err;
        assert_int_equal(mfl_st_open("no/such/file", &file, &err), MFL_NOT_FOUND);
        assert_string_equal(err.text, "no/such/file: no such file");
        assert_int_equal(mfl_st_open("/", &file, &err), MFL_INVALID);
        assert_string_equal(err.text, "/: not a safetensors file");
}

static void a_full_disk_is_an_error(void **state)
{
        float data[2] = {1, 2};
        struct mfl_st_tensor tensor = {"a", {1, {2}}, data, 2};
        struct mfl_error err;
        FILE *full = fopen("/dev/full", "w");
        assert_non_null(full);
        assert_int_equal(mfl_st_write(fileno(full), "out", &tensor, 1, NULL, 0, &err), -ENOSPC);
        assert_string_equal(err.text, "write out: No space left on device");
        fclose(full);
}

static void allocation_failures_leave_nothing_behind(void **state)
{
        struct file f = make_aligned("{" T("a", "F32", "[2]", "0", "8") "}", 8);
        bool struck = true;
        for (int n = 0; struck; n++) {
                struct mfl_st_file *file = NULL;
                mfl_alloc_fail_at(n);
                int r = mfl_st_parse(f.bytes, f.n, "x", &file, NULL);
                struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(r, struck ? -ENOMEM : 0);
                mfl_st_close(file);
        }
        float data[2] = {1, 2};
        struct mfl_st_tensor tensor = {"a", {1, {2}}, data, 2};
        mfl_alloc_fail_at(0);
        assert_int_equal(mfl_st_write(-1, "out", &tensor, 1, NULL, 0, NULL), -ENOMEM);
        mfl_alloc_fail_at(-1);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(bad_files_are_refused),
                cmocka_unit_test(every_cut_of_a_good_file_is_refused),
                cmocka_unit_test(counters_of_batch_norms_are_passed_over),
                cmocka_unit_test(other_types_are_checked_but_not_shown),
                cmocka_unit_test(what_was_written_is_read_back),
                cmocka_unit_test(the_layout_is_that_of_the_format),
                cmocka_unit_test(files_of_other_models_are_refused),
                cmocka_unit_test(missing_and_odd_files_are_told_apart),
                cmocka_unit_test(a_full_disk_is_an_error),
                cmocka_unit_test(allocation_failures_leave_nothing_behind),
        };
        return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
