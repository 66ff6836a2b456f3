/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines, read back from a file that stands in for stderr. */
#include "tests/lib/test.h"
#include "common/base/log.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static int saved_stderr;
static FILE *file;
static char content[1 << 20];

static int setup(void **state)
{
        file = tmpfile();
        saved_stderr = dup(STDERR_FILENO);
        dup2(fileno(file), STDERR_FILENO);
        unsetenv("JOURNAL_STREAM");
        mfl_log_init("mfl-test", MFL_LOG_INFO);
        return 0;
}

static int teardown(void **state)
{
        dup2(saved_stderr, STDERR_FILENO);
        close(saved_stderr);
        fclose(file);
        return 0;
}

static const char *written(void)
{
        ssize_t n = pread(fileno(file), content, sizeof content - 1, 0);
        assert_true(n >= 0);
        content[n] = '\0';
        return content;
}

static void lines_have_time_program_and_level(void **state)
{
        mfl_log(MFL_LOG_WARN, "disk %d is %s", 3, "full");
        mfl_log(MFL_LOG_INFO, "round 1");
        mfl_log(MFL_LOG_DEBUG, "not shown");
        const char *text = written();
        int h, m, s, end = 0;
        assert_int_equal(
                sscanf(text, "%2d:%2d:%2d mfl-test: warning: disk 3 is full%n", &h, &m, &s, &end), 3);
        assert_int_equal(text[end], '\n');
        assert_string_equal(text + end + 1 + 8, " mfl-test: round 1\n");
}

static void the_journal_gets_priorities(void **state)
{
        struct stat st;
        char stream[64];
        fstat(STDERR_FILENO, &st);
        snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)st.st_dev,
                (unsigned long long)st.st_ino);
        setenv("JOURNAL_STREAM", stream, 1);
        mfl_log(MFL_LOG_ERROR, "a");
        mfl_log(MFL_LOG_WARN, "b");
        mfl_log(MFL_LOG_INFO, "c");
        assert_string_equal(written(), "<3>a\n<4>b\n<6>c\n");
}

static void an_inherited_journal_variable_is_ignored(void **state)
{
        setenv("JOURNAL_STREAM", "1:2", 1);
        mfl_log(MFL_LOG_INFO, "c");
        assert_non_null(strstr(written(), " mfl-test: c\n"));
}

static void one_text_is_one_line(void **state)
{
        char big[5000];
        memset(big, 'x', sizeof big - 1);
        big[sizeof big - 1] = '\0';
        errno = EAGAIN;
        mfl_log(MFL_LOG_INFO, "a\nb\rc\x1b[31m \xc3\xa9");
        mfl_log(MFL_LOG_INFO, "C1 \xc2\x9b"
                              "31m, override \xe2\x80\xae"
                              "x, separator \xe2\x80\xa8, byte \xff.");
        mfl_log(MFL_LOG_INFO, "%s", big);
        assert_int_equal(errno, EAGAIN);
        const char *text = written();
        assert_non_null(strstr(text, " mfl-test: a?b?c?[31m \xc3\xa9\n"));
        assert_non_null(strstr(text, " mfl-test: C1 ?31m, override ?x, separator ?, byte ?.\n"));
        assert_non_null(strstr(text, "xxx...\n"));
        assert_true(strlen(text) < 2300);
}

static void collect(void *user, enum mfl_log_level level, const char *text)
{
        char *all = user;
        sprintf(all + strlen(all), "%s=%s;", mfl_log_level_name(level), text);
}

static void a_sink_gets_what_is_shown(void **state)
{
        char all[100] = "";
        mfl_log_set_sink(collect, all);
        mfl_log(MFL_LOG_ERROR, "one");
        mfl_log(MFL_LOG_DEBUG, "two");
        mfl_log_init("mfl-test", MFL_LOG_DEBUG);
        mfl_log(MFL_LOG_DEBUG, "three");
        mfl_log_set_sink(NULL, NULL);
        mfl_log(MFL_LOG_ERROR, "four");
        assert_string_equal(all, "error=one;debug=three;");
}

static void *log_many(void *arg)
{
        for (int i = 0; i < 200; i++)
                mfl_log(MFL_LOG_INFO, "thread says %d", i);
        return NULL;
}

static void threads_do_not_mix_lines(void **state)
{
        pthread_t threads[4];
        for (int i = 0; i < 4; i++)
                assert_int_equal(pthread_create(&threads[i], NULL, log_many, NULL), 0);
        for (int i = 0; i < 4; i++)
                pthread_join(threads[i], NULL);
        written();
        int n = 0;
        for (char *save, *line = strtok_r(content, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
                int number, end = 0;
                sscanf(line + 8, " mfl-test: thread says %d%n", &number, &end);
                assert_true(end > 0 && line[8 + end] == '\0');
                n++;
        }
        assert_int_equal(n, 800);
}

static void levels_have_names(void **state)
{
        enum mfl_log_level level = MFL_LOG_INFO;
        assert_true(mfl_log_level_parse("warn", &level) && level == MFL_LOG_WARN);
        for (int i = MFL_LOG_ERROR; i <= MFL_LOG_DEBUG; i++)
                assert_true(mfl_log_level_parse(mfl_log_level_name((enum mfl_log_level)i), &level) &&
                            (int)level == i);
        assert_false(mfl_log_level_parse("loud", &level));
}

#define LOG_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                LOG_TEST(lines_have_time_program_and_level),
                LOG_TEST(the_journal_gets_priorities),
                LOG_TEST(an_inherited_journal_variable_is_ignored),
                LOG_TEST(one_text_is_one_line),
                LOG_TEST(a_sink_gets_what_is_shown),
                LOG_TEST(threads_do_not_mix_lines),
                LOG_TEST(levels_have_names),
        };
        return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
