/* An OpenCL ICD that computes: PoCL, with what it says of itself and how it fails changed.
 *
 *   real                        PoCL's own library
 *   type                        gpu: its device says that it is one
 *   name, vendor, platform, driver   texts said instead of PoCL's
 *   vendor_id, memory, largest  numbers said instead; sizes in bytes
 *   pci                         "DOMAIN BUS DEVICE FUNCTION", decimal
 *   fault                       what goes wrong:
 *     wrong                       each 4 bytes that are read back have a bit changed (0x00400000)
 *     nan                         each 4 bytes that are read back are a NaN
 *     hang, crash                 in a kernel's start
 *     out-of-resources            CL_OUT_OF_RESOURCES from a kernel's start
 *     allocation-failure          CL_MEM_OBJECT_ALLOCATION_FAILURE from clCreateBuffer
 *   fault_at                    from which call on, counted from 1 in each process and kind of call
 */
#include "settings.h"

#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <CL/cl_icd.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

struct object {
    cl_icd_dispatch *dispatch;
};

static cl_icd_dispatch pocl;
static atomic_uint num_reads, num_kernels, num_buffers;

/* Whether a fault is wanted, by now. */
static int is_due(const char *fault, unsigned call) {
    return is_setting("fault", fault) && call >= number_setting("fault_at", 1);
}

static cl_int reply(const void *from, size_t size, size_t room, void *to, size_t *size_back) {
    if (to && room < size) return CL_INVALID_VALUE;
    if (to) memcpy(to, from, size);
    if (size_back) *size_back = size;
    return CL_SUCCESS;
}

static int has_text(const char *name, char copy[MAX_TEXT]) {
    const char *text = setting(name);
    if (text) snprintf(copy, MAX_TEXT, "%s", text);
    return text != NULL;
}

static cl_int CL_API_CALL get_platform_info(cl_platform_id platform, cl_platform_info what,
                                            size_t room, void *to, size_t *size_back) {
    char text[MAX_TEXT];
    if ((what == CL_PLATFORM_NAME && has_text("platform", text)) ||
        (what == CL_PLATFORM_VENDOR && has_text("vendor", text)))
        return reply(text, strlen(text) + 1, room, to, size_back);
    return pocl.clGetPlatformInfo(platform, what, room, to, size_back);
}

static cl_int CL_API_CALL get_device_ids(cl_platform_id platform, cl_device_type type, cl_uint room,
                                         cl_device_id *to, cl_uint *count) {
    if (!is_setting("type", "gpu"))
        return pocl.clGetDeviceIDs(platform, type, room, to, count);
    if (!(type & (CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_DEFAULT))) return CL_DEVICE_NOT_FOUND;
    return pocl.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, room, to, count);
}

static cl_int CL_API_CALL get_device_info(cl_device_id device, cl_device_info what, size_t room,
                                          void *to, size_t *size_back) {
    char text[MAX_TEXT];
    if ((what == CL_DEVICE_NAME && has_text("name", text)) ||
        (what == CL_DEVICE_VENDOR && has_text("vendor", text)) ||
        (what == CL_DRIVER_VERSION && has_text("driver", text)))
        return reply(text, strlen(text) + 1, room, to, size_back);
    if (what == CL_DEVICE_TYPE && is_setting("type", "gpu")) {
        cl_device_type type = CL_DEVICE_TYPE_GPU;
        return reply(&type, sizeof type, room, to, size_back);
    }
    if (what == CL_DEVICE_VENDOR_ID && setting("vendor_id")) {
        cl_uint id = (cl_uint)number_setting("vendor_id", 0);
        return reply(&id, sizeof id, room, to, size_back);
    }
    const char *size = what == CL_DEVICE_GLOBAL_MEM_SIZE    ? "memory"
                       : what == CL_DEVICE_MAX_MEM_ALLOC_SIZE ? "largest"
                                                              : "";
    if (*size && setting(size)) {
        cl_ulong bytes = number_setting(size, 0);
        return reply(&bytes, sizeof bytes, room, to, size_back);
    }
    unsigned at[4];
    if (what == CL_DEVICE_PCI_BUS_INFO_KHR && has_text("pci", text) &&
        sscanf(text, "%u %u %u %u", &at[0], &at[1], &at[2], &at[3]) == 4)
        return reply(at, sizeof at, room, to, size_back);
    return pocl.clGetDeviceInfo(device, what, room, to, size_back);
}

static cl_mem CL_API_CALL create_buffer(cl_context context, cl_mem_flags flags, size_t size,
                                        void *host, cl_int *status) {
    if (is_due("allocation-failure", ++num_buffers)) {
        if (status) *status = CL_MEM_OBJECT_ALLOCATION_FAILURE;
        return NULL;
    }
    return pocl.clCreateBuffer(context, flags, size, host, status);
}

static cl_int CL_API_CALL enqueue_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint num_dims,
                                         const size_t *offset, const size_t *global,
                                         const size_t *local, cl_uint num_events,
                                         const cl_event *events, cl_event *event) {
    unsigned call = ++num_kernels;
    if (is_due("hang", call)) hang();
    if (is_due("crash", call)) abort();
    if (is_due("out-of-resources", call)) return CL_OUT_OF_RESOURCES;
    return pocl.clEnqueueNDRangeKernel(queue, kernel, num_dims, offset, global, local, num_events,
                                       events, event);
}

static cl_int CL_API_CALL enqueue_read(cl_command_queue queue, cl_mem buffer, cl_bool is_blocking,
                                       size_t offset, size_t size, void *to, cl_uint num_events,
                                       const cl_event *events, cl_event *event) {
    unsigned call = ++num_reads;
    int is_wrong = is_due("wrong", call), is_nan = is_due("nan", call);
    cl_int status =
        pocl.clEnqueueReadBuffer(queue, buffer, is_blocking || is_wrong || is_nan ? CL_TRUE : CL_FALSE,
                                 offset, size, to, num_events, events, event);
    if (status != CL_SUCCESS) return status;
    for (size_t i = 0; i + 4 <= size && (is_wrong || is_nan); i += 4) {
        uint32_t word;
        memcpy(&word, (char *)to + i, 4);
        word = is_nan ? 0x7FFFFFFF : word ^ 0x00400000;
        memcpy((char *)to + i, &word, 4);
    }
    return status;
}

/* PoCL's objects point to its table, which is changed where it is. */
static void take_over(cl_platform_id platform) {
    cl_icd_dispatch *table = ((struct object *)platform)->dispatch;
    if (pocl.clGetPlatformIDs) return;
    memcpy(&pocl, table, sizeof pocl);
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t start = (uintptr_t)table & ~(page - 1);
    mprotect((void *)start, (uintptr_t)(table + 1) - start, PROT_READ | PROT_WRITE);
    table->clGetPlatformInfo = get_platform_info;
    table->clGetDeviceIDs = get_device_ids;
    table->clGetDeviceInfo = get_device_info;
    table->clCreateBuffer = create_buffer;
    table->clEnqueueNDRangeKernel = enqueue_kernel;
    table->clEnqueueReadBuffer = enqueue_read;
}

typedef void *(*address_of)(const char *);
typedef cl_int(CL_API_CALL *platform_ids)(cl_uint, cl_platform_id *, cl_uint *);

static void *of_pocl(const char *name) {
    const char *path = setting("real");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    address_of address = library ? (address_of)dlsym(library, "clGetExtensionFunctionAddress") : NULL;
    return address ? address(name) : NULL;
}

static cl_int CL_API_CALL get_platform_ids(cl_uint room, cl_platform_id *to, cl_uint *count) {
    platform_ids real = (platform_ids)of_pocl("clIcdGetPlatformIDsKHR");
    if (!real) return CL_PLATFORM_NOT_FOUND_KHR;
    cl_int status = real(room, to, count);
    if (status == CL_SUCCESS && to && room > 0) take_over(to[0]);
    return status;
}

__attribute__((visibility("default"))) void *clGetExtensionFunctionAddress(const char *name) {
    if (strcmp(name, "clIcdGetPlatformIDsKHR") == 0) return (void *)get_platform_ids;
    if (strcmp(name, "clGetPlatformInfo") == 0) return (void *)get_platform_info;
    return of_pocl(name);
}
