/* SPDX-License-Identifier: Apache-2.0 */
/* Writes Prometheus' text format. */
#include "server/web/exposition.h"

#include <math.h>
#include <stdio.h>

void mfl_exposition_family(
        struct mfl_exposition *out, enum mfl_metric_type type, const char *name, const char *help)
{
        static const char *const names[] = {"counter", "gauge", "histogram"};
        mfl_assert(!strchr(help, '\n') && !strchr(help, '\\'));
        out->family = name;
        mfl_text_format(out->text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, names[type]);
}

/* Name and labels; bound: the value of a histogram's label "le", NULL for none. */
static void put_series(
        struct mfl_exposition *out, const char *suffix, const char *const *labels, const char *bound)
{
        struct mfl_text *text = out->text;
        const char *separator = "{";
        mfl_assert(out->family);
        mfl_text_put(text, out->family);
        mfl_text_put(text, suffix);
        for (; labels[0]; labels += 2) {
                mfl_text_put(text, separator);
                mfl_text_put(text, labels[0]);
                mfl_text_put(text, "=\"");
                mfl_text_label(text, labels[1]);
                mfl_text_put(text, "\"");
                separator = ",";
        }
        if (bound)
                mfl_text_format(text, "%sle=\"%s\"", separator, bound);
        mfl_text_put(text, bound || *separator == ',' ? "} " : " ");
}

static const char *number(double value, char buf[MFL_DOUBLE_BYTES])
{
        if (isnan(value))
                return "NaN";
        if (isinf(value))
                return value > 0 ? "+Inf" : "-Inf";
        return mfl_double_text(value, buf);
}

void mfl_exposition_u64(struct mfl_exposition *out, uint64_t value, const char *const *labels)
{
        put_series(out, "", labels, NULL);
        mfl_text_format(out->text, "%llu\n", (unsigned long long)value);
}

void mfl_exposition_double(struct mfl_exposition *out, double value, const char *const *labels)
{
        char buf[MFL_DOUBLE_BYTES];
        put_series(out, "", labels, NULL);
        mfl_text_put(out->text, number(value, buf));
        mfl_text_put(out->text, "\n");
}

void mfl_exposition_histogram(struct mfl_exposition *out, const struct mfl_histogram *histogram,
        const struct mfl_bounds *bounds, const char *const *labels)
{
        uint64_t total = 0;
        char buf[MFL_DOUBLE_BYTES];
        for (uint32_t i = 0; i <= bounds->n; i++) {
                total += histogram->count[i];
                put_series(out, "_bucket", labels, i < bounds->n ? number(bounds->v[i], buf) : "+Inf");
                mfl_text_format(out->text, "%llu\n", (unsigned long long)total);
        }
        put_series(out, "_sum", labels, NULL);
        mfl_text_format(out->text, "%s\n", number(histogram->sum, buf));
        put_series(out, "_count", labels, NULL);
        mfl_text_format(out->text, "%llu\n", (unsigned long long)total);
}
