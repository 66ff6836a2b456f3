/* SPDX-License-Identifier: Apache-2.0 */
/* Writes answers: CSV by RFC 4180 with one line per position, JSON lines with one object per sample, or a NumPy array.
 *
 * A file is written beside its place, and put there when it is complete. Fails when the disk is full, or standard output closes.
 */
#include <inttypes.h>
#include <jansson.h>
#include <unistd.h>

#include "cli/predict/answers.h"
#include "common/base/fs.h"

#define NPY_HEADER 128

struct writing {
        const struct mfl_answers *a;
        const struct mfl_contract *contract;
        const struct mfl_answer_options *options;
        double *p;
        uint32_t *order; /* classes of a row, the best `top` first */
        FILE *out;
};

static const char *name_of(const struct writing *w, uint32_t class)
{
        const struct mfl_contract *c = w->contract;
        return c->class_names && class < (uint32_t)c->classes ? c->class_names[class] : NULL;
}

/* The best ones, of equal ones the smaller number first. */
static void find_top(const struct writing *w, const float *z)
{
        uint32_t n = w->a->classes, top = MFL_MIN(w->options->top, n);
        for (uint32_t k = 0; k < n; k++)
                w->order[k] = k;
        for (uint32_t t = 0; t < top; t++)
                for (uint32_t k = t + 1; k < n; k++) {
                        uint32_t a = w->order[t], b = w->order[k];
                        if (z[b] > z[a] || (z[b] == z[a] && b < a)) {
                                w->order[t] = b;
                                w->order[k] = a;
                        }
                }
}

/* ---- CSV ---- */

static void put_text(FILE *out, const char *text)
{
        if (!strpbrk(text, "\",\r\n")) {
                fputs(text, out);
                return;
        }
        putc('"', out);
        for (; *text; text++) {
                if (*text == '"')
                        putc('"', out);
                putc(*text, out);
        }
        putc('"', out);
}

static void put_names(const struct writing *w, const char *what, uint32_t n)
{
        for (uint32_t k = 0; k < n; k++)
                fprintf(w->out, ",%s%u", what, k);
}

static void put_header(const struct writing *w)
{
        const struct mfl_answers *a = w->a;
        fputs(a->positions > 1 ? "row,position" : "row", w->out);
        for (uint32_t t = 0; a->kind == MFL_ANSWER_CLASS && t < MFL_MIN(w->options->top, a->classes); t++) {
                char number[16] = "";
                if (t)
                        snprintf(number, sizeof number, "_%u", t + 1);
                fprintf(w->out, ",class%s", number);
                if (w->contract->class_names)
                        fprintf(w->out, ",name%s", number);
                fprintf(w->out, ",probability%s", number);
        }
        if (a->kind == MFL_ANSWER_VALUE)
                put_names(w, "value_", a->classes);
        else if (a->kind == MFL_ANSWER_BINARY || w->options->probabilities)
                put_names(w, "p_", a->classes);
        if (w->options->logits)
                put_names(w, "z_", a->classes);
        fputs("\r\n", w->out);
}

static void put_line(const struct writing *w, uint32_t row, uint32_t position)
{
        const struct mfl_answers *a = w->a;
        const float *z = a->z + ((size_t)row * a->positions + position) * a->classes;
        mfl_answers_row(a, z, w->p);
        fprintf(w->out, "%u", row);
        if (a->positions > 1)
                fprintf(w->out, ",%u", position);
        if (a->kind == MFL_ANSWER_CLASS)
                find_top(w, z);
        for (uint32_t t = 0; a->kind == MFL_ANSWER_CLASS && t < MFL_MIN(w->options->top, a->classes); t++) {
                fprintf(w->out, ",%u", w->order[t]);
                if (w->contract->class_names) {
                        const char *name = name_of(w, w->order[t]);
                        putc(',', w->out);
                        put_text(w->out, name ? name : "");
                }
                fprintf(w->out, ",%.9g", w->p[w->order[t]]);
        }
        bool all = a->kind != MFL_ANSWER_CLASS || w->options->probabilities;
        for (uint32_t k = 0; all && k < a->classes; k++)
                fprintf(w->out, ",%.9g", w->p[k]);
        for (uint32_t k = 0; w->options->logits && k < a->classes; k++)
                fprintf(w->out, ",%.9g", (double)z[k]);
        fputs("\r\n", w->out);
}

/* ---- JSON lines ---- */

static json_t *reals(const double *p, const float *z, uint32_t n)
{
        json_t *list = json_array();
        for (uint32_t k = 0; k < n; k++) /* not finite: null */
                json_array_append_new(list, json_real(p ? p[k] : (double)z[k]) ?: json_null());
        return list;
}

static json_t *position_of(const struct writing *w, const float *z)
{
        const struct mfl_answers *a = w->a;
        json_t *one = json_object(), *top = json_array();
        mfl_answers_row(a, z, w->p);
        if (a->kind == MFL_ANSWER_CLASS)
                find_top(w, z);
        for (uint32_t t = 0; a->kind == MFL_ANSWER_CLASS && t < MFL_MIN(w->options->top, a->classes); t++) {
                const char *name = name_of(w, w->order[t]);
                json_t *entry = json_object();
                json_object_set_new(entry, "class", json_integer((json_int_t)w->order[t]));
                if (name)
                        json_object_set_new(entry, "name", json_string(name));
                json_object_set_new(entry, "probability", json_real(w->p[w->order[t]]) ?: json_null());
                if (!t)
                        json_object_update(one, entry);
                json_array_append_new(top, entry);
        }
        if (json_array_size(top) > 1)
                json_object_set(one, "top", top);
        json_decref(top);
        if (a->kind == MFL_ANSWER_VALUE)
                json_object_set_new(one, "values", reals(w->p, NULL, a->classes));
        else if (a->kind == MFL_ANSWER_BINARY || w->options->probabilities)
                json_object_set_new(one, "probabilities", reals(w->p, NULL, a->classes));
        if (w->options->logits)
                json_object_set_new(one, "logits", reals(NULL, z, a->classes));
        return one;
}

static void put_object(const struct writing *w, uint32_t row)
{
        const struct mfl_answers *a = w->a;
        const float *z = a->z + (size_t)row * a->positions * a->classes;
        json_t *top = json_object(), *list = json_array();
        json_object_set_new(top, "row", json_integer((json_int_t)row));
        for (uint32_t k = 0; k < a->positions; k++)
                json_array_append_new(list, position_of(w, z + (size_t)k * a->classes));
        if (a->positions > 1)
                json_object_set(top, "positions", list);
        else
                json_object_update(top, json_array_get(list, 0));
        json_dumpf(top, w->out, JSON_COMPACT | JSON_REAL_PRECISION(9));
        putc('\n', w->out);
        json_decref(list);
        json_decref(top);
}

/* ---- npy ---- */

/* Version 1.0: magic, header's length, a Python dictionary padded with spaces; then the floats. */
static void put_array(const struct writing *w)
{
        const struct mfl_answers *a = w->a;
        char header[NPY_HEADER + 1], positions[32] = "";
        if (a->positions > 1)
                snprintf(positions, sizeof positions, "%u, ", a->positions);
        int n = snprintf(header, sizeof header,
                "%c%s%c%c%c%c{'descr': '<f4', 'fortran_order': False, 'shape': (%u, %s%u), }", 0x93, "NUMPY",
                1, 0, NPY_HEADER - 10, 0, a->n, positions, a->classes);
        memset(header + n, ' ', (size_t)(NPY_HEADER - n));
        header[NPY_HEADER - 1] = '\n';
        fwrite(header, 1, NPY_HEADER, w->out);
        for (size_t i = 0; i < (size_t)a->n * a->positions; i++) {
                const float *z = a->z + i * a->classes;
                mfl_answers_row(a, z, w->p);
                for (uint32_t k = 0; k < a->classes; k++) {
                        float v = w->options->logits ? z[k] : (float)w->p[k];
                        fwrite(&v, sizeof v, 1, w->out);
                }
        }
}

static int write_all(struct writing *w, const char *path, struct mfl_error *err)
{
        const struct mfl_answers *a = w->a;
        if (w->options->format == MFL_ANSWERS_NPY)
                put_array(w);
        if (w->options->format == MFL_ANSWERS_CSV)
                put_header(w);
        for (uint32_t r = 0; r < a->n && w->options->format == MFL_ANSWERS_CSV; r++)
                for (uint32_t k = 0; k < a->positions; k++)
                        put_line(w, r, k);
        for (uint32_t r = 0; r < a->n && w->options->format == MFL_ANSWERS_JSONL; r++)
                put_object(w, r);
        /* It is no failure if the reader closes the pipe (mfl predict ... | head). */
        return (fflush(w->out) || ferror(w->out)) && errno != EPIPE ? mfl_fail_errno(err, "write %s", path)
                                                                    : 0;
}

static int write_file(struct writing *w, const char *path, struct mfl_error *err)
{
        struct mfl_fs_file file = {.fd = -1};
        int r = mfl_fs_begin(&file, path, err), fd;
        if (r)
                return r;
        fd = dup(file.fd);
        w->out = fd < 0 ? NULL : fdopen(fd, "w");
        r = w->out ? write_all(w, path, err) : mfl_fail_errno(err, "write %s", path);
        if (w->out && fclose(w->out) && !r)
                r = mfl_fail_errno(err, "write %s", path);
        if (!r)
                return mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        return r;
}

int mfl_answers_write(const struct mfl_answers *answers, const struct mfl_contract *contract,
        const char *path, const struct mfl_answer_options *options, struct mfl_error *err)
{
        MFL_CLEANUP_FREE double *p = mfl_calloc(answers->classes, sizeof *p);
        MFL_CLEANUP_FREE uint32_t *order = mfl_calloc(answers->classes, sizeof *order);
        struct writing w = {answers, contract, options, p, order, stdout};
        if (!p || !order)
                return mfl_fail_memory(err, answers->classes * sizeof *p, "a row of answers");
        return strcmp(path, "-") ? write_file(&w, path, err) : write_all(&w, "standard output", err);
}
