/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes PNG (libpng) and JPEG (libjpeg-turbo, with the accurate integer DCT, whose result does not depend on the
 * machine) to RGB. Both libraries report errors by a jump. */
#include "common/data/sources.h"

#include <png.h>
#include <setjmp.h>
#include <stdio.h>
/* needs stdio.h before it */
#include <jpeglib.h>

struct decoder {
        const uint8_t *at, *end;
        const char *path;
        struct mfl_error *err;
        int result;
        uint32_t width, height;
        bool mask; /* pixels are numbers of 16 bits instead of RGB */
        uint8_t *pixels;
        png_bytep *rows;
        jmp_buf jump;
};

static int check_size(struct decoder *d, uint64_t width, uint64_t height)
{
        if (!width || !height || width > MFL_IMAGE_SIDE_MAX || height > MFL_IMAGE_SIDE_MAX ||
                width * height > MFL_IMAGE_PIXELS_MAX)
                return mfl_fail(d->err, MFL_INVALID,
                        "%s: the image is %llux%llu; the limits are %d per side and %d pixels", d->path,
                        (unsigned long long)width, (unsigned long long)height, MFL_IMAGE_SIDE_MAX,
                        MFL_IMAGE_PIXELS_MAX);
        d->width = (uint32_t)width;
        d->height = (uint32_t)height;
        size_t bytes = (size_t)((d->mask ? 2 : 3) * width * height);
        d->pixels = mfl_malloc(bytes);
        return d->pixels ? 0 : mfl_fail_memory(d->err, bytes, d->path);
}

/* ---- PNG ---- */

static void on_png_error(png_structp png, png_const_charp text)
{
        struct decoder *d = png_get_error_ptr(png);
        d->result = mfl_fail(d->err, MFL_INVALID, "%s: damaged PNG: %s", d->path, text);
        longjmp(d->jump, 1);
}

static void on_png_warning(png_structp png, png_const_charp text)
{
}

static void on_png_read(png_structp png, png_bytep to, size_t n)
{
        struct decoder *d = png_get_io_ptr(png);
        if ((size_t)(d->end - d->at) < n)
                png_error(png, "truncated");
        memcpy(to, d->at, n);
        d->at += n;
}

static int begin_png(struct decoder *d, png_structp png, png_infop info)
{
        png_set_read_fn(png, d, on_png_read);
        png_set_user_limits(png, MFL_IMAGE_SIDE_MAX, MFL_IMAGE_SIDE_MAX);
        png_read_info(png, info);
        return check_size(d, png_get_image_width(png, info), png_get_image_height(png, info));
}

/* The rows from `pixels` on, `bytes` bytes each. */
static void read_rows(
        struct decoder *d, png_structp png, png_infop info, uint8_t *pixels, size_t bytes, const char *what)
{
        png_set_interlace_handling(png);
        png_read_update_info(png, info);
        if (png_get_rowbytes(png, info) != bytes)
                png_error(png, what);
        d->rows = mfl_calloc(d->height, sizeof *d->rows);
        if (!d->rows) {
                d->result = mfl_fail_memory(d->err, d->height * sizeof *d->rows, d->path);
                return;
        }
        for (uint32_t y = 0; y < d->height; y++)
                d->rows[y] = pixels + bytes * y;
        png_read_image(png, d->rows);
        png_read_end(png, NULL);
}

static void read_png(struct decoder *d, png_structp png, png_infop info)
{
        d->result = begin_png(d, png, info);
        if (d->result)
                return;
        png_set_expand(png);
        png_set_strip_16(png);
        png_set_strip_alpha(png);
        png_set_gray_to_rgb(png);
        read_rows(d, png, info, d->pixels, 3 * (size_t)d->width, "no RGB rows");
}

/* The numbers as they are in the file: greys are not stretched to 8 bits, and a palette's colours do not matter. */
static void read_mask(struct decoder *d, png_structp png, png_infop info)
{
        d->result = begin_png(d, png, info);
        if (d->result)
                return;
        int type = png_get_color_type(png, info);
        size_t n = (size_t)d->width * d->height, width = d->width;
        uint16_t *labels = (uint16_t *)(void *)d->pixels;
        if (type != PNG_COLOR_TYPE_GRAY && type != PNG_COLOR_TYPE_PALETTE) {
                d->result = mfl_fail(d->err, MFL_INVALID,
                        "%s: has colours or transparency; a mask has a number for each pixel, its class: "
                        "store "
                        "a grey PNG, or one with a palette",
                        d->path);
                return;
        }
        if (png_get_bit_depth(png, info) == 16) {
                read_rows(d, png, info, d->pixels, 2 * width, "no rows of 16 bits");
                for (size_t i = 0; !d->result && i < n; i++)
                        labels[i] = (uint16_t)(d->pixels[2 * i] << 8 | d->pixels[2 * i + 1]);
                return;
        }
        /* Bytes in the second half; element i is written at most up to where it was read. */
        png_set_packing(png);
        read_rows(d, png, info, d->pixels + n, width, "no rows of bytes");
        for (size_t i = 0; !d->result && i < n; i++)
                labels[i] = d->pixels[n + i];
}

static void decode_png(struct decoder *d)
{
        png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, d, on_png_error, on_png_warning);
        png_infop info = png ? png_create_info_struct(png) : NULL;
        if (!info)
                d->result = mfl_fail_memory(d->err, 1024, d->path);
        else if (!setjmp(d->jump))
                (d->mask ? read_mask : read_png)(d, png, info);
        png_destroy_read_struct(&png, &info, NULL);
}

/* ---- JPEG ---- */

struct jpeg_errors {
        struct jpeg_error_mgr base; /* first, so that libjpeg's pointer is ours */
        struct decoder *decoder;
};

static void on_jpeg_error(j_common_ptr jpeg)
{
        struct decoder *d = ((struct jpeg_errors *)jpeg->err)->decoder;
        char text[JMSG_LENGTH_MAX];
        jpeg->err->format_message(jpeg, text);
        d->result = mfl_fail(d->err, MFL_INVALID, "%s: damaged JPEG: %s", d->path, text);
        longjmp(d->jump, 1);
}

/* libjpeg fills the missing part of a truncated file with grey and warns; here a warning is an error. */
static void on_jpeg_message(j_common_ptr jpeg, int level)
{
        if (level < 0)
                on_jpeg_error(jpeg);
}

static void read_jpeg(struct decoder *d, struct jpeg_decompress_struct *jpeg)
{
        jpeg_mem_src(jpeg, d->at, (unsigned long)(d->end - d->at));
        jpeg_read_header(jpeg, TRUE);
        if (jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK) {
                d->result = mfl_fail(
                        d->err, MFL_INVALID, "%s: a CMYK JPEG; only RGB and grey are supported", d->path);
                return;
        }
        jpeg->out_color_space = JCS_RGB;
        jpeg->dct_method = JDCT_ISLOW;
        d->result = check_size(d, jpeg->image_width, jpeg->image_height);
        if (d->result)
                return;
        jpeg_start_decompress(jpeg);
        while (jpeg->output_scanline < jpeg->output_height) {
                JSAMPROW row = d->pixels + 3 * (size_t)jpeg->output_scanline * d->width;
                jpeg_read_scanlines(jpeg, &row, 1);
        }
        jpeg_finish_decompress(jpeg);
}

static void decode_jpeg(struct decoder *d)
{
        struct jpeg_decompress_struct jpeg = {0};
        struct jpeg_errors errors = {.decoder = d};
        jpeg.err = jpeg_std_error(&errors.base);
        errors.base.error_exit = on_jpeg_error;
        errors.base.emit_message = on_jpeg_message;
        if (!setjmp(d->jump)) {
                jpeg_create_decompress(&jpeg);
                read_jpeg(d, &jpeg);
        }
        jpeg_destroy_decompress(&jpeg);
}

/* The result, and what is freed. */
static int end(struct decoder *d, uint8_t **ret_pixels, uint32_t *ret_width, uint32_t *ret_height)
{
        free(d->rows);
        if (d->result) {
                free(d->pixels);
                return d->result;
        }
        *ret_pixels = d->pixels;
        *ret_width = d->width;
        *ret_height = d->height;
        return 0;
}

static bool is_png(const uint8_t *bytes, size_t n_bytes)
{
        return n_bytes >= 8 && !png_sig_cmp(bytes, 0, 8);
}

int mfl_image_decode(const uint8_t *bytes, size_t n_bytes, const char *path, uint8_t **ret_rgb,
        uint32_t *ret_width, uint32_t *ret_height, struct mfl_error *err)
{
        struct mfl_error own;
        struct decoder d = {.at = bytes, .end = bytes + n_bytes, .path = path, .err = err ? err : &own};
        if (is_png(bytes, n_bytes))
                decode_png(&d);
        else if (n_bytes >= 3 && !memcmp(bytes, "\xff\xd8\xff", 3))
                decode_jpeg(&d);
        else
                d.result = mfl_fail(d.err, MFL_INVALID, "%s: neither PNG nor JPEG", path);
        return end(&d, ret_rgb, ret_width, ret_height);
}

int mfl_mask_decode(const uint8_t *bytes, size_t n_bytes, const char *path, uint16_t **ret_labels,
        uint32_t *ret_width, uint32_t *ret_height, struct mfl_error *err)
{
        struct mfl_error own;
        struct decoder d = {
                .at = bytes, .end = bytes + n_bytes, .path = path, .err = err ? err : &own, .mask = true};
        uint8_t *pixels = NULL;
        if (is_png(bytes, n_bytes))
                decode_png(&d);
        else
                d.result = mfl_fail(d.err, MFL_INVALID,
                        "%s: not a PNG; masks are PNG files, which keep every number", path);
        int r = end(&d, &pixels, ret_width, ret_height);
        if (!r)
                *ret_labels = (uint16_t *)(void *)pixels;
        return r;
}
