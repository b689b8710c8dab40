/* What lies where in a segment. Made by core/src/provider/shm/field_tests.rs, whose test says how and fails where this is stale. */
#define SEGMENT_VERSION 16
#define HEAD_SIZE 960
#define HEADER_SIZE 16
#define LARGEST_BODY 32
#define MAGIC 0x16d6968736e6173ULL
#define FIELDS \
    {"magic", 0, 8}, \
    {"version", 8, 4}, \
    {"buffers", 12, 4}, \
    {"message_size", 16, 4}, \
    {"send_buffer", 20, 4}, \
    {"largest_message", 24, 4}, \
    {"largest_send_buffer", 28, 4}, \
    {"state", 64, 4}, \
    {"exchange", 72, 120}, \
    {"connector read", 192, 8}, \
    {"connector write", 200, 8}, \
    {"connector tail", 256, 8}, \
    {"connector grown", 264, 8}, \
    {"connector stalled", 272, 4}, \
    {"connector finished", 276, 4}, \
    {"connector direction", 280, 8}, \
    {"connector turned_at", 288, 8}, \
    {"connector delivered", 296, 8}, \
    {"connector acted", 304, 8}, \
    {"connector rang", 312, 8}, \
    {"connector head", 320, 8}, \
    {"connector total", 328, 8}, \
    {"connector stopped_at", 336, 8}, \
    {"connector stands_in", 344, 4}, \
    {"connector asked", 348, 4}, \
    {"connector state", 384, 8}, \
    {"connector address", 392, 8}, \
    {"connector length", 400, 4}, \
    {"connector right", 404, 4}, \
    {"connector process", 408, 4}, \
    {"connector writer", 412, 4}, \
    {"connector before", 440, 8}, \
    {"connector address", 432, 8}, \
    {"connector proof", 416, 8}, \
    {"connector proof", 424, 8}, \
    {"connector state", 448, 8}, \
    {"connector address", 456, 8}, \
    {"connector length", 464, 4}, \
    {"connector right", 468, 4}, \
    {"connector process", 472, 4}, \
    {"connector writer", 476, 4}, \
    {"connector before", 504, 8}, \
    {"connector address", 496, 8}, \
    {"connector proof", 480, 8}, \
    {"connector proof", 488, 8}, \
    {"connector resent_from", 512, 8}, \
    {"acceptor read", 576, 8}, \
    {"acceptor write", 584, 8}, \
    {"acceptor tail", 640, 8}, \
    {"acceptor grown", 648, 8}, \
    {"acceptor stalled", 656, 4}, \
    {"acceptor finished", 660, 4}, \
    {"acceptor direction", 664, 8}, \
    {"acceptor turned_at", 672, 8}, \
    {"acceptor delivered", 680, 8}, \
    {"acceptor acted", 688, 8}, \
    {"acceptor rang", 696, 8}, \
    {"acceptor head", 704, 8}, \
    {"acceptor total", 712, 8}, \
    {"acceptor stopped_at", 720, 8}, \
    {"acceptor stands_in", 728, 4}, \
    {"acceptor asked", 732, 4}, \
    {"acceptor state", 768, 8}, \
    {"acceptor address", 776, 8}, \
    {"acceptor length", 784, 4}, \
    {"acceptor right", 788, 4}, \
    {"acceptor process", 792, 4}, \
    {"acceptor writer", 796, 4}, \
    {"acceptor before", 824, 8}, \
    {"acceptor address", 816, 8}, \
    {"acceptor proof", 800, 8}, \
    {"acceptor proof", 808, 8}, \
    {"acceptor state", 832, 8}, \
    {"acceptor address", 840, 8}, \
    {"acceptor length", 848, 4}, \
    {"acceptor right", 852, 4}, \
    {"acceptor process", 856, 4}, \
    {"acceptor writer", 860, 4}, \
    {"acceptor before", 888, 8}, \
    {"acceptor address", 880, 8}, \
    {"acceptor proof", 864, 8}, \
    {"acceptor proof", 872, 8}, \
    {"acceptor resent_from", 896, 8}, \

/* A division, and where it puts things. */
#define DIVISIONS \
    {{16, 1536, 1048576, 16384, 4194304}, {2101248, 960, 2496, 2105856}, {2170944, 2191488, 2523264, 2543808}, {4032, 1052608}, {2150400, 2813952, 11202560}}, \
    {{4, 256, 65536, 512, 131072}, {135168, 960, 1216, 135936}, {143936, 148608, 169088, 173760}, {1472, 67008}, {139264, 180224, 442368}}, \

