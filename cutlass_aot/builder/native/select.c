/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of a kernel for operands that were not seen before: the cost model, and whether a group serves a plain GEMM.
 *
 *     cutlass_aot_select(tilings, clusters, costs, traffic, measured, ends, positions, seconds, numbers, operands, device) -> choose
 *     choose(a, b, out)         launches the kernel with the least expected time, and returns what launched
 *                               it, or false if that launched nothing; the kernel's number if it is not known how to launch it;
 *                               -1 if Python has to decide, which knows more than is known here
 *     choose(batch, m, n, k)    the number of the kernel for operands that are known to be served
 *     choose(number, launch)    from now on, the kernel of this number is launched by this function of launcher.c
 *
 * Arguments are bytes, but for the device, a CUDA ordinal:
 *
 *     tilings   a struct tiling for each kernel: schema/bundles/tiling_table.py
 *     clusters  a struct clusters for each size of clusters: how many run at once
 *     costs     a struct costs for each kernel, or one struct derivation for all
 *     traffic   bytes of memory for each element of (M, K), (K, N) and (M, N), as doubles
 *     measured  batch, m, n and k of each problem that was measured: Python chooses for these
 *     ends      of each of these, how many times it and those before it have, as 32-bit integers; empty, as the next three,
 *               where estimates are not to be corrected
 *     positions of each time, that of its kernel among those that were measured, as 16-bit integers
 *     seconds   the times, in single precision, ascending for each problem, though only speed depends on that
 *     numbers   of each position, the kernel's number, as 32-bit integers; one that is not that of a kernel is none
 *     operands  a struct operand for each of a, b and out, or nothing
 *
 * The formula is that of runtime/selection/cost_model.py, which describes it, the corrections are those of
 * runtime/selection/correction.py, and the rules for operands are those of schema/kernels/operands.py, without what is rare: a
 * matrix with an extent of 1, rows that overlap, a batch that is broadcast.
 * tests/unit/runtime/test_native_choice.py compares.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"

#define SECTOR_BYTES 32
#define LINE_BYTES 128
#define WRITTEN 1.5

/* Of runtime/selection/correction.py. */
#define NEAREST 12
#define LEADING 8
#define WITHIN 1.2
#define MOST 0.15
#define DRAW 0.3

#define NOT_MEASURED UINT32_MAX
#define NO_KERNEL UINT32_MAX
#define CACHE_LINE_BYTES 64

struct tiling {
  uint32_t position, cluster_m, cluster_n, block_m, block_n, depth, split, blocks, blocks_per_sm, active_clusters, scheduler, within, kind;
};

struct clusters {
  double blocks, at_once;
};

struct costs {
  double launch, tile, step, crowding, pairing, sharing, misalignment, within_line, tail, bandwidth, emptiness, partial_sectors,
      partial_lines, overlap, unevenness;
};

struct derivation {
  struct costs costs;                    /* tile where a block does not share its sums */
  double shared_tile, multiply, load;    /* where it does; of a step, for each multiply-add and for each element loaded */
};

struct operand {
  int64_t code, bits, contiguous, divisibility, alignment; /* contiguous from the end, 1 or 2; divisibility in elements */
};

struct kernel {
  struct tiling tiling;
  struct costs costs;
  double places;
  uint32_t position;         /* among the kernels that were measured; NOT_MEASURED if it is not among them */
  TVMFFIObjectHandle launch; /* NULL until it is known; it never changes then */
};

struct problem {
  int64_t batch, m, n, k;
};

/* Of a problem's extents, to base 2. */
struct logarithms {
  double batch, m, n, k;
};

struct measured {
  struct problem problem;
  size_t begin, end; /* of its times */
  uint32_t first;    /* the number of the kernel of its first time, the fastest, or one that no kernel has; unused without times */
};

struct selection {
  double a, b, out;
  int64_t device;
  size_t kernel_count, measured_count;
  struct measured *measured;
  struct logarithms *logarithms; /* of each measured problem: apart, since all of them are read for each choice */
  /* An entry for each time, in three arrays, because a choice reads all positions of a problem but few of its times. */
  uint16_t *positions; /* of its kernel among those that were measured; NULL if estimates are not corrected */
  float *seconds;
  double *residuals; /* log(time / estimate), or 0 until it is computed; read and written atomically */
  struct operand operands[3];
  int has_operands;
  int by_rows; /* whether all measured problems have the same batch, and their rows ascend */
  struct kernel kernels[];
};

/* A problem, with what is the same for all kernels: megabytes of a row of A, of a column of B and of the output, and whether rows along K
 * and rows of the output begin within a line or a sector of memory. */
struct extents {
  double batch, m, n, k, a, b, out;
  int k_within_line, k_within_sector, n_within_line, n_within_sector;
};

static double at_least_zero(double value) { return value > 0 ? value : 0; }

/* Whether a power of two divides a number: the quotient is exact. */
static int divides(double power, double number) { return floor(number / power) == number / power; }

static struct extents extents_of(const struct selection *selection, const struct problem *problem) {
  double m = (double)problem->m, n = (double)problem->n, k = (double)problem->k;
  double row = selection->a * k, written = selection->out * n;
  return (struct extents){.batch = (double)problem->batch,
                          .m = m,
                          .n = n,
                          .k = k,
                          .a = row * (double)problem->batch / 1e6,
                          .b = selection->b * (double)problem->batch * k / 1e6,
                          .out = written * (double)problem->batch * m / 1e6,
                          .k_within_line = !divides(LINE_BYTES, row),
                          .k_within_sector = !divides(SECTOR_BYTES, row),
                          .n_within_line = !divides(LINE_BYTES, written),
                          .n_within_sector = !divides(SECTOR_BYTES, written)};
}

/* The estimated time; infinity as soon as it cannot be below `least`: most kernels stop before the powers of the overlap. */
static double microseconds(const struct kernel *kernel, const struct extents *problem, double least) {
  const struct tiling *tiling = &kernel->tiling;
  const struct costs *costs = &kernel->costs;
  double m = problem->m, n = problem->n;
  double down = ceil(m / tiling->cluster_m), across = ceil(n / tiling->cluster_n);
  double clusters = problem->batch * down * across;
  double at_work = clusters * tiling->blocks_per_sm / kernel->places;
  double missing_m = tiling->within ? at_least_zero(tiling->block_m - m) : down * tiling->cluster_m - m;
  double missing_n = tiling->within ? at_least_zero(tiling->block_n - n) : across * tiling->cluster_n - n;
  double empty = problem->a * missing_m * across + problem->b * missing_n * down;
  double uneven = 0;
  if (tiling->blocks_per_sm == 1 && tiling->blocks == 1)
    uneven = at_work > 0.5 && at_work < 1 ? 1 / at_work - 1 : 0;
  else if (at_work > 1 && at_work < tiling->blocks_per_sm)
    uneven = ceil(at_work) / at_work - 1;
  double moved = problem->a * m + problem->b * n + WRITTEN * problem->out + costs->emptiness * empty;
  if (problem->n_within_sector)
    moved += costs->partial_sectors * problem->out;
  else if (problem->n_within_line)
    moved += costs->partial_lines * problem->out;
  double memory = moved / costs->bandwidth * 1e3 * (1 + costs->unevenness * uneven);
  if (!(costs->launch + memory < least)) return INFINITY;
  double active = (double)tiling->active_clusters * tiling->blocks_per_sm;
  double launched = active > 0 && active < clusters ? active : clusters;
  double waves = ceil(ceil(launched / kernel->places) * clusters / launched);
  double filled = waves > 1 ? clusters / kernel->places : 1;
  double whole = (1 - costs->tail) * filled + costs->tail * waves;
  double step = costs->step * (at_work < 1 ? pow((at_work + 0.15) / 1.15, costs->crowding) : 1);
  if (at_work > 0.5) step *= 1 + costs->pairing;
  if (tiling->blocks_per_sm > 1 && at_work > 1) step *= 1 + costs->sharing;
  if (problem->k_within_line) {
    double loaded_m = tiling->within ? tiling->cluster_m * fmin(1, m / tiling->block_m) : m / down;
    double loaded_n = tiling->within ? tiling->cluster_n * fmin(1, n / tiling->block_n) : n / across;
    double load = costs->misalignment * (loaded_m + loaded_n) / ((double)tiling->cluster_m + tiling->cluster_n);
    if (!problem->k_within_sector) load *= costs->within_line;
    step *= sqrt(sqrt(1 + load * load * load * load));
  }
  double compute = whole * (costs->tile + ceil(problem->k / ((double)tiling->depth * tiling->split)) * step);
  if (!(costs->launch + compute < least)) return INFINITY;
  double longer = fmax(compute, memory);
  return costs->launch + longer * pow(1 + pow(fmin(compute, memory) / longer, costs->overlap), 1 / costs->overlap);
}

/* ---- the fastest kernel ---- */

/* A kernel that may be the fastest, and what corrects its estimate. */
struct candidate {
  uint32_t number;
  double estimate, sum, weight;
};

/* The kernels with the least estimates, at most so many, ascending, of equals the first; how many there are. `guess` is the number of a
 * kernel that is probably among them, by whose estimate most others are ruled out early, or a number that no kernel has. */
static size_t leading(const struct selection *selection, const struct extents *extents, uint32_t guess, size_t most,
                      struct candidate *found) {
  size_t count = 0;
  double limit = INFINITY;
  if (guess < selection->kernel_count) limit = fmin(limit, WITHIN * microseconds(&selection->kernels[guess], extents, INFINITY));
  for (size_t index = 0; index < selection->kernel_count; index++) {
    double bound = count ? fmin(limit, WITHIN * found[0].estimate) : limit;
    if (count == most) bound = fmin(bound, found[most - 1].estimate);
    double time = microseconds(&selection->kernels[index], extents, bound);
    if (!(time < bound)) continue;
    size_t at = count < most ? count++ : most - 1;
    for (; at && time < found[at - 1].estimate; at--) found[at] = found[at - 1];
    found[at] = (struct candidate){.number = (uint32_t)index, .estimate = time, .weight = DRAW};
  }
  while (count > 1 && !(found[count - 1].estimate < WITHIN * found[0].estimate)) count--;
  return count;
}

static struct logarithms logarithms_of(const struct problem *problem) {
  return (struct logarithms){log2((double)problem->batch), log2((double)problem->m), log2((double)problem->n), log2((double)problem->k)};
}

static double octaves(const struct logarithms *one, const struct logarithms *other) {
  return fabs(one->batch - other->batch) + fabs(one->m - other->m) + fabs(one->n - other->n) + fabs(one->k - other->k);
}

struct near {
  double distance;
  const struct measured *measured;
};

static int nearer(const struct near *one, const struct near *other) {
  return one->distance < other->distance || (one->distance == other->distance && one->measured < other->measured);
}

/* The first measured problem with at least so many rows, given by their logarithm; the rows ascend. */
static size_t first_with(const struct selection *selection, double m) {
  size_t low = 0, high = selection->measured_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (selection->logarithms[middle].m < m) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* The nearest measured problems, ascending, of equals the first; how many there are. Where rows ascend, the search begins at the rows of
 * the problem and goes on to fewer and to more, until the difference in rows alone exceeds the distance of all that were found. */
static size_t nearest(const struct selection *selection, const struct problem *problem, struct near found[NEAREST]) {
  struct logarithms own = logarithms_of(problem);
  const struct logarithms *measured = selection->logarithms;
  size_t count = 0, begin = selection->by_rows ? first_with(selection, own.m) : 0, end = begin;
  while (begin > 0 || end < selection->measured_count) {
    double fewer = begin > 0 ? own.m - measured[begin - 1].m : INFINITY;
    double more = end < selection->measured_count ? measured[end].m - own.m : INFINITY;
    if (selection->by_rows && count == NEAREST && fmin(fewer, more) > found[NEAREST - 1].distance) break;
    size_t index = begin > 0 && fewer <= more ? --begin : end++;
    struct near near = {octaves(&measured[index], &own), &selection->measured[index]};
    if (count == NEAREST && !nearer(&near, &found[NEAREST - 1])) continue;
    size_t at = count < NEAREST ? count++ : NEAREST - 1;
    for (; at && nearer(&near, &found[at - 1]); at--) found[at] = found[at - 1];
    found[at] = near;
  }
  return count;
}

/* Whether the problem itself is among the measured ones. Logarithms of different extents differ: they have 53 bits, and extents 31. */
static int is_measured(const struct near *near, size_t problems) { return problems && near->distance == 0; }

/* The residual of a time; `extents` are those of its problem, and are worked out here if their batch is 0. */
static double residual_of(const struct selection *selection, size_t time, uint32_t number, const struct measured *measured,
                          struct extents *extents) {
  double residual;
  __atomic_load(&selection->residuals[time], &residual, __ATOMIC_RELAXED);
  if (residual != 0) return residual;
  if (extents->batch == 0) *extents = extents_of(selection, &measured->problem);
  residual = log(selection->seconds[time] * 1e6 / microseconds(&selection->kernels[number], extents, INFINITY));
  __atomic_store(&selection->residuals[time], &residual, __ATOMIC_RELAXED);
  return residual;
}

/* Add to the candidates' corrections what the times of a problem say. */
static void correct(const struct selection *selection, const struct near *near, struct candidate *candidates, size_t count) {
  struct extents extents = {0};
  double residuals[LEADING], sum = 0;
  size_t which[LEADING], timed = 0;
  /* Most times are of other kernels. For nearly all of these, a set of the last six bits of positions tells so. */
  uint32_t own[LEADING];
  uint64_t among = 0;
  for (size_t index = 0; index < count; index++) {
    own[index] = selection->kernels[candidates[index].number].position;
    if (own[index] != NOT_MEASURED) among |= (uint64_t)1 << (own[index] & 63);
  }
  for (size_t time = near->measured->begin; time < near->measured->end; time++) {
    uint16_t position = selection->positions[time];
    if (!(among >> (position & 63) & 1)) continue;
    for (size_t index = 0; index < count && timed < LEADING; index++) {
      if (own[index] != position) continue;
      residuals[timed] = residual_of(selection, time, candidates[index].number, near->measured, &extents);
      sum += residuals[timed];
      which[timed++] = index;
    }
  }
  double weight = 1 / (1 + near->distance * near->distance);
  for (size_t index = 0; index < timed; index++) {
    candidates[which[index]].sum += weight * fmax(-MOST, fmin(MOST, residuals[index] - sum / (double)timed));
    candidates[which[index]].weight += weight;
  }
}

static void prefetch(const void *begin, size_t size) {
  for (size_t offset = 0; offset < size; offset += CACHE_LINE_BYTES) __builtin_prefetch((const char *)begin + offset);
}

/* Fetch what `correct` reads of a problem: other work of the program may have evicted it from the caches. */
static void prefetch_times(const struct selection *selection, const struct measured *measured) {
  size_t begin = measured->begin, count = measured->end - begin;
  prefetch(&selection->positions[begin], count * sizeof *selection->positions);
  prefetch(&selection->seconds[begin], count * sizeof *selection->seconds);
  prefetch(&selection->residuals[begin], count * sizeof *selection->residuals);
}

static int64_t fastest(const struct selection *selection, const struct problem *problem, const struct near *near, size_t problems) {
  struct extents extents = extents_of(selection, problem);
  struct candidate candidates[LEADING];
  if (!selection->positions) problems = 0;
  for (size_t index = 0; index < problems; index++) prefetch_times(selection, near[index].measured);
  uint32_t guess = problems ? near[0].measured->first : NO_KERNEL;
  size_t count = leading(selection, &extents, guess, selection->positions ? LEADING : 1, candidates);
  for (size_t index = 0; count > 1 && index < problems; index++) correct(selection, &near[index], candidates, count);
  uint32_t best = 0;
  double least = INFINITY;
  for (const struct candidate *candidate = candidates; candidate < candidates + count; candidate++) {
    double time = candidate->estimate * exp(candidate->sum / candidate->weight);
    if (time < least) {
      least = time;
      best = candidate->number;
    }
  }
  return best;
}

/* Whether the group certainly serves a tensor; then its batch, rows and columns. */
static int serves(const struct selection *selection, const struct operand *operand, const DLTensor *tensor, int64_t extents[3]) {
  int modes = tensor ? tensor->ndim : 0;
  if (modes < 2 || modes > 3 || !tensor->strides || tensor->device.device_type != kDLCUDA ||
      tensor->device.device_id != selection->device)
    return 0;
  if (tensor->dtype.code != operand->code || tensor->dtype.bits != operand->bits || tensor->dtype.lanes != 1) return 0;
  if (((uint64_t)(uintptr_t)tensor->data + tensor->byte_offset) % (uint64_t)operand->alignment) return 0;
  int inner = modes - (int)operand->contiguous, outer = inner == modes - 1 ? modes - 2 : modes - 1;
  int64_t most = MAX_STRIDE_BYTES * 8 / operand->bits, reach;
  extents[0] = modes == 3 ? tensor->shape[0] : 1;
  extents[1] = tensor->shape[modes - 2];
  extents[2] = tensor->shape[modes - 1];
  if (extents[0] < 1 || extents[1] < 2 || extents[2] < 2) return 0;
  if (extents[0] > MAX_EXTENT || extents[1] > MAX_EXTENT || extents[2] > MAX_EXTENT) return 0;
  if (tensor->strides[inner] != 1 || tensor->shape[inner] % operand->divisibility) return 0;
  for (int mode = 0; mode < modes; mode++) {
    if (mode == inner || tensor->shape[mode] == 1) continue;
    int64_t stride = tensor->strides[mode];
    if (stride < (mode == outer ? tensor->shape[inner] : 1) || stride > most || stride % operand->divisibility) return 0;
    if (__builtin_mul_overflow(stride, tensor->shape[mode], &reach) || reach > INT64_MAX - operand->divisibility) return 0;
  }
  return 1;
}

static int served(const struct selection *selection, const TVMFFIAny *arguments, struct problem *problem) {
  int64_t extents[3][3];
  if (!selection->has_operands) return 0;
  for (int position = 0; position < 3; position++) {
    const DLTensor *tensor = tensor_of(&arguments[position]);
    if (!serves(selection, &selection->operands[position], tensor, extents[position])) return 0;
    if (tensor->ndim != tensor_of(&arguments[0])->ndim || extents[position][0] != extents[0][0]) return 0;
  }
  *problem = (struct problem){extents[0][0], extents[0][1], extents[1][2], extents[0][2]};
  return extents[1][1] == problem->k && extents[2][1] == problem->m && extents[2][2] == problem->n;
}

/* Launch the fastest kernel on operands. */
static int launch_fastest(struct selection *selection, const TVMFFIAny *operands, TVMFFIAny *result) {
  struct problem problem;
  struct near near[NEAREST];
  int is_served = served(selection, operands, &problem);
  size_t problems = is_served ? nearest(selection, &problem, near) : 0;
  if (!is_served || is_measured(near, problems)) {
    return_integer(result, -1);
    return 0;
  }
  int64_t number = fastest(selection, &problem, near, problems);
  TVMFFIObjectHandle launch = __atomic_load_n(&selection->kernels[number].launch, __ATOMIC_ACQUIRE);
  if (!launch) {
    return_integer(result, number);
    return 0;
  }
  TVMFFIAny given[3];
  memcpy(given, operands, sizeof given);
  if (TVMFFIFunctionCall(launch, given, 3, result)) return -1;
  if (result->type_index != kTVMFFINone) return 0; /* false: nothing was launched */
  TVMFFIObjectIncRef(launch);
  return_function(result, launch);
  return 0;
}

static int learn(struct selection *selection, const TVMFFIAny *arguments, TVMFFIAny *result) {
  int64_t number = arguments[0].v_int64;
  if (arguments[0].type_index != kTVMFFIInt || number < 0 || (size_t)number >= selection->kernel_count)
    return refuse("TypeError", "expected the number of a kernel");
  TVMFFIObjectHandle launch = arguments[1].v_obj, none = NULL;
  TVMFFIObjectIncRef(launch);
  if (!__atomic_compare_exchange_n(&selection->kernels[number].launch, &none, launch, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    TVMFFIObjectDecRef(launch);
  result->type_index = kTVMFFINone;
  return 0;
}

static int choose(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  struct selection *selection = self;
  struct problem problem;
  struct near near[NEAREST];
  if (count == 3) return launch_fastest(selection, arguments, result);
  if (count == 2 && arguments[1].type_index == kTVMFFIFunction) return learn(selection, arguments, result);
  if (count != 4) return refuse("TypeError", "expected three operands, or batch, m, n and k");
  int64_t extents[4];
  for (int position = 0; position < 4; position++) {
    extents[position] = arguments[position].v_int64;
    if (arguments[position].type_index != kTVMFFIInt || extents[position] < 1)
      return refuse("TypeError", "expected extents of 1 or more");
  }
  memcpy(&problem, extents, sizeof problem);
  size_t problems = nearest(selection, &problem, near);
  return_integer(result, fastest(selection, &problem, near, problems));
  return 0;
}

static void forget(void *self) {
  struct selection *selection = self;
  for (size_t index = 0; index < selection->kernel_count; index++)
    if (selection->kernels[index].launch) TVMFFIObjectDecRef(selection->kernels[index].launch);
  free(selection);
}

/* ---- making one ---- */

struct bytes {
  const char *data;
  size_t size;
};

/* The bytes of an argument that holds items of one size. Up to seven bytes are within the argument itself. */
static int read_bytes(const TVMFFIAny *argument, size_t item, struct bytes *found) {
  if (argument->type_index == kTVMFFISmallBytes) {
    *found = (struct bytes){argument->v_bytes, argument->small_str_len};
    return found->size < sizeof argument->v_bytes && found->size % item == 0;
  }
  const TVMFFIByteArray *array = NULL;
  if (argument->type_index == kTVMFFIByteArrayPtr) array = argument->v_ptr;
  if (argument->type_index == kTVMFFIBytes) array = (const TVMFFIByteArray *)((const TVMFFIObject *)argument->v_obj + 1);
  if (!array || array->size % item) return 0;
  found->data = array->data;
  found->size = array->size;
  return 1;
}

static double clusters_at_once(const struct tiling *tiling, const struct bytes *clusters) {
  struct clusters known;
  for (size_t offset = 0; offset < clusters->size; offset += sizeof known) {
    memcpy(&known, clusters->data + offset, sizeof known);
    if (known.blocks != tiling->blocks) continue;
    return tiling->active_clusters ? fmin(tiling->active_clusters, known.at_once) : known.at_once;
  }
  return 1;
}

static struct costs costs_of(const struct tiling *tiling, const struct derivation *derivation) {
  struct costs costs = derivation->costs;
  double m = tiling->block_m, n = tiling->block_n, depth = tiling->depth;
  if (tiling->split > 1) costs.tile = derivation->shared_tile;
  costs.step = derivation->multiply * m * n * depth + derivation->load * (m + n) * depth;
  return costs;
}

static int possible(const struct tiling *tiling) {
  return tiling->cluster_m && tiling->cluster_n && tiling->block_m && tiling->block_n && tiling->depth && tiling->split &&
         tiling->blocks && tiling->blocks_per_sm;
}

static int operands_possible(const struct selection *made) {
  for (int position = 0; position < 3; position++) {
    const struct operand *operand = &made->operands[position];
    if (operand->bits < 1 || operand->bits > 64 || operand->divisibility < 1 || operand->alignment < 1) return 0;
    if (operand->contiguous != 1 && operand->contiguous != 2) return 0;
  }
  return 1;
}

/* Take over the problems that were measured, and their times; false if they do not fit together. */
static int read_measured(struct selection *made, const struct bytes *problems, const struct bytes *ends, const struct bytes *positions,
                         const struct bytes *seconds, const struct bytes *numbers) {
  size_t count = seconds->size / sizeof(float), given = numbers->size / sizeof(uint32_t), begin = 0;
  if (positions->size != count * sizeof(uint16_t)) return 0;
  if (ends->size != (count ? made->measured_count * sizeof(uint32_t) : 0)) return 0;
  for (size_t position = 0; position < given; position++) {
    uint32_t number;
    memcpy(&number, numbers->data + position * sizeof number, sizeof number);
    if (number < made->kernel_count) made->kernels[number].position = (uint32_t)position;
  }
  if (count) memcpy(made->positions, positions->data, positions->size);
  if (count) memcpy(made->seconds, seconds->data, seconds->size);
  for (size_t index = 0; index < count; index++)
    if (made->positions[index] >= given || !(made->seconds[index] > 0 && made->seconds[index] < INFINITY)) return 0;
  made->by_rows = 1;
  for (size_t index = 0; index < made->measured_count; index++) {
    struct measured *measured = &made->measured[index];
    uint32_t end = 0;
    memcpy(&measured->problem, problems->data + index * sizeof measured->problem, sizeof measured->problem);
    if (measured->problem.batch < 1 || measured->problem.m < 1 || measured->problem.n < 1 || measured->problem.k < 1) return 0;
    made->logarithms[index] = logarithms_of(&measured->problem);
    made->by_rows &= measured->problem.batch == made->measured->problem.batch &&
                     (!index || made->logarithms[index].m >= made->logarithms[index - 1].m);
    if (!count) continue;
    memcpy(&end, ends->data + index * sizeof end, sizeof end);
    if (end <= begin || end > count) return 0;
    memcpy(&measured->first, numbers->data + made->positions[begin] * sizeof measured->first, sizeof measured->first);
    measured->begin = begin;
    measured->end = begin = end;
  }
  return 1;
}

EXPORT int __tvm_ffi_cutlass_aot_select(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  (void)self;
  struct bytes tilings, clusters, costs, traffic, measured, ends, positions, seconds, numbers, operands;
  struct derivation derivation;
  double moved[3];
  if (count != 11 || !read_bytes(&arguments[0], sizeof(struct tiling), &tilings) || !tilings.size ||
      !read_bytes(&arguments[1], sizeof(struct clusters), &clusters) || !read_bytes(&arguments[2], sizeof(double), &costs) ||
      !read_bytes(&arguments[3], sizeof moved, &traffic) || traffic.size != sizeof moved ||
      !read_bytes(&arguments[4], sizeof(struct problem), &measured) || !read_bytes(&arguments[5], sizeof(uint32_t), &ends) ||
      !read_bytes(&arguments[6], sizeof(uint16_t), &positions) || !read_bytes(&arguments[7], sizeof(float), &seconds) ||
      !read_bytes(&arguments[8], sizeof(uint32_t), &numbers) ||
      !read_bytes(&arguments[9], 3 * sizeof(struct operand), &operands) || arguments[10].type_index != kTVMFFIInt)
    return refuse("TypeError",
                  "expected tilings, clusters, costs, traffic, measured problems with their times, and operands as bytes, and a device");
  size_t kernels = tilings.size / sizeof(struct tiling), times = seconds.size / sizeof(float);
  int derived = costs.size == sizeof derivation; /* which is not a multiple of sizeof(struct costs) */
  if (!derived && costs.size != kernels * sizeof(struct costs)) return refuse("ValueError", "expected the costs of each kernel");
  size_t problems = measured.size / sizeof(struct problem);
  size_t size = sizeof(struct selection) + kernels * sizeof(struct kernel);
  size += problems * (sizeof(struct measured) + sizeof(struct logarithms)) + times * (sizeof(double) + sizeof(float) + sizeof(uint16_t));
  struct selection *made = calloc(1, size);
  if (!made) return refuse("MemoryError", "out of memory");
  memcpy(moved, traffic.data, sizeof moved);
  made->a = moved[0];
  made->b = moved[1];
  made->out = moved[2];
  made->device = arguments[10].v_int64;
  made->kernel_count = kernels;
  made->measured_count = problems;
  made->measured = (struct measured *)(made->kernels + kernels);
  made->logarithms = (struct logarithms *)(made->measured + problems);
  made->residuals = (double *)(made->logarithms + problems);
  made->seconds = (float *)(made->residuals + times);
  made->positions = times ? (uint16_t *)(made->seconds + times) : NULL;
  made->has_operands = operands.size == sizeof made->operands;
  if (made->has_operands) memcpy(made->operands, operands.data, sizeof made->operands);
  if (derived) memcpy(&derivation, costs.data, sizeof derivation);
  for (size_t index = 0; index < kernels; index++) made->kernels[index].position = NOT_MEASURED;
  int sound = (!made->has_operands || operands_possible(made)) && read_measured(made, &measured, &ends, &positions, &seconds, &numbers);
  for (size_t index = 0; index < kernels; index++) {
    struct kernel *kernel = &made->kernels[index];
    memcpy(&kernel->tiling, tilings.data + index * sizeof kernel->tiling, sizeof kernel->tiling);
    if (derived) kernel->costs = costs_of(&kernel->tiling, &derivation);
    else memcpy(&kernel->costs, costs.data + index * sizeof kernel->costs, sizeof kernel->costs);
    kernel->places = clusters_at_once(&kernel->tiling, &clusters) * kernel->tiling.blocks_per_sm;
    sound = sound && possible(&kernel->tiling);
  }
  TVMFFIObjectHandle function = NULL;
  if (!sound) {
    free(made);
    return refuse("ValueError", "impossible tiling, operand or times");
  }
  if (TVMFFIFunctionCreate(made, choose, forget, &function)) {
    free(made);
    return -1;
  }
  return_function(result, function);
  return 0;
}
