/* router/place/place.c - the decision around the policies: what the client demands, who may take part, what
 * to fall back to.
 *
 * Wishes are resolved first (a split, a mode, node names), membership is checked before anything is priced,
 * and the policy lists candidates. A rule that finds none falls back to colocated and says so; a demand that
 * finds none is refused in words. */
#include "router/place/candidates.h"

#include <stdio.h>
#include <string.h>

static const char *const mode_names[] = {"?", "pd", "colocated", "hybrid"};

const char *sl_place_mode_name(enum sl_place_mode m)
{
    return (unsigned)m < SL_COUNTOF(mode_names) ? mode_names[m] : "?";
}

bool sl_place_mode_parse(const char *word, enum sl_place_mode *out)
{
    for (unsigned m = SL_PLACE_PD; m <= SL_PLACE_HYBRID; m++)
        if (strcmp(word, mode_names[m]) == 0) {
            *out = (enum sl_place_mode)m;
            return true;
        }
    return false;
}

static bool fits_pool(const struct sl_place_node *n, uint64_t tokens)
{
    return tokens <= (uint64_t)n->total_pages * n->page_tokens;
}

/* A degraded link is used when nothing else is left; the cheapest of those that meet the wishes goes first,
 * and where none does the one that misses least. */
static bool cheaper(const struct sl_place_candidate *a, const struct sl_place_candidate *b)
{
    if (a->degraded != b->degraded)
        return !a->degraded;
    if (a->predicted.miss < b->predicted.miss || a->predicted.miss > b->predicted.miss)
        return a->predicted.miss < b->predicted.miss;
    return a->predicted.cost_ms < b->predicted.cost_ms;
}

bool sl_candidates_add(struct sl_candidates *c, int p, uint32_t split, int d)
{
    struct sl_place_candidate cand = {.p = p == d || split == 0 ? -1 : p, .split = split, .d = d};
    if (cand.p < 0)
        cand.split = 0;
    const struct sl_place_node *dn = &c->state->nodes[d];
    if (cand.p >= 0) {
        const struct sl_place_node *pn = &c->state->nodes[p];
        const struct sl_place_link *link = sl_place_find_link(c->state, p, d);
        if ((link && link->unusable) || pn->page_tokens != dn->page_tokens || !fits_pool(pn, cand.split))
            return false;
        cand.degraded = link && link->degraded;
    }
    cand.tight = sl_predict_pages_missing(dn, c->req) > 0;
    sl_predict(&c->predictor, &cand);

    struct sl_place_choice *out = c->out;
    out->n_candidates++;
    uint32_t at = out->n_kept < SL_PLACE_KEEP ? out->n_kept++ : SL_PLACE_KEEP;
    for (; at > 0 && cheaper(&cand, &out->kept[at - 1]); at--)
        if (at < SL_PLACE_KEEP)
            out->kept[at] = out->kept[at - 1];
    if (at < SL_PLACE_KEEP)
        out->kept[at] = cand;
    return true;
}

uint32_t sl_candidates_best_p(struct sl_candidates *c, const bool *can, int best[SL_BEST_P])
{
    double ms[SL_BEST_P];
    uint32_t n = 0;
    for (uint32_t p = 0; p < c->state->n_nodes; p++) {
        if (!can[p])
            continue;
        double t = sl_predict_prefill_ms(&c->predictor, p);
        uint32_t at = n < SL_BEST_P ? n++ : SL_BEST_P;
        for (; at > 0 && t < ms[at - 1]; at--)
            if (at < SL_BEST_P) {
                ms[at] = ms[at - 1];
                best[at] = best[at - 1];
            }
        if (at < SL_BEST_P) {
            ms[at] = t;
            best[at] = (int)p;
        }
    }
    return n;
}

uint32_t sl_candidates_best_d(const struct sl_candidates *c, int best[SL_BEST_D])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->out->n_kept && n < SL_BEST_D; i++) {
        int d = c->out->kept[i].d;
        bool seen = false;
        for (uint32_t k = 0; k < n; k++)
            seen |= best[k] == d;
        if (!seen)
            best[n++] = d;
    }
    return n;
}

/* Who may compute this request's prompt and who may decode it. */
static void find_members(struct sl_candidates *c, const char *want_p, const char *want_d, bool *too_big)
{
    *too_big = false;
    for (uint32_t i = 0; i < c->state->n_nodes; i++) {
        const struct sl_place_node *n = &c->state->nodes[i];
        bool may = !n->unusable && !n->excluded && n->page_tokens > 0;
        c->can_p[i] = may && n->may_prefill && (!want_p || strcmp(want_p, n->name) == 0);
        c->can_d[i] = may && n->may_decode && (!want_d || strcmp(want_d, n->name) == 0);
        if (c->can_d[i] && !fits_pool(n, (uint64_t)c->req->n_tokens + c->req->max_new)) {
            c->can_d[i] = false;
            *too_big = true;
        }
    }
}

static uint32_t count(const struct sl_candidates *c, const bool *can)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->state->n_nodes; i++)
        n += can[i];
    return n;
}

/* "p0 is draining; d0 is dead" - for sentences about why nothing fits. */
static void describe_nodes(const struct sl_place_state *s, bool decode, char *out, size_t size)
{
    size_t len = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < s->n_nodes && len + 1 < size; i++) {
        const struct sl_place_node *n = &s->nodes[i];
        bool permitted = decode ? n->may_decode : n->may_prefill;
        const char *state = n->unusable   ? n->unusable
                            : n->excluded ? n->excluded
                            : !permitted  ? (decode ? "not permitted to decode" : "not permitted to prefill")
                                          : "ready";
        int w = snprintf(out + len, size - len, "%s%s: %s", i ? ", " : "", n->name, state);
        len += w > 0 ? (size_t)w : 0;
    }
    if (s->n_nodes == 0)
        snprintf(out, size, "no node is registered");
}

static enum sl_err no_decode_node(const struct sl_candidates *c, const char *want_d, bool too_big,
                                  struct sl_why *why)
{
    const struct sl_place_state *s = c->state;
    if (too_big) {
        uint64_t most = 0;
        for (uint32_t i = 0; i < s->n_nodes; i++) {
            const struct sl_place_node *n = &s->nodes[i];
            uint64_t tokens = (uint64_t)n->total_pages * n->page_tokens;
            if (n->may_decode && !n->unusable && tokens > most)
                most = tokens;
        }
        return sl_why_set(why, SL_ETOOBIG,
                          "The request needs KV pages for %u tokens (%u so far and %u to generate); the "
                          "largest pool holds %llu. "
                          "Shorten the prompt or lower max_tokens.",
                          c->req->n_tokens + c->req->max_new, c->req->n_tokens, c->req->max_new,
                          (unsigned long long)most);
    }
    char nodes[320];
    describe_nodes(s, true, nodes, sizeof nodes);
    if (want_d)
        return sl_why_set(why, SL_ENOTREADY,
                          "The decode node '%s' that was asked for cannot take the request (%s).", want_d,
                          nodes);
    return sl_why_set(why, SL_ENOTREADY, "No node can decode now (%s).", nodes);
}

/* The wishes against each other and the prompt. */
static enum sl_err check_wishes(const struct sl_place_req *r, struct sl_why *why)
{
    if (r->split < 0)
        return SL_OK;
    if (r->split > r->n_prompt)
        return sl_why_set(why, SL_EINVAL, "A split at token %lld was asked for; the prompt has %u tokens.",
                          (long long)r->split, r->n_prompt);
    if (r->demanded && r->mode == SL_PLACE_PD && r->split != r->n_prompt)
        return sl_why_set(why, SL_EINVAL,
                          "Mode pd splits at the end of the prompt (%u); a split at %lld contradicts it. "
                          "Leave one of them out.",
                          r->n_prompt, (long long)r->split);
    if (r->demanded && r->mode == SL_PLACE_COLOCATED && r->split != 0)
        return sl_why_set(
            why, SL_EINVAL,
            "Mode colocated has no split; a split at %lld contradicts it. Leave one of them out.",
            (long long)r->split);
    return SL_OK;
}

static void run_policy(struct sl_candidates *c, enum sl_place_mode mode)
{
    c->out->n_kept = c->out->n_candidates = 0;
    switch (mode) {
    case SL_PLACE_PD:
        sl_place_pd(c);
        break;
    case SL_PLACE_COLOCATED:
        sl_place_colocated(c);
        break;
    case SL_PLACE_HYBRID:
        sl_place_hybrid(c);
        break;
    }
}

static enum sl_place_mode mode_of(const struct sl_place_candidate *b, uint32_t n_tokens)
{
    if (b->split == 0)
        return SL_PLACE_COLOCATED;
    return b->split == n_tokens ? SL_PLACE_PD : SL_PLACE_HYBRID;
}

static void finish(struct sl_candidates *c, const char *because)
{
    struct sl_place_choice *out = c->out;
    out->best = out->kept[0];
    out->mode = mode_of(&out->best, c->req->n_tokens);
    const struct sl_place_node *nodes = c->state->nodes;
    char where[96];
    if (out->best.p < 0)
        snprintf(where, sizeof where, "all on %.60s", nodes[out->best.d].name);
    else
        snprintf(where, sizeof where, "%.32s computes %u of %u tokens for %.32s", nodes[out->best.p].name,
                 out->best.split, c->req->n_tokens, nodes[out->best.d].name);
    snprintf(out->reason, sizeof out->reason, "%s: %s, cheapest of %u", because, where, out->n_candidates);
}

enum sl_err sl_place(const struct sl_place_state *state, const struct sl_place_req *req,
                     struct sl_place_choice *out, struct sl_why *why)
{
    SL_ASSERT(state->n_nodes <= SL_PLACE_MAX_NODES);
    if (req->n_tokens == 0)
        return sl_why_set(why, SL_EINVAL, "The prompt is empty.");
    struct sl_place_req r = *req;
    if (r.strict) {
        enum sl_err err = check_wishes(&r, why);
        if (err)
            return err;
    } else {
        r.want_p = r.want_d = NULL;
    }
    enum sl_place_mode mode = r.split >= 0 ? SL_PLACE_HYBRID : r.mode;
    bool demanded = r.strict && (r.demanded || r.split > 0);
    if (r.want_p && r.want_d && strcmp(r.want_p, r.want_d) == 0) { /* P == D is one node that does all */
        mode = SL_PLACE_COLOCATED;
        r.want_p = NULL;
        r.split = -1;
        demanded = false;
    }

    struct sl_candidates c; /* of the arrays only the nodes there are is set: they are for a thousand */
    c.state = c.predictor.state = state;
    c.req = c.predictor.req = &r;
    c.predictor.due_ms = sl_predict_due_ms(state, &r);
    c.out = out;
    for (uint32_t i = 0; i < state->n_nodes; i++)
        c.predictor.facts[i].known = false;
    bool too_big;
    find_members(&c, r.want_p, r.want_d, &too_big);
    if (count(&c, c.can_d) == 0)
        return no_decode_node(&c, r.want_d, too_big, why);
    run_policy(&c, mode);
    if (out->n_candidates) {
        finish(&c, r.split >= 0 ? "split as asked" : sl_place_mode_name(mode));
        return SL_OK;
    }

    /* Nobody computes for another: all that is left is one node that does everything. */
    char nodes[288];
    describe_nodes(state, false, nodes, sizeof nodes);
    if (demanded || (r.want_p && r.strict))
        return sl_why_set(why, SL_ENOTREADY, "%s%s was asked for, but no pair of nodes can do it (%s).",
                          r.want_p ? "Prefill node " : (r.split >= 0 ? "A split" : "Mode "),
                          r.want_p ? r.want_p : (r.split >= 0 ? "" : sl_place_mode_name(mode)), nodes);
    run_policy(&c, SL_PLACE_COLOCATED);
    char because[64];
    snprintf(because, sizeof because, "no pair of nodes for %s", sl_place_mode_name(mode));
    finish(&c, because);
    return SL_OK;
}
