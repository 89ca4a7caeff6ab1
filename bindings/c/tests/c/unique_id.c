/* Ranks that meet by an id: threads of one process, and processes that pass it on in a file. */
#include "test.h"

#include <pthread.h>

enum { THREADS = 3 };

static koloUniqueId shared_id;

static void meet(const koloUniqueId *id, int rank, int size) {
    koloComm_t comm;
    koloConfig_t config = KOLO_CONFIG_INITIALIZER;
    int sum = rank + 1;
    config.join_timeout_ms = 20000;
    OK(koloCommInitRank(&comm, size, id, rank, &config));
    OK(koloAllReduce(comm, &sum, &sum, 1, KOLO_INT32, KOLO_SUM));
    CHECK(sum == size * (size + 1) / 2);
    OK(koloBarrier(comm));
    OK(koloCommDestroy(&comm));
}

static void *thread_rank(void *number) {
    meet(&shared_id, (int)(intptr_t)number, THREADS);
    return NULL;
}

int main(int argc, char **argv) {
    const char *file = argc > 1 ? argv[1] : "";
    int rank = atoi(getenv("RANK")), size = atoi(getenv("WORLD_SIZE"));
    koloUniqueId id;
    char draft[1000];
    FILE *stream;

    /* Rank 0 makes two ids before it joins by either: both ports are kept. */
    if (rank == 0) {
        koloUniqueId other;
        pthread_t threads[THREADS];
        OK(koloGetUniqueId(&shared_id, "127.0.0.1"));
        OK(koloGetUniqueId(&id, NULL));
        OK(koloGetUniqueId(&other, NULL));
        CHECK(memcmp(&id, &other, sizeof id) != 0);
        for (intptr_t i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, thread_rank, (void *)i) == 0);
        for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);

        sprintf(draft, "%s.draft", file);
        stream = fopen(draft, "wb");
        CHECK(stream != NULL && fwrite(&id, sizeof id, 1, stream) == 1 && fclose(stream) == 0);
        CHECK(rename(draft, file) == 0);
        sleep_ms(200); /* so that the others try before rank 0 listens */
    } else {
        while ((stream = fopen(file, "rb")) == NULL) sleep_ms(10);
        CHECK(fread(&id, sizeof id, 1, stream) == 1 && fclose(stream) == 0);
    }
    meet(&id, rank, size);
    return 0;
}
