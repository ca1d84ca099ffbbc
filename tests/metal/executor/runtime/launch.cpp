// One launch: map the buffers between guards, run the threadgroups, copy the outputs back.
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <tuple>
#include <vector>

#include "launch.h"

namespace rt {

Launch* current;
char* arena;
Variable variables[max_variables];
size_t n_variables;

namespace {

constexpr size_t page = 4096;
constexpr size_t red_zone = 64;
constexpr int poison = 0xFF;  // NaN in every float type

std::map<std::tuple<int, uint64_t, int, const char*>, Report> reports;

size_t pages(size_t bytes) { return (bytes + page - 1) / page * page; }
// An overrun of up to the size of the buffer must hit its guard, not another buffer.
size_t far_guard(const Buffer& b) {
  return std::clamp(pages(b.bytes), size_t(1) << 20, size_t(1) << 30);
}
size_t span(const Buffer& b) { return far_guard(b) + page + pages(b.bytes) + page + far_guard(b); }

void map_buffer(Buffer& b) {
  char* start = static_cast<char*>(mmap(nullptr, span(b), PROT_NONE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  char* near = start + far_guard(b);
  const size_t usable = page + pages(b.bytes) + page;
  mprotect(near, usable, PROT_READ | PROT_WRITE);
  b.base = near + page;
  memset(near, poison, page);
  memset(b.base + b.bytes, poison, usable - page - b.bytes);
  if (b.initial)
    memcpy(b.base, b.initial, b.bytes);
  else if (b.output)
    memset(b.base, poison, b.bytes);
}

void unmap_buffer(Buffer& b) { munmap(b.base - page - far_guard(b), span(b)); }

bool guards_intact(const Buffer& b) {
  auto poisoned = [](char c) { return c == char(poison); };
  return std::all_of(b.base - page, b.base, poisoned) &&
         std::all_of(b.base + b.bytes, b.base + pages(b.bytes) + page, poisoned);
}

uint64_t program_counter(void* context) {
#if defined(__x86_64__) && defined(__linux__)
  return uint64_t(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]) + 1;
#elif defined(__aarch64__) && defined(__linux__)
  return uint64_t(static_cast<ucontext_t*>(context)->uc_mcontext.pc) + 1;
#else
  (void)context;
  return 0;
#endif
}

void on_fault(int number, siginfo_t* info, void* context) {
  if (!current) {
    signal(number, SIG_DFL);
    return;
  }
  const char* address = static_cast<const char*>(info->si_addr);
  Buffer* b = number == SIGSEGV ? find_buffer(address) : nullptr;
  const char* what = b                        ? b->name
                     : number == SIGFPE       ? "integer division"
                     : in_engine(address)     ? "a thread's stack"
                                              : "memory of no buffer";
  report(FAULT, what, program_counter(context), 0, b ? address - b->base : 0, 0);
  stop_launch();
}

pthread_t launching;

// The launch took too long, probably because of an endless loop.
void on_alarm(int number) {
  if (!current) return;
  if (!pthread_equal(pthread_self(), launching)) {  // only the launching thread may leave the launch
    pthread_kill(launching, number);
    return;
  }
  report(NO_END, "the launch", 0, 0, 0, 0);
  stop_launch();
}

// Counts processor time: a busy machine or a stopped process is not an endless loop.
struct TimeLimit {
  struct sigaction before;
  explicit TimeLimit(uint32_t seconds) {
    struct sigaction action{};
    action.sa_handler = on_alarm;
    action.sa_flags = SA_ONSTACK | SA_NODEFER;
    launching = pthread_self();
    sigaction(SIGPROF, &action, &before);
    arm(seconds);
  }
  ~TimeLimit() {
    arm(0);
    sigaction(SIGPROF, &before, nullptr);
  }
  static void arm(uint32_t seconds) {
    itimerval limit{};
    limit.it_value.tv_sec = seconds;
    setitimer(ITIMER_PROF, &limit, nullptr);
  }
};

// Handles fault signals while a launch runs.
struct FaultGuard {
  static constexpr int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
  struct sigaction before[4];
  stack_t stack_before;
  std::vector<char> stack = std::vector<char>(1 << 16);
  FaultGuard() {
    stack_t own{};
    own.ss_sp = stack.data();
    own.ss_size = stack.size();
    sigaltstack(&own, &stack_before);
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < 4; ++i) sigaction(numbers[i], &action, &before[i]);
  }
  ~FaultGuard() {
    for (int i = 0; i < 4; ++i) sigaction(numbers[i], &before[i], nullptr);
    sigaltstack(&stack_before, nullptr);
  }
};

using Position = std::array<uint32_t, 3>;

std::vector<Position> every_position(const Launch& launch) {
  const Threadgroup& t = threadgroup_state;
  std::vector<Position> all;
  for (uint32_t z = 0; z < t.count[2]; ++z)
    for (uint32_t y = 0; y < t.count[1]; ++y)
      for (uint32_t x = 0; x < t.count[0]; ++x) all.push_back({x, y, z});
  if (launch.order == 1) std::reverse(all.begin(), all.end());
  uint64_t state = launch.seed * 6364136223846793005ull + 1442695040888963407ull;
  for (size_t i = all.size(); launch.order == 2 && i > 1; --i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    std::swap(all[i - 1], all[(state >> 33) % i]);
  }
  return all;
}

}  // namespace

void report(Kind kind, const char* what, uint64_t pc, int line, int64_t offset, uint32_t other) {
  Report& r = reports[{kind, pc, line, what}];
  if (r.times++) return;
  const Threadgroup& t = threadgroup_state;
  r = {kind, line, what, pc, offset, lane ? lane->index : 0, other,
       {t.position[0], t.position[1], t.position[2]}, 1};
}

void stop_launch() { siglongjmp(current->stop, 1); }

Buffer* find_buffer(const char* address) {
  static int last = 0;
  auto holds = [&](const Buffer& b) {
    const char* start = b.base - page - far_guard(b);
    return address >= start && address < start + span(b);
  };
  if (last < current->n_buffers && holds(current->buffers[last])) return &current->buffers[last];
  for (int i = 0; i < current->n_buffers; ++i)
    if (holds(current->buffers[i])) return &current->buffers[last = i];
  return nullptr;
}

void* threadgroup_memory(size_t bytes, const char* name, int line) {
  for (size_t i = 0; i < n_variables; ++i) {
    const Variable& v = variables[i];
    if (v.line == line && v.bytes == bytes && !strcmp(v.name, name)) return v.address;
  }
  const size_t used = n_variables ? size_t(variables[n_variables - 1].address - arena) +
                                        variables[n_variables - 1].bytes : 0;
  const size_t start = (used + red_zone + 63) / 64 * 64;
  if (start + bytes + red_zone > arena_bytes || n_variables == max_variables) {
    report(THREADGROUP_LIMIT, name, 0, line, int64_t(bytes), 0);
    stop_launch();
  }
  memset(arena + used, poison, start + bytes + red_zone - used);
  trace_variable(start, bytes);
  variables[n_variables++] = {arena + start, bytes, name, line};
  size_t total = 0;
  for (size_t i = 0; i < n_variables; ++i) total += (variables[i].bytes + 15) / 16 * 16;
  counters.threadgroup_bytes = std::max<uint64_t>(counters.threadgroup_bytes, total);
  if (total > threadgroup_limit) report(THREADGROUP_LIMIT, name, 0, line, int64_t(total), 0);
  return arena + start;
}

}  // namespace rt

// Returns the number of reports written to `out`, or -1 - number when the launch was stopped.
// `chosen` holds n_chosen positions; without it every threadgroup of the grid runs.
extern "C" int rt_launch(void (*entry)(void* const*), rt::Buffer* buffers, int n_buffers,
                         const uint32_t* grid, const uint32_t* size, const uint32_t* chosen,
                         uint32_t n_chosen, int order, uint64_t seed, int traced, uint32_t limit_s,
                         rt::Counters* counts, rt::BufferCounts* buffer_counts, rt::Report* out,
                         int max_reports) {
  using namespace rt;
  static Launch launch;
  launch.entry = entry;
  launch.buffers = buffers;
  launch.n_buffers = n_buffers;
  launch.traced = traced != 0;
  launch.order = order;
  launch.seed = seed;
  reports.clear();
  counters = Counters{};
  threadgroup_state = Threadgroup{};
  for (int d = 0; d < 3; ++d) {
    Threadgroup& t = threadgroup_state;
    t.grid[d] = grid[d];
    t.full_size[d] = std::min(size[d], grid[d]);
    t.count[d] = (grid[d] + t.full_size[d] - 1) / t.full_size[d];
  }
  std::vector<void*> arguments;
  for (int i = 0; i < n_buffers; ++i) {
    map_buffer(buffers[i]);
    arguments.push_back(buffers[i].base);
  }
  launch.arguments = arguments.data();
  std::vector<Position> positions;
  for (uint32_t i = 0; i < n_chosen; ++i)
    positions.push_back({chosen[3 * i], chosen[3 * i + 1], chosen[3 * i + 2]});
  if (!n_chosen) positions = every_position(launch);

  current = &launch;
  prepare_fibers();
  trace_start();
  volatile bool stopped = false;
  {
    FaultGuard guard;
    TimeLimit limit(limit_s);
    if (sigsetjmp(launch.stop, 0) == 0) {
      for (const Position& p : positions) run_threadgroup(p.data());
    } else {
      stopped = true;
    }
  }
  lane = nullptr;
  trace_finish(buffer_counts);
  for (int i = 0; i < n_buffers; ++i) {
    if (!guards_intact(buffers[i])) report(GUARD_OVERWRITTEN, buffers[i].name, 0, 0, 0, 0);
    if (buffers[i].result) memcpy(buffers[i].result, buffers[i].base, buffers[i].bytes);
    unmap_buffer(buffers[i]);
  }
  current = nullptr;
  *counts = counters;
  int n = 0;
  for (auto& entry_and_report : reports)
    if (n < max_reports) out[n++] = entry_and_report.second;
  return stopped ? -1 - n : n;
}
