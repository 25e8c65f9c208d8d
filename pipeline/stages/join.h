#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "pipeline/formats/join_options.h"
#include "pipeline/plan/plan.h"
#include "pipeline/samples/sample.h"
#include "pipeline/stages/sample_stage.h"

namespace millrace {

// Adds to each sample the fields that a companion shard has under the same key: one sample from
// several tars, one per modality. Place it right after group_by_key() or read_samples(), or another
// join().
//
//   shards(expand("images/{000..099}.tar")) | untar() | group_by_key() | join("captions/{}.tar")
//
// Companions are tar archives, on anything that shards are read from, and compressed as shards may
// be. The key is the whole one, with its folder. A companion in the order of its main shard is read
// once, in one pass, and holds little memory; see join_options::held_bytes for other orders.
//
// Errors concern the main shard's sample, are skippable, and name the companion's URL, its byte and
// the key: missing_field and not_found as join_options::missing says; duplicate_field if both have
// a field; what is wrong with a companion that is damaged, for each sample that was not found
// before the damage; too_large for a companion of more samples than the budget can list (64 bytes
// each, of a thirty-second of it over all lanes: 4 GiB list two million). Companion samples without
// a main one, and all but the first of a repeated key, are counted in ledger::companions_alone with
// a notice, for shards that were read from beginning to end (not for the one that a run resumed
// in).
struct join_stage {
  std::string pattern;   // of the companions' URLs; `{}` is the main shard's name, see join()
  join_options options;  // of join()
};
// Makes the stage. In `pattern`, a path or URL, `{}` stands for the name of the main shard without
// its folder and without .tar, .tar.gz, .tgz and so on (or its last extension, if it has another
// ending): the companion of "https://host/images/000017.tar?key" by "captions/{}.tar" is
// "captions/000017.tar". Other braces are not a pattern here. Throws `failure` (usage) if the
// pattern has no `{}`, or is a `pipe:`. Any thread.
join_stage join(std::string pattern, const join_options& options = {});
// Appends it. Throws `failure` (usage) if the stage before it is not one that join() may follow, or
// if the shards are of `pipe:` or stdin, which have no names.
lane_plan<sample> operator|(lane_plan<sample> front, const join_stage& back);

// Fields by the keys of samples, in memory of the program's own, outside the budget.
using field_table = std::unordered_map<std::string, std::vector<field>>;
// Adds to each sample the fields that a table has under its key. Fails with missing_field or
// duplicate_field, skippable, and with too_large for more fields than a sample may have. Rows that
// no sample has the key of are not told: a table often covers more than one set of shards. Any
// thread.
sample_stage join_table(std::shared_ptr<const field_table> table,
                        missing_companion missing = missing_companion::error);

}  // namespace millrace
