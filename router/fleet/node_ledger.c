/* router/fleet/node_ledger.c - what was placed on a node and is not in its reports yet.
 *
 * Two sums per node: commands not answered, and those answered since the last heartbeat. A heartbeat clears
 * the second: a node counts what it took before it reports. A charge remembers at which heartbeat it moved,
 * so that dropping it later takes it from the sum it is still in, or from none. Prompts that are not done are
 * listed besides, each with its priority: node_view.c asks which of them will run before another. */
#include "router/fleet/node_table.h"

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static void add(struct sl_node_ledger *sum, const struct sl_node_ledger *a)
{
    sum->rows += a->rows;
    sum->pages += a->pages;
    sum->prompt_tokens += a->prompt_tokens;
    sum->context_tokens += a->context_tokens;
}

static void take(struct sl_node_ledger *sum, const struct sl_node_ledger *a)
{
    sum->rows = (uint32_t)less(sum->rows, a->rows);
    sum->pages = (uint32_t)less(sum->pages, a->pages);
    sum->prompt_tokens = less(sum->prompt_tokens, a->prompt_tokens);
    sum->context_tokens = less(sum->context_tokens, a->context_tokens);
}

void sl_node_charge(struct sl_node *n, struct sl_charge *c, const struct sl_node_ledger *amount,
                    int32_t priority, uint64_t now_ms)
{
    *c = (struct sl_charge){.state = SL_CHARGE_SENT,
                            .boot_id = n->boot_id,
                            .amount = *amount,
                            .priority = priority,
                            .prompt_tokens = amount->prompt_tokens,
                            .placed_ms = now_ms};
    sl_list_init(&c->link);
    if (amount->prompt_tokens || amount->rows)
        sl_list_add_tail(&n->prompts, &c->link);
    add(&n->sent, amount);
    n->placed++;
}

void sl_node_charge_accepted(struct sl_node *n, struct sl_charge *c)
{
    if (c->state != SL_CHARGE_SENT || c->boot_id != n->boot_id)
        return;
    take(&n->sent, &c->amount);
    add(&n->accepted, &c->amount);
    c->state = SL_CHARGE_ACCEPTED;
    c->heartbeat = n->heartbeats;
}

/* The last report had it as a prompt, the next one will count its row. */
static void begin_to_decode(struct sl_node *n, struct sl_charge *c)
{
    const struct sl_node_ledger row = {.rows = c->amount.rows, .context_tokens = c->amount.context_tokens};
    add(&n->accepted, &row);
    c->amount.pages = 0;
    c->heartbeat = n->heartbeats;
}

void sl_node_charge_drop(struct sl_node *n, struct sl_charge *c, bool keep_rows)
{
    struct sl_node_ledger part = c->amount;
    if (keep_rows && c->decodes)
        return;
    c->decodes = keep_rows;
    if (c->state != SL_CHARGE_NONE)
        sl_list_remove(&c->link);
    if (keep_rows)
        part.rows = part.pages = 0, part.context_tokens = 0;
    if (n && c->boot_id == n->boot_id) {
        if (c->state == SL_CHARGE_SENT)
            take(&n->sent, &part);
        else if (c->state == SL_CHARGE_ACCEPTED && c->heartbeat == n->heartbeats)
            take(&n->accepted, &part);
        else if (c->state == SL_CHARGE_ACCEPTED && keep_rows)
            begin_to_decode(n, c);
    }
    take(&c->amount, &part);
    if (!keep_rows)
        c->state = SL_CHARGE_NONE;
}
