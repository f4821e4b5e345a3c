#pragma once

#include <Python.h>
#include <mpi.h>

namespace dtorch {

// A capsule "dtorch.MakeGroup" with the function by which workers get the backend of an axis'
// group: the named workers call it together. Worker w is rank w + first_rank of `world`.
PyObject* mpi_group_maker(MPI_Comm world, int first_rank);

}  // namespace dtorch
