/* What a fake ICD should do: lines NAME=TEXT in a file beside the library, LIBRARY.settings. Read
 * anew whenever it is asked for, so that a test can change it while a process uses the library.
 */
#ifndef SETTINGS_H
#define SETTINGS_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_TEXT 256

/* The text of a setting, in a buffer of the thread's own; NULL where there is none. */
static const char *setting(const char *name) {
    static __thread char line[MAX_TEXT];
    char path[4096];
    Dl_info here;
    if (!dladdr((void *)setting, &here)) return NULL;
    snprintf(path, sizeof path, "%s.settings", here.dli_fname);
    FILE *file = fopen(path, "re");
    if (!file) return NULL;
    const char *found = NULL;
    size_t length = strlen(name);
    while (!found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, name, length) == 0 && line[length] == '=') found = line + length + 1;
    }
    fclose(file);
    return found;
}

static unsigned long long number_setting(const char *name, unsigned long long otherwise) {
    const char *text = setting(name);
    return text ? strtoull(text, NULL, 0) : otherwise;
}

static int is_setting(const char *name, const char *wanted) {
    const char *text = setting(name);
    return text && strcmp(text, wanted) == 0;
}

static void hang(void) {
    for (;;) pause();
}

#endif
