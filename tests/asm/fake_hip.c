// A HIP runtime without a GPU, for Triton's own launcher to talk to: it keeps what would be
// launched. `fake_launch` reads it back; nothing runs.
#include <dlfcn.h>
#include <hip/hip_runtime_api.h>
#include <stdint.h>
#include <string.h>

enum { kLaunches = 16, kArguments = 64, kNameBytes = 128, kModules = 64 };

typedef struct {
  char kernel[kNameBytes];
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  uint64_t arguments[kArguments];
} Launch;

static Launch launches[kLaunches];
static int launch_count;
static int argument_count;  // kernelParams does not say how many there are
static char names[kModules][kNameBytes];
static int name_count;

void fake_reset(int arguments) {
  launch_count = 0;
  argument_count = arguments;
}

int fake_launch_count(void) { return launch_count; }

const Launch *fake_launch(int index) { return &launches[index]; }

static hipError_t get_properties(hipDeviceProp_t *properties, int device) {
  (void)device;
  memset(properties, 0, sizeof(*properties));
  properties->sharedMemPerBlock = 163840;
  properties->regsPerBlock = 131072;
  properties->multiProcessorCount = 256;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->warpSize = 64;
  strcpy(properties->gcnArchName, "gfx950:sramecc+:xnack-");
  return hipSuccess;
}

static hipError_t load_module(hipModule_t *module, const void *image, unsigned count,
                              hipJitOption *options, void **values) {
  (void)count, (void)options, (void)values;
  *module = (hipModule_t)image;
  return memcmp(image, "\177ELF", 4) ? hipErrorInvalidImage : hipSuccess;
}

static hipError_t get_function(hipFunction_t *function, hipModule_t module, const char *name) {
  (void)module;
  if (name_count == kModules || strlen(name) >= kNameBytes) return hipErrorOutOfMemory;
  strcpy(names[name_count], name);
  *function = (hipFunction_t)names[name_count++];
  return hipSuccess;
}

static hipError_t get_attribute(int *value, hipFunction_attribute attribute, hipFunction_t f) {
  (void)f;
  *value = attribute == HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return hipSuccess;
}

static hipError_t launch(hipFunction_t f, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                         unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                         hipStream_t stream, void **parameters, void **extra) {
  (void)stream, (void)extra;
  if (launch_count == kLaunches || argument_count > kArguments) return hipErrorOutOfMemory;
  Launch *one = &launches[launch_count++];
  strcpy(one->kernel, (const char *)f);
  one->grid[0] = grid_x, one->grid[1] = grid_y, one->grid[2] = grid_z;
  one->block[0] = block_x, one->block[1] = block_y, one->block[2] = block_z;
  one->shared_bytes = shared;
  // Eight bytes each: the reader knows the types and drops what lies beyond them.
  for (int i = 0; i < argument_count; i++) memcpy(&one->arguments[i], parameters[i], 8);
  return hipSuccess;
}

static hipError_t get_pointer_attribute(void *data, hipPointer_attribute attribute,
                                        hipDeviceptr_t pointer) {
  (void)attribute;
  *(hipDeviceptr_t *)data = pointer;
  return hipSuccess;
}

static hipError_t unsupported(void) { return hipErrorNotSupported; }

static const char *error_string(hipError_t error) {
  return error == hipErrorNotSupported ? "the fake runtime has no such call" : "fake error";
}

static hipError_t last_error(void) { return hipSuccess; }

hipError_t hipDriverGetVersion(int *version) {
  *version = HIP_VERSION;
  return hipSuccess;
}

hipError_t hipGetProcAddress(const char *symbol, void **function, int version, uint64_t flags,
                             hipDriverProcAddressQueryResult *status) {
  static const struct {
    const char *name;
    void *function;
  } known[] = {
      {"hipGetDeviceProperties", get_properties},
      {"hipGetDevicePropertiesR0600", get_properties},
      {"hipModuleLoadDataEx", load_module},
      {"hipModuleGetFunction", get_function},
      {"hipFuncGetAttribute", get_attribute},
      {"hipModuleLaunchKernel", launch},
      {"hipPointerGetAttribute", get_pointer_attribute},
      {"hipGetErrorString", error_string},
      {"hipGetLastError", last_error},
      {"hipModuleUnload", last_error},
  };
  (void)version, (void)flags, (void)status;
  *function = unsupported;
  for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++)
    if (!strcmp(symbol, known[i].name)) *function = known[i].function;
  return hipSuccess;
}
