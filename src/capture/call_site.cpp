#define PY_SSIZE_T_CLEAN
#include <Python.h>
#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "call_site.cpp knows the frames of Python 3.11, 3.12 and 3.13: add this version's layout"
#endif
#define Py_BUILD_CORE
#undef _PyGC_FINALIZED  // 3.11's pycore_gc.h defines it again
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#include "capture/call_site.h"

#include <mutex>
#include <unordered_map>
#include <vector>

#include "capture/record_queue.h"

namespace dtorch {
namespace {

struct Sites {
  SpinLock lock;  // never held together with the GIL's acquisition
  // Known code objects are kept alive, so an address stays theirs.
  std::unordered_map<const void*, bool> is_library;
  std::unordered_map<const void*, uint32_t> by_instruction;  // of user code only
  std::vector<std::string> texts{"an unknown place"};
  std::vector<std::string> library_folders;
};

Sites& sites() {
  static auto* instance = new Sites;
  return *instance;
}

struct LastSite {
  const void* instruction = nullptr;
  uint32_t site = 0;
};
thread_local LastSite last_site;

_PyInterpreterFrame* current_frame(PyThreadState* state) {
#if PY_VERSION_HEX >= 0x030D0000
  return state->current_frame;
#else
  return state->cframe->current_frame;
#endif
}

PyCodeObject* code_of(_PyInterpreterFrame* frame) {
#if PY_VERSION_HEX >= 0x030D0000
  return reinterpret_cast<PyCodeObject*>(frame->f_executable);
#else
  return frame->f_code;
#endif
}

const void* instruction_of(_PyInterpreterFrame* frame) {
#if PY_VERSION_HEX >= 0x030D0000
  return frame->instr_ptr;
#else
  return frame->prev_instr;
#endif
}

bool is_python_frame(_PyInterpreterFrame* frame) {
#if PY_VERSION_HEX >= 0x030C0000
  return frame->owner != FRAME_OWNED_BY_CSTACK;
#else
  return true;
#endif
}

}  // namespace

int64_t find_site(RawSite* raw) {
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (state == nullptr) return 0;
  _PyInterpreterFrame* frame = current_frame(state);
  if (frame != nullptr && is_python_frame(frame) &&
      instruction_of(frame) == last_site.instruction) {
    return last_site.site;
  }
  auto& known = sites();
  std::lock_guard<SpinLock> guard(known.lock);
  bool innermost = true;
  for (; frame != nullptr; frame = frame->previous) {
    if (!is_python_frame(frame)) continue;
    const void* code = code_of(frame);
    auto found = known.is_library.find(code);
    if (found != known.is_library.end() && found->second) {
      innermost = false;
      continue;
    }
    raw->code = code;
    raw->instruction = instruction_of(frame);
    if (found == known.is_library.end()) return -1;
    auto site = known.by_instruction.find(raw->instruction);
    if (site == known.by_instruction.end()) return -1;
    // Only a user's own frame may be remembered: a library's instruction has many callers.
    if (innermost) last_site = {raw->instruction, site->second};
    return site->second;
  }
  return 0;
}

uint32_t define_site(const RawSite& raw) {
  PyGILState_STATE gil = PyGILState_Ensure();
  auto& known = sites();
  auto* code = reinterpret_cast<PyCodeObject*>(const_cast<void*>(raw.code));
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  const char* function = PyUnicode_AsUTF8(code->co_qualname);
  if (file == nullptr || function == nullptr) {
    PyErr_Clear();
    file = "<file name that is not UTF-8>";
    function = "?";
  }
  const auto offset = reinterpret_cast<const char*>(raw.instruction) -
                      reinterpret_cast<const char*>(_PyCode_CODE(code));
  const int line = PyCode_Addr2Line(code, static_cast<int>(offset));
  const std::string text = std::string(file) + ":" + std::to_string(line) + " in " + function;
  uint32_t number;
  {
    std::lock_guard<SpinLock> guard(known.lock);
    bool library = std::string_view(file).starts_with("<frozen ");
    for (const auto& folder : known.library_folders) {
      library = library || std::string_view(file).starts_with(folder);
    }
    if (known.is_library.emplace(raw.code, library).second) Py_INCREF(code);
    number = static_cast<uint32_t>(known.texts.size());
    if (!library) {
      auto [entry, added] = known.by_instruction.emplace(raw.instruction, number);
      if (added) {
        known.texts.push_back(text);
      }
      number = entry->second;
    } else {
      number = 0;
    }
  }
  PyGILState_Release(gil);
  return number;
}

std::string site_text(uint32_t site) {
  auto& known = sites();
  std::lock_guard<SpinLock> guard(known.lock);
  return known.texts[site < known.texts.size() ? site : 0];
}

void add_library_folder(const std::string& folder) {
  auto& known = sites();
  std::lock_guard<SpinLock> guard(known.lock);
  known.library_folders.push_back(folder);
}

}  // namespace dtorch
