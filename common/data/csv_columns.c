/* SPDX-License-Identifier: Apache-2.0 */
/* CSV columns that hold categories: their declaration in the configuration or the header, and the numbers that their
 * values become.
 *
 * Values are declared, never taken from the rows: two sites whose rows differ must not number the values differently.
 * In the header: "colour:onehot(red|green|blue)", "grade:codes(a|b|c)".
 */
#include "common/data/sources.h"

static void free_values(struct mfl_categories *c)
{
        for (int i = 0; i < c->n; i++)
                free(c->values[i]);
        free(c->values);
        free(c->column);
        *c = (struct mfl_categories){0};
}

void mfl_categories_free(struct mfl_categories *list, int n)
{
        for (int i = 0; list && i < n; i++)
                free_values(&list[i]);
        free(list);
}

int mfl_categories_add_value(struct mfl_categories *c, const char *text, size_t n, struct mfl_error *err)
{
        for (int i = 0; i < c->n; i++)
                if (strlen(c->values[i]) == n && !memcmp(c->values[i], text, n))
                        return mfl_fail(
                                err, MFL_INVALID, "'%.*s' appears twice", (int)MFL_MIN(n, (size_t)40), text);
        if (c->n == MFL_CATEGORIES_MAX)
                return mfl_fail(err, MFL_INVALID, "more than %d values", MFL_CATEGORIES_MAX);
        char **grown = mfl_realloc(c->values, ((size_t)c->n + 1) * sizeof *grown);
        char *copy = grown ? mfl_malloc(n + 1) : NULL;
        c->values = grown ? grown : c->values;
        if (!copy)
                return mfl_fail_memory(err, n + 1, "categories");
        memcpy(copy, text, n);
        copy[n] = '\0';
        c->values[c->n++] = copy;
        return 0;
}

/* The last ":WORD(" or ":WORD" at the end of a header's cell. */
static bool find_type(struct mfl_span cell, const char *word, size_t *ret_name, size_t *ret_values)
{
        size_t n = strlen(word);
        for (size_t at = cell.n; at-- > 0;) {
                if (cell.s[at] != ':' || cell.n - at - 1 < n || memcmp(cell.s + at + 1, word, n))
                        continue;
                size_t behind = at + 1 + n;
                if (behind < cell.n && cell.s[behind] != '(')
                        continue;
                *ret_name = at;
                *ret_values = behind;
                return true;
        }
        return false;
}

static int add_values(struct mfl_categories *c, const char *s, const char *end, struct mfl_error *err)
{
        int r = 0;
        for (bool more = true; !r && more;) {
                const char *bar = memchr(s, '|', (size_t)(end - s));
                r = mfl_categories_add_value(c, s, (size_t)((bar ? bar : end) - s), err);
                more = bar != NULL;
                s = more ? bar + 1 : end;
        }
        return r ? r : mfl_categories_check(c, err);
}

int mfl_categories_check(const struct mfl_categories *c, struct mfl_error *err)
{
        return c->n < 2 ? mfl_fail(err, MFL_INVALID, "at least two values are needed, the same at every site")
                        : 0;
}

int mfl_categories_of_header(
        struct mfl_span *name, struct mfl_categories *ret_categories, struct mfl_error *err)
{
        struct mfl_categories c = {0};
        size_t cut, values;
        if (find_type(*name, "codes", &cut, &values))
                c.codes = true;
        else if (!find_type(*name, "onehot", &cut, &values))
                return 0;
        const char *word = c.codes ? "codes" : "onehot";
        if (values == name->n || name->s[name->n - 1] != ')')
                return mfl_fail(err, MFL_INVALID,
                        "column '%.*s': list its values, such as %.*s:%s(red|green|blue), the same at every "
                        "site",
                        (int)MFL_MIN(cut, (size_t)40), name->s, (int)MFL_MIN(cut, (size_t)40), name->s, word);
        struct mfl_error why;
        int r = add_values(&c, name->s + values + 1, name->s + name->n - 1, &why);
        if (r) {
                free_values(&c);
                return mfl_fail(err, r, "column '%.*s': %s: %.200s", (int)MFL_MIN(cut, (size_t)40), name->s,
                        word, why.text);
        }
        name->n = cut;
        *ret_categories = c;
        return 0;
}

uint32_t mfl_categories_width(const struct mfl_categories *c)
{
        return c && !c->codes ? (uint32_t)c->n : 1;
}

bool mfl_categories_encode(const struct mfl_categories *c, struct mfl_span cell, float *features)
{
        while (cell.n && (*cell.s == ' ' || *cell.s == '\t'))
                cell.s++, cell.n--;
        while (cell.n && (cell.s[cell.n - 1] == ' ' || cell.s[cell.n - 1] == '\t'))
                cell.n--;
        int k = 0;
        while (k < c->n && (strlen(c->values[k]) != cell.n || memcmp(c->values[k], cell.s, cell.n)))
                k++;
        if (k == c->n)
                return false;
        if (c->codes)
                *features = (float)k;
        for (int i = 0; !c->codes && i < c->n; i++)
                features[i] = i == k;
        return true;
}

void mfl_categories_text(const struct mfl_categories *c, char *text, size_t bytes)
{
        int n = 0;
        *text = '\0';
        for (int i = 0; i < c->n && n < (int)bytes - 1; i++)
                n += mfl_snprintf(text + n, bytes - (size_t)n, "%s%s", i ? ", " : "", c->values[i]);
        if (n >= (int)bytes - 1 && bytes > 4)
                mfl_strcpy(text + bytes - 4, 4, "...");
}

int mfl_categories_describe(
        const struct mfl_categories *c, uint32_t feature, char **encoding, struct mfl_error *err)
{
        char *text = *encoding ? *encoding : mfl_strdup("");
        for (int i = -1; text && i < c->n; i++) {
                char *longer = i < 0 ? mfl_asprintf("%s%u %s %d\n", text, feature,
                                               c->codes ? "codes" : "onehot", c->n)
                                     : mfl_asprintf("%s%zu:%s\n", text, strlen(c->values[i]), c->values[i]);
                free(text);
                text = longer;
        }
        *encoding = text;
        return text ? 0 : mfl_fail_memory(err, 0, "categories");
}
