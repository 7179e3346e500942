/* Strangers at the door of a ZeroMQ listener with CURVE: each connects, says greeting and HELLO at once, and is another's key.
 * Its box does not open, which the server learns only after the work that a true one costs.
 *
 *   strangers PATH RATE SECONDS     so many new connections a second to a UNIX socket
 *
 * Prints how many were tried, and how many found room to be accepted: {"tried": N, "came": N}.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { GREETING_BYTES = 64, HELLO_BYTES = 200, KEPT = 512 };

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Greeting of a client with CURVE (ZeroMQ RFC 37), and the command HELLO (RFC 26) with some key and some box. */
static size_t write_opening(unsigned char *out, unsigned long number) {
    memset(out, 0, GREETING_BYTES);
    out[0] = 0xff, out[9] = 0x7f, out[10] = 3, out[11] = 1;
    memcpy(out + 12, "CURVE", 5);
    unsigned char *hello = out + GREETING_BYTES;
    hello[0] = 4, hello[1] = HELLO_BYTES;
    memcpy(hello + 2, "\5HELLO\1\0", 8);
    memset(hello + 10, 0, HELLO_BYTES - 8);
    for (int i = 0; i < 32; i++) hello[2 + 80 + i] = (unsigned char)(number >> (i % 4 * 8)) ^ (unsigned char)(0x5a + i);
    return GREETING_BYTES + 2 + HELLO_BYTES;
}

int main(int argc, char **argv) {
    if (argc != 4) return fputs("strangers PATH RATE SECONDS\n", stderr), 2;
    double rate = atof(argv[2]), seconds = atof(argv[3]);
    struct sockaddr_un there = {.sun_family = AF_UNIX};
    if (strlen(argv[1]) >= sizeof there.sun_path) return fputs("the path is too long\n", stderr), 2;
    strcpy(there.sun_path, argv[1]);
    unsigned char opening[GREETING_BYTES + 2 + HELLO_BYTES];
    int kept[KEPT];
    memset(kept, -1, sizeof kept);
    unsigned long tried = 0, came = 0;
    double began = now_s(), now = began;
    while ((now = now_s()) - began < seconds) {
        if ((double)tried >= (now - began) * rate) {
            usleep(200);
            continue;
        }
        tried++;
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (fd < 0) return perror("socket"), 2;
        size_t size = write_opening(opening, tried);
        if (connect(fd, (struct sockaddr *)&there, sizeof there) || send(fd, opening, size, MSG_NOSIGNAL) < 0) {
            close(fd); /* nobody accepts for now: its turn is over */
            continue;
        }
        int *place = &kept[came++ % KEPT];
        if (*place >= 0) close(*place);
        *place = fd;
    }
    printf("{\"tried\": %lu, \"came\": %lu}\n", tried, came);
    return 0;
}
