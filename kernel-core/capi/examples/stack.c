/* How much stack calls take: each runs on a thread whose stack is painted, and the paint that is left is counted. */
#define _POSIX_C_SOURCE 200809L
#include "veriep.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STACK = 1 << 18, PAINT = 0xA5 };

static veriep_config config;
static veriep_shape shape;
static veriep_area areas[64];
static veriep_fingerprints fingerprints;
static veriep_sizes sizes;
static veriep_core core;
static veriep_context cx;
static char text[4096];
static int32_t said;

static void *nothing(void *argument) { return argument; }
static void *make_shape(void *argument) {
  said = veriep_shape_new(&shape, &config, text, sizeof text);
  return argument;
}
static void *list_areas(void *argument) {
  size_t count;
  said = veriep_shape_areas(&shape, NULL, 0, areas, sizeof areas / sizeof *areas, &count);
  return argument;
}
static void *make_fingerprints(void *argument) {
  said = veriep_fingerprints_new(&fingerprints, &shape, NULL, "ep", NULL);
  return argument;
}
/* A rank alone runs an operator to its end. */
static void *step(void *argument) {
  said = veriep_core_begin(&core, (uint32_t)*(int *)argument);
  while (said == VERIEP_OK && (said = veriep_core_step(&core, &cx, 100, NULL)) > 0) said = VERIEP_OK;
  return argument;
}

/* Bytes that a call takes, a thread's own beginning included. */
static size_t taken(void *(*call)(void *), void *argument) {
  pthread_attr_t attributes;
  pthread_t thread;
  unsigned char *stack = aligned_alloc(4096, STACK), *deepest = stack;
  memset(stack, PAINT, STACK);
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, stack, STACK);
  if (pthread_create(&thread, &attributes, call, argument) || pthread_join(thread, NULL)) exit(2);
  while (deepest < stack + STACK && *deepest == PAINT) deepest++;
  size_t bytes = (size_t)(stack + STACK - deepest);
  free(stack);
  return bytes;
}

static int is_within(const char *what, size_t bytes, size_t most) {
  printf("stack of %-20s %6zu bytes, at most %zu\n", what, bytes, most);
  if (said) fprintf(stderr, "%s: %d %s\n", what, said, text);
  return !said && bytes <= most;
}

int main(void) {
  int operators[] = {VERIEP_DISPATCH, VERIEP_COMBINE}, good = 1;
  size_t thread = taken(nothing, NULL);
  for (uint32_t comm_alg = VERIEP_FULLMESH_V1; comm_alg <= VERIEP_A2_HIERARCHY; comm_alg++) {
    if (veriep_config_default(&config, VERIEP_ABI_VERSION)) return 2;
    config.limits = VERIEP_LIMITS_NONE;
    config.comm_alg = comm_alg;
    config.hccl_buffsize_mb = 4000;
    good &= is_within("veriep_shape_new", taken(make_shape, NULL) - thread, 6144);
    good &= is_within("veriep_shape_areas", taken(list_areas, NULL) - thread, 2048);
    good &= is_within("veriep_fingerprints", taken(make_fingerprints, NULL) - thread, 4096);
  }
  /* One rank of one core needs nobody. */
  if (veriep_config_default(&config, VERIEP_ABI_VERSION)) return 2;
  config.limits = VERIEP_LIMITS_NONE;
  config.ep_world_size = 1, config.moe_expert_num = 2, config.k = 2, config.h = 64, config.bs = 2, config.aiv_num = 1;
  config.hccl_buffsize_mb = 4;
  make_shape(NULL);
  if (said || veriep_shape_sizes(&shape, 0, &sizes)) return 2;
  uint16_t x[128] = {0};
  int32_t ids[4] = {0, 1, 1, 0};
  float weights[4] = {0.5f, 0.5f, 0.5f, 0.5f};
  veriep_peer own = {{calloc(sizes.state, 1), sizes.state}, {calloc(sizes.window, 1), sizes.window}, {NULL, 0}};
  veriep_mapped mapped = {.peers = &own, .peers_len = 1};
  for (uint32_t n = 0; n < VERIEP_TENSORS; n++)
    mapped.outputs[n] = (veriep_segment){calloc(sizes.outputs[n] / 8 + 1, 8), sizes.outputs[n]};
  veriep_segment *out = mapped.outputs;
  veriep_inputs inputs = {.x = {x, sizeof x}, .expert_ids = {ids, sizeof ids}, .expert_scales = {weights, sizeof weights}};
  veriep_operands operands = {.y = {out[VERIEP_EXPAND_X].base, out[VERIEP_EXPAND_X].len},
                              .assist_info = {out[VERIEP_ASSIST_INFO].base, out[VERIEP_ASSIST_INFO].len},
                              .ep_recv_counts = {out[VERIEP_EP_RECV_COUNTS].base, sizes.ep_recv_counts}};
  cx = (veriep_context){.shape = &shape, .mapped = &mapped, .inputs = &inputs, .operands = &operands,
                        .words = calloc(sizes.scratch_words, 4), .words_len = sizes.scratch_words,
                        .bytes = calloc(sizes.scratch_bytes, 1), .bytes_len = sizes.scratch_bytes,
                        .text = text, .text_len = sizeof text};
  if (veriep_core_new(&core, &shape, 0, 0, 0, NULL, VERIEP_CAN_LEND, text, sizeof text)) return 2;
  good &= is_within("a step of dispatch", taken(step, &operators[0]) - thread, 5120);
  good &= is_within("a step of combine", taken(step, &operators[1]) - thread, 5120);
  return good ? 0 : 1;
}
