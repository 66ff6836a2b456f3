/* SPDX-License-Identifier: Apache-2.0 */
/* YAML: the tree, everything that is refused, and the tables, with the exact messages. */
#include "tests/lib/test.h"
#include "common/settings/yaml.h"

#include <math.h>

static int parse(const char *text, struct mfl_yaml_doc **doc, struct mfl_error *err)
{
        return mfl_yaml_parse(text, strlen(text), "f.yaml", NULL, doc, err);
}

static void the_tree_has_places(void **state)
{
        struct mfl_yaml_doc *doc;
        assert_int_equal(parse("a: 1\nb:\n  - x\n  - {c: 'q', d: [1, 2]}\n", &doc, NULL), 0);
        const struct mfl_yaml_node *root = mfl_yaml_root(doc), *b = mfl_yaml_find(root, "b");
        assert_int_equal(root->type, MFL_YAML_MAPPING);
        assert_int_equal(root->n_children, 2);
        assert_string_equal(mfl_yaml_find(root, "a")->text, "1");
        assert_int_equal(mfl_yaml_find(root, "a")->column, 4);
        assert_int_equal(b->type, MFL_YAML_SEQUENCE);
        assert_int_equal(b->key_line, 2);
        assert_int_equal(b->line, 3);
        assert_int_equal(b->n_children, 2);
        assert_false(b->first->quoted);
        const struct mfl_yaml_node *map = b->first->next, *c = mfl_yaml_find(map, "c"),
                                   *d = mfl_yaml_find(map, "d");
        assert_true(c->quoted && c->line == 4 && c->column == 9);
        assert_null(map->next);
        assert_null(mfl_yaml_find(map, "x"));
        assert_null(mfl_yaml_find(b, "x"));
        struct mfl_error err;
        assert_int_equal(mfl_yaml_fail(doc, d->first->next, &err, "is %d", 2), MFL_INVALID);
        assert_string_equal(err.text, "f.yaml:4: b[1].d[1]: is 2");
        mfl_yaml_fail(doc, root, &err, "top");
        assert_string_equal(err.text, "f.yaml:1: top");
        mfl_yaml_fail(doc, NULL, &err, "a default");
        assert_string_equal(err.text, "f.yaml: a default");
        mfl_yaml_free(doc);
        mfl_yaml_free(NULL);
}

static void what_is_not_in_the_subset_is_refused(void **state)
{
        static const struct {
                const char *text, *message;
        } cases[] = {
                {"", "f.yaml:1: the document is empty"},
                {"# only this\n", "f.yaml:1: the document is empty"},
                {"a: &x 1\nb: *x\n", "f.yaml:1: anchors (&x) are not allowed"},
                {"a: &x [1]\n", "f.yaml:1: anchors (&x) are not allowed"},
                {"a: 1\nb: *x\n", "f.yaml:2: aliases (*x) are not allowed"},
                {"a: !!str 1\n", "f.yaml:1: tags (tag:yaml.org,2002:str) are not allowed"},
                {"a: !x {}\n", "f.yaml:1: tags (!x) are not allowed"},
                {"a: 1\nb: 2\na: 3\n", "f.yaml:3: duplicate key 'a' (first on line 1)"},
                {"a: 1\n---\nb: 2\n", "f.yaml:2: a second document"},
                {"a: \"x\\0y\"\n", "f.yaml:1: a text contains a NUL character"},
                {"\"a\\0\": 1\n", "f.yaml:1: a key contains a NUL character"},
                {"? [a]\n: 1\n", "f.yaml:1: a key must be plain text"},
                {"[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]", "f.yaml:1: nested more than 16 deep"},
                {"a: \xff\n", "f.yaml:1: this is not UTF-8 text: invalid leading UTF-8 octet"},
                {"a: 1\nb: \xc3(\n", "f.yaml:2: this is not UTF-8 text: invalid trailing UTF-8 octet"},
                {"a:\n\tb: 1\n", "f.yaml:2: a tab where YAML requires spaces: indent with spaces"},
                {"a: 1\nb:2\nc: 3\n",
                        "f.yaml:3: could not find expected ':' while scanning a simple key that "
                        "begins on line 2"},
                {"a: 1\n  b: 2\n", "f.yaml:2: a key where none can be: keys of one mapping begin in the same "
                                   "column, and a text with ': ' needs quotes"},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_yaml_doc *doc = NULL;
                struct mfl_error err = {""};
                assert_int_equal(parse(cases[i].text, &doc, &err), MFL_INVALID);
                assert_null(doc);
                assert_string_equal(err.text, cases[i].message);
        }
        struct mfl_yaml_doc *doc = NULL;
        assert_int_equal(mfl_yaml_parse("a: \0b", 6, "f.yaml", NULL, &doc, NULL), MFL_INVALID);
        assert_int_equal(mfl_yaml_parse("\xff\xfe"
                                        "a\0:\0 \0b\0",
                                 10, "f.yaml", NULL, &doc, NULL),
                MFL_INVALID);
        assert_int_equal(parse("[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]", &doc, NULL), 0);
        mfl_yaml_free(doc);
}

static void limits_hold(void **state)
{
        struct mfl_yaml_limits limits = {.bytes_max = 12, .depth_max = 2, .nodes_max = 4};
        struct mfl_yaml_doc *doc = NULL;
        struct mfl_error err;
        assert_int_equal(mfl_yaml_parse("[1,2,3]", 7, "f", &limits, &doc, &err), 0);
        mfl_yaml_free(doc);
        assert_int_equal(mfl_yaml_parse("[1,2,3,4]", 9, "f", &limits, &doc, &err), MFL_INVALID);
        assert_string_equal(err.text, "f:1: more than 4 values");
        assert_int_equal(mfl_yaml_parse("[[1]]", 5, "f", &limits, &doc, &err), 0);
        mfl_yaml_free(doc);
        assert_int_equal(mfl_yaml_parse("[[[]]]", 6, "f", &limits, &doc, &err), MFL_INVALID);
        assert_int_equal(mfl_yaml_parse("a: 123456789", 12, "f", &limits, &doc, &err), 0);
        mfl_yaml_free(doc);
        assert_int_equal(mfl_yaml_parse("a: 1234567890", 13, "f", &limits, &doc, &err), MFL_INVALID);
        assert_string_equal(err.text, "f:1: 13 bytes; the limit is 12");
}

struct target {
        bool seen_batch;
        bool seen_lr;
        char name[8];
        char *text;
        uint32_t batch;
        uint64_t seed;
        int64_t offset;
        float lr;
        double quorum;
        bool on;
        int kind;
        uint64_t deadline_ms, bytes;
        struct {
                uint32_t depth;
        } inner;
        uint32_t sum;
};

static int read_sum(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field item = {.kind = MFL_YAML_U32, .min = 1, .max = 9};
        if (node->type != MFL_YAML_SEQUENCE)
                return mfl_yaml_fail(doc, node, err, "expected a list");
        for (const struct mfl_yaml_node *n = node->first; n; n = n->next) {
                uint32_t number;
                int r = mfl_yaml_read_value(doc, n, &item, &number, err);
                if (r)
                        return r;
                *(uint32_t *)value += number;
        }
        return 0;
}

static const char *const kinds[] = {"fedavg", "fedprox", "median", NULL};
static const struct mfl_yaml_field inner_fields[] = {
        {.key = "depth", MFL_YAML_AT(U32, struct target, inner.depth), .required = true}, {0}};
static const struct mfl_yaml_field fields[] = {
        {.key = "name", MFL_YAML_AT(STRING, struct target, name)},
        {.key = "text", MFL_YAML_AT(TEXT, struct target, text)},
        {.key = "batch",
                MFL_YAML_AT(U32, struct target, batch),
                .min = 1,
                .max = 65536,
                .seen = offsetof(struct target, seen_lr)},
        {.key = "seed", MFL_YAML_AT(U64, struct target, seed)},
        {.key = "offset", MFL_YAML_AT(I64, struct target, offset), .min = -5, .max = INFINITY},
        {.key = "any", MFL_YAML_AT(I64, struct target, offset)},
        {.key = "lr", MFL_YAML_AT(F32, struct target, lr), .min = 0, .max = INFINITY, .min_open = true},
        {.key = "quorum", MFL_YAML_AT(F64, struct target, quorum), .min = 0, .max = 1, .min_open = true},
        {.key = "on", MFL_YAML_AT(BOOL, struct target, on)},
        {.key = "kind", MFL_YAML_AT(ENUM, struct target, kind), .names = kinds},
        {.key = "deadline", MFL_YAML_AT(DURATION, struct target, deadline_ms), .min = 1000, .max = 3600000},
        {.key = "bytes", MFL_YAML_AT(SIZE, struct target, bytes)},
        {.key = "inner", .kind = MFL_YAML_FIELDS, .fields = inner_fields},
        {.key = "sum", MFL_YAML_AT(CALL, struct target, sum), .read = read_sum},
        {0},
};

static int read_target(const char *text, struct target *target, struct mfl_error *err)
{
        struct mfl_yaml_doc *doc;
        int r = parse(text, &doc, err);
        if (r)
                return r;
        r = mfl_yaml_read(doc, mfl_yaml_root(doc), fields, target, err);
        mfl_yaml_free(doc);
        return r;
}

static void a_table_fills_a_struct(void **state)
{
        struct target t = {.quorum = 0.5};
        struct mfl_error err = {""};
        assert_int_equal(read_target("name: seven77\ntext: 'a b'\nbatch: 65536\nseed: 18446744073709551615\n"
                                     "offset: -5\nlr: 1e-3\non: Yes\nkind: fedprox\ndeadline: 10m\n"
                                     "bytes: 512 MiB\ninner: {depth: 4294967295}\nsum: [1, 2, 9]\n",
                                 &t, &err),
                0);
        assert_string_equal(err.text, "");
        assert_string_equal(t.name, "seven77");
        assert_string_equal(t.text, "a b");
        assert_true(t.batch == 65536 && t.seen_lr && !t.seen_batch);
        assert_true(t.seed == UINT64_MAX && t.offset == -5 && t.lr == 1e-3f && t.quorum == 0.5);
        assert_true(t.on && t.kind == 1 && t.deadline_ms == 600000 && t.bytes == 512 << 20);
        assert_true(t.inner.depth == UINT32_MAX && t.sum == 12);
        assert_int_equal(read_target("any: -9223372036854775808\n", &t, &err), 0);
        assert_true(t.offset == INT64_MIN);
        assert_int_equal(read_target("text: again\n", &t, &err), 0);
        assert_string_equal(t.text, "again");
        free(t.text);
}

static void mistakes_are_named(void **state)
{
        static const struct {
                const char *text, *message;
        } cases[] = {
                {"\n\nbatc: 1", "f.yaml:3: batc: unknown key; did you mean 'batch'?"},
                {"inner:\n  depht: 1", "f.yaml:2: inner.depht: unknown key; did you mean 'depth'?"},
                {"something: 1", "f.yaml:1: something: unknown key; the keys are "
                                 "name, text, batch, seed, offset, any, lr, quorum, on, kind, deadline, "
                                 "bytes, inner, sum"},
                {"batch_size: 1", "f.yaml:1: batch_size: unknown key; did you mean 'batch'?"},
                {"server-seed: 1", "f.yaml:1: server-seed: unknown key; did you mean 'seed'?"},
                {"learning_rate: 1", "f.yaml:1: learning_rate: unknown key; did you mean 'lr'?"},
                {"learning_rate_x: 1", "f.yaml:1: learning_rate_x: unknown key; the keys are "
                                       "name, text, batch, seed, offset, any, lr, quorum, on, kind, "
                                       "deadline, bytes, inner, sum"},
                {"inner: {}", "f.yaml:1: inner: key 'depth' is missing"},
                {"batch: abc", "f.yaml:1: batch: expected a whole number from 1 to 65536, got 'abc'"},
                {"batch: 0", "f.yaml:1: batch: expected a whole number from 1 to 65536, got '0'"},
                {"batch: 65537", "f.yaml:1: batch: expected a whole number from 1 to 65536, got '65537'"},
                {"batch: -1", "f.yaml:1: batch: expected a whole number from 1 to 65536, got '-1'"},
                {"batch: 1.5", "f.yaml:1: batch: expected a whole number from 1 to 65536, got '1.5'"},
                {"batch: '1'", "f.yaml:1: batch: expected a whole number from 1 to 65536, got the text '1'"},
                {"batch:", "f.yaml:1: batch: expected a whole number from 1 to 65536, got nothing"},
                {"batch: [1]", "f.yaml:1: batch: expected a whole number from 1 to 65536, got a list"},
                {"batch: {a: 1}", "f.yaml:1: batch: expected a whole number from 1 to 65536, got a mapping"},
                {"inner: {depth: 4294967296}", "f.yaml:1: inner.depth: expected a whole number from 0 to "
                                               "4294967295, got '4294967296'"},
                {"seed: 18446744073709551616",
                        "f.yaml:1: seed: expected a whole number of at least 0, got '18446744073709551616'"},
                {"offset: -6", "f.yaml:1: offset: expected a whole number of at least -5, got '-6'"},
                {"any: 9223372036854775808",
                        "f.yaml:1: any: expected a whole number, got '9223372036854775808'"},
                {"lr: 0", "f.yaml:1: lr: expected a number above 0, got '0'"},
                {"lr: 1e-60", "f.yaml:1: lr: expected a number above 0, got '1e-60'"},
                {"lr: 1e60", "f.yaml:1: lr: expected a number above 0, got '1e60'"},
                {"lr: nan", "f.yaml:1: lr: expected a number above 0, got 'nan'"},
                {"lr: 0x10", "f.yaml:1: lr: expected a number above 0, got '0x10'"},
                {"lr: 0,5", "f.yaml:1: lr: expected a number above 0, got '0,5'"},
                {"lr: .e", "f.yaml:1: lr: expected a number above 0, got '.e'"},
                {"quorum: 1.01", "f.yaml:1: quorum: expected a number above 0 and at most 1, got '1.01'"},
                {"on: maybe", "f.yaml:1: on: expected true or false, got 'maybe'"},
                {"kind: fedporx",
                        "f.yaml:1: kind: expected one of 'fedavg', 'fedprox', 'median', got 'fedporx'; "
                        "did you mean 'fedprox'?"},
                {"kind: zzz", "f.yaml:1: kind: expected one of 'fedavg', 'fedprox', 'median', got 'zzz'"},
                {"deadline: 600",
                        "f.yaml:1: deadline: expected a duration like 500ms, 600s, 10m or 1h from 1s to "
                        "1h, got '600'"},
                {"deadline: 2h",
                        "f.yaml:1: deadline: expected a duration like 500ms, 600s, 10m or 1h from 1s to "
                        "1h, got '2h'"},
                {"bytes: 4 gigs", "f.yaml:1: bytes: expected a size like 512MiB or 4GiB, got '4 gigs'"},
                {"name: eight888", "f.yaml:1: name: 8 characters; the limit is 7"},
                {"name:", "f.yaml:1: name: expected a text, got nothing"},
                {"name: [a]", "f.yaml:1: name: expected a text, got a list"},
                {"inner: 3", "f.yaml:1: inner: expected a mapping such as {depth: ...}, got '3'"},
                {"sum: [1,\n 10]", "f.yaml:2: sum[1]: expected a whole number from 1 to 9, got '10'"},
                {"- 1", "f.yaml:1: expected a mapping (key: value), got a list"},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct target t = {.batch = 77};
                struct mfl_error err = {""};
                assert_int_equal(read_target(cases[i].text, &t, &err), MFL_INVALID);
                assert_string_equal(err.text, cases[i].message);
                assert_int_equal(t.batch, 77);
        }
}

static void durations_and_sizes(void **state)
{
        uint64_t v = 5;
        assert_true(mfl_yaml_parse_duration("500ms", &v) && v == 500);
        assert_true(mfl_yaml_parse_duration("1h", &v) && v == 3600000);
        assert_true(mfl_yaml_parse_duration("2 d", &v) && v == 2 * 86400000);
        assert_false(mfl_yaml_parse_duration("1", &v) || mfl_yaml_parse_duration("s", &v));
        assert_false(mfl_yaml_parse_duration("1sec", &v) || mfl_yaml_parse_duration("-1s", &v));
        assert_false(mfl_yaml_parse_duration("18446744073709551615s", &v));
        assert_true(mfl_yaml_parse_size("4GiB", &v) && v == (uint64_t)4 << 30);
        assert_true(mfl_yaml_parse_size("100MB", &v) && v == 100000000);
        assert_true(mfl_yaml_parse_size("4096", &v) && v == 4096);
        assert_true(mfl_yaml_parse_size("1.5GiB", &v) && v == (uint64_t)3 << 29);
        assert_true(mfl_yaml_parse_size("0.125 kB", &v) && v == 125);
        assert_true(mfl_yaml_parse_size("2.001MB", &v) && v == 2001000);
        assert_true(mfl_yaml_parse_size("1.25KiB", &v) && v == 1280);
        assert_false(mfl_yaml_parse_size("1.5", &v) || mfl_yaml_parse_size("1.5B", &v));
        assert_false(mfl_yaml_parse_size("1.GiB", &v) || mfl_yaml_parse_size("1.0001GiB", &v));
        assert_false(mfl_yaml_parse_size(".5GiB", &v) || mfl_yaml_parse_size("18014398509481984.9KiB", &v));
        assert_false(mfl_yaml_parse_size("", &v) || mfl_yaml_parse_size("1  KiB", &v));
        assert_false(mfl_yaml_parse_size("99999999999TiB", &v));
        assert_true(v == 1280); /* the last good one */
}

static void nearest_knows_slips_from_words(void **state)
{
        static const char *const names[] = {"preset", "layers", "lr", "init", NULL};
        assert_string_equal(mfl_yaml_nearest("prset", names), "preset");
        assert_string_equal(mfl_yaml_nearest("lyaers", names), "layers");
        assert_string_equal(mfl_yaml_nearest("rl", names), "lr");
        assert_string_equal(mfl_yaml_nearest("LR", names), "lr");
        assert_null(mfl_yaml_nearest("momentum", names));
        assert_null(mfl_yaml_nearest("x", names));
        assert_null(mfl_yaml_nearest("", names));
}

static void memory_may_run_out_anywhere(void **state)
{
        for (long n = 0;; n++) {
                struct target t = {.seen_lr = false};
                struct mfl_error err = {""};
                mfl_alloc_fail_at(n);
                int r = read_target("name: a\ntext: b\ninner: {depth: 1}\nsum: [1, 2]\n", &t, &err);
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(r, struck ? -ENOMEM : 0);
                assert_int_equal(!!strstr(err.text, "out of memory"), struck);
                free(t.text);
                if (!struck)
                        break;
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_tree_has_places),
                cmocka_unit_test(what_is_not_in_the_subset_is_refused),
                cmocka_unit_test(limits_hold),
                cmocka_unit_test(a_table_fills_a_struct),
                cmocka_unit_test(mistakes_are_named),
                cmocka_unit_test(durations_and_sizes),
                cmocka_unit_test(nearest_knows_slips_from_words),
                cmocka_unit_test(memory_may_run_out_anywhere),
        };
        return cmocka_run_group_tests_name("yaml", tests, NULL, NULL);
}
