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
        uint8_t *rgb;
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
        d->rgb = mfl_malloc((size_t)(3 * width * height));
        return d->rgb ? 0 : mfl_fail_memory(d->err, (size_t)(3 * width * height), d->path);
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

static void read_png(struct decoder *d, png_structp png, png_infop info)
{
        png_set_read_fn(png, d, on_png_read);
        png_set_user_limits(png, MFL_IMAGE_SIDE_MAX, MFL_IMAGE_SIDE_MAX);
        png_read_info(png, info);
        d->result = check_size(d, png_get_image_width(png, info), png_get_image_height(png, info));
        if (d->result)
                return;
        png_set_expand(png);
        png_set_strip_16(png);
        png_set_strip_alpha(png);
        png_set_gray_to_rgb(png);
        png_set_interlace_handling(png);
        png_read_update_info(png, info);
        if (png_get_rowbytes(png, info) != 3 * (size_t)d->width)
                png_error(png, "no RGB rows");
        d->rows = mfl_calloc(d->height, sizeof *d->rows);
        if (!d->rows) {
                d->result = mfl_fail_memory(d->err, d->height * sizeof *d->rows, d->path);
                return;
        }
        for (uint32_t y = 0; y < d->height; y++)
                d->rows[y] = d->rgb + 3 * (size_t)y * d->width;
        png_read_image(png, d->rows);
        png_read_end(png, NULL);
}

static void decode_png(struct decoder *d)
{
        png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, d, on_png_error, on_png_warning);
        png_infop info = png ? png_create_info_struct(png) : NULL;
        if (!info)
                d->result = mfl_fail_memory(d->err, 1024, d->path);
        else if (!setjmp(d->jump))
                read_png(d, png, info);
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
                JSAMPROW row = d->rgb + 3 * (size_t)jpeg->output_scanline * d->width;
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

int mfl_image_decode(const uint8_t *bytes, size_t n_bytes, const char *path, uint8_t **ret_rgb,
        uint32_t *ret_width, uint32_t *ret_height, struct mfl_error *err)
{
        struct mfl_error own;
        struct decoder d = {.at = bytes, .end = bytes + n_bytes, .path = path, .err = err ? err : &own};
        if (n_bytes >= 8 && !png_sig_cmp(bytes, 0, 8))
                decode_png(&d);
        else if (n_bytes >= 3 && !memcmp(bytes, "\xff\xd8\xff", 3))
                decode_jpeg(&d);
        else
                d.result = mfl_fail(d.err, MFL_INVALID, "%s: neither PNG nor JPEG", path);
        free(d.rows);
        if (d.result) {
                free(d.rgb);
                return d.result;
        }
        *ret_rgb = d.rgb;
        *ret_width = d.width;
        *ret_height = d.height;
        return 0;
}
