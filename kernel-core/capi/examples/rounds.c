/* Every protocol from C: a group in one thread, over a fabric of this program's own and over mapped memory, each core asleep
 * until something that it awaits has changed. Results are compared with a plain reference; all numbers are exact.
 *
 *   rounds [ROUNDS]
 */
#include "veriep.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, CORES = 2, BS = 3, K = 2, H = 32, ROW = 2 * H, AWAITED = 512 };
enum { OWN_FABRIC, MAPPED, CACHED, MEMORIES };

/* The memory of a rank. */
struct rank {
  unsigned char *regions[VERIEP_TP_WINDOW + 1], *outputs[VERIEP_TENSORS];
  veriep_sizes sizes;
};

/* What a core or an agent sees: whose it is. */
struct view {
  struct group *group;
  uint32_t ep, tp;
};

/* A core or an agent, what it was found waiting for, and what that was worth then. */
struct task {
  struct view view;
  veriep_core core;
  veriep_agent agent;
  veriep_context cx;
  veriep_fabric fabric;
  veriep_nic nic;
  veriep_mapped mapped;
  veriep_vector vector;
  veriep_peer peers[RANKS], tps[2];
  veriep_inputs inputs;
  veriep_operands operands;
  veriep_awaited awaited[AWAITED];
  size_t awaited_len;
  uint64_t seen;
  int is_agent, is_done;
};

struct group {
  const char *name;
  veriep_config config;
  veriep_choices choices;
  const int32_t *elastic_info;
  int has_replicas, has_vector;
  /* From here on made by the program. */
  veriep_shape shape;
  uint32_t ranks, tps;
  int memory;
  struct rank rank[RANKS];
  uint64_t cleaned, invalidated, summed, replaced;
};

static void fail(const struct group *group, const char *what, const char *more) {
  fprintf(stderr, "%s: %s %s\n", group->name, what, more);
  exit(1);
}

static struct rank *rank_of(struct group *group, uint32_t ep, uint32_t tp) {
  uint32_t n = ep * group->tps + tp;
  if (ep >= group->ranks || tp >= group->tps) return NULL;
  /* Of an elastic domain the second table has the physical rank. */
  if (group->elastic_info) n = (uint32_t)group->elastic_info[4 + group->config.ep_world_size + n];
  return &group->rank[n];
}

static uint64_t region_len(const veriep_sizes *sizes, uint32_t region) {
  const uint64_t lens[] = {sizes->state, sizes->window, sizes->window_out, sizes->tp_state, sizes->tp_window};
  if (region >= VERIEP_OUTPUT) return sizes->outputs[region - VERIEP_OUTPUT];
  return lens[region];
}

/* Where `len` bytes at a place of rank `to` lie, or null. */
static unsigned char *at(const struct view *view, uint32_t to, veriep_place place, uint64_t len) {
  int is_of_tp = place.region == VERIEP_TP_STATE || place.region == VERIEP_TP_WINDOW;
  struct rank *rank = is_of_tp ? rank_of(view->group, view->ep, to) : rank_of(view->group, to, view->tp);
  int is_own = place.region == VERIEP_WINDOW_OUT || place.region >= VERIEP_OUTPUT;
  if (!rank || (is_own && to != view->ep)) return NULL;
  uint64_t have = region_len(&rank->sizes, place.region);
  if (place.offset > have || len > have - place.offset) return NULL;
  unsigned char **of = place.region >= VERIEP_OUTPUT ? rank->outputs - VERIEP_OUTPUT : rank->regions;
  return of[place.region] + place.offset;
}

static unsigned char *own(const struct view *view, veriep_place place, uint64_t len) {
  int is_of_tp = place.region == VERIEP_TP_STATE || place.region == VERIEP_TP_WINDOW;
  return at(view, is_of_tp ? view->tp : view->ep, place, len);
}

/* The fabric. There is one thread, so that copies are as good as atomic words. */
static int32_t put(void *context, uint32_t to, veriep_place place, const uint8_t *row, size_t row_len, const uint8_t *tail,
                   size_t tail_len) {
  unsigned char *there = at(context, to, place, row_len + tail_len);
  if (!there) return 1;
  memcpy(there, row, row_len);
  if (tail_len) memcpy(there + row_len, tail, tail_len);
  return 0;
}
static int32_t publish(void *context, uint32_t to, veriep_place place, uint64_t word) {
  return put(context, to, place, (const uint8_t *)&word, 8, NULL, 0);
}
static int32_t send_message(void *context, uint32_t to, veriep_place place, const uint8_t *message, size_t len) {
  return put(context, to, place, message, len, NULL, 0);
}
static int32_t quiet(void *context, uint32_t *landed) {
  (void)context;
  *landed = 1;
  return 0;
}
static int32_t observe(void *context, veriep_place place, uint64_t *word) {
  const unsigned char *here = own(context, place, 8);
  if (!here) return 1;
  memcpy(word, here, 8);
  return 0;
}
static int32_t write_own(void *context, veriep_place place, const uint8_t *bytes, size_t len) {
  unsigned char *here = own(context, place, len);
  if (!here) return 1;
  memcpy(here, bytes, len);
  return 0;
}
static int32_t store(void *context, veriep_place place, uint64_t word) {
  return write_own(context, place, (const uint8_t *)&word, 8);
}
static int32_t bytes_own(void *context, veriep_place place, uint64_t len, const uint8_t **bytes) {
  *bytes = own(context, place, len);
  return *bytes ? 0 : 1;
}
static int32_t peer_bytes(void *context, uint32_t rank, veriep_place place, uint64_t len, const uint8_t **bytes) {
  *bytes = at(context, rank, place, len);
  return *bytes ? 0 : 1;
}
static uint8_t *lend(void *context, veriep_place output, uint64_t len) { return own(context, output, len); }
static int32_t deliver(void *context, veriep_place output, veriep_place from, uint64_t len) {
  unsigned char *to = own(context, output, len), *here = own(context, from, len);
  if (!to || !here) return 1;
  memcpy(to, here, len);
  return 0;
}
static int32_t post(void *context, uint32_t to, veriep_place from, veriep_place place, uint64_t len, uint32_t *posted) {
  const unsigned char *here = own(context, from, len);
  *posted = 1;
  return here ? put(context, to, place, here, len, NULL, 0) : 1;
}

/* Caches that are told of memory that no rank has would be told nonsense. */
static void in_memory(struct group *group, const void *address, size_t len) {
  const unsigned char *first = address;
  for (uint32_t n = 0; n < RANKS; n++)
    for (uint32_t region = 0; region < VERIEP_OUTPUT + VERIEP_TENSORS; region++) {
      if (region > VERIEP_TP_WINDOW && region < VERIEP_OUTPUT) continue;
      struct rank *rank = &group->rank[n];
      unsigned char *base = region < VERIEP_OUTPUT ? rank->regions[region] : rank->outputs[region - VERIEP_OUTPUT];
      if (base && first >= base && first + len <= base + region_len(&rank->sizes, region)) return;
    }
  fail(group, "a cache was told of memory that no rank has", "");
}
static void clean(void *context, const void *address, size_t len) {
  struct group *group = context;
  in_memory(group, address, len);
  group->cleaned++;
}
static void invalidate(void *context, const void *address, size_t len) {
  struct group *group = context;
  in_memory(group, address, len);
  group->invalidated++;
}

/* Tokens are whole numbers from 1 to 15, weights 1/2 and 1/4, experts double: what comes of them has at most 8 bits. */
static void put_bf16(unsigned char *to, float number) {
  uint32_t bits;
  memcpy(&bits, &number, 4);
  /* To the nearest, of two the even one. */
  uint16_t element = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  memcpy(to, &element, 2);
}
static float get_bf16(const unsigned char *from) {
  uint16_t element;
  float number;
  memcpy(&element, from, 2);
  uint32_t bits = (uint32_t)element << 16;
  memcpy(&number, &bits, 4);
  return number;
}
/* The vector unit. A compiler must not merge a product and a sum: -ffp-contract=off where a processor could. */
static void weighted_sum(void *context, uint32_t dtype, size_t len, const veriep_term *terms, size_t terms_len, uint8_t *out) {
  struct group *group = context;
  for (size_t i = 0; i < len; i++) {
    float sum = 0;
    for (size_t n = 0; n < terms_len; n++) sum += terms[n].weight * get_bf16(terms[n].rows[0] + 2 * i);
    put_bf16(out + 2 * i, sum);
  }
  for (size_t n = 0; n < terms_len; n++)
    if (dtype != VERIEP_BF16 || terms[n].kind != VERIEP_TERM_ROW) fail(group, "a term of another kind", "");
  group->summed++;
}
static void add(void *context, uint32_t dtype, size_t len, const uint8_t *a, const uint8_t *b, uint8_t *out) {
  struct group *group = context;
  for (size_t i = 0; i < len; i++) put_bf16(out + 2 * i, get_bf16(a + 2 * i) + get_bf16(b + 2 * i));
  if (dtype != VERIEP_BF16) fail(group, "rows of another kind", "");
  group->summed++;
}

static veriep_bytes bytes_of(const void *data, uint64_t len) { return (veriep_bytes){data, (size_t)len}; }

/* Experts 6 and 7 stand in for 0 and 1, which so have two replicas each. */
enum { LOGICAL = 6 };
static const int32_t EXPERT_MAP[LOGICAL][2] = {{0, 6}, {1, 7}, {2, -1}, {3, -1}, {4, -1}, {5, -1}};
static void translate(struct group *group, uint32_t rank, int32_t *ids) {
  char text[2048];
  int32_t logical[BS * K];
  veriep_expert_map map;
  memcpy(logical, ids, sizeof logical);
  if (veriep_expert_map_new(&map, &group->shape, EXPERT_MAP[0], 2 * LOGICAL, LOGICAL, text, sizeof text)) fail(group, "no map:\n", text);
  veriep_inputs inputs = {.expert_ids = bytes_of(logical, sizeof logical)};
  if (veriep_expert_map_translate(&map, &group->shape, rank, &inputs, ids, BS * K, text, sizeof text)) fail(group, "ids:\n", text);
  for (uint32_t i = 0; i < BS * K; i++) {
    const int32_t *replicas = EXPERT_MAP[logical[i]];
    if (ids[i] != replicas[replicas[1] < 0 ? 0 : (rank + i / K) % 2]) fail(group, "another replica", "");
    group->replaced += ids[i] >= LOGICAL;
  }
}

static float token(uint32_t round, uint32_t n, uint32_t t, uint32_t i) {
  return (float)(1 + (round * 7 + n * 5 + t * 3 + i) % 15);
}
static const float WEIGHTS[K] = {0.5f, 0.25f};
static float factor(uint32_t expert) { return (float)(1 << (expert % 3)); }
static int32_t expert_of(uint32_t experts, uint32_t round, uint32_t n, uint32_t t, uint32_t k) {
  uint32_t first = round + 3 * n + 5 * t;
  return (int32_t)((first + k * (1 + (round + t) % (experts - 1))) % experts);
}

struct tensors {
  unsigned char x[BS * ROW];
  int32_t ids[BS * K];
  float weights[BS * K];
  unsigned char *y;
};

static veriep_bytes output(const struct rank *rank, uint32_t tensor) {
  return bytes_of(rank->outputs[tensor], rank->sizes.outputs[tensor]);
}

/* What lies where the task may look next, in one number. */
static uint64_t worth(struct task *task) {
  uint64_t hash = 1469598103934665603u;
  for (size_t i = 0; i < task->awaited_len; i++) {
    const veriep_awaited *what = &task->awaited[i];
    if (what->kind == VERIEP_AWAITS_QUIET || what->kind == VERIEP_AWAITS_ROOM) return task->seen + 1;
    const unsigned char *here = own(&task->view, (veriep_place){what->region, 0, what->offset}, what->len);
    for (uint64_t byte = 0; byte < what->len; byte++) hash = (hash ^ here[byte]) * 1099511628211u;
  }
  return hash;
}

/* One turn of a task that is awake: 1 if it did something. */
static int turn(struct task *task, uint32_t step) {
  struct group *group = task->view.group;
  veriep_status status;
  if (task->is_done || (task->awaited_len && worth(task) == task->seen)) return 0;
  task->awaited_len = 0;
  int32_t said = task->is_agent ? veriep_agent_step(&task->agent, &task->cx, 1 + step % 3, &status)
                                : veriep_core_step(&task->core, &task->cx, 1 + step % 3, &status);
  if (said == VERIEP_OK) task->is_done = 1;
  if (said == VERIEP_PENDING) {
    said = task->is_agent
               ? veriep_agent_awaits(&task->agent, &task->cx, task->awaited, AWAITED, &task->awaited_len, &status)
               : veriep_core_awaits(&task->core, &task->cx, task->awaited, AWAITED, &task->awaited_len, &status);
    if (said != VERIEP_PENDING || !task->awaited_len || !*task->cx.text) fail(group, "awaits nothing", task->cx.text);
    task->seen = worth(task);
    return status.steps > 0;
  }
  if (said < 0) fail(group, "refused:", task->cx.text);
  return 1;
}

/* Experts of a rank: each multiplies what it got. TP peers hold half of an expert each. */
static void experts(struct group *group, uint32_t ep, uint32_t tp, struct tensors *tensors) {
  struct rank *rank = rank_of(group, ep, tp);
  const int32_t *counts = (const int32_t *)(void *)rank->outputs[VERIEP_EP_RECV_COUNTS];
  uint32_t slots = rank->sizes.local_experts * group->ranks, rows = 0, row = 0;
  for (uint32_t part = 1; part <= group->tps; part++) rows += (uint32_t)counts[part * slots - 1];
  veriep_rows stretches[RANKS * BS * K * 2], results = {{0, 0, 0}, 0};
  size_t count;
  if (veriep_received_rows(&group->shape, &group->choices, rows, output(rank, VERIEP_ROW_TABLE), stretches,
                           sizeof stretches / sizeof *stretches, &count, &results))
    fail(group, "rows cannot be found", "");
  struct view view = {group, ep, tp};
  const unsigned char *found[RANKS * BS * K * 2];
  for (size_t i = 0; i < count; i++) {
    const unsigned char *here = own(&view, stretches[i].at, stretches[i].len);
    if (!here && stretches[i].len) fail(group, "rows lie nowhere", "");
    for (uint64_t offset = 0; offset < stretches[i].len; offset += ROW) found[row++] = here + offset;
  }
  if (row != rows) fail(group, "rows are missing", "");
  unsigned char *y = results.len ? own(&view, results.at, results.len) : tensors->y;
  row = 0;
  for (uint32_t part = 0; part < group->tps; part++)
    for (uint32_t local = 0, first = row; local < rank->sizes.local_experts; local++) {
      uint32_t expert = ep * rank->sizes.local_experts + local;
      uint32_t end = first + (uint32_t)counts[part * slots + (local + 1) * group->ranks - 1];
      for (; row < end; row++)
        for (uint32_t i = 0; i < H; i++)
          put_bf16(y + row * ROW + 2 * i, get_bf16(found[row] + 2 * i) * factor(expert) / (float)group->tps);
    }
}

static void prepare(struct task *task, struct group *group, uint32_t ep, uint32_t tp, uint32_t core, struct tensors *tensors) {
  static char text[512];
  struct rank *rank = rank_of(group, ep, tp);
  task->view = (struct view){group, ep, tp};
  task->fabric = (veriep_fabric){.context = &task->view, .put = put, .publish = publish, .quiet = quiet, .observe = observe,
                                 .store = store, .bytes = bytes_own, .write = write_own, .deliver = deliver,
                                 .peer_bytes = peer_bytes, .send = send_message, .lend = lend};
  task->nic = (veriep_nic){.context = &task->view, .observe = observe, .post = post};
  for (uint32_t to = 0; to < group->ranks; to++) {
    struct rank *peer = rank_of(group, to, tp);
    task->peers[to] = (veriep_peer){{peer->regions[VERIEP_STATE], peer->sizes.state},
                                    {peer->regions[VERIEP_WINDOW], peer->sizes.window},
                                    {peer->regions[VERIEP_WINDOW_OUT], peer->sizes.window_out}};
  }
  for (uint32_t to = 0; to < group->tps; to++) {
    struct rank *peer = rank_of(group, ep, to);
    task->tps[to] = (veriep_peer){{peer->regions[VERIEP_TP_STATE], peer->sizes.tp_state},
                                  {peer->regions[VERIEP_TP_WINDOW], peer->sizes.tp_window},
                                  {NULL, 0}};
  }
  task->mapped = (veriep_mapped){.peers = task->peers, .peers_len = group->ranks, .tp = task->tps, .tp_len = group->tps};
  for (uint32_t tensor = 0; tensor < VERIEP_TENSORS; tensor++)
    task->mapped.outputs[tensor] = (veriep_segment){rank->outputs[tensor], rank->sizes.outputs[tensor]};
  if (group->memory == CACHED) {
    task->mapped.cache_context = group;
    task->mapped.clean = clean;
    task->mapped.invalidate = invalidate;
  }
  task->inputs = (veriep_inputs){.x = bytes_of(tensors->x, sizeof tensors->x),
                                 .expert_ids = bytes_of(tensors->ids, sizeof tensors->ids),
                                 .expert_scales = bytes_of(tensors->weights, sizeof tensors->weights)};
  task->operands = (veriep_operands){
      .y = bytes_of(tensors->y, rank->sizes.rows_max * group->tps * ROW),
      .assist_info = output(rank, VERIEP_ASSIST_INFO),
      .expand_scales = output(rank, VERIEP_EXPAND_SCALES),
      .ep_recv_counts = bytes_of(rank->outputs[VERIEP_EP_RECV_COUNTS], rank->sizes.ep_recv_counts),
      .expand_idx = output(rank, VERIEP_EXPAND_IDX),
      .sent_rows = output(rank, VERIEP_SENT_ROWS),
      .row_table = output(rank, VERIEP_ROW_TABLE)};
  task->vector = (veriep_vector){.context = group, .weighted_sum = weighted_sum, .add = add};
  task->cx = (veriep_context){.vector = group->has_vector ? &task->vector : NULL, .shape = &group->shape, .inputs = &task->inputs, .operands = &task->operands, .text = text,
                              .text_len = sizeof text};
  if (group->memory == OWN_FABRIC) task->cx.fabric = &task->fabric, task->cx.nic = task->is_agent ? &task->nic : NULL;
  else task->cx.mapped = &task->mapped;
  int32_t can = veriep_fabric_can(&task->fabric);
  if (task->is_agent) {
    if (veriep_agent_new(&task->agent, &group->shape, ep, group->choices.order)) fail(group, "no agent", "");
    return;
  }
  task->cx.words_len = rank->sizes.scratch_words;
  task->cx.words = calloc(task->cx.words_len, 4);
  task->cx.bytes_len = rank->sizes.scratch_bytes;
  task->cx.bytes = calloc(task->cx.bytes_len, 1);
  if (veriep_core_new(&task->core, &group->shape, ep, tp, core, &group->choices, (uint32_t)can, text, sizeof text))
    fail(group, "no core:", text);
}

enum part { WHOLE, SEND, RESUME };
static int32_t begin(struct task *task, enum part part, uint32_t operator) {
  if (part == SEND) return veriep_core_send(&task->core, operator);
  return part == RESUME ? veriep_core_resume(&task->core) : veriep_core_begin(&task->core, operator);
}
/* All cores begin an operator or a half of one, and go on until it has ended on all. */
static void run_part(struct group *group, struct task *tasks, uint32_t count, enum part part, uint32_t operator) {
  for (uint32_t i = 0; i < count; i++) {
    tasks[i].awaited_len = 0;
    if (tasks[i].is_agent) continue;
    tasks[i].is_done = 0;
    if (begin(&tasks[i], part, operator)) fail(group, "does not begin", "");
  }
  for (uint32_t step = 0, done = 0; !done; step++) {
    int moved = 0;
    done = 1;
    for (uint32_t i = 0; i < count; i++) {
      moved |= turn(&tasks[i], step + i);
      done &= (uint32_t)(tasks[i].is_done || tasks[i].is_agent);
    }
    if (!moved && !done) fail(group, "all sleep:", tasks[0].cx.text);
  }
}

static void run(struct group *group, uint32_t rounds) {
  char text[2048];
  static struct tensors tensors[RANKS];
  static struct task tasks[RANKS * (CORES + 1)];
  veriep_shape whole;
  group->tps = group->config.tp_world_size == 2 ? 2 : 1;
  if (veriep_shape_new(&whole, &group->config, text, sizeof text)) fail(group, "no shape:\n", text);
  group->shape = whole;
  if (group->elastic_info && veriep_shape_survivors(&group->shape, &whole, group->elastic_info,
                                                    4 + 2 * (size_t)group->config.ep_world_size, text, sizeof text))
    fail(group, "no survivors:\n", text);
  veriep_sizes sizes;
  if (veriep_shape_sizes(&group->shape, 0, &sizes)) fail(group, "no sizes", "");
  group->ranks = sizes.ep_world_size;
  uint32_t all = group->ranks * group->tps, count = 0;
  memset(tasks, 0, sizeof tasks);
  for (uint32_t n = 0; n < all; n++) {
    struct rank *rank = rank_of(group, n / group->tps, n % group->tps);
    veriep_shape_sizes(&group->shape, n / group->tps, &rank->sizes);
    for (uint32_t region = 0; region <= VERIEP_TP_WINDOW; region++)
      rank->regions[region] = calloc(region_len(&rank->sizes, region) / 8 + 1, 8);
    for (uint32_t tensor = 0; tensor < VERIEP_TENSORS; tensor++)
      rank->outputs[tensor] = calloc(rank->sizes.outputs[tensor] / 8 + 1, 8);
    tensors[n].y = calloc(rank->sizes.rows_max * group->tps, ROW);
  }
  uint32_t per_rank = CORES + (uint32_t)veriep_has_agents(&group->shape, &group->choices);
  for (uint32_t n = 0; n < all; n++)
    for (uint32_t core = 0; core < per_rank; core++) {
      tasks[count].is_agent = core == CORES;
      prepare(&tasks[count++], group, n / group->tps, n % group->tps, core, &tensors[n]);
    }
  uint32_t experts_left = group->elastic_info ? (uint32_t)group->elastic_info[3] : (uint32_t)group->config.moe_expert_num;
  if (group->has_replicas) experts_left = LOGICAL;
  uint32_t wrong = 0;
  for (uint32_t round = 0; round < rounds; round++) {
    for (uint32_t n = 0; n < all; n++) {
      for (uint32_t i = 0; i < BS * H; i++) put_bf16(tensors[n].x + 2 * i, token(round, n, i / H, i % H));
      for (uint32_t i = 0; i < BS * K; i++) {
        tensors[n].ids[i] = expert_of(experts_left, round, n, i / K, i % K);
        tensors[n].weights[i] = WEIGHTS[i % K];
      }
      if (group->has_replicas) translate(group, n / group->tps, tensors[n].ids);
    }
    /* Every other round is taken in halves, which a TP domain has not. */
    int has_halves = round % 2 && group->tps == 1;
    for (uint32_t operator = VERIEP_DISPATCH; operator <= VERIEP_COMBINE; operator++) {
      for (uint32_t n = 0; n < all; n++)
        if (veriep_inputs_check(&group->shape, n / group->tps, operator, &tasks[n * per_rank].inputs, text, sizeof text))
          fail(group, "inputs:\n", text);
      run_part(group, tasks, count, has_halves ? SEND : WHOLE, operator);
      if (has_halves) run_part(group, tasks, count, RESUME, operator);
      if (operator == VERIEP_DISPATCH)
        for (uint32_t n = 0; n < all; n++) experts(group, n / group->tps, n % group->tps, &tensors[n]);
    }
    for (uint32_t n = 0; n < all; n++)
      for (uint32_t i = 0; i < BS * H; i++) {
        float sum = 0;
        for (uint32_t k = 0; k < K; k++)
          sum += WEIGHTS[k] * token(round, n, i / H, i % H) * factor((uint32_t)tensors[n].ids[i / H * K + k]);
        wrong += get_bf16(rank_of(group, n / group->tps, n % group->tps)->outputs[VERIEP_X_OUT] + 2 * i) != sum;
      }
  }
  static const char *const memories[] = {"own fabric", "mapped", "mapped with caches"};
  printf("%-20s %-18s %u rounds, %u wrong\n", group->name, memories[group->memory], rounds, wrong);
  if (wrong) fail(group, "wrong values", "");
  if (group->memory == CACHED && !(group->cleaned && group->invalidated)) fail(group, "caches were told nothing", "");
  if (group->has_vector != (group->summed > 0)) fail(group, "the vector unit was not used", "");
  if (group->has_replicas != (group->replaced > 0)) fail(group, "no replica was used", "");
  for (uint32_t i = 0; i < count; i++) free(tasks[i].cx.words), free(tasks[i].cx.bytes);
  for (uint32_t n = 0; n < all; n++) {
    struct rank *rank = rank_of(group, n / group->tps, n % group->tps);
    for (uint32_t region = 0; region <= VERIEP_TP_WINDOW; region++) free(rank->regions[region]);
    for (uint32_t tensor = 0; tensor < VERIEP_TENSORS; tensor++) free(rank->outputs[tensor]);
    free(tensors[n].y);
  }
}

int main(int argc, char **argv) {
  uint32_t rounds = argc > 1 ? (uint32_t)atoi(argv[1]) : 200;
  /* Of four ranks, rank 1 is gone: three are left with six experts. */
  static const int32_t left[] = {1, 3, 0, 6, 2, -1, 0, 1, 2, 3, 0, -1};
  static const struct {
    const char *name;
    uint32_t comm_alg, flags, receive, stage;
    int64_t ranks, tps, experts, buffer;
    const int32_t *elastic_info;
    int has_replicas, has_vector;
  } scenes[] = {
      {"joint flags", VERIEP_FULLMESH_V1, VERIEP_FLAGS_JOINT, VERIEP_RECEIVE_COPY, 3, 4, 1, 8, 4, NULL, 0, 0},
      {"separate flags", VERIEP_FULLMESH_V1, VERIEP_FLAGS_SEPARATE, VERIEP_RECEIVE_COPY, 3, 4, 1, 8, 4, NULL, 0, 0},
      {"in place", VERIEP_FULLMESH_V1, VERIEP_FLAGS_JOINT, VERIEP_RECEIVE_IN_PLACE, 3, 4, 1, 8, 4, NULL, 0, 0},
      {"direct", VERIEP_FULLMESH_V1, VERIEP_FLAGS_JOINT, VERIEP_RECEIVE_DIRECT, 3, 4, 1, 8, 4, NULL, 0, 0},
      {"direct, two batches", VERIEP_FULLMESH_V1, VERIEP_FLAGS_JOINT, VERIEP_RECEIVE_DIRECT_2, 3, 4, 1, 8, 4, NULL, 0, 0},
      {"elastic", VERIEP_FULLMESH_V1, VERIEP_FLAGS_JOINT, VERIEP_RECEIVE_COPY, 3, 4, 1, 8, 4, left, 0, 0},
      {"TP", VERIEP_FULLMESH_V1, VERIEP_FLAGS_SEPARATE, VERIEP_RECEIVE_COPY, 3, 2, 2, 2, 4, NULL, 0, 0},
      {"TP, own vector unit", VERIEP_FULLMESH_V1, VERIEP_FLAGS_SEPARATE, VERIEP_RECEIVE_COPY, 3, 2, 2, 2, 4, NULL, 0, 1},
      {"redundant experts", VERIEP_FULLMESH_V1, VERIEP_FLAGS_JOINT, VERIEP_RECEIVE_COPY, 3, 4, 1, 8, 4, NULL, 1, 0},
      {"fullmesh_v2", VERIEP_FULLMESH_V2, VERIEP_FLAGS_JOINT, VERIEP_RECEIVE_COPY, 3, 4, 1, 8, 4, NULL, 0, 0},
      {"A2 full mesh", VERIEP_A2_FULLMESH, VERIEP_FLAGS_JOINT, VERIEP_RECEIVE_COPY, 3, 4, 1, 8, 8, NULL, 0, 0},
      {"hierarchy, agents", VERIEP_A2_HIERARCHY, VERIEP_FLAGS_JOINT, VERIEP_RECEIVE_COPY, 2, 4, 1, 8, 105, NULL, 0, 0},
      {"hierarchy, cores", VERIEP_A2_HIERARCHY, VERIEP_FLAGS_JOINT, VERIEP_RECEIVE_COPY, 3, 4, 1, 8, 105, NULL, 0, 0},
  };
  static struct group group;
  for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
    for (int memory = 0; memory < MEMORIES; memory++) {
      memset(&group, 0, sizeof group);
      group.name = scenes[i].name;
      group.memory = memory;
      group.elastic_info = scenes[i].elastic_info;
      group.has_replicas = scenes[i].has_replicas;
      group.has_vector = scenes[i].has_vector;
      group.choices = veriep_choices_default();
      group.choices.flags = scenes[i].flags;
      group.choices.receive = scenes[i].receive;
      group.choices.stage = scenes[i].stage;
      veriep_config *config = &group.config;
      if (veriep_config_default(config, VERIEP_ABI_VERSION)) fail(&group, "another version", "");
      config->limits = VERIEP_LIMITS_NONE;
      config->comm_alg = scenes[i].comm_alg;
      config->given = scenes[i].elastic_info ? VERIEP_GIVEN_ELASTIC_INFO : 0;
      if (scenes[i].has_replicas) config->given = VERIEP_GIVEN_EXPERT_MAP;
      config->ep_world_size = scenes[i].ranks;
      config->server_ranks = 2;
      config->tp_world_size = scenes[i].tps;
      config->moe_expert_num = scenes[i].experts;
      config->k = K;
      config->h = H;
      config->bs = BS;
      config->aiv_num = CORES;
      config->hccl_buffsize_mb = scenes[i].buffer;
      run(&group, rounds);
    }
  return 0;
}
