/* SPDX-License-Identifier: Apache-2.0 */
/* CSV, npz, text and images as data sets: values as they lie in the files, messages for what is wrong. */
#include "tests/lib/test.h"
#include "common/data/config.h"
#include "common/data/sources.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/mfl-sources-XXXXXX";
static char files[512];

static int set_up(void **state)
{
        const char *root = getenv("MFL_SOURCE_ROOT");
        snprintf(files, sizeof files, "%s/tests/unit/data/files", root ? root : ".");
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

static void make_folder(const char *name)
{
        char path[128];
        snprintf(path, sizeof path, "%s/%s", dir, name);
        assert_int_equal(mkdir(path, 0700), 0);
}

/* FORMAT:REST of --data, with %s for the folder. */
static int try_load(
        const char *format, const char *rest, struct mfl_dataset **ret_dataset, struct mfl_error *err)
{
        char text[1024];
        struct mfl_dataset_config config;
        snprintf(text, sizeof text, rest, *rest == '!' ? files : dir);
        int r = mfl_dataset_config_parse("d", format, *rest == '!' ? text + 1 : text, &config, err);
        if (r)
                return r;
        r = mfl_dataset_load(&config, ret_dataset, err);
        mfl_dataset_config_deinit(&config);
        return r;
}

static struct mfl_dataset *load(const char *format, const char *rest)
{
        struct mfl_dataset *d = NULL;
        struct mfl_error err = {""};
        if (try_load(format, rest, &d, &err))
                fail_msg("%s", err.text);
        return d;
}

static void refuse(const char *format, const char *rest, const char *expected)
{
        struct mfl_dataset *d = NULL;
        struct mfl_error err = {""};
        assert_int_equal(try_load(format, rest, &d, &err), MFL_INVALID);
        if (!strstr(err.text, expected))
                fail_msg("'%s' lacks '%s'", err.text, expected);
}

static uint64_t meaning_of(const char *format, const char *rest)
{
        struct mfl_dataset *d = load(format, rest);
        uint64_t meaning = 0;
        struct mfl_error err = {""};
        if (mfl_dataset_meaning(d, &meaning, &err))
                fail_msg("%s", err.text);
        mfl_dataset_free(d);
        return meaning;
}

static void csv_columns_by_name_and_number(void **state)
{
        put("t.csv", "\xef\xbb\xbfheight,who,\"a "
                     "\"\"b\"\"\",kind\r\n1.5,ann,2,1\r\n\r\n-3e-1,bob,4,0\n7,\"ann\",1e2,2\n");
        struct mfl_dataset *d = load("csv", "%s/t.csv,owner=who,test_fraction=0.3,seed=1");
        assert_true(d->train.n == 2 && d->test.n == 1 && d->classes == 3 && d->n_owners == 2);
        assert_true(d->shape.rank == 1 && d->shape.dim[0] == 2 && d->train.dtype == MFL_F32);
        assert_string_equal(d->owner_names[1], "bob");
        static const float x[3][2] = {{1.5f, 2}, {-0.3f, 4}, {7, 100}};
        static const int32_t y[3] = {1, 0, 2};
        static const uint32_t who[3] = {0, 1, 0};
        uint32_t at[2] = {0};
        for (int i = 0; i < 3; i++) {
                const float *test = d->test.samples;
                struct mfl_split *s = !memcmp(test, x[i], sizeof x[i]) ? &d->test : &d->train;
                uint32_t k = at[s == &d->test]++;
                assert_memory_equal((float *)s->samples + 2 * k, x[i], sizeof x[i]);
                assert_true(s->labels[k] == y[i] && s->owner[k] == who[i]);
        }
        mfl_dataset_free(d);
        d = load("csv", "%s/t.csv,ignore=[who, kind],targets=['a \"b\"'],test_fraction=0.3");
        assert_true(d->n_targets == 1 && d->shape.dim[0] == 1 &&
                    d->train.targets[0] != ((float *)d->train.samples)[0]);
        mfl_dataset_free(d);
}

static void csv_targets_names_and_splits(void **state)
{
        make_folder("two");
        put("two/train.csv", "1;2;red\n3;4;blue\n5;6;red\n");
        put("two/test.csv", "7;8;blue\n");
        struct mfl_dataset *d = load("csv", "%s/two,header=no,separator=;");
        assert_true(d->train.n == 3 && d->test.n == 1 && d->classes == 2);
        assert_true(d->train.labels[0] == 1 && d->train.labels[1] == 0 && d->test.labels[0] == 0);
        assert_string_equal(d->class_names[1], "red");
        mfl_dataset_free(d);
        d = load("csv", "%s/two,header=no,separator=;,targets=[1],ignore=[2]");
        assert_true(d->n_targets == 1 && d->classes == 0 && !d->train.labels && d->shape.dim[0] == 1);
        assert_true(d->train.targets[1] == 4 && d->test.targets[0] == 8);
        mfl_dataset_free(d);
        d = load("csv", "%s/two,header=no,separator=;,normalise=auto");
        /* Columns 1, 3, 5 and 2, 4, 6: mean 3.5, deviation sqrt(35 / 12). */
        assert_float_equal(d->scale[0], 0.585540, 1e-6);
        assert_float_equal(d->shift[0], -2.049390, 1e-6);
        mfl_dataset_free(d);
        put("two/test.csv", "7;8;green\n");
        refuse("csv", "%s/two,header=no,separator=;", "test.csv: label 'green' of row 0 does not occur in");
        put("two/test.csv", "7;8;9;red\n");
        refuse("csv", "%s/two,header=no,separator=;", "test.csv: 3 features, but ");
        refuse("csv", "%s/two,header=no,separator=;,test_fraction=0.5",
                "test.csv: this test data exists, so");
}

static void check_rows(const struct mfl_dataset *d, const float *expected, uint32_t n, int64_t width)
{
        assert_true(d->train.n == n && d->shape.rank == 1 && d->shape.dim[0] == width);
        for (uint32_t i = 0; i < n * width; i++)
                if (((const float *)d->train.samples)[i] != expected[i])
                        fail_msg("value %u: %g, expected %g", i, (double)((float *)d->train.samples)[i],
                                (double)expected[i]);
}

/* By the configuration or by the header: the same numbers, and the same meaning. */
static void csv_categories_become_numbers(void **state)
{
        static const float expected[] = {0.5f, 0, 1, 0, 2, 1.5f, 1, 0, 0, 0, 2.5f, 0, 0, 1, 1};
        uint64_t a, b, c, d, e;
        make_folder("cat");
        put("cat/train.csv", "x,colour,grade,y\n0.5,green,high,0\n1.5, red ,low,1\n2.5,\"blue\",mid,0\n");
        put("cat/test.csv", "x,colour,grade,y\n1,red,low,1\n");
#define BOTH "%s/cat,categories={colour: [red, green, blue]},codes={grade: [low, mid, high]}"
        struct mfl_dataset *set = load("csv", BOTH);
        check_rows(set, expected, 3, 5);
        assert_memory_equal(set->categorical, ((uint8_t[]){0, 1, 1, 1, 1}), 5);
        assert_string_equal(set->feature_names[3], "colour");
        mfl_dataset_free(set);
        a = meaning_of("csv", BOTH);
        put("typed.csv", "x,colour:onehot(red|green|blue),grade:codes(low|mid|high),y\n0.5,green,high,0\n"
                         "1.5,red,low,1\n2.5,blue,mid,0\n1,red,low,1\n");
        b = meaning_of("csv", "%s/typed.csv,test_fraction=0.25");
        c = meaning_of(
                "csv", "%s/cat,categories={colour: [green, red, blue]},codes={grade: [low, mid, high]}");
        d = meaning_of("csv", "%s/cat,codes={grade: [low, mid, high]},ignore=[colour]");
        e = meaning_of("csv", "%s/cat,categories={2: [low, mid, high]},ignore=[colour]");
        assert_true(a == b && a != c && a != d && d != e && a >> 40 == MFL_MEANING_CATEGORIES);
        /* Who has no categories has other numbers, even when it tells nothing. */
        assert_true(mfl_meaning_agrees(a, b) && !mfl_meaning_agrees(a, c) && !mfl_meaning_agrees(a, 0));
        assert_true(!mfl_meaning_agrees(0, a) && !mfl_meaning_agrees(7, a));
        assert_true(mfl_meaning_agrees(0, 7) && mfl_meaning_agrees(7, 7) && !mfl_meaning_agrees(7, 8));
        set = load("csv", BOTH ",normalise=columns");
        const float *x = set->train.samples;
        assert_float_equal(x[0], -1.224745, 1e-6);
        assert_true(x[5] == 0 && x[2] == 1 && x[4] == 2 && !set->note[0]); /* categories stay as they are */
        mfl_dataset_free(set);
}

static void csv_categories_mistakes_name_the_place(void **state)
{
        refuse("csv", "%s/cat,categories={colour: [red, green]},codes={grade: [low, mid, high]}",
                "train.csv:4: column 1 (colour): expected one of red, green, got 'blue'; a category must be "
                "declared");
        refuse("csv", "%s/cat,categories={colour: [red]}", "categories.colour: at least two values");
        refuse("csv", "%s/cat,categories={colour: [red, red]}", "categories.colour[1]: 'red' appears twice");
        refuse("csv", "%s/cat,categories={colour: red}", "categories.colour: expected a list of all values");
        refuse("csv", "%s/cat,categories=[colour]", "categories: expected columns with their values");
        refuse("csv", "%s/cat,categories={hue: [a, b]}", "no column 'hue'");
        refuse("csv", "%s/cat,categories={y: [a, b]}", "column 3 (y) has categories, but is not a feature");
        refuse("csv", "%s/cat,categories={colour: [a, b]},codes={1: [a, b]}",
                "the categories of column 1 (colour) are declared twice");
        refuse("csv", "%s/typed.csv,test_fraction=0.25,categories={colour: [red, green, blue]}",
                "the categories of column 1 (colour) are declared twice");
        put("bad.csv", "x,colour:onehot,y\n1,red,0\n2,blue,1\n");
        refuse("csv", "%s/bad.csv,test_fraction=0.5",
                "bad.csv:1: column 'colour': list its values, such as colour:onehot(red|");
        put("bad.csv", "x,colour:onehot(red|red),y\n1,red,0\n2,red,1\n");
        refuse("csv", "%s/bad.csv,test_fraction=0.5",
                "bad.csv:1: column 'colour': onehot: 'red' appears twice");
        put("cat/test.csv", "x,colour:onehot(red|green),grade,y\n1,red,low,1\n");
        refuse("csv", "%s/cat,codes={grade: [low, mid, high]},ignore=[colour]",
                "column 1 (colour) has categories, but");
        put("two/train.csv", "x,c:onehot(a|b),y\n1,a,0\n2,b,1\n");
        put("two/test.csv", "x,c:onehot(b|a),y\n1,a,0\n");
        refuse("csv", "%s/two", "test.csv: declares different categories than ");
        refuse("npz", "!%s/whole.npz,categories={a: [b, c]}", "categories: is not used by format npz");
        refuse("csv", "%s/typed.csv,test_fraction=0.25,shape=[1, 1, 5]",
                "has columns with categories, which do not fit samples of shape");
}

static void csv_columns_of_other_scales_are_noted(void **state)
{
        put("scale.csv",
                "age,income,c:onehot(a|b),y\n30,50000,a,0\n40,90000,b,1\n50,20000,a,0\n20,10000,b,1\n");
        struct mfl_dataset *d = load("csv", "%s/scale.csv,test_fraction=0.25");
        assert_non_null(strstr(d->note, "data set d: income varies by "));
        assert_non_null(strstr(d->note, "and age by"));
        assert_non_null(strstr(d->note, "normalise: columns"));
        mfl_dataset_free(d);
        d = load("csv", "%s/scale.csv,test_fraction=0.25,normalise=columns");
        const float *x = d->train.samples;
        float sum[2] = {0}, squares[2] = {0};
        for (uint32_t i = 0; i < d->train.n; i++)
                for (int c = 0; c < 2; c++) {
                        sum[c] += x[4 * i + (uint32_t)c];
                        squares[c] += x[4 * i + (uint32_t)c] * x[4 * i + (uint32_t)c];
                }
        for (int c = 0; c < 2; c++) {
                assert_float_equal(sum[c], 0, 1e-5);
                assert_float_equal(squares[c], d->train.n, 1e-5);
        }
        assert_true(!d->note[0] && d->scale[0] == 1 && d->shift[0] == 0);
        mfl_dataset_free(d);
        d = load("csv", "%s/scale.csv,test_fraction=0.25,normalise=auto");
        assert_string_equal(d->note, "");
        mfl_dataset_free(d);
        put("flat.csv", "a,b,y\n1,2,0\n1,3,1\n1,4,0\n"); /* one that never changes */
        d = load("csv", "%s/flat.csv,test_fraction=0.4,normalise=columns");
        assert_true(((float *)d->train.samples)[0] == 0 && ((float *)d->train.samples)[2] == 0);
        mfl_dataset_free(d);
        refuse("npz", "!%s/whole.npz,normalise=columns",
                "normalise: columns is only for samples that are rows of numbers");
}

static void csv_mistakes_name_the_line(void **state)
{
        static const struct {
                const char *text, *message;
        } cases[] = {
                {"", "is empty"},
                {"a,b\n", "has a header but no rows"},
                {"a,b\n1,2\n1\n", ":3: fewer columns than the first row, which has 2"},
                {"a,b\n1,2,3\n", ":2: more columns than the first row, which has 2"},
                {"a,b\n1,0\nx,1\n",
                        ":3: column 0 (a): expected a finite decimal number, got 'x'; ignore skips a column"},
                {"a,b\n1,0\ninf,1\n", ":3: column 0 (a): expected a finite decimal number, got 'inf'"},
                {"a,b\n1,0\n,1\n",
                        ":3: column 0 (a): a value is missing, got ''; fill it in, remove the row"},
                {"a,b\n1,0\nNaN,1\n", ":3: column 0 (a): a value is missing, got 'NaN'"},
                {"1,0\n2,1\n", ":1: the first row has only numbers: set header: no if it is data"},
                {"a,b\n1,0\n2,0.5\n", "label '0.5' of row 1 is not a class: set label to"},
                {"a,b\n1,0\n2,0\n", "all labels are the same, and one class gives nothing to learn"},
                {"a,b\n1e99,1\n", ":2: column 0 (a): expected a finite decimal number, got '1e99'"},
                {"a,b\n0x10,1\n", ":2: column 0 (a): expected a finite decimal number, got '0x10'"},
                {"a,b\n1,\n", ":2: column 1 (b): empty"},
                {"a,b\n\"1,0\n", ":3: an opening quote without a closing one"},
                {"a,b\n\"1\"2,0\n", ":2: text after a closing quote"},
                {"a,b\n1,\"x\"\r25,\"y\"\r", ":2: a carriage return without a line feed after it"},
                {"a,b\r1,0\r2,1\r", ":1: a carriage return without a line feed after it"},
                {"a;b\n1;0\n", "1 column, none of which is a feature; is the separator ',' right?"},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                put("bad.csv", cases[i].text);
                refuse("csv", "%s/bad.csv,test_fraction=0.5", cases[i].message);
        }
        put("bad.csv", "a,b\n1,0\n2,1\n");
        refuse("csv", "%s/bad.csv", "there is no test data; provide it, or set test_fraction");
        refuse("csv", "%s/bad.csv,test_fraction=0.1",
                "test_fraction 0.1 of 2 samples leaves a split empty; each split needs at least one");
        refuse("csv", "%s/bad.csv,test_fraction=0.5,label=c",
                "no column 'c'; columns are 0 to 1, or their names");
        put("bad.csv", "a;b\n1;0\n2;1\n");
        refuse("csv", "%s/bad.csv,test_fraction=0.5,label=b",
                "columns are 0 to 0, or their names in the first "
                "line; is the separator right?");
        put("bad.csv", "a,b,a\n1,0,1\n2,1,0\n");
        refuse("csv", "%s/bad.csv,test_fraction=0.5,label=a",
                "2 columns have the name 'a'; give the column's number, from 0");
        put("bad.csv", "a,b\n1,0\n2,1\n");
        refuse("csv", "%s/bad.csv,test_fraction=0.5,label=a,owner=0",
                "column 'a' is configured for two purposes");
        refuse("csv", "%s/bad.csv,test_fraction=0.5,label=a,targets=[b]",
                "--data:1: label: targets is given too");
        refuse("csv", "%s/bad.csv,lable=a", "--data:1: lable: unknown key; did you mean 'label'?");
        refuse("csv", "%s/bad.csv,length=3", "--data:1: length: is only used with text");
        refuse("csv", "%s/nothing.csv,test_fraction=0.5", "nothing.csv: No such file or directory");
        refuse("csv", "%s/nowhere", "nowhere: No such file or directory");
}

static void a_test_fraction_depends_on_the_seed_alone(void **state)
{
        char text[4096] = "x,y\n";
        for (int i = 0; i < 200; i++)
                sprintf(text + strlen(text), "%d,%d\n", i, i % 7);
        put("many.csv", text);
        struct mfl_dataset *a = load("csv", "%s/many.csv,test_fraction=0.25,seed=5");
        struct mfl_dataset *b = load("csv", "%s/many.csv,test_fraction=0.25,seed=5");
        struct mfl_dataset *c = load("csv", "%s/many.csv,test_fraction=0.25,seed=6");
        assert_true(a->train.n == 150 && a->test.n == 50);
        assert_memory_equal(a->test.samples, b->test.samples, 50 * sizeof(float));
        assert_true(memcmp(a->test.samples, c->test.samples, 50 * sizeof(float)) != 0);
        bool seen[200] = {false};
        for (uint32_t i = 0; i < 200; i++) {
                struct mfl_split *s = i < 150 ? &a->train : &a->test;
                int v = (int)((float *)s->samples)[i < 150 ? i : i - 150];
                assert_false(seen[v]);
                seen[v] = true;
                assert_int_equal(s->labels[i < 150 ? i : i - 150], v % 7);
        }
        mfl_dataset_free(a);
        mfl_dataset_free(b);
        mfl_dataset_free(c);
}

/* Folders that other programs made, and none at all. */
static void wrong_folders(void **state)
{
        refuse("idx", "%s/nowhere", "nowhere: no such folder");
        make_folder("cifar");
        refuse("cifar10", "%s/cifar", "data_batch_1.bin: No such file or directory");
        put("cifar/data_batch_1", "\x80\x02");
        refuse("cifar10", "%s/cifar",
                "cifar/data_batch_1 is from the archive for Python; use the binary archive");
        put("cifar/train", "\x80\x02");
        refuse("cifar100", "%s/cifar", "cifar/train is from the archive for Python");
}

static bool can_read(const char *format, const char *rest, const char *absent)
{
        struct mfl_dataset *d = NULL;
        struct mfl_error err = {""};
        if (try_load(format, rest, &d, &err) == MFL_INVALID && strstr(err.text, absent))
                return false;
        mfl_dataset_free(d);
        return true;
}

static void npz_arrays(void **state)
{
        if (!can_read("npz", "!%s/whole.npz", "lacks libzip"))
                skip_for("built without libzip (Debian: libzip-dev)");
        struct mfl_dataset *d = load("npz", "!%s/whole.npz");
        assert_true(d->train.n == 8 && d->test.n == 2 && d->classes == 2 && d->train.dtype == MFL_U8);
        assert_true(d->shape.rank == 3 && d->shape.dim[0] == 1 && d->shape.dim[2] == 3);
        for (int i = 0; i < 18; i++)
                assert_int_equal(((uint8_t *)d->test.samples)[i], i % 7);
        assert_true(d->test.labels[0] == 1 && d->test.labels[1] == 0);
        mfl_dataset_free(d);
        d = load("npz", "!%s/split.npz,test_fraction=0.2");
        assert_true(d->train.n == 8 && d->test.n == 2 && d->n_targets == 1 && d->train.dtype == MFL_F32);
        for (uint32_t i = 0; i < 8; i++) { /* row k is 2 k, 2 k + 1, its target k / 9 */
                const float *x = (float *)d->train.samples + 2 * i;
                assert_true(x[1] == x[0] + 1);
                assert_float_equal(d->train.targets[i], x[0] / 18, 1e-6);
        }
        mfl_dataset_free(d);
        refuse("npz", "!%s/split.npz", "split.npz: there is no array 'x_train'; the arrays are x, y");
        refuse("npz", "!%s/whole.npz,train_y=x_train", "training samples have 9 labels, test samples 1");
        refuse("npz", "!%s/rgb.png", "rgb.png: not an npz file (a zip archive)");
        put("empty.npz", "");
        refuse("npz", "%s/empty.npz", "empty.npz: is empty");
}

/* Everything that one changed byte of an archive can do is a message, or changes values. */
static void damaged_npz_is_refused(void **state)
{
        char path[600];
        struct mfl_data_bytes whole;
        if (!can_read("npz", "!%s/whole.npz", "lacks libzip"))
                skip_for("built without libzip (Debian: libzip-dev)");
        snprintf(path, sizeof path, "%s/whole.npz", files);
        assert_int_equal(mfl_data_read_file(path, &whole, NULL), 0);
        uint8_t *copy = malloc(whole.n);
        int refused = 0;
        for (size_t i = 0; i < 2 * whole.n; i++) {
                struct mfl_npz *npz;
                struct mfl_data_bytes bytes;
                size_t n = i < whole.n ? whole.n : i - whole.n;
                memcpy(copy, whole.data, whole.n);
                if (i < whole.n)
                        copy[i] ^= 0xff;
                int r = mfl_npz_open(copy, n, "f", &npz, NULL);
                if (!r) {
                        r = mfl_npz_read(npz, "x_train", &bytes, NULL);
                        if (!r)
                                free(bytes.data);
                        mfl_npz_close(npz);
                }
                assert_true(r == 0 || r == MFL_INVALID);
                refused += r != 0;
        }
        assert_true(refused > (int)whole.n);
        free(copy);
        free(whole.data);
}

static void text_becomes_windows(void **state)
{
        put("abc.txt", "abcdefghijabcdefghij"); /* 20: 15 and 5 */
        struct mfl_dataset *d = load("text", "%s/abc.txt,length=3,stride=2,test_fraction=0.25");
        assert_true(d->vocabulary == 10 && d->classes == 10 && d->labels_per_sample == 3);
        assert_true(d->shape.rank == 1 && d->shape.dim[0] == 3 && d->train.dtype == MFL_I32);
        assert_true(d->symbols[0] == 'a' && d->symbols[9] == 'j' && !d->train.owner);
        /* Windows of 4 in 15 begin at 0, 2, ... 10; in 5 at 0. */
        assert_true(d->train.n == 6 && d->test.n == 1);
        for (int i = 0; i < 18; i++) {
                int at = i / 3 * 2 + i % 3;
                assert_int_equal(((int32_t *)d->train.samples)[i], at % 10);
                assert_int_equal(d->train.labels[i], (at + 1) % 10);
        }
        static const int32_t x[3] = {5, 6, 7};
        assert_memory_equal(d->test.samples, x, sizeof x);
        mfl_dataset_free(d);
        d = load("text", "%s/abc.txt,length=3,unit=bytes,test_fraction=0.25");
        assert_true(d->vocabulary == 256 && d->train.n == 4 && !d->symbols && d->train.labels[0] == 'b');
        mfl_dataset_free(d);
        put("utf.txt", "\xc3\xa4\xe2\x82\xac\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\xc3\xa4\xc3\xa4\xc3\xa4");
        d = load("text", "%s/utf.txt,length=1,test_fraction=0.4");
        assert_true(d->vocabulary == 3 && d->symbols[0] == 0xe4 && d->symbols[1] == 0x20ac &&
                    d->symbols[2] == 0x1f600);
        mfl_dataset_free(d);
}

static void text_has_owners(void **state)
{
        put("play.txt", "BOB:\nabab\nab\n\nANN:\nbaba\n\n\nBOB:\nbb\n\n");
        struct mfl_dataset *d = load("text", "%s/play.txt,owner=speaker,length=2,stride=1,test_fraction=0.4");
        assert_int_equal(d->n_owners, 2);
        assert_string_equal(d->owner_names[0], "ANN");
        /* BOB says "abab\nab\nbb\n", 11 units, 7 of them for training: 5 windows of 3. ANN 5, 3: 1. */
        assert_true(d->train.n == 6 && d->train.owner[0] == 1 && d->train.owner[4] == 1 &&
                    d->train.owner[5] == 0);
        mfl_dataset_free(d);
        make_folder("corpus");
        make_folder("corpus/train");
        put("corpus/train/b.txt", "xyxyxy");
        put("corpus/train/a.txt", "yyyyyy");
        put("corpus/test.txt", "xxxxxx");
        d = load("text", "%s/corpus,owner=file,length=5");
        assert_true(d->train.n == 2 && d->test.n == 1 && d->n_owners == 3);
        assert_true(d->train.owner[0] == 0 && d->train.owner[1] == 1 && d->test.owner[0] == 2);
        assert_true(((int32_t *)d->train.samples)[0] == 1 && ((int32_t *)d->train.samples)[5] == 0);
        refuse("text", "%s/corpus,length=5,test_fraction=0.1", "has test text, so test_fraction is not used");
        mfl_dataset_free(d);
}

static void text_mistakes(void **state)
{
        put("bad.txt", "ok\xff");
        refuse("text", "%s/bad.txt,length=1,test_fraction=0.5",
                "byte 0xff at offset 2 is not UTF-8; unit: bytes");
        put("bad.txt", "\xc0\x80");
        refuse("text", "%s/bad.txt,length=1,test_fraction=0.5", "byte 0xc0 at offset 0 is not UTF-8");
        put("bad.txt", "\xed\xa0\x80");
        refuse("text", "%s/bad.txt,length=1,test_fraction=0.5", "byte 0xed at offset 0 is not UTF-8");
        put("bad.txt", "short");
        refuse("text", "%s/bad.txt,length=5,test_fraction=0.5",
                "the training text is too short for a sample of 5 characters and the one after it");
        refuse("text", "%s/nothing.txt", "nothing.txt: No such file or directory");
        put("bad.txt", "no speaker\nhere\n");
        refuse("text", "%s/bad.txt,owner=speaker,test_fraction=0.5",
                "bad.txt:1: expected a speaker's name and a colon in the first line of a block, got 'no "
                "speaker'");
        refuse("text", "%s/bad.txt,owner=him,test_fraction=0.5", "--data:1: owner: ");
        put("corpus/test.txt", "xxxzxx");
        refuse("text", "%s/corpus,length=2", "the test text has U+007A, which the training text has not");
}

struct picture {
        const char *file;
        int channels, height, width;
        uint8_t expected[48];
};

/* What Pillow makes of the same crop with resize(BILINEAR), which rounds between its two passes. */
static void images_are_fitted_as_pillow_does(void **state)
{
        static const struct picture pictures[] = {
                {"rgb.png", 3, 4, 4,
                        {42, 90, 143, 191, 42, 90, 143, 191, 42, 90, 143, 191, 42, 90, 143, 191, 28, 28, 28,
                                28, 91, 91, 91, 91, 163, 163, 163, 163, 226, 226, 226, 226, 27, 43, 60, 76,
                                56, 72, 89, 105, 89, 105, 122, 138, 118, 134, 151, 167}},
                {"alpha.png", 3, 4, 4,
                        {42, 90, 143, 191, 42, 90, 143, 191, 42, 90, 143, 191, 42, 90, 143, 191, 28, 28, 28,
                                28, 91, 91, 91, 91, 163, 163, 163, 163, 226, 226, 226, 226, 27, 43, 60, 76,
                                56, 72, 89, 105, 89, 105, 122, 138, 118, 134, 151, 167}},
                {"palette.png", 3, 4, 4,
                        {53, 73, 157, 198, 46, 86, 147, 201, 50, 72, 150, 194, 53, 84, 151, 202, 31, 30, 31,
                                23, 92, 88, 84, 85, 161, 160, 159, 164, 228, 224, 219, 215, 32, 38, 67, 76,
                                57, 69, 88, 106, 91, 98, 123, 139, 122, 131, 151, 166}},
                {"rgb.jpg", 3, 4, 4,
                        {49, 99, 154, 204, 49, 100, 154, 204, 49, 100, 155, 205, 50, 100, 155, 205, 28, 28,
                                28, 28, 92, 92, 92, 92, 163, 162, 163, 162, 226, 226, 226, 226, 29, 46, 64,
                                81, 58, 75, 93, 110, 91, 108, 126, 143, 121, 137, 155, 172}},
                {"rgb.png", 1, 4, 3, {46, 61, 76, 86, 101, 117, 132, 147, 162, 172, 187, 203}},
        };
        if (!can_read("images", "!%s,shape=[1, 2, 2],test_fraction=0.5", "lacks libpng"))
                skip_for("built without libpng (Debian: libpng-dev libjpeg-dev)");
        for (size_t i = 0; i < MFL_ARRAY_SIZE(pictures); i++) {
                const struct picture *p = &pictures[i];
                struct mfl_shape shape = {3, {p->channels, p->height, p->width}};
                struct mfl_data_bytes bytes;
                char path[600];
                uint8_t *rgb, out[48];
                uint32_t width, height;
                struct mfl_error err = {""};
                snprintf(path, sizeof path, "%s/%s", files, p->file);
                assert_int_equal(mfl_data_read_file(path, &bytes, NULL), 0);
                if (mfl_image_decode(bytes.data, bytes.n, path, &rgb, &width, &height, &err)) {
                        if (strstr(err.text, "lacks libpng"))
                                skip_for("built without libpng (Debian: libpng-dev libjpeg-dev)");
                        fail_msg("%s", err.text);
                }
                assert_int_equal(mfl_image_fit(rgb, width, height, &shape, out, NULL), 0);
                for (int e = 0; e < p->channels * p->height * p->width; e++)
                        if (abs(out[e] - p->expected[e]) > 1)
                                fail_msg("%s: element %d is %d, Pillow has %d", p->file, e, out[e],
                                        p->expected[e]);
                free(rgb);
                free(bytes.data);
        }
}

static void the_same_size_changes_nothing(void **state)
{
        uint8_t rgb[5 * 4 * 3], out[60];
        struct mfl_shape shape = {3, {3, 4, 5}};
        for (size_t i = 0; i < sizeof rgb; i++)
                rgb[i] = (uint8_t)(i * 37);
        assert_int_equal(mfl_image_fit(rgb, 5, 4, &shape, out, NULL), 0);
        for (int c = 0; c < 3; c++)
                for (int p = 0; p < 20; p++)
                        assert_int_equal(out[c * 20 + p], rgb[p * 3 + c]);
        /* One pixel, as large as one likes. */
        shape = (struct mfl_shape){3, {3, 4, 4}};
        assert_int_equal(mfl_image_fit(rgb, 1, 1, &shape, out, NULL), 0);
        for (int e = 0; e < 48; e++)
                assert_int_equal(out[e], rgb[e / 16]);
}

static void link_image(const char *file, const char *name)
{
        char from[600], to[200];
        snprintf(from, sizeof from, "%s/%s", files, file);
        snprintf(to, sizeof to, "%s/img/%s", dir, name);
        assert_int_equal(symlink(from, to), 0);
}

static void folders_of_images(void **state)
{
        if (!can_read("images", "!%s/,shape=[1, 2, 2],test_fraction=0.5", "lacks libpng"))
                skip_for("built without libpng (Debian: libpng-dev libjpeg-dev)");
        make_folder("img");
        make_folder("img/train");
        make_folder("img/train/dog");
        make_folder("img/train/cat");
        link_image("rgb.png", "train/dog/1.png");
        link_image("rgb.jpg", "train/dog/2.jpg");
        link_image("grey.png", "train/cat/1.png");
        struct mfl_dataset *d = load("images", "%s/img,shape=[3, 4, 4],test_fraction=0.34");
        assert_true(d->train.n == 2 && d->test.n == 1 && d->classes == 2 && d->train.dtype == MFL_U8);
        assert_string_equal(d->class_names[0], "cat");
        mfl_dataset_free(d);
        d = load("images", "%s/img/train,shape=[3, 4, 4],test_fraction=0.34"); /* as ImageFolder has it */
        assert_true(d->train.n == 2 && d->test.n == 1 && d->classes == 2);
        mfl_dataset_free(d);
        make_folder("img/test");
        make_folder("img/test/dog");
        link_image("rgb.png", "test/dog/1.png");
        d = load("images", "%s/img,shape=[1, 4, 4]");
        assert_true(d->train.n == 3 && d->train.labels[0] == 0 && d->train.labels[2] == 1 &&
                    d->test.labels[0] == 1);
        /* The grey file is the colour file's luma, so they become the same sample. */
        assert_memory_equal(d->train.samples, (uint8_t *)d->train.samples + 16, 16);
        assert_memory_equal(d->train.samples, d->test.samples, 16);
        mfl_dataset_free(d);
        make_folder("img/test/eel");
        refuse("images", "%s/img,shape=[3, 4, 4]",
                "img/test/eel: there are no training images for this class");
        put("img/train/cat/0.png", "\x89PNG\r\n\x1a\nnothing");
        refuse("images", "%s/img,shape=[3, 4, 4]", "train/cat/0.png: damaged PNG: ");
        put("img/train/cat/0.png", "GIF89a");
        refuse("images", "%s/img,shape=[3, 4, 4]", "train/cat/0.png: neither PNG nor JPEG");
        refuse("images", "%s/img,shape=[2, 4, 4]", "shape must be [1 or 3, height, width]");
}

static void truncated_images_are_refused(void **state)
{
        static const char *const names[] = {"rgb.png", "rgb.jpg", "palette.png", "deep.png"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(names); i++) {
                struct mfl_data_bytes bytes;
                char path[600];
                snprintf(path, sizeof path, "%s/%s", files, names[i]);
                assert_int_equal(mfl_data_read_file(path, &bytes, NULL), 0);
                for (size_t n = 0; n < bytes.n - 1; n++) {
                        uint8_t *rgb;
                        uint32_t width, height;
                        assert_int_equal(mfl_image_decode(bytes.data, n, "f", &rgb, &width, &height, NULL),
                                MFL_INVALID);
                }
                free(bytes.data);
        }
}

static void every_failed_allocation_is_reported(void **state)
{
        static const struct {
                const char *format, *rest;
        } cases[] = {{"csv", "%s/t.csv,owner=who,test_fraction=0.3"}, {"csv", "%s/two,header=no,separator=;"},
                {"csv", "%s/many.csv,test_fraction=0.5"}, {"npz", "!%s/whole.npz"},
                {"npz", "!%s/split.npz,test_fraction=0.2"},
                {"text", "%s/play.txt,owner=speaker,length=2,test_fraction=0.4"},
                {"text", "%s/corpus/train,owner=file,length=2,test_fraction=0.5"},
                {"csv", "%s/t.csv,owner=who,targets=[2],test_fraction=0.3"},
                {"csv", "%s/typed.csv,test_fraction=0.25,normalise=columns"},
                {"csv", "%s/scale.csv,test_fraction=0.25,codes={age: [20, 30, 40, 50]}"}};
        put("two/train.csv", "1;2;red\n3;4;blue\n5;6;red\n");
        put("two/test.csv", "7;8;blue\n");
        for (size_t c = 0; c < MFL_ARRAY_SIZE(cases); c++) {
                for (long i = 0;; i++) {
                        struct mfl_dataset *d = NULL;
                        struct mfl_error err = {""};
                        mfl_alloc_fail_at(i);
                        int r = try_load(cases[c].format, cases[c].rest, &d, &err);
                        bool struck = mfl_alloc_failed();
                        mfl_alloc_fail_at(-1);
                        if (r != (struck ? -ENOMEM : 0) && !strstr(err.text, "lacks libzip"))
                                fail_msg("%s, allocation %ld: %d: %s", cases[c].rest, i, r, err.text);
                        mfl_dataset_free(d);
                        if (!struck)
                                break;
                        assert_true(i < 300);
                }
        }
}

/* The same for other samples of the same classes or symbols, another one for others, and 0 where nothing has
 * a name. */
static void what_labels_mean(void **state)
{
        put("a.csv", "x,kind\n1,cat\n2,dog\n3,cat\n");
        put("b.csv", "x,kind\n9,dog\n8,cat\n7,dog\n6,dog\n");
        put("c.csv", "x,kind\n1,cat\n2,emu\n3,cat\n");
        put("d.csv", "x,kind\n1,0\n2,1\n3,0\n");
        uint64_t a = meaning_of("csv", "%s/a.csv,test_fraction=0.3");
        assert_true(a != 0 && a == meaning_of("csv", "%s/b.csv,test_fraction=0.3"));
        uint64_t c = meaning_of("csv", "%s/c.csv,test_fraction=0.3");
        assert_true(c != 0 && c != a);
        assert_int_equal(meaning_of("csv", "%s/d.csv,test_fraction=0.3"), 0);
        put("m.txt", "abcabcabcabcabcabc");
        put("n.txt", "cbacbacbacbacbacbacbacba");
        put("o.txt", "abdabdabdabdabdabd");
        uint64_t m = meaning_of("text", "%s/m.txt,length=3,test_fraction=0.3");
        assert_true(m != 0 && m == meaning_of("text", "%s/n.txt,length=3,test_fraction=0.3"));
        assert_true(m != meaning_of("text", "%s/o.txt,length=3,test_fraction=0.3"));
        uint64_t bytes = meaning_of("text", "%s/m.txt,length=3,unit=bytes,test_fraction=0.3");
        assert_true(
                bytes != 0 && bytes == meaning_of("text", "%s/o.txt,length=3,unit=bytes,test_fraction=0.3"));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(csv_columns_by_name_and_number),
                cmocka_unit_test(csv_targets_names_and_splits),
                cmocka_unit_test(csv_categories_become_numbers),
                cmocka_unit_test(csv_categories_mistakes_name_the_place),
                cmocka_unit_test(csv_columns_of_other_scales_are_noted),
                cmocka_unit_test(csv_mistakes_name_the_line),
                cmocka_unit_test(a_test_fraction_depends_on_the_seed_alone),
                cmocka_unit_test(wrong_folders),
                cmocka_unit_test(npz_arrays),
                cmocka_unit_test(damaged_npz_is_refused),
                cmocka_unit_test(text_becomes_windows),
                cmocka_unit_test(text_has_owners),
                cmocka_unit_test(text_mistakes),
                cmocka_unit_test(images_are_fitted_as_pillow_does),
                cmocka_unit_test(the_same_size_changes_nothing),
                cmocka_unit_test(folders_of_images),
                cmocka_unit_test(truncated_images_are_refused),
                cmocka_unit_test(what_labels_mean),
                cmocka_unit_test(every_failed_allocation_is_reported),
        };
        return cmocka_run_group_tests_name("data sources", tests, set_up, tear_down);
}
