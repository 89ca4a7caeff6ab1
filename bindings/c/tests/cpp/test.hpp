// Checks for the programs in this folder.

#ifndef KOLO_TESTS_TEST_HPP
#define KOLO_TESTS_TEST_HPP

#include <kolo.hpp>

#include <cstdio>
#include <cstdlib>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                       \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)

/** Returns the result of the kolo::Error that a call throws; KOLO_SUCCESS if it throws none. */
template <class Call> koloResult_t failure(Call &&call) {
    try {
        call();
    } catch (const kolo::Error &error) {
        return error.result();
    }
    return KOLO_SUCCESS;
}

#endif
