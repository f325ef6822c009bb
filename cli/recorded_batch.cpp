// SPDX-License-Identifier: Apache-2.0
// Checks of a file's tensors, each named, before anything is computed from them.
#include "cli/recorded_batch.h"

#include <cstddef>

#include "engine/error.h"

namespace losstape::cli {
namespace {

std::string shape_text(const std::vector<Index>& shape) {
  std::string text;
  for (const Index extent : shape) {
    text += (text.empty() ? "" : ", ") + (extent < 0 ? std::string("any") : std::to_string(extent));
  }
  return "[" + text + "]";
}

// A [B, S] array as the column [B·S, 1].
View as_column(const View& array) {
  if (array.data() == nullptr) return array;
  detail::Layout layout = array;
  layout.rows = array.rows * array.cols;
  layout.cols = 1;
  layout.row_stride = 1;
  return {array.data(), layout};
}

Counts counts_of(const CaseFile& file) { return {file.number("global_valid_toks"), file.number("global_valid_seqs")}; }

LossColumns columns_of(const CaseFile& file, const std::vector<Index>& grid, Index sequences) {
  const auto column = [&](const char* tensor) { return as_column(file.any_if_there(tensor, grid)); };
  LossColumns columns{as_column(file.any("token_mask", grid))};
  columns.advantages = column("advantages");
  columns.prev_logprobs = column("prev_logprobs");
  columns.generation_logprobs = column("generation_logprobs");
  columns.reference_logprobs = column("reference_policy_logprobs");
  columns.sample_mask = file.any_if_there("sample_mask", {sequences});
  return columns;
}

}  // namespace

CaseFile::CaseFile(const std::string& path) : file_(path) {}

void CaseFile::refuse(const std::string& tensor, const std::string& expected, const std::string& found) const {
  throw DataError({tensor, expected, found, path()});
}

View CaseFile::checked(const std::string& tensor, const std::vector<Index>& shape) const {
  const std::vector<Index>& found = file_.shape(tensor);
  bool fits = found.size() == shape.size();
  for (std::size_t i = 0; fits && i < shape.size(); ++i) fits = shape[i] < 0 || shape[i] == found[i];
  if (!fits) refuse(tensor, "a tensor of shape " + shape_text(shape), shape_text(found));
  return file_.view(tensor);
}

View CaseFile::floats(const std::string& tensor, const std::vector<Index>& shape) const {
  View view = checked(tensor, shape);
  if (!is_float(view.dtype)) refuse(tensor, "floating-point numbers", losstape::name(view.dtype));
  return view;
}

View CaseFile::ids(const std::string& tensor, const std::vector<Index>& shape) const {
  View view = checked(tensor, shape);
  if (view.dtype != DType::i64 && view.dtype != DType::i32) refuse(tensor, "i32 or i64", losstape::name(view.dtype));
  return view;
}

View CaseFile::any(const std::string& tensor, const std::vector<Index>& shape) const { return checked(tensor, shape); }

View CaseFile::any_if_there(const std::string& tensor, const std::vector<Index>& shape) const {
  return has(tensor) ? checked(tensor, shape) : View();
}

std::string CaseFile::text(const std::string& entry) const {
  const auto found = file_.metadata().find(entry);
  return found == file_.metadata().end() ? std::string() : found->second;
}

std::optional<double> CaseFile::number(const std::string& entry) const {
  if (!file_.metadata().contains(entry)) return std::nullopt;
  const Json value = parse_json(text(entry), source(entry));
  if (!value.is_number()) refuse(entry, "a number in the metadata", in_quotes(text(entry)));
  return value.get<double>();
}

Json CaseFile::json(const std::string& entry) const {
  if (!file_.metadata().contains(entry)) return Json::object();
  return parse_json(text(entry), source(entry));
}

std::string CaseFile::source(const std::string& entry) const { return "metadata " + entry + " of " + path(); }

RecordedBatch RecordedBatch::packed(const CaseFile& file) {
  if (!file.has("logits")) {
    std::string hint = file.path();
    if (file.has("hidden")) {
      hint += " has hidden states, from which this version cannot start";
    } else if (file.has("logprobs")) {
      hint += " has log-probs [B, S - 1]: `losstape check` compares such a golden case";
    }
    throw DataError({"logits", "a tensor [tokens, vocabulary]", "none", hint});
  }
  RecordedBatch batch;
  batch.logits = file.floats("logits", {-1, -1});
  const Index tokens = batch.logits.rows;
  batch.input_ids = file.ids("input_ids", {tokens});
  batch.cu_seqlens = file.ids("cu_seqlens", {-1});
  batch.sequences = batch.cu_seqlens.rows - 1;
  if (file.has("cu_seqlens_padded")) batch.cu_seqlens_padded = file.ids("cu_seqlens_padded", {batch.sequences + 1});
  batch.columns = columns_of(file, {tokens}, batch.sequences);
  batch.counts = counts_of(file);
  return batch;
}

RecordedBatch RecordedBatch::padded(const CaseFile& file) {
  RecordedBatch batch;
  static_cast<void>(file.any("token_mask", {-1, -1}));
  const std::vector<Index>& grid = file.shape("token_mask");
  batch.sequences = grid[0];
  batch.padded_length = grid[1];
  batch.logprobs = file.floats("logprobs", {batch.sequences, batch.padded_length > 0 ? batch.padded_length - 1 : 0});
  batch.columns = columns_of(file, grid, batch.sequences);
  batch.counts = counts_of(file);
  return batch;
}

void RecordedBatch::lay_out(Packing& packing) const {
  if (cu_seqlens_padded.data() != nullptr) {
    packing.assign(cu_seqlens, cu_seqlens_padded);
  } else {
    packing.assign(cu_seqlens);
  }
}

}  // namespace losstape::cli
