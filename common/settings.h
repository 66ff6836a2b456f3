/* SPDX-License-Identifier: Apache-2.0 */
/* A program's settings as one table: each row is a key of the configuration file, an option, or both. The
 * table is read by the parser of the file, by that of the command line, and by whatever explains them:
 * --help, the man pages, docs/configuration.md, the commented example in deploy/ and bash completion. A row
 * that is added is in all of them.
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
 * Any thread but for mfl_settings_load, which uses getopt: one thread, at the start and at a reload.
 */
#ifndef MFL_COMMON_SETTINGS_H
#define MFL_COMMON_SETTINGS_H

#include <stdio.h>

#include "common/yaml.h"

#define MFL_SETTINGS_MAX 96 /* rows of one program */

enum mfl_setting_reload {
        MFL_RELOAD_NO,    /* counts from the next start */
        MFL_RELOAD_VALUE, /* SIGHUP takes a new value over */
        MFL_RELOAD_FILE, /* SIGHUP reads the file that is named again; another name counts from the next start
                          */
        MFL_RELOAD_USE,  /* the file that is named is read at each use */
};

struct mfl_setting {
        /* Key, kind, place and limits, as in common/yaml.h. Key NULL: only an option. CALL: read is for the
         * file and set for the option. `required` and `seen` are not for settings. */
        struct mfl_yaml_field field;
        const char *option; /* without "--"; NULL: only a key */
        const char
                *argument; /* its placeholder; NULL: a flag, which makes a BOOL true or calls set with NULL */
        const char *env;   /* a variable that counts when it is set and not empty */
        bool env_is_default;  /* the file comes before it */
        const char *value;    /* the default as the file would have it; it is parsed like one */
        const char *note;     /* or, where the program finds it out by itself, what it is, in words */
        const char *example;  /* for the example file where there is no value; the text behind "KEY:" */
        const char *unit;     /* of a bare number */
        const char *expected; /* "1 to 4096, or auto": for messages; NULL: made from the kind */
        const char *section;  /* this row and those behind it have this title */
        const char *help;
        enum mfl_setting_reload reload;
        bool many; /* the option may be given several times */
        /* A text of its own grammar into the field's place, for file and option; false: it is not `expected`.
         */
        bool (*parse)(const char *text, void *value);
        /* The option's text into the whole target. MFL_INVALID with a text, or -ENOMEM. */
        int (*set)(void *target, const char *text, struct mfl_error *err);
};

/* A part of a man page: "SIGNALS" and what there is to say; the list ends with {NULL, NULL}. */
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
        MFL_SETTINGS_SHOWN = 17, /* --help or --version: it was written, and nothing else counts (0) */
};

/* Puts every row's default into the target; what has none stays as it is. */
void mfl_settings_defaults(const struct mfl_settings *settings, void *target);

/* Reads a file's text, of which unknown keys are refused with the nearest known one. MFL_INVALID; -ENOMEM. */
int mfl_settings_yaml(const struct mfl_settings *settings, const char *text, size_t text_bytes,
        const char *file, void *target, struct mfl_error *err) MFL_MUST_CHECK;

/* Arguments, the files that --config names, and variables, over the defaults that are in the target. Knows
 * --config, --help and --version without a row. MFL_SETTINGS_USAGE, MFL_SETTINGS_SHOWN, MFL_INVALID for a
 * file; -ENOMEM; what a write of help failed with. */
int mfl_settings_load(const struct mfl_settings *settings, int argc, char *const argv[], void *target,
        struct mfl_error *err) MFL_MUST_CHECK;

/* What --help=FORM prints; false when there is no such form. NULL: the help
 * for people, as wide as the terminal but 80 to 100 columns. "man": section 8; "man5": the file; "markdown":
 * its chapter of docs/configuration.md; "yaml": the commented example; "completion": for bash. */
bool mfl_settings_print(const struct mfl_settings *settings, const char *form, FILE *out);

/* Names of log levels for a row of `log_level`, and its parse: "warn" is taken, too. The value is an int. */
extern const char *const mfl_setting_levels[];
bool mfl_setting_parse_level(const char *text, void *value);

#endif
