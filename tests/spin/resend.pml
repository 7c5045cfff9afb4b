/* tests/spin/resend.pml - a transfer from within (common/transfer/kv_send.c, kv_recv.c, stage.c) for spin: what pages.pml
 * takes for one page is several here, and one that is damaged on its way is rejected and sent again.
 *
 * Two requests, one after the other, in the same pages of one D. P fetches pages into its stage, in payloads of any length,
 * and sends them some time later; D says where they go when their message comes, and they land, in any order, some time
 * after that: received, and through D's stage. Messages of the link stay in order. Bytes are damaged DAMAGES times a request;
 * TROUBLES times the link is lost or a side gives up, at any moment.
 *
 * Claims: nothing that was sent before a reject lands after P began to send again; no page is taken by a message,
 * committed or given to the next request while something is to land in it; what is committed is whole; no page is
 * rejected more often than one was damaged, so that one damage is mended; both sides of every request end. Announces,
 * ANSWERs before the last, deadlines and P's pages are left out: they are in pages.pml, or end waits that end here. */

#define N_REQUESTS  2
#define N_PAGES     3
#define MAX_REJECTS 2 /* SL_XFER_MAX_REJECTS */
#define WINDOW      4 /* messages under way; more wait at P */

mtype = { GRANT, PAGES, COMMIT, ANSWER, REJECT, ABORT, GONE };

/* request, round, index, count, damaged page + 1. The round, the number of rejects P knew of, is for claims: D never sees it. */
chan p_to_d = [WINDOW + 2] of { mtype, byte, byte, byte, byte, byte };
chan d_to_p = [6] of { mtype, byte, byte, byte }; /* request, index, number of the reject */
bool link_cut;

/* ---- D ---- */
#define IDLE    0
#define GRANTED 1
#define CLOSING 2 /* until nothing lands any more */
byte d_state, d_request;
#define ABSENT    0
#define PENDING   1
#define ARRIVED   2
#define COMMITTED 3
byte page[N_PAGES];
bool damaged[N_PAGES]; /* what lies there */
byte d_commit_to, d_committed, d_rejects, d_pending;
bool d_rejected;
/* What lands, by the first page of it. */
byte land_count[N_PAGES], land_request[N_PAGES], land_round[N_PAGES], land_damaged[N_PAGES];

/* ---- P ---- */
bool p_granted;
byte p_request, p_rejects, p_next, p_sent, p_commit;
byte n_damaged;
chan stage = [2] of { byte, byte, byte, byte }; /* request, round, index, count: oldest first */

/* What a step works on: no part of the state. */
hidden byte q, e, i, n, x, k;

inline tell_d(what) { if :: !link_cut -> assert(nfull(p_to_d)); p_to_d!what, q, e, i, n, x :: else fi }
inline tell_p(what, index, number) { if :: !link_cut -> assert(nfull(d_to_p)); d_to_p!what, d_request, index, number :: else fi }

/* ---- what D does ---- */

inline d_settle()
{
    if
#ifdef WITHOUT_WAIT_FOR_LANDING
    :: d_state == CLOSING ->
#else
    :: d_state == CLOSING && d_pending == 0 ->
#endif
        k = 0;
        do :: k < N_PAGES -> page[k] = ABSENT; damaged[k] = false; k++ :: else -> break od;
        d_commit_to = 0; d_committed = 0; d_rejects = 0; d_pending = 0; d_rejected = false;
        d_state = IDLE;
        d_request++
    :: else
    fi
}

inline d_close() { d_state = CLOSING; d_settle() }

inline d_reject()
{
    d_rejects++;
    assert(d_rejects <= n_damaged);
    k = d_committed;
    do
    :: k < N_PAGES -> if :: page[k] == ARRIVED -> page[k] = ABSENT; damaged[k] = false :: else fi; k++
    :: else -> break
    od;
    d_commit_to = d_committed;
    d_rejected = true;
    tell_p(REJECT, d_committed, d_rejects);
    if :: d_rejects == MAX_REJECTS -> d_close() :: else fi
}

inline d_advance()
{
    do
    :: d_committed < d_commit_to && page[d_committed] == ARRIVED && !damaged[d_committed] ->
        page[d_committed] = COMMITTED;
        d_committed++
    :: else -> break
    od;
    if
#ifdef WITHOUT_WAIT_TO_REJECT
    :: d_committed < d_commit_to && page[d_committed] != PENDING -> d_reject()
#else
    :: d_committed < d_commit_to && page[d_committed] != PENDING && d_pending == 0 -> d_reject()
#endif
    :: d_committed == N_PAGES -> tell_p(ANSWER, N_PAGES, 0); d_close()
    :: else
    fi
}

#ifdef WITHOUT_DROP_OF_STALE
#define STALE(i) false
#else
#define STALE(i) (d_rejected && i != d_commit_to)
#endif

/* n pages from i on come; damaged: page x - 1. */
inline d_take()
{
    k = i;
    do
    :: STALE(i) -> break
    :: !STALE(i) && k < i + n && (page[k] == ABSENT || page[k] == ARRIVED) -> k++
    :: else -> break
    od;
    if
    :: k == i + n ->
        d_rejected = false;
        do :: k > i -> k--; page[k] = PENDING; damaged[k] = false :: else -> break od;
        land_count[i] = n; land_request[i] = q; land_round[i] = e; land_damaged[i] = x;
        d_pending++
    :: else /* dropped */
    fi
}

/* Through link and stage, or not at all: what is in the stage lands also when the link is gone. */
inline land(at)
{
    assert(d_state != IDLE && land_request[at] == d_request);
    assert(p_request != d_request || land_round[at] == p_rejects);
    n = land_count[at]; x = land_damaged[at];
    land_count[at] = 0; land_request[at] = 0; land_round[at] = 0; land_damaged[at] = 0;
    d_pending--;
    if
    :: true ->
        do :: n > 0 -> n--; assert(page[at + n] == PENDING); page[at + n] = ARRIVED :: else -> break od;
        if :: x > 0 -> damaged[x - 1] = true :: else fi;
        if :: d_state == GRANTED -> d_advance() :: else fi
    :: link_cut -> /* the end of the session follows */
#ifdef WITHOUT_LOSS_IS_NO_DAMAGE
        do :: n > 0 -> n--; page[at + n] = ABSENT :: else -> break od
#endif
    fi;
    d_settle()
}

proctype D()
{
end: do
    :: atomic { d_state == IDLE && d_request < N_REQUESTS ->
        if
        :: link_cut -> d_request++ /* all of it is computed here */
        :: else -> d_state = GRANTED; tell_p(GRANT, 0, 0)
        fi }
    :: atomic { p_to_d?PAGES, q, e, i, n, x ->
        if :: d_state == GRANTED && q == d_request -> d_take() :: else fi }
    :: atomic { p_to_d?COMMIT, q, e, i, n, x ->
        if :: d_state == GRANTED && q == d_request && i == d_commit_to -> d_commit_to = i + n; d_advance() :: else fi }
    :: atomic { p_to_d?ABORT, q, e, i, n, x ->
        if :: d_state == GRANTED && q == d_request -> d_close() :: else fi }
    :: atomic { p_to_d?GONE, q, e, i, n, x ->
        if :: d_state == GRANTED -> d_close() :: else fi }
    :: atomic { land_count[0] > 0 -> land(0) }
    :: atomic { land_count[1] > 0 -> land(1) }
    :: atomic { land_count[2] > 0 -> land(2) }
    od
}

/* ---- what P does ---- */

inline p_close() { p_granted = false; p_next = 0; p_sent = 0; p_commit = 0 }

inline p_abort() { q = p_request; e = 0; i = 0; n = 0; x = 0; tell_d(ABORT); p_close() }

proctype P()
{
end: do
    :: atomic { d_to_p?GRANT, q, i, n ->
        p_request = q; p_granted = true; p_rejects = 0; n_damaged = 0 }
    :: atomic { p_granted && p_next < N_PAGES && nfull(stage) ->
        if :: n = 1 :: p_next + 2 <= N_PAGES -> n = 2 :: p_next + 3 <= N_PAGES -> n = 3 fi;
        stage!p_request, p_rejects, p_next, n;
        p_next = p_next + n }
    :: atomic { len(p_to_d) < WINDOW && nempty(stage) ->
        stage?q, e, i, n;
        if
#ifdef WITHOUT_DROP_OF_FETCHED
        :: p_granted && q == p_request ->
#else
        :: p_granted && q == p_request && e == p_rejects ->
            assert(i == p_sent);
#endif
            x = 0;
            if
            :: true
            :: n_damaged < DAMAGES -> n_damaged++; x = i + 1
            :: n_damaged < DAMAGES && n > 1 -> n_damaged++; x = i + n
            fi;
            p_sent = i + n;
            tell_d(PAGES)
        :: else
        fi }
    :: atomic { len(p_to_d) < WINDOW && p_granted && p_commit < p_sent ->
        q = p_request; e = 0; i = p_commit; n = p_sent - p_commit; x = 0;
        p_commit = p_sent;
        tell_d(COMMIT) }
    :: atomic { d_to_p?ANSWER, q, i, n -> if :: p_granted && q == p_request -> p_close() :: else fi }
    :: atomic { d_to_p?REJECT, q, i, n ->
        if
        :: p_granted && q == p_request && i <= p_commit && n == p_rejects + 1 ->
            p_rejects++;
            if
            :: p_rejects == MAX_REJECTS -> p_abort()
            :: else -> p_next = i; p_sent = i; p_commit = i
            fi
        :: else
        fi }
    :: atomic { d_to_p?ABORT, q, i, n -> if :: p_granted && q == p_request -> p_close() :: else fi }
    :: atomic { d_to_p?GONE, q, i, n -> p_close() }
    od
}

/* ---- what goes wrong ---- */

inline cut()
{
    do :: p_to_d?_, _, _, _, _, _ :: empty(p_to_d) -> break od;
    do :: d_to_p?_, _, _, _ :: empty(d_to_p) -> break od;
    p_to_d!GONE, 0, 0, 0, 0, 0;
    d_to_p!GONE, 0, 0, 0;
    link_cut = true
}

proctype Trouble()
{
    byte left = TROUBLES;
    do
    :: atomic { left > 0 && !link_cut -> left--; cut() }
    :: atomic { left > 0 && d_state == GRANTED -> left--; tell_p(ABORT, 0, 0); d_close() }
    :: atomic { left > 0 && p_granted -> left--; p_abort() }
    :: atomic { true -> left = 0; break } /* no more in this run */
    od
}

/* Nothing moves any more. */
proctype Still()
{
end: atomic { timeout ->
        assert(d_request == N_REQUESTS && d_state == IDLE && d_pending == 0);
        assert(!p_granted && empty(stage) && empty(p_to_d) && empty(d_to_p)) }
}

init { atomic { run D(); run P(); run Trouble(); run Still() } }
