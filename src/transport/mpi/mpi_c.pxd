# MPI's C interface, as far as the transport uses it. Our extension is built against the MPI
# that mpicc names; mpi4py serves start-up and loads the same library.
from libc.stdint cimport int64_t


cdef extern from "mpi.h" nogil:
    ctypedef struct MPI_Comm:
        pass
    ctypedef struct MPI_Request:
        pass
    ctypedef struct MPI_Message:
        pass
    ctypedef struct MPI_Datatype:
        pass
    ctypedef struct MPI_Win:
        pass
    ctypedef struct MPI_Info:
        pass
    ctypedef struct MPI_Errhandler:
        pass
    ctypedef Py_ssize_t MPI_Aint
    ctypedef struct MPI_Status:
        int MPI_SOURCE
        int MPI_TAG
    MPI_Datatype MPI_BYTE
    MPI_Request MPI_REQUEST_NULL
    MPI_Info MPI_INFO_NULL
    MPI_Errhandler MPI_ERRORS_RETURN
    MPI_Status* MPI_STATUS_IGNORE
    int MPI_SUCCESS
    int MPI_MAX_ERROR_STRING
    int MPI_MODE_NOCHECK

    int MPI_Isend(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*)
    int MPI_Irecv(void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*)
    int MPI_Test(MPI_Request*, int*, MPI_Status*)
    int MPI_Improbe(int, int, MPI_Comm, int*, MPI_Message*, MPI_Status*)
    int MPI_Imrecv(void*, int, MPI_Datatype, MPI_Message*, MPI_Request*)
    int MPI_Mrecv(void*, int, MPI_Datatype, MPI_Message*, MPI_Status*)
    int MPI_Get_count(const MPI_Status*, MPI_Datatype, int*)
    int MPI_Comm_rank(MPI_Comm, int*)
    int MPI_Comm_size(MPI_Comm, int*)
    int MPI_Comm_set_errhandler(MPI_Comm, MPI_Errhandler)
    int MPI_Error_string(int, char*, int*)
    int MPI_Win_allocate_shared(MPI_Aint, int, MPI_Info, MPI_Comm, void*, MPI_Win*)
    int MPI_Win_shared_query(MPI_Win, int, MPI_Aint*, int*, void*)
    int MPI_Win_lock_all(int, MPI_Win)
    int MPI_Win_unlock_all(MPI_Win)
    int MPI_Win_free(MPI_Win*)
    int MPI_Abort(MPI_Comm, int)
