/* SPDX-License-Identifier: Apache-2.0 */
/* Windows over time series, texts with labels, and token numbers: values as they lie in the files, messages for what is
 * wrong. */
#include "tests/lib/test.h"
#include "common/data/config.h"
#include "common/data/sources.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/mfl-series-XXXXXX";

static int set_up(void **state)
{
        return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
        char command[64];
        snprintf(command, sizeof command, "rm -r %s", dir);
        return system(command);
}

static void put(const char *name, const char *text)
{
        char path[128];
        snprintf(path, sizeof path, "%s/%s", dir, name);
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        fwrite(text, 1, strlen(text), f);
        fclose(f);
}

/* FORMAT:REST of --data, with %1$s for the folder. */
static int try_load(
        const char *format, const char *rest, struct mfl_dataset **ret_dataset, struct mfl_error *err)
{
        char text[1024];
        struct mfl_dataset_config config;
        snprintf(text, sizeof text, rest, dir);
        int r = mfl_dataset_config_parse("d", format, text, &config, err);
        if (r)
                return r;
        r = mfl_dataset_load(&config, ret_dataset, err);
        mfl_dataset_config_deinit(&config);
        return r;
}

static struct mfl_dataset *load(const char *format, const char *rest)
{
        struct mfl_dataset *set;
        struct mfl_error err;
        int r = try_load(format, rest, &set, &err);
        if (r)
                print_message("%s\n", err.text);
        assert_int_equal(r, 0);
        return set;
}

static void refuse(const char *format, const char *rest, const char *text)
{
        struct mfl_dataset *set;
        struct mfl_error err;
        assert_int_equal(try_load(format, rest, &set, &err), MFL_INVALID);
        if (!strstr(err.text, text))
                print_message("%s\n", err.text);
        assert_non_null(strstr(err.text, text));
}

static void check_floats(const struct mfl_split *split, const float *expected, size_t n)
{
        for (size_t i = 0; i < n; i++)
                assert_float_equal(((const float *)split->samples)[i], expected[i], 0);
}

/* Two meters whose rows are mixed and out of order; x counts 10 h + t. */
#define ROWS                                                                                                 \
        "t,m,x,y,state\n2,a,12,1,on\n0,b,20,5,off\n1,a,11,1,off\n0,a,10,1,off\n3,a,13,2,on\n1,b,21,5,off\n"  \
        "2,b,22,5,on\n4,a,14,2,on\n3,b,23,6,on\n5,a,15,2,off\n4,b,24,6,off\n5,b,25,6,off\n"

static void windows_stay_in_a_series_and_a_split(void **state)
{
        static const float train[] = {10, 11, 11, 12, 12, 13, 20, 21, 21, 22, 22, 23},
                           test[] = {14, 15, 24, 25};
        static const int32_t labels[] = {0, 1, 1, 0, 1, 1};
        put("rows.csv", ROWS);
        struct mfl_dataset *set = load("csv",
                "%s/rows.csv,window=2,stride=1,group=m,time=t,features=[x],label=state,test_fraction=0.33");
        assert_true(set->shape.rank == 2 && set->shape.dim[0] == 2 && set->shape.dim[1] == 1);
        assert_int_equal(set->train.n, 6);
        assert_int_equal(set->test.n, 2);
        check_floats(&set->train, train, 12);
        check_floats(&set->test, test, 4);
        assert_memory_equal(set->train.labels, labels, sizeof labels);
        assert_memory_equal(set->train.owner, ((uint32_t[]){0, 0, 0, 1, 1, 1}), 24);
        assert_true(set->n_owners == 2 && !strcmp(set->owner_names[1], "b") && set->classes == 2);
        mfl_dataset_free(set);
}

/* No row of a training window or its answer is in a test window or answer, whatever the settings. */
static void no_leakage(void **state)
{
        static const char *const settings[] = {"window=2,stride=1,horizon=1", "window=1,stride=1,horizon=2",
                "window=2,stride=1,horizon=1,split=group", "window=3,stride=2,horizon=0,split=time"};
        for (size_t k = 0; k < MFL_ARRAY_SIZE(settings); k++) {
                char rest[256];
                snprintf(rest, sizeof rest,
                        "%%s/rows.csv,%s,group=m,time=t,features=[x],targets=[x],test_fraction=0.5",
                        settings[k]);
                if (k == 3)
                        snprintf(rest, sizeof rest,
                                "%%s/rows.csv,%s,group=m,time=t,features=[x],targets=[y],test_fraction=0.5",
                                settings[k]);
                struct mfl_dataset *set = load("csv", rest);
                size_t each = (size_t)mfl_shape_count(&set->shape);
                assert_true(set->train.n && set->test.n && set->n_targets == 1 && !set->train.labels);
                for (size_t i = 0; i < set->train.n * each; i++)
                        for (size_t j = 0; j < set->test.n * each; j++)
                                assert_true(
                                        ((float *)set->train.samples)[i] != ((float *)set->test.samples)[j]);
                for (size_t i = 0; k < 3 && i < set->train.n; i++)
                        for (size_t j = 0; j < set->test.n * each; j++)
                                assert_true(set->train.targets[i] != ((float *)set->test.samples)[j]);
                mfl_dataset_free(set);
        }
}

static void targets_are_later_values(void **state)
{
        static const float train[] = {10, 1, 11, 1, 11, 1, 12, 1}, next[] = {12, 13};
        put("one.csv", "x,y\n10,1\n11,1\n12,1\n13,2\n14,2\n15,2\n16,3\n17,3\n");
        struct mfl_dataset *set = load("csv", "%s/one.csv,window=2,stride=1,targets=[x],test_fraction=0.5");
        assert_int_equal(set->train.n, 2);
        check_floats(&set->train, train, 8);
        assert_memory_equal(set->train.targets, next, sizeof next);
        assert_true(!set->train.owner && set->feature_names && !strcmp(set->feature_names[1], "y"));
        mfl_dataset_free(set);
        set = load("csv", "%s/"
                          "one.csv,window=3,features=[x],label=y,label_at=majority,test_fraction=0.4,"
                          "normalise=columns");
        assert_true(set->train.n == 1 && set->train.labels[0] == 1 && set->test.labels[0] == 3);
        assert_float_equal(((float *)set->train.samples)[1], 0, 0);
        mfl_dataset_free(set);
}

static void series_mistakes_name_the_remedy(void **state)
{
        refuse("csv", "%s/rows.csv,window=7,group=m,time=t,features=[x],label=state,test_fraction=0.3",
                "the longest training series has 4 rows, but a window and its answer need 7; set a smaller "
                "window");
        refuse("csv", "%s/rows.csv,window=2,time=t,features=[x],label=state,test_fraction=0.3",
                "time '0' appears twice; if the rows are of several series, set group");
        refuse("csv", "%s/rows.csv,window=2,group=who,test_fraction=0.3", "no column 'who'");
        refuse("csv", "%s/rows.csv,window=2,features=[x],label=kind,test_fraction=0.3", "no column 'kind'");
        refuse("csv", "%s/rows.csv,window=2,features=[x, x],label=state,test_fraction=0.3",
                "column 'x' is configured for two purposes");
        refuse("csv", "%s/rows.csv,group=m,test_fraction=0.3", "group: is only used with window");
        refuse("csv", "%s/rows.csv,stride=2,test_fraction=0.3", "stride: is only used with window");
        refuse("csv", "%s/rows.csv,window=2,split=group,test_fraction=0.3,features=[x]",
                "group needs the column that tells the series apart");
        refuse("csv", "%s/one.csv,window=2,targets=[x],horizon=0,test_fraction=0.5",
                "0 makes target 'x' one of its own features");
        refuse("csv", "%s/rows.csv,window=2,group=m,time=state,features=[x],targets=[y],test_fraction=0.3",
                "times must be numbers, or all have the form of");
        refuse("csv",
                "%s/rows.csv,window=2,group=m,owner=state,time=t,features=[x],targets=[y],test_fraction=0.3",
                "have two owners, 'off' and 'on'");
        refuse("npz", "%s/x.npz,window=2", "window: is not used by format npz");
        put("dates.csv", "d,x,y\n2024-01-10 10:00,3,0\n2024-01-09 09:00,2,1\n2024-01-10 9:30,1,1\n");
        refuse("csv", "%s/dates.csv,window=1,time=d,test_fraction=0.4",
                "got '2024-01-10 10:00' and '2024-01-10 9:30'");
        put("dates.csv", "d,x,y\n2024-01-10 10:00,3,0\n2024-01-09 09:00,2,1\n2024-01-10 09:30,1,1\n");
        struct mfl_dataset *set = load("csv", "%s/dates.csv,window=1,time=d,test_fraction=0.4");
        check_floats(&set->train, ((float[]){2, 1}), 2);
        mfl_dataset_free(set);
        put("short.csv", "m,x,y\na,1,0\na,2,1\na,3,0\na,4,1\nb,5,1\n");
        set = load("csv", "%s/short.csv,window=2,group=m,test_fraction=0.5");
        assert_non_null(strstr(set->note, "1 of 2 series are shorter than a window of 2 rows"));
        mfl_dataset_free(set);
}

/* ---- texts ---- */

#define TEXTS                                                                                                \
        "id,body,stars\n1,\"Good, GOOD film!\",up\n2,bad film,down\n3,\"good "                               \
        "\xc3\xa9t\xc3\xa9\",up\n4,bad,down\n"

static void words_are_numbered_by_frequency(void **state)
{
        /* Training: good 3, bad 2, film 2, ete 1. */
        static const int32_t train[] = {2, 2, 4, 3, 4, 0, 2, 5, 0, 3, 0, 0}, test[] = {1, 2, 0};
        char folder[64];
        snprintf(folder, sizeof folder, "%s/words", dir);
        assert_int_equal(mkdir(folder, 0700), 0);
        put("words/train.csv", TEXTS);
        put("words/test.csv", "id,body,stars\n9,new good,up\n");
        struct mfl_dataset *set = load("csv", "%s/words,text=body,label=stars,length=3");
        assert_true(set->vocabulary == 6 && set->classes == 2 && set->labels_per_sample == 1);
        assert_true(set->shape.rank == 1 && set->shape.dim[0] == 3 && set->train.dtype == MFL_I32);
        assert_memory_equal(set->train.samples, train, sizeof train);
        assert_memory_equal(set->test.samples, test, sizeof test);
        assert_string_equal(set->words[0], "good");
        assert_string_equal(set->words[1], "bad");
        mfl_dataset_free(set);
        set = load("csv", "%s/words,text=body,label=stars,length=3,vocabulary_size=4");
        assert_true(set->vocabulary == 4 && ((int32_t *)set->train.samples)[2] == MFL_TOKEN_UNKNOWN);
        mfl_dataset_free(set);
        set = load("csv", "%s/words,text=body,label=stars,length=4,unit=bytes");
        assert_memory_equal(set->train.samples, ((int32_t[]){'G' + 1, 'o' + 1, 'o' + 1, 'd' + 1}), 16);
        assert_true(set->vocabulary == 257 && !set->words);
        mfl_dataset_free(set);
        set = load("csv", "%s/words,text=body,label=stars,length=20,unit=characters");
        const int32_t *third =
                (int32_t *)set->train.samples + 40; /* "good été": the accents are one character */
        assert_true(third[5] == third[7] && third[5] > MFL_TOKEN_UNKNOWN && third[8] == MFL_TOKEN_PADDING);
        mfl_dataset_free(set);
}

static uint64_t meaning_of(const char *rest)
{
        uint64_t meaning;
        struct mfl_error err;
        struct mfl_dataset *set = load("csv", rest);
        assert_int_equal(mfl_dataset_meaning(set, &meaning, &err), 0);
        mfl_dataset_free(set);
        return meaning;
}

static void a_vocabulary_is_part_of_the_meaning(void **state)
{
        put("a.txt", "good\nbad\r\nfilm");
        put("b.txt", "bad\ngood\nfilm\n");
        uint64_t own = meaning_of("%s/words,text=body,label=stars");
        uint64_t a = meaning_of("%1$s/words,text=body,label=stars,vocabulary=%1$s/a.txt");
        uint64_t b = meaning_of("%1$s/words,text=body,label=stars,vocabulary=%1$s/b.txt");
        put("words/train.csv", "id,body,stars\n1,bad film,down\n2,good,up\n");
        uint64_t a2 = meaning_of("%1$s/words,text=body,label=stars,vocabulary=%1$s/a.txt");
        uint64_t own2 = meaning_of("%s/words,text=body,label=stars");
        assert_true(a == a2 && a != b && own != own2 && own && a && !mfl_meaning_agrees(own, own2));
}

static void text_mistakes_name_the_place(void **state)
{
        put("texts.csv", TEXTS);
        put("twice.txt", "good\nbad\ngood\n");
        put("none.txt", "xyz\n");
        put("gap.txt", "good\n\nbad\n");
        refuse("csv", "%1$s/texts.csv,text=body,label=stars,test_fraction=0.25,vocabulary=%1$s/twice.txt",
                "twice.txt: a word appears twice in the vocabulary");
        refuse("csv", "%1$s/texts.csv,text=body,label=stars,test_fraction=0.25,vocabulary=%1$s/none.txt",
                "none of its words occurs in data set d");
        refuse("csv", "%1$s/texts.csv,text=body,label=stars,test_fraction=0.25,vocabulary=%1$s/gap.txt",
                "gap.txt:2: expected a word");
        refuse("csv", "%1$s/texts.csv,text=body,label=stars,test_fraction=0.25,vocabulary=%1$s/no.txt",
                "no.txt: No such");
        refuse("csv", "%s/texts.csv,text=words,label=stars,test_fraction=0.25", "no column 'words'");
        refuse("csv", "%s/texts.csv,text=body,window=3,label=stars,test_fraction=0.25",
                "text is given too: a sample is a text, or a window over rows");
        refuse("csv", "%s/texts.csv,length=3,label=stars,test_fraction=0.25",
                "length: is only used with text");
        refuse("csv", "%s/texts.csv,text=body,label=stars,unit=bytes,vocabulary=a,test_fraction=0.25",
                "bytes have a vocabulary of their own; remove vocabulary");
        refuse("text", "%s/a.txt,unit=words,test_fraction=0.5", "words are only for format csv with text");
        put("texts.csv", "body,stars\n...,up\ngood,down\n");
        refuse("csv", "%s/texts.csv,text=body,test_fraction=0.5",
                "the text of row 0 has no word in it: '...'");
        put("texts.csv", "body,stars\n\"\xff\",up\ngood,down\n");
        refuse("csv", "%s/texts.csv,text=body,test_fraction=0.5",
                "row 0: body: byte 0xff at offset 0 is not UTF-8");
}

/* ---- numbers ---- */

static void put_npy(const char *name, const char *descr, const char *shape, const void *data, size_t bytes)
{
        char path[128], header[128];
        snprintf(path, sizeof path, "%s/%s", dir, name);
        int n = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                descr, shape);
        for (; (10 + n + 1) % 64; n++)
                header[n] = ' ';
        header[n++] = '\n';
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        fwrite("\x93NUMPY\x01\x00", 1, 8, f);
        fputc(n & 255, f);
        fputc(n >> 8, f);
        fwrite(header, 1, (size_t)n, f);
        fwrite(data, 1, bytes, f);
        fclose(f);
}

#define NPY "%1$s,train_x=x.npy,train_y=y.npy,test_x=x.npy,test_y=y.npy"

static void whole_numbers_become_tokens(void **state)
{
        static const int64_t x[] = {1, 5, 0, 2, 2, 0}, y[] = {0, 1}, wrong[] = {1, -1, 0, 2, 2, 0};
        static const uint8_t small[] = {1, 5, 0, 2, 2, 0};
        put_npy("x.npy", "<i8", "2, 3", x, sizeof x);
        put_npy("y.npy", "<i8", "2,", y, sizeof y);
        struct mfl_dataset *set = load("npy", NPY ",vocabulary=8");
        assert_true(set->vocabulary == 8 && set->classes == 2 && set->train.dtype == MFL_I32);
        assert_memory_equal(set->train.samples, ((int32_t[]){1, 5, 0, 2, 2, 0}), 24);
        mfl_dataset_free(set);
        refuse("npy", NPY ",vocabulary=5",
                "token 5 in training sample 0 is outside the vocabulary of 5: 0 to 4");
        refuse("npy", NPY ",vocabulary=words", "vocabulary 'words' is not the number of tokens");
        put_npy("x.npy", "|u1", "2, 3", small, sizeof small);
        set = load("npy", NPY ",vocabulary=auto");
        assert_true(set->vocabulary == 6);
        assert_memory_equal(set->test.samples, ((int32_t[]){1, 5, 0, 2, 2, 0}), 24);
        mfl_dataset_free(set);
        put_npy("x.npy", "<i8", "2, 3", wrong, sizeof wrong);
        refuse("npy", NPY ",vocabulary=auto", "-1 in training sample 0 is not a token");
        put_npy("x.npy", "<i8", "2, 3, 1", x, sizeof x);
        refuse("npy", NPY ",vocabulary=auto",
                "samples of tokens have one dimension, the positions, but these are 1x3x1");
        set = load("npy", NPY ",shape=[3, 1]"); /* a series of three positions with one feature */
        assert_true(set->shape.rank == 2 && set->shape.dim[0] == 3 && set->train.dtype == MFL_F32);
        mfl_dataset_free(set);
}

/* Numbers that 16 bits don't hold, of vocabularies such as Llama 3's. */
static void vocabularies_may_be_large(void **state)
{
        static const int64_t x[] = {1, 128255, 65536, 70000, 2, 65535}, y[] = {151935, 65536},
                             wrong[] = {1, 1048576, 0, 2, 2, 0};
        put_npy("x.npy", "<i8", "2, 3", x, sizeof x);
        put_npy("y.npy", "<i8", "2,", y, sizeof y);
        struct mfl_dataset *set = load("npy", NPY ",vocabulary=128256");
        assert_true(set->vocabulary == 128256 && set->classes == 151936 && set->train.dtype == MFL_I32);
        assert_memory_equal(set->train.samples, ((int32_t[]){1, 128255, 65536, 70000, 2, 65535}), 24);
        assert_memory_equal(set->train.labels, ((int32_t[]){151935, 65536}), 8);
        mfl_dataset_free(set);
        set = load("npy", NPY ",vocabulary=auto");
        assert_true(set->vocabulary == 128256);
        mfl_dataset_free(set);
        refuse("npy", NPY ",vocabulary=70000",
                "token 128255 in training sample 0 is outside the vocabulary of 70000: 0 to 69999");
        put_npy("x.npy", "<i8", "2, 3", wrong, sizeof wrong);
        refuse("npy", NPY ",vocabulary=auto",
                "1048576 in training sample 0 is not a token; tokens are whole numbers from 0 to 1048575");
}

static void nothing_leaks_without_memory(void **state)
{
        static const char *const rests[] = {
                "%s/rows.csv,window=2,group=m,time=t,features=[x],label=state,test_fraction=0.4",
                "%s/rows.csv,window=2,group=m,split=group,features=[x],targets=[x],test_fraction=0.4",
                "%s/words,text=body,label=stars", "%1$s/words,text=body,label=stars,vocabulary=%1$s/a.txt"};
        for (size_t k = 0; k < MFL_ARRAY_SIZE(rests); k++)
                for (long i = 0;; i++) {
                        struct mfl_dataset *set = NULL;
                        struct mfl_error err;
                        mfl_alloc_fail_at(i);
                        int r = try_load("csv", rests[k], &set, &err);
                        bool struck = mfl_alloc_failed();
                        mfl_alloc_fail_at(-1);
                        assert_true(struck == (r != 0));
                        if (!r)
                                mfl_dataset_free(set);
                        if (!struck)
                                break;
                }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(windows_stay_in_a_series_and_a_split),
                cmocka_unit_test(no_leakage),
                cmocka_unit_test(targets_are_later_values),
                cmocka_unit_test(series_mistakes_name_the_remedy),
                cmocka_unit_test(words_are_numbered_by_frequency),
                cmocka_unit_test(a_vocabulary_is_part_of_the_meaning),
                cmocka_unit_test(text_mistakes_name_the_place),
                cmocka_unit_test(whole_numbers_become_tokens),
                cmocka_unit_test(vocabularies_may_be_large),
                cmocka_unit_test(nothing_leaks_without_memory),
        };
        return cmocka_run_group_tests(tests, set_up, tear_down);
}
