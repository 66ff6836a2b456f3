/* SPDX-License-Identifier: Apache-2.0 */
/* Reads settings by their table: defaults, the YAML file, variables and options. */
#include "common/settings/settings_print.h"

#include <getopt.h>

#include "common/base/fs.h"
#include "common/base/log.h"

#define FILE_BYTES_MAX (256 * 1024)

/* What getopt_long returns: a row's number above FIRST_ROW, or one of these. */
enum {
        OPT_CONFIG = 256,
        OPT_HELP,
        OPT_VERSION,
        FIRST_ROW,
};

const char *const mfl_setting_levels[] = {"error", "warning", "info", "debug", NULL};

bool mfl_setting_parse_level(const char *text, void *value)
{
        enum mfl_log_level level;
        if (!mfl_log_level_parse(text, &level))
                return false;
        *(int *)value = (int)level;
        return true;
}

/* ---- one value ---- */

/* An empty text says "none", which is right where there is no default. */
static bool parse_text(const struct mfl_setting *row, const char *text, char *value)
{
        return (*text || !row->value) && strlen(text) < row->field.size &&
               mfl_strcpy(value, row->field.size, text);
}

static bool parse_value(const struct mfl_setting *row, const char *text, void *target)
{
        void *value = (char *)target + row->field.offset;
        if (row->parse)
                return row->parse(text, value);
        if (row->field.kind == MFL_YAML_STRING)
                return parse_text(row, text, value);
        return mfl_yaml_parse_value(text, &row->field, value);
}

/* "error, warning, info or debug" */
static void list_names(const char *const *names, char *text, size_t bytes)
{
        *text = 0;
        for (size_t i = 0; names[i]; i++) {
                size_t n = strlen(text);
                mfl_snprintf(text + n, bytes - n, "%s%s", !i ? "" : names[i + 1] ? ", " : " or ", names[i]);
        }
}

void mfl_setting_describe(const struct mfl_setting *row, char *text, size_t bytes)
{
        if (row->expected)
                mfl_snprintf(text, bytes, "%s", row->expected);
        else if (row->field.names)
                list_names(row->field.names, text, bytes);
        else if (row->field.kind == MFL_YAML_STRING)
                mfl_snprintf(text, bytes, "%s%zu characters", row->value ? "1 to " : "at most ",
                        row->field.size - 1);
        else
                mfl_yaml_describe(&row->field, text, bytes);
}

/* source is "--name" or "$NAME". */
static int fail_option(
        const struct mfl_setting *row, const char *source, const char *text, struct mfl_error *err)
{
        char want[240];
        mfl_setting_describe(row, want, sizeof want);
        const char *near = row->field.names ? mfl_yaml_nearest(text, row->field.names) : NULL;
        return mfl_fail(err, MFL_SETTINGS_USAGE, "%s %.100s: expected %s%s%s%s", source, text, want,
                near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static int set_option(const struct mfl_setting *row, const char *source, const char *text, void *target,
        struct mfl_error *err)
{
        if (row->set) {
                int r = row->set(target, text, err);
                return r == MFL_INVALID ? MFL_SETTINGS_USAGE : r;
        }
        if (!row->argument) {
                memcpy((char *)target + row->field.offset, &(bool){true}, sizeof(bool));
                return 0;
        }
        return parse_value(row, text, target) ? 0 : fail_option(row, source, text, err);
}

void mfl_settings_defaults(const struct mfl_settings *settings, void *target)
{
        for (size_t i = 0; i < settings->n_rows; i++)
                if (settings->rows[i].value) {
                        bool good = parse_value(&settings->rows[i], settings->rows[i].value, target);
                        mfl_assert(good);
                }
}

/* ---- the file ---- */

static int read_key(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_setting *row, void *target, struct mfl_error *err)
{
        char want[240];
        if (row->words && node->type == MFL_YAML_SEQUENCE)
                return mfl_yaml_read_words(
                        doc, node, (char *)target + row->field.offset, row->field.size, err);
        if (!row->parse)
                return mfl_yaml_read_value(doc, node, &row->field, target, err);
        if (node->type == MFL_YAML_SCALAR && row->parse(node->text, (char *)target + row->field.offset))
                return 0;
        mfl_setting_describe(row, want, sizeof want);
        if (node->type != MFL_YAML_SCALAR)
                return mfl_yaml_fail(doc, node, err, "expected %s, got a %s", want,
                        node->type == MFL_YAML_SEQUENCE ? "list" : "mapping");
        const char *near = row->field.names ? mfl_yaml_nearest(node->text, row->field.names) : NULL;
        return mfl_yaml_fail(doc, node, err, "expected %s, got '%.64s'%s%s%s", want, node->text,
                near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static int read_keys(const struct mfl_settings *settings, const struct mfl_yaml_doc *doc, void *target,
        struct mfl_error *err)
{
        const struct mfl_yaml_node *root = mfl_yaml_root(doc);
        const char *names[MFL_SETTINGS_MAX + 1];
        size_t n = 0;
        if (root->type != MFL_YAML_MAPPING)
                return mfl_yaml_fail(doc, root, err, "expected keys and values (key: value)");
        for (size_t i = 0; i < settings->n_rows; i++)
                if (settings->rows[i].field.key)
                        names[n++] = settings->rows[i].field.key;
        names[n] = NULL;
        for (const struct mfl_yaml_node *node = root->first; node; node = node->next) {
                const struct mfl_setting *row = settings->rows, *end = row + settings->n_rows;
                while (row < end && (!row->field.key || strcmp(row->field.key, node->key)))
                        row++;
                int r = row < end ? read_key(doc, node, row, target, err)
                                  : mfl_yaml_fail_unknown_key(doc, node, names, err);
                if (r)
                        return r;
        }
        return 0;
}

int mfl_settings_yaml(const struct mfl_settings *settings, const char *text, size_t text_bytes,
        const char *file, void *target, struct mfl_error *err)
{
        struct mfl_yaml_doc *doc;
        int r = mfl_yaml_parse(text, text_bytes, file, NULL, &doc, err);
        if (r)
                return r;
        r = read_keys(settings, doc, target, err);
        mfl_yaml_free(doc);
        return r;
}

static int read_file(
        const struct mfl_settings *settings, const char *path, void *target, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *text = NULL;
        size_t n;
        int r = mfl_fs_read(path, FILE_BYTES_MAX, &text, &n, err);
        if (r == MFL_NOT_FOUND)
                return mfl_fail(err, MFL_INVALID, "%s: there is no such file", path);
        if (r) /* a file that cannot be read is a configuration error, too */
                return r == -ENOMEM ? r : MFL_INVALID;
        return mfl_settings_yaml(settings, text, n, path, target, err);
}

/* ---- variables ---- */

static int read_variables(
        const struct mfl_settings *settings, bool defaults, void *target, struct mfl_error *err)
{
        char source[80];
        for (size_t i = 0; i < settings->n_rows; i++) {
                const struct mfl_setting *row = &settings->rows[i];
                const char *text = row->env && row->env_is_default == defaults ? getenv(row->env) : NULL;
                if (!text || !*text)
                        continue;
                mfl_snprintf(source, sizeof source, "$%s", row->env);
                int r = set_option(row, source, text, target, err);
                if (r)
                        return r;
        }
        return 0;
}

/* ---- options ---- */

struct scan {
        const struct mfl_settings *settings;
        int argc;
        char *const *argv;
        struct option options[MFL_SETTINGS_MAX + 4];
};

static void build_options(struct scan *scan)
{
        struct option *o = scan->options;
        mfl_assert(scan->settings->n_rows <= MFL_SETTINGS_MAX);
        *o++ = (struct option){"config", required_argument, NULL, OPT_CONFIG};
        *o++ = (struct option){"help", optional_argument, NULL, OPT_HELP};
        *o++ = (struct option){"version", no_argument, NULL, OPT_VERSION};
        for (size_t i = 0; i < scan->settings->n_rows; i++) {
                const struct mfl_setting *row = &scan->settings->rows[i];
                if (row->option)
                        *o++ = (struct option){row->option, row->argument ? required_argument : no_argument,
                                NULL, FIRST_ROW + (int)i};
        }
        *o = (struct option){0};
}

/* Returns as getopt_long does; the first call of a pass starts over. */
static int next_option(const struct scan *scan, bool first)
{
        if (first) {
                optind = 0; /* glibc: also forgets the state of the pass before */
                opterr = 0;
        }
        return getopt_long(scan->argc, scan->argv, ":", scan->options, NULL);
}

static int fail_syntax(const struct scan *scan, int code, struct mfl_error *err)
{
        const char *names[MFL_SETTINGS_MAX + 4], *program = scan->settings->program;
        const char *text = scan->argv[optind - 1];
        char bare[64];
        size_t n = 0;
        if (code == ':')
                return mfl_fail(err, MFL_SETTINGS_USAGE, "%.100s: the value is missing; see %s --help", text,
                        program);
        if (optopt >= OPT_CONFIG)
                return mfl_fail(
                        err, MFL_SETTINGS_USAGE, "%.100s: takes no value; see %s --help", text, program);
        for (const struct option *o = scan->options; o->name; o++)
                names[n++] = o->name;
        names[n] = NULL;
        mfl_snprintf(bare, sizeof bare, "%.*s", (int)strcspn(text, "="), text);
        const char *near = !strncmp(bare, "--", 2) ? mfl_yaml_nearest(bare + 2, names) : NULL;
        if (near)
                return mfl_fail(
                        err, MFL_SETTINGS_USAGE, "%s: unknown option; did you mean '--%s'?", bare, near);
        return mfl_fail(
                err, MFL_SETTINGS_USAGE, "%.100s: unknown or ambiguous option; see %s --help", text, program);
}

/* A help text that was not written completely is a failure. */
static int end_shown(struct mfl_error *err)
{
        if (fflush(stdout) || ferror(stdout))
                return mfl_fail_errno(err, "write to standard output");
        return MFL_SETTINGS_SHOWN;
}

/* Whether all arguments are valid; --help and --version end the check. */
static int check_syntax(const struct scan *scan, struct mfl_error *err)
{
        int code;
        for (bool first = true; (code = next_option(scan, first)) != -1; first = false) {
                if (code == '?' || code == ':')
                        return fail_syntax(scan, code, err);
                if (code == OPT_VERSION) {
                        printf("%s " MFL_VERSION "\n", scan->settings->program);
                        return end_shown(err);
                }
                if (code == OPT_HELP)
                        return mfl_settings_print(scan->settings, optarg, stdout)
                                       ? end_shown(err)
                                       : mfl_fail(err, MFL_SETTINGS_USAGE,
                                                 "--help=%.60s: expected nothing, man, man5, markdown, yaml "
                                                 "or completion",
                                                 optarg);
        }
        if (optind < scan->argc)
                return mfl_fail(err, MFL_SETTINGS_USAGE, "%.200s: unexpected argument; see %s --help",
                        scan->argv[optind], scan->settings->program);
        return 0;
}

static int read_files(const struct scan *scan, void *target, struct mfl_error *err)
{
        int code, r = 0;
        for (bool first = true; !r && (code = next_option(scan, first)) != -1; first = false)
                if (code == OPT_CONFIG)
                        r = read_file(scan->settings, optarg, target, err);
        return r;
}

static int read_options(const struct scan *scan, void *target, struct mfl_error *err)
{
        char source[80];
        int code, r = 0;
        for (bool first = true; !r && (code = next_option(scan, first)) != -1; first = false) {
                if (code < FIRST_ROW)
                        continue;
                const struct mfl_setting *row = &scan->settings->rows[code - FIRST_ROW];
                mfl_snprintf(source, sizeof source, "--%s", row->option);
                r = set_option(row, source, optarg, target, err);
        }
        return r;
}

int mfl_settings_load(const struct mfl_settings *settings, int argc, char *const argv[], void *target,
        struct mfl_error *err)
{
        struct scan scan = {.settings = settings, .argc = argc, .argv = argv};
        build_options(&scan);
        int r = check_syntax(&scan, err);
        if (!r)
                r = read_variables(settings, true, target, err);
        if (!r)
                r = read_files(&scan, target, err);
        if (!r)
                r = read_variables(settings, false, target, err);
        if (!r)
                r = read_options(&scan, target, err);
        return r;
}
