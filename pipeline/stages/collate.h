#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "pipeline/samples/fields.h"
#include "pipeline/stages/batched.h"

namespace millrace {

// A place of the tuples of a batch: a tensor i8 of shape [n] if all are integers; a tensor of shape
// [n, ...] if all are tensors of one type and shape; else the values as they are.
using column = std::variant<tensor, std::vector<value>>;

// A batch of tuples, as columns.
struct collated_batch {
  std::vector<column> columns;    // one for each place of the tuples
  std::vector<std::string> keys;  // of the n samples
  std::vector<origin> origins;    // of the n samples

  // The number of samples, n.
  std::size_t size() const { return keys.size(); }
};

// Turns a batch of tuples into columns: for map(), after batched(). Any thread. Fails with
// bad_field, naming both samples, if the tensors of one place differ in type or shape, or the
// tuples in length. That error is not skippable: the plan has to change.
//
//   plan | map(decode_fields) | map(to_tuple({"npy", "cls"})) | batched(32) | map(collated)
result<collated_batch> collated(const group_of<tuple_of_values>& batch);

}  // namespace millrace
