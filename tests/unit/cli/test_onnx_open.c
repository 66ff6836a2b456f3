/* SPDX-License-Identifier: Apache-2.0 */
/* ONNX files read in the sandbox, by this program as its own child: deep and large ones, and external data.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/onnx/onnx.h"
#include "cli/onnx/open/child.h"
#include "cli/proof/proof.h"
#include "common/base/fs.h"
#include "common/job/job.h"
#include "onnx.pb-c.h"
#include "tests/lib/test.h"

#define UNITS 8
#define EACH (UNITS * UNITS * sizeof(float)) /* bytes of a weight */

static char folder[] = "/tmp/mfl-onnx-XXXXXX";

static const char *in_folder(const char *name)
{
        static char path[4][256];
        static int at;
        at = (at + 1) % 4;
        snprintf(path[at], sizeof path[at], "%s/%s", folder, name);
        return path[at];
}

/* n_layers dense ones of UNITS units; the params are told. */
static struct mfl_graph *write_model(const char *path, int n_layers, float **ret_params)
{
        struct mfl_layer *layers = mfl_calloc((size_t)n_layers + 1, sizeof *layers);
        struct mfl_graph *graph;
        struct mfl_error err;
        layers[0] = (struct mfl_layer){.op = MFL_OP_INPUT, .input = -1, .out = {1, {UNITS}}};
        for (int i = 1; i <= n_layers; i++)
                layers[i] = (struct mfl_layer){.op = MFL_OP_DENSE, .input = i - 1, .out_channels = UNITS};
        assert_int_equal(mfl_graph_build("deep", layers, n_layers + 1, UNITS, &graph, &err), 0);
        free(layers);
        float *params = mfl_calloc((size_t)graph->n, sizeof *params);
        mfl_graph_init_params(graph, 7, params);
        assert_int_equal(mfl_onnx_write(path, graph, params, &err), 0);
        *ret_params = params;
        return graph;
}

/* glibc's allocator and its qsort ask the system for more the more there is: nothing of it may end the child.
 */
static void test_a_deep_model(void **state)
{
        struct mfl_onnx_model model;
        struct mfl_error err;
        float *params;
        struct mfl_graph *graph = write_model(in_folder("deep.onnx"), 600, &params);
        if (mfl_onnx_open(in_folder("deep.onnx"), 0, false, &model, &err))
                fail_msg("%s", err.text);
        assert_int_equal(model.n, graph->n);
        assert_memory_equal(model.params, params, graph->n * sizeof *params);
        mfl_onnx_model_deinit(&model);
        mfl_graph_free(graph);
        free(params);
}

/* ---- external data ---- */

struct place {
        const char *location, *offset, *length; /* NULL: that key is left out */
};

static void set_entry(Onnx__TensorProto *t, size_t i, const char *key, const char *value)
{
        static Onnx__StringStringEntryProto entries[8];
        static Onnx__StringStringEntryProto *list[8];
        onnx__string_string_entry_proto__init(&entries[i]);
        entries[i].key = (char *)(uintptr_t)key;
        entries[i].value = (char *)(uintptr_t)value;
        list[i] = &entries[i];
        t->external_data = list;
        t->n_external_data = i + 1;
}

/* One dense layer whose weight is at that place; "m.onnx". */
static float *write_external(const struct place *place)
{
        struct mfl_error err;
        float *params;
        char *bytes;
        size_t n;
        const char *path = in_folder("m.onnx");
        mfl_graph_free(write_model(path, 1, &params));
        assert_int_equal(mfl_fs_read(path, 1 << 20, &bytes, &n, &err), 0);
        Onnx__ModelProto *model = onnx__model_proto__unpack(NULL, n, (uint8_t *)bytes);
        Onnx__TensorProto *t = model->graph->initializer[0], saved = *t;
        assert_int_equal(t->raw_data.len, EACH);
        t->has_raw_data = false;
        t->has_data_location = true;
        t->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
        if (place->location)
                set_entry(t, t->n_external_data, "location", place->location);
        if (place->offset)
                set_entry(t, t->n_external_data, "offset", place->offset);
        if (place->length)
                set_entry(t, t->n_external_data, "length", place->length);
        uint8_t packed[4096];
        assert_true(onnx__model_proto__get_packed_size(model) <= sizeof packed);
        n = onnx__model_proto__pack(model, packed);
        FILE *f = fopen(path, "wb");
        assert_true(f && fwrite(packed, 1, n, f) == n && !fclose(f));
        *t = saved;
        onnx__model_proto__free_unpacked(model, NULL);
        free(bytes);
        return params;
}

/* The weight `at` bytes into a file of `size` bytes, the rest of it a hole. */
static void write_data(const char *name, const float *params, uint64_t at, uint64_t size)
{
        int fd = open(in_folder(name), O_CREAT | O_TRUNC | O_WRONLY, 0600);
        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, (off_t)size), 0);
        assert_int_equal(pwrite(fd, params, EACH, (off_t)at), EACH);
        close(fd);
}

static void check_reads(const struct place *place, const char *file, uint64_t at, uint64_t size)
{
        struct mfl_onnx_model model;
        struct mfl_error err;
        MFL_CLEANUP_FREE float *params = write_external(place);
        write_data(file, params, at, size);
        if (mfl_onnx_open(in_folder("m.onnx"), 0, false, &model, &err))
                fail_msg("%s", err.text);
        assert_memory_equal(model.params, params, EACH);
        mfl_onnx_model_deinit(&model);
        unlink(in_folder(file));
}

static void test_external_data(void **state)
{
        char length[32], far[32];
        uint64_t gib = (uint64_t)1 << 30;
        snprintf(length, sizeof length, "%zu", EACH);
        assert_int_equal(mkdir(in_folder("weights"), 0700), 0);
        check_reads(&(struct place){"m.data", "0", length}, "m.data", 0, EACH);
        check_reads(&(struct place){"m.data", "33", length}, "m.data", 33, EACH + 33);
        check_reads(&(struct place){"m.data", NULL, NULL}, "m.data", 0, EACH);
        /* No length: what the shape needs, of a file that holds more. */
        check_reads(&(struct place){"weights/m.data", "64", NULL}, "weights/m.data", 64, 4096);
        /* More than the child may take for the model file alone. */
        snprintf(far, sizeof far, "%llu", (unsigned long long)(9 * gib));
        check_reads(&(struct place){"m.data", far, length}, "m.data", 9 * gib, 9 * gib + EACH);
}

static void check_refused(const struct place *place, const char *says)
{
        struct mfl_onnx_model model;
        struct mfl_error err;
        free(write_external(place));
        assert_int_equal(mfl_onnx_open(in_folder("m.onnx"), 0, false, &model, &err), MFL_INVALID);
        if (!strstr(err.text, says))
                fail_msg("%s: expected: %s", err.text, says);
}

static void test_external_data_refused(void **state)
{
        MFL_CLEANUP_FREE float *params = write_external(&(struct place){"m.data", NULL, NULL});
        write_data("m.data", params, 0, EACH + 100);
        assert_int_equal(symlink("m.data", in_folder("link.data")), 0);
        assert_int_equal(symlink("/tmp", in_folder("out")), 0);
        assert_int_equal(mkfifo(in_folder("pipe.data"), 0600), 0);
        int fd = open(in_folder("empty.data"), O_CREAT | O_WRONLY, 0600);
        close(fd);
        check_refused(&(struct place){NULL, "0", NULL}, "have no location");
        check_refused(
                &(struct place){"m.data", "-8", NULL}, "the offset of its external data is '-8', which");
        check_refused(
                &(struct place){"m.data", " 8", NULL}, "the offset of its external data is ' 8', which");
        check_refused(
                &(struct place){"m.data", "18446744073709551616", NULL}, "which is not a number of bytes");
        check_refused(&(struct place){"m.data", "0", "0x100"}, "the length of its external data is '0x100'");
        check_refused(&(struct place){"m.data", "0", "100"},
                "100 bytes of data in m.data, but its shape needs 256");
        check_refused(&(struct place){"m.data", "101", "256"},
                "its data are 256 bytes from byte 101 of m.data, which has only 356: the file is truncated");
        check_refused(&(struct place){"m.data", "18446744073709551615", "256"}, "which has only 356");
        check_refused(
                &(struct place){"/etc/passwd", NULL, NULL}, "are in '/etc/passwd', but must be in a file in");
        check_refused(&(struct place){"weights/../../x", NULL, NULL},
                "must be in a file in or below the model's folder");
        check_refused(&(struct place){"weights//x", NULL, NULL},
                "must be in a file in or below the model's folder");
        check_refused(&(struct place){"gone.data", NULL, NULL}, "external data: gone.data is missing");
        check_refused(&(struct place){"gone/m.data", NULL, NULL}, "external data: gone/m.data is missing");
        check_refused(
                &(struct place){"link.data", NULL, NULL}, "link.data is a symbolic link, or is reached");
        check_refused(
                &(struct place){"out/x.data", NULL, NULL}, "out/x.data is a symbolic link, or is reached");
        check_refused(&(struct place){"pipe.data", NULL, NULL}, "pipe.data is not an ordinary file");
        check_refused(&(struct place){"weights", NULL, NULL}, "weights is not an ordinary file");
        check_refused(&(struct place){"empty.data", NULL, NULL}, "empty.data: the file is empty");
        assert_int_equal(truncate(in_folder("m.data"), (off_t)MFL_ONNX_FILES_GIB_MAX << 30), 0);
        check_refused(&(struct place){"m.data", NULL, NULL}, "exceed the limit of 16 GiB");
}

static int make_folder(void **state)
{
        return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
        static const char *const names[] = {
                "deep.onnx", "m.onnx", "m.data", "link.data", "out", "pipe.data", "empty.data", "lie.onnx"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(names); i++)
                unlink(in_folder(names[i]));
        rmdir(in_folder("weights"));
        return rmdir(folder);
}

/* ---- a child that lies ---- */

/* In place of a file: the answer of the child that reads it. */
struct lie {
        char magic[8];
        struct mfl_onnx_message message;
};
static const char lies[8] = "lies";

/* 0: it was no lie. The parent's opening is read, since a socket that is closed with bytes unread resets its peer, which loses the lie. */
static int tell_lie(void)
{
        struct lie lie;
        struct mfl_onnx_opening opening;
        if (pread(MFL_ONNX_FD_FILE, &lie, sizeof lie, 0) != sizeof lie ||
                memcmp(lie.magic, lies, sizeof lies) != 0)
                return 0;
        if (recv(MFL_ONNX_FD_SOCKET, &opening, sizeof opening, MSG_WAITALL) != sizeof opening)
                return 2;
        return write(MFL_ONNX_FD_SOCKET, &lie.message, sizeof lie.message) == sizeof lie.message ? 1 : 2;
}

static void check_lie(const struct mfl_onnx_message *message, const char *says)
{
        struct mfl_onnx_model model;
        struct mfl_error err;
        struct lie lie = {.message = *message};
        memcpy(lie.magic, lies, sizeof lies);
        lie.message.kind = MFL_ONNX_SAY_DONE;
        FILE *f = fopen(in_folder("lie.onnx"), "wb");
        assert_true(f && fwrite(&lie, sizeof lie, 1, f) == 1 && !fclose(f));
        assert_int_equal(mfl_onnx_open(in_folder("lie.onnx"), 0, false, &model, &err), MFL_INVALID);
        if (!strstr(err.text, says))
                fail_msg("%s: expected: %s", err.text, says);
}

/* Each size has its limit and its message; what was announced and does not come is an error. */
static void test_a_child_that_lies(void **state)
{
        const struct mfl_onnx_message text = {.text_bytes = MFL_JOB_TEXT_MAX + 1},
                                      parts = {.parts_bytes = MFL_JOB_TEXT_MAX + 2},
                                      n = {.n = MFL_PARAMS_MAX + 1},
                                      proof = {.proof_bytes = MFL_PROOF_BYTES_MAX + 1},
                                      nothing = {.text_bytes = 10};
        check_lie(&text, "its list of layers needs 262145 bytes; a job file may have 262144");
        check_lie(&parts, "a part of a tensor needs 262146 bytes; the limit is 262144");
        check_lie(&n, "it has 17179869185 params; the limit is 17179869184");
        check_lie(&proof, "its proof is larger than ");
        check_lie(&nothing, "ended without an answer");
}

int main(int argc, char **argv)
{
        if (argc == 2 && !strcmp(argv[1], MFL_ONNX_CHILD)) {
                const int lied = tell_lie();
                return lied ? lied - 1 : mfl_onnx_child(MFL_ONNX_FD_SOCKET);
        }
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_a_deep_model),
                cmocka_unit_test(test_external_data),
                cmocka_unit_test(test_external_data_refused),
                cmocka_unit_test(test_a_child_that_lies),
        };
        return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
