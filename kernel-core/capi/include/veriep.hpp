// C++20 over veriep.h: values that clean up after themselves, exceptions that say why, and a fabric that is a class.
#ifndef VERIEP_HPP
#define VERIEP_HPP

#include "veriep.h"

#include <concepts>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace veriep {

using Bytes = std::span<const std::uint8_t>;

// A call was refused: the code, and in `what` the reason.
struct Refused : std::runtime_error {
  std::int32_t code;
  Refused(std::int32_t code, const std::string &text)
      : std::runtime_error(text.empty() ? "refused: " + std::to_string(code) : text), code(code) {}
};

inline std::int32_t accept(std::int32_t code, const std::string &text = {}) {
  if (code < 0) throw Refused(code, text.c_str());
  return code;
}

inline veriep_bytes bytes(Bytes of) { return {of.data(), of.size()}; }

inline veriep_config config() {
  veriep_config made;
  accept(veriep_config_default(&made, VERIEP_ABI_VERSION));
  return made;
}

// A checked configuration.
class Shape {
  veriep_shape made;

 public:
  explicit Shape(const veriep_config &config) {
    std::string text(4096, '\0');
    accept(veriep_shape_new(&made, &config, text.data(), text.size()), text);
  }
  // Those of `whole` who are left.
  Shape(const Shape &whole, std::span<const std::int32_t> elastic_info) {
    std::string text(4096, '\0');
    accept(veriep_shape_survivors(&made, whole.get(), elastic_info.data(), elastic_info.size(), text.data(), text.size()),
           text);
  }
  const veriep_shape *get() const { return &made; }
  veriep_sizes sizes(std::uint32_t rank) const {
    veriep_sizes sizes;
    accept(veriep_shape_sizes(get(), rank, &sizes));
    return sizes;
  }
  veriep_fingerprints fingerprints(const veriep_choices &choices = veriep_choices_default(), const char *group_ep = nullptr,
                                   const char *group_tp = nullptr) const {
    veriep_fingerprints made_of;
    accept(veriep_fingerprints_new(&made_of, get(), &choices, group_ep, group_tp));
    return made_of;
  }
};

// What a fabric class has; each call but `quiet` returns whether the memory holds what it was asked for.
template <class F>
concept Fabric = requires(F f, std::uint32_t to, veriep_place at, Bytes some, std::uint64_t word, Bytes &found) {
  { f.put(to, at, some, some) } -> std::same_as<bool>;
  { f.publish(to, at, word) } -> std::same_as<bool>;
  { f.quiet() } -> std::same_as<bool>;
  { f.observe(at, word) } -> std::same_as<bool>;
  { f.store(at, word) } -> std::same_as<bool>;
  { f.bytes(at, word, found) } -> std::same_as<bool>;
  { f.write(at, some) } -> std::same_as<bool>;
  { f.deliver(at, at, word) } -> std::same_as<bool>;
};

// The table of a fabric class; calls that a class may lack are in it if the class has them.
template <Fabric F>
veriep_fabric table(F &f) {
  static constexpr auto self = [](void *context) { return static_cast<F *>(context); };
  veriep_fabric made{};
  made.context = &f;
  made.put = [](void *c, std::uint32_t to, veriep_place at, const std::uint8_t *row, std::size_t n, const std::uint8_t *tail,
                std::size_t m) -> std::int32_t { return !self(c)->put(to, at, Bytes(row, n), Bytes(tail, m)); };
  made.publish = [](void *c, std::uint32_t to, veriep_place at, std::uint64_t word) -> std::int32_t {
    return !self(c)->publish(to, at, word);
  };
  made.quiet = [](void *c, std::uint32_t *landed) -> std::int32_t {
    *landed = self(c)->quiet();
    return 0;
  };
  made.observe = [](void *c, veriep_place at, std::uint64_t *word) -> std::int32_t { return !self(c)->observe(at, *word); };
  made.store = [](void *c, veriep_place at, std::uint64_t word) -> std::int32_t { return !self(c)->store(at, word); };
  made.bytes = [](void *c, veriep_place at, std::uint64_t len, const std::uint8_t **out) -> std::int32_t {
    Bytes found;
    bool there = self(c)->bytes(at, len, found) && found.size() >= len;
    *out = found.data();
    return !there;
  };
  made.write = [](void *c, veriep_place at, const std::uint8_t *from, std::size_t len) -> std::int32_t {
    return !self(c)->write(at, Bytes(from, len));
  };
  made.deliver = [](void *c, veriep_place output, veriep_place from, std::uint64_t len) -> std::int32_t {
    return !self(c)->deliver(output, from, len);
  };
  if constexpr (requires(std::uint32_t rank, veriep_place at, std::uint64_t len, Bytes &found) {
                  f.peer_bytes(rank, at, len, found);
                })
    made.peer_bytes = [](void *c, std::uint32_t rank, veriep_place at, std::uint64_t len,
                         const std::uint8_t **out) -> std::int32_t {
      Bytes found;
      bool there = self(c)->peer_bytes(rank, at, len, found) && found.size() >= len;
      *out = found.data();
      return !there;
    };
  if constexpr (requires(std::uint32_t to, veriep_place at, Bytes message) { f.send(to, at, message); })
    made.send = [](void *c, std::uint32_t to, veriep_place at, const std::uint8_t *message, std::size_t len) -> std::int32_t {
      return !self(c)->send(to, at, Bytes(message, len));
    };
  // The line in bytes that a publish or a store may write back; without it the word alone.
  if constexpr (requires { f.line(); }) made.line = f.line();
  return made;
}

// A core of a rank with its scratch.
class Core {
  const Shape &shape;
  veriep_core core;
  std::vector<std::uint32_t> words;
  std::vector<std::uint8_t> row;
  std::string text = std::string(512, '\0');

 public:
  // Core `number` of `rank`, on a memory that can do `can`. The shape outlives it.
  Core(const Shape &shape, std::uint32_t rank, std::uint32_t number, std::uint32_t can,
       const veriep_choices &choices = veriep_choices_default(), std::uint32_t tp_rank = 0)
      : shape(shape) {
    veriep_sizes sizes = shape.sizes(rank);
    words.resize(sizes.scratch_words);
    row.resize(sizes.scratch_bytes);
    accept(veriep_core_new(&core, shape.get(), rank, tp_rank, number, &choices, can, text.data(), text.size()), text);
  }

  // Runs an operator to its end; `wait` is called whenever it waits for others.
  template <std::invocable Wait>
  void run(std::uint32_t operation, veriep_context cx, Wait wait) {
    accept(veriep_core_begin(&core, operation));
    drive(cx, wait);
  }
  // Runs the sending half of an operator. `resume` runs the rest, and other operators may run before on another `Core`.
  template <std::invocable Wait>
  void send(std::uint32_t operation, veriep_context cx, Wait wait) {
    accept(veriep_core_send(&core, operation));
    drive(cx, wait);
  }
  template <std::invocable Wait>
  void resume(veriep_context cx, Wait wait) {
    accept(veriep_core_resume(&core));
    drive(cx, wait);
  }

 private:
  template <std::invocable Wait>
  void drive(veriep_context &cx, Wait wait) {
    cx.shape = shape.get();
    cx.words = words.data(), cx.words_len = words.size();
    cx.bytes = row.data(), cx.bytes_len = row.size();
    cx.text = text.data(), cx.text_len = text.size();
    while (std::int32_t said = accept(veriep_core_step(&core, &cx, 1000, nullptr), text))
      if (said == VERIEP_PENDING) wait();
  }
};

}  // namespace veriep

#endif
