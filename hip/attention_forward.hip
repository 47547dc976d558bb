// Decides the BF16 attention kernel for gfx950: O = softmax(scale Q K^T) V, forward, one template.
// It does not choose between its instances (zyfa_triton/kernels/hip.py) and does not launch.
//
// Needs clang's builtins only, no header of ROCm. A workgroup of 8 waves takes 256 queries of one
// head, a wave 32 of them, and all keys in tiles of 64. Products are computed transposed:
// S^T = K Q^T leaves one query in a lane, and its P is an operand of O^T = V^T P^T as it stands.
//
// Two waves share a SIMD. While one feeds the matrix pipe (P V of the last tile, then Q K^T of this
// one), the other makes probabilities; a barrier ends both stages, and waves 4 to 7 run one stage
// behind waves 0 to 3. So stages have numbers: the early waves compute tile i in stages 2i (matrix)
// and 2i+1 (vector), the late ones in 2i+1 and 2i+2.

#define ZYFA_DEVICE __attribute__((device, always_inline)) inline

namespace zyfa {

using bf16x2 = __bf16 __attribute__((ext_vector_type(2)));
using bf16x4 = __bf16 __attribute__((ext_vector_type(4)));
using bf16x8 = __bf16 __attribute__((ext_vector_type(8)));
using f32x2 = float __attribute__((ext_vector_type(2)));
using f32x16 = float __attribute__((ext_vector_type(16)));
using u32x4 = unsigned __attribute__((ext_vector_type(4)));
using i64 = long long;
using lds_byte = __attribute__((address_space(3))) char;
using lds_any = __attribute__((address_space(3))) void;

constexpr int kWaves = 8;
constexpr int kBlockM = 256;  // queries of a workgroup
constexpr int kRows = 32;     // queries of a wave
constexpr int kBlockN = 64;   // keys of a tile
constexpr int kHeadDimV = 128;
constexpr int kSlots = 4;        // tiles of K, and of V, in LDS
constexpr int kAhead = 6;        // operands read before the matrix instruction that takes them
constexpr int kPartBytes = 128;  // of a row: LDS holds a tile in parts of 64 columns
constexpr int kPieceBytes = 1024;
constexpr int kPartTile = kBlockN * kPartBytes;

// The reference that is subtracted from scores may lag behind the row's maximum by so many octaves.
// P is then at most 2^8. It is a float, as are O and the row sum: their relative errors do not
// depend on the reference, which cancels in O / L; only |V| beyond 2^120 / keys could overflow.
constexpr float kLag = 8.0f;

struct Arguments {
  const __bf16 *q, *k, *v;
  __bf16 *o;
  float *lse;  // not read by an instance that does not return it
  float scale_log2;
  i64 stride_qb, stride_qs, stride_qh;  // elements
  i64 stride_kb, stride_ks, stride_kh;
  i64 stride_vb, stride_vs, stride_vh;
  i64 stride_ob, stride_os, stride_oh;
  int nheads, group_size, seqlen_q, seqlen_k;
};

// A compile-time-only order of memory accesses: no instruction.
ZYFA_DEVICE void keep_order() {
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  __builtin_amdgcn_sched_barrier(0);
}

ZYFA_DEVICE void meet() {
  keep_order();
  __builtin_amdgcn_s_barrier();
  keep_order();
}

// By value: clang 22 casts element 0 where __builtin_bit_cast is given an element of a vector.
ZYFA_DEVICE float as_float(unsigned bits) {
  return __builtin_bit_cast(float, bits);
}
ZYFA_DEVICE unsigned as_bits(float value) {
  return __builtin_bit_cast(unsigned, value);
}

// s_waitcnt for vector memory alone, as gfx9 encodes it.
template <int kOutstanding>
ZYFA_DEVICE void wait_for_loads() {
  static_assert(kOutstanding < 64);
  __builtin_amdgcn_s_waitcnt((kOutstanding & 15) | (kOutstanding >> 4 << 14) | 0xf70);
}

// The rows of K or V that a workgroup walks through, as far as loads of one lane need them.
template <int kWidth>
struct Source {
  static constexpr int kParts = kWidth * 2 / kPartBytes;  // loads of a wave for one tile
  static constexpr int kTileBytes = kParts * kPartTile;

  const char *tile;  // first row of the next tile to load
  i64 row_bytes;
  int rows_left;                      // from there on; not positive: loads bring zeros
  int full_bytes, tail_bytes, bytes;  // from a tile's first byte to the last of its rows that exist
  unsigned offset[kParts];

  // Lane t of wave w brings 16 bytes of row 8w + t/8. Which of the eight that a part of the row
  // has, decides the swizzle, so that LDS is written in order and read without bank conflicts.
  ZYFA_DEVICE Source(const __bf16 *first, i64 stride, int rows, int wave, int lane, int swizzle)
      : tile(reinterpret_cast<const char *>(first)), row_bytes(2 * stride), rows_left(rows) {
    full_bytes = (kBlockN - 1) * static_cast<int>(row_bytes) + 2 * kWidth;
    tail_bytes = (rows % kBlockN - 1) * static_cast<int>(row_bytes) + 2 * kWidth;
    unsigned row = 8 * wave + lane / 8;
    unsigned start = row * static_cast<unsigned>(row_bytes) + ((lane % 8) ^ swizzle) * 16;
#pragma unroll
    for (int part = 0; part < kParts; ++part) offset[part] = start + part * kPartBytes;
  }

  // The next tile's load in steps, so that they can stand between matrix instructions: first its
  // bounds, beyond which rows become zeros; then the pieces; then the tile after.
  ZYFA_DEVICE void begin() {
    const int at_most = rows_left > 0 ? tail_bytes : 0;
    bytes = rows_left >= kBlockN ? full_bytes : at_most;
  }
  template <int kPart>
  ZYFA_DEVICE void load_part(lds_byte *to) {
    auto bounds = __builtin_amdgcn_make_buffer_rsrc(const_cast<char *>(tile), 0, bytes, 0x27000);
    __builtin_amdgcn_raw_ptr_buffer_load_lds(bounds, (lds_any *)(to + kPart * kPartTile), 16,
                                             offset[kPart], 0, 0, 0);
  }
  ZYFA_DEVICE void end() {
    tile += kBlockN * row_bytes;
    rows_left -= kBlockN;
  }

  // Step kStep of those; steps that there are none of do nothing.
  static constexpr int kSteps = kParts + 2;
  template <int kStep>
  ZYFA_DEVICE void step(lds_byte *to) {
    if constexpr (kStep == 0) begin();
    if constexpr (kStep >= 1 && kStep <= kParts) load_part<kStep - 1>(to);
    if constexpr (kStep == kParts + 1) end();
  }
  template <int kStep = 0>
  ZYFA_DEVICE void load(lds_byte *to) {
    if constexpr (kStep < kSteps) {
      step<kStep>(to);
      load<kStep + 1>(to);
    }
  }
};

// Chunks of 16 bytes in a row's part are permuted by XOR with a function of the row.
// K is read 16 rows at a time, the same chunk of each: 8 pairs of rows need 8 places.
ZYFA_DEVICE int swizzle_k(int row) {
  return (row >> 1) & 7;
}
// V is read 4 or 8 rows at a time, 32 or 64 bytes of each.
ZYFA_DEVICE int swizzle_v(int row) {
  return (row & 2) << 1 | (((row >> 2) ^ row) & 1) << 1;
}

// The loads that a wave issues during a matrix stage, one step behind each of its instructions.
template <int kHeadDim>
struct Loads {
  using Keys = Source<kHeadDim>;
  using Values = Source<kHeadDimV>;
  static constexpr int kCount = Keys::kParts + Values::kParts;

  Keys keys;
  Values values;
  lds_byte *to_keys, *to_values;

  template <int kStep>
  ZYFA_DEVICE void step() {
    if constexpr (kStep >= 0 && kStep < Keys::kSteps) keys.template step<kStep>(to_keys);
    constexpr int later = kStep - Keys::kSteps;
    if constexpr (later >= 0 && later < Values::kSteps) values.template step<later>(to_values);
  }
};

template <int kHeadDim, bool kIsCausal, bool kReturnsLse>
struct Forward {
  static constexpr int kSteps = kHeadDim / 16;     // matrix instructions along the head
  static constexpr int kBlocksV = kHeadDimV / 32;  // blocks of O^T's rows
  static constexpr int kProducts = kBlockN / 16 * kBlocksV;
  static constexpr int kScores = 2 * kSteps;
  using Keys = Source<kHeadDim>;
  using Values = Source<kHeadDimV>;
  static constexpr int kLdsBytes = kSlots * (Keys::kTileBytes + Values::kTileBytes);

  static constexpr int kNoLoads = -1000;  // a step that is never reached

  bf16x8 q[kSteps];
  f32x16 acc_s[2];                      // S^T: 64 keys, this lane's query
  bf16x8 p[kBlockN / 16];               // the same after the exponential
  f32x16 acc_o[kBlocksV];               // O^T
  bf16x8 operand[kProducts + kScores];  // of V^T and K, alive from their read to their use
  float reference;                      // log2 units
  float row_sum, rounded_row_sum;       // over this lane's half of the keys: of P, and of P in bf16
  float scale_log2;
  unsigned k_lane[4], v_lane[4];  // LDS bytes from the tile's begin
  int last_key;  // that this lane's query sees, less 4 for the upper half of the wave

  // K's operand for keys 32 block.. and columns 16 step..: 8 columns of one key a lane.
  template <int kIndex>
  ZYFA_DEVICE void read_k(const lds_byte *tile) {
    constexpr int block = kIndex / kSteps, step = kIndex % kSteps;
    constexpr int place = step / 4 * kPartTile + block * 32 * kPartBytes;
    using Chunk = const __attribute__((address_space(3))) bf16x8;
    operand[kProducts + kIndex] = *reinterpret_cast<Chunk *>(tile + k_lane[step % 4] + place);
  }

  // V^T's operand for columns 32 block.. of V and the 16 keys of P's operand `step`, in the order
  // in which a lane holds them: registers 0-3 are keys 0-3 or 4-7, 4-7 are keys 8-11 or 12-15.
  template <int kIndex>
  ZYFA_DEVICE void read_v(const lds_byte *tile) {
    constexpr int block = kIndex % kBlocksV, step = kIndex / kBlocksV;
    constexpr int place = block / 2 * kPartTile + step * 16 * kPartBytes;
    using Quad = __attribute__((address_space(3))) bf16x4;
    bf16x4 half[2];
#pragma unroll
    for (int upper = 0; upper < 2; ++upper)
      half[upper] = __builtin_amdgcn_ds_read_tr16_b64_v4bf16(
          (Quad *)(tile + v_lane[block % 2] + place + upper * 8 * kPartBytes));
    operand[kIndex] = __builtin_shufflevector(half[0], half[1], 0, 1, 2, 3, 4, 5, 6, 7);
  }

  // Operand kIndex of a matrix stage: V of the last tile, then K of this one.
  template <int kIndex, int kEnd>
  ZYFA_DEVICE void read(const lds_byte *values, const lds_byte *keys) {
    if constexpr (kIndex < kEnd) {
      if constexpr (kIndex < kProducts)
        read_v<kIndex>(values);
      else
        read_k<kIndex - kProducts>(keys);
    }
  }

  template <int kFirst, int kCount, int kEnd>
  ZYFA_DEVICE void read_first(const lds_byte *values, const lds_byte *keys) {
    if constexpr (kCount > 0) {
      read<kFirst, kEnd>(values, keys);
      read_first<kFirst + 1, kCount - 1, kEnd>(values, keys);
    }
  }

  // Matrix instructions kIndex..kEnd-1 of a stage, each behind the read of a later one's operand.
  // A fence on both sides of it keeps the source's order, which is the schedule: what stands
  // between two of them fits into the time that the first one takes.
  template <int kIndex, int kEnd, int kLoadStep = kNoLoads>
  ZYFA_DEVICE void multiply(const lds_byte *values, const lds_byte *keys, Loads<kHeadDim> &loads) {
    if constexpr (kIndex < kEnd) {
      if constexpr (kIndex < kProducts) {
        constexpr int block = kIndex % kBlocksV, step = kIndex / kBlocksV;
        acc_o[block] = __builtin_amdgcn_mfma_f32_32x32x16_bf16(operand[kIndex], p[step],
                                                               acc_o[block], 0, 0, 0);
      } else {
        constexpr int block = (kIndex - kProducts) / kSteps, step = (kIndex - kProducts) % kSteps;
        f32x16 start = step == 0 ? f32x16(0.0f) : acc_s[block];
        acc_s[block] =
            __builtin_amdgcn_mfma_f32_32x32x16_bf16(operand[kIndex], q[step], start, 0, 0, 0);
      }
      __builtin_amdgcn_sched_barrier(0);
      read<kIndex + kAhead, kEnd>(values, keys);
      loads.template step<kLoadStep>();
      __builtin_amdgcn_sched_barrier(0);
      multiply<kIndex + 1, kEnd, kLoadStep + 1>(values, keys, loads);
    }
  }

  // Scores of tile n_block that the query does not see become -inf.
  ZYFA_DEVICE void mask(int n_block) {
    int last = last_key - n_block * kBlockN;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      int key = i / 16 * 32 + i % 16 / 4 * 8 + i % 4;
      acc_s[i / 16][i % 16] = key <= last ? acc_s[i / 16][i % 16] : -__builtin_inff();
    }
  }

  // Probabilities of the scores, and the reference that they are relative to.
  ZYFA_DEVICE void soften() {
    float highest = acc_s[0][0];
#pragma unroll
    for (int i = 1; i < 31; i += 2)
      highest = __builtin_fmaxf(__builtin_fmaxf(highest, acc_s[i / 16][i % 16]),
                                acc_s[(i + 1) / 16][(i + 1) % 16]);
    highest = __builtin_fmaxf(highest, acc_s[1][15]);
    auto halves =
        __builtin_amdgcn_permlane32_swap(as_bits(highest), as_bits(highest), false, false);
    highest = __builtin_fmaxf(as_float(halves[0]), as_float(halves[1])) * scale_log2;
    if (__builtin_expect(__builtin_amdgcn_ballot_w64(highest > reference + kLag) != 0, 0)) {
      float raised = __builtin_fmaxf(reference, highest);
      float factor = __builtin_amdgcn_exp2f(reference - raised);
      reference = raised;
      if constexpr (kReturnsLse) row_sum *= factor;
      rounded_row_sum *= factor;
#pragma unroll
      for (int block = 0; block < kBlocksV; ++block)
#pragma unroll
        for (int i = 0; i < 16; ++i) acc_o[block][i] *= factor;
    }
    // O is divided by the sum of what it was multiplied with: an error that a row's P share
    // cancels. The log-sum-exp takes the sum before rounding.
    float sums[2] = {0.0f, 0.0f}, rounded[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      f32x2 pair;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float t = __builtin_fmaf(acc_s[i / 16][i % 16 + j], scale_log2, -reference);
        pair[j] = __builtin_amdgcn_exp2f(t);
        if constexpr (kReturnsLse) sums[j] += pair[j];
      }
      const bf16x2 packed = __builtin_convertvector(pair, bf16x2);
      float &sum = rounded[i / 2 % 2];
      sum = __builtin_amdgcn_fdot2_f32_bf16(packed, bf16x2(1.0f), sum, false);
      p[i / 8][i % 8] = packed[0];
      p[i / 8][i % 8 + 1] = packed[1];
    }
    if constexpr (kReturnsLse) row_sum += sums[0] + sums[1];
    rounded_row_sum += rounded[0] + rounded[1];
  }

  // The whole of it. `filled` and `free` are both the workgroup's LDS: without the promise that
  // they do not alias, the compiler makes each read wait for all loads in flight. What keeps them
  // apart is the ring: a stage reads tiles i and i-1 and loads tile i+3 of K and i+2 of V.
  __attribute__((device)) void run(const Arguments &a, const lds_byte *__restrict filled,
                                   lds_byte *__restrict free) {
    const int thread = __builtin_amdgcn_workitem_id_x(), lane = thread % 64, half = lane / 32;
    const int wave = __builtin_amdgcn_readfirstlane(thread / 64);
    const int m_blocks = (a.seqlen_q + kBlockM - 1) / kBlockM;
    // With a mask: of a batch entry the longest blocks of all heads, then the next longest, so that
    // each XCD, to which workgroups go in turn, gets some of all lengths (docs/cycle-model.md).
    // Without: the blocks of a head, which share its keys, then the next head.
    const int place = __builtin_amdgcn_workgroup_id_x();
    const int head = (kIsCausal ? place : place / m_blocks) % a.nheads;
    const int rank = (kIsCausal ? place / a.nheads : place) % m_blocks;
    const int m_block = kIsCausal ? m_blocks - 1 - rank : rank;
    const int batch = place / m_blocks / a.nheads;
    const int head_k = head / a.group_size;
    const int first_row = m_block * kBlockM;
    const int row = first_row + wave * kRows + lane % 32;
    const int row_read = row < a.seqlen_q ? row : a.seqlen_q - 1;
    const int shift = a.seqlen_k - a.seqlen_q;

    int full_keys = a.seqlen_k, all_keys = a.seqlen_k;  // seen by the first row; by any row
    last_key = a.seqlen_k - 1;
    if (kIsCausal) {
      const int end_row = first_row + kBlockM < a.seqlen_q ? first_row + kBlockM : a.seqlen_q;
      full_keys = first_row + shift + 1;
      all_keys = end_row + shift;
      last_key = row + shift;
    }
    last_key -= 4 * half;
    const int full_end = full_keys > 0 ? full_keys / kBlockN : 0;
    const int end = all_keys > 0 ? (all_keys + kBlockN - 1) / kBlockN : 0;

    // Scores are compared before they are scaled, so a negative scale moves into Q.
    scale_log2 = __builtin_fmaxf(__builtin_fabsf(a.scale_log2), 0x1p-100f);
    const unsigned flip = a.scale_log2 < 0.0f ? 0x80008000u : 0u;
    const __bf16 *q_row = a.q + batch * a.stride_qb + head * a.stride_qh + row_read * a.stride_qs;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      u32x4 bits = *reinterpret_cast<const u32x4 *>(q_row + step * 16 + half * 8);
      q[step] = __builtin_bit_cast(bf16x8, bits ^ flip);
    }
    reference = -0x1.fffffep127f;
    row_sum = rounded_row_sum = 0.0f;
#pragma unroll
    for (int block = 0; block < kBlocksV; ++block) acc_o[block] = f32x16(0.0f);

    if (end > 0) {
      const int tile_row = 8 * wave + lane / 8;
      Loads<kHeadDim> loads{Keys(a.k + batch * a.stride_kb + head_k * a.stride_kh, a.stride_ks,
                                 a.seqlen_k, wave, lane, swizzle_k(tile_row)),
                            Values(a.v + batch * a.stride_vb + head_k * a.stride_vh, a.stride_vs,
                                   a.seqlen_k, wave, lane, swizzle_v(tile_row)),
                            free, free};
      place_lanes(lane);
      walk(loads, filled, free, wave, full_end, end);
    }
    finish(a, row, batch, head, half);
  }

  ZYFA_DEVICE void place_lanes(int lane) {
    const int half = lane / 32, key = lane % 32;
#pragma unroll
    for (int step = 0; step < 4; ++step)
      k_lane[step] = key * kPartBytes + ((2 * step + half) ^ swizzle_k(key)) * 16;
    // a transposing read: per 16 lanes 4 keys and 16 columns, 4 columns of a key from each lane
    const int quarter = lane % 16, row = 4 * half + quarter / 4, columns = lane / 16 % 2;
#pragma unroll
    for (int block = 0; block < 2; ++block)
      v_lane[block] = row * kPartBytes +
                      ((4 * block + 2 * columns + quarter % 4 / 2) ^ swizzle_v(row)) * 16 +
                      quarter % 2 * 8;
  }

  ZYFA_DEVICE void walk(Loads<kHeadDim> &loads, const lds_byte *filled, lds_byte *free, int wave,
                        int full_end, int end) {
    constexpr int kValuesBegin = kSlots * Keys::kTileBytes;
    constexpr int kAll = kProducts + kScores;
    auto key_slot = [](int tile) { return tile % kSlots * Keys::kTileBytes; };
    auto value_slot = [](int tile) { return kValuesBegin + tile % kSlots * Values::kTileBytes; };
    lds_byte *const mine = free + wave * kPieceBytes;
    auto aim = [&](int tile) __attribute__((always_inline)) {
      loads.to_keys = mine + key_slot(tile + 3);
      loads.to_values = mine + value_slot(tile + 2);
    };

    loads.keys.load(mine + key_slot(0));
    loads.keys.load(mine + key_slot(1));
    loads.values.load(mine + value_slot(0));
    loads.keys.load(mine + key_slot(2));
    loads.values.load(mine + value_slot(1));
    wait_for_loads<Loads<kHeadDim>::kCount>();
    meet();
    const bool is_late = wave >= kWaves / 2;
    if (is_late) meet();

    aim(0);
    read_first<kProducts, kAhead, kAll>(filled, filled + key_slot(0));
    multiply<kProducts, kAll, 0>(filled, filled + key_slot(0), loads);
    meet();
    vector_stage<true>(filled + value_slot(0), 0);
    int i = 1;
    auto both_stages = [&]<bool kIsMasked>() __attribute__((always_inline)) {
      const int old_values = value_slot(i - 1), new_keys = key_slot(i);
      aim(i);
      __builtin_amdgcn_s_setprio(1);
      meet();
      multiply<0, kAll, -kProducts>(filled + old_values, filled + new_keys, loads);
      __builtin_amdgcn_s_setprio(0);
      meet();
      vector_stage<kIsMasked>(filled + value_slot(i), i);
    };
    for (; i < full_end; ++i) both_stages.template operator()<false>();
    for (; i < end; ++i) both_stages.template operator()<true>();
    meet();
    multiply<0, kProducts>(filled + value_slot(end - 1), filled, loads);
    wait_for_loads<0>();  // those of tiles that do not exist
    if (!is_late) meet();
  }

  // Probabilities of tile i, and the first operands of the next stage. A stage's loads are waited
  // for at the end of the next tile's vector stage: what may be in flight there is that tile's own.
  template <bool kIsMasked>
  ZYFA_DEVICE void vector_stage(const lds_byte *next, int n_block) {
    if (kIsMasked) mask(n_block);
    soften();
    __builtin_amdgcn_sched_barrier(0);
    read_first<0, kAhead, kProducts>(next, next);
    wait_for_loads<Loads<kHeadDim>::kCount>();
  }

  static ZYFA_DEVICE float over_both_halves(float sum) {
    auto halves = __builtin_amdgcn_permlane32_swap(as_bits(sum), as_bits(sum), false, false);
    return as_float(halves[0]) + as_float(halves[1]);
  }

  // O / L and the log-sum-exp. A lane has columns 0-3 and 8-11, its other half 4-7 and 12-15; after
  // the swap each has 8 neighbours.
  ZYFA_DEVICE void finish(const Arguments &a, int row, int batch, int head, int half) {
    const float rounded = over_both_halves(rounded_row_sum);
    const float inverse = rounded == 0.0f ? 0.0f : 1.0f / rounded;
    __bf16 *o_row = a.o + batch * a.stride_ob + head * a.stride_oh + row * a.stride_os;
#pragma unroll
    for (int i = 0; i < kHeadDimV / 16; ++i) {
      unsigned packed[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        f32x2 pair = {acc_o[i / 2][i % 2 * 8 + 2 * j] * inverse,
                      acc_o[i / 2][i % 2 * 8 + 2 * j + 1] * inverse};
        packed[j] = __builtin_bit_cast(unsigned, __builtin_convertvector(pair, bf16x2));
      }
      auto first = __builtin_amdgcn_permlane32_swap(packed[0], packed[2], false, false);
      auto second = __builtin_amdgcn_permlane32_swap(packed[1], packed[3], false, false);
      u32x4 eight = {first[0], second[0], first[1], second[1]};
      if (row < a.seqlen_q) *reinterpret_cast<u32x4 *>(o_row + 16 * i + 8 * half) = eight;
    }
    if constexpr (kReturnsLse) {
      const float total = over_both_halves(row_sum);
      constexpr float kLn2 = 0.693147180559945309f;
      const float lse = (reference + __builtin_amdgcn_logf(total)) * kLn2;
      if (half == 0 && row < a.seqlen_q)
        a.lse[(static_cast<i64>(batch) * a.nheads + head) * a.seqlen_q + row] =
            total == 0.0f ? -__builtin_inff() : lse;
    }
  }
};

}  // namespace zyfa

// One object file is one instance: its name is built from the settings.
#define ZYFA_JOIN(headdim, kind) attention_forward_bf16_d##headdim##_##kind
#define ZYFA_NAME(headdim, kind) ZYFA_JOIN(headdim, kind)

#if ZYFA_CAUSAL && ZYFA_LSE
#define ZYFA_KIND causal_lse
#elif ZYFA_CAUSAL
#define ZYFA_KIND causal
#elif ZYFA_LSE
#define ZYFA_KIND full_lse
#else
#define ZYFA_KIND full
#endif

// 512 threads; two waves a SIMD, so that each has 256 registers.
#define ZYFA_KERNEL                                                        \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(512, 512), \
                            amdgpu_waves_per_eu(2, 2))) void

using zyfa::i64;

ZYFA_KERNEL ZYFA_NAME(ZYFA_HEADDIM,
                      ZYFA_KIND)(const __bf16 *q, const __bf16 *k, const __bf16 *v, __bf16 *o,
                                 float *lse, float scale_log2, i64 stride_qb, i64 stride_qs,
                                 i64 stride_qh, i64 stride_kb, i64 stride_ks, i64 stride_kh,
                                 i64 stride_vb, i64 stride_vs, i64 stride_vh, i64 stride_ob,
                                 i64 stride_os, i64 stride_oh, int nheads, int group_size,
                                 int seqlen_q, int seqlen_k) {
  using Kernel = zyfa::Forward<ZYFA_HEADDIM, ZYFA_CAUSAL, ZYFA_LSE>;
  __attribute__((shared, aligned(1024))) static char lds[Kernel::kLdsBytes];
  const zyfa::Arguments arguments = {
      q,         k,         v,         o,          lse,       scale_log2, stride_qb, stride_qs,
      stride_qh, stride_kb, stride_ks, stride_kh,  stride_vb, stride_vs,  stride_vh, stride_ob,
      stride_os, stride_oh, nheads,    group_size, seqlen_q,  seqlen_k};
  Kernel kernel;
  // zero, but the compiler learns it too late to see that both are one array
  const unsigned none = Kernel::kLdsBytes - __builtin_amdgcn_groupstaticsize();
  kernel.run(arguments, (zyfa::lds_byte *)lds + none, (zyfa::lds_byte *)lds);
}
