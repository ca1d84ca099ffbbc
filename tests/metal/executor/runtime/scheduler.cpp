// Runs one threadgroup: every thread is a fiber, every 32 fibers a simdgroup.
//
// A lane that waits switches to the next ready lane of its simdgroup. When none is ready, the
// scheduler runs the meeting of the first waiting lane. A simdgroup runs until all its lanes wait
// at a threadgroup barrier or have returned; then the next one runs.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "launch.h"
#include "switch.h"

namespace rt {

Lane* lane;
Threadgroup threadgroup_state;
Counters counters;

namespace {

constexpr size_t stack_bytes = 128 << 10;
constexpr size_t lanes_bytes = (max_threads * sizeof(Lane) + 4095) / 4096 * 4096;
constexpr size_t engine_bytes = lanes_bytes + max_threads * stack_bytes;

char* engine;
Lane* lanes;
Group groups[max_threads / 32];
uint8_t rank_to_lane[32];
uint8_t lane_to_rank[32];
uint32_t group_order[max_threads / 32];
void* scheduler_stack;
uint64_t random_state;

uint32_t random_below(uint32_t n) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return uint32_t(random_state >> 11) % n;
}

Lane* next_ready(const Group& group, uint32_t rank) {
  for (; rank < 32; ++rank) {
    const uint32_t i = rank_to_lane[rank];
    if (i < group.size && group.lanes[i].state == READY) return &group.lanes[i];
  }
  return nullptr;
}

void wait_as(State state) {
  Lane* me = lane;
  me->state = state;
  trace_settle();
  lane = next_ready(*me->group, lane_to_rank[me->lane] + 1u);
  rt_switch(&me->stack_pointer, lane ? lane->stack_pointer : scheduler_stack);
}

void fiber() {
  current->entry(current->arguments);
  wait_as(DONE);
  __builtin_trap();
}

void shuffle_lanes() {
  if (current->order != 2) return;
  for (uint32_t i = 31; i > 0; --i) std::swap(rank_to_lane[i], rank_to_lane[random_below(i + 1)]);
  for (uint32_t i = 0; i < 32; ++i) lane_to_rank[rank_to_lane[i]] = uint8_t(i);
}

void shuffle_groups() {
  if (current->order != 2) return;
  for (uint32_t i = threadgroup_state.simdgroups - 1; i > 0; --i)
    std::swap(group_order[i], group_order[random_below(i + 1)]);
}

// The lanes that wait at the same meeting as the first waiting lane; 0 when none waits.
uint32_t first_meeting(const Group& group) {
  const Lane* first = nullptr;
  uint32_t together = 0;
  for (uint32_t i = 0; i < group.size; ++i) {
    const Lane& l = group.lanes[i];
    if (l.state != AT_SIMD && l.state != AT_SIMD_BARRIER) continue;
    if (!first) first = &l;
    if (l.state == first->state && l.site == first->site && l.combine == first->combine)
      together |= 1u << i;
  }
  return together;
}

void hold_meeting(Group& group, uint32_t together) {
  const Lane& first = group.lanes[__builtin_ctz(together)];
  if (__builtin_popcount(together) != int(group.size)) {
    counters.partial_simd_ops++;
    lane = &group.lanes[__builtin_ctz(together)];
    report(PARTIAL_SIMD, first.combine ? "simdgroup function" : "simdgroup_barrier", 0, first.site,
           __builtin_popcount(together), 0);
    lane = nullptr;
  }
  if (first.combine) {
    counters.simd_ops++;
    first.combine(group, together);
  } else {
    counters.simd_barriers++;
  }
  for (uint32_t i = 0; i < group.size; ++i) {
    if (!((together >> i) & 1u)) continue;
    Lane& l = group.lanes[i];
    l.state = READY;
    if (l.combine) continue;
    for (int memory = 0; memory < 2; ++memory) l.clock.simd[memory] += (l.flags >> memory) & 1u;
  }
}

void run_group(Group& group) {
  for (;;) {
    shuffle_lanes();
    lane = next_ready(group, 0);
    if (lane) rt_switch(&scheduler_stack, lane->stack_pointer);
    lane = nullptr;
    const uint32_t together = first_meeting(group);
    if (!together) return;
    hold_meeting(group, together);
  }
}

void place(const uint32_t position[3]) {
  Threadgroup& t = threadgroup_state;
  t.threads = 1;
  for (int d = 0; d < 3; ++d) {
    t.position[d] = position[d];
    t.size[d] = std::min(t.full_size[d], t.grid[d] - position[d] * t.full_size[d]);
    t.threads *= t.size[d];
  }
  t.simdgroups = (t.threads + 31) / 32;
  for (uint32_t i = 0; i < t.threads; ++i) {
    Lane& l = lanes[i];
    l = Lane{};
    l.group = &groups[i / 32];
    l.lane = i % 32;
    l.index = i;
    l.position[0] = i % t.size[0];
    l.position[1] = i / t.size[0] % t.size[1];
    l.position[2] = i / t.size[0] / t.size[1];
    for (int d = 0; d < 3; ++d) l.grid_position[d] = position[d] * t.full_size[d] + l.position[d];
    l.stack_pointer = prepare_stack(engine + lanes_bytes + (i + 1) * stack_bytes, fiber);
  }
  for (uint32_t g = 0; g < t.simdgroups; ++g) {
    groups[g] = {lanes + g * 32, std::min(32u, t.threads - g * 32), g};
    group_order[g] = current->order == 1 ? t.simdgroups - 1 - g : g;
  }
  for (uint32_t i = 0; i < 32; ++i) {
    rank_to_lane[i] = uint8_t(current->order == 1 ? 31 - i : i);
    lane_to_rank[rank_to_lane[i]] = uint8_t(i);
  }
}

// Opens the barrier that all threads wait at; false when every thread has returned.
bool open_barrier() {
  uint32_t waiting = 0, flags = 0;
  Lane* first = nullptr;
  bool same = true;
  for (uint32_t i = 0; i < threadgroup_state.threads; ++i) {
    Lane& l = lanes[i];
    if (l.state == DONE) continue;
    if (!first) first = &l;
    same = same && l.site == first->site;
    flags |= l.flags;
    ++waiting;
  }
  if (!first) return false;
  if (!same || waiting != threadgroup_state.threads) {
    lane = first;
    const char* what = same ? "some threads have returned" : "threads wait at several barriers";
    report(DIVERGENT_BARRIER, what, 0, first->site, waiting, 0);
    lane = nullptr;
  }
  counters.barriers++;
  for (uint32_t i = 0; i < threadgroup_state.threads; ++i) {
    Lane& l = lanes[i];
    if (l.state == DONE) continue;
    l.state = READY;
    for (int memory = 0; memory < 2; ++memory) l.clock.barrier[memory] += (flags >> memory) & 1u;
  }
  return true;
}

}  // namespace

void prepare_fibers() {
  if (!engine) {
    engine = static_cast<char*>(mmap(nullptr, engine_bytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    lanes = reinterpret_cast<Lane*>(engine);
    arena = static_cast<char*>(mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  random_state = 0x9E3779B97F4A7C15ull ^ (current->seed * 0xD1342543DE82EF95ull + 1);
}

bool in_engine(const char* address) { return address >= engine && address < engine + engine_bytes; }

void run_threadgroup(const uint32_t position[3]) {
  place(position);
  n_variables = 0;
  counters.threadgroups++;
  counters.threads += threadgroup_state.threads;
  trace_group();
  do {
    shuffle_groups();
    for (uint32_t g = 0; g < threadgroup_state.simdgroups; ++g) run_group(groups[group_order[g]]);
  } while (open_barrier());
}

void meet(Combine combine, int site) {
  lane->combine = combine;
  lane->site = site;
  wait_as(AT_SIMD);
}

void simd_barrier(uint32_t flags, int site) {
  lane->combine = nullptr;
  lane->flags = flags;
  lane->site = site;
  wait_as(AT_SIMD_BARRIER);
}

void barrier(uint32_t flags, int site) {
  lane->flags = flags;
  lane->site = site;
  wait_as(AT_BARRIER);
}

}  // namespace rt
