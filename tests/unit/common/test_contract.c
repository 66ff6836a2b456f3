/* SPDX-License-Identifier: Apache-2.0 */
/* Contracts: text and back, what a site keeps, sites that differ, and hostile texts; allocation failures at every place. */
#include "tests/lib/test.h"

#include "common/contract/contract.h"

static char *classes[] = {"ant", "b\"ee"};
static uint32_t symbols[] = {10, 65, 0x1f600};

static struct mfl_dataset images(void)
{
        struct mfl_dataset d = {.name = "pix",
                .shape = {3, {2, 4, 4}},
                .classes = 2,
                .class_names = classes,
                .measured = true};
        d.train.dtype = MFL_U8;
        d.scale[0] = 1.0f / 255;
        d.scale[1] = 0.1f;
        d.shift[0] = -0.25f;
        d.shift[1] = 1e-7f;
        return d;
}

static struct mfl_contract *make(const struct mfl_dataset *d, bool private)
{
        struct mfl_contract *c;
        struct mfl_error err;
        assert_int_equal(mfl_contract_of_dataset(d, private, &c, &err), 0);
        return c;
}

static char *text_of(const struct mfl_contract *c)
{
        char *text;
        struct mfl_error err;
        assert_int_equal(mfl_contract_text(c, &text, &err), 0);
        return text;
}

static struct mfl_contract *parse(const char *text)
{
        struct mfl_contract *c = NULL;
        struct mfl_error err = {""};
        if (mfl_contract_parse(text, "test", &c, &err))
                fail_msg("%s", err.text);
        return c;
}

/* Every bit of the numbers survives, and the same contract has the same text. */
static void text_and_back(void **state)
{
        struct mfl_dataset d = images();
        d.share_names = true;
        struct mfl_contract *a = make(&d, false);
        a->has_loss = true;
        a->loss = MFL_LOSS_FOCAL;
        char *text = text_of(a);
        struct mfl_contract *b = parse(text);
        char *again = text_of(b);
        assert_string_equal(text, again);
        assert_memory_equal(a->scale, b->scale, 2 * sizeof(float));
        assert_memory_equal(a->shift, b->shift, 2 * sizeof(float));
        assert_string_equal(b->class_names[1], "b\"ee");
        assert_true(mfl_contract_is_classes(b) && !mfl_contract_is_binary(b) && b->loss == MFL_LOSS_FOCAL);
        assert_int_equal(mfl_contract_sample_bytes(b), 32);
        mfl_contract_free(a);
        mfl_contract_free(b);
        free(text);
        free(again);
}

static void tokens_and_columns(void **state)
{
        double columns[] = {1.0 / 3, -2e300, 0.1, 4};
        struct mfl_dataset text = {.name = "t",
                .shape = {1, {7}},
                .classes = 3,
                .vocabulary = 3,
                .labels_per_sample = 7,
                .symbols = symbols,
                .share_names = true};
        struct mfl_dataset table = {.name = "r",
                .shape = {1, {2}},
                .n_targets = 2,
                .column_mean = columns,
                .column_std = columns + 2};
        text.train.dtype = MFL_I32;
        table.train.dtype = MFL_F32;
        table.scale[0] = 1;
        struct mfl_contract *a = make(&text, false), *b = make(&table, false);
        char *at = text_of(a), *bt = text_of(b);
        struct mfl_contract *c = parse(at), *d = parse(bt);
        assert_int_equal(c->symbols[2], 0x1f600);
        assert_string_equal(c->unit, "character");
        assert_int_equal(c->labels_per_sample, 7);
        assert_memory_equal(d->feature_mean, columns, sizeof columns);
        assert_false(mfl_contract_is_classes(d));
        struct mfl_contract *all[] = {a, b, c, d};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(all); i++)
                mfl_contract_free(all[i]);
        free(at);
        free(bt);
}

/* Names leave a site only if it shares them; of a private job, what it has measured, too. */
static void what_stays(void **state)
{
        struct mfl_dataset d = images();
        struct mfl_contract *plain = make(&d, false), *private = make(&d, true);
        char *text = text_of(plain), *less = text_of(private);
        assert_null(strstr(text, "ant"));
        assert_non_null(strstr(text, "scale"));
        assert_null(strstr(less, "scale"));
        assert_true(private->normalised && mfl_contract_dtype(private) == MFL_F32);
        mfl_contract_free(plain);
        mfl_contract_free(private);
        free(text);
        free(less);
}

static void sites_that_differ(void **state)
{
        struct mfl_dataset d = images();
        struct mfl_contract *a = make(&d, false), *same = make(&d, false);
        d.shift[1] = 0;
        struct mfl_contract *other = make(&d, false);
        struct mfl_error err;
        bool changed;
        mfl_strcpy(a->from, sizeof a->from, "first");
        assert_int_equal(mfl_contract_compare(a, same, "second", &changed, &err), 0);
        assert_false(changed || a->normalised);
        assert_int_equal(mfl_contract_compare(a, other, "third", &changed, &err), 0);
        assert_true(changed && a->normalised && a->n_sites == 1);
        assert_int_equal(mfl_contract_compare(a, other, "third", &changed, &err), 0);
        assert_false(changed);
        assert_string_equal(a->sites[0], "third");
        for (int i = 0; i < 2 * MFL_CONTRACT_SITES_MAX; i++) {
                char name[16];
                mfl_snprintf(name, sizeof name, "s%d", i);
                assert_int_equal(mfl_contract_compare(a, other, name, &changed, &err), 0);
        }
        assert_int_equal(a->n_sites, MFL_CONTRACT_SITES_MAX);
        mfl_contract_free(a);
        mfl_contract_free(same);
        mfl_contract_free(other);
}

/* A stranger's text is refused with the key, and never leaks. */
static void hostile_texts(void **state)
{
        static const char *const texts[][2] = {{"", "not a JSON object"}, {"[]", "not a JSON object"},
                {"{}", "shape"}, {"{\"shape\":[0]}", "shape"}, {"{\"shape\":[1,2,3,4,5]}", "shape"},
                {"{\"shape\":[16777216,16777216]}", "shape"}, {"{\"shape\":[4],\"type\":\"f64\"}", "type"},
                {"{\"shape\":[4],\"type\":\"i32\"}", "type"},
                {"{\"shape\":[4],\"classes\":2000000}", "classes"},
                {"{\"shape\":[4],\"classes\":2.5}", "classes"},
                {"{\"shape\":[4],\"scale\":[1,2],\"shift\":[0]}", "scale"},
                {"{\"shape\":[4],\"scale\":[1]}", "shift"},
                {"{\"shape\":[4],\"scale\":[1e300],\"shift\":[0]}", "scale"},
                {"{\"shape\":[2],\"mean\":[1],\"std\":[1]}", "mean"},
                {"{\"shape\":[1],\"mean\":[1],\"std\":[0]}", "std"},
                {"{\"shape\":[1],\"classes\":2,\"class_names\":[\"a\"]}", "class_names"},
                {"{\"shape\":[1],\"classes\":1,\"class_names\":[7]}", "class_names"},
                {"{\"shape\":[1],\"type\":\"i32\",\"vocabulary\":2,\"symbols\":[9,9]}", "symbols"},
                {"{\"shape\":[1],\"sites\":[1]}", "sites"},
                {"{\"shape\":[1],\"shape\":[2]}", "not a JSON object"},
                {"{\"shape\":[1],\"loss\":\"none\"}", "loss"}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(texts); i++) {
                struct mfl_contract *c = NULL;
                struct mfl_error err = {""};
                assert_int_equal(mfl_contract_parse(texts[i][0], "test", &c, &err), MFL_INVALID);
                if (!strstr(err.text, texts[i][1]))
                        fail_msg(
                                "'%s' says '%s', which does not name %s", texts[i][0], err.text, texts[i][1]);
        }
        mfl_contract_free(parse("{\"shape\":[1],\"later\":{}}")); /* a later version's key */
        struct mfl_contract *c =
                parse("{\"shape\":[1],\"from\":\"a\\u001bb\",\"classes\":1,\"class_names\":[\"\\u202ex\"]}");
        assert_string_equal(c->from, "a?b");
        assert_string_equal(c->class_names[0], "?x");
        mfl_contract_free(c);
}

static void memory_ends(void **state)
{
        struct mfl_dataset d = images();
        d.share_names = true;
        struct mfl_contract *whole = make(&d, false);
        char *text = text_of(whole);
        int failures = 0;
        for (long n = 0;; n++) {
                struct mfl_contract *c = NULL, *read = NULL;
                struct mfl_error err;
                mfl_alloc_fail_at(n);
                int r = mfl_contract_of_dataset(&d, false, &c, &err);
                if (!r)
                        r = mfl_contract_parse(text, "test", &read, &err);
                mfl_alloc_fail_at(-1);
                if (c)
                        mfl_contract_free(c);
                if (!r) {
                        mfl_contract_free(read);
                        break;
                }
                assert_int_equal(r, -ENOMEM);
                failures++;
        }
        assert_true(failures >= 4);
        mfl_contract_free(whole);
        free(text);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(text_and_back),
                cmocka_unit_test(tokens_and_columns), cmocka_unit_test(what_stays),
                cmocka_unit_test(sites_that_differ), cmocka_unit_test(hostile_texts),
                cmocka_unit_test(memory_ends)};
        return cmocka_run_group_tests_name("contract", tests, NULL, NULL);
}
