#include "pipeline/formats/untar.h"

#include "pipeline/formats/shard_head.h"
#include "pipeline/formats/shard_reader.h"
#include "pipeline/formats/tar_samples.h"
#include "pipeline/records.h"

namespace millrace {
namespace {

class untar_stream final : public stream<tar_member> {
 public:
  // `had`: the head in the state that it is restored from, for whoever reads samples again.
  untar_stream(lane_context& lane, std::unique_ptr<stream<shard_ref>> shards,
               std::shared_ptr<shard_head> had)
      : lane_(lane),
        cursor_(lane.id(cursor_record::name)),
        head_(lane.id(shard_head::record)),
        shards_(std::move(shards)),
        had_(std::move(had)) {}

  awaitable<outcome> next() override {
    untar_stream::leave_failed();
    for (;;) {
      if (!reader_) {
        auto shard = co_await shards_->next();
        if (!shard) co_return shard.error();
        if (!*shard) co_return std::optional<tar_member>();
        current_ = **shard;
        const lane_cursor at = std::exchange(start_, {});
        const bool in_middle = at.offset > 0;
        is_resumed_ = in_middle;
        reader_.emplace(lane_, current_,
                        static_cast<std::uint64_t>(in_middle ? at.offset : current_.begin),
                        in_middle ? at.given : 0, in_middle ? *had_ : shard_head());
        begun_ = true;
      }
      auto member = co_await reader_->next();
      if (!member) {
        failed_ = true;  // a state saved now says where
        error why = member.error();
        const bool gave_none = !is_resumed_ && reader_->is_in_first_sample();
        if (gave_none && reader_->is_broken() && loses_shard(why, current_, lane_.index.get()))
          why.whole_shard();
        co_return why;
      }
      if (!*member) {
        reader_.reset();
        member->emplace().ends_archive = true;  // the last sample is whole, whatever comes next
      }
      co_return member;
    }
  }

  void leave_failed() override {
    if (std::exchange(failed_, false) && reader_->is_broken()) reader_.reset();
  }

  void save(state& to) const override {
    shards_->save(to);
    if (reader_) {
      to.put(cursor_, cursor_record::of(current_.epoch, {.draw = current_.draw,
                                                         .offset = reader_->offset(),
                                                         .given = reader_->given()}));
      reader_->head().put(to, head_);
    } else {
      if (!begun_) had_->put(to, head_);
      cursor_record::put_restored(to, cursor_, start_);
    }
  }
  void restore(const state& from) override {
    shards_->restore(from);
    start_ = cursor_record::in(from, cursor_).second;
    *had_ = shard_head::in(from, head_);
    begun_ = false;
  }

 private:
  lane_context& lane_;
  std::string cursor_;
  std::string head_;
  std::unique_ptr<stream<shard_ref>> shards_;
  shard_ref current_;
  lane_cursor start_;
  std::shared_ptr<shard_head> had_;
  bool begun_ = false;       // a shard, since the stream was restored
  bool is_resumed_ = false;  // the open shard, from where a state says
  std::optional<shard_reader> reader_;
  bool failed_ = false;  // in the last call
};

}  // namespace

lane_stage<shard_ref, tar_member> untar(untar_options options) {
  return {.name = "untar",
          .wrap = [shared = std::make_shared<const untar_options>(std::move(options))](
                      lane_context& lane, std::unique_ptr<stream<shard_ref>> shards)
              -> std::unique_ptr<stream<tar_member>> {
            lane.untar = shared;
            auto had = std::make_shared<shard_head>();
            lane.format = tar_samples(*shared, had);
            return std::make_unique<untar_stream>(lane, std::move(shards), std::move(had));
          },
          .unchanged = true,
          // Of the open shard, which the lanes before have begun.
          .records = {{shard_head::record, [](const dealing&, state&) {}}}};
}

}  // namespace millrace
