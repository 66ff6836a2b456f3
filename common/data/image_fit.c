/* SPDX-License-Identifier: Apache-2.0 */
/* Scales images to one size, in integers, so that every machine makes the same bytes.
 *
 * Along one axis, output i of O reads the inputs j of I around (2 i + 1) I / (2 O). Times 2 O, the distance of their
 * centres is |(2 j + 1) O - (2 i + 1) I|, and with M = max(I, O) the triangle's weight is 2 M less that distance
 * where it is positive. Weights are divided by their sum, so at the border the remaining weights make up for the
 * missing ones. I = O changes nothing.
 */
#include "common/data/sources.h"

struct axis {
        uint32_t in, out;
};

static uint32_t distance(const struct axis *a, uint32_t i, uint32_t j)
{
        int64_t d = (int64_t)(2 * j + 1) * a->out - (int64_t)(2 * i + 1) * a->in;
        return (uint32_t)(d < 0 ? -d : d);
}

static uint32_t weight(const struct axis *a, uint32_t i, uint32_t j)
{
        uint32_t reach = 2 * MFL_MAX(a->in, a->out), d = distance(a, i, j);
        return d < reach ? reach - d : 0;
}

/* The first input with a weight for output i. */
static uint32_t first_input(const struct axis *a, uint32_t i)
{
        int64_t reach = 2 * (int64_t)MFL_MAX(a->in, a->out);
        int64_t j = ((int64_t)(2 * i + 1) * a->in - reach) / (2 * (int64_t)a->out) - 1;
        uint32_t at = (uint32_t)MFL_MAX(j, 0);
        while (!weight(a, i, at))
                at++;
        return at;
}

/* Rows of `in` values, `step` apart, to values of `out`, in 256ths. */
static void scale_line(
        const struct axis *a, const uint16_t *from, size_t from_step, uint16_t *to, size_t to_step)
{
        for (uint32_t i = 0; i < a->out; i++) {
                uint64_t sum = 0, weights = 0;
                for (uint32_t j = first_input(a, i), w; j < a->in && (w = weight(a, i, j)); j++) {
                        sum += (uint64_t)w * from[j * from_step];
                        weights += w;
                }
                to[i * to_step] = (uint16_t)((sum + weights / 2) / weights);
        }
}

/* Pillow's conversion to "L": ITU-R 601 luma in 16 bits. */
static uint8_t luma(const uint8_t *p)
{
        return (uint8_t)((p[0] * 19595u + p[1] * 38470u + p[2] * 7471u + 0x8000) >> 16);
}

struct crop {
        uint32_t x, y, width, height;
};

/* The largest centred window with the shape's aspect ratio, at least one pixel. */
static struct crop centre_crop(uint32_t width, uint32_t height, uint32_t out_width, uint32_t out_height)
{
        struct crop c = {.width = width, .height = height};
        if ((uint64_t)width * out_height > (uint64_t)height * out_width)
                c.width = (uint32_t)MFL_MAX((uint64_t)height * out_width / out_height, 1);
        else
                c.height = (uint32_t)MFL_MAX((uint64_t)width * out_height / out_width, 1);
        c.x = (width - c.width) / 2;
        c.y = (height - c.height) / 2;
        return c;
}

int mfl_image_fit(const uint8_t *rgb, uint32_t width, uint32_t height, const struct mfl_shape *shape,
        uint8_t *out, struct mfl_error *err)
{
        uint32_t out_height = (uint32_t)shape->dim[1], out_width = (uint32_t)shape->dim[2];
        struct crop c = centre_crop(width, height, out_width, out_height);
        struct axis across = {c.width, out_width}, down = {c.height, out_height};
        size_t pixels = (size_t)out_width * out_height;
        MFL_CLEANUP_FREE uint16_t *line = mfl_malloc(MFL_MAX(c.width, out_height) * sizeof *line);
        MFL_CLEANUP_FREE uint16_t *half = mfl_malloc((size_t)out_width * c.height * sizeof *half);
        if (!line || !half)
                return mfl_fail_memory(err, (size_t)out_width * c.height * sizeof *half, "an image");
        for (int channel = 0; channel < shape->dim[0]; channel++) {
                for (uint32_t y = 0; y < c.height; y++) {
                        const uint8_t *p = rgb + 3 * ((size_t)(c.y + y) * width + c.x);
                        for (uint32_t x = 0; x < c.width; x++, p += 3)
                                line[x] = (uint16_t)((shape->dim[0] == 1 ? luma(p) : p[channel]) << 8);
                        scale_line(&across, line, 1, half + (size_t)y * out_width, 1);
                }
                for (uint32_t x = 0; x < out_width; x++) {
                        scale_line(&down, half + x, out_width, line, 1);
                        for (uint32_t y = 0; y < out_height; y++)
                                out[(size_t)channel * pixels + (size_t)y * out_width + x] =
                                        (uint8_t)((line[y] + 128) >> 8);
                }
        }
        return 0;
}

void mfl_mask_fit(
        const uint16_t *labels, uint32_t width, uint32_t height, const struct mfl_shape *shape, int32_t *out)
{
        uint32_t out_height = (uint32_t)shape->dim[1], out_width = (uint32_t)shape->dim[2];
        struct crop c = centre_crop(width, height, out_width, out_height);
        for (uint64_t y = 0; y < out_height; y++)
                for (uint64_t x = 0; x < out_width; x++) {
                        uint64_t row = c.y + (2 * y + 1) * c.height / (2 * (uint64_t)out_height),
                                 column = c.x + (2 * x + 1) * c.width / (2 * (uint64_t)out_width);
                        out[y * out_width + x] = labels[row * width + column];
                }
}
