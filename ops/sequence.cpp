// SPDX-License-Identifier: Apache-2.0
// The sequence nodes.
#include "ops/sequence.h"

#include <cmath>
#include <string>

#include "engine/error.h"
#include "ops/finite.h"

namespace losstape {
namespace {

constexpr double kCountGuard = 1e-8;  // peers add it to every count

void no_fold(char& /*into*/, const char& /*from*/) {}

// What the nodes share: a packing that must still be the one recorded, and a join of fp64 sums.
struct OverPacking {
  const Packing* packing;
  std::uint64_t version;

  [[nodiscard]] int ranks() const { return packing->group().size(); }
  void check(const char* node) const { packing->expect_version(version, node); }
  [[nodiscard]] std::size_t payload(Index width) const {
    return static_cast<std::size_t>(packing->sequences() * width) * sizeof(double);
  }
  // Adds the sums up over ranks; throws what any rank reports.
  void join(const char* node, Block<double> sums, Block<std::byte> staging, Status status = {}) const {
    packing->group().join(node, std::span<char>(), no_fold, staging.span(), sums.span(), status);
  }
};

enum class Divide : unsigned char { no, by_count };

template <Divide kDivide>
struct SequenceReduceNode {
  static constexpr auto name = kDivide == Divide::no ? "sequence_sum" : "sequence_mean";
  static constexpr bool kMean = kDivide == Divide::by_count;

  OverPacking over;

  void reserve(auto& c) const {
    const Index sequences = over.packing->sequences();
    if (kMean) c.save(f64, sequences, 1);  // by what the sum is multiplied
    c.workspace(f64, sequences, 2);
    over.packing->group().reserve_join(c, of<char>, 0, sequences * 2);
  }
  void forward(auto& c) const {
    const auto x = c.in(0);
    const auto mask = c.in(1);
    const auto sums = c.workspace(f64, 0);  // Σ mask x, Σ mask
    const Packing& packing = *over.packing;
    Status status;
    for (Index b = 0; b < packing.sequences(); ++b) {
      sums(b, 0) = sums(b, 1) = 0;
      for (Index r = packing.first_row(b); r < packing.last_row(b); ++r) {
        const double m = mask(r);
        if (m == 0) continue;
        if (!std::isfinite(m) && status.ok()) status = detail::not_finite(name, "a finite mask", m, r);
        const double value = x(r);
        if (!std::isfinite(value) && c.non_finite() == NonFinite::error && status.ok()) {
          status = detail::not_finite(name, "finite values where the mask is not 0", value, r, c.cause_of(0, r));
        }
        sums(b, 0) += m * value;
        sums(b, 1) += m;
      }
    }
    over.join(name, sums, c.workspace(of<std::byte>, 1), status);
    for (Index b = 0; b < packing.sequences(); ++b) {
      const double weight = kMean ? 1 / (sums(b, 1) + kCountGuard) : 1.0;
      if (kMean) c.saved(f64, 0)(b) = weight;
      c.out(0).write(b, sums(b, 0) * weight);
    }
  }
  void backward(auto& c) const {
    over.check(name);
    const auto dx = c.grad(0);
    if (!dx) return;
    const auto mask = c.in(1);
    const auto dy = c.dout(0);
    const Packing& packing = *over.packing;
    for (Index b = 0; b < packing.sequences(); ++b) {
      const double g = static_cast<double>(dy(b)) * (kMean ? c.saved(f64, 0)(b) : 1.0);
      for (Index r = packing.first_row(b); r < packing.last_row(b); ++r) {
        const double m = mask(r);
        dx.write(r, m == 0 ? 0.0 : g * m);
      }
    }
  }
};

struct SpreadNode {
  static constexpr auto name = "spread";

  OverPacking over;

  void reserve(auto& c) const {
    const bool backward = c.wants_grad(0) && over.ranks() > 1;
    c.workspace(f64, over.packing->sequences(), 1);
    c.workspace(of<std::byte>, static_cast<Index>(Communicator::staging_bytes(over.ranks(), over.payload(1))), 1);
    c.collective(0, backward ? 1 : 0, backward ? Communicator::joined_bytes(over.ranks(), over.payload(1)) : 0);
  }
  void forward(auto& c) const {
    const auto x = c.in(0);
    const Packing& packing = *over.packing;
    for (Index b = 0; b < packing.sequences(); ++b) {
      for (Index r = packing.first_row(b); r < packing.last_row(b); ++r) c.out(0).write(r, static_cast<double>(x(b)));
    }
  }
  void backward(auto& c) const {
    over.check(name);
    const auto dx = c.grad(0);
    if (!dx) return;
    const auto dy = c.dout(0);
    const auto sums = c.workspace(f64, 0);
    const Packing& packing = *over.packing;
    for (Index b = 0; b < packing.sequences(); ++b) {
      sums(b) = 0;
      for (Index r = packing.first_row(b); r < packing.last_row(b); ++r) sums(b) += static_cast<double>(dy(r));
    }
    over.join(name, sums, c.workspace(of<std::byte>, 1));
    for (Index b = 0; b < packing.sequences(); ++b) dx.write(b, sums(b));
  }
};

template <class R>
void check_column(BasicVar<R> column, Index rows, const char* node, const char* what) {
  const Shape found = column.shape();
  if (found.rows == rows && found.cols == 1) return;
  throw UsageError({node, std::string(what) + " [" + std::to_string(rows) + ", 1]",
                    "[" + std::to_string(found.rows) + ", " + std::to_string(found.cols) + "]"});
}

template <Divide kDivide, class R>
BasicVar<R> reduce(BasicVar<R> x, BasicVar<R> mask, const Packing& packing) {
  using Node = SequenceReduceNode<kDivide>;
  check_column(x, packing.rows(), Node::name, "a token column");
  check_column(mask, packing.rows(), Node::name, "a token mask");
  if (mask.tape->wants_grad(mask)) {
    throw UsageError({Node::name, "a mask without a gradient", "one that is differentiated",
                      "reductions differentiate values only: stop_gradient it, or multiply it into the values"});
  }
  return x.tape->record(Node{{&packing, packing.version()}}, {x, mask}, Shape{packing.sequences(), 1});
}

}  // namespace

template <class R>
BasicVar<R> sequence_sum(BasicVar<R> x, BasicVar<R> mask, const Packing& packing) {
  return reduce<Divide::no>(x, mask, packing);
}

template <class R>
BasicVar<R> sequence_mean(BasicVar<R> x, BasicVar<R> mask, const Packing& packing) {
  return reduce<Divide::by_count>(x, mask, packing);
}

template <class R>
BasicVar<R> spread(BasicVar<R> x, const Packing& packing) {
  check_column(x, packing.sequences(), SpreadNode::name, "a sequence column");
  return x.tape->record(SpreadNode{{&packing, packing.version()}}, {x}, Shape{packing.rows(), 1});
}

template BasicVar<float> sequence_sum(BasicVar<float>, BasicVar<float>, const Packing&);
template BasicVar<double> sequence_sum(BasicVar<double>, BasicVar<double>, const Packing&);
template BasicVar<float> sequence_mean(BasicVar<float>, BasicVar<float>, const Packing&);
template BasicVar<double> sequence_mean(BasicVar<double>, BasicVar<double>, const Packing&);
template BasicVar<float> spread(BasicVar<float>, const Packing&);
template BasicVar<double> spread(BasicVar<double>, const Packing&);

}  // namespace losstape
