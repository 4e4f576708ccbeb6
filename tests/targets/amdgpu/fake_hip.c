/* HIP without a GPU: device memory is host memory, and a launch is handed to a callback.

It checks what HIP checks (devices, images and the chip they are for, functions, streams, addresses,
well-formed launch parameters and their limits) and refuses with HIP's numbers. The tests steer it
through the fake_* functions; a callback may run the kernel itself, on the very addresses it is
given, or refuse it with a status. */

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100,
       INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_HANDLE = 400, NOT_FOUND = 500,
       NO_BINARY_FOR_GPU = 209, CAPTURE_UNSUPPORTED = 900 };

typedef struct { int device; const char *image; } Module; /* HIP, too, keeps no copy it needs */
typedef struct { Module *module; char name[64]; } Function;
typedef struct { int device; double when; } Mark; /* a stream or an event */
typedef int (*Launched)(const char *entry, const unsigned *grid_block_shared, uintptr_t stream,
                        const void *arguments, size_t size, int device, const char *image,
                        size_t image_size);
typedef uintptr_t (*Take)(size_t size, int device);
typedef void (*Give)(uintptr_t address, int device);

static int initialized, device_count = 2;
static __thread int current;
static Launched launched;
static Take take; /* where memory comes from; aligned_alloc if none */
static Give give;
static char chips[2][64] = {"gfx942:sramecc+:xnack-", "gfx1030"};
static char failing[64];
static int failing_status;
static int live_blocks, live_marks;
static double now;
static struct { uintptr_t start; size_t size; int device; } blocks[4096];

void fake_on_launch(Launched callback) { launched = callback; }
void fake_memory(Take from, Give back) { take = from, give = back; }
void fake_chip(int device, const char *chip) {
  snprintf(chips[device], sizeof chips[device], "%s", chip);
}
void fake_devices(int count) { device_count = count; }
void fake_fail(const char *function, int status) {
  snprintf(failing, sizeof failing, "%s", function);
  failing_status = status;
}
int fake_live_blocks(void) { return live_blocks; }
int fake_live_marks(void) { return live_marks; }

static int refused(const char *function) {
  if (strcmp(function, failing)) return 0;
  failing[0] = 0;
  return failing_status;
}
#define ENTER() do { int r = refused(__func__); if (r) return r; \
  if (!initialized) return NOT_INITIALIZED; } while (0)

int hipInit(unsigned flags) {
  int r = refused(__func__);
  if (r) return r;
  if (device_count == 0) return NO_DEVICE;
  initialized = 1;
  return flags ? INVALID_VALUE : OK;
}
const char *hipGetErrorName(int status) {
  return status == OUT_OF_MEMORY ? "hipErrorOutOfMemory"
       : status == INVALID_DEVICE ? "hipErrorInvalidDevice"
       : status == NOT_FOUND ? "hipErrorNotFound"
       : status == INVALID_VALUE ? "hipErrorInvalidValue"
       : status == INVALID_IMAGE ? "hipErrorInvalidImage"
       : status == NO_BINARY_FOR_GPU ? "hipErrorNoBinaryForGpu"
       : status == 700 ? "hipErrorIllegalAddress" : "hipErrorUnknown";
}
const char *hipGetErrorString(int status) {
  return status == 700 ? "an illegal memory access was encountered" : "words";
}
int hipRuntimeGetVersion(int *version) { *version = 60241134; return OK; }
int hipGetDeviceCount(int *count) { ENTER(); *count = device_count; return OK; }
int hipGetDevicePropertiesR0600(char *properties, int device) {
  ENTER();
  if (device < 0 || device >= device_count) return INVALID_DEVICE;
  memset(properties, 0xee, 1472);
  snprintf(properties, 256, device ? "Fake Radeon" : "Fake Instinct");
  *(size_t *)(properties + 288) = (size_t)(device ? 24 : 192) << 30;
  *(size_t *)(properties + 296) = 65536;
  *(int *)(properties + 308) = strncmp(chips[device], "gfx9", 4) ? 32 : 64;
  *(int *)(properties + 388) = device ? 48 : 304;
  snprintf(properties + 1160, 256, "%s", chips[device]);
  return OK;
}
int hipGetDevice(int *device) { ENTER(); *device = current; return OK; }
int hipSetDevice(int device) {
  ENTER();
  if (device < 0 || device >= device_count) return INVALID_DEVICE;
  current = device;
  return OK;
}
int hipDeviceSynchronize(void) { ENTER(); return OK; }

static int capturing;
static __thread int capture_mode; /* global */
void fake_capturing(int yes) { capturing = yes; }
int hipStreamIsCapturing(Mark *stream, int *status) {
  ENTER();
  if (!stream) return INVALID_VALUE; /* stands for the refusal of the default stream */
  *status = capturing;
  return OK;
}
int hipThreadExchangeStreamCaptureMode(int *mode) {
  ENTER();
  int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return OK;
}
int fake_capture_mode(void) { return capture_mode; }

static int is_for(const char *image, const char *chip) {
  static const struct { const char *chip; int machine; } machines[] = { /* EF_AMDGPU_MACH */
    {"gfx90a", 0x3f}, {"gfx942", 0x4c}, {"gfx950", 0x4f}, {"gfx1030", 0x36}, {"gfx1100", 0x41},
    {"gfx1151", 0x4a}, {"gfx1200", 0x48}, {"gfx1201", 0x4e} };
  for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
    if (!strncmp(chip, machines[i].chip, strlen(machines[i].chip)))
      return (unsigned char)image[48] == machines[i].machine; /* e_flags, the lowest byte */
  return 0;
}
static size_t image_size(const char *image) { /* section headers come last */
  return *(const uint64_t *)(image + 40) + 64 * *(const uint16_t *)(image + 60);
}
int hipModuleLoadData(Module **module, const char *image) {
  ENTER();
  if (capturing && capture_mode != 2) return CAPTURE_UNSUPPORTED;
  if (memcmp(image, "\x7f" "ELF", 4) || image[16] != 3) return INVALID_IMAGE; /* ET_DYN only */
  if (!is_for(image, chips[current])) return NO_BINARY_FOR_GPU;
  *module = malloc(sizeof **module);
  (*module)->device = current;
  (*module)->image = image;
  return OK;
}
int hipModuleGetFunction(Function **function, Module *module, const char *name) {
  ENTER();
  if (!module) return INVALID_HANDLE;
  char descriptor[64]; /* between zeros, as string tables have it */
  int length = snprintf(descriptor, sizeof descriptor, "%c%s.kd", 0, name) + 1;
  if (!memmem(module->image, image_size(module->image), descriptor, length)) return NOT_FOUND;
  *function = malloc(sizeof **function);
  (*function)->module = module;
  snprintf((*function)->name, sizeof (*function)->name, "%s", name);
  return OK;
}
int hipModuleLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, Mark *stream,
                          void **parameters, void **extra) {
  ENTER();
  unsigned shape[7] = {gx, gy, gz, bx, by, bz, shared};
  if (!f || f->module->device != current) return INVALID_HANDLE;
  if (stream && stream->device != current) return INVALID_HANDLE;
  for (int i = 0; i < 6; i++)
    if (shape[i] == 0) return INVALID_VALUE;
  for (int i = 0; i < 3; i++)
    if ((uint64_t)shape[i] * shape[i + 3] > UINT32_MAX) return INVALID_VALUE;
  if ((uint64_t)bx * by * bz > 1024 || shared > 65536) return INVALID_VALUE;
  if (parameters || !extra) return INVALID_VALUE;
  if (extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != (void *)3) return INVALID_VALUE;
  now += 0.25;
  if (launched)
    return launched(f->name, shape, (uintptr_t)stream, extra[1], *(size_t *)extra[3], current,
                    f->module->image, image_size(f->module->image));
  return OK;
}

int hipMalloc(uintptr_t *address, size_t size) {
  ENTER();
  if (size == 0) { *address = 0; return OK; }
  if (size >> 36) return OUT_OF_MEMORY;
  for (int i = 0; i < 4096; i++)
    if (!blocks[i].start) {
      blocks[i].start = take ? take(size, current)
                             : (uintptr_t)aligned_alloc(256, (size + 255) / 256 * 256);
      *address = blocks[i].start;
      memset((void *)blocks[i].start, 0xff, size); /* poison */
      blocks[i].size = size;
      blocks[i].device = current;
      live_blocks++;
      return OK;
    }
  return OUT_OF_MEMORY;
}
static int block_of(uintptr_t address, size_t size) {
  for (int i = 0; i < 4096; i++)
    if (blocks[i].start && address >= blocks[i].start &&
        address + size <= blocks[i].start + blocks[i].size && blocks[i].device == current)
      return i;
  return -1;
}
int hipFree(uintptr_t address) {
  ENTER();
  int i = block_of(address, 0);
  if (i < 0 || blocks[i].start != address) return INVALID_VALUE;
  if (give) give(address, current);
  else free((void *)address);
  blocks[i].start = 0;
  live_blocks--;
  return OK;
}
int hipMemcpyHtoD(uintptr_t to, const void *from, size_t size) {
  ENTER();
  if (block_of(to, size) < 0) return INVALID_VALUE;
  memcpy((void *)to, from, size);
  return OK;
}
int hipMemcpyDtoH(void *to, uintptr_t from, size_t size) {
  ENTER();
  if (block_of(from, size) < 0) return INVALID_VALUE;
  memcpy(to, (void *)from, size);
  return OK;
}

static int mark(Mark **made) {
  *made = malloc(sizeof **made);
  (*made)->device = current;
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
int hipStreamCreateWithFlags(Mark **stream, unsigned flags) {
  ENTER();
  return flags == 1 ? mark(stream) : INVALID_VALUE;
}
int hipStreamDestroy(Mark *stream) { ENTER(); return unmark(stream); }
int hipEventCreate(Mark **event) { ENTER(); return mark(event); }
int hipEventRecord(Mark *event, Mark *stream) {
  ENTER();
  if (stream && stream->device != event->device) return INVALID_HANDLE;
  event->when = now;
  return OK;
}
int hipEventSynchronize(Mark *event) { ENTER(); return event ? OK : INVALID_HANDLE; }
int hipEventElapsedTime(float *ms, Mark *start, Mark *end) {
  ENTER();
  *ms = end->when - start->when;
  return OK;
}
int hipEventDestroy(Mark *event) { ENTER(); return unmark(event); }
