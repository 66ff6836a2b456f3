/* SPDX-License-Identifier: Apache-2.0 */
/* TensorBoard's event files.
 *
 * Happy path: folder -> file, locked -> read the existing records, cut off an incomplete end -> version, the
 * job as a text, then one record per round. Failures: another writer has the file; the folder holds events of
 * another run; a file that mfl did not write; the disk (an incomplete record is taken back).
 */
#include "cli/pull/export.h"

#include <dirent.h>
#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/event.pb-c.h"
#include "common/base/crc32c.h"

#define RECORD_MAX (1u << 20) /* the longest record is the job file, 256 KiB */
#define HEAD_BYTES 12u        /* u64 length, u32 CRC of the length */
#define FRAME_BYTES 16u       /* header, and the CRC of the data after them */
#define VALUES_MAX (16 + MFL_MEASURES + MFL_METRICS_MAX)

/* ---- records ---- */

/* A CRC over data that contain CRCs is weak, hence the mask: tensorflow/core/lib/hash/crc32c.h. */
static uint32_t masked_crc(const void *data, size_t bytes)
{
        uint32_t crc = mfl_crc32c(0, data, bytes);
        return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void put_u32(uint8_t *at, uint32_t value)
{
        value = htole32(value);
        memcpy(at, &value, sizeof value);
}

/* The caller frees it. */
static uint8_t *make_record(const Tb__Event *event, size_t *ret_bytes)
{
        size_t n = tb__event__get_packed_size(event);
        uint8_t *record = mfl_malloc(n + FRAME_BYTES);
        uint64_t length = htole64(n);
        if (!record)
                return NULL;
        memcpy(record, &length, sizeof length);
        put_u32(record + 8, masked_crc(record, 8));
        tb__event__pack(event, record + HEAD_BYTES);
        put_u32(record + HEAD_BYTES + n, masked_crc(record + HEAD_BYTES, n));
        *ret_bytes = n + FRAME_BYTES;
        return record;
}

static int write_all(int fd, const uint8_t *data, size_t bytes)
{
        while (bytes) {
                ssize_t n = write(fd, data, bytes);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return n ? -errno : -EIO;
                data += n;
                bytes -= (size_t)n;
        }
        return 0;
}

static int append(struct mfl_events *e, const Tb__Event *event, struct mfl_error *err)
{
        size_t n;
        MFL_CLEANUP_FREE uint8_t *record = make_record(event, &n);
        if (!record)
                return mfl_fail_memory(err, 0, "an event");
        int r = write_all(e->fd, record, n);
        if (!r) {
                e->bytes += n;
                return 0;
        }
        if (ftruncate(e->fd, (off_t)e->bytes)) /* the next start cuts it off */
                return mfl_fail(err, r, "write %s: %s (the file now ends with an incomplete record)", e->path,
                        strerror(-r));
        return mfl_fail(err, r, "write %s: %s", e->path, strerror(-r));
}

/* ---- what events say ---- */

static void make_version(Tb__Event *event, Tb__SourceMetadata *source, uint64_t created_ms)
{
        tb__event__init(event);
        tb__source_metadata__init(source);
        source->writer = "mfl";
        event->wall_time = (double)created_ms / 1000;
        event->what_case = TB__EVENT__WHAT_FILE_VERSION;
        event->file_version = "brain.Event:2";
        event->source_metadata = source;
}

/* Markdown: a sentence, and the job file as submitted. */
static char *describe(const Mfl__JobDetail *job)
{
        const Mfl__JobInfo *i = job->info;
        char *text = NULL;
        size_t n;
        FILE *f = open_memstream(&text, &n);
        if (!f)
                return NULL;
        fprintf(f,
                "**%s** (%s): model %s, %" PRIu64 " parameters (%" PRIu64
                " move), data %s, strategy %s, %u rounds\n\n",
                i->name, i->job, i->model, i->n_params, i->n_params - i->n_frozen, i->data, i->strategy,
                i->rounds);
        for (const char *line = job->text; *line;) {
                int length = (int)strcspn(line, "\n");
                fprintf(f, "    %.*s\n", length, line);
                line += length;
                line += *line == '\n';
        }
        if (fclose(f)) {
                free(text);
                return NULL;
        }
        return text;
}

static int add_text(struct mfl_events *e, const Mfl__JobDetail *job, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *text = describe(job);
        if (!text)
                return mfl_fail_memory(err, 0, "the text of a job");
        ProtobufCBinaryData string = {.len = strlen(text), .data = (uint8_t *)text};
        Tb__PluginData plugin = TB__PLUGIN_DATA__INIT;
        Tb__Metadata metadata = TB__METADATA__INIT;
        Tb__Shape scalar = TB__SHAPE__INIT;
        Tb__Tensor tensor = TB__TENSOR__INIT;
        Tb__Value value = TB__VALUE__INIT, *values = &value;
        Tb__Summary summary = TB__SUMMARY__INIT;
        Tb__Event event = TB__EVENT__INIT;
        plugin.plugin_name = "text";
        metadata.plugin_data = &plugin;
        metadata.data_class = TB__DATA_CLASS__DATA_CLASS_TENSOR;
        tensor.dtype = TB__DATA_TYPE__DT_STRING;
        tensor.tensor_shape = &scalar;
        tensor.n_string_val = 1;
        tensor.string_val = &string;
        value.tag = "job";
        value.metadata = &metadata;
        value.value_case = TB__VALUE__VALUE_TENSOR;
        value.tensor = &tensor;
        summary.n_value = 1;
        summary.value = &values;
        event.wall_time = (double)job->info->created_ms / 1000;
        event.what_case = TB__EVENT__WHAT_SUMMARY;
        event.summary = &summary;
        return append(e, &event, err);
}

struct scalars {
        Tb__PluginData plugin;
        Tb__Metadata metadata;
        Tb__Value value[VALUES_MAX], *pointer[VALUES_MAX];
        Tb__Summary summary;
        char tag[MFL_METRICS_MAX][80];
};

/* As simple_value: TensorBoard converts it to a tensor when it reads it, and older readers know nothing else.
 */
static void put(struct scalars *s, const char *tag, double value)
{
        size_t i = s->summary.n_value++;
        mfl_assert(i < VALUES_MAX);
        Tb__Value *v = &s->value[i];
        tb__value__init(v);
        v->tag = (char *)(uintptr_t)tag;
        v->metadata = &s->metadata;
        v->value_case = TB__VALUE__VALUE_SIMPLE_VALUE;
        v->simple_value = (float)value;
        s->pointer[i] = v;
}

static void put_metrics(struct scalars *s, const Mfl__RoundInfo *r)
{
        struct mfl_metrics metrics = mfl_round_metrics(r);
        char name[64];
        double value;
        for (uint32_t k = 0; mfl_metric_get(&metrics, k, name, &value); k++) {
                mfl_snprintf(s->tag[k], sizeof s->tag[k], "metric/%s", name);
                if (isfinite(value))
                        put(s, s->tag[k], value);
        }
}

static void fill_scalars(struct scalars *s, const Mfl__RoundInfo *r)
{
        tb__plugin_data__init(&s->plugin);
        tb__metadata__init(&s->metadata);
        tb__summary__init(&s->summary);
        s->plugin.plugin_name = "scalars";
        s->metadata.plugin_data = &s->plugin;
        s->metadata.data_class = TB__DATA_CLASS__DATA_CLASS_SCALAR;
        s->summary.value = s->pointer;
        if (r->clients)
                put(s, "train/loss", r->train_loss);
        if (r->clients && !r->no_accuracy)
                put(s, "train/accuracy", r->train_accuracy);
        if (r->evaluated) {
                put(s, "test/loss", r->loss);
                if (!r->no_accuracy)
                        put(s, "test/accuracy", r->accuracy);
                if (r->has_mean_iou_case)
                        put(s, "test/mean_iou", r->mean_iou);
                struct mfl_measures m = mfl_round_measures(r);
                for (int k = 0; k < MFL_MEASURES; k++)
                        if (mfl_measure_known(&m, (enum mfl_measure)k))
                                put(s, mfl_measure_infos[k].tag, m.v[k]);
                put_metrics(s, r);
        }
        put(s, "round/seconds", r->seconds);
        if (r->has_virtual_end_case)
                put(s, "round/virtual_end", r->virtual_end);
        put(s, "round/attempt", r->attempt);
        put(s, "round/samples", (double)r->samples);
        put(s, "round/daemons", r->daemons);
        put(s, "clients/counted", r->clients);
        put(s, "clients/rejected", r->clients_rejected);
        put(s, "network/up_bytes", (double)r->bytes_up);
        put(s, "network/down_bytes", (double)r->bytes_down);
        put(s, "network/up_bytes_alone", (double)r->bytes_up_alone);
        put(s, "network/down_bytes_alone", (double)r->bytes_down_alone);
}

int mfl_events_add(struct mfl_events *e, const Mfl__RoundInfo *round, struct mfl_error *err)
{
        struct scalars scalars = {.summary = {.n_value = 0}};
        Tb__Event event = TB__EVENT__INIT;
        if (round->round <= e->last)
                return 0;
        fill_scalars(&scalars, round);
        event.wall_time = (double)round->committed_ms / 1000;
        event.step = round->round;
        event.what_case = TB__EVENT__WHAT_SUMMARY;
        event.summary = &scalars.summary;
        int r = append(e, &event, err);
        if (r)
                return r;
        e->last = round->round;
        e->n++;
        return 0;
}

/* ---- what is there ---- */

/* Reads one record's data into buf. False: the rest of the file is not a complete record. */
static bool read_record(const struct mfl_events *e, uint64_t at, uint8_t *buf, size_t *ret_bytes)
{
        uint64_t length;
        uint32_t crc;
        if (pread(e->fd, buf, HEAD_BYTES, (off_t)at) != HEAD_BYTES)
                return false;
        memcpy(&length, buf, sizeof length);
        memcpy(&crc, buf + 8, sizeof crc);
        length = le64toh(length);
        if (le32toh(crc) != masked_crc(buf, 8) || length > RECORD_MAX)
                return false;
        size_t n = (size_t)length;
        if (pread(e->fd, buf, n + 4, (off_t)(at + HEAD_BYTES)) != (ssize_t)(n + 4))
                return false;
        memcpy(&crc, buf + n, sizeof crc);
        *ret_bytes = n;
        return le32toh(crc) == masked_crc(buf, n);
}

/* Counts the complete records after the first, and finds the newest round. */
static int scan(struct mfl_events *e, uint32_t *ret_n, struct mfl_error *err)
{
        MFL_CLEANUP_FREE uint8_t *buf = mfl_malloc(RECORD_MAX + 4);
        size_t n;
        if (!buf)
                return mfl_fail_memory(err, RECORD_MAX, "events");
        *ret_n = 0;
        while (read_record(e, e->bytes, buf, &n)) {
                Tb__Event *event = tb__event__unpack(NULL, n, buf);
                if (!event)
                        break;
                bool summary = event->what_case == TB__EVENT__WHAT_SUMMARY;
                if (summary && event->step > e->last && event->step <= UINT32_MAX)
                        e->last = (uint32_t)event->step;
                tb__event__free_unpacked(event, NULL);
                e->bytes += n + FRAME_BYTES;
                ++*ret_n;
        }
        return 0;
}

/* The file begins with the job's first record, or with the part of it that a killed writer left. */
static int check_start(
        struct mfl_events *e, const uint8_t *record, size_t n, uint64_t *ret_bytes, struct mfl_error *err)
{
        uint8_t there[256];
        struct stat st;
        mfl_assert(n <= sizeof there);
        if (fstat(e->fd, &st))
                return mfl_fail_errno(err, "look at %s", e->path);
        size_t have = MFL_MIN((size_t)st.st_size, n);
        if (pread(e->fd, there, have, 0) != (ssize_t)have)
                return mfl_fail_errno(err, "read %s", e->path);
        if (memcmp(there, record, have))
                return mfl_fail(err, MFL_CLI_CONFLICT,
                        "%s: these events are from another job; choose another folder with -o", e->path);
        *ret_bytes = (uint64_t)st.st_size;
        return 0;
}

static int start(struct mfl_events *e, const Mfl__JobDetail *job, struct mfl_error *err)
{
        Tb__Event version;
        Tb__SourceMetadata source;
        size_t n;
        uint64_t bytes = 0;
        uint32_t n_records = 0;
        make_version(&version, &source, job->info->created_ms);
        MFL_CLEANUP_FREE uint8_t *record = make_record(&version, &n);
        if (!record)
                return mfl_fail_memory(err, 0, "an event");
        int r = check_start(e, record, n, &bytes, err);
        if (!r && bytes >= n) {
                e->bytes = n;
                r = scan(e, &n_records, err);
        }
        if (r)
                return r;
        if (bytes != e->bytes && ftruncate(e->fd, (off_t)e->bytes))
                return mfl_fail_errno(err, "cut off the incomplete end of %s", e->path);
        if (!e->bytes)
                r = append(e, &version, err);
        if (!r && !n_records)
                r = add_text(e, job, err);
        return r;
}

/* ---- the file ---- */

/* TensorBoard treats all event files of a folder as one run, so a second file would mix its curves with
 * these. */
static int check_alone(const char *dir, const char *name, struct mfl_error *err)
{
        DIR *d = opendir(dir);
        int r = 0;
        if (!d)
                return mfl_fail_errno(err, "read %s", dir);
        for (const struct dirent *entry; !r && (entry = readdir(d));)
                if (strstr(entry->d_name, "tfevents") && strcmp(entry->d_name, name))
                        r = mfl_fail(err, MFL_CLI_CONFLICT,
                                "%s has %s, with events of something else; choose another folder with -o",
                                dir, entry->d_name);
        closedir(d);
        return r;
}

static int open_file(struct mfl_events *e, struct mfl_error *err)
{
        e->fd = open(e->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (e->fd < 0)
                return mfl_fail_errno(err, "open %s", e->path);
        if (!flock(e->fd, LOCK_EX | LOCK_NB))
                return 0;
        if (errno == EWOULDBLOCK)
                return mfl_fail(err, MFL_CLI_CONFLICT, "%s: another 'mfl pull' is writing to it", e->path);
        return mfl_fail_errno(err, "lock %s", e->path);
}

int mfl_events_open(
        struct mfl_events *e, const char *logdir, const Mfl__JobDetail *job, struct mfl_error *err)
{
        char dir[3072], name[64];
        *e = (struct mfl_events){.fd = -1};
        /* A job's name consists of letters, digits, '.', '_' and '-'. */
        int n = snprintf(dir, sizeof dir, "%s/%s-%s", logdir, job->info->job, job->info->name);
        if (n < 0 || (size_t)n >= sizeof dir)
                return mfl_fail(err, MFL_CLI_USAGE, "--output: the path is too long");
        snprintf(name, sizeof name, "events.out.tfevents.%010" PRIu64 ".mfl", job->info->created_ms / 1000);
        snprintf(e->path, sizeof e->path, "%s/%s", dir, name);
        int r = mfl_fs_mkdirs(dir, 0755, err);
        if (!r)
                r = check_alone(dir, name, err);
        if (!r)
                r = open_file(e, err);
        if (!r)
                r = start(e, job, err);
        if (r)
                mfl_events_close(e);
        return r;
}

void mfl_events_close(struct mfl_events *e)
{
        if (e->fd >= 0)
                close(e->fd);
        e->fd = -1;
}
