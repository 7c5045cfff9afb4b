/* prefill_node/main.c - sluice-prefill: a node that prefers the duty to prefill.
 *
 * | thread      | owns                                | waits on                           | sends to             |
 * |-------------|-------------------------------------|------------------------------------|----------------------|
 * | engine      | legs, sequences, page pool, routers | epoll: step end, commands,         | device, transfer,    |
 * | (main)      |                                     | transfer events, answers, timers   | nng                  |
 * | device      | the step in flight, the compute pool| the next step                      | engine (eventfd)     |
 * | compute 1.. | nothing                             | the device thread                  | -                    |
 * | rank 1..    | its share of the model, its devices | the device thread, the other ranks | -                    |
 * | transfer    | UCX worker, peers, sessions, mover  | epoll: worker, commands, timers    | engine (queue)       |
 * | nng's       | sockets                             | the network                        | engine (queues)      |
 *
 * Ranks are there with tensor_parallel; what takes long once (packed weights to disk, an abort of NCCL) has a thread
 * for that while. All of them stay on the CPUs of the option cpus. */
#include "common/node/node_life.h"
#include "decode_node/decode_node.h"
#include "prefill_node/prefill_node.h"

static const struct sl_duty_ops *const duties[] = {&sl_duty_prefill, &sl_duty_decode, NULL};

int main(int argc, char **argv)
{
    return sl_node_main(argc, argv, "sluice-prefill", SLUICE__ROLE__ROLE_PREFILL, duties);
}
