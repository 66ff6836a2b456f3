/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward data with few output channels (conv_simt.h), without gathering: a block keeps the
 * pixels that its outputs read, padding included, and all weights in shared memory, and each thread computes
 * 4 pixels x 8 channels.
 *
 * A tiled product copies each input r * s times into its tile, at about 10 instructions each; with 6 or 16
 * output channels that costs more than the products. Here an input is copied once. One step of the reduction
 * is, for a thread, 4 reads of 4 bytes (neighbouring lanes, neighbouring pixels), 2 of 16 bytes (the same
 * address in nearly all lanes) and 32 products.
 *
 * Pixels lie `pitch` floats apart: the channels, plus one where their number is a multiple of 4, because
 * lanes that are a multiple of 4 banks apart would wait for each other.
 */
#include "kernels/cuda/conv/conv_simt.h"

#define PATCH_THREADS 256
#define PATCH_PIXELS 4
#define PATCH_CHANNELS 8
#define PATCH_FLOATS (48 * 256) /* 48 KiB of shared memory */

struct simt_patch {
        struct mfl_simt_args a;
        int images, rows;        /* of the output that a block computes: whole images, or some rows of one */
        int image_blocks, bands; /* blocks along images and along rows */
        int height, width, pitch, n_pad; /* of one image's patch in pixels; floats; channels rounded up */
        int top, left;                   /* the patch's first row and column for output row 0 */
        int step_y, step_x;              /* from one output pixel to the next */
        int lanes, n_images;             /* a thread's pixels lie `lanes` apart */
        int runs, run;                   /* the reduction within one r: `runs` runs of `run` floats */
        struct mfl_simt_div by_height, by_lanes, by_block_pixels, by_n, by_w_row, by_w_pixel;
};

static int64_t patch_floats(const struct simt_patch *p)
{
        int64_t inputs = (int64_t)p->images * p->height * p->width * p->pitch + p->a.red * p->n_pad;
        int64_t outputs = (int64_t)p->images * p->rows * p->a.grid_w * (p->a.n | 1);
        return inputs > outputs ? inputs : outputs;
}

static void patch_heights(struct simt_patch *p)
{
        p->height = (p->rows - 1) * p->step_y + (p->a.rs / p->a.s - 1) * p->a.dilation[0] + 1;
}

static bool patch_fits(const struct simt_patch *p)
{
        int64_t pixels = (int64_t)p->images * p->rows * p->a.grid_w;
        int64_t items = (pixels + PATCH_PIXELS - 1) / PATCH_PIXELS * (p->n_pad / PATCH_CHANNELS);
        return items <= PATCH_THREADS && patch_floats(p) <= PATCH_FLOATS;
}

/* Everything except by_*; false: not even one row fits. Blocks are as large as possible, but leave at least
 * about two for each multiprocessor of a large device. */
static bool patch_plan(const struct mfl_simt_args *a, bool data, struct simt_patch *p)
{
        int r = a->rs / a->s, grid_h = a->grid_pixels / a->grid_w;
        if (data && (a->stride[0] != 1 || a->stride[1] != 1))
                return false;
        if (a->n > 64 || a->red > PATCH_FLOATS || a->sc > 512 || a->grid_w > 1024 || grid_h > (1 << 20) ||
                (int64_t)(a->s - 1) * a->dilation[1] > 4096 || (int64_t)(r - 1) * a->dilation[0] > 4096 ||
                a->stride[0] > 64 || a->stride[1] > 64 || a->m / a->grid_pixels > INT32_MAX)
                return false;
        p->a = *a;
        p->n_images = (int)(a->m / a->grid_pixels);
        p->step_y = data ? 1 : a->stride[0];
        p->step_x = data ? 1 : a->stride[1];
        p->top = data ? a->pad[0] - (r - 1) * a->dilation[0] : -a->pad[0];
        p->left = data ? a->pad[1] - (a->s - 1) * a->dilation[1] : -a->pad[1];
        p->width = (a->grid_w - 1) * p->step_x + (a->s - 1) * a->dilation[1] + 1;
        p->pitch = a->sc % 4 == 0 ? a->sc + 1 : a->sc;
        p->n_pad = (a->n + PATCH_CHANNELS - 1) / PATCH_CHANNELS * PATCH_CHANNELS;
        bool one_run = !data && a->dilation[1] == 1 && p->pitch == a->sc;
        p->runs = one_run ? 1 : a->s;
        p->run = one_run ? a->s * a->sc : a->sc;
        p->images = 1;
        for (p->rows = grid_h < 1024 ? grid_h : 1024; p->rows > 0; p->rows--) {
                patch_heights(p);
                int64_t blocks = (int64_t)a->groups * p->n_images * ((grid_h + p->rows - 1) / p->rows);
                if (patch_fits(p) && (blocks >= 264 || p->rows * a->grid_w <= 128))
                        break;
        }
        if (p->rows == 0) { /* one row is wide, but may fit */
                p->rows = 1;
                patch_heights(p);
                if (!patch_fits(p))
                        return false;
        }
        while (p->rows == grid_h && p->images < p->n_images) {
                p->images++;
                if (!patch_fits(p) ||
                        (int64_t)a->groups * ((p->n_images + p->images - 1) / p->images) < 264) {
                        p->images--;
                        break;
                }
        }
        p->bands = (grid_h + p->rows - 1) / p->rows;
        p->image_blocks = (p->n_images + p->images - 1) / p->images;
        return true;
}

/* The shared memory of one block. */
struct simt_patch_block {
        int64_t group;
        int image, row;
};

/* Copies the source's pixels: a warp takes one row of the patch at a time, whose inside is contiguous in
 * memory. */
MFL_DEVICE void patch_load(const struct simt_patch *p, const struct simt_patch_block *b, float *patch)
{
        const struct mfl_simt_args *a = &p->a;
        int warps = (int)blockDim.x / 32, run = p->width * a->sc, row_floats = a->sw * a->sc;
        const float *src = a->a + b->group * a->a_group;
        for (int row = (int)threadIdx.x / 32; row < p->images * p->height; row += warps) {
                int image = mfl_simt_quotient(&p->by_height, row);
                int y = b->row * p->step_y + p->top + (row - image * p->height);
                image += b->image;
                bool valid = y >= 0 && y < a->sh && image < p->n_images;
                const float *from = src + ((int64_t)image * a->sh + (valid ? y : 0)) * row_floats;
                float *to = patch + row * p->width * p->pitch;
                for (int e = (int)threadIdx.x % 32; e < run; e += 32) {
                        int at = p->left * a->sc + e;
                        int x = p->pitch == a->sc ? 0 : mfl_simt_quotient(&a->by_sc, e);
                        mfl_cp_async_4(
                                to + e + x, from + at, valid && (unsigned)at < (unsigned)row_floats ? 4 : 0);
                }
        }
}

/* All weights as [red][n_pad], zeros behind n. */
MFL_DEVICE void patch_load_w(
        const struct simt_patch *p, const struct simt_patch_block *b, float *to, const bool data)
{
        const struct mfl_simt_args *a = &p->a;
        const float *w = a->b + b->group * a->b_group;
        int red = (int)a->red, pad = p->n_pad - a->n;
        for (int e = (int)threadIdx.x; e < red * a->n; e += (int)blockDim.x) {
                int major = mfl_simt_quotient(&p->by_w_row, e), rest = e - major * (int)p->by_w_row.d;
                int step = rest, n = major; /* forward: w[n][red] */
                if (data) {                 /* w[k][rs][c]: red = (rs, k), n = c */
                        int rs = mfl_simt_quotient(&p->by_w_pixel, rest);
                        step = rs * a->k + major;
                        n = rest - rs * a->c;
                }
                mfl_cp_async_4(to + step * p->n_pad + n, w + e, 4);
        }
        if (pad == 0)
                return;
        for (int step = (int)threadIdx.x; step < red; step += (int)blockDim.x)
                for (int n = a->n; n < p->n_pad; n++)
                        to[step * p->n_pad + n] = 0.0f;
}

struct simt_patch_sums {
        float acc[PATCH_PIXELS * PATCH_CHANNELS], total[PATCH_PIXELS * PATCH_CHANNELS];
};

/* One step: channel `at` of the run for 4 pixels and the first `used` (a constant) of 8 channels. */
MFL_DEVICE void patch_step(const float *const x[PATCH_PIXELS], int at, const float *w,
        struct simt_patch_sums *sums, const int used)
{
        float fw[PATCH_CHANNELS] __attribute__((aligned(16)));
        mfl_copy_16(fw, w);
        mfl_copy_16(fw + 4, w + 4);
        MFL_UNROLL
        for (int i = 0; i < PATCH_PIXELS; i++) {
                float v = x[i][at];
                MFL_UNROLL
                for (int j = 0; j < used; j++)
                        sums->acc[i * PATCH_CHANNELS + j] = fmaf(v, fw[j], sums->acc[i * PATCH_CHANNELS + j]);
        }
}

MFL_DEVICE void patch_end_segment(struct simt_patch_sums *sums)
{
        MFL_UNROLL
        for (int i = 0; i < PATCH_PIXELS * PATCH_CHANNELS; i++) {
                sums->total[i] += sums->acc[i];
                sums->acc[i] = 0.0f;
        }
}

/* One run of the reduction, which a segment's end may cut. Returns what remains of the segment. */
MFL_DEVICE int patch_run(const struct simt_patch *p, const float *const x[PATCH_PIXELS], const float *w,
        int left, struct simt_patch_sums *sums, const int used)
{
        const int n_pad = p->n_pad;
        for (int at = 0; at < p->run;) {
                int end = at + left < p->run ? at + left : p->run;
                left -= end - at;
                for (; at + 4 <= end; at += 4, w += 4 * n_pad) {
                        MFL_UNROLL
                        for (int i = 0; i < 4; i++)
                                patch_step(x, at + i, w + i * n_pad, sums, used);
                }
                for (; at < end; at++, w += n_pad)
                        patch_step(x, at, w, sums, used);
                if (left == 0) {
                        patch_end_segment(sums);
                        left = (int)p->a.segment;
                }
        }
        return left;
}

MFL_DEVICE void patch_multiply(const struct simt_patch *p, const float *patch, const float *w, int lane,
        struct simt_patch_sums *sums, const int used, const bool data)
{
        const struct mfl_simt_args *a = &p->a;
        const float *first[PATCH_PIXELS];
        int block_pixels = p->images * p->rows * a->grid_w, left = (int)a->segment,
            r_taps = (int)(a->rs / a->s);
        MFL_UNROLL
        for (int i = 0; i < PATCH_PIXELS; i++) {
                int pixel = lane + i * p->lanes < block_pixels ? lane + i * p->lanes : 0;
                int image = mfl_simt_quotient(&p->by_block_pixels, pixel);
                int in_image = pixel - image * p->rows * a->grid_w;
                int y = mfl_simt_quotient(&a->by_grid_w, in_image), x = in_image - y * a->grid_w;
                first[i] =
                        patch + ((image * p->height + y * p->step_y) * p->width + x * p->step_x) * p->pitch;
        }
        for (int r = 0; r < r_taps; r++)
                for (int s = 0; s < p->runs; s++) {
                        int dy = data ? (r_taps - 1 - r) * a->dilation[0] : r * a->dilation[0];
                        int dx = data ? (a->s - 1 - s) * a->dilation[1] : s * a->dilation[1];
                        const float *x[PATCH_PIXELS];
                        MFL_UNROLL
                        for (int i = 0; i < PATCH_PIXELS; i++)
                                x[i] = first[i] + (dy * p->width + dx) * p->pitch;
                        left = patch_run(p, x, w, left, sums, used);
                        w += p->run * p->n_pad;
                }
        if (left != a->segment)
                patch_end_segment(sums);
}

/* Results go through shared memory, so that memory is written in one stream. */
MFL_DEVICE void patch_store(
        const struct simt_patch *p, const struct simt_patch_block *b, const float *stage, const bool data)
{
        const struct mfl_simt_args *a = &p->a;
        int grid_h = a->grid_pixels / a->grid_w, pitch = a->n | 1;
        int images = p->n_images - b->image < p->images ? p->n_images - b->image : p->images;
        int rows = grid_h - b->row < p->rows ? grid_h - b->row : p->rows;
        int64_t start = ((int64_t)b->image * a->grid_pixels + (int64_t)b->row * a->grid_w) * a->n;
        for (int e = (int)threadIdx.x; e < images * rows * a->grid_w * a->n; e += (int)blockDim.x) {
                int pixel = mfl_simt_quotient(&p->by_n, e), n = e - pixel * a->n;
                a->out[b->group * a->out_group + start + e] =
                        mfl_simt_finish(a, data ? MFL_CUDA_BACKWARD_DATA : MFL_CUDA_FORWARD, b->group,
                                start + e, n, stage[pixel * pitch + n]);
        }
}

MFL_DEVICE void patch_block(const struct simt_patch *p, float *shared, const int used, const bool data)
{
        const struct mfl_simt_args *a = &p->a;
        uint32_t i = blockIdx.x;
        struct simt_patch_block b;
        b.row = (int)(i % (uint32_t)p->bands) * p->rows;
        i /= (uint32_t)p->bands;
        b.image = (int)(i % (uint32_t)p->image_blocks) * p->images;
        b.group = i / (uint32_t)p->image_blocks;
        if (mfl_simt_is_left_out(&a->steps, b.group))
                return;
        float *w = shared, *patch = shared + a->red * p->n_pad;
        patch_load_w(p, &b, w, data);
        patch_load(p, &b, patch);
        mfl_cp_async_commit();
        mfl_cp_async_wait(0);
        MFL_SYNC();
        struct simt_patch_sums sums;
        MFL_UNROLL
        for (int j = 0; j < PATCH_PIXELS * PATCH_CHANNELS; j++)
                sums.acc[j] = sums.total[j] = 0.0f;
        int channels = mfl_simt_quotient(&p->by_lanes, (int)threadIdx.x);
        int lane = (int)threadIdx.x - channels * p->lanes;
        channels *= PATCH_CHANNELS;
        bool works = channels < p->n_pad;
        if (works)
                patch_multiply(p, patch, w + channels, lane, &sums, used, data);
        MFL_SYNC();
        MFL_UNROLL
        for (int j = 0; j < PATCH_PIXELS * PATCH_CHANNELS; j++) {
                int pixel = lane + j / PATCH_CHANNELS * p->lanes, n = channels + j % PATCH_CHANNELS;
                if (works && n < a->n && pixel < p->images * p->rows * a->grid_w)
                        shared[pixel * (a->n | 1) + n] = sums.total[j];
        }
        MFL_SYNC();
        patch_store(p, &b, shared, data);
}

/* Six of eight channels, because saving a quarter of the products is worth a kernel. */
MFL_KERNEL_BOUNDS(simt_patch_forward, struct simt_patch, PATCH_THREADS, 2)
{
        MFL_SHARED_DYNAMIC(shared);
        patch_block(&a, (float *)shared, 8, false);
}
MFL_KERNEL_BOUNDS(simt_patch_forward_6, struct simt_patch, PATCH_THREADS, 2)
{
        MFL_SHARED_DYNAMIC(shared);
        patch_block(&a, (float *)shared, 6, false);
}
MFL_KERNEL_BOUNDS(simt_patch_data, struct simt_patch, PATCH_THREADS, 2)
{
        MFL_SHARED_DYNAMIC(shared);
        patch_block(&a, (float *)shared, 8, true);
}
MFL_KERNEL_BOUNDS(simt_patch_data_6, struct simt_patch, PATCH_THREADS, 2)
{
        MFL_SHARED_DYNAMIC(shared);
        patch_block(&a, (float *)shared, 6, true);
}

bool mfl_simt_patch_can_forward(const struct mfl_simt_args *a)
{
        struct simt_patch p;
        return patch_plan(a, false, &p);
}

bool mfl_simt_patch_can_data(const struct mfl_simt_args *a)
{
        struct simt_patch p;
        return patch_plan(a, true, &p);
}

static cudaError_t patch_launch(
        const void *kernel, const struct mfl_simt_args *a, bool data, cudaStream_t stream)
{
        struct simt_patch p;
        if (!patch_plan(a, data, &p))
                return cudaErrorInvalidValue;
        int pixels = p.images * p.rows * a->grid_w;
        p.lanes = (pixels + PATCH_PIXELS - 1) / PATCH_PIXELS;
        p.by_height = mfl_simt_divide_by(p.height);
        p.by_lanes = mfl_simt_divide_by(p.lanes);
        p.by_block_pixels = mfl_simt_divide_by(p.rows * a->grid_w);
        p.by_n = mfl_simt_divide_by(a->n);
        p.by_w_row = mfl_simt_divide_by(data ? a->rs * a->c : (int)a->red);
        p.by_w_pixel = mfl_simt_divide_by(a->c);
        int threads = (p.lanes * (p.n_pad / PATCH_CHANNELS) + 31) / 32 * 32;
        int64_t blocks = (int64_t)p.bands * p.image_blocks;
        if (blocks > INT32_MAX / a->groups)
                return cudaErrorInvalidConfiguration;
        return MFL_LAUNCH(kernel, blocks * a->groups, 1, 1, threads, (size_t)patch_floats(&p) * sizeof(float),
                stream, &p);
}

cudaError_t mfl_simt_patch_forward(const struct mfl_simt_args *a, int64_t blocks, cudaStream_t stream)
{
        return patch_launch(
                (const void *)(a->n <= 6 ? simt_patch_forward_6 : simt_patch_forward), a, false, stream);
}

cudaError_t mfl_simt_patch_data(const struct mfl_simt_args *a, int64_t blocks, cudaStream_t stream)
{
        return patch_launch((const void *)(a->n <= 6 ? simt_patch_data_6 : simt_patch_data), a, true, stream);
}
