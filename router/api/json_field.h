/* router/api/json_field.h - typed reading of a request body's members. The first thing wrong is kept,
 * everything after it is a no-op, so that a parser reads straight on and asks once. null counts as absent
 * everywhere, as clients send it. */
#ifndef SLUICE_ROUTER_API_JSON_FIELD_H
#define SLUICE_ROUTER_API_JSON_FIELD_H

#include <jansson.h>
#include <stdint.h>
#include "common/base/buf.h"
#include "common/base/err.h"

/* What was wrong with a request: becomes an error object. Zero-initialise; err is SL_OK while nothing is. */
struct sl_fault {
    enum sl_err err;
    unsigned status; /* 0 = by err */
    char message[512];
    char param[64]; /* "" = none */
    char extra[96]; /* more members of the error object */
};

/* Keeps the first. param may be NULL. Returns false. */
bool sl_fault_set(struct sl_fault *f, enum sl_err err, const char *param, const char *fmt, ...)
    SL_PRINTF(4, 5);

struct sl_fields {
    const json_t *object;
    struct sl_fault *fault;
};

/* The member, or NULL when it is absent, null, or something was wrong before. */
const json_t *sl_field(const struct sl_fields *f, const char *name);
bool sl_field_bool(const struct sl_fields *f, const char *name, bool dflt);
int64_t sl_field_int(const struct sl_fields *f, const char *name, int64_t min, int64_t max, int64_t dflt);
double sl_field_number(const struct sl_fields *f, const char *name, double min, double max, double dflt);
const char *sl_field_string(const struct sl_fields *f, const char *name, const char *dflt);
const json_t *sl_field_array(const struct sl_fields *f, const char *name);
const json_t *sl_field_object(const struct sl_fields *f, const char *name);

/* null, false, "", [] and {}: clients send them for "not used". */
bool sl_json_says_nothing(const json_t *j);

/* "a string", for messages. */
const char *sl_json_kind(const json_t *j);

#define SL_JSON_MAX_DEPTH 64 /* lists and objects inside each other in a body */
/* Of a body's values, beside its strings: two million token ids. */
#define SL_JSON_MAX_MEMORY ((size_t)96 << 20)
/* Parses a body: strict JSON, no key twice, bounded depth and memory, must be an object. NULL with the fault set.
 * Owned by the caller. */
json_t *sl_json_body(const char *bytes, size_t n, struct sl_fault *fault);
/* Parses an object that a string of a body holds; NULL: it holds none, or one that is too deep or too large. *memory:
 * what the strings of this body took so far, 0 at first; together they may take as much as the body. */
json_t *sl_json_within(const json_t *text, size_t *memory);
/* Appends j as text; flags are jansson's. False: out is full, or j is no JSON. */
bool sl_json_write(const json_t *j, size_t flags, struct sl_buf *out);

#endif
