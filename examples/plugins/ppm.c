/* SPDX-License-Identifier: Apache-2.0 */
/* A data format as a plug-in: folders of binary PPM pictures (P6, 8 bits), all of one size.
 *
 *      PATH/train/0/x.ppm, PATH/train/1/y.ppm, ..., PATH/test/0/z.ppm: the folder's number is the class
 *
 * Build: cc -shared -fPIC -O2 -o ppm.so ppm.c
 * client.yaml: plugin_data: [{name: leaves, format: ppm, path: /data/leaves, settings: {classes: 4}}] */
#include <dirent.h>
#include <mfl/format.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES };
static const struct mfl_plugin_number settings[] = {[CLASSES] = {"classes", 2, 1, 1000}};

struct picture {
        char path[512];
        int label;
};
struct split {
        uint32_t n;
        struct picture *v;
};
struct set {
        struct split split[2]; /* train, test */
        int width, height;
};

static int is_ppm(const struct dirent *entry)
{
        size_t n = strlen(entry->d_name);
        return n > 4 && !strcmp(entry->d_name + n - 4, ".ppm");
}

/* In the order of names, so that every daemon numbers the samples alike. */
static int add_class(struct split *split, const char *folder, int label)
{
        struct dirent **entries;
        int n = scandir(folder, &entries, is_ppm, alphasort), failed = 0;
        for (int i = 0; i < n; i++) {
                struct picture *v = failed ? NULL : realloc(split->v, (split->n + 1) * sizeof *v);
                failed |= !v;
                if (v) {
                        split->v = v;
                        v[split->n].label = label;
                        failed |= snprintf(v[split->n].path, sizeof v->path, "%s/%s", folder,
                                          entries[i]->d_name) >= (int)sizeof v->path;
                        split->n += !failed;
                }
                free(entries[i]);
        }
        if (n >= 0)
                free(entries);
        return failed;
}

static FILE *open_picture(const char *path, int *ret_width, int *ret_height)
{
        int most = 0;
        FILE *file = fopen(path, "rb");
        if (file && fscanf(file, "P6 %d %d %d", ret_width, ret_height, &most) == 3 && most == 255 &&
                fgetc(file) != EOF)
                return file;
        if (file)
                fclose(file);
        return NULL;
}

static void close_set(void *of)
{
        struct set *set = of;
        free(set->split[0].v);
        free(set->split[1].v);
        free(set);
}

static int open_set(const char *path, const double *numbers, void **ret_set,
        struct mfl_format_shape *ret_shape, char *reason)
{
        static const char *const names[] = {"train", "test"};
        struct set *set = calloc(1, sizeof *set);
        int classes = (int)numbers[CLASSES], failed = !set;
        char folder[512];
        FILE *first;
        for (int s = 0; s < 2 && !failed; s++)
                for (int label = 0; label < classes && !failed; label++)
                        failed = snprintf(folder, sizeof folder, "%s/%s/%d", path, names[s], label) >=
                                         (int)sizeof folder ||
                                 add_class(&set->split[s], folder, label);
        if (failed || !set->split[0].n ||
                !(first = open_picture(set->split[0].v[0].path, &set->width, &set->height))) {
                snprintf(reason, MFL_FORMAT_REASON_BYTES,
                        "there is no 8-bit PPM (P6) in its train/0 to train/%d", classes - 1);
                if (set)
                        close_set(set);
                return 1;
        }
        fclose(first);
        ret_shape->rank = 3;
        ret_shape->dim[0] = 3;
        ret_shape->dim[1] = set->height;
        ret_shape->dim[2] = set->width;
        ret_shape->classes = (uint32_t)classes;
        ret_shape->n_train = set->split[0].n;
        ret_shape->n_test = set->split[1].n;
        *ret_set = set;
        return 0;
}

static int read_one(const struct set *set, const struct picture *picture, float *to, char *reason)
{
        int width, height;
        size_t pixels = (size_t)set->width * (size_t)set->height, i = 0;
        FILE *file = open_picture(picture->path, &width, &height);
        if (file && width == set->width && height == set->height)
                for (int c; i < 3 * pixels && (c = fgetc(file)) != EOF; i++)
                        to[i % 3 * pixels + i / 3] = (float)c / 255;
        if (file)
                fclose(file);
        if (i == 3 * pixels)
                return 0;
        snprintf(reason, MFL_FORMAT_REASON_BYTES, "%.120s is no 8-bit PPM of %d x %d", picture->path,
                set->width, set->height);
        return 1;
}

static int read_set(void *of, const struct mfl_format_read *read)
{
        const struct set *set = of;
        size_t floats = 3 * (size_t)set->width * (size_t)set->height;
        for (uint32_t i = 0; i < read->count; i++) {
                const struct picture *picture = &set->split[read->test].v[read->first + i];
                read->labels[i] = picture->label;
                if (read_one(set, picture, read->samples + i * floats, read->reason))
                        return 1;
        }
        return 0;
}

const struct mfl_format_plugin *mfl_format_plugin(void)
{
        static const struct mfl_format_plugin plugin = {.abi = MFL_FORMAT_ABI,
                .name = "ppm",
                .version = "1.0",
                .n_settings = sizeof settings / sizeof settings[0],
                .settings = settings,
                .open = open_set,
                .read = read_set,
                .close = close_set};
        return &plugin;
}
