/* MPI with the ABI of the MPI-5 standard, for libmpi_abi.so.1. */
#ifndef KOLO_MPI_H
#define KOLO_MPI_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct MPI_ABI_Comm *MPI_Comm;
typedef struct MPI_ABI_Group *MPI_Group;
typedef struct MPI_ABI_Datatype *MPI_Datatype;
typedef struct MPI_ABI_Errhandler *MPI_Errhandler;
typedef struct MPI_ABI_Op *MPI_Op;
typedef struct MPI_ABI_Info *MPI_Info;
typedef struct MPI_ABI_Win *MPI_Win;
typedef struct MPI_ABI_Request *MPI_Request;
typedef struct MPI_ABI_Message *MPI_Message;
typedef struct MPI_ABI_Session *MPI_Session;
typedef struct MPI_ABI_File *MPI_File;
typedef long MPI_Aint;
typedef long long MPI_Count;
typedef long long MPI_Offset;

typedef struct {
  int MPI_SOURCE, MPI_TAG, MPI_ERROR;
  int MPI_internal[5];
} MPI_Status;

#define KOLO_HANDLE(type, number) ((type)(number))

#define MPI_COMM_NULL KOLO_HANDLE(MPI_Comm, 0x100)
#define MPI_COMM_WORLD KOLO_HANDLE(MPI_Comm, 0x101)
#define MPI_COMM_SELF KOLO_HANDLE(MPI_Comm, 0x102)
#define MPI_GROUP_NULL KOLO_HANDLE(MPI_Group, 0x108)
#define MPI_GROUP_EMPTY KOLO_HANDLE(MPI_Group, 0x109)
#define MPI_ERRHANDLER_NULL KOLO_HANDLE(MPI_Errhandler, 0x140)
#define MPI_ERRORS_ARE_FATAL KOLO_HANDLE(MPI_Errhandler, 0x141)
#define MPI_ERRORS_RETURN KOLO_HANDLE(MPI_Errhandler, 0x143)
#define MPI_ERRORS_ABORT KOLO_HANDLE(MPI_Errhandler, 0x142)
#define MPI_INFO_NULL KOLO_HANDLE(MPI_Info, 0x130)
#define MPI_INFO_ENV KOLO_HANDLE(MPI_Info, 0x131)
#define MPI_WIN_NULL KOLO_HANDLE(MPI_Win, 0x110)
#define MPI_REQUEST_NULL KOLO_HANDLE(MPI_Request, 0x180)
#define MPI_MESSAGE_NULL KOLO_HANDLE(MPI_Message, 0x128)
#define MPI_MESSAGE_NO_PROC KOLO_HANDLE(MPI_Message, 0x129)
#define MPI_SESSION_NULL KOLO_HANDLE(MPI_Session, 0x120)
#define MPI_FILE_NULL KOLO_HANDLE(MPI_File, 0x118)

#define MPI_OP_NULL KOLO_HANDLE(MPI_Op, 0x020)
#define MPI_MAX KOLO_HANDLE(MPI_Op, 0x023)
#define MPI_MIN KOLO_HANDLE(MPI_Op, 0x022)
#define MPI_SUM KOLO_HANDLE(MPI_Op, 0x021)
#define MPI_PROD KOLO_HANDLE(MPI_Op, 0x024)
#define MPI_LAND KOLO_HANDLE(MPI_Op, 0x030)
#define MPI_BAND KOLO_HANDLE(MPI_Op, 0x028)
#define MPI_LOR KOLO_HANDLE(MPI_Op, 0x031)
#define MPI_BOR KOLO_HANDLE(MPI_Op, 0x029)
#define MPI_LXOR KOLO_HANDLE(MPI_Op, 0x032)
#define MPI_BXOR KOLO_HANDLE(MPI_Op, 0x02a)
#define MPI_MINLOC KOLO_HANDLE(MPI_Op, 0x038)
#define MPI_MAXLOC KOLO_HANDLE(MPI_Op, 0x039)
#define MPI_REPLACE KOLO_HANDLE(MPI_Op, 0x03c)
#define MPI_NO_OP KOLO_HANDLE(MPI_Op, 0x03d)

#define MPI_DATATYPE_NULL KOLO_HANDLE(MPI_Datatype, 0x200)
#define MPI_CHAR KOLO_HANDLE(MPI_Datatype, 0x243)
#define MPI_SIGNED_CHAR KOLO_HANDLE(MPI_Datatype, 0x244)
#define MPI_UNSIGNED_CHAR KOLO_HANDLE(MPI_Datatype, 0x245)
#define MPI_BYTE KOLO_HANDLE(MPI_Datatype, 0x247)
#define MPI_WCHAR KOLO_HANDLE(MPI_Datatype, 0x23c)
#define MPI_SHORT KOLO_HANDLE(MPI_Datatype, 0x208)
#define MPI_UNSIGNED_SHORT KOLO_HANDLE(MPI_Datatype, 0x20c)
#define MPI_INT KOLO_HANDLE(MPI_Datatype, 0x209)
#define MPI_UNSIGNED KOLO_HANDLE(MPI_Datatype, 0x20d)
#define MPI_LONG KOLO_HANDLE(MPI_Datatype, 0x20a)
#define MPI_UNSIGNED_LONG KOLO_HANDLE(MPI_Datatype, 0x20e)
#define MPI_LONG_LONG KOLO_HANDLE(MPI_Datatype, 0x20b)
#define MPI_LONG_LONG_INT MPI_LONG_LONG
#define MPI_UNSIGNED_LONG_LONG KOLO_HANDLE(MPI_Datatype, 0x20f)
#define MPI_FLOAT KOLO_HANDLE(MPI_Datatype, 0x210)
#define MPI_DOUBLE KOLO_HANDLE(MPI_Datatype, 0x214)
#define MPI_LONG_DOUBLE KOLO_HANDLE(MPI_Datatype, 0x220)
#define MPI_PACKED KOLO_HANDLE(MPI_Datatype, 0x207)
#define MPI_FLOAT_INT KOLO_HANDLE(MPI_Datatype, 0x228)
#define MPI_DOUBLE_INT KOLO_HANDLE(MPI_Datatype, 0x229)
#define MPI_LONG_INT KOLO_HANDLE(MPI_Datatype, 0x22a)
#define MPI_SHORT_INT KOLO_HANDLE(MPI_Datatype, 0x22c)
#define MPI_LONG_DOUBLE_INT KOLO_HANDLE(MPI_Datatype, 0x22d)
#define MPI_2INT KOLO_HANDLE(MPI_Datatype, 0x22b)
#define MPI_INT8_T KOLO_HANDLE(MPI_Datatype, 0x240)
#define MPI_INT16_T KOLO_HANDLE(MPI_Datatype, 0x248)
#define MPI_INT32_T KOLO_HANDLE(MPI_Datatype, 0x250)
#define MPI_INT64_T KOLO_HANDLE(MPI_Datatype, 0x258)
#define MPI_UINT8_T KOLO_HANDLE(MPI_Datatype, 0x241)
#define MPI_UINT16_T KOLO_HANDLE(MPI_Datatype, 0x249)
#define MPI_UINT32_T KOLO_HANDLE(MPI_Datatype, 0x251)
#define MPI_UINT64_T KOLO_HANDLE(MPI_Datatype, 0x259)
#define MPI_C_BOOL KOLO_HANDLE(MPI_Datatype, 0x238)
#define MPI_C_FLOAT_COMPLEX KOLO_HANDLE(MPI_Datatype, 0x212)
#define MPI_C_COMPLEX MPI_C_FLOAT_COMPLEX
#define MPI_C_DOUBLE_COMPLEX KOLO_HANDLE(MPI_Datatype, 0x216)
#define MPI_C_LONG_DOUBLE_COMPLEX KOLO_HANDLE(MPI_Datatype, 0x224)
#define MPI_AINT KOLO_HANDLE(MPI_Datatype, 0x201)
#define MPI_OFFSET KOLO_HANDLE(MPI_Datatype, 0x203)
#define MPI_COUNT KOLO_HANDLE(MPI_Datatype, 0x202)

#define MPI_VERSION 3
#define MPI_SUBVERSION 1
#define MPI_SUCCESS 0
#define MPI_ANY_SOURCE (-1)
#define MPI_ANY_TAG (-2)
#define MPI_PROC_NULL (-3)
#define MPI_ROOT (-4)
#define MPI_UNDEFINED (-32766)
#define MPI_BOTTOM ((void *)0)
#define MPI_IN_PLACE ((void *)1)
#define MPI_BUFFER_AUTOMATIC ((void *)2)
#define MPI_STATUS_IGNORE ((MPI_Status *)0)
#define MPI_STATUSES_IGNORE ((MPI_Status *)0)
#define MPI_KEYVAL_INVALID 0
#define MPI_TAG_UB 501
#define MPI_THREAD_SINGLE 0
#define MPI_THREAD_FUNNELED 1024
#define MPI_THREAD_SERIALIZED 2048
#define MPI_THREAD_MULTIPLE 4096
#define MPI_IDENT 201
#define MPI_CONGRUENT 202
#define MPI_SIMILAR 203
#define MPI_UNEQUAL 204
#define MPI_GRAPH 212
#define MPI_CART 211
#define MPI_DIST_GRAPH 213
#define MPI_COMM_TYPE_SHARED 221
#define MPI_BSEND_OVERHEAD 512
#define MPI_MAX_PROCESSOR_NAME 256
#define MPI_MAX_ERROR_STRING 512
#define MPI_MAX_LIBRARY_VERSION_STRING 8192
#define MPI_MAX_OBJECT_NAME 128
#define MPI_MAX_PSET_NAME_LEN 1024
#define MPI_MAX_STRINGTAG_LEN 1024
#define MPI_MAX_INFO_KEY 256
#define MPI_MAX_INFO_VAL 1024
#define MPI_ORDER_C 12
#define MPI_ORDER_FORTRAN 15
#define MPI_COMBINER_NAMED 101
#define MPI_COMBINER_VECTOR 104
#define MPI_LOCK_EXCLUSIVE 301
#define MPI_LOCK_SHARED 302
#define MPI_WIN_BASE 601
#define MPI_WIN_SIZE 603

#define MPI_ERR_BUFFER 1
#define MPI_ERR_COUNT 2
#define MPI_ERR_TYPE 3
#define MPI_ERR_TAG 4
#define MPI_ERR_COMM 5
#define MPI_ERR_RANK 6
#define MPI_ERR_ROOT 8
#define MPI_ERR_GROUP 9
#define MPI_ERR_OP 10
#define MPI_ERR_TOPOLOGY 11
#define MPI_ERR_DIMS 12
#define MPI_ERR_ARG 13
#define MPI_ERR_UNKNOWN 14
#define MPI_ERR_TRUNCATE 15
#define MPI_ERR_OTHER 16
#define MPI_ERR_INTERN 17
#define MPI_ERR_IN_STATUS 19
#define MPI_ERR_PENDING 18
#define MPI_ERR_REQUEST 7
#define MPI_ERR_INFO 34
#define MPI_ERR_NO_MEM 39
#define MPI_ERR_UNSUPPORTED_OPERATION 55
#define MPI_ERR_WIN 56
#define MPI_ERR_KEYVAL 36
#define MPI_ERR_RMA_SYNC 50
#define MPI_ERR_RMA_RANGE 48
#define MPI_ERR_SESSION 60
#define MPI_ERR_ERRHANDLER 61
#define MPI_ERR_LASTCODE 16383

#define MPI_UNWEIGHTED ((int *)10)
#define MPI_WEIGHTS_EMPTY ((int *)11)

typedef struct KOLO_T_enum *MPI_T_enum;
typedef struct KOLO_T_cvar *MPI_T_cvar_handle;
typedef struct KOLO_T_pvar *MPI_T_pvar_handle;
typedef struct KOLO_T_session *MPI_T_pvar_session;
#define MPI_T_ENUM_NULL ((MPI_T_enum)0)
#define MPI_T_CVAR_HANDLE_NULL ((MPI_T_cvar_handle)0)
#define MPI_T_PVAR_HANDLE_NULL ((MPI_T_pvar_handle)0)
#define MPI_T_PVAR_SESSION_NULL ((MPI_T_pvar_session)0)
#define MPI_T_PVAR_ALL_HANDLES ((MPI_T_pvar_handle)1)
#define MPI_T_ERR_NOT_INITIALIZED 1003
#define MPI_T_ERR_INVALID_INDEX 1007
#define MPI_T_ERR_INVALID_HANDLE 1010
#define MPI_T_ERR_INVALID_SESSION 1009
#define MPI_T_ERR_CVAR_SET_NEVER 1015
#define MPI_T_ERR_PVAR_NO_STARTSTOP 1017
#define MPI_T_ERR_PVAR_NO_WRITE 1016
#define MPI_T_ERR_INVALID_NAME 1011
#define MPI_T_ERR_INVALID 1006
#define MPI_T_PVAR_CLASS_STATE 1
#define MPI_T_PVAR_CLASS_LEVEL 2
#define MPI_T_PVAR_CLASS_SIZE 3
#define MPI_T_PVAR_CLASS_PERCENTAGE 4
#define MPI_T_PVAR_CLASS_HIGHWATERMARK 5
#define MPI_T_PVAR_CLASS_LOWWATERMARK 6
#define MPI_T_PVAR_CLASS_COUNTER 7
#define MPI_T_PVAR_CLASS_AGGREGATE 8
#define MPI_T_PVAR_CLASS_TIMER 9
#define MPI_T_PVAR_CLASS_GENERIC 10
#define MPI_T_VERBOSITY_USER_BASIC 9
#define MPI_T_VERBOSITY_TUNER_BASIC 17
#define MPI_T_BIND_NO_OBJECT 1
#define MPI_T_BIND_MPI_COMM 2
#define MPI_T_SCOPE_CONSTANT 1
#define MPI_T_SCOPE_READONLY 2
#define MPI_T_SCOPE_LOCAL 3
#define MPI_T_SCOPE_GROUP 4
#define MPI_T_SCOPE_GROUP_EQ 5
#define MPI_T_SCOPE_ALL 6
#define MPI_T_SCOPE_ALL_EQ 7
#define MPI_MODE_APPEND 1
#define MPI_MODE_CREATE 2
#define MPI_MODE_DELETE_ON_CLOSE 4
#define MPI_MODE_EXCL 8
#define MPI_MODE_RDONLY 16
#define MPI_MODE_RDWR 32
#define MPI_MODE_SEQUENTIAL 64
#define MPI_MODE_UNIQUE_OPEN 128
#define MPI_MODE_WRONLY 256
#define MPI_SEEK_CUR 401
#define MPI_SEEK_END 402
#define MPI_SEEK_SET 403
#define MPI_MAX_DATAREP_STRING 128
#define MPI_DISPLACEMENT_CURRENT (-1)
#define MPI_ERR_ACCESS 20
#define MPI_ERR_AMODE 21
#define MPI_ERR_BAD_FILE 23
#define MPI_ERR_CONVERSION 25
#define MPI_ERR_DUP_DATAREP 27
#define MPI_ERR_FILE_EXISTS 28
#define MPI_ERR_FILE_IN_USE 29
#define MPI_ERR_FILE 30
#define MPI_ERR_IO 35
#define MPI_ERR_NO_SPACE 41
#define MPI_ERR_NO_SUCH_FILE 42
#define MPI_ERR_NOT_SAME 40
#define MPI_ERR_QUOTA 44
#define MPI_ERR_READ_ONLY 45
#define MPI_ERR_UNSUPPORTED_DATAREP 54

#include "../mpi_types.h"
#include "mpi_constants.h"

int MPI_Psend_init(const void *buf, int partitions, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
        MPI_Info info, MPI_Request *request);
int PMPI_Psend_init(const void *buf, int partitions, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
        MPI_Info info, MPI_Request *request);
int MPI_Precv_init(void *buf, int partitions, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
        MPI_Info info, MPI_Request *request);
int PMPI_Precv_init(void *buf, int partitions, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
        MPI_Info info, MPI_Request *request);
int MPI_Psend_init_c(const void *buf, int partitions, MPI_Count count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
        MPI_Info info, MPI_Request *request);
int PMPI_Psend_init_c(const void *buf, int partitions, MPI_Count count, MPI_Datatype type, int dest, int tag, MPI_Comm comm,
        MPI_Info info, MPI_Request *request);
int MPI_Precv_init_c(void *buf, int partitions, MPI_Count count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
        MPI_Info info, MPI_Request *request);
int PMPI_Precv_init_c(void *buf, int partitions, MPI_Count count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
        MPI_Info info, MPI_Request *request);

#ifdef __cplusplus
}
#endif
#endif
