/* SPDX-License-Identifier: Apache-2.0 */
/* Explains settings to people, from their table: --help, man pages, and the chapter of the reference. */
#include "common/settings/settings_print.h"

#include <stdarg.h>

#include "common/base/page.h"

#define TEXT_BYTES 4096

static void add(char *text, const char *fmt, ...) MFL_PRINTF(2, 3);
static void add(char *text, const char *fmt, ...)
{
        size_t n = strlen(text);
        va_list ap;
        va_start(ap, fmt);
        mfl_vsnprintf(text + n, TEXT_BYTES - n, fmt, ap);
        va_end(ap);
}

/* ---- one row ---- */

/* "$STATE_DIRECTORY, else mfl-state"; empty if there is no default, and for flags, which are off. */
static void add_default(char *text, const struct mfl_setting *row)
{
        const char *value = row->value ? row->value : row->note;
        if (row->env)
                add(text, "$%s%s", row->env, value ? ", else " : "");
        if (value)
                add(text, "%s", value);
}

static bool has_default(const struct mfl_setting *row)
{
        return row->argument && (row->env || row->value || row->note);
}

static void add_term(char *text, const struct mfl_setting *row)
{
        add(text, "--%s%s%s", row->option, row->argument ? " " : "", row->argument ? row->argument : "");
}

static void print_option(struct mfl_page *page, const struct mfl_setting *row)
{
        char term[TEXT_BYTES] = "", text[TEXT_BYTES] = "";
        bool lines = strchr(row->help, '\n');
        add_term(term, row);
        add(text, "%s", row->help);
        if (has_default(row)) {
                add(text, lines ? "\nDefault: " : " (default: ");
                add_default(text, row);
                add(text, lines ? "" : ")");
        }
        mfl_page_item(page, term);
        mfl_page_text(page, text);
}

/* The rows that `wanted` picks, with the titles of their sections. */
static void print_rows(struct mfl_page *page, const struct mfl_settings *settings,
        bool (*wanted)(const struct mfl_setting *),
        void (*print)(struct mfl_page *, const struct mfl_setting *))
{
        const char *section = NULL;
        for (size_t i = 0; i < settings->n_rows; i++) {
                const struct mfl_setting *row = &settings->rows[i];
                if (row->section)
                        section = row->section;
                if (!wanted(row))
                        continue;
                if (section)
                        mfl_page_subsection(page, section);
                section = NULL;
                print(page, row);
        }
        mfl_page_items_end(page);
}

static bool is_option(const struct mfl_setting *row)
{
        return row->option;
}

static bool is_key(const struct mfl_setting *row)
{
        return row->field.key;
}

static void print_own_options(struct mfl_page *page, const struct mfl_settings *settings)
{
        char text[TEXT_BYTES] = "";
        mfl_page_subsection(page, "Others");
        add(text, "read this YAML file, such as %s; options override it, in any order", settings->file);
        mfl_page_item(page, "--config FILE");
        mfl_page_text(page, text);
        mfl_page_item(page, "--help, --version");
        mfl_page_text(page, "print this text, or the version, and exit");
        mfl_page_items_end(page);
}

/* ---- --help ---- */

static void print_keys(struct mfl_page *page, const struct mfl_settings *settings)
{
        char only[TEXT_BYTES] = "", text[TEXT_BYTES] = "";
        for (size_t i = 0; i < settings->n_rows; i++) {
                const struct mfl_setting *row = &settings->rows[i];
                if (row->field.key && !row->option)
                        add(only, "%s%s", *only ? ", " : "", row->field.key);
        }
        add(text,
                "\nThe file has these options as keys, with '_' for '-', except those that are only for the "
                "command "
                "line. Keys without an option: %s. The manual of %s.yaml, docs/configuration.md and "
                "--help=yaml explain every key.\n",
                *only ? only : "none", settings->program);
        mfl_page_text(page, text);
}

static void print_help(const struct mfl_settings *settings, FILE *out)
{
        struct mfl_page page;
        mfl_page_open(&page, out, MFL_PAGE_PLAIN, 0);
        fprintf(out, "%s " MFL_VERSION ": %s\n\nusage: %s [options]\n\n", settings->program,
                settings->summary, settings->program);
        mfl_page_text(&page, settings->about);
        print_rows(&page, settings, is_option, print_option);
        print_own_options(&page, settings);
        print_keys(&page, settings);
        fputc('\n', out);
        mfl_page_text(&page, settings->after);
}

/* ---- man pages ---- */

static void print_topics(struct mfl_page *page, const struct mfl_settings *settings)
{
        for (const struct mfl_settings_topic *t = settings->topics; t && t->title; t++) {
                mfl_page_section(page, t->title);
                mfl_page_text(page, t->text);
        }
}

static void print_man(const struct mfl_settings *settings, FILE *out)
{
        struct mfl_page page;
        char text[TEXT_BYTES] = "";
        mfl_page_open(&page, out, MFL_PAGE_MAN, 0);
        mfl_page_title(&page, settings->program, "8", settings->summary);
        mfl_page_section(&page, "SYNOPSIS");
        fprintf(out, ".B %s\n[\\fIoptions\\fR]\n", settings->program);
        mfl_page_section(&page, "DESCRIPTION");
        mfl_page_text(&page, settings->about);
        mfl_page_section(&page, "OPTIONS");
        print_rows(&page, settings, is_option, print_option);
        print_own_options(&page, settings);
        mfl_page_section(&page, "FILES");
        mfl_page_item(&page, settings->file);
        add(text, "the configuration of the service; %s.yaml(5) has its keys", settings->program);
        mfl_page_text(&page, text);
        mfl_page_items_end(&page);
        print_topics(&page, settings);
}

static const char *const reload_texts[] = {"", "A reload applies a new value.",
        "A reload reads the file again; another name takes effect at the next start.",
        "The file is read at each use."};

static void add_takes(char *text, const struct mfl_setting *row)
{
        char want[240];
        mfl_setting_describe(row, want, sizeof want);
        bool plain = row->field.kind == MFL_YAML_STRING && !row->expected && !row->field.names;
        if (!plain && row->field.kind != MFL_YAML_CALL)
                add(text, "Takes %s%s%s%s. ", want, row->unit ? " (" : "", row->unit ? row->unit : "",
                        row->unit ? ")" : "");
}

static void add_facts(char *text, const struct mfl_setting *row)
{
        add(text, "Default: ");
        add_default(text, row);
        add(text, ". ");
        add_takes(text, row);
        if (row->option) {
                add(text, "Option ");
                add_term(text, row);
                add(text, ". ");
        }
        if (row->env)
                add(text, "The variable $%s is used %s the file. ", row->env,
                        row->env_is_default ? "after" : "before");
        add(text, "%s", reload_texts[row->reload]);
}

static void print_key(struct mfl_page *page, const struct mfl_setting *row)
{
        char term[TEXT_BYTES] = "", text[TEXT_BYTES] = "";
        /* A Markdown heading is the key alone, so that links to it are short. */
        if (page->form == MFL_PAGE_MARKDOWN)
                add(term, "%s", row->field.key);
        else
                add(term, "%s:%s%s", row->field.key, row->argument ? " " : "",
                        row->argument ? row->argument : "");
        add(text, "%s%s\n\n", row->help, strchr(row->help, '\n') ? "" : ".");
        add_facts(text, row);
        mfl_page_item(page, term);
        mfl_page_text(page, text);
}

static void print_man5(const struct mfl_settings *settings, FILE *out)
{
        struct mfl_page page;
        char name[80], text[TEXT_BYTES] = "";
        mfl_snprintf(name, sizeof name, "%s.yaml", settings->program);
        mfl_page_open(&page, out, MFL_PAGE_MAN, 0);
        mfl_snprintf(text, sizeof text, "configuration of %s", settings->program);
        mfl_page_title(&page, name, "5", text);
        mfl_page_section(&page, "SYNOPSIS");
        fprintf(out, ".B %s\n", settings->file);
        mfl_page_section(&page, "DESCRIPTION");
        mfl_snprintf(text, sizeof text,
                "%s --config FILE reads this file: YAML, one mapping of the keys below, each of which may be "
                "left "
                "out. An option overrides the key of the same name. Durations are a number with ms, s, m, h "
                "or d; "
                "sizes one with KiB, MiB, GiB, TiB, kB, MB, GB, TB or nothing, which is bytes. An unknown "
                "key or a "
                "wrong value ends the program with status 78 and FILE:LINE, the key, and what would be "
                "right.\n\n"
                "SIGHUP (systemctl reload) reads the file again. What is said below about a reload is what "
                "it may "
                "change; every other key counts from the next start.",
                settings->program);
        mfl_page_text(&page, text);
        mfl_page_section(&page, "KEYS");
        print_rows(&page, settings, is_key, print_key);
        mfl_page_section(&page, "SEE ALSO");
        mfl_snprintf(text, sizeof text, "%s(8)", settings->program);
        mfl_page_text(&page, text);
}

/* ---- the reference ---- */

static void print_table(const struct mfl_settings *settings, FILE *out)
{
        static const char *const reloads[] = {"", "yes", "the file's content", "read at each use"};
        fputs("| Key | Default | Option | Reload |\n|---|---|---|---|\n", out);
        for (size_t i = 0; i < settings->n_rows; i++) {
                const struct mfl_setting *row = &settings->rows[i];
                if (!row->field.key)
                        continue;
                fprintf(out, "| `%s` | %s%s%s | ", row->field.key, row->value ? "`" : "",
                        row->value  ? row->value
                        : row->note ? row->note
                                    : "",
                        row->value ? "`" : "");
                if (row->option)
                        fprintf(out, "`--%s`", row->option);
                fprintf(out, " | %s |\n", reloads[row->reload]);
        }
}

static void print_markdown(const struct mfl_settings *settings, FILE *out)
{
        struct mfl_page page;
        mfl_page_open(&page, out, MFL_PAGE_MARKDOWN, 0);
        fprintf(out, "## %s: `%s`\n\n", settings->program, settings->file);
        print_table(settings, out);
        print_rows(&page, settings, is_key, print_key);
        mfl_page_subsection(&page, "Options without a key");
        for (size_t i = 0; i < settings->n_rows; i++)
                if (!settings->rows[i].field.key)
                        print_option(&page, &settings->rows[i]);
}

bool mfl_settings_print(const struct mfl_settings *settings, const char *form, FILE *out)
{
        static const struct {
                const char *name;
                void (*print)(const struct mfl_settings *, FILE *);
        } forms[] = {{"man", print_man}, {"man5", print_man5}, {"markdown", print_markdown},
                {"yaml", mfl_settings_print_yaml}, {"completion", mfl_settings_print_completion}};
        if (!form) {
                print_help(settings, out);
                return true;
        }
        for (size_t i = 0; i < MFL_ARRAY_SIZE(forms); i++)
                if (!strcmp(form, forms[i].name)) {
                        forms[i].print(settings, out);
                        return true;
                }
        return false;
}
