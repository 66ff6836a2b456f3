/* SPDX-License-Identifier: Apache-2.0 */
/* Files generated from a table of settings: the commented example of the configuration, and the completion.
 */
#include "common/settings/settings_print.h"

#include <ctype.h>

#define COLUMNS 110

/* ---- the example ---- */

/* "# text", wrapped; a line that starts with a blank is kept. */
static void print_comment(FILE *out, const char *text)
{
        while (*text) {
                size_t n = strcspn(text, "\n"), at = 0;
                const char *line = text;
                while (*line != ' ' && n - at > COLUMNS) {
                        size_t cut = at + COLUMNS;
                        while (line[cut] != ' ')
                                cut--;
                        fprintf(out, "# %.*s\n", (int)(cut - at), line + at);
                        at = cut + 1;
                }
                fprintf(out, "# %.*s\n", (int)(n - at), line + at);
                text += n + (text[n] == '\n');
        }
}

/* Commented out if the program determines the default by itself, because a value would replace it. */
static void print_value(FILE *out, const struct mfl_setting *row)
{
        const char *value = row->value ? row->value : row->example ? row->example : "";
        const char *mark = row->value && !row->env_is_default ? "" : "# ";
        fprintf(out, "%s%s:%s", mark, row->field.key, *value && *value != '\n' ? " " : "");
        for (; *value; value++) {
                fputc(*value, out);
                if (*value == '\n')
                        fputs(mark, out);
        }
        fputc('\n', out);
}

static void print_yaml_row(FILE *out, const struct mfl_setting *row)
{
        char text[16384];
        const char *reload = row->reload == MFL_RELOAD_VALUE  ? "; a reload applies it"
                             : row->reload == MFL_RELOAD_FILE ? "; a reload reads the file again"
                                                              : "";
        /* A word before a comma is one of the values: it keeps its spelling. */
        bool value = row->help[strcspn(row->help, " ,")] == ',';
        mfl_snprintf(text, sizeof text, "%c%s", value ? *row->help : toupper((unsigned char)*row->help),
                row->help + 1);
        if (row->note || row->env)
                mfl_snprintf(text + strlen(text), sizeof text - strlen(text), "%sefault: %s%s%s%s",
                        strchr(text, '\n') ? "\nD" : "; d", row->env ? "$" : "", row->env ? row->env : "",
                        row->env ? ", else " : "", row->note ? row->note : row->value);
        mfl_snprintf(text + strlen(text), sizeof text - strlen(text), "%s", reload);
        mfl_assert(strlen(text) + 1 < sizeof text);
        print_comment(out, text);
        print_value(out, row);
}

void mfl_settings_print_yaml(const struct mfl_settings *settings, FILE *out)
{
        fprintf(out,
                "# SPDX-License-Identifier: Apache-2.0\n"
                "# %s: every key. A value is the default; after '#' is an example, where the program finds "
                "the\n"
                "# default by itself. %s --config FILE. Made by: %s --help=yaml\n",
                settings->program, settings->program, settings->program);
        for (size_t i = 0; i < settings->n_rows; i++) {
                const struct mfl_setting *row = &settings->rows[i];
                if (row->section && row->field.key)
                        fprintf(out, "\n# ---- %s ----\n", row->section);
                if (row->field.key) {
                        fputc('\n', out);
                        print_yaml_row(out, row);
                }
        }
}

/* ---- completion ---- */

static bool takes_file(const char *argument)
{
        return !strncmp(argument, "FILE", 4);
}

static void print_option_case(FILE *out, const char *option, const char *argument, const char *const *names)
{
        fprintf(out, "        --%s)\n", option);
        if (names) {
                fputs("                mapfile -t COMPREPLY < <(compgen -W '", out);
                for (size_t i = 0; names[i]; i++)
                        fprintf(out, "%s%s", i ? " " : "", names[i]);
                fputs("' -- \"$cur\")\n", out);
        } else if (takes_file(argument) || !strcmp(argument, "DIR")) {
                fputs("                compopt -o filenames 2>/dev/null\n", out);
                fprintf(out, "                mapfile -t COMPREPLY < <(compgen -%c -- \"$cur\")\n",
                        takes_file(argument) ? 'f' : 'd');
        }
        fputs("                return\n                ;;\n", out);
}

void mfl_settings_print_completion(const struct mfl_settings *settings, FILE *out)
{
        char name[64];
        mfl_snprintf(name, sizeof name, "_%s", settings->program);
        for (char *c = name; *c; c++)
                *c = *c == '-' ? '_' : *c;
        fprintf(out,
                "# SPDX-License-Identifier: Apache-2.0\n"
                "# bash completion of %s; made by: %s --help=completion\n"
                "%s()\n{\n"
                "        local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
                "        COMPREPLY=()\n"
                "        # bash makes three words of --name=value.\n"
                "        if [ \"$cur\" = = ]; then\n"
                "                cur=\n"
                "        elif [ \"$prev\" = = ]; then\n"
                "                prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
                "        fi\n"
                "        case $prev in\n",
                settings->program, settings->program, name);
        print_option_case(out, "config", "FILE", NULL);
        for (size_t i = 0; i < settings->n_rows; i++) {
                const struct mfl_setting *row = &settings->rows[i];
                if (row->option && row->argument)
                        print_option_case(out, row->option, row->argument, row->field.names);
        }
        fputs("        esac\n        mapfile -t COMPREPLY < <(compgen -W '--config --help --version", out);
        for (size_t i = 0; i < settings->n_rows; i++)
                if (settings->rows[i].option)
                        fprintf(out, " --%s", settings->rows[i].option);
        fprintf(out, "' -- \"$cur\")\n}\ncomplete -F %s %s\n", name, settings->program);
}
