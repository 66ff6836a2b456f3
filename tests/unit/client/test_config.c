/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's configuration: what it takes, what it refuses and with which words, and which source wins. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <unistd.h>

#include "client/service/config.h"
#include "client/service/fingerprint.h"

static struct mfl_client_config config;
static struct mfl_error err;

static int read_text(const char *text)
{
        assert_int_equal(mfl_client_config_defaults(&config, &err), 0);
        return mfl_client_config_yaml(&config, text, strlen(text), "c.yaml", &err);
}

static void everything_can_be_said_in_the_file(void **state)
{
        assert_int_equal(
                read_text("server: fl:1\ntls_ca: /c\ntls_cert: /d\ntls_key: /e\nname: a-1\nnode: n\nworkers: "
                          "3\nbackend: cpu\nmemory: 1GiB\n"
                          "log_level: debug\ngpu: GPU-5d3c\nshare_gpu: true\ncollective: nccl\n"
                          "share_dir: /run/x\ndata_sets:\n"
                          "  - {name: x, format: idx, dir: /d}\n"
                          "  - {name: y, format: synthetic, shape: [3, 8, 9], classes: 5, train: 10, "
                          "test: 4, seed: 6, mean: [0.5, 0.5, 0.5], std: [1, 1, 2]}\n"),
                0);
        assert_string_equal(config.server, "fl:1");
        assert_string_equal(config.tls_ca, "/c");
        assert_string_equal(config.tls_cert, "/d");
        assert_string_equal(config.tls_key, "/e");
        assert_string_equal(config.name, "a-1");
        assert_int_equal(config.workers, 3);
        assert_string_equal(config.backend, "cpu");
        assert_int_equal(config.memory_bytes, 1 << 30);
        assert_int_equal(config.log_level, MFL_LOG_DEBUG);
        assert_string_equal(config.gpu, "GPU-5d3c");
        assert_true(config.share_gpu);
        assert_int_equal(config.collective, MFL_CLIENT_COLLECTIVE_NCCL);
        assert_string_equal(config.share_dir, "/run/x");
        assert_int_equal(config.n_data_sets, 2);
        assert_string_equal(config.data_sets[0].dir, "/d");
        const struct mfl_dataset_config *y = &config.data_sets[1];
        assert_int_equal(y->format, MFL_FORMAT_SYNTHETIC);
        assert_int_equal(y->shape.rank, 3);
        assert_int_equal(y->shape.dim[2], 9);
        assert_true(y->has_mean && y->std[2] == 2);
        assert_int_equal(y->n_train, 10);
        assert_int_equal(y->seed, 6);
        mfl_client_config_deinit(&config);
}

static void expect_refused(const char *text, const char *part)
{
        assert_int_equal(read_text(text), MFL_INVALID);
        if (!strstr(err.text, part))
                fail_msg("\"%s\" lacks \"%s\"", err.text, part);
        mfl_client_config_deinit(&config);
}

static void mistakes_are_named(void **state)
{
        expect_refused("srever: a:1\n", "c.yaml:1: srever: unknown key; did you mean 'server'?");
        expect_refused("workers: none\n", "workers");
        expect_refused("workers: 0\n", "workers");
        expect_refused("name: a b\n", "letters, digits");
        expect_refused("backend: gpu\n", "backend");
        expect_refused("gpu: x\n", "gpu: expected an index such as 3");
        expect_refused("gpu: \"\"\n", "expected an index");
        expect_refused("gpu: [0, 1]\n", "expected an index");
        expect_refused("share_gpu: maybe\n", "share_gpu");
        expect_refused("collective: mpi\n", "collective");
        expect_refused("data_sets: 3\n", "expected a list");
        expect_refused("data_sets:\n  - {name: x, format: idx}\n", "needs dir");
        expect_refused("data_sets:\n  - {name: x, format: npy, train_x: a}\n", "test_y");
        expect_refused("data_sets:\n  - {name: x, format: synthetic}\n", "needs shape");
        expect_refused("data_sets:\n  - {name: x, format: idx, dir: a}\n  - {name: x, format: idx, dir: b}\n",
                "twice");
        expect_refused("data_sets:\n  - {name: x, format: idx, dir: a, mean: [1]}\n", "go together");
        expect_refused("data_sets:\n  - {name: x, format: idx, dir: a, shape: [1, 2, 3, 4]}\n", "height");
}

static void a_data_set_fits_into_an_argument(void **state)
{
        assert_int_equal(mfl_client_config_defaults(&config, &err), 0);
        assert_int_equal(mfl_client_config_data(&config, "a=cifar10:/x:y", &err), 0);
        assert_int_equal(mfl_client_config_data(&config, "b=synthetic:3,32,32:10:500:100:7", &err), 0);
        assert_int_equal(mfl_client_config_data(&config, "a=idx:/z", &err), 0);
        assert_int_equal(config.n_data_sets, 2);
        assert_string_equal(config.data_sets[0].dir, "/z");
        assert_int_equal(config.data_sets[1].shape.dim[1], 32);
        assert_int_equal(config.data_sets[1].n_test, 100);
        static const char *const wrong[] = {"a", "a=idx", "a=idx:", "a=png:/x", " =idx:/x", "a=synthetic:3:4",
                "a=synthetic:3,2,2,2:10:5:5:1", "a=synthetic:3:1:5:5:1", "a=synthetic:3:4:5:5:1:9",
                "a=synthetic:-3:4:5:5:1"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(wrong); i++)
                assert_int_equal(mfl_client_config_data(&config, wrong[i], &err), MFL_CONFIG_USAGE);
        assert_int_equal(config.n_data_sets, 2);
        mfl_client_config_deinit(&config);
}

static int read_arguments(const char *a, const char *b, const char *c, const char *d)
{
        char *argv[] = {(char *)"mfl-client", (char *)a, (char *)b, (char *)c, (char *)d, NULL};
        int argc = 0;
        while (argv[argc])
                argc++;
        return mfl_client_config_init(&config, argc, argv, &err);
}

static void instances_have_names_of_their_own(void **state)
{
        assert_int_equal(read_arguments("--name", "site", "--instance", "3"), 0);
        assert_string_equal(config.gpu, "3");
        assert_string_equal(config.name, "site-gpu3");
        assert_int_equal(config.instances, 0);
        mfl_client_config_deinit(&config);
        setenv("MFL_CLIENT_INSTANCES", "8", 1);
        assert_int_equal(read_arguments("--instance", "MIG-0123456789abcdef", "--name",
                                 "a-name-of-63-letters-a-name-of-63-letters-a-name-of-63-letters-"),
                0);
        assert_string_equal(config.gpu, "MIG-0123456789abcdef");
        assert_string_equal(config.name, "a-name-of-63-letters-a-name-of-63-letters-a-name-o-MIG-01234567");
        assert_int_equal(config.instances, 8);
        mfl_client_config_deinit(&config);
        assert_int_equal(read_arguments("--instance", "cpu", "--gpu", "2"), 0);
        assert_string_equal(config.gpu, "none");
        mfl_client_config_deinit(&config);
        unsetenv("MFL_CLIENT_INSTANCES");
        const char *const wrong[] = {"none", "all", "0,1", "x", "-1"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(wrong); i++) {
                assert_int_equal(read_arguments("--instance", wrong[i], NULL, NULL), MFL_CONFIG_USAGE);
                mfl_client_config_deinit(&config);
        }
}

/* A child's arguments follow its parent's, so the later of two must count. */
static void gpus_are_named_by_options(void **state)
{
        assert_int_equal(read_arguments("--all-gpus", "--gpu", "GPU-5d", "--share-gpu"), 0);
        assert_string_equal(config.gpu, "GPU-5d");
        assert_true(config.share_gpu);
        mfl_client_config_deinit(&config);
        assert_int_equal(read_arguments("--gpu", "none", "--all-gpus", NULL), 0);
        assert_string_equal(config.gpu, "all");
        assert_false(config.share_gpu);
        mfl_client_config_deinit(&config);
        assert_int_equal(read_arguments("--gpus", "0,MIG-5d", "--memory", "2GiB"), 0);
        assert_string_equal(config.gpu, "0,MIG-5d");
        assert_int_equal(config.memory_bytes, 2ull << 30);
        mfl_client_config_deinit(&config);
}

static void a_collective_is_chosen_by_its_name(void **state)
{
        static const char *const names[] = {"auto", "shm", "solo", "nccl"};
        assert_int_equal(read_arguments(NULL, NULL, NULL, NULL), 0);
        assert_int_equal(config.collective, MFL_CLIENT_COLLECTIVE_AUTO);
        assert_string_equal(config.share_dir, "");
        mfl_client_config_deinit(&config);
        for (int i = 0; i < 4; i++) {
                assert_int_equal(read_arguments("--collective", names[i], "--share-dir", "/tmp/x"), 0);
                assert_int_equal(config.collective, i);
                assert_string_equal(config.share_dir, "/tmp/x");
                mfl_client_config_deinit(&config);
        }
        assert_int_equal(read_arguments("--collective", "mpi", NULL, NULL), MFL_CONFIG_USAGE);
        assert_non_null(strstr(err.text, "auto, shm, nccl or solo"));
        mfl_client_config_deinit(&config);
}

static void options_come_before_environment_and_file(void **state)
{
        char path[] = "client-config-XXXXXX";
        int fd = mkstemp(path);
        static const char text[] = "server: file:1\nname: file\nworkers: 7\n";
        assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
        close(fd);
        unsetenv("MFL_SERVER");
        assert_int_equal(read_arguments("--name", "option", "--config", path), 0);
        assert_string_equal(config.name, "option");
        assert_string_equal(config.server, "file:1");
        assert_int_equal(config.workers, 7);
        mfl_client_config_deinit(&config);
        setenv("MFL_SERVER", "env:1", 1);
        assert_int_equal(read_arguments("--config", path, NULL, NULL), 0);
        assert_string_equal(config.server, "env:1");
        mfl_client_config_deinit(&config);
        assert_int_equal(read_arguments("--server", "option:1", "--config", path), 0);
        assert_string_equal(config.server, "option:1");
        mfl_client_config_deinit(&config);
        unsetenv("MFL_SERVER");
        unlink(path);
        assert_int_equal(read_arguments("--config", path, NULL, NULL), MFL_INVALID);
        mfl_client_config_deinit(&config);
        assert_int_equal(read_arguments("--workers", "0", NULL, NULL), MFL_CONFIG_USAGE);
        mfl_client_config_deinit(&config);
        assert_int_equal(read_arguments("--gpu", "x", NULL, NULL), MFL_CONFIG_USAGE);
        mfl_client_config_deinit(&config);
        assert_int_equal(read_arguments("--gpu", "", NULL, NULL), MFL_CONFIG_USAGE);
        mfl_client_config_deinit(&config);
        assert_int_equal(read_arguments("--gpus", "0,0", NULL, NULL), MFL_CONFIG_USAGE);
        mfl_client_config_deinit(&config);
        assert_int_equal(read_arguments("--memory", "1k", NULL, NULL), MFL_CONFIG_USAGE);
        mfl_client_config_deinit(&config);
        assert_int_equal(read_arguments("--what", NULL, NULL, NULL), MFL_CONFIG_USAGE);
        mfl_client_config_deinit(&config);
        assert_int_equal(read_arguments("stray", NULL, NULL, NULL), MFL_CONFIG_USAGE);
        mfl_client_config_deinit(&config);
}

static void defaults_are_valid_names(void **state)
{
        assert_int_equal(mfl_client_config_defaults(&config, &err), 0);
        assert_true(mfl_client_name_valid(config.name));
        assert_true(mfl_client_name_valid(config.node));
        assert_false(mfl_client_name_valid(""));
        assert_false(mfl_client_name_valid("a/b"));
        char node[MFL_NAME_BYTES];
        mfl_strcpy(node, sizeof(node), config.node);
        assert_int_equal(mfl_client_config_defaults(&config, &err), 0);
        assert_string_equal(config.node, node);
}

static void a_fingerprint_sees_every_sample(void **state)
{
        uint8_t samples[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
        int32_t labels[4] = {0, 1, 1, 0};
        struct mfl_dataset data = {.shape = {1, {3}},
                .classes = 2,
                .scale = {1},
                .train = {3, MFL_U8, samples, labels},
                .test = {1, MFL_U8, samples + 9, labels + 3}};
        uint64_t first, other;
        assert_int_equal(mfl_client_fingerprint(&data, &first, &err), 0);
        assert_int_equal(mfl_client_fingerprint(&data, &other, &err), 0);
        assert_true(first == other);
        for (int i = 0; i < 12; i++) {
                samples[i] ^= 1;
                assert_int_equal(mfl_client_fingerprint(&data, &other, &err), 0);
                assert_true(first != other);
                samples[i] ^= 1;
        }
        labels[3] = 1;
        assert_int_equal(mfl_client_fingerprint(&data, &other, &err), 0);
        assert_true(first != other);
}

/* An option comes before the environment; a part of the three is a mistake, not plain TCP. */
static void certificates_come_together(void **state)
{
        static char *const cert_only[] = {"mfl-client", "--tls-cert", "/opt", NULL};
        setenv("MFL_TLS_CA", "/env/ca", 1);
        setenv("MFL_TLS_CERT", "/env/cert", 1);
        assert_int_equal(mfl_client_config_init(&config, 1, cert_only, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "tls_key is missing"));
        mfl_client_config_deinit(&config);
        setenv("MFL_TLS_KEY", "/env/key", 1);
        assert_int_equal(mfl_client_config_init(&config, 3, cert_only, &err), 0);
        assert_string_equal(config.tls_ca, "/env/ca");
        assert_string_equal(config.tls_cert, "/opt");
        assert_string_equal(config.tls_key, "/env/key");
        mfl_client_config_deinit(&config);
        unsetenv("MFL_TLS_CA");
        unsetenv("MFL_TLS_CERT");
        unsetenv("MFL_TLS_KEY");
        assert_int_equal(mfl_client_config_init(&config, 1, cert_only, &err), 0);
        assert_string_equal(config.tls_ca, "");
        mfl_client_config_deinit(&config);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(everything_can_be_said_in_the_file),
                cmocka_unit_test(mistakes_are_named),
                cmocka_unit_test(certificates_come_together),
                cmocka_unit_test(a_data_set_fits_into_an_argument),
                cmocka_unit_test(gpus_are_named_by_options),
                cmocka_unit_test(instances_have_names_of_their_own),
                cmocka_unit_test(a_collective_is_chosen_by_its_name),
                cmocka_unit_test(options_come_before_environment_and_file),
                cmocka_unit_test(defaults_are_valid_names),
                cmocka_unit_test(a_fingerprint_sees_every_sample),
        };
        return cmocka_run_group_tests_name("client_config", tests, NULL, NULL);
}
