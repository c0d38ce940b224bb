/* SPDX-License-Identifier: MIT */
#include "lab/lesson.h"

/*
 * The walk on a terminal, with ANSI sequences alone: the other screen of the terminal, no
 * cursor, no wrapping; keys come one by one, Ctrl-C as a byte like others. What was there
 * before comes back in one place, leave(), also when a signal ends the process: signals
 * are blocked except while waiting for a key, so none of them can come in between.
 *
 *     enter() → draw() ⇄ wait_key() → leave()
 */

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define ESCAPE_WAIT_MS 50 /* an arrow key's bytes come together; ESC alone stays alone */

struct tui {
    int in, out;
    struct termios before;
    sigset_t signals_before;
    struct sigaction actions_before[5];
};

enum key { KEY_OTHER, KEY_NEXT, KEY_BACK, KEY_FIRST, KEY_LAST, KEY_QUIT, KEY_RESIZED };

static const int ending[] = {SIGTERM, SIGHUP, SIGQUIT, SIGINT, SIGWINCH};
enum { N_ENDING = sizeof(ending) / sizeof(ending[0]) };

static volatile sig_atomic_t caught; /* the last signal; read while they are blocked */

static void on_signal(int number)
{
    if (number != SIGWINCH || !caught)
        caught = number;
}

static void put(const struct tui *t, struct slice s)
{
    while (s.len) {
        const ssize_t n = write(t->out, s.ptr, s.len);
        if (n < 0 && errno != EINTR)
            return; /* the terminal has gone; reading will say so */
        if (n > 0)
            s = slice_make(s.ptr + n, s.len - (size_t)n);
    }
}

static void catch_signals(struct tui *t)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigset_t block;
    sigemptyset(&action.sa_mask);
    sigemptyset(&block);
    caught = 0;
    for (int i = 0; i < N_ENDING; i++)
        sigaddset(&block, ending[i]);
    sigprocmask(SIG_BLOCK, &block, &t->signals_before);
    for (int i = 0; i < N_ENDING; i++)
        sigaction(ending[i], &action, &t->actions_before[i]);
}

static void release_signals(struct tui *t)
{
    for (int i = 0; i < N_ENDING; i++)
        sigaction(ending[i], &t->actions_before[i], NULL);
    sigprocmask(SIG_SETMASK, &t->signals_before, NULL);
}

static int enter(struct tui *t, struct err *e)
{
    if (!isatty(t->out) || tcgetattr(t->in, &t->before) != 0)
        return err_errno(e, "the terminal");
    catch_signals(t);
    struct termios raw = t->before;
    raw.c_lflag &= (tcflag_t) ~(ICANON | ECHO | ISIG | IEXTEN);
    raw.c_iflag &= (tcflag_t) ~(IXON | ICRNL);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    tcsetattr(t->in, TCSAFLUSH, &raw);
    put(t, SLICE_LIT("\033[?1049h\033[?25l\033[?7l"));
    return 0;
}

static void leave(struct tui *t)
{
    put(t, SLICE_LIT("\033[?7h\033[?25h\033[?1049l"));
    tcsetattr(t->in, TCSAFLUSH, &t->before);
    release_signals(t);
    if (caught && caught != SIGWINCH)
        raise(caught);
}

static unsigned rows(const struct tui *t)
{
    struct winsize size;
    const bool said = ioctl(t->out, TIOCGWINSZ, &size) == 0 && size.ws_row > 0;
    return said ? size.ws_row : 24;
}

/* Line by line, so that a small terminal loses the end of a screen and never scrolls. */
static void draw(const struct tui *t, const struct lesson *l, unsigned screen)
{
    struct buf text = {0}, out = {0};
    const unsigned height = rows(t);
    lesson_screen(l, screen, true, &text);
    buf_append_str(&out, "\033[H");
    const char *at = text.data + text.start, *end = text.data + text.end;
    for (unsigned line = 1; line < height; line++) {
        const char *feed = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
        if (feed) {
            buf_append(&out, at, (size_t)(feed - at));
            at = feed + 1;
        }
        buf_append_str(&out, "\033[K\r\n");
    }
    buf_printf(&out, "\033[7m %u of %u   arrow keys: on and back   q: quit \033[0m\033[K",
               screen + 1, lesson_screens());
    put(t, buf_slice(&out));
    buf_free(&out);
    buf_free(&text);
}

/* ---- keys -------------------------------------------------------------------------- */

static const struct {
    const char *bytes;
    enum key key;
} keys[] = {
    {"\033[C", KEY_NEXT},  {"\033OC", KEY_NEXT},  {"\033[B", KEY_NEXT},
    {"\033OB", KEY_NEXT},  {"\033[6~", KEY_NEXT}, {" ", KEY_NEXT},
    {"\r", KEY_NEXT},      {"n", KEY_NEXT},       {"l", KEY_NEXT},
    {"\033[D", KEY_BACK},  {"\033OD", KEY_BACK},  {"\033[A", KEY_BACK},
    {"\033OA", KEY_BACK},  {"\033[5~", KEY_BACK}, {"p", KEY_BACK},
    {"h", KEY_BACK},       {"\x7f", KEY_BACK},    {"\b", KEY_BACK},
    {"\033[H", KEY_FIRST}, {"\033OH", KEY_FIRST}, {"\033[1~", KEY_FIRST},
    {"g", KEY_FIRST},      {"\033[F", KEY_LAST},  {"\033OF", KEY_LAST},
    {"\033[4~", KEY_LAST}, {"G", KEY_LAST},       {"q", KEY_QUIT},
    {"Q", KEY_QUIT},       {"\033", KEY_QUIT},    {"\003", KEY_QUIT},
    {"\004", KEY_QUIT},
};

static enum key find_key(const char *bytes)
{
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(keys[i].bytes, bytes) == 0)
            return keys[i].key;
    return KEY_OTHER;
}

/* Waits with signals let through; -1 where one came, or where nothing came in time. */
static int read_byte(const struct tui *t, int timeout_ms)
{
    struct pollfd fd = {.fd = t->in, .events = POLLIN};
    const struct timespec limit = {.tv_nsec = timeout_ms * 1000000L};
    unsigned char c;
    if (caught || ppoll(&fd, 1, timeout_ms < 0 ? NULL : &limit, &t->signals_before) <= 0)
        return -1;
    return read(t->in, &c, 1) == 1 ? c : '\004';
}

static bool ends_sequence(const char *bytes, size_t n)
{
    const char c = bytes[n - 1];
    return n > 2 && ((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '~');
}

static enum key wait_key(const struct tui *t)
{
    char bytes[8] = "";
    size_t n = 0;
    int c = read_byte(t, -1);
    if (c < 0) {
        const bool resized = caught == SIGWINCH;
        if (resized)
            caught = 0;
        return resized ? KEY_RESIZED : KEY_QUIT;
    }
    bytes[n++] = (char)c;
    while (bytes[0] == '\033' && n < sizeof(bytes) - 1 && !ends_sequence(bytes, n)) {
        c = read_byte(t, ESCAPE_WAIT_MS);
        if (c < 0 && caught == SIGWINCH) {
            caught = 0; /* any key draws anew */
            continue;
        }
        if (c < 0)
            break;
        bytes[n++] = (char)c;
    }
    return find_key(bytes);
}

int lesson_tui(const struct lesson *l, int in, int out, struct err *e)
{
    struct tui t = {.in = in, .out = out};
    const unsigned last = lesson_screens() - 1;
    unsigned screen = 0;
    bool going = true;
    int rc = enter(&t, e);
    if (rc)
        return rc;
    while (going) {
        draw(&t, l, screen);
        switch (wait_key(&t)) {
        case KEY_NEXT:
            screen += screen < last;
            break;
        case KEY_BACK:
            screen -= screen > 0;
            break;
        case KEY_FIRST:
            screen = 0;
            break;
        case KEY_LAST:
            screen = last;
            break;
        case KEY_QUIT:
            going = false;
            break;
        case KEY_OTHER:
        case KEY_RESIZED:
            break;
        }
    }
    leave(&t);
    return 0;
}
