/* SPDX-License-Identifier: Apache-2.0 */
/* Own training code: its configuration, its jobs, and programs that never say a word. tests/e2e/test_programs.py has those that do. */
#include "client/program/program.h"
#include "tests/lib/test.h"

/* ---- client.yaml ---- */

static int read_programs(const char *text, struct mfl_programs *ret_programs, struct mfl_error *err)
{
        struct mfl_yaml_doc *doc;
        assert_int_equal(mfl_yaml_parse(text, strlen(text), "client.yaml", NULL, &doc, err), 0);
        int r = mfl_programs_read(doc, mfl_yaml_find(mfl_yaml_root(doc), "programs"), ret_programs, err);
        mfl_yaml_free(doc);
        return r;
}

static void programs_are_read(void **state)
{
        struct mfl_programs programs = {0};
        struct mfl_dataset offer;
        struct mfl_error err;
        assert_int_equal(
                read_programs("programs:\n"
                              "  - {name: pets, command: [/bin/true, 'a b', 3], timeout: 2m, memory: 1GiB}\n"
                              "  - {name: cars, command: [/bin/true], network: true, samples_max: 50, "
                              "processes: 9, "
                              "read: [/a, /b], write: [/c]}\n",
                        &programs, &err),
                0);
        const struct mfl_program_config *pets = mfl_programs_find(&programs, "pets"),
                                        *cars = mfl_programs_find(&programs, "cars");
        assert_int_equal(pets->n_command, 3);
        assert_string_equal(pets->command[1], "a b");
        assert_null(pets->command[3]);
        assert_int_equal(pets->timeout_ms, 120000);
        assert_int_equal(pets->memory_bytes, 1 << 30);
        assert_true(!pets->network && cars->network && pets->threads == 1);
        assert_int_equal(pets->processes, 2000);
        assert_int_equal(cars->processes, 9);
        assert_true(cars->n_read == 2 && cars->n_write == 1 && !pets->n_read);
        assert_string_equal(cars->read[1], "/b");
        assert_null(mfl_programs_find(&programs, "pet"));
        mfl_program_offer(cars, &offer);
        assert_string_equal(offer.name, "program:cars");
        assert_int_equal(offer.train.n, 50);
        mfl_programs_deinit(&programs);
}

static void mistakes_are_named(void **state)
{
        static const struct {
                const char *text, *want;
        } cases[] = {
                {"programs: 3", "expected a list"},
                {"programs: [{name: a}]", "key 'command' is missing"},
                {"programs: [{name: a, command: python3}]", "expected a list of 1 to"},
                {"programs: [{name: a, command: [python3]}]", "absolute path"},
                {"programs: [{name: 'a b', command: [/a]}]", "expected letters"},
                {"programs: [{name: a, command: [/a]}, {name: a, command: [/a]}]", "appears twice"},
                {"programs: [{name: a, command: [/a], dir: b}]", "absolute path"},
                {"programs: [{name: a, command: [/a], timout: 3s}]", "did you mean 'timeout'"},
                {"programs: [{name: a, command: [/a], read: /data}]", "expected a list of 1 to 16"},
                {"programs: [{name: a, command: [/a], write: []}]", "expected a list of 1 to 16"},
                {"programs: [{name: a, command: [/a], write: [data]}]", "absolute path"},
                {"programs: [{name: a, command: [/a], processes: 0}]", "processes"},
        };
        char path[MFL_PROGRAM_PATH_BYTES + 1], text[sizeof path + 64];
        struct mfl_programs one = {0};
        struct mfl_error why;
        memset(path, '/', sizeof path - 1);
        path[sizeof path - 1] = 0;
        mfl_snprintf(text, sizeof text, "programs: [{name: a, command: [/a], read: [%s]}]", path);
        assert_int_equal(read_programs(text, &one, &why), MFL_INVALID);
        assert_non_null(strstr(why.text, "at most 1023 bytes"));
        mfl_programs_deinit(&one);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_programs programs = {0};
                struct mfl_error err;
                assert_int_equal(read_programs(cases[i].text, &programs, &err), MFL_INVALID);
                if (!strstr(err.text, cases[i].want))
                        fail_msg("%s: %s", cases[i].text, err.text);
                mfl_programs_deinit(&programs);
        }
}

/* ---- a job ---- */

static const char job_text[] = "name: t\n"
                               "seed: 7\n"
                               "rounds: 1\n"
                               "model: {tensors: [[a.weight, 2, 3], [bn.running_mean, 3], [s]], initial: f}\n"
                               "data: {partition: local}\n"
                               "training:\n"
                               "  program: pets\n"
                               "  config: {lr: 0.1, n: 1e3, half: .5, on: yes, t: true, no: ~, text: '1', "
                               "list: [a, {b: \"c\\\"\\n\"}]}\n";

static struct mfl_job *parse(void)
{
        struct mfl_job *job;
        struct mfl_error err;
        if (mfl_job_parse(job_text, strlen(job_text), "job.yaml", &job, &err))
                fail_msg("%s", err.text);
        return job;
}

static void a_job_has_tensors_and_a_config(void **state)
{
        struct mfl_job *job = parse();
        struct mfl_graph *graph;
        assert_string_equal(job->training.config,
                "{\"lr\": 0.1, \"n\": 1e3, \"half\": 0.5, \"on\": \"yes\", \"t\": true, \"no\": null, "
                "\"text\": \"1\", \"list\": [\"a\", {\"b\": \"c\\\"\\u000a\"}]}");
        assert_string_equal(job->data.name, "program:pets");
        assert_true(mfl_job_has_program(job) && mfl_job_owns_data(job));
        assert_int_equal(mfl_job_graph(job, &(struct mfl_shape){1, {1}}, 1, &graph, NULL), 0);
        assert_int_equal(graph->n, 2 * 3 + 3 + 1);
        assert_int_equal(graph->n_moving, graph->n);
        assert_int_equal(mfl_graph_find_param(graph, "s"), 2);
        assert_int_equal(graph->params[2].shape.rank, 0);
        /* PyTorch's running statistics are no gradients. */
        assert_true(graph->params[0].trained && !graph->params[1].trained);
        assert_int_equal(graph->statistics.n, 2);
        assert_int_equal(graph->statistics.edge[0], 6);
        mfl_graph_free(graph);
        mfl_job_free(job);
}

static void two_tensors_have_two_names(void **state)
{
        static const char *const names[] = {"b", "a", "b"};
        static const struct mfl_shape shapes[3] = {{1, {2}}, {1, {2}}, {1, {2}}};
        struct mfl_graph *graph;
        struct mfl_error err;
        assert_int_equal(mfl_graph_of_tensors("t", names, shapes, 3, &graph, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "two tensors have the name b"));
}

/* ---- programs that do not speak ---- */

static bool stop_at_once(void *user)
{
        return ++*(int *)user > 2;
}

static void call(char **command, uint64_t timeout_ms, bool stops, int code, const char *want)
{
        struct mfl_program_config config = {.name = "pets",
                .command = command,
                .timeout_ms = timeout_ms,
                .threads = 1,
                .processes = 2,
                .samples_max = 10};
        struct mfl_job *job = parse();
        struct mfl_graph *graph;
        struct mfl_program *program;
        struct mfl_program_answer answer;
        struct mfl_error err;
        int looked = 0;
        while (command[config.n_command])
                config.n_command++;
        assert_int_equal(mfl_job_graph(job, &(struct mfl_shape){1, {1}}, 1, &graph, NULL), 0);
        const struct mfl_program_options options = {
                .config = &config, .job = "j-000001", .spec = job, .graph = graph};
        const float params[10] = {0};
        const struct mfl_program_call asked = {
                .round = 1, .params = params, .stopped = stops ? stop_at_once : NULL, .user = &looked};
        assert_int_equal(mfl_program_new(&options, &program, &err), 0);
        for (int i = 0; i < 2; i++) {
                assert_int_equal(mfl_program_call(program, &asked, &answer, &err), code);
                if (!strstr(err.text, want))
                        fail_msg("%s", err.text);
        }
        mfl_program_free(program);
        mfl_graph_free(graph);
        mfl_job_free(job);
}

static void silent_programs_fail(void **state)
{
        call((char *[]){"/bin/sh", "-c", "echo too bad >&2; exit 3", NULL}, 30000, false, MFL_PROGRAM_FAILED,
                "program pets: ended with status 3; last lines: too bad");
        /* `processes` are so many, not one less. */
        call((char *[]){"/bin/sh", "-c", "sleep 1000 & echo two >&2; exit 3", NULL}, 30000, false,
                MFL_PROGRAM_FAILED, "program pets: ended with status 3; last lines: two");
        call((char *[]){"/bin/sh", "-c", "kill -9 $$", NULL}, 30000, false, MFL_PROGRAM_FAILED,
                "killed by signal 9");
        call((char *[]){"/nonexistent", NULL}, 30000, false, MFL_PROGRAM_FAILED, "can't run /nonexistent");
        call((char *[]){"/bin/sleep", "1000", NULL}, 100, false, MFL_PROGRAM_FAILED,
                "does not answer in time");
        call((char *[]){"/bin/sh", "-c", "head -c 4 /dev/zero >&3; sleep 1000", NULL}, 30000, false,
                MFL_PROGRAM_FAILED, "answers Describe with another message");
        call((char *[]){"/bin/sh", "-c", "printf '\\377\\377\\377\\377' >&3; sleep 1000", NULL}, 30000, false,
                MFL_PROGRAM_FAILED, "its answer has 4294967295 bytes");
        call((char *[]){"/bin/sleep", "1000", NULL}, 30000, true, MFL_PROGRAM_STOPPED, "stopped");
}

int main(int argc, char **argv)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(programs_are_read),
                cmocka_unit_test(mistakes_are_named),
                cmocka_unit_test(a_job_has_tensors_and_a_config),
                cmocka_unit_test(two_tensors_have_two_names),
                cmocka_unit_test(silent_programs_fail),
        };
        int ran = mfl_program_child(argc, argv); /* of the programs that it starts */
        return ran >= 0 ? ran : cmocka_run_group_tests_name("program", tests, NULL, NULL);
}
