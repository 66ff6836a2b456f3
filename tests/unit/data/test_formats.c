/* SPDX-License-Identifier: Apache-2.0 */
/* The pure parsers: what they read, and what each damaged input is told. */
#include "tests/lib/test.h"
#include "common/data/formats.h"

#include <stdio.h>
#include <zlib.h>

static const uint8_t images[] = {
        0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255};

static size_t gzip_bytes(const void *in, size_t n, uint8_t *out, size_t room)
{
        z_stream z = {0};
        assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
        z.next_in = (Bytef *)(uintptr_t)in;
        z.avail_in = (uInt)n;
        z.next_out = out;
        z.avail_out = (uInt)room;
        assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
        deflateEnd(&z);
        return room - z.avail_out;
}

static void idx_images_become_samples(void **state)
{
        uint8_t bytes[sizeof images];
        struct mfl_array array;
        struct mfl_shape shape;
        enum mfl_dtype dtype;
        uint32_t n;
        memcpy(bytes, images, sizeof bytes);
        assert_int_equal(mfl_idx_parse(bytes, sizeof bytes, "f", &array, NULL), 0);
        assert_int_equal(mfl_array_to_samples(&array, bytes, NULL, "f", &shape, &dtype, &n, NULL), 0);
        assert_int_equal(n, 2);
        assert_int_equal(dtype, MFL_U8);
        assert_true(mfl_shape_equal(&shape, &(struct mfl_shape){3, {1, 2, 3}}));
        assert_memory_equal(bytes, images + 16, 12);
}

static void idx_floats_are_big_endian(void **state)
{
        uint8_t bytes[] = {0, 0, 0x0d, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0x3f, 0x80, 0, 0, 0xc0, 0x20, 0, 0};
        float v[2];
        struct mfl_array array;
        struct mfl_shape shape;
        enum mfl_dtype dtype;
        uint32_t n;
        assert_int_equal(mfl_idx_parse(bytes, sizeof bytes, "f", &array, NULL), 0);
        assert_int_equal(mfl_array_to_samples(&array, bytes, NULL, "f", &shape, &dtype, &n, NULL), 0);
        memcpy(v, bytes, sizeof v);
        assert_true(v[0] == 1.0f && v[1] == -2.5f);
        assert_true(mfl_shape_equal(&shape, &(struct mfl_shape){1, {2}}));
        assert_int_equal(dtype, MFL_F32);
}

static void expect_idx(const uint8_t *bytes, size_t n, const char *text)
{
        struct mfl_array array;
        struct mfl_error err;
        assert_int_equal(mfl_idx_parse(bytes, n, "f", &array, &err), MFL_INVALID);
        assert_string_equal(err.text, text);
}

static void damaged_idx_is_told_what_is_wrong(void **state)
{
        uint8_t b[sizeof images + 1] = {0};
        memcpy(b, images, sizeof images);
        expect_idx(b, 3, "f: 3 bytes are too few for an idx file");
        expect_idx(b, 15, "f: truncated: 15 bytes, but a header of 3 dimensions has 16");
        expect_idx(b, sizeof images - 1, "f: truncated: declares 2x2x3 of u8, 28 bytes in all, but has 27");
        expect_idx(b, sizeof images + 1, "f: too long: declares 2x2x3 of u8, 28 bytes in all, but has 29");
        b[7] = 0;
        expect_idx(b, sizeof images, "f: 0x2x3 of u8 is empty");
        memset(b + 4, 0xff, 12);
        expect_idx(b, sizeof images,
                "f: declares 4294967295x4294967295x4294967295 of u8, more than any file holds");
        b[3] = 6;
        expect_idx(b, sizeof images, "f: 6 dimensions, 1 to 5 are possible");
        b[2] = 9;
        expect_idx(b, sizeof images, "f: idx type 0x09; only 0x08 (u8) and 0x0d (f32) are supported");
        b[0] = 0x1f;
        expect_idx(b, sizeof images, "f: begins with 1f 00; an idx file begins with 00 00");
}

static void expect_gzip(const uint8_t *bytes, size_t n, const char *text)
{
        uint8_t *out;
        size_t n_out;
        struct mfl_error err = {""};
        assert_int_equal(mfl_idx_inflate(bytes, n, "f", &out, &n_out, &err), MFL_INVALID);
        if (strcmp(err.text, text))
                print_message("%s\n", err.text);
        assert_string_equal(err.text, text);
}

static void gzip_is_inflated_and_checked(void **state)
{
        uint8_t z[256], *out, more[sizeof images + 1] = {0};
        size_t n_out, n = gzip_bytes(images, sizeof images, z, sizeof z);
        assert_true(mfl_is_gzip(z, n));
        assert_int_equal(mfl_idx_inflate(z, n, "f", &out, &n_out, NULL), 0);
        assert_int_equal(n_out, sizeof images);
        assert_memory_equal(out, images, sizeof images);
        free(out);
        /* Every prefix is refused, wherever the cut is. */
        for (size_t cut = 0; cut < n; cut++)
                expect_gzip(z, cut, "f: truncated: the gzip data end too early");
        z[n] = 'x';
        expect_gzip(z, n + 1, "f: 1 bytes follow the end of the gzip data; expected none");
        z[n - 8] ^= 1;
        expect_gzip(z, n, "f: damaged gzip data: incorrect data check");

        memcpy(more, images, sizeof images);
        n = gzip_bytes(more, sizeof more, z, sizeof z);
        expect_gzip(z, n, "f: its idx header declares 28 bytes, but more follow");
        n = gzip_bytes(images, sizeof images - 1, z, sizeof z);
        expect_gzip(z, n, "f: truncated: 27 bytes inflated, but its idx header declares 28");
        static const uint8_t bomb[] = {0, 0, 8, 2, 0x7f, 255, 255, 255, 0, 1, 0, 0};
        n = gzip_bytes(bomb, sizeof bomb, z, sizeof z);
        char text[128];
        snprintf(
                text, sizeof text, "f: its idx header declares more than %zu bytes of gzip data can hold", n);
        expect_gzip(z, n, text);
}

/* Makes an npy file; returns its length. */
static size_t make_npy(uint8_t *out, int major, const char *header, const void *data, size_t n_data)
{
        size_t len = strlen(header) + 1, start = major == 1 ? 10 : 12;
        memcpy(out, "\x93NUMPY", 6);
        memset(out + 6, 0, 6);
        out[6] = (uint8_t)major;
        out[8] = (uint8_t)len;
        out[9] = (uint8_t)(len >> 8);
        memcpy(out + start, header, len - 1);
        out[start + len - 1] = '\n';
        memcpy(out + start + len, data, n_data);
        return start + len + n_data;
}

static void npy_versions_and_types(void **state)
{
        static const double d[4] = {0.5, -1, 2, 1e10};
        static const int64_t l[2] = {3, 65535};
        static const int32_t i[2] = {1, 0};
        uint8_t b[512];
        struct mfl_array array;
        struct mfl_shape shape;
        enum mfl_dtype dtype;
        int32_t *labels;
        uint32_t n;
        float f[4];
        size_t len =
                make_npy(b, 1, "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2), }  ", d, sizeof d);
        assert_int_equal(mfl_npy_parse(b, len, "f", &array, NULL), 0);
        assert_int_equal(mfl_array_to_samples(&array, b, NULL, "f", &shape, &dtype, &n, NULL), 0);
        memcpy(f, b, sizeof f);
        assert_true(f[0] == 0.5f && f[1] == -1 && f[2] == 2 && f[3] == 1e10f);
        assert_int_equal(n, 2);
        len = make_npy(b, 2, "{\"shape\":(2,),'fortran_order':False,'descr':'<i8'}", l, sizeof l);
        assert_int_equal(mfl_npy_parse(b, len, "f", &array, NULL), 0);
        assert_int_equal(mfl_array_to_labels(&array, b, "f", &labels, &n, NULL), 0);
        assert_true(labels[0] == 3 && labels[1] == 65535 && n == 2);
        free(labels);
        len = make_npy(b, 3, "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }", i, sizeof i);
        assert_int_equal(mfl_npy_parse(b, len, "f", &array, NULL), 0);
        assert_int_equal(mfl_array_to_labels(&array, b, "f", &labels, &n, NULL), 0);
        assert_true(labels[0] == 1 && labels[1] == 0);
        free(labels);
}

static void damaged_npy_is_told_what_is_wrong(void **state)
{
        static const struct {
                const char *header, *text;
        } cases[] = {
                {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }",
                        "f: fortran_order is True; save it in C order, with numpy.ascontiguousarray"},
                {"{'descr': '|O', 'fortran_order': False, 'shape': (2, 2), }",
                        "f: type '|O' (Python objects) is not supported; convert it with astype to u1, "
                        "<f4, <f8, or "
                        "for labels i1, <i4, <i8"},
                {"{'descr': '>f4', 'fortran_order': False, 'shape': (2, 2), }",
                        "f: type '>f4' (big endian) is not supported; convert it with astype to u1, <f4, "
                        "<f8, or for "
                        "labels i1, <i4, <i8"},
                {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }",
                        "f: a structured array; expected one plain type: u1, <f4, <f8, and for labels i1, "
                        "<i4, <i8"},
                {"{'descr': '<f4', 'shape': (2, 2), }", "f: npy header without fortran_order"},
                {"{'descr': '<f4', 'descr': '<f4', 'shape': (2, 2), }", "f: npy header: descr twice"},
                {"{'descr': '<f4', 'fortran_order': False, 'shape': (4), }",
                        "f: npy header: \",\" or \")\" in the shape expected at \"), }?\""},
                {"{'descr': '<f4', 'fortran_order': False, 'shape': (), }",
                        "f: shape () is a single number, not a data set"},
                {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
                        "f: truncated: declares 2x3 of f32, 94 bytes in all, but has 86"},
                {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }",
                        "f: too long: declares 2x1 of f32, 78 bytes in all, but has 86"},
                {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
                        "f: a dimension is above 2^64"},
                {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3, 4, 5, 6), }",
                        "f: more than 5 dimensions"},
                {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), } x",
                        "f: npy header: spaces and a line end after \"}\" expected at \"x?\""},
                {"{'descr': '<f4', 'fortran': False, 'shape': (2, 2), }",
                        "f: npy header: unknown key 'fortran'; expected descr, fortran_order and shape"},
        };
        static const float data[4] = {1, 2, 3, 4};
        uint8_t b[512];
        struct mfl_array array;
        struct mfl_error err;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                size_t n = make_npy(b, 1, cases[i].header, data, sizeof data);
                assert_int_equal(mfl_npy_parse(b, n, "f", &array, &err), MFL_INVALID);
                assert_string_equal(err.text, cases[i].text);
        }
        size_t n = make_npy(
                b, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }", data, sizeof data);
        for (size_t cut = 0; cut < n; cut++)
                assert_int_equal(mfl_npy_parse(b, cut, "f", &array, &err), MFL_INVALID);
        b[6] = 4;
        assert_int_equal(mfl_npy_parse(b, n, "f", &array, &err), MFL_INVALID);
        assert_string_equal(err.text, "f: npy version 4.0; only 1.0, 2.0 and 3.0 are supported");
}

static void samples_and_labels_are_checked(void **state)
{
        uint8_t nan[] = {0, 0, 0x0d, 2, 0, 0, 0, 2, 0, 0, 0, 1, 0x3f, 0x80, 0, 0, 0x7f, 0xc0, 0, 0};
        uint8_t deep[16 + 17] = {0, 0, 8, 4, 0, 0, 0, 1, 0, 0, 0, 17, 0, 0, 0, 1, 0, 0, 0, 1};
        int32_t negative = -1, *labels;
        struct mfl_array array;
        struct mfl_shape shape, wanted = {1, {7}};
        struct mfl_error err;
        enum mfl_dtype dtype;
        uint32_t n;
        uint8_t b[sizeof images];
        assert_int_equal(mfl_idx_parse(nan, sizeof nan, "f", &array, NULL), 0);
        assert_int_equal(mfl_array_to_samples(&array, nan, NULL, "f", &shape, &dtype, &n, &err), MFL_INVALID);
        assert_string_equal(err.text, "f: sample 1 has a value that is not a finite float");
        uint8_t wide[20 + 17] = {0};
        memcpy(wide, deep, 20);
        assert_int_equal(mfl_idx_parse(wide, sizeof wide, "f", &array, NULL), 0);
        assert_int_equal(
                mfl_array_to_samples(&array, wide, NULL, "f", &shape, &dtype, &n, &err), MFL_INVALID);
        assert_string_equal(err.text,
                "f: 17 channels; the limit is 16; images are (n, channels, height, width): "
                "are these channels last?");
        memcpy(b, images, sizeof b);
        assert_int_equal(mfl_idx_parse(b, sizeof b, "f", &array, NULL), 0);
        assert_int_equal(
                mfl_array_to_samples(&array, b, &wanted, "f", &shape, &dtype, &n, &err), MFL_INVALID);
        assert_string_equal(err.text, "f: 6 elements per sample, but the configured shape has 7");
        assert_int_equal(mfl_array_to_labels(&array, b, "f", &labels, &n, &err), MFL_INVALID);
        struct mfl_array one = {.type = MFL_ARRAY_I32, .rank = 1, .dim = {1}, .count = 1};
        assert_int_equal(
                mfl_array_to_labels(&one, (uint8_t *)&negative, "f", &labels, &n, &err), MFL_INVALID);
        assert_string_equal(err.text, "f: label -1 of sample 0; labels are 0 to 1048575");
}

static void cifar_records(void **state)
{
        static uint8_t b[2 * 3073];
        struct mfl_split split = {0};
        struct mfl_error err;
        b[0] = 9;
        b[1] = 7;
        b[3073] = 3;
        b[2 * 3073 - 1] = 200;
        assert_int_equal(mfl_cifar_append(b, 3073, "f", &mfl_cifar10, &split, NULL), 0);
        assert_int_equal(mfl_cifar_append(b, sizeof b, "f", &mfl_cifar10, &split, NULL), 0);
        assert_int_equal(split.n, 3);
        assert_true(split.labels[0] == 9 && split.labels[1] == 9 && split.labels[2] == 3);
        const uint8_t *s = split.samples;
        assert_true(s[0] == 7 && s[3072] == 7 && s[3 * 3072 - 1] == 200);
        assert_int_equal(mfl_cifar_append(b, 3074, "f", &mfl_cifar10, &split, &err), MFL_INVALID);
        assert_string_equal(err.text, "f: 3074 bytes is not a multiple of the record size, 3073");
        b[3073] = 10;
        assert_int_equal(mfl_cifar_append(b, sizeof b, "f", &mfl_cifar10, &split, &err), MFL_INVALID);
        assert_string_equal(err.text, "f: label 10 of record 1; labels are 0 to 9");
        assert_int_equal(split.n, 3);
        free(split.samples);
        free(split.labels);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(idx_images_become_samples),
                cmocka_unit_test(idx_floats_are_big_endian),
                cmocka_unit_test(damaged_idx_is_told_what_is_wrong),
                cmocka_unit_test(gzip_is_inflated_and_checked),
                cmocka_unit_test(npy_versions_and_types),
                cmocka_unit_test(damaged_npy_is_told_what_is_wrong),
                cmocka_unit_test(samples_and_labels_are_checked),
                cmocka_unit_test(cifar_records),
        };
        return cmocka_run_group_tests_name("data formats", tests, NULL, NULL);
}
