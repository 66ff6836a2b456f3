/* SPDX-License-Identifier: Apache-2.0 */
/* The value of --data. */
#include "cli/job/data_option.h"
#include "common/data/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

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
                "--data: '%.120s' is not NAME=FORMAT:PATH[,KEY=VALUE]... FORMAT is idx, cifar10, cifar100, "
                "npy, npz, csv, text, images or synthetic. Examples: "
                "fashion-mnist=idx:/usr/share/datasets/fashion-mnist, "
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

/* The one command that fetches or makes each data set of the examples, and the option that it is given with.
 * examples/README.md has the same commands. */
static const struct {
        const char *name, *command, *option;
} sources[] = {
        {DEFAULT_NAME, "apt-get install dataset-fashion-mnist", NULL},
        {"cifar10", "curl -L https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz | tar xz",
                "cifar10=cifar10:cifar-10-batches-bin"},
        {"cifar100", "curl -L https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz | tar xz",
                "cifar100=cifar100:cifar-100-binary"},
        {"shakespeare",
                "curl -LO "
                "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
                "shakespeare=text:input.txt,owner=speaker,test_fraction=0.1"},
        {"loans", "python3 examples/categories.py > loans.csv",
                "loans=csv:loans.csv,test_fraction=0.2,normalise=columns"},
        {"claims", "python3 examples/claims.py > claims.csv",
                "claims=csv:claims.csv,test_fraction=0.2,normalise=columns"},
        {"reviews", "python3 examples/reviews.py > reviews.csv",
                "reviews=csv:reviews.csv,text=text,label=label,length=24,test_fraction=0.2"},
        {"meters", "python3 examples/meters.py > meters.csv",
                "meters=csv:meters.csv,window=24,stride=4,group=house,time=hour,features=[load,temperature],"
                "label=device,label_at=majority,test_fraction=0.2,normalise=columns"},
        {"scenes", "python3 examples/segmentation.py scenes.npz", "scenes=npz:scenes.npz,ignore_index=255"},
};

static int fail_unknown(const char *name, struct mfl_error *err)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(sources); i++)
                if (!strcmp(sources[i].name, name))
                        return mfl_fail(err, MFL_NOT_FOUND,
                                "the job's data set is '%s'; this command gets it: %s%s%s", name,
                                sources[i].command, sources[i].option ? " -- then add --data " : "",
                                sources[i].option ? sources[i].option : "");
        return mfl_fail(err, MFL_NOT_FOUND,
                "the job's data set is '%s': give its folder with --data %s=FORMAT:DIR", name, name);
}

/* A data set whose folder is missing does not exist, even if an option names it. */
static int check_place(const struct mfl_dataset_config *config, bool is_default, struct mfl_error *err)
{
        if (!config->dir || !access(config->dir, R_OK))
                return 0;
        if (is_default)
                return fail_unknown(config->name, err);
        return mfl_fail(err, errno == ENOENT ? MFL_NOT_FOUND : MFL_INVALID, "--data %s: %s: %s", config->name,
                config->dir, strerror(errno));
}

/* The data set that a daemon without configuration offers: Debian's Fashion-MNIST. -ENOMEM. */
static int take_default(struct mfl_dataset_config *ret_config, struct mfl_error *err)
{
        return mfl_data_option_parse(DEFAULT_NAME "=idx:" DEFAULT_DIR, ret_config, err);
}

int mfl_data_option_find(const char *const *options, int n, const char *name,
        struct mfl_dataset_config *ret_config, struct mfl_error *err)
{
        struct mfl_dataset_config c = {.dir = NULL};
        bool found = false;
        int r = 0;
        for (int i = 0; !r && i < n; i++) {
                struct mfl_dataset_config next;
                r = mfl_data_option_parse(options[i], &next, err);
                if (r || strcmp(next.name, name)) {
                        if (!r)
                                mfl_dataset_config_deinit(&next);
                        continue;
                }
                mfl_dataset_config_deinit(&c); /* the last one wins, as in mfl-client */
                c = next;
                found = true;
        }
        if (!r && !found && (n || strcmp(name, DEFAULT_NAME)))
                r = fail_unknown(name, err);
        if (!r && !found)
                r = take_default(&c, err);
        if (!r)
                r = check_place(&c, !found, err);
        if (r)
                mfl_dataset_config_deinit(&c);
        else
                *ret_config = c;
        return r;
}
