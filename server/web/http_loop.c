/* SPDX-License-Identifier: Apache-2.0 */
/* The loop's side of the HTTP port: the cache of pages, the batches of wanted pages, and the beat. */
#include "server/web/http_internal.h"

#include <unistd.h>

#define LIFE_MS 20000u
#define LIFE_PATIENT_MS 3600000u
#define BATCH_EVERY_MS 25

/* ---- pages ---- */

void mfl_http_page_unref(void *arg)
{
        struct mfl_http_page *page = arg;
        unsigned refs = page ? atomic_fetch_sub(&page->refs, 1) : 0;
        mfl_assert(!page || refs > 0);
        if (refs == 1) {
                if (page->fd >= 0)
                        close(page->fd);
                free(page->body);
                free(page);
        }
}

static struct mfl_http_page *page_ref(struct mfl_http_page *page)
{
        if (page)
                atomic_fetch_add(&page->refs, 1);
        return page;
}

/* Under the lock. */
static struct mfl_http_entry *find_entry(struct mfl_http *http, const char *path)
{
        for (size_t i = 0; i < HTTP_CACHE_PAGES; i++)
                if (http->cache[i].page && !strcmp(http->cache[i].path, path))
                        return &http->cache[i];
        return NULL;
}

/* Under the lock: the entry of that path, a free one, or that of the oldest page. */
static struct mfl_http_entry *place_for(struct mfl_http *http, const char *path)
{
        struct mfl_http_entry *best = find_entry(http, path);
        if (best)
                return best;
        best = &http->cache[0];
        for (size_t i = 1; i < HTTP_CACHE_PAGES && best->page; i++)
                if (!http->cache[i].page || http->cache[i].page->made_ms < best->page->made_ms)
                        best = &http->cache[i];
        return best;
}

struct mfl_http_page *mfl_http_fresh_page(struct mfl_http *http, const char *path)
{
        pthread_mutex_lock(&http->lock);
        struct mfl_http_entry *entry = find_entry(http, path);
        bool fresh = entry && mfl_now_ms() - entry->page->made_ms < http->options.fresh_ms;
        struct mfl_http_page *page = fresh ? page_ref(entry->page) : NULL;
        pthread_mutex_unlock(&http->lock);
        return page;
}

/* ---- the loop's side ---- */

struct mfl_http_ask *mfl_http_take_asks(struct mfl_http_ask **list, const char *path)
{
        struct mfl_http_ask *taken = NULL, *ask;
        while ((ask = *list)) {
                if (path && strcmp(ask->path, path)) {
                        list = &ask->next;
                        continue;
                }
                *list = ask->next;
                ask->next = taken;
                taken = ask;
        }
        return taken;
}

void mfl_http_do_acts(struct mfl_http *http)
{
        for (int i = 0; i < HTTP_CONNECTIONS_MAX; i++) {
                pthread_mutex_lock(&http->lock);
                struct mfl_http_ask *ask = http->closing ? NULL : http->to_do;
                if (ask) {
                        http->to_do = ask->next;
                        ask->next = http->doing;
                        http->doing = ask;
                }
                pthread_mutex_unlock(&http->lock);
                if (!ask)
                        return;
                http->options.act(http->options.user, ask->act);
        }
}

static void on_batch(uv_timer_t *timer)
{
        struct mfl_http *http = timer->data;
        char path[MFL_HTTP_PATH_BYTES];
        http->batch_ms = uv_now(timer->loop);
        mfl_http_do_acts(http);
        for (int i = 0; i < HTTP_CONNECTIONS_MAX; i++) {
                pthread_mutex_lock(&http->lock);
                if (!http->wanted || http->closing) {
                        pthread_mutex_unlock(&http->lock);
                        return;
                }
                memcpy(path, http->wanted->path, sizeof path);
                bool rendering = false;
                for (struct mfl_http_ask *ask = http->parked; ask && !rendering; ask = ask->next)
                        rendering = !strcmp(ask->path, path);
                struct mfl_http_ask *asks = mfl_http_take_asks(&http->wanted, path), *ask;
                while ((ask = asks)) {
                        asks = ask->next;
                        ask->next = http->parked;
                        http->parked = ask;
                }
                pthread_mutex_unlock(&http->lock);
                if (!rendering)
                        http->options.render(http->options.user, path);
        }
}

/* There is a pause between batches, so that many requests cost the loop no more than a few. */
void mfl_http_on_wakeup(uv_async_t *async)
{
        struct mfl_http *http = async->data;
        uint64_t now = uv_now(async->loop), due = http->batch_ms + BATCH_EVERY_MS;
        if (!uv_is_active((uv_handle_t *)&http->batch) && !uv_is_closing((uv_handle_t *)&http->batch))
                uv_timer_start(&http->batch, on_batch, due > now ? due - now : 0, 0);
}

static struct mfl_http_page *page_new(unsigned status, const char *type, char *body, size_t n)
{
        struct mfl_http_page *page = body ? mfl_calloc(1, sizeof *page) : NULL;
        if (!page) {
                free(body);
                return NULL;
        }
        mfl_assert(type);
        atomic_init(&page->refs, 1);
        page->fd = -1;
        page->status = status;
        page->type = type;
        page->body = body;
        page->n = n;
        page->made_ms = mfl_now_ms();
        return page;
}

void mfl_http_answer(
        struct mfl_http *http, const char *path, unsigned status, const char *type, char *body, size_t n)
{
        struct mfl_http_page *page = page_new(status, type, body, n), *old = NULL;
        pthread_mutex_lock(&http->lock);
        struct mfl_http_ask *asks = mfl_http_take_asks(&http->parked, path);
        for (struct mfl_http_ask *ask = asks; ask; ask = ask->next)
                ask->page = page_ref(page);
        if (page && status == 200) {
                struct mfl_http_entry *entry = place_for(http, path);
                old = entry->page;
                entry->page = page_ref(page);
                mfl_strcpy(entry->path, sizeof entry->path, path);
        }
        pthread_mutex_unlock(&http->lock);
        mfl_http_page_unref(old);
        mfl_http_page_unref(page);
        mfl_http_resume(asks);
}

void mfl_http_acted(struct mfl_http *http, uint64_t id, const struct mfl_http_result *result)
{
        struct mfl_http_page *page = mfl_calloc(1, sizeof *page);
        if (page) {
                atomic_init(&page->refs, 1);
                page->status = result->status;
                page->type = result->type;
                page->alone = true;
                page->fd = result->fd;
                page->body = result->body;
                page->n = result->n;
                mfl_strcpy(page->cookie, sizeof page->cookie, result->cookie ? result->cookie : "");
                mfl_strcpy(
                        page->file_name, sizeof page->file_name, result->file_name ? result->file_name : "");
        } else {
                free(result->body);
                if (result->fd >= 0)
                        close(result->fd);
        }
        pthread_mutex_lock(&http->lock);
        struct mfl_http_ask **at = &http->doing, *ask;
        while (*at && (*at)->act->id != id)
                at = &(*at)->next;
        ask = *at;
        if (ask) {
                *at = ask->next;
                ask->next = NULL;
                ask->page = page;
        }
        pthread_mutex_unlock(&http->lock);
        if (ask)
                mfl_http_resume(ask);
        else
                mfl_http_page_unref(page);
}

void mfl_http_beat(struct mfl_http *http, const char *unwell, const char *unready)
{
        pthread_mutex_lock(&http->lock);
        http->beat_ms = mfl_now_ms();
        mfl_strcpy(http->unwell, sizeof http->unwell, unwell ? unwell : "");
        mfl_strcpy(http->unready, sizeof http->unready, unready ? unready : "");
        for (struct mfl_http_peer *peer = http->peers; peer; peer = peer->next)
                if (!peer->acting && !peer->sent_away &&
                        http->beat_ms > peer->since_ms + (peer->patient ? LIFE_PATIENT_MS : LIFE_MS))
                        mfl_http_send_away(peer);
        pthread_mutex_unlock(&http->lock);
}
