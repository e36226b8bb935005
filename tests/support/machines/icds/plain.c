/* An OpenCL ICD (cl_khr_icd) that shows one platform with devices and computes nothing.
 *
 *   load, devices, info       what happens when the library is loaded, the devices are asked for,
 *                             or one of them is asked for its name: crash, hang, chatter, grow,
 *                             or the number of a signal for the parent process
 *   num_devices               (1), all alike
 *   type                      gpu (default), cpu, accelerator
 *   name, vendor, driver      texts
 *   platform                  the platform's name
 *   vendor_id, memory, largest, units, clock    numbers; sizes in bytes
 *   pci                       "DOMAIN BUS DEVICE FUNCTION", decimal, told as cl_khr_pci_bus_info
 *   nv                        the same, told as NVIDIA does; amd: as AMD does
 *   extensions                texts with spaces
 *   long_name                 so many characters of name
 *   size_lie                  added to each size that is told of what a device says
 */
#include <signal.h>

#include "settings.h"

#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <CL/cl_icd.h>

#define MAX_DEVICES 64

struct _cl_device_id {
    cl_icd_dispatch *dispatch;
};

struct _cl_platform_id {
    cl_icd_dispatch *dispatch;
};

static cl_icd_dispatch table;
static struct _cl_platform_id the_platform = {&table};
static struct _cl_device_id the_devices[MAX_DEVICES];

/* Does what setting `name` says of one moment, such as at=load: crash, hang, chatter. */
static void misbehave(const char *name) {
    if (is_setting(name, "crash")) abort();
    if (is_setting(name, "hang")) hang();
    int number = (int)number_setting(name, 0);
    if (number) kill(getppid(), number);
    if (is_setting(name, "chatter")) {
        printf("Welcome to libvendor!\n{\"platforms\": 7}\n");
        fflush(stdout);
    }
    if (is_setting(name, "grow"))
        for (;;) memset(malloc(1 << 24), 1, 1 << 24);
}

static cl_int reply(const void *from, size_t size, size_t room, void *to, size_t *size_back) {
    if (to && room < size) return CL_INVALID_VALUE;
    if (to) memcpy(to, from, size);
    if (size_back) *size_back = size;
    return CL_SUCCESS;
}

static cl_int reply_text(const char *text, size_t room, void *to, size_t *size_back) {
    return reply(text, strlen(text) + 1, room, to, size_back);
}

static cl_int reply_setting(const char *name, const char *otherwise, size_t room, void *to,
                            size_t *size_back) {
    const char *text = setting(name);
    char copy[MAX_TEXT];
    snprintf(copy, sizeof copy, "%s", text ? text : otherwise);
    return reply_text(copy, room, to, size_back);
}

static cl_int reply_number(const char *name, unsigned long long otherwise, size_t size, size_t room,
                           void *to, size_t *size_back) {
    unsigned long long value = number_setting(name, otherwise); /* little endian */
    return reply(&value, size, room, to, size_back);
}

static cl_int CL_API_CALL get_platform_info(cl_platform_id platform, cl_platform_info what,
                                            size_t room, void *to, size_t *size_back) {
    (void)platform;
    switch (what) {
    case CL_PLATFORM_NAME: return reply_setting("platform", "Fake", room, to, size_back);
    case CL_PLATFORM_VENDOR: return reply_setting("vendor", "Acme", room, to, size_back);
    case CL_PLATFORM_VERSION: return reply_text("OpenCL 3.0 fake", room, to, size_back);
    case CL_PLATFORM_PROFILE: return reply_text("FULL_PROFILE", room, to, size_back);
    case CL_PLATFORM_EXTENSIONS: return reply_text("cl_khr_icd", room, to, size_back);
    case CL_PLATFORM_ICD_SUFFIX_KHR: return reply_text("FAKE", room, to, size_back);
    default: return CL_INVALID_VALUE;
    }
}

static cl_device_type device_type(void) {
    if (is_setting("type", "cpu")) return CL_DEVICE_TYPE_CPU;
    if (is_setting("type", "accelerator")) return CL_DEVICE_TYPE_ACCELERATOR;
    return CL_DEVICE_TYPE_GPU;
}

static cl_int CL_API_CALL get_device_ids(cl_platform_id platform, cl_device_type type, cl_uint room,
                                         cl_device_id *to, cl_uint *count) {
    (void)platform;
    misbehave("devices");
    cl_uint num_devices = (cl_uint)number_setting("num_devices", 1);
    if (!(type & (device_type() | CL_DEVICE_TYPE_DEFAULT)) || num_devices == 0)
        return CL_DEVICE_NOT_FOUND;
    if (count) *count = num_devices;
    for (cl_uint i = 0; to && i < room && i < num_devices && i < MAX_DEVICES; i++) {
        the_devices[i].dispatch = &table;
        to[i] = &the_devices[i];
    }
    return CL_SUCCESS;
}

/* The four numbers of a setting; whether there are such. */
static int place(const char *name, unsigned numbers[4]) {
    const char *text = setting(name);
    return text &&
           sscanf(text, "%u %u %u %u", &numbers[0], &numbers[1], &numbers[2], &numbers[3]) == 4;
}

static cl_int device_info(cl_device_info what, size_t room, void *to, size_t *size_back) {
    unsigned at[4];
    switch (what) {
    case CL_DEVICE_TYPE: {
        cl_device_type type = device_type();
        return reply(&type, sizeof type, room, to, size_back);
    }
    case CL_DEVICE_NAME: {
        misbehave("info");
        size_t length = (size_t)number_setting("long_name", 0);
        if (length == 0) return reply_setting("name", "Fake GPU", room, to, size_back);
        char *name = calloc(length + 1, 1);
        memset(name, 'x', length);
        cl_int status = reply_text(name, room, to, size_back);
        free(name);
        return status;
    }
    case CL_DEVICE_VENDOR: return reply_setting("vendor", "Acme", room, to, size_back);
    case CL_DRIVER_VERSION: return reply_setting("driver", "1.0", room, to, size_back);
    case CL_DEVICE_VERSION: return reply_text("OpenCL 3.0 fake", room, to, size_back);
    case CL_DEVICE_EXTENSIONS: return reply_setting("extensions", "", room, to, size_back);
    case CL_DEVICE_VENDOR_ID: return reply_number("vendor_id", 0x1234, 4, room, to, size_back);
    case CL_DEVICE_GLOBAL_MEM_SIZE:
        return reply_number("memory", 4ull << 30, 8, room, to, size_back);
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE:
        return reply_number("largest", 1ull << 30, 8, room, to, size_back);
    case CL_DEVICE_MAX_COMPUTE_UNITS: return reply_number("units", 4, 4, room, to, size_back);
    case CL_DEVICE_MAX_CLOCK_FREQUENCY:
        return reply_number("clock", 1000, 4, room, to, size_back);
    case CL_DEVICE_HOST_UNIFIED_MEMORY:
        return reply_number("is_shared", 1, 4, room, to, size_back);
    case CL_DEVICE_PCI_BUS_INFO_KHR:
        if (!place("pci", at)) return CL_INVALID_VALUE;
        return reply(at, sizeof at, room, to, size_back);
    case 0x4008: /* CL_DEVICE_PCI_BUS_ID_NV */
        if (!place("nv", at)) return CL_INVALID_VALUE;
        return reply(&at[1], 4, room, to, size_back);
    case 0x4009: /* CL_DEVICE_PCI_SLOT_ID_NV: device and function */
        if (!place("nv", at)) return CL_INVALID_VALUE;
        at[2] = at[2] << 3 | at[3];
        return reply(&at[2], 4, room, to, size_back);
    case 0x400A: /* CL_DEVICE_PCI_DOMAIN_ID_NV */
        if (!place("nv", at)) return CL_INVALID_VALUE;
        return reply(&at[0], 4, room, to, size_back);
    case CL_DEVICE_TOPOLOGY_AMD: {
        if (!place("amd", at)) return CL_INVALID_VALUE;
        /* cl_device_topology_amd: a type (1, PCIe), 17 bytes unused, bus, device, function. */
        unsigned char topology[24] = {1};
        for (int i = 1; i < 4; i++) topology[20 + i] = (unsigned char)at[i];
        return reply(topology, sizeof topology, room, to, size_back);
    }
    default: return CL_INVALID_VALUE;
    }
}

static cl_int CL_API_CALL get_device_info(cl_device_id device, cl_device_info what, size_t room,
                                          void *to, size_t *size_back) {
    (void)device;
    cl_int status = device_info(what, room, to, size_back);
    if (status == CL_SUCCESS && !to && size_back) *size_back += number_setting("size_lie", 0);
    return status;
}

static cl_context CL_API_CALL create_context(const cl_context_properties *properties, cl_uint count,
                                             const cl_device_id *devices,
                                             void(CL_CALLBACK *notify)(const char *, const void *,
                                                                       size_t, void *),
                                             void *data, cl_int *status) {
    (void)properties, (void)count, (void)devices, (void)notify, (void)data;
    if (status) *status = CL_DEVICE_NOT_AVAILABLE;
    return NULL;
}

static cl_int CL_API_CALL get_platform_ids(cl_uint room, cl_platform_id *to, cl_uint *count) {
    if (to && room > 0) to[0] = &the_platform;
    if (count) *count = 1;
    return CL_SUCCESS;
}

__attribute__((visibility("default"))) void *clGetExtensionFunctionAddress(const char *name) {
    if (strcmp(name, "clIcdGetPlatformIDsKHR") == 0) return (void *)get_platform_ids;
    if (strcmp(name, "clGetPlatformInfo") == 0) return (void *)get_platform_info;
    return NULL;
}

__attribute__((constructor)) static void load(void) {
    table.clGetPlatformIDs = get_platform_ids;
    table.clGetPlatformInfo = get_platform_info;
    table.clGetDeviceIDs = get_device_ids;
    table.clGetDeviceInfo = get_device_info;
    table.clCreateContext = create_context;
    table.clGetExtensionFunctionAddress = clGetExtensionFunctionAddress;
    misbehave("load");
}
