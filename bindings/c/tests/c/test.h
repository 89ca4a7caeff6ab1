/* Macros that the test programs share. */
#ifndef KOLO_TEST_H
#define KOLO_TEST_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include <kolo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Checks that the call succeeds. */
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        koloResult_t ok_result = (call);                                                                               \
        if (ok_result != KOLO_SUCCESS) {                                                                               \
            fprintf(stderr, "%s:%d: %s gave '%s': %s\n", __FILE__, __LINE__, #call, koloGetErrorString(ok_result),     \
                    koloGetLastError(NULL));                                                                           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__, __LINE__, #condition,               \
                    koloGetLastError(NULL));                                                                           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Checks that the call fails with this result, and with a message that contains the text. */
#define FAILS(call, expected, text)                                                                                    \
    do {                                                                                                               \
        koloResult_t fails_result = (call);                                                                            \
        if (fails_result != (expected) || strstr(koloGetLastError(NULL), text) == NULL) {                              \
            fprintf(stderr, "%s:%d: %s gave '%s' where '%s' with '%s' was expected: %s\n", __FILE__, __LINE__, #call,  \
                    koloGetErrorString(fails_result), koloGetErrorString(expected), text, koloGetLastError(NULL));     \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static inline void sleep_ms(long ms) {
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

#endif
