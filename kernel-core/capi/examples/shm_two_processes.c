/* Two ranks, each a process of its own, over shared memory that both have mapped: no table of functions at all. */
#define _GNU_SOURCE
#include "veriep.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, BS = 4, K = 2, EXPERTS = 4, H = 64, ROW = 2 * H, ROUNDS = 200 };

/* A rank's part of the shared memory. A process maps each part wherever it lands, as two processes would. */
static veriep_peer map(int file, uint32_t rank, const veriep_sizes *sizes) {
  uint64_t len = sizes->state + sizes->window;
  unsigned char *base = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)(rank * len));
  if (base == MAP_FAILED) exit(2);
  return (veriep_peer){{base, sizes->state}, {base + sizes->state, sizes->window}, {NULL, 0}};
}

static void drive(veriep_core *core, const veriep_context *cx, uint32_t operator) {
  int32_t said = veriep_core_begin(core, operator);
  if (said == VERIEP_OK)
    while ((said = veriep_core_step(core, cx, 1000, NULL)) > 0)
      if (said == VERIEP_PENDING) sched_yield();
  if (said == VERIEP_OK) return;
  fprintf(stderr, "refused: %d %s\n", said, cx->text);
  exit(2);
}

/* All of a rank: tokens go to their experts, which return them as they are, and two halves are a token again. */
static int rank_process(const veriep_shape *shape, uint32_t rank, int file) {
  veriep_sizes sizes;
  char text[256] = "";
  if (veriep_shape_sizes(shape, rank, &sizes)) return 2;
  veriep_peer peers[RANKS];
  for (uint32_t to = 0; to < RANKS; to++) peers[to] = map(file, to, &sizes);
  veriep_mapped mapped = {.peers = peers, .peers_len = RANKS};
  for (uint32_t n = 0; n < VERIEP_TENSORS; n++)
    mapped.outputs[n] = (veriep_segment){calloc(sizes.outputs[n] / 8 + 1, 8), sizes.outputs[n]};
  uint16_t x[BS * H];
  int32_t ids[BS * K];
  float weights[BS * K];
  veriep_inputs inputs = {.x = {x, sizeof x}, .expert_ids = {ids, sizeof ids}, .expert_scales = {weights, sizeof weights}};
  const veriep_segment *out = mapped.outputs;
  veriep_operands operands = {.y = {out[VERIEP_EXPAND_X].base, out[VERIEP_EXPAND_X].len},
                              .assist_info = {out[VERIEP_ASSIST_INFO].base, out[VERIEP_ASSIST_INFO].len},
                              .ep_recv_counts = {out[VERIEP_EP_RECV_COUNTS].base, sizes.ep_recv_counts}};
  veriep_context cx = {.shape = shape, .mapped = &mapped, .inputs = &inputs, .operands = &operands,
                       .words = calloc(sizes.scratch_words, 4), .words_len = sizes.scratch_words,
                       .bytes = calloc(sizes.scratch_bytes, 1), .bytes_len = sizes.scratch_bytes,
                       .text = text, .text_len = sizeof text};
  veriep_core core;
  if (veriep_core_new(&core, shape, rank, 0, 0, NULL, VERIEP_CAN_LEND, text, sizeof text)) return 2;
  for (uint32_t round = 0; round < ROUNDS; round++) {
    for (uint32_t i = 0; i < BS * H; i++) x[i] = (uint16_t)(0x3F80 + (round * 5 + rank * 3 + i) % 128);
    for (uint32_t i = 0; i < BS * K; i++) ids[i] = (int32_t)((round + rank + i / K + i % K * 3) % EXPERTS), weights[i] = 0.5f;
    inputs.call = round;
    if (veriep_inputs_check(shape, rank, VERIEP_DISPATCH, &inputs, text, sizeof text)) return 2;
    if (veriep_inputs_check(shape, rank, VERIEP_COMBINE, &inputs, text, sizeof text)) return 2;
    drive(&core, &cx, VERIEP_DISPATCH);
    drive(&core, &cx, VERIEP_COMBINE);
    if (memcmp(out[VERIEP_X_OUT].base, x, sizeof x)) {
      fprintf(stderr, "rank %u, round %u: a token came back as another\n", rank, round);
      return 1;
    }
  }
  return 0;
}

int main(void) {
  veriep_config config;
  veriep_shape shape;
  veriep_sizes sizes;
  char text[2048];
  if (veriep_config_default(&config, VERIEP_ABI_VERSION)) return 2;
  config.limits = VERIEP_LIMITS_NONE;
  config.ep_world_size = RANKS;
  config.moe_expert_num = EXPERTS;
  config.k = K;
  config.h = H;
  config.bs = BS;
  config.aiv_num = 1;
  config.hccl_buffsize_mb = 2;
  if (veriep_shape_new(&shape, &config, text, sizeof text) || veriep_shape_sizes(&shape, 0, &sizes)) {
    fprintf(stderr, "%s", text);
    return 2;
  }
  /* New shared memory is zero before any rank begins. */
  int file = memfd_create("veriep", 0), failed = 0;
  if (file < 0 || ftruncate(file, (off_t)(RANKS * (sizes.state + sizes.window)))) return 2;
  for (uint32_t rank = 0; rank < RANKS; rank++)
    if (fork() == 0) return rank_process(&shape, rank, file);
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    int status = 1;
    wait(&status);
    failed |= status;
  }
  printf("%d rounds of two processes: %s\n", ROUNDS, failed ? "wrong" : "every token came back");
  return failed ? 1 : 0;
}
