/* The provider interface of sanshim, version 3: what a library libsanshim_NAME.so beside
 * libsanshim.so gives, so that sanshim carries connections over the network it knows.
 * docs/providers.md tells how to write one and what each function must keep to.
 *
 * Rules for all of them: any thread may call any of them at any time. Nothing blocks longer than a
 * local system call, nothing calls back into the client, nothing writes to standard output or
 * error, no exception leaves a function. The client closes an object before the ones it was made
 * from, and passes handles of this library only.
 */
#ifndef SANSHIM_PROVIDER_H
#define SANSHIM_PROVIDER_H

#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SANSHIM_PROVIDER_VERSION 3

/* A status: SANSHIM_DONE, SANSHIM_PENDING (only where it says so), or an error. Only a pending
 * operation is reported later, once, by next_result of the same object. */
typedef int32_t sanshim_status;
enum {
    SANSHIM_DONE = 0,
    SANSHIM_PENDING = 1,
    SANSHIM_INVALID_PARAMETER = -1,
    SANSHIM_INSUFFICIENT_RESOURCES = -2,
    SANSHIM_NOT_SUPPORTED = -3,
    SANSHIM_ADDRESS_IN_USE = -4,
    SANSHIM_ADDRESS_NOT_AVAILABLE = -5,
    SANSHIM_CONNECTION_REFUSED = -6,
    SANSHIM_CONNECTION_RESET = -7,
    SANSHIM_HOST_UNREACHABLE = -8,
    SANSHIM_TIMED_OUT = -9,
    SANSHIM_CANCELLED = -10,
    SANSHIM_NOT_CONNECTED = -11,
    SANSHIM_LOCAL_ACCESS = -12,
    SANSHIM_REMOTE_ACCESS = -13,
    SANSHIM_BUFFER_OVERFLOW = -14,
    SANSHIM_DEVICE_REMOVED = -15,
    SANSHIM_ACCESS_DENIED = -16,
    SANSHIM_INTERNAL = -17
};

/* The library's own objects. */
typedef void *sanshim_handle;

/* What a provider says of itself. Texts are ASCII and end with a zero. */
struct sanshim_info {
    char kind[16];
    char version[32];
    uint32_t families; /* SANSHIM_IPV4 | SANSHIM_IPV6 */
};
enum { SANSHIM_IPV4 = 1, SANSHIM_IPV6 = 2 };

/* What an adapter can do. */
struct sanshim_limits {
    uint64_t max_registration;         /* bytes of one registration */
    uint32_t max_message;              /* bytes of one message */
    uint32_t max_transfer;             /* bytes of one RDMA read or write; 0: there are none */
    uint32_t max_inline;               /* bytes of one inline send; 0: there are none */
    uint32_t max_segments;             /* segments of one request; a read may be refused with fewer */
    uint32_t max_receive_depth;        /* receives posted on one queue pair */
    uint32_t max_initiator_depth;      /* other requests outstanding on one queue pair */
    uint32_t max_shared_receive_depth; /* 0: no shared receive queues */
    uint32_t max_completion_depth;     /* results that one completion queue holds */
    uint32_t max_inbound_reads;
    uint32_t max_outbound_reads;
    uint32_t max_private_data;         /* bytes that go with a connection request */
    uint32_t rdma_threshold;           /* from so many bytes on RDMA beats messages */
    uint32_t flags;                    /* SANSHIM_BIND, ... */
    uint32_t reserved;
};
enum {
    SANSHIM_BIND = 1,              /* bind and invalidate work: RDMA reaches one peer only */
    SANSHIM_APPLICATION_MEMORY = 2, /* registering the program's memory is safe over fork */
    SANSHIM_UNHELD = 4, /* a message that finds no receive posted ends the connection, and a send completes
                         * before the peer has it: sanshim carries no connections over such an adapter */
    SANSHIM_TELLS = 8,  /* writes may have SANSHIM_TELL */
    SANSHIM_BIND_ALONE = 16 /* a client binds only while nothing is outstanding on the queue pair */
};

/* A piece of registered local memory. */
struct sanshim_segment {
    uint64_t address;
    uint32_t length;
    uint32_t token; /* local_token of its region */
};

/* Memory of the peer. */
struct sanshim_remote_memory {
    uint64_t address;
    uint32_t token; /* from its bind */
};
enum { SANSHIM_READ = 1, SANSHIM_WRITE = 2 }; /* access of bind */

/* Flags of a request. */
enum {
    SANSHIM_SILENT = 1,    /* no completion if it succeeds */
    SANSHIM_READ_FENCE = 2, /* not before earlier RDMA reads have ended */
    SANSHIM_AT_ONCE = 4, /* of an invalidation: ended when the call returns, no request, no completion */
    SANSHIM_TELL = 8 /* of a write: takes a receive of the peer's, which completes as SANSHIM_KIND_TOLD once all
                      * is written; its buffer stays as it was */
};

/* Kinds of completions. */
enum {
    SANSHIM_KIND_RECEIVE = 0,
    SANSHIM_KIND_SEND = 1,
    SANSHIM_KIND_READ = 2,
    SANSHIM_KIND_WRITE = 3,
    SANSHIM_KIND_BIND = 4,
    SANSHIM_KIND_INVALIDATE = 5,
    SANSHIM_KIND_UNKNOWN = 6, /* failed, and the device does not say what it was */
    SANSHIM_KIND_TOLD = 7     /* a receive that a write with SANSHIM_TELL took; the length is that of the write */
};

/* An entry of a completion queue. */
struct sanshim_completion {
    uint64_t request;
    uint64_t queue_pair; /* the context of its attributes */
    sanshim_status status;
    uint32_t kind;
    uint32_t length; /* bytes received */
    uint32_t reserved;
};

/* Sizes of a queue pair, each within the adapter's limits. */
struct sanshim_queue_pair_attributes {
    uint64_t context;
    uint32_t receive_depth;
    uint32_t initiator_depth;
    uint32_t segments;
    uint32_t inline_size;
};

/* What objects with asynchronous operations share. */
struct sanshim_overlapped {
    /* Readable while a result waits to be fetched; belongs to the object. */
    int32_t (*descriptor)(sanshim_handle);
    /* 1 and a result (request, status), or 0. Never blocks. */
    sanshim_status (*next_result)(sanshim_handle, uint64_t *request, sanshim_status *status);
    /* Every pending operation is reported, cancelled or as it ended. */
    void (*cancel)(sanshim_handle);
};

/* No function may be null. "Pending" marks those that may be. */
struct sanshim_provider_table {
    uint32_t size;    /* sizeof(struct sanshim_provider_table) */
    uint32_t version; /* SANSHIM_PROVIDER_VERSION */

    /* The provider. */
    void (*query)(struct sanshim_info *);
    /* 1 and why it is not usable here, with the remedy, ended by a zero; or 0. */
    sanshim_status (*unusable)(char *text, uint32_t size);
    /* 1 if the library may be unloaded when nothing of it is open. */
    sanshim_status (*can_unload)(void);
    sanshim_status (*open)(sanshim_handle *provider);
    void (*close_provider)(sanshim_handle provider);
    /* Writes at most *count addresses, ports zero, and sets *count to how many there are. */
    sanshim_status (*addresses)(sanshim_handle provider, struct sockaddr_storage *, uint32_t *count);
    sanshim_status (*open_adapter)(sanshim_handle provider, const struct sockaddr_storage *local,
                                   sanshim_handle *adapter);

    /* The adapter: makes everything else. */
    void (*close_adapter)(sanshim_handle adapter);
    void (*query_adapter)(sanshim_handle adapter, struct sanshim_limits *);
    sanshim_status (*create_completion_queue)(sanshim_handle adapter, uint32_t depth,
                                              sanshim_handle *);
    sanshim_status (*create_memory_region)(sanshim_handle adapter, sanshim_handle *);
    sanshim_status (*create_shared_receive_queue)(sanshim_handle adapter, uint32_t depth,
                                                  sanshim_handle *);
    sanshim_status (*create_queue_pair)(sanshim_handle adapter,
                                        const struct sanshim_queue_pair_attributes *,
                                        sanshim_handle receive_queue,
                                        sanshim_handle initiator_queue,
                                        sanshim_handle shared_receive_queue_or_null,
                                        sanshim_handle *);
    sanshim_status (*create_connector)(sanshim_handle adapter, sanshim_handle *);
    sanshim_status (*create_listener)(sanshim_handle adapter, sanshim_handle *);

    /* Completion queues. */
    struct sanshim_overlapped completion_queue;
    void (*close_completion_queue)(sanshim_handle);
    /* How many it wrote, oldest first, or an error. */
    sanshim_status (*get_results)(sanshim_handle, struct sanshim_completion *, uint32_t room);
    /* Pending until a result is added after the call. One at a time. */
    sanshim_status (*notify)(sanshim_handle, uint64_t request);

    /* Memory regions. */
    void (*close_memory_region)(sanshim_handle);
    sanshim_status (*register_memory)(sanshim_handle, void *address, uint64_t length);
    /* Nothing touches the memory once it returned. */
    sanshim_status (*deregister_memory)(sanshim_handle);
    sanshim_status (*local_token)(sanshim_handle, uint32_t *token);

    /* Shared receive queues. */
    void (*close_shared_receive_queue)(sanshim_handle);
    sanshim_status (*receive_shared)(sanshim_handle, uint64_t request,
                                     const struct sanshim_segment *, uint32_t count);

    /* Queue pairs. Each request ends with a completion, unless it is silent and succeeds. What has not been
     * taken of them when the queue pair is closed may be lost with it: flush, and take it, before. */
    void (*close_queue_pair)(sanshim_handle);
    sanshim_status (*send)(sanshim_handle, uint64_t request, const struct sanshim_segment *,
                           uint32_t count, uint32_t flags);
    /* The bytes are taken at once. */
    sanshim_status (*send_inline)(sanshim_handle, uint64_t request, const void *bytes,
                                  uint32_t length, uint32_t flags);
    sanshim_status (*receive)(sanshim_handle, uint64_t request, const struct sanshim_segment *,
                              uint32_t count);
    sanshim_status (*read)(sanshim_handle, uint64_t request, const struct sanshim_segment *into,
                           uint32_t count, const struct sanshim_remote_memory *, uint32_t flags);
    sanshim_status (*write)(sanshim_handle, uint64_t request, const struct sanshim_segment *from,
                            uint32_t count, const struct sanshim_remote_memory *, uint32_t flags);
    /* Makes memory of a region reachable for this queue pair's peer, and nobody else. */
    sanshim_status (*bind)(sanshim_handle, uint64_t request, sanshim_handle region,
                           uint64_t address, uint64_t length, uint32_t access, uint32_t flags,
                           uint32_t *token);
    sanshim_status (*invalidate)(sanshim_handle, uint64_t request, uint32_t token, uint32_t flags);
    /* Every outstanding request ends with SANSHIM_CANCELLED. */
    sanshim_status (*flush)(sanshim_handle);

    /* Connectors. */
    struct sanshim_overlapped connector;
    void (*close_connector)(sanshim_handle);
    sanshim_status (*bind_connector)(sanshim_handle, const struct sockaddr_storage *local);
    /* Pending until the listener answers. */
    sanshim_status (*connect)(sanshim_handle, sanshim_handle queue_pair,
                              const struct sockaddr_storage *peer, const void *private_data,
                              uint32_t length, uint64_t request);
    /* Pending, or done. */
    sanshim_status (*complete_connect)(sanshim_handle, uint64_t request);
    /* Pending until the peer has completed. */
    sanshim_status (*accept)(sanshim_handle, sanshim_handle queue_pair, const void *private_data,
                             uint32_t length, uint64_t request);
    sanshim_status (*reject)(sanshim_handle, const void *private_data, uint32_t length);
    /* How many bytes of the peer's it wrote, or an error. */
    sanshim_status (*private_data)(sanshim_handle, void *into, uint32_t room);
    sanshim_status (*local_address)(sanshim_handle, struct sockaddr_storage *);
    sanshim_status (*peer_address)(sanshim_handle, struct sockaddr_storage *);
    /* Pending until the connection ends; done if it has. */
    sanshim_status (*notify_disconnect)(sanshim_handle, uint64_t request);
    /* Pending, or done. Flushes the queue pair. */
    sanshim_status (*disconnect)(sanshim_handle, uint64_t request);

    /* Listeners. */
    struct sanshim_overlapped listener;
    void (*close_listener)(sanshim_handle);
    sanshim_status (*bind_listener)(sanshim_handle, const struct sockaddr_storage *local);
    sanshim_status (*listen)(sanshim_handle, uint32_t backlog);
    sanshim_status (*listener_address)(sanshim_handle, struct sockaddr_storage *);
    /* Pending until a request was put into the connector, which lives until then. */
    sanshim_status (*get_connection_request)(sanshim_handle, sanshim_handle connector,
                                             uint64_t request);
};

/* The library's one entry. Returns null if it does not speak this version. */
const struct sanshim_provider_table *sanshim_provider(uint32_t version);

#ifdef __cplusplus
}
#endif
#endif
