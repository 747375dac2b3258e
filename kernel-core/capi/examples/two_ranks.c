/* Two ranks of one core, each on a thread, over memory of this program's own: where to begin.
 *
 *   two_ranks          200 rounds, compared with a plain reference
 *   two_ranks halves   the same with two batches in flight, whose operators are taken in two halves
 *   two_ranks late     rounds with rows that land behind the flags that speak for them, which must go wrong
 */
#define _POSIX_C_SOURCE 200809L
#include "veriep.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS = 2, BATCHES = 2, BS = 8, K = 2, EXPERTS = 8, H = 64, ROW = 2 * H, ROUNDS = 200 };

static veriep_shape shape;
static veriep_sizes sizes[RANKS];
static unsigned char *state[RANKS], *window[RANKS], *outputs[RANKS][BATCHES][VERIEP_TENSORS];
static int is_late, has_halves, wrong[RANKS];

/* A core's view: its rank, whose outputs it writes, and of the twin the row that has not landed. */
struct view {
  uint32_t rank, batch;
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
    base = outputs[to][view->batch][place.region - VERIEP_OUTPUT], have = sizes[to].outputs[place.region - VERIEP_OUTPUT];
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

/* A batch: the tensors of its rank, and the core and scratch for its operators. */
struct batch {
  struct view view;
  veriep_fabric fabric;
  uint16_t x[BS * H];
  int32_t ids[BS * K];
  float weights[BS * K];
  unsigned char *y;
  veriep_inputs inputs;
  veriep_operands operands;
  veriep_context cx;
  veriep_core core;
  veriep_ticket ticket;
};

static void accept(int32_t said, const char *text) {
  if (said == VERIEP_OK) return;
  fprintf(stderr, "refused: %d %s\n", said, text);
  /* Late rows are a corruption that may be noticed. */
  exit(is_late ? 1 : 2);
}

/* Steps the core until it has ended what was begun. A driver may sleep where this one yields: veriep_core_awaits. */
static void drive(struct batch *batch) {
  int32_t said;
  while ((said = veriep_core_step(&batch->core, &batch->cx, 1000, NULL)) > 0)
    if (said == VERIEP_PENDING) sched_yield();
  accept(said, batch->cx.text);
}

/* A rank has one core here; with several all of them end an operator, or a half, before any begins the next. */
static void run_whole(struct batch *batch, uint32_t operator) {
  accept(veriep_core_begin(&batch->core, operator), "");
  drive(batch);
}

/* Returns when everything is sent. */
static void run_send(veriep_gates *gates, struct batch *batch, uint32_t operator) {
  accept(veriep_gates_begin(gates, operator, &batch->ticket, batch->cx.text, batch->cx.text_len), batch->cx.text);
  accept(veriep_core_send(&batch->core, operator), "");
  drive(batch);
}

/* Takes what has come. */
static void run_rest(veriep_gates *gates, struct batch *batch) {
  accept(veriep_core_resume(&batch->core), "");
  drive(batch);
  accept(veriep_gates_end(gates, &batch->ticket), "");
}

static veriep_bytes tensor(const struct view *view, uint32_t number) {
  return (veriep_bytes){outputs[view->rank][view->batch][number], sizes[view->rank].outputs[number]};
}

static void prepare(struct batch *batch, uint32_t rank, uint32_t number, char *text, size_t text_len) {
  const veriep_sizes *size = &sizes[rank];
  memset(batch, 0, sizeof *batch);
  batch->view.rank = rank, batch->view.batch = number;
  batch->fabric = (veriep_fabric){.context = &batch->view, .put = put, .publish = publish, .quiet = quiet, .observe = observe,
                                  .store = store, .bytes = bytes, .write = write_output, .deliver = deliver};
  batch->y = calloc(size->rows_max, ROW);
  batch->inputs = (veriep_inputs){.x = {batch->x, sizeof batch->x},
                                  .expert_ids = {batch->ids, sizeof batch->ids},
                                  .expert_scales = {batch->weights, sizeof batch->weights}};
  batch->operands = (veriep_operands){.y = {batch->y, size->rows_max * ROW},
                                      .assist_info = tensor(&batch->view, VERIEP_ASSIST_INFO),
                                      .ep_recv_counts = tensor(&batch->view, VERIEP_EP_RECV_COUNTS)};
  batch->operands.ep_recv_counts.len = size->ep_recv_counts;
  batch->cx = (veriep_context){.shape = &shape, .fabric = &batch->fabric, .inputs = &batch->inputs, .operands = &batch->operands,
                               .words = calloc(size->scratch_words, 4), .words_len = size->scratch_words,
                               .bytes = calloc(size->scratch_bytes, 1), .bytes_len = size->scratch_bytes,
                               .text = text, .text_len = text_len};
  uint32_t can = (uint32_t)veriep_fabric_can(&batch->fabric);
  accept(veriep_core_new(&batch->core, &shape, rank, 0, 0, NULL, can, text, text_len), text);
}

static void fill(struct batch *batch, int round) {
  int rank = (int)batch->view.rank;
  batch->inputs.call = (uint32_t)round; /* the same on all ranks: a rank that leaves out a call is refused */
  for (int i = 0; i < BS * H; i++) batch->x[i] = bf16(token(round, rank, i / H, i % H));
  for (int i = 0; i < BS * K; i++) batch->ids[i] = expert_of(round, rank, i / K, i % K), batch->weights[i] = WEIGHTS[i % K];
  for (uint32_t operator = VERIEP_DISPATCH; operator <= VERIEP_COMBINE; operator++)
    accept(veriep_inputs_check(&shape, batch->view.rank, operator, &batch->inputs, batch->cx.text, batch->cx.text_len), batch->cx.text);
}

static void experts(struct batch *batch) {
  int64_t rows[EXPERTS / RANKS];
  memcpy(rows, tensor(&batch->view, VERIEP_EXPERT_TOKEN_NUMS).data, sizeof rows);
  const unsigned char *from = tensor(&batch->view, VERIEP_EXPAND_X).data;
  unsigned char *to = batch->y;
  for (int local = 0; local < EXPERTS / RANKS; local++)
    for (int64_t i = 0; i < rows[local] * H; i++, from += 2, to += 2) {
      uint16_t element;
      memcpy(&element, from, 2);
      element = bf16(f32(element) * factor((int)batch->view.rank * (EXPERTS / RANKS) + local));
      memcpy(to, &element, 2);
    }
}

static void compare(const struct batch *batch) {
  const unsigned char *x_out = tensor(&batch->view, VERIEP_X_OUT).data;
  for (int i = 0; i < BS * H; i++) {
    float sum = 0;
    for (int k = 0; k < K; k++) sum += WEIGHTS[k] * f32(batch->x[i]) * factor(batch->ids[i / H * K + k]);
    uint16_t seen;
    memcpy(&seen, x_out + 2 * i, 2);
    wrong[batch->view.rank] += seen != bf16(sum);
  }
}

static void run_rounds(struct batch *batch) {
  for (int round = 0; round < ROUNDS; round++) {
    fill(batch, round);
    run_whole(batch, VERIEP_DISPATCH);
    experts(batch);
    run_whole(batch, VERIEP_COMBINE);
    compare(batch);
  }
}

/* While experts work on one batch, the rows of the next one travel. */
static void run_halves(struct batch *batches) {
  veriep_gates gates;
  accept(veriep_gates_new(&gates, &shape, NULL), "");
  for (int round = 0; round <= ROUNDS; round++) {
    struct batch *next = &batches[round % BATCHES], *before = &batches[(round + 1) % BATCHES];
    int has_next = round < ROUNDS, has_before = round > 0;
    if (has_next) fill(next, round), run_send(&gates, next, VERIEP_DISPATCH);
    if (has_before) experts(before), run_send(&gates, before, VERIEP_COMBINE);
    if (has_next) run_rest(&gates, next);
    if (has_before) run_rest(&gates, before), compare(before);
  }
}

static void *run(void *argument) {
  uint32_t rank = (uint32_t)(size_t)argument;
  struct batch *batches = calloc(BATCHES, sizeof *batches);
  char text[512] = "";
  for (uint32_t n = 0; n < BATCHES; n++) prepare(&batches[n], rank, n, text, sizeof text);
  if (has_halves) run_halves(batches);
  else run_rounds(batches);
  for (uint32_t n = 0; n < BATCHES; n++) free(batches[n].cx.words), free(batches[n].cx.bytes), free(batches[n].y);
  free(batches);
  return NULL;
}

int main(int argc, char **argv) {
  veriep_config config;
  char text[2048];
  pthread_t threads[RANKS];
  is_late = argc > 1 && !strcmp(argv[1], "late");
  has_halves = argc > 1 && !strcmp(argv[1], "halves");
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
    for (uint32_t batch = 0; batch < BATCHES; batch++)
      for (uint32_t n = 0; n < VERIEP_TENSORS; n++) outputs[rank][batch][n] = calloc(sizes[rank].outputs[n] / 8 + 1, 8);
  }
  for (size_t rank = 0; rank < RANKS; rank++) pthread_create(&threads[rank], NULL, run, (void *)rank);
  for (size_t rank = 0; rank < RANKS; rank++) pthread_join(threads[rank], NULL);
  printf("%d rounds, %d wrong values of %d\n", ROUNDS, wrong[0] + wrong[1], ROUNDS * RANKS * BS * H);
  return wrong[0] + wrong[1] ? 1 : 0;
}
