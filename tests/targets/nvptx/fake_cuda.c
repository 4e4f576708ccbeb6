/* A CUDA driver without a GPU: device memory is host memory, and a launch is handed to a callback.

It checks what the real driver checks (a current context, known modules, functions, streams and
addresses, well-formed launch parameters) and refuses with the real driver's numbers. cuda-bindings
finds it by its name, libcuda.so.1, and its functions through cuGetProcAddress_v2. The tests steer it
through the fake_* functions. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100,
       INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_PTX = 218,
       INVALID_HANDLE = 400, NOT_FOUND = 500,
       CAPTURE_UNSUPPORTED = 900 };

typedef struct { int device; } Context;
typedef struct { Context *owner; char *image; } Module;
typedef struct { Module *module; char name[64]; int dynamic_shared; int big_clusters; } Function;
typedef struct { Context *owner; double when; } Mark; /* a stream or an event */
typedef void (*Launched)(const char *entry, const unsigned *grid_block_shared, uintptr_t stream,
                         const void *arguments, size_t size, const unsigned *attributes);

static int initialized, device_count = 2, version = 13000;
static Context contexts[2] = {{0}, {1}};
static int majors[2] = {9, 8}, minors[2] = {0, 6};
static __thread Context *stack[16];
static __thread int depth;
static Launched launched;
static char failing[64];
static int failing_status;
static int live_blocks, live_marks, capturing;
static double now;
static struct { uintptr_t start; size_t size; Context *owner; } blocks[4096];

void fake_on_launch(Launched callback) { launched = callback; }
void fake_devices(int count) { device_count = count; initialized = 0; }
void fake_version(int number) { version = number; }
void fake_fail(const char *function, int status) {
  snprintf(failing, sizeof failing, "%s", function);
  failing_status = status;
}
/* As in a new process. */
void fake_reset(void) {
  launched = 0;
  initialized = capturing = live_blocks = live_marks = 0;
  device_count = 2;
  version = 13000;
  failing[0] = 0;
}
int fake_live_blocks(void) { return live_blocks; }
int fake_live_marks(void) { return live_marks; }
int fake_depth(void) { return depth; }
int fake_dynamic_shared(const Function *f) { return f->dynamic_shared; }

static int refused(const char *function) {
  if (strcmp(function, failing)) return 0;
  failing[0] = 0;
  return failing_status;
}
#define ENTER() do { int r = refused(__func__); if (r) return r; \
  if (!initialized) return NOT_INITIALIZED; } while (0)
#define CURRENT() do { ENTER(); if (!depth) return INVALID_CONTEXT; } while (0)

int cuInit(unsigned flags) {
  int r = refused(__func__);
  if (r) return r;
  if (device_count == 0) return NO_DEVICE;
  initialized = 1;
  return flags ? INVALID_VALUE : OK;
}
int cuGetErrorName(int status, const char **name) {
  *name = status == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
        : status == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
        : status == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE"
        : status == INVALID_PTX ? "CUDA_ERROR_INVALID_PTX"
        : status == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND"
        : status == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : 0;
  return *name ? OK : INVALID_VALUE;
}
int cuGetErrorString(int status, const char **text) {
  *text = status == 700 ? "an illegal memory access was encountered" : "words";
  return OK;
}
int cuDriverGetVersion(int *number) { *number = version; return OK; }
int cuDeviceGetCount(int *count) { ENTER(); *count = device_count; return OK; }
int cuDeviceGet(int *device, int index) {
  ENTER();
  if (index < 0 || index >= device_count) return INVALID_DEVICE;
  *device = index + 10; /* a handle is not an ordinal */
  return OK;
}
static int ordinal(int handle) { return handle - 10; }
int cuDeviceGetName(char *name, int size, int handle) {
  ENTER();
  snprintf(name, size, "Fake GPU %d", ordinal(handle));
  return OK;
}
int cuDeviceGetAttribute(int *value, int attribute, int handle) {
  ENTER();
  int i = ordinal(handle);
  switch (attribute) {
    case 16: *value = 132 - i; return OK;
    case 75: *value = majors[i]; return OK;
    case 76: *value = minors[i]; return OK;
    case 97: *value = i ? 101376 : 232448; return OK;
  }
  return INVALID_VALUE;
}
int cuDeviceTotalMem_v2(size_t *bytes, int handle) {
  ENTER();
  *bytes = (size_t)80 << 30 >> ordinal(handle);
  return OK;
}
int cuDevicePrimaryCtxRetain(Context **context, int handle) {
  ENTER();
  *context = &contexts[ordinal(handle)];
  return OK;
}
int cuCtxGetCurrent(Context **context) {
  ENTER();
  *context = depth ? stack[depth - 1] : 0;
  return OK;
}
int cuCtxPushCurrent_v2(Context *context) {
  ENTER();
  if (!context) return INVALID_CONTEXT;
  stack[depth++] = context;
  return OK;
}
int cuCtxPopCurrent_v2(Context **context) {
  CURRENT();
  *context = stack[--depth];
  return OK;
}
int cuCtxSynchronize(void) { CURRENT(); return OK; }

static __thread int capture_mode; /* global */
void fake_capturing(int yes) { capturing = yes; }
int cuStreamIsCapturing(Mark *stream, int *status) {
  CURRENT();
  if (!stream) return INVALID_VALUE; /* stands for the refusal of the default stream */
  *status = capturing;
  return OK;
}
int cuThreadExchangeStreamCaptureMode(int *mode) {
  ENTER();
  int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return OK;
}
int fake_capture_mode(void) { return capture_mode; }

static int jit_options[16];
int fake_jit_option(int option) { return jit_options[option]; }

int cuModuleLoadDataEx(Module **module, const char *image, unsigned count, const int *options,
                       void **values) {
  CURRENT();
  if (capturing && capture_mode != 2) return CAPTURE_UNSUPPORTED;
  char *info = 0, *errors = 0;
  for (int i = 0; i < 16; i++) jit_options[i] = -1;
  for (unsigned i = 0; i < count; i++) {
    if (options[i] >= 16) return INVALID_VALUE;
    jit_options[options[i]] = (int)(uintptr_t)values[i];
    if (options[i] == 3) info = values[i];
    if (options[i] == 5) errors = values[i];
  }
  int ptx = strstr(image, ".version") != 0;
  if (!ptx && memcmp(image, "\x7f" "ELF", 4)) return INVALID_IMAGE;
  if (ptx && strstr(image, "bogus")) {
    if (errors) strcpy(errors, "ptxas application ptx input, line 4; error: bogus");
    return INVALID_PTX;
  }
  if (ptx && info)
    strcpy(info, "ptxas info : Compiling entry function 'k' for 'sm_90a'\n"
                 "ptxas info : Function properties for k\n"
                 "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
                 "ptxas info : Used 40 registers, 0 bytes smem\n");
  *module = malloc(sizeof **module);
  (*module)->owner = stack[depth - 1];
  (*module)->image = ptx ? strdup(image) : strdup("k");
  return OK;
}
int cuModuleGetFunction(Function **function, Module *module, const char *name) {
  CURRENT();
  if (!strstr(module->image, name)) return NOT_FOUND;
  *function = calloc(1, sizeof **function);
  (*function)->module = module;
  snprintf((*function)->name, sizeof (*function)->name, "%s", name);
  return OK;
}
int cuFuncGetAttribute(int *value, int attribute, const Function *function) {
  CURRENT();
  switch (attribute) {
    case 0: *value = 512; return OK;
    case 1: *value = 1024; return OK;
    case 3: *value = 8; return OK;
    case 4: *value = 40; return OK;
  }
  return function ? INVALID_VALUE : INVALID_HANDLE;
}
int cuFuncSetAttribute(Function *function, int attribute, int value) {
  CURRENT();
  if (attribute == 8) function->dynamic_shared = value;
  else if (attribute == 14) function->big_clusters = value;
  else return INVALID_VALUE;
  return OK;
}

static int launch(Function *f, const unsigned *shape, uintptr_t stream, void **parameters,
                  void **extra, const unsigned *attributes) {
  if (f->module->owner != stack[depth - 1]) return INVALID_HANDLE;
  if (stream && ((Mark *)stream)->owner != stack[depth - 1]) return INVALID_HANDLE;
  for (int i = 0; i < 6; i++)
    if (shape[i] == 0) return INVALID_VALUE;
  if (shape[1] > 65535 || shape[2] > 65535 || shape[3] > 512) return INVALID_VALUE;
  if (shape[6] + 1024 > 49152 && (int)shape[6] > f->dynamic_shared) return INVALID_VALUE;
  if (attributes[0] * attributes[1] * attributes[2] > 8 && !f->big_clusters) return INVALID_VALUE;
  if (parameters || !extra) return INVALID_VALUE;
  if (extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4]) return INVALID_VALUE;
  if ((uintptr_t)extra[1] % 64) return INVALID_VALUE;
  if (launched) launched(f->name, shape, stream, extra[1], *(size_t *)extra[3], attributes);
  now += 0.25;
  return OK;
}
typedef struct { int id, padding; unsigned value[16]; } Attribute;
typedef struct { unsigned shape[7]; uintptr_t stream; Attribute *attributes; unsigned count; } Config;
int cuLaunchKernelEx(const Config *config, Function *f, void **parameters, void **extra) {
  CURRENT();
  unsigned attributes[4] = {1, 1, 1, 0};
  for (unsigned i = 0; i < config->count; i++) {
    if (config->attributes[i].id == 4) memcpy(attributes, config->attributes[i].value, 12);
    else if (config->attributes[i].id == 6) attributes[3] = config->attributes[i].value[0];
    else return INVALID_VALUE;
  }
  return launch(f, config->shape, config->stream, parameters, extra, attributes);
}

int cuMemAlloc_v2(uint64_t *address, size_t size) {
  CURRENT();
  if (size == 0) return INVALID_VALUE;
  if (size >> 36) return OUT_OF_MEMORY;
  for (int i = 0; i < 4096; i++)
    if (!blocks[i].start) {
      *address = blocks[i].start = (uintptr_t)aligned_alloc(256, (size + 255) / 256 * 256);
      memset((void *)blocks[i].start, 0xff, size); /* poison */
      blocks[i].size = size;
      blocks[i].owner = stack[depth - 1];
      live_blocks++;
      return OK;
    }
  return OUT_OF_MEMORY;
}
static int block_of(uint64_t address, size_t size) {
  for (int i = 0; i < 4096; i++)
    if (blocks[i].start && address >= blocks[i].start &&
        address + size <= blocks[i].start + blocks[i].size && blocks[i].owner == stack[depth - 1])
      return i;
  return -1;
}
int cuMemFree_v2(uint64_t address) {
  CURRENT();
  int i = block_of(address, 0);
  if (i < 0 || blocks[i].start != address) return INVALID_VALUE;
  free((void *)blocks[i].start);
  blocks[i].start = 0;
  live_blocks--;
  return OK;
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
  CURRENT();
  if (block_of(to, size) < 0) return INVALID_VALUE;
  memcpy((void *)to, from, size);
  return OK;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
  CURRENT();
  if (block_of(from, size) < 0) return INVALID_VALUE;
  memcpy(to, (void *)from, size);
  return OK;
}

static int mark(Mark **made) {
  *made = malloc(sizeof **made);
  (*made)->owner = stack[depth - 1];
  (*made)->when = now;
  live_marks++;
  return OK;
}
static int unmark(Mark *mark) {
  if (!mark) return INVALID_HANDLE;
  free(mark);
  live_marks--;
  return OK;
}
int cuStreamCreate(Mark **stream, unsigned flags) {
  CURRENT();
  return flags == 1 ? mark(stream) : INVALID_VALUE;
}
int cuStreamDestroy_v2(Mark *stream) { CURRENT(); return unmark(stream); }
int cuEventCreate(Mark **event, unsigned flags) {
  CURRENT();
  return flags ? INVALID_VALUE : mark(event);
}
int cuEventRecord(Mark *event, Mark *stream) {
  CURRENT();
  if (stream && stream->owner != event->owner) return INVALID_HANDLE;
  event->when = now;
  return OK;
}
int cuEventSynchronize(Mark *event) { CURRENT(); return event ? OK : INVALID_HANDLE; }
int cuEventElapsedTime(float *ms, Mark *start, Mark *end) {
  CURRENT();
  *ms = end->when - start->when;
  return OK;
}
int cuEventDestroy_v2(Mark *event) { CURRENT(); return unmark(event); }

/* The newest form of a function, as the real driver gives it to whoever asks for that of a version. */
int cuGetProcAddress_v2(const char *name, void **function, int asked, uint64_t flags, int *found) {
  static void *self;
  char newer[80];
  if (!self) self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  snprintf(newer, sizeof newer, "%s_v2", name);
  *function = asked > version || flags ? 0 : dlsym(self, newer);
  if (!*function && asked <= version) *function = dlsym(self, name);
  if (found) *found = *function ? 0 : 1;
  return *function ? OK : NOT_FOUND;
}

/* Not the real encoding: the arguments in order, to be read back. */
int cuTensorMapEncodeTiled(uint64_t *map, int type, unsigned rank, void *address,
                           const uint64_t *shape, const uint64_t *strides, const uint32_t *box,
                           const uint32_t *steps, int interleave, int swizzle, int l2, int fill) {
  CURRENT();
  if ((uintptr_t)map % 16 || (uintptr_t)address % 16 || interleave || fill) return INVALID_VALUE;
  memset(map, 0, 128);
  map[0] = type;
  map[1] = rank;
  map[2] = (uintptr_t)address;
  for (unsigned i = 0; i < rank; i++) {
    if (steps[i] != 1) return INVALID_VALUE;
    map[3 + i] = shape[i] | (uint64_t)box[i] << 32;
    if (i + 1 < rank) map[8 + i] = strides[i];
  }
  map[12] = swizzle;
  map[13] = l2;
  return OK;
}
