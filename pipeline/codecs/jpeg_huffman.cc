#include "pipeline/codecs/jpeg_huffman.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "pipeline/codecs/huffman_codes.h"
#include "pipeline/codecs/jpeg_errors.h"

// The decoder is installed through libjpeg-turbo's internal interface: two function pointers, the
// same in all of its versions and in IJG's since version 5. The header is not always installed.
#if __has_include(<jpegint.h>)
extern "C" {
#include <jpegint.h>
}
#define MILLRACE_HAS_JPEGINT 1
#else
#define MILLRACE_HAS_JPEGINT 0
#endif

namespace millrace {
namespace {

constexpr unsigned block_size = DCTSIZE2;
constexpr unsigned last_coefficient = block_size - 1;

// The natural index of each zigzag index (ITU T.81, figure A.6). Indexes that a run moves past the
// last coefficient map to the last one.
constexpr std::array<std::uint8_t, block_size + 16> natural_order = [] {
  std::array<std::uint8_t, block_size + 16> out{};
  out.fill(last_coefficient);
  int row = 0;
  int column = 0;
  for (unsigned k = 0; k < block_size; ++k) {
    out[k] = static_cast<std::uint8_t>(row * DCTSIZE + column);
    const bool upwards = (row + column) % 2 == 0;
    const bool at_far_edge = (upwards ? column : row) == DCTSIZE - 1;
    const bool at_near_edge = (upwards ? row : column) == 0;
    int& forward = upwards ? column : row;
    int& back = upwards ? row : column;
    if (at_far_edge) {
      ++back;
    } else {
      ++forward;
      if (!at_near_edge) --back;
    }
  }
  return out;
}();

// The zigzag index of the last coefficient that an inverse transform to `size` x `size` needs.
constexpr unsigned last_needed(int size) {
  unsigned last = 0;
  for (unsigned k = 0; k < block_size; ++k) {
    const bool inside = natural_order[k] / DCTSIZE < size && natural_order[k] % DCTSIZE < size;
    if (inside) last = k;
  }
  return last;
}
static_assert(last_needed(8) == last_coefficient && last_needed(1) == 0);

// Reads the difference between a block's first coefficient and that of the block before. False if
// no valid code comes next.
MILLRACE_INLINE bool read_difference(bit_reader& bits, const code_table& table, int& out) {
  bits.fill();
  const symbol& s = table.look_up(bits);
  if (s.kind == symbol::with_value) [[likely]] {
    bits.drop(s.bits);
    out = s.value;
    return true;
  }
  int size = s.value;  // end_of_block: 0, as it means in tables of first coefficients
  if (s.kind == symbol::not_found) {
    size = table.find_long(bits);
    if (size < 0) return false;
  } else {
    bits.drop(s.bits);
  }
  out = size == 0 ? 0 : bits.value(static_cast<unsigned>(size));
  return true;
}

// Reads a symbol that one look-up does not settle: moves `place` past its run and value, and stores
// the value if `block` is not null. `place` is block_size at the end of the block. False if no
// valid code comes next.
MILLRACE_INLINE bool read_symbol(bit_reader& bits, const code_table& table, const symbol& s,
                                 unsigned& place, JCOEF* block) {
  unsigned run = s.run;
  auto size = static_cast<unsigned>(s.value);
  if (s.kind == symbol::not_found) {
    const int found = table.find_long(bits);
    if (found < 0) return false;
    run = static_cast<unsigned>(found) >> 4;
    size = static_cast<unsigned>(found) & 15;
  } else {
    bits.drop(s.bits);
  }
  if (s.kind == symbol::end_of_block || (size == 0 && run != 15)) {
    place = block_size;
    return true;
  }
  place += run;
  if (size != 0) {
    const int value = bits.value(size);
    if (block != nullptr) block[natural_order[place]] = static_cast<JCOEF>(value);
  }
  ++place;
  return true;
}

// Skips the coefficients from `place` on, which are not needed.
MILLRACE_INLINE bool skip_coefficients(bit_reader& bits, const code_table& table, unsigned place) {
  while (place < block_size) {
    bits.fill();
    const symbols& two = table.look_up_two(bits);
    // If the block may end between the two symbols, they are read one at a time.
    if (two.bits != 0 && place + two.places < block_size) [[likely]] {
      bits.drop(two.bits);
      if (two.ends != 0) return true;
      place += two.places;
      continue;
    }
    const symbol& s = table.look_up(bits);
    if (s.kind == symbol::with_value) {
      bits.drop(s.bits);
      place += s.run + 1U;
    } else if (!read_symbol(bits, table, s, place, nullptr)) {
      return false;
    }
  }
  return place == block_size;
}

// Reads all coefficients after the first into a block of zeros; stores those up to `last` at least.
MILLRACE_INLINE bool read_coefficients(bit_reader& bits, const code_table& table, unsigned last,
                                       JCOEF* block) {
  constexpr int look_ups_a_fill = 4;
  static_assert(look_ups_a_fill * look_up_bits <= bit_reader::filled);
  unsigned place = 1;
  while (place <= last) {
    bits.fill();
    for (int i = 0; i < look_ups_a_fill && place <= last; ++i) {
      const symbol& s = table.look_up(bits);
      if (s.kind != symbol::with_value) {
        bits.fill();
        if (!read_symbol(bits, table, s, place, block)) return false;
        break;
      }
      bits.drop(s.bits);
      place += s.run;
      block[natural_order[place]] = s.value;
      ++place;
    }
  }
  return skip_coefficients(bits, table, place);
}

}  // namespace

struct jpeg_huffman::impl {
  struct block_plan {
    const code_table* dc;
    const code_table* ac;
    int* first_coefficient;  // of the component's previous block
    unsigned last;           // the last coefficient to keep
  };

  bool plan(const jpeg_decompress_struct& c);
  bool restart();
  MILLRACE_INLINE bool next_mcu(JBLOCKROW* blocks);

  bool gave_up = false;
  bit_reader bits;
  unsigned across = 0;  // MCUs in a row
  unsigned column = 0;  // the column of the next MCU
  unsigned begin = 0;   // columns [begin, end) are kept
  unsigned end = 0;
  unsigned interval = 0;  // MCUs between restart markers; 0: none
  unsigned until_restart = 0;
  unsigned restarts = 0;
  std::size_t blocks_in_mcu = 0;
  std::array<block_plan, D_MAX_BLOCKS_IN_MCU> blocks{};
  std::array<int, MAX_COMPS_IN_SCAN> first_coefficients{};
  std::array<code_table, NUM_HUFF_TBLS> dc_tables;
  std::array<code_table, NUM_HUFF_TBLS> ac_tables;
};

// Plans the blocks of an MCU. False if a table is missing or is not a prefix code.
bool jpeg_huffman::impl::plan(const jpeg_decompress_struct& c) {
  blocks_in_mcu = static_cast<std::size_t>(c.blocks_in_MCU);
  for (std::size_t i = 0; i < blocks_in_mcu; ++i) {
    const auto component = static_cast<std::size_t>(c.MCU_membership[i]);
    const jpeg_component_info& info = *c.cur_comp_info[component];
    const auto dc = static_cast<std::size_t>(info.dc_tbl_no);
    const auto ac = static_cast<std::size_t>(info.ac_tbl_no);
    if (dc >= NUM_HUFF_TBLS || ac >= NUM_HUFF_TBLS) return false;
    const JHUFF_TBL* dc_table = c.dc_huff_tbl_ptrs[dc];
    const JHUFF_TBL* ac_table = c.ac_huff_tbl_ptrs[ac];
    if (dc_table == nullptr || ac_table == nullptr) return false;
    if (!dc_tables[dc].assign(dc_table->bits, dc_table->huffval, false)) return false;
    if (!ac_tables[ac].assign(ac_table->bits, ac_table->huffval, true)) return false;
#if JPEG_LIB_VERSION >= 70
    const int size = std::max(info.DCT_h_scaled_size, info.DCT_v_scaled_size);
#else
    const int size = info.DCT_scaled_size;
#endif
    blocks[i] = {.dc = &dc_tables[dc],
                 .ac = &ac_tables[ac],
                 .first_coefficient = &first_coefficients[component],
                 .last = last_needed(size)};
  }
  return true;
}

bool jpeg_huffman::impl::restart() {
  if (!bits.skip_restart_marker(restarts % 8)) return false;
  ++restarts;
  until_restart = interval;
  first_coefficients.fill(0);
  return true;
}

// Decodes an MCU into `into`, blocks of zeros, or skips it if null. False on any irregularity.
bool jpeg_huffman::impl::next_mcu(JBLOCKROW* into) {
  if (interval != 0 && until_restart-- == 0) {
    if (!restart()) return false;
    --until_restart;
  }
  const bool keeps = into != nullptr && column >= begin && column < end;
  column = column + 1 == across ? 0 : column + 1;
  bit_reader local = bits;
  for (std::size_t i = 0; i < blocks_in_mcu; ++i) {
    const block_plan& block = blocks[i];
    int difference = 0;
    if (!read_difference(local, *block.dc, difference)) return false;
    const int first = *block.first_coefficient += difference;
    if (first != static_cast<JCOEF>(first)) return false;
    bool read = false;
    if (keeps) {
      JCOEF* to = *into[i];
      to[0] = static_cast<JCOEF>(first);
      read = read_coefficients(local, *block.ac, block.last, to);
    } else {
      read = skip_coefficients(local, *block.ac, 1);
    }
    if (!read) return false;
  }
  bits = local;
  return !bits.overrun();
}

jpeg_huffman::jpeg_huffman() : impl_(std::make_unique<impl>()) {}
jpeg_huffman::~jpeg_huffman() = default;

bool jpeg_huffman::gave_up() const {
  return impl_->gave_up;
}

void jpeg_huffman::forget() {
  impl_->gave_up = false;
}

#if MILLRACE_HAS_JPEGINT

namespace {

// Replaces libjpeg's function of that name.
MILLRACE_INLINE boolean decode_mcu(j_decompress_ptr c, JBLOCKROW* blocks) {
  auto* decoder = static_cast<jpeg_huffman::impl*>(c->client_data);
  if (decoder->next_mcu(blocks)) return TRUE;
  decoder->gave_up = true;
  std::longjmp(reinterpret_cast<libjpeg::error_handler*>(c->err)->escape, 1);
}

boolean decode_mcu_anywhere(j_decompress_ptr c, JBLOCKROW* blocks) {
  return decode_mcu(c, blocks);
}

#if defined(__x86_64__)
// A shift by a variable takes one instruction instead of three.
[[gnu::target("bmi,bmi2")]] boolean decode_mcu_bmi2(j_decompress_ptr c, JBLOCKROW* blocks) {
  return decode_mcu(c, blocks);
}
#endif

auto* best_decode_mcu() {
#if defined(__x86_64__)
  static const bool has_bmi2 =
      __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("bmi2") != 0;
  if (has_bmi2) return decode_mcu_bmi2;
#endif
  return decode_mcu_anywhere;
}

// The width of an MCU in output columns.
unsigned mcu_width(const jpeg_decompress_struct& c) {
#if JPEG_LIB_VERSION >= 70
  const int block_width = c.min_DCT_h_scaled_size;
#else
  const int block_width = c.min_DCT_scaled_size;
#endif
  // A scan of one component has MCUs of one block, whatever its sampling factors.
  return static_cast<unsigned>(block_width * (c.comps_in_scan == 1 ? 1 : c.max_h_samp_factor));
}

}  // namespace

bool jpeg_huffman::take_over(jpeg_decompress_struct& c, unsigned x, unsigned width) {
  const bool serves = c.arith_code == FALSE && c.progressive_mode == FALSE &&
                      c.data_precision == 8 && jpeg_has_multiple_scans(&c) == 0 &&
                      c.unread_marker == 0;
  if (!serves || !impl_->plan(c)) return false;
  const jpeg_source_mgr& file = *c.src;
  impl_->bits = bit_reader(file.next_input_byte, file.next_input_byte + file.bytes_in_buffer);
  impl_->across = c.MCUs_per_row;
  impl_->column = 0;
  impl_->begin = x / mcu_width(c);
  impl_->end = (x + width + mcu_width(c) - 1) / mcu_width(c);
  impl_->interval = c.restart_interval;
  impl_->until_restart = impl_->interval;
  impl_->restarts = 0;
  impl_->first_coefficients.fill(0);
  c.client_data = impl_.get();
  c.entropy->decode_mcu = best_decode_mcu();
  return true;
}

#else

bool jpeg_huffman::take_over(jpeg_decompress_struct&, unsigned, unsigned) {
  return false;
}

#endif

}  // namespace millrace
