/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: which source wins, what is refused and with which words, and that every row is in all that is
 * printed. */
#include "tests/lib/test.h"

#include <unistd.h>

#include "common/base/page.h"
#include "common/settings/settings.h"

struct target {
        char name[8];
        uint32_t count;
        uint64_t wait_ms;
        bool loud;
        int mode, level;
        char path[16];
        int n_things;
};

static bool parse_even(const char *text, void *value)
{
        int n = atoi(text);
        *(int *)value = n;
        return n && n % 2 == 0;
}

static int set_thing(void *target, const char *text, struct mfl_error *err)
{
        if (!strcmp(text, "bad"))
                return mfl_fail(err, MFL_INVALID, "--thing bad: no such thing");
        ((struct target *)target)->n_things++;
        return 0;
}

static const char *const mode_names[] = {"fast", "slow", NULL};
#define KEY(key_, kind_, member_) .key = key_, MFL_YAML_AT(kind_, struct target, member_)
static const struct mfl_setting rows[] = {
        {.section = "First",
                .field = {KEY("name", STRING, name)},
                .option = "name",
                .argument = "NAME",
                .value = "mfl",
                .env = "MFL_TEST_NAME",
                .help = "its name"},
        {.field = {KEY("count", U32, count), .min = 1, .max = 9},
                .value = "3",
                .unit = "things",
                .help = "so many"},
        {.field = {KEY("wait", DURATION, wait_ms), .min = 1, .max = 9000},
                .option = "wait",
                .argument = "TIME",
                .value = "2s",
                .help = "so long"},
        {.section = "Second",
                .field = {KEY("loud", BOOL, loud)},
                .option = "loud",
                .value = "false",
                .help = "say more"},
        {.field = {KEY("mode", ENUM, mode), .names = mode_names},
                .option = "mode",
                .argument = "MODE",
                .value = "slow",
                .help = "fast or slow",
                .reload = MFL_RELOAD_VALUE},
        {.field = {KEY("level", U32, level)},
                .option = "level",
                .argument = "N",
                .parse = parse_even,
                .expected = "an even number",
                .note = "none",
                .help = "an even one"},
        {.field = {KEY("path", STRING, path)},
                .option = "path",
                .argument = "FILE",
                .env = "MFL_TEST_PATH",
                .env_is_default = true,
                .note = "none",
                .help = "a file"},
        {.option = "thing", .argument = "THING", .set = set_thing, .many = true, .help = "one more"},
};
static const struct mfl_settings settings = {.program = "mfl-test",
        .summary = "a test",
        .about = "About it.",
        .after = "After it.",
        .file = "/etc/mfl/test.yaml",
        .rows = rows,
        .n_rows = MFL_ARRAY_SIZE(rows)};

static struct target target;
static struct mfl_error err;

static int load(const char *first, ...)
{
        char *argv[12] = {(char *)"mfl-test", NULL};
        int argc = 1;
        va_list ap;
        va_start(ap, first);
        for (const char *a = first; a; a = va_arg(ap, const char *))
                argv[argc++] = (char *)(uintptr_t)a;
        va_end(ap);
        memset(&target, 0, sizeof target);
        err.text[0] = 0;
        mfl_settings_defaults(&settings, &target);
        return mfl_settings_load(&settings, argc, argv, &target, &err);
}

static int read_text(const char *text)
{
        mfl_settings_defaults(&settings, &target);
        return mfl_settings_yaml(&settings, text, strlen(text), "t.yaml", &target, &err);
}

static void defaults_are_parsed(void **state)
{
        assert_int_equal(load(NULL), 0);
        assert_string_equal(target.name, "mfl");
        assert_int_equal(target.count, 3);
        assert_int_equal(target.wait_ms, 2000);
        assert_int_equal(target.mode, 1);
        assert_false(target.loud);
        assert_string_equal(target.path, "");
}

static void later_sources_win(void **state)
{
        char path[] = "settings-XXXXXX";
        int fd = mkstemp(path);
        static const char text[] = "name: file\ncount: 5\npath: file\nlevel: 4\nmode: fast\n";
        assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
        close(fd);
        assert_int_equal(load("--wait", "3s", "--config", path, NULL), 0);
        assert_string_equal(target.name, "file");
        assert_int_equal(target.count, 5);
        assert_int_equal(target.wait_ms, 3000);
        assert_int_equal(target.mode, 0);
        assert_int_equal(target.level, 4);
        setenv("MFL_TEST_NAME", "env", 1);
        setenv("MFL_TEST_PATH", "env", 1);
        assert_int_equal(load("--config", path, NULL), 0);
        assert_string_equal(target.name, "env");
        assert_string_equal(target.path, "file");
        assert_int_equal(load("--path=", "--name=opt", "--config", path, NULL), 0);
        assert_string_equal(target.name, "opt");
        assert_string_equal(target.path, "");
        assert_int_equal(load(NULL), 0);
        assert_string_equal(target.path, "env");
        unsetenv("MFL_TEST_NAME");
        unsetenv("MFL_TEST_PATH");
        unlink(path);
        assert_int_equal(load("--config", path, NULL), MFL_INVALID);
        assert_non_null(strstr(err.text, "there is no such file"));
        assert_int_equal(load("--thing", "a", "--loud", "--thing", "b", NULL), 0);
        assert_int_equal(target.n_things, 2);
        assert_true(target.loud);
}

static void mistakes_in_options_are_named(void **state)
{
        static const struct {
                const char *a, *b, *text;
        } rows_[] = {
                {"--nmae", "x", "--nmae: unknown option; did you mean '--name'?"},
                {"--qqqqq", NULL, "--qqqqq: unknown or ambiguous option"},
                {"--name", NULL, "--name: the value is missing"},
                {"--loud=1", NULL, "--loud=1: takes no value"},
                {"stray", NULL, "stray: unexpected argument; see mfl-test --help"},
                {"--name", "longer-than-that", "--name longer-than-that: expected 1 to 7 characters"},
                {"--name", "", "expected 1 to 7 characters"},
                {"--wait", "9", "--wait 9: expected a duration"},
                {"--wait", "10s", "from 1ms to 9s"},
                {"--mode", "fats", "--mode fats: expected fast or slow; did you mean 'fast'?"},
                {"--level", "3", "--level 3: expected an even number"},
                {"--thing", "bad", "--thing bad: no such thing"},
                {"--count", "3", "--count: unknown or ambiguous option"},
                {"--help=x", NULL, "--help=x: expected"},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows_); i++) {
                assert_int_equal(load(rows_[i].a, rows_[i].b, NULL), MFL_SETTINGS_USAGE);
                if (!strstr(err.text, rows_[i].text))
                        fail_msg("\"%s\" lacks \"%s\"", err.text, rows_[i].text);
        }
        setenv("MFL_TEST_NAME", "longer-than-that", 1);
        assert_int_equal(load(NULL), MFL_SETTINGS_USAGE);
        assert_non_null(strstr(err.text, "$MFL_TEST_NAME longer-than-that: expected 1 to 7"));
        unsetenv("MFL_TEST_NAME");
}

static void mistakes_in_the_file_are_named(void **state)
{
        static const struct {
                const char *yaml, *text;
        } rows_[] = {
                {"a: 1", "t.yaml:1: a: unknown key"},
                {"name: x\ncuont: 1", "t.yaml:2: cuont: unknown key; did you mean 'count'?"},
                {"count: 10", "t.yaml:1: count: expected a whole number from 1 to 9, got '10'"},
                {"level: 3", "t.yaml:1: level: expected an even number, got '3'"},
                {"level: [2]", "expected an even number, got a list"},
                {"mode: fats", "did you mean 'fast'?"},
                {"thing: x", "t.yaml:1: thing: unknown key"},
                {"- 1", "expected keys and values"},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows_); i++) {
                assert_int_equal(read_text(rows_[i].yaml), MFL_INVALID);
                if (!strstr(err.text, rows_[i].text))
                        fail_msg("\"%s\" lacks \"%s\"", err.text, rows_[i].text);
        }
}

static void memory_may_run_out(void **state)
{
        int r = -ENOMEM;
        for (long n = 0; r; n++) {
                mfl_alloc_fail_at(n);
                r = read_text("name: x\ncount: 5\nlevel: 8\n");
                assert_true(r == 0 || r == -ENOMEM);
        }
        mfl_alloc_fail_at(-1);
        assert_int_equal(target.level, 8);
}

static char *printed(const char *form)
{
        char *text;
        size_t n;
        FILE *f = open_memstream(&text, &n);
        assert_true(mfl_settings_print(&settings, form, f));
        fclose(f);
        return text;
}

static void every_row_is_everywhere(void **state)
{
        static const char *const forms[] = {NULL, "man", "man5", "markdown", "yaml", "completion"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(forms); i++) {
                MFL_CLEANUP_FREE char *text = printed(forms[i]);
                bool keys = i == 2 || i == 3 || i == 4, options = i == 0 || i == 1 || i == 5;
                for (size_t j = 0; j < MFL_ARRAY_SIZE(rows); j++) {
                        char option[32];
                        snprintf(option, sizeof option, i == 1 ? "\\-\\-%s" : "--%s",
                                rows[j].option ? rows[j].option : "");
                        if (options && rows[j].option && !strstr(text, option))
                                fail_msg("%s is not in %s", option, forms[i] ? forms[i] : "help");
                        if (keys && rows[j].field.key && !strstr(text, rows[j].field.key))
                                fail_msg("%s is not in %s", rows[j].field.key, forms[i]);
                }
                for (const char *line = text; !i && *line; line += strcspn(line, "\n") + 1)
                        assert_true(strcspn(line, "\n") <= 100);
        }
        assert_false(mfl_settings_print(&settings, "nothing", stdout));
}

/* What is printed as the example is the defaults, and nothing else. */
static void the_example_is_the_defaults(void **state)
{
        MFL_CLEANUP_FREE char *text = printed("yaml");
        struct target changed;
        memset(&target, 0, sizeof target);
        mfl_settings_defaults(&settings, &target);
        changed = target;
        assert_int_equal(mfl_settings_yaml(&settings, text, strlen(text), "yaml", &changed, &err), 0);
        assert_memory_equal(&changed, &target, sizeof target);
        assert_non_null(strstr(text, "\n# level:"));
        assert_non_null(strstr(text, "\nwait: 2s\n"));
}

static void check_page(enum mfl_page_form form, const char *text, const char *expected)
{
        struct mfl_page page;
        char *got;
        size_t n;
        FILE *f = open_memstream(&got, &n);
        mfl_page_open(&page, f, form, 20);
        mfl_page_text(&page, text);
        fclose(f);
        assert_string_equal(got, expected);
        free(got);
}

static void texts_are_wrapped_and_escaped(void **state)
{
        check_page(MFL_PAGE_PLAIN, "one two three four five\n  kept   as it is, however long\n\nx",
                "one two three four\nfive\n  kept   as it is, however long\n\nx\n");
        check_page(MFL_PAGE_MAN, ".x 'y' a\\b --opt, \n  .z",
                "\\&.x \\(aqy\\(aq a\\eb \\fB\\-\\-opt\\fR,\n.PP\n.nf\n  .z\n.fi\n.PP\n");
        check_page(MFL_PAGE_MARKDOWN, "a*b a|b (a_b) $HOME", "\na\\*b a\\|b (`a_b`) `$HOME`\n");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(defaults_are_parsed),
                cmocka_unit_test(later_sources_win),
                cmocka_unit_test(mistakes_in_options_are_named),
                cmocka_unit_test(mistakes_in_the_file_are_named),
                cmocka_unit_test(memory_may_run_out),
                cmocka_unit_test(every_row_is_everywhere),
                cmocka_unit_test(the_example_is_the_defaults),
                cmocka_unit_test(texts_are_wrapped_and_escaped),
        };
        return cmocka_run_group_tests_name("settings", tests, NULL, NULL);
}
