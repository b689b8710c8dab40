/* What lies where in a segment. Made by core/src/provider/shm/field_tests.rs, whose test says how and fails where this is stale. */
#define SEGMENT_VERSION 15
#define HEAD_SIZE 896
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
    {"sights", 72, 16}, \
    {"notes", 88, 16}, \
    {"connector read", 128, 8}, \
    {"connector write", 136, 8}, \
    {"connector tail", 192, 8}, \
    {"connector grown", 200, 8}, \
    {"connector stalled", 208, 4}, \
    {"connector finished", 212, 4}, \
    {"connector direction", 216, 8}, \
    {"connector turned_at", 224, 8}, \
    {"connector delivered", 232, 8}, \
    {"connector acted", 240, 8}, \
    {"connector rang", 248, 8}, \
    {"connector head", 256, 8}, \
    {"connector total", 264, 8}, \
    {"connector stopped_at", 272, 8}, \
    {"connector stands_in", 280, 4}, \
    {"connector asked", 284, 4}, \
    {"connector state", 320, 8}, \
    {"connector address", 328, 8}, \
    {"connector length", 336, 4}, \
    {"connector right", 340, 4}, \
    {"connector process", 344, 4}, \
    {"connector writer", 348, 4}, \
    {"connector before", 376, 8}, \
    {"connector address", 368, 8}, \
    {"connector proof", 352, 8}, \
    {"connector proof", 360, 8}, \
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
    {"connector resent_from", 448, 8}, \
    {"acceptor read", 512, 8}, \
    {"acceptor write", 520, 8}, \
    {"acceptor tail", 576, 8}, \
    {"acceptor grown", 584, 8}, \
    {"acceptor stalled", 592, 4}, \
    {"acceptor finished", 596, 4}, \
    {"acceptor direction", 600, 8}, \
    {"acceptor turned_at", 608, 8}, \
    {"acceptor delivered", 616, 8}, \
    {"acceptor acted", 624, 8}, \
    {"acceptor rang", 632, 8}, \
    {"acceptor head", 640, 8}, \
    {"acceptor total", 648, 8}, \
    {"acceptor stopped_at", 656, 8}, \
    {"acceptor stands_in", 664, 4}, \
    {"acceptor asked", 668, 4}, \
    {"acceptor state", 704, 8}, \
    {"acceptor address", 712, 8}, \
    {"acceptor length", 720, 4}, \
    {"acceptor right", 724, 4}, \
    {"acceptor process", 728, 4}, \
    {"acceptor writer", 732, 4}, \
    {"acceptor before", 760, 8}, \
    {"acceptor address", 752, 8}, \
    {"acceptor proof", 736, 8}, \
    {"acceptor proof", 744, 8}, \
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
    {"acceptor resent_from", 832, 8}, \

/* A division, and where it puts things. */
#define DIVISIONS \
    {{16, 1536, 1048576, 16384, 4194304}, {2101248, 896, 2432, 2105856}, {2170944, 2191488, 2523264, 2543808}, {3968, 1052544}, {2150400, 2813952, 11202560}}, \
    {{4, 256, 65536, 512, 131072}, {135168, 896, 1152, 135936}, {143936, 148608, 169088, 173760}, {1408, 66944}, {139264, 180224, 442368}}, \

