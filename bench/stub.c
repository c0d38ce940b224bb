/* SPDX-License-Identifier: MIT */
#include "stub.h"

/*
 *     epoll ──► request whole ──► queue of first tokens ──► queue of the next ones ─┐
 *                                     (all wait equally long,    ▲──────────────────┘
 *                                      so a queue is in order)
 */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/mem.h"

#define MAX_EVENTS 256
#define INPUT ((size_t)64 << 10) /* a request is no longer */

#define ONE_JSON                                                                         \
    "{\"object\":\"chat.completion\",\"choices\":[{\"index\":0,\"message\":{\"role\":"   \
    "\"assistant\",\"content\":\"word\"},\"finish_reason\":\"stop\"}],\"usage\":{"       \
    "\"prompt_tokens\":128,\"completion_tokens\":1}}"
#define MODELS "{\"data\":[{\"id\":\"stub\",\"owned_by\":\"stub\"}]}"
#define STREAM_HEAD                                                                      \
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"                             \
    "Transfer-Encoding: chunked\r\n\r\n"
/* The size of a usual event: about 180 bytes. */
#define EVENT                                                                            \
    "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\","  \
    "\"created\":1700000000,\"model\":\"stub\",\"choices\":[{\"index\":0,\"delta\":{"    \
    "\"content\":\" word\"},\"finish_reason\":null}]}\n\n"
#define LAST                                                                             \
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"    \
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":128,\"completion_tokens\":32,"   \
    "\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\ndata: [DONE]\n\n"

struct client {
    struct list link; /* in a queue */
    int fd;
    unsigned served, left; /* requests; tokens of this one */
    uint64_t due_us;
    struct stub_note *note;
    size_t n; /* bytes of the request so far */
    char in[INPUT];
};

struct service {
    struct stub_options o;
    struct stub_note *notes;
    int epoll, listener;
    struct list first, next; /* who waits for its first token, and for the next */
    char event[512], end[1024], json[1024], models[512];
    size_t event_len, end_len, json_len, models_len;
};

/* ---- answers ----------------------------------------------------------------------- */

/* A client that does not read is none here: the socket takes an answer whole. */
static void send_all(const struct client *c, const char *bytes, size_t n)
{
    if (send(c->fd, bytes, n, MSG_NOSIGNAL) != (ssize_t)n && errno != EPIPE &&
        errno != ECONNRESET)
        perror("stub: send");
}

static size_t document(char *out, size_t size, const char *body)
{
    return (size_t)snprintf(out, size,
                            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                            "Content-Length: %zu\r\n\r\n%s",
                            strlen(body), body);
}

static void make_answers(struct service *s)
{
    s->json_len = document(s->json, sizeof(s->json), ONE_JSON);
    s->models_len = document(s->models, sizeof(s->models), MODELS);
    s->event_len = (size_t)snprintf(s->event, sizeof(s->event), "%zx\r\n" EVENT "\r\n",
                                    strlen(EVENT));
    s->end_len = (size_t)snprintf(s->end, sizeof(s->end), "%zx\r\n" LAST "\r\n0\r\n\r\n",
                                  strlen(LAST));
}

static void drop(struct client *c)
{
    list_del(&c->link);
    close(c->fd);
    free(c);
}

static void end_answer(struct service *s, struct client *c)
{
    c->n = 0;
    if (++c->served == s->o.per_connection)
        drop(c);
}

static void send_token(struct service *s, struct client *c, uint64_t now_us)
{
    const bool first = c->left == s->o.tokens;
    list_del(&c->link);
    list_init(&c->link);
    if (c->note && first)
        c->note->first_us = clock_mono_us();
    if (s->o.tokens == 0) {
        send_all(c, s->json, s->json_len);
        end_answer(s, c);
        return;
    }
    if (--c->left) {
        send_all(c, s->event, s->event_len);
        c->due_us = now_us + s->o.gap_us;
        list_push_back(&s->next, &c->link);
        return;
    }
    char both[1536]; /* so that the end is no packet of its own */
    memcpy(both, s->event, s->event_len);
    memcpy(both + s->event_len, s->end, s->end_len);
    if (c->note)
        c->note->last_us = clock_mono_us();
    send_all(c, both, s->event_len + s->end_len);
    end_answer(s, c);
}

/* ---- requests ---------------------------------------------------------------------- */

static struct stub_note *note_of(const struct service *s, const char *body)
{
    const char *user = s->o.notes ? strstr(body, "\"user\":\"") : NULL;
    const size_t n = user ? strtoul(user + 8, NULL, 10) : s->o.notes;
    return n < s->o.notes ? &s->notes[n] : NULL;
}

static void on_request(struct service *s, struct client *c, const char *body)
{
    const uint64_t now_us = clock_mono_us();
    if (c->in[0] == 'G') {
        send_all(c, s->models, s->models_len);
        c->n = 0;
        return;
    }
    c->note = note_of(s, body);
    if (c->note)
        c->note->received_us = now_us;
    c->left = s->o.tokens;
    c->due_us = now_us + s->o.first_us;
    if (s->o.tokens)
        send_all(c, STREAM_HEAD, sizeof(STREAM_HEAD) - 1);
    if (s->o.first_us)
        list_push_back(&s->first, &c->link);
    else
        send_token(s, c, now_us);
}

/* True where the request is whole. */
static bool is_whole(const struct client *c, const char **body)
{
    const char *end = strstr(c->in, "\r\n\r\n"), *length = strcasestr(c->in, "length:");
    if (!end)
        return false;
    *body = end + 4;
    const size_t want = length && length < end ? strtoul(length + 7, NULL, 10) : 0;
    return c->n >= (size_t)(*body - c->in) + want;
}

static void on_input(struct service *s, struct client *c)
{
    const char *body;
    const ssize_t n = recv(c->fd, c->in + c->n, INPUT - 1 - c->n, MSG_DONTWAIT);
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN)
            drop(c);
        return;
    }
    c->n += (size_t)n;
    c->in[c->n] = '\0';
    if (is_whole(c, &body))
        on_request(s, c, body);
}

static void on_listener(const struct service *s)
{
    const int on = 1;
    for (int fd; (fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
        struct client *c = mem_alloc(sizeof(*c));
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        memset(c, 0, offsetof(struct client, in));
        list_init(&c->link);
        c->fd = fd;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &e);
    }
}

/* ---- the loop ---------------------------------------------------------------------- */

static struct client *front_of(const struct list *q)
{
    return list_empty(q) ? NULL : LIST_ENTRY(q->next, struct client, link);
}

/* Sends what is due; the microseconds until the next is, -1 for none. */
static int64_t send_due(struct service *s)
{
    struct list *const queues[] = {&s->first, &s->next};
    int64_t rest_us = -1;
    for (int i = 0; i < 2; i++) {
        struct client *c;
        while ((c = front_of(queues[i]))) {
            const uint64_t now_us = clock_mono_us();
            if (c->due_us > now_us) {
                const int64_t rest = (int64_t)(c->due_us - now_us);
                rest_us = rest_us < 0 || rest < rest_us ? rest : rest_us;
                break;
            }
            send_token(s, c, c->due_us);
        }
    }
    return rest_us;
}

static void serve(struct service *s)
{
    struct epoll_event events[MAX_EVENTS];
    for (;;) {
        const int64_t rest_us = send_due(s);
        const struct timespec rest = {.tv_sec = rest_us / 1000000,
                                      .tv_nsec = rest_us % 1000000 * 1000};
        const int n =
            epoll_pwait2(s->epoll, events, MAX_EVENTS, rest_us < 0 ? NULL : &rest, NULL);
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr)
                on_input(s, events[i].data.ptr);
            else
                on_listener(s);
        }
    }
}

static void keep_to(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    if (core >= 0 && sched_setaffinity(0, sizeof(set), &set) != 0)
        perror("stub: core");
}

static void run(struct service *s)
{
    struct epoll_event e = {.events = EPOLLIN};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_TIMERSLACK, 1UL);
    keep_to(s->o.core);
    make_answers(s);
    list_init(&s->first);
    list_init(&s->next);
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->listener, &e);
    serve(s);
}

/* ---- from the benchmark ------------------------------------------------------------ */

static void give_up(const char *what)
{
    perror(what);
    exit(1);
}

static int listen_anywhere(unsigned short *port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&sa, sizeof(sa)) != 0 ||
        listen(fd, 4096) != 0 || getsockname(fd, (struct sockaddr *)&sa, &len) != 0)
        give_up("stub: port");
    *port = ntohs(sa.sin_port);
    return fd;
}

void stub_start(struct stub *s, const struct stub_options *o)
{
    static struct service service; /* of the child */
    service = (struct service){.o = *o};
    s->notes_bytes = (o->notes + 1) * sizeof(*service.notes);
    service.notes = mmap(NULL, s->notes_bytes, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (service.notes == MAP_FAILED)
        give_up("stub: memory");
    service.listener = listen_anywhere(&s->port);
    s->notes = service.notes;
    s->pid = fork();
    if (s->pid < 0)
        give_up("stub: fork");
    if (s->pid == 0)
        run(&service);
    close(service.listener);
}

void stub_stop(struct stub *s)
{
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    munmap((void *)(uintptr_t)s->notes, s->notes_bytes);
}
