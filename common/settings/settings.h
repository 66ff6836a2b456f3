/* SPDX-License-Identifier: Apache-2.0 */
/* A program's settings as one table: each row is a key of the configuration file, an option, or both. The parsers of
 * the file and of the command line read the table, and so does everything that explains the settings: --help, the man
 * pages, docs/configuration.md, the commented example in deploy/ and bash completion. A new row appears in all of
 * them.
 *
 * Later sources win: defaults, variables that are defaults (STATE_DIRECTORY), the file, variables, options.
 *
 *     static const struct mfl_setting rows[] = {
 *             {.section = "Network", .field = {.key = "listen", MFL_YAML_AT(STRING, struct config, listen)},
 *                     .option = "listen", .argument = "HOST:PORT", .value = "127.0.0.1:7433",
 *                     .help = "the address to listen on"},
 *             {.field = {.key = "heartbeat", MFL_YAML_AT(DURATION, struct config, heartbeat_ms), .min = 100,
 *                      .max = 600000}, .value = "2s", .help = "a silent peer is asked after this long"}};
 *
 * Texts (help, about, notes) are ASCII. They are wrapped; '\n' ends a line, an empty line ends a paragraph,
 * and a line that starts with a blank is kept as it is, as examples are.
 *
 * Any thread, except mfl_settings_load, which uses getopt: one thread, at the start and at a reload.
 */
#ifndef MFL_COMMON_SETTINGS_SETTINGS_H
#define MFL_COMMON_SETTINGS_SETTINGS_H

#include <stdio.h>

#include "common/settings/yaml.h"

#define MFL_SETTINGS_MAX 96 /* rows of one program */

enum mfl_setting_reload {
        MFL_RELOAD_NO,    /* takes effect at the next start */
        MFL_RELOAD_VALUE, /* SIGHUP applies a new value */
        MFL_RELOAD_FILE,  /* SIGHUP reads the named file again; another name takes effect at the next start */
        MFL_RELOAD_USE,   /* the named file is read at each use */
};

struct mfl_setting {
        /* Key, kind, place and limits, as in common/settings/yaml.h. Key NULL: only an option. CALL: read is for the
         * file and set for the option. `required` and `seen` are not for settings. */
        struct mfl_yaml_field field;
        const char *option; /* without "--"; NULL: only a key */
        const char
                *argument; /* its placeholder; NULL: a flag, which makes a BOOL true or calls set with NULL */
        const char *env;   /* a variable that is used when it is set and not empty */
        bool env_is_default;  /* the file overrides it */
        const char *value;    /* the default, written and parsed as in the file */
        const char *note;     /* or the default in words, when the program determines it by itself */
        const char *example;  /* for the example file when there is no value; the text after "KEY:" */
        const char *unit;     /* of a bare number */
        const char *expected; /* "1 to 4096, or auto": for messages; NULL: made from the kind */
        const char *section;  /* the title of this row and of those after it */
        const char *help;
        enum mfl_setting_reload reload;
        bool words; /* STRING: the file may have a list of texts, which becomes one text with commas */
        bool many;  /* the option may be given several times */
        /* Parses a text with a grammar of its own into the field's place, for file and option; false: not as
         * `expected`.
         */
        bool (*parse)(const char *text, void *value);
        /* Applies the option's text to the whole target. MFL_INVALID with a text, or -ENOMEM. */
        int (*set)(void *target, const char *text, struct mfl_error *err);
};

/* A part of a man page: a title such as "SIGNALS" and its text; the list ends with {NULL, NULL}. */
struct mfl_settings_topic {
        const char *title, *text;
};

struct mfl_settings {
        const char *program;                     /* "mfl-server" */
        const char *summary;                     /* "the aggregation server of mfl" */
        const char *about;                       /* above the options */
        const char *after;                       /* below them in --help */
        const char *file;                        /* the file that its service reads, "/etc/mfl/server.yaml" */
        const struct mfl_settings_topic *topics; /* of the manual: exit status, environment, files ... */
        const struct mfl_setting *rows;
        size_t n_rows;
};

/* Positive codes besides MFL_INVALID, which is a mistake in the file (exit status 78 of a program). */
enum {
        MFL_SETTINGS_USAGE = 16, /* a mistake in an option or a variable (2) */
        MFL_SETTINGS_SHOWN = 17, /* --help or --version: it was printed, and the program should end (0) */
};

/* Puts every row's default into the target; fields without a default stay as they are. */
void mfl_settings_defaults(const struct mfl_settings *settings, void *target);

/* Reads the text of a file. Unknown keys are refused, with the nearest known key. MFL_INVALID; -ENOMEM. */
int mfl_settings_yaml(const struct mfl_settings *settings, const char *text, size_t text_bytes,
        const char *file, void *target, struct mfl_error *err) MFL_MUST_CHECK;

/* Applies the arguments, the files that --config names, and variables to the target, which holds the defaults. Knows
 * --config, --help and --version without a row. MFL_SETTINGS_USAGE, MFL_SETTINGS_SHOWN, MFL_INVALID for a file;
 * -ENOMEM; the error of writing the help. */
int mfl_settings_load(const struct mfl_settings *settings, int argc, char *const argv[], void *target,
        struct mfl_error *err) MFL_MUST_CHECK;

/* Prints what --help=FORM prints; false when there is no such form. NULL: the help for people, as wide as the
 * terminal, within 80 to 100 columns. "man": section 8; "man5": the file; "markdown": its chapter of
 * docs/configuration.md; "yaml": the commented example; "completion": for bash. */
bool mfl_settings_print(const struct mfl_settings *settings, const char *form, FILE *out);

/* Names of log levels for a `log_level` row, and its parser, which also accepts "warn". The value is an int. */
extern const char *const mfl_setting_levels[];
bool mfl_setting_parse_level(const char *text, void *value);

#endif
