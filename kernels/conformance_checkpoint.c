/* SPDX-License-Identifier: Apache-2.0 */
/* Activations that are computed again (mfl_net_options.segments): the presets that users train, made small,
 * give the bits that they give with everything kept, in less memory. Operators and the cases of training, cut
 * at every place, are with their other tests. */
#include "kernels/conformance_train.h"

static const struct conf_train_case cases[] = {
        {"checkpoint resnet20", "resnet20", {3, {3, 4, 4}}, 10, {.lr = 0.01f, .momentum = 0.5f},
                .rows_min = 3, .accumulate = 2},
        {"checkpoint char-gpt", "char-gpt", {1, {5}}, 7, {.lr = 0.01f, .clip_norm = 1}, .positions = 5,
                .vocabulary = 7},
        {"checkpoint mobilenet-v2", "mobilenet-v2", {3, {3, 8, 8}}, 10, {.lr = 0.01f}, .rows_min = 3,
                .deep = true},
        {"checkpoint vit-tiny", "vit-tiny", {3, {3, 8, 8}}, 10, {.lr = 0.01f}, .deep = true},
        {"checkpoint char-lstm", "char-lstm", {1, {4}}, 7, {.lr = 0.1f}, .positions = 4, .vocabulary = 7,
                .deep = true},
};

static void test_case(const struct conf_backend *b, const struct conf_train_case *kase)
{
        static const int segments[] = {0, MFL_SEGMENTS_AUTO, 3};
        struct conf_training t[MFL_ARRAY_SIZE(segments)];
        /* Other backends run their groups one after another. */
        size_t n = 0, groups = strcmp(b->ops->name, "cuda") ? 1 : 2;
        while (n < MFL_ARRAY_SIZE(segments)) {
                conf_training_init(&t[n], kase);
                t[n].segments = segments[n];
                conf_train(b, &t[n], kase, 1, groups);
                if (t[n++].refused)
                        break;
        }
        for (size_t k = 1; k < n && !t[0].refused && !t[k].refused; k++) {
                bool same = conf_training_same(&t[k], &t[0], 0, groups);
                bool less = t[k].plan.tensor_bytes < t[0].plan.tensor_bytes;
                bool cut = segments[k] > 0 ? t[k].plan.segments == segments[k] : t[k].plan.segments > 1;
                conf_report(same && less && cut,
                        "%s: %s: %d segments, the bits of one, %.0f%% of its tensors", b->label, kase->name,
                        t[k].plan.segments,
                        100.0 * (double)t[k].plan.tensor_bytes / (double)t[0].plan.tensor_bytes);
        }
        while (n > 0)
                conf_training_deinit(&t[--n]);
}

void conf_test_checkpoint(const struct conf_backend *backend, const char *filter)
{
        /* Plain loops take too long for the deep ones. */
        bool quick = conf_quick || !strcmp(backend->ops->name, "reference");
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++)
                if (strstr(cases[i].name, filter) && !(quick && cases[i].deep))
                        test_case(backend, &cases[i]);
}
