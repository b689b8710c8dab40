/* A provider in C with nothing behind it: what the loader's tests load, with WHAT chosen by them. */
#include "sanshim_provider.h"
#include <stddef.h>
#include <string.h>

#define GOOD 0
#define OLD_VERSION 1
#define INCOMPLETE 2
#define SPEAKS_NOTHING 3

static void query(struct sanshim_info *info) {
    memset(info, 0, sizeof *info);
    strcpy(info->kind, "sample");
    strcpy(info->version, "7.0");
    info->families = SANSHIM_IPV6;
}

static sanshim_status unusable(char *text, uint32_t size) {
    strncpy(text, "there is no sample device; plug one in", size - 1);
    return 1;
}

static sanshim_status can_unload(void) { return 1; }
static sanshim_status open_it(sanshim_handle *handle) { return *handle = &query, SANSHIM_DONE; }
static void close_it(sanshim_handle handle) { (void)handle; }

static sanshim_status addresses(sanshim_handle handle, struct sockaddr_storage *list, uint32_t *count) {
    (void)handle;
    /* More than fit at first. */
    for (uint32_t i = 0; i < *count && i < 100; i++) {
        memset(&list[i], 0, sizeof list[i]);
        list[i].ss_family = AF_INET;
    }
    *count = 100;
    return SANSHIM_DONE;
}

static sanshim_status no_adapter(sanshim_handle h, const struct sockaddr_storage *a, sanshim_handle *o) {
    (void)h, (void)a, (void)o;
    return SANSHIM_ADDRESS_NOT_AVAILABLE;
}

static struct sanshim_provider_table table;

const struct sanshim_provider_table *sanshim_provider(uint32_t version) {
    if (WHAT == SPEAKS_NOTHING || version != SANSHIM_PROVIDER_VERSION)
        return NULL;
    /* What is never reached without an adapter. */
    void **words = (void **)&table;
    for (size_t i = 1; i < sizeof table / sizeof *words; i++)
        words[i] = (void *)no_adapter;
    table.size = sizeof table;
    table.version = WHAT == OLD_VERSION ? 0 : SANSHIM_PROVIDER_VERSION;
    table.query = query;
    table.unusable = unusable;
    table.can_unload = can_unload;
    table.open = open_it;
    table.close_provider = close_it;
    table.addresses = addresses;
    table.open_adapter = WHAT == INCOMPLETE ? NULL : no_adapter;
    return &table;
}
