/* SPDX-License-Identifier: Apache-2.0 */
/* What evaluations add up. */
#include "common/measure/tally.h"

#include <math.h>

#define PARTS 8 /* numbers of one target */
#define VALUE_MAX 0x1p40
#define SAMPLES_MAX (1u << 23)

enum { ABSOLUTE = 0, SQUARE = 2, TARGET = 4, TARGET_SQUARE = 6 };

uint32_t mfl_tally_size(enum mfl_tally kind, uint32_t n)
{
        switch (kind) {
        case MFL_TALLY_NONE:
                return 0;
        case MFL_TALLY_CLASSES:
                return 3 * n;
        case MFL_TALLY_CONFUSION:
                return n * n;
        case MFL_TALLY_TARGETS:
                return 1 + PARTS * n;
        case MFL_TALLY_BACKDOOR:
                return 2;
        }
        return 0;
}

void mfl_tally_label(enum mfl_tally kind, uint64_t *tally, uint32_t n, uint32_t label, uint32_t predicted)
{
        if (kind == MFL_TALLY_CONFUSION) {
                tally[label * n + predicted]++;
                return;
        }
        tally[label]++;
        tally[n + predicted]++;
        tally[2 * n + label] += label == predicted;
}

static void add_value(uint64_t *tally, uint64_t *parts, double value)
{
        if (!(fabs(value) < VALUE_MAX)) { /* also NaN */
                tally[0]++;
                return;
        }
        double whole = floor(value);
        parts[0] += (uint64_t)(int64_t)whole;
        parts[1] += (uint64_t)((value - whole) * 0x1p32);
}

void mfl_tally_target(uint64_t *tally, uint32_t k, float predicted, float target)
{
        uint64_t *parts = tally + 1 + PARTS * k;
        double error = (double)predicted - (double)target, y = (double)target;
        add_value(tally, parts + ABSOLUTE, fabs(error));
        add_value(tally, parts + SQUARE, error * error);
        add_value(tally, parts + TARGET, y);
        add_value(tally, parts + TARGET_SQUARE, y * y);
}

/* ---- reading ---- */

struct counts {
        uint64_t labels, predictions, both;
};

static struct counts counts_of(enum mfl_tally kind, const uint64_t *tally, uint32_t n, uint32_t c)
{
        if (kind == MFL_TALLY_CLASSES)
                return (struct counts){tally[c], tally[n + c], tally[2 * n + c]};
        struct counts counts = {.both = tally[c * n + c]};
        for (uint32_t i = 0; i < n; i++) {
                counts.labels += tally[c * n + i];
                counts.predictions += tally[i * n + c];
        }
        return counts;
}

static uint64_t add(uint64_t a, uint64_t b)
{
        uint64_t sum;
        return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static bool classes_agree(
        enum mfl_tally kind, const uint64_t *tally, uint32_t n, uint64_t scored, uint64_t correct)
{
        struct counts sum = {0};
        for (uint32_t i = 0; i < mfl_tally_size(kind, n); i++)
                if (tally[i] > scored)
                        return false;
        for (uint32_t c = 0; c < n; c++) {
                struct counts counts = counts_of(kind, tally, n, c);
                if (counts.both > MFL_MIN(counts.labels, counts.predictions))
                        return false;
                sum.labels = add(sum.labels, counts.labels);
                sum.predictions = add(sum.predictions, counts.predictions);
                sum.both = add(sum.both, counts.both);
        }
        return sum.labels == scored && sum.predictions == scored && sum.both == correct;
}

bool mfl_tally_agrees(
        enum mfl_tally kind, const uint64_t *tally, uint32_t n, uint64_t scored, uint64_t correct)
{
        if (kind == MFL_TALLY_CLASSES || kind == MFL_TALLY_CONFUSION)
                return classes_agree(kind, tally, n, scored, correct);
        if (kind == MFL_TALLY_NONE)
                return true;
        if (kind == MFL_TALLY_BACKDOOR)
                return tally[1] <= tally[0] && tally[0] <= scored;
        uint64_t each = scored / n;
        if (tally[0] || each > SAMPLES_MAX)
                return tally[0] <= 4 * scored; /* its measures are not known anyway */
        for (uint32_t i = 0; i < PARTS * n; i += 2)
                if (tally[1 + i + 1] > each << 32 ||
                        (i % PARTS != TARGET && (int64_t)tally[1 + i] < 0)) /* only targets can be negative */
                        return false;
        return true;
}

static double value_of(const uint64_t *parts)
{
        return (double)(int64_t)parts[0] + (double)parts[1] * 0x1p-32;
}

bool mfl_tally_targets(const uint64_t *tally, uint32_t n, uint64_t scored,
        struct mfl_tally_target ret_targets[MFL_TALLY_TARGETS_MAX])
{
        if (tally[0] || !scored || scored / n > SAMPLES_MAX)
                return false;
        for (uint32_t k = 0; k < n; k++) {
                const uint64_t *parts = tally + 1 + PARTS * k;
                ret_targets[k] = (struct mfl_tally_target){value_of(parts + ABSOLUTE),
                        value_of(parts + SQUARE), value_of(parts + TARGET), value_of(parts + TARGET_SQUARE)};
        }
        return true;
}

static void measure_targets(const uint64_t *tally, uint32_t n, uint64_t scored, struct mfl_measures *measures)
{
        struct mfl_tally_target target[MFL_TALLY_TARGETS_MAX];
        double each = (double)(scored / n), absolute = 0, square = 0, r2 = 0;
        bool varies = true;
        if (!mfl_tally_targets(tally, n, scored, target))
                return;
        for (uint32_t k = 0; k < n; k++) {
                double spread = target[k].value_square - target[k].value * (target[k].value / each);
                absolute += target[k].absolute;
                square += target[k].square;
                varies &= spread > each * 0x1p-31; /* less is the rounding of the squares */
                r2 += varies ? 1 - target[k].square / spread : 0;
        }
        mfl_measure_set(measures, MFL_MEASURE_MAE, absolute / (double)scored);
        mfl_measure_set(measures, MFL_MEASURE_RMSE, sqrt(square / (double)scored));
        if (varies)
                mfl_measure_set(measures, MFL_MEASURE_R2, r2 / n);
}

void mfl_tally_measure(enum mfl_tally kind, const uint64_t *tally, uint32_t n, uint64_t scored,
        struct mfl_measures *measures)
{
        double sum = 0;
        uint32_t n_seen = 0;
        if (kind == MFL_TALLY_TARGETS)
                measure_targets(tally, n, scored, measures);
        if (kind == MFL_TALLY_BACKDOOR && tally[0])
                mfl_measure_set(measures, MFL_MEASURE_BACKDOOR, (double)tally[1] / (double)tally[0]);
        if (kind != MFL_TALLY_CONFUSION)
                return;
        for (uint32_t c = 0; c < n; c++) {
                struct counts counts = counts_of(kind, tally, n, c);
                uint64_t either = counts.labels + counts.predictions;
                sum += either ? 2 * (double)counts.both / (double)either : 0;
                n_seen += either > 0;
        }
        if (n_seen)
                mfl_measure_set(measures, MFL_MEASURE_MACRO_F1, sum / n_seen);
}

bool mfl_tally_iou(enum mfl_tally kind, const uint64_t *tally, uint32_t n, double *ret_iou)
{
        double sum = 0;
        uint32_t n_seen = 0;
        for (uint32_t c = 0; (kind == MFL_TALLY_CLASSES || kind == MFL_TALLY_CONFUSION) && c < n; c++) {
                struct counts counts = counts_of(kind, tally, n, c);
                uint64_t either = counts.labels + counts.predictions - counts.both;
                sum += either ? (double)counts.both / (double)either : 0;
                n_seen += either > 0;
        }
        if (n_seen)
                *ret_iou = sum / n_seen;
        return n_seen > 0;
}
