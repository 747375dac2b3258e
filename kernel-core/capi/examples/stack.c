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
static veriep_agent agent;
static int has_agent;
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
/* A rank alone runs what was begun to its end. */
static void drive(void) {
  if (said) return;
  while ((said = veriep_core_step(&core, &cx, 100, NULL)) > 0)
    if (has_agent && (said = veriep_agent_step(&agent, &cx, 100, NULL)) < 0) break;
}
static void *step(void *argument) {
  said = veriep_core_begin(&core, (uint32_t)*(int *)argument);
  drive();
  return argument;
}
/* The same in two halves. */
static void *step_halves(void *argument) {
  said = veriep_core_send(&core, (uint32_t)*(int *)argument);
  drive();
  if (!said) said = veriep_core_resume(&core);
  drive();
  return argument;
}
static veriep_segment memory(uint64_t bytes) {
  return (veriep_segment){calloc(bytes / 8 + 1, 8), bytes};
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
  printf("stack of %-29s %6zu bytes, at most %zu\n", what, bytes, most);
  if (said) fprintf(stderr, "%s: %d %s\n", what, said, text);
  return !said && bytes <= most;
}

/* One rank of one core needs no other, but its agent. */
static int steps_are_within(const char *what, uint32_t comm_alg, uint32_t receive) {
  int operators[] = {VERIEP_DISPATCH, VERIEP_COMBINE}, good = 1;
  size_t thread = taken(nothing, NULL);
  if (veriep_config_default(&config, VERIEP_ABI_VERSION)) exit(2);
  config.limits = VERIEP_LIMITS_NONE;
  config.comm_alg = comm_alg;
  config.ep_world_size = config.server_ranks = config.aiv_num = 1;
  config.moe_expert_num = config.k = config.bs = 2, config.h = 64, config.hccl_buffsize_mb = 200;
  make_shape(NULL);
  if (said || veriep_shape_sizes(&shape, 0, &sizes)) exit(2);
  uint16_t x[128] = {0};
  int32_t ids[4] = {0, 1, 1, 0};
  float weights[4] = {0.5f, 0.5f, 0.5f, 0.5f};
  veriep_peer own = {memory(sizes.state), memory(sizes.window), memory(sizes.window_out)};
  veriep_mapped mapped = {.peers = &own, .peers_len = 1};
  for (uint32_t n = 0; n < VERIEP_TENSORS; n++) mapped.outputs[n] = memory(sizes.outputs[n]);
  veriep_bytes out[VERIEP_TENSORS];
  for (uint32_t n = 0; n < VERIEP_TENSORS; n++) out[n] = (veriep_bytes){mapped.outputs[n].base, mapped.outputs[n].len};
  out[VERIEP_EP_RECV_COUNTS].len = sizes.ep_recv_counts;
  veriep_inputs inputs = {.x = {x, sizeof x}, .expert_ids = {ids, sizeof ids}, .expert_scales = {weights, sizeof weights}};
  veriep_operands operands = {.y = out[VERIEP_EXPAND_X], .assist_info = out[VERIEP_ASSIST_INFO],
                              .expand_scales = out[VERIEP_EXPAND_SCALES], .ep_recv_counts = out[VERIEP_EP_RECV_COUNTS],
                              .expand_idx = out[VERIEP_EXPAND_IDX], .sent_rows = out[VERIEP_SENT_ROWS],
                              .row_table = out[VERIEP_ROW_TABLE]};
  veriep_choices choices = veriep_choices_default();
  choices.receive = receive;
  cx = (veriep_context){.shape = &shape, .mapped = &mapped, .inputs = &inputs, .operands = &operands,
                        .words = calloc(sizes.scratch_words, 4), .words_len = sizes.scratch_words,
                        .bytes = calloc(sizes.scratch_bytes, 1), .bytes_len = sizes.scratch_bytes,
                        .text = text, .text_len = sizeof text};
  uint32_t can = VERIEP_CAN_LEND | VERIEP_CAN_PEER_BYTES | VERIEP_CAN_SEND;
  if (veriep_core_new(&core, &shape, 0, 0, 0, &choices, can, text, sizeof text)) exit(2);
  has_agent = veriep_has_agents(&shape, &choices) == 1;
  if (has_agent && veriep_agent_new(&agent, &shape, 0, choices.order)) exit(2);
  for (int i = 0; i < 2; i++) {
    char name[64];
    snprintf(name, sizeof name, "%s, %s", i ? "combine" : "dispatch", what);
    good &= is_within(name, taken(step, &operators[i]) - thread, 5120);
    snprintf(name, sizeof name, "%s halves, %s", i ? "combine" : "dispatch", what);
    good &= is_within(name, taken(step_halves, &operators[i]) - thread, 5248);
  }
  return good;
}

int main(void) {
  int good = 1;
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
  good &= steps_are_within("A3", VERIEP_FULLMESH_V1, VERIEP_RECEIVE_COPY);
  good &= steps_are_within("in place", VERIEP_FULLMESH_V1, VERIEP_RECEIVE_IN_PLACE);
  good &= steps_are_within("direct", VERIEP_FULLMESH_V1, VERIEP_RECEIVE_DIRECT);
  good &= steps_are_within("fullmesh_v2", VERIEP_FULLMESH_V2, VERIEP_RECEIVE_COPY);
  good &= steps_are_within("A2", VERIEP_A2_FULLMESH, VERIEP_RECEIVE_COPY);
  good &= steps_are_within("hierarchy", VERIEP_A2_HIERARCHY, VERIEP_RECEIVE_COPY);
  return good ? 0 : 1;
}
