/* The load generator of the web benchmarks: WebSocket clients in one epoll loop, so that it costs far less than any gateway.
 *
 *   wsload fanout --at URI --speak L --subscribers N --window W [--stalled K --stalled-at URI]
 *          one publisher, N subscribers, W events in the air at the slowest of them; with K more that never read, slices in
 *          which these are among the receivers take turns with slices in which they are not
 *   wsload pace   --at URI --speak L --subscribers N --rate R    R events a second: how late does each delivery come
 *   wsload rpc    --at URI --speak L --callers C --window W --provider URI    C callers with W calls in the air, one echo
 *   wsload idle   --at URI --speak L --subscribers N             N subscribers that only answer pings, until stdin ends;
 *          prints a line when they are there and one at the end, after one event has gone to all of them
 *
 *   --speak flux|nats|wamp   --service NAME (rpc; default bench)   --seconds S, --warmup S, --payload BYTES (32 or more)
 *   --pid P (again and again): report the CPU time P used while measuring   --self: the other end is a thread that copies bytes
 * The bearer token, when one is needed, is in the environment: WSLOAD_TOKEN. URIs: ws://127.0.0.1:PORT/PATH, and for a provider
 * beside the gateway local:///PATH (Flux), tcp://127.0.0.1:PORT (NATS), unix:///PATH (WAMP raw socket).
 *
 * Every message carries its number and the time it was made, and every receiver checks the number: lost, duplicated and
 * reordered messages are counted. The result is one JSON object on stdout; the exit code is 1 when something was lost.
 */
#define _GNU_SOURCE
#include "ws_languages.h"

enum { MAX_PEERS = 20000, HEX = 16, STAMP_BYTES = 2 * HEX, DIALS_AT_ONCE = 64 };
enum { FILL_BYTES = 32768, FILL_MESSAGES = 512, TINY_BUFFER = 4096 };
static const char TOPIC_NAME[] = "bench.tick", STALLED_TOPIC[] = "bench.tock", FILL_TOPIC[] = "bench.fill";
static const double SLICE_S = 0.1;

static struct {
    const char *mode, *at, *stalled_at, *provider, *service;
    const struct language *speak;
    double rate;
    long window, payload, subscribers, callers, stalled;
    bool self;
} opt = {.rate = 10, .window = 16, .payload = 128, .subscribers = 1, .callers = 1, .service = "bench"};

static struct peer *peers; /* fanout, pace, idle: publisher, subscribers, stalled ones; rpc: provider, callers */
static uint8_t *payload;
static uint64_t *issued_by, issued, lost, duplicated, reordered;
static double last_progress, next_tick;
static const char *topic_now = TOPIC_NAME;

/* ------------------------------------------------------------------------------------------------ stamps in payloads */

static void put_hex(uint8_t *at, uint64_t value) {
    for (int i = HEX; i--; value >>= 4) at[i] = (uint8_t) "0123456789abcdef"[value & 15];
}

static uint64_t get_hex(const uint8_t *at) {
    uint64_t value = 0;
    for (int i = 0; i < HEX; i++) value = value << 4 | (uint64_t)(at[i] <= '9' ? at[i] - '0' : at[i] - 'a' + 10);
    return value;
}

static void stamp(uint64_t number) {
    put_hex(payload, number);
    put_hex(payload + HEX, (uint64_t)(1e9 * now_s()));
}

/* Everything that a broker delivered: an event, a call at the provider, an answer. */
static void arrived(struct peer *p, const uint8_t *data, size_t size) {
    bool is_rpc = !strcmp(opt.mode, "rpc");
    if (size != (size_t)opt.payload) fail("a payload of %zu bytes came, %ld were sent", size, opt.payload);
    if (is_rpc && p->index == 0) return; /* the provider: its callers are counted by what comes back */
    uint64_t number = get_hex(data);
    if (number < p->c.expected) duplicated++;
    else if (number > p->c.expected) reordered++;
    p->c.expected = number + 1;
    p->c.received++;
    keep_sample(1e6 * now_s() - 1e-3 * (double)get_hex(data + HEX));
}

/* ------------------------------------------------------------------------------------------------ connections */

static void connect_all(struct peer *first, long count, const char *uri, const char *topic, int receive_bytes) {
    const char *token = getenv("WSLOAD_TOKEN");
    for (long done = 0; done < count; done += DIALS_AT_ONCE) {
        long group = count - done < DIALS_AT_ONCE ? count - done : DIALS_AT_ONCE;
        for (long i = done; i < done + group; i++) begin(&first[i], opt.speak, uri, token, receive_bytes);
        for (long i = done; i < done + group; i++) {
            finish(&first[i]);
            if (topic) opt.speak->subscribe(&first[i], topic);
        }
    }
}

static int far_ends[MAX_PEERS];
static uint8_t copied[READ_BYTES];

static void write_all(int fd, const uint8_t *data, size_t size) {
    while (size) {
        ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
        if (sent < 0) return; /* the measurement is over */
        data += sent, size -= (size_t)sent;
    }
}

/* --self: what comes from end 0 goes to all others, what comes from the others goes to end 0. */
static void *copy_bytes(void *count_of_ends) {
    long count = *(long *)count_of_ends;
    struct pollfd polled[2] = {{.fd = far_ends[0], .events = POLLIN}, {.fd = count == 2 ? far_ends[1] : -1, .events = POLLIN}};
    for (;;) {
        if (poll(polled, 2, -1) < 0) return NULL;
        for (int i = 0; i < 2; i++) {
            if (!(polled[i].revents & (POLLIN | POLLHUP))) continue;
            ssize_t got = read(polled[i].fd, copied, sizeof copied);
            if (got <= 0) return NULL;
            for (long to = i ? 0 : 1; to < (i ? 1 : count); to++) write_all(far_ends[to], copied, (size_t)got);
        }
    }
}

static void face_ourselves(long count) {
    static pthread_t thread;
    static long ends;
    for (long i = 0; i < count; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) fail("socketpair: %s", strerror(errno));
        far_ends[i] = pair[1];
        peers[i].speaks = opt.speak;
        peers[i].framing = WEBSOCKET;
        attach(&peers[i].c, pair[0], NULL);
        peers[i].live = true;
    }
    ends = count;
    if (pthread_create(&thread, NULL, copy_bytes, &ends)) fail("pthread_create failed");
}

/* ------------------------------------------------------------------------------------------------ fan-out */

static uint64_t slowest(void) {
    uint64_t least = UINT64_MAX;
    for (long i = 1; i <= opt.subscribers; i++)
        if (peers[i].c.received < least) least = peers[i].c.received;
    return least;
}

static uint64_t deliveries(void) {
    uint64_t sum = 0;
    for (long i = 1; i <= opt.subscribers; i++) sum += peers[i].c.received;
    return sum;
}

static void publish_one(void) {
    stamp(issued++);
    opt.speak->publish(&peers[0], topic_now, payload, (size_t)opt.payload);
}

static bool fanout_drained(void) { return slowest() >= issued; }

static struct slice {
    double time;
    uint64_t count;
} slice_began, slices[2]; /* without, with those that never read */

/* Whether publishing has to wait for the last deliveries of a slice; then the next one begins. */
static bool slice_ends(void) {
    double now = now_s();
    bool with = topic_now == STALLED_TOPIC;
    if (slice_began.time && now - slice_began.time < SLICE_S) return false;
    if (!fanout_drained()) return true;
    if (slice_began.time) {
        slices[with].time += now - slice_began.time;
        slices[with].count += deliveries() - slice_began.count;
        topic_now = with ? TOPIC_NAME : STALLED_TOPIC;
    }
    slice_began = (struct slice){now, deliveries()};
    return false;
}

/* The slowest subscriber opens the window; it is refilled a quarter at a time, so that there are batches. */
static void fanout_turn(void) {
    uint64_t limit = slowest() + (uint64_t)opt.window;
    bool hold = opt.stalled && phase == MEASURING && slice_ends();
    if (phase != DRAINING && !hold && limit - issued >= (uint64_t)(opt.window + 3) / 4)
        while (issued < limit) publish_one();
    send_composed(&peers[0]);
}

static void pace_turn(void) {
    double now = now_s();
    if (!next_tick) next_tick = now;
    if (phase != DRAINING && now >= next_tick) publish_one(), next_tick += 1 / opt.rate;
    send_composed(&peers[0]);
}

/* More than any kernel buffer and any gateway's queue takes, to those who never read. */
static void fill_the_stalled(void) {
    uint8_t *fill = malloc(FILL_BYTES);
    memset(fill, 'x', FILL_BYTES);
    for (int i = 0; i < FILL_MESSAGES; i++) {
        opt.speak->publish(&peers[0], FILL_TOPIC, fill, FILL_BYTES);
        for (send_composed(&peers[0]); peers[0].c.head < peers[0].c.tail; flush(&peers[0].c)) {
            struct pollfd p = {.fd = peers[0].c.fd, .events = POLLOUT};
            if (poll(&p, 1, STALL_S * 1000) != 1) fail("the publisher is held up for %d s by readers that stall", STALL_S);
        }
    }
}

static void stall_some(void) {
    struct peer *first = &peers[1 + opt.subscribers];
    if (!opt.stalled) return;
    for (long i = 1; i <= opt.subscribers; i++) opt.speak->subscribe(&peers[i], STALLED_TOPIC);
    connect_all(first, opt.stalled, opt.stalled_at ? opt.stalled_at : opt.at, STALLED_TOPIC, TINY_BUFFER);
    for (long i = 0; i < opt.stalled; i++) {
        opt.speak->subscribe(&first[i], FILL_TOPIC);
        epoll_ctl(epoll_fd, EPOLL_CTL_DEL, first[i].c.fd, NULL);
    }
    fill_the_stalled();
}

/* How many of those that never read still have their connection. */
static long stalled_alive(void) {
    long alive = 0;
    for (long i = 0; i < opt.stalled; i++) {
        struct pollfd p = {.fd = peers[1 + opt.subscribers + i].c.fd, .events = POLLRDHUP};
        alive += poll(&p, 1, 0) == 0;
    }
    return alive;
}

static void open_fanout(void) {
    if (opt.self) return face_ourselves(1 + opt.subscribers);
    connect_all(&peers[0], 1, opt.at, NULL, 0);
    connect_all(&peers[1], opt.subscribers, opt.at, TOPIC_NAME, 0);
    stall_some();
}

/* ------------------------------------------------------------------------------------------------ RPC */

static void open_rpc(void) {
    if (opt.self) return face_ourselves(2);
    const char *token = getenv("WSLOAD_TOKEN");
    begin(&peers[0], opt.speak, opt.provider ? opt.provider : opt.at, token, 0);
    finish(&peers[0]);
    opt.speak->offer(&peers[0], opt.service);
    connect_all(&peers[1], opt.callers, opt.at, NULL, 0);
}

static void rpc_turn(void) {
    send_composed(&peers[0]);
    for (long i = 1; i <= opt.callers; i++) {
        struct peer *p = &peers[i];
        while (phase != DRAINING && issued_by[i] - p->c.received < (uint64_t)opt.window) {
            stamp(issued_by[i]++);
            opt.speak->call(p, opt.service, payload, (size_t)opt.payload);
        }
        send_composed(p);
    }
}

static uint64_t answers(void) {
    uint64_t sum = 0;
    for (long i = 1; i <= opt.callers; i++) sum += peers[i].c.received;
    return sum;
}

static uint64_t calls(void) {
    uint64_t sum = 0;
    for (long i = 1; i <= opt.callers; i++) sum += issued_by[i];
    return sum;
}

static bool rpc_drained(void) { return answers() >= calls(); }

/* ------------------------------------------------------------------------------------------------ the loop */

static void serve(int timeout_ms) {
    struct epoll_event events[512];
    int ready = epoll_wait(epoll_fd, events, 512, timeout_ms);
    for (int i = 0; i < ready; i++) {
        struct peer *p = events[i].data.ptr;
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) pull(p);
        if (events[i].events & EPOLLOUT && !p->closed) flush(&p->c);
    }
}

static int until_tick(void) {
    double left = next_tick ? next_tick - now_s() : 1;
    return left <= 0 ? 0 : left > 1 ? 1000 : (int)(1e3 * left);
}

static void run(void (*turn)(void), uint64_t (*count)(void), bool (*drained)(void)) {
    double start = last_progress = now_s();
    uint64_t before = 0;
    for (;;) {
        double now = advance(start, count());
        turn();
        if (phase == DRAINING && (drained() || now - ended.time > STALL_S)) break;
        if (phase != DRAINING && now - last_progress > STALL_S) fail("nothing moved for %d s", STALL_S);
        serve(until_tick());
        if (count() != before) before = count(), last_progress = now_s();
    }
    serve(20); /* what comes now is a duplicate */
}

/* ------------------------------------------------------------------------------------------------ idle */

static uint64_t pings(void) {
    uint64_t sum = 0;
    for (long i = 1; i <= opt.subscribers; i++) sum += peers[i].pings;
    return sum;
}

static long unpinged(void) {
    long count = 0;
    for (long i = 1; i <= opt.subscribers; i++) count += !peers[i].pings;
    return count;
}

static void hold_idle(void) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    double start = now_s();
    connect_all(&peers[0], 1, opt.at, NULL, 0);
    connect_all(&peers[1], opt.subscribers, opt.at, TOPIC_NAME, 0);
    closing_is_counted = true;
    printf("{\"connections\": %ld, \"seconds\": %.3f}\n", opt.subscribers, now_s() - start);
    fflush(stdout);
    while (poll(&input, 1, 0) == 0) serve(50);
    double published = now_s();
    publish_one();
    send_composed(&peers[0]);
    while (deliveries() + closes < (uint64_t)opt.subscribers && now_s() - published < STALL_S) serve(50);
    printf("{\"closed\": %lu, \"pings\": %lu, \"unpinged\": %ld, \"delivered\": %lu, \"delivery_ms\": %.1f}\n", (unsigned long)closes,
           (unsigned long)pings(), unpinged(), (unsigned long)deliveries(), 1e3 * (now_s() - published));
}

/* ------------------------------------------------------------------------------------------------ the result */

static void print_result(void) {
    printf("{\"mode\": \"%s\", \"window\": %ld, \"payload\": %ld, ", opt.mode, opt.window, opt.payload);
    print_rate();
    printf("\"lost\": %lu, \"duplicated\": %lu, \"reordered\": %lu, ", (unsigned long)lost, (unsigned long)duplicated,
           (unsigned long)reordered);
    if (opt.stalled)
        printf("\"stalled\": %ld, \"stalled_alive\": %ld, \"without_per_s\": %.1f, \"with_per_s\": %.1f, ", opt.stalled,
               stalled_alive(), (double)slices[0].count / slices[0].time, (double)slices[1].count / slices[1].time);
    print_figures();
}

static const struct language *language(const char *name) {
    if (!strcmp(name, "flux")) return &FLUX;
    if (!strcmp(name, "nats")) return &NATS;
    if (!strcmp(name, "wamp")) return &WAMP;
    fail("no language %s: flux, nats or wamp", name);
    return NULL;
}

static void parse_options(int argc, char **argv) {
    static const struct option known[] = {
        {"at", 1, 0, 'a'},      {"speak", 1, 0, 'l'},      {"subscribers", 1, 0, 'N'}, {"callers", 1, 0, 'C'}, {"window", 1, 0, 'w'},
        {"rate", 1, 0, 'r'},    {"payload", 1, 0, 'b'},    {"provider", 1, 0, 'P'},    {"service", 1, 0, 'S'}, {"self", 0, 0, 'F'},
        {"stalled", 1, 0, 'K'}, {"stalled-at", 1, 0, 'A'}, MEASURE_OPTIONS,            {0, 0, 0, 0},
    };
    opt.speak = &FLUX;
    measured.warmup = 0.3;
    for (int o; (o = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (o) {
        case 'a': opt.at = optarg; break;
        case 'l': opt.speak = language(optarg); break;
        case 'N': opt.subscribers = atol(optarg); break;
        case 'C': opt.callers = atol(optarg); break;
        case 'w': opt.window = atol(optarg); break;
        case 'r': opt.rate = atof(optarg); break;
        case 'b': opt.payload = atol(optarg); break;
        case 'K': opt.stalled = atol(optarg); break;
        case 'A': opt.stalled_at = optarg; break;
        case 'P': opt.provider = optarg; break;
        case 'S': opt.service = optarg; break;
        case 'F': opt.self = true; break;
        default: take_measure_option(o);
        }
    }
    if (optind + 1 != argc) fail("expected one mode: fanout, pace, rpc or idle");
    opt.mode = argv[optind];
    if (opt.payload < STAMP_BYTES || opt.payload > 254) fail("payload must be %d to 254 bytes", STAMP_BYTES);
    if (opt.window < 1 || opt.subscribers < 1 || opt.callers < 1 || opt.stalled < 0 || opt.rate <= 0) fail("a number is out of range");
    if (opt.subscribers + opt.callers + opt.stalled >= MAX_PEERS - 2) fail("at most %d connections", MAX_PEERS);
    if (!opt.at && !opt.self) fail("--at is missing");
}

static void prepare(void) {
    size_t count = (size_t)(opt.subscribers + opt.callers + opt.stalled) + 2;
    peers = calloc(count, sizeof *peers);
    issued_by = calloc(count, sizeof *issued_by);
    make_room_for_samples();
    payload = malloc((size_t)opt.payload);
    if (!peers || !issued_by || !payload) fail("out of memory");
    memset(payload, 'x', (size_t)opt.payload);
    payload_bytes = (size_t)opt.payload;
    for (size_t i = 0; i < count; i++) peers[i].index = (long)i;
}

static void count_lost_events(void) {
    for (long i = 1; i <= opt.subscribers; i++) lost += issued > peers[i].c.received ? issued - peers[i].c.received : 0;
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    prepare();
    if (!strcmp(opt.mode, "fanout") || !strcmp(opt.mode, "pace")) {
        bool paced = !strcmp(opt.mode, "pace");
        open_fanout();
        run(paced ? pace_turn : fanout_turn, deliveries, fanout_drained);
        count_lost_events();
    } else if (!strcmp(opt.mode, "rpc")) {
        open_rpc();
        run(rpc_turn, answers, rpc_drained);
        lost = calls() > answers() ? calls() - answers() : 0;
    } else if (!strcmp(opt.mode, "idle")) {
        hold_idle();
        return 0;
    } else {
        fail("no mode %s", opt.mode);
    }
    print_result();
    return lost || duplicated || reordered ? 1 : 0;
}
