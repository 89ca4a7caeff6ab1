/* Types of functions that programs pass, and functions that are not in the table. Both mpi.h include this file. */
typedef void MPI_User_function(void *, void *, int *, MPI_Datatype *);
typedef void MPI_User_function_c(void *, void *, MPI_Count *, MPI_Datatype *);
typedef int MPI_Comm_copy_attr_function(MPI_Comm, int, void *, void *, void *, int *);
typedef int MPI_Comm_delete_attr_function(MPI_Comm, int, void *, void *);
typedef MPI_Comm_copy_attr_function MPI_Copy_function;
typedef MPI_Comm_delete_attr_function MPI_Delete_function;
typedef int MPI_Type_copy_attr_function(MPI_Datatype, int, void *, void *, void *, int *);
typedef int MPI_Type_delete_attr_function(MPI_Datatype, int, void *, void *);
typedef int MPI_Win_copy_attr_function(MPI_Win, int, void *, void *, void *, int *);
typedef int MPI_Win_delete_attr_function(MPI_Win, int, void *, void *);
typedef void MPI_Comm_errhandler_function(MPI_Comm *, int *, ...);
typedef void MPI_Win_errhandler_function(MPI_Win *, int *, ...);
typedef void MPI_File_errhandler_function(MPI_File *, int *, ...);
typedef void MPI_Session_errhandler_function(MPI_Session *, int *, ...);
typedef int MPI_Grequest_query_function(void *, MPI_Status *);
typedef int MPI_Grequest_free_function(void *);
typedef int MPI_Grequest_cancel_function(void *, int);
typedef int MPI_Datarep_extent_function(MPI_Datatype, MPI_Aint *, void *);
typedef int MPI_Datarep_conversion_function(void *, MPI_Datatype, int, void *, MPI_Offset, void *);
typedef int MPI_Datarep_conversion_function_c(void *, MPI_Datatype, MPI_Count, void *, MPI_Offset, void *);

#define MPI_CONVERSION_FN_NULL ((MPI_Datarep_conversion_function *)0)
#define MPI_CONVERSION_FN_NULL_C ((MPI_Datarep_conversion_function_c *)0)
#define MPI_COMM_NULL_COPY_FN ((MPI_Comm_copy_attr_function *)0)
#define MPI_COMM_NULL_DELETE_FN ((MPI_Comm_delete_attr_function *)0)
#define MPI_TYPE_NULL_COPY_FN ((MPI_Type_copy_attr_function *)0)
#define MPI_TYPE_NULL_DELETE_FN ((MPI_Type_delete_attr_function *)0)
#define MPI_WIN_NULL_COPY_FN ((MPI_Win_copy_attr_function *)0)
#define MPI_WIN_NULL_DELETE_FN ((MPI_Win_delete_attr_function *)0)
#define MPI_NULL_COPY_FN MPI_COMM_NULL_COPY_FN
#define MPI_NULL_DELETE_FN MPI_COMM_NULL_DELETE_FN
#define MPI_DUP_FN MPI_COMM_DUP_FN

/* Older names of the types of error handlers. */
typedef MPI_Comm_errhandler_function MPI_Comm_errhandler_fn;
typedef MPI_Win_errhandler_function MPI_Win_errhandler_fn;
typedef MPI_File_errhandler_function MPI_File_errhandler_fn;
typedef MPI_Session_errhandler_function MPI_Session_errhandler_fn;

double MPI_Wtime(void);
double PMPI_Wtime(void);
double MPI_Wtick(void);
double PMPI_Wtick(void);
MPI_Aint MPI_Aint_add(MPI_Aint base, MPI_Aint displacement);
MPI_Aint PMPI_Aint_add(MPI_Aint base, MPI_Aint displacement);
MPI_Aint MPI_Aint_diff(MPI_Aint base, MPI_Aint other);
MPI_Aint PMPI_Aint_diff(MPI_Aint base, MPI_Aint other);
int MPI_Abi_get_version(int *major_version, int *minor_version);
int PMPI_Abi_get_version(int *major_version, int *minor_version);

/* Conversions of handles to numbers. */
int MPI_Comm_toint(MPI_Comm handle);
int PMPI_Comm_toint(MPI_Comm handle);
MPI_Comm MPI_Comm_fromint(int number);
MPI_Comm PMPI_Comm_fromint(int number);
int MPI_Errhandler_toint(MPI_Errhandler handle);
int PMPI_Errhandler_toint(MPI_Errhandler handle);
MPI_Errhandler MPI_Errhandler_fromint(int number);
MPI_Errhandler PMPI_Errhandler_fromint(int number);
int MPI_File_toint(MPI_File handle);
int PMPI_File_toint(MPI_File handle);
MPI_File MPI_File_fromint(int number);
MPI_File PMPI_File_fromint(int number);
int MPI_Group_toint(MPI_Group handle);
int PMPI_Group_toint(MPI_Group handle);
MPI_Group MPI_Group_fromint(int number);
MPI_Group PMPI_Group_fromint(int number);
int MPI_Info_toint(MPI_Info handle);
int PMPI_Info_toint(MPI_Info handle);
MPI_Info MPI_Info_fromint(int number);
MPI_Info PMPI_Info_fromint(int number);
int MPI_Message_toint(MPI_Message handle);
int PMPI_Message_toint(MPI_Message handle);
MPI_Message MPI_Message_fromint(int number);
MPI_Message PMPI_Message_fromint(int number);
int MPI_Op_toint(MPI_Op handle);
int PMPI_Op_toint(MPI_Op handle);
MPI_Op MPI_Op_fromint(int number);
MPI_Op PMPI_Op_fromint(int number);
int MPI_Request_toint(MPI_Request handle);
int PMPI_Request_toint(MPI_Request handle);
MPI_Request MPI_Request_fromint(int number);
MPI_Request PMPI_Request_fromint(int number);
int MPI_Session_toint(MPI_Session handle);
int PMPI_Session_toint(MPI_Session handle);
MPI_Session MPI_Session_fromint(int number);
MPI_Session PMPI_Session_fromint(int number);
int MPI_Type_toint(MPI_Datatype handle);
int PMPI_Type_toint(MPI_Datatype handle);
MPI_Datatype MPI_Type_fromint(int number);
MPI_Datatype PMPI_Type_fromint(int number);
int MPI_Win_toint(MPI_Win handle);
int PMPI_Win_toint(MPI_Win handle);
MPI_Win MPI_Win_fromint(int number);
MPI_Win PMPI_Win_fromint(int number);

/* The library has these functions only so that programs can be linked: they fail. */
int MPI_Abi_set_fortran_info(MPI_Info info);
int PMPI_Abi_set_fortran_info(MPI_Info info);
int MPI_Abi_set_fortran_booleans(int size, void *true_value, void *false_value);
int PMPI_Abi_set_fortran_booleans(int size, void *true_value, void *false_value);
int MPI_Comm_spawn(const char *command, char *argv[], int maxprocs, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *intercomm, int codes[]);
int PMPI_Comm_spawn(const char *command, char *argv[], int maxprocs, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *intercomm, int codes[]);
int MPI_Comm_spawn_multiple(int count, char *commands[], char **argvs[], const int maxprocs[], const MPI_Info infos[], int root,
        MPI_Comm comm, MPI_Comm *intercomm, int codes[]);
int PMPI_Comm_spawn_multiple(int count, char *commands[], char **argvs[], const int maxprocs[], const MPI_Info infos[], int root,
        MPI_Comm comm, MPI_Comm *intercomm, int codes[]);
int MPI_Comm_accept(const char *port, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *newcomm);
int PMPI_Comm_accept(const char *port, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *newcomm);
int MPI_Comm_connect(const char *port, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *newcomm);
int PMPI_Comm_connect(const char *port, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *newcomm);
int MPI_Comm_join(int descriptor, MPI_Comm *intercomm);
int PMPI_Comm_join(int descriptor, MPI_Comm *intercomm);
int MPI_Open_port(MPI_Info info, char *port);
int PMPI_Open_port(MPI_Info info, char *port);
int MPI_Close_port(const char *port);
int PMPI_Close_port(const char *port);
int MPI_Lookup_name(const char *service, MPI_Info info, char *port);
int PMPI_Lookup_name(const char *service, MPI_Info info, char *port);
int MPI_Publish_name(const char *service, MPI_Info info, const char *port);
int PMPI_Publish_name(const char *service, MPI_Info info, const char *port);
int MPI_Unpublish_name(const char *service, MPI_Info info, const char *port);
int PMPI_Unpublish_name(const char *service, MPI_Info info, const char *port);

/* Events of the tools interface, of which there are none. */
typedef int MPI_T_cb_safety;
typedef int MPI_T_source_order;
typedef struct KOLO_T_event_registration *MPI_T_event_registration;
typedef struct KOLO_T_event_instance *MPI_T_event_instance;
typedef void MPI_T_event_cb_function(MPI_T_event_instance, MPI_T_event_registration, MPI_T_cb_safety, void *);
typedef void MPI_T_event_free_cb_function(MPI_T_event_registration, MPI_T_cb_safety, void *);
typedef void MPI_T_event_dropped_cb_function(MPI_Count, MPI_T_event_registration, int, MPI_T_cb_safety, void *);
int MPI_T_event_get_info(int index, char *name, int *name_length, int *verbosity, MPI_Datatype types[], MPI_Aint displacements[],
        int *elements, MPI_T_enum *enumtype, MPI_Info *info, char *description, int *description_length, int *bind);
int PMPI_T_event_get_info(int index, char *name, int *name_length, int *verbosity, MPI_Datatype types[], MPI_Aint displacements[],
        int *elements, MPI_T_enum *enumtype, MPI_Info *info, char *description, int *description_length, int *bind);
int MPI_T_event_handle_alloc(int index, void *object, MPI_Info info, MPI_T_event_registration *registration);
int PMPI_T_event_handle_alloc(int index, void *object, MPI_Info info, MPI_T_event_registration *registration);
int MPI_T_event_handle_set_info(MPI_T_event_registration registration, MPI_Info info);
int PMPI_T_event_handle_set_info(MPI_T_event_registration registration, MPI_Info info);
int MPI_T_event_handle_get_info(MPI_T_event_registration registration, MPI_Info *info);
int PMPI_T_event_handle_get_info(MPI_T_event_registration registration, MPI_Info *info);
int MPI_T_event_handle_free(MPI_T_event_registration registration, void *data, MPI_T_event_free_cb_function *callback);
int PMPI_T_event_handle_free(MPI_T_event_registration registration, void *data, MPI_T_event_free_cb_function *callback);
int MPI_T_event_register_callback(MPI_T_event_registration registration, MPI_T_cb_safety safety, MPI_Info info, void *data,
        MPI_T_event_cb_function *callback);
int PMPI_T_event_register_callback(MPI_T_event_registration registration, MPI_T_cb_safety safety, MPI_Info info, void *data,
        MPI_T_event_cb_function *callback);
int MPI_T_event_callback_set_info(MPI_T_event_registration registration, MPI_T_cb_safety safety, MPI_Info info);
int PMPI_T_event_callback_set_info(MPI_T_event_registration registration, MPI_T_cb_safety safety, MPI_Info info);
int MPI_T_event_callback_get_info(MPI_T_event_registration registration, MPI_T_cb_safety safety, MPI_Info *info);
int PMPI_T_event_callback_get_info(MPI_T_event_registration registration, MPI_T_cb_safety safety, MPI_Info *info);
int MPI_T_event_set_dropped_handler(MPI_T_event_registration registration, MPI_T_event_dropped_cb_function *callback);
int PMPI_T_event_set_dropped_handler(MPI_T_event_registration registration, MPI_T_event_dropped_cb_function *callback);
int MPI_T_event_read(MPI_T_event_instance instance, int element, void *buffer);
int PMPI_T_event_read(MPI_T_event_instance instance, int element, void *buffer);
int MPI_T_event_copy(MPI_T_event_instance instance, void *buffer);
int PMPI_T_event_copy(MPI_T_event_instance instance, void *buffer);
int MPI_T_event_get_timestamp(MPI_T_event_instance instance, MPI_Count *timestamp);
int PMPI_T_event_get_timestamp(MPI_T_event_instance instance, MPI_Count *timestamp);
int MPI_T_event_get_source(MPI_T_event_instance instance, int *source);
int PMPI_T_event_get_source(MPI_T_event_instance instance, int *source);
int MPI_T_source_get_info(int index, char *name, int *name_length, char *description, int *description_length,
        MPI_T_source_order *order, MPI_Count *ticks_per_second, MPI_Count *ticks, MPI_Info *info);
int PMPI_T_source_get_info(int index, char *name, int *name_length, char *description, int *description_length,
        MPI_T_source_order *order, MPI_Count *ticks_per_second, MPI_Count *ticks, MPI_Info *info);
int MPI_T_source_get_timestamp(int index, MPI_Count *timestamp);
int PMPI_T_source_get_timestamp(int index, MPI_Count *timestamp);

#include "mpi_functions.h"
