/* SPDX-License-Identifier: Apache-2.0 */
/* Feeds every file of the folders given to a fuzz target, so that the corpus runs with any compiler. */
#include "common/base/base.h"

#include <dirent.h>
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
        FILE *f = fopen(path, "rb");
        if (!f || fseek(f, 0, SEEK_END)) {
                perror(path);
                return -1;
        }
        long size = ftell(f);
        /* Exactly as large as the input, so that a sanitizer sees the first byte beyond. */
        uint8_t *data = malloc((size_t)size);
        rewind(f);
        if ((size && !data) || fread(data, 1, (size_t)size, f) != (size_t)size) {
                fprintf(stderr, "%s: not read\n", path);
                exit(1);
        }
        fclose(f);
        LLVMFuzzerTestOneInput(data, (size_t)size);
        free(data);
        return 0;
}

static int replay_folder(const char *folder)
{
        DIR *dir = opendir(folder);
        int n = 0;
        if (!dir) {
                perror(folder);
                return -1;
        }
        for (struct dirent *e; (e = readdir(dir));) {
                char path[4096];
                if (e->d_name[0] == '.')
                        continue;
                snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
                if (replay_file(path))
                        exit(1);
                n++;
        }
        closedir(dir);
        return n;
}

int main(int argc, char **argv)
{
        int n = 0;
        for (int i = 1; i < argc; i++) {
                int r = replay_folder(argv[i]);
                if (r < 0)
                        return 1;
                n += r;
        }
        printf("%d inputs replayed\n", n);
        if (!n)
                fprintf(stderr, "the corpus is empty: nothing was tested\n");
        return n ? 0 : 1;
}
