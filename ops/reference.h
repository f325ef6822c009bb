// SPDX-License-Identifier: Apache-2.0
// The dense fp64 oracle: the vocabulary's statistics and gradients by their definitions, for tests of losses and nodes.
#pragma once

#include <Eigen/Core>

#include <span>

#include "engine/dtype.h"

// Whole rows on one rank, one formula after another, nothing fused, packed, sharded or saved: slow, and right to about
// 1e-15. It shares no code with the kernels. Sums run in long double (64 bits of mantissa on x86; what the machine has
// elsewhere), over logits less the row's maximum; the maximum's own 1 stays out of the sum, so rows that are sure of a
// column are as exact as others. A −∞ logit has probability 0 and gradient 0; a row with NaN, +∞ or no finite logit gives
// NaN.
namespace losstape::reference {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXd;
using Ids = Eigen::Matrix<Index, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Everything below is of logits / temperature; logits [T, V].

// log p of every column, [T, V].
[[nodiscard]] Matrix log_softmax(const Matrix& logits, double temperature = 1);

// log p of a column a row; 0 where a target is negative (none).
[[nodiscard]] Vector logprob(const Matrix& logits, std::span<const Index> targets, double temperature = 1);
// log p of the columns ids(r, k), [T, K].
[[nodiscard]] Matrix gathered(const Matrix& logits, const Ids& ids, double temperature = 1);
// −Σ p log p.
[[nodiscard]] Vector entropy(const Matrix& logits, double temperature = 1);
// log Σ e^(x / temperature).
[[nodiscard]] Vector lse(const Matrix& logits, double temperature = 1);

// Gradients with respect to the logits, for one adjoint a row (or a row and k). Rows whose adjoints are all 0 are 0,
// whatever the logits are.
[[nodiscard]] Matrix logprob_gradient(const Matrix& logits, std::span<const Index> targets, const Vector& adjoint,
                                      double temperature = 1);
[[nodiscard]] Matrix gathered_gradient(const Matrix& logits, const Ids& ids, const Matrix& adjoint, double temperature = 1);
[[nodiscard]] Matrix entropy_gradient(const Matrix& logits, const Vector& adjoint, double temperature = 1);
[[nodiscard]] Matrix lse_gradient(const Matrix& logits, const Vector& adjoint, double temperature = 1);

}  // namespace losstape::reference
