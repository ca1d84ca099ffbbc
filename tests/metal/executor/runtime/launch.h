// Facts shared by the parts of the runtime, and the C structures that Python fills (launch.py).
#pragma once
#include <csetjmp>
#include <cstdint>

#include "../include/runtime.h"

namespace rt {

enum Kind : int32_t {
  DEVICE_BOUNDS,
  THREADGROUP_BOUNDS,
  LOCAL_BOUNDS,
  UNKNOWN_MEMORY,
  FAULT,
  GUARD_OVERWRITTEN,
  INPUT_WRITTEN,
  THREADGROUP_RACE,
  DEVICE_RACE,
  SAME_VALUE,
  THREADGROUP_UNINITIALISED,
  DEVICE_UNINITIALISED,
  OUTPUT_UNWRITTEN,
  DIVERGENT_BARRIER,
  PARTIAL_SIMD,
  THREADGROUP_LIMIT,
  BAD_SHIFT,
  INTEGER_OVERFLOW,
  NO_END,
  MISALIGNED,
};

enum Memory { DEVICE, THREADGROUP };  // index into Clock

constexpr uint32_t max_threads = 1024;
constexpr size_t threadgroup_limit = 32768;

struct Buffer {
  const char* name;
  uint64_t bytes;
  const void* initial;  // contents before the launch, or null
  void* result;         // where to copy an output to, or null
  int32_t output;
  char* base;           // filled by the runtime
};

struct BufferCounts {
  uint64_t read_bytes, written_bytes;            // issued
  uint64_t unique_read, unique_written;          // bytes touched at least once
  uint64_t group_lines_read, group_lines_written;  // 64-byte lines, each once per threadgroup
  uint64_t unwritten;
};

struct Report {
  int32_t kind;
  int32_t line;     // known for meetings; 0 when the address `pc` tells
  const char* what;
  uint64_t pc;
  int64_t offset;
  uint32_t thread, other;
  uint32_t position[3];
  uint32_t times;
};

struct Launch {
  void (*entry)(void* const*);
  void* const* arguments;
  Buffer* buffers;
  int n_buffers;
  bool traced;
  int order;  // 0 ascending, 1 descending, 2 random
  uint64_t seed;
  sigjmp_buf stop;
};

extern Launch* current;  // null when no launch runs

// A variable in threadgroup memory and the arena that holds them all.
struct Variable {
  char* address;
  size_t bytes;
  const char* name;
  int line;
};
constexpr size_t arena_bytes = 1 << 18;
constexpr size_t max_variables = 64;
extern char* arena;
extern Variable variables[max_variables];
extern size_t n_variables;

void report(Kind kind, const char* what, uint64_t pc, int line, int64_t offset, uint32_t other);
[[noreturn]] void stop_launch();
bool in_engine(const char* address);  // stacks and lanes: private memory of the kernel
Buffer* find_buffer(const char* address);  // the buffer whose data or guards hold the address

void run_threadgroup(const uint32_t position[3]);
void prepare_fibers();

// Tracing. `trace_start` before the first threadgroup, `trace_settle` when a fiber stops running.
void trace_start();
void trace_group();
void trace_variable(size_t offset, size_t bytes);
void trace_settle();
void trace_finish(BufferCounts* counts);
// A load or store of a traced kernel; `pc` is its address in the kernel.
void plain_access(const void* address, size_t bytes, bool write, void* pc);

}  // namespace rt
