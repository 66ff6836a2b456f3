/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: what is accepted, and what is suggested for what is not. */
#include "cli/commands/commands.h"
#include "cli/commands/options.h"
#include "cli/job/data_option.h"
#include "tests/lib/test.h"

static int parse(struct mfl_cli *cli, struct mfl_error *err, int argc, const char **argv)
{
        memset(cli, 0, sizeof *cli);
        err->text[0] = '\0';
        return mfl_cli_parse(cli, argc, (char **)(uintptr_t)argv, err);
}
#define PARSE(cli, err, ...)                                                                                 \
        parse(cli, err, (int)MFL_ARRAY_SIZE(((const char *[]){"mfl", __VA_ARGS__})),                         \
                (const char *[]){"mfl", __VA_ARGS__, NULL})

static void test_accepted(void **state)
{
        struct mfl_cli cli;
        struct mfl_error err;
        assert_int_equal(PARSE(&cli, &err, "--json", "submit", "a.yaml", "--token=t", "--watch"), 0);
        assert_string_equal(cli.command->name, "submit");
        assert_string_equal(cli.argument[0], "a.yaml");
        assert_string_equal(cli.options.token, "t");
        assert_true(cli.json && cli.options.watch && !cli.options.help);
        assert_int_equal(PARSE(&cli, &err, "pull", "last", "-o", "x", "--round", "best"), 0);
        assert_string_equal(cli.options.out, "x");
        assert_string_equal(cli.options.round, "best");
        assert_int_equal(
                PARSE(&cli, &err, "run", "j", "--daemons", "3", "--data", "a=idx:/x", "--data=b=idx:/y"), 0);
        assert_int_equal(cli.options.daemons, 3);
        assert_int_equal(cli.options.threads, -1);
        assert_int_equal(cli.options.n_data, 2);
        assert_string_equal(cli.options.data[1], "b=idx:/y");
        assert_int_equal(PARSE(&cli, &err, "show", "--", "-odd"), 0);
        assert_string_equal(cli.argument[0], "-odd");
        assert_int_equal(PARSE(&cli, &err, "submit", "-"), 0);
        assert_int_equal(PARSE(&cli, &err, "submit", "--help"), 0);
}

static void check_refused(int r, const struct mfl_error *err, const char *part)
{
        assert_int_equal(r, MFL_CLI_USAGE);
        if (!strstr(err->text, part))
                fail_msg("'%s' is not in '%s'", part, err->text);
}

static void test_refused(void **state)
{
        struct mfl_cli cli;
        struct mfl_error err;
        check_refused(PARSE(&cli, &err, "submti", "x"), &err, "did you mean 'submit'?");
        check_refused(PARSE(&cli, &err, "kill", "x"), &err, "did you mean 'stop'?");
        check_refused(PARSE(&cli, &err, "ps"), &err, "did you mean 'list'?");
        check_refused(PARSE(&cli, &err, "download", "x"), &err, "did you mean 'pull'?");
        check_refused(PARSE(&cli, &err, "top"), &err, "did you mean 'watch'?");
        check_refused(PARSE(&cli, &err, "run", "x", "--server", "h:1"), &err,
                "mfl run asks no server: leave out '--server'");
        check_refused(PARSE(&cli, &err, "run", "x", "--tls-ca=f"), &err,
                "mfl run asks no server: leave out '--tls-ca'");
        check_refused(PARSE(&cli, &err, "--plain", "check", "x"), &err,
                "mfl check asks no server: leave out '--plain'");
        check_refused(PARSE(&cli, &err, "qqqqqq"), &err, "'mfl help' lists them");
        check_refused(PARSE(&cli, &err, "submit", "x", "--tokne", "t"), &err, "did you mean '--token'?");
        check_refused(PARSE(&cli, &err, "list", "--token", "t"), &err, "mfl list knows no option '--token'");
        check_refused(PARSE(&cli, &err, "list", "-x"), &err, "'-x'");
        check_refused(PARSE(&cli, &err, "list", "x"), &err, "one argument too many");
        check_refused(PARSE(&cli, &err, "submit"), &err, "usage: mfl submit job.yaml");
        check_refused(PARSE(&cli, &err, "submit", "x", "--token"), &err, "--token needs a value");
        check_refused(PARSE(&cli, &err, "submit", "x", "--watch=1"), &err, "--watch takes no value");
        check_refused(PARSE(&cli, &err, "run", "x", "--daemons", "0"), &err, "'0' is not a number in 1..256");
        check_refused(PARSE(&cli, &err, "run", "x", "--daemons", "2x"), &err, "'2x'");
}

/* What one means elsewhere is no command here, or it could not be told from one. */
static void test_synonyms(void **state)
{
        struct mfl_cli cli;
        struct mfl_error err;
        static const char *const aliases[][2] = {
                {"ls", "list"}, {"status", "list"}, {"rm", "delete"}, {"cancel", "stop"}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(aliases); i++) {
                assert_int_equal(PARSE(&cli, &err, aliases[i][0]), 0);
                assert_string_equal(cli.command->name, aliases[i][1]);
        }
        for (const struct mfl_cli_command *c = mfl_cli_commands; c->name; c++)
                assert_string_equal(mfl_cli_command_meant(c->name), c->name);
        static const char *const pairs[][2] = {{"kill", "stop"}, {"abort", "stop"}, {"ps", "list"},
                {"start", "run"}, {"get", "pull"}, {"tail", "watch"}, {"log", "logs"}, {"restart", "clone"},
                {"clients", "daemons"}, {"wacth", "watch"}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(pairs); i++)
                assert_string_equal(mfl_cli_command_meant(pairs[i][0]), pairs[i][1]);
        assert_null(mfl_cli_command_meant("qqqqqq"));
        assert_null(mfl_cli_command_meant(""));
}

/* Help is made from the tables: every command has a text, and every option it names exists. */
static void test_help(void **state)
{
        for (const struct mfl_cli_command *c = mfl_cli_commands; c->name; c++) {
                char *text, options[256], *save;
                size_t n;
                FILE *f = open_memstream(&text, &n);
                mfl_help_command(f, c);
                fclose(f);
                assert_non_null(strstr(text, "Example"));
                assert_true((strstr(text, "--tls-ca FILE") == NULL) == c->local);
                assert_ptr_equal(mfl_cli_command_find(c->name), c);
                strcpy(options, c->options);
                for (char *o = strtok_r(options, " ", &save); o; o = strtok_r(NULL, " ", &save)) {
                        char flag[64];
                        snprintf(flag, sizeof flag, "--%s", o);
                        char *lines = strstr(text, "Options:");
                        assert_non_null(lines);
                        if (!strstr(lines, flag))
                                fail_msg("the help of %s does not explain %s", c->name, flag);
                }
                free(text);
        }
        assert_null(mfl_cli_command_find("nothing"));
}

static void test_data_option(void **state)
{
        struct mfl_dataset_config c;
        struct mfl_error err;
        assert_int_equal(mfl_data_option_parse("a=idx:/x/y", &c, &err), 0);
        assert_string_equal(c.name, "a");
        assert_string_equal(c.dir, "/x/y");
        assert_int_equal(c.format, MFL_FORMAT_IDX);
        mfl_dataset_config_deinit(&c);
        assert_int_equal(mfl_data_option_parse("t=synthetic:1,28,28:10:1000:200:7", &c, &err), 0);
        assert_int_equal(c.shape.rank, 3);
        assert_int_equal(c.shape.dim[2], 28);
        assert_int_equal(c.n_train, 1000);
        assert_int_equal(c.n_test, 200);
        assert_int_equal(c.seed, 7);
        assert_int_equal(c.classes, 10);
        mfl_dataset_config_deinit(&c);
        static const char *const bad[] = {"", "a", "a=", "a=idx", "a=idx:", "=idx:/x", "a=jpeg:/x",
                "t=synthetic:", "t=synthetic:1,28,28:10:1000:200", "t=synthetic:1,28,28:10:1000:200:7x",
                "t=synthetic:0:10:1:1:1"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(bad); i++)
                if (mfl_data_option_parse(bad[i], &c, &err) != MFL_INVALID)
                        fail_msg("'%s' was taken", bad[i]);
        struct mfl_shape s;
        assert_true(mfl_data_option_shape("3x32x32", &s) && s.rank == 3 && s.dim[0] == 3);
        assert_false(mfl_data_option_shape("3x", &s));
        assert_false(mfl_data_option_shape("1x1x1x1x1", &s));
}

/* An option that several commands take is described as this one takes it. */
static void test_an_option_has_the_text_of_its_command(void **state)
{
        static const struct {
                const char *option, *command, *text;
        } cases[] = {
                {"threads", "run",
                        "clients that one daemon trains at once\n(default: the cores divided by the "
                        "daemons)"},
                {"threads", "evaluate", "threads that compute (default 1)"},
                {"all", "stop", "every job that has not ended"},
                {"all", "delete", "archived jobs, too"},
                {"last", "list", "only the newest N"},
                {"last", "audit", "only the newest N (default 100)"},
                {"base", "pull", "peft: the model that the adapter belongs to (default: none)"},
        };
        char help[MFL_CLI_HELP_BYTES];
        const struct mfl_cli_option *o;
        for (size_t k = 0; k < MFL_ARRAY_SIZE(cases); k++)
                for (size_t i = 0; (o = mfl_cli_option_at(i)); i++)
                        if (!strcmp(o->name, cases[k].option))
                                assert_string_equal(
                                        mfl_cli_option_help(o, cases[k].command, help, sizeof help),
                                        cases[k].text);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_accepted),
                cmocka_unit_test(test_refused),
                cmocka_unit_test(test_synonyms),
                cmocka_unit_test(test_help),
                cmocka_unit_test(test_data_option),
                cmocka_unit_test(test_an_option_has_the_text_of_its_command),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
