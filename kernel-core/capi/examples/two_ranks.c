/* Two ranks of one core, each on a thread, over memory of this program's own: where to begin.
 *
 *   two_ranks        200 rounds, compared with a plain reference
 *   two_ranks late   the same with rows that land behind the flags that speak for them, which must go wrong
 */
#define _POSIX_C_SOURCE 200809L
#include "veriep.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS = 2, BS = 8, K = 2, EXPERTS = 8, H = 64, ROW = 2 * H, ROUNDS = 200 };

static veriep_shape shape;
static veriep_sizes sizes[RANKS];
static unsigned char *state[RANKS], *window[RANKS], *outputs[RANKS][VERIEP_TENSORS];
static int is_late, wrong[RANKS];

/* A core's view: its rank, and of the twin the row that has not landed. */
struct view {
  uint32_t rank;
  unsigned char *to, row[ROW + 64];
  size_t len;
};

static void land(struct view *view) {
  if (view->to) memcpy(view->to, view->row, view->len);
  view->to = NULL;
}

/* Where `len` bytes of rank `to` lie; null is refused. Outputs are the own rank's. */
static unsigned char *at(const struct view *view, uint32_t to, veriep_place place, uint64_t len) {
  unsigned char *base = NULL;
  uint64_t have = 0;
  if (to < RANKS && place.region == VERIEP_STATE) base = state[to], have = sizes[to].state;
  if (to < RANKS && place.region == VERIEP_WINDOW) base = window[to], have = sizes[to].window;
  if (to == view->rank && place.region >= VERIEP_OUTPUT)
    base = outputs[to][place.region - VERIEP_OUTPUT], have = sizes[to].outputs[place.region - VERIEP_OUTPUT];
  return base && place.offset <= have && len <= have - place.offset ? base + place.offset : NULL;
}

static int32_t put(void *context, uint32_t to, veriep_place place, const uint8_t *row, size_t row_len, const uint8_t *tail,
                   size_t tail_len) {
  struct view *view = context;
  unsigned char *there = at(view, to, place, row_len + tail_len);
  if (!there || row_len + tail_len > sizeof view->row) return 1;
  land(view);
  unsigned char *first = is_late ? view->row : there;
  memcpy(first, row, row_len);
  if (tail_len) memcpy(first + row_len, tail, tail_len);
  if (is_late) view->to = there, view->len = row_len + tail_len;
  return 0;
}

static int32_t publish(void *context, uint32_t to, veriep_place place, uint64_t word) {
  uint64_t *there = (uint64_t *)(void *)at(context, to, place, 8);
  if (!there) return 1;
  __atomic_store_n(there, word, __ATOMIC_RELEASE);
  if (is_late) {
    struct timespec behind = {0, 300000};
    nanosleep(&behind, NULL);
    land(context);
  }
  return 0;
}

/* Stores of this processor become visible in their order: there is nothing to wait for. */
static int32_t quiet(void *context, uint32_t *landed) {
  land(context);
  *landed = 1;
  return 0;
}

static int32_t observe(void *context, veriep_place place, uint64_t *word) {
  struct view *view = context;
  const uint64_t *here = (const uint64_t *)(void *)at(view, view->rank, place, 8);
  if (!here) return 1;
  *word = __atomic_load_n(here, __ATOMIC_ACQUIRE);
  return 0;
}

static int32_t store(void *context, veriep_place place, uint64_t word) {
  struct view *view = context;
  uint64_t *here = (uint64_t *)(void *)at(view, view->rank, place, 8);
  if (!here) return 1;
  __atomic_store_n(here, word, __ATOMIC_RELEASE);
  return 0;
}

static int32_t bytes(void *context, veriep_place place, uint64_t len, const uint8_t **bytes) {
  struct view *view = context;
  *bytes = at(view, view->rank, place, len);
  return *bytes ? 0 : 1;
}

static int32_t write_output(void *context, veriep_place place, const uint8_t *from, size_t len) {
  struct view *view = context;
  unsigned char *here = at(view, view->rank, place, len);
  if (!here) return 1;
  memcpy(here, from, len);
  return 0;
}

static int32_t deliver(void *context, veriep_place output, veriep_place from, uint64_t len) {
  const uint8_t *here;
  return bytes(context, from, len, &here) ? 1 : write_output(context, output, here, len);
}

/* bf16 numbers: tokens are whole, weights 1/2 and 1/4, experts double, so that all of it is exact. */
static uint16_t bf16(float number) {
  uint32_t bits;
  memcpy(&bits, &number, 4);
  return (uint16_t)(bits >> 16);
}
static float f32(uint16_t element) {
  uint32_t bits = (uint32_t)element << 16;
  float number;
  memcpy(&number, &bits, 4);
  return number;
}
static const float WEIGHTS[K] = {0.5f, 0.25f};
static float factor(int expert) { return (float)(1 << (expert % 3)); }
static float token(int round, int rank, int t, int i) { return (float)(1 + (round * 7 + rank * 5 + t * 3 + i) % 15); }
static int expert_of(int round, int rank, int t, int k) { return (round + rank * 3 + t * 5 + k * 3) % EXPERTS; }

/* Steps the core until its operator has ended. A driver may sleep where this one yields: veriep_core_awaits. */
static void drive(veriep_core *core, const veriep_context *cx, uint32_t operator) {
  int32_t said = veriep_core_begin(core, operator);
  if (said == VERIEP_OK)
    while ((said = veriep_core_step(core, cx, 1000, NULL)) > 0)
      if (said == VERIEP_PENDING) sched_yield();
  if (said == VERIEP_OK) return;
  fprintf(stderr, "refused: %d %s\n", said, cx->text);
  /* Late rows are a corruption that may be noticed. */
  exit(is_late ? 1 : 2);
}

static veriep_bytes tensor(uint32_t rank, uint32_t number) {
  return (veriep_bytes){outputs[rank][number], sizes[rank].outputs[number]};
}

static void *run(void *argument) {
  uint32_t rank = (uint32_t)(size_t)argument;
  uint16_t x[BS * H];
  int32_t ids[BS * K];
  float weights[BS * K];
  unsigned char *y = calloc(sizes[rank].rows_max, ROW);
  char text[256] = "";
  struct view view = {.rank = rank};
  veriep_fabric fabric = {.context = &view, .put = put, .publish = publish, .quiet = quiet, .observe = observe,
                          .store = store, .bytes = bytes, .write = write_output, .deliver = deliver};
  veriep_inputs inputs = {.x = {x, sizeof x}, .expert_ids = {ids, sizeof ids}, .expert_scales = {weights, sizeof weights}};
  veriep_operands operands = {.y = {y, sizes[rank].rows_max * ROW},
                              .assist_info = tensor(rank, VERIEP_ASSIST_INFO),
                              .ep_recv_counts = {outputs[rank][VERIEP_EP_RECV_COUNTS], sizes[rank].ep_recv_counts}};
  veriep_context cx = {.shape = &shape, .fabric = &fabric, .inputs = &inputs, .operands = &operands,
                       .words = calloc(sizes[rank].scratch_words, 4), .words_len = sizes[rank].scratch_words,
                       .bytes = calloc(sizes[rank].scratch_bytes, 1), .bytes_len = sizes[rank].scratch_bytes,
                       .text = text, .text_len = sizeof text};
  veriep_core core;
  if (veriep_core_new(&core, &shape, rank, 0, 0, NULL, (uint32_t)veriep_fabric_can(&fabric), text, sizeof text)) {
    fprintf(stderr, "no core: %s\n", text);
    exit(2);
  }
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < BS * H; i++) x[i] = bf16(token(round, (int)rank, i / H, i % H));
    for (int i = 0; i < BS * K; i++) ids[i] = expert_of(round, (int)rank, i / K, i % K), weights[i] = WEIGHTS[i % K];
    for (uint32_t operator = VERIEP_DISPATCH; operator <= VERIEP_COMBINE; operator++) {
      if (veriep_inputs_check(&shape, rank, operator, &inputs, text, sizeof text)) {
        fprintf(stderr, "%s", text);
        exit(2);
      }
    }
    /* A rank has one core here; with several all of them end an operator before any begins the next. */
    drive(&core, &cx, VERIEP_DISPATCH);
    int64_t rows[EXPERTS / RANKS];
    memcpy(rows, outputs[rank][VERIEP_EXPERT_TOKEN_NUMS], sizeof rows);
    const unsigned char *from = outputs[rank][VERIEP_EXPAND_X];
    unsigned char *to = y;
    for (int local = 0; local < EXPERTS / RANKS; local++)
      for (int64_t i = 0; i < rows[local] * H; i++, from += 2, to += 2) {
        uint16_t element;
        memcpy(&element, from, 2);
        element = bf16(f32(element) * factor((int)rank * (EXPERTS / RANKS) + local));
        memcpy(to, &element, 2);
      }
    drive(&core, &cx, VERIEP_COMBINE);
    for (int i = 0; i < BS * H; i++) {
      float sum = 0;
      for (int k = 0; k < K; k++) sum += WEIGHTS[k] * f32(x[i]) * factor(ids[i / H * K + k]);
      uint16_t seen;
      memcpy(&seen, outputs[rank][VERIEP_X_OUT] + 2 * i, 2);
      wrong[rank] += seen != bf16(sum);
    }
  }
  free(cx.words), free(cx.bytes), free(y);
  return NULL;
}

int main(int argc, char **argv) {
  veriep_config config;
  char text[2048];
  pthread_t threads[RANKS];
  is_late = argc > 1 && !strcmp(argv[1], "late");
  if (veriep_config_default(&config, VERIEP_ABI_VERSION)) return 2;
  config.limits = VERIEP_LIMITS_NONE;
  config.ep_world_size = RANKS;
  config.moe_expert_num = EXPERTS;
  config.k = K;
  config.h = H;
  config.bs = BS;
  config.aiv_num = 1;
  config.hccl_buffsize_mb = 2;
  if (veriep_shape_new(&shape, &config, text, sizeof text)) {
    fprintf(stderr, "%s", text);
    return 2;
  }
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    veriep_shape_sizes(&shape, rank, &sizes[rank]);
    state[rank] = calloc(sizes[rank].state / 8, 8);
    window[rank] = calloc(sizes[rank].window / 8, 8);
    for (uint32_t n = 0; n < VERIEP_TENSORS; n++) outputs[rank][n] = calloc(sizes[rank].outputs[n] / 8 + 1, 8);
  }
  for (size_t rank = 0; rank < RANKS; rank++) pthread_create(&threads[rank], NULL, run, (void *)rank);
  for (size_t rank = 0; rank < RANKS; rank++) pthread_join(threads[rank], NULL);
  printf("%d rounds, %d wrong values of %d\n", ROUNDS, wrong[0] + wrong[1], ROUNDS * RANKS * BS * H);
  return wrong[0] + wrong[1] ? 1 : 0;
}
