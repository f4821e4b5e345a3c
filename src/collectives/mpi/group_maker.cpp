#include "collectives/mpi/group_maker.h"

#include <functional>
#include <map>
#include <memory>

#include "collectives/mpi/mpi_backend.h"

namespace dtorch {
namespace {

using MakeGroup = std::function<c10::intrusive_ptr<c10d::Backend>(const std::vector<int32_t>&, int)>;
constexpr int kTag = 7;  // of MPI_Comm_create_group; groups are made one after the other

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  TORCH_CHECK(false, call, " failed while making a group of workers: ", std::string(text, length));
}

c10::intrusive_ptr<c10d::Backend> make_group(MPI_Comm world, int first_rank,
                                             const std::vector<int32_t>& workers) {
  std::vector<int> ranks;
  for (int32_t worker : workers) ranks.push_back(worker + first_rank);
  MPI_Group all, some;
  MPI_Comm comm;
  check(MPI_Comm_group(world, &all), "MPI_Comm_group");
  check(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some), "MPI_Group_incl");
  check(MPI_Comm_create_group(world, some, kTag, &comm), "MPI_Comm_create_group");
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  return make_mpi_backend(comm, true);
}

void delete_maker(PyObject* capsule) {
  delete static_cast<MakeGroup*>(PyCapsule_GetPointer(capsule, "dtorch.MakeGroup"));
}

}  // namespace

PyObject* mpi_group_maker(MPI_Comm world, int first_rank) {
  // Meshes of the same workers share a group.
  auto made = std::make_shared<std::map<std::vector<int32_t>, c10::intrusive_ptr<c10d::Backend>>>();
  auto* make = new MakeGroup([world, first_rank, made](const std::vector<int32_t>& workers, int) {
    auto& backend = (*made)[workers];
    if (!backend) backend = make_group(world, first_rank, workers);
    return backend;
  });
  return PyCapsule_New(make, "dtorch.MakeGroup", &delete_maker);
}

}  // namespace dtorch
