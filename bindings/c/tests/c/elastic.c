/* Runs the example of an elastic group at whose port a newcomer always waits: a full group does not try to grow. */
#include <kolo.h>
#include <stdio.h>
#include <stdlib.h>

static koloResult_t one_waits(koloComm_t comm, int *waiting) {
    *waiting = 1;
    return comm == NULL ? KOLO_USAGE : KOLO_SUCCESS;
}

static koloResult_t grows(koloComm_t comm, int most, koloComm_t *next) {
    (void)comm, (void)next;
    fprintf(stderr, "a group of %d grows\n", most);
    exit(1);
}

#define koloCommWaiting one_waits
#define koloCommGrow grows
#include "../../examples/elastic.c"
