/* Files: views with holes, all kinds of file pointers, access modes, wrong arguments. Any number of ranks; the argument is a folder. */
#include "test.h"

static char name[4096];

static MPI_File opened(const char *of, int mode) {
  MPI_File file;
  CHECK(!MPI_File_open(MPI_COMM_WORLD, of, mode, MPI_INFO_NULL, &file) && file != MPI_FILE_NULL);
  return file;
}

/* Each rank's view holds one block of two numbers out of every `size` blocks. */
static void views(void) {
  MPI_File file = opened(name, MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_EXCL);
  MPI_Datatype blocks, rows;
  int sizes[1] = {2 * size}, mine[1] = {2}, starts[1] = {2 * rank}, count;
  CHECK(!MPI_Type_create_subarray(1, sizes, mine, starts, MPI_ORDER_C, MPI_INT, &blocks) && !MPI_Type_commit(&blocks));
  CHECK(!MPI_File_set_view(file, 8, MPI_INT, blocks, "native", MPI_INFO_NULL));
  int put[10], got[10], whole[1000];
  for (int i = 0; i < 10; i++) put[i] = 100 * rank + i, got[i] = -1;
  MPI_Status status;
  CHECK(!MPI_File_write_at_all(file, 0, put, 6, MPI_INT, &status));
  CHECK(!MPI_Get_count(&status, MPI_INT, &count) && count == 6);
  CHECK(!MPI_File_write_at_all(file, 7, put + 7, 3, MPI_INT, &status) && !MPI_File_write_at(file, 6, put + 6, 1, MPI_INT, &status));
  MPI_Offset at = -1, bytes = -1;
  CHECK(!MPI_File_get_byte_offset(file, 3, &at) && at == 8 + 4 * (2 * size + 2 * rank + 1));
  CHECK(!MPI_File_sync(file) && !MPI_Barrier(MPI_COMM_WORLD) && !MPI_File_get_size(file, &bytes) && bytes == 8 + 40 * size);
  CHECK(!MPI_File_seek(file, 0, MPI_SEEK_END) && !MPI_File_get_position(file, &at) && at == 10);
  CHECK(!MPI_File_seek(file, -9, MPI_SEEK_CUR) && !MPI_File_read(file, got, 12, MPI_INT, &status));
  CHECK(!MPI_Get_count(&status, MPI_INT, &count) && count == 9 && got[0] == put[1] && got[8] == put[9] && got[9] == -1);
  /* A buffer with holes. */
  CHECK(!MPI_Type_vector(3, 1, 3, MPI_INT, &rows) && !MPI_Type_commit(&rows));
  for (int i = 0; i < 10; i++) got[i] = -1;
  CHECK(!MPI_File_read_at(file, 2, got, 1, rows, &status) && got[0] == put[2] && got[3] == put[3] && got[6] == put[4] && got[1] == -1);
  FAILS(MPI_ERR_IO, MPI_File_read_at(file, 0, got, 3, MPI_CHAR, &status));
  /* The view can be read back; another one then shows all numbers as they are stored. */
  MPI_Datatype etype, filetype;
  char representation[MPI_MAX_DATAREP_STRING];
  CHECK(!MPI_File_get_view(file, &at, &etype, &filetype, representation) && at == 8 && etype == MPI_INT && !strcmp(representation, "native"));
  CHECK(!MPI_Type_free(&filetype) && !MPI_File_set_view(file, 8, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
  CHECK(!MPI_File_read_at_all(file, 0, whole, 10 * size, MPI_INT, &status));
  for (int i = 0; i < 10 * size; i++) CHECK(whole[i] == 100 * (i / 2 % size) + i / (2 * size) * 2 + i % 2);
  FAILS(MPI_ERR_UNSUPPORTED_DATAREP, MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "external32", MPI_INFO_NULL));
  CHECK(!MPI_Type_free(&blocks) && !MPI_Type_free(&rows) && !MPI_File_close(&file) && file == MPI_FILE_NULL);
}

/* A rank may see nothing of a file, and a mistake of one rank is an error on all. */
static void unequal_views(void) {
  MPI_File file = opened(name, MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE);
  MPI_Datatype some;
  MPI_Status status;
  MPI_Offset at = -1;
  int length = 4, start = 0, count = -1, put[4] = {1, 2, 3, 4}, got[4] = {0};
  CHECK(!MPI_File_set_size(file, 0));
  CHECK(!MPI_Type_indexed(rank == 0, &length, &start, MPI_INT, &some) && !MPI_Type_commit(&some));
  CHECK(!MPI_File_set_view(file, 4, MPI_INT, some, "native", MPI_INFO_NULL));
  CHECK(!MPI_File_write_all(file, put, rank ? 0 : 4, MPI_INT, &status) && !MPI_File_sync(file));
  CHECK(!MPI_File_read_at_all(file, 0, got, rank ? 0 : 4, MPI_INT, &status) && got[3] == (rank ? 0 : 4));
  CHECK(!MPI_File_read_at(file, 0, got, 4, MPI_INT, &status) && !MPI_Get_count(&status, MPI_INT, &count) && count == (rank ? 0 : 4));
  if (rank) FAILS(MPI_ERR_IO, MPI_File_write_at(file, 0, put, 4, MPI_INT, &status));
  CHECK(!MPI_File_get_byte_offset(file, 2, &at) && at == (rank ? 4 : 12));
  CHECK(!MPI_File_seek(file, 0, MPI_SEEK_END) && !MPI_File_get_position(file, &at) && at == (rank ? 0 : 4));
  const char *representation = rank == size - 1 ? "unknown" : "native";
  FAILS(MPI_ERR_UNSUPPORTED_DATAREP, MPI_File_set_view(file, 0, MPI_INT, MPI_INT, representation, MPI_INFO_NULL));
  FAILS(MPI_ERR_ARG, MPI_File_set_size(file, rank == size - 1 ? -1 : 8));
  CHECK(!MPI_Type_free(&some) && !MPI_File_close(&file));
}

/* Nonblocking calls, split collective calls, and the shared file pointer. */
static void pointers(void) {
  MPI_File file = opened(name, MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE);
  MPI_Request request;
  MPI_Status status;
  MPI_Offset at;
  int count, value, all[64] = {0}, put[2] = {rank, rank};
  CHECK(!MPI_File_set_size(file, 0) && !MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
  CHECK(!MPI_File_iwrite_at(file, rank, &rank, 1, MPI_INT, &request) && !MPI_Wait(&request, &status));
  CHECK(!MPI_Get_count(&status, MPI_INT, &count) && count == 1 && request == MPI_REQUEST_NULL && !MPI_File_sync(file));
  CHECK(!MPI_Barrier(MPI_COMM_WORLD) && !MPI_File_read_at_all_begin(file, 0, all, size, MPI_INT));
  FAILS(MPI_ERR_IO, MPI_File_read_all_begin(file, all, 1, MPI_INT));
  FAILS(MPI_ERR_IO, MPI_File_write_all_end(file, all, &status));
  CHECK(!MPI_File_read_at_all_end(file, all, &status) && all[size - 1] == size - 1);
  /* Each write with the shared pointer gets a place of its own; in which order is not determined. */
  CHECK(!MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
  for (int i = 0; i < 5; i++) CHECK(!MPI_File_write_shared(file, put, 2, MPI_INT, &status));
  CHECK(!MPI_Barrier(MPI_COMM_WORLD) && !MPI_File_get_position_shared(file, &at) && at == 10 * size);
  int seen[8] = {0};
  for (int i = 0; i < 5 * size; i++) {
    CHECK(!MPI_File_read_at(file, 2 * i, put, 2, MPI_INT, &status) && put[0] == put[1] && put[0] >= 0 && put[0] < size);
    seen[put[0]]++;
  }
  for (int r = 0; r < size; r++) CHECK(seen[r] == 5);
  /* Rank r writes r + 1 numbers, in the order of the ranks. */
  int more[8] = {rank, rank, rank, rank, rank, rank, rank, rank};
  CHECK(!MPI_File_seek_shared(file, 3, MPI_SEEK_SET) && !MPI_File_write_ordered(file, more, rank + 1, MPI_INT, &status));
  CHECK(!MPI_File_get_position_shared(file, &at) && at == 3 + size * (size + 1) / 2 && !MPI_File_sync(file));
  CHECK(!MPI_File_read_at(file, 3 + rank * (rank + 1) / 2, &value, 1, MPI_INT, &status) && value == rank);
  CHECK(!MPI_File_seek_shared(file, -size, MPI_SEEK_END) && !MPI_File_read_ordered_begin(file, &value, 1, MPI_INT));
  CHECK(!MPI_File_read_ordered_end(file, &value, &status) && !MPI_Get_count(&status, MPI_INT, &count) && count == 1);
  /* In atomic mode, no rank reads data that another rank has written only in part. */
  enum { LONG = 100000 };
  int *many = malloc(LONG * sizeof(int)), flag = 0;
  CHECK(!MPI_File_set_atomicity(file, 1) && !MPI_File_get_atomicity(file, &flag) && flag == 1);
  for (int round = 0; round < 5; round++) {
    for (int i = 0; i < LONG; i++) many[i] = rank;
    CHECK(!MPI_File_write_at(file, 0, many, LONG, MPI_INT, &status) && !MPI_File_read_at(file, 0, many, LONG, MPI_INT, &status));
    for (int i = 1; i < LONG; i++) CHECK(many[i] == many[0]);
  }
  free(many);
  CHECK(!MPI_File_close(&file));
  FAILS(MPI_ERR_NO_SUCH_FILE, MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
}

/* The end of a view whose pieces begin beyond the extent of its filetype. */
static void end_of_a_shifted_view(void) {
  MPI_File file = opened(name, MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE);
  MPI_Datatype behind, shifted;
  MPI_Offset at = -1;
  CHECK(!MPI_Type_create_hindexed(1, (int[]){1}, (MPI_Aint[]){8}, MPI_INT, &behind));
  CHECK(!MPI_Type_create_resized(behind, 0, 4, &shifted) && !MPI_Type_commit(&shifted));
  CHECK(!MPI_File_set_size(file, 16) && !MPI_File_set_view(file, 0, MPI_INT, shifted, "native", MPI_INFO_NULL));
  CHECK(!MPI_File_seek(file, 0, MPI_SEEK_END) && !MPI_File_get_position(file, &at) && at == 2);
  CHECK(!MPI_File_close(&file) && !MPI_Type_free(&behind) && !MPI_Type_free(&shifted));
}

static int handled;
static void handler(MPI_File *file, int *code, ...) {
  (void)code;
  handled += *file != MPI_FILE_NULL;
}

static void wrong(void) {
  MPI_File file, closed;
  MPI_Status status;
  MPI_Offset at = -1;
  MPI_Group group;
  MPI_Datatype backwards;
  MPI_Info info;
  MPI_Errhandler mine;
  int value = 0, mode = 0, count = -1, where[2] = {4, 0}, one[2] = {1, 1};
  FAILS(MPI_ERR_AMODE, MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDONLY | MPI_MODE_CREATE, MPI_INFO_NULL, &file));
  FAILS(MPI_ERR_AMODE, MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE, MPI_INFO_NULL, &file));
  FAILS(MPI_ERR_AMODE, MPI_File_open(MPI_COMM_WORLD, name, 1 << 20 | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
  FAILS(MPI_ERR_FILE, MPI_File_read(MPI_FILE_NULL, &value, 1, MPI_INT, &status));
  FAILS(MPI_ERR_NO_SUCH_FILE, MPI_File_delete(name, MPI_INFO_NULL));
  file = opened(name, MPI_MODE_WRONLY | MPI_MODE_CREATE);
  CHECK(!MPI_File_get_amode(file, &mode) && mode == (MPI_MODE_WRONLY | MPI_MODE_CREATE));
  CHECK(!MPI_File_get_group(file, &group) && !MPI_Group_size(group, &count) && count == size && !MPI_Group_free(&group));
  CHECK(!MPI_File_get_info(file, &info) && !MPI_File_set_info(file, info) && !MPI_Info_free(&info));
  FAILS(MPI_ERR_ACCESS, MPI_File_read(file, &value, 1, MPI_INT, &status));
  FAILS(MPI_ERR_COUNT, MPI_File_write(file, &value, -1, MPI_INT, &status));
  FAILS(MPI_ERR_TYPE, MPI_File_write(file, &value, 1, MPI_DATATYPE_NULL, &status));
  FAILS(MPI_ERR_BUFFER, MPI_File_write(file, NULL, 1, MPI_INT, &status));
  FAILS(MPI_ERR_ARG, MPI_File_seek(file, -1, MPI_SEEK_SET));
  FAILS(MPI_ERR_ARG, MPI_File_seek(file, 0, 4711));
  FAILS(MPI_ERR_ARG, MPI_File_set_size(file, -1));
  FAILS(MPI_ERR_ARG, MPI_File_write_at(file, -1, &value, 1, MPI_INT, &status));
  CHECK(!MPI_Type_indexed(2, one, where, MPI_INT, &backwards) && !MPI_Type_commit(&backwards));
  FAILS(MPI_ERR_TYPE, MPI_File_set_view(file, 0, MPI_INT, backwards, "native", MPI_INFO_NULL));
  CHECK(!MPI_Type_free(&backwards) && !MPI_File_preallocate(file, 100) && !MPI_File_get_size(file, &at) && at == 100);
  CHECK(!MPI_File_create_errhandler(handler, &mine) && !MPI_File_set_errhandler(file, mine) && !MPI_Errhandler_free(&mine));
  CHECK(MPI_File_seek(file, -1, MPI_SEEK_SET) != MPI_SUCCESS && handled == 1);
  closed = file;
  CHECK(!MPI_File_close(&file));
  FAILS(MPI_ERR_FILE, MPI_File_close(&closed));
  file = opened(name, MPI_MODE_RDONLY | MPI_MODE_SEQUENTIAL);
  FAILS(MPI_ERR_READ_ONLY, MPI_File_write_shared(file, &value, 1, MPI_INT, &status));
  FAILS(MPI_ERR_UNSUPPORTED_OPERATION, MPI_File_read(file, &value, 1, MPI_INT, &status));
  CHECK(!MPI_File_read_shared(file, &value, 1, MPI_INT, &status) && value == 0 && !MPI_File_close(&file));
  file = opened(name, MPI_MODE_WRONLY | MPI_MODE_APPEND);
  CHECK(!MPI_File_get_position(file, &at) && at == 100 && !MPI_File_close(&file) && !MPI_Barrier(MPI_COMM_WORLD));
  if (rank == 0) CHECK(!MPI_File_delete(name, MPI_INFO_NULL));
}

/* The pieces of a filetype lie between those of the next: the columns of a matrix, one after another. */
static void interleaved(void) {
  int data[16], got[16];
  MPI_File file;
  MPI_Datatype spread, column;
  MPI_Offset at = -1;
  if (rank > 0) return;
  for (int i = 0; i < 16; i++) data[i] = i;
  CHECK(!MPI_Type_vector(4, 1, 4, MPI_INT, &spread) && !MPI_Type_create_resized(spread, 0, sizeof(int), &column));
  CHECK(!MPI_Type_commit(&column));
  CHECK(!MPI_File_open(MPI_COMM_SELF, name, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &file));
  CHECK(!MPI_File_set_view(file, 0, MPI_INT, column, "native", MPI_INFO_NULL));
  CHECK(!MPI_File_write(file, data, 16, MPI_INT, MPI_STATUS_IGNORE));
  CHECK(!MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
  CHECK(!MPI_File_read(file, got, 16, MPI_INT, MPI_STATUS_IGNORE));
  for (int i = 0; i < 16; i++) CHECK(got[i] == 4 * (i % 4) + i / 4);
  /* The view ends at number 14, the first that the file does not have, though the view shows numbers 3, 7 and 11 only behind it. */
  CHECK(!MPI_File_set_size(file, 14 * sizeof(int)) && !MPI_File_set_view(file, 0, MPI_INT, column, "native", MPI_INFO_NULL));
  CHECK(!MPI_File_seek(file, 0, MPI_SEEK_END) && !MPI_File_get_position(file, &at) && at == 11);
  CHECK(!MPI_File_close(&file) && !MPI_Type_free(&spread) && !MPI_Type_free(&column));
}

int main(int argc, char **argv) {
  CHECK(!MPI_Init(&argc, &argv) && !MPI_Comm_rank(MPI_COMM_WORLD, &rank) && !MPI_Comm_size(MPI_COMM_WORLD, &size));
  CHECK(argc == 2 && snprintf(name, sizeof name, "%s/data", argv[1]) < (int)sizeof name);
  views();
  unequal_views();
  pointers();
  end_of_a_shifted_view();
  interleaved();
  wrong();
  CHECK(!MPI_Finalize());
  return 0;
}
