// Two ranks of two cores on four threads, over a fabric class of this program's own: tokens come back as they were. Every other dispatch
// is taken in two halves.
#include "veriep.hpp"

#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

constexpr std::uint32_t RANKS = 2, CORES = 2, BS = 4, K = 2, EXPERTS = 4, H = 64, ROW = 2 * H, ROUNDS = 100;

struct Rank {
  veriep_sizes sizes;
  std::vector<std::uint64_t> state, window;
  std::vector<std::vector<std::uint64_t>> outputs;
  std::barrier<> join{CORES};

  Rank(const veriep::Shape &shape, std::uint32_t rank)
      : sizes(shape.sizes(rank)), state(sizes.state / 8), window(sizes.window / 8) {
    for (std::uint64_t bytes : sizes.outputs) outputs.emplace_back(bytes / 8 + 1);
  }
  const std::uint8_t *output(std::uint32_t tensor) const {
    return reinterpret_cast<const std::uint8_t *>(outputs[tensor].data());
  }
  veriep_bytes tensor(std::uint32_t number) const { return {output(number), sizes.outputs[number]}; }
};

using Ranks = std::vector<std::unique_ptr<Rank>>;

struct View {
  Ranks &ranks;
  std::uint32_t own;

  std::uint8_t *at(std::uint32_t to, veriep_place place, std::uint64_t len) {
    if (to >= RANKS || (place.region >= VERIEP_OUTPUT && to != own)) return nullptr;
    auto &of = place.region == VERIEP_STATE    ? ranks[to]->state
               : place.region == VERIEP_WINDOW ? ranks[to]->window
                                               : ranks[to]->outputs[place.region - VERIEP_OUTPUT];
    std::uint64_t have = 8 * of.size();
    if (place.offset > have || len > have - place.offset) return nullptr;
    return reinterpret_cast<std::uint8_t *>(of.data()) + place.offset;
  }
  bool word(std::uint32_t to, veriep_place place, auto act) {
    auto *there = reinterpret_cast<std::uint64_t *>(at(to, place, 8));
    if (there) act(std::atomic_ref(*there));
    return there;
  }
  bool put(std::uint32_t to, veriep_place place, veriep::Bytes row, veriep::Bytes tail) {
    std::uint8_t *there = at(to, place, row.size() + tail.size());
    if (!there) return false;
    std::memcpy(there, row.data(), row.size());
    if (!tail.empty()) std::memcpy(there + row.size(), tail.data(), tail.size());
    return true;
  }
  bool publish(std::uint32_t to, veriep_place place, std::uint64_t value) {
    return word(to, place, [&](auto it) { it.store(value, std::memory_order_release); });
  }
  bool quiet() { return true; }
  bool observe(veriep_place place, std::uint64_t &value) {
    return word(own, place, [&](auto it) { value = it.load(std::memory_order_acquire); });
  }
  bool store(veriep_place place, std::uint64_t value) { return publish(own, place, value); }
  bool bytes(veriep_place place, std::uint64_t len, veriep::Bytes &found) {
    const std::uint8_t *here = at(own, place, len);
    if (here) found = {here, len};
    return here;
  }
  bool write(veriep_place place, veriep::Bytes from) { return put(own, place, from, {}); }
  bool deliver(veriep_place output, veriep_place from, std::uint64_t len) {
    veriep::Bytes row;
    return bytes(from, len, row) && write(output, row);
  }
};

int main() {
  veriep_config config = veriep::config();
  config.limits = VERIEP_LIMITS_NONE;
  config.ep_world_size = RANKS, config.moe_expert_num = EXPERTS, config.k = K, config.h = H, config.bs = BS;
  config.aiv_num = CORES, config.hccl_buffsize_mb = 2;
  try {
    veriep_config broken = config;
    broken.k = 99;
    veriep::Shape never(broken);
    return 2;
  } catch (const veriep::Refused &refused) {
    if (refused.code != VERIEP_E_CONFIG || !std::strstr(refused.what(), "k = 99")) return 2;
  }
  veriep::Shape shape(config);
  Ranks ranks;
  for (std::uint32_t rank = 0; rank < RANKS; rank++) ranks.push_back(std::make_unique<Rank>(shape, rank));
  std::atomic<int> wrong{0};
  std::vector<std::jthread> threads;
  for (std::uint32_t n = 0; n < RANKS * CORES; n++)
    threads.emplace_back([&, rank = n / CORES, number = n % CORES] {
      Rank &own = *ranks[rank];
      View view{ranks, rank};
      veriep_fabric fabric = veriep::table(view);
      veriep::Core core(shape, rank, number, static_cast<std::uint32_t>(veriep::accept(veriep_fabric_can(&fabric))));
      std::vector<std::uint16_t> x(BS * H);
      std::vector<std::int32_t> ids(BS * K);
      std::vector<float> weights(BS * K, 0.5f);
      auto yield = [] { std::this_thread::yield(); };
      for (std::uint32_t round = 0; round < ROUNDS; round++) {
        for (std::uint32_t i = 0; i < x.size(); i++) x[i] = static_cast<std::uint16_t>(0x3F80 + (round * 5 + rank * 3 + i) % 128);
        for (std::uint32_t i = 0; i < ids.size(); i++)
          ids[i] = static_cast<std::int32_t>((round + rank + i / K + i % K * 3) % EXPERTS);
        veriep_inputs inputs{};
        inputs.x = {x.data(), 2 * x.size()};
        inputs.expert_ids = {ids.data(), 4 * ids.size()};
        inputs.expert_scales = {weights.data(), 4 * weights.size()};
        inputs.call = round;
        veriep_context cx{};
        cx.fabric = &fabric, cx.inputs = &inputs;
        if (round % 2) {
          core.send(VERIEP_DISPATCH, cx, yield);
          own.join.arrive_and_wait();
          core.resume(cx, yield);
        } else {
          core.run(VERIEP_DISPATCH, cx, yield);
        }
        own.join.arrive_and_wait();
        // Experts return the rows as they came.
        veriep_operands operands{};
        operands.y = own.tensor(VERIEP_EXPAND_X);
        operands.assist_info = own.tensor(VERIEP_ASSIST_INFO);
        operands.ep_recv_counts = {own.output(VERIEP_EP_RECV_COUNTS), own.sizes.ep_recv_counts};
        cx.operands = &operands;
        core.run(VERIEP_COMBINE, cx, yield);
        own.join.arrive_and_wait();
        if (number == 0 && std::memcmp(own.output(VERIEP_X_OUT), x.data(), 2 * x.size())) wrong++;
        own.join.arrive_and_wait();
      }
    });
  threads.clear();
  std::printf("%u rounds of %u ranks of %u cores, %d wrong\n", ROUNDS, RANKS, CORES, wrong.load());
  return wrong != 0;
}
