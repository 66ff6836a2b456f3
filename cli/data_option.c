/* SPDX-License-Identifier: Apache-2.0 */
/* The value of --data. */
#include "cli/data_option.h"
#include "common/data/config.h"

#include <inttypes.h>
#include <stdio.h>

#define DEFAULT_NAME "fashion-mnist"
#define DEFAULT_DIR "/usr/share/datasets/fashion-mnist"

bool mfl_data_option_shape(const char *text, struct mfl_shape *ret_shape)
{
        struct mfl_shape s = {.rank = 0};
        for (;;) {
                char *end;
                long long v = strtoll(text, &end, 10);
                if (end == text || v < 1 || v > 1 << 28 || s.rank == MFL_SHAPE_RANK_MAX)
                        return false;
                s.dim[s.rank++] = v;
                if (!*end)
                        break;
                if (*end != 'x' && *end != ',')
                        return false;
                text = end + 1;
        }
        *ret_shape = s;
        return true;
}

/* "C,H,W:classes:n_train:n_test:seed" */
static bool parse_synthetic(const char *text, struct mfl_dataset_config *c)
{
        char shape[64];
        int used = 0;
        const char *colon = strchr(text, ':');
        if (!colon || (size_t)(colon - text) >= sizeof shape)
                return false;
        memcpy(shape, text, (size_t)(colon - text));
        shape[colon - text] = '\0';
        return mfl_data_option_shape(shape, &c->shape) &&
               sscanf(colon + 1, "%d:%" SCNu32 ":%" SCNu32 ":%" SCNu64 "%n", &c->classes, &c->n_train,
                       &c->n_test, &c->seed, &used) == 4 &&
               !colon[1 + used];
}

static int fail_form(const char *text, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID,
                "--data: '%.120s' is not NAME=FORMAT:PATH[,KEY=VALUE]..., FORMAT being idx, cifar10, "
                "cifar100, npy, npz, "
                "csv, text, images or synthetic, e.g. fashion-mnist=idx:/usr/share/datasets/fashion-mnist, "
                "iris=csv:iris.csv,test_fraction=0.2 or toy=synthetic:1,28,28:10:1000:200:1",
                text);
}

int mfl_data_option_parse(const char *text, struct mfl_dataset_config *ret_config, struct mfl_error *err)
{
        struct mfl_dataset_config c = {.dir = NULL};
        const char *equals = strchr(text, '='), *colon = equals ? strchr(equals, ':') : NULL;
        if (!colon || equals == text || (size_t)(equals - text) >= sizeof c.name)
                return fail_form(text, err);
        memcpy(c.name, text, (size_t)(equals - text));
        size_t n = (size_t)(colon - equals - 1);
        if (n == 9 && !strncmp(equals + 1, "synthetic", n)) {
                c.format = MFL_FORMAT_SYNTHETIC;
                if (!parse_synthetic(colon + 1, &c))
                        return fail_form(text, err);
                *ret_config = c;
                return 0;
        }
        for (int i = 0; mfl_data_format_names[i] && colon[1]; i++)
                if (strlen(mfl_data_format_names[i]) == n &&
                        !strncmp(equals + 1, mfl_data_format_names[i], n))
                        return mfl_dataset_config_parse(
                                c.name, mfl_data_format_names[i], colon + 1, ret_config, err);
        return fail_form(text, err);
}

int mfl_data_option_default(struct mfl_dataset_config *ret_config, struct mfl_error *err)
{
        return mfl_data_option_parse(DEFAULT_NAME "=idx:" DEFAULT_DIR, ret_config, err);
}
