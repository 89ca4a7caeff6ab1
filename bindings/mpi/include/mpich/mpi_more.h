/* Functions of this ABI that are not in the table: conversion of Fortran handles, addresses, and functions that MPI-3 removed. The
   conversions of handles have profiling names too, and `toint` and `fromint` are the same functions under their names of MPI-5. */
int MPIR_Dup_fn(MPI_Comm, int, void *, void *, void *, int *);
#define MPI_COMM_DUP_FN ((MPI_Comm_copy_attr_function *)MPIR_Dup_fn)
#define MPI_TYPE_DUP_FN ((MPI_Type_copy_attr_function *)MPIR_Dup_fn)
#define MPI_WIN_DUP_FN ((MPI_Win_copy_attr_function *)MPIR_Dup_fn)

/* The Fortran bindings set these, in programs that use Fortran. */
extern MPI_Fint *MPI_F_STATUS_IGNORE;
extern MPI_Fint *MPI_F_STATUSES_IGNORE;

/* Fault tolerance: going on after the loss of processes. */
#define MPIX_ERR_PROC_FAILED 101
#define MPIX_ERR_REVOKED 103
int MPIX_Comm_revoke(MPI_Comm comm);
int MPIX_Comm_is_revoked(MPI_Comm comm, int *flag);
int MPIX_Comm_shrink(MPI_Comm comm, MPI_Comm *newcomm);
int MPIX_Comm_agree(MPI_Comm comm, int *flag);
int MPIX_Comm_failure_ack(MPI_Comm comm);
int MPIX_Comm_failure_get_acked(MPI_Comm comm, MPI_Group *group);
int MPIX_Comm_get_failed(MPI_Comm comm, MPI_Group *group);

MPI_Aint MPI_Aint_add(MPI_Aint base, MPI_Aint displacement);
MPI_Aint MPI_Aint_diff(MPI_Aint base, MPI_Aint other);

MPI_Fint MPI_Comm_c2f(MPI_Comm handle);
MPI_Comm MPI_Comm_f2c(MPI_Fint handle);
MPI_Fint MPI_Errhandler_c2f(MPI_Errhandler handle);
MPI_Errhandler MPI_Errhandler_f2c(MPI_Fint handle);
MPI_Fint MPI_Group_c2f(MPI_Group handle);
MPI_Group MPI_Group_f2c(MPI_Fint handle);
MPI_Fint MPI_File_c2f(MPI_File handle);
MPI_File MPI_File_f2c(MPI_Fint handle);
MPI_Fint MPI_Info_c2f(MPI_Info handle);
MPI_Info MPI_Info_f2c(MPI_Fint handle);
MPI_Fint MPI_Message_c2f(MPI_Message handle);
MPI_Message MPI_Message_f2c(MPI_Fint handle);
MPI_Fint MPI_Op_c2f(MPI_Op handle);
MPI_Op MPI_Op_f2c(MPI_Fint handle);
MPI_Fint MPI_Request_c2f(MPI_Request handle);
MPI_Request MPI_Request_f2c(MPI_Fint handle);
MPI_Fint MPI_Session_c2f(MPI_Session handle);
MPI_Session MPI_Session_f2c(MPI_Fint handle);
MPI_Fint MPI_Type_c2f(MPI_Datatype handle);
MPI_Datatype MPI_Type_f2c(MPI_Fint handle);
MPI_Fint MPI_Win_c2f(MPI_Win handle);
MPI_Win MPI_Win_f2c(MPI_Fint handle);

typedef MPI_Comm_errhandler_function MPI_Handler_function;
int MPI_Status_c2f(const MPI_Status *status, MPI_Fint *numbers);
int MPI_Status_f2c(const MPI_Fint *numbers, MPI_Status *status);
#define MPI_LB KOLO_HANDLE(MPI_Datatype, 0x4c000010)
#define MPI_UB KOLO_HANDLE(MPI_Datatype, 0x4c000011)
int MPI_Address(const void *location, MPI_Aint *address);
int MPI_Errhandler_create(MPI_Handler_function *function, MPI_Errhandler *handler);
int MPI_Errhandler_get(MPI_Comm comm, MPI_Errhandler *handler);
int MPI_Errhandler_set(MPI_Comm comm, MPI_Errhandler handler);
int MPI_Type_extent(MPI_Datatype type, MPI_Aint *extent);
int MPI_Type_hindexed(int count, const int lengths[], const MPI_Aint displacements[], MPI_Datatype type, MPI_Datatype *newtype);
int MPI_Type_hvector(int count, int length, MPI_Aint stride, MPI_Datatype type, MPI_Datatype *newtype);
int MPI_Type_lb(MPI_Datatype type, MPI_Aint *bound);
int MPI_Type_struct(int count, const int lengths[], const MPI_Aint displacements[], const MPI_Datatype types[], MPI_Datatype *newtype);
int MPI_Type_ub(MPI_Datatype type, MPI_Aint *bound);
