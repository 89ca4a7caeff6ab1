/* What the test programs share. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                       \
  do {                                                                                    \
    if (!(what)) {                                                                        \
      fprintf(stderr, "%s:%d: rank %d of %d: not so: %s\n", __FILE__, __LINE__, rank, size, #what); \
      exit(1);                                                                            \
    }                                                                                     \
  } while (0)

/* Checks that a call fails with an error of this class; prints the error's text if the class is another. */
#define FAILS(class, call)                                                                \
  do {                                                                                    \
    int code_ = (call), class_ = -1, length_ = 0;                                         \
    char text_[MPI_MAX_ERROR_STRING + 1] = "";                                            \
    CHECK(code_ != MPI_SUCCESS);                                                          \
    CHECK(MPI_Error_class(code_, &class_) == MPI_SUCCESS);                                \
    CHECK(MPI_Error_string(code_, text_, &length_) == MPI_SUCCESS && length_ > 0);        \
    if (class_ != (class)) fprintf(stderr, "%s: class %d: %s\n", #call, class_, text_);   \
    CHECK(class_ == (class));                                                             \
  } while (0)

static int rank = -1, size = -1;
