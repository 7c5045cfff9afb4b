/* router/flow/recover.h - what to do when something went wrong with a request: a pure function, and one of
 * the two places that switch on sl_err_class() (the other is http_error.c).
 *
 * A leg is a node's part in the current attempt. "Place again" means: as prompt + tokens received with
 * n_prompt unchanged and attempt + 1, so the client sees one stream. */
#ifndef SLUICE_ROUTER_FLOW_RECOVER_H
#define SLUICE_ROUTER_FLOW_RECOVER_H

#include "common/base/err.h"
#include <stdint.h>

/* Placements of one request that may be lost; a cluster that loses more is not serving. */
#define SL_MAX_FAULTS 8

enum sl_trouble {
    SL_TROUBLE_NODE_DEAD,    /* silent, or came back with another boot id */
    SL_TROUBLE_NODE_STALLED, /* it answers and computes nothing */
    SL_TROUBLE_COMMAND,   /* Submit or Prefill was answered with an error, or not at all (SL_EPEER, after one
                             retry) */
    SL_TROUBLE_LEG_ERROR, /* the leg's terminal message says so */
    SL_TROUBLE_LOST,      /* the node was asked for missing tokens and does not know the request */
    SL_TROUBLE_NO_PLACE,  /* placement found nothing; err and why are placement's */
    SL_TROUBLE_DEADLINE
};

struct sl_trouble_in {
    enum sl_trouble what;
    bool leg_p;      /* the prefill leg, else the decode leg */
    enum sl_err err; /* of a command or leg error, or of placement */
    enum sl_err
        before; /* SL_TROUBLE_NO_PLACE: the error for which nodes were left out; SL_OK when none was */
    bool left_out_lives; /* SL_TROUBLE_NO_PLACE: a node that was left out takes work */
    bool leg_accepted;   /* the node had said yes to the leg */
    bool streaming;      /* D has sent a token of this attempt */
    uint32_t n_received; /* tokens of the request, over all attempts */
    uint32_t n_faults;   /* placements lost before this one, those refused by full nodes not counted */
};

enum sl_recovery {
    SL_RECOVERY_RECORD,      /* nothing to do: the other leg goes on, or will report itself */
    SL_RECOVERY_PLACE_AGAIN, /* elsewhere: this node is left out */
    SL_RECOVERY_WAIT,        /* no node can take it now: place again after a pause, all nodes allowed */
    SL_RECOVERY_FAIL         /* tell the client: err */
};

struct sl_recovery_out {
    enum sl_recovery action;
    enum sl_err err;     /* SL_RECOVERY_FAIL */
    const char *because; /* static; for the decision record and the client */
};

struct sl_recovery_out sl_recover(const struct sl_trouble_in *t);

#endif
