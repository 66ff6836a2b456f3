/* SPDX-License-Identifier: Apache-2.0 */
/* Drawing in place on a terminal, with few ANSI sequences: up, clear below, hide and show the cursor. */
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/base/display.h"

static FILE *hidden_on; /* for exit() in the middle */

static void show_cursor(void)
{
        if (!hidden_on)
                return;
        fputs("\033[?25h", hidden_on);
        fflush(hidden_on);
        hidden_on = NULL;
}

static void hide_cursor(struct mfl_screen *s)
{
        static bool registered;
        if (s->hidden)
                return;
        if (!registered)
                registered = !atexit(show_cursor);
        s->hidden = true;
        hidden_on = s->out;
        fputs("\033[?25l", s->out);
}

void mfl_screen_clear(struct mfl_screen *s)
{
        if (s->lines)
                fprintf(s->out, "\033[%dA\r\033[J", s->lines);
        s->lines = 0;
}

void mfl_screen_draw(struct mfl_screen *s, const char *text)
{
        hide_cursor(s);
        mfl_screen_clear(s);
        fputs(text, s->out);
        for (const char *c = text; *c; c++)
                s->lines += *c == '\n';
        fflush(s->out);
}

void mfl_screen_end(struct mfl_screen *s)
{
        s->lines = 0;
        if (s->hidden)
                show_cursor();
        s->hidden = false;
}

static int number_of(const char *variable, int otherwise)
{
        const char *text = getenv(variable);
        int n = text ? atoi(text) : 0;
        return n > 0 && n < 10000 ? n : otherwise;
}

int mfl_screen_columns(int fd)
{
        struct winsize size;
        bool known = !ioctl(fd, TIOCGWINSZ, &size) && size.ws_col;
        return known ? size.ws_col : number_of("COLUMNS", 80);
}

int mfl_screen_rows(int fd)
{
        struct winsize size;
        bool known = !ioctl(fd, TIOCGWINSZ, &size) && size.ws_row;
        return known ? size.ws_row : number_of("LINES", 24);
}
