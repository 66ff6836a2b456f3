/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs: their names, choosing among them, NVML (the library of tests/lib/nvml), the driver's files, the lock.
 */
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/gpu/gpu.h"

#define A "GPU-aaaa1111-0000-0000-0000-000000000000"
#define B "GPU-aaaa2222-0000-0000-0000-000000000000"
#define M0 "MIG-bbbb0000-0000-0000-0000-000000000000"
#define M1 "MIG-bbbb1111-0000-0000-0000-000000000000"

static struct mfl_error err;
static struct mfl_gpus gpus;

static struct mfl_gpu_id id_of(const char *text)
{
        struct mfl_gpu_id id;
        if (!mfl_gpu_id_parse(text, &id))
                fail_msg("%s is no GPU", text);
        return id;
}

static void names_are_taken_or_refused(void **state)
{
        assert_int_equal(id_of("").kind, MFL_GPU_UNSET);
        assert_int_equal(id_of("none").kind, MFL_GPU_NONE);
        assert_int_equal(id_of("12").kind, MFL_GPU_INDEX);
        assert_int_equal(id_of("12").index, 12);
        assert_int_equal(id_of("GPU-5d3C").kind, MFL_GPU_UUID);
        assert_int_equal(id_of(M0).kind, MFL_GPU_MIG);
        assert_int_equal(id_of("MIG-GPU-5d3c01/1/0").kind, MFL_GPU_MIG);
        static const char *const wrong[] = {"-1", "1.", "12345", "0x1", " 1", "all", "gpu-5d", "GPU-",
                "GPU-5g", "GPU-5/1", "MIG-", "MIG-x", "0,1", "None"};
        struct mfl_gpu_id id;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(wrong); i++) {
                if (mfl_gpu_id_parse(wrong[i], &id))
                        fail_msg("%s was taken", wrong[i]);
        }
        char longer[MFL_GPU_TEXT_BYTES + 1] = "GPU-";
        memset(longer + 4, 'a', sizeof(longer) - 5);
        longer[sizeof(longer) - 1] = 0;
        assert_false(mfl_gpu_id_parse(longer, &id));
}

static void lists_name_each_once(void **state)
{
        struct mfl_gpu_id ids[MFL_GPUS_MAX];
        uint32_t n = 0;
        assert_true(mfl_gpu_ids_parse("3", ids, &n) && n == 1 && ids[0].index == 3);
        assert_true(mfl_gpu_ids_parse("0,GPU-5d," M0, ids, &n) && n == 3 && ids[2].kind == MFL_GPU_MIG);
        static const char *const wrong[] = {"", ",", "0,", ",0", "0,,1", "0,0", "0,none", "0, 1", "all"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(wrong); i++) {
                if (mfl_gpu_ids_parse(wrong[i], ids, &n))
                        fail_msg("%s was taken", wrong[i]);
        }
        char many[2 * 1000 + 8] = "";
        for (size_t i = 0; i <= MFL_GPUS_MAX; i++)
                snprintf(many + strlen(many), sizeof(many) - strlen(many), "%s%zu", i ? "," : "", i);
        assert_false(mfl_gpu_ids_parse(many, ids, &n));
        *strrchr(many, ',') = 0;
        assert_true(mfl_gpu_ids_parse(many, ids, &n) && n == MFL_GPUS_MAX);
}

static void a_uuid_may_be_cut(void **state)
{
        assert_true(mfl_gpu_uuid_begins(A, "GPU-AAAA1"));
        assert_true(mfl_gpu_uuid_begins(A, A));
        assert_false(mfl_gpu_uuid_begins(A, A "0"));
        assert_false(mfl_gpu_uuid_begins(A, "GPU-b"));
        assert_false(mfl_gpu_uuid_begins(A, "MIG-aaaa"));
}

/* ---- NVML ---- */

static struct mfl_nvml *open_nvml(const char *list)
{
        struct mfl_nvml *nvml = NULL;
        setenv("FAKE_NVML", list, 1);
        if (mfl_nvml_open(&nvml, &err))
                fail_msg("%s", err.text);
        if (mfl_nvml_list(nvml, &gpus, &err))
                fail_msg("%s", err.text);
        return nvml;
}

/* Two GPUs, one that may not be opened, and one with two MIG devices. */
#define MACHINE                                                                                              \
        A "|Alpha|10|100|1000|50|250000;" B "|Beta|-|-|-|-|-;-;GPU-cccc|Gamma|0|0|2000|40|1;" M0             \
          "|-|-|5|900|-|-;" M1 "|Gamma MIG|-|-|-|-|-"

static void nvml_lists_what_there_is(void **state)
{
        struct mfl_nvml *nvml = open_nvml(MACHINE);
        assert_string_equal(mfl_nvml_driver(nvml), "999.1");
        assert_int_equal(gpus.n, 5);
        const struct mfl_gpu *g = gpus.v;
        assert_true(g[0].index == 0 && g[0].mig == -1 && !g[0].mig_mode && g[0].memory_bytes == 1000);
        assert_string_equal(g[0].uuid, A);
        assert_string_equal(g[0].gpu_uuid, A);
        assert_string_equal(g[0].name, "Alpha");
        assert_string_equal(g[0].pci, "0000:a0:00.0");
        assert_true(g[1].index == 1 && g[1].memory_bytes == 0);
        assert_true(g[2].index == 3 && g[2].mig_mode && g[2].mig == -1);
        assert_true(g[3].index == 3 && g[3].mig == 0 && !g[3].mig_mode && g[3].memory_bytes == 900);
        assert_string_equal(g[3].uuid, M0);
        assert_string_equal(g[3].gpu_uuid, "GPU-cccc");
        assert_string_equal(g[3].name, "Gamma");
        assert_string_equal(g[3].pci, "0000:a3:00.0");
        assert_true(g[4].mig == 1);
        assert_string_equal(g[4].name, "Gamma MIG");
        mfl_nvml_close(nvml);
        mfl_nvml_close(NULL);
}

static void a_sample_has_what_the_device_reports(void **state)
{
        struct mfl_nvml *nvml = open_nvml(MACHINE);
        struct mfl_telemetry t;
        assert_int_equal(mfl_nvml_sample(nvml, A, &t, &err), 0);
        assert_int_equal(t.known, 31);
        assert_true(t.gpu_percent == 10 && t.memory_used == 100 && t.memory_total == 1000);
        assert_true(t.temperature_c == 50 && t.power_mw == 250000);
        assert_int_equal(mfl_nvml_sample(nvml, B, &t, &err), 0);
        assert_int_equal(t.known, 0);
        assert_int_equal(mfl_nvml_sample(nvml, M0, &t, &err), 0);
        assert_int_equal(t.known, MFL_TELEMETRY_MEMORY_USED | MFL_TELEMETRY_MEMORY_TOTAL);
        assert_int_equal(mfl_nvml_sample(nvml, "GPU-dddd", &t, &err), MFL_NOT_FOUND);
        assert_string_equal(err.text, "NVML: GPU-dddd: Not Found");
        mfl_nvml_close(nvml);
        /* What can't be true is not told. */
        nvml = open_nvml(A "|x|101|6|5|1001|1000000001");
        assert_int_equal(mfl_nvml_sample(nvml, A, &t, &err), 0);
        assert_int_equal(t.known, 0);
        mfl_nvml_close(nvml);
}

static void without_a_driver_the_reason_is_told(void **state)
{
        struct mfl_nvml *nvml;
        unsetenv("FAKE_NVML");
        assert_int_equal(mfl_nvml_open(&nvml, &err), MFL_NOT_FOUND);
        assert_string_equal(err.text, "NVML: Driver Not Loaded");
        setenv("FAKE_NVML", A, 1);
        mfl_alloc_fail_at(0);
        assert_int_equal(mfl_nvml_open(&nvml, &err), -ENOMEM);
        mfl_alloc_fail_at(-1);
}

/* ---- choosing ---- */

static void expect_found(const char *text, uint32_t at)
{
        struct mfl_gpu_id id = id_of(text);
        const struct mfl_gpu *gpu;
        if (mfl_gpu_find(&gpus, &id, &gpu, &err))
                fail_msg("%s", err.text);
        assert_ptr_equal(gpu, &gpus.v[at]);
}

static void expect_not_found(const char *text, const char *why)
{
        struct mfl_gpu_id id = id_of(text);
        const struct mfl_gpu *gpu;
        assert_int_equal(mfl_gpu_find(&gpus, &id, &gpu, &err), MFL_INVALID);
        if (!strstr(err.text, why))
                fail_msg("\"%s\" lacks \"%s\"", err.text, why);
}

static void one_device_is_meant(void **state)
{
        mfl_nvml_close(open_nvml(MACHINE));
        expect_found("0", 0);
        expect_found("1", 1);
        expect_found("GPU-AAAA2", 1);
        expect_found(M1, 4);
        expect_found("MIG-bbbb0", 3);
        expect_not_found("2", "GPU 2: there is no such device; there are: 0 (Alpha, " A "), 1 (Beta, ");
        expect_not_found("GPU-aaaa", "several begin like this");
        expect_not_found("GPU-dd", "no such device");
        expect_not_found("3", "GPU 3 is in MIG mode: choose one of its MIG devices: " M0 ", " M1);
        expect_not_found("GPU-cccc", "MIG mode");
        gpus.n = 0;
        expect_not_found("0", "there are: none");
}

static int check_visible(const char *visible, const char *text, bool known)
{
        struct mfl_gpu_id id = id_of(text);
        const struct mfl_gpu *gpu = NULL;
        if (known)
                assert_int_equal(mfl_gpu_find(&gpus, &id, &gpu, &err), 0);
        return mfl_gpu_check_visible(visible, &id, gpu, known ? &gpus : NULL, &err);
}

static void the_environment_may_not_contradict(void **state)
{
        mfl_nvml_close(open_nvml(MACHINE));
        assert_int_equal(check_visible(NULL, "0", true), 0);
        assert_int_equal(check_visible("0", "0", true), 0);
        assert_int_equal(check_visible("0", "0", false), 0);
        assert_int_equal(check_visible(A, "0", true), 0);
        assert_int_equal(check_visible("GPU-aaaa1", A, true), 0);
        assert_int_equal(check_visible("0", "GPU-aaaa1", true), 0);
        assert_int_equal(check_visible(M0, "MIG-bbbb0", true), 0);
        assert_int_equal(check_visible(A, "0", false), MFL_INVALID);
        assert_int_equal(check_visible("", "0", true), MFL_INVALID);
        assert_int_equal(check_visible("0,1", "0", true), MFL_INVALID);
        assert_int_equal(check_visible("1", "0", true), MFL_INVALID);
        assert_non_null(strstr(err.text, "GPU 0 was asked for, but CUDA_VISIBLE_DEVICES=1 is set"));
        assert_int_equal(mfl_gpu_count_visible(NULL, 3), 3);
        assert_int_equal(mfl_gpu_count_visible("", 3), 0);
        assert_int_equal(mfl_gpu_count_visible("7", 3), 1);
        assert_int_equal(mfl_gpu_count_visible("7,8", 3), 2);
}

static struct mfl_gpus chosen;

static int select_gpus(const char *list, const char *visible)
{
        struct mfl_gpu_id ids[MFL_GPUS_MAX] = {0};
        uint32_t n = 0;
        if (list)
                assert_true(mfl_gpu_ids_parse(list, ids, &n));
        return mfl_gpu_select(&gpus, ids, n, visible, &chosen, &err);
}

static void a_daemon_for_each(void **state)
{
        mfl_nvml_close(open_nvml(MACHINE));
        assert_int_equal(select_gpus(NULL, NULL), 0);
        assert_int_equal(chosen.n, 4);
        assert_string_equal(chosen.v[1].uuid, B);
        assert_string_equal(chosen.v[2].uuid, M0);
        assert_string_equal(chosen.v[3].uuid, M1);
        assert_int_equal(select_gpus("3,0", NULL), 0);
        assert_int_equal(chosen.n, 3);
        assert_string_equal(chosen.v[0].uuid, M0);
        assert_string_equal(chosen.v[2].uuid, A);
        assert_int_equal(select_gpus("0,GPU-aaaa1", NULL), 0); /* one and the same */
        assert_int_equal(chosen.n, 1);
        assert_int_equal(select_gpus(NULL, "1," M1), 0);
        assert_int_equal(chosen.n, 2);
        assert_string_equal(chosen.v[1].uuid, M1);
        assert_int_equal(select_gpus("0,5", NULL), MFL_INVALID);
        assert_int_equal(select_gpus("0", "0"), MFL_INVALID);
        assert_int_equal(select_gpus(NULL, ""), MFL_INVALID);
        assert_int_equal(select_gpus(NULL, "NoDevFiles"), MFL_INVALID);
        gpus.n = 0;
        assert_int_equal(select_gpus(NULL, NULL), MFL_INVALID);
}

/* ---- files ---- */

static void put(const char *folder, const char *name, const char *text)
{
        char path[300];
        snprintf(path, sizeof(path), "%s/%s", folder, name);
        mkdir(path, 0700);
        strcat(path, "/information");
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
}

static void the_drivers_files_are_read(void **state)
{
        char folder[] = "gpu-proc-XXXXXX", command[64];
        assert_non_null(mkdtemp(folder));
        assert_int_equal(mfl_gpu_list_proc(folder, &gpus, &err), MFL_NOT_FOUND);
        put(folder, "0000:17:00.0",
                "Model: \t\t Some GPU \nIRQ:   \t\t 1\nGPU UUID: \t " A "\nVideo BIOS: \t x\n");
        put(folder, "0000:65:00.0", "Model: \t\t Other\nGPU UUID: \t GPU-\?\?\?\?\?\?\?\?-\?\?\?\?\n");
        put(folder, "0000:ca:00.0", "GPU UUID: " B);
        assert_int_equal(mfl_gpu_list_proc(folder, &gpus, &err), 0);
        assert_int_equal(gpus.n, 2);
        assert_string_equal(gpus.v[0].name, "Some GPU");
        assert_string_equal(gpus.v[0].uuid, A);
        assert_string_equal(gpus.v[0].pci, "0000:17:00.0");
        assert_int_equal(gpus.v[1].index, 2);
        assert_string_equal(gpus.v[1].uuid, B);
        assert_string_equal(gpus.v[1].name, "");
        assert_int_equal(gpus.v[1].mig, -1);
        snprintf(command, sizeof(command), "rm -r %s", folder);
        assert_int_equal(system(command), 0);
        assert_int_equal(mfl_gpu_list_proc(folder, &gpus, &err), MFL_NOT_FOUND);
}

/* A process that holds the lock until it is killed. */
static pid_t hold(bool shared, bool *ret_held)
{
        int ready[2];
        char byte = 0;
        assert_int_equal(pipe(ready), 0);
        pid_t pid = fork();
        if (!pid) {
                struct mfl_gpu_lock lock = {.fd = -1};
                byte = !mfl_gpu_lock_take(&lock, A, shared, &err);
                if (write(ready[1], &byte, 1) != 1)
                        _exit(1);
                for (;;)
                        pause();
        }
        assert_true(pid > 0);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        close(ready[1]);
        *ret_held = byte;
        return pid;
}

static void end(pid_t pid)
{
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void one_process_has_a_gpu(void **state)
{
        char folder[] = "gpu-lock-XXXXXX", path[128], part[64];
        struct mfl_gpu_lock lock = {.fd = -1}, other = {.fd = -1};
        bool held;
        assert_non_null(mkdtemp(folder));
        setenv("MFL_GPU_LOCK_DIR", folder, 1);
        snprintf(path, sizeof(path), "%s/mfl-" A ".lock", folder);
        /* It goes with its process, killed or not; the file that is left is no lock. */
        pid_t pid = hold(false, &held);
        assert_true(held);
        assert_int_equal(mfl_gpu_lock_take(&lock, A, false, &err), MFL_BUSY);
        snprintf(part, sizeof(part), "process %d already trains on it", (int)pid);
        assert_non_null(strstr(err.text, part));
        assert_non_null(strstr(err.text, "--share-gpu"));
        assert_int_equal(mfl_gpu_lock_take(&lock, A, true, &err), MFL_BUSY);
        assert_non_null(strstr(err.text, "uses it without --share-gpu"));
        assert_int_equal(mfl_gpu_lock_take(&other, B, false, &err), 0);
        mfl_gpu_lock_release(&other);
        end(pid);
        assert_int_equal(access(path, F_OK), 0);
        assert_int_equal(mfl_gpu_lock_take(&lock, A, false, &err), 0);
        mfl_gpu_lock_release(&lock);
        mfl_gpu_lock_release(&lock);
        assert_int_equal(access(path, F_OK), -1);
        /* Sharing takes two who want to. */
        pid = hold(true, &held);
        assert_true(held);
        assert_int_equal(mfl_gpu_lock_take(&lock, A, true, &err), 0);
        assert_int_equal(mfl_gpu_lock_take(&other, A, false, &err), MFL_BUSY);
        mfl_gpu_lock_release(&lock);
        assert_int_equal(access(path, F_OK), 0); /* the other one needs it */
        end(pid);
        assert_int_equal(mfl_gpu_lock_take(&lock, A, false, &err), 0);
        mfl_gpu_lock_release(&lock);
        assert_int_equal(rmdir(folder), 0);
        unsetenv("MFL_GPU_LOCK_DIR");
}

static void a_lock_that_is_no_file_is_not_used(void **state)
{
        char folder[] = "gpu-lock-XXXXXX", path[128];
        struct mfl_gpu_lock lock = {.fd = -1};
        assert_non_null(mkdtemp(folder));
        setenv("MFL_GPU_LOCK_DIR", folder, 1);
        snprintf(path, sizeof(path), "%s/mfl-GPU-eeee.lock", folder);
        assert_int_equal(symlink("/etc/passwd", path), 0);
        /* The next place takes it, unless there is none for this user. */
        int r = mfl_gpu_lock_take(&lock, "GPU-eeee", false, &err);
        assert_true(r == 0 || r == MFL_NOT_FOUND);
        assert_int_not_equal(strncmp(lock.path, folder, strlen(folder)), 0);
        mfl_gpu_lock_release(&lock);
        unlink(path);
        assert_int_equal(rmdir(folder), 0);
        unsetenv("MFL_GPU_LOCK_DIR");
}

static void mps_is_seen_by_its_socket_or_its_process(void **state)
{
        char folder[] = "gpu-mps-XXXXXX", path[128];
        assert_non_null(mkdtemp(folder));
        setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1);
        assert_false(mfl_gpu_mps_running());
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        snprintf(address.sun_path, sizeof(address.sun_path), "%s/control", folder);
        int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
        assert_int_equal(listen(fd, 1), 0);
        assert_true(mfl_gpu_mps_running());
        close(fd);
        assert_false(mfl_gpu_mps_running()); /* its file is still there */
        /* Older ones have a pipe and a file with their process's number; this process has another name. */
        snprintf(path, sizeof(path), "%s/nvidia-cuda-mps-control.pid", folder);
        FILE *f = fopen(path, "w");
        fprintf(f, "%d", (int)getpid());
        fclose(f);
        assert_false(mfl_gpu_mps_running());
        char name[16] = "";
        assert_int_equal(prctl(PR_GET_NAME, name), 0);
        assert_int_equal(prctl(PR_SET_NAME, "nvidia-cuda-mps-control"), 0);
        assert_true(mfl_gpu_mps_running());
        prctl(PR_SET_NAME, name);
        unlink(path);
        unlink(address.sun_path);
        assert_int_equal(rmdir(folder), 0);
        unsetenv("CUDA_MPS_PIPE_DIRECTORY");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(names_are_taken_or_refused),
                cmocka_unit_test(lists_name_each_once),
                cmocka_unit_test(a_uuid_may_be_cut),
                cmocka_unit_test(nvml_lists_what_there_is),
                cmocka_unit_test(a_sample_has_what_the_device_reports),
                cmocka_unit_test(without_a_driver_the_reason_is_told),
                cmocka_unit_test(one_device_is_meant),
                cmocka_unit_test(the_environment_may_not_contradict),
                cmocka_unit_test(a_daemon_for_each),
                cmocka_unit_test(the_drivers_files_are_read),
                cmocka_unit_test(one_process_has_a_gpu),
                cmocka_unit_test(a_lock_that_is_no_file_is_not_used),
                cmocka_unit_test(mps_is_seen_by_its_socket_or_its_process),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
