/* SPDX-License-Identifier: Apache-2.0 */
/* Whole data sets: files on disk, synthetic ones, and Fashion-MNIST where the system has it. */
#include "tests/lib/test.h"
#include "common/data/dataset.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static char dir[] = "/tmp/mfl-test-data-XXXXXX";

static void put(const char *name, const void *bytes, size_t n)
{
        char path[128];
        snprintf(path, sizeof path, "%s/%s", dir, name);
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(bytes, 1, n, f), n);
        fclose(f);
}

static const uint8_t images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 255, 51, 102};
static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 4, 0};

static void put_good(void)
{
        put("train-images-idx3-ubyte", images, sizeof images);
        put("train-labels.idx1-ubyte", labels, sizeof labels); /* the other spelling */
        put("t10k-images-idx3-ubyte", images, sizeof images);
        put("t10k-labels-idx1-ubyte", labels, sizeof labels);
}

static void idx_folder_is_loaded_and_scaled(void **state)
{
        struct mfl_dataset_config config = {.name = "tiny", .format = MFL_FORMAT_IDX, .dir = dir};
        struct mfl_dataset *d;
        put_good();
        assert_int_equal(mfl_dataset_load(&config, &d, NULL), 0);
        assert_int_equal(d->train.n, 2);
        assert_int_equal(d->classes, 5);
        assert_true(d->scale[0] == 1.0f / 255.0f && d->shift[0] == 0.0f);
        assert_memory_equal(d->train.samples, images + 16, 4);
        mfl_dataset_free(d);

        config.has_mean = true;
        config.mean[0] = 0.5f;
        config.std[0] = 0.25f;
        config.classes = 7;
        config.shape = (struct mfl_shape){1, {2}};
        assert_int_equal(mfl_dataset_load(&config, &d, NULL), 0);
        assert_int_equal(d->classes, 7);
        assert_int_equal(d->shape.rank, 1);
        assert_true(d->scale[0] == (float)(4.0 / 255.0) && d->shift[0] == -2.0f);
        mfl_dataset_free(d);
}

static void expect(const struct mfl_dataset_config *config, const char *text)
{
        struct mfl_dataset *d;
        struct mfl_error err = {""};
        assert_int_equal(mfl_dataset_load(config, &d, &err), MFL_INVALID);
        if (!strstr(err.text, text))
                print_message("%s\n", err.text);
        assert_non_null(strstr(err.text, text));
}

static void wrong_folders_are_told_what_is_wrong(void **state)
{
        struct mfl_dataset_config config = {
                .name = "tiny", .format = MFL_FORMAT_IDX, .dir = dir, .classes = 4};
        static const uint8_t three[] = {0, 0, 8, 1, 0, 0, 0, 3, 0, 1, 2};
        char path[128];
        put_good();
        expect(&config, "data set tiny: label 4 of training sample 0, but there are 4 classes: 0 to 3");
        config.classes = 0;
        config.has_mean = true;
        expect(&config, "data set tiny: mean 0 and std 0 of channel 0; std must be above 0");
        config.has_mean = false;
        put("t10k-labels-idx1-ubyte", three, sizeof three);
        expect(&config, "t10k-labels-idx1-ubyte: 3 labels, but ");
        snprintf(path, sizeof path, "%s/t10k-labels-idx1-ubyte", dir);
        assert_int_equal(unlink(path), 0);
        expect(&config,
                ": contains neither t10k-labels-idx1-ubyte nor t10k-labels.idx1-ubyte, nor these with .gz");
        assert_int_equal(mkfifo(path, 0600), 0);
        expect(&config, "t10k-labels-idx1-ubyte: not a regular file");
        assert_int_equal(unlink(path), 0);
        put_good();
        static const uint8_t wide[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 1, 0, 255, 51, 102};
        put("t10k-images-idx3-ubyte", wide, sizeof wide);
        expect(&config, "data set tiny: training samples are 1x1x2 of u8, test samples 1x2x1 of u8");
        struct mfl_dataset_config cifar = {.name = "c", .format = MFL_FORMAT_CIFAR10, .dir = dir};
        expect(&cifar, "data_batch_1.bin: No such file or directory");
}

static char *put_npy(const char *name, const char *header, const void *data, size_t n)
{
        uint8_t b[256] = "\x93NUMPY\x01";
        size_t len = strlen(header);
        b[8] = (uint8_t)(len + 1);
        memcpy(b + 10, header, len);
        b[10 + len] = '\n';
        memcpy(b + 11 + len, data, n);
        put(name, b, 11 + len + n);
        char *path = mfl_asprintf("%s/%s", dir, name);
        assert_non_null(path);
        return path;
}

/* One label for each token: the next one, say. One-hot rows beside floats are still no labels. */
static void labels_of_tokens_are_loaded(void **state)
{
        static const int32_t x[6] = {1, 2, 3, 4, 5, 6}, y[6] = {2, 3, 4, 5, 6, 0};
        static const float f[6] = {1, 2, 3, 4, 5, 6};
        static const char shape[] = "{'descr': '<%s', 'fortran_order': False, 'shape': (2, 3), }";
        char whole[96], floats[96];
        struct mfl_dataset_config config = {.name = "n", .format = MFL_FORMAT_NPY};
        struct mfl_dataset *d;
        struct mfl_error err;
        snprintf(whole, sizeof whole, shape, "i4");
        snprintf(floats, sizeof floats, shape, "f4");
        config.train_x = put_npy("tx", whole, x, sizeof x);
        config.train_y = put_npy("ty", whole, y, sizeof y);
        config.test_x = put_npy("vx", whole, x, sizeof x);
        config.test_y = put_npy("vy", whole, y, sizeof y);
        if (mfl_dataset_load(&config, &d, &err))
                fail_msg("%s", err.text);
        assert_true(d->classes == 7 && d->labels_per_sample == 3 && d->train.n == 2);
        assert_memory_equal(d->train.labels, y, sizeof y);
        mfl_dataset_free(d);
        free(config.train_x);
        config.train_x = put_npy("tx", floats, f, sizeof f);
        expect(&config, "ty: labels of 2 dimensions; labels have 1");
        char *paths[] = {config.train_x, config.train_y, config.test_x, config.test_y};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(paths); i++) {
                unlink(paths[i]);
                free(paths[i]);
        }
}

/* One label for each pixel of images of 2 x 2; 255 says that there is none. */
static void labels_of_pixels_are_loaded(void **state)
{
        static const uint8_t x[8] = {0, 1, 2, 3, 4, 5, 6, 7}, y[8] = {0, 1, 255, 2, 2, 2, 1, 0};
        struct mfl_dataset_config config = {
                .name = "n", .format = MFL_FORMAT_NPY, .has_ignore_index = true, .ignore_index = 255};
        config.train_x =
                put_npy("tx", "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 2, 2), }", x, 8);
        config.train_y =
                put_npy("ty", "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 2, 2), }", y, 8);
        config.test_x = put_npy("vx", "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 2, 2), }", x, 4);
        config.test_y =
                put_npy("vy", "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1, 2, 2), }", y, 4);
        struct mfl_dataset *d;
        struct mfl_error err;
        if (mfl_dataset_load(&config, &d, &err))
                fail_msg("%s", err.text);
        static const int32_t want[8] = {0, 1, -1, 2, 2, 2, 1, 0};
        assert_true(d->classes == 3 && d->labels_per_sample == 4 && d->train.n == 2 && d->test.n == 1);
        assert_memory_equal(d->train.labels, want, sizeof want);
        assert_memory_equal(d->test.labels, want, 16);
        mfl_dataset_free(d);
        config.classes = 3;
        config.has_ignore_index = false;
        expect(&config, "data set n: label 255 of training sample 0, but there are 3 classes: 0 to 2");
        free(config.test_y);
        config.test_y = put_npy("vy", "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }", y, 1);
        expect(&config, "data set n: training samples have 4 labels, test samples 1");
        free(config.train_y);
        config.train_y =
                put_npy("ty", "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 1, 4), }", y, 8);
        expect(&config, "labels of 3 dimensions, the samples are 1x2x2; labels are (n), or (n, height, "
                        "width) with one for "
                        "each pixel of images (n, channels, height, width)");
        char *paths[] = {config.train_x, config.train_y, config.test_x, config.test_y};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(paths); i++) {
                unlink(paths[i]);
                free(paths[i]);
        }
}

static void npy_files_are_loaded(void **state)
{
        static const float x[8] = {0.5f, 1, 2, 3, -4, 5, 6, 7};
        static const int64_t y[2] = {1, 0};
        struct mfl_dataset_config config = {.name = "n",
                .format = MFL_FORMAT_NPY,
                .shape = {3, {2, 1, 2}},
                .has_mean = true,
                .mean = {1, 2},
                .std = {2, 4}};
        struct mfl_dataset *d;
        config.train_x =
                put_npy("tx", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }", x, sizeof x);
        config.train_y =
                put_npy("ty", "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }", y, sizeof y);
        config.test_x =
                put_npy("vx", "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4), }", x + 4, 16);
        config.test_y = put_npy("vy", "{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }", y, 8);
        assert_int_equal(mfl_dataset_load(&config, &d, NULL), 0);
        assert_true(d->train.n == 2 && d->test.n == 1 && d->classes == 2 && d->train.dtype == MFL_F32);
        assert_memory_equal(d->train.samples, x, sizeof x);
        assert_memory_equal(d->test.samples, x + 4, 16);
        assert_true(
                d->scale[0] == 0.5f && d->scale[1] == 0.25f && d->shift[0] == -0.5f && d->shift[1] == -0.5f);
        mfl_dataset_free(d);
        char *train_y = config.train_y;
        config.train_y = NULL;
        expect(&config, "data set n: npy needs train_x, train_y, test_x and test_y");
        config.train_y = config.train_x;
        expect(&config,
                "data set n: training samples have 4 float targets, test samples 0 (0: class labels)");
        config.train_y = train_y;
        unlink(config.train_x);
        unlink(config.train_y);
        unlink(config.test_x);
        unlink(config.test_y);
        mfl_dataset_config_deinit(&config);
        mfl_dataset_config_deinit(&config); /* idempotent */
}

static void cifar_batches_are_loaded_in_order(void **state)
{
        static uint8_t record[3073];
        struct mfl_dataset_config config = {.name = "c", .format = MFL_FORMAT_CIFAR10, .dir = dir};
        struct mfl_dataset *d;
        char name[32], path[128];
        for (int i = 1; i <= 6; i++) {
                record[0] = (uint8_t)i;
                record[3072] = (uint8_t)(10 * i);
                snprintf(name, sizeof name, "%s_batch%.*s.bin", i < 6 ? "data" : "test", i < 6 ? 2 : 0,
                        &"_1_2_3_4_5_"[2 * i - 2]);
                put(name, record, sizeof record);
        }
        assert_int_equal(mfl_dataset_load(&config, &d, NULL), 0);
        assert_true(d->train.n == 5 && d->test.n == 1 && d->classes == 10 && d->test.labels[0] == 6);
        assert_true(mfl_shape_equal(&d->shape, &(struct mfl_shape){3, {3, 32, 32}}));
        for (int i = 0; i < 5; i++) {
                assert_int_equal(d->train.labels[i], i + 1);
                assert_int_equal(((uint8_t *)d->train.samples)[i * 3072 + 3071], 10 * (i + 1));
        }
        assert_true(d->scale[2] == 1.0f / 255.0f);
        mfl_dataset_free(d);
        for (int i = 1; i <= 6; i++) {
                snprintf(name, sizeof name, "%s_batch%.*s.bin", i < 6 ? "data" : "test", i < 6 ? 2 : 0,
                        &"_1_2_3_4_5_"[2 * i - 2]);
                snprintf(path, sizeof path, "%s/%s", dir, name);
                assert_int_equal(unlink(path), 0);
        }
}

static void every_failed_allocation_is_reported(void **state)
{
        struct mfl_dataset_config configs[] = {
                {.name = "tiny", .format = MFL_FORMAT_IDX, .dir = dir},
                {.name = "made",
                        .format = MFL_FORMAT_SYNTHETIC,
                        .shape = {1, {4}},
                        .n_train = 5,
                        .n_test = 5},
        };
        put_good();
        char path[128]; /* one file gzipped, so that zlib's allocations are swept too */
        snprintf(path, sizeof path, "%s/train-images-idx3-ubyte", dir);
        gzFile z = gzopen(path, "wb");
        assert_int_equal(gzwrite(z, images, sizeof images), sizeof images);
        gzclose(z);
        for (size_t c = 0; c < MFL_ARRAY_SIZE(configs); c++) {
                for (long i = 0;; i++) {
                        struct mfl_dataset *d = NULL;
                        mfl_alloc_fail_at(i);
                        int r = mfl_dataset_load(&configs[c], &d, NULL);
                        bool struck = mfl_alloc_failed();
                        mfl_alloc_fail_at(-1);
                        assert_int_equal(r, struck ? -ENOMEM : 0);
                        mfl_dataset_free(d);
                        if (!struck) {
                                assert_true(i > 3);
                                break;
                        }
                }
        }
}

static uint64_t fnv(const void *bytes, size_t n)
{
        uint64_t h = 0xcbf29ce484222325u;
        for (size_t i = 0; i < n; i++)
                h = (h ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
        return h;
}

static void synthetic_is_a_function_of_the_seed_and_learnable(void **state)
{
        struct mfl_dataset_config config = {.name = "made",
                .format = MFL_FORMAT_SYNTHETIC,
                .shape = {3, {1, 8, 8}},
                .classes = 4,
                .n_train = 400,
                .n_test = 101,
                .seed = 1};
        struct mfl_dataset *a, *b;
        assert_int_equal(mfl_dataset_load(&config, &a, NULL), 0);
        assert_int_equal(mfl_dataset_load(&config, &b, NULL), 0);
        assert_memory_equal(a->train.samples, b->train.samples, 400 * 64);
        mfl_dataset_free(b);
        config.seed = 2;
        assert_int_equal(mfl_dataset_load(&config, &b, NULL), 0);
        assert_memory_not_equal(a->train.samples, b->train.samples, 400 * 64);
        mfl_dataset_free(b);
        /* The first bytes of a seed never change: job results depend on them. */
        uint64_t golden = fnv(a->train.samples, 400 * 64);
        assert_true(golden == 0xa5262fd481321f62u);

        /* A classifier by the nearest class mean, learnt on the training split, must beat chance (1/4) by
         * far. */
        double mean[4][64] = {{0}};
        int n[4] = {0}, right = 0;
        const uint8_t *x = a->train.samples;
        for (int i = 0; i < 400; i++, x += 64) {
                n[a->train.labels[i]]++;
                for (int e = 0; e < 64; e++)
                        mean[a->train.labels[i]][e] += x[e];
        }
        x = a->test.samples;
        for (int i = 0; i < 101; i++, x += 64) {
                double best = 1e300;
                int at = 0;
                for (int c = 0; c < 4; c++) {
                        double d = 0;
                        for (int e = 0; e < 64; e++)
                                d += (x[e] - mean[c][e] / n[c]) * (x[e] - mean[c][e] / n[c]);
                        if (d < best) {
                                best = d;
                                at = c;
                        }
                }
                right += at == a->test.labels[i];
        }
        for (int c = 0; c < 4; c++)
                assert_int_equal(n[c], 100);
        assert_true(right > 80);
        mfl_dataset_free(a);
}

static void fashion_mnist_is_what_was_published(void **state)
{
        static char fashion[] = "/usr/share/datasets/fashion-mnist";
        struct mfl_dataset_config config = {
                .name = "fashion-mnist", .format = MFL_FORMAT_IDX, .dir = fashion};
        struct mfl_dataset *d;
        struct mfl_error err;
        if (access(fashion, R_OK) != 0)
                skip_for("%s is not there; on Debian: apt-get install dataset-fashion-mnist", fashion);
        int r = mfl_dataset_load(&config, &d, &err);
        if (r)
                print_message("%s\n", err.text);
        assert_int_equal(r, 0);
        assert_int_equal(d->train.n, 60000);
        assert_int_equal(d->test.n, 10000);
        assert_int_equal(d->classes, 10);
        assert_true(mfl_shape_equal(&d->shape, &(struct mfl_shape){3, {1, 28, 28}}));
        uint32_t per_class[10] = {0};
        for (int i = 0; i < 60000; i++)
                per_class[d->train.labels[i]]++;
        for (int c = 0; c < 10; c++)
                assert_int_equal(per_class[c], 6000);
        /* crc32 of the labels as bytes, computed from the files without this reader (Python's gzip and zlib).
         */
        uint8_t *bytes = malloc(60000);
        for (int i = 0; i < 60000; i++)
                bytes[i] = (uint8_t)d->train.labels[i];
        assert_int_equal(crc32(0, bytes, 60000), 0x2ed6e46a);
        for (int i = 0; i < 10000; i++)
                bytes[i] = (uint8_t)d->test.labels[i];
        assert_int_equal(crc32(0, bytes, 10000), 0x242bc73f);
        free(bytes);
        mfl_dataset_free(d);
}

static int make_dir(void **state)
{
        return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
        static const char *const names[] = {"train-images-idx3-ubyte", "train-labels.idx1-ubyte",
                "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(names); i++) {
                char path[128];
                snprintf(path, sizeof path, "%s/%s", dir, names[i]);
                unlink(path);
        }
        return rmdir(dir);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(idx_folder_is_loaded_and_scaled),
                cmocka_unit_test(wrong_folders_are_told_what_is_wrong),
                cmocka_unit_test(npy_files_are_loaded),
                cmocka_unit_test(labels_of_tokens_are_loaded),
                cmocka_unit_test(labels_of_pixels_are_loaded),
                cmocka_unit_test(cifar_batches_are_loaded_in_order),
                cmocka_unit_test(every_failed_allocation_is_reported),
                cmocka_unit_test(synthetic_is_a_function_of_the_seed_and_learnable),
                cmocka_unit_test(fashion_mnist_is_what_was_published),
        };
        return cmocka_run_group_tests_name("data sets", tests, make_dir, remove_dir);
}
