/* Functions of this ABI that are not in the table: conversion of Fortran handles and statuses, and functions that MPI-3 removed. */
int MPIR_Dup_fn(MPI_Comm, int, void *, void *, void *, int *);
#define MPI_COMM_DUP_FN ((MPI_Comm_copy_attr_function *)MPIR_Dup_fn)
#define MPI_TYPE_DUP_FN ((MPI_Type_copy_attr_function *)MPIR_Dup_fn)
#define MPI_WIN_DUP_FN ((MPI_Win_copy_attr_function *)MPIR_Dup_fn)

/* The Fortran bindings set these, in programs that use Fortran. */
extern MPI_Fint *MPI_F_STATUS_IGNORE;
extern MPI_Fint *MPI_F_STATUSES_IGNORE;
typedef struct {
  MPI_Fint count_lo, count_hi_and_cancelled;
  MPI_Fint MPI_SOURCE, MPI_TAG, MPI_ERROR;
} MPI_F08_status;
extern MPI_F08_status *MPI_F08_STATUS_IGNORE;
extern MPI_F08_status *MPI_F08_STATUSES_IGNORE;

/* Operators and error handlers whose functions have a state. A destructor, unless it is NULL, is called with the state when nothing uses
   the function any more. */
typedef void MPIX_Destructor_function(void *state);
typedef void MPIX_User_function_x(void *in, void *inout, MPI_Count length, MPI_Datatype type, void *state);
typedef void MPIX_Comm_errhandler_function_x(MPI_Comm object, int code, void *state);
typedef void MPIX_Win_errhandler_function_x(MPI_Win object, int code, void *state);
typedef void MPIX_File_errhandler_function_x(MPI_File object, int code, void *state);
typedef void MPIX_Session_errhandler_function_x(MPI_Session object, int code, void *state);
int MPIX_Op_create_x(MPIX_User_function_x *function, MPIX_Destructor_function *destructor, int commutes, void *state, MPI_Op *op);
int PMPIX_Op_create_x(MPIX_User_function_x *function, MPIX_Destructor_function *destructor, int commutes, void *state, MPI_Op *op);
int MPIX_Comm_create_errhandler_x(MPIX_Comm_errhandler_function_x *function, MPIX_Destructor_function *destructor, void *state,
                                  MPI_Errhandler *handler);
int PMPIX_Comm_create_errhandler_x(MPIX_Comm_errhandler_function_x *function, MPIX_Destructor_function *destructor, void *state,
                                   MPI_Errhandler *handler);
int MPIX_Win_create_errhandler_x(MPIX_Win_errhandler_function_x *function, MPIX_Destructor_function *destructor, void *state,
                                 MPI_Errhandler *handler);
int PMPIX_Win_create_errhandler_x(MPIX_Win_errhandler_function_x *function, MPIX_Destructor_function *destructor, void *state,
                                  MPI_Errhandler *handler);
int MPIX_File_create_errhandler_x(MPIX_File_errhandler_function_x *function, MPIX_Destructor_function *destructor, void *state,
                                  MPI_Errhandler *handler);
int PMPIX_File_create_errhandler_x(MPIX_File_errhandler_function_x *function, MPIX_Destructor_function *destructor, void *state,
                                   MPI_Errhandler *handler);
int MPIX_Session_create_errhandler_x(MPIX_Session_errhandler_function_x *function, MPIX_Destructor_function *destructor, void *state,
                                     MPI_Errhandler *handler);
int PMPIX_Session_create_errhandler_x(MPIX_Session_errhandler_function_x *function, MPIX_Destructor_function *destructor, void *state,
                                      MPI_Errhandler *handler);

/* Fault tolerance: going on after the loss of processes. */
#define MPIX_ERR_PROC_FAILED 101
#define MPIX_ERR_PROC_FAILED_PENDING 102
#define MPIX_ERR_REVOKED 103
int MPIX_Comm_revoke(MPI_Comm comm);
int PMPIX_Comm_revoke(MPI_Comm comm);
int MPIX_Comm_is_revoked(MPI_Comm comm, int *flag);
int PMPIX_Comm_is_revoked(MPI_Comm comm, int *flag);
int MPIX_Comm_shrink(MPI_Comm comm, MPI_Comm *newcomm);
int PMPIX_Comm_shrink(MPI_Comm comm, MPI_Comm *newcomm);
int MPIX_Comm_agree(MPI_Comm comm, int *flag);
int PMPIX_Comm_agree(MPI_Comm comm, int *flag);
int MPIX_Comm_failure_ack(MPI_Comm comm);
int PMPIX_Comm_failure_ack(MPI_Comm comm);
int MPIX_Comm_failure_get_acked(MPI_Comm comm, MPI_Group *group);
int PMPIX_Comm_failure_get_acked(MPI_Comm comm, MPI_Group *group);
int MPIX_Comm_get_failed(MPI_Comm comm, MPI_Group *group);
int PMPIX_Comm_get_failed(MPI_Comm comm, MPI_Group *group);

MPI_Fint MPI_Comm_c2f(MPI_Comm handle);
MPI_Fint PMPI_Comm_c2f(MPI_Comm handle);
MPI_Comm MPI_Comm_f2c(MPI_Fint handle);
MPI_Comm PMPI_Comm_f2c(MPI_Fint handle);
MPI_Fint MPI_Errhandler_c2f(MPI_Errhandler handle);
MPI_Fint PMPI_Errhandler_c2f(MPI_Errhandler handle);
MPI_Errhandler MPI_Errhandler_f2c(MPI_Fint handle);
MPI_Errhandler PMPI_Errhandler_f2c(MPI_Fint handle);
MPI_Fint MPI_Group_c2f(MPI_Group handle);
MPI_Fint PMPI_Group_c2f(MPI_Group handle);
MPI_Group MPI_Group_f2c(MPI_Fint handle);
MPI_Group PMPI_Group_f2c(MPI_Fint handle);
MPI_Fint MPI_File_c2f(MPI_File handle);
MPI_Fint PMPI_File_c2f(MPI_File handle);
MPI_File MPI_File_f2c(MPI_Fint handle);
MPI_File PMPI_File_f2c(MPI_Fint handle);
MPI_Fint MPI_Info_c2f(MPI_Info handle);
MPI_Fint PMPI_Info_c2f(MPI_Info handle);
MPI_Info MPI_Info_f2c(MPI_Fint handle);
MPI_Info PMPI_Info_f2c(MPI_Fint handle);
MPI_Fint MPI_Message_c2f(MPI_Message handle);
MPI_Fint PMPI_Message_c2f(MPI_Message handle);
MPI_Message MPI_Message_f2c(MPI_Fint handle);
MPI_Message PMPI_Message_f2c(MPI_Fint handle);
MPI_Fint MPI_Op_c2f(MPI_Op handle);
MPI_Fint PMPI_Op_c2f(MPI_Op handle);
MPI_Op MPI_Op_f2c(MPI_Fint handle);
MPI_Op PMPI_Op_f2c(MPI_Fint handle);
MPI_Fint MPI_Request_c2f(MPI_Request handle);
MPI_Fint PMPI_Request_c2f(MPI_Request handle);
MPI_Request MPI_Request_f2c(MPI_Fint handle);
MPI_Request PMPI_Request_f2c(MPI_Fint handle);
MPI_Fint MPI_Session_c2f(MPI_Session handle);
MPI_Fint PMPI_Session_c2f(MPI_Session handle);
MPI_Session MPI_Session_f2c(MPI_Fint handle);
MPI_Session PMPI_Session_f2c(MPI_Fint handle);
MPI_Fint MPI_Type_c2f(MPI_Datatype handle);
MPI_Fint PMPI_Type_c2f(MPI_Datatype handle);
MPI_Datatype MPI_Type_f2c(MPI_Fint handle);
MPI_Datatype PMPI_Type_f2c(MPI_Fint handle);
MPI_Fint MPI_Win_c2f(MPI_Win handle);
MPI_Fint PMPI_Win_c2f(MPI_Win handle);
MPI_Win MPI_Win_f2c(MPI_Fint handle);
MPI_Win PMPI_Win_f2c(MPI_Fint handle);

typedef MPI_Comm_errhandler_function MPI_Handler_function;
int MPI_Status_c2f(const MPI_Status *status, MPI_Fint *numbers);
int PMPI_Status_c2f(const MPI_Status *status, MPI_Fint *numbers);
int MPI_Status_f2c(const MPI_Fint *numbers, MPI_Status *status);
int PMPI_Status_f2c(const MPI_Fint *numbers, MPI_Status *status);
int MPI_Status_c2f08(const MPI_Status *from, MPI_F08_status *to);
int PMPI_Status_c2f08(const MPI_Status *from, MPI_F08_status *to);
int MPI_Status_f082c(const MPI_F08_status *from, MPI_Status *to);
int PMPI_Status_f082c(const MPI_F08_status *from, MPI_Status *to);
int MPI_Status_f2f08(const MPI_Fint *from, MPI_F08_status *to);
int PMPI_Status_f2f08(const MPI_Fint *from, MPI_F08_status *to);
int MPI_Status_f082f(const MPI_F08_status *from, MPI_Fint *to);
int PMPI_Status_f082f(const MPI_F08_status *from, MPI_Fint *to);
#define MPI_LB KOLO_HANDLE(MPI_Datatype, 0x4c000010)
#define MPI_UB KOLO_HANDLE(MPI_Datatype, 0x4c000011)
int MPI_Address(const void *location, MPI_Aint *address);
int PMPI_Address(const void *location, MPI_Aint *address);
int MPI_Errhandler_create(MPI_Handler_function *function, MPI_Errhandler *handler);
int PMPI_Errhandler_create(MPI_Handler_function *function, MPI_Errhandler *handler);
int MPI_Errhandler_get(MPI_Comm comm, MPI_Errhandler *handler);
int PMPI_Errhandler_get(MPI_Comm comm, MPI_Errhandler *handler);
int MPI_Errhandler_set(MPI_Comm comm, MPI_Errhandler handler);
int PMPI_Errhandler_set(MPI_Comm comm, MPI_Errhandler handler);
int MPI_Type_extent(MPI_Datatype type, MPI_Aint *extent);
int PMPI_Type_extent(MPI_Datatype type, MPI_Aint *extent);
int MPI_Type_hindexed(int count, const int lengths[], const MPI_Aint displacements[], MPI_Datatype type, MPI_Datatype *newtype);
int PMPI_Type_hindexed(int count, const int lengths[], const MPI_Aint displacements[], MPI_Datatype type, MPI_Datatype *newtype);
int MPI_Type_hvector(int count, int length, MPI_Aint stride, MPI_Datatype type, MPI_Datatype *newtype);
int PMPI_Type_hvector(int count, int length, MPI_Aint stride, MPI_Datatype type, MPI_Datatype *newtype);
int MPI_Type_lb(MPI_Datatype type, MPI_Aint *bound);
int PMPI_Type_lb(MPI_Datatype type, MPI_Aint *bound);
int MPI_Type_struct(int count, const int lengths[], const MPI_Aint displacements[], const MPI_Datatype types[], MPI_Datatype *newtype);
int PMPI_Type_struct(int count, const int lengths[], const MPI_Aint displacements[], const MPI_Datatype types[], MPI_Datatype *newtype);
int MPI_Type_ub(MPI_Datatype type, MPI_Aint *bound);
int PMPI_Type_ub(MPI_Datatype type, MPI_Aint *bound);
