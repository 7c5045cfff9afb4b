/* kernels/cuda/cu_digest.cu - XXH3's 64-bit digest of bytes on the device, a block per item: a page, as
 * kv_digest.c has it, or a row of logits. The values are those of libxxhash, for every length and seed.
 *
 * Long input goes in pieces of 1024 bytes: what a piece adds to the eight sums does not depend on them, so the
 * warps add up pieces beside each other, and one warp then scrambles the sums piece by piece.
 * Source: xxHash's specification, section XXH3. */
#include "kernels/cuda/cu_block.h"

#define THREADS      256
#define N_WARPS      (THREADS / CU_WARP)
#define PIECE        1024u /* bytes */
#define STRIPE       64u
#define LANES        8u
#define PIECES       64u /* of one round, whose sums are in shared memory */
#define SECRET_BYTES 192u
#define SHORT_MAX    240u

#define PRIME32_1  0x9E3779B1u
#define PRIME32_2  0x85EBCA77u
#define PRIME32_3  0xC2B2AE3Du
#define PRIME64_1  0x9E3779B185EBCA87u
#define PRIME64_2  0xC2B2AE3D27D4EB4Fu
#define PRIME64_3  0x165667B19E3779F9u
#define PRIME64_4  0x85EBCA77C2B2AE63u
#define PRIME64_5  0x27D4EB2F165667C5u
#define PRIME_MX_1 0x165667919E3779F9u
#define PRIME_MX_2 0x9FB21C651E98DF25u

CU_CONST uint64_t secret[SECRET_BYTES / 8] = {
    0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu, 0x1f67b3b7a4a44072u, 0x78e5c0cc4ee679cbu,
    0x2172ffcc7dd05a82u, 0x8e2443f7744608b8u, 0x4c263a81e69035e0u, 0xcb00c391bb52283cu, 0xa32e531b8b65d088u,
    0x4ef90da297486471u, 0xd8acdea946ef1938u, 0x3f349ce33f76faa8u, 0x1d4f0bc7c7bbdcf9u, 0x3159b4cd4be0518au,
    0x647378d9c97e9fc8u, 0xc3ebd33483acc5eau, 0xeb6313faffa081c5u, 0x49daf0b751dd0d17u, 0x9e68d429265516d3u,
    0xfca1477d58be162bu, 0xce31d07ad1b8f88fu, 0x280416958f3acb45u, 0x7e404bbbcafbd7afu};

/* Bytes [at, at + 8) of the secret as a seed makes it of long input: words are added to and subtracted from in
 * turn. */
CU_FN uint64_t secret_at(uint32_t at, uint64_t seed)
{
    uint32_t w = at / 8, shift = at % 8 * 8;
    uint64_t low = secret[w] + (w % 2 ? 0 - seed : seed);
    if (shift == 0)
        return low;
    w++;
    return low >> shift | (secret[w] + (w % 2 ? 0 - seed : seed)) << (64 - shift);
}

CU_FN uint64_t read32(const uint8_t *p)
{
    if ((uintptr_t)p % 4 == 0)
        return *(const uint32_t *)p;
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

CU_FN uint64_t read64(const uint8_t *p)
{
    if ((uintptr_t)p % 8 == 0)
        return *(const uint64_t *)p;
    return read32(p) | read32(p + 4) << 32;
}

CU_FN uint64_t rotate(uint64_t x, uint32_t bits)
{
    return x << bits | x >> (64 - bits);
}

CU_FN uint64_t swap64(uint64_t x)
{
    x = (x & 0x00ff00ff00ff00ffu) << 8 | (x >> 8 & 0x00ff00ff00ff00ffu);
    x = (x & 0x0000ffff0000ffffu) << 16 | (x >> 16 & 0x0000ffff0000ffffu);
    return x << 32 | x >> 32;
}

CU_FN uint64_t fold(uint64_t x, uint64_t y)
{
    return x * y ^ cu_mul_high64(x, y);
}

CU_FN uint64_t avalanche(uint64_t h)
{
    h = (h ^ h >> 37) * PRIME_MX_1;
    return h ^ h >> 32;
}

CU_FN uint64_t avalanche_xxh64(uint64_t h)
{
    h = (h ^ h >> 33) * PRIME64_2;
    h = (h ^ h >> 29) * PRIME64_3;
    return h ^ h >> 32;
}

CU_FN uint64_t mix16(const uint8_t *p, uint32_t secret_offset, uint64_t seed)
{
    return fold(read64(p) ^ (secret_at(secret_offset, 0) + seed),
                read64(p + 8) ^ (secret_at(secret_offset + 8, 0) - seed));
}

CU_FN uint64_t digest_to_16(const uint8_t *p, uint32_t n, uint64_t seed)
{
    if (n > 8) {
        uint64_t low = read64(p) ^ ((secret[3] ^ secret[4]) + seed);
        uint64_t high = read64(p + n - 8) ^ ((secret[5] ^ secret[6]) - seed);
        return avalanche(n + swap64(low) + high + fold(low, high));
    }
    if (n >= 4) {
        seed ^= swap64((uint32_t)seed);
        uint64_t h = (read32(p + n - 4) | read32(p) << 32) ^ ((secret[1] ^ secret[2]) - seed);
        h ^= rotate(h, 49) ^ rotate(h, 24);
        h *= PRIME_MX_2;
        h ^= (h >> 35) + n;
        h *= PRIME_MX_2;
        return h ^ h >> 28;
    }
    if (n > 0) {
        uint32_t all = (uint32_t)p[0] << 16 | (uint32_t)p[n / 2] << 24 | p[n - 1] | n << 8;
        return avalanche_xxh64(all ^ (((uint32_t)secret[0] ^ (uint32_t)(secret[0] >> 32)) + seed));
    }
    return avalanche_xxh64(seed ^ secret[7] ^ secret[8]);
}

CU_FN uint64_t digest_to_240(const uint8_t *p, uint32_t n, uint64_t seed)
{
    uint64_t sum = n * PRIME64_1;
    if (n <= 128) {
        for (uint32_t i = (n - 1) / 32 + 1; i-- > 0;) {
            sum += mix16(p + 16 * i, 32 * i, seed);
            sum += mix16(p + n - 16 * (i + 1), 32 * i + 16, seed);
        }
        return avalanche(sum);
    }
    for (uint32_t i = 0; i < 8; i++)
        sum += mix16(p + 16 * i, 16 * i, seed);
    sum = avalanche(sum);
    for (uint32_t i = 8; i < n / 16; i++)
        sum += mix16(p + 16 * i, 16 * (i - 8) + 3, seed);
    return avalanche(sum + mix16(p + n - 16, 136 - 17, seed));
}

/* What stripes [first, n) of a piece, each `step` behind the last, add to sum i; key_at: of stripe 0. */
CU_FN uint64_t stripes_sum(const uint8_t *p, uint32_t first, uint32_t n, uint32_t step, uint32_t i,
                           uint32_t key_at, uint64_t seed)
{
    uint64_t sum = 0;
    for (uint32_t s = first; s < n; s += step) {
        const uint8_t *stripe = p + s * STRIPE;
        uint64_t keyed = read64(stripe + 8 * i) ^ secret_at(key_at + 8 * (s + i), seed);
        sum += (keyed & 0xffffffffu) * (keyed >> 32) + read64(stripe + 8 * (i ^ 1));
    }
    return sum;
}

struct digest_shared {
    uint64_t sums[PIECES][LANES], last[LANES];
};

CU_FN uint64_t first_sum(uint32_t i)
{
    switch (i) {
    case 0:
        return PRIME32_3;
    case 1:
        return PRIME64_1;
    case 2:
        return PRIME64_2;
    case 3:
        return PRIME64_3;
    case 4:
        return PRIME64_4;
    case 5:
        return PRIME32_2;
    case 6:
        return PRIME64_5;
    default:
        return PRIME32_1;
    }
}

/* All threads of the block; the digest is in all of them. */
CU_FN uint64_t digest_long(struct digest_shared *sh, const uint8_t *p, uint64_t n, uint64_t seed)
{
    uint32_t warp = threadIdx.x / CU_WARP, lane = threadIdx.x % CU_WARP, i = lane % LANES;
    uint64_t n_pieces = (n - 1) / PIECE; /* whole ones, each followed by a scramble */
    uint64_t sum = first_sum(i);         /* of thread i < LANES, over the rounds */
    for (uint64_t first = 0; first <= n_pieces; first += PIECES) {
        uint32_t end = n_pieces + 1 - first < PIECES ? (uint32_t)(n_pieces + 1 - first) : PIECES;
        for (uint32_t k = warp; k < end; k += N_WARPS) {
            const uint8_t *piece = p + (first + k) * PIECE;
            uint32_t n_stripes =
                first + k < n_pieces ? PIECE / STRIPE : (uint32_t)((n - 1 - n_pieces * PIECE) / STRIPE);
            uint64_t part = stripes_sum(piece, lane / LANES, n_stripes, CU_WARP / LANES, i, 0, seed);
            part += cu_shfl_xor64(part, 8);
            part += cu_shfl_xor64(part, 16);
            if (lane < LANES)
                sh->sums[k][i] = part;
        }
        cu_sync_block();
        for (uint32_t k = 0; threadIdx.x < LANES && k < end; k++) {
            sum += sh->sums[k][i];
            if (first + k < n_pieces)
                sum = (sum ^ sum >> 47 ^ secret_at(128 + 8 * i, seed)) * PRIME32_1;
        }
        cu_sync_block(); /* the sums are written again */
    }
    if (threadIdx.x < LANES)
        sh->last[i] = sum + stripes_sum(p + n - STRIPE, 0, 1, 1, i, 121, seed);
    cu_sync_block();
    uint64_t h = n * PRIME64_1;
    for (uint32_t k = 0; k < LANES; k += 2)
        h += fold(sh->last[k] ^ secret_at(11 + 8 * k, seed), sh->last[k + 1] ^ secret_at(19 + 8 * k, seed));
    cu_sync_block(); /* last is written again */
    return avalanche(h);
}

CU_FN uint64_t digest_of(struct digest_shared *sh, const uint8_t *p, uint64_t n, uint64_t seed)
{
    if (n > SHORT_MAX)
        return digest_long(sh, p, n, seed);
    return n <= 16 ? digest_to_16(p, (uint32_t)n, seed) : digest_to_240(p, (uint32_t)n, seed);
}

/* The strips of a part of a page, chained by their seeds, as kv_digest.c has them. */
CU_KERNEL(digest_kernel, struct cu_digest_args, THREADS, 1)
{
    struct digest_shared *sh = CU_SHARED(struct digest_shared);
    const struct cu_digest_item *it = &a->items[blockIdx.x];
    const uint8_t *p = (const uint8_t *)it->p;
    uint64_t h = it->seed;
    for (uint32_t s = 0; s < it->n_strips; s++)
        for (uint32_t k = 0; k < it->n_parts; p += it->part_stride[k++])
            h = digest_of(sh, p, it->part_bytes[k], h);
    if (threadIdx.x == 0)
        *it->out = h;
}

void cu_digest(struct cu_stream *s, uint32_t n, const struct cu_digest_args *a)
{
    struct cu_launch l = {"digest", (const void *)digest_kernel,  n, 1,
                          THREADS,  sizeof(struct digest_shared), a, sizeof *a};
    cu_launch(s, &l);
}
