/* Intel's matrix registers (AMX: tiles and bfloat16 products) for a CPU with AVX-512 that lacks them: each instruction is
   carried out by the handler of its "illegal instruction" signal, some 2 µs each. `tests/instructions.py` compiles and preloads it.

   As on the CPU: nothing works before Linux was asked for the state (arch_prctl), registers belong to a thread and begin without
   a layout, rows outside the layout are not touched, products flush what is denormal. A wrong use ends the process with a
   message. Source: Intel's "Software Developer's Manual", volume 2, TDPBF16PS, LDTILECFG, TILELOADD, TILESTORED. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <immintrin.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ucontext.h>
#include <unistd.h>

enum { ARCH_PRCTL = 158, REQUEST_STATE = 0x1023, TILE_DATA = 18, WIDE = 64 };

typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} Layout;
_Static_assert(sizeof(Layout) == 64, "as in memory");

static __thread Layout layout;
static __thread uint8_t tiles[8][16][WIDE] __attribute__((aligned(64)));
static volatile int permitted;
static int (*installed)(int, const struct sigaction *, struct sigaction *);

static void refuse(const char *what) {
    char line[160];
    int size = snprintf(line, sizeof line, "emulated matrix registers: %s\n", what);
    if (write(2, line, size) < 0) _exit(134);
    abort();
}

static void check(int tile) {
    if (layout.palette != 1) refuse("used without a layout");
    if (tile > 7 || !layout.rows[tile] || !layout.bytes[tile]) refuse("a register that the layout leaves out");
}

static void configure(const uint8_t *from) {
    Layout given;
    memcpy(&given, from, sizeof given);
    if (given.palette > 1 || given.start) refuse("no such palette");
    for (int n = 0; n < 14; n++)
        if (given.reserved[n]) refuse("a layout with reserved bytes");
    for (int n = 0; n < 16; n++)
        if (given.palette && (given.rows[n] > 16 || given.bytes[n] > WIDE || (n > 7 && (given.rows[n] || given.bytes[n]))))
            refuse("a register larger than 16 rows of 64 bytes");
    layout = given;
    if (!given.palette) memset(&layout, 0, sizeof layout);
    memset(tiles, 0, sizeof tiles);
}

static void load(int tile, const uint8_t *from, int64_t stride) {
    check(tile);
    memset(tiles[tile], 0, sizeof tiles[tile]);
    for (int row = 0; row < layout.rows[tile]; row++) memcpy(tiles[tile][row], from + row * stride, layout.bytes[tile]);
}

static void store(int tile, uint8_t *to, int64_t stride) {
    check(tile);
    for (int row = 0; row < layout.rows[tile]; row++) memcpy(to + row * stride, tiles[tile][row], layout.bytes[tile]);
}

static __m512 first(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
static __m512 second(__m512i pairs) { return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xffff0000))); }

/* sums += left · right, of pairs of bfloat16: the first ones and the second ones are summed apart */
static void products(int sums, int left, int right) {
    check(sums), check(left), check(right);
    if (sums == left || sums == right || left == right) refuse("a product of a register with itself");
    int depth = layout.bytes[left] / 4;
    if (layout.rows[left] != layout.rows[sums] || layout.bytes[right] != layout.bytes[sums] || layout.rows[right] != depth)
        refuse("a product of registers whose sizes do not fit");
    _mm_setcsr(0x9fc0); /* denormals are zero, round to nearest; the signal's return restores the caller's */
    for (int row = 0; row < layout.rows[sums]; row++) {
        __m512 one = _mm512_setzero_ps(), two = one;
        for (int k = 0; k < depth; k++) {
            int32_t pair;
            memcpy(&pair, tiles[left][row] + 4 * k, 4);
            __m512i a = _mm512_set1_epi32(pair), b = _mm512_load_si512(tiles[right][k]);
            one = _mm512_fmadd_ps(first(a), first(b), one);
            two = _mm512_fmadd_ps(second(a), second(b), two);
        }
        __m512 more = _mm512_add_ps(_mm512_load_ps(tiles[sums][row]), _mm512_add_ps(one, two));
        _mm512_store_ps(tiles[sums][row], _mm512_maskz_mov_ps((1u << layout.bytes[sums] / 4) - 1, more));
    }
}

static int64_t value(greg_t *registers, int number) {
    static const int order[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return registers[order[number]];
}

/* C4, then R' X' B' and map 2, then W vvvv' L pp, the operation, its registers or address. Whether it was one of ours. */
static int carry_out(greg_t *registers) {
    const uint8_t *code = (const uint8_t *)registers[REG_RIP];
    if (code[0] != 0xc4 || (code[1] & 0x1f) != 2 || (code[2] & 0x84)) return 0;
    int prefix = code[2] & 3, operation = code[3], mode = code[4] >> 6, reg = code[4] >> 3 & 7, rm = code[4] & 7;
    int x = ~code[1] >> 6 & 1, base_high = ~code[1] >> 5 & 1, third = ~code[2] >> 3 & 15, size = 5;
    if (operation != 0x49 && operation != 0x4b && operation != 0x5c) return 0;
    if (!permitted) refuse("Linux was not asked for their state");
    int64_t address = 0, stride = 0;
    if (mode != 3) {
        int base = rm + 8 * base_high;
        if (rm == 4) {
            int sib = code[size++], index = (sib >> 3 & 7) + 8 * x;
            base = (sib & 7) + 8 * base_high;
            stride = index == 4 ? 0 : value(registers, index) << (sib >> 6);
        }
        int32_t wide = 0;
        if (mode == 0 && (base & 7) == 5) return 0; /* no base, or from the instruction: nothing of ours is so */
        if (mode == 1) wide = (int8_t)code[size++];
        if (mode == 2) memcpy(&wide, code + size, 4), size += 4;
        address = value(registers, base) + wide;
    }
    void *memory = (void *)address;
    if (operation == 0x49 && mode == 3 && prefix == 3) check(reg), memset(tiles[reg], 0, sizeof tiles[reg]);
    else if (operation == 0x49 && mode == 3 && prefix == 0) memset(&layout, 0, sizeof layout), memset(tiles, 0, sizeof tiles);
    else if (operation == 0x49 && mode != 3 && prefix == 0) configure(memory);
    else if (operation == 0x49 && mode != 3 && prefix == 1) memcpy(memory, &layout, sizeof layout);
    else if (operation == 0x4b && mode != 3 && (prefix == 3 || prefix == 1)) load(reg, memory, stride);
    else if (operation == 0x4b && mode != 3 && prefix == 2) store(reg, memory, stride);
    else if (operation == 0x5c && mode == 3 && prefix == 2) products(reg, rm, third);
    else return 0;
    registers[REG_RIP] += size;
    return 1;
}

static void handle(int number, siginfo_t *info, void *context) {
    (void)info;
    if (carry_out(((ucontext_t *)context)->uc_mcontext.gregs)) return;
    struct sigaction as_before = {.sa_handler = SIG_DFL};
    installed(number, &as_before, NULL); /* on return, the instruction ends the process */
}

__attribute__((constructor)) static void begin(void) {
    installed = dlsym(RTLD_NEXT, "sigaction");
    struct sigaction ours = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_NODEFER};
    installed(SIGILL, &ours, NULL);
}

/* nobody else's handler takes the signal (Python's faulthandler would) */
int sigaction(int number, const struct sigaction *given, struct sigaction *before) {
    if (!installed) installed = dlsym(RTLD_NEXT, "sigaction");
    if (number != SIGILL) return installed(number, given, before);
    if (before) memset(before, 0, sizeof *before);
    return 0;
}

long syscall(long number, ...) {
    static long (*others)(long, ...);
    long given[6];
    va_list list;
    va_start(list, number);
    for (int n = 0; n < 6; n++) given[n] = va_arg(list, long);
    va_end(list);
    if (number == ARCH_PRCTL && given[0] == REQUEST_STATE && given[1] == TILE_DATA) {
        permitted = 1;
        return 0;
    }
    if (!others) others = dlsym(RTLD_NEXT, "syscall");
    return others(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
