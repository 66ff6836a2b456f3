/* SPDX-License-Identifier: Apache-2.0 */
/* A model's contract for people. */
#include <stdarg.h>
#include <stdio.h>

#include "cli/view/views.h"

#define NAMES_SHOWN 10

static void put_channels(FILE *out, const char *name, const float *v, int n)
{
        fprintf(out, "%s", name);
        for (int i = 0; i < n; i++)
                fprintf(out, " %.6g", (double)v[i]);
}

static void put_names(FILE *out, const char *title, char *const *names, int n)
{
        if (!names)
                return;
        fprintf(out, "%-10s ", title);
        for (int i = 0; i < n && i < NAMES_SHOWN; i++)
                fprintf(out, "%s%s", i ? ", " : "", names[i]);
        fprintf(out, n > NAMES_SHOWN ? ", and %d more\n" : "\n", n - NAMES_SHOWN);
}

static void put_scale(FILE *out, const struct mfl_contract *c, bool foreign)
{
        if (c->normalised) {
                fprintf(out, "scale      the input must be scaled before it is given: ");
                if (c->n_sites)
                        fprintf(out, "sites differ:");
                else
                        fprintf(out,
                                foreign ? "as the program does that it comes from" : "the sites keep how");
                for (int i = 0; i < c->n_sites; i++)
                        fprintf(out, " %s", c->sites[i]);
                fprintf(out, c->n_sites && *c->from ? " (from %s)\n" : "\n", c->from);
                return;
        }
        if (c->feature_mean)
                fprintf(out, "scale      each feature by its mean and deviation\n");
        else if (c->n_channels) {
                fprintf(out, "scale      ");
                put_channels(out, "x *", c->scale, c->n_channels);
                put_channels(out, " +", c->shift, c->n_channels);
                fputc('\n', out);
        }
}

char *mfl_view_contract(const struct mfl_contract *c, bool foreign)
{
        static const char *const types[] = {
                [MFL_U8] = "bytes", [MFL_F32] = "floats", [MFL_I32] = "whole numbers"};
        char shape[96], *text = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);
        if (!out)
                return NULL;
        fprintf(out, "input      %s %ss, %s%s%s\n", mfl_shape_text(&c->shape, shape, sizeof shape), c->unit,
                types[c->dtype], *c->data ? ", as in data set " : "", c->data);
        put_scale(out, c, foreign);
        if (c->vocabulary)
                fprintf(out, "vocabulary %d\n", c->vocabulary);
        if (c->n_targets)
                fprintf(out, "output     %d number%s\n", c->n_targets, c->n_targets == 1 ? "" : "s");
        else
                fprintf(out, "output     %d classes%s\n", c->classes,
                        c->labels_per_sample > 1 ? " for each position" : "");
        put_names(out, "classes", c->class_names, c->classes);
        put_names(out, "features", c->feature_names, (int)c->shape.dim[c->shape.rank - 1]);
        if (fclose(out)) {
                free(text);
                return NULL;
        }
        return text;
}
