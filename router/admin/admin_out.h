/* router/admin/admin_out.h - builds the answer of an admin operation: a sentence and tables, the same for
 * sluicectl and GET /sluice/v1/<op>.
 *
 * Everything lives in the builder's arena until sl_admin_out_fini(). Cells are text; "-" stands for what is
 * not known. Threads: of one builder, whoever builds. */
#ifndef SLUICE_ROUTER_ADMIN_ADMIN_OUT_H
#define SLUICE_ROUTER_ADMIN_ADMIN_OUT_H

#include "common/base/mem.h"
#include "proto/sluice.pb-c.h"

#define SL_ADMIN_MAX_TABLES 6
#define SL_ADMIN_MAX_ROWS   2000 /* of one table; a message has its limit too */

struct sl_admin_out {
    struct sl_arena *arena;
    Sluice__AdminReply reply;
    Sluice__AdminTable *tables[SL_ADMIN_MAX_TABLES];
    size_t cap_rows; /* of the last table */
    size_t at_cell;  /* of its last row: the next one */
};

void sl_admin_out_init(struct sl_admin_out *o);
void sl_admin_out_fini(struct sl_admin_out *o);

/* The sentence; replaces the one before. */
void sl_admin_say(struct sl_admin_out *o, const char *fmt, ...) SL_PRINTF(2, 3);
void sl_admin_refuse(struct sl_admin_out *o, enum sl_err code, const char *fmt, ...) SL_PRINTF(3, 4);
/* Starts a table; columns is a comma-separated list. */
void sl_admin_table(struct sl_admin_out *o, const char *title, const char *columns);
/* A row of the last table; cells are filled one by one, those not filled are "-". */
void sl_admin_row(struct sl_admin_out *o);
void sl_admin_cell(struct sl_admin_out *o, const char *fmt, ...) SL_PRINTF(2, 3);
/* A row of a key/value table. */
void sl_admin_pair(struct sl_admin_out *o, const char *key, const char *fmt, ...) SL_PRINTF(3, 4);

/* The reply as one allocation group for sluice__admin_reply__free_unpacked(). NULL when memory is short. */
Sluice__AdminReply *sl_admin_out_copy(const struct sl_admin_out *o);

#endif
