/* SPDX-License-Identifier: Apache-2.0 */
/* A part of a YAML document as JSON, for programs that read no YAML. Plain scalars are what YAML 1.2's core schema says: numbers,
 * true and false, null and ~; others, and those in quotes, are texts. */
#include "common/settings/yaml.h"

#include <math.h>
#include <stdio.h>

static void write_text(FILE *out, const char *text)
{
        fputc('"', out);
        for (; *text; text++) {
                unsigned char c = (unsigned char)*text;
                if (c == '"' || c == '\\')
                        fprintf(out, "\\%c", c);
                else if (c < 0x20 || c == 0x7f)
                        fprintf(out, "\\u%04x", c);
                else
                        fputc(c, out);
        }
        fputc('"', out);
}

static size_t digits(const char *text)
{
        return strspn(text, "0123456789");
}

/* Whether JSON writes the number in the same way. */
static bool is_json_number(const char *text)
{
        text += *text == '-';
        size_t n = digits(text);
        if (!n || (n > 1 && *text == '0'))
                return false;
        text += n;
        if (*text == '.') {
                if (!(n = digits(++text)))
                        return false;
                text += n;
        }
        if (*text == 'e' || *text == 'E') {
                text += 1 + (text[1] == '-' || text[1] == '+');
                if (!(n = digits(text)))
                        return false;
                text += n;
        }
        return !*text;
}

/* ".5", "+1", "007", "1." */
static bool is_other_number(const char *text, double *ret_value)
{
        char *end;
        if (!digits(text + strspn(text, "+-.")) || strspn(text, "0123456789+-.eE") != strlen(text))
                return false;
        *ret_value = strtod(text, &end);
        return !*end && isfinite(*ret_value);
}

static bool is_one_of(const char *text, const char *const *names)
{
        for (; *names; names++)
                if (!strcmp(text, *names))
                        return true;
        return false;
}

static void write_scalar(FILE *out, const struct mfl_yaml_node *node)
{
        static const char *const yes[] = {"true", "True", "TRUE", NULL};
        static const char *const no[] = {"false", "False", "FALSE", NULL};
        static const char *const nothing[] = {"null", "Null", "NULL", "~", "", NULL};
        const char *text = node->text;
        double value;
        if (node->quoted)
                write_text(out, text);
        else if (is_json_number(text))
                fputs(text, out);
        else if (is_other_number(text, &value))
                fprintf(out, "%.17g", value);
        else if (is_one_of(text, yes) || is_one_of(text, no))
                fputs(is_one_of(text, yes) ? "true" : "false", out);
        else if (is_one_of(text, nothing))
                fputs("null", out);
        else
                write_text(out, text);
}

/* The parser limits the depth. */
static void write_node(FILE *out, const struct mfl_yaml_node *node)
{
        bool map = node->type == MFL_YAML_MAPPING;
        if (node->type == MFL_YAML_SCALAR) {
                write_scalar(out, node);
                return;
        }
        fputc(map ? '{' : '[', out);
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                if (n != node->first)
                        fputs(", ", out);
                if (map) {
                        write_text(out, n->key);
                        fputs(": ", out);
                }
                write_node(out, n);
        }
        fputc(map ? '}' : ']', out);
}

char *mfl_yaml_json(const struct mfl_yaml_node *node)
{
        char *text = NULL;
        size_t bytes;
        FILE *out = open_memstream(&text, &bytes);
        if (!out)
                return NULL;
        write_node(out, node);
        bool failed = ferror(out);
        if (fclose(out) || failed) {
                free(text);
                return NULL;
        }
        return text;
}
