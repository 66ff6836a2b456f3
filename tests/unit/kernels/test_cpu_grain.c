/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of grains on the CPU backend: those that dense layers write straight to where the sink has them are, bit for bit, those that
 * go there from the network's own memory, as they do where the sink has a tensor in pieces. */
#include <math.h>

#include "kernels/check.h"
#include "tests/unit/kernels/cpu_beside.h"

#define FEATURES 130 /* two whole panels and a short one */
#define HIDDEN 91    /* no whole number of tiles, on any processor */
#define CLASSES 5
#define SAMPLES 13
#define ROWS 7
#define TENSORS_MAX 12
#define FILLER 0x5a

static const struct mfl_layer layers[] = {
        {.op = MFL_OP_DENSE, .input = 0, .out_channels = HIDDEN, .bias = true},
        {.op = MFL_OP_RELU, .input = 1},
        {.op = MFL_OP_DENSE, .input = 2, .out_channels = HIDDEN, .bias = true, .lora_rank = 2},
        {.op = MFL_OP_RELU, .input = 3}, {.op = MFL_OP_DENSE, .input = 4, .out_channels = 33},
        {.op = MFL_OP_TANH, .input = 5},
        {.op = MFL_OP_DENSE, .input = 6, .out_channels = CLASSES, .bias = true}};

/* Channels that the backend may pad: a dense layer behind them takes more floats than the model says. */
static const struct mfl_layer image_layers[] = {CONV(0, 20), {.op = MFL_OP_RELU, .input = 1},
        {.op = MFL_OP_FLATTEN, .input = 2},
        {.op = MFL_OP_DENSE, .input = 3, .out_channels = HIDDEN, .bias = true},
        {.op = MFL_OP_RELU, .input = 4},
        {.op = MFL_OP_DENSE, .input = 5, .out_channels = CLASSES, .bias = true}};

/* Where gradients go, in pieces of at most `most` elements. */
struct place {
        char *sum;
        uint64_t size, most;
        float largest[TENSORS_MAX];
        int ready[2 * TENSORS_MAX], n_ready;
};

static void *find(void *user, uint64_t at, uint64_t *n)
{
        struct place *place = user;
        *n = MFL_MIN(*n, place->most);
        return place->sum + at * place->size;
}

static void note(void *user, int tensor)
{
        struct place *place = user;
        assert_true(place->n_ready < 2 * TENSORS_MAX);
        place->ready[place->n_ready++] = tensor;
}

struct bed {
        struct mfl_graph *graph;
        struct mfl_dataset set;
        struct mfl_device_data *data;
        float *first;
};

static void bed_init(struct bed *bed, bool image)
{
        const struct mfl_shape table = IN1(FEATURES),
                               input = image ? (struct mfl_shape)IN3(1, 10, 13) : table;
        int32_t *labels = calloc(SAMPLES, sizeof *labels);
        float *x = new_floats(SAMPLES * FEATURES);
        assert_non_null(labels);
        fill(x, SAMPLES * FEATURES, 4);
        for (int i = 0; i < SAMPLES; i++)
                labels[i] = i % CLASSES;
        *bed = (struct bed){
                .graph = image ? graph_of(&input, image_layers, MFL_ARRAY_SIZE(image_layers), CLASSES)
                               : graph_of(&input, layers, MFL_ARRAY_SIZE(layers), CLASSES),
                .set = {.name = "random", .shape = input, .classes = CLASSES, .labels_per_sample = 1}};
        for (int c = 0; c < MFL_CHANNELS_MAX; c++)
                bed->set.scale[c] = 1;
        bed->set.train = (struct mfl_split){.n = SAMPLES, .dtype = MFL_F32, .samples = x, .labels = labels};
        bed->first = new_floats(bed->graph->n);
        fill(bed->first, bed->graph->n, 5); /* also what LoRA begins with as zeros */
        assert_int_equal(cpu->data_new(cpu_device, &bed->set, &bed->set.train, true, &bed->data, NULL), 0);
}

static void bed_deinit(struct bed *bed)
{
        cpu->data_free(bed->data);
        free(bed->set.train.samples);
        free(bed->set.train.labels);
        free(bed->first);
        mfl_graph_free(bed->graph);
}

/* What grains leave of tensors that have operands: elements [from, end) of each, with `skip` elements before and after them. */
struct products {
        uint64_t skip;
        uint32_t n; /* pieces in which totals are computed */
        struct mfl_grad_tensor tensors[TENSORS_MAX];
        int n_tensors, n_deferred;
        float *operands[2][TENSORS_MAX], *total[TENSORS_MAX];
};

static void defer(struct products *p, const struct mfl_grad_layout *layout, uint32_t k,
        struct mfl_grad_deferred *deferred)
{
        p->n_tensors = layout->n_tensors;
        for (int t = 0; t < layout->n_tensors; t++) {
                const struct mfl_grad_tensor *tensor = &layout->tensors[t];
                p->tensors[t] = *tensor;
                if (tensor->count <= 3 * p->skip)
                        p->tensors[t].operands = 0;
                if (!p->tensors[t].operands)
                        continue;
                if (!k) {
                        p->operands[0][t] = new_floats(2 * ROWS * tensor->operands);
                        p->operands[1][t] = p->operands[0][t] + ROWS * tensor->operands;
                        p->total[t] = new_floats(tensor->count);
                        p->n_deferred++;
                }
                deferred[t] = (struct mfl_grad_deferred){
                        p->operands[k][t], tensor->at + p->skip, tensor->at + tensor->count - 2 * p->skip};
        }
}

static void take_totals(struct products *p, const struct mfl_net *net, const int *bits, float *largest)
{
        for (int t = 0; t < p->n_tensors; t++) {
                const struct mfl_grad_tensor *tensor = &p->tensors[t];
                uint64_t n = tensor->count - 3 * p->skip, first = tensor->at + p->skip;
                for (uint32_t i = 0; tensor->operands && i < p->n; i++) {
                        uint64_t from = n * i / p->n, end = n * (i + 1) / p->n;
                        const struct mfl_grad_products how = {.tensor = t,
                                .first = first + from,
                                .n = end - from,
                                .operands = p->operands[0][t],
                                .stride = ROWS * tensor->operands,
                                .n_grains = 2,
                                .rounding = {bits, largest},
                                .total = p->total[t] + p->skip + from};
                        cpu->grad->products(net, &how);
                }
        }
}

/* Two grains, of many rows and of few. What was there before is written over, as when a step is taken again. */
static uint64_t take(struct bed *bed, int threads, bool floats, uint64_t most, struct products *products,
        struct place *place)
{
        static const uint32_t index[] = {3, 1, 12, 7, 7, 0, 5, 2, 11, 4}, rows[] = {ROWS, 3};
        struct mfl_net_options options = {
                .batch = ROWS, .groups = 1, .threads = threads, .training = true, .worker = true};
        struct mfl_grad_layout layout;
        struct mfl_score score = {0};
        struct mfl_net *net = NULL;
        int bits[TENSORS_MAX];
        assert_int_equal(cpu->net_new(cpu_device, bed->graph, &options, &net, NULL), 0);
        assert_int_equal(mfl_backend_set(cpu, net, bed->graph, 0, bed->first, NULL), 0);
        cpu->grad->layout(net, &layout);
        assert_in_range(layout.n_tensors, 5, TENSORS_MAX);
        *place = (struct place){.size = floats ? sizeof(float) : sizeof(int64_t), .most = most};
        place->sum = malloc(layout.n * place->size);
        assert_non_null(place->sum);
        memset(place->sum, FILLER, layout.n * place->size);
        for (int t = 0; t < layout.n_tensors; t++)
                bits[t] = 40 + t;
        for (uint32_t k = 0, at = 0; k < MFL_ARRAY_SIZE(rows); at += rows[k++]) {
                struct mfl_loss_share share = mfl_loss_share_of(
                        &bed->set, &bed->set.train, &options.loss, index, MFL_ARRAY_SIZE(index));
                struct mfl_grain grain = {.index = index + at,
                        .rows = rows[k],
                        .first_row = at,
                        .share = &share,
                        .moved = !k,
                        .loss_scale = 1};
                struct mfl_grad_deferred deferred[TENSORS_MAX] = {0};
                if (products)
                        defer(products, &layout, k, deferred);
                struct mfl_grad_sink sink = {.place = find,
                        .deferred = products ? deferred : NULL,
                        .first = !k,
                        .floats = floats,
                        .bits = bits,
                        .largest = place->largest,
                        .ready = note,
                        .user = place};
                assert_int_equal(cpu->grad->grain(net, bed->data, &grain, &sink, &score, NULL), 0);
        }
        if (products)
                take_totals(products, net, bits, place->largest);
        cpu->net_free(net);
        return layout.n * place->size;
}

static void gradients_are_the_same_wherever_they_go(void **state)
{
        struct bed bed;
        if (!cpu)
                skip_for("this build has no CPU backend (Debian: libdnnl-dev)");
        bed_init(&bed, false);
        for (int floats = 0; floats < 2; floats++) {
                struct place whole, pieces;
                uint64_t bytes = take(&bed, 1, floats, UINT64_MAX, NULL, &whole);
                assert_int_equal(take(&bed, 1, floats, 37, NULL, &pieces), bytes);
                assert_memory_equal(whole.sum, pieces.sum, bytes);
                assert_memory_equal(whole.largest, pieces.largest, sizeof whole.largest);
                assert_int_equal(whole.n_ready, pieces.n_ready);
                assert_memory_equal(whole.ready, pieces.ready, sizeof whole.ready);
                free(pieces.sum);
                free(whole.sum);
        }
        bed_deinit(&bed);
}

/* Each element of the sums that is deferred, as a float, is the total; the others are where they were. */
static void check_totals(const struct products *p, const struct place *sums, const struct place *rest)
{
        for (int t = 0; t < p->n_tensors; t++) {
                const struct mfl_grad_tensor *tensor = &p->tensors[t];
                const int64_t *sum = (const int64_t *)(const void *)sums->sum + tensor->at,
                              *other = (const int64_t *)(const void *)rest->sum + tensor->at;
                int64_t filler;
                memset(&filler, FILLER, sizeof filler);
                for (uint64_t i = 0; i < tensor->count; i++) {
                        bool inside = tensor->operands && i >= p->skip && i < tensor->count - 2 * p->skip;
                        assert_int_equal(other[i], inside ? filler : sum[i]);
                        float f = (float)((double)sum[i] * ldexp(1.0, -(40 + t)));
                        if (inside)
                                assert_memory_equal(&p->total[t][i], &f, sizeof f);
                }
        }
}

static void check_products(bool image)
{
        static const struct {
                uint64_t skip;
                uint32_t n;
        } cuts[] = {{0, 1}, {0, 7}, {1, 1}, {67, 5}, {300, 40}, {700, 3}};
        struct bed bed;
        struct place sums, rest;
        if (!cpu)
                skip_for("this build has no CPU backend (Debian: libdnnl-dev)");
        bed_init(&bed, image);
        uint64_t bytes = take(&bed, 1, false, UINT64_MAX, NULL, &sums);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cuts); i++) {
                struct products products = {.skip = cuts[i].skip, .n = cuts[i].n};
                assert_int_equal(take(&bed, 1, false, UINT64_MAX, &products, &rest), bytes);
                assert_int_equal(
                        products.n_deferred, image ? 2 - (products.skip > 151) : 3 - (products.skip > 54));
                check_totals(&products, &sums, &rest);
                assert_memory_equal(sums.largest, rest.largest, sizeof sums.largest);
                assert_int_equal(sums.n_ready, rest.n_ready);
                assert_memory_equal(sums.ready, rest.ready, sizeof sums.ready);
                for (int t = 0; t < products.n_tensors; t++) {
                        free(products.operands[0][t]);
                        free(products.total[t]);
                }
                free(rest.sum);
        }
        free(sums.sum);
        bed_deinit(&bed);
}

static void products_give_the_totals(void **state)
{
        check_products(false);
}

static void also_behind_padded_channels(void **state)
{
        check_products(true);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(gradients_are_the_same_wherever_they_go),
                cmocka_unit_test(products_give_the_totals),
                cmocka_unit_test(also_behind_padded_channels),
        };
        return cmocka_run_group_tests_name("cpu_grain", tests, open_devices, close_devices);
}
