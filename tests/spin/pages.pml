/* tests/spin/pages.pml - the life of pages and grants (common/transfer/README.md, common/kv/README.md) for spin.
 *
 * Two requests, two prefill nodes P, two decode nodes D; every pool has room for one prompt, so requests are in each other's
 * way. A loss (CUT, P_DIES or D_DIES) and a cancel (CANCELS) may strike at any moment. Commands of the router may overtake
 * each other; messages of one link may not. A page travels in two steps, as UCX and NCCL do it: its message is seen by D, which
 * says where the bytes go, and some time later they land, or fail when the link is gone.
 *
 * Claims: no page is read, given away or taken while bytes travel out of it or into it; what D reads is its own request's
 * KV; every request ends, and once; when nothing moves any more nothing is held. Runs are finite (checked for cycles), so
 * "nothing moves any more" is always reached. The request's deadline, which would end every wait, is left out on purpose;
 * the bounded wait for an ANNOUNCE is there. A commit comes with its page here, and a digest is always right: resend.pml has
 * the rest.
 *
 * Each WITHOUT_... takes one rule out; tests/spin/check shows that spin then finds a run that breaks a claim. */

#define N_NODES 2 /* of each kind, and requests */
#define FREE    9 /* a page nobody owns */

#define L(n, r)     ((n) * 2 + (r))     /* leg of request r at node n */
#define LINK(p, d)  ((p) * 2 + (d))
#define F(r, e)     ((r) * 2 + (e) - 1) /* payload of request r, attempt e */

mtype = { SUBMIT, PREFILL, CANCEL, ANNOUNCE, GRANT, PAGES, ANSWER, ABORT, GONE, DONE };

chan to_d[2] = [6] of { mtype, byte, byte, byte };   /* request, attempt, P */
chan to_p[2] = [6] of { mtype, byte, byte, byte };   /* request, attempt, D */
chan to_router[2] = [6] of { mtype, byte };          /* of request r: attempt */
chan p_to_d[4] = [5] of { mtype, byte, byte };       /* request, attempt */
chan d_to_p[4] = [5] of { mtype, byte, byte };

/* ---- D ---- */
#define NONE      0
#define ROOM      1 /* waits for a page */
#define WAITS     2 /* has its page, waits for ANNOUNCE */
#define GRANTED   3
#define GOES_ON   4 /* transfer closing; then the rest is computed here */
#define STOPS     5 /* transfer closing; then its page goes */
#define RUNS      6
#define OVER      7
byte d_leg[4], d_attempt[4], d_peer[4], d_tomb[4];
byte d_early[4], d_early_peer[4]; /* attempt announced before its Submit */
byte d_owner[2] = FREE, d_holds[2] = FREE; /* whose page, whose KV is in it */
byte d_pending[2];                          /* receives into it */
bool d_dead[2];

/* ---- P ---- */
#define READY   2 /* computed */
#define SENT    3
#define CLOSING 5
byte p_leg[4], p_attempt[4], p_peer[4], p_tomb[4];
bool p_granted[4];
byte p_owner[2] = FREE, p_holds[2] = FREE;
bool p_dead[2];

/* ---- payloads ---- */
#define ON_WIRE 1 /* sent, D has not seen the message */
#define LANDING 2
byte fly[4], fly_from[4], fly_to[4];
bool link_cut[4];

byte n_ended[2];
#ifndef CANCELS
#define CANCELS 1
#endif
byte cancels_left = CANCELS;

inline tell_d(p, d, what, r, e) { if :: !link_cut[LINK(p, d)] -> p_to_d[LINK(p, d)]!what, r, e :: else fi }
inline tell_p(p, d, what, r, e) { if :: !link_cut[LINK(p, d)] -> d_to_p[LINK(p, d)]!what, r, e :: else fi }

/* What a step works on. No process keeps anything in them, so they are no part of the state. */
hidden byte r, e, p, d, f, n, a, b;

/* ---- what D does ---- */

inline d_free(d, r)
{
#ifndef WITHOUT_WAIT_FOR_RECEIVES
    assert(d_pending[d] == 0);
#endif
    assert(d_owner[d] == r);
    d_owner[d] = FREE; d_holds[d] = FREE;
    d_leg[L(d, r)] = OVER;
    d_peer[L(d, r)] = 0
}

inline d_compute_here(d, r)
{
    assert(d_pending[d] == 0);
    d_holds[d] = r;
    d_leg[L(d, r)] = RUNS
}

/* The transfer is over for D; its page is its own again when nothing lands there any more. */
inline d_settle(d, r)
{
    if
#ifdef WITHOUT_WAIT_FOR_RECEIVES
    :: d_leg[L(d, r)] == STOPS -> d_free(d, r)
#else
    :: d_leg[L(d, r)] == STOPS && d_pending[d] == 0 -> d_free(d, r)
#endif
    :: d_leg[L(d, r)] == GOES_ON && d_pending[d] == 0 -> d_compute_here(d, r)
    :: else
    fi
}

inline d_give_up(d, r, next)
{
    tell_p(d_peer[L(d, r)], d, ABORT, r, d_attempt[L(d, r)]);
    d_leg[L(d, r)] = next;
    d_settle(d, r)
}

inline d_grant(d, r)
{
    d_early[L(d, r)] = 0;
    if
    :: link_cut[LINK(d_peer[L(d, r)], d)] -> d_compute_here(d, r)
    :: else -> d_leg[L(d, r)] = GRANTED; tell_p(d_peer[L(d, r)], d, GRANT, r, d_attempt[L(d, r)])
    fi
}

proctype D(byte me)
{
end: do
    :: atomic { !d_dead[me] && to_d[me]??[SUBMIT, r, e, p] ->
        d = me;
        to_d[d]??SUBMIT, r, e, p;
        if
#ifndef WITHOUT_TOMBSTONES
        :: d_tomb[L(d, r)] >= e
#endif
        :: else -> d_leg[L(d, r)] = ROOM; d_attempt[L(d, r)] = e; d_peer[L(d, r)] = p
        fi }
    :: atomic { !d_dead[me] && to_d[me]??[CANCEL, r, e, p] ->
        d = me;
        to_d[d]??CANCEL, r, e, p;
        d_tomb[L(d, r)] = e;
        if
        :: d_leg[L(d, r)] == ROOM -> d_leg[L(d, r)] = OVER; tell_p(p, d, ABORT, r, e)
        :: d_leg[L(d, r)] == WAITS -> d_free(d, r)
        :: d_leg[L(d, r)] == GRANTED -> d_give_up(d, r, STOPS)
        :: d_leg[L(d, r)] == GOES_ON -> d_leg[L(d, r)] = STOPS; d_settle(d, r)
        :: d_leg[L(d, r)] == RUNS -> d_free(d, r)
        :: else
        fi }
    /* admission: all pages of the prompt, or none */
    :: atomic { !d_dead[me] && d_owner[me] == FREE && (d_leg[L(me, 0)] == ROOM || d_leg[L(me, 1)] == ROOM) ->
        d = me;
        if :: d_leg[L(d, 0)] == ROOM -> r = 0 :: d_leg[L(d, 1)] == ROOM -> r = 1 fi;
        assert(d_pending[d] == 0);
        d_owner[d] = r;
        if
        :: d_early[L(d, r)] == d_attempt[L(d, r)] && d_early_peer[L(d, r)] == d_peer[L(d, r)] -> d_grant(d, r)
        :: else -> d_leg[L(d, r)] = WAITS
        fi }
    :: atomic { !d_dead[me] && (p_to_d[LINK(0, me)]?[ANNOUNCE, r, e] || p_to_d[LINK(1, me)]?[ANNOUNCE, r, e]) ->
        d = me;
        if :: p_to_d[LINK(0, d)]?ANNOUNCE, r, e -> p = 0 :: p_to_d[LINK(1, d)]?ANNOUNCE, r, e -> p = 1 fi;
        if
        :: d_leg[L(d, r)] == WAITS && d_attempt[L(d, r)] == e && d_peer[L(d, r)] == p -> d_grant(d, r)
        /* given up before P came: the word that was left for it */
        :: d_tomb[L(d, r)] >= e || (d_leg[L(d, r)] >= GOES_ON && d_attempt[L(d, r)] >= e) -> tell_p(p, d, ABORT, r, e)
        :: else -> d_early[L(d, r)] = e; d_early_peer[L(d, r)] = p
        fi }
    :: atomic { !d_dead[me] && (p_to_d[LINK(0, me)]?[PAGES, r, e] || p_to_d[LINK(1, me)]?[PAGES, r, e]) ->
        d = me;
        if :: p_to_d[LINK(0, d)]?PAGES, r, e -> p = 0 :: p_to_d[LINK(1, d)]?PAGES, r, e -> p = 1 fi;
        if
#ifdef WITHOUT_LOOKUP /* P names the place: as a one-sided put does */
        :: true ->
#else
        :: d_leg[L(d, r)] == GRANTED && d_attempt[L(d, r)] == e && d_peer[L(d, r)] == p && d_pending[d] == 0 ->
#endif
            fly[F(r, e)] = LANDING; d_pending[d]++;
#ifdef WITHOUT_COMMIT /* reads what was announced, not what landed */
            d_leg[L(d, r)] = RUNS
#endif
        :: else -> fly[F(r, e)] = 0 /* dropped */
        fi }
    :: atomic { !d_dead[me] && (p_to_d[LINK(0, me)]?[ABORT, r, e] || p_to_d[LINK(1, me)]?[ABORT, r, e]) ->
        d = me;
        if :: p_to_d[LINK(0, d)]?ABORT, r, e -> p = 0 :: p_to_d[LINK(1, d)]?ABORT, r, e -> p = 1 fi;
        if
        :: d_leg[L(d, r)] == WAITS && d_attempt[L(d, r)] == e -> d_compute_here(d, r)
        :: d_leg[L(d, r)] == GRANTED && d_attempt[L(d, r)] == e -> d_leg[L(d, r)] = GOES_ON; d_settle(d, r)
        :: else
        fi }
    :: atomic { !d_dead[me] && (p_to_d[LINK(0, me)]?[GONE, r, e] || p_to_d[LINK(1, me)]?[GONE, r, e]) ->
        d = me;
        if :: p_to_d[LINK(0, d)]?GONE, r, e -> p = 0 :: p_to_d[LINK(1, d)]?GONE, r, e -> p = 1 fi;
        r = 0;
        do
        :: r < N_NODES && d_leg[L(d, r)] == GRANTED && d_peer[L(d, r)] == p -> d_leg[L(d, r)] = GOES_ON; d_settle(d, r); r++
        :: r < N_NODES && !(d_leg[L(d, r)] == GRANTED && d_peer[L(d, r)] == p) -> r++
        :: r == N_NODES -> break
        od }
    /* decodes: reads its pages */
    :: atomic { !d_dead[me] && d_owner[me] != FREE && d_leg[L(me, d_owner[me])] == RUNS ->
        d = me;
        r = d_owner[d];
        assert(d_pending[d] == 0 && d_holds[d] == r);
        to_router[r]!DONE, d_attempt[L(d, r)];
        d_free(d, r) }
    /* no ANNOUNCE in time */
    :: atomic { timeout && !d_dead[me] && d_owner[me] != FREE && d_leg[L(me, d_owner[me])] == WAITS ->
        d = me;
        r = d_owner[d];
        d_compute_here(d, r) }
    od
}

/* Bytes that travel: read at P, written at D. */
inline land(x)
{
    f = x; p = fly_from[f]; d = fly_to[f];
    fly[f] = 0; fly_from[f] = 0; fly_to[f] = 0;
    if
    :: d_dead[d] /* there is nothing to land in */
    :: !d_dead[d] && link_cut[LINK(p, d)] -> d_pending[d]--; d_settle(d, f / 2)
    :: else ->
        assert(p_holds[p] == f / 2);
        assert(d_owner[d] == f / 2);
        d_holds[d] = f / 2;
        d_pending[d]--;
        if
        :: d_leg[L(d, f / 2)] == GRANTED -> /* the digest is right: committed */
            d_leg[L(d, f / 2)] = RUNS; tell_p(p, d, ANSWER, f / 2, f % 2 + 1)
        :: else -> d_settle(d, f / 2)
        fi
    fi
}

proctype Wire()
{
end: do
    :: atomic { fly[0] == LANDING -> land(0) }
    :: atomic { fly[1] == LANDING -> land(1) }
    :: atomic { fly[2] == LANDING -> land(2) }
    :: atomic { fly[3] == LANDING -> land(3) }
    od
}

/* ---- what P does ---- */

/* A leg that is over keeps its attempt only. */
inline p_forget(p, r) { p_leg[L(p, r)] = OVER; p_granted[L(p, r)] = false; p_peer[L(p, r)] = 0 }

inline p_free(p, r) { p_owner[p] = FREE; p_holds[p] = FREE; p_forget(p, r) }

inline p_close(p, r)
{
    if
#ifdef WITHOUT_WAIT_FOR_SENDS
    :: p_leg[L(p, r)] == READY || p_leg[L(p, r)] == SENT -> p_free(p, r)
#else
    :: p_leg[L(p, r)] == READY -> p_free(p, r)
    :: p_leg[L(p, r)] == SENT -> p_leg[L(p, r)] = CLOSING
#endif
    :: p_leg[L(p, r)] == ROOM -> p_forget(p, r)
    :: else
    fi
}

inline p_send(p, r)
{
    p_leg[L(p, r)] = SENT;
    if
    :: link_cut[LINK(p, p_peer[L(p, r)])]
    :: else ->
        fly[F(r, p_attempt[L(p, r)])] = ON_WIRE; fly_from[F(r, p_attempt[L(p, r)])] = p;
        fly_to[F(r, p_attempt[L(p, r)])] = p_peer[L(p, r)];
        tell_d(p, p_peer[L(p, r)], PAGES, r, p_attempt[L(p, r)])
    fi
}

inline p_take(p, r, e, d)
{
    if
#ifndef WITHOUT_TOMBSTONES
    :: p_tomb[L(p, r)] >= e
#endif
    :: else ->
        if
        :: link_cut[LINK(p, d)] -> p_leg[L(p, r)] = OVER /* cannot be dialled: the leg ends */
        :: else ->
            p_leg[L(p, r)] = ROOM; p_attempt[L(p, r)] = e; p_peer[L(p, r)] = d; p_granted[L(p, r)] = false;
            tell_d(p, d, ANNOUNCE, r, e)
        fi
    fi
}

#define p_busy(p, r) (p_leg[L(p, r)] != NONE && p_leg[L(p, r)] != OVER)
#define MINE(p, r, e) (p_attempt[L(p, r)] == e)
#ifdef WITHOUT_PINS
#define MAY_EVICT(p, r) (p_leg[L(p, r)] == READY || p_leg[L(p, r)] == SENT)
#else
#define MAY_EVICT(p, r) (p_leg[L(p, r)] == READY && !p_granted[L(p, r)])
#endif

proctype P(byte me)
{
end: do
    :: atomic { !p_dead[me] && to_p[me]??[PREFILL, 0, e, d] && !p_busy(me, 0) ->
        p = me; to_p[p]??PREFILL, 0, e, d; p_take(p, 0, e, d) }
    :: atomic { !p_dead[me] && to_p[me]??[PREFILL, 1, e, d] && !p_busy(me, 1) ->
        p = me; to_p[p]??PREFILL, 1, e, d; p_take(p, 1, e, d) }
    /* a later attempt came: the one before it ends first */
    :: atomic { !p_dead[me] && to_p[me]??[PREFILL, 0, e, d] && p_busy(me, 0) && p_leg[L(me, 0)] != CLOSING ->
        p = me; p_close(p, 0) }
    :: atomic { !p_dead[me] && to_p[me]??[PREFILL, 1, e, d] && p_busy(me, 1) && p_leg[L(me, 1)] != CLOSING ->
        p = me; p_close(p, 1) }
    :: atomic { !p_dead[me] && to_p[me]??[CANCEL, r, e, d] ->
        p = me;
        to_p[p]??CANCEL, r, e, d;
        p_tomb[L(p, r)] = e;
        if
        :: MINE(p, r, e) && p_leg[L(p, r)] != NONE && p_leg[L(p, r)] != OVER -> tell_d(p, d, ABORT, r, e); p_close(p, r)
        :: else
        fi }
    /* all pages of [0, s) are reserved before it starts; granted work goes first */
    :: atomic { !p_dead[me] && p_owner[me] == FREE && (p_leg[L(me, 0)] == ROOM || p_leg[L(me, 1)] == ROOM) ->
        p = me;
        if
        :: p_leg[L(p, 0)] == ROOM && (p_granted[L(p, 0)] || !(p_leg[L(p, 1)] == ROOM && p_granted[L(p, 1)])) -> r = 0
        :: p_leg[L(p, 1)] == ROOM && (p_granted[L(p, 1)] || !(p_leg[L(p, 0)] == ROOM && p_granted[L(p, 0)])) -> r = 1
        fi;
        p_owner[p] = r; p_holds[p] = r; p_leg[L(p, r)] = READY;
        if :: p_granted[L(p, r)] -> p_send(p, r) :: else fi }
#ifndef WITHOUT_EVICTION
    /* and takes the pages of what has no grant */
    :: atomic { !p_dead[me] && p_owner[me] != FREE && p_leg[L(me, 1 - p_owner[me])] == ROOM && p_granted[L(me, 1 - p_owner[me])] &&
                MAY_EVICT(me, p_owner[me]) ->
        p = me;
        r = p_owner[p];
        p_leg[L(p, r)] = ROOM;
        r = 1 - r;
        p_owner[p] = r; p_holds[p] = r; p_leg[L(p, r)] = READY;
        p_send(p, r) }
#endif
    :: atomic { !p_dead[me] && (d_to_p[LINK(me, 0)]?[GRANT, r, e] || d_to_p[LINK(me, 1)]?[GRANT, r, e]) ->
        p = me;
        if :: d_to_p[LINK(p, 0)]?GRANT, r, e -> d = 0 :: d_to_p[LINK(p, 1)]?GRANT, r, e -> d = 1 fi;
        if
        :: MINE(p, r, e) && p_leg[L(p, r)] == READY -> p_granted[L(p, r)] = true; p_send(p, r)
        :: MINE(p, r, e) && p_leg[L(p, r)] == ROOM -> p_granted[L(p, r)] = true
        :: else
        fi }
    :: atomic { !p_dead[me] && (d_to_p[LINK(me, 0)]?[ANSWER, r, e] || d_to_p[LINK(me, 1)]?[ANSWER, r, e]) ->
        p = me;
        if :: d_to_p[LINK(p, 0)]?ANSWER, r, e -> d = 0 :: d_to_p[LINK(p, 1)]?ANSWER, r, e -> d = 1 fi;
        if :: MINE(p, r, e) -> p_close(p, r) :: else fi }
    :: atomic { !p_dead[me] && (d_to_p[LINK(me, 0)]?[ABORT, r, e] || d_to_p[LINK(me, 1)]?[ABORT, r, e]) ->
        p = me;
        if :: d_to_p[LINK(p, 0)]?ABORT, r, e -> d = 0 :: d_to_p[LINK(p, 1)]?ABORT, r, e -> d = 1 fi;
        if :: MINE(p, r, e) -> p_close(p, r) :: else fi }
    :: atomic { !p_dead[me] && (d_to_p[LINK(me, 0)]?[GONE, r, e] || d_to_p[LINK(me, 1)]?[GONE, r, e]) ->
        p = me;
        if :: d_to_p[LINK(p, 0)]?GONE, r, e -> d = 0 :: d_to_p[LINK(p, 1)]?GONE, r, e -> d = 1 fi;
        r = 0;
        do
        :: r < N_NODES && p_peer[L(p, r)] == d -> p_close(p, r); r++
        :: r < N_NODES && p_peer[L(p, r)] != d -> r++
        :: r == N_NODES -> break
        od }
    /* the page goes when its bytes are not under way any more */
    :: atomic { !p_dead[me] && p_owner[me] != FREE && p_leg[L(me, p_owner[me])] == CLOSING && fly[F(p_owner[me], p_attempt[L(me, p_owner[me])])] == 0 ->
        p = me;
        r = p_owner[p];
        p_free(p, r) }
    od
}

/* ---- the router, one a request ---- */

inline place()
{
    attempt++;
    if :: d_dead[at_d] :: else -> to_d[at_d]!SUBMIT, me, attempt, at_p fi;
    if :: p_dead[at_p] :: else -> to_p[at_p]!PREFILL, me, attempt, at_d fi
}

inline cancel_legs()
{
    if :: d_dead[at_d] :: else -> to_d[at_d]!CANCEL, me, attempt, at_p fi;
    if :: p_dead[at_p] :: else -> to_p[at_p]!CANCEL, me, attempt, at_d fi
}

/* D has ended by itself; P may not know. */
inline d_over()
{
    if :: p_dead[at_p] :: else -> to_p[at_p]!CANCEL, me, attempt, at_d fi
}

proctype Request(byte me; byte at_p; byte at_d)
{
    byte attempt = 0;
    atomic { place() };
    do
    :: atomic { to_router[me]?DONE, eval(attempt) -> n_ended[me]++; d_over(); break }
    :: atomic { to_router[me]?[DONE, e] && !to_router[me]?[DONE, eval(attempt)] -> to_router[me]?DONE, e }
    /* D died: prompt and tokens received go to the other one */
    :: atomic { d_dead[at_d] -> cancel_legs(); at_d = 1 - at_d; place() }
    :: atomic { cancels_left > 0 -> cancels_left--; n_ended[me]++; cancel_legs(); break }
    od;
    attempt = 0; at_p = 0; at_d = 0
}

/* ---- what goes wrong ---- */

inline clear_link(l)
{
    do
    :: p_to_d[l]?PAGES, a, b -> fly[F(a, b)] = 0
    :: p_to_d[l]?ANNOUNCE, _, _
    :: p_to_d[l]?ABORT, _, _
    :: empty(p_to_d[l]) -> break
    od;
    do
    :: d_to_p[l]?_, _, _
    :: empty(d_to_p[l]) -> break
    od
}

inline cut(p, d)
{
    clear_link(LINK(p, d));
    link_cut[LINK(p, d)] = true;
    if :: d_dead[d] :: else -> p_to_d[LINK(p, d)]!GONE, 0, 0 fi;
    if :: p_dead[p] :: else -> d_to_p[LINK(p, d)]!GONE, 0, 0 fi
}

inline forget_commands(c)
{
    do
    :: c?_, _, _, _
    :: empty(c) -> break
    od
}

/* A node that died is no part of any claim: what it held is forgotten. */
inline kill_p(p)
{
    p_dead[p] = true; forget_commands(to_p[p]); cut(p, 0); cut(p, 1);
    p_forget(p, 0); p_forget(p, 1); p_attempt[L(p, 0)] = 0; p_attempt[L(p, 1)] = 0;
    p_tomb[L(p, 0)] = 0; p_tomb[L(p, 1)] = 0; p_owner[p] = FREE; p_holds[p] = FREE
}

inline forget_d(d, r)
{
    d_leg[L(d, r)] = NONE; d_attempt[L(d, r)] = 0; d_peer[L(d, r)] = 0; d_tomb[L(d, r)] = 0;
    d_early[L(d, r)] = 0; d_early_peer[L(d, r)] = 0
}

inline kill_d(d)
{
    d_dead[d] = true; forget_commands(to_d[d]); cut(0, d); cut(1, d);
    forget_d(d, 0); forget_d(d, 1); d_owner[d] = FREE; d_holds[d] = FREE; d_pending[d] = 0
}

/* One of these, at any moment; that it is this link or node and not another is a matter of names. */
proctype Trouble()
{
    atomic {
        if
#ifdef CUT
        :: cut(0, 0)
#endif
#ifdef P_DIES
        :: kill_p(0)
#endif
#ifdef D_DIES
        :: kill_d(0)
#endif
        :: true /* a run without it */
        fi
    }
}

/* Nothing moves any more: nothing may be held, and both requests have ended. */
proctype Still()
{
end: atomic { timeout && (d_owner[0] == FREE || d_dead[0] || d_leg[L(0, d_owner[0])] != WAITS) &&
             (d_owner[1] == FREE || d_dead[1] || d_leg[L(1, d_owner[1])] != WAITS) ->
        assert(n_ended[0] == 1 && n_ended[1] == 1);
        n = 0;
        do
        :: n < N_NODES ->
            assert(d_dead[n] || (d_owner[n] == FREE && d_pending[n] == 0));
            assert(p_dead[n] || p_owner[n] == FREE);
            n++
        :: n == N_NODES -> break
        od;
        n = 0;
        do
        :: n < 4 ->
            assert(d_dead[n / 2] || d_leg[n] == NONE || d_leg[n] == OVER);
            assert(p_dead[n / 2] || p_leg[n] == NONE || p_leg[n] == OVER);
            n++
        :: n == 4 -> break
        od }
}

init
{
    atomic {
        /* The first request is at (P0, D0), the second has P, D or both in common with it. Other placements are the same
         * with other names, or two runs that do not meet. */
        if :: p = 0; d = 0 :: p = 0; d = 1 :: p = 1; d = 0 fi;
        run D(0); run D(1); run P(0); run P(1); run Wire(); run Trouble(); run Still();
        run Request(0, 0, 0);
        run Request(1, p, d)
    }
}
