/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of images with a mask for each: numbers of PNG files of every depth, and messages for what is wrong. The files are
 * written here, byte by byte. */
#include "tests/lib/test.h"
#include "common/data/config.h"
#include "common/data/sources.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/mfl-masks-XXXXXX";

static int set_up(void **state)
{
        return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
        char command[64];
        snprintf(command, sizeof command, "rm -r %s", dir);
        return system(command);
}

/* ---- PNG files, not compressed ---- */

static void big(uint8_t *to, uint32_t v)
{
        for (int k = 0; k < 4; k++)
                to[k] = (uint8_t)(v >> (24 - 8 * k));
}

static uint32_t crc_of(const uint8_t *p, size_t n)
{
        uint32_t crc = UINT32_MAX;
        for (size_t i = 0; i < n; i++) {
                crc ^= p[i];
                for (int k = 0; k < 8; k++)
                        crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
        }
        return ~crc;
}

static void chunk(FILE *f, const char *type, const uint8_t *data, size_t n)
{
        uint8_t bytes[2048], number[4];
        big(number, (uint32_t)n);
        fwrite(number, 1, 4, f);
        memcpy(bytes, type, 4);
        memcpy(bytes + 4, data, n);
        fwrite(bytes, 1, n + 4, f);
        big(number, crc_of(bytes, n + 4));
        fwrite(number, 1, 4, f);
}

/* Rows of `row` bytes each; color 0: grey, 2: RGB, 3: a palette. */
static void put_png(
        const char *name, int width, int height, int depth, int color, const uint8_t *rows, size_t row)
{
        uint8_t head[13] = {0}, body[1024] = {0x78, 0x01, 1}, palette[3 * 16] = {0};
        size_t n = 7, data = (size_t)height * (row + 1);
        uint32_t a = 1, b = 0;
        char path[256];
        snprintf(path, sizeof path, "%s/%s", dir, name);
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        fwrite("\x89PNG\r\n\x1a\n", 1, 8, f);
        big(head, (uint32_t)width);
        big(head + 4, (uint32_t)height);
        head[8] = (uint8_t)depth;
        head[9] = (uint8_t)color;
        chunk(f, "IHDR", head, sizeof head);
        if (color == 3)
                chunk(f, "PLTE", palette, sizeof palette);
        body[3] = (uint8_t)data;
        body[4] = (uint8_t)(data >> 8);
        body[5] = (uint8_t)~body[3];
        body[6] = (uint8_t)~body[4];
        for (int y = 0; y < height; y++) {
                body[n++] = 0; /* no filter */
                memcpy(body + n, rows + (size_t)y * row, row);
                n += row;
        }
        for (size_t i = 7; i < n; i++) {
                a = (a + body[i]) % 65521;
                b = (b + a) % 65521;
        }
        big(body + n, b << 16 | a);
        chunk(f, "IDAT", body, n + 4);
        chunk(f, "IEND", head, 0);
        fclose(f);
}

static void make_folder(const char *name)
{
        char path[256];
        snprintf(path, sizeof path, "%s/%s", dir, name);
        assert_int_equal(mkdir(path, 0700), 0);
}

static void drop(const char *name)
{
        char path[256];
        snprintf(path, sizeof path, "%s/%s", dir, name);
        assert_int_equal(unlink(path), 0);
}

/* 4 x 3 pixels of grey. */
static void put_image(const char *name)
{
        static const uint8_t rows[12] = {0, 80, 160, 240, 1, 2, 3, 4, 5, 6, 7, 8};
        put_png(name, 4, 3, 8, 0, rows, 4);
}

/* ---- loading ---- */

static int try_load(const char *rest, struct mfl_dataset **ret_dataset, struct mfl_error *err)
{
        char text[512];
        struct mfl_dataset_config config;
        snprintf(text, sizeof text, "%s/%s", dir, rest);
        int r = mfl_dataset_config_parse("d", "images", text, &config, err);
        if (r)
                return r;
        r = mfl_dataset_load(&config, ret_dataset, err);
        mfl_dataset_config_deinit(&config);
        return r;
}

static void refuse(const char *rest, const char *expected)
{
        struct mfl_dataset *d = NULL;
        struct mfl_error err = {""};
        assert_int_equal(try_load(rest, &d, &err), MFL_INVALID);
        if (!strstr(err.text, expected))
                fail_msg("'%s' lacks '%s'", err.text, expected);
}

static bool has_png(void)
{
        struct mfl_error err = {""};
        uint32_t width, height;
        uint16_t *labels;
        mfl_mask_decode((const uint8_t *)"", 0, "f", &labels, &width, &height, &err);
        return !strstr(err.text, "lacks libpng");
}

#define SET ",shape=[1, 3, 4],masks=marks,classes=5,ignore_index=255"

static void masks_of_every_depth(void **state)
{
        static const int32_t want[12] = {0, 1, 1, 0, 1, 0, 0, 1, 0, 0, 1, 1};
        static const uint8_t bits[3] = {0x60, 0x90, 0x30};
        static const uint8_t pairs[3] = {0x14, 0x41, 0x05}, nibbles[6] = {0x01, 0x10, 0x10, 0x01, 0x00, 0x11};
        static const uint8_t bytes[12] = {0, 1, 1, 0, 1, 0, 0, 1, 0, 0, 1, 1};
        static const uint8_t words[24] = {
                0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 1};
        static const struct {
                int depth, color;
                const uint8_t *rows;
                size_t row;
        } kinds[] = {{1, 0, bits, 1}, {2, 0, pairs, 1}, {4, 0, nibbles, 2}, {8, 0, bytes, 4},
                {16, 0, words, 8}, {1, 3, bits, 1}, {4, 3, nibbles, 2}, {8, 3, bytes, 4}};
        char name[64];
        struct mfl_dataset *d = NULL;
        struct mfl_error err = {""};
        if (!has_png())
                skip_for("built without libpng (Debian: libpng-dev libjpeg-dev)");
        make_folder("kinds");
        make_folder("kinds/images");
        make_folder("kinds/marks");
        for (size_t i = 0; i < MFL_ARRAY_SIZE(kinds); i++) {
                snprintf(name, sizeof name, "kinds/images/%zu.png", i);
                put_image(name);
                snprintf(name, sizeof name, "kinds/marks/%zu.png", i);
                put_png(name, 4, 3, kinds[i].depth, kinds[i].color, kinds[i].rows, kinds[i].row);
        }
        if (try_load("kinds" SET ",test_fraction=0.25", &d, &err))
                fail_msg("%s", err.text);
        assert_true(d->train.n == 6 && d->test.n == 2 && d->classes == 5 && d->labels_per_sample == 12);
        for (uint32_t i = 0; i < 8; i++)
                for (int k = 0; k < 12; k++)
                        assert_int_equal(
                                (i < 6 ? d->train.labels + 12 * i : d->test.labels + 12 * (i - 6))[k],
                                want[k]);
        mfl_dataset_free(d);
}

static void splits_ignored_pixels_and_sizes(void **state)
{
        static const uint8_t one[12] = {0, 1, 2, 3, 4, 255, 0, 1, 2, 3, 4, 255};
        struct mfl_dataset *d = NULL;
        struct mfl_error err = {""};
        if (!has_png())
                skip_for("built without libpng (Debian: libpng-dev libjpeg-dev)");
        make_folder("two");
        for (int s = 0; s < 2; s++) {
                make_folder(s ? "two/test" : "two/train");
                make_folder(s ? "two/test/images" : "two/train/images");
                make_folder(s ? "two/test/marks" : "two/train/marks");
                put_image(s ? "two/test/images/a.b.png" : "two/train/images/a.b.png");
                put_png(s ? "two/test/marks/a.b.png" : "two/train/marks/a.b.png", 4, 3, 8, 0, one, 4);
        }
        if (try_load("two" SET, &d, &err))
                fail_msg("%s", err.text);
        assert_true(d->train.n == 1 && d->test.n == 1);
        for (int k = 0; k < 12; k++)
                assert_int_equal(d->train.labels[k], one[k] == 255 ? -1 : one[k]);
        mfl_dataset_free(d);
        /* 2 x 2 of a window of 3 x 3, which begins in column 0. */
        if (try_load("two,shape=[1, 2, 2],masks=marks,classes=5,ignore_index=255", &d, &err))
                fail_msg("%s", err.text);
        static const int32_t nearest[4] = {0, 2, 2, 4};
        for (int k = 0; k < 4; k++)
                assert_int_equal(d->train.labels[k], nearest[k]);
        mfl_dataset_free(d);
        refuse("two,shape=[1, 3, 4],masks=marks,classes=5",
                "two/train/marks/a.b.png: pixel 1 of row 1 is 255, but there are 5 classes: 0 to 4; with "
                "ignore_index=255, such pixels have no label");
        refuse("two,shape=[1, 3, 4],masks=marks,classes=4,ignore_index=255", "pixel 0 of row 1 is 4, but");
        refuse("two,shape=[1, 3, 4],masks=marks", "needs classes, the number of classes of a pixel");
        refuse("two,shape=[1, 3, 4],masks=../two,classes=5", "expected the name of the folder beside images");
        refuse("two,shape=[1, 3, 4],ignore_index=255", "is only used with masks");
        refuse("two,shape=[1, 3, 4],masks=other,classes=5",
                "two/train/other: not a folder; with masks, images belong in ");
}

static void what_is_wrong_is_named(void **state)
{
        static const uint8_t rows[36] = {0};
        if (!has_png())
                skip_for("built without libpng (Debian: libpng-dev libjpeg-dev)");
        make_folder("bad");
        make_folder("bad/images");
        make_folder("bad/marks");
        refuse("bad" SET ",test_fraction=0.5", "bad/images: contains no images");
        put_image("bad/images/1.png");
        put_image("bad/images/2.png");
        put_png("bad/marks/1.png", 4, 3, 8, 0, rows, 4);
        refuse("bad" SET ",test_fraction=0.5", "bad/images/2.png: there is no mask ");
        put_png("bad/marks/2.png", 3, 4, 8, 0, rows, 3);
        refuse("bad" SET ",test_fraction=0.5", "bad/marks/2.png: the mask is 3x4, but its image ");
        put_png("bad/marks/2.png", 4, 3, 8, 2, rows, 12);
        refuse("bad" SET ",test_fraction=0.5",
                "bad/marks/2.png: has colours or transparency; a mask has a number");
        put_png("bad/marks/2.png", 4, 3, 8, 0, rows, 4);
        put_png("bad/marks/3.png", 4, 3, 8, 0, rows, 4);
        refuse("bad" SET ",test_fraction=0.5", "bad/marks/3.png: there is no image in ");
        drop("bad/marks/3.png");
        put_image("bad/images/2.jpg");
        refuse("bad" SET ",test_fraction=0.5", "bad/images/2.png: another image has the same mask, ");
        drop("bad/images/2.jpg");
        drop("bad/marks/2.png");
        char path[256];
        snprintf(path, sizeof path, "%s/bad/marks/2.png", dir);
        FILE *f = fopen(path, "wb");
        fwrite("\xff\xd8\xff", 1, 3, f);
        fclose(f);
        refuse("bad" SET ",test_fraction=0.5", "bad/marks/2.png: not a PNG; masks are PNG files");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(masks_of_every_depth),
                cmocka_unit_test(splits_ignored_pixels_and_sizes),
                cmocka_unit_test(what_is_wrong_is_named),
        };
        return cmocka_run_group_tests_name("masks", tests, set_up, tear_down);
}
