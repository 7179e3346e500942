/* What every load generator does besides its messages: say what is wrong, look at the clock, go through the phases of a
 * measurement, note the CPU time of processes, keep samples, print the figures.
 *
 * A generator warms up, measures, and then waits for what is still in the air. The figures of its result are one JSON object;
 * it prints the opening itself, with what it alone has counted, and print_figures() the rest.
 */
#ifndef HEADGATE_BENCH_MEASURE_H
#define HEADGATE_BENCH_MEASURE_H

#include <getopt.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SAMPLES = 1 << 20, MAX_PIDS = 64, STALL_S = 10 };

static enum { WARMING, MEASURING, DRAINING } phase;

/* What the command line says about any measurement. It goes on for as long as there are fewer samples than ``least``. */
static struct {
    double seconds, warmup;
    size_t least;
    long pids[MAX_PIDS];
    int pid_count;
} measured = {.seconds = 1, .warmup = 0.2};

static struct mark {
    double time, own_cpu;
    double cpu[MAX_PIDS];
    uint64_t count;
} began, ended;

static float *samples_us;
static size_t sample_count, samples_skipped;

__attribute__((format(printf, 1, 2))) static void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("loadgen: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(2);
}

/* ------------------------------------------------------------------------------------------------ clocks */

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Of this thread only: with --self another one stands for the broker. */
static double own_cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* User and system time of one process with all its threads. */
static double cpu_s(long pid) {
    char path[64], text[1024];
    unsigned long user, kernel;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) fail("no process %ld", pid);
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    char *after_name = strrchr(text, ')');
    if (!after_name || sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel) != 2)
        fail("%s: unexpected form", path);
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

/* ------------------------------------------------------------------------------------------------ phases */

static void take_mark(struct mark *m, uint64_t count) {
    m->time = now_s();
    m->own_cpu = own_cpu_s();
    m->count = count;
    for (int i = 0; i < measured.pid_count; i++) m->cpu[i] = cpu_s(measured.pids[i]);
}

/* Enter the next phase when it is time; ``start`` is when the load began, ``count`` how much has been done. Returns the time. */
static double advance(double start, uint64_t count) {
    double now = now_s();
    if (phase == WARMING && now - start >= measured.warmup) take_mark(&began, count), phase = MEASURING;
    if (phase == MEASURING && now - began.time >= measured.seconds && sample_count >= measured.least)
        take_mark(&ended, count), phase = DRAINING;
    return now;
}

/* ------------------------------------------------------------------------------------------------ samples */

static void make_room_for_samples(void) {
    samples_us = malloc(MAX_SAMPLES * sizeof *samples_us);
    if (!samples_us) fail("out of memory");
}

static void keep_sample(double us) {
    if (phase != MEASURING) return;
    if (sample_count == MAX_SAMPLES) samples_skipped++;
    else samples_us[sample_count++] = (float)us;
}

static int by_value(const void *left, const void *right) {
    float a = *(const float *)left, b = *(const float *)right;
    return (a > b) - (a < b);
}

static double quantile(double q) { return samples_us[(size_t)(q * (double)(sample_count - 1))]; }

/* ------------------------------------------------------------------------------------------------ the result */

/* How many a second: the beginning of every result, behind what it is about. */
static void print_rate(void) {
    double elapsed = ended.time - began.time;
    uint64_t count = ended.count - began.count;
    printf("\"seconds\": %.4f, \"count\": %lu, \"per_s\": %.1f, ", elapsed, (unsigned long)count, (double)count / elapsed);
}

/* Quantiles where there are samples, and CPU time: the end of every result. */
static void print_figures(void) {
    if (sample_count) {
        qsort(samples_us, sample_count, sizeof *samples_us, by_value);
        printf("\"samples\": %zu, \"samples_skipped\": %zu, ", sample_count, samples_skipped);
        printf("\"p50_us\": %.2f, \"p99_us\": %.2f, \"max_us\": %.2f, ", quantile(0.5), quantile(0.99), quantile(1));
    }
    printf("\"cpu_s\": [");
    for (int i = 0; i < measured.pid_count; i++) printf("%s%.3f", i ? ", " : "", ended.cpu[i] - began.cpu[i]);
    printf("], \"own_busy\": %.3f}\n", (ended.own_cpu - began.own_cpu) / (ended.time - began.time));
}

/* ------------------------------------------------------------------------------------------------ options */

#define MEASURE_OPTIONS {"seconds", 1, 0, 's'}, {"warmup", 1, 0, 'u'}, {"pid", 1, 0, 'p'}

/* Take one of MEASURE_OPTIONS; anything else is wrong. */
static void take_measure_option(int option) {
    switch (option) {
    case 's': measured.seconds = atof(optarg); break;
    case 'u': measured.warmup = atof(optarg); break;
    case 'p':
        if (measured.pid_count == MAX_PIDS) fail("at most %d pids", MAX_PIDS);
        measured.pids[measured.pid_count++] = atol(optarg);
        break;
    default: exit(2);
    }
}

#endif
