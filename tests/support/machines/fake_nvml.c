/* A libnvidia-ml.so.1 that the tests put before the real one: the calls that Potluck makes, with
 * answers from the environment.
 *
 *   FAKE_NVML_CARDS      how many cards (1)
 *   FAKE_NVML_MIG        MIG instances (1g.5gb) per card; not set: the cards know no MIG
 *   FAKE_NVML_FAULTS     "CALL=CODE,CALL@CARD=CODE": CODE is returned; "crash" and "hang" do so
 *   FAKE_NVML_NAME       every card's name, as raw bytes
 *   FAKE_NVML_UUID       every card's and instance's UUID, as raw bytes
 *   FAKE_NVML_MEMORY     "TOTAL,FREE" of every card and instance, in bytes
 *   FAKE_NVML_LOG        a file that gets a line for each call
 *
 * The cards are at 0000:01:00.0, 0000:02:00.0 and so on: each a GeForce RTX 4090, with MIG an A100.
 * Declarations follow NVIDIA's NVML API reference, figures NVIDIA's data sheets of the two.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int nvmlReturn_t;
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

typedef struct Device {
    unsigned card;
    int instance; /* -1: the card itself */
} *nvmlDevice_t;

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
    unsigned gpu_slices, compute_slices;
    unsigned long long memory_mib;
} nvmlDeviceAttributes_t;

#define MAX_CARDS 32
#define MAX_INSTANCES 7
static struct Device cards[MAX_CARDS], instances[MAX_CARDS][MAX_INSTANCES];

static unsigned number(const char *name, unsigned otherwise) {
    const char *text = getenv(name);
    return text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}

static int knows_mig(void) {
    return getenv("FAKE_NVML_MIG") != NULL;
}

static void note(const char *call) {
    const char *path = getenv("FAKE_NVML_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%s\n", call);
        fclose(file);
    }
}

/* What the environment wants of a call: the code to return. */
static nvmlReturn_t fault(const char *call, int card) {
    note(call);
    const char *rest = getenv("FAKE_NVML_FAULTS");
    while (rest && *rest) {
        char entry[128] = "";
        size_t length = strcspn(rest, ",");
        if (length < sizeof entry) memcpy(entry, rest, length);
        rest += length + (rest[length] == ',');
        char *code = strchr(entry, '=');
        if (!code) continue;
        *code++ = 0;
        char *at = strchr(entry, '@');
        if (at) *at++ = 0;
        if (strcmp(entry, call) != 0 || (at && atoi(at) != card)) continue;
        if (strcmp(code, "crash") == 0) abort();
        if (strcmp(code, "hang") == 0) {
            note("hanging");
            for (;;) pause();
        }
        return atoi(code);
    }
    return SUCCESS;
}

#define CALL(card)                              \
    do {                                        \
        nvmlReturn_t code = fault(__func__, card); \
        if (code != SUCCESS) return code;       \
    } while (0)

static nvmlReturn_t text(char *to, unsigned length, const char *from) {
    snprintf(to, length, "%s", from);
    return SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    printf("a vendor's library that prints\n");
    fflush(stdout);
    CALL(-1);
    return SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    CALL(-1);
    return text(version, length, "550.54.14");
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    CALL(-1);
    *version = 12040;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    CALL(-1);
    *count = number("FAKE_NVML_CARDS", 1);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    CALL((int)index);
    if (index >= MAX_CARDS) return INVALID_ARGUMENT;
    cards[index] = (struct Device){.card = index, .instance = -1};
    *device = &cards[index];
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    CALL((int)device->card);
    memset(pci, 0, sizeof *pci);
    pci->bus = device->card + 1;
    pci->pci_device_id = knows_mig() ? 0x20b010de : 0x268410de;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
    CALL((int)device->card);
    const char *wanted = getenv("FAKE_NVML_NAME");
    if (wanted) return text(name, length, wanted);
    if (device->instance >= 0) return text(name, length, "NVIDIA A100-SXM4-40GB MIG 1g.5gb");
    return text(name, length, knows_mig() ? "NVIDIA A100-SXM4-40GB" : "NVIDIA GeForce RTX 4090");
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    CALL((int)device->card);
    const char *wanted = getenv("FAKE_NVML_UUID");
    if (wanted) return text(uuid, length, wanted);
    snprintf(uuid, length, "%s-0000000%u-0000-0000-0000-00000000000%d",
             device->instance < 0 ? "GPU" : "MIG", device->card, device->instance + 1);
    return SUCCESS;
}

static void sizes(nvmlDevice_t device, unsigned long long *total, unsigned long long *free_bytes) {
    const char *wanted = getenv("FAKE_NVML_MEMORY");
    if (wanted) {
        char *rest;
        *total = strtoull(wanted, &rest, 10);
        *free_bytes = strtoull(rest + 1, NULL, 10);
    } else if (device->instance < 0) {
        *total = (knows_mig() ? 40ull : 24ull) << 30;
        *free_bytes = 20ull << 30;
    } else {
        *total = 4864ull << 20;
        *free_bytes = 4ull << 30;
    }
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    CALL((int)device->card);
    sizes(device, &memory->total, &memory->free);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    CALL((int)device->card);
    sizes(device, &memory->total, &memory->free);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned *count) {
    CALL((int)device->card);
    *count = knows_mig() ? 6912 : 16384;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned *megahertz) {
    CALL((int)device->card);
    int is_sm = type == 1; /* NVML_CLOCK_SM, or NVML_CLOCK_MEM */
    *megahertz = knows_mig() ? (is_sm ? 1410 : 1215) : (is_sm ? 2520 : 10501);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned *bits) {
    CALL((int)device->card);
    *bits = knows_mig() ? 5120 : 384;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    CALL((int)device->card);
    *major = 8;
    *minor = knows_mig() ? 0 : 9;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned length) {
    CALL((int)device->card);
    return text(version, length, "95.02.3c.00.01");
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    CALL((int)device->card);
    if (!knows_mig()) return NOT_SUPPORTED;
    *current = *pending = 1;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count) {
    CALL((int)device->card);
    *count = MAX_INSTANCES;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned slot,
                                                 nvmlDevice_t *instance) {
    CALL((int)device->card);
    if (slot >= MAX_INSTANCES || slot >= number("FAKE_NVML_MIG", 0)) return NOT_FOUND;
    instances[device->card][slot] = (struct Device){.card = device->card, .instance = (int)slot};
    *instance = &instances[device->card][slot];
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id) {
    CALL((int)device->card);
    *id = 7 + (unsigned)device->instance;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id) {
    CALL((int)device->card);
    *id = 0;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    CALL((int)device->card);
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessors = 14;
    attributes->gpu_slices = attributes->compute_slices = 1;
    attributes->memory_mib = 4864;
    return SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t code) {
    (void)code;
    note("nvmlErrorString"); /* nobody should need it: a driver in trouble may fail here too */
    return "an error";
}
