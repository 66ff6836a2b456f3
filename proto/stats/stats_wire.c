/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics as messages. */
#include "proto/stats/stats_wire.h"

#include <inttypes.h>

#include "proto/inquiry.h"

_Static_assert(MFL_STATS_SUM_BYTES == MFL_WIDE_BYTES(MFL_WIDE_SUM), "sums have other lengths");
_Static_assert(MFL_STATS_SQUARES_BYTES == MFL_WIDE_BYTES(MFL_WIDE_SQUARES), "squares have other lengths");

/* The message and everything that it points to. */
struct wire {
        Mfl__DataStats message;
        struct mfl_stats copy; /* bins, labels and names */
        Mfl__FeatureStats *features, **pointers;
        uint8_t *numbers;
};

void mfl_stats_wire_free(Mfl__DataStats *message)
{
        struct wire *w = message ? MFL_CONTAINER_OF(message, struct wire, message) : NULL;
        if (!w)
                return;
        mfl_stats_deinit(&w->copy);
        free(w->features);
        free(w->pointers);
        free(w->numbers);
        free(w);
}

static void fill_feature(
        const struct mfl_stats_feature *from, uint32_t n_bins, uint8_t *numbers, Mfl__FeatureStats *to)
{
        mfl__feature_stats__init(to);
        to->name = (char *)(uintptr_t)from->name;
        to->count = from->count;
        mfl_wide_put(&from->sum, MFL_WIDE_SUM, numbers);
        mfl_wide_put(&from->squares, MFL_WIDE_SQUARES, numbers + MFL_STATS_SUM_BYTES);
        to->sum = (ProtobufCBinaryData){MFL_STATS_SUM_BYTES, numbers};
        to->squares = (ProtobufCBinaryData){MFL_STATS_SQUARES_BYTES, numbers + MFL_STATS_SUM_BYTES};
        if (from->has_range) {
                to->has_least_case = MFL__FEATURE_STATS__HAS_LEAST_LEAST;
                to->least = from->least;
                to->has_most_case = MFL__FEATURE_STATS__HAS_MOST_MOST;
                to->most = from->most;
        }
        to->n_bins = n_bins;
        to->bins = from->bins;
}

int mfl_stats_to_wire(const struct mfl_stats *stats, Mfl__DataStats **ret_message, struct mfl_error *err)
{
        const size_t bytes = MFL_STATS_SUM_BYTES + MFL_STATS_SQUARES_BYTES, n = stats->n_features;
        struct wire *w = mfl_calloc(1, sizeof *w);
        if (!w)
                return mfl_fail_memory(err, sizeof *w, "statistics");
        mfl__data_stats__init(&w->message);
        int r = mfl_stats_add(&w->copy, stats, err);
        if (!r && n) {
                w->features = mfl_calloc(n, sizeof *w->features);
                w->pointers = mfl_calloc(n, sizeof *w->pointers);
                w->numbers = mfl_calloc(n, bytes);
                if (!w->features || !w->pointers || !w->numbers)
                        r = mfl_fail_memory(err, n * bytes, "statistics");
        }
        if (r) {
                mfl_stats_wire_free(&w->message);
                return r;
        }
        for (size_t f = 0; f < n; f++) {
                w->pointers[f] = &w->features[f];
                fill_feature(&w->copy.features[f], w->copy.n_bins, w->numbers + f * bytes, &w->features[f]);
        }
        w->message.samples = stats->samples;
        w->message.bytes = stats->bytes;
        w->message.n_features = n;
        w->message.features = w->pointers;
        w->message.n_labels = w->copy.n_labels;
        w->message.labels = w->copy.labels;
        w->message.hidden = stats->hidden;
        *ret_message = &w->message;
        return 0;
}

static int read_feature(
        const Mfl__FeatureStats *from, struct mfl_stats_feature *to, uint32_t n_bins, struct mfl_error *err)
{
        bool sums = from->sum.len == MFL_STATS_SUM_BYTES && from->squares.len == MFL_STATS_SQUARES_BYTES;
        if (!sums && (from->sum.len || from->squares.len))
                return mfl_fail(err, MFL_INVALID, "FeatureStats.sum: %zu bytes beside %zu", from->sum.len,
                        from->squares.len);
        if (from->count >> 40)
                return mfl_fail(err, MFL_INVALID, "FeatureStats.count: %" PRIu64 " values", from->count);
        mfl_strcpy(to->name, sizeof to->name, from->name);
        to->count = from->count;
        if (sums) {
                mfl_wide_get(from->sum.data, MFL_WIDE_SUM, &to->sum);
                mfl_wide_get(from->squares.data, MFL_WIDE_SQUARES, &to->squares);
        }
        to->has_range = from->has_least_case && from->has_most_case;
        to->least = to->has_range ? from->least : 0;
        to->most = to->has_range ? from->most : 0;
        uint64_t left = from->count;
        for (uint32_t b = 0; b < n_bins; b++) {
                if (from->bins[b] > left)
                        return mfl_fail(err, MFL_INVALID, "FeatureStats.bins: more than %" PRIu64 " values",
                                from->count);
                left -= from->bins[b];
                to->bins[b] = from->bins[b];
        }
        return 0;
}

int mfl_stats_from_wire(const Mfl__DataStats *message, struct mfl_stats *ret_stats, struct mfl_error *err)
{
        const Mfl__DataStats *m = message;
        struct mfl_stats stats = {0};
        uint32_t n_bins = m->n_features ? (uint32_t)m->features[0]->n_bins : 0;
        uint64_t left = m->samples;
        int r = mfl_stats_init(&stats, (uint32_t)m->n_features, n_bins, (uint32_t)m->n_labels, err);
        if (r)
                return r;
        stats.samples = m->samples;
        stats.bytes = m->bytes;
        stats.hidden = m->hidden;
        for (uint32_t f = 0; f < stats.n_features && !r; f++)
                r = read_feature(m->features[f], &stats.features[f], n_bins, err);
        for (uint32_t c = 0; c < stats.n_labels && !r; c++) {
                if (m->labels[c] > left)
                        r = mfl_fail(err, MFL_INVALID, "DataStats.labels: more than %" PRIu64 " samples",
                                m->samples);
                left -= r ? 0 : m->labels[c];
                stats.labels[c] = m->labels[c];
        }
        if (r) {
                mfl_stats_deinit(&stats);
                return r;
        }
        *ret_stats = stats;
        return 0;
}
